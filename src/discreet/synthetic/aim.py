"""Defines AIM: an adaptive and iterative mechanism for synthetic data, with annealing of its budget.

The value of a row in a column is a code, a number from 0 on (`domain`). A clique is an ascending tuple of
columns; its table, or marginal, has the counts of rows by the codes of these columns.
"""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Annotated, ClassVar

import numpy as np

from .._registry import described
from .._require import at_least
from ..accounting import ZCDP, Event
from ..mechanisms import IntegerGaussian
from ..sampling import Entropy
from .counting import OccurringCells
from .estimation import FittedModel, MeasuredTree, combine_measurements, estimate_total, mirror_descent
from .graphical_model import (
    Clique,
    GraphicalModel,
    Groups,
    group_arrays,
    group_codes,
    grouped_sizes,
    junction_tree_cells,
)
from .synthesizer import GRID, State, Synthesizer

# The share of a round's price that is for measuring its table; the rest is for selecting that table (McKenna
# et al. 2022, Section 5).
_MEASUREMENT_SHARE = Fraction(9, 10)
# The share of rho for the one-way marginals, which are measured first: a table by several columns can hardly
# be more accurate than they are. It is a third in MST and a sixteenth in the paper's AIM; this value was
# chosen for columns of up to 100 codes, and is not tuned.
_ONE_WAY_SHARE = Fraction(1, 6)
# The codes of a column are grouped if there are more of them than this. Chosen for the domain that
# benchmarks/synthetic.py gives the Adult dataset, where columns of capital have 4 codes and age 15; with a
# larger value, tables of columns with many codes are noisier.
_MAX_UNGROUPED_CODES = 20
# The least number of rows of a group of ordered, and of unordered, codes. The unit is the standard deviation
# of the noise of a table that gets rho / (number of columns). Take half the l1 norm of all errors in the
# table of this column and another of k codes: to split a group of m rows in two adds noise of about 0.4 k
# deviations, and mends an error of m / 2 times the total variation between the two halves. At k = 10 and a
# total variation of 0.08, both are equal for m = 100 deviations. On a simulated table 60, 100 and 150 gave a
# mean total variation of pairs of 0.073, 0.064 and 0.064. Unordered codes are grouped less, because one group
# of all rare codes says little about each of them. With 10 instead of 30, pairs with the country of Adult
# were worse (0.030 against 0.027) and all pairs no worse, in two runs each, which is too few to decide.
_MIN_ORDERED_GROUP, _MIN_UNORDERED_GROUP = 100.0, 30.0
# Before annealing a round costs rho / (this number * number of columns): the paper's T = 16 d rounds for d
# columns.
_ROUNDS_PER_COLUMN = 16
# Iterations of mirror descent after each round, from the fit of the round before. With too few, the model has
# not yet moved to the new table, the round seems to have taught nothing, and the budget is annealed too
# early. With 50, five runs on Adult had a mean total variation of pairs between 0.0177 and 0.0199; more
# iterations cost time and no privacy.
_ITERATIONS = 50
# The largest penalty for noise that is subtracted from a score, in units of 1 / GRID of a row: scores stay
# within 64 bits however small the budget is.
_MAX_PENALTY = 1 << 42


