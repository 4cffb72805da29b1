"""Leaderboards that cannot be climbed by luck: only a real improvement is shown, through noise that makes the
board private.

Participants know the features of a test set, the board keeps the labels. On a plain board every score leaks
some labels, and hundreds of random submissions add up to a winning one (the boosting attack of Blum & Hardt
2015). These boards show a new best score only when it beats the last one by a step, compare and show with
noise, and halt after a declared number of improvements: that makes them differentially private, so what they
show is true of the population too. `ShakyLadder` shows a fresh noisy score; `SparseVectorBoard` reads it off
the comparison, free.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

from .. import _require, _round
from .._errors import InvalidInput
from .._public import REPLACE, Public
from .._registry import described
from .._require import Real
from ..accounting import Event, NoOp
from ..mechanisms import RedrawnSparseVector, SparseVector
from ..mechanisms.protocols import Release, check_source, release, require_columns
from ..sampling import Entropy
from ..tables import Source
from ._sparse_vector import SparseVectorRounds, State
from .generalization import Bound, best
from .submissions import Submission, check_columns, losses


@described("adaptive.Standing")
@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Holds what a board releases: the best accuracy so far, whether this submission improved it, how many
    improvements are left.

    `within`: with probability 0.95 all scores ever shown are this close to the best true accuracy among the
    submissions so far; None where the number of submissions was not declared.
    """

    score: float
    improved: bool
    left: int
    within: float | None = None


class _Board:
    """Shares what private boards have in common: the public bar, the state {"best": fewest errors shown, and
    that of `SparseVectorRounds`}, the error."""

    __slots__ = ()

    public: Public
    target: str
    id: str
    step: Real
    budget: int | None
    submissions: int | None

    @property
    def rounds(self) -> SparseVectorRounds:
        raise NotImplementedError

    def _check(self) -> None:
        check_columns(self.public, self.target, self.id)
        _require.open_probability(step=self.step)
        for name in ("budget", "submissions"):
            if getattr(self, name) is not None:
                _require.integer(**{name: getattr(self, name)}, at_least=1)
        if self.step * 10**6 < 1:
            raise _require.fail("step", self.step, "at least a millionth")
        # properties that refuse what they cannot compute
        self.size, self.rounds  # noqa: B018

    @property
    def size(self) -> int:
        """Return the declared number of rows; scores are counts divided by it."""
        return self.public.declared_size("a leaderboard")

    @property
    def improvements(self) -> int:
        """Return how many improvements are shown before it halts: the declared budget, or as many as fit
        between an accuracy of 0 and of 1.
        """
        return math.ceil(1 / _require.exact(self.step, "step")) if self.budget is None else self.budget

    @property
    def _margin(self) -> int:
        """Return the step in rows: by how many errors fewer a submission must be better."""
        return math.ceil(_require.exact(self.step, "step") * self.size)

    @property
    def _monotone(self) -> bool:
        """Return whether a row moves all errors the same way: it adds an error or none to every submission.
        A blank that is left out takes that away from all; one that is kept, without a label, counts as an
        error of all.

        Replacing does not.
        """
        return self.public.neighbors is not REPLACE

    def rehearse(self, source: Source) -> None:
        """Refuse an id column that is not there before anything is charged: no schema declares it."""
        require_columns(source, self.id)

    def start(self, source: Source, *, entropy: Entropy) -> State:
        """Start a board without submissions: the best is no better than all wrong."""
        check_source(self.public, source)
        return {**self.rounds.begin(entropy), "best": self.size}

    def answer(
        self, state: State, source: Source, question: Any, *, entropy: Entropy
    ) -> tuple[State, Release]:
        """Score one `Submission`."""
        before = self.rounds.check(state, self.submissions)
        if type(before.get("best")) is not int:
            raise InvalidInput(
                "the state is not one that start() or answer() gave. Nothing was drawn or released."
            )
        if not isinstance(question, Submission):
            raise _require.fail("a question to a leaderboard", type(question).__name__, "a Submission")
        question.codes(self.public, self.target)
        check_source(self.public, source)
        wrong = int(losses(source, question, self.target, self.id)[1].sum())
        bar = before["best"] - self._margin
        after, gap, noisy = self.rounds.one(before, bar - wrong, wrong, entropy)
        if gap is not None:
            after["best"] = min(max(bar - gap if noisy is None else noisy, 0), before["best"])
        value = Standing(
            score=1 - after["best"] / self.size,
            improved=gap is not None,
            left=self.improvements - after["positives"],
            within=None if self.submissions is None else self.generalization().radius,
        )
        event = NoOp(neighbors=self.public.neighbors)
        return after, release(
            value, event=event, entropy=entropy, error=None if self.submissions is None else self.error
        )

    def error(self, confidence: float = 0.95) -> float:
        """Return how far the shown score is from the best accuracy on the test set so far, at all times, with
        probability `confidence`.

        Proof: what was not shown had, but for the noise of threshold and comparison, no more than best -
               step; what was shown is off by its own noise, and the best shown only falls. Exact discrete
               tails, a union over all submissions.
        """
        _require.open_probability(confidence=confidence)
        return self._sample_error(1 - _require.exact(confidence, "confidence"))

    def _sample_error(self, failure: Fraction) -> float:
        if self.submissions is None:
            raise InvalidInput(
                "how far off the scores may be depends on how many there are: declare submissions=..."
            )
        missed = self._margin + self.rounds.noise_bound(failure / 2, self.submissions)
        shown = 0 if self.rounds.value is None else self.rounds.spread(failure / 2, self.improvements)
        return _round.up(Fraction(max(missed, shown), self.size))

    def generalization(self, confidence: float = 0.95) -> Bound:
        """Return how far the shown score is from the best true accuracy among the submissions so far: the
        least of all theorems.

        Proof: `generalization.best`. The worst violation picks one submission, from what was shown and the
               population alone: one that was shown too high, or one that was not shown though it is better;
               for each the test set says, but for the sample error, on which side of the shown score it lies.
        """
        return _generalization(self, float(confidence))


