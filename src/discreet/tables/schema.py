"""Reads and writes the schema file: what the steward declares public about a table, as TOML that people can
read and review.

`drafting.draft` starts one from the names and types of the columns, and from values only if the steward
agrees to look at them; every bound is a question to the steward. `load` returns exactly the public facts that
`dump` wrote.

>>> public = load('''
... table = "people"
... [unit]
... column = "id"
... rows = 5
... [columns.age]
... type = "number"
... lower = 0
... upper = 120
... ''')
>>> public.unit, public.bounds("age").upper
(Unit(column='id', rows=5), 120)
>>> load(dump(public)) == public
True
"""

from __future__ import annotations

import json
import re
import tomllib
from fractions import Fraction
from pathlib import Path
from typing import Any

from .. import _require
from .._errors import DiscreetError, InvalidInput
from .._public import (
    UNVERSIONED,
    Boolean,
    Bounds,
    Categories,
    Dates,
    Fact,
    Public,
    Reference,
    Related,
    Text,
    Unit,
)
from .engines.duckdb_reading import Database
from .files import BOOK_ENTRIES, Codebook

# The entries outside of all sections, and the names of the sections.
_TOP = {
    "table",
    "version",
    "neighbors",
    "size",
    "min_people",
    "unit",
    "columns",
    "tables",
    "format",
    "looked",
    "mechanisms",
}
# By type of column, the entries that its section must have, and those that it may have beside.
_FIELDS: dict[str, tuple[set[str], set[str]]] = {
    "number": ({"lower", "upper"}, {"nullable", "missing"}),
    "categories": ({"values"}, {"missing"}),
    "boolean": (set(), {"nullable", "missing"}),
    "date": ({"lower", "upper"}, {"nullable", "missing"}),
    "text": (set(), {"missing"}),
}


_MAKERS: dict[str, Any] = {
    "number": Bounds,
    "categories": Categories,
    "boolean": Boolean,
    "date": Dates,
    "text": Text,
}


def load(text: str | Path) -> Public:
    """Return the public facts that a schema file (a path, or its text) declares."""
    if isinstance(text, Path):
        text = _read(text)
    try:
        data = tomllib.loads(text)
    # Not only TOMLDecodeError: Python refuses to read an integer of more than 4,300 digits.
    except ValueError as error:
        raise InvalidInput(f"the schema is not valid TOML: {error}.{_place(text, str(error))}") from None
    _check_entries("the schema", data, _TOP)
    facts = {key: data[key] for key in ("table", "version", "neighbors", "size", "min_people") if key in data}
    tables = tuple(_related_table(name, body) for name, body in _section(data, "tables").items())
    columns = _columns(_section(data, "columns"))
    return Public(schema=columns, unit=_unit(data), tables=tables, **facts)


