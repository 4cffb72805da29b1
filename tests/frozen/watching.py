"""Stories of what goes on: streams, online learners, watches, local reports, audits, explanations."""

from __future__ import annotations

from typing import Any

import numpy as np

import discreet as dp

from .asking import opened
from .stage import FEWER_DIGITS, Stage


def stream_of_events(stage: Stage) -> None:
    """A count by ward at every tick: a row counts once."""
    shop = dp.open(
        {"arm": ["old"], "bought": [False]},
        table="shop",
        unit=dp.rows(),
        schema={"arm": dp.Categories(["old", "new"]), "bought": dp.Boolean(nullable=False)},
        budget=dp.Budget(epsilon=4, delta=1e-6),
        ledger=stage.folder / "shop.ledger",
    )
    counts = shop.stream("SELECT arm, COUNT(*) AS n FROM shop GROUP BY arm", epsilon=1, horizon=4)
    for tick in range(1, 4):
        arms = ["old"] * tick + ["new"] * 2 * tick
        counts.feed({"arm": arms, "bought": [True] * len(arms)})
    stage.exactly(steps=counts.steps, error=counts.error(0.95))
    values = [
        {"/".join(map(str, np.atleast_1d(key))): n for key, n in value.items()} for value in counts.history
    ]
    stage.exactly(history=values)
    stage.says("stream", counts)
    tree = shop.stream("SELECT COUNT(*) AS n FROM shop", epsilon=1, horizon=8, strategy="tree")
    for tick in range(2):
        tree.feed({"arm": ["old"] * (tick + 1), "bought": [False] * (tick + 1)})
    stage.exactly(tree=tree.history)
    stage.refused("an average at every tick", lambda: shop.stream("SELECT AVG(bought) FROM shop", epsilon=1))
    stage.books(shop)


