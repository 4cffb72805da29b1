"""Calibration: the least noise, the most steps, the largest rate that stays within a target.

Whatever the parameter and the accountant, the price is monotone in it. The search brackets the target,
narrows the bracket, and returns the end on the private side, at which the price was evaluated: never
optimistic, tight to the tolerance.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from .. import _require
from .._errors import InvalidInput, Unsupported
from . import api
from .events import Event


def calibrate(
    make_event: Callable[[Any], Event],
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    advantage: float | None = None,
    tpr: float | None = None,
    fpr: float | None = None,
    accountant: str = api.TIGHTEST,
    integer: bool = False,
    bracket: tuple[float, float] | None = None,
    tolerance: float = 1e-4,
) -> Any:
    """Return the value x closest to the target for which make_event(x) stays within it.

    The target is one of: (epsilon, delta); `advantage`, the largest TPR - FPR of any membership attack; `tpr`
    at `fpr`, the largest true-positive rate at that false-positive rate. `integer=True` for numbers of steps.
    `bracket` limits the search, e.g. (1e-6, 1) for a rate. The returned value is within a relative
    `tolerance` of the exact boundary and always satisfies the target.

    >>> from .events import Gaussian
    >>> noise = calibrate(lambda s: Gaussian(noise_multiplier=s), epsilon=1, delta=1e-5, accountant="gdp")
    >>> 3.7306 <= noise <= 3.7306 * 1.0002
    True
    """
    excess = _target(epsilon, delta, advantage, tpr, fpr, accountant)
    _require.open_probability(tolerance=tolerance)
    low, high = _bracket(bracket, integer)

    def over(x: float) -> float:
        return excess(make_event(round(x) if integer else x))

    warm = None
    if accountant in (api.TIGHTEST, "pld") and bracket is None:
        warm = _warm(
            lambda: calibrate(
                make_event,
                epsilon=epsilon,
                delta=delta,
                advantage=advantage,
                tpr=tpr,
                fpr=fpr,
                accountant="rdp",
                integer=integer,
                tolerance=0.02,
            )
        )
    start = _start(over, low, high, integer, warm)
    return _integer(over, *start) if integer else _narrow(over, *start, tolerance)


def _warm(search: Callable[[], Any]) -> float | None:
    """Return a first guess from the quick accountant, which charges at least as much: only a place to start
    from."""
    try:
        return float(search())
    except (InvalidInput, Unsupported):
        return None


def _target(
    epsilon: float | None,
    delta: float | None,
    advantage: float | None,
    tpr: float | None,
    fpr: float | None,
    accountant: str,
) -> Callable[[Event], float]:
    """Return how far above the target an event is: a function that is at most zero exactly when the target is
    met."""
    given = [epsilon is not None, advantage is not None, tpr is not None]
    if sum(given) != 1 or (epsilon is None) != (delta is None) or (tpr is None) != (fpr is None):
        raise InvalidInput(
            "calibrate needs exactly one target: epsilon= with delta=, advantage=, or tpr= with "
            "fpr=. Nothing was computed."
        )
    if epsilon is not None and delta is not None:
        _require.positive(epsilon=epsilon)
        _require.probability(delta=delta)
        return lambda event: _log_ratio(api.epsilon(event, delta=delta, accountant=accountant), epsilon)
    if advantage is not None:
        _require.open_probability(advantage=advantage)
        return lambda event: _log_ratio(api.delta(event, epsilon=0.0, accountant=accountant), advantage)
    assert tpr is not None
    assert fpr is not None
    _require.open_probability(tpr=tpr, fpr=fpr)
    if tpr <= fpr:
        raise _require.fail("tpr", tpr, f"above fpr = {fpr:g}: guessing alone reaches that")
    return lambda event: _log_ratio(1 - api.tradeoff(event, alpha=fpr, accountant=accountant), tpr)


def _log_ratio(value: float, target: float) -> float:
    if math.isinf(value):
        return math.inf
    return math.log(value / target) if value > 0 else -math.inf


def _bracket(bracket: tuple[float, float] | None, integer: bool) -> tuple[float, float]:
    low, high = bracket if bracket is not None else (1.0 if integer else 1e-9, 1e15)
    _require.positive(bracket_low=low)
    _require.ordered(bracket_low=low, bracket_high=high)
    return float(low), float(high)


_Start = tuple[float, float, float, float]


def _start(
    over: Callable[[float], float], low: float, high: float, integer: bool, warm: float | None
) -> _Start:
    """Two points on both sides of the target: (private, its excess, not private, its excess). Walks from 1,
    or from a guess."""
    x = min(max(1.0 if warm is None else warm, low), high)
    at = over(x)
    direction = _direction(over, x, at, low, high)
    inside, factor = at <= 0, 2.0 if warm is None else 1.1
    while True:
        step = factor if (direction > 0) == inside else 1 / factor  # towards the target
        y = min(max(x * step, low), high)
        if integer:
            y = float(math.ceil(y)) if step > 1 else float(math.floor(y))
        new = None if y == x else _allowed(over, y)
        if new is None:
            if inside:
                return x, at, x, at
            raise InvalidInput(
                f"no value in [{low:g}, {high:g}] meets the target: even {x:g} misses it. Nothing "
                f"was released. "
                f"Loosen the target, or change what the event holds fixed."
            )
        if (new <= 0) != inside:
            return (x, at, y, new) if inside else (y, new, x, at)
        x, at, factor = y, new, min(factor**2, 16.0)


def _allowed(over: Callable[[float], float], x: float) -> float | None:
    """Return the excess at x, or None where the event cannot be made, as with a rate above 1."""
    try:
        return over(x)
    except InvalidInput:
        return None


def _direction(over: Callable[[float], float], x: float, at: float, low: float, high: float) -> int:
    """+1 if the price rises with the parameter (steps, rate), -1 if it falls (noise)."""
    for factor in (1.5, 8.0, 1e3, 1e6):
        for y in (x * factor, x / factor):
            if low <= y <= high:
                other = _allowed(over, y)
                if other is not None and other != at:
                    return 1 if (other > at) == (y > x) else -1
    raise InvalidInput("the price does not depend on the parameter. Nothing was computed.")


def _narrow(
    over: Callable[[float], float], good: float, at_good: float, bad: float, at_bad: float, tolerance: float
) -> float:
    """Interpolation in logarithms, aimed a little into the private side; bisection when it stalls."""
    for turn in range(200):
        if abs(math.log(bad / good)) <= tolerance / 2:
            break
        a, b = math.log(good), math.log(bad)
        share = 0.5
        if turn % 3 != 2 and math.isfinite(at_good) and math.isfinite(at_bad):
            share = at_good / (at_good - at_bad)
            margin = tolerance / (4 * abs(b - a))  # so that the guess lands on alternate sides
            share = min(max(share - margin if turn % 2 else share + margin, margin), 1 - margin)
        x = math.exp(a + share * (b - a))
        if x in (good, bad):
            break
        value = over(x)
        if value <= 0:
            good, at_good = x, value
        else:
            bad, at_bad = x, value
    return good


def _integer(over: Callable[[float], float], good: float, at_good: float, bad: float, at_bad: float) -> int:
    low, high = round(good), round(bad)
    while abs(high - low) > 1:
        middle = (low + high) // 2
        if over(middle) <= 0:
            low = middle
        else:
            high = middle
    return low
