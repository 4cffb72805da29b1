"""Lower bounds are of mechanisms that exist; choices priced by the block are never cheaper than the best
adaptive analyst."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from discreet import accounting as acc
from discreet.accounting import composition, pld
from discreet.accounting.pld.lattice.convolution import LatticeMasses, compose
from discreet.accounting.pld.pairs import attained_pairs, basic_pairs, families
from discreet.accounting.sampled_renyi import poisson

from ..loops import for_each
from .zoo import ZOO


def hockey(p: np.ndarray, q: np.ndarray, x: float) -> float:
    return float(np.maximum(p - math.exp(x) * q, 0.0).sum())


# --- exponential mechanisms by the block --------------------------------------------------------------------


def adaptive(epsilon: float, times: int, x: float, grid: int) -> float:
    """What an analyst reaches who picks the worst of `grid` candidate pairs at every step: explicit recursion
    over outcomes."""
    if times == 0:
        return max(0.0, -math.expm1(x))
    best = 0.0
    for t in np.linspace(0, epsilon, grid):
        high = (math.exp(epsilon) - math.exp(t)) / math.expm1(epsilon)
        after = high * adaptive(epsilon, times - 1, x - t, grid)
        if high < 1:
            after += (1 - high) * adaptive(epsilon, times - 1, x - t + epsilon, grid)
        best = max(best, after)
    return best


@pytest.mark.parametrize(("epsilon", "times", "grid"), [(0.5, 2, 41), (2.0, 2, 41), (1.0, 3, 25)])
def test_blocks_of_choices_cost_at_least_what_an_adaptive_analyst_reaches(epsilon, times, grid):
    pair, infinite = families.adaptive_pair(epsilon, times)
    for share in (0.0, 0.2, 0.5, 0.8):
        x = share * times * epsilon
        reached, claimed = adaptive(epsilon, times, x, grid), basic_pairs.delta(pair, x)[1] + infinite
        assert claimed >= reached
        assert claimed <= reached * 1.05 + 1e-9


def fixed(epsilon: float, times: int, share: float, x: float) -> float:
    """The same with one t throughout, as a binomial sum."""
    t = share * epsilon
    high = (math.exp(epsilon) - math.exp(t)) / math.expm1(epsilon)
    ways = ((i, math.comb(times, i) * (1 - high) ** i * high ** (times - i)) for i in range(times + 1))
    return math.fsum(w * max(0.0, -math.expm1(x - times * t + i * epsilon)) for i, w in ways)


@pytest.mark.parametrize(("epsilon", "times"), [(0.1, 50), (0.5, 40), (3.0, 12)])
def test_blocks_of_choices_lie_between_fixed_odds_and_the_largest_curve(epsilon, times):
    pair, infinite = families.adaptive_pair(epsilon, times)
    for x in np.array([0.05, 0.2, 0.4]) * times * epsilon:
        reached = max(fixed(epsilon, times, s, x) for s in np.linspace(0.5, 0.95, 10))
        claimed = basic_pairs.delta(pair, float(x))[1] + infinite
        loose = pld.solve.Solver(
            pld.solve.Composition(((basic_pairs.bounded_range(epsilon), times),)), 1e-6
        ).delta_above(x)
        assert reached <= claimed <= loose * (1 + 1e-6)
        assert claimed < loose / 1.2 or claimed < 3 * reached


def test_a_block_with_one_fixed_choice_would_be_caught():
    """Mutant: the analyst is supposed to play even odds throughout. Others do better."""
    assert max(fixed(1.0, 3, s, 2.0) for s in (0.8, 0.9)) > 1.5 * fixed(1.0, 3, 0.5, 2.0)


@pytest.mark.slow
def test_many_exponential_mechanisms_are_nearly_exact():
    for epsilon, times in ((0.1, 1000), (0.5, 100), (2.0, 50), (6.0, 100)):
        low, high = acc.bounds(acc.ExponentialMechanism(epsilon=epsilon).repeated(times), delta=1e-6)
        assert low <= high <= low * 1.04
    mixed = acc.compose([acc.ExponentialMechanism(epsilon=e).repeated(30) for e in (0.1, 0.2)])
    low, high = acc.bounds(mixed, delta=1e-6)
    assert low <= high <= acc.epsilon(acc.ExponentialMechanism(epsilon=0.2).repeated(60), delta=1e-6)


# --- passes, shuffles, groups -------------------------------------------------------------------------------


@pytest.mark.parametrize(("steps", "selected", "noise"), [(2, 1, 1.0), (3, 2, 1.5)])
def test_what_is_seen_of_a_pass_is_below_its_exact_curve(steps, selected, noise):
    axis = np.arange(-9, 12, 0.12)
    z = np.meshgrid(*[axis] * steps, indexing="ij")
    q = np.exp(-sum(x * x for x in z) / 2)
    mu = 1 / noise
    ratio = sum(
        np.exp(sum(mu * z[i] - mu * mu / 2 for i in chosen))
        for chosen in itertools.combinations(range(steps), selected)
    )
    ratio, q = ratio / math.comb(steps, selected), q / q.sum()
    event = acc.RandomAllocation(event=acc.Gaussian(noise_multiplier=noise), steps=steps, selected=selected)
    pairs = attained_pairs.allocation_sums(steps, selected, noise) + attained_pairs.allocation_largest(
        steps, selected, noise
    )
    for x in (0.1, 0.6, 1.2):
        truth = (hockey(ratio * q, q, x), hockey(q, ratio * q, x))
        found = [basic_pairs.delta(pair, x)[0] for pair in pairs]
        for i, seen in enumerate(found):
            assert seen <= truth[i % 2] * (1 + 1e-3)
        assert max(found) >= 0.93 * max(truth)
        assert pld.delta_bounds(event, x)[0] <= max(truth) * (1 + 1e-3)
        assert pld.delta(event, x) >= max(truth) * (1 - 1e-3)


@pytest.mark.parametrize(
    ("steps", "noise", "times"),
    [(20, 2.0, 1), (100, 1.0, 3), pytest.param(400, 0.7, 3, marks=pytest.mark.slow)],
)
def test_passes_have_a_lower_end_of_their_own(steps, noise, times):
    event = acc.RandomAllocation(event=acc.Gaussian(noise_multiplier=noise), steps=steps).repeated(times)
    low, high = acc.bounds(event, delta=1e-5)
    assert 0.95 * high <= low <= high
    if times == 1:
        assert composition.AllocationCurve(steps, noise).delta(low * (1 - 1e-6)) > 1e-5 * (1 - 1e-6)


def test_forgetting_the_error_of_the_transform_would_show():
    """The law of a sum by Fourier transform is within its stated error of the law by convolution."""
    law, other = np.array([0.2, 0.5, 0.3]), np.array([0.9, 0.1])
    exact = np.array([1.0])
    for _ in range(40):
        exact = np.convolve(exact, law)
    exact = np.convolve(exact, other)
    draws = [LatticeMasses(np.arange(3), law, 40), LatticeMasses(np.arange(2), other, 1)]
    for size in (128, 16):
        total = compose(draws, 0.0, 1.0, size, 0)
        assert abs(total.log_scale) <= total.log_error < 1e-12
        wrong = np.abs(total.mass - np.bincount(np.arange(len(exact)) % size, exact, size)).max()
        assert wrong <= total.error + 2 * total.log_error
        assert total.error < 1e-12


def test_a_group_sees_at_most_moved_discrete_laplace_noise_of_any_pure_mechanism():
    draw = np.random.default_rng(3)
    for epsilon, size in ((0.3, 2), (1.0, 3), (0.7, 5)):
        event = acc.Group(event=acc.PureDP(epsilon=epsilon), size=size)
        for _ in range(60):
            outcomes = draw.integers(2, 7)
            chain = [draw.dirichlet(np.full(outcomes, 0.7))]
            for _ in range(size):  # each law within e^epsilon of the one before, pushed as far as it goes
                up = draw.random(outcomes) < 0.5
                weight = chain[-1] * np.where(up, math.exp(epsilon), 1.0)
                a, b = chain[-1][up].sum(), chain[-1][~up].sum()
                # scale so that ratios are lam e^epsilon... on `up` and lam elsewhere, lam in [e^-epsilon, 1]
                chain.append(weight / (a * math.exp(epsilon) + b))
            for x in (0.1 * epsilon, epsilon, (size - 0.5) * epsilon):
                seen = max(hockey(chain[0], chain[-1], x), hockey(chain[-1], chain[0], x))
                assert seen <= pld.delta(event, x) + 1e-12
        low, high = acc.bounds(event, delta=1e-3)
        assert high - low < 1e-6  # attained, by the noise itself
        assert high < size * epsilon


def test_a_group_priced_as_one_pure_event_would_be_dearer():
    group = acc.Group(event=acc.PureDP(epsilon=0.1), size=5).repeated(20)
    assert acc.epsilon(group, delta=1e-6) < acc.epsilon(acc.PureDP(epsilon=0.5).repeated(20), delta=1e-6)


# --- choices and vectors ------------------------------------------------------------------------------------


def vector_pair(variance: float, shift: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    x = np.arange(-14, 19)
    p = q = np.ones(1)
    for s in shift:
        first, second = (np.exp(-((x - a) ** 2) / (2 * variance)) for a in (s, 0))
        p, q = np.outer(p, first / first.sum()).ravel(), np.outer(q, second / second.sum()).ravel()
    return p, q


@pytest.mark.parametrize("shift", [(1,), (2,), (1, 1), (2, 1), (1, 1, 1)])
@pytest.mark.parametrize("variance", [0.3, 1.0, 4.0])
def test_vectors_of_discrete_gaussians_lie_between_their_ends(variance, shift):
    event = acc.VectorDiscreteGaussian(variance=variance, l2_squared=sum(s * s for s in shift))
    p, q = vector_pair(variance, shift)
    for x in (0.2, 1.0, 3.0):
        truth = hockey(p, q, x)
        assert pld.delta(event, x) >= truth * (1 - 1e-9)
        if len(shift) == 1 or shift == (1, 1):
            assert pld.delta_bounds(event, x)[0] <= truth * (1 + 1e-9)


@for_each("rate", [0.01, 0.2, 0.7])
@for_each("variance", [0.3, 1.0, 4.0])
def test_removing_is_the_worse_direction_for_sampled_vectors_of_discrete_gaussians(rate, variance):
    """x -> s - x swaps the pair, entry by entry: so the binomial expansion bounds both directions."""
    for shift in ((1,), (2,), (1, 1), (2, 1), (1, 1, 1)):
        p, q = vector_pair(variance, shift)
        squared = sum(s * s for s in shift)
        with np.errstate(divide="ignore"):
            mixed, without = np.log((1 - rate) * q + rate * p), np.log(q)
        claimed = poisson(rate, lambda a, v=squared: a * (a - 1) / 2 * v / variance, mirrored=True)
        real = without > -600
        for order in (2, 3, 5, 8):
            removing, adding = (
                math.log(float(np.sum(np.exp(order * first[real] - (order - 1) * second[real]))))
                for first, second in ((mixed, without), (without, mixed))
            )
            assert adding <= removing * (1 + 1e-9)
            assert removing <= claimed(order) * (1 + 1e-9)


# --- ends and edges -----------------------------------------------------------------------------------------


def test_what_is_surely_lost_is_lost_from_both_ends():
    assert acc.bounds(acc.NonPrivate(), delta=0.1) == (math.inf, math.inf)
    assert acc.bounds(acc.Gaussian(noise_multiplier=0).sampled(0.1), delta=1e-6) == (math.inf, math.inf)
    assert acc.bounds(acc.ApproximateDP(epsilon=1, delta=1e-5), delta=1e-6) == (math.inf, math.inf)
    low, high = acc.bounds(acc.Thresholded(event=acc.Laplace(noise_multiplier=4.0), delta=1e-5), delta=1e-6)
    assert 0.24 < low < 0.25 < high == math.inf


@pytest.mark.parametrize("noise", [0, 0.0])
def test_no_noise_on_a_sample_is_no_privacy(noise):
    for event in (
        acc.Gaussian(noise_multiplier=noise),
        acc.NonPrivate(),
        acc.Laplace(noise_multiplier=noise),
    ):
        for accountant in ("tightest", "pld", "rdp", "basic"):
            assert acc.epsilon(event.sampled(0.01).repeated(3), delta=1e-3, accountant=accountant) == math.inf
        assert acc.delta(event.sampled(0.01), epsilon=3) == 1.0
    pass_ = acc.RandomAllocation(event=acc.Gaussian(noise_multiplier=noise), steps=5)
    assert acc.epsilon(pass_, delta=1e-3) == math.inf
    assert acc.epsilon(acc.NoOp().sampled(0.5).repeated(9), delta=1e-6) == 0.0


# only mechanisms that cost much less are known
WITHOUT = ("shuffled", "noisy-max", "gnmax", "rdp-point", "repeat-and-select", "poisson-repeat-and-select")


@pytest.mark.parametrize(
    "name", [name for name in ZOO if name not in ("no-op", "non-private", "sparse-vector")]
)
def test_lower_ends_are_within_a_tenth_of_the_upper_ones_or_zero(name):
    low, high = acc.bounds(ZOO[name].repeated(20), delta=1e-4)
    if name in WITHOUT:
        assert (low, low < high) == (0.0, True)
    else:
        assert 0.9 * high <= low <= high


def test_a_discrete_law_keeps_its_lower_end_at_every_delta():
    """Rounding of a frequency at which the law's transform vanishes once swamped all others."""
    for delta in (1e-2, 1e-2 * (1 + 1e-12), 3e-3, 1e-3):
        low, high = acc.bounds(acc.DiscreteGaussian(variance=9), delta=delta)
        assert high - low < 1e-6


