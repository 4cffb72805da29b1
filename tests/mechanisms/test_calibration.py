"""Calibration against mpmath, published numbers, and exact sums: never optimistic, and close."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discreet import accounting
from discreet._errors import InvalidInput
from discreet.mechanisms import (
    IntegerGaussian,
    Sensitivity,
    analytic_gaussian,
    classical_gaussian,
    discrete_gaussian,
    noise_scales,
)
from discreet.mechanisms.noise_scales import discrete_gaussian_delta

from ..loops import for_each

epsilons = st.floats(1e-3, 20)
deltas = st.floats(1e-12, 0.3)


def exact_gaussian_delta(epsilon: Any, sigma: Any) -> mpmath.mpf:
    """By the definition of the hockey-stick divergence, not by the formula under test: P(loss > e) - e^e
    Q(loss > e)."""
    epsilon, sigma = mpmath.mpf(epsilon), mpmath.mpf(sigma)
    cut = (
        epsilon * sigma**2 - mpmath.mpf(1) / 2
    )  # x >= cut has loss >= epsilon, for N(0, s²) against N(-1, s²)
    upper = mpmath.erfc(cut / (sigma * mpmath.sqrt(2))) / 2
    lower = mpmath.erfc((cut + 1) / (sigma * mpmath.sqrt(2))) / 2
    return upper - mpmath.exp(epsilon) * lower


def exact_discrete_delta(epsilon: Any, variance: Fraction, sensitivity: int, entries: int = 1) -> mpmath.mpf:
    """Straight from the definition: the sum of max(0, p(x) - e^epsilon p(x - shift)) over all integers."""
    reach = 14 * math.isqrt(int(variance) + 1) + 3 * sensitivity + 60
    half = mpmath.mpf(variance.denominator) / (2 * variance.numerator)
    weights = [mpmath.exp(-half * k * k) for k in range(-reach, reach + 1)]
    total = mpmath.fsum(weights)
    p = [w / total for w in weights]
    if entries == 2:  # the loss depends on the sum of the two draws
        p = [
            mpmath.fsum(p[i] * p[s - i] for i in range(max(0, s - 2 * reach), min(s, 2 * reach) + 1))
            for s in range(4 * reach + 1)
        ]
        return _hockey_stick_of_sum(p, mpmath.mpf(epsilon), variance, sensitivity, 2 * reach)
    grow = mpmath.exp(mpmath.mpf(epsilon))
    shifted = [*([mpmath.mpf(0)] * sensitivity), *p[:-sensitivity]]
    return mpmath.fsum(max(mpmath.mpf(0), a - grow * b) for a, b in zip(shifted, p, strict=True))


def _hockey_stick_of_sum(p: list[Any], epsilon: Any, variance: Fraction, k: int, middle: int) -> mpmath.mpf:
    total = mpmath.mpf(0)
    for index, weight in enumerate(p):
        loss = (
            (mpmath.mpf(2 * k * k) + 2 * k * (index - middle))
            * variance.denominator
            / (2 * variance.numerator)
        )
        if loss > epsilon:
            total += weight * (1 - mpmath.exp(epsilon - loss))
    return total


def test_balle_and_wang_at_sigma_1() -> None:
    """arXiv:1805.06530, Theorem 8: sigma 1 at delta 1e-5 has epsilon 4.37717809568122."""
    assert analytic_gaussian(4.37717809568122, 1e-5) == pytest.approx(1, abs=1e-12)
    with mpmath.workdps(50):
        root = mpmath.findroot(lambda e: exact_gaussian_delta(e, 1) - mpmath.mpf("1e-5"), 4.377)
        assert abs(root - mpmath.mpf("4.37717809568122")) < 1e-13


@settings(max_examples=40, deadline=None)
@given(epsilons, deltas, st.floats(0.01, 1000))
def test_the_analytic_gaussian_is_enough_and_a_billionth_less_is_not(
    epsilon: float, delta: float, sensitivity: float
) -> None:
    sigma = mpmath.mpf(analytic_gaussian(epsilon, delta, sensitivity))
    with mpmath.workdps(60):
        assert exact_gaussian_delta(epsilon, sigma / mpmath.mpf(sensitivity)) <= mpmath.mpf(delta)
        assert exact_gaussian_delta(
            epsilon, sigma * (1 - mpmath.mpf(10) ** -9) / mpmath.mpf(sensitivity)
        ) > mpmath.mpf(delta)


def test_gaussian_delta_to_thirty_digits() -> None:
    with mpmath.workdps(60):
        for epsilon in (0.0, 0.1, 1.0, 7.5):
            for sigma in (0.3, 1.0, 20.0):
                exact = exact_gaussian_delta(epsilon, sigma)
                inner = noise_scales._gaussian_delta(mpmath.mpf(epsilon), mpmath.mpf(sigma))
                assert abs(inner - exact) < mpmath.mpf(10) ** -30
                claimed = noise_scales.gaussian_delta(epsilon, sigma)
                assert exact <= claimed <= exact * (1 + mpmath.mpf(10) ** -14) + mpmath.mpf(10) ** -300


def test_the_classical_formula_is_enough_below_one_wasteful_and_refused_beyond() -> None:
    for epsilon in (0.1, 0.5, 0.99):
        for delta in (1e-2, 1e-6, 1e-10):
            classical = classical_gaussian(epsilon, delta)
            assert classical == pytest.approx(math.sqrt(2 * math.log(1.25 / delta)) / epsilon, rel=1e-12)
            assert analytic_gaussian(epsilon, delta) < classical
    for epsilon in (1, 1.0, 3):
        with pytest.raises(InvalidInput, match="analytic_gaussian"):
            classical_gaussian(epsilon, 1e-5)


def test_the_classical_formula_fails_for_large_epsilon() -> None:
    """Why it is refused: at epsilon 10 and delta 0.01 it would give too little noise (Balle & Wang 2018,
    section 2)."""
    with mpmath.workdps(40):
        sigma = mpmath.sqrt(2 * mpmath.log(mpmath.mpf("1.25") / mpmath.mpf("0.01"))) / 10
        assert exact_gaussian_delta(10, sigma) > mpmath.mpf("0.01")


@settings(max_examples=30, deadline=None)
@given(st.fractions(Fraction(1, 10), 40, max_denominator=10), st.integers(1, 6), st.floats(0, 5))
def test_the_discrete_delta_is_an_upper_bound_and_tight(
    variance: Fraction, sensitivity: int, epsilon: float
) -> None:
    with mpmath.workdps(40):
        exact = exact_discrete_delta(epsilon, variance, sensitivity)
        claimed = discrete_gaussian_delta(epsilon, variance, sensitivity)
        assert exact <= claimed * (1 + mpmath.mpf(10) ** -30) + mpmath.mpf(10) ** -60
        if exact > 1e-25:
            assert claimed <= exact * (1 + mpmath.mpf(10) ** -9)


@pytest.mark.parametrize(
    ("sigma", "d", "epsilon"), [(4200, 1, 0.001), (4200, 1000, 1.0), (5000, 20_000, 3.0), (9000, 7, 0.0)]
)
def test_wide_noise_is_bounded_by_an_integral_that_is_close_to_the_sum(
    sigma: int, d: int, epsilon: float
) -> None:
    variance = Fraction(sigma**2)
    y0 = Fraction(epsilon) * variance / d - Fraction(d, 2)
    summed = noise_scales._summed_delta(variance, d, y0)
    assert sigma > noise_scales._WIDEST_SUM
    bounded = discrete_gaussian_delta(epsilon, variance, d)
    assert summed * (1 - 1e-10) <= bounded <= summed * (1 + 1e-5)


@settings(max_examples=25, deadline=None)
@given(st.floats(0.05, 6), st.floats(1e-9, 0.1), st.integers(1, 4))
def test_the_discrete_gaussian_is_enough_and_a_millionth_less_is_not(
    epsilon: float, delta: float, d: int
) -> None:
    variance = discrete_gaussian(epsilon, delta, linf=d)
    assert discrete_gaussian_delta(epsilon, variance, d) <= delta
    assert discrete_gaussian_delta(epsilon, variance * (1 - Fraction(1, 10**6)), d) > delta


def test_the_discrete_gaussian_needs_about_the_continuous_noise() -> None:
    for epsilon, delta in ((0.1, 1e-6), (1, 1e-6), (1, 1e-12)):
        sigma = math.sqrt(discrete_gaussian(epsilon, delta, linf=100)) / 100
        assert sigma == pytest.approx(analytic_gaussian(epsilon, delta), rel=1e-4)


@pytest.mark.parametrize(
    ("epsilon", "variance"),
    [(0.5, Fraction(4)), (1.0, Fraction(9, 4)), (2.0, Fraction(1, 2)), (0.3, Fraction(1))],
)
def test_two_entries_are_bounded_by_one_wider_entry(epsilon: float, variance: Fraction) -> None:
    with mpmath.workdps(30):
        exact = exact_discrete_delta(epsilon, variance, 1, entries=2)
        claimed = noise_scales._product_delta(epsilon, variance, 1, 2)
    assert exact <= claimed
    if variance >= 2:
        assert claimed <= exact * (1 + 1e-6)


def test_vectors_need_no_more_than_zcdp_says_and_gain_from_the_exact_law() -> None:
    epsilon, delta = 1, 1e-6
    rho = noise_scales.zcdp_rho(epsilon, delta)
    for l0 in (2, 30, 1000):
        variance = discrete_gaussian(epsilon, delta, l0=l0)
        assert variance < Fraction(l0) / (2 * Fraction(rho))
        assert math.sqrt(variance) == pytest.approx(
            analytic_gaussian(epsilon, delta) * math.sqrt(l0), rel=1e-3
        )
    tight = discrete_gaussian(epsilon, delta, linf=3, l0=10, l2_squared=20)
    assert tight == Fraction(20) / (2 * Fraction(rho))


@settings(max_examples=25, deadline=None)
@given(st.floats(1e-4, 3), st.floats(0.01, 20))
def test_the_zcdp_conversion_is_a_bound_for_the_gaussian_and_near_its_best_order(
    rho: float, epsilon: float
) -> None:
    claimed = noise_scales.zcdp_delta(rho, epsilon)
    assert noise_scales.gaussian_delta(epsilon, math.sqrt(1 / (2 * rho))) <= claimed * (1 + 1e-9)
    orders = 1 + np.logspace(-5, 6, 4000)
    logs = (orders - 1) * (orders * rho - epsilon) - np.log(orders - 1) + orders * np.log1p(-1 / orders)
    best = min(0.0, float(logs.min()))
    assert math.log(claimed) == pytest.approx(max(best, math.log(5e-324)), abs=1e-1)


@for_each("call", [analytic_gaussian, discrete_gaussian, classical_gaussian, noise_scales.zcdp_rho])
@for_each(
    ("epsilon", "delta"),
    [(0, 0.1), (-1, 0.1), (math.inf, 0.1), (math.nan, 0.1), (0.5, 0), (0.5, 1), (0.5, math.nan)],
)
def test_impossible_targets_are_refused(call: Any, epsilon: float, delta: float) -> None:
    with pytest.raises(InvalidInput, match=r"must be"):
        call(epsilon, delta)


def test_the_laplace_scale_is_exact() -> None:
    assert noise_scales.discrete_laplace(0.1, 3) == 3 / Fraction(0.1)
    for bad in (0, -1, math.inf, math.nan):
        with pytest.raises(InvalidInput, match="epsilon must be"):
            noise_scales.discrete_laplace(bad)


@pytest.mark.parametrize(("linf", "l0"), [(1, 1), (10, 1), (1, 5), (3, 40)])
@pytest.mark.parametrize(("epsilon", "delta"), [(1, 1e-6), (0.2, 1e-4), (4, 1e-9)])
def test_the_accountant_comes_to_the_same_price_by_another_route(
    linf: int, l0: int, epsilon: float, delta: float
) -> None:
    """Privacy loss distributions of the event, composed numerically, know nothing of the formulas used
    here."""
    noise = IntegerGaussian.for_privacy(
        epsilon=epsilon, delta=delta, sensitivity=Sensitivity(linf=linf, l0=l0)
    )
    lower, upper = accounting.bounds(noise.event, delta=delta)
    assert lower <= epsilon * (1 + 1e-9)
    assert epsilon * (1 - 1e-3) <= upper <= epsilon * (1 + 1e-3)


def test_integers_of_numpy_do_not_wrap_in_a_squared_sensitivity() -> None:
    assert discrete_gaussian(1, 1e-5, linf=np.int64(5 * 10**9)) == discrete_gaussian(1, 1e-5, linf=5 * 10**9)


@pytest.mark.parametrize(("epsilon", "delta"), [(1e-60, 1e-55), (1e-160, 1e-160)])
def test_the_analytic_rule_holds_where_its_two_terms_agree_in_more_digits_than_it_has(
    epsilon: float, delta: float
) -> None:
    sigma = analytic_gaussian(epsilon, delta)
    with mpmath.workdps(700):
        assert exact_gaussian_delta(epsilon, sigma) <= mpmath.mpf(delta)
        assert exact_gaussian_delta(epsilon, sigma * (1 - 1e-9)) > mpmath.mpf(delta)
    assert noise_scales.gaussian_delta(0, 10**60) == pytest.approx(1e-60 / math.sqrt(2 * math.pi), rel=1e-9)


def test_noise_wider_than_floats_is_refused() -> None:
    with pytest.raises(InvalidInput, match="wider than floats"):
        noise_scales._least(lambda noise: False, 1e-7)
    assert noise_scales._least(lambda noise: noise >= 3e200, 1e-7) == pytest.approx(3e200)


def test_the_zcdp_conversion_is_not_below_its_own_formula_at_orders_near_one() -> None:
    def log_delta(x: mpmath.mpf) -> mpmath.mpf:
        u = mpmath.exp(x)
        return u * ((1 + u) * 11 - mpmath.mpf(0.01)) - x - (1 + u) * mpmath.log1p(1 / u)

    with mpmath.workdps(40):
        low, high = mpmath.log(1e-6), mpmath.log(1e-4)
        for _ in range(120):
            left, right = low + (high - low) / 3, high - (high - low) / 3
            low, high = (low, right) if log_delta(left) <= log_delta(right) else (left, high)
        least = mpmath.exp(log_delta(low))
        assert least <= noise_scales.zcdp_delta(11, 0.01) <= least * (1 + 1e-11)


def test_extreme_parameters_of_the_discrete_gaussian_have_an_answer() -> None:
    assert discrete_gaussian_delta(1, Fraction(1, 10**400)) == 1.0
    assert discrete_gaussian_delta(1, 4, 10**12) == 1.0
    assert discrete_gaussian_delta(1e200, 1) == math.ulp(0.0)
    assert float(discrete_gaussian(1e200, 1e-5)) == pytest.approx(5e-201, rel=1e-6)


@pytest.mark.parametrize("delta", [None, "1e-5", True])
def test_a_delta_that_is_no_number_is_refused(delta: Any) -> None:
    for rule in (classical_gaussian, analytic_gaussian, discrete_gaussian):
        with pytest.raises(InvalidInput, match="delta must be a number"):
            rule(0.5, delta)
