"""Building blocks with a price: statistics, noise, choices, thresholds, and the algebra that joins them."""

from .additive import AddNoise, gaussian, laplace, noisy_count, noisy_histogram, noisy_sum
from .calibration import analytic_gaussian, classical_gaussian, discrete_gaussian, discrete_gaussian_delta
from .grid import GridGaussian, GridLaplace
from .noise import IntegerGaussian, IntegerLaplace, Noise
from .protocols import Interactive, Mechanism, Release, Sensitivity, Statistic, check_source, release
from .statistics import (
    Count,
    CountNonNull,
    CountsBelow,
    Histogram,
    PowerSum,
    Stack,
    Sum,
    SumOfSquares,
    Trusted,
    implied_sensitivity,
)

__all__ = [
    "AddNoise",
    "Count",
    "CountNonNull",
    "CountsBelow",
    "GridGaussian",
    "GridLaplace",
    "Histogram",
    "IntegerGaussian",
    "IntegerLaplace",
    "Interactive",
    "Mechanism",
    "Noise",
    "PowerSum",
    "Release",
    "Sensitivity",
    "Stack",
    "Statistic",
    "Sum",
    "SumOfSquares",
    "Trusted",
    "analytic_gaussian",
    "check_source",
    "classical_gaussian",
    "discrete_gaussian",
    "discrete_gaussian_delta",
    "gaussian",
    "implied_sensitivity",
    "laplace",
    "noisy_count",
    "noisy_histogram",
    "noisy_sum",
    "release",
]
