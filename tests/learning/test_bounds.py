"""Bounds on norms are never below the truth, however many numbers float32 has added up."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from discreet.learning.clipping.taps import (
    UNIT,
    Lookup,
    ProductTap,
    Tap,
    Target,
    Tied,
    growth,
    lengths,
    not_zero,
    squares,
)


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


@pytest.mark.parametrize("size", [1e-20, 1.0])
def test_the_bound_of_a_row_does_not_depend_on_how_many_rows_there_are(size):
    row = torch.full((1, 1000), size)
    assert squares(row) == squares(row.expand(600, -1))[0]


def _filled_up(positions: int) -> list[Tap]:
    """Taps of one example with three positions of its own, filled up to so many. Inputs are as large, and
    gradients as small, as makes underflow a part of the bound; what is filled up may be infinite."""
    torch.manual_seed(0)
    table, ids = Target(torch.nn.Parameter(torch.empty(8, 8))), torch.arange(positions).unsqueeze(0) % 8
    x, g = torch.full((1, positions, 8), 1e15), torch.zeros(1, positions, 8)
    g[:, :3] = 1e-19 * torch.randn(1, 3, 8)
    infinite = x.clone()
    infinite[:, 3:] = torch.inf
    pairs = [(x, g), (g, x), (infinite, g)]
    products = [ProductTap(table, *pair, positions=nominal) for pair in pairs for nominal in (3, 60)]
    lookups = [Lookup(table, ids, g, positions=nominal) for nominal in (3, 200)]
    return [*products, *lookups, Tied(lookups[0], ProductTap(table, x, g, positions=3))]


def test_bounds_do_not_depend_on_how_far_an_example_is_filled_up():
    """To the longest example of a batch, which is another one."""
    for short, long in zip(_filled_up(3), _filled_up(60), strict=True):
        assert torch.allclose(short.square(), long.square(), rtol=1e-5, atol=0)


def test_a_position_is_not_zero_if_any_of_its_numbers_is_not() -> None:
    g = torch.randn(5, 7, 6, generator=torch.Generator().manual_seed(1))
    g[0], g[1, 2], g[4] = 0.0, 0.0, -0.0
    g[2, 5, 0], g[3, 3, 3], g[4, 1, 1] = -math.inf, math.nan, 1e-45
    g[2, 6] = -g[2, 6].abs()
    for dim in (1, 2):
        assert torch.equal(not_zero(g, dim), (g != 0).any(dim))
    assert not not_zero(torch.ones(3, 4, 0), 2).any()
