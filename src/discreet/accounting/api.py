"""The front door: what does this event cost, and which event costs this much?

`epsilon(event, delta=...)` is the tightest proved upper bound; `accountant=` names another route to one.
Every number is rounded towards less privacy. An event that an accountant cannot bound is refused by name,
never guessed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from .. import _require
from .._errors import Unsupported
from . import composition, gdp, pure, rdp, totals
from . import events as ev
from .events import Event, leaves
from .normal import normal
from .refusal import refuse


@dataclass(frozen=True, slots=True)
class Accountant:
    """A route from events to numbers.

    `delta` is None where only epsilon has a formula; then it is found by bisection.
    """

    name: str
    title: str
    epsilon: Callable[[Event, float], float]
    delta: Callable[[Event, float], float] | None


def _pld_epsilon(event: Event, delta: float) -> float:
    # the package that imports scipy: loaded when first needed
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
        Accountant("zcdp", "concentrated, tight conversion", totals.zcdp_epsilon, totals.zcdp_delta),
        Accountant("gdp", "Gaussian DP", gdp.epsilon, gdp.delta),
        Accountant("optimal", "optimal composition", composition.optimal, None),
        Accountant("advanced", "advanced composition", composition.advanced, None),
        Accountant("basic", "basic composition", composition.basic, None),
    )
}
TIGHTEST = "tightest"
# Up to this many parts the accountants of composition are tried beside the others; with more parts they take
# long, and the pairs behind the loss distribution know more.
_FEW = 8
# "advanced" and "basic" are never below "optimal"
_BEST = [a for name, a in ACCOUNTANTS.items() if name not in ("advanced", "basic")]


def _named(accountant: str) -> Accountant:
    _require.one_of([TIGHTEST, *ACCOUNTANTS], accountant=accountant)
    return ACCOUNTANTS[accountant]


def _check_event(event: Event) -> None:
    if not isinstance(event, Event):
        raise _require.fail("event", type(event).__name__, "an accounting event")


@_require.check_options
def epsilon(event: Event, *, delta: float, accountant: str = TIGHTEST) -> float:
    """Return the epsilon of an event at a delta: an upper bound by the named accountant, by default the
    tightest there is.

    Guarantee: the event is (epsilon, delta)-DP under its own neighbor relation. Infinite if no epsilon will
               do.
    Proof:     that of the accountant; "tightest" is the privacy loss distribution where that is exact, else
               the least of all.

    >>> from .events import Gaussian
    >>> round(epsilon(Gaussian(noise_multiplier=1.0), delta=1e-5, accountant="gdp"), 6)
    4.377178
    """
    _check_event(event)
    _require.probability(delta=delta)
    if accountant != TIGHTEST:
        return _epsilon_by(_named(accountant), event, float(delta))
    return _least(event, lambda a: _epsilon_by(a, event, float(delta)), _BEST)


def _epsilon_by(accountant: Accountant, event: Event, delta: float) -> float:
    """Return the epsilon of an event by one accountant, also at delta 0 and 1."""
    if delta >= 1:
        return 0.0
    if delta == 0:
        form = normal(event)
        exact = pure.epsilon_of(form.event)
        return exact if exact is not None and form.delta == 0 == form.distance else math.inf
    return _named_in_refusals(event, lambda: accountant.epsilon(event, delta), math.inf)


def _named_in_refusals(event: Event, price: Callable[[], float], worst: float) -> float:
    """Make a refusal name what the caller wrote, also where it was a part of its normal form that had no
    rule.

    What leaves the range of floats (an epsilon of a million, say) costs `worst`: nothing is claimed for it.
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


# Events whose loss distribution is that of the mechanism itself: where there are no others, no accountant can
# do better. Others may fall between the cells of its grid when there are only a few of them.
_EXACT = (ev.NoOp, ev.NonPrivate, ev.Gaussian)


def exact_by_pld(event: Event) -> bool:
    """Return whether the privacy loss distribution is exact up to discretization, so that nothing else need
    be tried."""
    parts = normal(event).parts
    inner = [part.event if isinstance(part, ev.PoissonSampled) else part for part in parts]
    return all(isinstance(part, _EXACT) for part in inner)


def _least(event: Event, price: Callable[[Accountant], float], routes: Iterable[Accountant]) -> float:
    """Return the least over these accountants; the privacy loss distribution alone where that is known to be
    the least."""
    if exact_by_pld(event) and math.isfinite(exact := price(ACCOUNTANTS["pld"])):
        return exact
    epsilons: list[float] = []
    many = sum(normal(event).parts.values()) > _FEW
    for accountant in routes:
        if accountant.delta is None and many and epsilons and math.isfinite(min(epsilons)):
            # the pairs behind the loss distribution know more than the (epsilon, delta) of each
            continue
        try:
            epsilons.append(price(accountant))
        except Unsupported:
            continue
    if not epsilons:
        raise refuse(event, TIGHTEST, "none of the accountants has a theorem for it")
    return min(epsilons)


@_require.check_options
def delta(event: Event, *, epsilon: float, accountant: str = TIGHTEST) -> float:
    """Return the delta of an event at an epsilon: an upper bound, as `epsilon` is.

    "tightest" is the least over the accountants with a formula for delta (not those of (epsilon, delta)
    pairs, which know less).
    """
    _check_event(event)
    _require.non_negative(epsilon=epsilon)
    if accountant != TIGHTEST:
        return _delta_by(_named(accountant), event, float(epsilon))
    direct = [a for a in ACCOUNTANTS.values() if a.delta is not None]
    least = _least(event, lambda a: _delta_by(a, event, float(epsilon)), direct)
    if least < 1 or not exact_by_pld(event):
        return least
    # the grid had nothing to say at this epsilon
    return _delta_by(ACCOUNTANTS["rdp"], event, float(epsilon))


