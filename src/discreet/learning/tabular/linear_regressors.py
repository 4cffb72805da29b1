"""Defines linear regression by private empirical risk minimization, in scikit-learn's manner:
`HuberRegressor`."""

from __future__ import annotations

from typing import Any

from .estimators import Linear, Regressor
from .losses import Huber, Loss


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
