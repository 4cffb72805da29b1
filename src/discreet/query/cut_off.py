"""Writes the query that counts how many units a limit on contributions would cut off. It is SQL like any
other, with the same price and the same guarantee."""

from __future__ import annotations

from .. import _require
from .._errors import InvalidInput
from .._public import Public


def cut_off_sql(
    public: Public, rows: int | None, groups: int | None, by: str | None, where: str | None
) -> str:
    """Return SQL for the number of units (column `units`), and of those (column `above`) that have more than
    `rows` rows, or more than `groups` different values of the column `by`; `where` is a condition on rows, or
    None for all.

    The sub-query has one row per unit, so that one unit changes each count by at most one, and no limit on
    contributions is needed.
    """
    if (rows is None) == (groups is None):
        raise InvalidInput("name one limit: rows=20, or groups=3 with by='diagnosis'. Nothing was charged.")
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
