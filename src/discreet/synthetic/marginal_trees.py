"""Defines two methods of synthesis: independent columns, and MST, a maximum spanning tree of two-way
marginals.

Defines MWEM (multiplicative weights with the exponential mechanism) over a graphical model: a baseline for
AIM.

A clique is an ascending tuple of columns; its table has the counts of rows by the codes of these columns.
"""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Annotated, Any, ClassVar

import numpy as np

from .. import _require
from .._registry import described
from .._require import Limit, at_least
from ..accounting import Event, compose
from ..mechanisms import ExponentialMechanism, IntegerGaussian
from ..sampling import Entropy
from .counting import Integers, OccurringCells
from .estimation import MeasuredTree, estimate_total, mirror_descent
from .graphical_model import Clique, Floats, GraphicalModel, junction_tree_cells
from .synthesizer import GRID, MeasuredTable, State, Synthesizer

# A code is rare if its noisy count is below this many standard deviations of its noise: 3, as in the paper.
_RARE_DEVIATIONS = 3


@described("synthetic.Independent")
class Independent(Synthesizer):
    """Measures every one-way marginal, for synthetic rows whose columns are independent.

    Guarantee: `event`: one discrete Gaussian for each column, each for rho / (number of columns).
    Proof:     composition of `IntegerGaussian`, whose sensitivity is that of `counting.count_sensitivity`.
    """

    method: ClassVar[str] = "independent"
    length: ClassVar[int] = 1

    @property
    def _noise(self) -> IntegerGaussian:
        return self.noise(self.exact_rho / len(self.domain.columns))

    @property
    def event(self) -> Event:
        return self._noise.event.repeated(len(self.domain.columns))

    def advance(self, state: State, cells: OccurringCells, step: int, entropy: Entropy) -> None:
        for column in range(len(self.domain.columns)):
            self.measure(state, cells, (column,), self._noise, entropy)


def _three_parts(*, split: Any) -> tuple[Fraction, ...]:
    """Return three shares of rho as fractions."""
    parts = tuple(_require.exact(part, "split") for part in _require.listed(split=split))
    fits = len(parts) == 3 and min(parts) > 0 and sum(parts) <= 1
    _require.must(fits, "split", split, "three positive parts that add up to at most 1")
    return parts


