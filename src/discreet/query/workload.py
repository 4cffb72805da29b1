"""Answers several counting queries together: one price, and answers that agree with each other.

What the queries count is written as a workload over cells (`cells`), measured through the strategy of least
expected error (`mechanisms.matrix`), and every answer follows from the same measurements. Groupings alone go
through marginals, which are never written out; conditions make cells of their own.

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

import itertools
import json
import math
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np

from .. import _require
from .._public import ADD_REMOVE, Public
from .._registry import described, to_json
from .._require import Real
from ..accounting import Event, NonPrivate
from ..mechanisms import matrix
from ..mechanisms.matrix.integer import Counts, Grid
from ..mechanisms.matrix.mechanism import noise_for, prices, width
from ..mechanisms.matrix.on_grid import on_grid
from ..mechanisms.noise import IntegerGaussian, IntegerLaplace
from ..mechanisms.protocols import Release, Sensitivity, check_source, release
from ..sampling import Entropy
from ..tables import Engine, Source, dialect_of, engine_of
from ..tables.dialect import Dialect
from .answer import Answer
from .cells import Compiled, Explicit, compiled, explicit
from .errors import QueryError
from .exact import integers, public_keys
from .groupings import Part, expanded, several
from .marks import counts_sql
from .measures import Recipes, bounding_of
from .mechanism import Query
from .nodes import Output
from .parse import parse
from .plan import Plan, plan
from .preview import Preview, aggregated, not_whole
from .release import direct, rows_of
from .spelling import hinted

# Queries of one workload, each of which is planned.
MOST_QUERIES = 1000
# What answering the counts of one statement together must save before it is done unasked.
GAIN = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadPreview:
    """What answering together costs and how good it will be; `alone` is the mean squared error of the same
    asked one by one at the same total."""

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
            saved = 1 - self.rmse**2 / self.alone
            lines.append(
                f"one by one at the same total price the mean squared error would be "
                f"{self.alone:,.4g}; together it is "
                f"{self.rmse**2:,.4g}, {saved:.0%} less."
            )
        return "\n".join([*lines, self.reason])


@described("query.WorkloadQuery")
@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadQuery:
    """Counting queries at one price.

    `rows`: how many rows of one unit count in all of them together, by default what is declared.

    Guarantee: the event is what a run costs, for the neighbors of `public`.
    Proof:     a unit has at most `rows` rows that count, each in one cell, so the counts of cells move by at
               most that in l1 (twice where a unit is replaced); the integer strategy's largest column norm
               times that is what the noise covers (`Grid.sensitivity`). All answers are post-processing of
               the measurements.
    Assumes:   the engine computes the SQL as DuckDB documents it.
    """

    queries: tuple[str, ...]
    public: Public
    epsilon: Real | None = None
    delta: float = 0.0
    rho: Real | None = None
    rows: int | None = None
    _built: _Built = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        queries = _require.listed(queries=self.queries)
        _require.non_empty(queries=queries)
        if len(queries) > MOST_QUERIES:
            raise QueryError(
                f"these are {len(queries)} queries, more than {MOST_QUERIES}. Nothing was read or charged."
            )
        object.__setattr__(self, "queries", queries)
        if self.rows is not None:
            _require.integer(rows=self.rows, at_least=1)
        norms = prices(self.epsilon, self.delta, self.rho)
        object.__setattr__(self, "_built", _build(self, norms))

    def rehearse(self, source: Source) -> None:
        """Write the engine's query, once for trial and run: what cannot be written is refused before it is
        charged."""
        self._built.statement(source.kinds if isinstance(source, Engine) else {}, dialect_of(source))

    @property
    def asked(self) -> tuple[Any, float] | None:
        """The (epsilon, delta) that was asked for; None for a price in rho."""
        return None if self.epsilon is None else (self.epsilon, float(self.delta))

    @property
    def event(self) -> Event:
        return self._built.noise.event

    @property
    def strategy(self) -> matrix.Factorization:
        return self._built.strategy

    @property
    def rmse(self) -> float:
        """The root mean squared error of all numbers, known beforehand."""
        return self._built.rmse

    @property
    def key(self) -> str:
        """Stable text of what is asked at which price: equal for equal questions, for the store of released
        answers."""
        built = self._built
        plans = [
            [built.compilation.plans[number].key for number in numbers] for numbers in built.plan_numbers
        ]
        return json.dumps(
            {
                "plans": plans,
                "public": to_json(self.public),
                "rows": built.max_rows,
                "noise": to_json(built.noise),
            },
            sort_keys=True,
        )

    def error(self, confidence: float = 0.95) -> float:
        """Return how far off the worst number may be by itself."""
        return width(self._built.noise, confidence) * float(self._built.deviations.max())

    def preview(self, confidence: float = 0.95) -> WorkloadPreview:
        """Return the price, errors, and what answering together saves: without touching data."""
        built = self._built
        half = width(built.noise, confidence)
        errors = tuple(
            half * max(float(built.of_family(f, built.deviations).max()) for f in families)
            for families in built.by_query
        )
        return WorkloadPreview(
            answers=tuple(parts[0].columns for parts in built.parts),
            event=self.event,
            price=self._price,
            rmse=self.rmse,
            alone=self._alone(),
            errors=errors,
            confidence=confidence,
            reason=built.strategy.reason,
            notes=tuple(dict.fromkeys(n for q in range(len(built.parts)) for n in self._notes(q))),
        )

    def preview_of_one(self, confidence: float = 0.95) -> Preview:
        """Return the preview of a workload of one statement, column by column like that of a query."""
        built, (parts,), (numbers,) = self._built, self._built.parts, self._built.plan_numbers
        half = width(built.noise, confidence)
        widest: list[float | None] = [None] * len(parts[0].columns)
        measured: set[int] = set()
        for part, number in zip(parts, numbers, strict=True):
            planned, recipes = built.compilation.plans[number], built.compilation.recipes[number]
            families = [f for f, family in enumerate(built.compilation.families) if family.plan == number]
            for i, column in enumerate(part.own):
                measured |= {column} if aggregated(planned.outputs[i][1]) else set()
                m = direct(planned, recipes, i)
                if m is not None:
                    own = half * float(built.of_family(families[m], built.deviations).max())
                    widest[column] = max(own, widest[column] or 0.0)
        return Preview(
            columns=parts[0].columns,
            event=self.event,
            epsilon=None if self.epsilon is None else float(self.epsilon),
            delta=float(self.delta) if isinstance(built.noise, IntegerGaussian) and self.rho is None else 0.0,
            rho=None if self.rho is None else float(self.rho),
            confidence=confidence,
            errors=tuple(widest),
            groups=sum(p.groups or 1 for p in built.compilation.plans),
            plan=tuple(str(self.preview(confidence)).splitlines()[-2:]),
            notes=self._notes(0),
            keys=tuple(name for column, name in enumerate(parts[0].columns) if column not in measured),
        )

    @property
    def _price(self) -> str:
        if self.rho is not None:
            return f"rho {float(self.rho):.4g}"
        assert self.epsilon is not None
        gaussian = isinstance(self._built.noise, IntegerGaussian)
        return f"epsilon {float(self.epsilon):.4g}" + (f", delta {float(self.delta):g}" if gaussian else "")

    def _alone(self) -> float | None:
        """Return the mean squared error of each query by itself with an equal share of the price."""
        texts = [part.text for parts in self._built.parts for part in parts]
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
            single = Query(sql=text, public=self.public, rows=self.rows, groups=self.rows, **share)
            size = single._plan.groups or 1
            total += size * sum(noise.standard_deviation**2 for noise in single._allocation.noises)
            count += size * len(single._allocation.noises)
        return total / count

    def __call__(self, source: Source, /, *, entropy: Entropy) -> Release:
        check_source(self.public, source)
        built = self._built
        exact = built.grid.measure(built.counts(engine_of(source), entropy.integer(63)))
        noisy = built.noise(exact, entropy=entropy)
        answers = built.grid.fit(built.strategy.workload, noisy).answers
        event = self.event if entropy.private else NonPrivate(neighbors=self.event.neighbors)
        value = tuple(self._answer(q, answers, event) for q in range(len(built.parts)))
        return release(value, event=self.event, entropy=entropy, error=self.error)

    def _without_noise(self, source: Source, key: int) -> list[list[list[Any]]]:
        """Return the exact rows of each query, for tests of semantics only.

        No description and no public call leads here.
        """
        built = self._built
        measured = built.grid.measure(built.counts(engine_of(source), key))
        answers = np.rint(built.grid.fit(built.strategy.workload, measured).answers)
        return [self._rows(q, answers)[0] for q in range(len(built.parts))]

    def restated(self, answers: tuple[Answer, ...]) -> tuple[Answer, ...]:
        """Return stored answers to the same questions in the words of these."""
        return tuple(replace(answer, sql=sql) for answer, sql in zip(answers, self.queries, strict=True))

    def _answer(self, query: int, answers: Any, event: Event) -> Answer:
        rows, deviations = self._rows(query, answers)
        built = self._built
        columns = built.parts[query][0].columns
        none = (None,) * len(columns)
        return Answer(
            columns=columns,
            rows=tuple(map(tuple, rows)),
            deviations=tuple(map(tuple, deviations)),
            noises=none,
            event=event,
            epsilon=None if self.epsilon is None else float(self.epsilon),
            delta=float(self.delta) if isinstance(built.noise, IntegerGaussian) and self.rho is None else 0.0,
            rho=None if self.rho is None else float(self.rho),
            sql=self.queries[query],
            law="laplace" if isinstance(built.noise, IntegerLaplace) else "gaussian",
            plan=(
                f"Answered together with {len(built.parts) - 1} other queries, for one price; the "
                f"answers agree with each other.",
                built.strategy.reason,
            ),
            notes=self._notes(query),
        )

    def _notes(self, query: int) -> tuple[str, ...]:
        """Return which rows are in none of the groups of a query."""
        plans = [self._built.compilation.plans[number] for number in self._built.plan_numbers[query]]
        return tuple(dict.fromkeys(note for p in plans for note in not_whole(p)))

    def _rows(self, query: int, answers: Any) -> tuple[list[list[Any]], list[list[float | None]]]:
        """Return the rows of one query from the answers of its parts, each after HAVING, ORDER BY and
        LIMIT."""
        built, rows, deviations = self._built, [], []
        for part, number in zip(built.parts[query], built.plan_numbers[query], strict=True):
            planned, recipes = built.compilation.plans[number], built.compilation.recipes[number]
            families = [f for f, family in enumerate(built.compilation.families) if family.plan == number]
            measures = [built.of_family(f, answers) for f in families]
            spread = [built.of_family(f, built.deviations) for f in families]
            kept_rows, kept = rows_of(planned, recipes, public_keys(planned), measures, [])
            for row, group in zip(kept_rows, kept, strict=True):
                rows.append(part.placed(list(row)))
                own = [direct(planned, recipes, i) for i in range(len(planned.outputs))]
                deviations.append(part.placed([None if m is None else float(spread[m][group]) for m in own]))
        return rows, deviations


def together(text: str, public: Public, **options: Any) -> WorkloadQuery | None:
    """Return one statement as a workload, where it asks for several groupings, or for several counts that are
    better answered together; else None.

    For units of one row only, unless CUBE or the like leave no other way: with several rows, limits in each
    group and in all differ.
    """
    try:
        several_groupings = bool(several(parse(text)))
    except QueryError as refusal:
        raise hinted(refusal, text, public) from None
    if not several_groupings and not options.keys() <= {"epsilon", "delta", "rho"}:
        return None
    if several_groupings:
        if unknown := sorted(options.keys() - {"epsilon", "delta", "rho", "rows"}):
            raise QueryError(
                f"{unknown[0]}= does not go with several groupings in one query. Nothing was read or charged."
            )
        return WorkloadQuery(queries=(text,), public=public, **options)
    planned = plan(text, public)
    recipes = Recipes(planned)
    counts = all(m.kind in ("rows", "present") for m in recipes.measures) and not recipes.choices
    plain = all(
        direct(planned, recipes, i) is not None or (isinstance(e, Output) and e.kind == "key")
        for i, (_, e) in enumerate(planned.outputs)
    )
    if planned.many or not counts or not plain or len(recipes.measures) < 2 or not planned.known_keys:
        return None
    try:
        workload = WorkloadQuery(queries=(text,), public=public, **options)
    except QueryError:
        # too many cells: each count by itself then
        return None
    alone = workload._alone()
    return workload if alone is not None and workload.rmse**2 < GAIN * alone else None


@dataclass(frozen=True, slots=True, eq=False)
class _Built:
    """Everything that follows from the queries and the price."""

    compilation: Compiled
    parts: tuple[tuple[Part, ...], ...]
    plan_numbers: tuple[tuple[int, ...], ...]
    cells: Explicit | None
    sizes: tuple[int, ...]
    max_rows: int
    strategy: matrix.Factorization
    grid: Grid
    noise: IntegerLaplace | IntegerGaussian
    slices: tuple[Any, ...]
    deviations: Any
    written: dict[Any, str] = field(default_factory=dict)

    @property
    def rmse(self) -> float:
        used = np.concatenate(
            [self.of_family(f, self.deviations) for f in range(len(self.compilation.families))]
        )
        return float(np.sqrt((used**2).mean()))

    @property
    def by_query(self) -> list[list[int]]:
        return [
            [f for f, family in enumerate(self.compilation.families) if family.plan in numbers]
            for numbers in self.plan_numbers
        ]

    def of_family(self, family: int, answers: Any) -> Any:
        """Return the numbers of one count, one for each of its groups in order."""
        start, shape, kept, axes = self.slices[family]
        table = answers[start : start + math.prod(shape)].reshape(shape)
        return table[tuple(slice(0, k) for k in kept)].transpose(axes).ravel()

    def statement(self, kinds: Any, dialect: Dialect) -> str:
        """Return the engine's query, with a placeholder where the key of a run goes; written once."""
        kinds_key = (
            dialect.name,
            *sorted((table, *sorted(columns.items())) for table, columns in kinds.items()),
        )
        if kinds_key not in self.written:
            max_rows = self.max_rows if self.compilation.many else None
            self.written[kinds_key] = counts_sql(self.compilation, kinds, max_rows, _KEY, dialect)
        return self.written[kinds_key]

    def counts(self, engine: Engine, key: int) -> Counts:
        """Return the exact counts of cells."""
        table = engine.answer(self.statement(engine.kinds, engine.dialect).replace(str(_KEY), str(key)))
        n = np.asarray(integers(table.column("n")), dtype=np.int64)
        codes = [integers(table.column(f"c{i}")) for i in range(len(self.compilation.marks))]
        if self.cells is None:
            order = [m for (members, _) in self.compilation.groups for m in members]
            inside = np.all([codes[m] < size for m, size in zip(order, self.sizes, strict=True)], axis=0)
            return Counts(self.sizes, tuple(codes[m][inside] for m in order), n[inside])
        raw = np.zeros(len(n), np.int64)
        for members, combinations in self.compilation.groups:
            raw = raw * len(combinations) + _positions(combinations, [codes[m] for m in members])
            raw = np.where(_positions(combinations, [codes[m] for m in members]) < 0, -(1 << 40), raw)
        cell = np.where(raw < 0, -1, self.cells.cell[np.clip(raw, 0, None)])
        return Counts(self.sizes, (cell[cell >= 0],), n[cell >= 0])


