"""The workload mechanism: counts of cells are measured through an integer strategy (`integer.Grid`) with
exact discrete noise, and the answers of a workload follow by least squares. `streaming` and `query` price
mechanisms of their own with `norms_for_price`, `noise_for` and `width`.

>>> from discreet import Categories, Public
>>> from discreet.mechanisms import matrix
>>> from discreet.sampling import Entropy
>>> from discreet.tables import Memory
>>> public = Public(schema={"sex": Categories(["f", "m"]), "light": Categories(["no", "yes"])})
>>> four = matrix.explicit([[0, 0, 0, 1], [0, 0, 1, 1], [0, 1, 0, 0], [1, 1, 0, 0]], over=(2, 2))
>>> asked = matrix.answer(public, matrix.Cells.of("sex", "light"), four, epsilon=1)
>>> asked.strategy, round(asked.rmse**2 * 4, 1)
(Identity(n=4), 11.0)
>>> people = Memory({"sex": ["f", "m", "m"], "light": ["no", "yes", "no"]}, public)
>>> asked(people, entropy=Entropy()).value.answers.shape
(4,)
"""

from __future__ import annotations

import math
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from ... import _require, inference
from ..._errors import InvalidInput
from ..._public import PUBLIC, REPLACE, ZERO_OUT, Public
from ..._registry import described
from ..._require import NON_EMPTY, Real, instance_of
from ...accounting import Event
from ...sampling import Entropy
from ...tables import Source
from ..additive import require_noise_for
from ..arrow_columns import unpacked
from ..noise import IntegerGaussian, IntegerLaplace
from ..protocols import Integers, Mechanism, Release, Sensitivity, check_source, release
from ..statistics import Histogram, increasing, require_rows
from .factorization import Factorization, mass, optimize
from .integer import DenseGrid, Grid, SparseCellCounts, on_grid
from .strategies import Norm
from .workloads import MAX_ENTRIES, WORKLOAD, Workload

Floats = NDArray[np.float64]
Noise = IntegerLaplace | IntegerGaussian


@described("matrix.Attribute")
class Attribute:
    """Names a column with declared categories; or a column of numbers, cut into bins at public `edges`."""

    column: str
    edges: Annotated[tuple[Real, ...], increasing(2)] | None = None


@described("matrix.Cells")
class Cells:
    """Counts the rows in each cell of a table by several attributes.

    A row with a missing value, or with a value outside the declared categories, is in no cell.

    Guarantee: one row changes the count of one cell by 1 under add_remove and zero_out, and of two cells
               under replace. Under zero_out it is two as well where every attribute is a number that cannot
               be missing, because a blank row is in a cell then.
    Proof:     every row is in at most one cell.
    """

    attributes: Annotated[
        tuple[Annotated[Attribute, instance_of(Attribute, "Attribute(column=...)")], ...], NON_EMPTY
    ]

    @classmethod
    def of(cls, *columns: str | Attribute) -> Cells:
        """Return the cells by these columns, in order; the last one varies fastest."""
        return cls(attributes=tuple(c if isinstance(c, Attribute) else Attribute(column=c) for c in columns))

    def domain(self, public: Public) -> tuple[int, ...]:
        """Return the number of values of each attribute, from declared facts; refuse a column without
        declared categories or edges."""
        return tuple(Histogram(column=a.column, edges=a.edges).length(public) for a in self.attributes)

    def length(self, public: Public) -> int:
        return math.prod(self.domain(public))

    def sensitivity(self, public: Public) -> Sensitivity:
        require_rows(public)
        blank_in_cell = public.neighbors is ZERO_OUT and all(
            a.edges is not None and not public.bounds(a.column).nullable for a in self.attributes
        )
        two_cells = public.neighbors is REPLACE or blank_in_cell
        return Sensitivity(linf=1, l0=min(2, self.length(public)) if two_cells else 1)

    def counts(self, source: Source) -> SparseCellCounts:
        """Return the cell of every row that is in one, each with count 1: empty cells take no memory."""
        public = source.public
        require_rows(public)
        domain = self.domain(public)
        bins = [Histogram(column=a.column, edges=a.edges) for a in self.attributes]
        names = list(dict.fromkeys(a.column for a in self.attributes))
        coded: list[list[Any]] = [[] for _ in bins]
        # One pass over all columns: two passes need not give the rows in the same order.
        for batch in source.batches(names):
            columns = {name: unpacked(batch.column(i)) for i, name in enumerate(names)}
            codes = [h._bins(columns[h.column], public) for h in bins]
            in_a_cell = np.all([c >= 0 for c in codes], axis=0)
            for batches, code in zip(coded, codes, strict=True):
                batches.append(code[in_a_cell])
        positions = tuple(np.concatenate(p) if p else np.zeros(0, np.int64) for p in coded)
        return SparseCellCounts(domain, positions, np.ones(len(positions[0]), np.int64))

    def __call__(self, source: Source) -> Integers:
        if self.length(source.public) > MAX_ENTRIES:
            raise InvalidInput(f"these are {self.length(source.public):,} cells: too many to write out.")
        return self.counts(source).table(range(len(self.attributes))).ravel()


