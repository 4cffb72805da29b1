"""Workloads: matrices of linear counting questions over cells, most of them never written out.

A workload W has one row for each question and one column for each cell of the data: W x are the answers, where x counts the units in each
cell. Prefix sums, ranges and marginals know their products with vectors and their Gram matrix Wᵀ W, which is all that the error of a
strategy depends on. Products over attributes (`Product`) and unions stay implicit, whatever the number of cells.

>>> ages = prefix(4)
>>> ages.shape, ages.times([1, 2, 0, 5]).tolist()
((4, 4), [1.0, 3.0, 3.0, 8.0])
>>> both = product(ages, total(3))
>>> both.shape, both.domain
((4, 12), (4, 3))
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ... import _require
from ..._errors import InvalidInput
from ..._registry import described

Floats = NDArray[np.float64]

# Cells (or entries of a matrix) that may be written out: 128 MB of floats.
MOST_ENTRIES = 1 << 24
# Entries whose squares still add up in floats.
LARGEST = 1e100


class Workload:
    """Base of all workloads: a matrix that is described, not stored."""

    __slots__ = ()

    @property
    def domain(self) -> tuple[int, ...]:
        """The number of values of each attribute; their product is the number of cells."""
        raise NotImplementedError

    @property
    def queries(self) -> int:
        """The number of questions, which are the rows."""
        raise NotImplementedError

    @property
    def cells(self) -> int:
        return math.prod(self.domain)

    @property
    def shape(self) -> tuple[int, int]:
        return self.queries, self.cells

    def times(self, x: Any) -> Floats:
        """The answers W x."""
        raise NotImplementedError

    def transposed(self, y: Any) -> Floats:
        """Wᵀ y: one number for each cell."""
        raise NotImplementedError

    def gram(self) -> Floats:
        """Wᵀ W, written out: cells by cells."""
        raise NotImplementedError

    def rows(self) -> Iterator[Floats]:
        """W in blocks of rows, so that no more than `MOST_ENTRIES` numbers are in memory."""
        raise NotImplementedError

    def dense(self) -> Floats:
        """W written out; refused where it is large."""
        self._require_small(self.queries * self.cells, "the matrix")
        return np.concatenate(list(self.rows()))

    @property
    def frobenius(self) -> float:
        """The sum of all squared entries: the trace of the Gram matrix."""
        return float(np.trace(self.gram()))

    def column_norms(self, power: int) -> Floats:
        """The sum of |entry|^power in each column."""
        return np.asarray(np.sum([np.sum(np.abs(block) ** power, axis=0) for block in self.rows()], axis=0))

    def _vector(self, x: Any, length: int) -> Floats:
        values = np.asarray(x, dtype=np.float64)
        if values.shape != (length,):
            raise InvalidInput(
                f"a vector of {length} numbers is needed here, got shape {values.shape}. Nothing was computed."
            )
        return values

    def _require_small(self, entries: int, what: str) -> None:
        if entries > MOST_ENTRIES:
            raise InvalidInput(
                f"{what} of a workload with {self.queries:,} questions and {self.cells:,} cells would have {entries:,} entries. Nothing was "
                f"computed. Keep it implicit: a product over attributes, or marginals."
            )


@described
@dataclass(frozen=True, slots=True, kw_only=True)
class Identity(Workload):
    """Each cell by itself: a histogram."""

    n: int

    def __post_init__(self) -> None:
        _require.integer(n=self.n, at_least=1)

    @property
    def domain(self) -> tuple[int, ...]:
        return (self.n,)

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
        for at in _blocks(self.n, self.n):
            yield np.eye(self.n)[at]


@described
@dataclass(frozen=True, slots=True, kw_only=True)
class Total(Workload):
    """The sum of all cells."""

    n: int

    def __post_init__(self) -> None:
        _require.integer(n=self.n, at_least=1)

    @property
    def domain(self) -> tuple[int, ...]:
        return (self.n,)

    @property
    def queries(self) -> int:
        return 1

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


@described
@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix(Workload):
    """The sums of the first cell, the first two, ... all n: a cumulative distribution."""

    n: int

    def __post_init__(self) -> None:
        _require.integer(n=self.n, at_least=1)

    @property
    def domain(self) -> tuple[int, ...]:
        return (self.n,)

    @property
    def queries(self) -> int:
        return self.n

    def times(self, x: Any) -> Floats:
        return np.cumsum(self._vector(x, self.n))

    def transposed(self, y: Any) -> Floats:
        return np.cumsum(self._vector(y, self.n)[::-1])[::-1]

    def gram(self) -> Floats:
        self._require_small(self.n**2, "the Gram matrix")
        place = np.arange(self.n)
        return (self.n - np.maximum.outer(place, place)).astype(np.float64)

    @property
    def frobenius(self) -> float:
        return self.n * (self.n + 1) / 2

    def rows(self) -> Iterator[Floats]:
        for at in _blocks(self.n, self.n):
            yield (np.arange(self.n) <= np.arange(self.n)[at, None]).astype(np.float64)


@described
@dataclass(frozen=True, slots=True, kw_only=True)
class AllRanges(Workload):
    """The sums of all n (n + 1) / 2 ranges of cells, by first cell, then by last."""

    n: int

    def __post_init__(self) -> None:
        _require.integer(n=self.n, at_least=1)

    @property
    def domain(self) -> tuple[int, ...]:
        return (self.n,)

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
        steps = np.bincount(first, values, self.n + 1) - np.bincount(last + 1, values, self.n + 1)
        return np.cumsum(steps)[:-1]

    def gram(self) -> Floats:
        self._require_small(self.n**2, "the Gram matrix")
        place = np.arange(self.n, dtype=np.float64)
        return np.asarray((np.minimum.outer(place, place) + 1) * (self.n - np.maximum.outer(place, place)))

    @property
    def frobenius(self) -> float:
        return self.n * (self.n + 1) * (self.n + 2) / 6

    def rows(self) -> Iterator[Floats]:
        first, last = np.triu_indices(self.n)
        place = np.arange(self.n)
        for at in _blocks(self.queries, self.n):
            yield ((place >= first[at, None]) & (place <= last[at, None])).astype(np.float64)


@described
@dataclass(frozen=True, slots=True, kw_only=True)
class Explicit(Workload):
    """Any matrix, row by row; `over` says how its cells are made of attributes (one attribute unless told otherwise)."""

    matrix: tuple[tuple[float, ...], ...]
    over: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        rows = tuple(tuple(_require.listed(row=row)) for row in _require.listed(matrix=self.matrix))
        _require.non_empty(matrix=rows)
        if len({len(row) for row in rows}) > 1 or not rows[0]:
            raise InvalidInput("the rows of a workload must have one length, of at least 1. Nothing was computed.")
        for row in rows:
            _require.finite(**{f"entry_{j}": value for j, value in enumerate(row)})
        object.__setattr__(self, "matrix", tuple(tuple(float(v) for v in row) for row in rows))
        if max(abs(v) for row in self.matrix for v in row) > LARGEST:
            raise InvalidInput(f"the entries of a workload must be at most {LARGEST:g} in size. Nothing was computed.")
        over = tuple(_require.listed(over=self.over)) or (len(rows[0]),)
        for size in over:
            _require.integer(size=size, at_least=1)
        if math.prod(over) != len(rows[0]):
            raise InvalidInput(f"attributes of sizes {over} have {math.prod(over)} cells, the rows {len(rows[0])}.")
        object.__setattr__(self, "over", over)

    @property
    def domain(self) -> tuple[int, ...]:
        return self.over

    @property
    def queries(self) -> int:
        return len(self.matrix)

    def times(self, x: Any) -> Floats:
        return self.dense() @ self._vector(x, self.cells)

    def transposed(self, y: Any) -> Floats:
        return self.dense().T @ self._vector(y, self.queries)

    def gram(self) -> Floats:
        self._require_small(self.cells**2, "the Gram matrix")
        W = self.dense()
        return W.T @ W

    def rows(self) -> Iterator[Floats]:
        yield _array(self)


@lru_cache(maxsize=16)
def _array(workload: Explicit) -> Floats:
    array = np.array(workload.matrix)
    array.setflags(write=False)
    return array


@described
@dataclass(frozen=True, slots=True, kw_only=True)
class Product(Workload):
    """The Kronecker product of workloads over different attributes: one question for each combination of theirs."""

    factors: tuple[Workload, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "factors", _workloads(self.factors))

    @property
    def domain(self) -> tuple[int, ...]:
        return tuple(size for factor in self.factors for size in factor.domain)

    @property
    def queries(self) -> int:
        return math.prod(factor.queries for factor in self.factors)

    def times(self, x: Any) -> Floats:
        self._require_small(max(self.cells, self.queries), "the vector")
        return kron_times([f.times for f in self.factors], [f.cells for f in self.factors], self._vector(x, self.cells))

    def transposed(self, y: Any) -> Floats:
        self._require_small(max(self.cells, self.queries), "the vector")
        sizes = [f.queries for f in self.factors]
        return kron_times([f.transposed for f in self.factors], sizes, self._vector(y, self.queries))

    def gram(self) -> Floats:
        self._require_small(self.cells**2, "the Gram matrix")
        return kron_all(factor.gram() for factor in self.factors)

    @property
    def frobenius(self) -> float:
        return math.prod(factor.frobenius for factor in self.factors)

    def rows(self) -> Iterator[Floats]:
        self._require_small(self.cells, "a row")
        *others, last = self.factors
        if not others:
            yield from last.rows()
            return
        for head in Product(factors=tuple(others)).rows():
            for row in head:
                for block in last.rows():
                    yield np.kron(row, block)


@described
@dataclass(frozen=True, slots=True, kw_only=True)
class Union(Workload):
    """Several workloads over the same cells, one after the other; an answer counts with the square of its part's weight in the error."""

    parts: tuple[Workload, ...]
    weights: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", _workloads(self.parts))
        object.__setattr__(self, "weights", _weights(self.weights, len(self.parts)))
        if len({part.domain for part in self.parts}) > 1:
            raise InvalidInput(
                f"the parts of a union must have the same cells, got {sorted({p.domain for p in self.parts})}. Nothing was computed."
            )

    @property
    def domain(self) -> tuple[int, ...]:
        return self.parts[0].domain

    @property
    def queries(self) -> int:
        return sum(part.queries for part in self.parts)

    def times(self, x: Any) -> Floats:
        """The answers, each in its own unit: weights say what an error counts, and do not scale answers."""
        return np.concatenate([part.times(x) for part in self.parts])

    def transposed(self, y: Any) -> Floats:
        values = self._vector(y, self.queries)
        ends = np.cumsum([part.queries for part in self.parts])[:-1]
        return np.asarray(
            np.sum([p.transposed(v) for p, v in zip(self.parts, np.split(values, ends), strict=True)], axis=0)
        )

    def gram(self) -> Floats:
        """Of the weighted rows: what the weighted error depends on."""
        return np.asarray(
            np.sum([w**2 * part.gram() for w, part in zip(self.weights, self.parts, strict=True)], axis=0)
        )

    @property
    def frobenius(self) -> float:
        return sum(w**2 * part.frobenius for w, part in zip(self.weights, self.parts, strict=True))

    def rows(self) -> Iterator[Floats]:
        for part in self.parts:
            yield from part.rows()


