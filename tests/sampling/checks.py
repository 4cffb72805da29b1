"""Checks of a sampler's law that are true for every number of draws, and entropy that is scripted or
forbidden.

Each check raises a false alarm with probability at most `alpha`, whatever the law and the number of draws.
Mutants are far enough off that they pass a check with probability below 1e-9 too.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from discreet.sampling import SeededEntropy

ALPHA = 1e-9


def assert_follows_cdf(samples, cdf: Callable, alpha: float = ALPHA, known_to: float = 0.0) -> None:
    """Dvoretzky-Kiefer-Wolfowitz with Massart's constant; `known_to` is the error of `cdf` itself."""
    values, counts = np.unique(np.asarray(samples, dtype=object).astype(float), return_counts=True)
    empirical = np.cumsum(counts) / len(samples)
    bound = math.sqrt(math.log(2 / alpha) / (2 * len(samples))) + known_to
    at = np.abs(empirical - cdf(values))
    before = np.abs(np.concatenate(([0.0], empirical[:-1])) - cdf(values - 1))
    worst = max(at.max(), before.max())
    assert worst <= bound, f"the empirical cdf is {worst:.3g} off, allowed {bound:.3g}"


def assert_frequency(hits: int, n: int, p: float, alpha: float = ALPHA) -> None:
    """Chernoff: P(n KL(hits/n, p) >= t) <= 2 exp(-t)."""
    q = hits / n
    parts = [(a * math.log(a / b) if b > 0 else math.inf) for a, b in ((q, p), (1 - q, 1 - p)) if a > 0]
    assert n * sum(parts) <= math.log(2 / alpha), f"{hits} of {n}, expected a fraction of {p:.6g}"


def assert_follows_pmf(samples, pmf: dict[int, float], alpha: float = ALPHA) -> None:
    """Every listed value occurs as often as it should, by Chernoff and a union bound."""
    samples = np.asarray(samples)
    for value, p in pmf.items():
        assert_frequency(int((samples == value).sum()), len(samples), p, alpha / len(pmf))


def laplace_cdf(scale: float) -> Callable:
    q = math.exp(-1 / scale)

    def cdf(k):
        k = np.asarray(k, dtype=float)
        left = np.exp(np.minimum(k, 0) / scale) / (1 + q)
        right = 1 - np.exp(-(np.maximum(k, 0) + 1) / scale) / (1 + q)
        return np.where(k < 0, left, right)

    return cdf


def gaussian_pmf(sigma: float, reach: int | None = None) -> dict[int, float]:
    reach = reach or math.ceil(10 * sigma) + 2
    weights = {k: math.exp(-k * k / (2 * sigma * sigma)) for k in range(-reach, reach + 1)}
    total = math.fsum(weights.values())
    return {k: w / total for k, w in weights.items()}


class Scripted(SeededEntropy):
    """Feeds the given bytes first, then a seeded stream; counts what was asked for."""

    def __init__(self, script: bytes = b"", seed: int = 0) -> None:
        super().__init__(seed)
        self.script, self.drawn = script, 0

    def _take(self, size: int):
        self.drawn += size
        out = super()._take(size)
        head, self.script = self.script[:size], self.script[size:]
        out[: len(head)] = np.frombuffer(head, np.uint8)
        return out


class Forbidden(SeededEntropy):
    """Fails the test when anything is drawn."""

    def __init__(self) -> None:
        super().__init__(0)

    def _take(self, size: int):
        raise AssertionError("bits were drawn although the input is bad")


def words(*values: int) -> bytes:
    return np.array(values, dtype=np.uint64).tobytes()
