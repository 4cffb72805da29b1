"""Defines the main functions of accounting, which return the epsilon, delta, lower bound or trade-off curve
of an event.

`epsilon(event, delta=...)` is the tightest proved upper bound; `accountant=` selects one accountant by name.
Upper bounds are rounded up, lower bounds down. For an event that an accountant has no theorem for, it raises
an error that names the event; it never guesses. The inverse question, which event costs this much, is
answered in `calibration`.

Compares the accountants: the epsilon of one event by each of them, in one table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from .. import _require
from .._errors import Unsupported
from .._require import NON_NEGATIVE, OPEN_PROBABILITY, PROBABILITY
from . import composition, conversion, gdp, pure, rdp
from . import events as ev
from .conversion import minimum
from .events import Event, covered, leaves
from .normal import normal


@dataclass(frozen=True, slots=True)
class Accountant:
    """A method that turns events into epsilon and delta.

    `epsilon` maps (event, delta) to epsilon; `delta` maps (event, epsilon) to delta. `delta` is None where
    only epsilon has a formula; then delta is found by bisection. `title` is for tables.
    """

    name: str
    title: str
    epsilon: Callable[[Event, float], float]
    delta: Callable[[Event, float], float] | None


def _pld_epsilon(event: Event, delta: float) -> float:
    # Imported when first needed, here and below, because it imports scipy, which takes long to load.
    from . import pld

    return pld.epsilon(event, delta)


def _pld_delta(event: Event, epsilon: float) -> float:
    from . import pld

    return pld.delta(event, epsilon)


ACCOUNTANTS: dict[str, Accountant] = {
    a.name: a
    for a in (
        Accountant("pld", "privacy loss distribution", _pld_epsilon, _pld_delta),
        Accountant("rdp", "Rényi, tight conversion", rdp.epsilon, rdp.delta),
        Accountant("zcdp", "concentrated, tight conversion", conversion.zcdp_epsilon, conversion.zcdp_delta),
        Accountant("gdp", "Gaussian DP", gdp.epsilon, gdp.delta),
        Accountant("optimal", "optimal composition", composition.optimal, None),
        Accountant("advanced", "advanced composition", composition.advanced, None),
        Accountant("basic", "basic composition", composition.basic, None),
    )
}
TIGHTEST = "tightest"
# Up to this many parts the accountant "optimal" is tried beside the others. With more parts it takes long,
# and it uses only one (epsilon, delta) per part where "pld" uses the whole privacy curve. The number 8 was
# chosen by hand, not tuned; a larger one can only lower results.
_FEW = 8
# The accountants among which "tightest" takes the least. "basic" is never below "optimal". "advanced" can be
# below it only where "optimal" rounds very many different epsilons up to a coarse grid.
_BEST = [a for name, a in ACCOUNTANTS.items() if name not in ("advanced", "basic")]


def _named(accountant: str) -> Accountant:
    """Return the accountant of this name; other names are refused."""
    _require.one_of([TIGHTEST, *ACCOUNTANTS], accountant=accountant)
    return ACCOUNTANTS[accountant]


def _check_event(event: Event) -> None:
    """Refuse anything but an event."""
    _require.must(isinstance(event, Event), "event", type(event).__name__, "an accounting event")


@_require.check_options
def epsilon(event: Event, *, delta: Annotated[float, PROBABILITY], accountant: str = TIGHTEST) -> float:
    """Return the epsilon of an event at a delta: an upper bound by the named accountant, by default the
    tightest there is.

    Guarantee: the event is (epsilon, delta)-DP under its own neighbor relation. The result is infinite if no
               finite epsilon is proved.
    Proof:     that of the accountant; "tightest" is the privacy loss distribution where that is exact
               (`exact_by_pld`), else the least over the accountants in `_BEST` that have a theorem for the
               event ("optimal" only for up to `_FEW` parts, or where the others have no finite bound).

    >>> from .events import Gaussian
    >>> round(epsilon(Gaussian(noise_multiplier=1.0), delta=1e-5, accountant="gdp"), 6)
    4.377178
    """
    _check_event(event)
    if accountant != TIGHTEST:
        return _epsilon_by(_named(accountant), event, float(delta))
    return _least(event, lambda a: _epsilon_by(a, event, float(delta)), _BEST)


def _epsilon_by(accountant: Accountant, event: Event, delta: float) -> float:
    """Return the epsilon of an event by one accountant.

    Accountants are only asked for deltas between 0 and 1: at delta 1 epsilon is 0, and at delta 0 it is the
    pure epsilon.
    """
    if delta >= 1:
        return 0.0
    if delta == 0:
        form = normal(event)
        # A pure epsilon excludes own deltas, the probabilities with which parts fail (`form.delta`), and a
        # distance in total variation to the parts (see `normal`).
        exact = pure.epsilon_of(form.event)
        return exact if exact is not None and form.delta == 0 == form.distance else math.inf
    return _named_in_refusals(event, lambda: accountant.epsilon(event, delta), math.inf)


def _named_in_refusals(event: Event, price: Callable[[], float], worst: float) -> float:
    """Return price(), with errors that name the caller's own event.

    A rule can be missing for a part of the event's normal form that the caller never wrote: then the message
    gets the names of the events that the caller's event is composed of. If the computation leaves the range
    of floats (as for an epsilon of a million), `worst` is returned, which claims nothing.
    """
    try:
        with np.errstate(over="raise", invalid="raise", divide="raise"):
            return price()
    except ArithmeticError:
        return worst
    except Unsupported as refusal:
        names = {type(part).__name__ for part in leaves(event)} | {type(event).__name__}
        if any(name in str(refusal) for name in names):
            raise
        raise Unsupported(f"{' and '.join(sorted(names))}: {refusal}") from None


# Events whose privacy loss distribution is exactly that of the mechanism. For a composition of these alone,
# no accountant can be better than "pld", up to the rounding of its grid. For other events, such as one
# randomized response, the loss takes few values, which fall between the points of the grid: a closed form can
# be lower.
_EXACT = (ev.NoOp, ev.NonPrivate, ev.Gaussian)


def exact_by_pld(event: Event) -> bool:
    """Return whether the privacy loss distribution is exact up to discretization, so that no other accountant
    needs to be tried: the event is composed of Gaussians, Poisson-sampled or not."""
    parts = normal(event).parts
    inner = [part.event if isinstance(part, ev.PoissonSampled) else part for part in parts]
    return all(isinstance(part, _EXACT) for part in inner)


def _least(event: Event, price: Callable[[Accountant], float], accountants: Iterable[Accountant]) -> float:
    """Return the least price(accountant) over these accountants that have a theorem for the event; only that
    of the privacy loss distribution where it is known to be the least."""
    if exact_by_pld(event) and math.isfinite(exact := price(ACCOUNTANTS["pld"])):
        return exact
    prices: list[float] = []
    many = sum(normal(event).parts.values()) > _FEW
    for accountant in accountants:
        # "optimal", the only one here without a formula for delta, is skipped for many parts (see _FEW),
        # unless nothing else has a finite bound.
        if accountant.delta is None and many and prices and math.isfinite(min(prices)):
            continue
        try:
            prices.append(price(accountant))
        except Unsupported:
            continue
    covered(bool(prices), event, TIGHTEST, "none of the accountants has a theorem for it")
    return min(prices)


@_require.check_options
def delta(event: Event, *, epsilon: Annotated[float, NON_NEGATIVE], accountant: str = TIGHTEST) -> float:
    """Return the delta of an event at an epsilon: an upper bound by the named accountant, by default the
    tightest.

    "tightest" is the least over the accountants with a formula for delta. The others ("optimal", "advanced",
    "basic") find it by bisection and are left out: they use only one (epsilon, delta) per part.
    """
    _check_event(event)
    if accountant != TIGHTEST:
        return _delta_by(_named(accountant), event, float(epsilon))
    direct = [a for a in ACCOUNTANTS.values() if a.delta is not None]
    least = _least(event, lambda a: _delta_by(a, event, float(epsilon)), direct)
    if least < 1 or not exact_by_pld(event):
        return least
    # The loss distribution gave no bound below 1 at this epsilon, as where floats overflow.
    return _delta_by(ACCOUNTANTS["rdp"], event, float(epsilon))


def _delta_by(accountant: Accountant, event: Event, epsilon: float) -> float:
    """Return the delta of an event by one accountant; by bisection where the accountant has a formula for
    epsilon only."""
    if accountant.delta is not None:
        rule = accountant.delta
        bound = min(1.0, _named_in_refusals(event, lambda: rule(event, epsilon), 1.0))
        return min(bound, _at_less(event, rule, epsilon)) if normal(event).distance > 0 else bound
    if _epsilon_by(accountant, event, 0.0) <= epsilon:
        return 0.0
    # Logarithms of two deltas: at `low` the event's epsilon is above the given one, at `high` it is not.
    low, high = math.log(1e-300), 0.0
    if _epsilon_by(accountant, event, math.exp(low)) <= epsilon:
        return math.exp(low)
    while high - low > 1e-7:
        middle = (low + high) / 2
        enough = _epsilon_by(accountant, event, math.exp(middle)) <= epsilon
        low, high = (low, middle) if enough else (middle, high)
    return math.exp(high)


def _at_less(event: Event, rule: Callable[[Event, float], float], epsilon: float) -> float:
    """Return the least delta that `rule`, an accountant's formula for delta, gives at any epsilon up to this.

    An event that is (x, d)-DP is (epsilon, d)-DP for every epsilon >= x. The delta of the formula can rise
    with epsilon, because a distance in total variation costs (1 + e^epsilon) times its value (see `normal`).
    """

    # The guard of `_delta_by` is needed here too: where floats overflow, a NaN could pass for a small delta.
    def price(x: float) -> float:
        return _named_in_refusals(event, lambda: rule(event, x), 1.0)

    # Every x up to epsilon is valid. The interval ends at 100, so that 12 iterations do not miss the small
    # ones.
    return minimum(price, 0.0, min(epsilon, 100.0), 12)[1]


@_require.check_options
def bounds(event: Event, *, delta: Annotated[float, OPEN_PROBABILITY]) -> tuple[float, float]:
    """Return a proved interval (lower, upper) for the least epsilon that holds for all mechanisms that this
    event describes.

    No accountant can prove less than `lower` for this event, because some mechanism that the event describes
    needs that epsilon. Parts of the event for which no such mechanism is known, or only much cheaper ones,
    add nothing to `lower`, which is 0 if there are no others: sparse vector, noisy max, votes, shuffled
    reports, selections of repeated runs, and single orders of a Rényi bound.
    """
    _check_event(event)
    from . import pld

    try:
        with np.errstate(over="raise", invalid="raise", divide="raise"):
            low, high = pld.bounds(event, float(delta))
    except ArithmeticError:
        low, high = 0.0, math.inf
    if not exact_by_pld(event) or math.isinf(high):
        pld_upper = high
        high = _least(
            event, lambda a: pld_upper if a.name == "pld" else _epsilon_by(a, event, float(delta)), _BEST
        )
    return low, high


@_require.check_options
def tradeoff(event: Event, *, alpha: Annotated[float, PROBABILITY], accountant: str = TIGHTEST) -> float:
    """Return a lower bound of the type II error, at type I error `alpha`, of every test that tells from the
    output which of two neighboring tables it was computed from.

    An attacker with false-positive rate alpha has a true-positive rate of at most 1 - tradeoff.
    Proof: (epsilon, delta)-DP gives the lower bound max(1 - delta - e^epsilon alpha, e^-epsilon (1 - delta -
    alpha)) (Wasserman & Zhou 2010; Dong, Roth & Su 2022, arXiv:1905.02383, equation 5); the largest of these
    bounds is searched. For Gaussians a formula gives the exact value, up to the rounding of a few floats,
    whichever accountant is named.
    """
    _check_event(event)
    alpha = float(alpha)
    form = normal(event)
    if form.delta == 0 == form.distance and all(isinstance(part, ev.Gaussian) for part in form.parts):
        return gdp.tradeoff(gdp.mu(event), alpha) if math.isfinite(gdp.mu(event)) else 0.0
    if alpha == 1:
        return 0.0
    if alpha == 0:
        # With a pure epsilon every outcome occurs on both tables, except with a probability of the own
        # deltas.
        always_deniable = pure.epsilon_of(form.event) is not None and form.distance == 0
        return max(0.0, 1.0 - form.delta) if always_deniable else 0.0
    return _best_line(lambda d: epsilon(event, delta=d, accountant=accountant), float(alpha))


# Deltas at which the search for the best line starts; it then narrows around the best of them. Every
# delta gives a valid bound; more of them take more time.
_DELTAS = (1e-10, 1e-8, 1e-6, 1e-5, 1e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.2, 0.35, 0.5, 0.75)


def _best_line(profile: Callable[[float], float], alpha: float) -> float:
    """Return the largest lower bound of the type II error at alpha, over points of the privacy curve.

    `profile` maps delta to epsilon. Every (epsilon, delta) of the curve gives a lower bound that is a
    straight line in alpha. At a fixed alpha the bound rises with delta to one peak and then falls: deltas are
    tried until it falls, then the interval around the best is narrowed. A search that misses the peak is
    still valid, because every delta gives a valid bound.
    """

    def height(log_delta: float) -> float:
        d = math.exp(log_delta)
        x = profile(d)
        # Above 700, e^x is near the largest float or above it, and this line claims nothing.
        steep = 1 - d - math.exp(x) * alpha if x <= 700 else 0.0
        return max(steep, math.exp(-x) * (1 - d - alpha))

    heights: list[float] = []
    for delta in _DELTAS:
        heights.append(height(math.log(delta)))
        if len(heights) > 2 and heights[-1] < max(heights):
            break
    best = max(range(len(heights)), key=lambda k: heights[k])
    low, high = (math.log(_DELTAS[k]) for k in (max(best - 1, 0), min(best + 1, len(_DELTAS) - 1)))
    refined = -minimum(lambda log_delta: -height(log_delta), low, high, 11)[1]
    return max(0.0, max(refined, heights[best]) - 1e-15)


@dataclass(frozen=True, slots=True)
class Row:
    """The result of one accountant: its epsilon, or None and in `note` the reason why it has none.

    For the Rényi accountant `note` is the order that gave the epsilon.
    """

    accountant: str
    title: str
    epsilon: float | None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Holds the results of all accountants for one event. Prints as a table; `.best` is the row with the
    least epsilon."""

    delta: float
    rows: tuple[Row, ...]

    @property
    def best(self) -> Row:
        priced = [row for row in self.rows if row.epsilon is not None]
        if not priced:
            raise Unsupported("no accountant has a price for this event: `rows` says why.")
        return min(priced, key=lambda row: row.epsilon or 0.0)

    def as_dict(self) -> dict[str, float]:
        """Return a map from accountant to epsilon, without the accountants that refused the event."""
        return {row.accountant: row.epsilon for row in self.rows if row.epsilon is not None}

    def __repr__(self) -> str:
        priced = [row for row in self.rows if row.epsilon is not None]
        lines = [f"epsilon at delta = {self.delta:g}"]
        for row in sorted(priced, key=lambda r: r.epsilon or 0.0):
            assert row.epsilon is not None
            mark = "<- tightest" if row.epsilon == self.best.epsilon else ""
            number = "infinite" if math.isinf(row.epsilon) else f"{row.epsilon:.6g}"
            lines.append(
                (
                    f"  {row.accountant:<9} {number:>12}  "
                    f"{row.title}{', ' + row.note if row.note else ''} {mark}"
                ).rstrip()
            )
        lines += [f"  {row.accountant:<9} {'-':>12}  {row.note}" for row in self.rows if row.epsilon is None]
        return "\n".join(lines)


@_require.check_options
def compare(event: Event, *, delta: Annotated[float, OPEN_PROBABILITY]) -> Comparison:
    """Return the epsilon of the event at `delta` by every accountant, or the reason why an accountant has
    none."""
    _check_event(event)
    return Comparison(float(delta), tuple(_row(name, event, float(delta)) for name in ACCOUNTANTS))


def _row(name: str, event: Event, delta: float) -> Row:
    """Return the result of one accountant for an event, or the reason why it refuses."""
    accountant = ACCOUNTANTS[name]
    try:
        value = _epsilon_by(accountant, event, delta)
    except Unsupported as refusal:
        return Row(name, accountant.title, None, str(refusal).split(". ")[0])
    note = ""
    if name == "rdp" and 0 < value < math.inf:
        order = rdp.best(event, delta).order
        note = "pure" if math.isinf(order) else f"order {order:.4g}"
    return Row(name, accountant.title, value, note)
