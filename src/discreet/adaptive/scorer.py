"""Defines a scorer for scikit-learn that asks the reusable holdout, for feature selection and model choice.

The estimator is given the holdout's rows in the format of its training rows: a data frame with the same
column names, or a plain array.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from .. import _require
from .._errors import InvalidInput
from ..mechanisms import Sensitivity, Trusted, arrow_columns
from ..tables import Source
from .holdout import Check, Thresholdout


class HoldoutScorer:
    """Scores an estimator: scorer(estimator, X, y), as scikit-learn calls it, returns the accuracy that the
    reusable holdout answers.

    X and y are the training data (or a fold of them). `live` is a started `Thresholdout`; `features` and
    `target` name columns of the holdout, in the order of X. `training`: "public" declares that X and y are
    public, so that the accuracy on them is computed without noise; otherwise it is a function (estimator, X,
    y) -> accuracy that pays for what it reveals of X and y. Where X is a data frame the estimator is given a
    data frame too, with the same column names and with text as text. Where a column of X has missing values,
    missing values of the holdout stay missing; otherwise they are filled with a fixed value, so that no
    estimator fails on them.

    Assumes: the estimator predicts each row independently of the other rows, so that one row of the holdout
             moves the number of right predictions by at most 1. (A matrix product may round the same row
             differently among other rows; rows exactly on a decision boundary then break this.) The estimator
             is the steward's code, run on protected rows: it must not store or send them.
    """

    def __init__(
        self, live: Any, *, features: Any, target: str, training: str | Callable[[Any, Any, Any], float]
    ):
        if not isinstance(getattr(live, "mechanism", None), Thresholdout):
            raise _require.fail(
                "live", type(live).__name__, "a started Thresholdout, as Session.start gives it"
            )
        if training != "public" and not callable(training):
            raise _require.fail(
                "training", training, "'public', or a function that buys the training accuracy"
            )
        self.live, self.target, self.training = live, target, training
        self.features = _require.listed(features=features)
        _require.non_empty(features=self.features)

    def __call__(self, estimator: Any, X: Any, y: Any = None) -> float:
        width = getattr(X, "shape", (0, len(self.features)))[-1]
        if width != len(self.features):
            raise InvalidInput(
                f"X has {width} columns, and features names {len(self.features)}. Nothing was drawn "
                f"or released."
            )
        if callable(self.training):
            score = self.training(estimator, X, y)
        else:
            predicted, labels = np.asarray(estimator.predict(X)), np.asarray(y)
            _require_labels(predicted, labels.shape)
            score = float(np.mean(predicted == labels))
        row_format = _RowFormat(X, self.features)
        right_predictions = Trusted(
            function=lambda source: self._count_right(estimator, source, row_format),
            claimed=Sensitivity(linf=1),
        )
        return float(self.live.answer(Check(statistic=right_predictions, training=score)).value.value)

    def _count_right(self, estimator: Any, source: Source, row_format: _RowFormat) -> int:
        """Return how many rows of the holdout the estimator predicts right."""
        total = 0
        for batch in source.batches([*self.features, self.target]):
            if batch.num_rows:
                truth = np.empty(batch.num_rows, dtype=object)
                truth[:] = batch.column(len(self.features)).to_pylist()
                predicted = np.asarray(estimator.predict(row_format.rows(batch))).astype(object)
                # The analyst sees a ReleaseFailed without a reason if this fails, as these rows are private.
                _require_labels(predicted, truth.shape)
                total += int(np.sum(predicted == truth))
        return total


class _RowFormat:
    """Describes the format in which the estimator is given rows. It is taken from the training data X.

    `frame` is the class of X if that is a data frame, else None; `parts` are the columns of X as arrays.
    """

    def __init__(self, X: Any, features: tuple[Any, ...]) -> None:
        self.features = features
        self.frame = type(X) if hasattr(X, "columns") else None
        self.names = list(X.columns) if self.frame else list(features)
        self.parts = (
            [np.asarray(X[name] if self.frame else X[:, i]) for i, name in enumerate(self.names)]
            if hasattr(X, "shape")
            else []
        )

    def rows(self, batch: Any) -> Any:
        """Return the features of a batch of the holdout in the format of X."""
        columns = [
            self._column(arrow_columns.unpacked(batch.column(i)), i) for i in range(len(self.features))
        ]
        return (
            self.frame(dict(zip(self.names, columns, strict=True)))
            if self.frame
            else np.column_stack(columns)
        )

    def _column(self, array: Any, index: int) -> Any:
        """Return one column of the holdout, with missing values filled where X has none in this column: text
        with X's first value, numbers with the fixed value of `arrow_columns.numbers`."""
        training = self.parts[index] if self.parts else None
        if pa.types.is_string(array.type) or pa.types.is_large_string(array.type):
            if not self.frame:
                # an array X has numbers only: this refuses text
                return arrow_columns.numbers(array, str(self.features[index]))
            filler = None if training is None or not len(training) or _has_missing(training) else training[0]
            return np.array([filler if value is None else value for value in array.to_pylist()], dtype=object)
        values = arrow_columns.numbers(array, str(self.features[index]))
        if training is not None and _has_missing(training):
            values = np.where(arrow_columns.present(array), values, np.nan)
        return values


def _require_labels(predicted: Any, shape: tuple[int, ...]) -> None:
    """Refuse predictions that are not a vector of one label per row. A two-dimensional column would be
    compared with the labels of all rows, so that one row could move the number of right ones by more than
    1."""
    if predicted.ndim != 1 or predicted.shape != shape:
        raise InvalidInput(
            "predict must return one label per row, and y must have one label per row, both in one "
            "dimension. Nothing was drawn or released. Fit the estimator to one-dimensional labels."
        )


def _has_missing(values: Any) -> bool:
    """Return whether any value is missing."""
    if values.dtype.kind == "f":
        return bool(np.isnan(values).any())
    return values.dtype.kind == "O" and any(value is None or value != value for value in values)
