"""Computes confidence intervals for variances, deviations and expressions over several noisy numbers, by
interval arithmetic. They hold for groups of every size: no normal approximation is made.

Each true number lies within the error of its noise around the released number, with a known probability; the
result then lies within the range that interval arithmetic computes from these ranges.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from .._registry import described
from ..mechanisms.noise import IntegerGaussian, IntegerLaplace
from .domain import Kind, ValueDomain, constant, number
from .errors import Refusal
from .measures import PAIRED, Recipes, rounding_of
from .nodes import Expr, Literal, OutputReference, walk
from .operators import OPERATORS
from .plan import Plan
from .public_size import PublicSize, confidence_of_each
from .release import limits_of

Noise = IntegerLaplace | IntegerGaussian | PublicSize
Formula = tuple[Any, ...]
# the kinds of measures that are counts
_COUNTS = ("rows", "present", "units", "distinct")
# The relative margin for floating-point rounding, which is about 1e-16 per operation.
_ROUNDING = 1e-12


@described("query.Range")
@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Holds a column of the answer that is computed from noisy numbers (measures). `released`: for each
    number its noisy integers, one per row of the answer; `noises`: the noise of each number.

    `formula` is a nested tuple, and is stored in ledgers: its form must not change. It is ("literal", x),
    ("key", values by row), (operator, formulas...), or an aggregate: ("count" | "sum", number, resolution);
    (function, numbers, resolutions, shift, low, high) for averages, variances and deviations; (function,
    numbers, resolutions, shifts, largest_x, largest_y) for covariances and correlations. A number is an index
    of `released`, a resolution the amount that an integer of 1 stands for. What is summed is a value less
    `shift`; [low, high] is the range of the values; largest_x and largest_y are half the widths of two
    ranges.

    Guarantee: `interval` contains the value that the query has without noise, on the data after clipping and
               after the limits per unit, if there is one, with probability `confidence` or more.
    Proof:     each of k noises exceeds its error with probability (1 - confidence) / k at most (public
               numbers have none, and do not count). If none does,
               all true numbers are in their ranges. A true count is not negative, and where it is a divisor
               at least 1, as without rows there is no value. The rules of operators (`rules`),
               `_moments` and `_pairs` enclose the result over all numbers in these ranges.
    """

    formula: Formula
    released: tuple[tuple[int, ...], ...]
    noises: tuple[Noise, ...]

    def interval(self, row: int, confidence: float) -> tuple[float, float] | None:
        """Return the interval of one row of the answer; None where interval arithmetic finds no bounds."""
        confidence_each = confidence_of_each(confidence, self.noises)
        errors = [noise.error(confidence_each) for noise in self.noises]
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
    """Return what the interval of output column `i` needs; None unless it is a number that is computed from
    keys and noisy numbers only.

    `measures`: the noisy integers of each measure, one per group; `keys`: the values of each key, one per
    group; `kept`: the groups that are rows of the answer, in order.
    """
    expression = plan.outputs[i][1]
    used = [n.index for n in walk(expression) if isinstance(n, OutputReference) and n.kind == "aggregate"]
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
    """Return the formula of an expression, as `Range` describes it. `numbers`: the measures that `released`
    holds, in order; `keys`: the values of each key, one per row of the answer."""
    if isinstance(e, Literal):
        content = e.content
        return "literal", content if content is None or isinstance(content, bool | int | float) else str(
            content
        )
    if isinstance(e, OutputReference) and e.kind == "key":
        return "key", tuple(_plain(v) for v in keys[e.index])
    if not isinstance(e, OutputReference):
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
    """Return a key as a float or a text, which can be stored as JSON."""
    return float(value) if isinstance(value, float | int) and not isinstance(value, bool) else str(value)


