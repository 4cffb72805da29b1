"""Cases of the tabular learners: private empirical risk minimization, three ways."""

from __future__ import annotations

from typing import Any

from discreet import ADD_REMOVE, REPLACE, Bounds, Categories, Neighbors, Public, Unit
from discreet.learning import tabular
from discreet.tables import Memory

from .case import Case

# One row alone decides the sign of the weight of x: the neighbor without it (or with its opposite) is as far away as one can be.
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

CASES = [
    case("output, pure", tabular.OutputPerturbation(public=ADDED, design=DESIGN, epsilon=1.0, regularization=1.0), ROWS, ROWS[1:]),
    case("output, delta, replace", tabular.OutputPerturbation(public=REPLACED, design=DESIGN, epsilon=1.0, delta=1e-3, regularization=1.0), ROWS, OPPOSITE),
    case("objective, pure", tabular.ObjectivePerturbation(public=ADDED, design=DESIGN, epsilon=1.0, regularization=1.0), ROWS, ROWS[1:]),
    case("objective, huber hinge, replace", tabular.ObjectivePerturbation(public=REPLACED, design=DESIGN, epsilon=4.0, loss=tabular.HuberHinge(), class_weights=(1, 2)), ROWS, OPPOSITE),
    case("objective, delta", tabular.ObjectivePerturbation(public=ADDED, design=DESIGN, epsilon=1.0, delta=0.25), ROWS, ROWS[1:]),
    case("objective, people", tabular.ObjectivePerturbation(public=PEOPLE, design=DESIGN, epsilon=1.0), [*ROWS, (1.0, "b", 1)], ROWS[1:]),
    case("gradient", tabular.GradientPerturbation(public=ADDED, design=DESIGN, epsilon=1.0, delta=1e-3, steps=5, regularization=1.0), ROWS, ROWS[1:]),
]  # fmt: skip
