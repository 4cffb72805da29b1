"""Defines buffered linear Toeplitz strategies (BLT): correlated noise for streams of any length in constant
memory.

A BLT is a lower-triangular Toeplitz matrix C with entries C[t, s] = c_(t-s), whose coefficients are sums of a
few decaying powers: c_0 = 1 and c_t = sum over j of omega_j theta_j^(t-1). The theta_j are `decays`, the
omega_j `outputs`. Multiplying a stream by C takes one buffer for each power, and so does multiplying by its
inverse, which is a BLT again; the decays of the inverse are `inverse_decays`. With parameters that are chosen
for the number of steps, three or four buffers come close to the square root of the prefix sums, which needs
as many buffers as there are steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from ... import _require
from ..._errors import InvalidInput
from ..._registry import described
from .triangular import Matrix, Triangular

Floats = NDArray[np.float64]

# Six buffers are within rounding of the optimum for 2**30 steps (measured); more only cost memory.
MAX_BUFFERS = 8
# The least 1 - decay: closer to 1, differences between powers of different decays are rounding errors.
_SLOWEST = 1e-12
# The most steps of `blt`: for 2**52 the best decay is 1 in floats, for 2**48 it is not (measured).
_MAX_STEPS = 1 << 48


@described("matrix.Buffered")
@dataclass(frozen=True, slots=True, kw_only=True)
class Buffered(Triangular):
    """A buffered linear Toeplitz strategy: the generating function of C, which is c(x) = sum of c_t x^t, is
    the product over j of (1 - inverse_decays[j] x) / (1 - decays[j] x).

    Dvijotham, McMahan, Pillutla, Steinke & Thakurta 2024, arXiv:2404.16706; in terms of both
    sets of decays McMahan, Xu & Zhang 2024, arXiv:2408.08868. Decays interlace, 1 > decays[0] >
    inverse_decays[0] > decays[1] > ... >= 0, so that all coefficients of C are positive and fall. That makes
    `triangular.sensitivity` exact for units that take part several times.
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
        # Half of _SLOWEST, so that rounding 1 - decay refuses no result of `blt`.
        if mixed[0] > 1 - _SLOWEST / 2 or len(self.decays) > MAX_BUFFERS:
            raise _require.fail("decays", self.decays, f"up to {MAX_BUFFERS} numbers from 0 to below 1")
        if mixed[-1] < 0:
            raise _require.fail("inverse_decays", self.inverse_decays, "numbers from 0 to below 1")

    @property
    def buffers(self) -> int:
        return len(self.decays)

    @property
    def outputs(self) -> tuple[float, ...]:
        """The weight omega_j of each buffer in C: the coefficients of the partial fractions of c(x)."""
        return tuple(residues(np.array(self.decays), np.array(self.inverse_decays)).tolist())

    @property
    def bands(self) -> int:
        """The number of bands is unlimited, for which 2^62 stands. A stream needs the buffers only, not the
        noise of past steps."""
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
    numerators = decays[:, None] - inverse_decays[None, :]
    # The diagonal would be a factor of zero; the identity makes it 1.
    denominators = decays[:, None] - decays[None, :] + np.eye(len(decays))
    weights: Floats = np.prod(numerators, axis=1) / np.prod(denominators, axis=1)
    return weights


def sum_of_squares(amplitudes: Floats, rates: Floats, steps: int, *, weighted: bool = False) -> float:
    """Return the sum over t < steps of (sum over j of amplitudes_j exp(-rates_j t))² in closed form; with
    `weighted`, term t is multiplied by (steps - t) / steps.

    Proof: the square is a sum over pairs j, k with r = rates_j + rates_k. With n = steps and q = exp(-r), the
           sum of exp(-r t) over t < n is g = expm1(-r n) / expm1(-r), and the sum of (n - t) exp(-r t) is
           (n - q g) / (1 - q). Where r n is small, both quotients lose digits, and their series to first
           order in r stand for them.
    """
    rate = rates[:, None] + rates[None, :]
    with np.errstate(divide="ignore", invalid="ignore"):
        plain = np.expm1(-rate * steps) / np.expm1(-rate)
        weighted_sum = (steps - np.exp(-rate) * plain) / -np.expm1(-rate) / steps
    small = rate * steps < 1e-4
    plain = np.where(small, steps - rate * steps * (steps - 1) / 2, plain)
    weighted_sum = np.where(small, (steps + 1) / 2 - rate * (steps - 1) * (steps + 1) / 6, weighted_sum)
    return float(amplitudes @ (weighted_sum if weighted else plain) @ amplitudes)


