"""Answers several counting queries together: one price, and answers that agree with each other.

This is the matrix mechanism. The rows are divided into cells, so that every query counts the rows of some
cells (`cells`); the matrix of which query counts which cells is the workload. Noise is added to other linear
combinations of the cells, the strategy, which is chosen for the least expected error (`mechanisms.matrix`),
and all answers are computed from these noisy numbers by least squares. Queries that only group are marginals
of the table of cells, whose matrix is never written out; conditions need the matrix itself.

A unit is who is protected: all rows of one person, or a row. A family is one count of one query, with one
number per group. A statement with CUBE or the like consists of several parts, which are plain queries; any
other statement is its only part.

>>> from discreet.tables import rand_hie
>>> people = rand_hie()
>>> both = WorkloadQuery(
...     queries=("SELECT COUNT(*) AS n FROM rand_hie WHERE health = 'good'",
...              "SELECT health, COUNT(*) AS n FROM rand_hie GROUP BY health"),
...     public=people.public, epsilon=1, rows=1)
>>> both.preview().answers[1]
('health', 'n')

Plans a workload, several counting queries that are answered together: its cells, the strategy of least
expected error at the price, and the engine's query that counts the rows in each cell.

Words from `cells`: a mark is a key of GROUP BY or a condition, of which every row has one of a few classes,
numbered by codes; a cell is a combination of classes, or several merged ones; a family is one count of one
query, with one number per group.
"""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Annotated, Any

import numpy as np

