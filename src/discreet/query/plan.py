"""The checked plan of one query: what is read, how it is grouped, which aggregates are bought, and what is done with them for free.

Built only from our own nodes. `key` is stable text: two queries that differ in layout, names of tables or letter case have one key.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from sqlglot import exp

from .._public import Public
from .binder import Binder, Scope
from .domain import Domain, Kind, number
from .errors import Node, Refusal, refuse
from .nodes import Call, Expr, Literal, Output, computable, key, make, walk
from .parse import parse
from .relation import Filtered, From, Joined, PerUnit, Projected, Relation, Relations, Scan, by_position, named, only

MOST_GROUPS = 1 << 20
MOST_AGGREGATES = 100
EXTREME = Fraction(1, 100)  # MIN and MAX are this quantile and its mirror image


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One aggregate as asked: count, distinct, units, sum, avg, var_pop, var_samp, stddev_pop, stddev_samp, quantile, mode or top.

    `parameter`: the quantile, or how many of the most common values.
    """

    function: str
    argument: Expr | None = None
    parameter: Fraction | None = None


@dataclass(frozen=True, slots=True)
class Key:
    """A column of GROUP BY, with all values it can have where these are public."""

    expression: Expr
    values: tuple[object, ...] | None


@dataclass(frozen=True, slots=True)
class Plan:
    """`unit`: the raw column that says whose a row is; `many`: whether one unit may have several rows."""

    source: From
    unit: str
    many: bool
    keys: tuple[Key, ...]
    aggregates: tuple[Aggregate, ...]
    outputs: tuple[tuple[str, Expr], ...]
    having: Expr | None = None
    order: tuple[tuple[Expr, bool], ...] = ()  # expression, descending
    limit: int | None = None
    offset: int = 0

    @property
    def known_keys(self) -> bool:
        """Whether all groups are public."""
        return all(k.values is not None for k in self.keys)

    @property
    def groups(self) -> int | None:
        """How many groups there are, if that is public."""
        total = 1
        for k in self.keys:
            if k.values is None:
                return None
            total *= len(k.values)
        return total

    @property
    def key(self) -> str:
        """Stable text of all that decides the answer, apart from the price."""
        parts = [_from_key(self.source), f"keys {[(key(k.expression), k.values) for k in self.keys]}"]
        parts += [
            f"{a.function}({'*' if a.argument is None else key(a.argument)}; {a.parameter})" for a in self.aggregates
        ]
        parts += [f"{name} = {key(e)}" for name, e in self.outputs]
        parts.append(f"having {None if self.having is None else key(self.having)}")
        parts.append(f"order {[(key(e), d) for e, d in self.order]} limit {self.limit} offset {self.offset}")
        return "\n".join(parts)


