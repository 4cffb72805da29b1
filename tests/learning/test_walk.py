"""An engineer's walk, from the section "The loop you have" of docs/learning.md alone: data on disk to a saved model."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR
from torch.utils.data import DataLoader, Dataset

import discreet as dp
from discreet import learning

SIZE, FEATURES = 2000, 8


class Rows(Dataset):  # type: ignore[type-arg]
    """Rows in a file that is mapped into memory: features, then the label."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __len__(self) -> int:
        return self.path.stat().st_size // (4 * (FEATURES + 1))

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        row = np.array(np.memmap(self.path, np.float32, "r").reshape(-1, FEATURES + 1)[index])
        return torch.from_numpy(row[:-1]), int(row[-1])


class Writer:
    """Stands in for torch.utils.tensorboard.SummaryWriter."""

    def __init__(self) -> None:
        self.steps: dict[str, list[int]] = {}

    def add_scalar(self, tag: str, value: float, global_step: int) -> None:
        self.steps.setdefault(tag, []).append(global_step)


def written(path: Path, size: int, seed: int) -> Rows:
    rows = np.random.default_rng(seed).normal(size=(size, FEATURES + 1)).astype(np.float32)
    rows[:, -1] = rows[:, 0] > rows[:, 1]
    rows.tofile(path)
    return Rows(path)


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.argmax(1) == targets).float().mean()


def trainer(public: dp.Public) -> learning.Trainer:
    return learning.Trainer(
        nn.Sequential(nn.Linear(FEATURES, 16), nn.Tanh(), nn.Linear(16, 2)),
        nn.CrossEntropyLoss(),
        public=public,
        epsilon=3,
        delta=1e-6,
        batch=200,
        epochs=6,
        optimizer=learning.SGD(lr=2.0),
        learning_rate=lambda optimizer: SequentialLR(
            optimizer, [LinearLR(optimizer, 0.1, total_iters=10), CosineAnnealingLR(optimizer, 50)], [10]
        ),
    )


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C raises, also where the tests themselves were started in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_engineer_walks_from_data_on_disk_to_a_saved_model(tmp_path: Path) -> None:
    public = dp.Public(table="people", size=SIZE)
    loader = DataLoader(written(tmp_path / "people", SIZE, 1), num_workers=2, prefetch_factor=2, shuffle=True)
    validation = learning.PublicSet(
        DataLoader(written(tmp_path / "volunteers", 500, 2), batch_size=100), metrics={"accuracy": accuracy}
    )
    people = dp.open(
        learning.Examples.of(loader, public),
        budget=dp.Budget(epsilon=3, delta=1e-5),
        ledger=tmp_path / "ledger",
    )
    writer, told = Writer(), list[learning.Progress]()

    def interrupt(progress: learning.Progress) -> None:
        told.append(progress)
        if progress.step == 25:
            os.kill(os.getpid(), signal.SIGINT)  # Ctrl-C

    checkpoint: Any = tmp_path / "run.checkpoint"
    options: dict[str, Any] = {"validation": validation, "callbacks": [writer, interrupt]}
    with pytest.raises(KeyboardInterrupt) as stopped:
        people.train(trainer(public), checkpoint=checkpoint, every=20, **options)
    assert "goes on from its newest checkpoint" in stopped.value.__notes__[0]
    spent = people.spent
    model = people.resume(trainer(public), checkpoint, **options).value
    assert people.spent == spent <= 3

    # Steps 21 to 40 were claimed and lost; none is run twice, and the rate of a step is that of its number.
    assert [progress.step for progress in told] == [*range(1, 26), *range(41, 61)]
    rates = {progress.step: progress.learning_rate for progress in told}
    assert rates[1] == pytest.approx(0.2)
    assert rates[11] == pytest.approx(2.0)
    assert rates[60] < 0.01
    assert writer.steps["validation/accuracy"] == [10, 20, 50, 60]
    assert told[-1].metrics is not None
    assert told[-1].metrics["accuracy"] > 0.8
    assert told[-1].epsilon == pytest.approx(3, abs=1e-3)

    torch.save(model.state_dict(), tmp_path / "model.pt")
    loaded = trainer(public).model
    loaded.load_state_dict(torch.load(tmp_path / "model.pt"))
    assert validation.score(loaded, "cross_entropy") == told[-1].metrics


def test_a_dataset_of_torch_is_told_how_it_is_opened(tmp_path: Path) -> None:
    """The first thing that somebody tries."""
    rows = written(tmp_path / "people", 10, 1)
    for data in (rows, DataLoader(rows)):
        with pytest.raises(dp.InvalidInput, match=r"opened as examples.*learning\.Examples\.of\(data"):
            dp.open(data, budget=dp.Budget(epsilon=1))
