"""Releases answers exactly, or with little noise, where the data leave no doubt about them; otherwise the
token FAIL (None).

A stable function (`Stable`) says how many people would have to change before one more could change its
answer, or move it by more than a bound. This number, the distance to instability, moves by at most one
between neighbors, so it can be tested privately; a value that one person can change passes the test with
probability at most delta. A failed test releases None and nothing else, not even why.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from numbers import Integral
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np

from .. import _require
from .._errors import INTERRUPTIONS, InvalidInput
from .._public import REPLACE, Public
from .._registry import described
from .._require import Real
from ..accounting import ApproximateDP, Event
from ..sampling import Entropy
from ..tables import Source
from . import _order, arrow_columns, certified
from .noise import draw
from .protocols import Release, check_source, release
from .smooth import bounded_grid, in_unit
from .statistics import Histogram, require_rows


@runtime_checkable
class Stable(Protocol):
    """A function of the data that can compute how stable its value is.

    `distance(source, bound)` is at most the number of changes of one unit after which some further change
    could move `value` by more than `bound` (at all, if 0). It must be 0 where one change can do so now, and
    move by at most 1 between neighbors.
    """

    def check(self, public: Public, bound: int) -> None: ...

    def value(self, source: Source) -> Any: ...

    def distance(self, source: Source, bound: int) -> int: ...


@described("mechanisms.StableMode")
@dataclass(frozen=True, slots=True, kw_only=True)
class StableMode:
    """Computes the most frequent declared category of a column (the mode); of several, the first declared.

    Guarantee: `distance` changes, of one row each, never alter the mode; under add_remove and replace some
               `distance` + 1 changes do.
    Proof:     let i be the mode, j another category, n_i and n_j their counts. j becomes the mode once n_j -
               n_i >= 0 if it is declared before i, or >= 1 if after: that difference must grow by g_j = n_i -
               n_j, or n_i - n_j + 1. One row added, removed or blanked moves it by at most 1, one replaced by
               at most 2. So the smallest number of changes is g = min_j g_j, or ceil(g/2); distance is one
               less. It is 0 where one change suffices, and moves by at most 1, as g moves by at most 1 or 2.
    Assumes:   one row per unit.
    """

    column: str

    def check(self, public: Public, bound: int) -> None:
        require_rows(public)
        if len(public.categories(self.column).values) < 2:
            raise InvalidInput(f"column {self.column!r} has one declared category: its mode is public.")
        if bound != 0:
            raise InvalidInput(
                "a category does not move by an amount: a bound is for numbers. Use DistanceToInstability."
            )

    def value(self, source: Source) -> str | int:
        return source.public.categories(self.column).values[int(np.argmax(self._counts(source)))]

    def distance(self, source: Source, bound: int) -> int:
        counts = self._counts(source)
        mode = int(np.argmax(counts))
        # g_j for every category j, and then their minimum g
        deficits = counts[mode] - counts + (np.arange(len(counts)) > mode)
        needed = int(np.min(np.delete(deficits, mode)))
        return (needed + 1) // 2 - 1 if source.public.neighbors is REPLACE else needed - 1

    def _counts(self, source: Source) -> Any:
        return Histogram(column=self.column)(source)


@described("mechanisms.StableMedian")
@dataclass(frozen=True, slots=True, kw_only=True)
class StableMedian:
    """Computes the (lower) median of a bounded column on a grid of `step`; `value` and `bound` are in steps;
    a release is in the column's unit.

    Guarantee: `distance` is a lower bound of the changes needed before one more could move the median by more
               than `bound`, and moves by at most 1 between neighbors, under every relation.
    Proof:     the lemma in `mechanisms._order`: `distance` is min{k : A_k > bound}, with A_k as there.
    Assumes:   one row per unit.
    """

    column: str
    step: Real = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "step", arrow_columns.as_step(self.step))

    def check(self, public: Public, bound: int) -> None:
        require_rows(public)
        grid = bounded_grid(public, self.column, self.step)
        if bound >= grid.high - grid.low:
            raise InvalidInput(
                f"the bound of {bound} steps is no less than the whole range of column "
                f"{self.column!r} ({grid.high - grid.low} steps): "
                f"nothing needs to be tested. Propose a smaller bound."
            )

    def value(self, source: Source) -> int:
        return self._read(source).median

    def distance(self, source: Source, bound: int) -> int:
        return self._read(source).distance(bound)

    def _read(self, source: Source) -> _order.Ordered:
        return _order.read(
            source, source.public, self.column, bounded_grid(source.public, self.column, self.step)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustedStable:
    """Computes the steward's own function and its distance.

    `function` returns the value of a source, `how_far` its distance for a bound (see `Stable`). It has no
    JSON description, so an earlier release is never repeated for free: each is charged.

    An exception would be a release of its own, so none is passed on: a value that raises is None, a distance
    that raises is 0.

    Assumes: `how_far` has the properties that `Stable` asks of `distance`. Nothing here can check that.
    """

    function: Callable[[Source], Any]
    how_far: Callable[[Source, int], int]
    name: str = "trusted"

    def check(self, public: Public, bound: int) -> None:
        """Accept any public facts: nothing is known of trusted code."""

    def value(self, source: Source) -> Any:
        try:
            return self.function(source)
        except INTERRUPTIONS:
            raise
        except BaseException:
            return None

    def distance(self, source: Source, bound: int) -> int:
        try:
            return max(int(self.how_far(source, bound)), 0)
        except INTERRUPTIONS:
            raise
        except BaseException:
            return 0


@described("mechanisms.DistanceToInstability")
@dataclass(frozen=True, slots=True, kw_only=True)
class DistanceToInstability:
    """Releases the exact value of a stable function if it is far enough from instability, else None (M_stab).

    Guarantee: (epsilon, delta)-DP.
    Proof:     the distance gets discrete Laplace noise of scale 1/epsilon and must reach m, the smallest
               integer that noise alone reaches with probability at most delta (q^m / (1+q), q =
               exp(-epsilon); about ln(1/delta)/epsilon, and less than one above it). If neighbors have the
               same value, the output is post-processing of the noisy distance, which moves by at most 1. If
               not, one change alters the value on both, both distances are 0, and both release None except
               with probability delta. Smith & Thakurta 2013; Dwork & Roth 2014, Section 7.3.
    Assumes:   `function` has the properties that `Stable` asks for.
    """

    # `error` is a number of people, not in the unit of the value.
    error_in_scores: ClassVar[bool] = True
    public: Public
    function: Stable
    epsilon: Real
    delta: float

    def __post_init__(self) -> None:
        check_stable(self.function, self.public, 0)
        check_budget(self.epsilon, self.delta)

    @property
    def reach(self) -> int:
        """The noisy distance that passes: noise alone gets there with probability at most delta."""
        return certified.laplace_quantile(self._scale, _require.exact(self.delta, "delta"))

    @property
    def _scale(self) -> Fraction:
        return 1 / _require.exact(self.epsilon, "epsilon")

    @property
    def event(self) -> Event:
        return ApproximateDP(epsilon=self.epsilon, delta=self.delta, neighbors=self.public.neighbors)

    def error(self, confidence: float = 0.95) -> int:
        """Return a number of people: at that distance from instability, the exact value is released with
        probability `confidence`.

        Proof: the noise is below -t with probability q^(t+1) / (1+q), q = exp(-epsilon). With continuous
               noise the number would be (ln(1/delta) + ln(1/beta)) / epsilon, beta = 1 - confidence.
        """
        return self.reach + _noise_bound(self._scale, confidence)

    def __call__(self, source: Source, /, *, entropy: Entropy) -> Release:
        check_source(self.public, source)
        value, distance = self.function.value(source), self.function.distance(source, 0)
        passed = distance + draw(self._scale, entropy) >= self.reach
        return release(
            stated(self.function, value) if passed else None,
            event=self.event,
            entropy=entropy,
            # a released value is exact
            error=(lambda confidence: 0) if passed else None,
        )


@described("mechanisms.ProposeTestRelease")
@dataclass(frozen=True, slots=True, kw_only=True)
class ProposeTestRelease:
    """Releases a number with noise for a proposed bound on its local sensitivity, if the data pass a private
    test of that bound; else None (propose-test-release).

    `bound` is in the integer units of the function; `share` of epsilon pays for the test.

    Guarantee: (epsilon, delta)-DP.
    Proof:     the distance to where one change may move the value by more than `bound` gets noise of scale
               1/e1, e1 = share * epsilon, and must reach m, which noise alone does with probability at most
               delta (`reach`); then the value gets noise of scale bound/e2, e2 = epsilon - e1. If on one of
               two neighbors one change moves the value by at most `bound`, their values are at most that far
               apart, and the pair (noisy distance, noisy value) costs e1 + e2. If on neither, both distances
               are 0, and both release None except with probability delta. Dwork & Lei 2009; Vadhan 2017,
               Section 3.
    Assumes:   `function` has the properties that `Stable` asks for, and integer values (anything else is
               released as None).
    """

    public: Public
    function: Stable
    bound: int
    epsilon: Real
    delta: float
    share: Real = Fraction(1, 2)

    def __post_init__(self) -> None:
        _require.integer(bound=self.bound, at_least=1)
        check_stable(self.function, self.public, self.bound)
        check_budget(self.epsilon, self.delta)
        _require.open_probability(share=self.share)

    @property
    def scales(self) -> tuple[Fraction, Fraction]:
        """The scales of the noise on the distance, and on the value."""
        epsilon, share = _require.exact(self.epsilon, "epsilon"), _require.exact(self.share, "share")
        return 1 / (share * epsilon), self.bound / ((1 - share) * epsilon)

    @property
    def reach(self) -> int:
        """The noisy distance that passes: noise alone gets there with probability at most delta."""
        return certified.laplace_quantile(self.scales[0], _require.exact(self.delta, "delta"))

    @property
    def event(self) -> Event:
        return ApproximateDP(epsilon=self.epsilon, delta=self.delta, neighbors=self.public.neighbors)

    def error(self, confidence: float = 0.95) -> int | float:
        """Return a bound on the error of a released value, which holds with probability `confidence`."""
        return in_unit(_noise_bound(self.scales[1], confidence, sides=2), _step(self.function))

    def __call__(self, source: Source, /, *, entropy: Entropy) -> Release:
        check_source(self.public, source)
        value, distance = self.function.value(source), self.function.distance(source, self.bound)
        passed = distance + draw(self.scales[0], entropy) >= self.reach
        noise = draw(self.scales[1], entropy)
        if not passed or isinstance(value, bool) or not isinstance(value, Integral):
            return release(None, event=self.event, entropy=entropy)
        return release(
            in_unit(int(value) + noise, _step(self.function)),
            event=self.event,
            entropy=entropy,
            error=self.error,
        )


def stated(function: Stable, value: Any) -> Any:
    """Return the value in the function's own unit: steps of a grid as the number they stand for."""
    in_steps = hasattr(function, "step") and isinstance(value, Integral) and not isinstance(value, bool)
    return in_unit(int(value), _step(function)) if in_steps else value


def _step(function: Stable) -> Fraction:
    return Fraction(getattr(function, "step", 1))


def check_stable(function: Any, public: Public, bound: int) -> None:
    """Refuse an object that is not a stable function of this table, before anything is read."""
    if not isinstance(function, Stable):
        raise InvalidInput(
            f"a stable function is needed, such as StableMode(column=...) or TrustedStable(...), got "
            f"{type(function).__name__}. "
            f"Nothing was read or drawn."
        )
    function.check(public, bound)


def check_budget(epsilon: Any, delta: Any) -> None:
    """Refuse an epsilon or a delta out of range. The limits of epsilon, 1e-12 and 1e6, were chosen by
    hand, beyond any use."""
    _require.positive(epsilon=epsilon)
    if not 1e-12 <= epsilon <= 1e6:
        raise _require.fail("epsilon", epsilon, "between 1e-12 and 1e6")
    _require.open_probability(delta=delta)


def _noise_bound(scale: Fraction, confidence: float, sides: int = 1) -> int:
    """Return a bound that the noise (with sides=2, its absolute value) does not exceed with probability
    `confidence`."""
    _require.open_probability(confidence=confidence)
    return certified.laplace_quantile(scale, (1 - _require.exact(confidence, "confidence")) / sides) - 1
