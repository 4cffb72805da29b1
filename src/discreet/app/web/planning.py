"""Handles requests to a worker for plans and explanations. They read no data and charge nothing.

A piece of work in a plan is a question, several questions that are answered together, or a model to fit.
"""

from __future__ import annotations

from typing import Any

from ... import _registry
from ..._errors import InvalidInput
from ..._public import Unit
from ...accounting.caps import requested_price_of
from ...explaining import Explanation, Risk
from ...explaining import explain as explain_price
from ...explaining.explanation import fragment
from ...explaining.odds import odds
from ...explaining.subjects import USUAL_DELTA, explain_event
from ...planning import Item, Model, PlannedQuery, Together
from ..estimator_json import describe_estimator, estimator_of
from .bookkeeping import charge_of, find_release
from .sessions import Desk, Request, Result, exact, numbers, session_of


def plan(desk: Desk, request: Request) -> Result:
    """Split an epsilon among questions and models so that the weighted error is least."""
    session, options = session_of(desk, request)
    work = [_parse_work(item) for item in options["work"]]
    result = session.plan(work, epsilon=options["epsilon"], together=options.get("together", True))
    items = [item_json(item) for item in result.items]
    return {"epsilon": result.epsilon, "items": items, "text": str(result)}


def _parse_work(item: Any) -> Any:
    """Return one piece of work as `Session.plan` takes it: a question, a list of questions, or their options;
    an estimator in the options is made from its description."""
    if not isinstance(item, dict):
        return item
    fields = {name: value for name, value in item.items() if value is not None}
    if "estimator" in fields:
        fields["estimator"] = estimator_of(fields["estimator"])
        if "target" not in fields:
            raise InvalidInput("a model of a plan has a target, the column to predict.")
    return fields


def item_json(item: Item) -> Result:
    """Return a piece of work of a plan as JSON, with its weight, its epsilon and its expected error."""
    work: Any = item.work
    facts: dict[str, Any]
    if isinstance(work, PlannedQuery):
        facts = {"sql": work.sql, **dict(work.options)}
    elif isinstance(work, Together):
        facts = {"queries": list(work.queries), "rows": work.rows}
    else:
        assert isinstance(work, Model)
        facts = {"estimator": describe_estimator(work.estimator), "target": work.target}
        facts["features"] = None if work.features is None else list(work.features)
    fields = {name: value for name, value in facts.items() if value is not None}
    return {"work": fields, "weight": item.weight, "epsilon": item.epsilon, "error": item.error}


def explain(desk: Desk, request: Request) -> Result:
    """Explain a price, a planned question, a stored release or the ledger, in words and pictures."""
    session, options = session_of(desk, request)
    audience, delta = options.pop("audience", None), options.pop("delta", None)
    text, epsilon, number = options.pop("sql", None), options.get("epsilon"), options.pop("number", None)
    # The times up to which charges are shown are read from the request by `visible_releases`;
    # `Session.explain` has no such options.
    options.pop("horizon", None), options.pop("hidden", None)
    if number is not None:
        unit = session.public.unit
        return explanation_json(_explain_release(desk, request, number, audience or "public", delta, unit))
    if text is None and epsilon is not None:
        delta_option = {} if delta is None else {"delta": delta}
        return explanation_json(
            explain_price(
                float(exact(epsilon)),
                audience=audience or "public",
                neighbors=session.public.neighbors,
                **delta_option,
            )
        )
    return explanation_json(session.explain(text, audience=audience, delta=delta, **numbers(options)))


def event_odds(desk: Desk, request: Request) -> Result:
    """Return what the privacy event of a price means, as a sentence about odds (`odds`)."""
    event = _registry.from_json(request["options"]["event"])
    return {"odds": odds(event, float(request["options"]["delta"] or 0.0))}


def _explain_release(
    desk: Desk, request: Request, number: int, audience: str, delta: float | None, unit: Unit
) -> Explanation:
    """Explain a stored release; refused if the caller may not see it."""
    charge = charge_of(desk, request, find_release(desk, request, number))
    event = _registry.from_json(charge.body["event"])
    return explain_event(
        event,
        delta=delta if delta is not None else _delta_of(charge, event),
        audience=audience,
        title=f"What release {number} means for one person",
        facts=(("Asked", str(charge.body.get("text") or "a mechanism")),),
        unit=unit,
    )


def _delta_of(charge: Any, event: Any) -> float:
    """Return the delta that a release was asked with, or else a delta at which its epsilon is finite."""
    described = charge.body.get("mechanism")
    price = None if described is None else requested_price_of(_registry.from_json(described))
    if price is not None and price.delta:
        return float(price.delta)
    return 0.0 if Risk(event, 0.0).bounded else USUAL_DELTA


def explanation_json(explanation: Explanation) -> Result:
    """Return an explanation as JSON: its event, its text, and its HTML, which has the pictures."""
    return {
        "title": explanation.title,
        "audience": explanation.audience,
        "event": explanation.risk.event.to_json(),
        "delta": explanation.risk.delta,
        "facts": [list(fact) for fact in explanation.facts],
        "text": str(explanation),
        "html": fragment(explanation),
    }
