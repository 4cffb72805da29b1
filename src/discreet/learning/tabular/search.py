"""`PrivateSearch`: private tuning in scikit-learn's manner.

search = people.fit(PrivateSearch(LogisticRegression(), {"regularization": [1, 10, 100]}, epsilon=1),
target="income") search.best_params_; search.predict(...); search.comparison()
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import clone
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from ... import _require
from ..._errors import InvalidInput, PrivateFact
from ..._public import Bounds, Categories, Public
from ...accounting import geometric, logarithmic
from ...mechanisms.protocols import Mechanism, Release
from .estimators import TableEstimator, column_of, numbers_of
from .selection import RandomTrials

LAWS = {"logarithmic": logarithmic, "geometric": geometric}


def gamma_of(law: str, mean: float) -> float:
    """Return the gamma at which a law of trials has this mean: 1 / gamma, or (1 / gamma - 1) / log(1 /
    gamma)."""
    if law == "geometric":
        return 1 / mean
    low, high = 1e-12, 1 - 1e-12
    for _ in range(200):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if (1 / middle - 1) / -math.log(middle) > mean else (low, middle)
    return high


class PrivateSearch(TableEstimator):
    """Tunes a linear estimator over all combinations of `space`, within one epsilon, and is the best model
    afterwards.

    `trials` is the mean number of runs, `law` "logarithmic" (total: twice the epsilon of a run) or
    "geometric" (three times). One run gets the same epsilon however many candidates there are. `holdout` is
    the share of units that scores. Pure: no delta is used.

    Guarantee: `event_`. Proof: `RandomTrials`.
    """

    def __init__(
        self,
        estimator: Any,
        space: Mapping[str, Sequence[Any]],
        *,
        epsilon: float = 1.0,
        trials: float = 10.0,
        law: str = "logarithmic",
        holdout: float = 0.2,
    ) -> None:
        self.estimator, self.space, self.epsilon = estimator, space, epsilon
        self.trials, self.law, self.holdout = trials, law, holdout

    _labels: list[Any] | None = None

    @property
    def _settings(self) -> list[dict[str, Any]]:
        if not isinstance(self.space, Mapping) or not self.space:
            raise _require.fail(
                "space", self.space, 'lists of values by parameter, such as {"regularization": [1, 10]}'
            )
        lists = [_require.listed(**{name: values}) for name, values in self.space.items()]
        settings = [dict(zip(self.space, values, strict=True)) for values in itertools.product(*lists)]
        if not settings or any(
            name in self.space for name in ("epsilon", "delta", "n", "lower", "upper", "classes")
        ):
            raise InvalidInput(
                f"space = {dict(self.space)!r} is empty, or varies the price or public facts, which "
                f"no search may. Nothing was charged."
            )
        return settings

    def mechanism(
        self,
        public: Public,
        *,
        target: str,
        features: Sequence[str] | None = None,
        delta: float | None = None,
    ) -> Mechanism:
        _require.positive(epsilon=self.epsilon)
        _require.one_of(tuple(LAWS), law=self.law)
        _require.open_probability(holdout=self.holdout)
        _require.finite(trials=self.trials)
        if not self.trials > 1:
            raise _require.fail("trials", self.trials, "above 1: the mean number of runs")
        trials = LAWS[self.law](gamma_of(self.law, float(self.trials)))
        each = self.epsilon / float(2 + trials.shape) * (1 - 1e-12)
        size = public.declared_size("tuning")
        rows = max(1, round(size * (1 - self.holdout)))
        candidates = []
        for setting in self._settings:
            model = clone(self.estimator).set_params(**setting, epsilon=each, delta=0.0, n=rows)
            model._labels = self._labels
            candidates.append(model.mechanism(public, target=target, features=features))
        return RandomTrials(
            public=public,
            candidates=tuple(candidates),
            score_epsilon=each,
            trials=trials,
            holdout=self.holdout,  # type: ignore[arg-type]
        )

    def adopt(self, release: Release, mechanism: Any) -> Any:
        super().adopt(release, mechanism)
        self.best_params_ = self._settings[release.value.candidate]
        self.best_score_ = release.value.score
        chosen = mechanism.candidates[release.value.candidate]
        inner = Release(value=release.value.model, event=release.event, private=release.private)
        self.best_estimator_ = clone(self.estimator).set_params(**self.best_params_).adopt(inner, chosen)
        return self

    def fit(self, X: Any, y: Any) -> PrivateSearch:
        """Fit to arrays; what is public of them is declared at the estimator: `n`, `lower`, `upper`, and
        `classes` or target bounds."""
        base = self.estimator
        self.n, self.lower, self.upper = base.n, base.lower, base.upper
        classes = getattr(base, "classes", None)
        if hasattr(base, "target_lower"):
            self._run(X, numbers_of(y, X), Bounds(base.target_lower, base.target_upper))
        elif classes is None:
            raise PrivateFact(
                "which classes occur is private: declare them at the estimator, classes=[...]. "
                "Nothing was trained."
            )
        else:
            # numbered by the sorted order, as the estimator does
            labels = np.array(sorted(classes)).tolist()
            places = {value: i for i, value in enumerate(labels)}
            numbers = [places.get(value, 0) for value in column_of(y, X).tolist()]
            self._labels = labels
            try:
                self._run(X, numbers, Categories(list(range(len(labels)))))
            finally:
                self._labels = None
            self.best_estimator_.classes_ = np.array(labels)
        self.best_estimator_._of_arrays(getattr(self, "feature_names_in_", None))
        return self

    def predict(self, X: Any) -> npt.NDArray[Any]:
        check_is_fitted(self, "best_estimator_")
        return self.best_estimator_.predict(X)  # type: ignore[no-any-return]

    @available_if(lambda self: getattr(self.estimator, "predict_proba", None) is not None)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:
        check_is_fitted(self, "best_estimator_")
        return self.best_estimator_.predict_proba(X)  # type: ignore[no-any-return]

    def score(self, X: Any, y: Any) -> float:
        check_is_fitted(self, "best_estimator_")
        return float(self.best_estimator_.score(X, y))

    def comparison(self) -> dict[str, float]:
        """Return what this search cost, what trying every candidate once by plain composition would, and what
        hiding it would claim."""
        check_is_fitted(self, "best_estimator_")
        run = float(self.mechanism_.run_epsilon)
        return {
            "this search": self.mechanism_.epsilon,
            "plain composition, every candidate once": run * len(self.mechanism_.candidates),
            "cheating: the best run alone, not a guarantee": run,
        }