@described
@dataclass(frozen=True, slots=True, kw_only=True)
class Marginals(Workload):
    """Tables by some attributes, for each of `sets` (tuples of positions in `sizes`): a union of products, never written out.

    `bases`: what is asked of each attribute in a table that has it, `Identity` (each value) unless given: with `Prefix` for age, a table by age
    and sex holds the cumulative counts by age for each sex.
    """

    sizes: tuple[int, ...]
    sets: tuple[tuple[int, ...], ...]
    weights: tuple[float, ...] = ()
    bases: tuple[Workload, ...] = ()

    def __post_init__(self) -> None:
        sizes = tuple(_require.listed(sizes=self.sizes))
        _require.non_empty(sizes=sizes)
        for size in sizes:
            _require.integer(size=size, at_least=1)
        sets = tuple(tuple(_require.listed(set=s)) for s in _require.listed(sets=self.sets))
        _require.non_empty(sets=sets)
        for s in sets:
            if any(not _is_position(i, len(sizes)) for i in s) or list(s) != sorted(set(s)):
                raise InvalidInput(
                    f"a marginal is given by different positions between 0 and {len(sizes) - 1} in increasing order, got {s}. Nothing was computed."
                )
        if len(set(sets)) < len(sets):
            raise InvalidInput("a marginal is asked for twice. Nothing was computed. Give it more weight instead.")
        object.__setattr__(self, "sizes", sizes)
        object.__setattr__(self, "sets", sets)
        object.__setattr__(self, "weights", _weights(self.weights, len(sets)))
        bases = tuple(_require.listed(bases=self.bases)) or tuple(Identity(n=n) for n in sizes)
        if tuple(b.domain if isinstance(b, Workload) else None for b in bases) != tuple((n,) for n in sizes):
            raise InvalidInput(
                f"bases are workloads over one attribute each, of sizes {sizes}, such as prefix({sizes[0]}). Nothing was computed."
            )
        object.__setattr__(self, "bases", bases)

    @property
    def domain(self) -> tuple[int, ...]:
        return self.sizes

    @property
    def queries(self) -> int:
        return sum(self.asked(s) for s in self.sets)

    def asked(self, attributes: Iterable[int]) -> int:
        """The number of questions of one table."""
        return math.prod(self.bases[i].queries for i in attributes)

    def size_of(self, attributes: Iterable[int]) -> int:
        """The number of cells of one table."""
        return math.prod(self.sizes[i] for i in attributes)

    @property
    def closure(self) -> tuple[tuple[int, ...], ...]:
        """All subsets of the sets, smaller ones first: the interactions that the tables are made of."""
        subsets = {sub for s in self.sets for k in range(len(s) + 1) for sub in combinations(s, k)}
        return tuple(sorted(subsets, key=lambda s: (len(s), s)))

    def answers_of(self, attributes: tuple[int, ...], table: Floats) -> Floats:
        """The questions of one table, from its counts."""
        maps = [self.bases[i].times for i in attributes]
        if all(isinstance(self.bases[i], Identity) for i in attributes):
            return table.ravel()
        return kron_times(maps, [self.sizes[i] for i in attributes], table.ravel())

    def times(self, x: Any) -> Floats:
        self._require_small(self.cells, "the vector")
        table = self._vector(x, self.cells).reshape(self.sizes)
        axes = set(range(len(self.sizes)))
        return np.concatenate([self.answers_of(s, table.sum(axis=tuple(axes - set(s)))) for s in self.sets])

    def transposed(self, y: Any) -> Floats:
        return self.as_union().transposed(y)

    def as_union(self) -> Union:
        """The same as a union of products."""
        parts = tuple(
            Product(factors=tuple(self.bases[i] if i in s else Total(n=n) for i, n in enumerate(self.sizes)))
            for s in self.sets
        )
        return Union(parts=parts, weights=self.weights)

    def gram(self) -> Floats:
        return self.as_union().gram()

    @property
    def frobenius(self) -> float:
        return self.as_union().frobenius

    def rows(self) -> Iterator[Floats]:
        return self.as_union().rows()


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
    """Return the workload of any matrix: an array, or rows of numbers."""
    try:
        array = np.asarray(matrix)
    except ValueError:
        raise InvalidInput("the rows of a workload must have one length. Nothing was computed.") from None
    if array.ndim != 2 or array.dtype == object or not (np.issubdtype(array.dtype, np.number) or array.dtype == bool):
        raise _require.fail("matrix", f"an array of shape {array.shape} and kind {array.dtype}", "rows of numbers")
    return Explicit(matrix=tuple(map(tuple, array.astype(np.float64).tolist())), over=tuple(over))


