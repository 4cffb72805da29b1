"""Every bound that an explanation states holds for the mechanisms it is about, and a false one is noticed."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

import discreet as dp
from discreet import accounting as acc
from discreet.explaining import Risk
from discreet.explaining.risk import EXTRA_EPSILON


def loss_above(sigma: float, level: float) -> float:
    """P[privacy loss > level] of Gaussian noise: the loss is normal with mean 1/(2 sigma^2), deviation 1/sigma."""
    return float(norm.sf((level - 1 / (2 * sigma**2)) * sigma))


@pytest.mark.parametrize("sigma", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-6])
def test_the_odds_leave_the_factor_at_most_as_often_as_stated(sigma: float, delta: float) -> None:
    risk = Risk(acc.Gaussian(noise_multiplier=sigma), delta)
    assert loss_above(sigma, math.log(risk.odds_factor)) <= risk.odds_fail


def test_that_the_odds_stay_below_e_to_the_epsilon_except_with_delta_is_false() -> None:
    """The sentence that is often said, and that this room must not say."""
    sigma, delta = 1.0, 1e-3
    epsilon = acc.epsilon(acc.Gaussian(noise_multiplier=sigma), delta=delta)
    assert loss_above(sigma, epsilon) > delta
    risk = Risk(acc.Gaussian(noise_multiplier=sigma), delta)
    assert math.log(risk.odds_factor) == pytest.approx(epsilon + EXTRA_EPSILON)


@given(st.floats(0.01, 5), st.floats(0.001, 0.999))
def test_pure_beliefs_are_those_of_randomized_response(epsilon: float, prior: float) -> None:
    """Randomized response attains the bound: its posterior after a yes is exactly `after`."""
    truth = math.exp(epsilon) / (1 + math.exp(epsilon))
    posterior = prior * truth / (prior * truth + (1 - prior) * (1 - truth))
    risk = Risk(acc.PureDP(epsilon=epsilon))
    assert risk.after(prior) == pytest.approx(posterior)
    assert risk.least_after(prior) <= prior <= risk.after(prior)


def test_the_best_attack_on_gaussian_noise_is_the_neyman_pearson_test() -> None:
    risk = Risk(acc.Gaussian(noise_multiplier=1.0), 1e-5)
    for rate in (0.001, 0.01, 0.05, 0.5):
        exact = float(norm.sf(norm.isf(rate) - 1.0))
        assert exact <= risk.true_positives(rate) <= exact + 1e-9


def test_halved_noise_would_be_noticed() -> None:
    """A mutant: the true rate of noise half as large is above what is stated for the whole."""
    stated = Risk(acc.Gaussian(noise_multiplier=1.0), 1e-5).true_positives(0.05)
    assert float(norm.sf(norm.isf(0.05) - 2.0)) > stated


def test_attacks_on_randomized_response() -> None:
    risk = Risk(acc.RandomizedResponse(epsilon=1.0))
    corner = 1 / (1 + math.e)
    assert risk.true_positives(corner) == pytest.approx(1 - corner, abs=1e-6)
    assert risk.advantage == pytest.approx((math.e - 1) / (math.e + 1), abs=1e-6)
    assert risk.true_positives(0.0) == pytest.approx(0.0, abs=1e-9)


def test_cost_is_bounded_by_the_definition() -> None:
    pure, approximate = Risk(acc.PureDP(epsilon=0.5)), Risk(acc.ApproximateDP(epsilon=0.5, delta=1e-3), 1e-3)
    assert pure.cost(1000) == pytest.approx(1000 * math.exp(0.5))
    assert approximate.cost(1000, worst=100_000) == pytest.approx(1000 * math.exp(0.5) + 100)
    assert math.isinf(approximate.cost(1000))
    assert Risk(acc.PureDP(epsilon=50)).cost(1000, worst=5000) == 5000


def test_groups_pay_for_each_other_and_a_changed_record_counts_twice_under_add_remove() -> None:
    risk = Risk(acc.PureDP(epsilon=0.5))
    assert risk.of_group(3).epsilon == pytest.approx(1.5)
    assert risk.of_a_value.epsilon == pytest.approx(1.0)
    replaced = Risk(acc.PureDP(epsilon=0.5, neighbors=dp.REPLACE))
    assert replaced.of_a_value.epsilon == pytest.approx(0.5)
    group = Risk(acc.ApproximateDP(epsilon=0.5, delta=1e-6), 1e-6).of_group(2)
    assert group.delta == pytest.approx(2 * math.exp(0.5) * 1e-6)
    assert group.epsilon <= 1.0 + 1e-9


def test_where_nothing_is_promised_nothing_is_claimed() -> None:
    for risk in (Risk(acc.NonPrivate(), 1e-6), Risk(acc.Gaussian(noise_multiplier=1.0), 0.0)):
        assert not risk.bounded
        assert risk.after(0.3) == 1.0
        assert risk.true_positives(0.01) == 1.0
        assert risk.advantage == 1.0
        assert math.isinf(risk.cost(1.0))


@pytest.mark.parametrize(
    ("wrong", "fact"),
    [
        (-0.1, "prior must be between 0 and 1"),
        (1.1, "prior must be between 0 and 1"),
        (math.nan, "prior must be a number"),
        ("half", "prior must be a number"),
        (True, "prior must be a number"),
        (None, "prior must be a number"),
    ],
)
def test_a_belief_is_a_probability(wrong: object, fact: str) -> None:
    with pytest.raises(dp.InvalidInput, match=fact):
        Risk(acc.PureDP(epsilon=1)).after(wrong)  # type: ignore[arg-type]


def test_attacks_on_training_are_those_of_the_trade_off_within_two_per_cent() -> None:
    run = acc.Gaussian(noise_multiplier=1.1).sampled(rate=256 / 60_000).repeated(14_063)
    for rate in (0.01, 0.05):
        best = 1 - acc.tradeoff(run, alpha=rate)
        assert best * (1 - 1e-6) <= Risk(run, 1e-5).true_positives(rate) <= best * 1.02


def test_odds_of_a_group_whose_delta_reaches_one_have_no_bound() -> None:
    risk = Risk(acc.ApproximateDP(epsilon=12, delta=1e-5), 1e-5)
    group = risk.of_group(4)
    assert group.odds_fail == 1
    assert group.odds_factor == math.inf
    assert group.after(0.5) == 1


def test_the_content_of_a_record_is_two_steps_away_unless_records_are_replaced() -> None:
    for neighbors, steps in ((dp.ADD_REMOVE, 2), (dp.ZERO_OUT, 2), (dp.REPLACE, 1)):
        risk = Risk(acc.PureDP(epsilon=1, neighbors=neighbors))
        assert risk.of_a_value.epsilon == steps


def test_an_epsilon_beyond_floats_bounds_nothing() -> None:
    """e^700 in the place of e^800 is no upper bound: it would state costs and deltas that are too small."""
    pure = Risk(acc.PureDP(epsilon=800))
    assert pure.cost(1e-310) == math.inf
    assert pure.cost(1e-310, worst=5) == 5
    assert pure.cost(0.0, worst=5) == 0
    assert pure.advantage == 1
    assert pure.true_positives(0.0) == 0
    assert pure.true_positives(1e-310) == 1
    assert Risk(acc.ApproximateDP(epsilon=800, delta=1e-320), 1e-320).of_group(2).delta == 1