# Stands for the key of a run in the written query.
_KEY = (1 << 62) + 7_021_961


def _positions(combinations: tuple[tuple[int, ...], ...], codes: list[Any]) -> Any:
    """Return where each row's classes are in the list of those that can occur; -1 for none."""
    index_of = {c: i for i, c in enumerate(combinations)}
    rows = zip(*(c.tolist() for c in codes), strict=True)
    return np.array([index_of.get(r, -1) for r in rows], np.int64)


def _expand(text: str, public: Public) -> list[Part]:
    try:
        return list(expanded(text))
    except QueryError as refusal:
        raise hinted(refusal, text, public) from None


def _build(query: WorkloadQuery, norms: tuple[matrix.strategies.Norm, ...]) -> _Built:
    parts = tuple(tuple(_expand(text, query.public)) for text in query.queries)
    plans: list[Plan] = []
    numbers: list[tuple[int, ...]] = []
    for group in parts:
        numbers.append(tuple(range(len(plans), len(plans) + len(group))))
        plans += [plan(part.text, query.public) for part in group]
    parts = tuple(
        tuple(part.bound(plans[number]) for part, number in zip(group, at_all, strict=True))
        for group, at_all in zip(parts, numbers, strict=True)
    )
    compilation = compiled(plans)
    max_rows = max(bounding_of(p, query.rows or query.public.unit.rows, 1).rows for p in plans)
    workload, cells, slices = _workload(compilation)
    sizes = workload.domain
    unit_rows = max_rows if query.public.neighbors is ADD_REMOVE else 2 * max_rows
    counted = Sensitivity(linf=max_rows, l0=unit_rows, l1=unit_rows)
    exchanged = not compilation.many and query.public.neighbors is not ADD_REMOVE
    options = []
    for norm in norms:
        strategy = matrix.optimize(workload, norm)
        grid = on_grid(strategy.strategy, norm)
        sensitivity = grid.sensitivity(counted, norm, exchanged=exchanged)
        noise = noise_for(
            sensitivity, norm, query.public, epsilon=query.epsilon, delta=float(query.delta), rho=query.rho
        )
        spread = np.sqrt(grid.variances(workload)) * noise.standard_deviation
        options.append(
            _Built(
                compilation,
                parts,
                tuple(numbers),
                cells,
                sizes,
                max_rows,
                strategy,
                grid,
                noise,
                slices,
                spread,
            )
        )
    return min(options, key=lambda option: option.rmse)


