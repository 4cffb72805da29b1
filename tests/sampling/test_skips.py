"""Sparse subsets, many at a time: by gaps, with the law of a coin for everybody."""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discreet import sampling
from discreet._errors import InvalidInput
from discreet.sampling import Entropy, SeededEntropy, _bernoulli, _entropy, poisson_subsets

from ..loops import for_each
from .checks import Forbidden, Scripted, assert_follows_cdf, assert_frequency, words

RATES = [Fraction(1, 16), Fraction(256, 60_000), 0.001, Fraction(1, 3 * 10**5)]


def gap(rate: Fraction, u: Fraction) -> int:
    """floor(ln u / ln(1 - rate)), with two hundred digits."""
    with mpmath.workdps(200):
        logs = [mpmath.log(mpmath.mpf(x.numerator) / x.denominator) for x in (u, 1 - rate)]
        return int(mpmath.floor(logs[0] / logs[1]))


@pytest.mark.parametrize("rate", RATES)
def test_every_index_of_every_subset_is_kept_with_its_rate(rate: object) -> None:
    size, n = 10_007, 200
    found = poisson_subsets(size, rate, n, Entropy())
    assert len(found) == n
    assert all(kept.dtype == np.int64 and (np.diff(kept) > 0).all() for kept in found)
    everyone = np.concatenate(found)
    assert everyone.min() >= 0
    assert everyone.max() < size
    assert_frequency(len(everyone), size * n, float(rate))
    if len(everyone) > 1000:
        assert_follows_cdf(everyone, lambda k: np.clip((k + 1) / size, 0, 1), known_to=1e-4)


