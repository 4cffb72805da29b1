"""Refuses comparisons of ids that never match: columns that are declared as text, or hold units, are compared
by the texts of their canonical forms (`tables.semantics.Canonical`), which differ between kinds of columns.

A join of whole numbers with floating-point numbers would find nothing and be charged all the same. The kinds
of columns are public, so that it is refused by them, before the charge.
"""

from __future__ import annotations

from collections.abc import Iterator

from .._public import Categories, Text
from ..core.nodes import Call, Column, Expr, walk
from ..core.scan import Kinds
from ..core.sources import (
    From,
    Marked,
    Scan,
    UnitAggregate,
    United,
    children,
    own_expressions,
    scans,
    unit_scan,
)
from ..tables.columns import can_match, no_match

# operators that compare their first argument with each other one
_EQUALITIES = ("=", "<>", "same", "in")
# for each name of a column in the SQL: its table, its name there, and its kind of `columns.ID_KINDS`
Stored = dict[str, tuple[str, str, str]]


def refuse_unlike_ids(node: From, kinds: Kinds) -> None:
    """Refuse a source in which two stored columns of text are compared whose kinds do not match, also by a
    table that refers to another one."""
    for scan in scans(node):
        if (r := scan.reference) is not None:
            own, there = kinds.get(scan.table, {}).get(r.column), kinds.get(r.of, {}).get(r.key)
            if own is not None and there is not None and not can_match(own, there):
                raise no_match((scan.table, r.column, own), (r.of, r.key, there))
    stored = _stored(node, kinds)
    for first, second in _compared(node):
        if isinstance(first, Column) and isinstance(second, Column):
            a, b = stored.get(first.name), stored.get(second.name)
            if a is not None and b is not None and not can_match(a[2], b[2]):
                raise no_match(a, b)


def _compared(node: From) -> Iterator[tuple[Expr, Expr]]:
    """Yield the two sides of each comparison for equality in the joins, filters and marks of a source."""
    if isinstance(node, Scan):
        return
    if isinstance(node, Marked):
        yield from node.pairs
    if isinstance(node, United):
        columns = zip(*(part.columns for part in node.parts), strict=True)
        yield from ((column[0], other) for column in columns for other in column[1:])
    for condition in own_expressions(node):
        for part in walk(condition) if condition is not None else ():
            if isinstance(part, Call) and part.op in _EQUALITIES:
                yield from ((part.args[0], other) for other in part.args[1:])
    for child in children(node):
        yield from _compared(child)


def _stored(node: From, kinds: Kinds) -> Stored:
    """Return the stored columns of a source that are compared as texts: units, and columns declared as text
    or as categories that are texts."""
    if isinstance(node, Scan):
        own = kinds.get(node.table, {})
        names = [name for name, fact in node.schema if name != node.unit and _is_text(fact)]
        names += [] if node.unit is None else [node.unit]
        return {node.alias(name): (node.table, name, own[name]) for name in names if name in own}
    below = {alias: column for child in children(node) for alias, column in _stored(child, kinds).items()}
    if not isinstance(node, UnitAggregate | United):
        return below
    # These have the unit and their columns under names of their own.
    scan = unit_scan(node)
    unit = None if scan is None else below.get(f"{scan.prefix}w")
    renamed = {f"{node.prefix}w": unit} if unit is not None else {}
    columns, letter = (node.parts[0].columns, "p") if isinstance(node, United) else (node.keys, "k")
    for i, column in enumerate(columns):
        if isinstance(column, Column) and column.name in below:
            renamed[f"{node.prefix}{letter}{i}"] = below[column.name]
    return {**below, **renamed}


def _is_text(fact: object) -> bool:
    return isinstance(fact, Text) or (
        isinstance(fact, Categories) and not all(isinstance(value, int) for value in fact.values)
    )
