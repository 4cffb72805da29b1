"""Computes the data-dependent cost of an aggregator of votes (PATE), and releases it sanitized.

Where teachers agree, an answer costs far less than its worst case (Papernot et al. 2018, arXiv:1802.08908,
Theorem 6). That figure is computed from private votes and is private itself. The charge in the ledger never
depends on it. `SanitizedCost` publishes it beside the charge, with noise in proportion to its smooth
sensitivity; that noise has a price of its own, which is part of what is charged at the start.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from .. import _require
from .._errors import InvalidInput
from .._public import ADD_REMOVE, Neighbors
from .._registry import described, named
from .._require import Real
from ..accounting import Event, PureDP, pate
from ..accounting.conversion import rdp_to_epsilon
from ..sampling import Entropy
from .smooth import SmoothNoise, smooth_noise
from .votes import ConfidentGNMax, Counts, GNMax, InteractiveGNMax

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
@dataclass(frozen=True, slots=True, kw_only=True)
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

    epsilon: Real
    order: float

    def __post_init__(self) -> None:
        _require.positive(epsilon=self.epsilon, order=self.order)
        if not 1 < self.order <= _LARGEST_ORDER:
            raise _require.fail("order", self.order, f"above 1 and at most {_LARGEST_ORDER:,}")
        self._noise  # noqa: B018 - refuses an epsilon that `smooth_noise` does not take

    def event(self, neighbors: Neighbors = ADD_REMOVE) -> Event:
        return PureDP(epsilon=self.epsilon, neighbors=neighbors)

    @property
    def _noise(self) -> SmoothNoise:
        return smooth_noise(self.epsilon, None, _POWER)

    def check(self, aggregator: Any) -> None:
        """Refuse an aggregator whose data-dependent cost is not known here."""
        check_cost_known(aggregator)
        variances = [aggregator.variance, getattr(aggregator, "check_variance", math.inf)]
        if min(variances) < _LEAST_VARIANCE:
            raise _require.fail(
                "variance", min(variances), f"at least {_LEAST_VARIANCE} for a sanitized cost"
            )

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
        check_variance = getattr(aggregator, "check_variance", None)
        answers = getattr(aggregator, "answers", aggregator.queries)
        per_check = 0.0 if check_variance is None else self.order / (2 * float(check_variance))
        return float(aggregator.queries * per_check + answers * self.order / float(aggregator.variance))


def check_cost_known(aggregator: Any) -> None:
    """Refuse an aggregator without a data-dependent cost."""
    if not isinstance(aggregator, GNMax | ConfidentGNMax | InteractiveGNMax):
        raise InvalidInput(
            f"the data-dependent cost of {type(aggregator).__name__} is not known here: it is of GNMax, "
            f"ConfidentGNMax and InteractiveGNMax. Nothing was charged. Leave `sanitize` out."
        )


def best_order(aggregator: Any, teachers: int, classes: int, delta: float, agreement: float = 0.9) -> float:
    """Return the order at which the cost gives the smallest epsilon at `delta`, on the assumption that a
    share `agreement` of the teachers agrees on every answer. It is computed from public numbers alone."""
    _require.open_probability(agreement=agreement, delta=delta)
    leader = math.floor(agreement * teachers)
    counts = (leader, *([math.ceil((teachers - leader) / max(classes - 1, 1))] * (classes - 1)))
    compared = leader if hasattr(aggregator, "check_variance") else None
    answers = getattr(aggregator, "answers", aggregator.queries)
    history = [Recorded(compared, counts)] * answers
    costs = dict.fromkeys(pate.ORDERS, 0.0)
    for votes, sigma in _questions(aggregator, history):
        for order, rdp in pate.vote_cost(votes, sigma).rdp_for_steward().items():
            costs[order] += rdp
    return min(costs, key=lambda order: rdp_to_epsilon(order, costs[order], delta))


def cost_epsilon(aggregator: Any, history: Iterable[Recorded], delta: float) -> float:
    """Return the data-dependent epsilon, at the best order. Not differentially private: for the steward's
    eyes."""
    costs = dict.fromkeys(pate.ORDERS, 0.0)
    for votes, sigma in _questions(aggregator, list(history)):
        for order, rdp in pate.vote_cost(votes, sigma).rdp_for_steward().items():
            costs[order] += rdp
    return min(rdp_to_epsilon(order, rdp, delta) for order, rdp in costs.items())


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
    if hasattr(aggregator, "check_variance"):
        checks = [check_votes(r.compared, aggregator.threshold) for r in history if r.compared is not None]
        parts.append((list(checks), math.sqrt(2 * float(aggregator.check_variance))))
    return parts