def predicates(conditions: Any, over: Sequence[int] = ()) -> Explicit:
    """Return the workload that counts by conditions: rows of True and False, one entry for each cell."""
    array = np.asarray(conditions)
    if array.dtype != bool:
        raise _require.fail("conditions", f"an array of kind {array.dtype}", "rows of True and False")
    return explicit(array, over)


def product(*factors: Workload) -> Product:
    """Return the Kronecker product: every question of the first combined with every question of the others."""
    return Product(factors=factors)


def union(*parts: Workload, weights: Sequence[float] = ()) -> Union:
    """Return several workloads over the same cells as one."""
    return Union(parts=parts, weights=tuple(weights))


def marginals(
    sizes: Sequence[int],
    sets: Iterable[Sequence[int]] | None = None,
    *,
    ways: int | None = None,
    weights: Sequence[float] = (),
    bases: Mapping[int, Workload] | None = None,
) -> Marginals:
    """Return the tables by the given sets of attributes, or by all sets of `ways` of them; `bases` by position, see `Marginals`.

    >>> marginals([2, 3, 4], ways=2).sets
    ((0, 1), (0, 2), (1, 2))
    """
    sizes = tuple(_require.listed(sizes=sizes))
    if (sets is None) == (ways is None):
        raise InvalidInput("say which marginals: sets=[(0, 1), ...], or ways=2 for all pairs. Nothing was computed.")
    if ways is not None:
        _require.integer(ways=ways, at_least=0)
        sets = combinations(range(len(sizes)), ways)
    listed = tuple(tuple(_require.listed(set=s)) for s in sets or ())
    asked = tuple((bases or {}).get(i) or Identity(n=n) for i, n in enumerate(sizes))
    return Marginals(sizes=sizes, sets=listed, weights=tuple(weights), bases=asked)


