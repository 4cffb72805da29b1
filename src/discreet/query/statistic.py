"""Defines statistics that are written in SQL: exact numbers without noise, each with its sensitivity, for
mechanisms that add noise themselves or only compare the number with a threshold.

Sparse vector, the reusable holdout and stream counters take statistics; an analyst can send those of this
module as text. A statistic is never released by itself.

>>> from discreet import Bounds, Public
>>> from discreet.tables import Memory
>>> public = Public(schema={"age": Bounds(0, 120)}, table="people")
>>> older = SqlStatistic(sql="SELECT COUNT(*) FROM people WHERE age >= 60")
>>> older.sensitivity(public).linf, int(older(Memory({"age": [70, 30, 61]}, public)))
(1, 2)

Turns a SELECT into the statistic that a stream counter computes at each tick, a day for instance: a column
of declared days in GROUP BY is the clock, which says at which tick a row counts.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from typing import Annotated, Any

import numpy as np
from sqlglot import exp

from .. import _require
from .._public import ADD_REMOVE, Dates, Public
from .._registry import described
from .._require import Limit, at_least
from ..core.choosing import shown
from ..core.errors import QueryError
from ..core.exact import measure, plan_statements, public_keys
from ..core.form import Form
from ..mechanisms.protocols import Sensitivity
from ..tables import Source
from ..tables.engines.duckdb import engine_of
from .binder import by_position, named
from .ids import refuse_unlike_ids
from .parse import deep_nesting_refused, parse, quoted
from .plan import plan
from .recipes import Recipes, bounding_of
from .release import direct

# The key of the hash that chooses which groups of a unit count. It may be fixed and known, because the
# sensitivity holds for every key; a fixed one makes the value a function of the data.
_KEY = 0


def _check_statement(*, sql: str) -> None:
    if not isinstance(sql, str):
        raise _require.fail("sql", type(sql).__name__, "one SELECT, as a text")


Statement = Annotated[str, Limit(_check_statement)]


@described("query.SqlStatistic")
class SqlStatistic:
    """One COUNT or SUM, without GROUP BY, HAVING and the like.

    `rows`: how many rows of one unit (a person, or a row) count, by default as declared.

    Guarantee: the value is an exact integer, in units of `step_for`, and one unit moves it by at most
               `sensitivity`.
    Proof:     `Measure.sensitivity`, with a single group.
    Assumes:   the engine computes the SQL as DuckDB documents it.
    """

    sql: Statement
    rows: Annotated[int, at_least(1)] | None = None

    def length(self, public: Public) -> None:
        """Return None, as the value is a single number and no vector."""

    def step_for(self, public: Public) -> Fraction:
        """Return the amount that an integer of 1 stands for; 1 for counts."""
        return _total(self.sql, public, self.rows).measures[0].resolution

    def sensitivity(self, public: Public) -> Sensitivity:
        return summed(_total(self.sql, public, self.rows))

    def monotone(self, public: Public) -> bool:
        """Return whether adding a unit never lowers the value, as for counts and for sums of numbers that are
        never negative; False under neighbors other than add_remove."""
        form = _total(self.sql, public, self.rows)
        return public.neighbors is ADD_REMOVE and form.measures[0].limits(form.bounding)[0] >= 0

    def rehearse(self, source: Source) -> None:
        """Let the engine plan the statement, before anything is charged."""
        _rehearse(_total(self.sql, source.public, self.rows), source)

    def __call__(self, source: Source) -> Any:
        return _exact(_total(self.sql, source.public, self.rows), source).reshape(())


@described("query.SqlVector")
class SqlVector:
    """One COUNT or SUM for each of the public groups of GROUP BY, as a vector in the order of `keys`.

    `rows`, `groups`: how many rows of one unit count in a group, and in how many groups a unit counts, by
    default as declared.

    Guarantee: the values are exact integers, in units of `step_for`, and one unit moves them by at most
               `sensitivity`.
    Proof:     `Measure.sensitivity`, with all groups.
    Assumes:   the engine computes the SQL as DuckDB documents it.
    """

    sql: Statement
    rows: Annotated[int, at_least(1)] | None = None
    groups: Annotated[int, at_least(1)] | None = None

    def _of(self, public: Public) -> Form:
        return _grouped(self.sql, public, self.rows, self.groups)

    def step_for(self, public: Public) -> Fraction:
        """Return the amount that an integer of 1 stands for; 1 for counts."""
        return self._of(public).measures[0].resolution

    def length(self, public: Public) -> int:
        return self._of(public).groups or 1

    def keys(self, public: Public) -> list[tuple[Any, ...]]:
        """Return the groups, in the order of the values."""
        return [tuple(map(shown, key)) for key in public_keys(self._of(public).keys)]

    def sensitivity(self, public: Public) -> Sensitivity:
        return summed(self._of(public))

    def rehearse(self, source: Source) -> None:
        """Let the engine plan the statement, before anything is charged."""
        _rehearse(self._of(source.public), source)

    def __call__(self, source: Source) -> Any:
        return _exact(self._of(source.public), source)


def where(predicate: str, public: Public) -> SqlStatistic:
    """Return the statistic that counts the units that satisfy `predicate`, a condition as it is written after
    WHERE. If `predicate` is a complete SELECT, return the statistic that it describes.

    A unit with several rows counts once if any of its rows satisfies the condition.
    """
    if not isinstance(predicate, str):
        raise _require.fail(
            "predicate", type(predicate).__name__, "a condition such as 'age > 60', or one SELECT"
        )
    if predicate.lstrip().upper().startswith(("SELECT ", "SELECT\n", "WITH ", "WITH\n")):
        return SqlStatistic(sql=predicate)
    counted = "*" if public.unit.column is None else f"DISTINCT {quoted(public.unit.column)}"
    return SqlStatistic(sql=f"SELECT COUNT({counted}) FROM {quoted(public.table)} WHERE {predicate}")


def summed(form: Form) -> Sensitivity:
    """Return how far one unit moves the exact numbers of a form's one measure. That a count of all rows may
    be public makes no difference here: a statistic is what is compared and added up, never released."""
    return form.measures[0].sensitivity(form.bounding, form.public.neighbors, form.groups)


def _rehearse(form: Form, source: Source) -> None:
    engine = engine_of(source)
    refuse_unlike_ids(form.source, engine.id_kinds)
    plan_statements(form, engine)


def _exact(form: Form, source: Source) -> Any:
    return np.asarray(measure(form, engine_of(source), _KEY).measures[0])


@lru_cache(maxsize=1024)
def _total(sql: str, public: Public, rows: int | None) -> Form:
    """Return the form of a statement that must be one bare COUNT or SUM."""
    planned = plan(sql, public).of(public)
    recipes = Recipes(planned)
    bare = not (
        planned.keys or planned.having or planned.order or planned.limit is not None or planned.offset
    )
    if not bare or len(planned.outputs) != 1 or len(recipes.measures) != 1 or direct(recipes, 0) is None:
        raise QueryError(
            "a statistic is one COUNT or SUM and nothing else: no GROUP BY, HAVING, ORDER BY or LIMIT."
        )
    return recipes.form(bounding_of(planned, rows or public.unit.rows, 1))


@lru_cache(maxsize=1024)
def _grouped(sql: str, public: Public, rows: int | None, groups: int | None) -> Form:
    """Return the form of a statement that must be one COUNT or SUM with GROUP BY of public values."""
    planned = plan(sql, public).of(public)
    recipes = Recipes(planned)
    bare = not (planned.having or planned.order or planned.limit is not None or planned.offset)
    values = [i for i in range(len(planned.outputs)) if direct(recipes, i) is not None]
    if not bare or len(values) != 1 or len(recipes.measures) != 1 or not planned.known_keys:
        raise QueryError(
            "a vector of groups is one COUNT or SUM with GROUP BY columns whose values are declared: no "
            "HAVING, ORDER BY or LIMIT, and no other aggregate."
        )
    return recipes.form(bounding_of(planned, rows or public.unit.rows, groups or public.unit.groups))


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
            "next, and would be counted twice. Count rows, or take streaming.Presence for different people."
        )
    group = select.args.get("group")
    days = {name.lower(): name for name, fact in public.schema if isinstance(fact, Dates)}
    keys = [] if group is None else [by_position(node, select) for node in group.expressions]
    clocks = [k for k in keys if isinstance(k, exp.Column) and k.name.lower() in days]
    if len(clocks) > 1:
        raise QueryError("a stream has one clock: GROUP BY one column of days.")
    if clocks:
        clock = days[clocks[0].name.lower()]
        other_keys = [k for k in keys if k is not clocks[0]]
        select = select.copy()
        if any(not isinstance(named(e)[1], exp.Column) and _names(e, clock) for e in select.expressions):
            raise QueryError(f"{clock!r} is the clock of this stream: leave it out of expressions.")
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
