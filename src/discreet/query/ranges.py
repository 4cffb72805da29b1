"""Computes intervals for deviations and for whatever is computed from several noisy numbers, that hold at
every size.

Each noisy number is within its error with a known chance; what follows from them lies in what interval
arithmetic makes of these ranges.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from .._registry import described
from ..mechanisms.noise import IntegerGaussian, IntegerLaplace
from .domain import Kind, ValueDomain, constant, number
from .errors import Refusal
from .measures import PAIRED, Recipes
from .nodes import Expr, Literal, Output, walk
from .operators import OPERATORS
from .plan import Plan
from .release import limits_of

Noise = IntegerLaplace | IntegerGaussian
Formula = tuple[Any, ...]
_COUNTS = ("rows", "present", "units", "distinct")
# far more than the roundings of an expression add up to
_ROUNDING = 1e-12


@described("query.Range")
@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Holds a column that is computed from noisy numbers: `formula`, the numbers of each row as `released`,
    in steps, and their noises.

    A formula is ("literal", x), ("key", values by row), (operator, formulas...), or an aggregate: ("count" |
    "sum", which number, resolution), or (function, which numbers, their resolutions, shift, low, high) for
    averages and deviations.

    Guarantee: `interval` holds the value on the bounded data, where there is one, with probability
               `confidence` or more.
    Proof:     each of k noises exceeds its error with probability (1 - confidence) / k at most; if none does,
               all true numbers are in their ranges, counts are not negative, and at least 1 where they
               divide, or there is no value. The rules of operators (`rules`) and `_moments` enclose the
               result over all numbers in these ranges.
    """

    formula: Formula
    released: tuple[tuple[int, ...], ...]
    noises: tuple[Noise, ...]

    def interval(self, row: int, confidence: float) -> tuple[float, float] | None:
        each = 1 - (1 - confidence) / len(self.noises)
        errors = [noise.error(each) for noise in self.noises]
        boxes = [(n[row] - e, n[row] + e) for n, e in zip(self.released, errors, strict=True)]
        try:
            enclosure = _enclose(self.formula, boxes, row)
        except (Refusal, ArithmeticError, ValueError):
            return None
        if enclosure.kind is not Kind.NUMBER or not enclosure.bounded:
            return None
        rounding = _ROUNDING * max(abs(enclosure.low), abs(enclosure.high))
        return enclosure.low - rounding, enclosure.high + rounding


def range_of(
    plan: Plan,
    recipes: Recipes,
    i: int,
    measures: list[Any],
    noises: list[Any],
    keys: list[Any],
    kept: list[int],
) -> Range | None:
    """Return what the interval of output `i` needs, if it is a number that is computed from noisy ones and
    nothing else."""
    expression = plan.outputs[i][1]
    used = [n.index for n in walk(expression) if isinstance(n, Output) and n.kind == "aggregate"]
    chosen = any(recipes.recipes[a].choice is not None for a in used)
    if not used or chosen or expression.domain.kind is not Kind.NUMBER:
        return None
    numbers = sorted({m for a in used for m in recipes.recipes[a].measures})
    return Range(
        formula=_formula(
            expression, plan, recipes, numbers, [[column[row] for row in kept] for column in keys]
        ),
        released=tuple(tuple(int(measures[m][row]) for row in kept) for m in numbers),
        noises=tuple(noises[m] for m in numbers),
    )


def _formula(e: Expr, plan: Plan, recipes: Recipes, numbers: list[int], keys: list[list[Any]]) -> Formula:
    if isinstance(e, Literal):
        content = e.content
        return "literal", content if content is None or isinstance(content, bool | int | float) else str(
            content
        )
    if isinstance(e, Output) and e.kind == "key":
        return "key", tuple(_plain(v) for v in keys[e.index])
    if not isinstance(e, Output):
        return e.op, *(_formula(arg, plan, recipes, numbers, keys) for arg in e.args)  # type: ignore[union-attr]
    recipe, argument = recipes.recipes[e.index], plan.aggregates[e.index].argument
    used = [recipes.measures[m] for m in recipe.measures]
    indices = tuple(numbers.index(m) for m in recipe.measures)
    if recipe.function in ("count", "sum"):
        return "count" if used[0].kind in _COUNTS else "sum", indices[0], used[0].resolution
    assert argument is not None
    if recipe.function in PAIRED:
        shifts = tuple(m.center * m.step for m in used[1:])
        return (
            recipe.function,
            indices,
            tuple(m.resolution for m in used),
            shifts,
            *limits_of(plan.aggregates[e.index]),
        )
    ends = float(argument.domain.low), float(argument.domain.high)
    return recipe.function, indices, tuple(m.resolution for m in used), used[1].center * used[1].step, *ends


def _plain(value: Any) -> Any:
    return float(value) if isinstance(value, float | int) and not isinstance(value, bool) else str(value)


