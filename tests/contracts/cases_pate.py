"""Cases for labellers: teachers on disjoint parts, with every aggregator."""

from __future__ import annotations

from typing import Any

import numpy as np

from discreet._public import ADD_REMOVE, REPLACE, ZERO_OUT, Boolean, Bounds, Neighbors, Public
from discreet.learning.pate import CostQuestion, PrivateTeachers, PublicInputs
from discreet.learning.training.data import Tabular
from discreet.mechanisms.votes import (
    ConfidentGNMax,
    GNMax,
    InteractiveGNMax,
    LNMax,
    SampledVotes,
    SanitizedCost,
    SparseVotes,
    StableVotes,
)
from discreet.tables import Memory

from .case import Case

SCHEMA = {"x": Bounds(0, 1), "y": Boolean()}
# Rows in which y says whether x is above a half, but for the first: with one teacher, without it the teacher
# learns the opposite of what it learns with it.
ROWS: dict[str, list[Any]] = {"x": [1.0, 0.0], "y": [True, False]}
ASKED = PublicInputs(np.array([[1.0]], np.float32))


class Threshold:
    """Predicts class 1 on the side where it saw it: the smallest learner with two answers."""

    sign = 1.0

    def fit(self, x: Any, y: Any) -> Threshold:
        self.sign = 1.0 if x[y == 1].mean() > x[y == 0].mean() else -1.0
        return self

    def predict(self, x: Any) -> Any:
        return (self.sign * x[:, 0] > 0).astype(int)


def public(neighbors: Neighbors) -> Public:
    return Public(schema=SCHEMA, neighbors=neighbors, size=len(ROWS["x"]))


def case(name: str, aggregator: Any, neighbors: Neighbors = ADD_REMOVE, **more: Any) -> Case:
    facts = public(neighbors)
    mechanism = PrivateTeachers(
        public=facts,
        learner=Threshold(),
        aggregator=aggregator,
        teachers=1,
        classes=2,
        shape=(1,),
        columns=Tabular(features=("x",), target="y"),
        size=1000,
        sanitize=more.pop("sanitize", None),
        delta=1e-3,
    )
    first = {ADD_REMOVE: None, REPLACE: (1.0, False), ZERO_OUT: (None, None)}[neighbors]
    beside = {
        column: values[1:] if first is None else [first[i], *values[1:]]
        for i, (column, values) in enumerate(ROWS.items())
    }
    return Case(
        name=name,
        mechanism=mechanism,
        source=Memory(ROWS, facts),
        neighbor=Memory(beside, facts),
        outcome=more.pop("outcome", labels),
        describable=False,
        **({"questions": [ASKED] * 4} | more),
    )


def labels(answers: list[Any]) -> Any:
    return tuple(answer.value.labels for answer in answers)


def cost(answers: list[Any]) -> Any:
    return answers[0].value.labels, round(2 * answers[-1].value.rdp)


GUESS = PublicInputs(np.array([[1.0]], np.float32), np.array([[0.6, 0.4]]))
CASES = [
    *(case(f"GNMax, {n}", GNMax(variance=16, queries=2), n) for n in Neighbors),
    case("LNMax", LNMax(scale=4, queries=2)),
    case(
        "Confident-GNMax",
        ConfidentGNMax(threshold=1, check_variance=16, variance=16, queries=3, answers=2),
        REPLACE,
    ),
    case(
        "Interactive-GNMax",
        InteractiveGNMax(threshold=1, check_variance=16, variance=16, queries=3, answers=2, teachers=1),
        questions=[GUESS] * 4,
    ),
    case("M_stab", StableVotes(scale=3, failure=0.05, queries=3), claim=(1, 0.15)),
    case("M_samp", SampledVotes(scale=3, failure=0.05, queries=3, overlap=1), claim=(1, 0.15)),
    case("M_svec", SparseVotes(epsilon=1, delta=0.05, failures=1, queries=3), claim=(1, 0.05)),
    case(
        "GNMax and its sanitized cost",
        GNMax(variance=64, queries=2),
        sanitize=SanitizedCost(epsilon=0.5, order=3),
        questions=[ASKED, CostQuestion(), ASKED],
        outcome=cost,
    ),
]
