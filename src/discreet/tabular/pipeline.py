"""Defines `PrivatePipeline`: private preprocessing and a model within one price.

    pipeline = PrivatePipeline(LogisticRegression(), clip=(0.05, 0.95), epsilon=1, weights=(1, 4))
    people.fit(pipeline, target="ill")

It is fitted through a session, whose schema declares the bounds that the pipeline narrows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from .. import _require, accounting
from .._errors import InvalidInput
from .._public import Bounds, Public
from .._require import POSITIVE
from ..mechanisms.protocols import Mechanism, Release
from .estimator_base import Estimator, parameters
from .learner import Piped, QuantileBounds
from .rows import features_of
from .scaler import PrivateScaler

# The number of bisection steps for the factor, between 1 and 2, by which both shares of epsilon can grow
# within the price. Chosen by hand, not tuned.
_HALVINGS = 5


@parameters
class PrivatePipeline(Estimator):
    """Narrows the bounds of numbers privately, and fits an estimator with the new bounds, within one price.

    `clip` is a pair of orders of quantiles, which become the bounds of each number; with `scale=True` the
    bounds are three standard deviations on both sides of the mean instead, which needs a delta. `columns` are
    the numbers whose bounds are narrowed, by default all. `weights` divides epsilon between the two parts, as
    (for the narrowing of bounds, for the model). With a delta both shares are enlarged as far as their
    composition stays within (epsilon, delta). Categories need no preprocessing: their declared values are
    one-hot encoded, at no cost.

    Guarantee: the privacy event `event_`. Proof: `Piped`.
    """

    estimator: Any = field(kw_only=False)
    clip: tuple[float, float] | None = (0.05, 0.95)
    scale: bool = False
    columns: Sequence[str] | None = None
    weights: tuple[float, float] = (1.0, 4.0)
    epsilon: Annotated[float, POSITIVE] = 1.0

    def _build(self, public: Public, target: Any, features: Sequence[str] | None, delta: float) -> Mechanism:
        _require.an_object(self.estimator)
        step_weight, model_weight = _pair(weights=self.weights)
        _require.positive(**{"weights[0]": step_weight, "weights[1]": model_weight})
        shares = step_weight / (step_weight + model_weight), model_weight / (step_weight + model_weight)

        def build(growth: float) -> Piped:
            """Return the mechanism in which both parts have `growth` times their share of epsilon."""
            step_epsilon, model_epsilon = (growth * self.epsilon * share * (1 - 1e-9) for share in shares)
            model = clone(self.estimator).set_params(epsilon=model_epsilon, delta=delta / 2)
            learner: Any = model.mechanism(public, target=target, features=features)
            step = self._step(public, target, features, step_epsilon, delta / 2)
            return Piped(public=public, steps=(step,), learner=learner, epsilon=self.epsilon, delta=delta)

        pipeline, feasible, too_large = build(1.0), 1.0, 2.0
        if delta == 0:
            return pipeline
        for _ in range(_HALVINGS):
            growth = (feasible + too_large) / 2
            larger = build(growth)
            if float(accounting.epsilon(larger.event, delta=delta, accountant="rdp")) <= self.epsilon:
                pipeline, feasible = larger, growth
            else:
                too_large = growth
        return pipeline

    def _step(self, public: Public, target: str, features: Any, epsilon: float, delta: float) -> Any:
        """Return the mechanism that narrows the bounds."""
        names = features_of(public, target, features)
        columns = [name for name in names if isinstance(public.fact(name), Bounds)]
        if self.columns is not None:
            chosen = list(_require.listed(columns=self.columns))
            missing = [name for name in chosen if name not in columns]
            if missing:
                raise _require.fail("columns", missing[0], f"numbers among the features: {columns}")
            columns = chosen
        _require.that(columns, "no feature is a number: there is nothing to scale.")
        if self.scale:
            _require.that(delta > 0, "scale=True adds Gaussian noise, which needs a delta. Take clip=.")
            return PrivateScaler.for_privacy(public=public, columns=columns, epsilon=epsilon, delta=delta)
        low, high = _pair(clip=self.clip)
        return QuantileBounds(public=public, columns=tuple(columns), epsilon=epsilon, low=low, high=high)

    def fit(self, X: Any, y: Any) -> PrivatePipeline:
        """Refuse arrays: a pipeline reads a schema's columns by name, and is charged by a session."""
        raise InvalidInput(
            "a pipeline is fitted through a session, people.fit(PrivatePipeline(...), target=...)."
        )

    def adopt(self, release: Release, mechanism: Any) -> Any:
        super().adopt(release, mechanism)
        self.estimator_ = clone(self.estimator).adopt(release, mechanism.learner)
        return self

    @property
    def bounds_(self) -> dict[str, tuple[float, float]]:
        """Return the bounds of the numbers that the model was fitted with."""
        check_is_fitted(self, "model_")
        facts = self.model_.public.schema
        return {n: (float(f.lower), float(f.upper)) for n, f in facts if isinstance(f, Bounds)}

    def predict(self, X: Any) -> npt.NDArray[Any]:
        check_is_fitted(self, "model_")
        return self.estimator_.predict(X)  # type: ignore[no-any-return]

    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:
        check_is_fitted(self, "model_")
        return self.estimator_.predict_proba(X)  # type: ignore[no-any-return]

    def score(self, X: Any, y: Any) -> float:
        check_is_fitted(self, "model_")
        return float(self.estimator_.score(X, y))


def _pair(**named: Any) -> tuple[Any, Any]:
    """Return the two entries of an argument; refuse another number of them."""
    ((name, value),) = named.items()
    entries = _require.listed(**named)
    _require.must(len(entries) == 2, name, value, "a pair of numbers")
    return entries[0], entries[1]
