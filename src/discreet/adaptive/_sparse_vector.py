"""The sparse vector technique with thresholds that move, and a number released at each positive: what the
reusable holdout, leaderboards, multiplicative weights, PAPRIKA and change watches share.

A question arrives as two integers: by how much its exact value exceeds a public threshold, and the exact
number to be released if it does. The threshold may be another one each time, as long as it is a function of
what was released before.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from .. import sampling
from .._errors import Halted, InvalidInput
from ..mechanisms import arrow_columns, certified
from ..mechanisms.noise import add, draw
from ..sampling import Entropy

State = dict[str, Any]
_FOREIGN_STATE = "the state is not one that start() or answer() gave. Nothing was drawn or released."


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseVectorRounds:
    """Runs the sparse vector technique with thresholds that may move between questions.

    `threshold`, `query` and `value` are scales of noise in integer units; it halts for good after
    `max_positives` positives, c below. `redraws`: each positive gets a new noisy threshold, so that the
    positives are rounds in sequence. `value` None: no number is drawn, and a positive releases its gap.

    Guarantee: D, V: how far one unit moves the excess and the released number. With `redraws`: c rounds in
               sequence, each (D / threshold + k D / query + V / value)-DP. Without: (D / threshold + c (k D /
               query + V / value))-DP. k is 2, or 1 where one unit moves all excesses the same way.
    Proof:     that of `mechanisms.SparseVector` with scales in place of shares; nothing in it asks that the
               public part of the threshold be the same for all questions, only that it be fixed once the
               earlier answers are. The gap is part of it. A round ends at its positive, so with `redraws` it
               is a SparseVector with one positive.
    Assumes:   the state stays secret and is used once.
    """

    threshold: Fraction
    query: Fraction
    value: Fraction | None
    max_positives: int
    redraws: bool

    def price(self, sensitivity: int, answers: int, *, monotone: bool = False) -> Fraction:
        """Return the epsilon of one round, or of all together without `redraws`, exactly."""
        positives = 1 if self.redraws else self.max_positives
        positive_price = (1 if monotone else 2) * sensitivity / self.query + (
            0 if self.value is None else answers / self.value
        )
        return sensitivity / self.threshold + positives * positive_price

    def begin(self, entropy: Entropy) -> State:
        """Return the first state: the noise on the threshold, and nothing answered."""
        return {"noise": draw(self.threshold, entropy), "positives": 0, "asked": 0}

    def check(self, state: Any, questions: int | None) -> State:
        """Return the state, once it is known to be ours and not to have halted."""
        if not isinstance(state, dict) or not {"noise", "positives", "asked"} <= set(state):
            raise InvalidInput(_FOREIGN_STATE)
        if any(type(state[name]) is not int for name in ("noise", "positives", "asked")):
            raise InvalidInput(_FOREIGN_STATE)
        if state["positives"] >= self.max_positives:
            raise Halted(
                f"all {self.max_positives} positives were given, so this has halted for good. Nothing was "
                f"drawn or released. Buy a new one."
            )
        if questions is not None and state["asked"] >= questions:
            raise Halted(
                f"all {questions} declared questions were asked, so this has halted for good. "
                f"Nothing was drawn or released."
            )
        return state

    def one(
        self, state: State, excess: int, exact: int, entropy: Entropy
    ) -> tuple[State, int | None, int | None]:
        """Answer one question: return the new state; and of a positive its gap and its noisy number."""
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
        """Answer a list of questions fixed beforehand, one after the other; what comes after the halt is not
        answered.

        Returns the new state, which of the answered ones were positive, and the noisy numbers of these by
        position.
        """
        assert self.value is not None
        # in Python integers where 64 bits might wrap
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
        """Return a such that no noise on a threshold and on a comparison together reach beyond a, outside a
        chance of `failure`; half for each kind.

        The noise on each side counts: P(|X| >= m) = 2 P(X >= m) for discrete Laplace noise, m >= 1.
        """
        thresholds = self.max_positives if self.redraws else 1
        rho = certified.laplace_quantile(self.threshold, failure / (4 * thresholds)) - 1
        return rho + certified.laplace_quantile(self.query, failure / (4 * comparisons)) - 1

    def spread(self, failure: Fraction, numbers: int) -> int:
        """Return a such that none of `numbers` released values is further than a from the truth, outside a
        chance of `failure`."""
        assert self.value is not None
        return certified.laplace_quantile(self.value, failure / (2 * numbers)) - 1
