"""Defines events, which describe what a mechanism did to the data, with exactly the parameters that
accounting needs.

Events are frozen, hashable, and written to JSON and back; only the classes in the package's registry can be
read. Accountants are pure functions of events, so an old ledger can be priced again by a better accountant.
Every event is for one neighbor relation; events of different relations do not compose. An event that wraps
others takes their relation, and its argument `neighbors` is ignored.

A registered name, as in `@described("accounting.Gaussian")`, and the fields of a class are stored in ledgers:
they must not change.

Defines events whose release is a choice and not a number with noise: noisy max, sparse vector, partition
selection, the best of a random number of trials, and the winner of a vote.

`RDPPoint`, for a mechanism with a known Rényi bound at one order, is in this module too.

Defines events on random samples (of fixed size, or truncated Poisson samples), random allocation,
shuffling, and matrix mechanisms with the steps in which a unit may take part.

Every amplification theorem is proved for certain neighbor relations. Its event cannot be made for another
relation, because the same mechanism has a different price there, and no later check would notice.

Writes the message of every refusal: which event has no price by which accountant, why, and what to use
instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Annotated, Any, TypeVar

from .. import _registry, _require
from .._errors import Unsupported, WrongRelation
from .._public import ADD_REMOVE, REPLACE, ZERO_OUT, Neighbors, as_neighbors, require_relation
from .._registry import described
from .._require import FINITE, NON_NEGATIVE, OPEN_PROBABILITY, POSITIVE, PROBABILITY, Real, at_least

R = TypeVar("R")


class Event:
    """Base class of all events, with composition and conversion to JSON."""

    __slots__ = ()
    neighbors: Neighbors

    def repeated(self, times: int) -> Event:
        """Return the same event `times` times, each with fresh noise.

        >>> Gaussian(noise_multiplier=2.0).repeated(3).times
        3
        """
        _require.integer(times=times, at_least=0)
        if times == 0 or isinstance(self, NoOp):
            return NoOp(neighbors=self.neighbors)
        if times == 1:
            return self
        return Repeated(event=self, times=int(times))

    def sampled(self, rate: Real) -> Event:
        """Return the event run on a Poisson sample: every unit is kept independently with probability
        `rate`."""
        return PoissonSampled(event=self, rate=rate)

    def to_json(self) -> dict[str, Any]:
        """Return a complete description; `from_json` is its exact inverse."""
        return dict(_registry.to_json(self))

    def to_dp_event(self) -> Any:
        """Return the `DpEvent` of dp-accounting that says the same; Unsupported if there is none."""
        from . import dp_events

        return dp_events.write(self)

    @staticmethod
    def from_dp_event(event: Any, *, neighbors: Neighbors = ADD_REMOVE) -> Event:
        """Return the event that says what a `DpEvent` of dp-accounting says. There the accountant knows the
        neighbor relation, here the event does."""
        from . import dp_events

        return dp_events.read(event, as_neighbors(neighbors))


def from_json(data: dict[str, Any]) -> Event:
    """Return the event from its description, as `Event.to_json` returned it."""
    event = _registry.from_json(data)
    if not isinstance(event, Event):
        raise _require.fail("an event's description", data, "that of an accounting event")
    return event


@described("accounting.NoOp")
class NoOp(Event):
    """The output does not depend on the data: no cost."""

    neighbors: Neighbors = ADD_REMOVE


@described("accounting.NonPrivate")
class NonPrivate(Event):
    """No guarantee at all: infinite cost."""

    neighbors: Neighbors = ADD_REMOVE


@described("accounting.Gaussian")
class Gaussian(Event):
    """Noise N(0, s² I); `noise_multiplier` is s divided by the l2 sensitivity under `neighbors`.

    Zero means no noise.
    """

    noise_multiplier: Annotated[float, NON_NEGATIVE]
    neighbors: Neighbors = ADD_REMOVE


@described("accounting.Laplace")
class Laplace(Event):
    """Continuous Laplace noise; `noise_multiplier` is its scale divided by the l1 sensitivity, so epsilon = 1
    / noise_multiplier. Zero means no noise."""

    noise_multiplier: Annotated[float, NON_NEGATIVE]
    neighbors: Neighbors = ADD_REMOVE


@described("accounting.DiscreteLaplace")
class DiscreteLaplace(Event):
    """Noise with P(x) proportional to exp(-|x| / scale) on the integers, added to integers with l1
    sensitivity `sensitivity`.

    The price of one integer holds for vectors too. For this noise, shifting one coordinate by a + b is at
    least as revealing as shifting two coordinates by a and by b. Proof: let f_k be the trade-off function of
    a shift by k. The best tests are threshold tests, which give 1 - f_{a+b} = (1 - f_a) o (1 - f_b) exactly.
    Group privacy (Dong, Roth & Su 2022, arXiv:1905.02383) along the path (0, 0) -> (a, 0) -> (a, b) gives the
    same composition as a bound for the two shifts.
    """

    scale: Annotated[Real, POSITIVE]
    sensitivity: Annotated[int, at_least(0)] = 1
    neighbors: Neighbors = ADD_REMOVE


@described("accounting.DiscreteGaussian")
class DiscreteGaussian(Event):
    """Noise with P(x) proportional to exp(-x² / (2 sigma²)) on the integers, added to ONE integer that moves
    by `sensitivity`.

    A vector in which at most l0 entries move by at most k each is
    `DiscreteGaussian(sensitivity=k).repeated(l0)`: larger shifts of log-concave noise dominate smaller ones.
    A vector bounded only in l2 is `VectorDiscreteGaussian`. `variance` is sigma², and may be a fraction.
    """

    variance: Annotated[Real, POSITIVE]
    sensitivity: Annotated[int, at_least(0)] = 1
    neighbors: Neighbors = ADD_REMOVE


@described("accounting.VectorDiscreteGaussian")
class VectorDiscreteGaussian(Event):
    """Discrete Gaussian noise on every entry of an integer vector whose squared l2 sensitivity is
    `l2_squared`.

    The noise is not rotation-invariant, and no dominating pair is known that depends on the l2 norm alone. So
    its zCDP bound is charged (Canonne, Kamath & Steinke 2020, arXiv:2004.00010v4, Theorem 14).
    """

    variance: Annotated[Real, POSITIVE]
    l2_squared: Annotated[int, at_least(0)]
    neighbors: Neighbors = ADD_REMOVE


@described("accounting.RandomizedResponse")
class RandomizedResponse(Event):
    """One of `categories` answers; the true one is exp(epsilon) times as likely as each of the others."""

    epsilon: Annotated[Real, NON_NEGATIVE]
    categories: Annotated[int, at_least(2)] = 2
    neighbors: Neighbors = ADD_REMOVE


@described("accounting.ExponentialMechanism")
class ExponentialMechanism(Event):
    """A choice of bounded range: for any two neighbors D and D', ln(P[M(D) = y] / P[M(D') = y]) over all
    outputs y lies in an interval of length `epsilon` (Durfee & Rogers 2019, arXiv:1905.04273).

    The exponential mechanism that is epsilon-DP has bounded range epsilon.
    """

    epsilon: Annotated[Real, NON_NEGATIVE]
    neighbors: Neighbors = ADD_REMOVE


@described("accounting.PureDP")
class PureDP(Event):
    """Any mechanism that is epsilon-DP."""

    epsilon: Annotated[Real, NON_NEGATIVE]
    neighbors: Neighbors = ADD_REMOVE


@described("accounting.ApproximateDP")
class ApproximateDP(Event):
    """Any mechanism that is (epsilon, delta)-DP."""

    epsilon: Annotated[Real, NON_NEGATIVE]
    delta: Annotated[float, PROBABILITY]
    neighbors: Neighbors = ADD_REMOVE


@described("accounting.ZCDP")
class ZCDP(Event):
    """Any mechanism that is delta-approximately rho-zCDP; with delta 0, rho-zCDP (Bun & Steinke 2016,
    arXiv:1605.02065, Section 8 and Definition 1.1)."""

    rho: Annotated[Real, NON_NEGATIVE]
    delta: Annotated[float, PROBABILITY] = 0.0
    neighbors: Neighbors = ADD_REMOVE


@described("accounting.PoissonSampled")
class PoissonSampled(Event):
    """`event` on a sample that keeps every unit independently with probability `rate`."""

    event: Event
    rate: Annotated[Real, PROBABILITY]
    neighbors: Neighbors = ADD_REMOVE

    def __post_init__(self) -> None:
        inherit_neighbors(self)


@described("accounting.Group")
class Group(Event):
    """Group privacy: `event`, where neighboring tables differ in up to `size` units instead of one."""

    event: Event
    size: Annotated[int, at_least(1)]
    neighbors: Neighbors = ADD_REMOVE

    def __post_init__(self) -> None:
        inherit_neighbors(self)


@described("accounting.Repeated")
class Repeated(Event):
    """`event` run `times` times, each with fresh noise."""

    event: Event
    times: Annotated[int, at_least(1)]
    neighbors: Neighbors = ADD_REMOVE

    def __post_init__(self) -> None:
        inherit_neighbors(self)


@described("accounting.Composed")
class Composed(Event):
    """All of `events`, each possibly chosen after seeing the earlier answers, but with prices fixed in
    advance."""

    events: tuple[Event, ...]
    neighbors: Neighbors = ADD_REMOVE

    def __post_init__(self) -> None:
        object.__setattr__(self, "events", tuple(self.events))
        _require.non_empty(events=self.events)
        for event in self.events:
            if not isinstance(event, Event):
                raise _require.fail("events", type(event).__name__, "a list of accounting events")
        relations = {e.neighbors for e in self.events}
        if len(relations) > 1:
            raise WrongRelation(
                f"events for different neighbor relations ({', '.join(sorted(relations))}) do not compose. "
                f"Price them all for one relation."
            )
        object.__setattr__(self, "neighbors", relations.pop())


def inherit_neighbors(event: Any) -> None:
    """Give an event that wraps another, in its field `event`, the neighbor relation of the inner one."""
    _require.must(isinstance(event.event, Event), "event", type(event.event).__name__, "an accounting event")
    object.__setattr__(event, "neighbors", event.event.neighbors)


def compose(events: Iterable[Event]) -> Event:
    """Return one event for the composition of all: nested compositions are flattened and equal events
    counted, in the order of their first appearance.

    >>> compose([PureDP(epsilon=1), PureDP(epsilon=1)]) == PureDP(epsilon=1).repeated(2)
    True
    """
    members = list(events)
    _require.non_empty(events=members)
    counts: dict[Event, int] = {}
    for part, times in _leaves(Composed(events=tuple(members)), 1):
        if not isinstance(part, NoOp):
            counts[part] = counts.get(part, 0) + times
    if not counts:
        return NoOp(neighbors=members[0].neighbors)
    parts = [part.repeated(times) for part, times in counts.items()]
    return parts[0] if len(parts) == 1 else Composed(events=tuple(parts))


def leaves(event: Event) -> dict[Event, int]:
    """Return the events that this one is composed of, each with its count. Events on a sample and groups are
    not taken apart."""
    counts: dict[Event, int] = {}
    for part, times in _leaves(event, 1):
        counts[part] = counts.get(part, 0) + times
    return counts


def _leaves(event: Event, times: int) -> Iterable[tuple[Event, int]]:
    """Yield the events that are neither compositions nor repetitions, with their counts."""
    if isinstance(event, Composed):
        for part in event.events:
            yield from _leaves(part, times)
    elif isinstance(event, Repeated):
        yield from _leaves(event.event, times * event.times)
    else:
        yield event, times


NOISES = ("laplace", "exponential", "gumbel")


@described("accounting.NoisyMax")
class NoisyMax(Event):
    """Report noisy max: the index of the largest of some scores after noise, and nothing else; `epsilon`-DP.

    `noise`: "laplace" (Dwork & Roth 2014, Claim 3.9), "exponential" (permute-and-flip: McKenna & Sheldon
    2020, Ding et al. 2021), or "gumbel", which is the exponential mechanism and has bounded range. The
    mechanism must choose the noise scale that gives `epsilon`: 2 sensitivity / epsilon, or half of it when
    one unit moves all scores in the same direction.
    """

    epsilon: Annotated[Real, NON_NEGATIVE]
    noise: str = "laplace"
    neighbors: Neighbors = ADD_REMOVE

    def __post_init__(self) -> None:
        _require.must(self.noise in NOISES, "noise", self.noise, f"one of {', '.join(NOISES)}")


@described("accounting.SparseVector")
class SparseVector(Event):
    """The sparse vector technique: any number of queries compared with a threshold, until `cutoff` of them
    were answered "above". The full price is charged at the start.

    `threshold_epsilon` pays for the noisy threshold, `query_epsilon` for all `cutoff` positive answers
    together: threshold noise Lap(sensitivity / threshold_epsilon), query noise Lap(2 cutoff sensitivity /
    query_epsilon), halved for monotonic queries.
    Guarantee: (threshold_epsilon + query_epsilon)-DP. Proof: Lyu, Su & Li 2017, arXiv:1603.01699, Section 4.
    Noisy values that are released for the positive answers are separate events.
    """

    threshold_epsilon: Annotated[Real, POSITIVE]
    query_epsilon: Annotated[Real, POSITIVE]
    cutoff: Annotated[int, at_least(1)] = 1
    neighbors: Neighbors = ADD_REMOVE


@described("accounting.Thresholded")
class Thresholded(Event):
    """Partition selection: the noise of `event` on the sizes of groups that were not declared in advance;
    only groups whose noisy size passes a threshold are released.

    `delta` bounds the probability that any group that exists in only one of two neighboring tables is
    released: for Laplace or Gaussian noise (discrete or not) the probability that the noise is above the
    threshold minus a unit's contribution to the group, summed over all groups that a unit can contribute to.
    Guarantee: for every epsilon x the delta of the release at x is at most delta + (1 - delta)
    delta_event(x), also within a composition: except with probability `delta`, both tables release the same
    groups, and the two outputs then differ as those of `event` do (Korolova et al. 2009; Wilson et al. 2020).
    The neighbor relation is that of `event`.
    """

    event: Event
    delta: Annotated[float, PROBABILITY]
    neighbors: Neighbors = ADD_REMOVE

    def __post_init__(self) -> None:
        inherit_neighbors(self)


@described("accounting.RDPPoint")
class RDPPoint(Event):
    """Any mechanism that is (order, epsilon)-Rényi-DP at this one order (Mironov 2017, arXiv:1702.07476,
    Definition 4)."""

    order: Annotated[Real, POSITIVE]
    epsilon: Annotated[Real, NON_NEGATIVE]
    neighbors: Neighbors = ADD_REMOVE

    def __post_init__(self) -> None:
        _require.must(self.order > 1, "order", self.order, "above 1")


class Trials:
    """Base class of the distributions of the number of trials in `RepeatAndSelect`."""

    __slots__ = ()


@described("accounting.PoissonTrials")
class PoissonTrials(Trials):
    """A Poisson number of trials with this mean. It may be zero: then nothing is released."""

    mean: Annotated[Real, POSITIVE]


@described("accounting.NegativeBinomialTrials")
class NegativeBinomialTrials(Trials):
    """A truncated negative binomial number of trials, at least one: `shape` 1 is the geometric distribution
    with success probability `gamma`, `shape` 0 the logarithmic one.

    Papernot & Steinke 2022, arXiv:2110.03620, Definition 1, where `shape` is eta.
    """

    shape: Annotated[Real, FINITE]
    gamma: Annotated[Real, OPEN_PROBABILITY]

    def __post_init__(self) -> None:
        _require.must(self.shape > -1, "shape", self.shape, "above -1")


@_require.check_options
def geometric(gamma: Real) -> NegativeBinomialTrials:
    """Return the geometric distribution: each trial is the last with probability gamma, 1/gamma on
    average."""
    return NegativeBinomialTrials(shape=1, gamma=gamma)


@_require.check_options
def logarithmic(gamma: Real) -> NegativeBinomialTrials:
    """Return the logarithmic distribution. A selection with it costs less than one with the geometric
    distribution of the same mean."""
    return NegativeBinomialTrials(shape=0, gamma=gamma)


@described("accounting.RepeatAndSelect")
class RepeatAndSelect(Event):
    """`event` run a random number of times, and only the output of the best run released: private selection,
    as for tuning hyperparameters.

    The score that decides which run is best must be part of the run's output, which `event` prices. Price:
    Papernot & Steinke 2022, arXiv:2110.03620.
    """

    event: Event
    trials: Trials
    neighbors: Neighbors = ADD_REMOVE

    def __post_init__(self) -> None:
        _require.must(
            isinstance(self.trials, Trials),
            "trials",
            self.trials,
            "PoissonTrials(...), NegativeBinomialTrials(...), geometric(...) or logarithmic(...)",
        )
        inherit_neighbors(self)


@described("accounting.GNMax")
class GNMax(Event):
    """The Gaussian noisy max of PATE: the class with most teachers' votes after noise N(0, sigma²) on every
    count. One unit can change one teacher's vote.

    The price does not depend on the votes: that of a Gaussian with noise multiplier sigma / sqrt(2) (Papernot
    et al. 2018, arXiv:1802.08908, Proposition 8). A smaller price can be computed from the votes. It depends
    on the data and must not be published as it is: see `discreet.accounting.pate`.
    """

    sigma: Annotated[Real, POSITIVE]
    neighbors: Neighbors = ADD_REMOVE

    @property
    def equivalent(self) -> Gaussian:
        """The Gaussian release with this price; its noise multiplier is rounded down, its price up."""
        # sqrt(1/2), rounded down
        noise_multiplier = float(self.sigma) * 0.707106781186547
        _require.that(noise_multiplier != 0, f"sigma = {self.sigma!r} is too small to be told from zero.")
        return Gaussian(noise_multiplier=noise_multiplier, neighbors=self.neighbors)


@described("accounting.SampledWithoutReplacement")
class SampledWithoutReplacement(Event):
    """`event` on a sample of `sample` units, drawn uniformly without replacement from a population of exactly
    `size` units.

    The price is proved for `replace` only, where the size is public (Balle, Barthe & Gaboardi 2018,
    arXiv:1807.01647, Theorem 9; Wang, Balle & Kasiviswanathan 2019, arXiv:1808.00087). `event` is for
    `replace` too: the noise multiplier of a Gaussian is relative to the sensitivity to replacing one unit.
    """

    event: Event
    size: Annotated[int, at_least(1)]
    sample: Annotated[int, at_least(0)]
    neighbors: Neighbors = REPLACE

    def __post_init__(self) -> None:
        _require.must(self.sample <= self.size, "sample", self.sample, f"at most size = {self.size}")
        inherit_neighbors(self)
        require_relation(self.neighbors, REPLACE, what="amplification by sampling without replacement")

    @property
    def rate(self) -> Fraction:
        """The probability that a given unit is in the sample."""
        return Fraction(self.sample, self.size)


@described("accounting.TruncatedPoisson")
class TruncatedPoisson(Event):
    """`event` on a Poisson sample, with rate `rate`, of exactly `size` units; if it has more than `limit`
    units, a random `limit` of them are used.

    The price is proved for `zero_out`, where the size is public (Chua et al. 2024, arXiv:2411.04205): the run
    differs from the untruncated one only if the sample has more than `limit` units. So the price is that of
    the untruncated sample plus the cost of their distance in total variation (`accounting.normal`).
    """

    event: Event
    rate: Annotated[Real, PROBABILITY]
    size: Annotated[int, at_least(1)]
    limit: Annotated[int, at_least(1)]
    neighbors: Neighbors = ZERO_OUT

    def __post_init__(self) -> None:
        inherit_neighbors(self)
        require_relation(self.neighbors, ZERO_OUT, what="the price of a truncated Poisson sample")


@described("accounting.RandomAllocation")
class RandomAllocation(Event):
    """`event` at each of `steps` steps, every unit taking part in exactly `selected` of them, drawn
    uniformly.

    With `selected=1` this is balls-in-bins batching (Chua et al. 2024, arXiv:2412.16802), one pass over the
    data. The price is proved for `add_remove` and `zero_out` (Feldman & Shenfeld 2025, arXiv:2502.08202).
    This event is the whole pass; `event` is one step of it, which must be a Gaussian.
    """

    event: Event
    steps: Annotated[int, at_least(1)]
    selected: Annotated[int, at_least(1)] = 1
    neighbors: Neighbors = ADD_REMOVE

    def __post_init__(self) -> None:
        _require.must(self.selected <= self.steps, "selected", self.selected, f"at most steps = {self.steps}")
        inherit_neighbors(self)
        _require.must(
            isinstance(self.event, Gaussian),
            "event",
            type(self.event).__name__,
            "a Gaussian: random allocation has no price for other noise",
        )
        require_relation(self.neighbors, ADD_REMOVE, ZERO_OUT, what="random allocation")


# The name of `RandomAllocation` with `selected=1` in the literature. It is the same class, so that other
# values of `selected` are accepted under this name too.
BallsInBins = RandomAllocation


@described("accounting.Shuffled")
class Shuffled(Event):
    """`reports` local reports, each `epsilon`-DP for its sender, seen only after a uniformly random
    permutation.

    The price is proved for `replace`: one sender's value is changed, and the number of senders is public. It
    holds for any adaptively chosen local randomizers (Feldman, McMillan & Talwar 2021, arXiv:2012.12803,
    Section 3). The stronger bound of their later paper (arXiv:2208.04591) is not used, because by its errata
    it holds for a restricted class of randomizers only.
    """

    epsilon: Annotated[Real, NON_NEGATIVE]
    reports: Annotated[int, at_least(1)]
    neighbors: Neighbors = REPLACE

    def __post_init__(self) -> None:
        require_relation(self.neighbors, REPLACE, what="amplification by shuffling")


class Participation:
    """Says in which steps one unit may take part: the base class of participation patterns."""

    __slots__ = ()


@described("accounting.SingleEpoch")
class SingleEpoch(Participation):
    """Every unit takes part in at most one step."""


@described("accounting.MinSeparated")
class MinSeparated(Participation):
    """Every unit takes part in at most `times` steps, any two of them at least `separation` steps apart
    (Choquette-Choo et al. 2023, arXiv:2211.06530)."""

    separation: Annotated[int, at_least(1)]
    times: Annotated[int, at_least(1)]


@described("accounting.Banded")
class Banded(Participation):
    """Every unit takes part in at most `times` steps, any two of them at least `bands` steps apart, and the
    strategy matrix has at most `bands` nonzero diagonals.

    The matrix's columns for the steps of one unit are then orthogonal, and their squared norms add up
    (Choquette-Choo et al. 2023, arXiv:2306.08153).
    """

    bands: Annotated[int, at_least(1)]
    times: Annotated[int, at_least(1)]


@described("accounting.TreeRestarts")
class TreeRestarts(Participation):
    """Tree aggregation: `restarts` + 1 binary trees one after the other, each over `leaves` steps; a unit
    takes part in at most one leaf of each tree (Kairouz et al. 2021, arXiv:2103.00039)."""

    leaves: Annotated[int, at_least(1)]
    restarts: Annotated[int, at_least(0)] = 0


@described("accounting.CorrelatedGaussian")
class CorrelatedGaussian(Event):
    """All `steps` answers of a matrix mechanism: independent Gaussian noise is added to the answers of a
    strategy matrix, so that the noise of the released answers is correlated.

    `noise_multiplier` is the standard deviation of the independent noise, divided by the largest l2 change
    that one unit can make in the strategy's answers *under `participation`*.
    Guarantee: as private as one Gaussian with that noise multiplier, also when the inputs of later steps are
               chosen adaptively.
    Proof:     Denisov et al. 2022, arXiv:2202.08312, Theorem 2.1 (Gaussian noise only).
    Assumes:   the sensitivity was computed for this participation pattern, and the data respects the pattern.
    """

    noise_multiplier: Annotated[float, NON_NEGATIVE]
    steps: Annotated[int, at_least(1)]
    participation: Participation = SingleEpoch()
    neighbors: Neighbors = ADD_REMOVE

    def __post_init__(self) -> None:
        _require.must(
            isinstance(self.participation, Participation),
            "participation",
            self.participation,
            "SingleEpoch(), MinSeparated(...), Banded(...) or TreeRestarts(...)",
        )

    @property
    def equivalent(self) -> Gaussian:
        """The single Gaussian release with the same price."""
        return Gaussian(noise_multiplier=self.noise_multiplier, neighbors=self.neighbors)


def one_block(event: Any) -> Event:
    """Return the event which, composed `selected` times, bounds the price of a random allocation with more
    than one selected step.

    Let k be the number of selected steps and t the number of steps. A uniform choice of k of t steps is the
    same as k disjoint random blocks of floor(t/k) steps each, and then one uniform step from each block;
    where k does not divide t, some random steps are in no block. For given blocks that is a k-fold
    composition of allocations with one selected step (Feldman & Shenfeld 2025, arXiv:2502.08202).
    """
    return RandomAllocation(event=event.event, steps=event.steps // event.selected)


def refuse(event: Event, accountant: str, why: str) -> Unsupported:
    """Return the error for an event that an accountant has no price for."""
    return Unsupported(
        f"{type(event).__name__} has no price by the {accountant} accountant: {why}.",
        remedy="accounting.compare(event, delta=...) shows which accountants have one.",
    )


def covered(holds: bool, event: Event, accountant: str, why: str) -> None:
    """Require that an accountant's theorem is about this event; `why` says why it would not be."""
    if not holds:
        raise refuse(event, accountant, why)


def rule_for(rules: Mapping[type[Event], R], event: Event, accountant: str, why: str) -> R:
    """Return an accountant's rule for a kind of event; refuse a kind for which it has none."""
    rule = rules.get(type(event))
    if rule is None:
        raise refuse(event, accountant, why)
    return rule