def _enclose(formula: Formula, boxes: list[tuple[int, int]], row: int) -> ValueDomain:
    """Return the range of a formula where each true number is anywhere in its box, (lowest, highest)."""
    kind, *arguments = formula
    if kind == "literal":
        return constant(arguments[0])
    if kind == "key":
        return constant(arguments[0][row])
    if kind in ("count", "sum"):
        low, high = (end * arguments[1] for end in boxes[arguments[0]])
        return _number(max(low, 0) if kind == "count" else low, max(high, 0) if kind == "count" else high)
    if kind in OPERATORS:
        parts = [_enclose(argument, boxes, row) for argument in arguments]
        # A true count that is divided by is at least 1: divided by 0 there is no value.
        if kind in ("/", "//", "%") and _is_count(arguments[1]):
            may_be_null = parts[1].nullable or parts[1].low < 1
            divisor = _number(max(parts[1].low, 1.0), max(parts[1].high, 1.0))
            parts[1] = replace(divisor, nullable=may_be_null)
        return OPERATORS[kind].domain(*parts)
    used = [boxes[i] for i in arguments[0]]
    enclosure = (_pairs if kind in PAIRED else _moments)(kind, used, *arguments[1:])
    # Without enough rows an aggregate is NULL, which GREATEST and LEAST skip.
    enough = 2 if kind.endswith("_samp") else 1
    return replace(enclosure, nullable=used[0][0] < enough or kind == "corr")


def _is_count(formula: Formula) -> bool:
    """Return whether a formula is a count, or NULLIF of a count."""
    return formula[0] == "count" or (formula[0] == "nullif" and _is_count(formula[1]))


def _moments(
    function: str,
    boxes: list[tuple[int, int]],
    resolutions: tuple[Fraction, ...],
    shift: Fraction,
    low: float,
    high: float,
    rounding: Fraction | None = None,
) -> ValueDomain:
    """Return the range of an average, variance or standard deviation.

    `boxes`: the ranges of the count, of the sum of the values less `shift`, and of the sum of the squares of
    these differences; `resolutions`: those of these numbers; [low, high]: the range of the values;
    `rounding`: how far rounding to the grid moves a value at most, by default for that range.
    """
    smallest, largest = max(boxes[0][0], 1), boxes[0][1]
    # the largest variance of values in [low, high] (Popoviciu); a sample variance is at most twice as large
    widest = (high - low) ** 2 / 4
    # the group is empty, and there is no value: any range will do
    if largest < 1:
        return (
            _number(low, high)
            if function == "avg"
            else _number(0, math.sqrt(2 * widest) if "std" in function else 2 * widest)
        )
    rounding = rounding_of(low, high) if rounding is None else rounding
    bottom, top = (end * resolutions[1] for end in boxes[1])
    # sum / n is least at the smallest n if the sum is negative, else at the largest n; for the other end, the
    # reverse
    mean = (
        Fraction(bottom) / (smallest if bottom < 0 else largest),
        Fraction(top) / (smallest if top > 0 else largest),
    )
    if function == "avg":
        ends_of_mean = (mean[0] + shift - rounding, mean[1] + shift + rounding)
        return _number(*(min(max(float(end), low), high) for end in ends_of_mean))
    # The variance is squares / n - sum² / n²: for each n least where the sum of squares is least and sum² is
    # largest, and largest in the opposite case.
    squares = [max(Fraction(0), end * resolutions[2]) for end in boxes[2]]
    squared_sums = [Fraction(bottom) ** 2, Fraction(top) ** 2]
    least_squared_sum = Fraction(0) if bottom < 0 < top else min(squared_sums)
    variance = [
        min(_extremes(squares[0], max(squared_sums), smallest, largest)),
        max(_extremes(squares[1], least_squared_sum, smallest, largest)),
    ]
    # Rounding to the grid moves each value, and so their standard deviation, by at most `rounding`.
    deviations = [
        math.sqrt(max(end, 0.0)) + sign * float(rounding) for end, sign in zip(variance, (-1, 1), strict=True)
    ]
    variance = [min(max(end, 0.0) ** 2, widest) for end in deviations]
    # n / (n - 1) is least at the largest n
    if function.endswith("_samp"):
        variance = [
            variance[0] * (largest / (largest - 1) if largest > 1 else 1.0),
            variance[1] * _bessel(smallest),
        ]
    return _number(*(math.sqrt(end) for end in variance) if function.startswith("stddev") else variance)


