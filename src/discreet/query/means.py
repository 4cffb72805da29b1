"""Computes confidence intervals of averages, for tables of every size, from the noise of the sum and the
noise of the count, whose distributions are known exactly."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from .._registry import described
from ..mechanisms.noise import IntegerGaussian, IntegerLaplace
from .measures import Recipes, rounding_of
from .nodes import OutputReference
from .plan import Plan
from .public_size import PublicSize, confidence_of_each

Noise = IntegerLaplace | IntegerGaussian | PublicSize


@described("query.Mean")
@dataclass(frozen=True, slots=True, kw_only=True)
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
    plan: Plan, recipes: Recipes, i: int, measures: list[Any], noises: list[Noise], kept: list[int]
) -> MeanColumn | None:
    """Return the column of averages for output column `i`; None if it is not an AVG by itself. `measures` are
    the released numbers by group, `kept` the groups that are rows of the answer."""
    expression = plan.outputs[i][1]
    if not (isinstance(expression, OutputReference) and expression.kind == "aggregate"):
        return None
    recipe, argument = recipes.recipes[expression.index], plan.aggregates[expression.index].argument
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
