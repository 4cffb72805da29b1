"""Writes a form as plain values, and reads it back: so a question is text, and whoever builds it may be in
another process, or hostile.

A form is a list of rows, one per node, children first: `("filter", ("#", 0), ("#", 4))` is a filter of row 0
by the condition in row 4. A field is a plain value, `("#", i)` for an earlier row, a day such as
`("day", "2020-01-31")`, or `("list", ...)`. What follows from the public facts, such as the schema of a
table, is not written but looked up; what follows from the fields, such as a sensitivity, is computed again.

Guarantee: reading runs constructors of the classes below and no other code, each with values of the kinds
           that its fields name; what is read is refused or priced like any form (`form.Form`).
Proof:     tags are looked up in a closed table, rows refer to earlier rows only, and fields are compared with
           the types that the class declares.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from datetime import date
from enum import StrEnum
from functools import cache
from typing import Any

from .._public import Public
from ..tables import semantics
from .domain import ValueDomain
from .errors import QueryError
from .form import Form
from .measures import Bounding, Choice, GroupKey, Measure
from .nodes import Call, Column, Literal, make, sql
from .operators import OPERATORS
from .sources import Filtered, Joined, Marked, Projected, Scan, UnitAggregate, United, scan_of

# The name of each class in descriptions, which ledgers store: names never change.
_CLASSES: dict[str, type] = {
    "scan": Scan,
    "filter": Filtered,
    "join": Joined,
    "fold": UnitAggregate,
    "project": Projected,
    "mark": Marked,
    "union": United,
    "column": Column,
    "literal": Literal,
    "call": Call,
    "domain": ValueDomain,
    "measure": Measure,
    "choice": Choice,
    "key": GroupKey,
    "limits": Bounding,
    "form": Form,
}
_NAMES = {cls: name for name, cls in _CLASSES.items()}
# What is looked up in the public facts, or follows from the other fields.
_DERIVED = {
    Scan: {"schema", "private", "unit", "reference"},
    Call: {"domain", "weight", "depth"},
    Form: {"public"},
}
# More nodes than any query has whose statements an engine plans within its time.
MAX_ROWS = 100_000

Rows = tuple[tuple[Any, ...], ...]


def packed(form: Form) -> Rows:
    """Return a form as rows of plain values; equal nodes are one row."""
    rows: dict[str, tuple[Any, ...]] = {}
    places: dict[str, int] = {}

    def plain(value: Any) -> Any:
        if type(value) in _NAMES:
            cls: Any = type(value)
            row = (_NAMES[cls], *(plain(getattr(value, name)) for name in _fields(cls)))
            # not the row itself: 1, 1.0 and True are equal
            text = repr(row)
            rows.setdefault(text, row)
            return "#", places.setdefault(text, len(places))
        if isinstance(value, tuple):
            return ("list", *map(plain, value))
        if isinstance(value, date):
            return "day", value.isoformat()
        return str(value) if isinstance(value, StrEnum) else value

    plain(form)
    return tuple(rows.values())


def unpacked(rows: Any, public: Public) -> Form:
    """Return the form that rows describe, over tables with these public facts."""
    nodes: list[Any] = []

    def read(value: Any) -> Any:
        if not isinstance(value, tuple):
            return value
        what, *rest = value or (None,)
        if what == "list":
            return tuple(map(read, rest))
        if what == "day" and len(rest) == 1 and isinstance(rest[0], str):
            return date.fromisoformat(rest[0])
        if what == "#" and len(rest) == 1 and type(rest[0]) is int and 0 <= rest[0] < len(nodes):
            return nodes[rest[0]]
        raise QueryError(f"a form has no field {value!r}.")

    if not isinstance(rows, tuple) or not 0 < len(rows) <= MAX_ROWS:
        raise QueryError(f"a form has at least one and at most {MAX_ROWS:,} rows.")
    for row in rows:
        cls = _CLASSES.get(row[0]) if isinstance(row, tuple) and row and isinstance(row[0], str) else None
        if cls is None or len(row) != 1 + len(_fields(cls)):
            raise QueryError(f"a form has no row {row!r}.")
        fields = dict(zip(_fields(cls), map(read, row[1:]), strict=True))
        nodes.append(_made(cls, fields, public))
    if not isinstance(nodes[-1], Form):
        raise QueryError("the last row of a form says what is measured.")
    return nodes[-1]


def _made(cls: Any, fields: dict[str, Any], public: Public) -> Any:
    """Return an object of one of the classes; refuse fields of other types than it declares."""
    hints = _hints(cls)
    if cls is ValueDomain:
        fields["kind"] = hints["kind"](fields["kind"])
    for name, value in fields.items():
        if not _is(value, hints[name]):
            raise QueryError(f"{name} of a {_NAMES[cls]} cannot be {value!r}.")
    if cls is Call:
        return _call(fields["op"], fields["args"])
    if cls is Scan:
        return scan_of(public, **fields)
    return cls(public=public, **fields) if cls is Form else cls(**fields)


def _call(op: str, args: tuple[Any, ...]) -> Call:
    """Return a call; refuse a number of arguments with which its operator cannot be written."""
    call = make(op, *args)
    try:
        OPERATORS[op].sql(*(sql(arg) if isinstance(arg, Literal) else semantics.name("x") for arg in args))
    except (IndexError, TypeError, ValueError):
        raise QueryError(f"{op!r} does not take {len(args)} arguments.") from None
    if op == "case" and len(args) < 3:
        raise QueryError("'case' takes a condition, a value, and what else.")
    return call


def _is(value: Any, hint: Any) -> bool:
    """Return whether a value is of the type of a field."""
    if hint is Any or hint is object:
        return value is None or type(value) in (bool, int, float, str, date)
    inner = typing.get_args(hint)
    if typing.get_origin(hint) is tuple:
        if not isinstance(value, tuple):
            return False
        kinds = [inner[0]] * len(value) if inner[-1] is ... else inner
        return len(kinds) == len(value) and all(map(_is, value, kinds))
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return any(_is(value, each) for each in inner)
    return type(value) in (int, float) if hint is float else type(value) is hint


@cache
def _fields(cls: Any) -> tuple[str, ...]:
    """Return the names of the fields that a row has."""
    return tuple(
        f.name
        for f in dataclasses.fields(cls)
        if f.init and f.compare and f.name not in _DERIVED.get(cls, ())
    )


@cache
def _hints(cls: Any) -> dict[str, Any]:
    """Return the type of each field, without the limits that its constructor checks."""
    return typing.get_type_hints(cls)