def _pairs(
    function: str,
    boxes: list[tuple[int, int]],
    resolutions: tuple[Fraction, ...],
    shifts: tuple[Fraction, ...],
    largest_x: float,
    largest_y: float,
) -> ValueDomain:
    """Return the range of a covariance or correlation of x and y.

    `boxes`: the ranges of the count, of the sums of x, of y and of x y, and for a correlation of x² and y²,
    where x and y are relative to the middles of their ranges; `resolutions`: those of these numbers;
    `shifts`: what was subtracted from each summand in the sums of x, y and x y (covariances depend on the
    shift of x y only). `largest_x`, `largest_y`: half the widths of the ranges, and so the largest standard
    deviations.

    Each mean lies between the ratios at the corners of its two ranges. The covariance is the mean product
    minus the product of the means, and at most largest_x largest_y; a correlation is at most 1.
    """
    limit = 1.0 if function == "corr" else largest_x * largest_y * (2 if function == "covar_samp" else 1)
    upper, lower = boxes[0][1], max(boxes[0][0], 1)
    # the group is empty, and there is no value: any range will do
    if upper < 1:
        return _number(-limit, limit)

    def mean(index: int) -> tuple[Fraction, Fraction]:
        bottom, top = (end * resolutions[index] for end in boxes[index])
        return Fraction(bottom) / (lower if bottom < 0 else upper), Fraction(top) / (
            lower if top > 0 else upper
        )

    x, y, product = mean(1), mean(2), mean(3)
    products_of_means = [a * b for a in x for b in y]
    # Rounding to the grids moves the mean product by at most the rounding of products, and each of the means
    # by at most that of its values. The middle that is subtracted is rounded too, so that a mean may be that
    # much further from zero.
    centers = float(shifts[0]), float(shifts[1])
    rounding_x = rounding_of(centers[0] - largest_x, centers[0] + largest_x)
    rounding_y = rounding_of(centers[1] - largest_y, centers[1] + largest_y)
    most_x, most_y = Fraction(largest_x) + rounding_x, Fraction(largest_y) + rounding_y
    most = float(most_x * most_y)
    rounding = rounding_of(-most, most) + rounding_x * most_y + rounding_y * most_x
    ends = (
        product[0] + shifts[2] - max(products_of_means) - rounding,
        product[1] + shifts[2] - min(products_of_means) + rounding,
    )
    covariance = [min(max(float(end), -largest_x * largest_y), largest_x * largest_y) for end in ends]
    if function == "covar_samp":
        factors = [_bessel(lower), upper / (upper - 1) if upper > 1 else 1.0]
        return _number(min(covariance[0] * f for f in factors), max(covariance[1] * f for f in factors))
    if function == "covar_pop":
        return _number(*covariance)
    # x and y are relative to the middles of their ranges, so that these are [-m, m]. No shift changes a
    # variance.
    variances = [
        _moments(
            "var_pop",
            [boxes[0], boxes[i], boxes[j]],
            (resolutions[0], resolutions[i], resolutions[j]),
            Fraction(0),
            -m,
            m,
            moved,
        )
        for i, j, m, moved in ((1, 4, largest_x, rounding_x), (2, 5, largest_y, rounding_y))
    ]
    smallest, largest = (
        math.sqrt(getattr(variances[0], end) * getattr(variances[1], end)) for end in ("low", "high")
    )
    if smallest <= 0:
        return _number(-1.0, 1.0)
    bottom = covariance[0] / (smallest if covariance[0] < 0 else largest)
    top = covariance[1] / (smallest if covariance[1] > 0 else largest)
    return _number(min(max(bottom, -1.0), 1.0), max(min(top, 1.0), -1.0))


def _extremes(squares: Fraction, square_of_sum: Fraction, lower: int, upper: int) -> list[float]:
    """Return values among which are the least and the largest of squares / n - square_of_sum / n², for n from
    `lower` to `upper`: at both ends, and where the derivative is 0."""
    stationary = 2 * square_of_sum / squares if squares else Fraction(0)
    return [
        float(squares / n - square_of_sum / n**2) for n in (lower, upper, stationary) if lower <= n <= upper
    ]


def _bessel(least: int) -> float:
    """Return the largest of Bessel's corrections n / (n - 1) for n of at least 2 and at least `least`."""
    return max(least, 2) / (max(least, 2) - 1)


def _number(low: Any, high: Any) -> ValueDomain:
    return number(float(low), float(high), nullable=False)
