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
from .counting import Cells
from .estimation import NoisyTable, noisy_total
from .junction import Clique, JunctionTree, cells_of
from .model import NEVER, Floats, GraphicalModel, beliefs, uniform
from .synthesizer import GRID, State, Synthesizer

# Of rho, the part that buys the number of rows where none is declared. The paper takes that for public.
_TOTAL = Fraction(1, 20)
# Sets of parents that are scored for one column, at most: beyond, sets of fewer columns are taken. A round
# number that keeps a choice within seconds.
_MOST_SETS = 2000


@described("synthetic.PrivBayes")
@dataclass(frozen=True, slots=True, kw_only=True)
class PrivBayes(Synthesizer):
    """Zhang, Cormode, Procopiuc, Srivastava & Xiao 2017 (PrivBayes, ACM TODS 42(4), article 25), for domains
    of any size: a Bayesian network is chosen column by column (their GreedyBayes), then the table of every
    column with its parents is measured and made a conditional distribution (NoisyConditionals).

    Candidates are all columns that are left, each with every *maximal* set of columns of the network as
    parents whose table is theta-useful (MaximalParentSets): an average cell holds at least `theta` times the
    average noise, so that the table has at most n / (theta E|noise|) cells. The score is their R, the
    distance of the joint distribution from independence. `split` is their beta, the part of the price for
    choices: 0.3 and theta 4 are the paper's. `degree` limits the number of parents, `cells` the junction
    tree of the network.

    Here is otherwise: noise is discrete Gaussian and the price zCDP, where the paper has Laplace noise and a
    pure epsilon; the number of rows is private, and bought for a twentieth of rho unless a size is declared;
    rows are drawn from the network by a junction tree, exactly.

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

    def _check(self) -> None:
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
    def _bought(self) -> IntegerGaussian | None:
        """The noise of the number of rows; None where nothing depends on it, or a size is declared."""
        if self._columns == 1 or self.public.size is not None:
            return None
        return self.noise(self.exact_rho * _TOTAL)

    @property
    def _left(self) -> Fraction:
        return self.exact_rho * (1 if self._bought is None else 1 - _TOTAL)

    @property
    def _choice(self) -> ExponentialMechanism:
        sensitivity = 3 * GRID * int(self.moved.l1 or 0) + 1
        return self.chooser(self._left * self.split / max(1, self._columns - 1), sensitivity)

    @property
    def _noise(self) -> IntegerGaussian:
        share = 1 - self.split if self._columns > 1 else Fraction(1)
        return self.noise(self._left * share / self._columns)

    @property
    def event(self) -> Event:
        tables = self._noise.event.repeated(self._columns)
        if self._columns == 1:
            return tables
        choices = self._choice.event.repeated(self._columns - 1)
        return compose([*([] if self._bought is None else [self._bought.event]), choices, tables])

    @property
    def length(self) -> int:
        return 3

    def advance(self, state: State, cells: Cells, taken: int, entropy: Entropy) -> None:
        if taken == 0:
            if self._bought is not None:
                self.measure(state, cells, (), self._bought, entropy)
        elif taken == 1:
            self._choose(state, cells, entropy)
        else:
            # A crash may have taken the choices: then columns stand alone.
            for clique in state.choices or [(a,) for a in range(self._columns)]:
                self.measure(state, cells, tuple(sorted(clique)), self._noise, entropy)

    def _useful(self, state: State) -> float:
        """Return how many cells a theta-useful table has at most."""
        if self.public.size is not None:
            rows = float(self.public.size * self.rows_per_unit)
        else:
            rows = noisy_total([t.noisy(self.sizes) for t in state.tables]) if state.tables else 1.0
        noise = math.sqrt(2 / math.pi) * self._noise.standard_deviation
        return rows / max(1e-12, _require.float_or_inf(self.theta) * noise)

    def _choose(self, state: State, cells: Cells, entropy: Entropy) -> None:
        """The first column is drawn; of all others the best pair of a column and parents is chosen."""
        limit = self._useful(state)
        network: list[Clique] = [(entropy.integer(63) % self._columns,)]
        scores: dict[Clique, int] = {}
        while len(network) < self._columns:
            candidates = self._candidates(network, limit)
            for one in candidates:
                if one not in scores:
                    scores[one] = self._score(cells, one[0], one[1:])
            chosen = self._choice.pick(np.array([scores[c] for c in candidates], dtype=np.int64), entropy)
            network.append(candidates[chosen])
        state.choices.extend(network)

    def _candidates(self, network: Sequence[Clique], limit: float) -> list[Clique]:
        """Columns that are left, each first, with every maximal set of parents; alone where none is
        useful."""
        done = sorted(clique[0] for clique in network)
        out: list[Clique] = []
        for a in sorted(set(range(self._columns)) - set(done)):
            sets = self._parents(done, limit / self.sizes[a])
            fitting = [(a, *parents) for parents in sets if self._has_room(network, (a, *parents))]
            out += fitting or [(a,)]
        return out

    def _has_room(self, network: Sequence[Clique], clique: Clique) -> bool:
        return cells_of(self.sizes, [*network, clique]) <= self.cells

    def _parents(self, done: Sequence[int], limit: float) -> list[Clique]:
        """Return all maximal sets of columns with at most `limit` cells, of as many columns as can be
        scored."""
        size = len(done) if self.degree is None else min(self.degree, len(done))
        while size > 1:
            sets = maximal_sets(self.sizes, done, limit, size, _MOST_SETS)
            if sets is not None:
                return sets
            size -= 1
        return maximal_sets(self.sizes, done, limit, 1, self._columns) or [()]

    def _score(self, cells: Cells, a: int, parents: tuple[int, ...]) -> int:
        """Return the grid's floor of n R, in exact whole numbers."""
        if not parents:
            return 0
        table = cells.table((a, *parents)).reshape(self.sizes[a], -1)
        total = int(table.sum())
        if total == 0:
            return 0
        # The sum is at most 2 n^2: within 64 bits for up to 2^30 rows.
        kind = np.int64 if total < 1 << 30 else object
        own, others = table.sum(axis=1).astype(kind), table.sum(axis=0).astype(kind)
        apart = np.abs(table.astype(kind) * total - np.multiply.outer(own, others)).sum()
        return int(apart) * GRID // (2 * total)


