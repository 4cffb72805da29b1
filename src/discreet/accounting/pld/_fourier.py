"""The law of a sum of many independent losses on a lattice, by Fourier transform, with a bound on every error.

Each mass is first re-weighted by exp(theta * loss) and normalised, so that the losses that matter for a tiny delta are the
likely ones and double precision resolves them (delta = 1e-15 is as easy as 1e-5). The transform is that of the law minus
a point mass at its mode: nothing is lost when a step reveals almost nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import fft

from ._normal import Array, Index, U

_NEGLIGIBLE = -80.0  # log of a Fourier coefficient that is bounded instead of computed
_PER_LEVEL = 8 * U  # a butterfly is a complex product and a sum; the bound is componentwise against the 1-norm


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
    mass: Array
    mode: int
    log_total: float
    log_error: float
    residual: float  # mass away from the mode
    input_error: float


def tilt(part: Part, rate: float) -> Tilted:
    """Re-weight by exp(rate * index), normalise, and bound what rounding did."""
    keep = part.mass > 0
    index, mass = part.place[keep], part.mass[keep]
    exponent = rate * index
    with np.errstate(divide="ignore"):
        shift = float(np.max(np.log(mass) + exponent))
    if np.max(np.abs(exponent)) < 600:
        weight = mass * np.exp(exponent)
        shift = 0.0
    else:
        weight = np.exp(np.log(mass) + exponent - shift)
    total = float(weight.sum())
    weight = weight / total
    relative = U * (16 + 4 * np.abs(exponent) + 2 * abs(shift) + (0 if shift == 0 else 800))
    mode = int(np.argmax(weight))
    spread = float(weight @ relative) + 2 * U * math.log2(len(weight) + 1)
    rest = weight.copy()
    rest[mode] = 0.0
    residual = float(rest.sum())
    input_error = 2 * (float(rest @ relative) + residual * spread) + 1e-290
    return Tilted(
        index, weight, mode, math.log(total) + shift, spread + 2 * U * (1 + abs(shift)), residual, input_error
    )


def _symbol(t: Tilted, size: int, active: Index | None) -> tuple[npt.NDArray[np.complex128], float]:
    """Fourier transform of the tilted law minus a unit mass at its mode, and a bound on each entry's error."""
    position = np.mod(t.place - t.place[t.mode], size)
    mass = t.mass.copy()
    mass[t.mode] = 0.0
    mass[t.mode] = -math.fsum(mass) if len(mass) < 4096 else -float(mass.sum())
    one_norm = 2 * t.residual
    if active is None or active.size * len(mass) > 4 * size:
        row = np.bincount(position, weights=mass, minlength=size)
        z = fft.rfft(row)
        z = z if active is None else z[active]
        return z, t.input_error + _PER_LEVEL * (math.log2(size) + 2) * one_norm
    angle = np.mod(np.multiply.outer(active, position), size) * (-2 * math.pi / size)
    z = np.cos(angle) @ mass + 1j * (np.sin(angle) @ mass)
    return z, t.input_error + U * (2 * len(mass) + 32) * one_norm


def _log_symbol(z: npt.NDArray[np.complex128], error: float) -> tuple[Array, Array, Array]:
    """log|1+z|, arg(1+z), and a bound on the log of (|1+z| + error) / |1+z|."""
    a, b = z.real, z.imag
    square = 2 * a + (a * a + b * b)
    size = np.maximum(np.sqrt(np.maximum(1 + square, 0.0)), 1e-100)
    log = np.where(size > 0.5, 0.5 * np.log1p(np.maximum(square, -0.9)), np.log(size))
    slack = np.log1p((error + 16 * U * (np.abs(a) + np.abs(b)) + 4 * U) / size)
    return log, np.arctan2(b, 1 + a), slack


def compose(parts: Sequence[Part], theta: float, mesh: float, size: int, start: int) -> Sum:
    """The tilted law of the sum of all parts on `size` lattice points from `start` on, cyclic."""
    half = size // 2 + 1
    active: Index | None = None
    log, angle, slack = np.zeros(half), np.zeros(half), np.zeros(half)
    log_scale: list[float] = []
    log_error = 0.0
    origin = 0
    dropped = 0.0
    for part in parts:
        t = tilt(part, theta * mesh)
        n = part.times
        origin += n * int(t.place[t.mode])
        log_scale.append(n * t.log_total)
        log_error += n * t.log_error + 2 * U * abs(n * t.log_total)
        one_log, one_angle, one_slack = _log_symbol(*_symbol(t, size, active))
        log, angle = log + n * one_log, angle + n * one_angle
        slack = slack + n * one_slack + 4 * U * n * (np.abs(one_log) + np.abs(one_angle))
        keep = log + slack > _NEGLIGIBLE
        dropped += 2 * float(np.exp((log + slack)[~keep]).sum())
        active = np.flatnonzero(keep) if active is None else active[keep]
        log, angle, slack = log[keep], angle[keep], slack[keep]
    assert active is not None
    coefficient = np.exp(log) * np.exp(1j * angle)
    absolute = np.abs(coefficient)
    wrong = 2 * float(absolute @ (np.expm1(np.minimum(slack, 600.0)) + 8 * U)) + dropped
    spectrum = np.zeros(half, dtype=np.complex128)
    spectrum[active] = coefficient
    law = np.roll(fft.irfft(spectrum, size), (origin - start) % size)
    rounding = _PER_LEVEL * (math.log2(size) + 2) * 2 * float(absolute.sum())
    return Sum(start, law, (wrong + rounding) / size, math.fsum(log_scale), log_error)
