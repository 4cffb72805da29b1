"""The reusable holdout (Thresholdout): check on it as often as you like, and it still tells the truth.

A model is fitted to the training part; how good it is, is asked of the holdout. Whoever asks often, and
changes the model after each answer, soon fits the holdout as well. Thresholdout answers with the training
value while the two agree, and only where they do not it releases a noisy holdout value, and spends one of a
limited number of such answers. Only the holdout is paid for: the training values must be public, or bought
with mechanisms of their own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from .. import _require, _round
from .._errors import InvalidInput
from .._public import Public
from .._registry import described, plain
from .._require import Real
from ..accounting import Event, NoOp, PureDP
from ..mechanisms import Statistic, arrow_columns, certified
from ..mechanisms.protocols import Release, check_source, is_statistic, release
from ..mechanisms.sparse_vector import CONSTANTS
from ..mechanisms.statistics import length_of, row_contribution, step_of
from ..sampling import Entropy
from ..tables import Source
from ._sparse_vector import SparseVectorRounds, State
from .generalization import Bound, best

# The largest budget of findings of overfitting. No measurement on record.
_MAX_BUDGET = 10**9


@described("adaptive.Check")
@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """Asks the holdout for a sum over its rows, with the mean of the same on the training part.

    `training` is public, or was bought. With a statistic of many entries, one number for each: they are asked
    one after the other.
    """

    statistic: Statistic
    training: Real | tuple[Real, ...]

    def __post_init__(self) -> None:
        if not is_statistic(self.statistic):
            raise _require.fail(
                "statistic", type(self.statistic).__name__, "a statistic, such as CountNonNull(...)"
            )
        if isinstance(self.training, int | float | Fraction):
            _require.finite(training=self.training)
            return
        listed = [plain(value) for value in _require.listed(training=self.training)]
        _require.non_empty(training=listed)
        _require.finite(**{f"training value {i + 1}": value for i, value in enumerate(listed)})
        object.__setattr__(self, "training", tuple(listed))

    @property
    def means(self) -> tuple[Real, ...]:
        """Return the training values, as a list also if there is only one."""
        return self.training if isinstance(self.training, tuple) else (self.training,)


@described("adaptive.Estimate")
@dataclass(frozen=True, slots=True, kw_only=True)
class HoldoutEstimate:
    """Holds what the holdout answered: a mean, whether the training value was off, and how many such findings
    are left.

    `within`: with probability 0.95 all answers together are this close to the population; None where the
    number of questions was not declared. For a list of questions `value` and `overfit` are tuples, shorter
    than the list if the holdout halted on the way.
    """

    value: float | tuple[float, ...]
    overfit: bool | tuple[bool, ...]
    left: int
    within: float | None = None


@described("adaptive.Thresholdout")
@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholdout:
    """Reuses a holdout of `public.size` rows: up to `budget` findings of overfitting, and any number of
    agreements.

    Each row's value lies in [lower, upper], on a grid of `step`. `threshold` (T) and `sigma` are in the unit
    of the mean. Noise, all discrete Laplace, of scale 2 sigma on the threshold (drawn again after each
    finding), 4 sigma on each comparison, sigma on each released mean. `questions` declares how many will be
    asked: then the error is known beforehand, and shown with every answer.

    Guarantee: `budget` rounds in sequence, each (2 w / (sigma n))-DP, where w is the most that one row moves
               the sum (1 for values in [0, 1]) and n the declared size: (2 B w / (sigma n))-DP in all, and
               less at a delta.
    Proof:     Dwork, Feldman, Hardt, Pitassi, Reingold & Roth 2015 (Science 349; arXiv:1506.02629). The
               distance |sum - n training| moves by at most w: each round is a sparse vector with one
               positive, w / (2 sigma n) for the threshold and 2w / (4 sigma n) for the comparisons, and its
               number costs w / (sigma n): `_sparse_vector.SparseVectorRounds`. The sum of the three is
               charged, exactly, for the grid that is used. (Taught is often B / (tau n), for noise of
               4 tau, 8 tau, 2 tau.)
    Assumes:   training values and questions are chosen without looking at the holdout except through these
               answers. Under add_remove n is a public guess that the means are divided by. For `within`: the
               rows are independent draws from one population, and n is their number.
    Versions:  it may go on with another version of the holdout: privacy holds, for histories that differ in
               one unit in all versions, since every sum still moves by at most w. The promise of `within`
               about the population does not: it is about one sample of n independent rows, and versions are
               several samples that share rows. Start a new one to have it.
    """

    public: Public
    threshold: Real
    sigma: Real
    budget: int
    lower: Real = 0
    upper: Real = 1
    step: Real = 1
    questions: int | None = None

    # Each question may be asked of another version of the holdout ("Versions").
    any_version: ClassVar[bool] = True

    def __post_init__(self) -> None:
        arrow_columns.require_public(self.public)
        _require.positive(threshold=self.threshold, sigma=self.sigma)
        _require.integer(budget=self.budget, at_least=1)
        if self.budget > _MAX_BUDGET:
            raise _require.fail("budget", self.budget, f"at most {_MAX_BUDGET}")
        _require.ordered(lower=self.lower, upper=self.upper)
        object.__setattr__(self, "step", arrow_columns.as_step(self.step))
        if self.questions is not None:
            _require.integer(questions=self.questions, at_least=1)
        if max(abs(end) for end in (*self._ends, self._threshold_steps)) * self.size >= arrow_columns.LIMIT:
            raise InvalidInput(
                "these bounds are more than 2**62 steps for all rows together. Choose a larger step."
            )
        self.event  # noqa: B018 - refuses what has no price

    @classmethod
    def pure(
        cls, public: Public, *, epsilon: Real, budget: int, threshold: Real, **more: Any
    ) -> Thresholdout:
        """Return the reusable holdout that is epsilon-DP: sigma = 2 B w / (epsilon n)."""
        _require.positive(epsilon=epsilon)
        _require.integer(budget=budget, at_least=1)
        return _with_round(cls, public, _require.exact(epsilon, "epsilon") / budget, budget, threshold, more)

    @classmethod
    def approximate(
        cls,
        public: Public,
        *,
        epsilon: Real,
        delta: float,
        budget: int,
        threshold: Real,
        constants: str = "best",
        **more: Any,
    ) -> Thresholdout:
        """Return the reusable holdout that is (epsilon, delta)-DP. `constants`: "best" (least noise), those
        of `RedrawnSparseVector`, or "paper": sigma = sqrt(32 B ln(2/delta)) w / (epsilon n).

        Proof: `sparse_vector.CONSTANTS`; the paper's bound is its textbook form at delta / 2, checked with
               the same inequality.
        """
        _require.one_of((*CONSTANTS, "paper"), constants=constants)
        _require.integer(budget=budget, at_least=1)
        _require.open_probability(delta=delta)
        rule, failing = ("dwork-roth", delta / 2) if constants == "paper" else (constants, delta)
        round_epsilon = CONSTANTS[rule](epsilon, failing, budget)
        return _with_round(cls, public, round_epsilon, budget, threshold, more)

    @classmethod
    def for_accuracy(
        cls,
        public: Public,
        *,
        tolerance: Real,
        questions: int,
        budget: int,
        failure: float = 0.05,
        **more: Any,
    ) -> Thresholdout:
        """Return the parameters of the paper's accuracy theorem: T = 3 tau / 4 and sigma = tau / (96 ln(4 m /
        beta)).

        The theorem needs a holdout that is large enough, in a constant it does not state; `within` says what
        holds for this one.
        """
        _require.positive(tolerance=tolerance)
        _require.integer(questions=questions, at_least=1)
        _require.open_probability(failure=failure)
        tau = _require.exact(tolerance, "tolerance")
        logarithm = Fraction(certified.log_above(4 * questions / _require.exact(failure, "failure")))
        options = {"threshold": 3 * tau / 4, "sigma": tau / (96 * logarithm), "questions": questions}
        return cls(public=public, budget=budget, **{**options, **more})

    @property
    def size(self) -> int:
        """Return the declared number of rows; means are sums divided by it."""
        return self.public.declared_size("a reusable holdout")

    @property
    def _grid(self) -> Fraction:
        return _require.exact(self.step, "step")

    @property
    def _ends(self) -> tuple[int, int]:
        """Return the bounds of one row's value in whole steps, rounded outwards."""
        low, high = (_require.exact(end, "bound") / self._grid for end in (self.lower, self.upper))
        return math.floor(low), math.ceil(high)

    @property
    def grid_sensitivity(self) -> int:
        """Return how far one row moves a sum, in steps."""
        return row_contribution(self.public.neighbors, *self._ends, nullable=True)

    @property
    def _threshold_steps(self) -> int:
        """Return the threshold on the sum, in whole steps."""
        return math.ceil(_require.exact(self.threshold, "threshold") * self.size / self._grid)

    @property
    def rounds(self) -> SparseVectorRounds:
        """Return the noise in steps of the sum."""
        scale = _require.exact(self.sigma, "sigma") * self.size / self._grid
        return SparseVectorRounds(
            threshold=2 * scale, query=4 * scale, value=scale, max_positives=self.budget, redraws=True
        )

    @property
    def event(self) -> Event:
        round_epsilon = self.rounds.price(self.grid_sensitivity, self.grid_sensitivity)
        return PureDP(epsilon=round_epsilon, neighbors=self.public.neighbors).repeated(self.budget)

    def start(self, source: Source, *, entropy: Entropy) -> State:
        """Draw the noisy threshold. No data is read."""
        check_source(self.public, source)
        return self.rounds.begin(entropy)

    def answer(
        self, state: State, source: Source, question: Any, *, entropy: Entropy
    ) -> tuple[State, Release]:
        """Answer one `Check`. Its own price is nothing: all was paid at the start."""
        before = self.rounds.check(state, self.questions)
        centers, factor = self._accept(question, before["asked"])
        check_source(self.public, source)
        sums = np.atleast_1d(arrow_columns.integers(question.statistic(source))).reshape(-1)
        if len(sums) != len(centers):
            raise InvalidInput("the statistic has another number of entries than there are training values.")
        exact = [factor * int(total) for total in sums.tolist()]
        excess = [
            abs(total - center) - self._threshold_steps for total, center in zip(exact, centers, strict=True)
        ]
        after, overfit, answers = self._compare(before, excess, exact, entropy)
        values = self._means(question.means, overfit, answers)
        single = not isinstance(question.training, tuple)
        value = HoldoutEstimate(
            value=values[0] if single else values,
            overfit=overfit[0] if single else overfit,
            left=self.budget - after["positives"],
            within=self._within,
        )
        event = NoOp(neighbors=self.public.neighbors)
        return after, release(
            value, event=event, entropy=entropy, error=None if self.questions is None else self.error
        )

    def _compare(
        self, before: State, excess: list[int], exact: list[int], entropy: Entropy
    ) -> tuple[State, tuple[bool, ...], dict[int, int]]:
        if len(excess) == 1:
            after, gap, answer = self.rounds.one(before, excess[0], exact[0], entropy)
            return after, (gap is not None,), {} if answer is None else {0: answer}
        after, above, numbers = self.rounds.many(before, excess, exact, entropy)
        return after, tuple(above.tolist()), numbers

    def _means(
        self, training: tuple[Real, ...], overfit: tuple[bool, ...], answers: dict[int, int]
    ) -> tuple[float, ...]:
        """Return the training values where these agree, noisy means where not; all within the bounds of a
        mean."""
        scale, low, high = float(self._grid / self.size), float(self.lower), float(self.upper)
        means = (answers[i] * scale if i in answers else float(training[i]) for i in range(len(overfit)))
        return tuple(min(max(mean, low), high) for mean in means)

    def _accept(self, question: Any, previous_questions: int) -> tuple[list[int], int]:
        """Return n times the training means in whole steps, and how many of these one unit of the statistic
        is.

        All refusals are here.
        """
        if not isinstance(question, Check):
            raise InvalidInput(
                "a question to the holdout is a Check(statistic=..., training=...), got "
                f"{type(question).__name__}. Nothing was drawn or released."
            )
        training = question.means
        length = length_of(question.statistic, self.public)
        if length is not None and length != len(training):
            raise InvalidInput(
                f"the statistic has {length} entries, and {len(training)} training values were given. "
                f"Nothing was drawn."
            )
        if self.questions is not None and previous_questions + len(training) > self.questions:
            raise InvalidInput(
                f"{len(training)} questions are asked, and {self.questions - previous_questions} of the "
                f"declared {self.questions} are left. Nothing was drawn or released."
            )
        factor = (step := self._step_of(question.statistic)) / self._grid
        if factor.denominator != 1:
            raise InvalidInput(
                f"the statistic's step {step} is no multiple of the holdout's, {self.step}. Nothing "
                f"was drawn."
            )
        sensitivity = question.statistic.sensitivity(self.public).linf * int(factor)
        if sensitivity > self.grid_sensitivity:
            raise InvalidInput(
                f"one row moves the statistic by {sensitivity} steps, and this was priced for "
                f"{self.grid_sensitivity}. Nothing was drawn or released."
            )
        scale = self.size / self._grid
        low, high = (_require.exact(end, "bound") for end in (self.lower, self.upper))
        exact = (min(max(_require.exact(mean, "training"), low), high) for mean in training)
        return [arrow_columns.nearest(mean * scale) for mean in exact], int(factor)

    def _step_of(self, statistic: Any) -> Fraction:
        """Return the step of a statistic: what one unit of its integer result stands for; one that is asked
        in SQL knows it from the public facts."""
        step_for = getattr(statistic, "step_for", None)
        return step_of(statistic) if step_for is None else Fraction(step_for(self.public))

    def error(self, confidence: float = 0.95) -> float:
        """Return how far any answer is from the mean over the holdout itself, with probability `confidence`,
        for the declared questions.

        Proof: an agreement means distance < T + the noise of threshold and comparison; a released mean is off
               by its own noise and half a step. Exact discrete tails, a union over all questions.
        """
        _require.open_probability(confidence=confidence)
        return self._sample_error(1 - _require.exact(confidence, "confidence"))

    def _sample_error(self, failure: Fraction) -> float:
        """Return how far any answer is from the mean over the holdout, outside a chance of `failure`."""
        if self.questions is None:
            raise InvalidInput(
                "how far off the answers may be depends on how many there are: declare questions=..."
            )
        # 1: the training mean is rounded
        agreed = self._threshold_steps + self.rounds.noise_bound(failure / 2, self.questions) + 1
        spread = self.rounds.spread(failure / 2, min(self.budget, self.questions))
        return _round.up(max(agreed, spread) * self._grid / self.size)

    def generalization(self, confidence: float = 0.95) -> Bound:
        """Return how far any answer is from the population, with probability `confidence`: the least of all
        theorems that apply."""
        return _generalization(self, float(confidence))

    @property
    def _within(self) -> float | None:
        return None if self.questions is None else self.generalization().radius


@lru_cache(maxsize=64)
def _generalization(holdout: Thresholdout, confidence: float) -> Bound:
    """Return the bound of `Thresholdout.generalization`, cached."""
    width = float(holdout.upper) - float(holdout.lower)

    def sample_error(beta: float) -> float:
        return holdout._sample_error(_require.exact(beta, "failure")) / width

    bound = best(holdout.event, n=holdout.size, sample_error=sample_error, confidence=confidence)
    return Bound(radius=_round.up(bound.radius * width), confidence=confidence, theorem=bound.theorem)


def _with_round(
    cls: type[Thresholdout],
    public: Public,
    each: Fraction,
    budget: int,
    threshold: Real,
    more: dict[str, Any],
) -> Thresholdout:
    """Return the holdout whose rounds cost `each`: sigma = 2 w / (each n)."""
    trial = cls(public=public, threshold=threshold, sigma=1, budget=budget, **more)
    sigma = 2 * trial.grid_sensitivity * trial._grid / (each * trial.size)
    return cls(public=public, threshold=threshold, sigma=sigma, budget=budget, **more)
