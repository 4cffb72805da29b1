"""Makes tables that share attributes (age by sex, sex by region, region alone) agree on the sums they share,
by exact least squares.

Every marginal is a sum of orthogonal parts, one for each subset of its attributes: the interaction of exactly
the subset's attributes (the Fourier coefficients of Barak et al. 2007; the residuals of Xiao, He, Zhang &
Kifer 2023, arXiv:2305.08175). Noise of equal variance in all cells of a table is uncorrelated between the
parts, so least squares is a weighted average of each part over the tables that contain it. No matrix over the
cells of all attributes is built, so a hundred attributes are possible.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Annotated, Any

import numpy as np
from scipy import sparse

from .. import _require
from .._errors import InvalidInput
from .._require import LISTED, NON_NEGATIVE
from . import _check
from ._check import Floats
from .least_squares import Noise, _weighted_mean, width

Attributes = tuple[Hashable, ...]


@_require.checked
@dataclass(frozen=True, eq=False, kw_only=True)
class Marginal:
    """Holds a table of counts, one axis for each attribute, and the variance of the noise in each of its
    cells.

    A table without attributes is the total. A variance of zero marks a public table. After
    `consistent_marginals` the cells of one table are correlated; `variance` is that of each single cell. With
    `interaction` the values measure only the interaction of all attributes, as residual strategies do: their
    averages along every axis are zero, or are ignored. `variance` is then that of the noise before these
    averages were subtracted.
    """

    attributes: Annotated[Attributes, LISTED]
    values: Floats
    variance: Annotated[float, NON_NEGATIVE]
    interaction: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "values", _check.numbers("values", self.values, dimensions=len(self.attributes))
        )
        _require_distinct(self.attributes)
        _require.that(self.values.size, f"a marginal must not be empty, got shape {self.values.shape}.")

    def interval(self, confidence: float = 0.95, *, noise: Noise = "gaussian") -> tuple[Floats, Floats]:
        """Return, for each cell, an interval that holds the truth with probability `confidence`; see
        `width`."""
        half_width = width(confidence, noise) * math.sqrt(self.variance)
        return self.values - half_width, self.values + half_width


def consistent_marginals(
    measured: Sequence[Marginal], wanted: Iterable[Sequence[Hashable]] | None = None
) -> tuple[Marginal, ...]:
    """Return the same marginals (or the `wanted` ones, given by their attributes) such that they agree on
    every sum they share, with their new variances.

    Guarantee: best linear unbiased estimates: generalized least squares over all cells of all attributes.
    Proof:     the parts of different subsets are uncorrelated, within a table (orthogonal projections of
               noise with equal variances) and between tables (independent noise); so the normal equations
               split by part. Tests compare with the dense solution.
    Assumes:   independent noise, of equal variance in all cells of a table. For variances that differ from
               cell to cell use `marginal_matrix` with `measured`.

    >>> sex = Marginal(attributes=("sex",), values=[52.0, 49.0], variance=2.0)
    >>> total = Marginal(attributes=(), values=100.0, variance=0.0)
    >>> consistent_marginals([sex, total])[0].values.tolist()
    [51.5, 48.5]
    """
    sizes = _sizes(measured)
    attribute_sets = (
        [m.attributes for m in measured]
        if wanted is None
        else [_require.listed(wanted_attributes=w) for w in wanted]
    )
    for attributes in attribute_sets:
        _require_known(attributes, sizes)
    parts: dict[frozenset[Hashable], tuple[Floats, float]] = {}
    position = {name: i for i, name in enumerate(sizes)}
    for attributes in attribute_sets:
        for subset in _subsets(attributes):
            if frozenset(subset) not in parts:
                names = tuple(sorted(subset, key=position.__getitem__))
                parts[frozenset(subset)] = _part(names, measured)
    return tuple(_rebuilt(attributes, sizes, position, parts) for attributes in attribute_sets)


def marginal_matrix(sizes: dict[Hashable, int], attributes: Sequence[Hashable]) -> Any:
    """Return the sparse matrix that sums the cells of the full table to the marginal of `attributes`.

    `sizes` has the number of values of each attribute; columns are the cells of the full table, rows those of
    the marginal, both in C order.
    """
    _require_known(attributes, sizes)
    names = list(sizes)
    cells = math.prod(sizes.values())
    positions = np.unravel_index(np.arange(cells), tuple(sizes.values()))
    row = np.zeros(cells, np.int64)
    for name in attributes:
        row = row * sizes[name] + positions[names.index(name)]
    rows = math.prod(sizes[name] for name in attributes)
    return sparse.csr_array((np.ones(cells), (row, np.arange(cells))), shape=(rows, cells))


def _require_distinct(attributes: Sequence[Hashable]) -> None:
    listed = tuple(attributes)
    _require.that(len(set(listed)) == len(listed), f"attributes must differ from each other, got {listed!r}.")


def _require_known(attributes: Sequence[Hashable], sizes: dict[Hashable, int]) -> None:
    """Refuse attributes that no table has, and attributes named twice."""
    _require_distinct(attributes)
    unknown = [name for name in attributes if name not in sizes]
    if unknown:
        raise InvalidInput(f"there is no attribute {unknown[0]!r}; there are {', '.join(map(repr, sizes))}.")


def _sizes(measured: Sequence[Marginal]) -> dict[Hashable, int]:
    """Return the number of values of each attribute; refuse marginals that disagree."""
    _require.non_empty(measured=measured)
    sizes: dict[Hashable, int] = {}
    for marginal in measured:
        for name, size in zip(marginal.attributes, marginal.values.shape, strict=True):
            if sizes.setdefault(name, size) != size:
                raise InvalidInput(
                    f"attribute {name!r} has {sizes[name]} values in one marginal and {size} in another."
                )
    return sizes


def _subsets(attributes: Attributes) -> Iterable[Attributes]:
    """Return all subsets of the attributes, the empty one first."""
    return (subset for k in range(len(attributes) + 1) for subset in combinations(attributes, k))


def _part(names: Attributes, measured: Sequence[Marginal]) -> tuple[Floats, float]:
    """Return the interaction of exactly `names`, averaged over all marginals that contain them, and its
    variance per cell before centering. The axes are in the order of `names`."""
    centered_tables, table_variances = [], []
    for marginal in measured:
        fits = (
            set(names) == set(marginal.attributes)
            if marginal.interaction
            else set(names) <= set(marginal.attributes)
        )
        if fits:
            kept = [marginal.attributes.index(name) for name in names]
            # the table over `names` alone; each of its cells is the sum of values.size / summed.size cells
            summed = marginal.values.sum(axis=tuple(set(range(marginal.values.ndim)) - set(kept)))
            # `summed` has its axes in the marginal's order: the axis of each name is the rank of its index
            order = np.argsort(np.argsort(kept))
            centered_tables.append(_center(np.transpose(summed, order) if kept else summed))
            table_variances.append(marginal.variance * marginal.values.size / max(1, summed.size))
    _require.that(
        centered_tables,
        f"no measured marginal has all of {names!r}, so their joint table cannot be estimated.",
    )
    values, variance = _weighted_mean(
        np.array(centered_tables), np.array(table_variances), f"the marginals of {names!r} known exactly"
    )
    return values, variance


def _center(table: Any) -> Floats:
    """Return the table less its averages along every axis: the interaction of all axes together."""
    centered = np.asarray(table, dtype=np.float64)
    for axis in range(centered.ndim):
        centered = centered - centered.mean(axis=axis, keepdims=True)
    return centered


def _rebuilt(
    attributes: Attributes, sizes: dict[Hashable, int], position: dict[Hashable, int], parts: Any
) -> Marginal:
    """Return the marginal of `attributes` as the sum of its parts: the part of each subset is divided evenly
    among the cells of the other attributes.

    `parts` has for each subset its values, with axes in the order of `position`, and their variance.
    """
    total, variance = np.zeros(tuple(sizes[a] for a in attributes)), 0.0
    for subset in _subsets(attributes):
        values, part_variance = parts[frozenset(subset)]
        names = sorted(subset, key=position.__getitem__)
        in_subset = tuple(a for a in attributes if a in subset)
        turned = np.transpose(values, [names.index(a) for a in in_subset]) if in_subset else values
        others = math.prod(sizes[a] for a in attributes if a not in subset)
        total += turned.reshape([sizes[a] if a in subset else 1 for a in attributes]) / others
        # centering along an axis of size k leaves 1 - 1 / k of the variance; parts are uncorrelated
        variance += part_variance * math.prod(1 - 1 / sizes[a] for a in subset) / others**2
    return Marginal(attributes=attributes, values=total, variance=variance)
