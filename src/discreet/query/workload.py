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
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np

from .. import _require
from .._public import Public
from .._registry import described, to_json
from .._require import Real
from ..accounting import Event, NonPrivate
from ..mechanisms.matrix.factorization import Factorization
from ..mechanisms.matrix.mechanism import norms_for_price
from ..mechanisms.noise import IntegerGaussian
from ..mechanisms.protocols import Release, check_source, release
from ..sampling import Entropy
from ..tables import Source
from ..tables.engines.duckdb import engine_of
from .answer import Answer
from .errors import QueryError
from .exact import public_keys
from .groupings import grouping_clauses
from .ids import refuse_unlike_ids
from .measures import Recipes
from .mechanism import Query
from .nodes import OutputReference
from .parse import parse
from .plan import plan
from .preview import Preview, aggregated, not_whole
from .public_size import public_rows
from .release import direct, rows_of
from .spelling import hinted
from .workload_plan import WorkloadPlan, plan_workload

# The most queries of one workload: each of them is planned. Not tuned.
MAX_QUERIES = 1000
# `together` answers the counts of one statement together only if the mean squared error is below this share
# of that of separate noise. Not tuned.
GAIN = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadPreview:
    """Says what answering together costs and how good it will be.

    `answers`: the columns of each answer; `errors`: for each answer, how far its worst number may be off with
    `confidence`; `rmse`: the root mean squared error of all numbers; `alone`: the mean squared error (no
    root) if each query is asked by itself, at the same price in total; `reason`: why this strategy was
    chosen.
    """

    answers: tuple[tuple[str, ...], ...]
    event: Event
    price: str
    rmse: float
    alone: float | None
    errors: tuple[float, ...]
    confidence: float
    reason: str
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [f"price: {self.price}, for {len(self.answers)} answers together"]
        for i, (columns, error) in enumerate(zip(self.answers, self.errors, strict=True)):
            lines.append(
                f"answer {i + 1} ({', '.join(columns)}): within {error:,.4g} with "
                f"{self.confidence:.0%} confidence"
            )
        lines += [f"Note: {note}." for note in self.notes]
        if self.alone is not None:
            together = self.rmse**2
            # one by one some numbers may be exact (`public_size`)
            saved = f", {1 - together / self.alone:.0%} less" if together < self.alone else ""
            lines.append(
                f"one by one at the same total price the mean squared error would be "
                f"{self.alone:,.4g}; together it is "
                f"{together:,.4g}{saved}."
            )
        return "\n".join([*lines, self.reason])


@described("query.WorkloadQuery")
@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadQuery:
    """Answers counting queries at one price: `epsilon` with `delta`, or `rho`.

    `rows`: how many rows of one unit count in all queries together, by default what is declared.

    Guarantee: the event is what a run costs, for the neighbors of `public`.
    Proof:     at most `rows` rows of a unit count, each in one cell, so that the vector of cells moves by at
               most `rows` in l1 (twice that where a unit is replaced). Noise is added to an integer matrix
               times this vector, which moves by at most the largest norm of its columns times that
               (`Grid.sensitivity`). All answers are post-processing of the noisy numbers.
    Assumes:   the engine computes the SQL as DuckDB documents it.
    """

    queries: tuple[str, ...]
    public: Public
    epsilon: Real | None = None
    delta: float = 0.0
    rho: Real | None = None
    rows: int | None = None
    _plan: WorkloadPlan = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        queries = _require.listed(queries=self.queries)
        _require.non_empty(queries=queries)
        if len(queries) > MAX_QUERIES:
            raise QueryError(
                f"these are {len(queries)} queries, more than {MAX_QUERIES}. Nothing was read or charged."
            )
        object.__setattr__(self, "queries", queries)
        if self.rows is not None:
            _require.integer(rows=self.rows, at_least=1)
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
        refuse_unlike_ids(self._plan.compilation.source, engine.id_kinds)
        engine.plan([self._plan.statement(engine.id_kinds, engine.dialect)])

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
                m = direct(planned, recipes, i)
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
            # the lines on what answering together saves, and why this strategy was chosen
            plan=tuple(str(self.preview(confidence)).splitlines()[-2:]),
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
            total += size * sum(noise.standard_deviation**2 for noise in single._allocation.noises)
            count += size * len(single._allocation.noises)
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
        """Return notes on which rows are in none of the groups of a query."""
        plans = [self._plan.compilation.plans[number] for number in self._plan.plan_numbers[query]]
        return tuple(dict.fromkeys(note for p in plans for note in not_whole(p)))

    def _rows(self, query: int, answers: Any) -> tuple[list[list[Any]], list[list[float | None]]]:
        """Return the rows of one query and their standard deviations, from the answers of the workload. The
        rows of its parts come one after the other, each part after its HAVING, ORDER BY and LIMIT."""
        workload, rows, deviations = self._plan, [], []
        for part, number in zip(workload.parts[query], workload.plan_numbers[query], strict=True):
            planned, recipes = workload.compilation.plans[number], workload.compilation.recipes[number]
            families = [f for f, family in enumerate(workload.compilation.families) if family.plan == number]
            measures = [workload.numbers_of(f, answers) for f in families]
            deviations_by_group = [workload.numbers_of(f, workload.deviations) for f in families]
            kept_rows, kept_groups = rows_of(planned, recipes, public_keys(planned), measures, [])
            for row, group in zip(kept_rows, kept_groups, strict=True):
                rows.append(part.placed(list(row)))
                measure_of = [direct(planned, recipes, i) for i in range(len(planned.outputs))]
                deviations.append(
                    part.placed(
                        [None if m is None else float(deviations_by_group[m][group]) for m in measure_of]
                    )
                )
        return rows, deviations


def together(text: str, public: Public, **options: Any) -> WorkloadQuery | None:
    """Return one statement as a workload, if it has CUBE, ROLLUP or GROUPING SETS, or asks for several counts
    that have a smaller error together; else None.

    Several counts are answered together only if no unit has several rows: a query limits a unit's rows in
    each group, a workload in all groups together, and the answers would differ. A statement with several
    groupings is a workload in any case, as nothing else answers it.
    """
    try:
        several_groupings = bool(grouping_clauses(parse(text)))
    except QueryError as refusal:
        raise hinted(refusal, text, public) from None
    if not several_groupings and not options.keys() <= {"epsilon", "delta", "rho"}:
        return None
    if several_groupings:
        if unknown := sorted(options.keys() - {"epsilon", "delta", "rho", "rows"}):
            raise QueryError(
                f"{unknown[0]}= does not go with several groupings in one query. Nothing was read or "
                f"charged. Leave it out, or write one query per grouping."
            )
        return WorkloadQuery(queries=(text,), public=public, **options)
    planned = plan(text, public)
    recipes = Recipes(planned)
    only_counts = all(m.kind in ("rows", "present") for m in recipes.measures) and not recipes.choices
    # every output is a key or one count
    direct_only = all(
        direct(planned, recipes, i) is not None or (isinstance(e, OutputReference) and e.kind == "key")
        for i, (_, e) in enumerate(planned.outputs)
    )
    # a count that is exact by itself would get noise here
    exact = public_rows(planned, public) is not None and any(m.kind == "rows" for m in recipes.measures)
    if (
        planned.many
        or exact
        or not only_counts
        or not direct_only
        or len(recipes.measures) < 2
        or not planned.known_keys
    ):
        return None
    try:
        workload = WorkloadQuery(queries=(text,), public=public, **options)
    except QueryError:
        # It cannot be a workload, for example because it has too many cells: each count gets its own noise.
        return None
    return workload if workload.rmse**2 < GAIN * workload._alone() else None
