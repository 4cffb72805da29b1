"""Releases whose error is about a score or a rank, not about the value: value plus or minus error would be nonsense."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from .._errors import InvalidInput
from ..accounting import Event, NonPrivate
from ..sampling import Entropy
from .protocols import Release


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredRelease(Release):
    """A release with an `error` in scores or ranks."""

    def interval(self, confidence: float = 0.95) -> NoReturn:
        raise InvalidInput(
            "the error of this release is in scores or ranks, so it gives no interval around the value. Use `error`."
        )


def scored_release(value: Any, *, event: Event, entropy: Entropy, error: Callable[[float], Any]) -> ScoredRelease:
    """As `protocols.release`, with an error that is not in the value's own unit."""
    paid = event if entropy.private else NonPrivate(neighbors=event.neighbors)
    return ScoredRelease(value=value, event=paid, private=entropy.private, _error=error)