def plan(text: str, public: Public) -> Plan:
    """The checked plan of a query, or a QueryError that says what to write instead."""
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
    ):  # a shape of syntax tree that no rule expects
        raise refuse(select, "this query is put in a way that is not understood", "See docs/sql.md.") from None


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
    def __init__(self, select: exp.Select, public: Public) -> None:
        if select.args.get("distinct"):
            raise refuse(
                select,
                "SELECT DISTINCT shows which values exist",
                "Write GROUP BY with COUNT(*), or COUNT(DISTINCT x).",
            )
        only(select, _TOP, "")
        self.select, self.public = select, public
        relation, scope = Relations(public).bind(select, {})
        if relation.unit is None:
            raise refuse(
                select, "only public tables are read, and no privacy is needed for these", "Query them directly."
            )
        self.relation: Relation = relation
        self.unit: str = relation.unit
        self.scope: Scope = scope
        self.row = Binder(scope)
        self.keys = self._keys()
        self.aggregates: list[Aggregate] = []
        self.post = Binder(self._loose_column, self._special)
        self.outputs: list[tuple[str, Expr]] = []

    def plan(self) -> Plan:
        for item in self.select.expressions:
            name, inner = named(item)
            if isinstance(item, exp.Star):
                raise refuse(item, "* stands for rows, which never leave", "Name aggregates, such as COUNT(*).")
            if name.lower() in (known.lower() for known, _ in self.outputs):
                raise refuse(item, f"two columns are called {name!r}", "Give one another name with AS.")
            self.outputs.append((name, self._output(inner)))
        having = self.select.args.get("having")
        condition = None if having is None else self._condition(having.this)
        order = tuple(self._order())
        limit, offset = (self._whole(clause) for clause in ("limit", "offset"))
        if len(self.aggregates) > MOST_AGGREGATES:
            raise refuse(
                self.select, f"more than {MOST_AGGREGATES} aggregates are asked for", "Ask in several queries."
            )
        if not self.aggregates:
            raise refuse(
                self.select, "no aggregate is asked for, and rows never leave", "Write COUNT(*), SUM(x), AVG(x), ..."
            )
        return Plan(
            source=self.relation.node,
            unit=self.unit,
            many=self.relation.many,
            keys=tuple(self.keys),
            aggregates=tuple(self.aggregates),
            outputs=tuple(self.outputs),
            having=condition,
            order=order,
            limit=limit,
            offset=offset or 0,
        )

    def _keys(self) -> list[Key]:
        group = self.select.args.get("group")
        if group is None:
            return []
        only(group, {"expressions"}, "in GROUP BY")
        return [self._key(by_position(node, self.select)) for node in group.expressions]

    def _key(self, node: Node) -> Key:
        if any(True for _ in node.find_all(exp.AggFunc)):
            raise refuse(node, "GROUP BY cannot hold an aggregate")
        bound = self.row(node)
        if bound in self.relation.whose:
            raise refuse(
                node, "groups of one unit each would show everyone", "Group by something that many have in common."
            )
        if isinstance(bound, Literal):
            raise refuse(node, "GROUP BY needs something that differs between rows")
        values = bound.domain.members(MOST_GROUPS)
        if values is None and bound.domain.kind in (Kind.NUMBER, Kind.DATE):
            raise refuse(
                node,
                f"the values of this {bound.domain.kind} are not a short public list, so there are no public groups",
                "Make bins: FLOOR(x / 10), WIDTH_BUCKET(x, low, high, n), DATE_TRUNC('month', d); or have it declared as categories.",
            )
        return Key(bound, values)

    def _output(self, node: Node) -> Expr:
        bound = self.post(node)
        if not computable(bound):
            raise refuse(node, "this cannot be computed from released numbers")
        if not any(isinstance(part, Output) for part in walk(bound)):
            raise refuse(node, "a constant is no answer", "Leave it out.")
        return bound

    def _condition(self, node: Node) -> Expr:
        bound = self.post.condition(node)
        if not computable(bound):
            raise refuse(
                node, "this condition cannot be computed from released numbers", "Conditions on rows belong into WHERE."
            )
        return bound

    def _order(self) -> list[tuple[Expr, bool]]:
        clause = self.select.args.get("order")
        if clause is None:
            return []
        found = []
        for item in clause.expressions:
            only(item, {"this", "desc", "nulls_first"}, "in ORDER BY")
            bound = self.post(by_position(item.this, self.select))
            if not computable(bound):
                raise refuse(item, "this cannot be computed from released numbers")
            found.append((bound, bool(item.args.get("desc"))))
        return found

    def _whole(self, clause: str) -> int | None:
        node = self.select.args.get(clause)
        if node is None:
            return None
        inner = node.expression
        if not (
            isinstance(inner, exp.Literal) and not inner.is_string and inner.name.isdigit() and len(inner.name) < 16
        ):
            raise refuse(node, f"{clause.upper()} needs a whole number")
        return int(inner.name)

    def _loose_column(self, node: exp.Column) -> Expr:
        for name, bound in self.outputs:
            if not node.table and name.lower() == node.name.lower():
                return bound
        self.scope(node)
        raise refuse(
            node, f"column {node.name!r} is neither grouped nor aggregated", "Add it to GROUP BY, or aggregate it."
        )

    def _special(self, node: Node) -> Expr | None:
        """Aggregates and group keys, as they appear in SELECT, HAVING and ORDER BY."""
        asked = self._aggregate(node)
        if asked is not None:
            if asked not in self.aggregates:
                self.aggregates.append(asked)
            return Output("aggregate", self.aggregates.index(asked), _result(asked))
        if isinstance(node, exp.Literal | exp.Null | exp.Boolean) or any(
            True for _ in node.find_all(exp.AggFunc, exp.Filter)
        ):
            return None
        if isinstance(node, exp.Column) and not node.table:
            for name, bound in self.outputs:
                if name.lower() == node.name.lower() and name.lower() not in self.scope_names():
                    return bound
        if any(isinstance(part, exp.Column) for part in node.find_all(exp.Column)) and self._all_known(node):
            bound = self.row(node)
            for index, k in enumerate(self.keys):
                if k.expression == bound:
                    return Output("key", index, bound.domain)
        return None

    def _all_known(self, node: Node) -> bool:
        names = self.scope_names()
        return all(column.name.lower() in names for column in node.find_all(exp.Column))

    def scope_names(self) -> set[str]:
        return {name for columns in self.scope.tables.values() for name in columns}

    def _aggregate(self, node: Node) -> Aggregate | None:
        if isinstance(node, exp.Filter):
            return self._filtered(node)
        if isinstance(node, exp.WithinGroup):
            ordered = node.expression.expressions
            if isinstance(node.this, exp.PercentileCont | exp.PercentileDisc) and len(ordered) == 1:
                return self._quantile(node, ordered[0].this, node.this.this)
            raise refuse(node, "WITHIN GROUP is for PERCENTILE_CONT(q) WITHIN GROUP (ORDER BY x)")
        rule = _AGGREGATES.get(type(node))
        return None if rule is None else rule(self, node)

    def _filtered(self, node: exp.Filter) -> Aggregate:
        inner = self._aggregate(node.this)
        if inner is None or inner.function == "units":
            raise refuse(node, "FILTER follows an aggregate of rows", "For COUNT(DISTINCT unit), filter with WHERE.")
        condition = self.row.condition(node.expression.this)
        kept: Expr = Literal(1) if inner.argument is None else inner.argument
        return Aggregate(inner.function, make("case", condition, kept, Literal(None)), inner.parameter)

    def _count(self, node: exp.Count) -> Aggregate:
        if node.expressions:
            raise refuse(node, "COUNT takes one column")
        if node.this is None or isinstance(node.this, exp.Star):
            return Aggregate("count")
        if isinstance(node.this, exp.Distinct):
            if len(node.this.expressions) != 1:
                raise refuse(node, "COUNT(DISTINCT ...) takes one column")
            bound = self.row(node.this.expressions[0])
            return Aggregate("units") if bound in self.relation.whose else Aggregate("distinct", bound)
        bound = self.row(node.this)
        return Aggregate("count", bound if bound.domain.nullable else None)

    def _number(self, node: Node, argument: Node, function: str) -> Expr:
        if isinstance(argument, exp.Distinct):
            raise refuse(node, f"{function}(DISTINCT x) depends on which values exist", "Leave DISTINCT out.")
        bound = self.row(argument)
        if bound.domain.kind is Kind.BOOLEAN:
            bound = make("number", bound)
        if bound.domain.kind is not Kind.NUMBER:
            raise refuse(argument, f"{function} needs a number, and this is a {bound.domain.kind}")
        if not bound.domain.bounded:
            raise refuse(
                argument,
                f"{function} needs a number with a known range, and one person could move this without limit",
                "Write CLAMP(x, low, high), with limits known without looking at the data.",
            )
        if bound.domain.low == bound.domain.high:
            raise refuse(argument, f"{function} of something that is always {bound.domain.low:g}", "Use COUNT.")
        return bound

    def _quantile(self, node: Node, argument: Node, at: Node | None) -> Aggregate:
        q = None
        if isinstance(at, exp.Literal) and not at.is_string:
            try:
                q = Fraction(at.name)
            except (ValueError, ZeroDivisionError):
                q = None
        if q is None or not 0 < q < 1 or q.denominator > 10**6:
            raise refuse(
                node,
                "a quantile needs a fixed number strictly between 0 and 1",
                "Ask for several quantiles one by one.",
            )
        return Aggregate("quantile", self._number(node, argument, "a quantile"), q)

    def _fixed_quantile(self, node: Node, q: Fraction) -> Aggregate:
        return Aggregate("quantile", self._number(node, node.this, node.key.upper()), q)

    def _most_common(self, node: Node, k: int) -> Aggregate:
        bound = self.row(node.this)
        values = bound.domain.members(1 << 16)
        if values is None:
            raise refuse(
                node,
                "the most common value is chosen from a public list, and none is declared",
                "Group by it and count.",
            )
        if not 1 <= k <= len(values):
            raise refuse(node, f"k must be between 1 and the {len(values)} possible values")
        return Aggregate("mode" if k == 1 and isinstance(node, exp.Mode) else "top", bound, Fraction(k))

    def _top(self, node: exp.ApproxTopK) -> Aggregate:
        k = node.expression
        if not (isinstance(k, exp.Literal) and k.name.isdigit()):
            raise refuse(node, "APPROX_TOP_K(x, k) needs a fixed k")
        return self._most_common(node, int(k.name))

    def _moments(self, node: Node, function: str) -> Aggregate:
        return Aggregate(function, self._number(node, node.this, node.key.upper()))

    def _count_if(self, node: exp.CountIf) -> Aggregate:
        return Aggregate("count", make("case", self.row.condition(node.this), Literal(1), Literal(None)))


