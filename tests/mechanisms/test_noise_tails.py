"""Intervals of linear combinations of discrete noises, against their exact distributions."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from statistics import NormalDist

import numpy as np
import pytest

from discreet.mechanisms import IntegerGaussian, IntegerLaplace
from discreet.mechanisms import noise as noise_tails

Floats = np.ndarray

# One noise, many equal ones, one large beside many small ones, coefficients without a common measure.
COEFFICIENTS = [
    (1,), (1, 1), (1, 1, 1), (1,) * 8, (1,) * 30, (10, 7), (10, 1), (30, 1, 1, 1), (20,) + (1,) * 20,
    (13, 11, 7, 5, 3, 2), (9,) + (2,) * 10, (50, 49), (40, 20, 10, 5),
]  # fmt: skip


def laplace(scale: float) -> Floats:
    """The probabilities of discrete Laplace noise from -k to k."""
    k = np.arange(-int(scale * 40 + 3), int(scale * 40 + 3) + 1)
    weights = np.exp(-np.abs(k) / scale)
    return weights / weights.sum()


def gaussian(sigma: float) -> Floats:
    """The probabilities of discrete Gaussian noise from -k to k."""
    k = np.arange(-int(sigma * 10 + 3), int(sigma * 10 + 3) + 1)
    weights = np.exp(-(k.astype(float) ** 2) / (2 * sigma**2))
    return weights / weights.sum()


def combination(draw: Floats, coefficients: tuple[int, ...]) -> Floats:
    """The probabilities of a linear combination of independent draws."""
    length = 1 + (len(draw) - 1) * sum(coefficients)
    size = 1 << length.bit_length()
    transform = np.ones(size // 2 + 1, complex)
    for a in coefficients:
        spread = np.zeros(1 + (len(draw) - 1) * a)
        spread[::a] = draw
        transform *= np.fft.rfft(spread, size)
    return np.fft.irfft(transform, size)[:length]


def coverages(draw: Floats, width: float) -> list[float]:
    """How often each combination is within so many of its standard deviations."""
    x = np.arange(len(draw)) - len(draw) // 2
    deviation = math.sqrt(float((draw * x**2).sum()))
    result = []
    for coefficients in COEFFICIENTS:
        chances = combination(draw, coefficients)
        distance = np.abs(np.arange(len(chances)) - len(chances) // 2)
        length = math.sqrt(sum(a * a for a in coefficients))
        result.append(float(chances[distance <= width * deviation * length * (1 + 1e-12)].sum()))
    return result


CASES = [
    (laplace, noise_tails.laplace_width, (0.12, 0.2, 0.3, 0.4, 0.5, 0.7, 1, 1.5, 3, 8)),
    (
        gaussian,
        lambda s, c: noise_tails.gaussian_width(s * s, c),
        (0.25, 0.35, 0.5, 0.75, 0.85, 1, 1.5, 3, 6),
    ),
]


@pytest.mark.parametrize("confidence", [0.5, 0.8, 0.9, 0.95, 0.99])
@pytest.mark.parametrize(("draws", "width", "scales"), CASES, ids=["laplace", "gaussian"])
def test_combinations_of_discrete_noises_are_within_their_intervals_as_often_as_claimed(
    draws: Callable[[float], Floats],
    width: Callable[..., float],
    scales: tuple[float, ...],
    confidence: float,
) -> None:
    """At .95 the least excess is .003 (Laplace) and .008 (Gaussian), the mean one .03: narrow noise is nearly
    always within."""
    least = min(c for scale in scales for c in coverages(draws(scale), width(Fraction(scale), confidence)))
    assert least >= confidence


@pytest.mark.parametrize(("sigma", "covers"), [(0.5, 0.79), (1.0, 0.89)])
def test_normal_quantiles_do_not_cover_narrow_discrete_gaussian_noise(sigma: float, covers: float) -> None:
    normal = NormalDist().inv_cdf(0.975)
    assert min(coverages(gaussian(sigma), normal)) < covers


def test_the_intervals_of_wide_noise_are_nearly_normal_ones() -> None:
    normal = NormalDist().inv_cdf(0.975)
    assert noise_tails.gaussian_width(Fraction(10**4), 0.95) < 1.003 * normal
    assert noise_tails.gaussian_width(Fraction(100), 0.95) < 1.03 * normal
    assert noise_tails.laplace_width(Fraction(100), 0.95) < 1.003 * math.log(20) / math.sqrt(2)


def test_noise_that_is_nearly_always_zero_has_an_interval() -> None:
    for noise in (
        IntegerLaplace.for_epsilon(10**6, sensitivity=1),
        IntegerGaussian.for_rho(10**6, sensitivity=1),
    ):
        assert 0 < noise.combined_width(0.95) <= 1 / math.sqrt(0.05) + 1e-9
