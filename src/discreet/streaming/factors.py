"""Computes the error factors of strategies for continual sums (the matrix mechanism, as in DP-FTRL), before
anything is spent: the standard deviation of the released sums where a unit takes part once, in units of the
deviation that a single sum would need.

A strategy is a lower triangular matrix C: C x + noise is measured, and the sums A x are estimated as A C⁻¹
(C x + noise), with A the lower triangular matrix of ones.

Defines a naive baseline, for comparison: fresh noise on the complete sum at every step.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import _require
from .._registry import described
from .._require import at_least
from ..mechanisms.matrix import strategies, triangular
from ..mechanisms.matrix.triangular import (
    IDENTITY,
    BinaryTree,
    Buffered,
    Dense,
    Toeplitz,
    Triangular,
    sensitivity,
    square_root,
    tree_square,
)


@described("streaming.RunningSum")
class RunningSum:
    """Measures the sum so far at every step: one unit moves all later sums, so that the noise grows with the
    square root of the number of steps (Gaussian), or with the number itself (Laplace)."""


Floats = NDArray[np.float64]
StreamStrategy = BinaryTree | Toeplitz | Buffered | Dense | RunningSum

# Which error a named strategy minimizes, and among which strategies. T is the number of steps. For "blt" and
# "optimal" the caller chooses.
MINIMIZES = {
    "item": "nothing: noise on every item, a naive baseline",
    "fresh": "nothing: fresh noise on every sum, a naive baseline",
    "tree": "nothing: O(log T) noisy nodes in a sum, each item in O(log T) nodes",
    "honaker": "the error of each node, given the nodes below it",
    "square_root": "max, among Toeplitz strategies up to lower order terms",
    "banded": "max, among Toeplitz strategies with as many bands, approximately",
}
NAMES = (*MINIMIZES, "blt", "optimal")
# The largest number of coefficients of a named Toeplitz strategy: its state has as many vectors. Chosen by
# hand.
MAX_COEFFICIENTS = 1 << 14
# The largest number of steps for which comparisons include the optimal strategy, whose computation takes
# seconds.
MAX_OPTIMAL = 512


class _MaxAndRms(NamedTuple):
    """Holds the two errors, so that `largest, rms = error_factors(...)` works."""

    max: float
    rms: float


class ErrorFactors(_MaxAndRms):
    """Holds the standard deviation of prefix sums over all steps: `max` is the largest, `rms` the root mean
    square. The unit is the deviation of the noise that a single sum with sensitivity 1 needs. `minimizes`
    says which of the two the strategy minimizes.
    """

    minimizes: str

    def __new__(cls, largest: float, rms: float, minimizes: str) -> ErrorFactors:
        pair = super().__new__(cls, largest, rms)
        pair.minimizes = minimizes
        return pair

    def __repr__(self) -> str:
        return f"ErrorFactors(max={self.max:.6g}, rms={self.rms:.6g}, minimizes={self.minimizes!r})"


@_require.check_options
def error_factors(
    strategy: str | Any,
    steps: Annotated[int, at_least(1)],
    *,
    minimize: str = "max",
    buffers: int = 4,
    bands: int | None = None,
) -> ErrorFactors:
    """Return the (max, rms) error factor of a strategy, given by name or as an object, over `steps` steps.

    `minimize` is "max" or "rms": which of the two "blt" and "optimal" minimize. `buffers` is the number of
    buffers of "blt", `bands` the number of coefficients of "banded" (by default the square root of `steps`).
    The noise is Gaussian, so that the factor is the l2 length of a column of C times the deviation of a sum.

    >>> largest, rms = error_factors("tree", steps=1024)
    >>> round(largest, 3), round(rms, 3), error_factors("blt", steps=1024).minimizes
    (10.488, 7.417, 'max')
    """
    if isinstance(strategy, str):
        minimized = MINIMIZES.get(strategy, minimize)
        strategy = named(strategy, steps, minimize=minimize, buffers=buffers, bands=bands)
    elif isinstance(strategy, StreamStrategy):
        minimized = "unknown"
    else:
        raise _require.fail("strategy", type(strategy).__name__, f"one of {', '.join(NAMES)}, or a strategy")
    if isinstance(strategy, Buffered):
        return ErrorFactors(*triangular.factors(strategy, steps), minimized)
    variances = prefix_variances(strategy, steps)
    column = column_length(strategy, steps)
    return ErrorFactors(
        column * math.sqrt(float(variances.max())), column * math.sqrt(float(variances.mean())), minimized
    )


@_require.check_options
def named(
    name: str,
    steps: Annotated[int, at_least(1)],
    *,
    minimize: str = "max",
    buffers: Annotated[int, at_least(1)] = 4,
    bands: Annotated[int, at_least(1)] | None = None,
) -> StreamStrategy:
    """Return the strategy with this name for `steps` steps; the options are those of `error_factors`."""
    _require.one_of(NAMES, strategy=name)
    if name in ("tree", "honaker"):
        return BinaryTree(from_below=name == "honaker")
    if name == "item":
        return IDENTITY
    if name == "fresh":
        return RunningSum()
    if name == "blt":
        return triangular.blt(steps, min(buffers, max(1, steps)), minimize=minimize)
    if name == "optimal":
        return strategies.optimal_prefix(steps, minimize).strategy
    width = steps if name == "square_root" else (max(1, math.isqrt(steps)) if bands is None else bands)
    _require.that(
        min(width, steps) <= MAX_COEFFICIENTS,
        f"a strategy with {width:,} coefficients would keep as many vectors; at most "
        f"{MAX_COEFFICIENTS:,}. Take strategy='blt', or fewer bands.",
    )
    return square_root(steps, width)


def column_length(strategy: StreamStrategy, steps: int) -> float:
    """Return the l2 length of the longest column of C."""
    if isinstance(strategy, BinaryTree):
        return math.sqrt(tree_square(steps))
    if isinstance(strategy, RunningSum):
        return math.sqrt(steps)
    return sensitivity(strategy, steps, 1, 1)


def prefix_variances(strategy: StreamStrategy, steps: int) -> Floats:
    """Return the variance of the sum of the first t steps, t = 1, ..., steps, for noise of variance 1 in each
    measurement."""
    if isinstance(strategy, BinaryTree):
        return strategy.variances(steps)
    if isinstance(strategy, RunningSum):
        return np.ones(steps)
    if isinstance(strategy, Dense):
        C = strategy.matrix(steps)
        # Imported here for the same reason as in `decoder`.
        from scipy.linalg import solve_triangular

        B = solve_triangular(C, np.tril(np.ones((steps, steps))).T, lower=True, trans="T").T
        return np.asarray(np.square(B).sum(axis=1))
    return np.asarray(np.cumsum(np.square(decoder(strategy, np.ones(steps)))))


def decoder(strategy: Triangular, workload: Floats) -> Floats:
    """Return the first column of A C⁻¹, where A is the lower triangular Toeplitz matrix with the first column
    `workload`: entry k is the weight of the noise of k steps ago in an answer."""
    # Imported here because it is slow to load, and most processes never need it.
    from scipy.signal import lfilter

    if isinstance(strategy, Buffered):
        # C⁻¹ is the product over all buffers of (1 - decay x) / (1 - inverse x), where x delays by one step.
        out = workload
        for decay, inverse in zip(strategy.decays, strategy.inverse_decays, strict=True):
            out = lfilter([1.0, -decay], [1.0, -inverse], out)
        return np.asarray(out)
    diagonals = strategy.diagonals(len(workload))
    assert diagonals is not None
    return np.asarray(lfilter([1.0], np.trim_zeros(diagonals, "b"), workload))
