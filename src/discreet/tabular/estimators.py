"""Defines estimators with scikit-learn's contract on numpy and scipy: `LogisticRegression`, `LinearSVC`.

    # through a session, which charges first and takes bounds, classes and size from its schema
    model = people.fit(LogisticRegression(epsilon=1), target="income")
    model.predict({"age": [35], "education": ["Masters"]}); model.why_; model.event_

    # without a session: the public facts are arguments
    LogisticRegression(epsilon=1, classes=[0, 1], n=1400, lower=0, upper=16).fit(X, y)

The classes, the number of rows and the bounds, which scikit-learn would take from the data, are declared.
Each `fit` is a release of its own, and its `event_` is the price.

Defines estimators with scikit-learn's interface: naive Bayes, k-means, trees and boosting.

    people.fit(GaussianNB(epsilon=1), target="income")
    people.fit(KMeans(8, epsilon=1), features=["age", "hours"])
    people.fit(ExplainableBoostingClassifier(epsilon=1), target="income").model_.shape("age")

For arrays, as in `fit(X, y)`, the public facts are arguments of the estimator, as for the linear models: `n`
(about how many rows there are), `lower` and `upper` (bounds of the features), `classes`, or `target_lower`
and `target_upper`. For a table of a session they are in its schema.

The names of the arguments of `__init__` are promised, because scikit-learn's `get_params` and `clone` use
them. Their defaults (bins, leaves, depth) were chosen by hand, not tuned; for `rounds` and `learning_rate`
see `AdditiveBoosting`.

Defines linear regression by private empirical risk minimization, in scikit-learn's manner:
`HuberRegressor`.

Computes regressions and components from second moments, in scikit-learn's manner: `Ridge`,
`LinearRegression`, `PCA`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _require
from .._errors import InvalidInput, MissingExtra, PrivateFact
from .._public import Boolean, Bounds, Categories, Public
from ..mechanisms.protocols import Mechanism, Release
from ..sampling import Entropy
from ..tables import Memory
from .boosting import AdditiveBoosting, AdditiveModel
from .clusters import Clusters, Lloyd
from .learner import TableLearner
from .linear_model import LinearModel, class_array, class_indices
from .losses import Huber, HuberHinge, Logistic, Loss, Softmax
from .naive_bayes import NaiveBayes
from .perturbation import linear_mechanism
from .rows import Design, features_of
from .second_moments import Moments, SecondMoments
from .trees import PrivateRegressionTree, PrivateTree

try:
    from sklearn.base import (
        BaseEstimator,
        ClassifierMixin,
        ClassNamePrefixFeaturesOutMixin,
        ClusterMixin,
        RegressorMixin,
        TransformerMixin,
    )
    from sklearn.utils.metaestimators import available_if
    from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data
except ImportError:
    raise MissingExtra.of("tabular", "estimators in scikit-learn's manner need scikit-learn") from None

# The column of the target in the table that `fit` makes of arrays; features are x0, x1, ...
TARGET = "y"
# The parts of messages of scikit-learn and numpy that quote values: of an array without two dimensions, of
# complex numbers, and of a text that is no number.
_VALUES = re.compile(r"array=.*?(?=Reshape|$)|(?<=Complex data not supported).*|(?<=to float).*", re.DOTALL)


def validate_rows(estimator: Any, X: Any, **options: Any) -> npt.NDArray[np.float64]:
    """Check the shape and the type of an array by scikit-learn's `validate_data`, and return it as floats.

    An error has scikit-learn's message, without the values that some of its messages quote.
    """
    try:
        return validate_data(  # type: ignore[no-any-return]
            estimator, X, dtype=np.float64, ensure_all_finite=False, **options
        )
    except ValueError as error:
        words = _VALUES.sub("", str(error)).rstrip(": .\n")
    # Raised outside of `except`, so that the message with the values is not attached as its context.
    raise InvalidInput(f"X must be numbers, one row per example. {words}.")


class TableEstimator(BaseEstimator):  # type: ignore[misc]
    """Builds the mechanism from public facts, reads arrays as a table with declared bounds, and holds the
    released model: the base class of estimators of tables.
    """

    # whether the estimator learns without a target
    unsupervised = False

    def __sklearn_tags__(self) -> Any:
        """Tell scikit-learn's checks that missing values are no error, and that noise differs from fit to fit
        and lowers scores."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan, tags.non_deterministic = True, True
        for subtags in (tags.classifier_tags, tags.regressor_tags):
            if subtags is not None:
                subtags.poor_score = True
        return tags

    def mechanism(
        self,
        public: Public,
        *,
        target: str,
        features: Sequence[str] | None = None,
        delta: float | None = None,
    ) -> Mechanism:
        """Return the mechanism that fits this estimator to a table of these public facts; priced, and not run
        yet. For `Session.fit`.

        `features` are by default all columns that can be features: numbers with bounds, categories, booleans.
        `delta` is the session's, for an estimator without a delta of its own.
        """
        raise NotImplementedError

    def _delta_or(self, delta: float | None) -> float:
        """Return the estimator's own delta, or the session's, or 0."""
        return next((d for d in (self.delta, delta) if d is not None), 0.0)

    def adopt(self, release: Release, mechanism: Any) -> Any:
        """Take over the model that the mechanism released, and return the estimator, which is fitted now."""
        self.model_, self.event_, self.mechanism_ = release.value, release.event, mechanism
        self.feature_names_in_ = np.array(mechanism.design.features, dtype=object)
        self.n_features_in_ = len(mechanism.design.features)
        self._arrays = False
        return self

    def _fit_arrays(self, X: Any, y: Any, target: Any) -> Any:
        """Fit to arrays: columns x0, x1, ... with the declared bounds, under add_remove, one row per person.

        `target` is the declared fact of the target y, or None where there is no target.
        """
        _refuse_repetition()
        _require_declared(self.n)
        require_bounds(self)
        X = self._validate_array(X)
        schema: Any = {**self._bounds(X.shape[1]), **({} if target is None else {TARGET: target})}
        public = Public(schema=schema, size=self.n)
        columns = {f"x{i}": X[:, i] for i in range(X.shape[1])}
        source = Memory({**columns, **({} if target is None else {TARGET: y})}, public)
        mechanism = self.mechanism(public, target=TARGET if target is not None else None)  # type: ignore[arg-type]
        names = getattr(self, "feature_names_in_", None)
        self.adopt(mechanism(source, entropy=Entropy()), mechanism)
        self._use_arrays(names)
        return self

    def _use_arrays(self, names: Any) -> None:
        """Predict from arrays from now on. `names` are the column names of the data frame that was fitted, or
        None for a plain array."""
        self._arrays = True
        del self.feature_names_in_
        if names is not None:
            self.feature_names_in_ = names

    def _validate_array(self, X: Any, reset: bool = True) -> npt.NDArray[np.float64]:
        """Check shapes and types only. Missing or infinite values are accepted, because an error would tell
        that some person has one."""
        return validate_rows(self, X, reset=reset, ensure_min_samples=0 if reset else 1)

    def _bounds(self, width: int) -> dict[str, Bounds]:
        """Return the declared bounds of the columns of an array."""
        try:
            lower = np.broadcast_to(np.asarray(self.lower, np.float64), (width,))
            upper = np.broadcast_to(np.asarray(self.upper, np.float64), (width,))
        except (TypeError, ValueError):
            raise _require.fail(
                "lower and upper", (self.lower, self.upper), f"a number, or one for each of {width} features"
            ) from None
        return {
            f"x{i}": Bounds(float(low), float(high))
            for i, (low, high) in enumerate(zip(lower, upper, strict=True))
        }

    def _inputs(self, X: Any) -> Any:
        """Return new rows as columns by name; refuse them before the estimator is fitted."""
        check_is_fitted(self, "model_")
        if not self._arrays:
            return X
        array = self._validate_array(X, reset=False)
        return {f"x{i}": array[:, i] for i in range(array.shape[1])}