def stream_of_people(stage: Stage) -> None:
    """A count by a clock of days: a person counts on at most two of them."""
    who = [i // 2 for i in range(40)]
    visits = dp.open(
        {"person": who, "day": [f"2026-01-{1 + (7 * i) % 6:02}" for i in range(40)]},
        table="visits",
        schema={"day": dp.Dates("2026-01-01", "2026-01-06")},
        unit="person",
        budget=dp.Budget(epsilon=8, delta=1e-6),
        ledger=stage.folder / "visits.ledger",
    )
    sql = "SELECT day, COUNT(*) AS n FROM visits GROUP BY day"
    stream = visits.stream(sql, epsilon=1, participations=2, rows=1)
    for _ in range(3):
        stream.feed()
    stage.exactly(history=stream.history, error=stream.error(0.95))
    stage.says("stream", stream)
    stage.refused("how often a person counts is not said", lambda: visits.stream(sql, epsilon=1, rows=1))
    stage.books(visits)


def online_learner(stage: Stage) -> None:
    from discreet import streaming

    people = dp.open(
        {"x": [0.0], "y": [0.0]},
        table="sales",
        schema={"x": dp.Bounds(-1, 1), "y": dp.Bounds(-1, 1)},
        unit=dp.rows(),
        budget=dp.Budget(epsilon=4, delta=1e-6),
        ledger=stage.folder / "sales.ledger",
    )
    loss = streaming.SquaredLoss(target="y", features=("x",), intercept=False)
    terms: dict[str, Any] = {"horizon": 4, "batch": 10, "clip": 1, "learner": "leader", "parameter": 0.3}
    live = people.online(loss, epsilon=2, **terms)
    decisions = []
    for tick in range(3):
        x = [((tick + 3 * k) % 10) / 5 - 1 for k in range(10)]
        decisions.append(live.decision)
        live.feed({"x": x, "y": [0.5 * v for v in x]})
    stage.exactly(FEWER_DIGITS, decisions=decisions, bound=live.regret_bound())
    stage.says("learner", live)
    stage.books(people, digits=FEWER_DIGITS)


def watches(stage: Stage) -> None:
    people = opened(stage)
    for name, terms in {
        "watch": {"epsilon": 2, "positives": 2, "gap": True},
        "numeric": {"epsilon": 2, "numeric": True},
        "redrawn": {"epsilon": 2, "positives": 2, "delta": 1e-6},
    }.items():
        watch = people.watch(60, **terms)
        answers = [watch.ask(question) for question in ("age > 80", "ward = 'a'", "age > 10")]
        stage.exactly(**{name: [[a.above, a.value, a.gap] for a in answers]})
        if name == "numeric":
            stage.refused("after the last answer", lambda watch=watch: watch.ask("age < 70"))
    stage.refused("no threshold", lambda: people.watch("many", epsilon=1))
    stage.books(people)


def local_reports(stage: Stage) -> None:
    """A frequency oracle and a mean: people who trust nobody."""
    from discreet import local, sampling

    entropy = sampling.Entropy()
    truth = [i % 3 for i in range(60)]
    for name, oracle in {
        "k_ary": local.KaryResponse(epsilon=2, domain=4),
        "unary": local.OptimalUnary(epsilon=2, domain=4),
        "hashing": local.LocalHashing(epsilon=2, domain=4),
        "best": local.best(epsilon=1, domain=16, people=1000),
    }.items():
        release = oracle.estimate(oracle.respond(truth, entropy=entropy))
        stage.exactly(**{name: release.event.to_json(), f"{name}_error": oracle.mean_squared_error(60)})
        stage.drawn(**{f"{name}_estimate": release.value})
    mean = local.HybridMean(epsilon=2, low=0, high=100)
    release = mean.estimate(mean.respond([float((7 * i) % 90) for i in range(60)], entropy=entropy))
    stage.exactly(mean=release.event.to_json())
    stage.drawn(mean_estimate=release.value)
    device = local.ClientBudget(epsilon=2)
    oracle = local.KaryResponse(epsilon=2, domain=4)
    first = device.answer("how often?", oracle, 3, entropy=entropy)
    assert first == device.answer("how often?", oracle, 3, entropy=entropy)
    stage.refused("a second question", lambda: device.answer("with whom?", oracle, 1, entropy=entropy))
    stage.refused("a value that is none", lambda: oracle.respond([4], entropy=entropy))


def audits(stage: Stage) -> None:
    """A true claim stands, and noise that is half of what is claimed is found out."""
    from discreet import auditing
    from discreet.mechanisms import noisy_count
    from discreet.tables import Memory

    public = dp.Public(schema={"age": dp.Bounds(0, 100)}, table="people")
    on, neighbor = Memory({"age": [1, 2, 3]}, public), Memory({"age": [1, 2]}, public)
    honest = auditing.audit(noisy_count(public, epsilon=1), on, neighbor, runs=400)
    lying = auditing.audit(noisy_count(public, epsilon=4), on, neighbor, claim=1.0, runs=400)
    for name, report in {"honest": honest, "lying": lying}.items():
        # without noise every claim is refuted
        stage.drawn(**{name: [report.epsilon, report.refuted]})
        stage.exactly(**{f"{name}_claim": str(report.claim)})
        stage.says(name, report)


def explanations(stage: Stage) -> None:
    people = opened(stage, budget=dp.Budget(epsilon=2, delta=1e-6))
    question = "SELECT ward, COUNT(*) AS n FROM people GROUP BY ward"
    stage.says("a question", people.explain(question, epsilon=0.25))
    people.sql(question, epsilon=0.25)
    for audience in ("public", "policy", "engineer"):
        explanation = people.explain(audience=audience)
        stage.says(audience, explanation)
    stage.exactly(explained=_numbers(explanation.to_json()))
    label = explanation.label()
    stage.says("label", label)
    stage.says("an epsilon", dp.explain(1.0))
    stage.refused("an unknown audience", lambda: dp.explain(people, audience="children"))
    stage.books(people)


def _numbers(value: Any) -> Any:
    """What is said, without its words."""
    if isinstance(value, dict):
        return {name: _numbers(part) for name, part in value.items() if not isinstance(part, str | list)}
    return value


STORIES = (
    stream_of_events,
    stream_of_people,
    online_learner,
    watches,
    local_reports,
    audits,
    explanations,
)
