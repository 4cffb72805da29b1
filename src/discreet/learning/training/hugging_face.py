"""Fine-tunes models of Hugging Face's `transformers` with DP-SGD, in the manner of their own `Trainer`.

    tuned = learning.TransformersTrainer(
        model, TrainingArguments(learning_rate=1e-3, num_train_epochs=3, per_device_train_batch_size=256),
        train_dataset, public=dp.Public(table="reviews", size=50_000), max_length=128, epsilon=3, delta=1e-6)
    people = dp.open(tuned.examples, budget=dp.Budget(epsilon=3, delta=1e-6), ledger="reviews.ledger")
    tuned.train(people)
    tuned.save_pretrained("reviews-model")

The model is trained as it is: all weights, or the adapters of `peft`. Texts are truncated and padded to a
declared length, as the length of the longest text is private. `transformers` itself is not imported here.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ... import _require
from ..._errors import Halted, InvalidInput, Unsupported
from ..._public import Public
from ...accounting import Event
from ...sampling import Entropy
from ..probing.safety import BATCH
from .callbacks import PublicSet
from .data import Examples
from .optimizers import Adam, warmup_cosine
from .schedules import build_schedule
from .trainer import Trainer
from .trainer_options import Performance

# The label of a token that has no loss, in all of `transformers`.
IGNORED = -100
# The inputs of a model that are taken from the dataset, in the order in which `Logits` gets them.
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
TASKS = ("classification", "regression", "language_modeling")
# Settings of `TrainingArguments` that are followed here.
_FOLLOWED = (
    *("per_device_train_batch_size", "gradient_accumulation_steps", "num_train_epochs", "max_steps"),
    *("learning_rate", "lr_scheduler_type", "warmup_steps", "warmup_ratio", "optim", "weight_decay"),
    *("adam_beta1", "adam_beta2", "adam_epsilon", "gradient_checkpointing", "bf16", "torch_compile"),
    *("eval_strategy", "eval_steps", "per_device_eval_batch_size", "report_to", "logging_dir", "run_name"),
)
# How settings begin that change neither the trained model nor what is shown of it on the way.
_WITHOUT_EFFECT = (
    *("output_dir", "overwrite_output_dir", "do_", "use_cpu", "no_cuda", "local_rank", "log_", "dataloader_"),
    *("ddp_", "accelerator_config", "fsdp_config", "remove_unused_columns", "torch_compile_backend", "hub_"),
)
# Settings that cannot be followed in private training, with the reason or the way out.
_REFUSED = {
    "group_by_length": "batches are sampled at random, whatever the lengths of the texts",
    "auto_find_batch_size": "the batch is part of the price; for memory use Performance(microbatch=...)",
    "label_smoothing_factor": "give a loss of your own to learning.Trainer",
    "fp16": "parameters stay in float32; use torch.autocast inside the model",
    "load_best_model_at_end": "choose by `callbacks` that look at scores on public data",
    "deepspeed": "use learning.across_workers",
    "fsdp": "use learning.across_workers",
    "max_grad_norm": "it clips the gradient of a whole batch; give clip=, which bounds each example's",
    "seed": "batches and noise come from secret coins; torch.manual_seed(...) fixes the first weights",
    "disable_tqdm": "give train(progress=False)",
    "resume_from_checkpoint": "use session.resume(tuned.trainer, ...)",
    "push_to_hub": "push what save_pretrained(folder) has written",
    "save_strategy": "give train(session, checkpoint=..., every=...)",
    "save_steps": "give train(session, checkpoint=..., every=...)",
    "logging_steps": "numbers are logged when a score is due (eval_steps), as step by step they tell time",
}


class Logits(nn.Module):
    """Wraps a model of `transformers` as a module from input tensors to logits.

    `names` are the keywords of the inputs, in order; `fixed` are further keywords of every call.
    """

    def __init__(self, inner: nn.Module, names: tuple[str, ...], **fixed: Any) -> None:
        super().__init__()
        self.inner, self.names, self.fixed = inner, names, fixed

    def forward(self, *inputs: Tensor) -> Tensor:
        logits: Tensor = self.inner(**dict(zip(self.names, inputs, strict=True)), **self.fixed).logits
        return logits


def next_token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return for each text the mean cross-entropy of its next tokens, over its tokens that are not IGNORED.

    The mean is over one text, not over all tokens of a batch as in `transformers`: there one person's long
    text would change the weight of every other text.
    """
    targets = labels[:, 1:]
    losses = F.cross_entropy(logits[:, :-1].transpose(1, 2), targets, ignore_index=IGNORED, reduction="none")
    counted = (targets != IGNORED).sum(1).clamp(min=1)
    return losses.sum(1) / counted


