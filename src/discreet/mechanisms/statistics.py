"""Defines statistics: exact integers computed from a table, each with its sensitivity to one row. Noise is
added to them.

A number is clipped to its declared bounds and put on an integer grid *before* it is summed, so a sum is an
exact integer: no order, size or contents of the table makes it wrap or raise. Sensitivities are for a unit of
one row (but `Trusted` has the steward's own); many rows per person are bounded by `discreet.query` first. All
three neighbor relations are covered, each with its own sensitivity.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import pairwise
from typing import Annotated, Any

import numpy as np

from .. import _require
from .._errors import Unsupported
from .._public import PUBLIC, REPLACE, ZERO_OUT, Bounds, Neighbors, Public
from .._registry import described
from .._require import EXACT, INTEGER, NON_EMPTY, POSITIVE, Limit, Real, at_least
from ..tables import Source
from . import arrow_columns
from .arrow_columns import as_step
from .protocols import STATISTIC, Integers, Sensitivity, Statistic, integers, require_columns


def row_contribution(neighbors: Neighbors, low: int, high: int, *, nullable: bool) -> int:
    """Return how far one row can move a sum to which every row adds an integer in [low, high] (or nothing, if
    it is `nullable` and missing).

    Guarantee: the largest change over all pairs of neighbors, attained by some pair.
    Proof:     `add_remove`: one term of the sum appears or disappears: max(|low|, |high|).
               `replace`: one term becomes another. With `nullable` terms range over [low, high] and 0:
               max(high, 0) - min(low, 0); without, high - low.
               `zero_out`: one term becomes 0: max(|low|, |high|). Where a missing value counts as `low` (not
               `nullable`), a blank row that is stored as NULL adds `low` instead of 0. Both cases are
               covered: max(|low|, |high|, high - low).

    >>> [row_contribution(n, -1, 3, nullable=True) for n in Neighbors]
    [3, 4, 3]
    """
    ends = max(abs(low), abs(high))
    if neighbors is REPLACE:
        return max(high, 0) - min(low, 0) if nullable else high - low
    if neighbors is ZERO_OUT and not nullable:
        return max(ends, high - low)
    return ends


def implied_sensitivity(
    kind: str, neighbors: Neighbors, *, lower: int = 0, upper: int = 1, nullable: bool = True
) -> int:
    """Return the l1 sensitivity of a count, a histogram, or a sum of integers in [lower, upper], as textbooks
    list it. `nullable=False` means that a missing value counts as the lower bound.

    >>> {n.value: implied_sensitivity("sum", n, lower=-2, upper=5) for n in Neighbors}
    {'add_remove': 5, 'replace': 7, 'zero_out': 5}
    >>> {n.value: implied_sensitivity("histogram", n) for n in Neighbors}
    {'add_remove': 1, 'replace': 2, 'zero_out': 1}
    """
    if kind == "sum":
        _require.ordered(lower=lower, upper=upper)
        return row_contribution(neighbors, lower, upper, nullable=nullable)
    if kind == "histogram":
        return 2 if neighbors is REPLACE or (neighbors is ZERO_OUT and not nullable) else 1
    if kind == "count":
        return 0 if neighbors is REPLACE else 1
    raise _require.fail("kind", kind, "'count', 'histogram' or 'sum'")


def require_rows(public: Public) -> None:
    """Require that one row is one unit of privacy: these sensitivities are about one row. What a person with
    many rows contributes has to be bounded first (`discreet.query`)."""
    PUBLIC("public", public)
    if public.unit.column is not None:
        raise Unsupported(
            f"the unit of privacy is all rows of one person (column {public.unit.column!r}), and this "
            "statistic is for units of one row. Ask with SQL (discreet.query), which bounds what a person "
            "with many rows contributes."
        )


ROWS = Limit(require_rows)


def increasing(least: int) -> Limit:
    """Return the limit of `least` or more numbers that as floats are finite and strictly increasing; they
    become a tuple."""
    return Limit(partial(_increasing, least))


def _increasing(least: int, **named: Any) -> tuple[Real, ...]:
    values = _require.listed(**named)
    ((name, given),) = named.items()
    _require.finite(**{f"{name}[{i}]": edge for i, edge in enumerate(values)})
    as_floats = [_require.float_or_inf(edge) for edge in values]
    ascending = all(a < b for a, b in pairwise(as_floats))
    fits = len(values) >= least and np.isfinite(as_floats).all() and ascending
    _require.must(
        fits, name, given, f"at least {least} numbers in increasing order that floats can tell apart"
    )
    return values


class _Defaults:
    """Gives a statistic its defaults: the result is a single number, in steps of 1."""

    __slots__ = ()

    @property
    def step(self) -> Fraction:
        """The amount that an integer result of 1 stands for."""
        return Fraction(1)

    def length(self, public: Public) -> int | None:
        """Return how many entries the result has; None for a single number."""
        return None


@described("mechanisms.Count")
class Count(_Defaults):
    """Counts the rows.

    Guarantee: moves by at most 1 under add_remove; under replace the number of rows is public and does not
               move. Under zero_out 1 is charged, because a source need not say whether it stores a blank row
               or leaves it out.
    Proof:     by definition of the relations.
    """

    def sensitivity(self, public: Public) -> Sensitivity:
        require_rows(public)
        return Sensitivity(linf=implied_sensitivity("count", public.neighbors))

    def __call__(self, source: Source) -> Integers:
        require_rows(source.public)
        return _scalar(sum(batch.num_rows for batch in source.batches([])))


@described("mechanisms.CountNonNull")
class CountNonNull(_Defaults):
    """Counts the rows that have a value in `column`; NaN and infinities count as missing.

    Guarantee: one row moves it by at most 1, under every relation.
    Proof:     each row adds 0 or 1.
    """

    column: str

    def rehearse(self, source: Source) -> None:
        """Refuse a column that the table does not have. The schema cannot tell: it need not declare it."""
        require_columns(source, self.column)

    def sensitivity(self, public: Public) -> Sensitivity:
        require_rows(public)
        return Sensitivity(linf=1)

    def __call__(self, source: Source) -> Integers:
        require_rows(source.public)
        return _scalar(
            sum(int(arrow_columns.present(a).sum()) for a in arrow_columns.each(source, self.column))
        )


@described("mechanisms.PowerSum")
class PowerSum(_Defaults):
    """Sums (g - center)**power over rows, g being the value of `column` in whole steps of `grid`: an exact
    integer.

    `center` is in steps, too, and public. The result is in units of grid**power. A missing value (NULL, NaN,
    infinite) adds nothing, or counts as the lower bound where the column is declared `nullable=False`.

    Guarantee: one row moves it by `row_contribution` of the range of (g - center)**power over the clipped
               grid.
    Proof:     g lies in [low, high] (`arrow_columns.ColumnGrid`). An odd power is monotone; an even one is
               largest at an end, and smallest at the center if that lies inside, else at the nearer end. The
               sum is exact, so no rounding adds to this.
    """

    column: str
    grid: Annotated[Fraction, EXACT, POSITIVE] = Fraction(1)
    power: Annotated[int, at_least(1)] = 1
    center: Annotated[int, INTEGER] = 0

    @property
    def step(self) -> Fraction:
        return self.grid**self.power

    def sensitivity(self, public: Public) -> Sensitivity:
        require_rows(public)
        low, high = self.range(public)
        nullable = public.bounds(self.column).nullable
        return Sensitivity(linf=row_contribution(public.neighbors, low, high, nullable=nullable))

    def range(self, public: Public) -> tuple[int, int]:
        """Return the smallest and the largest integer that one present value can add."""
        grid = arrow_columns.ColumnGrid(public.bounds(self.column), self.grid, self.column)
        ends = sorted(((grid.low - self.center) ** self.power, (grid.high - self.center) ** self.power))
        if self.power % 2 == 0 and grid.low <= self.center <= grid.high:
            ends[0] = 0
        _require.that(
            max(abs(end) for end in ends) < arrow_columns.LIMIT,
            f"(value - center)**{self.power} of column {self.column!r} may exceed 2**62 in steps of "
            f"{self.grid}. Choose a larger step.",
        )
        return ends[0], ends[1]

    def __call__(self, source: Source) -> Integers:
        require_rows(source.public)
        self.range(source.public)  # refuses powers that 64 bits cannot hold
        return _scalar(sum(arrow_columns.exact_sum(part) for part in contributions(self, source)))


def contributions(statistic: PowerSum, source: Source) -> Any:
    """Yield what each row adds to the sum, one int64 array per batch."""
    bounds = source.public.bounds(statistic.column)
    grid = arrow_columns.ColumnGrid(bounds, statistic.grid, statistic.column)
    for array in arrow_columns.each(source, statistic.column):
        is_present = arrow_columns.present(array)
        on_grid = grid(arrow_columns.numbers(array, statistic.column))
        if not bounds.nullable:
            on_grid = np.where(is_present, on_grid, grid.low)
        added = (on_grid - statistic.center) ** statistic.power
        yield np.where(is_present, added, 0) if bounds.nullable else added


def Sum(column: str, step: Real = 1) -> PowerSum:
    """Return the sum of `column`, each value clipped to its declared bounds and rounded to a multiple of
    `step` before it is added."""
    return PowerSum(column=column, grid=as_step(step))


def SumOfSquares(column: str, step: Real = 1, center: Real = 0) -> PowerSum:
    """Return the sum of squared distances from a public `center` (rounded to the grid); with count and sum it
    gives the variance."""
    grid = as_step(step)
    return PowerSum(
        column=column,
        grid=grid,
        power=2,
        center=arrow_columns.nearest(_require.exact(center, "center") / grid),
    )


@described("mechanisms.Histogram")
class Histogram(_Defaults):
    """Counts the rows in each declared category of `column`, or in each bin between public `edges`.

    Bins are [e0, e1), [e1, e2), ..., the last one closed; values are clipped to their declared bounds first,
    and a value that then lies outside all bins is not counted.

    Guarantee: add_remove and zero_out move one entry by 1; replace moves at most two. Under zero_out two are
               charged where a missing value counts as the lower bound, as a blank row may then land in a bin.
    Proof:     every row is in at most one bin.
    """

    column: str
    edges: Annotated[tuple[Real, ...], increasing(2)] | None = None

    def length(self, public: Public) -> int:
        _require.that(
            self.edges is not None or not isinstance(public.fact(self.column), Bounds),
            f"column {self.column!r} is a number: give the ends of its bins, such as edges=(0, 18, 65).",
        )
        if self.edges is None:
            return len(public.categories(self.column).values)
        bounds = public.bounds(self.column)
        _require.must(
            self.edges[-1] >= bounds.lower and self.edges[0] <= bounds.upper,
            "edges",
            self.edges,
            f"bins of which at least one overlaps the declared bounds of {self.column!r}, "
            f"{bounds.lower} to {bounds.upper}",
        )
        return len(self.edges) - 1

    def sensitivity(self, public: Public) -> Sensitivity:
        require_rows(public)
        # A missing value is in none of the categories.
        nullable = self.edges is None or public.bounds(self.column).nullable
        l1 = implied_sensitivity("histogram", public.neighbors, nullable=nullable)
        return Sensitivity(linf=1, l0=min(l1, self.length(public)))

    def __call__(self, source: Source) -> Integers:
        require_rows(source.public)
        length = self.length(source.public)
        total = np.zeros(length + 1, np.int64)  # the first entry is for rows in no bin
        for array in arrow_columns.each(source, self.column):
            total += np.bincount(self._bins(array, source.public) + 1, minlength=length + 1)
        return total[1:]

    def _bins(self, array: Any, public: Public) -> Integers:
        """Return the bin of each row; -1 for rows in none."""
        if self.edges is None:
            return arrow_columns.categories(array, public.categories(self.column).values, self.column)
        edges = np.array([float(e) for e in self.edges])
        values, is_present = _clip_values(array, public.bounds(self.column), self.column)
        bins = np.searchsorted(edges, values, side="right") - 1
        bins[values == edges[-1]] = len(edges) - 2
        return np.where(is_present & (bins < len(edges) - 1), bins, -1)


@described("mechanisms.CountsBelow")
class CountsBelow(_Defaults):
    """Counts, for each public threshold, the rows whose clipped value is below it: a cumulative histogram.

    Guarantee: one row moves each entry by at most 1, under every relation; all entries may move together.
    Proof:     a row adds 0 or 1 to each entry.
    """

    column: str
    thresholds: Annotated[tuple[Real, ...], increasing(1)]

    def length(self, public: Public) -> int:
        return len(self.thresholds)

    def sensitivity(self, public: Public) -> Sensitivity:
        require_rows(public)
        public.bounds(self.column)  # refuses a column without bounds
        return Sensitivity(linf=1, l0=len(self.thresholds))

    def __call__(self, source: Source) -> Integers:
        require_rows(source.public)
        edges = np.array([float(e) for e in self.thresholds])
        total = np.zeros(len(edges), np.int64)
        for array in arrow_columns.each(source, self.column):
            values, is_present = _clip_values(array, source.public.bounds(self.column), self.column)
            # entry i counts v < edge i: the row enters at the first edge above v
            first = np.searchsorted(edges, values[is_present], side="right")
            total += np.cumsum(np.bincount(first, minlength=len(edges) + 1)[: len(edges)])
        return total


@described("mechanisms.Stack")
class Stack(_Defaults):
    """Joins several statistics into one vector, in order, for one noise. They must have the same `step`.

    Guarantee: norms of the parts add up (l0, l1, squared l2); l-infinity is the largest.
    Proof:     the entries are disjoint, and one row may move all parts.
    """

    parts: Annotated[tuple[Annotated[Statistic, STATISTIC], ...], NON_EMPTY]

    def __post_init__(self) -> None:
        # The step of a statistic from elsewhere may depend on public facts; `step_for` compares all steps.
        fixed = {step_of(part) for part in self.parts if isinstance(part, _Defaults)}
        _one_grid(fixed)

    @property
    def step(self) -> Fraction:
        return step_of(self.parts[0])

    def step_for(self, public: Public) -> Fraction:
        """Return the one step of all parts; refused where they differ."""
        steps = {step_of(part, public) for part in self.parts}
        _one_grid(steps)
        return steps.pop()

    def length(self, public: Public) -> int:
        return sum(1 if (n := length_of(part, public)) is None else n for part in self.parts)

    def sensitivity(self, public: Public) -> Sensitivity:
        each = [part.sensitivity(public) for part in self.parts]
        return Sensitivity(
            linf=max(s.linf for s in each),
            l0=sum(s.l0 for s in each if s.linf),
            l1=sum(s.l1 or 0 for s in each),
            l2_squared=sum(s.l2_squared or 0 for s in each),
        )

    def __call__(self, source: Source) -> Integers:
        return np.concatenate([np.atleast_1d(part(source)) for part in self.parts])


@dataclass(frozen=True, slots=True, kw_only=True)
class Trusted(_Defaults):
    """Runs the steward's own Python function of the source, with the sensitivity the steward vouches for.

    It has no JSON description, so an earlier release is never repeated for free: each is charged.

    Assumes: `function` returns integers (one, or an array of public shape) and moves by at most `claimed`
             between neighbors under the relation of the public facts it is used with. Nothing here can check
             that; `discreet.auditing` can try to refute it. It sees values as they are, not clipped, and
             raises on none: no number can stand in for the answer, so the run fails, which tells of the row.
    """

    function: Callable[[Source], Any]
    claimed: Sensitivity
    name: str = "trusted"
    # how many integers it returns; None for a single one
    entries: int | None = None

    def length(self, public: Public) -> int | None:
        return self.entries

    def sensitivity(self, public: Public) -> Sensitivity:
        return self.claimed

    def __call__(self, source: Source) -> Integers:
        return integers(self.function(source))


def step_of(statistic: Any, public: Public | None = None) -> Fraction:
    """Return the step of a statistic or a stable function: what one unit of its integer result stands for; 1
    unless it says otherwise, by `step`, or for these public facts by `step_for`."""
    step_for = getattr(statistic, "step_for", None)
    if public is not None and step_for is not None:
        return Fraction(step_for(public))
    return Fraction(getattr(statistic, "step", 1))


def _one_grid(steps: set[Fraction]) -> None:
    _require.that(
        len(steps) <= 1,
        "the stacked statistics are on different grids: their steps differ. Give each its own noise.",
    )


def length_of(statistic: Statistic, public: Public) -> int | None:
    """Return the public length of the result; None for a single number, and for a statistic without a method
    `length`."""
    length = getattr(statistic, "length", None)
    return None if length is None else length(public)


def _clip_values(array: Any, bounds: Bounds, column: str) -> tuple[Any, Any]:
    """Return the values as floats inside their bounds, and for each whether it counts: a missing one does
    not, or counts as the lower bound where the column is not nullable."""
    is_present = arrow_columns.present(array)
    low, high = float(bounds.lower), float(bounds.upper)
    values = np.clip(arrow_columns.numbers(array, column).astype(np.float64), low, high)
    if bounds.nullable:
        return values, is_present
    return np.where(is_present, values, low), np.ones(len(is_present), bool)


def _scalar(value: int) -> Integers:
    return arrow_columns.as_integers([value]).reshape(())
