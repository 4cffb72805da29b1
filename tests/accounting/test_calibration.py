"""Calibration: tight to its tolerance, never optimistic, for noise, steps, rates and attackers; and the front
door's manners."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from discreet import accounting as acc
from discreet._errors import InvalidInput
from discreet.accounting import conversion, gdp, pld


def sgd(noise: float = 4.0, rate: float = 0.01, steps: int = 100) -> acc.Event:
    return acc.Gaussian(noise_multiplier=noise).sampled(rate).repeated(steps)


_CASES: dict[str, tuple[Callable[[Any], acc.Event], bool, int]] = {
    "noise": (lambda x: sgd(noise=x), False, -1),
    "rate": (lambda x: sgd(rate=x), False, 1),
    "steps": (lambda x: sgd(steps=x), True, 1),
    "laplace": (lambda x: acc.Laplace(noise_multiplier=x).repeated(10), False, -1),
    "epsilon": (lambda x: acc.PureDP(epsilon=x).repeated(10), False, 1),
}


@pytest.mark.parametrize("accountant", ["rdp", "basic", "optimal"])
@pytest.mark.parametrize("case", _CASES.values(), ids=_CASES)
def test_calibrated_values_meet_the_target_and_their_neighbors_do_not(
    case: tuple[Callable[[Any], acc.Event], bool, int], accountant: str
) -> None:
    make, integer, direction = case
    found = acc.calibrate(make, epsilon=0.5, delta=1e-6, accountant=accountant, integer=integer)
    assert acc.epsilon(make(found), delta=1e-6, accountant=accountant) <= 0.5
    beyond = found + direction if integer else found * (1 + direction * 1.1e-4)
    assert acc.epsilon(make(beyond), delta=1e-6, accountant=accountant) > 0.5


@pytest.mark.parametrize(("epsilon", "exact"), [(1, 2.02492120), (3, 0.96842742)])
def test_noise_for_training_is_within_one_in_ten_thousand_of_the_exact(epsilon: float, exact: float) -> None:
    found = acc.calibrate(lambda s: sgd(s, 256 / 60_000, 14_063), epsilon=epsilon, delta=1e-5)
    assert (
        exact * (1 - 5e-9) <= found <= exact * (1 + 2e-4)
    )  # computed to 1e-9 by contour integration (issue 3)


def test_steps_and_rate_for_training() -> None:
    steps = acc.calibrate(lambda t: sgd(4.0, 0.01, t), epsilon=0.9469, delta=1e-5, integer=True)
    assert 9_990 <= steps <= 10_001  # 10,000 steps cost 0.94686680
    rate = acc.calibrate(lambda q: sgd(4.0, q, 10_000), epsilon=0.9469, delta=1e-5)
    assert 0.01 * (1 - 3e-4) <= rate <= 0.01 * (1 + 1e-4)


def test_exact_gaussian() -> None:
    noise = acc.calibrate(lambda s: acc.Gaussian(noise_multiplier=s), epsilon=1, delta=1e-5, accountant="gdp")
    assert conversion.gaussian_epsilon(1 / noise, 1e-5) <= 1
    assert conversion.gaussian_epsilon(1 / (noise * (1 - 1.1e-4)), 1e-5) > 1


def test_attacker_targets() -> None:
    noise = acc.calibrate(lambda s: acc.Gaussian(noise_multiplier=s), advantage=0.1, accountant="gdp")
    assert math.erf(1 / (2 * math.sqrt(2) * noise)) == pytest.approx(
        0.1, rel=2e-4
    )  # total variation of a shift
    assert math.erf(1 / (2 * math.sqrt(2) * noise)) <= 0.1
    noise = acc.calibrate(lambda s: acc.Gaussian(noise_multiplier=s), tpr=0.1, fpr=0.01)
    assert 0.1 * (1 - 1e-3) <= 1 - gdp.tradeoff(1 / noise, 0.01) <= 0.1


@pytest.mark.parametrize(
    ("target", "fact"),
    [
        ({}, "calibrate needs exactly one target"),
        ({"epsilon": 1}, "calibrate needs exactly one target"),
        ({"epsilon": 1, "delta": 1e-5, "advantage": 0.1}, "calibrate needs exactly one target"),
        ({"tpr": 0.1}, "calibrate needs exactly one target"),
        ({"tpr": 0.01, "fpr": 0.1}, "tpr must be above fpr = 0"),
    ],
)
def test_a_target_must_be_one_and_possible(target: dict[str, float], fact: str) -> None:
    with pytest.raises(InvalidInput, match=fact):
        acc.calibrate(lambda s: acc.Gaussian(noise_multiplier=s), **target)  # type: ignore[arg-type]


def test_an_unreachable_target_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no value"):
        acc.calibrate(
            lambda s: acc.Gaussian(noise_multiplier=s),
            epsilon=1e-3,
            delta=1e-6,
            accountant="gdp",
            bracket=(0.1, 10.0),
        )
    with pytest.raises(InvalidInput, match="is the same at 1 and at every other value"):
        acc.calibrate(lambda s: acc.PureDP(epsilon=1), epsilon=2, delta=1e-6, accountant="basic")
    with pytest.raises(InvalidInput, match="needs a delta above 0"):
        acc.calibrate(lambda s: acc.Gaussian(noise_multiplier=s), epsilon=1, delta=0)


def test_everything_allowed_meets_a_loose_target() -> None:
    assert acc.calibrate(lambda q: sgd(rate=q, steps=1), epsilon=50, delta=1e-5, accountant="rdp") == 1.0


def test_a_search_comes_as_near_to_where_events_end_as_to_a_target() -> None:
    """It stopped at the last point that it had tried before one whose event could not be made."""
    largest = 7.0

    def event(percent: float) -> acc.Event:
        if percent > largest:
            raise InvalidInput(f"{percent} is above {largest}")
        return sgd(rate=percent / 100, steps=1)

    found = acc.calibrate(event, epsilon=50, delta=1e-5, accountant="rdp")
    assert largest * (1 - 1e-4) <= found <= largest

    def steps(count: int) -> acc.Event:
        if count > 777:
            raise InvalidInput("too many")
        return sgd(rate=0.01, steps=count)

    assert acc.calibrate(steps, epsilon=50, delta=1e-5, accountant="rdp", integer=True) == 777


@pytest.mark.parametrize("alpha", [1e-3, 0.05, 0.5])
def test_tradeoff_of_randomized_response_is_two_lines(alpha: float) -> None:
    event = acc.PureDP(epsilon=1.0)
    truth = max(1 - math.e * alpha, (1 - alpha) / math.e)
    assert truth * (1 - 2e-3) <= acc.tradeoff(event, alpha=alpha, accountant="optimal") <= truth


def test_tradeoff_by_lines_is_below_the_exact_gaussian() -> None:
    event = acc.Gaussian(noise_multiplier=1.0)
    exact = acc.tradeoff(event, alpha=0.05)
    assert exact == pytest.approx(0.74048922, rel=1e-6)
    mixed = acc.compose([event, acc.PureDP(epsilon=1e-9)])
    assert acc.tradeoff(mixed, alpha=0.05, accountant="gdp") == pytest.approx(exact, rel=1e-3)


def test_comparison_prints_all_accountants_with_the_best_marked() -> None:
    table = acc.compare(sgd(steps=1000), delta=1e-5)
    text = repr(table)
    assert text.count("<- tightest") == 1
    assert "delta = 1e-05" in text
    assert all(row.accountant in text for row in table.rows)
    assert "order" in text
    assert table.best.epsilon == min(table.as_dict().values())
    assert "PoissonSampled" in next(row.note for row in table.rows if row.accountant == "zcdp")


def test_accounting_imports_without_scipy() -> None:
    code = "import sys, discreet.accounting; print('scipy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("bad", [{"delta": -1}, {"delta": 2}, {"delta": "small"}])
def test_nonsense_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="delta"):
        acc.epsilon(acc.PureDP(epsilon=1), **bad)
    with pytest.raises(InvalidInput, match="event"):
        acc.epsilon(1.0, delta=1e-6)  # type: ignore[arg-type]


@pytest.mark.parametrize("alpha", [1e-308, 1e-305, 1e-300])
def test_tradeoff_claims_nothing_from_a_line_beyond_the_range_of_floats(alpha: float) -> None:
    """e^epsilon was taken at 700 for larger epsilons: too little where the false positives are that rare."""
    event = acc.compose([acc.Gaussian(noise_multiplier=0.02), acc.Laplace(noise_multiplier=1e9)])
    by_lines = acc.tradeoff(event, alpha=alpha, accountant="rdp")
    assert 0 <= by_lines <= gdp.tradeoff(50.0, alpha)


def test_the_pld_by_itself_claims_nothing_where_its_grid_overflows() -> None:
    event = acc.Gaussian(noise_multiplier=0.02).sampled(rate=0.5)
    # at rate 1/2 the pair is told apart with probability 1/2 at least
    assert pld.delta(event, 650.0) >= 0.5 * (1 - 1e-9)
    assert acc.delta(event, epsilon=650.0) >= 0.5 * (1 - 1e-9)


def test_integers_stay_within_the_bracket() -> None:
    def steps(k: int) -> acc.Event:
        return acc.PureDP(epsilon=0.01).repeated(k)

    def most(epsilon: float, bracket: tuple[float, float]) -> int:
        return int(acc.calibrate(steps, epsilon=epsilon, delta=0.0, integer=True, bracket=bracket))

    assert most(100, (1, 10.5)) == 10
    assert most(0.025, (1.4, 10.5)) == 2
    with pytest.raises(InvalidInput, match="no value in"):
        most(0.012, (1.4, 10.5))
    with pytest.raises(InvalidInput, match="holds an integer"):
        most(1, (1.2, 1.8))
