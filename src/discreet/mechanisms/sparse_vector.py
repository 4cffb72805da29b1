"""Which questions have a value above a threshold? The noise grows with the number of answers "above" (the
positives), not with the number of questions: the sparse vector technique.

A noisy threshold is kept secret; each question's value gets fresh noise and is compared with it. The whole
price is paid at the start, and after a declared number of positives the mechanism halts for good.
`SparseVectorRounds` does that, and has the proof; everything else here, and the holdout, the leaderboards,
PAPRIKA and the change watches of `adaptive`, chooses its scales. Values are integers, noise is discrete
Laplace, and the comparison is noisy value >= noisy threshold.

`SparseVector` keeps one noisy threshold throughout (Lyu, Su & Li 2017) and is epsilon-DP; `AboveThreshold` is
the textbook's mechanism with a single positive.

`RedrawnSparseVector` draws a fresh noisy threshold after each positive, and is (epsilon, delta)-DP. A round
lasts from one noisy threshold to the next, and the price of all rounds follows by composition. Pure epsilon
needs noise in proportion to the number c of positives; composition needs its square root, times
sqrt(ln(1/delta)). So the pure split is better for a few positives, composition for many: by default the
better of them is taken.

`StableSparseVector` answers many stable questions for the price of the few that turn out unstable: sparse
vector over distances (M_svec of the PATE literature). Each question is a stable function
(`stability.Stable`). Where its noisy distance to instability reaches a noisy threshold its exact value is
released, for free; only failures are paid for, and after the promised number of them the mechanism halts.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Annotated, Any, ClassVar

import numpy as np

from .. import _require, _round, sampling
from .._errors import Halted, InvalidInput, Unsupported
from .._public import ADD_REMOVE, PUBLIC, ZERO_OUT, Public, require_relation
from .._registry import described
from .._require import INTEGER, POSITIVE, PRICE, Real, among, at_least, at_most
from ..accounting import ApproximateDP, Event, Filter, PureDP
from ..accounting.composition import optimal_delta
from ..sampling import Entropy
from ..tables import Source
from . import arrow_columns, noise
from .noise import draw
from .protocols import (
    STATISTIC,
    Answered,
    Integers,
    Interactive,
    Sensitivity,
    Statistic,
    check_source,
    integers,
    is_statistic,
)
from .stability import check_budget, check_stable, failure_of, stated
from .statistics import Count, CountNonNull, CountsBelow, Histogram, PowerSum, length_of, step_of

State = dict[str, Any]
# The names of the noise on the threshold and of the number of positives in the states of `adaptive`.
NOISE = ("noise", "positives")
_SEVERAL = "a question must have a single number as its value. Ask for one Component of it."
FOREIGN_STATE = "the state is not one that start() or answer() gave."


# The tags of this class and the next stand in ledgers and stay, though they are not the names of the classes.
@described("mechanisms.Answer")
class ThresholdAnswer:
    """Holds the answer to one question: whether its value is `above` the threshold; the noisy `value`, if it
    was paid for; and the `gap` between noisy value and noisy threshold, if it was asked for."""

    above: bool
    value: int | None = None
    gap: int | None = None


@described("mechanisms.Entry")
class Component:
    """Takes one entry of a vector-valued statistic as a question of its own: the count of one category, say.

    Guarantee: moves by at most the l-infinity sensitivity of the whole vector.
    Proof:     by definition of that norm.
    """

    statistic: Annotated[Statistic, STATISTIC]
    index: Annotated[int, at_least(0)]

    @property
    def step(self) -> Fraction:
        return step_of(self.statistic)

    def step_for(self, public: Public) -> Fraction:
        return step_of(self.statistic, public)

    def length(self, public: Public) -> int | None:
        """Return None, as the value is a single number; refuse a statistic without such an entry."""
        length = length_of(self.statistic, public)
        if length is None or self.index >= length:
            raise InvalidInput(
                f"there is no entry {self.index} (the first is 0): the value of the statistic is "
                f"{'one number' if length is None else f'of length {length}'}."
            )
        return None

    def sensitivity(self, public: Public) -> Sensitivity:
        return Sensitivity(linf=self.statistic.sensitivity(public).linf)

    def __call__(self, source: Source) -> Integers:
        entries: Integers = np.asarray(self.statistic(source))
        return entries[self.index : self.index + 1].reshape(())


def moves_up(question: Any, public: Public) -> bool:
    """Return whether a unit can only ever add to the value, so that between two neighbors all such questions
    move the same way. It is for add_remove and zero_out only: the callers refuse replace themselves.

    It is true of counts and of sums of values that are never negative. An exception are sums, bins and
    `CountsBelow` under zero_out where a missing value counts as the lower bound. A steward's own statistic
    may have an attribute `monotone`: True, or a function of the public facts that returns True.
    """
    if isinstance(question, Component):
        return moves_up(question.statistic, public)
    if isinstance(question, Histogram) and question.edges is None:
        return True
    if isinstance(question, PowerSum | Histogram | CountsBelow):
        # Where a missing value counts as the lower bound, blanking a row may raise a sum, or move the row to
        # another bin.
        blank_adds_nothing = public.neighbors is ADD_REMOVE or public.bounds(question.column).nullable
        return blank_adds_nothing and (not isinstance(question, PowerSum) or question.range(public)[0] >= 0)
    declared = getattr(question, "monotone", False)
    return (
        isinstance(question, Count | CountNonNull)
        or (declared(public) if callable(declared) else declared) is True
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseVectorRounds:
    """Runs the sparse vector technique with a public threshold that may differ from question to question, and
    with a number released at each positive.

    A question arrives as two integers: its `excess`, by how much its exact value exceeds its threshold, and
    the exact number to be released with noise if the noisy excess passes (a positive). The threshold of each
    question must be a function of what was released before. `threshold`, `query` and `value` are the scales
    of the discrete Laplace noise on the threshold, on each comparison and on each released number, in the
    integer units of the question. The mechanism halts for good after `max_positives` positives, c below. With
    `redraws` the noise on the threshold is drawn anew after each positive, so that the questions up to and
    with each positive are a round, and the rounds run in sequence. With `value` None no number is drawn, and
    a positive may release its gap: how far the noisy excess lies above the noise on the threshold.

    The state is plain JSON and holds nothing but the noise on the threshold (secret) plus the public
    `center`, the number of positives and the number of questions so far ("asked"). `names` are the names of
    the first two in the state. Stored states have them, so they must not change.

    Guarantee: let one unit move the excess by at most D and the exact number by at most V. With `redraws`: c
               rounds in sequence, each (D / threshold + k D / query + V / value)-DP. Without: (D / threshold
               + c (k D / query + V / value))-DP. Both for any number of questions, each chosen after seeing
               all answers before it. k is 2, or 1 where one unit moves all excesses the same way. With
               `value` None the summand V / value is 0.
    Proof:     without `redraws`: rho is the noise on the threshold, never drawn again, and nu that on each
               comparison. Fix the answers. Their probability is sum_z P(rho = z) prod_i P(answer i | rho =
               z), and the thresholds, being functions of the answers, are fixed as well. Compare rho = z on
               one table with rho = z + D on its neighbor: P(rho = z) <= e^(D / threshold) P(rho = z + D), and
               z -> z + D maps the integers onto themselves. "Below", excess + nu < z, implies "below" on the
               neighbor, whose excess is at most D larger and whose z is D larger: its probability does not
               fall. "Above with gap g" is nu = z + g - excess; both shifts together move the right side by 0
               to 2D, so its probability grows at most by e^(2D / query); summing over g >= 0 gives the same
               for plain "above". There are at most c of them, and each released number costs V / value. If
               all excesses move the same way: where they are larger on the first table, keep z (below only
               gets likelier on the neighbor, above costs a shift of at most D); where they are smaller, shift
               z by D (then the right side moves by 0 to D). Each integer shift by s costs s / scale, which is
               all that the argument of Lyu, Su & Li (2017, arXiv:1603.01699, their Algorithm 7) and, for the
               gap, of Ding, Wang, Zhang & Kifer (2019, arXiv:1904.12773) needs of the noise.
               With `redraws` a round ends at its positive: it is the above with c = 1, and the rounds are in
               sequence, each chosen after the one before.
    Versions:  the guarantee is unchanged if questions are asked of different versions of the table. Neighbors
               are then histories that differ in one unit in all versions: every excess still moves by at most
               D, all in one direction if k is 1, and the proof uses nothing else. When a version arrives is
               public.
    Assumes:   the state stays secret, and each state is used for one question only.
    """

    threshold: Fraction
    query: Fraction
    value: Fraction | None
    max_positives: int
    redraws: bool
    center: int = 0
    names: tuple[str, str] = NOISE

    def price(self, sensitivity: int, answers: int, *, monotone: bool = False) -> Fraction:
        """Return the epsilon of one round, or without `redraws` of all questions together, as an exact
        fraction. `sensitivity` is D and `answers` is V of the guarantee; `monotone` makes k 1."""
        positives = 1 if self.redraws else self.max_positives
        positive_price = (1 if monotone else 2) * sensitivity / self.query + (
            0 if self.value is None else answers / self.value
        )
        return sensitivity / self.threshold + positives * positive_price

    def begin(self, entropy: Entropy) -> State:
        """Return the first state: the noise on the threshold, and counts of zero."""
        noise_name, positives = self.names
        return {noise_name: self._noisy_threshold(entropy), positives: 0, "asked": 0}

    def check(self, state: Any, questions: int | None, *more: str) -> State:
        """Return the state unchanged. InvalidInput unless it is a state of this class, with `more` names that
        the caller added; Halted where all positives, or all declared `questions` (None: no limit), are used
        up."""
        counted = (*self.names, "asked")
        if not isinstance(state, dict) or set(state) != {*counted, *more}:
            raise InvalidInput(FOREIGN_STATE)
        _require.that(all(type(state[name]) is int for name in counted), FOREIGN_STATE)
        for used, limit, what in (
            (state[self.names[1]], self.max_positives, f"{self.names[1]} were given"),
            (state["asked"], questions, "declared questions were asked"),
        ):
            if limit is not None and used >= limit:
                raise Halted(f"all {limit} {what}, so this has halted for good. Buy a new one.")
        return state

    def compare(self, state: State, excess: int, entropy: Entropy) -> int:
        """Return the gap: the noisy excess of one question over the noise on the threshold. The question is a
        positive where it is not negative."""
        return excess + draw(self.query, entropy) - int(state[self.names[0]])

    def after(self, state: State, positive: bool, entropy: Entropy) -> State:
        """Return the state after one more question; a positive may get a new noisy threshold."""
        noise_name, positives = self.names
        after = {**state, positives: state[positives] + positive, "asked": state["asked"] + 1}
        if positive and self.redraws:
            after[noise_name] = self._noisy_threshold(entropy)
        return after

    def one(
        self, state: State, excess: int, exact: int, entropy: Entropy
    ) -> tuple[State, int | None, int | None]:
        """Answer one question: return the new state, and for a positive its gap and its noisy number (None
        without `value`); both are None for a negative."""
        gap = self.compare(state, excess, entropy)
        after = self.after(state, gap >= 0, entropy)
        if gap < 0:
            return after, None, None
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
        noise_name, positives = self.names
        # `as_integers` takes Python integers where 64 bits might overflow
        exact_excess = arrow_columns.as_integers([int(value) for value in excess])
        noisy = noise.add(exact_excess, sampling.discrete_laplace(self.query, len(excess), entropy))
        above, answers, threshold, start = np.zeros(len(noisy), bool), {}, state[noise_name], 0
        left = self.max_positives - state[positives]
        while left and start < len(noisy):
            positions = np.flatnonzero(noisy[start:] >= threshold)
            if not len(positions):
                start = len(noisy)
                break
            position, start = start + int(positions[0]), start + int(positions[0]) + 1
            above[position], left = True, left - 1
            answers[position] = int(exact[position]) + draw(self.value, entropy)
            if self.redraws:
                threshold = self._noisy_threshold(entropy)
        after = {
            **state,
            noise_name: threshold,
            positives: self.max_positives - left,
            "asked": state["asked"] + start,
        }
        return after, above[:start], answers

    def noise_bound(self, failure: Fraction, comparisons: int, thresholds: int | None = None) -> int:
        """Return a bound a: with probability at least 1 - failure, |noise on the threshold| + |noise on the
        comparison| <= a for every one of `comparisons` questions and of `thresholds` noisy thresholds (by
        default all there can be).

        Half of `failure` is for each of the two kinds of noise, divided by a union bound among its draws, and
        by 2 for the two signs: P(|X| >= m) = 2 P(X >= m) for discrete Laplace noise X and m >= 1.
        """
        if thresholds is None:
            thresholds = self.max_positives if self.redraws else 1
        # `laplace_quantile(scale, p)` is the least m with P(X >= m) <= p
        threshold_bound = noise.laplace_quantile(self.threshold, failure / (4 * thresholds)) - 1
        return threshold_bound + noise.laplace_quantile(self.query, failure / (4 * comparisons)) - 1

    def spread(self, failure: Fraction, numbers: int) -> int:
        """Return a bound a: with probability at least 1 - failure, none of `numbers` released numbers is
        further than a from its exact value."""
        assert self.value is not None
        return noise.laplace_quantile(self.value, failure / (2 * numbers)) - 1

    def _noisy_threshold(self, entropy: Entropy) -> int:
        return self.center + draw(self.threshold, entropy)


def declared(questions: int | None, option: str = "questions") -> int:
    """Return the declared number of questions, on which the error of the answers depends."""
    if questions is None:
        raise InvalidInput(
            f"how far off the answers may be depends on how many there are: declare {option}=..."
        )
    return questions


class Comparing(Interactive):
    """Base of mechanisms that answer by the comparisons of `SparseVectorRounds`."""

    __slots__ = ()

    @property
    @abstractmethod
    def rounds(self) -> SparseVectorRounds:
        """The comparisons, with the scales of their noise."""

    def start(self, source: Source, *, entropy: Entropy) -> State:
        """Draw the noisy threshold. No data is read."""
        check_source(self.public, source)
        return self.rounds.begin(entropy)


class Thresholds(Comparing):
    """Provides what all sparse vectors over statistics have in common: checks of questions, and answers."""

    __slots__ = ()

    public: Public
    threshold: int
    sensitivity: int
    positives: int
    questions: int | None
    monotone: bool
    gap: bool
    # whether each positive gets a new noisy threshold
    redraws: ClassVar[bool] = False
    # Each question may be asked of another version of the table (`SparseVectorRounds`, "Versions").
    any_version: ClassVar[bool] = True

    @property
    @abstractmethod
    def scales(self) -> tuple[Fraction, Fraction, Fraction | None]:
        """The scales of the noise on the threshold, on each compared value, and on each released value."""

    @property
    def rounds(self) -> SparseVectorRounds:
        """The comparisons. The state has the noisy threshold itself, not only its noise."""
        threshold, query, value = self.scales
        return SparseVectorRounds(
            threshold=threshold,
            query=query,
            value=value,
            max_positives=self.positives,
            redraws=self.redraws,
            center=self.threshold,
            names=("threshold", "positives"),
        )

    def answer(self, state: State, source: Source, question: Any, *, entropy: Entropy) -> Answered:
        """Return the next state and the answer. The answer costs nothing: all was paid at the start."""
        rounds = self.rounds
        before = rounds.check(state, self.questions)
        self._check_question(question)
        check_source(self.public, source)
        value = number(question(source))
        after, gap, noisy = rounds.one(before, value, value, entropy)
        answer = ThresholdAnswer(above=gap is not None, value=noisy, gap=gap if self.gap else None)
        return after, self.paid(answer, entropy, self._error_of(answer))

    def error(self, confidence: float = 0.95) -> int:
        """Return alpha: with probability `confidence`, every question answered "above" has a value
        of at least T - alpha and every one answered "below" a value below T + alpha, T being the threshold.

        Proof: Dwork & Roth 2014, Theorem 3.24, and for redrawn thresholds Theorem 3.26, with the exact
               discrete tails. alpha is the sum of a bound for the noise on all thresholds and one for the
               noise on all declared questions (`SparseVectorRounds.noise_bound`).
        """
        failure = failure_of(confidence)
        return self.rounds.noise_bound(failure, declared(self.questions))

    def _check_question(self, question: Any) -> None:
        """Refuse everything that can be refused before data is read or noise is drawn."""
        _require.that(
            is_statistic(question),
            "a question must be a statistic, such as Count() or Component(...), got "
            f"{type(question).__name__}.",
        )
        _require.that(length_of(question, self.public) in (None, 1), _SEVERAL)
        sensitivity = question.sensitivity(self.public).linf
        _require.that(
            sensitivity <= self.sensitivity,
            f"the question's sensitivity is {sensitivity}, and this was priced for {self.sensitivity}. "
            f"Buy a mechanism with sensitivity={sensitivity}.",
        )
        if self.monotone and not moves_up(question, self.public):
            raise Unsupported(
                f"{type(question).__name__} is not known to be monotone, and this mechanism was priced for "
                "monotone questions only. Buy one with monotone=False."
            )

    def _error_of(self, answer: ThresholdAnswer) -> Callable[[float], int]:
        """Return a function of the confidence: the error of the released value, else of the comparison."""
        rounds = self.rounds
        if answer.value is not None:
            return lambda confidence: rounds.spread(failure_of(confidence), 1)
        return lambda confidence: rounds.noise_bound(failure_of(confidence), 1, thresholds=1)


# The limit of positives is chosen by hand, beyond any use.
Positives = Annotated[int, at_least(1), at_most(10**12)]
Split = tuple[Annotated[Real, POSITIVE], ...]


@described("mechanisms.SparseVector")
class SparseVector(Thresholds):
    """Answers for each question whether its value is above `threshold`; halts after `positives` answers
    "above": the sparse vector technique.

    Options: `numeric` also releases a noisy value of each positive; `gap` releases, for free, how far its
    noisy value was above the noisy threshold; `monotone` halves the noise on the comparisons (at the same
    share), and is for questions whose values all move the same way (`moves_up`), such as counts; `split`
    gives the proportions in which epsilon is divided between the threshold, the comparisons and, if
    `numeric`, the values. By default the first two are as 1 : (2c)^(2/3) with c = `positives`, or 1 : c^(2/3)
    if monotone, which minimizes the variance of the comparison (Lyu, Su & Li 2017, arXiv:1603.01699, Section
    4), and if `numeric`, the values get half of epsilon. Values are in the integer units of the statistic.
    `questions` is needed for `error` only; if it is given, the mechanism halts after so many questions.

    Guarantee: epsilon-DP for any number of questions, each chosen after seeing all answers before it.
    Proof:     e1, e2, e3 are the shares, c the positives, D the sensitivity. `SparseVectorRounds`, with noise
               of scale D/e1 on the threshold, 2cD/e2 on each comparison (cD/e2 if monotone) and cD/e3 on each
               released value: its price is e1 + e2 + e3.
    Versions:  as `SparseVectorRounds`.
    Assumes:   the statistics' sensitivities are right; the state stays secret and is used once.
    """

    public: Annotated[Public, PUBLIC]
    threshold: Annotated[int, INTEGER]
    epsilon: Annotated[Real, PRICE]
    positives: Positives = 1
    sensitivity: Annotated[int, at_least(1)] = 1
    monotone: bool = False
    numeric: bool = False
    gap: bool = False
    split: Split | None = None
    questions: Annotated[int, at_least(1)] | None = None

    def __post_init__(self) -> None:
        fits = self.split is None or len(self.split) == 2 + self.numeric
        _require.must(fits, "split", self.split, f"{2 + self.numeric} shares")
        if self.monotone:
            require_relation(
                self.public.neighbors, ADD_REMOVE, ZERO_OUT, what="that all questions move one way (monotone)"
            )

    @property
    def shares(self) -> tuple[Fraction, ...]:
        """The parts of epsilon for the threshold, the comparisons and, if `numeric`, the released values."""
        return _shares(self.epsilon, self.positives, self.monotone, self.numeric, self.split)

    @property
    def scales(self) -> tuple[Fraction, Fraction, Fraction | None]:
        shares, c, sensitivity = self.shares, self.positives, self.sensitivity
        query = (c if self.monotone else 2 * c) * sensitivity / shares[1]
        return sensitivity / shares[0], query, c * sensitivity / shares[2] if self.numeric else None

    @property
    def event(self) -> Event:
        return PureDP(epsilon=self.epsilon, neighbors=self.public.neighbors)


@described("mechanisms.AboveThreshold")
class AboveThreshold(Interactive):
    """Runs the textbook's AboveThreshold (AboveNoisyThreshold): halts at the first positive; noise of scale
    2D/epsilon on the threshold and 4D/epsilon on each value, D being the sensitivity.

    Guarantee: epsilon-DP.
    Proof:     `SparseVector` with one positive and equal shares; Dwork & Roth 2014, Theorem 3.23. (The
               default shares of `SparseVector` need less noise.)
    Versions:  as `SparseVector`.
    Assumes:   as `SparseVector`.
    """

    any_version: ClassVar[bool] = True

    public: Annotated[Public, PUBLIC]
    threshold: Annotated[int, INTEGER]
    epsilon: Annotated[Real, PRICE]
    sensitivity: Annotated[int, at_least(1)] = 1
    questions: Annotated[int, at_least(1)] | None = None

    @property
    def _vector(self) -> SparseVector:
        """The `SparseVector` that is the same mechanism, with one positive and equal shares."""
        return SparseVector(
            public=self.public,
            threshold=self.threshold,
            epsilon=self.epsilon,
            sensitivity=self.sensitivity,
            split=(1, 1),
            questions=self.questions,
        )

    @property
    def event(self) -> Event:
        return self._vector.event

    def start(self, source: Source, *, entropy: Entropy) -> State:
        return self._vector.start(source, entropy=entropy)

    def answer(self, state: State, source: Source, question: Any, *, entropy: Entropy) -> Answered:
        return self._vector.answer(state, source, question, entropy=entropy)

    def error(self, confidence: float = 0.95) -> int:
        """Return alpha of `SparseVector.error`; at most 1 more than 8 D (ln k + ln(2/beta)) / epsilon, the
        alpha of Dwork & Roth's Theorem 3.24 for k = `questions` and beta = 1 - confidence."""
        return self._vector.error(confidence)