def test_gaps_are_geometric_and_neighbors_independent() -> None:
    """Two in a row with the product of their chances; the numbers kept as binomial as their variance; a wrong
    rate or a gap of at least one is noticed."""
    rate, size, n = Fraction(1, 20), 1000, 2000
    found = poisson_subsets(size, rate, n, SeededEntropy(1))
    gaps = np.concatenate([np.diff(kept) - 1 for kept in found])
    # Those inside a subset are cut off by its end: gaps above 200 are rare, and the bound below allows for
    # them.
    cut = 0.05

    def cdf(k: object) -> object:
        return 1 - 0.95 ** (np.maximum(np.asarray(k, dtype=float), -1) + 1)

    assert_follows_cdf(gaps, cdf, known_to=cut)
    for mutant in (gaps + 2, gaps * 2):
        with pytest.raises(AssertionError, match="the empirical cdf is"):
            assert_follows_cdf(mutant, cdf, known_to=cut)
    line = np.zeros((n, size), bool)
    for row, kept in zip(line, found, strict=True):
        row[kept] = True
    assert_frequency(int((line[:, :-1:2] & line[:, 1::2]).sum()), n * (size // 2), 1 / 400)
    assert_frequency(int((line[:-1:2] & line[1::2]).sum()), n // 2 * size, 1 / 400)
    assert_frequency(int(line[:, 0].sum()), n, 0.05)
    assert_frequency(int(line[:, -1].sum()), n, 0.05)


@settings(max_examples=200, deadline=None)
@given(st.integers(16, 500), st.integers(0, 2**53 - 1), st.integers(0, 2**64 - 1))
def test_a_gap_is_the_comparison_of_its_bits(denominator: int, known: int, more: int) -> None:
    """Decided by floats, or by the word that comes after: the same as with two hundred digits."""
    rate = Fraction(1, denominator)
    entropy = Scripted(words(known << 11, more))
    found = int(_bernoulli._gaps(1, 10**6, rate, _bernoulli._slope(rate), entropy)[0])
    ends = {gap(rate, Fraction((known << 64) + more + end, 1 << 117)) for end in (Fraction(1, 10**30), 1)}
    assert min(ends) <= found <= max(ends)
    assert max(ends) - min(ends) <= 1 or not known


@for_each("rate", [Fraction(1, 17), Fraction(3, 100), Fraction(256, 60_000)])
@for_each("k", [1, 2, 7, 300])
def test_where_floats_cannot_tell_more_bits_do(rate: Fraction, k: int) -> None:
    """53 bits that agree with those of (1 - rate)**k leave k or k - 1: the next 64 say which."""
    edge = (1 - rate) ** k
    known, rest = divmod(math.floor(edge * 2**117), 2**64)
    slope = _bernoulli._slope(rate)
    for more, expected in ((rest - 2, k), (rest + 2, k - 1)):
        entropy = Scripted(words(known << 11, more))
        assert int(_bernoulli._gaps(1, 10**6, rate, slope, entropy)[0]) == expected
        assert entropy.drawn == 16, "one word was not enough, two were"


def test_a_uniform_that_begins_with_zeros_gets_more_bits() -> None:
    rate = Fraction(1, 20)
    entropy = Scripted(words(0, 1 << 63))
    assert int(_bernoulli._gaps(1, 10**6, rate, _bernoulli._slope(rate), entropy)[0]) == gap(
        rate, Fraction(1, 2**54)
    )
    assert int(_bernoulli._gaps(1, 100, rate, _bernoulli._slope(rate), Scripted(words(0, 0, 1)))[0]) == 100


def test_numpys_log_is_as_good_as_is_assumed() -> None:
    """The float answer lies where certified digits say it does."""
    rate, entropy = Fraction(1, 1000), SeededEntropy(5)
    known = np.unique(
        np.concatenate([entropy.words(300) >> np.uint64(11), 2**53 - entropy.words(300) % 2**20 - 1])
    )
    slope = _bernoulli._slope(rate)
    for word in known.tolist():
        low, high = (v / 2**200 for v in _entropy.minus_log(word, 53, 200) or (0, 0))
        value = float(np.log(np.float64(word) * 2.0**-53) * -slope)
        assert low * slope * (1 - 2.0**-44) - 1.01 * slope / word <= value <= high * slope * (1 + 2.0**-44)


def test_rates_at_the_ends() -> None:
    assert [len(kept) for kept in poisson_subsets(50, 1, 3, Entropy())] == [50, 50, 50]
    assert [len(kept) for kept in poisson_subsets(50, 0, 3, Forbidden())] == [0, 0, 0]
    assert poisson_subsets(50, 0.01, 0, Entropy()) == []
    assert [len(kept) for kept in poisson_subsets(0, 0.01, 2, Entropy())] == [0, 0]
    assert sum(map(len, poisson_subsets(10**6, 1e-30, 1, Entropy()))) == 0
    assert sum(map(len, poisson_subsets(10**11, 1e-12, 1, Entropy()))) < 20, (
        "a chance of 1e-30 with a tenth expected"
    )


@pytest.mark.parametrize(
    "arguments",
    [
        (5, 1.5, 3),
        (5, -0.1, 3),
        (-1, 0.01, 3),
        (5, 0.01, -1),
        (5, 0.01, 2.5),
        (2**30, 0.01, 2**30),
        (5, None, 1),
    ],
)
def test_bad_input_is_refused_and_nothing_is_drawn(arguments: tuple[object, ...]) -> None:
    with pytest.raises(InvalidInput, match="must be"):
        poisson_subsets(*arguments, Forbidden())  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="entropy must be"):
        sampling.poisson_subsets(5, 0.01, 1, np.random.default_rng())  # type: ignore[arg-type]


def test_sizes_of_numpys_own_types_do_not_wrap() -> None:
    """3,000 subsets of a million in 32 bits: index -1,294,967,296 was among them."""
    size, n = np.int32(1_000_000), np.int32(3_000)
    drawn = poisson_subsets(size, Fraction(1, 10**6), n, SeededEntropy(1))
    expected = poisson_subsets(int(size), Fraction(1, 10**6), int(n), SeededEntropy(1))
    assert [kept.tolist() for kept in drawn] == [kept.tolist() for kept in expected]
    assert all(0 <= index < size for kept in expected for index in kept.tolist())
