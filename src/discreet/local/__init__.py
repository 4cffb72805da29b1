"""The local model of differential privacy (LDP): nobody is trusted, so every report is private before it
leaves the device of its sender.

`respond` runs on the client and draws exactly, in integers; `estimate` runs anywhere and only post-processes
reports. `best` chooses the frequency oracle with the smallest predicted error. Browsers run the same client
in JavaScript: js/discreet-local.mjs. See docs/local.md.

>>> from discreet import local, sampling
>>> oracle = local.best(epsilon=1, domain=128, people=20_000)
>>> reports = oracle.respond([3, 5, 5], entropy=sampling.Entropy())
>>> len(reports), oracle.estimate(reports).value.shape
(3, (128,))
"""

from typing import TYPE_CHECKING

from .. import _registry

if TYPE_CHECKING:
    from ._base import LocalRandomizer as LocalRandomizer
    from .device import SCRIPT as SCRIPT
    from .device import ClientBudget as ClientBudget
    from .hashing import HadamardResponse as HadamardResponse
    from .hashing import LocalHashing as LocalHashing
    from .hashing import best as best
    from .hashing import predictions as predictions
    from .longterm import LongTermResponse as LongTermResponse
    from .means import DuchiMean as DuchiMean
    from .means import HybridMean as HybridMean
    from .means import LaplaceMean as LaplaceMean
    from .means import PiecewiseMean as PiecewiseMean
    from .oracles import DesignResponse as DesignResponse
    from .oracles import KaryResponse as KaryResponse
    from .oracles import OptimalUnary as OptimalUnary
    from .oracles import SubsetSelection as SubsetSelection
    from .oracles import SymmetricUnary as SymmetricUnary
    from .shares import consistent as consistent
    from .shares import expectation_maximization as expectation_maximization
    from .shuffle import Shuffler as Shuffler
    from .shuffle import blend as blend

__all__, __getattr__, __dir__ = _registry.exports(__name__)