@lru_cache(maxsize=256)
def _shares(
    epsilon: Real, positives: int, monotone: bool, numeric: bool, split: tuple[Real, ...] | None
) -> tuple[Fraction, ...]:
    """Return the parts of epsilon for the threshold, the comparisons and, if `numeric`, the values."""
    exact = _require.exact(epsilon, "epsilon")
    if split is not None:
        weights = [_require.exact(share, "share") for share in split]
        return tuple(exact * w / sum(weights) for w in weights)
    # Any ratio is private. This one must stay: a live mechanism has drawn its threshold with it.
    ratio = Fraction((positives if monotone else 2 * positives) ** (2 / 3)).limit_denominator(1000)
    without_values = exact / 2 if numeric else exact
    for_threshold = without_values / (1 + ratio)
    shares = (for_threshold, without_values - for_threshold)
    return (*shares, exact - without_values) if numeric else shares


def number(value: Any) -> int:
    """Return the value of a statistic as one integer; refuse a vector of several."""
    array = integers(value)
    _require.that(array.size == 1, _SEVERAL)
    return int(array.reshape(-1)[0])


# The most rounds for which optimal composition is computed: its distribution has 40 sqrt(rounds) cells.
_MANY = 10**6
# The factor by which optimal composition must raise e0, the epsilon of a round, before `round_epsilon` takes
# it instead of the simpler rules. It was chosen by hand, but it must stay, as must every number in this
# module that e0 depends on: they decide which e0 a live mechanism (one that was started, and whose state is
# kept) was charged with, and with another e0 it would be refused.
_GAIN = Fraction(1001, 1000)


