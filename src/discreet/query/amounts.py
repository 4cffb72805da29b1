"""Writes sums as SQL: an argument in whole steps of its grid (`measures.grid`), the sum over the rows of a
group, and the limited amount that one unit adds to it."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

from sqlglot import exp

from .._public import Bounds
from ..tables import semantics
from .errors import Node
from .measures import Bounding, Measure
from .operators import double, if_
from .scan import binary, coalesced, convert, integer_literal


class Argument(NamedTuple):
    """Holds the argument of an aggregate as SQL: `node` times `times` is its value in steps of the grid.

    `ends`: the least and the largest value in steps to which it is clipped as it is written; None where that
    is not known.
    """

    node: Node
    times: int = 1
    ends: tuple[int, int] | None = None

    @property
    def largest(self) -> int | None:
        """A bound on the absolute value of `node`; None where none is known."""
        return None if self.ends is None else max(map(abs, self.ends)) // self.times


def limited(x: Argument, low: int, high: int) -> Argument:
    """Return an argument clipped to [`low`, `high`] steps, unchanged where it is so already; NULL stays
    NULL."""
    if x.ends is not None and low <= x.ends[0] and x.ends[1] <= high:
        return x
    least_of, most = (integer_literal(end) for end in (-(-low // x.times), high // x.times))
    cases = [
        (exp.LT(this=x.node.copy(), expression=least_of), least_of.copy()),
        (exp.GT(this=x.node.copy(), expression=most), most.copy()),
    ]
    node = exp.Case(ifs=[exp.If(this=c, true=v) for c, v in cases], default=x.node)
    return Argument(node, x.times, (low, high))


def aggregate_of(m: Measure, x: Argument | None) -> Node:
    """Return the SQL aggregate of a measure with argument `x`: over the rows of a group, or over one unit's
    rows in a group where units have many rows.

    `m.center` is subtracted once per row that has a value.
    """
    if m.kind in ("rows", "units") and x is None:
        return exp.Count(this=exp.Star())
    assert x is not None
    if m.kind in ("present", "units"):
        return exp.Count(this=x.node.copy())
    if m.kind == "square":
        steps = x.node.copy() if x.times == 1 else binary(exp.Mul, x.node.copy(), integer_literal(x.times))
        centered = binary(exp.Sub, steps, integer_literal(m.center)) if m.center else steps
        largest = None if x.largest is None else (x.largest * x.times + abs(m.center)) ** 2
        return coalesced(wide_sum(binary(exp.Mul, centered, centered.copy()), largest), integer_literal(0))
    total = coalesced(wide_sum(x.node.copy(), x.largest), integer_literal(0))
    if x.times > 1:
        total = binary(exp.Mul, total, integer_literal(x.times))
    if not m.center:
        return total
    return binary(exp.Sub, total, binary(exp.Mul, exp.Count(this=x.node.copy()), integer_literal(m.center)))


def in_steps(x: Node, step: Fraction) -> Node:
    """Divide a number by the step of its grid, exactly: `step` is a power of two."""
    return x if step == 1 else semantics.Times(this=x, expression=double(float(1 / step)))


def column_in_steps(x: Node, fact: Bounds, step: Fraction) -> Node:
    """Return a stored column in whole steps, clipped to its declared bounds.

    The result is that of `scan.cleaned` and `in_steps`, in one CASE: almost all rows are inside the
    bounds, and pass its first test.
    """
    low, high = bounds_in_steps(fact, step)
    number = convert(x, "double")
    # It rounds halves to even, as `bounds_in_steps` does: a value at a bound must not fall outside.
    steps = semantics.SafeNearestWhole(this=in_steps(number, step))
    beyond = if_(
        exp.GT(this=number.copy(), expression=double(float(fact.upper))),
        integer_literal(high),
        integer_literal(low),
    )
    cases = [
        (exp.Between(this=steps, low=integer_literal(low), high=integer_literal(high)), steps.copy()),
        (semantics.IsFinite(this=number.copy()), beyond),
    ]
    missing = exp.Null() if fact.nullable else integer_literal(low)
    return exp.Case(ifs=[exp.If(this=c, true=v) for c, v in cases], default=missing)


def bounds_in_steps(fact: Bounds, step: Fraction) -> tuple[int, int]:
    """Return the ends of a declared range in whole steps, halves rounded to even."""
    low, high = (round(Fraction(float(end)) / step) for end in (fact.lower, fact.upper))
    return low, high


def clipped_integer(x: Node, fact: Bounds) -> Node:
    """Return an integer column clipped to its declared bounds, as BIGINT."""
    low, high = integer_literal(int(fact.lower)), integer_literal(int(fact.upper))
    # Where the column is declared not to be NULL, a NULL counts as the lower bound.
    inside = convert(least(greatest(x.copy(), low), high), "bigint")
    return if_(exp.Not(this=exp.Is(this=x, expression=exp.Null())), inside) if fact.nullable else inside


def largest_amount(m: Measure, bounding: Bounding) -> int:
    """Return a bound on the absolute value of `amount_of_unit`."""
    return 1 if m.kind == "units" else max(map(abs, m.limits(bounding)))


def amount_of_unit(m: Measure, total: Node, x: Argument | None, bounding: Bounding) -> Node:
    """Return the amount that one unit adds to one group, within `m.limits(bounding)` whatever its rows hold.

    `total` is the unit's `aggregate_of` in the group. A scaled measure of a unit with more than
    `bounding.rows` rows is multiplied by rows / count, rounded towards zero, before it is clipped.
    """
    if m.kind == "units":
        return (
            integer_literal(1)
            if x is None
            else if_(
                exp.GT(this=total, expression=integer_literal(0)), integer_literal(1), integer_literal(0)
            )
        )
    low, high = m.limits(bounding)
    if m.scaled:
        assert x is not None
        rows, count = integer_literal(bounding.rows), exp.Count(this=x.node.copy())
        times_rows = binary(
            exp.Mul, convert(total.copy(), "wide"), integer_literal(bounding.rows * m.parts_per_step)
        )
        scaled_down = semantics.TruncatingDivide(this=times_rows, expression=count.copy())
        unscaled = (
            total
            if m.parts_per_step == 1
            else binary(exp.Mul, convert(total, "wide"), integer_literal(m.parts_per_step))
        )
        total = if_(exp.GT(this=count, expression=rows), scaled_down, unscaled)
    clipped = least(total if low == 0 else greatest(total, integer_literal(low)), integer_literal(high))
    return convert(clipped, "bigint" if max(-low, high) < 1 << 62 else "wide")


def wide_sum(node: Node, largest: int | None = None) -> Node:
    """Return the exact sum of whole numbers, none of which is further from zero than `largest`."""
    return semantics.WideSum(this=node, largest=largest)


def least(a: Node, b: Node) -> Node:
    """Return the smaller of two numbers."""
    return semantics.Least(expressions=[a, b])


def greatest(a: Node, b: Node) -> Node:
    """Return the larger of two numbers."""
    return semantics.Greatest(expressions=[a, b])
