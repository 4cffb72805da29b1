"""Defines the base of a session: the curator, the name of the caller, the caller's budget, and the methods
that take a finished mechanism. The caller is an analyst, or by default the steward, who administers the
dataset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from .._public import Public
from .._require import NearestNames, check_options
from ..curator import STEWARD, Budget, Curator, InteractiveHandle, Ledger, Policy
from ..curator.accounts import Account
from ..mechanisms.protocols import Interactive, Mechanism, Release
from ..tables import Memory, dummy
from .terms import share_of

# Names that database clients, Tumult Analytics and scikit-learn have for methods of a session. An error about
# an unknown attribute suggests the session's own name.
SYNONYMS: Mapping[str, str] = {
    "query": "sql",
    "execute": "sql",
    "run": "sql",
    "evaluate": "sql",
    "schema": "public",
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
        """The budget of the caller: the analyst's own if they have one, else the dataset's."""
        policy = self.curator.policy
        return policy.of(self.analyst) or policy.budget

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

    @check_options
    def ask(self, mechanism: Mechanism, *, fresh: bool = False) -> Release:
        """Charge and run a mechanism of discreet, or one that the steward has written. A repeated question is
        answered from the ledger, free, unless `fresh` is set."""
        return self.curator.ask(mechanism, analyst=self.analyst, fresh=fresh)

    def start(self, interactive: Interactive) -> InteractiveHandle:
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
    def as_analyst(self, name: str) -> Self:
        """Return the session of an analyst on the same dataset, under their own budget if they have one."""
        # refuses a name that is not an analyst of this dataset
        self.curator.policy.of(name)
        return replace(self, analyst=name)

    @check_options
    def dummy(self, rows: int = 100, seed: int = 0) -> Memory:
        """Return a table with the same schema and random rows, to try queries on. It does not depend on the
        data."""
        return dummy(self.public, rows, seed)

    def _delta(self, epsilon: Any, policy: Policy) -> float:
        """Return the default delta of a question that costs `epsilon`: the part of the budget's delta that
        `terms.share_of` gives it, so that delta is not used up before epsilon. With two budgets, the
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
        from ..query.pages import session_html

        rows = [(a.of, a.used, float(a.rule.total), a.rule.unit) for a in self.accounts]
        return session_html(self.public, rows, None if self.analyst == STEWARD else self.analyst)
