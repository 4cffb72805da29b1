"""Provides building blocks with a price (a privacy event): statistics, noise, choices, thresholds, and the
algebra that joins them."""

from .additive import AddNoise, gaussian, laplace, noisy_count, noisy_histogram, noisy_sum
from .algebra import GroupPrivate, Parallel, Sequential, part_public
from .bounds import BinarySearchBounds, HistogramBounds
from .calibration import analytic_gaussian, classical_gaussian, discrete_gaussian, discrete_gaussian_delta
from .grid import GridGaussian, GridLaplace
from .input_perturbation import InputPerturbation
from .joint_quantiles import JointQuantiles
from .moments import Mean, MeanWithFoundBounds, Variance, with_bounds
from .noise import IntegerGaussian, IntegerLaplace, Noise
from .postprocess import Clamp, Fold, PostProcessed, Round, Truncate
from .protocols import (
    AnySource,
    ExampleSource,
    Interactive,
    Mechanism,
    Randomizer,
    Release,
    Sensitivity,
    Statistic,
    Stepped,
    check_source,
    release,
)
from .quantiles import ApproximateQuantiles, Median, MinMax, Quantile
from .randomized_response import RandomizedResponse, Reports
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
    NoisyTopWithGap,
    PermuteAndFlip,
    RealScores,
    ReportNoisyMax,
    Select,
    TopK,
    WithGap,
)
from .smooth import SmoothSensitivityMedian
from .sparse_vector import RedrawnSparseVector
from .stability import (
    DistanceToInstability,
    ProposeTestRelease,
    Stable,
    StableMedian,
    StableMode,
    TrustedStable,
)
from .stable_vector import StableSparseVector
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
from .table_parts import PartMean, PartMode
from .threshold import AboveThreshold, Component, SparseVector, ThresholdAnswer

__all__ = [
    "AboveThreshold",
    "AddNoise",
    "ThresholdAnswer",
    "AnySource",
    "ApproximateQuantiles",
    "BinarySearchBounds",
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
    "JointQuantiles",
    "Kary",
    "Mean",
    "MeanWithFoundBounds",
    "Mechanism",
    "Median",
    "MinMax",
    "Noise",
    "NoisyTopWithGap",
    "Parallel",
    "PartMean",
    "PartMode",
    "PermuteAndFlip",
    "PostProcessed",
    "PowerSum",
    "ProposeTestRelease",
    "Quantile",
    "RandomizedResponse",
    "Randomizer",
    "RealScores",
    "RedrawnSparseVector",
    "Release",
    "ReportNoisyMax",
    "Reports",
    "Round",
    "SampleAndAggregate",
    "Select",
    "Sensitivity",
    "Sequential",
    "SmoothSensitivityMedian",
    "SparseVector",
    "Stable",
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
    "WithGap",
    "analytic_gaussian",
    "check_source",
    "classical_gaussian",
    "discrete_gaussian",
    "discrete_gaussian_delta",
    "enough_subsamples",
    "gaussian",
    "grid_response_design",
    "implied_sensitivity",
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
