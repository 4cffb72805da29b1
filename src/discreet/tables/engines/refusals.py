"""Makes the checks and the errors that all engines share. No message quotes a value of a row."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from ... import _require
from ..._errors import InvalidInput, PublicMismatch, Unsupported
from ..._public import ADD_REMOVE, Public, Related
from ..columns import check_public
from ..source import EngineError, TimeLimit, quoted

if TYPE_CHECKING:
    from ..dialect import Dialect


def withheld(who: str = "the engine") -> EngineError:
    """Return the error for a query on which the engine failed. It does not show the engine's own message."""
    return EngineError(
        f"{who} could not compute this query. Its message is withheld because it may reveal something about "
        "the data."
    )


def unplanned(who: str) -> Unsupported:
    """Return the error for a query that an engine cannot plan: it is refused before it is charged."""
    return Unsupported(f"{who} cannot plan this query. Ask it in smaller parts.")


def too_late(seconds: float | None) -> TimeLimit:
    """Return the error for a query that took longer than the public limit."""
    return TimeLimit(
        f"the query took longer than the public limit of {seconds:g} seconds and was stopped. Ask for less, "
        "or have the steward raise the limit."
    )


def stopwatch(seconds: float | None) -> Callable[[], None]:
    """Start a clock and return a function that raises `TimeLimit` once `seconds` have passed; never if
    None."""
    start = time.monotonic()

    def check() -> None:
        if seconds is not None and time.monotonic() - start > seconds:
            raise too_late(seconds)

    return check


def check_columns(columns: Sequence[str], kinds: Mapping[str, str]) -> None:
    """Refuse a column that the table does not have; `kinds` has the kind of each column by name."""
    if unknown := [name for name in columns if name not in kinds]:
        raise InvalidInput(f"there is no column {unknown[0]!r}; the table has {list(kinds)}.")


def check_declared(public: Public, kinds: Mapping[str, Mapping[str, str]]) -> None:
    """Refuse a declaration of a table or column that does not exist, or whose kind does not fit. `kinds` has
    the kinds of columns by table. Only names and types are compared."""
    declarations = [(public.table, public.schema, public.unit.column)]
    declarations += [(t.name, t.schema, t.unit_column) for t in public.tables]
    for name, schema, unit in declarations:
        if name not in kinds:
            raise InvalidInput(f"table {name!r} is declared, and none of that name was given: {list(kinds)}.")
        columns = kinds[name]
        missing = [c for c in [*(c for c, _ in schema), *([unit] if unit else [])] if c not in columns]
        if missing:
            suggestion = _require.did_you_mean(missing[0], columns)
            raise InvalidInput(
                f"the schema declares {missing[0]!r}, and table {name!r} has no such column.{suggestion} It "
                f"has: {', '.join(columns)}."
            )
    check_public(public, kinds)


def check_size(public: Public, rows: Callable[[], int]) -> None:
    """Require that the declared size is the number of rows, where neighbors have the same size and a row is
    the unit: mechanisms scale by it. `rows` counts the rows, and is called only then.

    The message may show the number of rows, because the size is public there.
    """
    if public.neighbors is ADD_REMOVE or public.size is None or public.unit.column is not None:
        return
    if (actual := rows()) != public.size:
        raise PublicMismatch(
            f"under {public.neighbors} the size is public and must be true: declared {public.size}, but the "
            f"table has {actual} rows."
        )


def repeated_keys(table: Related, kinds: Mapping[str, str], dialect: Dialect) -> str:
    """Return SQL for the number of keys of a public table that several rows have. Keys are compared as joins
    compare them: by their canonical texts, because joins rely only on keys that are declared as text
    (`query.relation`). `kinds` has the id kind of each column."""
    # Imported late: the SQL library is slow to load.
    from sqlglot import exp

    from ..semantics import canonical_text

    columns = [(exp.column(exp.to_identifier(name, quoted=True)), kinds[name]) for name in table.key]
    texts = ", ".join(dialect.write(canonical_text(column, kind)) for column, kind in columns)
    rows = f"SELECT 1 AS one FROM {quoted(table.name)} GROUP BY {texts} HAVING COUNT(*) > 1"
    return f"SELECT COUNT(*) AS n FROM ({rows}) AS r"


def not_unique(table: str, columns: Sequence[str]) -> InvalidInput:
    """Return the error for a declared key that is not unique. Joins with a public table rely on the key; for
    the main table (Spark's `key`) the privacy guarantee does, as two rows with one key would be taken for
    one."""
    return InvalidInput(
        f"the key {list(columns)} of table {table!r} is not unique: two rows agree in it, or a row has none. "
        "Leave it out, or declare another."
    )
