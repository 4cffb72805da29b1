"""Events: frozen, hashable, there and back through JSON, and refused for relations their theorem is not
about."""

from __future__ import annotations

import json

import pytest

from discreet import accounting as acc
from discreet._errors import InvalidInput, WrongRelation

from ..loops import for_each
from .zoo import ZOO


@for_each("event", ZOO.values(), ids=ZOO.keys())
def test_json_round_trip_is_exact(event: acc.Event) -> None:
    assert acc.from_json(json.loads(json.dumps(event.to_json()))) == event


@for_each("event", ZOO.values(), ids=ZOO.keys())
def test_equal_events_have_equal_hashes(event: acc.Event) -> None:
    again = acc.from_json(event.to_json())
    assert hash(again) == hash(event)
    assert acc.compose([event, again]) == acc.compose([event.repeated(2)])


def test_every_event_class_is_in_the_zoo() -> None:
    classes = {
        cls
        for name in acc.__all__
        if isinstance(cls := getattr(acc, name), type) and issubclass(cls, acc.Event) and cls is not acc.Event
    }
    assert classes == {type(event) for event in ZOO.values()}


@pytest.mark.parametrize("neighbors", ["add_remove", "zero_out"])
def test_sampling_without_replacement_is_refused_unless_replace(neighbors: str) -> None:
    inner = acc.Gaussian(noise_multiplier=1.0, neighbors=neighbors)  # type: ignore[arg-type]
    with pytest.raises(WrongRelation, match="replace"):
        acc.SampledWithoutReplacement(event=inner, size=100, sample=10)


@pytest.mark.parametrize("neighbors", ["add_remove", "zero_out"])
def test_shuffling_is_refused_unless_replace(neighbors: str) -> None:
    with pytest.raises(WrongRelation, match="shuffling"):
        acc.Shuffled(epsilon=1.0, reports=100, neighbors=neighbors)  # type: ignore[arg-type]


def test_random_allocation_is_refused_for_replace_and_for_other_noise() -> None:
    with pytest.raises(WrongRelation, match="allocation"):
        acc.RandomAllocation(event=acc.Gaussian(noise_multiplier=1.0, neighbors="replace"), steps=10)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="Gaussian"):
        acc.RandomAllocation(event=acc.Laplace(noise_multiplier=1.0), steps=10)


@pytest.mark.parametrize("neighbors", ["add_remove", "replace"])
def test_truncated_poisson_is_refused_unless_zero_out(neighbors: str) -> None:
    inner = acc.Gaussian(noise_multiplier=1.0, neighbors=neighbors)  # type: ignore[arg-type]
    with pytest.raises(WrongRelation, match="truncated"):
        acc.TruncatedPoisson(event=inner, rate=0.1, size=100, limit=20)


def test_events_of_different_relations_do_not_compose() -> None:
    with pytest.raises(WrongRelation, match="events for different neighbor relations"):
        acc.compose([acc.PureDP(epsilon=1), acc.PureDP(epsilon=1, neighbors="replace")])  # type: ignore[arg-type]


@for_each(
    "make",
    [
        lambda: acc.SampledWithoutReplacement(
            event=acc.PureDP(epsilon=1, neighbors="replace"), size=10, sample=11
        ),
        lambda: acc.RandomAllocation(event=acc.Gaussian(noise_multiplier=1.0), steps=3, selected=4),
        lambda: acc.NoisyMax(epsilon=1, noise="cauchy"),
        lambda: acc.RDPPoint(order=1, epsilon=1),
        lambda: acc.geometric(1.0),
        lambda: acc.NegativeBinomialTrials(shape=-1, gamma=0.5),
        lambda: acc.Thresholded(event=acc.PureDP(epsilon=1), delta=2.0),
        lambda: acc.SparseVector(threshold_epsilon=0, query_epsilon=1),
        lambda: acc.CorrelatedGaussian(noise_multiplier=1.0, steps=2, participation="often"),  # type: ignore[arg-type]
        lambda: acc.RepeatAndSelect(event=acc.PureDP(epsilon=1), trials=3),  # type: ignore[arg-type]
        lambda: acc.Gaussian(noise_multiplier=float("nan")),
    ],
)
def test_nonsense_is_refused_at_construction(make: object) -> None:
    with pytest.raises(InvalidInput, match="got"):
        make()  # type: ignore[operator]
