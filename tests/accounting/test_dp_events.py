"""Events that both discreet and dp-accounting have: read, written, and priced alike."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from dp_accounting import dp_event
from dp_accounting.pld import pld_privacy_accountant
from dp_accounting.privacy_accountant import NeighboringRelation

from discreet import accounting as acc
from discreet._errors import DiscreetError, InvalidInput, Unsupported
from discreet._public import ADD_REMOVE, REPLACE, ZERO_OUT
from discreet.accounting import dp_events
from discreet.accounting.dp_events import _down, _up
from discreet.accounting.events import Event

GAUSS = acc.Gaussian(noise_multiplier=1.5)
BOTH = {
    "no-op": acc.NoOp(),
    "not private": acc.NonPrivate(),
    "gaussian": GAUSS,
    "laplace": acc.Laplace(noise_multiplier=2.0),
    "discrete laplace": acc.DiscreteLaplace(scale=Fraction(4), sensitivity=3),
    "zcdp": acc.ZCDP(rho=0.25),
    "composed": acc.compose([GAUSS, acc.Laplace(noise_multiplier=3.0), GAUSS]),
    "repeated": GAUSS.repeated(7),
    "sampled": GAUSS.sampled(0.125).repeated(10),
    "without replacement": acc.SampledWithoutReplacement(
        event=acc.Gaussian(noise_multiplier=1.0, neighbors=REPLACE), size=100, sample=10
    ),
    "truncated": acc.TruncatedPoisson(
        event=acc.Gaussian(noise_multiplier=1.0, neighbors=ZERO_OUT), rate=0.25, size=100, limit=50
    ),
    "best of poisson": acc.RepeatAndSelect(event=GAUSS, trials=acc.PoissonTrials(mean=4.0)),
    "best of geometric": acc.RepeatAndSelect(
        event=GAUSS, trials=acc.NegativeBinomialTrials(shape=1, gamma=Fraction(1, 4))
    ),
}


@pytest.mark.parametrize("event", BOTH.values(), ids=BOTH.keys())
def test_what_is_written_is_read_back(event: Event) -> None:
    written = event.to_dp_event()
    assert isinstance(written, dp_event.DpEvent)
    again = Event.from_dp_event(written, neighbors=event.neighbors)
    assert again.neighbors == event.neighbors
    assert again.to_dp_event() == written
    assert type(again) is type(event)


@pytest.mark.parametrize(("epsilon", "k"), [(1.0, 2), (0.01, 5), (3, 100), (Fraction(1, 3), 2)])
def test_randomized_response_is_never_cheaper_after_the_way_there_and_back(epsilon: float, k: int) -> None:
    event = acc.RandomizedResponse(epsilon=epsilon, categories=k)
    written = event.to_dp_event()
    assert written.noise_parameter == pytest.approx(k / (math.expm1(epsilon) + k), rel=1e-12)
    again = Event.from_dp_event(written)
    assert epsilon <= again.epsilon <= float(epsilon) * (1 + 1e-12)
    assert again.categories == k


def theirs(event: dp_event.DpEvent, relation: NeighboringRelation, delta: float) -> float:
    accountant = pld_privacy_accountant.PLDAccountant(relation)
    return float(accountant.compose(event).get_epsilon(delta))


PRICED = {
    "gaussian": dp_event.GaussianDpEvent(1.3),
    "laplace": dp_event.SelfComposedDpEvent(dp_event.LaplaceDpEvent(4.0), 10),
    "discrete laplace": dp_event.SelfComposedDpEvent(dp_event.DiscreteLaplaceDpEvent(0.25, 1), 10),
    "dp-sgd": dp_event.SelfComposedDpEvent(
        dp_event.PoissonSampledDpEvent(0.01, dp_event.GaussianDpEvent(1.0)), 500
    ),
    "mixed": dp_event.ComposedDpEvent([dp_event.GaussianDpEvent(2.0), dp_event.LaplaceDpEvent(3.0)]),
}


@pytest.mark.parametrize("event", PRICED.values(), ids=PRICED.keys())
def test_both_libraries_give_one_price(event: dp_event.DpEvent) -> None:
    ours = acc.epsilon(Event.from_dp_event(event), delta=1e-6)
    # theirs is rounded to a grid of 1e-4
    assert ours == pytest.approx(theirs(event, NeighboringRelation.ADD_OR_REMOVE_ONE, 1e-6), rel=1e-3)


def test_both_libraries_give_one_price_of_randomized_response() -> None:
    # One answer: of several (SelfComposedDpEvent), dp-accounting 0.6.0 counts only the first.
    event = dp_event.RandomizedResponseDpEvent(0.5, 4)
    ours = acc.epsilon(Event.from_dp_event(event, neighbors=REPLACE), delta=1e-6)
    assert ours == pytest.approx(theirs(event, NeighboringRelation.REPLACE_ONE, 1e-6), rel=1e-3)


def test_numbers_are_rounded_towards_the_higher_price() -> None:
    third = Fraction(1, 3)
    assert Fraction(_up(third)) >= third >= Fraction(_down(third))
    assert math.nextafter(_down(third), 1) == _up(third)
    assert _up(0.1) == _down(0.1) == 0.1
    assert Fraction(acc.Gaussian(noise_multiplier=third).to_dp_event().noise_multiplier) <= third
    assert Fraction(GAUSS.sampled(third).to_dp_event().sampling_probability) >= third


@pytest.mark.parametrize(
    "event",
    [
        acc.DiscreteGaussian(variance=4),
        acc.PureDP(epsilon=1),
        acc.ZCDP(rho=1, delta=1e-6),
        acc.compose([GAUSS, acc.PureDP(epsilon=1)]),
    ],
)
def test_an_event_that_they_do_not_have_is_refused(event: Event) -> None:
    with pytest.raises(Unsupported, match="dp-accounting has no event for"):
        event.to_dp_event()


@pytest.mark.parametrize(
    "event",
    [
        dp_event.UnsupportedDpEvent(),
        dp_event.ZCDpEvent(1.0, 0.1),
        dp_event.SampledWithReplacementDpEvent(10, 2, dp_event.GaussianDpEvent(1.0)),
        dp_event.RepeatAndSelectDpEvent(dp_event.GaussianDpEvent(1.0), 3.0, 0.5),
        dp_event.SelfComposedDpEvent(dp_event.SingleEpochTreeAggregationDpEvent(1.0, 4), 2),
    ],
)
def test_an_event_that_we_do_not_have_is_refused(event: dp_event.DpEvent) -> None:
    with pytest.raises(Unsupported, match="discreet has no event for"):
        Event.from_dp_event(event)


def test_something_else_is_refused() -> None:
    with pytest.raises(InvalidInput, match="event must be a DpEvent of dp-accounting, got 'str'"):
        Event.from_dp_event("gaussian")
    with pytest.raises(InvalidInput, match="neighbors must be one of"):
        Event.from_dp_event(dp_event.GaussianDpEvent(1.0), neighbors="other")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "numbers", "fact"),
    [
        ("DiscreteLaplaceDpEvent", (0.0, 1), "noise_parameter must be above zero"),
        ("RandomizedResponseDpEvent", (3.0, 2), "noise_parameter must be"),
        ("RandomizedResponseDpEvent", (-0.5, 2), "noise_parameter must be"),
        ("TruncatedSubsampledGaussianDpEvent", (100, 0.1, 20, 1.0), "neighbors must be zero_out"),
    ],
)
def test_numbers_that_mean_nothing_are_refused_by_name(name, numbers, fact):
    with pytest.raises(DiscreetError, match=fact):
        dp_events.read(getattr(dp_event, name)(*numbers), ADD_REMOVE)
    selected = dp_event.RepeatAndSelectDpEvent(dp_event.GaussianDpEvent(1.0), 0.0, 1)
    with pytest.raises(DiscreetError, match="mean must be above zero"):
        dp_events.read(selected, ADD_REMOVE)


def test_numbers_that_no_float_holds_are_written_towards_the_higher_price_or_refused():
    assert dp_events.write(acc.RandomizedResponse(epsilon=800)).noise_parameter == 0
    with pytest.raises(DiscreetError, match="hold floats"):
        dp_events.write(acc.ZCDP(rho=10**400))
