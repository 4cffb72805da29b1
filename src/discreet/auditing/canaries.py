"""Audits DP-SGD (white-box) by canaries whose gradients have one nonzero coordinate each: every noisy step is
observed at these coordinates.

A canary is an example whose gradient has length `clip` and points along a coordinate that no other example
touches (a Dirac gradient: Nasr et al. 2023, arXiv:2302.07956). No example can move training further, so this
is the worst case that a claim must survive. Toss a coin for each canary, train once, look at each step's
noisy sum at its coordinate, in units of the clip, and guess which were in.

Thousands of canaries in one run are as good as thousands of runs with one, if the noise of their coordinates
is independent, as it is claimed to be. The report also has the bound that one run proves without this
assumption (`one_run_epsilon`), and its refinement by the whole trade-off curve.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy import special

from .. import _require, accounting
from .._errors import InvalidInput
from ..accounting import Event
from .claims import Claim, Lines
from .one_run import audit_one_run, curve_refuted, guess_by_score
from .rates import Guesses, fresh_order, lower_limit, upper_limit
from .report import Report, plain_number
from .roc import Floats

# From a noise multiplier to the privacy event of training with it.
Family = Callable[[float], Event]
# The shares of the canaries that one-run audits guess: a small share gives a larger bound where scores are
# clear, and each further share reduces the level of all. Chosen by hand.
_FRACTIONS = (0.3, 0.1, 0.03, 0.01)
# The least refuted noise multiplier is searched up to this factor above and below the claimed one. Chosen by
# hand.
_SEARCH_FACTOR = 8


def step_scores(
    observations: Any, *, noise_multiplier: float, rate: float = 1.0, controls: Any = None
) -> dict[str, Floats]:
    """Return several scores of each canary from its noisy sums: `observations` is [steps, canaries], in units
    of the clip.

    "likelihood ratio" is optimal if training is as claimed; the others may find deviations from the claim.
    "against a control" subtracts the noisy sum at a coordinate that no example touches (`controls`, [steps,
    canaries]): it detects an implementation that uses the same noise for all coordinates. `rate` is the
    probability that a step samples a given example.

    Proof: Neyman-Pearson: with s the noise multiplier, a noisy sum has the distribution N(0, s²) if the
           canary is out, and the mixture (1 - rate) N(0, s²) + rate N(1, s²) if it is in; steps are
           independent.
    """
    noisy_sums = np.asarray(observations, dtype=float)
    if noisy_sums.ndim != 2 or not noisy_sums.size or not np.isfinite(noisy_sums).all():
        raise InvalidInput("observations must be [steps, canaries], in units of the clip, and finite.")
    _require.positive(noise_multiplier=noise_multiplier, rate=rate)
    _require.probability(rate=rate)
    exponent = (2 * noisy_sums - 1) / (2 * noise_multiplier**2)
    ratio = exponent if rate == 1 else np.logaddexp(math.log1p(-rate), math.log(rate) + exponent)
    scores = {
        "likelihood ratio": ratio.sum(axis=0),
        "sum": noisy_sums.sum(axis=0),
        "largest step": noisy_sums.max(axis=0),
    }
    if controls is not None:
        control = np.asarray(controls, dtype=float)
        if control.shape != noisy_sums.shape:
            raise InvalidInput(
                f"controls must have the observations' shape {noisy_sums.shape}, got {control.shape}."
            )
        scores["against a control"] = (noisy_sums - control).sum(axis=0)
    return scores


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryAudit:
    """Reports what was shown about one training run: three lower bounds on its epsilon.

    Each holds with probability `confidence`, under its own assumption. `epsilon` assumes the claimed kind of
    training, with any noise, and that the noise of the canaries' coordinates is independent; it is the
    epsilon of the least noise multiplier that is refuted, `noise_multiplier`, which is infinite if none is.
    `one_run_curve_epsilon` assumes the claimed kind of training, with noise that may be dependent
    (Mahloujifar, Melis & Chaudhuri 2024, arXiv:2410.22235). `one_run_epsilon` assumes neither (Steinke, Nasr
    & Jagielski 2023, arXiv:2305.08846).
    """

    claimed: float
    delta: float
    epsilon: float
    noise_multiplier: float
    one_run_epsilon: float
    one_run_curve_epsilon: float
    refuted: bool
    confidence: float
    score: str
    guesses: Guesses
    canaries: int
    report: Report

    def __str__(self) -> str:
        verdict = "REFUTED" if self.refuted else "not refuted"
        return (
            f"{verdict}: claimed epsilon {self.claimed:.4g} at delta {self.delta:g}; at least "
            f"{self.epsilon:.4g} shown by {self.canaries} canaries ({self.score}); one run alone proves "
            f"{self.one_run_epsilon:.4g}, with its curve {self.one_run_curve_epsilon:.4g} (confidence "
            f"{self.confidence:g})"
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain values for `json.dumps`."""
        values = {k: v for k, v in asdict(self).items() if k not in ("report", "guesses")}
        plain = {k: plain_number(v) if isinstance(v, float) else v for k, v in values.items()}
        return {**plain, "guesses": asdict(self.guesses), "report": self.report.to_json()}


