"""A baseline: MWEM over a graphical model."""

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
from .counting import Cells
from .estimation import Fit, mirror_descent, noisy_total
from .junction import Clique, cells_of
from .marginal_trees import pairs_of
from .model import GraphicalModel
from .synthesizer import GRID, State, Synthesizer

_PASSES = 100


@described("synthetic.MWEM")
@dataclass(frozen=True, slots=True, kw_only=True)
class MWEM(Synthesizer):
    """Hardt, Ligett & McSherry 2012 (arXiv:1012.4763) over a graphical model, as in McKenna, Sheldon &
    Miklau 2019
    (arXiv:1901.09136): `rounds` times the pair of columns that the model gets most wrong is chosen and
    measured.

    The score is the l1 distance less the number of cells, as there. Columns are first measured alone for a
    tenth of rho, so that the total is known; each round halves what it gets between choice and table. A pair
    is open if the junction tree with it has at most `cells` cells.

    Guarantee: the event, fixed beforehand.
    Proof:     adaptive composition, as for `MST`.
    """

    method: ClassVar[str] = "mwem"
    rounds: int = 10
    cells: int = 1 << 16

    def _check(self) -> None:
        _require.integer(rounds=self.rounds, at_least=1)
        _require.integer(cells=self.cells, at_least=1)

    @property
    def _round(self) -> Fraction:
        return self.exact_rho * Fraction(9, 10) / self.rounds

    @property
    def _first(self) -> IntegerGaussian:
        return self.noise(self.exact_rho / (10 * len(self.domain.columns)))

    @property
    def _choice(self) -> ExponentialMechanism:
        return self.chooser(self._round / 2, GRID * int(self.moved.l1 or 0))

    @property
    def _noise(self) -> IntegerGaussian:
        return self.noise(self._round / 2)

    @property
    def event(self) -> Event:
        columns = self._first.event.repeated(len(self.domain.columns))
        rounds = [self._choice.event.repeated(self.rounds), self._noise.event.repeated(self.rounds)]
        return compose([columns, *rounds])

    @property
    def length(self) -> int:
        return 1 + self.rounds

    def advance(self, state: State, cells: Cells, taken: int, entropy: Entropy) -> None:
        if taken == 0:
            for a in range(len(cells.sizes)):
                self.measure(state, cells, (a,), self._first, entropy)
            return
        model = self._model(state)
        candidates = self._open(state)
        scores = [self._score(cells, model, clique) for clique in candidates]
        clique = candidates[self._choice.pick(np.array(scores, dtype=np.int64), entropy)]
        self.measure(state, cells, clique, self._noise, entropy)
        state.choices.append(clique)

    def _score(self, cells: Cells, model: GraphicalModel, clique: Clique) -> int:
        table = cells.table(clique)
        return self.distance(table, model.project(clique)) - GRID * table.size

    def _open(self, state: State) -> list[Clique]:
        columns = len(self.sizes)
        all_pairs = pairs_of(columns) if columns > 1 else [(0,)]
        measured = [t.clique for t in state.tables]
        fitting = [p for p in all_pairs if cells_of(self.sizes, [*measured, p]) <= self.cells]
        # Where nothing fits, a pair of small columns is measured again rather than nothing.
        return fitting or [t.clique for t in state.tables]

    def _model(self, state: State) -> GraphicalModel:
        tables = [t.noisy(self.sizes) for t in state.tables]
        fit = Fit(self.sizes, tables, noisy_total(tables) if tables else 1.0)
        old = state.kept.get("parts")
        estimate = mirror_descent(fit, begin=old, passes=_PASSES)
        state.kept["parts"] = estimate.parts
        return estimate.model
