"""Failures that other libraries shipped, each by its name: here they are refused, or do no harm.

(Norms in half precision: test_precision.)
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from discreet import Halted, InvalidInput, NotPrivate, Public, Unsupported
from discreet import accounting as acc
from discreet.learning import SGD, Examples, Trainer, without_batch_norm
from discreet.learning.clipping.engine import ClippingEngine
from discreet.learning.probing.safety import made_up, probe
from discreet.sampling import Entropy, SeededEntropy

from .test_people import moved
from .zoo import naive

SIZE = 64
PUBLIC = Public(size=SIZE)
CLIP = 1.0


def data(rows: int = SIZE) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(SIZE, 5, generator=generator)
    y = torch.zeros(SIZE, dtype=torch.long)
    y[-1] = 1  # the one who is added or removed has the rare class
    return x[:rows], y[:rows]


def trainer(model: nn.Module | None = None, loss: Any = None, **changes: Any) -> Trainer:
    settings: dict[str, Any] = {
        "public": PUBLIC,
        "noise_multiplier": 1e-9,
        "clip": CLIP,
        "batch": SIZE,
        "steps": 1,
        "optimizer": SGD(lr=SIZE),
    }
    return Trainer(model or nn.Linear(5, 2), loss or nn.CrossEntropyLoss(), **(settings | changes))


def hooked(model: nn.Module, loss: Any, rows: int) -> Tensor:
    """What a library does that takes per-example gradients of the batch's mean loss, scales them up by the
    batch, and clips."""
    x, y = data(rows)
    parameters = list(model.parameters())
    outputs = model(x)
    g = torch.autograd.grad(loss(outputs, y), outputs, retain_graph=True)[0] * rows
    terms = torch.stack(
        [
            torch.cat(
                [p.flatten() for p in torch.autograd.grad(outputs[i], parameters, g[i], retain_graph=True)]
            )
            for i in range(rows)
        ]
    )
    return (terms * (CLIP / terms.norm(dim=1)).clamp(max=1).unsqueeze(1)).sum(0)


WEIGHTED = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 1e4]))


def test_opacus_class_weighted_mean_loss() -> None:
    """One person with the rare class shrinks everybody's gradient: true sensitivity far above the claimed 1.

    Refused here.
    """
    model = nn.Linear(5, 2)
    with torch.no_grad():
        model.weight.mul_(0.1)
    assert (hooked(model, WEIGHTED, SIZE) - hooked(model, WEIGHTED, SIZE - 1)).norm() > 10 * CLIP
    with pytest.raises(Unsupported, match="summed weights"):
        trainer(model, WEIGHTED)
    summed = trainer(model, nn.CrossEntropyLoss(weight=torch.tensor([1.0, 1e4]), reduction="sum"))
    whole, fewer = (moved(summed, Examples(*data(rows), PUBLIC)) for rows in (SIZE, SIZE - 1))
    assert 0.5 * CLIP < (whole - fewer).norm() <= CLIP * (1 + 1e-4)


class BatchMean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


def test_opacus_batch_mean_layer() -> None:
    model = nn.Sequential(nn.Linear(5, 4), BatchMean(), nn.Linear(4, 2))
    with pytest.raises(NotPrivate, match="the gradient of an example"):
        trainer(model)(Examples(*data(), PUBLIC), entropy=Entropy())
    apart = trainer(model, isolate=True)
    whole, fewer = (moved(apart, Examples(*data(rows), PUBLIC)) for rows in (SIZE, SIZE - 1))
    assert (whole - fewer).norm() <= CLIP * (1 + 1e-4)


def test_batch_norm_is_refused_and_the_offered_swap_is_private() -> None:
    model = nn.Sequential(nn.Linear(5, 64), nn.BatchNorm1d(64), nn.Linear(64, 2))
    with pytest.raises(Unsupported, match="without_batch_norm"):
        trainer(model)
    swapped = trainer(without_batch_norm(model))
    whole, fewer = (moved(swapped, Examples(*data(rows), PUBLIC)) for rows in (SIZE, SIZE - 1))
    assert 0 < (whole - fewer).norm() <= CLIP * (1 + 1e-4)


def test_opacus_target_epsilon_is_overrun_without_a_word() -> None:
    made = trainer(noise_multiplier=None, epsilon=1.0, delta=1e-5, batch=16, steps=12)
    assert acc.epsilon(made.event, delta=1e-5) <= 1.0
    run = made.start(Examples(*data(), PUBLIC), entropy=Entropy())
    while not run.done:
        run.step()
    for _ in range(3):
        with pytest.raises(Halted, match="steps that were paid for are taken"):
            run.step()


def test_opacus_sample_rate_is_one_over_the_loaders_length() -> None:
    """10 of 64: seven batches in a loader, but the rate is 10/64."""
    assert trainer(batch=10).event == acc.Gaussian(noise_multiplier=1e-9).sampled(Fraction(10, 64))
    assert trainer(batch=10).schedule.divisor == 10.0


@pytest.mark.parametrize("shape", [(5,), (3, 5), (3, 2, 5), (2, 3, 2, 5)])
def test_linear_on_four_dimensions_where_opacus_crashes_is_clipped(shape: tuple[int, ...]) -> None:
    """The sum of clipped gradients is that of examples run one by one; once the median of their norms is the
    bound, so that some are scaled down and some are not, and once none is."""
    model = nn.Linear(5, 2)
    x, y = torch.randn(6, *shape), torch.randn(6, *shape[:-1], 2)

    def loss(out: Tensor, t: Tensor) -> Tensor:
        return (out * t).flatten(1).sum(1)

    engine, single = ClippingEngine(model, loss), naive(model, x, y, loss)
    norms = single.norm(dim=1)
    assert norms.min() < norms.median() < norms.max()
    for clip in (float(norms.median()), 1e9):
        with engine.attached():
            got = engine.clipped_sum(x, y, clip=clip)
        expected = (single * (clip / norms).clamp(max=1)[:, None]).sum(0)
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", [1, 4, 64])
def test_tf_privacy_and_optax_microbatches_add_noise_each(size: int) -> None:
    """Nobody's gradient is anything (zero inputs, no bias): what is left is noise, once, however many
    microbatches there are."""
    model = nn.Linear(4000, 1, bias=False)
    made = Trainer(
        model,
        nn.MSELoss(),
        public=PUBLIC,
        noise_multiplier=1.0,
        clip=CLIP,
        batch=SIZE,
        steps=1,
        microbatch=size,
        optimizer=SGD(lr=SIZE),
    )
    got = moved(made, Examples(torch.zeros(SIZE, 4000), torch.zeros(SIZE, 1), PUBLIC)).double()
    spread = float(got.square().mean())
    slack = 2 * (
        math.sqrt(math.log(2e9) / 4000) + math.log(2e9) / 4000
    )  # chi-squared tails (Laurent & Massart 2000), false alarm 1e-9
    assert abs(spread - 1) <= slack
    assert slack < 64 - 1, "noise added by each of 64 microbatches would be noticed"


def test_optax_divides_by_the_batch_that_came() -> None:
    """The same person alone and among declared 64: the divisor is the expected batch, so the step does not
    tell how many came."""
    model, x, y = nn.Linear(5, 2), *data()
    few = moved(trainer(model), Examples(x[:1], y[:1], PUBLIC))
    rows = naive(model, x[:1], y[:1], F.cross_entropy)[0]
    torch.testing.assert_close(few, rows * min(1.0, CLIP / float(rows.norm())), rtol=1e-3, atol=1e-5)


def test_empty_batches_are_steps_with_noise() -> None:
    """A rate so small that nobody comes in ten steps (chance of anybody: under 1e-9): the weights move in
    every one of them."""
    made = trainer(batch=None, rate=Fraction(1, 10**12), noise_multiplier=1.0, steps=10)
    run = made.start(Examples(*data(), PUBLIC), entropy=SeededEntropy(1))
    for _ in range(10):
        before = run.values.clone()
        run.step()
        assert (run.values != before).all()


def test_private_transformers_shuffling_is_accounted_as_poisson() -> None:
    for kind in ("shuffle", "shuffled", "epoch"):
        with pytest.raises(InvalidInput, match="poisson"):
            trainer(sampling=kind)


def test_not_a_number_is_no_stop_and_no_step() -> None:
    """A person whose gradient is not finite counts as zero: nothing raises, and nothing but that person's
    term is missing."""
    model, (x, y) = nn.Linear(5, 2), data()
    for bad in (float("nan"), float("inf"), -float("inf"), 3e38):
        broken = x.clone()
        broken[-1, 2] = bad
        got = moved(trainer(model), Examples(broken, y, PUBLIC))
        assert got.isfinite().all()
        wanted = moved(trainer(model), Examples(x[:-1], y[:-1], PUBLIC))
        assert (got - wanted).norm() <= CLIP * (1 + 1e-4)
        if not math.isfinite(bad):
            torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("reduce", ["mean", "sum"])
def test_losses_with_the_wrong_reduction_are_caught_before_data_is_read(reduce: str) -> None:
    made = trainer(loss=lambda out, y: F.cross_entropy(out, y, reduction=reduce))
    with pytest.raises(InvalidInput, match="one number for each example"):
        made(Examples(*data(), PUBLIC), entropy=Entropy())
    with pytest.raises(InvalidInput, match="one number for each example"):
        trainer(
            loss=lambda out, y: F.cross_entropy(out, y, reduction=reduce),
            synthetic=(torch.rand(5, 5), torch.tensor([0, 1, 0, 1, 1])),
        )


class Normalized(nn.Module):
    """A loss of one number each that is nevertheless divided by something of the batch."""

    def forward(self, out: Tensor, y: Tensor) -> Tensor:
        each = F.cross_entropy(out, y, reduction="none")
        return each / each.detach().max()


def test_a_loss_normalized_over_the_batch_is_found_by_the_probe() -> None:
    with pytest.raises(NotPrivate, match="the gradient of an example"):
        probe(
            ClippingEngine(nn.Linear(5, 2), Normalized()),
            made_up(torch.rand(1, 5)),
            torch.tensor([0, 1, 0, 1, 1]),
        )
    assert np.isfinite(float(Normalized()(torch.rand(3, 2), torch.tensor([0, 1, 1])).sum()))
