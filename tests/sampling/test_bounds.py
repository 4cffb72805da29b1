"""The certified numbers, and the accuracy of numpy that the fast paths rely on."""

from __future__ import annotations

from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discreet.sampling import _bernoulli, _entropy, _select

from .checks import Scripted, words

fractions = st.fractions(min_value=0, max_value=200, max_denominator=10**9)


@settings(max_examples=150, deadline=None)
@given(fractions, st.integers(1, 300))
def test_exp_neg_encloses(x, bits):
    low, high = _entropy.exp_neg(x, bits)
    with mpmath.workprec(900):
        true = mpmath.exp(-mpmath.mpf(x.numerator) / x.denominator) * mpmath.mpf(2) ** bits
        assert low <= true <= high
    assert high - low <= 3


@settings(max_examples=150, deadline=None)
@given(st.fractions(min_value=Fraction(1, 10**30), max_value=10**30), st.integers(1, 300))
def test_log_encloses(x, bits):
    low, high = _entropy.log(x, bits)
    with mpmath.workprec(900):
        true = mpmath.log(mpmath.mpf(x.numerator) / x.denominator) * mpmath.mpf(2) ** bits
        assert low <= true <= high
    assert high - low <= 3


@pytest.mark.parametrize("x", [Fraction(10**40), Fraction(1, 10**40), Fraction(0)])
def test_exp_neg_of_extreme_arguments(x):
    low, high = _entropy.exp_neg(x, 64)
    assert (low, high) in {(0, 1), (2**64 - 2, 2**64), (2**64, 2**64)}


@settings(max_examples=300, deadline=None)
@given(
    st.fractions(min_value=0, max_value=1),
    st.integers(0, 2**16 - 1),
    st.lists(st.integers(0, 2**64 - 1), min_size=4, max_size=4),
)
def test_below_is_the_comparison_of_the_whole_uniform(p, prefix, more):
    """U's first 16 + 4 * 64 bits decide unless p agrees with all of them."""
    u = prefix
    for word in more:
        u = u << 64 | word
    bits = 16 + 64 * 4
    if not Fraction(u, 1 << bits) < p < Fraction(u + 1, 1 << bits):
        assert _entropy.below(prefix, 16, _entropy.rational(p), Scripted(words(*more))) == (
            Fraction(u, 1 << bits) < p
        )


def test_below_where_the_prefix_agrees_with_the_number_for_long():
    p = Fraction(1, 3)
    agree = [int(p * 2**64), *[0x5555555555555555] * 3]
    for last, expected in ((0, True), (2**64 - 1, False)):
        entropy = Scripted(words(*agree[1:], last))
        assert _entropy.below(agree[0], 64, _entropy.rational(p), entropy) is expected
        assert entropy.drawn == 8 * 4


def test_numpys_functions_are_as_accurate_as_assumed():
    """To 2**-48, on grids that cover every size of argument used; the bounds of 2**-46 leave room for the
    operations around them."""
    assert _bernoulli._FLOAT_ERROR == _select._FLOAT_ERROR == 2.0**-46
    generator = np.random.default_rng(5)
    arguments = np.concatenate(
        [2.0 ** generator.uniform(-64, 0, 1500), 1 - 2.0 ** generator.uniform(-53, -1, 500)]
    )
    for ours, true, xs in (
        (np.exp, mpmath.exp, -750 * arguments),
        (np.log, mpmath.log, np.concatenate([arguments, 2.0**64 * arguments])),
        (np.log1p, mpmath.log1p, -arguments),
    ):
        found = ours(xs)
        with mpmath.workprec(200):
            for x, y in zip(xs.tolist(), found.tolist(), strict=True):
                exact = true(mpmath.mpf(x))
                if abs(exact) > 1e-300:
                    assert abs(mpmath.mpf(y) - exact) <= abs(exact) * 2.0**-48, (ours, x)
