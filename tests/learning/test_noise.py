"""Noise on gradients: its law, its tails, and that no vector is given twice."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from discreet.learning import fill_gaussian
from discreet.learning.noise import Reservoir
from discreet.sampling import Entropy, SeededEntropy

from .test_trainer import assert_normal


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_entries_are_normal_with_the_stated_deviation(dtype: torch.dtype) -> None:
    draws = fill_gaussian(torch.empty(200_001, dtype=dtype), 3.0, SeededEntropy(1)).double().numpy() / 3
    assert_normal(draws)
    half = len(draws) // 2
    assert_normal((draws[:half] + draws[half : 2 * half]) / math.sqrt(2))  # the two ends of a pair are independent
    for mutant in (draws * 1.05, draws + 0.03, np.clip(draws, -2, 2)):
        with pytest.raises(AssertionError):
            assert_normal(mutant)


def test_tails_are_those_of_a_gaussian() -> None:
    """Clopper-Pearson would do; Chernoff is simpler: 4 million draws, beyond 4 deviations 253 are expected; false alarm < 1e-9."""
    draws = fill_gaussian(torch.empty(4_000_000), 1.0, SeededEntropy(2)).abs()
    expected = 4e6 * math.erfc(4 / math.sqrt(2))
    count = int((draws > 4).sum())
    assert abs(count - expected) <= 6.6 * math.sqrt(expected) + 15


class Zeros(Entropy):
    def words(self, n: int) -> np.ndarray:
        return np.zeros(n, np.uint64)


def test_the_rarest_words_get_more_bits_and_stay_finite() -> None:
    draws = fill_gaussian(torch.empty(5), 1.0, Zeros())
    assert draws.isfinite().all()
    assert draws.abs().max() > 6.5, "beyond what 31 bits can give"


def test_no_vector_is_handed_out_twice() -> None:
    reservoir, seen = Reservoir(100, torch.float32, 1.0, Entropy()), set()
    for _ in range(1500):  # more than one block
        vector = torch.empty(100)
        reservoir.into(vector)
        seen.add(tuple(vector[:4].tolist()))
    assert len(seen) == 1500


def test_no_deviation_is_no_noise() -> None:
    assert fill_gaussian(torch.ones(3), 0.0, Entropy()).abs().sum() == 0
