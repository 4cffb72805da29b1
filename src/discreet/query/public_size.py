"""Releases the number of rows as it is where it is public: under replace and zero_out neighbors have the same
size, and the steward declares it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._public import ADD_REMOVE, Neighbors, Public, as_neighbors
from .._registry import described
from ..accounting import Event, NoOp
from ..sampling import Entropy
from .plan import Plan
from .sources import Scan


@described("query.PublicSize")
@dataclass(frozen=True, slots=True, kw_only=True)
class PublicSize:
    """Stands in the place of noise for a count that is public.

    Guarantee: no privacy loss: the event is `NoOp`.
    Proof:     what is released is `value`, whatever the data.
    """

    value: int
    neighbors: Neighbors

    def __post_init__(self) -> None:
        object.__setattr__(self, "neighbors", as_neighbors(self.neighbors))

    @property
    def event(self) -> Event:
        return NoOp(neighbors=self.neighbors)

    @property
    def standard_deviation(self) -> float:
        return 0.0

    @property
    def mean_squared_error(self) -> float:
        return 0.0

    def error(self, confidence: float = 0.95) -> int:
        """Return 0, with any confidence."""
        return 0

    def __call__(self, values: Any, /, *, entropy: Entropy) -> Any:
        """Return the public number in the place of the engine's."""
        return np.full(np.shape(values), self.value, dtype=np.int64)


def confidence_of_each(confidence: float, noises: Iterable[Any]) -> float:
    """Return the confidence with which each noise must be within its error, so that all are with `confidence`
    (a union bound)."""
    count = sum(not isinstance(noise, PublicSize) for noise in noises)
    return 1 - (1 - confidence) / max(count, 1)


def public_rows(plan: Plan, public: Public) -> int | None:
    """Return how many rows a plan counts in its one group, if that is public; else None.

    It is where the steward declares the size and neighbors have the same one, where a row is the unit, and
    where every row of the main table counts: no condition, no join, no GROUP BY. Which rows a condition
    leaves, or how many values are missing, is private. Sources check a declared size when they are opened.
    """
    source = plan.source
    every_row = isinstance(source, Scan) and source.table == public.table and not (plan.keys or plan.many)
    of_rows = public.neighbors is not ADD_REMOVE and public.unit.column is None
    return public.size if every_row and of_rows else None
