"""What a round of the interactive mechanisms gets of (epsilon, delta), and that the rounds together cost no
more than that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from discreet import REPLACE, Categories, Public
from discreet import accounting as acc
from discreet.adaptive import Paprika, ShakyLadder, Thresholdout
from discreet.adaptive.hypotheses import Binomial
from discreet.adaptive.private_bh import PrivateBenjaminiHochberg
from discreet.mechanisms import CountNonNull, RedrawnSparseVector

from ..loops import for_each

PUBLIC = Public(schema={"y": Categories([0, 1])}, neighbors=REPLACE, size=1000)


def _ladder(rounds: int, **price: Any) -> ShakyLadder:
    return ShakyLadder(public=PUBLIC, target="y", id="id", step=0.01, budget=rounds, **price)


MECHANISMS: dict[str, Callable[..., Any]] = {
    "redrawn": lambda rounds, **price: RedrawnSparseVector(
        public=PUBLIC, threshold=0, positives=rounds, **price
    ),
    "thresholdout": lambda rounds, **price: Thresholdout.approximate(
        PUBLIC, budget=rounds, threshold=0.1, **price
    ),
    "ladder": _ladder,
    "paprika": lambda rounds, **price: Paprika(public=PUBLIC, rejections=rounds, **price),
}


@for_each("name", MECHANISMS)
@for_each(("rounds", "least"), [(1, 1.0), (5, 0.2), (20, 0.05), (100, 0.0207)])
def test_a_round_gets_at_least_the_pure_split_and_all_cost_what_was_asked(
    name: str, rounds: int, least: float
) -> None:
    mechanism = MECHANISMS[name](rounds, epsilon=1, delta=1e-6)
    ((part, times),) = acc.events.leaves(mechanism.event).items()
    assert isinstance(part, acc.PureDP)
    assert times == rounds
    assert part.epsilon >= least * (1 - 1e-15)
    assert acc.epsilon(mechanism.event, delta=1e-6) <= 1
    budget = acc.Filter(epsilon=1, delta=1e-6, neighbors=REPLACE)
    assert budget.admits(budget.start(), mechanism.event)


@for_each("name", MECHANISMS)
@for_each("rounds", [1, 5, 20, 100])
def test_the_noise_of_a_round_is_what_its_event_says(name: str, rounds: int) -> None:
    """The scales in integer units, priced by the proof of the sparse vector: never more than the event of one
    round."""
    mechanism = MECHANISMS[name](rounds, epsilon=1, delta=1e-6)
    ((part, _),) = acc.events.leaves(mechanism.event).items()
    if isinstance(mechanism, RedrawnSparseVector):
        threshold, query, _ = mechanism.scales
        assert 1 / threshold + 2 / query <= part.epsilon
        return
    moved = getattr(mechanism, "grid_sensitivity", 1)
    assert mechanism.rounds.price(moved, moved) <= part.epsilon


@pytest.mark.parametrize("candidates", [1, 4, 40])
def test_private_benjamini_hochberg_with_a_delta_takes_the_better_of_both_splits(candidates: int) -> None:
    from discreet.adaptive.hypotheses import Hypothesis

    hypothesis = Hypothesis(statistic=CountNonNull(column="y"), null=Binomial(trials=1000, chance=0.5))
    named: dict[str, Any] = {"public": PUBLIC, "hypotheses": (hypothesis,) * 40, "alpha": 0.1, "epsilon": 1}
    pure = PrivateBenjaminiHochberg(**named, candidates=candidates)
    mixed = PrivateBenjaminiHochberg(**named, candidates=candidates, delta=1e-6)
    assert mixed.part_epsilon >= pure.part_epsilon
    assert acc.epsilon(mixed.event, delta=1e-6) <= 1 + 1e-12