@described("synthetic.MST")
class MST(Synthesizer):
    """Measures all one-way marginals, then a maximum spanning tree of pairs that the exponential mechanism
    chooses (McKenna, Miklau & Sheldon 2021, arXiv:2108.04978).

    The score of a pair is the l1 distance of its counts from those of independent columns. Codes whose noisy
    count is below three standard deviations are merged before pairs are measured. `split` has the shares of
    rho for one-way marginals, for choices and for pairs: a third each, as in the paper.

    Guarantee: `event`, which is fixed before the run: for d columns, d discrete Gaussians, d - 1 choices, and
               again d - 1 discrete Gaussians.
    Proof:     adaptive composition. Which pair is chosen and measured may depend on earlier releases; the
               noise and the price of each step do not. One unit moves a score by at most GRID times the l1
               sensitivity (`Synthesizer.distance`).
    """

    method: ClassVar[str] = "mst"
    split: Annotated[tuple[Fraction, ...], Limit(_three_parts)] = (Fraction(1, 3),) * 3

    @property
    def _edges(self) -> int:
        """The number of edges of the tree."""
        return len(self.domain.columns) - 1

    @property
    def _noise_of_columns(self) -> IntegerGaussian:
        """The noise of one-way marginals, which get all of rho where there is only one column."""
        share = self.split[0] if self._edges else Fraction(1)
        return self.noise(self.exact_rho * share / len(self.domain.columns))

    @property
    def _choice(self) -> ExponentialMechanism:
        """The exponential mechanism that chooses one edge; not used where there is only one column."""
        rho = self.exact_rho * self.split[1] / self._edges
        return self.exponential_mechanism(rho, GRID * self._count_l1)

    @property
    def _noise_of_pairs(self) -> IntegerGaussian:
        return self.noise(self.exact_rho * self.split[2] / self._edges)

    @property
    def event(self) -> Event:
        columns = self._noise_of_columns.event.repeated(len(self.domain.columns))
        if not self._edges:
            return columns
        choices = self._choice.event.repeated(self._edges)
        return compose([columns, choices, self._noise_of_pairs.event.repeated(self._edges)])

    @property
    def length(self) -> int:
        return 3 if self._edges else 1

    def advance(self, state: State, cells: OccurringCells, step: int, entropy: Entropy) -> None:
        if step == 0:
            for column in range(len(self.domain.columns)):
                self.measure(state, cells, (column,), self._noise_of_columns, entropy)
        elif step == 1:
            self._select_tree(state, cells, entropy)
        else:
            self._measure_pairs(state, cells, entropy)

    def _select_tree(self, state: State, cells: OccurringCells, entropy: Entropy) -> None:
        """Choose edge after edge among the pairs that join two components (Kruskal's algorithm)."""
        scores = {pair: self._score(state, cells, pair) for pair in all_pairs(len(cells.sizes))}
        components = list(range(len(cells.sizes)))
        for _ in range(self._edges):
            joining = [pair for pair in scores if components[pair[0]] != components[pair[1]]]
            choice = self._choice.pick(np.array([scores[pair] for pair in joining], dtype=np.int64), entropy)
            a, b = joining[choice]
            state.choices.append((a, b))
            components = [components[a] if c == components[b] else c for c in components]

    def _score(self, state: State, cells: OccurringCells, pair: Clique) -> int:
        """Return the l1 distance of a pair's counts from those of independent columns, in units of 1 / GRID
        of a row."""
        shares = [_released_shares(state, a, cells.sizes[a]) for a in pair]
        total = estimate_total([table.noisy(cells.sizes) for table in state.tables])
        return self.distance(cells.table(pair), total * np.multiply.outer(*shares))

    def _measure_pairs(self, state: State, cells: OccurringCells, entropy: Entropy) -> None:
        """Merge rare codes, by released counts only, and measure the pairs of the tree."""
        groups = [_merge_rare_codes(state, column) for column in range(len(cells.sizes))]
        if any(group is not None for group in groups):
            state.groups = [() if g is None else tuple(int(number) for number in g) for g in groups]
        merged = cells.regroup(groups)
        for pair in state.choices:
            self.measure(state, merged, tuple(sorted(pair)), self._noise_of_pairs, entropy)


def all_pairs(count: int) -> list[Clique]:
    """Return all pairs of `count` columns, each ascending."""
    return list(itertools.combinations(range(count), 2))


def _one_way_table(state: State, column: int) -> MeasuredTable | None:
    """Return the released table of a column; None if a crash lost it (its step still counts as run)."""
    return next((table for table in state.tables if table.clique == (column,)), None)


def _released_shares(state: State, column: int, size: int) -> Floats:
    """Return the released shares of a column's codes, with negative counts as 0; equal shares where no count
    is positive, or none was released."""
    table = _one_way_table(state, column)
    counts = np.zeros(size) if table is None else np.maximum(np.array(table.values, dtype=np.float64), 0)
    return counts / counts.sum() if counts.sum() > 0 else np.full(size, 1 / size)


def _merge_rare_codes(state: State, column: int) -> Integers | None:
    """Return the new code of each code, where all rare codes share the last new one; None if fewer than two
    codes are rare, or all are."""
    table = _one_way_table(state, column)
    if table is None:
        return None
    rare = np.array(table.values, dtype=np.float64) < _RARE_DEVIATIONS * float(table.variance) ** 0.5
    if rare.sum() < 2 or rare.all():
        return None
    new_codes = np.cumsum(~rare) - 1
    new_codes[rare] = int((~rare).sum())
    return new_codes.astype(np.int64)


