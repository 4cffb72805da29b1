"""Defines the contract of all estimators, those of this package and those that train with DP-SGD
(`learning.estimators`): parameters, declared facts, arrays, and what a fitted estimator holds.

Parameters are declared once, as annotated attributes of a class under `@parameters`, with their defaults and
their limits. The names are promised, because scikit-learn's `get_params` and `clone` use them. `__init__`
stores them unchanged, as scikit-learn wants it; their limits are checked when the mechanism is built.
"""

from __future__ import annotations

import functools
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar, dataclass_transform

import numpy as np
import numpy.typing as npt

from .. import _require
from .._errors import InvalidInput, MissingExtra, PrivateFact
from .._public import Bounds, Categories, Public
from ..mechanisms.protocols import Release
from ..sampling import Entropy
from ..tables import Memory
from .linear_model import class_array, class_indices

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.base import ClassNamePrefixFeaturesOutMixin as ClassNamePrefixFeaturesOutMixin
    from sklearn.base import ClusterMixin as ClusterMixin
    from sklearn.base import TransformerMixin as TransformerMixin
    from sklearn.utils.metaestimators import available_if
    from sklearn.utils.validation import check_is_fitted as check_is_fitted
    from sklearn.utils.validation import column_or_1d, validate_data
except ImportError:
    raise MissingExtra.of("tabular", "estimators in scikit-learn's manner need scikit-learn") from None

T = TypeVar("T")

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


@dataclass_transform(eq_default=False, kw_only_default=True, field_specifiers=(field,))
def parameters(cls: type[T]) -> type[T]:
    """Make an `__init__` for the annotated attributes of a class and of its bases, which stores them; all but
    those with `field(kw_only=False)` are given by name."""
    declared: Any = dataclass(eq=False, repr=False, kw_only=True)(cls)
    declared.__init__ = _require.check_options(declared.__init__)
    return declared  # type: ignore[no-any-return]


_limits_of: Callable[[type], dict[str, _require.Check]] = functools.cache(_require._checks_of_fields)


@parameters
class Estimator(BaseEstimator, ABC):  # type: ignore[misc]
    """Builds the mechanism from public facts, reads arrays as a table with declared bounds, and holds the
    released model: the base class of all estimators.

    `epsilon` and `delta` are the price. The names of columns, their bounds and classes, and how many rows
    there are come from a session's schema, or, for arrays, from parameters (`ArrayEstimator`).
    """

    epsilon: float = field(default=1.0, kw_only=False)
    delta: float | None = None

    # whether the estimator learns without a target
    unsupervised: ClassVar[bool] = False
    # the delta where neither the estimator nor the session has one
    _default_delta: ClassVar[float] = 0.0
    # The declared classes while arrays are fitted: the table made of the arrays holds the classes' numbers
    # instead. None otherwise.
    _labels: list[Any] | None = field(default=None, init=False)

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
        target: str | None = None,
        features: Sequence[str] | None = None,
        delta: float | None = None,
    ) -> Any:
        """Return the mechanism that fits this estimator to a table of these public facts; priced, and not run
        yet. For `Session.fit`.

        `features` are by default all columns that can be features: numbers with bounds, categories, booleans.
        `delta` is the session's, for an estimator without a delta of its own.
        """
        self._check_parameters()
        return self._build(public, target, features, self._delta_or(delta))

    @abstractmethod
    def _build(self, public: Public, target: Any, features: Sequence[str] | None, delta: float) -> Any:
        """Return the mechanism for this delta; `target` is None where there is none."""

    def _check_parameters(self) -> None:
        """Refuse a parameter that is not within the limits that stand on it."""
        for name, check in _limits_of(type(self)).items():
            check(name, _require.plain(vars(self)[name]))

    def _delta_or(self, delta: float | None) -> float:
        """Return the estimator's own delta, or the session's, or else the default."""
        return next((d for d in (self.delta, delta) if d is not None), self._default_delta)

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
        require_declared(self.n)
        require_bounds(self)
        X = self._validate_array(X)
        schema: Any = {**self._bounds(X.shape[1]), **({} if target is None else {TARGET: target})}
        public = Public(schema=schema, size=self.n)
        columns = {f"x{i}": X[:, i] for i in range(X.shape[1])}
        source = Memory({**columns, **({} if target is None else {TARGET: y})}, public)
        mechanism = self.mechanism(public, target=TARGET if target is not None else None)
        names = vars(self).get("feature_names_in_")
        self.adopt(mechanism(source, entropy=Entropy()), mechanism)
        self._use_arrays(names)
        return self

    def _fit_classes(self, X: Any, y: Any, classes: Any) -> list[Any]:
        """Fit to arrays with declared classes, and return these sorted, as scikit-learn has them."""
        if classes is None:
            raise PrivateFact("which classes occur is private: declare them, classes=[...].")
        labels = sorted_classes(classes)
        numbers_by_label = {value: i for i, value in enumerate(labels)}
        numbers = [numbers_by_label.get(value, 0) for value in column_of(y, X).tolist()]
        self._labels = labels
        try:
            self._fit_arrays(X, numbers, Categories(list(range(len(labels)))))
        finally:
            self._labels = None
        return labels

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
        with _require.refusing(
            _require.fail(
                "lower and upper", (self.lower, self.upper), f"a number, or one for each of {width} features"
            )
        ):
            lower = np.broadcast_to(np.asarray(self.lower, np.float64), (width,))
            upper = np.broadcast_to(np.asarray(self.upper, np.float64), (width,))
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


