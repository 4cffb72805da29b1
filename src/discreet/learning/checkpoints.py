"""Checkpoints of a training run between two steps, as bytes, and runs that go on from them.

In one are weights, averages and what the optimizer remembers: functions of noisy sums, so that whoever reads
one learns no more than was paid for. Not in it, ever: noise, or seeds of noise (the same noise on another
gradient, and their difference is the data), coins, batches. Who may go on from which checkpoint is not
decided here but by the ledger (`curator.segments`).
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .._errors import InvalidInput, Unsupported
from ..mechanisms.protocols import AnySource
from ..sampling import Entropy
from . import files
from .clipping import Adaptive, Automatic, Flat, PerLayer
from .schedules import BallsInBins, Poisson, Schedule, TruncatedPoisson, WithoutReplacement

if TYPE_CHECKING:
    from .trainer import Run, Trainer

# A run with these settings and schedules remembers nothing but its weights, averages, optimizer and clip.
# What is not listed may remember more, and is not resumed (`strategy`, correlated noise, does).
_RESUMABLE = {
    "model",
    "loss",
    "public",
    "epsilon",
    "delta",
    "noise_multiplier",
    "clip",
    "rate",
    "batch",
    "n",
    "steps",
    "epochs",
    "sampling",
    "limit",
    "noise",
    "augment",
    "pooling",
    "local",
    "optimizer",
    "learning_rate",
    "average",
    "performance",
    "columns",
    "synthetic",
    "schedule",
    "event",
}
# What decides how a run learns.
_SETTINGS = (
    *("loss", "clip", "n", "noise", "augment", "pooling", "optimizer", "learning_rate", "average"),
    *("columns", "noise_multiplier", "schedule"),
)
_RULES = (Flat, PerLayer, Automatic, Adaptive)


def period(trainer: Trainer) -> int:
    """Return after how many steps a run can be cut: then what comes next depends on the checkpoint alone,
    with fresh coins and noise."""
    schedule: Schedule = trainer.schedule
    unsupported = [
        f.name for f in fields(trainer) if f.name not in _RESUMABLE and getattr(trainer, f.name) != f.default
    ]
    if unsupported or type(trainer.clip) not in _RULES:
        raise Unsupported(
            f"training with {', '.join(unsupported) or type(trainer.clip).__name__} remembers more than its "
            "weights, and cannot be resumed from a checkpoint yet. Nothing was charged or read. Ask for it "
            "in one piece."
        )
    if type(schedule) in (Poisson, TruncatedPoisson, WithoutReplacement):
        return 1
    # Who is in which step is drawn for a whole pass, and never stored.
    if type(schedule) is BallsInBins:
        return schedule.bins
    raise Unsupported(
        f"the schedule {type(schedule).__name__} cannot be resumed from a checkpoint yet. Nothing was "
        f"charged or read."
    )


def dump(run: Run) -> bytes:
    """Return the checkpoint of a run between two steps."""
    tensors: dict[str, Tensor] = {"values": run._values}
    if run._averaged is not None:
        tensors["averaged"] = run._averaged
    form = files.pack(run._update.state(), tensors, "optimizer")
    facts = {"optimizer": form, "clip": _adaptive_clip(run), **_shape(run)}
    return files.dump(tensors, {"run": json.dumps(facts)})


def restore(trainer: Trainer, source: AnySource, raw: bytes, steps_taken: int, *, entropy: Entropy) -> Run:
    """Return a run that goes on from a checkpoint, as if `steps_taken` steps were taken (those of a crashed
    segment are lost, and count). Noise is fresh."""
    tensors, texts = files.load(raw)
    facts = json.loads(texts["run"])
    run = trainer.start(source, entropy=entropy)
    if any(facts[name] != value for name, value in _shape(run).items()) or (run._averaged is None) != (
        "averaged" not in tensors
    ):
        raise InvalidInput(
            "the checkpoint is of another model or optimizer, or of other frozen weights, than this trainer "
            "has. Nothing was trained. Give the trainer that the run was started with."
        )
    with torch.no_grad():
        run._values.copy_(tensors["values"])
        if run._averaged is not None:
            run._averaged.copy_(tensors["averaged"])
    run._update.restore(files.unpack(facts["optimizer"], tensors))
    # A run keeps the present clip of an adaptive rule as a flat one, and goes on adapting it.
    if _adaptive_clip(run) is not None:
        run._summands.rule = Flat(clip=float(facts["clip"]))
    run.steps_taken = steps_taken
    return run


def identity(trainer: Trainer, *, weights: bool = False) -> dict[str, Any]:
    """Return what identifies a run of this trainer when it is resumed: what decides how it learns, and names
    and shapes of what is learned.

    Time and memory (`performance`) may change in between. So may the weights that it began with, as the
    checkpoint has its own. A search passes `weights=True`: each of its trials begins with them.
    """
    parameters = trainer.model.named_parameters()
    return _setting_texts(trainer) | {
        "model": type(trainer.model).__qualname__,
        "learned": [[name, list(p.shape), p.requires_grad] for name, p in parameters],
        "weights": _digest(trainer.model.state_dict() if weights else {}),
    }


def is_identifiable(trainer: Trainer) -> bool:
    """Return whether `identity` tells this trainer from others: Python's text of a function defined inside
    another, or of an object without a text of its own, does not say what it does."""
    texts = _setting_texts(trainer).values()
    return not any(mark in text for text in texts for mark in ("<locals>", "<lambda>", " object>"))


def _setting_texts(trainer: Trainer) -> dict[str, str]:
    """Return the text of each setting. `local` came later than the rest: runs without it keep the identity
    that stands in their ledgers."""
    names = _SETTINGS if trainer.local is None else (*_SETTINGS, "local")
    return {name: _text(getattr(trainer, name)) for name in names} | _loss_options(trainer.loss)


def _loss_options(loss: Any) -> dict[str, str]:
    """Return the options of a loss that is a module (weights of classes, label smoothing), which its text
    leaves out; empty for a loss of torch with its default options, and for one of the user's without any."""
    if not isinstance(loss, torch.nn.Module):
        return {}
    is_torchs = type(loss).__module__.startswith("torch.")
    try:
        plain = type(loss)() if is_torchs else torch.nn.Module()
    except TypeError:
        # it has no defaults
        plain = torch.nn.Module()
    options, default = _options_of(loss), _options_of(plain)
    return {} if options == default else {"loss options": options}


