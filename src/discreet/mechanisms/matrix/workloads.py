"""Defines workloads: matrices of linear counting questions over cells, most of them never written out.

A workload W has one row for each question and one column for each cell of the data: W x are the answers,
where x counts the units in each cell. Prefix sums, ranges and marginals compute their products with vectors
and their Gram matrix Wᵀ W, on which alone the error of a strategy depends, without the matrix. Products over
attributes (`Product`), unions and marginals are in `compound`.

>>> ages = prefix(4)
>>> ages.shape, ages.times([1, 2, 0, 5]).tolist()
((4, 4), [1.0, 3.0, 3.0, 8.0])
>>> from discreet.mechanisms.matrix.compound import product
>>> both = product(ages, total(3))
>>> both.shape, both.domain
((4, 12), (4, 3))
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ... import _require
from ..._registry import described
from ..._require import Limit, at_least, instance_of

Floats = NDArray[np.float64]

# The most cells, or entries of a matrix, that may be written out: 128 MB of floats.
MAX_ENTRIES = 1 << 24
# The largest entry of a workload: sums of squares of such entries do not overflow in floats.
LARGEST = 1e100


class Workload(ABC):
    """Base of all workloads: a matrix that is described, not stored."""

    __slots__ = ()

    @property
    @abstractmethod
    def domain(self) -> tuple[int, ...]:
        """The number of values of each attribute; their product is the number of cells."""

    @property
    @abstractmethod
    def queries(self) -> int:
        """The number of questions, which are the rows."""

    @property
    def cells(self) -> int:
        return math.prod(self.domain)

    @property
    def shape(self) -> tuple[int, int]:
        return self.queries, self.cells

    def times(self, x: Any) -> Floats:
        """Return the answers W x."""
        return self.dense() @ self._vector(x, self.cells)

    def transposed(self, y: Any) -> Floats:
        """Return Wᵀ y: one number for each cell."""
        return self.dense().T @ self._vector(y, self.queries)

    def gram(self) -> Floats:
        """Return Wᵀ W, written out: cells by cells."""
        self._require_small(self.cells**2, "the Gram matrix")
        W = self.dense()
        return W.T @ W

    @abstractmethod
    def rows(self) -> Iterator[Floats]:
        """Yield W in blocks of rows, so that no more than `MAX_ENTRIES` numbers are in memory."""

    def dense(self) -> Floats:
        """Return W written out; refuse one of more than `MAX_ENTRIES` entries."""
        self._require_small(self.queries * self.cells, "the matrix")
        return np.concatenate(list(self.rows()))

    @property
    def frobenius(self) -> float:
        """The squared Frobenius norm: the sum of all squared entries, which is the trace of the Gram
        matrix."""
        return float(np.trace(self.gram()))

    def column_norms(self, power: int) -> Floats:
        """Return the sum of |entry|^power in each column. Of a strategy, which is a workload too, these sums
        are the powers of its sensitivity."""
        return np.asarray(np.sum([np.sum(np.abs(block) ** power, axis=0) for block in self.rows()], axis=0))

    def _vector(self, x: Any, length: int) -> Floats:
        """Return a vector as floats; refuse one of another length."""
        values = np.asarray(x, dtype=np.float64)
        shape = values.shape
        _require.that(shape == (length,), f"a vector of {length} numbers is needed here, got shape {shape}.")
        return values

    def _require_small(self, entries: int, what: str) -> None:
        """Refuse to write out an array (`what`, in the words of the error) of more than `MAX_ENTRIES`
        entries."""
        _require.that(
            entries <= MAX_ENTRIES,
            f"{what} of a workload with {self.queries:,} questions and {self.cells:,} cells would have "
            f"{entries:,} entries. Keep it implicit: a product over attributes, or marginals.",
        )


def _float_rows(**named: Any) -> tuple[tuple[float, ...], ...]:
    """Return the rows of a matrix as tuples of finite floats; nothing is called for numbers that are finite
    floats already, of which there may be millions."""
    ((name, _),) = named.items()
    rows = []
    for i, row in enumerate(_require.entries(**named)):
        values = _require.listed(**{f"{name}[{i}]": row})
        if not all(type(value) is float for value in values) or not np.isfinite(values).all():
            values = tuple(_require.as_float(**{f"{name}[{i}][{j}]": v}) for j, v in enumerate(values))
        rows.append(values)
    return tuple(rows)


FLOAT_ROWS = Limit(_float_rows)
WORKLOAD = instance_of(Workload, "a workload, such as matrix.prefix(64)")
Sizes = tuple[Annotated[int, at_least(1)], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OneAttribute(Workload):
    """A workload over the `n` cells of one attribute."""

    n: Annotated[int, at_least(1)]

    @property
    def domain(self) -> tuple[int, ...]:
        return (self.n,)


@described("matrix.Identity")
class Identity(OneAttribute):
    """Each cell by itself: a histogram."""

    @property
    def queries(self) -> int:
        return self.n

    def times(self, x: Any) -> Floats:
        return self._vector(x, self.n).copy()

    def transposed(self, y: Any) -> Floats:
        return self._vector(y, self.n).copy()

    def gram(self) -> Floats:
        self._require_small(self.n**2, "the Gram matrix")
        return np.eye(self.n)

    @property
    def frobenius(self) -> float:
        return float(self.n)

    def rows(self) -> Iterator[Floats]:
        for block in _blocks(self.n, self.n):
            yield np.eye(block.stop - block.start, self.n, block.start)


@described("matrix.Total")
class Total(OneAttribute):
    """The sum of all cells."""

    queries: ClassVar[int] = 1

    def times(self, x: Any) -> Floats:
        return np.asarray(self._vector(x, self.n).sum(keepdims=True))

    def transposed(self, y: Any) -> Floats:
        return np.repeat(self._vector(y, 1), self.n)

    def gram(self) -> Floats:
        self._require_small(self.n**2, "the Gram matrix")
        return np.ones((self.n, self.n))

    @property
    def frobenius(self) -> float:
        return float(self.n)

    def rows(self) -> Iterator[Floats]:
        yield np.ones((1, self.n))


@described("matrix.Prefix")
class Prefix(OneAttribute):
    """The sums of the first cell, the first two, ... all n: a cumulative distribution."""

    @property
    def queries(self) -> int:
        return self.n

    def times(self, x: Any) -> Floats:
        return np.cumsum(self._vector(x, self.n))

    def transposed(self, y: Any) -> Floats:
        return np.cumsum(self._vector(y, self.n)[::-1])[::-1]

    def gram(self) -> Floats:
        self._require_small(self.n**2, "the Gram matrix")
        cells = np.arange(self.n)
        return (self.n - np.maximum.outer(cells, cells)).astype(np.float64)

    @property
    def frobenius(self) -> float:
        return self.n * (self.n + 1) / 2

    def rows(self) -> Iterator[Floats]:
        for block in _blocks(self.n, self.n):
            yield (np.arange(self.n) <= np.arange(self.n)[block, None]).astype(np.float64)


@described("matrix.AllRanges")
class AllRanges(OneAttribute):
    """The sums of all n (n + 1) / 2 ranges of cells, by first cell, then by last."""

    @property
    def queries(self) -> int:
        return self.n * (self.n + 1) // 2

    def times(self, x: Any) -> Floats:
        sums = np.concatenate([[0.0], np.cumsum(self._vector(x, self.n))])
        first, last = np.triu_indices(self.n)
        return np.asarray(sums[last + 1] - sums[first])

    def transposed(self, y: Any) -> Floats:
        first, last = np.triu_indices(self.n)
        values = self._vector(y, self.queries)
        # A range adds its value from its first cell on, and takes it away after its last.
        changes = np.bincount(first, values, self.n + 1) - np.bincount(last + 1, values, self.n + 1)
        return np.cumsum(changes)[:-1]

    def gram(self) -> Floats:
        self._require_small(self.n**2, "the Gram matrix")
        cells = np.arange(self.n, dtype=np.float64)
        return np.asarray((np.minimum.outer(cells, cells) + 1) * (self.n - np.maximum.outer(cells, cells)))

    @property
    def frobenius(self) -> float:
        return self.n * (self.n + 1) * (self.n + 2) / 6

    def rows(self) -> Iterator[Floats]:
        first, last = np.triu_indices(self.n)
        cells = np.arange(self.n)
        for block in _blocks(self.queries, self.n):
            yield ((cells >= first[block, None]) & (cells <= last[block, None])).astype(np.float64)


@described("matrix.Explicit")
class Explicit(Workload):
    """Any matrix, row by row. `over`: the number of values of each attribute whose combinations are the
    cells, the last attribute varying fastest; one attribute unless given."""

    matrix: Annotated[tuple[tuple[float, ...], ...], FLOAT_ROWS]
    over: Sizes = ()

    def __post_init__(self) -> None:
        cells = len(self.matrix[0])
        regular = cells and all(len(row) == cells for row in self.matrix)
        _require.that(regular, "the rows of a workload must have one length, of at least 1.")
        largest = max(abs(v) for row in self.matrix for v in row)
        _require.that(largest <= LARGEST, f"the entries of a workload must be at most {LARGEST:g} in size.")
        over = self.over or (cells,)
        size = math.prod(over)
        _require.that(size == cells, f"attributes of sizes {over} have {size} cells, the rows {cells}.")
        object.__setattr__(self, "over", over)

    @property
    def domain(self) -> tuple[int, ...]:
        return self.over

    @property
    def queries(self) -> int:
        return len(self.matrix)

    def rows(self) -> Iterator[Floats]:
        yield _array(self)


@lru_cache(maxsize=16)
def _array(workload: Explicit) -> Floats:
    array = np.array(workload.matrix)
    array.setflags(write=False)
    return array


def identity(n: int) -> Identity:
    """Return the workload of n single cells."""
    return Identity(n=n)


def total(n: int) -> Total:
    """Return the workload of one question: the sum of n cells."""
    return Total(n=n)


def prefix(n: int) -> Prefix:
    """Return the workload of n prefix sums: a cumulative distribution, or a running count."""
    return Prefix(n=n)


def all_ranges(n: int) -> AllRanges:
    """Return the workload of all ranges of n ordered cells."""
    return AllRanges(n=n)


def explicit(matrix: Any, over: Sequence[int] = ()) -> Explicit:
    """Return the workload of any matrix, an array or rows of numbers; `over` as in `Explicit`."""
    array = _as_array(matrix)
    _require.must(
        array.ndim == 2
        and array.dtype != object
        and (np.issubdtype(array.dtype, np.number) or array.dtype == bool)
        and not np.iscomplexobj(array),
        "matrix",
        f"an array of shape {array.shape} and kind {array.dtype}",
        "rows of numbers",
    )
    return Explicit(matrix=tuple(map(tuple, array.astype(np.float64).tolist())), over=over)  # type: ignore[arg-type]


def predicates(conditions: Any, over: Sequence[int] = ()) -> Explicit:
    """Return the workload that counts by conditions: rows of True and False, one entry for each cell."""
    array = _as_array(conditions)
    _require.must(
        array.dtype == bool, "conditions", f"an array of kind {array.dtype}", "rows of True and False"
    )
    return explicit(array, over)


def _as_array(rows: Any) -> NDArray[Any]:
    with _require.refusing("the rows of a workload must have one length."):
        return np.asarray(rows)


def _blocks(rows: int, columns: int) -> Iterator[slice]:
    """Yield the rows of a matrix in blocks of a quarter of `MAX_ENTRIES` entries: callers make a few arrays
    of a block's size from it."""
    step = max(1, MAX_ENTRIES // max(1, columns) // 4)
    for start in range(0, rows, step):
        yield slice(start, min(rows, start + step))
