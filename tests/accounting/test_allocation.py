"""Random allocation: the exact curve against integrals, against one step, and its place among the other
bounds."""

from __future__ import annotations

import math

import numpy as np
import pytest

from discreet import accounting as acc
from discreet._errors import Unsupported
from discreet.accounting import composition, rdp
from discreet.accounting.composition import AllocationCurve
from discreet.accounting.conversion import gaussian_delta
from discreet.accounting.normal import normal


@pytest.mark.parametrize("noise", [1.0, 2.0])
def test_two_steps_are_the_double_integral(noise: float) -> None:
    grid = np.linspace(-12, 14, 1201)
    x, y = np.meshgrid(grid, grid)
    base = np.exp(-(x**2 + y**2) / 2)
    base /= base.sum()
    ratio = (np.exp(x / noise) + np.exp(y / noise)) / (2 * math.exp(1 / (2 * noise**2)))
    curve = AllocationCurve(2, noise)
    for epsilon in (0.0, 0.2, 0.5, 1.0):
        grown = math.exp(epsilon)
        removing = float((base * np.maximum(ratio - grown, 0)).sum())
        adding = float((base * np.maximum(1 - grown * ratio, 0)).sum())
        assert max(removing, adding) <= curve.delta(epsilon) * (1 + 1e-5)  # the oracle's own error
        assert curve.delta(epsilon) <= max(removing, adding) * (1 + 1e-3)


@pytest.mark.parametrize("noise", [0.9, 1.5, 6.0])
def test_one_step_is_one_gaussian(noise: float) -> None:
    curve = AllocationCurve(1, noise)
    for epsilon in (0.0, 0.3, 1.0, 2.0):
        truth = gaussian_delta(1 / noise, epsilon)
        assert (
            truth * (1 - 1e-9) <= curve.delta(epsilon) <= truth * (1 + 5e-2) + 1e-11
        )  # one step: coarse at small ratios


def test_delta_falls_with_epsilon_and_noise_and_steps() -> None:
    points = [0.0, 0.05, 0.1, 0.3, 0.6]
    curves = {(t, s): [AllocationCurve(t, s).delta(x) for x in points] for t in (20, 80) for s in (1.5, 3.0)}
    for values in curves.values():
        assert values == sorted(values, reverse=True)
    for t in (20, 80):
        assert all(a >= b for a, b in zip(curves[t, 1.5], curves[t, 3.0], strict=True))
    for s in (1.5, 3.0):
        assert all(a >= b for a, b in zip(curves[20, s], curves[80, s], strict=True))


def test_a_pass_costs_less_than_poisson_batches_and_less_than_its_renyi_bound() -> None:
    event = acc.RandomAllocation(event=acc.Gaussian(noise_multiplier=2.0), steps=50)
    claimed = composition.basic(event, 1e-6)
    assert claimed < rdp.epsilon(event, 1e-6)
    assert claimed < acc.epsilon(acc.Gaussian(noise_multiplier=2.0).sampled(1 / 50).repeated(50), delta=1e-6)


def test_several_selected_steps_are_that_many_smaller_passes() -> None:
    inner = acc.Gaussian(noise_multiplier=3.0)
    several = acc.RandomAllocation(event=inner, steps=41, selected=2)
    passes = acc.RandomAllocation(event=inner, steps=20).repeated(2)
    assert rdp.epsilon(several, 1e-6) == rdp.epsilon(passes, 1e-6)


def test_a_group_of_units_with_several_selected_steps_is_priced_as_a_whole() -> None:
    """Only given the blocks of one unit are its steps a composition of passes, and others have other blocks.

    As two passes of groups of three, the first of these was charged 11.4 at delta 1e-5; as a whole 14.4.
    """
    inner = acc.Gaussian(noise_multiplier=2.0)
    group = acc.Group(event=acc.RandomAllocation(event=inner, steps=4, selected=2), size=3)
    assert normal(group).parts == {group: 1}
    # every unit in every step: no chance, and a composition again
    always = acc.Group(event=acc.RandomAllocation(event=inner, steps=2, selected=2), size=2)
    assert normal(always).parts == {acc.Gaussian(noise_multiplier=1.0): 2}


def test_too_little_noise_for_a_grid_is_left_to_the_renyi_bound() -> None:
    with pytest.raises(Unsupported, match="rdp"):
        AllocationCurve(10, 0.3)
    event = acc.RandomAllocation(event=acc.Gaussian(noise_multiplier=0.3), steps=10)
    assert composition.basic(event, 1e-6) == pytest.approx(rdp.epsilon(event, 1e-6), rel=1e-9)


def test_a_delta_near_the_smallest_float_has_a_price() -> None:
    event = acc.RandomAllocation(event=acc.Gaussian(noise_multiplier=4.0), steps=2)
    assert composition.basic(event, 1e-321) >= composition.basic(event, 1e-300) > 1
