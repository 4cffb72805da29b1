"""Coins, Poisson subsets and binomials."""

from __future__ import annotations

import functools
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from discreet.sampling import (
    Entropy,
    SeededEntropy,
    _bernoulli,
    _entropy,
    bernoulli,
    binomial,
    poisson_subset,
)
from discreet.sampling._bernoulli import bernoulli_each, bernoulli_exp, bernoulli_exp_each

from .checks import Scripted, assert_follows_cdf, assert_follows_pmf, assert_frequency, words

N = 200_000


@pytest.mark.parametrize("p", [0, 1e-30, 1e-6, 1e-3, Fraction(1, 3), 0.5, 0.999, 1 - 2**-40, 1])
def test_bernoulli_has_its_probability(p):
    found = bernoulli(p, N, Entropy())
    assert found.dtype == bool
    assert_frequency(int(found.sum()), N, float(p))


@pytest.mark.parametrize("x", [0, 1e-9, 1e-3, Fraction(1, 2), 1, 5, 40, 10**30])
def test_bernoulli_exp_has_its_probability(x):
    assert_frequency(int(bernoulli_exp(x, N, Entropy()).sum()), N, math.exp(-float(x)))


def test_a_coin_that_is_off_is_noticed():
    with pytest.raises(AssertionError, match="expected a fraction of"):
        assert_frequency(int(bernoulli(0.36, N, Entropy()).sum()), N, 1 / 3)
    with pytest.raises(AssertionError, match="expected a fraction of"):
        assert_frequency(int((Entropy().shorts(N) <= 2**16 * 0.001).sum()), N, 0.001 / 5)


@settings(max_examples=200, deadline=None)
@given(st.fractions(0, 1), st.integers(0, 2**16 - 1), st.integers(0, 2**64 - 1), st.booleans())
def test_a_coin_is_the_comparison_of_its_bits(p, short, more, agree):
    """One coin from 16 scripted bits and 64 more; `agree` forces the 16 bits to be those of p."""
    short = min(int(p * 2**16), 2**16 - 1) if agree else short
    u = Fraction(short << 64 | more, 1 << 80)
    if not u < p < u + Fraction(1, 1 << 80):
        entropy = Scripted(short.to_bytes(2, "little") + words(more))
        assert bool(bernoulli(p, 1, entropy)[0]) == (u < p)


@pytest.mark.parametrize("x", [Fraction(1, 3), Fraction(2), Fraction(1, 10**9), Fraction(60)])
def test_a_coin_of_exp_whose_prefix_agrees_is_decided_by_the_next_bits(x):
    with mpmath.workprec(400):
        digits = int(mpmath.exp(-mpmath.mpf(x.numerator) / x.denominator) * 2**144)
    first, second, third = digits >> 128, digits >> 64 & 2**64 - 1, digits & 2**64 - 1
    for last, expected in ((third - 5, True), (third + 5, False)):
        entropy = Scripted(first.to_bytes(2, "little") + words(second, last))
        assert bool(bernoulli_exp(x, 1, entropy)[0]) is expected
        assert entropy.drawn == 2 + 8 + 8


def test_each_coin_has_its_own_probability():
    ps = np.array([0.0, 1.0, 0.25, 5e-324, 0.9])
    found = np.array([bernoulli_each(ps, entropy) for entropy in [Entropy()] for _ in range(4000)])
    for column, p in enumerate(ps):
        assert_frequency(int(found[:, column].sum()), len(found), float(p))


@settings(max_examples=100, deadline=None)
@given(st.floats(0, 1), st.integers(0, 2**53 - 1), st.integers(0, 2**64 - 1), st.booleans())
def test_each_coin_is_the_comparison_of_its_bits(p, prefix, more, agree):
    prefix = min(int(Fraction(p) * 2**53), 2**53 - 1) if agree else prefix
    u = Fraction(prefix << 64 | more, 1 << 117)
    if not u < Fraction(p) < u + Fraction(1, 1 << 117):
        entropy = Scripted(words(prefix << 11, more))
        assert bool(bernoulli_each(np.array([p]), entropy)[0]) == (u < p)


@pytest.mark.parametrize("make", [list, np.array], ids=["list", "array"])
def test_exp_coins_each_have_their_own_probability(make):
    numerators = make([0, 1, 2, 7, 10**6] * 20_000)
    found = bernoulli_exp_each(numerators, 3, Entropy()).reshape(-1, 5)
    for column, numerator in enumerate([0, 1, 2, 7, 10**6]):
        assert_frequency(int(found[:, column].sum()), len(found), math.exp(-numerator / 3))


