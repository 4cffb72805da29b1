"""Composes (epsilon, delta) guarantees: basic, advanced, and optimal.

These accountants use only one point of each event's privacy curve: event i is (epsilon_i, delta_i)-DP. The
delta that the caller asks for is divided in three: the failure probabilities of the events themselves (own
deltas, see `normal`) come first, then a share for every event that has no pure epsilon and for shuffling, and
the rest is the delta that the composition theorem itself adds. Basic composition adds none, so there the
events share all of it. `conversion.basic` adds up pairs that are fixed; here the pairs are chosen such that
the deltas add up to the given one.

Computes random allocation numerically: the hockey-stick curve of one pass in which a unit takes part in
one of t Gaussian steps.

Let s be the noise multiplier and z_1, ..., z_t independent and standard normal: the noise of the steps
without the unit. Y_i = e^{z_i / s - 1 / (2 s²)} is the likelihood ratio of step i with the unit against step
i without it. The unit's step is drawn uniformly, so the likelihood ratio of the whole pass is X = (Y_1 + ...
+ Y_t) / t. So delta at epsilon eps is E[(X - e^eps)+] for removing a unit and E[(1 - e^eps X)+] for adding
one: the means of two convex functions of X.

They are computed on a grid of multiples of h (`mesh`). The probability of each cell of the grid is moved to
the two ends of the cell in such a way that the mean of Y does not change. That can only raise the mean of a
convex function, also of a sum of Ys. An upper bound on the part that the grid leaves out, and on the rounding
errors of the Fourier transform, is added to the result.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Any

import numpy as np

from .. import _require, _round
from .._errors import Unsupported
from . import events as ev
from . import pure, rdp, shuffling
from .conversion import gaussian_epsilon, least_epsilon, normal_tail, zcdp, zcdp_to_epsilon
from .events import Event, rule_for
from .normal import Normal, group_delta, normal

_Array = np.ndarray[Any, np.dtype[np.float64]]
# The unit roundoff of doubles: bounds on rounding errors are multiples of it.
_U = 2.0**-53
# The largest number of cells of a grid and of its Fourier transforms. It bounds memory and time; a pass that
# needs more cells is refused here, and its caller uses the Rényi bound.
_MAX_CELLS = 1 << 20
# Exponents are clipped at this value: e^300 times a probability stays far below the largest float, e^709.
_STEEP = 300.0


@dataclass(frozen=True, slots=True)
class _WeightGrid:
    """The distribution of one Y, moved to the grid 0, h, 2h, ... with h = `mesh`.

    `weights[k]` is the probability of the value k h. `beyond` is E[Y; Y above the last value of the grid].
    That event counts as Y = 0 in `weights`, so `beyond` is added to the delta of removing a unit, as for an
    infinite privacy loss.
    """

    mesh: float
    weights: _Array
    beyond: float

    @property
    def values(self) -> _Array:
        return np.asarray(self.mesh * np.arange(len(self.weights)), dtype=np.float64)


def _allocation_grid(noise: float, tail: float) -> _WeightGrid | None:
    """Return the grid for one step, fine enough that the variance of Y grows by at most 1e-4 of itself; None
    if that takes too many cells. `beyond` of the grid is about `tail`."""
    # imported here: slow to load, and most processes never need it
    from scipy.special import ndtr

    mu = 1 / noise
    # Moving Y to the ends of its cell adds at most h² / 4 to its variance e^{mu²} - 1.
    mesh = math.sqrt(4e-4 * math.expm1(min(mu * mu, 700.0)))
    # With the unit z is N(mu, 1): above this z it has probability `tail`.
    largest_z = mu - NormalDist().inv_cdf(max(tail, 1e-300))
    cells = math.ceil(math.exp(min(mu * largest_z - mu * mu / 2, 600.0)) / mesh)
    # Half of the limit is left, because the sum of several Ys needs a longer grid than one Y.
    if cells > _MAX_CELLS // 2:
        return None
    z = np.log(mesh * np.arange(1, cells + 1)) / mu + mu / 2
    # The probability of each cell without the unit, under N(0, 1), and with it, under N(mu, 1). The latter is
    # also E[Y; Y in the cell] without the unit.
    without_unit = np.diff(ndtr(z), prepend=0.0)
    with_unit = np.diff(ndtr(z - mu), prepend=0.0)
    # The part of a cell's probability that moves to its upper end, so that the mean of Y stays the same. The
    # rounding of `ndtr` is not bounded separately: for one step the curve was compared with
    # `conversion.gaussian_delta` at deltas from 1e-7 to 1e-30, and was never below it.
    upper_end = np.clip(with_unit / mesh - np.arange(cells) * without_unit, 0.0, without_unit)
    weights = np.zeros(cells + 1)
    weights[:-1] += without_unit - upper_end
    weights[1:] += upper_end
    weights[0] += normal_tail(float(z[-1]))
    return _WeightGrid(mesh, weights * (1 + 1e-15), normal_tail(float(z[-1]) - mu) * (1 + 1e-9))


class AllocationCurve:
    """Gives delta as a function of epsilon for `steps` steps of noise multiplier `noise`, one of which holds
    the unit.

    Guarantee: `delta(epsilon)` is an upper bound in both directions, under add/remove and zero-out.
    Proof:     the pair of distributions is that of Feldman & Shenfeld 2025, arXiv:2502.08202 (also Chua et
               al. 2024, arXiv:2412.16802); the grid only raises delta, as the module's docstring says. A
               Fourier transform of N values errs in Euclidean norm by at most a few times log2(N) ulps
               (Higham 2002, Theorem 24.2), and the Cauchy-Schwarz inequality turns that into an error of
               delta. Multiplying the weight of every value x by e^{theta x} before the transform (a tilt)
               makes that error smaller where delta is small. Every theta gives a valid bound, and the least
               of the bounds is taken.
    Assumes:   nothing. `tail` should be far below the deltas of interest, because about `tail` is added to
               each of them.
    """

    __slots__ = ("_adding", "_beyond", "_removing", "_steps")

    def __init__(self, steps: int, noise: float, tail: float = 1e-12) -> None:
        _require.integer(steps=steps, at_least=1)
        _require.positive(noise=noise)
        _require.open_probability(tail=tail)
        grid = _allocation_grid(noise, tail)
        window = None if grid is None else _window(grid, steps, tail)
        if grid is None or window is None:
            raise Unsupported(
                f"random allocation over {steps} steps with noise multiplier {noise:g} would need a "
                f"grid of more than {_MAX_CELLS} "
                f"cells. Use accountant='rdp', which has a bound for it."
            )
        self._steps, self._beyond = int(steps), grid.beyond
        # The standard deviation of the sum of the Ys. The tilts are multiples of its inverse, and for the
        # upper tail also of the inverse of the largest Y: with more than 25 times that, the largest values
        # take almost all of the tilted weight. Every tilt is valid, so the multiples only decide how tight
        # delta is; they were chosen by hand, not tuned.
        deviation = math.sqrt(steps * math.expm1(1 / noise**2))
        largest = float(grid.values[-1])
        upper_tilts = sorted(
            {0.0, *(min(k / deviation, 25 / largest) for k in (1.5, 3.0, 5.0)), 8 / largest, 16 / largest}
        )
        self._removing = [_TailMean(grid, steps, tilt, window, 1) for tilt in upper_tilts]
        self._adding = [_TailMean(grid, steps, -k / deviation, window, -1) for k in (0.0, 2.5, 5.0, 8.0)]

    def delta(self, epsilon: float) -> float:
        """Return the delta at an epsilon, the larger of both directions."""
        _require.non_negative(epsilon=epsilon)
        exp_epsilon = math.exp(min(epsilon, 700.0))
        # With the sum S = t X of the Ys: (X - e^eps)+ = (S - t e^eps)+ / t for removing, and
        # (1 - e^eps X)+ = e^eps (t e^-eps - S)+ / t for adding.
        removing = (
            min(mean.excess(exp_epsilon * self._steps) for mean in self._removing) / self._steps
            + self._beyond
        )
        adding = (
            min(mean.excess(self._steps / exp_epsilon) for mean in self._adding) * exp_epsilon / self._steps
        )
        return min(1.0, max(removing, adding) * (1 + 1e-12))


@lru_cache(maxsize=8)
def _build_curve(steps: int, noise: float, decade: int) -> AllocationCurve:
    """Return the curve with tail 10^decade; cached."""
    return AllocationCurve(steps, noise, 10.0**decade)


def allocation_curve(steps: int, noise: float, tail: float) -> AllocationCurve:
    """Return the curve whose own `tail` is the power of ten at or below this `tail`, at least 1e-300.

    The last curves are cached, because one search for an epsilon asks for the same curve many times.
    """
    return _build_curve(steps, noise, math.floor(math.log10(max(tail, 1e-300))))


@dataclass(frozen=True, slots=True)
class _Window:
    """The part of the grid on which the distribution of the sum S of the Ys is computed.

    `first` is its first cell and `size` its number of cells, a power of two for the Fourier transform.
    `above` bounds E[S; S above the window], and `below` bounds P[S below the window].
    """

    first: int
    size: int
    above: float
    below: float


def _window(grid: _WeightGrid, steps: int, tail: float) -> _Window | None:
    """Return a window that leaves out at most `tail` of the mean of X = S / steps above it; None if it would
    have too many cells.

    It spans 12 standard deviations of S on both sides of its mean, and above that up to 3 times the largest
    Y, whose tail is heavy. These numbers only decide the size: what is left out is bounded, and is added to
    delta.
    """
    y = grid.values
    mean = float(np.sum(y * grid.weights))
    deviation = math.sqrt(steps * max(float(np.sum(y * y * grid.weights)) - mean * mean, 1e-300))
    first = math.floor(max(0.0, steps * mean - 12 * deviation) / grid.mesh)
    for reach in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0):
        high = steps * mean + reach * float(y[-1]) + 12 * deviation
        size = 1 << max(10, math.ceil(math.log2(high / grid.mesh - first + 2)))
        if size > _MAX_CELLS:
            return None
        above = _above(grid, steps, grid.mesh * (first + size - 1))
        if above <= tail * steps:
            return _Window(first, size, above, _below(grid, steps, grid.mesh * first))
    return None


class _TailMean:
    """Gives upper bounds of E[(S - c)+] (`sign` 1) or E[(c - S)+] (`sign` -1) for any c, from one Fourier
    transform with one tilt; S is the sum of the Ys.

    The cells that count are those above c (sign 1) or below it (sign -1). `_mass` and `_moment` hold, for
    every cell, the probability and the first moment of this cell and of all cells from it outwards;
    `_mass_norm` and `_moment_norm` hold the Euclidean norms that the error of the transform is multiplied by.
    `_outside` bounds what lies outside the window: E[S; S above it] (sign 1) or P[S below it] (sign -1).
    """

    __slots__ = (
        "_base",
        "_error",
        "_exponent",
        "_mass",
        "_mass_norm",
        "_mesh",
        "_moment",
        "_moment_norm",
        "_outside",
        "_sign",
    )

    def __init__(self, grid: _WeightGrid, steps: int, tilt: float, window: _Window, sign: int) -> None:
        y, size = grid.values, window.size
        tilted = grid.weights * np.exp(np.minimum(tilt * y, 600.0))
        total = float(tilted.sum())
        # The Fourier transform counts values modulo the window's size. So values of S outside the window are
        # added to cells in it, which can only raise the result.
        folded = np.bincount(np.arange(len(tilted)) % size, tilted / total, minlength=size)
        tilted_mass = np.roll(np.fft.irfft(np.fft.rfft(folded) ** steps, size), -(window.first % size))
        # values of S, measured from the first cell of the window
        base, sums = (
            grid.mesh * window.first,
            grid.mesh * np.arange(size),
        )
        # `scale` undoes the tilt; its last factor covers rounding errors.
        exponent = np.clip(steps * math.log(total) - tilt * (base + sums), -700.0, _STEEP)
        scale = np.exp(exponent) * (1 + 8 * _U * (steps * math.log2(len(y)) + float(np.abs(exponent).max())))
        mass = np.maximum(tilted_mass, 0.0) * scale
        order = slice(None, None, -1) if sign > 0 else slice(None)

        # For every cell the sum over this cell and all cells from it outwards, the outermost added first.
        def sum_outwards(x: _Array) -> _Array:
            return np.asarray(np.cumsum(x[order])[order])

        self._mass, self._moment = sum_outwards(mass), sum_outwards(mass * sums)
        self._mass_norm = np.sqrt(sum_outwards(scale**2))
        self._moment_norm = np.sqrt(sum_outwards((scale * sums) ** 2))
        norms = steps * math.sqrt(float(np.sum(folded**2))) + math.sqrt(float(np.sum(tilted_mass**2)))
        # 16 stands for the "few" of Higham's theorem, for both transforms and the power between them.
        self._error = 16 * _U * math.log2(size) * norms
        self._mesh, self._base, self._sign, self._exponent = grid.mesh, base, sign, exponent
        self._outside = window.above if sign > 0 else window.below

    def excess(self, c: float) -> float:
        """Return an upper bound of the mean of (S - c)+, or of (c - S)+ with sign -1.

        On the cells that count it is the first moment minus c times the probability, or the negative of that;
        S and c are both measured from the window's first cell.
        """
        # Below the window, (c - S)+ is at most c.
        outside = self._outside if self._sign > 0 else c * self._outside
        c -= self._base
        cells = len(self._mass)
        index = (
            max(math.ceil(c / self._mesh), 0)
            if self._sign > 0
            else min(math.floor(c / self._mesh), cells - 1)
        )
        if not 0 <= index < cells:
            return outside
        # This cell has the largest exponent of those that count. If it was clipped, the bound would be too
        # small: this tilt claims nothing at this c.
        if self._exponent[index] >= _STEEP:
            return math.inf
        moment, mass = float(self._moment[index]), float(self._mass[index])
        # The error of a cell at x is multiplied by x - c, at most x + |c|, or with sign -1 by c - x, at most
        # c.
        norm = abs(c) * float(self._mass_norm[index])
        norm += float(self._moment_norm[index]) if self._sign > 0 else 0.0
        value = self._sign * (moment - c * mass)
        return max(0.0, value) + 64 * _U * (moment + abs(c) * mass) + self._error * norm + outside


def _above(grid: _WeightGrid, steps: int, high: float) -> float:
    """Return an upper bound of E[S; S > high] by Chernoff's inequality: the least, over some theta, of
    steps e^{-theta high} E[Y e^{theta Y}] E[e^{theta Y}]^{steps - 1}."""
    y = grid.values
    # E[S] itself, which is `steps`, is a bound too.
    best = float(steps)
    for theta in np.geomspace(1.0, 60.0, 12) / y[-1]:
        growth = grid.weights * np.exp(theta * y)
        exponent = (
            math.log(float(np.sum(y * growth))) + (steps - 1) * math.log(float(growth.sum())) - theta * high
        )
        best = min(best, steps * math.exp(min(exponent, 0.0)))
    return best * (1 + 1e-9)


def _below(grid: _WeightGrid, steps: int, low: float) -> float:
    """Return an upper bound of P[S < low] by Chernoff's inequality: the least e^{theta low} E[e^{-theta
    Y}]^steps over some theta."""
    if low <= 0:
        return 0.0
    y = grid.values
    best = 1.0
    # Thetas are multiples of the inverse of sqrt(steps E[Y²]).
    root_of_squares = math.sqrt(steps * float(np.sum(y * y * grid.weights)))
    for theta in np.geomspace(1.0, 30.0, 12) / root_of_squares:
        exponent = steps * math.log(float(np.sum(grid.weights * np.exp(-theta * y)))) + theta * low
        best = min(best, math.exp(min(exponent, 0.0)))
    return best * (1 + 1e-9)


# (epsilon, number of events with this epsilon)
Pairs = list[tuple[float, int]]
# Covers the rounding of each closed form: a few hundred units in the last place.
_UP = 1 + 1e-13
# Shares of delta that are tried for the events themselves; the composition theorem gets the rest. Each share
# gives a valid epsilon, and the least is returned. They were chosen by hand, not tuned.
_SHARES = (0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99)


# --- one event at one delta ---------------------------------------------------------------------------------


def point(event: Event, delta: float) -> float:
    """Return an epsilon for which one part of a normal form (see `normal`) is (epsilon, delta)-DP: its pure
    epsilon where it has one. Shuffling has one too, but its epsilon at a positive delta is much smaller."""
    exact = pure.epsilon_of(event)
    if exact is not None and not isinstance(event, ev.Shuffled):
        return exact
    if delta <= 0:
        return math.inf if exact is None else exact
    rule = rule_for(_POINTS, event, "basic", "no theorem here gives it an (epsilon, delta) to compose")
    return rule(event, min(delta, 1 - 1e-12))


def _gaussian_point(event: ev.Gaussian, delta: float) -> float:
    """Return the epsilon of one Gaussian at delta."""
    return (
        gaussian_epsilon(_round.up(1 / _require.exact(event.noise_multiplier, "noise")), delta)
        if event.noise_multiplier
        else math.inf
    )


def _zcdp_point(event: Any, delta: float) -> float:
    """Return the epsilon at delta of an event that is rho-zCDP; `zcdp(event).value` is its rho."""
    return zcdp_to_epsilon(zcdp(event).value, delta)


def _sampled_point(event: Any, delta: float) -> float:
    """Return the epsilon at delta of an event on a sample with rate q: an event that is (eps, d)-DP becomes
    (ln(1 + q (e^eps - 1)), q d)-DP (Balle, Barthe & Gaboardi 2018, arXiv:1807.01647, Theorems 8 and 9)."""
    # A rate that is too small for a float is taken as the smallest float.
    rate = float(event.rate) or 5e-324
    inner_delta = min(delta / rate * (1 - 1e-14), 1 - 1e-12)
    return pure.amplified(basic(event.event, inner_delta), rate)


def _group_point(event: ev.Group, delta: float) -> float:
    """Return the epsilon at delta of a group of event.size units.

    The inner delta, of one unit, is the largest of delta e^0, delta e^-1, ..., delta e^-59 for which the
    delta of the whole group (`normal.group_delta`) is at most `delta`; if none is, epsilon is infinite.
    """
    for i in range(60):
        inner_delta = delta * math.exp(-i)
        inner = basic(event.event, inner_delta)
        if math.isfinite(inner) and group_delta(inner, inner_delta, event.size) <= delta:
            return _round.up(_require.exact(inner, "epsilon") * event.size)
    return math.inf


def _rdp_point(event: Event, delta: float) -> float:
    return rdp.epsilon(event, delta)


def _allocation_point(event: ev.RandomAllocation, delta: float) -> float:
    """Return the epsilon of a random allocation: by the curve of `allocation` where its grid is not too large
    and it is below the Rényi bound, else by the Rényi bound."""
    fallback = rdp.epsilon(event, delta)
    # Without noise only the Rényi bound is left, which is infinite then.
    assert isinstance(event.event, ev.Gaussian)
    noise = float(event.event.noise_multiplier)
    if noise == 0:
        return fallback
    try:
        # 1e-3 of delta is given up to the curve's tail, and never more than 1e-9.
        curve = allocation_curve(event.steps, noise, min(1e-3 * delta, 1e-9))
    except Unsupported:
        return fallback
    low, high = 0.0, fallback
    if curve.delta(high) > delta:
        return fallback
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if curve.delta(middle) <= delta else (middle, high)
    return high


def _shuffled_point(event: ev.Shuffled, delta: float) -> float:
    return shuffling.epsilon(float(event.epsilon), event.reports, delta)


_POINTS: dict[type[Event], Callable[[Any, float], float]] = {
    ev.NonPrivate: lambda event, delta: math.inf,
    # Balle & Wang 2018, arXiv:1805.06530, Theorem 8
    ev.Gaussian: _gaussian_point,
    # Canonne, Kamath & Steinke 2020, arXiv:2004.00010v4, Theorem 14 and Prop. 12
    ev.DiscreteGaussian: _zcdp_point,
    ev.VectorDiscreteGaussian: _zcdp_point,
    ev.ZCDP: _zcdp_point,
    ev.PoissonSampled: _sampled_point,
    ev.SampledWithoutReplacement: _sampled_point,
    ev.Group: _group_point,
    # Feldman, McMillan & Talwar 2021, arXiv:2012.12803
    ev.Shuffled: _shuffled_point,
    # Feldman & Shenfeld 2025, arXiv:2502.08202
    ev.RandomAllocation: _allocation_point,
    ev.RDPPoint: _rdp_point,
    ev.RepeatAndSelect: _rdp_point,
}


def _pairs(form: Normal, delta: float) -> Pairs:
    """Return the epsilon of every part at its share of delta, with the number of such parts.

    Delta is divided evenly. Parts with a pure epsilon need no share; shuffling gets one, because its epsilon
    is much smaller with a delta.
    """
    sharing = sum(
        n for part, n in form.parts.items() if pure.epsilon_of(part) is None or isinstance(part, ev.Shuffled)
    )
    share = delta / sharing * (1 - 1e-14) if sharing else 0.0
    return [(point(part, share), n) for part, n in form.parts.items()]


def _is_pure(form: Normal) -> bool:
    """Return whether every part has a pure epsilon."""
    return pure.epsilon_of(form.event) is not None


def _total_pure(form: Normal) -> float:
    """Return the sum of the pure epsilons of the parts; infinite where one has none."""
    total = pure.epsilon_of(form.event)
    return math.inf if total is None else total


# --- the three accountants ----------------------------------------------------------------------------------


def basic(event: Event, delta: float) -> float:
    """Return the epsilon of basic composition: epsilons add up, deltas add up (Dwork & Roth 2014, Theorem
    3.16).

    >>> basic(ev.PureDP(epsilon=1).repeated(3), 1e-6)
    3.0
    """
    form = normal(event)
    # `least_epsilon` subtracts the own deltas from delta and passes the rest to the function below.
    return least_epsilon(
        form, delta, lambda remaining_delta: _sum(_pairs(form, remaining_delta)), _total_pure(form)
    )


def _sum(pairs: Pairs) -> float:
    """Return the sum of the epsilons, each times its count, rounded up."""
    if any(math.isinf(epsilon) for epsilon, _ in pairs):
        return math.inf
    return _round.up(sum(n * _require.exact(epsilon, "epsilon") for epsilon, n in pairs))


def advanced(event: Event, delta: float) -> float:
    """Return the epsilon of advanced composition, by the closed form of `kairouz`; never above basic
    composition."""
    return _with_shares(event, delta, kairouz)


def optimal(event: Event, delta: float) -> float:
    """Return the epsilon of optimal composition: the least that holds for all mechanisms that are (epsilon_i,
    delta_i)-DP (see `optimal_pairs`).

    Guarantee: the composition is (epsilon, delta)-DP.
    Proof:     Kairouz, Oh & Viswanath 2015, arXiv:1311.0776, Theorem 3.3 (equal epsilons); Murtagh & Vadhan
               2016, arXiv:1507.03113, Theorem 1.5 (any epsilons).
    """
    return _with_shares(event, delta, optimal_pairs)


def _with_shares(event: Event, delta: float, compose: Callable[[Pairs, float], float]) -> float:
    """Return the least epsilon over `_SHARES`, the ways to divide delta between the events and `compose`.

    `compose` maps the pairs of the parts and the delta of the composition theorem to an epsilon. Basic
    composition, which needs no delta of its own, is always tried too.
    """
    form = normal(event)
    single = sum(form.parts.values()) == 1

    def price(remaining_delta: float) -> float:
        basic_epsilon = _sum(_pairs(form, remaining_delta))
        # A single part is not composed with anything.
        if single:
            return basic_epsilon
        # Parts with a pure epsilon need no share: the composition theorem gets all of the delta.
        if _is_pure(form) and not any(isinstance(part, ev.Shuffled) for part in form.parts):
            return min(basic_epsilon, compose(_pairs(form, 0.0), remaining_delta))
        shared = [
            compose(_pairs(form, remaining_delta * share), remaining_delta * (1 - share) * (1 - 1e-14))
            for share in _SHARES
        ]
        return min(basic_epsilon, *shared)

    return least_epsilon(form, delta, price, _total_pure(form))


# --- the theorems, on bare numbers --------------------------------------------------------------------------


def dwork_roth(epsilon: float, times: int, delta: float) -> float:
    """Return sqrt(2 k ln(1/delta)) eps + k eps (e^eps - 1), the advanced composition theorem of textbooks,
    for k = `times` mechanisms that are eps-DP, eps = `epsilon`.

    The composition is DP with this epsilon and `delta`; if the mechanisms have deltas, those are added to
    `delta`.
    Proof: Dwork, Rothblum & Vadhan 2010; Dwork & Roth 2014, Theorem 3.20. Lectures often drop the second
           term.

    >>> round(dwork_roth(0.1, 100, 1e-6), 3)
    6.308
    """
    _require.non_negative(epsilon=epsilon)
    _require.integer(times=times, at_least=1)
    _require.open_probability(delta=delta)
    # Above 700, e^epsilon is near the largest float or above it.
    if epsilon > 700:
        return math.inf
    return (math.sqrt(-2 * times * math.log(delta)) * epsilon + times * epsilon * math.expm1(epsilon)) * _UP


def kairouz(pairs: Iterable[tuple[float, int]], delta: float) -> float:
    """Return the epsilon at delta of a composition of pure epsilons, given as (epsilon, count): the least of
    the three closed forms of Kairouz, Oh & Viswanath 2015, arXiv:1311.0776, Theorem 3.5.

    In the code, `drift` is the sum of epsilon (e^epsilon - 1) / (e^epsilon + 1), the mean of the total
    privacy loss, and `squares` the sum of epsilon².

    >>> round(kairouz([(0.1, 100)], 1e-6), 3)
    5.756
    """
    _require.probability(delta=delta)
    terms = list(pairs)
    basic_epsilon = _sum(terms)
    if math.isinf(basic_epsilon) or delta <= 0:
        return basic_epsilon
    drift = math.fsum(n * math.tanh(epsilon / 2) * epsilon for epsilon, n in terms)
    squares = math.fsum(n * epsilon * epsilon for epsilon, n in terms)
    first = math.sqrt(2 * squares * math.log(math.e + math.sqrt(squares) / delta))
    second = math.sqrt(-2 * squares * math.log(delta))
    return min(basic_epsilon, (drift + min(first, second)) * _UP)


def optimal_pairs(pairs: Iterable[tuple[float, int]], delta: float) -> float:
    """Return the optimal epsilon at delta of a composition of pure epsilons, given as (epsilon, count).

    The worst mechanisms are randomized responses: each has privacy loss +epsilon or -epsilon, so the total
    loss is a sum of independent random signs times epsilons. Of different epsilons its bound is that of the
    privacy loss distribution. More than a billion equal ones get the closed form of `kairouz`, below which
    the result always is.
    """
    _require.probability(delta=delta)
    terms = Counter[float]()
    for epsilon, n in pairs:
        if epsilon > 0 and n > 0:
            terms[epsilon] += n
    closed = kairouz(terms.items(), delta)
    if not terms or math.isinf(closed) or delta <= 0:
        return closed
    if len(terms) > 1:
        # imported here because it imports scipy, which takes long to load
        from . import pld

        each = [ev.PureDP(epsilon=epsilon).repeated(n) for epsilon, n in terms.items()]
        return min(closed, pld.epsilon(ev.compose(each), delta))
    ((epsilon, times),) = terms.items()
    if times > _MANY_EQUAL:
        return closed
    losses, weights = _losses(epsilon, times)
    low, high = 0.0, _sum([(epsilon, times)])
    if _delta(losses, weights, 0.0) <= delta:
        return 0.0
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if _delta(losses, weights, middle) <= delta else (middle, high)
    return min(high, closed)


def optimal_delta(epsilon: float, times: int, total: float) -> float:
    """Return the least delta for which every composition of `times` mechanisms that are epsilon-DP is (total,
    delta)-DP, rounded up; `total` is the epsilon of the composition.

    Guarantee: their composition, also an adaptive one, is (total, delta)-DP.
    Proof:     Kairouz, Oh & Viswanath 2015, arXiv:1311.0776, Theorem 3.3: randomized responses are the worst
               case, and their total loss is a sum of random signs times epsilon.

    >>> optimal_delta(0.5, 2, 1.0)
    0.0
    """
    _require.non_negative(epsilon=epsilon, total=total)
    _require.integer(times=times, at_least=1)
    if times > _MANY_EQUAL:
        raise _require.fail("times", times, f"at most {_MANY_EQUAL}: more would take too much memory")
    if epsilon == 0 or _require.exact(epsilon, "epsilon") * times <= _require.exact(total, "total"):
        return 0.0
    return min(1.0, _delta(*_losses(epsilon, times), total))


# The largest number of mechanisms with one epsilon that are composed exactly. `_binomial` needs about 40
# times the root of this number in cells, which is 10 MB.
_MANY_EQUAL = 10**9


def _losses(epsilon: float, times: int) -> tuple[Any, Any]:
    """Return the distribution of the total privacy loss of `times` randomized responses on the first of two
    tables, as (losses, probabilities).

    The probabilities are raised by a relative 1e-9, or by a bound of their rounding error if that is more, so
    none is below its exact value; the margin of 1e-13 is far above the rounding of losses.
    """
    mesh = epsilon * (1 + 1e-13)
    first, weights, error = _binomial(times, mesh)
    # one success more is a loss of +mesh instead of -mesh
    return mesh * (2 * (first + np.arange(len(weights), dtype=np.float64)) - times), weights * (
        1 + max(1e-9, error)
    )


def _binomial(n: int, log_odds: float) -> tuple[int, Any, float]:
    """Return the binomial distribution of n trials, success being e^log_odds times as likely as failure.

    Returns (the least number of successes, the probabilities from there on, a bound of their relative
    rounding error). Only numbers within 20 sqrt(n) of the mean are included: by Hoeffding's inequality all
    others together have a probability below e^{-799}. The included ones are scaled to total one, which can
    only raise them.
    """
    center, reach = round(n / (1 + math.exp(-log_odds))), int(20 * math.sqrt(n)) + 2
    first, last = max(0, center - reach), min(n, center + reach)
    k = np.arange(first, last, dtype=np.float64)
    logs = np.concatenate([[0.0], np.cumsum(np.log((n - k) / (k + 1)) + log_odds)])
    weights = np.exp(logs - logs.max())
    # Every addition errs by half an ulp of the partial sum, every logarithm by a few ulps; scaling to total
    # one doubles the error.
    error = 2.0**-52 * len(logs) * (5 + float(np.abs(logs).max()))
    return first, weights / weights.sum(), error


def _delta(losses: Any, weights: Any, epsilon: float) -> float:
    """Return the hockey-stick divergence at e^epsilon: the sum of weight (1 - e^{epsilon - loss}) over the
    losses above epsilon."""
    start = int(np.searchsorted(losses, epsilon, side="right"))
    # The smallest float covers the losses that `_binomial` leaves out: a delta of 0 would claim pure DP.
    return float(np.sum(weights[start:] * -np.expm1(epsilon - losses[start:]))) + 5e-324
