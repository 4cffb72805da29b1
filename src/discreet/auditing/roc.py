"""Computes ROC curves of membership inference, with exact limits: how well an attack tells members from
others, above all where false positives are rare.

An average says little: an attack that guesses at random for most people and is certain about a few is a
catastrophe for these few. So look at the true-positive rate (TPR) where the false-positive rate (FPR) is
small (Carlini et al. 2022, arXiv:2112.03570).

>>> roc = Roc.of([3.0, 2.5, 0.1, 2.0], [0.0, 0.2, 2.1, -1.0])
>>> roc.auc, roc.tpr_at(0.25)
(0.8125, 0.75)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _require
from .._errors import InvalidInput
from .outputs import floats
from .rates import Guesses, fresh_order, lower_limit, upper_limit

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operating:
    """Holds one operating point: one threshold of an attack, with its counts, and exact (lower, upper) limits
    of its rates.
    """

    threshold: float
    guesses: Guesses
    tpr: tuple[float, float]
    fpr: tuple[float, float]
    confidence: float

    def above(self, epsilon: float, delta: float = 0.0) -> bool:
        """Return whether TPR <= e^epsilon FPR + delta is contradicted: by the lower limit of the one and the
        upper limit of the other."""
        _require.non_negative(epsilon=epsilon)
        _require.probability(delta=delta)
        # Beyond e^700 nothing is contradicted: the upper limit of a rate is never so small.
        return bool(self.tpr[0] > math.exp(min(float(epsilon), 700.0)) * self.fpr[1] + delta)


@dataclass(frozen=True, eq=False)
class Roc:
    """Holds scores of members and of others, larger where the attack believes in a member.

    Guarantee: limits hold with their confidence for each point by itself, for scores that are independent of
               each other.
    Proof:     Clopper & Pearson 1934.
    Assumes:   independence. Scores of many examples on *one* model are not quite independent: they describe
               this model. For a bound on its epsilon that needs no independence, include each example by
               the toss of a fair coin, and give the numbers of examples, of guesses and of right guesses to
               `one_run_epsilon`.
    """

    members: Floats
    others: Floats

    @classmethod
    def of(cls, members: Any, others: Any) -> Roc:
        scores = [np.asarray(x, dtype=float).ravel() for x in (members, others)]
        for x in scores:
            if not len(x) or np.isnan(x).any():
                raise InvalidInput("a ROC curve needs scores of members and of others, and none may be NaN.")
        return cls(*scores)

    @classmethod
    def from_labels(cls, scores: Any, included: Any) -> Roc:
        """Return the curve of one list of scores; `included` says for each whether it is a member's."""
        values, truth = floats(scores=scores).ravel(), np.asarray(included, dtype=bool).ravel()
        if len(values) != len(truth):
            raise InvalidInput(f"{len(values)} scores for {len(truth)} examples. Nothing was computed.")
        return cls.of(values[truth], values[~truth])

    def _counts(self, thresholds: Floats) -> tuple[Any, Any]:
        """Return how many members and how many others have at least these scores."""
        hits, false_hits = (
            len(x) - np.searchsorted(np.sort(x), thresholds, side="left") for x in (self.members, self.others)
        )
        return hits, false_hits

    def curve(self) -> tuple[Floats, Floats]:
        """Return (FPR, TPR) at every threshold, from (0, 0) to (1, 1)."""
        thresholds = np.concatenate([[np.inf], np.unique(np.concatenate([self.members, self.others]))[::-1]])
        hits, false_hits = self._counts(thresholds)
        return false_hits / len(self.others), hits / len(self.members)

    @property
    def auc(self) -> float:
        """Return the probability that a member scores above a non-member, ties counting half."""
        others = np.sort(self.others)
        below = np.searchsorted(others, self.members, side="left")
        not_above = np.searchsorted(others, self.members, side="right")
        return float((below + not_above).mean() / (2 * len(self.others)))

    @property
    def advantage(self) -> float:
        """Return the largest TPR - FPR (Yeom et al. 2018, arXiv:1709.01604, Definition 4, at the best
        threshold).
        """
        fpr, tpr = self.curve()
        return float((tpr - fpr).max())

    def tpr_at(self, fpr: float) -> float:
        """Return the observed TPR at the best threshold whose observed FPR is at most `fpr`."""
        _require.probability(fpr=fpr)
        observed_fpr, tpr = self.curve()
        return float(tpr[observed_fpr <= fpr].max())

    def band(self, confidence: float = 0.95) -> tuple[Floats, Floats, Floats]:
        """Return (FPR, TPR at least, TPR at most) at every threshold: two-sided limits of each point by
        itself."""
        _require.open_probability(confidence=confidence)
        fpr, tpr = self.curve()
        n, level = len(self.members), (1 - confidence) / 2
        return fpr, np.asarray(lower_limit(tpr * n, n, level)), np.asarray(upper_limit(tpr * n, n, level))

    def at(self, fpr: float, *, confidence: float = 0.95) -> Operating:
        """Return the threshold for this FPR, and its rates with exact limits; all four hold together with the
        confidence.

        The threshold is chosen on half of the non-members' scores and measured on the other half, so that
        the limits hold although it was chosen. The halves are drawn anew at each call: the limits hold for
        scores in any order, and two calls differ a little.
        """
        _require.probability(fpr=fpr)
        _require.open_probability(confidence=confidence)
        members, others = self.members, self.others[fresh_order(len(self.others))]
        if len(others) < 2:
            raise InvalidInput(
                "at least two non-members are needed: one half chooses the threshold, the other measures."
            )
        choosing = np.sort(others[::2])
        allowed = int(np.floor(fpr * len(choosing)))
        # The next float above the largest score that must stay below the threshold: `>=` counts as a guess.
        threshold = (
            float(np.nextafter(choosing[len(choosing) - allowed - 1], np.inf))
            if allowed < len(choosing)
            else -np.inf
        )
        # The members' scores choose nothing, so that all of them measure.
        others = others[1::2]
        hits, false_hits = int((members >= threshold).sum()), int((others >= threshold).sum())
        # Union bound over the four limits.
        level = (1 - confidence) / 4
        rates = [
            (float(lower_limit(k, n, level)), float(upper_limit(k, n, level)))
            for k, n in ((hits, len(members)), (false_hits, len(others)))
        ]
        guesses = Guesses(hits=hits, first=len(members), false_hits=false_hits, second=len(others))
        return Operating(
            threshold=threshold, guesses=guesses, tpr=rates[0], fpr=rates[1], confidence=confidence
        )

    def __repr__(self) -> str:
        return (
            f"Roc({len(self.members)} members, {len(self.others)} others: AUC {self.auc:.3f}, "
            f"TPR {self.tpr_at(0.01):.3f} at 1% FPR)"
        )
