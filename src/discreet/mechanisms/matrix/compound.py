"""Defines workloads made of other workloads: products over attributes, unions and marginals.

Their matrices are not written out, so the number of cells may be large.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Annotated, Any

import numpy as np

from ... import _require
from ..._errors import InvalidInput
from ..._registry import described
from ..._require import FLOAT, LISTED, NON_EMPTY, POSITIVE
from .workloads import WORKLOAD, Floats, Identity, Prefix, Sizes, Total, Workload

Workloads = Annotated[tuple[Annotated[Workload, WORKLOAD], ...], NON_EMPTY]
Weights = tuple[Annotated[float, POSITIVE, FLOAT], ...]


@described("matrix.Product")
class Product(Workload):
    """The Kronecker product of workloads over different attributes: one question for each combination of the
    factors' questions."""

    factors: Workloads

    @property
    def domain(self) -> tuple[int, ...]:
        return tuple(size for factor in self.factors for size in factor.domain)

    @property
    def queries(self) -> int:
        return math.prod(factor.queries for factor in self.factors)

    def times(self, x: Any) -> Floats:
        self._require_small(max(self.cells, self.queries), "the vector")
        return kron_times(
            [f.times for f in self.factors], [f.cells for f in self.factors], self._vector(x, self.cells)
        )

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


@described("matrix.Union")
class Union(Workload):
    """Several workloads over the same cells, one after the other. The error to be minimized is the sum of the
    variances of all answers, each times the squared weight of its part."""

    parts: Workloads
    weights: Weights = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "weights", one_for_each(self.weights, len(self.parts)))
        if len({part.domain for part in self.parts}) > 1:
            raise InvalidInput(
                "the parts of a union must have the same cells, got "
                f"{sorted({p.domain for p in self.parts})}."
            )

    @property
    def domain(self) -> tuple[int, ...]:
        return self.parts[0].domain

    @property
    def queries(self) -> int:
        return sum(part.queries for part in self.parts)

    def times(self, x: Any) -> Floats:
        """Return the answers, not multiplied by the weights: these say how much an error counts."""
        return np.concatenate([part.times(x) for part in self.parts])

    def transposed(self, y: Any) -> Floats:
        values = self._vector(y, self.queries)
        ends = np.cumsum([part.queries for part in self.parts])[:-1]
        return np.asarray(
            np.sum([p.transposed(v) for p, v in zip(self.parts, np.split(values, ends), strict=True)], axis=0)
        )

    def gram(self) -> Floats:
        """Return the Gram matrix of the rows times their weights, on which the weighted error depends."""
        return np.asarray(
            np.sum([w**2 * part.gram() for w, part in zip(self.weights, self.parts, strict=True)], axis=0)
        )

    @property
    def frobenius(self) -> float:
        return sum(w**2 * part.frobenius for w, part in zip(self.weights, self.parts, strict=True))

    def rows(self) -> Iterator[Floats]:
        for part in self.parts:
            yield from part.rows()


@described("matrix.Marginals")
class Marginals(Workload):
    """One table of counts for each set of attributes in `sets`: a union of products, never written out.

    `sizes`: the number of values of each attribute. A set is a tuple of positions in `sizes`. `weights`: one
    per set, as in `Union`. `bases`: for each attribute, the workload that its tables ask along it, `Identity`
    (each value) unless given: with `Prefix` for age, a table by age and sex holds the cumulative counts by
    age for each sex.
    """

    sizes: Annotated[Sizes, NON_EMPTY]
    sets: Annotated[tuple[Annotated[tuple[int, ...], LISTED], ...], NON_EMPTY]
    weights: Weights = ()
    bases: tuple[Annotated[Workload, WORKLOAD], ...] = ()

    def __post_init__(self) -> None:
        sizes, sets = self.sizes, self.sets
        for s in sets:
            _require.that(
                all(_is_position(i, len(sizes)) for i in s) and list(s) == sorted(set(s)),
                f"a marginal is given by different positions between 0 and {len(sizes) - 1} in "
                f"increasing order, got {s}.",
            )
        _require.that(
            len(set(sets)) == len(sets), "a marginal is asked for twice. Give it more weight instead."
        )
        object.__setattr__(self, "weights", one_for_each(self.weights, len(sets)))
        bases = self.bases or tuple(Identity(n=n) for n in sizes)
        if tuple(base.domain for base in bases) != tuple((n,) for n in sizes):
            raise InvalidInput(
                f"bases are workloads over one attribute each, of sizes {sizes}, such as prefix({sizes[0]})."
            )
        object.__setattr__(self, "bases", bases)

    @property
    def domain(self) -> tuple[int, ...]:
        return self.sizes

    @property
    def queries(self) -> int:
        return sum(self.questions_of(s) for s in self.sets)

    def questions_of(self, attributes: Iterable[int]) -> int:
        """Return the number of questions of one table."""
        return math.prod(self.bases[i].queries for i in attributes)

    def size_of(self, attributes: Iterable[int]) -> int:
        """Return the number of cells of one table."""
        return math.prod(self.sizes[i] for i in attributes)

    @property
    def closure(self) -> tuple[tuple[int, ...], ...]:
        """All subsets of the sets, smaller ones first: the interactions that the tables are made of
        (`strategies`)."""
        subsets = {sub for s in self.sets for k in range(len(s) + 1) for sub in combinations(s, k)}
        return tuple(sorted(subsets, key=lambda s: (len(s), s)))

    def answers_of(self, attributes: tuple[int, ...], table: Floats) -> Floats:
        """Return the answers to the questions of one table, from its counts."""
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
        """Return the same questions, in the same order, as a union of products."""
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