@lru_cache(maxsize=256)
def round_epsilon(epsilon: Real, delta: float, rounds: int) -> Fraction:
    """Return an e0 for which `rounds` e0-DP mechanisms in sequence are (epsilon, delta)-DP, and fit a fresh
    budget of that size.

    It is the larger of the pure split epsilon / rounds (the larger up to some 20 rounds) and zCDP; or that of
    optimal composition, if this is more than `_GAIN` times as large. Optimal composition is taken only as far
    as `accounting.Filter(epsilon, delta)` admits the rounds one by one, because a mechanism with the price
    (epsilon, delta) must fit a budget of that size; it is not tried beyond 10**6 rounds or from epsilon = 300
    on. Where no filter has to admit the rounds, `optimal_epsilon` may be larger.

    Guarantee: the composition, adaptive too, is (epsilon, delta)-DP.
    Proof:     basic composition (Dwork & Roth 2014, Theorem 3.16); `zcdp_epsilon`; `optimal_epsilon`.
    """
    simple = max(pure_epsilon(epsilon, delta, rounds), zcdp_epsilon(epsilon, delta, rounds))
    budget = Filter(epsilon=epsilon, delta=delta)

    def fits(each: float) -> bool:
        return budget.admits(budget.start(), PureDP(epsilon=each).repeated(rounds))

    raised = _raise_epsilon(float(simple), epsilon, delta, rounds, fits)
    return raised if raised > simple * _GAIN else simple


