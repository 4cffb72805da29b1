"""Writes checkpoints of a training run between two steps, as bytes, and resumes runs from them.

A checkpoint holds weights, their averages and the optimizer's state: functions of noisy sums, so that whoever
reads it learns no more than was paid for. It must never hold noise or a seed of noise: if the same noise were
added to two gradients, the difference of the sums would be that of the data. Nor does it hold the random
choices of batches. Which checkpoint may be resumed is decided by the ledger (`curator.segments`), not here.

Writes and reads tensors and texts as bytes, in the safetensors layout: such a file holds no code, unlike a
pickle.

The layout: eight bytes with the length of a JSON header (little-endian), the header (dtype, shape and offsets
of every tensor by its name, and texts under `__metadata__`), then the numbers of the tensors without gaps.
Other programs that know the layout can read these files.

>>> raw = dump_tensors({"w": torch.tensor([1.0, 2.0])}, {"made by": "me"})
>>> load_tensors(raw)
({'w': tensor([1., 2.])}, {'made by': 'me'})
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ... import _require
from ..._errors import InvalidInput, Unsupported
from ...mechanisms.protocols import AnySource
from ...sampling import Entropy
from ..clipping.norms import Adaptive, Automatic, Flat, PerLayer
from .schedules import BallsInBins, Poisson, Schedule, TruncatedPoisson, WithoutReplacement

if TYPE_CHECKING:
    from .trainer import Trainer, TrainingRun

_TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_NAMES = {kind: name for name, kind in _TYPES.items()}


def dump_tensors(tensors: dict[str, Tensor], texts: dict[str, str] | None = None) -> bytes:
    """Return tensors and texts as the bytes of a safetensors file."""
    header: dict[str, Any] = {"__metadata__": dict(texts or {})}
    chunks: list[bytes] = []
    offset = 0
    for name, tensor in tensors.items():
        if tensor.dtype not in _NAMES:
            raise InvalidInput(f"tensor {name!r} has type {tensor.dtype}, which these files do not hold.")
        raw = _bytes(tensor)
        offsets = [offset, offset + len(raw)]
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": offsets}
        chunks.append(raw)
        offset += len(raw)
    header_bytes = json.dumps(header, separators=(",", ":")).encode()
    # Spaces, so that the numbers begin at a multiple of 8 bytes, as the layout asks.
    header_bytes += b" " * (-len(header_bytes) % 8)
    return b"".join([len(header_bytes).to_bytes(8, "little"), header_bytes, *chunks])


def _bytes(tensor: Tensor) -> bytes:
    """Return the numbers of a tensor, wherever it is, as they lie in memory."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def load_tensors(raw: bytes) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors and texts of a safetensors file; raise InvalidInput for any other bytes."""
    length = int.from_bytes(raw[:8], "little")
    if len(raw) < 8 or length > len(raw) - 8:
        raise _file_error("it ends too early")
    try:
        header = json.loads(raw[8 : 8 + length])
    # RecursionError: a header of lists within lists, nested deeper than Python's stack.
    except (ValueError, RecursionError):
        raise _file_error("its header cannot be read") from None
    if not isinstance(header, dict):
        raise _file_error("its header cannot be read")
    texts = header.pop("__metadata__", {})
    body = bytearray(raw[8 + length :])
    tensors, end = {}, 0
    for name, facts in header.items():
        tensors[name], end = _tensor(facts, body, end)
    if end != len(body):
        raise _file_error("it holds more than its header says")
    if not isinstance(texts, dict) or not all(isinstance(text, str) for text in texts.values()):
        raise _file_error("its texts cannot be read")
    return tensors, texts


def _tensor(facts: Any, body: bytearray, begin: int) -> tuple[Tensor, int]:
    """Return the tensor that the header describes by `facts`, and the offset at which it ends.

    It must begin at the offset `begin`, where the previous tensor ended: no byte is in two tensors or in
    none.
    """
    try:
        kind, shape, (start, end) = _TYPES[facts["dtype"]], facts["shape"], facts["data_offsets"]
        is_consistent = all(type(n) is int and n >= 0 for n in (*shape, start, end))
        is_consistent = (
            is_consistent
            and start == begin
            and end - start == math.prod(shape) * kind.itemsize
            # Checked also where a size is 0: torch holds sizes and strides as 64-bit integers.
            and math.prod(max(n, 1) for n in shape) < 1 << 63
            and end <= len(body)
        )
    except (KeyError, TypeError, ValueError):
        is_consistent = False
    if not is_consistent:
        raise _file_error("its header contradicts itself")
    if start == end:
        return torch.empty(shape, dtype=kind, device="cpu"), end
    return torch.frombuffer(body, dtype=torch.uint8, count=end - start, offset=start).clone().view(
        kind
    ).reshape(shape), end


