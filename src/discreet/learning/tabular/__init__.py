"""Learns from tables privately, on numpy and scipy: no torch is needed or loaded.

Mechanisms, and the models that they release, are imported at once. Estimators in scikit-learn's manner, such
as `LogisticRegression` and `KMeans`, are imported when they are first used, because they need scikit-learn.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .boosting import AdditiveBoosting, AdditiveModel
from .cards import Card, LoadedModel, card, load, save
from .clusters import Clusters, Lloyd
from .erm import LinearERM
from .gradient import GradientPerturbation
from .losses import Huber, HuberHinge, Logistic, Softmax, Squared
from .model import LinearModel
from .moments import Moments, SecondMoments
from .naive_bayes import NaiveBayes, NaiveBayesModel
from .objective import ObjectivePerturbation
from .output import OutputPerturbation
from .pipeline import Piped, QuantileBounds
from .regression_trees import PrivateRegressionTree, RegressionTreeModel
from .rows import Design
from .selection import RandomTrials, Selected
from .trees import PrivateTree, TreeModel

if TYPE_CHECKING:
    from .estimators import LinearSVC, LogisticRegression
    from .learners import (
        DecisionTreeClassifier,
        DecisionTreeRegressor,
        ExplainableBoostingClassifier,
        ExplainableBoostingRegressor,
        GaussianNB,
        KMeans,
    )
    from .linear_regressors import HuberRegressor
    from .pipelines import PrivatePipeline
    from .regressions import PCA, LinearRegression, Ridge
    from .search import PrivateSearch

_ESTIMATORS = {
    **dict.fromkeys(("LinearSVC", "LogisticRegression"), "estimators"),
    **dict.fromkeys(
        (
            "DecisionTreeClassifier",
            "DecisionTreeRegressor",
            "ExplainableBoostingClassifier",
            "ExplainableBoostingRegressor",
            "GaussianNB",
            "KMeans",
        ),
        "learners",
    ),
    **dict.fromkeys(("LinearRegression", "PCA", "Ridge"), "regressions"),
    "HuberRegressor": "linear_regressors",
    "PrivatePipeline": "pipelines",
    "PrivateSearch": "search",
}

__all__ = [
    "AdditiveBoosting",
    "AdditiveModel",
    "Card",
    "Clusters",
    "DecisionTreeClassifier",
    "DecisionTreeRegressor",
    "Design",
    "ExplainableBoostingClassifier",
    "ExplainableBoostingRegressor",
    "LoadedModel",
    "GaussianNB",
    "GradientPerturbation",
    "Huber",
    "HuberHinge",
    "HuberRegressor",
    "KMeans",
    "LinearERM",
    "LinearModel",
    "LinearRegression",
    "LinearSVC",
    "Lloyd",
    "Logistic",
    "LogisticRegression",
    "Moments",
    "NaiveBayes",
    "NaiveBayesModel",
    "ObjectivePerturbation",
    "OutputPerturbation",
    "PCA",
    "Piped",
    "PrivatePipeline",
    "PrivateSearch",
    "QuantileBounds",
    "PrivateRegressionTree",
    "PrivateTree",
    "RandomTrials",
    "RegressionTreeModel",
    "Ridge",
    "SecondMoments",
    "Selected",
    "Softmax",
    "Squared",
    "TreeModel",
    "card",
    "load",
    "save",
]


def __getattr__(name: str) -> Any:
    """Import an estimator when it is first used, because loading scikit-learn takes a while."""
    if name in _ESTIMATORS:
        return getattr(import_module(f"{__name__}.{_ESTIMATORS[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
