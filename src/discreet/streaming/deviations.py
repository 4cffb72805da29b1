"""Computes the standard deviation of a counter's release at each step, and the noise, encoders and variances
that it follows from; each result is cached.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..mechanisms.matrix.binary_tree import BinaryTree
from ..mechanisms.matrix.triangular import Dense
from ..mechanisms.noise import IntegerGaussian, IntegerLaplace
from .encoders import Encoder, encoder
from .factors import StreamStrategy, decoder
from .running import RunningSum

if TYPE_CHECKING:
    from .continual import ContinualCounter

Floats = NDArray[np.float64]
Noise = IntegerLaplace | IntegerGaussian


@lru_cache(maxsize=256)
def noise_of(counter: ContinualCounter, steps: int) -> Noise:
    """Return the noise that a block of so many steps needs for the counter's epsilon or rho."""
    sensitivity, neighbors = counter._block_sensitivity(steps), counter.public.neighbors
    if counter.epsilon is not None:
        return IntegerLaplace.for_epsilon(counter.epsilon, sensitivity=sensitivity, neighbors=neighbors)
    assert counter.rho is not None
    return IntegerGaussian.for_rho(counter.rho, sensitivity=sensitivity, neighbors=neighbors)


@lru_cache(maxsize=64)
def encoder_of(strategy: StreamStrategy, steps: int) -> Encoder:
    """Return the encoder of a strategy for so many steps; the latest are cached."""
    return encoder(strategy, steps)


def worst_candidates(steps: int) -> list[int]:
    """Return a few steps from 1 to `steps`, one of which has the largest error.

    Proof: for Toeplitz strategies it is the last step. For trees each binary digit 1 of a step adds a noisy
           node, whose variance depends on the digit's position alone. A step below `steps` first differs
           from it in a digit that is 1 in `steps` and 0 in the step; all later digits 1 make its error
           largest.
    """
    below = ((steps >> k << k) - 1 for k in range(steps.bit_length()) if steps >> k & 1)
    return sorted({t for t in (*below, steps) if t})


@lru_cache(maxsize=8192)
def deviation_at(counter: ContinualCounter, step: int) -> float:
    """Return the standard deviation of the release at a step; its unit is the statistic's grid spacing."""
    if counter.window is not None or counter.decay is not None:
        return filtered_deviation(counter, step)
    start, length, position = counter._block_of(step)
    variance = variances_of(counter.strategy, length)[position - 1] * noise_variance(counter, length)
    if counter.restart is None and counter.horizon is None:
        # Without a horizon, blocks of 1, 2, 4, ... steps follow each other, and the release adds the noisy
        # sums of all earlier blocks.
        earlier = 1
        while earlier <= start:
            variance += variances_of(counter.strategy, earlier)[-1] * noise_variance(counter, earlier)
            earlier *= 2
    return math.sqrt(variance)


@lru_cache(maxsize=64)
def worst_deviation(counter: ContinualCounter) -> float:
    """Return the largest deviation over the steps of the horizon (with a `restart`, of the first block; with
    neither, of the first 1,024 steps); its unit is the statistic's grid spacing."""
    last = min((n for n in (counter.horizon, counter.restart) if n is not None), default=1024)
    if counter.horizon is None and counter.restart is None:
        return max(deviation_at(counter, step) for step in range(1, last + 1))
    window_of_tree = counter.window is not None and isinstance(counter.strategy, BinaryTree | RunningSum)
    if isinstance(counter.strategy, Dense) or window_of_tree:
        # Any step may be the worst. A window is the difference of two sums, so its deviation is at most the
        # sum of theirs (`filtered_deviation`).
        deviations = np.sqrt(variances_of(counter.strategy, counter._block_length(1))[:last])
        subtracted = np.zeros(last)
        if counter.window is not None:
            subtracted[counter.window :] = deviations[: max(0, last - counter.window)]
        largest = float((deviations + subtracted).max())
        return math.sqrt(noise_variance(counter, counter._block_length(1))) * largest
    return max(deviation_at(counter, step) for step in worst_candidates(last))


@lru_cache(maxsize=1024)
def noise_variance(counter: ContinualCounter, length: int) -> float:
    """Return the variance of the noise on one measurement of a block."""
    return counter.noise(length).mean_squared_error


def filtered_deviation(counter: ContinualCounter, step: int) -> float:
    """Return the standard deviation of a window or a decayed sum at a step.

    For strategies that are not Toeplitz it is an upper bound: a window is the difference of two running sums,
    and its deviation is at most the sum of their deviations.
    """
    length = counter._block_length(1)
    noise_deviation = math.sqrt(noise_variance(counter, length))
    if isinstance(counter.strategy, BinaryTree | RunningSum | Dense):
        # `counter_checks.check_shape` refuses decayed sums with these strategies.
        assert counter.window is not None
        variances = variances_of(counter.strategy, length)
        before = step - counter.window
        return noise_deviation * (
            math.sqrt(variances[step - 1]) + (math.sqrt(variances[before - 1]) if before > 0 else 0)
        )
    return noise_deviation * math.sqrt(
        filtered_variances(counter.strategy, length, counter.window, counter.decay)[step - 1]
    )


@lru_cache(maxsize=64)
def filtered_variances(strategy: Any, steps: int, window: int | None, decay: float | None) -> Floats:
    """Return the variances of a window or a decayed sum, for measurements with noise of variance 1."""
    age = np.arange(steps)
    workload: Floats = (
        (age < window).astype(float) if window is not None else np.power(float(decay or 0), age)
    )
    scale = encoder_of(strategy, steps).scale
    return np.asarray(np.cumsum(np.square(decoder(strategy, workload)))) / float(scale) ** 2


@lru_cache(maxsize=64)
def variances_of(strategy: Any, steps: int) -> Floats:
    """Return the variance of the sum after each step, for noise of variance 1 on each measurement."""
    return encoder_of(strategy, steps).variances()
