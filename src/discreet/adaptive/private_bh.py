"""Many hypotheses about one table at once: the private Benjamini-Hochberg procedure, with a bound on the
share of false discoveries.

After Dwork, Su & Zhang 2018 (arXiv:1807.04209): the `candidates` strongest hypotheses are peeled off one by
one with noise, each is released with fresh noise on its evidence, and the step-up rule is applied to what was
released. Where we differ, and why:

* The p-value of what was released counts its noise: the chance that a true null, with that noise, shows as
  much. The paper lowers every threshold by a fixed amount instead (`paper=True`), as large as the largest of
  all noises.
* The evidence is by default how many standard deviations the statistic lies above its mean, which one person
  moves by the same amount everywhere. The logarithm of the p-value (`score="log p"`, the paper's) is steepest
  where it matters most, and needs a `floor`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from .. import _require
from .._errors import InvalidInput
from .._public import Public
from .._registry import described
from .._require import Real
from ..accounting import Event, compose
from ..mechanisms.noise import IntegerLaplace
from ..mechanisms.protocols import Release, check_source, release
from ..mechanisms.selectors import TopK
from ..mechanisms.sparse_vector import zcdp_epsilon
from ..mechanisms.stability import check_budget
from ..mechanisms.statistics import require_rows
from ..mechanisms.threshold import number
from ..sampling import Entropy
from ..tables import Source
from .hypotheses import Hypothesis, Masses, NullLaw, log_pvalues, under_null
from .significance.result import at_most_one, survival

# Steps of a standard deviation, or of the logarithm of a p-value; rounding to them is part of the price. No
# measurement on record.
GRID = 1024


@described("adaptive.Discoveries")
@dataclass(frozen=True, slots=True, kw_only=True)
class Discoveries:
    """Holds the peeled hypotheses by position, strongest first; the p-value of each, noise included; and
    which of them are rejected.
    """

    peeled: tuple[int, ...]
    pvalues: tuple[float, ...]
    rejected: tuple[int, ...]


@described("adaptive.PrivateBenjaminiHochberg")
@dataclass(frozen=True, slots=True, kw_only=True)
class PrivateBenjaminiHochberg:
    """Rejects some of `hypotheses`, at most `candidates`, so that at most a share `alpha` of the rejections
    is expected to be false.

    With `strict` the step-up rule runs at the level a for which a (1 + ln(1/a)) = alpha, otherwise at alpha
    itself.

    Guarantee: epsilon-DP, or (epsilon, delta)-DP.
    Proof:     one person moves every evidence by at most `grid_sensitivity`, computed from the public
               distributions over their whole range. Peeling is `TopK`, `candidates` choices of bounded range
               2 e0 for as many pieces of discrete Laplace noise that are e0-DP. Without delta these add up to
               epsilon. With it, that split or another, whichever leaves less noise: both are e0²/2-zCDP
               (Cesar & Rogers 2021, arXiv:2004.07223, for bounded range), and `zcdp_epsilon` makes 2
               `candidates` of these (epsilon, delta)-DP.
    Assumes:   the statistics' sensitivities are right.

    False discoveries: FDR <= alpha with `strict`, and at most alpha (1 + ln(1/alpha)) without, if the
               statistics of true nulls follow their distributions (or show less) independently of each other.
               They may depend on those of false nulls.
    Proof:     give every hypothesis fresh noise, released or not, and its p-value q. Rejected are R of them,
               all with q <= a R / m. If V of these are true nulls, the V-th smallest null q is at most a R /
               m, so V / R is at most the maximum over j of a j / (m q0(j)), and at most 1. By Simes'
               inequality for independent q0 that maximum reaches t with probability at most a / t, and
               integrating min(1, a / t) over t from 0 to 1 gives a + a ln(1/a) (this is Su 2018,
               arXiv:1812.08965). With `paper` the same holds for exact p-values outside a chance of alpha /
               12 that a noise exceeds the shift.
    """

    public: Public
    hypotheses: tuple[Hypothesis, ...]
    alpha: float
    epsilon: Real
    candidates: int
    delta: float | None = None
    score: str = "z"
    floor: float = 1e-12
    strict: bool = True
    paper: bool = False

    def __post_init__(self) -> None:
        require_rows(self.public)
        object.__setattr__(self, "hypotheses", _require.listed(hypotheses=self.hypotheses))
        _require.non_empty(hypotheses=self.hypotheses)
        _require.open_probability(alpha=self.alpha)
        _require.positive(epsilon=self.epsilon)
        if self.delta is not None:
            check_budget(self.epsilon, self.delta)
        _require.integer(candidates=self.candidates, at_least=1)
        if self.candidates > len(self.hypotheses):
            raise _require.fail(
                "candidates", self.candidates, f"at most the {len(self.hypotheses)} hypotheses"
            )
        _require.one_of(("z", "log p"), score=self.score)
        _require.open_probability(floor=self.floor)
        _require.flag(strict=self.strict, paper=self.paper)
        if self.paper and self.score != "log p":
            raise InvalidInput("the paper's thresholds are for score='log p'. Nothing was drawn.")
        for hypothesis in self.hypotheses:
            if not isinstance(hypothesis, Hypothesis):
                raise _require.fail(
                    "a hypothesis", type(hypothesis).__name__, "Hypothesis(statistic=..., null=...)"
                )
            hypothesis.check(self.public, hypothesis.statistic.sensitivity(self.public).linf)

    @property
    def level(self) -> float:
        """Return the level of the step-up rule."""
        return strict_level(float(self.alpha)) if self.strict else float(self.alpha)

    @property
    def grid_sensitivity(self) -> int:
        """Return how far one person moves any evidence, in steps."""
        return max(1, *(self._largest_change(hypothesis) for hypothesis in self.hypotheses))

    @property
    def part_epsilon(self) -> Fraction:
        """Return e0: the price of releasing one evidence; a choice has twice this range."""
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
        return IntegerLaplace.for_epsilon(
            self.part_epsilon, sensitivity=self.grid_sensitivity, neighbors=self.public.neighbors
        )

    @property
    def event(self) -> Event:
        return compose([self.selector.event, self.noise.event.repeated(self.candidates)])

    def error(self, confidence: float = 0.95) -> int:
        """Return how far noise puts the worst evidence that is released, in steps of 1/1024."""
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
        return release(discoveries, event=self.event, entropy=entropy, error=self.error, error_in_scores=True)

    def _table(self, hypothesis: Hypothesis) -> tuple[NDArray[np.int64], int, Masses]:
        return _table(hypothesis.null, hypothesis.sign, self.floor if self.score == "log p" else None)

    def _largest_change(self, hypothesis: Hypothesis) -> int:
        scores, _, _ = self._table(hypothesis)
        reach = min(hypothesis.statistic.sensitivity(self.public).linf, len(scores) - 1)
        return int(np.max(scores[reach:] - scores[: len(scores) - reach], initial=0)) if reach else 0

    def _evidence(self, hypothesis: Hypothesis, source: Source) -> int:
        scores, low, _ = self._table(hypothesis)
        statistic = hypothesis.sign * number(hypothesis.statistic(source)) - low
        return int(scores[min(max(statistic, 0), len(scores) - 1)])

    def _pvalue(self, hypothesis: Hypothesis, noisy: int) -> float:
        """Return the chance that a true null shows this much; with `paper`, the p-value itself after the
        shift."""
        scale = float(self.noise.scale)
        if self.paper:
            return min(
                1.0, math.exp(min(0.0, scale * math.log(6 * self.candidates / self.alpha) - noisy) / GRID)
            )
        scores, _, masses = self._table(hypothesis)
        return at_most_one(float(masses @ survival(noisy - scores, scale)), 1e-14)


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
    """Return the evidence at each value of the distribution, the smallest of these values, and their
    probabilities."""
    values, masses = under_null(null, sign)
    if floor is not None:
        return np.floor(-log_pvalues(masses, math.log(floor)) * GRID).astype(np.int64), int(values[0]), masses
    weights = masses / masses.sum()
    mean = float(weights @ values)
    deviation = max(math.sqrt(float(weights @ (values - mean) ** 2)), 1e-6)
    return np.floor((values - mean) / deviation * GRID).astype(np.int64), int(values[0]), masses
