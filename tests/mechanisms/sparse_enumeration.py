"""Exact probabilities of what a sparse vector says, summed over the noisy threshold: the oracle of
test_threshold.

A `Rule` is the noise of a sparse vector, right or wrong; `worst_loss` is the largest log-ratio over all
transcripts and all neighboring values it is given. Sums run over 60 scales of the threshold's noise: what is
left out is below 1e-26.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Transcript = tuple[Any, ...]  # "below", "above", or a number: the gap, or the noisy value itself


@dataclass(frozen=True)
class Rule:
    threshold_scale: float | None  # None: no noise
    query_scale: float | None
    positives: int | None  # None: never halts
    says: str = "bit"  # "bit", "gap", or "value" (the very noisy value that was compared: a mistake)
    threshold: int = 0


def pmf(scale: float | None, x: Floats) -> Floats:
    if scale is None:
        return (x == 0).astype(float)
    return np.tanh(1 / (2 * scale)) * np.exp(-np.abs(x) / scale)


def at_least(scale: float | None, y: Floats) -> Floats:
    """P(X >= y) for integer y."""
    if scale is None:
        return (y <= 0).astype(float)
    q = math.exp(-1 / scale)
    far = np.exp(-np.maximum(y, 1 - y) / scale) / (1 + q)
    return np.where(y >= 1, far, 1 - far)


def probability(rule: Rule, values: Iterable[int], transcript: Transcript) -> float:
    reach = math.ceil(60 * rule.threshold_scale) if rule.threshold_scale else 0
    z = np.arange(-reach, reach + 1, dtype=float)
    total = pmf(rule.threshold_scale, z)
    for value, said in zip(values, transcript, strict=False):
        needed = rule.threshold + z - value
        if said == "below":  # nu <= needed - 1, and noise is symmetric
            total = total * at_least(rule.query_scale, 1 - needed)
        elif said == "above":
            total = total * at_least(rule.query_scale, needed)
        elif rule.says == "gap":
            total = total * pmf(rule.query_scale, needed + said)
        else:
            total = total * pmf(rule.query_scale, said - value + 0 * z) * (said >= rule.threshold + z)
    return float(total.sum())


def transcripts(rule: Rule, length: int, numbers: Iterable[int] = (0, 1, 3)) -> Iterator[Transcript]:
    """All that can be said to `length` questions; after the last positive, nothing."""
    above = ["above"] if rule.says == "bit" else list(numbers)
    for said in itertools.product(["below", *above], repeat=length):
        positives = [i for i, answer in enumerate(said) if answer != "below"]
        most = rule.positives
        if most is not None and len(positives) > most:
            continue
        yield said if most is None or len(positives) < most else said[: positives[most - 1] + 1]


def one_sided(rule: Rule, length: int) -> Iterator[Transcript]:
    """Of a long run, the transcripts that tell most: all below, or all but the last positives."""
    above = "above" if rule.says == "bit" else 0
    for positives in range(min(length, rule.positives or length) + 1):
        yield ("below",) * (length - positives) + (above,) * positives


def worst_loss(rule: Rule, pairs: Iterable[tuple[tuple[int, ...], tuple[int, ...]]]) -> float:
    worst = 0.0
    for first, second in pairs:
        every = transcripts(rule, len(first)) if len(first) <= 8 else one_sided(rule, len(first))
        for said in set(every):
            p, q = probability(rule, first, said), probability(rule, second, said)
            if p > 0 or q > 0:
                worst = max(worst, math.inf if min(p, q) <= 0 else abs(math.log(p / q)))
    return worst


def neighbors(length: int, sensitivity: int, monotone: bool, base: Iterable[int] = (-2, 0, 1)) -> list[Any]:
    """Values around the threshold, and all extreme moves of them."""
    moves = [[0, sensitivity]] * length if monotone else [[-sensitivity, 0, sensitivity]] * length
    pairs = []
    for values in itertools.product(base, repeat=length):
        for move in itertools.product(*moves):
            pairs.append((values, tuple(v + d for v, d in zip(values, move, strict=True))))
    return pairs
