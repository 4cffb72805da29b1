"""Turns a strategy, whose matrix has float entries, into the integer strategy (`Grid`) that is measured."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from ..._errors import InvalidInput
from .compound import Product
from .integer import BITS, CellGrid, DenseGrid, Grid, ProductGrid
from .marginal_strategies import MeasuredMarginals, Residuals
from .strategies import Norm
from .table_grid import TableGrid
from .workloads import MAX_ENTRIES, Identity, Workload


@lru_cache(maxsize=32)
def on_grid(strategy: Workload, norm: Norm) -> Grid:
    """Return the integer strategy that is measured for a strategy, for noise whose sensitivity is in `norm`.

    Guarantee: no column has a larger norm than `Grid.column` says.
    Proof:     every grid computes the norms, or checks a claimed bound, from its integer matrix in integers.
    """
    if isinstance(strategy, Residuals | MeasuredMarginals):
        _require_memory(max(strategy.queries, strategy.marginals.queries))
    if isinstance(strategy, Residuals):
        weights = {s: 1 / math.sqrt(v) for s, v in strategy.variances().items()}
        return TableGrid(strategy.marginals, weights, strategy.axes(), norm)
    if isinstance(strategy, MeasuredMarginals):
        return TableGrid(strategy.marginals, strategy.weights(), None, norm)
    if isinstance(strategy, Identity):
        _require_memory(strategy.n)
        return CellGrid(strategy.n)
    if isinstance(strategy, Product):
        _require_memory(max(strategy.cells, strategy.queries))
        if all(isinstance(f, Identity) for f in strategy.factors):
            return CellGrid(strategy.cells)
        # Fewer bits per factor, so that the largest entry of the product, and the noise, stay small; 14 bits
        # still lose less than one part in ten thousand per factor.
        bits = max(14, BITS // len(strategy.factors))
        return ProductGrid(tuple(_dense(f, norm, bits) for f in strategy.factors), strategy.domain)
    return _dense(strategy, norm, BITS)


def _require_memory(entries: int) -> None:
    """Refuse, before anything is charged, a strategy whose measurements would not fit into memory."""
    if entries > MAX_ENTRIES:
        raise InvalidInput(
            f"this strategy has {entries:,} cells or measurements, more than {MAX_ENTRIES:,}. "
            f"Nothing was read. Ask for marginals of few "
            f"attributes."
        )


def _dense(strategy: Workload, norm: Norm, bits: int) -> DenseGrid:
    """Return a strategy as an integer matrix: unchanged if its entries are small integers; else scaled to
    columns of norm 2**bits at most, and rounded towards zero so that none becomes longer."""
    A = strategy.dense()
    rounded = np.rint(A)
    # "Small" is below 2**16, chosen by hand: `DenseGrid` takes entries up to 2**21.
    if np.array_equal(rounded, A) and np.abs(A).max(initial=0) < 1 << 16:
        return DenseGrid(rounded.astype(np.int64))
    largest = float(np.abs(A).max())
    if not 2.0**-300 < largest < 2.0**300:
        # The squares of the entries, or 1 / length, would overflow or underflow. Scaling by a power of two is
        # exact, and a strategy's scale does not matter.
        A = np.ldexp(A, -math.frexp(largest)[1])
    power = 1 if norm == "l1" else 2
    length = float((np.abs(A) ** power).sum(axis=0).max()) ** (1 / power)
    # Less by 2**-40, which covers the rounding of `length`. `DenseGrid` checks the result against the bound.
    cut = np.trunc(A * ((1 - 2.0**-40) / length) * (1 << bits)).astype(np.int64)
    return DenseGrid(cut, bound=(1 << bits, 0) if norm == "l1" else (0, 1 << 2 * bits))