def _file_error(reason: str) -> InvalidInput:
    """Return the error for bytes that are no such file."""
    return InvalidInput(f"this is not a file of tensors, or it was truncated or changed: {reason}.")


def pack(tree: Any, tensors: dict[str, Tensor], name: str) -> Any:
    """Return nested dicts, lists, tuples, numbers, texts and tensors as JSON, for `unpack`.

    The tensors themselves are put into `tensors`, under names that begin with `name`; the JSON has the names.
    """
    if isinstance(tree, Tensor):
        # The keys 1 and "1" of a dict give one name, which must not stand for two tensors.
        while name in tensors:
            name += "_"
        tensors[name] = tree
        return {"tensor": name}
    if isinstance(tree, dict):
        return {"dict": [[key, pack(value, tensors, f"{name}.{key}")] for key, value in tree.items()]}
    if isinstance(tree, list | tuple):
        kind = "list" if isinstance(tree, list) else "tuple"
        return {kind: [pack(value, tensors, f"{name}.{i}") for i, value in enumerate(tree)]}
    if tree is None or isinstance(tree, bool | int | float | str):
        return {"value": tree}
    raise InvalidInput(
        f"a {type(tree).__name__} cannot be stored in a checkpoint: tensors, numbers and texts only."
    )


def unpack(form: Any, tensors: dict[str, Tensor]) -> Any:
    """Return the nested object that `pack` returned as JSON, with its tensors from `tensors`."""
    ((kind, content),) = form.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "dict":
        return {key: unpack(value, tensors) for key, value in content}
    if kind in ("list", "tuple"):
        items = [unpack(value, tensors) for value in content]
        return items if kind == "list" else tuple(items)
    return content


# Fields of `Trainer` that may have any value in a run that is resumed: with them, the state of a run is its
# weights, averages, optimizer and clip. Any other field may mean more state, and must have its default
# (`strategy`, for one: correlated noise keeps the noise of former steps).
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
# Fields of `Trainer` that decide how a run learns. Their texts are part of a run's identity in the ledger: a
# field that is added here makes stored runs unknown (see `_setting_texts` for one that came later).
_SETTINGS = (
    *("loss", "clip", "n", "noise", "augment", "pooling", "optimizer", "learning_rate", "average"),
    *("columns", "noise_multiplier", "schedule"),
)
# Clipping rules whose whole state is in a checkpoint.
_RESUMABLE_RULES = (Flat, PerLayer, Automatic, Adaptive)


def period(trainer: Trainer) -> int:
    """Return p such that a run can be interrupted after every p steps; raise Unsupported where it cannot be.

    After p steps the rest of the run depends on the checkpoint and on fresh randomness alone.
    """
    schedule: Schedule = trainer.schedule
    values = _require.field_values(trainer)
    unsupported = [
        f.name for f in fields(trainer) if f.name not in _RESUMABLE and values[f.name] != f.default
    ]
    if unsupported or type(trainer.clip) not in _RESUMABLE_RULES:
        raise Unsupported(
            f"training with {', '.join(unsupported) or type(trainer.clip).__name__} has more state than a "
            "checkpoint holds, and cannot be resumed from one yet. Train without checkpoints."
        )
    if type(schedule) in (Poisson, TruncatedPoisson, WithoutReplacement):
        return 1
    # The step of each example is drawn for a whole pass, and never stored: a run stops only between passes.
    if type(schedule) is BallsInBins:
        return schedule.bins
    raise Unsupported(f"the schedule {type(schedule).__name__} cannot be resumed from a checkpoint yet.")


def dump(run: TrainingRun) -> bytes:
    """Return the checkpoint of a run between two steps."""
    tensors: dict[str, Tensor] = {"values": run.values}
    if run.averaged is not None:
        tensors["averaged"] = run.averaged
    # adds the tensors of the optimizer's state to `tensors`
    optimizer_form = pack(run.update.state(), tensors, "optimizer")
    facts = {"optimizer": optimizer_form, "clip": _adaptive_clip(run), **_shape(run)}
    return dump_tensors(tensors, {"run": json.dumps(facts)})


