"""Releases a median with as little noise as the data at hand allow: smooth sensitivity.

Usually one person can hardly move a median, but in the worst case by the whole range. Noise in proportion to
the local sensitivity (how far one person can move the median of this very table) would itself reveal the
data; noise in proportion to an upper bound of it that varies slowly from table to table, the smooth
sensitivity, does not. Both kinds of noise offered are integers, drawn exactly for any rational scale that
follows from the data; the scale itself is never released (Nissim, Raskhodnikova & Smith 2007).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from .. import _require, sampling
from .._public import Public
from .._registry import described
from .._require import Real
from ..accounting import ApproximateDP, Event, PureDP
from ..sampling import Entropy
from ..tables import Source
from . import _order, arrow_columns, certified
from .protocols import Release, check_source, release
from .statistics import require_rows

# A smooth sensitivity below this many grid steps is raised to it, so that no scale is zero. The maximum of a
# smooth bound and a constant is smooth. Chosen by hand: noise of this scale is nearly always zero steps.
_FLOOR = 2.0**-10
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
        log_term = certified.log_above(2 / _require.exact(self.delta, "delta"))
        return math.log1p(float(self.epsilon) / (2 * log_term)) * (1 - 1e-9) - _ROUNDING

    def draw(self, smooth: float, entropy: Entropy) -> int:
        """Return one draw for a computed smooth sensitivity, which is rounded up first."""
        bound = Fraction(smooth * (1 + 1e-12))
        if self.delta is not None:
            return int(sampling.discrete_laplace(2 * bound / self.epsilon, 1, entropy)[0])
        spread = certified.exp_bounds(self.epsilon / (2 * (self.power + 1)))[0]
        return polynomial_noise(bound / (spread - 1), self.power, entropy)

    def error(self, width: int, confidence: float) -> int:
        """Return a bound that the noise exceeds with probability at most 1 - confidence whatever the data,
        clamped to the width of the grid.

        The smooth sensitivity is at most the width, or `_FLOOR`. P(|X| >= y) <= 2 P(Y >= y) for the
        two-sided noise X and the one-sided Y of `polynomial_noise`.
        """
        _require.open_probability(confidence=confidence)
        per_side = (1 - _require.exact(confidence, "confidence")) / 2
        worst = Fraction(float(width) * (1 + 1e-12)) + 1
        if self.delta is not None:
            return min(width, certified.laplace_quantile(2 * worst / self.epsilon, per_side) - 1)
        scale = worst / (certified.exp_bounds(self.epsilon / (2 * (self.power + 1)))[0] - 1)
        return min(
            width,
            _last(lambda y: math.prod((scale + i) / (y + scale + i) for i in range(self.power)) > per_side),
        )


def smooth_noise(epsilon: Real, delta: float | None, power: int) -> SmoothNoise:
    """Return the noise for these parameters; refuse parameters for which its integers get too long or its
    floats too inexact (the limits were chosen by hand)."""
    _require.positive(epsilon=epsilon)
    if not 1e-6 <= epsilon <= 1000:
        raise _require.fail("epsilon", epsilon, "between 1e-06 and 1000")
    _require.integer(power=power, at_least=1)
    if power > 20:
        raise _require.fail("power", power, "at most 20")
    if delta is not None:
        _require.open_probability(delta=delta)
        if delta > 0.5:
            raise _require.fail("delta", delta, "at most 1/2")
    return SmoothNoise(_require.exact(epsilon, "epsilon"), delta, int(power))


def noisy_median(ordered: _order.Ordered, noise: SmoothNoise, entropy: Entropy) -> int:
    """Return the median of values on a grid plus noise in proportion to its smooth sensitivity, clamped to
    the bounds."""
    noisy = ordered.median + noise.draw(ordered.smooth(noise.beta, _FLOOR), entropy)
    return min(max(noisy, ordered.low), ordered.high)


def in_unit(code: int, step: Fraction) -> int | float:
    """Return the value of the grid point with number `code`, in the column's own unit."""
    value = code * step
    return int(value) if value.denominator == 1 else float(value)


@described("mechanisms.SmoothSensitivityMedian")
@dataclass(frozen=True, slots=True, kw_only=True)
class SmoothSensitivityMedian:
    """Releases the (lower) median of a bounded column on a grid of `step`, with noise scaled to its smooth
    sensitivity.

    Without `delta` it is purely epsilon-DP, with noise whose tail falls like |x|**-power; with `delta`,
    discrete Laplace noise. How far off it is depends on the data and is not released: `error` is a bound for
    all data.

    Guarantee: epsilon-DP, or (epsilon, delta)-DP, under add_remove, replace and zero_out.
    Proof:     `_order`: max_k exp(-beta k) A_k is a beta-smooth upper bound of the local sensitivity under
               all three relations (raised to a constant where it is tiny, which keeps it smooth); then
               `SmoothNoise`. Clamping is post-processing.
    Assumes:   one row per unit.
    """

    public: Public
    column: str
    epsilon: Real
    delta: float | None = None
    step: Real = 1
    power: int = 3

    def __post_init__(self) -> None:
        require_rows(self.public)
        object.__setattr__(self, "step", arrow_columns.as_step(self.step))
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
        return in_unit(self._noise.error(width, confidence), arrow_columns.as_step(self.step))

    def __call__(self, source: Source, /, *, entropy: Entropy) -> Release:
        check_source(self.public, source)
        ordered = _order.read(source, self.public, self.column, self._grid)
        code = noisy_median(ordered, self._noise, entropy)
        return release(
            in_unit(code, arrow_columns.as_step(self.step)),
            event=self.event,
            entropy=entropy,
            error=self.error,
        )


def bounded_grid(public: Public, column: str, step: Real) -> arrow_columns.ColumnGrid:
    """Return the grid of a declared column; refuse one whose bounds are less than a step apart."""
    grid = arrow_columns.ColumnGrid(public.bounds(column), arrow_columns.as_step(step), column)
    if grid.low == grid.high:
        raise _require.fail(
            "step", step, f"small enough that the bounds of column {column!r} are a step apart"
        )
    return grid
