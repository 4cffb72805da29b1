"""Defines aggregators that release the exact plurality of teachers' votes where it is stable, and nothing
otherwise.

The distance to instability of a plurality is the number of votes that can change before another class could
win. Bassily, Thakkar & Thakurta 2018, arXiv:1803.05101: M_stab tests this distance for every question and
pays for each; M_samp does the same for teachers on overlapping subsamples; M_svec, a sparse vector over
distances, pays only for unstable questions, so that thousands of questions cost as much as a few.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from .. import _require
from .._public import ADD_REMOVE, Neighbors, Public
from .._registry import described
from .._require import Real
from ..accounting import ApproximateDP, DiscreteLaplace, Event, Thresholded, calibrate
from ..sampling import Entropy
from . import certified
from .noise import draw
from .stability import check_budget
from .stable_vector import StableSparseVector
from .votes import Counts, State, Vote, check_open

# Characters of the secret number in a state, its sign included: the same for every value, because the length
# of an encrypted state can be seen.
_DIGITS = 24


def distance(counts: Counts) -> int:
    """Return the largest number of votes that can move without a change of the plurality: the distance to
    instability, 0 where one vote may change it.

    Guarantee: moves by at most 1 when one vote moves, and is 0 on both sides of a change of the plurality.
    Proof:     as `StableMode` under replace. Let i be the plurality, j another class, n_i and n_j their
               votes. j becomes the plurality once n_j - n_i has grown by g = n_i - n_j, plus 1 if j comes
               after i; one moved vote adds at most 2. So ceil(g/2) votes are needed for the smallest g, and
               distance is one less.
    """
    winner = int(np.argmax(counts))
    deficits = counts[winner] - counts + (np.arange(len(counts)) > winner)
    needed = int(np.min(np.delete(deficits, winner)))
    return (needed + 1) // 2 - 1


@described("mechanisms.StableVotes")
@dataclass(frozen=True, slots=True, kw_only=True)
class StableVotes:
    """Answers with the exact plurality if its distance to instability passes a noisy test, else refuses;
    every question is paid for (M_stab).

    `scale` is that of the discrete Laplace noise on a distance: 1/epsilon for the epsilon of one question.
    `failure` is the delta of one question.

    Guarantee: one question is `Thresholded(DiscreteLaplace(scale), failure)`, so (1/scale, failure)-DP.
    Proof:     `DistanceToInstability`: where neighbors have the same plurality, the answer is post-processing
               of the noisy distance, which moves by at most 1; where not, both distances are 0 and both
               refuse except with probability `failure`. Either is dominated by the one event.
    Assumes:   the counts are those of teachers on disjoint parts.
    """

    scale: Real
    failure: float
    queries: int

    def __post_init__(self) -> None:
        _require.positive(scale=self.scale)
        _require.open_probability(failure=self.failure)
        _require.integer(queries=self.queries, at_least=1)

    @classmethod
    def for_privacy(cls, epsilon: float, delta: float, queries: int) -> StableVotes:
        """Return the least noise with which `queries` questions cost at most (epsilon, delta): half of delta
        is for unstable questions that pass the test by chance, half for composition."""
        check_budget(epsilon, delta)
        _require.integer(queries=queries, at_least=1)
        failure = delta / (2 * queries)

        def build(scale: float) -> StableVotes:
            # a short fraction that is not below `scale`
            exact = Fraction(scale).limit_denominator(1000) + Fraction(1, 1000)
            return cls(scale=exact, failure=failure, queries=queries)

        return build(calibrate(lambda s: build(s).event(), epsilon=epsilon, delta=delta, bracket=(1e-2, 1e6)))

    @property
    def reach(self) -> int:
        """The noisy distance that passes: noise alone gets there with probability at most `failure`."""
        return certified.laplace_quantile(
            _require.exact(self.scale, "scale"), _require.exact(self.failure, "failure")
        )

    def lead(self, confidence: float, classes: int) -> int:
        """Return a lead in votes at which a question is answered with probability `confidence`."""
        _require.open_probability(confidence=confidence)
        noise_bound = certified.laplace_quantile(
            _require.exact(self.scale, "scale"), 1 - _require.exact(confidence, "confidence")
        )
        return 2 * (self.reach + noise_bound)

    def event(self, neighbors: Neighbors = ADD_REMOVE) -> Event:
        noise = DiscreteLaplace(scale=self.scale, sensitivity=1, neighbors=neighbors)
        test = Thresholded(event=noise, delta=self.failure, neighbors=neighbors)
        return test.repeated(int(self.queries))

    def start(self, entropy: Entropy) -> State:
        return {"asked": 0, "answered": 0}

    def label(
        self, state: State, counts: Counts, *, entropy: Entropy, prediction: Any = None
    ) -> tuple[State, Vote]:
        check_open(self, state)
        passed = distance(counts) + draw(_require.exact(self.scale, "scale"), entropy) >= self.reach
        return _answer_vote(state, counts, passed)


@described("mechanisms.SampledVotes")
@dataclass(frozen=True, slots=True, kw_only=True)
class SampledVotes:
    """Answers with the exact plurality of teachers on overlapping subsamples if it is stable, else refuses;
    every question is paid for (M_samp).

    Every unit is given to `overlap` of the teachers, drawn at random for it alone. So teachers see `overlap`
    times more data, and a plurality must lead by `overlap` times more votes. `scale` and `failure` are as in
    `StableVotes`.

    Guarantee: one question is `Thresholded(DiscreteLaplace(scale), failure)`, so (1/scale, failure)-DP.
    Proof:     one unit moves at most `overlap` = m votes, so `distance` by at most m, and floor(distance / m)
               by at most 1. Where m votes can change the plurality, distance is at most m - 1 on both sides,
               and the quotient is 0. So the quotient has the two properties of a distance that the proof of
               `StableVotes` uses. Smith & Thakurta 2013 draw a coin for each unit and subsample, and refuse
               to answer if a unit is in too many (`SubsampleAggregateStable`). Here a unit is in a fixed
               number of them, which needs no such refusal and no part of delta for it.
    Assumes:   the counts are those of teachers of whom at most `overlap` have seen the same unit.
    """

    scale: Real
    failure: float
    queries: int
    overlap: int

    def __post_init__(self) -> None:
        self._stable  # noqa: B018 - StableVotes checks the other fields
        _require.integer(overlap=self.overlap, at_least=1)

    @classmethod
    def for_privacy(cls, epsilon: float, delta: float, queries: int, *, overlap: int) -> SampledVotes:
        """Return the least noise with which `queries` questions cost at most (epsilon, delta)."""
        stable = StableVotes.for_privacy(epsilon, delta, queries)
        return cls(scale=stable.scale, failure=stable.failure, queries=queries, overlap=overlap)

    @property
    def _stable(self) -> StableVotes:
        return StableVotes(scale=self.scale, failure=self.failure, queries=self.queries)

    @property
    def reach(self) -> int:
        """The noisy quotient that passes: noise alone gets there with probability at most `failure`."""
        return self._stable.reach

    def lead(self, confidence: float, classes: int) -> int:
        """Return a lead in votes at which a question is answered with probability `confidence`."""
        return int(self.overlap) * (self._stable.lead(confidence, classes) + 2)

    def event(self, neighbors: Neighbors = ADD_REMOVE) -> Event:
        return self._stable.event(neighbors)

    def start(self, entropy: Entropy) -> State:
        return self._stable.start(entropy)

    def label(
        self, state: State, counts: Counts, *, entropy: Entropy, prediction: Any = None
    ) -> tuple[State, Vote]:
        check_open(self, state)
        quotient = distance(counts) // int(self.overlap)
        passed = quotient + draw(_require.exact(self.scale, "scale"), entropy) >= self.reach
        return _answer_vote(state, counts, passed)


@described("mechanisms.SparseVotes")
@dataclass(frozen=True, slots=True, kw_only=True)
class SparseVotes:
    """Answers stable questions with the exact plurality, at no cost; refuses unstable ones, and halts at the
    `failures`-th refusal (M_svec).

    With `constants=None` one noisy threshold is kept throughout; otherwise a new one is drawn after each
    refusal, and `constants` names the rule for the epsilon of a round, as in `StableSparseVector`.

    Guarantee: (epsilon, delta)-DP for all questions together.
    Proof:     that of `StableSparseVector`, with the function `distance`, which moves by at most 1 when one
               vote moves, under every relation.
    Assumes:   the counts are those of teachers on disjoint parts.
    """

    epsilon: Real
    delta: float
    failures: int
    queries: int
    constants: str | None = None

    def __post_init__(self) -> None:
        self._vector  # noqa: B018 - StableSparseVector checks all fields

    @classmethod
    def for_privacy(cls, epsilon: Real, delta: float, queries: int, *, failures: int) -> SparseVotes:
        """Return the better of two sparse vectors, with one threshold or with redrawn ones: the one that
        answers at a smaller distance."""
        both = [
            cls(epsilon=epsilon, delta=delta, failures=failures, queries=queries, constants=constants)
            for constants in (None, "optimal")
        ]
        return min(both, key=lambda votes: votes.threshold)

    @property
    def _vector(self) -> StableSparseVector:
        """The sparse vector whose checks, threshold and noise are used here. It reads no table, so its public
        facts are empty."""
        return StableSparseVector(
            public=Public(),
            epsilon=self.epsilon,
            delta=self.delta,
            failures=self.failures,
            questions=self.queries,
            constants=self.constants,
        )

    @property
    def threshold(self) -> int:
        """The distance at which a question is answered with probability of about one half."""
        return self._vector.threshold

    def lead(self, confidence: float, classes: int) -> int:
        """Return a lead in votes: if all questions have it, all are answered with probability
        `confidence`."""
        return 2 * (self._vector.error(confidence) + 1)

    def event(self, neighbors: Neighbors = ADD_REMOVE) -> Event:
        return ApproximateDP(epsilon=self.epsilon, delta=self.delta, neighbors=neighbors)

    def start(self, entropy: Entropy) -> State:
        vector = self._vector
        return {
            "asked": 0,
            "answered": 0,
            "secret": _fixed_digits(vector.threshold + draw(vector.scales[0], entropy)),
        }

    def label(
        self, state: State, counts: Counts, *, entropy: Entropy, prediction: Any = None
    ) -> tuple[State, Vote]:
        check_open(self, state)
        vector = self._vector
        passed = distance(counts) + draw(vector.scales[1], entropy) >= int(state["secret"])
        # A new threshold is drawn for every question, used or not, so that the time it takes reveals nothing.
        fresh = _fixed_digits(vector.threshold + draw(vector.scales[0], entropy))
        if not passed and self.constants is not None:
            state = {**state, "secret": fresh}
        return _answer_vote(state, counts, passed)


def _answer_vote(state: State, counts: Counts, passed: bool) -> tuple[State, Vote]:
    """Return the next state, and the plurality if the test was passed."""
    after = {**state, "asked": state["asked"] + 1, "answered": state["answered"] + int(passed)}
    return after, Vote(int(np.argmax(counts)) if passed else None)


def _fixed_digits(number: int) -> str:
    """Return a number as text of `_DIGITS` characters.

    A number of more than 23 digits is clamped; noise of a scale below 10^19 causes that with a probability
    below 2^-1000.
    """
    largest = 10 ** (_DIGITS - 1) - 1
    return f"{min(max(number, -largest), largest):+0{_DIGITS}d}"
