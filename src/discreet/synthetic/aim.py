"""AIM: an adaptive and iterative mechanism for synthetic data, with annealing of its budget."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np

from .. import _require
from .._registry import described
from ..accounting import ZCDP, Event
from ..mechanisms import IntegerGaussian
from ..sampling import Entropy
from .coarsening import Groups, arrays, grouped, sizes_of
from .counting import Cells
from .estimation import Estimate, Fit, merged, mirror_descent, noisy_total
from .junction import Clique, cells_of
from .model import GraphicalModel
from .synthesizer import GRID, State, Synthesizer

# Of the budget of a round, the part for its table; the rest is for its choice (McKenna et al., Section 5).
_TABLE = Fraction(9, 10)
# Of rho, the part for the columns alone, at first: every table errs at least as much as its columns. A third
# in MST, a sixteenth in the paper's AIM; chosen for columns of up to 100 codes, not tuned.
_FIRST = Fraction(1, 6)
# A column of more codes than this is put together to groups.
_MOST_CODES = 20
# Groups have at least so many rows, in standard deviations of a table that gets an equal share of rho among
# all columns. To part a group of m rows costs a table with k other codes noise of about 0.4 k deviations, and
# gains m / 2 times the distance of the two halves: at k = 10 and distances of 0.08, m is 100 deviations. On a
# simulated table 60, 100 and 150 gave pairs of 0.073, 0.064 and 0.064. Codes without an order are put
# together less, as the group of rare ones says nothing of each.
_LEAST_ORDERED, _LEAST_OTHERS = 100.0, 30.0
# Rounds that the budget would be enough for if it were never annealed, for each column.
_ROUNDS = 16
# Passes of mirror descent after each round, from where the last one stopped. A fit that has not come far
# looks as if its round had taught nothing, and the budget is annealed early: 100 were better than 25 on two
# seeds of Adult.
# More passes cost time and no privacy.
_PASSES = 100

# What is subtracted from a score for noise, at most: scores stay within 64 bits however small the budget is.
_LARGEST_PENALTY = 1 << 42


@described("synthetic.AIM")
@dataclass(frozen=True, slots=True, kw_only=True)
class AIM(Synthesizer):
    """McKenna, Mullins, Sheldon & Miklau 2022 (arXiv:2201.12677), Algorithm 2: again and again the table
    that the
    model gets most wrong is chosen and measured, as long as the budget lasts.

    The workload are all tables by `degree` columns, the candidates those and all smaller ones. A candidate is
    open if the model's junction tree with it has at most `cells` cells, times the part of the budget that is
    used. Where a round has taught less than its noise, the next ones get four times the budget.

    Other than in the paper, columns get a larger part of the budget at first, by their number of codes, and
    codes of a column that has many are put together by what was released of it (`coarsening.grouped`) before
    tables by several columns are measured. Columns of constraints keep their codes.

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

    def _check(self) -> None:
        _require.integer(degree=self.degree, at_least=1)
        _require.integer(cells=self.cells, at_least=1)

    @property
    def event(self) -> Event:
        return ZCDP(rho=self.exact_rho, neighbors=self.public.neighbors)

    @property
    def length(self) -> int:
        """The columns, and the most rounds there can be."""
        return 1 + _ROUNDS * len(self.domain.columns)

    @property
    def _round(self) -> Fraction:
        """What a round costs at first."""
        return self.exact_rho / (_ROUNDS * len(self.domain.columns))

    def advance(self, state: State, cells: Cells, taken: int, entropy: Entropy) -> None:
        if taken == 0:
            for a, share in enumerate(self._shares_of_columns()):
                self.measure(state, cells, (a,), self.noise(share), entropy)
            self._spend(state, self._first)
            state.groups = self._groups(state)
            return
        price = self._next_price(state)
        if price == 0:
            return
        self._spend(state, price)
        self._take_round(state, cells.mapped(arrays(state.groups, len(self.sizes))), price, entropy)

    @property
    def _first(self) -> Fraction:
        """What the columns alone cost."""
        return _FIRST * self.exact_rho

    def _shares_of_columns(self) -> list[Fraction]:
        """Return how the price of columns is shared: the sum over columns of the expected l1 error, codes
        times standard deviation, is least where rho goes with the 2/3rd power of the number of codes."""
        weights = [max(1, round(64 * size ** (2 / 3))) for size in self.sizes]
        return [self._first * Fraction(weight, sum(weights)) for weight in weights]

    def _groups(self, state: State) -> list[Groups]:
        """Return which codes of each column are put together, from what was released of columns alone."""
        noise = self.noise(self.exact_rho / len(self.sizes)).standard_deviation
        bound = {name for fact in self.constraints for name in (fact.left, fact.right)}
        out: list[Groups] = []
        for a, coding in enumerate(self.domain.codings(self.public)):
            (table,) = merged([t.noisy(self.sizes) for t in state.tables if t.clique == (a,)])
            ordered = bool(coding.edges)
            least = noise * (_LEAST_ORDERED if ordered else _LEAST_OTHERS)
            alone = coding.size <= _MOST_CODES or coding.column in bound
            group = () if alone else grouped(table.values, least, ordered=ordered, missing=coding.missing)
            out.append(group)
        return out if any(out) else []

    def _next_price(self, state: State) -> Fraction:
        """Return what the next round costs: all that is left if it is not enough for two; 0 when nothing is
        left."""
        left = self.exact_rho - _used(state)
        price: Fraction = self._round * 4 ** int(state.facts.get("level", 0))
        return max(Fraction(0), left) if left <= 2 * price else price

    def _spend(self, state: State, price: Fraction) -> None:
        state.facts["used"] = str(_used(state) + price)

    def forfeit(self, state: State, steps: int) -> None:
        """Count steps that were begun and lost at the most they can have cost: as if each had annealed."""
        for _ in range(steps):
            if not state.facts.get("used"):
                self._spend(state, self._first)
                continue
            self._spend(state, self._next_price(state))
            state.facts["level"] = int(state.facts.get("level", 0)) + 1

    def _take_round(self, state: State, cells: Cells, price: Fraction, entropy: Entropy) -> None:
        model = self._model(state).model
        noise = self.noise(_TABLE * price)
        candidates = self._candidates(state, model)
        scores = [self._score(cells, model, clique, noise) for clique in candidates]
        widest = max(self._weight(clique) for clique in candidates)
        chooser = self.chooser((1 - _TABLE) * price, widest * GRID * int(self.moved.l1 or 0))
        clique = candidates[chooser.pick(np.array(scores, dtype=np.int64), entropy)]
        before = model.project(clique)
        self.measure(state, cells, clique, noise, entropy)
        state.choices.append(clique)
        state.kept["old"] = state.kept.pop("estimate")
        after = self._model(state).model.project(clique)
        if np.abs(after - before).sum() <= _expected_noise(noise) * after.size:
            state.facts["level"] = int(state.facts.get("level", 0)) + 1

    def _model(self, state: State) -> Estimate:
        """Return the model of what was measured so far; kept until more is."""
        if "estimate" not in state.kept:
            tables = [t.noisy_in_groups(self.sizes, state.groups) for t in state.tables]
            sizes = sizes_of(state.groups, self.sizes)
            fit = Fit(sizes, tables, noisy_total(tables) if tables else 1.0)
            old = state.kept.get("old")
            begin = None if old is None else old.parts
            state.kept["estimate"] = mirror_descent(fit, begin=begin, passes=_PASSES)
        estimate: Estimate = state.kept["estimate"]
        return estimate

    def _candidates(self, state: State, model: GraphicalModel) -> list[Clique]:
        """Return all tables of the workload's closure that the model has room for; those it holds already are
        free."""
        limit = float(_used(state) / self.exact_rho) * self.cells
        sizes = model.tree.sizes
        measured = list(dict.fromkeys(t.clique for t in state.tables))
        return [
            clique
            for size in range(1, min(self.degree, len(sizes)) + 1)
            for clique in itertools.combinations(range(len(sizes)), size)
            if model.tree.host(clique) is not None
            or (
                math.prod(sizes[a] for a in clique) <= limit and cells_of(sizes, [*measured, clique]) <= limit
            )
        ]

    def _weight(self, clique: Clique) -> int:
        """Return how many columns a clique shares with the tables of the workload, summed over these."""
        columns = len(self.domain.columns)
        degree = min(self.degree, columns)
        inside = len(clique)
        return sum(
            k * math.comb(inside, k) * math.comb(columns - inside, degree - k)
            for k in range(1, min(inside, degree) + 1)
        )

    def _score(self, cells: Cells, model: GraphicalModel, clique: Clique, noise: IntegerGaussian) -> int:
        table = cells.table(clique)
        penalty = min(_LARGEST_PENALTY, math.ceil(GRID * _expected_noise(noise) * table.size))
        return self._weight(clique) * (self.distance(table, model.project(clique)) - penalty)


def _used(state: State) -> Fraction:
    return Fraction(state.facts.get("used", "0"))


def _expected_noise(noise: IntegerGaussian) -> float:
    """Return the expected size of the noise of one cell."""
    return math.sqrt(2 / math.pi) * noise.standard_deviation


__all__: list[Any] = ["AIM"]
