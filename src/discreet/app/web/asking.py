"""Handles requests to a worker for previews, questions, described mechanisms, live mechanisms and models.

A "described" mechanism or estimator is one that the request holds as JSON (`_registry`, `estimator_json`). A
"live" mechanism is an interactive one, which was paid for at its start. The `desk` of a handler holds the
sessions that the worker has open.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from ... import _registry, _require
from ..._errors import DiscreetError, InvalidInput
from ..._public import Public
from ...accounting.caps import requested_price_of
from ...curator import STEWARD, values
from ...curator.policy import check_epsilon
from ...mechanisms.protocols import BaseMechanism, Interactive, Mechanism, Release
from ...query.preview import Preview
from ...session import Session
from ...session.base import Watch
from .. import requests
from .estimator_json import estimator_of, model_json
from .odds import odds
from .sessions import Desk, Request, Result, entry_number, numbers, session_of, shown_number


def account_json(session: Session) -> dict[str, Any]:
    """Return the account of the caller as JSON, and under "accounts" one line per account: there is one per
    period where budgets are per period."""
    return {
        "used": session.spent,
        "remaining": session.remaining,
        "limit": float(session.curator.account(session.analyst).rule.total),
        "unit": session.curator.account(session.analyst).rule.unit,
        "budget": _registry.to_json(session.budget),
        "accounts": [
            {"of": a.of, "used": a.used, "limit": float(a.rule.total), "unit": a.rule.unit}
            for a in session.accounts
        ],
    }


def open_table(desk: Desk, request: Request) -> Result:
    """Open the table of a dataset now, so that the next question does not wait for it."""
    desk.session(request["dataset"], STEWARD)
    return {}


def describe(desk: Desk, request: Request) -> Result:
    """Return the public facts of a dataset, the account of the caller, and whether the caller has a budget of
    their own."""
    session, _ = session_of(desk, request)
    has_own_budget = session.curator.policy.of(request["analyst"]) is not None
    return {
        "public": _registry.to_json(session.public),
        "own_budget": has_own_budget,
        "account": account_json(session),
    }


def budget(desk: Desk, request: Request) -> Result:
    """Return the account of the caller."""
    session, _ = session_of(desk, request)
    return account_json(session)


def preview(desk: Desk, request: Request) -> Result:
    """Return the price and expected error of a question, or of several answered together, or the price of a
    described mechanism."""
    session, options = session_of(desk, request)
    # Only the routes set it; without it nothing is said to be answered.
    horizon = datetime.fromtimestamp(options.pop("horizon", 0.0), UTC)
    description = options.pop("mechanism", None)
    if description is not None:
        mechanism = mechanism_of(description, session.public, (Mechanism, Interactive))
        cost = session.curator.preview(
            mechanism.event, analyst=session.analyst, requested_price=requested_price_of(mechanism)
        )
        return {"event": mechanism.event.to_json(), "admitted": cost.admitted, "fits": cost.fits,
                "budget": requests.cost_json(cost)}  # fmt: skip
    text = options.pop("sql", None)
    questions, in_odds = options.pop("queries", None), options.pop("in_odds", False)
    query_preview = session.preview(text if questions is None else questions, **numbers(options))
    answered = query_preview.answered
    if answered is not None:
        # As in `bookkeeping.visible_releases`: that it is stored would tell how long the work took.
        is_shown = datetime.fromisoformat(answered) <= horizon
        query_preview = replace(query_preview, answered=f"{answered[:16]}Z" if is_shown else None)
    facts = requests.preview_json(query_preview)
    if in_odds:
        # Only for the console (the pages in the browser): where noise is Gaussian, an accountant computes the
        # odds, which takes seconds.
        facts["odds"] = odds(query_preview.query.event, float(facts.get("delta") or 0.0))
    return facts


def sql(desk: Desk, request: Request) -> Result:
    """Answer a question, for its price."""
    session, options = session_of(desk, request)
    text, fresh = options.pop("sql"), bool(options.pop("fresh", False))
    options = numbers(options)
    query_preview = session.preview(text, **options)
    if options.get("within") is not None:
        # `verbs.handle` has checked any price but one that follows from an accuracy.
        price = query_preview.query
        # Workloads have no accuracy to ask for: they are refused.
        assert isinstance(price, Preview)
        with _require.door():
            check_epsilon(price.epsilon, price.rho, large_epsilon=request["large_epsilon"])
    _check_group_count(desk, query_preview)
    answer = session.sql(text, fresh=fresh, **options)
    return requests.answer_json(answer, options.get("confidence", 0.95), session)


def workload(desk: Desk, request: Request) -> Result:
    """Answer several counting questions together, for one price."""
    session, options = session_of(desk, request)
    answers = session.workload(options.pop("queries"), **numbers(options))
    return {"answers": [requests.answer_json(answer, 0.95, session) for answer in answers]}


def _check_group_count(desk: Desk, query_preview: Any) -> None:
    """Refuse an answer with more declared groups than may be sent, before it is charged."""
    groups = getattr(query_preview.query, "groups", None)
    if groups is not None and groups > desk.rows:
        raise InvalidInput(
            f"the answer would have {groups:,} groups, and this server sends at most {desk.rows:,} rows.",
            remedy="Ask about fewer groups.",
        )


def ask(desk: Desk, request: Request) -> Result:
    """Run a described mechanism, for its price."""
    session, options = session_of(desk, request)
    mechanism = mechanism_of(options["mechanism"], session.public, (Mechanism,))
    return release_json(session.ask(mechanism, fresh=bool(options.get("fresh", False))))


def start(desk: Desk, request: Request) -> Result:
    """Pay for a described live mechanism, and open it."""
    session, options = session_of(desk, request)
    live = session.start(mechanism_of(options["mechanism"], session.public, (Interactive,)))
    return {
        "number": shown_number(desk, request, live.number),
        "mechanism": _registry.to_json(live.mechanism),
    }


def watch(desk: Desk, request: Request) -> Result:
    """Pay for a watch on counts (the sparse vector technique), and open it."""
    session, options = session_of(desk, request)
    threshold_watch = session.watch(options.pop("threshold"), **numbers(options))
    number = shown_number(desk, request, threshold_watch.number)
    return {"number": number, "mechanism": _registry.to_json(threshold_watch.live.mechanism)}


def answer(desk: Desk, request: Request) -> Result:
    """Answer a question to a live mechanism; only the person who started it may ask."""
    session, options = session_of(desk, request)
    number = entry_number(desk, request, options["number"])
    # The error is the same for an unknown number and for another person's, so that it tells nothing of
    # others.
    try:
        body = session.ledger.entry(number).body
    except DiscreetError:
        body = {}
    description = body.get("mechanism") if body.get("analyst") == request["analyst"] else None
    mechanism = None if description is None else _registry.from_json(description)
    if not isinstance(mechanism, Interactive):
        raise InvalidInput(f"number {options['number']} is no live mechanism of yours.", option="number")
    live = session.curator.resume(mechanism, number)
    question = options["question"]
    if isinstance(question, str):
        # `Watch.ask` returns the value alone, without an error.
        value = Watch(live).ask(question)
        return {"value": values.encode(value), "event": mechanism.event.to_json(), "errors": []}
    return release_json(live.answer(_registry.from_json(question)))


def fit(desk: Desk, request: Request) -> Result:
    """Fit a described estimator; the model comes back as JSON."""
    session, options = session_of(desk, request)
    estimator = estimator_of(options["estimator"])
    fitted = session.fit(
        estimator,
        target=options.get("target"),
        features=options.get("features"),
    )
    return model_json(fitted)


def release_json(release: Release) -> dict[str, Any]:
    """Return a release as JSON: its value, its privacy event, and its errors at several confidences.

    "scored" says whether the errors are in scores or ranks, not in the unit of the value.
    """
    return {
        "value": values.encode(release.value),
        "event": release.event.to_json(),
        "scored": release.error_in_scores,
        "errors": values.tabulated(release._error),
        **({} if release.trust is None else {"trust": release.trust}),
    }


def mechanism_of(description: Any, public: Public, kinds: tuple[type[BaseMechanism], ...]) -> Any:
    """Return the mechanism that a JSON description describes; refuse it unless it is one of `kinds` and was
    made for the public facts of this dataset."""
    mechanism = _registry.from_json(description)
    if not isinstance(mechanism, kinds):
        raise InvalidInput(f"{type(mechanism).__name__} is not a mechanism that can be asked for here.")
    if mechanism.public != public:
        raise InvalidInput(
            "the mechanism was described for other public facts than this dataset has now.",
            remedy="Build it from the session's own `public`.",
        )
    return mechanism
