"""Asks the questions of a session: SQL, workloads of counting queries, previews of their price, plans and
explanations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .. import _require
from .._errors import InvalidInput
from .._require import Real
from ..accounting.caps import requested_price_of
from ..query import Answer, Query
from ..query.cut_off import cut_off_sql
from .base import SessionBase
from .previews import QueryPreview, require_sql
from .terms import Terms

if TYPE_CHECKING:
    from ..explaining import Explanation
    from ..planning import BudgetPlan
    from ..query import WorkloadQuery


class Questions(SessionBase):
    """Adds the methods that take SQL to a session."""

    __slots__ = ()

    @_require.check_options
    def sql(
        self,
        text: str,
        *,
        epsilon: Real | None = None,
        rho: Real | None = None,
        within: float | None = None,
        confidence: float = 0.95,
        delta: float | None = None,
        noise: str = "auto",
        rows: int | None = None,
        groups: int | None = None,
        weights: Mapping[str, Real] | Sequence[tuple[str, Real]] = (),
        other: bool = False,
        fresh: bool = False,
    ) -> Answer:
        """Answer a SQL query privately, charged before it is computed; the same question again is answered
        from the ledger, free.

        Give one of: the price `epsilon`, the price `rho`, or the accuracy `within`, the error that is not
        exceeded with probability `confidence`. `delta`: by default a part of the budget's delta: half of the
        share that `epsilon` has of the budget's epsilon, or a hundredth for a budget in rho. `noise`:
        "laplace", "gaussian" or "auto". `rows`, `groups`: how many rows of one unit count, and in how many
        groups. `weights`: how the price is divided between output columns. `other`: groups that are not shown
        are added up in one row. `fresh`: pay for new noise instead of repeating an earlier answer.
        """
        terms = Terms(epsilon, rho, within, confidence, delta, noise, rows, groups, weights, other)
        with terms.refusing():
            release = self.curator.ask(self._query(text, terms), analyst=self.analyst, text=text, fresh=fresh)
        # A statement with several counts may be answered as a workload of one statement, whose value is a
        # tuple with one answer per statement.
        answer: Answer = release.value[0] if isinstance(release.value, tuple) else release.value
        return answer

    @_require.check_options
    def workload(
        self,
        queries: Sequence[str],
        *,
        epsilon: Real | None = None,
        rho: Real | None = None,
        delta: float | None = None,
        rows: int | None = None,
        fresh: bool = False,
    ) -> tuple[Answer, ...]:
        """Answer several counting queries together, at one price for all, and return their answers in the
        same order. The answers are consistent with each other.

        `rows`: how many rows of one unit count in all queries together. `preview([...])` compares the error
        with that of separate queries at the same total price.
        """
        workload = self._workload(queries, epsilon=epsilon, rho=rho, delta=delta, rows=rows)
        text = "; ".join(workload.queries)
        answers: tuple[Answer, ...] = self.curator.ask(
            workload, analyst=self.analyst, text=text, fresh=fresh
        ).value
        return answers

    @_require.check_options
    def preview(
        self,
        text: str | Sequence[str],
        *,
        epsilon: Real | None = None,
        rho: Real | None = None,
        within: float | None = None,
        confidence: float = 0.95,
        delta: float | None = None,
        noise: str = "auto",
        rows: int | None = None,
        groups: int | None = None,
        weights: Mapping[str, Real] | Sequence[tuple[str, Real]] = (),
        other: bool = False,
    ) -> QueryPreview:
        """Preview price, error and plan of a question, and how many such questions the budget pays for.

        Options as in `sql`. A list of questions is previewed as one `workload`, with the options of
        `workload` and `confidence`. Free: no data is read. It says so where the question is answered already,
        and would be free.
        """
        query: Any
        require_sql(text)
        if not isinstance(text, str):
            if within is not None or noise != "auto" or groups is not None or weights or other:
                raise InvalidInput(
                    "a list of questions is previewed as a workload, which has the options epsilon, delta, "
                    "rho and rows. Nothing was charged. Leave the others out."
                )
            query = self._workload(text, epsilon=epsilon, rho=rho, delta=delta, rows=rows)
            cost = self.curator.preview(
                query.event, analyst=self.analyst, requested_price=requested_price_of(query)
            )
            answered = self.curator.given_before(query, self.analyst)
            return QueryPreview(query.preview(confidence), cost, answered)
        terms = Terms(epsilon, rho, within, confidence, delta, noise, rows, groups, weights, other)
        query = self._query(text, terms)
        cost = self.curator.preview(
            query.event, analyst=self.analyst, requested_price=requested_price_of(query)
        )
        query_preview = (
            query.preview(confidence) if isinstance(query, Query) else query.preview_of_one(confidence)
        )
        return QueryPreview(query_preview, cost, self.curator.given_before(query, self.analyst))

    @_require.check_options
    def cut_off(
        self,
        *,
        rows: int | None = None,
        groups: int | None = None,
        by: str | None = None,
        where: str | None = None,
        epsilon: Real | None = None,
        within: float | None = None,
        delta: float | None = None,
    ) -> Answer:
        """Ask, for a price, how many units a limit on contributions affects: those with more than `rows`
        rows, or with rows in more than `groups` groups of the column `by`.

        The answer has the columns `units` (all units) and `above` (those above the limit). `where`: a
        condition on rows, the same as in the query for which the limit is considered. This is an ordinary SQL
        query: it is recorded in the ledger, and free the second time.
        """
        text = cut_off_sql(self.public, rows, groups, by, where)
        return self.sql(text, epsilon=epsilon, within=within, delta=delta)

    @_require.check_options
    def plan(self, work: Sequence[Any], *, epsilon: Real, together: bool = True) -> BudgetPlan:
        """Split epsilon among the questions and models in `work` so that their weighted error is least. Free:
        only the plan's `run` is charged. `together`: see `planning.plan`."""
        from ..planning import plan

        return plan(self, work, epsilon=epsilon, together=together)

    @_require.check_options
    def explain(
        self,
        text: str | None = None,
        *,
        audience: str | None = None,
        delta: float | None = None,
        **options: Any,
    ) -> Explanation:
        """Explain what the budget and the ledger mean for one person, in words and pictures.

        With a question in SQL (`text`) and the options of `preview`: explain what it would cost, how good its
        answer would be, and what would halve its error. `audience` and, without a question, `delta` are those
        of `explaining`.

        Free: no data is read.
        """
        from .explanations import explain_ledger, explain_sql

        if text is None:
            return explain_ledger(self, audience or "public", delta)
        return explain_sql(
            self, text, audience or "engineer", options | ({} if delta is None else {"delta": delta})
        )

    def _priced_query(self, text: str, **options: Any) -> Query | WorkloadQuery:
        """Return the priced query of one statement, with the options of `sql`; used by `planning`."""
        return self._query(text, Terms(**options))

    def _workload(
        self,
        queries: Sequence[str],
        *,
        epsilon: Real | None = None,
        rho: Real | None = None,
        delta: float | None = None,
        rows: int | None = None,
    ) -> WorkloadQuery:
        """Return the priced workload of several counting queries."""
        from ..query import WorkloadQuery

        query_delta = delta
        if query_delta is None:
            query_delta = (
                0.0 if rho is not None or epsilon is None else self._delta(epsilon, self.curator.policy)
            )
        texts = tuple(_require.listed(queries=queries))
        return WorkloadQuery(
            queries=texts, public=self.public, epsilon=epsilon, rho=rho, delta=query_delta, rows=rows
        )

    def _query(self, text: str, terms: Terms) -> Query | WorkloadQuery:
        """Return the priced query of one statement: a `WorkloadQuery` where it has several counts that are
        better answered together, else a `Query`."""
        policy = self.curator.policy
        return terms.query(text, self.public, lambda epsilon: self._delta(epsilon, policy))
