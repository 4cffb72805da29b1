"""Schedulers of torch set the learning rate of each step by themselves, also in a run that is resumed."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler as torchs

import discreet as dp
from discreet import InvalidInput
from discreet.learning import SGD, Adam, Examples, Trainer
from discreet.sampling import Entropy

SIZE, STEPS = 40, 12
PUBLIC = dp.Public(table="people", size=SIZE)

MAKERS: dict[str, Any] = {
    "step": partial(torchs.StepLR, step_size=3),
    "cosine": partial(torchs.CosineAnnealingLR, T_max=STEPS),
    "restarts": partial(torchs.CosineAnnealingWarmRestarts, T_0=4),
    "one cycle": partial(torchs.OneCycleLR, max_lr=0.4, total_steps=STEPS + 1, cycle_momentum=False),
    "lambda": lambda optimizer: torchs.LambdaLR(optimizer, lambda step: 1 / (1 + step)),
    "cyclic": partial(torchs.CyclicLR, base_lr=0.1, max_lr=0.3, step_size_up=2, cycle_momentum=False),
    "warmup, then decay": lambda optimizer: torchs.SequentialLR(
        optimizer,
        [torchs.LinearLR(optimizer, 0.1, total_iters=4), torchs.ExponentialLR(optimizer, 0.9)],
        milestones=[4],
    ),
    "chained": lambda optimizer: torchs.ChainedScheduler(
        [torchs.ConstantLR(optimizer, 0.5, total_iters=3), torchs.ExponentialLR(optimizer, 0.8)]
    ),
}


def torchs_rates(make: Any, rate: float) -> list[float]:
    """The rates of torch's own loop."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=rate)
    scheduler, rates = make(optimizer), []
    for _ in range(STEPS):
        rates.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        scheduler.step()
    return rates


def examples() -> Examples:
    return Examples(torch.randn(SIZE, 4), torch.randint(0, 2, (SIZE,)), PUBLIC)


def trainer(learning_rate: Any, optimizer: Any = SGD(lr=0.2), model: Any = None) -> Trainer:
    return Trainer(
        nn.Linear(4, 2) if model is None else model, "cross_entropy", public=PUBLIC, noise_multiplier=1.0, batch=10,
        steps=STEPS, optimizer=optimizer, learning_rate=learning_rate,
    )  # fmt: skip


@pytest.mark.parametrize("kind", [SGD(lr=0.2), Adam(lr=0.2), lambda p: torch.optim.RMSprop(p, lr=0.2)])
@pytest.mark.parametrize("name", sorted(MAKERS))
def test_rates_are_those_of_torchs_own_loop(name: str, kind: Any) -> None:
    rates: list[float] = []
    made = trainer(MAKERS[name], kind)
    made(examples(), entropy=Entropy(), progress=lambda progress: rates.append(progress.learning_rate))
    assert rates == pytest.approx(torchs_rates(MAKERS[name], 0.2))
    assert len(set(rates)) > 1


@pytest.mark.parametrize("name", sorted(MAKERS))
def test_a_scheduler_of_the_users_own_optimizer_is_followed_and_left_as_it_was(name: str) -> None:
    model = nn.Linear(4, 2)
    scheduler = MAKERS[name](torch.optim.SGD(model.parameters(), lr=0.2))
    before, weights = str(scheduler.state_dict()), model.weight.detach().clone()
    made = trainer(scheduler, model=model)
    factors = [made.learning_rate(step) for step in range(STEPS)]  # type: ignore[misc, operator]
    assert [0.2 * factor for factor in factors] == pytest.approx(torchs_rates(MAKERS[name], 0.2))
    assert str(scheduler.state_dict()) == before
    assert torch.equal(model.weight, weights)


def test_a_scheduler_goes_on_where_a_resumed_run_goes_on(tmp_path: Path) -> None:
    people = dp.open(
        examples(), budget=dp.Budget(epsilon=90, delta=1e-4), ledger=tmp_path / "ledger", large_epsilon=True
    )
    rates: list[float] = []

    def note(progress: Any) -> None:
        rates.append(progress.learning_rate)
        if len(rates) == 6:
            raise KeyboardInterrupt

    make = MAKERS["warmup, then decay"]
    with pytest.raises(KeyboardInterrupt):
        people.train(trainer(make), checkpoint=tmp_path / "run", every=3, progress=note)
    people.resume(trainer(make), tmp_path / "run", progress=note)
    assert rates == pytest.approx(torchs_rates(make, 0.2))
    with pytest.raises(InvalidInput, match="another model, optimizer or run"):
        people.resume(trainer(MAKERS["step"]), tmp_path / "run")


@pytest.mark.parametrize(
    ("learning_rate", "match"),
    [
        (torchs.ReduceLROnPlateau, "ReduceLROnPlateau follows a metric.*CosineAnnealingLR"),
        (partial(torchs.OneCycleLR, max_lr=0.4, total_steps=STEPS), "cycle_momentum=False"),
        (
            partial(torchs.OneCycleLR, max_lr=0.4, total_steps=-3),
            r"learning_rate\(optimizer\) failed: ValueError",
        ),
        (partial(torchs.OneCycleLR, max_lr=0.4, total_steps=3, cycle_momentum=False), "Tried to step"),
        (lambda optimizer: torchs.LambdaLR(optimizer, lambda step: 1 / (step - 5)), "ZeroDivisionError"),
        (lambda step: 1 / step, r"learning_rate\(0\) failed: ZeroDivisionError"),
    ],
)
def test_schedulers_that_cannot_be_followed_are_refused_by_name(learning_rate: Any, match: str) -> None:
    with pytest.raises(InvalidInput, match=match):
        trainer(learning_rate)
