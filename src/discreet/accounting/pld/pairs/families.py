"""Makes a dominating pair from a bound on the hockey-stick curve alone, and computes the curve of
zero-concentrated privacy.

The curve of a pair is delta as a function of e^epsilon, for all real epsilon. Any valid bound on it can be
lowered to its greatest convex minorant, because the true curve is convex; a convex decreasing curve that
begins at 1 (for e^epsilon = 0) is the curve of a pair of distributions (Zhu, Dong & Wang 2022,
arXiv:2106.08567), and dominating pairs compose (Theorem 10 there). So a mechanism of which only a Rényi bound
is known can be composed with others.

Curves are given by their delta at knots, which are epsilons >= 0; `mirrored` extends them to epsilon < 0. The
functions whose names end in "atoms", and `mirrored`, return atoms and the P-mass at infinite loss.

Defines pairs for many exponential mechanisms, each chosen by the analyst after seeing the answers of the
others.

A mechanism has bounded range epsilon if its losses lie in some interval of that width, as those of the
exponential mechanism do. One such mechanism is worst when its loss is t or t - epsilon, for some t in [0,
epsilon]; which t is worst depends on the losses so far. The largest curve over all t is that of a pair
(`basic_pairs.bounded_range`), but of no mechanism, and composing this pair with itself costs up to a fifth
more than need be. Here t is chosen anew at every step, as the analyst would choose it: the result is exact
but for the grid.

W, T, s, y and w are those of the proof of `adaptive_pair`; in the code W is a vector `value` at the knots
log s.

Defines pairs of mechanisms with discrete outcomes, as atoms of privacy loss: randomized response, discrete
Laplace and discrete Gaussian noise. U is the unit roundoff 2^-53.

Defines the dominating pair (P, Q) of a Poisson-sampled Gaussian (`basic_pairs.DominatingPair`); rate 1 is the
plain Gaussian.

Theorem (Zhu, Dong & Wang 2022, arXiv:2106.08567, Theorem 11; Gaussian pair N(1, s²) against N(0, s²)):
removing a unit is dominated by (1-q) N(0,s²) + q N(1,s²) against N(0,s²), adding one by N(0,s²) against that
mixture. The first distribution of each pair is P, the second Q; s is the noise multiplier `sigma` and q the
sampling rate. A cell is an interval of losses, and its ref is the loss c at which P - e^c Q is computed.

In the code x is an outcome; n0 and n1 are the masses of a cell under N(0, s²) and N(1, s²), e0 and e1 bounds
on their errors; U is the unit roundoff 2^-53.

Unsampled Gaussians in closed form: they compose to one Gaussian, whose curve is known.

delta(epsilon) = Phi(m/2 - epsilon/m) - e^epsilon Phi(-m/2 - epsilon/m), with Phi the standard normal
distribution function and m² the sum of 1/s² over all releases, s their noise multipliers (Balle & Wang 2018,
arXiv:1805.06530, Theorem 8; composition: Dong, Roth & Su 2022, arXiv:1905.02383, Corollary 3.3).

Symbols: a = epsilon/m - m/2 and b = epsilon/m + m/2, so that delta = Phi(-a) - e^epsilon Phi(-b), "first" and
"second" term; U is the unit roundoff 2^-53. The Mills ratio at x is Phi(-x) divided by the normal density at
x; it is erfcx(x / sqrt(2)) up to a constant factor.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import ClassVar

import numpy as np
from scipy.special import erfcx, ndtr, ndtri

from .basic_pairs import Array, Atoms, LossCells, Nodes, U, between, bisected

# Knots of a curve, between which it is replaced by chords, which lie above it: more knots are tighter, and
# each costs an evaluation. Chosen by hand, not tuned.
_KNOTS = 801


def zcdp_curve(rho: float, epsilon: Array) -> Array:
    """Return the best bound on delta at epsilon >= 0 over many orders (Canonne, Kamath & Steinke 2020,
    arXiv:2004.00010, Corollary 13).

    Every order a > 1 is valid: exp((a-1)(a rho - epsilon)) / (a-1) * (1 - 1/a)^a. So is Pinsker's
    sqrt(rho/2), a bound at epsilon 0 and hence at every larger one.
    """
    # About the best a - 1, and a - 1 itself at orders around it. Every order is valid, so the grid changes
    # tightness only.
    likely = np.maximum((epsilon - rho) / (2 * rho), 1e-3 / math.sqrt(rho) + 1e-3)
    excess = np.multiply.outer(likely, np.geomspace(0.05, 20.0, 121))
    order = 1 + excess
    log = excess * (order * rho - epsilon[:, None]) + order * np.log1p(-1 / order) - np.log(excess)
    bound = np.exp(np.minimum(log.min(axis=1), 0.0)) * (1 + 1e-11)
    return np.asarray(np.minimum(np.minimum(bound, 1.0), math.sqrt(rho / 2) * (1 + 1e-12)))


def zcdp_atoms(rho: float, tail: float) -> tuple[Atoms, float]:
    """Return atoms that dominate every rho-zCDP mechanism, and the mass at infinite loss (about `tail`)."""
    far = rho + 2 * math.sqrt(rho * math.log(1 / tail))
    knots = np.linspace(0.0, min(far, 600.0), _KNOTS)
    curve = zcdp_curve(rho, knots)
    return mirrored(knots, curve)


def _from_curve(loss: Array, delta: Array) -> tuple[Atoms, float]:
    """Return the pair whose curve joins the convex minorant of the given points by lines in e^loss, and is
    constant beyond the last."""
    x = np.concatenate(([0.0], np.exp(loss)))
    y = np.concatenate(([1.0], np.minimum(delta, 1.0)))
    kept = _minorant(x, y)
    x, y = x[kept], y[kept]
    slope = np.append(np.diff(y) / np.diff(x), 0.0)
    slope = np.minimum(slope, 0.0)
    mass = x[1:] * np.diff(slope)
    error = x[1:] * 8 * U * (np.abs(slope[:-1]) + np.abs(slope[1:]))
    # The first chord falls from (0, 1) with slope at least -1. If it is flatter, the difference is Q-mass
    # where P has none, which the atoms do not list (`basic_pairs.missing_q_mass`).
    mass = np.maximum(mass, 0.0) + error
    return Atoms(np.log(x[1:]), mass, mass_error=16 * U, loss_error=4 * U), float(y[-1]) * (1 + 4 * U)


def _minorant(x: Array, y: Array) -> list[int]:
    """Return the indices of the lower convex hull of points with ascending x."""
    hull: list[int] = []
    for i in range(len(x)):
        while len(hull) >= 2:
            a, b = hull[-2], hull[-1]
            if (y[b] - y[a]) * (x[i] - x[a]) >= (y[i] - y[a]) * (x[b] - x[a]):
                hull.pop()
            else:
                break
        hull.append(i)
    return hull


def _spaced(delta_at: Callable[[float], float], largest: float, level: float, few: int, many: int) -> Array:
    """Return knots from 0 to `largest`: `many` where the curve is above `level`, `few` beyond; roughly."""
    near = largest
    while near > 1e-9 * largest and delta_at(near / 2) < level:
        near /= 2
    return np.unique(np.concatenate((np.linspace(0.0, near, many), np.linspace(near, largest, few))))


def curve_atoms(delta_at: Callable[[float], float], largest: float) -> tuple[Atoms, float]:
    """Return atoms that dominate every mechanism with delta <= delta_at(epsilon) in both directions, and
    delta 0 from the epsilon `largest` on."""
    knots = _spaced(delta_at, largest, 1e-12, 61, 181)
    curve = np.array([delta_at(float(x)) for x in knots[:-1]] + [0.0]) * (1 + 1e-12)
    return mirrored(knots, curve)


def renyi_atoms(
    moment: Callable[[float], float], tail: float, also: Callable[[float], float] | None = None
) -> tuple[Atoms, float]:
    """Return atoms that dominate every mechanism with log E exp((a-1) L) <= moment(a) for all orders a, in
    both directions.

    `also` is another bound on delta(epsilon) for epsilon >= 0 that holds in both directions: the lower of the
    two counts.
    """
    excess = np.unique(
        np.concatenate(
            (np.geomspace(1e-3, 1.0, 13), np.arange(1.0, 33.0), np.rint(np.geomspace(33, 4096, 60)))
        )
    )
    logs = np.array([moment(1.0 + float(e)) for e in excess])
    usable = np.isfinite(logs)
    if not usable.any():
        # nothing is known
        return Atoms(np.zeros(1), np.ones(1)), 1.0
    excess, logs = excess[usable], logs[usable]
    constant = logs + (1 + excess) * np.log1p(-1 / (1 + excess)) - np.log(excess)
    # The last knot: the epsilon at which delta is about `tail`. (A tail that underflowed to 0 is replaced by
    # the smallest float: where the curve ends changes tightness only.)
    far = float(np.min((constant - math.log(max(tail, math.ulp(0.0)))) / excess))
    far = min(max(far, 1e-9), 600.0)

    def curve_at(knots: Array) -> Array:
        logs = (constant[None, :] - np.multiply.outer(knots, excess)).min(axis=1)
        curve = np.exp(np.minimum(logs, 0.0)) * (1 + 1e-11)
        return np.asarray(curve if also is None else np.minimum(curve, [also(float(x)) for x in knots]))

    if also is None:
        knots = np.linspace(0.0, far, _KNOTS)
    else:
        # The exact curve may fall much faster than the Rényi bound: most knots belong where it falls.
        knots = _spaced(lambda x: float(curve_at(np.array([x]))[0]), far, 1e-5, _KNOTS // 2, _KNOTS // 2)
    curve = curve_at(knots)
    return mirrored(knots, curve)


def fixed_size_atoms(delta_at: Callable[[float], float], rate: float, largest: float) -> tuple[Atoms, float]:
    """Return atoms that dominate, for replacing one unit, a sample of fixed size that is given to a mechanism
    with delta <= delta_at(epsilon) in both directions; `largest` is its largest loss.

    Proof: with q = rate the share of units in the sample, delta at x >= 0 is at most q delta_at(log(1 +
           (e^x - 1) / q)) (Balle, Barthe & Gaboardi 2018, arXiv:1807.01647, Theorem 9), mirrored below 0.
    """
    knots = np.linspace(0.0, math.log1p(rate * math.expm1(min(largest, 600.0))), _KNOTS)
    inner = np.log1p(np.expm1(knots) / rate)
    curve = np.array([delta_at(float(x)) for x in inner * (1 - 1e-15)]) * (rate * (1 + 1e-12))
    return mirrored(knots, np.minimum(curve, 1.0))


def mirrored(knots: Array, curve: Array) -> tuple[Atoms, float]:
    """Return the pair of a curve that is given at epsilon >= 0 only and holds in both directions: with f the
    curve as a function of e^epsilon, exchanging P and Q gives f(g) = 1 - g + g f(1/g) at g < 1."""
    below_zero = -np.expm1(-knots[1:]) + np.exp(-knots[1:]) * curve[1:]
    return _from_curve(np.concatenate((-knots[:0:-1], knots)), np.concatenate((below_zero[::-1], curve)))


# The largest number of mechanisms in one block, which are composed as if chosen adaptively: larger blocks are
# tighter, and their time grows with the square of the number. Chosen by hand, not tuned.
_BLOCK = 128
# Mesh cells per epsilon; a coarser mesh only raises the curve.
_CELLS_PER_EPSILON = 32
# Added to the curve after each step, at all knots but the last, so that no positive value underflows to zero.
_LEAST = 1e-24
# The largest loss of a block: e^300 is far from the largest float.
_FARTHEST = 300.0
# A factor per step that covers the rounding of positive terms and of the position of the maximum (whose error
# counts squared).
_UP = 1 + 1e-10


def blocks(epsilon: float, times: int) -> list[tuple[int, int]]:
    """Return a list of (mechanisms per block, number of such blocks) for `times` mechanisms: blocks have at
    most _BLOCK mechanisms and a loss of at most _FARTHEST, and differ by at most one mechanism."""
    number = -(-times // min(_BLOCK, int(_FARTHEST / epsilon)))
    small, larger = divmod(times, number)
    return [(k, n) for k, n in ((small + 1, larger), (small, number - larger)) if n and k]


@lru_cache(maxsize=64)
def adaptive_pair(epsilon: float, times: int) -> tuple[Atoms, float]:
    """Return a pair that dominates `times` mechanisms of bounded range epsilon, each chosen after the answers
    of the earlier ones; and its mass at infinite loss.

    Guarantee: it dominates also if they alternate, in whatever order, with other mechanisms that have fixed
               pairs.
    Proof:     let W(s) be the largest delta at epsilon log s that the remaining steps can reach; it is convex
               in s, and (1 - s)+ after the last step. Before a step with losses in [t - eps, t] it is
               E_Q[y W(s / y)], where y = e^loss has mean 1 under Q. The perspective y W(s / y) of a convex
               function is convex in y, so that losses at both ends are worst, and with w = e^t

                   TW(s) = max over w in [1, e^eps] of
                           ((e^eps - w) W(s / w) + (w - 1) W(s e^eps / w)) / (e^eps - 1),

               again convex (Dong, Durfee & Rogers 2020, arXiv:1909.13830, on the cost of adaptivity, do this
               for fixed t). A mechanism with a fixed pair averages W over its loss; max of averages <=
               average of max, so it is worst before all choices, where it may be composed as usual. Lines in
               s between knots lie above W; on a pair of lines the expression is A + B w + C / w with B, C <=
               0, whose maximum is at sqrt(C / B). W at s < 1 follows from W at s > 1, since the two tables
               may be exchanged (`_below`).

    The knots end at `reach`, about 11 standard deviations above the mean; the curve's value there is the mass
    at infinite loss. All choices of `cells` and `reach` change tightness and time only.
    """
    cells = max(
        _CELLS_PER_EPSILON,
        min(8 * _CELLS_PER_EPSILON, 1024 // times),
        min(4 * _CELLS_PER_EPSILON, math.ceil(epsilon / 0.08)),
    )
    mesh = epsilon / cells
    deviation = 0.5 * epsilon * math.sqrt(times)
    reach = min(times * epsilon, 0.5 * deviation**2 * (1 + epsilon) + 11 * deviation + 2 * epsilon)
    knots = mesh * np.arange(math.ceil(reach / mesh) + 1, dtype=np.float64)
    # (1 - s)+ at s >= 1
    value = np.zeros(len(knots))
    for _ in range(times):
        value = _step(value, knots, epsilon, cells)
    value_at_reach = 0.0 if reach == times * epsilon else float(value[-1])
    curve = np.minimum(value, 1.0)
    curve[-1] = max(value_at_reach, 0.0)
    return mirrored(knots, curve)


def _step(value: Array, knots: Array, epsilon: float, cells: int) -> Array:
    """Return TW on the knots, from W there."""
    extended = np.concatenate(
        (_below(value[1 : 2 * cells + 1], knots[1 : 2 * cells + 1]), value, np.full(cells + 1, value[-1]))
    )
    # `extended` is W from -2 epsilon on, or from the mirrored last knot; this is the index of loss 0 in it
    first = min(2 * cells, len(value) - 1)
    mesh, size = epsilon / cells, len(value)
    s, exp_epsilon = np.exp(knots), math.exp(epsilon)
    best = np.zeros(size)
    # t between i and i + 1 mesh cells: W(s / w) is on the line a, W(s e^eps / w) on the line b
    for i in range(cells):
        low, high = first - i - 1, first - i - 1 + cells
        a = _Line(
            extended[low : low + size],
            extended[low + 1 : low + 1 + size],
            s * math.exp(-(i + 1) * mesh),
            math.exp(mesh),
        )
        b = _Line(
            extended[high : high + size], extended[high + 1 : high + 1 + size], a.left * exp_epsilon, a.ratio
        )
        # -C and -B of the proof
        curvature, slope = s * exp_epsilon * (b.slope - a.slope), a.start - b.start
        with np.errstate(divide="ignore", invalid="ignore"):
            w = np.sqrt(np.maximum(np.where(slope > 0, curvature / slope, 1.0), 1.0))
        w = np.clip(w, math.exp(i * mesh), math.exp((i + 1) * mesh))
        best = np.maximum(best, (exp_epsilon - w) * a(s / w) + (w - 1) * b(s * exp_epsilon / w))
    return np.asarray(best / math.expm1(epsilon) * _UP + _LEAST * (knots < knots[-1]))


def _below(value: Array, knots: Array) -> Array:
    """Return W at the negatives of `knots`, ascending, from W at the knots: 1 - e^-x + e^-x W(x)."""
    return np.asarray((-np.expm1(-knots) + np.exp(-knots) * value)[::-1])


class _Line:
    """Holds, for each s, the chord of W between `left` and `left * ratio`: `value` and `end` are W there,
    `start` is the chord's value at 0."""

    __slots__ = ("end", "left", "ratio", "slope", "start", "value")

    def __init__(self, value: Array, end: Array, left: Array, ratio: float) -> None:
        self.value, self.end, self.left, self.ratio = value, end, left, ratio
        self.slope = (end - value) / (left * (ratio - 1))
        self.start = value - self.slope * left

    def __call__(self, s: Array) -> Array:
        """Return the chord at s, limited to its ends."""
        share = np.clip((s / self.left - 1) / (self.ratio - 1), 0.0, 1.0)
        return self.value * (1 - share) + self.end * share


