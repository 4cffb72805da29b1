"""Defines the base of a session: the curator, the name of the caller, the caller's budget, and the methods
that take a finished mechanism. The caller is an analyst, or by default the steward, who administers the
dataset.

Prices a question in SQL, and gives it the part of a budget's delta that it has by default.

Defines handles and previews of a session: the preview of a question, a watch on counts, a fed
mechanism.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

from .. import _require
from .._errors import BudgetExceeded, InvalidInput
from .._public import Public
from .._require import NearestNames, check_options, paying
from ..accounting.caps import share
from ..accounting.filters import Filter, FilterPreview
from ..curator import STEWARD, Budget, Curator, Ledger, Policy, receipts
from ..curator.accounts import Account
from ..curator.live_mechanisms import Handle
from ..mechanisms.protocols import Interactive, Mechanism, Release
from ..mechanisms.sparse_vector import ThresholdAnswer
from ..query import Query, ask
from ..query.groupings import together
from ..query.parse import several_counts
from ..query.preview import Preview
from ..query.statistic import where
from ..tables import Memory, dummy
from .terms import Terms, defaults, values

if TYPE_CHECKING:
    from ..query import WorkloadQuery
    from ..query.workload import WorkloadPreview

# Under a budget in rho, a query without a delta of its own gets the budget's delta divided by this number, so
# that a hundred such queries fit. Chosen by hand, not tuned: a larger number means slightly more noise per
# query.
_QUERIES_PER_DELTA = 100


def priced(terms: Terms, text: str, public: Public, delta: Callable[[Any], float]) -> Query | WorkloadQuery:
    """Return the priced query of a SQL text. `delta` maps an epsilon to the default delta of a question at
    that epsilon (`SessionBase._delta`); it is used unless the options have a delta."""
    if terms.epsilon is None and terms.rho is None and terms.within is None:
        raise InvalidInput("say what the answer may cost (epsilon=0.1) or how good it must be (within=50).")
    query_delta: float | Callable[[Any], float] = 0.0 if terms.rho is not None else delta
    if terms.delta is not None:
        query_delta = terms.delta
    if several_counts(text) and terms.within is None:
        workload = _as_workload(
            terms, text, public, query_delta(terms.epsilon) if callable(query_delta) else query_delta
        )
        if workload is not None:
            return workload
    pairs = terms.weights.items() if isinstance(terms.weights, Mapping) else terms.weights
    options = values(terms, Terms)
    return ask(text, public, **{**options, "delta": query_delta, "weights": _require.listed(weights=pairs)})


@contextmanager
def refusing(terms: Terms) -> Iterator[None]:
    """Rewrite the advice of a `BudgetExceeded` raised inside, where the question is asked by accuracy
    (`within`): such a question has no epsilon to lower, only an error to raise."""
    try:
        yield
    except BudgetExceeded as error:
        if terms.within is not None:
            error.remedy = (
                f"Ask for a larger error than {float(terms.within):g}, or ask the steward for more."
            )
        raise


def _as_workload(terms: Terms, text: str, public: Public, delta: float) -> WorkloadQuery | None:
    """Return a statement with several counts as a workload if that is better than separate counts, or the
    only way to answer it; else None. See `query.groupings.together`, which decides."""
    # Those that differ from their default; `together` decides what each means for a workload.
    present = {
        name: values(terms)[name] for name in ("noise", "groups", "other", "weights", "rows", "min_people")
    }
    options = {
        name: value for name, value in present.items() if value != defaults(Terms)[name] and value != {}
    }
    return together(text, public, epsilon=terms.epsilon, rho=terms.rho, delta=delta, **options)


def share_of(budget: Budget, epsilon: Any) -> float:
    """Return the part of a budget's delta that a query with this epsilon gets by default: for a budget in
    epsilon, in proportion to epsilon (`accounting.caps.share`); for a budget in rho, a hundredth."""
    if budget.epsilon is None:
        return budget.delta / _QUERIES_PER_DELTA
    rule = budget.filter()
    assert isinstance(rule, Filter)
    return share(_require.exact(epsilon, "epsilon"), of=rule)


# Names that database clients, Tumult Analytics and scikit-learn have for methods of a session. An error about
# an unknown attribute suggests the session's own name.
SYNONYMS: Mapping[str, str] = {
    "query": "sql",
    "execute": "sql",
    "run": "sql",
    "evaluate": "sql",
    "schema": "public",
    "columns": "public",
    "used": "spent",
    "left": "remaining",
    "remaining_privacy_budget": "remaining",
    "estimate": "preview",
    "cost": "preview",
}


@dataclass(frozen=True, slots=True, repr=False)
class SessionBase(NearestNames):
    """Holds the curator of one dataset and the name of the caller; the subclasses that `Session` joins add
    the methods."""

    curator: Curator
    analyst: str = STEWARD

    _synonyms: ClassVar[Mapping[str, str]] = SYNONYMS

    @property
    def public(self) -> Public:
        """What everybody may know about the table."""
        public: Public = self.curator.source.public
        return public

    @property
    def ledger(self) -> Ledger:
        return self.curator.ledger

    @property
    def budget(self) -> Budget:
        """The budget of the caller: the analyst's own if they have one, else the dataset's. Printed, it shows
        limit, spent and left of epsilon (or rho) and delta, for each of `accounts`."""
        policy = self.curator.policy
        budget = policy.of(self.analyst) or policy.budget
        return budget.showing(lambda: "\n\n".join(account.text() for account in self.accounts))

    @property
    def spent(self) -> float:
        """How much of `budget` is spent, in its own unit (epsilon or rho). With a budget per period, it is
        how much the period that has spent most has spent."""
        return self.curator.account(self.analyst).used

    @property
    def remaining(self) -> float:
        """How much of `budget` is left, in the same unit; with a budget per period, in the same period as
        `spent`."""
        return self.curator.account(self.analyst).left

    @property
    def accounts(self) -> list[Account]:
        """The caller's accounts, each with its budget and what is spent of it: one account, or one per period
        where budgets are per period."""
        return self.curator.accounts_of(self.analyst)

    @paying
    def ask(self, mechanism: Mechanism, *, fresh: bool = False) -> Release:
        """Charge and run a mechanism of discreet, or one that the steward has written. A repeated question is
        answered from the ledger, free, unless `fresh` is set."""
        return self.curator.ask(mechanism, analyst=self.analyst, fresh=fresh)

    @paying
    def start(self, interactive: Interactive) -> Handle:
        """Start an interactive mechanism; its complete price, for all answers, is charged now."""
        return self.curator.start(interactive, analyst=self.analyst)

    def during(self, *periods: str) -> Self:
        """Return a session on the rows of these periods only, where budgets are per period; each question is
        then charged to each of these periods.

        A question of a session without periods is about the whole table. It is charged to every period, past
        and future.
        """
        return replace(self, curator=self.curator.during(*periods))

    @check_options
    def receipt(self, released: Any) -> dict[str, Any]:
        """Return the receipt of an answer or a release, as JSON: the question, the value, its error and
        price, and a signed proof that the ledger has it, which `discreet verify-number` checks without the
        ledger."""
        if not isinstance(self.ledger, Ledger):
            raise InvalidInput("a receipt is made beside the ledger: ask the steward, who has dp.open(...).")
        return receipts.receipt(self.ledger, receipts.number_of(self.ledger, released))

    @check_options
    def as_analyst(self, name: str) -> Self:
        """Return the session of an analyst on the same dataset, under their own budget if they have one."""
        self.curator.require_analyst(name)
        return replace(self, analyst=name)

    @check_options
    def dummy(self, rows: int = 100, seed: int = 0) -> Memory:
        """Return a table with the same schema and random rows, to try queries on. It does not depend on the
        data."""
        return dummy(self.public, rows, seed)

    def _delta(self, epsilon: Any, policy: Policy) -> float:
        """Return the default delta of a question that costs `epsilon`: the part of the budget's delta that
        `share_of` gives it, so that delta is not used up before epsilon. With two budgets, the
        analyst's and the dataset's, the smaller part."""
        analyst_budget = policy.of(self.analyst)
        return min(
            share_of(budget, epsilon) for budget in (policy.budget, analyst_budget) if budget is not None
        )

    def __repr__(self) -> str:
        who = "" if self.analyst == STEWARD else f", as {self.analyst!r}"
        return f"<Session of {self.public.table!r}{who}: {self._state()}>"

    def _state(self) -> str:
        """Return the caller's spending in words, such as "epsilon 0.5 of 1 used"."""
        account = self.curator.account(self.analyst)
        # `rule`: the filter of the account's budget
        return f"{account.rule.unit} {account.used:.4g} of {float(account.rule.total):.4g} used"

    def _repr_html_(self) -> str:
        from ..query.html_view import session_html

        rows = [(a.of, a.used, float(a.rule.total), a.rule.unit) for a in self.accounts]
        return session_html(self.public, rows, None if self.analyst == STEWARD else self.analyst)


