"""What callbacks, loggers and progress bars are told of a run is a closed list, and loops of one's own are paid for."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Subset, TensorDataset

import discreet as dp
from discreet import InvalidInput, PrivateFact
from discreet.learning import Adaptive, Examples, PublicSet, Trainer
from discreet.learning.training.callbacks import LOGGED, Progress
from discreet.sampling import Entropy

SIZE = 60
PUBLIC = dp.Public(table="people", size=SIZE)
ACCURACY = {"accuracy": lambda outputs, targets: (outputs.argmax(1) == targets).float().mean()}


def examples(size: int = SIZE, shift: float = 0.0) -> Examples:
    return Examples(torch.randn(size, 4) + shift, torch.randint(0, 2, (size,)), PUBLIC)


def public_set(**options: Any) -> PublicSet:
    return PublicSet((torch.randn(30, 4), torch.randint(0, 2, (30,))), metrics=ACCURACY, **options)


def trainer(**changes: Any) -> Trainer:
    options = {"public": PUBLIC, "epsilon": 3, "delta": 1e-5, "batch": 10, "epochs": 2} | changes
    return Trainer(nn.Linear(4, 2), nn.CrossEntropyLoss(), **options)


def opened(tmp_path: Path, source: Any = None) -> Any:
    budget = dp.Budget(epsilon=50, delta=1e-4)
    source = examples() if source is None else source
    return dp.open(source, budget=budget, ledger=tmp_path / "ledger", large_epsilon=True)


class Writer:
    """A logger with the method of TensorBoard's SummaryWriter."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, float, int]] = []

    def add_scalar(self, tag: str, value: Any, global_step: int | None = None) -> None:
        assert type(value) is float
        assert global_step is not None
        self.rows.append((tag, value, global_step))


def reachable(thing: Any) -> list[Any]:
    """All that a hostile callback reaches from what it is handed: through attributes, slots, items, closures, defaults
    and what methods are bound to. Code, modules and classes are left out: they are the same in every run."""
    seen: dict[int, Any] = {}
    todo = [thing]
    while todo:
        it = todo.pop()
        if id(it) in seen or isinstance(
            it, type | types.ModuleType | types.CodeType | str | bytes | int | float
        ):
            continue
        seen[id(it)] = it
        if isinstance(it, types.FunctionType):
            todo += [cell.cell_contents for cell in it.__closure__ or ()] + list(it.__defaults__ or ())
            continue
        if isinstance(it, dict):
            todo += [*it.keys(), *it.values()]
        elif isinstance(it, list | tuple | set | frozenset):
            todo += list(it)
        if isinstance(it, Tensor):
            todo += [it.grad, it.grad_fn, it._base]
            continue
        slots = [name for kind in type(it).__mro__ for name in getattr(kind, "__slots__", ())]
        todo += [getattr(it, name, None) for name in slots if not name.startswith("__")]
        todo += [
            *getattr(it, "__dict__", {}).values(),
            getattr(it, "__self__", None),
            getattr(it, "__func__", None),
        ]
    return list(seen.values())


def private_things(thing: Any, source: Examples, run: Any) -> list[str]:
    """The names of what is private among all that is reachable: examples, gradients, engines, entropy, runs."""
    private = [*source._data, run._gradient] if run is not None else list(source._data)
    memory = {t.untyped_storage().data_ptr() for t in private}
    found = []
    for it in reachable(thing):
        if isinstance(it, Tensor):
            found += ["a private tensor"] if it.untyped_storage().data_ptr() in memory else []
        elif type(it).__name__ in (
            "Examples",
            "ClippingEngine",
            "Summands",
            "TrainingRun",
            "Recorder",
            "NoiseBuffer",
        ):
            found.append(type(it).__name__)
        elif isinstance(it, Entropy):
            found.append("Entropy")
    return found


