"""What mixes examples is refused, before any data is read; what does not is let through."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from discreet import InvalidInput, NotPrivate, Unsupported
from discreet.learning import without_batch_norm
from discreet.learning.clipping.engine import ClippingEngine
from discreet.learning.probing.safety import made_up, probe
from discreet.learning.probing.single_examples import BatchComparison

from .. import warm
from .zoo import ZOO, differing, loss, made

pytestmark = [
    pytest.mark.filterwarnings("ignore:Using padding='same'"),
    pytest.mark.filterwarnings("ignore:LSTM with projections is not supported"),
]


@pytest.mark.parametrize("name", ZOO)
def test_honest_models_pass_the_probe_and_stay_as_they_were(name: str) -> None:
    model, x, y = made(name)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    probe(ClippingEngine(model, loss), made_up(x), made_up(y))
    assert model.training
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


class BatchMean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


class Lazy(nn.Module):
    """Mixes in training only, and only a little."""

    def forward(self, x: Tensor) -> Tensor:
        return x + 0.01 * x.flip(0) if self.training else x


class MixesInEvaluation(nn.Module):
    """What training does not do; what it hides by dropout looks the same."""

    def forward(self, x: Tensor) -> Tensor:
        return x if self.training else x + 0.01 * x.flip(0)


def test_evaluation_mode_is_looked_at_where_it_computes_anything_else() -> None:
    layers, modes = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 4)), []
    layers.register_forward_hook(lambda model, args, out: modes.append(model.training))
    examples = made_up(torch.zeros(1, 4)), made_up(torch.zeros(1, 4))
    with pytest.raises(NotPrivate, match="changing one made-up example"):
        probe(ClippingEngine(nn.Sequential(layers, MixesInEvaluation()), loss), *examples)
    counts = []
    for rate in (0.5, 0.0):
        layers[1].p = rate  # type: ignore[assignment]
        modes.clear()
        probe(ClippingEngine(layers, loss), *examples)
        counts.append(modes.count(False))
    # The one batch that is compared bit by bit, and the two that decide which dimension is the batch.
    assert counts[1] <= 3 < counts[0]


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += x.detach().sum(0)
        return x


class Sorted(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sort(0).values


class Functional(nn.Module):
    """Uses a weight outside its layer: not a leak, but a gradient that would be lost."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.layer(x), self.layer.weight)


@pytest.mark.parametrize("bad", [BatchMean, Lazy, Counter, Sorted])
def test_layers_that_mix_examples_are_refused_by_the_probe(bad: type[nn.Module]) -> None:
    model = nn.Sequential(nn.Linear(4, 4), bad(), nn.Linear(4, 3))
    engine = ClippingEngine(model, nn.CrossEntropyLoss())
    with pytest.raises(NotPrivate, match="No data was read"):
        probe(engine, torch.rand(5, 4), torch.tensor([0, 1, 2, 0, 1]))


def test_weights_used_outside_their_layer_are_noticed() -> None:
    with pytest.raises(NotPrivate, match="outside its layer"):
        probe(ClippingEngine(Functional(), loss), torch.rand(5, 4), torch.rand(5, 4))


def test_alone_they_are_trained_right() -> None:
    engine, x, y = ClippingEngine(Functional(), loss, isolate=True), torch.rand(5, 4), torch.rand(5, 4)
    probe(engine, x, y)
    with engine.attached():
        assert not differing(engine, x, y)


def test_what_mixes_cannot_when_isolated() -> None:
    """Each example sees a batch of one: its own mean is itself."""
    engine = ClippingEngine(
        nn.Sequential(nn.Linear(4, 4), BatchMean(), nn.Linear(4, 3)), nn.CrossEntropyLoss(), isolate=True
    )
    x, y = torch.rand(5, 4), torch.tensor([0, 1, 2, 0, 1])
    probe(engine, x, y)
    with engine.attached():
        assert not differing(engine, x, y)


@pytest.mark.parametrize(
    "layer", [nn.BatchNorm1d(4), nn.SyncBatchNorm(4), nn.BatchNorm1d(4, affine=False), nn.LazyBatchNorm1d()]
)
def test_batch_norm_is_refused_and_the_swap_offered(layer: nn.Module) -> None:
    with pytest.raises(Unsupported, match="without_batch_norm"):
        ClippingEngine(nn.Sequential(nn.Linear(4, 4), nn.Sequential(layer)), loss)


