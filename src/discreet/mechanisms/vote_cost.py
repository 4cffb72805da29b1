"""What the votes made of the price: the data-dependent cost of an aggregator, and its sanitized release.

Where teachers agree, an answer costs far less than its worst case (Papernot et al. 2018, arXiv:1802.08908,
Theorem 6). That figure is computed from private votes and is private itself. What the ledger is charged never
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

# Steps of the grid on which a cost is put before noise is added: fine beside any cost worth telling.
_STEP = 2.0**-30
# The largest Rényi order that is accepted.
_LARGEST_ORDER = 1_000_000
# The power of the polynomial noise on the cost: the least with a finite variance.
_POWER = 3
# Below this variance the tail of discrete noise is not that of continuous noise, moved by one, to within the
# smallest chance that `accounting.pate` tells from zero: 2 exp(-2 pi^2 64) < 2^-1000 / 10^12.
_LEAST_VARIANCE = 64
# Hexadecimal digits of a number in a record, all of one length.
_DIGITS = 8


class Recorded(NamedTuple):
    """The private part of one question: what was compared with a threshold (None without one), and the counts
    of an answer (None where it was refused)."""

    compared: int | None
    counts: tuple[int, ...] | None


@named("mechanisms.SanitizedFigure")
class SanitizedFigure(NamedTuple):
    """A published data-dependent cost: `rdp` at `order`, with noise; and `epsilon` at `delta`, that of the
    release itself included."""

    order: float
    rdp: float
    epsilon: float
    delta: float


def answer_votes(counts: Iterable[int]) -> tuple[float, ...]:
    """Return the counts to compute a cost from, where noise is discrete: the lead of the first is 2 smaller.

    Proof: P(X >= m) <= P(N >= m - 1) for discrete Gaussian X and Gaussian N of the same variance (Canonne,
           Kamath & Steinke 2020, arXiv:2004.00010v4, Proposition 25; for m <= 0 by symmetry, up to 2 exp(-2
           pi^2 variance)). So two noises differ by g or more with at most the chance that Gaussian ones
           differ by g - 2.
    """
    values = np.array(list(counts), dtype=np.int64)
    top = int(np.argmax(values))
    second = int(np.max(np.delete(values, top)))
    values[top] = max(int(values[top]) - 2, second)
    return tuple(float(v) for v in values)


def check_votes(compared: int, threshold: int) -> tuple[float, float]:
    """Return two counts whose comparison by GNMax, at sigma sqrt(2), costs what a check at sigma does.

    Proof: noise on one number that moves by 1 costs order / (2 sigma^2), as two counts do at sigma sqrt(2).
           The less likely outcome needs noise of v - T + 1 (or T - v) or more, whose chance is at most
           Phi(-(v - T) / sigma) (or T - v - 1), by the same Proposition 25: a lead of twice that in counts.
           A moved vote changes it by at most 2, as it does a lead.
    """
    margin = compared - threshold if compared >= threshold else threshold - compared - 1
    return 2.0 * margin, 0.0


@described("mechanisms.SanitizedCost")
@dataclass(frozen=True, slots=True, kw_only=True)
class SanitizedCost:
    """Publishes the data-dependent Rényi cost at `order`, for an `epsilon` of its own.

    Guarantee: epsilon-DP, for units that move one vote in every question.
    Proof:     the cost, in steps of 2^-30, moves by at most its local sensitivity plus two steps: one of
               rounding to the grid, one for the rounding of sums in floats.
               `accounting.pate.smooth_sensitivity` is a beta-smooth bound of the former for the answers, and
               for the checks (`check_votes`); sums of beta-smooth bounds, and constants, are beta-smooth.
               `SmoothNoise` does the rest. Which questions were answered is released, and fixed here.
    Assumes:   what `accounting.pate` assumes; noise of a variance of at least 64.
    """

    epsilon: Real
    order: float

    def __post_init__(self) -> None:
        _require.positive(epsilon=self.epsilon, order=self.order)
        if not 1 < self.order <= _LARGEST_ORDER:
            raise _require.fail("order", self.order, f"above 1 and at most {_LARGEST_ORDER:,}")
        self._noise  # noqa: B018 - refuses an epsilon without a smooth noise

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
        """Return the cost and its smooth sensitivity. Private: for the release, or the steward's eyes."""
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
        """Return the data-independent cost at this order, of all questions that were paid for."""
        checks = getattr(aggregator, "check_variance", None)
        answers = getattr(aggregator, "answers", aggregator.queries)
        each = 0.0 if checks is None else self.order / (2 * float(checks))
        return float(aggregator.queries * each + answers * self.order / float(aggregator.variance))


def check_cost_known(aggregator: Any) -> None:
    """Refuse an aggregator without a data-dependent cost."""
    if not isinstance(aggregator, GNMax | ConfidentGNMax | InteractiveGNMax):
        raise InvalidInput(
            f"the data-dependent cost of {type(aggregator).__name__} is not known here: it is of GNMax, "
            f"ConfidentGNMax and InteractiveGNMax. Nothing was charged. Leave `sanitize` out."
        )


def best_order(aggregator: Any, teachers: int, classes: int, delta: float, agreement: float = 0.9) -> float:
    """Return the order at which the cost converts best, if this share of the teachers agreed on every answer:
    from public numbers alone."""
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
    """Return a record for a sealed state, of a length that depends on the number of classes alone."""
    numbers = [record.compared or 0, *(record.counts or (0,) * classes)]
    flags = f"{int(record.compared is not None)}{int(record.counts is not None)}"
    return flags + "".join(f"{number + (1 << 31):0{_DIGITS}x}" for number in numbers)


def parse_record(text: str) -> Recorded:
    numbers = [int(text[i : i + _DIGITS], 16) - (1 << 31) for i in range(2, len(text), _DIGITS)]
    return Recorded(numbers[0] if text[0] == "1" else None, tuple(numbers[1:]) if text[1] == "1" else None)


def record(aggregator: Any, counts: Counts, answered: bool, prediction: Any = None) -> Recorded:
    """Return what is kept of one question for the cost."""
    compared: int | None = None
    if isinstance(aggregator, InteractiveGNMax):
        compared = int((counts - aggregator.expected(prediction, len(counts))).max())
    elif isinstance(aggregator, ConfidentGNMax):
        compared = int(counts.max())
    return Recorded(compared, tuple(int(c) for c in counts) if answered else None)


def _questions(aggregator: Any, history: list[Recorded]) -> list[tuple[list[tuple[float, ...]], float]]:
    """Return the votes to cost, with the noise of each kind: answers, and checks."""
    answers = [answer_votes(r.counts) for r in history if r.counts is not None]
    parts: list[tuple[list[tuple[float, ...]], float]] = [(answers, math.sqrt(aggregator.variance))]
    if hasattr(aggregator, "check_variance"):
        checks = [check_votes(r.compared, aggregator.threshold) for r in history if r.compared is not None]
        parts.append((list(checks), math.sqrt(2 * float(aggregator.check_variance))))
    return parts