@parameters
class ArrayEstimator(Estimator):
    """Declares the public facts of arrays: `n`, about how many rows there are, and `lower` and `upper`, the
    bounds of all features, or of each."""

    n: int | None = None
    lower: Any = None
    upper: Any = None


@parameters
class Classifier(ClassifierMixin, ArrayEstimator):  # type: ignore[misc]
    """Fits arrays with declared classes, and predicts from the scores of a model: the base class of
    classifiers."""

    classes: Any = None

    # whether the model has probabilities of classes
    _has_probabilities: ClassVar[bool] = True

    def fit(self, X: Any, y: Any) -> Any:
        """Fit to arrays with declared `classes`, `n`, `lower` and `upper`.

        A label that is not declared counts as the first class.
        """
        self.classes_ = np.array(self._fit_classes(X, y, self.classes))
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


@parameters
class Regressor(RegressorMixin, ArrayEstimator):  # type: ignore[misc]
    """Fits arrays with declared bounds of the target, and predicts in its unit: the base class of
    regressions."""

    target_lower: Any = None
    target_upper: Any = None

    def fit(self, X: Any, y: Any) -> Any:
        """Fit to arrays with declared `n`, `lower`, `upper`, `target_lower` and `target_upper`."""
        require_bounds(self)
        _require.ordered(target_lower=self.target_lower, target_upper=self.target_upper)
        self._fit_arrays(X, numbers_of(y, X), Bounds(self.target_lower, self.target_upper))
        return self

    def predict(self, X: Any) -> npt.NDArray[Any]:
        inputs = self._inputs(X)
        return np.asarray(self.model_.predict(inputs))


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
        _require.that(
            not name.startswith(_REPEATING),
            f"{name} fits many times, and nobody adds up what each fit costs. Tune with PrivateSearch, "
            "or fit through a session, people.fit(...), which charges every fit.",
        )
        frame = frame.f_back


def sorted_classes(classes: Any) -> list[Any]:
    """Return declared classes sorted, as scikit-learn has them; refuse anything but a list of at least two
    different values that can be compared."""
    with _require.refusing(
        _require.fail("classes", classes, "a list of values of one kind, such as [0, 1] or ['no', 'yes']")
    ):
        labels: list[Any] = np.array(sorted(classes)).tolist()
        are_distinct = len(set(labels)) == len(labels) and all(label == label for label in labels)
    if len(labels) < 2 or not are_distinct:
        raise InvalidInput(f"at least two classes must be declared, each once, got {labels}.")
    return labels


def column_of(y: Any, X: Any) -> npt.NDArray[Any]:
    """Return the target as one column; refuse one that is missing or of another length than X."""
    _require.that(y is not None, "this estimator requires y to be passed, but the target y is None.")
    y = np.asarray(y)
    y = column_or_1d(y, warn=True) if y.shape[1:] == (1,) else y
    if y.ndim != 1 or (hasattr(X, "shape") and len(X.shape) == 2 and X.shape[0] != len(y)):
        raise of_another_length()
    return np.asarray(y)


def of_another_length() -> InvalidInput:
    """Return the error for a target whose length is not that of the features."""
    return InvalidInput("y must have one entry for each row of X.")


def numbers_of(y: Any, X: Any) -> npt.NDArray[np.float64]:
    """Return the targets of a regression as floats; an error never quotes a value that is no number."""
    try:
        return column_of(y, X).astype(np.float64)
    except (TypeError, ValueError) as error:
        if isinstance(error, InvalidInput):
            raise
    # outside of `except`, as in `validate_rows`
    raise InvalidInput("y must be numbers.")


def require_declared(n: Any) -> int:
    """Return the number of rows; refuse one that is not declared."""
    if n is None:
        raise PrivateFact(
            "the number of rows is private and never read off the data: declare it, n=..., or buy a noisy "
            "count."
        )
    _require.integer(n=n, at_least=1)
    return int(n)


def require_bounds(estimator: Any) -> None:
    """Refuse to fit arrays whose bounds, of the features or of the target, are not declared."""
    for names, what in (
        (("lower", "upper"), "the features"),
        (("target_lower", "target_upper"), "the target"),
    ):
        if any(vars(estimator).get(name, 0) is None for name in names):
            raise PrivateFact(
                f"the bounds of {what} are private and never read off the data: declare them, {names[0]}=0, "
                f"{names[1]}=100 (any value outside is clipped), or fit through a session, whose schema has "
                "them and whose PrivatePipeline buys tighter ones."
            )