def audit_canaries(
    scores: Mapping[str, Any] | Any,
    included: Any,
    *,
    family: Family,
    noise_multiplier: float,
    delta: float = 1e-5,
    confidence: float = 0.95,
) -> CanaryAudit:
    """Return a lower bound on the epsilon of training, from scores of canaries that were in or out by fair
    coins.

    `family` says what is claimed: noise multiplier -> event of the whole run, as
    `lambda s: acc.Gaussian(noise_multiplier=s).sampled(rate).repeated(steps)`; `noise_multiplier` is the
    claimed one. `scores` is one list, or several by name (`step_scores`): a quarter of the canaries, drawn
    anew, chooses among them, the others measure.

    Guarantee: if training is `family(s)` with independent noise on the canaries' coordinates, `epsilon`
               exceeds the true one, or the claim of s is refuted, with probability at most 1 - confidence.
    Proof:     Clopper-Pearson limits of a fixed test's two rates refute every noise whose trade-off curve
               lies above that point, and with one noise all larger ones; the epsilon of the least refuted
               noise (its lower bound) is thus exceeded (Nasr et al. 2023). All three bounds are measured on
               the canaries that chose nothing: given the coins of the others, theirs are still fair, and the
               run has the same privacy for them.
    Assumes:   coins are fair and independent; each canary has a coordinate of its own.
    """
    scores_by_name, is_in, chooses = _split_canaries(scores, included)
    _require.open_probability(confidence=confidence, delta=delta)
    _require.positive(noise_multiplier=noise_multiplier)
    level = 1 - confidence
    event = family(noise_multiplier)
    name, threshold = _choose(
        {k: s[chooses] for k, s in scores_by_name.items()}, is_in[chooses], level, Lines.of(event)
    )
    # The canaries whose coins chose the score measure nothing: a guess may depend on the run's output alone.
    measured_scores, coins = scores_by_name[name][~chooses], is_in[~chooses]
    guesses = _count(measured_scores, coins, threshold)
    claim = Claim(epsilon=accounting.epsilon(event, delta=delta), delta=delta, event=event, pair=False)
    low, high = guesses.limits(confidence)
    # Lines near the measured point make the curve sharp there. Each epsilon gives two lines, with slopes of
    # -e^epsilon and -e^-epsilon, so that its sign does not matter.
    epsilon_there = abs(float(_tangent_epsilon(low, high)))
    epsilons = (0.8 * epsilon_there, epsilon_there, 1.2 * epsilon_there)
    lines = functools.cache(lambda s: Lines.of(family(s), epsilons))
    refuted_noise = _least_refuted(lambda s: 1 - low < lines(s).tradeoff(high), noise_multiplier)
    report = Report.of(
        guesses, claim=claim, confidence=confidence, share=1, attack=f"canaries, {name}", guessed="in",
        curve=_curve(measured_scores, coins), runs=1, seconds=0.0,
    )  # fmt: skip
    return CanaryAudit(
        claimed=claim.epsilon,
        delta=delta,
        epsilon=_epsilon(family, refuted_noise, delta),
        noise_multiplier=refuted_noise,
        one_run_epsilon=audit_one_run(
            measured_scores, coins, delta=delta, confidence=confidence, fractions=_FRACTIONS
        ),
        one_run_curve_epsilon=_epsilon(
            family, _one_run_noise(measured_scores, coins, lines, noise_multiplier, level), delta
        ),
        refuted=refuted_noise <= noise_multiplier,
        confidence=confidence,
        score=name,
        guesses=guesses,
        canaries=len(is_in),
        report=report,
    )


def _split_canaries(scores: Mapping[str, Any] | Any, included: Any) -> tuple[dict[str, Floats], Any, Any]:
    """Return scores by name, which canaries are in, and the quarter of them that chooses; refuse too few."""
    scores_by_name = {
        name: np.asarray(s, dtype=float)
        for name, s in (scores if isinstance(scores, Mapping) else {"score": scores}).items()
    }
    is_in = np.asarray(included, dtype=bool)
    if not scores_by_name or any(
        s.shape != is_in.shape or s.ndim != 1 or np.isnan(s).any() for s in scores_by_name.values()
    ):
        raise InvalidInput(
            "scores must be lists with one number for each canary, and included one coin each."
        )
    # Drawn anew, and by no coin: the coins of the canaries that measure stay fair and independent.
    chooses = fresh_order(len(is_in)) % 4 == 0
    counts = [int((coin & part).sum()) for coin in (is_in, ~is_in) for part in (chooses, ~chooses)]
    if min(counts) < 10:
        raise InvalidInput(
            f"{len(is_in)} canaries are too few: ten in and ten out are needed to choose and to measure."
        )
    return scores_by_name, is_in, chooses


