"""Cases of the tabular learners: private empirical risk minimization, three ways."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

from discreet import ADD_REMOVE, REPLACE, Bounds, Categories, Neighbors, Public, Unit, tabular
from discreet.accounting import PoissonTrials, logarithmic
from discreet.tables import Memory

from .case import Case

# One row alone decides the sign of the weight of x: the neighbor without it (or with its opposite) is as far
# away as one can be.
ROWS = [(1.0, "b", 1), (0.0, "a", 2)]
DESIGN = tabular.Design(features=("x",), target="y", intercept=False, clip="never")


def memory(rows: list[Any], public: Public) -> Memory:
    return Memory({"x": [r[0] for r in rows], "y": [r[1] for r in rows], "who": [r[2] for r in rows]}, public)


def facts(neighbors: Neighbors, size: int, unit: Unit = Unit(), **more: Any) -> Public:
    schema = {"x": Bounds(-1, 1), "y": Categories(["a", "b"]), **more}
    return Public(schema=schema, neighbors=neighbors, size=size, unit=unit)


def case(name: str, mechanism: Any, rows: list[Any], other: list[Any], runs: int = 400) -> Case:
    return Case(
        name=f"tabular, {name}",
        mechanism=mechanism,
        source=memory(rows, mechanism.public),
        neighbor=memory(other, mechanism.public),
        outcome=lambda r: round(4 * max(-1.0, min(1.0, r.value.weights[0][0] * mechanism.strength))),  # type: ignore[union-attr]
        runs=runs,
    )


ADDED, REPLACED = facts(ADD_REMOVE, 2), facts(REPLACE, 2)
PEOPLE = facts(ADD_REMOVE, 2, Unit("who"))
OPPOSITE = [(-1.0, "b", 1), (0.0, "a", 2)]

# of numbers: the same rows with the targets 1 and -1
NUMBERS, REPLACED_NUMBERS = facts(ADD_REMOVE, 2, y=Bounds(-1, 1)), facts(REPLACE, 2, y=Bounds(-1, 1))
TARGETS, OTHER_TARGETS = [(1.0, 1.0, 1), (0.0, -1.0, 2)], [(-1.0, 1.0, 1), (0.0, -1.0, 2)]
SQUARED: dict[str, Any] = {"design": DESIGN, "loss": tabular.Squared(), "regularization": 2.0}

THREE = Public(schema={"x": Bounds(-1, 1), "y": Categories(["a", "b", "c"])}, size=2)

CASES = [
    case(
        "output, pure",
        tabular.OutputPerturbation(public=ADDED, design=DESIGN, epsilon=1.0, regularization=1.0),
        ROWS,
        ROWS[1:],
    ),
    case(
        "output, delta, replace",
        tabular.OutputPerturbation(
            public=REPLACED, design=DESIGN, epsilon=1.0, delta=1e-3, regularization=1.0
        ),
        ROWS,
        OPPOSITE,
    ),
    case(
        "input, replace",
        tabular.RowPerturbation(public=REPLACED, design=DESIGN, epsilon=1.0, regularization=1.0),
        ROWS,
        OPPOSITE,
    ),
    case(
        "input, delta, replace",
        tabular.RowPerturbation(
            public=REPLACED, design=DESIGN, epsilon=2.0, delta=1e-3, loss=tabular.losses.HuberHinge()
        ),
        ROWS,
        OPPOSITE,
    ),
    case(
        "objective, pure",
        tabular.ObjectivePerturbation(public=ADDED, design=DESIGN, epsilon=1.0, regularization=1.0),
        ROWS,
        ROWS[1:],
    ),
    case(
        "objective, huber hinge, replace",
        tabular.ObjectivePerturbation(
            public=REPLACED,
            design=DESIGN,
            epsilon=2.0,
            loss=tabular.losses.HuberHinge(),
            class_weights=(1, 2),
        ),
        ROWS,
        OPPOSITE,
    ),
    case(
        "objective, delta",
        tabular.ObjectivePerturbation(public=ADDED, design=DESIGN, epsilon=1.0, delta=0.25),
        ROWS,
        ROWS[1:],
    ),
    case(
        "objective, people",
        tabular.ObjectivePerturbation(public=PEOPLE, design=DESIGN, epsilon=1.0),
        [*ROWS, (1.0, "b", 1)],
        ROWS[1:],
    ),
    Case(
        name="tabular, second moments, pure",
        mechanism=tabular.SecondMoments(
            public=ADDED, design=tabular.Design(features=("x",), target=None, clip="never"), epsilon=1.0
        ),
        source=memory(ROWS, ADDED),
        neighbor=memory(ROWS[1:], ADDED),
        outcome=lambda r: tuple(
            entry >= middle for entry, middle in zip(r.value.upper, (0.5, 0.5, 1.5), strict=True)
        ),
        runs=540,
    ),
    Case(
        name="tabular, second moments, delta, replace",
        mechanism=tabular.SecondMoments(
            public=facts(REPLACE, 2, y=Bounds(0, 1)),
            design=tabular.Design(features=("x",), target=None),
            epsilon=1.0,
            delta=1e-3,
        ),
        source=memory([(1.0, 0, 1), (0.0, 1, 2)], facts(REPLACE, 2, y=Bounds(0, 1))),
        neighbor=memory([(-1.0, 0, 1), (0.0, 1, 2)], facts(REPLACE, 2, y=Bounds(0, 1))),
        outcome=lambda r: r.value.upper[1] >= 0,
        runs=540,
    ),
    Case(
        name="tabular, naive Bayes",
        mechanism=tabular.naive_bayes.NaiveBayes(public=ADDED, design=DESIGN, epsilon=2.0),
        source=memory(ROWS, ADDED),
        neighbor=memory(ROWS[1:], ADDED),
        outcome=lambda r: (r.value.means[1][0] > 0.5, round(4 * r.value.priors[1])),
        runs=270,
    ),
    Case(
        name="tabular, naive Bayes, delta, replace",
        mechanism=tabular.naive_bayes.NaiveBayes(public=REPLACED, design=DESIGN, epsilon=1.0, delta=0.05),
        source=memory(ROWS, REPLACED),
        neighbor=memory(OPPOSITE, REPLACED),
        outcome=lambda r: round(2 * r.value.means[1][0]),
        runs=270,
    ),
    Case(
        name="tabular, k-means",
        mechanism=tabular.clusters.Lloyd(
            public=ADDED, design=replace(DESIGN, target=None), epsilon=2.0, clusters=1, rounds=1
        ),
        source=memory(ROWS, ADDED),
        neighbor=memory(ROWS[1:], ADDED),
        outcome=lambda r: round(2 * r.value.centers[0][0]),
        runs=270,
    ),
    Case(
        name="tabular, boosting",
        mechanism=tabular.boosting.AdditiveBoosting(
            public=ADDED, design=DESIGN, epsilon=2.0, delta=0.05, rounds=2, leaves=2
        ),
        source=memory(ROWS, ADDED),
        neighbor=memory(ROWS[1:], ADDED),
        outcome=lambda r: round(20 * r.value.shapes[0][0][-1]),
        runs=270,
    ),
    Case(
        name="tabular, tree",
        mechanism=tabular.trees.PrivateTree(public=ADDED, design=DESIGN, epsilon=2.0, depth=1, parts=2),
        source=memory(ROWS, ADDED),
        neighbor=memory(ROWS[1:], ADDED),
        outcome=lambda r: round(3 * r.value.leaves[1][1]),
        runs=270,
    ),
    Case(
        name="tabular, tree, max, replace",
        mechanism=tabular.trees.PrivateTree(
            public=REPLACED, design=DESIGN, epsilon=2.0, depth=1, parts=4, criterion="max"
        ),
        source=memory(ROWS, REPLACED),
        neighbor=memory(OPPOSITE, REPLACED),
        outcome=lambda r: (r.value.splits[0][1], r.value.leaves[0][1] > 0.5),
        runs=270,
    ),
    Case(
        name="tabular, random trials",
        mechanism=tabular.trials.RandomTrials(
            public=ADDED,
            candidates=tuple(
                tabular.ObjectivePerturbation(public=ADDED, design=DESIGN, epsilon=0.5, regularization=r)
                for r in (1.0, 3.0)
            ),
            score_epsilon=0.5,
            trials=logarithmic(0.5),
            holdout=Fraction(1, 2),
        ),
        source=memory(ROWS, ADDED),
        neighbor=memory(ROWS[1:], ADDED),
        outcome=lambda r: (round(max(-2, min(2, r.value.score))), r.value.model.weights[0][0] > 0),
        runs=200,
    ),
    Case(
        name="tabular, quantile bounds",
        mechanism=tabular.learner.QuantileBounds(
            public=ADDED, columns=("x",), epsilon=2.0, low=0.4, high=0.6
        ),
        source=memory(ROWS, ADDED),
        neighbor=memory(ROWS[1:], ADDED),
        outcome=lambda r: (r.value[0][1] > 0.1, r.value[0][2] > 0.1),
        runs=270,
    ),
    Case(
        name="tabular, piped",
        mechanism=tabular.learner.Piped(
            public=ADDED,
            steps=(
                tabular.learner.QuantileBounds(public=ADDED, columns=("x",), epsilon=1.0, low=0.4, high=0.6),
            ),
            learner=tabular.ObjectivePerturbation(
                public=ADDED, design=DESIGN, epsilon=1.0, regularization=1.0
            ),
            epsilon=2.0,
        ),
        source=memory(ROWS, ADDED),
        neighbor=memory(ROWS[1:], ADDED),
        outcome=lambda r: (r.value.weights[0][0] > 0, r.value.public.bounds("x").lower > 0.1),
        runs=200,
    ),
    Case(
        name="tabular, softmax",
        mechanism=tabular.ObjectivePerturbation(
            public=THREE, design=DESIGN, epsilon=1.0, loss=tabular.losses.Softmax(), regularization=4.0
        ),
        source=memory(ROWS, THREE),
        neighbor=memory(ROWS[1:], THREE),
        outcome=lambda r: tuple(round(max(-1.0, min(1.0, 2 * row[0]))) for row in r.value.weights),
        runs=200,
    ),
    Case(
        name="tabular, softmax, delta",
        mechanism=tabular.ObjectivePerturbation(
            public=THREE,
            design=DESIGN,
            epsilon=1.0,
            delta=0.1,
            loss=tabular.losses.Softmax(),
            regularization=2.0,
        ),
        source=memory(ROWS, THREE),
        neighbor=memory(ROWS[1:], THREE),
        outcome=lambda r: tuple(row[0] > 0 for row in r.value.weights),
        runs=200,
    ),
    Case(
        name="tabular, random trials, poisson",
        mechanism=tabular.trials.RandomTrials(
            public=ADDED,
            candidates=(
                tabular.naive_bayes.NaiveBayes(public=ADDED, design=DESIGN, epsilon=0.5, delta=1e-4),
            ),
            score_rho=0.02,
            trials=PoissonTrials(mean=2),
            holdout=Fraction(1, 2),
            delta=1e-3,
        ),
        source=memory(ROWS, ADDED),
        neighbor=memory(ROWS[1:], ADDED),
        outcome=lambda r: (round(max(-2, min(2, r.value.score / 4))), r.value.model.means[1][0] > 0),
        claim=(2.0, 1e-3),
        runs=200,
    ),
    case(
        "gradient",
        tabular.GradientPerturbation(
            public=ADDED, design=DESIGN, epsilon=1.0, delta=1e-3, steps=5, regularization=1.0
        ),
        ROWS,
        ROWS[1:],
    ),
    case(
        "output, squared",
        tabular.OutputPerturbation(public=NUMBERS, epsilon=1.0, **SQUARED),
        TARGETS,
        TARGETS[1:],
    ),
    case(
        "output, squared, l1, replace",
        tabular.OutputPerturbation(public=REPLACED_NUMBERS, epsilon=1.0, delta=1e-3, **SQUARED),
        TARGETS,
        OTHER_TARGETS,
    ),
    case(
        "objective, squared",
        tabular.ObjectivePerturbation(public=NUMBERS, epsilon=2.0, **SQUARED),
        TARGETS,
        TARGETS[1:],
    ),
    case(
        "objective, squared, l1",
        tabular.ObjectivePerturbation(public=NUMBERS, epsilon=2.0, **SQUARED),
        TARGETS,
        TARGETS[1:],
    ),
    case(
        "objective, l1, delta",
        tabular.ObjectivePerturbation(
            public=ADDED, design=DESIGN, epsilon=1.0, delta=0.25, regularization=2.0
        ),
        ROWS,
        ROWS[1:],
    ),
    case(
        "objective, huber, replace",
        tabular.ObjectivePerturbation(
            public=REPLACED_NUMBERS, design=DESIGN, epsilon=2.0, loss=tabular.Huber(threshold=0.5)
        ),
        TARGETS,
        OTHER_TARGETS,
    ),
    case(
        "gradient, squared, l1",
        tabular.GradientPerturbation(public=NUMBERS, epsilon=1.0, delta=1e-3, steps=5, **SQUARED),
        TARGETS,
        TARGETS[1:],
    ),
    Case(
        name="tabular, regression tree",
        mechanism=tabular.trees.PrivateRegressionTree(
            public=NUMBERS, design=DESIGN, epsilon=2.0, depth=1, parts=2
        ),
        source=memory(TARGETS, NUMBERS),
        neighbor=memory(TARGETS[1:], NUMBERS),
        outcome=lambda r: round(3 * r.value.leaves[1]),
        runs=270,
    ),
    Case(
        name="tabular, regression tree, replace",
        mechanism=tabular.trees.PrivateRegressionTree(
            public=REPLACED_NUMBERS, design=DESIGN, epsilon=2.0, depth=1, parts=4
        ),
        source=memory(TARGETS, REPLACED_NUMBERS),
        neighbor=memory(OTHER_TARGETS, REPLACED_NUMBERS),
        outcome=lambda r: (r.value.splits[0][1], r.value.leaves[0] > 0),
        runs=270,
    ),
]