def class_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy of each text's class."""
    return F.cross_entropy(logits, labels, reduction="none")


def squared_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the squared error of each text's number."""
    return (logits.squeeze(-1) - labels.to(logits.dtype)).square()


_LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "classification": class_loss,
    "regression": squared_loss,
    "language_modeling": next_token_loss,
}


class PaddedTexts:
    """Wraps a tokenized dataset: its items are (inputs, label), truncated or padded to the public `length`.

    `names` are the inputs to take, `label` is the dataset's name of the label, `task` one of TASKS, and `pad`
    the id of the token that texts are padded with.
    """

    def __init__(
        self, dataset: Any, names: tuple[str, ...], label: str, task: str, length: int, pad: int
    ) -> None:
        self.dataset, self.names, self.label, self.task = dataset, names, label, task
        self.length, self.pad = length, pad

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> tuple[tuple[Tensor, ...], Tensor]:
        item = self.dataset[index]
        ids = _tokens(item["input_ids"])
        attention_mask = item.get("attention_mask")
        mask = torch.ones_like(ids) if attention_mask is None else _tokens(attention_mask)
        columns = {"input_ids": (ids, self.pad), "attention_mask": (mask, 0)}
        if "token_type_ids" in self.names:
            columns["token_type_ids"] = (_tokens(item["token_type_ids"]), 0)
        inputs = tuple(self._fit(*columns[name]) for name in self.names)
        return inputs, self._label(item, ids, mask)

    def _label(self, item: Mapping[str, Any], ids: Tensor, mask: Tensor) -> Tensor:
        """Return the label of one item. In language modeling these are labels of tokens: those of the
        dataset, or else the tokens themselves."""
        if self.task == "language_modeling":
            item_labels = item.get(self.label)
            labels = ids.masked_fill(mask == 0, IGNORED) if item_labels is None else _tokens(item_labels)
            return self._fit(labels, IGNORED)
        kind = torch.float32 if self.task == "regression" else torch.long
        return torch.as_tensor(item[self.label], device="cpu").to(kind).reshape(())

    def check(self, config: Any) -> None:
        """Refuse texts that cannot be read, and tokens and labels that the model of this `config` has no
        weights for: a training would fail on them after its charge. For whoever holds the dataset; no value
        is quoted."""
        words, classes = (getattr(config, name, None) for name in ("vocab_size", "num_labels"))
        for index in range(len(self.dataset)):
            try:
                item = self.dataset[index]
                ids, label = _tokens(item["input_ids"]), item.get(self.label)
                if self.task != "classification" or classes is None or _within(label, classes):
                    self[index]
            except Exception as error:
                # The error's text could quote a value.
                raise InvalidInput(
                    f"an item of train_dataset cannot be read ({type(error).__name__}): it is a dict with "
                    f"token ids under 'input_ids', and {self.label!r} for {self.task}. Tokenize the texts "
                    "first."
                ) from None
            if words is not None and not _within(ids, words):
                raise InvalidInput(
                    f"train_dataset has a token that is not among the {words} of the model's vocabulary, 0 "
                    f"to {words - 1}. Use the tokenizer of this model."
                )
            self._check_label(label, words, classes)

    def _check_label(self, label: Any, words: int | None, classes: int | None) -> None:
        """Refuse a label outside the classes, or in language modeling labels that are no tokens."""
        if self.task == "classification" and classes is not None and not _within(label, classes):
            raise InvalidInput(
                f"train_dataset has a {self.label!r} that is not among the model's {classes} classes, the "
                f"whole numbers 0 to {classes - 1}. Number them from 0 on, or make the model with "
                "num_labels=...."
            )
        if self.task == "language_modeling" and words is not None and label is not None:
            counted = _tokens(label)
            if not _within(counted[counted != IGNORED], words):
                raise InvalidInput(
                    f"train_dataset has a {self.label!r} that is neither a token, 0 to {words - 1}, nor "
                    f"{IGNORED}."
                )

    def _fit(self, tokens: Tensor, value: int) -> Tensor:
        """Return tokens truncated to `length`, or padded to it with `value`."""
        return F.pad(tokens[: self.length], (0, max(0, self.length - len(tokens))), value=value)

    def like(self) -> tuple[tuple[Tensor, ...], Tensor]:
        """Return a batch of made-up texts and labels, in the shapes of all texts; their lengths range from 1
        to `length`, so that padding occurs."""
        lengths = 1 + torch.arange(BATCH, device="cpu") * (self.length - 1) // max(1, BATCH - 1)
        mask = torch.arange(self.length, device="cpu") < lengths.unsqueeze(1)
        ids = torch.where(
            mask,
            (torch.arange(self.length, device="cpu") + torch.arange(BATCH, device="cpu").unsqueeze(1)) % 2,
            self.pad,
        )
        columns = {"input_ids": ids, "attention_mask": mask.long(), "token_type_ids": torch.zeros_like(ids)}
        inputs = tuple(columns[name] for name in self.names)
        if self.task == "language_modeling":
            return inputs, torch.where(mask, ids, IGNORED)
        labels = torch.arange(BATCH, device="cpu") % 2
        return inputs, labels.float() if self.task == "regression" else labels