class Classifier(ClassifierMixin, TableEstimator):  # type: ignore[misc]
    """Fits arrays with declared classes, and predicts from the scores of a model: the base class of
    classifiers."""

    # The declared classes while arrays are fitted: the table made of the arrays holds the classes' numbers
    # instead. None otherwise.
    _labels: list[Any] | None = None
    # whether the model has probabilities of classes
    _has_probabilities = True

    def fit(self, X: Any, y: Any) -> Any:
        """Fit to arrays with declared `classes`, `n`, `lower` and `upper`.

        A label that is not declared counts as the first class.
        """
        if self.classes is None:
            raise PrivateFact("which classes occur is private: declare them, classes=[...].")
        labels = sorted_classes(self.classes)
        numbers_by_label = {value: i for i, value in enumerate(labels)}
        numbers = [numbers_by_label.get(value, 0) for value in column_of(y, X).tolist()]
        self._labels = labels
        try:
            self._fit_arrays(X, numbers, Categories(list(range(len(labels)))))
        finally:
            self._labels = None
        self.classes_ = np.array(labels)
        return self

    def adopt(self, release: Release, mechanism: Any) -> Any:
        super().adopt(release, mechanism)
        self.classes_ = class_array(self.model_.classes)
        return self

    def decision_function(self, X: Any) -> npt.NDArray[np.float64]:
        inputs = self._inputs(X)
        return np.asarray(self.model_.scores(inputs))

    @available_if(lambda self: self._has_probabilities)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:
        inputs = self._inputs(X)
        return np.asarray(self.model_.probabilities(inputs))

    def predict(self, X: Any) -> npt.NDArray[Any]:
        inputs = self._inputs(X)
        scores = self.model_.scores(inputs)
        return self.classes_[class_indices(scores)]


