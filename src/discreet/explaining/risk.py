"""Bounds what a release can do to one person: odds before and after, the best attack on them, their cost.

Everything here is a function of an accounting event; no data is involved. Every number bounds the harm
from the safe side, and is rounded to that side when it is shown.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from .. import _require, accounting
from .._errors import Unsupported
from .._public import ADD_REMOVE, REPLACE, Neighbors
from ..accounting import ApproximateDP, Event, Gaussian, Group, PureDP, RandomizedResponse
from ..accounting.normal import normal

# How far above e^epsilon the odds are bounded, where delta is not 0 (t in the proof of `odds_factor`): at 0.1
# the bound fails with a probability of at most 10.5 delta, and odds are 10.5% larger. No measurement on
# record: a larger one fails less often and promises less.
EXTRA_EPSILON = 0.1
_FAILURE_FACTOR = 1 / (1 - math.exp(-EXTRA_EPSILON))


@dataclass(frozen=True, slots=True)
class Risk:
    """Bounds the harm of an event to one unit at a delta.

    `epsilon` is the tightest bound that accounting proves; infinite where nothing is promised.
    """

    event: Event
    delta: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.event, Event):
            raise _require.fail("event", type(self.event).__name__, "an accounting event")
        _require.probability(delta=self.delta)

    @property
    def epsilon(self) -> float:
        return _epsilon(self.event, self.delta)

    @property
    def neighbors(self) -> Neighbors:
        return self.event.neighbors

    @property
    def bounded(self) -> bool:
        """Return whether anything is promised at this delta."""
        return math.isfinite(self.epsilon)

    @property
    def pure(self) -> float:
        """Return the epsilon that holds without exception; infinite where there is none."""
        return _epsilon(self.event, 0.0)

    @property
    def odds_factor(self) -> float:
        """Return a bound on the posterior odds over the prior odds about one unit (Bayes factor), except with
        the chance `odds_fail`.

        Guarantee: for every prior belief about which of two neighboring tables is the true one, the odds
                   after the release are at most this factor times the odds before, and at least one over it,
                   except with probability `odds_fail` for each side, whichever table is the true one.
        Proof:     pure epsilon: the ratio of chances is at most e^epsilon at every outcome. With a delta, let
                   S be the outcomes at which P(o) > e^(epsilon + t) Q(o). Then P(S) <= e^epsilon Q(S) + delta
                   <= e^-t P(S) + delta, so P(S) <= delta / (1 - e^-t), and Q(S) is less than P(S); t is 0.1.
                   (That the odds stay below e^epsilon except with probability delta is often said and is not
                   true: for Gaussian noise they leave it more often. Kasiviswanathan & Smith 2014,
                   arXiv:0803.3946, have the same argument with other constants.)
        Assumes:   the neighbor relation of the event says what the two tables differ in.
        """
        least = min(self.pure, self.epsilon + (EXTRA_EPSILON if self.delta > 0 else 0.0))
        if self.odds_fail >= 1:
            return math.inf
        return _exp(least)

    @property
    def odds_fail(self) -> float:
        """Return the chance that the odds move further than `odds_factor`."""
        if self.delta == 0 or self.pure <= self.epsilon + EXTRA_EPSILON:
            return 0.0
        return min(1.0, self.delta * _FAILURE_FACTOR)

    def after(self, prior: float) -> float:
        """Return the most that somebody can believe after the release who believed `prior` before.

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
        """Return the least that somebody can believe after the release who believed `prior` before."""
        return 1.0 - self.after(1.0 - prior)

    def true_positives(self, false_positives: float) -> float:
        """Return the best attack's true-positive rate: of those who are in the data, the share that a test
        can point at if it points at `false_positives` of those who are not.

        Guarantee: no test of whether one given unit is in the data does better.
        Proof:     exact for Gaussian noise (`accounting.tradeoff`); otherwise the least over points (epsilon,
                   delta) of the event's own privacy curve, each of which bounds every test from two sides
                   (Dong, Roth & Su 2022, arXiv:1905.02383, equation 5).
        """
        _require.probability(false_positives=false_positives)
        if not self.bounded:
            return 1.0
        if _gaussian(self.event):
            return 1.0 - accounting.tradeoff(self.event, alpha=false_positives)
        points = (*_curve(self.event, self.epsilon), (self.epsilon, self.delta))
        return min(1.0, *(_true_positive_bound(epsilon, delta, false_positives) for epsilon, delta in points))

    def accusation(self, prior: float, false_positives: float) -> float:
        """Return the most that an accusation is worth: the chance that somebody who is pointed at is really
        in the data, if a share `prior` of those who are looked at is."""
        _require.open_probability(prior=prior)
        hits = self.true_positives(false_positives) * prior
        misses = false_positives * (1 - prior)
        return hits / (hits + misses) if hits + misses > 0 else prior

    @property
    def advantage(self) -> float:
        """Return the largest true-positive rate minus false-positive rate of any test; zero means
        guessing.
        """
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
        """Return the most that somebody's expected cost can be with them in the data, if it is `without`
        without them.

        Guarantee: for any cost between 0 and `worst` that others derive from the release, the expectation
                   with the unit is at most e^epsilon times that without it, plus delta times `worst`.
        Proof:     the definition, integrated over the levels of the cost (Wood et al. 2018 tell it as the
                   premium of an insurance).
        """
        _require.non_negative(without=without)
        if not self.bounded or (self.delta > 0 and worst is None):
            return math.inf if worst is None else float(worst)
        # not infinity times zero
        multiplied = _exp(self.epsilon) * without if without > 0 else 0.0
        bound = multiplied + self.delta * (worst or 0.0)
        return bound if worst is None else min(float(worst), bound)

    def of_group(self, size: int) -> Risk:
        """Return the same for `size` units at once, a family or a household; their delta is larger as well.

        Proof: group privacy, size epsilon and size e^((size - 1) epsilon) delta (Vadhan 2017, Lemma 2.2);
        `accounting.Group` may know a smaller epsilon at that delta.
        """
        _require.integer(size=size, at_least=1)
        if size == 1:
            return self
        delta_factor = _exp((size - 1) * self.epsilon) if self.delta > 0 else 1.0
        return Risk(Group(event=self.event, size=size), min(1.0, size * delta_factor * self.delta))

    @property
    def of_a_value(self) -> Risk:
        """Return what one record's content is exposed to: that it says one thing rather than another.

        Under `add_remove` a changed record is one that leaves and one that comes, and under `zero_out` one
        that is blanked and one that is filled in: two steps. Under `replace` it is one.
        """
        return self if self.neighbors is REPLACE else self.of_group(2)


