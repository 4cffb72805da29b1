"""Generates rows: a model is fitted to the released tables, and rows are sampled from it. Post-processing,
which costs no privacy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from .constraints import constraint_potentials
from .estimation import (
    MeasuredTree,
    NoisyTable,
    combine_measurements,
    estimate_total,
    mirror_descent,
    project_to_simplex,
)
from .model import Floats, GraphicalModel
from .privbayes import PrivBayes, network_model
from .rows import Codes, allocate_codes, sample
from .synthesizer import Fitted

# Iterations of mirror descent, for the model that rows are drawn from. On a release from the Adult dataset
# the error was the same from 200 to 800 iterations. More cost time and no privacy.
ITERATIONS = 300


def noisy_tables(fitted: Fitted) -> list[NoisyTable]:
    """Return the measured tables in the codes of the model: where a column is grouped, its one-way table is
    summed to groups."""
    sizes = fitted.domain.sizes(fitted.public)
    return [table.noisy_by_group(sizes, fitted.groups) for table in fitted.tables]


def fit_model(fitted: Fitted, iterations: int = ITERATIONS) -> GraphicalModel:
    """Return the model that is fitted to the released tables: for PrivBayes a Bayesian network, otherwise the
    result of mirror descent."""
    tables = noisy_tables(fitted)
    total, constraints = estimate_total(tables), constraint_potentials(fitted)
    if fitted.method == PrivBayes.method:
        network = fitted.choices or tuple((a,) for a in range(len(fitted.sizes)))
        return network_model(fitted.sizes, network, tables, total, constraints)
    fit = MeasuredTree(fitted.sizes, tables, total, constraints)
    return mirror_descent(fit, iterations=iterations).model


def ungroup(
    fitted: Fitted, model: GraphicalModel, codes: Sequence[Codes], random: np.random.Generator
) -> list[Codes]:
    """Return rows in the codes of the domain: in a grouped column, each row gets one of the codes of its
    group, in proportion to the released counts of these codes."""
    columns = []
    for a, column in enumerate(codes):
        grouped = bool(fitted.groups and fitted.groups[a])
        columns.append(allocate_codes(_code_counts(fitted, model, a), column, random) if grouped else column)
    return columns


def _code_counts(fitted: Fitted, model: GraphicalModel, attribute: int) -> Floats:
    """Return a matrix of expected counts, with one row for each group and one column for each code: the
    released counts, projected so that none is negative and each group has as many rows as in the model."""
    groups = np.array(fitted.groups[attribute])
    tables = [t for t in fitted.tables if t.clique == (attribute,) and len(t.values) == len(groups)]
    (table,) = combine_measurements([t.noisy(fitted.domain.sizes(fitted.public)) for t in tables])
    totals = model.project((attribute,))
    counts = np.zeros((len(totals), len(groups)))
    for number, total in enumerate(totals):
        codes = np.flatnonzero(groups == number)
        # A condition of `sample_rows` may name a group whose total in the model is 0: its codes still need
        # shares, so the total is at least 1e-6.
        counts[number, codes] = project_to_simplex(table.values[codes], max(float(total), 1e-6))
    return counts


def sample_rows(
    fitted: Fitted,
    model: GraphicalModel,
    rows: int,
    random: np.random.Generator,
    given: Mapping[int, int] | None = None,
) -> list[Codes]:
    """Return rows of the model as one array of the domain's codes for each column.

    `given` has the codes of columns that are the same in all rows, by position.
    """
    conditions = dict(given or {})
    by_group = conditions
    if fitted.groups:
        by_group = {a: fitted.groups[a][c] if fitted.groups[a] else c for a, c in conditions.items()}
    codes = ungroup(fitted, model, sample(model, rows, random, by_group), random)
    for a, code in conditions.items():
        codes[a] = np.full(rows, code)
    return codes
