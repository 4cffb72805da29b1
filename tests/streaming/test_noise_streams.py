"""Correlated noise in floats: the rows are C⁻¹ Z exactly, whatever the blocks, and a cut stream goes on."""

from __future__ import annotations

import numpy as np
import pytest

from discreet import InvalidInput
from discreet.mechanisms import matrix
from discreet.mechanisms.matrix.triangular import square_root
from discreet.sampling import SeededEntropy
from discreet.streaming.noise_streams import CorrelatedNoise


@pytest.mark.parametrize("strategy", [matrix.blt(12, 3), square_root(12, 4), square_root(12, 1)])
def test_rows_are_the_inverse_times_independent_noise_in_blocks_of_any_length(strategy: object) -> None:
    noise = CorrelatedNoise(strategy, 500, 1.5, SeededEntropy(1))  # type: ignore[arg-type]
    raw: list[np.ndarray] = []  # type: ignore[type-arg]
    draw = noise._gaussian
    noise._gaussian = lambda count: raw.append(draw(count)) or raw[-1]  # type: ignore[method-assign, func-returns-value, return-value]
    rows = np.concatenate([noise.rows(n) for n in (5, 0, 1, 6)])
    plain = np.concatenate(raw)
    assert np.allclose(strategy.matrix(12) @ rows, plain, atol=1e-9)  # type: ignore[attr-defined]
    # 6,000 draws: mean square within six deviations of 1.5², false alarm below 1e-8
    assert abs(float(np.mean(plain**2)) / 2.25 - 1) < 6 * np.sqrt(2 / 6000)


def test_a_state_goes_on_and_a_wrong_one_is_refused() -> None:
    whole = CorrelatedNoise(matrix.blt(100), 7, 1.0, SeededEntropy(2))
    whole.rows(10)
    resumed = CorrelatedNoise(matrix.blt(100), 7, 0.0, SeededEntropy(3), state=whole.state.copy())
    silent = CorrelatedNoise(matrix.blt(100), 7, 0.0, SeededEntropy(4))
    assert np.abs(resumed.rows(5)).max() > 1e-6
    assert np.abs(silent.rows(5)).max() == 0
    with pytest.raises(InvalidInput, match="another strategy"):
        CorrelatedNoise(matrix.blt(100), 8, 1.0, SeededEntropy(1), state=whole.state)
    assert sum(len(b) for b in silent.blocks(600)) == 600


def test_long_streams_in_blocks_are_the_inverse_too() -> None:
    """More rows than one product works on, cut at odd places."""
    strategy = matrix.blt(300, 4)
    noise = CorrelatedNoise(strategy, 3, 1.0, SeededEntropy(5))
    raw: list[np.ndarray] = []  # type: ignore[type-arg]
    draw = noise._gaussian
    noise._gaussian = lambda count: raw.append(draw(count)) or raw[-1]  # type: ignore[method-assign, func-returns-value, return-value]
    rows = np.concatenate([noise.rows(n) for n in (130, 1, 64, 105)])
    assert np.allclose(strategy.matrix(300) @ rows, np.concatenate(raw), atol=1e-9)