# The words for a question whose answer the caller has been given before.
ANSWERED = "already answered: free (fresh=True pays for new noise); "


class BudgetPreview:
    """Says whether and how often a previewed charge fits the budget; `budget` is set by the subclass."""

    __slots__ = ()
    budget: FilterPreview

    @property
    def fits(self) -> int | None:
        """How many such charges the remaining budget pays for; None if their number is not limited."""
        return self.budget.fits

    @property
    def buys(self) -> str:
        """How many such charges the remaining budget pays for, in words; with the reason, where it is more
        than their prices seem to allow."""
        if self.fits is None:
            return "any number of these"
        budget, price = self.budget, self._price
        left = max(0.0, budget.limit - budget.before)
        if budget.unit != "epsilon" or not price or self.fits <= left / price + 1:
            return f"{self.fits:,} of these"
        return (
            f"{self.fits:,} of these, more than {left:.4g} / {price:.4g}: with the budget's delta, many "
            f"small prices add up to less than their sum (docs/proofs/filters.md)"
        )

    @property
    def _price(self) -> float | None:
        """The epsilon of one such charge, if it has one."""
        return None

    @property
    def admitted(self) -> bool:
        """Whether the remaining budget pays for one such charge."""
        return self.budget.admitted


@dataclass(frozen=True, slots=True)
class QueryPreview(BudgetPreview, NearestNames):
    """Previews what a question would cost and how good its answer would be.

    `query`: its price, error and plan. `budget`: the spending before and after it, and the limit. `answered`:
    when the caller was given the stored answer to the same question; None if it would be paid for.
    """

    query: Preview | WorkloadPreview
    budget: FilterPreview
    answered: str | None = None

    @property
    def free(self) -> bool:
        """Whether the question costs nothing, because the caller was given its answer before."""
        return self.answered is not None

    @property
    def _price(self) -> float | None:
        epsilon = getattr(self.query, "epsilon", None)
        return None if epsilon is None else float(epsilon)

    @property
    def _state(self) -> str:
        used = f"used so far: {self.budget.before:.4g} of {self.budget.limit:.4g}"
        return f"{ANSWERED if self.free else ''}{used}; what is left buys {self.buys}."

    def __str__(self) -> str:
        return f"{self.query}\n{self._state}"

    def _repr_html_(self) -> str:
        from ..query.html_view import preview_html

        if not isinstance(self.query, Preview):
            return f'<pre style="white-space:pre-wrap">{html.escape(str(self))}</pre>'
        return preview_html(self.query, self.budget.before, self.budget.after, self.budget.limit, self._state)


