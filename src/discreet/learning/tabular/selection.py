"""Tuning that pays: the best of a secret random number of trials, each a candidate drawn at random, trained
and scored privately."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np

from ... import _require, sampling
from ..._errors import InvalidInput
from ..._public import Public
from ..._registry import described
from ...accounting import Event, NegativeBinomialTrials, PureDP, RepeatAndSelect
from ...mechanisms.noise import IntegerLaplace
from ...mechanisms.protocols import Release, check_source, release
from ...sampling import Entropy
from ...tables import Source
from .erm import LinearERM
from .model import LinearModel

# A row's score is a whole number of this part of 1: exact sums, and a sensitivity that is exact too.
CELLS = 1 << 10


@described("learning.Selected")
@dataclass(frozen=True, slots=True, kw_only=True)
class Selected:
    """What tuning released: the best model, which candidate it was, and its noisy score: the share of
    held-out rows it got right."""

    model: LinearModel
    candidate: int
    score: float

    def predict(self, X: Any) -> Any:
        return self.model.predict(X)


@described("learning.RandomTrials")
@dataclass(frozen=True, kw_only=True)
class RandomTrials:
    """Trains and scores a random candidate a random number of times, and releases the best run only (Liu &
    Talwar 2019; Papernot & Steinke 2022).

    Every unit is held out with probability `holdout`, by a coin of its own; the rest trains. A run draws one
    of `candidates` uniformly, independently of earlier runs, trains it with its epsilon, and adds up the
    scores of held-out rows with discrete Laplace noise for `score_epsilon`. The number of runs has the law
    `trials`, and is neither released nor kept; how long it took is what tells it to whoever can time the
    curator.

    Guarantee: `event`: RepeatAndSelect of one run, which is pure DP for the larger of the candidates' epsilon
               and `score_epsilon`.
    Proof:     given the coins, one unit is in the training part or in the held-out part, in every run the
               same: in the first case only the training of a run touches it and the score is post-processing,
               in the second only the score does (parallel composition). A run's output is model, candidate
               and noisy score; the best by that score is shown. Papernot & Steinke 2022 (arXiv:2110.03620),
               Theorem 2. A row's score is in [0, 1], so that one unit moves the sum of scores by at most 1.
    Assumes:   candidates are pure, and all read the same rows.
    """

    public: Public
    candidates: tuple[LinearERM, ...]
    score_epsilon: float
    trials: NegativeBinomialTrials
    holdout: Fraction = Fraction(1, 5)

    def __post_init__(self) -> None:
        object.__setattr__(self, "candidates", _require.listed(candidates=self.candidates))
        object.__setattr__(self, "holdout", _require.exact(self.holdout, "holdout"))
        _require.non_empty(candidates=self.candidates)
        _require.positive(score_epsilon=self.score_epsilon)
        _require.open_probability(holdout=self.holdout)
        if not isinstance(self.trials, NegativeBinomialTrials) or self.trials.shape not in (0, 1):
            raise _require.fail(
                "trials", self.trials, "accounting.logarithmic(...) or accounting.geometric(...)"
            )
        for candidate in self.candidates:
            if not isinstance(candidate, LinearERM) or candidate.delta != 0:
                raise _require.fail("candidates", type(candidate).__name__, "pure linear learners (delta 0)")
            if candidate.public != self.public or candidate.design != self.candidates[0].design:
                raise InvalidInput(
                    "all candidates must be priced for the same table and read the same columns. "
                    "Nothing was charged."
                )

    @property
    def design(self) -> Any:
        return self.candidates[0].design

    @property
    def run_epsilon(self) -> float:
        """The epsilon of one run."""
        return max(self.score_epsilon, *(candidate.epsilon for candidate in self.candidates))

    @property
    def epsilon(self) -> float:
        """The total, by Theorem 2 at infinite orders."""
        return float((2 + self.trials.shape) * self.run_epsilon)

    @property
    def delta(self) -> float:
        return 0.0

    @property
    def asked(self) -> tuple[float, float]:
        return self.epsilon, 0.0

    @property
    def tuning(self) -> str:
        return f"best of a random number of private trials of {len(self.candidates)} candidates; in the price"

    @property
    def event(self) -> Event:
        one = PureDP(epsilon=self.run_epsilon, neighbors=self.public.neighbors)
        return RepeatAndSelect(event=one, trials=self.trials)

    @cached_property
    def noise(self) -> IntegerLaplace:
        # a replaced row's score moves from one end to the other; an added one's from 0
        return IntegerLaplace.for_epsilon(
            self.score_epsilon, sensitivity=CELLS, neighbors=self.public.neighbors
        )

    @property
    def held_out(self) -> float:
        """The expected number of held-out units, from the declared size."""
        return float(self.holdout) * self.public.declared_size("a score")

    def __call__(self, source: Source, /, *, entropy: Entropy) -> Release:
        check_source(self.public, source)
        x, y = self.design.read(source, entropy)
        held = np.asarray(sampling.bernoulli(self.holdout, len(x), entropy), dtype=bool)
        best: tuple[int, int, LinearModel] | None = None
        for _ in range(number_of_trials(self.trials, entropy)):
            place = int(sampling.uniform_below(len(self.candidates), 1, entropy)[0])
            model = self.candidates[place].fitted(x[~held], y[~held], entropy)
            right = int(np.rint((1 - model.mistakes(x[held], y[held])) * CELLS).sum())
            score = int(self.noise(np.array([right]), entropy=entropy)[0])
            if best is None or score > best[0]:
                best = (score, place, model)
        assert best is not None
        value = Selected(model=best[2], candidate=best[1], score=best[0] / CELLS / self.held_out)
        return release(value, event=self.event, entropy=entropy, error=self.error, scored=True)

    def error(self, confidence: float = 0.95) -> float:
        """Return how far the noise may have moved one run's score, as a share of the held-out rows."""
        return float(self.noise.error(confidence)) / CELLS / self.held_out


def number_of_trials(trials: NegativeBinomialTrials, entropy: Entropy) -> int:
    """Return a draw of the truncated negative binomial law of shape 0 or 1, at least 1.

    Guarantee: exactly the stated law, for the binary value of gamma.
    Proof:     shape 1: the number of the first success of trials with chance gamma. Shape 0: P(K = k) is
               proportional to (1 - gamma)^k / k, which is the former times 1 / k: rejection.
    """
    gamma = _require.exact(trials.gamma, "gamma")
    while True:
        number = 1
        while not bool(sampling.bernoulli(gamma, 1, entropy)[0]):
            number += 1
        if trials.shape == 1 or bool(sampling.bernoulli(Fraction(1, number), 1, entropy)[0]):
            return number
