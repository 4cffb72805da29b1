"""Bad input is refused with a clear error before a single bit is drawn."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from discreet import sampling
from discreet._errors import InvalidInput
from discreet.sampling import _bernoulli

from ..loops import for_each
from .checks import Forbidden

NOT_POSITIVE = [0, -1, math.nan, math.inf, -math.inf, "1", None, True, 1j, Fraction(-1, 3)]
NOT_PROBABILITY = [-0.1, 1.1, math.nan, math.inf, "0.5", None, True]
NOT_COUNT = [-1, 1.5, math.nan, "3", None, True]

CALLS = [
    *[(sampling.discrete_laplace, (bad, 3)) for bad in NOT_POSITIVE],
    *[(sampling.discrete_gaussian, (bad, 3)) for bad in NOT_POSITIVE],
    *[(sampling.geometric, (bad, 3)) for bad in NOT_POSITIVE],
    *[(sampling.bernoulli, (bad, 3)) for bad in NOT_PROBABILITY],
    *[(_bernoulli.bernoulli_exp, (bad, 3)) for bad in (-1, math.nan, math.inf, "1", None)],
    *[(_bernoulli.bernoulli_each, (bad,)) for bad in ([0.5, 1.5], [math.nan], ["a"], [[0.5]], [True])],
    *[
        (_bernoulli.bernoulli_exp_each, bad)
        for bad in (([1], 0), ([1], -2), ([-1], 1), ([0.5], 1), (np.array([-1]), 1), (3, 1), (None, 1))
    ],
    *[(sampling.poisson_subset, (5, bad)) for bad in NOT_PROBABILITY],
    *[(sampling.binomial, (5, bad, 3)) for bad in NOT_PROBABILITY],
    *[(sampling.uniform_below, (bad, 3)) for bad in (0, -5, 1.5, "2", None, True)],
    *[(sampling.subset, bad) for bad in ((3, 4), (-1, 0), (3, -1), (3.5, 1), (2**70, 1))],
    *[
        (sampling.categorical, (bad, 3))
        for bad in ([], [0, 0], [1, -1], [0.5], ["a"], np.ones((2, 2), int), np.ones(2))
    ],
    *[(draw, (2, bad)) for draw in (sampling.discrete_laplace, sampling.geometric) for bad in NOT_COUNT],
    *[(draw, (0.5, bad)) for draw in (sampling.bernoulli, sampling.discrete_gaussian) for bad in NOT_COUNT],
    *[(sampling.uniform_below, (2, bad)) for bad in NOT_COUNT],
    *[(sampling.poisson_subset, (bad, 0.5)) for bad in NOT_COUNT],
    *[(sampling.permutation, (bad,)) for bad in NOT_COUNT],
    *[(sampling.binomial, (bad, 0.5, 3)) for bad in [*NOT_COUNT, 2**41]],
    *[(sampling.categorical, ([1], bad)) for bad in NOT_COUNT],
    *[(sampling.categorical, (bad, 3)) for bad in (None, 5, "12")],
    *[(draw, (0.5, 10**30)) for draw in (sampling.discrete_laplace, sampling.bernoulli)],
    *[(sampling.poisson_subset, (10**30, 0.5)), (sampling.permutation, (10**30,))],
    *[
        (sampling.weighted_softmax, bad)
        for bad in (
            ([], [], 1),
            ([1], [0], 1),
            ([1, 2], [1], 1),
            ([0.5], [1], 1),
            ([1], [1], -1),
            ([1], [1], math.nan),
            (3, 4, 1),
        )
    ],
    *[
        (select, bad)
        for select in (sampling.argmax_gumbel, sampling.argmax_exponential, sampling.argmax_laplace)
        for bad in (
            ([], 1),
            ([0.5], 1),
            ([1], -1),
            ([1], math.nan),
            (np.array([1.0]), 1),
            ([[1]], 1),
            ([True], 1),
            ([1], "1"),
        )
    ],
    *[(sampling.top_k_gumbel, ([1, 2], 1, bad)) for bad in (-1, 3, 1.5, None)],
    *[(sampling.top_k_gumbel_rows, (bad, 1, 1)) for bad in ([[0.5]], [1, 2], [], None, [["a"]])],
    *[(sampling.top_k_gumbel_rows, ([[1, 2]], 1, bad)) for bad in (0, 3, 1.5, None)],
]


@for_each(("call", "arguments"), CALLS)
def test_bad_input_is_refused_and_nothing_is_drawn(call, arguments):
    with pytest.raises(InvalidInput, match="must"):
        call(*arguments, Forbidden())


@for_each(
    ("call", "arguments"),
    [
        (sampling.discrete_laplace, (1, 3)),
        (sampling.discrete_gaussian, (1, 3)),
        (sampling.bernoulli, (0.5, 3)),
        (_bernoulli.bernoulli_each, ([0.5],)),
        (_bernoulli.bernoulli_exp_each, ([1], 2)),
        (sampling.poisson_subset, (3, 0.5)),
        (sampling.binomial, (3, 0.5, 1)),
        (sampling.uniform_below, (3, 1)),
        (sampling.permutation, (3,)),
        (sampling.subset, (3, 1)),
        (sampling.categorical, ([1], 1)),
        (sampling.argmax_gumbel, ([1], 1)),
        (sampling.top_k_gumbel_rows, ([[1]], 1, 1)),
    ],
)
def test_only_entropy_is_taken_for_entropy(call, arguments):
    with pytest.raises(InvalidInput, match="entropy must be"):
        call(*arguments, np.random.default_rng())


def test_sigma_or_its_square_and_not_both():
    for given in ({}, {"sigma": 1, "sigma_squared": 1}):
        with pytest.raises(InvalidInput, match="sigma"):
            sampling.discrete_gaussian(n=1, entropy=Forbidden(), **given)
    with pytest.raises(InvalidInput, match="sigma_squared"):
        sampling.discrete_gaussian(sigma_squared=-1, n=1, entropy=Forbidden())


def test_no_weight_or_score_is_shown_in_a_message():
    """They may be data."""
    for call in (
        lambda: sampling.categorical([5, -987654], 1, Forbidden()),
        lambda: _bernoulli.bernoulli_exp_each([-987654], 1, Forbidden()),
        lambda: sampling.argmax_gumbel([1, 987654.5], 1, Forbidden()),
    ):
        with pytest.raises(InvalidInput) as caught:
            call()
        assert "987654" not in str(caught.value)


@pytest.mark.skipif(np.dtype(np.longdouble).itemsize == 8, reason="long doubles are doubles here")
def test_a_probability_that_floats_would_round_is_refused() -> None:
    with pytest.raises(InvalidInput, match="ps must be"):
        _bernoulli.bernoulli_each(np.array([0.5], dtype=np.longdouble), Forbidden())


@pytest.mark.parametrize("dtype", [np.int8, np.int16])
def test_differences_that_their_own_type_does_not_hold_do_not_wrap(dtype) -> None:
    """Costs of 8 bits, -128 and 127: 255 apart, which is -1 in 8 bits and would make the worse one win."""
    limits = np.iinfo(dtype)
    far = np.array([limits.min, limits.max], dtype=dtype)
    for seed in range(5):
        entropy = sampling.SeededEntropy(seed)
        assert sampling.weighted_softmax(far, np.array([1, 1], dtype=dtype), 1, entropy) == 0
        assert sampling.top_k_gumbel_rows(far[None], 1, 1, entropy).tolist() == [[1]]


@pytest.mark.parametrize(
    "row",
    [np.array([0, 200], np.uint8), np.array([0, 2**64 - 1], np.uint64), np.array([-(2**63), 2**63 - 1])],
)
def test_scores_of_rows_are_compared_without_wrapping(row) -> None:
    scores = np.stack([row, row[::-1]])
    for seed in range(5):
        chosen = sampling.top_k_gumbel_rows(scores, 1, 2, sampling.SeededEntropy(seed))
        assert chosen.tolist() == [[1, 0], [0, 1]]
    assert sampling.top_k_gumbel_rows(scores[:0], 1, 2, Forbidden()).shape == (0, 2)


@pytest.mark.parametrize(
    ("costs", "weights", "rate", "chosen"),
    [
        ([0, 10**400], [1, 1], 1, {0}),
        ([0, 10**400], [1, 1], 0, {0, 1}),
        ([0, 10**400], [1, 1], Fraction(1, 10**400), {0, 1}),
        ([0, 10**200], [1, 1], 10**200, {0}),
        ([0, 0], [10**400, 1], 1, {0}),
        ([0, 0], [10**308, 10**308], 1, {0, 1}),
    ],
)
def test_costs_and_weights_beyond_floats_are_compared_as_integers(costs, weights, rate, chosen) -> None:
    drawn = {
        sampling.weighted_softmax(
            np.array(costs, object), np.array(weights, object), rate, sampling.SeededEntropy(seed)
        )
        for seed in range(20)
    }
    assert drawn == chosen


def test_costs_whose_differences_exceed_64_bits_do_not_wrap() -> None:
    ends = np.array(
        [-(2**63), 2**63 - 1]
    )  # the difference is -1 in int64, which would make the worse one e times as likely
    chosen = [sampling.weighted_softmax(ends, [1, 1], 1, sampling.SeededEntropy(seed)) for seed in range(50)]
    assert chosen == [0] * 50
