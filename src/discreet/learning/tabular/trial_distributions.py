"""Draws the secret number of trials of a private search exactly, and computes the public limit of its rounds.

A round runs one trial, and the last round all that are left (`selection.TrialRun.step`).
"""

from __future__ import annotations

import math
from fractions import Fraction

from ... import _require, sampling
from ...accounting import NegativeBinomialTrials, PoissonTrials
from ...sampling import Entropy

TrialDistribution = NegativeBinomialTrials | PoissonTrials
# The largest probability that the last round has more than one trial, where _ROUNDS does not set the limit.
# More trials in the last round make it longer, and have no other effect.
_TAIL = 1e-6
# The largest number of rounds divided by the mean number of trials, for a negative binomial: each round is
# written to disk. About 1% of logarithmic draws (those of shape 0) are larger.
_ROUNDS = 8


def number_of_trials(trials: TrialDistribution, entropy: Entropy) -> int:
    """Return a draw of the distribution: at least 1 for a truncated negative binomial, at least 0 for a
    Poisson.

    Guarantee: exactly the stated distribution, with parameters that are taken as the exact values of their
               floats.
    Proof:     Poisson: `_poisson`. Negative binomial of shape s: P(K = k) is proportional to (1 - gamma)^k
               G(k + s) / k! for k >= 1, G the gamma function. With m = max(1, ceil(s)) the sum of m geometric
               draws has P(k) proportional to (1 - gamma)^k G(k + m) / k!. A sum of at least 1 is accepted
               with probability prod_(0 < j < k) (j + s) / (j + m), which is G(k + s) / G(k + m) up to a
               constant factor and at most 1.
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
    """Return a geometric draw: the number of failures before the first success, of probability gamma."""
    number = 0
    while not bool(sampling.bernoulli(gamma, 1, entropy)[0]):
        number += 1
    return number


def _poisson(mean: Fraction, entropy: Entropy) -> int:
    """Return an exact Poisson draw: the sum of Poisson draws whose means are at most 1/2.

    Proof: for a mean m <= 1/2, a geometric draw k, of probability 2^-(k + 1), is accepted with probability
           (2m)^k / k! <= 1: the product is m^k / k! up to a constant factor.
    """
    summands = max(1, math.ceil(2 * mean))
    summand_mean, total = mean / summands, 0
    for _ in range(summands):
        while True:
            k = _failures(Fraction(1, 2), entropy)
            acceptance = (2 * summand_mean) ** k / math.factorial(k)
            if bool(sampling.bernoulli(acceptance, 1, entropy)[0]):
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
    """Return the public largest number of rounds. More trials than this are rare (about 1% of logarithmic
    draws, fewer of others); the last round then runs all that are left, and takes longer."""
    if isinstance(trials, PoissonTrials):
        mean = float(trials.mean)
        # Bernstein's bound on the upper tail
        log_tail = -math.log(_TAIL)
        return math.ceil(mean + log_tail / 3 + math.sqrt(log_tail * log_tail / 9 + 2 * mean * log_tail))
    geometric_draws = max(1, math.ceil(float(trials.shape)))
    # a union bound over the geometric draws of `number_of_trials`
    tail_bound = math.ceil(
        geometric_draws * math.log(_TAIL / geometric_draws) / math.log1p(-float(trials.gamma))
    )
    return max(1, min(tail_bound, math.ceil(_ROUNDS * mean_of(trials))))


def gamma_of(shape: float, mean: float) -> float:
    """Return the gamma at which a truncated negative binomial of this shape has this mean, by bisection."""
    low, high = 1e-12, 1 - 1e-12
    for _ in range(200):
        middle = math.sqrt(low * high)
        trials = NegativeBinomialTrials(shape=shape, gamma=middle)
        low, high = (middle, high) if mean_of(trials) > mean else (low, middle)
    return high
