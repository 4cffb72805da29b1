"""Defines the query as a mechanism: SQL and options, whose price, error and plan are known before any data is
read.

>>> from discreet.tables import rand_hie
>>> from discreet.sampling import Entropy
>>> people = rand_hie()
>>> sql = "SELECT health, COUNT(DISTINCT person) AS n FROM rand_hie GROUP BY health"
>>> query = Query(sql=sql, public=people.public, epsilon=1, groups=1)
>>> query.preview().columns
('health', 'n')
>>> answer = query(people, entropy=Entropy()).value
>>> answer["health"]
['excellent', 'good', 'fair', 'poor']

Chooses a value for every group with the exponential mechanism: a quantile from a grid of candidates, or
the most common of public values.

`counts` has one row per group and one column per candidate: how many rows of the table have that value.

Asks by accuracy: finds the smallest epsilon whose error is within a limit, without touching data.

Writes the query that counts how many units a limit on contributions would cut off. It is SQL like any
other, with the same price and the same guarantee.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import field, replace
from fractions import Fraction
from typing import Annotated, Any

import numpy as np

from .. import _require
from .._errors import InvalidInput
from .._public import Public
from .._registry import OPTIONAL, described, to_json
from .._require import PRICE, Limit, Real, at_least
from ..accounting import NonPrivate, NoOp, pure
from ..core.choosing import SparseCounts, best, shown
from ..core.domain import Kind
from ..core.errors import QueryError
from ..core.exact import Exact, measure, public_keys
from ..core.nodes import OutputReference, key, walk
from ..core.question import NoisyNumbers, Question, QuestionMechanism, shown_groups
from ..core.sources import source_key
from ..mechanisms.arrow_columns import as_integers
from ..sampling import Entropy
from ..tables import Source
from ..tables.engines.duckdb import engine_of
from .answer import Answer, mean_of, range_of
from .ids import refuse_unlike_ids
from .plan import Plan, plan
from .preview import Preview, chosen, hints, keys, none_shown, notes, predicted, public_columns, words
from .price import PriceTarget, allocate, shape_of
from .recipes import Recipes, bounding_of
from .release import SmallGroups, direct, key_columns, rows_of, table

# The largest number of groups times candidates of all choices (quantiles, modes and top values, which the
# exponential mechanism picks) of one query: a few seconds' work. It is checked before the charge; groups that
# are not public count as one there, as their number is private.
MAX_CANDIDATES = 1 << 27


def _check_delta(*, delta: float) -> None:
    _require.probability(delta=delta)
    if delta == 1:
        raise _require.fail("delta", delta, "below 1: at 1 it promises nothing")


def _check_weights(*, weights: tuple[tuple[str, Real], ...]) -> None:
    for pair in _require.listed(weights=weights):
        if not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str)):
            raise _require.fail("weights", weights, "pairs of a column's name and its weight")
        _require.price(weight=pair[1])


@described("query.Query")
class Query(QuestionMechanism):
    """One SQL query at one price.

    `epsilon` with `delta`, or `rho`: the price of the complete answer. `rows`, `groups`: how many rows of one
    unit (who is protected: a person, or a row) count in a group, and in how many groups a unit counts; by
    default as the steward of the data declared in `public`. `noise`: laplace, gaussian, or auto for the
    smaller error; with rho, gaussian. `weights`: how the price is shared between output columns, ((name,
    weight), ...); equal by default, which makes the errors equal relative to what one unit contributes.
    `other`: where the groups are not public, those that are not shown are added up in one row. `min_people`,
    of the question or of `public`: a group is hidden if its noisy number of people is below a threshold.

    Guarantee: a run is as private as its `event` says, for the neighbors of `public`. A group in which fewer
               than `min_people` people have a value in each aggregate is shown with a probability of at most
               `release.SMALL`.
    Proof:     `Measure.sensitivity` bounds each measure; the theorem of its noise is in `mechanisms.noise`,
               that of choices in `price._selector`, that of selecting groups in
               `price.show_probabilities`. Adaptive composition adds them up: each step looks only at the
               data and at the released results of earlier steps. Hiding reads noisy numbers alone: of k - 1
               people or fewer, k + m are shown where the noise, which is symmetric, is above m
               (`SmallGroups`).
    Assumes:   the engine computes the SQL as DuckDB documents it.
    """

    sql: str
    public: Public
    epsilon: Annotated[Real, PRICE] | None = None
    delta: Annotated[float, Limit(_check_delta)] = 0.0
    rho: Annotated[Real, PRICE] | None = None
    rows: Annotated[int, at_least(1)] | None = None
    groups: Annotated[int, at_least(1)] | None = None
    noise: str = "auto"
    weights: Annotated[tuple[tuple[str, Real], ...], Limit(_check_weights)] = ()
    other: bool = False
    min_people: Annotated[int, at_least(1)] | None = field(default=None, metadata=OPTIONAL)
    _recipes: Recipes = field(init=False, repr=False, compare=False)
    _small: SmallGroups | None = field(init=False, repr=False, compare=False)
    question: Question = field(init=False, repr=False, compare=False)
    # The plan, and the errors that the intervals do not cover, in words; and the delta that is spent: 0 where
    # all noise is Laplace and all groups are public.
    words: tuple[str, ...] = field(init=False, repr=False, compare=False)
    notes: tuple[str, ...] = field(init=False, repr=False, compare=False)
    _shown_delta: float = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        set_field = object.__setattr__
        planned = plan(self.sql, self.public).of(self.public)
        unit = self.public.unit
        bounding = bounding_of(planned, self.rows or unit.rows, self.groups or unit.groups)
        people_by = None if not self.least_people else "rows" if bounding.rows == 1 else "units"
        recipes = Recipes(planned, people_by=people_by)
        set_field(self, "_recipes", recipes)
        one_text_key = len(planned.keys) == 1 and planned.keys[0].expression.domain.kind is Kind.TEXT
        if self.other and (planned.known_keys or recipes.choices or not one_text_key):
            raise InvalidInput(
                "other=True adds up the groups that are not shown: it needs one key that is a text nobody "
                "declared, and counts or sums."
            )
        if self.other and any(m.kind in ("distinct", "units") for m in recipes.measures):
            raise InvalidInput(
                "COUNT(DISTINCT ...) of several groups cannot be added up for other=True, nor people who may "
                "have several rows, whom min_people counts."
            )
        self._check_choices()
        form = recipes.form(bounding, other=self.other)
        allocation = allocate(shape_of(form, self._weights()), self._target())
        set_field(self, "question", Question(form=form, **allocation._asdict()))
        set_field(self, "_small", SmallGroups.of(recipes, self.question, self.least_people))
        hiding = () if self._small is None else (f"{self._small}.",)
        set_field(self, "words", words(recipes, self.question) + hiding)
        set_field(self, "notes", notes(recipes, self.question))
        is_pure = pure.epsilon_of(self.event) is not None
        set_field(self, "_shown_delta", 0.0 if is_pure else float(self.delta))
        self._try_outputs()

    @property
    def least_people(self) -> int:
        """The least number of people of a group that is shown, of the question or of the table, whichever is
        more; 0 without one."""
        return max(self.min_people or 0, self.public.min_people or 0)

    @property
    def _plan(self) -> Plan:
        return self._recipes.plan

    def rehearse(self, source: Source) -> None:
        """Let the engine plan the statements, so that a query that cannot be planned, or a join that would
        find nothing, is refused before it is charged."""
        refuse_unlike_ids(self.question.form.source, engine_of(source).id_kinds)
        QuestionMechanism.rehearse(self, source)

    def _try_outputs(self) -> None:
        """Compute the answer for one empty group, so that expressions that fail are refused when the query is
        made, and not after the charge."""
        blanks = [0 if k.expression.domain.kind is Kind.NUMBER else "" for k in self._plan.keys]
        keys = [
            tuple(
                k.values[0] if k.values else blank for k, blank in zip(self._plan.keys, blanks, strict=True)
            )
        ]
        zeros = [np.zeros(1, dtype=np.int64) for _ in self._recipes.measures]
        empty = np.zeros(0, np.int64)
        choices = [best(c, SparseCounts.of(empty, empty, empty, (1, c.width))) for c in self._recipes.choices]
        try:
            self._answer(NoisyNumbers(keys, zeros, choices))
        except (ArithmeticError, RecursionError, TypeError, ValueError):
            raise QueryError(
                "what SELECT, HAVING or ORDER BY do with the aggregates cannot be computed."
            ) from None

    def _check_choices(self) -> None:
        """Refuse queries with too many candidates: a choice looks at every candidate in every group."""
        groups, widths = self._plan.groups or 1, [choice.width for choice in self._recipes.choices]
        if groups * sum(widths) > MAX_CANDIDATES:
            raise QueryError(
                f"choosing among {sum(widths):,} candidates in each of {groups:,} groups is more than "
                f"{MAX_CANDIDATES:,} in all. Ask for fewer groups, or for values on a coarser grid: "
                "MEDIAN(ROUND(x)), MEDIAN(ROUND(x, -1))."
            )

    def _target(self) -> PriceTarget:
        epsilon, rho = (None if v is None else _require.exact(v, "price") for v in (self.epsilon, self.rho))
        return PriceTarget(epsilon=epsilon, delta=float(self.delta), rho=rho, noise=self.noise)

    def _weights(self) -> list[Fraction]:
        """Return the weight of every measure, then of every choice, then (where groups are not public) of the
        selection of groups: the largest weight of the columns in `weights` that are computed from it, and 1
        if there is none."""
        column_weights = {name: _require.exact(weight, "weight") for name, weight in self.weights}
        if unknown := sorted(set(column_weights) - {name for name, _ in self._plan.outputs}):
            raise InvalidInput(f"weights name a column {unknown[0]!r} that the query does not have.")
        part_count = len(self._recipes.measures) + len(self._recipes.choices)
        part_weights: list[list[Fraction]] = [[] for _ in range(part_count)]
        for name, weight in column_weights.items():
            for part in self._parts_of(name):
                part_weights[part].append(weight)
        weights = [max(ws) if ws else Fraction(1) for ws in part_weights]
        return weights if self._plan.known_keys else [*weights, Fraction(1)]

    def _parts_of(self, name: str) -> set[int]:
        """Return the positions, in the list of `_weights`, of the measures and choices that an output column
        is computed from."""
        expression = dict(self._plan.outputs)[name]
        parts: set[int] = set()
        for node in walk(expression):
            if isinstance(node, OutputReference) and node.kind == "aggregate":
                recipe = self._recipes.recipes[node.index]
                parts |= set(recipe.measures)
                if recipe.choice is not None:
                    parts.add(len(self._recipes.measures) + recipe.choice)
        return parts

    @property
    def declared_groups(self) -> int | None:
        """How many groups the answer has; None where they are not declared."""
        return self._plan.groups

    @property
    def asked(self) -> tuple[Any, float] | None:
        """The (epsilon, delta) that was asked for; None for a price in rho."""
        return None if self.epsilon is None else (self.epsilon, float(self.delta))

    @property
    def key(self) -> str:
        """The text under which an answer is stored: equal for queries that measure the same at the same
        price. Which columns are computed from the noisy numbers, and their names, order and limit, make no
        difference.

        Stored answers are found by it, so that a change here makes them unreachable, and everything that
        changes the noisy numbers must be in it.
        """
        question = self.question
        measures, choices = self._recipes.measure_keys, self._recipes.choice_keys
        return json.dumps(
            {
                "source": source_key(question.form.source),
                "keys": repr([(key(k.expression), k.values) for k in question.form.keys]),
                "measures": sorted(zip(measures, map(_described, question.noises), strict=True)),
                "choices": sorted(zip(choices, map(_described, question.selectors), strict=True)),
                "public": to_json(self.public),
                "bounding": [question.form.bounding.rows, question.form.bounding.groups],
                "selection": to_json(question.selection),
                "other": self.other,
            }
            | ({"min_people": self.least_people} if self.least_people else {}),
            sort_keys=True,
        )

    @property
    def _shown_price(self) -> tuple[float | None, float | None]:
        """The epsilon or rho that is spent: 0 where all that is asked for is public."""
        free = isinstance(self.event, NoOp)
        epsilon, rho = (None if p is None else 0.0 if free else float(p) for p in (self.epsilon, self.rho))
        return epsilon, rho

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the output columns."""
        return tuple(name for name, _ in self._plan.outputs)

    def is_number(self, column: int) -> bool:
        """Return whether an output column is computed from aggregates, and not a key."""
        return any(
            isinstance(n, OutputReference) and n.kind == "aggregate"
            for n in walk(self._plan.outputs[column][1])
        )

    def preview(self, confidence: float = 0.95) -> Preview:
        """Return the price, error and plan, without touching data."""
        errors = predicted(self._recipes, self.question, confidence)
        epsilon, rho = self._shown_price
        return Preview(
            columns=self.columns,
            event=self.event,
            epsilon=epsilon,
            delta=self._shown_delta,
            rho=rho,
            confidence=confidence,
            errors=errors,
            groups=self._plan.groups,
            plan=self.words + hints(self._recipes, self.question),
            notes=self.notes,
            keys=keys(self._plan),
            chosen=chosen(self._recipes),
            exact=public_columns(self._recipes, self.question),
        )

    def _measure(self, source: Source, key: int) -> Exact:
        """Return the exact numbers, for tests only. No public method calls it."""
        return measure(self.question.form, engine_of(source), key)

    def _noisy(self, exact: Exact, entropy: Entropy) -> Answer:
        """Return an answer from exact numbers, for tests only. No public method calls it."""
        return self.finish(self.question.answered(exact, entropy))[0]

    def _without_noise(self, source: Source, key: int) -> list[list[Any]]:
        """Return the exact rows, for tests of semantics only. No public method calls it."""
        exact = self._measure(source, key)
        if not self._plan.known_keys:
            exact = shown_groups(exact, np.ones(len(exact.keys), dtype=bool))
        choices = [
            best(choice, counts) for choice, counts in zip(self._recipes.choices, exact.scores, strict=True)
        ]
        released = NoisyNumbers(exact.keys, exact.measures, choices)
        if self._small is not None:
            released = replace(self._small, margins=(0,) * len(self._small.people)).hide(released)[0]
        rows, _ = rows_of(self._recipes, released.keys, released.measures, released.choices)
        return [list(row) for row in rows]

    def restated(self, answer: Answer) -> Answer:
        """Return the answer to this query from the noisy numbers that were stored for an equal one."""
        keys, *numbers = answer.numbers
        hidden = numbers.pop() if self._small is not None else None
        names = self._recipes.measure_keys, self._recipes.choice_keys
        stored = [dict(pairs) for pairs in numbers]
        measures, choices = ([own[n] for n in each] for own, each in zip(stored, names, strict=True))
        released = NoisyNumbers(
            list(keys) if keys or hidden else public_keys(self._plan.keys),
            [as_integers(list(m)) for m in measures],
            [_as_column(c) for c in choices],
        )
        return replace(self._answer(released, hidden)[0], event=answer.event)

    def _numbers(self, released: NoisyNumbers, hidden: int | None) -> tuple[Any, ...]:
        """Return the noisy numbers as they are stored: the keys where these are not public, pairs of what
        identifies a measure or choice and its numbers, and how many groups are hidden."""
        is_known = self._plan.known_keys and not hidden
        keys = () if is_known else tuple(tuple(map(shown, k)) for k in released.keys)
        measures, choices = self._recipes.measure_keys, self._recipes.choice_keys
        return (
            keys,
            tuple(sorted(zip(measures, (tuple(m.tolist()) for m in released.measures), strict=True))),
            tuple(sorted(zip(choices, (tuple(c.tolist()) for c in released.choices), strict=True))),
            *(() if hidden is None else (hidden,)),
        )

    def finish(self, released: NoisyNumbers) -> tuple[Answer, Callable[..., Any]]:
        """Compute the answer, and its errors, from released numbers."""
        if self._small is None:
            return self._answer(released)
        return self._answer(*self._small.hide(released))

    def _answer(self, released: NoisyNumbers, hidden: int | None = None) -> tuple[Answer, Callable[..., Any]]:
        """Compute the answer from the numbers of the groups that are shown; `hidden` is how many are not."""
        keys, measures, noises = released.keys, released.measures, list(self.question.noises)
        rows, deviations, kept = table(self._recipes, keys, measures, released.choices, noises)
        # Intervals: a column that is one measure has exact ones from its noise, an average those of
        # `mean_of`, and any other number those of `range_of`.
        direct_measures = [direct(self._recipes, i) for i in range(len(self._plan.outputs))]
        exact_noise = [
            None if m is None else (noises[m], self._recipes.measures[m].resolution) for m in direct_measures
        ]
        means = [mean_of(self._recipes, i, measures, noises, kept) for i in range(len(direct_measures))]
        columns, (epsilon, rho) = key_columns(self._plan, keys), self._shown_price
        ranges = [
            None
            if direct_measures[i] is not None or means[i] is not None
            else range_of(self._recipes, i, measures, noises, columns, kept)
            for i in range(len(direct_measures))
        ]
        answer = Answer(
            columns=self.columns,
            rows=tuple(rows),
            deviations=tuple(deviations),
            noises=tuple(exact_noise),
            means=tuple(means),
            ranges=tuple(ranges),
            event=self.event if released.private else NonPrivate(neighbors=self.event.neighbors),
            epsilon=epsilon,
            delta=self._shown_delta,
            rho=rho,
            sql=self.sql,
            plan=self.words,
            notes=self._left_out(len(keys), hidden) + self.notes,
            numbers=self._numbers(released, hidden),
        )
        return answer, answer.error

    def _left_out(self, shown: int, hidden: int | None) -> tuple[str, ...]:
        """Say which groups an answer leaves out, and of how many people or rows one is shown."""
        if self._small is not None and (hidden or shown):
            return (self._small.note(hidden or 0),)
        return () if shown else (none_shown(self.question),)


