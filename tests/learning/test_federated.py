"""Federated averaging: a client's term is the move of local training, no longer than the clip, at the
trainer's price."""

from __future__ import annotations

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from discreet import InvalidInput, Public, Unit, Unsupported
from discreet.curator import Budget, Curator, Policy, segments
from discreet.learning import SGD, Adaptive, Examples, Flat, LocalSGD, PerLayer, Trainer
from discreet.learning.clipping.engine import ClippingEngine
from discreet.learning.training.data import Augment
from discreet.learning.training.federated import Updates
from discreet.sampling import SeededEntropy

CLIENTS = [5, 1, 3, 7]
PUBLIC = Public(table="phones", unit=Unit("client"), size=len(CLIENTS))
TINY = 1e-9


def examples(
    public: Public = PUBLIC, scale: float = 1.0, odd: float | None = None
) -> tuple[Examples, list[Any]]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(sum(CLIENTS), 3, generator=generator)
    y = (x.sum(1) > 0).long()
    x[-CLIENTS[-1] :] *= scale
    if odd is not None:
        x[-1, 0] = odd
    who = torch.repeat_interleave(torch.arange(len(CLIENTS)), torch.tensor(CLIENTS))
    parts = [(x[who == k], y[who == k]) for k in range(len(CLIENTS))]
    return Examples(x, y, public, people=who), parts


def model() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def flat(module: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()])


def trainer(start: nn.Module, **options: Any) -> Trainer:
    terms = {"public": PUBLIC, "noise_multiplier": TINY, "clip": 10.0, "batch": len(CLIENTS), "steps": 1,
             "optimizer": SGD(lr=1.0), "local": LocalSGD(epochs=3, batch=100, lr=0.2)}  # fmt: skip
    return Trainer(start, "cross_entropy", **(terms | options))


def by_hand(start: nn.Module, part: Any, epochs: int, lr: float) -> Tensor:
    """How far full-batch gradient descent moves a copy of the model."""
    client = copy.deepcopy(start)
    for _ in range(epochs):
        client.zero_grad()
        nn.functional.cross_entropy(client(part[0]), part[1]).backward()
        with torch.no_grad():
            for p in client.parameters():
                p -= lr * p.grad
    return flat(client) - flat(start)


def moved(mechanism: Trainer, data: Examples) -> Tensor:
    trained = mechanism(data, entropy=SeededEntropy(3)).value
    return flat(trained) - flat(mechanism.model)


def test_a_round_is_the_average_of_the_clients_moves() -> None:
    start, (data, parts) = model(), examples()
    average = torch.stack([by_hand(start, part, 3, 0.2) for part in parts]).sum(0) / len(CLIENTS)
    assert torch.allclose(moved(trainer(start, rate=1.0, batch=None, n=4), data), average, atol=1e-5)


def test_one_full_local_step_is_a_step_of_the_pooled_gradient() -> None:
    start, (data, _) = model(), examples()
    averaged = trainer(start, local=LocalSGD(epochs=1, batch=100, lr=0.5), rate=1.0, batch=None, n=4)
    plain = trainer(start, local=None, optimizer=SGD(lr=0.5), rate=1.0, batch=None, n=4)
    assert torch.allclose(moved(averaged, data), moved(plain, data), atol=1e-5)


def test_rounds_go_on_from_the_model_so_far_and_local_batches_are_shuffled() -> None:
    start, (data, parts) = model(), examples()
    local = LocalSGD(epochs=4, batch=2, lr=0.3)
    long = moved(trainer(start, local=local, rate=1.0, batch=None, n=4, steps=20), data)
    once = moved(trainer(start, local=local, rate=1.0, batch=None, n=4), data)
    assert long.norm() > 2 * once.norm()
    full = torch.stack([by_hand(start, part, 4, 0.3) for part in parts]).sum(0) / len(CLIENTS)
    assert (once - full).norm() > 1e-3


def test_clients_with_few_rows_weigh_less_where_that_was_asked() -> None:
    start, (data, parts) = model(), examples()
    weighted = trainer(start, local=LocalSGD(epochs=3, batch=100, lr=0.2, full=5), rate=1.0, batch=None, n=4)
    shares = [min(1.0, n / 5) for n in CLIENTS]
    average = sum(w * by_hand(start, p, 3, 0.2) for w, p in zip(shares, parts, strict=True)) / len(CLIENTS)
    assert torch.allclose(moved(weighted, data), average, atol=1e-5)


@pytest.mark.parametrize("clip", [0.05, PerLayer(clip=0.05), Adaptive(clip=0.05)])
@pytest.mark.parametrize("odd", [None, float("nan"), float("inf"), 1e30])
def test_one_client_moves_the_sum_by_no_more_than_the_clip_whatever_its_rows_hold(
    clip: Any, odd: float | None
) -> None:
    start = model()
    settings: dict[str, Any] = {"rate": 1.0, "batch": None, "n": 4, "clip": clip}
    if isinstance(clip, Adaptive):
        settings["clip"] = Adaptive(clip=0.05, count_noise=50.0)
    mechanism = trainer(start, local=LocalSGD(epochs=3, batch=2, lr=5.0), **settings)
    calm = moved(mechanism, examples(odd=0.0)[0])
    wild = moved(mechanism, examples(scale=1e3, odd=odd)[0])
    # Both are within the clip of the sum of the others, over four.
    assert bool(torch.isfinite(wild).all())
    assert (wild - calm).norm() <= 2 * 0.05 / 4 * (1 + 1e-5)
    assert wild.norm() <= 0.05 * (1 + 1e-5)


