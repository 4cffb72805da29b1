"""Estimators with scikit-learn's contract around any torch module: `DPClassifier` and `DPRegressor`.

    model = DPClassifier(epsilon=3, delta=1e-5, classes=[0, 1], n=1400, lower=0, upper=16).fit(X, y)
    model.predict(X_new); model.event_

What scikit-learn would read off the data is declared instead: the classes, the number of examples, the bounds of features and target.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from .. import _require
from .._errors import InvalidInput, PrivateFact
from .._public import Public
from ..sampling import Entropy
from .data import Examples
from .optimizers import SGD
from .trainer import Trainer


class _Estimator(BaseEstimator):  # type: ignore[misc]
    """What both share: scaling by declared bounds, the module, the trainer."""

    def __init__(
        self,
        module: Callable[[int, int], nn.Module] | nn.Module | None = None,
        *,
        epsilon: float | None = 1.0,
        delta: float | None = 1e-5,
        noise_multiplier: float | None = None,
        n: int | None = None,
        lower: Any = -1.0,
        upper: Any = 1.0,
        clip: Any = 1.0,
        batch: int = 256,
        epochs: float = 20,
        optimizer: Any = None,
        average: float | None = None,
        microbatch: int | None = None,
    ) -> None:
        self.module, self.epsilon, self.delta, self.noise_multiplier = module, epsilon, delta, noise_multiplier
        self.n, self.lower, self.upper, self.clip = n, lower, upper, clip
        self.batch, self.epochs, self.optimizer = batch, epochs, optimizer
        self.average, self.microbatch = average, microbatch

    def _train(self, X: Tensor, y: Tensor, outputs: int, loss: nn.Module) -> None:
        if self.n is None:
            raise PrivateFact(
                "the number of examples is private and never read off the data: declare it, n=..., or buy a noisy count. Nothing was trained."
            )
        noisy = self.noise_multiplier is not None
        public = Public(size=self.n)
        trainer = Trainer(
            self._built(X, outputs), loss, public=public, noise_multiplier=self.noise_multiplier,  # type: ignore[arg-type]
            epsilon=None if noisy else self.epsilon, delta=None if noisy else self.delta, clip=self.clip,
            batch=min(self.batch, self.n), epochs=self.epochs, optimizer=self.optimizer or SGD(lr=0.5, momentum=0.9),
            average=self.average, microbatch=self.microbatch,
        )  # fmt: skip
        found = trainer(Examples(X, y, public), entropy=Entropy())
        self.module_, self.event_, self.trainer_ = found.value, found.event, trainer

    def _checked(self, X: Any, y: Any) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Shapes and types only: that some value is missing or infinite is a fact about people, and no reason to stop."""
        X = validate_data(self, X, dtype=np.float64, ensure_all_finite=False, ensure_min_samples=0)
        y = np.asarray(y)
        if y.shape != (len(X),):
            raise InvalidInput("y must have one entry for each row of X. Nothing was trained.")
        return X, y

    def _built(self, X: Tensor, outputs: int) -> nn.Module:
        if isinstance(self.module, nn.Module):
            return self.module
        features = int(np.prod(X.shape[1:]))
        return nn.Linear(features, outputs) if self.module is None else self.module(features, outputs)

    def _scaled(self, X: npt.NDArray[Any]) -> Tensor:
        """To [-1, 1] by the declared bounds; what lies outside is clipped, what is missing is 0."""
        lower, upper = np.asarray(self.lower, np.float64), np.asarray(self.upper, np.float64)
        if not (np.all(np.isfinite(lower)) and np.all(lower < upper) and np.all(np.isfinite(upper))):
            raise _require.fail(
                "lower and upper", (self.lower, self.upper), "finite, with lower below upper for each feature"
            )
        scaled = 2 * (np.clip(X, lower, upper) - lower) / (upper - lower) - 1
        return torch.from_numpy(np.nan_to_num(scaled).astype(np.float32))

    def _outputs(self, X: Any) -> Tensor:
        check_is_fitted(self, "module_")
        X = validate_data(self, X, reset=False, dtype=np.float64, ensure_all_finite=False)
        with torch.no_grad():
            return self.module_(self._scaled(X))  # type: ignore[no-any-return]


class DPClassifier(ClassifierMixin, _Estimator):  # type: ignore[misc]
    """A classifier trained with DP-SGD; logistic regression unless `module` says otherwise.

    `module` is a function of (features, classes), or a torch module whose outputs are one score for each class. `classes` are declared;
    a label that is not among them counts as the first. `event_` is the price, `module_` the trained model.

    Guarantee: `event_` under add_remove, one row a person. Proof: `Trainer`.
    """

    def __init__(self, module: Any = None, *, classes: Any = None, **settings: Any) -> None:
        super().__init__(module, **settings)
        self.classes = classes

    @classmethod
    def _get_param_names(cls) -> list[str]:
        return sorted({*_Estimator._get_param_names(), "classes"})

    def fit(self, X: Any, y: Any) -> DPClassifier:
        if self.classes is None:
            raise PrivateFact("which classes occur is private: declare them, classes=[...]. Nothing was trained.")
        X, y = self._checked(X, y)
        self.classes_ = np.array(sorted(self.classes))
        if len(self.classes_) < 2:
            raise InvalidInput(f"at least two classes must be declared, got {len(self.classes_)}. Nothing was trained.")
        place = np.searchsorted(self.classes_, y).clip(0, len(self.classes_) - 1)
        place[self.classes_[place] != y] = 0
        self._train(
            self._scaled(X), torch.from_numpy(place.astype(np.int64)), len(self.classes_), nn.CrossEntropyLoss()
        )
        return self

    def decision_function(self, X: Any) -> npt.NDArray[Any]:
        scores = self._outputs(X)
        return (scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores).numpy()

    def predict_proba(self, X: Any) -> npt.NDArray[Any]:
        return torch.softmax(self._outputs(X), 1).numpy()

    def predict(self, X: Any) -> npt.NDArray[Any]:
        best = self._outputs(X).argmax(1).numpy()
        return self.classes_[best]  # type: ignore[no-any-return]


class DPRegressor(RegressorMixin, _Estimator):  # type: ignore[misc]
    """A regression trained with DP-SGD, on targets clipped to the declared bounds; linear unless `module` says otherwise.

    Guarantee: `event_` under add_remove, one row a person. Proof: `Trainer`.
    """

    def __init__(
        self, module: Any = None, *, target_lower: float = -1.0, target_upper: float = 1.0, **settings: Any
    ) -> None:
        super().__init__(module, **settings)
        self.target_lower, self.target_upper = target_lower, target_upper

    @classmethod
    def _get_param_names(cls) -> list[str]:
        return sorted({*_Estimator._get_param_names(), "target_lower", "target_upper"})

    def fit(self, X: Any, y: Any) -> DPRegressor:
        _require.ordered(target_lower=self.target_lower, target_upper=self.target_upper)
        X, y = self._checked(X, y)
        low, high = float(self.target_lower), float(self.target_upper)
        goal = np.nan_to_num(2 * (np.clip(y.astype(np.float64), low, high) - low) / (high - low) - 1).astype(np.float32)
        self._train(self._scaled(X), torch.from_numpy(goal)[:, None], 1, nn.MSELoss())
        return self

    def predict(self, X: Any) -> npt.NDArray[Any]:
        low, high = float(self.target_lower), float(self.target_upper)
        found = (self._outputs(X)[:, 0].double().numpy() + 1) / 2 * (high - low) + low
        return np.clip(found, low, high)
