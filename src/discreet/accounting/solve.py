"""Solves for epsilon when part of delta is taken by own deltas, and a part that grows with epsilon by a
distance in total variation (both as defined in `normal`)."""

from __future__ import annotations

import math
from collections.abc import Callable

from .normal import Normal


def least_epsilon(form: Normal, delta: float, price: Callable[[float], float], pure: float) -> float:
    """Return an epsilon with price(form.remaining_delta(delta, epsilon)) <= epsilon, close to the least one.

    `price` maps the delta of the parts to their epsilon; `pure` is their pure epsilon, or infinity. Without a
    distance the remaining delta does not depend on epsilon, and one call of `price` is enough. With a
    distance it shrinks as epsilon grows: the iteration starts at epsilon 0 and rises towards the smallest
    solution, and each value is raised by 1e-9 of itself, so that it ends at one that satisfies the
    inequality.
    """
    if not form.parts:
        return 0.0 if form.remaining_delta(delta, 0.0) >= 0 else math.inf
    if form.remaining_delta(delta, 0.0) < 0:
        return math.inf
    if form.distance == 0:
        remaining = form.remaining_delta(delta, 0.0)
        return price(remaining) if remaining > 0 else pure
    value = 0.0
    for _ in range(200):
        remaining = form.remaining_delta(delta, value)
        if remaining <= 0:
            return pure if form.remaining_delta(delta, pure) >= 0 else math.inf
        needed = price(remaining)
        if needed <= value or math.isinf(needed):
            return max(needed, value)
        value = needed * (1 + 1e-9)
    return math.inf
