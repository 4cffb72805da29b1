"""Recognizes the aggregates of a query, and checks what must be public about their arguments: a range, or a
list of values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from sqlglot import exp

from ..core.domain import Kind, ValueDomain, number
from ..core.errors import Node, refuse
from ..core.nodes import Expr, Literal, key, make
from .binder import Binder, parse_number, refuse_further_arguments

# MIN is answered by the 1% quantile and MAX by the 99% quantile, because the extremes themselves are values
# of single rows. Not tuned.
EXTREME = Fraction(1, 100)
# The longest public list of values that MODE and APPROX_TOP_K choose from. Not tuned.
MAX_LISTED = 1 << 16
# The largest denominator of the level of a quantile: six decimals. Not tuned.
MAX_DENOMINATOR = 10**6


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One aggregate of a query. `function` is count, distinct, units, sum, avg, var_pop, var_samp,
    stddev_pop, stddev_samp, covar_pop, covar_samp, corr, quantile, mode or top.

    `argument`: the expression that is aggregated; None for COUNT(*). `parameter`: the level q of a
    quantile (1/2 for the median), or how many of the most common values mode and top return. `second`: the
    other argument of a covariance or correlation. "units" counts units of privacy (people): all of them, or
    with an argument those that have a row where it is not NULL.
    """

    function: str
    argument: Expr | None = None
    parameter: Fraction | None = None
    second: Expr | None = None

    @property
    def key(self) -> list[str]:
        """The texts that identify the aggregate in `Plan.key`, under which answers are stored."""
        parts = ["*" if part is None else key(part) for part in (self.argument, self.second)]
        return [self.function, *parts, str(self.parameter)]


class Aggregates:
    """Recognizes aggregates of rows.

    `row` binds their arguments. `unit_keys` and `nullable_unit_keys`: expressions that equal the unit in
    every row, and those that equal the unit or are NULL (see `sources.Relation`).
    """

    def __init__(
        self, row: Binder, unit_keys: frozenset[Expr], nullable_unit_keys: frozenset[Expr] = frozenset()
    ) -> None:
        self.row, self.unit_keys, self.nullable_unit_keys = row, unit_keys, nullable_unit_keys

    def __call__(self, node: Node) -> Aggregate | None:
        """Return the aggregate that a syntax node asks for; None if the node is no aggregate."""
        if isinstance(node, exp.Filter):
            return self._bind_filter(node)
        if isinstance(node, exp.WithinGroup):
            ordered = node.expression.expressions
            if (
                isinstance(node.this, exp.PercentileCont | exp.PercentileDisc)
                and len(ordered) == 1
                and not node.this.args.get("expression")
            ):
                return self._quantile(
                    node, ordered[0].this, node.this.this, down=bool(ordered[0].args.get("desc"))
                )
            raise refuse(node, "WITHIN GROUP is for PERCENTILE_CONT(q) WITHIN GROUP (ORDER BY x)")
        rule = _AGGREGATES.get(type(node))
        if rule is None:
            return None
        refuse_further_arguments(node)
        return rule(self, node)

    def _bind_filter(self, node: exp.Filter) -> Aggregate:
        """Bind an aggregate with FILTER: its arguments become NULL in rows that fail the condition."""
        inner = self(node.this)
        if inner is None:
            raise refuse(node, "FILTER follows an aggregate of rows")
        condition = self.row.condition(node.expression.this)
        counted: Expr = Literal(1) if inner.argument is None else inner.argument
        limited = make("case", condition, counted, Literal(None))
        second = None if inner.second is None else make("case", condition, inner.second, Literal(None))
        return Aggregate(inner.function, limited, inner.parameter, second)

    def _count(self, node: exp.Count) -> Aggregate:
        """Bind COUNT(*), COUNT(x) and COUNT(DISTINCT x); COUNT(x) of an x that is never NULL is COUNT(*)."""
        if node.this is None or isinstance(node.this, exp.Star):
            return Aggregate("count")
        if isinstance(node.this, exp.Distinct):
            if len(node.this.expressions) != 1:
                raise refuse(node, "COUNT(DISTINCT ...) takes one column")
            return self._count_distinct(node.this.expressions[0])
        bound = self.row(node.this)
        return Aggregate("count", None if bound.domain.never_missing else bound)

    def _count_distinct(self, argument: Node) -> Aggregate:
        """Bind COUNT(DISTINCT x), also as APPROX_COUNT_DISTINCT(x); it counts units where x is the unit."""
        bound = self.row(argument)
        if bound in self.unit_keys:
            return Aggregate("units")
        return Aggregate("units" if bound in self.nullable_unit_keys else "distinct", bound)

    def _pair(self, node: Node, function: str) -> Aggregate:
        """Bind a covariance or correlation; a row counts where both arguments have a value."""
        first, second = (self._number(node, part, node.key.upper()) for part in (node.this, node.expression))
        return Aggregate(function, present_with(first, second), None, present_with(second, first))

    def _number(self, node: Node, argument: Node, function: str) -> Expr:
        """Bind an argument that must be a number with a known range; `function` is named in refusals."""
        if isinstance(argument, exp.Distinct):
            raise refuse(node, f"{function}(DISTINCT x) depends on which values exist", "Leave DISTINCT out.")
        bound = self.row(argument)
        if bound.domain.kind is Kind.BOOLEAN:
            bound = make("number", bound)
        if bound.domain.kind is not Kind.NUMBER:
            days = "Write DATEDIFF('day', DATE '2020-01-01', x)." if bound.domain.kind is Kind.DATE else ""
            raise refuse(argument, f"{function} needs a number, and this is a {bound.domain.kind}", days)
        if not bound.domain.bounded:
            raise refuse(
                argument,
                f"{function} needs a number with a known range, and one person could move this without limit",
                "Write CLAMP(x, low, high), with limits known without looking at the data.",
            )
        if bound.domain.low == bound.domain.high:
            raise refuse(
                argument, f"{function} of something that is always {bound.domain.low:g}", "Use COUNT."
            )
        return bound

    def _quantile(self, node: Node, argument: Node, level: Node | None, *, down: bool = False) -> Aggregate:
        """Bind the quantile of a fixed `level`; `down`: ORDER BY x DESC, so that the level counts from the
        largest value."""
        q, text = None, level.name if isinstance(level, exp.Literal) and not level.is_string else ""
        as_float = parse_number(text)
        # The float is compared first, because the exact fraction of 1e-300000000 would take gigabytes.
        if as_float is not None and 0 < as_float < 1:
            try:
                q = Fraction(text)
            except ValueError:
                q = None
        if q is None or not 0 < q < 1 or q.denominator > MAX_DENOMINATOR:
            raise refuse(
                node,
                "a quantile needs a fixed number strictly between 0 and 1, of at most six decimals",
                "Ask for several quantiles one by one.",
            )
        return Aggregate("quantile", self._number(node, argument, "a quantile"), 1 - q if down else q)

    def _fixed_quantile(self, node: Node, q: Fraction) -> Aggregate:
        """Bind MEDIAN, MIN or MAX, whose level `q` is not written in the query."""
        return Aggregate("quantile", self._number(node, node.this, node.key.upper()), q)

    def _most_common(self, node: Node, k: int) -> Aggregate:
        """Bind MODE or APPROX_TOP_K, chosen from a public list of values."""
        bound = self.row(node.this)
        values = bound.domain.members(MAX_LISTED)
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
        """Bind APPROX_TOP_K(x, k) with a fixed k."""
        written = node.expression
        fixed = isinstance(written, exp.Literal) and written.name.isdigit()
        k = parse_number(written.name) if fixed else None
        if k is None:
            raise refuse(node, "APPROX_TOP_K(x, k) needs a fixed k")
        return self._most_common(node, int(k))

    def _moments(self, node: Node, function: str) -> Aggregate:
        """Bind SUM, AVG, a variance or a standard deviation."""
        return Aggregate(function, self._number(node, node.this, node.key.upper()))

    def _count_if(self, node: exp.CountIf) -> Aggregate:
        """Bind COUNT_IF(condition) as COUNT(CASE WHEN condition THEN 1 END)."""
        return Aggregate("count", make("case", self.row.condition(node.this), Literal(1), Literal(None)))


