"""Defines linear models as they are released: weights, and the public facts of their columns. They are saved
as JSON (`model_cards`).

All here is post-processing, but for one bound: `losses` is within [0, 1] per row, which is the sensitivity
that a private choice among models rests on (`trials`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import expit, softmax

from .. import _require
from .._public import Bounds, Public
from .._registry import described
from .losses import exact_scores
from .rows import Design, classes_of

Array = npt.NDArray[np.float64]


class ScoreModel(ABC):
    """Base of models with one score per row, or with more than two classes one per class."""

    __slots__ = ()
    design: Design
    public: Public
    classes: tuple[Any, ...]
    # whether the model is multinomial (softmax), not one binary model per class against the rest
    joint: bool

    @abstractmethod
    def scores(self, X: Any) -> Array:
        """Return one score per row, or with more than two classes one per class."""

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """Return the class, or the number in the target's own unit, of each row."""
        scores = self.scores(X)
        if not self.classes:
            return in_target_unit(scores, self.design, self.public)
        return np.asarray(class_array(self.classes)[class_indices(scores)])

    def probabilities(self, X: Any) -> Array:
        """Return the probability of each class: the logistic function of scores, normalized where there are
        more than two classes; of several classes with `joint`, the softmax of scores."""
        scores = self.scores(X)
        if scores.ndim == 1:
            return np.stack([expit(-scores), expit(scores)], axis=1)
        if self.joint:
            return np.asarray(softmax(scores, axis=1))
        # at least the smallest normal float, so that no row has only zeros to normalize
        one_vs_rest = np.maximum(expit(scores), np.finfo(float).tiny)
        return np.asarray(one_vs_rest / one_vs_rest.sum(axis=1, keepdims=True))

    def _losses(self, scores: Array, targets: Array) -> Array:
        """Return the loss of each row, within [0, 1]: 1 for a wrong class, a quarter of the squared error for
        a number."""
        if not self.classes:
            return quarter_squared_error(scores, targets)
        return np.asarray(class_indices(scores) != targets, dtype=np.float64)


@described("learning.LinearModel")
class LinearModel(ScoreModel):
    """Predicts from declared columns by one vector of weights, or one for each of several classes.

    `public` holds the schema of the model's columns and nothing else. `classes` is empty for a regression.
    """

    design: Design
    public: Public
    weights: tuple[tuple[float, ...], ...]
    classes: tuple[Any, ...] = ()
    joint: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "classes", _require.listed(classes=self.classes))
        object.__setattr__(self, "weights", tuple(tuple(float(w) for w in row) for row in self.weights))
        models, width = number_of_models(self.classes), self.design.width(self.public)
        what = f"a linear model of these columns has {models} x {width} weights."
        _require.that([len(row) for row in self.weights] == [width] * models, what)

    def scores(self, X: Any) -> Array:
        """Return one score per row, or with more than two classes one per class."""
        result: Array = self.design.encode(X, self.public) @ np.array(self.weights).T
        return result[:, 0] if len(self.weights) == 1 else result

    def losses(self, x: Array, targets: Array) -> Array:
        """Return the loss of each row of coordinates, within [0, 1]: 1 for a wrong class, a quarter of the
        squared error for a number.

        Guarantee: one row changes the sum of losses by at most 1.
        Proof:     a row's loss is a function of that row (`exact_scores`), within [0, 1].
        """
        # no coordinate is above 1 in size
        scores = exact_scores(x, np.array(self.weights).T, 1.0)
        scores = scores[:, 0] if len(self.weights) == 1 else scores
        return self._losses(scores, targets)


def number_of_models(classes: tuple[Any, ...]) -> int:
    """Return one for a number (no classes) or two classes, and with more classes one for each."""
    _require.must(len(classes) != 1, "classes", classes, "two or more, or none for a number")
    return 1 if len(classes) <= 2 else len(classes)


def class_indices(scores: Array) -> npt.NDArray[np.int64]:
    """Return the index of the predicted class of each row, from one score per row or one per class."""
    return np.asarray((scores > 0).astype(np.int64) if scores.ndim == 1 else scores.argmax(axis=1))


def in_target_unit(scores: Array, design: Design, public: Public) -> Array:
    """Return predictions, made on the scale [-1, 1], in the unit of the target and within its declared
    bounds."""
    assert design.target is not None
    bounds = public.bounds(design.target)
    low, high = float(bounds.lower), float(bounds.upper)
    return np.clip((scores + 1) / 2 * (high - low) + low, low, high)


def quarter_squared_error(scores: Array, targets: Array) -> Array:
    """Return a quarter of the squared error of scores that are clipped to [-1, 1]: within [0, 1]."""
    return np.asarray((np.clip(scores, -1, 1) - targets) ** 2 / 4)


def class_array(classes: tuple[Any, ...]) -> npt.NDArray[Any]:
    """Return the classes as an array, of objects where they have several types."""
    return np.array(list(classes), dtype=None if len({type(value) for value in classes}) == 1 else object)


def columns_only(public: Public, design: Design) -> Public:
    """Return the public facts of the model's columns alone: prediction needs no others, and no others are
    written to a model file."""
    names = (*design.features, *([] if design.target is None else [design.target]))
    return Public(schema=tuple((name, public.fact(name)) for name in names), table=public.table)


def target_classes(public: Public, target: str, classifies: bool) -> tuple[Any, ...]:
    """Return the declared classes; none for a regression, whose target must have bounds."""
    if classifies:
        return tuple(classes_of(public, target))
    _require.that(
        isinstance(public.fact(target), Bounds),
        f"a regression needs a target with declared bounds, and {target!r} has none. Declare Bounds for "
        "it, or use a classifier.",
    )
    return ()
