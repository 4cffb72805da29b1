"""Releases answers exactly, or with little noise, where the data leave no doubt about them; otherwise the
token FAIL (None).

A stable function (`Stable`) says how many people would have to change before one more could change its
answer, or move it by more than a bound. This number, the distance to instability, moves by at most one
between neighbors, so it can be tested privately; a value that one person can change passes the test with
probability at most delta. A failed test releases None and nothing else, not even why.

Releases a median with as little noise as the data at hand allow: smooth sensitivity.

Usually one person can hardly move a median, but in the worst case by the whole range. Noise in proportion to
the local sensitivity (how far one person can move the median of this very table) would itself reveal the
data; noise in proportion to an upper bound of it that varies slowly from table to table, the smooth
sensitivity, does not. Both kinds of noise offered are integers, drawn exactly for any rational scale that
follows from the data; the scale itself is never released (Nissim, Raskhodnikova & Smith 2007).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from numbers import Integral
from typing import Annotated, Any, ClassVar, Protocol, runtime_checkable

import numpy as np

from .. import _require, sampling
from .._errors import result_or
from .._public import REPLACE, Public
from .._registry import described
from .._require import EXACT, OPEN_PROBABILITY, POSITIVE, Real, at_least, at_most, between, instance_of
from ..accounting import ApproximateDP, Event, PureDP
from ..sampling import Entropy
from ..tables import Source
from . import arrow_columns
from .noise import draw, exp_bounds, laplace_quantile, log_above
from .protocols import Mechanism, Release, check_source, release
from .statistics import ROWS, Histogram, require_rows, step_of

# A smooth sensitivity below this many grid steps is raised to it, so that no scale is zero. The maximum of a
# smooth bound and a constant is smooth. Chosen by hand: noise of this scale is nearly always zero steps.
_FLOOR = 2.0**-10
# What is accepted of epsilon, beyond any use on both sides; chosen by hand.
EPSILON = between(1e-12, 1e6)
# The natural logarithm of the largest factor by which rounding in floats may raise a computed smooth
# sensitivity above the true one; it is taken off beta.
_ROUNDING = 4e-12


def polynomial_noise(scale: Fraction, power: int, entropy: Entropy) -> int:
    """Return an integer x with probability proportional to 1 / ((|x|+b)(|x|+b+1)...(|x|+b+m)), b the scale
    and m the power.

    Guarantee: exactly this distribution. Its tail falls like |x|**-m. If the value to which it is added moves
               by D, the probability of a sum changes by a factor of at most (1 + D/b)^(m+1); if the scale
               changes to b', by at most max(b/b', b'/b)^m.
    Proof:     Distribution: sum_{y>=Y} 1 / ((y+b)...(y+b+m)) telescopes to 1 / (m (Y+b)...(Y+b+m-1)), so the
               one-sided distribution has the rational tail P(Y >= y) = prod_{i<m} (b+i) / (y+b+i), inverted
               exactly with as many bits of a uniform number as it takes; a sign is drawn, and -0 is drawn
               again. Shift: each of the m+1 factors changes by at most (b+D)/b. Scale: the probabilities are
               g(b) / ((|x|+b)...(|x|+b+m)) with g(b) = m b(b+1)...(b+m) / (2b+m). Take the ratio of the
               probability at scale b to that at b'. For b' > b it is largest at x = 0, where it is
               (2b'+m)/(2b+m) <= b'/b. For b' < b it is below g(b)/g(b'), which is (b'+m/2)/(b+m/2) times the
               product of (b+i)/(b'+i) over i = 0..m; the first factor times the one of i = ceil(m/2) is at
               most 1, and each of the m others is at most b/b'.
    Assumes:   `entropy` yields independent uniform bits.
    """
    while True:
        size = _one_sided(scale, power, entropy)
        if entropy.integer(1) == 0:
            return size
        if size > 0:
            return -size


def _one_sided(scale: Fraction, power: int, entropy: Entropy) -> int:
    """Return the largest y with U < P(Y >= y), for the Y of `polynomial_noise` and a uniform U in [0, 1).

    The bits of U are drawn 64 at a time, until all U that begin with them give the same y.
    """
    top, unit = scale.numerator, scale.denominator
    # P(Y >= y) is `head` divided by the product in `reached`
    head = math.prod(top + i * unit for i in range(power))

    def reached(y: int, u: int, bits: int, strict: bool) -> bool:
        """Return whether P(Y >= y) is at least (above, if strict) u / 2**bits."""
        left, right = head << bits, u * math.prod(y * unit + top + i * unit for i in range(power))
        return left > right if strict else left >= right

    prefix, bits = entropy.integer(64), 64
    while True:
        # the smallest y that some U with these bits gives; the largest is the same unless it reaches y + 1
        smallest = _last(lambda y, u=prefix + 1, n=bits: reached(y, u, n, False))
        if not reached(smallest + 1, prefix, bits, True):
            return smallest
        prefix, bits = prefix << 64 | entropy.integer(64), bits + 64


def _last(holds: Any) -> int:
    """Return the largest y >= 0 for which `holds`, which is true at 0 and false from some point on."""
    low, high = 0, 1
    while holds(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


@dataclass(frozen=True, slots=True)
class SmoothNoise:
    """Adds noise to a quantity with a smooth bound on its sensitivity: pure (`delta=None`) or approximate.

    Guarantee: value + noise is epsilon-DP, or (epsilon, delta)-DP, if S is a beta-smooth upper bound of the
               local sensitivity: S(x) <= e^beta S(x') for neighbors x and x'.
    Proof:     Pure: polynomial noise of power m at scale c S, c = 1 / (exp(epsilon / (2 (m+1))) - 1). A
               neighbor x' shifts the value by at most S(x'), at a cost of (m+1) ln(1 + 1/c) = epsilon/2, and
               changes the scale at a cost of at most m (beta + rounding) <= epsilon/2. Approximate: discrete
               Laplace noise at scale b = 2S/epsilon. A shift costs epsilon/2. For the change of scale from b
               to b': if b < b', the ratio of probabilities is at most tanh(1/2b)/tanh(1/2b') <= b'/b <=
               e^beta; if b > b', it is at most exp((|x|/b)(b/b' - 1)) <= exp((|x|/b)(e^beta - 1)), which
               exceeds e^(epsilon/2) only if |x|/b > t = (epsilon/2) / (e^beta - 1), and that has probability
               at most 2 e^-t <= delta by the choice of beta. Scale first, then shift: delta is not
               multiplied. Compare Nissim, Raskhodnikova & Smith 2007, Section 2, for continuous noise.
    """

    epsilon: Fraction
    delta: float | None
    power: int = 3

    @property
    def beta(self) -> float:
        """The beta for which the bound must be beta-smooth, reduced by what rounding in floats may add."""
        if self.delta is None:
            return float(self.epsilon) / (2 * self.power) * (1 - 1e-9) - _ROUNDING
        log_term = log_above(2 / _require.exact(self.delta, "delta"))
        return math.log1p(float(self.epsilon) / (2 * log_term)) * (1 - 1e-9) - _ROUNDING

    def draw(self, smooth: float, entropy: Entropy) -> int:
        """Return one draw for a computed smooth sensitivity, which is rounded up first."""
        bound = Fraction(smooth * (1 + 1e-12))
        if self.delta is not None:
            return int(sampling.discrete_laplace(2 * bound / self.epsilon, 1, entropy)[0])
        spread = exp_bounds(self.epsilon / (2 * (self.power + 1)))[0]
        return polynomial_noise(bound / (spread - 1), self.power, entropy)

    def error(self, width: int, confidence: float) -> int:
        """Return a bound that the noise exceeds with probability at most 1 - confidence whatever the data,
        clamped to the width of the grid.

        The smooth sensitivity is at most the width, or `_FLOOR`. P(|X| >= y) <= 2 P(Y >= y) for the
        two-sided noise X and the one-sided Y of `polynomial_noise`.
        """
        per_side = failure_of(confidence) / 2
        worst = Fraction(float(width) * (1 + 1e-12)) + 1
        if self.delta is not None:
            return min(width, laplace_quantile(2 * worst / self.epsilon, per_side) - 1)
        scale = worst / (exp_bounds(self.epsilon / (2 * (self.power + 1)))[0] - 1)
        return min(
            width,
            _last(lambda y: math.prod((scale + i) / (y + scale + i) for i in range(self.power)) > per_side),
        )


@_require.check_options
def smooth_noise(
    epsilon: Annotated[Real, between(1e-6, 1000)],
    delta: Annotated[float, OPEN_PROBABILITY, between(0, 0.5)] | None,
    power: Annotated[int, at_least(1), at_most(20)],
) -> SmoothNoise:
    """Return the noise for these parameters; refuse parameters for which its integers get too long or its
    floats too inexact (the limits were chosen by hand)."""
    return SmoothNoise(_require.exact(epsilon, "epsilon"), delta, int(power))


def noisy_median(ordered: arrow_columns.Ordered, noise: SmoothNoise, entropy: Entropy) -> int:
    """Return the median of values on a grid plus noise in proportion to its smooth sensitivity, clamped to
    the bounds."""
    noisy = ordered.median + noise.draw(ordered.smooth(noise.beta, _FLOOR), entropy)
    return min(max(noisy, ordered.low), ordered.high)


def in_unit(code: int, step: Fraction) -> int | float:
    """Return the value of the grid point with number `code`, in the column's own unit."""
    value = code * step
    return int(value) if value.denominator == 1 else float(value)


@described("mechanisms.SmoothSensitivityMedian")
class SmoothSensitivityMedian(Mechanism):
    """Releases the (lower) median of a bounded column on a grid of `step`, with noise scaled to its smooth
    sensitivity.

    Without `delta` it is purely epsilon-DP, with noise whose tail falls like |x|**-power; with `delta`,
    discrete Laplace noise. How far off it is depends on the data and is not released: `error` is a bound for
    all data.

    Guarantee: epsilon-DP, or (epsilon, delta)-DP, under add_remove, replace and zero_out.
    Proof:     `arrow_columns`: max_k exp(-beta k) A_k is a beta-smooth upper bound of the local sensitivity
               under all three relations (raised to a constant where it is tiny, which keeps it smooth); then
               `SmoothNoise`. Clamping is post-processing.
    Assumes:   one row per unit.
    """

    public: Annotated[Public, ROWS]
    column: str
    epsilon: Real
    delta: float | None = None
    step: Annotated[Fraction, EXACT, POSITIVE] = Fraction(1)
    power: int = 3

    def __post_init__(self) -> None:
        self._grid  # noqa: B018 - checks column and bounds
        self._noise  # noqa: B018 - checks the rest

    @property
    def _grid(self) -> arrow_columns.ColumnGrid:
        return bounded_grid(self.public, self.column, self.step)

    @property
    def _noise(self) -> SmoothNoise:
        return smooth_noise(self.epsilon, self.delta, self.power)

    @property
    def event(self) -> Event:
        if self.delta is None:
            return PureDP(epsilon=self.epsilon, neighbors=self.public.neighbors)
        return ApproximateDP(epsilon=self.epsilon, delta=self.delta, neighbors=self.public.neighbors)

    def error(self, confidence: float = 0.95) -> int | float:
        """Return a bound for all data, the worst included; usually far above the true error, about which
        nothing is released."""
        width = self._grid.high - self._grid.low
        return in_unit(self._noise.error(width, confidence), self.step)

    def __call__(self, source: Source, /, *, entropy: Entropy) -> Release:
        check_source(self.public, source)
        ordered = arrow_columns.read(source, self.public, self.column, self._grid)
        code = noisy_median(ordered, self._noise, entropy)
        return release(in_unit(code, self.step), event=self.event, entropy=entropy, error=self.error)


def bounded_grid(public: Public, column: str, step: Fraction) -> arrow_columns.ColumnGrid:
    """Return the grid of a declared column; refuse one whose bounds are less than a step apart."""
    grid = arrow_columns.ColumnGrid(public.bounds(column), step, column)
    require_a_step(grid, f"the bounds of column {column!r}")
    return grid


def require_a_step(grid: arrow_columns.ColumnGrid, what: str) -> None:
    """Refuse a grid of one point."""
    _require.must(grid.low != grid.high, "step", grid.step, f"small enough that {what} are a step apart")


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


STABLE = instance_of(Stable, "a stable function, such as StableMode(column=...) or TrustedStable(...)")


@described("mechanisms.StableMode")
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
        several = len(public.categories(self.column).values) >= 2
        _require.that(several, f"column {self.column!r} has one declared category: its mode is public.")
        _require.that(
            bound == 0,
            "a category does not move by an amount: a bound is for numbers. Use DistanceToInstability.",
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
class StableMedian:
    """Computes the (lower) median of a bounded column on a grid of `step`; `value` and `bound` are in steps;
    a release is in the column's unit.

    Guarantee: `distance` is a lower bound of the changes needed before one more could move the median by more
               than `bound`, and moves by at most 1 between neighbors, under every relation.
    Proof:     the lemma in `mechanisms.arrow_columns`: `distance` is min{k : A_k > bound}, with A_k as there.
    Assumes:   one row per unit.
    """

    column: str
    step: Annotated[Fraction, EXACT, POSITIVE] = Fraction(1)

    def check(self, public: Public, bound: int) -> None:
        require_rows(public)
        grid = bounded_grid(public, self.column, self.step)
        _require.that(
            bound < grid.high - grid.low,
            f"the bound of {bound} steps is no less than the whole range of column "
            f"{self.column!r} ({grid.high - grid.low} steps): "
            f"nothing needs to be tested. Propose a smaller bound.",
        )

    def value(self, source: Source) -> int:
        return self._read(source).median

    def distance(self, source: Source, bound: int) -> int:
        return self._read(source).distance(bound)

    def _read(self, source: Source) -> arrow_columns.Ordered:
        return arrow_columns.read(
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
        return result_or(None, lambda: self.function(source))

    def distance(self, source: Source, bound: int) -> int:
        return result_or(0, lambda: max(int(self.how_far(source, bound)), 0))


@described("mechanisms.DistanceToInstability")
class DistanceToInstability(Mechanism):
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
    function: Annotated[Stable, STABLE]
    epsilon: Annotated[Real, EPSILON]
    delta: Annotated[float, OPEN_PROBABILITY]

    def __post_init__(self) -> None:
        self.function.check(self.public, 0)

    @property
    def reach(self) -> int:
        """The noisy distance that passes: noise alone gets there with probability at most delta."""
        return laplace_quantile(self._scale, _require.exact(self.delta, "delta"))

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
        if not passed:
            return release(None, event=self.event, entropy=entropy)
        # a released value is exact
        value = stated(self.function, value)
        return release(value, event=self.event, entropy=entropy, error=lambda confidence: 0)


@described("mechanisms.ProposeTestRelease")
class ProposeTestRelease(Mechanism):
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
    function: Annotated[Stable, STABLE]
    bound: Annotated[int, at_least(1)]
    epsilon: Annotated[Real, EPSILON]
    delta: Annotated[float, OPEN_PROBABILITY]
    share: Annotated[Real, OPEN_PROBABILITY] = Fraction(1, 2)

    def __post_init__(self) -> None:
        self.function.check(self.public, self.bound)

    @property
    def scales(self) -> tuple[Fraction, Fraction]:
        """The scales of the noise on the distance, and on the value."""
        epsilon, share = _require.exact(self.epsilon, "epsilon"), _require.exact(self.share, "share")
        return 1 / (share * epsilon), self.bound / ((1 - share) * epsilon)

    @property
    def reach(self) -> int:
        """The noisy distance that passes: noise alone gets there with probability at most delta."""
        return laplace_quantile(self.scales[0], _require.exact(self.delta, "delta"))

    @property
    def event(self) -> Event:
        return ApproximateDP(epsilon=self.epsilon, delta=self.delta, neighbors=self.public.neighbors)

    def error(self, confidence: float = 0.95) -> int | float:
        """Return a bound on the error of a released value, which holds with probability `confidence`."""
        return in_unit(_noise_bound(self.scales[1], confidence, sides=2), step_of(self.function))

    def __call__(self, source: Source, /, *, entropy: Entropy) -> Release:
        check_source(self.public, source)
        value, distance = self.function.value(source), self.function.distance(source, self.bound)
        passed = distance + draw(self.scales[0], entropy) >= self.reach
        noise = draw(self.scales[1], entropy)
        if not passed or isinstance(value, bool) or not isinstance(value, Integral):
            return release(None, event=self.event, entropy=entropy)
        noisy = in_unit(int(value) + noise, step_of(self.function))
        return release(noisy, event=self.event, entropy=entropy, error=self.error)


def stated(function: Stable, value: Any) -> Any:
    """Return the value in the function's own unit: steps of a grid as the number they stand for."""
    step, is_number = step_of(function), isinstance(value, Integral) and not isinstance(value, bool)
    return in_unit(int(value), step) if step != 1 and is_number else value


def check_stable(function: Any, public: Public, bound: int) -> None:
    """Refuse an object that is not a stable function of this table, before anything is read."""
    STABLE("question", function)
    function.check(public, bound)


def failure_of(confidence: float) -> Fraction:
    """Return 1 - confidence, exactly."""
    _require.open_probability(confidence=confidence)
    return 1 - _require.exact(confidence, "confidence")


def check_budget(epsilon: Any, delta: Any) -> None:
    """Refuse an epsilon or a delta out of range."""
    EPSILON("epsilon", epsilon)
    OPEN_PROBABILITY("delta", delta)


def _noise_bound(scale: Fraction, confidence: float, sides: int = 1) -> int:
    """Return a bound that the noise (with sides=2, its absolute value) does not exceed with probability
    `confidence`."""
    return laplace_quantile(scale, failure_of(confidence) / sides) - 1
