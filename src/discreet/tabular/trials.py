"""Tunes hyperparameters privately: returns the best of a secret random number of trials. A trial, also called
a run, draws a candidate at random, and trains and scores it privately.

Draws the secret number of trials of a private search exactly.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Annotated, Any

import numpy as np

from .. import _require, accounting, sampling
from .._public import Public
from .._registry import described
from .._require import EXACT, NON_EMPTY, OPEN_PROBABILITY, POSITIVE, PROBABILITY, instance_of
from ..accounting import ZCDP, Event, NegativeBinomialTrials, PoissonTrials, PureDP, RepeatAndSelect
from ..accounting.pure import epsilon_of
from ..mechanisms.additive import laplace_noise
from ..mechanisms.noise import IntegerGaussian, IntegerLaplace
from ..mechanisms.protocols import Mechanism, Release, check_source, release
from ..sampling import Entropy
from ..tables import Source
from .erm import LinearERM
from .learner import TableLearner
from .rows import Loaded

TrialDistribution = NegativeBinomialTrials | PoissonTrials
TRIALS = instance_of(TrialDistribution, "accounting.logarithmic(...), geometric(...) or PoissonTrials(...)")
# The largest probability of more trials than `cap_of` says, where _MEANS does not set it.
_TAIL = 1e-6
# The largest value of `cap_of` divided by the mean number of trials, for a negative binomial. About 1% of
# logarithmic draws (those of shape 0) are larger.
_MEANS = 8


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
    """Return for how many trials a search has time that is to hide their number (`PrivateSearch.pace`). More
    are rare (about 1% of logarithmic draws, fewer of others); such a search takes longer."""
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
    return max(1, min(tail_bound, math.ceil(_MEANS * mean_of(trials))))


def gamma_of(shape: float, mean: float) -> float:
    """Return the gamma at which a truncated negative binomial of this shape has this mean, by bisection."""
    low, high = 1e-12, 1 - 1e-12
    for _ in range(200):
        middle = math.sqrt(low * high)
        trials = NegativeBinomialTrials(shape=shape, gamma=middle)
        low, high = (middle, high) if mean_of(trials) > mean else (low, middle)
    return high


# A row's score in [0, 1] is rounded to a multiple of 1 / CELLS, so that sums and their sensitivity are exact.
# Chosen by hand, not tuned.
CELLS = 1 << 10


def rho_of(event: Event) -> float:
    """Return the zCDP parameter of an event; infinity where its zCDP bound needs a delta."""
    cost = accounting.zcdp(event)
    return float("inf") if cost.delta > 0 else float(cost.value)


@described("learning.Selected")
class Selected:
    """Holds the release of a search: the best model, the number of its candidate, and its noisy score: the
    share of held-out rows it predicted right (for a number, 1 minus the mean of a quarter of the squared
    error)."""

    model: Any
    candidate: int
    score: float

    def predict(self, X: Any) -> Any:
        """Return the best model's predictions."""
        return self.model.predict(X)


@dataclass(frozen=True, kw_only=True)
class RepeatedTrials(Mechanism):
    """Runs one mechanism a secret number of times, independently, and releases the run with the best noisy
    score: the base class of private searches (Liu & Talwar 2019; Papernot & Steinke 2022).
    """

    public: Public
    candidates: Annotated[tuple[Any, ...], NON_EMPTY]
    trials: Annotated[TrialDistribution, TRIALS]
    holdout: Annotated[Fraction, EXACT, OPEN_PROBABILITY] = Fraction(1, 5)
    delta: Annotated[float, PROBABILITY] = 0.0

    def __post_init__(self) -> None:
        self._check()

    @abstractmethod
    def _check(self) -> None: ...

    @property
    @abstractmethod
    def run_event(self) -> Event:
        """Return the price of one run."""

    @abstractmethod
    def load_data(self, source: Any) -> Any:
        """Return the data as `trial` reads them."""

    @abstractmethod
    def trial(self, data: Any, entropy: Entropy) -> tuple[int, int, Any]:
        """Return the noisy score, in units of 1 / CELLS, the candidate and the model of one run."""

    @abstractmethod
    def untrained_model(self, entropy: Entropy) -> Any:
        """Return a model of no rows."""

    @property
    @abstractmethod
    def noise(self) -> Any:
        """Return the noise of the score, which is in units of 1 / CELLS."""

    @property
    def event(self) -> Event:
        return RepeatAndSelect(event=self.run_event, trials=self.trials)

    @cached_property
    def epsilon(self) -> float:
        """Return the epsilon of the whole search at `delta`."""
        if self.delta == 0:
            total = epsilon_of(self.event)
            return float("inf") if total is None else total
        return float(accounting.epsilon(self.event, delta=self.delta, accountant="rdp"))

    @property
    def asked(self) -> tuple[float, float]:
        """Return the epsilon and the delta of the search."""
        return self.epsilon, self.delta

    @property
    def held_out(self) -> float:
        """Return the expected number of held-out units, from the declared size."""
        return float(self.holdout) * self.public.declared_size("a score")

    @property
    def tuning(self) -> str:
        """Return the line about tuning on a model card."""
        return f"best of a random number of private trials of {len(self.candidates)} candidates; in the price"

    def __call__(self, source: Source, /, *, entropy: Entropy) -> Release:
        """Run the trials, and release the best; where there was none, a model that was trained on no rows."""
        check_source(self.public, source, examples=True)
        number, data = number_of_trials(self.trials, entropy), self.load_data(source)
        best: tuple[int, int, Any] | None = None
        for _ in range(number):
            trial = self.trial(data, entropy)
            if best is None or trial[0] > best[0]:
                best = trial
        score, candidate, model = best or (0, 0, self.untrained_model(entropy))
        value = Selected(model=model, candidate=candidate, score=score / CELLS / self.held_out)
        return release(value, event=self.event, entropy=entropy, error=self.error, error_in_scores=True)

    def draw_candidate(self, entropy: Entropy) -> int:
        """Return the number of a candidate, each equally likely."""
        return int(sampling.uniform_below(len(self.candidates), 1, entropy)[0])

    def error(self, confidence: float = 0.95) -> float:
        """Return a bound on the noise of one run's score, as a share of the expected number of held-out rows,
        which holds with this probability."""
        return float(self.noise.error(confidence)) / CELLS / self.held_out


