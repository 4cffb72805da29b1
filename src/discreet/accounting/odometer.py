"""Defines privacy odometers: running bounds on the privacy loss so far.

A filter guards a budget that was fixed in advance. An odometer has no budget: its bound on the privacy loss
holds at all times at once, so that an analyst may also stop *because* of what it shows. In return it is a
little larger than a bound that holds at one fixed time only. It keeps the same sums as a filter: one lane for
the pure epsilons, and one for the Rényi divergences at each order (see `lanes`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction
from typing import Annotated, NamedTuple

from .. import _require, _round
from .._public import ADD_REMOVE, Neighbors, require_relation
from .._registry import described
from .._require import OPEN_PROBABILITY
from .events import Event, covered
from .lanes import Spent, lane_prices, on_grid, split

# The default orders of the mixture, from 1.25 to 513; order - 1 doubles from one to the next. The bound holds
# for any list of orders; this one was chosen by hand, not tuned.
_ORDERS = tuple(1.0 + 2.0**k for k in range(-2, 10))


class Reading(NamedTuple):
    """The epsilon and delta that an odometer shows, both rounded up."""

    epsilon: float
    delta: float


@described("accounting.Odometer")
class Odometer:
    """A running bound on the privacy loss of adaptively chosen events; it is wrong at some time with
    probability at most `delta`.

    Guarantee: let (e, d) be the reading when an interaction stops, at a time that may depend on everything
               seen, the readings included. For fixed epsilon and delta' let B be the set of transcripts that
               stop with e <= epsilon and d <= delta'. Then for every set A of transcripts, and with P and P'
               the distributions on two neighbors, P[A and B] <= exp(epsilon) P'[A and B] + delta'. If no
               accounting event has an own delta (see `normal`), more is true: with probability 1 - delta, the
               privacy loss never exceeds the reading, at any time.
    Proof:     docs/proofs/filters.md, Theorem 3: a mixture of the exponential supermartingales of all orders
               and Ville's inequality; Whitehouse et al. 2023, arXiv:2203.05481, for the idea.

    >>> from .events import PureDP
    >>> Odometer(delta=1e-6).read([PureDP(epsilon=1), PureDP(epsilon=1)])
    Reading(epsilon=2.0, delta=1e-06)
    """

    delta: Annotated[float, OPEN_PROBABILITY]
    orders: tuple[float, ...] = _ORDERS
    neighbors: Neighbors = ADD_REMOVE

    def __post_init__(self) -> None:
        _require.non_empty(orders=self.orders)
        for order in self.orders:
            _require.finite(order=order)
            _require.must(order > 1, "order", order, "above 1")
        object.__setattr__(self, "orders", tuple(sorted(set(self.orders))))

    def start(self) -> Spent:
        """Return the totals of an odometer with nothing spent yet."""
        return Spent(sums=(Fraction(0),) * (1 + len(self.orders)))

    def add(self, spent: Spent | Iterable[Event], event: Event) -> Spent:
        """Return what is spent after `event`. An odometer has no limit: it refuses only events that it has no
        price for."""
        _require.must(isinstance(event, Event), "event", type(event).__name__, "an accounting event")
        require_relation(event.neighbors, self.neighbors, what="this odometer")
        bare, own, distance = split(event)
        why = "its distance to what it is priced as costs more the larger epsilon grows"
        covered(distance == 0, event, "odometer", why)
        return self._state(spent).plus(replace(lane_prices(bare, self.orders), delta=on_grid(own)))

    def read(self, spent: Spent | Iterable[Event]) -> Reading:
        """Return the bound at this time: the lesser of the sum of the pure epsilons and the bound of the
        mixture of all orders."""
        state = self._state(spent)
        exact, renyi = state.sums[0], state.sums[1:]
        epsilon = min(_round.up(exact), self._mixture([_round.up(value) for value in renyi]))
        return Reading(epsilon, min(1.0, _round.up(Fraction(self.delta) + Fraction(state.delta))))

    def _state(self, spent: Spent | Iterable[Event]) -> Spent:
        """Return what was spent, from itself or from a list of events."""
        if isinstance(spent, Spent):
            if len(spent.sums) != 1 + len(self.orders):
                lanes = 1 + len(self.orders)
                raise _require.fail(
                    "spent", spent, f"what this odometer has spent: one sum for each of its {lanes} lanes"
                )
            return spent
        state = self.start()
        for event in spent:
            state = self.add(state, event)
        return state

    def _mixture(self, sums: list[float]) -> float:
        """Return the loss x at which the average over orders of exp((order - 1) (x - sum)) reaches 1/delta,
        rounded up; `sums` holds the sum of Rényi divergences at each order. Orders with an infinite sum count
        as zero in the average."""
        terms = [
            (order - 1, total) for order, total in zip(self.orders, sums, strict=True) if math.isfinite(total)
        ]
        if not terms:
            return math.inf
        needed = math.log(len(self.orders)) - math.log(self.delta) + 1e-12
        # At this loss one order alone reaches the value that is needed.
        high = min(total + needed / order_minus_1 for order_minus_1, total in terms)
        low = high - needed / min(order_minus_1 for order_minus_1, _ in terms) - 1.0
        for _ in range(200):
            middle = (low + high) / 2
            if not low < middle < high or high - low < 1e-13 * max(1.0, abs(high)):
                break
            low, high = (low, middle) if _log_sum(terms, middle) >= needed else (middle, high)
        return max(0.0, high * (1 + 1e-12))


def _log_sum(terms: list[tuple[float, float]], loss: float) -> float:
    """Return ln of the sum of exp((order - 1) (loss - total)) over the terms (order - 1, total)."""
    powers = [order_minus_1 * (loss - total) for order_minus_1, total in terms]
    largest = max(powers)
    return largest + math.log(math.fsum(math.exp(power - largest) for power in powers))