def _read(path: Path) -> str:
    """Return the text of a schema file, with or without a byte-order mark."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InvalidInput(
            f"the schema {str(path)!r} cannot be read: {error.strerror}. Give the path of a schema file."
        ) from None
    except UnicodeDecodeError:
        raise InvalidInput(f"the schema {str(path)!r} is not a text in UTF-8.") from None


def _place(text: str, message: str) -> str:
    """Return a sentence, with a blank before it, that quotes the line in the parser's message and its
    section; empty if the message names no line."""
    match = re.search(r"at line (\d+)", message)
    lines = text.splitlines()
    if match is None or not 0 < int(match[1]) <= len(lines):
        return ""
    number = int(match[1])
    line = lines[number - 1].partition("#")[0].strip()
    sections = [header.strip() for header in lines[:number] if re.match(r"\s*\[.+\]", header)]
    where = f" in {sections[-1].partition(' #')[0].rstrip()}" if sections else ""
    hint = (
        " A value is missing behind '=': give one, or put '#' before the line." if line.endswith("=") else ""
    )
    return f" That is {line!r}{where}.{hint}"


def data_of(file: Path) -> dict[str, Path | Database]:
    """Return where the data of the related tables of a schema file is, by name of the table: its entry `data`
    ("wards.csv", "hospital.duckdb::wards"), relative to the folder of the schema file."""
    # Refuses a file that is no valid schema.
    load(file)
    data: dict[str, Path | Database] = {}
    for name, body in tomllib.loads(_read(file)).get("tables", {}).items():
        if "data" not in body:
            continue
        if not isinstance(body["data"], str):
            raise InvalidInput(f"[tables.{name}] data must be the name of a file, got {body['data']!r}.")
        path, _, table = body["data"].partition("::")
        where = file.parent / path
        if not where.exists():
            raise InvalidInput(
                f"[tables.{name}] has its data in {path!r}, and there is no such file beside {file.name!r}."
            )
        data[name] = Database(where, table) if table else where
    return data


def mechanisms_of(file: Path) -> tuple[str, ...]:
    """Return the tags of the mechanisms of third parties that a schema file allows (`mechanisms.allow`)."""
    tags = _require.listed(mechanisms=tomllib.loads(_read(file)).get("mechanisms", []))
    for tag in tags:
        _require.text(mechanisms=tag)
    return tags


def was_looked(file: Path) -> bool:
    """Return whether a schema file says that its draft came from looking at the data (`discreet init
    --look`)."""
    return bool(tomllib.loads(_read(file)).get("looked", False))


def dump(public: Public) -> str:
    """Return the schema file of these public facts."""
    lines = [f"table = {toml_text(public.table)}"]
    lines += [] if public.version == UNVERSIONED else [f"version = {toml_text(public.version)}"]
    lines.append(f"neighbors = {toml_text(str(public.neighbors))}")
    numbers = {"size": public.size, "min_people": public.min_people}
    lines += [f"{name} = {number}" for name, number in numbers.items() if number is not None]
    facts = _require.field_values(public.unit)
    unit = [f"{name} = {toml_value(value)}" for name, value in facts.items() if value is not None]
    if public.unit.column is None and unit:
        raise InvalidInput(
            "a schema file has no place for limits where a row is the unit. Nothing was written. Leave rows "
            "and groups out of Unit(...), and give them with the queries that need them."
        )
    lines += ["", "[unit]", *unit] if unit else ['unit = "row"']
    lines += _dump_columns("columns", public.schema)
    for table in public.tables:
        lines += ["", f"[tables.{toml_key(table.name)}]", f"private = {toml_value(table.private)}"]
        lines += [f"unit = {toml_text(table.unit_column)}"] if table.unit_column is not None else []
        if (r := table.reference) is not None:
            referred = (("of", r.of), ("key", r.column), ("parent_key", r.key))
            lines += [f"{entry} = {toml_text(value)}" for entry, value in referred]
        lines += [f"key = {toml_value(list(table.key))}"] if table.key else []
        lines += _dump_columns(f"tables.{toml_key(table.name)}.columns", table.schema)
    return "\n".join(lines) + "\n"


def _unit(data: dict[str, Any]) -> Unit:
    """Return the unit of protection, which must be declared: with rows as the unit, people who have several
    rows would not be protected."""
    unit = data.get("unit")
    if unit == "row":
        return Unit()
    if isinstance(unit, dict):
        _check_entries("[unit]", unit, {"column", "rows", "groups"})
    # A section without `column` is a draft that is not filled in: limits alone name nobody.
    if not isinstance(unit, dict) or "column" not in unit:
        raise InvalidInput(
            'the schema does not say whom it protects. Write unit = "row" if nobody can have two rows, or '
            "a section [unit] with column = the name of the column that tells people apart."
        )
    return Unit(**unit)


def _related_table(name: str, body: Any) -> Related:
    entries = {"data", "private", "unit", "key", "columns", "of", "parent_key", "format"}
    _check_entries(f"[tables.{name}]", body, entries)
    options = {key: body[key] for key in ("private", "unit", "key") if key in body}
    if "of" in body or "parent_key" in body:
        if "unit" in options or not {"of", "key", "parent_key"} <= body.keys():
            raise InvalidInput(
                f"[tables.{name}] refers to another table by three entries, and no unit: of = its name, "
                "key = a column here, and parent_key = the column there that it equals."
            )
        for entry in ("of", "key", "parent_key"):
            if not isinstance(body[entry], str):
                raise InvalidInput(
                    f"[tables.{name}] {entry} must be one name in quotes, got {body[entry]!r}: of is a "
                    "table, key a column here, parent_key a column there."
                )
        options["unit"] = Reference(of=body["of"], column=options.pop("key"), key=body["parent_key"])
        options.setdefault("private", True)
    return Related(name=name, schema=_columns(_section(body, "columns")), **options)


def _columns(section: dict[str, Any]) -> tuple[tuple[str, Fact], ...]:
    return tuple((name, _fact(name, body)) for name, body in section.items())


def _fact(name: str, body: Any) -> Fact:
    """Return what a section declares about a column."""
    kind = body.get("type") if isinstance(body, dict) else None
    if kind not in _FIELDS:
        raise InvalidInput(f"column {name!r} needs type = one of {', '.join(_FIELDS)}; got {kind!r}.")
    needed, beside = _FIELDS[kind]
    entries = set(BOOK_ENTRIES.get(_MAKERS[kind], ()))
    _check_entries(f"column {name!r}", body, {"type"} | needed | beside | entries)
    if missing := sorted(needed - body.keys()):
        raise InvalidInput(
            f"column {name!r} of type {kind!r} needs {', '.join(missing)}: declare what is known "
            f"without looking at the data."
        )
    options = {
        key: _number(value) if kind == "number" and key != "missing" else value
        for key, value in body.items()
        if key != "type" and key not in entries
    }
    try:
        # How the texts are read is no fact about the table: `files.codebooks_of` has it.
        Codebook(**{key: body[key] for key in entries & body.keys()})
        fact: Fact = _MAKERS[kind](**options)
    except DiscreetError as error:
        raise InvalidInput(f"column {name!r}: {error}") from None
    return fact


def _number(value: Any) -> Any:
    """Read a number; exact rationals are written as text, "1/3". What is no number is returned as it is, and
    refused by `Bounds`."""
    try:
        return Fraction(value) if isinstance(value, str) else value
    except (ValueError, ZeroDivisionError):
        return value


def _section(data: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a section of the file; empty where there is none."""
    section = data.get(name, {})
    if not isinstance(section, dict):
        raise InvalidInput(f"[{name}] must be a table of names, got {type(section).__name__}.")
    return section


