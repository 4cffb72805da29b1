"""Checkpoints that an earlier version of the code has written still load, and training goes on from them as
it would have gone on then.

`python -m tests.learning.test_golden` wrote the files in `golden/`, once, with the code of 16 November 2026
(before encoder layers by hand were removed). They are not written again: a checkpoint of a user is as old as
these.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import discreet as dp
from discreet import Public
from discreet.learning import SGD, Adam, Adaptive, Examples, Trainer
from discreet.learning.training.trainer import Progress
from discreet.sampling import SeededEntropy

GOLDEN = Path(__file__).parent / "golden"
SIZE, STEPS, CUT, EVERY = 40, 12, 5, 4
PUBLIC = Public(size=SIZE)


class Text(nn.Module):
    """One layer of every kind that has ever had a part by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(5, 8)
        self.encoder = nn.TransformerEncoderLayer(8, 2, 8, dropout=0.0, batch_first=True)
        self.memory = nn.LSTM(8, 4, batch_first=True)
        self.head = nn.Linear(4, 2)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.memory(self.encoder(self.words(ids)))[0][:, -1])


def numbers() -> Examples:
    x = torch.linspace(-1, 1, SIZE * 3).reshape(SIZE, 3)
    return Examples(x, (x.sum(1) > 0).long(), PUBLIC)


def texts() -> Examples:
    ids = torch.arange(SIZE * 6).reshape(SIZE, 6) ** 2 % 5
    return Examples(ids, ids[:, 0] % 2, PUBLIC)


def trainer(kind: str) -> tuple[Trainer, Examples]:
    torch.manual_seed(0)
    settings: dict[str, Any] = {"public": PUBLIC, "noise_multiplier": 2.0, "batch": 10, "steps": STEPS}
    if kind == "stack":
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        optimizer = SGD(lr=0.3, momentum=0.9)
        return Trainer(model, nn.CrossEntropyLoss(), optimizer=optimizer, average=0.9, **settings), numbers()
    optimizer, clip = Adam(lr=0.01, noise_aware=False), Adaptive(quantile=0.5, count_noise=2.0)
    return Trainer(
        Text(), nn.CrossEntropyLoss(), optimizer=optimizer, clip=clip, microbatch=7, **settings
    ), texts()


def weights(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def finished(kind: str, raw: bytes) -> Tensor:
    """The weights at the end of a run that goes on from a checkpoint, always with the same randomness."""
    mechanism, examples = trainer(kind)
    run = mechanism.restore(examples, raw, CUT, entropy=SeededEntropy(2))
    with run:
        while not run.done:
            run.step()
    return weights(run.model)


@pytest.mark.parametrize("kind", ["stack", "text"])
def test_a_checkpoint_of_an_earlier_version_goes_on_as_it_did_then(kind: str) -> None:
    wanted = torch.load(GOLDEN / f"{kind}.pt", weights_only=True)
    got = finished(kind, (GOLDEN / f"{kind}.ckpt").read_bytes())
    torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-3)


def test_a_run_that_crashed_under_an_earlier_version_is_resumed(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "session", tmp_path / "session")
    # A key that protects nothing: it signed this ledger of made-up numbers only. Git does not keep its mode.
    (tmp_path / "session" / "ledger.key").chmod(0o600)
    mechanism, examples = trainer("stack")
    session = dp.open(examples, ledger=tmp_path / "session" / "ledger")
    spent, steps = session.spent, []
    session.resume(mechanism, tmp_path / "session" / "run", progress=steps.append)
    assert [p.step for p in steps] == list(range(2 * EVERY + 1, STEPS + 1))
    assert session.spent == spent
    assert session.curator.verify() == []


def _stop(progress: Progress) -> None:
    if progress.step == EVERY + 2:
        raise KeyboardInterrupt


def write() -> None:
    for kind in ("stack", "text"):
        mechanism, examples = trainer(kind)
        run = mechanism.start(examples, entropy=SeededEntropy(1))
        with run:
            for _ in range(CUT):
                run.step()
        (GOLDEN / f"{kind}.ckpt").write_bytes(run.dump())
        torch.save(finished(kind, run.dump()), GOLDEN / f"{kind}.pt")
    (GOLDEN / "session").mkdir()
    mechanism, examples = trainer("stack")
    session = dp.open(
        examples, budget=dp.Budget(epsilon=20, delta=1e-5), ledger=GOLDEN / "session" / "ledger"
    )
    try:
        session.train(mechanism, checkpoint=GOLDEN / "session" / "run", every=EVERY, progress=_stop)
    except KeyboardInterrupt:
        session.close() if hasattr(session, "close") else None


if __name__ == "__main__":
    write()