class Regressor(RegressorMixin, TableEstimator):  # type: ignore[misc]
    """Fits arrays with declared bounds of the target, and predicts in its unit: the base class of
    regressions."""

    def fit(self, X: Any, y: Any) -> Any:
        """Fit to arrays with declared `n`, `lower`, `upper`, `target_lower` and `target_upper`."""
        require_bounds(self)
        self._fit_arrays(X, numbers_of(y, X), Bounds(self.target_lower, self.target_upper))
        return self

    def predict(self, X: Any) -> npt.NDArray[Any]:
        inputs = self._inputs(X)
        return np.asarray(self.model_.predict(inputs))


class Linear(TableEstimator):
    """Builds the mechanism of linear models, private empirical risk minimization: their base class."""

    model_: LinearModel
    # how `Design` bounds the norms of rows
    _clip = "typical"

    def _loss(self) -> Loss:
        raise NotImplementedError

    def mechanism(
        self,
        public: Public,
        *,
        target: str,
        features: Sequence[str] | None = None,
        delta: float | None = None,
    ) -> Mechanism:
        options: dict[str, Any] = {
            "epsilon": self.epsilon,
            "delta": self._delta_or(delta),
            "regularization": self.regularization,
            "rows": self.n,
            "loss": self._loss(),
            "l1": self.l1,
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
        return getattr(self.mechanism_, "assumption", None)

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


class LogisticRegression(Classifier, Linear):
    """Fits logistic regression privately: `method` is "objective", "output", "gradient" (perturbation), or
    "auto", which chooses from public facts; `why_` gives the reason.

    `delta`: by default the session's, and 0 without a session; a method that is pure does not spend it.
    `regularization` is lambda, the 1 / C of scikit-learn, and by default computed from public facts; `l1` is
    the weight of an l1 penalty in addition. `class_weight`: a dictionary of weights by class;
    the noise grows with the largest. For more than two classes `multi_class` is "softmax", one model of all
    classes, or "ovr", one model for each class against the rest, which share epsilon. For DP-SGD use
    `DPClassifier`.

    Guarantee: the privacy event `event_`, which is the price, under add_remove and one row per person;
               through a session, under its relation and unit. Proof: `mechanism_`'s class.
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        *,
        delta: float | None = None,
        method: str = "auto",
        regularization: float | None = None,
        fit_intercept: bool = True,
        class_weight: Any = None,
        multi_class: str = "softmax",
        l1: float = 0.0,
        classes: Any = None,
        n: int | None = None,
        lower: Any = None,
        upper: Any = None,
    ) -> None:
        self.epsilon, self.delta, self.method, self.regularization = epsilon, delta, method, regularization
        self.fit_intercept, self.class_weight, self.classes = fit_intercept, class_weight, classes
        self.multi_class, self.l1 = multi_class, l1
        self.n, self.lower, self.upper = n, lower, upper

    def _loss(self) -> Loss:
        return Logistic()

    def _is_joint(self, public: Public, target: str) -> bool:
        _require.one_of(("softmax", "ovr"), multi_class=self.multi_class)
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
    _has_probabilities = False


# Packages that fit an estimator many times, or to parts of the data, and do not add up the prices.
_REPEATING = (
    "sklearn.model_selection",
    "sklearn.ensemble",
    "sklearn.calibration",
    "sklearn.feature_selection",
    "sklearn.impute",
    "sklearn.linear_model._ransac",
    "sklearn.multiclass",
    "sklearn.multioutput",
    "sklearn.semi_supervised",
)


def _refuse_repetition() -> None:
    """Refuse a fit that a package of `_REPEATING` calls, as the call stack shows."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name.startswith(_REPEATING):
            raise InvalidInput(
                f"{name} fits many times, and nobody adds up what each fit costs. Tune with PrivateSearch, "
                "or fit through a session, people.fit(...), which charges every fit."
            )
        frame = frame.f_back


def sorted_classes(classes: Any) -> list[Any]:
    """Return declared classes sorted, as scikit-learn has them; refuse anything but a list of at least two
    different values that can be compared."""
    try:
        labels: list[Any] = np.array(sorted(classes)).tolist()
        are_distinct = len(set(labels)) == len(labels) and all(label == label for label in labels)
    except (TypeError, ValueError):
        raise _require.fail(
            "classes", classes, "a list of values of one kind, such as [0, 1] or ['no', 'yes']"
        ) from None
    if len(labels) < 2 or not are_distinct:
        raise InvalidInput(f"at least two classes must be declared, each once, got {labels}.")
    return labels


def column_of(y: Any, X: Any) -> npt.NDArray[Any]:
    """Return the target as one column; refuse one that is missing or of another length than X."""
    if y is None:
        raise InvalidInput("this estimator requires y to be passed, but the target y is None.")
    y = np.asarray(y)
    y = column_or_1d(y, warn=True) if y.shape[1:] == (1,) else y
    if y.ndim != 1 or (hasattr(X, "shape") and len(X.shape) == 2 and X.shape[0] != len(y)):
        raise InvalidInput("y must have one entry for each row of X.")
    return np.asarray(y)


def numbers_of(y: Any, X: Any) -> npt.NDArray[np.float64]:
    """Return the targets of a regression as floats; an error never quotes a value that is no number."""
    try:
        return column_of(y, X).astype(np.float64)
    except (TypeError, ValueError) as error:
        if isinstance(error, InvalidInput):
            raise
    # outside of `except`, as in `validate_rows`
    raise InvalidInput("y must be numbers.")


def _require_declared(n: Any) -> None:
    """Refuse a number of rows that is not declared."""
    if n is None:
        raise PrivateFact(
            "the number of rows is private and never read off the data: declare it, n=..., or buy a noisy "
            "count."
        )
    _require.integer(n=n, at_least=1)


def require_bounds(estimator: Any) -> None:
    """Refuse to fit arrays whose bounds, of the features or of the target, are not declared."""
    for names, what in (
        (("lower", "upper"), "the features"),
        (("target_lower", "target_upper"), "the target"),
    ):
        if any(getattr(estimator, name, 0) is None for name in names):
            raise PrivateFact(
                f"the bounds of {what} are private and never read off the data: declare them, {names[0]}=0, "
                f"{names[1]}=100 (any value outside is clipped), or fit through a session, whose schema has "
                "them and whose PrivatePipeline buys tighter ones."
            )


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


class HuberRegressor(Regressor, Linear):
    """Fits a linear regression privately with the Huber loss of `threshold`, in units of half the width of
    the target's declared bounds. The penalty l1 |w|_1 + regularization |w|² / 2 on the weights w is added to
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
    _clip = "never"

    def __init__(
        self,
        epsilon: float = 1.0,
        *,
        delta: float | None = None,
        method: str = "auto",
        regularization: float | None = None,
        threshold: float = 0.5,
        l1: float = 0.0,
        fit_intercept: bool = True,
        n: int | None = None,
        lower: Any = None,
        upper: Any = None,
        target_lower: float | None = None,
        target_upper: float | None = None,
    ) -> None:
        self.epsilon, self.delta, self.method, self.regularization = epsilon, delta, method, regularization
        self.threshold, self.l1, self.fit_intercept = threshold, l1, fit_intercept
        self.n, self.lower, self.upper = n, lower, upper
        self.target_lower, self.target_upper = target_lower, target_upper

    def _loss(self) -> Loss:
        return Huber(threshold=self.threshold)


class Ridge(Regressor):
    """Fits ridge regression privately from noisy second moments, its sufficient statistics: one release
    serves every penalty (`path`).

    `penalty` is lambda for coordinates scaled to [-1, 1]; with None, AdaSSP chooses it (Wang 2018).

    Guarantee: the privacy event `event_`. Proof: `SecondMoments`; the rest is post-processing.
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        *,
        delta: float | None = None,
        penalty: float | None = None,
        fit_intercept: bool = True,
        n: int | None = None,
        lower: Any = None,
        upper: Any = None,
        target_lower: float | None = None,
        target_upper: float | None = None,
    ) -> None:
        self.epsilon, self.delta, self.penalty, self.fit_intercept = epsilon, delta, penalty, fit_intercept
        self.n, self.lower, self.upper = n, lower, upper
        self.target_lower, self.target_upper = target_lower, target_upper

    def mechanism(
        self,
        public: Public,
        *,
        target: str,
        features: Sequence[str] | None = None,
        delta: float | None = None,
    ) -> Mechanism:
        if self.penalty is not None:
            _require.non_negative(penalty=self.penalty)
        names = features_of(public, target, features)
        design = Design(features=names, target=target, intercept=self.fit_intercept, clip="never")
        return SecondMoments(public=public, design=design, epsilon=self.epsilon, delta=self._delta_or(delta))

    def adopt(self, release: Release, mechanism: Any) -> Any:
        super().adopt(release, mechanism)
        self.moments_: Moments = release.value
        self.model_: LinearModel = self.moments_.ridge(self.penalty)
        return self

    def path(self, penalties: Sequence[float]) -> list[LinearModel]:
        """Return the model of each penalty, from the moments that `fit` released, at no further cost."""
        check_is_fitted(self, "moments_")
        return [self.moments_.ridge(penalty) for penalty in penalties]


