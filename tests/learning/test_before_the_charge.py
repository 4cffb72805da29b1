"""What cannot work is refused when a trainer is made, or on made-up examples: never after it was paid for,
and in words of ours."""

from __future__ import annotations

import dataclasses
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

import discreet as dp
from discreet import DiscreetError, InvalidInput, PrivateFact, Public, Unsupported
from discreet.learning import (
    SGD,
    Adam,
    Augment,
    DPClassifier,
    Examples,
    FlipAndShift,
    Trainer,
    across_workers,
    routes,
    warmup_cosine,
)
from discreet.learning.clipping.engine import ClippingEngine
from discreet.sampling import Entropy

from ..contracts.test_bad_input import NONSENSE

SIZE = 40
PUBLIC = Public(table="people", size=SIZE)


def examples() -> Examples:
    return Examples(torch.rand(SIZE, 4), torch.randint(0, 2, (SIZE,)), PUBLIC)


def trainer(model: Any = None, loss: Any = "cross_entropy", **changes: Any) -> Trainer:
    settings: dict[str, Any] = {"public": PUBLIC, "noise_multiplier": 1.0, "batch": 10, "steps": 2} | changes
    return Trainer(nn.Linear(4, 2) if model is None else model, loss, **settings)


def asked(make: Any, data: Examples | None = None) -> Any:
    """Through a session: what it raises must leave the budget as it was."""
    people = dp.open(
        data or examples(), budget=dp.Budget(epsilon=50, delta=1e-5), ledger=":memory:", large_epsilon=True
    )
    try:
        return people.ask(make()).value
    except Exception:
        assert people.spent == 0
        raise


OPTIMIZERS = {
    "an object of torch": lambda: torch.optim.SGD(nn.Linear(4, 2).parameters(), lr=0.1),
    "a name": lambda: "adam",
    "nothing": lambda: None,
    "our class": lambda: Adam,
    "a function that needs more": lambda: lambda parameters, more: torch.optim.SGD(parameters),
    "a function of something else": lambda: lambda parameters: 3,
    "one for other weights": lambda: lambda parameters: torch.optim.SGD(nn.Linear(4, 2).parameters(), lr=0.1),
    "one that needs a closure": lambda: torch.optim.LBFGS,
    "one for sparse gradients": lambda: lambda parameters: torch.optim.SparseAdam(parameters),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_that_cannot_work_costs_nothing_and_the_way_out_is_shown(name: str) -> None:
    with pytest.raises(InvalidInput, match=r"learning\.SGD\(lr=|torch\.optim"):
        asked(lambda: trainer(optimizer=OPTIMIZERS[name]()))


@pytest.mark.parametrize(
    "made", [SGD(lr=0.1), Adam(), torch.optim.Adam, lambda p: torch.optim.SGD(p[:1], lr=0.1)]
)
def test_optimizers_that_work_are_accepted(made: Any) -> None:
    assert isinstance(asked(lambda: trainer(optimizer=made)), nn.Linear)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"learning_rate": 0.1}, "learning_rate must be a function of the step"),
        ({"learning_rate": lambda step: [1.0][step]}, "for each of 2 steps"),
        ({"learning_rate": lambda step: float("nan")}, "learning_rate"),
        ({"learning_rate": lambda step: 1 / (step - 1), "steps": 9}, r"learning_rate\(1\) failed"),
        ({"learning_rate": lambda step: [1.0, 1e300, 1.0][step], "steps": 3}, "cannot take a step"),
        ({"loss": nn.CrossEntropyLoss}, r"write CrossEntropyLoss\(\)"),
        ({"loss": 3}, "loss must be callable"),
        ({"augment": FlipAndShift()}, "augment must be Augment"),
        ({"augment": Augment(function=FlipAndShift(), times=2)}, "augment failed on made-up examples"),
        ({"augment": Augment(function=lambda x: None, times=2)}, "augment failed on made-up examples"),
        ({"average": 1.0}, "average must be strictly between"),
        ({"microbatch": 0}, "microbatch must be an integer of at least 1"),
        ({"clip": float("nan")}, "clip must be a number"),
        ({"isolate": "yes"}, "isolate must be True or False"),
        ({"columns": ["age"]}, "columns must be Tabular"),
        ({"synthetic": torch.rand(5, 4)}, "synthetic must be a pair"),
        ({"public": {"size": 3}}, "public must be Public"),
        ({"steps": None, "epochs": 0}, "epochs must be above zero, got 0"),
        ({"steps": None, "epochs": -1}, "epochs must be above zero, got -1"),
        ({"batch": 41}, "batch must be at most n, the declared number of examples, which is 40, got 41"),
        ({"model": lambda x: x}, r"model must be a torch\.nn\.Module, got function"),
        ({"model": nn.Linear}, "Give an instance"),
        ({"model": nn.Sequential(nn.LazyLinear(2))}, "Run the model once on made-up inputs first"),
    ],
)
def test_settings_that_cannot_work_cost_nothing(changes: dict[str, Any], match: str) -> None:
    with pytest.raises(InvalidInput, match=match):
        asked(lambda: trainer(**changes))


