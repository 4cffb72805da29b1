"""Stories of models: estimators, training with checkpoints, synthetic copies, teachers."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

import discreet as dp

from .stage import FEWER_DIGITS, Stage

ROWS = 60
SCHEMA = {
    "age": dp.Bounds(0, 100, nullable=False),
    "pay": dp.Bounds(0, 10, nullable=False),
    "ward": dp.Categories(["a", "b"]),
    "ill": dp.Boolean(nullable=False),
}


def table() -> dict[str, list[Any]]:
    n = range(ROWS)
    return {
        "age": [(17 * i) % 97 for i in n],
        "pay": [(7 * i) % 21 / 2 for i in n],
        "ward": ["ab"[i % 3 == 0] for i in n],
        "ill": [(17 * i) % 97 > 50 for i in n],
    }


def opened(stage: Stage, **options: Any) -> Any:
    terms: dict[str, Any] = {
        "table": "people",
        "schema": SCHEMA,
        "unit": dp.rows(),
        "size": ROWS,
        "budget": dp.Budget(epsilon=20, delta=1e-5),
        "ledger": stage.folder / "people.ledger",
    }
    return dp.open(table(), **(terms | options))


def _fitted(stage: Stage, estimator: Any, names: tuple[str, ...], target: str | None = "ill") -> None:
    """Fit, and write down parameters and predictions: what optimizers compute, to fewer digits."""
    people = opened(stage)
    features = ["age", "pay"]
    model = people.fit(estimator, target=target, features=features)
    new = {"age": [10.0, 50.0, 90.0], "pay": [1.0, 5.0, 9.0]}
    values = {name: getattr(model, name) for name in names}
    stage.drawn(FEWER_DIGITS, parameters=values, predictions=model.predict(new))
    stage.books(people, values=False, digits=FEWER_DIGITS)
    stage.says("estimator", repr(estimator))


def logistic_regression(stage: Stage) -> None:
    from discreet.tabular import LogisticRegression

    _fitted(stage, LogisticRegression(epsilon=2), ("coef_", "intercept_", "classes_"))


def k_means(stage: Stage) -> None:
    from discreet.tabular import KMeans

    _fitted(stage, KMeans(n_clusters=2, epsilon=2), ("cluster_centers_",), target=None)


def naive_bayes(stage: Stage) -> None:
    from discreet.tabular import GaussianNB

    _fitted(stage, GaussianNB(epsilon=2), ("classes_",))


def decision_tree(stage: Stage) -> None:
    from discreet.tabular import DecisionTreeClassifier

    _fitted(stage, DecisionTreeClassifier(epsilon=2, max_depth=2), ("classes_",))
    people = opened(stage, ledger=":memory:")
    tree = DecisionTreeClassifier(epsilon=2)
    stage.refused("no target", lambda: people.fit(tree))
    stage.refused("a target that is none", lambda: people.fit(tree, target="weight"))
    stage.refused("steps of what has none", lambda: people.fit(tree, target="ill", checkpoint="x"))


class _Stop(BaseException):
    """Like a signal: nothing catches it."""


def training(stage: Stage) -> None:
    """Five steps with a checkpoint after every second, stopped in the third and resumed."""
    import torch

    from discreet.learning import SGD, Examples, Trainer

    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 2)
    x = torch.linspace(-1, 1, 60).reshape(20, 3)
    examples = Examples(x, (x.sum(1) > 0).long(), dp.Public(size=20, version="1"))
    trainer = Trainer(
        model,
        torch.nn.CrossEntropyLoss(),
        public=examples.public,
        noise_multiplier=2.0,
        batch=5,
        steps=5,
        optimizer=SGD(lr=0.3, momentum=0.9),
    )
    people = dp.open(examples, budget=dp.Budget(epsilon=20, delta=1e-5), ledger=stage.folder / "x.ledger")
    steps: list[int] = []

    def stop(progress: Any) -> None:
        steps.append(progress.step)
        if progress.step == 3:
            raise _Stop

    checkpoint = stage.folder / "run.checkpoint"
    with contextlib.suppress(_Stop):
        people.train(trainer, checkpoint=checkpoint, every=2, progress=stop)
    old = checkpoint.read_bytes()
    release = people.resume(trainer, checkpoint, progress=lambda facts: steps.append(facts.step))
    weights = {name: value.tolist() for name, value in release.value.state_dict().items()}
    stage.exactly(steps=steps, event=release.event.to_json())
    stage.drawn(FEWER_DIGITS, weights=weights)
    checkpoint.write_bytes(old)
    stage.refused("a checkpoint that was resumed from", lambda: people.resume(trainer, checkpoint))
    stage.books(people, values=False, digits=FEWER_DIGITS)


def synthetic_copies(stage: Stage) -> None:
    people = opened(stage, budget=dp.Budget(epsilon=8, delta=1e-5), size=None)
    terms: dict[str, Any] = {"epsilon": 2, "columns": ["ward", "ill", "age"], "bins": {"age": 4}, "seed": 1}
    for method in ("mst", "aim"):
        copy = people.synthesize(20, method=method, **terms)
        again = people.synthesize(20, method=method, **terms)
        assert copy.fitted == again.fitted
        counts = copy.sql("SELECT ward, ill, COUNT(*) AS n FROM people GROUP BY 1, 2 ORDER BY 1, 2")
        stage.drawn(
            FEWER_DIGITS,
            **{method: counts.to_arrow().to_pylist(), f"rows_{method}": copy.sample(3, seed=2).to_pydict()},
        )
        stage.says(f"{method}: the copy", copy)
        stage.says(f"{method}: its report", copy.report())
    stage.refused("an unknown method", lambda: people.synthesize(epsilon=1, method="gan"))
    stage.books(people, values=False, digits=FEWER_DIGITS)


def teachers(stage: Stage) -> None:
    """A labeller by the noisy vote of six teachers (PATE)."""
    from sklearn.naive_bayes import GaussianNB

    from discreet import learning

    x = np.array([[(7 * i) % 10 - 5, (3 * i) % 7 - 3] for i in range(ROWS)], np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    people = dp.open(
        learning.Examples(x, y, dp.Public(table="people", version="1")),
        budget=dp.Budget(epsilon=20, delta=1e-5),
        ledger=stage.folder / "people.ledger",
    )
    terms: dict[str, Any] = {
        "teachers": 6,
        "classes": 2,
        "epsilon": 10,
        "delta": 1e-6,
        "queries": 4,
        "workers": 1,
    }
    stage.says("preview", people.preview_teach(GaussianNB(), **terms))
    labeller = people.teach(GaussianNB(), **terms)
    asked = np.array([[4.0, 0.0], [-4.0, 1.0], [3.0, -1.0]], np.float32)
    stage.drawn(labels=labeller.label(asked))
    stage.says("report", labeller.report())
    stage.exactly(event=labeller.event.to_json())
    stage.refused("more questions than were paid for", lambda: labeller.label(asked))
    stage.books(people, values=False)


STORIES = (
    logistic_regression,
    k_means,
    naive_bayes,
    decision_tree,
    training,
    synthetic_copies,
    teachers,
)
