"""Several workers are one: the same sum, the same law of noise, the same price; and a worker that is killed
takes its step with it."""

from __future__ import annotations

import math
import multiprocessing
import os
import pickle
import signal
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import discreet as dp
from discreet import InvalidInput, Public, ReleaseFailed, Unit, Unsupported
from discreet.learning import Adaptive, Examples, Trainer, across_workers
from discreet.learning.training.gradient_noise import NoiseBuffer
from discreet.learning.training.trainer import TrainingRun
from discreet.sampling import Entropy

from .test_trainer import assert_normal, weights

WORKERS, SIZE = 3, 30
PUBLIC = Public(size=SIZE)
Job = Callable[[int], Any]


def together(path: Path, job: Job, workers: int = WORKERS) -> dict[int, Any]:
    """What each worker's job returned, or the error it raised, or nothing if it was killed; real processes,
    joined by gloo."""
    context = multiprocessing.get_context("fork")

    def work(rank: int) -> None:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{path}/meeting",
            rank=rank,
            world_size=workers,
            timeout=timedelta(seconds=20),
        )
        try:
            found = job(rank)
        except Exception as error:
            found = error
        (path / f"answer{rank}").write_bytes(
            pickle.dumps(found.numpy() if isinstance(found, Tensor) else found)
        )
        os._exit(0)  # without a farewell: a group that lost a member would wait for it

    children = [context.Process(target=work, args=(rank,)) for rank in range(workers)]
    for child in children:
        child.start()
    for child in children:
        child.join(600)
    assert not any(child.is_alive() for child in children)
    files = {rank: path / f"answer{rank}" for rank in range(workers)}
    return {rank: pickle.loads(file.read_bytes()) for rank, file in files.items() if file.exists()}


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(SIZE, 5, generator=generator, dtype=torch.float64)
    return x, (x.sum(1) > 0).long()


def shard(rank: int, public: Public = PUBLIC) -> Examples:
    """Parts of different sizes."""
    x, y = data()
    edges = [0, 4, 15, SIZE]
    part = slice(edges[rank], edges[rank + 1])
    return Examples(x[part], y[part], public)


def trainer(**changes: Any) -> Trainer:
    torch.manual_seed(0)
    settings: dict[str, Any] = {
        "public": PUBLIC,
        "noise_multiplier": 1.0,
        "clip": 0.5,
        "batch": SIZE,
        "steps": 4,
    }
    return Trainer(
        changes.pop("model", nn.Linear(5, 2).double()), nn.CrossEntropyLoss(), **(settings | changes)
    )


def silent(self: NoiseBuffer, vector: Tensor) -> None:
    vector.zero_()


@pytest.mark.parametrize("microbatch", [None, 3])
def test_the_sum_over_workers_is_the_sum_of_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, microbatch: int | None
) -> None:
    """With noise off (only tests can do that) and everybody in every step, four steps of three workers are
    those of one process."""
    monkeypatch.setattr(NoiseBuffer, "into", silent)
    whole = trainer(microbatch=microbatch)(Examples(*data(), PUBLIC), entropy=Entropy()).value

    def job(rank: int) -> Tensor:
        torch.manual_seed(rank)  # each begins with weights of its own: the first one's are taken
        other = {"model": nn.Linear(5, 2).double()} if rank else {}
        made = trainer(microbatch=microbatch, **other)
        return weights(across_workers(made)(shard(rank), entropy=Entropy()).value)

    found = together(tmp_path, job)
    assert sorted(found) == [0, 1, 2]
    for rank in found:
        np.testing.assert_allclose(found[rank], weights(whole).numpy(), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("noise", ["shares", "first"])
def test_the_noise_of_all_workers_together_is_what_was_priced(tmp_path: Path, noise: str) -> None:
    """Nobody's data: what moves the weights is noise, 2 * 0.5 over the expected batch, in each of four steps;
    the same in every worker."""
    model = nn.Linear(400, 50)
    made = trainer(model=model, noise_multiplier=2.0, batch=20, optimizer=dp.learning.SGD(lr=0.3))
    none = Examples(torch.zeros(0, 400), torch.zeros(0, dtype=torch.long), PUBLIC)
    start = weights(model)
    found = together(
        tmp_path, lambda rank: weights(across_workers(made, noise=noise)(none, entropy=Entropy()).value)
    )
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])
    unit = (found[0] - start.numpy()).astype(float) / (0.3 * 2.0 * 0.5 / 20 * math.sqrt(4))
    assert_normal(unit)
    for wrong in (
        math.sqrt(WORKERS),
        1 / math.sqrt(WORKERS),
    ):  # all of the noise from everyone; a share from one only
        with pytest.raises(AssertionError):
            assert_normal(unit * wrong)


