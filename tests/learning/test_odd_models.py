"""Models that use their parts in unusual ways: what is accepted equals a loop of single examples, the rest is
refused before anything is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from discreet import NotPrivate, Public
from discreet.learning import Trainer
from discreet.learning.clipping.engine import ClippingEngine
from discreet.learning.clipping.isolation import each_of, shared
from discreet.learning.clipping.layers import Convolved, padded, patch_gram
from discreet.learning.clipping.taps import ProductTap, Target
from discreet.learning.probing.safety import made_up, probe
from discreet.learning.probing.single_examples import LARGEST

from .zoo import loss, naive

D = 4


class Calls(nn.Module):
    """A model of some parts, with a function as forward pass."""

    def __init__(self, run: Callable[..., Tensor], **parts: nn.Module) -> None:
        super().__init__()
        self.run = run
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x)


def tied_biases() -> nn.Module:
    """One bias for a linear layer, a second one and a layer norm, over positions."""
    first, second, norm = nn.Linear(D, D), nn.Linear(D, D), nn.LayerNorm(D)
    second.bias = norm.bias = first.bias
    return nn.Sequential(first, nn.Tanh(), second, nn.Tanh(), norm, nn.Flatten(), nn.Linear(3 * D, D))


def tied_strides() -> nn.Module:
    first, second = nn.Conv1d(3, 3, 2), nn.Conv1d(3, 3, 2, stride=2, padding=1)
    second.weight = first.weight
    return nn.Sequential(first, nn.Tanh(), second, nn.Flatten(), nn.Linear(6, D))


def twice() -> nn.Module:
    """One layer over positions, over fewer of them, and over none."""

    def run(model: Any, x: Tensor) -> Tensor:
        out: Tensor = model.a(x).mean(1) + model.a(x[:, :2] * 3).sum(1) + model.a(x[:, 0])
        return out

    return Calls(run, a=nn.Linear(D, D))


def hooked(kind: str) -> nn.Module:
    model = nn.Sequential(nn.Linear(D, D), nn.Tanh(), nn.Flatten(), nn.Linear(3 * D, D))
    if kind == "forward":
        model[0].register_forward_hook(lambda _, __, out: out * 2)
    elif kind == "before":
        model[0].register_forward_pre_hook(lambda _, args: (args[0] * 3,))
    else:
        model[3].register_full_backward_hook(lambda _, gi, __: tuple(g if g is None else g * 2 for g in gi))
    return model


ACCEPTED: dict[str, Callable[[], nn.Module]] = {
    "one bias of three layers": tied_biases,
    "one kernel with two strides": tied_strides,
    "a layer over other shapes": twice,
    "a hook that changes the output": lambda: hooked("forward"),
    "a hook that changes the input": lambda: hooked("before"),
    "a hook that changes the gradient": lambda: hooked("backward"),
    "weight norm": lambda: nn.Sequential(
        parametrizations.weight_norm(nn.Linear(D, D)), nn.Flatten(), nn.Linear(3 * D, D)
    ),
    "a frozen weight with a bias": lambda: nn.Sequential(
        frozen(nn.Linear(D, D), "weight"), nn.Flatten(), nn.Linear(3 * D, D)
    ),
    "a frozen bias": lambda: nn.Sequential(
        frozen(nn.Linear(D, D), "bias"), nn.Flatten(), nn.Linear(3 * D, D)
    ),
}


def frozen(layer: nn.Module, name: str) -> nn.Module:
    getattr(layer, name).requires_grad_(False)
    return layer


@pytest.mark.parametrize("name", ACCEPTED)
def test_odd_models_have_the_sum_of_single_examples_at_every_batch_size(name: str) -> None:
    torch.manual_seed(0)
    model = ACCEPTED[name]()
    engine = ClippingEngine(model, loss)
    probe(engine, made_up(torch.zeros(1, 3, D)), made_up(torch.zeros(1, D)), batch=16)
    for count in (1, 5, 16):
        x, y = torch.randn(count, 3, D), torch.randn(count, D)
        rows = naive(model, x, y)
        for clip in (1e6, 0.5):
            with engine.attached():
                total = engine.clipped_sum(x, y, clip=clip)
            expected = (rows * (clip / rows.norm(dim=1, keepdim=True)).clamp(max=1)).sum(0)
            torch.testing.assert_close(total, expected, rtol=1e-4, atol=1e-4)


def mixing_above(size: int) -> nn.Module:
    def run(model: Any, x: Tensor) -> Tensor:
        out: Tensor = model.a(x - x.mean(0) if len(x) > size else x)
        return out

    return Calls(run, a=nn.Linear(D, D))


@pytest.mark.parametrize("size", [12, 31, LARGEST - 1])
def test_mixing_in_batches_as_large_as_training_expects_is_found(size: int) -> None:
    """At 1, 3, 5 and 12 examples alone such a model is honest."""
    given = made_up(torch.zeros(1, D)), made_up(torch.zeros(1, D))
    probe(ClippingEngine(mixing_above(size), loss), *given)
    with pytest.raises(NotPrivate, match="mixes examples"):
        probe(ClippingEngine(mixing_above(size), loss), *given, batch=size + 1)
    with pytest.raises(NotPrivate, match="mixes examples"):
        Trainer(
            mixing_above(size), loss, public=Public(size=10 * size), noise_multiplier=1.0, batch=size + 1,
            steps=1, synthetic=given,
        )  # fmt: skip


CONVOLUTIONS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "same size": (nn.Conv2d(5, 7, 3, padding=1), (6, 7)),
    "strides, dilation, padding": (nn.Conv2d(5, 7, (3, 2), (2, 1), (2, 0), (2, 1)), (9, 7)),
    "circular": (nn.Conv2d(5, 7, 4, padding="same", padding_mode="circular"), (6, 7)),
    "one dimension": (nn.Conv1d(5, 7, 3, stride=2), (10,)),
    "three, replicated": (nn.Conv3d(2, 3, 2, padding=1, stride=2, padding_mode="replicate"), (3, 4, 5)),
    "points": (nn.Conv2d(5, 7, 1, stride=2), (7, 7)),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_inner_products_of_patches_are_those_of_patches_that_were_cut(name: str) -> None:
    torch.manual_seed(0)
    layer, sizes = CONVOLUTIONS[name]
    x = torch.randn(3, layer.in_channels, *sizes)  # type: ignore[arg-type]
    tap = Convolved(Target(layer.weight), layer, x, torch.randn_like(layer(x)))  # type: ignore[arg-type]
    assert tap.pixels == padded(layer, x)[0, 0].numel()
    patches = tap._patches().view(3, tap.positions, tap.k)
    torch.testing.assert_close(patch_gram(layer, x), patches @ patches.mT, rtol=1e-4, atol=1e-4)
    bound, exact = tap._ghost(), tap.built().double().flatten(1).square().sum(1)
    assert (bound >= exact * (1 - 1e-6)).all()
    assert (bound <= exact * 1.01).all()


@pytest.mark.parametrize("shape", [(3, 40, 30), (400, 40, 30)], ids=["ghost", "built"])
@pytest.mark.parametrize("wide", [False, True])
def test_a_bias_is_measured_and_added_with_its_weight(shape: tuple[int, int, int], wide: bool) -> None:
    torch.manual_seed(0)
    positions, k, p = shape if wide else (shape[0], shape[2], shape[1])
    weight, bias = nn.Parameter(torch.zeros(p, k)), nn.Parameter(torch.zeros(p))
    tap = ProductTap(Target(weight), torch.randn(3, positions, k), torch.randn(3, positions, p), Target(bias))
    rows = torch.cat([torch.einsum("btp,btk->bpk", tap.g, tap.x).flatten(1), tap.g.sum(1)], 1)
    bound, exact = tap.square(), rows.double().square().sum(1)
    assert (tap.pieces is None) == (positions == 3)
    assert (bound >= exact * (1 - 1e-6)).all()
    assert (bound <= exact * 1.01).all()
    weights, sums = torch.tensor([1.0, -2.0, 3.0]), {id(q): torch.zeros_like(q) for q in (weight, bias)}
    tap.zero_out(torch.tensor([True, True, False]))
    tap.add(weights, sums)
    total = torch.cat([sums[id(weight)].flatten(), sums[id(bias)]])
    torch.testing.assert_close(total, rows[0] - 2 * rows[1], rtol=1e-4, atol=1e-3)


def test_a_batch_converted_to_the_type_of_a_shared_tensor_stays_a_batch() -> None:
    positions, batch = shared(torch.zeros(3, 4, 2)), torch.arange(24.0).view(3, 4, 2)
    for converted in (batch.double().to(positions), batch.double().type_as(positions)):
        assert type(converted) is torch.Tensor
        assert torch.equal(converted, batch)
    assert positions.to(batch).shape == (4, 2)
    assert torch.equal(each_of(positions.to(batch)), torch.zeros(3, 4, 2))