@described("learning.RandomTrials")
class RandomTrials(RepeatedTrials):
    """Trains and scores a random candidate a random number of times, and releases the best run only (Liu &
    Talwar 2019; Papernot & Steinke 2022).

    In a run every unit is held out with probability `holdout`, independently of all others; the other units
    are the training part. One of `candidates` is drawn uniformly and trained for its price, and the scores of
    held-out rows are added up with noise: discrete Laplace for `score_epsilon` where candidates are pure,
    discrete Gaussian for `score_rho` where they are not. The number of runs has the distribution `trials`,
    and is never stored.

    Guarantee: `event`: RepeatAndSelect of one run, which is pure DP for the larger of the candidates' epsilon
               and `score_epsilon`, or zCDP for the larger of the candidates' rho and `score_rho`.
    Proof:     given the draws of held-out units, a unit is in the training part or in the held-out part of a
               run. In the first case only the training reads it, and the score is post-processing; in the
               second only the score reads it (parallel composition). These draws and the choice of the
               candidate do not depend on the data, and the divergence of two mixtures with the same weights
               is at most the largest divergence of their components (quasi-convexity; van Erven & Harremoes
               2014, Theorem 13). So a run has this price. Runs are independent and have the same
               distribution, as all draws are made anew. A run's output is model, candidate and noisy score;
               the run with the best score is released: Papernot & Steinke 2022 (arXiv:2110.03620), Theorems 2
               and 6. A row's score is in [0, 1] and depends on that row and the model alone (a
               model's `losses`), so that one unit moves the sum of scores by at most 1. Where there is no run
               (Poisson), the released model was trained on no rows.
    """

    score_epsilon: Annotated[float, POSITIVE] | None = None
    score_rho: Annotated[float, POSITIVE] | None = None

    def _check(self) -> None:
        pure = self.score_rho is None
        _require.that(pure != (self.score_epsilon is None), "give score_epsilon, or score_rho with a delta.")
        has_price = not (pure and isinstance(self.trials, PoissonTrials))
        _require.that(has_price, "Poisson trials have no pure price: give score_rho, and a delta.")
        for candidate in self.candidates:
            kind, learns = type(candidate).__name__, isinstance(candidate, LinearERM | TableLearner)
            _require.must(learns, "candidates", kind, "learners of a table")
            predicts = candidate.design.target is not None
            _require.must(predicts, "candidates", kind, "learners that predict a target")
            _require.that(
                candidate.public == self.public and candidate.design == self.candidates[0].design,
                "all candidates must be priced for the same table and read the same columns.",
            )
        self.run_event  # noqa: B018 - price it now

    @property
    def design(self) -> Any:
        return self.candidates[0].design

    @cached_property
    def run_event(self) -> Event:
        events = [candidate.event for candidate in self.candidates]
        if self.score_rho is None:
            epsilons = [epsilon_of(event) for event in events]
            if any(value is None or value == float("inf") for value in epsilons):
                raise _require.fail("candidates", "not pure", "pure learners (delta 0), or score_rho")
            assert self.score_epsilon is not None
            largest = max(self.score_epsilon, *(float(value) for value in epsilons if value is not None))
            return PureDP(epsilon=largest, neighbors=self.public.neighbors)
        rho = max(self.score_rho, *(rho_of(event) for event in events))
        _require.must(
            rho != float("inf"), "candidates", "without a rho", "learners with a pure or a Gaussian price"
        )
        return ZCDP(rho=rho, neighbors=self.public.neighbors)

    @cached_property
    def noise(self) -> IntegerLaplace | IntegerGaussian:
        # a replaced row's score changes by at most 1, as does an added one's: CELLS under both relations
        if self.score_rho is None:
            assert self.score_epsilon is not None
            return laplace_noise(self.public, self.score_epsilon, CELLS)
        return IntegerGaussian.for_rho(self.score_rho, sensitivity=CELLS, neighbors=self.public.neighbors)

    def load_data(self, source: Source) -> Loaded:
        return self.design.load(source)  # type: ignore[no-any-return]

    def trial(self, data: Loaded, entropy: Entropy) -> tuple[int, int, Any]:
        x, y = data.pick_rows(entropy)
        is_held_out = np.asarray(sampling.bernoulli(self.holdout, len(x), entropy), dtype=bool)
        candidate = self.draw_candidate(entropy)
        model = self.candidates[candidate].fit_rows(x[~is_held_out], y[~is_held_out], entropy)
        score_cells = int(np.rint((1 - model.losses(x[is_held_out], y[is_held_out])) * CELLS).sum())
        return int(self.noise(np.array([score_cells]), entropy=entropy)[0]), candidate, model

    def untrained_model(self, entropy: Entropy) -> Any:
        width = self.design.width(self.public)
        return self.candidates[0].fit_rows(np.zeros((0, width), dtype=np.float32), np.zeros(0), entropy)
