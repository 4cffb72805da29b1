"""Holds a private answer: the table of released values, how far off they may be, what they cost, and how they
were made, in words.

Everything in it follows from released values and public parameters, so it can be stored, sent and drawn
freely.

Computes confidence intervals of averages, for tables of every size, from the noise of the sum and the
noise of the count, whose distributions are known exactly.

Computes confidence intervals for variances, deviations and expressions over several noisy numbers, by
interval arithmetic. They hold for groups of every size: no normal approximation is made.

Each true number lies within the error of its noise around the released number, with a known probability; the
result then lies within the range that interval arithmetic computes from these ranges.
"""

from __future__ import annotations

import json
import math
from collections import namedtuple
from collections.abc import Iterator, Sequence
from dataclasses import field, replace
from fractions import Fraction
from operator import attrgetter
from typing import Any

from .. import _require
from .._errors import InvalidInput, MissingExtra, UnknownAttribute
from .._registry import described, from_json, to_json
from .._text import visible
from ..accounting import Event
from ..core.domain import Kind, ValueDomain, constant, number
from ..core.errors import Refusal
from ..core.measures import rounding_of
from ..core.nodes import Expr, Literal, OutputReference, walk
from ..core.operators import OPERATORS
from ..core.question import Noise, PublicSize
from ..mechanisms.noise import IntegerGaussian, IntegerLaplace
from .price import confidence_of_each
from .recipes import PAIRED, Recipes
from .release import limits_of


@described("query.Mean")
class MeanColumn:
    """Holds a column of averages: the released count and sum of each row, and their noises.

    A sum is an integer in steps of `step`, of values from which `shift` was subtracted: the average is sum /
    count * step + shift. Values are in [low, high].

    Guarantee: `interval` contains the average of the data as measured (values clamped, rows per unit limited:
               see `measures`), where there is one, with probability `confidence` or more, up to rounding of
               its ends to floats.
    Proof:     each of the two noises exceeds its error with probability (1 - confidence) / 2 at most (the
               only one, where the count is public, with 1 - confidence), so with probability `confidence` the
               true count (at least 1, or there is no average) and the true sum
               lie in their ranges; the ratio of the two lies between the ratios at the ranges' corners; an
               average of values in [low, high] lies there too. Rounding values to the grid moves their
               average by at most `measures.rounding_of`, which both ends allow for.
    """

    counts: tuple[int, ...]
    sums: tuple[int, ...]
    noise_of_count: Noise
    noise_of_sum: Noise
    step: Fraction
    shift: Fraction
    low: float
    high: float

    def interval(self, row: int, confidence: float) -> tuple[float, float]:
        """Return the ends of the interval in one row."""
        for_each = confidence_of_each(confidence, (self.noise_of_count, self.noise_of_sum))
        count_error, sum_error = self.noise_of_count.error(for_each), self.noise_of_sum.error(for_each)
        count, total = self.counts[row], self.sums[row]
        largest = count + count_error
        if largest < 1:
            return self.low, self.high
        smallest = max(1, count - count_error)
        bottom, top = total - sum_error, total + sum_error
        ends = (
            Fraction(bottom, smallest if bottom < 0 else largest),
            Fraction(top, smallest if top > 0 else largest),
        )
        rounding = rounding_of(self.low, self.high)
        low = float(ends[0] * self.step + self.shift - rounding)
        high = float(ends[1] * self.step + self.shift + rounding)
        return min(max(low, self.low), self.high), max(min(high, self.high), self.low)


def mean_of(
    recipes: Recipes, i: int, measures: list[Any], noises: list[Noise], kept: list[int]
) -> MeanColumn | None:
    """Return the column of averages for output column `i`; None if it is not an AVG by itself. `measures` are
    the released numbers by group, `kept` the groups that are rows of the answer."""
    expression = recipes.plan.outputs[i][1]
    if not (isinstance(expression, OutputReference) and expression.kind == "aggregate"):
        return None
    recipe, argument = recipes.recipes[expression.index], recipes.plan.aggregates[expression.index].argument
    if recipe.function != "avg" or argument is None:
        return None
    count_index, sum_index = recipe.measures
    measure = recipes.measures[sum_index]
    return MeanColumn(
        counts=tuple(int(measures[count_index][row]) for row in kept),
        sums=tuple(int(measures[sum_index][row]) for row in kept),
        noise_of_count=noises[count_index],
        noise_of_sum=noises[sum_index],
        # The sum is in units of `resolution`, which may be a part of a grid step (`parts_per_step`); the
        # center is in whole steps.
        step=measure.resolution,
        shift=measure.center * measure.step,
        low=argument.domain.low,
        high=argument.domain.high,
    )


