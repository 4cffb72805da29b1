"""Computes delta as one integral of the moment generating function along a vertical line, however many steps:
a proved interval without a lattice.

    delta(epsilon) = (1 / 2 pi) integral of e^(-z epsilon) M(z)^n / (z (z + 1)) du,   z = theta + iu,

where M(z) = E exp(z L) is the moment generating function of one step's loss and n the number of steps (steps
of several kinds: a product of such powers). It is computed by the trapezoidal rule in u. The error of the
rule is the sum of e^(theta k W) delta(epsilon + kW) over k = ±1, ±2, ..., with W the period 2 pi / spacing:
all terms are positive, and bounded by Chernoff. The integrand is multiplied by a Gaussian kernel
e^(tau² z(z+1) / 2), so that the line can end. The kernel is the transform of one more (tiny) Gaussian release
of shift tau: it makes the upper bound larger, and what it added is bounded by another such integral and
subtracted from the lower bound.

A run is one outcome of the whole composition. Where huge losses ("jumps") are rare, runs are sorted by their
largest loss into levels (`Level`), and each level is integrated by itself: with c the transform
of one step without a jump and j that of a jump, (c + j)^n - c^n takes the place of M^n, and runs without a
jump belong to another level or are bounded by Chernoff. docs/proofs/pld.md has the proof ("Along a line" and
"Rare huge losses").

All values along the line are those of the tilted distribution, divided by M(theta)^n; `log_scale` is the log
of that factor. The losses of each step are lowered by a constant, its offset; epsilon "counted from the
offsets" is lowered by the sum of all of them. U is the unit roundoff of doubles, and factors such as 1 + 1e-9
round bounds outwards.

The steps of a line: the noise of each is restricted to an interval with nearly all of its mass, which is
split in two where rare huge losses ("jumps") begin.

A run of many steps (one outcome of the whole composition) may consist of many tiny losses and now and then a
jump. No single tilt suits both. `Cut` keeps them apart, and runs are sorted into levels by their largest loss
(`Level`): `line` integrates the runs of one level, and bounds by Chernoff those that are not integrated.
docs/proofs/pld.md, "Rare huge losses".

Symbols: L is a loss, theta or t a tilt, u a frequency; "core" is a step's loss distribution without a jump,
"far" that of a jump; the odds of a jump are E exp(theta L) over the jumps divided by that over the core.
Losses are counted from the offset of their step, epsilon and the moments of a run from the sum of all
offsets; only the bounds of a `Level` are losses that are not counted from an offset.

Computes a proved upper bound on the size of the characteristic function of one step's tilted loss at every
frequency u, from the spread of the losses alone.

Symbols: L is the loss of a sampled Gaussian step (`pair`), tilted by theta: its density under P is multiplied
by e^(theta L) and normalised. phi(u) = E exp(iuL) under that distribution, and L' is an independent copy of
L. Noise t is in standard deviations; r(t) is the likelihood ratio and p the power of r that tilts the noise
(`log_ratio`, `power`); mu = 1 / sigma. docs/proofs/pld.md, "Along a line", item 4.

Computes the moment generating function M(z) = E exp(z L) of one sampled Gaussian step along the vertical
line z = theta + iu, with a proved error.

The integral over the noise is computed by Gauss-Legendre panels, whose error is bounded through the size of
the integrand on an ellipse around each panel. The result is kept as phi(u) - 1 with phi(u) = M(theta + iu) /
M(theta), so that a step that reveals almost nothing loses no digits; `line` takes the n-th power and
integrates.

Symbols: L is the loss drawn under P, q the sampling rate, sigma the noise of the pair and mu = 1 / sigma; t
is the noise in standard deviations, with the standard normal density; r(t) = 1-q + q e^(mu t - mu²/2) is the
likelihood ratio, so that L = log r when a unit is removed and L = -log r when one is added; p is the power of
r with which M(theta) is the integral of density * r^p; u is a frequency. Factors such as 1 + 1e-9 round
bounds outwards.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

from discreet.accounting.pld.lattice.convolution import log_one_plus, unit
from discreet.accounting.pld.pairs.basic_pairs import Array, U, log_sums
from discreet.accounting.pld.pairs.families import SampledGaussian

Real = npt.NDArray[np.floating[Any]]

# Gauss-Legendre nodes per panel. The error bound of a panel falls as rho^(-2 * _NODES), where rho > 1 is the
# size of the ellipse around it (the sum of its half axes, for the panel [-1, 1]).
_NODES = 32
# The values of rho that are tried for the bound on the error of a panel: each is valid, the best is used.
_ELLIPSES = (1.5, 2.0, 3.0, 4.0, 6.0, 9.0, 14.0)
# Halvings of panels before the integral is given up.
_ROUNDS = 24
# The least number of quadrature nodes over which one matrix product sums (if there are as many).
_CHUNK = 64
# Nodes beyond which the line is given up: the lattice is expected to be faster then, which was not measured.
_MAX_NODES = 50_000


@cache
def _legendre() -> tuple[Real, Real]:
    """Return Gauss-Legendre nodes and weights on [-1, 1], improved by Newton's method in the widest
    floating-point type."""
    x: Real = np.polynomial.legendre.leggauss(_NODES)[0].astype(np.longdouble)
    for _ in range(3):
        previous, current = np.ones_like(x), x.copy()
        for n in range(2, _NODES + 1):
            previous, current = current, ((2 * n - 1) * x * current - (n - 1) * previous) / n
        slope = _NODES * (x * current - previous) / (x * x - 1)
        x = x - current / slope
    return x, 2 / ((1 - x * x) * slope * slope)


def log_ratio(pair: SampledGaussian, t: Real) -> Real:
    """Return log r(t), r = 1-q + q e^(mu t - mu²/2): the likelihood ratio of the mixture against N(0, sigma²)
    at noise t = x / sigma, in the precision of t."""
    scalar = t.dtype.type
    mu, q = scalar(1) / scalar(pair.sigma), scalar(pair.rate)
    exponent = mu * t - mu * mu / 2
    if pair.rate == 1:
        return exponent
    big = exponent > 30
    small = np.log1p(q * np.expm1(np.where(big, 0, exponent)))
    return np.where(
        big, exponent + np.log(q) + np.log1p((1 - q) / q * np.exp(-np.where(big, exponent, 30))), small
    )


def loss(pair: SampledGaussian, t: Real) -> Real:
    """Return the privacy loss at noise t: rising with t when a unit is removed, falling when one is added."""
    return log_ratio(pair, t) if pair.removing else -log_ratio(pair, t)


def power(pair: SampledGaussian, theta: float) -> float:
    """Return the power p with which the density of P times e^(theta L) is the density of the noise times
    r^p."""
    return 1 + theta if pair.removing else -theta


class Panels(NamedTuple):
    """Holds intervals of the noise, and the log of a bound on the sum of their quadrature errors."""

    left: Array
    right: Array
    log_error: float


def _log_sup(pair: SampledGaussian, left: Array, right: Array, p: float, u: float, rho: float) -> Array:
    """Return the log of a bound on |density * r^(p + iu)|, without the density's factor 1 / sqrt(2 pi), on
    the ellipse `rho` around each panel; infinity where this proof gives none.

    Proof: on t = x + iy with mu |y| <= pi/2, |density| = density(x) e^(y²/2), r(x) cos(mu y / 2) <= |r(t)| <=
           r(x), |r^(iu)| = e^(-u arg r), and |arg r| grows with x and |y|. So each factor is bounded by its
           value at an end of the ellipse: `reach` and y are its half axes, `nearest` its least |x|.
    """
    mu, q = 1 / pair.sigma, pair.rate
    center, half_width = (left + right) / 2, (right - left) / 2
    reach, y = half_width * ((rho + 1 / rho) / 2), half_width * ((rho - 1 / rho) / 2)
    low, high = center - reach, center + reach
    nearest = np.where((low < 0) & (high > 0), 0.0, np.minimum(np.abs(low), np.abs(high)))
    # the limit 0.1 matters only where mu y > pi/2, for which infinity is returned
    log_size = (
        log_ratio(pair, high) if p > 0 else log_ratio(pair, low) + np.log(np.maximum(np.cos(mu * y / 2), 0.1))
    )
    exponential = q * np.exp(np.minimum(mu * high - mu * mu / 2, 600.0))
    argument = np.arctan2(exponential * np.sin(mu * y), (1 - q) + exponential * np.cos(mu * y))
    log = (y * y - nearest * nearest) / 2 + p * log_size + u * argument
    return np.where(mu * y <= math.pi / 2, log, np.inf)


def _log_error(pair: SampledGaussian, left: Array, right: Array, p: float, u: float) -> Array:
    """Return the log of a bound on the error of each panel: its half-width times
    (64/15) sup rho^(-2m) / (1 - rho^-2) for the best ellipse, with m nodes per panel and sup the bound of
    `_log_sup`.

    Proof: the k-th Chebyshev coefficient of the integrand is at most 2 sup rho^-k. The rule is exact up to
           degree 2m - 1, odd polynomials vanish in both the integral and the rule, and the Chebyshev
           polynomial of an even degree k >= 2m errs by at most 2 + 2/(k² - 1), hence by at most 32/15 since
           k >= 4 (Trefethen 2008, SIAM Review 50, Theorem 4.5).
    """
    errors = [
        _log_sup(pair, left, right, p, u, rho) - 2 * _NODES * math.log(rho) - math.log1p(-(rho**-2))
        for rho in _ELLIPSES
    ]
    return np.asarray(np.min(errors, axis=0) + np.log((right - left) / 2) + math.log(64 / 15) + 1e-9)


def split(pair: SampledGaussian, edges: Array, theta: float, u: float, log_target: float) -> Panels | None:
    """Halve panels until the log error of each is below the target at all frequencies up to u; None if that
    takes too many panels or halvings."""
    left, right, p = edges[:-1], edges[1:], power(pair, theta)
    log = _log_error(pair, left, right, p, u)
    for _ in range(_ROUNDS):
        inaccurate = log > log_target
        if not inaccurate.any():
            order = np.argsort(left)
            total = math.log(float(np.exp(log - log_target).sum())) + log_target + 1e-9
            return Panels(left[order], right[order], total)
        middle = (left[inaccurate] + right[inaccurate]) / 2
        halves = np.concatenate((left[inaccurate], middle)), np.concatenate((middle, right[inaccurate]))
        left, right = (
            np.concatenate((left[~inaccurate], halves[0])),
            np.concatenate((right[~inaccurate], halves[1])),
        )
        log = np.concatenate((log[~inaccurate], _log_error(pair, *halves, p, u)))
        if len(left) * _NODES > _MAX_NODES:
            return None
    return None


class QuadratureWeights(NamedTuple):
    """Holds the tilted distribution of one step as quadrature nodes: losses minus an offset, weights that add
    up to one, and bounds on their errors."""

    loss: Real
    weight: Real
    # log M(theta), of the losses without the offset subtracted
    log_total: float
    # a bound on the error of log_total
    log_error: float
    # a bound on the relative error of each weight
    relative: Array
    # a bound on the absolute error of each loss
    absolute: Array
    # a bound on the quadrature error of phi: those of M(theta + iu) and of M(theta), divided by M(theta)
    quadrature: float


def weights(
    pair: SampledGaussian, panels: Panels, theta: float, offset: float, precise: bool = False
) -> QuadratureWeights:
    """Return the tilted distribution of one step at the nodes of the panels, with bounds on all errors;
    `offset` is subtracted from the losses."""
    dtype: Any = np.longdouble if precise else np.float64
    x, w = (column.astype(dtype) for column in _legendre())
    left, right = panels.left.astype(dtype), panels.right.astype(dtype)
    half_width = (right - left) / 2
    t, w = (
        (((left + right) / 2)[:, None] + half_width[:, None] * x).ravel(),
        (half_width[:, None] * w).ravel(),
    )
    log_r, p = log_ratio(pair, t), dtype(1) + dtype(theta) if pair.removing else -dtype(theta)
    log = p * log_r - t * t / 2
    peak = log.max()
    mass = w * np.exp(log - peak)
    total = math.fsum(mass.tolist()) if not precise else mass.sum()
    relative, absolute = _errors(pair, t, log_r, float(p), log - peak, unit(precise))
    weight = mass / total
    # Relative error of the total. (Doubles are added by fsum, exactly; the widest type one by one.)
    total_error = float(weight @ relative) * (1 + 1e-9) + unit(precise) * (
        8 if not precise else 8 + len(mass)
    )
    log_total = float(np.log(dtype(total)) + peak) - 0.5 * math.log(2 * math.pi)
    quadrature = math.exp(min(panels.log_error - 0.5 * math.log(2 * math.pi) - log_total, 0.0)) * (1 + 1e-6)
    shifted_loss = (log_r if pair.removing else -log_r) - dtype(offset)
    absolute = absolute + 2 * unit(precise) * (np.abs(shifted_loss).astype(np.float64) + abs(offset))
    log_error = total_error + 4 * U * (1 + abs(log_total) + abs(float(peak))) + 2 * quadrature
    return QuadratureWeights(
        shifted_loss, weight, log_total, log_error, relative + total_error, absolute, 2 * quadrature
    )


def _errors(
    pair: SampledGaussian, t: Real, log_r: Real, p: float, log: Real, roundoff: float
) -> tuple[Array, Array]:
    """Return bounds on the relative error of density * r^p and on the absolute error of log r, at nodes t
    that are themselves rounded.

    `log_r` is log r(t), `log` the log of density * r^p less its maximum. share(t) =
    q e^(mu t - mu²/2) / r(t) is how much of a relative error of the exponential reaches r.
    """
    mu = 1 / pair.sigma
    t, log_r = t.astype(np.float64), log_r.astype(np.float64)
    exponent = mu * t - mu * mu / 2
    share = np.exp(np.minimum(exponent + math.log(pair.rate) - log_r, 0.0)) * (1 + 1e-9)
    ratio_error = roundoff * (
        8 * share * (np.abs(exponent) + mu * np.abs(t) + mu * mu + 2) + 4 * np.abs(log_r)
    )
    depth = np.abs(log).astype(np.float64) + np.abs(p * log_r)
    return np.asarray(roundoff * (24 + 8 * t * t + 3 * depth) + abs(p) * ratio_error), np.asarray(ratio_error)


def phi_minus_one(rule: QuadratureWeights, spacing: float, count: int) -> tuple[npt.NDArray[Any], Array]:
    """Return the characteristic function minus one, phi(j * spacing) - 1 for j = 0..count-1, and a bound on
    the error of each.

    The error of the weight of a loss L counts at most min(2, u |L|) times at frequency u, since
    |e^(iuL) - 1| <= min(2, u |L|); the error of a loss counts u times its weight.
    """
    precise = rule.weight.dtype != np.float64
    value, terms = _product(rule, spacing, count)
    u = spacing * np.arange(count)
    weight, size = rule.weight.astype(np.float64), np.abs(rule.loss).astype(np.float64)
    mean_change = np.minimum(2.0, u * float(weight @ size))
    weight_error = np.minimum(2 * float(weight @ rule.relative), u * float(weight @ (rule.relative * size)))
    loss_error = u * float(weight @ (rule.absolute + 4 * unit(precise) * size))
    # The summands of the matrix product are at most 4 min(2, u |L|) in size, real and imaginary part each.
    rounding = 6 * unit(precise) * (terms + 16) * mean_change
    return value, (weight_error + loss_error + rounding + rule.quadrature) * (1 + 1e-9) + 1e-300


def _product(rule: QuadratureWeights, spacing: float, count: int) -> tuple[npt.NDArray[Any], float]:
    """Return the sum over nodes of weight * (e^(i u loss) - 1) at the frequencies u = j * spacing, and the
    length of its longest chain of additions.

    Computed as a matrix product over j = row * block + column, with a and b the angles of row and column:
    e^(i(a+b)) - 1 = (e^ia - 1)(e^ib - 1) + (e^ia - 1) + (e^ib - 1).
    """
    block = math.isqrt(count - 1) + 1
    rows = -(-count // block)
    step = rule.loss.dtype.type(spacing)
    value = np.zeros((rows, block), dtype=np.result_type(rule.loss.dtype, np.complex64))
    chunk = max(_CHUNK, math.isqrt(len(rule.loss)))
    for start in range(0, len(rule.loss), chunk):
        part, weight = rule.loss[start : start + chunk], rule.weight[start : start + chunk]
        fine = _exp_minus_one(np.multiply.outer(step * np.arange(block), part))
        coarse = _exp_minus_one(np.multiply.outer(step * block * np.arange(rows), part)) * weight
        # einsum, not `@`: BLAS would start threads for matrices of this size
        value += (
            np.einsum("ck,bk->cb", coarse, fine) + coarse.sum(axis=1)[:, None] + (fine * weight).sum(axis=1)
        )
    return value.ravel()[:count], chunk + len(rule.loss) / chunk


def _exp_minus_one(angle: Real) -> npt.NDArray[Any]:
    """Return e^(i angle) - 1."""
    sin_half = np.sin(angle / 2)
    return np.asarray(-2 * sin_half * sin_half + 1j * np.sin(angle))


# The pair, how often it occurs, and the offset from which its losses are counted.
Step = tuple[SampledGaussian, int, float]

# The log of the quadrature error of each panel, relative to the moment of the step: far below rounding.
_QUADRATURE = -50.0


class Aim(NamedTuple):
    """Holds what a line is planned for: epsilon (counted from the offsets), log delta, a tilt to start from,
    and in `alias` -log of the share of delta that may be misplaced. No bound rests on it."""

    epsilon: float
    log_delta: float
    theta: float
    alias: float


class Level(NamedTuple):
    """Describes the runs whose largest loss (not counted from an offset) is above `low` and not above `high`.

    With an `exponent` the level also accounts for the runs without a loss above `low`: by Chernoff's bound
    with this exponent, added to the upper bound and left out of the lower one.
    """

    low: float = -math.inf
    high: float = math.inf
    exponent: float | None = None


ALL = Level()


class TiltedStep(NamedTuple):
    """Holds the tilted distributions of one kind of step: without a jump, and of the jumps if there are
    any."""

    core: QuadratureWeights
    far: QuadratureWeights | None

    def nodes(self) -> int:
        """Return the number of quadrature nodes."""
        return len(self.core.loss) + (len(self.far.loss) if self.far else 0)


def _outside(pair: SampledGaussian, low: float, high: float) -> float:
    """Return an upper bound on the P-mass of the noise outside [low, high], in standard deviations."""
    mu = 1 / pair.sigma
    plain = float(ndtr(low) + ndtr(-high))
    shifted_mass = float(ndtr(low - mu) + ndtr(mu - high))
    mass = (1 - pair.rate) * plain + pair.rate * shifted_mass if pair.removing else plain
    return mass * (1 + 1e-10) + 1e-300


class Cut:
    """Restricts the noise of one kind of step to a level: `edges` are the panels of the noise without a jump,
    `far` those of the noise that makes a jump (None if there is none).

    `lost` bounds the P-mass of all `times` steps outside the interval of noise that is kept. Only the highest
    level counts it, for all levels; in the others `lost` is 0. If `sound` is false the level has no noise
    without a jump, and the cut must not be used. Where exactly the noise is cut matters for no bound as long
    as neighboring levels cut at the same place: the place is a function of the loss alone.
    """

    def __init__(self, step: Step, tail: float, level: Level = ALL) -> None:
        """Cut a step; all its repetitions together may lose `tail` of their P-mass."""
        self.pair, self.times, self.offset = step
        low, high = (x / self.pair.sigma for x in self.pair.span(tail / self.times))
        self.lost = self.times * _outside(self.pair, low, high)
        self.far: Array | None = None
        if level.high < math.inf:
            end, self.lost = min(max(self._noise(level.high), low), high), 0.0
            low, high = (low, end) if self.pair.removing else (end, high)
        core, self.sound = (low, high), low < high
        if level.low > -math.inf and self.sound:
            at = self._noise(level.low)
            core, far = ((low, at), (at, high)) if self.pair.removing else ((at, high), (low, at))
            # false if every loss of the level would be a jump
            self.sound = core[0] < core[1]
            if self.sound and far[0] < far[1]:
                self.far = self._panels(*far)
            elif self.sound:
                # this step has no jump
                core = low, high
        self.edges = self._panels(*core) if self.sound else np.array([low, high])
        self._rough: dict[tuple[float, bool], float] = {}

    def _panels(self, low: float, high: float) -> Array:
        """Return the ends of panels of the noise, no wider than a standard deviation and than 1 / mu."""
        return np.linspace(low, high, math.ceil((high - low) / min(1.0, self.pair.sigma)) + 1)

    def _noise(self, loss: float) -> float:
        """Return about the noise, in standard deviations, at which the loss is `loss`."""
        x = self.pair._where(np.array([loss if self.pair.removing else -loss]))[0]
        return float(x[0]) / self.pair.sigma

    def tilted(self, theta: float, u: float = 0.0, precise: bool = False) -> TiltedStep | None:
        """Return the tilted distributions, accurate along the line up to frequency u; None if that takes too
        many nodes."""
        core = self.core(theta, u, precise)
        if core is None or self.far is None:
            return core and TiltedStep(core, None)
        far = self._weights(self.far, theta, u, precise)
        return far and TiltedStep(core, far)

    def core(self, theta: float, u: float = 0.0, precise: bool = False) -> QuadratureWeights | None:
        """Return the tilted distribution of the losses without a jump; None if that takes too many nodes."""
        return self._weights(self.edges, theta, u, precise)

    def _weights(self, edges: Array, theta: float, u: float, precise: bool) -> QuadratureWeights | None:
        """Return the tilted distribution over the panels `edges` (of the core or of the jumps) as quadrature
        nodes, accurate up to frequency u; None if that takes too many."""
        key = theta, edges is self.far
        if key not in self._rough:
            panels = Panels(edges[:-1], edges[1:], -math.inf)
            self._rough[key] = weights(self.pair, panels, theta, self.offset).log_total
        # the widest floating-point type rounds less, so that the quadrature must err less too
        target = self._rough[key] + _QUADRATURE - (8.0 if precise else 0.0)
        split_panels = split(self.pair, edges, theta, u, target)
        return split_panels and weights(self.pair, split_panels, theta, self.offset, precise)


class RunMoment(NamedTuple):
    """Holds log E exp(theta L) over the runs without a jump, counted from the offsets, and a bound on its
    error.

    `odds` holds, for each kind of step, the odds of a jump under the tilt and a bound on their relative
    error.
    """

    log: float
    error: float
    odds: list[tuple[float, float]]

    def log_above(self, steps: Sequence[Cut]) -> float:
        """Return an upper bound on the log of E exp(theta L): over the runs with at least one jump if any
        step has jumps, over all runs otherwise."""
        if not any(odds for odds, _ in self.odds):
            return self.log + self.error
        jumps = math.fsum(
            step.times * math.log1p(odds * (1 + wrong))
            for step, (odds, wrong) in zip(steps, self.odds, strict=True)
        )
        log = jumps if jumps > 600 else math.log(math.expm1(jumps))
        return self.log + self.error + log + 1e-9


def summed(steps: Sequence[Cut], tilted_steps: Sequence[TiltedStep], theta: float) -> RunMoment:
    """Return the moment of a run of all steps, from the tilted distributions of each kind of step."""
    terms = [
        (
            step.times * tilted.core.log_total,
            step.times * theta * step.offset,
            step.times * tilted.core.log_error,
        )
        for step, tilted in zip(steps, tilted_steps, strict=True)
    ]
    value = math.fsum(a for a, _, _ in terms) - math.fsum(b for _, b, _ in terms)
    error = math.fsum(c + 4 * U * (abs(a) + abs(b)) for a, b, c in terms)
    return RunMoment(value, error * (1 + 1e-9), [_odds(tilted) for tilted in tilted_steps])


def _odds(tilted: TiltedStep) -> tuple[float, float]:
    """Return the odds of a jump under the tilted distribution, and a bound on their relative error."""
    if tilted.far is None:
        return 0.0, 0.0
    gap = tilted.far.log_total - tilted.core.log_total
    wrong = tilted.far.log_error + tilted.core.log_error + 2 * U * (abs(gap) + 4)
    return math.exp(gap) if gap < 600 else math.inf, math.expm1(wrong) * (1 + 1e-9)


class StepMoments:
    """Computes rough moments of runs, with all losses or with those of one level only: for planning, no bound
    rests on them.

    For each kind of step it holds its count, its offset, and the nodes of its loss: losses in increasing
    order and the logs of their weights.
    """

    def __init__(self, steps: Sequence[Cut]) -> None:
        self._steps: list[tuple[int, float, Array, Array]] = []
        for step in steps:
            rule = weights(step.pair, Panels(step.edges[:-1], step.edges[1:], -math.inf), 0.0, step.offset)
            order = np.argsort(rule.loss)
            with np.errstate(divide="ignore"):
                log = np.log(rule.weight[order])
            self._steps.append(
                (step.times, step.offset, rule.loss[order].astype(np.float64), log.astype(np.float64))
            )

    def spread(self, high: float) -> tuple[float, float]:
        """Return the mean (offsets included) and the standard deviation of the loss of a run whose steps have
        no loss above `high`."""
        mean = variance = 0.0
        for n, offset, loss, log in self._steps:
            kept = slice(0, _upto(loss, high - offset))
            weight = np.exp(log[kept])
            weight /= weight.sum()
            step_mean = float(weight @ loss[kept])
            mean += n * (step_mean + offset)
            variance += n * float(weight @ (loss[kept] - step_mean) ** 2)
        return mean, math.sqrt(variance)

    def alone(self, delta: float, limit: float) -> tuple[float, float]:
        """Return about the epsilon below `limit` at which runs with a single large loss, all other steps at
        their mean, have this delta; and -d log(delta) / d epsilon there."""
        low, high, mean = 0.0, limit, self.spread(limit)[0]
        for _ in range(40):
            middle = (low + high) / 2
            value, mass_above = 0.0, 0.0
            for n, offset, loss, log in self._steps:
                above = np.exp(log) * np.maximum(
                    -np.expm1(np.minimum(middle - mean - offset - loss, 0.0)), 0.0
                )
                value += n * float(above.sum())
                mass_above += n * float(np.exp(log)[above > 0].sum())
            low, high = (middle, high) if value > delta else (low, middle)
        return high, max(mass_above / max(value, 1e-300) - 1.0, 1e-3 / high)

    def largest_loss(self) -> float:
        """Return the largest loss of any step, its offset included."""
        return max(float(loss[-1]) + offset for _, offset, loss, _ in self._steps)

    def logs(self, t: Array, level: Level = ALL) -> Array:
        """Return log E exp(t L) over the runs of a level, for every tilt in t; counted from the offsets.

        `total` is that of the runs without a jump, `more` the log of the factor by which jumps increase it.
        """
        total, more = np.zeros(len(t)), np.zeros(len(t))
        for n, offset, loss, log in self._steps:
            end, top = (_upto(loss, x - offset) for x in (level.low, level.high))
            if level.low == -math.inf:
                total += n * log_sums(t, loss[:top], log[:top])
                continue
            core = log_sums(t, loss[:end], log[:end])
            total += n * core
            if end < top:
                more += n * np.logaddexp(0.0, log_sums(t, loss[end:top], log[end:top]) - core)
        if level.low == -math.inf:
            return total
        with np.errstate(divide="ignore"):
            return np.asarray(total + np.where(more > 30, more, np.log(np.expm1(np.minimum(more, 30.0)))))


def _upto(loss: Array, high: float) -> int:
    """Return how many losses, in increasing order, are at most `high`; at least one."""
    return max(1, int(np.searchsorted(loss, high, side="right")))


# The four constants below change the planning of levels only, so no bound rests on them; they were chosen by
# hand, not tuned one by one.
# Jumps are kept apart if Chernoff's best bound on delta exceeds delta by more than e to this power.
_RARE = 8.0
# Where runs without a jump are negligible, jumps begin at this share of epsilon or above.
_LEAST = 0.02
# Where such runs are not negligible, jumps begin at this share of epsilon.
_MIDDLE = 0.2
# The ratio of the losses at which two neighboring levels above epsilon begin.
_RUNG = 8.0


def rare(logs: Callable[[Array], Array], aim: Aim) -> bool:
    """Return whether Chernoff's bound is so far above delta that most of delta must come from jumps; `logs`
    returns log E exp(t L) of a run."""
    t = aim.theta * np.geomspace(1 / 40, 40, 41)
    log_excess = logs(t) - t * aim.epsilon - aim.log_delta - np.log1p(t)
    return bool(log_excess.min() > _RARE)


def ladder(moments: StepMoments, aim: Aim, offset: float, are_rare: bool) -> list[Level]:
    """Return disjoint levels that together hold all runs and whose lines are short: one or two up to about
    three times epsilon, and one for each further factor `_RUNG` up to the largest loss.

    `offset` is the sum of all offsets. If jumps `are_rare` (`rare`), runs of small losses only
    are left to Chernoff's bound if they are negligible, and get a level of their own otherwise.
    """
    # epsilon itself, not counted from the offsets
    size = aim.epsilon + offset
    mean, deviation = moments.spread(size)
    rung, largest_loss = size + max(2 * size - mean, size) + 16 * deviation, moments.largest_loss()
    rungs = []
    while rung < 0.7 * largest_loss:
        rungs.append(rung)
        rung *= _RUNG
    start = (_negligible(moments, aim, size) if are_rare else None) or ALL
    ends = [*([_MIDDLE * size] if are_rare and start == ALL else []), *rungs, math.inf]
    return [start._replace(high=ends[0]), *(Level(low, high) for low, high in itertools.pairwise(ends))]


def _negligible(moments: StepMoments, aim: Aim, size: float) -> Level | None:
    """Return the level that begins at the largest loss (up to `size`, which is epsilon with the offsets) such
    that runs without a loss above it are negligible, with Chernoff's exponent for them; None if there is no
    such loss."""
    level, low, high = None, _LEAST, 1.0
    for _ in range(7):
        share = math.sqrt(low * high)
        tilts = np.geomspace(2.0, 400.0, 25) / (share * size)
        bound = moments.logs(tilts, Level(high=share * size)) - tilts * aim.epsilon
        i = int(np.argmin(bound))
        if bound[i] < aim.log_delta - aim.alias - 2.0:
            level, low = Level(share * size, math.inf, float(tilts[i])), share
        else:
            high = share
    return level


# The ratio of the frequencies at the ends of an interval: a smaller one bounds phi more tightly, and takes
# more intervals. Chosen by hand and not tuned, as are the next two.
GROWTH = 1.3
# The cells of a group: all pairs of cells within a group contribute to the bound, and their number grows with
# the square of the cells.
_GROUP = 8
# The width of a cell, in standard deviations of the noise.
_CELL = 1 / 32
# All pairs (i, j) of cells of a group with j >= i + 2, that is, not neighbors.
_FIRST, _SECOND = np.triu_indices(_GROUP, 2)


def fading(
    pair: SampledGaussian, edges: Array, theta: float, log_total: float, u: Array, enough: float = math.inf
) -> Array:
    """Return, for each interval [u, GROWTH * u] of frequencies, a lower bound on 1 - |phi|, hence on -log
    |phi|; frequencies whose bound has reached `enough` are not improved further.

    `edges` are the ends of the noise that is not left out, in standard deviations, and log_total is log
    E exp(theta L) over it.

    Proof: the noise is cut into groups of cells, and |phi| is at most the mean of the groups' |phi|. In a
           group 1 - |phi|² = E[1 - cos u(L - L')] over two independent draws. Only draws in cells that are
           not neighbors are counted, with the least value of 1 - cos over the distances that two losses in
           these cells can have. Of each cell only a lower bound on its mass takes part; the rest of the mass
           counts as if its |phi| were 1. The bound is computed again with cells joined two by two, until one
           group is left, and the largest of these bounds is returned: joined cells have the distances that
           matter at low frequencies.
    """
    mass, loss = _cells(pair, edges, theta, log_total)
    bound = np.zeros(len(u))
    while True:
        improvable = bound < enough
        if improvable.any():
            bound[improvable] = np.maximum(bound[improvable], _decay(mass, loss, u[improvable]))
        if len(mass) <= _GROUP or not improvable.any():
            return bound * (1 - 1e-9)
        mass, loss = mass.reshape(-1, 2).sum(axis=1), loss[::2]


def _cells(pair: SampledGaussian, edges: Array, theta: float, log_total: float) -> tuple[Array, Array]:
    """Return lower bounds on the tilted masses of narrow cells of the noise, and the losses at their edges,
    ascending.

    The log of the tilted density, p log r(t) - t²/2 up to a constant, has slope at most |t| + |p| mu share(t)
    in size, where share(t) = q e^(mu t - mu²/2) / r(t) is at most 1 and rises with t. So its least value in a
    cell is at least its value in the middle minus half the width times the largest slope.
    """
    low, high = edges[0], edges[-1]
    count = _GROUP
    while count * _CELL < high - low:
        count *= 2
    t = np.linspace(low, high, count + 1)
    middle, half_width = (t[1:] + t[:-1]) / 2, (high - low) / count / 2
    p, mu = power(pair, theta), 1 / pair.sigma
    log_r = log_ratio(pair, t)
    share = np.exp(np.minimum(mu * t - mu * mu / 2 + math.log(pair.rate) - log_r, 0.0))
    slope = np.maximum(np.abs(t[1:]), np.abs(t[:-1])) + abs(p) * mu * share[1:]
    log = p * log_ratio(pair, middle) - middle * middle / 2 - half_width * slope
    mass = (
        np.exp(np.minimum(log - 0.5 * math.log(2 * math.pi) - log_total, 0.0)) * (2 * half_width) * (1 - 1e-9)
    )
    edge_loss = log_r.astype(np.float64)
    return (mass, edge_loss) if pair.removing else (mass[::-1], -edge_loss[::-1])


def _decay(mass: Array, loss: Array, u: Array) -> Array:
    """Return a lower bound on 1 - |phi| over [u, GROWTH * u], for cells of at least these masses, cell i with
    losses from loss[i] to loss[i + 1].

    For a group of mass m, 1 - |phi| >= (1 - |phi|²) / 2. Each pair of cells is drawn in two orders, which
    cancels the 2, so the group contributes the sum over pairs of mass_i mass_j / m times the least value of
    1 - cos(angle). Angles run from u times the least distance to GROWTH u times the largest. 1 - cos rises up
    to pi and falls up to 2 pi, so that it is least at one of the ends; beyond 2 pi it is taken as 0.
    """
    i, j = _FIRST, _SECOND
    cells, low, high = (x.reshape(-1, _GROUP) for x in (mass, loss[:-1], loss[1:]))
    total = np.maximum(cells.sum(axis=1, keepdims=True), 1e-300)
    product = (cells[:, i] * cells[:, j] / total).ravel()
    # the others would change little; leaving them out only lowers the bound
    kept = product > 1e-6 * product.max()
    least_angle = np.multiply.outer(u * (1 - 1e-6), (low[:, j] - high[:, i]).ravel()[kept])
    largest_angle = np.multiply.outer(u * (GROWTH * (1 + 1e-6)), (high[:, j] - low[:, i]).ravel()[kept])
    least = np.minimum(
        1 - np.cos(np.minimum(least_angle, math.pi)),
        1 - np.cos(np.clip(largest_angle, math.pi, 2 * math.pi)),
    )
    return np.asarray(np.einsum("up,p->u", least, product[kept]))


Complex = npt.NDArray[Any]

# The log of how much larger than delta the terms of the integral may be: e^25 leaves delta five of sixteen
# digits.
_LOG_CANCELLATION = 25.0


class TiltWindow(NamedTuple):
    """Holds the tilt theta, the period W of the trapezoidal rule, and two exponents: Chernoff's bounds at
    theta + up and at theta - down bound delta at epsilon + kW for k > 0 and for k < 0."""

    theta: float
    period: float
    up: float
    down: float


def window(logs: Callable[[Array], Array], aim: Aim, tau: float) -> TiltWindow | None:
    """Return the tilt with the shortest period for which the error of the rule is e^-alias of delta, among
    those that lose no more digits than `_LOG_CANCELLATION` allows; None if there is none.

    `logs` returns log E exp(t L) of a run, rough, counted from the offsets as `aim.epsilon` is.
    """
    t = np.concatenate(([0.0], aim.theta * np.geomspace(1 / 40, 40, 81)))
    # log of Chernoff's bound on delta, kernel and all
    log = logs(t) + 0.5 * tau * tau * t * (t + 1) - t * aim.epsilon
    # With tilt theta and exponent t, |t - theta| W must exceed the log of Chernoff's bound divided by its
    # target.
    gap = t[None, :] - t[1:, None]
    log_excess = np.maximum(log[None, :] - aim.log_delta + aim.alias, 0.5)
    with np.errstate(divide="ignore"):
        above, below = (np.where(sign * gap > 0, log_excess / np.abs(gap), np.inf) for sign in (1, -1))
    up, down = above.argmin(axis=1), below.argmin(axis=1)
    # 0 may be an exponent of Chernoff's bound, but not the tilt
    each_tilt, t = np.arange(len(t) - 1), t[1:]
    period = np.maximum(above[each_tilt, up], below[each_tilt, down])
    period = np.where(log[1:] - aim.log_delta < _LOG_CANCELLATION + np.log1p(t), period, np.inf)
    i = int(np.argmin(period))
    if not math.isfinite(period[i]):
        return None
    return TiltWindow(float(t[i]), float(period[i]) * 1.02, float(gap[i, up[i]]), float(-gap[i, down[i]]))


class LineShape(NamedTuple):
    """Holds the width tau of the kernel, the P-mass of the noise that all repetitions of one kind of step
    together may leave out, the largest number of nodes times frequencies, and whether the widest
    floating-point type is used."""

    tau: float
    tail: float
    work: float
    precise: bool = False


class DeltaBounds(NamedTuple):
    """Holds a lower and an upper bound on delta."""

    low: float
    high: float


class Line:
    """Holds the integral over the runs of one level of one composition, to be read at any epsilon near the
    one it was planned for.

    Every epsilon is counted from the sum of the steps' offsets, and so is `logs`, a rough log of E exp(t L)
    over the runs of the level, for planning. If `usable` is false the line would be too long, and must not be
    read.

    `jumps`: whether the level leaves out runs without a jump. `lost`: a bound on the P-mass of the noise that
    was left out. `rest` and `rest_density`: bounds on the two integrals beyond the last frequency. `beyond`
    and `below`: logs of the moments in Chernoff's bounds on the error of the rule. `still`: the log of the
    moment in Chernoff's bound on the runs without a jump, if the level accounts for them.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        logs: Callable[[Array], Array],
        aim: Aim,
        shape: LineShape,
        level: Level = ALL,
    ) -> None:
        (_, tail, work, self.precise), self.level, self.usable = shape, level, False
        self.jumps = level.low > -math.inf
        self.offset = math.fsum(times * offset for _, times, offset in steps)
        bounds = window(logs, aim, shape.tau)
        if bounds is None:
            return
        self.window, self.theta, self.spacing = bounds, bounds.theta, 2 * math.pi / bounds.period
        self.tau = min(shape.tau, 2 / bounds.theta)
        self.steps = [Cut(step, tail, level) for step in steps]
        self.lost = math.fsum(step.lost for step in self.steps) * (1 + 1e-12)
        tilted_steps = self._tilted_steps(self.theta) if all(step.sound for step in self.steps) else None
        if tilted_steps is None or (self.jumps and not 0 < self._log_growth(tilted_steps) < 300):
            return
        reach = self._reach(tilted_steps, aim)
        self.count = math.ceil(reach / self.spacing) + 2
        tilted_steps = self._tilted_steps(self.theta, reach + 2 * self.spacing) if self.count < work else None
        if tilted_steps is not None and self.count * sum(tilted.nodes() for tilted in tilted_steps) <= work:
            self.usable = self._bounds_around()
            self._terms(tilted_steps)

    def _tilted_steps(self, theta: float, u: float = 0.0) -> list[TiltedStep] | None:
        """Return the tilted distributions of all steps, accurate up to frequency u; None if one of them takes
        too many nodes."""
        attempts = [step.tilted(theta, u, self.precise) for step in self.steps]
        tilted_steps = [tilted for tilted in attempts if tilted is not None]
        return tilted_steps if len(tilted_steps) == len(attempts) else None

    def _log_growth(self, tilted_steps: Sequence[TiltedStep]) -> float:
        """Return an upper bound on the log of the factor by which jumps increase the moment of a run."""
        odds_of_steps = zip(self.steps, summed(self.steps, tilted_steps, self.theta).odds, strict=True)
        return math.fsum(
            step.times * math.log1p(odds * (1 + error)) for step, (odds, error) in odds_of_steps
        ) * (1 + 1e-9)

    def _faded(self, tilted_steps: Sequence[TiltedStep], u: Array) -> Array:
        """Return the log of a bound on the tilted transform of a run over each interval [u, GROWTH * u].

        With jumps it is (c + j)^n - c^n, at most (|c| + J)^n - |c|^n with J >= |j| the odds of a jump, which
        grows with |c|. `core` is the log of the bound on |c|^n, `more` the log of that on
        ((|c| + J) / |c|)^n. A bound of e^-120 is small enough for every use.
        """
        core, more = np.zeros(len(u)), np.zeros(len(u))
        for step, tilted, (odds, error) in zip(
            self.steps, tilted_steps, summed(self.steps, tilted_steps, self.theta).odds, strict=True
        ):
            least = fading(step.pair, step.edges, self.theta, tilted.core.log_total, u, 120.0 / step.times)
            core = core - step.times * least
            more = more + step.times * np.log1p(odds * (1 + error) * np.exp(least))
        if not self.jumps:
            return core
        return np.asarray(core + np.where(more > 30, more, np.log(np.expm1(np.minimum(more, 30.0)))) + 1e-9)

    def _reach(self, tilted_steps: Sequence[TiltedStep], aim: Aim) -> float:
        """Return a frequency beyond which the integrals are at most e^-alias of delta, and store bounds on
        what is beyond it: `rest` for the integral of delta, `rest_density` for that of the density.

        Intervals [u, GROWTH * u] are bounded by `_faded` and the kernel; beyond the last one the kernel alone
        (`last_kernel`) is integrated.
        """
        tau, theta = self.tau, self.theta
        log_target = (
            aim.log_delta - aim.alias - (summed(self.steps, tilted_steps, theta).log - theta * aim.epsilon)
        )
        second_moment = math.fsum(
            step.times * float(part.weight @ part.loss**2)
            for step, tilted in zip(self.steps, tilted_steps, strict=True)
            for part in tilted
            if part is not None
        )
        last = math.sqrt(2 * (aim.alias + 60)) / tau
        first = min(1 / math.sqrt(max(second_moment, 1e-300)), last / 4)
        u: Array = first * GROWTH ** np.arange(
            math.ceil(math.log(last / first) / math.log(GROWTH)) + 1, dtype=np.float64
        )
        # the log of |kernel| at u = 0
        log_kernel = 0.5 * tau * tau * (theta * theta + theta)
        log = self._faded(tilted_steps, u) + log_kernel - 0.5 * (tau * u) ** 2
        # the lengths of the intervals, each with one more term of the rule, divided by pi
        length = (u * (GROWTH - 1) + self.spacing) / math.pi
        delta_parts, density_parts = np.exp(log) * length / u**2, np.exp(log) * length
        last_kernel = math.exp(log_kernel - 0.5 * (tau * u[-1]) ** 2) * (
            math.expm1(self._log_growth(tilted_steps)) if self.jumps else 1.0
        )
        delta_parts[-1], density_parts[-1] = (
            last_kernel * (1 / u[-1] + length[-1] / u[-1] ** 2),
            last_kernel * (1 / (tau**2 * u[-1]) + length[-1]),
        )
        # 1 + tau² / 2 covers the factor e^(tau² / 8) by which the kernel of the density is larger
        rest, rest_density = (
            np.cumsum(x[::-1])[::-1] * (1 + 0.5 * tau * tau) * 1.001 for x in (delta_parts, density_parts)
        )
        fits = (np.log(rest) < log_target) & (np.log(rest_density * tau * tau) < log_target)
        i = int(np.argmax(fits)) if fits.any() else len(u) - 1
        self.rest, self.rest_density = float(rest[i]), float(rest_density[i])
        return float(u[i])

    def _terms(self, tilted_steps: Sequence[TiltedStep]) -> None:
        """Compute the terms of both integrals at every frequency, with bounds on their errors: of delta, the
        transform times kernel / (z (z + 1)), and of the density, the transform times
        e^(tau² (z + 1/2)² / 2), which bounds what the kernel adds to delta.

        `errors` holds for each integral a bound on the sum of its terms' errors, and the sum of u times their
        sizes: the factor by which an error of epsilon changes the integral.
        """
        dtype: Any = np.longdouble if self.precise else np.float64
        total = summed(self.steps, tilted_steps, self.theta)
        self.log_scale, self.log_error = total.log, total.error
        values, value_error = powers(self.steps, tilted_steps, total, self.spacing, self.count)
        u = self.spacing * np.arange(self.count)
        self.u, z = u.astype(dtype), self.theta + 1j * self.spacing * np.arange(self.count, dtype=dtype)
        half_variance = dtype(self.tau) ** 2 / 2
        # The terms at u and -u are conjugate, and only u >= 0 is summed: u = 0 counts half.
        values[0] *= 0.5
        value_error[0] *= 0.5
        shapes = np.exp(half_variance * z * (z + 1)) / (z * (z + 1)), np.exp(half_variance * (z + 0.5) ** 2)
        self.delta_terms, self.density_terms = (values * shape for shape in shapes)
        rounding = unit(self.precise) * (200 + 8 * float(half_variance) * np.abs(z).astype(np.float64) ** 2)
        shape_sizes = [np.abs(shape).astype(np.float64) for shape in shapes]
        size = np.abs(values).astype(np.float64)
        self.errors = [
            (
                float(shape @ (value_error + (size + value_error) * rounding)),
                float(shape @ (u * (size + value_error))),
            )
            for shape in shape_sizes
        ]

    def _bounds_around(self) -> bool:
        """Store upper bounds on log E exp(tL), kernel included, at the exponents of Chernoff's bounds, and on
        that of the runs without a jump; return whether all of them could be computed."""
        bounds = []
        for t in (self.theta + self.window.up, self.theta - self.window.down):
            # At t = 0 the moment of all runs is 1; that of the runs with a jump is not.
            tilted_steps = self._tilted_steps(t) if t > 0 or self.jumps else []
            if tilted_steps is None:
                return False
            value = summed(self.steps, tilted_steps, t).log_above(self.steps) if tilted_steps else 0.0
            bounds.append(value + 0.5 * self.tau**2 * t * (t + 1))
        self.beyond, self.below = bounds
        if self.level.exponent is None:
            return True
        cores = [step.core(self.level.exponent) for step in self.steps]
        without_jump = [TiltedStep(core, None) for core in cores if core is not None]
        if len(without_jump) < len(cores):
            return False
        total = summed(self.steps, without_jump, self.level.exponent)
        self.still = total.log + total.error
        return True

    def _without_jump(self, epsilon: float) -> float:
        """Return Chernoff's bound on the probability that a run without a jump exceeds epsilon, if this level
        accounts for such runs; 0 otherwise."""
        if self.level.exponent is None:
            return 0.0
        return math.exp(min(self.still - self.level.exponent * epsilon + 1e-9, 300.0))

    def _integral(self, which: int, epsilon: float) -> tuple[float, float]:
        """Return the integral of delta (which = 0) or of the density (which = 1) in units of the tilted
        distribution, and a bound on its error."""
        terms, (error, by_epsilon) = ((self.delta_terms, self.density_terms)[which], self.errors[which])
        angle = self.u * epsilon
        value = float((terms.real * np.cos(angle) + terms.imag * np.sin(angle)).sum())
        error = error + 4 * unit(self.precise) * (abs(epsilon) + abs(self.offset)) * by_epsilon
        return value * self.spacing / math.pi, (error + 4 * U * abs(value)) * self.spacing / math.pi * (
            1 + 1e-9
        )

    def read(self, epsilon: float) -> DeltaBounds:
        """Return bounds on the delta of the level's runs at epsilon, which is counted from the offsets.

        Guarantee: the part of the composition's delta at epsilon + sum of offsets that comes from runs of
                   this level, and of those it accounts for, lies between them.
        Proof:     docs/proofs/pld.md, "Along a line" and "Rare huge losses".
        """
        value, error = self._integral(0, epsilon)
        density, density_error = self._integral(1, epsilon)
        scale = self.log_scale - self.theta * epsilon
        scale_error = self.log_error + 8 * U * (
            abs(self.log_scale) + self.theta * (abs(epsilon) + abs(self.offset)) + 4
        )
        # a bound on what the kernel added to delta
        added = self.tau**2 * (1 + self.tau) * (density + density_error + self.rest_density)
        high = math.exp(min(scale + scale_error, 700.0)) * (value + error + self.rest) * (1 + 1e-12)
        high += self.lost
        low = math.exp(min(scale - scale_error, 700.0)) * max(value - error - self.rest - added, 0.0)
        low *= 1 - 1e-12
        return DeltaBounds(max(low - self._around(epsilon), 0.0), high + self._without_jump(epsilon))

    def _around(self, epsilon: float) -> float:
        """Return a bound on the error of the rule, the sum over k = ±1, ±2, ... of e^(theta k W) times delta
        at epsilon + kW. Each delta is at most Chernoff's bound on the probability that a run's loss exceeds
        epsilon + kW."""
        w, t = self.window, self.theta - self.window.down
        above = self.beyond - (self.theta + w.up) * epsilon - w.up * w.period
        below = self.below - t * epsilon - w.down * w.period
        above_sum = math.exp(min(above, 300.0)) / -math.expm1(-w.up * w.period)
        return (above_sum + math.exp(min(below, 300.0)) / -math.expm1(-w.down * w.period)) * (1 + 1e-6)


def powers(
    steps: Sequence[Cut], tilted_steps: Sequence[TiltedStep], total: RunMoment, spacing: float, count: int
) -> tuple[Complex, Array]:
    """Return the tilted transform of a run at the frequencies 0, spacing, 2 spacing, ..., which is c^n, or
    with jumps (c + j)^n - c^n, and a bound on the error of each.

    Proof: a polynomial in c and j with positive coefficients changes by an error of c and j at most as much
           as it does at (|c|, |j|) when both grow by their errors. Let |c|^n = e^A and
           (1 + |j| / |c|)^n = e^B, and let A, B grow by a, b: then (|c| + |j|)^n - |c|^n changes by
           e^A expm1(a) expm1(B + b) + e^(A+B) expm1(b).

    In the code: `log` and `angle` are those of c^n, `log_ratio` and `angle_ratio` those of (1 + j/c)^n;
    `log` is also A (`log64` in doubles), `largest` is B, and a, b are their errors.
    """
    dtype = tilted_steps[0].core.weight.dtype
    roundoff = unit(dtype != np.float64)
    log, angle, a = np.zeros(count, dtype), np.zeros(count, dtype), np.zeros(count)
    log_ratio, angle_ratio, largest, b = (
        np.zeros(count, dtype),
        np.zeros(count, dtype),
        np.zeros(count),
        np.zeros(count),
    )
    for step, tilted, odds in zip(steps, tilted_steps, total.odds, strict=True):
        n = step.times
        z, error = phi_minus_one(tilted.core, spacing, count)
        log_size, turn, log_error = log_one_plus(z, error, roundoff)
        log, angle = log + n * log_size, angle + n * turn
        a += n * log_error + 4 * roundoff * n * (np.abs(log_size) + np.abs(turn)).astype(np.float64)
        if tilted.far is not None:
            log_size, turn, log_larger, log_error = _jumping(
                1 + z, *phi_minus_one(tilted.far, spacing, count), odds, roundoff
            )
            log_ratio, angle_ratio, largest, b = (
                log_ratio + n * log_size,
                angle_ratio + n * turn,
                largest + n * log_larger,
                b + n * log_error,
            )
    log64 = log.astype(np.float64)
    if not any(tilted.far for tilted in tilted_steps):
        return np.exp(log) * np.exp(1j * angle), np.asarray(-np.exp(log64 + a) * np.expm1(-a))
    # c^n (e^w - 1) with w = log_ratio + i angle_ratio: e^w - 1 is divided by e^positive, and split so that
    # nothing cancels
    positive, negative, sin_half = (
        np.maximum(log_ratio, 0),
        np.minimum(log_ratio, 0),
        np.sin(angle_ratio / 2),
    )
    real = (
        np.where(log_ratio > 0, -np.expm1(-positive), np.expm1(negative)) * np.cos(angle_ratio),
        -2 * np.exp(-positive) * sin_half * sin_half,
    )
    imag = np.exp(negative) * np.sin(angle_ratio)
    value = np.exp(log + positive) * (real[0] + real[1] + 1j * imag) * np.exp(1j * angle)
    rounding = 16 * roundoff * np.exp(log + positive) * (np.abs(real[0]) + np.abs(real[1]) + np.abs(imag))
    # the change of the proof, with expm1 of negative numbers only, which do not overflow
    error = np.exp(log64 + a + largest + b) * np.expm1(-a) * np.expm1(-largest - b) - np.exp(
        log64 + largest + b
    ) * np.expm1(-b)
    return value, np.asarray((error + rounding.astype(np.float64)) * (1 + 1e-9))


def _jumping(
    core: Complex, far: Complex, far_error: Array, odds: tuple[float, float], roundoff: float
) -> tuple[Complex, Complex, Array, Array]:
    """Return the log and the angle of 1 + j/c, the log of 1 + |j| / |c|, and a bound on how much that log
    grows by errors.

    `core` is c, and j is odds[0] times 1 + `far`, where odds[1] bounds the relative error of the odds and
    `far_error` the error of `far`.
    """
    j, size = odds[0] * (1 + far), np.abs(core).astype(np.float64)
    j_size = np.abs(j).astype(np.float64)
    error = (
        (odds[0] * far_error + j_size * odds[1]) * (1 + odds[1]) + 64 * roundoff * (odds[0] + j_size) + 1e-300
    )
    log_ratio, angle_ratio, _ = log_one_plus(j / core, 0.0, roundoff)
    log_error = np.log1p(error / (size + j_size)) + 16 * roundoff * (
        np.abs(log_ratio) + np.abs(angle_ratio)
    ).astype(np.float64)
    return log_ratio, angle_ratio, np.log1p(j_size / size) * (1 + 1e-12), log_error * (1 + 1e-9)
