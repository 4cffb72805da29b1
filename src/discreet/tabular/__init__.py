"""Learns from tables privately, on numpy and scipy: no torch is needed or loaded.

Estimators in scikit-learn's manner, such as `LogisticRegression` and `KMeans`, need scikit-learn; mechanisms,
and the models that they release, do not.
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from .. import _registry
from .._errors import MissingExtra

if TYPE_CHECKING:
    from .clusters import Clusters as Clusters
    from .erm import LinearERM as LinearERM
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
    from .pipeline import PrivatePipeline as PrivatePipeline
    from .rows import Design as Design
    from .scaler import PrivateScaler as PrivateScaler
    from .scaler import Scaling as Scaling
    from .search import PrivateSearch as PrivateSearch
    from .second_moments import Moments as Moments
    from .second_moments import SecondMoments as SecondMoments

__all__, _find, __dir__ = _registry.exports(__name__)


def __getattr__(name: str) -> Any:
    """Return a public name; import its module first. Estimators need scikit-learn."""
    try:
        return _find(name)
    except ModuleNotFoundError as error:
        if find_spec("sklearn") is not None:
            raise
        raise MissingExtra.of("tabular", f"discreet.tabular.{name} needs scikit-learn") from error
