"""Builds the checked plan of one query: what is read, how it is grouped, which aggregates get noise and so
cost privacy, and what is computed from them afterwards (post-processing, which is free).

A plan consists of the nodes of `nodes` and `sources` alone, and holds nothing of sqlglot's syntax tree: a
construct that no rule translates cannot reach the engine. `Plan.key` is stable text: two queries that differ
in layout, aliases of tables, or letter case outside texts and names of output columns, have one key.

"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from functools import lru_cache

from sqlglot import exp

from .._public import Public
from ..core.domain import EXACT, Kind, ValueDomain
from ..core.errors import Node, QueryError, Refusal, refuse
from ..core.form import Grouped, checked
from ..core.measures import GroupKey
from ..core.nodes import Call, Expr, Literal, OutputReference, key, make, walk
from ..core.sources import Carried, From, source_key
from .aggregates import Aggregate, Aggregates, result_of
from .binder import Binder, by_position, named, only
from .computing import computable
from .parse import hinted, parse, why_not
from .relation import Relation, Relations, Scope

__all__ = ["Aggregate", "Call", "GroupKey", "Plan", "plan"]

# The most public groups of a query: each is a row of the answer, empty or not, and is held in memory. Not
# tuned.
MAX_GROUPS = 1 << 20
# The most aggregates of one query: each gets a share of the price. Not tuned.
MAX_AGGREGATES = 100


@dataclass(frozen=True, slots=True)
class Plan(Grouped):
    """Describes one checked query.

    `public`: the facts of the tables that `source` reads, which together say how rows carry their unit of
    privacy (a person, or a row). `outputs`: the name and expression of each column of the
    answer; these expressions, `having` and `order` (expression, whether descending) are over keys and
    released aggregates.
    """

    source: From
    public: Public = field(compare=False)
    keys: tuple[GroupKey, ...]
    aggregates: tuple[Aggregate, ...]
    outputs: tuple[tuple[str, Expr], ...]
    having: Expr | None = None
    order: tuple[tuple[Expr, bool], ...] = ()
    limit: int | None = None
    offset: int = 0
    carried: Carried = field(init=False, compare=False)

    def __post_init__(self) -> None:
        arguments = [part for a in self.aggregates for part in (a.argument, a.second) if part is not None]
        expressions = (*(k.expression for k in self.keys), *arguments)
        object.__setattr__(self, "carried", checked(self.source, self.public, expressions))

    def of(self, public: Public) -> Plan:
        """Return this plan; refuse it if it was made with other public facts than those that are priced."""
        if self.public != public:
            raise QueryError("this plan was made with other public facts than the question's.")
        return self

    @property
    def key(self) -> str:
        """Stable text of all that decides the answer, apart from the price and the public facts. Stored
        answers are looked up by it, so that its form must not change."""
        parts = {
            "source": source_key(self.source),
            "keys": repr([(key(k.expression), k.values) for k in self.keys]),
            "aggregates": [a.key for a in self.aggregates],
            "outputs": [[name, key(e)] for name, e in self.outputs],
            "having": None if self.having is None else key(self.having),
            "order": [[key(e), descending] for e, descending in self.order],
            "limit": [self.limit, self.offset],
        }
        return json.dumps(parts)


def plan(text: str, public: Public) -> Plan:
    """Return the checked plan of a query, or a QueryError that says what to write instead."""
    # `parse` raises the error for an argument that is no text
    if not isinstance(text, str):
        parse(text)
    try:
        return _plan(text, public)
    except QueryError as refusal:
        raise hinted(refusal, text, public) from None


# Cached because a query is planned when it is built, and again when its description is read back before the
# charge.
@lru_cache(maxsize=64)
def _plan(text: str, public: Public) -> Plan:
    """Parse and plan a text. A syntax tree that no rule expects ends in a QueryError, never in another
    error."""
    select = parse(text)
    try:
        return _Planner(select, public).plan()
    except RecursionError:
        raise refuse(select, "the query nests too deep") from None
    except Refusal as refusal:
        raise refuse(select, str(refusal)) from None
    except (
        AssertionError,
        AttributeError,
        IndexError,
        KeyError,
        TypeError,
    ):
        raise refuse(
            select, "this query is written in a way that is not understood", "See docs/sql.md."
        ) from None


# The parts of SELECT that a query may have; sqlglot renamed "from" and "with" between its versions.
_TOP = {
    "expressions",
    "from",
    "from_",
    "joins",
    "where",
    "group",
    "having",
    "order",
    "limit",
    "offset",
    "with",
    "with_",
    "kind",
}


class _Planner:
    """Plans one SELECT: binds FROM and WHERE (`Relations`), then GROUP BY, and then SELECT, HAVING and ORDER
    BY over keys and aggregates, which it collects on the way."""

    def __init__(self, select: exp.Select, public: Public) -> None:
        if select.args.get("distinct"):
            raise refuse(
                select,
                "SELECT DISTINCT shows which values exist",
                "Write GROUP BY with COUNT(*), or COUNT(DISTINCT x).",
            )
        only(select, _TOP, "")
        for window in select.find_all(exp.Window):
            raise refuse(window, *why_not(window))
        self.select, self.public = select, public
        relation, scope = Relations(public).bind(select, {})
        if relation.carried is None:
            raise refuse(
                select,
                "only public tables are read, and no privacy is needed for these",
                "Query them directly.",
            )
        self.relation: Relation = relation
        self.scope: Scope = scope
        self.row = Binder(scope)
        # the keys as bound, before `_key` restricts them to whole or finite numbers
        self.grouped: list[Expr] = []
        self.keys = self._keys()
        self.find_aggregate = Aggregates(self.row, relation.unit_keys, relation.nullable_unit_keys)
        self.aggregates: list[Aggregate] = []
        # binds what is computed after aggregation
        self.post = Binder(self._loose_column, self._special)
        self.outputs: list[tuple[str, Expr]] = []

    def plan(self) -> Plan:
        for item in self.select.expressions:
            name, inner = named(item)
            if isinstance(item, exp.Star):
                raise refuse(
                    item, "* stands for rows, which are never released", "Name aggregates, such as COUNT(*)."
                )
            if name.lower() in (earlier.lower() for earlier, _ in self.outputs):
                raise refuse(item, f"two columns are called {name!r}", "Give one another name with AS.")
            self.outputs.append((name, self._output(inner)))
        having = self.select.args.get("having")
        condition = None if having is None else self._condition(having.this)
        order = tuple(self._order())
        limit, offset = (self._row_limit(clause) for clause in ("limit", "offset"))
        if len(self.aggregates) > MAX_AGGREGATES:
            raise refuse(
                self.select,
                f"more than {MAX_AGGREGATES} aggregates are asked for",
                "Ask in several queries.",
            )
        if not self.aggregates:
            raise refuse(
                self.select,
                "no aggregate is asked for, and rows never leave",
                "Write COUNT(*), SUM(x), AVG(x), ...",
            )
        return Plan(
            source=self.relation.node,
            public=self.public,
            keys=tuple(self.keys),
            aggregates=tuple(self.aggregates),
            outputs=tuple(self.outputs),
            having=condition,
            order=order,
            limit=limit,
            offset=offset or 0,
        )

    def _keys(self) -> list[GroupKey]:
        """Bind GROUP BY."""
        group = self.select.args.get("group")
        if group is None:
            return []
        only(group, {"expressions", "all"}, "in GROUP BY")
        key_nodes = group.expressions
        # GROUP BY ALL: by every item that is no aggregate
        if group.args.get("all"):
            items = [named(item)[1] for item in self.select.expressions]
            key_nodes = [item for item in items if not any(True for _ in item.find_all(exp.AggFunc))]
        keys = [self._key(by_position(node, self.select)) for node in key_nodes]
        # 0 if the values of any key are not public: groups are then found in the data, and not listed here
        groups = math.prod(len(k.values or ()) for k in keys)
        if groups > MAX_GROUPS:
            raise refuse(
                group,
                f"these keys have {groups:,} public groups together, more than {MAX_GROUPS:,}",
                "Group by fewer keys, or by coarser bins: FLOOR(x / 10), DATE_TRUNC('month', d).",
            )
        return keys

    def _key(self, node: Node) -> GroupKey:
        """Bind one key of GROUP BY, which may not identify a unit."""
        if any(True for _ in node.find_all(exp.AggFunc)):
            raise refuse(node, "GROUP BY cannot hold an aggregate")
        bound = self.row(node)
        if bound in self.relation.unit_keys | self.relation.nullable_unit_keys:
            raise refuse(
                node,
                "groups of one unit each would show everyone",
                "Group by something that many have in common.",
            )
        if isinstance(bound, Literal):
            raise refuse(node, "GROUP BY needs something that differs between rows")
        self.grouped.append(bound)
        # A number of an integer type may still have fractions in some rows (`domain.ValueDomain`), and others
        # may be infinite: here these become NULL, and their rows are in no group.
        if bound.domain.integer and not bound.domain.integral and bound.domain.values is None:
            bound = make("exactly whole", bound)
        elif bound.domain.kind is Kind.NUMBER and not bound.domain.finite:
            bound = make("finite", bound)
        values = bound.domain.members(MAX_GROUPS)
        if values is None and bound.domain.kind is not Kind.TEXT and not _countable(bound.domain):
            raise refuse(
                node,
                f"the values of this {bound.domain.kind} are not a short public list, so there are "
                f"no public groups",
                "Make bins: FLOOR(x / 10), WIDTH_BUCKET(x, low, high, n), DATE_TRUNC('month', d); or "
                "have it declared as categories.",
            )
        return GroupKey(bound, values, node.sql(dialect="duckdb"))

    def _output(self, node: Node) -> Expr:
        """Bind one item of SELECT as an expression over keys and aggregates."""
        bound = self._computable(node, self.post(node))
        if not any(isinstance(part, OutputReference) for part in walk(bound)):
            raise refuse(node, "a constant is no answer", "Leave it out.")
        return bound

    def _computable(self, node: Node, bound: Expr, what: str = "this", advice: str = "") -> Expr:
        """Return an expression over keys and aggregates; refuse one that Python does not compute, and to
        compute with APPROX_TOP_K, whose value is a list: no operator takes one."""
        parts = walk(bound) if isinstance(bound, Call) else ()
        if any(
            isinstance(part, OutputReference)
            and part.kind == "aggregate"
            and self.aggregates[part.index].function == "top"
            for part in parts
        ):
            raise refuse(
                node,
                "APPROX_TOP_K is a list, with which nothing can be computed",
                "Write MODE(x) for one value.",
            )
        if not computable(bound):
            raise refuse(node, f"{what} cannot be computed from released numbers", advice)
        return bound

    def _condition(self, node: Node) -> Expr:
        """Bind HAVING over keys and aggregates."""
        advice = "Conditions on rows belong into WHERE."
        return self._computable(node, self.post.condition(node), "this condition", advice)

    def _order(self) -> list[tuple[Expr, bool]]:
        """Bind ORDER BY."""
        clause = self.select.args.get("order")
        if clause is None:
            return []
        keys = []
        for item in clause.expressions:
            only(item, {"this", "desc", "nulls_first"}, "in ORDER BY")
            if item.args.get("nulls_first"):
                raise refuse(item, "NULLS FIRST cannot be answered", "Missing values come last.")
            if isinstance(item.this, exp.Var) and item.this.name.upper() == "ALL":
                keys += [(bound, bool(item.args.get("desc"))) for _, bound in self.outputs]
                continue
            bound = self._computable(item, self.post(by_position(item.this, self.select)))
            keys.append((bound, bool(item.args.get("desc"))))
        return keys

    def _row_limit(self, clause: str) -> int | None:
        """Return the number of LIMIT or OFFSET; None without one."""
        node = self.select.args.get(clause)
        if node is None:
            return None
        inner = node.expression
        if not (
            isinstance(inner, exp.Literal)
            and not inner.is_string
            and inner.name.isdigit()
            and len(inner.name) < 16
            and not any(arg for name, arg in node.args.items() if name != "expression")
        ):
            raise refuse(node, f"{clause.upper()} needs a whole number, and nothing else")
        return int(inner.name)

    def _loose_column(self, node: exp.Column) -> Expr:
        """Resolve a column outside aggregates, which must be the name of an output; refuse any other."""
        for name, bound in self.outputs:
            if not node.table and name.lower() == node.name.lower():
                return bound
        # raises the error for a column that does not exist
        self.scope(node)
        raise refuse(
            node,
            f"column {node.name!r} is neither grouped nor aggregated",
            "Add it to GROUP BY, or aggregate it.",
        )

    def _special(self, node: Node) -> Expr | None:
        """Bind an aggregate, a group key or the name of an output in SELECT, HAVING and ORDER BY; None for
        any other node, which `Binder` binds itself."""
        aggregate = self.find_aggregate(node)
        if aggregate is not None:
            if aggregate not in self.aggregates:
                self.aggregates.append(aggregate)
            return OutputReference("aggregate", self.aggregates.index(aggregate), result_of(aggregate))
        if isinstance(node, exp.Literal | exp.Null | exp.Boolean) or any(
            True for _ in node.find_all(exp.AggFunc, exp.Filter)
        ):
            return None
        if isinstance(node, exp.Column) and not node.table:
            for name, bound in self.outputs:
                if name.lower() == node.name.lower() and name.lower() not in self.scope_names():
                    return bound
        if node.find(exp.Column) is not None and self._all_in_scope(node):
            bound = self.row(node)
            if bound in self.grouped:
                index = self.grouped.index(bound)
                return OutputReference("key", index, self.keys[index].expression.domain)
        return None

    def _all_in_scope(self, node: Node) -> bool:
        """Return whether all columns in an expression are columns of the tables that are read."""
        names = self.scope_names()
        return all(column.name.lower() in names for column in node.find_all(exp.Column))

    def scope_names(self) -> set[str]:
        """Return the names of all columns that are read, which `Scope` holds in lower case."""
        return {name for columns in self.scope.tables.values() for name in columns}


def _countable(domain: ValueDomain) -> bool:
    """Return whether numbers without a public list can be keys of private groups: they must be whole numbers,
    and their declared bounds, if any, so small that no two of them are the same DOUBLE to the engine."""
    ends = [abs(end) for end in (domain.low, domain.high) if math.isfinite(end)]
    return domain.kind is Kind.NUMBER and domain.integral and all(end < EXACT for end in ends)
