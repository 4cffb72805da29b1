"""Fine-tuning as people of `transformers` know it: BERT, GPT-2 and LoRA, tiny, with random weights.

Runs where transformers (and peft) are installed.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

import transformers

import discreet as dp
from discreet import learning
from discreet.learning.training.hugging_face import (
    _FOLLOWED,
    _REFUSED,
    _WITHOUT_EFFECT,
    IGNORED,
    _check_settings,
    next_token_loss,
)

PEOPLE, WORDS, LENGTH = 300, 40, 10
PUBLIC = dp.Public(table="reviews", size=PEOPLE)


def texts(labels: bool = True) -> list[dict[str, Any]]:
    """Texts of several lengths; word 7 makes a reader happy, word 9 does not."""
    generator = torch.Generator().manual_seed(0)
    rows = []
    for _ in range(PEOPLE):
        size = int(torch.randint(3, 2 * LENGTH, (), generator=generator))
        ids = torch.randint(10, WORDS, (size,), generator=generator)
        happy = int(torch.randint(0, 2, (), generator=generator))
        ids[0] = 7 if happy else 9
        row = {"input_ids": ids.tolist(), "attention_mask": [1] * size}
        rows.append(row | ({"labels": happy} if labels else {}))
    return rows


def bert() -> Any:
    config = transformers.BertConfig(
        vocab_size=WORDS, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
    )
    return transformers.BertForSequenceClassification(config)


def gpt2() -> Any:
    sizes = {"vocab_size": WORDS, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 32}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))


ARGS = {"per_device_train_batch_size": 100, "num_train_epochs": 20, "learning_rate": 1e-2, "warmup_steps": 5}


def test_bert_learns_through_a_session_and_is_saved_as_its_own_library_saves(tmp_path: Any) -> None:
    torch.manual_seed(0)
    tuned = learning.TransformersTrainer(
        bert(), ARGS, texts(), public=PUBLIC, max_length=LENGTH, epsilon=300, delta=1e-5
    )
    people = dp.open(
        tuned.examples, budget=dp.Budget(epsilon=300, delta=1e-5), ledger=":memory:", large_epsilon=True
    )
    tuned.train(people)
    assert people.spent <= 300
    tuned.save_pretrained(tmp_path / "model")
    again = transformers.BertForSequenceClassification.from_pretrained(tmp_path / "model").eval()
    ids = torch.tensor([[7, 20, 30, 12], [9, 20, 30, 12]])
    assert again(input_ids=ids).logits.argmax(1).tolist() == [1, 0]


def test_gpt2_takes_its_labels_from_the_texts_and_padding_counts_for_nothing() -> None:
    torch.manual_seed(0)
    args = ARGS | {"num_train_epochs": 1, "gradient_checkpointing": True}
    tuned = learning.TransformersTrainer(
        gpt2(), args, texts(labels=False), public=PUBLIC, max_length=LENGTH, noise_multiplier=1.0
    )
    assert tuned.task == "language_modeling"
    assert type(tuned.train().model) is transformers.GPT2LMHeadModel
    (_, _), labels = tuned.examples.take(torch.arange(PEOPLE).numpy())
    sizes = torch.tensor([min(LENGTH, len(row["input_ids"])) for row in texts()])
    assert ((labels != IGNORED).sum(1) == sizes).all()


def test_the_loss_of_a_text_is_that_of_the_library_on_that_text_alone() -> None:
    torch.manual_seed(0)
    model = gpt2().eval().requires_grad_(False)
    ids = torch.randint(0, WORDS, (4, LENGTH))
    labels = ids.clone()
    labels[1, 6:] = IGNORED
    ours = next_token_loss(model(input_ids=ids).logits, labels)
    theirs = [float(model(input_ids=ids[i : i + 1], labels=labels[i : i + 1]).loss) for i in range(4)]
    assert ours.tolist() == pytest.approx(theirs, rel=1e-5)
    nothing = next_token_loss(model(input_ids=ids).logits, torch.full_like(labels, IGNORED))
    assert nothing.tolist() == [0.0] * 4


def test_adapters_are_trained_and_the_rest_is_as_it_was(tmp_path: Any) -> None:
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    settings = peft.LoraConfig(r=2, target_modules=["query", "value"], modules_to_save=["classifier"])
    model = peft.get_peft_model(bert(), settings)
    before = {name: p.clone() for name, p in model.named_parameters()}
    tuned = learning.TransformersTrainer(
        model, ARGS | {"num_train_epochs": 1}, texts(), public=PUBLIC, max_length=LENGTH, noise_multiplier=1.0,
        task="classification",
    )  # fmt: skip
    after = dict(tuned.train().model.named_parameters())
    changed = {name for name, p in after.items() if not torch.equal(p, before[name])}
    assert changed == {name for name, p in before.items() if model.get_parameter(name).requires_grad}
    tuned.save_pretrained(tmp_path / "adapter")
    assert (tmp_path / "adapter" / "adapter_config.json").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"args": ARGS | {"group_by_length": True}}, "group_by_length"),
        ({"args": ARGS | {"fp16": True}}, "float32"),
        ({"args": ARGS | {"lr_scheduler_type": "polynomial"}}, "lr_scheduler_type"),
        ({"args": ARGS | {"load_best_model_at_end": True}}, "load_best_model_at_end"),
        ({"args": ARGS | {"max_grad_norm": 0.1}}, "max_grad_norm=0.1.*give clip=, which bounds each"),
        ({"args": ARGS | {"seed": 0}}, "seed=0 is not for private training: batches and noise"),
        ({"args": ARGS | {"save_steps": 10}}, r"save_steps=10.*train\(session, checkpoint="),
        ({"args": ARGS | {"num_epochs": 3}}, "num_epochs=3.*not followed here"),
        ({"args": ARGS | {"report_to": ["mlflow"]}}, "report_to='mlflow'"),
        ({"args": ARGS | {"report_to": "wandb"}}, "wandb is not installed"),
        ({"args": ARGS | {"eval_strategy": "epoch"}}, "needs eval_dataset"),
        ({"args": ARGS | {"eval_strategy": "best"}, "eval_dataset": texts()}, "eval_strategy"),
        ({"eval_dataset": [{"input_ids": [WORDS + 1], "labels": 0}]}, "vocabulary"),
        ({"task": "translation"}, "task"),
        ({"max_length": 1}, "max_length"),
        ({"train_dataset": iter([])}, "map-style"),
    ],
)
def test_what_cannot_be_private_is_refused_before_anything_is_read(change: Any, words: str) -> None:
    given = {"args": ARGS, "train_dataset": texts(), "max_length": LENGTH} | change
    with pytest.raises(dp.DiscreetError, match=words):
        learning.TransformersTrainer(bert(), **given, public=PUBLIC, noise_multiplier=1.0)


@dataclass
class Arguments:
    """Has settings as `TrainingArguments` has them, all of them with a default."""

    output_dir: str = "out"
    learning_rate: float = 5e-5
    max_grad_norm: float = 1.0
    seed: int = 42
    save_strategy: str = "steps"
    label_smoothing_factor: float = 0.0
    neftune_noise_alpha: float | None = None


def test_of_an_object_those_settings_count_that_are_not_as_by_default() -> None:
    def tuned(**settings: Any) -> Any:
        return learning.TransformersTrainer(
            bert(), Arguments(**settings), texts(), public=PUBLIC, max_length=LENGTH, noise_multiplier=1.0
        )

    assert tuned(learning_rate=1e-3, save_strategy="no", output_dir="elsewhere").trainer is not None
    for name, value in {
        "max_grad_norm": 0.5,
        "seed": 0,
        "save_strategy": "epoch",
        "neftune_noise_alpha": 5.0,
    }.items():
        with pytest.raises(dp.Unsupported, match=f"{name}={value} is not for private training"):
            tuned(**{name: value})


def test_no_setting_of_the_library_is_passed_over(tmp_path: Any) -> None:
    """Each is followed, without effect on what is trained, or refused by its name where it is set."""
    pytest.importorskip("accelerate")
    names = {field.name for field in fields(transformers.TrainingArguments)}
    left = {name for name in names if name not in _FOLLOWED and not name.startswith(_WITHOUT_EFFECT)}
    assert {"seed", "max_grad_norm", "save_steps", "neftune_noise_alpha"} <= left
    assert not set(_FOLLOWED) & set(_REFUSED)
    _check_settings(transformers.TrainingArguments(output_dir=str(tmp_path), use_cpu=True))
    for name in sorted(left):
        with pytest.raises(dp.Unsupported, match=f"{name}=7 is not for private training"):
            _check_settings({name: 7})


def test_public_texts_are_scored_and_logged_as_the_arguments_say(tmp_path: Any) -> None:
    public_texts, private_texts, told = texts()[:40], texts(), list[Any]()
    settings = {
        "num_train_epochs": 4,
        "eval_strategy": "steps",
        "eval_steps": 6,
        "bf16": True,
        "report_to": "none",
    }
    tuned = learning.TransformersTrainer(
        bert(), ARGS | settings, private_texts, public=PUBLIC, max_length=LENGTH, noise_multiplier=1.0,
        eval_dataset=public_texts,
    )  # fmt: skip
    assert tuned.trainer.performance.precision == "bfloat16"
    people = dp.open(
        tuned.examples,
        budget=dp.Budget(epsilon=900, delta=1e-5),
        ledger=tmp_path / "ledger",
        large_epsilon=True,
    )
    tuned.train(people, callbacks=[lambda progress: told.append(progress)])
    scored = {progress.step: progress.metrics["loss"] for progress in told if progress.metrics}
    assert set(scored) == {6, 12}
    logits = tuned.trainer.model.__class__(tuned.model, ("input_ids", "attention_mask"))
    assert scored[12] == pytest.approx(tuned._validation.score(logits, tuned.trainer.loss)["loss"], rel=1e-5)
    with pytest.raises(dp.PrivateFact, match="held out are people"):
        learning.TransformersTrainer(
            bert(), ARGS, private_texts, public=PUBLIC, max_length=LENGTH, noise_multiplier=1.0,
            eval_dataset=private_texts,
        ).train()  # fmt: skip


def test_tensorboard_itself_is_given_the_closed_list(tmp_path: Any) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    settings = {"num_train_epochs": 2, "report_to": ["tensorboard"], "logging_dir": str(tmp_path / "runs")}
    tuned = learning.TransformersTrainer(
        bert(), ARGS | settings, texts(), public=PUBLIC, max_length=LENGTH, epsilon=8, delta=1e-5,
        eval_dataset=texts()[:20],
    )  # fmt: skip
    tuned.train()
    events = EventAccumulator(str(tmp_path / "runs"))
    events.Reload()
    names = {
        "epsilon",
        "delta",
        "learning_rate",
        "noise_multiplier",
        "clip",
        "expected_batch",
        "validation/loss",
    }
    assert set(events.Tags()["scalars"]) == names
    assert [event.step for event in events.Scalars("epsilon")] == [3, 6]


def test_arguments_of_the_library_itself_are_taken(tmp_path: Any) -> None:
    accelerate = pytest.importorskip("accelerate")
    assert accelerate
    args = transformers.TrainingArguments(
        output_dir=str(tmp_path), per_device_train_batch_size=30, gradient_accumulation_steps=2, max_steps=7,
        learning_rate=1e-3, lr_scheduler_type="cosine", use_cpu=True,
    )  # fmt: skip
    tuned = learning.TransformersTrainer(
        bert(), args, texts(), public=PUBLIC, max_length=LENGTH, noise_multiplier=1.0
    )
    assert tuned.trainer.schedule.steps == 7
    assert tuned.event == dp.accounting.Gaussian(noise_multiplier=1.0).sampled(Fraction(60, PEOPLE)).repeated(
        7
    )
