"""Random allocation, exactly: the hockey-stick curve of one pass in which a unit takes part in one of t
Gaussian steps.

The likelihood ratio of "somewhere in the pass" against "nowhere" is X = mean of t independent Y_i = e^{z_i /
s - 1 / (2 s²)}, whatever step it was. So delta is E[(X - e^eps)+] for removing and E[(1 - e^eps X)+] for
adding a unit, z_i standard normal: two convex functions of X. Moving every Y to the ends of its cell of a
grid, with its mean kept, can only raise the mean of a convex function; that also holds for sums. What the
grid leaves out, and what the Fourier transform rounds, is added on top.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Any

import numpy as np

from .. import _require
from .._errors import Unsupported
from .conversion import normal_tail

_Array = np.ndarray[Any, np.dtype[np.float64]]
# The unit roundoff of doubles: bounds on rounding errors are multiples of it.
_U = 2.0**-53
# Cells of a grid, and of its transforms, up to which a pass is computed exactly; beyond it memory and time
# grow with them, and the Rényi bound is used.
_MAX_CELLS = 1 << 20
# Exponents are clipped here: e^300 times a probability stays far from the largest float.
_STEEP = 300.0


@dataclass(frozen=True, slots=True)
class _WeightGrid:
    """Weights of Y at 0, h, 2h, ...; `beyond` is E[Y; Y off the grid], infinite loss when removing (Y counts
    as 0 there)."""

    mesh: float
    weights: _Array
    beyond: float

    @property
    def values(self) -> _Array:
        return np.asarray(self.mesh * np.arange(len(self.weights)), dtype=np.float64)


def _grid(noise: float, tail: float) -> _WeightGrid | None:
    """Return the grid for one step, fine enough that the variance of Y grows by at most 1e-4 of itself; None
    if that takes too many cells."""
    from scipy.special import ndtr

    mu = 1 / noise
    mesh = math.sqrt(4e-4 * math.expm1(min(mu * mu, 700.0)))
    # z beyond which the pair (with the unit) has mass `tail`
    far = mu - NormalDist().inv_cdf(max(tail, 1e-300))
    cells = math.ceil(math.exp(min(mu * far - mu * mu / 2, 600.0)) / mesh)
    if cells > _MAX_CELLS // 2:
        return None
    z = np.log(mesh * np.arange(1, cells + 1)) / mu + mu / 2
    # mass of each cell under N(0, 1), and of N(mu, 1): the mean of Y there
    without = np.diff(ndtr(z), prepend=0.0)
    within = np.diff(ndtr(z - mu), prepend=0.0)
    rising = np.clip(within / mesh - np.arange(cells) * without, 0.0, without)
    weights = np.zeros(cells + 1)
    weights[:-1] += without - rising
    weights[1:] += rising
    weights[0] += normal_tail(float(z[-1]))
    return _WeightGrid(mesh, weights * (1 + 1e-15), normal_tail(float(z[-1]) - mu) * (1 + 1e-9))


class AllocationCurve:
    """delta as a function of epsilon for `steps` steps of noise multiplier `noise`, one of which holds the
    unit.

    Guarantee: `delta(epsilon)` is an upper bound in both directions, under add/remove and zero-out.
    Proof:     the pair is that of Feldman & Shenfeld 2025, arXiv:2502.08202 (also Chua et al. 2024,
               arXiv:2412.16802); convex order as above; the transform errs in Euclidean norm by at most a few
               log2(N) ulps (Higham 2002, Theorem 24.2), weighed by Cauchy-Schwarz. Tilting by e^{theta x}
               before the transform scales that error down where delta is small; every tilt gives a valid
               bound, and the least is taken.
    Assumes:   `tail` is small against the deltas asked for: that much is given away.
    """

    __slots__ = ("_adding", "_beyond", "_removing", "_steps")

    def __init__(self, steps: int, noise: float, tail: float = 1e-12) -> None:
        _require.integer(steps=steps, at_least=1)
        _require.positive(noise=noise)
        _require.open_probability(tail=tail)
        grid = _grid(noise, tail)
        window = None if grid is None else _window(grid, steps, tail)
        if grid is None or window is None:
            raise Unsupported(
                f"random allocation over {steps} steps with noise multiplier {noise:g} would need a "
                f"grid of more than {_MAX_CELLS} "
                f"cells. Use accountant='rdp', which has a bound for it."
            )
        self._steps, self._beyond = int(steps), grid.beyond
        deviation = math.sqrt(steps * math.expm1(1 / noise**2))
        # a heavy upper tail bears no more tilt than a few over its reach
        reach = float(grid.values[-1])
        upwards = sorted(
            {0.0, *(min(k / deviation, 25 / reach) for k in (1.5, 3.0, 5.0)), 8 / reach, 16 / reach}
        )
        self._removing = [_Side(grid, steps, tilt, window, 1) for tilt in upwards]
        self._adding = [_Side(grid, steps, -k / deviation, window, -1) for k in (0.0, 2.5, 5.0, 8.0)]

    def delta(self, epsilon: float) -> float:
        """Return the delta at an epsilon, the larger of both directions."""
        _require.non_negative(epsilon=epsilon)
        exp_epsilon = math.exp(min(epsilon, 700.0))
        # (x - e^eps)+ with x = sum / t, and (1 - e^eps x)+ = e^eps (e^-eps - x)+
        removing = (
            min(side.excess(exp_epsilon * self._steps) for side in self._removing) / self._steps
            + self._beyond
        )
        adding = (
            min(side.excess(self._steps / exp_epsilon) for side in self._adding) * exp_epsilon / self._steps
        )
        return min(1.0, max(removing, adding) * (1 + 1e-12))


@lru_cache(maxsize=8)
def _build_curve(steps: int, noise: float, decade: int) -> AllocationCurve:
    return AllocationCurve(steps, noise, 10.0**decade)


def curve(steps: int, noise: float, tail: float) -> AllocationCurve:
    """Return the curve that gives away at most `tail`, a power of ten; kept, because one question asks for it
    many times."""
    return _build_curve(steps, noise, math.floor(math.log10(tail)))


@dataclass(frozen=True, slots=True)
class _Window:
    """The first cell and the number of cells on which the sum is kept; what lies above, as E[sum], and below,
    as a probability."""

    first: int
    size: int
    above: float
    below: float


def _window(grid: _WeightGrid, steps: int, tail: float) -> _Window | None:
    """Return the part of the grid that holds all but `tail` of the sum; None if it is too large."""
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


class _Side:
    """E[(S - c)+] (sign 1) or E[(c - S)+] (sign -1) of the sum S of Y's, for any c, from one tilted
    transform."""

    __slots__ = (
        "_base",
        "_error",
        "_exponent",
        "_lost",
        "_mass",
        "_mesh",
        "_moment",
        "_norm",
        "_norms",
        "_sign",
    )

    def __init__(self, grid: _WeightGrid, steps: int, tilt: float, window: _Window, sign: int) -> None:
        y, size = grid.values, window.size
        tilted = grid.weights * np.exp(np.minimum(tilt * y, 600.0))
        total = float(tilted.sum())
        folded = np.bincount(np.arange(len(tilted)) % size, tilted / total, minlength=size)
        tilted_mass = np.roll(np.fft.irfft(np.fft.rfft(folded) ** steps, size), -(window.first % size))
        # sums count from the first cell kept
        base, sums = (
            grid.mesh * window.first,
            grid.mesh * np.arange(size),
        )
        exponent = np.clip(steps * math.log(total) - tilt * (base + sums), -700.0, _STEEP)
        scale = np.exp(exponent) * (1 + 8 * _U * (steps * math.log2(len(y)) + float(np.abs(exponent).max())))
        mass = np.maximum(tilted_mass, 0.0) * scale
        order = slice(None, None, -1) if sign > 0 else slice(None)

        # sums over all cells on the side that counts, from the far end inwards
        def heaped(
            x: _Array,
        ) -> _Array:
            return np.asarray(np.cumsum(x[order])[order])

        self._mass, self._moment = heaped(mass), heaped(mass * sums)
        self._norm, self._norms = np.sqrt(heaped(scale**2)), np.sqrt(heaped((scale * sums) ** 2))
        norms = steps * math.sqrt(float(np.sum(folded**2))) + math.sqrt(float(np.sum(tilted_mass**2)))
        self._error = 16 * _U * math.log2(size) * norms
        self._mesh, self._base, self._sign, self._exponent = grid.mesh, base, sign, exponent
        self._lost = window.above if sign > 0 else window.below

    def excess(self, c: float) -> float:
        """Return the mean of (S - c)+, which is linear on the side that counts: first moment minus c times
        mass, both counted from the window's first cell."""
        lost = self._lost if self._sign > 0 else c * self._lost
        c -= self._base
        cells = len(self._mass)
        index = (
            max(math.ceil(c / self._mesh), 0)
            if self._sign > 0
            else min(math.floor(c / self._mesh), cells - 1)
        )
        if not 0 <= index < cells:
            return lost
        # the steepest cell that counts: this tilt is of no use here
        if self._exponent[index] >= _STEEP:
            return math.inf
        moment, mass = float(self._moment[index]), float(self._mass[index])
        norm = abs(c) * float(self._norm[index]) + (float(self._norms[index]) if self._sign > 0 else 0.0)
        value = self._sign * (moment - c * mass)
        return max(0.0, value) + 64 * _U * (moment + abs(c) * mass) + self._error * norm + lost


def _above(grid: _WeightGrid, steps: int, high: float) -> float:
    """Return E[S; S > high], by Chernoff:
    steps e^{-theta high} E[Y e^{theta Y}] E[e^{theta Y}]^{steps - 1}."""
    y = grid.values
    best = float(steps)
    for theta in np.geomspace(1.0, 60.0, 12) / y[-1]:
        growth = grid.weights * np.exp(theta * y)
        exponent = (
            math.log(float(np.sum(y * growth))) + (steps - 1) * math.log(float(growth.sum())) - theta * high
        )
        best = min(best, steps * math.exp(min(exponent, 0.0)))
    return best * (1 + 1e-9)


def _below(grid: _WeightGrid, steps: int, low: float) -> float:
    """Return P[S < low], by Chernoff."""
    if low <= 0:
        return 0.0
    y = grid.values
    best = 1.0
    deviation = math.sqrt(steps * float(np.sum(y * y * grid.weights)))
    for theta in np.geomspace(1.0, 30.0, 12) / deviation:
        exponent = steps * math.log(float(np.sum(grid.weights * np.exp(-theta * y)))) + theta * low
        best = min(best, math.exp(min(exponent, 0.0)))
    return best * (1 + 1e-9)