def _delta_by(accountant: Accountant, event: Event, epsilon: float) -> float:
    """Return the delta of an event by one accountant; by bisection where it has only epsilon."""
    if accountant.delta is not None:
        rule = accountant.delta
        bound = min(1.0, _named_in_refusals(event, lambda: rule(event, epsilon), 1.0))
        return min(bound, _at_less(event, rule, epsilon)) if normal(event).distance > 0 else bound
    if _epsilon_by(accountant, event, 0.0) <= epsilon:
        return 0.0
    # logarithms of a delta that is too small, and of one that will do
    low, high = math.log(1e-300), 0.0
    if _epsilon_by(accountant, event, math.exp(low)) <= epsilon:
        return math.exp(low)
    while high - low > 1e-7:
        middle = (low + high) / 2
        enough = _epsilon_by(accountant, event, math.exp(middle)) <= epsilon
        low, high = (low, middle) if enough else (middle, high)
    return math.exp(high)


def _at_less(event: Event, rule: Callable[[Event, float], float], epsilon: float) -> float:
    """Return the least delta over smaller epsilons, where a distance is charged (1 + e^epsilon) times: delta
    never rises with epsilon."""
    from .conversion import minimum

    # Guarded like the price itself: where floats overflow, a grid of numbers that are none claims too little.
    def price(x: float) -> float:
        return _named_in_refusals(event, lambda: rule(event, x), 1.0)

    return minimum(price, 0.0, min(epsilon, 100.0), 12)[1]


@_require.check_options
def bounds(event: Event, *, delta: float) -> tuple[float, float]:
    """Return a proved interval for the least epsilon that holds for all mechanisms with this event: (lower,
    upper).

    No accountant, however clever, can charge less than `lower` for what this event says was done: some
    mechanism that the event describes really has that epsilon. Where none is known to cost anything (sparse
    vector), `lower` is that of the other events.
    """
    _check_event(event)
    _require.open_probability(delta=delta)
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
def tradeoff(event: Event, *, alpha: float, accountant: str = TIGHTEST) -> float:
    """Return the least type II error of any test, at type I error `alpha`, of whether one unit is in the
    data: a lower bound.

    An attacker with false-positive rate alpha has a true-positive rate of at most 1 - tradeoff.
    Proof: every (epsilon, delta) gives max(1 - delta - e^eps alpha, e^-eps (1 - delta - alpha)) (Wasserman &
    Zhou 2010; Dong, Roth & Su 2022, arXiv:1905.02383, equation 5); the best epsilon is searched. Exact by
    formula for Gaussians.
    """
    _check_event(event)
    _require.probability(alpha=alpha)
    alpha = float(alpha)
    form = normal(event)
    if form.delta == 0 == form.distance and all(isinstance(part, ev.Gaussian) for part in form.parts):
        return gdp.tradeoff(gdp.mu(event), alpha) if math.isfinite(gdp.mu(event)) else 0.0
    if alpha == 1:
        return 0.0
    if alpha == 0:
        always = pure.epsilon_of(form.event) is not None and form.distance == 0
        return max(0.0, 1.0 - form.delta) if always else 0.0
    return _best_line(lambda d: epsilon(event, delta=d, accountant=accountant), float(alpha))


# False-positive levels at which the trade-off is looked for first; the best of them is refined, so that more
# of them cost time and change little.
_LOOKS = (1e-10, 1e-8, 1e-6, 1e-5, 1e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.2, 0.35, 0.5, 0.75)


def _best_line(profile: Callable[[float], float], alpha: float) -> float:
    """Return the highest line at alpha over all (epsilon, delta) of the curve, given as epsilon(delta).

    The lines rise to one peak as delta grows, and fall: look until they fall, then narrow. Every delta gives
    a valid line.
    """
    from .conversion import minimum

    def height(log_delta: float) -> float:
        d = math.exp(log_delta)
        x = profile(d)
        # Beyond, e^x is near the largest float or above it, and this line claims nothing.
        steep = 1 - d - math.exp(x) * alpha if x <= 700 else 0.0
        return max(steep, math.exp(-x) * (1 - d - alpha))

    seen: list[float] = []
    for look in _LOOKS:
        seen.append(height(math.log(look)))
        if len(seen) > 2 and seen[-1] < max(seen):
            break
    best = max(range(len(seen)), key=lambda k: seen[k])
    near = [math.log(_LOOKS[k]) for k in (max(best - 1, 0), min(best + 1, len(_LOOKS) - 1))]
    height_at_best = -minimum(lambda t: -height(t), near[0], near[1], 11)[1]
    return max(0.0, max(height_at_best, seen[best]) - 1e-15)


def table() -> str:
    """Return the table event x accountant in Markdown, from the rules themselves, on one instance of every
    event."""
    from .examples import EXAMPLES

    head = ["event", *ACCOUNTANTS]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for name, event in EXAMPLES.items():
        cells = [_cell(accountant, event) for accountant in ACCOUNTANTS.values()]
        lines.append("| " + " | ".join([f"`{name}`", *cells]) + " |")
    return "\n".join(lines)


def _cell(accountant: Accountant, event: Event) -> str:
    """Return the epsilon of an event by one accountant as text."""
    try:
        value = _epsilon_by(accountant, event, 1e-6)
    except Unsupported:
        return "refused"
    return "infinite" if math.isinf(value) else f"{value:.3g}"
