"""Defines common parts of the procedures of online false discovery rate control: decisions, streams, and the
checks of p-values and of saved states.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .. import _require
from .._errors import InvalidInput
from ..accounting import Event, NonPrivate
from .spending import Levels


@dataclass(frozen=True, slots=True, eq=False)
class Decisions:
    """Holds the level of each test, and which hypotheses were rejected."""

    levels: Levels
    rejected: NDArray[np.bool_]

    @property
    def discoveries(self) -> NDArray[np.intp]:
        """Return the positions of the rejected hypotheses."""
        return np.flatnonzero(self.rejected)


class HypothesisStream(Protocol):
    """Tests one hypothesis after another."""

    @property
    def level(self) -> float:
        """Return the level of the next test."""
        ...

    def test(self, pvalue: float) -> bool:
        """Test the next hypothesis; return whether it is rejected."""
        ...

    def record(self, rejected: bool) -> None:
        """Record a decision that the caller took at this stream's level."""
        ...

    def saved(self) -> dict[str, Any]:
        """Return the state as plain JSON, for `restored` of the procedure."""
        ...


def pvalues_of(values: Any) -> Levels:
    """Return the values as a vector of p-values; InvalidInput unless all are numbers in [0, 1]."""
    try:
        pvalues = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidInput("p-values must be numbers in [0, 1].") from None
    if pvalues.ndim != 1:
        raise InvalidInput(f"p-values must be a flat sequence; this has {pvalues.ndim} dimensions.")
    if not (np.all(pvalues >= 0) and np.all(pvalues <= 1)):
        raise InvalidInput("p-values must be in [0, 1], without NaN.")
    return pvalues


def check_saved(saved: Any, **kinds: type) -> dict[str, Any]:
    """Return a saved state unchanged; InvalidInput unless it has exactly these fields of these types.

    `kinds` names each field and its type.
    """
    if (
        not isinstance(saved, dict)
        or set(saved) != set(kinds)
        or any(type(saved[name]) is not kind for name, kind in kinds.items())
    ):
        raise InvalidInput(
            "the state is not one that saved() of this procedure returned. Nothing was tested."
        )
    return saved


@dataclass(frozen=True, kw_only=True)
class FDRProcedure:
    """Base of the procedures of online false discovery rate control: the target rate `alpha`, and the
    price."""

    alpha: float

    def __post_init__(self) -> None:
        _require.open_probability(alpha=self.alpha)

    @property
    def event(self) -> Event:
        """Return `NonPrivate`: there is no privacy guarantee, so the curator refuses the procedure on
        protected data."""
        return NonPrivate()
