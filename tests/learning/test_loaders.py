"""Datasets on disk and DataLoaders: read by position and by their workers, in batches of exact Poisson coins."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import Tensor, nn
from torch.utils import data as torchs

import discreet as dp
from discreet import InvalidInput, ReleaseFailed
from discreet.learning import Augment, Examples, Performance, Trainer
from discreet.learning.training.data import ReadAhead
from discreet.sampling import SeededEntropy

SIZE = 80
PUBLIC = dp.Public(table="people", size=SIZE)
VISITS = dp.Public(table="visits", size=SIZE // 4, unit=dp.Unit("patient", rows=3))


class OnDisk(torchs.Dataset):  # type: ignore[type-arg]
    """Rows of a file that is mapped into memory, and opened by whoever reads it."""

    def __init__(self, path: Path) -> None:
        self.path, self.rows = path, None

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, position: int) -> tuple[Tensor, int]:
        if self.rows is None:
            self.rows = np.memmap(self.path, np.float32, "r", shape=(SIZE, 5))
        row = torch.tensor(self.rows[position])
        return row[:4], int(row[4])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(SIZE, 5)).astype(np.float32)
    rows[:, 4] = rows[:, 0] > 0
    rows.tofile(tmp_path / "rows")
    return tmp_path / "rows"


def weights(examples: Examples, model: nn.Module, **changes: Any) -> Tensor:
    options: dict[str, Any] = {"public": PUBLIC, "noise_multiplier": 1.0, "batch": 10, "steps": 7} | changes
    made = Trainer(model, "cross_entropy", **options)
    return nn.utils.parameters_to_vector(made(examples, entropy=SeededEntropy(3)).value.parameters())


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"performance": Performance(microbatch=3)},
        {"batch": 0.4, "steps": 30},  # most batches are empty
        {"sampling": "balls_in_bins", "steps": None, "epochs": 1},
        {"augment": Augment(function=lambda x: -x, times=2)},
        {"public": VISITS, "batch": 4},
    ],
)
def test_workers_read_what_the_run_would_read_itself(
    path: Path, changes: dict[str, Any], monkeypatch: Any
) -> None:
    dataset, read, take = OnDisk(path), [], ReadAhead.take
    public = changes.get("public", PUBLIC)
    people = [i // 4 for i in range(SIZE)] if public is VISITS else None

    def checked(self: ReadAhead, positions: Any) -> Any:
        was_planned = bool(self._planned)
        inputs, targets = take(self, positions)
        assert was_planned
        alone = self._examples.take(positions)
        assert torch.equal(inputs, alone[0])
        assert torch.equal(targets, alone[1])
        read.append(positions)
        return inputs, targets

    monkeypatch.setattr(ReadAhead, "take", checked)
    loader = torchs.DataLoader(dataset, num_workers=2, prefetch_factor=2, shuffle=True, batch_size=64)
    weights(Examples.of(loader, public, people=people), nn.Linear(4, 2), **changes)
    assert sum(map(len, read)) > 0
    assert max(map(len, read)) <= (3 if "performance" in changes else SIZE)
    if changes.get("sampling") == "balls_in_bins":
        assert sorted(np.concatenate(read)) == list(range(SIZE))


def test_rows_are_read_by_the_workers(path: Path) -> None:
    class Noting(OnDisk):
        def __getitem__(self, position: int) -> tuple[Tensor, int]:
            (path.parent / f"reader {os.getpid()}").touch()
            return super().__getitem__(position)

    loader = torchs.DataLoader(Noting(path), num_workers=2)
    examples = Examples.of(loader, PUBLIC, like=(torch.zeros(1, 4), torch.zeros(1).long()))
    weights(examples, nn.Linear(4, 2))
    readers = {int(file.name.split()[1]) for file in path.parent.glob("reader *")}
    assert len(readers) == 2
    assert os.getpid() not in readers


def test_an_item_that_cannot_be_read_counts_as_zeros_in_a_worker_too(path: Path) -> None:
    class Broken(OnDisk):
        def __getitem__(self, position: int) -> tuple[Tensor, int]:
            if position == 7:
                raise OSError("a secret")
            return super().__getitem__(position)

    examples = Examples.of(
        torchs.DataLoader(Broken(path), num_workers=1),
        PUBLIC,
        like=(torch.zeros(1, 4), torch.zeros(1).long()),
    )
    ahead = ReadAhead(examples, iter([np.array([6, 7, 8])]), SeededEntropy(1))  # type: ignore[arg-type]
    inputs, _ = ahead.take(np.array([6, 7, 8]))
    assert inputs[1].tolist() == [0] * 4
    assert torch.equal(inputs[2], OnDisk(path)[8][0])


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_worker_that_dies_ends_the_run(path: Path) -> None:
    class Dying(OnDisk):
        def __getitem__(self, position: int) -> tuple[Tensor, int]:
            os.kill(os.getpid(), signal.SIGKILL)
            raise AssertionError

    loader = torchs.DataLoader(Dying(path), num_workers=1)
    examples = Examples.of(loader, PUBLIC, like=(torch.zeros(1, 4), torch.zeros(1).long()))
    with pytest.raises(ReleaseFailed, match="worker process"):
        weights(examples, nn.Linear(4, 2))


def test_a_collate_function_is_given_one_item_and_cannot_mix(path: Path) -> None:
    given: list[int] = []

    def mixing(items: list[Any]) -> tuple[Tensor, Tensor]:
        given.append(len(items))
        x = torch.stack([item[0] for item in items])
        return x - x.mean(0) + 1, torch.tensor([item[1] for item in items])

    examples = Examples.of(torchs.DataLoader(OnDisk(path), collate_fn=mixing), PUBLIC)
    inputs, targets = examples.take(np.arange(6))
    assert set(given) == {1}
    assert torch.equal(inputs, torch.ones(6, 4))
    assert targets.shape == (6,)


def test_a_sampler_that_matters_is_refused_and_plain_ones_play_no_part(path: Path) -> None:
    dataset = OnDisk(path)
    for sampler in (
        torchs.WeightedRandomSampler([1.0] * SIZE, 10),
        torchs.SubsetRandomSampler(range(10)),
        torchs.RandomSampler(dataset, replacement=True),
        torchs.RandomSampler(dataset, num_samples=5),
    ):
        with pytest.raises(InvalidInput, match=f"by a {type(sampler).__name__}"):
            Examples.of(torchs.DataLoader(dataset, sampler=sampler), PUBLIC)
        chosen = torchs.BatchSampler(sampler, 4, drop_last=False)
        with pytest.raises(InvalidInput, match=f"by a {type(sampler).__name__}"):
            Examples.of(torchs.DataLoader(dataset, batch_sampler=chosen), PUBLIC)

    class Own(torchs.BatchSampler):
        pass

    own = Own(torchs.SequentialSampler(dataset), 5, drop_last=False)
    with pytest.raises(InvalidInput, match="by a Own"):
        Examples.of(torchs.DataLoader(dataset, batch_sampler=own), PUBLIC)
    for options in ({}, {"shuffle": True}, {"batch_size": None}, {"batch_size": 7, "drop_last": True}):
        assert Examples.of(torchs.DataLoader(dataset, **options), PUBLIC).size == SIZE

    class Stream(torchs.IterableDataset):  # type: ignore[type-arg]
        def __iter__(self) -> Any:
            return iter([])

    with pytest.raises(InvalidInput, match="map-style"):
        Examples.of(torchs.DataLoader(Stream()), PUBLIC)


def test_arrays_and_tables_on_disk_are_not_read_as_a_whole(path: Path, tmp_path: Path) -> None:
    """Of a sparse file of 64 GB, larger than the memory, only the rows that a batch takes are read."""
    rows = 1 << 32
    (tmp_path / "large").touch()
    os.truncate(tmp_path / "large", rows * 16)
    large = np.memmap(tmp_path / "large", np.float32, "r", shape=(rows, 4))
    labels = np.memmap(tmp_path / "large", np.int8, "r", shape=(rows,))
    inputs, targets = Examples(large, labels, PUBLIC).take(np.array([5, rows - 1]))
    assert inputs.dtype is torch.float32
    assert inputs.shape == (2, 4)
    assert targets.tolist() == [0, 0]
    everything = np.memmap(path, np.float32, "r", shape=(SIZE, 5))
    in_memory = Examples(np.array(everything[:, :4]), np.array(everything[:, 4]).astype(int), PUBLIC)
    mapped = Examples(everything[:, :4], np.array(everything[:, 4]).astype(int), PUBLIC)
    model = nn.Linear(4, 2)
    torch.testing.assert_close(weights(mapped, model), weights(in_memory, model), rtol=0, atol=0)


def test_many_rows_of_a_mapped_arrow_file_are_read_at_once(tmp_path: Path) -> None:
    table = pa.table({"x": np.arange(SIZE, dtype=np.float32), "y": np.arange(SIZE) % 2})
    with pa.OSFile(str(tmp_path / "arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    calls: list[int] = []

    class Arrow:
        def __init__(self) -> None:
            self.table = pa.ipc.open_file(pa.memory_map(str(tmp_path / "arrow"))).read_all()

        def __len__(self) -> int:
            return len(self.table)

        def __getitem__(self, position: int) -> Any:
            return self.__getitems__([position])[0]

        def __getitems__(self, positions: list[int]) -> list[Any]:
            calls.append(len(positions))
            part = self.table.take(positions)
            return [
                (np.array([x], np.float32), y)
                for x, y in zip(part["x"].to_pylist(), part["y"].to_pylist(), strict=True)
            ]

    examples = Examples.of(Arrow(), PUBLIC)
    inputs, targets = examples.take(np.array([3, 70, 5]))
    assert inputs.flatten().tolist() == [3, 70, 5]
    assert targets.tolist() == [1, 0, 1]
    assert calls == [1, 3]