# About the largest number of atoms of a discrete Laplace pair; where there are more, neighboring values are
# joined into blocks. Bounds time and memory; more atoms are tighter.
_ATOMS = 2**15


def randomized_response(epsilon: float, categories: int = 2) -> Atoms:
    """Return the atoms of the two answers whose probabilities the unit's value exchanges, and of all other
    answers together at loss 0 (Kairouz, Oh & Viswanath 2015 for two categories)."""
    others = categories - 2
    total = 1.0 + math.exp(-epsilon) * (categories - 1)
    loss, mass = (
        [-epsilon, 0.0, epsilon],
        [math.exp(-epsilon) / total, others * math.exp(-epsilon) / total, 1 / total],
    )
    if others == 0:
        return Atoms(np.array(loss[::2]), np.array(mass[::2]), (2 * epsilon, -epsilon), 8 * U * (1 + epsilon))
    return Atoms(np.array(loss), np.array(mass), (epsilon, -epsilon), 8 * U * (1 + epsilon))


def discrete_laplace(scale: Fraction, shift: int) -> tuple[Atoms, Atoms]:
    """Return an upper and a lower pair of discrete Laplace noise of this scale that is moved by `shift`.

    Losses are (shift - 2x)/scale at the noise x = 0..shift, where both ends also hold all noise beyond them.

    Many x are joined into blocks: for the upper pair a block is split between its two ends (connect the dots,
    `basic_pairs.upper`), for the lower pair it is merged. Without blocks both pairs are the same, and exact.
    """
    s = float(scale)
    r = math.exp(-1 / s)
    # P(noise = 0); P(noise = x) is that times r^|x|
    at_zero = -math.expm1(-1 / s) / (1 + r)
    block = max(1, math.ceil((shift - 1) / _ATOMS))
    start = np.arange(1, shift, block, dtype=np.float64)
    count = np.minimum(block, shift - start)
    p = at_zero * np.exp(-start / s) * (np.expm1(-count / s) / math.expm1(-1 / s))
    ends = np.array([1 / (1 + r), math.exp(-shift / s) / (1 + r)])
    error = 32 * U * (2 + shift / s)
    loss_error = 8 * U * shift / s
    # the loss of a merged block
    middle = (shift - 2 * start - count + 1) / s
    loss = np.concatenate(([shift / s], middle, [-shift / s]))[::-1]
    mass = np.concatenate((ends[:1], p, ends[1:]))[::-1]
    merged = Atoms(loss, mass, (2 / s, -shift / s) if block == 1 else None, error, loss_error)
    if block == 1:
        return merged, merged
    high, low = (shift - 2 * start) / s, (shift - 2 * (start + count - 1)) / s
    # the part of each block's mass that is put on its larger loss
    at_high = p * -np.expm1(low - middle) / np.maximum(-np.expm1(low - high), 1e-300)
    at_high = np.where(high > low, np.clip(at_high, 0.0, p), p)
    loss = np.concatenate(([shift / s], high, low, [-shift / s]))
    mass = np.concatenate((ends[:1], at_high * (1 + 1e-9), p - at_high, ends[1:]))
    order = np.argsort(loss, kind="stable")
    return Atoms(loss[order], mass[order], None, error, loss_error), merged


