"""Small real models on scikit-learn's digits, some of them mislabelled: what attacks on models are tried
on."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier

CLASSES = 10


def digits(examples: int, *, mislabelled: float = 0.2, seed: int = 0) -> tuple[Any, Any]:
    """Digits, of which this share has a label drawn at random: what an overfitted model has to learn by
    heart."""
    x, y = load_digits(return_X_y=True)
    rng = np.random.default_rng(seed)
    chosen = rng.permutation(len(x))[:examples]
    x, y = x[chosen] / 16, y[chosen].copy()
    wrong = rng.random(examples) < mislabelled
    y[wrong] = rng.integers(0, CLASSES, wrong.sum())
    return x, y


class Overfitted:
    """A network of one hidden layer, fitted until it knows everything by heart."""

    def __init__(self, x: Any, y: Any, hidden: int = 64, seed: int = 0) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it need not converge
            self.model = MLPClassifier((hidden,), solver="lbfgs", alpha=1e-6, max_iter=60, random_state=seed)
            self.model.fit(x, y)

    def log_probabilities(self, x: Any) -> Any:
        """[examples, classes], also for classes that were not in the training data."""
        found = np.full((len(x), CLASSES), -50.0)
        found[:, self.model.classes_] = self.model.predict_log_proba(x)
        return np.maximum(found, -50.0)
