"""Verbs of a worker that plan and explain: how to split a budget, and what a price means. Free: no data is
touched."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from ... import _registry
from ..._errors import InvalidInput
from ...accounting.caps import asked_of
from ...explaining import Explanation, Picture, Risk, Section, Series, explain_event
from ...explaining import explain as explain_price
from ...explaining.api import USUAL_DELTA
from ...explaining.pages import fragment
from ...planning import Item, Model, Question, Together
from .bookkeeping import visible_releases
from .estimators import describe_estimator, estimator_of
from .odds import odds
from .sessions import Desk, Request, Result, numbers, session_of


def plan(desk: Desk, request: Request) -> Result:
    """Split an epsilon among questions and models so that the weighted error is least."""
    session, options = session_of(desk, request)
    work = [_work(one) for one in options["work"]]
    made = session.plan(work, epsilon=options["epsilon"], together=options.get("together", True))
    return {"epsilon": made.epsilon, "items": [item_json(item) for item in made.items], "text": str(made)}


def _work(one: Any) -> Any:
    if not isinstance(one, dict):
        return one
    given = {name: value for name, value in one.items() if value is not None}
    if "estimator" in given:
        given["estimator"] = estimator_of(given["estimator"])
        if "target" not in given:
            raise InvalidInput("a model of a plan has a target, the column to predict. Nothing was charged.")
    return given


def item_json(item: Item) -> Result:
    """Return one piece of a plan's work with its share."""
    work: Any = item.work
    facts: dict[str, Any]
    if isinstance(work, Question):
        facts = {"sql": work.sql, **dict(work.options)}
    elif isinstance(work, Together):
        facts = {"queries": list(work.queries), "rows": work.rows}
    else:
        assert isinstance(work, Model)
        facts = {"estimator": describe_estimator(work.estimator), "target": work.target}
        facts["features"] = None if work.features is None else list(work.features)
    kept = {name: value for name, value in facts.items() if value is not None}
    return {"work": kept, "weight": item.weight, "epsilon": item.epsilon, "error": item.error}


def item_of(facts: Result) -> Item:
    """Return the piece of work that `item_json` wrote down."""
    given: dict[str, Any] = facts["work"]
    work: Any
    if "sql" in given:
        rest = tuple((name, value) for name, value in given.items() if name != "sql")
        work = Question(given["sql"], rest)
    elif "queries" in given:
        work = Together(tuple(given["queries"]), given.get("rows"))
    else:
        features = given.get("features")
        work = Model(
            estimator_of(given["estimator"]), given["target"], None if features is None else tuple(features)
        )
    return Item(work, facts["weight"], facts["epsilon"], facts["error"])


def explain(desk: Desk, request: Request) -> Result:
    """Explain a price, a planned question, a stored release or the ledger, in words and pictures."""
    session, options = session_of(desk, request)
    audience, delta = options.pop("audience", None), options.pop("delta", None)
    text, epsilon, number = options.pop("sql", None), options.get("epsilon"), options.pop("number", None)
    options.pop("horizon", None)
    if number is not None:
        return explanation_json(_release(desk, request, number, audience or "public", delta))
    if text is None and epsilon is not None:
        given = {} if delta is None else {"delta": delta}
        return explanation_json(
            explain_price(
                float(_registry.from_json(epsilon)),
                audience=audience or "public",
                neighbors=session.public.neighbors,
                **given,
            )
        )
    return explanation_json(session.explain(text, audience=audience, delta=delta, **numbers(options)))


def odds_of(desk: Desk, request: Request) -> Result:
    """Say what the price of an event means, in plain odds."""
    event = _registry.from_json(request["options"]["event"])
    return {"odds": odds(event, float(request["options"]["delta"] or 0.0))}


def _release(desk: Desk, request: Request, number: int, audience: str, delta: float | None) -> Explanation:
    """Explain a stored release that who asks may see."""
    for seq, _, charge in visible_releases(desk, request):
        if seq == number:
            event = _registry.from_json(charge.body["event"])
            title = f"What release {number} means for one person"
            facts = (("Asked", str(charge.body.get("text") or "a mechanism")),)
            own = delta if delta is not None else _delta(charge, event)
            return explain_event(event, delta=own, audience=audience, title=title, facts=facts)
    raise InvalidInput(f"there is no stored release {number} of yours.")


def _delta(charge: Any, event: Any) -> float:
    """Return the delta that a release was asked with, or else one at which its event promises something."""
    described = charge.body.get("mechanism")
    asked = None if described is None else asked_of(_registry.from_json(described))
    if asked is not None and asked.delta:
        return float(asked.delta)
    return 0.0 if Risk(event, 0.0).bounded else USUAL_DELTA


def explanation_json(shown: Explanation) -> Result:
    """Return an explanation: its words, its pictures as numbers, and as a piece of HTML."""
    sections = _finite([dataclasses.asdict(section) for section in shown.sections])
    return {
        "title": shown.title,
        "audience": shown.audience,
        "event": shown.risk.event.to_json(),
        "delta": shown.risk.delta,
        "facts": [list(fact) for fact in shown.facts],
        "sections": sections,
        "text": str(shown),
        "html": fragment(shown),
    }


def _finite(value: Any) -> Any:
    """Return plain lists and maps without infinities, which JSON has no word for: None stands for these."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


def explanation_of(facts: Result) -> Explanation:
    """Return the explanation that `explanation_json` wrote down."""
    return Explanation(
        title=facts["title"],
        audience=facts["audience"],
        risk=Risk(_registry.from_json(facts["event"]), facts["delta"]),
        sections=tuple(_section(one) for one in facts["sections"]),
        facts=tuple((name, value) for name, value in facts["facts"]),
    )


def _section(facts: Result) -> Section:
    drawn = facts["picture"]
    picture = None
    if drawn is not None:
        series = tuple(
            Series(one["name"], _numbers(one["x"]), _numbers(one["y"]), one["dashed"])
            for one in drawn["series"]
        )
        picture = Picture(**drawn | {"series": series, "labels": tuple(drawn["labels"])})
    return Section(
        heading=facts["heading"],
        lines=tuple(facts["lines"]),
        columns=tuple(facts["columns"]),
        rows=tuple(tuple(row) for row in facts["rows"]),
        picture=picture,
    )


def _numbers(values: list[float | None]) -> tuple[float, ...]:
    return tuple(math.inf if value is None else value for value in values)
