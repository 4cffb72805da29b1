"""Private learning for tables, on numpy and scipy: no torch is needed or loaded."""

from .erm import LinearERM
from .gradient import GradientPerturbation
from .losses import Huber, HuberHinge, Logistic
from .model import LinearModel
from .objective import ObjectivePerturbation
from .output import OutputPerturbation
from .rows import Design

__all__ = [
    "Design",
    "GradientPerturbation",
    "Huber",
    "HuberHinge",
    "LinearERM",
    "LinearModel",
    "Logistic",
    "ObjectivePerturbation",
    "OutputPerturbation",
]
