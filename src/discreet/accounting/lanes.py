"""Defines lanes: the sums that filters and odometers keep, and what one event adds to each of them.

There is one lane for the pure epsilon, and one for the Rényi divergence at each of some fixed orders. An
event is charged at its own price, or *capped*: as a release with a pure epsilon that fails with a small
probability delta. Both are valid prices of the same release (docs/proofs/filters.md, "Capped prices"). Which
one is charged is decided before the release (see `caps`) and recorded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Annotated

import numpy as np

from .. import _require, _round
from .._errors import Unsupported
from .._public import Neighbors
from .._registry import described
from .._require import OPEN_PROBABILITY, POSITIVE, at_least
from . import pure
from .events import Event, PureDP
from .normal import normal
from .renyi import curve

# A fraction, or the float infinity.
Exact = Fraction | float

# Prices are rounded up to multiples of 1 / GRID. So sums are exact, do not depend on the order of the events,
# and stay short in JSON. The value must not change: ledgers store such sums.
GRID = 2**128
# The relative amount by which the same price may differ when another machine computes it again. `caps` also
# raises what it charges by it.
LAST_DIGITS = Fraction(1, 2**30)


def on_grid(value: Exact | int) -> Exact:
    """Return `value`, rounded up to a multiple of 1 / GRID."""
    if isinstance(value, float) and math.isinf(value):
        return math.inf
    return Fraction(_round.ceil_div(Fraction(value) * GRID, 1), GRID)


@described("accounting.Spent")
class Spent:
    """What was spent in the lanes of one filter or odometer; it does not depend on the order of the events.

    `sums` has one entry per lane, `delta` is the sum of the events' own deltas (the probabilities with
    which they fail, see `normal`), `events` is the number of
    events charged.
    """

    sums: tuple[Exact, ...]
    delta: Exact = Fraction(0)
    events: Annotated[int, at_least(0)] = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "sums", tuple(self.sums))
        for value in (*self.sums, self.delta):
            _require.number(spent=value)
            _require.must(value >= 0, "spent", value, "zero or above")

    def plus(self, other: Spent, times: int = 1) -> Spent:
        """Return the sum of both, with `other` counted `times` times."""
        pairs = zip(self.sums, other.sums, strict=True)
        # 0 times an infinite price would be NaN.
        sums = tuple(a if times == 0 else a + times * b for a, b in pairs)
        delta = self.delta if times == 0 else self.delta + times * other.delta
        return Spent(sums=sums, delta=delta, events=self.events + times * other.events)

    def agrees_with(self, other: Spent) -> bool:
        """Return whether both are equal up to the last digits of prices (`LAST_DIGITS`), which differ between
        processors and versions of numpy."""
        if self.events != other.events or len(self.sums) != len(other.sums):
            return False
        pairs = zip((*self.sums, self.delta), (*other.sums, other.delta), strict=True)
        return all(_same_price(a, b) for a, b in pairs)


def _same_price(a: Exact, b: Exact) -> bool:
    """Return whether two prices differ by at most `LAST_DIGITS`, relatively."""
    if isinstance(a, float) or isinstance(b, float):
        # A float is infinity.
        return a == b
    return abs(a - b) <= LAST_DIGITS * max(a, b)


def split(event: Event) -> tuple[Event, Fraction, Fraction]:
    """Return (the event without its failures, its own delta, its distance in total variation from what it is
    priced as), as defined in `normal`."""
    form = normal(event)
    return form.event, Fraction(form.delta), Fraction(form.distance)


def lane_prices(bare: Event, orders: tuple[float, ...]) -> Spent:
    """Return the pure epsilon and the Rényi divergences at `orders` of an event without own delta."""
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
        # The computation left the range of floats: only the pure epsilon is claimed.
        renyi = [largest] * len(orders)
    # `value < largest` and not `min`: a NaN must count as `largest`.
    sums = (
        on_grid(largest),
        *(on_grid(max(0.0, value) if value < largest else largest) for value in renyi),
    )
    return Spent(sums=sums, events=1)


@_require.checked
@dataclass(frozen=True, slots=True, kw_only=True)
class Capped:
    """An event that is charged as a release with the pure epsilon `epsilon` that fails with probability
    `delta`; its own deltas are charged besides.

    Guarantee: let the bare event be the event without its failures (`split`). For every pair of neighbors the
               distributions of its output are (1 - delta) M_1 + delta M_2 and (1 - delta) M_1' + delta M_2',
               where the log-ratio of M_1 and M_1' is between -epsilon and `epsilon`. At every order and in
               both directions the Rényi divergence of M_1 and M_1' is at most that of the bare event, and at
               most that of randomized response at `epsilon`.
    Proof:     docs/proofs/filters.md, "Capped prices".
    Assumes:   the bare event is (epsilon, delta)-DP. `holds` certifies that; filters refuse a cap for which
               `holds` is false.
    """

    event: Event
    epsilon: Annotated[float, POSITIVE]
    delta: Annotated[float, OPEN_PROBABILITY]

    def __post_init__(self) -> None:
        if not isinstance(self.event, Event):
            raise _require.fail("event", type(self.event).__name__, "an accounting event")

    @property
    def neighbors(self) -> Neighbors:
        return self.event.neighbors

    @property
    def holds(self) -> bool:
        """Whether the tightest accountant certifies that the bare event is (epsilon, delta)-DP."""
        return certified_epsilon(self.event, self.delta) <= self.epsilon


Item = Event | Capped


def event_of(item: Item) -> Event:
    """Return the event that was run: that of a cap, or the item itself."""
    return item.event if isinstance(item, Capped) else item


@lru_cache(maxsize=1024)
def certified_epsilon(event: Event, delta: float) -> float:
    """Return the epsilon at `delta` of the event without its failures (`split`) by the tightest accountant;
    infinite where none has a theorem for it."""
    # imported for the events that have no pure epsilon, such as Gaussian noise: it is the tightest accountant
    from . import pricing

    bare, _, _ = split(event)
    try:
        return pricing.epsilon(bare, delta=delta)
    except Unsupported:
        return math.inf


def capped_prices(item: Capped, orders: tuple[float, ...]) -> Spent:
    """Return what a capped event adds to each lane: the lesser of its own price and that of an event that is
    `epsilon`-DP. Neither the delta of the cap nor own deltas are included: `filters` adds them."""
    bare, _, _ = split(item.event)
    pure_prices = lane_prices(PureDP(epsilon=item.epsilon, neighbors=item.neighbors), orders).sums
    try:
        own_prices = lane_prices(bare, orders).sums
    except Unsupported:
        own_prices = (math.inf,) * len(pure_prices)
    return Spent(sums=tuple(min(a, b) for a, b in zip(pure_prices, own_prices, strict=True)), events=1)
