"""Building blocks with a price: statistics, noise, choices, thresholds, and the algebra that joins them."""

from .additive import AddNoise, gaussian, laplace, noisy_count, noisy_histogram, noisy_sum
from .algebra import GroupPrivate, Parallel, Sequential, part_public
from .calibration import analytic_gaussian, classical_gaussian, discrete_gaussian, discrete_gaussian_delta
from .grid import GridGaussian, GridLaplace
from .input_perturbation import InputPerturbation
from .noise import IntegerGaussian, IntegerLaplace, Noise
from .postprocess import Clamp, Fold, PostProcessed, Round, Truncate
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
    "Clamp",
    "Count",
    "CountNonNull",
    "CountsBelow",
    "Fold",
    "GridGaussian",
    "GridLaplace",
    "GroupPrivate",
    "Histogram",
    "InputPerturbation",
    "IntegerGaussian",
    "IntegerLaplace",
    "Interactive",
    "Mechanism",
    "Noise",
    "Parallel",
    "PostProcessed",
    "PowerSum",
    "Release",
    "Round",
    "Sensitivity",
    "Sequential",
    "Stack",
    "Statistic",
    "Sum",
    "SumOfSquares",
    "Truncate",
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
    "part_public",
    "release",
]
