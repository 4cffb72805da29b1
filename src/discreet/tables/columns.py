"""What a column must be like to be declared: every kind of column is taken as it is, turned into one that the engine can hold
without changing a value, or refused when the table is opened, by name and with the way out. Looks at types and names, never at values.

A fact that does not fit a column's type is refused as well: read as numbers, dates would all be missing, and nobody would notice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from .._errors import InvalidInput
from .._public import Boolean, Bounds, Categories, Dates, Fact, Public, Text

KINDS = ("integer", "number", "text", "boolean", "date")  # what queries know
_FITS: dict[type, tuple[str, ...]] = {
    Bounds: ("integer", "number", "boolean", "text"),
    Boolean: ("boolean", "integer", "text"),
    Dates: ("date", "text"),
    Text: KINDS,
}
_WORDS = {
    "integer": "whole numbers",
    "number": "numbers",
    "text": "text",
    "boolean": "true or false",
    "date": "dates",
    "nested": "lists, structures or maps",
    "time": "times of day or durations",
    "binary": "bytes",
    "decimal": "decimals of more than 38 digits",
}
_WAY_OUT = {
    "nested": "Make columns of what is inside, one for each part.",
    "time": "Convert it to a number of hours or seconds.",
    "binary": "Convert it to text or numbers.",
    "decimal": "Convert it to double, or to a decimal of at most 38 digits.",
    "date": "Declare Dates(first, last), or convert it to a number.",
}
_DUCKDB = {"BOOLEAN": "boolean", "DATE": "date", "VARCHAR": "text", "UUID": "text"}
_WHOLE = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER")
_NUMBERS = ("HUGEINT", "UBIGINT", "UHUGEINT", "FLOAT", "DOUBLE", "DECIMAL", "BIGNUM")
_NESTED = ("STRUCT", "MAP", "UNION", "VARIANT", "GEOMETRY")
_TIMES = ("TIME", "INTERVAL")


def kind_of(type_: str) -> str:
    """The kind of a column from the name of its type in DuckDB."""
    if type_.endswith("]") or type_.startswith(_NESTED):
        return "nested"
    if type_.startswith(("BLOB", "BIT")):
        return "binary"
    if type_.startswith("TIMESTAMP"):
        return "date"
    if type_.startswith(_TIMES):
        return "time"
    if type_.startswith(_WHOLE):
        return "integer"
    if type_.startswith(_NUMBERS):
        return "number"
    return _DUCKDB.get(type_, "text")


def safe(column: str, type_: str, *, collated: bool) -> str | None:
    """A column of a file or database without what queries could trip over, in the engine's words; None if it is fine as it is.

    Text of a database may have a collation under which two values are one: then two people would be, or a row would be in two
    groups. Long numbers, documents, identifiers and coarse timestamps have values that no other type holds, and comparing them would
    fail on some rows.
    """
    if type_ == "VARCHAR":
        return f'{column} COLLATE "binary"' if collated else None
    if type_ in ("BIGNUM", "JSON", "UUID") or type_.startswith("ENUM"):
        return f"CAST({column} AS VARCHAR)"
    return f"TRY_CAST({column} AS TIMESTAMP)" if type_ in ("TIMESTAMP_S", "TIMESTAMP_MS") else None


def arrow_kind(type_: pa.DataType) -> str:
    """The same from an Arrow type."""
    is_ = pa.types
    if is_.is_dictionary(type_):
        return arrow_kind(type_.value_type)
    if is_.is_decimal(type_):
        return "decimal" if type_.precision > 38 else "number"
    rules = (
        (is_.is_null, "text"),  # nothing in it: text that is missing
        (is_.is_boolean, "boolean"),
        (is_.is_uint64, "number"),
        (is_.is_integer, "integer"),
        (is_.is_floating, "number"),
        (is_.is_date, "date"),
        (is_.is_timestamp, "date"),
        (is_.is_string, "text"),
        (is_.is_large_string, "text"),
        (is_.is_string_view, "text"),
        (is_.is_temporal, "time"),
        (is_.is_nested, "nested"),
        (is_.is_run_end_encoded, "nested"),
    )
    return next((kind for rule, kind in rules if rule(type_)), "binary")


def check_facts(table: str, schema: Iterable[tuple[str, Fact]], unit: str | None, kinds: Mapping[str, str]) -> None:
    """Refuse, before anything is charged, what no query could be answered from."""
    if unit is not None and kinds[unit] not in KINDS:
        raise _refused(table, unit, kinds[unit], "and cannot tell people apart")
    for name, fact in schema:
        kind = kinds[name]
        fits = _category_kinds(fact) if isinstance(fact, Categories) else _FITS[type(fact)]
        if kind not in fits:
            raise _refused(table, name, kind, f"and {_declared(fact)}")


def _category_kinds(fact: Categories) -> tuple[str, ...]:
    if all(isinstance(value, int) for value in fact.values):
        return ("integer", "number", "text")
    return KINDS


def _declared(fact: Fact) -> str:
    if isinstance(fact, Text) or (isinstance(fact, Categories) and isinstance(fact.values[0], str)):
        return "cannot be used in queries"
    words = {Bounds: "a number", Boolean: "true or false", Dates: "dates", Categories: "whole numbers"}
    return f"is declared as {words[type(fact)]}"


def _refused(table: str, name: str, kind: str, why: str) -> InvalidInput:
    way = _WAY_OUT.get(kind, "Declare what it is, or convert it.")
    return InvalidInput(
        f"column {name!r} of {table!r} holds {_WORDS[kind]}, {why}. Nothing was opened or charged. {way} A column that nobody asks "
        f"about need not be declared."
    )


def unusable(kind: str) -> str | None:
    """Why a column of this kind cannot be declared, and what to do; None if it can."""
    return None if kind in KINDS else f"holds {_WORDS[kind]}, which no query can use. {_WAY_OUT[kind]}"


def converted_to(fact: Fact, kind: str) -> str | None:
    """The type in the engine as which a column is handed on, where it is not of the declared kind itself; else None."""
    if isinstance(fact, Categories):
        if all(
            isinstance(value, int) for value in fact.values
        ):  # as doubles: "1.7" is no category, and must not become one
            return None if kind == "integer" else "DOUBLE"
        return None if kind == "text" else "VARCHAR"
    to = {Bounds: "DOUBLE", Boolean: "BOOLEAN", Dates: "DATE"}.get(type(fact))
    return to if kind == "text" else None


def check_names(table: str, names: Iterable[str]) -> None:
    """Queries take no notice of letter case, so names must differ in more than that."""
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(name.lower(), name)
        if other is not name:
            raise InvalidInput(
                f"two columns of {table!r} are called {other!r} and {name!r}: queries could not tell them apart. Nothing was opened. "
                f"Rename or drop one."
            )


def held(table: pa.Table) -> pa.Table:
    """The same values in types that the engine holds: half floats become floats, small decimals decimal128, dictionaries and run ends
    their values, columns without any value text. What has no such type stays, to be refused where it is declared."""
    columns = {}
    for field, column in zip(table.schema, table.columns, strict=True):
        to = _holdable(field.type)
        columns[field.name] = column if to is None else _converted(column, to)
    return table if not columns else pa.table(columns)


def _converted(column: pa.ChunkedArray, to: pa.DataType) -> pa.ChunkedArray:
    import pyarrow.compute as pc

    if pa.types.is_run_end_encoded(column.type):
        return pc.run_end_decode(column)
    if pa.types.is_timestamp(column.type):  # years beyond what microseconds can count are the last that can
        most = (1 << 63) // (10**6 if column.type.unit == "s" else 10**3) - 1
        whole = column.cast(pa.timestamp(column.type.unit)).cast(pa.int64())
        inside = pc.min_element_wise(pc.max_element_wise(whole, -most, skip_nulls=False), most, skip_nulls=False)
        return inside.cast(pa.timestamp(column.type.unit)).cast(pa.timestamp("us")).cast(to)
    return column.cast(to)


def _holdable(type_: pa.DataType) -> pa.DataType | None:
    is_ = pa.types
    if is_.is_null(type_) or is_.is_string_view(type_):
        return pa.large_string()
    if is_.is_timestamp(type_) and type_.unit in ("s", "ms"):
        return pa.timestamp("us", type_.tz)
    if is_.is_float16(type_):
        return pa.float32()
    if is_.is_decimal256(type_) and type_.precision <= 38:
        return pa.decimal128(type_.precision, type_.scale)
    if is_.is_decimal(type_) and type_.bit_width < 128:
        return pa.decimal128(type_.precision, type_.scale)
    if is_.is_dictionary(type_):
        return _holdable(type_.value_type) or type_.value_type
    return type_.value_type if is_.is_run_end_encoded(type_) else None


def engine_holds(type_: pa.DataType) -> bool:
    """Whether the engine can read an Arrow column of this type at all."""
    return arrow_kind(type_) in KINDS


def to_arrow(name: str, column: Any) -> pa.Array | pa.ChunkedArray:
    """One column as Arrow, or a refusal that quotes no value."""
    if isinstance(column, pa.Array | pa.ChunkedArray):
        return column
    try:
        return pa.array(column, from_pandas=True)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):  # its text would quote a value
        raise InvalidInput(
            f"column {name!r} does not hold values of one kind (numbers, text, dates, true or false). Nothing was opened. Convert it "
            f"to one kind, or drop it."
        ) from None


def check_public(public: Public, kinds: Mapping[str, Mapping[str, str]]) -> None:
    """All declared tables."""
    check_facts(public.table, public.schema, public.unit.column, kinds[public.table])
    for other in public.tables:
        check_facts(other.name, other.schema, other.unit, kinds[other.name])
