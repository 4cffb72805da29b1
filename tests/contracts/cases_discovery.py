"""Cases for private online false discovery rate and changepoints."""

from __future__ import annotations

from typing import Any

from discreet._public import ADD_REMOVE, REPLACE, Bounds, Public
from discreet.adaptive import (
    BernoulliChange,
    Binomial,
    ChangeWatch,
    GeneralizedAlphaInvesting,
    Hypothesis,
    LordPlusPlus,
    Paprika,
    changepoint,
)
from discreet.mechanisms import CountsBelow
from discreet.tables import Memory

from .case import Case
from .cases_threshold import BERN, FREE, YOUNG, case, facts

FLAT = Binomial(trials=5, chance=0.5)
QUESTIONS = [
    Hypothesis(statistic=BERN, null=FLAT),
    Hypothesis(statistic=YOUNG, null=FLAT, alternative="less"),
] * 2 + [Hypothesis(statistic=BERN, null=FLAT)]
ADDING = [
    Hypothesis(statistic=BERN, null=FLAT),
    Hypothesis(statistic=CountsBelow(column="age", thresholds=(9,)), null=FLAT),
]
EAGER = LordPlusPlus(alpha=0.5, wealth=0.5)
EAGER_PURSE = GeneralizedAlphaInvesting(alpha=0.5, fraction=0.5)


DAYS = Public(schema={"hot": Bounds(0, 1), "day": Bounds(1, 4)})
WARMING = {
    "source": Memory({"day": [1, 2, 3, 4], "hot": [0, 0, 1, 1]}, DAYS),
    "neighbor": Memory({"day": [1, 2, 4], "hot": [0, 0, 1]}, DAYS),
}
RISE = BernoulliChange(before=0.2, after=0.8)
WATCH = {
    "public": DAYS,
    "column": "hot",
    "time": "day",
    "times": 4,
    "change": RISE,
    "window": 2,
    "threshold": 1,
}


def alarms(answers: list[Any]) -> Any:
    return tuple((answer.value.raised, answer.value.time) for answer in answers)


def rejected(answers: list[Any]) -> Any:
    return tuple(answer.value.rejected for answer in answers)


CASES = [
    case(
        "paprika",
        Paprika(public=FREE, epsilon=1.5, rejections=2, procedure=EAGER, questions=4),
        rejected,
        questions=QUESTIONS,
    ),
    case(
        "paprika, the paper's scales, log p",
        Paprika(
            public=facts(REPLACE),
            epsilon=1.5,
            rejections=2,
            procedure=EAGER,
            paper=True,
            score="log p",
            eta=2,
            floor=0.01,
            questions=4,
        ),
        rejected,
        questions=QUESTIONS,
    ),
    case(
        "paprika, monotone, with a delta",
        Paprika(
            public=facts(ADD_REMOVE),
            epsilon=1.5,
            delta=1e-3,
            rejections=3,
            procedure=EAGER_PURSE,
            monotone=True,
            questions=4,
        ),
        rejected,
        questions=ADDING * 3,
        claim=(1.5, 1e-3),
    ),
    Case(
        name="changepoint",
        mechanism=changepoint(public=DAYS, column="hot", time="day", times=4, change=RISE, epsilon=1),
        outcome=lambda release: release.value,
        **WARMING,
    ),
    Case(
        name="changepoint, ranks",
        mechanism=changepoint(public=DAYS, column="hot", time="day", times=4, margin=1, epsilon=1),
        outcome=lambda release: release.value,
        **WARMING,
    ),
    Case(
        name="change watch",
        mechanism=ChangeWatch(**WATCH, epsilon=1.5, questions=3),
        outcome=alarms,
        questions=[2, 3, 4, 4],
        **WARMING,
    ),
    Case(
        name="change watch, the paper's scales",
        mechanism=ChangeWatch(**WATCH, epsilon=1.5, questions=3, paper=True),
        outcome=alarms,
        questions=[2, 3, 4, 4],
        **WARMING,
    ),
]