def _workload(compilation: Compiled) -> tuple[matrix.Workload, Explicit | None, tuple[Any, ...]]:
    """Return the workload, and where in its answers each family's numbers are: start, shape, how much of each
    axis is asked for, and its order."""
    if (
        compilation.marks
        and all(m.values is not None for m in compilation.marks)
        and all(len(g) == 1 for g, _ in compilation.groups)
    ):
        return _tables(compilation)
    cells = explicit(compilation)
    slices, start = [], 0
    for family in compilation.families:
        shape = tuple(compilation.marks[k].size - 1 for k in family.keys)
        slices.append((start, shape, shape, tuple(range(len(shape)))))
        start += math.prod(shape)
    return matrix.explicit(cells.matrix), cells, tuple(slices)


def _tables(compilation: Compiled) -> tuple[matrix.Workload, None, tuple[Any, ...]]:
    """Return marginals over the keys, for groupings alone.

    A key that every query groups by needs no class for rows outside its values.
    """
    order = [members[0] for members, _ in compilation.groups]
    needless = set.intersection(*(set(f.keys) for f in compilation.families))
    sizes = [compilation.marks[m].size - (m in needless) for m in order]
    sets = [tuple(sorted(order.index(k) for k in f.keys)) for f in compilation.families]
    unique = sorted(set(sets))
    workload = matrix.marginals(sizes, unique)
    starts = dict(
        zip(unique, itertools.accumulate((workload.asked(s) for s in unique), initial=0), strict=False)
    )
    slices = []
    for family, s in zip(compilation.families, sets, strict=True):
        # Tables have their attributes in one order; the query's own order of keys is that of its rows.
        kept = tuple(compilation.marks[order[i]].size - 1 for i in s)
        axes = tuple(s.index(order.index(k)) for k in family.keys)
        slices.append((starts[s], tuple(sizes[i] for i in s), kept, axes))
    return workload, None, tuple(slices)