def test_a_scripted_model_is_refused_wherever_it_is() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scripted = torch.jit.script(nn.Linear(4, 2))
    for model in (scripted, nn.Sequential(nn.Linear(4, 4), scripted)):
        with pytest.raises(Unsupported, match="script the trained one"):
            asked(lambda model=model: trainer(model))


def test_a_lazy_model_that_was_run_once_is_like_any_other() -> None:
    model = nn.Sequential(nn.LazyLinear(2))
    model(torch.zeros(1, 4))
    assert routes(model) == {"0": "tapped"}


def test_what_a_worker_would_fail_on_is_found_before_the_charge() -> None:
    with pytest.raises(InvalidInput, match="made-up examples"):
        asked(lambda: across_workers(trainer(nn.Linear(3, 2))))


@pytest.mark.filterwarnings("error")
def test_nonsense_in_any_setting_is_refused_before_a_run_or_the_run_goes_through() -> None:
    data, escaped = examples(), []
    fields = [field.name for field in dataclasses.fields(Trainer) if field.init]
    settings = [(Trainer, name) for name in fields] + [
        (kind, field.name) for kind in (SGD, Adam) for field in dataclasses.fields(kind)
    ]
    ran = 0
    for (kind, name), value in ((pair, value) for pair in settings for value in NONSENSE):
        try:
            if kind is Trainer:
                made = trainer(**{name: value}) if name != "model" else Trainer(value, "mse", public=PUBLIC)
            else:
                made = trainer(optimizer=kind(**({"lr": 0.1} | {name: value})))
            # Many steps are as good as few; beside a noise multiplier no delta is read: a few of them run.
            unread = name == "delta" and not any(value is few for few in NONSENSE[:5])
            if made.length > 1000 or unread:
                continue
            made.rehearse(data)
        except DiscreetError:
            continue
        except Exception as error:
            escaped.append(f"{kind.__name__}({name}={value!r}): {type(error).__name__}: {error}")
            continue
        try:
            made(data, entropy=Entropy())
            ran += 1
        except Exception as error:
            escaped.append(f"paid for: {kind.__name__}({name}={value!r}): {type(error).__name__}: {error}")
    assert not escaped, "\n".join(escaped)
    assert ran > 20


def test_progress_must_be_callable_and_what_it_raises_is_its_own() -> None:
    """It is told public facts only: its error reaches the caller, type and text."""
    for bad in (3, "x"):
        with pytest.raises(InvalidInput, match="progress must be a function"):
            trainer()(examples(), entropy=Entropy(), progress=bad)  # type: ignore[arg-type]

    def fails(progress: Any) -> None:
        raise KeyError(f"no axis {progress.step}")

    with pytest.raises(KeyError, match="no axis 1"):
        trainer()(examples(), entropy=Entropy(), progress=fails)


