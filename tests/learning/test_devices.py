"""Training runs where the model is: shown on the CPU, as no accelerator was at hand (docs/never-run.md).

Here are a few of each kind of layer and option; `pytest --devices tests/learning` runs all tests of learning so.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from discreet import InvalidInput, Public, Unit, learning
from discreet.learning import SGD, Adam, Adaptive, Augment, Automatic, Examples, LocalSGD, PerLayer, Trainer
from discreet.learning.clipping import batching, taps
from discreet.learning.clipping.engine import ClippingEngine
from discreet.learning.clipping.norms import Flat, factors
from discreet.learning.training.gradient_noise import NoiseBuffer, square_root
from discreet.learning.training.trainer import Performance
from discreet.sampling import Entropy
from tests.learning.placement import placement
from tests.learning.zoo import ZOO, loss, made, naive, rows_of

# These tests enter the mode by themselves.
pytestmark = pytest.mark.one_device
ROOT = Path(__file__).parents[2]
SIZE = 24


@pytest.mark.filterwarnings("ignore:Using padding='same'", "ignore:LSTM with projections")
@pytest.mark.parametrize("name", ZOO)
def test_no_layer_makes_a_tensor_without_a_device_or_reads_one_by_numpy(name: str) -> None:
    model, x, y = made(name)
    true = naive(model, x, y)
    engine = ClippingEngine(model, loss)
    with placement() as found, engine.attached():
        rows = rows_of(engine, x, y)
        engine.clipped_sum(x, y, clip=1.0)
    assert found == set()
    torch.testing.assert_close(rows, true, rtol=1e-3, atol=1e-4)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 6), nn.LayerNorm(6), nn.ReLU(), nn.Dropout(0.1), nn.Linear(6, 2))


def jitter(images: Tensor) -> Tensor:
    return images + torch.randn_like(images) / 100


PEOPLE: dict[str, Any] = {"public": Public(unit=Unit("person", rows=3)), "batch": 4, "n": 8}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "adam": {"optimizer": Adam(noise_aware=True)},
    "momentum": {"optimizer": SGD(lr=0.1, momentum=0.9, nesterov=True)},
    "torch's": {"optimizer": lambda parameters: torch.optim.RMSprop(parameters)},
    "per layer": {"clip": PerLayer(clip=1.0)},
    "automatic": {"clip": Automatic()},
    "adaptive": {"clip": Adaptive(), "batch": 12, "noise_multiplier": 0.5},
    "discrete": {"noise": "discrete"},
    "discrete per layer": {"noise": "discrete", "clip": PerLayer(clip=1.0)},
    "average": {"average": 0.9},
    "microbatch": {"microbatch": 3},
    "isolated": {"isolate": True},
    "truncated": {
        "sampling": "truncated_poisson",
        "limit": 12,
        "public": Public(size=SIZE, neighbors="zero_out"),
    },
    "bins": {"sampling": "balls_in_bins", "steps": None, "epochs": 1},
    "without replacement": {
        "sampling": "without_replacement",
        "public": Public(size=SIZE, neighbors="replace"),
    },
    "correlated": {"sampling": "cyclic", "steps": None, "epochs": 1, "strategy": square_root(3), "batch": 8},
    "augmented": {"augment": Augment(function=jitter, times=2)},
    "people": PEOPLE,
    "people, sum": {**PEOPLE, "pooling": "sum"},
    "federated": {**PEOPLE, "local": LocalSGD(batch=2)},
}


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.rand(SIZE, 5, generator=generator)
    return inputs, (inputs.sum(1) > 2.5).long()


def trained(options: dict[str, Any], inputs: Tensor, targets: Tensor, model: nn.Module) -> Any:
    settings: dict[str, Any] = {
        "public": Public(size=SIZE),
        "noise_multiplier": 1.0,
        "batch": 8,
        "steps": 3,
        "clip": 1.0,
    }
    trainer = Trainer(model, nn.CrossEntropyLoss(), **(settings | options))
    people = [i // 3 for i in range(SIZE)] if trainer.public.unit.column else None
    source = Examples(inputs, targets, trainer.public, people=people)
    trainer.rehearse(source)
    return trainer(source, entropy=Entropy()).value


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_no_trainer_makes_a_tensor_without_a_device_or_reads_one_by_numpy(options: dict[str, Any]) -> None:
    model, examples = network(), data()
    with placement() as found:
        result = trained(options, *examples, model)
    assert found == set()
    assert {p.device.type for p in result.parameters()} == {"cpu"}
    assert all(p.isfinite().all() for p in result.parameters())


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_training_runs_where_the_model_is_whatever_the_default_device(options: dict[str, Any]) -> None:
    model, examples = network(), data()
    with torch.device("meta"):
        result = trained(options, *examples, model)
    assert all(p.device.type == "cpu" and p.isfinite().all() for p in result.parameters())


def test_checkpoints_are_read_and_written_on_the_host() -> None:
    model, examples, public = network(), data(), Public(size=SIZE)
    trainer = Trainer(
        model,
        "cross_entropy",
        public=public,
        noise_multiplier=1.0,
        batch=8,
        steps=3,
        optimizer=Adam(),
        average=0.9,
    )
    source = Examples(*examples, public)
    with placement() as found:
        run = trainer.start(source, entropy=Entropy())
        run.step()
        again = trainer.restore(source, run.dump(), 1, entropy=Entropy())
        again.step()
    assert found == set()
    assert again.steps_taken == 2


def test_the_mode_sees_what_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = ClippingEngine(network(), "cross_entropy")
    monkeypatch.setattr(engine.__class__, "buffer", forgetful())
    with placement() as found:
        engine.buffer()
    assert len(found) == 2
    assert any("zeros() without a device" in place for place in found)
    assert any("numpy() without cpu()" in place for place in found)


def forgetful() -> Any:
    """A method that forgets both."""
    return of_discreet(
        "def buffer(self):\n    torch.zeros(3)\n    self.parameters['0.bias'].detach().numpy()\n"
    )["buffer"]


def of_discreet(code: str) -> dict[str, Any]:
    """What this code defines, which is discreet's by the name of its file."""
    space: dict[str, Any] = {"torch": torch}
    exec(compile(code, str(Path(learning.__file__).parent / "forgetful.py"), "exec"), space)
    return space


