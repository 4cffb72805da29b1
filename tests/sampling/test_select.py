"""Selection by noisy scores: laws with closed forms, and every comparison against arbitrary precision."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discreet.sampling import (
    Entropy,
    SeededEntropy,
    _select,
    argmax_exponential,
    argmax_gumbel,
    argmax_laplace,
    top_k_gumbel,
)

from ..loops import for_each
from .checks import Scripted, assert_follows_pmf, words

ROUNDS = 6000
NOISES = {"gumbel": _select._GUMBEL, "exponential": _select._EXPONENTIAL, "laplace": _select._LAPLACE}


def softmax(scores, rate):
    weights = [math.exp(float(rate) * (s - max(scores))) for s in scores]
    return {i: w / sum(weights) for i, w in enumerate(weights)}


def permute_and_flip(scores, rate):
    """The law by its definition (McKenna & Sheldon 2020): visit in random order, accept with exp(rate (s -
    best))."""
    chance = [math.exp(float(rate) * (s - max(scores))) for s in scores]
    law = dict.fromkeys(range(len(scores)), 0.0)
    for order in itertools.permutations(range(len(scores))):
        reach = 1.0 / math.factorial(len(scores))
        for i in order:
            law[i] += reach * chance[i]
            reach *= 1 - chance[i]
    return law


def laplace_winner(gap):
    """P(X + gap > Y) for standard Laplace X, Y."""
    return 1 - math.exp(-gap) * (2 + gap) / 4


SCORES = [0, 4, 1]


def test_gumbel_selects_by_softmax():
    entropy, rate = Entropy(), Fraction(1, 2)
    found = [argmax_gumbel(SCORES, rate, entropy) for _ in range(ROUNDS)]
    assert_follows_pmf(found, softmax(SCORES, rate))
    with pytest.raises(AssertionError, match="expected a fraction of"):
        assert_follows_pmf(found, softmax(SCORES, 1))
    with pytest.raises(AssertionError, match="expected a fraction of"):
        assert_follows_pmf(found, permute_and_flip(SCORES, rate))


def test_exponential_selects_as_permute_and_flip():
    entropy, rate = Entropy(), Fraction(1, 2)
    found = [argmax_exponential(SCORES, rate, entropy) for _ in range(ROUNDS)]
    assert_follows_pmf(found, permute_and_flip(SCORES, rate))
    with pytest.raises(AssertionError, match="expected a fraction of"):
        assert_follows_pmf(found, softmax(SCORES, rate))


@pytest.mark.parametrize("gap", [0, 1, 3])
def test_laplace_selects_as_its_closed_form(gap):
    entropy = Entropy()
    found = [argmax_laplace([gap, 0], 1, entropy) for _ in range(ROUNDS)]
    assert_follows_pmf(found, {0: laplace_winner(gap), 1: 1 - laplace_winner(gap)})
    with pytest.raises(AssertionError, match="expected a fraction of"):
        assert_follows_pmf(found, {0: laplace_winner(gap + 1), 1: 1 - laplace_winner(gap + 1)})


def test_top_k_is_drawing_without_replacement():
    scores, rate, entropy = [0, 1, 2], 1, Entropy()
    pairs = list(itertools.permutations(range(3), 2))
    first = softmax(scores, rate)
    law = {i: first[a] * first[b] / (1 - first[a]) for i, (a, b) in enumerate(pairs)}
    found = [pairs.index(tuple(top_k_gumbel(scores, rate, 2, entropy).tolist())) for _ in range(ROUNDS)]
    assert_follows_pmf(found, law)


@pytest.mark.parametrize("noise", NOISES)
def test_certified_and_float_comparisons_give_the_same_order(noise):
    """An error bound of 1 leaves every candidate open, so that all are compared in certified arithmetic."""
    scores = np.arange(30) % 7
    for seed in range(15):
        fast = _select._largest(scores, Fraction(1, 3), 10, NOISES[noise], SeededEntropy(seed))
        slow = _select._largest(scores, Fraction(1, 3), 10, NOISES[noise], SeededEntropy(seed), error=1.0)
        assert fast.tolist() == slow.tolist()


def true_noise(name: str, word: int):
    """The noise at the middle of the word's interval."""
    if name == "laplace":
        size = -mpmath.log((mpmath.mpf(word >> 1) + 0.5) / 2**63)
        return -size if word & 1 else size
    u = (mpmath.mpf(word) + 0.5) / 2**64
    return -mpmath.log(u) if name == "exponential" else -mpmath.log(-mpmath.log1p(-u))


