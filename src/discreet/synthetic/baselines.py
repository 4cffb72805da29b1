"""Defines MWEM (multiplicative weights with the exponential mechanism) over a graphical model: a baseline for
AIM.

A clique is an ascending tuple of columns; its table has the counts of rows by the codes of these columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import numpy as np

from .. import _require
from .._registry import described
from ..accounting import Event, compose
from ..mechanisms import ExponentialMechanism, IntegerGaussian
from ..sampling import Entropy
from .counting import OccurringCells
from .estimation import MeasuredTree, estimate_total, mirror_descent
from .junction import Clique, junction_tree_cells
from .marginal_trees import all_pairs
from .model import GraphicalModel
from .synthesizer import GRID, State, Synthesizer

# Iterations of mirror descent after each round, as in AIM: more cost time and no privacy.
_ITERATIONS = 50
# The share of rho for one-way marginals, from which the number of rows is estimated; not tuned.
_ONE_WAY_SHARE = Fraction(1, 10)


@described("synthetic.MWEM")
@dataclass(frozen=True, slots=True, kw_only=True)
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
    rounds: int = 10
    cells: int = 1 << 16

    def _check_options(self) -> None:
        _require.integer(rounds=self.rounds, at_least=1)
        _require.integer(cells=self.cells, at_least=1)

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
