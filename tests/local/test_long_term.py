"""Asking again: what memoization promises, what it does not, and a budget that stays on the device."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import pytest

from discreet import local
from discreet._errors import BudgetExceeded, InvalidInput
from discreet.sampling import Entropy, SeededEntropy
from tests.contracts.randomizers import within

from ..contracts.audit import CountingEntropy
from ..contracts.randomizers import assert_exactly_private, largest_ratio, law

CHAIN = local.LongTermResponse(epsilon=2, first_epsilon=1, domain=3)


def history(randomizer: Any, values: list[Any], entropy: Any, *, switch: bool) -> list[Any]:
    """Reports of a device over time: from its first permanent answer only, or (switch) from one permanent
    answer for each value."""
    kept: dict[Any, Any] = {}
    reports = []
    for value in values:
        key = value if switch else values[0]
        if key not in kept:
            kept[key] = randomizer.start(key, entropy=entropy)
        reports.append(randomizer.report(kept[key], entropy=entropy))
    return reports


def test_one_report_alone_costs_the_first_epsilon() -> None:
    found = [law(lambda entropy, v=v: CHAIN.respond(v, entropy=entropy)) for v in range(3)]
    ratio = assert_exactly_private(found, CHAIN.first_epsilon)
    assert ratio == CHAIN.first_ratio


@pytest.mark.parametrize("times", [2, 3])
def test_any_number_of_reports_of_one_permanent_answer_costs_epsilon_in_all(times: int) -> None:
    found = [law(lambda entropy, v=v: history(CHAIN, [v] * times, entropy, switch=False)) for v in range(3)]
    ratio = assert_exactly_private(found, CHAIN.epsilon)
    assert not within(ratio, CHAIN.first_epsilon)  # and more than one report alone


def test_a_device_that_goes_on_with_its_first_answer_hides_that_its_value_changed() -> None:
    constant, changing = (
        law(lambda entropy, h=h: history(CHAIN, h, entropy, switch=False)) for h in ([0, 0, 0], [0, 1, 0])
    )
    assert largest_ratio([constant, changing]) == 1


def test_a_device_that_switches_between_permanent_answers_shows_that_its_value_changed() -> None:
    """The two histories of docs/local.md: memoization for each value costs more than epsilon, and ever more
    with every switch."""
    sharp = local.LongTermResponse(epsilon=1, first_epsilon=Fraction(99, 100), domain=2)
    ratios = []
    for times in (2, 4):
        constant, changing = (
            law(lambda entropy, h=h: history(sharp, h, entropy, switch=True))
            for h in ([0] * times, [0, 1] * (times // 2))
        )
        ratios.append(largest_ratio([constant, changing]))
    assert not within(ratios[0], sharp.epsilon)
    assert ratios[1] > 2 * ratios[0]


def test_a_question_is_paid_for_once_and_the_answer_stays() -> None:
    device, oracle = local.ClientBudget(epsilon=2), local.KaryResponse(epsilon=1, domain=1000)
    first = device.answer("a", oracle, 3, entropy=Entropy())
    assert {device.answer("a", oracle, value, entropy=Entropy()) for value in range(20)} == {first}
    assert device.spent == 1


def test_what_the_budget_does_not_hold_is_refused_before_anything_is_drawn() -> None:
    device, oracle = local.ClientBudget(epsilon=Fraction(3, 2)), local.KaryResponse(epsilon=1, domain=5)
    device.answer("a", oracle, 3, entropy=SeededEntropy(1))
    entropy = CountingEntropy()
    with pytest.raises(BudgetExceeded, match=r"0\.5 of 1\.5 is left"):
        device.answer("b", oracle, 3, entropy=entropy)
    assert entropy.drawn == 0
    assert device.spent == 1
    device.renew("a", oracle)
    with pytest.raises(BudgetExceeded, match="this answer costs epsilon"):
        device.answer("a", oracle, 3, entropy=entropy)


def test_one_hundred_tenths_are_ten_and_not_a_rounding_more() -> None:
    device = local.ClientBudget(epsilon=10)
    for i in range(100):
        device.answer(
            f"question {i}",
            local.KaryResponse(epsilon=Fraction(1, 10), domain=2),
            0,
            entropy=SeededEntropy(i),
        )
    assert device.remaining == 0


def test_another_randomizer_for_the_same_question_is_another_charge() -> None:
    device = local.ClientBudget(epsilon=2)
    for oracle in (local.KaryResponse(epsilon=1, domain=5), local.OptimalUnary(epsilon=1, domain=5)):
        device.answer("a", oracle, 3, entropy=SeededEntropy(1))
    assert device.remaining == 0


def test_long_term_answers_are_paid_once_and_report_afresh() -> None:
    device = local.ClientBudget(epsilon=4)
    weekly = local.LongTermResponse(epsilon=4, first_epsilon=2, domain=1 << 20)
    reports = [device.answer("page", weekly, v, entropy=SeededEntropy(i)) for i, v in enumerate((1, 2, 1))]
    assert device.remaining == 0
    assert len(set(reports)) == 3


def test_the_state_survives_a_restart_and_holds_no_value() -> None:
    device, oracle = (
        local.ClientBudget(epsilon=3),
        local.LongTermResponse(epsilon=1, first_epsilon=0.5, domain=1 << 20),
    )
    device.answer("page", oracle, 271828, entropy=SeededEntropy(1))
    text = json.dumps(device.to_json())
    assert "271828" not in text
    again = local.ClientBudget.from_json(json.loads(text))
    assert again.remaining == device.remaining == 2
    assert again.to_json() == device.to_json()


@pytest.mark.parametrize(
    "state",
    [{}, {"epsilon": "1", "spent": "2", "answers": {}}, {"epsilon": "x", "spent": "0", "answers": {}}, []],
)
def test_a_state_that_is_none_is_refused(state: Any) -> None:
    with pytest.raises(InvalidInput, match="the stored state"):
        local.ClientBudget.from_json(state)


def test_the_likeliest_shares_of_long_term_reports_are_those_of_one_report() -> None:
    """The unbiased estimate of two shares inside the simplex has the largest likelihood."""
    chain = local.LongTermResponse(epsilon=3, first_epsilon=1, domain=2)
    reports = [0] * 638 + [1] * 362
    likeliest = local.expectation_maximization(chain, reports)
    assert likeliest == pytest.approx(chain.estimate(reports).value, abs=1e-4)
