"""Plans a workload, several counting queries that are answered together: its cells, the strategy of least
expected error at the price, and the engine's query that counts the rows in each cell.

Words from `cells`: a mark is a key of GROUP BY or a condition, of which every row has one of a few classes,
numbered by codes; a cell is a combination of classes, or several merged ones; a family is one count of one
query, with one number per group.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .._public import ADD_REMOVE, Public
from .._require import Real
from ..mechanisms import matrix
from ..mechanisms.matrix.factorization import Factorization
from ..mechanisms.matrix.integer import Grid, SparseCellCounts
from ..mechanisms.matrix.mechanism import noise_for
from ..mechanisms.matrix.on_grid import on_grid
from ..mechanisms.noise import IntegerGaussian, IntegerLaplace
from ..mechanisms.protocols import Sensitivity
from ..tables import Engine
from ..tables.dialect import Dialect
from .cells import CompiledCounts, ExplicitCells, compile_counts, explicit
from .errors import QueryError
from .exact import PLACEHOLDER, integers
from .groupings import PlainQuery, expanded
from .marks import counts_sql
from .measures import bounding_of
from .parse import deep_nesting_refused
from .plan import Plan, plan
from .spelling import hinted


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class WorkloadPlan:
    """Holds what follows from the queries and the price alone: cells, strategy and noise.

    `parts`: the plain queries that each statement is expanded to, one unless it has CUBE or the like;
    `plan_numbers`: for each statement, the indices of its parts in `compilation.plans`. `cells`: the merged
    cells and the matrix over them, None for marginals. `sizes`: the shape of the table of cells. `max_rows`:
    how many rows of one unit count. `slices`: for each family, where its numbers are among the workload's
    answers: the start, the shape of the table there, how many entries of each axis are asked for, and the
    order of the axes. `deviations`: the standard deviation of each answer. `written`: a cache of the engine's
    queries, by dialect and kinds of columns.
    """

    compilation: CompiledCounts
    parts: tuple[tuple[PlainQuery, ...], ...]
    plan_numbers: tuple[tuple[int, ...], ...]
    cells: ExplicitCells | None
    sizes: tuple[int, ...]
    max_rows: int
    strategy: Factorization
    grid: Grid
    noise: IntegerLaplace | IntegerGaussian
    slices: tuple[Any, ...]
    deviations: Any
    written: dict[Any, str] = field(default_factory=dict)

    @property
    def rmse(self) -> float:
        """The root mean squared error of all numbers of all families."""
        used = np.concatenate(
            [self.numbers_of(f, self.deviations) for f in range(len(self.compilation.families))]
        )
        return float(np.sqrt((used**2).mean()))

    @property
    def families_by_query(self) -> list[list[int]]:
        """For each query, the indices of its families."""
        return [
            [f for f, family in enumerate(self.compilation.families) if family.plan in numbers]
            for numbers in self.plan_numbers
        ]

    def numbers_of(self, family: int, answers: Any) -> Any:
        """Return the entries of one family in `answers` (or in an array like it), one per group, in the order
        of `public_keys`."""
        start, shape, kept, axes = self.slices[family]
        table = answers[start : start + math.prod(shape)].reshape(shape)
        return table[tuple(slice(0, k) for k in kept)].transpose(axes).ravel()

    def statement(self, kinds: Any, dialect: Dialect) -> str:
        """Return the engine's query, with a placeholder for the key of the hash that chooses which rows of a
        unit count; it is written once per dialect and kinds of columns."""
        kinds_key = (
            dialect.name,
            *sorted((table, *sorted(columns.items())) for table, columns in kinds.items()),
        )
        if kinds_key not in self.written:
            max_rows = self.max_rows if self.compilation.many else None
            self.written[kinds_key] = counts_sql(self.compilation, kinds, max_rows, PLACEHOLDER, dialect)
        return self.written[kinds_key]

    def counts(self, engine: Engine, key: int) -> SparseCellCounts:
        """Return the exact number of rows in each cell; rows that no query counts are in no cell."""
        table = engine.answer(
            self.statement(engine.id_kinds, engine.dialect).replace(str(PLACEHOLDER), str(key))
        )
        n = np.asarray(integers(table.column("n")), dtype=np.int64)
        codes = [integers(table.column(f"c{i}")) for i in range(len(self.compilation.marks))]
        if self.cells is None:
            # Marginals: the table of cells has one axis per mark. A code that is not below the axis's size
            # means rows outside the values of a key by which all queries group: no query counts them.
            order = [m for (members, _) in self.compilation.mark_groups for m in members]
            in_cell = np.all([codes[m] < size for m, size in zip(order, self.sizes, strict=True)], axis=0)
            return SparseCellCounts(self.sizes, tuple(codes[m][in_cell] for m in order), n[in_cell])
        # The index of each combination of classes: its digits are the positions in each group of marks.
        index = np.zeros(len(n), np.int64)
        for members, combinations in self.compilation.mark_groups:
            positions = _positions(combinations, [codes[m] for m in members])
            index = np.where(positions < 0, _NO_CELL, index * len(combinations) + positions)
        cell = np.where(index < 0, -1, self.cells.cell[np.clip(index, 0, None)])
        return SparseCellCounts(self.sizes, (cell[cell >= 0],), n[cell >= 0])


# Marks a combination that cannot occur. It is so far below zero that it stays negative when further digits
# are appended, and does not overflow 64 bits: there are at most 2**16 combinations (`cells.MAX_RAW`).
_NO_CELL = -(1 << 40)


def _positions(combinations: tuple[tuple[int, ...], ...], codes: list[Any]) -> Any:
    """Return the position of each counted combination of classes in the list of those that can occur; -1 if
    it is not listed. `codes`: for each mark, its class in all counted combinations."""
    index_of = {c: i for i, c in enumerate(combinations)}
    counted = zip(*(c.tolist() for c in codes), strict=True)
    return np.array([index_of.get(c, -1) for c in counted], np.int64)


def _expand(text: str, public: Public) -> list[PlainQuery]:
    """Return the plain queries that a statement with CUBE, ROLLUP or GROUPING SETS stands for; one for any
    other statement."""
    try:
        with deep_nesting_refused():
            return list(expanded(text))
    except QueryError as refusal:
        raise hinted(refusal, text, public) from None


def plan_workload(
    queries: tuple[str, ...],
    public: Public,
    norms: tuple[matrix.strategies.Norm, ...],
    *,
    rows: int | None,
    epsilon: Real | None,
    delta: float,
    rho: Real | None,
) -> WorkloadPlan:
    """Plan counting queries at one price. Of the `norms` that the price allows (l1 for Laplace noise, l2 for
    Gaussian), the plan with the least error is returned."""
    parts = tuple(tuple(_expand(text, public)) for text in queries)
    plans: list[Plan] = []
    plan_numbers: list[tuple[int, ...]] = []
    for of_statement in parts:
        plan_numbers.append(tuple(range(len(plans), len(plans) + len(of_statement))))
        plans += [plan(part.text, public) for part in of_statement]
    # parts with the names of columns that their plans have
    parts = tuple(
        tuple(part.bound(plans[number]) for part, number in zip(of_statement, indices, strict=True))
        for of_statement, indices in zip(parts, plan_numbers, strict=True)
    )
    compilation = compile_counts(plans)
    max_rows = max(bounding_of(p, rows or public.unit.rows, 1).rows for p in plans)
    workload, cells, slices = _workload(compilation)
    # A unit that is replaced takes its rows out of some cells, and puts as many into others.
    unit_rows = max_rows if public.neighbors is ADD_REMOVE else 2 * max_rows
    sensitivity_of_cells = Sensitivity(linf=max_rows, l0=unit_rows, l1=unit_rows)
    # Where a unit is a row, a neighbor has one row in another cell, for which some strategies have a tighter
    # bound than for any two changes.
    exchanged = not compilation.many and public.neighbors is not ADD_REMOVE
    options = []
    for norm in norms:
        strategy = matrix.optimize(workload, norm)
        grid = on_grid(strategy.strategy, norm)
        sensitivity = grid.sensitivity(sensitivity_of_cells, norm, exchanged=exchanged)
        noise = noise_for(sensitivity, norm, public, epsilon=epsilon, delta=float(delta), rho=rho)
        deviations = np.sqrt(grid.variances(workload)) * noise.standard_deviation
        options.append(
            WorkloadPlan(
                compilation=compilation,
                parts=parts,
                plan_numbers=tuple(plan_numbers),
                cells=cells,
                sizes=workload.domain,
                max_rows=max_rows,
                strategy=strategy,
                grid=grid,
                noise=noise,
                slices=slices,
                deviations=deviations,
            )
        )
    return min(options, key=lambda option: option.rmse)


def _workload(compilation: CompiledCounts) -> tuple[matrix.Workload, ExplicitCells | None, tuple[Any, ...]]:
    """Return the workload, the cells with their matrix (None for marginals), and `WorkloadPlan.slices`."""
    if (
        compilation.marks
        and all(m.values is not None for m in compilation.marks)
        and all(len(g) == 1 for g, _ in compilation.mark_groups)
    ):
        return _marginals(compilation)
    cells = explicit(compilation)
    slices, start = [], 0
    for family in compilation.families:
        shape = tuple(compilation.marks[k].size - 1 for k in family.keys)
        slices.append((start, shape, shape, tuple(range(len(shape)))))
        start += math.prod(shape)
    return matrix.explicit(cells.matrix), cells, tuple(slices)


def _marginals(compilation: CompiledCounts) -> tuple[matrix.Workload, None, tuple[Any, ...]]:
    """Return the workload of queries that only group: marginals of the table of cells over all keys.

    A key that every query groups by needs no class for rows outside its values.
    """
    # the mark of each axis of the table
    order = [members[0] for members, _ in compilation.mark_groups]
    grouped_by_all = set.intersection(*(set(f.keys) for f in compilation.families))
    sizes = [compilation.marks[m].size - (m in grouped_by_all) for m in order]
    sets = [tuple(sorted(order.index(k) for k in f.keys)) for f in compilation.families]
    unique = sorted(set(sets))
    workload = matrix.marginals(sizes, unique)
    starts = dict(
        zip(unique, itertools.accumulate((workload.questions_of(s) for s in unique), initial=0), strict=False)
    )
    slices = []
    for family, s in zip(compilation.families, sets, strict=True):
        # A marginal has its axes in the order of the table; `axes` puts them into the query's order of keys.
        kept = tuple(compilation.marks[order[i]].size - 1 for i in s)
        axes = tuple(s.index(order.index(k)) for k in family.keys)
        slices.append((starts[s], tuple(sizes[i] for i in s), kept, axes))
    return workload, None, tuple(slices)
