"""Defines estimators with scikit-learn's interface: naive Bayes, k-means, trees and boosting.

    people.fit(GaussianNB(epsilon=1), target="income")
    people.fit(KMeans(8, epsilon=1), features=["age", "hours"])
    people.fit(ExplainableBoostingClassifier(epsilon=1), target="income").model_.shape("age")

For arrays, as in `fit(X, y)`, the public facts are arguments of the estimator, as for the linear models: `n`
(about how many rows there are), `lower` and `upper` (bounds of the features), `classes`, or `target_lower`
and `target_upper`. For a table of a session they are in its schema.

The names of the arguments of `__init__` are promised, because scikit-learn's `get_params` and `clone` use
them. Their defaults (bins, leaves, depth) were chosen by hand, not tuned; for `rounds` and `learning_rate`
see `AdditiveBoosting`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from ..._public import Public
from ...mechanisms.protocols import Mechanism
from .boosting import AdditiveBoosting, AdditiveModel
from .clusters import Clusters, Lloyd
from .estimators import Classifier, Regressor, TableEstimator
from .learner import TableLearner
from .naive_bayes import NaiveBayes
from .regression_trees import PrivateRegressionTree
from .rows import Design, features_of
from .trees import PrivateTree


class _LearnerEstimator(TableEstimator):
    """Builds the mechanism of all estimators whose mechanism is a `TableLearner`: their base class."""

    _mechanism_type: type[TableLearner]
    # Whether the mechanism is pure epsilon-DP and has no use for a delta.
    _pure = False

    def mechanism(
        self,
        public: Public,
        *,
        target: str | None = None,
        features: Sequence[str] | None = None,
        delta: float | None = None,
    ) -> Mechanism:
        names = features_of(public, target, features)
        design = Design(
            features=names, target=None if self.unsupervised else target, intercept=False, clip="never"
        )
        return self._mechanism_type(
            public=public,
            design=design,
            epsilon=self.epsilon,
            delta=0.0 if self._pure else self._delta_or(delta),
            rows=self.n,
            **self._mechanism_fields(),
        )

    def _mechanism_fields(self) -> dict[str, Any]:
        """Return the fields that this kind of mechanism has beyond those of all learners."""
        return {}


class GaussianNB(Classifier, _LearnerEstimator):
    """Fits naive Bayes privately: numbers have a normal distribution in each class, categories and booleans
    are counted.

    Guarantee: the privacy event `event_`. Proof: `NaiveBayes`.
    """

    _mechanism_type = NaiveBayes

    def __init__(
        self,
        epsilon: float = 1.0,
        *,
        delta: float | None = None,
        classes: Any = None,
        n: int | None = None,
        lower: Any = None,
        upper: Any = None,
    ) -> None:
        self.epsilon, self.delta, self.classes = epsilon, delta, classes
        self.n, self.lower, self.upper = n, lower, upper

    def decision_function(self, X: Any) -> npt.NDArray[np.float64]:
        inputs = self._inputs(X)
        log_joint = self.model_.scores(inputs)
        return log_joint[:, 1] - log_joint[:, 0] if log_joint.shape[1] == 2 else log_joint  # type: ignore[no-any-return]

    def predict(self, X: Any) -> npt.NDArray[Any]:
        inputs = self._inputs(X)
        log_joint = self.model_.scores(inputs)
        return self.classes_[log_joint.argmax(axis=1)]  # type: ignore[no-any-return]


class DecisionTreeClassifier(Classifier, _LearnerEstimator):
    """Fits a decision tree of fixed `max_depth` privately: splits by the exponential mechanism, noisy leaves;
    pure epsilon-DP.

    `criterion`: the score of a split, "gini" (impurity) or "max" (rows of each side's most frequent class). A
    number is split at a border between two of `bins` parts of equal width of its bounds. A `delta` is
    accepted, as by all estimators, and not used.

    Guarantee: the privacy event `event_`. Proof: `PrivateTree`.
    """

    _mechanism_type, _pure = PrivateTree, True

    def __init__(
        self,
        epsilon: float = 1.0,
        *,
        delta: float | None = None,
        max_depth: int = 4,
        criterion: str = "gini",
        bins: int = 16,
        classes: Any = None,
        n: int | None = None,
        lower: Any = None,
        upper: Any = None,
    ) -> None:
        self.epsilon, self.delta, self.max_depth, self.criterion = epsilon, delta, max_depth, criterion
        self.bins, self.classes, self.n, self.lower, self.upper = bins, classes, n, lower, upper

    def _mechanism_fields(self) -> dict[str, Any]:
        return {"depth": self.max_depth, "criterion": self.criterion, "parts": self.bins}


class DecisionTreeRegressor(Regressor, _LearnerEstimator):
    """Fits a regression tree of fixed `max_depth` privately: splits by the exponential mechanism, noisy means
    in its leaves; pure epsilon-DP.

    A number is split at a border between two of `bins` parts of equal width of its bounds. A `delta` is
    accepted, as by all estimators, and not used.

    Guarantee: the privacy event `event_`. Proof: `PrivateRegressionTree`.
    """

    _mechanism_type, _pure = PrivateRegressionTree, True

    def __init__(
        self,
        epsilon: float = 1.0,
        *,
        delta: float | None = None,
        max_depth: int = 3,
        bins: int = 16,
        n: int | None = None,
        lower: Any = None,
        upper: Any = None,
        target_lower: float | None = None,
        target_upper: float | None = None,
    ) -> None:
        self.epsilon, self.delta, self.max_depth, self.bins = epsilon, delta, max_depth, bins
        self.n, self.lower, self.upper = n, lower, upper
        self.target_lower, self.target_upper = target_lower, target_upper

    def _mechanism_fields(self) -> dict[str, Any]:
        return {"depth": self.max_depth, "parts": self.bins}


class _BoostingEstimator(_LearnerEstimator):
    """Passes the options that both boosting estimators have in common to their mechanism.

    `rounds`: rounds of boosting over all features; `leaves`: leaves of a tree; `bins`: about how many groups
    of rows a number is divided into; `bin_share`: the share of the price for choosing these groups.
    """

    _mechanism_type = AdditiveBoosting
    model_: AdditiveModel

    def _mechanism_fields(self) -> dict[str, Any]:
        names = ("rounds", "learning_rate", "leaves", "bins", "bin_share")
        return {name: getattr(self, name) for name in names}

    def shape(self, feature: str) -> list[tuple[Any, Any]]:
        """Return the shape function of a feature, as pairs of value and score: a row's score is the sum of
        these."""
        check_is_fitted(self, "model_")
        return self.model_.shape(feature)


class ExplainableBoostingClassifier(Classifier, _BoostingEstimator):
    """Fits an explainable boosting machine for classes privately (DP-EBM, Nori et al. 2021): an additive
    model with one shape function per feature, which `shape` returns; needs a delta.

    Guarantee: the privacy event `event_`. Proof: `AdditiveBoosting`.
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        *,
        delta: float | None = None,
        rounds: int = 100,
        learning_rate: float = 0.1,
        leaves: int = 3,
        bins: int = 32,
        bin_share: float = 0.1,
        classes: Any = None,
        n: int | None = None,
        lower: Any = None,
        upper: Any = None,
    ) -> None:
        self.epsilon, self.delta, self.rounds, self.learning_rate = epsilon, delta, rounds, learning_rate
        self.leaves, self.bins, self.bin_share, self.classes = leaves, bins, bin_share, classes
        self.n, self.lower, self.upper = n, lower, upper


