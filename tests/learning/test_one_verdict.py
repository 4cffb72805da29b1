"""One model has one verdict of the probe, whatever the random numbers: ties at zero are no mixing, and mixing is."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from discreet import NotPrivate, learning
from discreet.learning.clipping.engine import ClippingEngine
from discreet.learning.probing import single_examples
from discreet.learning.probing.safety import made_up, probe
from discreet.learning.probing.single_examples import BatchComparison, in_float64

RUNS = 10


norm = nn.BatchNorm2d


class Inverted(nn.Module):
    """An inverted residual block, as MobileNetV2 and MnasNet have them."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        wide = 6 * inside
        self.residual = stride == 1 and inside == outside
        self.block = nn.Sequential(
            *(nn.Conv2d(inside, wide, 1, bias=False), norm(wide), nn.ReLU6()),
            *(nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False), norm(wide), nn.ReLU6()),
            *(nn.Conv2d(wide, outside, 1, bias=False), norm(outside)),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.block(x) if self.residual else self.block(x)


class Inception(nn.Module):
    """Branches of convolutions and a pooling, joined, as GoogLeNet has them."""

    def __init__(self, inside: int, width: int) -> None:
        super().__init__()
        self.one = nn.Sequential(nn.Conv2d(inside, width, 1), norm(width), nn.ReLU())
        self.three = nn.Sequential(
            nn.Conv2d(inside, width, 1),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            norm(width),
            nn.ReLU(),
        )
        self.pool = nn.Sequential(
            nn.MaxPool2d(3, 1, 1, ceil_mode=True), nn.Conv2d(inside, width, 1), nn.ReLU()
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.one(x), self.three(x), self.pool(x)], 1)


class Bottleneck(nn.Module):
    """A block of ResNet-50, with GroupNorm, as BiT has them too."""

    def __init__(self, inside: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(inside, width, 1, bias=False), norm(width), nn.ReLU()),
            *(nn.Conv2d(width, width, 3, stride, 1, bias=False), norm(width), nn.ReLU()),
            *(nn.Conv2d(width, 4 * width, 1, bias=False), norm(4 * width)),
        )
        self.short = nn.Sequential(nn.Conv2d(inside, 4 * width, 1, stride, bias=False), norm(4 * width))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.short(x))


def mobilenet() -> nn.Module:
    return learning.without_batch_norm(
        nn.Sequential(
            *(nn.Conv2d(3, 16, 3, 2, 1, bias=False), norm(16), nn.ReLU6()),
            *(
                Inverted(16, 24, 2),
                Inverted(24, 24, 1),
                Inverted(24, 32, 2),
                Inverted(32, 32, 1),
                Inverted(32, 64, 2),
            ),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)),
        )
    )


def googlenet() -> nn.Module:
    return learning.without_batch_norm(
        nn.Sequential(
            *(nn.Conv2d(3, 16, 7, 2, 3), nn.ReLU(), nn.MaxPool2d(3, 2, ceil_mode=True)),
            *(Inception(16, 16), Inception(48, 24), nn.MaxPool2d(3, 2, ceil_mode=True), Inception(72, 32)),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(96, 10)),
        )
    )


def resnet() -> nn.Module:
    return learning.without_batch_norm(
        nn.Sequential(
            *(nn.Conv2d(3, 16, 7, 2, 3, bias=False), norm(16), nn.ReLU(), nn.MaxPool2d(3, 2, 1)),
            *(Bottleneck(16, 16, 1), Bottleneck(64, 16, 1), Bottleneck(64, 32, 2), Bottleneck(128, 32, 1)),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10)),
        )
    )


def verdict(model: nn.Module, inputs: Tensor, targets: Tensor, loss: Any = "cross_entropy") -> str:
    try:
        probe(ClippingEngine(model, loss), inputs, targets)
    except NotPrivate as error:
        return (
            "mixes" if "mixes examples" in str(error) or "normalizes examples" in str(error) else str(error)
        )
    return "ok"


def verdicts(
    build: Callable[[], nn.Module], shape: tuple[int, ...], loss: Any = "cross_entropy", runs: int = RUNS
) -> set[str]:
    found = set()
    for seed in range(runs):
        torch.manual_seed(seed)
        inputs, targets = made_up(torch.zeros(1, *shape)), made_up(torch.zeros(1, dtype=torch.long))
        found.add(verdict(build(), inputs, targets, loss))
    return found


