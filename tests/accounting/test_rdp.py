"""Rényi divergences against oracles: integrals and sums in mpmath, exhaustive small cases, and the other
direction."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import mpmath as mp
import numpy as np
import pytest

from discreet import accounting as acc
from discreet._errors import Unsupported, WrongRelation
from discreet._public import REPLACE
from discreet.accounting import rdp, sampled_renyi, shuffling
from discreet.accounting import renyi as divergences

from ..loops import for_each

mp.mp.dps = 40


def moment(event: acc.Event, order: float) -> float:
    return rdp.curve(event, [order])[0] * (order - 1)


def assert_just_above(claimed: float, truth: mp.mpf, slack: float = 1e-9) -> None:
    assert truth <= claimed * (1 + mp.mpf(10) ** -15), f"optimistic: {claimed} < {truth}"
    assert claimed <= truth * (1 + slack) + 1e-12 * slack, f"loose: {claimed} > {truth}"


def renyi(p: list[mp.mpf], q: list[mp.mpf], order: float) -> mp.mpf:
    return mp.log(mp.fsum(a ** mp.mpf(order) * b ** (1 - mp.mpf(order)) for a, b in zip(p, q, strict=True)))


ORDERS = [1.01, 1.5, 2, 3.7, 16, 64.5]


@for_each("order", ORDERS)
@for_each("epsilon", [1e-5, 0.1, 1.0, 4.0])
def test_laplace_is_the_integral(epsilon: float, order: float) -> None:
    e, a = mp.mpf(1) / mp.mpf(1 / epsilon), mp.mpf(order)  # Mironov 2017, Table II
    truth = mp.log(a / (2 * a - 1) * mp.exp((a - 1) * e) + (a - 1) / (2 * a - 1) * mp.exp(-a * e))
    assert_just_above(moment(acc.Laplace(noise_multiplier=1 / epsilon), order), truth)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("scale", "shift"), [(Fraction(10), 1), (Fraction(1, 2), 1), (Fraction(7, 3), 2), (Fraction(30), 7)]
)
def test_discrete_laplace_is_the_sum(scale: Fraction, shift: int, order: float) -> None:
    s = mp.mpf(scale.numerator) / scale.denominator
    reach = int(s * 90) + 2 * shift + 40
    weights = {x: mp.exp(-abs(x) / s) for x in range(-reach - shift, reach + 1)}
    total = (1 + mp.exp(-1 / s)) / (1 - mp.exp(-1 / s))
    p = [weights[x] / total for x in range(-reach, reach + 1)]
    q = [weights[x - shift] / total for x in range(-reach, reach + 1)]
    assert_just_above(
        moment(acc.DiscreteLaplace(scale=scale, sensitivity=shift), order), renyi(p, q, order), 1e-7
    )


def test_long_shifts_of_discrete_laplace_are_summed_by_blocks_from_above() -> None:
    exact = sum(divergences.gap(3.0, (20_001 - 2 * x) / 9000.0) for x in range(1, 20_001))
    blocks = divergences._sum_between(3.0, 20_001, 9000.0)
    assert exact <= blocks <= exact * 1.01


@for_each("order", ORDERS)
@for_each("categories", [2, 3, 10])
def test_randomized_response_is_the_sum(categories: int, order: float) -> None:
    e = mp.exp(mp.mpf(0.7))
    p = [e] + [mp.mpf(1)] * (categories - 1)
    q = [mp.mpf(1), e] + [mp.mpf(1)] * (categories - 2)
    total = e + categories - 1
    truth = renyi([x / total for x in p], [x / total for x in q], order)
    assert_just_above(moment(acc.RandomizedResponse(epsilon=0.7, categories=categories), order), truth)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("epsilon", [0.05, 1.0, 5.0])
def test_bounded_range_is_the_worst_pair(epsilon: float, order: float) -> None:
    worst = mp.mpf(0)
    for k in range(1, 400):
        t = mp.mpf(epsilon) * k / 400
        q = (1 - mp.exp(t - epsilon)) / (mp.exp(t) - mp.exp(t - epsilon))
        p = q * mp.exp(t)
        worst = max(worst, renyi([p, 1 - p], [q, 1 - q], order))
    assert_just_above(moment(acc.ExponentialMechanism(epsilon=epsilon), order), worst, 2e-2)


@pytest.mark.parametrize("order", [2, 5, 32])
def test_discrete_gaussian_is_exact_at_integers(order: int) -> None:
    v, shift = mp.mpf(3), 2
    total = mp.fsum(mp.exp(-(x**2) / (2 * v)) for x in range(-80, 81))
    p = [mp.exp(-(mp.mpf(x) ** 2) / (2 * v)) / total for x in range(-150, 100)]
    q = [mp.exp(-(mp.mpf(x - shift) ** 2) / (2 * v)) / total for x in range(-150, 100)]
    assert_just_above(moment(acc.DiscreteGaussian(variance=3, sensitivity=2), order), renyi(p, q, order))


@pytest.mark.parametrize("order", [1.3, 2, 4.5, 12, 33.25])
@pytest.mark.parametrize(("rate", "noise"), [(0.01, 4.0), (256 / 60_000, 1.1), (0.2, 0.7), (1e-6, 1.0)])
def test_sampled_gaussian_is_the_integral_in_the_worse_direction(
    rate: float, noise: float, order: float
) -> None:
    q, s, a = mp.mpf(rate), mp.mpf(noise), mp.mpf(order)

    def ratio(z: mp.mpf) -> mp.mpf:
        return 1 - q + q * mp.exp((2 * z - 1) / (2 * s**2))

    def density(z: mp.mpf) -> mp.mpf:
        return mp.npdf(z, 0, s)

    points = [-30 * s, -5 * s, 0, 5 * s, order / 2, order, order + 10 * s, order + 30 * s]
    points = sorted(set(points))
    with mp.workdps(25):
        adding = mp.log1p(mp.quad(lambda z: density(z) * (ratio(z) ** a - 1), points))
        removing = mp.log1p(mp.quad(lambda z: density(z) * (ratio(z) ** (1 - a) - 1), points))
    loose = 1e-6 if rate > 1e-4 or order == round(order) else 1.0  # at tiny rates, chords between integers
    assert_just_above(sampled_renyi.sampled_gaussian(rate, noise)(order), max(adding, removing), loose)


def _pair(epsilon: float) -> tuple[list[mp.mpf], list[mp.mpf]]:
    e = mp.exp(mp.mpf(epsilon))
    return [e / (1 + e), 1 / (1 + e)], [1 / (1 + e), e / (1 + e)]


@pytest.mark.parametrize("order", [2, 3, 7])
@pytest.mark.parametrize("rate", [0.01, 0.5])
def test_sampled_randomized_response_is_exact_at_integers(rate: float, order: int) -> None:
    p, q = _pair(1.0)
    mixed = [(1 - mp.mpf(rate)) * b + mp.mpf(rate) * a for a, b in zip(p, q, strict=True)]
    truth = max(renyi(mixed, q, order), renyi(q, mixed, order))
    assert_just_above(moment(acc.PureDP(epsilon=1.0).sampled(rate), order), truth)


@pytest.mark.parametrize("order", [2, 3, 5])
def test_general_poisson_bound_covers_a_pair_without_mirror_symmetry(order: int) -> None:
    p, q, rate = [mp.mpf(6) / 10, mp.mpf(4) / 10], [mp.mpf(5) / 10, mp.mpf(5) / 10], mp.mpf("0.1")

    def inner(i: float) -> float:
        return float(max(renyi(p, q, i), renyi(q, p, i)))

    claimed = sampled_renyi.poisson(0.1, inner, mirrored=False)(order)
    for a, b in ((p, q), (q, p)):
        mixed = [(1 - rate) * y + rate * x for x, y in zip(a, b, strict=True)]
        assert renyi(mixed, b, order) <= claimed
        assert renyi(b, mixed, order) <= claimed


@pytest.mark.parametrize("order", [2, 3, 6])
def test_sampling_without_replacement_covers_three_distributions(order: int) -> None:
    # the unit's two values, and its absence, may lead to three different laws: all pairs epsilon-close under
    # replace
    laws = [[0.5, 0.3, 0.2], [0.4, 0.4, 0.2], [0.45, 0.25, 0.3]]
    epsilon = max(
        math.log(a / b) for x, y in itertools.permutations(laws, 2) for a, b in zip(x, y, strict=True)
    )
    exact = [[mp.mpf(v) for v in law] for law in laws]

    def inner(i: float) -> float:
        return float(max(renyi(x, y, i) for x, y in itertools.permutations(exact, 2)))

    claimed = sampled_renyi.without_replacement(0.2, inner, epsilon)(order)
    rate = mp.mpf("0.2")
    for other, one, two in itertools.permutations(exact, 3):
        first = [(1 - rate) * o + rate * x for o, x in zip(other, one, strict=True)]
        second = [(1 - rate) * o + rate * x for o, x in zip(other, two, strict=True)]
        assert renyi(first, second, order) <= claimed


@pytest.mark.parametrize(("steps", "order"), [(2, 2), (3, 4), (5, 3)])
def test_random_allocation_is_the_multinomial_sum(steps: int, order: int) -> None:
    total = mp.fsum(
        mp.exp(sum(mp.mpf(k * (k - 1)) / 2 for k in map(choice.count, range(steps))) / 4)
        for choice in itertools.product(range(steps), repeat=order)
    )
    truth = mp.log(total / steps**order)
    assert_just_above(float(sampled_renyi.allocation_moments(8, steps, 0.25)[order]), truth)


@pytest.mark.parametrize("order", [1.5, 2.0, 8.0])
def test_random_allocation_covers_both_directions(order: float) -> None:
    noise, grid = 1.5, np.linspace(-14, 22, 1441)
    x, y = np.meshgrid(grid, grid)
    base = np.exp(-(x**2 + y**2) / (2 * noise**2))
    base /= base.sum()
    ratio = (np.exp((2 * x - 1) / (2 * noise**2)) + np.exp((2 * y - 1) / (2 * noise**2))) / 2
    truth = max(math.log((base * ratio**order).sum()), math.log((base * ratio ** (1 - order)).sum()))
    claimed = moment(acc.RandomAllocation(event=acc.Gaussian(noise_multiplier=noise), steps=2), order)
    assert truth * (1 - 1e-9) <= claimed


@pytest.mark.parametrize(("local", "reports"), [(1.0, 5), (2.0, 30)])
def test_shuffled_moments_and_deltas_are_the_sums_over_clones(local: float, reports: int) -> None:
    p, e = mp.exp(-mp.mpf(local)), mp.exp(mp.mpf(local))
    first, second = [], []
    for c in range(reports):
        weight = mp.binomial(reports - 1, c) * p**c * (1 - p) ** (reports - 1 - c) / mp.mpf(2) ** c
        for a in range(c + 2):
            with_one, without = mp.binomial(c, a - 1) if a else mp.mpf(0), mp.binomial(c, a)
            first.append(weight * (e * with_one + without) / (1 + e))
            second.append(weight * (with_one + e * without) / (1 + e))
    for order in (1.5, 2.0, 10.0):
        assert_just_above(shuffling.moment(local, reports)(order), renyi(first, second, order), 1e-8)
    for epsilon in (0.0, 0.1, 0.5, 0.9):
        truth = mp.fsum(max(0, a - mp.exp(mp.mpf(epsilon)) * b) for a, b in zip(first, second, strict=True))
        assert_just_above(shuffling.delta_at(local, reports, epsilon), truth, 1e-8)


def test_order_is_reported_and_proves_the_price() -> None:
    event = acc.Gaussian(noise_multiplier=1.1).sampled(256 / 60_000).repeated(14_063)
    value, order = rdp.best(event, 1e-5)
    again = rdp.rdp_to_epsilon(order, rdp.curve(event, [order])[0], 1e-5)
    assert value == pytest.approx(again, rel=1e-12)
    assert 7 < order < 10


def test_pure_order_is_among_the_orders() -> None:
    assert rdp.best(acc.PureDP(epsilon=1).repeated(3), 1e-6) == (3.0, math.inf)


def test_rdp_point_says_nothing_above_its_order() -> None:
    assert rdp.curve(acc.RDPPoint(order=8, epsilon=0.1), [4, 8, 8.5]) == pytest.approx([0.1, 0.1, math.inf])


def test_poisson_sampling_is_refused_under_replace() -> None:
    with pytest.raises(WrongRelation, match="Poisson"):
        rdp.epsilon(acc.Gaussian(noise_multiplier=1.0, neighbors=REPLACE).sampled(0.1), 1e-5)


def test_a_failing_event_has_no_renyi_curve() -> None:
    with pytest.raises(Unsupported, match="ApproximateDP"):
        rdp.curve(acc.ApproximateDP(epsilon=1, delta=1e-6), [2])


def test_group_of_sampled_gaussians_follows_the_halving_rule() -> None:
    inner = acc.Gaussian(noise_multiplier=2.0).sampled(0.05)
    grouped = rdp.curve(acc.Group(event=inner, size=2), [4])[0]
    assert grouped == pytest.approx(3 * rdp.curve(inner, [8])[0])


def test_several_gaussians_on_one_sample_are_one() -> None:
    several = acc.compose(
        [acc.Gaussian(noise_multiplier=4.0).repeated(3), acc.Gaussian(noise_multiplier=2.0)]
    )
    joint = 1 / math.sqrt(3 / 16 + 1 / 4)
    claimed = rdp.curve(several.sampled(0.1), [2, 9])
    assert claimed == pytest.approx(
        rdp.curve(acc.Gaussian(noise_multiplier=joint).sampled(0.1), [2, 9]), rel=1e-9
    )


def test_a_mixed_composition_on_one_sample_is_the_expansion_of_the_worse_direction() -> None:
    inner = acc.compose([acc.Laplace(noise_multiplier=2.0), acc.RandomizedResponse(epsilon=0.3)])
    claimed = moment(inner.sampled(0.2), 3)
    q = mp.mpf(0.2)
    moments = {i: mp.exp(moment(inner, i)) for i in (2, 3)}
    truth = mp.log(1 + 3 * q**2 * (1 - q) * (moments[2] - 1) + q**3 * (moments[3] - 1))
    assert_just_above(claimed, truth * (1 - mp.mpf(10) ** -11), 1e-9)


def test_the_oracle_has_teeth() -> None:
    with pytest.raises(AssertionError, match="optimistic"):
        assert_just_above(0.999, mp.mpf(1))
    with pytest.raises(AssertionError, match="loose"):
        assert_just_above(1.001, mp.mpf(1))


@for_each("mu", [0.05, 0.7, 2.0])
@for_each("order", [2, 4, 10])
def test_central_moments_are_the_alternating_sums(mu: float, order: int) -> None:
    with mp.workdps(60):
        m = mp.mpf(mu)
        truth = mp.fsum(
            (-1) ** i * mp.binomial(order, i) * mp.exp(i * (i - 1) * m * m / 2) for i in range(order + 1)
        )
        claimed = sampled_renyi.log_central_moment(order, mu)
        assert mp.log(truth) <= claimed <= mp.log(truth) + mp.mpf("2e-9")


@pytest.mark.parametrize("mu", [0.2, 1.0, 2.5])
def test_three_gaussians_stay_within_the_term_of_theorem_27(mu: float) -> None:
    # the unit's two values and its absence: three means, pairwise at most mu apart, in the plane
    grid = np.linspace(-14, 22, 721)
    x, y = np.meshgrid(grid, grid)
    base = np.exp(-(x**2 + y**2) / 2)
    base /= base.sum()

    def ratio(a: float, b: float) -> np.ndarray:
        return np.exp(mu * (a * x + b * y) - mu * mu * (a * a + b * b) / 2)

    for one, two in (((1.0, 0.0), (0.5, 0.75**0.5)), ((0.5, 0.0), (-0.5, 0.0)), ((1.0, 0.0), (0.0, 0.0))):
        for j in (2, 3, 4, 5):
            truth = float((base * np.abs(ratio(*one) - ratio(*two)) ** j).sum())
            halves = [sampled_renyi.log_central_moment(2 * h, mu) for h in (j // 2, (j + 1) // 2)]
            assert truth <= 4 * math.exp(sum(halves) / 2)


@pytest.mark.parametrize("order", [2, 3, 6])
def test_gaussian_without_replacement_covers_opposite_shifts(order: int) -> None:
    noise, rate, grid = 2.0, 0.2, np.linspace(-20, 22, 8401)
    law = [np.exp(-((grid - shift) ** 2) / (2 * noise**2)) for shift in (0.0, 0.5, -0.5, 1.0)]
    claimed = sampled_renyi.gaussian_without_replacement(rate, noise)(order)
    for other, one, two in ((0, 1, 2), (0, 3, 0), (0, 0, 3)):
        p, q = ((1 - rate) * law[other] + rate * law[k] for k in (one, two))
        truth = math.log(float((p**order * q ** (1 - order)).sum() / law[0].sum()))
        assert truth <= claimed


@for_each("epsilon", [50.0, 1e4, 1e17, 1e100, 1e290])
@for_each("order", [1.5, 2, 64, 1e4])
def test_a_bounded_range_has_moments_at_any_epsilon(epsilon, order):
    moment = divergences.bounded_range(epsilon)(order)
    assert 0 < moment <= (order - 1) * epsilon * (1 + 1e-9)


@pytest.mark.parametrize(("noise", "order"), [(0.05, 4), (0.1, 8), (0.2, 32), (0.5, 512)])
def test_little_noise_on_a_fixed_size_sample_costs_no_less_than_a_shown_unit(
    noise: float, order: int
) -> None:
    # If the unit is drawn, the answer has the law of the plain Gaussian: that summand alone is a lower bound.
    rate = Fraction(1, 1000)
    inner = acc.Gaussian(noise_multiplier=noise, neighbors=REPLACE)
    event = acc.SampledWithoutReplacement(event=inner, size=1000, sample=1)
    truth = order * mp.log(mp.mpf(rate.numerator) / rate.denominator) + mp.mpf(order) * (order - 1) / (
        2 * mp.mpf(noise) ** 2
    )
    assert truth <= moment(event, order) <= truth * (1 + 1e-2)


@for_each("epsilon", [1e-12, 1e-10, 5e-10, 1e-9])
@for_each(("local", "reports"), [(0.5, 2), (1.0, 2), (0.5, 4)])
def test_shuffled_deltas_near_zero_take_the_best_threshold(
    local: float, reports: int, epsilon: float
) -> None:
    e, b = mp.exp(mp.mpf(epsilon)), mp.exp(mp.mpf(local)) / (1 + mp.exp(mp.mpf(local)))
    truth = mp.mpf(0)
    for clones in range(reports):
        chance = mp.binomial(reports - 1, clones) * mp.exp(-mp.mpf(local)) ** clones
        chance *= (1 - mp.exp(-mp.mpf(local))) ** (reports - 1 - clones)
        halves = [mp.binomial(clones, a) / mp.mpf(2) ** clones for a in range(clones + 1)]
        without, with_one = [*halves, mp.mpf(0)], [mp.mpf(0), *halves]
        pairs = zip(without, with_one, strict=True)
        truth += chance * mp.fsum(max(b * y + (1 - b) * x - e * (b * x + (1 - b) * y), 0) for x, y in pairs)
    assert truth <= shuffling.delta_at(local, reports, epsilon) <= truth * (1 + 1e-8)


def test_vectors_that_move_by_what_was_answered_before_are_not_taken_for_mirrored() -> None:
    one = acc.VectorDiscreteGaussian(variance=4, l2_squared=3)
    same = acc.DiscreteGaussian(variance=Fraction(4, 3), sensitivity=1)
    orders = [2.0, 3.0, 4.0]
    # Alone its two laws are each other's mirror image, and it costs what a number of the same rho does.
    alone = rdp.curve(one.sampled(rate=0.1), orders)
    assert alone == pytest.approx(rdp.curve(same.sampled(rate=0.1), orders), rel=1e-9)
    # Two on one sample: the second may move by what the first said. Numbers have one pair for all moves.
    two = rdp.curve(one.repeated(2).sampled(rate=0.1), orders)
    numbers = rdp.curve(same.repeated(2).sampled(rate=0.1), orders)
    assert two[0] == pytest.approx(numbers[0], rel=1e-9)
    assert all(a > 1.5 * b for a, b in zip(two[1:], numbers[1:], strict=True))


def test_selection_from_a_poisson_sample_under_replace_is_refused_by_every_accountant() -> None:
    # whose amplification is proved for add/remove and zero-out only
    run = acc.PureDP(epsilon=1, neighbors=REPLACE).sampled(0.1)
    event = acc.RepeatAndSelect(event=run, trials=acc.geometric(0.5))
    for accountant in ("tightest", "zcdp", "gdp", "optimal", "advanced", "basic"):
        for delta in (0.0, 1e-6):
            with pytest.raises(WrongRelation, match="Poisson"):
                acc.epsilon(event, delta=delta, accountant=accountant)
    with pytest.raises(WrongRelation, match="Poisson"):
        acc.ZCDPFilter(rho=1, neighbors=REPLACE).admits([], event)


@for_each("epsilon", [0.01, 0.5, 3.0, 20.0])
@for_each("excess", [1e-4, 1e-6, 3e-8])
def test_laplace_moments_near_order_1_are_never_below_the_closed_form(excess: float, epsilon: float) -> None:
    order = 1 + excess
    with mp.workdps(50):
        a, e = mp.mpf(order), mp.mpf(epsilon)
        truth = mp.log((a * mp.exp((a - 1) * e) + (a - 1) * mp.exp(-a * e)) / (2 * a - 1))
        assert truth <= mp.mpf(divergences.laplace(epsilon)(order)) <= truth * (1 + mp.mpf("1e-11"))


@pytest.mark.parametrize("rate", [Fraction(1, 10**400), Fraction(10**20 - 1, 10**20)])
def test_rates_that_no_float_tells_from_0_or_1_have_a_price(rate: Fraction) -> None:
    event = acc.Gaussian(noise_multiplier=1.0)
    price = acc.epsilon(event.sampled(rate), delta=1e-6, accountant="rdp")
    assert 0 < price <= acc.epsilon(event, delta=1e-6, accountant="rdp")


def test_a_fixed_size_sample_with_almost_no_noise_takes_no_memory() -> None:
    plain = sampled_renyi.without_replacement(0.01, lambda order: order * (order - 1) / 2 * 1e12, None)
    moment = sampled_renyi.gaussian_without_replacement(0.01, 1e-6)
    assert plain(64.0) <= moment(64.0) <= plain(64.0) * (1 + 1e-12)