def changed(neighbors: Neighbors) -> str:
    """Return what the neighbor relation hides, in words."""
    if neighbors is ADD_REMOVE:
        return "whether you are in the data at all"
    if neighbors is REPLACE:
        return "which of any two things your record says"
    return "whether your record is the real one or a blank"


def _exp(epsilon: float) -> float:
    """Return e^epsilon, or infinity where a float may not hold it: an upper bound either way."""
    return math.exp(epsilon) if epsilon < 700 else math.inf


@functools.lru_cache(maxsize=256)
def _epsilon(event: Event, delta: float) -> float:
    """Return the tightest epsilon that accounting proves; infinity where it proves none."""
    try:
        return accounting.epsilon(event, delta=delta)
    except Unsupported:
        return math.inf


# Points of the privacy curve that the best attack is read off: for 60 epochs of DP-SGD the true-positive rate
# at 1% false positives is 0.04023 with 12 points and with 24, and 0.04021 with the best point
# (`accounting.tradeoff`).
_POINTS = 12


@functools.lru_cache(maxsize=64)
def _curve(event: Event, top: float) -> tuple[tuple[float, float], ...]:
    """Return points (epsilon, delta) of the curve from 0 to `top`, or none where only one pair is known."""
    stated = isinstance(event, PureDP | ApproximateDP | RandomizedResponse)
    if stated or not 0 < top < 700:
        return ()
    levels = [top * k / _POINTS for k in range(_POINTS + 1)]
    try:
        return tuple((level, accounting.delta(event, epsilon=level)) for level in levels)
    except Unsupported:
        return ()


def _true_positive_bound(epsilon: float, delta: float, rate: float) -> float:
    """Return the true-positive rate that (epsilon, delta) allows at a false-positive rate."""
    exp_epsilon = _exp(epsilon)
    # not infinity times zero
    multiplied = exp_epsilon * rate if rate > 0 else 0.0
    return min(multiplied + delta, 1 - (1 - delta - rate) / exp_epsilon)


def _gaussian(event: Event) -> bool:
    """Return whether an event is Gaussian noise alone, whose trade-off curve is known exactly."""
    form = normal(event)
    return form.delta == 0 == form.distance and all(isinstance(part, Gaussian) for part in form.parts)