# Iterations of mirror descent after each round, as in AIM: more cost time and no privacy.
_ITERATIONS = 50
# The share of rho for one-way marginals, from which the number of rows is estimated; not tuned.
_ONE_WAY_SHARE = Fraction(1, 10)


@described("synthetic.MWEM")
class MWEM(Synthesizer):
    """Selects and measures, `rounds` times, the pair of columns that the model gets most wrong (Hardt, Ligett
    & McSherry 2012, arXiv:1012.4763, over a graphical model as in McKenna, Sheldon & Miklau 2019,
    arXiv:1901.09136).

    The score of a pair is the l1 distance of its counts from the model's, less its number of cells, as in the
    second paper. One-way marginals are measured first, for a tenth of rho, so that the number of rows is
    known. Each round spends half of its price on the choice and half on the table. A pair can be chosen if
    the junction tree with it has at most `cells` cells.

    Guarantee: `event`, which is fixed before the run.
    Proof:     adaptive composition, as for `marginal_trees.MST`.
    """

    method: ClassVar[str] = "mwem"
    rounds: Annotated[int, at_least(1)] = 10
    cells: Annotated[int, at_least(1)] = 1 << 16

    @property
    def _round_price(self) -> Fraction:
        """The rho of one round."""
        return self.exact_rho * (1 - _ONE_WAY_SHARE) / self.rounds

    @property
    def _noise_of_columns(self) -> IntegerGaussian:
        return self.noise(self.exact_rho * _ONE_WAY_SHARE / len(self.domain.columns))

    @property
    def _choice(self) -> ExponentialMechanism:
        """The exponential mechanism that chooses the pair of a round."""
        return self.exponential_mechanism(self._round_price / 2, GRID * self._count_l1)

    @property
    def _noise_of_pairs(self) -> IntegerGaussian:
        return self.noise(self._round_price / 2)

    @property
    def event(self) -> Event:
        columns = self._noise_of_columns.event.repeated(len(self.domain.columns))
        choices, pairs = (part.event.repeated(self.rounds) for part in (self._choice, self._noise_of_pairs))
        return compose([columns, choices, pairs])

    @property
    def length(self) -> int:
        return 1 + self.rounds

    def advance(self, state: State, cells: OccurringCells, step: int, entropy: Entropy) -> None:
        if step == 0:
            for column in range(len(cells.sizes)):
                self.measure(state, cells, (column,), self._noise_of_columns, entropy)
            return
        model = self._fit(state)
        candidates = self._candidates(state)
        scores = [self._score(cells, model, clique) for clique in candidates]
        clique = candidates[self._choice.pick(np.array(scores, dtype=np.int64), entropy)]
        self.measure(state, cells, clique, self._noise_of_pairs, entropy)
        state.choices.append(clique)

    def _score(self, cells: OccurringCells, model: GraphicalModel, clique: Clique) -> int:
        """Return the l1 distance of a table from the model's, less its number of cells, in units of 1 / GRID
        of a row."""
        table = cells.table(clique)
        return self.distance(table, model.project(clique)) - GRID * table.size

    def _candidates(self, state: State) -> list[Clique]:
        """Return the pairs with which the junction tree has at most `cells` cells; where there is none, a
        table that may be measured again."""
        columns = len(self.sizes)
        pairs = all_pairs(columns) if columns > 1 else [(0,)]
        measured = [table.clique for table in state.tables]
        fitting = [pair for pair in pairs if junction_tree_cells(self.sizes, [*measured, pair]) <= self.cells]
        # Where no pair is small enough, a table that was measured before is measured again; if a crash lost
        # all tables, the first column.
        return fitting or measured or [(0,)]

    def _fit(self, state: State) -> GraphicalModel:
        """Fit the model to all tables measured so far, beginning with the last fit."""
        tables = [table.noisy(self.sizes) for table in state.tables]
        fit = MeasuredTree(self.sizes, tables, estimate_total(tables))
        estimate = mirror_descent(fit, initial=state.cache.get("estimate"), iterations=_ITERATIONS)
        state.cache["estimate"] = estimate
        return estimate.model
