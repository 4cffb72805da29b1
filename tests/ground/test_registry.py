"""Descriptions: exact both ways, closed, and checked by the class itself."""

import dataclasses
import json
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from discreet import (
    ADD_REMOVE,
    REPLACE,
    Bounds,
    Categories,
    DescriptionError,
    InvalidInput,
    Public,
    Unit,
    _registry,
)
from discreet import accounting as acc
from discreet._registry import described, from_json, registered, to_json

from ..loops import for_each

numbers = st.one_of(
    st.integers(min_value=1, max_value=10**30),
    st.fractions(min_value=Fraction(1, 10**9), max_value=10**9).filter(lambda x: x > 0),
    st.floats(min_value=1e-300, max_value=1e300),
)


def through_text(value):
    return from_json(json.loads(json.dumps(to_json(value))))


@given(numbers)
def test_a_number_survives_the_trip_exactly_with_its_type(x):
    back = through_text(acc.PureDP(epsilon=x))
    assert back == acc.PureDP(epsilon=x)
    assert type(back.epsilon) is type(x)


def test_public_facts_survive_the_trip():
    public = Public(
        schema={"age": Bounds(0, Fraction(1, 3)), "sex": Categories(["f", "m"])},
        unit=Unit("id"),
        neighbors=REPLACE,
        size=7,
    )
    assert through_text(public) == public
    assert hash(through_text(public)) == hash(public)


def test_events_nest():
    event = acc.compose(
        [acc.Gaussian(noise_multiplier=1.1).sampled(0.25).repeated(5), acc.PureDP(epsilon=Fraction(1, 3))]
    )
    assert through_text(event) == event


@for_each(
    ("data", "fact"),
    [
        ({"type": "os.system"}, "is not a known type"),
        ({"type": "accounting.NoSuch"}, "is not a known type"),
        ({"type": 3}, "is not a known type"),
        ({}, "is not a known type"),
        ({"type": "accounting.PureDP", "epsilon": 1, "extra": 2}, "PureDP has no field"),
        ({"type": "accounting.PureDP"}, "PureDP cannot be made from the fields"),
        ({"fraction": "1/0"}, "a fraction is written as"),
        ({"fraction": "one third"}, "a fraction is written as"),
        ({"fraction": 3}, "a fraction is written as"),
        ({"float": "nan"}, "is not a known type"),
    ],
)
def test_what_is_not_exactly_a_known_thing_is_refused(data, fact):
    with pytest.raises(DescriptionError, match=fact):
        from_json(data)


def test_a_released_value_has_no_description():
    """The tag of a named tuple ended in a TypeError."""
    with pytest.raises(DescriptionError, match="no JSON description"):
        from_json({"type": "mechanisms.SanitizedFigure"})


def test_a_description_with_bad_values_is_refused_by_the_class():
    with pytest.raises(InvalidInput, match="epsilon"):
        from_json({"type": "accounting.PureDP", "epsilon": -1})


def test_classes_of_other_packages_cannot_enter():
    class Stranger:
        pass

    with pytest.raises(DescriptionError, match="closed"):
        described("accounting.Stranger")(Stranger)
    assert Stranger not in registered().values()


def test_callables_have_no_description():
    with pytest.raises(DescriptionError, match="trusted code"):
        to_json(lambda x: x)


def test_relation_is_written_as_its_word():
    assert to_json(acc.NoOp(neighbors=ADD_REMOVE))["neighbors"] == "add_remove"


def test_a_class_may_be_renamed():
    name, module = acc.PureDP.__name__, acc.PureDP.__module__
    try:
        acc.PureDP.__name__, acc.PureDP.__module__ = "Pure", "discreet.elsewhere"
        assert to_json(acc.PureDP(epsilon=1))["type"] == "accounting.PureDP"
        assert through_text(acc.PureDP(epsilon=1)) == acc.PureDP(epsilon=1)
    finally:
        acc.PureDP.__name__, acc.PureDP.__module__ = name, module


def test_a_tag_belongs_to_one_class():
    class Other:
        __module__ = "discreet.accounting.other"

    with pytest.raises(DescriptionError, match="needs a tag"):
        described(Other)
    with pytest.raises(DescriptionError, match="two classes"):
        described("accounting.PureDP")(Other)
    assert registered()["accounting.PureDP"] is acc.PureDP


def test_a_described_class_is_a_frozen_dataclass_with_slots_and_keywords_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_registry, "_CLASSES", {})
    monkeypatch.setattr(_registry, "_TAGS", {})

    class Plain:
        size: int = 1

    Plain.__module__, Plain.__qualname__ = "discreet.mechanisms", "Plain"
    made: type = described("mechanisms.Plain")(Plain)
    assert "size" in vars(made)["__slots__"]
    with pytest.raises(dataclasses.FrozenInstanceError, match="size"):
        made(size=2).size = 3
    with pytest.raises(InvalidInput, match="Plain"):
        made(2)
