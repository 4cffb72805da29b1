"""Defines aggregators of votes: how an ensemble of teachers on disjoint parts of the data answers (PATE).

Each question is a vector of counts: how many teachers vote for each class. One unit is in the part of one
teacher, and so moves one vote: one count falls by 1, another rises by 1. All noise is integer and exact, and
its price is that of the discrete distribution. The whole price of `queries` questions is known, and paid,
before the first. Whatever an aggregator releases is a function of noisy counts, all of which were priced, so
the noisy count of the winner, which shows how far teachers agree, costs nothing more.

LNMax: Papernot et al. 2017, arXiv:1610.05755. GNMax, Confident- and Interactive-GNMax: Papernot et al. 2018,
arXiv:1802.08908. The aggregators that release the exact winner of a clear vote are in
`mechanisms.votes`.

Computes the data-dependent cost of an aggregator of votes (PATE), and releases it sanitized.

Where teachers agree, an answer costs far less than its worst case (Papernot et al. 2018, arXiv:1802.08908,
Theorem 6). That figure is computed from private votes and is private itself. The charge in the ledger never
depends on it. `SanitizedCost` publishes it beside the charge, with noise in proportion to its smooth
sensitivity; that noise has a price of its own, which is part of what is charged at the start.

Defines aggregators that release the exact plurality of teachers' votes where it is stable, and nothing
otherwise.

The distance to instability of a plurality is the number of votes that can change before another class could
win. Bassily, Thakkar & Thakurta 2018, arXiv:1803.05101: M_stab tests this distance for every question and
pays for each; M_samp does the same for teachers on overlapping subsamples; M_svec, a sparse vector over
distances, pays only for unstable questions, so that thousands of questions cost as much as a few.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from fractions import Fraction
from statistics import NormalDist
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import _require, sampling
from .._errors import Halted
from .._public import ADD_REMOVE, Neighbors, Public
from .._registry import described, named
from .._require import INTEGER, OPEN_PROBABILITY, POSITIVE, PROBABILITY, Real, at_least, at_most
from ..accounting import (
    ApproximateDP,
    DiscreteGaussian,
    DiscreteLaplace,
    Event,
    PureDP,
    Thresholded,
    calibrate,
    compose,
    pate,
)
from ..accounting.conversion import rdp_to_epsilon
from ..sampling import Entropy
from .noise import draw, laplace_quantile
from .sparse_vector import StableSparseVector
from .stability import SmoothNoise, check_budget, failure_of, smooth_noise

__all__ = ["Aggregator", "ConfidentGNMax", "GNMax", "InteractiveGNMax", "LNMax", "Vote"]

Counts = NDArray[np.int64]
State = dict[str, Any]


class Vote(NamedTuple):
    """One answer of an aggregator: the number of a class, or None where it refused; the noisy count of that
    class, where the price includes it; and whether the student's own prediction was `reinforced`
    (`InteractiveGNMax`)."""

    label: int | None
    votes: int | None = None
    reinforced: bool = False


# The next state, and the answer.
Labeled = tuple[State, Vote]


class Aggregator(ABC):
    """Base of what turns votes into labels, for a price that is fixed beforehand.

    `queries` is the largest number of questions that it answers or refuses. The state is JSON-able, with the
    public counters "asked" and "answered"; all else in it is secret, and of the same length for all values.
    """

    __slots__ = ()
    queries: int

    @property
    def most_answers(self) -> int:
        """The number of answers after which it halts."""
        return self.queries

    @property
    def most_refusals(self) -> int | None:
        """The number of refusals after which it halts; None where only questions are counted."""
        return None

    @abstractmethod
    def event(self, neighbors: Neighbors = ADD_REMOVE) -> Event:
        """Return the price of all questions."""

    @abstractmethod
    def lead(self, confidence: float, classes: int) -> int:
        """Return by how many votes a class must lead to be the answer with probability `confidence`, under
        the conditions that each aggregator states."""

    def start(self, entropy: Entropy) -> State:
        """Return the state before the first question."""
        return {"asked": 0, "answered": 0}

    def label(self, state: State, counts: Counts, *, entropy: Entropy, prediction: Any = None) -> Labeled:
        """Return the next state and the answer to one question; `prediction` is the student's, which only
        `InteractiveGNMax` needs."""
        self.check_open(state)
        return self._label(state, counts, entropy, prediction)

    @abstractmethod
    def _label(self, state: State, counts: Counts, entropy: Entropy, prediction: Any) -> Labeled:
        """Answer one question, which was paid for."""

    def check_open(self, state: State) -> None:
        """Refuse a question beyond those that were paid for."""
        asked, answered, refusals = state["asked"], state["answered"], self.most_refusals
        used_up = asked >= self.queries or answered >= self.most_answers
        if used_up or (refusals is not None and asked - answered >= refusals):
            limits = f"{self.queries} questions, {self.most_answers} answers"
            limits += "" if refusals is None else f", {refusals} refusals"
            raise Halted(
                f"what was paid for is used up ({asked} asked, {answered} answered, of at most {limits}), so "
                "this has halted for good. Buy a new labeller, or train a student on the answers."
            )


@described("mechanisms.LNMax")
class LNMax(Aggregator):
    """Answers with the class of the largest count after discrete Laplace noise of `scale` on every count: the
    noisy arg-max of simple PATE.

    Guarantee: (2 / scale)-DP for one question, and no less: Lap(1/epsilon), as often taught, is 2 epsilon-DP.
    Proof:     one unit moves one vote, so two counts change by 1 each: the noisy counts, of which the answer
               is a function, are two discrete Laplace releases of sensitivity 1.
    Assumes:   the counts are those of teachers on disjoint parts.
    """

    scale: Annotated[Real, POSITIVE]
    queries: Annotated[int, at_least(1)]

    @classmethod
    def for_privacy(cls, epsilon: float, delta: float, queries: int) -> LNMax:
        """Return the least noise with which `queries` questions cost at most (epsilon, delta)."""
        scale = calibrate(
            lambda s: cls(scale=_thousandth(s), queries=queries).event(), epsilon=epsilon, delta=delta
        )
        return cls(scale=_thousandth(scale), queries=queries)

    def event(self, neighbors: Neighbors = ADD_REMOVE) -> Event:
        noise = DiscreteLaplace(scale=self.scale, sensitivity=1, neighbors=neighbors)
        return noise.repeated(2 * int(self.queries))

    def lead(self, confidence: float, classes: int) -> int:
        """Return a lead in votes that noise leaves in place with probability `confidence`, because no
        count has noise of more than half of it."""
        _require.integer(classes=classes, at_least=2)
        tail = failure_of(confidence) / (2 * classes)
        return 2 * laplace_quantile(_require.exact(self.scale, "scale"), tail) + 1

    def _label(self, state: State, counts: Counts, entropy: Entropy, prediction: Any) -> Labeled:
        scale = _require.exact(self.scale, "scale")
        return _answer_vote(state, counts + sampling.discrete_laplace(scale, len(counts), entropy))


@described("mechanisms.GNMax")
class GNMax(Aggregator):
    """Answers with the class of the largest count after discrete Gaussian noise of `variance` on every count.

    Guarantee: for one question, that of two discrete Gaussian releases of sensitivity 1. It is very close to
               the published price of GNMax, a Gaussian with noise multiplier sigma / sqrt(2).
    Proof:     one unit moves one vote, so two counts change by 1 each; the answer is a function of the noisy
               counts. A question may depend on earlier answers, because the same pair of distributions
               dominates every question (Papernot et al. 2018, arXiv:1802.08908, Proposition 8, for continuous
               noise and its Rényi price).
    Assumes:   the counts are those of teachers on disjoint parts.
    """

    variance: Annotated[Real, POSITIVE]
    queries: Annotated[int, at_least(1)]

    @classmethod
    def for_privacy(cls, epsilon: float, delta: float, queries: int) -> GNMax:
        """Return the least noise with which `queries` questions cost at most (epsilon, delta)."""
        sigma = calibrate(
            lambda s: cls(variance=_thousandth(s * s), queries=queries).event(), epsilon=epsilon, delta=delta
        )
        return cls(variance=_thousandth(sigma * sigma), queries=queries)

    @property
    def sigma(self) -> float:
        return math.sqrt(self.variance)

    def event(self, neighbors: Neighbors = ADD_REMOVE) -> Event:
        return two_counts(self.variance, neighbors).repeated(int(self.queries))

    def lead(self, confidence: float, classes: int) -> int:
        """Return a lead in votes that noise leaves in place with probability `confidence`."""
        return gaussian_lead(self.variance, confidence, classes)

    def _label(self, state: State, counts: Counts, entropy: Entropy, prediction: Any) -> Labeled:
        return _answer_vote(state, noisy(counts, self.variance, entropy))


@described("mechanisms.ConfidentGNMax")
class ConfidentGNMax(Aggregator):
    """Answers as GNMax if the largest count, with noise of its own, reaches `threshold` (the check); else
    refuses.

    `check_variance` is the variance of the noise on the largest count, `variance` that of the noise on each
    count of an answer. It halts after `queries` checks, or after `answers` answers.

    Guarantee: that of `queries` discrete Gaussian releases of sensitivity 1 for the checks, and 2 `answers`
               more for the answers.
    Proof:     one moved vote changes the largest count by at most 1. The order of checks and answers depends
               on earlier outcomes, but the largest number of either does not. So the two kinds of releases,
               interleaved, cost as much as one kind after the other (concurrent composition: Vadhan & Zhang
               2023, arXiv:2207.08335). Papernot et al. 2018, arXiv:1802.08908, Algorithm 1.
    Assumes:   the counts are those of teachers on disjoint parts.
    """

    threshold: Annotated[int, INTEGER]
    check_variance: Annotated[Real, POSITIVE]
    variance: Annotated[Real, POSITIVE]
    queries: Annotated[int, at_least(1)]
    answers: Annotated[int, at_least(1)]

    def __post_init__(self) -> None:
        _require.must(
            self.answers <= self.queries, "answers", self.answers, f"at most queries={self.queries}"
        )

    @property
    def most_answers(self) -> int:
        return self.answers

    @classmethod
    @_require.check_options
    def for_privacy(
        cls,
        epsilon: float,
        delta: float,
        queries: int,
        *,
        answers: int,
        threshold: int,
        ratio: Annotated[float, POSITIVE] = 3.75,
    ) -> ConfidentGNMax:
        """Return the least noise, of sigma 0.5 to 10**6, with which all checks and answers cost at most
        (epsilon, delta).

        `ratio` is the sigma of a check divided by that of an answer: 150 / 40 in the paper's MNIST
        experiment.
        """
        return cls._least_noise(epsilon, delta, queries, answers, threshold, ratio)

    @classmethod
    def _least_noise(
        cls,
        epsilon: float,
        delta: float,
        queries: int,
        answers: int,
        threshold: int,
        ratio: float,
        **more: Any,
    ) -> ConfidentGNMax:
        """Return the aggregator of `for_privacy`; `more` are fields that do not enter the price."""

        def build(sigma: float) -> ConfidentGNMax:
            return cls(
                threshold=threshold,
                check_variance=_thousandth((ratio * sigma) ** 2),
                variance=_thousandth(sigma * sigma),
                queries=queries,
                answers=answers,
                **more,
            )

        sigma = calibrate(lambda s: build(s).event(), epsilon=epsilon, delta=delta, bracket=(0.5, 1e6))
        return build(sigma)

    @property
    def sigma(self) -> float:
        return math.sqrt(self.variance)

    def event(self, neighbors: Neighbors = ADD_REMOVE) -> Event:
        check = DiscreteGaussian(variance=self.check_variance, sensitivity=1, neighbors=neighbors)
        answers = two_counts(self.variance, neighbors).repeated(int(self.answers))
        return compose([check.repeated(int(self.queries)), answers])

    def lead(self, confidence: float, classes: int) -> int:
        """Return a lead in votes that noise leaves in place with probability `confidence`, if the question is
        answered."""
        return gaussian_lead(self.variance, confidence, classes)

    def _label(self, state: State, counts: Counts, entropy: Entropy, prediction: Any) -> Labeled:
        if not _above(int(counts.max()), self.threshold, self.check_variance, entropy):
            return {**state, "asked": state["asked"] + 1}, Vote(None)
        return _answer_vote(state, noisy(counts, self.variance, entropy))


@described("mechanisms.InteractiveGNMax")
class InteractiveGNMax(ConfidentGNMax):
    """Answers as GNMax only where teachers disagree enough with the student's own prediction; where they do
    not, and the student gives a class a probability above `confident`, that class is the answer; else
    refuses.

    A question comes with the student's probability of each class. From each count the count that the student
    expects is subtracted: its probability times `teachers`, the number of teachers, rounded down. The largest
    difference, with noise, is compared with the threshold.

    Guarantee: as `ConfidentGNMax`.
    Proof:     the student's prediction is public, and the same on both neighbors: a moved vote changes the
               largest difference by at most 1. Answering with the prediction costs nothing more. Papernot et
               al. 2018, arXiv:1802.08908, Algorithm 2.
    Assumes:   the counts are those of teachers on disjoint parts; the prediction depends on released answers
               and public data alone.
    """

    confident: Annotated[float, PROBABILITY] = 0.9
    # by default the number of teachers in the paper of 2017
    teachers: Annotated[int, at_least(1)] = 250

    @classmethod
    @_require.check_options
    def for_privacy(  # type: ignore[override]
        cls,
        epsilon: float,
        delta: float,
        queries: int,
        *,
        answers: int,
        threshold: int,
        teachers: int,
        ratio: Annotated[float, POSITIVE] = 3.75,
        confident: float = 0.9,
    ) -> ConfidentGNMax:
        """Return the least noise as `ConfidentGNMax.for_privacy` does. The number of `teachers` has no
        default, because a wrong one makes answers poor and nothing shows it."""
        return cls._least_noise(
            epsilon, delta, queries, answers, threshold, ratio, teachers=teachers, confident=confident
        )

    def expected(self, prediction: Any, classes: int) -> Counts:
        """Return the counts that the student expects, from its probabilities."""
        probabilities = np.asarray(prediction, dtype=np.float64).ravel()
        fits = len(probabilities) == classes and np.isfinite(probabilities).all() and min(probabilities) >= 0
        _require.must(fits, "prediction", prediction, f"{classes} probabilities of the student")
        return np.asarray(np.floor(np.minimum(probabilities, 1) * int(self.teachers)), dtype=np.int64)

    def _label(self, state: State, counts: Counts, entropy: Entropy, prediction: Any) -> Labeled:
        expected = self.expected(prediction, len(counts))
        if _above(int((counts - expected).max()), self.threshold, self.check_variance, entropy):
            return _answer_vote(state, noisy(counts, self.variance, entropy))
        state = {**state, "asked": state["asked"] + 1}
        probabilities = np.asarray(prediction, dtype=np.float64).ravel()
        if probabilities.max() > self.confident:
            return state, Vote(int(probabilities.argmax()), None, True)
        return state, Vote(None)


def two_counts(variance: Real, neighbors: Neighbors) -> Event:
    """Return the price of one vector of counts with discrete Gaussian noise: a moved vote changes two of them
    by 1."""
    return DiscreteGaussian(variance=variance, sensitivity=1, neighbors=neighbors).repeated(2)


def gaussian_lead(variance: Real, confidence: float, classes: int) -> int:
    """Return a lead in votes that discrete Gaussian noise on every count leaves in place with probability
    `confidence`.

    Proof: the noise of two counts differs by g or more with probability at most Phi(-(g - 2) / (sigma sqrt
           2)), see `answer_votes`; a union bound over the classes - 1 others.
    """
    _require.open_probability(confidence=confidence)
    _require.integer(classes=classes, at_least=2)
    # The quantile is that of the lower tail: for the upper one, 1 minus a small probability may round to 1.
    quantile = -NormalDist().inv_cdf((1 - float(confidence)) / (classes - 1))
    return 2 + max(0, math.ceil(math.sqrt(2 * float(variance)) * quantile * (1 + 1e-9)))


def noisy(counts: Counts, variance: Real, entropy: Entropy) -> Counts:
    """Return the counts, each with its own discrete Gaussian noise."""
    noise = sampling.discrete_gaussian(
        sigma_squared=_require.exact(variance, "variance"), n=len(counts), entropy=entropy
    )
    return np.asarray(counts + noise)


def _answer_vote(state: State, noisy_counts: Counts) -> Labeled:
    """Return the next state, and the class of the largest noisy count; the first of several."""
    winner = int(np.argmax(noisy_counts))
    after = {**state, "asked": state["asked"] + 1, "answered": state["answered"] + 1}
    return after, Vote(winner, int(noisy_counts[winner]))


def _above(value: int, threshold: int, variance: Real, entropy: Entropy) -> bool:
    """Return whether the value with discrete Gaussian noise reaches the threshold."""
    noise = sampling.discrete_gaussian(
        sigma_squared=_require.exact(variance, "check_variance"), n=1, entropy=entropy
    )
    return value + int(noise[0]) >= threshold


def _thousandth(value: float) -> Fraction:
    """Round up to a thousandth: exact samplers take rationals, and short ones are quick."""
    return Fraction(math.ceil(value * 1000), 1000)


# The step of the grid on which a cost is put before noise is added. Chosen by hand, small beside any cost of
# interest; `SanitizedCost` states it in its proof.
_STEP = 2.0**-30
# The largest Rényi order that is accepted, chosen by hand.
_LARGEST_ORDER = 1_000_000
# The power of the polynomial noise on the cost: the least with a finite variance.
_POWER = 3
# The least variance for which the proof of `answer_votes` may neglect 2 exp(-2 pi^2 variance): at 64 that is
# below 2^-1000 / 10^12, far less than the smallest probability that `accounting.pate` distinguishes from
# zero.
_LEAST_VARIANCE = 64
# Hexadecimal digits of every number in the text of a record: 32 bits.
_DIGITS = 8


class Recorded(NamedTuple):
    """The private facts of one question: the number that was compared with the threshold (None for GNMax,
    which has none), and the counts of votes (None where no answer was given)."""

    compared: int | None
    counts: tuple[int, ...] | None


@named("mechanisms.SanitizedFigure")
class SanitizedFigure(NamedTuple):
    """A published data-dependent cost: the noisy Rényi cost `rdp` at `order`, and the `epsilon` at `delta`
    that follows from it, the price of this publication included."""

    order: float
    rdp: float
    epsilon: float
    delta: float


def answer_votes(counts: Iterable[int]) -> tuple[float, ...]:
    """Return the counts from which the cost of discrete noise is computed by the formula for continuous
    noise: the lead of the winner is 2 smaller (but not below 0).

    Proof: P(X >= m) <= P(N >= m - 1) for discrete Gaussian X and Gaussian N of the same variance (Canonne,
           Kamath & Steinke 2020, arXiv:2004.00010v4, Proposition 25; for m <= 0 by symmetry, up to 2 exp(-2
           pi^2 variance)). So two discrete noises differ by g or more with at most the probability that
           Gaussian ones differ by g - 2 or more.
    """
    values = np.array(list(counts), dtype=np.int64)
    top = int(np.argmax(values))
    second = int(np.max(np.delete(values, top)))
    values[top] = max(int(values[top]) - 2, second)
    return tuple(float(v) for v in values)


def check_votes(compared: int, threshold: int) -> tuple[float, float]:
    """Return two counts for which one answer of GNMax, with noise of sigma sqrt(2), costs as much as one
    check with noise of sigma.

    Proof: noise on one number that moves by 1 costs order / (2 sigma^2), as two counts do at sigma sqrt(2).
           With v = `compared` and T = `threshold`, the less likely outcome of the check needs noise of -(v
           - T + 1) or less (T - v or more, if v < T), which has probability at most Phi(-margin / sigma) with
           margin = v - T (or T - v - 1), by the same Proposition 25. In two counts with noise of sigma
           sqrt(2) that is a lead of twice the margin. A moved vote changes it by at most 2, as it does any
           lead.
    """
    margin = compared - threshold if compared >= threshold else threshold - compared - 1
    return 2.0 * margin, 0.0


@described("mechanisms.SanitizedCost")
class SanitizedCost:
    """Publishes the data-dependent Rényi cost at `order`, for an `epsilon` of its own.

    Guarantee: epsilon-DP, for units that move one vote in every question.
    Proof:     the cost, in steps of 2^-30, moves by at most its local sensitivity plus two steps: one for
               rounding to the grid, one for the rounding of sums in floats.
               `accounting.pate.smooth_sensitivity` is a beta-smooth bound of the local sensitivity, of the
               answers and of the checks (`check_votes`); sums of beta-smooth bounds and constants are
               beta-smooth. Noise: `SmoothNoise`. Which questions were answered is released, and fixed here.
    Assumes:   the same as `accounting.pate`; noise of a variance of at least 64.
    """

    epsilon: Annotated[Real, POSITIVE]
    order: Annotated[float, POSITIVE, at_most(_LARGEST_ORDER)]

    def __post_init__(self) -> None:
        _require.must(self.order > 1, "order", self.order, "above 1")
        self._noise  # noqa: B018 - refuses an epsilon that `smooth_noise` does not take

    def event(self, neighbors: Neighbors = ADD_REMOVE) -> Event:
        return PureDP(epsilon=self.epsilon, neighbors=neighbors)

    @property
    def _noise(self) -> SmoothNoise:
        return smooth_noise(self.epsilon, None, _POWER)

    def check(self, aggregator: Any) -> None:
        """Refuse an aggregator whose data-dependent cost is not known here."""
        check_cost_known(aggregator)
        checks = [aggregator.check_variance] if isinstance(aggregator, ConfidentGNMax) else []
        least = min([aggregator.variance, *checks])
        wanted = f"at least {_LEAST_VARIANCE} for a sanitized cost"
        _require.must(least >= _LEAST_VARIANCE, "variance", least, wanted)

    def exact(self, aggregator: Any, history: Iterable[Recorded]) -> tuple[float, float]:
        """Return the cost and its smooth sensitivity. Both are private: for the release with noise, or for
        the steward's eyes."""
        beta = self._noise.beta
        total = smooth = 0.0
        for votes, sigma in _questions(aggregator, list(history)):
            total += pate.vote_cost(votes, sigma, [self.order]).rdp_for_steward()[float(self.order)]
            smooth += pate.smooth_sensitivity(votes, sigma, order=self.order, beta=beta)
        return total, smooth

    def __call__(
        self, aggregator: Any, history: Iterable[Recorded], *, delta: float, entropy: Entropy
    ) -> SanitizedFigure:
        """Release the noisy cost, and the epsilon it stands for; between 0 and the worst case."""
        total, smooth = self.exact(aggregator, history)
        noise = self._noise.draw(smooth / _STEP + 2, entropy)
        rdp = min(max((round(total / _STEP) + noise) * _STEP, 0.0), self.worst(aggregator))
        epsilon = rdp_to_epsilon(self.order, rdp, delta) + float(self.epsilon)
        return SanitizedFigure(float(self.order), float(rdp), float(epsilon), float(delta))

    def worst(self, aggregator: Any) -> float:
        """Return the data-independent cost, at this order, of all questions that were paid for."""
        checks = isinstance(aggregator, ConfidentGNMax)
        per_check = self.order / (2 * float(aggregator.check_variance)) if checks else 0.0
        answers = aggregator.most_answers * self.order / float(aggregator.variance)
        return float(aggregator.queries * per_check + answers)


