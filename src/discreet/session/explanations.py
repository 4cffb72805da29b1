"""Explanations of a session: what its ledger adds up to as its analyst may see it, and a question at any
price."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .. import _require
from .._errors import InvalidInput, UnknownOption
from .._text import visible
from ..curator import STEWARD, charges
from ..explaining import Explanation, Spending, explain_question, explain_spending
from ..query import Preview
from .terms import Terms

if TYPE_CHECKING:
    from ..curator import Account
    from .questions import Questions


def explain_books(session: Questions, audience: str, delta: float | None) -> Explanation:
    """Explain what was spent, of the accounts that the caller may see, and what the whole budget would
    mean."""
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

    Without a limit for all periods it is the sum of the periods' accounts (basic composition), which is never
    too small: each charge is on at least one of them.
    """
    policy = session.curator.policy
    per = (policy.of(session.analyst) or policy.budget).per
    if per is None or session.public.unit.column is None:
        return None
    if per.limit is not None:
        # the last account is that of all periods together
        return accounts[-1]
    charged = [account for account in accounts if account.used] or accounts[:1]
    return replace(
        accounts[0],
        of="all periods so far",
        used=sum(account.used for account in charged),
        limit=math.inf,
        delta=min(1.0, sum(account.delta for account in charged)),
        steps=(),
    )


def explain_sql(session: Questions, text: str, audience: str, options: dict[str, Any]) -> Explanation:
    """Explain a planned question at its price."""
    if not isinstance(text, str):
        raise _require.fail("text", type(text).__name__, "one SELECT as text; of several, preview([...])")
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
    return not hasattr(query, "preview_of_one")


_OTHERS = "(asked by somebody else)"


def _spending(session: Questions, account: Account) -> Spending:
    """Return the account as numbers, with the running total after each charge that the caller may see."""
    rule, policy = account.rule, session.curator.policy
    analyst = None if session.analyst == STEWARD or policy.of(session.analyst) is None else session.analyst
    steps: list[tuple[str, float]] = []
    if policy.budget.per is None:
        state = rule.start()
        for event, body in charges.spending(session.ledger, analyst):
            state = state.plus(rule.price(charges.priced(event, body, charges.cap_name(analyst))))
            is_own = session.analyst in (STEWARD, body.get("analyst"))
            question = " ".join(str(body.get("text") or type(event).__name__).split())
            text = visible(question) if is_own else _OTHERS
            if steps and text == steps[-1][0] == _OTHERS:
                # how often others have asked in between, and for how much each, is theirs
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
    )


def _unit(session: Questions) -> str:
    column = session.public.unit.column
    return "a row" if column is None else f"all rows of one {visible(column)}"
