"""Draws without a table: a second route to the same laws."""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr

from discreet.sampling import Entropy, _noise, discrete_gaussian, discrete_laplace, geometric

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

N = 3000


@pytest.mark.parametrize(
    ("scale", "fact"),
    [
        (Fraction(1, 2), "the empirical cdf is"),
        (Fraction(10), "the empirical cdf is"),
        (Fraction(10**9), "the empirical cdf is"),
    ],
)
def test_single_laplace_has_its_law(scale, fact):
    entropy = Entropy()
    found = [_noise.laplace(1 / scale, entropy) for _ in range(N)]
    assert_follows_cdf(found, laplace_cdf(float(scale)))
    assert_frequency(found.count(0), N, math.tanh(1 / (2 * float(scale))))  # not counted twice
    with pytest.raises(AssertionError, match=fact):
        assert_follows_cdf([abs(value) for value in found], laplace_cdf(float(scale)))


@pytest.mark.parametrize("x", [Fraction(3), Fraction(1, 7), Fraction(1, 10**30)])
def test_single_geometric_has_its_law(x):
    entropy = Entropy()
    found = [_noise.geometric_one(x, entropy) for _ in range(N)]
    assert_follows_cdf(found, lambda k: np.where(k < 0, 0, -np.expm1(-(k + 1) * float(x))))


@pytest.mark.parametrize("sigma", [0.3, 1.0, 4.5])
def test_single_gaussian_has_its_law(sigma):
    entropy = Entropy()
    found = [_noise.gaussian(Fraction(sigma) ** 2, entropy) for _ in range(N)]
    assert_follows_pmf(found, gaussian_pmf(sigma))
    with pytest.raises(AssertionError, match="expected a fraction of"):
        assert_follows_pmf(found, gaussian_pmf(sigma * 2))


def test_single_wide_gaussian_has_its_law():
    entropy = Entropy()
    found = [_noise.gaussian(Fraction(10**18), entropy) for _ in range(N)]
    assert_follows_cdf(found, lambda k: ndtr((k + 0.5) / 1e9))


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 2**60 - 1),
    st.fractions(Fraction(1, 10**6), 50, max_denominator=10**6),
    st.integers(0, 2**70),
)
def test_a_single_geometric_is_the_floor_of_its_logarithm(more, x, lift):
    """The first bits are zero, so that the draw lies beyond them; the next 60 are given."""
    length = _noise.working_bits(x) - 2
    entropy = Scripted(bytes(-(-length // 8)) + words(more << 4))
    found = _noise.geometric_one(x, entropy, lift) - lift
    with mpmath.workprec(400):
        scale = mpmath.mpf(x.denominator) / x.numerator
        ends = [-mpmath.log(mpmath.mpf(u) / mpmath.mpf(2) ** (length + 60)) * scale for u in (more + 1, more)]
        assert mpmath.floor(ends[0]) <= found <= mpmath.floor(ends[1])


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**60),
    st.integers(1, 2**88 - 1),
    st.fractions(Fraction(1, 100), 10**9, max_denominator=10**6).filter(bool),
)
def test_the_coin_of_a_gaussian_is_the_comparison_of_logarithms(place, prefix, variance):
    scale = math.isqrt(int(variance)) + 1
    size = place * 20 * scale >> 60
    kept = _noise._accept(
        size + _noise.lift_one(scale), scale, variance, Scripted(prefix_bytes(prefix)), _noise.lift_one(scale)
    )
    with mpmath.workprec(400):
        cost = (size - variance / scale) ** 2 / (2 * variance)
        bound = mpmath.mpf(cost.numerator) / cost.denominator
        ends = [-mpmath.log(mpmath.mpf(u) / mpmath.mpf(2) ** 88) for u in (prefix + 1, prefix)]
        if not ends[0] <= bound <= ends[1]:
            assert kept == (ends[0] > bound)


def prefix_bytes(prefix: int) -> bytes:
    """88 bits as a stream hands them out: the first of 11 bytes is the lowest."""
    return prefix.to_bytes(11, "little")


@for_each("scale", [0.5, 100, 1e9, 1e30])
@for_each("n", [0, 1, _noise._FEW, _noise._FEW + 1])
def test_few_and_many_draws_have_the_same_type(scale, n):
    for draw in (discrete_laplace, discrete_gaussian, lambda s, n, e: geometric(1 / Fraction(s), n, e)):
        found = draw(scale, n, Entropy())
        assert len(found) == n
        assert found.dtype == (object if scale == 1e30 else np.int64)