@dataclass(frozen=True, slots=True)
class Watch(NearestNames):
    """Asks any number of questions of the form "is this count above the threshold?" (a sparse vector).

    The price, paid at the start, depends on the number of answers "above" only; the watch halts after them.
    `number`, that of its charge, continues it after a restart: `session.watch(..., number=...)` with the same
    options.
    """

    live: Handle

    @property
    def number(self) -> int:
        return self.live.number

    def ask(self, question: Any) -> ThresholdAnswer:
        """Compare one statistic with the threshold. `question` is a condition as after WHERE ("age > 60 AND
        smoker"), whose rows are counted; one SELECT of a COUNT or a SUM; or a statistic object."""
        statistic = where(question, self.live.mechanism.public) if isinstance(question, str) else question
        answer: ThresholdAnswer = self.live.answer(statistic).value
        return answer


class Fed(NamedTuple):
    """Holds the result of `Session.feed`: the `handle` that asks the mechanism about the new table, and the
    `release` that feeding it caused, or None."""

    handle: Any
    release: Release | None


def require_sql(text: Any) -> None:
    """Refuse an estimator, a trainer or a mechanism in the place of SQL, and say what shows its price."""
    if hasattr(text, "mechanism") or hasattr(text, "event"):
        name = text.__name__ if isinstance(text, type) else type(text).__name__
        hint = (
            f'An estimator is planned by people.plan([({name}(), "the target")], epsilon=1).'
            if hasattr(text, "mechanism")
            else "print(people.curator.preview(it.event)) shows what a mechanism or a trainer would cost."
        )
        raise InvalidInput(f"preview takes SQL, got {name}. {hint}")
