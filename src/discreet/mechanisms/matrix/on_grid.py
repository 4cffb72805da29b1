"""From a strategy of floats to the integers that are measured."""

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
    """Return the integer strategy that is measured for a strategy of floats.

    Guarantee: no column has a larger norm than `column` says.
    Proof:     it is computed from the integers themselves, in Python integers.
    """
    if isinstance(strategy, Residuals | MeasuredMarginals):
        _require_room(max(strategy.queries, strategy.marginals.queries))
    if isinstance(strategy, Residuals):
        weights = {s: 1 / math.sqrt(v) for s, v in strategy.variances().items()}
        return TableGrid(strategy.marginals, weights, strategy.axes(), norm)
    if isinstance(strategy, MeasuredMarginals):
        return TableGrid(strategy.marginals, strategy.weights(), None, norm)
    if isinstance(strategy, Identity):
        _require_room(strategy.n)
        return CellGrid(strategy.n)
    if isinstance(strategy, Product):
        _require_room(max(strategy.cells, strategy.queries))
        if all(isinstance(f, Identity) for f in strategy.factors):
            return CellGrid(strategy.cells)
        bits = max(14, BITS // len(strategy.factors))
        return ProductGrid(tuple(_dense(f, norm, bits) for f in strategy.factors), strategy.domain)
    return _dense(strategy, norm, BITS)


def _require_room(entries: int) -> None:
    """Refuse before anything is charged what would not fit into memory."""
    if entries > MAX_ENTRIES:
        raise InvalidInput(
            f"this strategy has {entries:,} cells or measurements, more than {MAX_ENTRIES:,}. "
            f"Nothing was read. Ask for marginals of few "
            f"attributes."
        )


def _dense(strategy: Workload, norm: Norm, bits: int) -> DenseGrid:
    """Return a matrix in whole numbers: as it is, or scaled and rounded towards zero, so that no column is
    longer than claimed."""
    A = strategy.dense()
    rounded = np.rint(A)
    if np.array_equal(rounded, A) and np.abs(A).max(initial=0) < 1 << 16:
        return DenseGrid(rounded.astype(np.int64))
    largest = float(np.abs(A).max())
    if not 2.0**-300 < largest < 2.0**300:
        # Squares, or one over the length, would not be floats. Powers of two change no other digit.
        A = np.ldexp(A, -math.frexp(largest)[1])
    power = 1 if norm == "l1" else 2
    length = float((np.abs(A) ** power).sum(axis=0).max()) ** (1 / power)
    # A little less than the grid, for the rounding of `length`.
    cut = np.trunc(A * ((1 - 2.0**-40) / length) * (1 << bits)).astype(np.int64)
    return DenseGrid(cut, bound=(1 << bits, 0) if norm == "l1" else (0, 1 << 2 * bits))
