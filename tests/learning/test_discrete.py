"""Exact noise: integers on a grid, a bound that is checked in integers, a price for what was drawn."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtr
from torch import nn

from discreet import InvalidInput, Public, Unsupported
from discreet import accounting as acc
from discreet._registry import from_json, to_json
from discreet.learning import SGD, Adam, Automatic, Examples, PerLayer, Trainer
from discreet.learning.training.gradient_noise import GradientGrid
from discreet.sampling import Entropy, SeededEntropy

from .test_people import moved
from .zoo import naive

SIZE = 30
PUBLIC = Public(size=SIZE)


def trainer(model: nn.Module | None = None, **changes: Any) -> Trainer:
    settings: dict[str, Any] = {
        "public": PUBLIC,
        "noise_multiplier": 1.0,
        "clip": 0.5,
        "batch": SIZE,
        "steps": 1,
        "optimizer": SGD(lr=SIZE),
        "noise": "discrete",
    }
    return Trainer(model or nn.Linear(5, 2), nn.CrossEntropyLoss(), **(settings | changes))


def examples(rows: int = SIZE, public: Public = PUBLIC) -> Examples:
    x = torch.randn(SIZE, 5, generator=torch.Generator().manual_seed(2)) * 3
    return Examples(x[:rows], (x.sum(1) > 0).long()[:rows], public)


def exact_bound(grid: GradientGrid) -> bool:
    """l2_squared <= (clip / step + sqrt(size) / 2)² < l2_squared + 1, in rationals: squared twice to be rid
    of the root."""
    reach = Fraction(grid.clip) / grid.step
    rest = Fraction(grid.l2_squared) - reach**2 - Fraction(grid.size, 4)  # at most reach sqrt(size)
    return (rest <= 0 or rest**2 <= reach**2 * grid.size) and (rest + 1) ** 2 > reach**2 * grid.size


@given(clip=st.floats(1e-3, 1e3), size=st.integers(1, 10**7))
def test_the_bound_is_the_stated_one_and_rounding_adds_little(clip: float, size: int) -> None:
    grid = GradientGrid.of(clip, size)
    assert exact_bound(grid)
    assert grid.l2_squared * grid.step**2 <= Fraction(clip) ** 2 * Fraction(66, 64) ** 2
    assert math.log2(grid.step).is_integer()


def test_the_price_is_for_the_enlarged_sensitivity_and_the_noise_that_is_drawn() -> None:
    made = trainer(steps=3, batch=10)
    grid = made.grid
    assert grid is not None
    one = acc.VectorDiscreteGaussian(variance=grid.variance(1.0), l2_squared=grid.l2_squared)
    assert made.event == one.sampled(Fraction(1, 3)).repeated(3)
    assert grid.variance(1.0) >= grid.l2_squared
    assert made.deviation == pytest.approx(math.sqrt(grid.l2_squared) * float(grid.step))
    assert 0.5 < made.deviation <= 0.5 * 66 / 64
    replaced = trainer(
        public=Public(size=SIZE, neighbors="replace"), sampling="without_replacement", batch=10
    ).event
    assert replaced == acc.SampledWithoutReplacement(
        event=acc.VectorDiscreteGaussian(
            variance=grid.variance(1.0), l2_squared=4 * grid.l2_squared, neighbors="replace"
        ),
        size=SIZE,
        sample=10,
    )
    wanted = trainer(noise_multiplier=None, epsilon=2.0, delta=1e-5, steps=20, batch=10)
    assert 2.0 * 0.99 <= acc.epsilon(wanted.event, delta=1e-5) <= 2.0


@pytest.mark.parametrize("rule", [0.5, PerLayer(clip=0.5), Automatic(clip=0.5)])
def test_each_examples_integers_stay_within_the_bound_and_near_its_clipped_gradient(rule: Any) -> None:
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))
    made = trainer(model, clip=rule)
    grid = made.grid
    assert grid is not None
    run = made.start(examples(), entropy=SeededEntropy(1))
    with run:
        for i in range(SIZE):
            exact = run.summands._grid_sum
            assert exact is not None
            exact._sum.zero_()
            run.summands.add(np.array([i]), run._sums)
            whole = [int(v) for v in exact._sum]
            assert sum(v * v for v in whole) <= grid.l2_squared
            plain = run.engine.clipped_sum(*examples().take(np.array([i])), clip=rule)
            near = torch.tensor(whole, dtype=torch.float64) * float(grid.step)
            assert (near - plain).abs().max() <= float(grid.step) / 2 * (1 + 1e-3)


def test_a_vector_above_the_bound_counts_as_zero() -> None:
    grid = GradientGrid.of(1.0, 4)
    nan = float("nan")
    rows = torch.tensor(
        [[0.6, 0.0, 0.8, 0.0], [2.0, 2.0, 0.0, 0.0], [nan, 0.1, 0.0, 0.0], [1e30, 0, 0, 0], [1.2, 0, 0, 0.0]]
    )
    found = grid.rounded(rows, torch.ones(5, 1))
    assert (found[0] != 0).any()
    assert (found[1:] == 0).all()
    assert torch.equal(found, found.round())
    assert grid.rounded(torch.tensor([[nan, 1.0, 0.0, 0.0]]), torch.zeros(1, 1)).tolist() == [[0.0] * 4]


def test_a_vector_as_long_as_the_clip_is_kept_on_a_very_fine_grid() -> None:
    grid = GradientGrid(clip=1.0, size=2, step=Fraction(1, 2**20))
    rows = torch.tensor([[1.0, 0.0], [1.0, 1.0], [float("nan"), 0.0]])
    assert grid.rounded(rows, torch.ones(3, 1)).tolist() == [[2.0**20, 0.0], [0.0, 0.0], [0.0, 0.0]]


def test_a_step_is_the_naive_sum_rounded_and_removing_one_moves_it_within_the_bound() -> None:
    model = nn.Linear(5, 2)
    rows = naive(model, *examples().take(np.arange(SIZE)), torch.nn.functional.cross_entropy)
    wanted = (rows * (0.5 / rows.norm(dim=1)).clamp(max=1).unsqueeze(1)).sum(0)
    made = trainer(model, noise_multiplier=1e-9)  # noise of one grid step: as little as there is
    grid = made.grid
    assert grid is not None
    step = float(grid.step)
    got = moved(made, examples())
    assert (got - wanted).abs().max() < (SIZE / 2 + 10) * step
    change = (got - moved(made, examples(SIZE - 1))) / step
    assert 0 < change.norm() <= math.sqrt(grid.l2_squared) + math.sqrt(12) * 10


def test_what_is_added_is_the_discrete_gaussian_that_is_priced() -> None:
    """Nobody there, 10025 weights: every entry is a whole number of steps, with the law claimed (DKW, false
    alarm 1e-9; half the noise fails)."""
    made = trainer(nn.Linear(400, 25))
    grid = made.grid
    assert grid is not None
    none = Examples(torch.zeros(0, 400), torch.zeros(0, dtype=torch.long), PUBLIC)
    run = made.start(none, entropy=SeededEntropy(3))
    run.summands.noise(run._gradient)
    assert (run._gradient == 0).all()
    run.summands.close(run._gradient)
    draws = run._gradient.double().numpy() / float(grid.step)
    assert np.array_equal(draws, np.round(draws))

    def follows(sigma: float) -> bool:
        ordered, n = np.sort(draws), len(draws)
        cdf = ndtr((ordered + 0.5) / sigma)  # sigma is in the hundreds: the discrete law is within 1e-3 of it
        gap = np.max(np.abs(np.searchsorted(ordered, ordered, side="right") / n - cdf))
        return bool(gap <= math.sqrt(math.log(2e9) / (2 * n)) + 2e-3)

    assert follows(math.sqrt(grid.variance(1.0)))
    assert not follows(math.sqrt(grid.variance(0.5)))


@pytest.mark.parametrize("places", [1, 3])
def test_a_gradient_that_is_not_finite_counts_as_zero(places: int) -> None:
    """Also where the gradient is built from many places, and where one entry of it is sound."""
    x, y = torch.randn(SIZE, places, 5), torch.randn(SIZE, places, 2)
    model = nn.Linear(5, 2)
    made = Trainer(
        model,
        lambda out, t: (out * t).flatten(1).sum(1),
        public=PUBLIC,
        noise_multiplier=1.0,
        clip=0.5,
        batch=SIZE,
        steps=1,
        noise="discrete",
    )
    found = []
    for keep in (SIZE, SIZE - 1):
        run = made.start(Examples(x[:keep], y[:keep], PUBLIC), entropy=Entropy())
        with run:
            run.summands.add(np.arange(keep), run._sums)
        assert run.summands._grid_sum is not None
        found.append(run.summands._grid_sum._sum.clone())
        x[SIZE - 1, 0, 2] = float("nan")
        if keep == SIZE:
            run = made.start(Examples(x, y, PUBLIC), entropy=Entropy())
            with run:
                run.summands.add(np.arange(SIZE), run._sums)
            assert run.summands._grid_sum is not None
            found.append(run.summands._grid_sum._sum.clone())
    whole, with_bad, without = found
    assert torch.equal(with_bad, without)
    assert not torch.equal(whole, without)


def test_microbatches_give_exactly_the_same_sum() -> None:
    """Integers add up in any order: not one bit differs. Floats cannot do that."""
    model = nn.Linear(5, 2)
    found = [
        trainer(model, microbatch=size)(examples(), entropy=SeededEntropy(1)).value.weight
        for size in (1, 7, 30)
    ]
    first = found[0]
    assert all((other - first).abs().max() <= 2e-6 for other in found)
    assert trainer(model, steps=3, batch=10, optimizer=Adam())(examples(), entropy=Entropy()).private


def test_what_is_not_proved_for_it_is_refused() -> None:
    with pytest.raises(Unsupported, match="continuous Gaussian"):
        trainer(sampling="balls_in_bins", epochs=1, steps=None)
    with pytest.raises(InvalidInput, match="too fine"):
        GradientGrid(clip=1.0, size=10, step=Fraction(1, 2**40))
    for bad in ({"clip": 0.0}, {"size": 0}, {"step": 0}):
        with pytest.raises(InvalidInput):
            GradientGrid(**({"clip": 1.0, "size": 10, "step": Fraction(1, 8)} | bad))
    grid = GradientGrid.of(0.3, 17)
    assert from_json(to_json(grid)) == grid