class TransformersTrainer:
    """Fine-tunes a model of `transformers` with DP-SGD; arguments as its own `Trainer` takes them.

    `args` is a `TrainingArguments`, or any object or mapping with its names: `per_device_train_batch_size`
    times `gradient_accumulation_steps` is the expected batch, `num_train_epochs` or `max_steps` the length of
    training, then `learning_rate`, `weight_decay`, `adam_beta1`, `adam_beta2`, `adam_epsilon`, `optim` (AdamW
    only), `warmup_steps` or `warmup_ratio`, `lr_scheduler_type` ("linear", "cosine", "constant",
    "constant_with_warmup") and `gradient_checkpointing`. What is set and cannot be followed is refused by its
    name (`fp16`, `save_steps`), also `max_grad_norm`: it clips the gradient of a whole batch, which protects
    nobody, while `clip` bounds each example's gradient. Folders, workers and logs of the library are not
    read. With `bf16` the model computes in bfloat16; `torch_compile` is `Performance(compiled=True)`.

    `eval_dataset` is data that you declare PUBLIC, of the form of `train_dataset`; the model is scored on it
    as `eval_strategy` says: "epoch" (also where it says nothing), or "steps" with `eval_steps`. `report_to`
    names "tensorboard" or "wandb"; they get what any logger gets (`Progress.logged`).

    An item of `train_dataset` is a dict with input_ids (and attention_mask, token_type_ids), and the label or
    labels under the name `label`. `max_length` is the length that all texts are truncated or padded to.
    `people` has the person of each text, as in `Examples`. `task` is one of `TASKS`, by default that of the
    model's class. Whoever makes the trainer holds the dataset: every text is read once, and labels outside
    the model's classes or tokens outside its vocabulary are refused here, before anything is charged.

    Guarantee: `event`, by the guarantee of `learning.Trainer`, which does the training.
    Assumes:   the dataset was tokenized by a tokenizer that was not trained on it.
    """

    def __init__(
        self,
        model: nn.Module,
        args: Any = None,
        train_dataset: Any = None,
        *,
        public: Public,
        max_length: int,
        epsilon: float | None = None,
        delta: float | None = None,
        noise_multiplier: float | None = None,
        clip: float = 1.0,
        task: str | None = None,
        label: str = "labels",
        people: Any = None,
        performance: Performance | None = None,
        eval_dataset: Any = None,
    ) -> None:
        _require.integer(max_length=max_length, at_least=2)
        _check_settings(args)
        self.task = _task(model, task)
        names = _model_inputs(model, train_dataset)
        pad = getattr(getattr(model, "config", None), "pad_token_id", None)
        texts = PaddedTexts(
            train_dataset, names, label, self.task, max_length, 0 if pad is None else int(pad)
        )
        texts.check(getattr(model, "config", None))
        like = texts.like()
        self.examples = Examples.of(texts, public, people=people, like=like)
        if _setting(args, "gradient_checkpointing", False):
            model.gradient_checkpointing_enable({"use_reentrant": False})  # type: ignore[operator]
        fixed = {"use_cache": False} if self.task == "language_modeling" else {}
        batch = int(_setting(args, "per_device_train_batch_size", 8)) * int(
            _setting(args, "gradient_accumulation_steps", 1)
        )
        steps = int(_setting(args, "max_steps", -1))
        run_length: dict[str, Any] = {"batch": batch}
        run_length |= {"steps": steps} if steps > 0 else {"epochs": _setting(args, "num_train_epochs", 3)}
        planned = build_schedule("poisson", size=public.size, **run_length)
        self.trainer = Trainer(
            Logits(model, names, **fixed),
            _LOSSES[self.task],
            public=public,
            epsilon=epsilon,
            delta=delta,
            noise_multiplier=noise_multiplier,  # type: ignore[arg-type]
            clip=clip,
            **run_length,
            optimizer=_optimizer(args),
            learning_rate=_rate(args, planned.steps),
            performance=_performance(args, performance),
            synthetic=like,
        )
        self._loggers = _loggers(args)
        self._validation = None
        strategy = _name_of(_setting(args, "eval_strategy", "no"))
        if eval_dataset is not None:
            _require.one_of(("no", "epoch", "steps"), eval_strategy=strategy)
            every = int(_setting(args, "eval_steps", 500)) if strategy == "steps" else None
            held_out = PaddedTexts(eval_dataset, names, label, self.task, max_length, texts.pad)
            held_out.check(getattr(model, "config", None))
            batch = int(_setting(args, "per_device_eval_batch_size", 8))
            self._validation = PublicSet(held_out, batch=batch, every=every)
        elif strategy != "no":
            raise InvalidInput(
                f"eval_strategy={strategy!r} needs eval_dataset=, data that you declare public."
            )
        self._trained: nn.Module | None = None

    @property
    def event(self) -> Event:
        """Return the price of training, before any data is read."""
        return self.trainer.event

    @property
    def model(self) -> nn.Module:
        """Return the trained model, of the class that was given."""
        if self._trained is None:
            raise Halted("nothing is trained yet: call train(...) first.")
        return self._trained

    def train(self, session: Any = None, **options: Any) -> TransformersTrainer:
        """Train through a session of `examples`, which charges the price first; `options` are those of
        `Session.train` (`checkpoint`, `every`, `progress`, `callbacks`). Without a session nothing is
        charged: whoever is responsible for the data must account for `event`. Then `options` are those of
        calling a `Trainer` (`progress`, `callbacks`)."""
        options["callbacks"] = [*options.get("callbacks", ()), *(start() for start in self._loggers)]
        options.setdefault("validation", self._validation)
        if session is None:
            release = self.trainer(self.examples, entropy=Entropy(), **options)
        else:
            release = session.train(self.trainer, text=f"fine-tuning, {self.task}", **options)
        self._trained = release.value.inner
        return self

    def save_pretrained(self, folder: Any) -> None:
        """Save the trained model as `transformers` or `peft` does, for their `from_pretrained`."""
        self.model.save_pretrained(folder)  # type: ignore[operator]


