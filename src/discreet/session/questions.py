"""Questions of a session: SQL, workloads of counting queries, and what they would cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .. import _require
from .._errors import InvalidInput
from .._require import Real
from ..accounting.caps import requested_price_of
from ..query import Answer, Query, cut_off_sql
from .base import SessionBase
from .previews import QueryPreview
from .terms import Terms

if TYPE_CHECKING:
    from ..explaining import Explanation
    from ..planning import BudgetPlan
    from ..query import WorkloadQuery


class Questions(SessionBase):
    """Adds the verbs that ask in SQL."""

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

        `epsilon` or `rho` asks by price, `within` with `confidence` by accuracy. `delta`: by default as much
        of the budget's as `epsilon` is of its epsilon, halved. `noise`: "laplace", "gaussian" or "auto".
        `rows`, `groups`: what one unit may contribute. `weights`: how the price is shared between output
        columns. `other`: groups that are not shown are added up in one row. `fresh`: pay for new noise.
        """
        terms = Terms(epsilon, rho, within, confidence, delta, noise, rows, groups, weights, other)
        with terms.refusing():
            release = self.curator.ask(self._query(text, terms), analyst=self.analyst, text=text, fresh=fresh)
        # Several counts of one statement are a workload, whose value is one answer for each statement.
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
        """Answer several counting queries, in the order asked: one price for all, and answers that agree with
        each other.

        `rows`: how many rows of one unit count in all queries together. `preview([...])` says what answering
        together saves.
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
        """Preview price, error and plan of a question, and how many more of these the budget buys.

        Options as in `sql`. Free: no data is touched.

        Of a list of questions: of answering them together, see `workload`.
        """
        query: Any
        if not isinstance(text, str):
            if within is not None:
                raise InvalidInput(
                    "a workload is asked by price: epsilon, delta, rho and rows. Nothing was charged."
                )
            query = self._workload(text, epsilon=epsilon, rho=rho, delta=delta, rows=rows)
            cost = self.curator.preview(
                query.event, analyst=self.analyst, requested_price=requested_price_of(query)
            )
            return QueryPreview(query.preview(confidence), cost)
        terms = Terms(epsilon, rho, within, confidence, delta, noise, rows, groups, weights, other)
        query = self._query(text, terms)
        cost = self.curator.preview(
            query.event, analyst=self.analyst, requested_price=requested_price_of(query)
        )
        query_preview = (
            query.preview(confidence) if isinstance(query, Query) else query.preview_of_one(confidence)
        )
        return QueryPreview(query_preview, cost)

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
        """Ask, for a price, how many units have more than `rows` rows, or are in more than `groups` groups of
        `by`: whom a limit cuts off.

        The answer has the columns `units` and `above`; above / units is the share. `where`: a condition on
        rows, as in the question that the limit is for. It is an ordinary question: in the ledger, and free
        the second time.
        """
        text = cut_off_sql(self.public, rows, groups, by, where)
        return self.sql(text, epsilon=epsilon, within=within, delta=delta)

    @_require.check_options
    def plan(self, work: Sequence[Any], *, epsilon: Real, together: bool = True) -> BudgetPlan:
        """Split epsilon among questions and models so that the weighted error is least; free until the plan's
        `run`. See `planning.plan`."""
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

        With a question in SQL and the options of `preview`: what it would cost, how good its answer would be,
        and what would halve its error.

        Free: no data is touched.
        """
        from .explanations import explain_books, explain_sql

        if text is None:
            return explain_books(self, audience or "public", delta)
        return explain_sql(
            self, text, audience or "engineer", options | ({} if delta is None else {"delta": delta})
        )

    def _priced_query(self, text: str, **options: Any) -> Query | WorkloadQuery:
        """Return the priced question, with options as in `sql`."""
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
        """Return the priced query of one statement."""
        policy = self.curator.policy
        return terms.query(text, self.public, lambda epsilon: self._delta(epsilon, policy))
