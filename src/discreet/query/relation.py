"""What a query reads: scans, filters, joins and one-row-a-unit sub-queries, each of which keeps track of whose a row is.

Every relation of private rows carries the unit, so that what one unit contributes can be bounded at the end, whatever happened
in between. A row of a public table belongs to nobody.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from sqlglot import exp

from .._public import Public, Text
from .._require import meant
from .binder import Binder, Scope
from .clauses import named, only
from .domain import Kind, declared
from .errors import Node, refuse
from .nodes import Call, Column, Expr, make
from .per_unit import PerUnitBinder
from .sources import Filtered, Joined, Projected, Relation, Scan, columns_of

MOST_TABLES = 16


@dataclass(frozen=True, slots=True)
class Closed:
    """A common table expression, with those that it can see."""

    select: Node
    ctes: dict[str, Closed]


class Relations:
    """Binds FROM clauses; counts the tables so that every scan has its own prefix."""

    def __init__(self, public: Public) -> None:
        self.public = public
        self.count = 0

    def bind(self, select: exp.Select, ctes: dict[str, Closed]) -> tuple[Relation, Scope]:
        """FROM, its joins and WHERE of one SELECT."""
        ctes = {**ctes, **self._with(select, ctes)}
        source = select.args.get("from_") or select.args.get("from")
        if source is None:
            raise refuse(select, "there is no FROM", f"Write FROM {self.public.table}.")
        alias, relation = self._item(source.this, ctes)
        tables = {alias: relation}
        for join in select.args.get("joins") or []:
            other_alias, other = self._item(join.this, ctes)
            if other_alias.lower() in (known.lower() for known in tables):
                raise refuse(join, f"two tables are called {other_alias!r}", "Give one an alias.")
            relation, other = self._join(join, tables, relation, other_alias, other)
            tables[other_alias] = other
        scope = Scope({name: table.columns for name, table in tables.items()})
        where = select.args.get("where")
        if where is not None:
            relation = replace(relation, node=Filtered(relation.node, Binder(scope).condition(where.this)))
        return relation, scope

    def _with(self, select: exp.Select, outer: dict[str, Closed]) -> dict[str, Closed]:
        clause = select.args.get("with_") or select.args.get("with")
        if clause is None:
            return {}
        if clause.args.get("recursive"):
            raise refuse(clause, "WITH RECURSIVE cannot be answered")
        found: dict[str, Closed] = {}
        for cte in clause.expressions:
            if cte.args["alias"].args.get("columns"):
                raise refuse(cte, "name the columns inside the sub-query with AS")
            found[cte.alias.lower()] = Closed(cte.this, {**outer, **found})
        return found

    def _item(self, item: Node, ctes: dict[str, Closed]) -> tuple[str, Relation]:
        self.count += 1
        if self.count > MOST_TABLES:
            raise refuse(item, f"more than {MOST_TABLES} tables are read")
        if isinstance(item, exp.Subquery):
            if not isinstance(item.this, exp.Select) or item.args.get("joins"):
                raise refuse(
                    item,
                    "only a SELECT can stand in brackets here",
                    "Parts of one table: one SELECT with OR in its WHERE.",
                )
            return item.alias or f"subquery{self.count}", self._subquery(item.this, ctes)
        if not isinstance(item, exp.Table) or not isinstance(item.this, exp.Identifier):
            raise refuse(item, "FROM takes a declared table or a sub-query", "Functions and files cannot be read.")
        extra = [name for name, arg in item.args.items() if arg and name not in ("this", "alias")]
        if extra or (item.args.get("alias") is not None and item.args["alias"].args.get("columns")):
            raise refuse(item, f"only a plain table name can stand here, not {item.name!r} with more to it")
        known = ctes.get(item.name.lower())
        if known is not None:
            return item.alias or item.name, self._subquery(known.select, known.ctes)
        return item.alias or item.name, self._scan(item)

    def _scan(self, item: exp.Table) -> Relation:
        public, name, prefix = self.public, item.name.lower(), f"t{self.count - 1}"
        if name == public.table.lower():
            scan = Scan(public.table, prefix, public.schema, True, public.unit.column)
        else:
            others = [t for t in public.tables if t.name.lower() == name]
            if not others:
                known = [public.table, *(t.name for t in public.tables)]
                advice = f"{meant(item.name, known).strip()} There is: {', '.join(known)}.".strip()
                raise refuse(item, f"there is no table {item.name!r}", advice)
            (other,) = others
            scan = Scan(other.name, prefix, other.schema, other.private, other.unit if other.private else None)
        schema = dict(scan.schema)
        if scan.unit is not None:
            schema[scan.unit] = Text()
        columns: dict[str, Expr] = {c: Column(scan.alias(c), declared(fact)) for c, fact in schema.items()}
        unit = f"{prefix}u" if scan.private else None
        whose = frozenset({columns[scan.unit]}) if scan.unit is not None else frozenset[Expr]()
        return Relation(scan, columns, unit, whose, scan.unit is not None)

    def _subquery(self, select: Node, ctes: dict[str, Closed]) -> Relation:
        if not isinstance(select, exp.Select):
            raise refuse(select, "only a SELECT can stand here", "UNION and the like cannot be answered.")
        allowed = {
            "expressions",
            "from",
            "from_",
            "joins",
            "where",
            "group",
            "having",
            "with",
            "with_",
            "kind",
            "distinct",
        }
        only(select, allowed, "in a sub-query")
        relation, scope = self.bind(select, ctes)
        group = select.args.get("group")
        if group is None and select.args.get("distinct") is None:
            columns = self._projection(select, Binder(scope), relation)
            whose = relation.whose
            return replace(relation, columns=columns, whose=whose)
        self.count += 1
        return PerUnitBinder(relation, scope, f"t{self.count - 1}", self.public.unit.column)(select)

    def _projection(self, select: exp.Select, binder: Binder, relation: Relation) -> dict[str, Expr]:
        columns: dict[str, Expr] = {}
        for item in select.expressions:
            if isinstance(item, exp.Star):
                if any(item.args.get(k) for k in ("except_", "except", "replace", "rename")):
                    raise refuse(item, "* with EXCEPT or REPLACE is not known", "Name the columns.")
                columns.update(relation.columns)
            else:
                name, inner = named(item)
                if name in columns:
                    raise refuse(item, f"two columns are called {name!r}", "Give one another name with AS.")
                columns[name] = binder(inner)
        return columns

    def _join(
        self, join: exp.Join, tables: dict[str, Relation], left: Relation, alias: str, right: Relation
    ) -> tuple[Relation, Relation]:
        kind = _join_kind(join)
        if kind == "left":  # what has no partner gets NULLs
            right = self._projected(right)
            right = replace(right, columns={n: _optional(e) for n, e in right.columns.items()})
        scope = Scope({**{n: t.columns for n, t in tables.items()}, alias: right.columns})
        on = tuple(self._conditions(join, scope, tables, alias, right))
        if left.unit is None:
            raise refuse(join, "the private table must come first", "Write FROM private JOIN public.")
        if right.unit is not None:
            self._same_unit(join, on, left, right)
        many = left.many or (right.many if right.unit is not None else not self._unique(right, on))
        columns = {**right.columns, **left.columns}
        node = Joined(left.node, right.node, kind, on)
        return Relation(node, columns, left.unit, left.whose | right.whose, many), right

    def _projected(self, relation: Relation) -> Relation:
        if all(isinstance(e, Column) for e in relation.columns.values()):
            return relation
        self.count += 1
        prefix, exprs = f"t{self.count - 1}", tuple(relation.columns.values())
        columns: dict[str, Expr] = {
            name: e if e in relation.whose else Column(f"{prefix}p{exprs.index(e)}", e.domain)
            for name, e in relation.columns.items()
        }
        return replace(relation, node=Projected(relation.node, prefix, exprs), columns=columns)

    def _conditions(
        self, join: exp.Join, scope: Scope, tables: dict[str, Relation], alias: str, right: Relation
    ) -> Iterator[Expr]:
        for name in join.args.get("using") or []:
            here = exp.column(name.copy(), table=alias)
            sides = [n for n, t in tables.items() if name.name.lower() in {c.lower() for c in t.columns}]
            if len(sides) != 1:
                raise refuse(name, f"USING({name.name}) must name a column of both sides, once each")
            yield make("=", scope(exp.column(name.copy(), table=sides[0])), scope(here))
        condition = join.args.get("on")
        if condition is not None:
            yield from _conjuncts(Binder(scope).condition(condition))

    def _same_unit(self, join: exp.Join, on: tuple[Expr, ...], left: Relation, right: Relation) -> None:
        for condition in on:
            if isinstance(condition, Call) and condition.op == "=":
                a, b = condition.args
                if (a in left.whose and b in right.whose) or (b in left.whose and a in right.whose):
                    return
        unit = self.public.unit.column
        raise refuse(
            join,
            "two private tables can only be joined on the unit of privacy",
            f"Write ON a.{unit} = b.{unit}."
            if unit
            else "Here the unit is a single row, so there is nothing to join on.",
        )

    def _unique(self, right: Relation, on: tuple[Expr, ...]) -> bool:
        """Whether a public table adds at most one row: each column of its declared key must equal something that is fixed by the
        row it is joined to. Compared with itself, or with another column of the same table, it fixes nothing.

        Only keys that are compared as they are: clipped numbers that differ may become equal.
        """
        node = right.node
        tables = [t for t in self.public.tables if isinstance(node, Scan) and t.name == node.table and t.key]
        if not tables or any(right.columns[name].domain.kind is not Kind.TEXT for name in tables[0].key):
            return False
        own = columns_of(*right.columns.values())
        fixed = {
            side
            for c in on
            if isinstance(c, Call) and c.op == "="
            for side, other in (c.args, c.args[::-1])
            if not columns_of(other) & own
        }
        return all(any(_same(right.columns[name], side) for side in fixed) for name in tables[0].key)


def _join_kind(join: exp.Join) -> str:
    side, kind, method = (str(join.args.get(name) or "").upper() for name in ("side", "kind", "method"))
    only(join, {"this", "side", "kind", "on", "using", "method"}, "in a join")
    if side in ("RIGHT", "FULL") or kind in ("SEMI", "ANTI") or method not in ("",):
        raise refuse(join, f"{side or kind or method} JOIN cannot be answered", "Use JOIN or LEFT JOIN.")
    return "left" if side == "LEFT" else "inner"


def _optional(expr: Expr) -> Expr:
    return Column(expr.name, replace(expr.domain, nullable=True)) if isinstance(expr, Column) else expr


def _same(a: Expr, b: Expr) -> bool:
    return isinstance(a, Column) and isinstance(b, Column) and a.name == b.name


def _conjuncts(condition: Expr) -> Iterator[Expr]:
    if isinstance(condition, Call) and condition.op == "and":
        for arg in condition.args:
            yield from _conjuncts(arg)
    else:
        yield condition
