"""What a table of a PostgreSQL database is to queries: which columns it has, of which kind, and how each is
read so that no value of it can make a query fail.

Only names and types are looked at. What is read of a relation is compared with what it was when it was
opened, under a lock, before every answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from ..._errors import InvalidInput
from ..._public import Boolean, Bounds, Categories, Dates, Fact
from ..columns import LONGEST_TEXT, check_names
from ..engine import ROW, literal, quoted

INFINITE = "'Infinity'::float8"

# The kind of a column from the name of its type; what is not listed cannot be declared.
_KINDS = {
    **dict.fromkeys(("int2", "int4", "int8"), "integer"),
    **dict.fromkeys(("float4", "float8", "numeric"), "number"),
    **dict.fromkeys(("text", "varchar", "bpchar", "name", "uuid", "citext", "inet", "cidr"), "text"),
    "bool": "boolean",
    **dict.fromkeys(("date", "timestamp", "timestamptz"), "date"),
    **dict.fromkeys(("time", "timetz", "interval"), "time"),
    **dict.fromkeys(("json", "jsonb", "xml", "hstore"), "nested"),
}
_ANY_LENGTH = ("text", "varchar", "bpchar", "citext")
_READABLE = {"r": "table", "p": "partitioned table", "m": "materialized view"}
_ARROW = {
    "integer": pa.int64(),
    "number": pa.float64(),
    "text": pa.string(),
    "boolean": pa.bool_(),
    "date": pa.date32(),
}


@dataclass(frozen=True)
class RelationShape:
    """What a relation was like when it was looked at: equal as long as nothing that matters changed."""

    oid: int
    kind: str
    filtered: bool
    columns: tuple[tuple[str, str, str], ...]  # name, type, and what sort of type: base, enum, ...
    # Partitions and inheriting tables, whose rows are read with it.
    parts: tuple[tuple[int, str], ...] = ()

    @property
    def kinds(self) -> dict[str, str]:
        return {name: _kind(type_, sort) for name, type_, sort in self.columns}


def _kind(type_: str, sort: str) -> str:
    """Return our kind for a type of PostgreSQL's; `sort` is its pg_type.typtype."""
    if sort == "e":
        return "text"
    if sort in "cr" or sort == "m" or type_.startswith("_"):
        return "nested"
    return _KINDS.get(type_, "binary")


# A domain is what it is made of.
_LOOK = """
WITH RECURSIVE base AS (
  SELECT a.attnum, a.attname::text AS name, a.atttypid AS type FROM pg_attribute a
  WHERE a.attrelid = {oid} AND a.attnum > 0 AND NOT a.attisdropped
  UNION ALL SELECT b.attnum, b.name, t.typbasetype FROM base b JOIN pg_type t ON t.oid = b.type
  WHERE t.typtype = 'd')
SELECT b.name, t.typname::text, t.typtype::text FROM base b JOIN pg_type t ON t.oid = b.type
WHERE t.typtype <> 'd' ORDER BY b.attnum
"""

_PARTS = """
WITH RECURSIVE part AS (
  SELECT inhrelid FROM pg_inherits WHERE inhparent = {oid}
  UNION SELECT i.inhrelid FROM pg_inherits i JOIN part p ON i.inhparent = p.inhrelid)
SELECT c.oid::bigint, c.relkind::text FROM part p JOIN pg_class c ON c.oid = p.inhrelid ORDER BY c.oid
"""


def parse(name: str) -> tuple[str, ...]:
    """Return a table's name, perhaps with its schema: `visits`, `clinic.visits`, `"Odd Name".visits`."""
    part = r'(?:"(?:[^"\0]|"")+"|[^".\0]+)'
    if not re.fullmatch(rf"{part}(?:\.{part})?", name):
        raise InvalidInput(
            f"{name!r} is not the name of a table, such as 'visits' or 'clinic.visits'. Nothing was opened."
        )
    parts = re.findall(part, name)
    return tuple(p[1:-1].replace('""', '"') if p.startswith('"') else p for p in parts)


