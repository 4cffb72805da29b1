"""PrivBayes: a Bayesian network chosen by the exponential mechanism, with noisy conditional distributions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import numpy as np

from .. import _require
from .._registry import described
from .._require import Real
from ..accounting import Event, compose
from ..mechanisms import ExponentialMechanism, IntegerGaussian
from ..sampling import Entropy
from .counting import OccurringCells
from .estimation import NoisyTable, estimate_total
from .junction import Clique, JunctionTree, junction_tree_cells
from .model import LOG_ZERO, Floats, GraphicalModel, propagate_beliefs, zero_potentials
from .synthesizer import GRID, State, Synthesizer

# Of rho, the part that buys the number of rows where none is declared, not tuned. The paper takes that number
# for public.
_TOTAL_SHARE = Fraction(1, 20)
# Sets of parents that are scored for one column, at most: beyond, sets of fewer columns are taken. A round
# number that keeps a choice within seconds.
_MAX_PARENT_SETS = 2000


@described("synthetic.PrivBayes")
@dataclass(frozen=True, slots=True, kw_only=True)
class PrivBayes(Synthesizer):
    """Chooses a Bayesian network column by column (GreedyBayes), then measures the table of every column with
    its parents and makes it a conditional distribution (NoisyConditionals): Zhang, Cormode, Procopiuc,
    Srivastava & Xiao 2017 (PrivBayes, ACM TODS 42(4), article 25), for domains of any size.

    Candidates are all columns not yet chosen, each with every *maximal* set of columns of the network as
    parents whose table is theta-useful (MaximalParentSets): an average cell holds at least `theta` times the
    average noise, so that the table has at most n / (theta E|noise|) cells. The score is their R, the
    distance of the joint distribution from independence. `split` is their beta, the part of the price for
    choices: 0.3 and theta 4 are the paper's. `degree` limits the number of parents, `cells` the junction
    tree of the network.

    Three things differ from the paper: noise is discrete Gaussian and the price zCDP, where the paper has
    Laplace noise and a pure epsilon; the number of rows is private, and bought for a twentieth of rho unless
    a size is declared; rows are drawn from the network by a junction tree, exactly.

    Guarantee: the event, fixed beforehand.
    Proof:     adaptive composition. n R = 1/2 sum |c_xy - c_x c_y / n| moves by at most 3 when a row comes
               or goes: the joint counts by 1 in l1, and n p q by at most |n' - n| + n (|p' - p| + |q' - q|),
               which is at most 1 + 4 n / (n + 1), as shares of n + 1 rows differ from those of n by at most
               2 / (n + 1). Rows of a unit come one after the other, a replaced one goes and comes. Rounding
               down to the grid adds at most 1. Which tables are useful is decided by released and declared
               numbers.
    """

    method: ClassVar[str] = "privbayes"
    theta: Real = 4
    degree: int | None = None
    cells: int = 1 << 20
    split: Fraction = Fraction(3, 10)

    def _check_options(self) -> None:
        _require.positive(theta=self.theta)
        if self.degree is not None:
            _require.integer(degree=self.degree, at_least=1)
        _require.integer(cells=self.cells, at_least=1)
        object.__setattr__(self, "split", _require.exact(self.split, "split"))
        if not 0 < self.split < 1:
            raise _require.fail("split", self.split, "between 0 and 1")

    @property
    def _columns(self) -> int:
        return len(self.domain.columns)

    @property
    def _noise_of_total(self) -> IntegerGaussian | None:
        """The noise of the number of rows; None where nothing depends on it, or a size is declared."""
        if self._columns == 1 or self.public.size is not None:
            return None
        return self.noise(self.exact_rho * _TOTAL_SHARE)

    @property
    def _network_rho(self) -> Fraction:
        """What choices and tables cost together."""
        return self.exact_rho * (1 if self._noise_of_total is None else 1 - _TOTAL_SHARE)

    @property
    def _choice(self) -> ExponentialMechanism:
        sensitivity = 3 * GRID * int(self.count_sensitivity.l1 or 0) + 1
        return self.exponential_mechanism(
            self._network_rho * self.split / max(1, self._columns - 1), sensitivity
        )

    @property
    def _noise(self) -> IntegerGaussian:
        share = 1 - self.split if self._columns > 1 else Fraction(1)
        return self.noise(self._network_rho * share / self._columns)

    @property
    def event(self) -> Event:
        tables = self._noise.event.repeated(self._columns)
        if self._columns == 1:
            return tables
        choices = self._choice.event.repeated(self._columns - 1)
        total = [] if self._noise_of_total is None else [self._noise_of_total.event]
        return compose([*total, choices, tables])

    @property
    def length(self) -> int:
        return 3

    def advance(self, state: State, cells: OccurringCells, step: int, entropy: Entropy) -> None:
        if step == 0:
            if self._noise_of_total is not None:
                self.measure(state, cells, (), self._noise_of_total, entropy)
        elif step == 1:
            self._choose_network(state, cells, entropy)
        else:
            # A crash may have taken the choices: then columns stand alone.
            for clique in state.choices or [(a,) for a in range(self._columns)]:
                self.measure(state, cells, tuple(sorted(clique)), self._noise, entropy)

    def _max_useful_cells(self, state: State) -> float:
        """Return how many cells a theta-useful table has at most."""
        if self.public.size is not None:
            rows = float(self.public.size * self.rows_per_unit)
        else:
            rows = estimate_total([table.noisy(self.sizes) for table in state.tables])
        noise = math.sqrt(2 / math.pi) * self._noise.standard_deviation
        return rows / max(1e-12, _require.float_or_inf(self.theta) * noise)

    def _choose_network(self, state: State, cells: OccurringCells, entropy: Entropy) -> None:
        """Draw the first column at random; then choose, again and again, a column with its parents."""
        limit = self._max_useful_cells(state)
        network: list[Clique] = [(entropy.integer(63) % self._columns,)]
        scores: dict[Clique, int] = {}
        while len(network) < self._columns:
            candidates = self._candidates(network, limit)
            for candidate in candidates:
                if candidate not in scores:
                    scores[candidate] = self._score(cells, candidate[0], candidate[1:])
            choice = self._choice.pick(np.array([scores[c] for c in candidates], dtype=np.int64), entropy)
            network.append(candidates[choice])
        state.choices.extend(network)

    def _candidates(self, network: Sequence[Clique], limit: float) -> list[Clique]:
        """Return each column that is not in the network, followed by every maximal set of parents; alone
        where no set is useful."""
        chosen = sorted(clique[0] for clique in network)
        candidates: list[Clique] = []
        for a in sorted(set(range(self._columns)) - set(chosen)):
            sets = self._parent_sets(chosen, limit / self.sizes[a])
            fitting = [(a, *parents) for parents in sets if self._has_room(network, (a, *parents))]
            candidates += fitting or [(a,)]
        return candidates

    def _has_room(self, network: Sequence[Clique], clique: Clique) -> bool:
        return junction_tree_cells(self.sizes, [*network, clique]) <= self.cells

    def _parent_sets(self, columns: Sequence[int], limit: float) -> list[Clique]:
        """Return all maximal sets of these columns with at most `limit` cells, of at most as many columns as
        leave few enough sets to score."""
        size = len(columns) if self.degree is None else min(self.degree, len(columns))
        while size > 1:
            sets = maximal_parent_sets(self.sizes, columns, limit, size, _MAX_PARENT_SETS)
            if sets is not None:
                return sets
            size -= 1
        return maximal_parent_sets(self.sizes, columns, limit, 1, self._columns) or [()]

    def _score(self, cells: OccurringCells, a: int, parents: tuple[int, ...]) -> int:
        """Return n R in parts of a row, rounded down, computed in exact whole numbers."""
        if not parents:
            return 0
        table = cells.table((a, *parents)).reshape(self.sizes[a], -1)
        total = int(table.sum())
        if total == 0:
            return 0
        # The sum is at most 2 n^2: within 64 bits for up to 2^30 rows.
        dtype = np.int64 if total < 1 << 30 else object
        of_column, of_parents = table.sum(axis=1).astype(dtype), table.sum(axis=0).astype(dtype)
        distance = np.abs(table.astype(dtype) * total - np.multiply.outer(of_column, of_parents)).sum()
        return int(distance) * GRID // (2 * total)


def maximal_parent_sets(
    sizes: Sequence[int], columns: Sequence[int], limit: float, size: int, max_sets: int
) -> list[Clique] | None:
    """Return all sets of at most `size` of these columns with at most `limit` cells to which no other column
    can be added (MaximalParentSets); None where there are more than `max_sets`.

    >>> maximal_parent_sets((2, 3, 5), (0, 1, 2), 10, 3, 99)
    [(0, 2), (0, 1)]
    """
    maximal: set[Clique] = set()
    # All fitting sets of one size, beginning with the empty one.
    layer: set[Clique] = {()} if limit >= 1 else set()
    while layer:
        next_layer: set[Clique] = set()
        for clique in layer:
            cells = math.prod(sizes[a] for a in clique)
            extended = [
                tuple(sorted((*clique, b)))
                for b in columns
                if b not in clique and len(clique) < size and cells * sizes[b] <= limit
            ]
            next_layer.update(extended)
            if not extended:
                maximal.add(clique)
        if len(next_layer) + len(maximal) > max_sets:
            return None
        layer = next_layer
    return sorted(maximal, key=lambda clique: (-len(clique), [-a for a in clique]))


def network_model(
    sizes: Sequence[int],
    network: Sequence[Clique],
    tables: Iterable[NoisyTable],
    total: float,
    constraints: dict[Clique, Floats],
) -> GraphicalModel:
    """Return the distribution of a Bayesian network whose conditionals come from noisy tables
    (NoisyConditionals): negative counts are zero, each column given its parents sums to one, evenly where
    no count is positive.

    `network` has each column first, then its parents. `constraints` are log-potentials, public facts.
    """
    by_clique = {table.clique: table.values for table in tables}
    tree = JunctionTree.of(sizes, [*(tuple(sorted(clique)) for clique in network), *constraints])
    logs = zero_potentials(tree)
    for column, *parents in network:
        clique = tuple(sorted((column, *parents)))
        # A crash may have taken the tables: then every conditional is even.
        counts = np.maximum(by_clique.get(clique, np.zeros([sizes[a] for a in clique])), 0.0)
        axis = clique.index(column)
        sums = counts.sum(axis=axis, keepdims=True)
        shares = np.where(sums > 0, counts / np.where(sums > 0, sums, 1.0), 1.0 / sizes[column])
        with np.errstate(divide="ignore"):
            add_log_potential(tree, logs, clique, np.maximum(np.log(shares), LOG_ZERO))
    for clique, values in constraints.items():
        add_log_potential(tree, logs, clique, values)
    return GraphicalModel(tree, tuple(propagate_beliefs(tree, logs, total)[0]), total)


def add_log_potential(tree: JunctionTree, logs: list[Floats], clique: Clique, values: Floats) -> None:
    """Add a table of logarithms to the potential of the clique that holds it."""
    host = tree.host(clique)
    # The tree was triangulated for it.
    assert host is not None
    shape = tuple(tree.sizes[a] if a in clique else 1 for a in tree.cliques[host])
    logs[host] = logs[host] + values.reshape(shape)
