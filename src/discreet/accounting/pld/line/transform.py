"""Computes the moment generating function M(z) = E exp(z L) of one sampled Gaussian step along the vertical
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

import math
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..lattice.fourier import unit
from ..pairs.arrays import Array, U
from ..pairs.sampled import SampledGaussian

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
