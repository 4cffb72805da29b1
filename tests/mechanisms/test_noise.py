"""Noise: the right price, the stated error, one draw an entry, and no wrapping."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from discreet import accounting
from discreet._errors import InvalidInput
from discreet._public import REPLACE
from discreet._registry import from_json, to_json
from discreet.accounting import DiscreteGaussian, DiscreteLaplace, VectorDiscreteGaussian
from discreet.mechanisms import GridGaussian, GridLaplace, IntegerGaussian, IntegerLaplace, Sensitivity
from discreet.mechanisms import noise as noise_tails
from discreet.mechanisms.additive import grid_l1, grid_l2, round_to_grid
from discreet.sampling import SeededEntropy
from tests.contracts.audit import CountingEntropy

from ..loops import for_each

HALF = Fraction(1, 2)
NOISES: list[Any] = [
    IntegerLaplace(scale=Fraction(1, 3), sensitivity=1),
    IntegerLaplace.for_epsilon(0.3, sensitivity=4),
    IntegerLaplace.for_epsilon(1, sensitivity=1000),
    IntegerGaussian(variance=Fraction(1, 5)),
    IntegerGaussian(variance=Fraction(30), linf=2, l0=3),
    IntegerGaussian.for_rho(0.5, sensitivity=500),
    GridLaplace.for_epsilon(1, step=Fraction(1, 10), sensitivity=2),
    GridGaussian.for_rho(0.5, step=Fraction(1, 4), sensitivity=3, entries=5),
]
noises = pytest.mark.parametrize("noise", NOISES, ids=repr)


@noises
@pytest.mark.parametrize("entries", [1, 8])
def test_the_error_covers_as_often_as_it_says_and_not_much_more(noise: Any, entries: int) -> None:
    """Bound: binomial tails at 1e-10.

    Tightness: one step less would cover too rarely, up to the same tails.
    """
    runs, confidence = 4000, 0.9
    draws = np.abs(noise(np.zeros((runs, entries)).astype(int), entropy=SeededEntropy(1)).astype(float)).max(
        axis=1
    )
    bound = float(noise.error(confidence, entries=entries))
    covered = int((draws <= bound).sum())
    assert stats.binom.cdf(covered, runs, confidence) > 1e-10
    step = float(getattr(noise, "step", 1))
    slack = 1.5 * step if hasattr(noise, "step") else step  # a grid's bound includes half a step of rounding
    fewer = int((draws <= bound - slack - 1e-9).sum())
    assert bound == 0 or stats.binom.sf(fewer, runs, confidence) > 1e-10


@noises
def test_the_deviation_is_that_of_the_draws(noise: Any) -> None:
    """Chebyshev on the mean of squares would be loose; the fourth moment of both laws is at most 7 squared
    variances here."""
    runs = 40_000
    draws = noise(np.zeros(runs, int), entropy=SeededEntropy(2)).astype(float)
    mean_square, expected = float(np.mean(draws**2)), noise.standard_deviation**2
    kurtosis = float(np.mean(draws**4)) / mean_square**2
    assert abs(mean_square - expected) < 7 * expected * math.sqrt(max(kurtosis - 1, 1) / runs)


def test_exact_variances() -> None:
    with mpmath.workdps(40):
        for scale in (Fraction(1, 10), Fraction(1), Fraction(7, 2), Fraction(10**6)):
            p = mpmath.exp(-mpmath.mpf(scale.denominator) / scale.numerator)
            exact = 2 * p / (1 - p) ** 2
            assert abs(IntegerLaplace(scale=scale).mean_squared_error / exact - 1) < 1e-14
        for variance in (Fraction(1, 20), Fraction(1, 2), Fraction(3), Fraction(20)):
            weights = {
                k: mpmath.exp(-mpmath.mpf(k * k * variance.denominator) / (2 * variance.numerator))
                for k in range(-300, 301)
            }
            exact = mpmath.fsum(k * k * w for k, w in weights.items()) / mpmath.fsum(weights.values())
            assert abs(IntegerGaussian(variance=variance).mean_squared_error / exact - 1) < 1e-14
            assert IntegerGaussian(variance=variance).mean_squared_error <= variance


@given(st.fractions(Fraction(1, 20), 200), st.floats(0.01, 0.999999), st.integers(1, 1000))
def test_the_laplace_error_is_the_smallest_that_holds(
    scale: Fraction, confidence: float, entries: int
) -> None:
    t = IntegerLaplace(scale=scale).error(confidence, entries=entries)
    with mpmath.workdps(40):
        p = mpmath.exp(-mpmath.mpf(scale.denominator) / scale.numerator)

        def covered(bound: int) -> mpmath.mpf:
            return (1 - 2 * p ** (bound + 1) / (1 + p)) ** entries

        assert covered(t) >= mpmath.mpf(confidence) * (1 - mpmath.mpf(10) ** -30)
        assert t == 0 or covered(t - 1) < confidence


@pytest.mark.parametrize(
    "variance", [Fraction(1, 7), Fraction(9, 4), Fraction(400), Fraction(65**2), Fraction(10**5)]
)
@pytest.mark.parametrize("t", [0, 1, 5, 40, 100, 700])
def test_the_gaussian_tail_is_never_too_small_and_close(variance: Fraction, t: int) -> None:
    v = float(variance)
    k = np.arange(-int(40 * math.sqrt(v)) - 40, int(40 * math.sqrt(v)) + 41, dtype=np.float64)
    weights = np.exp(-(k**2) / (2 * v))
    exact = math.fsum(weights[np.abs(k) > t]) / math.fsum(weights)
    bound = noise_tails.gaussian_tail(variance, t)
    assert exact * (1 - 1e-12) <= bound
    if v <= 64**2:
        assert bound <= exact * (1 + 1e-9) + 1e-300
    elif t + 0.5 > math.sqrt(v):
        assert bound <= exact * (1 + 0.05)


def test_sums_of_laplace_noise_stay_within_their_bound() -> None:
    runs, terms = 2000, 50
    draws = IntegerLaplace(scale=Fraction(5))(np.zeros((runs, terms), int), entropy=SeededEntropy(3)).sum(
        axis=1
    )
    bound = noise_tails.laplace_sum_error(Fraction(5), terms, 0.1)
    covered = int((np.abs(draws) <= bound).sum())
    assert stats.binom.cdf(covered, runs, 0.9) > 1e-10
    assert bound < 2 * stats.norm.isf(0.05) * math.sqrt(terms * 2) * 5


def test_the_moments_behind_sums_of_laplace_noise_are_bounded_from_above_and_closely() -> None:
    for scale in (Fraction(1, 20_000), Fraction(1, 7), Fraction(6), Fraction(10**9), Fraction(10**40)):
        for theta in (0.95, 0.5, 1e-3):
            with mpmath.workdps(400):
                p = mpmath.exp(-mpmath.mpf(scale.denominator) / scale.numerator)
                x = mpmath.exp(mpmath.mpf(theta) * scale.denominator / scale.numerator)
                exact = (1 - p) ** 2 / ((1 - p * x) * (1 - p / x))
                bound = noise_tails._laplace_mgf_above(scale, Fraction(theta))
                bound = mpmath.mpf(bound.numerator) / bound.denominator
                assert exact <= bound <= exact * (1 + 1e-12)


# --- prices -------------------------------------------------------------------------------------------------


def test_discrete_noise_is_priced_by_its_own_event() -> None:
    assert IntegerLaplace(scale=Fraction(10), sensitivity=3).event == DiscreteLaplace(
        scale=Fraction(10), sensitivity=3
    )
    assert IntegerGaussian(variance=Fraction(9), linf=2).event == DiscreteGaussian(
        variance=Fraction(9), sensitivity=2
    )
    vector = IntegerGaussian(variance=Fraction(9), linf=2, l0=5)
    assert vector.event == DiscreteGaussian(variance=Fraction(9), sensitivity=2).repeated(5)
    tight = IntegerGaussian(variance=Fraction(9), linf=2, l0=5, l2_squared=7)
    assert tight.event == VectorDiscreteGaussian(variance=Fraction(9), l2_squared=7)
    assert IntegerGaussian(variance=Fraction(9), linf=5, l2_squared=10).event.sensitivity == 3
    assert IntegerLaplace(scale=1, neighbors="replace").event.neighbors is REPLACE


def test_charging_the_continuous_price_would_be_below_the_truth() -> None:
    """100 releases of discrete Laplace, scale 10 at sensitivity 1: the exact delta at the continuous rule's
    epsilon is above 1e-6.

    At sensitivity 1 the loss of one draw is +-1/10 with odds e^(1/10): 100 of them are a binomial law, summed
    here exactly.
    """

    def delta_of_discrete(epsilon: mpmath.mpf) -> mpmath.mpf:
        keep = mpmath.exp(mpmath.mpf(1) / 10) / (1 + mpmath.exp(mpmath.mpf(1) / 10))
        total = mpmath.mpf(0)
        for k in range(101):
            loss = mpmath.mpf(2 * k - 100) / 10
            if loss > epsilon:
                total += (
                    mpmath.binomial(100, k)
                    * keep**k
                    * (1 - keep) ** (100 - k)
                    * (1 - mpmath.exp(epsilon - loss))
                )
        return total

    with mpmath.workdps(40):
        assert (
            delta_of_discrete(mpmath.mpf("4.69266741")) > 1.2e-6
        )  # what the continuous Laplace would charge at delta 1e-6
        assert delta_of_discrete(mpmath.mpf("4.7746")) <= 1e-6 * (1 + 1e-4) + 1e-9
        assert delta_of_discrete(mpmath.mpf("4.7745")) > 1e-6 * (1 - 1e-3)
    event = IntegerLaplace.for_epsilon(Fraction(1, 10)).event.repeated(100)
    assert not any(isinstance(part, accounting.Laplace) for part in accounting.events.leaves(event))


def test_targets_are_met_exactly() -> None:
    assert accounting.basic(
        IntegerLaplace.for_epsilon(Fraction(1, 3), sensitivity=7).event
    ).value == pytest.approx(1 / 3)
    assert IntegerLaplace.for_epsilon(Fraction(1, 3), sensitivity=7).scale == 21
    moved = Sensitivity(linf=2, l0=3)
    assert IntegerLaplace.for_epsilon(1, sensitivity=moved).sensitivity == 6
    for rho in (1e-6, 0.5, Fraction(1, 3), 40):
        assert accounting.zcdp(IntegerGaussian.for_rho(rho, sensitivity=moved).event).value == pytest.approx(
            float(rho)
        )
        laplace = IntegerLaplace.for_rho(rho, sensitivity=moved)
        assert accounting.zcdp(laplace.event).value <= float(rho) * (1 + 1e-12)
        assert accounting.zcdp(laplace.event).value == pytest.approx(float(rho))
    assert IntegerLaplace.for_privacy(epsilon=2, delta=1e-6).scale == HALF


@given(st.integers(0, 5), st.integers(0, 5), st.integers(1, 5), st.integers(1, 5))
def test_noise_covers_only_what_its_price_is_right_for(
    linf: int, l0: int, own_linf: int, own_l0: int
) -> None:
    moved = Sensitivity(linf=linf, l0=l0)
    gaussian = IntegerGaussian(variance=Fraction(4), linf=own_linf, l0=own_l0)
    if gaussian.covers(moved):
        assert linf <= own_linf
        assert l0 <= own_l0 or linf == 0
    assert IntegerLaplace(scale=Fraction(4), sensitivity=own_linf).covers(moved) == (linf * l0 <= own_linf)


# --- reals on a grid ----------------------------------------------------------------------------------------

reals = st.fractions(-50, 50, max_denominator=97)


@given(
    st.lists(st.tuples(reals, reals), min_size=1, max_size=6),
    st.fractions(Fraction(1, 20), 5, max_denominator=50),
)
def test_rounding_pushes_neighbors_apart_by_at_most_what_is_priced(pairs: list[Any], step: Fraction) -> None:
    first, second = (round_to_grid(np.array(side, dtype=object), step) for side in zip(*pairs, strict=True))
    moves = [abs(int(a) - int(b)) for a, b in zip(first, second, strict=True)]
    apart = [abs(a - b) for a, b in pairs]
    entries = max(1, sum(d > 0 for d in apart))
    if sum(apart) == 0:
        assert sum(moves) == 0
        return
    assert sum(moves) <= grid_l1(sum(apart) / step, entries)
    l2_up = noise_tails.sqrt_up(sum(d * d for d in apart))
    s = grid_l2(l2_up / step, entries)
    assert max(moves) <= s.linf
    assert s.l2_squared is not None
    assert sum(m * m for m in moves) <= s.l2_squared


def test_the_rounding_term_is_needed() -> None:
    """Two entries that move by a little each can both cross an edge: ceil(l1 / step) alone would be too
    small."""
    step, tiny = Fraction(1), Fraction(1, 10)
    before = round_to_grid([HALF - tiny / 2, HALF - tiny / 2], step)
    after = round_to_grid([HALF, HALF], step)
    assert int(np.abs(after - before).sum()) == 2 == grid_l1(tiny / step, 2)
    assert math.ceil(tiny / step) == 1


def test_known_bounds_of_each_entry_make_a_grid_cheaper() -> None:
    """Three entries that move by 1 each, in steps of 1/10: exactly 30 steps, without a rounding term."""
    loose = GridLaplace.for_epsilon(1, step=Fraction(1, 10), sensitivity=3, entries=3)
    tight = GridLaplace.for_epsilon(1, step=Fraction(1, 10), sensitivity=3, entries=3, linf=1)
    assert (loose.event.sensitivity, tight.event.sensitivity) == (32, 30)
    product = GridGaussian.for_rho(1, step=Fraction(1, 10), sensitivity=2, entries=3, linf=1)
    assert product.event == DiscreteGaussian(variance=Fraction(150), sensitivity=10).repeated(3)
    assert GridLaplace.for_rho(Fraction(1, 2), step=1, sensitivity=3).scale == 3
    assert GridLaplace.for_privacy(epsilon=1, delta=0.1, step=1, sensitivity=3).scale == 3


def test_a_grid_release_is_a_multiple_of_its_step() -> None:
    noise = GridGaussian.for_privacy(epsilon=1, delta=1e-6, step=Fraction(1, 8), sensitivity=1)
    values = noise([0.1, 0.2, -7.77], entropy=SeededEntropy(4))
    assert (values * 8 == np.round(values * 8)).all()
    assert noise.on_integers.variance * Fraction(1, 64) == noise.variance


# --- shapes, sizes, bad input -------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", NOISES[:6], ids=repr)
def test_every_entry_has_its_own_draw(noise: Any) -> None:
    wide = (
        replace(noise, scale=Fraction(10**9))
        if isinstance(noise, IntegerLaplace)
        else replace(noise, variance=Fraction(10**18))
    )
    draws = wide(np.zeros((20, 30), int), entropy=SeededEntropy(5))
    assert draws.shape == (20, 30)
    assert len(set(draws.ravel().tolist())) > 590  # of 600; a broadcast draw gives 1, 20 or 30


@noises
def test_scalars_vectors_and_empty_arrays_keep_their_shape(noise: Any) -> None:
    assert np.shape(noise(5, entropy=SeededEntropy(6))) == ()
    assert np.shape(noise([5, 6], entropy=SeededEntropy(6))) == (2,)
    assert np.shape(noise(np.zeros((0,), int), entropy=SeededEntropy(6))) == (0,)


def test_nothing_wraps_at_64_bits() -> None:
    top = np.array([2**63 - 1, -(2**63)], dtype=np.int64)
    noisy = IntegerLaplace(scale=Fraction(10**15))(top, entropy=SeededEntropy(7))
    assert all(abs(int(v) - int(t)) < 10**17 for v, t in zip(noisy, top, strict=True))
    huge = np.array([2**200], dtype=object)
    assert abs(int(IntegerGaussian(variance=Fraction(4))(huge, entropy=SeededEntropy(7))[0]) - 2**200) < 100
    wide = IntegerLaplace(scale=Fraction(2**80))(np.zeros(50, int), entropy=SeededEntropy(7))
    assert max(abs(int(v)) for v in wide) > 2**70


@noises
def test_descriptions_rebuild_noise(noise: Any) -> None:
    again = from_json(to_json(noise))
    assert again == noise
    assert again.event == noise.event


@for_each(
    ("build", "fact"),
    [
        (lambda: IntegerLaplace(scale=0), "scale must be above zero"),
        (lambda: IntegerLaplace(scale=-1), "scale must be above zero"),
        (lambda: IntegerLaplace(scale=math.inf), "scale must be finite"),
        (lambda: IntegerLaplace(scale=math.nan), "scale must be a number"),
        (lambda: IntegerLaplace(scale=1, sensitivity=-1), "sensitivity must be an integer of at least 0"),
        (lambda: IntegerLaplace(scale=1, sensitivity=1.5), "sensitivity must be an integer"),
        (
            lambda: IntegerLaplace(scale=1, neighbors="swap"),
            "neighbors must be one of add_remove, replace, zero_out",
        ),
        (lambda: IntegerLaplace.for_epsilon(0), "epsilon must be above zero"),
        (lambda: IntegerLaplace.for_epsilon(math.inf), "epsilon must be finite"),
        (
            lambda: IntegerLaplace.for_epsilon(1, sensitivity=0),
            "under this relation nobody's row moves the value",
        ),
        (lambda: IntegerLaplace.for_rho(-1), "rho must be above zero"),
        (lambda: IntegerLaplace.for_privacy(epsilon=1, delta=2), "delta must be between 0 and 1"),
        (lambda: IntegerGaussian(variance=0), "variance must be above zero"),
        (lambda: IntegerGaussian(variance=1, linf=-2), "linf must be an integer of at least 0"),
        (lambda: IntegerGaussian.for_rho(0), "rho must be above zero"),
        (lambda: IntegerGaussian.for_privacy(epsilon=1, delta=0), "delta must be strictly between 0 and 1"),
        (lambda: IntegerGaussian.for_privacy(epsilon=math.nan, delta=0.1), "epsilon must be a number"),
        (lambda: GridLaplace.for_epsilon(1, step=0, sensitivity=1), "step must be above zero"),
        (lambda: GridLaplace.for_epsilon(1, step=1, sensitivity=-1), "sensitivity must be above zero"),
        (
            lambda: GridLaplace.for_epsilon(1, step=1, sensitivity=1, entries=0),
            "entries must be an integer of at least 1",
        ),
        (lambda: GridGaussian.for_rho(1, step=1, sensitivity=math.inf), "sensitivity must be finite"),
        (lambda: GridGaussian.for_rho(1, step=1, sensitivity=1, linf=-1), "linf must be above zero"),
        (lambda: GridLaplace(step=1, scale=0, sensitivity=1), "scale must be above zero"),
        (lambda: IntegerLaplace(scale=1).error(1.0), "confidence must be strictly between 0 and 1"),
        (lambda: IntegerLaplace(scale=1).error(0.5, entries=0), "entries must be an integer of at least 1"),
    ],
)
def test_bad_parameters_are_refused(build: Any, fact: str) -> None:
    with pytest.raises(InvalidInput, match=fact):
        build()


@pytest.mark.parametrize("values", [[0.5], [math.nan], ["a"], [True], [None], np.array([1 + 2j])])
def test_what_is_not_an_integer_is_refused_and_nothing_is_drawn(values: Any) -> None:
    entropy = CountingEntropy()
    for noise in NOISES[:6]:
        with pytest.raises(InvalidInput, match="integers are needed, got an array of"):
            noise(values, entropy=entropy)
    assert entropy.drawn == 0


@pytest.mark.parametrize(
    "values", [[math.nan], [math.inf], ["a"], [None], [-math.inf, 1.0], np.array([1 + 2j])]
)
def test_what_is_not_a_finite_real_is_refused_on_a_grid_and_nothing_is_drawn(values: Any) -> None:
    entropy = CountingEntropy()
    for noise in NOISES[6:]:
        with pytest.raises(InvalidInput, match="finite real numbers are needed"):
            noise(values, entropy=entropy)
    assert entropy.drawn == 0


@for_each("sigma", [65, 100, 333, 2000])
@for_each("confidence", [0.1, 0.5, 0.69, 0.95, 0.9999, 1 - 1e-12])
def test_the_gaussian_error_of_wide_noise_is_at_most_one_too_large(sigma: int, confidence: float) -> None:
    k = np.arange(0, 12 * sigma, dtype=np.float64)
    weights = np.exp(-(k**2) / (2 * sigma**2))
    weights[1:] *= 2
    beyond = (
        np.append(np.cumsum(weights[::-1])[::-1][1:], 0.0) / weights.sum()
    )  # P(|X| > k), small terms added first
    smallest = int(np.argmax(beyond <= 1 - confidence))
    assert smallest <= IntegerGaussian(variance=Fraction(sigma**2)).error(confidence) <= smallest + 1


def test_square_roots_are_rounded_in_their_direction_and_as_closely_as_they_say():
    for exponent in (-400, -129, -128, -64, -1, 0, 1, 70, 301):
        for x in (Fraction(2) ** exponent, Fraction(3) ** exponent, 1 + Fraction(2) ** exponent):
            up, down = noise_tails.sqrt_up(x), noise_tails.sqrt_down(x)
            assert down**2 <= x <= up**2
            assert max(0, up - Fraction(2) ** -63) ** 2 <= x
            assert (down / (1 - Fraction(2) ** -64)) ** 2 >= x


def test_the_type_of_what_leaves_is_a_function_of_what_leaves() -> None:
    types = set()
    for noise in (IntegerLaplace(scale=1000), IntegerGaussian(variance=10**6)):
        for value in (2**62 - 5000, 2**62 - 1, 2**62, 2**62 + 5000):
            for seed in range(20):
                noisy = noise([value, 1], entropy=SeededEntropy(seed))
                types.add((value < 2**62, noisy.dtype.kind))
                assert (noisy.dtype == np.int64) == (max(map(abs, noisy.tolist())) < 2**62)
    assert len(types) == 4


def test_numpys_own_integers_in_an_array_of_objects_do_not_wrap() -> None:
    noise = IntegerLaplace(scale=1000)
    drawn = noise(np.array([0, 0], dtype=object), entropy=SeededEntropy(5))
    shifted = noise(np.array([np.int8(120), np.uint8(200)], dtype=object), entropy=SeededEntropy(5))
    assert (shifted - drawn).tolist() == [120, 200]


def test_a_multiple_of_the_step_beyond_floats_is_the_largest_float() -> None:
    noise = GridLaplace.for_epsilon(0.01, step=Fraction(2**1021, 3), sensitivity=2**1022)
    drawn = noise(np.zeros(50), entropy=SeededEntropy(1))
    assert np.isfinite(drawn).all()
    assert np.abs(drawn).max() == np.finfo(np.float64).max


def test_what_is_no_number_of_the_grid_is_refused_by_its_name() -> None:
    with pytest.raises(InvalidInput, match="finite real"):
        round_to_grid(np.array([1.5], dtype=np.clongdouble), HALF)
    if np.dtype(np.longdouble).itemsize > 8:
        with pytest.raises(InvalidInput, match="finite real"):
            round_to_grid(np.array([1.5], dtype=np.longdouble), HALF)
    with pytest.raises(InvalidInput, match="linf must be a number"):
        GridLaplace.for_epsilon(1, step=1, sensitivity=1, linf="a")


def test_noise_of_the_l2_norm_would_be_shorter_by_a_factor_below_the_root_of_two() -> None:
    """Why it is not here: density exp(-|y|_2 / s) has a length of Gamma(d) s; Laplace noise for the same pure price
    has the scale sqrt(d) s. And of Laplace draws, rejection keeps a share that falls exponentially."""
    rng = np.random.default_rng(1)
    for d, kept in ((1, 1.0), (2, math.pi / 4), (10, 1 / 11), (20, 1 / 170)):
        length = rng.gamma(d, size=20_000).mean()
        laplace = np.linalg.norm(rng.laplace(scale=math.sqrt(d), size=(20_000, d)), axis=1).mean()
        assert 0.98 <= laplace / length <= math.sqrt(2) * 1.01
        log_share = math.log(2) + d / 2 * math.log(math.pi) + math.lgamma(d) - math.lgamma(d / 2)
        assert math.exp(log_share - d * math.log(2 * math.sqrt(d))) == pytest.approx(kept, rel=0.05)
