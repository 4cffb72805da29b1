"""What procedures of online false discovery rate control share: decisions, streams, and the check of
p-values.
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
    """Holds the level of each test, and which were rejected."""

    levels: Levels
    rejected: NDArray[np.bool_]

    @property
    def discoveries(self) -> NDArray[np.intp]:
        """Return the positions of the rejected hypotheses."""
        return np.flatnonzero(self.rejected)


class HypothesisStream(Protocol):
    """Tests one hypothesis after another."""

    @property
    def level(self) -> float: ...

    def test(self, pvalue: float) -> bool: ...

    def record(self, rejected: bool) -> None: ...

    def saved(self) -> dict[str, Any]: ...


def pvalues_of(values: Any) -> Levels:
    """Return a vector of p-values; InvalidInput for anything else."""
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
    """Return a saved state, refused unless it has exactly these fields of these types."""
    if (
        not isinstance(saved, dict)
        or set(saved) != set(kinds)
        or any(type(saved[n]) is not k for n, k in kinds.items())
    ):
        raise InvalidInput("the state is not one that was saved here. Nothing was tested.")
    return saved


@dataclass(frozen=True, kw_only=True)
class FDRProcedure:
    """Shares what procedures of online false discovery rate control need."""

    alpha: float

    def __post_init__(self) -> None:
        _require.open_probability(alpha=self.alpha)

    @property
    def event(self) -> Event:
        """Return `NonPrivate`: there is no privacy, so the curator refuses it on protected data."""
        return NonPrivate()
