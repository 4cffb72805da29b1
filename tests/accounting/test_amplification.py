"""Amplification, moments of 2016, votes."""

from __future__ import annotations

import math
from fractions import Fraction
from statistics import NormalDist

import mpmath as mp
import pytest

from discreet import accounting as acc
from discreet._errors import InvalidInput, Unsupported, WrongRelation
from discreet._public import ADD_REMOVE, REPLACE, ZERO_OUT
from discreet.accounting import amplification, moments, normal, pate, rdp, shuffling
from discreet.accounting.gdp import ApproximateEpsilon, clt_estimate

from ..loops import for_each


@for_each("epsilon", [0.01, 1.0, 5.0, 60.0])
@for_each("rate", [1e-6, 0.1, 0.5])
def test_sampled_randomized_response_attains_the_formula(epsilon: float, rate: float) -> None:
    # P' = (1 - q) Q + q P against Q: the larger ratio is 1 - q + q e^eps
    claimed = amplification.poisson(epsilon, 1e-6, rate=rate)
    exact = epsilon + math.log(rate + (1 - rate) * math.exp(-epsilon))
    assert exact <= claimed.value * (1 + 1e-13) + 1e-15
    assert claimed.value <= max(exact, 0) * (1 + 1e-8) + 1e-14
    assert claimed.delta >= Fraction(1e-6) * Fraction(rate)
    assert claimed.value <= amplification.lecture(epsilon, rate=rate)


@for_each("epsilon", [49.0, 51.0, 300.0, 699.0, 701.0, 740.0])
@for_each("beyond", [-40.0, -20.0, -3.0, 0.0, 3.0, 45.0])
def test_a_tiny_rate_costs_no_less_than_the_formula(epsilon: float, beyond: float) -> None:
    rate = math.exp(beyond - epsilon)
    with mp.workdps(60):
        truth = mp.log1p(mp.mpf(rate) * mp.expm1(mp.mpf(epsilon)))
        claimed = amplification.poisson(epsilon, 0.0, rate=rate).value
        assert truth <= claimed <= truth * (1 + mp.mpf(10) ** -11) + mp.mpf(10) ** -299


def test_each_formula_is_refused_for_the_other_relation() -> None:
    with pytest.raises(WrongRelation, match="amplification by Poisson sampling is proved for add_remove"):
        amplification.poisson(1.0, 0.0, rate=0.1, neighbors=REPLACE)
    for neighbors in (ADD_REMOVE, ZERO_OUT):
        with pytest.raises(
            WrongRelation, match="amplification by sampling without replacement is proved for"
        ):
            amplification.without_replacement(1.0, 0.0, rate=0.1, neighbors=neighbors)
    assert amplification.without_replacement(1.0, 0.0, rate=0.1) == amplification.poisson(1.0, 0.0, rate=0.1)


def test_iteration_has_limits() -> None:
    value = amplification.iteration(
        2.0, lipschitz=1.0, noise=4.0, steps_after=9, step_size=0.1, smoothness=1.0
    )
    assert value == pytest.approx(2 * 2 / 16 / 10)
    with pytest.raises(InvalidInput, match="smoothness"):
        amplification.iteration(2.0, lipschitz=1.0, noise=4.0, steps_after=9, step_size=3.0, smoothness=1.0)


def test_shuffling_beats_its_closed_form_and_never_exceeds_the_local_epsilon() -> None:
    for local, n in ((0.5, 10_000), (4.0, 100_000), (8.0, 1_000_000)):
        numeric = shuffling.epsilon(local, n, 1e-6)
        assert numeric <= shuffling.closed_form(local, n, 1e-6) <= local
    assert shuffling.epsilon(1.0, 1, 1e-6) == pytest.approx(1.0, abs=1e-5)


def test_a_truncated_sample_pays_for_the_chance_of_overflow() -> None:
    inner = acc.Gaussian(noise_multiplier=2.0, neighbors=ZERO_OUT)
    plain = inner.sampled(0.05).repeated(100)
    for limit, much in ((60, True), (130, False)):
        event = acc.TruncatedPoisson(event=inner, rate=0.05, size=1000, limit=limit).repeated(100)
        claimed = acc.epsilon(event, delta=1e-6, accountant="rdp")
        assert claimed >= rdp.epsilon(plain, 1e-6)
        assert math.isinf(claimed) == much
    exact = sum(math.comb(20, k) * 0.3**k * 0.7 ** (20 - k) for k in range(11, 21))
    assert normal.overflow(20, 0.3, 10) == pytest.approx(exact, rel=1e-6)
    assert normal.overflow(20, 0.3, 10) >= exact