@pytest.mark.parametrize("runs", [2, pytest.param(RUNS, marks=pytest.mark.slow)])
@pytest.mark.parametrize("build", [mobilenet, googlenet, resnet])
def test_ties_at_zero_are_no_mixing_in_any_run(build: Callable[[], nn.Module], runs: int) -> None:
    assert verdicts(build, (3, 16, 16), runs=runs) == {"ok"}


class Mixing(nn.Module):
    """A small network with `mix` between its layers."""

    def __init__(self, mix: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.mix, self.second = nn.Linear(8, 12), mix, nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.mix(F.relu(self.first(x))))


def attend(h: Tensor) -> Tensor:
    return torch.softmax(h @ h.T, 1) @ h


MIXERS: dict[str, Callable[[Tensor], Tensor]] = {
    "functional batch norm": lambda h: F.batch_norm(h, None, None, training=True),
    "batch mean": lambda h: h - h.mean(0),
    "a thousandth of the batch mean": lambda h: h + 1e-3 * h.mean(0),
    "a hundred thousandth of the batch mean": lambda h: h + 1e-5 * h.mean(0),
    "attention across examples": attend,
    "batch maximum": lambda h: h / (1 + h.amax()),
    "sorted": lambda h: h.sort(0).values,
}


@pytest.mark.parametrize("mix", MIXERS.values(), ids=MIXERS)
def test_real_mixers_are_refused_in_every_run(mix: Callable[[Tensor], Tensor]) -> None:
    found = verdicts(lambda: Mixing(mix), (8,))
    assert "ok" not in found
    assert found == {"mixes"}


def test_a_loss_that_divides_by_the_weights_of_the_batch_is_refused_in_every_run() -> None:
    weights = torch.tensor([0.2, 1.0, 3.0])

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        losses = F.cross_entropy(outputs, targets, weight=weights, reduction="none")
        return losses / weights[targets].sum()

    assert verdicts(lambda: Mixing(lambda h: h), (8,), loss) == {"mixes"}


@pytest.fixture
def differing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let float32 count as different at all sizes, whatever it computes: so float64 decides."""
    before = BatchComparison.differing_sizes

    def differing_sizes(self: BatchComparison, *examples: Any) -> set[int]:
        sizes = before(self, *examples)
        return self.sizes if self.engine.dtype is torch.float32 else sizes

    monkeypatch.setattr(BatchComparison, "differing_sizes", differing_sizes)


def in_bfloat16(h: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return (h @ torch.eye(12)).float()


ROUNDS = {
    "float() in the middle": lambda h: h.float().sin(),
    "to(float32)": lambda h: h.to(torch.float32).square().to(h.dtype),
    "a constant that is no buffer": lambda h: h @ torch.linspace(0, 1, 144).view(12, 12),
    "softmax with a dtype": lambda h: torch.softmax(h, 1, dtype=torch.float32),
    "bfloat16 by name": lambda h: h.bfloat16().tanh().to(torch.float32),
    "autocast": lambda h: in_bfloat16(h),
}


@pytest.mark.usefixtures("differing")
@pytest.mark.parametrize("form", ROUNDS.values(), ids=ROUNDS)
def test_code_that_names_float32_runs_in_float64(form: Callable[[Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    model = Mixing(form)
    assert verdict(model, made_up(torch.zeros(1, 8)), made_up(torch.zeros(1, dtype=torch.long))) == "ok"


@pytest.mark.usefixtures("differing")
@pytest.mark.parametrize("mix", MIXERS.values(), ids=MIXERS)
def test_float64_finds_the_mixers_by_itself(mix: Callable[[Tensor], Tensor]) -> None:
    assert verdicts(lambda: Mixing(mix), (8,)) == {"mixes"}


def bits(tensor: Tensor) -> bytes:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def odd_model(payload: list[int]) -> nn.Module:
    """A model with a view of a larger tensor, tied weights, and buffers, one of them with these bits."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.Linear(4, 2))
    model[2].weight = model[0].weight
    whole = torch.randn(20)
    model[3].weight.data = whole[4:12].view(2, 4)
    model.register_buffer("payload", torch.tensor(payload, dtype=torch.int32).view(torch.float32))
    model.register_buffer("count", torch.tensor(3))
    model.register_buffer("small", torch.randn(3).half())
    model[0].bias.grad = torch.randn(4)
    model.whole = whole  # type: ignore[assignment]
    return model


