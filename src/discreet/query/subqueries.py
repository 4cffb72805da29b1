"""Binds EXISTS (SELECT ...) and x IN (SELECT ...) in WHERE as a mark on each row: a column that says whether
the sub-query has a match for the row (`sources.Marked`).

A mark adds no rows, so that one unit (a person) contributes no more than before. The matches may be rows of
public tables or, of a private table, rows of the same unit: otherwise one unit's rows would decide whether
another unit's row counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from sqlglot import exp

from .binder import Binder
from .clauses import only
from .domain import boolean, number
from .errors import Node, refuse
from .nodes import Column, Expr, Literal, make
from .scope import Scope
from .sources import Marked, Relation

if TYPE_CHECKING:
    from .relation import CommonTable, Relations


def conjuncts(condition: Node | None) -> Iterator[Node]:
    """Yield the conditions that a parsed condition joins by AND."""
    if isinstance(condition, exp.Paren) and isinstance(condition.this, exp.And | exp.Paren):
        yield from conjuncts(condition.this)
    elif isinstance(condition, exp.And):
        yield from conjuncts(condition.this)
        yield from conjuncts(condition.expression)
    elif condition is not None:
        yield condition


def holds_query(node: Node) -> bool:
    """Return whether there is a sub-query in an expression."""
    return any(True for _ in node.find_all(exp.Query, exp.Subquery))


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

        Conditions of the sub-query that name columns of the outer query must have the form own = inner: `own`
        is an expression over columns of the outer query, `inner` one over columns of the sub-query.
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
        pairs = []
        for condition in outer:
            sides = (condition.this, condition.expression) if isinstance(condition, exp.EQ) else (None, None)
            own = [
                side
                for side in sides
                if side is not None and resolves(side, self.scope) and not resolves(side, scope)
            ]
            inner = [side for side in sides if side is not None and resolves(side, scope)]
            if len(own) != 1 or len(inner) != 1:
                raise refuse(
                    condition,
                    "EXISTS compares the rows outside with those inside by = only",
                    "Conditions on the inner table alone may be anything; or join the table.",
                )
            pairs.append((bind_own(own[0]), bind_inner(inner[0])))
        for own_side, inner_side in pairs:
            # kinds that cannot be compared are refused
            make("=", own_side, inner_side)
        mark = self._mark(node, right, tuple(pairs))
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
        mark = self._mark(node, right, ((x, inner),), counted=right.unit is None)
        # A private sub-query is compared by the unit (`_own_rows_only`). The inner unit is never NULL; x is
        # NULL where an outer join found no partner.
        if right.unit is not None:
            listed = make("coalesce", mark, Literal(False))
            return (
                listed
                if x in self.relation.unit_keys
                else make("case", make("null?", x), Literal(None), listed)
            )
        prefix = mark.name[:-1]
        # the columns of `Marked.counted`; no table has 1e15 rows
        total, present = (
            Column(f"{prefix}{end}", number(0, 1e15, integral=True, nullable=False)) for end in "nc"
        )
        unknown = make("or", make("null?", x), make("<", present, total))
        marked, empty = make("coalesce", mark, Literal(False)), make("=", total, Literal(0))
        yes, no = Literal(True), Literal(False)
        return make("case", marked, yes, empty, no, unknown, Literal(None), no)

    def _mark(
        self, node: Node, right: Relation, pairs: tuple[tuple[Expr, Expr], ...], *, counted: bool = False
    ) -> Column:
        """Add a mark to the relation, and return its column."""
        if right.unit is not None:
            self._own_rows_only(node, right, pairs)
        self.relations.count += 1
        prefix = f"t{self.relations.count - 1}"
        marked = Marked(self.relation.node, prefix, right.node, pairs, counted)
        self.relation = replace(self.relation, node=marked)
        return Column(f"{prefix}m", boolean(True))

    def _own_rows_only(self, node: Node, right: Relation, pairs: tuple[tuple[Expr, Expr], ...]) -> None:
        """Refuse a sub-query on a private table unless one of the pairs compares the units of both rows."""
        own = self.relation.unit_keys | self.relation.nullable_unit_keys
        if self.relation.unit is None or not any(a in own and b in right.unit_keys for a, b in pairs):
            unit = self.relations.public.unit.column
            raise refuse(
                node,
                "a row may only be matched with rows of the same unit in a private table",
                f"Compare the unit of privacy on both sides: a.{unit} = b.{unit}."
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
