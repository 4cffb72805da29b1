"""Defines events, which describe what a mechanism did to the data, with exactly the parameters that
accounting needs.

Events are frozen, hashable, and written to JSON and back; only the classes in the package's registry can be
read. Accountants are pure functions of events, so an old ledger can be priced again by a better accountant.
Every event is for one neighbor relation; events of different relations do not compose. An event that wraps
others takes their relation, and its argument `neighbors` is ignored.

A registered name, as in `@described("accounting.Gaussian")`, and the fields of a class are stored in ledgers:
they must not change.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .. import _registry, _require
from .._errors import WrongRelation
from .._public import ADD_REMOVE, Neighbors, as_neighbors
from .._registry import described
from .._require import Real


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

    def _resolve_neighbors(self) -> None:
        """Replace the name of a neighbor relation by the relation itself; called at the end of
        `__post_init__`."""
        object.__setattr__(self, "neighbors", as_neighbors(self.neighbors))


def from_json(data: dict[str, Any]) -> Event:
    """Return the event from its description, as `Event.to_json` returned it."""
    event = _registry.from_json(data)
    if not isinstance(event, Event):
        raise _require.fail("an event's description", data, "that of an accounting event")
    return event


@described("accounting.NoOp")
@dataclass(frozen=True, slots=True, kw_only=True)
class NoOp(Event):
    """The output does not depend on the data: no cost."""

    neighbors: Neighbors = ADD_REMOVE

    def __post_init__(self) -> None:
        self._resolve_neighbors()


@described("accounting.NonPrivate")
@dataclass(frozen=True, slots=True, kw_only=True)
class NonPrivate(Event):
    """No guarantee at all: infinite cost."""

    neighbors: Neighbors = ADD_REMOVE

    def __post_init__(self) -> None:
        self._resolve_neighbors()


@described("accounting.Gaussian")
@dataclass(frozen=True, slots=True, kw_only=True)
class Gaussian(Event):
    """Noise N(0, s² I); `noise_multiplier` is s divided by the l2 sensitivity under `neighbors`.

    Zero means no noise.
    """

    noise_multiplier: float
    neighbors: Neighbors = ADD_REMOVE

    def __post_init__(self) -> None:
        _require.non_negative(noise_multiplier=self.noise_multiplier)
        self._resolve_neighbors()


@described("accounting.Laplace")
@dataclass(frozen=True, slots=True, kw_only=True)
class Laplace(Event):
    """Continuous Laplace noise; `noise_multiplier` is its scale divided by the l1 sensitivity, so epsilon = 1
    / noise_multiplier. Zero means no noise."""

    noise_multiplier: float
    neighbors: Neighbors = ADD_REMOVE

    def __post_init__(self) -> None:
        _require.non_negative(noise_multiplier=self.noise_multiplier)
        self._resolve_neighbors()


@described("accounting.DiscreteLaplace")
@dataclass(frozen=True, slots=True, kw_only=True)
class DiscreteLaplace(Event):
    """Noise with P(x) proportional to exp(-|x| / scale) on the integers, added to integers with l1
    sensitivity `sensitivity`.

    The price of one integer holds for vectors too. For this noise, shifting one coordinate by a + b is at
    least as revealing as shifting two coordinates by a and by b. Proof: let f_k be the trade-off function of
    a shift by k. The best tests are threshold tests, which give 1 - f_{a+b} = (1 - f_a) o (1 - f_b) exactly.
    Group privacy (Dong, Roth & Su 2022, arXiv:1905.02383) along the path (0, 0) -> (a, 0) -> (a, b) gives the
    same composition as a bound for the two shifts.
    """

    scale: Real
    sensitivity: int = 1
    neighbors: Neighbors = ADD_REMOVE

    def __post_init__(self) -> None:
        _require.positive(scale=self.scale)
        _require.integer(sensitivity=self.sensitivity, at_least=0)
        self._resolve_neighbors()


@described("accounting.DiscreteGaussian")
@dataclass(frozen=True, slots=True, kw_only=True)
class DiscreteGaussian(Event):
    """Noise with P(x) proportional to exp(-x² / (2 sigma²)) on the integers, added to ONE integer that moves
    by `sensitivity`.

    A vector in which at most l0 entries move by at most k each is
    `DiscreteGaussian(sensitivity=k).repeated(l0)`: larger shifts of log-concave noise dominate smaller ones.
    A vector bounded only in l2 is `VectorDiscreteGaussian`. `variance` is sigma², and may be a fraction.
    """

    variance: Real
    sensitivity: int = 1
    neighbors: Neighbors = ADD_REMOVE

    def __post_init__(self) -> None:
        _require.positive(variance=self.variance)
        _require.integer(sensitivity=self.sensitivity, at_least=0)
        self._resolve_neighbors()


@described("accounting.VectorDiscreteGaussian")
@dataclass(frozen=True, slots=True, kw_only=True)
class VectorDiscreteGaussian(Event):
    """Discrete Gaussian noise on every entry of an integer vector whose squared l2 sensitivity is
    `l2_squared`.

    The noise is not rotation-invariant, and no dominating pair is known that depends on the l2 norm alone. So
    its zCDP bound is charged (Canonne, Kamath & Steinke 2020, arXiv:2004.00010v4, Theorem 14).
    """

    variance: Real
    l2_squared: int
    neighbors: Neighbors = ADD_REMOVE

    def __post_init__(self) -> None:
        _require.positive(variance=self.variance)
        _require.integer(l2_squared=self.l2_squared, at_least=0)
        self._resolve_neighbors()


@described("accounting.RandomizedResponse")
@dataclass(frozen=True, slots=True, kw_only=True)
class RandomizedResponse(Event):
    """One of `categories` answers; the true one is exp(epsilon) times as likely as each of the others."""

    epsilon: Real
    categories: int = 2
    neighbors: Neighbors = ADD_REMOVE

    def __post_init__(self) -> None:
        _require.non_negative(epsilon=self.epsilon)
        _require.integer(categories=self.categories, at_least=2)
        self._resolve_neighbors()


@described("accounting.ExponentialMechanism")
@dataclass(frozen=True, slots=True, kw_only=True)
class ExponentialMechanism(Event):
    """A choice of bounded range: for any two neighbors D and D', ln(P[M(D) = y] / P[M(D') = y]) over all
    outputs y lies in an interval of length `epsilon` (Durfee & Rogers 2019, arXiv:1905.04273).

    The exponential mechanism that is epsilon-DP has bounded range epsilon.
    """

    epsilon: Real
    neighbors: Neighbors = ADD_REMOVE

    def __post_init__(self) -> None:
        _require.non_negative(epsilon=self.epsilon)
        self._resolve_neighbors()


@described("accounting.PureDP")
@dataclass(frozen=True, slots=True, kw_only=True)
class PureDP(Event):
    """Any mechanism that is epsilon-DP."""

    epsilon: Real
    neighbors: Neighbors = ADD_REMOVE

    def __post_init__(self) -> None:
        _require.non_negative(epsilon=self.epsilon)
        self._resolve_neighbors()


@described("accounting.ApproximateDP")
@dataclass(frozen=True, slots=True, kw_only=True)
class ApproximateDP(Event):
    """Any mechanism that is (epsilon, delta)-DP."""

    epsilon: Real
    delta: float
    neighbors: Neighbors = ADD_REMOVE

    def __post_init__(self) -> None:
        _require.non_negative(epsilon=self.epsilon)
        _require.probability(delta=self.delta)
        self._resolve_neighbors()


@described("accounting.ZCDP")
@dataclass(frozen=True, slots=True, kw_only=True)
class ZCDP(Event):
    """Any mechanism that is delta-approximately rho-zCDP; with delta 0, rho-zCDP (Bun & Steinke 2016,
    arXiv:1605.02065, Section 8 and Definition 1.1)."""

    rho: Real
    delta: float = 0.0
    neighbors: Neighbors = ADD_REMOVE

    def __post_init__(self) -> None:
        _require.non_negative(rho=self.rho)
        _require.probability(delta=self.delta)
        self._resolve_neighbors()


@described("accounting.PoissonSampled")
@dataclass(frozen=True, slots=True, kw_only=True)
class PoissonSampled(Event):
    """`event` on a sample that keeps every unit independently with probability `rate`."""

    event: Event
    rate: Real
    neighbors: Neighbors = ADD_REMOVE

    def __post_init__(self) -> None:
        _require.probability(rate=self.rate)
        inherit_neighbors(self)


@described("accounting.Group")
@dataclass(frozen=True, slots=True, kw_only=True)
class Group(Event):
    """Group privacy: `event`, where neighboring tables differ in up to `size` units instead of one."""

    event: Event
    size: int
    neighbors: Neighbors = ADD_REMOVE

    def __post_init__(self) -> None:
        _require.integer(size=self.size, at_least=1)
        inherit_neighbors(self)


@described("accounting.Repeated")
@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated(Event):
    """`event` run `times` times, each with fresh noise."""

    event: Event
    times: int
    neighbors: Neighbors = ADD_REMOVE

    def __post_init__(self) -> None:
        _require.integer(times=self.times, at_least=1)
        inherit_neighbors(self)


@described("accounting.Composed")
@dataclass(frozen=True, slots=True, kw_only=True)
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
    if not isinstance(event.event, Event):
        raise _require.fail("event", type(event.event).__name__, "an accounting event")
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
