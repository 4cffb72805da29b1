"""Finds where a falling curve of certified bounds on log delta crosses a target, in few evaluations."""

from __future__ import annotations

import math
from collections.abc import Callable

# The lower end of an interval of epsilon is computed for a delta larger by this share, so that it also holds
# for a caller's delta that differs by rounding.
ROUNDED = 4e-12


def crossing(
    f: Callable[[float], float], x: float, slope: float, least: float
) -> tuple[float, float, float] | None:
    """Return (above, below, slope) around the crossing of a decreasing f with 0: f(above) <= 0, f(below) > 0,
    `below` is just below `above`, and the slope is about -f' there. None if no crossing is found.

    The search begins at `x` with an estimate of the slope, and does not go below `least`; if f(least) <= 0
    both points are `least`. A bracket is found by growing steps and narrowed by secants and bisections, so
    that what is returned has been evaluated, whatever f does in between.
    """
    x = max(x, least)
    at_x = f(x)
    step = max(abs(at_x), 1e-3) / slope
    for _ in range(80):
        if at_x <= 0 and x <= least:
            return least, least, slope
        y = max(x + math.copysign(step, at_x), least)
        at_y = f(y)
        if (at_y <= 0) != (at_x <= 0):
            break
        x, at_x, step = y, at_y, 1.7 * step
    else:
        return None
    (above, at_above), (below, at_below) = ((x, at_x), (y, at_y)) if at_x <= 0 else ((y, at_y), (x, at_x))
    measured_slope = (at_below - at_above) / (above - below)
    for turn in range(60):
        if above - below <= 1e-8 / slope + 4e-16 * abs(above):
            break
        # two secants, moved a little to either side of the crossing in turn, then a bisection
        share = at_below / (at_below - at_above) if turn % 3 < 2 and at_below < 3 else 0.5
        z = below + min(max(share + (1e-3 if turn % 2 else -1e-3), 1e-3), 1 - 1e-3) * (above - below)
        value = f(z)
        if value <= 0:
            above, at_above = z, value
        else:
            below, at_below = z, value
        if above - below > 1e-3 / slope:
            measured_slope = (at_below - at_above) / (above - below)
    return above, below, max(measured_slope, 1e-9 * slope)
