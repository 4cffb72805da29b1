"""Defines estimators with scikit-learn's contract around any torch module: `DPClassifier`, `DPRegressor`, and
`SGDLogisticRegression`.

    model = DPClassifier(epsilon=3, delta=1e-5, classes=[0, 1], n=1400, lower=0, upper=16).fit(X, y)
    model.predict(X_new); model.event_

    # through `people`, a session (`discreet.open`): charged first, facts from the schema
    model = people.fit(SGDLogisticRegression(epsilon=1), target="income")
    model.predict({"age": [35], "education": ["Masters"]})

What scikit-learn would read from the data is declared instead: the classes, the number of examples, the
bounds of features and target. Each `fit` is a release of its own: a function that fits k models
(GridSearchCV, cross_val_score) costs k prices, and `event_` is the last one's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted
from torch import nn

from .. import _require
from .._errors import InvalidInput, PrivateFact
from .._public import Boolean, Bounds, Categories
from .estimator_base import SGDEstimator, default_batch, encode_rows, network
from .trainer import Progress

__all__ = [
    "DPClassifier",
    "DPRegressor",
    "SGDLogisticRegression",
    "default_batch",
    "encode_rows",
    "network",
]


class DPClassifier(ClassifierMixin, SGDEstimator):  # type: ignore[misc]
    """Fits a classifier with DP-SGD; logistic regression unless `module` or `hidden` says otherwise.

    `module` is a function of (features, classes), or a torch module whose outputs are one score for each
    class; `hidden` are the sizes of layers of a tanh network. `classes` are the declared classes; a label
    that is not among them counts as the smallest of them (through a session: as the first in the schema). `n`
    is the declared number of examples (through a session: by default the table's declared size), `lower` and
    `upper` are the bounds of all features, or of each (through a session: those of the schema).

    `delta` is by default the budget's, and 1e-5 without a session. `noise_multiplier`, if given, is used
    instead of epsilon. `clip` is a norm or a clipping rule. `batch` is by default chosen from n and epsilon,
    which are public (`default_batch`): 1024 / epsilon, at most n / 2, at least 256 and never above n.
    `average` is the decay of an exponential average of the weights. `microbatch` limits how many examples the
    model is given at a time, to save memory. `progress` is called after each step, with public facts.
    `event_` is the price, `module_` the trained model.

    Each `fit` is another release with its own price, and `event_` is that of the last one: cross_val_score
    with k folds, or GridSearchCV over k settings, fits at least k times. Outside of a session nobody adds up
    these prices. A scaler before it in a pipeline reads private data without paying, and what
    it learns is not private: declare `lower` and `upper`, or pay for a `PrivateScaler`.

    Guarantee: the privacy event `event_`, under add_remove and one row per person; through a session, under
               its relation and unit. Proof: `Trainer`.
    """

    _loss = nn.CrossEntropyLoss

    @_require.check_options
    def __init__(
        self,
        module: Callable[[int, int], nn.Module] | nn.Module | None = None,
        *,
        classes: Any = None,
        epsilon: float | None = 1.0,
        delta: float | None = None,
        noise_multiplier: float | None = None,
        n: int | None = None,
        lower: Any = None,
        upper: Any = None,
        clip: Any = 1.0,
        batch: int | None = None,
        epochs: float = 20,
        hidden: Sequence[int] = (),
        optimizer: Any = None,
        average: float | None = None,
        microbatch: int | None = None,
        progress: Callable[[Progress], Any] | None = None,
    ) -> None:
        self._set_parameters(locals())

    def fit(self, X: Any, y: Any) -> DPClassifier:
        if self.classes is None:
            raise PrivateFact(
                "which classes occur is private: declare them, classes=[...]. Nothing was trained."
            )
        X, y = self._validate_arrays(X, y)
        self.classes_ = np.array(sorted(set(self.classes)))
        if len(self.classes_) < 2:
            raise InvalidInput(
                f"at least two classes must be declared, got {len(self.classes_)}. Nothing was trained."
            )
        labels = np.searchsorted(self.classes_, y).clip(0, len(self.classes_) - 1)
        labels[self.classes_[labels] != y] = 0
        self._train(self._scale(X), torch.from_numpy(labels.astype(np.int64)), len(self.classes_))
        return self

    def _declare_target(self, fact: Any, target: str) -> int:
        if not isinstance(fact, Categories | Boolean):
            raise InvalidInput(
                f"a classifier needs a target with declared categories, and {target!r} has none. Nothing was "
                "charged or trained. Declare Categories or Boolean for it, or use DPRegressor."
            )
        values = [False, True] if isinstance(fact, Boolean) else list(fact.values)
        if len(values) < 2:
            raise InvalidInput(
                f"at least two classes must be declared for {target!r}. Nothing was charged or trained."
            )
        if self.classes is not None and set(self.classes) != set(values):
            raise InvalidInput(f"classes= differs from what the schema declares of {target!r}: leave it out.")
        self.classes_ = np.array(values, dtype=None if len({type(v) for v in values}) == 1 else object)
        return len(values)

    def decision_function(self, X: Any) -> npt.NDArray[Any]:
        scores = self._outputs(X)
        return (scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores).numpy()

    def predict_proba(self, X: Any) -> npt.NDArray[Any]:
        return torch.softmax(self._outputs(X), 1).numpy()

    def predict(self, X: Any) -> npt.NDArray[Any]:
        labels = self._outputs(X).argmax(1).numpy()
        return self.classes_[labels]  # type: ignore[no-any-return]


class SGDLogisticRegression(DPClassifier):
    """Fits logistic regression with DP-SGD: `coef_` and `intercept_` as scikit-learn has them, for
    features scaled to [-1, 1].

    It is linear: `DPClassifier` takes `hidden` layers or a `module`. Options, defaults and the price of each
    `fit` are those of `DPClassifier`.

    Guarantee: the privacy event `event_`. Proof: `Trainer`.
    """

    # Options of the base class that a linear model does not have.
    module, hidden = None, ()

    @_require.check_options
    def __init__(
        self,
        *,
        classes: Any = None,
        epsilon: float | None = 1.0,
        delta: float | None = None,
        noise_multiplier: float | None = None,
        n: int | None = None,
        lower: Any = None,
        upper: Any = None,
        clip: Any = 1.0,
        batch: int | None = None,
        epochs: float = 20,
        optimizer: Any = None,
        average: float | None = None,
        microbatch: int | None = None,
        progress: Callable[[Progress], Any] | None = None,
    ) -> None:
        self._set_parameters(locals())

    @property
    def coef_(self) -> npt.NDArray[Any]:
        check_is_fitted(self, "module_")
        return self._fold_binary(self.module_.weight.detach().numpy())

    @property
    def intercept_(self) -> npt.NDArray[Any]:
        check_is_fitted(self, "module_")
        return self._fold_binary(self.module_.bias.detach().numpy())

    @staticmethod
    def _fold_binary(by_class: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return one row for two classes, as scikit-learn does: the second class's row less the first's. For
        more classes return all rows."""
        return by_class[1:] - by_class[:1] if len(by_class) == 2 else by_class


class DPRegressor(RegressorMixin, SGDEstimator):  # type: ignore[misc]
    """Fits a regression with DP-SGD, on targets clipped to the declared bounds; linear unless `module` or
    `hidden` says otherwise.

    Options are those of `DPClassifier`, without `classes`; `target_lower` and `target_upper` are the declared
    bounds of the target.

    Each `fit` is another release with its own price, and `event_` is that of the last one: cross_val_score
    with k folds, or GridSearchCV over k settings, fits at least k times. Outside of a session nobody adds up
    these prices. A scaler before it in a pipeline reads private data without paying, and what
    it learns is not private: declare `lower` and `upper`, or pay for a `PrivateScaler`.

    Guarantee: the privacy event `event_`, under add_remove and one row per person; through a session, under
               its relation and unit. Proof: `Trainer`.
    """

    _loss = nn.MSELoss

    @_require.check_options
    def __init__(
        self,
        module: Callable[[int, int], nn.Module] | nn.Module | None = None,
        *,
        target_lower: float | None = None,
        target_upper: float | None = None,
        epsilon: float | None = 1.0,
        delta: float | None = None,
        noise_multiplier: float | None = None,
        n: int | None = None,
        lower: Any = None,
        upper: Any = None,
        clip: Any = 1.0,
        batch: int | None = None,
        epochs: float = 20,
        hidden: Sequence[int] = (),
        optimizer: Any = None,
        average: float | None = None,
        microbatch: int | None = None,
        progress: Callable[[Progress], Any] | None = None,
    ) -> None:
        self._set_parameters(locals())

    def fit(self, X: Any, y: Any) -> DPRegressor:
        X, y = self._validate_arrays(X, y)
        _require.ordered(target_lower=self.target_lower, target_upper=self.target_upper)
        low, high = self.range_ = float(self.target_lower), float(self.target_upper)
        target = np.nan_to_num(
            2 * (np.clip(y.astype(np.float64), low, high) - low) / (high - low) - 1
        ).astype(np.float32)
        self._train(self._scale(X), torch.from_numpy(target)[:, None], 1)
        return self

    def _declare_target(self, fact: Any, target: str) -> int:
        if not isinstance(fact, Bounds):
            raise InvalidInput(
                f"a regression needs a target with declared bounds, and {target!r} has none. Nothing was "
                "charged or trained. Declare Bounds for it, or use DPClassifier."
            )
        self.range_ = float(fact.lower), float(fact.upper)
        return 1

    def predict(self, X: Any) -> npt.NDArray[Any]:
        predictions = self._outputs(X)[:, 0].double().numpy()
        low, high = self.range_
        return np.clip((predictions + 1) / 2 * (high - low) + low, low, high)