@lru_cache(maxsize=256)
def pure_epsilon(epsilon: Real, delta: float, rounds: int) -> Fraction:
    """Return epsilon / rounds, rounded up to a float where delta covers that rounding: five rounds that share
    epsilon = 1 then have 0.2 each."""
    exact, _ = _epsilon_and_log(epsilon, delta)
    above = _round.up(exact / rounds)
    covered = (
        rounds <= _MANY and math.isfinite(above) and optimal_delta(above, rounds, _round.down(exact)) <= delta
    )
    return Fraction(above) if covered else exact / rounds


@lru_cache(maxsize=256)
def optimal_epsilon(epsilon: Real, delta: float, rounds: int) -> Fraction:
    """Return the largest e0, to a relative 1e-9, for which `rounds` e0-DP mechanisms in sequence are
    (epsilon, delta)-DP; but at most 1.5^4 times the e0 of the pure split and of zCDP, beyond which none is
    searched (a larger one exists where delta is large beside epsilon, such as delta 0.01 with epsilon 0.001).

    Guarantee: the composition, adaptive too, is (epsilon, delta)-DP. Beyond 10**6 rounds, and from epsilon =
               300 on, the result is the larger of `pure_epsilon` and `zcdp_epsilon`.
    Proof:     Kairouz, Oh & Viswanath 2015, arXiv:1311.0776, Theorem 3.3, by
               `accounting.composition.optimal_delta`.
    """
    simple = max(pure_epsilon(epsilon, delta, rounds), zcdp_epsilon(epsilon, delta, rounds))
    return max(simple, _raise_epsilon(float(simple), epsilon, delta, rounds, lambda each: True))


