"""The budget planner: several questions and models under one epsilon, split so that the weighted error is
least, before anything is spent.

Each piece of work says how large its error is at a price, if it can know. For noise whose variance falls as 1
/ epsilon² the best split gives each a share proportional to the cube root of (weight times error at epsilon
1): Lagrange. Shares are refined with the errors that are predicted at them. Work that cannot know its error
gets the share of its weight; work with an accuracy that was wished for gets the least price that promises it.

New kinds of work need three things: `name`, `error(session, epsilon)` (None if not known) and
`run(session, epsilon)`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from . import _require
from ._errors import BudgetExceeded, InvalidInput
from .query import Query, QueryError, WorkloadQuery

# Rounds of refining the shares with the errors predicted at them: the split is near its fixed point, and any
# split is valid.
ROUNDS = 5
# Shares are rounded down to this many digits, so that their sum stays within what was asked.
_DIGITS = 6


@runtime_checkable
class Work(Protocol):
    """A piece of work that a plan can pay for."""

    @property
    def name(self) -> str: ...

    def error(self, session: Any, epsilon: float) -> float | None:
        """Return the predicted root mean squared error, in units of what one unit contributes; None where it
        depends on the data."""
        ...

    def run(self, session: Any, epsilon: float) -> Any: ...


@dataclass(frozen=True, slots=True)
class Question:
    """One SQL query."""

    sql: str
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def name(self) -> str:
        return " ".join(self.sql.split())

    def error(self, session: Any, epsilon: float) -> float | None:
        query = session._priced_query(self.sql, **dict(self.options), epsilon=epsilon)
        if isinstance(query, WorkloadQuery):
            return query.rmse
        assert isinstance(query, Query)
        pairs = zip(query._allocation.noises, query._shape().sensitivities, strict=True)
        squares = [(noise.standard_deviation / max(1, s.linf)) ** 2 for noise, s in pairs]
        return math.sqrt(sum(squares) / len(squares)) if squares and not query._allocation.selectors else None

    def least(self, session: Any, within: float) -> float:
        """Return the least epsilon that promises an error."""
        query = session._priced_query(self.sql, **dict(self.options), within=within)
        return float(query.epsilon)

    def run(self, session: Any, epsilon: float) -> Any:
        return session.sql(self.sql, **{**dict(self.options), "epsilon": epsilon})


@dataclass(frozen=True, slots=True)
class Together:
    """Counting queries that are answered as one workload."""

    queries: tuple[str, ...]
    rows: int | None = None

    @property
    def name(self) -> str:
        return f"{len(self.queries)} counting queries together"

    def error(self, session: Any, epsilon: float) -> float | None:
        rmse: float = session._workload(self.queries, epsilon=epsilon, rows=self.rows).rmse
        return rmse

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

    @property
    def name(self) -> str:
        return f"{type(self.estimator).__name__} of {self.target}"

    def error(self, session: Any, epsilon: float) -> float | None:
        return None

    def run(self, session: Any, epsilon: float) -> Any:
        settings = {**self.estimator.get_params(deep=False), "epsilon": epsilon}
        return session.fit(type(self.estimator)(**settings), target=self.target, features=self.features)


@dataclass(frozen=True, slots=True)
class Item:
    """One piece of work with its share of the budget; `error` is predicted, in units of what one unit
    contributes (people, for counts)."""

    work: Work
    weight: float
    epsilon: float
    error: float | None

    def __str__(self) -> str:
        error = "error not known beforehand" if self.error is None else f"error about {self.error:,.4g}"
        return f"epsilon {self.epsilon:.4g}: {self.work.name[:90]} ({error}, weight {self.weight:g})"


@dataclass(frozen=True, slots=True)
class BudgetPlan(_require.NearestNames):
    """What each piece of work will cost and how good it will be. Nothing is spent before `run`."""

    session: Any = field(repr=False)
    epsilon: float
    items: tuple[Item, ...]

    def __str__(self) -> str:
        spent = sum(item.epsilon for item in self.items)
        lines = [f"{len(self.items)} pieces of work for epsilon {spent:.4g} of {self.epsilon:.4g}:"]
        return "\n".join([*lines, *(f"  {item}" for item in self.items)])

    def run(self) -> tuple[Any, ...]:
        """Do all of it, in order; each is charged before it is done.

        Refused at once where what is left of the caller's epsilon does not hold the whole plan. Under a
        budget in rho, or where others have spent the dataset's, the first piece that does not fit is refused,
        and what was done before stays done.
        """
        spent = sum(item.epsilon for item in self.items)
        remaining, budget_epsilon = self.session.remaining, self.session.budget.epsilon
        if budget_epsilon is not None and spent > remaining * (1 + 1e-9):
            raise BudgetExceeded(
                f"the plan costs epsilon {spent:.4g}, and {remaining:.4g} is left. Nothing was "
                f"released. Plan with less epsilon."
            )
        return tuple(item.work.run(self.session, item.epsilon) for item in self.items)


# The least epsilon that is split: below it all errors are as good as infinite.
_LEAST = 1e-9


def plan(session: Any, work: Sequence[Any], *, epsilon: _require.Real, together: bool = True) -> BudgetPlan:
    """Split `epsilon` among pieces of work.

    Each is SQL; a list of counting queries to be answered together; a pair (estimator, target); a mapping
    with `sql`, `queries` or `estimator` and `weight`, `within`, `rows`, `target`, `features`; or any `Work`.
    A weight is 1 by default; that of queries to be answered together is their number. With `together`, plain
    counting queries are joined into one workload where that is predicted to be better.
    """
    _require.positive(epsilon=epsilon)
    if epsilon < _LEAST:
        raise _require.fail(
            "epsilon", epsilon, f"at least {_LEAST:g}: below, all errors are as good as infinite"
        )
    _require.price(epsilon=epsilon)
    # numpy's short numbers overflow on the way
    epsilon = float(epsilon)
    pieces = [_item(entry) for entry in _require.listed(work=work)]
    _require.non_empty(work=pieces)
    fixed, free = [], []
    for index, (job, weight, within) in enumerate(pieces):
        if within is None:
            free.append((index, job, weight))
        elif isinstance(job, Question):
            fixed.append((index, job, weight, job.least(session, within)))
        else:
            raise InvalidInput(
                f"within= is for single queries, and {job.name!r} is none. Nothing was charged."
            )
    left = epsilon - sum(price for *_, price in fixed)
    if left < 0 or (free and left <= 0):
        raise InvalidInput(
            f"the wished accuracies alone cost epsilon {epsilon - left:.4g}, and {epsilon:.4g} is "
            f"given. Nothing was charged. Wish for less, or give more."
        )
    best = _split(session, free, left)
    if together:
        other = _join_queries(session, free, left)
        if other is not None and _loss(other) < _loss(best):
            best = other
    done = [
        (index, Item(job, weight, price, job.error(session, price))) for index, job, weight, price in fixed
    ]
    return BudgetPlan(
        session, epsilon, tuple(item for _, item in sorted([*best, *done], key=lambda pair: pair[0]))
    )


Free = tuple[int, Work, float]


def _split(session: Any, work: Sequence[Free], epsilon: float) -> list[tuple[int, Item]]:
    """Divide epsilon by weight for work of unknown error, then by cube roots among the others."""
    if not work:
        return []
    weights = [weight for _, _, weight in work]
    shares = [epsilon * weight / sum(weights) for weight in weights]
    errors = [job.error(session, share) for (_, job, _), share in zip(work, shares, strict=True)]
    predicted = [i for i, error in enumerate(errors) if error is not None]
    room = sum(shares[i] for i in predicted)
    for _ in range(ROUNDS if len(predicted) > 1 else 0):
        roots = [(weights[i] * (errors[i] or 0.0) ** 2 * shares[i] ** 2) ** (1 / 3) for i in predicted]
        for i, root in zip(predicted, roots, strict=True):
            shares[i] = room * root / sum(roots)
            errors[i] = work[i][1].error(session, shares[i])
    shares = [_round_down(share) for share in shares]
    return [
        (index, Item(job, weight, share, job.error(session, share)))
        for (index, job, weight), share in zip(work, shares, strict=True)
    ]


def _round_down(share: float) -> float:
    digits = _DIGITS - math.ceil(math.log10(share))
    return math.floor(share * 10.0**digits) / 10.0**digits


def _loss(items: list[tuple[int, Item]]) -> float:
    """Return the weighted sum of squared errors; each query of a workload counts like one by itself."""
    return sum(item.weight * item.error**2 for _, item in items if item.error is not None)


def _join_queries(session: Any, work: Sequence[Free], epsilon: float) -> list[tuple[int, Item]] | None:
    """Return the same with all plain queries as one workload, at the place of the first; None where they
    cannot be answered so."""
    plain = [item for item in work if isinstance(item[1], Question) and _counts(session, item[1])]
    if len(plain) < 2:
        return None
    workload = Together(tuple(job.sql for _, job, _ in plain if isinstance(job, Question)))
    rest = [item for item in work if item not in plain]
    try:
        return _split(session, [*rest, (plain[0][0], workload, sum(weight for *_, weight in plain))], epsilon)
    except QueryError:
        return None


def _counts(session: Any, question: Question) -> bool:
    """Return whether a query can be part of a workload."""
    try:
        return not question.options and session._workload((question.sql,), epsilon=1.0) is not None
    except InvalidInput:
        return False


_FIELDS = {"sql", "queries", "estimator", "target", "features", "weight", "within", "rows"}


def _item(work: Any) -> tuple[Work, float, float | None]:
    if isinstance(work, str):
        return Question(work), 1.0, None
    if isinstance(work, Mapping):
        return _from_mapping(work)
    if isinstance(work, Work):
        return work, 1.0, None
    if isinstance(work, tuple) and len(work) == 2 and hasattr(work[0], "get_params"):
        return Model(work[0], work[1]), 1.0, None
    if isinstance(work, list | tuple) and work and all(isinstance(text, str) for text in work):
        return Together(tuple(work)), float(len(work)), None
    raise _require.fail(
        "work", type(work).__name__, "SQL, a list of SQL, (estimator, target), or a mapping of these"
    )


def _default_weight(work: Mapping[str, Any]) -> float:
    """Return 1 for each query of the work: a workload counts as its queries would one by one."""
    queries = work.get("queries")
    return float(len(queries)) if isinstance(queries, list | tuple) and queries else 1.0


def _from_mapping(work: Mapping[str, Any]) -> tuple[Work, float, float | None]:
    if unknown := sorted(set(work) - _FIELDS):
        raise InvalidInput(
            f"work has no field {unknown[0]!r}; it has {', '.join(sorted(_FIELDS))}. Nothing was charged."
        )
    kinds = [kind for kind in ("sql", "queries", "estimator") if kind in work]
    if len(kinds) != 1:
        raise InvalidInput("work is one of sql, queries and estimator. Nothing was charged.")
    weight, within = work.get("weight", _default_weight(work)), work.get("within")
    _require.price(weight=weight)
    if within is not None:
        _require.positive(within=within)
    rows = work.get("rows")
    if kinds == ["sql"]:
        return Question(work["sql"], (("rows", rows),) if rows is not None else ()), float(weight), within
    if kinds == ["queries"]:
        return Together(tuple(_require.listed(queries=work["queries"])), rows), float(weight), within
    features = work.get("features")
    return (
        Model(work["estimator"], work["target"], None if features is None else tuple(features)),
        float(weight),
        within,
    )
