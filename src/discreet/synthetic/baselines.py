"""Baselines: MWEM over a graphical model, and PrivBayes."""

from __future__ import annotations

import itertools
import math
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


@described("synthetic.PrivBayes")
@dataclass(frozen=True, slots=True, kw_only=True)
class PrivBayes(Synthesizer):
    """Zhang, Cormode, Procopiuc, Srivastava & Xiao 2017 (PrivBayes, ACM TODS 42(4)): a Bayesian network is
    chosen
    column by column, each with up to `degree` parents, by how far the joint table is from independence (their
    score R), and the table of every column with its parents is measured.

    Tables have at most `cells` cells. `split` is the part of rho for the choices.

    Guarantee: the event, fixed beforehand.
    Proof:     adaptive composition. n R = 1/2 sum |c_xy - c_x c_y / n| moves by at most 3 when a row comes
               or goes: the joint counts by 1 in l1, and n p q by at most |n' - n| + n (|p' - p| + |q' - q|),
               which is at most 1 + 4 n / (n + 1), as shares of n + 1 rows differ from those of n by at most
               2 / (n + 1). Rows of a unit come one after the other, a replaced one goes and comes. Rounding
               down to the grid adds at most 1.
    """

    method: ClassVar[str] = "privbayes"
    degree: int = 2
    cells: int = 1 << 12
    split: Fraction = Fraction(3, 10)

    def _check(self) -> None:
        _require.integer(degree=self.degree, at_least=1)
        _require.integer(cells=self.cells, at_least=1)
        object.__setattr__(self, "split", _require.exact(self.split, "split"))
        if not 0 < self.split < 1:
            raise _require.fail("split", self.split, "between 0 and 1")

    @property
    def _columns(self) -> int:
        return len(self.domain.columns)

    @property
    def _choice(self) -> ExponentialMechanism:
        sensitivity = 3 * GRID * int(self.moved.l1 or 0) + 1
        return self.chooser(self.exact_rho * self.split / max(1, self._columns - 1), sensitivity)

    @property
    def _noise(self) -> IntegerGaussian:
        share = 1 - self.split if self._columns > 1 else Fraction(1)
        return self.noise(self.exact_rho * share / self._columns)

    @property
    def event(self) -> Event:
        tables = self._noise.event.repeated(self._columns)
        if self._columns == 1:
            return tables
        return compose([self._choice.event.repeated(self._columns - 1), tables])

    @property
    def length(self) -> int:
        return 2

    def advance(self, state: State, cells: Cells, taken: int, entropy: Entropy) -> None:
        if taken == 0:
            self._choose(state, cells, entropy)
            return
        for clique in state.choices:
            self.measure(state, cells, tuple(sorted(clique)), self._noise, entropy)

    def _choose(self, state: State, cells: Cells, entropy: Entropy) -> None:
        """The first column is the first of the domain; of all others the best pair of a column and
        parents."""
        done = [0]
        state.choices.append((0,))
        while len(done) < self._columns:
            candidates = self._candidates(done)
            scores = [self._score(cells, c[0], c[1:]) for c in candidates]
            chosen = candidates[self._choice.pick(np.array(scores, dtype=np.int64), entropy)]
            state.choices.append(chosen)
            done.append(chosen[0])

    def _candidates(self, done: list[int]) -> list[Clique]:
        """Columns that are left, each first, with every largest set of parents that a table has room for."""
        out: list[Clique] = []
        for a in range(self._columns):
            if a in done:
                continue
            for size in range(min(self.degree, len(done)), -1, -1):
                fitting = [
                    (a, *parents)
                    for parents in itertools.combinations(done, size)
                    if math.prod(self.sizes[b] for b in (a, *parents)) <= self.cells
                ]
                out += fitting
                if fitting:
                    break
            else:
                out.append((a,))
        return out

    def _score(self, cells: Cells, a: int, parents: tuple[int, ...]) -> int:
        """Return the grid's floor of n R, in exact whole numbers."""
        if not parents:
            return 0
        table = cells.table((a, *parents)).reshape(self.sizes[a], -1)
        total = int(table.sum())
        if total == 0:
            return 0
        own, others = table.sum(axis=1).astype(object), table.sum(axis=0).astype(object)
        apart = np.abs(table.astype(object) * total - np.multiply.outer(own, others)).sum()
        return int(apart * GRID // (2 * total))
