"""What an outsider tried: lists where one value belongs, reports of another randomizer, parameters at the
edge of their range."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from discreet import local
from discreet._errors import DiscreetError, InvalidInput
from discreet.mechanisms import Channel
from discreet.sampling import Entropy, SeededEntropy
from tests.contracts.randomizers import within

from ..contracts.randomizers import CASES, frozen
from ..loops import for_each

KARY = local.KaryResponse(epsilon=1, domain=5)
ONE_UNUSED = Channel(
    rows=((Fraction(1, 2), Fraction(1, 2), Fraction(0)), (Fraction(1, 4), Fraction(3, 4), Fraction(0)))
)


@for_each("case", CASES, ids=[case.name for case in CASES])
def test_a_device_cannot_be_made_to_answer_many_times_for_the_price_of_one(case: Any) -> None:
    """A list of one person's own value would be reported once for each entry. It is no value, and counts as
    the fixed public one."""
    reports = []
    for value in ([case.values[0]] * 9, case.outside):
        device = local.ClientBudget(epsilon=case.randomizer.epsilon)
        reports.append(device.answer("q", case.randomizer, value, entropy=SeededEntropy(1)))
        assert device.remaining == 0
    assert frozen(reports[0]) == frozen(reports[1])


def test_a_collector_that_chooses_domains_does_not_find_the_value_in_refusals() -> None:
    """A value in 0..127 was found exactly: the device refused all domains up to it, for nothing, and answered
    the others for an epsilon of 1e-8 each."""

    def outcomes(value: Any) -> list[Any]:
        device, found = local.ClientBudget(epsilon=Fraction(100, 10**8)), []
        for domain in range(2, 129):
            oracle = local.KaryResponse(epsilon=Fraction(1, 10**8), domain=domain)
            try:
                device.answer("q", oracle, value, entropy=SeededEntropy(1))
                found.append(device.spent)
            except DiscreetError as refusal:
                found.append(str(refusal))
        return found

    expected = outcomes(0)
    assert len(set(expected)) == 101, "a hundred answers, and then the budget's refusal"
    for value in (1, 64, 127, 128, -1, math.nan, None, "x"):
        assert outcomes(value) == expected


def test_a_device_that_cannot_draw_is_not_charged() -> None:
    """What is public is refused before the charge."""
    device = local.ClientBudget(epsilon=1)
    with pytest.raises(InvalidInput, match="entropy"):
        device.answer("q", KARY, 1, entropy=None)
    assert device.spent == 0


def test_reports_of_another_randomizer_or_epsilon_are_neither_estimated_nor_shuffled() -> None:
    """A shuffler priced for epsilon 1 must not let out reports that were drawn at 3."""
    loose = local.KaryResponse(epsilon=3, domain=5).respond([0, 1, 2], entropy=Entropy())
    with pytest.raises(InvalidInput, match="another epsilon"):
        KARY.estimate(loose)
    with pytest.raises(InvalidInput, match="another epsilon"):
        KARY.estimate(loose[:2])
    with pytest.raises(InvalidInput, match="another epsilon"):
        local.Shuffler(KARY, least=3).add(loose)


@for_each(
    ("build", "fact"),
    [
        (
            lambda: local.OptimalUnary(epsilon=1, domain=1 << 30),
            r"domain must be at most 2\*\*20, as reports have one bit per",
        ),
        (lambda: local.DuchiMean(epsilon=1, low=0, high=10**400), "high - low must be a number above"),
        (lambda: local.DuchiMean(epsilon=1, low=-1e308, high=1e308), "high - low must be a number above"),
        (
            lambda: local.DuchiMean(epsilon=1, low=1, high=1 + Fraction(1, 10**30)),
            "high - low must be a number above",
        ),
        (lambda: local.LaplaceMean(epsilon=1e-30, low=0, high=1), "epsilon must be at least 1e-9"),
        (lambda: local.PiecewiseMean(epsilon=1, low=1, high=1), "low must be below high"),
        (
            lambda: local.PiecewiseMean(epsilon=1, low=0, high=1, steps=0),
            "steps must be an integer of at least 1",
        ),
        (
            lambda: local.LongTermResponse(epsilon=1, first_epsilon=1, domain=3),
            "first_epsilon must be below epsilon = 1",
        ),
        (
            lambda: local.LocalHashing(epsilon=1, domain=9, buckets=3),
            r"buckets must be a power of two from 2 to 2\*\*30",
        ),
        (
            lambda: local.HadamardResponse(epsilon=1, domain=9, blocks=3),
            "blocks must be a power of two up to the domain",
        ),
        (lambda: local.SubsetSelection(epsilon=1, domain=9, size=9), "size must be below the domain"),
        (lambda: local.ClientBudget(epsilon=0), "epsilon must be above zero"),
        (
            lambda: local.ClientBudget(epsilon=1).answer("q", 3, 1, entropy=Entropy()),
            "randomizer must be a client randomizer of discreet",
        ),
        (
            lambda: local.ClientBudget(epsilon=1).answer(5, KARY, 1, entropy=Entropy()),
            "question must be a text that names the question",
        ),
        (lambda: local.Shuffler(3, least=1), "randomizer must be a client randomizer of discreet"),
        (lambda: local.Shuffler(KARY, least=0), "least must be an integer of at least 1"),
        (lambda: local.consistent("abc"), "shares must be a list of finite numbers"),
        (lambda: KARY.respond([[1], [2, 3]], entropy=Entropy()), "give one value, or an array with one"),
        (
            lambda: local.LongTermResponse(epsilon=2, first_epsilon=1, domain=3).report(3, entropy=Entropy()),
            "this is not what `start` returned",
        ),
        # its reports can be drawn, but 2**40 shares cannot be held
        (
            lambda: local.KaryResponse(epsilon=40, domain=1 << 40),
            r"domain must be at most 2\*\*24, as all shares are estimated at",
        ),
        (
            lambda: local.expectation_maximization(local.DuchiMean(epsilon=1, low=0, high=1), [1]),
            "randomizer must be a frequency oracle or a design",
        ),
        # a report that no value leads to made all estimated shares NaN
        (
            lambda: local.expectation_maximization(local.DesignResponse(design=ONE_UNUSED), [0, 1, 2]),
            "some reports cannot come from this randomizer",
        ),
        (
            lambda: local.LocalHashing(epsilon=1, domain=1 << 30).mean_squared_error(0),
            "people must be an integer of at least 1",
        ),
        (
            lambda: local.ClientBudget.from_json({"epsilon": math.inf, "spent": "0", "answers": {}}),
            "this is not the stored state of a",
        ),
        (
            lambda: local.SubsetSelection(epsilon=1, domain=9, size=2).estimate(np.array([[5, 3]], np.uint8)),
            "each report must list different values in order",
        ),
        (
            lambda: local.blend([0.5, 0.5], [0.1] * 3, [0.3, 0.3], 0.1),
            r"variances must be single numbers or arrays of shape \(2,\)",
        ),
        (lambda: local.blend([0.5], [-1.0], [0.3], [0.1], trusting=0.5), "variances must be zero or above"),
        (
            lambda: local.blend(["x"], [1.0], [0.3], [math.nan]),
            "estimates must be numbers or arrays of numbers",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_a_message_of_ours(build: Any, fact: str) -> None:
    with pytest.raises(InvalidInput, match=fact):
        build()


def test_extreme_values_are_clamped_or_kept() -> None:
    mean = local.DuchiMean(epsilon=1, low=0, high=1)
    assert set(mean.respond([math.inf, -math.inf, 1e300], entropy=SeededEntropy(1)).data.tolist()) <= {0, 1}
    third = local.DuchiMean(epsilon=1, low=Fraction(1, 3), high=1)
    assert isinstance(third.respond(10**400, entropy=SeededEntropy(1)), int)
    assert isinstance(local.best(epsilon=1, domain=1 << 50, people=10), local.LocalHashing)
    # k-ary response had the smallest error here, and its estimate did not fit into any memory
    chosen = local.best(epsilon=40, domain=1 << 40, people=10)
    assert isinstance(chosen, local.LocalHashing)
    reports = chosen.respond([7, 7, 7], entropy=SeededEntropy(1))
    assert chosen.shares_of(reports, [7, 8]).round().tolist() == [1.0, 0.0]
    with pytest.raises(InvalidInput, match="shares_of"):
        chosen.estimate(reports)
    assert local.consistent([5e-324, 0.0], "norm_mul").tolist() == [1.0, 0.0]


@pytest.mark.parametrize("epsilon", [10**400, 1e300])
def test_an_epsilon_beyond_all_odds_is_drawn_with_the_largest_odds(epsilon: Any) -> None:
    """These were OverflowErrors, or took minutes."""
    assert local.LocalHashing(epsilon=epsilon, domain=9).buckets == 16
    assert local.HadamardResponse(epsilon=epsilon, domain=9).domain == 9
    assert local.SubsetSelection(epsilon=epsilon, domain=9).size == 1
    assert local.HybridMean(epsilon=epsilon, low=0, high=1, steps=4)._parts[1].window == 1
    assert within(Fraction(2**52), epsilon)
    assert not within(Fraction(2**52), 36)


def test_reports_may_be_unsigned_integers() -> None:
    oracle = local.LocalHashing(epsilon=1, domain=16)
    data = oracle.respond(np.arange(16), entropy=SeededEntropy(1)).data
    assert (oracle.estimate(data.astype(np.uint64)).value == oracle.estimate(data).value).all()
    wide = local.HadamardResponse(epsilon=1, domain=200, blocks=1)
    assert (wide.supported(np.array([7], np.uint8)) == wide.supported([7])).all()


@pytest.mark.parametrize(
    "build",
    [
        lambda: local.SymmetricUnary(epsilon=1e-12, domain=3),
    ],
)
def test_an_epsilon_that_is_too_small_is_named_as_it_was_given(build: Any) -> None:
    with pytest.raises(InvalidInput, match=r"larger.*got 1e-12"):
        build()
