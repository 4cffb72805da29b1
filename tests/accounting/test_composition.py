"""Basic, advanced and optimal composition on bare numbers: against exhaustive enumeration and known
values."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import mpmath as mp
import pytest

from discreet import accounting as acc
from discreet._errors import InvalidInput, Unsupported
from discreet.accounting import composition, conversion, gdp, normal, pure, rdp

from ..loops import for_each


def exhaustive_delta(epsilons: list[float], epsilon: float) -> mp.mpf:
    """Murtagh & Vadhan 2016, Theorem 1.5: the sum over all subsets."""
    total = mp.mpf(0)
    for signs in itertools.product((1, -1), repeat=len(epsilons)):
        loss = mp.fsum(s * mp.mpf(e) for s, e in zip(signs, epsilons, strict=True))
        chance = mp.fprod(1 / (1 + mp.exp(-s * mp.mpf(e))) for s, e in zip(signs, epsilons, strict=True))
        total += chance * max(0, 1 - mp.exp(epsilon - loss))
    return total


@pytest.mark.parametrize("epsilons", [[0.3] * 8, [0.1, 0.2, 0.7, 0.7], [0.05, 1.3, 0.31, 0.017, 0.4]])
@pytest.mark.parametrize("delta", [1e-4, 1e-2, 0.1])
def test_optimal_is_the_exhaustive_optimum_within_1e_4(epsilons: list[float], delta: float) -> None:
    pairs = [(e, epsilons.count(e)) for e in sorted(set(epsilons))]
    claimed = composition.optimal_pairs(pairs, delta)
    assert exhaustive_delta(epsilons, claimed) <= delta * (1 + 1e-12)
    below = claimed * (1 - 1e-4) - 1e-6
    assert below <= 0 or exhaustive_delta(epsilons, below) > delta


def test_dwork_roth_keeps_the_term_that_lectures_drop() -> None:
    assert composition.dwork_roth(0.1, 100, 1e-6) == pytest.approx(
        math.sqrt(200 * math.log(1e6)) * 0.1 + 100 * 0.1 * math.expm1(0.1)
    )


def test_closed_forms_are_above_the_optimum() -> None:
    for epsilon, times in ((0.05, 1000), (0.5, 10), (1.0, 3)):
        best = composition.optimal_pairs([(epsilon, times)], 1e-6)
        closed = composition.kairouz([(epsilon, times)], 1e-6)
        assert (
            best <= closed <= min(times * epsilon * (1 + 1e-12), composition.dwork_roth(epsilon, times, 1e-6))
        )


def test_many_different_epsilons_are_below_the_closed_form() -> None:
    """Above 50,000 mechanisms the closed form stood for the optimum."""
    pairs = [(0.001, 40_000), (0.002, 40_000)]
    closed = composition.kairouz(pairs, 1e-6)
    # half of them alone
    least = composition.optimal_pairs(pairs[1:], 1e-6)
    assert least < composition.optimal_pairs(pairs, 1e-6) < 0.95 * closed


def test_equal_epsilons_in_several_pairs_are_one() -> None:
    assert composition.optimal_pairs([(0.1, 30), (0.1, 40)], 1e-6) == composition.optimal_pairs(
        [(0.1, 70)], 1e-6
    )


def test_sampled_gaussians_in_basic_composition_use_the_amplified_pair() -> None:
    event = acc.Gaussian(noise_multiplier=2.0).sampled(0.1)
    inner = conversion.gaussian_epsilon(0.5, 1e-5)
    assert composition.basic(event, 1e-6) == pytest.approx(math.log1p(0.1 * math.expm1(inner)), rel=1e-9)


def test_totals_refuse_what_has_no_fixed_pair() -> None:
    with pytest.raises(Unsupported, match="Gaussian"):
        conversion.basic(acc.Gaussian(noise_multiplier=1.0))
    assert conversion.basic(acc.NonPrivate()) == (math.inf, 1.0)
    assert conversion.zcdp(acc.NonPrivate()) == (math.inf, 1.0)


def test_a_sum_of_epsilons_beyond_the_range_of_floats_is_infinite_whatever_follows() -> None:
    huge, small = acc.PureDP(epsilon=1e308).repeated(10), acc.PureDP(epsilon=1)
    for event in (huge, acc.compose([huge, small]), acc.compose([small, huge])):
        assert pure.epsilon_of(event) is None
        assert conversion.basic(event) == conversion.Cost(math.inf, 0.0)
        assert acc.epsilon(event, delta=0) == math.inf
        assert composition.basic(event, 1e-5) == math.inf


def test_group_privacy_grows_delta_as_the_sum_of_powers() -> None:
    event = acc.Group(event=acc.ApproximateDP(epsilon=0.5, delta=1e-6), size=3)
    cost = conversion.basic(event)
    assert cost.value == 1.5
    assert cost.delta == pytest.approx(1e-6 * (1 + math.exp(0.5) + math.exp(1.0)), rel=1e-9)
    assert conversion.zcdp(acc.Group(event=acc.ZCDP(rho=0.1), size=3)).value == pytest.approx(0.9)


def test_group_of_sampled_gaussians_has_a_pair() -> None:
    event = acc.Group(event=acc.Gaussian(noise_multiplier=2.0).sampled(0.1), size=2)
    single = composition.basic(event.event, 1e-6)
    assert 2 * single < composition.basic(event, 1e-6) < 4 * single


@pytest.mark.parametrize("epsilon", [1e-7, 0.01, 1.0, 20.0])
def test_pure_to_gaussian_touches_at_the_corner(epsilon: float) -> None:
    mu, corner = gdp.of_pure(epsilon), 1 / (1 + math.exp(epsilon))
    assert gdp.tradeoff(mu, corner) == pytest.approx(corner, rel=1e-6)
    for alpha in (corner / 10, corner * 0.9, 0.5 + corner / 2):
        line = max(1 - math.exp(epsilon) * alpha, math.exp(-epsilon) * (1 - alpha))
        assert gdp.tradeoff(mu, alpha) <= line + 1e-15


def test_many_different_gaussians_add_up_without_loss() -> None:
    noises = [1 + k / 997 for k in range(2000)]
    run = acc.compose([acc.Gaussian(noise_multiplier=noise) for noise in noises])
    with mp.workdps(60):
        truth = mp.sqrt(mp.fsum(1 / mp.mpf(noise) ** 2 for noise in noises))
        assert truth <= gdp.mu(run) <= truth * (1 + mp.mpf(10) ** -14)


def test_the_central_limit_estimate_is_not_a_number() -> None:
    estimate = gdp.clt_estimate(
        acc.Gaussian(noise_multiplier=1.1).sampled(256 / 60_000).repeated(14_063), 1e-5
    )
    assert round(estimate.approximately, 3) == 2.324  # below the truth 2.382: never charge with it
    assert "not a bound" in repr(estimate)
    with pytest.raises(TypeError, match="must be a string or a real number"):
        float(estimate)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="accountant"):
        acc.epsilon(acc.Gaussian(noise_multiplier=1.0), delta=1e-5, accountant="clt")


@for_each("mu", [1e-5, 1e-2, 1.0, 30.0, 280.0])
@for_each("x", [-7.5, -4.0, 0.0, 5.0, 30.0])
def test_gaussian_delta_is_never_below_the_exact_value(mu: float, x: float) -> None:
    epsilon = mu * (x + mu / 2)
    if epsilon < 0:
        return
    with mp.workdps(60):
        m, e = mp.mpf(mu), mp.mpf(epsilon)
        truth = mp.ncdf(m / 2 - e / m) - mp.exp(e) * mp.ncdf(-m / 2 - e / m)
        claimed = conversion.gaussian_delta(mu, epsilon)
        assert truth <= claimed <= truth * (1 + mp.mpf("2e-5"))


@pytest.mark.parametrize("order", [1.5, 4.0, 60.0])
def test_conversions_are_inverse_and_tight_is_below_classic(order: float) -> None:
    epsilon = conversion.rdp_to_epsilon(order, 0.7, 1e-6)
    assert epsilon < conversion.rdp_to_epsilon_classic(order, 0.7, 1e-6)
    assert conversion.rdp_to_delta(order, 0.7, epsilon) == pytest.approx(1e-6, rel=1e-6)


def test_renyi_conversion_covers_gaussians_exactly_known() -> None:
    for mu in (0.1, 1.0, 3.0):
        for delta in (1e-3, 1e-9):
            truth = conversion.gaussian_epsilon(mu, delta)
            assert truth <= conversion.zcdp_to_epsilon(mu * mu / 2, delta) <= 1.2 * truth + 0.05


def test_bad_outcomes() -> None:
    # Gaussian with mu = 1: the event {x > t} has chance Phi(1 - t) against Phi(-t)
    for t in (0.0, 2.0, 5.0):
        rare, raised = conversion.normal_tail(t), conversion.normal_tail(t - 1)
        for order in (1.5, 3.0, 10.0):
            assert raised <= conversion.bad_outcome(order, order / 2, rare)
    # two outcomes, of which the rare one is the likely one on the neighbor: the bound is attained
    rare, raised = 1e-6, 0.5
    for order in (8.0, 20.0):
        either = raised**order * rare ** (1 - order) + (1 - raised) ** order * (1 - rare) ** (1 - order)
        found = conversion.bad_outcome(order, math.log(either) / (order - 1), rare)
        assert raised <= found <= raised * (1 + 1e-9)


def test_rdp_conversions_round_up_also_near_order_1_and_for_tiny_chances() -> None:
    with mp.workdps(50):
        for order, rdp, epsilon in itertools.product((1 + 1e-6, 1.003, 1.4, 60.0), (1e-3, 0.7), (0.2, 3.0)):
            a, r, e = mp.mpf(order), mp.mpf(rdp), mp.mpf(epsilon)
            truth = min(mp.mpf(1), mp.exp((a - 1) * (r - e)) * (1 - 1 / a) ** a / (a - 1))
            assert truth <= mp.mpf(conversion.rdp_to_delta(order, rdp, epsilon)) <= truth * (1 + 1e-12)
        for order, rdp, chance in itertools.product(
            (1 + 1e-6, 2.0, 60.0), (1e-3, 0.7), (1e-300, 1e-200, 0.1)
        ):
            a, r, p = mp.mpf(order), mp.mpf(rdp), mp.mpf(chance)
            truth = min(mp.mpf(1), (mp.exp(r) * p) ** (1 - 1 / a))
            assert truth <= mp.mpf(conversion.bad_outcome(order, rdp, chance)) <= truth * (1 + 1e-11)
    assert conversion.rdp_to_delta(2.0, 0.1, 1e4) > 0


def test_conversions_of_tiny_rhos_never_say_zero() -> None:
    classic = conversion.zcdp_to_epsilon_classic(1e-307, 1e-300)
    assert 0 < classic <= conversion.zcdp_to_epsilon(1e-307, 1e-300) < 1e-70
    assert 0 < conversion.zcdp_to_delta(1e-200, 1.0) < 1e-300


@pytest.mark.parametrize("bad", [math.nan, -1.0])
def test_conversions_refuse_what_is_no_divergence(bad: float) -> None:
    for convert in (conversion.rdp_to_epsilon, conversion.rdp_to_epsilon_classic, conversion.rdp_to_delta):
        with pytest.raises(InvalidInput, match="rdp"):
            convert(2.0, bad, 0.1)
    for convert_rho in (conversion.zcdp_to_epsilon, conversion.zcdp_to_delta):
        with pytest.raises(InvalidInput, match="rho"):
            convert_rho(bad, 0.1)


def test_group_delta_is_rounded_up_where_e_to_the_k_epsilon_is_no_float() -> None:
    assert normal.group_delta(750.0, 5e-324, 2) == 1.0
    with mp.workdps(40):
        for epsilon, delta, size in ((355.0, 1e-320, 3), (1e-310, 1e-9, 4), (0.5, 1e-9, 6)):
            truth = mp.mpf(delta) * mp.fsum(mp.exp(i * mp.mpf(epsilon)) for i in range(size))
            assert truth <= mp.mpf(normal.group_delta(epsilon, delta, size)) <= truth * (1 + 1e-11) + 5e-324


def test_optimal_composition_claims_pure_dp_only_from_the_sum_of_epsilons_on() -> None:
    """Losses beyond 20 sqrt(n) are left out, and a delta of exactly 0 was claimed for them."""
    assert composition.optimal_delta(0.001, 10**6, 900.0) > 0
    assert composition.optimal_delta(0.5, 2000, 1000.0) == 0


def test_the_delta_of_a_large_group_takes_no_time() -> None:
    """Summed term by term, a group of a billion took minutes."""
    with mp.workdps(40):
        for epsilon, delta, size in ((0.0, 1e-12, 10**9), (1e-9, 1e-12, 10**9), (1e-3, 1e-60, 100_001)):
            terms = mp.expm1(size * mp.mpf(epsilon)) / mp.expm1(mp.mpf(epsilon)) if epsilon else size
            truth = mp.mpf(delta) * terms
            assert truth <= mp.mpf(normal.group_delta(epsilon, delta, size)) <= truth * (1 + 1e-11)


def test_optimal_composition_of_many_is_a_bound_and_takes_no_memory() -> None:
    event = acc.PureDP(epsilon=1e-9).repeated(10**16)
    closed = composition.kairouz([(1e-9, 10**16)], 1e-6)
    assert closed <= acc.epsilon(event, delta=1e-6, accountant="optimal") <= closed * (1 + 1e-12)
    with pytest.raises(InvalidInput, match="times"):
        composition.optimal_delta(1e-9, 10**16, 0.5)


def test_optimal_composition_is_never_above_the_advanced_one() -> None:
    """Of very different epsilons the grid raised the small ones: 226.9 where 178.0 is proved."""
    pairs = [(0.1086, 10_000), (0.0811, 10_000), (1.6e-6, 100), (0.1593, 10), (0.00039, 10_000)]
    assert composition.optimal_pairs(pairs, 1.7e-9) <= composition.kairouz(pairs, 1.7e-9) < 179


@for_each("delta", [Fraction(1, 10**6), Fraction(1, 5)])
def test_the_nuclear_option_is_private_by_delta_alone_and_has_no_renyi_price(delta: Fraction) -> None:
    """With probability delta all rows are published; or each row by itself, with probability delta."""
    table, neighbor = ("ann", "bob"), ("bob",)

    def whole(rows: tuple[str, ...]) -> dict[tuple[str, ...], Fraction]:
        return {rows: delta, (): 1 - delta}

    def each(rows: tuple[str, ...]) -> dict[tuple[str, ...], Fraction]:
        subsets = [some for k in range(len(rows) + 1) for some in itertools.combinations(rows, k)]
        return {some: delta ** len(some) * (1 - delta) ** (len(rows) - len(some)) for some in subsets}

    for law in (whole, each):
        for first, second in ((law(table), law(neighbor)), (law(neighbor), law(table))):
            # the largest of Pr[M(D) in S] - Pr[M(D') in S] over all sets S
            excess = sum(max(Fraction(0), p - second.get(o, Fraction(0))) for o, p in first.items())
            assert excess <= delta
        assert sum(p for o, p in law(table).items() if "ann" in o) == delta  # never, without ann
    nuclear = acc.ApproximateDP(epsilon=0, delta=float(delta))
    assert acc.epsilon(nuclear, delta=float(delta)) == 0
    assert acc.epsilon(nuclear, delta=float(delta) / 2) == math.inf
    with pytest.raises(Unsupported, match="ApproximateDP"):
        rdp.curve(nuclear, [1.5])
    assert conversion.bad_outcome(8.0, 1.0, 0.0) == 0.0


@for_each(("epsilon", "size"), [(0.1, 5), (0.1, 20), (0.7, 1), (0.7, 3)])
def test_group_privacy_certifies_what_poisoned_rows_can_do(epsilon: float, size: int) -> None:
    """Against exact laws of votes between two answers, by the exponential mechanism, which attains it."""

    def chosen(votes: int) -> float:
        return 1 / (1 + math.exp(-epsilon / 2 * (2 * votes - 200)))

    event = acc.ExponentialMechanism(epsilon=epsilon, neighbors=acc.events.REPLACE)
    any_pure = acc.PureDP(epsilon=epsilon, neighbors=acc.events.REPLACE)
    for votes in (98, 101, 104):
        clean = chosen(votes)
        worst = min(chosen(votes - k) for k in range(size + 1))
        certified = acc.tradeoff(acc.Group(event=event, size=size), alpha=1 - clean)
        assert certified <= worst * (1 + 1e-9)
        assert certified == pytest.approx(worst, rel=1e-3)
        lines = math.exp(-size * epsilon) * clean, 1 - math.exp(size * epsilon) * (1 - clean)
        assert acc.tradeoff(acc.Group(event=any_pure, size=size), alpha=1 - clean) >= max(lines) * (1 - 1e-9)
        fewer = acc.tradeoff(acc.Group(event=event, size=max(1, size - 1)), alpha=1 - clean)
        assert size == 1 or fewer > worst, "a certificate for fewer rows would be false"