def _tokens(values: Any) -> Tensor:
    """Return a text's ids, mask or labels as a vector of integers."""
    return torch.as_tensor(values, dtype=torch.long, device="cpu").flatten()


def _within(values: Any, size: int) -> bool:
    """Return whether all values are whole numbers from 0 to size - 1."""
    try:
        numbers = torch.as_tensor(values, device="cpu")
    except (TypeError, ValueError, RuntimeError):
        return False
    return bool(((numbers >= 0) & (numbers < size) & (numbers == numbers.floor())).all())


def _setting(args: Any, name: str, default: Any) -> Any:
    """Return a training argument by its name, from an object or a mapping; the default where it is missing or
    None."""
    value = args.get(name) if isinstance(args, Mapping) else getattr(args, name, None)
    return default if value is None else value


def _name_of(value: Any) -> str:
    """Return the text of a setting that may be an enumeration's member."""
    return str(getattr(value, "value", value))


def _performance(args: Any, performance: Performance | None) -> Performance:
    """Return the options for time and memory, with those that the training arguments have."""
    bf16, compiled = (bool(_setting(args, name, False)) for name in ("bf16", "torch_compile"))
    precision = "bfloat16" if bf16 else None
    return (performance or Performance()).updated(precision=precision, compiled=compiled or None)


def _loggers(args: Any) -> list[Callable[[], Any]]:
    """Return what starts the loggers that `report_to` names, when training begins."""
    names = _setting(args, "report_to", "none")
    starts: dict[str, Callable[[], Any]] = {
        "tensorboard": lambda: import_module("torch.utils.tensorboard").SummaryWriter(
            _setting(args, "logging_dir", None)
        ),
        "wandb": lambda: import_module("wandb").init(name=_setting(args, "run_name", None)),
    }
    listed = [name for name in ([names] if isinstance(names, str) else names) if name != "none"]
    for name in listed:
        if name not in starts:
            raise Unsupported(
                f"report_to={name!r} is not for private training: give 'tensorboard', 'wandb' or 'none', or "
                "a logger of your own, train(callbacks=[...])."
            )
        _require.that(find_spec(name) is not None, f"report_to={name!r}, and {name} is not installed.")
    return [starts[name] for name in listed]


