"""Pairs of whole compositions, of passes, of shuffled reports and of fixed-size samples: above and below what
is known exactly."""

from __future__ import annotations

import math

import numpy as np
import pytest

from discreet import accounting as acc
from discreet.accounting import composition, pld, shuffling
from discreet.accounting.pld import rules
from discreet.accounting.pld.lattice.convolution import joint
from discreet.accounting.pld.pairs import basic_pairs, families
from discreet.accounting.pld.pairs.basic_pairs import laplace
from discreet.accounting.pld.pairs.families import SampledGaussian
from discreet.accounting.pld.solve import Composition, Solver


@pytest.mark.parametrize("epsilon", [0.2, 1.0, 2.0, 3.0])
def test_the_joint_pair_of_gaussians_encloses_their_closed_form(epsilon):
    part = SampledGaussian(3.0, 1.0)
    both = joint([(part, 4)], [(part, 4)], 1e-14)
    low, high = families.gaussian_delta(2 / 3, epsilon)
    assert both.lower is not None
    assert high <= basic_pairs.delta(both.upper, epsilon)[1] + both.infinite <= high * (1 + 2e-3)
    assert low * (1 - 2e-3) <= basic_pairs.delta(both.lower, epsilon)[0] <= low


def test_a_sampled_composition_lies_between_its_whole_and_what_pure_amplification_says():
    mixed = acc.compose([acc.Laplace(noise_multiplier=1.0), acc.PureDP(epsilon=1)])
    low, high = pld.bounds(mixed.sampled(0.1), 1e-9)
    assert low <= high <= low * (1 + 1e-3)
    assert high <= math.log1p(0.1 * math.expm1(2.0)) * (
        1 + 1e-9
    )  # tight for pure mechanisms of epsilon 2 (Balle et al. 2018)
    assert high > pld.bounds(acc.PureDP(epsilon=1).sampled(0.1), 1e-9)[0]
    assert pld.epsilon(mixed.sampled(0.999999), 1e-6) == pytest.approx(pld.epsilon(mixed, 1e-6), rel=1e-4)


def test_sampling_once_costs_no_less_than_sampling_each_time_for_rare_samples():
    """The same sample for all parts: losses come together, which is worse than one at a time."""
    one = acc.Laplace(noise_multiplier=2.0)
    together = pld.epsilon(one.repeated(10).sampled(0.01).repeated(100), 1e-6)
    apart = pld.bounds(one.sampled(0.01).repeated(1000), 1e-6)[1]
    assert together > apart


@pytest.mark.parametrize(("parts", "noise"), [(200, 1.0), (20, 0.3)])
def test_two_samples_of_a_costly_composition_cost_more_than_one(parts, noise):
    """Most of Q lies where P has hardly any mass: none of it may be lost, or the second sample would count as
    the end of all runs in which the unit was not drawn."""
    sampled = acc.Laplace(noise_multiplier=noise).repeated(parts).sampled(0.01)
    assert pld.epsilon(sampled.repeated(2), 1e-3) > pld.epsilon(sampled, 1e-3)


@pytest.mark.parametrize(
    "inner",
    [
        acc.Laplace(noise_multiplier=1.0).repeated(50),
        acc.compose([acc.Laplace(noise_multiplier=1.0), acc.Gaussian(noise_multiplier=0.5)]),
        acc.ZCDP(rho=0.5),
        acc.DiscreteGaussian(variance=4, sensitivity=1),
        acc.Laplace(noise_multiplier=0.1).sampled(0.1).repeated(20),
    ],
)
def test_the_masses_of_a_sampled_dominating_pair_add_up_to_one(inner):
    pairs = rules.pairs_of(inner.sampled(1e-4), 1e-13)
    for pair in pairs.upper:
        losses = pair.nodes(1e-13).loss
        law = basic_pairs.upper(pair, np.linspace(losses[0] - 1e-3, losses[-1] + 1e-3, 500))
        assert 1 - 1e-13 <= law.mass.sum() + law.infinite + pairs.infinite <= 1 + 1e-9


def test_joint_of_repeated_laplace_agrees_with_the_lattice():
    both = joint([(laplace(0.5), 7)], [(laplace(0.5), 7)], 1e-14)
    event = acc.Laplace(noise_multiplier=2.0).repeated(7)
    for epsilon in (0.3, 1.0, 2.0):
        low, high = pld.delta_bounds(event, epsilon)
        assert both.lower is not None
        assert basic_pairs.delta(both.upper, epsilon)[1] + both.infinite >= low
        assert basic_pairs.delta(both.lower, epsilon)[0] <= high
        assert basic_pairs.delta(both.upper, epsilon)[1] <= high * (1 + 5e-3)