class Words(nn.Module):
    """Called with one dict, as tokenizers give them."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.last = nn.Embedding(9, 6), nn.Linear(6, 2)

    def forward(self, text: dict[str, Tensor]) -> Tensor:
        kept = text["mask"].unsqueeze(-1)
        return self.last((self.embed(text["ids"]) * kept).sum(1))


class Rows:
    """A dataset of dicts, as Hugging Face has them."""

    def __init__(self, text: dict[str, Tensor], labels: Tensor) -> None:
        self.text, self.labels = text, labels

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"ids": self.text["ids"][i], "labels": int(self.labels[i]), "mask": self.text["mask"][i]}


def test_a_dict_of_inputs_is_one_argument_of_the_model_also_from_a_dataset_of_dicts() -> None:
    text = {"ids": torch.randint(0, 9, (SIZE, 5)), "mask": torch.randint(0, 2, (SIZE, 5)).float()}
    labels = torch.randint(0, 2, (SIZE,))
    model = Words()
    plain = trainer(model, batch=SIZE, noise_multiplier=1e-6, optimizer=SGD(lr=1.0))
    found = [
        plain(data, entropy=Entropy()).value
        for data in (Examples(text, labels, PUBLIC), Examples.of(Rows(text, labels), PUBLIC, target="labels"))
    ]
    for one, other, old in zip(*(m.parameters() for m in (*found, model)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
        assert not torch.equal(one, old)
    whole = Trainer(
        Words(), "cross_entropy", public=PUBLIC, noise_multiplier=1, batch=10, steps=1, isolate=True
    )
    assert whole(Examples(text, labels, PUBLIC), entropy=Entropy()).value is not None


def test_clipped_sums_of_dicts_are_those_of_the_examples_alone() -> None:
    text = {"ids": torch.randint(0, 9, (3, 5)), "mask": torch.ones(3, 5)}  # three examples, two tensors
    labels = torch.tensor([0, 1, 1])
    engine = ClippingEngine(Words(), nn.CrossEntropyLoss())
    with engine.attached():
        together = engine.clipped_sum(text, labels, clip=0.1)
        alone = sum(
            engine.clipped_sum({k: v[i : i + 1] for k, v in text.items()}, labels[i : i + 1], clip=0.1)
            for i in range(3)
        )
    torch.testing.assert_close(together, alone)
    assert together.norm() > 0.05


def test_a_model_that_wants_keywords_is_told_that_a_dict_is_one_argument() -> None:
    class Keywords(Words):
        def forward(self, ids: Tensor, mask: Tensor) -> Tensor:  # type: ignore[override]
            return super().forward({"ids": ids, "mask": mask})

    text = {"ids": torch.zeros(SIZE, 5, dtype=torch.long), "mask": torch.ones(SIZE, 5)}
    with pytest.raises(InvalidInput, match="ONE argument"):
        asked(lambda: trainer(Keywords()), Examples(text, torch.zeros(SIZE, dtype=torch.long), PUBLIC))


@pytest.mark.parametrize("target", [None, "label"])
def test_a_dataset_of_dicts_must_say_which_entry_is_the_target(target: str | None) -> None:
    rows = Rows(
        {"ids": torch.zeros(SIZE, 5, dtype=torch.long), "mask": torch.ones(SIZE, 5)}, torch.zeros(SIZE)
    )
    with pytest.raises(InvalidInput, match="target="):
        asked(lambda: trainer(Words()), Examples.of(rows, PUBLIC, target=target))


def test_items_that_cannot_be_tensors_are_refused_without_a_word_of_what_they_say() -> None:
    rows = [(None, "a secret")] * SIZE
    with pytest.raises(InvalidInput, match="withheld") as caught:
        asked(trainer, Examples.of(rows, PUBLIC))
    assert "secret" not in str(caught.value)
    with pytest.raises(InvalidInput, match="arrays of numbers"):
        Examples(np.array(["a secret"] * SIZE), torch.zeros(SIZE), PUBLIC)


@pytest.mark.filterwarnings("error")
def test_frames_are_taken_without_a_warning_and_without_a_tie_to_them() -> None:
    frame = pd.DataFrame(np.random.default_rng(0).random((SIZE, 4)).astype(np.float32))
    target = pd.Series([0, 1] * (SIZE // 2))
    assert isinstance(asked(trainer, Examples(frame, target, PUBLIC)), nn.Linear)


def normed() -> nn.Sequential:
    """A backbone with a frozen norm between layers that learn, as after pretraining on public data."""
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2))
    for _ in range(3):
        model(torch.randn(8, 1, 4, 4) * 2 + 1)
    model[1].eval().requires_grad_(False)
    return model


def images() -> Examples:
    return Examples(torch.rand(SIZE, 1, 4, 4), torch.randint(0, 2, (SIZE,)), PUBLIC)


class Insists(nn.Sequential):
    """Puts itself into training mode in each forward pass."""

    def forward(self, x: Tensor) -> Tensor:
        self.train()
        return super().forward(x)


@pytest.mark.parametrize("isolate", [False, True])
@pytest.mark.parametrize("kind", [nn.Sequential, Insists])
@pytest.mark.parametrize("mode", ["the layer", "the model"])
def test_frozen_batch_norm_is_a_constant_map_and_stays_one(
    isolate: bool, kind: type[nn.Module], mode: str
) -> None:
    model = kind(*normed())
    model[1].eval()
    if mode == "the model":
        model.eval()
    before = {name: value.clone() for name, value in model[1].state_dict().items()}
    assert routes(model)["1"] == "constant"
    settings = {"isolate": isolate, "noise_multiplier": 1e-6, "batch": SIZE, "optimizer": SGD(lr=1.0)}
    made, data = trainer(model, **settings), images()
    run = made.start(data, entropy=Entropy())
    with run:
        run._working_model.train()
        run.step()
    run.step()
    for norm in (run._working_model[1], run.model[1], made(data, entropy=Entropy()).value[1]):
        assert all(torch.equal(before[name], value) for name, value in norm.state_dict().items())
        assert "forward" not in vars(norm)
    assert not torch.equal(run.model[0].weight, model[0].weight)
    assert run.engine.model.training


def test_gradients_through_frozen_batch_norm_are_those_of_the_examples_alone() -> None:
    model, x, y = normed(), torch.rand(6, 1, 4, 4), torch.randint(0, 2, (6,))
    engine = ClippingEngine(model, nn.CrossEntropyLoss())
    engine.train()
    assert model.training
    assert not model[1].training
    with engine.attached():
        got = engine.clipped_sum(x, y, clip=1e6)
    nn.CrossEntropyLoss(reduction="sum")(model(x), y).backward()
    want = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_a_layer_at_home_in_two_places_is_attached_once_and_left_as_it_was() -> None:
    shared, norm = nn.Linear(4, 4), nn.BatchNorm1d(4).eval().requires_grad_(False)
    model = nn.Sequential(nn.Sequential(shared, norm), nn.Sequential(shared, norm), nn.Linear(4, 2))
    assert isinstance(asked(lambda: trainer(model)), nn.Sequential)
    assert all("forward" not in vars(module) for module in model.modules())


class OwnNorm(nn.BatchNorm2d):
    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


def test_batch_norm_is_refused_unless_it_is_a_constant_map() -> None:
    no_stats, own, learns = nn.BatchNorm2d(4, track_running_stats=False), OwnNorm(4), nn.BatchNorm2d(4).eval()
    for norm in (no_stats, own, nn.BatchNorm2d(4)):
        norm.requires_grad_(False)
    for norm in (no_stats, own):
        norm.eval()
    for norm in (no_stats, own, learns, nn.BatchNorm2d(4).requires_grad_(False)):
        model = normed()
        model[1] = norm
        with pytest.raises(Unsupported, match="freeze it"):
            asked(lambda model=model: trainer(model), images())


def test_a_model_put_back_into_training_mode_is_refused_before_the_charge() -> None:
    """The trainer holds the model that it was given: it is asked again before anything is charged."""

    def make() -> Trainer:
        model = normed()
        made = trainer(model)
        model.train()
        return made

    with pytest.raises(Unsupported, match=r"after any model\.train\(\)"):
        asked(make, images())


def test_the_probe_leaves_the_mode_of_each_part_as_it_was() -> None:
    model = normed()
    model[2].eval()
    trainer(model, synthetic=(torch.rand(5, 1, 4, 4), torch.tensor([0, 1, 0, 1, 0])))
    assert [part.training for part in model] == [True, False, False, True, True]


def test_estimators_refuse_the_same_things_when_they_are_fitted() -> None:
    x, y = np.random.default_rng(0).random((SIZE, 3)), np.arange(SIZE) % 2
    for bad in (
        {"optimizer": "adam"},
        {"optimizer": ""},
        {"epochs": 0},
        {"batch": 0},
        {"n": 2.5},
        {"progress": 3},
    ):
        with pytest.raises(InvalidInput, match="must be"):
            DPClassifier(**({"classes": [0, 1], "n": SIZE, "lower": 0, "upper": 1} | bad)).fit(x, y)


def test_factors_may_be_any_numbers() -> None:
    for factor in (
        warmup_cosine(2),
        lambda step: torch.tensor(0.5),
        lambda step: np.float32(0.5),
        lambda step: 1,
    ):
        assert isinstance(asked(lambda factor=factor: trainer(learning_rate=factor)), nn.Linear)


def test_the_shell_says_how_to_declare_the_number_on_the_shell(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from discreet.app.cli import app

    data = tmp_path / "people.csv"
    data.write_text("age,ill\n30,true\n60,false\n")
    schema = (
        'table = "people"\nunit = "row"\n[columns.age]\ntype = "number"\nlower = 0\nupper = '
        '100\n[columns.ill]\ntype = "boolean"\n'
    )
    Path(f"{data}.schema.toml").write_text(schema)
    begun = CliRunner().invoke(app, ["init", str(data), "--epsilon", "8", "--delta", "1e-5"])
    assert begun.exit_code == 0, begun.output
    with pytest.raises(PrivateFact, match="--n 1000"):
        CliRunner().invoke(app, ["train", str(data), "--target", "ill"], catch_exceptions=False)
