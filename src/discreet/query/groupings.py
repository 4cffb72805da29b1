"""Expands GROUP BY CUBE, ROLLUP and GROUPING SETS to several plain queries, one for each set of keys; the
answer to the statement has their rows one after the other. Decides which statements are workloads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from .._public import Public
from ..core.errors import Node, QueryError, refuse
from ..core.form import counts_every_row
from ..core.nodes import OutputReference
from .binder import by_position, named
from .parse import deep_nesting_refused, hinted, parse
from .plan import Plan, plan
from .recipes import Recipes
from .release import direct

if TYPE_CHECKING:
    from .workload import WorkloadQuery

# The largest number of groupings of one statement, and of their keys added up: those of CUBE over ten
# columns. Each grouping is a query of its own, and is planned before anything is charged. Not tuned.
MAX_SETS = 1 << 10
MAX_KEYS = 10 << 9
# `together` answers the counts of one statement together only if the mean squared error is below this share
# of that of separate noise. Not tuned.
GAIN = 0.95


@dataclass(frozen=True, slots=True)
class PlainQuery:
    """Holds one plain query of a statement.

    `columns`: the names of the statement's columns. `own`: the positions of those that this query has; the
    others are NULL in its rows. Both are empty for a statement that was not expanded, until `bound` fills
    them in.
    """

    text: str
    columns: tuple[str, ...] = ()
    own: tuple[int, ...] = ()

    def bound(self, plan: Plan) -> PlainQuery:
        """Return the query with all column names of its plan, if the statement was not expanded; else
        itself."""
        if self.columns:
            return self
        return replace(self, columns=tuple(n for n, _ in plan.outputs), own=tuple(range(len(plan.outputs))))

    def placed(self, row: list[Any]) -> list[Any]:
        """Return a row of this query as a row of the statement."""
        cells: list[Any] = [None] * len(self.columns)
        for index, cell in zip(self.own, row, strict=True):
            cells[index] = cell
        return cells


def grouping_clauses(select: exp.Select) -> list[Node]:
    """Return the CUBE, ROLLUP and GROUPING SETS clauses of a statement; versions of sqlglot store them in
    different arguments of GROUP BY."""
    group = select.args.get("group")
    if group is None:
        return []
    beside = [node for kind in ("cube", "rollup", "grouping_sets") for node in group.args.get(kind) or []]
    return [node for node in (*group.expressions, *beside) if isinstance(node, _KINDS)]


_KINDS = (exp.Cube, exp.Rollup, exp.GroupingSets)


def expanded(text: str) -> Iterator[PlainQuery]:
    """Yield the plain queries of a statement: itself, or one for each set of keys."""
    select = parse(text)
    clauses = grouping_clauses(select)
    if not clauses:
        yield PlainQuery(text)
        return
    if len(clauses) > 1:
        raise refuse(
            select, "several of CUBE, ROLLUP and GROUPING SETS in one GROUP BY", "Write one GROUPING SETS."
        )
    if any(select.args.get(clause) for clause in ("order", "limit", "offset", "having")):
        raise refuse(
            select,
            "ORDER BY, LIMIT and HAVING cannot be combined with several groupings",
            "Sort and filter the answer.",
        )
    fixed = [
        by_position(node, select) for node in select.args["group"].expressions if not isinstance(node, _KINDS)
    ]
    sets = [[*fixed, *(by_position(node, select) for node in s)] for s in _sets(clauses[0])]
    items = [named(item) for item in select.expressions]
    columns = tuple(name for name, _ in items)
    keys = {node.sql() for s in sets for node in s}
    for s in sets:
        # columns that are keys of this grouping, or of none (aggregates)
        in_set = {node.sql() for node in s}
        own = [i for i, (_, inner) in enumerate(items) if inner.sql() not in keys or inner.sql() in in_set]
        plain = select.copy()
        plain.set("expressions", [select.expressions[i].copy() for i in own])
        unique = {node.sql(): node for node in s}.values()
        plain.set("group", exp.Group(expressions=[node.copy() for node in unique]) if s else None)
        yield PlainQuery(plain.sql(dialect="duckdb"), columns, tuple(own))


def _sets(clause: Node) -> list[list[Node]]:
    """Return the sets of keys that a CUBE, ROLLUP or GROUPING SETS clause stands for."""
    parts = [_members(item) for item in clause.expressions]
    if isinstance(clause, exp.Cube) and 1 << len(parts) > MAX_SETS:
        raise refuse(
            clause,
            f"CUBE of {len(parts)} keys asks for {1 << len(parts):,} groupings",
            "Use GROUPING SETS.",
        )
    if len(parts) > MAX_SETS:
        raise refuse(clause, f"{len(parts):,} groupings are more than {MAX_SETS:,}", "Ask for fewer.")
    chosen: list[tuple[list[Node], ...]]
    if isinstance(clause, exp.GroupingSets):
        chosen = [(part,) for part in parts]
    elif isinstance(clause, exp.Rollup):
        chosen = [tuple(parts[:k]) for k in range(len(parts), -1, -1)]
    else:
        chosen = [s for k in range(len(parts), -1, -1) for s in combinations(parts, k)]
    sets = [[node for part in s for node in part] for s in chosen]
    if sum(map(len, sets)) > MAX_KEYS:
        raise refuse(
            clause,
            f"the groupings have {sum(map(len, sets)):,} keys in all, more than {MAX_KEYS:,}",
            "Ask for fewer.",
        )
    return sets


def _members(item: Node) -> list[Node]:
    """Return the keys of one item of a clause: (a, b) has two, (a) and a have one."""
    if isinstance(item, exp.Tuple):
        return list(item.expressions)
    return [item.this] if isinstance(item, exp.Paren) else [item]


def together(text: str, public: Public, **options: Any) -> WorkloadQuery | None:
    """Return one statement as a workload, if it has CUBE, ROLLUP or GROUPING SETS, or asks for several counts
    that have a smaller error together; else None.

    Several counts are answered together only if no unit has several rows: a query limits a unit's rows in
    each group, a workload in all groups together, and the answers would differ. A statement with several
    groupings is a workload in any case, as nothing else answers it.
    """
    try:
        several_groupings = bool(grouping_clauses(parse(text)))
    except QueryError as refusal:
        raise hinted(refusal, text, public) from None
    if not several_groupings and not options.keys() <= {"epsilon", "delta", "rho"}:
        return None
    if several_groupings:
        # Imported here and below, where a workload is built: it needs scipy, which is slow to load.
        from .workload import WorkloadQuery

        if unknown := sorted(options.keys() - {"epsilon", "delta", "rho", "rows"}):
            raise QueryError(
                f"{unknown[0]}= does not go with several groupings in one query. Leave it out, or write one "
                "query per grouping."
            )
        return WorkloadQuery(queries=(text,), public=public, **options)
    planned = plan(text, public)
    recipes = Recipes(planned)
    only_counts = all(m.kind in ("rows", "present") for m in recipes.measures) and not recipes.choices
    # every output is a key or one count
    direct_only = all(
        direct(recipes, i) is not None or (isinstance(e, OutputReference) and e.kind == "key")
        for i, (_, e) in enumerate(planned.outputs)
    )
    # a count that is exact by itself would get noise here
    every_row = public.size is not None and counts_every_row(planned.source, planned.keys, public)
    exact = every_row and any(m.kind == "rows" for m in recipes.measures)
    if (
        planned.many
        or exact
        or not only_counts
        or not direct_only
        or len(recipes.measures) < 2
        or not planned.known_keys
    ):
        return None
    from .workload import WorkloadQuery

    try:
        workload = WorkloadQuery(queries=(text,), public=public, **options)
    except QueryError:
        # It cannot be a workload, for example because it has too many cells: each count gets its own noise.
        return None
    return workload if workload.rmse**2 < GAIN * workload._alone() else None


@deep_nesting_refused()
def contributions(text: str, public: Public, largest: float = 1.0) -> tuple[str, str, bool]:
    """Return SQL with one row per unit `u` and group of a statement, and what the unit adds to the group as
    `n`: its number of rows, or of a total its part, with `largest` as one. With it come the statement with
    COUNT(*) in the place of a total, and whether there are groups.

    Statements other than those with one COUNT or SUM are refused: their error does not follow from what
    limits leave out.
    """
    select = parse(text)
    aggregates = [a for e in select.expressions for a in e.find_all(exp.AggFunc)]
    tables = [t for t in select.find_all(exp.Table) if t.name.lower() == public.table.lower()]
    if (
        public.unit.column is None
        or len(aggregates) != 1
        or not isinstance(aggregates[0], exp.Count | exp.Sum)
        or isinstance(aggregates[0].this, exp.Distinct)
        or grouping_clauses(select)
        or len(tables) != 1
        or tables[0].find_ancestor(exp.Subquery, exp.CTE)
    ):
        raise QueryError(
            "limits are suggested for one SELECT with one COUNT(*) or SUM, from the table whose units are "
            "people. Of other questions, cut_off(...) says how many people a limit affects."
        )
    unit = exp.column(exp.to_identifier(public.unit.column, quoted=True), table=tables[0].alias_or_name)
    group = select.args.get("group")
    keys = [by_position(key, select) for key in (group.expressions if group else ())]
    added: Node = exp.Count(this=exp.Star())
    if isinstance(aggregates[0], exp.Sum):
        added = exp.Div(
            this=exp.Sum(this=exp.Abs(this=aggregates[0].this.copy())),
            expression=exp.Literal.number(repr(largest)),
        )
    inner = select.copy()
    for clause in ("having", "order", "limit", "offset", "distinct", "group", "qualify"):
        inner.set(clause, None)
    for key in keys:
        inner.where(exp.Not(this=exp.Is(this=exp.Paren(this=key.copy()), expression=exp.Null())), copy=False)
    named = [exp.alias_(unit, "u"), *(exp.alias_(key.copy(), f"k{i}") for i, key in enumerate(keys))]
    inner.select(*named, exp.alias_(added, "n"), append=False, copy=False)
    inner.group_by(unit.copy(), *(key.copy() for key in keys), copy=False)
    aggregates[0].replace(exp.Count(this=exp.Star()))
    return inner.sql("duckdb"), select.sql("duckdb"), bool(keys)
