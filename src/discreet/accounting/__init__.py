"""Privacy accounting: events say which mechanisms were run, accountants turn events into epsilon and delta.

This package never reads data and never draws noise.

`Gaussian(noise_multiplier=1.1).sampled(rate=0.01).repeated(1000)` says what was run;
`epsilon(event, delta=1e-5)` says what it costs.
"""

from typing import TYPE_CHECKING

from .. import _registry

if TYPE_CHECKING:
    from . import amplification as amplification
    from . import moments as moments
    from . import pate as pate
    from . import shuffling as shuffling
    from .calibration import calibrate as calibrate
    from .conversion import Cost as Cost
    from .conversion import basic as basic
    from .conversion import zcdp as zcdp
    from .events import ZCDP as ZCDP
    from .events import ApproximateDP as ApproximateDP
    from .events import BallsInBins as BallsInBins
    from .events import Banded as Banded
    from .events import Composed as Composed
    from .events import CorrelatedGaussian as CorrelatedGaussian
    from .events import DiscreteGaussian as DiscreteGaussian
    from .events import DiscreteLaplace as DiscreteLaplace
    from .events import Event as Event
    from .events import ExponentialMechanism as ExponentialMechanism
    from .events import Gaussian as Gaussian
    from .events import GNMax as GNMax
    from .events import Group as Group
    from .events import Laplace as Laplace
    from .events import MinSeparated as MinSeparated
    from .events import NegativeBinomialTrials as NegativeBinomialTrials
    from .events import NoisyMax as NoisyMax
    from .events import NonPrivate as NonPrivate
    from .events import NoOp as NoOp
    from .events import PoissonSampled as PoissonSampled
    from .events import PoissonTrials as PoissonTrials
    from .events import PureDP as PureDP
    from .events import RandomAllocation as RandomAllocation
    from .events import RandomizedResponse as RandomizedResponse
    from .events import RDPPoint as RDPPoint
    from .events import RepeatAndSelect as RepeatAndSelect
    from .events import Repeated as Repeated
    from .events import SampledWithoutReplacement as SampledWithoutReplacement
    from .events import Shuffled as Shuffled
    from .events import SingleEpoch as SingleEpoch
    from .events import SparseVector as SparseVector
    from .events import Thresholded as Thresholded
    from .events import TreeRestarts as TreeRestarts
    from .events import TruncatedPoisson as TruncatedPoisson
    from .events import VectorDiscreteGaussian as VectorDiscreteGaussian
    from .events import compose as compose
    from .events import from_json as from_json
    from .events import geometric as geometric
    from .events import logarithmic as logarithmic
    from .filters import Filter as Filter
    from .filters import ZCDPFilter as ZCDPFilter
    from .filters import at_once as at_once
    from .odometer import Odometer as Odometer
    from .pricing import bounds as bounds
    from .pricing import compare as compare
    from .pricing import delta as delta
    from .pricing import epsilon as epsilon
    from .pricing import tradeoff as tradeoff

__all__, __getattr__, __dir__ = _registry.exports(__name__)