EDGES = [
    0,
    1,
    2,
    3,
    2**20,
    2**52 + 1,
    2**63 - 1,
    2**63,
    2**63 + 1,
    2**64 - 2**11,
    2**64 - 3,
    2**64 - 2,
    2**64 - 1,
]


@pytest.mark.parametrize("noise", NOISES)
def test_intervals_contain_the_noise(noise):
    drawn = np.array(EDGES + SeededEntropy(8).words(500).tolist(), dtype=np.uint64)
    low, high = NOISES[noise].floats(drawn, 2.0**-46)
    with mpmath.workprec(250):
        for word, a, b in zip(drawn.tolist(), low.tolist(), high.tolist(), strict=True):
            true = true_noise(noise, word)
            assert a <= true <= b
            certified = NOISES[noise].certified(word, 64, 80)
            if certified is not None:
                assert certified[0] <= true * 2**80 <= certified[1]
                if 2**40 < word < 2**64 - 2**40:
                    assert certified[1] - certified[0] < 2**57


@pytest.mark.parametrize("noise", NOISES)
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_equal_words_are_separated_by_the_next_bits(noise, data):
    """Equal scores and equal first words: the order is that of the noise as a function of the next 64
    bits."""
    word = data.draw(st.integers(2, 2**64 - 3).map(lambda w: w & ~1))
    a, b = data.draw(
        st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)).filter(lambda t: abs(t[0] - t[1]) > 2)
    )
    found = _select._largest(
        [5, 5], 1, 2, NOISES[noise], Scripted(words(word, word, b, a))
    )  # the sort lengthens 1 first
    assert found.tolist() == ([0, 1] if a < b else [1, 0])  # all three fall with U; the sign bit is clear


def test_a_negative_laplace_noise_is_separated_the_other_way():
    found = _select._largest([5, 5], 1, 2, NOISES["laplace"], Scripted(words(9, 9, 2**60, 1)))
    assert found.tolist() == [1, 0]


@pytest.mark.parametrize("noise", NOISES)
def test_words_without_a_certified_interval_are_lengthened(noise):
    for word in (0, 2**64 - 1):
        found = _select._largest([0, 0, 0], 1, 3, NOISES[noise], Scripted(words(word, word, word)))
        assert sorted(found.tolist()) == [0, 1, 2]


@for_each("scores", [[0, 10**40], [-(2**63), 2**63 - 1], [-1, 2**63], [0, 2**200]])
@for_each("rate", [1, Fraction(10**400), 1e300])
def test_huge_gaps_always_win(scores, rate):
    for select in (argmax_gumbel, argmax_exponential, argmax_laplace):
        assert select(scores, rate, Entropy()) == 1


@pytest.mark.parametrize("rate", [0, Fraction(1, 10**400), 1e-320])
def test_a_vanishing_rate_selects_evenly(rate):
    entropy = Entropy()
    found = [argmax_gumbel(np.array([0, 10**9, 5]), rate, entropy) for _ in range(2000)]
    assert_follows_pmf(found, dict.fromkeys(range(3), 1 / 3))


def test_many_candidates_and_all_kinds_of_integers():
    scores = np.zeros(100_000, np.int64)
    scores[777] = 10**6
    for select in (argmax_gumbel, argmax_exponential, argmax_laplace):
        assert select(scores, 1, Entropy()) == 777
    assert top_k_gumbel(scores, 1, 1, Entropy()).tolist() == [777]
    assert len(set(top_k_gumbel(scores, 1, 5000, Entropy()).tolist())) == 5000
    assert argmax_gumbel(np.array([1, 2**64 - 1], np.uint64), 1, Entropy()) == 1
    assert argmax_gumbel(np.array([0, 100], np.int8), 1, Entropy()) == 1
    assert len(top_k_gumbel([1, 2], 1, 0, Entropy())) == 0
    assert argmax_gumbel([4], 1, Entropy()) == 0
