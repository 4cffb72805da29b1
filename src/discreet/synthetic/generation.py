"""From what was released to a model, and to rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from .constraints import facts_of
from .estimation import Fit, NoisyTable, mirror_descent, noisy_total
from .model import GraphicalModel
from .privbayes import PrivBayes, network_model
from .rows import Codes, sample
from .synthesizer import Fitted

# Passes of the last fit: a round number that took seconds on Adult, not tuned. More cost time and no privacy.
PASSES = 1000


def noisy_tables(fitted: Fitted) -> list[NoisyTable]:
    """Return what was measured, in the codes of the model: tables by one column are summed to groups."""
    full, sizes = fitted.domain.sizes(fitted.public), fitted.sizes
    out = []
    for table in fitted.tables:
        noisy = table.noisy(full if len(table.clique) == 1 else sizes)
        group = fitted.groups[table.clique[0]] if fitted.groups and len(table.clique) == 1 else ()
        if group:
            values = np.bincount(group, weights=noisy.values, minlength=max(group) + 1).astype(np.float64)
            noisy = NoisyTable(noisy.clique, values, noisy.variance)
        out.append(noisy)
    return out


def estimate(fitted: Fitted, passes: int = PASSES) -> GraphicalModel:
    """Return the model of what was released."""
    tables = noisy_tables(fitted)
    if fitted.method == PrivBayes.method:
        network = fitted.choices or tuple((a,) for a in range(len(fitted.sizes)))
        return network_model(fitted.sizes, network, tables, noisy_total(tables), facts_of(fitted))
    fit = Fit(fitted.sizes, tables, noisy_total(tables) if tables else 1.0, facts_of(fitted))
    return mirror_descent(fit, passes=passes).model


def ungrouped(fitted: Fitted, codes: Sequence[Codes], random: np.random.Generator) -> list[Codes]:
    """Give rows of a group of codes one of them, by the released shares of these."""
    out = []
    for a, column in enumerate(codes):
        group = np.array(fitted.groups[a] if fitted.groups else ())
        if not group.size:
            out.append(column)
            continue
        counts = np.array(next(t.values for t in fitted.tables if t.clique == (a,)), dtype=np.float64)
        rare = np.bincount(group)[group] > 1
        first = np.zeros(int(group.max()) + 1, np.int64)
        first[group] = np.arange(len(group))
        weights = np.maximum(counts[rare], 0)
        weights = weights / weights.sum() if weights.sum() > 0 else np.full(len(weights), 1 / len(weights))
        full = first[column]
        of_rare = column == group[rare][0]
        full[of_rare] = random.choice(np.flatnonzero(rare), size=int(of_rare.sum()), p=weights)
        out.append(full)
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
    codes = ungrouped(fitted, sample(model, rows, random, grouped), random)
    for a, code in fixed.items():
        codes[a] = np.full(rows, code)
    return codes
