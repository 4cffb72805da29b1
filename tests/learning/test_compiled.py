"""Compiled models on batches filled up to a few public sizes: what fills them up counts for nothing."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from discreet import InvalidInput, Public
from discreet.learning import Examples, Performance, PerLayer, Trainer
from discreet.learning.clipping.engine import ClippingEngine
from discreet.learning.clipping.norms import Flat
from discreet.learning.training.trainer import padded_sizes
from discreet.sampling import Entropy

from .zoo import naive

SIZES = (4, 8, 16)


class Net(nn.Module):
    def __init__(self, rate: float = 0.0) -> None:
        super().__init__()
        self.inside, self.norm, self.out = nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2)
        self.drop = nn.Dropout(rate)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.norm(self.inside(x))) * 2
        scores: Tensor = self.out(self.drop(torch.sigmoid(x) + 1))
        return scores


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).square().sum(1)


class Counting:
    """A backend that compiles nothing, and counts what it is given."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, graph: Any, _: Any) -> Any:
        self.graphs += 1
        return graph.forward


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_a_compiled_model_gives_the_sum_of_single_examples_and_is_compiled_for_public_sizes_only() -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    model, x, y = Net(), torch.randn(40, 4), torch.randn(40, 2)
    truth = naive(model, x, y, loss)
    norms = truth.norm(dim=1)
    clip = float(norms.median())
    clipped = truth * (clip / norms).clamp(max=1).unsqueeze(1)
    backend = Counting()
    engine = ClippingEngine(torch.compile(model, backend=backend), loss, sizes=SIZES)
    counts = []
    with engine.attached():
        for size in (*SIZES, 1, 2, 3, 5, 7, 9, 13, 15, 17, 33, 40):
            got = engine.clipped_sum(x[:size], y[:size], clip=clip)
            assert (got - clipped[:size].sum(0)).norm() <= 1e-4 * clip
            counts.append(backend.graphs)
    assert counts[0] > 0, "something is compiled"
    assert counts[len(SIZES) - 1] <= len(SIZES) * counts[0]
    assert set(counts[len(SIZES) :]) == {counts[len(SIZES) - 1]}, "and nothing for any other size"


def given_sizes(engine: ClippingEngine) -> list[int]:
    """Return a list that fills with the sizes of the batches that go through the model."""
    sizes: list[int] = []
    own = engine.gradients

    def gradients(inputs: Any, targets: Any, **options: Any) -> Any:
        sizes.append(len(targets))
        return own(inputs, targets, **options)

    engine.gradients = gradients  # type: ignore[method-assign]
    return sizes


@pytest.mark.parametrize("rule", [0.1, PerLayer(clip=0.1)])
def test_what_fills_a_batch_up_adds_exactly_nothing(rule: Any) -> None:
    """Also where its copies drop out something else, and where the gradient of what is copied is not
    finite."""
    torch.manual_seed(0)
    model, x, y = Net(rate=0.5), torch.randn(5, 4), torch.randn(5, 2)
    x[0] = float("nan")
    engine = ClippingEngine(model, loss, sizes=SIZES)
    sizes = given_sizes(engine)
    with engine.attached():
        engine.decide((x,))
        torch.manual_seed(1)
        got = engine.clipped_sum(x, y, clip=rule)
        assert sizes == [8]
        assert bool(got.isfinite().all())
        # One example whose gradient is NaN, and seven copies of it: nothing at all.
        assert bool((engine.clipped_sum(x[:1], y[:1], clip=rule) == 0).all())
        # Whatever the copies are, the sum is that of four summands: no longer than four clips.
        assert float(got.norm()) <= 4 * 0.1 * (1 + 1e-6)
    assert sizes == [8, 4]


def test_an_example_beyond_the_count_is_not_in_the_sum() -> None:
    torch.manual_seed(0)
    model, x, y = Net(), torch.randn(8, 4), torch.randn(8, 2)
    engine = ClippingEngine(model, loss, sizes=SIZES)
    with engine.attached():
        engine.decide((x,))
        few = engine.clipped_sum(x[:5], y[:5], clip=0.1)
        for filling in (0.0, 1e30, float("nan"), float("inf")):
            x[5:] = filling
            out = engine.buffer()
            engine._add_part(x, y, Flat(clip=0.1), engine.sums(out), 5)
            assert torch.allclose(out, few, atol=1e-6)


def test_public_sizes_are_functions_of_the_schedule() -> None:
    public = Public(size=1000)
    trainer = Trainer(
        Net(), loss, public=public, noise_multiplier=1.0, batch=100, steps=3,
        performance=Performance(compiled=True),
    )  # fmt: skip
    run = trainer.start(Examples(torch.randn(900, 4), torch.randn(900, 2), public), entropy=Entropy())
    assert run.engine.sizes == padded_sizes(100, 0.1) == (82, 100, 119, 148)
    sizes = given_sizes(run.engine)
    with run:
        while not run.done:
            run.step()
    assert sizes
    assert set(sizes) <= set(padded_sizes(100, 0.1))
    assert padded_sizes(1, 1.0) == (1,)
    assert padded_sizes(0.5, 0.001)[0] == 1


def test_compiled_and_isolated_do_not_go_together() -> None:
    with pytest.raises(InvalidInput, match="do not go together"):
        Performance(compiled=True, isolate=True)


@pytest.mark.skipif(shutil.which("gcc") is None, reason="torch.compile needs a C++ compiler on the CPU")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_code_that_torch_really_compiles_trains_as_the_code_as_written(
    tmp_path: Any, monkeypatch: Any
) -> None:
    """With inductor, torch's own backend: kernels are generated, compiled by gcc and run."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch.manual_seed(0)
    torch._dynamo.reset()
    model, x, y = Net(), torch.randn(40, 4), torch.randn(40, 2)
    expected = ClippingEngine(model, loss)
    compiled = ClippingEngine(torch.compile(model), loss, sizes=SIZES)
    for size in (16, 5, 9):
        sums = []
        for engine in (expected, compiled):
            with engine.attached():
                sums.append(engine.clipped_sum(x[:size], y[:size], clip=0.1))
        torch.testing.assert_close(sums[1], sums[0], rtol=1e-3, atol=1e-5)
    assert list(tmp_path.rglob("*.cpp")), "a kernel was generated"
    assert list(tmp_path.rglob("*.so")), "and compiled"
    public = Public(size=40)
    trainer = Trainer(
        torch.compile(Net()), loss, public=public, noise_multiplier=1.0, batch=10, steps=3,
        performance=Performance(compiled=True),
    )  # fmt: skip
    trained = trainer(Examples(x, y, public), entropy=Entropy()).value
    assert all(bool(p.isfinite().all()) for p in trained.parameters())
