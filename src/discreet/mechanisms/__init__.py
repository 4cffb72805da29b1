"""Provides building blocks with a price (a privacy event): statistics, noise, choices, thresholds, and the
algebra that joins them."""

from typing import TYPE_CHECKING

from .. import _registry

if TYPE_CHECKING:
    from .additive import AddNoise as AddNoise
    from .additive import GridGaussian as GridGaussian
    from .additive import GridLaplace as GridLaplace
    from .additive import InputPerturbation as InputPerturbation
    from .additive import gaussian as gaussian
    from .additive import laplace as laplace
    from .additive import noisy_count as noisy_count
    from .additive import noisy_histogram as noisy_histogram
    from .additive import noisy_sum as noisy_sum
    from .algebra import Clamp as Clamp
    from .algebra import Fold as Fold
    from .algebra import GroupPrivate as GroupPrivate
    from .algebra import Parallel as Parallel
    from .algebra import PostProcessed as PostProcessed
    from .algebra import Round as Round
    from .algebra import Sequential as Sequential
    from .algebra import Truncate as Truncate
    from .algebra import part_public as part_public
    from .bounds import HistogramBounds as HistogramBounds
    from .means import Mean as Mean
    from .means import MeanWithFoundBounds as MeanWithFoundBounds
    from .means import Variance as Variance
    from .means import with_bounds as with_bounds
    from .noise import IntegerGaussian as IntegerGaussian
    from .noise import IntegerLaplace as IntegerLaplace
    from .noise import Noise as Noise
    from .noise_scales import analytic_gaussian as analytic_gaussian
    from .noise_scales import classical_gaussian as classical_gaussian
    from .noise_scales import discrete_gaussian as discrete_gaussian
    from .protocols import ExampleSource as ExampleSource
    from .protocols import Interactive as Interactive
    from .protocols import Mechanism as Mechanism
    from .protocols import Release as Release
    from .protocols import Sensitivity as Sensitivity
    from .protocols import Statistic as Statistic
    from .protocols import Stepped as Stepped
    from .protocols import allow as allow
    from .protocols import release as release
    from .quantiles import ApproximateQuantiles as ApproximateQuantiles
    from .quantiles import Median as Median
    from .quantiles import Quantile as Quantile
    from .randomized_response import Channel as Channel
    from .randomized_response import Kary as Kary
    from .randomized_response import RandomizedResponse as RandomizedResponse
    from .randomized_response import grid_response_design as grid_response_design
    from .randomized_response import optimal_response_design as optimal_response_design
    from .randomized_response import two_coins as two_coins
    from .randomized_response import yes_fraction_variance as yes_fraction_variance
    from .sample_aggregate import PartMean as PartMean
    from .sample_aggregate import SampleAndAggregate as SampleAndAggregate
    from .sample_aggregate import SubsampleAggregateStable as SubsampleAggregateStable
    from .sample_aggregate import enough_subsamples as enough_subsamples
    from .selection import CellCounts as CellCounts
    from .selection import CellDistances as CellDistances
    from .selection import Mistakes as Mistakes
    from .selection import RealScores as RealScores
    from .selection import Select as Select
    from .selection import enough_rows as enough_rows
    from .selectors import ExponentialMechanism as ExponentialMechanism
    from .selectors import PermuteAndFlip as PermuteAndFlip
    from .selectors import ReportNoisyMax as ReportNoisyMax
    from .selectors import TopK as TopK
    from .sparse_vector import AboveThreshold as AboveThreshold
    from .sparse_vector import Component as Component
    from .sparse_vector import RedrawnSparseVector as RedrawnSparseVector
    from .sparse_vector import SparseVector as SparseVector
    from .sparse_vector import StableSparseVector as StableSparseVector
    from .stability import DistanceToInstability as DistanceToInstability
    from .stability import ProposeTestRelease as ProposeTestRelease
    from .stability import SmoothSensitivityMedian as SmoothSensitivityMedian
    from .stability import StableMedian as StableMedian
    from .stability import StableMode as StableMode
    from .stability import TrustedStable as TrustedStable
    from .statistics import Count as Count
    from .statistics import CountNonNull as CountNonNull
    from .statistics import CountsBelow as CountsBelow
    from .statistics import Histogram as Histogram
    from .statistics import Stack as Stack
    from .statistics import Sum as Sum
    from .statistics import SumOfSquares as SumOfSquares
    from .statistics import Trusted as Trusted

__all__, __getattr__, __dir__ = _registry.exports(__name__)