def _described(part: Any) -> str:
    return json.dumps(to_json(part), sort_keys=True)


def _as_column(values: tuple[Any, ...]) -> Any:
    """Return stored choices, one per group, as an array: floats, or objects for texts and lists."""
    if all(isinstance(value, float) for value in values):
        return np.array(values, dtype=float)
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column


# The largest epsilon that is tried: beyond it nothing is protected. Not tuned.
MAX_EPSILON = 1000.0
# The search does not go on below this epsilon, whatever error is asked for. Not tuned. But the epsilon that
# is found is part of the question: after a change of the search the same question is a new one, and charged.
LEAST_EPSILON = 1e-9


def ask(
    sql: str,
    public: Public,
    *,
    epsilon: Any = None,
    rho: Any = None,
    within: float | None = None,
    confidence: float = 0.95,
    delta: float | Callable[[Any], float] = 0.0,
    **options: Any,
) -> Query:
    """Return a query at the price `epsilon` or `rho`; or, with `within`, at the smallest epsilon (to one in a
    thousand) for which every number is within `within` of the truth.

    The promise is about each number by itself, with probability `confidence` over the noise; the truth is the
    answer without noise, after values are clipped and what a unit contributes is limited. Averages need a
    declared size of the table, as their error depends on it, and must be of everybody: without WHERE, FILTER
    or an inner join. `delta` may be a function of epsilon. `options` are those of `Query`.
    """
    if within is None:
        delta_value = delta(epsilon) if callable(delta) else delta
        return Query(sql=sql, public=public, epsilon=epsilon, rho=rho, delta=delta_value, **options)
    if epsilon is not None or rho is not None:
        raise InvalidInput("ask by price or by accuracy, not both.")
    _require.positive(within=within)
    _require.open_probability(confidence=confidence)

    def query_at(price: float) -> Query:
        delta_value = delta(price) if callable(delta) else delta
        return Query(sql=sql, public=public, epsilon=price, delta=delta_value, **options)

    def is_accurate(query: Query) -> bool:
        return all(error <= within for error in _promised_errors(query, confidence))

    high = 1.0
    # Doubling finds an accurate epsilon, halving one that is not, and bisection the border between the two.
    while not is_accurate(query_at(high)):
        if high == MAX_EPSILON:
            raise InvalidInput(
                f"no epsilon up to {MAX_EPSILON:g} promises an error within {float(within):g}. Ask for fewer "
                "numbers, tighter bounds, or less accuracy."
            )
        high = min(2 * high, MAX_EPSILON)
    low = high / 2
    while is_accurate(query_at(low)) and low > LEAST_EPSILON:
        low, high = low / 2, low
    while high > low * 1.001:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if is_accurate(query_at(middle)) else (middle, high)
    return query_at(high)