def check_cost_known(aggregator: Any) -> None:
    """Refuse an aggregator without a data-dependent cost."""
    _require.that(
        isinstance(aggregator, GNMax | ConfidentGNMax),
        f"the data-dependent cost of {type(aggregator).__name__} is not known here: it is of GNMax, "
        "ConfidentGNMax and InteractiveGNMax. Leave `sanitize` out.",
    )


def best_order(aggregator: Any, teachers: int, classes: int, delta: float, agreement: float = 0.9) -> float:
    """Return the order at which the cost gives the smallest epsilon at `delta`, on the assumption that a
    share `agreement` of the teachers agrees on every answer. It is computed from public numbers alone."""
    _require.open_probability(agreement=agreement, delta=delta)
    leader = math.floor(agreement * teachers)
    counts = (leader, *([math.ceil((teachers - leader) / max(classes - 1, 1))] * (classes - 1)))
    compared = leader if isinstance(aggregator, ConfidentGNMax) else None
    costs = _costs(aggregator, [Recorded(compared, counts)] * aggregator.most_answers)
    return min(costs, key=lambda order: rdp_to_epsilon(order, costs[order], delta))


def cost_epsilon(aggregator: Any, history: Iterable[Recorded], delta: float) -> float:
    """Return the data-dependent epsilon, at the best order. Not differentially private: for the steward's
    eyes."""
    costs = _costs(aggregator, list(history))
    return min(rdp_to_epsilon(order, rdp, delta) for order, rdp in costs.items())


