"""Audits DP-SGD (white-box) by canaries whose gradients have one nonzero coordinate each: every noisy step is
observed at these coordinates.

A canary is an example whose gradient has length `clip` and points along a coordinate that no other example
touches (a Dirac gradient: Nasr et al. 2023, arXiv:2302.07956). No example can move training further, so this
is the worst case that a claim must survive. Toss a coin for each canary, train once, look at each step's
noisy sum at its coordinate, in units of the clip, and guess which were in.

Thousands of canaries in one run are as good as thousands of runs with one, if the noise of their coordinates
is independent, as it is claimed to be. The report also has the bound that one run proves without this
assumption (`one_run_epsilon`), and its refinement by the whole trade-off curve.

Audits with a single run: each of many canaries is included by its own coin, and an attack guesses which
were in.

Training a model thousands of times is too expensive. But one run can carry thousands of canaries, and if it
is private, then hardly more guesses can be right than randomized response would allow, although the guesses
are not independent of each other.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Annotated, Any

import numpy as np
from scipy import special, stats

from .. import _require, accounting
from .._require import OPEN_PROBABILITY
from ..accounting import Event
from ..accounting.conversion import gaussian_epsilon
from .membership import Floats
from .outputs import Guesses, floats, fresh_order, lower_limit, upper_limit
from .report import Claim, Lines, Report, plain_number

# The number of bisections: after 60 the interval is as small as floats allow.
_HALVINGS = 60


def one_run_p_value(canaries: int, guesses: int, right: int, *, epsilon: float, delta: float = 0.0) -> float:
    """Return an upper bound on the probability of at least `right` right guesses out of `guesses`, if the run
    was (epsilon, delta)-DP.

    Guarantee: at least P[right guesses >= right] for every (epsilon, delta)-DP run and every way to guess
               that sees its output only.
    Proof:     Steinke, Nasr & Jagielski 2023, arXiv:2305.08846, Theorem 5.2: with W binomial (guesses, e^eps
               / (1 + e^eps)), P[W >= right] + 2 canaries delta max_i P[right > W >= right - i] / i.
    Assumes:   each canary is in or out by a fair coin of its own, and the privacy is that of neighbors that
               differ in whether one canary is in; a guess is in, out, or none.

    >>> round(one_run_p_value(1000, 100, 75, epsilon=1.0), 4)
    0.3827
    """
    _check(canaries, guesses, right)
    _require.non_negative(epsilon=epsilon)
    _require.probability(delta=delta)
    accuracy = float(special.expit(epsilon))
    tail = float(stats.binom.sf(right - 1, guesses, accuracy))
    if delta == 0 or right == 0:
        return min(1.0, tail)
    below = np.cumsum(stats.binom.pmf(np.arange(right - 1, -1, -1), guesses, accuracy))
    worst = float((below / np.arange(1, right + 1)).max())
    return min(1.0, tail + 2 * canaries * delta * worst)


def one_run_epsilon(
    canaries: int, guesses: int, right: int, *, delta: float = 0.0, confidence: float = 0.95
) -> float:
    """Return a lower bound on epsilon from one run: the largest one that so many right guesses refute.

    Guarantee: above the true epsilon with probability at most 1 - confidence.
    Proof:     every epsilon whose p-value is below the level is refuted, and with it all smaller ones, since
               privacy at an epsilon implies privacy at larger ones. Let c be the least count that refutes
               the true epsilon. It is refuted only if at least c guesses are right, which has probability at
               most the p-value of c, below the level.
    Assumes:   as `one_run_p_value`.

    >>> [round(one_run_epsilon(1000, g, v), 5) for g, v in ((1000, 1000), (500, 400), (100, 100))]
    [5.80907, 1.19865, 3.49297]
    """
    _check(canaries, guesses, right)
    _require.open_probability(confidence=confidence)
    return _largest_refuted(
        lambda epsilon: (
            one_run_p_value(canaries, guesses, right, epsilon=epsilon, delta=delta) < 1 - confidence
        )
    )


def one_run_mu(canaries: int, guesses: int, right: int, *, confidence: float = 0.95) -> float:
    """Return a lower bound on the mu of Gaussian DP from one run.

    For a Gaussian run its epsilon at a small delta is about twice that of `one_run_epsilon`. Both are sharp
    where few guesses are made and nearly all are right. A mu-GDP run may leak much with probability 5%, so at
    95% confidence many uncertain guesses refute only a small mu.

    Guarantee: above the true mu with probability at most 1 - confidence, for every mu-GDP run.
    Proof:     Mahloujifar, Melis & Chaudhuri 2024, arXiv:2410.22235. Let f be the trade-off function. Assume
               that so many right guesses have probability at least the level. For one count after the other
               downwards, the inverse of 1 - f then bounds the right and wrong guesses from below. If these
               bounds together exceed the number of guesses, f is refuted. With one canary this is the exact
               optimal test.
    Assumes:   as `one_run_p_value`.

    >>> round(one_run_mu(1000, 500, 400), 3)
    0.519
    """
    _check(canaries, guesses, right)
    _require.open_probability(confidence=confidence)
    return _largest_refuted(
        lambda mu: gaussian_refuted(canaries, guesses, right, mu=mu, level=1 - confidence)
    )


def one_run_gaussian_epsilon(
    canaries: int, guesses: int, right: int, *, delta: float, confidence: float = 0.95
) -> float:
    """Return the epsilon of `one_run_mu` at a delta: a lower bound *if* the run is Gaussian, and only
    then."""
    _require.open_probability(delta=delta)
    mu = one_run_mu(canaries, guesses, right, confidence=confidence)
    # `gaussian_epsilon` is rounded up, for privacy; a lower bound is wanted here.
    return gaussian_epsilon(mu, float(delta)) * (1 - 1e-9) if mu > 0 else 0.0


def gaussian_refuted(canaries: int, guesses: int, right: int, *, mu: float, level: float) -> bool:
    """Return whether at least `right` right guesses have a probability below `level` in every mu-GDP run."""
    normal = NormalDist()

    def least_fpr(tpr: float) -> float:
        return normal.cdf(normal.inv_cdf(min(tpr, 1 - 1e-16)) - mu)

    return curve_refuted(canaries, guesses, right, least_fpr=least_fpr, level=level)


def curve_refuted(
    canaries: int, guesses: int, right: int, *, least_fpr: Callable[[float], float], level: float
) -> bool:
    """Return whether at least `right` right guesses have a probability below `level` in every run with this
    trade-off curve.

    `least_fpr` is the inverse of 1 - f: the least false-positive rate with which a true-positive rate can be
    had; a lower bound of it is safe. The loop is the recursion of the paper below: `rights` and `wrongs`
    bound the probabilities of right and of wrong guesses, from the count `right` downwards.

    Proof: Mahloujifar, Melis & Chaudhuri 2024, arXiv:2410.22235, as in `one_run_mu`.
    """
    _check(canaries, guesses, right)
    _require.open_probability(level=level)
    rights, wrongs = level * right / canaries, level * (guesses - right) / canaries
    for count in range(right - 1, -1, -1):
        if rights <= 0:
            break
        least = least_fpr(rights)
        # The bounds do not change from this count on.
        if least <= wrongs:
            break
        rights = min(1.0, rights + count / (guesses - count) * (least - wrongs))
        wrongs = least
    return rights + wrongs > guesses / canaries * (1 + 1e-12)


def guess_by_score(
    scores: Sequence[float] | Any, included: Sequence[bool] | Any, guesses: int
) -> tuple[int, int]:
    """Guess "in" for the canaries with the highest scores and "out" for those with the lowest, half each;
    return the number of guesses, and how many of them are right. Which of equal scores come first is drawn
    anew: by their position the caller's order, such as members last, would guess for the scores."""
    values, coins = floats(scores=scores), floats(included=included)
    _require.that(
        values.ndim == 1 and values.shape == coins.shape,
        "scores and included must be two lists of one length: one score and one coin per canary.",
    )
    _require.that(not np.isnan(values).any(), "a canary's score must be a number, and some are NaN.")
    truth = coins == 1
    _require.that((truth | (coins == 0)).all(), "included must be True or False for each canary.")
    _require.integer(guesses=guesses, at_least=1)
    _require.that(guesses <= len(values), f"{guesses} guesses for {len(values)} canaries.")
    ties = fresh_order(len(values))
    order = ties[np.argsort(values[ties], kind="stable")]
    outs, ins = order[: guesses // 2], order[len(order) - (guesses - guesses // 2) :]
    return guesses, int(truth[ins].sum() + (~truth[outs]).sum())


@_require.check_options
def audit_one_run(
    scores: Sequence[float] | Any,
    included: Sequence[bool] | Any,
    *,
    delta: float = 0.0,
    confidence: Annotated[float, OPEN_PROBABILITY] = 0.95,
    fractions: Sequence[float] = (1.0, 0.5, 0.2, 0.1, 0.05),
) -> float:
    """Return a lower bound on epsilon from the canaries' scores, with the best of several numbers of guesses.

    Guarantee: above the true epsilon with probability at most 1 - confidence.
    Proof:     each number of guesses is fixed beforehand and gets an equal part of the level (union bound).
    Assumes:   as `one_run_p_value`.
    """
    _require.non_empty(fractions=fractions)
    bound_confidence = 1 - (1 - confidence) / len(fractions)
    scores = floats(scores=scores)
    count = scores.size
    bounds = []
    for fraction in fractions:
        _require.probability(fraction=fraction)
        guesses, right = guess_by_score(scores, included, max(1, math.floor(fraction * count)))
        bounds.append(one_run_epsilon(count, guesses, right, delta=delta, confidence=bound_confidence))
    return max(bounds)


def _largest_refuted(refuted: Callable[[float], bool]) -> float:
    """Return the largest refuted number, by bisection from below: the result itself was refuted, or is 0."""
    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while refuted(high):
        low, high = high, 2 * high
        if high > 1 << 16:
            return low
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def _check(canaries: int, guesses: int, right: int) -> None:
    """Refuse counts that contradict each other."""
    _require.integer(canaries=canaries, at_least=1)
    _require.integer(guesses=guesses, at_least=1)
    _require.integer(right=right, at_least=0)
    got = f"got {right}, {guesses} and {canaries}."
    _require.that(right <= guesses <= canaries, f"right <= guesses <= canaries is needed, {got}")


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
    fit = noisy_sums.ndim == 2 and noisy_sums.size and np.isfinite(noisy_sums).all()
    _require.that(fit, "observations must be [steps, canaries], in units of the clip, and finite.")
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
        _require.that(
            control.shape == noisy_sums.shape,
            f"controls must have the observations' shape {noisy_sums.shape}, got {control.shape}.",
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
    guesses = Guesses.of(measured_scores[coins], measured_scores[~coins], threshold)
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
    _require.that(
        scores_by_name
        and not any(
            s.shape != is_in.shape or s.ndim != 1 or np.isnan(s).any() for s in scores_by_name.values()
        ),
        "scores must be lists with one number for each canary, and included one coin each.",
    )
    # Drawn anew, and by no coin: the coins of the canaries that measure stay fair and independent.
    chooses = fresh_order(len(is_in)) % 4 == 0
    counts = [int((coin & part).sum()) for coin in (is_in, ~is_in) for part in (chooses, ~chooses)]
    _require.that(
        min(counts) >= 10,
        f"{len(is_in)} canaries are too few: ten in and ten out are needed to choose and to measure.",
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
        low, high = (lower_limit(hits, len(p), 1e-3), upper_limit(false_hits, len(q), 1e-3))
        mu = special.ndtri(np.clip(low, 1e-300, 1)) - special.ndtri(np.clip(high, 0, 1 - 1e-16))
        best_index = int(np.lexsort((mu, excess))[-1])
        rank = (float(excess[best_index]), float(mu[best_index]))
        if best is None or rank > best[0]:
            best = (rank, name, float(thresholds[best_index]))
    assert best is not None
    return best[1], best[2]


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
