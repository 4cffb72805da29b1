"""The options of a trainer in three groups: the same trainer as from flat options, and no option that is in none."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from torch import nn

from discreet import InvalidInput, Public, Unsupported
from discreet.learning import Adam, LocalSGD, Optimization, Privacy, Rounds, Trainer
from discreet.learning.training.trainer_options import GROUPS

PUBLIC = Public(table="people", size=100)
# What is no setting of privacy, batches or optimization: what is trained, on what, and time and memory.
ELSEWHERE = {"model", "loss", "public", "performance", "columns", "synthetic"}


def test_every_option_is_in_exactly_one_group_with_the_same_default() -> None:
    flat = {f.name: f.default for f in dataclasses.fields(Trainer) if f.init}
    grouped = [f for group in GROUPS.values() for f in dataclasses.fields(group)]
    assert len(grouped) == len({f.name for f in grouped})
    assert {f.name for f in grouped} == set(flat) - ELSEWHERE
    assert {f.name: f.default for f in grouped} == {f.name: flat[f.name] for f in grouped}


@pytest.mark.parametrize(
    ("privacy", "batches", "optimization"),
    [
        ({"epsilon": 3, "delta": 1e-5}, {"batch": 10, "epochs": 2}, {}),
        (
            {"noise_multiplier": 1.0, "clip": 0.5, "noise": "discrete"},
            {"rate": 0.1, "steps": 3},
            {"average": 0.9},
        ),
        (
            {"noise_multiplier": 1.0},
            {"batch": 10, "epochs": 2, "sampling": "cyclic", "strategy": "square_root"},
            {},
        ),
        ({"noise_multiplier": 1.0}, {"batch": 10, "n": 90, "steps": 3}, {"optimizer": Adam(lr=0.1)}),
    ],
)
def test_groups_make_the_trainer_that_flat_options_make(
    privacy: Any, batches: Any, optimization: Any
) -> None:
    model = nn.Linear(3, 2)
    flat = Trainer(model, "cross_entropy", public=PUBLIC, **privacy, **batches, **optimization)
    grouped = Trainer(
        model, "cross_entropy", public=PUBLIC, privacy=Privacy(**privacy), rounds=Rounds(**batches),
        optimization=Optimization(**optimization),
    )  # fmt: skip
    assert grouped == flat
    assert grouped.identity == flat.identity
    assert repr(grouped) == repr(flat)


def test_what_is_given_twice_or_in_the_wrong_place_is_refused_by_name() -> None:
    options: dict[str, Any] = {"public": PUBLIC, "privacy": Privacy(noise_multiplier=1.0), "steps": 3}
    with pytest.raises(InvalidInput, match="batch= was given to the trainer and in a group"):
        Trainer(nn.Linear(3, 2), "mse", **options, batch=10, rounds=Rounds(batch=10))
    with pytest.raises(InvalidInput, match=r"rounds must be Rounds\(\.\.\.\)"):
        Trainer(nn.Linear(3, 2), "mse", **options, rounds=Optimization())
    with pytest.raises(InvalidInput, match="epsilon"):
        Privacy(epsilom=3)  # type: ignore[call-arg]
    with pytest.raises(Unsupported, match="local"):
        Trainer(
            nn.Linear(3, 2), "mse", **options, batch=10,
            optimization=Optimization(local=LocalSGD(epochs=1, batch=2, lr=0.1)),
        )  # fmt: skip
