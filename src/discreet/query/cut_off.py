"""Writes the priced question for whom a limit on contributions cuts off: it is SQL like any other, so that
everything said of SQL holds for it."""

from __future__ import annotations

from .. import _require
from .._errors import InvalidInput
from .._public import Public


def cut_off_sql(
    public: Public, rows: int | None, groups: int | None, by: str | None, where: str | None
) -> str:
    """Write the question: how many units there are, and how many have more than `rows` rows, or more than
    `groups` values of `by`.

    A unit is counted once, whatever it has: both counts move by one with it, and no limit of its own is
    needed.
    """
    if (rows is None) == (groups is None):
        raise InvalidInput(
            "say which limit it is about: rows=20, or groups=3 with by='diagnosis'. Nothing was charged."
        )
    if public.unit.column is None:
        raise InvalidInput("the unit is a row, so no limit cuts anything off. Nothing was charged.")
    if (groups is None) != (by is None):
        raise InvalidInput("groups=... and by='the column of GROUP BY' belong together. Nothing was charged.")
    limit = rows if rows is not None else groups
    _require.integer(**{"rows" if groups is None else "groups": limit}, at_least=1)
    counted = "COUNT(*)" if by is None else f"COUNT(DISTINCT {_quote(by)})"
    unit = _quote(public.unit.column)
    condition = "" if where is None else f" WHERE {where}"
    inner = f"SELECT {unit}, {counted} AS n FROM {_quote(public.table)}{condition} GROUP BY {unit}"
    return f"SELECT COUNT(*) AS units, COUNT(*) FILTER (WHERE n > {limit}) AS above FROM ({inner}) AS one"


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
