"""Computes regressions and components from second moments, in scikit-learn's manner: `Ridge`,
`LinearRegression`, `PCA`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from ... import _require
from ..._public import Public
from ...mechanisms.protocols import Mechanism, Release
from .estimators import Regressor, TableEstimator
from .model import LinearModel
from .moments import Moments, SecondMoments
from .rows import Design, features_of


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