def maximal_sets(
    sizes: Sequence[int], columns: Sequence[int], limit: float, size: int, most: int
) -> list[Clique] | None:
    """Return all sets of at most `size` of these columns with at most `limit` cells to which no other column
    can be added (MaximalParentSets); None where there are more than `most`.

    >>> maximal_sets((2, 3, 5), (0, 1, 2), 10, 3, 99)
    [(0, 2), (0, 1)]
    """
    fitting: set[Clique] = set()
    layer: set[Clique] = {()} if limit >= 1 else set()
    while layer:
        wider: set[Clique] = set()
        for clique in layer:
            cells = math.prod(sizes[a] for a in clique)
            added = [
                tuple(sorted((*clique, b)))
                for b in columns
                if b not in clique and len(clique) < size and cells * sizes[b] <= limit
            ]
            wider.update(added)
            if not added:
                fitting.add(clique)
        if len(wider) + len(fitting) > most:
            return None
        layer = wider
    return sorted(fitting, key=lambda clique: (-len(clique), [-a for a in clique]))


def network_model(
    sizes: Sequence[int],
    network: Sequence[Clique],
    tables: Iterable[NoisyTable],
    total: float,
    facts: dict[Clique, Floats],
) -> GraphicalModel:
    """Return the distribution of a Bayesian network whose conditionals come from noisy tables
    (NoisyConditionals): negative counts are zero, each column given its parents sums to one, evenly where
    nothing is left.

    `network` has each column first, then its parents. `facts` are public constraints.
    """
    by_clique = {table.clique: table.values for table in tables}
    tree = JunctionTree.of(sizes, [*(tuple(sorted(clique)) for clique in network), *facts])
    logs = uniform(tree)
    for column, *parents in network:
        clique = tuple(sorted((column, *parents)))
        counts = np.maximum(by_clique[clique], 0.0)
        axis = clique.index(column)
        sums = counts.sum(axis=axis, keepdims=True)
        shares = np.where(sums > 0, counts / np.where(sums > 0, sums, 1.0), 1.0 / sizes[column])
        with np.errstate(divide="ignore"):
            add_logs(tree, logs, clique, np.maximum(np.log(shares), NEVER))
    for clique, values in facts.items():
        add_logs(tree, logs, clique, values)
    return GraphicalModel(tree, tuple(beliefs(tree, logs, total)[0]), total)


def add_logs(tree: JunctionTree, logs: list[Floats], clique: Clique, values: Floats) -> None:
    """Add a table of logarithms to the potentials of the clique that holds it."""
    host = tree.host(clique)
    assert host is not None  # the tree was triangulated for it
    shape = tuple(tree.sizes[a] if a in clique else 1 for a in tree.cliques[host])
    logs[host] = logs[host] + values.reshape(shape)
