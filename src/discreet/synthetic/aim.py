"""AIM: an adaptive and iterative mechanism for synthetic data, with annealing of its budget."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import numpy as np

from .. import _require
from .._registry import described
from ..accounting import ZCDP, Event
from ..mechanisms import IntegerGaussian
from ..sampling import Entropy
from .coarsening import Groups, group_arrays, group_codes, grouped_sizes
from .counting import OccurringCells
from .estimation import FittedModel, MeasuredTree, combine_measurements, estimate_total, mirror_descent
from .junction import Clique, junction_tree_cells
from .model import GraphicalModel
from .synthesizer import GRID, State, Synthesizer

# Of the budget of a round, the part for measuring its table; the rest is for selecting it (McKenna et al.,
# Section 5).
_MEASUREMENT_SHARE = Fraction(9, 10)
# Of rho, the part for the one-way marginals, at first: every larger table errs at least as much as these. A
# third in MST, a sixteenth in the paper's AIM; chosen for columns of up to 100 codes, not tuned.
_ONE_WAY_SHARE = Fraction(1, 6)
# Codes of a column are grouped if there are more of them than this. Adult's bins of capital (4) and ages (15)
# were looked at when it was chosen; larger values leave more noise in tables of fine columns.
_MAX_UNGROUPED_CODES = 20
# Groups have at least so many rows, in standard deviations of a table that gets an equal share of rho among
# all columns. To split a group of m rows costs a table with k other codes noise of about 0.4 k deviations,
# and gains m / 2 times the distance of the two halves: at k = 10 and distances of 0.08, m is 100 deviations.
# On a simulated table 60, 100 and 150 gave pairs of 0.073, 0.064 and 0.064. Codes without an order are
# grouped less, as the group of rare ones says nothing of each; with 10 instead of 30 pairs with the countries
# of Adult were worse (0.030 against 0.027) and all pairs no worse, by two runs each: not decided.
_MIN_ORDERED_GROUP, _MIN_UNORDERED_GROUP = 100.0, 30.0
# Rounds that the budget would be enough for if it were never annealed, for each column (the paper's 16 d).
_ROUNDS_PER_COLUMN = 16
# Iterations of mirror descent after each round, from where the last one stopped. A fit that has not come far
# looks as if its round had taught nothing, and the budget is annealed early. With 50 five runs on Adult lay
# between 0.0177 and 0.0199 in pairs; more iterations cost time and no privacy.
_ITERATIONS = 50
# What is subtracted from a score for noise, at most: scores stay within 64 bits however small the budget is.
_MAX_PENALTY = 1 << 42


@described("synthetic.AIM")
@dataclass(frozen=True, slots=True, kw_only=True)
class AIM(Synthesizer):
    """Selects and measures, round after round, the table that the model gets most wrong (McKenna, Mullins,
    Sheldon & Miklau 2022, arXiv:2201.12677, Algorithm 2).

    The workload are all tables by `degree` columns, the candidates those and all smaller ones. A candidate is
    open if the model's junction tree with it has at most `cells` cells, times the part of the budget that is
    spent. Where a round has taught less than its noise, the next ones get four times the budget.

    Other than in the paper, one-way marginals get a larger part of the budget, by their number of codes, and
    codes of a column that has many are grouped by their noisy counts (`coarsening.group_codes`) before tables
    by several columns are measured. Columns of constraints keep their codes.

    Guarantee: rho-zCDP, the event, although how many rounds there are and what each costs depends on earlier
               ones.
    Proof:     a round costs what is decided before it from released values, table and choice together; none
               begins unless the sum stays within rho, a filter for zCDP (Feldman & Zrnic 2021,
               arXiv:2008.11193, Theorem 3.1; Whitehouse et al. 2023, arXiv:2203.05481, Theorem 1). Steps that
               a crash has taken are counted at the most that they can have cost (`forfeit`).
    """

    method: ClassVar[str] = "aim"
    degree: int = 3
    cells: int = 1 << 18

    def _check_options(self) -> None:
        _require.integer(degree=self.degree, at_least=1)
        _require.integer(cells=self.cells, at_least=1)

    @property
    def event(self) -> Event:
        return ZCDP(rho=self.exact_rho, neighbors=self.public.neighbors)

    @property
    def length(self) -> int:
        """The step of the one-way marginals, and the most rounds there can be."""
        return 1 + _ROUNDS_PER_COLUMN * len(self.domain.columns)

    @property
    def _one_way_price(self) -> Fraction:
        """What all one-way marginals cost together."""
        return _ONE_WAY_SHARE * self.exact_rho

    def advance(self, state: State, cells: OccurringCells, step: int, entropy: Entropy) -> None:
        if step == 0:
            for column, price in enumerate(self._prices_of_columns()):
                self.measure(state, cells, (column,), self.noise(price), entropy)
            self._spend(state, self._one_way_price)
            state.groups = self._group_columns(state)
            return
        price = self._next_price(state)
        if price == 0:
            return
        self._spend(state, price)
        self._take_round(state, cells.regroup(group_arrays(state.groups, len(self.sizes))), price, entropy)

    def _prices_of_columns(self) -> list[Fraction]:
        """Return what each one-way marginal costs: the sum over columns of the expected l1 error, codes times
        standard deviation, is least where rho goes with the 2/3rd power of the number of codes."""
        weights = [max(1, round(64 * size ** (2 / 3))) for size in self.sizes]
        return [self._one_way_price * Fraction(weight, sum(weights)) for weight in weights]

    def _group_columns(self, state: State) -> list[Groups]:
        """Return which codes of each column are grouped, from the released one-way marginals."""
        deviation = self.noise(self.exact_rho / len(self.sizes)).standard_deviation
        constrained = {name for fact in self.constraints for name in (fact.left, fact.right)}
        groups: list[Groups] = []
        for column, coding in enumerate(self.domain.codings(self.public)):
            if coding.size <= _MAX_UNGROUPED_CODES or coding.column in constrained:
                groups.append(())
                continue
            (table,) = combine_measurements(
                [t.noisy(self.sizes) for t in state.tables if t.clique == (column,)]
            )
            ordered = bool(coding.edges)
            min_rows = deviation * (_MIN_ORDERED_GROUP if ordered else _MIN_UNORDERED_GROUP)
            groups.append(group_codes(table.values, min_rows, ordered=ordered, missing=coding.missing))
        return groups if any(groups) else []

    def _next_price(self, state: State) -> Fraction:
        """Return what the next round costs: the rest of rho if that is not enough for two rounds; 0 when
        nothing is left."""
        rest = self.exact_rho - _spent(state)
        rounds = _ROUNDS_PER_COLUMN * len(self.domain.columns)
        price: Fraction = self.exact_rho / rounds * 4 ** int(state.facts.get("level", 0))
        return max(Fraction(0), rest) if rest <= 2 * price else price

    def _spend(self, state: State, price: Fraction) -> None:
        state.facts["used"] = str(_spent(state) + price)

    def forfeit(self, state: State, steps: int) -> None:
        """Count steps that were begun and lost at the most they can have cost: as if each had annealed."""
        for _ in range(steps):
            if not state.facts.get("used"):
                self._spend(state, self._one_way_price)
                continue
            self._spend(state, self._next_price(state))
            _anneal(state)

    def _take_round(self, state: State, cells: OccurringCells, price: Fraction, entropy: Entropy) -> None:
        """Select one table by the exponential mechanism, measure it, and anneal if it taught too little."""
        model = self._fit(state).model
        noise = self.noise(_MEASUREMENT_SHARE * price)
        candidates = self._candidates(state, model)
        scores = [self._score(cells, model, clique, noise) for clique in candidates]
        max_weight = max(self._weight(clique) for clique in candidates)
        sensitivity = max_weight * GRID * int(self.count_sensitivity.l1 or 0)
        selector = self.exponential_mechanism((1 - _MEASUREMENT_SHARE) * price, sensitivity)
        clique = candidates[selector.pick(np.array(scores, dtype=np.int64), entropy)]
        before = model.project(clique)
        self.measure(state, cells, clique, noise, entropy)
        state.choices.append(clique)
        state.cache["previous"] = state.cache.pop("estimate")
        after = self._fit(state).model.project(clique)
        if np.abs(after - before).sum() <= _mean_absolute_noise(noise) * after.size:
            _anneal(state)

    def _fit(self, state: State) -> FittedModel:
        """Return the model of what was measured so far; cached until more is."""
        if "estimate" not in state.cache:
            tables = [t.noisy_by_group(self.sizes, state.groups) for t in state.tables]
            sizes = grouped_sizes(state.groups, self.sizes)
            fit = MeasuredTree(sizes, tables, estimate_total(tables))
            previous = state.cache.get("previous")
            state.cache["estimate"] = mirror_descent(fit, initial=previous, iterations=_ITERATIONS)
        estimate: FittedModel = state.cache["estimate"]
        return estimate

    def _candidates(self, state: State, model: GraphicalModel) -> list[Clique]:
        """Return all tables of the workload's downward closure for which the model has room; those that one
        of its cliques holds already need none."""
        limit = float(_spent(state) / self.exact_rho) * self.cells
        sizes = model.tree.sizes
        measured = list(dict.fromkeys(t.clique for t in state.tables))

        def has_room(clique: Clique) -> bool:
            # A table larger than the limit needs no triangulation.
            small = math.prod(sizes[a] for a in clique) <= limit
            return small and junction_tree_cells(sizes, [*measured, clique]) <= limit

        return [
            clique
            for size in range(1, min(self.degree, len(sizes)) + 1)
            for clique in itertools.combinations(range(len(sizes)), size)
            if model.tree.host(clique) is not None or has_room(clique)
        ]

    def _weight(self, clique: Clique) -> int:
        """Return how many columns a clique shares with the tables of the workload, summed over these."""
        columns = len(self.domain.columns)
        degree = min(self.degree, columns)
        return sum(
            shared * math.comb(len(clique), shared) * math.comb(columns - len(clique), degree - shared)
            for shared in range(1, min(len(clique), degree) + 1)
        )

    def _score(
        self, cells: OccurringCells, model: GraphicalModel, clique: Clique, noise: IntegerGaussian
    ) -> int:
        """Return the quality score of a candidate: the model's l1 error less the expected noise, weighted."""
        table = cells.table(clique)
        penalty = min(_MAX_PENALTY, math.ceil(GRID * _mean_absolute_noise(noise) * table.size))
        return self._weight(clique) * (self.distance(table, model.project(clique)) - penalty)


def _anneal(state: State) -> None:
    """Give the next rounds four times the budget."""
    state.facts["level"] = int(state.facts.get("level", 0)) + 1


def _spent(state: State) -> Fraction:
    return Fraction(state.facts.get("used", "0"))


def _mean_absolute_noise(noise: IntegerGaussian) -> float:
    """Return the expected absolute noise of one cell."""
    return math.sqrt(2 / math.pi) * noise.standard_deviation


__all__ = ["AIM"]
