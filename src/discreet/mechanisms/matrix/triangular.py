"""Defines lower-triangular strategies: noise that cancels over time, made row by row, as DP-FTRL and
continual sums need it.

The noise of step t is row t of C⁻¹ Z, where the rows of Z are independent Gaussian noise and C is lower
triangular: noise that is added in one step is partly subtracted in later ones, so that the *sum* so far has
little noise. The strategy is C, given by its diagonals (`Toeplitz`) or by all its rows (`Dense`). Its
sensitivity depends on the pattern of participation: how often one unit takes part, and how many steps apart.
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

# Limits on the size of a strategy's largest entry. If it were smaller, squares in the sensitivity, or the
# noise of training in 32-bit floats, might underflow to zero; if it were larger, squares might overflow.
_LEAST, _MOST = 1e-9, 1e100


class Triangular:
    """A lower-triangular strategy: a matrix C without a zero on its diagonal, so that the noise of each step
    can be computed from that of the steps before it.

    `learning` calls it `Strategy`. Where Z is independent noise with the standard deviation of the wanted
    noise multiplier times `sensitivity(C, ...)`, the noise of the steps is C⁻¹ Z.
    """

    __slots__ = ()

    def row(self, step: int) -> Matrix:
        """Return row t = `step` of C from the diagonal backwards: C[t, t], C[t, t-1], ..."""
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
    """C[t, s] = coefficients[t - s], and zero beyond the last coefficient.

    A stream keeps the noise of one past step for each coefficient but the first.
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
    """Refuse a strategy so small or so large that its sensitivity, or its noise, is lost in floats."""
    if not _LEAST <= largest <= _MOST:
        raise _require.fail(
            "the largest entry of a strategy",
            largest,
            f"between {_LEAST:g} and {_MOST:g}: scale it, only ratios matter",
        )


# The strategy of independent noise in every step.
IDENTITY = Toeplitz(coefficients=(1.0,))


def square_root(steps: int, bands: int | None = None) -> Toeplitz:
    """Return the square root of the matrix of prefix sums: coefficient k is (2k choose k) / 4^k, the series
    of (1 - x)^(-1/2).

    Its error for prefix sums is within a constant of the best (Fichtenberger, Henzinger & Upadhyay 2023,
    arXiv:2202.11205; Henzinger, Upadhyay & Upadhyay 2023, arXiv:2211.05006). With `bands` only the first
    `bands` coefficients are used (Kalinin & Lampert 2024, arXiv:2405.13763): a stream then keeps the noise of
    that many steps only, and the changes by two participations at least `bands` steps apart are orthogonal.

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
    """Return how far C G moves in the Frobenius norm when one unit adds vectors of length at most 1 to at
    most `times` of the `steps` rows of G (the sums of the steps' gradients, say), any two at least
    `separation` rows apart.

    Guarantee: an upper bound of the change over all such patterns of rows. It is exact, up to the room of
               `_rounded_up`, for times = 1; for strategies with at most `separation` bands; for separation 1
               and times = steps where no entry of Cᵀ C is negative; and for Toeplitz coefficients that do not
               increase and are not negative.
    Proof:     with X = Cᵀ C and u_i the vector added to row i, the squared change is the sum over rows i, j
               of the pattern of X[i, j] u_i . u_j, at most the sum of |X[i, j]| (Choquette-Choo et al. 2023,
               arXiv:2211.06530). For each i the sum over j is at most its largest over all patterns, found by
               dynamic programming (`_best`), and the sum of these over i is bounded in the same way
               (arXiv:2306.08153). With at most `separation` bands X[i, j] = 0 for different i, j of a
               pattern. For n steps and Toeplitz coefficients c that do not increase and are not negative,
               X[i, j] = sum over u < n - j of c_u c_(u + j - i), for i <= j, does not grow with j - i or with
               j. Counted from 0, the a-th row of a pattern is at least a s, with s = separation, and the b-th
               (b > a) at least (b - a) s further, so that the pattern 0, s, 2s, ... is worst (Kalinin &
               Lampert 2024, arXiv:2405.13763).
    """
    # A larger separation allows one row only, as `steps` does.
    separation = min(separation, steps)
    diagonals = strategy.diagonals(steps)
    if diagonals is not None and (times == 1 or _falling(diagonals)):
        return _rounded_up(toeplitz_square(diagonals, separation, times), steps)
    if times == 1 or strategy.bands <= separation:
        columns = np.square(strategy.matrix(steps)).sum(0)
        return _rounded_up(float(_best(columns[None], separation, times)[0]), steps)
    matrix = strategy.matrix(steps)
    products = np.abs(matrix.T @ matrix)
    if (matrix < 0).any():
        # Summands of different signs may cancel, and then the rounding of their sum is not small beside the
        # sum. It is at most steps 2^-53 times the product of the lengths of two columns; 2^-52 covers the
        # rounding of the lengths, too.
        lengths = np.sqrt(np.square(matrix).sum(0))
        products += (steps + 16) * 2.0**-52 * np.outer(lengths, lengths)
    rows = _best(products, separation, times)
    return _rounded_up(float(_best(rows[None], separation, times)[0]), steps)


def toeplitz_square(diagonals: Matrix, separation: int, times: int) -> float:
    """Return the squared change when a unit takes part at the steps 0, s, 2s, ... with s = separation,
    `times` times at most; for times = 1 it is the squared length of the first column, which is the
    longest."""
    change = np.zeros(len(diagonals))
    for start in range(0, len(diagonals), separation)[:times]:
        change[start:] += diagonals[: len(diagonals) - start]
    return float(change @ change)


def _rounded_up(square: float, steps: int) -> float:
    """Return the square root, increased to cover the rounding of sums of at most steps² terms."""
    return math.sqrt(square) * (1 + 1e-12 + (steps + 16) * 2.0**-51)


def _falling(values: Matrix) -> bool:
    """Return whether no value is negative or larger than the one before it."""
    return bool(values[-1] >= 0 and (np.diff(values) <= 0).all())


def _best(weights: Matrix, separation: int, times: int) -> Matrix:
    """Return, for each row of non-negative weights [rows, steps], the largest sum over at most `times`
    positions, any two at least `separation` apart.

    Dynamic programming: after k rounds best[:, i] is the largest sum over at most k positions from i on.
    """
    rows, steps = weights.shape
    best = np.zeros((rows, steps + separation))
    for _ in range(min(times, -(-steps // separation))):
        one_more = np.zeros_like(best)
        for i in range(steps - 1, -1, -1):
            one_more[:, i] = np.maximum(
                one_more[:, i + 1] if i + 1 < steps else 0.0, weights[:, i] + best[:, i + separation]
            )
        best = one_more
    return best[:, 0]