def _choose(
    scores_by_name: Mapping[str, Floats], is_in: Any, level: float, claimed: Lines
) -> tuple[str, float]:
    """Return the name of the score and the threshold that beat the claimed curve by most, as if three times
    as many canaries (those that measure) had the same rates; if none beats it, those with the largest mu."""
    best: tuple[tuple[float, float], str, float] | None = None
    # Up to 201 thresholds for each of four scores are tried, so at a larger level a lucky one would seem to
    # beat the curve.
    strict = min(level / 2, 1e-9)
    for name, scores in scores_by_name.items():
        thresholds = np.unique(np.quantile(scores, np.linspace(0, 1, 201)))
        p, q = np.sort(scores[is_in]), np.sort(scores[~is_in])
        hits, false_hits = (len(x) - np.searchsorted(x, thresholds, side="left") for x in (p, q))
        low, high = lower_limit(3 * hits, 3 * len(p), strict), upper_limit(3 * false_hits, 3 * len(q), strict)
        excess = np.maximum([claimed.tradeoff(a) for a in high.tolist()] - (1 - low), 0.0)
        # A strict level here too: at extreme thresholds a few lucky canaries would give a large mu.
        low, high = (
            lower_limit(hits, len(p), 1e-3),
            upper_limit(false_hits, len(q), 1e-3),
        )
        mu = special.ndtri(np.clip(low, 1e-300, 1)) - special.ndtri(np.clip(high, 0, 1 - 1e-16))
        best_index = int(np.lexsort((mu, excess))[-1])
        rank = (float(excess[best_index]), float(mu[best_index]))
        if best is None or rank > best[0]:
            best = (rank, name, float(thresholds[best_index]))
    assert best is not None
    return best[1], best[2]


def _count(scores: Floats, is_in: Any, threshold: float) -> Guesses:
    """Return how often a threshold says "in", of canaries that were in and of those that were out."""
    guessed_in = scores >= threshold
    return Guesses(
        hits=int(guessed_in[is_in].sum()),
        first=int(is_in.sum()),
        false_hits=int(guessed_in[~is_in].sum()),
        second=int((~is_in).sum()),
    )


def _tangent_epsilon(low: float, high: float) -> Any:
    """Return the logarithm of the slope of the Gaussian ROC curve through FPR = `high`, TPR = `low`: the
    epsilon of the line that touches it there, which is nearly the best line for similar curves."""
    if low <= 0 or high >= 1:
        return 0.0
    quantile = -special.ndtri(high)
    mu = special.ndtri(low) + quantile
    return np.clip(mu * quantile - mu**2 / 2, -20.0, 20.0)


def _least_refuted(refuted: Callable[[float], bool], claimed: float) -> float:
    """Return the least noise multiplier that is refuted, to half a percent; infinite if none is.

    It is searched within a factor of `_SEARCH_FACTOR` of the claimed one.
    """
    high = claimed
    while not refuted(high):
        high *= 2
        if high > _SEARCH_FACTOR * claimed:
            return math.inf
    low = high / 2
    while refuted(low):
        low, high = low / 2, low
        if high < claimed / _SEARCH_FACTOR:
            return high
    for _ in range(7):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if refuted(middle) else (middle, high)
    return high


def _epsilon(family: Family, noise: float, delta: float) -> float:
    """Return a lower bound on the epsilon of training with at most this noise."""
    return accounting.bounds(family(noise), delta=delta)[0] if math.isfinite(noise) else 0.0


def _one_run_noise(
    scores: Floats, is_in: Any, lines: Callable[[float], Lines], claimed: float, level: float
) -> float:
    """Audit one run with the complete curve: return the least noise multiplier that is refuted by any of
    several numbers of guesses, each tested at an equal share of the level."""
    counts = [guess_by_score(scores, is_in, max(1, math.floor(f * len(scores)))) for f in _FRACTIONS]

    def refuted(noise: float) -> bool:
        least_fpr = lines(noise).least_fpr
        return any(
            curve_refuted(len(scores), g, r, least_fpr=least_fpr, level=level / len(counts))
            for g, r in counts
        )

    return _least_refuted(refuted, claimed)


def _curve(scores: Floats, is_in: Any) -> list[tuple[float, float]]:
    """Return (FPR, FNR) at 101 thresholds."""
    p, q = np.sort(scores[is_in]), np.sort(scores[~is_in])
    thresholds = np.quantile(scores, np.linspace(1, 0, 101))
    fpr, fnr = (
        1 - np.searchsorted(q, thresholds, side="left") / len(q),
        np.searchsorted(p, thresholds, side="left") / len(p),
    )
    return [(0.0, 1.0), *zip(fpr.tolist(), fnr.tolist(), strict=True), (1.0, 0.0)]
