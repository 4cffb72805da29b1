"""Learns from tables privately, on numpy and scipy: no torch is needed or loaded.

Mechanisms, and the models that they release, are imported at once. Estimators in scikit-learn's manner, such
as `LogisticRegression` and `KMeans`, are imported when they are first used, because they need scikit-learn.
"""

import importlib.util
import typing

from .. import _errors, _require

# All modules with described classes: `_registry` finds these once this package is imported.
from . import boosting, clusters, erm, learner, naive_bayes, trees, trials  # noqa: F401
from .clusters import Clusters as Clusters
from .erm import LinearERM as LinearERM
from .losses import Huber as Huber
from .losses import Logistic as Logistic
from .losses import Squared as Squared
from .model_cards import card as card
from .model_cards import load as load
from .model_cards import save as save
from .perturbation import GradientPerturbation as GradientPerturbation
from .perturbation import ObjectivePerturbation as ObjectivePerturbation
from .perturbation import OutputPerturbation as OutputPerturbation
from .perturbation import RowPerturbation as RowPerturbation
from .perturbation import excess_risk as excess_risk
from .rows import Design as Design
from .scaler import PrivateScaler as PrivateScaler
from .scaler import Scaling as Scaling
from .second_moments import Moments as Moments
from .second_moments import SecondMoments as SecondMoments

if typing.TYPE_CHECKING:
    from .estimators import PCA as PCA
    from .estimators import DecisionTreeClassifier as DecisionTreeClassifier
    from .estimators import DecisionTreeRegressor as DecisionTreeRegressor
    from .estimators import ExplainableBoostingClassifier as ExplainableBoostingClassifier
    from .estimators import ExplainableBoostingRegressor as ExplainableBoostingRegressor
    from .estimators import GaussianNB as GaussianNB
    from .estimators import HuberRegressor as HuberRegressor
    from .estimators import KMeans as KMeans
    from .estimators import LinearRegression as LinearRegression
    from .estimators import LinearSVC as LinearSVC
    from .estimators import LogisticRegression as LogisticRegression
    from .estimators import Ridge as Ridge
    from .pipeline import PrivatePipeline as PrivatePipeline
    from .search import PrivateSearch as PrivateSearch

# The estimators of each module. For those who check types, the same names are imported above.
_NAMES = {
    "estimators": "DecisionTreeClassifier DecisionTreeRegressor ExplainableBoostingClassifier "
    "ExplainableBoostingRegressor GaussianNB HuberRegressor KMeans LinearRegression LinearSVC "
    "LogisticRegression PCA Ridge",
    "pipeline": "PrivatePipeline",
    "search": "PrivateSearch",
}
_ESTIMATORS = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = list(_require.offered(globals(), *_ESTIMATORS))


def __getattr__(name: str) -> typing.Any:
    """Import an estimator when it is first used, because loading scikit-learn takes a while."""
    if name in _ESTIMATORS:
        if importlib.util.find_spec("sklearn") is None:
            raise _errors.MissingExtra.of("tabular", f"discreet.tabular.{name} needs scikit-learn")
        return getattr(importlib.import_module(f"{__name__}.{_ESTIMATORS[name]}"), name)
    raise _require.no_attribute(f"module {__name__!r}", name, __all__)


def __dir__() -> list[str]:
    return sorted(__all__)