@described("synthetic.AIM")
class AIM(Synthesizer):
    """Selects and measures, round after round, the table that the model gets most wrong (McKenna, Mullins,
    Sheldon & Miklau 2022, arXiv:2201.12677, Algorithm 2).

    The workload consists of all tables by `degree` columns; the candidates are these and all tables by fewer
    columns. A candidate can be selected if a clique of the model contains it already, or if the junction tree
    of the model with it has at most s * `cells` cells, where s is the share of rho that is spent after this
    round. Where a round has changed the model by no more than its noise, the later rounds get four times the
    price (annealing).

    Two things differ from the paper. One-way marginals get a larger share of the budget, divided among them
    by their number of codes. Where a column has many codes, these are grouped by their noisy counts
    (`graphical_model.group_codes`) before tables by several columns are measured; columns of constraints keep
    their codes.

    Guarantee: rho-zCDP, as `event` says, although the number of rounds and their prices depend on what
               earlier rounds released.
    Proof:     the price of a round, for its choice and its table together, is decided from released values
               before the round begins, and no round begins unless the sum of prices stays within rho: a
               filter for zCDP (Feldman & Zrnic 2021, arXiv:2008.11193, Theorem 3.1; Whitehouse et al. 2023,
               arXiv:2203.05481, Theorem 1). Steps that were lost in a crash are counted at the most that they
               can have cost (`forfeit`).
    """

    method: ClassVar[str] = "aim"
    degree: Annotated[int, at_least(1)] = 3
    cells: Annotated[int, at_least(1)] = 1 << 18

    @property
    def event(self) -> Event:
        return ZCDP(rho=self.exact_rho, neighbors=self.public.neighbors)

    @property
    def length(self) -> int:
        """One step for the one-way marginals, and as many as there can be rounds; those for which nothing is
        left of rho do nothing."""
        return 1 + _ROUNDS_PER_COLUMN * len(self.domain.columns)

    @property
    def _one_way_price(self) -> Fraction:
        """What all one-way marginals cost together."""
        return _ONE_WAY_SHARE * self.exact_rho

    def advance(self, state: State, cells: OccurringCells, step: int, entropy: Entropy) -> None:
        if step == 0:
            # Counted before anything is drawn: after an interruption the later steps must not spend it again.
            self._spend(state, self._one_way_price)
            for column, price in enumerate(self._prices_of_columns()):
                self.measure(state, cells, (column,), self.noise(price), entropy)
            state.groups = self._group_columns(state)
            return
        price = self._next_price(state)
        if price == 0:
            return
        self._spend(state, price)
        self._take_round(state, cells.regroup(group_arrays(state.groups, len(self.sizes))), price, entropy)

    def _prices_of_columns(self) -> list[Fraction]:
        """Return the price of each one-way marginal, in proportion to its number of codes to the power 2/3.

        This minimizes the sum over columns of the expected l1 error, which is the number of codes times the
        standard deviation, and so in proportion to codes / sqrt(price).
        """
        # Whole numbers, so that prices are exact fractions; the factor 64 keeps their rounding small.
        weights = [max(1, round(64 * size ** (2 / 3))) for size in self.sizes]
        return [self._one_way_price * Fraction(weight, sum(weights)) for weight in weights]

    def _group_columns(self, state: State) -> list[Groups]:
        """Return the groups of each column's codes, chosen from the released one-way marginals; an empty list
        where no column is grouped."""
        deviation = self.noise(self.exact_rho / len(self.sizes)).standard_deviation
        constrained = {name for c in self.constraints for name in (c.left, c.right)}
        groups: list[Groups] = []
        for column, coding in enumerate(self.domain.codings(self.public)):
            if coding.size <= _MAX_UNGROUPED_CODES or coding.column in constrained:
                groups.append(())
                continue
            (table,) = combine_measurements(
                [t.noisy(self.sizes) for t in state.tables if t.clique == (column,)]
            )
            # Only numbers and dates have bins, and so edges.
            ordered = bool(coding.edges)
            min_rows = deviation * (_MIN_ORDERED_GROUP if ordered else _MIN_UNORDERED_GROUP)
            groups.append(group_codes(table.values, min_rows, ordered=ordered, missing=coding.missing))
        return groups if any(groups) else []

    def _next_price(self, state: State) -> Fraction:
        """Return the price of the next round: all that is left of rho if it does not pay for more than two
        rounds, and 0 when nothing is left."""
        remaining = self.exact_rho - _spent(state)
        rounds = _ROUNDS_PER_COLUMN * len(self.domain.columns)
        price: Fraction = self.exact_rho / rounds * 4 ** int(state.facts.get("level", 0))
        return max(Fraction(0), remaining) if remaining <= 2 * price else price

    def _spend(self, state: State, price: Fraction) -> None:
        # The names of facts ("used", and "level" in `_anneal`) stand in checkpoints: they must not change.
        state.facts["used"] = str(_spent(state) + price)

    def forfeit(self, state: State, steps: int) -> None:
        """Count steps that were begun and lost in a crash at the most that they can have cost: as if the
        budget had been annealed after each of them."""
        for _ in range(steps):
            if not state.facts.get("used"):
                self._spend(state, self._one_way_price)
                continue
            self._spend(state, self._next_price(state))
            _anneal(state)

    def _take_round(self, state: State, cells: OccurringCells, price: Fraction, entropy: Entropy) -> None:
        """Select one table by the exponential mechanism, measure it, and anneal if the model has changed by
        no more than the expected noise."""
        model = self._fit(state).model
        noise = self.noise(_MEASUREMENT_SHARE * price)
        candidates = self._candidates(state, model)
        scores = [self._score(cells, model, clique, noise) for clique in candidates]
        max_weight = max(self._weight(clique) for clique in candidates)
        sensitivity = max_weight * GRID * self._count_l1
        selector = self.exponential_mechanism((1 - _MEASUREMENT_SHARE) * price, sensitivity)
        clique = candidates[selector.pick(np.array(scores, dtype=np.int64), entropy)]
        before = model.project(clique)
        self.measure(state, cells, clique, noise, entropy)
        state.choices.append(clique)
        # The next fit begins with this one (`_fit`).
        state.cache["previous"] = state.cache.pop("estimate")
        after = self._fit(state).model.project(clique)
        if np.abs(after - before).sum() <= _mean_absolute_noise(noise) * after.size:
            _anneal(state)

    def _fit(self, state: State) -> FittedModel:
        """Return the model that is fitted to the tables measured so far, cached until another is measured."""
        if "estimate" not in state.cache:
            tables = [t.noisy_by_group(self.sizes, state.groups) for t in state.tables]
            sizes = grouped_sizes(state.groups, self.sizes)
            fit = MeasuredTree(sizes, tables, estimate_total(tables))
            previous = state.cache.get("previous")
            state.cache["estimate"] = mirror_descent(fit, initial=previous, iterations=_ITERATIONS)
        estimate: FittedModel = state.cache["estimate"]
        return estimate

    def _candidates(self, state: State, model: GraphicalModel) -> list[Clique]:
        """Return all tables by at most `degree` columns (the workload's downward closure) with which the
        junction tree stays below its limit of cells, and those that a clique of the model holds already."""
        limit = float(_spent(state) / self.exact_rho) * self.cells
        sizes = model.tree.sizes
        measured = list(dict.fromkeys(t.clique for t in state.tables))

        def has_room(clique: Clique) -> bool:
            # A table that is by itself larger than the limit is refused without the costly triangulation.
            small = math.prod(sizes[a] for a in clique) <= limit
            return small and junction_tree_cells(sizes, [*measured, clique]) <= limit

        return [
            clique
            for size in range(1, min(self.degree, len(sizes)) + 1)
            for clique in itertools.combinations(range(len(sizes)), size)
            if model.tree.host(clique) is not None or has_room(clique)
        ]

    def _weight(self, clique: Clique) -> int:
        """Return the paper's weight of a candidate: how many columns it shares with each table of the
        workload, summed over these tables."""
        columns = len(self.domain.columns)
        degree = min(self.degree, columns)
        return sum(
            shared * math.comb(len(clique), shared) * math.comb(columns - len(clique), degree - shared)
            for shared in range(1, min(len(clique), degree) + 1)
        )

    def _score(
        self, cells: OccurringCells, model: GraphicalModel, clique: Clique, noise: IntegerGaussian
    ) -> int:
        """Return the quality score of a candidate, in units of 1 / GRID of a row: its weight times the
        difference between the l1 error of the model and the expected l1 norm of the noise."""
        table = cells.table(clique)
        penalty = min(_MAX_PENALTY, math.ceil(GRID * _mean_absolute_noise(noise) * table.size))
        return self._weight(clique) * (self.distance(table, model.project(clique)) - penalty)


def _anneal(state: State) -> None:
    """Let all later rounds cost four times as much."""
    state.facts["level"] = int(state.facts.get("level", 0)) + 1


def _spent(state: State) -> Fraction:
    """Return the part of rho that is spent so far, a sum of exact fractions."""
    return Fraction(state.facts.get("used", "0"))


def _mean_absolute_noise(noise: IntegerGaussian) -> float:
    """Return the expected absolute noise of one cell, as if it were a continuous Gaussian."""
    return math.sqrt(2 / math.pi) * noise.standard_deviation