_AGGREGATES: dict[type, Callable[[_Planner, Any], Aggregate]] = {
    exp.Count: _Planner._count,
    exp.CountIf: _Planner._count_if,
    exp.Sum: lambda self, node: self._moments(node, "sum"),
    exp.Avg: lambda self, node: self._moments(node, "avg"),
    exp.Variance: lambda self, node: self._moments(node, "var_samp"),
    exp.VariancePop: lambda self, node: self._moments(node, "var_pop"),
    exp.Stddev: lambda self, node: self._moments(node, "stddev_samp"),
    exp.StddevSamp: lambda self, node: self._moments(node, "stddev_samp"),
    exp.StddevPop: lambda self, node: self._moments(node, "stddev_pop"),
    exp.Median: lambda self, node: self._fixed_quantile(node, Fraction(1, 2)),
    exp.Min: lambda self, node: self._fixed_quantile(node, EXTREME),
    exp.Max: lambda self, node: self._fixed_quantile(node, 1 - EXTREME),
    exp.PercentileCont: lambda self, node: self._quantile(node, node.this, node.expression),
    exp.PercentileDisc: lambda self, node: self._quantile(node, node.this, node.expression),
    exp.Quantile: lambda self, node: self._quantile(node, node.this, node.args.get("quantile")),
    exp.ApproxQuantile: lambda self, node: self._quantile(node, node.this, node.args.get("quantile")),
    exp.Mode: lambda self, node: self._most_common(node, 1),
    exp.ApproxTopK: _Planner._top,
}


