"""Privacy filters: may one more event be admitted, when events are chosen after seeing earlier answers?

Composition theorems price a plan that was fixed in advance. A curator has no such plan: the next query and
its price may depend on earlier answers. A privacy filter is a stopping rule that keeps the budget's guarantee
all the same. It adds up prices in a few *lanes* (one for the pure epsilons, one for the Rényi divergences at
each of some fixed orders), and admits an event if afterwards at least one lane is within its limit. Besides,
it adds up the events' *own deltas*, the probabilities with which they fail (see `normal`), against a limit of
their own. A filter is an immutable value. What was spent is another value, `lanes.Spent`: a function of the
list of events alone, so that anybody who has the list can recompute and check it. The theorems are in
docs/proofs/filters.md.

Defines privacy filters with a single sum: of rhos for zero-concentrated DP, and of squared mus for
Gaussian DP.

`filters.Filter` splits its delta over several lanes, i.e. sums. That is not needed here: for these two
definitions, the sum that bounds a plan fixed in advance is a bound also when an analyst chooses every event
after seeing earlier answers.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from typing import Annotated

from .. import _require, _round
from .._errors import BudgetExceeded, InvalidInput, Unsupported
from .._public import ADD_REMOVE, Neighbors, require_relation
from .._registry import described
from .._require import NON_NEGATIVE, OPEN_PROBABILITY, PROBABILITY, Real
from .conversion import rdp_to_epsilon, zcdp
from .events import ApproximateDP, Event, covered
from .lanes import Capped, Exact, Item, Spent, capped_prices, event_of, lane_prices, on_grid, split

# The relative amount by which the total may exceed a budget, because decimals such as 0.1 are not exact in
# binary. 2^-40 is 2^13 times the rounding of one float; chosen by hand, not tuned. It is part of the
# guarantee (`Filter.certified`) and is stored in ledgers as `slack`.
ROUNDING_ALLOWANCE = Fraction(1, 2**40)
# The parts of epsilon that `default_orders` leaves for Rényi divergences, one order per part. Accounts derive
# their orders from the budget with these, and ledgers store a total per order: they must not change.
_PARTS = (0.15, 0.3, 0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterPreview:
    """The effect that an event would have on a budget. It costs nothing, because it is a function of prices
    only, not of data.

    `before`, `after` and `limit` are in the filter's own unit (epsilon, rho, ...). `delta_left` is what
    remains for the own deltas of later events if this one is admitted. `fits` is how many such events in a
    row would be admitted; None means any number. `unit` is the filter's.
    """

    admitted: bool
    before: float
    after: float
    limit: float
    delta_left: float
    fits: int | None
    unit: str = "epsilon"

    def __str__(self) -> str:
        count = "any number" if self.fits is None else f"{self.fits:,}"
        return (
            f"{self.unit} from {self.before:.4g} to {self.after:.4g}, of {self.limit:.4g}; what is left buys "
            f"{count} of these."
        )


class BudgetFilter(ABC):
    """Base class of the filters: lanes with limits, a limit for own deltas, and the rule that an event is
    admitted if afterwards some lane and the own deltas are within their limits."""

    __slots__ = ()
    neighbors: Neighbors
    slack: Fraction
    # what the budget is counted in, for messages; not a unit of privacy
    unit = "epsilon"

    @property
    @abstractmethod
    def lanes(self) -> tuple[str, ...]:
        """The names of the lanes."""

    @property
    @abstractmethod
    def limits(self) -> tuple[Fraction, ...]:
        """The limit of each lane; a lane with a negative limit never admits an event."""

    @property
    @abstractmethod
    def delta_limit(self) -> Fraction:
        """The limit of the sum of the events' own deltas."""

    @property
    @abstractmethod
    def total(self) -> Fraction:
        """The budget in the filter's own unit, with the rounding allowance: the amount that is guaranteed."""

    @abstractmethod
    def price(self, event: Item) -> Spent:
        """Return what an event adds to each lane and to the own deltas, rounded up."""

    def start(self) -> Spent:
        """Return the totals of an account that has spent nothing yet."""
        return Spent(sums=(Fraction(0),) * len(self.lanes))

    def admits(self, spent: Spent | Iterable[Item], event: Item) -> bool:
        """Return whether `event` may be run next; `spent` is what was spent, or the list of events run so
        far."""
        return self._holds(self._state(spent).plus(self.price(event)))

    def charge(self, spent: Spent | Iterable[Item], event: Item) -> Spent:
        """Return what is spent after `event`; raises BudgetExceeded if the filter does not admit it."""
        before = self._state(spent)
        after = before.plus(self.price(event))
        if not self._holds(after):
            raise self._refusal(before, after)
        return after

    def replay(self, events: Iterable[Item]) -> Spent:
        """Return what a list of events has spent; raises BudgetExceeded at the first event that the filter
        does not admit after the earlier ones."""
        spent = self.start()
        for event in events:
            spent = self.charge(spent, event)
        return spent

    def used(self, spent: Spent | Iterable[Item]) -> float:
        """Return how much of the budget is used: the total minus the remaining amount of the lane that has
        most left. The result is rounded up; where it is printed, it is rounded up once more, to few digits.
        It is infinite if the own deltas exceed their limit.

        This number is for bookkeeping. It is not a bound on the privacy loss so far at a time that was chosen
        by looking at answers; for that use an `Odometer`.
        """
        state = self._state(spent)
        if state.delta > self.delta_limit:
            return math.inf
        remaining = max(limit - total for limit, total in zip(self.limits, state.sums, strict=True))
        return (
            math.inf
            if math.isinf(remaining)
            else _round.UpperAmount(max(0.0, _round.up(self.total - remaining)))
        )

    def preview(self, spent: Spent | Iterable[Item], event: Item) -> FilterPreview:
        """Return the effect of `event` on the budget, without charging it, and how many such events fit."""
        before = self._state(spent)
        price = self.price(event)
        after = before.plus(price)
        return FilterPreview(
            admitted=self._holds(after),
            before=self.used(before),
            after=self.used(after),
            limit=_round.up(self.total),
            delta_left=max(0.0, _round.down(self.delta_limit - after.delta))
            if math.isfinite(after.delta)
            else 0.0,
            fits=self._fits(before, price, event),
            unit=self.unit,
        )

    def report(self, spent: Spent | Iterable[Item]) -> list[tuple[str, float, float]]:
        """Return (name, sum, limit) of every lane, for display."""
        state = self._state(spent)
        by_lane = zip(self.lanes, state.sums, self.limits, strict=True)
        return [(name, _round.up(total), _round.down(limit)) for name, total, limit in by_lane]

    def _state(self, spent: Spent | Iterable[Item]) -> Spent:
        """Return what was spent, from itself or from a list of events."""
        state = spent if isinstance(spent, Spent) else self.replay(spent)
        if len(state.sums) != len(self.lanes):
            raise _require.fail(
                "spent", state, f"what this filter has spent: one sum for each of its {len(self.lanes)} lanes"
            )
        return state

    def _holds(self, state: Spent) -> bool:
        """Return whether some lane and the own deltas are within their limits."""
        within = any(total <= limit for total, limit in zip(state.sums, self.limits, strict=True))
        return within and state.delta <= self.delta_limit

    def _fits(self, before: Spent, price: Spent, item: Item) -> int | None:
        """Return how many copies of an item are admitted in a row: for a capped item as many caps as the pure
        lane and the own deltas allow, and after them copies of the same event at its own price."""
        if not isinstance(item, Capped):
            return self._copies(before, price)
        remaining = _whole_times(self.limits[0] - before.sums[0], price.sums[0])
        capped = min(remaining, _whole_times(self.delta_limit - before.delta, price.delta))
        if math.isinf(capped):
            return None
        try:
            uncapped = self._copies(before.plus(price, int(capped)), self.price(item.event))
        except Unsupported:
            uncapped = 0
        return None if uncapped is None else int(capped) + uncapped

    def _copies(self, before: Spent, price: Spent) -> int | None:
        """Return how many copies at this price are admitted in a row: the lesser of the number that the own
        deltas allow and the number that the best lane allows."""
        by_lane = [
            _whole_times(limit - total, cost)
            for limit, total, cost in zip(self.limits, before.sums, price.sums, strict=True)
            if total <= limit
        ]
        by_delta = _whole_times(self.delta_limit - before.delta, price.delta)
        by_best_lane = max(by_lane, default=0)
        fits = min(by_best_lane, by_delta)
        return None if math.isinf(fits) else int(fits)

    def _refusal(self, before: Spent, after: Spent) -> BudgetExceeded:
        """Return the error that says what would exceed the budget, and by how much."""
        if after.delta > self.delta_limit:
            return BudgetExceeded(
                f"this would raise the sum of the releases' own deltas from {float(before.delta):g} to "
                f"{float(after.delta):g}, above the share {float(self.delta_limit):g} of delta that is kept "
                "for them.",
                remedy="Ask with a smaller delta, or ask the steward for a larger share.",
            )
        old, new, limit = self.used(before), self.used(after), float(self.total)
        # More digits where four would print the same number for both.
        digits = 4 if f"{new:.4g}" != f"{limit:.4g}" else 12
        return BudgetExceeded(
            f"this would raise {self.unit} from {old:.{digits}g} to {new:.{digits}g}, above the limit "
            f"{limit:.{digits}g} (delta={self._delta():g}).",
            remedy=f"Ask with less {self.unit}, or ask the steward for more.",
        )

    def _delta(self) -> float:
        """Return the delta that messages show."""
        return float(self.delta_limit)

    @property
    def _allowance(self) -> Fraction:
        """The factor 1 + slack as an exact fraction, also where slack was given as a float."""
        return 1 + _require.exact(self.slack, "slack")

    def _check(self, event: Item) -> None:
        """Refuse anything but an event or a cap of the filter's own neighbor relation."""
        _require.must(isinstance(event, Event | Capped), "event", type(event).__name__, "an accounting event")
        require_relation(event.neighbors, self.neighbors, what="this budget")