def row_squares(workload: Workload) -> Floats:
    """The sum of squared entries of each question, without writing them out."""
    if isinstance(workload, Identity):
        return np.ones(workload.n)
    if isinstance(workload, Total):
        return np.array([float(workload.n)])
    if isinstance(workload, Prefix):
        return np.arange(1.0, workload.n + 1)
    if isinstance(workload, Product):
        return kron_all(row_squares(factor) for factor in workload.factors)
    if isinstance(workload, Marginals):
        return row_squares(workload.as_union())
    if isinstance(workload, Union):
        return np.concatenate([row_squares(part) for part in workload.parts])
    return np.concatenate([(block**2).sum(axis=1) for block in workload.rows()])


def unweighted(workload: Workload) -> Workload:
    """The same questions, each with weight 1: weights say what an error counts, not what is measured when a workload is its own strategy."""
    if isinstance(workload, Union):
        return Union(parts=tuple(unweighted(part) for part in workload.parts))
    if isinstance(workload, Marginals):
        return replace(workload, weights=())
    if isinstance(workload, Product):
        return Product(factors=tuple(unweighted(factor) for factor in workload.factors))
    return workload


def kron_all(parts: Iterable[Floats]) -> Floats:
    """The Kronecker product of arrays, from the first on."""
    whole: Any = 1.0
    for part in parts:
        whole = np.kron(whole, part)
    return np.asarray(whole)


