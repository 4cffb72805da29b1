"""Encoder layers that are run by hand leave what the layers one by one leave; what is unusual is not run by hand; threads share the work and are gone after it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from discreet.learning import Engine, Flat, PerLayer, encoder, threads
from discreet.learning.clipping import factors

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
    "frozen biases": lambda: frozen(layer(norm_first=True), "linear2.bias", "self_attn.out_proj.bias", "norm2.bias"),
    "two of them": lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), layer(), nn.Tanh(), layer(norm_first=True)),
    "an encoder": lambda: nn.TransformerEncoder(layer(), 2, nn.LayerNorm(WIDTH), enable_nested_tensor=False),
    "used twice": Twice,
    "dropout that is switched off": lambda: layer(dropout=0.5).eval(),
}


def batch_for(model: nn.Module) -> tuple[Tensor, Tensor]:
    x = torch.randn(BATCH, PLACES, WIDTH)
    return x, torch.randn_like(x) * torch.logspace(-1, 1, BATCH).view(-1, 1, 1)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each pass by hand: how many examples went through together."""
    seen: list[int] = []
    original = encoder._Run.forward

    def forward(self: Any, x: Tensor) -> Tensor:
        seen.append(min(self._few, len(x)))
        return original(self, x)

    monkeypatch.setattr(encoder._Run, "forward", forward)
    return seen


def clipped(model: nn.Module, x: Tensor, y: Tensor, clip: float) -> Tensor:
    engine = Engine(model, loss)
    with engine.attached():
        return engine.clipped_sum(x, y, clip=clip)


@pytest.mark.parametrize("few", [1, 3, BATCH])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("name", MODELS)
def test_the_clipped_sum_by_hand_is_that_of_the_naive_loop(
    name: str, count: int, few: int, monkeypatch: pytest.MonkeyPatch, runs: list[int]
) -> None:
    model = MODELS[name]()
    x, y = batch_for(model)
    truth = naive(model, x, y)
    norms = truth.norm(dim=1)
    clip = float(norms.median())
    monkeypatch.setattr(encoder, "WARM", few * PLACES * 3 * WIDTH)
    torch.set_num_threads(count)
    try:
        got = clipped(model, x, y, clip)
        assert torch.get_num_threads() == count
    finally:
        torch.set_num_threads(1)
    assert runs
    assert set(runs) == {min(few, -(-BATCH // count))}
    assert (got - (truth * (clip / norms).clamp(max=1).unsqueeze(1)).sum(0)).norm() < 1e-3 * clip
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("discreet")]
    assert all("forward" not in vars(module) for module in model.modules())


@pytest.mark.parametrize("name", MODELS)
def test_norms_by_hand_are_upper_bounds_and_tight(name: str, runs: list[int]) -> None:
    model = MODELS[name]()
    x, y = batch_for(model)
    exact = naive(model.double(), x.double(), y.double()).norm(dim=1)
    engine = Engine(model.float(), loss)
    with engine.attached():
        found = engine.gradients(x, y, lean=True).squares.sum(1).sqrt()
    assert runs
    assert (found >= exact * (1 - 1e-5)).all()
    assert (found <= exact * 1.001).all()


def test_each_layer_is_clipped_by_itself_where_that_is_the_rule(runs: list[int]) -> None:
    model = MODELS["two of them"]()
    x, y = batch_for(model)
    one, other = Engine(model, loss), Engine(model, loss)
    with one.attached():
        by_hand = one.gradients(x, y, lean=True)
        assert runs
    with other.attached():
        apart = other.gradients(x, y)
    assert len(runs) == 2, "who asks for more than sums takes the layers one by one"
    torch.testing.assert_close(by_hand.squares, apart.squares, rtol=1e-3, atol=1e-9)
    weights, _ = factors(PerLayer(clip=1.0), apart.squares)
    sums = [engine.buffer() for engine in (one, other)]
    with torch.no_grad():
        for engine, found, out in zip((one, other), (by_hand, apart), sums, strict=True):
            found.add(weights.float(), engine.sums(out), engine.layers)
    torch.testing.assert_close(*sums, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e30])
def test_an_example_that_is_not_finite_is_left_out_of_what_is_run_by_hand(bad: float, runs: list[int]) -> None:
    model = MODELS["an encoder"]()
    x, y = batch_for(model)
    y[2, 0, 0] = bad
    rest = torch.arange(BATCH) != 2
    with_it, without = clipped(model, x, y, 0.5), clipped(model, x[rest], y[rest], 0.5)
    assert runs
    assert with_it.isfinite().all()
    assert (with_it - without).norm() <= 0.5
    if bad != 1e30:
        torch.testing.assert_close(with_it, without, rtol=1e-4, atol=1e-5)


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
    "another bend": lambda: layer(activation=torch.tanh),
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


@pytest.mark.parametrize("name", UNUSUAL)
def test_what_is_unusual_is_not_run_by_hand_and_comes_out_right(name: str, runs: list[int]) -> None:
    model = UNUSUAL[name]()
    kind = next(model.parameters()).dtype
    x = torch.randn(BATCH, PLACES, WIDTH, dtype=kind)
    y = torch.randn_like(model(x))
    truth = naive(model, x, y)
    norms = truth.norm(dim=1)
    clip = float(norms.median())
    got = clipped(model, x, y, clip)
    assert not runs
    assert (got - (truth * (clip / norms).clamp(max=1).unsqueeze(1)).sum(0)).norm() < 1e-3 * clip


def test_dropout_and_long_texts_are_not_run_by_hand(runs: list[int]) -> None:
    partly = layer(dropout=0.5).eval()
    partly.dropout1.train()
    for model, places in ((layer(dropout=0.1), PLACES), (partly, PLACES), (layer(), encoder.SHORT + 1)):
        engine = Engine(model, loss)
        with engine.attached():
            engine.clipped_sum(torch.randn(2, places, WIDTH), torch.randn(2, places, WIDTH), clip=Flat(clip=1.0))
    assert not runs


def test_work_is_done_once_each_and_an_error_in_it_comes_out() -> None:
    workers, seen = threads.Workers(), []
    torch.set_num_threads(2)
    try:
        workers.each(lambda place: seen.append((place, torch.get_num_threads(), torch.is_grad_enabled())), 20)
        assert sorted(seen) == [(place, 1, False) for place in range(20)]
        with pytest.raises(ZeroDivisionError):
            workers.each(lambda place: seen.append(1 // (place - 3)), 20)  # type: ignore[arg-type]
        assert torch.get_num_threads() == 2
    finally:
        workers.close()
        torch.set_num_threads(1)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("discreet")]


def test_torchs_own_threads_rest_while_others_work() -> None:
    """Else they spin for milliseconds, in the way of those who have work. They are back when they are needed."""
    import os

    def count() -> int:
        return len(os.listdir("/proc/self/task"))

    if not os.path.isdir("/proc/self/task"):
        pytest.skip("counts threads as Linux does")
    matrix = torch.randn(600, 600)
    torch.set_num_threads(3)
    try:
        wanted = matrix @ matrix
        before = count()
        threads._rest()
        assert count() == before - 2
        torch.testing.assert_close(matrix @ matrix, wanted, rtol=0, atol=0)
        assert count() == before
    finally:
        torch.set_num_threads(1)