def factors(strategy: Buffered, steps: int) -> tuple[float, float]:
    """Return the largest and the root mean squared standard deviation of the first `steps` prefix sums under
    a strategy, for one participation of size 1; the unit is the noise of a single sum of sensitivity 1.

    With A the matrix of prefix sums, row t of A C⁻¹ has the entries b_0, ..., b_t, and the generating
    function of b is 1 / ((1 - x) c(x)), so that b_t = a_0 + sum over j of a_j inverse_decays_j^t for some
    amplitudes a. The variance of prefix sum t is the sum of b_0², ..., b_t² times the squared length of C's
    first column; in the mean over all t < steps, b_i² has weight (steps - i) / steps.
    """
    return _factors(np.array(strategy.decays), np.array(strategy.inverse_decays), steps)


def _factors(decays: Floats, inverse: Floats, steps: int) -> tuple[float, float]:
    """Return what `factors` does, from the decays of C and of its inverse."""
    with np.errstate(divide="ignore"):
        rates, inverse_rates = -np.log(decays), -np.log(inverse)
    omega = residues(decays, inverse)
    column = 1.0
    # A decay of 0 has an infinite rate, and infinity times 0 is not a number; in doubles e^-800 is 0 too.
    if steps > 1:
        column += sum_of_squares(omega, np.minimum(rates, 800.0), steps - 1)
    # Partial fractions of 1 / ((1 - x) c(x)): the amplitude of 1 / (1 - pole x) for each pole.
    poles = np.concatenate([[1.0], inverse])
    pole_rates = np.concatenate([np.zeros(1), np.minimum(inverse_rates, 800.0)])
    denominators = poles[:, None] - poles[None, :] + np.eye(len(poles))
    amplitudes = np.prod(poles[:, None] - decays[None, :], axis=1) / np.prod(denominators, axis=1)
    largest = sum_of_squares(amplitudes, pole_rates, steps)
    mean = sum_of_squares(amplitudes, pole_rates, steps, weighted=True)
    return math.sqrt(column * largest), math.sqrt(column * mean)


@lru_cache(maxsize=64)
def blt(steps: int, buffers: int = 4, *, minimize: str = "max") -> Buffered:
    """Return the buffered linear Toeplitz strategy with the least error of prefix sums over `steps` steps,
    where every unit takes part once. `minimize` says which error: the largest ("max") or the root mean square
    ("rms").

    BFGS on both sets of decays, from decays whose distances from 1 are spaced evenly in the logarithm
    (arXiv:2408.08868 minimizes the same error). The starts are fixed, so that the same arguments give the
    same strategy.
    """
    _require.integer(steps=steps, at_least=1)
    _require.integer(buffers=buffers, at_least=1)
    _require.one_of(("max", "rms"), minimize=minimize)
    if buffers > MAX_BUFFERS:
        raise _require.fail("buffers", buffers, f"at most {MAX_BUFFERS}")
    if steps > _MAX_STEPS:
        raise _require.fail("steps", steps, "at most 2**48, so that the decays are below 1 in floats")
    # At this least 1 - decay a power falls by 0.1% over all steps: slower ones are nearly constant.
    slowest = max(_SLOWEST, 1e-3 / steps)
    which = 0 if minimize == "max" else 1

    def loss(parameters: Floats) -> float:
        decays, inverse = _decays(parameters)
        with np.errstate(all="ignore"):
            value = _factors(decays, inverse, steps)[which] if decays[0] < 1 - slowest else math.inf
        return math.log(value) if math.isfinite(value) and value > 0 else 1e6

    best = None
    # Two starts against poor local minima. `spread` 1 would put the slowest decay near 1 - 1 / steps.
    for spread in (1.2, 0.9):
        start = np.full(2 * buffers, spread * math.log(max(steps, 3)) / (2 * buffers))
        # The last inverse decay starts at about 0.57; chosen by hand, not tuned.
        start[-1] = 0.3
        solved = optimize.minimize(loss, start, method="BFGS", options={"gtol": 1e-7, "maxiter": 500})
        if best is None or solved.fun < best.fun:
            best = solved
    assert best is not None
    decays, inverse = _decays(np.asarray(best.x))
    return Buffered(decays=tuple(decays.tolist()), inverse_decays=tuple(inverse.tolist()))


def _decays(parameters: Floats) -> tuple[Floats, Floats]:
    """Return decays and inverse decays that interlace, from any 2 x buffers real parameters.

    In the order decays[0], inverse_decays[0], decays[1], ... the i-th is 1 - exp(-s_i), where s_i is the sum
    of softplus(parameter) over the parameters from i to the last. So the slowest decay comes first, and the
    last number is above zero.
    """
    gaps = np.logaddexp(0.0, parameters[::-1])
    distances = np.exp(-np.cumsum(gaps))[::-1]
    return 1 - distances[0::2], 1 - distances[1::2]