def _options_of(loss: torch.nn.Module) -> str:
    """Return the text of a module's public attributes, and a digest of its tensors."""
    options = {name: v for name, v in vars(loss).items() if not name.startswith("_") and name != "training"}
    tensors = {name: t for name, t in loss.state_dict().items() if isinstance(t, Tensor)}
    return f"{_text(options)} {_digest(tensors)}"


def _text(value: Any) -> str:
    """Return Python's text of a value, without the addresses of functions and objects."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))


def frozen_digest(model: torch.nn.Module) -> str:
    """Return a digest of what training leaves as it is: the model's frozen weights and its buffers."""
    # With `remove_duplicate` a tied weight would have one name here, and two in the state_dict.
    parameters = model.named_parameters(remove_duplicate=False)
    trained = {name for name, p in parameters if p.requires_grad}
    return _digest({name: t for name, t in model.state_dict().items() if name not in trained})


def _digest(state: dict[str, Tensor]) -> str:
    """Return a SHA-256 digest of names and values."""
    digest = hashlib.sha256()
    for name, tensor in state.items():
        digest.update(
            name.encode() + tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        )
    return digest.hexdigest()


def _adaptive_clip(run: Run) -> float | None:
    """Return the clip of the next step where it adapts, from noisy counts that are paid for; None
    otherwise."""
    return run._summands.rule.clip if isinstance(run._trainer.clip, Adaptive) else None


def _shape(run: Run) -> dict[str, Any]:
    """Return what must be the same in a resumed run: names and shapes of what is learned, a digest of frozen
    weights, the kind of optimizer."""
    learned = [[name, list(p.shape)] for name, p in run._engine.parameters.items()]
    optimizer = run._trainer.optimizer
    kind = repr(optimizer) if type(optimizer).__module__.startswith("discreet.") else "torch"
    return {"learned": learned, "frozen": frozen_digest(run._trainer.model), "kind": kind}
