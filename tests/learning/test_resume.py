"""Resuming: never more steps than were paid for, no step run twice, nothing lost but the segment that
crashed; old and foreign files refused."""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import discreet as dp
from discreet import BudgetExceeded, InvalidInput, LedgerError, NotPrivate, Public, ReleaseFailed, Unsupported
from discreet.curator import Period, segments
from discreet.learning import SGD, Adam, Examples, Tabular, Trainer
from discreet.learning.training import checkpoints
from discreet.learning.training.trainer import Progress, TrainingRun
from discreet.sampling import SeededEntropy

SIZE, STEPS, EVERY = 40, 20, 4
PUBLIC = Public(size=SIZE)


def examples() -> Examples:
    x = torch.linspace(-1, 1, SIZE * 3).reshape(SIZE, 3)
    return Examples(x, (x.sum(1) > 0).long(), PUBLIC)


def trainer(**changes: Any) -> Trainer:
    torch.manual_seed(0)
    settings: dict[str, Any] = {
        "public": PUBLIC,
        "noise_multiplier": 2.0,
        "batch": 10,
        "steps": STEPS,
        "optimizer": SGD(lr=0.3, momentum=0.9),
        "average": 0.9,
    }
    return Trainer(changes.pop("model", nn.Linear(3, 2)), nn.CrossEntropyLoss(), **(settings | changes))


def opened(path: Path) -> dp.Session:
    budget = None if (path / "ledger").exists() else dp.Budget(epsilon=20, delta=1e-5)
    return dp.open(examples(), budget=budget, ledger=path / "ledger")