def test_every_worker_tosses_coins_of_its_own(tmp_path: Path) -> None:
    made = trainer(batch=15, steps=12)

    def job(rank: int) -> list[list[int]]:
        drawn: list[list[int]] = []
        real = TrainingRun._accumulate

        def accumulate(self: TrainingRun, members: Any) -> None:
            drawn.append(members.tolist())
            real(self, members)

        TrainingRun._accumulate = accumulate  # type: ignore[method-assign]
        x, y = data()
        across_workers(made)(Examples(x[:10], y[:10], PUBLIC), entropy=Entropy())
        return drawn

    found = together(tmp_path, job)
    assert found[0] != found[1] != found[2] != found[0]  # 120 fair coins each: alike with probability 2**-120
    total = sum(len(batch) for drawn in found.values() for batch in drawn)
    assert abs(total - 180) <= math.sqrt(360 * math.log(2e9) / 2)  # Hoeffding, false alarm 1e-9


@pytest.mark.parametrize("moment", ["before the sum", "after the sum"])
def test_a_killed_worker_means_no_half_noised_update(tmp_path: Path, moment: str) -> None:
    """The third step of three workers, of whom one dies: the others end with the weights of the second step,
    and say so."""
    made = trainer(steps=6)

    def job(rank: int) -> Any:
        seen: list[Tensor] = []
        runs: list[TrainingRun] = []
        real, reduce = TrainingRun._accumulate, dist.all_reduce

        def accumulate(self: TrainingRun, members: Any) -> None:
            runs.append(self)
            seen.append(self.values.clone())
            if rank == 1 and self.steps_taken == 3 and moment == "before the sum":
                os.kill(os.getpid(), signal.SIGKILL)
            real(self, members)

        def all_reduce(*args: Any, **named: Any) -> None:
            reduce(*args, **named)
            if rank == 1 and len(seen) == 3 and moment == "after the sum":
                os.kill(os.getpid(), signal.SIGKILL)

        TrainingRun._accumulate, dist.all_reduce = accumulate, all_reduce  # type: ignore[method-assign,assignment]
        with pytest.raises(ReleaseFailed, match="discarded"):
            across_workers(made)(shard(rank), entropy=Entropy())
        run = runs[-1]
        assert run.done
        assert not run._gradient.any(), "what was added up without the dead worker's noise is gone"
        assert torch.equal(run.values, seen[2]), "the step was not made"
        return len(seen)

    assert together(tmp_path, job) == {0: 3, 2: 3}


def test_workers_must_agree_before_data_is_read(tmp_path: Path) -> None:
    class Unread(Examples):
        def take(self, places: Any) -> Any:
            raise AssertionError("read")

    def job(rank: int) -> Any:
        x, y = data()
        torch.manual_seed(rank)
        model = nn.Sequential(nn.Linear(5, 5).requires_grad_(False), nn.Linear(5, 2)).double()
        other_frozen_weights = trainer(model=model)
        changes = ({"noise_multiplier": 0.1}, {"optimizer": dp.learning.SGD(lr=7)})
        for made in (*(trainer(**({} if rank else change)) for change in changes), other_frozen_weights):
            with pytest.raises(InvalidInput, match="same trainer"):
                across_workers(made)(Unread(x, y, PUBLIC), entropy=Entropy())
        return "refused"

    assert together(tmp_path, job, workers=2) == {0: "refused", 1: "refused"}


def test_one_worker_is_charged_and_all_train(tmp_path: Path) -> None:
    made = trainer(batch=10)

    def job(rank: int) -> Any:
        if rank:
            return weights(across_workers(made)(shard(rank), entropy=Entropy()).value)
        session = dp.open(shard(0), budget=dp.Budget(epsilon=20, delta=1e-5), ledger=tmp_path / "ledger")
        return weights(session.ask(across_workers(made)).value)

    found = together(tmp_path, job)
    assert np.array_equal(found[0], found[2])
    opened = dp.open(shard(0), ledger=tmp_path / "ledger")
    (charge,) = opened.ledger.entries(kind="charge")
    assert charge.body["event"] == made.event.to_json()


def test_what_cannot_be_split_is_refused() -> None:
    for changes in (
        {"public": Public(size=SIZE, neighbors="replace"), "sampling": "without_replacement"},
        {"clip": Adaptive(clip=1.0)},
        {"noise": "discrete"},
        {"public": Public(size=SIZE, unit=Unit("person"))},
    ):
        with pytest.raises(Unsupported, match="workers"):
            across_workers(trainer(**changes))
    with pytest.raises(InvalidInput, match="noise must be"):
        across_workers(trainer(), noise="none")
    with pytest.raises(InvalidInput, match="process group"):
        across_workers(trainer())(shard(0), entropy=Entropy())