def discrete_gaussian(variance: Fraction, shift: int) -> Atoms:
    """Return the pair of discrete Gaussian noise that is moved by `shift`: losses (shift² - 2 shift x) / (2
    variance) at every integer x within 14 standard deviations; the mass beyond is below 1e-42."""
    v = float(variance)
    reach = math.ceil(14 * math.sqrt(v)) + 2
    x = np.arange(-reach, reach + 1, dtype=np.float64)
    mass = np.exp(-x * x / (2 * v))
    loss = (shift * shift - 2 * shift * x) / (2 * v)
    step = shift / v
    offset = float(loss[-1])
    return Atoms(
        loss[::-1],
        mass[::-1] / mass.sum(),
        (step, offset),
        16 * U * (100 + math.log2(len(x))),
        8 * U * abs(offset),
    )


# Points of the quadrature of the loss, which is for planning only: certified bounds use `measure`.
_NODES = 400


@dataclass(frozen=True, slots=True)
class SampledGaussian:
    """Is the pair of a Poisson-sampled Gaussian; `removing` says which of the two directions; with rate 1
    they agree. Losses are continuous: they lie on no lattice and are not finitely many."""

    sigma: float
    rate: float
    removing: bool = True
    lattice: ClassVar[tuple[float, float] | None] = None
    discrete: ClassVar[bool] = False

    def _loss(self, x: Array) -> Array:
        """Return the log of the mixture's density divided by that of N(0, s²), at x; it increases with x."""
        exponent = (x - 0.5) / self.sigma**2
        if self.rate == 1:
            return exponent
        big = exponent > 30
        small = np.log1p(self.rate * np.expm1(np.where(big, 0.0, exponent)))
        large = (
            exponent
            + np.log(self.rate)
            + np.log1p((1 - self.rate) / self.rate * np.exp(-np.where(big, exponent, 30.0)))
        )
        return np.where(big, large, small)

    def _where(self, loss: Array) -> tuple[Array, Array]:
        """Return the x whose `_loss` is `loss` (minus infinity below the range of losses), and a bound on the
        rounding error of x, expressed as an error of the loss.

        Proof: d loss / d log is `share`. The summands of the bound, in this order, are the rounding of x, of
               `log` and of the argument of log1p, that of q and of `loss`, and that of `ratio`, whose
               relative error is at most 3 U: share |ratio| / (1 + ratio) = |1 - e^-loss|.
        """
        if self.rate == 1:
            x = self.sigma**2 * loss + 0.5
            return x, 8 * U * (np.abs(np.where(np.isfinite(loss), loss, 0.0)) + 0.5 / self.sigma**2)
        q = self.rate
        big = loss > 30
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            ratio = np.expm1(np.where(big, 0.0, loss)) / q
            log = np.where(
                big,
                loss - np.log(q) + np.log1p(-(1 - q) * np.exp(-np.where(big, loss, 30.0))),
                np.log1p(np.maximum(ratio, -1.0)),
            )
            # the share of q N(1, s²) in the mixture's density at x
            share = np.where(
                big, 1.0, np.maximum(np.expm1(np.where(big, 0.0, loss)) + q, 0.0) * np.exp(-loss)
            )
            x = self.sigma**2 * log + 0.5
            loss_error = share * (np.abs(x) / self.sigma**2 + np.abs(log) + 1) + q + np.abs(loss)
            loss_error += np.where(ratio > -1, np.abs(np.expm1(-loss)), 0.0)
        return x, 8 * U * np.where(np.isfinite(loss_error), loss_error, 0.0)

    def span(self, tail: float) -> tuple[float, float]:
        """Return an interval of x outside which P has about `tail` of its mass on either side."""
        z = -float(ndtri(max(tail / 2, 1e-300)))
        if not self.removing:
            return -z * self.sigma, z * self.sigma
        shifted = -float(ndtri(min(max(tail / (2 * self.rate), 1e-300), 0.4)))
        return -z * self.sigma, max(z * self.sigma if self.rate < 1 else 0.0, 1 + shifted * self.sigma)

    def nodes(self, tail: float) -> Nodes:
        low, high = self.span(tail)
        x = np.linspace(low, high, _NODES)
        loss = self._loss(x)
        weight = np.exp(-0.5 * (x / self.sigma) ** 2)
        if self.removing:
            weight = weight * np.exp(np.minimum(loss, 700.0))
            return Nodes(loss, weight / weight.sum())
        return Nodes(-loss[::-1], weight[::-1] / weight.sum())

    def measure(self, edges: Array, refs: Array) -> LossCells:
        with np.errstate(over="ignore"):
            x, edge_errors = self._where(edges if self.removing else -edges[::-1])
        n0, e0 = between(x / self.sigma)
        n1, e1 = between((x - 1) / self.sigma)
        loss_error = np.maximum(edge_errors[:-1], edge_errors[1:])
        if not self.removing:
            n0, e0, n1, e1, loss_error = n0[::-1], e0[::-1], n1[::-1], e1[::-1], loss_error[::-1]
        return self._cells(n0, e0, n1, e1, loss_error, refs)

    def _cells(self, n0: Array, e0: Array, n1: Array, e1: Array, loss_error: Array, refs: Array) -> LossCells:
        """Return the cells, with P - e^c Q (c the ref of a cell) computed without cancellation: the mixture
        differs from N(0, s²) by q (n1 - n0) only.

        The losses of the computed cell lie between the edges up to `loss_error`. A hockey-stick divergence
        changes by at most the change of a loss times its P-mass, so that times the mass is added to the
        error."""
        q = self.rate
        shift, shift_error = q * (n1 - n0), q * (e0 + e1)
        if self.removing:
            mass, mass_error = n0 + shift, (1 - q) * e0 + q * e1
            first, first_error = shift, shift_error
        else:
            mass, mass_error = n0, e0
            scale = np.exp(refs)
            first, first_error = -scale * shift, scale * shift_error
        second = np.expm1(refs) * n0
        error = (
            first_error
            + np.abs(np.expm1(refs)) * e0
            + 16 * U * (np.abs(first) + np.abs(second))
            + loss_error * mass
        )
        return LossCells(mass, mass_error + 4 * U * mass, first - second, error)


