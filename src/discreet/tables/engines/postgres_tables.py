"""Describes a table of a PostgreSQL database for queries: its columns, their kinds, and the SQL by which each
is read so that no value can make a query fail.

Only names and types are read here, never rows. Before every answer `postgres._compare` reads a relation's
description again, under a lock, and compares it with that at opening.

Opens read-only transactions on a PostgreSQL server, each with one snapshot for all of its statements.

The address is a URL as libpq, PostgreSQL's client library, reads it. The password comes from where libpq
looks for it: PGPASSWORD, ~/.pgpass, a service file, a certificate. An address with a password in it is
refused, since addresses end up in shell histories, process lists and notebooks. No password is stored or
shown here.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from ..._errors import InvalidInput, MissingExtra
from ..._public import Bounds, Categories, Fact
from ..columns import LONGEST_TEXT, check_names, converted_to
from ..files import Codebook
from ..source import EngineError, literal, quoted

INFINITE = "'Infinity'::float8"

# The kind of a column by the name of its type. A type that is not listed is "binary", which cannot be
# declared.
_KINDS = {
    **dict.fromkeys(("int2", "int4", "int8"), "integer"),
    **dict.fromkeys(("float4", "float8", "numeric"), "number"),
    **dict.fromkeys(("text", "varchar", "bpchar", "name", "uuid", "citext", "inet", "cidr"), "text"),
    "bool": "boolean",
    **dict.fromkeys(("date", "timestamp", "timestamptz"), "date"),
    **dict.fromkeys(("time", "timetz", "interval"), "time"),
    **dict.fromkeys(("json", "jsonb", "xml", "hstore"), "nested"),
}
# The types whose texts can be longer than `LONGEST_TEXT`.
_ANY_LENGTH = ("text", "varchar", "bpchar", "citext")
# The kinds of relations that are opened, by pg_class.relkind.
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
    """Describes a relation at one moment. Two descriptions are equal unless something changed that could make
    a query fail or read other rows.

    `kind`: pg_class.relkind. `filtered`: whether row-level security hides rows from this role. `columns`: the
    name, the type and the pg_type.typtype (base, enum, ...) of each. `parts`: the oid and the kind of each
    partition and inheriting table, whose rows are read with the relation.
    """

    oid: int
    kind: str
    filtered: bool
    columns: tuple[tuple[str, str, str], ...]
    parts: tuple[tuple[int, str], ...] = ()

    @property
    def kinds(self) -> dict[str, str]:
        return {name: _kind(type_, typtype) for name, type_, typtype in self.columns}


def _kind(type_: str, typtype: str) -> str:
    """Return the kind of a column (`columns.KINDS`, or one that cannot be declared) from the name of its type
    and its pg_type.typtype: "e" is an enum, "c" a composite, "r" a range, "m" a multirange. The name of an
    array type begins with "_"."""
    if typtype == "e":
        return "text"
    if typtype in ("c", "r", "m") or type_.startswith("_"):
        return "nested"
    return _KINDS.get(type_, "binary")


# The columns of a relation. A domain (typtype "d") is replaced by the type on which it is based.
_LOOK = """
WITH RECURSIVE base AS (
  SELECT a.attnum, a.attname::text AS name, a.atttypid AS type FROM pg_attribute a
  WHERE a.attrelid = {oid} AND a.attnum > 0 AND NOT a.attisdropped
  UNION ALL SELECT b.attnum, b.name, t.typbasetype FROM base b JOIN pg_type t ON t.oid = b.type
  WHERE t.typtype = 'd')
SELECT b.name, t.typname::text, t.typtype::text FROM base b JOIN pg_type t ON t.oid = b.type
WHERE t.typtype <> 'd' ORDER BY b.attnum
"""

# All partitions and inheriting tables of a relation, at any depth.
_PARTS = """
WITH RECURSIVE part AS (
  SELECT inhrelid FROM pg_inherits WHERE inhparent = {oid}
  UNION SELECT i.inhrelid FROM pg_inherits i JOIN part p ON i.inhparent = p.inhrelid)
