"""Defines a SELECT as the statistic of one tick of a stream: GROUP BY a column of declared days is its
clock."""

from __future__ import annotations

from sqlglot import exp

from .._public import Dates, Public
from .clauses import by_position, named
from .errors import QueryError
from .parse import parse
from .statistic import SqlStatistic, SqlVector


def stream_statistic(
    text: str, public: Public, *, rows: int | None = None, groups: int | None = None
) -> tuple[SqlStatistic | SqlVector, str | None]:
    """Return the statistic of one tick, and the column of days that the text groups by, if there is one.

    Anything that is not one COUNT or SUM by public groups is a QueryError, before anything is read or
    charged.
    """
    select = parse(text)
    if select.find(exp.Distinct, exp.ApproxDistinct) is not None:
        raise QueryError(
            "what is distinct in one tick may come again in the next, and a stream would add it up once "
            "more. Nothing was read or charged. Count rows, or take streaming.Presence for different people."
        )
    group = select.args.get("group")
    days = {name.lower(): name for name, fact in public.schema if isinstance(fact, Dates)}
    keys = [] if group is None else [by_position(node, select) for node in group.expressions]
    clocks = [k for k in keys if isinstance(k, exp.Column) and k.name.lower() in days]
    if len(clocks) > 1:
        raise QueryError("a stream has one clock: GROUP BY one column of days. Nothing was read or charged.")
    if clocks:
        clock = days[clocks[0].name.lower()]
        rest = [k for k in keys if k is not clocks[0]]
        select = select.copy()
        if any(not isinstance(named(e)[1], exp.Column) and _names(e, clock) for e in select.expressions):
            raise QueryError(
                f"{clock!r} is the clock of this stream: leave it out of expressions. Nothing was read or "
                f"charged."
            )
        outputs = [e for e in select.expressions if not _names(e, clock)]
        select.set("expressions", outputs)
        select.set("group", exp.Group(expressions=[k.copy() for k in rest]) if rest else None)
        text, keys = select.sql(dialect="duckdb"), rest
    else:
        clock = None
    statistic = SqlVector(sql=text, rows=rows, groups=groups) if keys else SqlStatistic(sql=text, rows=rows)
    statistic.sensitivity(public)
    return statistic, clock


def _names(expression: exp.Expression, column: str) -> bool:
    return any(c.name.lower() == column.lower() for c in expression.find_all(exp.Column))
