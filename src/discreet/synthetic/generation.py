"""Generates rows: a model is fitted to the released tables, and rows are sampled from it. Post-processing,
which costs no privacy.

Samples rows from a graphical model, column after column, with rounding instead of independent draws.

Among the rows that have the same codes in the earlier columns (those in one clique with the next), each code
of the next column gets its expected number of rows, rounded down; the remaining rows get codes drawn in
proportion to the remainders. So the tables of the copy are nearer to those of the model than with independent
draws.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from .constraints import constraint_potentials
from .estimation import (
    MeasuredTree,
    NoisyTable,
    combine_measurements,
    estimate_total,
    mirror_descent,
    project_to_simplex,
)
from .graphical_model import LOG_ZERO, Clique, Floats, GraphicalModel, marginalize, propagate_beliefs
from .synthesizer import Fitted

Codes = NDArray[np.int64]


def sample(
    model: GraphicalModel, rows: int, random: np.random.Generator, given: Mapping[int, int] | None = None
) -> list[Codes]:
    """Return `rows` rows as one array of codes for each attribute, in random order.

    `given` has the codes of attributes that are the same in all rows: the others are drawn given these.
    """
    tree = model.tree
    columns: list[Codes] = [np.zeros(rows, np.int64) for _ in tree.sizes]
    sampled: set[int] = set()
    tables = model.tables if not given else condition(model, given).tables
    for i in tree.order:
        clique = tree.cliques[i]
        for a in [a for a in clique if a not in sampled]:
            earlier = tuple(b for b in clique if b in sampled)
            attributes = tuple(sorted((*earlier, a)))
            table = marginalize(tables[i], clique, attributes)
            table = np.moveaxis(table, attributes.index(a), -1).reshape(-1, tree.sizes[a])
            columns[a] = allocate_codes(table, _cell_index(columns, earlier, tree.sizes, rows), random)
            sampled.add(a)
    order = random.permutation(rows)
    return [column[order] for column in columns]


def condition(model: GraphicalModel, given: Mapping[int, int]) -> GraphicalModel:
    """Return the model of the rows that have the given codes: all other codes of these attributes get
    probability 0, and the total stays the same."""
    logs = []
    masked: set[int] = set()
    for i in range(len(model.tables)):
        table, clique = model.tables[i], model.tree.cliques[i]
        with np.errstate(divide="ignore", invalid="ignore"):
            log = np.log(table)
            if model.tree.parents[i] >= 0:
                separator = marginalize(table, clique, model.tree.separators[i])
                shape = [model.tree.sizes[a] if a in model.tree.separators[i] else 1 for a in clique]
                log = log - np.log(separator.reshape(shape))
        log = np.where(np.isfinite(log), log, LOG_ZERO)
        for axis, a in enumerate(clique):
            if a in given and a not in masked:
                # One clique with this attribute is enough.
                mask = np.full(model.tree.sizes[a], LOG_ZERO)
                mask[given[a]] = 0.0
                log = log + mask.reshape([-1 if k == axis else 1 for k in range(len(clique))])
                masked.add(a)
        logs.append(log)
    tables, _ = propagate_beliefs(model.tree, logs, model.total)
    return GraphicalModel(model.tree, tuple(tables), model.total)


def _cell_index(columns: list[Codes], attributes: Clique, sizes: tuple[int, ...], rows: int) -> Codes:
    """Return for each row the flat (row-major) index of its cell in the table by some attributes."""
    index = np.zeros(rows, np.int64)
    for a in attributes:
        index = index * sizes[a] + columns[a]
    return index


def allocate_codes(table: Floats, cells: Codes, random: np.random.Generator) -> Codes:
    """Return a code of the next column for each row.

    `cells` has, for each row, the index of its cell in the table by the earlier columns, and row c of `table`
    the expected counts of the next column's codes in cell c. Each code gets its expected number of rows,
    rounded down or up; codes are equally likely in cells without expected counts.
    """
    rows, width = len(cells), table.shape[1]
    present, inverse, counts = np.unique(cells, return_inverse=True, return_counts=True)
    shares = table[present].clip(0)
    sums = shares.sum(axis=1, keepdims=True)
    shares = np.where(sums > 0, shares / np.where(sums > 0, sums, 1), 1 / width)
    expected = shares * counts[:, None]
    # A whole number that is a rounding error too small must not be rounded down: 1e-9 is added.
    allocation = np.floor(expected + 1e-9).astype(np.int64)
    remainders = (expected - allocation).clip(0)
    allocation += _systematic_sample(remainders, counts - allocation.sum(axis=1), random)
    # The rows of a cell, in random order, get the codes of its allocation.
    order = np.lexsort((random.random(rows), inverse))
    codes = np.empty(rows, np.int64)
    codes[order] = np.repeat(np.tile(np.arange(width), len(present)), allocation.ravel())
    return codes


def _systematic_sample(remainders: Floats, sizes: Codes, random: np.random.Generator) -> Codes:
    """Return how often each entry of a row is drawn, when `sizes` entries are drawn from each row with
    probabilities in proportion to its remainders (systematic sampling: one uniform number for each row)."""
    cumulative = np.cumsum(remainders, axis=1)
    sums = cumulative[:, -1:]
    scaled = np.where(sums > 0, cumulative / np.where(sums > 0, sums, 1), 1.0) * sizes[:, None]
    # How often the entries up to each one are drawn. The 1e-12 keeps a sum just below a whole number from
    # being rounded up to it; where the uniform number is smaller than it, the result is -1, and is clipped.
    draws = np.floor(scaled + random.random((len(sizes), 1)) - 1e-12).astype(np.int64)
    draws[:, -1] = sizes
    draws = np.clip(draws, 0, sizes[:, None])
    return np.diff(draws, axis=1, prepend=0)


# Iterations of mirror descent, for the model that rows are drawn from. On a release from the Adult dataset
# the error was the same from 200 to 800 iterations. More cost time and no privacy.
ITERATIONS = 300


def noisy_tables(fitted: Fitted) -> list[NoisyTable]:
    """Return the measured tables in the codes of the model: where a column is grouped, its one-way table is
    summed to groups."""
    sizes = fitted.domain.sizes(fitted.public)
    return [table.noisy_by_group(sizes, fitted.groups) for table in fitted.tables]


def fit_model(fitted: Fitted, iterations: int = ITERATIONS) -> GraphicalModel:
    """Return the model that mirror descent fits to the released tables."""
    tables = noisy_tables(fitted)
    total, constraints = estimate_total(tables), constraint_potentials(fitted)
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
