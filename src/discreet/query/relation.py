"""Binds FROM and WHERE: tables, filters, joins and sub-queries, each of which keeps track of the unit of
privacy (a person, or a row) that a row belongs to.

To bind is to translate sqlglot's syntax tree into the nodes of `sources` and `nodes`, and to refuse what has
no rule. Every relation of private rows carries its unit as a column, so that the contribution of one unit can
be bounded at the end, after all joins and filters. For that a join or sub-query may only bring together rows
of one unit, and rows of public tables, which belong to no unit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from sqlglot import exp

from .._public import Public, Text
from .._require import did_you_mean
from .binder import Binder
from .clauses import named, only
from .domain import Kind, declared
from .errors import Node, refuse
from .nodes import Call, Column, Expr, make
from .per_unit import PerUnitBinder
from .scope import SCHEMAS, Scope
from .sources import Filtered, Joined, Projected, Relation, Scan, columns_of
from .subqueries import Marks, conjuncts, holds_query, resolves

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
        condition_count = len(left_over)
        has_right_join = any(str(join.args.get("side") or "").upper() in ("RIGHT", "FULL") for join in joins)
        for join in joins:
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

    def _with(self, select: exp.Select, ctes: dict[str, CommonTable]) -> dict[str, CommonTable]:
        """Return the common table expressions of WITH; each sees those before it, and those in `ctes`."""
        clause = select.args.get("with_") or select.args.get("with")
        if clause is None:
            return {}
        if clause.args.get("recursive"):
            raise refuse(clause, "WITH RECURSIVE cannot be answered")
        tables: dict[str, CommonTable] = {}
        for cte in clause.expressions:
            tables[cte.alias.lower()] = CommonTable(cte.this, {**ctes, **tables}, _alias_columns(cte))
        return tables

    def _item(self, item: Node, ctes: dict[str, CommonTable]) -> tuple[str, Relation]:
        """Bind one item of FROM: a table, a common table expression, or a sub-query. Return its alias and its
        relation."""
        self.count += 1
        if self.count > MAX_TABLES:
            raise refuse(item, f"more than {MAX_TABLES} tables are read")
        if isinstance(item, exp.Subquery):
            if not isinstance(item.this, exp.Select) or item.args.get("joins"):
                raise refuse(
                    item,
                    "only a SELECT can stand in brackets here",
                    "To combine parts of one table, write one SELECT with OR in its WHERE.",
                )
            only(item, {"this", "alias"}, "after a sub-query")
            return item.alias or f"subquery{self.count}", self.subquery(item.this, ctes, _alias_columns(item))
        if not isinstance(item, exp.Table) or not isinstance(item.this, exp.Identifier):
            raise refuse(
                item, "FROM takes a declared table or a sub-query", "Functions and files cannot be read."
            )
        unknown = [name for name, arg in item.args.items() if arg and name not in ("this", "alias", "db")]
        if item.text("db") and item.text("db").lower() not in SCHEMAS:
            raise refuse(
                item,
                f"there is no schema {item.text('db')!r}",
                f"Write {item.name}, or {SCHEMAS[0]}.{item.name}.",
            )
        if unknown or (_alias_columns(item) and item.name.lower() not in ctes):
            raise refuse(
                item, f"only the name of a table can stand here, and an alias; {item.name!r} has more to it"
            )
        cte = None if item.text("db") else ctes.get(item.name.lower())
        if cte is not None:
            return item.alias or item.name, self.subquery(
                cte.select, cte.ctes, _alias_columns(item) or cte.columns
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
            scan = Scan(
                other.name, prefix, other.schema, other.private, other.unit if other.private else None
            )
        schema = dict(scan.schema)
        if scan.unit is not None:
            schema[scan.unit] = Text()
        columns: dict[str, Expr] = {c: Column(scan.alias(c), declared(fact)) for c, fact in schema.items()}
        unit = f"{prefix}u" if scan.private else None
        # No column equals the unit where a row is the unit. A unit then has one row, so that `many`, the last
        # argument of `Relation`, is False.
        unit_keys = frozenset({columns[scan.unit]}) if scan.unit is not None else frozenset[Expr]()
        return Relation(scan, columns, unit, unit_keys, scan.unit is not None)

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
        if not isinstance(select, exp.Select):
            raise refuse(select, "only a SELECT can stand here", "UNION and the like cannot be answered.")
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
        return PerUnitBinder(relation, scope, f"t{self.count - 1}", self.public.unit.column)(select)

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
        kind = _join_kind(join)
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
        if kind == "right" or (kind == "inner" and left.unit is None):
            left, right = right, left
        if kind != "inner" and left.unit is None and right.unit is not None:
            raise refuse(
                join,
                "an outer join that keeps all rows of a public table shows which of them no private "
                "row belongs to",
                "Keep the rows of the private table: FROM private LEFT JOIN public, or use JOIN.",
            )
        if left.unit is not None and right.unit is not None:
            self._require_same_unit(join, on, left, right)
        # whether one unit may have several rows after the join
        many = left.many or (right.many if right.unit is not None else not self._unique(right, on))
        return self._joined_relation(left, right, "inner" if kind == "inner" else "left", on, many), both

    def _joined_relation(
        self, left: Relation, right: Relation, kind: str, on: tuple[Expr, ...], many: bool
    ) -> Relation:
        """Return the relation of a join: it has the unit of `left`, which the unit of `right` equals or, in a
        row of a left join that has no partner, NULL."""
        unit_keys, nullable_unit_keys = left.unit_keys, left.nullable_unit_keys | right.nullable_unit_keys
        if kind == "inner":
            unit_keys |= right.unit_keys
        else:
            nullable_unit_keys |= right.unit_keys
        node, columns = Joined(left.node, right.node, kind, on), {**right.columns, **left.columns}
        return Relation(node, columns, left.unit, unit_keys, many, nullable_unit_keys)

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
        unit = self.public.unit.column
        raise refuse(
            join,
            "two private tables can only be joined on the unit of privacy",
            f"Write ON a.{unit} = b.{unit}."
            if unit
            else "Here the unit is a single row, so there is nothing to join on.",
        )

    def _unique(self, right: Relation, on: tuple[Expr, ...]) -> bool:
        """Return whether a join with a public table adds at most one row to each row: each column of the
        table's declared key must be compared by = with an expression over the other tables alone. Compared
        with another column of the same table, several of its rows may match.

        Keys of text only: a number is clipped to its bounds before it is compared, so that two keys may
        become equal.
        """
        node = right.node
        tables = [t for t in self.public.tables if isinstance(node, Scan) and t.name == node.table and t.key]
        if not tables or not isinstance(node, Scan):
            return False
        # Columns are identified by the names that the scan gives them (t0c1): a sub-query may rename any
        # other column to the name of the key.
        facts = dict(node.schema)
        if any(declared(facts[name]).kind is not Kind.TEXT for name in tables[0].key):
            return False
        own = {node.alias(name) for name in facts}
        fixed = {
            side.name
            for c in on
            if isinstance(c, Call) and c.op == "="
            for side, other in (c.args, c.args[::-1])
            if isinstance(side, Column) and not columns_of(other) & own
        }
        return all(node.alias(name) in fixed for name in tables[0].key)


def _equated_columns(condition: Expr) -> Iterator[frozenset[Expr]]:
    """Yield the pair of columns that a condition a = b makes equal, if both are of one kind of value: a name
    that both tables have is then not ambiguous."""
    if isinstance(condition, Call) and condition.op == "=":
        a, b = condition.args
        if isinstance(a, Column) and isinstance(b, Column) and a.domain.kind is b.domain.kind:
            yield frozenset((a, b))


def _join_kind(join: exp.Join) -> str:
    """Return inner, left or right; other joins are refused."""
    side, kind, method = (str(join.args.get(name) or "").upper() for name in ("side", "kind", "method"))
    only(join, {"this", "side", "kind", "on", "using", "method"}, "in a join")
    if side == "FULL" or kind not in ("", "INNER", "OUTER", "CROSS") or method:
        advice = {"SEMI": "Write WHERE EXISTS (SELECT ...).", "ANTI": "Write WHERE NOT EXISTS (SELECT ...)."}
        raise refuse(
            join,
            f"{side or kind or method} JOIN cannot be answered",
            advice.get(kind, "Use JOIN, LEFT JOIN or RIGHT JOIN."),
        )
    return side.lower() or "inner"


def _alias_columns(item: Node) -> tuple[str, ...]:
    """Return the names in brackets after an alias: (SELECT ...) AS t(a, b)."""
    alias = item.args.get("alias")
    columns = (alias.args.get("columns") or []) if isinstance(alias, exp.TableAlias) else []
    return tuple(column.name for column in columns)


def _links(condition: Node, before: Scope, both: Scope) -> bool:
    """Return whether a condition of WHERE needs the newly joined table (the scope `both`, and not `before`),
    and no table that is joined later."""
    if holds_query(condition) or not any(True for _ in condition.find_all(exp.Column)):
        return False
    return resolves(condition, both) and not resolves(condition, before)


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
