"""Computes the answer from noisy measures: formulas of aggregates, expressions over them, HAVING, ORDER BY
and LIMIT. All of it is post-processing, which costs no privacy.

A measure is an integer per group with noise (`measures`); `direct` outputs are one measure as it is,
and derived outputs any other expression over measures. Standard deviations of derived outputs are simulated
by drawing noise around the noisy measures: nothing exact is used.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core.choosing import shown
from ..core.domain import Kind, ValueDomain
from ..core.measures import Measure
from ..core.nodes import OutputReference, walk
from ..core.question import Noise, NoisyNumbers, Question
from .aggregates import Aggregate
from .computing import value
from .plan import Plan
from .recipes import PAIRED, Recipe, Recipes

# The largest probability with which a group of fewer people than `min_people` is shown.
SMALL = 0.001
# Draws of noise from which deviations are estimated: to about 4 percent, as 1 / sqrt(2 * 400).
DRAWS = 400
# Groups whose draws are held in memory at a time: `DRAWS` floats each, 32 MB per measure. Not tuned.
CHUNK = 10_000


@dataclass(frozen=True, slots=True)
class SmallGroups:
    """Hides the groups of fewer than `least` people, by their noisy numbers: post-processing.

    `people`: the positions of the measures that count people, of whom `margins` more than `least` must be
    seen. `of_whom` are the people, in words.
    """

    least: int
    people: tuple[int, ...]
    margins: tuple[int, ...]
    of_whom: str

    @staticmethod
    def of(recipes: Recipes, question: Question, least: int) -> SmallGroups | None:
        """Return what hides small groups; None where all are shown, as `least` is 0."""
        if not least:
            return None
        # As the noise is symmetric, it is above its error with half the probability that is left; rounded up.
        confidence = math.nextafter(1 - 2 * SMALL, 1)
        margins = tuple(int(question.noises[m].error(confidence)) for m in recipes.people)
        of_whom = "people" if question.form.public.unit.column else "rows"
        return SmallGroups(least, recipes.people, margins, of_whom)

    def hide(self, released: NoisyNumbers) -> tuple[NoisyNumbers, int]:
        """Return the numbers of the groups that are shown, and how many are hidden."""
        is_shown = np.ones(len(released.keys), dtype=bool)
        for position, margin in zip(self.people, self.margins, strict=True):
            is_shown &= np.asarray(released.measures[position] >= self.least + margin, dtype=bool)
        groups = np.flatnonzero(is_shown)
        kept = NoisyNumbers(
            [released.keys[i] for i in groups.tolist()],
            [m[groups] for m in released.measures],
            [c[groups] for c in released.choices],
            released.private,
        )
        return kept, len(is_shown) - len(groups)

    def __str__(self) -> str:
        seen = " and ".join(f"{self.least + margin:,}" for margin in dict.fromkeys(self.margins))
        return (
            f"A group is shown from a noisy number of {seen} {self.of_whom} on: one of fewer than "
            f"{self.least:,} is shown with a probability of at most {SMALL:g}"
        )

    def note(self, hidden: int) -> str:
        """Say how many groups are hidden."""
        groups = "1 group is" if hidden == 1 else f"{hidden:,} groups are" if hidden else "no group is"
        return f"{groups} hidden: a{str(self)[1:]}"


def aggregates(recipes: Recipes, measures: list[Any], choices: list[Any]) -> list[Any]:
    """Return the values of every aggregate, one per group: floats computed from its noisy `measures`, NaN
    where there is no value; for quantiles and most common values the values in `choices` as they are."""
    columns = []
    for aggregate, recipe in zip(recipes.plan.aggregates, recipes.recipes, strict=True):
        if recipe.choice is not None:
            columns.append(choices[recipe.choice])
            continue
        used = [recipes.measures[i] for i in recipe.measures]
        values = [
            np.asarray(measures[i], dtype=float) * float(m.resolution)
            for i, m in zip(recipe.measures, used, strict=True)
        ]
        if recipe.function in PAIRED:
            columns.append(_pair_statistic(recipe.function, used, values, *limits_of(aggregate)))
            continue
        domain = None if aggregate.argument is None else aggregate.argument.domain
        columns.append(_formula(recipe, used, values, domain))
    return columns


def _formula(recipe: Recipe, measures: list[Measure], values: list[Any], domain: ValueDomain | None) -> Any:
    """Return an aggregate from the `values` of its measures: a count or sum itself; an average, variance or
    deviation from the count, and the sum and the sum of squares of values less `Measure.center` (the middle
    of the range, or 0). It is clipped to what values in `domain` can have."""
    if recipe.function in ("count", "sum"):
        return values[0]
    assert domain is not None
    with np.errstate(all="ignore"):
        count = np.where(values[0] > 0, values[0], np.nan)
        # `center` counts steps of the grid; a measure counts `resolution`s, which are parts of a step.
        shift = float(measures[1].center * measures[1].step)
        mean = values[1] / count
        if recipe.function == "avg":
            return np.clip(mean + shift, domain.low, domain.high)
        variance = np.clip(values[2] / count - mean**2, 0.0, ((domain.high - domain.low) / 2) ** 2)
        if recipe.function.endswith("_samp"):
            variance = np.where(count > 1, variance * count / np.where(count > 1, count - 1, np.nan), np.nan)
    return np.sqrt(variance) if recipe.function.startswith("stddev") else variance


def limits_of(aggregate: Aggregate) -> tuple[float, float]:
    """Return the largest standard deviation of each of the two arguments: half the width of its range."""
    assert aggregate.argument is not None
    assert aggregate.second is not None
    widths = [float(e.domain.high - e.domain.low) / 2 for e in (aggregate.argument, aggregate.second)]
    return widths[0], widths[1]


def _pair_statistic(
    function: str, measures: list[Measure], values: list[Any], largest_x: float, largest_y: float
) -> Any:
    """Return the covariance or correlation, clipped to what two numbers with these largest deviations can
    have. `values`: the count, the sums of x, y and x y, and for a correlation of x² and y²."""
    with np.errstate(all="ignore"):
        count = np.where(values[0] > 0, values[0], np.nan)
        x, y = values[1] / count, values[2] / count
        product = values[3] / count + float(measures[3].center * measures[3].step)
        covariance = np.clip(product - x * y, -largest_x * largest_y, largest_x * largest_y)
        if function == "corr":
            squares = np.maximum(values[4] / count - x**2, 0.0) * np.maximum(values[5] / count - y**2, 0.0)
            return np.clip(covariance / np.where(squares > 0, np.sqrt(squares), np.nan), -1.0, 1.0)
        if function == "covar_samp":
            return np.where(count > 1, covariance * count / np.where(count > 1, count - 1, np.nan), np.nan)
    return covariance


def table(
    recipes: Recipes,
    keys: list[tuple[Any, ...]],
    measures: list[Any],
    choices: list[Any],
    noises: list[Noise],
) -> tuple[list[tuple[Any, ...]], list[tuple[float | None, ...]], list[int]]:
    """Return the rows of the answer after HAVING, ORDER BY and LIMIT, the standard deviation of each cell
    (None for keys and chosen values), and the index of the group that each row shows.

    `keys`: the key values of each group; `measures`, `choices`: noisy integers, and chosen values, per group.
    """
    columns = key_columns(recipes.plan, keys)
    rows, kept = rows_of(recipes, keys, measures, choices, columns)
    deviations = _deviations(recipes, columns, measures, choices, noises, len(keys))
    none = [None] * len(kept)
    return (
        rows,
        list(zip(*(none if d is None else _floats_or_none(d[kept]) for d in deviations), strict=True)),
        kept,
    )


def rows_of(
    recipes: Recipes,
    keys: list[tuple[Any, ...]],
    measures: list[Any],
    choices: list[Any],
    columns: list[Any] | None = None,
) -> tuple[list[tuple[Any, ...]], list[int]]:
    """Return the rows of the answer, and the index of the group that each row shows. `columns`: the result of
    `key_columns`, if it is known already."""
    size = len(keys)
    columns = key_columns(recipes.plan, keys) if columns is None else columns
    values = aggregates(recipes, measures, choices)
    kept = _rows_in_order(recipes.plan, columns, values, size)
    outputs = [_broadcast(value(e, columns, values), size)[kept] for _, e in recipes.plan.outputs]
    cells = [_cells(recipes, i, outputs[i], measures, kept) for i in range(len(outputs))]
    return list(zip(*cells, strict=True)), kept


def key_columns(plan: Plan, keys: list[tuple[Any, ...]]) -> list[Any]:
    """Return one array per key of GROUP BY, with its value in each group: floats, or objects for texts and
    days."""
    columns = []
    for i, k in enumerate(plan.keys):
        numeric = k.expression.domain.kind is Kind.NUMBER
        columns.append(
            np.array(
                [key[i] if numeric else shown(key[i]) for key in keys], dtype=float if numeric else object
            )
        )
    return columns


def _broadcast(array: Any, size: int) -> Any:
    return np.broadcast_to(np.asarray(array), (size,))


def _cells(recipes: Recipes, i: int, output: Any, measures: list[Any], kept: list[int]) -> list[Any]:
    """Return an output column as Python values: counts and whole numbers as integers, missing values as
    None."""
    _, expression = recipes.plan.outputs[i]
    measure = direct(recipes, i)
    if measure is not None and recipes.measures[measure].resolution == 1:
        integers: list[Any] = np.asarray(measures[measure])[kept].tolist()
        return integers
    if output.dtype == object:
        return list(output)
    if isinstance(expression, OutputReference) and expression.domain.integral and not np.isnan(output).any():
        # int(), as a median may be beyond the integers of 64 bits
        cells: list[Any] = output.tolist()
        return list(map(int, cells)) if (output == np.floor(output)).all() else cells
    return _floats_or_none(output)


def _floats_or_none(values: Any) -> list[Any]:
    """Return floats, with None for NaN."""
    plain: list[Any] = values.tolist()
    return [None if v != v else v for v in plain] if np.isnan(values).any() else plain


def _rows_in_order(plan: Plan, keys: list[Any], values: list[Any], size: int) -> list[int]:
    """Return the indices of the groups that pass HAVING, in the order of ORDER BY, after OFFSET and LIMIT."""
    groups = list(range(size))
    if plan.having is not None:
        passes = _broadcast(value(plan.having, keys, values), size) == 1.0
        groups = [g for g in groups if passes[g]]
    # Sorting is stable, so that the first key of ORDER BY must be sorted by last. Missing values come last.
    for expression, descending in reversed(plan.order):
        by = _broadcast(value(expression, keys, values), size)
        present = [g for g in groups if not _absent(by[g])]
        absent = [g for g in groups if _absent(by[g])]
        groups = sorted(present, key=lambda g: by[g], reverse=descending) + absent
    return groups[plan.offset :][: plan.limit]


def _absent(v: Any) -> bool:
    return v is None or (isinstance(v, float | np.floating) and math.isnan(v))


def direct(recipes: Recipes, i: int) -> int | None:
    """Return the index of the measure that output `i` shows as it is, a count or a sum; None for any other
    output."""
    _, expression = recipes.plan.outputs[i]
    if isinstance(expression, OutputReference) and expression.kind == "aggregate":
        recipe = recipes.recipes[expression.index]
        if recipe.function in ("count", "sum"):
            return recipe.measures[0]
    return None


def _deviations(
    recipes: Recipes,
    keys: list[Any],
    measures: list[Any],
    choices: list[Any],
    noises: list[Noise],
    size: int,
) -> list[Any]:
    """Return the standard deviations of every output, one per group: that of its noise for a direct output,
    simulated for a derived one, None for keys and chosen values."""
    deviations: list[Any] = [None] * len(recipes.plan.outputs)
    derived = []
    for i, (_, expression) in enumerate(recipes.plan.outputs):
        measure = direct(recipes, i)
        if measure is not None:
            deviations[i] = np.full(
                size, noises[measure].standard_deviation * float(recipes.measures[measure].resolution)
            )
        elif any(
            isinstance(n, OutputReference) and n.kind == "aggregate" for n in walk(expression)
        ) and _is_noisy(recipes, expression):
            derived.append(i)
    for i, deviation in zip(
        derived,
        _simulate_deviations(recipes, keys, measures, choices, noises, derived, size),
        strict=True,
    ):
        deviations[i] = deviation
    return deviations


def _is_noisy(recipes: Recipes, expression: Any) -> bool:
    """Return whether an expression is a number whose aggregates are all computed from measures; chosen values
    have no deviation."""
    used = [n.index for n in walk(expression) if isinstance(n, OutputReference) and n.kind == "aggregate"]
    return expression.domain.kind is not Kind.TEXT and all(recipes.recipes[i].choice is None for i in used)


def _simulate_deviations(
    recipes: Recipes,
    keys: list[Any],
    measures: list[Any],
    choices: list[Any],
    noises: list[Noise],
    outputs: list[int],
    size: int,
) -> list[Any]:
    """Return the standard deviations of each of the `outputs`, one per group, if normal noise of the same
    deviation is added to the noisy measures."""
    if not outputs or size == 0:
        return [np.zeros(size) for _ in outputs]
    # A fixed seed, so that the same answer always shows the same deviations. No privacy depends on it: the
    # measures have their private noise already.
    random = np.random.default_rng(0)
    deviations: list[list[Any]] = [[] for _ in outputs]
    for start in range(0, size, CHUNK):
        part = slice(start, start + CHUNK)
        released = [np.asarray(m, dtype=float)[part] for m in measures]
        shape = (DRAWS, len(released[0])) if released else (DRAWS, 0)
        redrawn = [
            m + n.standard_deviation * random.standard_normal(shape)
            for m, n in zip(released, noises, strict=True)
        ]
        drawn = aggregates(recipes, redrawn, [c[part] for c in choices])
        part_keys = [k[part] for k in keys]
        for index, i in enumerate(outputs):
            values = np.broadcast_to(
                np.asarray(value(recipes.plan.outputs[i][1], part_keys, drawn), dtype=float), shape
            )
            deviations[index].append(_standard_deviation(values))
    return [np.concatenate(parts) for parts in deviations]


def _standard_deviation(values: Any) -> Any:
    """Return the standard deviation of each column, over the draws that are not NaN; NaN if these are at most
    half of all draws."""
    present = ~np.isnan(values)
    count = present.sum(axis=0)
    with np.errstate(all="ignore"):
        mean = np.where(present, values, 0.0).sum(axis=0) / count
        distances = np.where(present, values - mean, 0.0)
        # divided by the largest distance, as squares of very small or large ones leave the range of floats
        largest = np.abs(distances).max(axis=0, initial=0.0)
        scale = np.where((largest > 0) & np.isfinite(largest), largest, 1.0)
        deviation = scale * np.sqrt(((distances / scale) ** 2).sum(axis=0) / (count - 1))
        # Where all draws agree, their differences are below the spacing of floats, or a limit hides them: a
        # number with noise is never shown as exact.
        deviation = np.maximum(deviation, np.nextafter(0.0, 1.0))
    return np.where(count > len(values) / 2, deviation, np.nan)
