"""Privacy accounting: events say which mechanisms were run, accountants turn events into epsilon and delta.

This package never reads data and never draws noise.

`Gaussian(noise_multiplier=1.1).sampled(rate=0.01).repeated(1000)` says what was run;
`epsilon(event, delta=1e-5)` says what it costs.
"""

from . import amplification, individual, moments, pate, shuffling
from .api import bounds, delta, epsilon, tradeoff
from .calibration import calibrate
from .choice_events import (
    GNMax,
    NegativeBinomialTrials,
    NoisyMax,
    PoissonTrials,
    RDPPoint,
    RepeatAndSelect,
    SparseVector,
    Thresholded,
    Trials,
    geometric,
    logarithmic,
)
from .comparison import Comparison, compare
from .events import (
    ZCDP,
    ApproximateDP,
    Composed,
    DiscreteGaussian,
    DiscreteLaplace,
    Event,
    ExponentialMechanism,
    Gaussian,
    Group,
    Laplace,
    NonPrivate,
    NoOp,
    PoissonSampled,
    PureDP,
    RandomizedResponse,
    Repeated,
    VectorDiscreteGaussian,
    compose,
    from_json,
    leaves,
)
from .filters import BudgetFilter, Filter, FilterPreview, at_once
from .lanes import Capped, Spent
from .odometers import Odometer, Reading
from .plain_filters import GaussianFilter, ZCDPFilter, gaussian_filter
from .sampled_events import (
    BallsInBins,
    Banded,
    CorrelatedGaussian,
    MinSeparated,
    Participation,
    RandomAllocation,
    SampledWithoutReplacement,
    Shuffled,
    SingleEpoch,
    TreeRestarts,
    TruncatedPoisson,
)
from .selection_profiles import selection_delta, selection_epsilon
from .totals import Cost, basic, zcdp

__all__ = [
    "ApproximateDP",
    "BallsInBins",
    "Banded",
    "BudgetFilter",
    "Capped",
    "Comparison",
    "Composed",
    "CorrelatedGaussian",
    "Cost",
    "DiscreteGaussian",
    "DiscreteLaplace",
    "Event",
    "ExponentialMechanism",
    "Filter",
    "GNMax",
    "Gaussian",
    "GaussianFilter",
    "Group",
    "Laplace",
    "MinSeparated",
    "NegativeBinomialTrials",
    "NoOp",
    "NoisyMax",
    "NonPrivate",
    "Odometer",
    "Participation",
    "PoissonSampled",
    "PoissonTrials",
    "FilterPreview",
    "PureDP",
    "RDPPoint",
    "RandomAllocation",
    "RandomizedResponse",
    "Reading",
    "RepeatAndSelect",
    "Repeated",
    "SampledWithoutReplacement",
    "Shuffled",
    "SingleEpoch",
    "SparseVector",
    "Spent",
    "Thresholded",
    "TreeRestarts",
    "Trials",
    "TruncatedPoisson",
    "VectorDiscreteGaussian",
    "ZCDP",
    "ZCDPFilter",
    "amplification",
    "at_once",
    "basic",
    "bounds",
    "calibrate",
    "compare",
    "compose",
    "delta",
    "epsilon",
    "from_json",
    "gaussian_filter",
    "geometric",
    "individual",
    "leaves",
    "logarithmic",
    "moments",
    "pate",
    "selection_delta",
    "selection_epsilon",
    "shuffling",
    "tradeoff",
    "zcdp",
]
