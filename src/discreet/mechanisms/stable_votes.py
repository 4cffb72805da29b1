"""Labellers that release the exact plurality of teachers' votes where it is stable, and nothing otherwise.

The distance to instability of a plurality is how many teachers would have to change their vote before another
class could win. Bassily, Thakkar & Thakurta 2018, arXiv:1803.05101: M_stab tests it for every question and
pays for each; M_samp does so for teachers on subsamples that overlap; M_svec, a sparse vector over distances,
pays only for the unstable ones, so that thousands of questions cost a few.
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

# Digits of the secret number in a state: as many for every value, as its length can be seen.
_DIGITS = 24


def distance(counts: Counts) -> int:
    """Return how many votes can surely move before the plurality changes; 0 where one may change it.

    Guarantee: moves by at most 1 when one vote moves, and is 0 on both sides of a change of the plurality.
    Proof:     `StableMode` with replaced rows: another class takes over once its difference to the first has
               grown by g = n_i - n_j, plus 1 where it is declared after; one moved vote grows it by at most
               2. So ceil(g/2) votes are needed, and distance is one less.
    """
    winner = int(np.argmax(counts))
    missing = counts[winner] - counts + (np.arange(len(counts)) > winner)
    needed = int(np.min(np.delete(missing, winner)))
    return (needed + 1) // 2 - 1


@described("mechanisms.StableVotes")
@dataclass(frozen=True, slots=True, kw_only=True)
class StableVotes:
    """Answers with the exact plurality if its distance to instability passes a noisy test, else refuses; each
    question pays (M_stab).

    `scale` is that of the discrete Laplace noise on a distance, 1/epsilon of one question; `failure` its
    delta.

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
        for tests that pass by chance, half for composition."""
        check_budget(epsilon, delta)
        _require.integer(queries=queries, at_least=1)
        failure = delta / (2 * queries)

        def build(scale: float) -> StableVotes:
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
        """Return the lead in votes at which a question is answered, exactly, with this probability."""
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
    each question pays (M_samp).

    Every unit is given to `overlap` of the teachers, drawn at random for it alone: teachers see more data,
    and a plurality must lead by as many times more. `scale` and `failure` as of `StableVotes`.

    Guarantee: one question is `Thresholded(DiscreteLaplace(scale), failure)`, so (1/scale, failure)-DP.
    Proof:     one unit moves at most `overlap` = m votes, so `distance` by at most m, and floor(distance / m)
               by at most 1. Where m votes can change the plurality, distance is at most m - 1 on both sides,
               and the quotient 0. So the quotient has what the proof of `StableVotes` asks of a distance.
               Smith & Thakurta 2013 draw a coin for each unit and subsample, and refuse where a unit is in
               too many (`SubsampleAggregateStable`); that a unit is in a fixed number of them needs no such
               refusal, and no part of delta for it.
    Assumes:   the counts are those of teachers of which each unit reaches at most `overlap`.
    """

    scale: Real
    failure: float
    queries: int
    overlap: int

    def __post_init__(self) -> None:
        self._stable  # noqa: B018 - checks the rest
        _require.integer(overlap=self.overlap, at_least=1)

    @classmethod
    def for_privacy(cls, epsilon: float, delta: float, queries: int, *, overlap: int) -> SampledVotes:
        """Return the least noise with which `queries` questions cost at most (epsilon, delta)."""
        bought = StableVotes.for_privacy(epsilon, delta, queries)
        return cls(scale=bought.scale, failure=bought.failure, queries=queries, overlap=overlap)

    @property
    def _stable(self) -> StableVotes:
        return StableVotes(scale=self.scale, failure=self.failure, queries=self.queries)

    @property
    def reach(self) -> int:
        """The noisy quotient that passes: noise alone gets there with probability at most `failure`."""
        return self._stable.reach

    def lead(self, confidence: float, classes: int) -> int:
        """Return the lead in votes at which a question is answered, exactly, with this probability."""
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
    """Answers with the exact plurality of stable questions, free; refuses unstable ones, and halts at the
    `failures`-th (M_svec).

    Guarantee: (epsilon, delta)-DP for all questions together.
    Proof:     `StableSparseVector`, of which this is the case of votes: `distance` moves by at most 1 when
               one vote moves, under every relation.
    Assumes:   the counts are those of teachers on disjoint parts.
    """

    epsilon: Real
    delta: float
    failures: int
    queries: int
    constants: str | None = None

    def __post_init__(self) -> None:
        self._vector  # noqa: B018 - checks everything

    @classmethod
    def for_privacy(cls, epsilon: Real, delta: float, queries: int, *, failures: int) -> SparseVotes:
        """Return the sparse vector, of one threshold or of redrawn ones, that releases an answer at the
        smaller distance."""
        both = [
            cls(epsilon=epsilon, delta=delta, failures=failures, queries=queries, constants=constants)
            for constants in (None, "optimal")
        ]
        return min(both, key=lambda votes: votes.threshold)

    @property
    def _vector(self) -> StableSparseVector:
        """Return the sparse vector that decides which votes are stable."""
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
        """The distance that is answered about half of the time."""
        return self._vector.threshold

    def lead(self, confidence: float, classes: int) -> int:
        """Return the lead in votes such that if all questions have it, all are answered with this
        probability."""
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
        # Drawn for every question and used where one is due, so that the time it takes tells nothing.
        fresh = _fixed_digits(vector.threshold + draw(vector.scales[0], entropy))
        if not passed and self.constants is not None:
            state = {**state, "secret": fresh}
        return _answer_vote(state, counts, passed)


def _answer_vote(state: State, counts: Counts, passed: bool) -> tuple[State, Vote]:
    after = {**state, "asked": state["asked"] + 1, "answered": state["answered"] + int(passed)}
    return after, Vote(int(np.argmax(counts)) if passed else None)


def _fixed_digits(number: int) -> str:
    """Return a number in as many digits as any other.

    Noise beyond 23 digits has a chance below 2^-1000 at scales below 10^19; it is cut there.
    """
    largest = 10 ** (_DIGITS - 1) - 1
    return f"{min(max(number, -largest), largest):+0{_DIGITS}d}"
