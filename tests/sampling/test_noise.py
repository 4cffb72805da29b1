"""Geometric, discrete Laplace, discrete Gaussian: the law, and the bits of every path against arbitrary
precision."""

from __future__ import annotations

import functools
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr

from discreet.sampling import Entropy, SeededEntropy, _noise, discrete_gaussian, discrete_laplace, geometric
from discreet.sampling._noise import _Narrow, _Shape, _Wide

from ..loops import for_each
from .checks import (
    Scripted,
    assert_follows_cdf,
    assert_follows_pmf,
    assert_frequency,
    gaussian_pmf,
    laplace_cdf,
    words,
)

N = 100_000
ONES = 2**64 - 1


def laplace_shape(scale) -> _Shape:
    return _Shape(Fraction(0), 1 / Fraction(scale), signed=True)


def gaussian_shape(sigma) -> _Shape:
    return _Shape(1 / (2 * Fraction(sigma) ** 2), Fraction(0), signed=True)


# The law, on real entropy: a false alarm has probability at most 1e-9 a test.


@pytest.mark.parametrize("scale", [0.05, 0.5, 1, 10, 31.9, 32, 33, 100, 1e4, 1e9, 1e12, 1e30])
def test_discrete_laplace_has_its_law(scale):
    assert_follows_cdf(discrete_laplace(scale, N, Entropy()), laplace_cdf(scale))


@pytest.mark.parametrize(
    "x", [20, 2, Fraction(1, 3), Fraction(1, 31), Fraction(1, 40), Fraction(1, 10**6), 1e-12]
)
def test_geometric_has_its_law(x):
    assert_follows_cdf(
        geometric(x, N, Entropy()), lambda k: np.where(k < 0, 0, -np.expm1(-(k + 1) * float(x)))
    )


@pytest.mark.parametrize("sigma", [0.2, 0.5, 1, 3.7, 10])
def test_discrete_gaussian_has_its_law(sigma):
    assert_follows_pmf(discrete_gaussian(sigma, N, Entropy()), gaussian_pmf(sigma))


@pytest.mark.parametrize("sigma", [100, 127.9, 128, 1000, 1e4, 1e9, 1e12, 1e30])
def test_wide_discrete_gaussian_has_its_law(sigma):
    """Its cdf is Phi((k + 1/2) / sigma) to within 1 / sigma² (Euler-Maclaurin)."""
    samples = discrete_gaussian(sigma, N, Entropy())
    assert_follows_cdf(samples, lambda k: ndtr((k + 0.5) / sigma), known_to=1 / sigma**2)


def test_sigma_squared_may_have_an_irrational_root():
    assert_follows_pmf(discrete_gaussian(sigma_squared=2, n=N, entropy=Entropy()), gaussian_pmf(math.sqrt(2)))
    same = discrete_gaussian(sigma_squared=Fraction(9, 4), n=50, entropy=SeededEntropy(1))
    assert (same == discrete_gaussian(1.5, 50, SeededEntropy(1))).all()


@pytest.mark.parametrize("draw", [discrete_laplace, discrete_gaussian])
def test_low_bits_and_sign_of_wide_noise_are_fair(draw):
    samples = draw(1e9, N, Entropy())
    assert_frequency(int((samples < 0).sum()), N, 0.5)
    assert_follows_cdf(samples & 255, lambda k: np.clip((k + 1) / 256, 0, 1), known_to=1e-6)


def slope_samples(sampler, n=4_000_000):
    """Whether each draw lies in the inner half of its cell, at a scale with the steepest cells."""
    samples = sampler.draw(n, Entropy())
    size = np.where(samples < 0, -1 - samples, samples)
    return int(((size >> (sampler.shift - 1)) & 1 == 0).sum())


def inner_half(sampler) -> float:
    width = float(sampler.shape.linear) * 2**sampler.shift
    return math.expm1(-width / 2) / math.expm1(-width)


def test_the_slope_inside_a_cell_is_made_up_for():
    sampler = _Wide(laplace_shape(2**20))
    assert_frequency(slope_samples(sampler), 4_000_000, inner_half(sampler))


# Mutants: each must fail the check that the true sampler passes.


def test_a_cell_without_its_slope_is_noticed():
    sampler = _Wide(laplace_shape(2**20))
    expected = inner_half(sampler)
    sampler._settle = lambda words, entropy: (
        sampler_values(sampler, words, entropy),
        np.ones(len(words), bool),
    )
    with pytest.raises(AssertionError, match="expected a fraction of"):
        assert_frequency(slope_samples(sampler), 4_000_000, expected)


