"""Computes the distribution of a sum of many independent privacy losses on a lattice, by Fourier transform,
with a bound on every rounding error. (The mass that wraps around the cyclic window is bounded by `engine`.)

Every line that adds to a name with `error` in it, to `rounding` or to `dropped` is part of the proof and must
stay; which coefficients are computed, and in which precision, changes speed and tightness only.

Each mass is first tilted, that is multiplied by exp(theta * loss), and normalised, so that the losses that
matter for a tiny delta are the likely ones and double precision resolves them (delta = 1e-15 is as easy as
1e-5). The transform is that of the distribution minus a point mass at its mode, so that no digits are lost
when a step reveals almost nothing.

Symbols: u is the unit roundoff of the floating-point type in use (U for doubles), phi the Fourier transform
of one step's tilted distribution, z = phi - 1, and n the number of times that a step occurs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import fft

from ..pairs.arrays import Array, Index, U

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
    """Holds masses under both distributions of a pair, for lower bounds on delta (`engine.tests`): `mass`
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


class _Spectrum:
    """Accumulates the transform of a convolution of distributions, as logarithm and angle, at the frequencies
    `active` where it is not negligible (None: all).

    `log_error` bounds the error of each coefficient, as the log of a factor; `dropped` bounds the sum of the
    absolute values of all coefficients that were dropped.
    """

    def __init__(self, size: int, precise: bool) -> None:
        self.size, self.precise, self.unit = size, precise, unit(precise)
        self.active: Index | None = None
        dtype = np.longdouble if precise else np.float64
        frequencies = size // 2 + 1
        self.log: npt.NDArray[Any] = np.zeros(frequencies, dtype)
        self.angle: npt.NDArray[Any] = np.zeros(frequencies, dtype)
        self.log_error: Array = np.zeros(frequencies)
        self.dropped = 0.0

    def multiply(self, t: TiltedMasses, times: int) -> None:
        """Convolve with a distribution `times` times, and drop the coefficients that become negligible."""
        z, error = _transform_minus_one(t, self.size, self.active, self.unit)
        log, angle, log_error = log_one_plus(z, error, self.unit)
        self.log, self.angle = self.log + times * log, self.angle + times * angle
        rounding = (4 * self.unit * times) * (np.abs(log) + np.abs(angle)).astype(np.float64)
        self.log_error = self.log_error + times * log_error + rounding
        keep = self.log + self.log_error > _NEGLIGIBLE
        # twice: only one of each pair of frequencies k and -k is held
        self.dropped += 2 * float(np.exp((self.log + self.log_error)[~keep]).sum())
        self.active = np.flatnonzero(keep) if self.active is None else self.active[keep]
        self.log, self.angle, self.log_error = self.log[keep], self.angle[keep], self.log_error[keep]

    def invert(self) -> tuple[Array, float]:
        """Return the distribution, counted from the sum of all modes, and a bound on the error of each
        entry."""
        coefficient, atom = _without_atom(self.log, self.angle, len(self.log) == self.size // 2 + 1)
        absolute, magnitude = np.abs(coefficient).astype(np.float64), np.exp(self.log).astype(np.float64)
        relative_error = np.expm1(np.minimum(self.log_error, 600.0))
        error = 2 * float(magnitude @ relative_error + 8 * self.unit * absolute.sum()) + self.dropped
        spectrum = np.zeros(self.size // 2 + 1, dtype=coefficient.dtype)
        spectrum[self.active] = coefficient
        mass = fft.irfft(spectrum, self.size).astype(np.float64)
        mass[0] += atom
        rounding = _ROUNDINGS_PER_LEVEL * self.unit * (math.log2(self.size) + 2) * 2 * float(absolute.sum())
        return mass, (error + rounding) / self.size * (1 + 1e-9) + 1e-300


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
    """Accumulates phi^n and the log of (phi - g)^n / phi^n at every frequency, with bounds on their errors.

    phi is the transform of a distribution under P, g that of its gain (`LatticePairMasses`), so that phi - g
    is that of e^loss Q; powers are convolutions. Where |g| is small against |phi| in every pair
    (`has_small_gain`) the factor phi^n and its error (`log_error`) are common to phi^n and (phi - g)^n, and
    `log_ratio_error` is the error of their ratio; elsewhere `rest_error` is that of (phi - g)^n by itself.
    """

    def __init__(self, size: int, precise: bool) -> None:
        self.size, self.unit = size, unit(precise)
        frequencies, dtype = size // 2 + 1, np.longdouble if precise else np.float64
        self.log: npt.NDArray[Any] = np.zeros(frequencies, dtype)
        self.angle: npt.NDArray[Any] = np.zeros(frequencies, dtype)
        self.log_ratio: npt.NDArray[Any] = np.zeros(frequencies, np.clongdouble if precise else np.complex128)
        self.log_error, self.log_ratio_error, self.rest_error = (np.zeros(frequencies) for _ in range(3))
        # frequencies where |g| is below |phi| / 2 in every pair
        self.has_small_gain = np.ones(frequencies, bool)

    def multiply(self, t: TiltedMasses, gain: npt.NDArray[Any], relative_error: float, n: int) -> None:
        """Convolve with a pair n times. `gain` is tilted and normalised as the masses of `t` and stands at
        the same indices; `relative_error` bounds its relative error."""
        u = self.unit
        row = np.zeros(self.size, dtype=gain.dtype)
        np.add.at(row, np.mod(t.indices - t.indices[t.mode], self.size), gain)
        g, (z, error) = fft.rfft(row), _transform_minus_one(t, self.size, None, u)
        error_g = (_ROUNDINGS_PER_LEVEL * u * (math.log2(self.size) + 2) + relative_error) * float(
            np.abs(gain).sum()
        ) + 1e-300
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

    def invert(self) -> tuple[Array, float, Array, float]:
        """Return the distribution under P with a bound on the error of its entries, and then the difference
        P - e^loss Q with a bound on that of its entries."""
        u, p = self.unit, np.exp(self.log) * np.exp(1j * self.angle)
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
        spectrum, atom = _without_atom(self.log, self.angle, True)
        mass, error = self._inverse_transform(spectrum, error_p + 8 * u * np.abs(spectrum).astype(np.float64))
        mass[0] += atom
        return mass, error, *self._inverse_transform(gain, gain_errors)

    def _inverse_transform(self, spectrum: npt.NDArray[Any], errors: Array) -> tuple[Array, float]:
        """Return the inverse transform, and a bound on the error of each entry."""
        mass = fft.irfft(spectrum, self.size).astype(np.float64)
        rounding = (
            _ROUNDINGS_PER_LEVEL * self.unit * (math.log2(self.size) + 2) * 2 * float(np.abs(spectrum).sum())
        )
        return mass, (2 * float(errors.sum()) + rounding) / self.size * (1 + 1e-9) + 1e-300


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