def kron_times(maps: Sequence[Any], sizes: Sequence[int], x: Floats) -> Floats:
    """(A ⊗ B ⊗ ...) x, one factor after the other: each map turns a vector of its size into another."""
    table = x.reshape([int(s) for s in sizes])
    for axis, f in enumerate(maps):
        moved = np.moveaxis(table, axis, 0)
        flat = np.ascontiguousarray(moved).reshape(moved.shape[0], -1)
        done = np.stack([f(column) for column in flat.T], axis=1) if flat.shape[1] else np.zeros((0, 0))
        table = np.moveaxis(done.reshape(done.shape[0], *moved.shape[1:]), 0, axis)
    return np.ascontiguousarray(table).ravel()


def _blocks(rows: int, columns: int) -> Iterator[slice]:
    step = max(1, MOST_ENTRIES // max(1, columns) // 4)
    for start in range(0, rows, step):
        yield slice(start, min(rows, start + step))


def _weights(given: Any, length: int) -> tuple[float, ...]:
    weights = tuple(_require.listed(weights=given)) or (1.0,) * length
    for weight in weights:
        _require.positive(weight=weight)
    if len(weights) != length:
        raise InvalidInput(f"{length} parts need as many weights, got {len(weights)}. Nothing was computed.")
    return tuple(float(weight) for weight in weights)


def _workloads(given: Any) -> tuple[Workload, ...]:
    parts = _require.listed(parts=given)
    _require.non_empty(parts=parts)
    for part in parts:
        if not isinstance(part, Workload):
            raise _require.fail("a part", type(part).__name__, "a workload, such as prefix(16)")
    return parts


def _is_position(i: Any, length: int) -> bool:
    return isinstance(i, int) and not isinstance(i, bool) and 0 <= i < length