@pytest.mark.parametrize("clip", [1.0, Adaptive(clip=1.0, count_noise=5.0)])
def test_a_hostile_callback_reaches_the_closed_list_only(clip: Any) -> None:
    source, made = examples(), trainer(clip=clip)
    told: list[Progress] = []
    run = made.start(source, entropy=Entropy())
    watch = made.watch(False, callbacks=[told.append], validation=public_set(), source=source)
    with run:
        while not run.done:
            run.step()
            watch(run.progress)
    assert len(told) == 12
    for progress in told:
        assert private_things(progress, source, run) == []
        names = {name for name in dir(progress) if not name.startswith("_")}
        assert names == {*LOGGED, "step", "steps", "metrics", "model", "stop", "logged"}
        # The model is a copy: it has none of the run's working model, whose code saw the examples.
        assert private_things(progress.model, source, run) == []
        assert set(map(id, progress.model.modules())).isdisjoint(map(id, run._working_model.modules()))


def test_the_search_for_private_things_finds_them() -> None:
    source, made = examples(), trainer()
    run = made.start(source, entropy=Entropy())
    run.step()
    assert "TrainingRun" in private_things(lambda: run, source, run)
    assert "a private tensor" in private_things({"a": [source.take]}, source, run)
    assert "ClippingEngine" in private_things(run.step, source, run)


