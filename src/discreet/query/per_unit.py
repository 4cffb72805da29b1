"""Binds sub-queries that GROUP BY the unit of privacy (a person): each unit's rows are aggregated by
themselves, exactly and without noise, so that the result has one row per unit and further key.

To bind is to translate sqlglot's syntax tree into the nodes of `nodes` and `sources`, and to refuse what has
no rule. An aggregate over the rows of several units is never computed here, because one unit's rows would
then change the value of another.
"""

from __future__ import annotations

import math
from dataclasses import replace

from sqlglot import exp

from .._public import Text
from .binder import Binder
from .clauses import by_position, named, only, refuse_further_arguments
from .domain import Kind, ValueDomain, declared, number
from .errors import Node, refuse
from .nodes import Column, Expr, Literal, make
from .scope import Scope
from .sources import Filtered, From, Relation, UnitAggregate


class PerUnitBinder:
    """Binds a sub-query that groups by the unit.

    `relation`: what the sub-query reads; `scope`: the names of its columns; `prefix`: tells the result's
    columns from those of other tables; `unit`: the declared column of the unit, for messages. The result has
    one row per unit and combination of keys, with these columns: {prefix}u the unit as the engine has it,
    {prefix}w the unit as text, {prefix}k0, k1, ... the other keys, {prefix}a0, a1, ... the aggregates
    (`scan.source_sql` writes them).
    """

    def __init__(self, relation: Relation, scope: Scope, prefix: str, unit: str | None) -> None:
        self.relation, self.scope, self.prefix, self.unit = relation, scope, prefix, unit
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
        if self.relation.unit is None or not any(key in self.relation.unit_keys for key in grouped):
            raise refuse(
                select if group is None else group,
                "a sub-query that aggregates must keep the unit of privacy",
                f"Add {self.unit} to its GROUP BY."
                if self.unit
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
        assert self.relation.unit is not None
        node: From = UnitAggregate(
            self.relation.node, self.prefix, self.relation.unit, tuple(self.keys), tuple(self.aggregates)
        )
        if condition is not None:
            node = Filtered(node, condition)
        return Relation(node, columns, f"{self.prefix}u", frozenset({self._unit}), bool(self.keys))

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
    """Return the domain of an aggregate of one unit; refuse arguments that it is not for.

    Counts and sums have no upper bound, as the number of a unit's rows is not declared: a SUM or AVG over
    them in the outer query needs CLAMP.
    """
    if function in ("count", "distinct"):
        return replace(number(0, math.inf, integral=True, nullable=False), integer=True)
    assert argument is not None
    domain = argument.domain
    if domain.kind is Kind.DATE and function in ("min", "max"):
        return replace(domain, values=None)
    if domain.kind is not Kind.NUMBER:
        raise refuse(node, f"{function.upper()} needs a number, and this is a {domain.kind}")
    if not domain.bounded:
        raise refuse(
            node, f"{function.upper()} needs a number with a known range", "Write CLAMP(x, low, high)."
        )
    if function == "sum":
        low, high = (0.0 if domain.low >= 0 else -math.inf), (0.0 if domain.high <= 0 else math.inf)
        total = number(low, high, integral=domain.integral, nullable=domain.nullable)
        return replace(total, integer=domain.integer)
    if function == "avg":
        return replace(domain, integral=False, integer=False, values=None)
    return replace(domain, values=None)
