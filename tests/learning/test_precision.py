"""Half precision: whatever underflows or overflows on the way, nothing leaves longer than the clip, and
nothing is lost without need."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from discreet import InvalidInput, NotPrivate, Public, Unsupported
from discreet.learning import Automatic, Examples, Flat, Performance, PerLayer, Trainer
from discreet.learning.clipping import isolation, layers
from discreet.learning.clipping.engine import ClippingEngine
from discreet.learning.probing.safety import probe
from discreet.sampling import Entropy

from .zoo import ZOO, B, made

pytestmark = [
    pytest.mark.filterwarnings("ignore:Using padding='same'"),
    pytest.mark.filterwarnings("ignore:LSTM with projections is not supported"),
    pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight"),
]
HALVES = [torch.bfloat16, torch.float16]
SOME = [
    "linear",
    "linear, many places",
    "conv2d",
    "layer norm",
    "text classifier",
    "transformer",
    "cnn with in-place relu",
    "somebody's own",
    "lora",
]


class Half(nn.Module):
    """The usual way: float32 weights, half precision inside."""

    def __init__(self, inner: nn.Module, kind: torch.dtype) -> None:
        super().__init__()
        self.inner, self.kind = inner, kind

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=self.kind):
            return self.inner(x).float()


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs * targets).flatten(1).sum(1)


@pytest.mark.parametrize("kind", HALVES, ids=str)
@pytest.mark.parametrize("scale", [1e-7, 1e-3, 1e4])
@pytest.mark.parametrize("name", SOME)
def test_no_term_is_longer_than_the_clip(name: str, scale: float, kind: torch.dtype) -> None:
    """Gradients from far below what half precision can square to far above.

    The term is measured in float64.
    """
    model, x, y = made(name)
    engine = ClippingEngine(Half(model, kind), loss)
    for rule in (Flat(clip=1e-6), PerLayer(clip=1e-6), Automatic(clip=1e-6)):
        with engine.attached():
            for i in range(B):
                one = engine.clipped_sum(x[i : i + 1], y[i : i + 1] * scale, clip=rule).double()
                assert one.isfinite().all()
                assert one.norm() <= 1e-6 * (1 + 1e-6)


@pytest.mark.parametrize("kind", HALVES, ids=str)
@pytest.mark.parametrize("name", SOME)
def test_gradients_are_near_those_of_full_precision(name: str, kind: torch.dtype) -> None:
    model, x, y = made(name)
    y = y / y.abs().max()
    found = []
    for engine in (ClippingEngine(model, loss), ClippingEngine(Half(model, kind), loss)):
        with engine.attached():
            found.append(engine.clipped_sum(x, y, clip=1.0))
    assert (found[0] - found[1]).norm() <= 0.1 * found[0].norm()


def term(model: nn.Module, x: Tensor, y: Tensor) -> Any:
    engine = ClippingEngine(Half(model, torch.float16), loss)
    with engine.attached():
        return engine.clipped_sum(x, y, clip=1e-5).double().norm().item()


def test_norms_in_half_precision_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant of jax-privacy 309: without the lift to float32 squares underflow, norms are zero, and terms
    leave unclipped."""
    model, x, y = nn.Linear(600, 8, bias=False), torch.full((1, 600), 1e-4), torch.full((1, 8), 0.03)
    assert term(model, x, y) <= 1e-5 * (1 + 1e-6)

    def short(rows: Tensor) -> Tensor:  # what squares in half precision are: every square below 6e-8 is gone
        return rows.half().square().sum(-1).double()

    monkeypatch.setattr("discreet.learning.clipping.taps.squares", short)
    assert term(model, x, y) > 10 * 1e-5


@pytest.mark.parametrize("kind", HALVES, ids=str)
def test_autocast_around_training_does_not_reach_the_norms(kind: torch.dtype) -> None:
    """Sums of many places, where products in half precision are off by a hundredth and more."""
    public, clip = Public(size=1), 1e-3
    model = nn.Sequential(nn.Linear(40, 30), nn.Tanh(), nn.Linear(30, 20))
    x, y = torch.randn(1, 50, 40), torch.randn(1, 50, 20)
    made_ = Trainer(model, loss, public=public, noise_multiplier=1e-9, clip=clip, batch=1, steps=1)
    run = made_.start(Examples(x, y, public), entropy=Entropy())
    with torch.autocast("cpu", dtype=kind), run:
        total = run.engine.buffer()
        run.summands.add(np.array([0]), run.engine.sums(total))
    assert 0.99 * clip <= total.double().norm() <= clip * (1 + 1e-6)


def test_half_precision_parameters_are_refused_and_float64_is_kept() -> None:
    for kind in HALVES:
        with pytest.raises(Unsupported, match="autocast"):
            ClippingEngine(nn.Linear(2, 2).to(kind), loss)
    with pytest.raises(Unsupported, match="autocast"):
        ClippingEngine(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).bfloat16()), loss)
    assert ClippingEngine(nn.Linear(2, 2).double(), loss).dtype == torch.float64


def test_every_layer_lifts_what_it_keeps() -> None:
    """A tap holds float32 at least, for every model of the zoo, whatever went through the layer."""
    for name in ZOO:
        model, x, y = made(name)
        engine = ClippingEngine(Half(model, torch.bfloat16), loss)
        try:
            with engine.attached():
                taps = engine.gradients(x, y).taps
        except RuntimeError:  # torch has no half-precision kernel for it
            continue
        held = [
            t for tap in taps for t in vars(tap).values() if isinstance(t, Tensor) and t.is_floating_point()
        ]
        assert held, name
        assert {t.dtype for t in held} <= {torch.float32, torch.float64}, name
    assert layers.single(torch.zeros(1, dtype=torch.float16)).dtype == torch.float32
    assert {layers.single, isolation.single} == {layers.single}