def _costs(aggregator: Any, history: list[Recorded]) -> dict[float, float]:
    """Return the data-dependent Rényi cost of all questions at each order."""
    costs = dict.fromkeys(pate.ORDERS, 0.0)
    for votes, sigma in _questions(aggregator, history):
        for order, rdp in pate.vote_cost(votes, sigma).rdp_for_steward().items():
            costs[order] += rdp
    return costs


def record_text(record: Recorded, classes: int) -> str:
    """Return a record as text for an encrypted state; its length depends on the number of classes alone."""
    numbers = [record.compared or 0, *(record.counts or (0,) * classes)]
    flags = f"{int(record.compared is not None)}{int(record.counts is not None)}"
    return flags + "".join(f"{number + (1 << 31):0{_DIGITS}x}" for number in numbers)


def parse_record(text: str) -> Recorded:
    """Return the record that `record_text` wrote as this text."""
    numbers = [int(text[i : i + _DIGITS], 16) - (1 << 31) for i in range(2, len(text), _DIGITS)]
    return Recorded(numbers[0] if text[0] == "1" else None, tuple(numbers[1:]) if text[1] == "1" else None)


def record(aggregator: Any, counts: Counts, answered: bool, prediction: Any = None) -> Recorded:
    """Return the record of one question, from which its cost is computed."""
    compared: int | None = None
    if isinstance(aggregator, InteractiveGNMax):
        compared = int((counts - aggregator.expected(prediction, len(counts))).max())
    elif isinstance(aggregator, ConfidentGNMax):
        compared = int(counts.max())
    return Recorded(compared, tuple(int(c) for c in counts) if answered else None)


