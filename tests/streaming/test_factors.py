"""Error factors: the published values, the optimum's proved gap, and who says what it minimizes."""

from __future__ import annotations

import numpy as np
import pytest

from discreet import InvalidInput
from discreet.mechanisms import matrix
from discreet.mechanisms.matrix.strategies import optimal_prefix
from discreet.mechanisms.matrix.triangular import sensitivity
from discreet.streaming import NAMES, error_factors, named

GOLDEN = {  # steps, name: max, rms. Closed forms; the square root is Fichtenberger et al. 2023, arXiv:2202.11205
    (1024, "square_root"): (3.27255, 3.10979),
    (4096, "square_root"): (3.71388, 3.55129),
    (1024, "tree"): (10.488, 7.417),
    (4096, "tree"): (12.490, 8.832),
    (1024, "honaker"): (7.989, 5.650),
    (4096, "honaker"): (9.404, 6.650),
}


@pytest.mark.parametrize(("steps", "name"), GOLDEN)
def test_factors_are_the_published_ones(steps: int, name: str) -> None:
    assert error_factors(name, steps=steps) == pytest.approx(GOLDEN[steps, name], abs=6e-4)


@pytest.mark.parametrize("steps", [1024, 4096])
def test_four_buffers_are_within_one_percent_of_the_square_root(steps: int) -> None:
    largest, rms = GOLDEN[steps, "square_root"]
    assert error_factors("blt", steps=steps).max <= 1.01 * largest
    assert error_factors("blt", steps=steps).rms <= 1.01 * rms
    assert error_factors("blt", steps=steps, minimize="rms").rms <= rms


def test_three_buffers_reach_the_published_value() -> None:
    # 3.2776 for T = 1024: arXiv:2404.16706 reports the same family
    assert error_factors("blt", steps=1024, buffers=3).max == pytest.approx(3.2776, abs=1e-3)


def test_the_closed_form_of_buffered_strategies_is_that_of_their_matrix() -> None:
    strategy = matrix.blt(60, 3)
    C = strategy.matrix(60)
    B = np.tril(np.ones((60, 60))) @ np.linalg.inv(C)
    rows = np.square(B).sum(1)
    column = np.square(C).sum(0).max()
    expected = np.sqrt(column * np.array([rows.max(), rows.mean()]))
    assert error_factors(strategy, steps=60) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("minimize", "least"), [("max", 2.5327), ("rms", 2.52441)])
def test_the_optimum_of_256_steps_is_reached_and_proved(minimize: str, least: float) -> None:
    factors = error_factors("optimal", steps=256, minimize=minimize)
    assert getattr(factors, minimize) <= 1.005 * least
    assert factors.minimizes == minimize
    triangle = optimal_prefix(256, minimize)
    assert triangle.bound <= getattr(factors, minimize) <= triangle.bound * 1.0025
    assert np.allclose(triangle.C, np.tril(triangle.C))


def test_every_strategy_says_what_it_minimizes_and_beats_the_naive_ones() -> None:
    naive = min(error_factors(name, steps=64).max for name in ("item", "fresh"))
    for name in NAMES:
        factors = error_factors(name, steps=64)
        assert factors.minimizes
        assert factors.rms <= factors.max
        assert name in ("item", "fresh", "tree") or factors.max < naive


def test_several_participations_of_a_buffered_strategy_are_bounded_like_its_matrix() -> None:
    strategy = matrix.blt(40, 3)
    same = matrix.Toeplitz(coefficients=tuple(strategy.coefficients(40).tolist()))
    for separation, times in ((1, 1), (5, 3), (1, 40)):
        ours = sensitivity(strategy, 40, separation, times)
        assert ours == pytest.approx(sensitivity(same, 40, separation, times), rel=1e-12)
        pattern = list(range(0, 40, separation)[:times])
        exact = np.linalg.norm(strategy.matrix(40)[:, pattern].sum(1))
        assert exact <= ours <= exact * (1 + 1e-9)


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(InvalidInput, match="strategy"):
        error_factors("best", steps=4)
    with pytest.raises(InvalidInput, match="interlace"):
        matrix.triangular.Buffered(decays=(0.5, 0.9), inverse_decays=(0.4, 0.2))
    with pytest.raises(InvalidInput, match="blt"):
        named("square_root", 1 << 20)
    with pytest.raises(InvalidInput, match="at most"):
        matrix.blt(10, 99)


def test_what_is_no_strategy_is_refused() -> None:
    with pytest.raises(InvalidInput, match="honaker"):
        error_factors(5, steps=3)