def test_what_is_told_is_the_same_whatever_the_data() -> None:
    """Also the same whatever their number: on data of half the size and elsewhere, and on none at all."""

    def told(source: Examples) -> list[Any]:
        writer, seen = Writer(), []
        trainer()(
            source, entropy=Entropy(), progress=False, callbacks=[writer, lambda p: seen.append(p.logged())]
        )
        return [writer.rows, seen]

    everybody = told(examples())
    assert everybody == told(examples(SIZE // 2, shift=9.0)) == told(examples(0))
    assert {tag for tag, _, _ in everybody[0]} == set(LOGGED)


def test_loggers_get_the_closed_list_when_a_score_is_due() -> None:
    class Run:
        """A run of W&B."""

        def __init__(self) -> None:
            self.rows: list[tuple[dict[str, float], int]] = []

        def log(self, row: dict[str, float], step: int) -> None:
            self.rows.append((row, step))

    writer, run = Writer(), Run()
    trainer()(examples(), entropy=Entropy(), callbacks=[writer, run], validation=public_set(every=4))
    assert [step for _, step in run.rows] == [4, 8, 12]
    assert {tag for tag, _, _ in writer.rows} == {*LOGGED, "validation/loss", "validation/accuracy"}
    assert [dict(row) for row, _ in run.rows] == [
        {tag: value for tag, value, at in writer.rows if at == step} for step in (4, 8, 12)
    ]
    epsilons = [row["epsilon"] for row, _ in run.rows]
    assert epsilons == sorted(epsilons)
    assert epsilons[-1] == pytest.approx(3, abs=1e-3)


def test_scores_are_those_of_the_model_on_all_public_rows() -> None:
    x, y = torch.randn(30, 4), torch.randint(0, 2, (30,))
    model = nn.Linear(4, 2)
    loss = nn.functional.cross_entropy(model(x), y).item()
    accuracy = ACCURACY["accuracy"](model(x), y).item()
    for data in ((x, y), TensorDataset(x, y), torch.utils.data.DataLoader(TensorDataset(x, y), batch_size=7)):
        scores = PublicSet(data, metrics=ACCURACY, batch=7).score(model, nn.CrossEntropyLoss())
        assert scores == pytest.approx({"loss": loss, "accuracy": accuracy}, abs=1e-6)


def test_private_rows_are_refused_as_validation_data_before_the_charge(tmp_path: Path) -> None:
    x, y = torch.randn(SIZE, 4), torch.randint(0, 2, (SIZE,))
    everybody = TensorDataset(x, y)
    held_out = [Subset(everybody, range(40)), Subset(everybody, range(40, 60))]
    people = opened(tmp_path, Examples.of(held_out[0], PUBLIC))
    for data in (held_out[1], (x[40:], y[40:]), torch.utils.data.DataLoader(held_out[1])):
        with pytest.raises(PrivateFact, match="held out are people"):
            people.train(trainer(), validation=PublicSet(data))
    with pytest.raises(PrivateFact, match="private examples"):
        PublicSet(examples())
    with pytest.raises(InvalidInput, match="declare public"):
        people.train(trainer(), validation=(x, y))
    with pytest.raises(InvalidInput, match="cannot be scored"):
        people.train(trainer(), validation=PublicSet((torch.randn(3, 5), torch.zeros(3).long())))
    with pytest.raises(InvalidInput, match="functions of the progress"):
        people.train(trainer(), callbacks=["tensorboard"])
    assert people.spent == 0


def test_stopping_early_keeps_the_price_and_can_be_resumed(tmp_path: Path) -> None:
    people, seen = opened(tmp_path), []
    made = trainer(noise_multiplier=1.0, epsilon=None, delta=None)

    def stop(progress: Progress) -> None:
        seen.append(progress.step)
        if progress.step == 3:
            progress.stop()

    released = people.train(made, checkpoint=tmp_path / "run", every=4, callbacks=[stop])
    spent = people.spent
    assert seen == [1, 2, 3]
    assert released.event == made.event
    assert spent > 0
    # The fourth step was claimed, and never run: the segments after it are paid for, and can be had.
    people.resume(made, tmp_path / "run", callbacks=[lambda progress: seen.append(progress.step)])
    assert seen == [1, 2, 3, 5, 6, 7, 8, 9, 10, 11, 12]
    assert people.spent == spent


def test_a_bar_is_shown_on_request_with_epsilon_so_far(capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("discreet.learning.training.callbacks.find_spec", lambda name: None)
    trainer()(examples(), entropy=Entropy())
    assert capsys.readouterr().err == ""
    trainer()(examples(), entropy=Entropy(), progress=True, validation=public_set(every=6))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 12
    assert lines[-1].startswith("step 12 of 12, epsilon 3, loss ")
    assert "accuracy" in lines[6]


def test_a_loop_of_ones_own_is_charged_before_its_first_step_and_goes_on_from_a_checkpoint(
    tmp_path: Path,
) -> None:
    people, made = opened(tmp_path), trainer(noise_multiplier=1.0, epsilon=None, delta=None)
    loop = people.steps(made, checkpoint=tmp_path / "run", every=5, validation=public_set(every=3))
    assert people.spent == 0
    for step in loop:
        assert people.spent > 0
        if step.step == 7:
            break
    loop.close()
    spent, seen = people.spent, []
    for step in people.steps(made, checkpoint=tmp_path / "run", resume=True, validation=public_set(every=3)):
        seen.append((step.step, step.metrics is not None))
        assert step.epsilon is not None, "at the delta of the budget, as the trainer has none"
    assert seen == [(11, False), (12, True)]
    assert people.spent == spent
    kinds = [entry.kind for entry in people.curator.ledger.entries()]
    assert kinds.count("release") == 1
    with pytest.raises(InvalidInput, match="exists already"):
        next(people.steps(made, checkpoint=tmp_path / "run"))
    with pytest.raises(InvalidInput, match="needs the checkpoint to continue from"):
        people.steps(made, resume=True)
    assert people.spent == spent
    assert [step.step for step in people.steps(made)] == list(range(1, 13))
    assert people.spent > spent


def test_what_cannot_be_called_with_the_progress_is_refused_before_the_charge(tmp_path: Path) -> None:
    people, made = opened(tmp_path), trainer()
    for options in ({"callbacks": [lambda a, b: 0]}, {"progress": lambda: 0}):
        with pytest.raises(InvalidInput, match="called with one argument, the progress"):
            people.train(made, **options)
    assert people.spent == 0


def test_metrics_are_named_functions_and_none_takes_the_name_of_the_loss() -> None:
    pair = torch.zeros(4, 3), torch.zeros(4, dtype=torch.long)
    with pytest.raises(InvalidInput, match=r"metrics must be functions by their names"):
        PublicSet(pair, metrics=["accuracy"])  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="cannot be called 'loss'"):
        PublicSet(pair, metrics={"loss": lambda outputs, targets: 0.0})
