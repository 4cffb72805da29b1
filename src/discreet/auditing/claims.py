"""Defines privacy claims: an epsilon, a pair (epsilon, delta), or an accounting event; each has a trade-off
curve that no attack may beat.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from .. import _require, accounting
from .._errors import InvalidInput, Unsupported
from ..accounting import Event

Curve = Callable[[float], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Claims (epsilon, delta)-DP if `pair` is True, else the complete trade-off curve of `event`, of which
    epsilon at delta is one point."""

    epsilon: float
    delta: float
    event: Event | None = None
    pair: bool = True

    def tradeoff(self, alpha: float) -> float:
        """Return the least false-negative rate that the claim allows at false-positive rate alpha.

        Proof: Wasserman & Zhou 2010; Dong, Roth & Su 2022, arXiv:1905.02383, equation 5; for events
               `accounting.tradeoff`.
        """
        if self.event is not None and not self.pair:
            return accounting.tradeoff(self.event, alpha=alpha)
        # `math.exp` overflows above 709.
        exp_epsilon = math.exp(min(self.epsilon, 700.0))
        return max(0.0, 1 - self.delta - exp_epsilon * alpha, (1 - self.delta - alpha) / exp_epsilon)

    def __str__(self) -> str:
        event_name = "" if self.event is None else f"{type(self.event).__name__}: "
        return f"{event_name}epsilon {self.epsilon:.4g}" + (f" at delta {self.delta:g}" if self.delta else "")


@dataclass(frozen=True, slots=True)
class Lines:
    """Stores a lower bound of a trade-off curve as the maximum of the lines of many (epsilon, delta) pairs:
    it is quick to evaluate. An entry of `pairs` is (e^epsilon, delta).

    Guarantee: `tradeoff` is at most the true curve of the event, `least_fpr` at most the true least
               false-positive rate.
    Proof:     every pair is an upper bound of the accountant, and gives its two lines (Dong, Roth & Su 2022,
               arXiv:1905.02383, equation 5).
    """

    pairs: tuple[tuple[float, float], ...]

    @classmethod
    def of(cls, event: Event, epsilons: Iterable[float] = ()) -> Lines:
        """Return the lines at these epsilons, and at a fixed grid of others."""
        # Spread over the usual epsilons of audits, denser where they are small. Chosen by hand.
        grid = (0.0, 0.05, 0.15, 0.3, 0.5, 0.8, 1.2, 1.8, 2.6, 4.0, 6.0)
        return cls(
            tuple((math.exp(x), accounting.delta(event, epsilon=x)) for x in sorted({*grid, *epsilons}))
        )

    def tradeoff(self, alpha: float) -> float:
        """Return the least false-negative rate at a false-positive rate."""
        return max(0.0, *(max(1 - d - slope * alpha, (1 - d - alpha) / slope) for slope, d in self.pairs))

    def least_fpr(self, tpr: float) -> float:
        """Return the least false-positive rate that allows a true-positive rate."""
        return max(0.0, *(max((tpr - d) / slope, 1 - d - (1 - tpr) * slope) for slope, d in self.pairs))


def as_claim(claim: Any, run: Any, delta: float | None) -> Claim:
    """Return the claim from what the caller gave, or from the event of the mechanism that is audited; `delta`
    is where an event without a pair of its own states its epsilon."""
    if claim is None:
        claim = getattr(run, "event", None)
        if claim is None:
            raise InvalidInput(
                "say what is claimed: claim=1.0, claim=(epsilon, delta), or an accounting event. "
                "Nothing was run."
            )
    if isinstance(claim, Claim):
        _require_agreement(delta, claim.delta)
        return claim
    if isinstance(claim, Event):
        return _claim_of_event(claim, delta)
    epsilon, claimed_delta = (
        (claim[0], claim[1]) if isinstance(claim, tuple | list) and len(claim) == 2 else (claim, 0.0)
    )
    _require.non_negative(epsilon=epsilon)
    _require.probability(delta=claimed_delta)
    _require_agreement(delta, claimed_delta)
    if claimed_delta == 1:
        raise InvalidInput(
            "a delta of 1 claims nothing: every mechanism has it, and no audit refutes it. Nothing was run."
        )
    return Claim(epsilon=float(epsilon), delta=float(claimed_delta))


def _claim_of_event(event: Event, delta: float | None) -> Claim:
    """Return the pair that the event states itself, or its complete curve with the epsilon at `delta`."""
    try:
        epsilon, event_delta = accounting.basic(event)
    except Unsupported:
        claim_delta = 1e-5 if delta is None else float(delta)
        _require.open_probability(delta=claim_delta)
        return Claim(
            epsilon=accounting.epsilon(event, delta=claim_delta), delta=claim_delta, event=event, pair=False
        )
    _require_agreement(delta, event_delta)
    return Claim(epsilon=epsilon, delta=event_delta, event=event)


def _require_agreement(delta: float | None, claimed_delta: float) -> None:
    """Refuse a `delta` that differs from that of a claim with a fixed pair, which is what is tested."""
    if delta is not None and delta != claimed_delta:
        raise InvalidInput(
            f"what is claimed has a delta of its own, {float(claimed_delta):g}, and delta={delta!r} was "
            f"given beside it. Nothing was run. Leave that out, or claim a pair: claim=(epsilon, delta), in "
            f"the shell --epsilon and --delta."
        )
