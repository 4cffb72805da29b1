"""Cases for private online false discovery rate."""

from __future__ import annotations

from typing import Any

from discreet._public import ADD_REMOVE, REPLACE
from discreet.adaptive import Binomial, GeneralizedAlphaInvesting, Hypothesis, LordPlusPlus, Paprika
from discreet.mechanisms import CountsBelow

from .cases_threshold import BERN, FREE, YOUNG, case, facts

FLAT = Binomial(trials=5, chance=0.5)
QUESTIONS = [Hypothesis(statistic=BERN, null=FLAT), Hypothesis(statistic=YOUNG, null=FLAT, alternative="less")] * 2 + [
    Hypothesis(statistic=BERN, null=FLAT)
]
ADDING = [
    Hypothesis(statistic=BERN, null=FLAT),
    Hypothesis(statistic=CountsBelow(column="age", thresholds=(9,)), null=FLAT),
]
EAGER = LordPlusPlus(alpha=0.5, wealth=0.5)
EAGER_PURSE = GeneralizedAlphaInvesting(alpha=0.5, fraction=0.5)


def rejected(answers: list[Any]) -> Any:
    return tuple(answer.value.rejected for answer in answers)


CASES = [
    case(
        "paprika",
        Paprika(public=FREE, epsilon=2, rejections=2, procedure=EAGER, questions=4),
        rejected,
        questions=QUESTIONS,
        runs=400,
    ),
    case(
        "paprika, the paper's scales, log p",
        Paprika(public=facts(REPLACE), epsilon=2, rejections=2, procedure=EAGER, paper=True, score="log p", eta=2, floor=0.01, questions=4),
        rejected,
        questions=QUESTIONS,
        runs=400,
    ),
    case(
        "paprika, monotone, with a delta",
        Paprika(public=facts(ADD_REMOVE), epsilon=2, delta=1e-3, rejections=3, procedure=EAGER_PURSE, monotone=True, questions=4),
        rejected,
        questions=ADDING * 3,
        runs=400,
        claim=(2.0, 1e-3),
    ),
]  # fmt: skip
