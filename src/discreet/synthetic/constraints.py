"""Constraints that are public facts: nobody's age is below the years of their education.

A constraint compares two columns of numbers or of dates. Cells (combinations of bins) in which it can never
hold have probability 0 in the model, and numbers drawn within bins are drawn again until it holds. Because it
is public, it costs nothing. A wrong constraint makes the copy worse, but reveals nothing about the data.

Computes the partial order of columns that all constraints together define; contradictions are refused
before anything is charged.

Only public facts (constraints, bounds) and synthetic rows are read here.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from .. import _require
from .._errors import InvalidInput
from .._public import COLUMN, Bounds, Dates, Public
from .._registry import described
from .._require import among
from .graphical_model import LOG_ZERO, Clique, Floats
from .table_domain import Domain, comparable_bin_ends, is_integral, require_column, to_values

if TYPE_CHECKING:
    from ..tables.cells import Coding
    from .synthesizer import Fitted


class ColumnOrder:
    """Sorts the columns of constraints such that in each constraint the lower column comes first (`columns`).

    `edges` has, for each pair (lower column, higher column), whether its comparison is strict.
    """

    def __init__(self, constraints: Sequence[Constraint]) -> None:
        self.edges: dict[tuple[str, str], bool] = {}
        for constraint in constraints:
            low, high = constraint.left, constraint.right
            if constraint.comparison[0] == ">":
                low, high = high, low
            strict = "=" not in constraint.comparison
            self.edges[low, high] = self.edges.get((low, high), False) or strict
        graph: dict[str, set[str]] = {}
        for low, high in self.edges:
            graph.setdefault(high, set()).add(low)
        try:
            self.columns = tuple(TopologicalSorter(graph).static_order())
        except CycleError as error:
            names = ", ".join(sorted(set(error.args[1])))
            strict = any(s for (a, b), s in self.edges.items() if a in error.args[1] and b in error.args[1])
            why = "contradict each other" if strict else "say that these are always equal"
            raise InvalidInput(
                f"the constraints on {names} {why}. Leave out "
                f"{'one of them' if strict else 'all but one of these columns'}."
            ) from None

    def least_values(
        self, lower: Mapping[str, float], integral: Mapping[str, bool]
    ) -> dict[str, tuple[float, bool]]:
        """Return, for each column, the infimum of the values that it can have under all constraints, and
        whether the infimum itself is excluded.

        `lower` has the lower bound of each column, and `integral` whether its values are whole numbers.
        """
        infima: dict[str, tuple[float, bool]] = {}
        for name in self.columns:
            infimum, excluded = lower[name], False
            for (low, high), strict in self.edges.items():
                if high != name:
                    continue
                bound, open_bound = infima[low]
                open_bound = open_bound or strict
                if integral[name]:
                    bound, open_bound = (math.floor(bound) + 1 if open_bound else math.ceil(bound)), False
                # Of two equal infima the excluded one is taken, because True > False.
                infimum, excluded = max((infimum, excluded), (bound, open_bound))
            infima[name] = (infimum, excluded)
        return infima


def refuse_contradictions(public: Public, domain: Domain, constraints: Sequence[Constraint]) -> None:
    """Refuse constraints that no row without NULLs can satisfy, and those that make columns equal.

    Guarantee: if nothing is raised, some row with values in the declared bounds satisfies all constraints.
    Proof:     without cycles, giving each column in order its least value (or one just above an excluded
               infimum) satisfies all constraints, and these values are within the bounds.
    """
    if not constraints:
        return
    order = ColumnOrder(constraints)
    codings = {c.column: c for c in domain.codings(public) if c.column in order.columns}
    ends = {name: comparable_bin_ends(coding) for name, coding in codings.items()}
    lower = {name: float(first[0]) for name, (first, _) in ends.items()}
    integral = {name: is_integral(coding) for name, coding in codings.items()}
    for name, (infimum, excluded) in order.least_values(lower, integral).items():
        upper = float(ends[name][1][-1])
        if infimum > upper or (excluded and infimum == upper):
            text = ", ".join(f"'{constraint}'" for constraint in constraints)
            raise InvalidInput(
                f"no row can satisfy the constraints {text}: column {name!r} has no value that is large "
                "enough. Leave one out, or widen the declared bounds."
            )


def draw_in_order(
    order: ColumnOrder,
    codings: Mapping[str, Coding],
    codes: Mapping[str, NDArray[np.int64]],
    random: np.random.Generator,
) -> tuple[dict[str, Floats], NDArray[np.bool_]]:
    """Draw numbers within bins, lower columns first, so that all constraints hold where the bins allow it.

    Return the numbers by column, on the scale of `comparable_bin_ends`, and a mask of the rows whose bins
    allow it. A row in which b of a chain a <= b <= c is missing is treated as if a <= c were required, so
    the mask may leave it out although its bins allow it.
    Missing values satisfy every constraint, and are NaN. Unless both columns are whole numbers, a strict
    comparison is drawn as one that is not strict: ties are left to the caller (`constraints.repair_rows`).
    """
    absent = {n: (c == codings[n].size - 1) & codings[n].missing for n, c in codes.items()}
    lower, upper = _ranges_of_bins(codings, codes, absent)
    # The least difference between two columns: 1 for a strict comparison of whole numbers, otherwise 0.
    gaps = {
        (low, high): int(strict and is_integral(codings[low]) and is_integral(codings[high]))
        for (low, high), strict in order.edges.items()
    }
    # No number may be so large that nothing is left for the higher columns.
    for name in reversed(order.columns):
        for (low, high), gap in gaps.items():
            if low == name:
                upper[name] = np.minimum(upper[name], upper[high] - gap)
    numbers: dict[str, Floats] = {}
    possible = np.ones(len(lower[order.columns[0]]), bool)
    for name in order.columns:
        least = lower[name]
        for (low, high), gap in gaps.items():
            if high == name:
                # fmax ignores NaN: a missing value sets no limit.
                least = np.fmax(least, numbers[low] + gap)
        least, largest = np.where(absent[name], 0.0, least), np.where(absent[name], 0.0, upper[name])
        if is_integral(codings[name]):
            least, largest = np.ceil(least), np.floor(largest)
            values = least + np.floor(random.random(len(least)) * np.maximum(1, largest - least + 1))
        else:
            values = least + np.maximum(0, largest - least) * random.random(len(least))
        possible &= least <= largest
        numbers[name] = np.where(absent[name], np.nan, values)
    return numbers, possible


def _ranges_of_bins(
    codings: Mapping[str, Coding],
    codes: Mapping[str, NDArray[np.int64]],
    absent: Mapping[str, NDArray[np.bool_]],
) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """Return, by column, the least and the largest number of the bin of each row: -inf and inf where the
    value is missing."""
    lower, upper = {}, {}
    for name, column in codes.items():
        first, last = comparable_bin_ends(codings[name])
        bins = np.where(absent[name], 0, column)
        lower[name] = np.where(absent[name], -np.inf, first[bins])
        upper[name] = np.where(absent[name], np.inf, last[bins])
    return lower, upper


_OPERATORS = {"<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt}
# How often numbers are drawn again within their bins, before they are drawn column by column
# (`draw_in_order`). Chosen by hand, not tuned: enough unless few pairs of numbers from the two bins
# satisfy the constraint.
_MAX_REDRAWS = 50
_ARROW_COMPARISONS: dict[str, Any] = {
    "<=": pc.less_equal,
    ">=": pc.greater_equal,
    "<": pc.less,
    ">": pc.greater,
}


@described("synthetic.Constraint")
class Constraint:
    """States how `left` compares with `right`: two columns of numbers, or of dates. Rows in which one of the
    two is missing satisfy it.

    >>> str(Constraint.parse("age >= education_num"))
    'age >= education_num'
    """

    left: Annotated[str, COLUMN]
    comparison: Annotated[str, among(tuple(_OPERATORS))]
    right: Annotated[str, COLUMN]

    def __post_init__(self) -> None:
        _require.that(self.left != self.right, f"a constraint compares two columns, got {self.left!r} twice.")

    @classmethod
    def parse(cls, text: str | Constraint, name: str = "a constraint") -> Constraint:
        """Return the constraint that a text such as "age >= education_num" states; an error calls it
        `name`."""
        if isinstance(text, Constraint):
            return text
        parts = re.fullmatch(r"\s*(.+?)\s*(<=|>=|<|>)\s*(.+?)\s*", text) if isinstance(text, str) else None
        if parts is None:
            raise _require.fail(name, text, "two columns compared, such as 'age >= education_num'")
        return cls(left=parts[1], comparison=parts[2], right=parts[3])

    def __str__(self) -> str:
        return f"{self.left} {self.comparison} {self.right}"

    def check(self, public: Public, domain: Domain) -> None:
        """Refuse columns that are not in the copy, and pairs that are neither two numbers nor two dates."""
        for name in (self.left, self.right):
            require_column(name, domain.names, f"the copy, and the constraint '{self}' names it")
        kinds = [type(public.fact(name)) for name in (self.left, self.right)]
        fits = kinds in ([Bounds, Bounds], [Dates, Dates])
        _require.that(fits, f"the constraint '{self}' must compare two numbers, or two dates.")

    def log_potential(self, public: Public, domain: Domain) -> tuple[Clique, Floats]:
        """Return the positions of the two columns in the domain, ascending, and a table by their codes: 0 in
        cells where the constraint can hold (always where a value is NULL), `LOG_ZERO` in the others."""
        codings = {coding.column: coding for coding in domain.codings(public)}
        left, right = codings[self.left], codings[self.right]
        (left_low, left_high), (right_low, right_high) = comparable_bin_ends(left), comparable_bin_ends(right)
        # A cell is possible if the constraint holds for those ends of its two bins for which it holds most
        # easily.
        ends = (left_high, right_low) if self.comparison in (">", ">=") else (left_low, right_high)
        possible = _OPERATORS[self.comparison](ends[0][:, None], ends[1][None, :])
        table = np.zeros((left.size, right.size))
        table[: len(ends[0]), : len(ends[1])] = np.where(possible, 0.0, LOG_ZERO)
        pair = (domain.names.index(self.left), domain.names.index(self.right))
        if pair[0] < pair[1]:
            return pair, table
        return (pair[1], pair[0]), np.ascontiguousarray(table.T)


def constraint_potentials(fitted: Fitted) -> dict[Clique, Floats]:
    """Return the log-potentials of all constraints, by pair of columns, in the codes of the model (groups of
    codes where a column is grouped)."""
    potentials: dict[Clique, Floats] = {}
    for constraint in fitted.constraints:
        pair, table = constraint.log_potential(fitted.public, fitted.domain)
        for axis, a in enumerate(pair):
            if fitted.groups and fitted.groups[a]:
                table = _potential_of_groups(table, axis, np.array(fitted.groups[a]))
        potentials[pair] = np.minimum(potentials[pair], table) if pair in potentials else table
    return potentials


def _potential_of_groups(table: Floats, axis: int, groups: Any) -> Floats:
    """Return the log-potential by groups of codes along one axis: a cell of a group is possible if it is
    possible for any code of the group."""
    shape = [int(groups.max()) + 1 if k == axis else size for k, size in enumerate(table.shape)]
    by_group = np.full(shape, LOG_ZERO)
    np.maximum.at(np.moveaxis(by_group, axis, 0), groups, np.moveaxis(table, axis, 0))
    return by_group


def repair_rows(
    table: pa.Table, fitted: Fitted, codes: Sequence[Any], random: np.random.Generator
) -> tuple[pa.Table, NDArray[np.int64]]:
    """Draw numbers within bins again where they break a constraint, until all constraints hold in every row;
    return the table, and for each of its rows the position of the given row that it comes from.

    First all columns of constraints are drawn again, up to `_MAX_REDRAWS` times: the result is uniform among
    the numbers of these bins that satisfy the constraints. Rows that still break one are drawn column by
    column, lower columns first. Rows whose bins have no such numbers (each constraint can hold, but not all
    together) are replaced by copies of other rows.
    """
    rows = np.arange(table.num_rows)
    if not fitted.constraints:
        return table, rows
    order = ColumnOrder(fitted.constraints)
    codes_by_name = {n: np.asarray(codes[fitted.domain.names.index(n)]) for n in order.columns}
    for _ in range(_MAX_REDRAWS):
        violating = _violations(table, fitted.constraints)
        if not violating.any():
            return table, rows
        for name in order.columns:
            values = fitted.domain.decode_one(fitted.public, name, codes_by_name[name], random)
            table = _replace_values(table, name, violating, values)
    # `violating` was found before the last draw: rows that this draw has mended are drawn here as well.
    codings = {c.column: c for c in fitted.domain.codings(fitted.public) if c.column in codes_by_name}
    numbers, possible = draw_in_order(order, codings, codes_by_name, random)
    for name in order.columns:
        values = to_values(codings[name], numbers[name], np.isnan(numbers[name]))
        table = _replace_values(table, name, violating, values)
    violating = _violations(table, fitted.constraints) | (violating & ~possible)
    if not violating.any():
        return table, rows
    satisfying = np.flatnonzero(~violating)
    _require.that(
        len(satisfying),
        "no row under these conditions satisfies the constraints. The copy itself is unchanged: ask for "
        "other conditions, or for more rows.",
    )
    rows[violating] = random.choice(satisfying, int(violating.sum()))
    return table.take(pa.array(rows)), rows


def _replace_values(table: pa.Table, name: str, rows: Any, values: pa.Array) -> pa.Table:
    """Return the table with `values` in a column, in the rows where the mask `rows` is true."""
    column = pc.if_else(pa.array(rows), values, table.column(name).combine_chunks())
    return table.set_column(table.column_names.index(name), name, column)


def _violations(table: pa.Table, constraints: Sequence[Constraint]) -> Any:
    """Return a mask of the rows that violate a constraint; a missing value violates none."""
    violating = np.zeros(table.num_rows, bool)
    for constraint in constraints:
        left, right = (table.column(name).combine_chunks() for name in (constraint.left, constraint.right))
        holds = _ARROW_COMPARISONS[constraint.comparison](left, right)
        violating |= ~np.asarray(pc.fill_null(holds, True))
    return violating
