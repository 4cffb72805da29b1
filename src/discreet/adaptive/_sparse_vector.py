"""Defines the sparse vector technique with a public threshold that may differ from question to question, and
with a number released at each positive. The reusable holdout, leaderboards, PAPRIKA and change watches are
built on it.

A question arrives as two integers: its `excess`, by how much its exact value exceeds its public threshold,
and the exact number to be released with noise if the noisy excess passes (a positive). The threshold of each
question must be a function of what was released before.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from .. import sampling
from .._errors import Halted, InvalidInput
from ..mechanisms import arrow_columns
from ..mechanisms.noise import add, draw, laplace_quantile
from ..sampling import Entropy

State = dict[str, Any]
_FOREIGN_STATE = "the state is not one that start() or answer() gave."


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseVectorRounds:
    """Runs the sparse vector technique with a public threshold that may differ from question to question.

    `threshold`, `query` and `value` are the scales of the discrete Laplace noise on the threshold, on each
    comparison and on each released number, in the integer units of the question. The mechanism halts for good
    after `max_positives` positives, c below. With `redraws` the noise on the threshold is drawn anew after
    each positive, so that the questions up to and with each positive are a round, and the rounds run in
    sequence. With `value` None no number is drawn, and a positive may release its gap: how far the noisy
    excess lies above the noise on the threshold.

    Guarantee: let one unit move the excess by at most D and the exact number by at most V. With `redraws`: c
               rounds in sequence, each (D / threshold + k D / query + V / value)-DP. Without: (D / threshold
               + c (k D / query + V / value))-DP. k is 2, or 1 where one unit moves all excesses the same way.
               With `value` None the summand V / value is 0.
    Proof:     that of `mechanisms.SparseVector`, with scales in place of shares of epsilon. The threshold
               need not be the same for all questions: that proof needs only that it is a function of the
               earlier answers. It covers the gap. A round ends at its positive, so with `redraws` it is a
               SparseVector with one positive.
    Assumes:   the state stays secret, and each state is used for one question only.
    """

    threshold: Fraction
    query: Fraction
    value: Fraction | None
    max_positives: int
    redraws: bool

    def price(self, sensitivity: int, answers: int, *, monotone: bool = False) -> Fraction:
        """Return the epsilon of one round, or without `redraws` of all questions together, as an exact
        fraction. `sensitivity` is D and `answers` is V of the guarantee; `monotone` makes k 1."""
        positives = 1 if self.redraws else self.max_positives
        positive_price = (1 if monotone else 2) * sensitivity / self.query + (
            0 if self.value is None else answers / self.value
        )
        return sensitivity / self.threshold + positives * positive_price

    def begin(self, entropy: Entropy) -> State:
        """Return the first state: the noise on the threshold, and counts of zero. The names in it are stored
        in ledgers and must not change."""
        return {"noise": draw(self.threshold, entropy), "positives": 0, "asked": 0}

    def check(self, state: Any, questions: int | None) -> State:
        """Return the state unchanged. InvalidInput unless it is a state of this class; Halted where all
        positives, or all declared `questions` (None: no limit), are used up."""
        if not isinstance(state, dict) or not {"noise", "positives", "asked"} <= set(state):
            raise InvalidInput(_FOREIGN_STATE)
        if any(type(state[name]) is not int for name in ("noise", "positives", "asked")):
            raise InvalidInput(_FOREIGN_STATE)
        if state["positives"] >= self.max_positives:
            raise Halted(
                f"all {self.max_positives} positives were given, so this mechanism has halted for good. "
                "Start a new one."
            )
        if questions is not None and state["asked"] >= questions:
            raise Halted(
                f"all {questions} declared questions were asked, so this mechanism has halted for good. "
                "Start a new one."
            )
        return state

    def one(
        self, state: State, excess: int, exact: int, entropy: Entropy
    ) -> tuple[State, int | None, int | None]:
        """Answer one question: return the new state, and for a positive its gap and its noisy number (None
        without `value`); both are None for a negative."""
        gap = excess + draw(self.query, entropy) - state["noise"]
        after = {**state, "asked": state["asked"] + 1}
        if gap < 0:
            return after, None, None
        after["positives"] += 1
        if self.redraws:
            after["noise"] = draw(self.threshold, entropy)
        return after, gap, None if self.value is None else exact + draw(self.value, entropy)

    def many(
        self, state: State, excess: Any, exact: Any, entropy: Entropy
    ) -> tuple[State, Any, dict[int, int]]:
        """Answer a list of questions fixed beforehand, one after the other; questions after the halt are not
        answered.

        Returns the new state; for each answered question whether it was positive; and the noisy numbers of
        the positives by position.
        """
        assert self.value is not None
        # `as_integers` takes Python integers where 64 bits might overflow
        exact_excess = arrow_columns.as_integers([int(value) for value in excess])
        noisy = add(exact_excess, sampling.discrete_laplace(self.query, len(excess), entropy))
        above, answers, noise, start = np.zeros(len(noisy), bool), {}, state["noise"], 0
        left = self.max_positives - state["positives"]
        while left and start < len(noisy):
            positions = np.flatnonzero(noisy[start:] >= noise)
            if not len(positions):
                start = len(noisy)
                break
            position, start = start + int(positions[0]), start + int(positions[0]) + 1
            above[position], left = True, left - 1
            answers[position] = int(exact[position]) + draw(self.value, entropy)
            if self.redraws:
                noise = draw(self.threshold, entropy)
        after = {
            **state,
            "noise": noise,
            "positives": self.max_positives - left,
            "asked": state["asked"] + start,
        }
        return after, above[:start], answers

    def noise_bound(self, failure: Fraction, comparisons: int) -> int:
        """Return a bound a: with probability at least 1 - failure, |noise on the threshold| + |noise on the
        comparison| <= a for every one of `comparisons` questions.

        Half of `failure` is for each of the two kinds of noise, divided by a union bound among its draws, and
        by 2 for the two signs: P(|X| >= m) = 2 P(X >= m) for discrete Laplace noise X and m >= 1.
        """
        thresholds = self.max_positives if self.redraws else 1
        threshold_bound = laplace_quantile(self.threshold, failure / (4 * thresholds)) - 1
        return threshold_bound + laplace_quantile(self.query, failure / (4 * comparisons)) - 1

    def spread(self, failure: Fraction, numbers: int) -> int:
        """Return a bound a: with probability at least 1 - failure, none of `numbers` released numbers is
        further than a from its exact value."""
        assert self.value is not None
        return laplace_quantile(self.value, failure / (2 * numbers)) - 1
