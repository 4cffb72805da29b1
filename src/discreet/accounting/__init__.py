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
    geometric,
    logarithmic,
)
from .comparison import compare
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
)
from .filters import Filter, at_once
from .odometers import Odometer
from .plain_filters import GaussianFilter, ZCDPFilter, gaussian_filter
from .sampled_events import (
    BallsInBins,
    Banded,
    CorrelatedGaussian,
    MinSeparated,
    RandomAllocation,
    SampledWithoutReplacement,
    Shuffled,
    SingleEpoch,
    TreeRestarts,
    TruncatedPoisson,
)
from .selection_profiles import selection_epsilon
from .totals import Cost, basic, zcdp

__all__ = [
    "ApproximateDP",
    "BallsInBins",
    "Banded",
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
    "PoissonSampled",
    "PoissonTrials",
    "PureDP",
    "RDPPoint",
    "RandomAllocation",
    "RandomizedResponse",
    "RepeatAndSelect",
    "Repeated",
    "SampledWithoutReplacement",
    "Shuffled",
    "SingleEpoch",
    "SparseVector",
    "Thresholded",
    "TreeRestarts",
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
    "logarithmic",
    "moments",
    "pate",
    "selection_epsilon",
    "shuffling",
    "tradeoff",
    "zcdp",
]