from .._public import Public
from .._registry import described, to_json
from .._require import NON_EMPTY, Real, at_least
from ..accounting import Event, NonPrivate
from ..core.errors import QueryError
from ..core.exact import public_keys
from ..mechanisms import matrix
from ..mechanisms.matrix.factorization import Factorization
from ..mechanisms.matrix.integer import Grid, SparseCellCounts, on_grid
from ..mechanisms.matrix.matrix_mechanism import noise_for, norms_for_price
from ..mechanisms.noise import IntegerGaussian, IntegerLaplace
from ..mechanisms.protocols import Mechanism, Release, check_source, release
from ..sampling import Entropy
from ..tables import Engine, Source
from ..tables.engines.duckdb import engine_of
from .answer import Answer
from .groupings import PlainQuery, expanded
from .ids import refuse_unlike_ids
from .mechanism import Query
from .parse import deep_nesting_refused, hinted
from .plan import Plan, plan
from .preview import Preview, aggregated, many, protects, workload_notes
from .recipes import bounding_of
from .release import direct, rows_of
from .workload_cells import CompiledCounts, ExplicitCells, compile_counts, explicit


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class WorkloadPlan:
    """Holds what follows from the queries and the price alone: cells, strategy and noise.

    `parts`: the plain queries that each statement is expanded to, one unless it has CUBE or the like;
    `plan_numbers`: for each statement, the indices of its parts in `compilation.plans`. `cells`: the merged
    cells and the matrix over them, None for marginals. `sizes`: the shape of the table of cells. `max_rows`:
    how many rows of one unit count. `slices`: for each family, where its numbers are among the workload's
    answers: the start, the shape of the table there, how many entries of each axis are asked for, and the
    order of the axes. `deviations`: the standard deviation of each answer.
    """

    compilation: CompiledCounts
    parts: tuple[tuple[PlainQuery, ...], ...]
    plan_numbers: tuple[tuple[int, ...], ...]
    cells: ExplicitCells | None
    sizes: tuple[int, ...]
    strategy: Factorization
    grid: Grid
    noise: IntegerLaplace | IntegerGaussian
    slices: tuple[Any, ...]
    deviations: Any

    @property
    def max_rows(self) -> int:
        return self.compilation.counted.max_rows

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

    def counts(self, engine: Engine, key: int) -> SparseCellCounts:
        """Return the exact number of rows in each cell; rows that no query counts are in no cell."""
        codes, n = self.compilation.counted.measure(engine, key)
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
# are appended, and does not overflow 64 bits: there are at most 2**16 combinations
# (`workload_cells.MAX_RAW`).
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
        plans += [plan(part.text, public).of(public) for part in of_statement]
    # parts with the names of columns that their plans have
    parts = tuple(
        tuple(part.bound(plans[number]) for part, number in zip(of_statement, indices, strict=True))
        for of_statement, indices in zip(parts, plan_numbers, strict=True)
    )
    max_rows = max(bounding_of(p, rows or public.unit.rows, 1).rows for p in plans)
    compilation = compile_counts(plans, max_rows)
    workload, cells, slices = _workload(compilation)
    counted = compilation.counted
    options = []
    for norm in norms:
        strategy = matrix.optimize(workload, norm)
        grid = on_grid(strategy.strategy, norm)
        sensitivity = grid.sensitivity(counted.sensitivity, norm, exchanged=counted.exchanges)
        noise = noise_for(sensitivity, norm, public, epsilon=epsilon, delta=float(delta), rho=rho)
        deviations = np.sqrt(grid.variances(workload)) * noise.standard_deviation
        options.append(
            WorkloadPlan(
                compilation=compilation,
                parts=parts,
                plan_numbers=tuple(plan_numbers),
                cells=cells,
                sizes=workload.domain,
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


# The most queries of one workload: each of them is planned. Not tuned.
MAX_QUERIES = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadPreview:
    """Says what answering together costs and how good it will be.

    `answers`: the columns of each answer; `errors`: for each answer, how far its worst number may be off with
    `confidence`; `rmse`: the root mean squared error of all numbers; `alone`: the mean squared error (no
    root) if each query is asked by itself, at the same price in total; `reason`: why this strategy was
    chosen; `protects`: who is protected, in words.
    """

    answers: tuple[tuple[str, ...], ...]
    event: Event
    price: str
    rmse: float
    alone: float | None
    errors: tuple[float, ...]
    confidence: float
    reason: str
    protects: str = ""
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        together = " together" if len(self.answers) > 1 else ""
        lines = [f"price: {self.price}, for {many(len(self.answers), 'answer')}{together}"]
        for i, (columns, error) in enumerate(zip(self.answers, self.errors, strict=True)):
            lines.append(
                f"answer {i + 1} ({', '.join(columns)}): within {error:,.4g} with "
                f"{self.confidence:.0%} confidence"
            )
        lines += [*filter(None, [self.protects]), *(f"Note: {note}." for note in self.notes)]
        if self.alone is not None:
            squared = self.rmse**2
            # one by one some numbers may be exact (`plan`)
            saved = f", {1 - squared / self.alone:.0%} less" if squared < self.alone else ""
            lines.append(
                f"one by one at the same total price the mean squared error would be "
                f"{self.alone:,.4g}; together it is "
                f"{squared:,.4g}{saved}."
            )
        return "\n".join([*lines, self.reason])


@described("query.WorkloadQuery")
class WorkloadQuery(Mechanism):
    """Answers counting queries at one price: `epsilon` with `delta`, or `rho`.

    `rows`: how many rows of one unit count in all queries together, by default what is declared.

    Guarantee: the event is what a run costs, for the neighbors of `public`.
    Proof:     at most `rows` rows of a unit count, each in one cell, so that the vector of cells moves by at
               most `rows` in l1 (twice that where a unit is replaced). Noise is added to an integer matrix
               times this vector, which moves by at most the largest norm of its columns times that
               (`Grid.sensitivity`). All answers are post-processing of the noisy numbers.
    Assumes:   the engine computes the SQL as DuckDB documents it.
    """

    queries: Annotated[tuple[str, ...], NON_EMPTY]
    public: Public
    epsilon: Real | None = None
    delta: float = 0.0
    rho: Real | None = None
    rows: Annotated[int, at_least(1)] | None = None
    _plan: WorkloadPlan = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        queries = self.queries
        if len(queries) > MAX_QUERIES:
            raise QueryError(f"these are {len(queries)} queries, more than {MAX_QUERIES}.")
        norms = norms_for_price(self.epsilon, self.delta, self.rho)
        workload_plan = plan_workload(
            queries,
            self.public,
            norms,
            rows=self.rows,
            epsilon=self.epsilon,
            delta=float(self.delta),
            rho=self.rho,
        )
        object.__setattr__(self, "_plan", workload_plan)

    def rehearse(self, source: Source) -> None:
        """Write the engine's query, which is kept for the run, and let the engine plan it: a query that
        cannot be written or planned, or a join that would find nothing, is refused here, before it is
        charged."""
        engine = engine_of(source)
        counted = self._plan.compilation.counted
        refuse_unlike_ids(counted.source, engine.id_kinds)
        engine.plan([counted.statement(engine.id_kinds, engine.dialect)])

    @property
    def declared_groups(self) -> int:
        """How many groups the answers have together: those of all statements are declared."""
        plans = self._plan.compilation.plans
        return sum(max(plans[n].groups or 1 for n in numbers) for numbers in self._plan.plan_numbers)

    @property
    def asked(self) -> tuple[Any, float] | None:
        """The (epsilon, delta) that was asked for; None for a price in rho."""
        return None if self.epsilon is None else (self.epsilon, float(self.delta))

    @property
    def event(self) -> Event:
        return self._plan.noise.event

    @property
    def strategy(self) -> Factorization:
        return self._plan.strategy

    @property
    def rmse(self) -> float:
        """The root mean squared error of all numbers; it does not depend on the data."""
        return self._plan.rmse

    @property
    def key(self) -> str:
        """Return a stable text of what is asked at which price, equal for equal questions. Stored answers are
        found by it, so that its form must not change."""
        workload = self._plan
        plans = [
            [workload.compilation.plans[number].key for number in numbers]
            for numbers in workload.plan_numbers
        ]
        description: dict[str, Any] = {
            "plans": plans,
            "public": to_json(self.public),
            "rows": workload.max_rows,
            "noise": to_json(workload.noise),
        }
        # With CUBE and the like no plan has all columns, so that their order is in none of the plans.
        orders = [group[0].columns if len(group) > 1 else () for group in workload.parts]
        if any(orders):
            description["columns"] = orders
        return json.dumps(description, sort_keys=True)

    def error(self, confidence: float = 0.95) -> float:
        """Return how far off the number with the largest error may be; the confidence is that of this number
        by itself."""
        return self._plan.noise.combined_width(confidence) * float(self._plan.deviations.max())

    def preview(self, confidence: float = 0.95) -> WorkloadPreview:
        """Return the price, errors, and what answering together saves, without reading data."""
        workload = self._plan
        # the error, with this confidence, of a number whose standard deviation is 1
        half_width = workload.noise.combined_width(confidence)
        errors = tuple(
            half_width * max(float(workload.numbers_of(f, workload.deviations).max()) for f in families)
            for families in workload.families_by_query
        )
        return WorkloadPreview(
            answers=tuple(parts[0].columns for parts in workload.parts),
            event=self.event,
            price=self._price,
            rmse=self.rmse,
            alone=self._alone(),
            errors=errors,
            confidence=confidence,
            reason=workload.strategy.reason,
            protects=protects(self.public),
            notes=tuple(dict.fromkeys(n for q in range(len(workload.parts)) for n in self._notes(q))),
        )

    def preview_of_one(self, confidence: float = 0.95) -> Preview:
        """Return the preview of a workload of one statement, column by column like that of a query.

        A part may have some of the columns only; the error of a column is the largest of its errors in all
        parts.
        """
        workload, (parts,), (numbers,) = self._plan, self._plan.parts, self._plan.plan_numbers
        half_width = workload.noise.combined_width(confidence)
        widest: list[float | None] = [None] * len(parts[0].columns)
        measured: set[int] = set()
        for part, number in zip(parts, numbers, strict=True):
            planned, recipes = workload.compilation.plans[number], workload.compilation.recipes[number]
            # in the order of the plan's measures
            families = [f for f, family in enumerate(workload.compilation.families) if family.plan == number]
            for i, column in enumerate(part.own):
                measured |= {column} if aggregated(planned.outputs[i][1]) else set()
                m = direct(recipes, i)
                if m is not None:
                    error = half_width * float(workload.numbers_of(families[m], workload.deviations).max())
                    widest[column] = max(error, widest[column] or 0.0)
        return Preview(
            columns=parts[0].columns,
            event=self.event,
            epsilon=None if self.epsilon is None else float(self.epsilon),
            delta=float(self.delta)
            if isinstance(workload.noise, IntegerGaussian) and self.rho is None
            else 0.0,
            rho=None if self.rho is None else float(self.rho),
            confidence=confidence,
            errors=tuple(widest),
            groups=sum(p.groups or 1 for p in workload.compilation.plans),
            # then the lines on what answering together saves, and why this strategy was chosen
            plan=(protects(self.public), *str(self.preview(confidence)).splitlines()[-2:]),
            notes=self._notes(0),
            keys=tuple(name for column, name in enumerate(parts[0].columns) if column not in measured),
        )

    @property
    def _price(self) -> str:
        if self.rho is not None:
            return f"rho {float(self.rho):.4g}"
        assert self.epsilon is not None
        gaussian = isinstance(self._plan.noise, IntegerGaussian)
        return f"epsilon {float(self.epsilon):.4g}" + (f", delta {float(self.delta):g}" if gaussian else "")

    def _alone(self) -> float:
        """Return the mean squared error of all numbers if each part of each query is asked by itself, with an
        equal share of the price."""
        texts = [part.text for parts in self._plan.parts for part in parts]
        share: dict[str, Any] = (
            {"rho": Fraction(self.rho) / len(texts)}
            if self.rho is not None
            else {
                "epsilon": Fraction(self.epsilon or 0) / len(texts),
                "delta": float(self.delta) / len(texts),
            }
        )
        total = count = 0.0
        for text in texts:
            # a unit of which `rows` rows count in all is in at most as many groups
            single = Query(sql=text, public=self.public, rows=self.rows, groups=self.rows, **share)
            size = single._plan.groups or 1
            total += size * sum(noise.standard_deviation**2 for noise in single.question.noises)
            count += size * len(single.question.noises)
        return total / count

    def __call__(self, source: Source, /, *, entropy: Entropy) -> Release:
        check_source(self.public, source)
        workload = self._plan
        exact = workload.grid.measure(workload.counts(engine_of(source), entropy.integer(63)))
        noisy = workload.noise(exact, entropy=entropy)
        answers = workload.grid.fit(workload.strategy.workload, noisy).answers
        event = self.event if entropy.private else NonPrivate(neighbors=self.event.neighbors)
        value = tuple(self._answer(q, answers, event) for q in range(len(workload.parts)))
        return release(value, event=self.event, entropy=entropy, error=self.error)

    def _without_noise(self, source: Source, key: int) -> list[list[list[Any]]]:
        """Return the exact rows of each query, for tests of semantics only.

        No public method calls it.
        """
        workload = self._plan
        measured = workload.grid.measure(workload.counts(engine_of(source), key))
        answers = np.rint(workload.grid.fit(workload.strategy.workload, measured).answers)
        return [self._rows(q, answers)[0] for q in range(len(workload.parts))]

    def restated(self, answers: tuple[Answer, ...]) -> tuple[Answer, ...]:
        """Return stored answers to the same questions, with the texts of these queries."""
        return tuple(replace(answer, sql=sql) for answer, sql in zip(answers, self.queries, strict=True))

    def _answer(self, query: int, answers: Any, event: Event) -> Answer:
        """Return the answer to query number `query`, from the noisy `answers` of the workload."""
        rows, deviations = self._rows(query, answers)
        workload = self._plan
        columns = workload.parts[query][0].columns
        none = (None,) * len(columns)
        return Answer(
            columns=columns,
            rows=tuple(map(tuple, rows)),
            deviations=tuple(map(tuple, deviations)),
            noises=none,
            event=event,
            epsilon=None if self.epsilon is None else float(self.epsilon),
            delta=float(self.delta)
            if isinstance(workload.noise, IntegerGaussian) and self.rho is None
            else 0.0,
            rho=None if self.rho is None else float(self.rho),
            sql=self.queries[query],
            combined=(workload.noise,),
            plan=(
                f"Answered together with {len(workload.parts) - 1} other queries, for one price; the "
                f"answers agree with each other.",
                workload.strategy.reason,
            ),
            notes=self._notes(query),
        )

    def _notes(self, query: int) -> tuple[str, ...]:
        """Return notes on what the errors of a query do not cover."""
        plans = [self._plan.compilation.plans[number] for number in self._plan.plan_numbers[query]]
        return workload_notes(self.public, plans, self._plan.max_rows)

    def _rows(self, query: int, answers: Any) -> tuple[list[list[Any]], list[list[float | None]]]:
        """Return the rows of one query and their standard deviations, from the answers of the workload. The
        rows of its parts come one after the other, each part after its HAVING, ORDER BY and LIMIT."""
        workload, rows, deviations = self._plan, [], []
        for part, number in zip(workload.parts[query], workload.plan_numbers[query], strict=True):
            planned, recipes = workload.compilation.plans[number], workload.compilation.recipes[number]
            families = [f for f, family in enumerate(workload.compilation.families) if family.plan == number]
            measures = [workload.numbers_of(f, answers) for f in families]
            deviations_by_group = [workload.numbers_of(f, workload.deviations) for f in families]
            kept_rows, kept_groups = rows_of(recipes, public_keys(planned.keys), measures, [])
            for row, group in zip(kept_rows, kept_groups, strict=True):
                rows.append(part.placed(list(row)))
                measure_of = [direct(recipes, i) for i in range(len(planned.outputs))]
                deviations.append(
                    part.placed(
                        [None if m is None else float(deviations_by_group[m][group]) for m in measure_of]
                    )
                )
        return rows, deviations