def sampler_values(sampler, words, entropy):
    return _Wide._settle(sampler, words, entropy)[0]


@pytest.mark.parametrize(
    ("mutant", "scale"),
    [
        (lambda s, n, e: discrete_laplace(s * 1.2, n, e), 10),
        (lambda s, n, e: discrete_laplace(s * 1.2, n, e), 1e9),
        (
            lambda s, n, e: (
                geometric(1 / Fraction(s), n, e) * (1 - 2 * (e.words(n) & np.uint64(1)).view(np.int64))
            ),
            10,
        ),
        (lambda s, n, e: np.rint(np.random.default_rng().laplace(0, s, n)), 0.5),
        (lambda s, n, e: np.floor(np.random.default_rng().laplace(0, s, n)), 10),
        (lambda s, n, e: discrete_gaussian(s, n, e), 10),
        (lambda s, n, e: abs(discrete_laplace(s, n, e)), 10),
    ],
    ids=["scale", "scale-wide", "zero-counted-twice", "rounded", "floored", "gaussian", "sign-lost"],
)
def test_laplace_mutants_fail(mutant, scale):
    with pytest.raises(AssertionError, match="the empirical cdf is"):
        assert_follows_cdf(mutant(scale, N, Entropy()), laplace_cdf(scale))


@pytest.mark.parametrize(
    ("mutant", "sigma"),
    [
        (lambda s, n, e: discrete_gaussian(s * 1.15, n, e), 3.7),
        (lambda s, n, e: np.rint(np.random.default_rng().normal(0, s, n)), 0.5),
        (lambda s, n, e: discrete_gaussian(sigma_squared=s, n=n, entropy=e), 3.7),
        (lambda s, n, e: discrete_laplace(s, n, e), 3.7),
    ],
    ids=["scale", "rounded", "variance-for-sigma", "laplace"],
)
def test_gaussian_mutants_fail(mutant, sigma):
    with pytest.raises(AssertionError, match="expected a fraction of"):
        assert_follows_pmf(mutant(sigma, N, Entropy()), gaussian_pmf(sigma))


# The tables: every threshold against arbitrary precision.


def true_thresholds(shape: _Shape, step: int, mirrored: bool, count: int) -> list[int]:
    with mpmath.workprec(400):

        def weight(j):
            cost = shape.cost(j * step)
            return mpmath.exp(-mpmath.mpf(cost.numerator) / cost.denominator)

        listed, j = [weight(0)], 1
        while len(listed) < count or listed[-1] > mpmath.mpf(2) ** -330:
            listed += [weight(j)] * (2 if mirrored else 1)
            j += 1
        total, running, found = mpmath.fsum(listed), mpmath.mpf(0), []
        for w in listed[:count]:
            running += w
            found.append(int(mpmath.floor(running / total * 2**64)))
        return found


def assert_certified(table, shape, step, mirrored):
    expected = true_thresholds(shape, step, mirrored, len(table.lows))
    assert table.lows.tolist() == expected
    assert table.highs.tolist() == expected
    assert expected[-1] == ONES


@settings(max_examples=25, deadline=None)
@given(st.fractions(min_value=Fraction(1, 15), max_value=20, max_denominator=1000), st.booleans())
def test_narrow_tables_hold_the_law_to_the_last_bit(scale, square):
    shape = gaussian_shape(scale) if square else laplace_shape(scale)
    assert_certified(_Narrow(shape).table, shape, 1, mirrored=True)


@pytest.mark.parametrize(
    "shape", [laplace_shape(33), gaussian_shape(Fraction(1234567, 11)), laplace_shape(10**30)]
)
def test_wide_tables_hold_the_law_to_the_last_bit(shape):
    sampler = _Wide(shape)
    assert_certified(sampler.table, shape, 1 << sampler.shift, mirrored=False)


@pytest.mark.parametrize("shape", [laplace_shape(10), gaussian_shape(3), laplace_shape(Fraction(1, 1000))])
def test_the_guide_agrees_with_the_thresholds_everywhere(shape):
    table = _Narrow(shape).table
    guide, bins = table.guide(), np.arange(1 << 16, dtype=np.uint64) << np.uint64(48)
    for prefixes in (bins, bins | np.uint64((1 << 48) - 1)):
        certain = np.searchsorted(table.lows, prefixes, side="right")
        assert (guide[guide >= 0] == certain[guide >= 0]).all()
    edges = np.unique(table.lows >> np.uint64(48)).astype(int)
    assert set(np.flatnonzero(guide < 0).tolist()) == set(edges.tolist())


