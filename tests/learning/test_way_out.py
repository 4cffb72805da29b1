"""Slips that people make with models: each is refused before anything is charged, in a sentence that says what
to write instead."""

from __future__ import annotations

import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression as Plain
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

import discreet as dp
from discreet import DiscreetError, InvalidInput, PrivateFact, Public, learning, tabular
from discreet.app.cli.query import explaining_interruption
from discreet.learning import model_files
from discreet.sampling import Entropy
from discreet.tables import Memory

SIZE = 50
PUBLIC = Public(table="reviews", size=SIZE)
BUDGET = dp.Budget(epsilon=20, delta=1e-5)


def opened(source: Any) -> Any:
    return dp.open(source, budget=BUDGET, ledger=":memory:")


def people() -> Any:
    dose = np.linspace(0, 10, 40)
    schema = {"dose": dp.Bounds(0, 10), "well": dp.Categories(["no", "yes"])}
    data = {"dose": dose, "well": np.where(dose > 5, "yes", "no")}
    return dp.open(
        data, table="people", schema=schema, unit=dp.rows(), size=40, budget=BUDGET, ledger=":memory:"
    )


def examples(**changes: Any) -> learning.Examples:
    inputs = changes.get("inputs", torch.rand(SIZE, 4))
    return learning.Examples(inputs, changes.get("targets", torch.arange(SIZE) % 2), PUBLIC)


def trainer(**changes: Any) -> learning.Trainer:
    settings = {"public": PUBLIC, "noise_multiplier": 1.0, "batch": 10, "steps": 4} | changes
    return learning.Trainer(nn.Linear(4, 2), "cross_entropy", **settings)