class ExplainableBoostingRegressor(Regressor, _BoostingEstimator):
    """Fits an explainable boosting machine for a number with declared bounds privately (DP-EBM, Nori et al.
    2021); needs a delta.

    Guarantee: the privacy event `event_`. Proof: `AdditiveBoosting`.
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        *,
        delta: float | None = None,
        rounds: int = 100,
        learning_rate: float = 0.1,
        leaves: int = 3,
        bins: int = 32,
        bin_share: float = 0.1,
        n: int | None = None,
        lower: Any = None,
        upper: Any = None,
        target_lower: float | None = None,
        target_upper: float | None = None,
    ) -> None:
        self.epsilon, self.delta, self.rounds, self.learning_rate = epsilon, delta, rounds, learning_rate
        self.leaves, self.bins, self.bin_share = leaves, bins, bin_share
        self.n, self.lower, self.upper = n, lower, upper
        self.target_lower, self.target_upper = target_lower, target_upper


class KMeans(ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin, _LearnerEstimator):  # type: ignore[misc]
    """Fits k-means clusters privately (DPLloyd, Su et al. 2016); with `rounds` None, their number is the
    paper's.

    The cluster of a row of the data is private, so that there is no `labels_`. `predict` and `fit_predict`
    return the clusters of the rows that the caller passes: labels of private rows must not be published.

    Guarantee: the privacy event `event_`. Proof: `Lloyd`.
    """

    _mechanism_type, unsupervised = Lloyd, True
    model_: Clusters

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        epsilon: float = 1.0,
        delta: float | None = None,
        rounds: int | None = None,
        n: int | None = None,
        lower: Any = None,
        upper: Any = None,
    ) -> None:
        self.n_clusters, self.epsilon, self.delta, self.rounds = n_clusters, epsilon, delta, rounds
        self.n, self.lower, self.upper = n, lower, upper

    def _mechanism_fields(self) -> dict[str, Any]:
        return {"clusters": self.n_clusters, "rounds": self.rounds}

    @property
    def _n_features_out(self) -> int:
        return len(self.model_.centers)

    def fit(self, X: Any, y: Any = None) -> KMeans:
        self._fit_arrays(X, None, None)
        return self

    def fit_predict(self, X: Any, y: Any = None, **options: Any) -> npt.NDArray[np.int64]:
        return self.fit(X).predict(X)

    @property
    def cluster_centers_(self) -> npt.NDArray[np.float64]:
        """Return the centers in coordinates of [-1, 1], in the order of `mechanism_.design.names(public)`."""
        check_is_fitted(self, "model_")
        return np.array(self.model_.centers)

    def predict(self, X: Any) -> npt.NDArray[np.int64]:
        inputs = self._inputs(X)
        return self.model_.predict(inputs)

    def transform(self, X: Any) -> npt.NDArray[np.float64]:
        """Return distances to the centers."""
        inputs = self._inputs(X)
        return self.model_.distances(inputs)