@pytest.mark.parametrize(
    "layer",
    [
        nn.InstanceNorm1d(4, track_running_stats=True),
        nn.Embedding(4, 4, max_norm=1.0),
        nn.Embedding(4, 4, scale_grad_by_freq=True),
    ],
)
def test_layers_with_leaking_options_are_refused(layer: nn.Module) -> None:
    with pytest.raises(Unsupported, match="Turn it off"):
        ClippingEngine(nn.Sequential(nn.Linear(4, 4), layer), loss)


def test_the_swap_keeps_everything_else() -> None:
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3),
        nn.BatchNorm2d(12),
        nn.Sequential(nn.ReLU(), nn.Conv2d(12, 7, 3), nn.BatchNorm2d(7)),
    )
    swapped = without_batch_norm(model, groups=8)
    assert isinstance(swapped[1], nn.GroupNorm)
    # a group has two channels at least, and 7 has no other divisor
    assert (swapped[1].num_groups, swapped[2][2].num_groups) == (6, 1)
    assert isinstance(model[1], nn.BatchNorm2d)
    assert torch.equal(model[0].weight, swapped[0].weight)
    probe(ClippingEngine(swapped, loss), torch.rand(5, 1, 8, 8), torch.rand(5, 7, 4, 4))
    assert isinstance(without_batch_norm(nn.BatchNorm1d(4)), nn.GroupNorm)


def test_class_weighted_mean_is_refused() -> None:
    weight = torch.tensor([1.0, 50.0])
    with pytest.raises(Unsupported, match="everybody's gradient"):
        ClippingEngine(nn.Linear(4, 2), nn.CrossEntropyLoss(weight=weight))
    probe(
        ClippingEngine(nn.Linear(4, 2), nn.CrossEntropyLoss(weight=weight, reduction="sum")),
        torch.rand(5, 4),
        torch.tensor([0, 1, 1, 0, 1]),
    )


def test_a_class_weighted_mean_in_disguise_is_found_by_the_probe() -> None:
    weight = torch.tensor([1.0, 50.0])

    def disguised(outputs: Tensor, targets: Tensor) -> Tensor:
        each = F.cross_entropy(outputs, targets, weight=weight, reduction="none")
        return each / weight[targets].sum() * len(targets)

    with pytest.raises(NotPrivate, match="the gradient of an example"):
        probe(ClippingEngine(nn.Linear(4, 2), disguised), torch.rand(5, 4), torch.tensor([0, 1, 1, 0, 1]))


@pytest.mark.parametrize("reduce", [torch.mean, torch.sum])
def test_a_loss_that_reduces_over_the_batch_is_caught(reduce: object) -> None:
    engine = ClippingEngine(nn.Linear(4, 2), lambda out, y: reduce(F.cross_entropy(out, y, reduction="none")))  # type: ignore[operator]
    with pytest.raises(InvalidInput, match="one number for each example"), engine.attached():
        engine.clipped_sum(torch.rand(5, 4), torch.tensor([0, 1, 1, 0, 1]), clip=1)
    with pytest.raises(InvalidInput, match="reduces over the batch"):
        ClippingEngine(nn.Linear(4, 2), nn.KLDivLoss())


def test_broadcasting_targets_are_caught() -> None:
    """Outputs [B, 1] against targets [B] would pair everybody with everybody: a classic."""
    engine = ClippingEngine(nn.Linear(4, 1), nn.MSELoss())
    with pytest.raises(InvalidInput, match="pair each example with all others"), engine.attached():
        engine.clipped_sum(torch.rand(5, 4), torch.rand(5), clip=1)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_torch_losses_mean_within_an_example_what_they_say(reduction: str) -> None:
    outputs, targets = torch.randn(5, 3, 7), torch.randint(0, 3, (5, 7))
    targets[:, :3] = -100
    targets[2] = -100
    ours = ClippingEngine(nn.Linear(1, 1), nn.CrossEntropyLoss(reduction=reduction)).loss(outputs, targets)
    for i in range(5):
        alone = F.cross_entropy(outputs[i : i + 1], targets[i : i + 1], reduction=reduction)
        assert ours[i].item() == pytest.approx(0.0 if i == 2 else alone.item(), rel=1e-6)
    with pytest.raises(InvalidInput, match="within an example"):
        ClippingEngine(nn.Linear(1, 1), nn.MSELoss(reduction="none")).loss(torch.rand(5, 3), torch.rand(5, 3))


