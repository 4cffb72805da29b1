"""Checks of discrete laws that hold for every number of draws."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping


def assert_law(
    draw: Callable[[], Hashable], law: Mapping[Hashable, float], n: int, alpha: float = 1e-9
) -> None:
    """n draws follow `law`; a false alarm has probability at most alpha.

    Chernoff: for a Bernoulli(p) mean m of n draws, P(n KL(m, p) >= t on one side) <= exp(-t); a union over
    both sides and all outcomes.
    """
    counts = Counter(draw() for _ in range(n))
    assert set(counts) <= set(law), f"outcomes without probability: {set(counts) - set(law)}"
    allowed = math.log(2 * len(law) / alpha)
    for outcome, p in law.items():
        assert n * _kl(counts[outcome] / n, float(p)) <= allowed, (outcome, counts[outcome] / n, float(p))


def _kl(m: float, p: float) -> float:
    def part(a: float, b: float) -> float:
        return 0.0 if a == 0 else math.inf if b <= 0 else a * math.log(a / b)

    return part(m, p) + part(1 - m, 1 - p)


def assert_rarely(failures: int, n: int, rate: float, alpha: float = 1e-9) -> None:
    """At most a fraction `rate` of independent runs fail, as far as n of them can tell (Chernoff, one
    side)."""
    if failures / n > rate:
        assert n * _kl(failures / n, rate) <= math.log(1 / alpha), (failures, n, rate)
