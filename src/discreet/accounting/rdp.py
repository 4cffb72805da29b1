"""The Rényi accountant: adds up Rényi divergences order by order, and converts to epsilon at the best order.

Every order gives a valid epsilon, so a search that misses the best order is still valid. The search tries the
orders 1 + 2^k first and then narrows the interval around the best of them. Order infinity, at which
divergences are pure epsilons, is always tried too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from .conversion import least_epsilon, minimum, rdp_to_delta, rdp_to_epsilon, rdp_to_epsilon_classic
from .events import Event
from .normal import Normal, normal
from .renyi import curve, of_parts, pure_epsilon

__all__ = ["AtOrder", "best", "curve", "delta", "epsilon", "of_form"]

# The values of order - 1 at which the search starts.
_COARSE = [2.0**k for k in range(14)]


class AtOrder(NamedTuple):
    """An epsilon or a delta, and the Rényi order at which it is proved."""

    value: float
    order: float


def epsilon(event: Event, delta: float, *, classic: bool = False) -> float:
    """Return the least epsilon at delta over all orders; `classic` selects `rdp_to_epsilon_classic`."""
    return best(event, delta, classic=classic).value


def best(event: Event, delta: float, *, classic: bool = False) -> AtOrder:
    """Return the least epsilon and the order that gives it.

    Guarantee: the event is (value, delta)-DP.
    Proof:     Mironov 2017, Prop. 1 (composition); conversion by Canonne, Kamath & Steinke 2020, Prop. 12, or
               with `classic` by Mironov 2017, Prop. 3; own deltas and distances as in `normal`.
    """
    return of_form(normal(event), delta, classic=classic)


def of_form(form: Normal, delta: float, *, classic: bool = False) -> AtOrder:
    """Return what `best` returns, for a normal form."""
    moment = of_parts(form.parts)
    convert = rdp_to_epsilon_classic if classic else rdp_to_epsilon

    def best_conversion(remaining_delta: float) -> AtOrder:
        best = _search(lambda order: convert(order, moment(order) / (order - 1), remaining_delta))
        exact = pure_epsilon(form)
        return AtOrder(exact, math.inf) if exact <= best.value else best

    # `price` records its orders here; the last one, or infinity if it is never called, is that of the result
    orders: list[float] = [math.inf]

    def price(remaining_delta: float) -> float:
        best = best_conversion(remaining_delta)
        orders.append(best.order)
        return best.value

    return AtOrder(least_epsilon(form, delta, price, pure_epsilon(form)), orders[-1])


def delta(event: Event, epsilon: float) -> float:
    """Return the least delta at an epsilon, over all orders."""
    form = normal(event)
    if pure_epsilon(form) <= epsilon:
        return form.total_delta(0.0, epsilon)
    moment = of_parts(form.parts)
    least = _search(lambda order: rdp_to_delta(order, moment(order) / (order - 1), epsilon)).value
    return form.total_delta(least, epsilon)


def _search(price: Callable[[float], float]) -> AtOrder:
    """Return the least price(order) that a search over orders finds.

    The orders 1 + 2^k are tried first, which are integers and quick; then the interval around the best of
    them, or (1, 3] if that is order 2; then the two integers beside the best. `log_excess` is ln(order - 1).
    """
    seen: dict[float, float] = {}

    def epsilon_at(log_excess: float) -> float:
        order = 1 + math.exp(log_excess)
        # Large orders are rounded to integers, at which several rules are exact.
        if order > 256:
            order = float(round(order))
        if order not in seen:
            seen[order] = price(order)
        return seen[order]

    start = min((math.log(x) for x in _COARSE), key=epsilon_at)
    if start == 0:
        minimum(epsilon_at, -7.0, math.log(2), 14)
    else:
        minimum(epsilon_at, start - math.log(2), start + math.log(2), 9)
    for integer in _integers(min(seen, key=lambda order: seen[order])):
        seen[integer] = min(seen.get(integer, math.inf), price(integer))
    where = min(seen, key=lambda order: seen[order])
    return AtOrder(seen[where], where)


def _integers(order: float) -> list[float]:
    """Return the integers beside an order: some moments are exact at integers and bounded by chords between
    them (`chord`)."""
    return [float(n) for n in (math.floor(order), math.ceil(order)) if n >= 2]
