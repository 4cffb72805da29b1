"""Bounds the harm of a release to one person: odds before and after, the best attack, the expected cost.

Everything here is a function of an accounting event; no data is involved. Every number is an upper bound on
the harm (`least_after` a lower bound on a belief), and `words` rounds it up when it is shown.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Annotated

from .. import _require, accounting
from .._errors import Unsupported
from .._public import ADD_REMOVE, REPLACE, Neighbors
from .._require import PROBABILITY
from ..accounting import ApproximateDP, Event, Gaussian, Group, PureDP, RandomizedResponse
from ..accounting.normal import normal

# t in the proof of `odds_factor`: where delta is not 0 the odds are bounded by e^(epsilon + t). At t = 0.1
# the bound fails with probability at most 10.51 delta, and is 10.52% above e^epsilon. The value is a choice,
# not a measurement: with a larger t the bound fails less often and is larger.
EXTRA_EPSILON = 0.1
_FAILURE_FACTOR = 1 / (1 - math.exp(-EXTRA_EPSILON))


@_require.checked
@dataclass(frozen=True, slots=True)
class Risk:
    """Bounds the harm of an event to one unit at a delta.

    `epsilon` is the least epsilon that accounting proves at this delta; infinite where it proves none. Every
    statement about beliefs is for somebody who knows all records but one.
    """

    event: Event
    delta: Annotated[float, PROBABILITY] = 0.0

    def __post_init__(self) -> None:
        _require.must(
            isinstance(self.event, Event), "event", type(self.event).__name__, "an accounting event"
        )

    @property
    def epsilon(self) -> float:
        return _epsilon(self.event, self.delta)

    @property
    def neighbors(self) -> Neighbors:
        return self.event.neighbors

    @property
    def bounded(self) -> bool:
        """Return whether anything is promised at this delta: at a delta of 1 nothing is."""
        return self.delta < 1 and math.isfinite(self.epsilon)

    @property
    def pure(self) -> float:
        """Return the epsilon at delta 0, which holds without exception; infinite where there is none."""
        return _epsilon(self.event, 0.0)

    @property
    def odds_factor(self) -> float:
        """Return a bound on the posterior odds divided by the prior odds about one unit (the Bayes factor).
        The bound fails with probability at most `odds_fail`.

        Guarantee: for every prior belief about which of two neighboring tables is the true one, the odds
                   after the release are at most this factor times the odds before, and at least the odds
                   before divided by this factor.
                   Each of the two bounds fails with probability at most `odds_fail`, whichever table is the
                   true one.
        Proof:     let P and Q be the distributions of the release on the two tables, and t = EXTRA_EPSILON.
                   Pure epsilon: P(o) / Q(o) is at most e^epsilon at every outcome o. With a delta, let
                   S be the outcomes at which P(o) > e^(epsilon + t) Q(o). Then P(S) <= e^epsilon Q(S) + delta
                   <= e^-t P(S) + delta, so P(S) <= delta / (1 - e^-t), and Q(S) <= P(S). The other
                   direction exchanges P and Q.
                   (It is often said that the odds grow by at most e^epsilon except with probability delta.
                   That is not true: for Gaussian noise they grow more with a larger probability.
                   Kasiviswanathan & Smith 2014, arXiv:0803.3946, have the same argument with other
                   constants.)
        Assumes:   the neighbor relation of the event says what the two tables differ in.
        """
        log_factor = min(self.pure, self.epsilon + (EXTRA_EPSILON if self.delta > 0 else 0.0))
        if self.odds_fail >= 1:
            return math.inf
        return _exp(log_factor)

    @property
    def odds_fail(self) -> float:
        """Return a bound on the probability that the odds rise by more than `odds_factor`, which also bounds
        the probability that they fall by more."""
        if self.delta == 0 or self.pure <= self.epsilon + EXTRA_EPSILON:
            return 0.0
        return min(1.0, self.delta * _FAILURE_FACTOR)

    def after(self, prior: float) -> float:
        """Return the largest probability that somebody can give after the release to what they gave the
        probability `prior` before, unless `odds_factor` fails.

        >>> from discreet.accounting import PureDP
        >>> round(Risk(PureDP(epsilon=1)).after(0.5), 4)
        0.7311
        """
        _require.probability(prior=prior)
        factor = self.odds_factor
        if math.isinf(factor):
            return 0.0 if prior == 0 else 1.0
        return prior * factor / (1 - prior + prior * factor)

    def least_after(self, prior: float) -> float:
        """Return the smallest probability that somebody can give after the release to what they gave the
        probability `prior` before, unless `odds_factor` fails."""
        return 1.0 - self.after(1.0 - prior)

    def true_positives(self, false_positives: float) -> float:
        """Return a bound on the true-positive rate of every test of whether one given unit is in the data,
        at a false-positive rate of `false_positives`.

        Guarantee: no test has a larger true-positive rate.
        Proof:     exact for Gaussian noise (`accounting.tradeoff`); otherwise the least bound over points
                   (epsilon, delta) of the event's own privacy curve, each of which gives two bounds
                   (`_true_positive_bound`; Dong, Roth & Su 2022, arXiv:1905.02383, equation 5).
        """
        _require.probability(false_positives=false_positives)
        if not self.bounded:
            return 1.0
        if _gaussian(self.event):
            return 1.0 - accounting.tradeoff(self.event, alpha=false_positives)
        points = (*_curve(self.event, self.epsilon), (self.epsilon, self.delta))
        return min(1.0, *(_true_positive_bound(epsilon, delta, false_positives) for epsilon, delta in points))

    def accusation(self, prior: float, false_positives: float) -> float:
        """Return a bound on the probability that an accused person is really in the data (the precision of
        the best test), if a share `prior` of those tested is in the data."""
        _require.open_probability(prior=prior)
        rightly = self.true_positives(false_positives) * prior
        wrongly = false_positives * (1 - prior)
        return rightly / (rightly + wrongly) if rightly + wrongly > 0 else prior

    @property
    def advantage(self) -> float:
        """Return a bound on the true-positive rate minus the false-positive rate of any test; 0 means that no
        test is better than guessing."""
        if not self.bounded:
            return 1.0
        try:
            return min(1.0, accounting.delta(self.event, epsilon=0.0))
        except Unsupported:
            exp_epsilon = _exp(self.epsilon)
            if math.isinf(exp_epsilon):
                return 1.0
            return min(1.0, (exp_epsilon - 1 + 2 * self.delta) / (exp_epsilon + 1))

    def cost(self, without: float, *, worst: float | None = None) -> float:
        """Return a bound on somebody's expected cost with their data, if it is `without` on the neighboring
        table: without them under `add_remove`, with another record in place of theirs under `replace`, with a
        blank in place of it under `zero_out`.

        Guarantee: for any cost between 0 and `worst` that others derive from the release, the expectation
                   with the unit is at most e^epsilon times that without it, plus delta times `worst`.
                   Infinite if `worst` is not given and delta is above 0 or no epsilon is finite.
        Proof:     the definition of (epsilon, delta), integrated over the thresholds of the cost (Wood et
                   al. 2018 explain it with the premium of an insurance).
        """
        _require.non_negative(without=without)
        if not self.bounded or (self.delta > 0 and worst is None):
            return math.inf if worst is None else float(worst)
        # infinity times zero would be NaN
        multiplied = _exp(self.epsilon) * without if without > 0 else 0.0
        bound = multiplied + self.delta * (worst or 0.0)
        return bound if worst is None else min(float(worst), bound)

    def of_group(self, size: int) -> Risk:
        """Return the risk for `size` units at once, such as a family, at the larger delta of the group.

        Proof: group privacy. (epsilon, delta) for one unit gives size * epsilon for the group, and the delta
        (1 + e^epsilon + ... + e^((size - 1) epsilon)) delta <= size * e^((size - 1) epsilon) * delta (the
        proof of Lemma 2.2 in Vadhan 2017). `accounting.Group` may prove a smaller epsilon at that delta.
        """
        _require.integer(size=size, at_least=1)
        if size == 1:
            return self
        delta_factor = _exp((size - 1) * self.epsilon) if self.delta > 0 else 1.0
        return Risk(Group(event=self.event, size=size), min(1.0, size * delta_factor * self.delta))

    @property
    def of_a_value(self) -> Risk:
        """Return the risk that a release tells one content of a record from another.

        Under `add_remove` a record changes by leaving and coming back different, under `zero_out` by being
        blanked and filled in: two steps between neighbors, as for a group of two. Under `replace` it is one
        step.
        """
        return self if self.neighbors is REPLACE else self.of_group(2)


def changed(neighbors: Neighbors) -> str:
    """Return the question that the neighbor relation keeps open, in words that address "you"."""
    if neighbors is ADD_REMOVE:
        return "whether you are in the data at all"
    if neighbors is REPLACE:
        return "which of any two things your record says"
    return "whether your record is the real one or a blank"


def _exp(epsilon: float) -> float:
    """Return e^epsilon, or infinity, which bounds it too, from 700 on (floats end near e^709)."""
    return math.exp(epsilon) if epsilon < 700 else math.inf


@functools.lru_cache(maxsize=256)
def _epsilon(event: Event, delta: float) -> float:
    """Return the tightest epsilon that accounting proves; infinity where it proves none."""
    try:
        return accounting.epsilon(event, delta=delta)
    except Unsupported:
        return math.inf


# How many steps of epsilon the privacy curve is evaluated at to bound the best attack. Measured for 60 epochs
# of DP-SGD: the bound on the true-positive rate at 1% false positives is 0.04023 with 12 steps and with 24,
# and 0.04021 with the best point of all (`accounting.tradeoff`).
_POINTS = 12


@functools.lru_cache(maxsize=64)
def _curve(event: Event, top: float) -> tuple[tuple[float, float], ...]:
    """Return points (epsilon, delta) of the privacy curve for epsilons from 0 to `top`; none where the event
    is known by one pair (epsilon, delta) alone, or the curve cannot be computed."""
    known_by_one_pair = isinstance(event, PureDP | ApproximateDP | RandomizedResponse)
    if known_by_one_pair or not 0 < top < 700:
        return ()
    levels = [top * k / _POINTS for k in range(_POINTS + 1)]
    try:
        return tuple((level, accounting.delta(event, epsilon=level)) for level in levels)
    except Unsupported:
        return ()


def _true_positive_bound(epsilon: float, delta: float, rate: float) -> float:
    """Return the largest true-positive rate that (epsilon, delta) allows at the false-positive rate `rate`:
    the definition for the test's rejection region, and for its complement."""
    exp_epsilon = _exp(epsilon)
    # infinity times zero would be NaN
    multiplied = exp_epsilon * rate if rate > 0 else 0.0
    return min(multiplied + delta, 1 - (1 - delta - rate) / exp_epsilon)


def _gaussian(event: Event) -> bool:
    """Return whether an event is Gaussian noise alone, whose trade-off curve is known exactly.

    The parts of its normal form are then Gaussian, without a failure probability (`delta`) or a `distance`.
    """
    form = normal(event)
    return form.delta == 0 == form.distance and all(isinstance(part, Gaussian) for part in form.parts)
