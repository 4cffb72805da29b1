"""Defines selectors: selection mechanisms that return the index of a good score out of a bare vector of
integers.

`mechanisms.selection` computes scores from a table and chooses with one of these.

Scores are integers, because the proofs do not hold for floats, which are rounded; real scores are put on a
grid first (`selection.RealScores`).

"Monotone" means: between any two neighbors all scores move the same way (or stay), as counts do under
add_remove; then half the noise is enough. `rate` below is epsilon / (2 * sensitivity), or epsilon /
sensitivity for monotone scores.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any

import numpy as np

from .. import _require, _round, sampling
from .._public import ADD_REMOVE, Neighbors
from .._registry import described
from .._require import POSITIVE, Real, among, at_least
from ..accounting.events import Event, PureDP
from ..accounting.events import ExponentialMechanism as BoundedRange
from ..sampling import Entropy
from .protocols import Integers


@dataclass(frozen=True, slots=True, kw_only=True)
class _Selector(ABC):
    """Chooses by integer scores; `epsilon` is the pure price of one choice when no score moves by more than
    `sensitivity`."""

    epsilon: Annotated[Real, POSITIVE]
    sensitivity: Annotated[int, at_least(1)] = 1
    monotone: bool = False
    neighbors: Neighbors = ADD_REMOVE

    @property
    def rate(self) -> Fraction:
        """The factor of every score before noise of scale 1 is added; `TopK` divides it by k."""
        return _require.exact(self.epsilon, "epsilon") / ((1 if self.monotone else 2) * int(self.sensitivity))

    @property
    def event(self) -> Event:
        return PureDP(epsilon=self.epsilon, neighbors=self.neighbors)

    def __call__(self, scores: Any, /, *, entropy: Entropy) -> Any:
        return self.named(self.pick(as_scores(scores), entropy), range(len(scores)))

    @abstractmethod
    def pick(self, scores: Integers, entropy: Entropy) -> Any:
        """Return the chosen index, or indices."""

    def named(self, picked: Any, candidates: Any) -> Any:
        """Return the choice, with candidates in place of indices."""
        return candidates[picked]

    @abstractmethod
    def tail(self, candidates: int, shortfall: int) -> float:
        """Return an upper bound, for all scores, on the probability of choosing a candidate whose score is
        `shortfall` or more below the best; for k choices, that for some j the j-th choice is that far below
        the j-th best."""

    def error(self, candidates: int, confidence: float = 0.95) -> int:
        """Return how far, with probability `confidence`, the chosen score may be below the best one, whatever
        the scores are; for k choices, how far the j-th choice may be below the j-th best, for all j."""
        _require.integer(candidates=candidates, at_least=1)
        _require.open_probability(confidence=confidence)
        if candidates == 1:
            return 0
        # slack for the rounding of floats in `tail`
        allowed = (1 - confidence) * (1 - 1e-9)
        return _first(lambda c: self.tail(candidates, c) <= allowed) - 1


@described("mechanisms.ExponentialMechanism")
@dataclass(frozen=True, slots=True, kw_only=True)
class ExponentialMechanism(_Selector):
    """Chooses candidate i with probability proportional to exp(rate * score i): the exponential mechanism.

    Guarantee: epsilon-DP, and of bounded range epsilon, if no score moves by more than `sensitivity` (and,
               with `monotone`, all move the same way). The distribution is exact. A choice among k candidates
               falls short of the best score by c or more with probability at most y / (1 + y), where y = (k -
               1) exp(-rate c); hence by (ln k + t) / rate or more with probability at most exp(-t).
    Proof:     McSherry & Talwar 2007; Dwork & Roth 2014, Theorems 3.10 and 3.11; bounded range: Durfee &
               Rogers 2019, arXiv:1905.04273. For scores s and s' of neighbors, ln P'(i)/P(i) = rate (s'_i -
               s_i) + a constant, and all s'_i - s_i lie in an interval of length 2 sensitivity, or 1
               sensitivity if monotone. Shortfall: the best weighs 1, the k - 1 others at most exp(-rate c)
               each.

    >>> ExponentialMechanism(epsilon=1)([0, 10**6, 3], entropy=Entropy())
    1
    """

    @property
    def event(self) -> Event:
        return BoundedRange(epsilon=self.epsilon, neighbors=self.neighbors)

    def utility(self, candidates: int, *, failure: float, best: int = 1) -> float:
        """Return (ln(candidates / best) + ln(1 / failure)) / rate: the chosen score is so far below the best
        one, or further, with probability at most `failure`, where `best` of the candidates have the best
        score.

        How many do is a private fact: this theorem is for planning. `error` holds whatever the scores are.

        Proof: each of the at most `candidates` scores that low weighs at most exp(-rate c) times what each of
               the `best` ones weighs, with c the result; the ratio is candidates exp(-rate c) / best =
               `failure`.
        """
        _require.integer(candidates=candidates, at_least=1)
        _require.integer(best=best, at_least=1)
        if best > candidates:
            raise _require.fail("best", best, f"at most {candidates}, the number of candidates")
        _require.open_probability(failure=failure)
        logarithm = math.log(candidates / best) - math.log(failure)
        return _round.up(_require.exact(logarithm, "utility") / self.rate)

    def pick(self, scores: Integers, entropy: Entropy) -> int:
        return sampling.argmax_gumbel(scores, self.rate, entropy)

    def pick_rows(self, scores: Integers, entropy: Entropy) -> Integers:
        """Return one independent choice for each row of a matrix of 64-bit scores: a column with the index
        chosen."""
        return sampling.top_k_gumbel_rows(scores, self.rate, 1, entropy)

    def tail(self, candidates: int, shortfall: int) -> float:
        y = (candidates - 1) * _exp_neg(self.rate * shortfall)
        return y / (1 + y)


@described("mechanisms.PermuteAndFlip")
@dataclass(frozen=True, slots=True, kw_only=True)
class PermuteAndFlip(_Selector):
    """Goes through candidates in random order, and takes each with probability exp(rate * (its score - the
    best)), until one is taken: permute-and-flip.

    Guarantee: epsilon-DP; expected shortfall never above the exponential mechanism's. It is *not* of bounded
               range epsilon (scores 0, 0 against 1, -1: the log ratios span epsilon + ln(2 - exp(-epsilon))),
               so it is charged as pure DP. Among k candidates it falls short of the best score by c or more
               with probability at most (k - 1) exp(-rate c) / 2.
    Proof:     McKenna & Sheldon 2020, arXiv:2010.12603. Drawn as the arg-max of scores with exponential
               noise, the same distribution (Ding et al. 2021, arXiv:2105.07260). Shortfall: E' - E > x has
               probability exp(-x) / 2 for two exponentials; one of k - 1 candidates must beat the best that
               way.
    """

    def pick(self, scores: Integers, entropy: Entropy) -> int:
        return sampling.argmax_exponential(scores, self.rate, entropy)

    def tail(self, candidates: int, shortfall: int) -> float:
        return (candidates - 1) * _exp_neg(self.rate * shortfall) / 2


@described("mechanisms.ReportNoisyMax")
@dataclass(frozen=True, slots=True, kw_only=True)
class ReportNoisyMax(_Selector):
    """Chooses the candidate whose score is largest after independent noise of scale 1 / rate, drawn for each:
    report noisy max.

    `noise` is "laplace", "exponential" (the distribution of permute-and-flip) or "gumbel" (that of the
    exponential mechanism).

    Guarantee: epsilon-DP; with Gumbel noise of bounded range epsilon. With Laplace noise it falls short of
               the best of k scores by c or more with probability at most (k - 1) (2 + x) exp(-x) / 4, where x
               = rate c.
    Proof:     given the others' noise, i wins if its own exceeds a threshold; between neighbors that
               threshold moves by at most 2 sensitivity (1 sensitivity if monotone), and P(noise > t) changes
               by a factor of at most exp(epsilon) (Dwork & Roth 2014, Claim 3.9). The arg-max is that of
               continuous noise, compared exactly: ties have probability zero. Shortfall: the difference of
               two unit Laplace variables exceeds x with probability (2 + x) exp(-x) / 4.
    """

    noise: Annotated[str, among(("laplace", "exponential", "gumbel"))] = "laplace"

    @property
    def event(self) -> Event:
        kind = BoundedRange if self.noise == "gumbel" else PureDP
        return kind(epsilon=self.epsilon, neighbors=self.neighbors)

    def pick(self, scores: Integers, entropy: Entropy) -> int:
        argmax = {
            "laplace": sampling.argmax_laplace,
            "exponential": sampling.argmax_exponential,
            "gumbel": sampling.argmax_gumbel,
        }[self.noise]
        return argmax(scores, self.rate, entropy)

    def tail(self, candidates: int, shortfall: int) -> float:
        x = self.rate * shortfall
        if self.noise == "laplace":
            # `_exp_neg` is 0 from 10**6 on; x itself may be beyond floats.
            return (candidates - 1) * _exp_neg(x) * (2 + float(min(x, Fraction(10**6)))) / 4
        y = (candidates - 1) * _exp_neg(x)
        return y / 2 if self.noise == "exponential" else y / (1 + y)


@described("mechanisms.TopK")
@dataclass(frozen=True, slots=True, kw_only=True)
class TopK(_Selector):
    """Chooses the best `k`, in order: k exponential mechanisms of price epsilon / k, each without the
    candidates already chosen ("peeling").

    With `one_shot` Gumbel noise is drawn once and the k largest are taken: the same distribution, k times
    faster.

    Guarantee: k composed choices of bounded range epsilon / k, so epsilon-DP. The j-th choice falls short of
               the j-th best score by c or more, for some j, with probability at most k y / (1 + y), y =
               (m - 1) exp(-rate c / k), among m candidates.
    Proof:     Durfee & Rogers 2019, arXiv:1905.04273, Lemma 4.2 (one shot equals peeling). Before the j-th
               choice one of the j best is left, so the best left is no worse than the j-th best;
               `ExponentialMechanism` bounds each choice.
    """

    k: Annotated[int, at_least(1)] = 1
    one_shot: bool = True

    @property
    def event(self) -> Event:
        each = _require.exact(self.epsilon, "epsilon") / int(self.k)
        return BoundedRange(epsilon=each, neighbors=self.neighbors).repeated(self.k)

    def check_k(self, candidates: int) -> None:
        """Refuse to choose more candidates than there are."""
        _require.must(self.k <= candidates, "k", self.k, f"at most the number of candidates, {candidates}")

    def pick(self, scores: Integers, entropy: Entropy) -> list[int]:
        self.check_k(len(scores))
        rate = self.rate / int(self.k)
        if self.one_shot:
            return [int(i) for i in sampling.top_k_gumbel(scores, rate, int(self.k), entropy)]
        remaining, chosen = np.arange(len(scores)), []
        for _ in range(self.k):
            index = sampling.argmax_gumbel(scores[remaining], rate, entropy)
            chosen.append(int(remaining[index]))
            remaining = np.delete(remaining, index)
        return chosen

    def pick_rows(self, scores: Integers, entropy: Entropy) -> Integers:
        """Return the best k of each row of a matrix of 64-bit scores, in order."""
        return sampling.top_k_gumbel_rows(scores, self.rate / int(self.k), int(self.k), entropy)

    def named(self, picked: Any, candidates: Any) -> tuple[Any, ...]:
        return tuple(candidates[i] for i in picked)

    def tail(self, candidates: int, shortfall: int) -> float:
        y = (candidates - 1) * _exp_neg(self.rate * shortfall / int(self.k))
        return self.k * y / (1 + y)


Selector = ExponentialMechanism | PermuteAndFlip | ReportNoisyMax | TopK


def as_scores(scores: Any) -> Integers:
    """Return scores as a vector of integers; refuse anything else."""
    array = np.asarray(scores)
    integral = array.dtype.kind in "iu" or (
        array.dtype.kind == "O" and all(isinstance(v, int) for v in array.flat)
    )
    _require.that(
        array.ndim == 1 and len(array) != 0 and integral,
        f"scores must be a non-empty list of integers, got {array.ndim} dimensions of {array.dtype}. Put "
        "real scores on a grid with RealScores.",
    )
    return array


def _exp_neg(x: Fraction) -> float:
    """Return exp(-x), which is 0 as a float from x = 746 on, also where x itself is beyond floats."""
    return math.exp(-min(float(x), 800.0)) if x < 10**6 else 0.0


def _first(good: Callable[[int], bool]) -> int:
    """Return the smallest positive integer for which `good` is true, if it is true for all larger ones."""
    high = 1
    while not good(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if good(middle) else (middle, high)
    return high
