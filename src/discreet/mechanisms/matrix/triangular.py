"""Lower-triangular strategies: noise that cancels over time, made row by row, as DP-FTRL and continual sums
need it.

Step t's noise is row t of C⁻¹ Z, with Z independent and C lower triangular: what is added in one step is
partly taken back in later ones, so that the *sum* so far has little noise. A strategy is C, given by its
diagonals (`Toeplitz`) or whole (`Dense`); its sensitivity is that of C under a pattern of participation: how
often one unit takes part, and how far apart.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from ... import _require
from ..._errors import InvalidInput
from ..._registry import described

Matrix = npt.NDArray[np.float64]

# What the largest entry of a strategy is at least: with a smaller one the squares of the sensitivity, or the
# noise of training in 32-bit floats, might underflow to zero.
_LEAST = 1e-9


class Triangular:
    """A lower-triangular strategy: a matrix C with a diagonal that is nowhere zero, so that noise comes step
    by step.

    `learning` calls it `Strategy`. Independent noise Z of deviation `sensitivity(C, ...)` makes C⁻¹ Z the
    noise of the steps.
    """

    __slots__ = ()

    def row(self, step: int) -> Matrix:
        """Return row `step` of C from the diagonal backwards: C[t, t], C[t, t-1], ..."""
        raise NotImplementedError

    @property
    def bands(self) -> int:
        """C[t, s] is zero for t - s >= bands."""
        raise NotImplementedError

    def diagonals(self, steps: int) -> Matrix | None:
        """Return C[t, t - k] for k < steps, if it is the same for all t; None if C is not Toeplitz."""
        return None

    def matrix(self, steps: int) -> Matrix:
        out = np.zeros((steps, steps))
        for t in range(steps):
            row = self.row(t)
            out[t, t + 1 - len(row) : t + 1] = row[::-1]
        return out


@described("learning.Toeplitz")
@dataclass(frozen=True, slots=True, kw_only=True)
class Toeplitz(Triangular):
    """C[t, s] = coefficients[t - s], and zero beyond the last of them.

    Costs one vector of memory for each but the first.
    """

    coefficients: tuple[float, ...]

    def __post_init__(self) -> None:
        values = _require.listed(coefficients=self.coefficients)
        _require.non_empty(coefficients=values)
        for value in values:
            _require.finite(coefficient=value)
        if not values[0]:
            raise _require.fail("the first coefficient", values[0], "other than zero: C must have an inverse")
        _check_size(max(abs(value) for value in values))
        object.__setattr__(self, "coefficients", tuple(float(value) for value in values))

    @property
    def bands(self) -> int:
        return len(self.coefficients)

    def row(self, step: int) -> Matrix:
        return np.array(self.coefficients[: step + 1])

    def diagonals(self, steps: int) -> Matrix:
        out = np.zeros(steps)
        out[: len(self.coefficients)] = self.coefficients[:steps]
        return out


@described("learning.Dense")
@dataclass(frozen=True, slots=True, kw_only=True)
class Dense(Triangular):
    """C by its rows, each up to the diagonal: ((1.0,), (0.5, 1.0), ...)."""

    rows: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        rows = tuple(tuple(_require.listed(row=row)) for row in _require.listed(rows=self.rows))
        _require.non_empty(rows=rows)
        for t, row in enumerate(rows):
            for value in row:
                _require.finite(entry=value)
            if len(row) != t + 1 or not row[-1]:
                raise InvalidInput(
                    f"row {t} of a strategy must have {t + 1} entries, the last of them not zero: C "
                    f"is lower triangular and has an inverse."
                )
        _check_size(max(abs(value) for row in rows for value in row))
        object.__setattr__(self, "rows", tuple(tuple(float(value) for value in row) for row in rows))

    @property
    def bands(self) -> int:
        return max(t - next(s for s, value in enumerate(row) if value) for t, row in enumerate(self.rows)) + 1

    def row(self, step: int) -> Matrix:
        if step >= len(self.rows):
            raise InvalidInput(f"this strategy is for {len(self.rows)} steps. Nothing was read or trained.")
        return np.array(self.rows[step][::-1])


def _check_size(largest: float) -> None:
    """Refuse a strategy so small that floats may lose its sensitivity, or its noise."""
    if largest < _LEAST:
        raise _require.fail(
            "the largest entry of a strategy", largest, f"at least {_LEAST:g}: scale it, only ratios matter"
        )


# independent noise in every step
IDENTITY = Toeplitz(coefficients=(1.0,))


def square_root(steps: int, bands: int | None = None) -> Toeplitz:
    """Return the square root of the matrix of prefix sums: coefficient k is (2k choose k) / 4^k, the series
    of (1 - x)^(-1/2).

    Error within a constant of the best for sums so far (Fichtenberger, Henzinger & Upadhyay 2023,
    arXiv:2202.11205; Henzinger, Upadhyay & Upadhyay 2023, arXiv:2211.05006). `bands` keeps the first so many
    coefficients (Kalinin & Lampert 2024, arXiv:2405.13763): a stream keeps that many steps only, and where
    two participations of a unit are at least so many steps apart, their changes are orthogonal.

    >>> square_root(4).coefficients
    (1.0, 0.5, 0.375, 0.3125)
    """
    _require.integer(steps=steps, at_least=1)
    if bands is not None:
        _require.integer(bands=bands, at_least=1)
    coefficients = [1.0]
    for k in range(1, min(steps, bands or steps)):
        coefficients.append(coefficients[-1] * (2 * k - 1) / (2 * k))
    return Toeplitz(coefficients=tuple(coefficients))


@lru_cache(maxsize=64)
def sensitivity(strategy: Triangular, steps: int, separation: int, times: int) -> float:
    """Return how far C G moves when one unit adds vectors of length at most 1 to at most `times` rows of G,
    any two at least `separation` apart.

    Guarantee: an upper bound of the Frobenius norm of the change, over all such patterns; exact for one time,
               for strategies with at most `separation` bands, for all steps (separation 1, times = steps)
               where Cᵀ C >= 0, and for Toeplitz coefficients that do not increase and are not negative.
    Proof:     the squared change is the sum over i, j of the pattern of X[i, j] u_i . u_j <= sum |X[i, j]|, X
               = Cᵀ C (Choquette-Choo et al. 2023, arXiv:2211.06530). Row sums over a pattern are at most
               their largest over all patterns, found by dynamic programming, and so is the sum of these (as
               in arXiv:2306.08153). With few bands X[i, j] = 0 off the diagonal of every pattern. For
               Toeplitz coefficients that do not increase, X[i, j] = sum over u < n - j of c_u c_(u + j - i),
               for i <= j, falls in j - i and in j; the a-th place of a pattern is at least a s, and the b-th
               at least (b - a) s further, so that 0, s, 2s, ... is worst (Kalinin & Lampert 2024,
               arXiv:2405.13763).
    """
    # no two steps are further apart
    separation = min(separation, steps)
    diagonals = strategy.diagonals(steps)
    if diagonals is not None and (times == 1 or _falling(diagonals)):
        return _up(toeplitz_square(diagonals, separation, times), steps)
    if times == 1 or strategy.bands <= separation:
        columns = np.square(strategy.matrix(steps)).sum(0)
        return _up(float(_best(columns[None], separation, times)[0]), steps)
    matrix = strategy.matrix(steps)
    rows = _best(np.abs(matrix.T @ matrix), separation, times)
    return _up(float(_best(rows[None], separation, times)[0]), steps)


def toeplitz_square(diagonals: Matrix, separation: int, times: int) -> float:
    """Return the squared change when a unit takes part at 0, s, 2s, ...: that of the first column for one
    time, which is the longest."""
    change = np.zeros(len(diagonals))
    for start in range(0, len(diagonals), separation)[:times]:
        change[start:] += diagonals[: len(diagonals) - start]
    return float(change @ change)


def _up(square: float, steps: int) -> float:
    """Return the root, with room for the rounding of sums of at most steps² terms."""
    return math.sqrt(square) * (1 + 1e-12 + (steps + 16) * 2.0**-51)


def _falling(values: Matrix) -> bool:
    return bool(values[-1] >= 0 and (np.diff(values) <= 0).all())


def _best(weights: Matrix, separation: int, times: int) -> Matrix:
    """Return, for each row of non-negative weights [rows, steps], the largest sum over at most `times`
    positions, any two at least `separation` apart."""
    rows, steps = weights.shape
    before = np.zeros((rows, steps + separation))
    for _ in range(min(times, -(-steps // separation))):
        now = np.zeros_like(before)
        for i in range(steps - 1, -1, -1):
            now[:, i] = np.maximum(
                now[:, i + 1] if i + 1 < steps else 0.0, weights[:, i] + before[:, i + separation]
            )
        before = now
    return before[:, 0]