def test_a_mode_answers_for_what_it_makes_itself_and_not_for_what_it_passes_on() -> None:
    kind = of_discreet(
        "class Mode(torch.overrides.TorchFunctionMode):\n"
        "    def __torch_function__(self, func, types, args=(), kwargs=None):\n"
        "        if func is torch.sum:\n            torch.zeros(3)\n"
        "        return func(*args, **(kwargs or {}))\n"
    )["Mode"]
    with placement() as found, kind():
        ones = torch.ones(2)
        assert found == set()
        torch.sum(ones)
    (place,) = found
    assert "zeros() without a device" in place


@pytest.mark.parametrize("bias", [False, True])
def test_the_bounds_of_an_accelerator_are_those_of_the_cpu(
    monkeypatch: pytest.MonkeyPatch, bias: bool
) -> None:
    """By the same formulas, summed in another order: equal to the last bits, and no less than the truth."""
    x, g = torch.randn(4, 7, 5), torch.randn(4, 7, 3)
    own = torch.rand(4, 7) > 0.2
    x, g = x * own.unsqueeze(2), g * own.unsqueeze(2)

    def bounds() -> list[Tensor]:
        ghost = taps.ghost_bound(taps.gram(x), taps.gram(g), own, 5, 3, bias=bias)
        squares = taps.squares(x.flatten(1))
        both = torch.stack([squares, ghost], 1)
        rules = [Flat(clip=0.5), PerLayer(clip=0.5), Automatic()]
        return [ghost, squares, *(factors(rule, both)[0] for rule in rules)]

    on_cpu = bounds()
    monkeypatch.setattr(taps, "on_host", lambda tensor: False)
    elsewhere = bounds()
    for one, other in zip(on_cpu, elsewhere, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=0)
    product = torch.einsum("btp,btk->bpk", g.double(), x.double()).square().sum((1, 2))
    product += g.double().sum(1).square().sum(1) * bias
    assert (elsewhere[0] >= product).all()
    assert (elsewhere[1] >= x.double().square().sum((1, 2))).all()


def test_a_gradient_that_is_not_finite_is_dropped_on_an_accelerator_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(taps, "on_host", lambda tensor: False)
    squares = torch.tensor([[1.0], [float("nan")], [float("inf")], [1e300]], dtype=torch.float64)
    weights, keep = factors(Flat(clip=1.0), squares)
    assert keep is not None
    assert keep.tolist() == [True, False, False, True]
    assert weights[1:].flatten().tolist() == [0.0, 0.0, 0.0]


def test_noise_is_drawn_on_the_host_and_copied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taps, "on_host", lambda tensor: False)
    size = 1 << 19
    noise, drawn = NoiseBuffer(size, torch.float32, 2.0, Entropy()), []
    for _ in range(2):
        vector = torch.empty(size)
        noise.into(vector)
        drawn.append(vector)
    # deviation 2, and independent: both within nine standard errors
    for vector in drawn:
        assert abs(float(vector.std()) - 2) < 9 * 2 / np.sqrt(2 * size)
    assert abs(float((drawn[0] * drawn[1]).mean())) < 9 * 4 / np.sqrt(size)


def test_products_of_cuda_are_those_of_float32() -> None:
    """Its convolutions have TF32 by default, as this torch says without a GPU."""
    names = {type(setting._backend).__name__: setting.names for setting in batching._settings(with_cuda=True)}
    of_cuda = batching._settings(with_cuda=True)[-3:]
    assert len(names) > 1
    assert all(setting.names == {"ieee"} for setting in of_cuda)
    assert {setting.get() for setting in of_cuda} <= {"ieee", "tf32", "none"}


def test_the_trained_copy_is_on_the_device_that_was_asked_for() -> None:
    model = network()
    result = trained({"performance": Performance(device="cpu")}, *data(), model)
    assert {p.device.type for p in result.parameters()} == {"cpu"}
    with pytest.raises(InvalidInput, match=r"device='cuda' is not there.*Leave out device="):
        trained({"performance": Performance(device="cuda")}, *data(), model)


def test_the_benchmark_refuses_a_device_that_is_not_there() -> None:
    command = [sys.executable, "-m", "benchmarks", "learning", "--device", "cuda"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 2
    assert "no device 'cuda' here" in done.stdout