def _task(model: nn.Module, task: str | None) -> str:
    """Return the task of the model: the given one, or the one that the name of its class implies."""
    if task is not None:
        _require.must(task in TASKS, "task", task, f"one of {', '.join(TASKS)}")
        return task
    config = getattr(model, "config", None)
    kinds = [*(getattr(config, "architectures", None) or []), *_class_names(model)]
    if any(name.endswith(("ForCausalLM", "LMHeadModel")) for name in kinds):
        return "language_modeling"
    if any(name.endswith("ForSequenceClassification") for name in kinds):
        has_one_output = getattr(config, "num_labels", 2) == 1
        is_regression = has_one_output or getattr(config, "problem_type", "") == "regression"
        return "regression" if is_regression else "classification"
    raise Unsupported(
        f"{type(model).__name__} is neither a causal language model nor a sequence classifier. Say what it "
        f"does with task= ({', '.join(TASKS)}), or write the forward pass and the loss for learning.Trainer."
    )


def _class_names(model: nn.Module) -> list[str]:
    """Return the names of the classes of the model and of its first modules: in a model that `peft` has
    wrapped, the original model is one of the first four."""
    return [type(module).__name__ for module in (model, *list(model.modules())[:4])]


def _model_inputs(model: nn.Module, dataset: Any) -> tuple[str, ...]:
    """Return the names of those INPUTS that the model's forward pass takes.

    token_type_ids are left out where the dataset has none: zeros in their place would be wrong, because GPT-2
    looks token types up in the table of words. Names of columns are public. A dataset without `column_names`
    (a list of dicts) has those of its first item, which is read here, before any charge, for its keys alone.
    """
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise InvalidInput(
            "train_dataset must be map-style, with __getitem__ and __len__, as datasets.Dataset is."
        )
    inner: Any = getattr(model, "get_base_model", lambda: model)()
    parameters = inspect.signature(inner.forward).parameters
    columns = getattr(dataset, "column_names", None) or (list(dataset[0]) if len(dataset) else [])
    return tuple(
        name for name in INPUTS if name in parameters and (name in columns or name != "token_type_ids")
    )


def _check_settings(args: Any) -> None:
    """Refuse, by its name, what is set in the training arguments and not followed here."""
    given = args if isinstance(args, Mapping) else vars(args) if args is not None else {}
    # An object of `TrainingArguments` has all settings: those count that are not as they are by default.
    defaults = {field.name: field.default for field in fields(args)} if is_dataclass(args) else {}
    for name in defaults or given:
        value = _name_of(given[name])
        is_set = value not in ("None", "False", "", "[]", "{}", "no", _name_of(defaults.get(name)))
        if is_set and name not in _FOLLOWED and not name.startswith(_WITHOUT_EFFECT):
            why = _REFUSED.get(name, "it is not followed here, so leave it out")
            raise Unsupported(f"{name}={value} is not for private training: {why}.")


def _optimizer(args: Any) -> Adam:
    """Return AdamW (`optimizers.Adam`) with these settings."""
    optimizer = _setting(args, "optim", "adamw_torch")
    if not _name_of(optimizer).startswith("adamw"):
        raise Unsupported(
            f"optim must be one of AdamW's names here, got {optimizer!r}: for another optimizer use "
            "learning.Trainer."
        )
    return Adam(
        lr=float(_setting(args, "learning_rate", 5e-5)),
        betas=(float(_setting(args, "adam_beta1", 0.9)), float(_setting(args, "adam_beta2", 0.999))),
        eps=float(_setting(args, "adam_epsilon", 1e-8)),
        weight_decay=float(_setting(args, "weight_decay", 0.0)),
        # Fine-tuning has small learning rates, at which the correction was ahead (docs/learning.md).
        noise_aware=True,
    )


def _rate(args: Any, steps: int) -> Callable[[int], float]:
    """Return the function from a step, from 0 to steps - 1, to the factor of the learning rate."""
    scheduler = _setting(args, "lr_scheduler_type", "linear")
    kind, warmup = _name_of(scheduler), _warmup_steps(args, steps)
    if kind == "cosine":
        return warmup_cosine(steps, warmup)
    if kind not in ("linear", "constant", "constant_with_warmup"):
        raise _require.fail("lr_scheduler_type", kind, "linear, cosine, constant or constant_with_warmup")

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        return 1.0 if kind != "linear" else (steps - step) / max(1, steps - warmup)

    return factor


def _warmup_steps(args: Any, steps: int) -> int:
    """Return the number of warm-up steps as `transformers` computes it: from `warmup_steps`, where a number
    below 1 is a fraction of all `steps`, or without it from `warmup_ratio`, which is always a fraction."""
    warmup = float(_setting(args, "warmup_steps", 0))
    fraction = warmup or float(_setting(args, "warmup_ratio", 0.0))
    return int(warmup) if warmup >= 1 else math.ceil(steps * fraction)