def test_a_client_that_is_not_clipped_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above has teeth: without clipping it fails."""
    monkeypatch.setattr("discreet.learning.training.federated.Updates._project", lambda *args: None)
    monkeypatch.setattr(
        "discreet.learning.training.clipped_sums.factors",
        lambda rule, squares: (torch.ones(len(squares), 1), None),
    )
    mechanism = trainer(
        model(), local=LocalSGD(epochs=3, batch=2, lr=5.0), rate=1.0, batch=None, n=4, clip=0.05
    )
    assert moved(mechanism, examples(scale=1e3)[0]).norm() > 0.05


def test_a_client_on_whose_rows_the_loss_fails_moves_nothing() -> None:
    """A class that the model does not have raised, and failed the run."""
    start, (_, parts) = model(), examples()
    who = torch.repeat_interleave(torch.arange(len(CLIENTS)), torch.tensor(CLIENTS))
    x, y = (torch.cat(part) for part in zip(*parts, strict=True))
    wrong, others = y.clone(), who != 2
    wrong[who == 2] = torch.tensor([0, 99, 1])
    moves = [
        moved(trainer(start), Examples(inputs, targets, PUBLIC, people=people))
        for inputs, targets, people in ((x, wrong, who), (x[others], y[others], who[others]))
    ]
    assert torch.allclose(*moves, atol=1e-5)
    assert moves[0].norm() > 1e-3


class Remembering(nn.Module):
    """Keeps in a buffer what it has seen, and adds it to what it says."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        self.seen: Tensor
        self.seen.add_(x.detach().mean(0))
        result: Tensor = self.linear(x + self.seen)
        return result


def test_what_a_client_leaves_in_a_buffer_does_not_reach_the_next() -> None:
    torch.manual_seed(4)
    server, data = ClippingEngine(Remembering(), "cross_entropy"), examples()[0]
    plan: Any = SimpleNamespace(
        local=LocalSGD(epochs=2, batch=100, lr=0.3),
        model=server.model,
        _engine=lambda module: ClippingEngine(module, "cross_entropy"),
    )
    rows = [np.arange(5), np.arange(9, 16)]

    def updates(clients: list[Any]) -> Tensor:
        (gradients,) = Updates(plan, server, SeededEntropy(1)).of(clients, data, Flat(clip=9.0))
        return torch.cat([tap.built().reshape(len(clients), -1) for tap in gradients.taps], dim=1)

    assert torch.allclose(updates(rows)[1], updates(rows[1:])[0], atol=1e-6)


def test_the_price_is_that_of_the_same_rounds_without_local_training() -> None:
    for how in ({"sampling": "poisson"}, {"sampling": "cyclic", "strategy": "blt"}):
        terms: dict[str, Any] = {"noise_multiplier": 1.3, "batch": 2, "steps": None, "epochs": 4} | how
        assert trainer(model(), **terms).event == trainer(model(), local=None, **terms).event


def test_correlated_noise_and_exact_noise_work_on_updates() -> None:
    data = examples()[0]
    for how in ({"sampling": "cyclic", "strategy": "blt", "steps": None, "epochs": 3}, {"noise": "discrete"}):
        mechanism = (
            trainer(model(), batch=2, **how)
            if "epochs" in how
            else trainer(model(), noise_multiplier=1.0, **how)
        )
        assert bool(torch.isfinite(moved(mechanism, data)).all())


def test_a_federated_run_is_charged_once_and_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    data = examples()[0]
    curator = Curator.create(
        tmp_path / "l", data, Policy(budget=Budget(epsilon=50, delta=1e-5)), large_epsilon=True
    )
    mechanism = trainer(model(), noise_multiplier=1.5, rate=0.5, batch=None, n=4, steps=6)
    stop = RuntimeError("stopped")

    def watch(progress: Any) -> None:
        if progress.step == 4:
            raise stop

    with pytest.raises(RuntimeError, match="stopped"):
        segments.train(curator, mechanism, tmp_path / "run", every=2, progress=watch)
    spent = curator.used
    released = segments.resume(curator, mechanism, tmp_path / "run")
    assert curator.used == spent > 0
    assert released.value(torch.zeros(1, 3)).shape == (1, 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"local": "sgd"}, "local"),
        ({"public": Public(size=4)}, "unit"),
        ({"pooling": "sum"}, "pooling"),
        ({"augment": Augment(function=lambda x, g: x, times=2)}, "augment"),
    ],
)
def test_what_local_training_does_not_go_with_is_refused(options: Any, message: str) -> None:
    with pytest.raises((Unsupported, InvalidInput), match=message):
        trainer(model(), **options)
    for bad in ({"epochs": 0}, {"batch": 0}, {"lr": 0.0}, {"lr": float("nan")}, {"full": 0}):
        with pytest.raises(InvalidInput, match=next(iter(bad))):
            LocalSGD(**bad)


def test_another_way_to_train_at_the_clients_is_another_run() -> None:
    from discreet.learning.training import checkpoints

    first, other = (trainer(model(), local=LocalSGD(epochs=n, batch=100, lr=0.2)) for n in (3, 4))
    assert first.event == other.event
    assert checkpoints.identity(first) == checkpoints.identity(
        trainer(model(), local=LocalSGD(epochs=3, batch=100, lr=0.2))
    )
    assert checkpoints.identity(first) != checkpoints.identity(other)
    # runs without local training keep the identity that stands in their ledgers
    assert "local" not in checkpoints.identity(trainer(model(), local=None))


def test_a_learning_rate_of_clients_beyond_float32_is_refused() -> None:
    with pytest.raises(InvalidInput, match="lr must be at most"):
        LocalSGD(lr=1e39)
