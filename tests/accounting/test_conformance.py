"""What every accountant must satisfy, on every event: a number or a refusal by name, monotone, and ordered as
theory says."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discreet import accounting as acc
from discreet._errors import Unsupported
from discreet.accounting.pricing import ACCOUNTANTS, exact_by_pld

from ..loops import for_each
from .zoo import ZOO

NAMES = list(ACCOUNTANTS)


# several tests look at the same prices
@cache
def price(event: acc.Event, accountant: str, delta: float = 1e-6) -> float | None:
    try:
        return acc.epsilon(event, delta=delta, accountant=accountant)
    except Unsupported:
        return None


@pytest.mark.parametrize("accountant", NAMES)
@for_each("name", ZOO)
def test_every_event_has_a_number_or_a_refusal_that_names_it(accountant: str, name: str) -> None:
    event = ZOO[name]
    value = price(event, accountant)
    if value is None:
        parts = {type(part).__name__ for part in acc.events.leaves(event)} | {type(event).__name__}
        with pytest.raises(Unsupported, match=f"({'|'.join(parts)}).*{accountant}"):
            acc.epsilon(event, delta=1e-6, accountant=accountant)
        return
    assert value >= 0
    assert math.isfinite(value) == (name != "non-private")


@pytest.mark.parametrize("accountant", NAMES)
@for_each("name", ZOO)
def test_more_delta_never_costs_more(accountant: str, name: str) -> None:
    values = [price(ZOO[name], accountant, delta) for delta in (1e-9, 1e-6, 1e-4, 1e-2)]
    known = [value for value in values if value is not None]
    assert len(known) in (0, 4)
    assert all(a >= b * (1 - 1e-6) for a, b in pairwise(known))


@pytest.mark.parametrize("accountant", NAMES)
@for_each("name", ZOO)
def test_composition_never_helps(accountant: str, name: str) -> None:
    once, thrice = price(ZOO[name], accountant), price(ZOO[name].repeated(3), accountant)
    assert (once is None) == (thrice is None)
    if once is not None and thrice is not None:
        assert thrice >= once * (1 - 1e-6)


@pytest.mark.parametrize("accountant", NAMES)
def test_the_order_of_composition_does_not_matter(accountant: str) -> None:
    events = [
        acc.PureDP(epsilon=0.1),
        acc.Gaussian(noise_multiplier=5.0),
        acc.ApproximateDP(epsilon=0.2, delta=1e-8),
    ]
    forwards, backwards = acc.compose(events), acc.compose(events[::-1])
    first, second = price(forwards, accountant), price(backwards, accountant)
    assert first == second or first == pytest.approx(second, rel=1e-9)


@pytest.mark.parametrize("accountant", NAMES)
@for_each("name", ZOO)
def test_delta_and_epsilon_are_inverse_upper_bounds(accountant: str, name: str) -> None:
    value = price(ZOO[name], accountant, 1e-4)
    if value is None or math.isinf(value) or value == 0:
        return
    back = acc.delta(ZOO[name], epsilon=value, accountant=accountant)
    assert back <= 1e-4 * (1 + 2e-3)  # the same bound, solved the other way


_NOISE = {
    "gaussian": lambda s: acc.Gaussian(noise_multiplier=s),
    "laplace": lambda s: acc.Laplace(noise_multiplier=s),
    "sampled": lambda s: acc.Gaussian(noise_multiplier=s).sampled(0.02).repeated(50),
    "sampled-laplace": lambda s: acc.Laplace(noise_multiplier=s).sampled(0.02).repeated(50),
    "discrete": lambda s: acc.DiscreteGaussian(variance=s * s, sensitivity=1),
}


@for_each("accountant", NAMES)
@for_each("make", _NOISE.values(), ids=_NOISE)
def test_more_noise_never_costs_more(make: Callable[[float], acc.Event], accountant: str) -> None:
    values = [price(make(s), accountant) for s in (0.7, 1.0, 1.9, 4.0, 20.0)]
    known = [value for value in values if value is not None]
    assert len(known) in (0, 5)
    assert all(a >= b * (1 - 1e-6) for a, b in pairwise(known))


@pytest.mark.parametrize("accountant", NAMES)
def test_a_larger_rate_never_costs_less(accountant: str) -> None:
    values = [
        price(acc.Gaussian(noise_multiplier=2.0).sampled(q).repeated(20), accountant)
        for q in (1e-4, 1e-2, 0.3)
    ]
    known = [value for value in values if value is not None]
    assert len(known) in (0, 3)
    assert all(a <= b * (1 + 1e-6) for a, b in pairwise(known))


@for_each("name", ZOO)
def test_the_tightest_is_never_above_any_accountant_and_is_pld_where_that_is_exact(name: str) -> None:
    values = {a: price(ZOO[name], a) for a in NAMES}
    best = acc.epsilon(ZOO[name], delta=1e-6)
    assert all(value is None or best <= value * (1 + 1e-4) for value in values.values()), values
    if exact_by_pld(ZOO[name]):
        assert best == values["pld"]


@for_each("name", ZOO)
def test_no_upper_bound_is_below_the_proved_lower_one(name: str) -> None:
    if price(ZOO[name], "pld") is None:
        return
    low, high = acc.bounds(ZOO[name], delta=1e-6)
    assert low <= high
    for accountant in NAMES:
        value = price(ZOO[name], accountant)
        assert value is None or value >= low * (1 - 1e-12), f"{accountant} claims {value}, below {low}"


@for_each("name", ZOO)
def test_optimal_is_below_advanced_is_below_basic(name: str) -> None:
    event = ZOO[name].repeated(10)
    optimal, advanced, basic = (price(event, a) for a in ("optimal", "advanced", "basic"))
    if optimal is None or advanced is None or basic is None:
        assert optimal is advanced is basic is None
        return
    assert optimal <= advanced * (1 + 1e-8)
    assert advanced <= basic * (1 + 1e-8)


_PIECES = st.one_of(
    st.floats(0.5, 30).map(lambda s: acc.Gaussian(noise_multiplier=s)),
    st.floats(0.5, 30).map(lambda s: acc.Laplace(noise_multiplier=s)),
    st.floats(0.001, 2).map(lambda e: acc.PureDP(epsilon=e)),
    st.floats(0.001, 1).map(lambda e: acc.ExponentialMechanism(epsilon=e)),
    st.floats(0.0001, 0.3).map(lambda r: acc.ZCDP(rho=r)),
    st.tuples(st.floats(0.5, 10), st.floats(1e-5, 0.9)).map(
        lambda t: acc.Gaussian(noise_multiplier=t[0]).sampled(t[1])
    ),
    st.tuples(st.floats(0.01, 1), st.floats(0, 1e-9)).map(
        lambda t: acc.ApproximateDP(epsilon=t[0], delta=t[1])
    ),
)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.lists(_PIECES, min_size=1, max_size=4), _PIECES)
def test_one_more_event_never_makes_it_cheaper(events: list[acc.Event], more: acc.Event) -> None:
    for accountant in ("rdp", "zcdp", "gdp", "basic"):
        before, after = (
            price(acc.compose(events), accountant),
            price(acc.compose([*events, more]), accountant),
        )
        if before is not None and after is not None:
            assert after >= before * (1 - 1e-6)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.lists(_PIECES, min_size=1, max_size=4))
def test_rdp_is_never_above_zcdp(events: list[acc.Event]) -> None:
    event = acc.compose(events)
    slow, quick = price(event, "zcdp"), price(event, "rdp")
    if slow is not None and quick is not None:
        assert quick <= slow * (1 + 1e-4)


@settings(max_examples=5, deadline=None, derandomize=True)
@given(st.lists(_PIECES, min_size=1, max_size=3), st.integers(1, 300), st.floats(-12, -2))
def test_random_compositions_never_beat_the_proved_lower_bound(
    events: list[acc.Event], times: int, log_delta: float
) -> None:
    event, delta = acc.compose(events).repeated(times), 10**log_delta
    low, high = acc.bounds(event, delta=delta)
    assert low <= high
    for accountant in NAMES[1:]:
        value = price(event, accountant, delta)
        assert value is None or value >= low * (1 - 1e-12), accountant


@pytest.mark.parametrize("rate", [1e-6, 1e-3, 0.5])
@pytest.mark.parametrize("noise", [0.3, 2.0, 1000.0])
@pytest.mark.parametrize("steps", [1, 1000, 10**7])
def test_renyi_at_the_corners_of_the_grid(rate: float, noise: float, steps: int) -> None:
    event = acc.Gaussian(noise_multiplier=noise).sampled(rate).repeated(steps)
    values = [price(event, "rdp", delta) for delta in (1e-2, 1e-6, 1e-15)]
    assert all(value is not None and math.isfinite(value) for value in values)
    assert values == sorted(values, key=lambda v: v or 0.0)


@pytest.mark.parametrize("accountant", NAMES)
def test_extreme_deltas(accountant: str) -> None:
    event = acc.PureDP(epsilon=0.5).repeated(2)
    if price(event, accountant) is None:
        return
    assert acc.epsilon(event, delta=0, accountant=accountant) == 1.0
    assert acc.epsilon(event, delta=1, accountant=accountant) == 0.0
    assert acc.epsilon(acc.Gaussian(noise_multiplier=1.0), delta=0, accountant=accountant) == math.inf


@pytest.mark.parametrize("accountant", NAMES)
def test_own_deltas_can_exhaust_delta(accountant: str) -> None:
    event = acc.ApproximateDP(epsilon=0.1, delta=1e-6).repeated(10)
    if price(event, accountant, 1e-3) is None:
        return
    assert price(event, accountant, 5e-6) == math.inf
    assert (price(event, accountant, 2e-5) or 0) < math.inf


@pytest.mark.parametrize("name", ["gaussian", "random-allocation", "rdp-point", "repeat-and-select"])
def test_the_smallest_delta_of_all_has_an_end(name):
    """Bisection for a Gaussian went on for ever, and a part of such a delta is zero, which has no
    logarithm."""
    small, smallest = (acc.epsilon(ZOO[name], delta=d, accountant="pld") for d in (1e-300, 5e-324))
    assert 0 < small <= smallest
