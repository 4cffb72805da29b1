"""Nonsense in any field of the parts of training is refused in words of ours."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import nn

from discreet import Bounds, InvalidInput, Public
from discreet._errors import DiscreetError
from discreet.learning import (
    SGD,
    Adam,
    Adaptive,
    Augment,
    Automatic,
    BallsInBins,
    Dense,
    Flat,
    FlipAndShift,
    PerLayer,
    Poisson,
    Toeplitz,
    Trainer,
    TruncatedPoisson,
    smallest_limit,
    warmup_cosine,
)
from discreet.learning.training.gradient_noise import GradientGrid
from discreet.learning.training.schedules import Cyclic, WithoutReplacement, build_schedule
from discreet.tabular import PrivateScaler, Scaling

from ..contracts.test_bad_input import NONSENSE

THINGS: list[Any] = [
    SGD(lr=0.1),
    Adam(),
    Adaptive(),
    Augment(function=FlipAndShift(), times=2),
    Automatic(),
    BallsInBins(bins=2, epochs=1, divisor=3.0),
    Cyclic(bins=2, epochs=2, divisor=3.0),
    Dense(rows=((1.0,), (0.5, 1.0))),
    Flat(clip=1.0),
    FlipAndShift(),
    GradientGrid.of(1.0, 10),
    PerLayer(clip=1.0),
    Poisson(rate=Fraction(1, 2), steps=3, divisor=2.0),
    PrivateScaler(public=Public(schema={"x": Bounds(0, 1)}), columns=("x",), rho=0.1),
    Scaling(columns=("x",), means=(0.0,), deviations=(1.0,), lower=(0.0,), upper=(1.0,)),
    Toeplitz(coefficients=(1.0, 0.5)),
    TruncatedPoisson(rate=Fraction(1, 2), size=10, limit=8, steps=3),
    WithoutReplacement(sample=2, size=10, steps=3),
]


@pytest.mark.parametrize("thing", THINGS, ids=lambda thing: type(thing).__name__)
@pytest.mark.filterwarnings("error")
def test_nonsense_in_a_field_is_refused_with_an_error_of_ours_or_does_no_harm(thing: Any) -> None:
    escaped = []
    for name, value in ((field.name, value) for field in dataclasses.fields(thing) for value in NONSENSE):
        try:
            made = dataclasses.replace(thing, **{name: value})
            if isinstance(made, PrivateScaler):
                assert made.event
        except DiscreetError:
            pass
        except Exception as error:
            escaped.append(f"{name}={value!r}: {type(error).__name__}: {error}")
    assert not escaped, "\n".join(escaped)


def test_settings_that_a_schedule_has_already_are_refused_beside_it() -> None:
    plan = Poisson(rate=Fraction(1, 2), steps=3, divisor=2.0)
    for more in ({"limit": 3}, {"strategy": "square_root"}, {"batch": 2}, {"rate": 0.5}, {"epochs": 3}):
        with pytest.raises(InvalidInput, match="belongs to the schedule"):
            build_schedule(plan, size=4, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [
        # Noise that float32 rounds to zero, or to infinity; noise beyond the integers of a grid.
        {"clip": 1e-45},
        {"clip": Adaptive(clip=1e-15), "noise_multiplier": 1e-30},
        {"clip": 1e30},
        {"noise_multiplier": 1e308, "clip": 100.0},
        {"noise_multiplier": 1e300, "noise": "discrete"},
    ],
)
def test_noise_that_its_numbers_cannot_hold_is_refused(options: dict[str, Any]) -> None:
    settings: dict[str, Any] = {"noise_multiplier": 1.0, "n": 8, "batch": 4, "steps": 2}
    with pytest.raises(InvalidInput, match=r"(clip|noise_multiplier) must be"):
        Trainer(nn.Linear(2, 2), nn.CrossEntropyLoss(), **(settings | options))


@pytest.mark.parametrize("count", [1, 2])
def test_too_few_made_up_examples_are_refused_as_that(count: int) -> None:
    with pytest.raises(InvalidInput, match="too few"):
        Trainer(
            nn.Linear(3, 2),
            nn.CrossEntropyLoss(),
            public=Public(size=100),
            noise_multiplier=1.0,
            batch=10,
            steps=2,
            synthetic=(torch.rand(count, 3), torch.zeros(count, dtype=torch.int64)),
        )


@pytest.mark.parametrize("rate", [2, math.nan, -1, "a", None])
def test_a_limit_for_a_rate_that_is_no_probability_is_refused(rate: Any) -> None:
    """It was the whole size for the first three, and a ValueError or TypeError for the others."""
    with pytest.raises(InvalidInput, match="rate"):
        smallest_limit(size=10, rate=rate, steps=3, epsilon=1, delta=1e-5)


@pytest.mark.parametrize("warmup", [-1, None, 0.5])
def test_a_warmup_that_is_no_number_of_steps_is_refused(warmup: Any) -> None:
    with pytest.raises(InvalidInput, match="warmup"):
        warmup_cosine(5, warmup)


def test_an_adaptive_clip_stays_among_those_that_are_allowed() -> None:
    rule = Adaptive(clip=1e-14, rate=1.0)
    assert Flat(clip=rule.next_clip(2.0**-50, 1e9, 1.0)).clip == 2.0**-50
    assert Flat(clip=Adaptive(clip=1e14).next_clip(1e15, -1e9, 1.0)).clip == 2.0**50


@pytest.mark.parametrize("kind", ["poisson", "cyclic", "balls_in_bins"])
@pytest.mark.parametrize("rate", [0, -0.5, 2])
def test_a_rate_that_is_no_probability_above_zero_is_refused(kind: str, rate: float) -> None:
    with pytest.raises(InvalidInput, match="rate must be"):
        build_schedule(kind, size=10, rate=rate, epochs=2)
