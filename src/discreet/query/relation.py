"""Binds FROM and WHERE: tables, filters, joins and sub-queries, each of which keeps track of the unit of
privacy (a person, or a row) that a row belongs to.

To bind is to translate sqlglot's syntax tree into the nodes of `sources` and `nodes`, and to refuse what has
no rule. Every relation of private rows carries its unit as a column, so that the contribution of one unit can
be bounded at the end, after all joins and filters. For that a join or sub-query may only bring together rows
of one unit, and rows of public tables, which belong to no unit.

Resolves the names of columns: which column of which table a name means; for a name that means none, the
error proposes the column that was probably meant.

Binds sub-queries that GROUP BY the unit of privacy (a person): each unit's rows are aggregated by
themselves, exactly and without noise, so that the result has one row per unit and further key.

To bind is to translate sqlglot's syntax tree into the nodes of `nodes` and `sources`, and to refuse what has
no rule. An aggregate over the rows of several units is never computed here, because one unit's rows would
then change the value of another.

Binds EXISTS (SELECT ...) and x IN (SELECT ...) in WHERE as a mark on each row: a column that says whether
the sub-query has a match for the row (`sources.Marked`).

A mark adds no rows, so that one unit (a person) contributes no more than before. The matches may be rows of
public tables or, of a private table, rows of the same unit: otherwise one unit's rows would decide whether
another unit's row counts.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from sqlglot import exp

from .._public import Public, Text
from .._require import did_you_mean
from ..core.domain import Kind, ValueDomain, boolean, declared
from ..core.errors import Node, Refusal, position, refuse
from ..core.nodes import Call, Column, Expr, Literal, make
from ..core.sources import (
    COUNTED,
    Carried,
    Filtered,
    From,
    Joined,
    Marked,
    Projected,
    Scan,
    UnitAggregate,
    United,
    carried,
    facts_of,
    fold_domain,
    union_domains,
)
from .binder import Binder, by_position, join_kind, named, only, refuse_further_arguments
from .parse import alias_columns, common, conjuncts, holds_query, quoted, union_parts

# The schemas that may be written before the name of a table: "main" in DuckDB, "public" in PostgreSQL. All
# declared tables are in this one schema.
SCHEMAS = ("main", "public")


class Scope:
    """Resolves names to columns. `tables`: by the alias of a table, its columns by name; `equal`: pairs of
    columns that the condition of an inner join makes equal."""

    def __init__(
        self, tables: Mapping[str, Mapping[str, Expr]], equal: Collection[frozenset[Expr]] = frozenset()
    ) -> None:
        # a name that two equal columns have is not ambiguous
        self.equal = equal
        self.tables = {
            alias.lower(): {n.lower(): e for n, e in columns.items()} for alias, columns in tables.items()
        }
        # as they were written, for messages
        self.aliases = list(tables)
        self.columns = sorted({name for columns in tables.values() for name in columns})

    def __call__(self, node: exp.Column) -> Expr:
        """Return the column that a name means; refuse one that means none, or several that may differ."""
        name, alias = node.name, node.table
        if node.args.get("catalog") or (node.args.get("db") and node.text("db").lower() not in SCHEMAS):
            raise refuse(node, f"{node.sql(dialect='duckdb')} has too many parts", "Write table.column.")
        if alias:
            if alias.lower() not in self.tables:
                advice = f"There is: {', '.join(self.aliases)}.{did_you_mean(alias, self.aliases)}"
                raise refuse(node, f"there is no table {alias!r} in FROM", advice)
            tables = [self.tables[alias.lower()]]
        else:
            tables = list(self.tables.values())
        matches = [columns[name.lower()] for columns in tables if name.lower() in columns]
        if len(matches) > 1 and not all(
            frozenset((matches[0], other)) in self.equal for other in matches[1:]
        ):
            raise refuse(node, f"column {name!r} is in several tables", f"Write table.{name}.")
        if not matches:
            advice = (
                "Bounds and categories are never read off the data: the steward declares them, in the schema."
            )
            proposal = did_you_mean(name, self.columns).strip() or self._longer(name) or self._value(node)
            raise refuse(
                _first_mention(node),
                f"nothing is declared of a column {name!r}",
                f"{proposal} Declared: {', '.join(self.columns)}. {advice}".strip(),
            )
        return matches[0]

    def _longer(self, name: str) -> str:
        """Return the question whether a longer name was meant, if one begins with this word; else ""."""
        start = re.compile(rf"{re.escape(name)}(?!\w)", re.IGNORECASE)
        longer = next((column for column in self.columns if start.match(column)), None)
        return "" if longer is None else f"Did you mean {quoted(longer)}?"

    def _value(self, node: exp.Column) -> str:
        """Return the advice to put a name in single quotes, if a column is compared with it, as in
        city = Paris; else ""."""
        comparison = node.parent
        if not isinstance(comparison, exp.EQ | exp.NEQ | exp.In) or comparison.this is node or node.table:
            return ""
        columns_in_scope = {name for columns in self.tables.values() for name in columns}
        column = comparison.this
        if not isinstance(column, exp.Column) or column.name.lower() not in columns_in_scope:
            return ""
        return f"If it is a text, put it in single quotes: {exp.Literal.string(node.name).sql()}."


def _first_mention(node: exp.Column) -> Node:
    """Return the node that names this column first in the text, for the position in the message: clauses are
    bound in another order than they are written."""
    same = [
        c
        for c in node.root().find_all(exp.Column)
        if c.name.lower() == node.name.lower() and c.table == node.table
    ]
    positions = [(position(c), c) for c in same if position(c)[0] is not None]
    return min(positions, key=lambda pair: pair[0])[1] if positions else node


@dataclass(frozen=True, slots=True)
class Relation:
    """Holds a bound item of FROM. `columns`: the expression of each column, by the name that a query uses.

    `carried`: how `node` carries the unit, None if all rows are public. `unit_keys`: expressions that always
    equal the unit. `nullable_unit_keys`: expressions that equal the unit or, in a row to which an outer join
    found no partner, are NULL.
    """

    node: From
    columns: dict[str, Expr]
    carried: Carried | None
    unit_keys: frozenset[Expr]
    nullable_unit_keys: frozenset[Expr] = frozenset()
    # for columns by which tables refer to each other: (name, table that is referred to, its column)
    references: frozenset[tuple[str, str, str]] = frozenset()

    def targets(self, own: Expr) -> set[tuple[str, str]]:
        """Return the columns, with their tables, whose rows a column names."""
        return {(t, c) for name, t, c in self.references if isinstance(own, Column) and name == own.name}

    def same_reference(self, own: Expr, other: Relation, inner: Expr) -> bool:
        """Return whether two columns, of this relation and of another one, name rows of one table: rows that
        agree in them are of the same units."""
        return not self.targets(own).isdisjoint(other.targets(inner))


class PerUnitBinder:
    """Binds a sub-query that groups by the unit.

    `relation`: what the sub-query reads; `scope`: the names of its columns; `prefix`: tells the result's
    columns from others. The result has one row per unit and combination of keys, with these columns:
    {prefix}u the unit as the engine has it, {prefix}w the unit as text, {prefix}k0, k1, ... the other keys,
    {prefix}a0, a1, ... the aggregates (`scan.Reader` writes them).
    """

    def __init__(self, relation: Relation, scope: Scope, prefix: str, public: Public) -> None:
        self.relation, self.scope, self.prefix, self.public = relation, scope, prefix, public
        self.keys: list[Expr] = []
        self.aggregates: list[tuple[str, Expr | None]] = []

    def __call__(self, select: exp.Select) -> Relation:
        # binds expressions over the rows that are read
        row = Binder(self.scope)
        group, distinct = select.args.get("group"), select.args.get("distinct")
        if distinct is not None and (group is not None or distinct.args.get("on") is not None):
            raise refuse(
                select,
                "DISTINCT in a sub-query stands without GROUP BY and without ON",
                "List in GROUP BY the columns that DISTINCT is about.",
            )
        # SELECT DISTINCT a, b is GROUP BY a, b
        if group is None:
            grouped = [row(named(item)[1]) for item in select.expressions]
        else:
            only(group, {"expressions"}, "in GROUP BY")
            grouped = [row(by_position(node, select)) for node in group.expressions]
        # A key by which tables refer to each other will do: the writer groups by the unit in any case.
        referring = {name for name, _, _ in self.relation.references}
        if self.relation.carried is None or not any(
            key in self.relation.unit_keys or (isinstance(key, Column) and key.name in referring)
            for key in grouped
        ):
            raise refuse(
                select if group is None else group,
                "a sub-query that aggregates must keep the unit of privacy",
                f"Add {self.public.unit.column} to its GROUP BY."
                if self.public.unit.column
                else "Here the unit is a single row: aggregate in the outer query.",
            )
        self.keys = [key for key in grouped if key not in self.relation.unit_keys]
        binder = Binder(self.scope, self._special)
        columns: dict[str, Expr] = {}
        for item in select.expressions:
            name, inner = named(item)
            if name.lower() in (earlier.lower() for earlier in columns):
                raise refuse(item, f"two columns are called {name!r}", "Give one another name with AS.")
            columns[name] = binder(inner)
        having = select.args.get("having")
        condition = None if having is None else binder.condition(having.this)
        node: From = UnitAggregate(self.relation.node, self.prefix, tuple(self.keys), tuple(self.aggregates))
        whose = carried(node, self.public)
        if condition is not None:
            node = Filtered(node, condition)
        names = {k.name: f"{self.prefix}k{i}" for i, k in enumerate(self.keys) if isinstance(k, Column)}
        references = {
            (names[name], table, column) for name, table, column in self.relation.references if name in names
        }
        return Relation(node, columns, whose, frozenset({self._unit}), references=frozenset(references))

    @property
    def _unit(self) -> Expr:
        """The column of the result that holds the unit, as text."""
        return Column(f"{self.prefix}w", declared(Text()))

    def _special(self, node: Node) -> Expr | None:
        """Bind keys and aggregates of one unit; None for any other node, which `Binder` binds itself."""
        # COUNT_IF(c) is COUNT(*) FILTER (WHERE c)
        condition, unfiltered = None, node
        if isinstance(node, exp.Filter):
            condition, unfiltered = node.expression.this, node.this
        elif isinstance(node, exp.CountIf):
            condition, unfiltered = node.this, exp.Count(this=exp.Star())
        aggregate = per_unit_aggregate(unfiltered)
        if aggregate is not None:
            return self._aggregate(node, *aggregate, condition)
        if isinstance(node, exp.Literal):
            return None
        if isinstance(node, exp.Column):
            expression = Binder(self.scope)(node)
            if expression in self.relation.unit_keys:
                return self._unit
            if expression not in self.keys:
                raise refuse(
                    node, f"column {node.name!r} is neither grouped nor aggregated", "Add it to GROUP BY."
                )
            return Column(f"{self.prefix}k{self.keys.index(expression)}", expression.domain)
        # an expression that is a key itself, such as FLOOR(x / 10)
        if not any(True for _ in node.find_all(exp.AggFunc)):
            expression = Binder(self.scope)(node)
            if expression in self.keys:
                return Column(f"{self.prefix}k{self.keys.index(expression)}", expression.domain)
        return None

    def _aggregate(self, node: Node, function: str, argument: Node | None, condition: Node | None) -> Expr:
        """Bind an aggregate of one unit's rows, those that meet the `condition` of FILTER, and return the
        column that holds it."""
        if argument is None and function != "count":
            raise refuse(node, f"{function.upper()} lacks an argument")
        bound = None if argument is None else Binder(self.scope)(argument)
        if bound is not None and bound.domain.kind is Kind.BOOLEAN and function not in ("count", "distinct"):
            bound = make("number", bound)
        # What does not meet the condition becomes NULL, which every aggregate skips.
        if condition is not None:
            met = Binder(self.scope).condition(condition)
            bound = make("case", met, Literal(1) if bound is None else bound, Literal(None))
        entry = (function, bound)
        if entry not in self.aggregates:
            self.aggregates.append(entry)
        return Column(
            f"{self.prefix}a{self.aggregates.index(entry)}", _per_unit_domain(node, function, bound)
        )


def per_unit_aggregate(node: Node) -> tuple[str, Node | None] | None:
    """Return the function and the argument of an aggregate over one unit's rows (an argument of None for
    COUNT(*)); None if the node is no aggregate that has a rule."""
    if isinstance(node, exp.Count | exp.Sum | exp.Avg | exp.Min | exp.Max):
        refuse_further_arguments(node)
    if isinstance(node, exp.Count):
        if isinstance(node.this, exp.Star) or node.this is None:
            return "count", None
        if isinstance(node.this, exp.Distinct):
            if len(node.this.expressions) != 1:
                raise refuse(node, "COUNT(DISTINCT ...) takes one column")
            return "distinct", node.this.expressions[0]
        return "count", node.this
    for cls, name in ((exp.Sum, "sum"), (exp.Avg, "avg"), (exp.Min, "min"), (exp.Max, "max")):
        if type(node) is cls:
            return name, node.this
    return None


def _per_unit_domain(node: Node, function: str, argument: Expr | None) -> ValueDomain:
    """Return the domain of an aggregate of one unit; refuse arguments that it is not for."""
    try:
        return fold_domain(function, argument)
    except Refusal as error:
        advice = "Write CLAMP(x, low, high)." if "range" in str(error) else ""
        raise refuse(node, str(error), advice) from None


def resolves(node: Node, scope: Scope) -> bool:
    """Return whether all columns in an expression are columns of this scope."""
    for column in node.find_all(exp.Column):
        alias, name = column.table.lower(), column.name.lower()
        tables = (
            [scope.tables[alias]] if alias in scope.tables else [] if alias else list(scope.tables.values())
        )
        if not any(name in columns for columns in tables):
            return False
    return True


class Marks:
    """Binds the sub-queries of one WHERE clause. `relation`, the rows of the outer query, gets one more mark
    with each; read it after binding."""

    def __init__(
        self, relations: Relations, relation: Relation, scope: Scope, ctes: dict[str, CommonTable]
    ) -> None:
        self.relations, self.relation, self.scope, self.ctes = relations, relation, scope, ctes

    def special(self, node: Node) -> Expr | None:
        """Bind EXISTS and IN with a sub-query; None for any other node, which `Binder` binds itself."""
        if isinstance(node, exp.Exists):
            return self._exists(node)
        if isinstance(node, exp.In) and node.args.get("query") is not None:
            return self._in(node)
        return None

    def _exists(self, node: Node) -> Expr:
        """Bind EXISTS as a mark on the rows of the outer query.

        Of the conditions that name columns of the outer query, those of the form own = inner are the pairs of
        the mark: `own` is an expression over columns of the outer query, `inner` one over columns of the
        sub-query. A name that both have is the sub-query's.
        """
        select = node.this.this if isinstance(node.this, exp.Subquery) else node.this
        only(
            _plain(select),
            {"expressions", "from", "from_", "joins", "where", "with", "with_", "kind"},
            "in EXISTS",
        )
        if any(True for item in select.expressions for _ in item.find_all(exp.AggFunc)):
            raise refuse(
                select, "an aggregate without GROUP BY always has a row, so that EXISTS is always true"
            )
        # filled by `bind` with the conditions that name columns of the outer query
        outer: list[Node] = []
        right, scope = self.relations.bind(select, self.ctes, outer)
        bind_inner, bind_own = Binder(scope), Binder(self.scope)
        both = Binder(lambda column: (scope if resolves(column, scope) else self.scope)(column))
        pairs: list[tuple[Expr, Expr]] = []
        further: list[Expr] = []
        for condition in outer:
            sides = (condition.this, condition.expression) if isinstance(condition, exp.EQ) else (None, None)
            own = [
                side
                for side in sides
                if side is not None and resolves(side, self.scope) and not resolves(side, scope)
            ]
            inner = [side for side in sides if side is not None and resolves(side, scope)]
            if len(own) == 1 and len(inner) == 1:
                pairs.append((bind_own(own[0]), bind_inner(inner[0])))
            else:
                further.append(both.condition(condition))
        for own_side, inner_side in pairs:
            # kinds that cannot be compared are refused
            make("=", own_side, inner_side)
        mark = self._mark(node, right, tuple(pairs), tuple(further))
        return make("coalesce", mark, Literal(False))

    def _in(self, node: Node) -> Expr:
        """Bind x IN (SELECT ...) as a mark, with the three-valued logic of SQL: true if there is a match;
        else false if the sub-query has no row; else NULL if x is NULL, or any inner value is; else false."""
        query = node.args["query"]
        select = query.this if isinstance(query, exp.Subquery) else query
        x = Binder(self.scope, self.special)(node.this)
        right = self.relations.subquery(_plain(select), self.ctes)
        if len(right.columns) != 1:
            raise refuse(select, "a sub-query after IN has one column")
        (inner,) = right.columns.values()
        # kinds that cannot be compared are refused
        make("=", x, inner)
        mark = self._mark(node, right, ((x, inner),), (), counted=right.carried is None)
        # A private sub-query is compared by the unit (`_own_rows_only`). The inner unit is never NULL; x is
        # NULL where an outer join found no partner.
        if right.carried is not None:
            listed = make("coalesce", mark, Literal(False))
            return (
                listed
                if x in self.relation.unit_keys
                else make("case", make("null?", x), Literal(None), listed)
            )
        prefix = mark.name[:-1]
        # the columns of `Marked.counted`
        total, present = (Column(f"{prefix}{end}", COUNTED) for end in "nc")
        unknown = make("or", make("null?", x), make("<", present, total))
        marked, empty = make("coalesce", mark, Literal(False)), make("=", total, Literal(0))
        yes, no = Literal(True), Literal(False)
        return make("case", marked, yes, empty, no, unknown, Literal(None), no)

    def _mark(
        self,
        node: Node,
        right: Relation,
        pairs: tuple[tuple[Expr, Expr], ...],
        on: tuple[Expr, ...],
        *,
        counted: bool = False,
    ) -> Column:
        """Add a mark to the relation, and return its column."""
        if right.carried is not None:
            self._own_rows_only(node, right, pairs)
        self.relations.count += 1
        prefix = f"t{self.relations.count - 1}"
        marked = Marked(self.relation.node, prefix, right.node, pairs, counted, on)
        self.relation = replace(self.relation, node=marked)
        return Column(f"{prefix}m", boolean(True))

    def _own_rows_only(self, node: Node, right: Relation, pairs: tuple[tuple[Expr, Expr], ...]) -> None:
        """Refuse a sub-query on a private table unless one of the pairs compares the units of both rows."""
        own = self.relation.unit_keys | self.relation.nullable_unit_keys
        if self.relation.carried is None or not any(
            (a in own and b in right.unit_keys) or self.relation.same_reference(a, right, b) for a, b in pairs
        ):
            unit, or_keys = self.relations.public.unit.column, _or_keys(self.relations.public)
            raise refuse(
                node,
                "a row may only be matched with rows of the same unit in a private table",
                f"Compare the unit of privacy on both sides: a.{unit} = b.{unit}.{or_keys}"
                if unit
                else "Here the unit is a single row.",
            )


def _plain(select: Node) -> exp.Select:
    """Remove DISTINCT and ORDER BY from a sub-query, in place, and return it: they do not change whether it
    has a match. Refuse LIMIT, OFFSET and DISTINCT ON, which might."""
    if not isinstance(select, exp.Select):
        raise refuse(select, "only a SELECT can stand here")
    for clause in ("limit", "offset"):
        if select.args.get(clause) is not None:
            raise refuse(select, f"{clause.upper()} cannot be answered in a sub-query", "Leave it out.")
    distinct = select.args.get("distinct")
    if distinct is not None and distinct.args.get("on") is not None:
        raise refuse(select, "DISTINCT ON cannot be answered in a sub-query", "Leave it out.")
    for clause in ("distinct", "order"):
        select.set(clause, None)
    return select


# The most tables and sub-queries of one statement, which bounds the time of planning and of the join. It is
# compared with `Relations.count`, in which a sub-query with GROUP BY or DISTINCT counts twice. Not tuned.
MAX_TABLES = 16
# the columns of each table, by its alias
Tables = dict[str, dict[str, Expr]]


@dataclass(frozen=True, slots=True)
class CommonTable:
    """Holds a common table expression, one name of WITH. `ctes`: the common table expressions that it may
    name itself; `columns`: new names of its columns, if any are listed after its own name."""

    select: Node
    ctes: dict[str, CommonTable]
    columns: tuple[str, ...] = ()


class Relations:
    """Binds FROM clauses. `count` is the number of prefixes (t0, t1, ...) given so far: every table,
    sub-query and set of computed columns gets one for the names of its columns.

    The order of counting must not change: the prefixes are in `Plan.key`, by which stored answers are found.
    """

    def __init__(self, public: Public) -> None:
        self.public = public
        self.count = 0
        # pairs of columns that the condition of an inner join makes equal
        self.equal: set[frozenset[Expr]] = set()

    def bind(
        self, select: exp.Select, ctes: dict[str, CommonTable], outer: list[Node] | None = None
    ) -> tuple[Relation, Scope]:
        """Bind FROM, its joins and WHERE of one SELECT; return the relation and the scope of its columns.

        `ctes`: the common table expressions in scope. `outer`: for EXISTS, a list that collects, unbound, the
        conditions of WHERE that name columns of an outer query; None where there is no outer query.
        """
        ctes = {**ctes, **self._with(select, ctes)}
        source = select.args.get("from_") or select.args.get("from")
        if source is None:
            raise refuse(select, "there is no FROM", f"Write FROM {self.public.table}.")
        alias, relation = self._item(source.this, ctes)
        tables = {alias: relation.columns}
        joins = select.args.get("joins") or []
        where = select.args.get("where")
        # The conditions of WHERE, joined by AND, that are not yet part of a join.
        left_over = [] if where is None else list(conjuncts(where.this))
        if joins:
            left_over += [implied for condition in left_over for implied in common(condition)]
        condition_count = len(left_over)
        has_right_join = any(str(join.args.get("side") or "").upper() in ("RIGHT", "FULL") for join in joins)
        waiting = self._waiting(joins, ctes)
        for join in joins:
            if waiting:
                before = Scope(tables)
                linked = (i for i, w in enumerate(waiting) if _joins_by_value(left_over, before, *w[1:]))
                join, other_alias, other = waiting.pop(next(linked, 0))
            else:
                other_alias, other = self._item(join.this, ctes)
            if other_alias.lower() in (earlier.lower() for earlier in tables):
                raise refuse(join, f"two tables are called {other_alias!r}", "Give one an alias.")
            # FROM a, b WHERE a.x = b.x is a join ON a.x = b.x. Beside a RIGHT JOIN the condition stays in
            # WHERE, which applies after that join: as part of an earlier join it would drop rows that the
            # RIGHT JOIN brings back.
            conditions: list[Node] = []
            if not (has_right_join or join.args.get("on") or join.args.get("using") or join.args.get("side")):
                both = Scope({**tables, other_alias: other.columns})
                conditions = [c for c in left_over if _links(c, Scope(tables), both)]
                # engines join by equal values; beside these, an OR made a join 50 times slower
                conditions = [c for c in conditions if isinstance(c, exp.EQ)] or conditions
                left_over = [c for c in left_over if c not in conditions]
            relation, tables = self._join(join, tables, relation, other_alias, other, conditions)
        scope = Scope(tables, self.equal)
        if outer is not None:
            outer += [c for c in left_over if not holds_query(c) and not resolves(c, scope)]
            left_over = [c for c in left_over if c not in outer]
        if not left_over:
            return relation, scope
        # binds IN and EXISTS with a sub-query, each as a mark: a column that says whether a row has a match
        marks = Marks(self, relation, scope, ctes)
        binder = Binder(_Aliases(scope, select), marks.special)
        # WHERE as it was written, if no condition was taken out of it
        remaining = (
            where.this
            if where is not None and len(left_over) == condition_count
            else exp.and_(*left_over, copy=False)
        )
        # binding comes first, as it adds the marks to `marks.relation`
        condition = binder.condition(remaining)
        return replace(marks.relation, node=Filtered(marks.relation.node, condition)), scope

    def _waiting(
        self, joins: list[exp.Join], ctes: dict[str, CommonTable]
    ) -> list[tuple[exp.Join, str, Relation]]:
        """Bind the tables of FROM a, b, c: whichever a condition links to those before it is joined next, as
        engines would cross two tables that no condition links; of other joins, return none."""
        if any(arg for join in joins for name, arg in join.args.items() if name != "this"):
            return []
        return [(join, *self._item(join.this, ctes)) for join in joins]

    def _with(self, select: exp.Query, ctes: dict[str, CommonTable]) -> dict[str, CommonTable]:
        """Return the common table expressions of WITH; each sees those before it, and those in `ctes`."""
        clause = select.args.get("with_") or select.args.get("with")
        if clause is None:
            return {}
        if clause.args.get("recursive"):
            raise refuse(clause, "WITH RECURSIVE cannot be answered")
        tables: dict[str, CommonTable] = {}
        for cte in clause.expressions:
            tables[cte.alias.lower()] = CommonTable(cte.this, {**ctes, **tables}, alias_columns(cte))
        return tables

    def _item(self, item: Node, ctes: dict[str, CommonTable]) -> tuple[str, Relation]:
        """Bind one item of FROM: a table, a common table expression, or a sub-query. Return its alias and its
        relation."""
        self.count += 1
        if self.count > MAX_TABLES:
            raise refuse(item, f"more than {MAX_TABLES} tables are read")
        if isinstance(item, exp.Subquery):
            if not isinstance(item.this, exp.Query) or item.args.get("joins"):
                raise refuse(item, "only a SELECT can stand in brackets here")
            only(item, {"this", "alias"}, "after a sub-query")
            return item.alias or f"subquery{self.count}", self.subquery(item.this, ctes, alias_columns(item))
        if not isinstance(item, exp.Table) or not isinstance(item.this, exp.Identifier):
            raise refuse(
                item, "FROM takes a declared table or a sub-query", "Functions and files cannot be read."
            )
        unknown = [name for name, arg in item.args.items() if arg and name not in ("this", "alias", "db")]
        if item.text("db") and item.text("db").lower() not in SCHEMAS:
            raise refuse(
                item,
                f"there is no schema {item.text('db')!r}",
                ""
                if item.text("db").lower() == "information_schema"
                else f"Write {item.name}, or {SCHEMAS[0]}.{item.name}.",
            )
        if unknown or (alias_columns(item) and item.name.lower() not in ctes):
            raise refuse(
                item, f"only the name of a table can stand here, and an alias; {item.name!r} has more to it"
            )
        cte = None if item.text("db") else ctes.get(item.name.lower())
        if cte is not None:
            return item.alias or item.name, self.subquery(
                cte.select, cte.ctes, alias_columns(item) or cte.columns
            )
        return item.alias or item.name, self._scan(item)

    def _scan(self, item: exp.Table) -> Relation:
        """Bind a declared table."""
        public, name, prefix = self.public, item.name.lower(), f"t{self.count - 1}"
        if name == public.table.lower():
            scan = Scan(public.table, prefix, public.schema, True, public.unit.column)
        else:
            others = [t for t in public.tables if t.name.lower() == name]
            if not others:
                names = [public.table, *(t.name for t in public.tables)]
                advice = f"{did_you_mean(item.name, names).strip()} There is: {', '.join(names)}.".strip()
                raise refuse(item, f"there is no table {item.name!r}", advice)
            (other,) = others
            schema, private, column, reference = facts_of(other)
            scan = Scan(other.name, prefix, schema, private, column, reference)
        schema = dict(scan.schema)
        if scan.unit is not None:
            schema[scan.unit] = Text()
        columns: dict[str, Expr] = {c: Column(scan.alias(c), declared(fact)) for c, fact in schema.items()}
        # No column equals the unit where a row is the unit.
        unit_keys = frozenset({columns[scan.unit]}) if scan.unit is not None else frozenset[Expr]()
        referred = {(t.reference.of, t.reference.key) for t in public.tables if t.reference is not None}
        references = {(scan.alias(c), scan.table, c) for c in columns if (scan.table, c) in referred}
        if (r := scan.reference) is not None:
            references.add((scan.alias(r.column), r.of, r.key))
        return Relation(scan, columns, carried(scan, public), unit_keys, references=frozenset(references))

    def subquery(self, select: Node, ctes: dict[str, CommonTable], names: tuple[str, ...] = ()) -> Relation:
        """Bind a sub-query; `names`: new names of its first columns, as in (SELECT ...) AS t(a, b)."""
        relation = self._subquery(select, ctes)
        if not names:
            return relation
        if len(names) > len(relation.columns) or any(
            True for item in select.expressions if isinstance(item, exp.Star)
        ):
            raise refuse(
                select,
                f"{len(names)} names after a sub-query need at least as many columns in its SELECT, and no *",
                "Name the columns in its SELECT instead, with AS.",
            )
        old = list(relation.columns)
        if len({name.lower() for name in [*names, *old[len(names) :]]}) < len(old):
            raise refuse(select, "two columns have one name", "List other names.")
        renamed = dict(zip([*names, *old[len(names) :]], relation.columns.values(), strict=True))
        return replace(relation, columns=renamed)

    def _subquery(self, select: Node, ctes: dict[str, CommonTable]) -> Relation:
        """Bind a sub-query: it returns rows as they are or, with GROUP BY or DISTINCT, one row per unit and
        key."""
        if isinstance(select, exp.SetOperation):
            return self._union(select, {**ctes, **self._with(select, ctes)})
        if not isinstance(select, exp.Select):
            raise refuse(select, "only a SELECT can stand here")
        allowed = {"expressions", "from", "from_", "joins", "where", "group", "having", "with", "with_"}
        only(select, allowed | {"kind", "distinct"}, "in a sub-query")
        relation, scope = self.bind(select, ctes)
        group = select.args.get("group")
        if group is None and select.args.get("distinct") is None:
            if select.args.get("having") is not None:
                raise refuse(
                    select, "HAVING in a sub-query follows GROUP BY", "Conditions on rows belong into WHERE."
                )
            columns = self._projection(select, Binder(scope), relation)
            return replace(relation, columns=columns)
        self.count += 1
        return PerUnitBinder(relation, scope, f"t{self.count - 1}", self.public)(select)

    def _union(self, node: Node, ctes: dict[str, CommonTable]) -> Relation:
        """Bind UNION ALL, whose columns have the names of its first part."""
        if not isinstance(node, exp.Union) or node.args.get("distinct"):
            advice = "UNION ALL keeps all rows of its parts, and can be answered."
            raise refuse(node, f"{node.key.upper()} compares rows of different people", advice)
        only(node, {"this", "expression", "with", "with_"}, "in UNION ALL")
        relations = [self._subquery(part, ctes) for part in union_parts(node)]
        rows = [tuple(relation.columns.values()) for relation in relations]
        if len({len(row) for row in rows}) > 1:
            raise refuse(
                node, "the parts of a UNION ALL have different numbers of columns", "Name them, one by one."
            )
        if len({relation.carried is None for relation in relations}) > 1:
            raise refuse(
                node, "rows of a public table would stand among those of a private one", "Join them."
            )
        if any(relation.carried is not None and relation.carried.of_rows for relation in relations):
            advice = "To combine parts of one table, write one SELECT with OR in its WHERE."
            raise refuse(node, "here a row is the unit of privacy, and would be two of them", advice)
        for star in (
            item for part in union_parts(node) for item in part.selects if isinstance(item, exp.Star)
        ):
            raise refuse(
                star, "UNION ALL goes by the order of columns, and * has none here", "Name the columns."
            )
        prefixes = [f"t{self.count + i}" for i in range(len(rows) + 1)]
        self.count += len(prefixes)
        parts = [Projected(r.node, p, row) for r, p, row in zip(relations, prefixes[1:], rows, strict=True)]
        union = United(tuple(parts), prefixes[0])
        columns, keys, nullable = dict[str, Expr](), set[Expr](), set[Expr]()
        references = set[tuple[str, str, str]]()
        domains = union_domains(union)
        for i, (name, column) in enumerate(zip(relations[0].columns, zip(*rows, strict=True), strict=True)):
            columns[name] = own = Column(f"{prefixes[0]}p{i}", domains[i])
            sides = list(zip(relations, column, strict=True))
            if all(e in relation.unit_keys for relation, e in sides):
                columns[name] = own = Column(f"{prefixes[0]}w", declared(Text()))
                keys.add(own)
            elif all(e in relation.unit_keys | relation.nullable_unit_keys for relation, e in sides):
                nullable.add(own)
            targets = set.intersection(*(relation.targets(e) for relation, e in sides))
            references |= {(own.name, *target) for target in targets}
        whose = carried(union, self.public)
        return Relation(union, columns, whose, frozenset(keys), frozenset(nullable), frozenset(references))

    def _projection(self, select: exp.Select, binder: Binder, relation: Relation) -> dict[str, Expr]:
        """Bind the items of SELECT as columns."""
        columns: dict[str, Expr] = {}
        for item in select.expressions:
            if isinstance(item, exp.Star):
                if any(item.args.get(k) for k in ("except_", "except", "replace", "rename")):
                    raise refuse(item, "* with EXCEPT or REPLACE is not known", "Name the columns.")
                added = relation.columns
            else:
                name, inner = named(item)
                added = {name: binder(inner)}
            present = {earlier.lower() for earlier in columns}
            for name in added:
                if name.lower() in present:
                    raise refuse(item, f"two columns are called {name!r}", "Give one another name with AS.")
            columns.update(added)
        return columns

    def _join(
        self,
        join: exp.Join,
        tables: Tables,
        left: Relation,
        alias: str,
        right: Relation,
        conditions: list[Node],
    ) -> tuple[Relation, Tables]:
        """Join two relations; return the result and the columns of all tables that it has, by alias.

        `tables`: the tables of `left`; `alias`: the name of `right`; `conditions`: those of WHERE that belong
        to this join, if it was written with a comma, or without ON and USING.
        """
        kind = join_kind(join)
        others: Tables = {alias: right.columns}
        if kind == "left":
            right, others = self._optional(right, others)
        if kind == "right":
            left, tables = self._optional(left, tables)
        both = {**tables, **others}
        scope = Scope(both)
        on = tuple(self._conditions(join, scope, tables, alias))
        on += tuple(part for c in conditions for part in _conjuncts(Binder(scope).condition(c)))
        if kind == "inner":
            self.equal.update(pair for c in on for pair in _equated_columns(c))
        # A right join is a left join of the exchanged sides; an inner join is put so that the private side is
        # the left one.
        if kind == "right" or (kind == "inner" and left.carried is None):
            left, right = right, left
        if kind != "inner" and left.carried is None and right.carried is not None:
            raise refuse(
                join,
                "an outer join that keeps all rows of a public table shows which of them no private "
                "row belongs to",
                "Keep the rows of the private table: FROM private LEFT JOIN public, or use JOIN.",
            )
        if left.carried is not None and right.carried is not None:
            self._require_same_unit(join, on, left, right)
        return self._joined_relation(left, right, "inner" if kind == "inner" else "left", on), both

    def _joined_relation(self, left: Relation, right: Relation, kind: str, on: tuple[Expr, ...]) -> Relation:
        """Return the relation of a join: it has the unit of `left`, which the unit of `right` equals or, in a
        row of a left join that has no partner, NULL."""
        unit_keys, nullable_unit_keys = left.unit_keys, left.nullable_unit_keys | right.nullable_unit_keys
        if kind == "inner":
            unit_keys |= right.unit_keys
        else:
            nullable_unit_keys |= right.unit_keys
        node, columns = Joined(left.node, right.node, kind, on), {**right.columns, **left.columns}
        references = left.references | right.references
        return Relation(node, columns, carried(node, self.public), unit_keys, nullable_unit_keys, references)

    def _optional(self, relation: Relation, tables: Tables) -> tuple[Relation, Tables]:
        """Return the side of an outer join whose columns become NULL where a row has no partner.

        A computed column such as COALESCE(x, 0) must be NULL there too, and not be computed from NULLs: so it
        is computed before the join (`Projected`), and is a plain column after it.
        """
        computed = tuple(
            dict.fromkeys(
                e
                for columns in [relation.columns, *tables.values()]
                for e in columns.values()
                if not isinstance(e, Column)
            )
        )
        node = relation.node
        if computed:
            self.count += 1
            node = Projected(node, f"t{self.count - 1}", computed)

        def after_join(e: Expr) -> Expr:
            if isinstance(e, Column):
                return Column(e.name, replace(e.domain, nullable=True))
            return Column(f"t{self.count - 1}p{computed.index(e)}", replace(e.domain, nullable=True))

        columns = {name: after_join(e) for name, e in relation.columns.items()}
        tables_after = {
            alias: {name: after_join(e) for name, e in own.items()} for alias, own in tables.items()
        }
        return replace(relation, node=node, columns=columns), tables_after

    def _conditions(self, join: exp.Join, scope: Scope, tables: Tables, alias: str) -> Iterator[Expr]:
        """Yield the conditions of ON and USING."""
        for name in join.args.get("using") or []:
            right = exp.column(name.copy(), table=alias)
            owners = [n for n, columns in tables.items() if name.name.lower() in {c.lower() for c in columns}]
            if len(owners) != 1:
                raise refuse(
                    name, f"USING({name.name}) must name a column that both sides of the join have, once each"
                )
            yield make("=", scope(exp.column(name.copy(), table=owners[0])), scope(right))
        condition = join.args.get("on")
        if condition is not None:
            yield from _conjuncts(Binder(scope).condition(condition))

    def _require_same_unit(
        self, join: exp.Join, on: tuple[Expr, ...], left: Relation, right: Relation
    ) -> None:
        """Refuse a join of two private tables that may join rows of different units."""
        for condition in on:
            if isinstance(condition, Call) and condition.op == "=":
                a, b = condition.args
                left_units, right_units = (
                    left.unit_keys | left.nullable_unit_keys,
                    right.unit_keys | right.nullable_unit_keys,
                )
                if (a in left_units and b in right_units) or (b in left_units and a in right_units):
                    return
                if left.same_reference(a, right, b) or left.same_reference(b, right, a):
                    return
        unit = self.public.unit.column
        raise refuse(
            join,
            "two private tables can only be joined on the unit of privacy",
            f"Write ON a.{unit} = b.{unit}.{_or_keys(self.public)}"
            if unit
            else "Here the unit is a single row, so there is nothing to join on.",
        )


def _or_keys(public: Public) -> str:
    """Return the advice to compare the keys by which tables refer to each other; "" where none does."""
    keys = [f"{t.name}.{r.column} = {r.of}.{r.key}" for t in public.tables if (r := t.reference) is not None]
    return f" Or compare a key by which a table refers to another: {', '.join(keys)}." if keys else ""


def _equated_columns(condition: Expr) -> Iterator[frozenset[Expr]]:
    """Yield the pair of columns that a condition a = b makes equal, if both are of one kind of value: a name
    that both tables have is then not ambiguous."""
    if isinstance(condition, Call) and condition.op == "=":
        a, b = condition.args
        if isinstance(a, Column) and isinstance(b, Column) and a.domain.kind is b.domain.kind:
            yield frozenset((a, b))


def _links(condition: Node, before: Scope, both: Scope) -> bool:
    """Return whether a condition of WHERE needs the newly joined table (the scope `both`, and not `before`),
    and no table that is joined later."""
    if holds_query(condition) or not any(True for _ in condition.find_all(exp.Column)):
        return False
    return resolves(condition, both) and not resolves(condition, before)


def _joins_by_value(conditions: list[Node], before: Scope, alias: str, relation: Relation) -> bool:
    """Return whether a condition compares a column of a table with one of the tables before it by =."""
    own = Scope({alias: relation.columns})
    for condition in conditions:
        if isinstance(condition, exp.EQ) and not holds_query(condition):
            a, b = condition.this, condition.expression
            if a.find(exp.Column) is None or b.find(exp.Column) is None:
                continue
            if (resolves(a, own) and resolves(b, before)) or (resolves(b, own) and resolves(a, before)):
                return True
    return False


class _Aliases:
    """Resolves a name in WHERE to a column of the scope or, if there is none, to the item of SELECT with this
    alias."""

    def __init__(self, scope: Scope, select: exp.Select) -> None:
        self.scope = scope
        self.items = {i.alias.lower(): i.this for i in select.expressions if isinstance(i, exp.Alias)}

    def __call__(self, node: exp.Column) -> Expr:
        item = self.items.get(node.name.lower())
        if item is None or node.table or resolves(node, self.scope):
            return self.scope(node)
        return Binder(self.scope)(item)


def _conjuncts(condition: Expr) -> Iterator[Expr]:
    """Yield the conditions that a bound condition joins by AND."""
    if isinstance(condition, Call) and condition.op == "and":
        for arg in condition.args:
            yield from _conjuncts(arg)
    else:
        yield condition