def _result(asked: Aggregate) -> Domain:
    """What is known of an aggregate's noisy result: noise can take a number anywhere."""
    if asked.function in ("mode", "quantile") and asked.argument is not None:
        return asked.argument.domain
    if asked.function == "top":
        return Domain(kind=Kind.TEXT)
    return number(-1e300, 1e300)


def _from_key(node: From) -> str:
    if isinstance(node, Scan):
        return f"scan({node.table} as {node.prefix})"
    if isinstance(node, Filtered):
        return f"filter({_from_key(node.child)}; {key(node.condition)})"
    if isinstance(node, Joined):
        on = ", ".join(key(c) for c in node.on)
        return f"{node.kind} join({_from_key(node.left)}; {_from_key(node.right)}; {on})"
    if isinstance(node, Projected):
        return f"project({_from_key(node.child)} as {node.prefix}; {', '.join(key(c) for c in node.columns)})"
    assert isinstance(node, PerUnit)
    aggregates = ", ".join(f"{f}({'*' if a is None else key(a)})" for f, a in node.aggregates)
    return f"per unit({_from_key(node.child)} as {node.prefix}; {', '.join(key(k) for k in node.keys)}; {aggregates})"


__all__ = ["Aggregate", "Call", "Key", "Plan", "plan"]
