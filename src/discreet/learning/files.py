"""Writes and reads tensors and texts as bytes, in the safetensors layout: such a file holds no code, unlike a
pickle.

The layout: eight bytes with the length of a JSON header (little-endian), the header (dtype, shape and offsets
of every tensor by its name, and texts under `__metadata__`), then the numbers of the tensors without gaps.
Other programs that know the layout can read these files.

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
    """Return tensors and texts as the bytes of a safetensors file."""
    header: dict[str, Any] = {"__metadata__": dict(texts or {})}
    chunks: list[bytes] = []
    offset = 0
    for name, tensor in tensors.items():
        if tensor.dtype not in _NAMES:
            raise InvalidInput(f"tensor {name!r} has type {tensor.dtype}, which these files do not hold.")
        raw = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        offsets = [offset, offset + len(raw)]
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": offsets}
        chunks.append(raw)
        offset += len(raw)
    header_bytes = json.dumps(header, separators=(",", ":")).encode()
    # Spaces, so that the numbers begin at a multiple of 8 bytes, as the layout asks.
    header_bytes += b" " * (-len(header_bytes) % 8)
    return b"".join([len(header_bytes).to_bytes(8, "little"), header_bytes, *chunks])


def load(raw: bytes) -> tuple[dict[str, Tensor], dict[str, str]]:
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
        return torch.empty(shape, dtype=kind), end
    return torch.frombuffer(body, dtype=torch.uint8, count=end - start, offset=start).clone().view(
        kind
    ).reshape(shape), end


def _file_error(reason: str) -> InvalidInput:
    """Return the error for bytes that are no such file."""
    return InvalidInput(
        f"this is not a file of tensors, or it was truncated or changed: {reason}. Nothing was loaded."
    )


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