_AGGREGATES: dict[type, Callable[[Aggregates, Any], Aggregate]] = {
    exp.Count: Aggregates._count,
    exp.CountIf: Aggregates._count_if,
    exp.Sum: lambda self, node: self._moments(node, "sum"),
    exp.Avg: lambda self, node: self._moments(node, "avg"),
    exp.Variance: lambda self, node: self._moments(node, "var_samp"),
    exp.VariancePop: lambda self, node: self._moments(node, "var_pop"),
    exp.Stddev: lambda self, node: self._moments(node, "stddev_samp"),
    exp.StddevSamp: lambda self, node: self._moments(node, "stddev_samp"),
    exp.StddevPop: lambda self, node: self._moments(node, "stddev_pop"),
    exp.CovarPop: lambda self, node: self._pair(node, "covar_pop"),
    exp.CovarSamp: lambda self, node: self._pair(node, "covar_samp"),
    exp.Corr: lambda self, node: self._pair(node, "corr"),
    exp.ApproxDistinct: lambda self, node: self._count_distinct(node.this),
    exp.Median: lambda self, node: self._fixed_quantile(node, Fraction(1, 2)),
    exp.Min: lambda self, node: self._fixed_quantile(node, EXTREME),
    exp.Max: lambda self, node: self._fixed_quantile(node, 1 - EXTREME),
    exp.PercentileCont: lambda self, node: self._quantile(node, node.this, node.expression),
    exp.PercentileDisc: lambda self, node: self._quantile(node, node.this, node.expression),
    exp.Quantile: lambda self, node: self._quantile(node, node.this, node.args.get("quantile")),
    exp.ApproxQuantile: lambda self, node: self._quantile(node, node.this, node.args.get("quantile")),
    exp.Mode: lambda self, node: self._most_common(node, 1),
    exp.ApproxTopK: Aggregates._top,
}


def present_with(x: Expr, other: Expr) -> Expr:
    """Return the expression that is `x` where `other` has a value too, and NULL elsewhere."""
    if other.domain.never_missing:
        return x
    # CLAMP makes NULL of an infinity or NaN, which counts as missing.
    finite = (
        other
        if other.domain.finite
        else make("clamp", other, Literal(other.domain.low), Literal(other.domain.high))
    )
    return make("case", make("not", make("null?", finite)), x, Literal(None))


def result_of(aggregate: Aggregate) -> ValueDomain:
    """Return the domain of an aggregate's noisy result. Noise can take a number anywhere, so that the range
    is infinite (1e300 is beyond `domain.HUGE`). Counts, and sums of integers, are integers in DuckDB, so that
    // cuts their quotients off."""
    if aggregate.function in ("mode", "quantile") and aggregate.argument is not None:
        return aggregate.argument.domain
    if aggregate.function == "top":
        return ValueDomain(kind=Kind.TEXT)
    integer = aggregate.function in ("count", "units", "distinct") or (
        aggregate.function == "sum" and aggregate.argument is not None and aggregate.argument.domain.integer
    )
    return replace(number(-1e300, 1e300), integer=integer)
