"""Released values as JSON, so that a question asked again is answered from the store, to the last digit."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pyarrow as pa

from .. import _registry
from .._errors import DescriptionError


def encode(value: Any) -> Any:
    """A JSON-able form of what a mechanism released; DescriptionError if it has none (a trained model, say)."""
    if isinstance(value, np.generic):
        return encode(value.item())
    if isinstance(value, np.ndarray):
        kind = "object" if value.dtype == object else str(value.dtype)
        return {"array": [encode(item) for item in value.ravel().tolist()], "dtype": kind, "shape": list(value.shape)}
    if isinstance(value, pa.Table):
        return {"arrow": base64.b64encode(_arrow(value)).decode()}
    if isinstance(value, tuple | list):
        return {"tuple": [encode(item) for item in value]}
    return _registry.to_json(value)


def decode(data: Any) -> Any:
    """The value that `encode` wrote down. Lists come back as tuples."""
    if isinstance(data, dict) and data.keys() == {"array", "dtype", "shape"}:
        flat = np.empty(len(data["array"]), dtype=data["dtype"])
        flat[:] = [decode(item) for item in data["array"]]
        return flat.reshape(data["shape"])
    if isinstance(data, dict) and data.keys() == {"arrow"}:
        return pa.ipc.open_stream(base64.b64decode(data["arrow"])).read_all()
    if isinstance(data, dict) and data.keys() == {"tuple"}:
        return tuple(decode(item) for item in data["tuple"])
    return _registry.from_json(data)


def storable(value: Any) -> bool:
    """Whether a value can be stored and served again."""
    try:
        encode(value)
    except DescriptionError:
        return False
    return True


def _arrow(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())
