"""Makes a dominating pair from a bound on the hockey-stick curve alone, and computes the curve of
zero-concentrated privacy.

The curve of a pair is delta as a function of e^epsilon, for all real epsilon. Any valid bound on it can be
lowered to its greatest convex minorant, because the true curve is convex; a convex decreasing curve that
begins at 1 (for e^epsilon = 0) is the curve of a pair of distributions (Zhu, Dong & Wang 2022,
arXiv:2106.08567), and dominating pairs compose (Theorem 10 there). So a mechanism of which only a Rényi bound
is known can be composed with others.

Curves are given by their delta at knots, which are epsilons >= 0; `mirrored` extends them to epsilon < 0. The
functions whose names end in "atoms", and `mirrored`, return atoms and the P-mass at infinite loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from .arrays import Array, U
from .basic_pairs import Atoms

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