def weights(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def counter(session: dp.Session) -> int:
    claims = list(session.ledger.entries(kind=segments.SEGMENT))
    return claims[-1].body["to"] if claims else 0


class Stop(BaseException):
    """Like a signal: nothing catches it."""


def stopping(at: int) -> Any:
    def watch(progress: Progress) -> None:
        if progress.step == at:
            raise Stop

    return watch


def crashed(path: Path, at: int, **changes: Any) -> dp.Session:
    """A run that stopped in the middle of a segment, after so many steps."""
    session = opened(path)
    with pytest.raises(Stop):
        session.train(trainer(**changes), checkpoint=path / "run", every=EVERY, progress=stopping(at))
    return session


def test_a_run_in_segments_is_the_run_in_one_piece(tmp_path: Path) -> None:
    """With one stream of randomness, cutting changes nothing: neither weights, nor averages, nor momentum."""
    session = opened(tmp_path)
    for optimizer in (SGD(lr=0.3, momentum=0.9), Adam(lr=0.1), lambda p: torch.optim.Adam(p, lr=0.1)):
        made, entropy = trainer(optimizer=optimizer), SeededEntropy(1)
        whole = made(examples(), entropy=SeededEntropy(1)).value
        run = made.start(examples(), entropy=entropy)
        batches, noise = run._batches, run.summands._noise
        for _ in range(STEPS):
            run.step()
            taken, run = (
                run.steps_taken,
                made.restore(examples(), run.dump(), run.steps_taken, entropy=entropy),
            )
            run._batches, run.summands._noise = batches, noise  # the same stream goes on
            assert run.steps_taken == taken
        torch.testing.assert_close(weights(run.model), weights(whole), rtol=0, atol=0)
    assert session.spent == 0


def test_a_run_is_paid_once_and_saved_after_each_segment(tmp_path: Path) -> None:
    session, seen = opened(tmp_path), []
    made = trainer()
    found = session.train(made, checkpoint=tmp_path / "run", every=8, progress=seen.append)
    assert [p.step for p in seen] == list(range(1, STEPS + 1))
    assert found.event == made.event
    assert found.private
    kinds = Counter(entry.kind for entry in session.ledger.entries())
    assert (kinds["charge"], kinds["segment"], kinds["checkpoint"], kinds["release"]) == (1, 3, 4, 1)
    claims = [(e.body["from"], e.body["to"]) for e in session.ledger.entries(kind="segment")]
    assert claims == [(0, 8), (8, 16), (16, 20)]
    assert session.curator.verify() == []
    assert segments.problems(session.ledger) == []
    again = session.resume(made, tmp_path / "run")  # it is done: the same model, free
    assert torch.equal(weights(again.value), weights(found.value))
    assert Counter(entry.kind for entry in session.ledger.entries()) == kinds


def test_without_a_checkpoint_training_is_one_piece(tmp_path: Path) -> None:
    session = opened(tmp_path)
    assert session.train(trainer()).private
    assert [(e.body["from"], e.body["to"]) for e in session.ledger.entries(kind="segment")] == [(0, STEPS)]
    assert not list(session.ledger.entries(kind="checkpoint"))


def test_a_crashed_segment_is_forfeited_and_the_rest_goes_on(tmp_path: Path) -> None:
    session = crashed(tmp_path, at=EVERY + 2)
    spent = session.spent
    assert counter(session) == 2 * EVERY
    seen: list[Progress] = []
    opened(tmp_path).resume(trainer(), tmp_path / "run", progress=seen.append)
    assert [p.step for p in seen] == list(range(2 * EVERY + 1, STEPS + 1)), (
        "the four steps of the crashed segment are gone"
    )
    assert session.spent == spent, "resuming is free"
    assert session.curator.verify() == []


def test_a_crash_in_the_first_segment_goes_on_from_the_beginning(tmp_path: Path) -> None:
    crashed(tmp_path, at=1)
    seen: list[Progress] = []
    opened(tmp_path).resume(trainer(), tmp_path / "run", progress=seen.append)
    assert [p.step for p in seen] == list(range(EVERY + 1, STEPS + 1))


def test_a_crash_in_the_last_segment_leaves_the_last_checkpoint(tmp_path: Path) -> None:
    session = crashed(tmp_path, at=STEPS)
    seen: list[Progress] = []
    found = session.resume(trainer(), tmp_path / "run", progress=seen.append)
    assert seen == []
    assert found.private


def test_older_checkpoints_are_refused(tmp_path: Path) -> None:
    session = opened(tmp_path)
    kept: dict[int, bytes] = {}

    def keep(progress: Progress) -> None:
        kept.setdefault(counter(session), (tmp_path / "run").read_bytes())
        if progress.step == 3 * EVERY + 1:
            raise Stop

    with pytest.raises(Stop):
        session.train(trainer(), checkpoint=tmp_path / "run", every=EVERY, progress=keep)
    assert sorted(kept) == [EVERY, 2 * EVERY, 3 * EVERY, 4 * EVERY]
    before = session.ledger.anchor
    for mark in (EVERY, 2 * EVERY, 3 * EVERY):  # the files as they were in earlier segments
        (tmp_path / "old").write_bytes(kept[mark])
        with pytest.raises(LedgerError, match="older than the newest"):
            session.resume(trainer(), tmp_path / "old")
    assert session.ledger.anchor == before
    (tmp_path / "newest").write_bytes(kept[4 * EVERY])  # any copy of the newest is as good
    assert session.resume(trainer(), tmp_path / "newest").private


def test_of_two_who_go_on_from_one_checkpoint_one_wins(tmp_path: Path) -> None:
    session = crashed(tmp_path, at=EVERY + 1)
    shutil.copy(tmp_path / "run", tmp_path / "copy")
    rival = opened(tmp_path)

    def overtaken(progress: Progress) -> None:
        if progress.step == 2 * EVERY + 1:  # in the middle of the first one's segment, another goes on
            rival.resume(trainer(), tmp_path / "copy")

    with pytest.raises(LedgerError, match="another process has gone on"):
        session.resume(trainer(), tmp_path / "run", progress=overtaken)
    claims = [(e.body["from"], e.body["to"]) for e in session.ledger.entries(kind="segment")]
    assert claims == [(0, 4), (4, 8), (8, 12), (12, 16), (16, 20)]
    assert segments.problems(session.ledger) == []
    with pytest.raises(LedgerError, match="older"):
        session.resume(trainer(), tmp_path / "run")


@pytest.mark.parametrize("place", [3, 40, 150, -200, -1])
def test_a_tampered_checkpoint_is_refused(tmp_path: Path, place: int) -> None:
    session = crashed(tmp_path, at=EVERY + 1)
    raw = bytearray((tmp_path / "run").read_bytes())
    raw[place] ^= 1
    (tmp_path / "run").write_bytes(bytes(raw))
    before = session.ledger.anchor
    with pytest.raises((LedgerError, InvalidInput)):
        session.resume(trainer(), tmp_path / "run")
    assert session.ledger.anchor == before


def test_foreign_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    crashed(tmp_path / "one", at=EVERY + 1)
    session = crashed(tmp_path / "two", at=EVERY + 1)
    with pytest.raises(LedgerError, match="another ledger"):
        session.resume(trainer(), tmp_path / "one" / "run")
    (tmp_path / "text").write_text("hello")
    with pytest.raises(InvalidInput, match="not a checkpoint"):
        session.resume(trainer(), tmp_path / "text")
    with pytest.raises(InvalidInput, match="cannot be read"):
        session.resume(trainer(), tmp_path / "nothing")
    with pytest.raises(InvalidInput, match="another price"):
        session.resume(trainer(noise_multiplier=1.0), tmp_path / "two" / "run")
    with pytest.raises(InvalidInput, match="another model"):
        session.resume(trainer(model=nn.Linear(3, 2, bias=False)), tmp_path / "two" / "run")
    assert session.resume(trainer(), tmp_path / "two" / "run").private


def test_a_ledger_that_was_rolled_back_is_noticed(tmp_path: Path) -> None:
    """The books as they were before, with the checkpoint of now: its claim is not in them."""
    crashed(tmp_path, at=EVERY + 1)
    for name in ("ledger", "ledger-wal", "ledger.key"):
        if (tmp_path / name).exists():
            shutil.copy(tmp_path / name, tmp_path / f"{name}.old")
    opened(tmp_path).resume(trainer(), tmp_path / "run")
    shutil.copy(tmp_path / "run", tmp_path / "newer")
    (tmp_path / "back").mkdir()
    for name in ("ledger", "ledger-wal", "ledger.key"):
        if (tmp_path / f"{name}.old").exists():
            shutil.copy(tmp_path / f"{name}.old", tmp_path / "back" / name)
    with pytest.raises(LedgerError, match="rolled back"):
        opened(tmp_path / "back").resume(trainer(), tmp_path / "newer")


def test_a_checkpoint_holds_no_seed_and_noise_is_fresh(tmp_path: Path) -> None:
    """Going on twice from the same bytes never gives the same weights; and there is nothing random in them
    but the weights."""
    made = trainer()
    run = made.start(examples(), entropy=dp.sampling.Entropy())
    run.step()
    raw = run.dump()
    assert raw == run.dump()
    ends = []
    for _ in range(2):
        again = made.restore(examples(), raw, 1, entropy=dp.sampling.Entropy())
        assert torch.equal(again.values, run.values)
        again.step()
        ends.append(weights(again.model))
    assert not torch.equal(*ends)
    numbers = 2 * 8 + 8  # values, averages, velocity of 8 weights in float32
    assert len(raw) - 8 - int.from_bytes(raw[:8], "little") == 4 * numbers


def test_what_fails_on_private_examples_forfeits_the_rest(tmp_path: Path, monkeypatch: Any) -> None:
    """A failure of our own: an example on which the model fails counts as zero."""
    made = trainer()
    session = dp.open(
        examples(), budget=dp.Budget(epsilon=60, delta=1e-5), ledger=tmp_path / "ledger", large_epsilon=True
    )

    def failing(*args: Any) -> None:
        raise ValueError("987654")

    with monkeypatch.context() as patched:
        patched.setattr("discreet.learning.training.clipped_sums.Summands.add", failing)
        with pytest.raises(ReleaseFailed, match="the mechanism failed after it") as caught:
            session.train(made, checkpoint=tmp_path / "run", every=EVERY)
    assert "987654" not in str(caught.value)
    assert counter(session) == STEPS
    seen: list[Progress] = []
    session.resume(made, tmp_path / "run", progress=seen.append)
    assert seen == [], "not one more step"
    assert session.curator.verify() == []


def test_nothing_is_charged_where_it_could_not_go_on(tmp_path: Path) -> None:
    session = opened(tmp_path)

    class Mean(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x - x.mean(0)

    (tmp_path / "taken").write_text("")
    for error, match, act in [
        (InvalidInput, "exists already", lambda: session.train(trainer(), checkpoint=tmp_path / "taken")),
        (InvalidInput, "no folder", lambda: session.train(trainer(), checkpoint=tmp_path / "none" / "run")),
        (InvalidInput, "every", lambda: session.train(trainer(), checkpoint=tmp_path / "run", every=0)),
        (InvalidInput, "not the class itself", lambda: session.train(Trainer, checkpoint=tmp_path / "run")),
        (
            InvalidInput,
            "multiple of 4",
            lambda: session.train(in_bins(), checkpoint=tmp_path / "run", every=6),
        ),
        (NotPrivate, "mixes", lambda: session.train(trainer(model=nn.Sequential(nn.Linear(3, 2), Mean())))),
        (InvalidInput, "made-up", lambda: session.train(trainer(model=nn.Linear(4, 2)))),
        (
            BudgetExceeded,
            "epsilon",
            lambda: session.train(trainer(noise_multiplier=0.1), checkpoint=tmp_path / "run"),
        ),
    ]:
        with pytest.raises(error, match=match):
            act()
    assert session.spent == 0
    assert session.ledger.anchor.seq == 1
    assert not (tmp_path / "run").exists()


def in_bins() -> Trainer:
    return trainer(sampling="balls_in_bins", batch=10, steps=None, epochs=5)


def test_balls_in_bins_are_cut_between_passes_only(tmp_path: Path) -> None:
    assert in_bins().period == 4
    session = opened(tmp_path)
    with pytest.raises(Stop):
        session.train(in_bins(), checkpoint=tmp_path / "run", every=8, progress=stopping(9))
    seen: list[Progress] = []
    session.resume(in_bins(), tmp_path / "run", progress=seen.append)
    assert [p.step for p in seen] == [17, 18, 19, 20]


def test_what_remembers_more_than_its_weights_is_not_resumed() -> None:
    class Odd(type(trainer().schedule)):  # type: ignore[misc]
        pass

    plan = trainer().schedule
    odd = trainer(
        sampling=Odd(rate=plan.rate, steps=plan.steps, divisor=plan.divisor), batch=None, steps=None
    )
    with pytest.raises(Unsupported, match="cannot be resumed"):
        odd.period  # noqa: B018


# kill -9


def logged(path: Path) -> None:
    """From now on every step of this process is written down before it begins: its number, and the weights it
    starts from."""
    real = TrainingRun._accumulate

    def accumulate(self: TrainingRun, members: Any) -> None:
        with (path / "steps").open("a") as file:
            file.write(f"{self.steps_taken} {self.values.numpy().tobytes().hex()}\n")
        real(self, members)

    TrainingRun._accumulate = accumulate  # type: ignore[method-assign]


def suicide(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dying(path: Path, where: str, nth: int) -> None:
    """A process that trains, or goes on, and dies at the nth time it comes to a place."""
    logged(path)
    targets = {
        "step": (TrainingRun, "_accumulate"),
        "claim": (segments.ChargedRun, "claim"),
        "save": (segments.ChargedRun, "save"),
        "dump": (TrainingRun, "dump"),
        "replace": (os, "replace"),
        "record": (segments.ChargedRun, "_record"),
    }
    owner, name = targets[where]
    real, calls = getattr(owner, name), [0]

    def counted(*args: Any, **named: Any) -> Any:
        calls[0] += 1
        if calls[0] == nth:
            suicide()
        return real(*args, **named)

    setattr(owner, name, counted)
    session = opened(path)
    if (path / "run").exists():
        session.resume(trainer(), path / "run")
    else:
        session.train(trainer(), checkpoint=path / "run", every=EVERY)


def killed(path: Path, *how: Any) -> None:
    child = multiprocessing.get_context("fork").Process(target=dying, args=(path, *how))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL


def assert_sound(path: Path, lost: int) -> None:
    """After all is done: no step was run twice, none from weights that another step was run from, only `lost`
    are missing."""
    lines = [line.split() for line in (path / "steps").read_text().splitlines()]
    numbers = [int(number) for number, _ in lines]
    assert len(set(numbers)) == len(numbers) <= STEPS, "a step was run twice"
    assert numbers == sorted(numbers)
    session = opened(path)
    assert segments.problems(session.ledger) == []
    assert session.curator.verify() == []
    assert STEPS - len(numbers) == lost
    assert len(list(session.ledger.entries(kind="charge"))) == 1


@pytest.mark.parametrize(
    ("where", "nth", "lost"),
    [
        ("step", 7, 2),  # in the second segment, after two of its steps: this one was begun, two were not
        ("claim", 2, 0),  # before the claim is made: nothing is lost
        ("dump", 3, 0),  # steps were run, and their result is gone: they count
        ("replace", 3, 0),  # the same, with the new file beside the old one
        ("record", 3, 0),  # the new file is in place, the ledger does not know: it is taken
    ],
)
def test_kill_9_anywhere_never_runs_a_step_twice(tmp_path: Path, where: str, nth: int, lost: int) -> None:
    killed(tmp_path, where, nth)
    before = TrainingRun._accumulate
    try:
        logged(tmp_path)
        assert opened(tmp_path).resume(trainer(), tmp_path / "run").private
    finally:
        TrainingRun._accumulate = before  # type: ignore[method-assign]
    assert_sound(tmp_path, lost)
    starts = [line.split()[1] for line in (tmp_path / "steps").read_text().splitlines()]
    again = len(starts) - len(set(starts))  # two steps from the same weights
    assert again == (1 if where in ("step", "dump", "replace") else 0), (
        "only where a segment was lost, whose result nobody saw"
    )


def test_kill_9_again_and_again_at_random(tmp_path: Path) -> None:
    """Processes that die at any moment, until one comes through: the steps that were run are never more than
    were paid for."""
    rng = random.Random(7)
    opened(tmp_path)
    for _ in range(12):
        child = multiprocessing.get_context("fork").Process(target=dying, args=(tmp_path, "step", 10**9))
        child.start()
        time.sleep(rng.uniform(0.01, 0.12))
        if child.is_alive() and child.pid is not None:
            os.kill(child.pid, signal.SIGKILL)
        child.join()
        if child.exitcode == 0 or not (tmp_path / "run").exists():
            break
    session = opened(tmp_path)
    if (tmp_path / "run").exists():
        assert session.resume(trainer(), tmp_path / "run").private
    numbers = (
        [int(line.split()[0]) for line in (tmp_path / "steps").read_text().splitlines()]
        if (tmp_path / "steps").exists()
        else []
    )
    assert len(set(numbers)) == len(numbers) <= STEPS
    assert segments.problems(session.ledger) == []
    assert session.curator.verify() == []


def test_two_processes_race_and_one_of_them_trains(tmp_path: Path) -> None:
    crashed(tmp_path, at=EVERY + 1)
    context = multiprocessing.get_context("fork")
    gate, outcomes = context.Barrier(3), context.Queue()

    def race(copy: Path) -> None:
        logged(tmp_path)
        session = opened(tmp_path)
        gate.wait()
        try:
            session.resume(trainer(), copy)
            outcomes.put("trained")
        except LedgerError as error:
            outcomes.put(str(error))

    racers = []
    for i in range(3):
        shutil.copy(tmp_path / "run", tmp_path / f"copy{i}")
        racers.append(context.Process(target=race, args=(tmp_path / f"copy{i}",)))
    for racer in racers:
        racer.start()
    found = [outcomes.get(timeout=600) for _ in racers]
    for racer in racers:
        racer.join()
    assert found.count("trained") >= 1
    assert all(text == "trained" or "another process" in text or "older" in text for text in found)
    numbers = [int(line.split()[0]) for line in (tmp_path / "steps").read_text().splitlines()]
    assert len(set(numbers)) == len(numbers), "a step was run by two"
    assert segments.problems(opened(tmp_path).ledger) == []


def test_a_run_goes_on_for_whom_and_on_what_it_was_paid_for(tmp_path: Path) -> None:
    """Paid for one period, or by one analyst: neither another period's rows nor another's budget."""
    rows = {"term": ["a", "b"] * 30, "x": [0.0, 1.0, 0.5] * 20, "y": [True, False] * 30}
    facts = {"term": dp.Categories(["a", "b"]), "x": dp.Bounds(0, 1), "y": dp.Boolean()}
    budget = dp.Budget(epsilon=30, delta=1e-5, per=Period(column="term"))
    people = dp.open(
        rows,
        unit=dp.rows(),
        schema=facts,
        size=60,
        budget=budget,
        large_epsilon=True,
        analysts={"ann": None, "bob": None},
        ledger=tmp_path / "books",
    )
    settings = {
        "noise_multiplier": 2.0,
        "n": 30,
        "batch": 10,
        "steps": 8,
        "columns": Tabular(features=("x",), target="y"),
    }
    first, second = people.during("a"), people.during("b")
    made = Trainer(nn.Linear(1, 2), nn.CrossEntropyLoss(), public=first.public, **settings)
    other = Trainer(nn.Linear(1, 2), nn.CrossEntropyLoss(), public=second.public, **settings)
    with pytest.raises(Stop):
        first.as_analyst("ann").train(made, checkpoint=tmp_path / "run", every=4, progress=stopping(5))
    for session, trained in (
        (second.as_analyst("ann"), other),
        (first.as_analyst("bob"), made),
        (first, made),
    ):
        with pytest.raises(InvalidInput, match="another analyst, or for other periods"):
            session.resume(trained, tmp_path / "run")
    assert first.as_analyst("ann").resume(made, tmp_path / "run").private


def test_the_options_of_a_loss_are_part_of_a_runs_identity() -> None:
    def identity(loss: Any) -> Any:
        settings: dict[str, Any] = {"noise_multiplier": 1.0, "n": 8, "batch": 4, "steps": 2}
        return checkpoints.identity(Trainer(nn.Linear(2, 2), loss, **settings))

    plain = identity(nn.CrossEntropyLoss())
    assert plain == identity(nn.CrossEntropyLoss())
    # as it stands in ledgers
    assert "loss options" not in plain
    for loss in (
        nn.CrossEntropyLoss(label_smoothing=0.1),
        nn.CrossEntropyLoss(ignore_index=1),
        nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0]), reduction="sum"),
    ):
        assert identity(loss) != plain
    weights = [nn.CrossEntropyLoss(weight=torch.tensor([1.0, w]), reduction="sum") for w in (2.0, 3.0)]
    assert identity(weights[0]) != identity(weights[1])


def test_tied_weights_that_are_trained_are_not_taken_for_frozen_ones() -> None:
    digests = set()
    for seed in (0, 1):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        model[1].weight = model[0].weight
        digests.add(checkpoints.frozen_digest(model))
    assert len(digests) == 1
    model[0].bias.requires_grad_(False)
    assert checkpoints.frozen_digest(model) not in digests
