"""Describes what a plan reads, as a tree: scans of tables, filters, joins, computed columns, and sub-queries
with one row per unit.

A `Relation` is such a tree with the names of its columns and with whose its rows are."""

from __future__ import annotations

from dataclasses import dataclass

from .._public import Fact
from .nodes import Column, Expr, key, walk


@dataclass(frozen=True, slots=True)
class Scan:
    """Reads a table; `prefix` tells its columns from those of others.

    `unit`: the column that says whose a row is; None: the row's own number.
    """

    table: str
    prefix: str
    schema: tuple[tuple[str, Fact], ...]
    private: bool
    unit: str | None

    def alias(self, column: str) -> str:
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
    """Joins two relations; `kind`: inner or left; all of `on` must hold."""

    left: From
    right: From
    kind: str
    on: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class UnitAggregate:
    """Aggregates the rows of each unit (and each combination of `keys`) to one row.

    Computed exactly for every unit by itself.
    """

    child: From
    prefix: str
    unit: str
    keys: tuple[Expr, ...]
    aggregates: tuple[tuple[str, Expr | None], ...]


@dataclass(frozen=True, slots=True)
class Projected:
    """Adds computed columns, fixed before a LEFT JOIN may fill what they are computed from with NULLs."""

    child: From
    prefix: str
    columns: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Marked:
    """Marks rows: whether `right` has a row whose inner expressions equal the row's own, for all `pairs` of
    (own, inner).

    A mark adds no rows. Column `{prefix}m` is true or NULL; with `counted`, `{prefix}n` and `{prefix}c` are
    how many rows `right` has, and in how many of them the inner expression of the first pair is not NULL.
    """

    child: From
    prefix: str
    right: From
    pairs: tuple[tuple[Expr, Expr], ...]
    counted: bool = False


From = Scan | Filtered | Joined | UnitAggregate | Projected | Marked


@dataclass(frozen=True, slots=True)
class Relation:
    """Holds a bound FROM item. `unit`: the raw column that says whose a row is, None if public.

    `unit_keys`: expressions equal to the unit. `nullable_unit_keys`: those equal to the unit or, where an
    outer join had no partner, NULL. `many`: one unit may have several rows.
    """

    node: From
    columns: dict[str, Expr]
    unit: str | None
    unit_keys: frozenset[Expr]
    many: bool
    nullable_unit_keys: frozenset[Expr] = frozenset()


def columns_of(*exprs: Expr | None) -> set[str]:
    """Return the names of all columns in some expressions."""
    return {node.name for e in exprs if e is not None for node in walk(e) if isinstance(node, Column)}


def source_key(node: From) -> str:
    """Return a stable text of what is read."""
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
