"""Turns a SELECT into the statistic that a stream counter computes at each tick, a day for instance: a column
of declared days in GROUP BY is the clock, which says at which tick a row counts.
"""

from __future__ import annotations

from sqlglot import exp

from .._public import Dates, Public
from .clauses import by_position, named
from .errors import QueryError
from .parse import deep_nesting_refused, parse
from .statistic import SqlStatistic, SqlVector


@deep_nesting_refused()
def stream_statistic(
    text: str, public: Public, *, rows: int | None = None, groups: int | None = None
) -> tuple[SqlStatistic | SqlVector, str | None]:
    """Return the statistic of one tick, and the clock: the column of days that the text groups by, or None.

    The clock is taken out of SELECT and GROUP BY: the stream itself separates the days. A text that is not
    one COUNT or SUM, by public groups or by none, is refused. `rows`, `groups`: see `SqlVector`.
    """
    select = parse(text)
    if select.find(exp.Distinct, exp.ApproxDistinct) is not None:
        raise QueryError(
            "DISTINCT does not go with a stream: a value that is counted in one tick may come again in the "
            "next, and would be counted twice. Nothing was read or charged. Count rows, or take "
            "streaming.Presence for different people."
        )
    group = select.args.get("group")
    days = {name.lower(): name for name, fact in public.schema if isinstance(fact, Dates)}
    keys = [] if group is None else [by_position(node, select) for node in group.expressions]
    clocks = [k for k in keys if isinstance(k, exp.Column) and k.name.lower() in days]
    if len(clocks) > 1:
        raise QueryError("a stream has one clock: GROUP BY one column of days. Nothing was read or charged.")
    if clocks:
        clock = days[clocks[0].name.lower()]
        other_keys = [k for k in keys if k is not clocks[0]]
        select = select.copy()
        if any(not isinstance(named(e)[1], exp.Column) and _names(e, clock) for e in select.expressions):
            raise QueryError(
                f"{clock!r} is the clock of this stream: leave it out of expressions. Nothing was read or "
                f"charged."
            )
        outputs = [e for e in select.expressions if not _names(e, clock)]
        select.set("expressions", outputs)
        group = exp.Group(expressions=[k.copy() for k in other_keys]) if other_keys else None
        select.set("group", group)
        text, keys = select.sql(dialect="duckdb"), other_keys
    else:
        clock = None
    statistic = SqlVector(sql=text, rows=rows, groups=groups) if keys else SqlStatistic(sql=text, rows=rows)
    # raises the error for a text that is no statistic
    statistic.sensitivity(public)
    return statistic, clock


def _names(expression: exp.Expression, column: str) -> bool:
    """Return whether an expression names a column."""
    return any(c.name.lower() == column.lower() for c in expression.find_all(exp.Column))
