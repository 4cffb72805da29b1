"""Defines the report of an audit, as an object, as JSON, and as one HTML page with the trade-off claimed
against the trade-off observed.

Defines privacy claims: an epsilon, a pair (epsilon, delta), or an accounting event; each has a trade-off
curve that no attack may beat.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .. import _registry, _require, accounting
from .._drawing import ACCENT, COLORS, INK, PALE, SOFT, WARN, Markup, Picture, Series, element, page, table
from .._errors import Unsupported
from ..accounting import Event
from .outputs import Guesses

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
        _require.that(
            claim is not None,
            "say what is claimed: claim=1.0, claim=(epsilon, delta), or an accounting event.",
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
    _require.that(
        claimed_delta != 1, "a delta of 1 claims nothing: every mechanism has it, and no audit refutes it."
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
    _require.that(
        delta is None or delta == claimed_delta,
        f"what is claimed has a delta of its own, {float(claimed_delta):g}, and delta={delta!r} was "
        "given beside it. Leave that out, or claim a pair: claim=(epsilon, delta), in the shell "
        "--epsilon and --delta.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Reports an audit: with probability `confidence`, the audited mechanism has at least `epsilon` at the
    claim's delta, and is x-GDP for no x below `mu`.

    `guesses` counts how often the attack named `attack` said that an output came from the table `guessed`;
    `limits` are the (TPR at least, FPR at most) that follow, and carry the proof. `curve` has that attack's
    trade-off as observed, points (FPR, FNR), for the picture only. `seconds` is the processor time of the
    runs, 0 where they were not timed.
    """

    claim: Claim
    epsilon: float
    mu: float
    refuted: bool
    confidence: float
    guesses: Guesses
    limits: tuple[float, float]
    attack: str
    guessed: str
    curve: tuple[tuple[float, float], ...]
    runs: int
    seconds: float

    @classmethod
    def of(
        cls,
        guesses: Guesses,
        *,
        claim: Claim,
        confidence: float,
        share: int,
        attack: str,
        guessed: str,
        curve: list[tuple[float, float]],
        runs: int,
        seconds: float,
    ) -> Report:
        """Build the report of one attack. The failure probability 1 - confidence is divided evenly among
        `share` attacks (Bonferroni), so that the best of their reports holds with `confidence`."""
        attack_confidence = 1 - (1 - confidence) / share
        bound = guesses.epsilon(delta=claim.delta, confidence=attack_confidence)
        beaten = (
            bound > claim.epsilon
            if claim.pair
            else guesses.below(claim.tradeoff, confidence=attack_confidence)
        )
        return cls(
            claim=claim,
            epsilon=bound,
            mu=guesses.mu(confidence=attack_confidence),
            refuted=bool(beaten),
            confidence=confidence,
            guesses=guesses,
            limits=guesses.limits(attack_confidence),
            attack=attack,
            guessed=guessed,
            curve=tuple(curve),
            runs=runs,
            seconds=seconds,
        )

    def __str__(self) -> str:
        verdict = "REFUTED" if self.refuted else "not refuted"
        if self.refuted and not self.claim.pair:
            verdict += " (an attack beats its trade-off curve)"
        delta_words = f" at delta {self.claim.delta:g}" if self.claim.delta else ""
        return (
            f"{verdict}: claimed {self.claim}; at least {self.epsilon:.4g}{delta_words} shown (mu "
            f"{self.mu:.4g}) with confidence {self.confidence:g}, by {self.attack}, {self.runs} runs on each "
            "table"
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain values for `json.dumps`."""
        return {
            "claim": {
                "epsilon": plain_number(self.claim.epsilon),
                "delta": self.claim.delta,
                **({"event": _registry.to_json(self.claim.event)} if self.claim.event is not None else {}),
            },
            "epsilon": plain_number(self.epsilon),
            "mu": plain_number(self.mu),
            "refuted": self.refuted,
            "confidence": self.confidence,
            "attack": self.attack,
            "guessed": self.guessed,
            "guesses": asdict(self.guesses),
            "tpr_at_least": self.limits[0],
            "fpr_at_most": self.limits[1],
            "runs": self.runs,
            "seconds": round(self.seconds, 3),
            "curve": [list(point) for point in self.curve],
        }

    def svg(self, size: int = 460) -> Markup:
        """Draw the claimed and the observed trade-off, and the point with both rates at their limits: if that
        point lies below the claimed curve, the claim is refuted."""
        # The false-positive rate at which the two lines of an (epsilon, delta) pair meet.
        corner = (1 - self.claim.delta) / (1 + math.exp(min(self.claim.epsilon, 700.0)))
        rates = (*np.geomspace(1e-4, 1, 30).tolist(), *np.linspace(0, 1, 21).tolist(), corner)
        grid = tuple(sorted(set(rates)))
        claimed = tuple(self.claim.tradeoff(x) for x in grid)
        fprs, fnrs = zip(*self.curve, strict=True)
        tpr_limit, fpr_limit = self.limits
        limits = f"limits: FPR at most {fpr_limit:.4g}, FNR at most {1 - tpr_limit:.4g}"
        own, claim, guess, area = (COLORS.index(color) for color in (self._color, INK, SOFT, PALE))
        picture = Picture(
            title="Trade-off claimed and observed",
            x_label="false-positive rate",
            y_label="false-negative rate",
            series=(
                Series("", grid, claimed, kind="area", color=area),
                Series("claimed: no attack gets into the gray", grid, claimed, color=claim),
                Series("guessing", (0.0, 1.0), (1.0, 0.0), dashed=True, color=guess),
                Series("observed; the point has both rates at their limits", fprs, fnrs, color=own),
                Series(limits, (fpr_limit,), (1 - tpr_limit,), color=own, kind="points"),
            ),
            y_top=1.0,
            width=size,
            height=size,
        )
        return picture.svg()

    @property
    def _color(self) -> str:
        return WARN if self.refuted else ACCENT

    def html(self) -> str:
        """Return one HTML page with the complete report, which loads nothing from elsewhere."""
        verdict = "The claim is refuted." if self.refuted else "The claim is not refuted."
        title = element("h1", verdict, style=f"color: var(--{'warn' if self.refuted else 'accent'})")
        guesses, (tpr_limit, fpr_limit) = self.guesses, self.limits
        rows = [
            ("claimed", self.claim),
            ("epsilon, at least", f"{self.epsilon:.5g}"),
            ("mu of Gaussian DP, at least", f"{self.mu:.5g}"),
            ("best attack", f"{self.attack}; guesses “{self.guessed}”"),
            ("right", f"{guesses.hits} of {guesses.first} (TPR at least {tpr_limit:.4g})"),
            ("wrong", f"{guesses.false_hits} of {guesses.second} (FPR at most {fpr_limit:.4g})"),
            ("runs on each table", self.runs),
            ("seconds", f"{self.seconds:.2f}"),
        ]
        words = element(
            "p",
            f"{_lower_bound_words(self)} An audit can refute a claim, never prove it: these attacks, on "
            "these two tables, found this much.",
        )
        return page(f"Audit: {verdict}", title, words, table((), rows), self.svg())

    def save(self, path: str | Path) -> Path:
        """Write the page to a file, and return its path."""
        target = Path(path)
        target.write_text(self.html(), encoding="utf-8")
        return target


def plain_number(value: float) -> float | str:
    """Return a number as JSON can hold it: infinity, which JSON does not have, as text."""
    return value if math.isfinite(value) else "infinite"


def _lower_bound_words(report: Report) -> str:
    """Return what was shown about epsilon, as a sentence."""
    if report.epsilon > 0:
        delta_words = f" at delta {report.claim.delta:g}" if report.claim.delta else ""
        words = (
            f"With confidence {report.confidence:g}, what was run is not differentially private with an "
            f"epsilon below {report.epsilon:.4g}{delta_words}."
        )
    else:
        words = (
            "The outputs on the two tables could not be told apart well enough to say anything about epsilon."
        )
    return words + (
        " An attack gets below the claimed trade-off curve."
        if report.refuted and not report.claim.pair
        else ""
    )
