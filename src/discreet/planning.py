"""The budget planner: splits one epsilon among several questions and models so that the weighted sum of their
squared errors is smallest, before anything is spent.

Each piece of work predicts its error at a price, where it can. For noise whose variance is v / epsilon² the
best split gives each piece a share proportional to the cube root of weight * v (by Lagrange multipliers).
Since v may depend on epsilon, the shares are refined with the errors predicted at them. Work of unknown error
gets a share in proportion to its weight; work with a required accuracy (`within`) gets the smallest price at
which that is promised.

A new kind of work needs three things: `name`, `error(session, epsilon)` (None if not known) and
`run(session, epsilon)`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from . import _require, accounting
from ._errors import BudgetExceeded, InvalidInput
from .query import Query, QueryError, WorkloadQuery

# The number of times that shares are refined with the errors predicted at them. Every split is valid; the
# value was chosen by hand.
ROUNDS = 5
# Shares are rounded down to this many significant digits, so that their sum does not exceed epsilon.
_DIGITS = 6


@runtime_checkable
class Work(Protocol):
    """A piece of work that a plan can pay for."""

    @property
    def name(self) -> str: ...

    def error(self, session: Any, epsilon: float) -> float | None:
        """Return the predicted root mean squared error, relative to the largest contribution of one privacy
        unit (so in people, for counts); None where it depends on the data."""
        ...

    def run(self, session: Any, epsilon: float) -> Any: ...


@dataclass(frozen=True, slots=True)
class PlannedQuery:
    """One SQL query."""

    sql: str
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def name(self) -> str:
        return " ".join(self.sql.split())

    def error(self, session: Any, epsilon: float) -> float | None:
        query = session._priced_query(self.sql, **dict(self.options), epsilon=epsilon)
        if isinstance(query, WorkloadQuery):
            return query.rmse / query._plan.max_rows
        assert isinstance(query, Query)
        pairs = zip(query.question.noises, query.question.form.sensitivities, strict=True)
        squares = [(noise.standard_deviation / max(1, s.linf)) ** 2 for noise, s in pairs]
        return math.sqrt(sum(squares) / len(squares)) if squares and not query.question.selectors else None

    def least(self, session: Any, within: float) -> float:
        """Return the smallest epsilon at which the error is promised to be at most `within`."""
        query = session._priced_query(self.sql, **dict(self.options), within=within)
        return float(query.epsilon)

    def run(self, session: Any, epsilon: float) -> Any:
        return session.sql(self.sql, **{**dict(self.options), "epsilon": epsilon})


@dataclass(frozen=True, slots=True)
class Together:
    """Counting queries that are answered as one workload; `rows` limits the rows per unit."""

    queries: tuple[str, ...]
    rows: int | None = None

    @property
    def name(self) -> str:
        return f"{len(self.queries)} counting queries together"

    def error(self, session: Any, epsilon: float) -> float | None:
        workload: WorkloadQuery = session._priced_workload(self.queries, epsilon=epsilon, rows=self.rows)
        return workload.rmse / workload._plan.max_rows

    def run(self, session: Any, epsilon: float) -> Any:
        return session.workload(self.queries, epsilon=epsilon, rows=self.rows)


@dataclass(frozen=True, slots=True)
class Model:
    """An estimator of `discreet.learning`, fitted with the epsilon that the plan gives it.

    Its accuracy is not known beforehand.
    """

    estimator: Any
    target: str
    features: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        _require.an_object(self.estimator)

    @property
    def name(self) -> str:
        return f"{type(self.estimator).__name__} of {self.target}"

    def error(self, session: Any, epsilon: float) -> float | None:
        return None

    def check(self, session: Any, epsilon: float) -> None:
        """Refuse an estimator whose own settings cost more than the plan gives it, by the event that it would
        be charged."""
        event = session._mechanism_for(self._with(epsilon), self.target, self.features).event
        cost = accounting.epsilon(event, delta=session.budget.delta or 0.0)
        _require.that(
            cost <= epsilon * (1 + 1e-6),
            f"{self.name} would cost epsilon {cost:.4g}, and the plan gives it {epsilon:.4g}: its "
            "settings fix its noise. Leave noise_multiplier out, so that the noise is made for the "
            "epsilon.",
        )

    def run(self, session: Any, epsilon: float) -> Any:
        return session.fit(self._with(epsilon), target=self.target, features=self.features)

    def _with(self, epsilon: float) -> Any:
        """Return the estimator with this epsilon."""
        return type(self.estimator)(**{**self.estimator.get_params(deep=False), "epsilon": epsilon})


@dataclass(frozen=True, slots=True)
class Item:
    """One piece of work with its share of the budget, `epsilon`, and its predicted `error` as in `Work`."""

    work: Work
    weight: float
    epsilon: float
    error: float | None

    def __str__(self) -> str:
        error = "error not known beforehand"
        if self.error is not None:
            error = f"error about {self.error:,.4g} times what one person contributes at most"
        return f"epsilon {self.epsilon:.4g}: {self.work.name[:90]} ({error}, weight {self.weight:g})"


@dataclass(frozen=True, slots=True)
class BudgetPlan(_require.NearestNames):
    """The price and the predicted error of each piece of work. Nothing is spent before `run`.

    `left`: what was left of a budget in epsilon when the plan was made; infinite where that is not known.
    """

    session: Any = field(repr=False)
    epsilon: float
    items: tuple[Item, ...]
    left: float = math.inf

    def __str__(self) -> str:
        spent = sum(item.epsilon for item in self.items)
        pieces = f"{len(self.items)} {'piece' if len(self.items) == 1 else 'pieces'} of work"
        lines = [f"{pieces} for epsilon {spent:.4g} of {self.epsilon:.4g}:"]
        lines += [f"  {item}" for item in self.items]
        if spent > self.left * (1 + 1e-9):
            lines.append(f"The budget does not pay for it: epsilon {self.left:.4g} is left.")
        return "\n".join(lines)

    @_require.paying
    def run(self) -> tuple[Any, ...]:
        """Run all pieces of work in order and return their results; each is charged before it is run.

        Raises BudgetExceeded before the first piece if the caller's remaining epsilon is less than the whole
        plan costs. Under a budget in rho, or where other analysts have spent the dataset's budget, the first
        piece that does not fit is refused; earlier pieces stay charged and their results are in the ledger.
        """
        spent = sum(item.epsilon for item in self.items)
        remaining, budget_epsilon = self.session.remaining, self.session.budget.epsilon
        if budget_epsilon is not None and spent > remaining * (1 + 1e-9):
            raise BudgetExceeded(
                f"the plan costs epsilon {spent:.4g}, and {remaining:.4g} is left. Plan with less epsilon."
            )
        return tuple(item.work.run(self.session, item.epsilon) for item in self.items)


# The smallest epsilon that is split. A convention: below it all errors are useless.
_LEAST = 1e-9


def plan(session: Any, work: Sequence[Any], *, epsilon: _require.Real, together: bool = True) -> BudgetPlan:
    """Split `epsilon` among pieces of work.

    Each is SQL; a list of counting queries to be answered together; a pair (estimator, target); a mapping
    with one of `sql`, `queries` and `estimator`, and any of `weight`, `within`, `rows`, `target`, `features`;
    or any `Work`. The default weight is 1, and for a list of queries their number. With `together`, single
    counting queries without options are joined into one workload where that is predicted to have a smaller
    error.
    """
    _require.positive(epsilon=epsilon)
    wanted = f"at least {_LEAST:g}: below it all errors are useless"
    _require.must(epsilon >= _LEAST, "epsilon", epsilon, wanted)
    _require.price(epsilon=epsilon)
    # a Python float: numpy's short floats would overflow in the computations below
    epsilon = float(epsilon)
    pieces = [_parse_work(entry) for entry in _require.listed(work=work)]
    _require.non_empty(work=pieces)
    fixed, free = [], []
    for index, (job, weight, within) in enumerate(pieces):
        if within is None:
            free.append((index, job, weight))
        elif isinstance(job, PlannedQuery):
            fixed.append((index, job, weight, job.least(session, within)))
        else:
            raise InvalidInput(f"within= is for single queries, and {job.name!r} is none.")
    left = epsilon - sum(price for *_, price in fixed)
    _require.that(
        left >= 0 and (not free or left > 0),
        f"the required accuracies alone cost epsilon {epsilon - left:.4g}, and {epsilon:.4g} is given. "
        "Require less accuracy, or give more epsilon.",
    )
    best = _split(session, free, left)
    if together:
        other = _join_queries(session, free, left)
        if other is not None and _loss(other) < _loss(best):
            best = other
    fixed_items = [
        (index, Item(job, weight, price, job.error(session, price))) for index, job, weight, price in fixed
    ]
    items = tuple(item for _, item in sorted([*best, *fixed_items], key=lambda pair: pair[0]))
    left = math.inf if session.budget.epsilon is None else float(session.remaining)
    return BudgetPlan(session, epsilon, items, left)


# Work whose share is not fixed by `within`: its position in the plan, itself, and its weight.
Free = tuple[int, Work, float]


def _split(session: Any, work: Sequence[Free], epsilon: float) -> list[tuple[int, Item]]:
    """Divide epsilon in proportion to the weights; then divide the part of all work of known error anew, by
    cube roots (module docstring); return each position and its item."""
    if not work:
        return []
    weights = [weight for _, _, weight in work]
    shares = [epsilon * weight / sum(weights) for weight in weights]
    errors = [job.error(session, share) for (_, job, _), share in zip(work, shares, strict=True)]
    predicted = [i for i, error in enumerate(errors) if error is not None]
    predicted_epsilon = sum(shares[i] for i in predicted)
    for _ in range(ROUNDS if len(predicted) > 1 else 0):
        # cube roots of weight * v, where v = error² epsilon²
        roots = [(weights[i] * (errors[i] or 0.0) ** 2 * shares[i] ** 2) ** (1 / 3) for i in predicted]
        # an error that is zero in floats, at a huge epsilon, would get no share at all: the last shares stay
        if min(roots) == 0:
            break
        for i, root in zip(predicted, roots, strict=True):
            shares[i] = predicted_epsilon * root / sum(roots)
            errors[i] = work[i][1].error(session, shares[i])
    shares = [_round_down(share) for share in shares]
    for (_, job, _), share in zip(work, shares, strict=True):
        if isinstance(job, Model):
            job.check(session, share)
    return [
        (index, Item(job, weight, share, job.error(session, share)))
        for (index, job, weight), share in zip(work, shares, strict=True)
    ]


def _round_down(share: float) -> float:
    """Return a positive share rounded down to _DIGITS significant digits."""
    digits = _DIGITS - math.ceil(math.log10(share))
    return math.floor(share * 10.0**digits) / 10.0**digits


def _loss(items: list[tuple[int, Item]]) -> float:
    """Return the weighted sum of squared errors over work of known error."""
    return sum(item.weight * item.error**2 for _, item in items if item.error is not None)


def _join_queries(session: Any, work: Sequence[Free], epsilon: float) -> list[tuple[int, Item]] | None:
    """Return the split with all single counting queries joined into one workload, at the position of the
    first; None where there are fewer than two, or where they cannot be one workload."""
    counting = [
        entry
        for entry in work
        if isinstance(entry[1], PlannedQuery) and _is_counting_query(session, entry[1])
    ]
    if len(counting) < 2:
        return None
    workload = Together(tuple(job.sql for _, job, _ in counting if isinstance(job, PlannedQuery)))
    remaining = [entry for entry in work if entry not in counting]
    try:
        return _split(
            session, [*remaining, (counting[0][0], workload, sum(weight for *_, weight in counting))], epsilon
        )
    except QueryError:
        return None


def _is_counting_query(session: Any, question: PlannedQuery) -> bool:
    """Return whether a query is a counting query without options, which can be part of a workload."""
    try:
        return not question.options and session._priced_workload((question.sql,), epsilon=1.0) is not None
    except InvalidInput:
        return False


_FIELDS = {"sql", "queries", "estimator", "target", "features", "weight", "within", "rows"}


def _parse_work(work: Any) -> tuple[Work, float, float | None]:
    """Return one entry of a plan as its work, its weight and its required accuracy (None: not required)."""
    if isinstance(work, str):
        return PlannedQuery(work), 1.0, None
    if isinstance(work, Mapping):
        return _from_mapping(work)
    if isinstance(work, Work):
        return work, 1.0, None
    if isinstance(work, tuple) and len(work) == 2 and hasattr(work[0], "get_params"):
        return Model(work[0], work[1]), 1.0, None
    if isinstance(work, list | tuple) and work and all(isinstance(text, str) for text in work):
        return Together(tuple(work)), float(len(work)), None
    raise _require.fail(
        "work",
        type(work).__name__,
        "SQL, a list of SQL, (estimator, target), a mapping with sql, queries or estimator, or a Work",
    )


def _default_weight(work: Mapping[str, Any]) -> float:
    """Return the number of queries of the work, so that a workload weighs as much as its queries singly."""
    queries = work.get("queries")
    return float(len(queries)) if isinstance(queries, list | tuple) and queries else 1.0


def _from_mapping(work: Mapping[str, Any]) -> tuple[Work, float, float | None]:
    """Return what `_parse_work` returns, for a mapping."""
    if unknown := sorted(set(work) - _FIELDS):
        raise InvalidInput(f"work has no field {unknown[0]!r}; it has {', '.join(sorted(_FIELDS))}.")
    kinds = [kind for kind in ("sql", "queries", "estimator") if kind in work]
    _require.that(len(kinds) == 1, "work must have exactly one of the fields sql, queries and estimator.")
    weight, within = work.get("weight", _default_weight(work)), work.get("within")
    _require.price(weight=weight)
    if within is not None:
        _require.positive(within=within)
    rows = work.get("rows")
    if kinds == ["sql"]:
        return PlannedQuery(work["sql"], (("rows", rows),) if rows is not None else ()), float(weight), within
    if kinds == ["queries"]:
        return Together(tuple(_require.listed(queries=work["queries"])), rows), float(weight), within
    _require.that("target" in work, "work with an estimator needs the field target.")
    features = work.get("features")
    return (
        Model(
            work["estimator"],
            work["target"],
            None if features is None else _require.listed(features=features),
        ),
        float(weight),
        within,
    )