def _whole_times(remaining: Exact, one: Exact) -> float:
    """Return how many times a price of `one` fits into what remains; infinite for a price of 0."""
    if remaining < 0 or math.isinf(one):
        return 0
    return math.inf if one == 0 else remaining // one


@described("accounting.Filter")
class Filter(BudgetFilter):
    """The filter of an (epsilon, delta) budget; with `delta=0`, of pure differential privacy.

    Guarantee: whatever is asked, and however questions and prices depend on earlier answers, all releases
               together are `certified`-DP: (epsilon (1 + slack), delta (1 + slack)).
    Proof:     docs/proofs/filters.md, Theorem 1: for every fixed order the Rényi filter of Feldman & Zrnic
               2021, arXiv:2008.11193, Theorem 3.1; Rogers et al. 2016 for pure epsilons; a union bound over
               which lane holds at the end, and a coupling for own deltas. Interactive mechanisms, also
               interleaved: Haney et al. 2023, arXiv:2309.05901.
    Assumes:   the mechanism that was run is at least as private as its event says, and the filter affects the
               analyst only through refusals.

    `own_delta` (default: half) is the share of delta for events that can fail with a probability of their
    own. The rest is split evenly over `orders`, which are fixed when the filter is made; the default orders
    depend on epsilon, delta and `own_delta` alone. If nothing remains, there are no orders, not even given
    ones. `slack` is a relative allowance for rounding, because ten times 0.1 is more than 1 in binary.
    Ledgers store it under this name.

    >>> from .events import PureDP
    >>> budget = Filter(epsilon=3, delta=1e-6)
    >>> spent = budget.replay([PureDP(epsilon=1)] * 3)
    >>> budget.admits(spent, PureDP(epsilon=1))
    False
    """

    epsilon: Annotated[Real, NON_NEGATIVE]
    delta: Annotated[float, PROBABILITY] = 0.0
    own_delta: float | None = None
    orders: tuple[float, ...] | None = None
    slack: Annotated[Fraction, NON_NEGATIVE] = ROUNDING_ALLOWANCE
    neighbors: Neighbors = ADD_REMOVE
    # What the properties below return, computed once: a question needs each of them dozens of times.
    _total: Fraction = field(init=False, repr=False, compare=False)
    _delta_limit: Fraction = field(init=False, repr=False, compare=False)
    _lane_limits: tuple[Fraction, ...] | None = field(init=False, default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        own = self.delta / 2 if self.own_delta is None else self.own_delta
        _require.probability(own_delta=own)
        if own > self.delta:
            raise _require.fail("own_delta", own, f"at most delta = {self.delta:g}")
        # The part of delta that is split over the orders.
        composing = float(Fraction(self.delta) - Fraction(own))
        orders = default_orders(self.epsilon, composing) if self.orders is None else tuple(self.orders)
        for order in orders:
            _require.finite(order=order)
            _require.must(order > 1, "order", order, "above 1")
        if composing == 0:
            orders = ()
        object.__setattr__(self, "own_delta", own)
        object.__setattr__(self, "orders", tuple(sorted(set(orders))))
        object.__setattr__(self, "_total", _require.exact(self.epsilon, "epsilon") * self._allowance)
        object.__setattr__(self, "_delta_limit", Fraction(own) * self._allowance)

    @property
    def certified(self) -> tuple[Fraction, Fraction]:
        """The (epsilon, delta) that is guaranteed, as exact fractions."""
        return self.total, Fraction(self.delta) * self._allowance

    @property
    def total(self) -> Fraction:
        return self._total

    @property
    def delta_limit(self) -> Fraction:
        return self._delta_limit

    @property
    def share(self) -> float:
        """The delta of each order: delta without the share for own deltas, divided by the number of orders;
        rounded down."""
        assert self.orders is not None
        delta = self.certified[1] - self.delta_limit
        return _round.down(delta / len(self.orders)) if self.orders else 0.0

    @property
    def lanes(self) -> tuple[str, ...]:
        assert self.orders is not None
        return ("pure", *(f"order {order:g}" for order in self.orders))

    @property
    def limits(self) -> tuple[Fraction, ...]:
        if self._lane_limits is None:
            assert self.orders is not None
            object.__setattr__(self, "_lane_limits", _limits(self.total, self.orders, self.share))
        assert self._lane_limits is not None
        return self._lane_limits

    def price(self, event: Item) -> Spent:
        self._check(event)
        assert self.orders is not None
        return _price(event, self.orders, self.total)

    def _delta(self) -> float:
        return float(self.delta)


@_require.check_options
def at_once(plan: Event, *, delta: Annotated[float, OPEN_PROBABILITY]) -> Event:
    """Return the event of a plan, whose steps and prices are fixed in advance, as one (epsilon, delta)-DP
    release priced by the tightest accountant.

    Guarantee: `plan` is (epsilon, delta)-DP with the epsilon of the event returned. A filter charges that
               event to the pure lane and to own deltas instead of order by order, which is better for one
               long training that takes most of a budget.
    Assumes:   nothing about the plan, its length included, is chosen while it runs.
    """
    from . import pricing

    price = pricing.epsilon(plan, delta=delta)
    if math.isinf(price):
        raise InvalidInput(
            f"no finite epsilon is proved for this plan at delta = {delta:g}. Give a larger delta, or a plan "
            "in which every step has noise."
        )
    return ApproximateDP(epsilon=price, delta=delta, neighbors=plan.neighbors)


@lru_cache(maxsize=256)
def _limits(total: Fraction, orders: tuple[float, ...], share: float) -> tuple[Fraction, ...]:
    """Return the limits of the lanes: epsilon for the pure lane, and for each order epsilon minus the part of
    it that conversion from Rényi DP to delta = share takes (`rdp_to_epsilon` at divergence 0), rounded
    down."""
    return (total, *(total - Fraction(rdp_to_epsilon(order, 0.0, share)) for order in orders))


@lru_cache(maxsize=4096)
def _price(item: Item, orders: tuple[float, ...], total: Fraction) -> Spent:
    """Return the price of an item: its pure epsilon, its Rényi divergences at `orders`, and its own delta.

    A mechanism within total-variation distance d of the one that is priced (see `normal`) is charged an own
    delta of (1 + e^epsilon) d more, where epsilon is the budget's `total`.
    """
    bare, own, distance = split(event_of(item))
    if isinstance(item, Capped):
        if not item.holds:
            raise InvalidInput(
                f"this release is not certified to be ({item.epsilon:g}, {item.delta:g})-DP, so it cannot be "
                "charged as such. Charge the event itself, without a cap."
            )
        own += Fraction(item.delta)
    if distance > 0:
        # Above 700, e^total is near the largest float or above it: an own delta of 1 claims nothing.
        factor = math.exp(min(_round.up(total), 700.0)) * (1 + 1e-12)
        own = Fraction(1) if total > 700 else own + (1 + Fraction(factor)) * distance
    sums = capped_prices(item, orders) if isinstance(item, Capped) else lane_prices(bare, orders)
    return replace(sums, delta=on_grid(min(own, Fraction(1))))


def default_orders(epsilon: Real, delta: float) -> tuple[float, ...]:
    """Return a few orders that depend on the budget only: those at which the conversion to delta leaves the
    parts `_PARTS` of epsilon for Rényi divergences. `delta` is that of all orders together, without the share
    for own deltas.

    Half of epsilon is best for Gaussian noise. Lower orders, which leave less, are better for sampled events;
    higher ones for events that are nearly pure. With more orders each would get less of delta.
    """
    share = delta / len(_PARTS)
    # A delta whose shares are below the smallest float has no orders either.
    if share == 0 or epsilon == 0:
        return ()
    total = float(epsilon)
    return tuple(sorted({_tidy(_leaving(part * total, total, share)) for part in _PARTS}))


def _leaving(remaining: float, total: float, share: float) -> float:
    """Return the order at which the conversion to delta = share leaves about `remaining` of the epsilon
    `total`, by bisection over the logarithm of order - 1."""
    low, high = -20.0, 30.0
    for _ in range(60):
        middle = (low + high) / 2
        enough = total - rdp_to_epsilon(1 + math.exp(middle), 0.0, share) >= remaining
        low, high = (low, middle) if enough else (middle, high)
    return 1 + math.exp(high)


def _tidy(order: float) -> float:
    """Return the order with order - 1 rounded to three digits, or from order 20 on rounded to an integer,
    because several Rényi bounds are tight at integers only."""
    return float(round(order)) if order >= 20 else 1 + float(f"{order - 1:.3g}")


@described("accounting.ZCDPFilter")
class ZCDPFilter(BudgetFilter):
    """The filter of a zCDP budget: an event is admitted while the rhos add up to at most `rho`, and the own
    deltas (see `normal`) to at most `delta`.

    Guarantee: all releases together are d-approximately r-zCDP with d = delta (1 + slack) and r = rho (1 +
               slack), however they were chosen; `slack` is the allowance for rounding, as in `Filter`.
    Proof:     docs/proofs/filters.md, Theorem 2: the Rényi filter (Feldman & Zrnic 2021, arXiv:2008.11193,
               Theorem 3.1) at every order at once, because one sum bounds all orders; with own deltas
               Whitehouse et al. 2023, arXiv:2203.05481.

    >>> from .events import Gaussian
    >>> budget = ZCDPFilter(rho=0.5)
    >>> budget.preview([], Gaussian(noise_multiplier=2.0)).fits
    4
    """

    rho: Annotated[Real, NON_NEGATIVE]
    delta: Annotated[float, PROBABILITY] = 0.0
    slack: Annotated[Fraction, NON_NEGATIVE] = ROUNDING_ALLOWANCE
    neighbors: Neighbors = ADD_REMOVE

    @property
    def unit(self) -> str:  # type: ignore[override]
        return "rho"

    @property
    def lanes(self) -> tuple[str, ...]:
        return ("rho",)

    @property
    def total(self) -> Fraction:
        return _require.exact(self.rho, "rho") * self._allowance

    @property
    def limits(self) -> tuple[Fraction, ...]:
        return (self.total,)

    @property
    def delta_limit(self) -> Fraction:
        return Fraction(self.delta) * self._allowance

    def price(self, event: Item) -> Spent:
        self._check(event)
        # A cap is a price for the lanes of `filters.Filter`; here its event is charged.
        event = event_of(event)
        bare, own, distance = split(event)
        why = "closeness in total variation says nothing about concentrated privacy"
        covered(distance == 0, event, "zcdp", why)
        cost = zcdp(bare)
        return Spent(sums=(on_grid(cost.value),), delta=on_grid(own + Fraction(cost.delta)), events=1)
