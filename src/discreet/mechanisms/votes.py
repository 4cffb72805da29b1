"""Defines aggregators of votes: how an ensemble of teachers on disjoint parts of the data answers (PATE).

Each question is a vector of counts: how many teachers vote for each class. One unit is in the part of one
teacher, and so moves one vote: one count falls by 1, another rises by 1. All noise is integer and exact, and
its price is that of the discrete distribution. The whole price of `queries` questions is known, and paid,
before the first. Whatever an aggregator releases is a function of noisy counts, all of which were priced, so
the noisy count of the winner, which shows how far teachers agree, costs nothing more.

LNMax: Papernot et al. 2017, arXiv:1610.05755. GNMax, Confident- and Interactive-GNMax: Papernot et al. 2018,
arXiv:1802.08908. The aggregators that release the exact winner of a clear vote are in
`mechanisms.stable_votes`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from statistics import NormalDist
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from .. import _require, sampling
from .._errors import Halted
from .._public import ADD_REMOVE, Neighbors
from .._registry import described
from .._require import Real
from ..accounting import DiscreteGaussian, DiscreteLaplace, Event, calibrate, compose
from ..sampling import Entropy
from . import certified

Counts = NDArray[np.int64]
State = dict[str, Any]

__all__ = ["Aggregator", "ConfidentGNMax", "GNMax", "InteractiveGNMax", "LNMax", "Vote"]


class Vote(NamedTuple):
    """One answer of an aggregator: the number of a class, or None where it refused; the noisy count of that
    class, where the price includes it; and whether the student's own prediction was `reinforced`
    (`InteractiveGNMax`)."""

    label: int | None
    votes: int | None = None
    reinforced: bool = False


@runtime_checkable
class Aggregator(Protocol):
    """Turns votes into labels, for a price that is fixed beforehand.

    `queries` is the largest number of questions that it answers or refuses. `lead` returns by how many votes
    a class must lead to be the answer with probability `confidence`, under the conditions that each
    aggregator states. `prediction` is the student's, which only `InteractiveGNMax` needs. The state is
    JSON-able, with the public counters "asked" and "answered"; all else in it is secret, and of the same
    length for all values.
    """

    @property
    def queries(self) -> int: ...

    def event(self, neighbors: Neighbors = ADD_REMOVE) -> Event: ...

    def lead(self, confidence: float, classes: int) -> int: ...

    def start(self, entropy: Entropy) -> State: ...

    def label(
        self, state: State, counts: Counts, *, entropy: Entropy, prediction: Any = None
    ) -> tuple[State, Vote]: ...


def check_open(aggregator: Any, state: State) -> None:
    """Refuse a question beyond those that were paid for. Besides `queries`, an aggregator may limit its
    `answers`, or its refusals (`failures`)."""
    answers = getattr(aggregator, "answers", aggregator.queries)
    failures = getattr(aggregator, "failures", None)
    refused = state["asked"] - state["answered"]
    if (
        state["asked"] >= aggregator.queries
        or state["answered"] >= answers
        or (failures is not None and refused >= failures)
    ):
        limits = f"{aggregator.queries} questions, {answers} answers"
        limits += "" if failures is None else f", {failures} refusals"
        raise Halted(
            f"what was paid for is used up ({state['asked']} asked, {state['answered']} answered, of at most "
            f"{limits}), so this has halted for good. Nothing was drawn or released. "
            f"Buy a new labeller, or train a student on the answers."
        )


@described("mechanisms.LNMax")
@dataclass(frozen=True, slots=True, kw_only=True)
class LNMax:
    """Answers with the class of the largest count after discrete Laplace noise of `scale` on every count: the
    noisy arg-max of simple PATE.

    Guarantee: (2 / scale)-DP for one question, and no less: Lap(1/epsilon), as often taught, is 2 epsilon-DP.
    Proof:     one unit moves one vote, so two counts change by 1 each: the noisy counts, of which the answer
               is a function, are two discrete Laplace releases of sensitivity 1.
    Assumes:   the counts are those of teachers on disjoint parts.
    """

    scale: Real
    queries: int

    def __post_init__(self) -> None:
        _require.positive(scale=self.scale)
        _require.integer(queries=self.queries, at_least=1)

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
        _require.open_probability(confidence=confidence)
        _require.integer(classes=classes, at_least=2)
        tail = (1 - _require.exact(confidence, "confidence")) / (2 * classes)
        return 2 * certified.laplace_quantile(_require.exact(self.scale, "scale"), tail) + 1

    def start(self, entropy: Entropy) -> State:
        return {"asked": 0, "answered": 0}

    def label(
        self, state: State, counts: Counts, *, entropy: Entropy, prediction: Any = None
    ) -> tuple[State, Vote]:
        check_open(self, state)
        scale = _require.exact(self.scale, "scale")
        return _answer_vote(state, counts + sampling.discrete_laplace(scale, len(counts), entropy))


@described("mechanisms.GNMax")
@dataclass(frozen=True, slots=True, kw_only=True)
class GNMax:
    """Answers with the class of the largest count after discrete Gaussian noise of `variance` on every count.

    Guarantee: for one question, that of two discrete Gaussian releases of sensitivity 1. It is very close to
               the published price of GNMax, a Gaussian with noise multiplier sigma / sqrt(2).
    Proof:     one unit moves one vote, so two counts change by 1 each; the answer is a function of the noisy
               counts. A question may depend on earlier answers, because the same pair of distributions
               dominates every question (Papernot et al. 2018, arXiv:1802.08908, Proposition 8, for continuous
               noise and its Rényi price).
    Assumes:   the counts are those of teachers on disjoint parts.
    """

    variance: Real
    queries: int

    def __post_init__(self) -> None:
        _require.positive(variance=self.variance)
        _require.integer(queries=self.queries, at_least=1)

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

    def start(self, entropy: Entropy) -> State:
        return {"asked": 0, "answered": 0}

    def label(
        self, state: State, counts: Counts, *, entropy: Entropy, prediction: Any = None
    ) -> tuple[State, Vote]:
        check_open(self, state)
        return _answer_vote(state, noisy(counts, self.variance, entropy))


@described("mechanisms.ConfidentGNMax")
@dataclass(frozen=True, slots=True, kw_only=True)
class ConfidentGNMax:
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

    threshold: int
    check_variance: Real
    variance: Real
    queries: int
    answers: int

    def __post_init__(self) -> None:
        _check_confident(self)

    @classmethod
    def for_privacy(
        cls,
        epsilon: float,
        delta: float,
        queries: int,
        *,
        answers: int,
        threshold: int,
        ratio: float = 3.75,
    ) -> ConfidentGNMax:
        """Return the least noise with which all checks and answers cost at most (epsilon, delta).

        `ratio` is the sigma of a check divided by that of an answer: 150 / 40 in the paper's MNIST
        experiment.
        """
        return cls(**_calibrate_confident(cls, epsilon, delta, queries, answers, threshold, ratio))

    @property
    def sigma(self) -> float:
        return math.sqrt(self.variance)

    def event(self, neighbors: Neighbors = ADD_REMOVE) -> Event:
        return _confident_event(self, neighbors)

    def lead(self, confidence: float, classes: int) -> int:
        """Return a lead in votes that noise leaves in place with probability `confidence`, if the question is
        answered."""
        return gaussian_lead(self.variance, confidence, classes)

    def start(self, entropy: Entropy) -> State:
        return {"asked": 0, "answered": 0}

    def label(
        self, state: State, counts: Counts, *, entropy: Entropy, prediction: Any = None
    ) -> tuple[State, Vote]:
        check_open(self, state)
        if not _above(int(counts.max()), self.threshold, self.check_variance, entropy):
            return {**state, "asked": state["asked"] + 1}, Vote(None)
        return _answer_vote(state, noisy(counts, self.variance, entropy))


@described("mechanisms.InteractiveGNMax")
@dataclass(frozen=True, slots=True, kw_only=True)
class InteractiveGNMax:
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

    threshold: int
    check_variance: Real
    variance: Real
    queries: int
    answers: int
    confident: float = 0.9
    # by default the number of teachers in the paper of 2017
    teachers: int = 250

    def __post_init__(self) -> None:
        _check_confident(self)
        _require.probability(confident=self.confident)
        _require.integer(teachers=self.teachers, at_least=1)

    @classmethod
    def for_privacy(
        cls,
        epsilon: float,
        delta: float,
        queries: int,
        *,
        answers: int,
        threshold: int,
        teachers: int,
        ratio: float = 3.75,
        confident: float = 0.9,
    ) -> InteractiveGNMax:
        """Return the least noise with which all checks and answers cost at most (epsilon, delta). `ratio` is
        that of `ConfidentGNMax.for_privacy`."""
        settings = _calibrate_confident(cls, epsilon, delta, queries, answers, threshold, ratio)
        return cls(**settings, confident=confident, teachers=teachers)

    @property
    def sigma(self) -> float:
        return math.sqrt(self.variance)

    def event(self, neighbors: Neighbors = ADD_REMOVE) -> Event:
        return _confident_event(self, neighbors)

    def lead(self, confidence: float, classes: int) -> int:
        """Return a lead in votes that noise leaves in place with probability `confidence`, if the question is
        answered."""
        return gaussian_lead(self.variance, confidence, classes)

    def start(self, entropy: Entropy) -> State:
        return {"asked": 0, "answered": 0}

    def expected(self, prediction: Any, classes: int) -> Counts:
        """Return the counts that the student expects, from its probabilities."""
        probabilities = np.asarray(prediction, dtype=np.float64).ravel()
        if len(probabilities) != classes or not np.isfinite(probabilities).all() or (probabilities < 0).any():
            raise _require.fail("prediction", prediction, f"{classes} probabilities of the student")
        return np.asarray(np.floor(np.minimum(probabilities, 1) * int(self.teachers)), dtype=np.int64)

    def label(
        self, state: State, counts: Counts, *, entropy: Entropy, prediction: Any = None
    ) -> tuple[State, Vote]:
        check_open(self, state)
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
           2)), see `vote_cost.answer_votes`; a union bound over the classes - 1 others.
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


def _answer_vote(state: State, noisy_counts: Counts) -> tuple[State, Vote]:
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


def _check_confident(aggregator: Any) -> None:
    """Check the fields of an aggregator that first tests whether votes agree."""
    _require.positive(check_variance=aggregator.check_variance, variance=aggregator.variance)
    _require.integer(queries=aggregator.queries, answers=aggregator.answers, at_least=1)
    _require.integer(threshold=aggregator.threshold)
    if aggregator.answers > aggregator.queries:
        raise _require.fail("answers", aggregator.answers, f"at most queries={aggregator.queries}")


def _confident_event(aggregator: Any, neighbors: Neighbors) -> Event:
    check = DiscreteGaussian(variance=aggregator.check_variance, sensitivity=1, neighbors=neighbors)
    answers = two_counts(aggregator.variance, neighbors).repeated(int(aggregator.answers))
    return compose([check.repeated(int(aggregator.queries)), answers])


def _calibrate_confident(
    cls: Any, epsilon: float, delta: float, queries: int, answers: int, threshold: int, ratio: float
) -> dict[str, Any]:
    """Return the fields of the aggregator `cls` with the least noise, of sigma 0.5 to 10**6, that costs at
    most (epsilon, delta); fields that do not enter the price are left out."""
    _require.positive(ratio=ratio)

    def settings(sigma: float) -> dict[str, Any]:
        return {
            "threshold": threshold,
            "check_variance": _thousandth((ratio * sigma) ** 2),
            "variance": _thousandth(sigma * sigma),
            "queries": queries,
            "answers": answers,
        }

    return settings(
        calibrate(lambda s: cls(**settings(s)).event(), epsilon=epsilon, delta=delta, bracket=(0.5, 1e6))
    )


def _thousandth(value: float) -> Fraction:
    """Round up to a thousandth: exact samplers take rationals, and short ones are quick."""
    return Fraction(math.ceil(value * 1000), 1000)
