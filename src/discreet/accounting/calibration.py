"""Finds the least noise, the most steps or the largest rate that meets a privacy target.

The search assumes that the privacy loss is monotone in the parameter. It finds one value that meets the
target and one that does not, narrows the interval between them, and returns the end that meets the target.
The privacy loss was evaluated at that very value, so the result always meets the target, also where the
assumption is wrong.

The digits of a result must not change: results become prices that ledgers compare exactly, and a run whose
price has other digits than its ledger says cannot be resumed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from .. import _require
from .._errors import InvalidInput, Unsupported
from . import pricing
from .events import Event


@_require.check_options
def calibrate(
    make_event: Callable[[Any], Event],
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    advantage: float | None = None,
    tpr: float | None = None,
    fpr: float | None = None,
    accountant: str = pricing.TIGHTEST,
    integer: bool = False,
    bracket: tuple[float, float] | None = None,
    tolerance: float = 1e-4,
) -> Any:
    """Return the extreme x (least noise, most steps, largest rate) for which make_event(x) meets the target.

    The target is one of: (epsilon, delta); `advantage`, the largest TPR - FPR of any membership attack; `tpr`
    at `fpr`, the largest true-positive rate at that false-positive rate. `integer=True` searches integers, as
    for a number of steps. `bracket` is the (least, largest) x to try, e.g. (1e-6, 1) for a rate; the default
    is in `_search_limits`. The returned value always satisfies the target. It is within a relative
    `tolerance` of the exact boundary, or with `integer=True` the last integer that meets the target; or it is
    the end of the bracket, if no x in the bracket misses the target.

    >>> from .events import Gaussian
    >>> noise = calibrate(lambda s: Gaussian(noise_multiplier=s), epsilon=1, delta=1e-5, accountant="gdp")
    >>> 3.7306 <= noise <= 3.7306 * 1.0002
    True
    """
    excess = _excess_function(epsilon, delta, advantage, tpr, fpr, accountant)
    _require.open_probability(tolerance=tolerance)
    low, high = _search_limits(bracket, integer)

    def excess_at(x: float) -> float:
        return excess(make_event(round(x) if integer else x))

    def excess_or_infinite(x: float) -> float:
        value = _excess_or_none(excess_at, x)
        return math.inf if value is None else value

    # The loss distribution is slow to compute: a coarse search by the Rényi accountant finds where to start.
    initial_guess = None
    if accountant in (pricing.TIGHTEST, "pld") and bracket is None:
        initial_guess = _initial_guess(
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
    ends = _find_bracket(excess_at, low, high, integer, initial_guess)
    if integer:
        return _bisect_integers(excess_or_infinite, ends)
    return _narrow_bracket(excess_or_infinite, ends, tolerance)


def _initial_guess(search: Callable[[], Any]) -> float | None:
    """Return the result of a coarse search as the start of the exact one, or None if it fails."""
    try:
        return float(search())
    except (InvalidInput, Unsupported):
        return None


def _excess_function(
    epsilon: float | None,
    delta: float | None,
    advantage: float | None,
    tpr: float | None,
    fpr: float | None,
    accountant: str,
) -> Callable[[Event], float]:
    """Return a function of an event that is at most zero exactly when the event meets the target."""
    targets = [epsilon is not None, advantage is not None, tpr is not None]
    _require.that(
        sum(targets) == 1 and (epsilon is None) == (delta is None) and (tpr is None) == (fpr is None),
        "calibrate needs exactly one target: epsilon= with delta=, advantage=, or tpr= with fpr=.",
    )
    if epsilon is not None and delta is not None:
        _require.positive(epsilon=epsilon)
        _require.probability(delta=delta)
        return lambda event: _log_ratio(pricing.epsilon(event, delta=delta, accountant=accountant), epsilon)
    if advantage is not None:
        _require.open_probability(advantage=advantage)
        return lambda event: _log_ratio(pricing.delta(event, epsilon=0.0, accountant=accountant), advantage)
    assert tpr is not None
    assert fpr is not None
    _require.open_probability(tpr=tpr, fpr=fpr)
    _require.must(tpr > fpr, "tpr", tpr, f"above fpr = {fpr:g}: guessing alone reaches that")
    return lambda event: _log_ratio(1 - pricing.tradeoff(event, alpha=fpr, accountant=accountant), tpr)


def _log_ratio(value: float, target: float) -> float:
    """Return ln(value / target): at most zero exactly when the value is at most the target."""
    if math.isinf(value):
        return math.inf
    return math.log(value / target) if value > 0 else -math.inf


def _search_limits(bracket: tuple[float, float] | None, integer: bool) -> tuple[float, float]:
    """Return the (least, largest) x to try: the bracket, or the least and largest integer in it. The default
    bracket is (1e-9, 1e15), for integers (1, 1e15)."""
    low, high = bracket if bracket is not None else (1.0 if integer else 1e-9, 1e15)
    _require.positive(bracket_low=low)
    _require.ordered(bracket_low=low, bracket_high=high)
    if not integer:
        return float(low), float(high)
    _require.must(math.ceil(low) <= math.floor(high), "bracket", (low, high), "one that holds an integer")
    return float(math.ceil(low)), float(math.floor(high))


# (x that meets the target, its excess, x that does not, its excess); the excess is that of
# `_excess_function`.
_Bracket = tuple[float, float, float, float]


def _find_bracket(
    excess_at: Callable[[float], float], low: float, high: float, integer: bool, initial_guess: float | None
) -> _Bracket:
    """Return a value that meets the target ("private") and one that does not ("violating"), with their
    excess.

    The search starts from 1, or from the guess. Where every value up to the end of [low, high] meets the
    target, both values are that end. A value whose event cannot be made, as with a rate above 1, counts as
    violating.
    """
    x = min(max(1.0 if initial_guess is None else initial_guess, low), high)
    excess = excess_at(x)
    direction = _direction(excess_at, x, excess, low, high)
    is_private, factor = excess <= 0, 2.0 if initial_guess is None else 1.1
    while True:
        # A private x moves towards more privacy loss, a violating x towards less.
        change = factor if (direction > 0) == is_private else 1 / factor
        y = min(max(x * change, low), high)
        if integer:
            y = float(math.ceil(y)) if change > 1 else float(math.floor(y))
        next_excess = None if y == x else _excess_or_none(excess_at, y)
        if next_excess is None:
            if is_private:
                return (x, excess, x, excess) if y == x else (x, excess, y, math.inf)
            raise InvalidInput(
                f"no value in [{low:g}, {high:g}] meets the target: even {x:g} misses it. Loosen the target, "
                "give a wider bracket, or change what the event holds fixed."
            )
        if (next_excess <= 0) != is_private:
            return (x, excess, y, next_excess) if is_private else (y, next_excess, x, excess)
        # The factor grows, so that a target far away is reached in few evaluations.
        x, excess, factor = y, next_excess, min(factor**2, 16.0)


def _excess_or_none(excess_at: Callable[[float], float], x: float) -> float | None:
    """Return the excess at x, or None where the event cannot be made, as with a rate above 1."""
    try:
        return excess_at(x)
    except InvalidInput:
        return None


def _direction(excess_at: Callable[[float], float], x: float, excess: float, low: float, high: float) -> int:
    """Return +1 if the privacy loss rises with the parameter (steps, rate), -1 if it falls (noise)."""
    for factor in (1.5, 8.0, 1e3, 1e6):
        for y in (x * factor, x / factor):
            if low <= y <= high:
                other = _excess_or_none(excess_at, y)
                if other is not None and other != excess:
                    return 1 if (other > excess) == (y > x) else -1
    if excess == math.inf:
        raise InvalidInput(
            f"the privacy loss has no finite bound at {x:g} and at every other value in [{low:g}, {high:g}] "
            "that was tried. Gaussian noise needs a delta above 0: give one."
        )
    raise InvalidInput(
        f"the privacy loss is the same at {x:g} and at every other value in [{low:g}, {high:g}] that was "
        "tried. Check that make_event uses its argument, or give another bracket."
    )


def _narrow_bracket(excess_at: Callable[[float], float], bracket: _Bracket, tolerance: float) -> float:
    """Narrow the bracket by interpolation in logarithms, with a bisection every third iteration.

    Interpolated points are moved by a quarter of the tolerance, up and down alternately, so that both ends of
    the bracket approach the target. Order and rounding of these operations decide the digits of the result.
    """
    private, private_excess, violating, violating_excess = bracket
    for iteration in range(200):
        if abs(math.log(violating / private)) <= tolerance / 2:
            break
        a, b = math.log(private), math.log(violating)
        fraction = 0.5
        if iteration % 3 != 2 and math.isfinite(private_excess) and math.isfinite(violating_excess):
            fraction = private_excess / (private_excess - violating_excess)
            margin = tolerance / (4 * abs(b - a))
            fraction = min(max(fraction - margin if iteration % 2 else fraction + margin, margin), 1 - margin)
        x = math.exp(a + fraction * (b - a))
        if x in (private, violating):
            break
        value = excess_at(x)
        if value <= 0:
            private, private_excess = x, value
        else:
            violating, violating_excess = x, value
    return private


def _bisect_integers(excess_at: Callable[[float], float], bracket: _Bracket) -> int:
    """Return the last integer that meets the target, by bisection of the bracket."""
    private, violating = round(bracket[0]), round(bracket[2])
    while abs(violating - private) > 1:
        middle = (private + violating) // 2
        if excess_at(middle) <= 0:
            private = middle
        else:
            violating = middle
    return private