# Phi(-x) = erfc(x / sqrt(2)) / 2 = e^(-x²/2) erfcx(x / sqrt(2)) / 2.
_SQRT2 = math.sqrt(2)
# For a larger b delta is bounded by a normal tail alone: at 1e6 the rounding error of b² is 1e-4, and the
# second term is a millionth of the first.
_CANCELLED = 1e6


def gaussian_delta(shift: float, epsilon: float) -> tuple[float, float]:
    """Return a lower and an upper bound on delta of a Gaussian with shift m = sensitivity / noise.

    Both terms are the normal density at a times a Mills ratio, at a and at b. The difference of the ratios is
    taken first, so that a tiny delta keeps its relative accuracy. The bounds are as far apart as the special
    functions may err, with a margin.
    """
    if shift == 0:
        return 0.0, 0.0
    a, b = epsilon / shift - shift / 2, epsilon / shift + shift / 2
    if b > _CANCELLED:
        return _nearly_normal(a, b)
    if a < -1:
        # At a <= -30 the second term and 1 - Phi(-a) are below 1e-190, and their errors do not count.
        first, second = float(ndtr(-a)), math.exp(_log_tail(b) + epsilon)
        error = U * (
            64 * (first + second)
            + 32 * (first * a * a + second * (b * b + epsilon)) * (1 if abs(a) < 30 else 0)
            + 1e-300
        )
        return max(0.0, first - second - error), min(1.0, first - second + error)
    density = math.exp(-0.5 * a * a) / 2
    first, second = float(erfcx(a / _SQRT2)), float(erfcx(b / _SQRT2))
    error = 64 * U * (first * (1 + a * a) + second * (1 + b * b))
    low, high = density * (first - second - error), density * (first - second + error)
    return max(0.0, low * (1 - 1e-12)), min(1.0, high * (1 + 1e-12) + 1e-320)


