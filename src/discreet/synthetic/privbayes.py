"""Defines PrivBayes: a Bayesian network chosen by the exponential mechanism, with noisy conditional
distributions.

A column is named by its position. A tuple of columns is called a clique; the first column of a clique of the
network has the others as its parents.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Annotated, ClassVar

import numpy as np

from .. import _require
from .._registry import described
from .._require import EXACT, OPEN_PROBABILITY, POSITIVE, Real, at_least
from ..accounting import Event, compose
from ..mechanisms import ExponentialMechanism, IntegerGaussian
from ..sampling import Entropy
from .counting import OccurringCells
from .estimation import NoisyTable, estimate_total
from .graphical_model import (
    LOG_ZERO,
    Clique,
    Floats,
    GraphicalModel,
    JunctionTree,
    junction_tree_cells,
    propagate_beliefs,
    zero_potentials,
)
from .synthesizer import GRID, State, Synthesizer

# The share of rho for the noisy number of rows, where no size is declared; not tuned. The paper treats that
# number as public.
_TOTAL_SHARE = Fraction(1, 20)
# The most sets of parents that are scored for one column; where there are more, only sets of fewer columns
# are candidates. A round number that keeps a choice within seconds.
_MAX_PARENT_SETS = 2000


@described("synthetic.PrivBayes")
class PrivBayes(Synthesizer):
    """Chooses a Bayesian network column by column (GreedyBayes), then measures the table of every column with
    its parents and makes it a conditional distribution (NoisyConditionals): Zhang, Cormode, Procopiuc,
    Srivastava & Xiao 2017 (PrivBayes, ACM TODS 42(4), article 25), for domains of any size.

    A candidate is a column that is not in the network yet, with a *maximal* set of the network's columns as
    parents among those whose table is theta-useful (MaximalParentSets): an average cell holds at least
    `theta` times the average absolute noise, so for n rows the table has at most n / (theta E|noise|) cells.
    The score is n times the paper's R, the distance of the joint distribution of column and parents from
    their independence. `split` is the paper's beta, the share of the price for choices; 0.3 and a theta of 4
    are the paper's values. `degree` limits the number of parents, and `cells` the number of cells of the
    network's junction tree.

    Three things differ from the paper: noise is discrete Gaussian and the price zCDP, where the paper has
    Laplace noise and pure epsilon-DP; the number of rows is private, and measured for a twentieth of rho
    unless a size is declared; rows are sampled from the network by way of a junction tree.

    Guarantee: `event`, which is fixed before the run.
    Proof:     adaptive composition. Let c_xy be the number of rows with code x and parents' codes y, c_x and
               c_y its sums, n the number of rows, and p = c_x / n, q = c_y / n. The score n R = 1/2 sum over
               x, y of |c_xy - n p q| moves by at most 3 when a row is added or removed: in l1, c_xy moves by
               1, and n p q by at most |n' - n| + n (|p' - p| + |q' - q|), where primes mark the table with
               n' = n + 1 rows. This is at most 1 + 4 n / (n + 1), because the shares of n + 1 rows differ
               from those of n rows by at most 2 / (n + 1) in l1. So the sum moves by less than 1 + 5 = 6, and
               its half by less than 3. A unit's rows are added one after the other;
               a replaced row is removed and another added. Rounding down to units of 1 / GRID of a row adds
               at most one unit. Which tables are theta-useful is decided by released and declared numbers.
    """

    method: ClassVar[str] = "privbayes"
    theta: Annotated[Real, POSITIVE] = 4
    degree: Annotated[int, at_least(1)] | None = None
    cells: Annotated[int, at_least(1)] = 1 << 20
    split: Annotated[Fraction, EXACT, OPEN_PROBABILITY] = Fraction(3, 10)
    length: ClassVar[int] = 3

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
        """The rho of all choices and tables: what is left after the number of rows is paid."""
        return self.exact_rho * (1 if self._noise_of_total is None else 1 - _TOTAL_SHARE)

    @property
    def _choice(self) -> ExponentialMechanism:
        """The choice of one column with its parents, at the sensitivity of the class docstring's proof."""
        sensitivity = 3 * GRID * self._count_l1 + 1
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

    def advance(self, state: State, cells: OccurringCells, step: int, entropy: Entropy) -> None:
        if step == 0:
            if self._noise_of_total is not None:
                self.measure(state, cells, (), self._noise_of_total, entropy)
        elif step == 1:
            self._choose_network(state, cells, entropy)
        else:
            # If a crash lost the choices, all columns are measured without parents.
            for clique in state.choices or [(a,) for a in range(self._columns)]:
                self.measure(state, cells, tuple(sorted(clique)), self._noise, entropy)

    def _max_useful_cells(self, state: State) -> float:
        """Return the most cells of a theta-useful table: (number of rows) / (theta * mean absolute noise)."""
        if self.public.size is not None:
            rows = float(self.public.size * self.rows_per_unit)
        else:
            rows = estimate_total([table.noisy(self.sizes) for table in state.tables])
        noise = math.sqrt(2 / math.pi) * self._noise.standard_deviation
        return rows / max(1e-12, _require.float_or_inf(self.theta) * noise)

    def _choose_network(self, state: State, cells: OccurringCells, entropy: Entropy) -> None:
        """Draw the first column at random; then choose one column after the other, each with its parents."""
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
        """Return the candidates: tuples of a column that is not in the network and a maximal set of parents;
        of the column alone where no set of parents is useful and small enough (`_has_room`). `limit` is the
        most cells of their table."""
        chosen = sorted(clique[0] for clique in network)
        candidates: list[Clique] = []
        for a in sorted(set(range(self._columns)) - set(chosen)):
            sets = self._parent_sets(chosen, limit / self.sizes[a])
            fitting = [(a, *parents) for parents in sets if self._has_room(network, (a, *parents))]
            candidates += fitting or [(a,)]
        return candidates

    def _has_room(self, network: Sequence[Clique], clique: Clique) -> bool:
        """Return whether the junction tree of the network with this clique has at most `cells` cells."""
        return junction_tree_cells(self.sizes, [*network, clique]) <= self.cells

    def _parent_sets(self, columns: Sequence[int], limit: float) -> list[Clique]:
        """Return all maximal sets of these columns with at most `limit` cells. The number of columns of a set
        is limited by `degree`, and lowered until there are at most `_MAX_PARENT_SETS` sets."""
        size = len(columns) if self.degree is None else min(self.degree, len(columns))
        while size > 1:
            sets = maximal_parent_sets(self.sizes, columns, limit, size, _MAX_PARENT_SETS)
            if sets is not None:
                return sets
            size -= 1
        return maximal_parent_sets(self.sizes, columns, limit, 1, self._columns) or [()]

    def _score(self, cells: OccurringCells, a: int, parents: tuple[int, ...]) -> int:
        """Return the score n R in units of 1 / GRID of a row, rounded down, computed in exact integers; 0 for
        a column without parents."""
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
    """Return all sets of at most `size` of these columns, with at most `limit` cells, to which no other of
    the columns can be added within these limits (MaximalParentSets); None where there may be more than
    `max_sets`.

    >>> maximal_parent_sets((2, 3, 5), (0, 1, 2), 10, 3, 99)
    [(0, 2), (0, 1)]
    """
    maximal: set[Clique] = set()
    # All sets of one size with at most `limit` cells, beginning with the empty set.
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
    """Return the distribution of a Bayesian network whose conditional distributions come from noisy tables
    (NoisyConditionals): negative counts are set to 0, and the counts of a column are divided by their sum for
    each combination of the parents' codes; where no count is positive, the distribution is uniform.

    `network` has a tuple for each column: the column, then its parents. `total` is the number of rows.
    `constraints` are log-potentials by clique, public facts.
    """
    by_clique = {table.clique: table.values for table in tables}
    tree = JunctionTree.of(sizes, [*(tuple(sorted(clique)) for clique in network), *constraints])
    logs = zero_potentials(tree)
    for column, *parents in network:
        clique = tuple(sorted((column, *parents)))
        # If a crash lost the tables, every conditional distribution is uniform.
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
    """Add a table of logarithms by `clique` to the log-potential of the tree's clique that contains it."""
    host = tree.host(clique)
    # The tree was built so that each table and each constraint is within one of its cliques.
    assert host is not None
    shape = tuple(tree.sizes[a] if a in clique else 1 for a in tree.cliques[host])
    logs[host] = logs[host] + values.reshape(shape)
