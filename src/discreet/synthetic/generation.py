"""From what was released to a model, and to rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from .constraints import facts_of
from .estimation import Fit, NoisyTable, merged, mirror_descent, noisy_total, projected
from .model import Floats, GraphicalModel
from .privbayes import PrivBayes, network_model
from .rows import Codes, sample, shared_out
from .synthesizer import Fitted

# Passes of the last fit: a round number that took seconds on Adult, not tuned. More cost time and no privacy.
PASSES = 1000


def noisy_tables(fitted: Fitted) -> list[NoisyTable]:
    """Return what was measured, in the codes of the model: tables by one column are summed to groups."""
    full = fitted.domain.sizes(fitted.public)
    return [table.noisy_in_groups(full, fitted.groups) for table in fitted.tables]


def estimate(fitted: Fitted, passes: int = PASSES) -> GraphicalModel:
    """Return the model of what was released."""
    tables = noisy_tables(fitted)
    if fitted.method == PrivBayes.method:
        network = fitted.choices or tuple((a,) for a in range(len(fitted.sizes)))
        return network_model(fitted.sizes, network, tables, noisy_total(tables), facts_of(fitted))
    fit = Fit(fitted.sizes, tables, noisy_total(tables) if tables else 1.0, facts_of(fitted))
    return mirror_descent(fit, passes=passes).model


def ungrouped(
    fitted: Fitted, model: GraphicalModel, codes: Sequence[Codes], random: np.random.Generator
) -> list[Codes]:
    """Give rows of a group of codes one of them, by the released shares of these."""
    out = []
    for a, column in enumerate(codes):
        group = fitted.groups[a] if fitted.groups else ()
        out.append(shared_out(_shares(fitted, model, a), column, random) if group else column)
    return out


def _shares(fitted: Fitted, model: GraphicalModel, attribute: int) -> Floats:
    """Return what is expected of each code (column) within each group (row): the released counts, moved as
    little as possible so that none is negative and groups have the rows that the model gives them."""
    group = np.array(fitted.groups[attribute])
    tables = [t for t in fitted.tables if t.clique == (attribute,) and len(t.values) == len(group)]
    (table,) = merged([t.noisy(fitted.domain.sizes(fitted.public)) for t in tables])
    totals = model.project((attribute,))
    out = np.zeros((len(totals), len(group)))
    for number, total in enumerate(totals):
        codes = np.flatnonzero(group == number)
        # A group that the model gives no row may be asked for by a condition.
        out[number, codes] = projected(table.values[codes], max(float(total), 1e-6))
    return out


def rows_of(
    fitted: Fitted,
    model: GraphicalModel,
    rows: int,
    random: np.random.Generator,
    given: Mapping[int, int] | None = None,
) -> list[Codes]:
    """Return rows of the model as one array of the domain's codes for each column.

    `given` fixes the codes of some columns.
    """
    fixed = dict(given or {})
    if fitted.groups:
        grouped = {a: fitted.groups[a][c] if fitted.groups[a] else c for a, c in fixed.items()}
    else:
        grouped = fixed
    codes = ungrouped(fitted, model, sample(model, rows, random, grouped), random)
    for a, code in fixed.items():
        codes[a] = np.full(rows, code)
    return codes
