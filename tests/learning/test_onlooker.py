"""What the caller's own `progress` raises is the caller's: it was told public facts only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import discreet as dp
from discreet import InvalidInput
from discreet.learning import Examples, Trainer


def test_what_progress_raises_reaches_the_caller_and_the_run_goes_on_from_its_checkpoint(
    tmp_path: Path,
) -> None:
    public = dp.Public(table="people", size=40)
    data = Examples(torch.rand(40, 4), torch.randint(0, 2, (40,)), public)
    people = dp.open(
        data, budget=dp.Budget(epsilon=50, delta=1e-5), ledger=tmp_path / "ledger", large_epsilon=True
    )
    made = Trainer(nn.Linear(4, 2), "cross_entropy", public=public, noise_multiplier=1.0, batch=10, steps=6)
    with pytest.raises(InvalidInput, match="progress must be a function"):
        people.train(made, progress=3)  # type: ignore[arg-type]
    assert people.spent == 0
    seen: list[int] = []

    def fails(progress: Any) -> None:
        seen.append(progress.step)
        if progress.step == 3:
            raise KeyError("no such axis")

    with pytest.raises(KeyError, match="no such axis"):
        people.train(made, checkpoint=tmp_path / "run", every=2, progress=fails)
    spent = people.spent
    people.resume(made, tmp_path / "run", progress=lambda progress: seen.append(progress.step))
    assert seen == [1, 2, 3, 5, 6], "the segment that was stopped is lost, and no step is run twice"
    assert people.spent == spent
