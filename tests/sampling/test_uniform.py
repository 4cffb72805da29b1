"""Uniform integers, permutations, subsets, categories."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discreet.sampling import (
    Entropy,
    SeededEntropy,
    _uniform,
    categorical,
    permutation,
    subset,
    uniform_below,
)

from .checks import Scripted, assert_follows_cdf, assert_follows_pmf, words

N = 100_000


@pytest.mark.parametrize(
    "bound", [1, 2, 3, 6, 255, 10**6, 2**32 - 1, 2**32, 2**32 + 1, 3 * 2**61, 2**63, 2**63 + 1, 2**64, 10**30]
)
def test_uniform_below_has_its_law(bound):
    samples = uniform_below(bound, N if bound < 2**63 else 20_000, Entropy())
    assert samples.dtype == (np.int64 if bound <= 2**63 else object)
    assert min(samples) >= 0
    assert max(samples) < bound
    assert_follows_cdf(samples, lambda k: np.clip((np.floor(k) + 1) / bound, 0, 1), known_to=1e-12)


def test_a_biased_reduction_is_noticed():
    """The mutant that forgets to refuse: below 3 * 2**30 one value in three is twice as likely."""
    bound = 3 * 2**30
    product = (Entropy().words(N) >> np.uint64(32)) * np.uint64(bound) >> np.uint64(32)
    modulo = (Entropy().words(N) >> np.uint64(32)) % np.uint64(bound)
    assert_follows_pmf(uniform_below(bound, N, Entropy()) % 3, {0: 1 / 3, 1: 1 / 3, 2: 1 / 3})
    with pytest.raises(AssertionError, match="expected a fraction of"):
        assert_follows_pmf(product % np.uint64(3), {0: 1 / 3, 1: 1 / 3, 2: 1 / 3})
    with pytest.raises(AssertionError, match="the empirical cdf is"):
        assert_follows_cdf(modulo, lambda k: np.clip((k + 1) / bound, 0, 1))


@pytest.mark.parametrize("bound", [2**32 - 5, 3 * 2**30, 2**31 + 1, 2**28 + 3])
def test_every_value_has_the_same_number_of_words(bound):
    """Around random values, all 32-bit words that map to them are enumerated."""
    wanted = (1 << 32) // bound
    for value in [*uniform_below(bound, 40, SeededEntropy(bound)).tolist(), 0, bound - 1]:
        first = -(-(value << 32) // bound)
        last = min(-(-((value + 1) << 32) // bound), 1 << 32)
        script = np.arange(first, last, dtype=np.uint32)
        found, kept = _uniform._propose_lemire(bound, len(script), Scripted(script.tobytes()))
        assert (found == value).all()
        assert kept.sum() == wanted


@pytest.mark.parametrize("bound", [5, 2**40 + 1])
def test_refused_words_are_drawn_again(bound):
    entropy = Scripted(words(*([0] * 3 if bound == 5 else [2**64 - 1] * 3)))
    assert uniform_below(bound, 6 if bound == 5 else 3, entropy).min() >= 0
    assert entropy.drawn > 3 * 8


def test_permutations_are_uniform():
    n, rounds = 4, 24_000
    entropy = Entropy()
    found = Counter(tuple(permutation(n, entropy).tolist()) for _ in range(rounds))
    orders = list(itertools.permutations(range(n)))
    index = {order: i for i, order in enumerate(orders)}
    samples = np.repeat([index[order] for order in found], list(found.values()))
    assert_follows_pmf(samples, dict.fromkeys(range(24), 1 / 24))


def test_colliding_keys_are_drawn_again():
    entropy = Scripted(words(7, 7, 9))
    assert sorted(permutation(3, entropy).tolist()) == [0, 1, 2]
    assert entropy.drawn == 2 * 3 * 8


@pytest.mark.parametrize(("size", "k"), [(5, 2), (5, 3), (6, 1), (4, 4), (4, 0)])
def test_subsets_are_uniform(size, k):
    rounds, entropy = 8_000, Entropy()
    names = {c: i for i, c in enumerate(itertools.combinations(range(size), k))}
    samples = [names[tuple(subset(size, k, entropy).tolist())] for _ in range(rounds)]
    assert_follows_pmf(samples, {i: 1 / math.comb(size, k) for i in range(len(names))})


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 300), st.integers(0, 300), st.integers(0, 2**32))
def test_a_subset_is_sorted_distinct_and_of_its_size(size, k, seed):
    k = min(k, size)
    found = subset(size, k, SeededEntropy(seed))
    assert found.dtype == np.int64
    assert len(found) == k
    assert (np.diff(found) > 0).all()
    assert k == 0 or (found[0] >= 0 and found[-1] < size)


def test_a_small_subset_of_a_huge_set():
    found = subset(10**18, 1000, Entropy())
    assert len(found) == 1000
    assert found[-1] > 10**17


@pytest.mark.parametrize(
    ("unit", "fact"),
    [(1, "expected a fraction of"), (10**6, "expected a fraction of"), (10**30, "expected a fraction of")],
)
def test_categories_have_their_weights(unit, fact):
    weights = [3 * unit, 0, 1 * unit, 6 * unit]
    samples = categorical(weights, 20_000 if unit > 10**9 else N, Entropy())
    assert_follows_pmf(samples, {0: 0.3, 1: 0.0, 2: 0.1, 3: 0.6})
    with pytest.raises(AssertionError, match=fact):
        assert_follows_pmf(samples, {0: 0.25, 1: 0.0, 2: 0.15, 3: 0.6})


def test_categories_of_one_weight_in_a_huge_sum():
    assert set(categorical([0, 10**40, 1], 1000, Entropy()).tolist()) == {1}


def test_nothing_is_an_empty_array():
    for found in (
        uniform_below(5, 0, Entropy()),
        uniform_below(10**30, 0, Entropy()),
        permutation(0, Entropy()),
    ):
        assert len(found) == 0
    assert len(categorical([1], 0, Entropy())) == 0