SELECT c.oid::bigint, c.relkind::text FROM part p JOIN pg_class c ON c.oid = p.inhrelid ORDER BY c.oid
"""


def parse(name: str) -> tuple[str, ...]:
    """Return the parts of a table's name, one or two: `visits`, `clinic.visits`, `"Odd Name".visits`. Unlike
    in SQL, a part without quotes keeps its capital letters."""
    part = r'(?:"(?:[^"\0]|"")+"|[^".\0]+)'
    if not re.fullmatch(rf"{part}(?:\.{part})?", name):
        raise InvalidInput(f"{name!r} is not the name of a table, such as 'visits' or 'clinic.visits'.")
    parts = re.findall(part, name)
    return tuple(p[1:-1].replace('""', '"') if p.startswith('"') else p for p in parts)


def resolve(connection: Any, name: str) -> tuple[str, str]:
    """Return the schema and the name of a relation. Without a schema in `name`, it is the first one of the
    role's search path that has such a relation."""
    parts = parse(name)
    if len(parts) == 2:
        return parts[0], parts[1]
    path = connection.execute("SELECT current_schemas(false)").fetchone()[0]
    for schema in path:
        if look(connection, (schema, parts[0])) is not None:
            return schema, parts[0]
    raise InvalidInput(
        f"there is no table {name!r} in the schemas {path}, or this role may not see it. Say 'schema.table' "
        "for one elsewhere."
    )


def look(connection: Any, relation: tuple[str, str]) -> RelationShape | None:
    """Return the description of the relation (schema, name) as it is now; None if it does not exist."""
    text = f"{quoted(relation[0])}.{quoted(relation[1])}"
    row = connection.execute(
        f"SELECT c.oid::bigint, c.relkind::text, row_security_active(c.oid) FROM pg_class c "
        f"WHERE c.oid = to_regclass({literal(text)})"
    ).fetchone()
    if row is None:
        return None
    columns = connection.execute(_LOOK.format(oid=row[0])).fetchall()
    parts = connection.execute(_PARTS.format(oid=row[0])).fetchall()
    return RelationShape(row[0], row[1], row[2], tuple(map(tuple, columns)), tuple(map(tuple, parts)))


def check(name: str, shape: RelationShape | None) -> RelationShape:
    """Return the description, or refuse a relation that does not exist, on which a query could fail, or of
    which the role sees only some rows. `name` is for messages."""
    if shape is None:
        raise InvalidInput(
            f"there is no table {name!r}, or this role may not see it. Say 'schema.table', and GRANT USAGE "
            "on the schema and SELECT on the table."
        )
    if shape.kind not in _READABLE:
        raise InvalidInput(
            f"{name!r} is a view, a foreign table or no table at all: whether it can be read may depend on "
            "one row. Make a materialized view of it."
        )
    if any(kind not in _READABLE for _, kind in shape.parts):
        raise InvalidInput(
            f"a partition or heir of {name!r} is a foreign table: whether it can be read may depend on one "
            "row. Make a materialized view of it."
        )
    if shape.filtered:
        raise InvalidInput(
            f"row-level security hides rows of {name!r} from this role, by conditions that may depend on "
            "other rows. Use a role that sees all rows (BYPASSRLS), or a materialized view."
        )
    check_names(name, [column for column, _, _ in shape.columns])
    return shape


def _drop_other_years(column: str, type_: str) -> str:
    """Return the SQL of a day or time that is NULL outside the years 1 to 9999, and where it is infinite.

    It is not clipped to these years, because two values would become equal; where they are ids, two people
    would become one. Rows whose id is NULL are left out.
    """
    if type_ == "date":
        inside = f"{column} >= '0001-01-01'::date AND {column} <= '9999-12-31'::date"
        return f"CASE WHEN {inside} THEN {column} END"
    # With a time zone the range is a day shorter at both ends, as on every engine: in some zone, these days
    # lie in the year 0 or 10000.
    first, end = (
        ("'0001-01-01'::timestamp", "'10000-01-01'::timestamp")
        if type_ == "timestamp"
        else ("'0001-01-02 00:00:00+00'::timestamptz", "'9999-12-31 00:00:00+00'::timestamptz")
    )
    value = column if type_ == "timestamp" else f"({column} AT TIME ZONE 'UTC')"
    return f"CASE WHEN {column} >= {first} AND {column} < {end} THEN {value} END"


