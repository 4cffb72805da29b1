"""Peak memory and start-up: what a private run holds beside a plain one, in processes of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from discreet import NotPrivate, Public
from discreet.learning import Trainer
from discreet.learning.clipping.engine import ClippingEngine
from discreet.learning.probing.safety import made_up, probe
from discreet.learning.probing.single_examples import Measured

from .zoo import differing, rows_of

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "bert-base"])
def test_peak_memory_is_at_most_1_3_times_that_of_plain_torch(name: str) -> None:
    """Of the whole process: start-up with its probe, and steps."""
    peaks = {}
    for who in ("plain", "ours"):
        code = f"from benchmarks.models import report_peak; report_peak({who!r}, {name!r})"
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
        )
        peaks[who] = float(done.stdout)
    assert peaks["ours"] <= 1.3 * peaks["plain"]


class Text(nn.Module):
    """The shape of a tiny BERT: 2 layers, 128 wide, 30,522 words."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(30_522, 128), nn.Embedding(512, 128)
        layer = nn.TransformerEncoderLayer(128, 2, 512, batch_first=True)
        self.layers, self.out = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(128, 2)

    def forward(self, ids: Tensor) -> Tensor:
        where = torch.arange(ids.shape[1]).unsqueeze(0)
        scores: Tensor = self.out(self.layers(self.words(ids) + self.positions(where))[:, 0])
        return scores


def test_a_tiny_bert_is_probed_in_few_passes() -> None:
    """Measured: 40 passes over 150 rows in all."""
    torch.manual_seed(0)
    trainer = Trainer(
        Text(), nn.CrossEntropyLoss(), public=Public(size=100), noise_multiplier=1.0, batch=10, steps=5
    )
    rows: list[int] = []
    trainer.model.register_forward_pre_hook(lambda _, args: rows.append(len(args[0])))
    trainer._try(trainer._engine(trainer.model), torch.zeros(1, 128, dtype=torch.long), torch.zeros(1).long())
    assert 0 < len(rows) < 60
    assert sum(rows) < 300


def test_sums_as_large_as_the_model_are_built_once_for_each_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a change of one example leaves all else as it was bit by bit, nothing is built to see it."""
    sizes: list[int] = []
    before = Measured.parts

    def spied(self: Measured, weights: Tensor, *parameters: object) -> object:
        sizes.append(len(weights))
        return before(self, weights, *parameters)  # type: ignore[arg-type]

    monkeypatch.setattr(Measured, "parts", spied)
    given = made_up(torch.zeros(1, 16, dtype=torch.long)), made_up(torch.zeros(1, dtype=torch.long))
    probe(ClippingEngine(Text(), nn.CrossEntropyLoss()), *given, batch=30)
    assert sizes == [1, 3, 5, 12, 30]


class Writes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        self.layer.weight.data.add_(x.detach().mean(), alpha=1e-3)
        out: Tensor = self.layer(x)
        return out


def test_a_forward_pass_that_writes_into_weights_is_refused() -> None:
    engine = ClippingEngine(Writes(), nn.CrossEntropyLoss())
    with pytest.raises(NotPrivate, match="changing one made-up example changed"):
        probe(engine, made_up(torch.zeros(1, 3)), made_up(torch.zeros(1, dtype=torch.long)))


def test_the_probe_leaves_weights_gradients_and_modes_as_they_were() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2))
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    before = [p.clone() for p in model.parameters()]
    model.eval()
    engine = ClippingEngine(model, nn.CrossEntropyLoss())
    probe(engine, made_up(torch.zeros(1, 3)), made_up(torch.zeros(1, dtype=torch.long)))
    for p, old in zip(model.parameters(), before, strict=True):
        assert torch.equal(p, old)
        assert p.grad is not None
        assert bool((p.grad == 1).all())
    assert not any(module.training for module in model.modules())


class Swapped(nn.Module):
    """Hands the rows of its linear layer to the neighbor and back: lengths stay, owners do not."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.layer(x.roll(1, 0)).roll(-1, 0)
        return scores


def test_gradients_that_belong_to_another_example_differ_in_a_weighted_sum() -> None:
    """The sum of all of them is right, so that only weights tell: the engine gives row i + 1 to example i."""
    torch.manual_seed(0)
    engine = ClippingEngine(Swapped(), nn.CrossEntropyLoss())
    x, y = made_up(torch.zeros(1, 3)), made_up(torch.zeros(1, dtype=torch.long))
    with engine.attached():
        rows = rows_of(engine, x, y)
        plain = engine.clipped_sum(x, y, clip=1e9)
        assert torch.allclose(rows.sum(0), plain, atol=1e-5)
        assert differing(engine, x, y)


@pytest.mark.parametrize("count", [5, 10, 11, 12, 23])
def test_made_up_examples_of_ones_own_may_be_many(count: int) -> None:
    torch.manual_seed(0)
    given = torch.rand(count, 3), torch.randint(0, 2, (count,))
    trainer = Trainer(
        nn.Linear(3, 2), nn.CrossEntropyLoss(), public=Public(size=100), noise_multiplier=1.0, batch=10,
        steps=5, synthetic=given,
    )  # fmt: skip
    assert trainer.synthetic is given
    with pytest.raises(NotPrivate, match="mixes examples"):
        probe(ClippingEngine(Averages(), nn.CrossEntropyLoss()), *given)


class Averages(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.layer(x - x.mean(0))
        return scores