def resolve(connection: Any, name: str) -> tuple[str, str]:
    """Return the schema and the name of a relation; without a schema, where the role's own path finds it
    first."""
    parts = parse(name)
    if len(parts) == 2:
        return parts[0], parts[1]
    path = connection.execute("SELECT current_schemas(false)").fetchone()[0]
    for schema in path:
        if look(connection, (schema, parts[0])) is not None:
            return schema, parts[0]
    raise InvalidInput(
        f"there is no table {name!r} in the schemas {path}, or this role may not see it. Nothing was opened. "
        f"Say 'schema.table' for one elsewhere."
    )


def look(connection: Any, relation: tuple[str, str]) -> RelationShape | None:
    """Return what a relation is like now; None if there is none."""
    text = f"{quoted(relation[0])}.{quoted(relation[1])}"
    rows = connection.execute(
        f"SELECT c.oid::bigint, c.relkind::text, row_security_active(c.oid) FROM pg_class c "
        f"WHERE c.oid = to_regclass({literal(text)})"
    ).fetchone()
    if rows is None:
        return None
    columns = connection.execute(_LOOK.format(oid=rows[0])).fetchall()
    parts = connection.execute(_PARTS.format(oid=rows[0])).fetchall()
    return RelationShape(rows[0], rows[1], rows[2], tuple(map(tuple, columns)), tuple(map(tuple, parts)))


def check(name: str, shape: RelationShape | None) -> RelationShape:
    """Refuse what a query could fail on, or what would not be the table that was declared."""
    if shape is None:
        raise InvalidInput(
            f"there is no table {name!r}, or this role may not see it. Nothing was opened. Say "
            f"'schema.table', and GRANT USAGE on the schema and SELECT on the table."
        )
    if shape.kind not in _READABLE:
        raise InvalidInput(
            f"{name!r} is a view, a foreign table or no table at all: whether it can be read may depend on "
            f"one row. Nothing was opened. Make a materialized view of it."
        )
    if any(kind not in _READABLE for _, kind in shape.parts):
        raise InvalidInput(
            f"a partition or heir of {name!r} is a foreign table: whether it can be read may depend on one "
            f"row. Nothing was opened. Make a materialized view of it."
        )
    if shape.filtered:
        raise InvalidInput(
            f"row-level security hides rows of {name!r} from this role, by conditions that may depend on "
            f"other rows. Nothing was opened. Use a role that sees all rows (BYPASSRLS), or a "
            f"materialized view."
        )
    check_names(name, [*(column for column, _, _ in shape.columns), ROW])
    return shape


def _drop_other_years(column: str, type_: str) -> str:
    """Return a day or time of the years that people write; infinite ones and others are missing. Put at an
    end, two values would become one, and two people whose ids they are."""
    if type_ == "date":
        inside = f"{column} >= '0001-01-01'::date AND {column} <= '9999-12-31'::date"
        return f"CASE WHEN {inside} THEN {column} END"
    # With a zone a day less at both ends, as on every engine: some zone puts these into the year beyond.
    first, end = (
        ("'0001-01-01'::timestamp", "'10000-01-01'::timestamp")
        if type_ == "timestamp"
        else ("'0001-01-02 00:00:00+00'::timestamptz", "'9999-12-31 00:00:00+00'::timestamptz")
    )
    value = column if type_ == "timestamp" else f"({column} AT TIME ZONE 'UTC')"
    return f"CASE WHEN {column} >= {first} AND {column} < {end} THEN {value} END"


def _as_double(column: str) -> str:
    """Return a numeric as the nearest double: infinite beyond all doubles, zero below the least."""
    return (
        f"CASE WHEN {column} = 'NaN' THEN 'NaN'::float8 "
        f"WHEN {column} > 1.7976931348623158e308 THEN {INFINITE} "
        f"WHEN {column} < -1.7976931348623158e308 THEN -{INFINITE} "
        f"WHEN abs({column}) < 2.5e-324 THEN 0::float8 ELSE {column}::float8 END"
    )


