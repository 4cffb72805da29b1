"""Describes what a plan reads, as a tree: scans of tables, filters, joins, computed columns, and sub-queries
with one row per unit of privacy (a person, or a row).

A `Relation` is such a tree together with the names of its columns, and with the column that says which unit a
row belongs to. `scan` writes a tree as SQL, and lists what columns are called there (t0c1).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .._public import Fact
from .nodes import Column, Expr, key, walk


@dataclass(frozen=True, slots=True)
class Scan:
    """Reads a table; `prefix` (t0, t1, ...) tells its columns from those of other tables.

    `schema`: the declared columns, with what is declared of each; `private`: whether its rows are protected;
    `unit`: the column that says which unit a row belongs to, None where a row is the unit.
    """

    table: str
    prefix: str
    schema: tuple[tuple[str, Fact], ...]
    private: bool
    unit: str | None

    def alias(self, column: str) -> str:
        """Return what a column of the table is called in the SQL."""
        if column == self.unit:
            return f"{self.prefix}w"
        return f"{self.prefix}c{[name for name, _ in self.schema].index(column)}"


@dataclass(frozen=True, slots=True)
class Filtered:
    """Keeps the rows for which `condition` is true."""

    child: From
    condition: Expr


@dataclass(frozen=True, slots=True)
class Joined:
    """Joins two sources; `kind`: "inner" or "left"; rows match where all conditions of `on` are true."""

    left: From
    right: From
    kind: str
    on: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class UnitAggregate:
    """Aggregates the rows of each unit (and each combination of `keys`) to one row, exactly and without
    noise.

    `unit`: the column of `child` that says which unit a row belongs to. `aggregates`: pairs of a function
    (count, distinct, sum, avg, min or max) and its argument, None for COUNT(*).
    """

    child: From
    prefix: str
    unit: str
    keys: tuple[Expr, ...]
    aggregates: tuple[tuple[str, Expr | None], ...]


@dataclass(frozen=True, slots=True)
class Projected:
    """Adds computed columns to the right side of a LEFT JOIN, before the join: after it they would be
    computed from NULLs where a row has no partner."""

    child: From
    prefix: str
    columns: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Marked:
    """Marks each row of `child` that has a match in `right`, for EXISTS and IN with a sub-query.

    A row of `right` matches if own = inner for all `pairs` (own, inner) of an expression over `child` and one
    over `right`. A mark adds no rows. Column `{prefix}m` is true where there is a match, else NULL; without
    `pairs` it is true or false. With `counted`, `{prefix}n` is the number of rows of `right`, and `{prefix}c`
    the number of those in which the inner expression of the first pair is not NULL.
    """

    child: From
    prefix: str
    right: From
    pairs: tuple[tuple[Expr, Expr], ...]
    counted: bool = False


From = Scan | Filtered | Joined | UnitAggregate | Projected | Marked


@dataclass(frozen=True, slots=True)
class Relation:
    """Holds a bound item of FROM. `columns`: the expression of each column, by the name that a query uses.

    `unit`: the column of `node` that says which unit a row belongs to, None if all rows are public.
    `unit_keys`: expressions that always equal the unit. `nullable_unit_keys`: expressions that equal the unit
    or, in a row to which an outer join found no partner, are NULL. `many`: whether one unit may have several
    rows.
    """

    node: From
    columns: dict[str, Expr]
    unit: str | None
    unit_keys: frozenset[Expr]
    many: bool
    nullable_unit_keys: frozenset[Expr] = frozenset()


def is_within_range(column: Column) -> bool:
    """Return whether the numbers of a column are sure to lie in the range of its domain.

    A column of a table ("t0c1", see `Scan.alias`) is clipped to its declared bounds when it is read, and a
    count of `Marked` ("t0c") has no rounding error. Names of other computed columns have no "c"; their
    numbers may be outside by a rounding error.
    """
    return "c" in column.name


def scans(node: From) -> Iterator[Scan]:
    """Yield the scans of all tables that a source reads."""
    if isinstance(node, Scan):
        yield node
    elif isinstance(node, Joined):
        yield from (*scans(node.left), *scans(node.right))
    else:
        yield from scans(node.child)
        if isinstance(node, Marked):
            yield from scans(node.right)


def columns_of(*exprs: Expr | None) -> set[str]:
    """Return the names of all columns in some expressions."""
    return {node.name for e in exprs if e is not None for node in walk(e) if isinstance(node, Column)}


def source_key(node: From) -> str:
    """Return a stable text of what is read. It is part of `Plan.key`, by which stored answers are found, so
    that its form must not change."""
    if isinstance(node, Scan):
        return f"scan({node.table!r} as {node.prefix})"
    if isinstance(node, Filtered):
        return f"filter({source_key(node.child)}; {key(node.condition)})"
    if isinstance(node, Joined):
        on = ", ".join(key(c) for c in node.on)
        return f"{node.kind} join({source_key(node.left)}; {source_key(node.right)}; {on})"
    if isinstance(node, Projected):
        return (
            f"project({source_key(node.child)} as {node.prefix}; {', '.join(key(c) for c in node.columns)})"
        )
    if isinstance(node, Marked):
        pairs = ", ".join(f"{key(own)} = {key(inner)}" for own, inner in node.pairs)
        return (
            f"mark({source_key(node.child)} as {node.prefix}; {source_key(node.right)}; {pairs}; "
            f"{node.counted})"
        )
    assert isinstance(node, UnitAggregate)
    aggregates = ", ".join(f"{f}({'*' if a is None else key(a)})" for f, a in node.aggregates)
    return (
        f"per unit({source_key(node.child)} as {node.prefix}; {', '.join(key(k) for k in node.keys)}; "
        f"{aggregates})"
    )
