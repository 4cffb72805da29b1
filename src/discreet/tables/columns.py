"""Decides which columns can be declared: a column is taken as it is, converted to a type that the engine can
hold, or refused when the table is opened, with its name and a way out. That is decided by types and names,
never by values. Single values that no engine could process become missing (`engine_types`).

A fact (what the schema declares about a column: `Bounds`, `Categories`, ...) that does not fit the column's
type is refused as well: read as numbers, dates would all be missing, and nobody would notice.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import date
from typing import Any

import pyarrow as pa

from .. import _require
from .._errors import InvalidInput
from .._public import Boolean, Bounds, Categories, Dates, Fact, Text

# the words that engines read as true and as false, in any letter case
TRUE_WORDS, FALSE_WORDS = ("true", "t", "yes", "y", "1"), ("false", "f", "no", "n", "0")

# the kinds of columns that queries know
KINDS = ("integer", "number", "text", "boolean", "date")
# The kinds of columns as ids, which are told apart further because their values have different canonical
# forms (`semantics.Canonical`), with their names in messages. "wide": whole numbers beyond 64 bits.
ID_KINDS = {
    "integer": "whole numbers",
    "wide": "whole numbers",
    "decimal": "decimals",
    "number": "floating-point numbers",
    "text": "text",
    "boolean": "true or false",
    "date": "days",
    "time": "times",
    "zoned time": "times with a time zone",
    # Each is a kind of its own: to compare two of them, an engine would convert one, which fails on days that
    # the finer one cannot hold.
    "time_s": "times in seconds",
    "time_ms": "times in milliseconds",
    "time_ns": "times in nanoseconds",
}
_PRECISIONS = {"TIMESTAMP_S": "time_s", "TIMESTAMP_MS": "time_ms", "TIMESTAMP_NS": "time_ns"}
# Kinds with the same canonical texts as another one.
_SAME_ID = {"wide": "integer"}
# A value of these kinds has only one usual text, unlike 7.5, which may also be written 7.50 or 75e-1.
_PLAIN_TEXTS = {"text", "integer", "boolean", "date"}
# The most bytes of a text; a longer one is missing, on every engine. Without a limit one row could decide
# whether a query fails: engines give up on texts of some megabytes, each at its own limit.
LONGEST_TEXT = 1 << 20
# The kinds of columns that each fact can be declared for; `_category_kinds` has those of categories.
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
# Types of DuckDB by their whole name; types that are in none of these tables, such as ENUM, are text.
_KIND_BY_NAME = {"BOOLEAN": "boolean", "DATE": "date", "VARCHAR": "text", "UUID": "text"}
_INTEGER_TYPES = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER")
_NUMBERS = ("HUGEINT", "UBIGINT", "UHUGEINT", "FLOAT", "DOUBLE", "DECIMAL", "BIGNUM")
_WIDE = ("UBIGINT", "HUGEINT", "UHUGEINT")
_NESTED = ("STRUCT", "MAP", "UNION", "VARIANT", "GEOMETRY")
_TIMES = ("TIME", "INTERVAL")


def kind_of(type_: str) -> str:
    """Return the kind of a column from the name of its type in DuckDB."""
    if type_.endswith("]") or type_.startswith(_NESTED):
        return "nested"
    if type_.startswith(("BLOB", "BIT")):
        return "binary"
    # Before _TIMES, because it begins with "TIME".
    if type_.startswith("TIMESTAMP"):
        return "date"
    if type_.startswith(_TIMES):
        return "time"
    if type_.startswith(_INTEGER_TYPES):
        return "integer"
    if type_.startswith(_NUMBERS):
        return "number"
    return _KIND_BY_NAME.get(type_, "text")


def id_kind_of(type_: str) -> str:
    """Return the kind of a column as one of `ID_KINDS` from the name of its type in DuckDB; other kinds,
    which cannot be declared, are as in `kind_of`."""
    if type_.startswith("DECIMAL"):
        return "decimal"
    if type_.startswith("TIMESTAMP"):
        return "zoned time" if type_.endswith("ZONE") else _PRECISIONS.get(type_, "time")
    return "wide" if type_ in _WIDE else kind_of(type_)


def coarse(kind: str) -> str:
    """Return the kind of `KINDS` to which a kind of `ID_KINDS` belongs; one of `KINDS` is returned as it
    is."""
    if kind == "zoned time" or kind in ("time", *_PRECISIONS.values()):
        return "date"
    return {"wide": "number", "decimal": "number"}.get(kind, kind)


def can_match(first: str, second: str) -> bool:
    """Return whether ids of these two kinds can be joined by the texts of their canonical forms
    (`semantics.Canonical`): ids of one kind can, and so can a text with a kind whose values have only one
    usual text each.

    Whole numbers are not made floating-point numbers to join them: from 2**53 on, two of them would be one.
    """
    kinds = {_SAME_ID.get(kind, kind) for kind in (first, second)}
    return len(kinds) == 1 or ("text" in kinds and kinds <= _PLAIN_TEXTS)


def no_match(first: tuple[str, str, str], second: tuple[str, str, str]) -> InvalidInput:
    """Return the error for a join of two columns whose kinds do not match: it would find nothing, and nobody
    would notice. Each column is its table, its name, and its kind of `ID_KINDS`."""
    sides = [f"column {name!r} of {table!r} holds {ID_KINDS[kind]}" for table, name, kind in (first, second)]
    return InvalidInput(
        f"{sides[0]}, and {sides[1]}: compared as ids, their rows would not match. Store both columns with "
        "one type; for ids, whole numbers or text."
    )


def safe(column: str, type_: str, *, collated: bool) -> str | None:
    """Return the DuckDB expression that is read instead of a column of a file or database, whose type has
    values on which a query could fail; None for other types. `collated`: whether text may have a collation.

    Under a collation two different texts can be equal: two people would count as one, or a row would be in
    two groups. Long numbers (BIGNUM), documents (JSON), identifiers (UUID) and coarse timestamps
    (TIMESTAMP_S, TIMESTAMP_MS) have values that no other type holds, and comparing them would fail on some
    rows; they are converted, as are ENUMs and, from DuckDB 2 on, TIMESTAMPTZ_NS. Days and times outside the
    years 1 to 9999, and decimals with more digits than their type has, are missing here as in `engine_types`:
    a file is read through that function if one of its rows fails in `probing`, and one row must not decide
    what other rows say.
    """
    if type_ == "VARCHAR":
        # Not COLLATE "binary": on a text with any collation, DuckDB's LIKE tries all ways to match a pattern.
        return f"decode(encode({column}))" if collated else None
    if type_ in ("BIGNUM", "JSON", "UUID") or type_.startswith("ENUM"):
        return f"CAST({column} AS VARCHAR)"
    if type_.startswith("DECIMAL("):
        last = f"CAST('{_largest_decimal(type_)}' AS {type_})"
        return f"CASE WHEN {column} BETWEEN -{last} AND {last} THEN {column} END"
    if type_ == "TIMESTAMPTZ_NS":
        # Cut off below a microsecond, as in `_convert`: a CAST would round.
        return f"make_timestamptz(epoch_ns({column}) // 1000)"
    if type_ not in _YEARS:
        return None
    value = f"TRY_CAST({column} AS TIMESTAMP)" if type_ in ("TIMESTAMP_S", "TIMESTAMP_MS") else column
    first, last = (f"CAST('{end}' AS {_COMPARED.get(type_, 'TIMESTAMP')})" for end in _YEARS[type_])
    return f"CASE WHEN {value} BETWEEN {first} AND {last} THEN {value} END"


def _largest_decimal(type_: str) -> str:
    """Return the largest number of a decimal type, as a DuckDB literal.

    >>> _largest_decimal("DECIMAL(5,2)"), _largest_decimal("DECIMAL(3,3)")
    ('999.99', '0.999')
    """
    width, scale = (int(part) for part in type_.removeprefix("DECIMAL(").removesuffix(")").split(","))
    return f"{'9' * (width - scale) or '0'}.{'9' * scale}".removesuffix(".")


# The first and the last day and time of each type that queries see; `_drop_other_years` has those of Arrow.
_YEARS = {
    "DATE": ("0001-01-01", "9999-12-31"),
    **dict.fromkeys(
        ("TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS"), ("0001-01-01 00:00:00", "9999-12-31 23:59:59.999999")
    ),
    "TIMESTAMP WITH TIME ZONE": ("0001-01-02 00:00:00+00", "9999-12-30 23:59:59.999999+00"),
    "TIMESTAMP_NS": ("1677-09-22 00:12:43.145224192", "2262-04-10 23:47:16.854775808"),
}
# The type to which the ends in `_YEARS` are cast, where it is not TIMESTAMP.
_COMPARED = {name: name for name in ("DATE", "TIMESTAMP WITH TIME ZONE", "TIMESTAMP_NS")}


def probing(column: str, type_: str) -> tuple[str, ...]:
    """Return DuckDB expressions that fail if a query could fail on a value of this column; none where no
    value can make a query fail."""
    kind = kind_of(type_)
    if kind == "text":
        text = f"CAST({column} AS VARCHAR)"
        long = f"CASE WHEN STRLEN({text}) > {LONGEST_TEXT} THEN CAST(ERROR('long') AS VARCHAR) END"
        return (f"decode(encode({text}))", long)
    if kind == "date":
        return (f"CAST({column} AS VARCHAR)", f"CAST({column} AS DATE)")
    return (f"CAST({column} AS DOUBLE)", f"CAST({column} AS VARCHAR)") if type_.startswith("DECIMAL") else ()


def arrow_kind(type_: pa.DataType) -> str:
    """Return the kind of a column from its Arrow type."""
    is_ = pa.types
    if is_.is_dictionary(type_) or is_.is_run_end_encoded(type_):
        return arrow_kind(type_.value_type)
    if is_.is_decimal(type_):
        return "decimal" if type_.precision > 38 else "number"
    rules = (
        # no value at all: text that is missing in every row
        (is_.is_null, "text"),
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
    )
    return next((kind for rule, kind in rules if rule(type_)), "binary")


def check_columns(
    table: str, schema: Iterable[tuple[str, Fact]], unit: str | None, kinds: Mapping[str, str]
) -> None:
    """Refuse declared columns that a table does not have, and those that `check_facts` refuses."""
    for column in [*(name for name, _ in schema), *([] if unit is None else [unit])]:
        if column not in kinds:
            what = "the unit's column is" if column == unit else "the schema declares"
            raise InvalidInput(
                f"{what} {column!r}, and table {table!r} has no such column."
                f"{_require.did_you_mean(column, kinds)} It has: {', '.join(kinds)}."
            )
    check_facts(table, schema, unit, kinds)


def check_facts(
    table: str, schema: Iterable[tuple[str, Fact]], unit: str | None, kinds: Mapping[str, str]
) -> None:
    """Refuse, before anything is charged, a unit of a kind that no query can use, and a column whose kind
    does not fit its fact."""
    if unit is not None and kinds[unit] not in KINDS:
        raise _refusal(table, unit, kinds[unit], "and cannot tell people apart")
    for name, fact in schema:
        kind = kinds[name]
        fits = _category_kinds(fact) if isinstance(fact, Categories) else _FITS[type(fact)]
        if kind not in fits:
            raise _refusal(table, name, kind, f"and {_declaration_words(fact)}")


def _category_kinds(fact: Categories) -> tuple[str, ...]:
    if all(isinstance(value, int) for value in fact.values):
        return ("integer", "number", "text")
    return KINDS


def _declaration_words(fact: Fact) -> str:
    """Return the words of an error that say what a column is declared as, or that it is of no use."""
    if isinstance(fact, Text) or (isinstance(fact, Categories) and isinstance(fact.values[0], str)):
        return "cannot be used in queries"
    words = {Bounds: "a number", Boolean: "true or false", Dates: "dates", Categories: "whole numbers"}
    return f"is declared as {words[type(fact)]}"


def _refusal(table: str, name: str, kind: str, why: str) -> InvalidInput:
    """Return the error for a column whose values a query could not use."""
    way = _WAY_OUT.get(kind, "Declare what it is, or convert it.")
    return InvalidInput(
        f"column {name!r} of {table!r} holds {_WORDS[kind]}, {why}. {way} A column that nobody asks about "
        "need not be declared."
    )


def unusable(kind: str) -> str | None:
    """Return why a column of this kind cannot be declared, and what to do; None if it can."""
    return None if kind in KINDS else f"holds {_WORDS[kind]}, which no query can use. {_WAY_OUT[kind]}"


def converted_to(fact: Fact, kind: str) -> str | None:
    """Return the kind to which a column is converted before mechanisms read it; None where it has the
    declared kind already."""
    if isinstance(fact, Categories):
        # as doubles: "1.7" is no category, and must not become one
        if all(isinstance(value, int) for value in fact.values):
            return None if kind == "integer" else "number"
        return None if kind == "text" else "text"
    to = {Bounds: "number", Boolean: "boolean", Dates: "date"}.get(type(fact))
    return to if kind == "text" else None


def without_codes(batch: pa.RecordBatch, schema: Iterable[tuple[str, Fact]]) -> pa.RecordBatch:
    """Return a batch in which the declared codes of missing values are missing: numbers by their value, texts
    by their characters, days by their date. SQL does the same (`core.scan`)."""
    columns = {name: fact.missing for name, fact in schema if fact.missing and name in batch.schema.names}
    for name, codes in columns.items():
        index = batch.schema.get_field_index(name)
        batch = batch.set_column(index, batch.schema.field(index), _drop_codes(batch.column(index), codes))
    return batch


def _drop_codes(column: pa.Array, codes: tuple[str | int | float, ...]) -> pa.Array:
    """Return a column whose values that are codes are missing."""
    import pyarrow.compute as pc

    kind = arrow_kind(column.type)
    readers: dict[str, Any] = {
        "text": codes_as_texts,
        "integer": codes_as_numbers,
        "number": codes_as_numbers,
        "date": codes_as_days,
    }
    listed = readers[kind](codes) if kind in readers else ()
    if not listed:
        return column
    values = (
        column if kind == "text" else column.cast(pa.date32() if kind == "date" else pa.float64(), safe=False)
    )
    is_code = pc.is_in(values, value_set=pa.array(listed, values.type))
    return pc.if_else(is_code, pa.scalar(None, column.type), column)


def codes_as_numbers(codes: Iterable[Any]) -> list[float]:
    """Return the codes that are numbers, also those written as texts, such as "99"."""
    numbers = []
    for code in codes:
        with suppress(ValueError):
            numbers.append(float(code))
    return [number for number in numbers if math.isfinite(number)]


def codes_as_texts(codes: Iterable[Any]) -> list[str]:
    """Return the codes as they are written."""
    return [str(code) for code in codes]


def codes_as_days(codes: Iterable[Any]) -> list[date]:
    """Return the codes that are days, such as "9999-12-31"."""
    days = []
    for code in codes:
        with suppress(ValueError):
            days += [date.fromisoformat(code)] if isinstance(code, str) else []
    return days


def check_names(table: str, names: Iterable[str]) -> None:
    """Check that names differ in more than letter case, which queries ignore, and that SQL can hold them."""
    by_lower: dict[str, str] = {}
    for name in names:
        if "\0" in name:
            raise InvalidInput(
                f"column {name!r} of {table!r} has a NUL character in its name, which SQL cannot hold. "
                "Rename it."
            )
        # Compared with None, not with `name`: two columns may have exactly the same name.
        if (other := by_lower.get(name.lower())) is not None:
            raise InvalidInput(
                f"two columns of {table!r} are called {other!r} and {name!r}: queries could not tell them "
                "apart. Rename or drop one."
            )
        by_lower[name.lower()] = name


def engine_types(table: pa.Table) -> pa.Table:
    """Return the same values in types that the engine holds, without values on which a query could fail.

    Half floats become floats, small decimals decimal128, dictionaries and run ends their values, columns
    without any value text. Text that is not UTF-8 or has more than `LONGEST_TEXT` bytes, decimals with more
    digits than their type has, and days and times before the year 1 or after 9999 become missing: clipped
    instead, two people with such ids would become one. Each value is judged by itself. Columns of kinds that
    the engine does not hold are left unchanged; `check_facts` refuses them where they are declared.
    """
    columns = {}
    for field, column in zip(table.schema, table.columns, strict=True):
        if arrow_kind(field.type) not in KINDS:
            columns[field.name] = column
            continue
        decoded = _drop_invalid(_decode(column))
        to = _engine_type(decoded.type)
        columns[field.name] = _drop_long_texts(
            _drop_other_years(decoded if to is None else _convert(decoded, to))
        )
    # Without columns, `pa.table` would lose the number of rows.
    return table if not columns else pa.table(columns)


def _drop_long_texts(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return texts of at most `LONGEST_TEXT` bytes; longer ones are missing."""
    # Imported late, here and below, because it is slow to load.
    import pyarrow.compute as pc

    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return column
    sizes = pc.binary_length(column)
    if (pc.max(sizes).as_py() or 0) <= LONGEST_TEXT:
        return column
    return pc.if_else(pc.less_equal(sizes, LONGEST_TEXT), column, pa.scalar(None, column.type))