Formula = tuple[Any, ...]
# the kinds of measures that are counts
_COUNTS = ("rows", "present", "units", "distinct")
# The relative margin for floating-point rounding, which is about 1e-16 per operation.
_ROUNDING = 1e-12


@described("query.Range")
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
    expression = recipes.plan.outputs[i][1]
    used = [n.index for n in walk(expression) if isinstance(n, OutputReference) and n.kind == "aggregate"]
    chosen = any(recipes.recipes[a].choice is not None for a in used)
    if not used or chosen or expression.domain.kind is not Kind.NUMBER:
        return None
    numbers = sorted({m for a in used for m in recipes.recipes[a].measures})
    return Range(
        formula=_formula(expression, recipes, numbers, [[column[row] for row in kept] for column in keys]),
        released=tuple(tuple(int(measures[m][row]) for row in kept) for m in numbers),
        noises=tuple(noises[m] for m in numbers),
    )


def _formula(e: Expr, recipes: Recipes, numbers: list[int], keys: list[list[Any]]) -> Formula:
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
        return e.op, *(_formula(arg, recipes, numbers, keys) for arg in e.args)  # type: ignore[union-attr]
    recipe, argument = recipes.recipes[e.index], recipes.plan.aggregates[e.index].argument
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
            *limits_of(recipes.plan.aggregates[e.index]),
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
        math.sqrt(end(variances[0]) * end(variances[1])) for end in (attrgetter("low"), attrgetter("high"))
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


Value = str | int | float | bool | None