def _questions(aggregator: Any, history: list[Recorded]) -> list[tuple[list[tuple[float, ...]], float]]:
    """Return, for the answers and (where the aggregator has them) for the checks, the vectors of votes whose
    cost is to be computed, and the sigma of their noise."""
    answers = [answer_votes(r.counts) for r in history if r.counts is not None]
    parts: list[tuple[list[tuple[float, ...]], float]] = [(answers, math.sqrt(aggregator.variance))]
    if isinstance(aggregator, ConfidentGNMax):
        checks = [check_votes(r.compared, aggregator.threshold) for r in history if r.compared is not None]
        parts.append((list(checks), math.sqrt(2 * float(aggregator.check_variance))))
    return parts


# Characters of the secret number in a state, its sign included: the same for every value, because the length
# of an encrypted state can be seen.
_STABLE_DIGITS = 24


def distance(counts: Counts) -> int:
    """Return the largest number of votes that can move without a change of the plurality: the distance to
    instability, 0 where one vote may change it.

    Guarantee: moves by at most 1 when one vote moves, and is 0 on both sides of a change of the plurality.
    Proof:     as `StableMode` under replace. Let i be the plurality, j another class, n_i and n_j their
               votes. j becomes the plurality once n_j - n_i has grown by g = n_i - n_j, plus 1 if j comes
               after i; one moved vote adds at most 2. So ceil(g/2) votes are needed for the smallest g, and
               distance is one less.
    """
    winner = int(np.argmax(counts))
    deficits = counts[winner] - counts + (np.arange(len(counts)) > winner)
    needed = int(np.min(np.delete(deficits, winner)))
    return (needed + 1) // 2 - 1


