"""Privacy filters: may one more event be admitted, when events are chosen after seeing earlier answers?

Composition theorems price a plan that was fixed in advance. A curator does not have one: what is asked next,
and at which price, depends on what was answered before. A filter is a rule that keeps the promise anyway. It
adds up prices in a few *lanes* (the pure epsilons, the Rényi divergences at some fixed orders) and goes on
while at least one lane is within its limit. Filters are values; what was spent is another value, a function
of the list of events alone, so that anybody who holds the list can recompute and check it. The theorems are
in docs/filters.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

from .. import _require, _round
from .._errors import BudgetExceeded, InvalidInput, Unsupported
from .._public import ADD_REMOVE, Neighbors, as_neighbors, require_relation
from .._registry import described
from .._require import Real
from .conversion import rdp_to_epsilon
from .events import ApproximateDP, Event
from .lanes import Capped, Exact, Item, Spent, capped_prices, event_of, lane_prices, on_grid, split

# By which the total may exceed a budget, relatively: decimals are not exact in binary. No
# measurement on record: it is 2^13 times the rounding of one float.
ROUNDING_ALLOWANCE = Fraction(1, 2**40)
# parts of epsilon; see default_orders
_PARTS = (0.15, 0.3, 0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterPreview:
    """What an event would do to a budget: free to ask, since it is a function of prices only.

    `before` and `after` are in the filter's own unit (epsilon, rho, ...), as is `limit`; `delta_left` is what
    remains for the events' own deltas if it is admitted. `fits` counts how many more such events could follow
    each other; None is no limit.
    """

    admitted: bool
    before: float
    after: float
    limit: float
    delta_left: float
    fits: int | None


class BudgetFilter:
    """What all filters share: lanes with limits, a limit for own deltas, and the rule 'go on while some lane
    is within its limit'."""

    __slots__ = ()
    neighbors: Neighbors
    slack: Fraction
    unit = "epsilon"

    @property
    def lanes(self) -> tuple[str, ...]:
        """What the lanes are called."""
        raise NotImplementedError

    @property
    def limits(self) -> tuple[Fraction, ...]:
        """The limit of each lane; a negative one can never hold."""
        raise NotImplementedError

    @property
    def delta_limit(self) -> Fraction:
        """The limit of the sum of the events' own deltas."""
        raise NotImplementedError

    @property
    def total(self) -> Fraction:
        """The budget in the filter's own unit, as certified."""
        raise NotImplementedError

    def price(self, event: Item) -> Spent:
        """Return what an event adds to each lane, rounded up."""
        raise NotImplementedError

    def start(self) -> Spent:
        """Return the totals of an account that has spent nothing yet."""
        return Spent(sums=(Fraction(0),) * len(self.lanes))

    def admits(self, spent: Spent | Iterable[Item], event: Item) -> bool:
        """Return whether `event` may follow what was spent (or the list of events that were run)."""
        return self._holds(self._state(spent).plus(self.price(event)))

    def charge(self, spent: Spent | Iterable[Item], event: Item) -> Spent:
        """Return what is spent after `event`; raises BudgetExceeded, and changes nothing, if the filter does
        not admit it."""
        before = self._state(spent)
        after = before.plus(self.price(event))
        if not self._holds(after):
            raise BudgetExceeded(self._refusal(before, after))
        return after

    def replay(self, events: Iterable[Item]) -> Spent:
        """Return what a list of events has spent, each admitted in turn; raises BudgetExceeded at the first
        that should not have been."""
        spent = self.start()
        for event in events:
            spent = self.charge(spent, event)
        return spent

    def used(self, spent: Spent | Iterable[Item]) -> float:
        """Return how much of the budget is gone: the least budget whose limits, moved down in parallel, would
        still hold. Rounded up, and once more where it is shown.

        This is book-keeping. A bound on the privacy loss so far, valid at a time chosen by looking at
        answers, is an `Odometer`'s.
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
        """Return what `event` would cost here, and how many of it fit."""
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
        )

    def report(self, spent: Spent | Iterable[Item]) -> list[tuple[str, float, float]]:
        """Return every lane with its sum and its limit, for people to look at."""
        state = self._state(spent)
        rows = zip(self.lanes, state.sums, self.limits, strict=True)
        return [(name, _round.up(total), _round.down(limit)) for name, total, limit in rows]

    def _state(self, spent: Spent | Iterable[Item]) -> Spent:
        state = spent if isinstance(spent, Spent) else self.replay(spent)
        if len(state.sums) != len(self.lanes):
            raise _require.fail("spent", state, f"what this filter's own {len(self.lanes)} lanes added up")
        return state

    def _holds(self, state: Spent) -> bool:
        within = any(total <= limit for total, limit in zip(state.sums, self.limits, strict=True))
        return within and state.delta <= self.delta_limit

    def _fits(self, before: Spent, price: Spent, item: Item) -> int | None:
        """Count copies: capped ones while the pure lane and own deltas hold them, then the same release as it
        is."""
        if not isinstance(item, Capped):
            return self._copies(before, price)
        remaining = _copies(self.limits[0] - before.sums[0], price.sums[0])
        capped = min(remaining, _copies(self.delta_limit - before.delta, price.delta))
        if math.isinf(capped):
            return None
        try:
            rest = self._copies(before.plus(price, int(capped)), self.price(item.event))
        except Unsupported:
            rest = 0
        return None if rest is None else int(capped) + rest

    def _copies(self, before: Spent, price: Spent) -> int | None:
        """Return how many copies are admitted: n if own deltas allow n and some lane allows n; both are
        divisions."""
        by_lane = [
            _copies(limit - total, cost)
            for limit, total, cost in zip(self.limits, before.sums, price.sums, strict=True)
            if total <= limit
        ]
        by_delta = _copies(self.delta_limit - before.delta, price.delta)
        by_best_lane = max(by_lane, default=0)
        fits = min(by_best_lane, by_delta)
        return None if math.isinf(fits) else int(fits)

    def _refusal(self, before: Spent, after: Spent) -> str:
        """Say what would exceed the budget, and by how much."""
        if after.delta > self.delta_limit:
            return (
                f"this would raise the sum of the releases' own deltas from {float(before.delta):g} "
                f"to {float(after.delta):g}, "
                f"above the share {float(self.delta_limit):g} of delta that is kept for them. "
                f"Nothing was released. "
                f"Ask for a release that fails less often, or ask the steward for more."
            )
        old, new, limit = self.used(before), self.used(after), float(self.total)
        digits = 4 if f"{new:.4g}" != f"{limit:.4g}" else 12
        return (
            f"this would raise {self.unit} from {old:.{digits}g} to {new:.{digits}g}, above the "
            f"limit {limit:.{digits}g} "
            f"(delta={self._delta():g}). Nothing was released. Ask with less {self.unit}, or ask the "
            f"steward for more."
        )

    def _delta(self) -> float:
        return float(self.delta_limit)

    @property
    def _allowance(self) -> Fraction:
        """The factor 1 + slack, exact also where slack was given as a float."""
        return 1 + _require.exact(self.slack, "slack")

    def _settle(self) -> None:
        object.__setattr__(self, "neighbors", as_neighbors(self.neighbors))

    def _check(self, event: Item) -> None:
        if not isinstance(event, Event | Capped):
            raise _require.fail("event", type(event).__name__, "an accounting event")
        require_relation(event.neighbors, self.neighbors, what="this budget")


def _copies(remaining: Exact, one: Exact) -> float:
    if remaining < 0 or math.isinf(one):
        return 0
    return math.inf if one == 0 else remaining // one


@described("accounting.Filter")
@dataclass(frozen=True, slots=True, kw_only=True)
class Filter(BudgetFilter):
    """The filter of an (epsilon, delta) budget; with `delta=0`, of pure differential privacy.

    Guarantee: whatever is asked, and however questions and prices depend on earlier answers, all releases
               together are `certified`-DP: (epsilon (1 + slack), delta (1 + slack)).
    Proof:     docs/filters.md, Theorem 1: for every fixed order the Rényi filter of Feldman & Zrnic 2021,
               arXiv:2008.11193, Theorem 3.1; Rogers et al. 2016 for pure epsilons; a union bound over which
               lane holds at the end, and a coupling for own deltas. Interactive mechanisms, also interleaved:
               Haney et al. 2023, arXiv:2309.05901.
    Assumes:   every event is a true price of what was run, and refusals are the only thing that depends on
               this object.

    `own_delta` (default: half) is the share of delta kept for events that can fail by themselves. The rest is
    split evenly over `orders`, which are fixed here and now: the default is chosen from epsilon and delta
    alone. `slack` is a relative allowance for rounding, because ten times 0.1 is more than 1 in binary; it
    keeps the name under which ledgers store it.

    >>> from .events import PureDP
    >>> budget = Filter(epsilon=3, delta=1e-6)
    >>> spent = budget.replay([PureDP(epsilon=1)] * 3)
    >>> budget.admits(spent, PureDP(epsilon=1))
    False
    """

    epsilon: Real
    delta: float = 0.0
    own_delta: float | None = None
    orders: tuple[float, ...] | None = None
    slack: Fraction = ROUNDING_ALLOWANCE
    neighbors: Neighbors = ADD_REMOVE

    def __post_init__(self) -> None:
        _require.non_negative(epsilon=self.epsilon, slack=self.slack)
        _require.probability(delta=self.delta)
        own = self.delta / 2 if self.own_delta is None else self.own_delta
        _require.probability(own_delta=own)
        if own > self.delta:
            raise _require.fail("own_delta", own, f"at most delta = {self.delta:g}")
        composing = float(Fraction(self.delta) - Fraction(own))
        orders = default_orders(self.epsilon, composing) if self.orders is None else tuple(self.orders)
        for order in orders:
            _require.finite(order=order)
            if not order > 1:
                raise _require.fail("order", order, "above 1")
        if composing == 0:
            orders = ()
        object.__setattr__(self, "own_delta", own)
        object.__setattr__(self, "orders", tuple(sorted(set(orders))))
        self._settle()

    @property
    def certified(self) -> tuple[Fraction, Fraction]:
        """The (epsilon, delta) that is guaranteed, exactly."""
        return self.total, Fraction(self.delta) * self._allowance

    @property
    def total(self) -> Fraction:
        return _require.exact(self.epsilon, "epsilon") * self._allowance

    @property
    def delta_limit(self) -> Fraction:
        assert self.own_delta is not None
        return Fraction(self.own_delta) * self._allowance

    @property
    def share(self) -> float:
        """The delta of each order: what is left of delta, over the number of orders; rounded down."""
        assert self.orders is not None
        delta = self.certified[1] - self.delta_limit
        return _round.down(delta / len(self.orders)) if self.orders else 0.0

    @property
    def lanes(self) -> tuple[str, ...]:
        assert self.orders is not None
        return ("pure", *(f"order {order:g}" for order in self.orders))

    @property
    def limits(self) -> tuple[Fraction, ...]:
        assert self.orders is not None
        return _limits(self.total, self.orders, self.share)

    def price(self, event: Item) -> Spent:
        self._check(event)
        assert self.orders is not None
        return _price(event, self.orders, self.total)

    def _delta(self) -> float:
        return float(self.delta)


@_require.check_options
def at_once(plan: Event, *, delta: float) -> Event:
    """Return a plan whose steps and prices are fixed in advance, as a single (epsilon, delta) release by the
    tightest accountant.

    Guarantee: `plan` is (epsilon, delta)-DP with the epsilon of the event returned. A filter charges it to
               the pure lane and to own deltas instead of order by order: better for one long training that
               takes most of a budget.
    Assumes:   nothing about the plan, its length included, is chosen while it runs.
    """
    from .api import epsilon

    _require.open_probability(delta=delta)
    price = epsilon(plan, delta=delta)
    if math.isinf(price):
        raise InvalidInput(
            f"no finite epsilon holds for this plan at delta = {delta:g}. Nothing was released."
        )
    return ApproximateDP(epsilon=price, delta=delta, neighbors=plan.neighbors)


@lru_cache(maxsize=256)
def _limits(total: Fraction, orders: tuple[float, ...], share: float) -> tuple[Fraction, ...]:
    """Return epsilon for the pure lane; for each order epsilon minus what converting to delta = share costs
    there, rounded down."""
    return (total, *(total - Fraction(rdp_to_epsilon(order, 0.0, share)) for order in orders))


@lru_cache(maxsize=4096)
def _price(item: Item, orders: tuple[float, ...], total: Fraction) -> Spent:
    """Return the pure epsilon, Rényi divergences, own delta.

    A run at total-variation distance d from its price is charged (1 + e^eps) d.
    """
    bare, own, distance = split(event_of(item))
    if isinstance(item, Capped):
        if not item.holds:
            raise InvalidInput(
                f"this release is not certified to be ({item.epsilon:g}, {item.delta:g})-DP, so it "
                f"cannot be charged as such. "
                f"Nothing was released. Charge it as it is."
            )
        own += Fraction(item.delta)
    if distance > 0:
        factor = math.exp(min(_round.up(total), 700.0)) * (1 + 1e-12)
        own = Fraction(1) if total > 700 else own + (1 + Fraction(factor)) * distance
    sums = capped_prices(item, orders) if isinstance(item, Capped) else lane_prices(bare, orders)
    return replace(sums, delta=on_grid(min(own, Fraction(1))))


def default_orders(epsilon: Real, delta: float) -> tuple[float, ...]:
    """Return a few orders, functions of the budget only: those at which conversion to delta leaves a given
    part of epsilon.

    Half of epsilon is best for Gaussian noise. Lower orders, which leave less, serve what is sampled; higher
    ones what is nearly pure. More orders would each get less of delta.
    """
    if delta == 0 or epsilon == 0:
        return ()
    share, total = delta / len(_PARTS), float(epsilon)
    return tuple(sorted({_tidy(_leaving(part * total, total, share)) for part in _PARTS}))


def _leaving(remaining: float, total: float, share: float) -> float:
    """Return the order at which epsilon minus the conversion term is about `remaining`: bisection in the
    logarithm of order - 1."""
    low, high = -20.0, 30.0
    for _ in range(60):
        middle = (low + high) / 2
        enough = total - rdp_to_epsilon(1 + math.exp(middle), 0.0, share) >= remaining
        low, high = (low, middle) if enough else (middle, high)
    return 1 + math.exp(high)


def _tidy(order: float) -> float:
    """Round to few digits; to integers where that is close enough, because several Rényi bounds are tight
    only there."""
    return float(round(order)) if order >= 20 else 1 + float(f"{order - 1:.3g}")