def _nearly_normal(a: float, b: float) -> tuple[float, float]:
    """Return bounds on delta where b is large: a, the difference of two numbers of up to the size of b, has
    lost digits, and the second term of delta is tiny.

    Proof: the rounding error of a is at most 4 U b; Phi(-a) falls with a; and the second term, the normal
           density at a times the Mills ratio at b, lies between 0 and that density divided by b.
    """
    moved = 4 * U * b
    least, largest = (_tail_bounds(x) for x in (a + moved, a - moved))
    second = math.exp(-0.5 * max(abs(a) - moved, 0.0) ** 2) / b if abs(a) < 1e3 + moved else 0.0
    return max(0.0, least[0] - second), largest[1]


def _tail_bounds(z: float) -> tuple[float, float]:
    """Return a lower and an upper bound on Phi(-z)."""
    tail = float(ndtr(-z))
    error = U * (64 + 32 * min(z * z, 1600.0)) * tail + 1e-300
    return max(0.0, tail - error), min(1.0, tail + error)


def _log_tail(z: float) -> float:
    """Return log Phi(-z) for z >= 0."""
    return -0.5 * z * z + math.log(float(erfcx(z / _SQRT2)) / 2)


def gaussian_epsilon(shift: float, delta: float) -> tuple[float, float]:
    """Return a lower and an upper bound on epsilon, by bisection on the bounds of delta."""
    low, high = (bisected(lambda x: gaussian_delta(shift, x), delta, shift, side) for side in (0, 1))
    return low, high
