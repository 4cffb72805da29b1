"""Bounds on norms are never below the truth, however many numbers float32 has added up."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from discreet.learning.bounds import UNIT, growth, lengths, squares


def test_the_growth_of_a_sum_covers_what_rounding_may_have_taken_from_it():
    """A computed sum is at least 1 - gamma of the truth; in exact arithmetic, up to the largest finite growth."""
    for n in (1, 255, 10**4, 10**6, 3 * 10**6, 6 * 10**6, 62 * 10**5, 7 * 10**6, 8 * 10**6, 10**7):
        if np.isfinite(growth(n)):
            gamma = Fraction(n * UNIT) / (1 - Fraction(n * UNIT))
            assert (1 + Fraction(growth(n))) ** 2 * (1 - gamma) >= 1, n
    assert np.isfinite(growth(6 * 10**6))
    assert growth(10**7) == float("inf")


@pytest.mark.parametrize("n", [1, 100, 1023, 1024, 5000])
def test_bounds_are_at_least_the_norm_and_close_to_it(n):
    rows = torch.from_numpy(np.random.default_rng(n).normal(size=(50, n)).astype(np.float32))
    # squares of float32 are exact in float64, and fsum rounds their sum once
    exact = [math.fsum(x * x for x in row) for row in rows.tolist()]
    for bound in (squares(rows), squares(rows.double()), lengths(rows).double().square()):
        ratio = bound.numpy() / exact
        assert ratio.min() >= 1
        assert ratio.max() <= 1 + 4 * growth(n) + 1e-6
