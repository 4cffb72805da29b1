"""Private online false discovery rate: hypotheses about one table, one after another, of which at most
`rejections` are rejected.

After Zhang, Kamath & Cummings 2020 (PAPRIKA, arXiv:2002.12321): a procedure of online control sets the level
of each test, and a sparse vector decides whether the evidence passes. Only rejections cost; the rest is free.

Where we differ from the paper, and why (its constants are those of the authors' own code,
github.com/wanrongz/PAPRIKA):

* Levels follow from released decisions alone. The paper's levels count candidates, exact p-values below twice
  the level (or a constant); one person can move all of them, and with them the levels, without limit:
  `tests/adaptive/test_paprika.py` has the table on which that breaks any epsilon. So SAFFRON and ADDIS are
  refused here, and `AlphaInvesting`, whose candidates are the rejected, is the default.
* The threshold is the value that a true null passes with probability at most the level, *noise included*,
  computed from the distribution of the statistic and of the noise. The paper lowers the level by a fixed
  amount instead, A = s eta c ln(2 / 3m) / epsilon with m = min(delta, 1 - ((1 - delta) / e^epsilon)^(1/k))
  for k tests, and a factor s from 0.5 to 2.
* The noisy threshold is drawn once for all tests, which leaves more of epsilon to each (`redraw`); the paper
  draws it anew.
* The evidence may be the statistic itself (`score="statistic"`), which one person moves by the same amount
  everywhere; the paper's logarithm of the p-value (`score="log p"`) needs its p-values bounded below by
  `floor`, and more noise. The authors take eta = sqrt(ln n / n) for n people; how far a p-value really moves
  is checked here.
* It halts after exactly `rejections`; the authors' simulation goes on to one more.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _require
from .._errors import InvalidInput, Unsupported
from .._public import ADD_REMOVE, ZERO_OUT, Public, require_relation
from .._registry import described
from .._require import Real
from ..accounting import Event, NoOp, PureDP
from ..mechanisms import SparseVector, arrow_columns, certified
from ..mechanisms.protocols import Release, check_source, release
from ..mechanisms.sparse_vector import round_epsilon
from ..mechanisms.stability import check_budget
from ..mechanisms.threshold import check_positives, moves_up, number
from ..sampling import Entropy
from ..tables import Source
from ._sparse_vector import SparseVectorRounds
from .discovery import AlphaInvesting, GeneralizedAlphaInvesting, Lord3, LordPlusPlus
from .hypotheses import Hypothesis, NullLaw, OneLaplace, TwoLaplaces, critical, log_pvalues, under_null

Procedure = AlphaInvesting | LordPlusPlus | Lord3 | GeneralizedAlphaInvesting
State = dict[str, Any]
# Steps of the logarithm of a p-value; rounding to them is part of the price. No measurement on record.
GRID = 1024
# Stands for a level of zero, which has no threshold: nothing passes this one.
_SMALLEST_LEVEL = 1e-300
_DEFAULT = AlphaInvesting(alpha=0.05)


@described("adaptive.Decision")
@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Says whether a hypothesis was rejected, and the level at which it was tested."""

    rejected: bool
    level: float