def product(*factors: Workload) -> Product:
    """Return the Kronecker product: every question of the first combined with every question of the
    others."""
    return Product(factors=factors)


def union(*parts: Workload, weights: Sequence[float] = ()) -> Union:
    """Return several workloads over the same cells as one."""
    return Union(parts=parts, weights=weights)  # type: ignore[arg-type]


def marginals(
    sizes: Sequence[int],
    sets: Iterable[Sequence[int]] | None = None,
    *,
    ways: int | None = None,
    weights: Sequence[float] = (),
    bases: Mapping[int, Workload] | None = None,
) -> Marginals:
    """Return the tables by the given sets of attributes, or by all sets of `ways` attributes. `bases` maps
    positions of attributes to workloads; see `Marginals`.

    >>> marginals([2, 3, 4], ways=2).sets
    ((0, 1), (0, 2), (1, 2))
    """
    sizes = tuple(_require.listed(sizes=sizes))
    _require.that(
        (sets is None) != (ways is None), "say which marginals: sets=[(0, 1), ...], or ways=2 for all pairs."
    )
    if ways is not None:
        _require.integer(ways=ways, at_least=0)
        sets = combinations(range(len(sizes)), ways)
    listed = tuple(tuple(_require.listed(set=s)) for s in sets or ())
    by_position = dict(bases or {})
    if unknown := [key for key in by_position if not _is_position(key, len(sizes))]:
        raise _require.fail(
            "a key of bases", unknown[0], f"the position of an attribute, 0 to {len(sizes) - 1}"
        )
    factors = tuple(by_position.get(i) or Identity(n=n) for i, n in enumerate(sizes))
    return Marginals(sizes=sizes, sets=listed, weights=tuple(weights), bases=factors)


def row_squares(workload: Workload) -> Floats:
    """Return the sum of the squared entries of each row, mostly without writing the rows out."""
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
    """Return the same questions, each with weight 1: weights say how much an error counts, and do not scale
    the measurements where a workload is its own strategy."""
    if isinstance(workload, Union):
        return Union(parts=tuple(unweighted(part) for part in workload.parts))
    if isinstance(workload, Marginals):
        return replace(workload, weights=())
    if isinstance(workload, Product):
        return Product(factors=tuple(unweighted(factor) for factor in workload.factors))
    return workload


def kron_all(parts: Iterable[Floats]) -> Floats:
    """Return the Kronecker product of arrays, in their order."""
    product: Any = 1.0
    for part in parts:
        product = np.kron(product, part)
    return np.asarray(product)


def kron_times(maps: Sequence[Any], sizes: Sequence[int], x: Floats) -> Floats:
    """Return (A ⊗ B ⊗ ...) x, one factor after the other. `maps` are the functions v -> A v, v -> B v, ...,
    `sizes` the lengths of their arguments."""
    table = x.reshape([int(s) for s in sizes])
    for axis, apply in enumerate(maps):
        leading = np.moveaxis(table, axis, 0)
        flat = np.ascontiguousarray(leading).reshape(leading.shape[0], -1)
        mapped = np.stack([apply(column) for column in flat.T], axis=1) if flat.shape[1] else np.zeros((0, 0))
        table = np.moveaxis(mapped.reshape(mapped.shape[0], *leading.shape[1:]), 0, axis)
    return np.ascontiguousarray(table).ravel()


def one_for_each(weights: tuple[float, ...], length: int, what: str = "parts") -> tuple[float, ...]:
    """Return one weight for each of `length` things, which the error calls `what`; all 1 if none are
    given."""
    _require.that(
        not weights or len(weights) == length, f"{length} {what} need as many weights, got {len(weights)}."
    )
    return weights or (1.0,) * length


def _is_position(i: Any, length: int) -> bool:
    return isinstance(i, int) and not isinstance(i, bool) and 0 <= i < length
