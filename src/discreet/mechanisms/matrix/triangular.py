"""Defines lower-triangular strategies: noise that cancels over time, made row by row, as DP-FTRL and
continual sums need it.

The noise of step t is row t of C⁻¹ Z, where the rows of Z are independent Gaussian noise and C is lower
triangular: noise that is added in one step is partly subtracted in later ones, so that the *sum* so far has
little noise. The strategy is C, given by its diagonals (`Toeplitz`) or by all its rows (`Dense`). Its
sensitivity depends on the pattern of participation: how often one unit takes part, and how many steps apart.

The binary tree over time: every step is a leaf, and a node is the sum of the steps below it.

Tree aggregation (the tree based aggregation protocol, the binary mechanism): Chan, Shi & Song 2010,
ACM TISSEC 14(3), 2011; Dwork, Naor, Pitassi & Rothblum 2010 (STOC). A node gets noise once, when the step of
its last leaf is over. The sum of the first t steps is the sum of one node for each binary digit 1 of t: t = 6
takes a node of 4 steps and one of 2. With `from_below` the noisy value of each node is first averaged with
the estimate that the nodes below it give of the same sum: Honaker 2015, "Efficient use of differentially
private binary trees". Level 0 are the leaves; a node of level i covers 2^i steps.

Defines buffered linear Toeplitz strategies (BLT): correlated noise for streams of any length in constant
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
from abc import ABC, abstractmethod
from functools import lru_cache
from itertools import pairwise
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray
from scipy import optimize

from ... import _require
from ..._registry import described
from ..._require import FLOAT, NON_EMPTY, at_least, at_most
from .workloads import FLOAT_ROWS

Matrix = npt.NDArray[np.float64]

# Limits on the size of a strategy's largest entry. If it were smaller, squares in the sensitivity, or the
# noise of training in 32-bit floats, might underflow to zero; if it were larger, squares might overflow.
_LEAST, _MOST = 1e-9, 1e100


class Triangular(ABC):
    """A lower-triangular strategy: a matrix C without a zero on its diagonal, so that the noise of each step
    can be computed from that of the steps before it.

    `learning` calls it `Strategy`. Where Z is independent noise with the standard deviation of the wanted
    noise multiplier times `sensitivity(C, ...)`, the noise of the steps is C⁻¹ Z.
    """

    __slots__ = ()

    @abstractmethod
    def row(self, step: int) -> Matrix:
        """Return row t = `step` of C from the diagonal backwards: C[t, t], C[t, t-1], ..."""

    @property
    @abstractmethod
    def bands(self) -> int:
        """C[t, s] is zero for t - s >= bands."""

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
class Toeplitz(Triangular):
    """C[t, s] = coefficients[t - s], and zero beyond the last coefficient.

    A stream keeps the noise of one past step for each coefficient but the first.
    """

    coefficients: Annotated[tuple[Annotated[float, FLOAT], ...], NON_EMPTY]

    def __post_init__(self) -> None:
        first = self.coefficients[0]
        _require.must(first, "the first coefficient", first, "other than zero: C must have an inverse")
        _check_size(max(abs(value) for value in self.coefficients))

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
class Dense(Triangular):
    """C by its rows, each up to the diagonal: ((1.0,), (0.5, 1.0), ...)."""

    rows: Annotated[tuple[tuple[float, ...], ...], FLOAT_ROWS]

    def __post_init__(self) -> None:
        for t, row in enumerate(self.rows):
            _require.that(
                len(row) == t + 1 and row[-1],
                f"row {t} of a strategy must have {t + 1} entries, the last of them not zero: C "
                f"is lower triangular and has an inverse.",
            )
        _check_size(max(abs(value) for row in self.rows for value in row))

    @property
    def bands(self) -> int:
        return max(t - next(s for s, value in enumerate(row) if value) for t, row in enumerate(self.rows)) + 1

    def row(self, step: int) -> Matrix:
        _require.that(step < len(self.rows), f"this strategy is for {len(self.rows)} steps.")
        return np.array(self.rows[step][::-1])


def _check_size(largest: float) -> None:
    """Refuse a strategy so small or so large that its sensitivity, or its noise, is lost in floats."""
    _require.must(
        _LEAST <= largest <= _MOST,
        "the largest entry of a strategy",
        largest,
        f"between {_LEAST:g} and {_MOST:g}: scale it, only ratios matter",
    )


# The strategy of independent noise in every step.
IDENTITY = Toeplitz(coefficients=(1.0,))


@_require.check_options
def square_root(
    steps: Annotated[int, at_least(1)], bands: Annotated[int, at_least(1)] | None = None
) -> Toeplitz:
    """Return the square root of the matrix of prefix sums: coefficient k is (2k choose k) / 4^k, the series
    of (1 - x)^(-1/2).

    Its error for prefix sums is within a constant of the best (Fichtenberger, Henzinger & Upadhyay 2023,
    arXiv:2202.11205; Henzinger, Upadhyay & Upadhyay 2023, arXiv:2211.05006). With `bands` only the first
    `bands` coefficients are used (Kalinin & Lampert 2024, arXiv:2405.13763): a stream then keeps the noise of
    that many steps only, and the changes by two participations at least `bands` steps apart are orthogonal.

    >>> square_root(4).coefficients
    (1.0, 0.5, 0.375, 0.3125)
    """
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


Floats = NDArray[np.float64]


@described("matrix.BinaryTree")
class BinaryTree:
    """Measures the sums over all aligned intervals of 2^i steps; with `from_below` each is estimated from its
    own noisy value and all nodes below it (Honaker)."""

    from_below: bool = True

    def node_variances(self, levels: int) -> Floats:
        """Return the variance of the estimate of a node, for each level from the leaves up and for noise of
        variance 1 at every node."""
        return _node_variances(levels, self.from_below)

    def variances(self, steps: int) -> Floats:
        """Return the variance of the sum of the first t steps, for t = 1, ..., steps: the variances of the
        nodes of the binary digits 1 of t, added up."""
        t = np.arange(1, steps + 1)
        total = np.zeros(steps)
        for level, variance in enumerate(self.node_variances(steps.bit_length())):
            total += variance * ((t >> level) & 1)
        return total


def tree_square(steps: int, separation: int = 1, times: int = 1) -> int:
    """Return the squared l2 distance by which one unit moves the vector of all nodes, if it adds 1 to at most
    `times` leaves, any two of them at least `separation` steps apart.

    Guarantee: an upper bound; exact for times = 1, where it is the number of levels.
    Proof:     a node of width w has at most m = min(times, ceil(w / separation)) of the unit's leaves, and
               the nodes of a level have at most `times` of them together, so that the squares of these
               numbers add up to at most m times `times`.
    """
    levels = steps.bit_length()
    return sum(times * min(times, -(-(1 << level) // separation)) for level in range(levels))


@lru_cache(maxsize=64)
def _node_variances(levels: int, from_below: bool) -> Floats:
    """Return the variance per level. A node's own value has variance 1 and the sum of its two children's
    estimates twice a child's variance; the best average of the two has the sum of their precisions."""
    values = [1.0]
    for _ in range(levels - 1):
        values.append(1 / (1 + 1 / (2 * values[-1])) if from_below else 1.0)
    return np.array(values)