@pytest.mark.parametrize(("steps", "noise"), [(20, 2.0), (100, 1.0)])
def test_a_pass_costs_by_its_pair_what_its_curve_says(steps, noise):
    event = acc.RandomAllocation(event=acc.Gaussian(noise_multiplier=noise), steps=steps)
    curve = composition.AllocationCurve(steps, noise)
    for delta in (1e-4, 1e-6):
        high = pld.epsilon(event, delta)
        assert curve.delta(high) <= delta * (1 + 1e-3)
        assert curve.delta(high * (1 - 1e-3)) > delta * (1 - 1e-3)
    many = pld.epsilon(event.repeated(5), 1e-6)
    assert pld.epsilon(event, 1e-6) < many < acc.epsilon(event.repeated(5), delta=1e-6, accountant="rdp")


def exact_shuffle(epsilon: float, reports: int) -> tuple[np.ndarray, np.ndarray]:
    """By convolution: the others' yeses, and one more answer."""
    yes = 1 / (1 + math.exp(epsilon))
    others = np.array([1.0])
    for _ in range(reports - 1):
        others = np.convolve(others, [1 - yes, yes])
    return np.convolve(others, [yes, 1 - yes]), np.convolve(others, [1 - yes, yes])


@pytest.mark.parametrize(("epsilon", "reports"), [(1.0, 1), (1.0, 2), (0.5, 50), (3.0, 200)])
def test_shuffled_randomized_response_is_below_the_clones(epsilon, reports):
    p, q = exact_shuffle(epsilon, reports)
    for x in np.linspace(0, epsilon, 7)[:-1]:
        true = float(np.maximum(p - math.exp(x) * q, 0).sum())
        assert true <= shuffling.delta_at(epsilon, reports, float(x)) * (1 + 1e-9)


@pytest.mark.parametrize(("epsilon", "reports"), [(1.0, 1), (1.0, 6), (3.0, 30)])
def test_three_answers_shuffled_are_below_the_clones(epsilon, reports):
    r, t = 1 / (math.exp(epsilon) + 2), 1 / (1 + 2 * math.exp(-epsilon))
    p, q = np.array([r, r, t]), np.array([t, r, r])
    for _ in range(reports - 1):
        p, q = (np.convolve(law, [r, 1 - 2 * r, r]) for law in (p, q))
    for x in np.linspace(0, epsilon, 6)[:-1]:
        true = float(np.maximum(p - math.exp(x) * q, 0).sum())
        assert true <= shuffling.delta_at(epsilon, reports, float(x)) * (1 + 1e-9)


@pytest.mark.parametrize("times", [1, 20])
def test_lower_bounds_of_events_that_had_none(times):
    events = [
        acc.SampledWithoutReplacement(
            event=acc.Gaussian(noise_multiplier=2.0, neighbors="replace"), size=1000, sample=50
        ),
        acc.ExponentialMechanism(epsilon=0.5),
    ]
    for event in events:
        low, high = pld.bounds(event.repeated(times), 1e-6)
        assert 0.5 * high < low <= high


def test_one_exponential_mechanism_is_nearly_exact():
    low, high = pld.bounds(acc.ExponentialMechanism(epsilon=0.5), 1e-6)
    assert low > 0.94 * high


def test_a_fixed_size_sample_of_a_composition():
    parts = [
        acc.Gaussian(noise_multiplier=2.0, neighbors="replace"),
        acc.Laplace(noise_multiplier=3.0, neighbors="replace"),
    ]
    low, high = pld.bounds(
        acc.SampledWithoutReplacement(event=acc.compose(parts), size=1000, sample=50), 1e-6
    )
    assert low <= high <= low * (1 + 1e-3)
    each = [acc.SampledWithoutReplacement(event=part, size=1000, sample=50) for part in parts]
    assert high > max(pld.bounds(one, 1e-6)[0] for one in each)


def test_mass_at_infinite_loss_is_taken_off_delta_for_one_release_too():
    """The pairs of today's rules have such mass only where they are atoms, for which the lattice takes it off."""
    with_mass = Solver(Composition(((laplace(1.0), 1),), infinite_above=9e-6), 1e-5)
    without = Solver(Composition(((laplace(1.0), 1),)), 1e-6)
    assert with_mass.epsilon_above(1e-5) >= without.epsilon_above(1e-6) * (1 - 1e-9)