class TinyForSequenceClassification(nn.Module):
    """What `TransformersTrainer` needs of a model of `transformers`."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.classes = nn.Embedding(40, 8), nn.Linear(8, 2)
        self.config = SimpleNamespace(vocab_size=40, num_labels=2, pad_token_id=0)

    def forward(self, input_ids: Any, attention_mask: Any) -> Any:
        return SimpleNamespace(logits=self.classes(self.words(input_ids).mean(1)))


ARGS = {"per_device_train_batch_size": 10, "max_steps": 2, "learning_rate": 1e-2}


def tuned(label: Any = lambda i: i % 2, word: int = 7) -> learning.TransformersTrainer:
    texts = [{"input_ids": [word] * 5, "attention_mask": [1] * 5, "labels": label(i)} for i in range(SIZE)]
    return learning.TransformersTrainer(
        TinyForSequenceClassification(), ARGS, texts, public=PUBLIC, max_length=6, noise_multiplier=1.0
    )


TOKENS = torch.ones(SIZE, 6, dtype=torch.long)
OTHERS = {
    "other inputs": lambda: examples(),
    "fewer inputs": lambda: examples(inputs=TOKENS),
    "texts of another length": lambda: examples(inputs=(TOKENS[:, :5], TOKENS[:, :5])),
    "numbers instead of tokens": lambda: examples(inputs=(TOKENS.float(), TOKENS.float())),
    "numbers instead of classes": lambda: examples(inputs=(TOKENS, TOKENS), targets=torch.rand(SIZE)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_session_over_other_examples_is_refused_before_the_charge(name: str) -> None:
    session = opened(OTHERS[name]())
    with pytest.raises(
        InvalidInput, match=r"over other examples than .* Open a session over the trainer's own"
    ):
        tuned().train(session)
    assert session.spent == 0


def test_a_session_over_a_table_is_refused_before_the_charge_and_the_right_ones_train() -> None:
    session = opened(Memory({"dose": [1.0] * SIZE}, PUBLIC))
    with pytest.raises(DiscreetError, match=r"not a source of examples: wrap tensors as learning\.Examples"):
        tuned().train(session)
    assert session.spent == 0
    first = tuned()
    session = opened(first.examples)
    first.train(session)
    # a second trainer of the same texts, in the same session
    tuned().train(session)
    assert session.spent > 0


@pytest.mark.parametrize("label", [2, -1, 0.5, "yes", None, float("nan")])
def test_labels_outside_the_classes_are_refused_when_the_trainer_is_made(label: Any) -> None:
    with pytest.raises(InvalidInput, match=r"2 classes, the whole numbers 0 to 1.*num_labels"):
        tuned(lambda i: label if i == SIZE - 1 else 0)


@pytest.mark.parametrize("word", [40, -1])
def test_tokens_outside_the_vocabulary_are_refused_when_the_trainer_is_made(word: int) -> None:
    with pytest.raises(InvalidInput, match=r"40 of the model's vocabulary.*tokenizer of this model"):
        tuned(word=word)


@pytest.mark.parametrize(
    "item",
    [
        {"text": "hello"},
        ("hello", 1),
        {"input_ids": ["hello"]},
        {"input_ids": [1], "labels": [0, 1]},
        {"input_ids": [1], "attention_mask": "hello", "labels": 0},
    ],
)
def test_texts_that_are_not_tokenized_are_refused_when_the_trainer_is_made(item: Any) -> None:
    with pytest.raises(InvalidInput, match="Tokenize the texts first") as caught:
        learning.TransformersTrainer(
            TinyForSequenceClassification(), ARGS, [item], public=PUBLIC, max_length=6, noise_multiplier=1.0
        )
    assert "hello" not in str(caught.value)


FITTED_WRONGLY = {
    "a class": (tabular.LogisticRegression, r"give an object, LogisticRegression\(\.\.\.\), not the class"),
    "a class of torch's": (learning.DPClassifier, r"give an object, DPClassifier\(\.\.\.\), not the class"),
    "a search over a class": (
        tabular.PrivateSearch(tabular.LogisticRegression, {"l1": [0.0, 1.0]}, epsilon=1),
        r"give an object, LogisticRegression\(\.\.\.\), not the class",
    ),
    "a pipeline with a class": (
        tabular.PrivatePipeline(tabular.LogisticRegression, epsilon=1),
        r"give an object, LogisticRegression\(\.\.\.\), not the class",
    ),
    "a pipeline": (
        make_pipeline(StandardScaler(), tabular.LogisticRegression(epsilon=1)),
        r"tabular\.PrivatePipeline\(",
    ),
    "scikit-learn's": (Plain(), r"not private: see whether tabular\.LogisticRegression\(epsilon=1\)"),
    "a trainer": (trainer(), r"people\.train\(trainer\)"),
    "a number": (3, r"such as LogisticRegression\(epsilon=1\)"),
}


@pytest.mark.parametrize("name", FITTED_WRONGLY)
def test_what_cannot_be_fitted_is_refused_with_the_way_out(name: str) -> None:
    wrong, way_out = FITTED_WRONGLY[name]
    session = people()
    with pytest.raises(InvalidInput, match=way_out):
        session.fit(wrong, target="well")
    assert session.spent == 0


@pytest.mark.parametrize(
    ("wrong", "way_out"),
    [
        (learning.Trainer, r"give an object, Trainer\(\.\.\.\), not the class"),
        (tabular.LogisticRegression(epsilon=1), r"people\.fit\(\.\.\.\) fits an estimator"),
        (3, "a Trainer can"),
    ],
)
def test_what_cannot_be_trained_is_refused_with_the_way_out(wrong: Any, way_out: str) -> None:
    session = people()
    with pytest.raises(InvalidInput, match=way_out):
        session.train(wrong)
    assert session.spent == 0


def test_the_ways_out_that_are_named_work() -> None:
    session = people()
    session.fit(tabular.PrivatePipeline(tabular.LogisticRegression(), epsilon=1), target="well")
    assert "LogisticRegression" in str(session.plan([(tabular.LogisticRegression(), "well")], epsilon=1))
    previewed = session.curator.preview(trainer().event)
    assert previewed.after > 0
    assert str(previewed).startswith(f"epsilon from {previewed.before:.4g} to {previewed.after:.4g}, of")
    assert trainer()(examples(), entropy=Entropy()).value is not None


@pytest.mark.parametrize(
    ("estimator", "hint"),
    [
        (tabular.LogisticRegression(epsilon=1), r"got LogisticRegression\. .*people\.plan\("),
        (tabular.LogisticRegression, r"got LogisticRegression\. .*people\.plan\("),
        (trainer(), r"got Trainer\. print\(people\.curator\.preview\(it\.event\)\)"),
    ],
)
def test_a_preview_of_what_is_no_sql_names_what_shows_its_price(estimator: Any, hint: str) -> None:
    with pytest.raises(InvalidInput, match=hint):
        people().preview(estimator)


@pytest.mark.parametrize("data", [examples(), np.zeros((SIZE, 4)), torch.utils.data.DataLoader([1, 2])])
def test_a_trainer_that_is_called_like_a_function_says_who_runs_it(data: Any) -> None:
    with pytest.raises(
        InvalidInput, match=r"run by a session.*\.train\(trainer\).*entropy=sampling\.Entropy"
    ):
        trainer()(data)


def test_a_misspelt_option_of_a_trainer_is_named_with_the_right_one() -> None:
    with pytest.raises(InvalidInput, match=r"Trainer has no option 'batch_size'\. Did you mean 'batch'\?"):
        learning.Trainer(batch_size=10)
    with pytest.raises(InvalidInput, match="Trainer needs model, loss"):
        learning.Trainer(batch=10)


def test_a_model_that_is_saved_in_the_wrong_place_is_sent_to_the_right_one(tmp_path: Path) -> None:
    for wrong, way_out in (
        (tabular.LogisticRegression, r"a class: give the fitted object that people\.fit"),
        (learning.DPClassifier, r"a class: give the fitted object that people\.fit"),
        (learning.DPClassifier(), r"not fitted yet: people\.fit\(model, target="),
        (tabular.LogisticRegression(), r"which tabular\.save writes"),
    ):
        with pytest.raises(InvalidInput, match=way_out):
            model_files.save(wrong, tmp_path / "model")
    for wrong in (tabular.LogisticRegression, tabular.LogisticRegression()):
        with pytest.raises(InvalidInput, match="fitted"):
            tabular.save(wrong, tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_ctrl_c_says_how_the_run_goes_on(tmp_path: Path) -> None:
    def stop(progress: Any) -> None:
        if progress.step == 3:
            raise KeyboardInterrupt

    path = tmp_path / "run"
    session = opened(examples())
    with pytest.raises(KeyboardInterrupt) as caught:
        session.train(trainer(), checkpoint=path, every=2, progress=stop)
    (note,) = caught.value.__notes__
    assert f"resume(trainer, {str(path)!r}) goes on" in note
    assert session.resume(trainer(), path).value is not None
    with pytest.raises(KeyboardInterrupt) as caught:
        session.train(trainer(), progress=stop)
    (note,) = caught.value.__notes__
    assert "is over: its price stays spent" in note
    assert "checkpoint='run.checkpoint'" in note


@pytest.mark.parametrize(
    ("checkpoint", "words"), [(None, "the run is over"), ("run", "--resume goes on from run")]
)
def test_ctrl_c_on_the_shell_says_how_the_run_goes_on(checkpoint: Any, words: str, capsys: Any) -> None:
    with pytest.raises(KeyboardInterrupt), explaining_interruption(checkpoint):
        raise KeyboardInterrupt
    assert words in capsys.readouterr().err


def test_a_checkpoint_that_cannot_be_written_is_refused_before_the_charge(tmp_path: Path) -> None:
    session = opened(examples())
    # With the suffix of the file that is written first, the long name is longer than a file system allows.
    for name in ("x" * 253, "a\0b"):
        with pytest.raises(InvalidInput, match=r"cannot be written"):
            session.train(trainer(), checkpoint=tmp_path / name)
    assert session.spent == 0
    assert list(tmp_path.iterdir()) == []


ESTIMATORS = {
    name: estimator
    for package in (learning, tabular)
    for name in package.__all__
    if isinstance(estimator := getattr(package, name), type)
    and {"epsilon", "lower"} <= set(inspect.signature(estimator).parameters)
}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_bounds_that_are_not_declared_are_refused(name: str) -> None:
    """Not guessed: an estimator that took [-1, 1] was right in 53 of 100 rows of data in 0..100."""
    X, y = np.random.default_rng(0).uniform(0, 100, (30, 2)), np.array([0, 1] * 15)
    options: dict[str, Any] = {"n": 30, "delta": 1e-6}
    parameters = inspect.signature(ESTIMATORS[name]).parameters
    options |= {"classes": [0, 1]} if "classes" in parameters else {}
    with pytest.raises(PrivateFact, match=r"bounds of the features .* declare them, lower=0, upper=100"):
        ESTIMATORS[name](**options, **({"target_lower": 0} if "target_lower" in parameters else {})).fit(X, y)
    if "target_lower" in parameters:
        with pytest.raises(PrivateFact, match=r"bounds of the target .* target_lower=0, target_upper=100"):
            ESTIMATORS[name](**options, lower=0, upper=100).fit(X, y)
    # what scikit-learn does with estimators still works
    assert clone(ESTIMATORS[name](**options)).get_params()["lower"] is None