# Six buffers are within rounding of the optimum for 2**30 steps (measured); more only cost memory.
MAX_BUFFERS = 8
# The least 1 - decay: closer to 1, differences between powers of different decays are rounding errors.
_SLOWEST = 1e-12
# The most steps of `blt`: for 2**52 the best decay is 1 in floats, for 2**48 it is not (measured).
_MAX_STEPS = 1 << 48


@described("matrix.Buffered")
class Buffered(Triangular):
    """A buffered linear Toeplitz strategy: the generating function of C, which is c(x) = sum of c_t x^t, is
    the product over j of (1 - inverse_decays[j] x) / (1 - decays[j] x).

    Dvijotham, McMahan, Pillutla, Steinke & Thakurta 2024, arXiv:2404.16706; in terms of both
    sets of decays McMahan, Xu & Zhang 2024, arXiv:2408.08868. Decays interlace, 1 > decays[0] >
    inverse_decays[0] > decays[1] > ... >= 0, so that all coefficients of C are positive and fall. That makes
    `triangular.sensitivity` exact for units that take part several times.
    """

    decays: tuple[Annotated[float, FLOAT], ...]
    inverse_decays: tuple[Annotated[float, FLOAT], ...]

    def __post_init__(self) -> None:
        mixed = [d for pair in zip(self.decays, self.inverse_decays, strict=False) for d in pair]
        interlaced = all(a > b for a, b in pairwise(mixed))
        _require.that(
            len(self.decays) == len(self.inverse_decays) and self.decays and interlaced,
            "a buffered strategy has as many decays as inverse decays, which interlace: decays[0] > "
            "inverse_decays[0] > decays[1] > ... matrix.blt(steps) chooses them.",
        )
        # Half of _SLOWEST, so that rounding 1 - decay refuses no result of `blt`.
        if mixed[0] > 1 - _SLOWEST / 2 or len(self.decays) > MAX_BUFFERS:
            raise _require.fail("decays", self.decays, f"up to {MAX_BUFFERS} numbers from 0 to below 1")
        _require.must(mixed[-1] >= 0, "inverse_decays", self.inverse_decays, "numbers from 0 to below 1")

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


@_require.check_options
@lru_cache(maxsize=64)
def blt(
    # for more steps the decays would be 1 in floats
    steps: Annotated[int, at_least(1), at_most(_MAX_STEPS)],
    buffers: Annotated[int, at_least(1), at_most(MAX_BUFFERS)] = 4,
    *,
    minimize: Literal["max", "rms"] = "max",
) -> Buffered:
    """Return the buffered linear Toeplitz strategy with the least error of prefix sums over `steps` steps,
    where every unit takes part once. `minimize` says which error: the largest ("max") or the root mean square
    ("rms").

    BFGS on both sets of decays, from decays whose distances from 1 are spaced evenly in the logarithm
    (arXiv:2408.08868 minimizes the same error). The starts are fixed, so that the same arguments give the
    same strategy.
    """
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