# Bits beyond the first 64.


@settings(max_examples=40, deadline=None)
@given(st.integers(0, ONES), st.sampled_from([Fraction(1), Fraction(5), Fraction(1, 20), Fraction(700)]))
def test_geometric_tail_beyond_64_bits(more, x):
    """With U = 1 - v, the draw is floor(-ln(v) / x)."""
    entropy = Scripted(b"\xff\xff" + words(ONES, more), seed=more)
    found = int(_Narrow(_Shape(Fraction(0), x, signed=False)).draw(1, entropy)[0])
    with mpmath.workprec(300):
        scale = mpmath.mpf(x.denominator) / x.numerator
        largest = -mpmath.log(mpmath.mpf(2**64 - more - 1) / 2**128) * scale if more < ONES else mpmath.inf
        smallest = -mpmath.log(mpmath.mpf(2**64 - more) / 2**128) * scale
        assert mpmath.floor(smallest) <= found <= largest
        if found > mpmath.floor(smallest):
            assert entropy.drawn > 2 + 8 + 8  # the 128 bits left it open


def test_laplace_tail_beyond_64_bits_is_unbounded():
    """All ones for 320 bits: the size is at least what 2**-320 of tail allows."""
    found = int(_Narrow(laplace_shape(10)).draw(1, Scripted(b"\xff\xff" + words(*[ONES] * 5)))[0])
    assert abs(found) >= 10 * 320 * math.log(2) - 1


def test_an_undecided_threshold_is_decided_by_the_next_bits():
    shape = laplace_shape(10)
    table = _Narrow(shape).table
    with mpmath.workprec(400):
        q = mpmath.exp(-mpmath.mpf(1) / 10)
        true = int((1 - q) / (1 + q) * mpmath.mpf(2) ** 128)  # F of the first outcome, 0
    prefix, rest = true >> 64, true & ONES
    assert prefix == int(table.lows[0])
    for more, expected in ((0, 0), (rest - 1, 0), (rest + 1, 1), (ONES, 1)):
        assert table.resolve(np.array([prefix], np.uint64), Scripted(words(more))).tolist() == [expected]


# Wide laws: every decision recomputed from its bits.


def decode(sampler: _Wide, word: int, cell_rest: int, coin_rest: int) -> tuple[int, bool]:
    """(value, heads) for a word completed by 48 bits of cell and 37 bits of coin, in arbitrary precision."""
    cell = int(np.searchsorted(sampler.table.lows, np.uint64(word >> 48 << 48 | cell_rest), side="right"))
    k = (cell << sampler.shift) + word % (1 << sampler.shift)
    sign = word >> 31 & 1 if sampler.shape.signed else 0
    cost = sampler.shape.cost(k + sign) - sampler.shape.cost(cell << sampler.shift)
    coin = (word >> 32 & 0xFFFF) << 37 | coin_rest
    with mpmath.workprec(300):
        heads = mpmath.mpf(coin) / 2**53 < mpmath.exp(-mpmath.mpf(cost.numerator) / cost.denominator)
    return (-1 - k if sign else k), bool(heads)


WIDE = [
    laplace_shape(33),
    laplace_shape(10**6 + 1),
    gaussian_shape(200),
    gaussian_shape(10**9),
    _Shape(Fraction(0), Fraction(1, 5000), signed=False),
]


@pytest.mark.parametrize("shape", WIDE)
def test_settled_words_are_right_however_their_bits_go_on(shape):
    sampler = _Wide(shape)
    drawn = SeededEntropy(11).words(1500)
    edge = np.uint64((sampler.squeeze - 1) << 32)
    drawn = np.concatenate([drawn, (drawn & ~_noise._COIN) | edge])  # coins that only just pass
    out = np.empty(len(drawn), np.int64)
    hard, kept = sampler._fill(out, Scripted(drawn.tobytes()))
    assert (kept == drawn[hard]).all()
    for i in np.setdiff1d(np.arange(len(drawn)), hard).tolist():
        for cell_rest, coin_rest in ((0, 0), ((1 << 48) - 1, (1 << 37) - 1)):
            assert decode(sampler, int(drawn[i]), cell_rest, coin_rest) == (out[i], True)


