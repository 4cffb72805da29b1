"""Private online control of the false discovery rate: hypotheses about one table are tested one after
another, and at most `rejections` (c) of them are rejected.

After Zhang, Kamath & Cummings 2020 (PAPRIKA, arXiv:2002.12321): a procedure of online control (`discovery`)
sets the level of each test, and the sparse vector technique decides whether the evidence against the null
hypothesis passes. Only rejections use up the budget.

Where we differ from the paper, and why (its constants are those of the authors' own code,
github.com/wanrongz/PAPRIKA):

* Levels are functions of released decisions only. The paper's levels count candidates: exact p-values below
  twice the level (or a constant). One person can move all p-values, and with them the levels, without limit:
  `tests/adaptive/test_paprika.py` has a table on which that breaks every epsilon. So SAFFRON is
  refused here, and `AlphaInvesting`, whose candidates are the rejected hypotheses, is the default.
* The threshold is a value that a true null passes with probability at most the level, *noise included*,
  computed from the distributions of the statistic and of the noise. The paper lowers the level by a fixed
  amount instead, A = f eta c ln(2 / (3 m)) / epsilon with m = min(delta, 1 - ((1 - delta) / e^epsilon)^(1/k))
  for k tests, and a factor f from 0.5 to 2 (eta is explained at `score` below).
* Without `delta` the noise on the threshold is drawn once for all tests, which leaves a larger share of
  epsilon for each test (`redraw`); the paper draws it anew after each rejection.
* The evidence may be the statistic itself (`score="statistic"`), which one person moves by the same amount
  everywhere. The paper's evidence is the logarithm of the p-value (`score="log p"`), which one person moves
  by at most eta; that needs p-values bounded below by `floor`, and more noise. The authors take eta = sqrt(ln
  n / n) for n people; here it is checked how far a p-value really moves.
* It halts after exactly `rejections`; the authors' simulation allows one more.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from .. import _require
from .._errors import InvalidInput, Unsupported
from .._public import ADD_REMOVE, PUBLIC, ZERO_OUT, Public, require_relation
from .._registry import described
from .._require import OPEN_PROBABILITY, POSITIVE, Real, among, at_least
from ..accounting import Event, PureDP
from ..mechanisms import SparseVector, noise, sparse_vector
from ..mechanisms.protocols import Answered, check_source
from ..mechanisms.sparse_vector import (
    NOISE,
    Comparing,
    Positives,
    SparseVectorRounds,
    declared,
    moves_up,
    number,
)
from ..mechanisms.stability import check_budget, failure_of
from ..sampling import Entropy
from ..tables import Source
from .discovery import AlphaInvesting, GeneralizedAlphaInvesting, Lord3, LordPlusPlus
from .hypotheses import Hypothesis, NullLaw, OneLaplace, TwoLaplaces, critical, log_pvalues, under_null

Procedure = AlphaInvesting | LordPlusPlus | Lord3 | GeneralizedAlphaInvesting
State = dict[str, Any]
# The logarithm of a p-value is rounded to multiples of 1 / GRID; the sensitivity includes this rounding. The
# value was chosen by hand, not tuned. It must stay: the noise in stored states is in these units.
GRID = 1024
# Used in place of a level of zero, for which there is no finite threshold; practically nothing passes.
_SMALLEST_LEVEL = 1e-300
_DEFAULT = AlphaInvesting(alpha=0.05)


@described("adaptive.Decision")
class Decision:
    """Says whether a hypothesis was rejected, and the level at which it was tested."""

    rejected: bool
    level: float


@described("adaptive.Paprika")
class Paprika(Comparing):
    """Tests hypotheses one after another; halts for good when `rejections` (c) of them are rejected.

    `sensitivity` is how far one person may move a statistic (1 for counts); `eta` is how far one person may
    move the logarithm of a p-value, for score="log p". With `delta` each rejection ends a round with its own
    noise on the threshold, and rounds are priced by the best composition theorem
    (`sparse_vector.round_epsilon`): for many rejections the noise grows with their square root. Without
    `delta` one noisy threshold serves for all tests, unless `redraw` is True: then it is drawn anew after
    each rejection. `monotone` halves the noise on each test; it is for statistics that are counts, or sums of
    values that are never negative, all with the alternative "greater". `paper` takes the paper's scales, 2
    eta c / epsilon for the threshold and 4 eta c / epsilon for each test, and draws the threshold anew.
    `questions` is needed for `error` only; if it is given, the mechanism halts after so many tests.

    Guarantee: epsilon-DP, or (epsilon, delta)-DP; at most `rejections` are rejected. With redrawn thresholds
               the event is more precise: `rejections` rounds, each e0-DP with the same e0.
    Proof:     the sparse vector technique (`SparseVectorRounds`), with one positive per round
               where thresholds are redrawn. Thresholds are functions of the level and of the null
               distribution; both are public given the earlier decisions. One person moves the evidence by at
               most `grid_sensitivity`: the sensitivity itself, or, for log p on a grid, `eta` (checked for
               each question over the distribution's complete range). Rounds run in sequence: their epsilons
               add up, or compose by `sparse_vector.round_epsilon`. The paper's own theorem is not used.
    Assumes:   the statistics' sensitivities are right; the state stays secret, and each state is used for one
               question only.

    False discoveries: mFDR, the marginal false discovery rate E[V] / E[max(R, 1)], with R the number of
    hypotheses that are rejected and V the number of true nulls among them, is at most the procedure's alpha,
    if statistics of true nulls follow their null distribution independently of the tests before.
    Proof:     in full in docs/adaptive.md ("False discoveries"). With redrawn thresholds: within a round all
               tests share the noise Z on the threshold. Given Z, a true null is rejected with a probability
               that decreases in Z. That earlier tests of the round were not rejected makes large Z more
               likely, so the conditional probability of rejection is at most that for a fresh Z, which is at
               most the level by `critical`. That is all that mFDR control needs. With one threshold for all
               tests a rejection makes small Z more likely. So thresholds are computed as if Z were a fixed
               value z, below which it falls with probability at most s alpha (1 - alpha) / c, and at (1 - s)
               times the level, with a share s in (0, 1). If Z is at least z, the mFDR is at most (1 - s)
               alpha; otherwise there are at most c false discoveries, which adds less than s alpha.
    """

    public: Annotated[Public, PUBLIC]
    epsilon: Annotated[Real, POSITIVE]
    rejections: Positives
    delta: float | None = None
    procedure: Procedure = _DEFAULT
    sensitivity: Annotated[int, at_least(1)] = 1
    score: Annotated[str, among(("statistic", "log p"))] = "statistic"
    eta: Annotated[float, POSITIVE] | None = None
    floor: Annotated[float, OPEN_PROBABILITY] = 1e-6
    monotone: bool = False
    paper: bool = False
    redraw: bool | None = None
    questions: Annotated[int, at_least(1)] | None = None

    def __post_init__(self) -> None:
        if self.delta is not None:
            check_budget(self.epsilon, self.delta)
        if not isinstance(self.procedure, Procedure):
            raise Unsupported(
                f"{type(self.procedure).__name__} sets its levels from exact p-values, or is no procedure: "
                "with it nothing would be private. Use AlphaInvesting, LordPlusPlus, Lord3 or "
                "GeneralizedAlphaInvesting, which look at decisions alone."
            )
        _require.that(
            not (self.redraw is False and (self.paper or self.delta is not None)),
            "with `delta` and with `paper` the threshold is always drawn anew, so redraw=False is "
            "not possible. Leave redraw out.",
        )
        _require.that(
            (self.score == "log p") == (self.eta is not None),
            "eta, how far one person moves the logarithm of a p-value, goes with score='log p', and is "
            "needed there.",
        )
        if self.monotone:
            require_relation(
                self.public.neighbors,
                ADD_REMOVE,
                ZERO_OUT,
                what="that all questions move the same way (monotone)",
            )
            _require.that(not self.paper, "the paper's scales have no monotone variant. Use paper=False.")

    @property
    def redraws(self) -> bool:
        """Return whether each rejection is followed by a new noisy threshold."""
        return (self.paper or self.delta is not None) if self.redraw is None else self.redraw

    @property
    def round_epsilon(self) -> Fraction:
        """Return the epsilon of one round, or of all tests together where the threshold is not redrawn."""
        if self.delta is None:
            return _require.exact(self.epsilon, "epsilon") / (self.rejections if self.redraws else 1)
        return sparse_vector.round_epsilon(self.epsilon, self.delta, self.rejections)

    @property
    def event(self) -> Event:
        round_event = PureDP(epsilon=self.round_epsilon, neighbors=self.public.neighbors)
        return round_event.repeated(self.rejections) if self.redraws else round_event

    @property
    def grid_sensitivity(self) -> int:
        """Return how far one person moves the evidence, in the units of the statistic or of 1 / GRID."""
        return self.sensitivity if self.eta is None else math.ceil(_require.exact(self.eta, "eta") * GRID)

    @property
    def rounds(self) -> SparseVectorRounds:
        """Return the rounds of the sparse vector technique, with their noise scales. Threshold and tests
        share epsilon 1 : 1 in the paper, nearly 1 : 1 in a monotone round, and else as `SparseVector` does by
        default.
        """
        # not exactly 1 : 1, because that would make the two scales equal, which `TwoLaplaces` cannot handle
        nearly_equal = (499, 501) if self.monotone and self.redraws else None
        vector = SparseVector(
            public=self.public,
            threshold=0,
            epsilon=self.round_epsilon,
            positives=1 if self.redraws else self.rejections,
            sensitivity=self.grid_sensitivity,
            monotone=self.monotone,
            split=(1, 1) if self.paper else nearly_equal,
        )
        return replace(vector.rounds, max_positives=self.rejections, redraws=self.redraws, names=NOISE)

    def start(self, source: Source, *, entropy: Entropy) -> State:
        """Draw the first noisy threshold. No data is read."""
        return {**Comparing.start(self, source, entropy=entropy), "levels": self.procedure.start().saved()}

    def answer(self, state: State, source: Source, question: Any, *, entropy: Entropy) -> Answered:
        """Test one `Hypothesis`. It costs nothing more: everything was paid at the start."""
        rounds = self.rounds
        before = rounds.check(state, self.questions, "levels")
        levels = self.procedure.restored(before["levels"])
        self._check_question(question)
        check_source(self.public, source)
        level = levels.level
        evidence, threshold = self._evidence_and_threshold(question, level)
        after, gap, _ = rounds.one(
            before, evidence(number(question.statistic(source))) - threshold, 0, entropy
        )
        # only a positive, which is a rejection, has a gap
        is_rejected = gap is not None
        levels.record(is_rejected)
        after["levels"] = levels.saved()
        return after, self.paid(Decision(rejected=is_rejected, level=level), entropy)

    def _check_question(self, question: Any) -> None:
        kind, fits = type(question).__name__, isinstance(question, Hypothesis)
        _require.that(fits, f"a question must be a Hypothesis, got {kind}.")
        question.check(self.public, self.sensitivity)
        if self.monotone and not (question.sign == 1 and moves_up(question.statistic, self.public)):
            raise Unsupported(
                "with monotone=True this mechanism was priced for statistics that a person can only add to, "
                "with the alternative 'greater', and this hypothesis is not known to be of that kind. Use "
                "monotone=False."
            )

    def _evidence_and_threshold(self, question: Hypothesis, level: float) -> tuple[Callable[[int], int], int]:
        """Return the evidence as a function of the statistic, and the threshold that a true null passes with
        probability at most `level`."""
        scores, low = _scores(question.null, question.sign, self.floor if self.eta is not None else None)
        if self.eta is not None:
            self._check_eta(scores)
        sign, last = question.sign, len(scores) - 1

        def evidence(statistic: int) -> int:
            if self.eta is None:
                return sign * statistic
            return int(scores[min(max(sign * statistic - low, 0), last)])

        floor = None if self.eta is None else self.floor
        scales = self.rounds.threshold, self.rounds.query
        alpha = None if self.redraws else float(self.procedure.alpha)
        return evidence, _threshold(
            question.null, sign, floor, scales, max(level, _SMALLEST_LEVEL), alpha, self.rejections
        )

    def _check_eta(self, scores: NDArray[np.int64]) -> None:
        """Refuse a null distribution whose evidence one person can move by more than `eta`. Scores do not
        decrease, so a change of the statistic by exactly `reach` moves them most."""
        reach = min(self.sensitivity, len(scores) - 1)
        largest_change = int(np.max(scores[reach:] - scores[:-reach], initial=0)) if reach else 0
        if largest_change > self.grid_sensitivity:
            raise InvalidInput(
                f"one person moves the logarithm of this p-value by up to {largest_change / GRID:.4g}, and "
                f"this mechanism was priced for eta={self.eta!r}. Give a larger eta, or a larger floor."
            )

    def error(self, confidence: float = 0.95) -> int:
        """Return a bound a: with probability `confidence`, every rejected hypothesis had evidence of at least
        its threshold - a, and every other one evidence below its threshold + a."""
        return self.rounds.noise_bound(failure_of(confidence), declared(self.questions))


@lru_cache(maxsize=256)
def _scores(null: NullLaw, sign: int, floor: float | None) -> tuple[NDArray[np.int64], int]:
    """Return the evidence at each value of sign times the statistic, and the smallest value of sign times the
    statistic. With `floor` None the evidence is the value itself, else -ln(p-value) in units of 1 / GRID,
    where p-values below `floor` are raised to it."""
    values, masses = under_null(null, sign)
    if floor is None:
        return values, int(values[0])
    return np.floor(-log_pvalues(masses, math.log(floor)) * GRID).astype(np.int64), int(values[0])


@lru_cache(maxsize=4096)
def _threshold(
    null: NullLaw,
    sign: int,
    floor: float | None,
    scales: tuple[Fraction, Fraction],
    level: float,
    alpha: float | None,
    rejections: int,
) -> int:
    """Return the threshold that a true null passes with probability at most `level`.

    `scales` are those of the noise on the threshold and on each test. `alpha` is None where each round has
    its own noise on the threshold. In the proof of `Paprika`, s is `share` below, c is `rejections`, and z is
    -`depth`."""
    evidence, masses = _scores(null, sign, floor)[0], under_null(null, sign)[1]
    threshold_scale, test_scale = (float(scale) for scale in scales)
    if alpha is None:
        return critical(evidence, masses, TwoLaplaces(first=threshold_scale, second=test_scale), level)
    # Every share in (0, 1) is valid; this one follows the two scales as a rule of thumb.
    share = threshold_scale / (threshold_scale + test_scale)
    depth = noise.laplace_quantile(scales[0], Fraction(share * alpha * (1 - alpha) / rejections)) - 1
    return critical(evidence, masses, OneLaplace(scale=test_scale), level * (1 - share)) + depth