def _raise_epsilon(
    start: float, epsilon: Real, delta: float, rounds: int, fits: Callable[[float], bool]
) -> Fraction:
    """Return the largest e0, to a relative 1e-9, between `start` and 1.5^4 times that for which optimal
    composition gives (epsilon, delta) and `fits` is true; 0 if there is none, or none is searched."""
    total = _round.down(_require.exact(epsilon, "epsilon"))
    # The limit of 300 was chosen by hand; beyond it the simpler rules are enough.
    if rounds > _MANY or not 0 < total < 300:
        return Fraction(0)

    def allowed(each: float) -> bool:
        return optimal_delta(each, rounds, total) <= delta and fits(each)

    low, high = start, start
    for _ in range(4):
        low, high = high, 1.5 * high
        if not allowed(high):
            break
    if low > start or allowed(low):
        while high - low > 1e-9 * high:
            middle = (low + high) / 2
            low, high = (middle, high) if allowed(middle) else (low, middle)
        return Fraction(low)
    return Fraction(0)


@lru_cache(maxsize=256)
def zcdp_epsilon(epsilon: Real, delta: float, rounds: int) -> Fraction:
    """Return the largest e0, to a relative 1e-9, for which zCDP proves that `rounds` e0-DP mechanisms in
    sequence are (epsilon, delta)-DP.

    Guarantee: the composition, adaptive too, is (epsilon, delta)-DP.
    Proof:     e0-DP is e0^2/2-zCDP, c = `rounds` of them are rho-zCDP with rho = c e0^2/2, and with L =
               ln(1/delta) that is (rho + 2 sqrt(rho L), delta)-DP (Bun & Steinke 2016, arXiv:1605.02065,
               Propositions 1.3 and 1.4, Lemma 1.7). The inequality rho + 2 sqrt(rho L) <= epsilon is checked
               in rationals, as 4 rho L <= (epsilon - rho)^2 and rho <= epsilon, with L rounded up.
    """
    exact, log_term = _epsilon_and_log(epsilon, delta)
    root_sum, root_log = math.sqrt(float(log_term) + float(exact)), math.sqrt(float(log_term))
    # Both are sqrt(rho) = sqrt(L + epsilon) - sqrt(L), for the largest rho. The quotient is for small
    # epsilon, where the difference cancels. The difference stays for all other epsilon, because live
    # mechanisms were charged with exactly that float.
    root_rho = root_sum - root_log if exact * 10**6 > log_term else float(exact) / (root_sum + root_log)
    guess = Fraction(math.sqrt(2 / rounds) * root_rho * (1 - 1e-10))
    while not _fits_zcdp(guess, exact, log_term, rounds):
        guess *= Fraction(999_999_999, 1_000_000_000)
    return guess


