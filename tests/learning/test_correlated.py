"""Correlated noise: it is C⁻¹ Z, its price is for the worst that one person can do, and what it saves is what
the papers say."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from discreet import InvalidInput, Public, Unsupported
from discreet import accounting as acc
from discreet._registry import from_json, to_json
from discreet.learning import SGD, Adam, Dense, Examples, Toeplitz, Trainer, square_root
from discreet.learning.training.gradient_noise import (
    IDENTITY,
    CorrelatedSource,
    NoiseBuffer,
    blt,
    sensitivity,
)
from discreet.learning.training.schedules import Cyclic
from discreet.sampling import Entropy, SeededEntropy

from .test_trainer import assert_normal

PUBLIC = Public(size=60)


def worst(matrix: np.ndarray[Any, Any], separation: int, times: int) -> float:
    """By trying every pattern, and all signs: contributions may point either way."""
    n, best = len(matrix), 0.0
    for k in range(1, times + 1):
        for pattern in itertools.combinations(range(n), k):
            if all(b - a >= separation for a, b in itertools.pairwise(pattern)):
                for signs in itertools.product((1, -1), repeat=k - 1):
                    best = max(best, float(np.linalg.norm(matrix[:, pattern] @ np.array([1, *signs]))))
    return best


def dense(seed: int, n: int, bands: int | None = None, positive: bool = False) -> Dense:
    rng = np.random.default_rng(seed)
    full = np.tril(rng.normal(size=(n, n)))
    full = np.abs(full) if positive else full
    full[np.diag_indices(n)] = 1 + rng.random(n)
    if bands is not None:
        full -= np.tril(full, -bands)
    return Dense(rows=tuple(tuple(full[t, : t + 1].tolist()) for t in range(n)))


@pytest.mark.parametrize(("separation", "times"), [(1, 1), (1, 3), (2, 3), (3, 2), (4, 2), (1, 8)])
@pytest.mark.parametrize(
    "strategy",
    [
        IDENTITY,
        square_root(8),
        square_root(8, bands=3),
        blt(8, 2),
        Toeplitz(coefficients=(1.0, -0.5)),
        dense(1, 8),
        dense(2, 8, bands=2),
    ],
)
def test_no_pattern_moves_the_strategy_by_more_than_its_sensitivity(
    strategy: Any, separation: int, times: int
) -> None:
    claimed, found = sensitivity(strategy, 8, separation, times), worst(strategy.matrix(8), separation, times)
    assert found <= claimed
    exact = (
        times == 1
        or strategy.bands <= separation
        or strategy in (IDENTITY, square_root(8), square_root(8, bands=3), blt(8, 2))
    )
    if exact:
        assert claimed == pytest.approx(found, rel=1e-9)


def test_patterns_that_ignore_the_separation_would_be_noticed() -> None:
    """The mutant: the norm of one column, as if everybody came once."""
    strategy = square_root(8)
    assert worst(strategy.matrix(8), 2, 3) > 1.5 * sensitivity(strategy, 8, 2, 1)


def test_coefficients_are_the_square_root_of_prefix_sums() -> None:
    root = square_root(64).matrix(64)
    np.testing.assert_allclose(root @ root, np.tril(np.ones((64, 64))), atol=1e-12)
    assert square_root(1024).bands == 1024
    np.testing.assert_allclose(sensitivity(square_root(1024), 1024, 1024, 1) ** 2, 3.27255, rtol=1e-5)


@pytest.mark.parametrize(
    "strategy",
    [square_root(6), square_root(6, bands=3), blt(6, 2), Toeplitz(coefficients=(2.0, -1.0)), dense(3, 6)],
)
def test_noise_is_the_inverse_of_the_strategy_times_independent_noise(strategy: Any) -> None:
    """Exactly: rows of noise, multiplied by C, are the independent rows again.

    And these are normal (DKW, false alarm 1e-9).
    """
    size = 2000
    source = CorrelatedSource(NoiseBuffer(size, torch.float64, 1.5, SeededEntropy(1)), strategy)
    rows = []
    for _ in range(6):
        rows.append(torch.empty(size, dtype=torch.float64))
        source.into(rows[-1])
    noise = torch.stack(rows).numpy()
    independent = NoiseBuffer(size, torch.float64, 1.5, SeededEntropy(1))
    plain = []
    for _ in range(6):
        plain.append(torch.empty(size, dtype=torch.float64))
        independent.into(plain[-1])
    np.testing.assert_allclose(strategy.matrix(6) @ noise, torch.stack(plain).numpy(), atol=1e-9)
    assert_normal((strategy.matrix(6) @ noise).ravel() / 1.5)


def covariance_check(noise: np.ndarray[Any, Any], strategy: Any) -> None:
    """Each prefix sum of noise over its deviation under C⁻¹ is standard normal; false alarm 6e-9 in all."""
    inverse = np.linalg.inv(strategy.matrix(len(noise)))
    prefixes = np.tril(np.ones((len(noise),) * 2)) @ inverse
    for t, sums in enumerate(np.cumsum(noise, axis=0)):
        assert_normal(sums / np.linalg.norm(prefixes[t]))


def test_sums_of_noise_have_the_covariance_of_the_strategy_and_independent_noise_has_not() -> None:
    strategy, size = square_root(6), 20_000
    source, rows = CorrelatedSource(NoiseBuffer(size, torch.float64, 1.0, SeededEntropy(2)), strategy), []
    for _ in range(6):
        rows.append(torch.empty(size, dtype=torch.float64))
        source.into(rows[-1])
    covariance_check(torch.stack(rows).numpy(), strategy)
    with pytest.raises(AssertionError):
        covariance_check(np.random.default_rng(1).normal(size=(6, size)), strategy)


def trainer(**changes: Any) -> Trainer:
    settings: dict[str, Any] = {
        "public": PUBLIC,
        "noise_multiplier": 1.0,
        "clip": 0.5,
        "batch": 20,
        "epochs": 2,
        "sampling": "cyclic",
        "optimizer": SGD(lr=0.3),
    }
    model = changes.pop("model", None) or nn.Linear(5, 2)
    return Trainer(model, nn.CrossEntropyLoss(), **(settings | changes))


def test_the_price_is_one_gaussian_and_the_noise_grows_with_the_sensitivity() -> None:
    made = trainer(strategy="square_root")
    assert made.event == acc.CorrelatedGaussian(
        noise_multiplier=1.0, steps=6, participation=acc.MinSeparated(separation=3, times=2)
    )
    assert acc.epsilon(made.event, delta=1e-5) == acc.epsilon(acc.Gaussian(noise_multiplier=1.0), delta=1e-5)
    assert made.deviation == pytest.approx(0.5 * worst(square_root(6).matrix(6), 3, 2), rel=1e-9)
    assert trainer().deviation == pytest.approx(0.5 * math.sqrt(2))  # independent noise: each example twice
    assert trainer(epochs=1).event == acc.CorrelatedGaussian(noise_multiplier=1.0, steps=3)
    banded = trainer(strategy=square_root(6, bands=3))
    assert banded.event == acc.CorrelatedGaussian(
        noise_multiplier=1.0, steps=6, participation=acc.Banded(bands=3, times=2)
    )
    # the square root of 6 steps, and never more than the 3 of a pass
    assert trainer(strategy="banded").schedule.strategy == square_root(6, bands=2)  # type: ignore[attr-defined]
    passes = trainer(strategy="banded", epochs=12)
    assert passes.schedule.strategy == square_root(36, bands=3)  # type: ignore[attr-defined]
    assert passes.event.participation == acc.Banded(bands=3, times=12)  # type: ignore[attr-defined]
    full = trainer(batch=60, epochs=5)
    assert (full.schedule.steps, full.deviation) == (5, pytest.approx(0.5 * math.sqrt(5)))
    replaced = trainer(public=Public(size=60, neighbors="replace"))
    assert replaced.event.noise_multiplier == 0.5  # type: ignore[attr-defined]


def test_a_wanted_epsilon_is_met() -> None:
    made = trainer(noise_multiplier=None, epsilon=2.0, delta=1e-5, strategy="square_root")
    assert 2.0 * 0.995 <= acc.epsilon(made.event, delta=1e-5) <= 2.0


def test_everybody_has_one_step_in_each_pass_and_the_same_in_all() -> None:
    plan = Cyclic(bins=4, epochs=3, divisor=15.0)
    batches = [b.tolist() for b in plan.batches(60, SeededEntropy(1))]
    assert sorted(itertools.chain(*batches[:4])) == list(range(60))
    assert batches[:4] == batches[4:8] == batches[8:]
    with pytest.raises(InvalidInput, match="steps must be a multiple"):
        trainer(epochs=None, steps=7)
    assert trainer(epochs=None, steps=6).schedule == trainer().schedule


def test_a_step_of_an_example_does_not_depend_on_others() -> None:
    """The same coins with one example less: everybody before keeps the step.

    Hoeffding for one bin, false alarm 1e-9.
    """
    plan = Cyclic(bins=4, epochs=1, divisor=15.0)
    whole = [set(b.tolist()) for b in plan.batches(60, SeededEntropy(1))]
    fewer = [set(b.tolist()) for b in plan.batches(59, SeededEntropy(1))]
    assert [b - {59} for b in whole] == fewer
    often = sum(0 in next(iter(plan.batches(2, SeededEntropy(seed)))) for seed in range(400))
    assert abs(often / 400 - 1 / 4) <= math.sqrt(math.log(2e9) / 800)


def test_noise_of_a_run_is_taken_back_later() -> None:
    """No data, many weights: after the last step the weights have the deviation of the last prefix sum under
    C⁻¹, not that of six steps."""
    model = nn.Linear(400, 25)
    none = Examples(torch.zeros(0, 400), torch.zeros(0, dtype=torch.long), PUBLIC)
    made = trainer(model=model, strategy="square_root")
    after = made(none, entropy=SeededEntropy(1)).value
    got = torch.cat(
        [(a - b).detach().flatten() for a, b in zip(after.parameters(), model.parameters(), strict=True)]
    )
    prefixes = np.tril(np.ones((6, 6))) @ np.linalg.inv(square_root(6).matrix(6))
    unit = 0.3 / 20 * made.deviation
    assert_normal(got.double().numpy() / (unit * np.linalg.norm(prefixes[-1])))
    with pytest.raises(AssertionError):
        assert_normal(got.double().numpy() / (unit * math.sqrt(6)))


def test_one_example_moves_what_is_noised_by_at_most_what_is_priced() -> None:
    """C times the clipped sums of all steps, with and without an example, at fixed weights: the Frobenius
    norm of the difference."""
    made = trainer(strategy="square_root", noise_multiplier=1e-12, optimizer=SGD(lr=1e-12))
    x, y = torch.randn(60, 5) * 4, torch.randint(0, 2, (60,))
    sums = []
    for rows in (60, 59):
        run = made.start(Examples(x[:rows], y[:rows], PUBLIC), entropy=Entropy())
        run._batches = iter(made.schedule.batches(rows, SeededEntropy(1)))
        found = []
        while not run.done:
            run.step()
            found.append(run._gradient.double().clone())
        sums.append(torch.stack(found).numpy())
    change = float(np.linalg.norm(square_root(6).matrix(6) @ (sums[0] - sums[1])))
    assert 0.5 < change <= made.deviation / 1e-12 * (1 + 1e-4)
    assert change > 0.5 * sensitivity(square_root(6), 6, 6, 1), (
        "an example that comes twice is dearer than one column"
    )


def test_bad_strategies_are_refused() -> None:
    # squares of 1e-200 are zero in floats: a sensitivity of 0, and no noise
    for bad in ((), (0.0, 1.0), (1.0, math.nan), ("a",), (1e-200,)):
        with pytest.raises(InvalidInput):
            Toeplitz(coefficients=bad)  # type: ignore[arg-type]
    for rows in ((), ((1.0, 2.0),), ((1.0,), (1.0, 0.0)), ((1e-200,), (1e-200, 1e-200))):
        with pytest.raises(InvalidInput, match=r"row|rows must not be empty\.|the largest entry of a"):
            Dense(rows=rows)
    with pytest.raises(InvalidInput, match="for 8 steps"):
        Cyclic(bins=3, epochs=3, divisor=1.0, strategy=dense(1, 8))
    with pytest.raises(InvalidInput, match="'square_root' or 'banded' or 'blt', got 'cube_root'"):
        trainer(strategy="cube_root")
    for tree in ("tree", "honaker"):
        with pytest.raises(InvalidInput, match="Take 'blt'"):
            trainer(strategy=tree)
    with pytest.raises(Unsupported, match="noise_aware=False"):
        trainer(optimizer=Adam(noise_aware=True))
    with pytest.raises(Unsupported, match="continuous Gaussian"):
        trainer(noise="discrete")
    assert trainer(optimizer=Adam(noise_aware=False)).schedule.steps == 6
    for good in (square_root(5), dense(1, 4), Cyclic(bins=2, epochs=2, divisor=3.0, strategy=square_root(4))):
        assert from_json(to_json(good)) == good