def test_exp_coins_certified_and_in_floats_agree(monkeypatch):
    numerators = np.arange(3000) % 50
    fast = bernoulli_exp_each(numerators, 17, SeededEntropy(2))
    monkeypatch.setattr(_bernoulli, "exp_coins", functools.partial(_bernoulli.exp_coins, error=2.0))
    assert (fast == bernoulli_exp_each(numerators, 17, SeededEntropy(2))).all()
    assert (fast == bernoulli_exp_each(numerators.tolist(), 17, SeededEntropy(2))).all()


def test_exp_coins_of_huge_numerators_and_denominators():
    found = bernoulli_exp_each([10**400, 0, 1], 10**400, SeededEntropy(4))
    assert found[1]
    assert found[2]


@pytest.mark.parametrize("rate", [0, 1e-9, 1e-3, 0.1, Fraction(1, 3), 0.9, 1])
def test_poisson_subset_keeps_each_index_with_its_rate(rate):
    found = poisson_subset(N, rate, Entropy())
    assert found.dtype == np.int64
    assert (np.diff(found) > 0).all()
    assert_frequency(len(found), N, float(rate))
    if len(found) > 1000:
        assert_follows_cdf(found, lambda k: np.clip((k + 1) / N, 0, 1), known_to=1e-5)


def test_poisson_subset_spans_its_chunks():
    size = 3 * _bernoulli._CHUNK + 5
    assert poisson_subset(size, 1, Entropy()).tolist() == list(range(size))
    assert len(poisson_subset(0, 0.5, Entropy())) == 0
    pairs = poisson_subset(N, 0.5, Entropy())
    both = np.isin(pairs[pairs % 2 == 0] + 1, pairs).sum()
    assert_frequency(int(both), N // 2, 0.25)


BINOMIALS = [
    (1, 0.5),
    (3, 0.5),
    (5, Fraction(1, 3)),
    (10, 0.3),
    (7, 0.99),
    (64, 0.5),
    (1000, 0.001),
    (500, Fraction(2, 7)),
]


@pytest.mark.parametrize(("trials", "p"), BINOMIALS)
def test_binomial_has_its_law(trials, p):
    samples = binomial(trials, p, N, Entropy())
    assert_follows_pmf(samples, {k: float(binom.pmf(k, trials, float(p))) for k in range(trials + 1)})


@pytest.mark.parametrize(("trials", "p"), [(10**6, 0.01), (3 * 10**6 + 5, 0.5), (2**27, 1e-7), (10**10, 0.3)])
def test_binomial_of_many_trials_has_its_law(trials, p):
    samples = binomial(trials, p, 20_000, Entropy())
    assert_follows_cdf(samples, lambda k: binom.cdf(k, trials, p), known_to=1e-9)


def test_a_binomial_mutant_fails():
    with pytest.raises(AssertionError, match="expected a fraction of"):
        assert_follows_pmf(
            binomial(10, 0.33, N, Entropy()), {k: float(binom.pmf(k, 10, 0.3)) for k in range(11)}
        )


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.fractions(0, 1, max_denominator=64).filter(lambda p: 0 < p < 1))
def test_binomial_tables_enclose_the_law(trials, p):
    """Every threshold of the table against exact rationals, dyadic ones included."""
    block = _bernoulli._Block(trials, p)
    order = block._outcome(np.arange(trials + 1)).tolist()
    assert sorted(order) == list(range(trials + 1))
    running = Fraction(0)
    for k, low, high in zip(order, block.table.lows.tolist(), block.table.highs.tolist(), strict=False):
        running += math.comb(trials, k) * p**k * (1 - p) ** (trials - k)
        assert low <= int(running * 2**64) <= high or running == 1
        assert high - low <= 1


def test_a_binomial_at_a_dyadic_threshold_is_decided_by_more_bits():
    """F(first outcome) = 3/8 exactly: just below and exactly at it."""
    block = _bernoulli._Block(3, Fraction(1, 2))
    edge = 3 << 61
    for prefix, more, expected in ((edge - 1, 2**64 - 2, 0), (edge, 1, 1)):
        assert block.table.resolve(
            np.array([prefix], np.uint64), Scripted(words(more, more, more))
        ).tolist() == [expected]


def test_certain_binomials_and_no_draws():
    assert binomial(0, 0.5, 3, Entropy()).tolist() == [0, 0, 0]
    assert binomial(2**40, 1, 1, Entropy()).tolist() == [2**40]
    assert len(binomial(10, 0.5, 0, Entropy())) == 0
    assert len(bernoulli(0.5, 0, Entropy())) == 0
    assert binomial(5, 1e-300, 3, Entropy()).tolist() == [0, 0, 0]
    assert _entropy.rational(Fraction(1))(16) == (1 << 16, 1 << 16)