@described("mechanisms.StableVotes")
class StableVotes(Aggregator):
    """Answers with the exact plurality if its distance to instability passes a noisy test, else refuses;
    every question is paid for (M_stab).

    `scale` is that of the discrete Laplace noise on a distance: 1/epsilon for the epsilon of one question.
    `failure` is the delta of one question.

    Guarantee: one question is `Thresholded(DiscreteLaplace(scale), failure)`, so (1/scale, failure)-DP.
    Proof:     `DistanceToInstability`: where neighbors have the same plurality, the answer is post-processing
               of the noisy distance, which moves by at most 1; where not, both distances are 0 and both
               refuse except with probability `failure`. Either is dominated by the one event.
    Assumes:   the counts are those of teachers on disjoint parts.
    """

    scale: Annotated[Real, POSITIVE]
    failure: Annotated[float, OPEN_PROBABILITY]
    queries: Annotated[int, at_least(1)]

    @classmethod
    def for_privacy(cls, epsilon: float, delta: float, queries: int) -> StableVotes:
        """Return the least noise with which `queries` questions cost at most (epsilon, delta): half of delta
        is for unstable questions that pass the test by chance, half for composition."""
        check_budget(epsilon, delta)
        _require.integer(queries=queries, at_least=1)
        failure = delta / (2 * queries)

        def build(scale: float) -> StableVotes:
            # a short fraction that is not below `scale`
            exact = Fraction(scale).limit_denominator(1000) + Fraction(1, 1000)
            return cls(scale=exact, failure=failure, queries=queries)

        return build(calibrate(lambda s: build(s).event(), epsilon=epsilon, delta=delta, bracket=(1e-2, 1e6)))

    @property
    def reach(self) -> int:
        """The noisy distance that passes: noise alone gets there with probability at most `failure`."""
        return laplace_quantile(_require.exact(self.scale, "scale"), _require.exact(self.failure, "failure"))

    def lead(self, confidence: float, classes: int) -> int:
        """Return a lead in votes at which a question is answered with probability `confidence`."""
        noise_bound = laplace_quantile(_require.exact(self.scale, "scale"), failure_of(confidence))
        return 2 * (self.reach + noise_bound)

    def event(self, neighbors: Neighbors = ADD_REMOVE) -> Event:
        noise = DiscreteLaplace(scale=self.scale, sensitivity=1, neighbors=neighbors)
        test = Thresholded(event=noise, delta=self.failure, neighbors=neighbors)
        return test.repeated(int(self.queries))

    def _label(self, state: State, counts: Counts, entropy: Entropy, prediction: Any) -> Labeled:
        passed = self._distance(counts) + draw(_require.exact(self.scale, "scale"), entropy) >= self.reach
        return _answer_stable_vote(state, counts, passed)

    def _distance(self, counts: Counts) -> int:
        """Return what the test adds noise to: 0 where one unit may change the plurality."""
        return distance(counts)