def test_huge_losses_beside_small_ones_keep_their_lower_end():
    event = acc.compose([acc.Gaussian(noise_multiplier=2.0), acc.Laplace(noise_multiplier=4.0)]).repeated(
        1000
    )
    low, high = acc.bounds(event, delta=1e-6)
    assert low > high * (1 - 1e-3)


def test_fixed_size_samples_at_tiny_deltas():
    event = ZOO["without-replacement"].repeated(1000)
    assert acc.epsilon(event, delta=1e-12) < 1.6 * acc.epsilon(event, delta=1e-6)


def test_truncated_samples_cost_no_more_at_a_larger_epsilon():
    event = ZOO["truncated-poisson"]
    deltas = [acc.delta(event, epsilon=x) for x in (0.1, 1.0, 10.0, 40.0, 700.0)]
    assert all(
        b <= a * 1.01 for a, b in itertools.pairwise(deltas)
    )  # a search over smaller epsilons, not exact
    assert deltas[-1] < 1e-12


def test_optimal_composition_of_huge_epsilons():
    assert acc.epsilon(
        acc.PureDP(epsilon=50).repeated(10), delta=1e-6, accountant="optimal"
    ) == pytest.approx(500)
    assert acc.delta(ZOO["rdp-point"].repeated(1000), epsilon=0) > 0.9


@pytest.mark.parametrize(
    "event",
    [
        acc.Gaussian(noise_multiplier=1e-9).repeated(50),
        acc.Laplace(noise_multiplier=1e-6),
        acc.PureDP(epsilon=1e4),
        acc.ExponentialMechanism(epsilon=1e3).repeated(3),
        acc.VectorDiscreteGaussian(variance=1e-3, l2_squared=3),
        acc.Shuffled(epsilon=50, reports=10**7),
        acc.NoisyMax(epsilon=100, noise="laplace"),
        acc.NoisyMax(epsilon=250, noise="exponential"),
        acc.RDPPoint(order=1.0001, epsilon=1),
        acc.RepeatAndSelect(event=acc.NonPrivate(), trials=acc.geometric(0.1)),
        acc.Group(event=acc.Group(event=acc.Gaussian(noise_multiplier=2.0), size=2).repeated(2), size=4),
    ],
    ids=lambda event: type(event).__name__,
)
def test_what_leaves_the_range_of_floats_costs_much_and_raises_nothing(event):
    low, high = acc.bounds(event, delta=1e-6)
    assert 0 <= low <= high
    assert high > 20
    assert 0 <= acc.delta(event, epsilon=1) <= 1
