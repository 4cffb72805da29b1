"""The lecture's example: four questions, 128/epsilon² asked one by one, 12/epsilon² from disjoint cells; and
less with what is known."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from discreet.inference import isotonic, measured, non_negative
from discreet.sampling import SeededEntropy, discrete_laplace

CELLS = np.eye(4)  # men below 25, men above, women below, women above
QUESTIONS = np.array([[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]])


@pytest.mark.parametrize("epsilon", [0.1, 1.0])
def test_disjoint_cells_cost_12_where_one_by_one_costs_128(epsilon):
    one_by_one = 4 * 2 * (4 / epsilon) ** 2
    cells = measured(CELLS, [9.0, 8.0, 7.0, 6.0], 2 / epsilon**2)
    assert one_by_one == pytest.approx(128 / epsilon**2)
    assert cells.variance_of(QUESTIONS).sum() == pytest.approx(12 / epsilon**2)


def test_a_public_size_lowers_12_to_7():
    """Known total: the cells' covariance loses a quarter of its trace. 2(1 - 1/4) twice and 2(2 - 1) twice:
    7."""
    A, v = np.vstack([CELLS, np.ones(4)]), [2.0] * 4 + [0.0]
    fit = measured(A, [9.0, 8.0, 7.0, 6.0, 31.0], v)
    assert fit.variance_of(QUESTIONS).sum() == pytest.approx(7)
    assert fit.values.sum() == pytest.approx(31)


def test_even_asked_one_by_one_least_squares_finds_nothing_to_gain():
    """The four questions have no linear relation, so no unbiased linear estimate improves on them: 128 stays
    128."""
    fit = measured(QUESTIONS, [9.0, 17.0, 7.0, 13.0], 2 * 4.0**2)
    assert fit.variance_of(QUESTIONS).sum() == pytest.approx(128)


def test_constraints_reduce_every_single_error_and_most_of_the_time_strictly():
    """q1 <= q1 + q2: cells cannot be negative.

    Small counts, real discrete Laplace noise at epsilon 1/4, a thousand times.

    Never worse is a theorem, checked in each draw. Strictly better whenever a cell falls below zero: the
    empty one does with probability q / (1 + q) = 0.437, q = exp(-1/4), so in fewer than 300 of 1000 draws
    with probability below 1e-16 (Hoeffding).
    """
    truth = np.array([1.0, 40.0, 0.0, 55.0])
    noise = discrete_laplace(Fraction(4), 4_000, SeededEntropy(21)).reshape(1000, 4)
    raw = truth + noise
    consistent = np.array([non_negative(y, 2 * 4.0**2) for y in raw])
    before, after = (((x - truth) ** 2).sum(axis=1) for x in (raw, consistent))
    assert (after <= before).all()
    assert (after < before).sum() >= 300


def test_ordered_answers_are_never_further_away():
    """Cumulative counts, as in the lecture's ordering constraint."""
    truth = np.cumsum([3.0, 0, 1, 0, 2, 10, 0, 0])
    noise = discrete_laplace(Fraction(8), 8_000, SeededEntropy(22)).reshape(1000, 8)
    for y in truth + noise:
        x = isotonic(y)
        assert ((x - truth) ** 2).sum() <= ((y - truth) ** 2).sum() + 1e-9