def _as_double(column: str) -> str:
    """Return the SQL of a numeric as the nearest double. It is infinite above 1.7976931348623158e308, which
    lies just above the largest double, and zero below 2.5e-324, which lies just above half of the least:
    beyond these limits PostgreSQL's cast could fail."""
    return (
        f"CASE WHEN {column} = 'NaN' THEN 'NaN'::float8 "
        f"WHEN {column} > 1.7976931348623158e308 THEN {INFINITE} "
        f"WHEN {column} < -1.7976931348623158e308 THEN -{INFINITE} "
        f"WHEN abs({column}) < 2.5e-324 THEN 0::float8 ELSE {column}::float8 END"
    )


def _keeps_digits(fact: Fact | None) -> bool:
    """Return whether a numeric keeps all of its digits, because it is not declared as a number."""
    if isinstance(fact, Categories):
        return not all(isinstance(value, int) for value in fact.values)
    return not isinstance(fact, Bounds | None)


def _read(column: str, type_: str, kind: str, fact: Fact | None, is_unit: bool) -> str:
    """Return the SQL by which a column is read. It fails on no value, and where the column holds the ids of
    units (`is_unit`), no two different ids become equal, except for those that become NULL.

    `fact`: what is declared of the column.
    """
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
        return column if is_unit or _keeps_digits(fact) else _as_double(column)
    if kind == "number":
        return f"{column}::float8"
    if kind == "date":
        return _drop_other_years(column, type_)
    return column


@dataclass(frozen=True)
class PostgresTable:
    """Describes a relation under the name that queries use, with what is declared of it.

    `relation`: its schema and name in the database. `schema`: the declared fact of each column. `unit`: the
    column of the units' ids. `books`: by column, how its texts are read.
    """

    name: str
    relation: tuple[str, str]
    shape: RelationShape
    schema: tuple[tuple[str, Fact], ...]
    unit: str | None
    books: Mapping[str, Codebook] = field(default_factory=dict, hash=False)

    @property
    def kinds(self) -> dict[str, str]:
        """The kinds of columns as queries see them: a boolean that is declared as a number is an integer."""
        facts = dict(self.schema)
        return {
            name: "integer" if kind == "boolean" and isinstance(facts.get(name), Bounds) else kind
            for name, kind in self.shape.kinds.items()
        }

    @property
    def id_kinds(self) -> dict[str, str]:
        """The kinds of columns as ids (`columns.ID_KINDS`), as `_read` reads them."""
        facts, kinds = dict(self.schema), self.kinds
        for name, type_, _ in self.shape.columns:
            if type_ == "numeric" and (name == self.unit or _keeps_digits(facts.get(name))):
                kinds[name] = "decimal"
            if type_.startswith("timestamp"):
                kinds[name] = "time"
        return kinds

    @property
    def text(self) -> str:
        """The relation's schema and name as SQL."""
        return f"{quoted(self.relation[0])}.{quoted(self.relation[1])}"

    def _columns(self) -> Iterable[tuple[str, str, str]]:
        """Yield the name, type and kind of each declared column, or of all columns where none is declared;
        columns of a kind that cannot be declared are left out."""
        declared = {*dict(self.schema), *({self.unit} - {None})}
        kinds = self.shape.kinds
        for name, type_, _ in self.shape.columns:
            if (not declared or name in declared) and kinds[name] in _ARROW:
                yield name, type_, kinds[name]

    @property
    def definition(self) -> str:
        """The common table expression under the name that queries use. It has the declared columns, each
        read so that no value makes a query fail (`_read`)."""
        facts = dict(self.schema)
        select_list = [
            f"{_read(quoted(n), type_, kind, facts.get(n), n == self.unit)} AS {quoted(n)}"
            for n, type_, kind in self._columns()
        ]
        query = f"SELECT {', '.join(select_list)} FROM {self.text}"
        if self.books:
            # Imported late, because the SQL library is slow to load.
            from ..codebook import select_list as rewritten
            from .postgres_dialect import dialect

            columns = rewritten([n for n, *_ in self._columns()], self.books, self.kinds, dialect())
            query = f"SELECT {', '.join(columns)} FROM ({query}) AS plain"
        return f"{quoted(self.name)} AS NOT MATERIALIZED ({query})"

    def arrow(self, columns: Sequence[str]) -> pa.Schema:
        """Return the Arrow types of the named columns in batches."""
        types = {n: t for n, t, _ in self.shape.columns}
        fields = []
        for name in columns:
            type_ = pa.timestamp("us") if types[name].startswith("timestamp") else _ARROW[self.kinds[name]]
            to = self.converted(name)
            fields.append(pa.field(name, type_ if to is None else _ARROW[to]))
        return pa.schema(fields)

    def converted(self, column: str) -> str | None:
        """Return the kind to which a column is converted in batches; None where it keeps its own.

        Units of type numeric become text: as doubles, different ids could become equal, and two people one.
        """
        if column == self.unit and any(
            n == column and type_ == "numeric" for n, type_, _ in self.shape.columns
        ):
            return "text"
        fact = dict(self.schema).get(column)
        return None if fact is None else converted_to(fact, self.kinds[column])


