"""Independent columns, and MST: a maximum spanning tree of tables by two columns."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import numpy as np

from .. import _require
from .._registry import described
from ..accounting import Event, compose
from ..mechanisms import ExponentialMechanism, IntegerGaussian
from ..sampling import Entropy
from .counting import Cells, Integers
from .estimation import noisy_total
from .junction import Clique
from .synthesizer import GRID, State, Synthesizer


@described("synthetic.Independent")
@dataclass(frozen=True, slots=True, kw_only=True)
class Independent(Synthesizer):
    """Measures every column alone: a copy in which columns have nothing to do with each other.

    Guarantee: the event, one discrete Gaussian for each column.
    Proof:     composition of `IntegerGaussian`, whose sensitivity is that of `counting.moved`.
    """

    method: ClassVar[str] = "independent"

    @property
    def _noise(self) -> IntegerGaussian:
        return self.noise(self.exact_rho / len(self.domain.columns))

    @property
    def event(self) -> Event:
        return self._noise.event.repeated(len(self.domain.columns))

    @property
    def length(self) -> int:
        return 1

    def advance(self, state: State, cells: Cells, taken: int, entropy: Entropy) -> None:
        for a in range(len(self.domain.columns)):
            self.measure(state, cells, (a,), self._noise, entropy)


@described("synthetic.MST")
@dataclass(frozen=True, slots=True, kw_only=True)
class MST(Synthesizer):
    """McKenna, Miklau & Sheldon 2021 (arXiv:2108.04978): measures all columns alone, then a maximum spanning
    tree of pairs, chosen by the exponential mechanism.

    The score of a pair is the l1 distance of its counts from what independent columns would give. Codes whose
    noisy count is below three standard deviations are put together before pairs are measured. `split` is how
    rho is shared between columns, choices and pairs; a third each in the paper.

    Guarantee: the event: d discrete Gaussians, d - 1 choices, d - 1 discrete Gaussians, fixed beforehand.
    Proof:     adaptive composition; each part is of the event's own kind whatever was released before.
               Scores move by at most GRID times the l1 sensitivity (`Synthesizer.distance`).
    """

    method: ClassVar[str] = "mst"
    split: tuple[Fraction, ...] = (Fraction(1, 3), Fraction(1, 3), Fraction(1, 3))

    def _check(self) -> None:
        parts = tuple(_require.exact(part, "split") for part in _require.listed(split=self.split))
        if len(parts) != 3 or min(parts) <= 0 or sum(parts) > 1:
            raise _require.fail("split", self.split, "three positive parts that add up to at most 1")
        object.__setattr__(self, "split", parts)

    @property
    def _edges(self) -> int:
        return len(self.domain.columns) - 1

    @property
    def _noise_of_columns(self) -> IntegerGaussian:
        share = self.split[0] if self._edges else Fraction(1)
        return self.noise(self.exact_rho * share / len(self.domain.columns))

    @property
    def _choice(self) -> ExponentialMechanism:
        return self.chooser(self.exact_rho * self.split[1] / self._edges, GRID * int(self.moved.l1 or 0))

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

    def advance(self, state: State, cells: Cells, taken: int, entropy: Entropy) -> None:
        if taken == 0:
            for a in range(len(self.domain.columns)):
                self.measure(state, cells, (a,), self._noise_of_columns, entropy)
        elif taken == 1:
            self._select(state, cells, entropy)
        else:
            self._measure_pairs(state, cells, entropy)

    def _select(self, state: State, cells: Cells, entropy: Entropy) -> None:
        scores = {pair: self._score(state, cells, pair) for pair in pairs_of(len(cells.sizes))}
        part = list(range(len(cells.sizes)))
        for _ in range(self._edges):
            open_pairs = [pair for pair in scores if part[pair[0]] != part[pair[1]]]
            a, b = open_pairs[self._choice.pick(_integers([scores[p] for p in open_pairs]), entropy)]
            state.choices.append((a, b))
            old, new = part[b], part[a]
            part = [new if p == old else p for p in part]

    def _score(self, state: State, cells: Cells, pair: Clique) -> int:
        shares = [_shares(state, a, cells.sizes[a]) for a in pair]
        total = noisy_total([t.noisy(cells.sizes) for t in state.tables]) if state.tables else 1.0
        return self.distance(cells.table(pair), total * np.multiply.outer(*shares))

    def _measure_pairs(self, state: State, cells: Cells, entropy: Entropy) -> None:
        """Put rare codes together, by released counts only, and measure the tree."""
        groups = [_grouped(state, a, n) for a, n in enumerate(cells.sizes)]
        if any(g is not None for g in groups):
            state.groups = [() if g is None else tuple(int(x) for x in g) for g in groups]
        fewer = cells.mapped(groups)
        for pair in state.choices:
            self.measure(state, fewer, tuple(sorted(pair)), self._noise_of_pairs, entropy)


def pairs_of(count: int) -> list[Clique]:
    return list(itertools.combinations(range(count), 2))


def _integers(scores: list[int]) -> Integers:
    return np.array(scores, dtype=np.int64)


def _shares(state: State, attribute: int, size: int) -> np.ndarray:
    """Return the released shares of a column's codes, none negative; equal ones if nothing was released."""
    own = [t for t in state.tables if t.clique == (attribute,)]
    if not own:
        return np.full(size, 1 / size)
    values = np.maximum(np.array(own[0].values, dtype=np.float64), 0)
    return values / values.sum() if values.sum() > 0 else np.full(size, 1 / size)


def _grouped(state: State, attribute: int, size: int) -> Integers | None:
    """Which new code each code gets: its own, or the one of all that are rare."""
    own = [t for t in state.tables if t.clique == (attribute,)]
    if not own:
        return None
    rare = np.array(own[0].values, dtype=np.float64) < 3 * float(own[0].variance) ** 0.5
    if rare.sum() < 2 or rare.all():
        return None
    groups = np.cumsum(~rare) - 1
    groups[rare] = int((~rare).sum())
    return groups.astype(np.int64)