@described("query.Answer")
class Answer(_require.NearestNames):
    """Holds a private answer. Each row of `rows` and of `deviations` (standard deviations of the noise) has
    one entry per column; a deviation is None for keys and for chosen values (quantiles, modes).

    Confidence intervals of a column come from its entry in one of three fields, else from its deviations.
    `noises`: for a column that is one noisy number per row, the integer noise, and the amount that one step
    of it stands for; these intervals are exact. `means`: for averages. `ranges`: for variances, standard
    deviations and expressions. The intervals of `means` and `ranges` hold for tables of every size. A column
    with none of them (a number of `WorkloadQuery`) is a linear combination of draws of the noises `combined`,
    and has intervals from its deviations (`mechanisms.noise.laplace_width`).

    `sql` and `plan`: the query, and how it was answered, in words. `notes`: errors that the intervals do not
    cover, in words. `numbers`: all noisy numbers that were released for it (`Query.restated`), from which an
    answer to a query for other columns of the same numbers is computed.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    deviations: tuple[tuple[float | None, ...], ...]
    noises: tuple[tuple[IntegerLaplace | IntegerGaussian | PublicSize, Fraction] | None, ...]
    event: Event
    epsilon: float | None = None
    delta: float = 0.0
    rho: float | None = None
    sql: str = ""
    plan: tuple[str, ...] = ()
    means: tuple[MeanColumn | None, ...] = ()
    ranges: tuple[Range | None, ...] = ()
    notes: tuple[str, ...] = ()
    combined: tuple[IntegerLaplace | IntegerGaussian, ...] = ()
    numbers: tuple[Any, ...] = field(default=(), repr=False)

    def _unknown(self, name: str) -> UnknownAttribute:
        """Return the error for an unknown attribute; for the name of a column it says to write
        answer[name]."""
        if name in self.columns:
            return UnknownAttribute(
                f"'Answer' object has no attribute {name!r}, but a column of that name: write "
                f"answer[{name!r}]."
            )
        return _require.NearestNames._unknown(self, name)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator over the rows, as named tuples: `for row in answer: row.n`. A column whose name
        is no name in Python is called after its position, such as `_0`."""
        row_type = namedtuple("Row", self.columns, rename=True)  # type: ignore[misc]
        return map(row_type._make, self.rows)

    def __getitem__(self, column: str) -> list[Any]:
        """Return the values of a column."""
        return [row[self._at(column)] for row in self.rows]

    @property
    def value(self) -> Any:
        """The value of an answer with one row and one column."""
        self._refuse_empty()
        if len(self.rows) != 1 or len(self.columns) != 1:
            raise InvalidInput(
                f"this answer has {len(self.rows)} rows of {list(self.columns)}: name a column, "
                f"answer['...']."
            )
        return self.rows[0][0]

    def _refuse_empty(self) -> None:
        """Refuse an answer without rows where one is needed, and say why there is none."""
        if not self.rows:
            raise InvalidInput(f"this answer has no row{''.join(f': {note}' for note in self.notes[:1])}.")

    def __float__(self) -> float:
        """Return the number of an answer with one row and one column."""
        value = self.value
        if not isinstance(value, int | float):
            raise InvalidInput(f"the answer is {value!r}, which is no number.")
        return float(value)

    def error(self, confidence: float = 0.95) -> dict[str, list[float | None]]:
        """Return, for every column that has errors, how far each of its values may be from the truth with
        this confidence; the confidence is that of each value by itself."""
        _require.open_probability(confidence=confidence)
        errors: dict[str, list[float | None]] = {}
        for i, name in enumerate(self.columns):
            widths = self._widths(i, confidence)
            if any(width is not None for width in widths):
                errors[name] = widths
        return errors

    def interval(self, confidence: float = 0.95) -> dict[str, list[tuple[float, float] | None]]:
        """Return the confidence interval of each value, for every column of `error`; it is computed from
        public parameters and released values only."""
        intervals: dict[str, list[tuple[float, float] | None]] = {}
        for name, widths in self.error(confidence).items():
            column = self._interval_column(self._at(name))
            intervals[name] = [
                None
                if v is None or w is None
                else (float(v) - w, float(v) + w)
                if column is None
                else column.interval(r, confidence)
                for r, (v, w) in enumerate(zip(self[name], widths, strict=True))
            ]
        return intervals

    def _interval_column(self, i: int) -> MeanColumn | Range | None:
        """Return the object that computes the intervals of column `i`, if it has one."""
        mean = self.means[i] if self.means else None
        return mean if mean is not None or not self.ranges else self.ranges[i]

    def _widths(self, i: int, confidence: float) -> list[float | None]:
        """Return, for each row of a column, how far the ends of its interval are from its value, at most;
        None where there is no interval."""
        noise = self.noises[i]
        if noise is not None:
            width = float(noise[0].error(confidence) * noise[1])
            return [width] * len(self.rows)
        column = self._interval_column(i)
        if column is not None:
            intervals = [column.interval(r, confidence) for r in range(len(self.rows))]
            return [
                None if row[i] is None or ends is None else max(ends[1] - row[i], row[i] - ends[0], 0.0)
                for row, ends in zip(self.rows, intervals, strict=True)
            ]
        if not self.combined:
            return [None] * len(self.rows)
        z = max(noise.combined_width(confidence) for noise in self.combined)
        return [None if row[i] is None else z * row[i] for row in self.deviations]  # type: ignore[operator]

    def _is_exact(self, column: str) -> bool:
        """Return whether the numbers of a column are public, and so without noise."""
        noise = self.noises[self._at(column)]
        return noise is not None and isinstance(noise[0], PublicSize)

    def _at(self, column: str) -> int:
        """Return the position of a column."""
        if column not in self.columns:
            raise InvalidInput(f"the answer has no column {column!r}; it has {', '.join(self.columns)}.")
        return self.columns.index(column)

    def bars(self, value: str | None = None, confidence: float = 0.95) -> dict[str, list[Any]]:
        """Return what a bar chart with error bars needs: the heights and errors of one column, and as labels
        the columns without deviations (keys, and chosen values such as medians). By default the first column
        with errors is drawn."""
        self._refuse_empty()
        errors = self.error(confidence)
        name = value if value is not None else next(iter(errors), None)
        if name is None or name not in errors:
            raise InvalidInput(f"no bars for column {name!r}; columns with errors: {', '.join(errors)}.")
        columns = enumerate(zip(*self.deviations, strict=True))
        keys = [i for i, column in columns if all(d is None for d in column)]
        labels = [", ".join(str(row[i]) for i in keys) for row in self.rows]
        return {"labels": labels, "heights": self[name], "errors": errors[name]}

    def to_dict(self) -> dict[str, list[Any]]:
        return {name: self[name] for name in self.columns}

    def to_arrow(self) -> Any:
        import pyarrow as pa

        return pa.table({name: _array(self[name]) for name in self.columns})

    def to_pandas(self, *, intervals: bool | float = True) -> Any:
        """Return a data frame. Each column n that has errors is followed by the ends of its confidence
        intervals, `n_low` and `n_high`, at 95% like the printed answer: `intervals=0.9` asks for 90%, and
        `intervals=False` leaves them out. An end whose name is that of a column gets underscores appended.

        Counts are integers; with missing values, of the type "Int64", which can hold them.
        """
        try:
            import pandas as pd  # type: ignore[import-untyped, unused-ignore]
        except ImportError:
            raise MissingExtra.of("frames", "to_pandas needs pandas") from None
        return pd.DataFrame(
            {
                name: pd.Series(values, dtype="Int64" if None in values else "int64") if whole else values
                for name, values, whole in self._frame(intervals)
            }
        )

    def _frame(self, intervals: bool | float) -> list[tuple[str, list[Any], bool]]:
        """Return the name and the values of each column of a data frame, and whether they are integers."""
        if intervals is False:
            columns = self.to_dict()
        else:
            if intervals is not True:
                _require.open_probability(intervals=intervals)
            columns = self._with_intervals(0.95 if intervals is True else intervals, ("low", "high"))
        whole = {name for i, name in enumerate(self.columns) if self._is_whole(i)}
        return [
            (
                name,
                [None if v is None else int(v) for v in values] if name in whole else values,
                name in whole,
            )
            for name, values in columns.items()
        ]

    def _is_whole(self, i: int) -> bool:
        """Return whether a column holds integers of 64 bits: counts, sums of integers, integer keys. Numbers
        of `WorkloadQuery` are counts, but may have fractions, which are kept."""
        values = [row[i] for row in self.rows if row[i] is not None]
        if not all(_is_integral(value) for value in values):
            return False
        if values and all(isinstance(value, int) for value in values):
            return True
        noise, column = self.noises[i], self._interval_column(i)
        if noise is not None:
            return not values and noise[1].denominator == 1
        if column is not None:
            return isinstance(column, Range) and _is_count(column.formula)
        return bool(self.combined) and any(row[i] is not None for row in self.deviations)

    def _with_intervals(
        self, confidence: float, suffixes: tuple[str, str] = ("lower", "upper")
    ) -> dict[str, list[Any]]:
        """Return the columns, each that has errors followed by the lower and upper ends of its intervals,
        which are named after it with these suffixes."""
        intervals = self.interval(confidence)
        columns: dict[str, list[Any]] = {}
        for i, name in enumerate(self.columns):
            columns[name] = self[name]
            # An average without a value (more noise than rows) has its two columns, too: a script that reads
            # them must not fail by chance.
            nothing = None if self._interval_column(i) is None else [None] * len(self.rows)
            if (ends_of_rows := intervals.get(name, nothing)) is not None:
                for side, suffix in enumerate(suffixes):
                    columns[_free(f"{name}_{suffix}", self.columns)] = [
                        None if ends is None else ends[side] for ends in ends_of_rows
                    ]
        return columns

    def plot(self, value: str | None = None, *, confidence: float = 0.95, ax: Any = None) -> Any:
        """Draw one column as bars with error bars, with matplotlib; returns the axes."""
        try:
            import matplotlib.pyplot as plt
        except ImportError:
            raise MissingExtra.of("plots", "plot needs matplotlib") from None
        bars = self.bars(value, confidence)
        if ax is None:
            _, ax = plt.subplots(layout="constrained")
        heights = [float("nan") if h is None else float(h) for h in bars["heights"]]
        ax.bar(
            range(len(heights)), heights, yerr=[e or 0.0 for e in bars["errors"]], color="#0b6e99", capsize=3
        )
        ax.set_xticks(range(len(heights)), [str(label) for label in bars["labels"]], rotation=30, ha="right")
        ax.set_ylabel(value if value is not None else next(iter(self.error(confidence))))
        ax.set_title(f"{self.price}; whiskers: {confidence:.0%} intervals", fontsize="small")
        return ax

    def _repr_html_(self) -> str:
        from .html_view import answer_html

        return answer_html(self)

    def to_polars(self, *, intervals: bool | float = True) -> Any:
        """Return a data frame of polars, with the columns of `to_pandas`."""
        try:
            import polars  # type: ignore[import-not-found, unused-ignore]
        except ImportError:
            raise MissingExtra.of("frames", "to_polars needs polars") from None
        import pyarrow as pa

        return polars.from_arrow(
            pa.table(
                {
                    name: pa.array(values, pa.int64()) if whole else _array(values)
                    for name, values, whole in self._frame(intervals)
                }
            )
        )

    def to_json(self) -> str:
        """Return the complete answer as JSON text; `Answer.from_json` is its exact inverse."""
        return json.dumps(to_json(self))

    @staticmethod
    def from_json(text: str) -> Answer:
        """Return the answer that `to_json` wrote."""
        try:
            description = json.loads(text)
        except (TypeError, ValueError, RecursionError):
            raise InvalidInput("this is not JSON text, so not the description of an answer.") from None
        answer = from_json(description)
        if not isinstance(answer, Answer):
            raise InvalidInput("this is not the description of an answer.")
        return answer

    def text(
        self, confidence: float = 0.95, max_rows: int = 40, rest: str = "answer.rows or answer.to_pandas()"
    ) -> str:
        """Return a plain table for the terminal: values rounded by `shown_cell`, with the error beside them.

        At most `max_rows` rows are shown; `rest` is the text that says where to find the others.
        """
        errors = self.error(confidence)
        cells = [[visible(name) for name in self.columns]]
        for r, row in enumerate(self.rows[:max_rows]):
            cells.append(
                [
                    visible(shown_cell(v, errors[n][r] if n in errors else None, exact=self._is_exact(n)))
                    for n, v in zip(self.columns, row, strict=True)
                ]
            )
        widths = [max(len(line[i]) for line in cells) for i in range(len(self.columns))]
        lines = [
            "  ".join(
                _pad(c, w, right) for c, w, right in zip(line, widths, self._numeric_columns(), strict=True)
            ).rstrip()
            for line in cells
        ]
        lines.insert(1, "  ".join("-" * w for w in widths))
        if len(self.rows) > max_rows:
            lines.append(f"... {len(self.rows) - max_rows:,} more rows: {rest}")
        without_errors = "no ±: see below" if self.notes else "no ±"
        if self.rows and all(value is None for row in self.rows for value in row):
            without_errors = "-: no value, as where the noise outweighs the number of rows"
        if errors and all(map(self._is_exact, errors)):
            footer = "exact"
        else:
            footer = f"{confidence:.0%} of errors are within ±" if errors else without_errors
        return "\n".join([*lines, f"({footer}; {self.price})", *(f"({note})" for note in self.notes)])

    @property
    def price(self) -> str:
        """The price in words."""
        if 0.0 in (self.epsilon, self.rho):
            return "free"
        if self.rho is not None:
            return f"rho {self.rho:.4g}"
        return f"epsilon {self.epsilon:.4g}" + (f", delta {self.delta:g}" if self.delta else "")

    def _numeric_columns(self) -> list[bool]:
        """Return for each column whether it holds numbers, by its first row; these are aligned right."""
        first: Sequence[Any] = self.rows[0] if self.rows else [None] * len(self.columns)
        return [isinstance(v, int | float) and not isinstance(v, bool) for v in first]

    def __str__(self) -> str:
        return self.text()