def test_sequence_first_inside_a_model_is_refused_by_name() -> None:
    """Of a layer that works on more than the last dimensions."""

    class Wrong(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.MultiheadAttention(4, 2, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            turned = x.transpose(0, 1)
            out: Tensor = self.layer(turned, turned, turned)[0].transpose(0, 1)
            return out

    with pytest.raises(Unsupported, match="batch_first=True"):
        probe(ClippingEngine(Wrong(), loss), torch.rand(5, 3, 4), torch.rand(5, 3, 4))


class Kink(nn.Module):
    """On or off by the sign of a number that is zero but for rounding: in a batch it comes out otherwise than
    alone."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2, bias=False)
        nn.init.constant_(self.layer.weight, 0.5)

    def forward(self, x: Tensor) -> Tensor:
        found = self.layer(x)
        rounding = 1e-8 if len(x) > 1 else -1e-8
        edge = self.layer.weight.detach()[0, 0] - 0.5  # at initialization, the kink itself
        return found * (1 + 0.01 * (edge + rounding > 0))


def test_a_kink_hit_by_rounding_is_not_taken_for_mixing() -> None:
    """Found with an encoder of two layers: one in seventy fresh ones was refused."""
    model = Kink()
    before = [p.clone() for p in model.parameters()]
    engine = ClippingEngine(model, nn.CrossEntropyLoss())
    x, y = made_up(torch.zeros(1, 3)), made_up(torch.zeros(1, dtype=torch.long))
    with engine.attached():
        assert differing(engine, x, y), "the kink is there"
    probe(engine, x, y)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


class KinkOfOne(Kink):
    """The same, for one example alone."""

    def __init__(self, example: Tensor) -> None:
        super().__init__()
        self.register_buffer("example", example)

    def forward(self, x: Tensor) -> Tensor:
        at_kink = (x - self.example).abs().amax(1, keepdim=True) < 1e-6
        return torch.where(at_kink, super().forward(x), self.layer(x))


def test_a_kink_of_one_example_is_looked_at_in_one_batch_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that was compared takes the place of its examples alone: larger ones decide the kink as it does."""
    asked: list[tuple[torch.dtype, set[int]]] = []
    before = BatchComparison.differing_sizes

    def spied(self: BatchComparison, inputs: Tensor, targets: Tensor, sizes: set[int]) -> set[int]:
        asked.append((self.engine.dtype, sizes))
        return before(self, inputs, targets, sizes)

    monkeypatch.setattr(BatchComparison, "differing_sizes", spied)
    x, y = made_up(torch.zeros(1, 3)), made_up(torch.zeros(1, dtype=torch.long))
    for position, size in ((0, 3), (2, 3), (4, 5)):
        asked.clear()
        probe(ClippingEngine(KinkOfOne(x[position]), nn.CrossEntropyLoss()), x, y, batch=40)
        (first, sizes), (second, left) = asked[:2]
        assert (first, second) == (torch.float32, torch.float64)
        assert sizes == {1, 3, 5, 12, 40}
        assert left == {size}


def test_float64_looks_again_only_at_the_sizes_that_float32_left_open() -> None:
    """Its convolutions take ten times as long; at sizes above one the kink falls to the same side."""
    model, sizes = Kink(), set()
    model.register_forward_pre_hook(
        lambda m, args: sizes.add(len(args[0])) if m.layer.weight.dtype is torch.float64 else None  # type: ignore[union-attr, func-returns-value]
    )
    x, y = made_up(torch.zeros(1, 3)), made_up(torch.zeros(1, dtype=torch.long))
    probe(ClippingEngine(model, nn.CrossEntropyLoss()), x, y, batch=40)
    assert {1, 5} <= sizes <= {1, 3, 5}


def test_training_does_not_load_torchs_compiler(tmp_path: Path) -> None:
    """A hundred megabytes, and seconds."""
    code = (
        "import sys, torch; from torch import nn; from discreet import Public; from "
        "discreet.learning import SGD, Examples, Trainer; "
        "from discreet.sampling import Entropy; public = Public(size=40); "
        "trainer = Trainer(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2)), "
        "nn.CrossEntropyLoss(), public=public, "
        "noise_multiplier=1.0, clip=1.0, batch=8, steps=3, optimizer=SGD(lr=0.1)); "
        "trainer(Examples(torch.randn(40, 4), torch.zeros(40, dtype=torch.long), public), "
        "entropy=Entropy()); "
        "assert 'torch._dynamo' not in sys.modules"
    )
    done = warm.run(code, tmp_path)
    assert done.returncode == 0, done.stderr
