"""Explains a session, for `Session.explain`: what the charges in its ledger mean for one person, as far as
the caller may see them; and what one question would cost at several prices."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .. import _require, _round
from .._errors import InvalidInput, UnknownOption
from .._text import visible
from ..curator import STEWARD, charges
from ..explaining import Explanation
from ..explaining.api import Spending, explain_question, explain_spending
from ..query.preview import Preview
from .terms import Terms

if TYPE_CHECKING:
    from ..curator.accounts import Account
    from .questions import Questions


def explain_ledger(session: Questions, audience: str, delta: float | None) -> Explanation:
    """Explain what was spent of the accounts that the caller may see, and what spending the whole budget
    would mean. `audience` and `delta` are those of `explaining.api.explain_spending`."""
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
    unknown = [name for name in options if name not in Terms.__dataclass_fields__]
    if unknown:
        raise UnknownOption(
            f"explain has no option {unknown[0]!r}: it takes those of preview. Nothing was charged."
        )
    terms = Terms(**options)
    if terms.rho is not None or terms.weights:
        raise InvalidInput(
            "a question is explained at an epsilon, or at an accuracy (within=...): leave rho and weights "
            "out. "
            "Nothing was charged."
        )
    priced_query = session._query(text, terms)
    epsilon = getattr(priced_query, "epsilon", None)
    if not hasattr(priced_query, "preview") or epsilon is None:
        raise InvalidInput("this question has no epsilon to explain. Nothing was charged.")

    def preview_at(price: float) -> Preview:
        """Return the preview of the same question at another epsilon."""
        query: Any = session._query(text, replace(terms, epsilon=price, within=None))
        query_preview: Any = (
            query.preview(terms.confidence)
            if _is_single_query(query)
            else query.preview_of_one(terms.confidence)
        )
        return query_preview  # type: ignore[no-any-return]

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


def _is_single_query(query: Any) -> bool:
    """Return whether the question is a `Query`, and not a statement that became a `WorkloadQuery`."""
    return not hasattr(query, "preview_of_one")


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
    if policy.budget.per is None:
        state = rule.start()
        # each charge at its price on this account, which may be limited by a cap that its entry states
        for event, body in charges.spending(session.ledger, analyst):
            state = state.plus(rule.price(charges.priced(event, body, charges.cap_field(analyst))))
            is_own = session.analyst in (STEWARD, body.get("analyst"))
            question = " ".join(str(body.get("text") or type(event).__name__).split())
            text = visible(question) if is_own else _OTHERS
            if steps and text == steps[-1][0] == _OTHERS:
                # Merged, because the number of questions that others asked, and the price of each, are
                # private to them.
                steps.pop()
            steps.append((text, rule.used(state)))
    return Spending(
        of=account.of,
        unit=rule.unit,
        used=account.used,
        limit=float(rule.total),
        delta=float(getattr(rule, "delta", 0.0)),
        steps=tuple(steps),
        neighbors=session.public.neighbors,
        pure=_round.up(account.spent.sums[0]) if rule.lanes[0] == "pure" else math.inf,
        own_delta=min(1.0, _round.up(account.spent.delta)),
    )


def _unit(session: Questions) -> str:
    """Return in words who is protected."""
    column = session.public.unit.column
    return "a row" if column is None else f"all rows of one {visible(column)}"
