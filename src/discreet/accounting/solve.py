"""Solving for epsilon when part of delta is already spent, or is spent at a rate that depends on epsilon."""

from __future__ import annotations

import math
from collections.abc import Callable

from .normal import Normal


def least_epsilon(form: Normal, delta: float, price: Callable[[float], float], pure: float) -> float:
    """Return the least epsilon found with price(remaining_delta(delta, epsilon)) <= epsilon, where the
    remaining delta shrinks as epsilon grows.

    Without a distance the remaining delta does not depend on epsilon, and one call is enough. Otherwise
    iterate from below: the sequence rises to the smallest fixed point; the last value is raised until it
    satisfies its own inequality.
    """
    if not form.parts:
        return 0.0 if form.remaining_delta(delta, 0.0) >= 0 else math.inf
    if form.remaining_delta(delta, 0.0) < 0:
        return math.inf
    if form.distance == 0:
        left = form.remaining_delta(delta, 0.0)
        return price(left) if left > 0 else pure
    value = 0.0
    for _ in range(200):
        left = form.remaining_delta(delta, value)
        if left <= 0:
            return pure if form.remaining_delta(delta, pure) >= 0 else math.inf
        needed = price(left)
        if needed <= value or math.isinf(needed):
            return max(needed, value)
        value = needed * (1 + 1e-9)
    return math.inf