CELLS = instance_of(Cells, "made by matrix.Cells.of(...)")


@described("matrix.WorkloadAnswer")
class WorkloadAnswer:
    """Holds the noisy measurements, and computes what follows from them at no further cost in privacy:
    answers, standard deviations, intervals and cells.

    Stored answers hold `strategy` and `measured`, and the integer matrix is built again from `strategy` when
    they are read. So its rounding (`on_grid`) and the optimizers of strategies may not change.
    """

    workload: Workload
    strategy: Workload
    norm: Norm
    noise: Noise
    measured: tuple[int, ...]

    def _grid(self) -> Grid:
        return on_grid(self.strategy, self.norm)

    @property
    def answers(self) -> Floats:
        """The answers in the order of the workload: least squares, unbiased, consistent with each other."""
        return self._grid().fit(self.workload, self.measured).answers

    @property
    def deviations(self) -> Floats:
        """The standard deviation of each answer."""
        return np.sqrt(self._grid().variances(self.workload)) * self.noise.standard_deviation

    def interval(self, confidence: float = 0.95) -> tuple[Floats, Floats]:
        """Return, for each answer, an interval that holds the truth with probability `confidence`."""
        answers, half_width = self.answers, self.noise.combined_width(confidence) * self.deviations
        return answers - half_width, answers + half_width

    @property
    def cells(self) -> Floats:
        """The estimated count of every cell, where all cells were measured; unbiased, so that small counts
        may come out negative."""
        cells = self._grid().fit(self.workload, self.measured).cells
        if cells is None:
            raise InvalidInput("tables were measured, not cells. Use `answers`.")
        return cells

    def non_negative(self) -> Floats:
        """Return the answers from those non-negative cells whose measurements are nearest to the noisy ones
        in least squares; for a strategy that is a product, from those nearest to the estimated cells.

        Biased: small counts are too large on average.
        """
        grid = self._grid()
        if not isinstance(grid, DenseGrid):
            return self.workload.times(inference.non_negative(self.cells))
        y = np.asarray(self.measured, dtype=np.float64)
        scale = max(1.0, float(grid.largest))
        return self.workload.times(inference.non_negative_measured(grid.matrix / scale, y / scale, 1.0))

    def integral(self) -> Floats:
        """Return the answers from non-negative integer cells, whose sum is the rounded sum of the
        non-negative estimates."""
        cells = inference.non_negative(self.cells)
        return self.workload.times(inference.round_to_total(cells))


@described("matrix.WorkloadMechanism")
class WorkloadMechanism(Mechanism):
    """Answers a workload of counting questions together through a strategy: the matrix mechanism.

    Guarantee: the noise's event, under the relation of `public`.
    Proof:     one unit moves the counts by at most `Cells.sensitivity`, and the measurements by at most that
               times the largest column norm of the integer strategy (`Grid.sensitivity`). That the noise
               covers this is checked when the mechanism is built. Least squares is post-processing.
    """

    public: Annotated[Public, PUBLIC]
    cells: Annotated[Cells, CELLS]
    workload: Annotated[Workload, WORKLOAD]
    strategy: Annotated[Workload, WORKLOAD]
    norm: Norm
    noise: Annotated[Noise, instance_of(Noise, "IntegerLaplace or IntegerGaussian")]

    def __post_init__(self) -> None:
        domain = self.cells.domain(self.public)
        _require.that(
            math.prod(domain) == self.workload.cells
            and (len(self.workload.domain) <= 1 or domain == self.workload.domain),
            f"the cells are {' by '.join(map(str, domain))}, the workload is about "
            f"{' by '.join(map(str, self.workload.domain))}.",
        )
        _require.that(
            self.strategy.cells == self.workload.cells, "the strategy is about other cells than the workload."
        )
        require_noise_for(self.public, self.noise)
        sensitivity = strategy_sensitivity(self.public, self.cells, self.strategy, self.norm)
        _require.that(
            self.noise.covers(sensitivity),
            f"one unit can move the measurements by {sensitivity}, more than the noise is priced for: "
            f"{self.noise}.",
        )
        _require.that(
            math.isfinite(self.rmse), "the strategy does not determine the answers of the workload."
        )

    @property
    def event(self) -> Event:
        return self.noise.event

    @property
    def rmse(self) -> float:
        """The root mean squared error of the answers, which is known beforehand, for the integer strategy
        that is measured and the discrete noise that is drawn."""
        total = on_grid(self.strategy, self.norm).error(self.workload)
        return math.sqrt(total / mass(self.workload)) * self.noise.standard_deviation

    @property
    def deviations(self) -> Floats:
        """The standard deviation that each answer will have."""
        return (
            np.sqrt(on_grid(self.strategy, self.norm).variances(self.workload))
            * self.noise.standard_deviation
        )

    def error(self, confidence: float = 0.95) -> float:
        """Return the half width of the interval of the least accurate answer. It holds for each answer by
        itself with probability `confidence`, not for all answers at once."""
        return self.noise.combined_width(confidence) * float(self.deviations.max())

    def __call__(self, source: Source, /, *, entropy: Entropy) -> Release:
        check_source(self.public, source)
        counts = self.cells.counts(source)
        # A workload over one attribute may be asked of cells by several, taken in order.
        if len(self.workload.domain) == 1:
            counts = counts.flat()
        exact = on_grid(self.strategy, self.norm).measure(counts)
        noisy = self.noise(exact, entropy=entropy)
        value = WorkloadAnswer(
            workload=self.workload,
            strategy=self.strategy,
            norm=self.norm,
            noise=self.noise,
            measured=tuple(int(v) for v in noisy.tolist()),
        )
        return release(value, event=self.event, entropy=entropy, error=self.error)


