"""Learns privately: neural networks with PyTorch, and linear models and statistics of tables (`tabular`) on
numpy and scipy.

A user brings the model, the loss and the data; the price is known before training. A name's module is
imported when the name is first used, so that `learning.tabular` needs no torch, and scikit-learn is imported
only by the names that need it.

A new public name goes into three lists: the imports under TYPE_CHECKING, `_MODULE_OF` and `__all__`.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from .._errors import MissingExtra

if TYPE_CHECKING:
    from . import tabular
    from .augment import Augment, FlipAndShift
    from .batch_norm import without_batch_norm
    from .clipping import Adaptive, Automatic, Flat, PerLayer
    from .correlated import Dense, Toeplitz, square_root
    from .data import Examples, Tabular
    from .discrete import GradientGrid
    from .distributed import across_workers
    from .engine import ClippingEngine
    from .estimators import DPClassifier, DPRegressor, SGDLogisticRegression
    from .federated import LocalSGD
    from .hugging_face import TransformersTrainer
    from .noise import fill_gaussian
    from .optimizers import SGD, Adam, warmup_cosine
    from .performance import Performance
    from .plan import routes
    from .safety import made_up, probe
    from .scaler import PrivateScaler, Scaling
    from .schedules import BallsInBins, Cyclic, Poisson, TruncatedPoisson, WithoutReplacement, smallest_limit
    from .tabular import (
        PCA,
        DecisionTreeClassifier,
        DecisionTreeRegressor,
        ExplainableBoostingClassifier,
        ExplainableBoostingRegressor,
        GaussianNB,
        HuberRegressor,
        KMeans,
        LinearRegression,
        LinearSVC,
        LogisticRegression,
        PrivatePipeline,
        PrivateSearch,
        Ridge,
    )
    from .trainer import Progress, Trainer, TrainingRun

# The module of this package that defines each public name.
_MODULE_OF = {
    "Augment": "augment",
    "FlipAndShift": "augment",
    "Adaptive": "clipping",
    "Automatic": "clipping",
    "Flat": "clipping",
    "PerLayer": "clipping",
    "Dense": "correlated",
    "Toeplitz": "correlated",
    "square_root": "correlated",
    "Examples": "data",
    "Tabular": "data",
    "GradientGrid": "discrete",
    "across_workers": "distributed",
    "ClippingEngine": "engine",
    "LocalSGD": "federated",
    "TransformersTrainer": "hugging_face",
    "DPClassifier": "estimators",
    "DPRegressor": "estimators",
    "SGDLogisticRegression": "estimators",
    "fill_gaussian": "noise",
    "Adam": "optimizers",
    "SGD": "optimizers",
    "warmup_cosine": "optimizers",
    "Performance": "performance",
    "routes": "plan",
    "without_batch_norm": "batch_norm",
    "made_up": "safety",
    "probe": "safety",
    "PrivateScaler": "scaler",
    "Scaling": "scaler",
    "BallsInBins": "schedules",
    "Cyclic": "schedules",
    "Poisson": "schedules",
    "TruncatedPoisson": "schedules",
    "WithoutReplacement": "schedules",
    "smallest_limit": "schedules",
    "Progress": "trainer",
    "TrainingRun": "trainer",
    "Trainer": "trainer",
    **dict.fromkeys(
        (
            "DecisionTreeClassifier",
            "DecisionTreeRegressor",
            "ExplainableBoostingClassifier",
            "ExplainableBoostingRegressor",
            "GaussianNB",
            "HuberRegressor",
            "KMeans",
            "LinearRegression",
            "LinearSVC",
            "LogisticRegression",
            "PCA",
            "PrivatePipeline",
            "PrivateSearch",
            "Ridge",
        ),
        "tabular",
    ),
}
# Modules that can be imported where torch is not installed.
_WITHOUT_TORCH = ("scaler", "tabular")

__all__ = [
    "Augment",
    "FlipAndShift",
    "Adaptive",
    "Dense",
    "Toeplitz",
    "square_root",
    "GradientGrid",
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
    "ClippingEngine",
    "Examples",
    "Flat",
    "LocalSGD",
    "LogisticRegression",
    "DecisionTreeClassifier",
    "DecisionTreeRegressor",
    "ExplainableBoostingClassifier",
    "ExplainableBoostingRegressor",
    "GaussianNB",
    "HuberRegressor",
    "KMeans",
    "LinearRegression",
    "LinearSVC",
    "PCA",
    "PrivatePipeline",
    "PrivateSearch",
    "Ridge",
    "SGDLogisticRegression",
    "PerLayer",
    "Performance",
    "Poisson",
    "Progress",
    "TrainingRun",
    "Tabular",
    "Trainer",
    "TransformersTrainer",
    "WithoutReplacement",
    "across_workers",
    "fill_gaussian",
    "made_up",
    "probe",
    "routes",
    "warmup_cosine",
    "without_batch_norm",
    "tabular",
]


def __getattr__(name: str) -> Any:
    """Return a public name, or a module of this package such as `learning.data`; import its module first."""
    module_name = _MODULE_OF.get(name, name)
    if name.startswith("_") or find_spec(f"{__name__}.{module_name}") is None:
        raise AttributeError(f"module 'discreet.learning' has no attribute {name!r}")
    if module_name not in _WITHOUT_TORCH and find_spec("torch") is None:
        raise MissingExtra.of("learn", f"discreet.learning.{name} needs PyTorch") from None
    module = import_module(f"{__name__}.{module_name}")
    return getattr(module, name) if name in _MODULE_OF else module


def __dir__() -> list[str]:
    return sorted(__all__)