@lru_cache(maxsize=64)
def _generalization(board: Any, confidence: float) -> Bound:
    """Return the bound of `_Board.generalization`, cached."""

    def sample_error(beta: float) -> float:
        error: float = board._sample_error(_require.exact(beta, "failure"))
        return error

    return best(board.event, n=board.size, sample_error=sample_error, confidence=confidence)


@described("adaptive.ShakyLadder")
@dataclass(frozen=True, slots=True, kw_only=True)
class ShakyLadder(_Board):
    """Runs a leaderboard for (epsilon, delta): shows a noisy score when a submission beats the best one by
    `step`.

    `budget` improvements are shown, by default 1 / step. `submissions` declares how many come at most: then
    the error is known.

    Guarantee: (epsilon, delta)-DP for the labels of the test set; the event says more: rounds in sequence,
               each of them e0-DP.
    Proof:     the idea, a ladder that compares and shows with noise, is Hardt's (2017, arXiv:1706.02733);
               none of his scales is used. Price and scales are those of `RedrawnSparseVector` with numbers:
               the bar, best - step, is a function of what was shown, a row moves the number of wrong
               predictions by at most 1, `SparseVectorRounds` for bars that move. Under add_remove and
               zero_out all submissions move the same way, which halves the noise of the comparison.
               `tests/adaptive/test_constants.py` has the distribution of all that is shown on two rows, by
               every value of the noise.
    Assumes:   predictions are made without looking at the labels, except through the board. For `within`: the
               rows are independent draws from one population, and the declared size is their number.
    """

    public: Public
    target: str
    id: str
    epsilon: Real
    delta: float
    step: Real = Fraction(1, 100)
    budget: int | None = None
    submissions: int | None = None

    def __post_init__(self) -> None:
        self._check()

    @property
    def _vector(self) -> RedrawnSparseVector:
        return RedrawnSparseVector(
            public=self.public,
            threshold=0,
            epsilon=self.epsilon,
            delta=self.delta,
            positives=self.improvements,
            monotone=self._monotone,
            numeric=True,
        )

    @property
    def rounds(self) -> SparseVectorRounds:
        threshold, query, value = self._vector.scales
        return SparseVectorRounds(
            threshold=threshold, query=query, value=value, max_positives=self.improvements, redraws=True
        )

    @property
    def event(self) -> Event:
        return self._vector.event


@described("adaptive.SparseVectorBoard")
@dataclass(frozen=True, slots=True, kw_only=True)
class SparseVectorBoard(_Board):
    """Runs a leaderboard for pure epsilon: the score of an improvement is read off the comparison that
    detected it, at no further price.

    Guarantee: epsilon-DP for the labels of the test set.
    Proof:     `SparseVector` with gap: one noisy threshold throughout, shares of epsilon as 1 : (2c)^(2/3),
               or 1 : c^(2/3) where all submissions move the same way (Lyu, Su & Li 2017, arXiv:1603.01699);
               the gap is free (Ding, Wang, Zhang & Kifer 2019, arXiv:1904.12773). The bar moves with what was
               shown: `SparseVectorRounds`. The shown score is bar - gap: wrong predictions, less the noise of
               the comparison, plus that of the threshold.
    Assumes:   as `ShakyLadder`.
    """

    public: Public
    target: str
    id: str
    epsilon: Real
    step: Real = Fraction(1, 100)
    budget: int | None = None
    submissions: int | None = None

    def __post_init__(self) -> None:
        self._check()

    @property
    def _vector(self) -> SparseVector:
        return SparseVector(
            public=self.public,
            threshold=0,
            epsilon=self.epsilon,
            positives=self.improvements,
            monotone=self._monotone,
            gap=True,
        )

    @property
    def rounds(self) -> SparseVectorRounds:
        threshold, query, _ = self._vector.scales
        return SparseVectorRounds(
            threshold=threshold, query=query, value=None, max_positives=self.improvements, redraws=False
        )

    @property
    def event(self) -> Event:
        return self._vector.event