def _read(column: str, type_: str, kind: str, fact: Fact | None, is_unit: bool) -> str:
    """Return how a column is read: no value of it fails, and no two values of a unit's become one."""
    if kind == "integer":
        return f"{column}::bigint"
    if kind == "text":
        text = f'{column}::text COLLATE "C"'
        if type_ not in _ANY_LENGTH:
            return text
        return f"CASE WHEN octet_length({column}::text) <= {LONGEST_TEXT} THEN {text} END"
    if kind == "boolean" and isinstance(fact, Bounds):
        return f"(CASE WHEN {column} THEN 1 WHEN NOT {column} THEN 0 END)::bigint"
    if type_ == "numeric":
        texts = isinstance(fact, Categories) and not all(isinstance(v, int) for v in fact.values)
        if is_unit:
            return f"trim_scale({column})"
        return column if texts or not isinstance(fact, Bounds | Categories | None) else _as_double(column)
    if kind == "number":
        return f"{column}::float8"
    if kind == "date":
        return _drop_other_years(column, type_)
    return column


@dataclass(frozen=True)
class PostgresTable:
    """A relation under the name that queries know, with what is declared of it."""

    name: str
    relation: tuple[str, str]
    shape: RelationShape
    schema: tuple[tuple[str, Fact], ...]
    unit: str | None
    condition: str | None = None

    @property
    def kinds(self) -> dict[str, str]:
        """The kinds of columns as queries see them: truth values that are declared as numbers are numbers."""
        facts = dict(self.schema)
        return {
            name: "integer" if kind == "boolean" and isinstance(facts.get(name), Bounds) else kind
            for name, kind in self.shape.kinds.items()
        }

    @property
    def text(self) -> str:
        return f"{quoted(self.relation[0])}.{quoted(self.relation[1])}"

    def _columns(self) -> Iterable[tuple[str, str, str]]:
        """Return the declared columns, or all where nothing is declared."""
        declared = {*dict(self.schema), *({self.unit} - {None})}
        kinds = self.shape.kinds
        for name, type_, _ in self.shape.columns:
            if (not declared or name in declared) and kinds[name] in _ARROW:
                yield name, type_, kinds[name]

    @property
    def definition(self) -> str:
        """WITH this name: the declared columns, each so that no value makes a query fail."""
        facts = dict(self.schema)
        select_list = [
            f"{_read(quoted(n), type_, kind, facts.get(n), n == self.unit)} AS {quoted(n)}"
            for n, type_, kind in self._columns()
        ]
        # No row has a number here: places move, and a choice by them would tell of other rows.
        select_list.append(f"NULL::bigint AS {quoted(ROW)}")
        where = "" if self.condition is None else f" WHERE {self.condition}"
        query = f"SELECT {', '.join(select_list)} FROM {self.text}{where}"
        return f"{quoted(self.name)} AS NOT MATERIALIZED ({query})"

    def arrow(self, columns: Sequence[str]) -> pa.Schema:
        """Return the types in which columns come in batches."""
        types = {n: t for n, t, _ in self.shape.columns}
        fields = []
        for name in columns:
            type_ = pa.timestamp("us") if types[name].startswith("timestamp") else _ARROW[self.kinds[name]]
            to = self.converted(name)
            fields.append(pa.field(name, type_ if to is None else _ARROW[to]))
        return pa.schema(fields)

    def converted(self, column: str) -> str | None:
        """Return the kind as which a column is handed on in batches where it is not its own.

        A unit of type numeric leaves as text: as doubles, ids that differ would become one, and two people.
        """
        if column == self.unit and any(
            n == column and type_ == "numeric" for n, type_, _ in self.shape.columns
        ):
            return "text"
        return converted(dict(self.schema).get(column), self.kinds[column])


def converted(fact: Fact | None, kind: str) -> str | None:
    """Return the kind as which a column is handed on where it is not of the declared one itself."""
    if isinstance(fact, Categories):
        if all(isinstance(value, int) for value in fact.values):
            return None if kind == "integer" else "number"
        return None if kind == "text" else "text"
    if isinstance(fact, Bounds | Boolean | Dates) and kind == "text":
        return "number" if isinstance(fact, Bounds) else "boolean" if isinstance(fact, Boolean) else "date"
    return None


def definitions(tables: Mapping[str, PostgresTable]) -> str:
    return ", ".join(table.definition for table in tables.values())
