"""Lanes: what one event adds to each of the sums that filters and odometers keep.

A lane is the pure epsilon, or the Rényi divergence at one fixed order. An event may be priced as it is, or
*capped*: read as a release of pure epsilon e that fails with a small probability, as (epsilon, delta) was
asked for. Both are true prices of the same release (docs/filters.md, "Capped prices"); which one is charged
is decided before the release and recorded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np

from .. import _require, _round
from .._errors import Unsupported
from .._public import Neighbors
from .._registry import described
from . import api, pure
from .events import Event, PureDP
from .normal import normal
from .rdp import curve

# A rational, or infinity.
Exact = Fraction | float

# Prices are rounded up to this grid: sums are exact, so their order is irrelevant, and stay short in JSON.
GRID = 2**128
# By how much the same price may differ, relatively, where it is computed again on another machine.
LAST_DIGITS = Fraction(1, 2**30)


def on_grid(value: Exact | int) -> Exact:
    """Return `value`, rounded up to the grid of prices."""
    if isinstance(value, float) and math.isinf(value):
        return math.inf
    return Fraction(_round.ceil_div(Fraction(value) * GRID, 1), GRID)


@described("accounting.Spent")
@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What was spent, in the lanes of one filter or odometer: a function of the events, whatever their order.

    `sums` has one entry per lane, `delta` is the sum of the events' own deltas, `events` how many were
    charged.
    """

    sums: tuple[Exact, ...]
    delta: Exact = Fraction(0)
    events: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "sums", tuple(self.sums))
        for value in (*self.sums, self.delta):
            _require.number(spent=value)
            if value < 0:
                raise _require.fail("spent", value, "zero or above")
        _require.integer(events=self.events, at_least=0)

    def plus(self, other: Spent, times: int = 1) -> Spent:
        """Return the sum of both; `other` may count several times."""
        pairs = zip(self.sums, other.sums, strict=True)
        sums = tuple(a if times == 0 else a + times * b for a, b in pairs)
        delta = self.delta if times == 0 else self.delta + times * other.delta
        return Spent(sums=sums, delta=delta, events=self.events + times * other.events)

    def agrees_with(self, other: Spent) -> bool:
        """Return whether both are the same but for the last digits of prices, which differ between processors
        and versions of numpy."""
        if self.events != other.events or len(self.sums) != len(other.sums):
            return False
        pairs = zip((*self.sums, self.delta), (*other.sums, other.delta), strict=True)
        return all(_same_price(a, b) for a, b in pairs)


def _same_price(a: Exact, b: Exact) -> bool:
    """Return whether two prices differ in their last digits at most."""
    if isinstance(a, float) or isinstance(b, float):
        # infinity, which has no digits
        return a == b
    return abs(a - b) <= LAST_DIGITS * max(a, b)


def split(event: Event) -> tuple[Event, Fraction, Fraction]:
    """Return the event where it does not fail; its own delta; its distance.

    Interactive events become their dominating pair.
    """
    form = normal(event)
    return form.event, Fraction(form.delta), Fraction(form.distance)


def lane_prices(bare: Event, orders: tuple[float, ...]) -> Spent:
    """Return the pure epsilon and Rényi divergences at `orders` of an event without a delta of its own."""
    exact = pure.epsilon_of(bare)
    # A Rényi divergence never exceeds the pure epsilon.
    largest = math.inf if exact is None else exact
    try:
        with np.errstate(over="raise", invalid="raise", divide="raise"):
            renyi = curve(bare, orders)
    except Unsupported:
        if exact is None:
            raise
        renyi = [largest] * len(orders)
    except ArithmeticError:
        # what leaves the range of floats: nothing is claimed for it
        renyi = [largest] * len(orders)
    # `value < largest` and not `min`: what is no number must not count as 0
    sums = (
        on_grid(largest),
        *(on_grid(max(0.0, value) if value < largest else largest) for value in renyi),
    )
    return Spent(sums=sums, events=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Capped:
    """An event read as a release of pure epsilon `epsilon` that fails with probability `delta`, beside its
    own deltas.

    Guarantee: for every pair of neighbors the distributions of the bare event are (1 - delta) M_1 + delta M_2
               and (1 - delta) M_1' + delta M_2', where (M_1, M_1') has a log-ratio of at most `epsilon` and,
               at every order and in both directions, a Rényi divergence of at most that of the bare event and
               of at most that of randomized response at `epsilon`.
    Proof:     docs/filters.md, "Capped prices".
    Assumes:   the bare event is (epsilon, delta)-DP, which `holds` certifies; filters charge nothing that it
               does not hold for.
    """

    event: Event
    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        if not isinstance(self.event, Event):
            raise _require.fail("event", type(self.event).__name__, "an accounting event")
        _require.positive(epsilon=self.epsilon)
        _require.open_probability(delta=self.delta)

    @property
    def neighbors(self) -> Neighbors:
        return self.event.neighbors

    @property
    def holds(self) -> bool:
        """Whether the accountant certifies that the bare event is (epsilon, delta)-DP."""
        return certified_epsilon(self.event, self.delta) <= self.epsilon


Item = Event | Capped


def event_of(item: Item) -> Event:
    """Return the event that was run, however it is priced."""
    return item.event if isinstance(item, Capped) else item


@lru_cache(maxsize=1024)
def certified_epsilon(event: Event, delta: float) -> float:
    """Return the epsilon that is certified for the event without its own deltas at `delta`; infinite where
    none is known."""
    bare, _, _ = split(event)
    try:
        return api.epsilon(bare, delta=delta)
    except Unsupported:
        return math.inf


def capped_prices(item: Capped, orders: tuple[float, ...]) -> Spent:
    """Return what the part of a capped event that does not fail adds to each lane."""
    bare, _, _ = split(item.event)
    limits = lane_prices(PureDP(epsilon=item.epsilon, neighbors=item.neighbors), orders).sums
    try:
        plain = lane_prices(bare, orders).sums
    except Unsupported:
        plain = (math.inf,) * len(limits)
    return Spent(sums=tuple(min(a, b) for a, b in zip(limits, plain, strict=True)), events=1)
