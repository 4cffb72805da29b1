"""Defines the estimators of tables, in scikit-learn's manner on numpy and scipy.

    # through a session, which charges first and takes bounds, classes and size from its schema
    model = people.fit(LogisticRegression(epsilon=1), target="income")
    model.predict({"age": [35], "education": ["Masters"]}); model.why_; model.event_
    people.fit(KMeans(8, epsilon=1), features=["age", "hours"])
    people.fit(ExplainableBoostingClassifier(epsilon=1), target="income").model_.shape("age")

    # without a session: the public facts are arguments
    LogisticRegression(epsilon=1, classes=[0, 1], n=1400, lower=0, upper=16).fit(X, y)

The classes, the number of rows and the bounds, which scikit-learn would take from the data, are declared: for
arrays as `n`, `lower`, `upper`, and `classes` or `target_lower` and `target_upper`; for a session in its
schema. Each `fit` is a release of its own, and its `event_` is the price. Defaults (bins, leaves, depth) were
chosen by hand, not tuned; for `rounds` and `learning_rate` see `AdditiveBoosting`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Annotated, Any, ClassVar

import numpy as np
import numpy.typing as npt

from .. import _require
from .._errors import InvalidInput
from .._public import Boolean, Categories, Public
from .._require import NON_NEGATIVE, among, at_least
from ..mechanisms.protocols import Mechanism, Release
from .boosting import AdditiveBoosting, AdditiveModel
from .clusters import Clusters, Lloyd
from .erm import LinearERM
from .estimator_base import (
    ArrayEstimator,
    Classifier,
    ClassNamePrefixFeaturesOutMixin,
    ClusterMixin,
    Regressor,
    TransformerMixin,
    check_is_fitted,
    parameters,
)
from .learner import TableLearner
from .linear_model import LinearModel
from .losses import Huber, HuberHinge, Logistic, Loss, Softmax
from .naive_bayes import NaiveBayes
from .perturbation import linear_mechanism
from .rows import Design, features_of
from .second_moments import Moments, SecondMoments
from .trees import PrivateRegressionTree, PrivateTree


@parameters
class Linear(ArrayEstimator):
    """Builds the mechanism of linear models, private empirical risk minimization: their base class."""

    method: str = "auto"
    regularization: float | None = None
    fit_intercept: bool = True

    model_: LinearModel = field(init=False)
    # how `Design` bounds the norms of rows
    _clip: ClassVar[str] = "typical"

    @abstractmethod
    def _loss(self) -> Loss: ...

    def _build(self, public: Public, target: Any, features: Sequence[str] | None, delta: float) -> Mechanism:
        options: dict[str, Any] = {
            "epsilon": self.epsilon,
            "delta": delta,
            "regularization": self.regularization,
            "rows": self.n,
            "loss": self._loss(),
        }
        weights = self._class_weights(public, target)
        if weights:
            options["class_weights"] = weights
        if self._is_joint(public, target):
            options["loss"] = Softmax()
        learner, self.why_ = linear_mechanism(
            public, target=target, features=features, method=self.method, clip=self._clip,
            intercept=self.fit_intercept, **options,
        )  # fmt: skip
        return learner

    def _class_weights(self, public: Public, target: str) -> tuple[float, ...]:
        """Return the weights of classes; none where all are 1."""
        return ()

    def _is_joint(self, public: Public, target: str) -> bool:
        """Return whether one softmax over all classes is fitted, and not one model per class."""
        return False

    @property
    def assumes_(self) -> str | None:
        """Return what the guarantee rests on beside the declared facts, as a sentence
        (`LinearERM.assumption`)."""
        check_is_fitted(self, "model_")
        return self.mechanism_.assumption if isinstance(self.mechanism_, LinearERM) else None

    @property
    def coef_(self) -> npt.NDArray[np.float64]:
        """Return the weights of the coordinates, scaled to [-1, 1], in the order of
        `mechanism_.design.names(public)`.
        """
        check_is_fitted(self, "model_")
        weights = np.array(self.model_.weights)
        return weights[:, :-1] if self.model_.design.intercept else weights

    @property
    def intercept_(self) -> npt.NDArray[np.float64]:
        check_is_fitted(self, "model_")
        weights = np.array(self.model_.weights)
        return weights[:, -1] if self.model_.design.intercept else np.zeros(len(weights))


@parameters
class LogisticRegression(Classifier, Linear):
    """Fits logistic regression privately: `method` is "objective", "output", "gradient" or "input"
    (perturbation), or "auto", which chooses among the first three from public facts; `why_` gives the reason.

    `delta`: by default the session's, and 0 without a session; a method that is pure does not spend it.
    `regularization` is lambda, the 1 / C of scikit-learn, and by default computed from public facts.
    `class_weight`: a dictionary of weights by class; the noise grows with the largest. For more than two
    classes `multi_class` is "softmax", one model of all classes, or "ovr", one model for each class against
    the rest, which share epsilon. For DP-SGD use `DPClassifier`.

    Guarantee: the privacy event `event_`, which is the price, under add_remove and one row per person;
               through a session, under its relation and unit. Proof: `mechanism_`'s class.
    """

    class_weight: Any = None
    multi_class: Annotated[str, among(("softmax", "ovr"))] = "softmax"

    def _loss(self) -> Loss:
        return Logistic()

    def _is_joint(self, public: Public, target: str) -> bool:
        fact = public.fact(target)
        classes = len(fact.values) if isinstance(fact, Categories) else 2
        return isinstance(self._loss(), Logistic) and self.multi_class == "softmax" and classes > 2

    def _class_weights(self, public: Public, target: str) -> tuple[float, ...]:
        """Return the declared weights of classes; none without `class_weight`."""
        fact = public.fact(target)
        declared_classes = (
            fact.values
            if isinstance(fact, Categories)
            else (False, True)
            if isinstance(fact, Boolean)
            else ()
        )
        # arrays are fitted with the numbers of their classes in place of the classes
        values = list(declared_classes) if self._labels is None else self._labels
        if self.classes is not None and set(_require.listed(classes=self.classes)) != set(values):
            raise InvalidInput(f"classes= differs from what the schema declares of {target!r}: leave it out.")
        if self.class_weight is None:
            return ()
        if not isinstance(self.class_weight, dict) or not set(self.class_weight) <= set(values):
            raise _require.fail(
                "class_weight", self.class_weight,
                'weights by declared class, such as {"yes": 2}; "balanced" would be read off the data',
            )  # fmt: skip
        return tuple(self.class_weight.get(value, 1.0) for value in values)


class LinearSVC(LogisticRegression):
    """Fits a linear support vector machine with the smoothed (Huber) hinge loss privately; options as
    `LogisticRegression`, but more than two classes always have one model each (`multi_class` is ignored).

    Guarantee: the privacy event `event_`, as for `LogisticRegression`. Proof: `mechanism_`'s class.
    """

    def _loss(self) -> Loss:
        return HuberHinge()

    # margins are no probabilities
    _has_probabilities: ClassVar[bool] = False


@parameters
class _LearnerEstimator(ArrayEstimator):
    """Builds the mechanism of all estimators whose mechanism is a `TableLearner`: their base class."""

    _mechanism_type: ClassVar[type[TableLearner]]
    # Whether the mechanism is pure epsilon-DP and has no use for a delta.
    _pure: ClassVar[bool] = False
    # The fields that this kind of mechanism has beyond those of all learners, with the names of parameters.
    _fields: ClassVar[Mapping[str, str]] = {}

    def _build(self, public: Public, target: Any, features: Sequence[str] | None, delta: float) -> Mechanism:
        names = features_of(public, target, features)
        design = Design(
            features=names, target=None if self.unsupervised else target, intercept=False, clip="never"
        )
        return self._mechanism_type(
            public=public,
            design=design,
            epsilon=self.epsilon,
            delta=0.0 if self._pure else delta,
            rows=self.n,
            **{name: vars(self)[parameter] for name, parameter in self._fields.items()},
        )


@parameters
class GaussianNB(Classifier, _LearnerEstimator):
    """Fits naive Bayes privately: numbers have a normal distribution in each class, categories and booleans
    are counted.

    Guarantee: the privacy event `event_`. Proof: `NaiveBayes`.
    """

    _mechanism_type: ClassVar[type[TableLearner]] = NaiveBayes

    def decision_function(self, X: Any) -> npt.NDArray[np.float64]:
        inputs = self._inputs(X)
        log_joint = self.model_.scores(inputs)
        return log_joint[:, 1] - log_joint[:, 0] if log_joint.shape[1] == 2 else log_joint  # type: ignore[no-any-return]

    def predict(self, X: Any) -> npt.NDArray[Any]:
        inputs = self._inputs(X)
        log_joint = self.model_.scores(inputs)
        return self.classes_[log_joint.argmax(axis=1)]  # type: ignore[no-any-return]


@parameters
class DecisionTreeClassifier(Classifier, _LearnerEstimator):
    """Fits a decision tree of fixed `max_depth` privately: splits by the exponential mechanism, noisy leaves;
    pure epsilon-DP.

    `criterion`: the score of a split, "gini" (impurity) or "max" (rows of each side's most frequent class). A
    number is split at a border between two of `bins` parts of equal width of its bounds. A `delta` is
    accepted, as by all estimators, and not used.

    Guarantee: the privacy event `event_`. Proof: `PrivateTree`.
    """

    _mechanism_type: ClassVar[type[TableLearner]] = PrivateTree
    _pure: ClassVar[bool] = True
    _fields: ClassVar[Mapping[str, str]] = {"depth": "max_depth", "criterion": "criterion", "parts": "bins"}

    max_depth: int = 4
    criterion: str = "gini"
    bins: int = 16


@parameters
class DecisionTreeRegressor(Regressor, _LearnerEstimator):
    """Fits a regression tree of fixed `max_depth` privately: splits by the exponential mechanism, noisy means
    in its leaves; pure epsilon-DP.

    A number is split at a border between two of `bins` parts of equal width of its bounds. A `delta` is
    accepted, as by all estimators, and not used.

    Guarantee: the privacy event `event_`. Proof: `PrivateRegressionTree`.
    """

    _mechanism_type: ClassVar[type[TableLearner]] = PrivateRegressionTree
    _pure: ClassVar[bool] = True
    _fields: ClassVar[Mapping[str, str]] = {"depth": "max_depth", "parts": "bins"}

    max_depth: int = 3
    bins: int = 16


@parameters
class _BoostingEstimator(_LearnerEstimator):
    """Passes the options that both boosting estimators have in common to their mechanism.

    `rounds`: rounds of boosting over all features; `leaves`: leaves of a tree; `bins`: about how many groups
    of rows a number is divided into; `bin_share`: the share of the price for choosing these groups.
    """

    rounds: int = 100
    learning_rate: float = 0.1
    leaves: int = 3
    bins: int = 32
    bin_share: float = 0.1

    model_: AdditiveModel = field(init=False)
    _mechanism_type: ClassVar[type[TableLearner]] = AdditiveBoosting
    _fields: ClassVar[Mapping[str, str]] = {
        name: name for name in ("rounds", "learning_rate", "leaves", "bins", "bin_share")
    }

    def shape(self, feature: str) -> list[tuple[Any, Any]]:
        """Return the shape function of a feature, as pairs of value and score: a row's score is the sum of
        these."""
        check_is_fitted(self, "model_")
        return self.model_.shape(feature)


@parameters
class ExplainableBoostingClassifier(Classifier, _BoostingEstimator):
    """Fits an explainable boosting machine for classes privately (DP-EBM, Nori et al. 2021): an additive
    model with one shape function per feature, which `shape` returns; needs a delta.

    Guarantee: the privacy event `event_`. Proof: `AdditiveBoosting`.
    """


@parameters
class ExplainableBoostingRegressor(Regressor, _BoostingEstimator):
    """Fits an explainable boosting machine for a number with declared bounds privately (DP-EBM, Nori et al.
    2021); needs a delta.

    Guarantee: the privacy event `event_`. Proof: `AdditiveBoosting`.
    """


@parameters
class KMeans(ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin, _LearnerEstimator):  # type: ignore[misc]
    """Fits k-means clusters privately (DPLloyd, Su et al. 2016); with `rounds` None, their number is the
    paper's.

    The cluster of a row of the data is private, so that there is no `labels_`. `predict` and `fit_predict`
    return the clusters of the rows that the caller passes: labels of private rows must not be published.

    Guarantee: the privacy event `event_`. Proof: `Lloyd`.
    """

    _mechanism_type: ClassVar[type[TableLearner]] = Lloyd
    _fields: ClassVar[Mapping[str, str]] = {"clusters": "n_clusters", "rounds": "rounds"}
    unsupervised: ClassVar[bool] = True
    model_: Clusters = field(init=False)

    n_clusters: int = field(default=8, kw_only=False)
    epsilon: float = 1.0
    rounds: int | None = None

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


@parameters
class HuberRegressor(Regressor, Linear):
    """Fits a linear regression privately with the Huber loss of `threshold`, in units of half the width of
    the target's declared bounds. The penalty regularization |w|² / 2 on the weights w is added to
    the sum of the losses over the rows, not to their mean. Encoded features and targets are scaled to [-1, 1]
    first. `method` is as in `LogisticRegression`.

    For arrays, `n` is the declared number of rows, `lower` and `upper` are bounds of the features (one number
    for all, or one for each), and `target_lower` and `target_upper` bounds of the target; a session takes
    them from its schema. `Ridge` fits the squared loss from sufficient statistics instead, and its one
    release serves every penalty.

    Guarantee: the privacy event `event_`, which is the price, under add_remove and one row per person;
               through a session, under its relation and unit. Proof: `mechanism_`'s class.
    """

    # A row that is scaled down would keep its target, which would bias the regression.
    _clip: ClassVar[str] = "never"

    threshold: float = 0.5

    def _loss(self) -> Loss:
        return Huber(threshold=self.threshold)


@parameters
class _MomentsRegressor(Regressor):
    """Fits linear regression from noisy second moments, its sufficient statistics: the base of `Ridge` and
    `LinearRegression`."""

    fit_intercept: bool = True

    model_: LinearModel = field(init=False)
    moments_: Moments = field(init=False)

    def _build(self, public: Public, target: Any, features: Sequence[str] | None, delta: float) -> Mechanism:
        names = features_of(public, target, features)
        design = Design(features=names, target=target, intercept=self.fit_intercept, clip="never")
        return SecondMoments(public=public, design=design, epsilon=self.epsilon, delta=delta)

    def adopt(self, release: Release, mechanism: Any) -> Any:
        super().adopt(release, mechanism)
        self.moments_ = release.value
        self.model_ = self.moments_.ridge(vars(self).get("penalty"))
        return self

    def path(self, penalties: Sequence[float]) -> list[LinearModel]:
        """Return the model of each penalty, from the moments that `fit` released, at no further cost."""
        check_is_fitted(self, "moments_")
        return [self.moments_.ridge(penalty) for penalty in penalties]


@parameters
class Ridge(_MomentsRegressor):
    """Fits ridge regression privately from noisy second moments, its sufficient statistics: one release
    serves every penalty (`path`).

    `penalty` is lambda for coordinates scaled to [-1, 1]; with None, AdaSSP chooses it (Wang 2018).

    Guarantee: the privacy event `event_`. Proof: `SecondMoments`; the rest is post-processing.
    """

    penalty: Annotated[float, NON_NEGATIVE] | None = None


class LinearRegression(_MomentsRegressor):
    """Fits linear regression privately by AdaSSP (Wang 2018): ridge regression with the least penalty that
    the noise needs.

    Guarantee: the privacy event `event_`. Proof: `SecondMoments`.
    """


@parameters
class PCA(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ArrayEstimator):  # type: ignore[misc]
    """Fits principal components of coordinates scaled to [-1, 1] privately: eigenvectors of a noisy
    covariance (Dwork, Talwar, Thakurta & Zhang 2014). Rows of more than typical norm count less, as `Design`
    scales them down.

    Guarantee: the privacy event `event_`. Proof: `SecondMoments`; the rest is post-processing.
    """

    unsupervised: ClassVar[bool] = True

    n_components: Annotated[int, at_least(1)] = field(default=2, kw_only=False)
    epsilon: float = 1.0

    def _build(self, public: Public, target: Any, features: Sequence[str] | None, delta: float) -> Mechanism:
        names = features_of(public, target, features)
        design = Design(features=names, target=None)
        width = replace(design, intercept=False).width(public)
        wanted = f"at most {width}, the number of coordinates"
        _require.must(self.n_components <= width, "n_components", self.n_components, wanted)
        return SecondMoments(public=public, design=design, epsilon=self.epsilon, delta=delta)

    def adopt(self, release: Release, mechanism: Any) -> Any:
        super().adopt(release, mechanism)
        self.moments_ = release.value
        self.components_, self.explained_variance_ = self.moments_.components(self.n_components)
        self.mean_ = self.moments_.mean
        return self

    @property
    def _n_features_out(self) -> int:
        return len(self.components_)

    def fit(self, X: Any, y: Any = None) -> PCA:
        self._fit_arrays(X, None, None)
        return self

    def transform(self, X: Any) -> npt.NDArray[np.float64]:
        inputs = self._inputs(X)
        rows = self.moments_.design.encode(inputs, self.moments_.public)[:, :-1]
        return np.asarray((rows - self.mean_) @ self.components_.T)
