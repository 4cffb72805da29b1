"""The parameter at which a target is just met, by few evaluations of the certified bound.

The search works on log epsilon as a function of log parameter, which is nearly straight: each step is a secant through
the last two points, kept inside the bracket. Only points whose certified epsilon was found to be within the target are returned.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ... import _require
from ..._errors import InvalidInput
from ..events import Event
from . import front

_EVALUATIONS = 60


def calibrate_monotone(
    make_event: Callable[[float], Event],
    *,
    epsilon: float,
    delta: float,
    start: float = 1.0,
    tolerance: float = 1e-4,
    increasing: bool = False,
) -> float:
    """The smallest noise (or, with `increasing`, the largest rate or the like) at which make_event costs at most epsilon.

    Guarantee: the certified epsilon of make_event(result) is at most `epsilon`, and that of a value closer to the boundary by
               a relative `tolerance` is above it.
    Assumes:   the price falls with the parameter (rises, with `increasing`).

    >>> from ..events import Gaussian
    >>> noise = calibrate_monotone(lambda s: Gaussian(noise_multiplier=s), epsilon=1.0, delta=1e-5)
    >>> 3.7306 <= noise <= 3.7306 * 1.0002
    True
    """
    _require.positive(epsilon=epsilon, start=start)
    _require.open_probability(delta=delta, tolerance=tolerance)
    sign = -1.0 if increasing else 1.0

    def excess(t: float) -> float:
        found = front.epsilon(make_event(math.exp(sign * t)), delta)
        return math.inf if math.isinf(found) else math.log(max(found, 1e-300) / epsilon)

    bad, good = _bracket(excess, sign * math.log(start))
    return math.exp(sign * _narrow(excess, bad, good, tolerance))


Point = tuple[float, float]


def _bracket(excess: Callable[[float], float], t: float) -> tuple[Point, Point]:
    """A point that costs too much and one that does not, by steps that follow the slope 1 of epsilon against noise."""
    here = (t, excess(t))
    step = 0.0
    for _ in range(_EVALUATIONS):
        drift = here[1] if math.isfinite(here[1]) and abs(here[1]) < 5 else math.copysign(2.0, here[1])
        step = drift * 1.05 + math.copysign(0.02 + abs(step) / 2, drift)
        there = (here[0] + step, excess(here[0] + step))
        if here[1] > 0 >= there[1]:
            return here, there
        if there[1] > 0 >= here[1]:
            return there, here
        here = there
    raise InvalidInput(
        "no parameter was found that costs less than the target beside one that costs more. Nothing was released. Give a `start` "
        "nearer to the answer, or check that the price depends on the parameter."
    )


def _narrow(excess: Callable[[float], float], bad: Point, good: Point, tolerance: float) -> float:
    """Secant steps aimed a little to the private side, until the bracket is narrower than the tolerance."""
    for turn in range(_EVALUATIONS):
        width = good[0] - bad[0]
        if abs(width) <= tolerance * 0.9:
            break
        if math.isfinite(bad[1]) and math.isfinite(good[1]) and turn % 4 != 3:
            share = bad[1] / (bad[1] - good[1])
            aim = bad[0] + share * width
            margin = math.copysign(0.35 * tolerance, width)
            near_good = abs(good[0] - aim) < 0.5 * tolerance
            t = aim - margin if near_good else aim + margin
        else:
            t = bad[0] + 0.5 * width
        low, high = sorted((bad[0], good[0]))
        t = min(max(t, low + 0.05 * (high - low)), high - 0.05 * (high - low))
        value = excess(t)
        if value > 0:
            bad = (t, value)
        else:
            good = (t, value)
    return good[0]