@described("adaptive.Paprika")
@dataclass(frozen=True, slots=True, kw_only=True)
class Paprika:
    """Tests hypotheses as they come; halts for good after `rejections` of them were rejected.

    `sensitivity` is how far one person may move a statistic (1 for counts), `eta` how far the logarithm of a
    p-value, where that is the score. With `delta` there is a round for each rejection, with a noisy threshold
    of its own, and rounds are priced by the best composition (`sparse_vector.round_epsilon`): for many, noise
    in proportion to the square root of `rejections`. Without, one noisy threshold serves throughout; `redraw`
    draws it anew after each rejection also then. `monotone` halves the noise on each test where all
    statistics are counts, or sums of values that are never negative, and all alternatives are "greater".
    `paper` takes the paper's scales, 2 eta c / epsilon for the threshold and 4 eta c / epsilon for each test,
    and draws anew.

    Guarantee: epsilon-DP, or (epsilon, delta)-DP; at most `rejections` are rejected. With `redraw` the event
               says more: so many rounds, each e0-DP.
    Proof:     a sparse vector (`_sparse_vector.SparseVectorRounds`), of one positive for a round, whose
               thresholds are functions of the level and of the null distribution, both public once earlier
               decisions are. One person moves the evidence by at most `grid_sensitivity`: the sensitivity
               itself, or, for log p on a grid, `eta` (checked for each question over the distribution's
               complete range). Rounds are in sequence: PureDP adds up, or `round_epsilon`. Nothing here rests
               on the paper's own theorem.
    Assumes:   the statistics' sensitivities are right; the state stays secret and is used once.

    False discoveries: mFDR <= alpha of the procedure, if statistics of true nulls follow their null
    distribution independently of the tests before.
    Proof:     docs/adaptive.md ("False discoveries") in full. With `redraw`: within a round all tests share
               the noise Z on the threshold. Given Z, a true null is rejected with a probability that falls in
               Z; that earlier tests of the round were not rejected makes large Z likelier (their likelihood
               grows in Z), so the conditional probability of rejection is at most that for fresh Z, which is
               at most the level by `critical`. That is all that mFDR control needs. Without: a rejection
               makes small Z likelier, so thresholds are set for the smallest Z outside a chance of s alpha (1
               - alpha) / c, and for (1 - s) of the level. Where Z is no smaller, false discoveries are at
               most (1 - s) alpha of all, on average; where it is, at most c: s alpha in all.
    """

    public: Public
    epsilon: Real
    rejections: int
    delta: float | None = None
    procedure: Procedure = _DEFAULT
    sensitivity: int = 1
    score: str = "statistic"
    eta: float | None = None
    floor: float = 1e-6
    monotone: bool = False
    paper: bool = False
    redraw: bool | None = None
    questions: int | None = None

    def __post_init__(self) -> None:
        arrow_columns.require_public(self.public)
        _require.positive(epsilon=self.epsilon)
        check_positives(self.rejections)
        if self.delta is not None:
            check_budget(self.epsilon, self.delta)
        if not isinstance(self.procedure, Procedure):
            raise Unsupported(
                f"{type(self.procedure).__name__} sets its levels from exact p-values, or is no procedure: "
                "with it nothing would be private. Nothing was drawn. Use AlphaInvesting, LordPlusPlus, "
                "Lord3 or GeneralizedAlphaInvesting, which look at decisions alone."
            )
        _require.integer(sensitivity=self.sensitivity, at_least=1)
        _require.flag(monotone=self.monotone, paper=self.paper)
        if self.redraw is not None:
            _require.flag(redraw=self.redraw)
            if not self.redraw and (self.paper or self.delta is not None):
                raise InvalidInput(
                    "a threshold is drawn anew with `delta` and with `paper`. Nothing was drawn. "
                    "Leave redraw out."
                )
        if self.questions is not None:
            _require.integer(questions=self.questions, at_least=1)
        self._check_score()
        if self.monotone:
            require_relation(
                self.public.neighbors,
                ADD_REMOVE,
                ZERO_OUT,
                what="that all questions move the same way (monotone)",
            )
            if self.paper:
                raise InvalidInput(
                    "the paper's scales have no monotone variant. Nothing was drawn. Use paper=False."
                )

    def _check_score(self) -> None:
        _require.one_of(("statistic", "log p"), score=self.score)
        _require.open_probability(floor=self.floor)
        if (self.score == "log p") != (self.eta is not None):
            raise InvalidInput(
                "eta, how far one person moves the logarithm of a p-value, goes with score='log p', "
                "and is needed there. Nothing was drawn."
            )
        if self.eta is not None:
            _require.positive(eta=self.eta)

    @property
    def redraws(self) -> bool:
        """Return whether each rejection is followed by a new noisy threshold."""
        return self.paper or self.delta is not None if self.redraw is None else self.redraw

    @property
    def round_epsilon(self) -> Fraction:
        """Return the price of one round; of all, where the threshold is not drawn anew."""
        if self.delta is None:
            return _require.exact(self.epsilon, "epsilon") / (self.rejections if self.redraws else 1)
        return round_epsilon(self.epsilon, self.delta, self.rejections)

    @property
    def event(self) -> Event:
        round_event = PureDP(epsilon=self.round_epsilon, neighbors=self.public.neighbors)
        return round_event.repeated(self.rejections) if self.redraws else round_event

    @property
    def grid_sensitivity(self) -> int:
        """Return how far one person moves the evidence, in its integer units."""
        return self.sensitivity if self.eta is None else math.ceil(_require.exact(self.eta, "eta") * GRID)

    @property
    def rounds(self) -> SparseVectorRounds:
        """Return the shares of the budget for the threshold and the tests: 1 : 1 in the paper, nearly that in
        a monotone round, else the sparse vector's own.
        """
        # equal scales would need a distribution of their own
        nearly = (499, 501) if self.monotone and self.redraws else None
        vector = SparseVector(
            public=self.public,
            threshold=0,
            epsilon=self.round_epsilon,
            positives=1 if self.redraws else self.rejections,
            sensitivity=self.grid_sensitivity,
            monotone=self.monotone,
            split=(1, 1) if self.paper else nearly,
        )
        threshold, query, _ = vector.scales
        return SparseVectorRounds(
            threshold=threshold, query=query, value=None, max_positives=self.rejections, redraws=self.redraws
        )

    def start(self, source: Source, *, entropy: Entropy) -> State:
        """Draw the first noisy threshold. No data is read."""
        check_source(self.public, source)
        return {**self.rounds.begin(entropy), "levels": self.procedure.start().saved()}

    def answer(
        self, state: State, source: Source, question: Any, *, entropy: Entropy
    ) -> tuple[State, Release]:
        """Test one `Hypothesis`. Its own price is nothing: all was paid at the start."""
        rounds = self.rounds
        before = rounds.check(state, self.questions)
        stream = self.procedure.restored(before.get("levels"))
        self._check_question(question)
        check_source(self.public, source)
        level = stream.level
        evidence, threshold = self._evidence_and_threshold(question, level)
        after, gap, _ = rounds.one(
            before, evidence(number(question.statistic(source))) - threshold, 0, entropy
        )
        stream.record(gap is not None)
        after["levels"] = stream.saved()
        event = NoOp(neighbors=self.public.neighbors)
        return after, release(Decision(rejected=gap is not None, level=level), event=event, entropy=entropy)

    def _check_question(self, question: Any) -> None:
        if not isinstance(question, Hypothesis):
            raise InvalidInput(
                f"a question must be a Hypothesis, got {type(question).__name__}. Nothing was drawn."
            )
        question.check(self.public, self.sensitivity)
        if self.monotone and not (question.sign == 1 and moves_up(question.statistic, self.public)):
            raise Unsupported(
                "this was priced for statistics that a person can only add to, with the alternative "
                "'greater', and this is not known to be one. Nothing was drawn or released. Use "
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
            question.null, sign, floor, scales, max(level, _SMALLEST_LEVEL), (alpha, self.rejections)
        )

    def _check_eta(self, scores: NDArray[np.int64]) -> None:
        reach = min(self.sensitivity, len(scores) - 1)
        largest_change = int(np.max(scores[reach:] - scores[:-reach], initial=0)) if reach else 0
        if largest_change > self.grid_sensitivity:
            raise InvalidInput(
                f"one person moves the logarithm of this p-value by up to {largest_change / GRID:.4g}, and "
                f"this was priced for eta={self.eta!r}. Nothing was drawn or released. Give a larger eta, or "
                f"a larger floor."
            )

    def error(self, confidence: float = 0.95) -> int:
        """Return a such that with probability `confidence`, all that was rejected had evidence of at least
        its threshold - a, all else below it + a."""
        _require.open_probability(confidence=confidence)
        if self.questions is None:
            raise InvalidInput(
                "how far off the decisions may be depends on how many there are: declare questions=..."
            )
        return self.rounds.noise_bound(1 - _require.exact(confidence, "confidence"), self.questions)


@lru_cache(maxsize=256)
def _scores(null: NullLaw, sign: int, floor: float | None) -> tuple[NDArray[np.int64], int]:
    """Return the evidence at each value of the distribution, and the smallest of these values."""
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
    shared_noise: tuple[float | None, int],
) -> int:
    """Return the threshold that a true null passes with probability at most `level`; `shared_noise`: alpha
    (None where each round has its own noise on the threshold), and the rejections."""
    values, masses = _scores(null, sign, floor)[0], under_null(null, sign)[1]
    first, second = (float(scale) for scale in scales)
    alpha, rejections = shared_noise
    if alpha is None:
        return critical(values, masses, TwoLaplaces(first=first, second=second), level)
    # about where what is lost to both is least
    share = first / (first + second)
    lowest = certified.laplace_quantile(scales[0], Fraction(share * alpha * (1 - alpha) / rejections)) - 1
    return critical(values, masses, OneLaplace(scale=second), level * (1 - share)) + lowest