def shown_cell(value: Value, error: float | None, *, exact: bool = False) -> str:
    """Return a value with its error beside it, both with as many decimals as show two digits of the error
    (none from 10 on, and none for integers); "-" for a missing value. A number that is `exact` says so."""
    if value is None:
        return "-"
    if exact:
        return f"{value:,} (exact)"
    if error is None or isinstance(value, str):
        return f"{value:g}" if isinstance(value, float) else str(value)
    digits = 0 if error <= 0 else max(0, 1 - math.floor(math.log10(error)))
    if isinstance(value, int) or digits == 0:
        return f"{round(value):,} ± {math.ceil(error):,}"
    return f"{value:,.{digits}f} ± {error:,.{digits}f}"


def _free(name: str, names: Sequence[str]) -> str:
    """Return `name`, with underscores appended until no column has it."""
    return name if name not in names else _free(f"{name}_", names)


def _is_integral(value: Any) -> bool:
    """Return whether a value is a whole number of 64 bits, as an integer or as a float."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and abs(value) < 2**63 and float(value).is_integer()


def _array(values: list[Any]) -> Any:
    """Return an Arrow array of released values; integers beyond 64 bits make the column one of floats."""
    import pyarrow as pa

    try:
        return pa.array(values)
    except (OverflowError, pa.ArrowInvalid):
        return pa.array([None if v is None else float(v) for v in values])


def _pad(cell: str, width: int, right: bool) -> str:
    return cell.rjust(width) if right else cell.ljust(width)
