"""From noisy measures to the answer: formulas of aggregates, expressions over them, HAVING, ORDER BY and LIMIT. All of it is free.

Deviations of derived values come from re-drawing the noise around the released measures: nothing exact is used.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .domain import Domain
from .exact import shown
from .measures import Measure, Recipe, Recipes
from .nodes import Output, value
from .plan import Plan
from .price import Noise

DRAWS = 400


def aggregates(plan: Plan, recipes: Recipes, measures: list[Any], choices: list[Any]) -> list[Any]:
    """The value of every aggregate from its (noisy) measures in whole steps: float arrays, NaN for none; texts for chosen ones."""
    found = []
    for asked, recipe in zip(plan.aggregates, recipes.recipes, strict=True):
        if recipe.choice is not None:
            found.append(choices[recipe.choice])
            continue
        used = [recipes.measures[i] for i in recipe.measures]
        values = [
            np.asarray(measures[i], dtype=float) * float(m.worth) for i, m in zip(recipe.measures, used, strict=True)
        ]
        domain = None if asked.argument is None else asked.argument.domain
        found.append(_formula(recipe, used, values, domain))
    return found


def _formula(recipe: Recipe, measures: list[Measure], values: list[Any], domain: Domain | None) -> Any:
    if recipe.function in ("count", "sum"):
        return values[0]
    assert domain is not None
    with np.errstate(all="ignore"):
        count = np.where(values[0] > 0, values[0], np.nan)
        shift = float(measures[1].center * measures[1].step)
        mean = values[1] / count
        if recipe.function == "avg":
            return np.clip(mean + shift, domain.low, domain.high)
        variance = np.clip(values[2] / count - mean**2, 0.0, ((domain.high - domain.low) / 2) ** 2)
        if recipe.function.endswith("_samp"):
            variance = np.where(count > 1, variance * count / np.where(count > 1, count - 1, np.nan), np.nan)
    return np.sqrt(variance) if recipe.function.startswith("stddev") else variance


def table(
    plan: Plan,
    recipes: Recipes,
    keys: list[tuple[Any, ...]],
    measures: list[Any],
    choices: list[Any],
    noises: list[Noise],
) -> tuple[list[list[Any]], list[list[float | None]]]:
    """The rows of the answer with their deviations, after HAVING, ORDER BY and LIMIT."""
    rows, kept = rows_of(plan, recipes, keys, measures, choices)
    deviations = _deviations(plan, recipes, _key_columns(plan, keys), measures, choices, noises, len(keys))
    return rows, [[_float(d[r]) if d is not None else None for d in deviations] for r in kept]


def rows_of(
    plan: Plan, recipes: Recipes, keys: list[tuple[Any, ...]], measures: list[Any], choices: list[Any]
) -> tuple[list[list[Any]], list[int]]:
    """The rows of the answer, and which group each is."""
    size = len(keys)
    columns = _key_columns(plan, keys)
    found = aggregates(plan, recipes, measures, choices)
    kept = _kept(plan, columns, found, size)
    outputs = [_broadcast(value(e, columns, found), size) for _, e in plan.outputs]
    cells = [_cells(plan, recipes, i, outputs[i], measures) for i in range(len(outputs))]
    return [[column[r] for column in cells] for r in kept], kept


def _key_columns(plan: Plan, keys: list[tuple[Any, ...]]) -> list[Any]:
    columns = []
    for i in range(len(plan.keys)):
        raw = [shown(key[i]) for key in keys]
        numeric = all(isinstance(v, int | float) and not isinstance(v, bool) for v in raw)
        columns.append(np.array(raw, dtype=float if numeric else object))
    return columns


def _broadcast(array: Any, size: int) -> Any:
    return np.broadcast_to(np.asarray(array), (size,))


def _cells(plan: Plan, recipes: Recipes, i: int, output: Any, measures: list[Any]) -> list[Any]:
    """Plain Python values: counts and whole keys as integers, missing as None."""
    _, expression = plan.outputs[i]
    if isinstance(expression, Output) and expression.kind == "aggregate":
        recipe = recipes.recipes[expression.index]
        if recipe.function in ("count", "sum") and recipes.measures[recipe.measures[0]].worth == 1:
            return [int(v) for v in measures[recipe.measures[0]]]
    whole = isinstance(expression, Output) and expression.domain.whole
    return [_plain(v, whole) for v in output]


def _plain(v: Any, whole: bool) -> Any:
    if v is None or (isinstance(v, float | np.floating) and math.isnan(v)):
        return None
    if isinstance(v, float | np.floating):
        return int(v) if whole and float(v).is_integer() else float(v)
    return v


def _float(v: Any) -> float | None:
    return None if math.isnan(v) else float(v)


def _kept(plan: Plan, keys: list[Any], found: list[Any], size: int) -> list[int]:
    """The rows that pass HAVING, in the order asked for."""
    rows = list(range(size))
    if plan.having is not None:
        passes = _broadcast(value(plan.having, keys, found), size) == 1.0
        rows = [r for r in rows if passes[r]]
    for expression, descending in reversed(plan.order):  # sorts are stable: the first key decides last
        by = _broadcast(value(expression, keys, found), size)
        present = [r for r in rows if not _absent(by[r])]
        absent = [r for r in rows if _absent(by[r])]
        rows = sorted(present, key=lambda r: by[r], reverse=descending) + absent
    return rows[plan.offset :][: plan.limit]


def _absent(v: Any) -> bool:
    return v is None or (isinstance(v, float | np.floating) and math.isnan(v))


def direct(plan: Plan, recipes: Recipes, i: int) -> int | None:
    """The measure that output `i` is, if it is one noisy number and nothing else."""
    _, expression = plan.outputs[i]
    if isinstance(expression, Output) and expression.kind == "aggregate":
        recipe = recipes.recipes[expression.index]
        if recipe.function in ("count", "sum"):
            return recipe.measures[0]
    return None


def _deviations(
    plan: Plan,
    recipes: Recipes,
    keys: list[Any],
    measures: list[Any],
    choices: list[Any],
    noises: list[Noise],
    size: int,
) -> list[Any]:
    found: list[Any] = [None] * len(plan.outputs)
    derived = []
    for i, (_, expression) in enumerate(plan.outputs):
        at = direct(plan, recipes, i)
        if at is not None:
            found[i] = np.full(size, noises[at].standard_deviation * float(recipes.measures[at].worth))
        elif any(isinstance(n, Output) and n.kind == "aggregate" for n in _parts(expression)) and _random(
            plan, recipes, expression
        ):
            derived.append(i)
    for i, deviation in zip(
        derived, _simulated(plan, recipes, keys, measures, choices, noises, derived, size), strict=True
    ):
        found[i] = deviation
    return found


def _parts(expression: Any) -> list[Any]:
    from .nodes import walk

    return list(walk(expression))


def _random(plan: Plan, recipes: Recipes, expression: Any) -> bool:
    """Whether all aggregates in it are made of noisy numbers; chosen values have no deviation."""
    used = [n.index for n in _parts(expression) if isinstance(n, Output) and n.kind == "aggregate"]
    return all(recipes.recipes[i].choice is None for i in used)


def _simulated(
    plan: Plan,
    recipes: Recipes,
    keys: list[Any],
    measures: list[Any],
    choices: list[Any],
    noises: list[Noise],
    outputs: list[int],
    size: int,
) -> list[Any]:
    """The standard deviation of each output when the noise is drawn again around the released measures."""
    if not outputs or size == 0:
        return [np.zeros(size) for _ in outputs]
    random = np.random.default_rng(0)  # a fixed stream: the same answer always shows the same deviations
    draws = max(30, min(DRAWS, 20_000_000 // size))
    count = np.zeros((len(outputs), size))
    total, squares = np.zeros((len(outputs), size)), np.zeros((len(outputs), size))
    first: list[Any] = []
    for _ in range(draws):
        again = [
            np.asarray(m, dtype=float) + n.standard_deviation * random.standard_normal(size)
            for m, n in zip(measures, noises, strict=True)
        ]
        found = aggregates(plan, recipes, again, choices)
        values = np.array([_broadcast(value(plan.outputs[i][1], keys, found), size) for i in outputs], dtype=float)
        first = first or [np.nan_to_num(values)]
        centered = np.where(np.isnan(values), 0.0, values - first[0])  # for the digits
        count += ~np.isnan(values)
        total += centered
        squares += centered**2
    with np.errstate(all="ignore"):
        mean = total / count
        deviation = np.sqrt(np.maximum(squares / count - mean**2, 0.0) * draws / (draws - 1))
    return list(np.where(count > draws / 2, deviation, np.nan))