def _decode(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the plain values of a dictionary-encoded or run-end-encoded column.

    Each entry of a dictionary is checked by itself: an invalid entry must not affect the rows of others.
    """
    import pyarrow.compute as pc

    if pa.types.is_run_end_encoded(column.type):
        return pa.chunked_array([pc.run_end_decode(chunk) for chunk in column.chunks], column.type.value_type)
    if not pa.types.is_dictionary(column.type):
        return column
    chunks = []
    for chunk in column.chunks:
        indices = chunk.indices.cast(pa.int64(), safe=False)
        valid = pc.and_(pc.greater_equal(indices, 0), pc.less(indices, len(chunk.dictionary)))
        chunks += _drop_invalid(chunk.dictionary).take(pc.if_else(valid, indices, None)).chunks
    return pa.chunked_array(chunks, column.type.value_type)


def _drop_invalid(column: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray:
    """Return a column whose values are all valid for its type: bytes that are no text, or a decimal too long
    for its type, are missing."""
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    # Arrow calls a day with a time of day invalid; `_convert` cuts the time off.
    if pa.types.is_date64(column.type):
        return column
    return pa.chunked_array([part for chunk in chunks for part in _split_valid(chunk)], column.type)


def _split_valid(chunk: pa.Array) -> list[pa.Array]:
    """Return a chunk in parts, halved until each is valid or a single invalid value, which becomes
    missing."""
    try:
        chunk.validate(full=True)
    except pa.ArrowException:
        if len(chunk) <= 1:
            return [pa.nulls(len(chunk), chunk.type)]
        half = len(chunk) // 2
        return [*_split_valid(chunk.slice(0, half)), *_split_valid(chunk.slice(half))]
    return [chunk]


# The first day of year 1 and the last of 9999, in days from 1970: within, no conversion to text or to a day
# can fail.
_FIRST_DAY, _LAST_DAY = (date(1, 1, 1) - date(1970, 1, 1)).days, (date(9999, 12, 31) - date(1970, 1, 1)).days
_A_DAY = {"s": 86_400, "ms": 86_400 * 10**3, "us": 86_400 * 10**6, "ns": 86_400 * 10**9}
# 64 bits of nanoseconds reach from 1677 to 2262; a day is left out at both ends, where the engine cannot
# write all times as text.
_NANOSECONDS = (1 << 63) - 86_400 * 10**9


def _drop_other_years(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return days and times of the years 1 to 9999; others are missing."""
    type_ = column.type
    if pa.types.is_date32(type_):
        return _drop_outside(column, pa.int32(), _FIRST_DAY, _LAST_DAY)
    if not pa.types.is_timestamp(type_):
        return column
    if type_.unit == "ns":
        return (
            _drop_outside(column, pa.int64(), -_NANOSECONDS, _NANOSECONDS)
            if type_.tz is None
            else _drop_infinite(column)
        )
    # One day less at both ends where a time zone may shift a time into the year 0 or 10000.
    day, margin = _A_DAY[type_.unit], 0 if type_.tz is None else 1
    return _drop_outside(column, pa.int64(), (_FIRST_DAY + margin) * day, (_LAST_DAY + 1 - margin) * day - 1)


def _drop_infinite(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return nanoseconds with a time zone, of which the engine keeps microseconds; the two numbers that the
    engine reads as infinite times become missing."""
    import pyarrow.compute as pc

    numbers = pa.chunked_array([chunk.view(pa.int64()) for chunk in column.chunks], pa.int64())
    infinite = pc.is_in(numbers, pa.array([(1 << 63) - 1, 1 - (1 << 63)]))
    inside = pc.if_else(infinite, pa.scalar(None, pa.int64()), numbers)
    return pa.chunked_array([chunk.view(column.type) for chunk in inside.chunks], column.type)


def _drop_outside(column: pa.ChunkedArray, as_: pa.DataType, low: int, high: int) -> pa.ChunkedArray:
    """Return the values whose numbers lie between two bounds; others are missing."""
    import pyarrow.compute as pc

    numbers = pa.chunked_array([chunk.view(as_) for chunk in column.chunks], as_)
    valid = pc.and_(
        pc.greater_equal(numbers, pa.scalar(low, as_)), pc.less_equal(numbers, pa.scalar(high, as_))
    )
    inside = pc.if_else(valid, numbers, pa.scalar(None, as_))
    return pa.chunked_array([chunk.view(column.type) for chunk in inside.chunks], column.type)


def _convert(column: pa.ChunkedArray, to: pa.DataType) -> pa.ChunkedArray:
    """Return a column as the type that the engine holds."""
    if pa.types.is_timestamp(column.type):
        # What is below a microsecond is cut off, as the engine does.
        return _drop_other_years(column).cast(to, safe=False)
    if pa.types.is_date64(column.type):
        as_times = pa.chunked_array(
            [chunk.view(pa.timestamp("ms")) for chunk in column.chunks], pa.timestamp("ms")
        )
        return _drop_other_years(as_times).cast(pa.date32(), safe=False)
    return column.cast(to)


def _engine_type(type_: pa.DataType) -> pa.DataType | None:
    """Return the type in which the engine holds these values; None if it is the same type."""
    is_ = pa.types
    if is_.is_null(type_) or is_.is_string_view(type_):
        return pa.large_string()
    if is_.is_timestamp(type_) and (type_.unit in ("s", "ms") or (type_.unit == "ns" and type_.tz)):
        return pa.timestamp("us", type_.tz)
    if is_.is_float16(type_):
        return pa.float32()
    if is_.is_decimal256(type_) and type_.precision <= 38:
        return pa.decimal128(type_.precision, type_.scale)
    if is_.is_decimal(type_) and type_.bit_width < 128:
        return pa.decimal128(type_.precision, type_.scale)
    if is_.is_date64(type_):
        return pa.date32()
    return None


def engine_holds(type_: pa.DataType) -> bool:
    """Return whether the engine can read an Arrow column of this type at all."""
    return arrow_kind(type_) in KINDS


def to_arrow(name: str, column: Any) -> pa.Array | pa.ChunkedArray:
    """Return one column as Arrow, or a refusal that quotes no value."""
    if isinstance(column, pa.Array | pa.ChunkedArray):
        return column
    try:
        # A copy: Arrow would share the memory of numbers, and a later change of the data frame would change
        # the table.
        return pa.array(column.copy() if hasattr(column, "copy") else column, from_pandas=True)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        # The text of Arrow's error would quote a value.
        raise InvalidInput(
            f"column {name!r} does not hold values of one kind (numbers, text, dates, true or false). "
            "Convert it to one kind, or drop it."
        ) from None