@lru_cache(maxsize=256)
def dwork_roth_epsilon(epsilon: Real, delta: float, rounds: int) -> Fraction:
    """Return epsilon / sqrt(8 c ln(1/delta)), c = `rounds`: the epsilon of one round of Dwork & Roth 2014,
    Algorithm 2, whose noise has the scale sqrt(32 c ln(1/delta)) / epsilon.

    It is about half of `zcdp_epsilon`, and meant for teaching. It is checked with the same inequality, so it
    holds up to epsilon = 8 ln(1/delta), not only below 1 as their Corollary 3.21 says.
    """
    exact, log_term = _epsilon_and_log(epsilon, delta)
    guess = Fraction(float(exact) / math.sqrt(8 * rounds * float(log_term)) * (1 - 1e-15))
    wanted = f"at most 8 ln(1/delta) = {8 * float(log_term):.4g} for these constants"
    _require.must(_fits_zcdp(guess, exact, log_term, rounds), "epsilon", epsilon, wanted)
    return guess


def _epsilon_and_log(epsilon: Real, delta: float) -> tuple[Fraction, Fraction]:
    """Return epsilon, and ln(1/delta) rounded up, as exact numbers."""
    _require.positive(epsilon=epsilon)
    _require.open_probability(delta=delta)
    return _require.exact(epsilon, "epsilon"), Fraction(noise.log_above(1 / _require.exact(delta, "delta")))