def _promised_errors(query: Query, confidence: float) -> list[float]:
    """Return the errors of the columns, which must all be known without data; refuse the query if one is
    not."""
    preview = query.preview(confidence)
    for i, error in enumerate(preview.errors):
        if error is None and query.is_number(i):
            raise InvalidInput(
                f"the error of column {preview.columns[i]!r} depends on the data, so no price promises it. "
                + (
                    "Ask by epsilon=...: the notes of its preview say how far off its rank or count may be."
                    if preview.columns[i] in preview.chosen
                    else "Ask by epsilon=..., or declare the size of the table and ask for an average of "
                    "everybody."
                )
            )
    return [error for error in preview.errors if error is not None]


def cut_off_sql(
    public: Public, rows: int | None, groups: int | None, by: str | None, where: str | None
) -> str:
    """Return SQL for the number of units (column `units`), and of those (column `above`) that have more than
    `rows` rows, or more than `groups` different values of the column `by`; `where` is a condition on rows, or
    None for all.

    The sub-query has one row per unit, so that one unit changes each count by at most one, and no limit on
    contributions is needed.
    """
    if (rows is None) == (groups is None):
        raise InvalidInput("name one limit: rows=20, or groups=3 with by='diagnosis'.")
    if public.unit.column is None:
        raise InvalidInput("the unit is a row, so no limit cuts anything off.")
    if (groups is None) != (by is None):
        raise InvalidInput("groups=... and by='the column of GROUP BY' belong together.")
    limit = rows if rows is not None else groups
    _require.integer(**{"rows" if groups is None else "groups": limit}, at_least=1)
    counted = "COUNT(*)" if by is None else f"COUNT(DISTINCT {_quote(by)})"
    unit = _quote(public.unit.column)
    condition = "" if where is None else f" WHERE {where}"
    inner = f"SELECT {unit}, {counted} AS n FROM {_quote(public.table)}{condition} GROUP BY {unit}"
    return f"SELECT COUNT(*) AS units, COUNT(*) FILTER (WHERE n > {limit}) AS above FROM ({inner}) AS one"


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
