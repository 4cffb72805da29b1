"""Defines a naive baseline, for comparison: fresh noise on the complete sum at every step."""

from __future__ import annotations

from dataclasses import dataclass

from .._registry import described


@described("streaming.RunningSum")
@dataclass(frozen=True, slots=True, kw_only=True)
class RunningSum:
    """Measures the sum so far at every step: one unit moves all later sums, so that the noise grows with the
    square root of the number of steps (Gaussian), or with the number itself (Laplace)."""
