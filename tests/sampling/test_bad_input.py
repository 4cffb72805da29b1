"""Bad input is refused with a clear error before a single bit is drawn."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from discreet import sampling
from discreet._errors import InvalidInput

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
    *[(sampling.bernoulli_exp, (bad, 3)) for bad in (-1, math.nan, math.inf, "1", None)],
    *[(sampling.bernoulli_each, (bad,)) for bad in ([0.5, 1.5], [math.nan], ["a"], [[0.5]], [True])],
    *[
        (sampling.bernoulli_exp_each, bad)
        for bad in (([1], 0), ([1], -2), ([-1], 1), ([0.5], 1), (np.array([-1]), 1))
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
]


@for_each(("call", "arguments"), CALLS)
def test_bad_input_is_refused_and_nothing_is_drawn(call, arguments):
    with pytest.raises(InvalidInput, match=r"Nothing was computed or released|must"):
        call(*arguments, Forbidden())


@for_each(
    ("call", "arguments"),
    [
        (sampling.discrete_laplace, (1, 3)),
        (sampling.discrete_gaussian, (1, 3)),
        (sampling.bernoulli, (0.5, 3)),
        (sampling.bernoulli_each, ([0.5],)),
        (sampling.bernoulli_exp_each, ([1], 2)),
        (sampling.poisson_subset, (3, 0.5)),
        (sampling.binomial, (3, 0.5, 1)),
        (sampling.uniform_below, (3, 1)),
        (sampling.permutation, (3,)),
        (sampling.subset, (3, 1)),
        (sampling.categorical, ([1], 1)),
        (sampling.argmax_gumbel, ([1], 1)),
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
        lambda: sampling.bernoulli_exp_each([-987654], 1, Forbidden()),
    ):
        with pytest.raises(InvalidInput) as caught:
            call()
        assert "987654" not in str(caught.value)


def test_costs_whose_differences_exceed_64_bits_do_not_wrap() -> None:
    ends = np.array(
        [-(2**63), 2**63 - 1]
    )  # the difference is -1 in int64, which would make the worse one e times as likely
    chosen = [sampling.weighted_softmax(ends, [1, 1], 1, sampling.SeededEntropy(seed)) for seed in range(50)]
    assert chosen == [0] * 50
