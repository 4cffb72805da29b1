"""Bounds delta and epsilon for one direction of one composition, by a given plan: discretise, compose, read
off.

`DeltaCurve` holds a certified (that is, proved) upper bound on delta at every lattice epsilon of its window;
`Tests` holds the probabilities of threshold tests, which bound delta from below. docs/proofs/pld.md has the
proof ("Two discretisations" and "Composition by a tilted Fourier transform").

Symbols: P and Q are the two distributions of the composition, h is the mesh of the lattice, theta the tilt: a
loss L has weight e^(theta L) in the tilted distribution, which has total mass 1 and is multiplied by
e^(log_scale - theta L) in the end. U is the unit roundoff 2^-53. Indices count lattice points. Factors such
as 1 + 1e-12 round a bound outwards by more than the rounding errors of its last operations.

Computes the distribution of a sum of many independent privacy losses on a lattice, by Fourier transform,
with a bound on every rounding error. (The mass that wraps around the cyclic window is bounded below.)

Every line that adds to a name with `error` in it, to `rounding` or to `dropped` is part of the proof and must
stay; which coefficients are computed, and in which precision, changes speed and tightness only.

Each mass is first tilted, that is multiplied by exp(theta * loss), and normalised, so that the losses that
matter for a tiny delta are the likely ones and double precision resolves them (delta = 1e-15 is as easy as
1e-5). The transform is that of the distribution minus a point mass at its mode, so that no digits are lost
when a step reveals almost nothing.

Symbols: u is the unit roundoff of the floating-point type in use (U for doubles), phi the Fourier transform
of one step's tilted distribution, z = phi - 1, and n the number of times that a step occurs.

Makes one pair of point masses of a composition, so that amplification by sampling applies to it:
`compose([...]).sampled(rate)`.

One sample is drawn, and several mechanisms run on it. Together they are one mechanism; its dominating pair is
the product of theirs (Zhu, Dong & Wang 2022, arXiv:2106.08567, Theorem 10), to which amplification applies as
to any other pair. Masses are convolved directly, by sums of positive terms only, so that every mass keeps its
relative accuracy however small it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import fft

from ..pairs import basic_pairs
from ..pairs.basic_pairs import Array, Atoms, DominatingPair, Index, Nodes, U
from . import mesh as planning
from .mesh import Cumulants, LatticePlan

# The log of a Fourier coefficient below which it is bounded instead of computed: e^-80 is far below the
# rounding of a double.
_NEGLIGIBLE = -80.0
# Roundings of a transform of length N in each of its log2 N levels, where it takes butterflies (a complex
# product and a sum): every coefficient errs by at most this many u per level, times the 1-norm of the input.
_ROUNDINGS_PER_LEVEL = 8


class LatticeMasses(NamedTuple):
    """Holds masses at integer multiples of the mesh, of which `times` independent copies are
    added."""

    indices: Index
    mass: Array
    times: int


class Sum(NamedTuple):
    """Holds the tilted distribution of the sum at index start, start+1, ..., cyclic; each entry is within
    `error` of the truth.

    The untilted mass at a loss is the entry times exp(log_scale - theta * loss); log_scale is within
    `log_error` of the truth.
    """

    start: int
    mass: Array
    error: float
    log_scale: float
    log_error: float


class LatticePairMasses(NamedTuple):
    """Holds masses under both distributions of a pair, for lower bounds on delta (`tests`): `mass`
    under P, and `gain`, which is `mass` minus e^(mesh * index) times the mass under Q.

    If all outcomes at an index had its loss, the gain would be 0; it is not, as outcomes of slightly
    different losses were merged into one index. It is 0 where `mass` is 0.
    """

    indices: Index
    mass: Array
    gain: Array
    times: int


class Difference(NamedTuple):
    """Holds the tilted distribution `p` of a sum under P, and in `gain` the equally tilted P - e^loss Q, each
    entry within `gain_error` of the truth; see `Sum`."""

    p: Sum
    gain: Array
    gain_error: float


class TiltedMasses(NamedTuple):
    """Holds tilted and normalised masses; `log_total` is the log of the total they were divided by, within
    `log_error`, and `mode` the position of the largest."""

    indices: Index
    mass: npt.NDArray[np.floating[Any]]
    mode: int
    log_total: float
    log_error: float
    # all mass but that at the mode
    residual: float
    # a bound on the errors of the masses away from the mode, and of minus their sum, which
    # `_transform_minus_one` puts at the mode; all added up
    input_error: float


def unit(precise: bool) -> float:
    """Return the unit roundoff, half the distance from 1 to the next number: of doubles, or with `precise` of
    the widest floating-point type that numpy has on this machine."""
    return float(np.finfo(np.longdouble).eps) / 2 if precise else U


def tilt(part: LatticeMasses, rate: float, precise: bool = False) -> TiltedMasses:
    """Return masses multiplied by exp(rate * index) and normalised, with bounds on their rounding errors."""
    u = unit(precise)
    keep = part.mass > 0
    index, mass = part.indices[keep], part.mass[keep].astype(np.longdouble if precise else np.float64)
    exponent = rate * index.astype(mass.dtype)
    if exponent.size == 0:
        raise FloatingPointError("no mass is left that a float could hold")
    # e^600 is well within the range of floats; for larger exponents logarithms are added instead.
    if np.max(np.abs(exponent)) < 600:
        weight = mass * np.exp(exponent)
        shift = 0.0
    else:
        shift = float(np.max(np.log(mass) + exponent))
        weight = np.exp(np.log(mass) + exponent - shift)
    total = weight.sum()
    weight = weight / total
    # The relative error of each weight; 800 exceeds |log mass| for every positive double.
    relative = u * (16 + 4 * np.abs(exponent) + 2 * abs(shift) + (0 if shift == 0 else 800))
    mode = int(np.argmax(weight))
    # relative error of `total`
    total_error = float(weight @ relative) + 2 * u * math.log2(len(weight) + 1)
    away = weight.copy()
    away[mode] = 0.0
    residual = float(away.sum())
    input_error = 2 * (float(away @ relative) + residual * total_error) + 1e-290
    log_error = total_error + 2 * U * (1 + abs(shift) + abs(math.log(total)))
    return TiltedMasses(index, weight, mode, math.log(total) + shift, log_error, residual, input_error)


def _transform_minus_one(
    t: TiltedMasses, size: int, active: Index | None, u: float
) -> tuple[npt.NDArray[Any], float]:
    """Return the Fourier transform (the characteristic function) of the tilted distribution minus a unit
    mass at its mode, and a bound on each entry's error. Indices are counted from the mode.

    `active` are the frequencies that are wanted, None for all; few of them are computed by direct sums.
    """
    position = np.mod(t.indices - t.indices[t.mode], size)
    mass = t.mass.copy()
    mass[t.mode] = 0.0
    mass[t.mode] = -mass.sum()
    one_norm = 2 * t.residual
    if active is None or active.size * len(mass) > 4 * size:
        row = np.zeros(size, dtype=mass.dtype)
        np.add.at(row, position, mass)
        z = fft.rfft(row)
        z = z if active is None else z[active]
        return z, t.input_error + _ROUNDINGS_PER_LEVEL * u * (math.log2(size) + 2) * one_norm
    radians = mass.dtype.type(-2) * np.arccos(mass.dtype.type(-1)) / size
    angle = np.mod(np.multiply.outer(active, position), size).astype(mass.dtype) * radians
    z = np.cos(angle) @ mass + 1j * (np.sin(angle) @ mass)
    return z, t.input_error + u * (2 * len(mass) + 32) * one_norm


def log_one_plus(
    z: npt.NDArray[Any], error: float | Array, u: float
) -> tuple[npt.NDArray[Any], npt.NDArray[Any], Array]:
    """Return log|1+z|, arg(1+z), and a bound on the log of (|1+z| + error) / |1+z|, where `error` bounds the
    error of z; the rounding of this function is included."""
    a, b = z.real, z.imag
    modulus = np.maximum(np.hypot(1 + a, b), 1e-100)
    # |1+z|² - 1, without cancellation for small z; at least -0.75 where it is used
    square_minus_one = 2 * a + (a * a + b * b)
    log = np.where(modulus > 0.5, 0.5 * np.log1p(np.maximum(square_minus_one, -0.9)), np.log(modulus))
    log_error = np.log1p((error + 16 * u * (np.abs(a) + np.abs(b))) / modulus)
    return log, np.arctan2(b, 1 + a), log_error.astype(np.float64)


def _complex_log1p(z: npt.NDArray[Any], u: float) -> npt.NDArray[Any]:
    """Return log(1 + z), accurate for small z. (numpy's log1p of a complex number takes the logarithm of
    |1 + z|, where the digits of a small z are lost.)"""
    log, angle, _ = log_one_plus(z, 0.0, u)
    return np.asarray(log + 1j * angle)


class _Frequencies:
    """Holds the frequencies `active` at which a product of transforms is not negligible (None: all).

    `bound` is the log of a bound on each coefficient of the product, and `dropped` bounds the sum of the
    absolute values of all coefficients that were dropped.
    """

    def __init__(self, size: int, precise: bool) -> None:
        self.size, self.unit = size, unit(precise)
        self.dtype = np.longdouble if precise else np.float64
        self.active: Index | None = None
        self.bound: Array = np.zeros(size // 2 + 1)
        self.dropped = 0.0

    @property
    def complete(self) -> bool:
        """Whether no frequency was dropped."""
        return len(self.bound) == self.size // 2 + 1

    def multiply(self, factor: npt.NDArray[Any], times: int) -> npt.NDArray[np.bool_]:
        """Drop the coefficients that become negligible when they are multiplied `times` times by a number of
        size at most `factor`; return which of the active ones stay."""
        bound = self.bound + (times * np.log(factor * (1 + 1e-12))).astype(np.float64)
        keep = bound > _NEGLIGIBLE
        # twice: only one of each pair of frequencies k and -k is held
        self.dropped += 2 * float(np.exp(bound[~keep]).sum()) * (1 + 1e-9)
        self.active = np.flatnonzero(keep) if self.active is None else self.active[keep]
        self.bound = bound[keep]
        return keep

    def inverse(self, coefficients: npt.NDArray[Any]) -> tuple[Array, float]:
        """Return the inverse transform of the active coefficients, and a bound on the error of each entry by
        rounding and by what was dropped, times the size."""
        spectrum = np.zeros(self.size // 2 + 1, dtype=coefficients.dtype)
        spectrum[self.active] = coefficients
        one_norm = 2 * float(np.abs(coefficients).sum())
        rounding = _ROUNDINGS_PER_LEVEL * self.unit * (math.log2(self.size) + 2) * one_norm
        return fft.irfft(spectrum, self.size).astype(np.float64), rounding + self.dropped


class _Spectrum:
    """Accumulates the transform of a convolution of distributions, as logarithm and angle, at the frequencies
    where it is not negligible; `log_error` bounds the error of each coefficient, as the log of a factor."""

    def __init__(self, size: int, precise: bool) -> None:
        self.frequencies = _Frequencies(size, precise)
        self.log: npt.NDArray[Any] = np.zeros(size // 2 + 1, self.frequencies.dtype)
        self.angle, self.log_error = self.log.copy(), np.zeros(size // 2 + 1)

    def multiply(self, t: TiltedMasses, times: int) -> None:
        """Convolve with a distribution `times` times, and drop the coefficients that become negligible."""
        u = self.frequencies.unit
        z, error = _transform_minus_one(t, self.frequencies.size, self.frequencies.active, u)
        keep = self.frequencies.multiply(np.abs(1 + z) + error, times)
        log, angle, log_error = log_one_plus(z[keep], error, u)
        self.log, self.angle = self.log[keep] + times * log, self.angle[keep] + times * angle
        rounding = (4 * u * times) * (np.abs(log) + np.abs(angle)).astype(np.float64)
        self.log_error = self.log_error[keep] + times * log_error + rounding

    def invert(self) -> tuple[Array, float]:
        """Return the distribution, counted from the sum of all modes, and a bound on the error of each
        entry."""
        coefficient, atom = _without_atom(self.log, self.angle, self.frequencies.complete)
        absolute, magnitude = np.abs(coefficient).astype(np.float64), np.exp(self.log).astype(np.float64)
        relative_error = np.expm1(np.minimum(self.log_error, 600.0))
        error = 2 * float(magnitude @ relative_error + 8 * self.frequencies.unit * absolute.sum())
        mass, rounding = self.frequencies.inverse(coefficient)
        mass[0] += atom
        return mass, (error + rounding) / self.frequencies.size * (1 + 1e-9) + 1e-300


def _without_atom(
    log: npt.NDArray[Any], angle: npt.NDArray[Any], complete: bool
) -> tuple[npt.NDArray[Any], float]:
    """Return the coefficients exp(log + i angle) and 0; or the coefficients minus one, and 1, if these are
    smaller: the caller adds the 1 at the mode after the inverse transform, where it is exact.

    Only possible if the coefficients of all frequencies are there (`complete`).
    """
    coefficient = np.exp(log) * np.exp(1j * angle)
    if complete:
        minus_one = np.expm1(log + 1j * angle)
        if np.abs(minus_one).sum() < np.abs(coefficient).sum():
            return minus_one, 1.0
    return coefficient, 0.0


def _absolute_error(log: Array, log_error: Array) -> Array:
    """Return e^(log + log_error) - e^log: how far a number of size e^log may be from the truth."""
    # `np.where` computes both cases: without the minimum, the one that it discards could overflow
    growth = np.expm1(np.minimum(log_error, 600.0))
    return np.asarray(
        np.where(log_error > 30, np.exp(np.minimum(log + log_error, 600.0)), np.exp(log) * growth)
    )


class _Powers:
    """Accumulates phi^n and the log of (phi - g)^n / phi^n, with bounds on their errors, at the frequencies
    where one of the two powers is not negligible.

    phi is the transform of a distribution under P, g that of its gain (`LatticePairMasses`), so that phi - g
    is that of e^loss Q; powers are convolutions. Where |g| is small against |phi| in every pair
    (`has_small_gain`) the factor phi^n and its error (`log_error`) are common to phi^n and (phi - g)^n, and
    `log_ratio_error` is the error of their ratio; elsewhere `rest_error` is that of (phi - g)^n by itself.
    """

    def __init__(self, size: int, precise: bool) -> None:
        # their bound is one of both powers
        self.frequencies = _Frequencies(size, precise)
        self.log: npt.NDArray[Any] = np.zeros(size // 2 + 1, self.frequencies.dtype)
        self.angle, self.log_ratio = self.log.copy(), self.log * 0j
        self.log_error, self.log_ratio_error, self.rest_error = (np.zeros(size // 2 + 1) for _ in range(3))
        # frequencies where |g| is below |phi| / 2 in every pair
        self.has_small_gain = np.ones(size // 2 + 1, bool)

    def multiply(self, t: TiltedMasses, gain: npt.NDArray[Any], relative_error: float, n: int) -> None:
        """Convolve with a pair n times. `gain` is tilted and normalised as the masses of `t` and stands at
        the same indices; `relative_error` bounds its relative error."""
        u, size, active = self.frequencies.unit, self.frequencies.size, self.frequencies.active
        row = np.zeros(size, dtype=gain.dtype)
        np.add.at(row, np.mod(t.indices - t.indices[t.mode], size), gain)
        g, (z, error) = fft.rfft(row), _transform_minus_one(t, size, active, u)
        g, one_norm = g if active is None else g[active], float(np.abs(gain).sum())
        error_g = (_ROUNDINGS_PER_LEVEL * u * (math.log2(size) + 2) + relative_error) * one_norm + 1e-300
        # P has mass 1 and e^loss Q mass 1 minus all gains, by which what was dropped before may still grow
        growth = max(0.0, relative_error * one_norm - float(gain.sum())) * (1 + 1e-12)
        self.frequencies.dropped *= math.exp(min(n * growth, 700.0))
        keep = self.frequencies.multiply(np.abs(1 + z) + error + np.abs(g) + error_g, n)
        self._restrict(keep)
        g, z = g[keep], z[keep]
        log, angle, log_error = log_one_plus(z, error, u)
        phi = np.exp(log) * np.exp(1j * angle)
        rest = phi - g
        rest = np.where(np.abs(rest) > 1e-100, rest, 1e-100)
        small_gain = np.abs(g) < 0.5 * np.abs(phi)
        ratio = np.divide(g, phi, out=np.zeros_like(phi), where=small_gain)
        self.log_ratio = self.log_ratio + n * np.where(
            small_gain, _complex_log1p(-ratio, u), np.log(rest) - (log + 1j * angle)
        )
        # `~small_gain` counts as 1: where the gain is not small, the error of phi counts in full
        shared_error = error_g + np.minimum(np.abs(ratio) + ~small_gain, 1.0) * (error + 16 * u * np.abs(phi))
        self.log_ratio_error += (n * np.log1p(shared_error / np.abs(rest))).astype(np.float64)
        # the error of phi - g by itself, where phi^n is no common factor
        separate_error = error_g + error + 16 * u * np.abs(phi)
        self.rest_error += (n * np.log1p(separate_error / np.abs(rest))).astype(np.float64)
        self.has_small_gain &= small_gain
        self.log, self.angle = self.log + n * log, self.angle + n * angle
        self.log_error += n * log_error + 4 * u * n * (np.abs(log) + np.abs(angle)).astype(np.float64)

    def _restrict(self, keep: npt.NDArray[np.bool_]) -> None:
        self.log, self.angle, self.log_ratio = self.log[keep], self.angle[keep], self.log_ratio[keep]
        self.log_error, self.log_ratio_error = self.log_error[keep], self.log_ratio_error[keep]
        self.rest_error, self.has_small_gain = self.rest_error[keep], self.has_small_gain[keep]

    def invert(self) -> tuple[Array, float, Array, float]:
        """Return the distribution under P with a bound on the error of its entries, and then the difference
        P - e^loss Q with a bound on that of its entries."""
        u, p = self.frequencies.unit, np.exp(self.log) * np.exp(1j * self.angle)
        q = np.exp(self.log + self.log_ratio.real) * np.exp(1j * (self.angle + self.log_ratio.imag))
        # Where the difference is small it is computed without cancellation, by expm1.
        by_ratio = self.has_small_gain & (np.abs(self.log_ratio) < 50)
        gain = np.where(by_ratio, -p * np.expm1(np.where(by_ratio, self.log_ratio, 0)), p - q)
        size_p, size_q, size_gain = (np.abs(x).astype(np.float64) for x in (p, q, gain))
        log_p, size_ratio = self.log.astype(np.float64), np.abs(self.log_ratio).astype(np.float64)
        log_q = log_p + self.log_ratio.real.astype(np.float64)
        error_p, error_q, error_ratio = (
            _absolute_error(log_p, self.log_error),
            _absolute_error(log_q, self.rest_error),
            _absolute_error(log_q, self.log_ratio_error),
        )
        relative_error = np.expm1(np.minimum(self.log_error, 600.0))
        shared_error = size_gain * (relative_error + 8 * u) + error_ratio + 16 * u * size_q * size_ratio
        angle = np.abs(self.angle).astype(np.float64)
        separate_error = (
            error_p + error_q + 16 * u * (size_p + size_q * (1 + size_ratio + np.abs(log_p) + angle))
        )
        gain_errors = np.where(by_ratio, shared_error, separate_error)
        spectrum, atom = _without_atom(self.log, self.angle, self.frequencies.complete)
        mass, error = self._inverse_transform(spectrum, error_p + 8 * u * np.abs(spectrum).astype(np.float64))
        mass[0] += atom
        return mass, error, *self._inverse_transform(gain, gain_errors)

    def _inverse_transform(self, coefficients: npt.NDArray[Any], errors: Array) -> tuple[Array, float]:
        """Return the inverse transform, and a bound on the error of each entry."""
        mass, rounding = self.frequencies.inverse(coefficients)
        # dropped twice: the difference of two dropped coefficients is at most twice what bounds each
        error = 2 * float(errors.sum()) + rounding + self.frequencies.dropped
        return mass, error / self.frequencies.size * (1 + 1e-9) + 1e-300


def difference(
    parts: Sequence[LatticePairMasses],
    theta: float,
    mesh: float,
    size: int,
    start: int,
    precise: bool = False,
) -> Difference:
    """Return the tilted distribution of the sum under P, and the difference P - e^loss Q, on `size` lattice
    points from `start` on, cyclic; `precise` as in `compose`.

    With phi the transform of P and g that of the gain, phi^n - (phi - g)^n = -phi^n expm1(n log1p(-g / phi)):
    the small difference of two distributions, without cancellation.
    """
    powers = _Powers(size, precise)
    log_scale: list[float] = []
    log_error, origin = 0.0, 0
    for part in parts:
        t = tilt(LatticeMasses(part.indices, part.mass, part.times), theta * mesh, precise)
        kept = part.mass > 0
        largest_exponent = theta * mesh * float(np.abs(t.indices).max())
        # bounds `relative` in `tilt`, whose |shift| is at most 800 + largest_exponent, and a few roundings
        # more
        relative_error = unit(precise) * (2500 + 8 * largest_exponent) + 2 * t.log_error
        powers.multiply(t, t.mass * (part.gain[kept] / part.mass[kept]), relative_error, part.times)
        origin += part.times * int(t.indices[t.mode])
        log_scale.append(part.times * t.log_total)
        log_error += part.times * t.log_error + 2 * U * abs(part.times * t.log_total)
    mass, error, gain, gain_error = powers.invert()
    shift = (origin - start) % size
    total = Sum(start, np.roll(mass, shift), error, math.fsum(log_scale), log_error)
    return Difference(total, np.roll(gain, shift), gain_error)


def compose(
    parts: Sequence[LatticeMasses], theta: float, mesh: float, size: int, start: int, precise: bool = False
) -> Sum:
    """Return the tilted distribution of the sum of all parts on `size` lattice points from `start` on,
    cyclic.

    `precise` computes in the widest floating-point type: slower, for answers that are tiny even after
    tilting.
    """
    spectrum = _Spectrum(size, precise)
    log_scale: list[float] = []
    log_error = 0.0
    origin = 0
    for part in parts:
        t = tilt(part, theta * mesh, precise)
        origin += part.times * int(t.indices[t.mode])
        log_scale.append(part.times * t.log_total)
        log_error += part.times * t.log_error + 2 * U * abs(part.times * t.log_total)
        spectrum.multiply(t, part.times)
    mass, error = spectrum.invert()
    return Sum(start, np.roll(mass, (origin - start) % size), error, math.fsum(log_scale), log_error)


class RepeatedPair(NamedTuple):
    """Holds a pair that is composed `times` times; on the lattice its losses are counted from `offset`.

    No lattice point for its losses lies far above `cap`: larger ones are put on it and on infinite loss.
    """

    pair: DominatingPair
    times: int
    offset: float = 0.0
    cap: float = math.inf

    def nodes(self, tail: float) -> Nodes:
        """Return the nodes of the pair, less `tail` of the mass of all copies together, with the Q-mass of
        the losses above the cap at the cap."""
        loss, weight = self.pair.nodes(tail / self.times)
        if loss[-1] <= self.cap:
            return Nodes(loss, weight)
        kept = loss < self.cap
        at_cap = float(weight[~kept] @ np.exp(self.cap - loss[~kept]))
        return Nodes(np.append(loss[kept], self.cap), np.append(weight[kept], at_cap))


# Added to masses of upper bounds, so that none underflows to zero.
_TINY = 1e-305
# Lattice points beyond which no lower bound is computed: merging moves the mean of very many steps out of the
# planned window, by any distance, and memory grows with it. Four times the largest number of planned points.
_MAX_STRETCHED = 2**24


class DeltaCurve(NamedTuple):
    """Holds upper bounds on delta: exp(log_scale) * value[i] + infinite at epsilon = mesh * (start + i)."""

    start: int
    mesh: float
    value: Array
    log_scale: float
    infinite: float

    def seen(self) -> tuple[Array, Array]:
        """Return the epsilons of the curve and log delta there (without `infinite`), for planning."""
        with np.errstate(divide="ignore"):
            return self.mesh * np.arange(self.start, self.start + len(self.value), dtype=np.float64), np.log(
                self.value
            ) + self.log_scale


class Tests(NamedTuple):
    """Holds bounds on threshold tests: for each threshold K = start + i, of the set {merged loss index >= K},
    in units of exp(log_scale).

    `gain` is a lower bound on P - e^(mesh K) Q of that set, `q_low` and `q_high` are bounds on e^(mesh K) Q.
    """

    start: int
    mesh: float
    log_scale: float
    gain: Array
    q_low: Array
    q_high: Array


def cumulants(parts: Sequence[RepeatedPair], tail: float) -> Cumulants:
    """Return the cumulants of the composed loss, for planning; each part leaves out `tail` of its mass."""
    return Cumulants([(part.nodes(tail), part.times) for part in parts])


def _knots(part: RepeatedPair, plan: LatticePlan, tail: float, coarse: float) -> Index:
    """Return the lattice points onto which the losses of a part are put; `coarse` is the tail mass at which
    cells begin to widen."""
    loss, weight = part.nodes(tail)
    nodes = Nodes(loss - part.offset, weight)
    return (
        planning.neighboring_indices(nodes.loss, plan.mesh)
        if part.pair.discrete
        else planning.graded_indices(nodes, plan, coarse)
    )


def _losses(index: Index, plan: LatticePlan) -> Array:
    return index.astype(np.float64) * plan.mesh


class LatticeWindow(NamedTuple):
    """Holds the indices of a window: `size` lattice points from `start` on, of which those from `first` on
    are read. Sums are computed modulo `size`."""

    start: int
    first: int
    size: int


def _window(plan: LatticePlan) -> LatticeWindow:
    start = math.floor(plan.low / plan.mesh) - 1
    first = max(start, math.floor(plan.first / plan.mesh) - 1)
    points = max(math.ceil(plan.high / plan.mesh) + 2 - start, 32)
    return LatticeWindow(start, first, int(fft.next_fast_len(points, real=True)))


class Wrapped(NamedTuple):
    """Holds bounds on the mass outside the window, which appears inside it because sums are cyclic.

    `above` bounds the tilted mass beyond the end of the window, `below` that before its start: mass adds to a
    tail probability {loss >= x} at most its bound, in units of the tilted distribution and before the factor
    e^(-theta x). Mass from before the start adds at most `absolute`, in plain probability, too.
    """

    above: float
    below: float
    absolute: float


def _wrapped(
    parts: Sequence[LatticeMasses], theta: float, plan: LatticePlan, window: LatticeWindow
) -> Wrapped:
    """Return Chernoff's bounds on the mass outside the window, with the plan's exponents `up` and `down`
    (without `down` there is none on the mass below).

    A loss S below the window appears at S + j * width, j >= 1, where the factor e^(-theta loss) that undoes
    the tilt is e^(-theta j width) times its own. Untilted, all such mass together is at most e^(-theta width)
    / (1 - e^(-theta width)): this is `absolute`. Where losses have a long tail below that hardly counts, the
    masses that it was moved to spoil Chernoff's bound, and not this one.
    """
    h = plan.mesh

    def log_moment(t: float, sign: int) -> float:
        tilted = [(part.times, tilt(part, t * h)) for part in parts]
        return math.fsum(n * (masses.log_total + sign * masses.log_error) for n, masses in tilted)

    base = log_moment(theta, -1)
    above = log_moment(theta + plan.up, 1) - base - plan.up * h * (window.start + window.size)
    above = math.exp(min(above, 0.0)) * (1 + 1e-9)
    below, wrapping = math.inf, math.exp(-theta * h * window.size)
    total = math.exp(min(log_moment(0.0, 1), 1.0))
    absolute = wrapping / (1 - wrapping) * total * (1 + 1e-9) if wrapping < 1 else math.inf
    if plan.down is not None:
        log_below = log_moment(theta - plan.down, 1) - base + plan.down * h * (window.start - 1)
        below = math.exp(min(log_below, 0.0)) * (1 + 1e-9)
    return Wrapped(above, below, absolute)


def curve(parts: Sequence[RepeatedPair], plan: LatticePlan, tail: float) -> DeltaCurve:
    """Return an upper bound on delta for every lattice epsilon from plan.first, a little below the
    epsilon that was estimated in planning, to the end of the window."""
    built, log_finite = [], 0.0
    for part in parts:
        knots = _knots(part, plan, tail, planning.COARSE)
        dominating = basic_pairs.upper(part.pair, _losses(knots, plan), part.offset)
        built.append(LatticeMasses(knots, dominating.mass, part.times))
        # the log of the probability that no loss is infinite
        log_finite += part.times * (
            math.log1p(-dominating.infinite) if dominating.infinite < 1 else -math.inf
        )
    window = _window(plan)
    total = compose(built, plan.theta, plan.mesh, window.size, window.start, plan.precise)
    return _read_upper(
        total, plan, window, _wrapped(built, plan.theta, plan, window).above, -math.expm1(log_finite)
    )


def _read_upper(
    total: Sum, plan: LatticePlan, window: LatticeWindow, above: float, infinite: float
) -> DeltaCurve:
    """Return delta(K) = (1 - e^-h) * (sum over j > K of e^(-h (j-1-K)) P(loss index >= j)) at every
    epsilon = h K; all summands are positive.

    `above` is the tilted mass beyond the window, `infinite` the P-mass at infinite loss.
    """
    h, first = plan.mesh, window.first
    mass = total.mass[first - total.start :] + total.error
    # so that e^distance stays within the range of floats
    length = min(len(mass), math.ceil(planning.READ / h))
    distance = h * np.arange(len(mass))
    weight = np.maximum(mass, 0.0) * np.exp(-plan.theta * distance) + _TINY
    # Mass beyond the window, and beyond `length`, is counted as infinite loss.
    beyond = above * math.exp(-plan.theta * (distance[-1] + h)) + float(weight[length:].sum())
    weight, distance = weight[:length], distance[:length]
    tail = np.cumsum(weight[::-1])[::-1] + beyond
    shifted = np.append(tail[1:], beyond) * np.exp(-distance)
    # The last summand bounds the terms j after the end of the array, where P(loss index >= j) is `beyond`.
    value = (np.cumsum(shifted[::-1])[::-1] * -math.expm1(-h)) * np.exp(distance) + beyond
    log_scale = total.log_scale - plan.theta * h * first + total.log_error
    log_scale += (
        8
        * U
        * (len(mass) + abs(total.log_scale) + plan.theta * h * abs(first) + plan.theta * distance[-1] + 8)
    )
    return DeltaCurve(first, h, value, log_scale, infinite * (1 + 1e-12))


def tests(parts: Sequence[RepeatedPair], plan: LatticePlan, tail: float) -> Tests:
    """Return lower bounds on P - e^epsilon Q of {sum of merged loss indices >= K}, for thresholds K from
    plan.first on; an empty `Tests` if that would take too many lattice points."""
    built = []
    for part in parts:
        knots = _knots(part, plan, tail, planning.COARSE_BELOW)
        merged = basic_pairs.lower(part.pair, _losses(knots, plan), part.offset)
        built.append(LatticePairMasses(knots, merged.p, merged.gain, part.times))
    ps = [LatticeMasses(part.indices, part.mass, part.times) for part in built]
    plan = _centered(ps, plan)
    if plan.points > _MAX_STRETCHED:
        return Tests(0, plan.mesh, 0.0, *(np.zeros(0) for _ in range(3)))
    window = _window(plan)
    total = difference(built, plan.theta, plan.mesh, window.size, window.start, plan.precise)
    steps = sum(part.times for part in parts)
    return _read_lower(total, plan, window, _wrapped(ps, plan.theta, plan, window), 64 * U * (steps + 8))


def _read_lower(
    total: Difference, plan: LatticePlan, window: LatticeWindow, wrapped: Wrapped, rounding: float
) -> Tests:
    """Return the tests at every threshold K: with P(j), Q(j) the masses at index j and D(j) = P(j) - e^(hj)
    Q(j) their gain, P - e^(hK) Q of {index >= K} is the sum over j >= K of (1 - e^(h(K-j))) P(j) + e^(h(K-j))
    D(j).

    Mass from outside the window is subtracted twice: once for P, and once for D, which is at most P since Q
    is not negative; a negative D from outside only lowers the bound. `rounding` bounds the rounding of the
    given masses, relative to the Q-mass of a test: at an epsilon much below the typical loss nearly all of Q
    cancels against P, and this is the largest error that remains.
    """
    h, theta, first = plan.mesh, plan.theta, window.first
    keep = slice(first - window.start, None)
    # as in `_read_upper`; {index >= K} without the larger losses is a test too
    length = min(window.size - keep.start, math.ceil(planning.READ / h))
    mass, gain = total.p.mass[keep][:length], total.gain[keep][:length]
    distance = h * np.arange(length)
    weight, near, far = np.exp(-theta * distance), np.exp(-distance), np.exp(distance)
    scale = total.p.log_scale - theta * h * first
    log_error = total.p.log_error + 8 * U * (
        window.size + abs(total.p.log_scale) + theta * h * abs(first) + theta * distance[-1] + 8
    )
    absolute = wrapped.absolute * math.exp(min(log_error - scale, 700.0))
    # without Chernoff's bound there is the other one alone: an infinite one times a weight of 0 is no number
    from_below = np.minimum(wrapped.below * weight, absolute) if wrapped.below < math.inf else absolute
    beyond = wrapped.above * weight + from_below
    tail = np.cumsum((np.maximum(mass - total.p.error, 0.0) * weight)[::-1])[::-1]
    # the first of the two sums, over (1 - e^(h(K-j))) P(j)
    p_sum = (np.cumsum((np.append(tail[1:], 0.0) * near)[::-1])[::-1] * -math.expm1(-h)) * far

    def discounted(x: Array) -> Array:
        """Return the sums over j >= K of e^(h(K-j)) x(j), for every K."""
        return np.asarray(np.cumsum((x * near)[::-1])[::-1] * far)

    gain_sum, gain_size = (
        discounted((gain - total.gain_error) * weight),
        discounted((np.abs(gain) + total.gain_error) * weight),
    )
    test_gain = p_sum * (1 - log_error - 1e-11) + gain_sum - (log_error + 1e-11) * gain_size - 2 * beyond
    # e^(hj) Q(j) = P(j) - D(j), each entry up to both errors
    entry_error = total.p.error + total.gain_error
    sum_error = 2 * beyond + (log_error + 1e-11) * (
        gain_size + discounted((np.maximum(mass, 0.0) + total.p.error) * weight)
    )
    q_high, q_low = (
        discounted((mass - gain + sign * entry_error) * weight) + sign * sum_error for sign in (1, -1)
    )
    q_high = np.maximum(q_high, 0.0)
    return Tests(first, h, scale, test_gain - rounding * q_high, np.maximum(q_low, 0.0), q_high)


def _centered(parts: Sequence[LatticeMasses], plan: LatticePlan) -> LatticePlan:
    """Return the plan with its window stretched to hold the mean of the merged losses, which merging has
    moved: many losses much smaller than the mesh all become 0."""
    merged = Cumulants([(Nodes(_losses(part.indices, plan), part.mass), part.times) for part in parts])
    shift = merged(plan.theta)[1] - plan.center
    down, up = min(shift, 0.0), max(shift, 0.0)
    return plan._replace(first=plan.first + down, low=plan.low + down, high=plan.high + up)


class CertifiedEpsilon(NamedTuple):
    """Holds a certified epsilon, and -d log(delta) / d epsilon there (not certified)."""

    epsilon: float
    slope: float


def epsilon_above(c: DeltaCurve, delta: float, offset: float) -> CertifiedEpsilon:
    """Return the smallest epsilon at which the curve certifies delta; infinity if none does.

    Between two lattice points delta is at most the chord, as it is convex in e^epsilon. `offset` is added to
    every loss.
    """
    finite_delta = delta * (1 - 1e-12) - c.infinite
    if finite_delta <= 0:
        return CertifiedEpsilon(math.inf, 0.0)
    target = math.exp(min(math.log(finite_delta) - c.log_scale, 700.0))
    certified = np.flatnonzero(c.value <= target)
    if certified.size == 0:
        return CertifiedEpsilon(math.inf, 0.0)
    i = int(certified[0])
    epsilon, slope = c.mesh * (c.start + i), 1.0 / c.mesh
    if i > 0:
        before, after = float(c.value[i - 1]), float(c.value[i])
        share = (before - target) / (before - after)
        slope = math.log(before / after) / c.mesh if after > 0 else slope
        epsilon += math.log1p((share - 1) * -math.expm1(-c.mesh))
    size = abs(epsilon) + abs(offset)
    return CertifiedEpsilon(max(0.0, epsilon + offset + 1e-13 * size), slope)


def delta_above(c: DeltaCurve, epsilon: float) -> float:
    """Return an upper bound on delta at epsilon: the chord, in e^epsilon, between the curve at the last
    lattice point not above epsilon and at the next one."""
    i = math.floor((epsilon - 1e-13 * abs(epsilon)) / c.mesh) - c.start
    if i < 0:
        return 1.0
    # beyond the window delta is at most its value at the window's end
    i = min(i, len(c.value) - 2)
    share = min(
        1.0, math.expm1(min(epsilon - c.mesh * (c.start + i), c.mesh)) / math.expm1(c.mesh) * (1 - 1e-12)
    )
    value = float(c.value[i]) * (1 - share) + float(c.value[i + 1]) * share
    return min(1.0, math.exp(min(c.log_scale + math.log(max(value, 1e-300)), 0.0)) * (1 + 1e-10) + c.infinite)


def epsilon_below(t: Tests, delta: float, offset: float) -> float:
    """Return the largest epsilon that some threshold test refutes: P - e^epsilon Q >= delta.

    At epsilon = mesh K + x the test with threshold K has P - e^epsilon Q = gain - (e^x - 1) q, where q is
    e^(mesh K) Q. It equals delta at e^x = 1 + (gain - delta) / q. The larger bound on q is used where x >= 0
    and the smaller one where x < 0: both lower x.
    """
    target = delta * math.exp(min(-t.log_scale, 700.0)) * (1 + 1e-12)
    spare = t.gain - target
    q = np.where(spare >= 0, t.q_high, t.q_low)
    usable = (q > 0) & (spare > -q)
    if not usable.any():
        return 0.0
    threshold = t.mesh * (t.start + np.flatnonzero(usable))
    value = threshold + np.log1p(spare[usable] / q[usable])
    best = float(np.max(value))
    return max(0.0, best + offset - 1e-13 * (abs(best) + abs(offset)))


def delta_below(t: Tests, epsilon: float) -> float:
    """Return the largest lower bound on delta at this epsilon that a threshold test gives."""
    # e^x - 1 for epsilon = mesh K + x; q is bounded in the direction that lowers the result.
    growth = np.expm1(
        np.minimum(epsilon + 1e-13 * abs(epsilon) - t.mesh * (t.start + np.arange(len(t.gain))), 700.0)
    )
    value = t.gain - growth * np.where(growth > 0, t.q_high, t.q_low)
    best = float(np.max(value, initial=0.0))
    return math.exp(min(t.log_scale + math.log(best), 0.0)) * (1 - 1e-10) if best > 0 else 0.0


# Lattice points for the likely losses of a composition that is sampled: more make its pair tighter, and the
# composition of its samples slower. The number was chosen by hand, not tuned.
_POINTS = 4096


class _LatticePair(NamedTuple):
    """Holds P-masses at the lattice points start, start + 1, ..., with relative error at most `error`, and
    the P-mass at infinite loss. Q-masses are held for lower bounds only; for upper bounds they are p *
    e^-loss."""

    start: int
    p: Array
    q: Array | None
    infinite: float
    error: float


class Joint(NamedTuple):
    """Holds atoms that dominate the composition, the P-mass at infinite loss that they do not list, and atoms
    that are dominated by the composition (None if there are none)."""

    upper: Atoms
    infinite: float
    lower: Atoms | None


def joint(
    above: Sequence[tuple[DominatingPair, int]],
    below: Sequence[tuple[DominatingPair, int]] | None,
    tail: float,
) -> Joint:
    """Return the pair of a composition, from pairs with their counts: `above` dominate its parts, `below` are
    dominated by them. `tail` is the P-mass that may be cut off.

    Guarantee: `upper` with `infinite` dominates every mechanism that is composed of mechanisms dominated by
               `above`; `lower` is what post-processing leaves of the composition of `below`.
    Proof:     docs/proofs/pld.md, "Two discretisations"; products of dominating pairs dominate.
    """
    mesh = _mesh(above, tail)
    high = _composed([(_upper(pair, mesh, tail / n), n) for pair, n in above], tail)
    upper = Atoms(
        mesh * np.arange(high.start, high.start + len(high.p), dtype=np.float64),
        high.p,
        None,
        high.error + 8 * U,
    )
    if below is None:
        return Joint(upper, high.infinite, None)
    low = _composed([(_lower(pair, mesh, tail / n), n) for pair, n in below], tail)
    assert low.q is not None
    kept = (low.p > 0) & (low.q > 0)
    if not kept.any():
        # the losses are so large that no float holds a Q-mass: there is nothing to build a test from
        return Joint(upper, high.infinite, None)
    loss = np.log(low.p[kept]) - np.log(low.q[kept])
    order = np.argsort(loss, kind="stable")
    loss_error = 2 * low.error + 8 * U * (1 + float(np.abs(loss).max(initial=0.0)))
    return Joint(
        upper, high.infinite, Atoms(loss[order], low.p[kept][order], None, low.error + 8 * U, loss_error)
    )


def _mesh(parts: Sequence[tuple[DominatingPair, int]], tail: float) -> float:
    """Return a mesh with which the likely losses of the composition span about `_POINTS` lattice points: all
    losses, or 30 standard deviations and four times the widest range of a part, if that is less."""
    nodes = [(pair.nodes(tail / n), n) for pair, n in parts]
    _, _, variance = Cumulants(nodes)(0.0)
    full_range = math.fsum(n * float(node.loss[-1] - node.loss[0]) for node, n in nodes)
    widest = max(float(node.loss[-1] - node.loss[0]) for node, _ in nodes)
    likely_range = min(full_range, 30 * math.sqrt(variance) + 4 * widest)
    return planning.short_mantissa(max(likely_range, 1e-9) / _POINTS)


def _joint_knots(pair: DominatingPair, mesh: float, tail: float) -> Array:
    """Return the indices of all lattice points around the losses of a pair, as floats."""
    loss = pair.nodes(tail).loss
    return np.arange(math.floor(loss[0] / mesh) - 1, math.ceil(loss[-1] / mesh) + 2, dtype=np.float64)


def _upper(pair: DominatingPair, mesh: float, tail: float) -> _LatticePair:
    """Return masses on the lattice that dominate the pair."""
    knots = _joint_knots(pair, mesh, tail)
    dominating = basic_pairs.upper(pair, mesh * knots)
    return _LatticePair(int(knots[0]), dominating.mass, None, dominating.infinite, 0.0)


def _lower(pair: DominatingPair, mesh: float, tail: float) -> _LatticePair:
    """Return masses on the lattice that the pair dominates; the Q-masses are rounded up."""
    knots = _joint_knots(pair, mesh, tail)
    merged = basic_pairs.lower(pair, mesh * knots)
    q = np.maximum(merged.p - merged.gain, 0.0) * np.exp(-mesh * knots) * (1 + 8 * U)
    return _LatticePair(int(knots[0]), merged.p, q, 0.0, 0.0)


def _times(a: _LatticePair, b: _LatticePair, cut: float) -> _LatticePair:
    """Return the convolution of two pairs, without tails of P-mass `cut`.

    For an upper bound (no Q-masses) the losses of the upper tail become infinite, and those of the lower tail
    are raised to the first that is kept; the atoms then lack the Q-mass that the raised losses had, which
    `basic_pairs.missing_q_mass` restores before they are sampled. For a lower bound both tails are left out.
    """
    p = np.convolve(a.p, b.p)
    q = None if a.q is None or b.q is None else np.convolve(a.q, b.q)
    error = a.error + b.error + 4 * U * (min(len(a.p), len(b.p)) + 8)
    first = min(int(np.searchsorted(np.cumsum(p), cut)), len(p) - 1)
    last = max(len(p) - int(np.searchsorted(np.cumsum(p[::-1]), cut)), first + 1)
    infinite = a.infinite + b.infinite
    kept = p[first:last].copy()
    if q is None:
        infinite += float(p[last:].sum()) * (1 + 1e-9)
        kept[0] += p[:first].sum()
    return _LatticePair(a.start + b.start + first, kept, q if q is None else q[first:last], infinite, error)


def _composed(parts: Sequence[tuple[_LatticePair, int]], tail: float) -> _LatticePair:
    """Return the pair of a composition of pairs with their counts; its tails are cut off as in `_times`, less
    than `tail` in all."""
    cut = tail / (4 * sum(n for _, n in parts))
    powers = [_power(pair, n, lambda a, b: _times(a, b, cut)) for pair, n in parts]
    total = powers[0]
    for other in powers[1:]:
        total = _times(total, other, cut)
    return total


def _power(
    pair: _LatticePair, n: int, convolve: Callable[[_LatticePair, _LatticePair], _LatticePair]
) -> _LatticePair:
    """Return the n-th convolution power of a pair by repeated squaring, where `convolve` convolves two."""
    result: _LatticePair | None = None
    while True:
        if n & 1:
            result = pair if result is None else convolve(result, pair)
        n >>= 1
        if n == 0:
            assert result is not None
            return result
        pair = convolve(pair, pair)