def _enclose(formula: Formula, boxes: list[tuple[int, int]], row: int) -> ValueDomain:
    """Return all values that a formula can have where the noisy numbers are anywhere in their boxes."""
    what, *rest = formula
    if what == "literal":
        return constant(rest[0])
    if what == "key":
        return constant(rest[0][row])
    if what in ("count", "sum"):
        low, high = (end * rest[1] for end in boxes[rest[0]])
        return _number(max(low, 0) if what == "count" else low, max(high, 0) if what == "count" else high)
    if what in OPERATORS:
        parts = [_enclose(part, boxes, row) for part in rest]
        # divided by zero there is no value
        if what in ("/", "//", "%") and _counts(rest[1]):
            parts[1] = _number(max(parts[1].low, 1.0), max(parts[1].high, 1.0))
        return OPERATORS[what].domain(*parts)
    if what in PAIRED:
        return _pairs(what, [boxes[i] for i in rest[0]], *rest[1:])
    return _moments(what, [boxes[i] for i in rest[0]], rest[1], *rest[2:])


def _counts(formula: Formula) -> bool:
    return formula[0] == "count" or (formula[0] == "nullif" and _counts(formula[1]))


def _moments(
    function: str,
    boxes: list[tuple[int, int]],
    steps: tuple[Fraction, ...],
    shift: Fraction,
    low: float,
    high: float,
) -> ValueDomain:
    """Return an average or a deviation, from the ranges of the count, of the sum and of the sum of squares of
    what is left after `shift`."""
    largest = boxes[0][1]
    widest = (high - low) ** 2 / 4
    if largest < 1:
        return (
            _number(low, high)
            if function == "avg"
            else _number(0, math.sqrt(2 * widest) if "std" in function else 2 * widest)
        )
    smallest = max(boxes[0][0], 1)
    bottom, top = (end * steps[1] for end in boxes[1])
    mean = (
        Fraction(bottom) / (smallest if bottom < 0 else largest),
        Fraction(top) / (smallest if top > 0 else largest),
    )
    if function == "avg":
        return _number(*(min(max(float(end + shift), low), high) for end in mean))
    squares = [max(Fraction(0), end * steps[2]) for end in boxes[2]]
    ends = [Fraction(bottom) ** 2, Fraction(top) ** 2]
    nearest = Fraction(0) if bottom < 0 < top else min(ends)
    variance = [
        min(_parabola(squares[0], max(ends), smallest, largest)),
        max(_parabola(squares[1], nearest, smallest, largest)),
    ]
    variance = [min(max(end, 0.0), widest) for end in variance]
    if function.endswith("_samp"):
        variance = [
            variance[0] * (largest / (largest - 1) if largest > 1 else 1.0),
            variance[1] * _inflation(smallest),
        ]
    return _number(*(math.sqrt(end) for end in variance) if function.startswith("stddev") else variance)


def _pairs(
    function: str,
    boxes: list[tuple[int, int]],
    steps: tuple[Fraction, ...],
    shifts: tuple[Fraction, ...],
    largest_x: float,
    largest_y: float,
) -> ValueDomain:
    """Return a covariance or correlation, from the ranges of the count, of both sums, of the sum of products
    and of both sums of squares.

    Each mean lies between the ratios at the corners of its two ranges; the covariance is the mean product
    less the product of the means, and at most the product of both largest deviations; a correlation is at
    most 1.
    """
    limit = 1.0 if function == "corr" else largest_x * largest_y * (2 if function == "covar_samp" else 1)
    upper, lower = boxes[0][1], max(boxes[0][0], 1)
    if upper < 1:
        return _number(-limit, limit)

    def mean(index: int) -> tuple[Fraction, Fraction]:
        bottom, top = (end * steps[index] for end in boxes[index])
        return Fraction(bottom) / (lower if bottom < 0 else upper), Fraction(top) / (
            lower if top > 0 else upper
        )

    x, y, product = mean(1), mean(2), mean(3)
    crossed = [a * b for a in x for b in y]
    ends = product[0] + shifts[2] - max(crossed), product[1] + shifts[2] - min(crossed)
    covariance = [min(max(float(end), -largest_x * largest_y), largest_x * largest_y) for end in ends]
    if function == "covar_samp":
        factors = [_inflation(lower), upper / (upper - 1) if upper > 1 else 1.0]
        return _number(min(covariance[0] * f for f in factors), max(covariance[1] * f for f in factors))
    if function == "covar_pop":
        return _number(*covariance)
    spreads = [
        _moments(
            "var_pop", [boxes[0], boxes[i], boxes[j]], (steps[0], steps[i], steps[j]), Fraction(0), -m, m
        )
        for i, j, m in ((1, 4, largest_x), (2, 5, largest_y))
    ]
    smallest, largest = (
        math.sqrt(getattr(spreads[0], end) * getattr(spreads[1], end)) for end in ("low", "high")
    )
    if smallest <= 0:
        return _number(-1.0, 1.0)
    bottom = covariance[0] / (smallest if covariance[0] < 0 else largest)
    top = covariance[1] / (smallest if covariance[1] > 0 else largest)
    return _number(min(max(bottom, -1.0), 1.0), max(min(top, 1.0), -1.0))


def _parabola(squares: Fraction, total: Fraction, lower: int, upper: int) -> list[float]:
    """Return the extremes of squares / n - total / n² for n in a range: at its ends, or where the derivative
    is 0."""
    turn = 2 * total / squares if squares else Fraction(0)
    return [float(squares / n - total / n**2) for n in (lower, upper, turn) if lower <= n <= upper]


def _inflation(least: int) -> float:
    """Return n / (n - 1) for the least n of two or more."""
    return max(least, 2) / (max(least, 2) - 1)


def _number(low: Any, high: Any) -> ValueDomain:
    return number(float(low), float(high), nullable=False)
