"""Provides building blocks with a price (a privacy event): statistics, noise, choices, thresholds, and the
algebra that joins them."""

from .additive import AddNoise, gaussian, laplace, noisy_count, noisy_histogram, noisy_sum
from .algebra import GroupPrivate, Parallel, Sequential, part_public
from .bounds import HistogramBounds
from .calibration import analytic_gaussian, classical_gaussian, discrete_gaussian
from .grid import GridGaussian, GridLaplace
from .input_perturbation import InputPerturbation
from .moments import Mean, MeanWithFoundBounds, Variance, with_bounds
from .noise import IntegerGaussian, IntegerLaplace, Noise
from .postprocess import Clamp, Fold, PostProcessed, Round, Truncate
from .protocols import (
    ExampleSource,
    Interactive,
    Mechanism,
    Release,
    Sensitivity,
    Statistic,
    Stepped,
    release,
)
from .quantiles import ApproximateQuantiles, Median, MinMax, Quantile
from .randomized_response import RandomizedResponse
from .response_designs import (
    Channel,
    Kary,
    grid_response_design,
    optimal_response_design,
    two_coins,
    yes_fraction_variance,
)
from .sample_aggregate import SampleAndAggregate, SubsampleAggregateStable, enough_subsamples
from .selection import (
    CellCounts,
    CellDistances,
    ExponentialMechanism,
    PermuteAndFlip,
    RealScores,
    ReportNoisyMax,
    Select,
    TopK,
)
from .smooth import SmoothSensitivityMedian
from .sparse_vector import RedrawnSparseVector
from .stability import DistanceToInstability, ProposeTestRelease, StableMedian, StableMode, TrustedStable
from .stable_vector import StableSparseVector
from .statistics import Count, CountNonNull, CountsBelow, Histogram, Stack, Sum, SumOfSquares, Trusted
from .table_parts import PartMean, PartMode
from .threshold import AboveThreshold, Component, SparseVector

__all__ = [
    "AboveThreshold",
    "AddNoise",
    "ApproximateQuantiles",
    "CellCounts",
    "CellDistances",
    "Clamp",
    "Count",
    "CountNonNull",
    "CountsBelow",
    "Channel",
    "DistanceToInstability",
    "Component",
    "ExampleSource",
    "ExponentialMechanism",
    "Fold",
    "GridGaussian",
    "GridLaplace",
    "GroupPrivate",
    "Histogram",
    "HistogramBounds",
    "InputPerturbation",
    "IntegerGaussian",
    "IntegerLaplace",
    "Interactive",
    "Kary",
    "Mean",
    "MeanWithFoundBounds",
    "Mechanism",
    "Median",
    "MinMax",
    "Noise",
    "Parallel",
    "PartMean",
    "PartMode",
    "PermuteAndFlip",
    "PostProcessed",
    "ProposeTestRelease",
    "Quantile",
    "RandomizedResponse",
    "RealScores",
    "RedrawnSparseVector",
    "Release",
    "ReportNoisyMax",
    "Round",
    "SampleAndAggregate",
    "Select",
    "Sensitivity",
    "Sequential",
    "SmoothSensitivityMedian",
    "SparseVector",
    "StableMedian",
    "StableMode",
    "StableSparseVector",
    "Stack",
    "Statistic",
    "Stepped",
    "SubsampleAggregateStable",
    "Sum",
    "SumOfSquares",
    "TopK",
    "Truncate",
    "Trusted",
    "TrustedStable",
    "Variance",
    "analytic_gaussian",
    "classical_gaussian",
    "discrete_gaussian",
    "enough_subsamples",
    "gaussian",
    "grid_response_design",
    "laplace",
    "noisy_count",
    "noisy_histogram",
    "noisy_sum",
    "optimal_response_design",
    "part_public",
    "release",
    "two_coins",
    "with_bounds",
    "yes_fraction_variance",
]
