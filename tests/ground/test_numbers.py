"""Directed rounding and the checks of arguments."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from discreet import InvalidInput, _require, _round

rationals = st.fractions(min_value=-(10**40), max_value=10**40)


@given(rationals)
def test_up_and_down_bracket_and_are_the_nearest_that_do(x):
    above, below = _round.up(x), _round.down(x)
    assert Fraction(below) <= x <= Fraction(above)
    assert above == below or math.nextafter(below, math.inf) == above


@given(rationals, st.fractions(min_value=Fraction(1, 10**6), max_value=10**6))
def test_ceil_div_is_exact(a, b):
    if b > 0:
        quotient = _round.ceil_div(a, b)
        assert (quotient - 1) * b < a <= quotient * b


@given(st.floats(min_value=1e-300, max_value=1e300), st.integers(min_value=1, max_value=13))
def test_an_amount_shows_itself_rounded_and_keeps_its_value(value, digits):
    spent, left = _round.UpperAmount(value), _round.LowerAmount(value)
    assert spent == left == value
    assert (spent + 0).__class__ is float
    error = 1e-13 * value  # the fourteenth digit
    for text, step in ((repr(spent), 1e-9), (f"{spent:.{digits}g}", 10.0 ** (1 - digits))):
        assert value - error <= float(text) <= value * (1 + step) + error
    for text, step in ((str(left), 1e-9), (f"{left:.{digits}g}", 10.0 ** (1 - digits))):
        assert value * (1 - step) - error <= float(text) <= value + error
    assert [str(_round.UpperAmount(x)) for x in (0.0, math.inf, 1.0999999999999965)] == ["0.0", "inf", "1.1"]
    # more digits than the module `decimal` computes with
    assert f"{_round.UpperAmount(1.5):.30g} {_round.LowerAmount(1.5):.17g}" == "1.5 1.5"
    assert f"{spent:.2f}" == f"{value:.2f}"


def test_huge_integers_round_to_infinity_or_the_largest_float():
    assert _round.up(10**400) == math.inf
    assert _round.down(10**400) == np.finfo(float).max
    assert _round.up(-(10**400)) == -np.finfo(float).max


def test_nan_is_not_a_number_for_any_check():
    for check in (
        _require.number,
        _require.finite,
        _require.positive,
        _require.non_negative,
        _require.probability,
    ):
        with pytest.raises(InvalidInput, match="scale"):
            check(scale=math.nan)


@pytest.mark.parametrize("bad", [True, "1", None, 1 + 2j, [1]])
def test_what_is_no_number_is_refused_by_name_and_value(bad):
    with pytest.raises(InvalidInput, match="epsilon must be a number"):
        _require.positive(epsilon=bad)


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (_require.finite, [-1, 0.5, Fraction(1, 3)], [math.inf, -math.inf]),
        (_require.positive, [1, 1e-300, np.float64(2)], [0, -1, math.inf]),
        (_require.non_negative, [0, 2], [-1e-9, math.inf]),
        (_require.probability, [0, 1, 0.5], [-0.1, 1.1]),
        (_require.open_probability, [0.5, Fraction(1, 3)], [0, 1]),
    ],
)
def test_checks_accept_and_refuse(check, good, bad):
    for value in good:
        check(x=value)
    for value in bad:
        with pytest.raises(InvalidInput, match="x must be"):
            check(x=value)


def test_integers():
    _require.integer(n=np.int64(3), at_least=0)
    for bad in (1.0, True, "3"):
        with pytest.raises(InvalidInput, match="n must be an integer"):
            _require.integer(n=bad)
    with pytest.raises(InvalidInput, match="at least 2"):
        _require.integer(n=1, at_least=2)


def test_exact_takes_a_float_at_its_binary_value():
    assert _require.exact(0.1, "x") == Fraction(0.1) != Fraction(1, 10)
    assert _require.exact(np.int32(3), "x") == 3
    with pytest.raises(InvalidInput, match="finite"):
        _require.exact(math.inf, "x")


def test_an_error_names_both_values_and_has_its_fields():
    with pytest.raises(InvalidInput, match="lower must be below upper, got 3 and 2") as raised:
        _require.ordered(lower=3, upper=2)
    assert (raised.value.charged, raised.value.remedy, raised.value.option) == (None, "", None)
    with pytest.raises(InvalidInput, match=r"^epsilon must be above zero, got -1\.$") as raised:
        _require.positive(epsilon=-1)
    assert raised.value.option == "epsilon"
