"""Capped prices: what is asked at epsilon e reads as at most e spent, and every price stays true."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discreet import accounting as acc
from discreet._errors import BudgetExceeded, InvalidInput
from discreet.accounting import caps, lanes
from discreet.accounting.caps import RequestedPrice
from discreet.accounting.lanes import Capped, Spent, capped_prices, lane_prices

from ..loops import for_each

ORDERS = (1.5, 2.0, 8.0, 32.0)


def gaussian(epsilon: float, delta: float) -> acc.Event:
    return acc.Gaussian(
        noise_multiplier=acc.calibrate(
            lambda s: acc.Gaussian(noise_multiplier=s), epsilon=epsilon, delta=delta
        )
    )


# --- the theorem, on pairs of laws


def renyi(p: np.ndarray, q: np.ndarray, order: float) -> float:
    """The Rényi divergence of two laws on finitely many outcomes."""
    with np.errstate(divide="ignore"):
        logs = order * np.log(p) + (1 - order) * np.log(q)
    return float(np.log(np.sum(np.exp(logs)))) / (order - 1)


def hockey(p: np.ndarray, q: np.ndarray, threshold: float) -> float:
    return float(np.sum(np.maximum(0.0, p - math.exp(threshold) * q)))


def threshold_at(p: np.ndarray, q: np.ndarray, delta: float) -> float:
    """The t with H_{e^t}(P || Q) = delta."""
    low, high = 0.0, float(np.max(np.log(p / q)))
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if hockey(p, q, middle) > delta else (low, middle)
    return high


def capped_pair(
    p: np.ndarray, q: np.ndarray, epsilon: float
) -> tuple[np.ndarray, np.ndarray, float, float, float]:
    """P_1 and Q_1 of docs/proofs/filters.md, their two thresholds, and the delta that both directions share."""
    delta = max(hockey(p, q, epsilon), hockey(q, p, epsilon))
    t1, t2 = threshold_at(p, q, delta), threshold_at(q, p, delta)
    first, second = np.minimum(p, math.exp(t1) * q), np.minimum(q, math.exp(t2) * p)
    return first / (1 - delta), second / (1 - delta), t1, t2, delta


def random_pair(random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """An asymmetric pair: sampled or not, with light or heavy tails."""
    size = int(random.integers(3, 40))
    q = random.dirichlet(np.full(size, random.choice([0.3, 1.0, 5.0]))) + 1e-12
    p = q * np.exp(random.normal(0, random.choice([0.05, 0.5, 2.0]), size))
    p, q = p / p.sum(), q / q.sum()
    rate = float(random.choice([1.0, 0.3, 0.01]))
    return (1 - rate) * q + rate * p, q


def test_the_capped_pair_is_within_epsilon_and_below_the_original_at_every_order_both_ways() -> None:
    random = np.random.default_rng(17)
    tried = 0
    for _ in range(1000):
        p, q = random_pair(random)
        losses = np.abs(np.log(p / q))
        epsilon = float(random.uniform(0.05, 1.0) * losses.max())
        p1, q1, t1, t2, delta = capped_pair(p, q, epsilon)
        if delta < 1e-13:
            continue
        tried += 1
        assert p1.sum() == pytest.approx(1, abs=1e-9)
        assert q1.sum() == pytest.approx(1, abs=1e-9)
        assert t1 <= epsilon + 1e-9
        assert t2 <= epsilon + 1e-9
        assert np.max(np.abs(np.log(p1 / q1))) <= epsilon + 1e-9
        for order in (1.2, *ORDERS):
            response = math.exp(epsilon) / (1 + math.exp(epsilon))
            both = np.array([response, 1 - response])
            bound = renyi(both, both[::-1], order) + 1e-7
            assert renyi(p1, q1, order) <= min(renyi(p, q, order) + 1e-7, bound)
            assert renyi(q1, p1, order) <= min(renyi(q, p, order) + 1e-7, bound)
    assert tried > 500


def test_one_cap_on_both_sides_would_be_wrong_for_sampled_pairs() -> None:
    """The mutant: with one threshold for both directions the deltas differ, and normalized the pair exceeds
    epsilon."""
    q = np.array([0.5, 0.4, 0.1])
    p = 0.9 * q + 0.1 * np.array([0.05, 0.15, 0.8])
    epsilon = 0.3
    first, second = np.minimum(p, math.exp(epsilon) * q), np.minimum(q, math.exp(epsilon) * p)
    worst = np.max(np.abs(np.log((first / first.sum()) / (second / second.sum()))))
    assert worst > epsilon
    p1, q1, *_ = capped_pair(p, q, epsilon)
    assert np.max(np.abs(np.log(p1 / q1))) <= epsilon + 1e-9


def test_a_capped_gaussian_is_priced_by_the_lesser_of_its_own_curve_and_randomized_response() -> None:
    event = gaussian(1, 5e-6)
    sums = capped_prices(Capped(event=event, epsilon=1.0, delta=5e-6), (2.0, 32.0)).sums
    plain = lane_prices(event, (2.0, 32.0)).sums
    assert sums[0] == 1
    assert sums[1] == plain[1]  # 0.06628: its own curve; the capped pair itself has 0.06626
    assert float(sums[1]) == pytest.approx(0.06628, abs=1e-5)
    assert 0.7179 <= float(sums[2]) == pytest.approx(0.9899, abs=1e-4)  # randomized response; its own 1.0605
    assert float(plain[2]) == pytest.approx(1.0605, abs=1e-4)


def test_a_cap_that_is_not_certified_is_refused() -> None:
    rule = acc.Filter(epsilon=3, delta=1e-5)
    with pytest.raises(InvalidInput, match="not certified"):
        rule.price(Capped(event=acc.Gaussian(noise_multiplier=1.0), epsilon=1.0, delta=1e-6))


# --- the reading


def after(
    rule: acc.filters.BudgetFilter, spent: Spent, event: acc.Event, asked: RequestedPrice | None
) -> Spent:
    return rule.charge(spent, caps.choose(rule, spent, event, asked))


@for_each("delta", [1e-9, 1e-6, 1e-3])
@for_each("epsilon", [0.1, 1, 8])
@for_each("part", [1.0, 0.5, 0.01])
@for_each("hint", [True, False])
def test_a_fresh_budget_admits_one_release_asked_with_all_of_its_epsilon(
    epsilon: float, delta: float, part: float, hint: bool
) -> None:
    event = gaussian(epsilon, part * delta)
    asked = RequestedPrice(epsilon, part * delta) if hint else None
    rule, item = caps.first(acc.Filter(epsilon=epsilon, delta=delta), event, asked)
    spent = rule.charge(rule.start(), item)
    assert rule.used(spent) <= epsilon * (1 + 1e-12)
    assert isinstance(rule, acc.Filter)
    assert rule.delta == delta
    assert rule.delta_limit <= Fraction(delta) * (1 + rule.slack)


def test_a_sampled_run_asked_with_the_whole_budget_fits_and_a_second_does_not() -> None:
    def run(s: float) -> acc.Event:
        return acc.Gaussian(noise_multiplier=s).sampled(0.01).repeated(1000)

    event = run(acc.calibrate(run, epsilon=2, delta=1e-5))
    rule, item = caps.first(acc.Filter(epsilon=2, delta=1e-5), event, RequestedPrice(2, 1e-5))
    spent = rule.charge(rule.start(), item)
    assert 1.99 <= rule.used(spent) <= 2 * (1 + 1e-12)
    with pytest.raises(BudgetExceeded, match="this would raise epsilon from 2 to inf"):
        after(rule, spent, event, RequestedPrice(2, 1e-5))


def test_small_gaussians_fit_at_least_as_often_as_without_caps() -> None:
    for epsilon, budget in ((0.001, 1), (0.01, 1), (0.1, 3)):
        rule = acc.Filter(epsilon=budget, delta=1e-6)
        delta = caps.share(epsilon, of=rule)
        event = gaussian(epsilon, delta)
        item = caps.choose(rule, rule.start(), event, RequestedPrice(epsilon, delta))
        assert isinstance(item, Capped)
        capped, plain = rule.preview([], item).fits, rule.preview([], event).fits
        assert capped is not None
        assert plain is not None
        assert capped >= plain >= 1


def test_ten_thousand_small_gaussians_are_admitted_and_the_last_that_fits_leaves_about_nothing() -> None:
    rule = acc.Filter(epsilon=0.2, delta=1e-6)
    delta = caps.share(0.001, of=rule)
    event, spent, count = gaussian(0.001, delta), rule.start(), 0
    fits = rule.preview(spent, caps.choose(rule, spent, event, RequestedPrice(0.001, delta))).fits
    assert fits is not None
    assert fits > 10_000
    readings = []
    while True:
        item = caps.choose(rule, spent, event, RequestedPrice(0.001, delta))
        if not isinstance(item, Capped):
            break
        spent, count = rule.charge(spent, item), count + 1
        readings.append(rule.used(spent))
    assert count == 200
    assert readings == sorted(readings)
    assert all(reading <= 0.001 * (k + 1) * (1 + 1e-9) for k, reading in enumerate(readings))
    rest = fits - count
    spent = spent.plus(rule.price(event), rest)
    assert rule.admits(rule.start(), acc.NoOp())
    assert rule.used(spent) <= 0.2 * (1 + 1e-9)
    assert rule.used(spent) >= 0.2 * 0.999
    assert not rule.admits(spent, event)


ASKS = st.lists(
    st.tuples(
        st.sampled_from([0.01, 0.05, 0.1, 0.3, 0.5]),
        st.sampled_from(["gaussian", "laplace", "sampled", "failing", "ours"]),
    ),
    max_size=14,
)


def made(kind: str, epsilon: float, delta: float) -> acc.Event:
    """A release of some kind that is (epsilon, delta)-DP."""
    if kind == "laplace":
        return acc.PureDP(epsilon=epsilon)
    if kind == "failing":
        return acc.ApproximateDP(epsilon=epsilon, delta=delta)
    if kind == "ours":
        return acc.compose(
            [acc.ApproximateDP(epsilon=epsilon / 2, delta=delta / 2), gaussian(epsilon / 2, delta / 2)]
        )
    if kind == "sampled":
        return (
            acc.Gaussian(
                noise_multiplier=acc.calibrate(
                    lambda s: acc.Gaussian(noise_multiplier=s).sampled(0.1).repeated(10),
                    epsilon=epsilon,
                    delta=delta,
                )
            )
            .sampled(0.1)
            .repeated(10)
        )
    return gaussian(epsilon, delta)


_MADE: dict[tuple[str, float], Any] = {}


@settings(max_examples=60, deadline=None)
@given(ASKS)
def test_what_was_asked_with_some_epsilons_reads_as_at_most_their_sum_and_never_less_than_before(
    asks: list[tuple[float, str]],
) -> None:
    rule: acc.filters.BudgetFilter = acc.Filter(epsilon=1, delta=1e-6)
    spent, total, reading = rule.start(), Fraction(0), 0.0
    for epsilon, kind in asks:
        delta = caps.share(epsilon, of=acc.Filter(epsilon=1, delta=1e-6))
        key = (kind, epsilon)
        event = _MADE[key] = _MADE.get(key) or made(kind, epsilon, delta)
        try:
            spent = after(rule, spent, event, RequestedPrice(epsilon, delta))
        except BudgetExceeded:
            assert total + Fraction(epsilon) > rule.total
            continue
        total += Fraction(epsilon)
        assert reading <= rule.used(spent) <= float(total) * (1 + 1e-9)
        reading = rule.used(spent)
    assert reading <= 1 + 1e-9


def test_no_hint_is_needed_for_a_reading_near_what_would_have_been_asked() -> None:
    rule = acc.Filter(epsilon=20, delta=1e-5)
    delta = caps.share(0.1, of=rule)
    spent = after(rule, rule.start(), gaussian(0.1, delta), None)
    assert 0.09 < rule.used(spent) < 0.105


def test_pure_budgets_and_other_filters_are_charged_as_before() -> None:
    event = acc.Gaussian(noise_multiplier=10.0)
    rule = acc.ZCDPFilter(rho=1)
    assert caps.choose(rule, rule.start(), event) is event
    assert caps.choose(acc.Filter(epsilon=1), acc.Filter(epsilon=1).start(), event) is event
    assert acc.ZCDPFilter(rho=1).price(Capped(event=event, epsilon=1.0, delta=1e-6)) == acc.ZCDPFilter(
        rho=1
    ).price(event)


def test_a_cap_leaves_room_for_the_last_digits_of_what_was_certified(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another processor, or version of numpy, certifies an epsilon with other last digits: charges that are
    counted again there must hold."""
    rule = acc.Filter(epsilon=3, delta=1e-5)
    event = gaussian(0.5, 1e-6)
    for asked in (None, RequestedPrice(2.0, 1e-6)):
        cap = caps.choose(rule, rule.start(), event, asked)
        assert isinstance(cap, Capped)
        certified = lanes.certified_epsilon(event, cap.delta)
        assert certified * (1 + 5e-10) <= cap.epsilon <= certified * (1 + 2e-9)
        with monkeypatch.context() as elsewhere:
            elsewhere.setattr(lanes, "certified_epsilon", lambda event, delta, at=certified: at * (1 + 1e-12))
            assert cap.holds