@pytest.mark.parametrize("shape", [*WIDE, gaussian_shape(128), gaussian_shape(255), laplace_shape(10**30)])
def test_a_coin_called_sure_is_sure_in_the_steepest_easy_cell(shape):
    sampler = _Wide(shape)
    sure, cells = sampler._squeeze()
    last = min(cells, len(sampler.table.lows)) - 1
    crossing = shape.cost((last + 1) << sampler.shift) - shape.cost(last << sampler.shift)
    assert Fraction(sure, 1 << 16) <= 1 - crossing  # which is at most exp(-crossing)
    assert (sampler.bases >> sampler.offset_bits).max() <= last


@pytest.mark.parametrize("shape", WIDE)
@pytest.mark.parametrize("error", [2.0**-46, 2.0], ids=["floats", "certified"])
def test_unsettled_words_are_decided_as_in_arbitrary_precision(shape, error, monkeypatch):
    sampler = _Wide(shape)
    monkeypatch.setattr(_noise, "exp_coins", functools.partial(_noise.exp_coins, error=error))
    drawn, more = SeededEntropy(12).words(400), SeededEntropy(13).words(800)
    drawn[:200] |= np.uint64(0xFC00 << 32)  # coins that are nearly tails
    values, heads = sampler._settle(drawn, Scripted(more.tobytes()))
    for i in range(len(drawn)):
        cell_rest, coin_rest = int(more[i]) >> 16, int(more[len(drawn) + i]) >> 27
        assert decode(sampler, int(drawn[i]), cell_rest, coin_rest) == (values[i], heads[i])
    assert not heads.all()


@pytest.mark.parametrize("scale", [40, 1e9, 1e13, 1e30])
@pytest.mark.parametrize("draw", [discrete_laplace, discrete_gaussian])
def test_certified_and_float_paths_give_the_same_draws(draw, scale, monkeypatch):
    fast = draw(scale, 2000, SeededEntropy(3))
    monkeypatch.setattr(_noise, "exp_coins", functools.partial(_noise.exp_coins, error=2.0))
    assert (fast == draw(scale, 2000, SeededEntropy(3))).all()


def test_a_value_of_more_than_62_bits_turns_the_array_into_python_integers(monkeypatch):
    sampler = _Wide(laplace_shape(10**13))
    assert sampler.draw(100, SeededEntropy(1)).dtype == np.int64
    settle = type(sampler.table).resolve
    far = iter([1 << 50])
    monkeypatch.setattr(
        type(sampler.table),
        "resolve",
        lambda self, prefixes, entropy: (
            np.full(len(prefixes), c) if (c := next(far, 0)) else settle(self, prefixes, entropy)
        ),
    )
    found = sampler.draw(100, SeededEntropy(1))
    assert found.dtype == object
    assert max(abs(value) for value in found) >> (50 + sampler.shift) == 1


@for_each(
    "scale", [1e-300, 1e-30, 1e-3, 1, 63, 64, 1e3, 1e12, 2e14, 1e15, 1e30, 10**400, Fraction(1, 10**400)]
)
@for_each("draw", [discrete_laplace, discrete_gaussian])
def test_every_scale_from_tiny_to_huge(draw, scale):
    found = draw(scale, 200, Entropy())
    assert len(found) == 200
    assert found.dtype == (object if scale > 1e16 else np.int64) or 1e14 < scale < 1e16
    largest = max(abs(int(value)) for value in found)
    assert (
        Fraction(scale) / 10 < largest + 1 <= 60 * Fraction(scale) + 1
    )  # fails with probability below 1e-20
    if found.dtype == object:
        assert all(type(value) is int for value in found)
        assert len({value & 0xFFFFFF for value in found}) > 150  # the low bits are alive


@for_each("draw", [discrete_laplace, discrete_gaussian, geometric])
@for_each("parameter", [1, 1e9, 1e-9, 10**40])
def test_no_draws_is_an_empty_array(draw, parameter):
    assert len(draw(parameter, 0, Entropy())) == 0


def test_a_seed_repeats_its_draws():
    for draw in (discrete_laplace, discrete_gaussian):
        for scale in (3, 1e5, 1e20):
            assert (draw(scale, 500, SeededEntropy(5)) == draw(scale, 500, SeededEntropy(5))).all()