def _check_entries(where: str, body: Any, allowed: set[str]) -> None:
    """Refuse an entry that this section does not have."""
    if not isinstance(body, dict):
        raise InvalidInput(f"{where} must be a table, got {type(body).__name__}.")
    if unknown := sorted(set(body) - allowed):
        near = _require.did_you_mean(unknown[0], allowed)
        raise InvalidInput(
            f"{where} has no entry {unknown[0]!r}.{near} It may have {', '.join(sorted(allowed))}."
        )


def _dump_columns(prefix: str, schema: tuple[tuple[str, Fact], ...]) -> list[str]:
    lines = []
    for name, fact in schema:
        lines += ["", f"[{prefix}.{toml_key(name)}]", *_dump_fact(fact)]
    return lines


def _dump_fact(fact: Fact) -> list[str]:
    """Return what is declared about a column, as lines of TOML."""
    codes = [f"missing = {toml_value(list(fact.missing))}"] if fact.missing else []
    if isinstance(fact, Categories):
        return ['type = "categories"', f"values = {toml_value(list(fact.values))}", *codes]
    if isinstance(fact, Text):
        return ['type = "text"', *codes]
    if isinstance(fact, Boolean):
        return ['type = "boolean"', f"nullable = {toml_value(fact.nullable)}", *codes]
    kind = "number" if isinstance(fact, Bounds) else "date"
    ends = [f"lower = {toml_value(fact.lower)}", f"upper = {toml_value(fact.upper)}"]
    return [f'type = "{kind}"', *ends, f"nullable = {toml_value(fact.nullable)}", *codes]


def toml_value(value: Any) -> str:
    """Return a value as TOML; fractions as text, which `_number` reads."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return toml_text(value)
    if isinstance(value, list):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    if isinstance(value, Fraction):
        return toml_text(f"{value.numerator}/{value.denominator}")
    return repr(value)


def toml_text(value: str) -> str:
    """Return a text as TOML: a JSON string is a TOML basic string."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def toml_key(name: str) -> str:
    """Return a key of TOML, quoted where it must be."""
    return name if name.isascii() and name.replace("_", "").isalnum() else toml_text(name)
