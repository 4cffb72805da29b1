"""Computes the accuracy of a planned answer, in the units of its columns, and the price at which its error is
halved.

All of it is known before any data is read, because it follows from the price, the declared facts and the
plan.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from .. import _require
from .._errors import InvalidInput
from ..query.preview import Preview

# The multiples of the price at which the curve of errors is evaluated. Chosen for the picture.
_FACTORS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnAccuracy:
    """Holds the accuracy of one column of a planned answer at the price `epsilon`.

    With probability `confidence` the answer is within `error` of the exact one. `curve` has pairs (epsilon,
    error); `halved_at` is a price at which the error is at most half, None if no price up to 64 times
    `epsilon` is enough. `size` is the declared number of rows, None if none is declared.
    """

    name: str
    epsilon: float
    error: float
    confidence: float
    curve: tuple[tuple[float, float], ...]
    halved_at: float | None
    size: int | None

    @property
    def share(self) -> float | None:
        """Return the error as a share of the declared number of rows, which means something for counts
        only."""
        return None if not self.size else self.error / self.size


def columns(
    question: Callable[[float], Preview], epsilon: float, *, size: int | None = None
) -> tuple[ColumnAccuracy, ...]:
    """Return the accuracy of each column of a planned question whose error is known beforehand.

    `question(price)` returns the preview of the same question at another price. `size` is the declared number
    of rows.
    """
    _require.positive(epsilon=epsilon)
    preview = question(float(epsilon))
    known = [
        i
        for i, error in enumerate(preview.errors)
        if error is not None and preview.columns[i] not in preview.keys
    ]
    previews = {factor: question(float(epsilon) * factor) for factor in _FACTORS}
    return tuple(_column(question, preview, previews, i, float(epsilon), size) for i in known)


def _column(
    question: Callable[[float], Preview],
    preview: Preview,
    previews: dict[float, Preview],
    i: int,
    epsilon: float,
    size: int | None,
) -> ColumnAccuracy:
    """Return the accuracy of column number `i`; `preview` is at the price `epsilon`, and `previews` has those
    at the multiples of it in `_FACTORS`."""
    error = preview.errors[i]
    assert error is not None
    points = [(epsilon * factor, scaled.errors[i]) for factor, scaled in previews.items()]
    return ColumnAccuracy(
        name=preview.columns[i],
        epsilon=epsilon,
        error=error,
        confidence=preview.confidence,
        curve=tuple((x, y) for x, y in points if y is not None),
        halved_at=_price_of_half_error(lambda price: question(price).errors[i], epsilon, error),
        size=size,
    )


def _price_of_half_error(
    error_at: Callable[[float], float | None], epsilon: float, error: float
) -> float | None:
    """Return a price at which the error is at most half, and at most one per cent above the least such
    price; None if 64 times the price `epsilon` is not enough, as where the error is not noise alone.

    The error is taken to fall as the price grows. The price is doubled until it is enough; then `high`, which
    is enough, and `low`, which is not, are bisected on a logarithmic scale. 64 is chosen by hand: a larger
    price would not be paid.
    """
    target = error / 2
    low, high = epsilon, epsilon
    while high <= 64 * epsilon and not _is_within(error_at, high, target):
        low, high = high, 2 * high
    if high > 64 * epsilon:
        return None
    while high > 1.01 * low:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if _is_within(error_at, middle, target) else (middle, high)
    return high


def _is_within(error_at: Callable[[float], float | None], price: float, target: float) -> bool:
    """Return whether the question can be asked at this price, and its error is then at most `target`."""
    try:
        error = error_at(price)
    except InvalidInput:
        return False
    return error is not None and error <= target
