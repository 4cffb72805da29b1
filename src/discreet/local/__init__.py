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

from pathlib import Path

from ._base import LocalRandomizer
from .device import ClientBudget
from .hashing import HadamardResponse, LocalHashing, best, predictions
from .longterm import LongTermResponse, Rappor
from .means import DuchiMean, HybridMean, LaplaceMean, PiecewiseMean
from .oracles import (
    DesignResponse,
    KaryResponse,
    OptimalUnary,
    SubsetSelection,
    SymmetricUnary,
)
from .shares import consistent, expectation_maximization
from .shuffle import Shuffler, blend

# The file with the client for browsers.
SCRIPT = Path(__file__).parent / "js" / "discreet-local.mjs"

__all__ = [
    "ClientBudget",
    "DesignResponse",
    "DuchiMean",
    "HadamardResponse",
    "HybridMean",
    "KaryResponse",
    "LaplaceMean",
    "LocalHashing",
    "LocalRandomizer",
    "LongTermResponse",
    "OptimalUnary",
    "PiecewiseMean",
    "Rappor",
    "SCRIPT",
    "Shuffler",
    "SubsetSelection",
    "SymmetricUnary",
    "best",
    "blend",
    "consistent",
    "expectation_maximization",
    "predictions",
]