def strategy_sensitivity(public: Public, cells: Cells, strategy: Workload, norm: Norm) -> Sensitivity:
    """Return the sensitivity of the measurements of a strategy."""
    # A replaced row is exchanged: it leaves one cell and enters another.
    return on_grid(strategy, norm).sensitivity(
        cells.sensitivity(public), norm, exchanged=public.neighbors is REPLACE
    )


def noise_for(
    sensitivity: Sensitivity,
    norm: Norm,
    public: Public,
    *,
    epsilon: Real | None,
    delta: float,
    rho: Real | None,
) -> Noise:
    """Return the noise that a price (epsilon with delta, or rho) buys for measurements of this sensitivity:
    Laplace for norm l1, Gaussian for l2. `norm` is one of `norms_for_price`, so l1 comes with epsilon."""
    if norm == "l1":
        assert epsilon is not None
        return IntegerLaplace.for_epsilon(epsilon, sensitivity=sensitivity, neighbors=public.neighbors)
    if rho is not None:
        return IntegerGaussian.for_rho(rho, sensitivity=sensitivity, neighbors=public.neighbors)
    assert epsilon is not None
    return IntegerGaussian.for_privacy(
        epsilon=epsilon, delta=delta, sensitivity=sensitivity, neighbors=public.neighbors
    )


@_require.check_options
def answer(
    public: Annotated[Public, PUBLIC],
    cells: Annotated[Cells, CELLS],
    workload: Annotated[Workload, WORKLOAD],
    *,
    epsilon: Real | None = None,
    delta: float = 0.0,
    rho: Real | None = None,
    strategy: Annotated[
        Factorization, instance_of(Factorization, "a Factorization, such as matrix.haar(64) returns")
    ]
    | None = None,
) -> WorkloadMechanism:
    """Return the mechanism that answers a workload at a price with the least expected error among the known
    strategies, or with that of a given factorization (`strategy`).

    epsilon alone: Laplace noise. epsilon and delta: Laplace or Gaussian, whichever is predicted to be better.
    rho: Gaussian, in zCDP; `delta` is not used then.
    """
    norms = norms_for_price(epsilon, delta, rho)
    plans = [strategy] if strategy is not None else [optimize(workload, norm) for norm in norms]
    options = []
    for plan in plans:
        _require.that(
            plan.norm in norms, f"a strategy for {plan.norm} noise does not fit this price: {norms}."
        )
        sensitivity = strategy_sensitivity(public, cells, plan.strategy, plan.norm)
        noise = noise_for(sensitivity, plan.norm, public, epsilon=epsilon, delta=delta, rho=rho)
        options.append(
            WorkloadMechanism(
                public=public,
                cells=cells,
                workload=workload,
                strategy=plan.strategy,
                norm=plan.norm,
                noise=noise,
            )
        )
    return min(options, key=lambda option: option.rmse)


def norms_for_price(epsilon: Real | None, delta: float, rho: Real | None) -> tuple[Norm, ...]:
    """Return the norms of the noise that a price can buy: l1 (Laplace) for epsilon, l2 (Gaussian) with delta
    or rho.

    Anything but exactly one of epsilon and rho is refused.
    """
    _require.that((epsilon is None) != (rho is None), "give either epsilon (with or without delta) or rho.")
    if rho is not None:
        _require.price(rho=rho)
        return ("l2",)
    _require.price(epsilon=epsilon)
    _require.probability(delta=delta)
    _require.must(delta != 1, "delta", delta, "below 1: at 1 it promises nothing")
    return ("l1", "l2") if delta else ("l1",)