@described("mechanisms.SampledVotes")
class SampledVotes(StableVotes):
    """Answers with the exact plurality of teachers on overlapping subsamples if it is stable, else refuses;
    every question is paid for (M_samp).

    Every unit is given to `overlap` of the teachers, drawn at random for it alone. So teachers see `overlap`
    times more data, and a plurality must lead by `overlap` times more votes. `scale` and `failure` are as in
    `StableVotes`.

    Guarantee: one question is `Thresholded(DiscreteLaplace(scale), failure)`, so (1/scale, failure)-DP.
    Proof:     one unit moves at most `overlap` = m votes, so `distance` by at most m, and floor(distance / m)
               by at most 1. Where m votes can change the plurality, distance is at most m - 1 on both sides,
               and the quotient is 0. So the quotient has the two properties of a distance that the proof of
               `StableVotes` uses. Smith & Thakurta 2013 draw a coin for each unit and subsample, and refuse
               to answer if a unit is in too many (`SubsampleAggregateStable`). Here a unit is in a fixed
               number of them, which needs no such refusal and no part of delta for it.
    Assumes:   the counts are those of teachers of whom at most `overlap` have seen the same unit.
    """

    overlap: Annotated[int, at_least(1)]

    @classmethod
    def for_privacy(cls, epsilon: float, delta: float, queries: int, *, overlap: int) -> SampledVotes:  # type: ignore[override]
        """Return the least noise with which `queries` questions cost at most (epsilon, delta)."""
        stable = StableVotes.for_privacy(epsilon, delta, queries)
        return cls(scale=stable.scale, failure=stable.failure, queries=queries, overlap=overlap)

    def lead(self, confidence: float, classes: int) -> int:
        return int(self.overlap) * (StableVotes.lead(self, confidence, classes) + 2)

    def _distance(self, counts: Counts) -> int:
        return distance(counts) // int(self.overlap)


