"""Private learning with PyTorch: the same model, loss and data, and a price that is known before training."""

from typing import TYPE_CHECKING, Any

from .._errors import MissingExtra

try:
    import torch as _torch  # noqa: F401
except ImportError:
    raise MissingExtra.of("learn", "discreet.learning needs PyTorch") from None

from .augment import Augment, FlipAndShift
from .clipping import Adaptive, Automatic, Flat, PerLayer
from .correlated import Dense, Toeplitz, square_root
from .data import Examples, Tabular
from .discrete import Grid
from .distributed import across_workers
from .engine import Engine
from .noise import fill_gaussian
from .optimizers import SGD, Adam, warmup_cosine
from .performance import Performance
from .plan import routes, without_batch_norm
from .safety import made_up, probe
from .scaler import PrivateScaler, Scaling
from .schedules import BallsInBins, Cyclic, Poisson, TruncatedPoisson, WithoutReplacement, smallest_limit
from .trainer import Progress, Run, Trainer

if TYPE_CHECKING:
    from .estimators import DPClassifier, DPRegressor, LogisticRegression

__all__ = [
    "Augment",
    "FlipAndShift",
    "Adaptive",
    "Dense",
    "Toeplitz",
    "square_root",
    "Grid",
    "PrivateScaler",
    "Scaling",
    "Cyclic",
    "TruncatedPoisson",
    "smallest_limit",
    "SGD",
    "Adam",
    "Automatic",
    "BallsInBins",
    "DPClassifier",
    "DPRegressor",
    "Engine",
    "Examples",
    "Flat",
    "LogisticRegression",
    "PerLayer",
    "Performance",
    "Poisson",
    "Progress",
    "Run",
    "Tabular",
    "Trainer",
    "WithoutReplacement",
    "across_workers",
    "fill_gaussian",
    "made_up",
    "probe",
    "routes",
    "warmup_cosine",
    "without_batch_norm",
]


def __getattr__(name: str) -> Any:
    """Estimators load scikit-learn, which takes a while: only when they are asked for."""
    if name in ("DPClassifier", "DPRegressor", "LogisticRegression"):
        from . import estimators

        return getattr(estimators, name)
    raise AttributeError(f"module 'discreet.learning' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
