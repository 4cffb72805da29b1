"""Computes Clopper-Pearson limits of an attack's true- and false-positive rates, and the lower bounds on
epsilon that follow from them.

An attack says "this came from the first table" or not. On runs it was not built from, count how often it says
so rightly and how often wrongly. Both probabilities have exact confidence limits, whatever the attack is;
from these follow lower bounds on epsilon at any delta, on the mu of Gaussian DP, and on the distance to any
claimed trade-off curve.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from .. import _require
from .._errors import InvalidInput
from ..accounting.conversion import gaussian_epsilon

# Limits are widened by this relative amount: scipy's quantiles of the beta distribution have relative errors
# of about 1e-12, so a thousand times that is safe, and still negligible.
_ROUNDING = 1e-9


def fresh_order(count: int) -> NDArray[np.int64]:
    """Return the numbers 0, ..., count - 1 in an order that is drawn anew at each call.

    Every split of given results into some that choose and some that measure, and every tie among them, goes
    by such an order. A caller may give results sorted, or members before others: by a rule that is fixed
    beforehand the same ranks would then measure each time, and no count would be binomial.
    """
    return np.random.default_rng().permutation(count)


def lower_limit(hits: Any, trials: Any, level: float) -> Any:
    """Return the lower Clopper-Pearson limit of the probability of an event that occurred `hits` times in
    `trials`.

    Guarantee: above the true probability with probability at most `level`, whatever that and the number of
               trials are.
    Proof:     Clopper & Pearson 1934: the quantile of Beta(hits, trials - hits + 1) solves P[Bin(trials, p)
               >= hits] = level.
    """
    hits, trials = np.asarray(hits, float), np.asarray(trials, float)
    bound = stats.beta.ppf(level, np.maximum(hits, 1), trials - hits + 1) * (1 - _ROUNDING)
    return np.where(hits > 0, bound, 0.0)


def upper_limit(hits: Any, trials: Any, level: float) -> Any:
    """Return the upper Clopper-Pearson limit: below the true probability with probability at most `level`, as
    in `lower_limit`."""
    hits, trials = np.asarray(hits, float), np.asarray(trials, float)
    bound = stats.beta.isf(level, hits + 1, np.maximum(trials - hits, 1))
    bound = np.nextafter(bound + _ROUNDING * np.minimum(bound, 1 - bound), 1.0)
    return np.where(hits < trials, bound, 1.0)


def epsilon_of_limits(low: Any, high: Any, delta: float) -> Any:
    """Return the least epsilon with which a true-positive rate of `low` or more and a false-positive rate of
    `high` or less can go together.

    Both the attack's event and its complement are used: low <= e^eps high + delta, and 1 - high <= e^eps (1 -
    low) + delta.
    """
    low, high = np.asarray(low, float), np.asarray(high, float)
    with np.errstate(divide="ignore", invalid="ignore"):
        event = np.where(low > delta, np.log((low - delta) / high), -np.inf)
        complement = np.where(1 - high > delta, np.log((1 - high - delta) / (1 - low)), -np.inf)
    return np.maximum(np.maximum(event, complement), 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Guesses:
    """Counts how an attack did on fresh runs: it said "first table" `hits` times in `first` runs on the first
    table, and `false_hits` times in `second` runs on the other.

    >>> round(Guesses(hits=900, first=1000, false_hits=100, second=1000).epsilon(confidence=0.95), 1)
    2.0
    """

    hits: int
    first: int
    false_hits: int
    second: int

    def __post_init__(self) -> None:
        _require.integer(hits=self.hits, false_hits=self.false_hits, at_least=0)
        _require.integer(first=self.first, second=self.second, at_least=1)
        if self.hits > self.first or self.false_hits > self.second:
            raise InvalidInput(f"more hits than runs: {self!r}. Nothing was computed.")

    def limits(self, confidence: float = 0.95) -> tuple[float, float]:
        """Return (TPR at least, FPR at most), both true together with probability `confidence`.

        Guarantee: fails with probability at most 1 - confidence.
        Proof:     one-sided Clopper-Pearson limits, each at half the level, and the union bound.
        Assumes:   the attack was fixed before these runs were made, and the runs are independent.
        """
        _require.open_probability(confidence=confidence)
        level = (1 - confidence) / 2
        low = lower_limit(self.hits, self.first, level)
        return float(low), float(upper_limit(self.false_hits, self.second, level))

    def epsilon(self, *, delta: float = 0.0, confidence: float = 0.95) -> float:
        """Return a lower bound on epsilon: with probability `confidence`, whatever ran is not (x, delta)-DP
        for any x below it.

        Proof: (epsilon, delta)-DP bounds P(E) <= e^epsilon P'(E) + delta for every event, both ways (Kairouz,
               Oh & Viswanath 2015, arXiv:1311.0776); the attack's limits contradict it for smaller epsilon.
        """
        _require.probability(delta=delta)
        return float(epsilon_of_limits(*self.limits(confidence), float(delta)))

    def mu(self, *, confidence: float = 0.95) -> float:
        """Return a lower bound on mu: with probability `confidence`, whatever ran is not x-GDP for any x
        below it.

        Proof: mu-GDP means TPR <= Phi(Phi^-1(FPR) + mu) (Dong, Roth & Su 2022, arXiv:1905.02383), which rises
               with FPR.
        """
        low, high = self.limits(confidence)
        if low <= 0 or high >= 1:
            return 0.0
        return max(0.0, float(special.ndtri(low) - special.ndtri(high)) * (1 - _ROUNDING))

    def gaussian_epsilon(self, *, delta: float, confidence: float = 0.95) -> float:
        """Return the epsilon of the Gaussian that `mu` allows: a lower bound *if* what ran is exactly
        Gaussian; far sharper at small delta.

        Assumes: the mechanism's trade-off curve is that of some N(0, 1) against N(mu, 1), as for the Gaussian
                 mechanism.
        """
        _require.open_probability(delta=delta)
        mu = self.mu(confidence=confidence)
        return gaussian_epsilon(mu, float(delta)) * (1 - _ROUNDING) if mu > 0 else 0.0

    def below(self, tradeoff: Any, *, confidence: float = 0.95) -> bool:
        """Return whether, with probability `confidence`, the attack beats a claimed trade-off curve (FPR ->
        least FNR)."""
        low, high = self.limits(confidence)
        return bool(1 - low < tradeoff(high))