def test_the_chance_of_overflow_is_no_less_than_the_truth_for_more_units_than_floats_count() -> None:
    # the truths: the continued fraction of the incomplete beta function, to 40 digits
    assert normal.overflow(10**15, 0.5, 5 * 10**14 + 10**8) >= 1.2698140347071026e-10
    assert normal.overflow(10**18, Fraction(1, 3), 10**18 // 3 + 3 * 10**9) >= 9.8308024831838776e-11


def test_the_truncation_inequality_holds_at_the_answer() -> None:
    inner = acc.Gaussian(noise_multiplier=2.0, neighbors=ZERO_OUT)
    event = acc.TruncatedPoisson(event=inner, rate=0.05, size=1000, limit=86).repeated(10)
    epsilon = acc.epsilon(event, delta=1e-4, accountant="rdp")
    distance = 10 * normal.overflow(1000, 0.05, 86)
    rest = rdp.delta(inner.sampled(0.05).repeated(10), epsilon)
    assert rest + (1 + math.exp(epsilon)) * distance <= 1e-4 * (1 + 1e-6)


@pytest.mark.parametrize("epsilon", [50.0, 100.0, 600.0])
def test_a_truncated_sample_with_little_noise_claims_no_less_than_the_truth(epsilon: float) -> None:
    # the loss of N(1, s²) against N(0, s²) is about 1/(2 s²) = 1250: at these epsilons delta is the rate
    inner = acc.Gaussian(noise_multiplier=0.02, neighbors=ZERO_OUT)
    event = acc.TruncatedPoisson(event=inner, rate=0.5, size=10_000, limit=9_999)
    assert acc.delta(event, epsilon=epsilon) >= 0.5 * (1 - 1e-9)


def test_a_distance_costs_everything_where_e_to_the_epsilon_is_no_float() -> None:
    event = acc.PureDP(epsilon=1.0, neighbors=ZERO_OUT)
    form = normal.Normal({event: 1}, 0.0, 5e-324, ZERO_OUT)
    # (1 + e^epsilon) distance is 2e-20 at epsilon 699 and 10^24 at 800
    assert form.total_delta(0.0, 699.0) == pytest.approx(math.exp(699.0) * 5e-324, rel=1e-6)
    assert form.total_delta(0.0, 800.0) == 1.0
    assert form.remaining_delta(0.5, 800.0) < 0


@pytest.mark.parametrize("moment", [1, 4, 20])
def test_the_integrals_of_2016_agree_with_the_binomial_sums(moment: int) -> None:
    found = moments.integrals(moment, 0.01, 4.0)
    exact = rdp.curve(acc.Gaussian(noise_multiplier=4.0).sampled(0.01), [moment + 1])[0] * moment
    assert math.log(found.e2) == pytest.approx(exact, rel=1e-5)
    assert found.e1 <= found.e2
    assert moments.tail(0.01, 4.0, 10_000, moments.epsilon(0.01, 4.0, 10_000, 1e-5)) == pytest.approx(
        1e-5, rel=1e-6
    )


def test_closed_rows_hold_where_their_conditions_do_and_are_refused_elsewhere() -> None:
    exact = rdp.curve(acc.Gaussian(noise_multiplier=4.0).sampled(0.01), [2, 8])
    q, s = 0.01, 4.0
    for order, truth in zip((2.0, 8.0), exact, strict=True):
        unit = q * q * order / (s * s)
        assert truth <= moments.mironov(order, q, s) == pytest.approx(2 * unit)
        # a sample of fixed size that may hold one row of zeros in place of another is such a pair, too
        assert truth <= moments.bun(order, q, s) == pytest.approx(6 * unit)
        estimate = moments.abadi(order, q, s)
        assert isinstance(estimate, ApproximateEpsilon)
        assert estimate.approximately == pytest.approx(unit / (1 - q))
    for row, arguments in (
        (moments.mironov, (2.0, 0.3, 4.0)),
        (moments.mironov, (2.0, 0.01, 3.0)),
        (moments.mironov, (1e4, 0.01, 4.0)),
        (moments.bun, (2.0, 0.2, 4.0)),
        (moments.bun, (100.0, 0.01, 4.0)),
        (moments.abadi, (2.0, 0.05, 4.0)),
        (moments.abadi, (1000.0, 0.001, 4.0)),
    ):
        with pytest.raises(InvalidInput, match="holds only for"):
            row(*arguments)  # type: ignore[operator]


def test_votes_cost_less_with_consensus_and_never_more_than_the_worst_case() -> None:
    for order in (1.5, 4.0, 30.0):
        costs = [pate.query_rdp(order, q, 40.0) for q in (1e-12, 1e-6, 1e-3, 0.1, 0.5, 1.0)]
        assert costs == sorted(costs)
        assert costs[-1] == pytest.approx(order / 1600)


def test_data_dependent_cost_covers_a_two_class_vote_exactly() -> None:
    # with two classes the answer is a coin: compare with its exact divergence to the neighbor with one vote
    # moved
    sigma, order = 4.0, 3.0
    for gap in (2, 10, 24):
        q = pate.other_answer([100 + gap, 100], sigma)
        for moved in (-2, 2):
            other = 0.5 * math.erfc((gap + moved) / (2 * sigma))
            for a, b in ((q, other), (other, q)):
                truth = math.log(a**order * b ** (1 - order) + (1 - a) ** order * (1 - b) ** (1 - order)) / (
                    order - 1
                )
                assert truth <= pate.query_rdp(order, q, sigma) * (1 + 1e-9) or truth <= order / sigma**2
        truth = math.log(q**order * other ** (1 - order) + (1 - q) ** order * (1 - other) ** (1 - order)) / (
            order - 1
        )
        assert truth <= pate.query_rdp(order, q, sigma) * (1 + 1e-9)


def test_vote_costs_print_nothing() -> None:
    cost = pate.vote_cost([[230, 20]], 40.0)
    assert "private" in repr(cost)
    assert not any(ch.isdigit() for ch in repr(cost))
    assert set(cost.rdp_for_steward()) == set(pate.ORDERS)


def _bound_after_moves(q: float, sigma: float, classes: int, votes: float) -> float:
    """Return the bound q after `votes` more (negative: fewer) votes moved against the plurality, all
    runners-up alike.

    Papernot et al. 2018, arXiv:1802.08908, Appendix B: moving one vote changes every gap by at most 2.
    """
    others = classes - 1
    share = min(max(q, pate._LEAST) / others, 0.5)
    shifted = (
        NormalDist().inv_cdf(share) + votes * math.sqrt(2) / sigma
        if share < 0.5
        else votes * math.sqrt(2) / sigma
    )
    return min(1.0, max(others * 0.5 * math.erfc(-shifted / math.sqrt(2)), pate._LEAST))


def _local_sensitivity(order: float, low: float, high: float, sigma: float, classes: int) -> float:
    """Return a bound on how far one moved vote changes the cost, for every q in [low, high]; the cost grows
    with q, so ends are enough."""
    more = pate.query_rdp(order, _bound_after_moves(high, sigma, classes, 1), sigma) - pate.query_rdp(
        order, low, sigma
    )
    less = pate.query_rdp(order, high, sigma) - pate.query_rdp(
        order, _bound_after_moves(low, sigma, classes, -1), sigma
    )
    return max(more, less, 0.0)


def test_smooth_sensitivity_is_at_least_local_and_smooth() -> None:
    queries = [[60, 30, 10]] * 3
    value = pate.smooth_sensitivity(queries, 10.0, order=10.0, beta=0.05)
    q = pate.other_answer([60, 30, 10], 10.0)
    local = 3 * _local_sensitivity(10.0, q, q, 10.0, 3)
    assert value >= local > 0
    next_door = pate.smooth_sensitivity([[59, 31, 10]] + [[60, 30, 10]] * 2, 10.0, order=10.0, beta=0.05)
    assert next_door <= value * math.exp(0.05) * 1.001
    with pytest.raises(InvalidInput, match="order"):
        pate.release_rdp(11.0, beta=0.05, noise=20.0)
    # just below the largest order, where a denominator rounds to zero
    with pytest.raises(InvalidInput, match="order"):
        pate.release_rdp(math.nextafter(-1 / math.expm1(-0.002), 0), beta=0.001, noise=20.0)


@for_each("order", [1.5, 4.0, 9.0, 20.0])
@for_each("beta", [0.001, 0.01, 0.02])
def test_publishing_with_smooth_noise_is_never_below_the_divergence_of_any_allowed_pair(order, beta) -> None:
    noise = 10.0
    claimed = pate.release_rdp(order, beta=beta, noise=noise)
    for ratio in (math.exp(-beta), math.exp(-beta / 2), 1.0, math.exp(beta / 2), math.exp(beta)):
        v = order - (order - 1) * ratio**2  # in units of the second scale
        gap = min(ratio, 1.0) / noise
        truth = order * gap**2 / (2 * v) - math.log(ratio) - math.log(v) / (2 * (order - 1))
        assert truth <= claimed
    v = order - (order - 1) * math.exp(2 * beta)  # attained
    assert claimed == pytest.approx(order / (200 * v) - beta - math.log(v) / (2 * (order - 1)), rel=1e-9)


def test_the_published_bound_for_smooth_noise_is_below_the_truth() -> None:
    order, beta, noise = 20.0, 0.02, 10.0
    published = order * math.exp(2 * beta) / noise**2 + (
        beta * order - 0.5 * math.log1p(-2 * order * beta)
    ) / (order - 1)
    assert published < 0.28 < 0.46 < pate.release_rdp(order, beta=beta, noise=noise)


def test_a_sure_vote_is_not_free() -> None:
    # the chance of another answer underflows a float; at high orders the divergence to a neighbor does not
    q = pate.other_answer([250, 0], 3.0)
    assert q > 0
    log_q, log_other = (-(gap**2) / 36 - math.log(gap / 3 * math.sqrt(math.pi)) for gap in (250, 248))
    order = 512.0
    truth = (order * log_q + (1 - order) * log_other) / (
        order - 1
    )  # a lower bound: only the rare answer counted
    assert pate.query_rdp(order, q, 3.0) >= max(truth, 1.0)


def test_the_moments_accountant_says_what_it_needs() -> None:
    with pytest.raises(InvalidInput, match="above zero"):
        moments.epsilon(0.0, 1.0, 10, 1e-5)
    with pytest.raises(InvalidInput, match="noise_multiplier"):
        moments.epsilon(0.1, 1e-6, 10, 1e-5)
    # the second moment is no float here, and the first still bounds
    assert moments.epsilon(0.1, 0.05, 1, 1e-5) > 100


def test_closed_forms_beyond_the_range_of_floats_are_infinite() -> None:
    assert shuffling.epsilon(800.0, 100, 1e-6) == 800.0
    assert amplification.lecture(800.0, rate=0.1) == math.inf
    assert clt_estimate(acc.Gaussian(noise_multiplier=0.03).sampled(0.1), 1e-5).approximately == math.inf
    third = amplification.poisson(Fraction(1, 3), 0.0, rate=1)  # type: ignore[arg-type]
    assert Fraction(third.value) >= Fraction(1, 3)


def test_a_comparison_that_nobody_can_price_says_so() -> None:
    event = acc.RepeatAndSelect(event=acc.ApproximateDP(epsilon=0.1, delta=1e-9), trials=acc.geometric(0.1))
    with pytest.raises(Unsupported, match="no accountant"):
        _ = acc.compare(event, delta=1e-6).best


def test_shuffling_of_almost_free_reports_ends_and_claims_no_nan() -> None:
    """e^epsilon0 - 1 was 0 as a float: a division 0 / 0, and for the least epsilon a search without end."""
    assert shuffling.epsilon(5e-324, 100, 1e-13) == 5e-324
    assert shuffling.epsilon(1e-17, 100, 1e-6) == 0.0
    assert 0 < shuffling.delta_at(1e-17, 100, 0.0) < 1e-11


def test_a_number_of_steps_below_one_has_no_tail() -> None:
    """With -100 steps the delta of one step was far below the truth."""
    with pytest.raises(InvalidInput, match="steps"):
        moments.tail(0.01, 4.0, -100, 1.0)
