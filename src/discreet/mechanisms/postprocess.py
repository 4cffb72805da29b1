"""Post-processing: any function of a released value that looks at nothing else costs nothing.

The functions defined here have a JSON description; any Python callable works too, as trusted code.
`added_error` says what a function does to an error bound: clamping to a range that contains the truth never
enlarges it.

>>> Clamp(lower=0)(-3), Round(step=5)(13), Truncate(step=5)(-13), Fold(lower=0, upper=10)(12)
(0, 15, -10, 8)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, is_dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from .. import _require
from .._errors import InvalidInput
from .._public import Public
from .._registry import described
from .._require import Real
from ..accounting import Event
from ..sampling import Entropy
from ..tables import Source
from .arrow_columns import as_step, nearest
from .protocols import Mechanism, Release, check_source, error_of, has_error_in_scores, release


class PostFunction:
    """Base of the functions with a JSON description: how they act on one number, and how much error they
    add."""

    __slots__ = ()

    def __call__(self, value: Any) -> Any:
        """Return the function of every number. A value that is not made of numbers (a category, None, bounds)
        is returned unchanged: it has been paid for, so it is not refused."""
        if not _is_numeric(value):
            return value
        if np.ndim(value) == 0:
            return self.one(value.item() if isinstance(value, np.generic | np.ndarray) else value)
        array = np.asarray(value)
        flat = [self.one(v) for v in array.ravel().tolist()]
        return np.array(flat, dtype=array.dtype if array.dtype == object else None).reshape(array.shape)

    def one(self, value: Any) -> Any:
        """Return the function of one number."""
        raise NotImplementedError

    @property
    def added_error(self) -> Fraction:
        """The largest amount by which the distance to the truth may grow."""
        return Fraction(0)


def _is_numeric(value: Any) -> bool:
    """Return whether a released value is a number, or an array, list or plain tuple of numbers."""
    kinds = (int, float, Fraction, np.number, np.ndarray, list)
    if not isinstance(value, kinds) and type(value) is not tuple:
        return False
    try:
        array = np.asarray(value)
    except ValueError:
        # rows of different lengths
        return False
    if array.dtype == object:
        return all(isinstance(v, int | float | Fraction) for v in array.flat)
    return array.dtype.kind in "iuf"


@described("mechanisms.Clamp")
@dataclass(frozen=True, slots=True, kw_only=True)
class Clamp(PostFunction):
    """Clamps to the nearest point of [lower, upper]; an end may be left open. If the truth lies inside, no
    error grows.

    Proof: projection on an interval leaves its points alone and brings no two points further apart.
    """

    lower: Real | None = None
    upper: Real | None = None

    def __post_init__(self) -> None:
        for name in ("lower", "upper"):
            if getattr(self, name) is not None:
                _require.finite(**{name: getattr(self, name)})
        if self.lower is None and self.upper is None:
            raise InvalidInput("clamping needs lower, upper, or both. Nothing was computed or released.")
        if self.lower is not None and self.upper is not None:
            _require.ordered(lower=self.lower, upper=self.upper)

    def one(self, value: Any) -> Any:
        if self.lower is not None and value < self.lower:
            return self.lower
        return self.upper if self.upper is not None and value > self.upper else value


@described("mechanisms.Fold")
@dataclass(frozen=True, slots=True, kw_only=True)
class Fold(PostFunction):
    """Reflects at `lower` and `upper` until inside: unlike clamping it gives the ends no extra probability.

    If the truth lies inside, no error grows.
    """

    lower: Real
    upper: Real

    def __post_init__(self) -> None:
        _require.ordered(lower=self.lower, upper=self.upper)

    def one(self, value: Any) -> Any:
        if not _is_finite(value):
            return value
        # in exact numbers, as floats may overflow
        lower, upper = _require.exact(self.lower, "lower"), _require.exact(self.upper, "upper")
        offset = (Fraction(value) - lower) % (2 * (upper - lower))
        folded = lower + min(offset, 2 * (upper - lower) - offset)
        if any(isinstance(number, float) for number in (value, self.lower, self.upper)):
            return float(folded)
        return int(folded) if folded.denominator == 1 else folded


@described("mechanisms.Round")
@dataclass(frozen=True, slots=True, kw_only=True)
class Round(PostFunction):
    """Rounds to the nearest multiple of `step`, halves up: adds at most half a step of error."""

    step: Real = 1

    def __post_init__(self) -> None:
        as_step(self.step)

    def one(self, value: Any) -> Any:
        if not _is_finite(value):
            return value
        return _multiple(nearest(Fraction(value) / as_step(self.step)), self.step)

    @property
    def added_error(self) -> Fraction:
        return as_step(self.step) / 2


@described("mechanisms.Truncate")
@dataclass(frozen=True, slots=True, kw_only=True)
class Truncate(PostFunction):
    """Truncates to the next multiple of `step` towards zero: adds less than a step of error."""

    step: Real = 1

    def __post_init__(self) -> None:
        as_step(self.step)

    def one(self, value: Any) -> Any:
        if not _is_finite(value):
            return value
        return _multiple(int(Fraction(value) / as_step(self.step)), self.step)

    @property
    def added_error(self) -> Fraction:
        return as_step(self.step)


@described("mechanisms.PostProcessed")
@dataclass(frozen=True, slots=True, kw_only=True)
class PostProcessed:
    """Passes a mechanism's released value through `function` before anybody sees it.

    Guarantee: the mechanism's own event.
    Proof:     post-processing (Dwork & Roth 2014, Prop. 2.1): the function sees the released value and
               nothing of the data.
    Assumes:   a Python callable given as `function` looks at nothing but its argument; the mechanism then has
               no JSON description. Bounds and steps of the functions here are public, not read off the data.
    """

    mechanism: Mechanism
    function: PostFunction | Callable[[Any], Any]

    def __post_init__(self) -> None:
        require_mechanism(self.mechanism)
        # a mechanism, say, is callable, too
        other_dataclass = is_dataclass(self.function) and not isinstance(self.function, PostFunction)
        if other_dataclass or not callable(self.function):
            raise _require.fail("function", self.function, "a function of the released value")

    @property
    def public(self) -> Public:
        return self.mechanism.public

    @property
    def event(self) -> Event:
        return self.mechanism.event

    def error(self, confidence: float = 0.95) -> Any:
        """Return the error of the mechanism plus `added_error` of the function; for clamping and folding it
        holds if the truth lies inside."""
        return self._widen_error(lambda: error_of(self.mechanism, confidence), self.error_in_scores)

    @property
    def error_in_scores(self) -> bool:
        return has_error_in_scores(self.mechanism)

    def _widen_error(self, mechanism_error: Callable[[], Any], error_in_scores: bool) -> Any:
        """Return `mechanism_error()` plus the error that the function adds; refuse where that is not
        known."""
        if not isinstance(self.function, PostFunction):
            raise InvalidInput("nothing is known about the error of a value changed by a Python function.")
        if error_in_scores:
            raise InvalidInput(
                "the error before was in scores, ranks or people, and nothing is known of it once "
                "the value was changed."
            )
        width = mechanism_error()
        added = self.function.added_error
        # An error that is no number belongs to a table, which the function returns unchanged.
        return width if added == 0 or not _is_numeric(width) else np.add(width, float(added))

    def __call__(self, source: Source, /, *, entropy: Entropy) -> Release:
        check_source(self.public, source, examples=True)
        unchanged = self.mechanism(source, entropy=entropy)
        return release(
            self.function(unchanged.value),
            event=self.event,
            entropy=entropy,
            error=lambda confidence: self._widen_error(
                lambda: unchanged.error(confidence), unchanged.error_in_scores
            ),
            error_in_scores=unchanged.error_in_scores,
        )


def require_mechanism(candidate: Any, name: str = "mechanism") -> None:
    """Refuse an object that is not a mechanism, before anything is read."""
    if not isinstance(candidate, Mechanism):
        raise _require.fail(
            name, type(candidate).__name__, "a mechanism: something with public, event and a call"
        )


def _is_finite(value: Any) -> bool:
    """Return whether a released number is finite; the functions return any other unchanged, as it was paid
    for."""
    return not isinstance(value, float) or math.isfinite(value)


def _multiple(count: int, step: Real) -> Any:
    """Return `count` times `step`, as an integer where it is one."""
    exact = count * as_step(step)
    return int(exact) if exact.denominator == 1 else float(exact)