def definitions(tables: Mapping[str, PostgresTable]) -> str:
    """Return the common table expressions of all tables, to stand after WITH."""
    return ", ".join(table.definition for table in tables.values())


# The largest number that a timeout of PostgreSQL's can have, in milliseconds: about 24 days.
_LONGEST_TIMEOUT = 2**31 - 1
SCHEMES = ("postgresql://", "postgres://")
_SECRETS = ("password", "sslpassword")
# How many idle connections are kept for later queries; chosen by hand, not tuned.
_IDLE = 4
# These settings override those of the role, the database and the server in every transaction. Days, time
# zones and doubles have one text. Names of functions mean the built-in ones, never a function of the same
# name that somebody else created. No time goes into JIT compilation. With row_security off, a query that a
# row security policy would filter fails, instead of reading only some rows.
SETTINGS = {
    "search_path": "pg_catalog, pg_temp",
    "timezone": "UTC",
    "datestyle": "ISO, YMD",
    "extra_float_digits": "1",
    "standard_conforming_strings": "on",
    "transform_null_equals": "off",
    "jit": "off",
    "client_min_messages": "error",
    "row_security": "off",
}


def is_address(data: Any) -> bool:
    """Return whether this is the address of a PostgreSQL database."""
    return isinstance(data, str) and data.startswith(SCHEMES)


def driver() -> Any:
    """Return psycopg, or raise an error that names the extra."""
    try:
        import psycopg
    except ImportError:
        raise MissingExtra.of("postgres", "PostgreSQL needs psycopg, and nothing was opened") from None
    return psycopg


class Address:
    """Holds the address of a database and the user's name; never a password.

    >>> Address("postgresql://ann@example.org/clinic?sslmode=require")
    Address('example.org/clinic')
    """

    def __init__(self, url: str) -> None:
        psycopg = driver()
        try:
            parts = psycopg.conninfo.conninfo_to_dict(url)
        except psycopg.Error:
            # The driver's error is not shown, as it may quote the address and a password in it.
            raise InvalidInput(
                "this is not an address of a PostgreSQL database, such as "
                "postgresql://user@host:5432/database."
            ) from None
        for name in _SECRETS:
            if parts.get(name):
                raise InvalidInput(
                    f"the address has a {name} in it, which would end up in histories and logs. Leave it "
                    "out, and put it into PGPASSWORD, ~/.pgpass or a service file."
                )
        # The timeout is in seconds.
        self._parts = {"connect_timeout": "10", "application_name": "discreet", **parts}

    @property
    def label(self) -> str:
        """The host and the database, for messages."""
        parts = self._parts
        host = parts.get("host") or parts.get("hostaddr") or parts.get("service") or "the local server"
        return f"{host}/{parts.get('dbname', '')}".rstrip("/")

    def connect(self, **options: Any) -> Any:
        """Return a connection in autocommit mode, which begins no transaction and prepares no statement by
        itself. The text of the driver's error is not shown."""
        psycopg = driver()
        try:
            return psycopg.connect(
                **self._parts, autocommit=True, client_encoding="UTF8", prepare_threshold=None, **options
            )
        except (psycopg.Error, UnicodeError):
            raise EngineError(
                f"no connection to the PostgreSQL database at {self.label}. Check that it runs, the address, "
                "and the password in PGPASSWORD, ~/.pgpass or a service file."
            ) from None

    def __repr__(self) -> str:
        return f"Address({self.label!r})"

    def __reduce__(self) -> Any:
        raise TypeError("an address is not copied to other processes: it may name credentials")