def _fits_zcdp(each: Fraction, epsilon: Fraction, log_term: Fraction, rounds: int) -> bool:
    """Return whether the inequality of `zcdp_epsilon` holds for e0 = `each` and L = `log_term`."""
    rho = rounds * each**2 / 2
    return rho <= epsilon and 4 * rho * log_term <= (epsilon - rho) ** 2


# The functions that compute the epsilon of a round, by name. The names are stored in ledgers.
CONSTANTS = {
    "best": round_epsilon,
    "optimal": optimal_epsilon,
    "zcdp": zcdp_epsilon,
    "pure": pure_epsilon,
    "dwork-roth": dwork_roth_epsilon,
}


Constants = Annotated[str, among(tuple(CONSTANTS))]


@described("mechanisms.RedrawnSparseVector")
class RedrawnSparseVector(Thresholds):
    """Runs `SparseVector` with a new noisy threshold after each positive, for (epsilon, delta).

    `constants` chooses the price of a round: "best" (the default: the pure split for few positives, then
    concentrated and optimal composition as far as a budget of (epsilon, delta) admits it), "optimal" (up to a
    third less noise, for rounds that no filter has to admit one by one), "zcdp", "pure", or "dwork-roth" (the
    textbook's: equal shares, and noise of scale sqrt(32 c ln(1/delta)) / epsilon, c = `positives`).

    Guarantee: (epsilon, delta)-DP; halts at the c-th positive. The event is more precise: c rounds, each of
               them e0-DP, with e0 the property `round_epsilon`.
    Proof:     up to its positive a round is a `SparseVector` with one positive and epsilon e0; the rounds are
               in sequence, each chosen after the one before. The total is proved at the function that
               `constants` names in `CONSTANTS`.
    Assumes:   as `SparseVector`.
    """

    public: Annotated[Public, PUBLIC]
    threshold: Annotated[int, INTEGER]
    epsilon: Real
    delta: float
    positives: Positives = 1
    sensitivity: Annotated[int, at_least(1)] = 1
    monotone: bool = False
    numeric: bool = False
    gap: bool = False
    split: Split | None = None
    constants: Constants = "best"
    questions: Annotated[int, at_least(1)] | None = None
    redraws: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_budget(self.epsilon, self.delta)
        _require.that(
            self.constants != "dwork-roth" or (not self.monotone and not self.numeric and self.split is None),
            "constants='dwork-roth' (the textbook's) has no monotone, numeric or split variant. Use "
            "constants='best'.",
        )
        self.round  # noqa: B018 - SparseVector checks the fields together

    @property
    def round_epsilon(self) -> Fraction:
        """e0, the epsilon of one round; only for `constants="best"` by the function of the same name."""
        return CONSTANTS[self.constants](self.epsilon, self.delta, self.positives)

    @property
    def round(self) -> SparseVector:
        """One round: a `SparseVector` that halts at its only positive."""
        textbook = self.constants == "dwork-roth"
        return SparseVector(
            public=self.public,
            threshold=self.threshold,
            epsilon=self.round_epsilon,
            sensitivity=self.sensitivity,
            monotone=self.monotone,
            numeric=self.numeric,
            gap=self.gap,
            split=(1, 1) if textbook else self.split,
        )

    @property
    def scales(self) -> tuple[Fraction, Fraction, Fraction | None]:
        return self.round.scales

    @property
    def event(self) -> Event:
        return PureDP(epsilon=self.round_epsilon, neighbors=self.public.neighbors).repeated(self.positives)


