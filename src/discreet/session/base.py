"""The base of a session: the curator, who asks, their budget, and mechanisms that are handed over ready
made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from .._public import Public
from .._require import NearestNames, check_options
from ..curator import STEWARD, Account, Budget, Curator, InteractiveHandle, Ledger, Policy
from ..mechanisms.protocols import Interactive, Mechanism, Release
from ..tables import Memory, dummy
from .terms import share_of

# What a session's verbs are called elsewhere: in database clients, Tumult Analytics, scikit-learn.
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
    """Holds the curator of one dataset and the name of the caller; `Session` adds the verbs."""

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
        """How much of that budget is gone, in its own unit (epsilon, or rho); of several periods, where most
        is gone."""
        return self.curator.account(self.analyst).used

    @property
    def remaining(self) -> float:
        return self.curator.account(self.analyst).left

    @property
    def accounts(self) -> list[Account]:
        """What was spent of what by the caller: one account, or with a budget per period one for each."""
        return self.curator.accounts_of(self.analyst)

    @check_options
    def ask(self, mechanism: Mechanism, *, fresh: bool = False) -> Release:
        """Ask any mechanism of discreet, or the steward's own."""
        return self.curator.ask(mechanism, analyst=self.analyst, fresh=fresh)

    def start(self, interactive: Interactive) -> InteractiveHandle:
        """Start an interactive mechanism: its complete price is paid now."""
        return self.curator.start(interactive, analyst=self.analyst)

    def during(self, *periods: str) -> Self:
        """Return a session on the rows of some periods only, where budgets are per period: what is asked is
        charged to each of these.

        A session without periods asks about the whole table, and is charged to every period, past and to
        come.
        """
        return replace(self, curator=self.curator.during(*periods))

    @check_options
    def as_analyst(self, name: str) -> Self:
        """Return a session on the same dataset as an analyst sees it, under their own budget if they have
        one."""
        self.curator.policy.of(name)
        return replace(self, analyst=name)

    @check_options
    def dummy(self, rows: int = 100, seed: int = 0) -> Memory:
        """Return a made-up table with the same schema, to write queries against. It says nothing about the
        data."""
        return dummy(self.public, rows, seed)

    def _delta(self, epsilon: Any, policy: Policy) -> float:
        """Return the delta that goes with an epsilon unless another is named: so much that deltas last as
        long as epsilon does."""
        analyst_budget = policy.of(self.analyst)
        return min(
            share_of(budget, epsilon) for budget in (policy.budget, analyst_budget) if budget is not None
        )

    def __repr__(self) -> str:
        who = "" if self.analyst == STEWARD else f", as {self.analyst!r}"
        return f"<Session of {self.public.table!r}{who}: {self._state()}>"

    def _state(self) -> str:
        account = self.curator.account(self.analyst)
        return f"{account.rule.unit} {account.used:.4g} of {float(account.rule.total):.4g} used"

    def _repr_html_(self) -> str:
        from ..query.pages import session_html

        rows = [(a.of, a.used, float(a.rule.total), a.rule.unit) for a in self.accounts]
        return session_html(self.public, rows, None if self.analyst == STEWARD else self.analyst)
