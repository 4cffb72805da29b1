"""Divides features into bins, for trees and boosting, by the facts that `Public` declares alone.

A number's bins are `parts` equal parts of its bounds, numbered upwards. A truth value has the bins 0 (false),
1 (missing) and 2 (true). A category has one bin per declared value, in their order, and a last one for a
missing or undeclared value.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..._public import Boolean, Bounds, Categories, Public
from .rows import Design

Codes = npt.NDArray[np.int32]


def bin_counts(design: Design, public: Public, parts: int) -> list[int]:
    """Return the number of bins of each feature."""
    result = []
    for name in design.features:
        fact: Any = public.fact(name)
        counts = {Bounds: parts, Boolean: 3}
        result.append(len(fact.values) + 1 if isinstance(fact, Categories) else counts[type(fact)])
    return result


def numeric_features(design: Design, public: Public) -> list[bool]:
    """Return which features are numbers, whose bins have an order."""
    return [isinstance(public.fact(name), Bounds) for name in design.features]


def bin_codes(x: Any, design: Design, public: Public, parts: int) -> Codes:
    """Return the bin of each feature (column) for each row of x, whose coordinates are those of `Design`.

    `Design` reads a missing number as 0, so that it is in the bin of the middle of its bounds.
    """
    result, column_index = np.zeros((len(x), len(design.features)), dtype=np.int32), 0
    for i, name in enumerate(design.features):
        fact: Any = public.fact(name)
        if isinstance(fact, Categories):
            values = x[:, column_index : column_index + len(fact.values)]
            result[:, i] = np.where(values.any(axis=1), values.argmax(axis=1), len(fact.values))
            column_index += len(fact.values)
            continue
        column = np.asarray(x[:, column_index], np.float64)
        if isinstance(fact, Boolean):
            # -1 is false, 0 missing and 1 true
            result[:, i] = np.sign(column).astype(np.int32) + 1
        else:
            result[:, i] = np.clip((column + 1) / 2 * parts, 0, parts - 1).astype(np.int32)
        column_index += 1
    return result
