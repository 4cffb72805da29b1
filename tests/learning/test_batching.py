"""What follows the batch is decided from two batch sizes: a constant that happens to have as many rows as the
batch stays a constant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from discreet import NotPrivate, Unsupported
from discreet.learning.clipping import batching
from discreet.learning.clipping.engine import ClippingEngine
from discreet.learning.clipping.isolation import Shared, each_of, shared
from discreet.learning.probing.safety import made_up, probe

from .zoo import loss, naive

T, WIDTH = 4, 3


class Scaled(nn.Module):
    """A module of somebody's own that is given a constant beside its input."""

    def __init__(self, use: Callable[..., Tensor]) -> None:
        super().__init__()
        self.scale, self.use = nn.Parameter(torch.randn(WIDTH)), use

    def forward(self, x: Tensor, constant: Any = None, **named: Any) -> Tensor:
        return self.use(x * self.scale, constant if constant is not None else named["table"])


class Masked(nn.Module):
    """Hands a constant of T rows, of several makes, to a module with a parameter of its own."""

    def __init__(
        self, constant: Tensor, use: Callable[..., Tensor], *, named: bool = False, later: bool = False
    ) -> None:
        super().__init__()
        self.register_buffer("constant", constant)
        self.first, self.inner, self.last = nn.Linear(WIDTH, WIDTH), Scaled(use), nn.Linear(WIDTH, 2)
        self.named, self.later = named, later

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.first(x))
        x = self.inner(x, table=self.constant) if self.named else self.inner(x, self.constant)
        if self.later:
            x = self.inner(x, constant=self.constant)
        return self.last(x)


def mixing(x: Tensor, mask: Tensor) -> Tensor:
    """Weighted sums over positions."""
    return torch.einsum("ts,bsk->btk", mask, x)


def table(x: Tensor, positions: Tensor) -> Tensor:
    return x + positions


def numbers(x: Tensor, weights: Tensor) -> Tensor:
    return x * weights.sum()


CONSTANTS: dict[str, Callable[[], nn.Module]] = {
    "causal mask": lambda: Masked(torch.ones(T, T).tril(), mixing),
    "positions": lambda: Masked(torch.randn(T, WIDTH), table),
    "positions, by name": lambda: Masked(torch.randn(T, WIDTH), table, named=True),
    "positions, twice": lambda: Masked(torch.randn(T, WIDTH), table, later=True),
    "positions with a leading one": lambda: Masked(torch.randn(1, T, WIDTH), table),
    "T numbers": lambda: Masked(torch.randn(T), numbers),
}


def moved(engine: ClippingEngine, x: Tensor, y: Tensor, clip: float) -> float:
    """How far the clipped sum moves, at most, when one example is replaced by another or left out: the rest
    must not move."""
    whole = engine.clipped_sum(x, y, clip=clip)
    others = [torch.arange(len(x)) != i for i in range(len(x))]
    return max(float((whole - engine.clipped_sum(x[rest], y[rest], clip=clip)).norm()) for rest in others)


@pytest.mark.parametrize("name", CONSTANTS)
def test_a_constant_of_as_many_rows_as_the_batch_is_no_batch(name: str) -> None:
    """Batch sizes 1 to 2 T: sums are those of single examples, and nobody moves them by more than the
    clip."""
    torch.manual_seed(0)
    model = CONSTANTS[name]()
    engine = ClippingEngine(model, loss)
    assert engine.routes["inner"] == "isolated"
    x = torch.randn(2 * T, T, WIDTH)
    y = torch.randn(2 * T, T, 2)
    truth = naive(model, x, y)
    clip = float(truth.norm(dim=1).median())
    clipped = truth * (clip / truth.norm(dim=1)).clamp(max=1).unsqueeze(1)
    with engine.attached():
        for size in range(1, 2 * T + 1):
            got = engine.clipped_sum(x[:size], y[:size], clip=clip)
            torch.testing.assert_close(got, clipped[:size].sum(0), rtol=1e-4, atol=1e-4)
            assert moved(engine, x[:size], y[:size], clip) <= clip * (1 + 1e-3)


