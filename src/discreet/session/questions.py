"""Asks the questions of a session: SQL, workloads of counting queries, previews of their price, plans and
explanations.

Explains a session, for `Session.explain`: what the charges in its ledger mean for one person, as far as
the caller may see them; and what one question would cost at several prices.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from .. import _require
from .._errors import BudgetExceeded, InvalidInput, UnknownOption
from .._public import Bounds
from .._require import Real
from .._text import visible
from ..curator import STEWARD
from ..curator import accounts as charges
from ..curator.identities import mark_of
from ..explaining import Explanation
from ..explaining.subjects import Spending, explain_question, explain_spending
from ..query import Answer, Query
from ..query.groupings import contributions
from ..query.mechanism import cut_off_sql
from ..query.preview import Preview
from . import suggesting
from .base import QueryPreview, SessionBase, priced, refusing, require_sql
from .suggesting import SuggestedLimits
from .terms import (
    CutOffTerms,
    QuestionTerms,
    SuggestTerms,
    Terms,
    WorkloadQuestionTerms,
    WorkloadTerms,
    defaults,
    takes,
    values,
)

if TYPE_CHECKING:
    from ..curator.accounts import Account
    from ..planning import BudgetPlan
    from ..query import WorkloadQuery


class Questions(SessionBase):
    """Adds the methods that take SQL to a session."""

    __slots__ = ()

    @_require.paying
    @takes(QuestionTerms)
    def sql(self, text: str, terms: QuestionTerms) -> Answer:
        """Answer a SQL query privately, charged before it is computed; the same question again is answered
        from the ledger, free.

        Give one of: the price `epsilon`, the price `rho`, or the accuracy `within`, the error that is not
        exceeded with probability `confidence`.
        """
        with refusing(terms):
            release = self.curator.ask(
                self._query(text, terms), analyst=self.analyst, text=text, fresh=terms.fresh
            )
        # A statement with several counts may be answered as a workload of one statement, whose value is a
        # tuple with one answer per statement.
        answer: Answer = release.value[0] if isinstance(release.value, tuple) else release.value
        return answer

    @_require.paying
    @takes(WorkloadQuestionTerms)
    def workload(self, queries: Sequence[str], terms: WorkloadQuestionTerms) -> tuple[Answer, ...]:
        """Answer several counting queries together, at one price for all, and return their answers in the
        same order. The answers are consistent with each other.

        `preview([...])` compares the error with that of separate queries at the same total price.
        """
        workload = self._workload(queries, terms)
        text = "; ".join(workload.queries)
        answers: tuple[Answer, ...] = self.curator.ask(
            workload, analyst=self.analyst, text=text, fresh=terms.fresh
        ).value
        return answers

    @_require.check_options
    @takes(Terms)
    def preview(self, text: str | Sequence[str], terms: Terms) -> QueryPreview:
        """Preview price, error and plan of a question, and how many such questions the budget pays for.

        Options as in `sql`. A list of questions is previewed as one `workload`, with the options of
        `workload` and `confidence`. Free: no data is read. It says so where the question is answered already,
        and would be free.
        """
        require_sql(text)
        # The policy, the accounts and the earlier answer are read in one look at the ledger.
        with self.ledger.refreshed():
            return self._preview(text, terms)

    @_require.paying
    @takes(CutOffTerms)
    def cut_off(self, terms: CutOffTerms) -> Answer:
        """Ask, for a price, how many units a limit on contributions affects: those with more than `rows`
        rows, or with rows in more than `groups` groups of the column `by`.

        The answer has the columns `units` (all units) and `above` (those above the limit). This is an
        ordinary SQL query: it is recorded in the ledger, and free the second time.
        """
        text = cut_off_sql(self.public, terms.rows, terms.groups, terms.by, terms.where)
        return self.sql(text, epsilon=terms.epsilon, within=terms.within, delta=terms.delta)

    @_require.paying
    @takes(SuggestTerms)
    def suggest(self, column: str, terms: SuggestTerms) -> Bounds:
        """Suggest, for a price, narrower bounds of a column of numbers that is declared with wide ones: the
        powers of two between which there are clearly more than a few people, of each of whom one row counts.

        An ordinary SQL query: recorded in the ledger, and free the second time.
        """
        (question,), ends = self._bounds_questions(column, terms)
        return suggesting.bounds_of(self.sql(question.pop("text"), **question), ends)

    @_require.paying
    @takes(SuggestTerms)
    def suggest_limits(self, text: str, terms: SuggestTerms) -> SuggestedLimits:
        """Suggest, for a price, the limits on rows and groups of one person with which a question (COUNT(*)
        or SUM, asked at the price `planned`) is predicted to err least.

        Ordinary SQL queries about people by their number of rows: recorded in the ledger, and free the second
        time.
        """
        questions, (noise, among, largest) = self._limits_questions(text, terms)
        self._admit(questions, terms.epsilon)
        answers = [self.sql(question.pop("text"), **question) for question in questions]
        rows, *by_groups = answers
        groups = suggesting.Tail.of(by_groups[0], among) if by_groups else None
        return suggesting.choose(suggesting.Tail.of(rows), groups, noise, largest=largest, among=among)

    def _admit(self, questions: Sequence[dict[str, Any]], price: Real) -> None:
        """Refuse questions that the budget pays for one by one, and not together."""
        previews = [self.preview(q["text"], **{k: v for k, v in q.items() if k != "text"}) for q in questions]
        left = min(preview.budget.limit - preview.budget.before for preview in previews)
        if (
            previews[0].budget.unit == "epsilon"
            and not all(preview.free for preview in previews)
            and _require.exact(price, "epsilon") > left * (1 + 1e-9)
        ):
            raise BudgetExceeded(
                f"the suggestion costs epsilon {float(price):.4g}, and {left:.4g} is left.",
                remedy="Ask with less epsilon, or ask the steward for more.",
            )

    @_require.check_options
    @takes(SuggestTerms)
    def preview_suggest(self, what: str, terms: SuggestTerms) -> tuple[QueryPreview, ...]:
        """Preview the questions that `suggest` (of a column) or `suggest_limits` (of a SELECT) asks: free."""
        is_select = what.lstrip().upper().startswith(("SELECT", "WITH"))
        questions, _ = (self._limits_questions if is_select else self._bounds_questions)(what, terms)
        return tuple(self.preview(q.pop("text"), **q) for q in questions)

    def _bounds_questions(self, column: str, terms: SuggestTerms) -> tuple[list[dict[str, Any]], list[float]]:
        """Return the question for bounds with its options, and the ends of its classes."""
        sql, ends = suggesting.bounds_question(column, self.public.table, self.public.bounds(column))
        one = {} if self.public.unit.column is None else {"rows": 1, "groups": 1}
        return [{"text": sql, "epsilon": terms.epsilon, "delta": terms.delta, **one}], ends

    def _limits_questions(self, what: str, terms: SuggestTerms) -> tuple[list[dict[str, Any]], Any]:
        """Return the questions for limits with their options, and with what their answers are weighed: the
        noise of a row, the number of groups, and what a row adds at most."""
        epsilon, options = _require.exact(terms.epsilon, "epsilon"), {"delta": terms.delta}
        _, counted, grouped = contributions(what, self.public)
        planned = 19 * epsilon if terms.planned is None else terms.planned
        noise, among = self._noise_of_rows(what, grouped, epsilon=planned, **options)
        # What a row adds at most, by the noise of a total against that of a count, at a price at which both
        # have some.
        low = {"epsilon": min(planned, Fraction(1, 100)), **options}
        total, count = (self._noise_of_rows(one, False, **low)[0][1] for one in (what, counted))
        largest = total / count
        texts = suggesting.limits_questions(contributions(what, self.public, largest)[0], grouped)
        questions = [{"text": text, "epsilon": epsilon / len(texts), **options} for text in texts]
        return questions, (noise, among, largest)

    def _noise_of_rows(self, text: str, grouped: bool, **options: Any) -> tuple[dict[int, float], int]:
        """Return, by limit on groups, the mean noise of a group that each row of one person adds, and the
        number of groups."""
        noise: dict[int, float] = {}
        for level in suggesting.LEVELS if grouped else (1,):
            preview: Any = self.preview(text, rows=1, groups=level, **options).query
            if grouped and preview.groups is None:
                raise InvalidInput(
                    "limits are suggested where the groups are declared. Declare the column as categories, "
                    "or ask cut_off(groups=..., by=...) how many people a limit affects."
                )
            # 95% of the noise is within the error: about three times its mean
            noise[level] = max(error for error in preview.errors if error is not None) / 3
            if level >= (preview.groups or 1):
                break
        return noise, preview.groups or 1

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

        if text is None:
            return explain_ledger(self, audience or "public", delta)
        return explain_sql(
            self, text, audience or "engineer", options | ({} if delta is None else {"delta": delta})
        )

    def _preview(self, text: str | Sequence[str], terms: Terms) -> QueryPreview:
        query: Any
        if isinstance(text, str):
            query = self._query(text, terms)
        else:
            query = self._workload(text, workload_terms(terms))
        cost, answered = self.curator.quote(query, analyst=self.analyst)
        preview = _preview_of_one if isinstance(text, str) else type(query).preview
        return QueryPreview(preview(query, terms.confidence), cost, answered)

    def _priced_query(self, text: str, **options: Any) -> Query | WorkloadQuery:
        """Return the priced query of one statement, with the options of `sql`; used by `planning`."""
        return self._query(text, Terms(**options))

    def _priced_workload(self, queries: Sequence[str], **options: Any) -> WorkloadQuery:
        """Return the priced workload of several queries, with the options of `workload`; used by
        `planning`."""
        return self._workload(queries, WorkloadTerms(**options))

    def _workload(self, queries: Sequence[str], terms: WorkloadTerms) -> WorkloadQuery:
        """Return the priced workload of several counting queries."""
        from ..query import WorkloadQuery

        delta = terms.delta
        if delta is None:
            priced_by_epsilon = terms.rho is None and terms.epsilon is not None
            delta = self._delta(terms.epsilon, self.curator.policy) if priced_by_epsilon else 0.0
        texts = tuple(_require.listed(queries=queries))
        return WorkloadQuery(
            queries=texts, public=self.public, epsilon=terms.epsilon, rho=terms.rho, delta=delta,
            rows=terms.rows,
        )  # fmt: skip

    def _query(self, text: str, terms: Terms) -> Query | WorkloadQuery:
        """Return the priced query of one statement: a `WorkloadQuery` where it has several counts that are
        better answered together, else a `Query`."""
        policy = self.curator.policy
        terms = replace(terms, min_people=policy.least_people(self.public, terms.min_people))
        return priced(terms, text, self.public, lambda epsilon: self._delta(epsilon, policy))


def workload_terms(terms: Terms) -> WorkloadTerms:
    """Return the options of a preview as those of a workload; refuse those that a workload does not have."""
    others = defaults(Terms).keys() - {*defaults(WorkloadTerms), "confidence"}
    _require.that(
        all(values(terms)[name] == defaults(Terms)[name] for name in others),
        "a list of questions is previewed as a workload, which has the options epsilon, delta, rho and "
        "rows. Leave the others out.",
    )
    return WorkloadTerms(**values(terms, WorkloadTerms))


def explain_ledger(session: Questions, audience: str, delta: float | None) -> Explanation:
    """Explain what was spent of the accounts that the caller may see, and what spending the whole budget
    would mean. `audience` and `delta` are those of `explaining.subjects.explain_spending`."""
    public = session.public
    facts = [("Data", visible(public.table)), ("Unit", _unit(session))]
    title = f"What the answers about {visible(public.table)} mean for one person"
    accounts = [_spending(session, account) for account in session.accounts]
    return explain_spending(
        accounts,
        audience=audience,
        title=title,
        facts=facts,
        delta=delta,
        unit=public.unit,
        overall=_over_all_periods(session, accounts),
    )


def _over_all_periods(session: Questions, accounts: list[Spending]) -> Spending | None:
    """Return the account of everything that was released about one person, where budgets are per period and a
    person may have rows in several periods; None where each unit belongs to one account.

    Without a limit for all periods together it is the sum of the accounts of the periods (basic composition).
    That is an upper bound, because each charge is in at least one of these accounts.
    """
    policy = session.curator.policy
    per = (policy.of(session.analyst) or policy.budget).per
    if per is None or session.public.unit.column is None:
        return None
    if per.limit is not None:
        # the last of `Session.accounts` is that of all periods together
        return accounts[-1]
    charged = [account for account in accounts if account.used] or accounts[:1]
    return replace(
        accounts[0],
        of="all periods so far",
        used=sum(account.used for account in charged),
        limit=math.inf,
        delta=min(1.0, sum(account.delta for account in charged)),
        pure=sum(account.pure for account in charged),
        own_delta=min(1.0, sum(account.own_delta for account in charged)),
        steps=(),
    )


def explain_sql(session: Questions, text: str, audience: str, options: dict[str, Any]) -> Explanation:
    """Explain the cost and the error of a question that was not asked yet; `options` are those of
    `Session.preview`."""
    if not isinstance(text, str):
        raise _require.fail(
            "text", type(text).__name__, "the text of one SELECT; for several, use preview([...])"
        )
    unknown = [name for name in options if name not in defaults(Terms)]
    if unknown:
        raise UnknownOption(f"explain has no option {unknown[0]!r}: it takes those of preview.")
    terms = Terms(**options)
    _require.that(
        terms.rho is None and not terms.weights,
        "a question is explained at an epsilon, or at an accuracy (within=...): leave rho and weights out.",
    )
    priced_query = session._query(text, terms)
    if (epsilon := priced_query.epsilon) is None:
        raise InvalidInput("this question has no epsilon to explain.")

    def preview_at(price: float) -> Preview:
        """Return the preview of the same question at another epsilon."""
        query = session._query(text, replace(terms, epsilon=price, within=None))
        query_preview: Preview = _preview_of_one(query, terms.confidence)
        return query_preview

    facts = [
        ("Data", visible(session.public.table)),
        ("Unit", _unit(session)),
        ("Asked", visible(" ".join(text.split()))),
    ]
    title = "What this question would cost, and how good its answer would be"
    return explain_question(
        preview_at,
        float(epsilon),
        audience=audience,
        title=title,
        size=session.public.size,
        facts=facts,
        unit=session.public.unit,
    )


def _preview_of_one(query: Query | WorkloadQuery, confidence: float) -> Any:
    """Return the preview of one statement, also of one that became a workload."""
    return query.preview(confidence) if isinstance(query, Query) else query.preview_of_one(confidence)


# The text that stands for charges of other analysts.
_OTHERS = "(asked by somebody else)"


def _spending(session: Questions, account: Account) -> Spending:
    """Return the numbers of an account, and for each charge its text and the running total after it.

    To an analyst, consecutive charges of others appear as one. With budgets per period there are no such
    steps.
    """
    rule, policy = account.rule, session.curator.policy
    analyst = None if session.analyst == STEWARD or policy.of(session.analyst) is None else session.analyst
    steps: list[tuple[str, float]] = []
    marks: Counter[str] = Counter()
    if policy.budget.per is None:
        state = rule.start()
        # Each charge at its price on this account, which may be limited by a cap that its entry states. Over
        # the network an analyst has their own entries alone, without the caps of an account of all.
        for event, body in charges.spending(session.ledger, analyst):
            state = state.plus(rule.price(charges.priced(event, body, charges.cap_field(analyst))))
            is_own = session.analyst in (STEWARD, body.get("analyst"))
            marks.update([mark_of(body)] if is_own else [])
            question = " ".join(str(body.get("text") or type(event).__name__).split())
            text = visible(question) if is_own else _OTHERS
            if steps and text == steps[-1][0] == _OTHERS:
                # Merged, because the number of questions that others asked, and the price of each, are
                # private to them.
                steps.pop()
            steps.append((text, min(rule.used(state), account.used)))
        if session.curator.away and (not steps or steps[-1][1] < account.used):
            steps.append((_OTHERS, account.used))
    return Spending(
        of=account.of,
        unit=rule.unit,
        used=account.used,
        limit=float(rule.total),
        delta=float(getattr(rule, "delta", 0.0)),
        steps=tuple(steps),
        neighbors=session.public.neighbors,
        pure=account.pure,
        own_delta=account.own_delta,
        marks=tuple(sorted(marks.items())),
    )


def _unit(session: Questions) -> str:
    """Return in words who is protected."""
    column = session.public.unit.column
    return "a row" if column is None else f"all rows of one {visible(column)}"
