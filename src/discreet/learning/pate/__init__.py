"""PATE (private aggregation of teacher ensembles): teachers are trained on disjoint parts of private data; a
labeller releases noisy aggregates of their votes on public inputs, for a price; a student learns from these
labels, and may be published.

Papernot et al. 2017, arXiv:1610.05755, and 2018, arXiv:1802.08908; Bassily, Thakkar & Thakurta 2018,
arXiv:1803.05101. Aggregators and their prices are in `discreet.mechanisms.votes`.
"""

from ..._errors import MissingExtra

try:
    from .labeller import CostQuestion, Labels, PrivateTeachers, PublicInputs
    from .student import (
        FixMatchStudent,
        Student,
        TorchLearner,
        small_network,
        spread_labels,
        typical_examples,
    )
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise MissingExtra.of("learn", "discreet.learning.pate needs PyTorch") from None

__all__ = [
    "CostQuestion",
    "FixMatchStudent",
    "Labels",
    "PrivateTeachers",
    "PublicInputs",
    "Student",
    "TorchLearner",
    "small_network",
    "spread_labels",
    "typical_examples",
]
