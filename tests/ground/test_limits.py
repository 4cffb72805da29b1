"""Limits stand on fields and parameters, and one walker checks them: its laws, on classes made here."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import pytest

from discreet import _require
from discreet._errors import Halted, InvalidInput, UnknownOption
from discreet._require import (
    EXACT,
    FLOAT,
    LISTED,
    NON_EMPTY,
    NON_NEGATIVE,
    OPEN_PROBABILITY,
    POSITIVE,
    PRICE,
    Limit,
    Real,
    at_least,
    at_most,
)

if TYPE_CHECKING:
    from discreet._require import PROBABILITY


class Side(StrEnum):
    LEFT = "left"
    RIGHT = "right"


def _even(**named: int) -> None:
    for name, value in named.items():
        if value % 2:
            raise _require.fail(name, value, "even")


@_require.checked
@dataclass(frozen=True, slots=True)
class Noise:
    scale: Annotated[Fraction, EXACT, POSITIVE]
    count: Annotated[int, at_least(1), at_most(1000)] = 1
    side: Side = Side.LEFT
    kind: Literal["sum", "mean"] = "sum"
    share: Annotated[float, FLOAT, OPEN_PROBABILITY] | None = None
    names: Annotated[tuple[str, ...], LISTED] = ()
    parts: tuple[Annotated[Fraction, EXACT, PRICE], ...] = ()
    exact: bool = False
    even: Annotated[int, Limit(_even)] = 0


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("scale", "0.5", "scale must be a number, got '0.5'."),
        ("scale", True, "scale must be a number, got True."),
        ("scale", float("nan"), "scale must be a number, got nan."),
        ("scale", float("inf"), "scale must be finite, got inf."),
        ("scale", -1, "scale must be above zero, got -1."),
        ("scale", -0.1, "scale must be above zero, got -0.1."),
        ("scale", Fraction(-1, 3), "scale must be above zero, got Fraction(-1, 3)."),
        ("count", 0, "count must be an integer of at least 1, got 0."),
        ("count", 1.0, "count must be an integer, got 1.0."),
        ("count", True, "count must be an integer, got True."),
        ("count", 1001, "count must be at most 1,000, got 1001."),
        ("side", "up", "side must be one of left, right, got 'up'."),
        ("kind", "median", "kind must be 'sum' or 'mean', got 'median'."),
        ("share", 1.0, "share must be strictly between 0 and 1, got 1.0."),
        ("names", "abc", "names must be a list, got 'abc'."),
        ("parts", [0.5, -1], r"parts[1] must be above zero, got -1."),
        ("parts", 0.5, "parts must be a list, got 0.5."),
        ("exact", 1, "exact must be True or False, got 1."),
        ("exact", "no", "exact must be True or False, got 'no'."),
        ("even", 3, "even must be even, got 3."),
    ],
)
def test_a_value_outside_the_declared_limit_is_refused_with_name_limit_and_value(
    field: str, value: Any, message: str
) -> None:
    with pytest.raises(InvalidInput) as error:
        Noise(**{"scale": 1, field: value})
    assert str(error.value) == message
    assert error.value.option == field.partition("[")[0]


def test_what_a_declaration_converts_is_of_the_declared_type() -> None:
    noise = Noise(0.1, np.int64(3), "right", share=Fraction(1, 4), names=["a"], parts=[np.float64(0.5)])  # type: ignore[arg-type]
    assert (noise.scale, type(noise.scale)) == (Fraction(0.1), Fraction)
    assert type(noise.count) is int
    assert noise.side is Side.RIGHT
    assert (noise.share, type(noise.share)) == (0.25, float)
    assert noise.names == ("a",)
    assert noise.parts == (Fraction(1, 2),)


def test_a_misspelt_missing_or_superfluous_option_is_refused() -> None:
    with pytest.raises(UnknownOption, match=r"no option 'scael'\. Did you mean 'scale'\?"):
        Noise(scael=1)  # type: ignore[call-arg]
    with pytest.raises(UnknownOption, match="Noise needs scale"):
        Noise()  # type: ignore[call-arg]
    with pytest.raises(UnknownOption, match="takes 9 values without a name, got 10"):
        Noise(1, *range(9))  # type: ignore[arg-type]


def test_a_subclass_keeps_limits_and_may_declare_others() -> None:
    @_require.checked
    @dataclass(frozen=True)
    class Wider(Noise):
        count: Annotated[int, at_least(0)] = 0

    assert Wider(scale=1, count=5000).count == 5000
    with pytest.raises(InvalidInput, match="scale must be above zero"):
        Wider(scale=0)


def test_parameters_are_checked_and_handed_on_unchanged() -> None:
    @_require.check_options
    def ask(epsilon: Annotated[Real, PRICE], groups: Annotated[list[int], NON_EMPTY], words: str = "") -> Any:
        return epsilon, groups, words

    assert ask(0.5, [1]) == (0.5, [1], "")
    for arguments, message in (
        ((0, [1]), "epsilon must be above zero, got 0"),
        ((1e101, [1]), "epsilon must be between"),
        ((1, []), "groups must not be empty"),
        ((1, [1], 3), "words must be a text, got 3"),
    ):
        with pytest.raises(InvalidInput, match=message):
            ask(*arguments)


def test_a_limit_on_a_parameter_does_not_replace_the_check_of_its_type() -> None:
    @_require.check_options
    def bound(delta: Annotated[float, NON_NEGATIVE]) -> float:
        return float(delta)

    with pytest.raises(
        InvalidInput, match="delta must be a number that a float holds, got a value of type int"
    ):
        bound(10**5000)


def test_a_tuple_without_numbers_of_numpy_stays_the_same_object() -> None:
    given = (object(), 1, (2.5, "a"))
    assert _require.plain(given) is given
    assert _require.plain((np.int8(3), 1)) == (3, 1)
    assert type(_require.plain((np.int8(3), 1))[0]) is int


def test_a_limit_that_only_type_checkers_import_is_an_error_and_not_no_limit() -> None:
    @_require.checked
    @dataclass
    class Careless:
        share: Annotated[float, PROBABILITY]

    with pytest.raises(TypeError, match="not imported when the program runs"):
        Careless(0.5)


def test_what_cannot_be_converted_is_refused_and_our_own_errors_pass() -> None:
    with pytest.raises(InvalidInput, match="numbers are needed"), _require.refusing("numbers are needed."):
        float("ten")
    refusal = _require.fail("times", "ten", "a number")
    with pytest.raises(InvalidInput, match="times must be a number"), _require.refusing(refusal, KeyError):
        {}["ten"]
    with pytest.raises(Halted, match="over"), _require.refusing("numbers are needed."):
        raise Halted("over.")
    with pytest.raises(KeyError, match="ten"), _require.refusing("numbers are needed."):
        {}["ten"]
