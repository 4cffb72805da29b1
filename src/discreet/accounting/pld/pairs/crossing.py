"""Where a curve of certified bounds on log delta crosses its goal, in few evaluations."""

from __future__ import annotations

import math
from collections.abc import Callable

# a lower end is sought for a delta this much larger, relatively, so that it holds whichever way callers round
# theirs
ROUNDED = 4e-12


def crossing(
    f: Callable[[float], float], x: float, slope: float, least: float
) -> tuple[float, float, float] | None:
    """Return a point where falling f is at most 0, one just below it where it is not, and the slope: secants
    kept in a bracket."""
    x = max(x, least)
    here = f(x)
    step = max(abs(here), 1e-3) / slope
    for _ in range(80):
        if here <= 0 and x <= least:
            return least, least, slope
        y = max(x + math.copysign(step, here), least)
        there = f(y)
        if (there <= 0) != (here <= 0):
            break
        x, here, step = y, there, 1.7 * step
    else:
        return None
    (good, at_good), (bad, at_bad) = ((x, here), (y, there)) if here <= 0 else ((y, there), (x, here))
    fall = (at_bad - at_good) / (good - bad)
    for turn in range(60):
        if good - bad <= 1e-8 / slope + 4e-16 * abs(good):
            break
        share = at_bad / (at_bad - at_good) if turn % 3 < 2 and at_bad < 3 else 0.5
        z = bad + min(max(share + (1e-3 if turn % 2 else -1e-3), 1e-3), 1 - 1e-3) * (good - bad)
        value = f(z)
        if value <= 0:
            good, at_good = z, value
        else:
            bad, at_bad = z, value
        if good - bad > 1e-3 / slope:
            fall = (at_bad - at_good) / (good - bad)
    return good, bad, max(fall, 1e-9 * slope)