@described("mechanisms.SparseVotes")
class SparseVotes(Aggregator):
    """Answers stable questions with the exact plurality, at no cost; refuses unstable ones, and halts at the
    `failures`-th refusal (M_svec).

    With `constants=None` one noisy threshold is kept throughout; otherwise a new one is drawn after each
    refusal, and `constants` names the rule for the epsilon of a round, as in `StableSparseVector`.

    Guarantee: (epsilon, delta)-DP for all questions together.
    Proof:     that of `StableSparseVector`, with the function `distance`, which moves by at most 1 when one
               vote moves, under every relation.
    Assumes:   the counts are those of teachers on disjoint parts.
    """

    epsilon: Real
    delta: float
    failures: int
    queries: int
    constants: str | None = None

    def __post_init__(self) -> None:
        self._vector  # noqa: B018 - StableSparseVector checks all fields

    @property
    def most_refusals(self) -> int:
        return self.failures

    @classmethod
    def for_privacy(cls, epsilon: Real, delta: float, queries: int, *, failures: int) -> SparseVotes:
        """Return the better of two sparse vectors, with one threshold or with redrawn ones: the one that
        answers at a smaller distance."""
        both = [
            cls(epsilon=epsilon, delta=delta, failures=failures, queries=queries, constants=constants)
            for constants in (None, "optimal")
        ]
        return min(both, key=lambda votes: votes.threshold)

    @property
    def _vector(self) -> StableSparseVector:
        """The sparse vector whose checks, threshold and noise are used here. It reads no table, so its public
        facts are empty."""
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
        """The distance at which a question is answered with probability of about one half."""
        return self._vector.threshold

    def lead(self, confidence: float, classes: int) -> int:
        """Return a lead in votes: if all questions have it, all are answered with probability
        `confidence`."""
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

    def _label(self, state: State, counts: Counts, entropy: Entropy, prediction: Any) -> Labeled:
        vector = self._vector
        passed = distance(counts) + draw(vector.scales[1], entropy) >= int(state["secret"])
        # A new threshold is drawn for every question, used or not, so that the time it takes reveals nothing.
        fresh = _fixed_digits(vector.threshold + draw(vector.scales[0], entropy))
        if not passed and self.constants is not None:
            state = {**state, "secret": fresh}
        return _answer_stable_vote(state, counts, passed)


def _answer_stable_vote(state: State, counts: Counts, passed: bool) -> Labeled:
    """Return the next state, and the plurality if the test was passed."""
    after = {**state, "asked": state["asked"] + 1, "answered": state["answered"] + int(passed)}
    return after, Vote(int(np.argmax(counts)) if passed else None)


def _fixed_digits(number: int) -> str:
    """Return a number as text of `_DIGITS` characters.

    A number of more than 23 digits is clamped; noise of a scale below 10^19 causes that with a probability
    below 2^-1000.
    """
    largest = 10 ** (_STABLE_DIGITS - 1) - 1
    return f"{min(max(number, -largest), largest):+0{_STABLE_DIGITS}d}"
