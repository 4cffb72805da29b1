"""Tests many hypotheses about one table in one release: the private Benjamini-Hochberg procedure, with a
bound on the false discovery rate.

After Dwork, Su & Zhang 2018 (arXiv:1807.04209): the `candidates` hypotheses with the most evidence are chosen
one by one with noise ("peeled"), the evidence of each is released with fresh noise, and the step-up rule of
Benjamini & Hochberg is applied to the noisy evidence. Where we differ, and why:

* The p-value of a noisy evidence includes the noise: it is the probability that a true null with this noise
  has at least as much evidence. The paper lowers every threshold by a fixed amount instead (`paper=True`),
  which covers the largest of all noises.
* The evidence is by default how many standard deviations the statistic lies above its mean under the null,
  which one person moves by the same amount everywhere. The paper's evidence, minus the logarithm of the
  p-value (`score="log p"`), moves most where p-values are smallest, and needs p-values bounded below by
  `floor`.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from .. import _require
from .._registry import described
from .._require import NON_EMPTY, OPEN_PROBABILITY, POSITIVE, Real, among, at_least, instance_of
from ..accounting import Event, compose
from ..mechanisms.additive import laplace_noise
from ..mechanisms.noise import IntegerLaplace
from ..mechanisms.protocols import Mechanism, Release, check_source, release
from ..mechanisms.selectors import TopK
from ..mechanisms.sparse_vector import number, zcdp_epsilon
from ..mechanisms.stability import check_budget
from ..sampling import Entropy
from ..tables import Source
from .hypotheses import Hypothesis, Masses, NullLaw, log_pvalues, under_null
from .significance import RowFacts, conservative_pvalue, survival

# Evidence is rounded to multiples of 1 / GRID of a standard deviation, or of the logarithm of a p-value; the
# sensitivity includes this rounding. The value was chosen by hand, not tuned.
GRID = 1024
_HYPOTHESIS = instance_of(Hypothesis, "a Hypothesis(statistic=..., null=...)")


@described("adaptive.Discoveries")
class Discoveries:
    """Holds the peeled hypotheses by position, in the order of the choices; the p-value of each, noise
    included; and the positions of the rejected hypotheses.
    """

    peeled: tuple[int, ...]
    pvalues: tuple[float, ...]
    rejected: tuple[int, ...]


@described("adaptive.PrivateBenjaminiHochberg")
class PrivateBenjaminiHochberg(Mechanism):
    """Rejects some of `hypotheses`, at most `candidates`, with a false discovery rate of at most `alpha`.

    With `strict` the step-up rule runs at the level a for which a (1 + ln(1/a)) = alpha, otherwise at alpha
    itself.

    Guarantee: epsilon-DP, or (epsilon, delta)-DP.
    Proof:     one person moves every evidence by at most `grid_sensitivity`, computed from the public
               distributions over their whole range. Peeling is `TopK`: `candidates` choices, each of bounded
               range 2 e0 (between neighbors the log-ratios of all outcomes' probabilities lie in an interval
               of this length, so a choice is 2 e0-DP). Releasing the evidence is e0-DP for each of the
               `candidates` (e0 is `part_epsilon`). Without delta these add up to epsilon: 3 `candidates` e0.
               With delta the larger e0 of two is used: this one, or that of zCDP, because a choice and a
               release are each e0²/2-zCDP (Cesar & Rogers 2021, arXiv:2004.07223, for bounded range), and
               `zcdp_epsilon` returns the e0 at which 2 `candidates` of them are (epsilon, delta)-DP.
    Assumes:   the statistics' sensitivities are right.

    False discoveries: FDR <= alpha with `strict`, and at most alpha (1 + ln(1/alpha)) without, if the
               statistics of true nulls follow their distributions (or have less evidence) independently of
               each other. They may depend on those of false nulls.
    Proof:     give each of the m hypotheses fresh noise, released or not, and its p-value q. R of them are
               rejected, all with q <= a R / m, where a is the level. If V of these are true nulls, the V-th
               smallest q of true nulls is at most a R / m, so V / R is at most the maximum over j of a j / (m
               q0(j)), where q0(j) is the j-th smallest q of true nulls; and V / R is at most 1. By Simes'
               inequality for independent q0 that maximum reaches t with probability at most a / t, and
               integrating min(1, a / t) over t from 0 to 1 gives a + a ln(1/a) (this is Su 2018,
               arXiv:1812.08965). With `paper` the same holds for exact p-values, unless the noise of a
               candidate exceeds the shift, which has a probability of about alpha / 12.
    """

    public: RowFacts
    hypotheses: Annotated[tuple[Annotated[Hypothesis, _HYPOTHESIS], ...], NON_EMPTY]
    alpha: Annotated[float, OPEN_PROBABILITY]
    epsilon: Annotated[Real, POSITIVE]
    candidates: Annotated[int, at_least(1)]
    delta: float | None = None
    score: Annotated[str, among(("z", "log p"))] = "z"
    floor: Annotated[float, OPEN_PROBABILITY] = 1e-12
    strict: bool = True
    paper: bool = False

    def __post_init__(self) -> None:
        if self.delta is not None:
            check_budget(self.epsilon, self.delta)
        count, wanted = len(self.hypotheses), f"at most the {len(self.hypotheses)} hypotheses"
        _require.must(self.candidates <= count, "candidates", self.candidates, wanted)
        _require.that(
            not self.paper or self.score == "log p", "the paper's thresholds are for score='log p'."
        )
        for hypothesis in self.hypotheses:
            hypothesis.check(self.public, hypothesis.statistic.sensitivity(self.public).linf)

    @property
    def level(self) -> float:
        """Return the level of the step-up rule."""
        return strict_level(float(self.alpha)) if self.strict else float(self.alpha)

    @property
    def grid_sensitivity(self) -> int:
        """Return how far one person moves any evidence, in units of 1 / GRID."""
        return max(1, *(self._largest_change(hypothesis) for hypothesis in self.hypotheses))

    @property
    def part_epsilon(self) -> Fraction:
        """Return e0 of the proof: the epsilon of releasing one evidence; a choice has bounded range 2 e0."""
        split = _require.exact(self.epsilon, "epsilon") / (3 * self.candidates)
        return (
            split
            if self.delta is None
            else max(split, zcdp_epsilon(self.epsilon, self.delta, 2 * self.candidates))
        )

    @property
    def selector(self) -> TopK:
        total = 2 * self.part_epsilon * self.candidates
        return TopK(
            epsilon=total,
            k=self.candidates,
            sensitivity=self.grid_sensitivity,
            neighbors=self.public.neighbors,
        )

    @property
    def noise(self) -> IntegerLaplace:
        return laplace_noise(self.public, self.part_epsilon, self.grid_sensitivity)

    @property
    def event(self) -> Event:
        return compose([self.selector.event, self.noise.event.repeated(self.candidates)])

    def error(self, confidence: float = 0.95) -> int:
        """Return a bound on the noise of all released evidence, in units of 1 / GRID."""
        return self.noise.error(confidence, entries=self.candidates)

    def __call__(self, source: Source, /, *, entropy: Entropy) -> Release:
        check_source(self.public, source)
        evidence = np.array(
            [self._evidence(hypothesis, source) for hypothesis in self.hypotheses], dtype=np.int64
        )
        peeled = self.selector.pick(evidence, entropy)
        noisy = [int(v) for v in self.noise(evidence[peeled], entropy=entropy)]
        pvalues = [self._pvalue(self.hypotheses[i], value) for i, value in zip(peeled, noisy, strict=True)]
        order = np.argsort(pvalues, kind="stable")
        cutoffs = self.level * np.arange(1, len(order) + 1) / len(self.hypotheses)
        passed = np.flatnonzero(np.asarray(pvalues)[order] <= cutoffs)
        rejected = order[: passed[-1] + 1 if len(passed) else 0]
        discoveries = Discoveries(
            peeled=tuple(peeled),
            pvalues=tuple(pvalues),
            rejected=tuple(sorted(peeled[int(i)] for i in rejected)),
        )
        # `error_in_scores`: the error is that of the noisy evidence, not of the p-values.
        return release(discoveries, event=self.event, entropy=entropy, error=self.error, error_in_scores=True)

    def _table(self, hypothesis: Hypothesis) -> tuple[NDArray[np.int64], int, Masses]:
        """Return the module's `_table` for this hypothesis."""
        return _table(hypothesis.null, hypothesis.sign, self.floor if self.score == "log p" else None)

    def _largest_change(self, hypothesis: Hypothesis) -> int:
        """Return how far one person moves the evidence. Scores do not decrease, so a change of the statistic
        by exactly `reach` moves them most."""
        scores, _, _ = self._table(hypothesis)
        reach = min(hypothesis.statistic.sensitivity(self.public).linf, len(scores) - 1)
        return int(np.max(scores[reach:] - scores[: len(scores) - reach], initial=0)) if reach else 0

    def _evidence(self, hypothesis: Hypothesis, source: Source) -> int:
        """Return the exact evidence; a statistic outside the range of its distribution is clipped to it."""
        scores, low, _ = self._table(hypothesis)
        statistic = hypothesis.sign * number(hypothesis.statistic(source)) - low
        return int(scores[min(max(statistic, 0), len(scores) - 1)])

    def _pvalue(self, hypothesis: Hypothesis, noisy: int) -> float:
        """Return the probability that a true null, noise included, has at least this noisy evidence; with
        `paper`, the p-value that the noisy evidence less the paper's shift, scale ln(6 candidates / alpha),
        stands for."""
        scale = float(self.noise.scale)
        if self.paper:
            return min(
                1.0, math.exp(min(0.0, scale * math.log(6 * self.candidates / self.alpha) - noisy) / GRID)
            )
        scores, _, masses = self._table(hypothesis)
        return conservative_pvalue(float(masses @ survival(noisy - scores, scale)), 1e-14)


def strict_level(alpha: float) -> float:
    """Return the largest a, rounded down, with a (1 + ln(1/a)) <= alpha."""
    low, high = 0.0, alpha
    for _ in range(200):
        middle = (low + high) / 2
        if middle > 0 and middle * (1 - math.log(middle)) > alpha:
            high = middle
        else:
            low = middle
    return low * (1 - 1e-12)


@lru_cache(maxsize=256)
def _table(null: NullLaw, sign: int, floor: float | None) -> tuple[NDArray[np.int64], int, Masses]:
    """Return the evidence at each value of sign times the statistic, the smallest of these values, and their
    probabilities under the null. With `floor` None the evidence is a number of standard deviations, else -ln
    of the p-value, where p-values below `floor` are raised to it."""
    values, masses = under_null(null, sign)
    if floor is not None:
        return np.floor(-log_pvalues(masses, math.log(floor)) * GRID).astype(np.int64), int(values[0]), masses
    weights = masses / masses.sum()
    mean = float(weights @ values)
    # at least 1e-6: a distribution with one value has deviation 0
    deviation = max(math.sqrt(float(weights @ (values - mean) ** 2)), 1e-6)
    return np.floor((values - mean) / deviation * GRID).astype(np.int64), int(values[0]), masses