def test_the_probe_accepts_constants_and_decides_before_training() -> None:
    for build in CONSTANTS.values():
        model = build()
        engine = ClippingEngine(model, loss)
        probe(engine, made_up(torch.zeros(1, T, WIDTH)), made_up(torch.zeros(1, T, 2)))
        assert {mode for mode, _ in engine._layouts} == {True, False}


def test_the_test_has_teeth(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decision by one batch size, the old one, deals the rows of a constant out to the examples."""
    monkeypatch.setattr(batching, "_axis", lambda one, other: 0 if isinstance(one, torch.Size) else None)
    model = CONSTANTS["T numbers"]()
    engine, x, y = ClippingEngine(model, loss), torch.randn(T, T, WIDTH), torch.randn(T, T, 2)
    truth = naive(model, x, y).sum(0)
    with engine.attached():
        got = engine.clipped_sum(x, y, clip=1e6)
    assert (got - truth).norm() > 1e-2 * truth.norm()


class Own(nn.Module):
    """A module with a parameter, around a function of what it is given."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.scale, self.function = nn.Parameter(torch.randn(WIDTH)), function

    def forward(self, *args: Any) -> Any:
        return self.function(self.scale, *args)


class Around(nn.Module):
    def __init__(self, inner: nn.Module, call: Callable[..., Tensor]) -> None:
        super().__init__()
        self.inner, self.call = inner, call

    def forward(self, x: Tensor) -> Tensor:
        return self.call(self.inner, x)


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "the batch folded into positions": (
        lambda: Around(Own(lambda s, x: x * s), lambda inner, x: inner(x.flatten(0, 1)).view_as(x)),
        "folded",
    ),
    "examples twice": (
        lambda: Around(Own(lambda s, x, y: x * s + y.mean()), lambda inner, x: inner(x, x[:, 0] @ x[:, 0].T)),
        "folded|twice",
    ),
    "a batch beside its folded self": (
        lambda: Around(Own(lambda s, x, y: x * s + y.mean()), lambda inner, x: inner(x, x.flatten(0, 1))),
        "folded",
    ),
    "the number of examples": (
        lambda: Around(Own(lambda s, x, n: x * s / n), lambda inner, x: inner(x, len(x))),
        "number of examples",
    ),
    "a known layer on a constant": (
        lambda: Around(
            nn.Conv1d(WIDTH, WIDTH, 1), lambda inner, x: x + inner(torch.ones(1, WIDTH, T)).transpose(1, 2)
        ),
        "no row for each example",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("size", [1, 2, 3, T, 5, T * T])
def test_what_is_neither_a_batch_nor_a_constant_is_refused_at_every_size(name: str, size: int) -> None:
    build, words = REFUSED[name]
    model = build()
    engine = ClippingEngine(model, loss)
    x = torch.rand(size, T, WIDTH)
    with engine.attached(), pytest.raises(Unsupported, match=words):
        engine.clipped_sum(x, torch.rand(size, T, WIDTH), clip=1.0)
    with pytest.raises(Unsupported, match=words):
        probe(ClippingEngine(model, loss), torch.rand(5, T, WIDTH), torch.rand(5, T, WIDTH))


# What a module returns without a batch is one for each example, that of the example alone.
WITHOUT_A_BATCH: dict[str, Callable[[], nn.Module]] = {
    "nothing of the batch": lambda: Around(
        Own(lambda s, t: t * s), lambda inner, x: x * inner(torch.ones(T, WIDTH))
    ),
    "a result without a batch": lambda: Around(
        Own(lambda s, x: (x, s * 2)), lambda inner, x: inner(x)[0] * inner(x)[1]
    ),
    "an average over the batch as a result": lambda: Around(
        Own(lambda s, x: (x * s, (x * s).mean())), lambda inner, x: inner(x)[0] + inner(x)[1]
    ),
}


@pytest.mark.parametrize("name", WITHOUT_A_BATCH)
def test_a_result_without_a_batch_is_that_of_each_example_alone(name: str) -> None:
    torch.manual_seed(0)
    model = WITHOUT_A_BATCH[name]()
    x, y = torch.randn(T * T, T, WIDTH), torch.randn(T * T, T, WIDTH)
    truth = naive(model, x, y)
    clip = float(truth.norm(dim=1).median())
    clipped = truth * (clip / truth.norm(dim=1)).clamp(max=1).unsqueeze(1)
    engine = ClippingEngine(model, loss)
    probe(engine, torch.rand(5, T, WIDTH), torch.rand(5, T, WIDTH))
    with engine.attached():
        for size in (1, 2, 3, T, 5, T * T):
            got = engine.clipped_sum(x[:size], y[:size], clip=clip)
            torch.testing.assert_close(got, clipped[:size].sum(0), rtol=1e-4, atol=1e-4)
            assert moved(engine, x[:size], y[:size], clip) <= clip * (1 + 1e-3)


def test_a_parameter_and_a_constant_without_dimensions_stay_one_for_each_example() -> None:
    result = shared(torch.full((5,), 3.0)) * torch.tensor(2.0)
    assert isinstance(result, Shared)
    assert each_of(result).tolist() == [6.0] * 5


def test_an_average_over_the_batch_is_no_constant() -> None:
    """Its shape stays, its value does not: for the probe to find."""
    model = Around(Own(lambda s, x, y: x * s + y), lambda inner, x: inner(x, x.mean(0)))
    with pytest.raises(NotPrivate, match="the gradient of an example"):
        probe(ClippingEngine(model, loss), torch.rand(5, T, WIDTH), torch.rand(5, T, WIDTH))


def test_a_batch_in_another_dimension_is_found_there() -> None:
    """Sequence first, within modules of somebody's own."""
    model = Around(
        Own(lambda s, x: torch.tanh(x * s).cumsum(0)),
        lambda inner, x: inner(x.transpose(0, 1)).transpose(0, 1),
    )
    x, y = torch.randn(2 * T, T, WIDTH), torch.randn(2 * T, T, WIDTH)
    truth = naive(model, x, y)
    engine = ClippingEngine(model, loss)
    with engine.attached():
        for size in range(1, 2 * T + 1):
            got = engine.clipped_sum(x[:size], y[:size], clip=1e6)
            torch.testing.assert_close(got, truth[:size].sum(0), rtol=1e-4, atol=1e-4)
    probe(ClippingEngine(model, loss), torch.rand(5, T, WIDTH), torch.rand(5, T, WIDTH))


def test_deciding_leaves_random_numbers_alone() -> None:
    model = nn.Sequential(nn.Linear(WIDTH, 8), nn.Dropout(0.5), nn.PReLU(8), nn.Linear(8, 2))
    x, y, sums = torch.randn(5, WIDTH), torch.randn(5, 2), []
    for decided in (False, True):
        engine = ClippingEngine(model, loss)
        with engine.attached():
            if decided:
                engine.clipped_sum(x, y, clip=1.0)
            torch.manual_seed(1)
            sums.append(engine.clipped_sum(x, y, clip=1.0))
    assert torch.equal(*sums)


def test_one_module_under_two_names_is_as_it_was_after_training() -> None:
    shared = nn.Linear(WIDTH, WIDTH)
    model = nn.Sequential(nn.Sequential(shared, nn.Tanh()), nn.Sequential(shared))
    x, y = torch.randn(5, WIDTH), torch.randn(5, WIDTH)
    truth = naive(model, x, y).sum(0)
    engine = ClippingEngine(model, loss)
    with engine.attached():
        torch.testing.assert_close(engine.clipped_sum(x, y, clip=1e6), truth, rtol=1e-4, atol=1e-4)
    assert all("forward" not in vars(module) for module in model.modules())
