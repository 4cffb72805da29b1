"""Nonsense in any field of anything with a description is refused in words of ours, before anything is drawn
or read."""

from __future__ import annotations

import dataclasses
import datetime
import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from discreet._errors import DescriptionError, DiscreetError, InvalidInput
from discreet._public import Bounds, Public
from discreet._registry import from_json, to_json
from discreet._require import plain
from discreet.mechanisms import IntegerGaussian, IntegerLaplace, Sensitivity, SparseVector
from discreet.mechanisms.protocols import BaseMechanism

from .test_mechanisms import CASES

NONSENSE: tuple[Any, ...] = (
    *(None, True, -1, 0, 2.5, math.nan, math.inf, -math.inf, 10**400, -(10**400), 1e-320, 1e308),
    *(Fraction(1, 10**400), Decimal("1.5"), 1j, "x", "", b"x", (), [1], {}, {"a": 1}, object(), int, len),
    *(
        np.float32("inf"),
        np.float32("nan"),
        np.int8(3),
        np.True_,
        np.longdouble(1.5),
        np.array([1.0, 2.0]),
        np.array(3),
    ),
    *(datetime.date(2020, 1, 31), Public(), Bounds(0, 1)),
)


def one_of_each() -> list[Any]:
    """One object of each class that occurs in a case: mechanisms, and what they are made of."""
    found: dict[type, Any] = {}
    for case in CASES:
        inside = [getattr(case.mechanism, field.name) for field in dataclasses.fields(case.mechanism)]
        for thing in (case.mechanism, *inside):
            if dataclasses.is_dataclass(thing) and type(thing).__module__.startswith(
                ("discreet.mechanisms", "discreet.adaptive")
            ):
                found.setdefault(type(thing), thing)
    return list(found.values())


@pytest.mark.parametrize("thing", one_of_each(), ids=lambda thing: type(thing).__name__)
@pytest.mark.filterwarnings("error")
def test_nonsense_in_a_field_is_refused_with_an_error_of_ours_or_does_no_harm(thing: Any) -> None:
    escaped = []
    for name, value in ((field.name, value) for field in dataclasses.fields(thing) for value in NONSENSE):
        try:
            made = dataclasses.replace(thing, **{name: value})
            _ = getattr(made, "event", None)
            if isinstance(made, BaseMechanism) and made.error is not None:
                made.error(0.9)
        except DiscreetError:
            pass
        except Exception as error:
            escaped.append((name, value, error))
    assert escaped == []


def test_numbers_of_numpy_become_plain_so_that_no_price_wraps_around() -> None:
    wide = Sensitivity(
        linf=np.int64(2**32 + 1), l0=np.uint8(200)
    )  # squared in int64: 2**33 + 1; 2 * 200 in uint8: 144
    assert wide == Sensitivity(linf=2**32 + 1, l0=200)
    assert wide.l2_squared == 200 * (2**32 + 1) ** 2
    assert IntegerGaussian(variance=1, linf=np.int8(100)).l2_squared == 10_000
    assert IntegerLaplace(scale=np.float32(1.5), sensitivity=np.uint8(200)) == IntegerLaplace(
        scale=1.5, sensitivity=200
    )
    plainly = SparseVector(public=Public(), threshold=5, epsilon=1, positives=200, split=(1, 1))
    assert (
        SparseVector(public=Public(), threshold=np.int64(5), epsilon=1, positives=np.uint8(200), split=(1, 1))
        == plainly
    )
    assert plainly.scales == (2, 800, None)
    assert type(plain(np.float32(0.1))) is float
    assert plain((np.int8(1), 2)) == (1, 2)


def test_a_description_that_makes_no_sense_is_refused_as_a_description() -> None:
    described = to_json(Bounds(0, 1))
    with pytest.raises(DiscreetError):
        from_json({**described, "lower": {"type": "public.Text"}})
    with pytest.raises(DescriptionError, match=r"public\.Categories cannot be made"):
        from_json({"type": "public.Categories"})


def test_an_infinite_number_of_numpy_is_not_finite() -> None:
    with pytest.raises(InvalidInput, match="finite"):
        IntegerLaplace(scale=np.float32("inf"))
