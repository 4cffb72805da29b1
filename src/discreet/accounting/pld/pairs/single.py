"""Computes epsilon and delta of one release of one mechanism with the pair (P, Q) and the loss L = log P/Q:
delta(epsilon) = P(L > epsilon) - e^epsilon Q(L > epsilon) is two tail probabilities, and needs no lattice."""

from __future__ import annotations

import math

import numpy as np

from .cells import DominatingPair
from .crossing import ROUNDED, crossing

# The largest epsilon at which delta is computed, as e^600 is still a float; beyond, delta is bounded by its
# value there.
_FAR = 600.0


def delta(pair: DominatingPair, epsilon: float) -> tuple[float, float]:
    """Return a lower and an upper bound on delta of the pair at epsilon, from the tail of the loss alone."""
    # delta falls with epsilon
    if epsilon > _FAR:
        return 0.0, delta(pair, _FAR)[1]
    cells = pair.measure(np.array([-np.inf, epsilon, np.inf]), np.array([epsilon, epsilon]))
    value, error = float(cells.excess[1]), float(cells.excess_error[1])
    return max(0.0, value - error), min(1.0, max(0.0, value) + error)


def interval(
    pair: DominatingPair, target_delta: float, near: float, slope: float
) -> tuple[float, float] | None:
    """Return a lower and an upper bound on epsilon at `target_delta`, searched from `near` with an estimate
    of the slope -d log(delta) / d epsilon; None if no crossing is found. The lower one also holds at a delta
    larger by rounding."""
    candidates = []
    log_delta = math.log(target_delta)
    # ROUNDED is more than the rounding errors of the logarithms that are compared
    for side, level in ((0, log_delta + ROUNDED), (1, log_delta - ROUNDED)):

        def excess(x: float, side: int = side, level: float = level) -> float:
            return math.log(max(delta(pair, x)[side], 1e-320)) - level

        crossing_point = crossing(excess, near, slope, 0.0)
        if crossing_point is None:
            return None
        # the point below the crossing for the lower bound on delta, the one above it for the upper bound
        candidates.append(crossing_point[1 - side])
        near, slope = crossing_point[0], crossing_point[2]
    return min(candidates), max(candidates)
