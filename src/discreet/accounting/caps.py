"""Which price a release is charged at: as it is, or capped at the (epsilon, delta) that it was asked with.

What was asked at epsilon e should read as at most e spent. A Gaussian release has no pure epsilon, so its
price as it is leaves the pure lane for good, and the reading jumps to what the Rényi lanes say. Capped, it
adds e to the pure lane and a part of delta to the releases' own deltas. As long as the epsilons that were
asked for add up to at most the budget's, everything is charged so; afterwards releases are charged as they
are, and the Rényi lanes go on alone. The proofs are in docs/filters.md, "Capped prices".
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any, NamedTuple

from .. import _round
from .._errors import Unsupported
from .._require import Real
from .events import Event
from .filters import BudgetFilter, Filter
from .lanes import LAST_DIGITS, Capped, Item, Spent, certified_epsilon, split

# A certified epsilon this close to the one that was asked for is charged as the one that was asked for.
_NEAR = 0.999
# Rounds of the fixed point of `_in_proportion`: epsilon goes with the logarithm of delta, so that each gains
# digits.
_ROUNDS = 4
# By how much an epsilon that is charged exceeds what was certified: where charges are counted again, on
# another machine perhaps, they are certified again.
_ROOM = float(LAST_DIGITS)
# Deltas of caps that nobody asked for are powers of this, so that the accountant's answers can be kept.
_STEP = 2 ** (1 / 8)


class RequestedPrice(NamedTuple):
    """The (epsilon, delta) that a release was asked with. Only a hint: what is charged is certified anew."""

    epsilon: Real
    delta: float


def requested_price_of(mechanism: Any) -> RequestedPrice | None:
    """Return the (epsilon, delta) that a mechanism was asked with, where it says so in `asked`."""
    requested_price = getattr(mechanism, "asked", None)
    return None if requested_price is None else RequestedPrice(*requested_price)


def choose(
    rule: BudgetFilter, spent: Spent, event: Event, requested_price: RequestedPrice | None = None
) -> Item:
    """Return the event as it is to be charged next: capped while that is possible and of use, and otherwise
    as it is.

    Guarantee: the choice is a function of what was charged before and of the event, never of answers: filters
               stay valid.
    Proof:     docs/filters.md, "Capped prices": every price is true, and it is fixed before its release.
    """
    if not isinstance(rule, Filter):
        return event
    remaining = rule.limits[0] - Fraction(spent.sums[0]) if math.isfinite(spent.sums[0]) else Fraction(-1)
    own = rule.delta_limit - Fraction(spent.delta) - _own_delta(rule, event)
    if remaining <= 0 or own <= 0 or _is_cheap(rule, event, requested_price):
        return event
    for cap in _candidates(rule, event, requested_price, own, remaining):
        if cap is not None and cap.epsilon <= remaining and rule.admits(spent, cap):
            return cap
    return event


def first(
    rule: BudgetFilter, event: Event, requested_price: RequestedPrice | None = None
) -> tuple[BudgetFilter, Item]:
    """Return the rule of a fresh account with the split of its delta that the first charge fixes, and how
    that is charged.

    Half of delta is kept for own deltas, or as much as the first charge needs: da = max(delta / 2, d_1).
    """
    item = choose(rule, rule.start(), event, requested_price)
    if not isinstance(rule, Filter) or rule.delta == 0 or _admits(rule, item):
        return rule, item
    all_own = replace(rule, own_delta=rule.delta, orders=None)
    other = choose(all_own, all_own.start(), event, requested_price)
    if not _admits(all_own, other):
        return rule, item
    needed = with_first(rule, all_own.price(other).delta)
    return (needed, other) if _admits(needed, other) else (all_own, other)


def with_first(rule: BudgetFilter, own: Fraction | float) -> BudgetFilter:
    """Return the rule whose split of delta was fixed by a first charge with this own delta."""
    if not isinstance(rule, Filter) or rule.own_delta is None or own <= rule.delta_limit:
        return rule
    return replace(rule, own_delta=min(rule.delta, _round.up(Fraction(own))), orders=None)


def share(epsilon: Real, *, of: Filter) -> float:
    """Return the delta to ask with at `epsilon`, so that own deltas last exactly as long as the pure lane
    does."""
    assert of.own_delta is not None
    part = min(Fraction(1), Fraction(epsilon) / Fraction(of.epsilon)) if of.epsilon else Fraction(1)
    return _round.down(Fraction(of.own_delta) * part)


def _admits(rule: BudgetFilter, item: Item) -> bool:
    try:
        return rule.admits(rule.start(), item)
    except Unsupported:
        return False


def _own_delta(rule: Filter, event: Event) -> Fraction:
    """Return the own deltas that the event has however it is priced, distances included."""
    _, own, distance = split(event)
    return own + (1 + Fraction(math.exp(min(float(rule.total), 700.0)) * (1 + 1e-12))) * distance


def _is_cheap(rule: Filter, event: Event, requested_price: RequestedPrice | None) -> bool:
    """Return whether the event has a pure epsilon within what was asked for: a cap would gain nothing."""
    try:
        exact = rule.price(event).sums[0]
    except Unsupported:
        return False
    if math.isinf(exact):
        return False
    return requested_price is None or exact <= Fraction(requested_price.epsilon) * (1 + rule.slack)


def _candidates(
    rule: Filter, event: Event, requested_price: RequestedPrice | None, own: Fraction, remaining: Fraction
) -> Iterator[Capped | None]:
    """Yield caps in the order in which they are tried: as asked, in proportion, and with all own delta that
    is left; the last without room, for what takes all of a budget."""
    yield _at_requested_price(rule, event, requested_price)
    yield _in_proportion(event, own, remaining)
    yield _at(event, _round.down(own))
    yield _at(event, _round.down(own), room=0.0)


def _at(event: Event, delta: float, room: float = _ROOM) -> Capped | None:
    """Return the cap at this delta, where some epsilon is certified for it, with room for its last digits."""
    epsilon = certified_epsilon(event, delta) * (1 + room) if 0 < delta < 1 else math.inf
    return Capped(event=event, epsilon=epsilon, delta=delta) if 0 < epsilon < math.inf else None


def _at_requested_price(rule: Filter, event: Event, requested_price: RequestedPrice | None) -> Capped | None:
    """Return the cap at the epsilon and delta that were asked for, where these are certified."""
    if requested_price is None or not requested_price.epsilon > 0:
        return None
    left = _round.down(Fraction(requested_price.delta) - _own_delta(rule, event))
    if not 0 < left < 1:
        return None
    certified, requested_epsilon = (
        certified_epsilon(event, left),
        _round.up(Fraction(requested_price.epsilon)),
    )
    if not 0 < certified <= requested_epsilon:
        return None
    return Capped(
        event=event,
        epsilon=requested_epsilon if certified > _NEAR * requested_epsilon else certified * (1 + _ROOM),
        delta=left,
    )


def _in_proportion(event: Event, own: Fraction, remaining: Fraction) -> Capped | None:
    """Return the cap that takes about the same part of what is left of own deltas as of what is left of
    epsilon."""
    cap, part = None, 1.0
    for _ in range(_ROUNDS):
        target = float(own) * part
        if target < 1e-300:
            return None
        cap = _at(event, min(0.5, _STEP ** math.floor(math.log(target, _STEP))))
        if cap is None:
            return None
        part = min(1.0, cap.epsilon / float(remaining))
    return cap
