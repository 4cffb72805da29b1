"""Encoder layers of every make: clipped sums are those of a loop over single examples, and norms are upper
bounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from discreet.learning.clipping.engine import ClippingEngine

from .zoo import loss, naive

WIDTH, PLACES, BATCH = 8, 5, 7


def layer(**options: Any) -> nn.TransformerEncoderLayer:
    return nn.TransformerEncoderLayer(WIDTH, 2, 16, **({"dropout": 0.0, "batch_first": True} | options))


def frozen(module: nn.TransformerEncoderLayer, *names: str) -> nn.TransformerEncoderLayer:
    for name in names:
        module.get_parameter(name).requires_grad_(False)
    return module


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = layer()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(self.inner(x))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "alone": layer,
    "norm first": lambda: layer(norm_first=True),
    "gelu": lambda: layer(activation="gelu"),
    "gelu as a module, norm first": lambda: layer(activation=nn.GELU(), norm_first=True),
    "relu as a module": lambda: layer(activation=nn.ReLU()),
    "without biases": lambda: layer(bias=False),
    "frozen weights": lambda: frozen(layer(), "linear1.weight", "self_attn.in_proj_weight", "norm1.weight"),
    "frozen biases": lambda: frozen(
        layer(norm_first=True), "linear2.bias", "self_attn.out_proj.bias", "norm2.bias"
    ),
    "two of them": lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), layer(), nn.Tanh(), layer(norm_first=True)),
    "an encoder": lambda: nn.TransformerEncoder(layer(), 2, nn.LayerNorm(WIDTH), enable_nested_tensor=False),
    "used twice": Twice,
    "dropout that is switched off": lambda: layer(dropout=0.5).eval(),
}


class Own(nn.TransformerEncoderLayer):
    def forward(self, src: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return super().forward(src * 2, *args, **kwargs)


class Masked(nn.Module):
    def __init__(self, **mask: Any) -> None:
        super().__init__()
        self.inner, self.mask = layer(), mask

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x, **self.mask)
        return out


def hooked(where: str) -> nn.Module:
    model = layer()
    model.get_submodule(where).register_forward_hook(lambda module, args, out: out)
    return model


def other_norm() -> nn.Module:
    model = layer()
    model.norm2 = nn.RMSNorm(WIDTH)  # type: ignore[assignment]
    return model


def replaced() -> nn.Module:
    model = layer()
    model.linear1.forward = lambda x: F.linear(x, model.linear1.weight)  # type: ignore[method-assign]
    return model


UNUSUAL: dict[str, Callable[[], nn.Module]] = {
    "of another class": lambda: Own(WIDTH, 2, 16, dropout=0.0, batch_first=True),
    "another activation": lambda: layer(activation=torch.tanh),
    "the other gelu": lambda: layer(activation=nn.GELU(approximate="tanh")),
    "causal": lambda: Masked(src_mask=nn.Transformer.generate_square_subsequent_mask(PLACES), is_causal=True),
    "a mask": lambda: Masked(src_mask=torch.eye(PLACES, dtype=torch.bool)),
    "hooked": lambda: hooked(""),
    "hooked attention": lambda: hooked("self_attn"),
    "hooked projection": lambda: hooked("self_attn.out_proj"),
    "hooked dropout": lambda: hooked("dropout1"),
    "forward replaced": replaced,
    "another norm": other_norm,
    "wide for its places": lambda: nn.Sequential(
        nn.Linear(WIDTH, 64), nn.TransformerEncoderLayer(64, 2, 256, dropout=0.0, batch_first=True)
    ),
    "in double precision": lambda: layer().double(),
}


@pytest.mark.parametrize("name", MODELS | UNUSUAL)
def test_the_clipped_sum_is_that_of_the_naive_loop_and_norms_are_upper_bounds(name: str) -> None:
    model = (MODELS | UNUSUAL)[name]()
    kind = next(model.parameters()).dtype
    x = torch.randn(BATCH, PLACES, WIDTH, dtype=kind)
    y = torch.randn_like(model(x)) * torch.logspace(-1, 1, BATCH, dtype=kind).view(-1, 1, 1)
    truth = naive(model, x, y)
    norms = truth.norm(dim=1)
    clip = float(norms.median())
    engine = ClippingEngine(model, loss)
    with engine.attached():
        got = engine.clipped_sum(x, y, clip=clip)
        bounds = engine.gradients(x, y, sums_only=True).squares.sum(1).sqrt()
    assert (got - (truth * (clip / norms).clamp(max=1).unsqueeze(1)).sum(0)).norm() < 1e-3 * clip
    assert (bounds >= norms * (1 - 1e-5)).all()
    assert (bounds <= norms * 1.001).all()
    assert all("forward" not in vars(module) or "replaced" in name for module in model.modules())


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e30])
def test_an_example_that_is_not_finite_is_left_out(bad: float) -> None:
    model = MODELS["an encoder"]()
    x = torch.randn(BATCH, PLACES, WIDTH)
    y = torch.randn_like(x)
    y[2, 0, 0] = bad
    rest = torch.arange(BATCH) != 2
    engine = ClippingEngine(model, loss)
    with engine.attached():
        with_it, without = engine.clipped_sum(x, y, clip=0.5), engine.clipped_sum(x[rest], y[rest], clip=0.5)
    assert with_it.isfinite().all()
    assert (with_it - without).norm() <= 0.5
    if bad != 1e30:
        torch.testing.assert_close(with_it, without, rtol=1e-4, atol=1e-5)
