"""The law of a sum of many independent losses on a lattice, by Fourier transform, with a bound on every error.

Each mass is first re-weighted by exp(theta * loss) and normalised, so that the losses that matter for a tiny delta are the
likely ones and double precision resolves them (delta = 1e-15 is as easy as 1e-5). The transform is that of the law minus
a point mass at its mode: nothing is lost when a step reveals almost nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import fft

from ._normal import Array, Index, U

_NEGLIGIBLE = -80.0  # log of a Fourier coefficient that is bounded instead of computed
_PER_LEVEL = 8  # roundings: a butterfly is a complex product and a sum; the bound is componentwise against the 1-norm


class Part(NamedTuple):
    """Masses at integer multiples of the mesh, convolved `times` times with itself."""

    place: Index
    mass: Array
    times: int


class Sum(NamedTuple):
    """The tilted law of the sum at index start, start+1, ..., cyclic; each entry is within `error` of the truth.

    The untilted mass is exp(log_scale - theta * loss) times it; log_scale is within `log_error`.
    """

    start: int
    law: Array
    error: float
    log_scale: float
    log_error: float


class Tilted(NamedTuple):
    place: Index
    mass: npt.NDArray[np.floating[Any]]
    mode: int
    log_total: float
    log_error: float
    residual: float  # mass away from the mode
    input_error: float


def _unit(precise: bool) -> float:
    """Half the distance from 1 to the next number: of doubles, or of the widest type that numpy has here."""
    return float(np.finfo(np.longdouble).eps) / 2 if precise else U


def tilt(part: Part, rate: float, precise: bool = False) -> Tilted:
    """Re-weight by exp(rate * place), normalise, and bound what rounding did."""
    unit = _unit(precise)
    keep = part.mass > 0
    place, mass = part.place[keep], part.mass[keep].astype(np.longdouble if precise else np.float64)
    exponent = rate * place.astype(mass.dtype)
    if np.max(np.abs(exponent)) < 600:
        weight = mass * np.exp(exponent)
        shift = 0.0
    else:
        shift = float(np.max(np.log(mass) + exponent))
        weight = np.exp(np.log(mass) + exponent - shift)
    total = weight.sum()
    weight = weight / total
    relative = unit * (16 + 4 * np.abs(exponent) + 2 * abs(shift) + (0 if shift == 0 else 800))
    mode = int(np.argmax(weight))
    spread = float(weight @ relative) + 2 * unit * math.log2(len(weight) + 1)
    rest = weight.copy()
    rest[mode] = 0.0
    residual = float(rest.sum())
    input_error = 2 * (float(rest @ relative) + residual * spread) + 1e-290
    log_error = spread + 2 * U * (1 + abs(shift) + abs(math.log(total)))
    return Tilted(place, weight, mode, math.log(total) + shift, log_error, residual, input_error)


def _symbol(t: Tilted, size: int, active: Index | None, unit: float) -> tuple[npt.NDArray[Any], float]:
    """Fourier transform of the tilted law minus a unit mass at its mode, and a bound on each entry's error."""
    position = np.mod(t.place - t.place[t.mode], size)
    mass = t.mass.copy()
    mass[t.mode] = 0.0
    mass[t.mode] = -mass.sum()
    one_norm = 2 * t.residual
    if active is None or active.size * len(mass) > 4 * size:
        row = np.zeros(size, dtype=mass.dtype)
        np.add.at(row, position, mass)
        z = fft.rfft(row)
        z = z if active is None else z[active]
        return z, t.input_error + _PER_LEVEL * unit * (math.log2(size) + 2) * one_norm
    turn = mass.dtype.type(-2) * np.arccos(mass.dtype.type(-1)) / size
    angle = np.mod(np.multiply.outer(active, position), size).astype(mass.dtype) * turn
    z = np.cos(angle) @ mass + 1j * (np.sin(angle) @ mass)
    return z, t.input_error + unit * (2 * len(mass) + 32) * one_norm


def _log_symbol(z: npt.NDArray[Any], error: float, unit: float) -> tuple[npt.NDArray[Any], npt.NDArray[Any], Array]:
    """log|1+z|, arg(1+z), and a bound on the log of (|1+z| + error) / |1+z|."""
    a, b = z.real, z.imag
    square = 2 * a + (a * a + b * b)
    size = np.maximum(np.sqrt(np.maximum(1 + square, 0.0)), 1e-100)
    log = np.where(size > 0.5, 0.5 * np.log1p(np.maximum(square, -0.9)), np.log(size))
    slack = np.log1p((error + 16 * unit * (np.abs(a) + np.abs(b)) + 4 * unit) / size)
    return log, np.arctan2(b, 1 + a), slack.astype(np.float64)


class _Spectrum:
    """The transform of a product of laws, kept in logarithms and only where it is not negligible."""

    def __init__(self, size: int, precise: bool) -> None:
        self.size, self.precise, self.unit = size, precise, _unit(precise)
        self.active: Index | None = None
        kind = np.longdouble if precise else np.float64
        half = size // 2 + 1
        self.log: npt.NDArray[Any] = np.zeros(half, kind)
        self.angle: npt.NDArray[Any] = np.zeros(half, kind)
        self.slack: Array = np.zeros(half)
        self.dropped = 0.0

    def multiply(self, t: Tilted, times: int) -> None:
        symbol, error = _symbol(t, self.size, self.active, self.unit)
        log, angle, slack = _log_symbol(symbol, error, self.unit)
        self.log, self.angle = self.log + times * log, self.angle + times * angle
        rounding = (4 * self.unit * times) * (np.abs(log) + np.abs(angle)).astype(np.float64)
        self.slack = self.slack + times * slack + rounding
        keep = self.log + self.slack > _NEGLIGIBLE
        self.dropped += 2 * float(np.exp((self.log + self.slack)[~keep]).sum())
        self.active = np.flatnonzero(keep) if self.active is None else self.active[keep]
        self.log, self.angle, self.slack = self.log[keep], self.angle[keep], self.slack[keep]

    def invert(self) -> tuple[Array, float]:
        """The law, and a bound on the error of each entry."""
        coefficient = np.exp(self.log) * np.exp(1j * self.angle)
        absolute = np.abs(coefficient).astype(np.float64)
        wrong = 2 * float(absolute @ (np.expm1(np.minimum(self.slack, 600.0)) + 8 * self.unit)) + self.dropped
        spectrum = np.zeros(self.size // 2 + 1, dtype=coefficient.dtype)
        spectrum[self.active] = coefficient
        law = fft.irfft(spectrum, self.size).astype(np.float64)
        rounding = _PER_LEVEL * self.unit * (math.log2(self.size) + 2) * 2 * float(absolute.sum())
        return law, (wrong + rounding) / self.size * (1 + 1e-9) + 1e-300


def compose(parts: Sequence[Part], theta: float, mesh: float, size: int, start: int, precise: bool = False) -> Sum:
    """The tilted law of the sum of all parts on `size` lattice points from `start` on, cyclic.

    `precise` computes in the widest floating-point type: slower, for answers that are tiny even after tilting.
    """
    spectrum = _Spectrum(size, precise)
    log_scale: list[float] = []
    log_error = 0.0
    origin = 0
    for part in parts:
        t = tilt(part, theta * mesh, precise)
        origin += part.times * int(t.place[t.mode])
        log_scale.append(part.times * t.log_total)
        log_error += part.times * t.log_error + 2 * U * abs(part.times * t.log_total)
        spectrum.multiply(t, part.times)
    law, error = spectrum.invert()
    return Sum(start, np.roll(law, (origin - start) % size), error, math.fsum(log_scale), log_error)
