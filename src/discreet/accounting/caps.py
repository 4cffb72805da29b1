"""Chooses the price at which a release is charged: its own, or capped at the (epsilon, delta) it was
requested with.

A release should raise the reported spending by at most the epsilon that it was requested with. A `Filter`,
the variable `rule` in this module, adds up prices in lanes: the pure epsilons, and the Rényi divergences at
some orders (see `lanes`). A Gaussian release has no pure epsilon. Charged at its own price, it makes the pure
lane infinite for good, and the reported spending jumps to the value of the Rényi lanes. Charged as a cap, it
adds the requested epsilon to the pure lane, and some delta to the sum of "own deltas", the probabilities with
which releases fail. While the requested epsilons add up to at most the budget's epsilon and the own deltas
are within their limit, every release without a pure epsilon is charged as a cap. After that, releases are
charged at their own price, and only the Rényi lanes stay within their limits. The proofs are in
docs/proofs/filters.md, "Capped prices".
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

# A certified epsilon above this part of the requested epsilon is charged as the requested epsilon: a user who
# asks for 0.1 then reads 0.1 and not 0.09997. The number was chosen by hand, not tuned.
_CLOSE = 0.999
# The number of fixed-point iterations in `_in_proportion`. Epsilon changes only with the logarithm of delta,
# so that each iteration gains digits; four are enough, because only about the same part is wanted there.
_ITERATIONS = 4
# The relative amount by which a charged epsilon exceeds the certified one. When a ledger is checked, perhaps
# on another machine, the charge is certified again, and the last digits may differ there.
_MARGIN = float(LAST_DIGITS)
# The deltas of `_in_proportion` are powers of this number: few different deltas, so that the cache of
# `lanes.certified_epsilon` is used. The number was chosen by hand, not tuned.
_STEP = 2 ** (1 / 8)


class RequestedPrice(NamedTuple):
    """The (epsilon, delta) that a release was requested with. It is only a hint: an accountant certifies
    every price before it is charged."""

    epsilon: Real
    delta: float


def requested_price_of(mechanism: Any) -> RequestedPrice | None:
    """Return the (epsilon, delta) that a mechanism was requested with: what it says in `asked`."""
    return None if mechanism.asked is None else RequestedPrice(*mechanism.asked)


def choose(
    rule: BudgetFilter, spent: Spent, event: Event, requested_price: RequestedPrice | None = None
) -> Item:
    """Return what to charge next: a cap of the event where one fits the budget and gains something, and
    otherwise the event itself.

    Guarantee: the choice is a function of what was charged before, the event and the requested price, never
               of answers. So the guarantee of the filter holds.
    Proof:     docs/proofs/filters.md, "Capped prices": both are upper bounds on the cost of the release, and
               which one is charged is fixed before the release.
    """
    if not isinstance(rule, Filter):
        return event
    # If the pure lane is infinite, nothing remains of it, which any negative number says.
    remaining_epsilon = (
        rule.limits[0] - Fraction(spent.sums[0]) if math.isfinite(spent.sums[0]) else Fraction(-1)
    )
    remaining_delta = rule.delta_limit - Fraction(spent.delta) - _own_delta(rule, event)
    if remaining_epsilon <= 0 or remaining_delta <= 0 or _is_cheap(rule, event, requested_price):
        return event
    for cap in _candidates(rule, event, requested_price, remaining_delta, remaining_epsilon):
        if cap is not None and cap.epsilon <= remaining_epsilon and rule.admits(spent, cap):
            return cap
    return event


def first(
    rule: BudgetFilter, event: Event, requested_price: RequestedPrice | None = None
) -> tuple[BudgetFilter, Item]:
    """Return the filter of a fresh account with the split of its delta that the first charge fixes, and the
    item to charge first.

    A filter splits its delta between own deltas and the Rényi orders. The part for own deltas is that of
    `rule` (by default half of delta), or the own delta of the first charge if that is more; or all of delta,
    if only then the first charge is admitted.
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
    """Return the filter with the split of delta that a first charge with the own delta `own` fixes."""
    if not isinstance(rule, Filter) or rule.own_delta is None or own <= rule.delta_limit:
        return rule
    return replace(rule, own_delta=min(rule.delta, _round.up(Fraction(own))), orders=None)


