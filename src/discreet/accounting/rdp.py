"""The Rényi accountant: adds up Rényi divergences order by order, and converts to epsilon at the best order.

Every order gives a valid epsilon, so a search that misses the best order is still valid. The search tries the
orders 1 + 2^k first and then narrows the interval around the best of them. Order infinity, at which
divergences are pure epsilons, is always tried too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

from .. import _require
from . import pure
from .conversion import minimum, rdp_to_delta, rdp_to_epsilon, rdp_to_epsilon_classic
from .events import Event
from .normal import Normal, normal
from .rdp_rules import Moment, of_parts
from .refusal import refuse
from .solve import least_epsilon

# The values of order - 1 at which the search starts.
_COARSE = [2.0**k for k in range(14)]


class AtOrder(NamedTuple):
    """An epsilon or a delta, and the Rényi order at which it is proved."""

    value: float
    order: float


def curve(event: Event, orders: Iterable[float]) -> list[float]:
    """Return the Rényi divergence of the whole event at each order, rounded up.

    An event that can fail with some probability (own delta, see `normal`) is refused, because its divergence
    is infinite; `epsilon` prices it.

    >>> from .events import Gaussian
    >>> [round(r, 9) for r in curve(Gaussian(noise_multiplier=2.0).repeated(4), [2, 8.5])]
    [1.0, 4.25]
    """
    form = normal(event)
    if form.delta > 0 or form.distance > 0:
        raise refuse(event, "rdp", "it can fail with some probability, so its Rényi divergence is infinite")
    moment = of_parts(form.parts)
    divergences = []
    for order in orders:
        if not order > 1:
            raise _require.fail("order", order, "above 1")
        divergences.append(_pure(form) if math.isinf(order) else moment(float(order)) / (order - 1))
    return divergences


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
        pure_epsilon = _pure(form)
        return AtOrder(pure_epsilon, math.inf) if pure_epsilon <= best.value else best

    # `price` records its orders here; the last one, or infinity if it is never called, is that of the result
    orders: list[float] = [math.inf]

    def price(remaining_delta: float) -> float:
        best = best_conversion(remaining_delta)
        orders.append(best.order)
        return best.value

    return AtOrder(least_epsilon(form, delta, price, _pure(form)), orders[-1])


def delta(event: Event, epsilon: float) -> float:
    """Return the least delta at an epsilon, over all orders."""
    form = normal(event)
    if _pure(form) <= epsilon:
        return form.total_delta(0.0, epsilon)
    moment = of_parts(form.parts)
    least = _search(lambda order: rdp_to_delta(order, moment(order) / (order - 1), epsilon)).value
    return form.total_delta(least, epsilon)


def _pure(form: Normal) -> float:
    """Return the pure epsilon of the parts, which is the divergence at order infinity; infinite if none."""
    total = pure.epsilon_of(form.event)
    return math.inf if total is None else total


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
    them (`rdp_sampled.chord`)."""
    return [float(n) for n in (math.floor(order), math.ceil(order)) if n >= 2]


__all__ = ["AtOrder", "Moment", "best", "curve", "delta", "epsilon", "of_form"]
