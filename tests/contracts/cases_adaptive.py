"""Cases for the reusable holdout and private leaderboards."""

from __future__ import annotations

from typing import Any

from discreet._public import ADD_REMOVE, REPLACE, ZERO_OUT, Boolean, Bounds, Categories, Neighbors, Public
from discreet.adaptive.holdout import Check, Thresholdout
from discreet.adaptive.leaderboard import ShakyLadder, SparseVectorBoard, Submission
from discreet.mechanisms import CountsBelow, Sum
from discreet.tables import Memory

from .case import Case

KINDS = {"age": Bounds(0, 1), "city": Categories(["bern", "rome"]), "ill": Boolean()}
ROWS: dict[str, list[Any]] = {
    "id": [1, 2, 3, 4, 5],
    "age": [1.0, 0.0, 0.25, 0.5, 0.0],
    "city": ["bern", "rome", "bern", "rome", "rome"],
    "ill": [True, False, False, True, False],
}
OTHER = {
    ADD_REMOVE: None,
    REPLACE: {"id": 1, "age": 0.0, "city": "rome", "ill": False},
    ZERO_OUT: dict.fromkeys(ROWS),
}


def case(name: str, mechanism: Any, outcome: Any, questions: list[Any], **more: Any) -> Case:
    public = mechanism.public
    other = OTHER[public.neighbors]
    beside = {c: v[1:] if other is None else [other[c], *v[1:]] for c, v in ROWS.items()}
    return Case(
        name=name,
        mechanism=mechanism,
        outcome=outcome,
        source=Memory(ROWS, public),
        neighbor=Memory(beside, public),
        questions=questions,
        **more,
    )


def facts(neighbors: Neighbors) -> Public:
    return Public(schema=KINDS, neighbors=neighbors, size=5)


def told(answers: list[Any]) -> Any:
    return tuple((a.value.overfit, round(4 * a.value.value)) for a in answers)


def listed(answers: list[Any]) -> Any:
    return tuple((a.value.overfit, tuple(round(2 * v) for v in a.value.value)) for a in answers)


def shown(answers: list[Any]) -> Any:
    return tuple(round(4 * a.value.score) if a.value.improved else None for a in answers)


AGE = Check(statistic=Sum("age", 0.25), training=0.1)
YOUNG = Check(statistic=CountsBelow(column="age", thresholds=(0.5, 0.75)), training=(0.9, 0.1))
RIGHT = Submission.of("right", {1: "bern", 2: "rome", 3: "rome", 4: "rome", 5: "rome"})
WRONG = Submission.of("wrong", {1: "rome", 2: "rome", 3: "bern", 9: "rome"})
ILL = Submission.of("ill", {1: True, 2: True, 3: True, 4: True})
BOARD: dict[str, Any] = {"target": "city", "id": "id", "step": 0.2}

CASES = [
    *(
        case(
            f"thresholdout, {n}",
            Thresholdout(public=facts(n), threshold=0.3, sigma=0.4, budget=2, step=0.25, questions=4),
            told,
            [AGE] * 6,
        )
        for n in (ADD_REMOVE, REPLACE)
    ),
    case(
        "thresholdout, pure, a list of questions",
        Thresholdout.pure(facts(ADD_REMOVE), epsilon=1, budget=2, threshold=0.3, questions=4),
        listed,
        [YOUNG] * 3,
    ),
    case(
        "thresholdout, approximate, the paper's constants",
        Thresholdout.approximate(
            facts(REPLACE), epsilon=1.5, delta=0.01, budget=2, threshold=0.3, constants="paper", questions=4
        ),
        listed,
        [YOUNG] * 3,
        claim=(1.5, 0.01),
    ),
    *(
        case(
            f"shaky ladder, {n}",
            ShakyLadder(public=facts(n), **BOARD, epsilon=1.5, delta=0.01, budget=2, submissions=4),
            shown,
            [WRONG, RIGHT] * 3,
            claim=(1.5, 0.01),
        )
        for n in (ADD_REMOVE, REPLACE)
    ),
    *(
        case(
            f"sparse vector board, {n}",
            SparseVectorBoard(
                public=facts(n), **{**BOARD, "target": "ill"}, epsilon=1, budget=2, submissions=3
            ),
            shown,
            [ILL] * 4,
        )
        for n in Neighbors
    ),
]