def restore(
    trainer: Trainer, source: AnySource, raw: bytes, steps_taken: int, *, entropy: Entropy
) -> TrainingRun:
    """Return a run that is resumed from the checkpoint `raw`, with fresh noise and with `steps_taken` of its
    steps already taken.

    `steps_taken` counts the steps of a crashed segment, too, though their updates are lost.
    """
    tensors, texts = load_tensors(raw)
    facts = json.loads(texts["run"])
    run = trainer.start(source, entropy=entropy)
    if any(facts[name] != value for name, value in _shape(run).items()) or (run.averaged is None) != (
        "averaged" not in tensors
    ):
        raise InvalidInput(
            "the checkpoint is of another model or optimizer, or of other frozen weights, than this trainer "
            "has. Give the trainer that the run was started with."
        )
    with torch.no_grad():
        run.values.copy_(tensors["values"])
        if run.averaged is not None:
            run.averaged.copy_(tensors["averaged"])
    run.update.restore(unpack(facts["optimizer"], tensors))
    # A run holds the current clip of an adaptive rule as a `Flat` rule, which it replaces after each step.
    if _adaptive_clip(run) is not None:
        run.summands.rule = Flat(clip=float(facts["clip"]))
    run.steps_taken = steps_taken
    return run


def identity(trainer: Trainer) -> dict[str, Any]:
    """Return what identifies a run of this trainer: the settings that decide how it learns, and the names and
    shapes of its parameters. Only a trainer of the same identity may resume the run.

    `performance` may differ, as it changes time and memory only. So may the initial weights, as the
    checkpoint has the run's own: "weights" is the same for all, and stays for the runs in old ledgers.
    """
    parameters = trainer.model.named_parameters()
    return _setting_texts(trainer) | {
        "model": type(trainer.model).__qualname__,
        "learned": [[name, list(p.shape), p.requires_grad] for name, p in parameters],
        "weights": _digest({}),
    }


def _setting_texts(trainer: Trainer) -> dict[str, str]:
    """Return the text of each setting. `local` was added later than the others, and is left out where it is
    None: so runs without it keep the identity that is in their ledgers."""
    names = _SETTINGS if trainer.local is None else (*_SETTINGS, "local")
    values = _require.field_values(trainer)
    return {name: _text(values[name]) for name in names} | _loss_options(trainer.loss)


def _loss_options(loss: Any) -> dict[str, str]:
    """Return the options of a loss that is a module (weights of classes, label smoothing), which `repr`
    leaves out; empty for a loss of torch with default options, and for a user's loss without any."""
    if not isinstance(loss, torch.nn.Module):
        return {}
    is_torch_loss = type(loss).__module__.startswith("torch.")
    try:
        default_loss = type(loss)() if is_torch_loss else torch.nn.Module()
    except TypeError:
        # This loss needs arguments: it has no default options.
        default_loss = torch.nn.Module()
    options, default = _options_of(loss), _options_of(default_loss)
    return {} if options == default else {"loss options": options}


def _options_of(loss: torch.nn.Module) -> str:
    """Return the text of a module's public attributes, and a digest of its tensors."""
    options = {name: v for name, v in vars(loss).items() if not name.startswith("_") and name != "training"}
    tensors = {name: t for name, t in loss.state_dict().items() if isinstance(t, Tensor)}
    return f"{_text(options)} {_digest(tensors)}"


def _text(value: Any) -> str:
    """Return `repr` of a value, without the memory addresses of functions and objects."""
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
        digest.update(name.encode() + _bytes(tensor))
    return digest.hexdigest()


def _adaptive_clip(run: TrainingRun) -> float | None:
    """Return the clip of the next step where it adapts, None otherwise. It is a function of noisy counts that
    are paid for, so that it may be stored."""
    return run.summands.rule.clip if isinstance(run.trainer.clip, Adaptive) else None


def _shape(run: TrainingRun) -> dict[str, Any]:
    """Return what must be the same in a resumed run: names and shapes of trained parameters, a digest of
    frozen weights and buffers, and the text of the optimizer ("torch" for one of torch's)."""
    learned = [[name, list(p.shape)] for name, p in run.engine.parameters.items()]
    optimizer = run.trainer.optimizer
    kind = repr(optimizer) if type(optimizer).__module__.startswith("discreet.") else "torch"
    return {"learned": learned, "frozen": frozen_digest(run.trainer.model), "kind": kind}
