"""Defines the reusable holdout (Thresholdout), which stays valid however often models are checked on it.

A model is fitted to the training data, and its quality is measured on the holdout. Whoever measures often,
and changes the model after each answer, soon overfits the holdout too. Thresholdout answers with the training
value as long as this agrees with the holdout's value. Where they differ it releases a noisy holdout value (a
finding of overfitting), and uses up one of a limited number of findings. Its price covers the holdout only:
training values must be public, or bought with other mechanisms.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from typing import Annotated, Any, ClassVar

import numpy as np

from .. import _require, _round
from .._errors import InvalidInput
from .._public import PUBLIC, Public
from .._registry import described
from .._require import EXACT, OPEN_PROBABILITY, POSITIVE, Real, among, at_least, at_most, plain
from ..accounting import Event, PureDP
from ..mechanisms import Statistic, arrow_columns, noise
from ..mechanisms.protocols import STATISTIC, Answered, check_source, integers
from ..mechanisms.sparse_vector import CONSTANTS, Comparing, SparseVectorRounds, State, declared
from ..mechanisms.stability import failure_of
from ..mechanisms.statistics import length_of, row_contribution, step_of
from ..sampling import Entropy
from ..tables import Source
from .generalization import Bound, best

# A number of findings of overfitting. The largest was chosen by hand, not tuned.
Budget = Annotated[int, at_least(1), at_most(10**9)]


@described("adaptive.Check")
class Check:
    """Asks whether the mean of `statistic` (a sum) over the holdout agrees with `training`, the mean of the
    same statistic over the training data.

    `training` is public, or was released by another mechanism that was paid for. With a statistic of several
    entries it has one number per entry, and each entry is a question of its own, asked in order.
    """

    statistic: Annotated[Statistic, STATISTIC]
    training: Real | tuple[Real, ...]

    def __post_init__(self) -> None:
        if isinstance(self.training, int | float | Fraction):
            _require.finite(training=self.training)
            return
        listed = [plain(value) for value in _require.listed(training=self.training)]
        _require.non_empty(training=listed)
        _require.finite(**{f"training value {i + 1}": value for i, value in enumerate(listed)})
        object.__setattr__(self, "training", tuple(listed))

    @property
    def means(self) -> tuple[Real, ...]:
        """Return the training values as a tuple, also where there is only one."""
        return self.training if isinstance(self.training, tuple) else (self.training,)


@described("adaptive.Estimate")
class HoldoutEstimate:
    """Holds the holdout's answer: the mean (`value`), whether the training value differed from the holdout's
    (`overfit`), and how many such findings are `left`.

    `within`: with probability 0.95 all answers of this holdout are this close to the population's means; None
    where the number of questions was not declared. For several entries `value` and `overfit` are tuples,
    which are shorter than the list of entries if the holdout halted before its end.
    """

    value: float | tuple[float, ...]
    overfit: bool | tuple[bool, ...]
    left: int
    within: float | None = None


@described("adaptive.Thresholdout")
class Thresholdout(Comparing):
    """Reuses a holdout of `public.size` rows (n): up to `budget` (B) findings of overfitting, and any number
    of agreements.

    Each row's value lies in [lower, upper], on a grid of `step`. `threshold` (T) is the difference between
    training and holdout from which on a noisy holdout mean is released; it and `sigma` are in the unit of the
    mean. All noise is discrete Laplace: of scale 2 sigma on the threshold (drawn again after each finding), 4
    sigma on each comparison, sigma on each released mean. `questions` declares the largest number of
    questions; with it the error is known beforehand, and part of every answer.

    Guarantee: `budget` rounds in sequence, each (2 w / (sigma n))-DP, where w is the most that one row moves
               the sum (1 for values in [0, 1]) and n the declared size: (2 B w / (sigma n))-DP in total, and
               a smaller epsilon at a delta above 0.
    Proof:     Dwork, Feldman, Hardt, Pitassi, Reingold & Roth 2015 (Science 349; arXiv:1506.02629). The
               distance |sum - n training| moves by at most w: each round is the sparse vector technique with
               one positive, w / (2 sigma n) for the threshold and 2w / (4 sigma n) for the comparisons, and
               its number costs w / (sigma n): `SparseVectorRounds`. The sum of the three is
               charged, exactly, for the grid that is used. (Lectures often state B / (tau n)-DP, for noise of
               scale 4 tau, 8 tau and 2 tau: the same with sigma = 2 tau.)
    Assumes:   training values and questions are chosen without looking at the holdout except through these
               answers. Under add_remove n is a public guess of the size, by which sums are divided. For
               `within`: the rows are independent draws from one population, and n is their number.
    Versions:  later questions may be asked of another version of the holdout. Privacy still holds, for
               histories of versions that differ in one unit, because every sum still moves by at most w.
               `within` no longer holds: it is about one sample of n independent rows, and versions are
               several samples that share rows. For it, start a new Thresholdout on the new version.
    """

    public: Annotated[Public, PUBLIC]
    threshold: Annotated[Real, POSITIVE]
    sigma: Annotated[Real, POSITIVE]
    budget: Budget
    lower: Real = 0
    upper: Real = 1
    step: Annotated[Real, EXACT, POSITIVE] = Fraction(1)
    questions: Annotated[int, at_least(1)] | None = None

    # Each question may be asked of another version of the holdout ("Versions").
    any_version: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _require.ordered(lower=self.lower, upper=self.upper)
        _require.that(
            max(abs(end) for end in (*self._ends, self._threshold_steps)) * self.size < arrow_columns.LIMIT,
            "these bounds are more than 2**62 steps for all rows together. Choose a larger step.",
        )
        self.event  # noqa: B018 - the property refuses parameters that have no price

    @classmethod
    @_require.check_options
    def pure(
        cls,
        public: Public,
        *,
        epsilon: Annotated[Real, POSITIVE],
        budget: Budget,
        threshold: Real,
        **more: Any,
    ) -> Thresholdout:
        """Return the reusable holdout that is epsilon-DP: sigma = 2 B w / (epsilon n). `more` are other
        fields of the class."""
        return _with_round(cls, public, _require.exact(epsilon, "epsilon") / budget, budget, threshold, more)

    @classmethod
    @_require.check_options
    def approximate(
        cls,
        public: Public,
        *,
        epsilon: Real,
        delta: Annotated[float, OPEN_PROBABILITY],
        budget: Budget,
        threshold: Real,
        constants: Annotated[str, among((*CONSTANTS, "paper"))] = "best",
        **more: Any,
    ) -> Thresholdout:
        """Return the reusable holdout that is (epsilon, delta)-DP. `constants` names the composition theorem
        that gives the epsilon of a round: "best" (least noise), another key of `sparse_vector.CONSTANTS`, or
        "paper": sigma = sqrt(32 B ln(2/delta)) w / (epsilon n).

        Proof: `mechanisms.sparse_vector.CONSTANTS`; the paper's bound is its textbook form ("dwork-roth") at
               delta / 2.
        """
        rule, rule_delta = ("dwork-roth", delta / 2) if constants == "paper" else (constants, delta)
        round_epsilon = CONSTANTS[rule](epsilon, rule_delta, budget)
        return _with_round(cls, public, round_epsilon, budget, threshold, more)

    @classmethod
    @_require.check_options
    def for_accuracy(
        cls,
        public: Public,
        *,
        tolerance: Annotated[Real, POSITIVE],
        questions: Annotated[int, at_least(1)],
        budget: Budget,
        failure: Annotated[float, OPEN_PROBABILITY] = 0.05,
        **more: Any,
    ) -> Thresholdout:
        """Return the reusable holdout with the parameters of the paper's accuracy theorem: T = 3 tau / 4 and
        sigma = tau / (96 ln(4 m / beta)), where tau is `tolerance`, m is `questions` and beta is `failure`.

        The theorem holds for holdouts above a size whose constant it does not state; `within` of an answer is
        the proved error for this holdout.
        """
        tau = _require.exact(tolerance, "tolerance")
        logarithm = Fraction(noise.log_above(4 * questions / _require.exact(failure, "failure")))
        options = {"threshold": 3 * tau / 4, "sigma": tau / (96 * logarithm), "questions": questions}
        return cls(public=public, budget=budget, **{**options, **more})

    @property
    def size(self) -> int:
        """Return the declared number of rows; means are sums divided by it."""
        return self.public.declared_size("a reusable holdout")

    @property
    def _grid(self) -> Fraction:
        """Return `step` as an exact fraction."""
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
        """Return the rounds of the sparse vector technique, with noise scales in steps of the sum."""
        scale = _require.exact(self.sigma, "sigma") * self.size / self._grid
        return SparseVectorRounds(
            threshold=2 * scale, query=4 * scale, value=scale, max_positives=self.budget, redraws=True
        )

    @property
    def event(self) -> Event:
        round_epsilon = self.rounds.price(self.grid_sensitivity, self.grid_sensitivity)
        return PureDP(epsilon=round_epsilon, neighbors=self.public.neighbors).repeated(self.budget)

    def answer(self, state: State, source: Source, question: Any, *, entropy: Entropy) -> Answered:
        """Answer one `Check`. It costs nothing more: everything was paid at the start."""
        before = self.rounds.check(state, self.questions)
        centers, factor = self._accept(question, before["asked"])
        check_source(self.public, source)
        sums = np.atleast_1d(integers(question.statistic(source))).reshape(-1)
        _require.that(len(sums) == len(centers), "the statistic does not have one entry per training value.")
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
        return after, self.paid(value, entropy, None if self.questions is None else self.error)

    def _compare(
        self, before: State, excess: list[int], exact: list[int], entropy: Entropy
    ) -> tuple[State, tuple[bool, ...], dict[int, int]]:
        """Return the new state, which answered entries were overfit, and their noisy sums by position."""
        if len(excess) == 1:
            after, gap, answer = self.rounds.one(before, excess[0], exact[0], entropy)
            return after, (gap is not None,), {} if answer is None else {0: answer}
        after, above, numbers = self.rounds.many(before, excess, exact, entropy)
        return after, tuple(above.tolist()), numbers

    def _means(
        self, training: tuple[Real, ...], overfit: tuple[bool, ...], answers: dict[int, int]
    ) -> tuple[float, ...]:
        """Return, for each answered entry, the training value, or where it was found overfit the noisy mean;
        all clipped to [lower, upper]."""
        scale, low, high = float(self._grid / self.size), float(self.lower), float(self.upper)
        means = (answers[i] * scale if i in answers else float(training[i]) for i in range(len(overfit)))
        return tuple(min(max(mean, low), high) for mean in means)

    def _accept(self, question: Any, previous_questions: int) -> tuple[list[int], int]:
        """Return n times the training means in whole steps of the holdout, and how many of these steps one
        integer unit of the statistic is.

        All refusals that depend on the question are here: before any data is read.
        """
        _require.that(
            isinstance(question, Check),
            "a question to the holdout is a Check(statistic=..., training=...), got "
            f"{type(question).__name__}.",
        )
        training = question.means
        length = length_of(question.statistic, self.public)
        _require.that(
            length is None or length == len(training),
            f"the statistic has {length} entries, and {len(training)} training values were given.",
        )
        if self.questions is not None and previous_questions + len(training) > self.questions:
            raise InvalidInput(
                f"{len(training)} questions are asked, and {self.questions - previous_questions} of the "
                f"declared {self.questions} are left."
            )
        factor = (step := step_of(question.statistic, self.public)) / self._grid
        _require.that(
            factor.denominator == 1,
            f"the statistic's step {step} is not a multiple of the holdout's step {self.step}.",
        )
        sensitivity = question.statistic.sensitivity(self.public).linf * int(factor)
        _require.that(
            sensitivity <= self.grid_sensitivity,
            f"one row moves the statistic by {sensitivity} steps, and this holdout was priced for "
            f"{self.grid_sensitivity}.",
        )
        scale = self.size / self._grid
        low, high = (_require.exact(end, "bound") for end in (self.lower, self.upper))
        clipped = (min(max(_require.exact(mean, "training"), low), high) for mean in training)
        return [arrow_columns.nearest(mean * scale) for mean in clipped], int(factor)

    def error(self, confidence: float = 0.95) -> float:
        """Return a bound on how far any answer is from the mean over the holdout itself: with probability
        `confidence` it holds for all declared questions.

        Proof: where the answer is the training value, its distance is below T plus the noise on threshold and
               comparison, and a rounding of the training value; a released mean is off by its own noise.
               Clipping to [lower, upper] takes no answer further from a mean in that range. Tails of the
               discrete noise are exact, with a union bound over all questions.
        """
        return self._sample_error(failure_of(confidence))

    def _sample_error(self, failure: Fraction) -> float:
        """Return the bound of `error` that holds with probability at least 1 - failure."""
        questions, rounds = declared(self.questions), self.rounds
        # + 1: the training mean is rounded to a whole step of the sum
        agreed = self._threshold_steps + rounds.noise_bound(failure / 2, questions) + 1
        spread = rounds.spread(failure / 2, min(self.budget, questions))
        return _round.up(max(agreed, spread) * self._grid / self.size)

    def tail(self, t: float) -> float:
        """Return a bound on the probability that the answer to one question is further than T + t tau from
        the mean over the holdout itself, with tau = `sigma` / 2 as in lectures: about B (2/3) exp(-t/8).

        Lectures state exp(-t/8) for the distance T + (t + 1) tau from the population, and a further term for
        the sample's part tau of it; `generalization` has the theorem with constants for that part. Their
        bound has no factor B, `budget`. It is needed where questions follow the answers: a round that is
        still open is likelier to have a large noisy threshold.

        Proof: let s be the scale of released sums, in steps. A training value is returned beyond that
               distance only if the noise on some threshold (scale 2 s) less that on the comparison (4 s) is t
               s / 2 or more, up to two steps of rounding; by partial fractions of the generating functions
               the sum of discrete Laplace noises of decay a and b exceeds k - 1 with probability P a^k / (1 +
               a) - Q b^k / (1 + b), P = a (1 - b)² / ((a - b) (1 - a b)), Q = b (1 - a)² / ((a - b) (1 - a
               b)). A union bound adds the thresholds up. A released value is that far off only by its own
               noise.
        """
        _require.positive(t=t)
        s = float(self.rounds.value or 0)
        steps = max(0, math.ceil(t * s / 2) - 2)
        below_a, below_b = -math.expm1(-1 / (4 * s)), -math.expm1(-1 / (2 * s))
        a, b = 1 - below_a, 1 - below_b
        scaled = a * below_a * (below_a + a * below_b)
        late = a * below_b**2 * math.exp(-steps / (4 * s)) / (1 + a)
        late -= b * below_a**2 * math.exp(-steps / (2 * s)) / (1 + b)
        released = 2 * math.exp(-(self._threshold_steps + steps) / s) / (1 + math.exp(-1 / s))
        return min(1.0, (self.budget * late / scaled + released) * (1 + 1e-9))

    def generalization(self, confidence: float = 0.95) -> Bound:
        """Return a bound on how far any answer is from the population's mean, with probability `confidence`:
        the smallest of all theorems in `generalization` that apply."""
        return _generalization(self, float(confidence))

    @property
    def _within(self) -> float | None:
        return None if self.questions is None else self.generalization().radius


@lru_cache(maxsize=64)
def _generalization(holdout: Thresholdout, confidence: float) -> Bound:
    """Return the bound of `Thresholdout.generalization`, cached. The theorems are about values in [0, 1], so
    errors are divided by the width of the range and the radius is multiplied by it."""
    width = float(holdout.upper) - float(holdout.lower)

    def sample_error(beta: float) -> float:
        return holdout._sample_error(_require.exact(beta, "failure")) / width

    bound = best(holdout.event, n=holdout.size, sample_error=sample_error, confidence=confidence)
    return Bound(radius=_round.up(bound.radius * width), confidence=confidence, theorem=bound.theorem)


def _with_round(
    cls: type[Thresholdout],
    public: Public,
    round_epsilon: Fraction,
    budget: int,
    threshold: Real,
    more: dict[str, Any],
) -> Thresholdout:
    """Return the holdout whose rounds are round_epsilon-DP: sigma = 2 w / (round_epsilon n)."""
    # its sigma is arbitrary: only w, the step and the size are read from it
    trial = cls(public=public, threshold=threshold, sigma=1, budget=budget, **more)
    sigma = 2 * trial.grid_sensitivity * trial._grid / (round_epsilon * trial.size)
    return cls(public=public, threshold=threshold, sigma=sigma, budget=budget, **more)