@described("mechanisms.StableSparseVector")
class StableSparseVector(Comparing):
    """Releases exact values of stable functions, or None; halts at the `failures`-th None, or after
    `questions` questions.

    With `constants=None` one noisy threshold is kept throughout (Lyu, Su & Li). With "optimal", "zcdp" or
    another of the `constants` of `RedrawnSparseVector` the threshold is drawn again after each failure, and
    half of delta pays for the composition: better for hundreds of failures.

    Guarantee: (epsilon, delta)-DP.
    Proof:     let T be `threshold`, rho the noise on it, and nu the noise on a distance. "None" is distance +
               nu < T + rho, that is, (-distance) - nu >= (1 - T) - rho: the answers None / not None are those
               of a sparse vector on the statistic -distance of sensitivity 1, (epsilon, d1)-DP with d1 = 0 or
               delta/2. Fix two neighbors. Where a question has the same value on both, releasing it is
               post-processing of "not None". Where it has not, both distances are 0, and "not None" needs nu
               >= T + rho. The probability that this ever happens is at most d2 = `questions` * P(nu >= T +
               rho). For until it happens every such question gets None, and with redrawn thresholds None ends
               the round: so one rho meets at most `questions` of them, a redrawn one at most one. Whether
               such a question is asked may depend on rho, but its nu does not: "asked, and nu >= T + rho" has
               probability at most P(nu >= T + rho). So for outputs S, with E the event that it happens: P(S)
               <= P(S, not E) + d2 <= e^epsilon P'(S, not E) + d1 + d2 <= e^epsilon P'(S) + d1 + d2. T is
               chosen such that d2 is at most delta - d1: P(nu >= y) <= q^y / (1+q) for every integer y, so
               P(nu >= T + rho) <= q^T E[q^rho] / (1+q), and E[q^rho] = (1-r)^2 / ((1-rq)(1-r/q)), where q =
               exp(-1/scale of nu) > r = exp(-1/scale of rho). The construction is that of Bassily, Thakkar &
               Thakurta 2018, arXiv:1803.05101.
    Assumes:   every question has the properties that `Stable` asks for; the state stays secret and is used
               once.
    """

    public: Annotated[Public, PUBLIC]
    epsilon: Real
    delta: float
    failures: Annotated[int, at_least(1)]
    questions: Annotated[int, at_least(1)]
    constants: Constants | None = None

    def __post_init__(self) -> None:
        check_budget(self.epsilon, self.delta)
        self.threshold  # noqa: B018 - refuses parameters for which no threshold is proved

    @property
    def scales(self) -> tuple[Fraction, Fraction]:
        """The scales of the noise on the threshold, and on each distance."""
        if self.constants is None:
            pure = SparseVector(
                public=self.public, threshold=0, epsilon=self.epsilon, positives=self.failures
            )
            return pure.scales[:2]
        redrawn = RedrawnSparseVector(
            public=self.public,
            threshold=0,
            epsilon=self.epsilon,
            delta=self.delta / 2,
            positives=self.failures,
            constants=self.constants,
        )
        return redrawn.scales[:2]

    @property
    def threshold(self) -> int:
        """T, so large that the value of any function with distance 0 is ever released with probability at
        most `delta` (half of it if thresholds are redrawn)."""
        delta = _require.exact(self.delta, "delta") / (1 if self.constants is None else 2)
        threshold_scale, query_scale = self.scales
        ratio = self.questions * _moment(threshold_scale, query_scale) / delta
        return math.ceil(query_scale * Fraction(noise.log_above(max(ratio, Fraction(1)))))

    @property
    def event(self) -> Event:
        return ApproximateDP(epsilon=self.epsilon, delta=self.delta, neighbors=self.public.neighbors)

    def error(self, confidence: float = 0.95) -> int:
        """Return a number of people: if every question has this distance from instability, all values are
        released with probability `confidence`."""
        # Each of the two kinds of noise may fail with half of 1 - confidence.
        failure = failure_of(confidence) / 2
        threshold_scale, query_scale = self.scales
        rho_bound = noise.laplace_quantile(threshold_scale, failure) - 1
        nu_bound = noise.laplace_quantile(query_scale, failure / self.questions) - 1
        return self.threshold + rho_bound + nu_bound

    @property
    def rounds(self) -> SparseVectorRounds:
        """The comparisons, whose positives are the failures: distances below the noisy threshold."""
        threshold, query = self.scales
        return SparseVectorRounds(
            threshold=threshold,
            query=query,
            value=None,
            max_positives=self.failures,
            redraws=self.constants is not None,
            center=self.threshold,
            names=("threshold", "failures"),
        )

    def answer(self, state: State, source: Source, question: Any, *, entropy: Entropy) -> Answered:
        """Return the next state, and the exact value or None. The answer costs nothing: all was paid at the
        start."""
        rounds = self.rounds
        before = rounds.check(state, self.questions)
        check_stable(question, self.public, 0)
        check_source(self.public, source)
        value, distance = question.value(source), question.distance(source, 0)
        failed = rounds.compare(before, distance, entropy) < 0
        result = (None, entropy) if failed else (stated(question, value), entropy, lambda confidence: 0)
        return rounds.after(before, failed, entropy), self.paid(*result)


def _moment(threshold_scale: Fraction, query_scale: Fraction) -> Fraction:
    """Return an upper bound of E[q^rho] / (1+q), with q and r as in the proof of `StableSparseVector`."""
    r_low, r_high = (1 / bound for bound in reversed(noise.exp_bounds(1 / threshold_scale)))
    q_low, q_high = (1 / bound for bound in reversed(noise.exp_bounds(1 / query_scale)))
    return (1 - r_low) ** 2 / ((1 - r_high * q_high) * (1 - r_high / q_low) * (1 + q_low))
