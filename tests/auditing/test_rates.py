"""Lower bounds from rates: exact limits, checked against the binomial law itself."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from discreet import accounting, auditing
from discreet._errors import InvalidInput
from discreet.auditing.outputs import epsilon_of_limits, lower_limit, upper_limit


@given(st.integers(1, 200), st.data(), st.sampled_from([0.2, 0.05, 1e-3, 1e-9]))
def test_the_limits_solve_the_equations_of_clopper_and_pearson(n, data, level):
    hits = data.draw(st.integers(0, n))
    low, high = float(lower_limit(hits, n, level)), float(upper_limit(hits, n, level))
    assert 0 <= low <= hits / n <= high <= 1
    if hits:
        assert stats.binom.sf(hits - 1, n, low) == pytest.approx(level, rel=1e-5)
        assert stats.binom.sf(hits - 1, n, low) <= level * (1 + 1e-6)
    if hits < n:
        assert stats.binom.cdf(hits, n, high) == pytest.approx(level, rel=1e-5)
        assert stats.binom.cdf(hits, n, high) <= level * (1 + 1e-6)


@pytest.mark.parametrize("chance", [0.001, 0.03, 0.5, 0.77])
def test_a_limit_is_beyond_the_truth_with_probability_at_most_the_level(chance):
    """No simulation: the chance of every count is known."""
    n, level = 60, 0.05
    counts = np.arange(n + 1)
    weight = stats.binom.pmf(counts, n, chance)
    assert weight[lower_limit(counts, n, level) > chance].sum() <= level
    assert weight[upper_limit(counts, n, level) < chance].sum() <= level


def test_perfect_separation_without_noise_is_bounded_by_the_number_of_runs_only():
    few, many = (auditing.Guesses(hits=n, first=n, false_hits=0, second=n) for n in (100, 100_000))
    # level 0.05, a limit at 0.025 each: 1 - 0.025^(1/n) on both sides
    limit = 0.025 ** (1 / 100)
    assert few.epsilon() == pytest.approx(math.log(limit / (1 - limit)), rel=1e-6)
    assert many.epsilon() > few.epsilon() + 6


def test_the_complement_of_an_event_counts_too():
    """All of the first table's outputs hit: the event says little, its complement says much."""
    guesses = auditing.Guesses(hits=10_000, first=10_000, false_hits=9_000, second=10_000)
    low, high = guesses.limits()
    assert math.log(low / high) < 0.2
    assert guesses.epsilon() == pytest.approx(math.log((1 - high) / (1 - low)), rel=1e-9)
    assert guesses.epsilon() > 5


def test_a_gaussian_attack_gives_mu_and_the_epsilon_of_the_gaussian():
    from statistics import NormalDist

    normal, n = NormalDist(), 10**6
    guesses = auditing.Guesses(
        hits=round(n * normal.cdf(0.5)), first=n, false_hits=round(n * normal.cdf(-0.5)), second=n
    )
    assert 0.99 < guesses.mu() < 1
    exact = accounting.epsilon(accounting.Gaussian(noise_multiplier=1.0), delta=1e-5)
    assert 0.98 * exact < guesses.gaussian_epsilon(delta=1e-5) < exact
    assert guesses.epsilon(delta=1e-5) < 1
    assert not guesses.below(
        lambda a: accounting.tradeoff(accounting.Gaussian(noise_multiplier=1.0), alpha=a)
    )
    assert guesses.below(lambda a: accounting.tradeoff(accounting.Gaussian(noise_multiplier=1.1), alpha=a))


def test_delta_is_taken_off_before_the_ratio():
    assert float(epsilon_of_limits(0.5, 0.1, 0.1)) == pytest.approx(math.log(4))
    assert float(epsilon_of_limits(0.05, 0.05, 0.05)) == 0
    assert float(epsilon_of_limits(0.5, 0.5, 1.0)) == 0


def test_impossible_counts_are_refused():
    with pytest.raises(InvalidInput, match="more hits than runs"):
        auditing.Guesses(hits=3, first=2, false_hits=0, second=2)
    with pytest.raises(InvalidInput, match="confidence must be strictly between 0 and 1"):
        auditing.Guesses(hits=1, first=2, false_hits=0, second=2).epsilon(confidence=1.0)