@pytest.mark.parametrize("kind", HALVES, ids=str)
def test_a_model_with_half_precision_inside_passes_the_probe_and_is_trained(kind: torch.dtype) -> None:
    public, x = Public(size=40), torch.randn(40, 5)
    model = Half(nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 2)), kind)
    made_ = Trainer(model, nn.CrossEntropyLoss(), public=public, noise_multiplier=1.0, batch=20, steps=3)
    found = made_(Examples(x, (x.sum(1) > 0).long(), public), entropy=Entropy()).value
    assert all(p.dtype == torch.float32 and p.isfinite().all() for p in found.parameters())


@pytest.mark.parametrize("name", SOME)
def test_with_bfloat16_a_summand_is_no_longer_than_the_clip_and_summed_in_float32(name: str) -> None:
    """The option is autocast in the model, and nowhere else."""
    model, x, y = made(name)
    y = y / y.abs().max()
    seen: set[torch.dtype] = set()
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            module.register_forward_hook(lambda module, inputs, outputs: seen.add(outputs.dtype))
    engine, by_hand = (
        ClippingEngine(model, loss, half=True),
        ClippingEngine(Half(model, torch.bfloat16), loss),
    )
    for rule in (Flat(clip=1e-6), PerLayer(clip=1e-6), Automatic(clip=1e-6)):
        sums = []
        for one in (engine, by_hand):
            with one.attached():
                sums.append(one.clipped_sum(x[:1], y[:1], clip=rule))
        assert sums[0].dtype is torch.float32
        assert sums[0].double().norm() <= 1e-6 * (1 + 1e-6)
        assert (sums[0] - sums[1]).norm() <= 1e-2 * sums[1].norm()
    assert not seen or torch.bfloat16 in seen


@pytest.mark.parametrize("name", ["linear", "conv2d", "transformer"])
def test_with_bfloat16_one_example_more_moves_the_sum_by_no_more_than_the_clip(name: str) -> None:
    """Kernels are chosen by the size of the batch: what they do to the other examples is in this, too."""
    model, x, y = made(name)
    x, y = (torch.cat([t + 0.1 * torch.randn_like(t) for _ in range(5)]) for t in (x, y))
    engine = ClippingEngine(model, loss, half=True)
    with engine.attached():
        for size in (2, 3, 7, 8, 15, 16, 17):
            more = engine.clipped_sum(x[: size + 1], y[: size + 1], clip=1e-3).double()
            for fewer in (slice(0, size), slice(1, size + 1)):
                moved = (more - engine.clipped_sum(x[fewer], y[fewer], clip=1e-3).double()).norm()
                assert moved <= 1e-3 * (1 + 1e-5)


def test_training_in_bfloat16_keeps_weights_sums_and_noise_in_float32() -> None:
    public, x = Public(size=40), torch.randn(40, 5)
    seen: set[torch.dtype] = set()

    class Noting(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            seen.add(x.dtype)
            return x

    made_ = Trainer(
        nn.Sequential(nn.Linear(5, 8), Noting(), nn.ReLU(), nn.Linear(8, 2)), nn.CrossEntropyLoss(), public=public,
        noise_multiplier=1.0, batch=20, steps=3, performance=Performance(precision="bfloat16"),
    )  # fmt: skip
    assert made_.event == Trainer(
        nn.Linear(5, 2), nn.CrossEntropyLoss(), public=public, noise_multiplier=1.0, batch=20, steps=3
    ).event  # fmt: skip
    run = made_.start(Examples(x, (x.sum(1) > 0).long(), public), entropy=Entropy())
    while not run.done:
        run.step()
    assert torch.bfloat16 in seen
    assert {run.values.dtype, run._gradient.dtype} == {torch.float32}
    assert all(p.dtype == torch.float32 and p.isfinite().all() for p in run.model.parameters())
    with pytest.raises(InvalidInput, match="precision must be"):
        Performance(precision="float16")


def test_half_precision_does_not_blind_the_probe() -> None:
    class Mean(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x - 0.05 * x.mean(0)

    for kind in HALVES:
        engine = ClippingEngine(
            Half(nn.Sequential(nn.Linear(5, 8), Mean(), nn.Linear(8, 2)), kind), nn.CrossEntropyLoss()
        )
        with pytest.raises(NotPrivate, match="changing one made-up example changed"):
            probe(engine, torch.rand(5, 5), torch.tensor([0, 1, 0, 1, 1]))


@pytest.mark.parametrize("legacy", [True, False], ids=["one setting", "by kind"])
def test_shortened_products_are_off_while_gradients_are_measured_and_put_back(legacy: bool) -> None:
    """Ghost norms pay for float32's rounding; factors of eight bits would hide a per cent of the length."""
    seen: list[str] = []
    backend = torch.backends.mkldnn.matmul

    class Watched(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(backend.fp32_precision)
            return super().forward(x)

    def watched_loss(outputs: Tensor, targets: Tensor) -> Tensor:
        seen.append(backend.fp32_precision)
        return nn.functional.cross_entropy(outputs, targets, reduction="none")

    x, y = torch.randn(6, 4), torch.zeros(6, dtype=torch.long)
    engine = ClippingEngine(Watched(4, 2), watched_loss)
    before = backend.fp32_precision
    try:
        if legacy:
            torch.set_float32_matmul_precision("medium")
        else:
            backend.fp32_precision = "bf16"
        with engine.attached():
            engine.clipped_sum(x, y, clip=0.1)
        assert backend.fp32_precision == "bf16"
        assert seen
        assert set(seen) == {"ieee"}
    finally:
        if legacy:
            torch.set_float32_matmul_precision("highest")
        backend.fp32_precision = before
