"""Exact draws of the secret number of trials of a private search, and the public limit of its rounds."""

from __future__ import annotations

import math
from fractions import Fraction

from ... import _require, sampling
from ...accounting import NegativeBinomialTrials, PoissonTrials
from ...sampling import Entropy

TrialDistribution = NegativeBinomialTrials | PoissonTrials
# How likely the last round has more than one trial, at most, unless _ROUNDS ends them earlier: that changes
# its time, and nothing else.
_TAIL = 1e-6
# Rounds per mean number of trials, at most: each is a durable write. 1% of logarithmic draws are above it.
_ROUNDS = 8


def number_of_trials(trials: TrialDistribution, entropy: Entropy) -> int:
    """Return a draw of the distribution: at least 1 of a truncated negative binomial, 0 or more of a Poisson.

    Guarantee: exactly the stated distribution, for the binary values of its parameters.
    Proof:     Poisson: `_poisson`. Negative binomial of shape s: P(K = k) is proportional to (1 - gamma)^k
               G(k + s) / k! for k >= 1, G the gamma function. With m = max(1, ceil(s)) the sum of m geometric
               numbers has P(k) proportional to (1 - gamma)^k G(k + m) / k!; given that it is at least 1, it
               is accepted with the chance prod_(0 < j < k) (j + s) / (j + m), which is
               G(k + s) / G(k + m) up to a constant factor and at most 1.
    """
    if isinstance(trials, PoissonTrials):
        return _poisson(_require.exact(trials.mean, "mean"), entropy)
    gamma, shape = _require.exact(trials.gamma, "gamma"), _require.exact(trials.shape, "shape")
    geometric_draws = max(1, math.ceil(shape))
    while True:
        number = sum(_failures(gamma, entropy) for _ in range(geometric_draws))
        if number and all(
            bool(sampling.bernoulli((j + shape) / (j + geometric_draws), 1, entropy)[0])
            for j in range(1, number)
        ):
            return number


def _failures(gamma: Fraction, entropy: Entropy) -> int:
    """Return a geometric number: failures before the first success of probability gamma."""
    number = 0
    while not bool(sampling.bernoulli(gamma, 1, entropy)[0]):
        number += 1
    return number


def _poisson(mean: Fraction, entropy: Entropy) -> int:
    """Return a Poisson draw, the sum of draws of means of at most 1/2.

    Proof: for a mean m <= 1/2, a geometric number k of chance 2^-(k + 1) is accepted with the chance
           (2m)^k / k! <= 1: the product is m^k / k! up to a constant factor.
    """
    summands = max(1, math.ceil(2 * mean))
    summand_mean, total = mean / summands, 0
    for _ in range(summands):
        while True:
            k = _failures(Fraction(1, 2), entropy)
            chance = (2 * summand_mean) ** k / math.factorial(k)
            if bool(sampling.bernoulli(chance, 1, entropy)[0]):
                total += k
                break
    return total


def mean_of(trials: TrialDistribution) -> float:
    """Return the mean number of trials."""
    if isinstance(trials, PoissonTrials):
        return float(trials.mean)
    shape, gamma = float(trials.shape), float(trials.gamma)
    if shape == 0:
        return (1 / gamma - 1) / math.log(1 / gamma)
    return float(shape * (1 - gamma) / (gamma * (1 - gamma**shape)))


def cap_of(trials: TrialDistribution) -> int:
    """Return the public number of rounds: more trials than this are rare (about 1% of logarithmic draws, less
    of others), and then share the last round, which takes longer."""
    if isinstance(trials, PoissonTrials):
        mean = float(trials.mean)
        # Bernstein's bound of the upper tail
        need = -math.log(_TAIL)
        return math.ceil(mean + need / 3 + math.sqrt(need * need / 9 + 2 * mean * need))
    geometric_draws = max(1, math.ceil(float(trials.shape)))
    tail_bound = math.ceil(
        geometric_draws * math.log(_TAIL / geometric_draws) / math.log1p(-float(trials.gamma))
    )
    return max(1, min(tail_bound, math.ceil(_ROUNDS * mean_of(trials))))


def gamma_of(shape: float, mean: float) -> float:
    """Return the gamma at which a truncated negative binomial of this shape has this mean."""
    low, high = 1e-12, 1 - 1e-12
    for _ in range(200):
        middle = math.sqrt(low * high)
        trials = NegativeBinomialTrials(shape=shape, gamma=middle)
        low, high = (middle, high) if mean_of(trials) > mean else (low, middle)
    return high
