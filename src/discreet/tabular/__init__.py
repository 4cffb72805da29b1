"""Learns from tables privately, on numpy and scipy: no torch is needed or loaded.

Mechanisms, and the models that they release, are imported at once. Estimators in scikit-learn's manner, such
as `LogisticRegression` and `KMeans`, are imported when they are first used, because they need scikit-learn.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from .. import _require
from .._errors import MissingExtra

# All modules with described classes: `_registry` finds these once this package is imported.
from . import boosting, clusters, erm, learner, naive_bayes, trees, trials  # noqa: F401
from .clusters import Clusters
from .erm import LinearERM
from .losses import Huber, Logistic, Squared
from .model_cards import card, load, save
from .perturbation import (
    GradientPerturbation,
    ObjectivePerturbation,
    OutputPerturbation,
    RowPerturbation,
    excess_risk,
)
from .rows import Design
from .scaler import PrivateScaler, Scaling
from .second_moments import Moments, SecondMoments

if TYPE_CHECKING:
    from .estimators import (
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
        Ridge,
    )
    from .pipeline import PrivatePipeline
    from .search import PrivateSearch

_ESTIMATORS = {
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
            "Ridge",
        ),
        "estimators",
    ),
    "PrivatePipeline": "pipeline",
    "PrivateSearch": "search",
}

__all__ = [
    "Clusters",
    "DecisionTreeClassifier",
    "DecisionTreeRegressor",
    "Design",
    "ExplainableBoostingClassifier",
    "ExplainableBoostingRegressor",
    "GaussianNB",
    "GradientPerturbation",
    "Huber",
    "HuberRegressor",
    "KMeans",
    "LinearERM",
    "LinearRegression",
    "LinearSVC",
    "Logistic",
    "LogisticRegression",
    "Moments",
    "ObjectivePerturbation",
    "OutputPerturbation",
    "PCA",
    "PrivatePipeline",
    "PrivateSearch",
    "PrivateScaler",
    "Ridge",
    "RowPerturbation",
    "Scaling",
    "SecondMoments",
    "Squared",
    "card",
    "excess_risk",
    "load",
    "save",
]


def __getattr__(name: str) -> Any:
    """Import an estimator when it is first used, because loading scikit-learn takes a while."""
    if name in _ESTIMATORS:
        if find_spec("sklearn") is None:
            raise MissingExtra.of("tabular", f"discreet.tabular.{name} needs scikit-learn")
        return getattr(import_module(f"{__name__}.{_ESTIMATORS[name]}"), name)
    raise _require.no_attribute(f"module {__name__!r}", name, __all__)


def __dir__() -> list[str]:
    return sorted(__all__)
