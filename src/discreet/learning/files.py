"""Tensors in a file that can hold nothing else: the safetensors layout, written and read here, so that no
pickle is ever loaded.

Eight bytes with the length of a JSON header, the header (name, type, shape, place of every tensor, and texts
under `__metadata__`), then the numbers. Other programs that know the layout read these files too.

>>> raw = dump({"w": torch.tensor([1.0, 2.0])}, {"made by": "me"})
>>> load(raw)
({'w': tensor([1., 2.])}, {'made by': 'me'})
"""

from __future__ import annotations

import json
import math
from typing import Any

import torch
from torch import Tensor

from .._errors import InvalidInput

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


def dump(tensors: dict[str, Tensor], texts: dict[str, str] | None = None) -> bytes:
    """Return the file as bytes."""
    header: dict[str, Any] = {"__metadata__": dict(texts or {})}
    parts: list[bytes] = []
    place = 0
    for name, tensor in tensors.items():
        if tensor.dtype not in _NAMES:
            raise InvalidInput(f"tensor {name!r} has type {tensor.dtype}, which these files do not hold.")
        raw = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        offsets = [place, place + len(raw)]
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": offsets}
        parts.append(raw)
        place += len(raw)
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    return b"".join([len(head).to_bytes(8, "little"), head, *parts])


def load(raw: bytes) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and texts of such a file; InvalidInput if it is not one, whatever else it is."""
    length = int.from_bytes(raw[:8], "little")
    if len(raw) < 8 or length > len(raw) - 8:
        raise _broken("it ends too early")
    try:
        header = json.loads(raw[8 : 8 + length])
    except ValueError:
        raise _broken("its header cannot be read") from None
    if not isinstance(header, dict):
        raise _broken("its header cannot be read")
    texts = header.pop("__metadata__", {})
    body = bytearray(raw[8 + length :])
    tensors, end = {}, 0
    for name, facts in header.items():
        tensors[name], end = _tensor(facts, body, end)
    if end != len(body):
        raise _broken("it holds more than its header says")
    if not isinstance(texts, dict) or not all(isinstance(text, str) for text in texts.values()):
        raise _broken("its texts cannot be read")
    return tensors, texts


def _tensor(facts: Any, body: bytearray, begin: int) -> tuple[Tensor, int]:
    """Return one tensor, which must begin where the last one ended; and where it ends."""
    try:
        kind, shape, (first, last) = _TYPES[facts["dtype"]], facts["shape"], facts["data_offsets"]
        sound = all(type(n) is int and n >= 0 for n in (*shape, first, last))
        sound = (
            sound
            and first == begin
            and last - first == math.prod(shape) * kind.itemsize
            and last <= len(body)
        )
    except (KeyError, TypeError, ValueError):
        sound = False
    if not sound:
        raise _broken("its header contradicts itself")
    if first == last:
        return torch.empty(shape, dtype=kind), last
    return torch.frombuffer(body, dtype=torch.uint8, count=last - first, offset=first).clone().view(
        kind
    ).reshape(shape), last


def _broken(why: str) -> InvalidInput:
    return InvalidInput(
        f"this is not a file of tensors, or it was cut or changed: {why}. Nothing was loaded."
    )


def pack(tree: Any, tensors: dict[str, Tensor], place: str) -> Any:
    """Return a JSON form of nested dicts, lists and numbers, whose tensors go to `tensors` under names that
    begin with `place`."""
    if isinstance(tree, Tensor):
        tensors[place] = tree
        return {"tensor": place}
    if isinstance(tree, dict):
        return {"dict": [[key, pack(value, tensors, f"{place}.{key}")] for key, value in tree.items()]}
    if isinstance(tree, list | tuple):
        kind = "list" if isinstance(tree, list) else "tuple"
        return {kind: [pack(value, tensors, f"{place}.{i}") for i, value in enumerate(tree)]}
    if tree is None or isinstance(tree, bool | int | float | str):
        return {"value": tree}
    raise InvalidInput(
        f"a {type(tree).__name__} cannot be stored in a checkpoint: tensors, numbers and texts only."
    )


def unpack(form: Any, tensors: dict[str, Tensor]) -> Any:
    """Return what `pack` wrote down."""
    ((kind, held),) = form.items()
    if kind == "tensor":
        return tensors[held]
    if kind == "dict":
        return {key: unpack(value, tensors) for key, value in held}
    if kind in ("list", "tuple"):
        items = [unpack(value, tensors) for value in held]
        return items if kind == "list" else tuple(items)
    return held