class LinearRegression(Ridge):
    """Fits linear regression privately by AdaSSP (Wang 2018): ridge regression with the least penalty that
    the noise needs.

    Guarantee: the privacy event `event_`. Proof: `SecondMoments`.
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        *,
        delta: float | None = None,
        fit_intercept: bool = True,
        n: int | None = None,
        lower: Any = None,
        upper: Any = None,
        target_lower: float | None = None,
        target_upper: float | None = None,
    ) -> None:
        super().__init__(
            epsilon, delta=delta, fit_intercept=fit_intercept, n=n, lower=lower, upper=upper,
            target_lower=target_lower, target_upper=target_upper,
        )  # fmt: skip


class PCA(ClassNamePrefixFeaturesOutMixin, TransformerMixin, TableEstimator):  # type: ignore[misc]
    """Fits principal components of coordinates scaled to [-1, 1] privately: eigenvectors of a noisy
    covariance (Dwork, Talwar, Thakurta & Zhang 2014). Rows of more than typical norm count less, as `Design`
    scales them down.

    Guarantee: the privacy event `event_`. Proof: `SecondMoments`; the rest is post-processing.
    """

    unsupervised = True

    def __init__(
        self,
        n_components: int = 2,
        *,
        epsilon: float = 1.0,
        delta: float | None = None,
        n: int | None = None,
        lower: Any = None,
        upper: Any = None,
    ) -> None:
        self.n_components, self.epsilon, self.delta = n_components, epsilon, delta
        self.n, self.lower, self.upper = n, lower, upper

    def mechanism(
        self,
        public: Public,
        *,
        target: str | None = None,
        features: Sequence[str] | None = None,
        delta: float | None = None,
    ) -> Mechanism:
        """Return the mechanism that releases second moments of the features; `target` is left out."""
        names = features_of(public, target, features)
        design = Design(features=names, target=None)
        _require.integer(n_components=self.n_components, at_least=1)
        if self.n_components > (width := len(replace(design, intercept=False).names(public))):
            raise _require.fail(
                "n_components", self.n_components, f"at most {width}, the number of coordinates"
            )
        return SecondMoments(public=public, design=design, epsilon=self.epsilon, delta=self._delta_or(delta))

    def adopt(self, release: Release, mechanism: Any) -> Any:
        super().adopt(release, mechanism)
        self.moments_: Moments = release.value
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