def share(epsilon: Real, *, of: Filter) -> float:
    """Return the delta to request together with `epsilon`: the same part of the delta that is kept for own
    deltas as epsilon is of the budget's epsilon, so that both are used up at the same time."""
    assert of.own_delta is not None
    part = min(Fraction(1), Fraction(epsilon) / Fraction(of.epsilon)) if of.epsilon else Fraction(1)
    return _round.down(Fraction(of.own_delta) * part)


def _admits(rule: BudgetFilter, item: Item) -> bool:
    """Return whether a fresh account admits the item; False if the item has no price."""
    try:
        return rule.admits(rule.start(), item)
    except Unsupported:
        return False


def _own_delta(rule: Filter, event: Event) -> Fraction:
    """Return the delta that the event costs with or without a cap: its own deltas, and (1 + e^epsilon) times
    its distance in total variation (see `normal`), at the budget's epsilon."""
    _, own, distance = split(event)
    return own + (1 + Fraction(math.exp(min(float(rule.total), 700.0)) * (1 + 1e-12))) * distance


def _is_cheap(rule: Filter, event: Event, requested_price: RequestedPrice | None) -> bool:
    """Return whether the event has a pure epsilon, of at most the requested one if there is a request, so
    that a cap gains nothing."""
    try:
        exact = rule.price(event).sums[0]
    except Unsupported:
        return False
    if math.isinf(exact):
        return False
    return requested_price is None or exact <= Fraction(requested_price.epsilon) * (1 + rule.slack)


def _candidates(
    rule: Filter,
    event: Event,
    requested_price: RequestedPrice | None,
    remaining_delta: Fraction,
    remaining_epsilon: Fraction,
) -> Iterator[Capped | None]:
    """Yield caps in the order in which they are tried: at the requested price, in proportion to the remaining
    budget, with all of the remaining own delta, and the same without the margin, for a release that takes
    all of the budget."""
    yield _at_requested_price(rule, event, requested_price)
    yield _in_proportion(event, remaining_delta, remaining_epsilon)
    yield _at(event, _round.down(remaining_delta))
    yield _at(event, _round.down(remaining_delta), margin=0.0)


def _at(event: Event, delta: float, margin: float = _MARGIN) -> Capped | None:
    """Return the cap at this delta and its certified epsilon, raised by the relative `margin`; None where no
    epsilon is certified."""
    epsilon = certified_epsilon(event, delta) * (1 + margin) if 0 < delta < 1 else math.inf
    return Capped(event=event, epsilon=epsilon, delta=delta) if 0 < epsilon < math.inf else None


def _at_requested_price(rule: Filter, event: Event, requested_price: RequestedPrice | None) -> Capped | None:
    """Return the cap at the requested epsilon and delta, or None where the accountant does not certify them.

    The requested delta covers the event's own deltas too, so the cap gets only the rest of it.
    """
    if requested_price is None or not requested_price.epsilon > 0:
        return None
    remaining_delta = _round.down(Fraction(requested_price.delta) - _own_delta(rule, event))
    if not 0 < remaining_delta < 1:
        return None
    certified, requested_epsilon = (
        certified_epsilon(event, remaining_delta),
        _round.up(Fraction(requested_price.epsilon)),
    )
    if not 0 < certified <= requested_epsilon:
        return None
    return Capped(
        event=event,
        epsilon=requested_epsilon if certified > _CLOSE * requested_epsilon else certified * (1 + _MARGIN),
        delta=remaining_delta,
    )


def _in_proportion(event: Event, remaining_delta: Fraction, remaining_epsilon: Fraction) -> Capped | None:
    """Return the cap that takes about the same part of the remaining own delta as of the remaining
    epsilon."""
    cap, part = None, 1.0
    for _ in range(_ITERATIONS):
        target = float(remaining_delta) * part
        if target < 1e-300:
            return None
        # at most 0.5, because a power of `_STEP` may be 1, and the delta of a cap must be below 1
        cap = _at(event, min(0.5, _STEP ** math.floor(math.log(target, _STEP))))
        if cap is None:
            return None
        part = min(1.0, cap.epsilon / float(remaining_epsilon))
    return cap