@pytest.mark.usefixtures("differing")
def test_everything_is_put_back_bit_by_bit() -> None:
    model = odd_model([1, -(1 << 31), 0x00400000])
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    before = {name: (id(t), t.data_ptr(), t.dtype, bits(t)) for name, t in tensors.items()}
    gradient = model[0].bias.grad
    assert verdict(model, torch.rand(5, 4), torch.arange(5) % 2) == "ok"
    after = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    assert {name: (id(t), t.data_ptr(), t.dtype, bits(t)) for name, t in after.items()} == before
    assert model[0].bias.grad is gradient
    assert model[3].weight.untyped_storage().data_ptr() == model.whole.untyped_storage().data_ptr()  # type: ignore[union-attr]
    assert torch.get_default_dtype() is torch.float32


def test_everything_is_put_back_after_an_error() -> None:
    model = odd_model([0x7FA00001, 1, -(1 << 31)])
    before = {name: (t.data_ptr(), bits(t)) for name, t in model.state_dict().items()}
    engine = ClippingEngine(model, "cross_entropy")

    def interrupted() -> None:
        with in_float64(engine, torch.zeros(2)) as data:
            assert {data.dtype, engine.dtype, model[0].weight.dtype, model.small.dtype} == {torch.float64}
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert {name: (t.data_ptr(), bits(t)) for name, t in model.state_dict().items()} == before
    assert engine.dtype is torch.float32


@pytest.mark.usefixtures("differing")
def test_a_large_model_is_compared_part_by_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(single_examples, "WEIGHTS_AT_ONCE", 30)
    groups = []
    before = single_examples.ReferenceGradients.__init__

    def spied(self: Any, engine: Any, parameters: Any, norms: Any) -> None:
        groups.append([p.numel() for p in parameters])
        before(self, engine, parameters, norms)

    monkeypatch.setattr(single_examples.ReferenceGradients, "__init__", spied)
    assert verdicts(lambda: Mixing(lambda h: h), (8,), runs=1) == {"ok"}
    # all at once in float32, then those whose ends lie in the same thirty
    assert groups[:3] == [[96, 12, 36, 3], [96, 12], [36, 3]]
    assert verdicts(lambda: Mixing(MIXERS["a hundred thousandth of the batch mean"]), (8,), runs=1) == {
        "mixes"
    }


def test_a_model_that_cannot_run_in_float64_is_judged_in_its_own_precision(differing: None) -> None:
    def only_float32(h: Tensor) -> Tensor:
        if h.numpy(force=True).dtype.itemsize == 8:
            raise TypeError("float32 only")
        return h

    # `differing` lets every comparison in float32 fail, so that the fallback must refuse
    assert verdicts(lambda: Mixing(only_float32), (8,)) != {"ok"}


def test_made_up_examples_are_the_same_in_each_run_and_draw_from_nobody() -> None:
    shapes = torch.zeros(1, 7), torch.zeros(1, 9, dtype=torch.long), torch.zeros(1, 2, dtype=torch.bool)
    torch.manual_seed(1)
    first, state = made_up(shapes), torch.get_rng_state()
    torch.manual_seed(2)
    assert all(torch.equal(a, b) for a, b in zip(first, made_up(shapes), strict=True))
    torch.manual_seed(1)
    assert torch.equal(state, torch.get_rng_state())


def test_no_made_up_text_is_all_padding() -> None:
    for length in (2, 3, 30):
        ids = made_up(torch.zeros(1, length, dtype=torch.long))
        assert ((ids == 0).any(1) & (ids == 1).any(1)).all()
        assert not torch.equal(ids[0], ids[1])


@pytest.mark.parametrize("channels", [1, 2, 3, 8, 31, 32, 33, 48, 64])
def test_no_group_is_a_single_channel(channels: int) -> None:
    swapped = learning.without_batch_norm(nn.BatchNorm2d(channels))
    assert isinstance(swapped, nn.GroupNorm)
    assert channels // swapped.num_groups >= min(2, channels)
    # a map of one pixel is not normalized to zero
    out = swapped(torch.randn(2, channels, 1, 1)).detach()
    assert channels == 1 or float(out.abs().min()) > 0


class Caching(nn.Module):
    """Keeps the states of a batch for the next call, unless its config says not to, as Mamba does."""

    def __init__(self, use_cache: bool) -> None:
        super().__init__()
        self.config = SimpleNamespace(use_cache=use_cache)
        self.layer = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        out = self.layer(x)
        return out + out.mean(0) if self.config.use_cache else out


def test_a_model_that_keeps_a_cache_is_told_to_leave_it() -> None:
    examples = made_up(torch.zeros(1, 8)), made_up(torch.zeros(1, dtype=torch.long))
    with pytest.raises(NotPrivate, match=r"mixes examples.*set use_cache=False in its config"):
        probe(ClippingEngine(Caching(True), "cross_entropy"), *examples)
    probe(ClippingEngine(Caching(False), "cross_entropy"), *examples)
