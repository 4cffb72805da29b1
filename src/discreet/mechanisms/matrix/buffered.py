"""Buffered linear Toeplitz strategies (BLT): correlated noise for streams of any length in constant memory.

A BLT is a lower-triangular Toeplitz matrix whose coefficients are a sum of a few decaying powers, c_0 = 1 and
c_t = sum of omega_j theta_j^(t-1). Multiplying a stream by it takes one buffer for each power, and so does
its inverse, which is a BLT again. With parameters that are chosen for the number of steps, three or four
buffers come close to the square root of the prefix sums, which needs as many buffers as there are steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from scipy import optimize

from ... import _require
from ..._errors import InvalidInput
from ..._registry import described
from .triangular import Matrix, Triangular

Floats = npt.NDArray[np.float64]

# Six buffers are within rounding of the optimum for 2**30 steps (measured); more only cost memory.
MAX_BUFFERS = 8
# No power decays slower than this: beyond it, differences of powers are rounding errors.
_SLOWEST = 1e-12


@described("matrix.Buffered")
@dataclass(frozen=True, slots=True, kw_only=True)
class Buffered(Triangular):
    """A buffered linear Toeplitz strategy: the generating function of C is the product over j of
    (1 - inverse_decays[j] x) / (1 - decays[j] x).

    Dvijotham, McMahan, Pillutla, Steinke & Thakurta 2024, arXiv:2404.16706; in terms of both
    sets of decays McMahan, Xu & Zhang 2024, arXiv:2408.08868. Decays interlace, 1 > decays[0] >
    inverse_decays[0] > decays[1] > ... >= 0, so that all coefficients of C are positive and fall. The
    price of several participations rests on that.
    """

    decays: tuple[float, ...]
    inverse_decays: tuple[float, ...]

    def __post_init__(self) -> None:
        for name in ("decays", "inverse_decays"):
            values = _require.listed(**{name: getattr(self, name)})
            for value in values:
                _require.finite(decay=value)
            object.__setattr__(self, name, tuple(float(value) for value in values))
        mixed = [d for pair in zip(self.decays, self.inverse_decays, strict=False) for d in pair]
        interlaced = all(a > b for a, b in pairwise(mixed))
        if len(self.decays) != len(self.inverse_decays) or not self.decays or not interlaced:
            raise InvalidInput(
                "a buffered strategy has as many decays as inverse decays, which interlace: decays[0] > "
                "inverse_decays[0] > decays[1] > ... Nothing was computed. matrix.blt(steps) chooses them."
            )
        if mixed[0] > 1 - _SLOWEST / 2 or len(self.decays) > MAX_BUFFERS:
            raise _require.fail("decays", self.decays, f"up to {MAX_BUFFERS} numbers from 0 to below 1")
        if mixed[-1] < 0:
            raise _require.fail("inverse_decays", self.inverse_decays, "numbers from 0 to below 1")

    @property
    def buffers(self) -> int:
        return len(self.decays)

    @property
    def outputs(self) -> tuple[float, ...]:
        """The weight omega_j of each buffer in C: the residues of its generating function."""
        return tuple(residues(np.array(self.decays), np.array(self.inverse_decays)).tolist())

    @property
    def bands(self) -> int:
        """Without end: a stream needs the buffers, and not its past."""
        return 1 << 62

    def coefficients(self, steps: int) -> Floats:
        """Return the first `steps` coefficients of C."""
        _require.integer(steps=steps, at_least=1)
        powers = np.array(self.decays)[:, None] ** np.arange(max(0, steps - 1))[None, :]
        return np.concatenate([[1.0], np.array(self.outputs) @ powers])

    def row(self, step: int) -> Matrix:
        """Return the entries of a row from the diagonal backwards."""
        return self.coefficients(step + 1)

    def diagonals(self, steps: int) -> Matrix:
        return self.coefficients(steps)


def residues(decays: Floats, inverse_decays: Floats) -> Floats:
    """Return the omega_j of 1 + sum of omega_j x / (1 - decays_j x) = product of (1 - inverse_decays_j x) /
    (1 - decays_j x)."""
    over = decays[:, None] - inverse_decays[None, :]
    under = decays[:, None] - decays[None, :] + np.eye(len(decays))
    weights: Floats = np.prod(over, axis=1) / np.prod(under, axis=1)
    return weights


def sum_of_squares(amplitudes: Floats, rates: Floats, steps: int, *, weighted: bool = False) -> float:
    """Sum over t < steps of (sum of amplitudes_j exp(-rates_j t))², each term times (steps - t) / steps where
    `weighted`, in closed form.

    Proof: the geometric sum of exp(-r t) over t < n is expm1(-r n) / expm1(-r), and that of (n - t) exp(-r t)
           is (n - q g) / (1 - q) with q = exp(-r), g the former; where r n is small, both by their series.
    """
    rate = rates[:, None] + rates[None, :]
    with np.errstate(divide="ignore", invalid="ignore"):
        plain = np.expm1(-rate * steps) / np.expm1(-rate)
        share = (steps - np.exp(-rate) * plain) / -np.expm1(-rate) / steps
    small = rate * steps < 1e-4
    plain = np.where(small, steps - rate * steps * (steps - 1) / 2, plain)
    share = np.where(small, (steps + 1) / 2 - rate * (steps - 1) * (steps + 1) / 6, share)
    return float(amplitudes @ (share if weighted else plain) @ amplitudes)


def factors(strategy: Buffered, steps: int) -> tuple[float, float]:
    """Return the largest and the root mean squared deviation of prefix sums under a strategy, in units of the
    noise that one participation of size 1 needs by itself, in closed form; the sensitivity of C is included.

    Row t of A C⁻¹ has the entries b_0, ..., b_t, and the generating function of b is 1 / ((1 - x) c(x)), so
    that b_t = b_inf + sum of a_j inverse_decays_j^t.
    """
    return _factors(np.array(strategy.decays), np.array(strategy.inverse_decays), steps)


def _factors(decays: Floats, inverse: Floats, steps: int) -> tuple[float, float]:
    """Return the largest and the root mean squared error of prefix sums, as `factors` does."""
    with np.errstate(divide="ignore"):
        rates, inverse_rates = -np.log(decays), -np.log(inverse)
    omega = residues(decays, inverse)
    column = 1.0
    # A decay of 0 has an infinite rate, and infinity times 0 is not a number; e^-800 is 0.
    if steps > 1:
        column += sum_of_squares(omega, np.minimum(rates, 800.0), steps - 1)
    # Partial fractions of product (1 - decays x) / ((1 - x) product (1 - inverse x)) in 1/(1 - r x).
    poles = np.concatenate([[1.0], inverse])
    zero = np.zeros(1)
    slopes = np.concatenate([zero, np.minimum(inverse_rates, 800.0)])
    under = poles[:, None] - poles[None, :] + np.eye(len(poles))
    amplitudes = np.prod(poles[:, None] - decays[None, :], axis=1) / np.prod(under, axis=1)
    largest = sum_of_squares(amplitudes, slopes, steps)
    mean = sum_of_squares(amplitudes, slopes, steps, weighted=True)
    return math.sqrt(column * largest), math.sqrt(column * mean)


@lru_cache(maxsize=64)
def blt(steps: int, buffers: int = 4, *, minimize: str = "max") -> Buffered:
    """Return the buffered linear Toeplitz strategy with the least error of prefix sums over `steps` steps,
    one participation: `minimize` its largest ("max") or its root mean square ("rms").

    Quasi-Newton on both sets of decays, from decays spaced evenly in the logarithm (arXiv:2408.08868
    optimizes the same); the start is fixed, so that the same steps give the same strategy.
    """
    _require.integer(steps=steps, at_least=1)
    _require.integer(buffers=buffers, at_least=1)
    _require.one_of(("max", "rms"), minimize=minimize)
    if buffers > MAX_BUFFERS:
        raise _require.fail("buffers", buffers, f"at most {MAX_BUFFERS}")
    slowest = max(_SLOWEST, 1e-3 / steps)
    which = 0 if minimize == "max" else 1

    def loss(parameters: Floats) -> float:
        decays, inverse = _decays(parameters)
        with np.errstate(all="ignore"):
            value = _factors(decays, inverse, steps)[which] if decays[0] < 1 - slowest else math.inf
        return math.log(value) if math.isfinite(value) and value > 0 else 1e6

    best = None
    for spread in (1.2, 0.9):
        start = np.full(2 * buffers, spread * math.log(max(steps, 3)) / (2 * buffers))
        start[-1] = 0.3
        solved = optimize.minimize(loss, start, method="BFGS", options={"gtol": 1e-7, "maxiter": 500})
        if best is None or solved.fun < best.fun:
            best = solved
    assert best is not None
    decays, inverse = _decays(np.asarray(best.x))
    return Buffered(decays=tuple(decays.tolist()), inverse_decays=tuple(inverse.tolist()))


def _decays(parameters: Floats) -> tuple[Floats, Floats]:
    """Return decays from free parameters: 1 - decay grows along the interlaced order, by factors that exceed
    one.

    The slowest decay comes first, and the last is above zero: 1 - decay is exp(-s), s the sum of the softplus
    of the parameters from its own to the last.
    """
    gaps = np.logaddexp(0.0, parameters[::-1])
    distances = np.exp(-np.cumsum(gaps))[::-1]
    return 1 - distances[0::2], 1 - distances[1::2]