class Pool:
    """Keeps connections to one database, each used by one thread at a time.

    Idle connections are stored with the id of the process that opened them: a forked child must not use those
    of its parent, and opens its own.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        self._idle: list[tuple[int, Any]] = []
        self._running: set[Any] = set()
        self._lock = threading.Lock()

    @contextmanager
    def transaction(self, seconds: float | None) -> Iterator[Any]:
        """Yield a connection inside a read-only transaction with one snapshot. It is rolled back at the end,
        as nothing was written. `seconds` limits each statement; with None, a limit of the role or the server
        still applies."""
        connection = self._begin(seconds)
        self._running.add(connection)
        try:
            yield connection
        finally:
            self._running.discard(connection)
            self._give_back(connection)

    def _begin(self, seconds: float | None) -> Any:
        """Begin a read-only transaction, on an idle connection or a new one."""
        psycopg = driver()
        # 0 means that no limit is set; PostgreSQL refuses numbers above `_LONGEST_TIMEOUT`. The first `min`
        # is there only because `round` fails on an infinite number.
        milliseconds = 0 if seconds is None else max(1, round(1000 * min(seconds, _LONGEST_TIMEOUT)))
        timeout = {"statement_timeout": str(min(milliseconds, _LONGEST_TIMEOUT))} if milliseconds else {}
        settings = "; ".join(f"SET LOCAL {k} = '{v}'" for k, v in {**SETTINGS, **timeout}.items())
        # Between quotes the two schemas of search_path would be one name.
        settings = settings.replace("'pg_catalog, pg_temp'", "pg_catalog, pg_temp")
        while True:
            connection, is_reused = self._take()
            try:
                connection.execute(f"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; {settings}")
                return connection
            except psycopg.Error:
                _close(connection)
                # The server may have closed an idle connection; then the next one is tried.
                if not is_reused:
                    raise EngineError(
                        f"the PostgreSQL database at {self.address.label} begins no transaction."
                    ) from None

    def _take(self) -> tuple[Any, bool]:
        """Return an idle connection of this process, or a new one, and whether it was idle."""
        with self._lock:
            while self._idle:
                pid, connection = self._idle.pop()
                if pid == os.getpid():
                    return connection, True
        return self.address.connect(), False

    def _give_back(self, connection: Any) -> None:
        """Roll back, and keep the connection as idle if it still works and there is space for it."""
        psycopg = driver()
        with suppress(psycopg.Error):
            connection.execute("ROLLBACK")
            if connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
                with self._lock:
                    if len(self._idle) < _IDLE:
                        self._idle.append((os.getpid(), connection))
                        return
        _close(connection)

    def cancel(self) -> None:
        """Cancel all statements that run now; may be called from any thread."""
        for connection in list(self._running):
            # The timeout, in seconds, is chosen by hand, not tuned.
            with suppress(Exception):
                connection.cancel_safe(timeout=5)

    def close(self) -> None:
        """Close the idle connections of this process."""
        with self._lock:
            idle, self._idle = self._idle, []
        for pid, connection in idle:
            if pid == os.getpid():
                _close(connection)


def _close(connection: Any) -> None:
    with suppress(Exception):
        connection.close()
