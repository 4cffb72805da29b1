"""Released values as JSON, so that a question asked again is answered from the store, to the last digit."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from .. import _registry
from .._errors import DescriptionError, DiscreetError, InvalidInput

# Confidences at which the error of a release is stored; one in between is answered by the next larger one.
_CONFIDENCES = (0.5, 0.8, 0.9, 0.95, 0.99, 0.999, 0.999999)


def encode(value: Any) -> Any:
    """Return a JSON-able form of what a mechanism released; DescriptionError if it has none (a trained model,
    say)."""
    if isinstance(value, np.generic):
        item = value.item()
        # Python has no number for a long double. Times and durations would come back as integers or None, and
        # records as tuples.
        if isinstance(item, np.generic) or isinstance(value, np.datetime64 | np.timedelta64 | np.void):
            raise DescriptionError(f"{type(value).__name__} has no JSON description.")
        return encode(item)
    if isinstance(value, np.ndarray):
        if value.dtype.names is not None:
            # The name of a structured type cannot be read back.
            raise DescriptionError("an array of records has no JSON description.")
        kind = "object" if value.dtype == object else str(value.dtype)
        return {
            "array": [encode(item) for item in value.ravel().tolist()],
            "dtype": kind,
            "shape": list(value.shape),
        }
    if isinstance(value, float) and math.isnan(value):
        return {"float": "nan"}
    if isinstance(value, dict):
        return {"map": [[encode(key), encode(item)] for key, item in value.items()]}
    if isinstance(value, pa.Table):
        return {"arrow": base64.b64encode(_arrow(value)).decode()}
    if isinstance(value, tuple | list):
        items = {"tuple": [encode(item) for item in value]}
        return items if type(value) in (tuple, list) else {**items, "named": _registry.tag_of(type(value))}
    return _registry.to_json(value)


def decode(data: Any) -> Any:
    """Return the value that `encode` wrote down. Lists come back as tuples."""
    if isinstance(data, dict) and data.keys() == {"array", "dtype", "shape"}:
        flat = np.empty(len(data["array"]), dtype=data["dtype"])
        flat[:] = [decode(item) for item in data["array"]]
        return flat.reshape(data["shape"])
    if isinstance(data, dict) and data.keys() == {"arrow"}:
        return pa.ipc.open_stream(base64.b64decode(data["arrow"])).read_all()
    if isinstance(data, dict) and data.keys() in ({"tuple"}, {"tuple", "named"}):
        items = tuple(decode(item) for item in data["tuple"])
        return _named_tuple(data["named"])(*items) if "named" in data else items
    if isinstance(data, dict) and data.keys() == {"map"}:
        return {decode(key): decode(item) for key, item in data["map"]}
    if data == {"float": "nan"}:
        return math.nan
    return _registry.from_json(data)


def _named_tuple(tag: Any) -> Any:
    """Return the named tuple of a tag, whose package is loaded if it is not yet."""
    cls = _registry.class_of(tag)
    if cls is None:
        raise DescriptionError(f"{tag!r} is not a known type of released values.")
    return cls


def tabulated(error: Callable[[float], Any] | None) -> list[Any]:
    """Return a release's error at some confidences, for the store; nothing where it has none."""
    try:
        return (
            [] if error is None else [[confidence, encode(error(confidence))] for confidence in _CONFIDENCES]
        )
    except DiscreetError:
        return []


def recalled(table: list[Any]) -> Callable[[float], Any] | None:
    """Return the error that a table holds: what is true with a higher confidence is true with the one asked
    for."""

    def error(confidence: float) -> Any:
        for tabulated_confidence, bound in table:
            if confidence <= tabulated_confidence:
                return decode(bound)
        raise InvalidInput(
            f"of a stored release the error is known up to a confidence of {_CONFIDENCES[-1]}."
        )

    return error if table else None


def _arrow(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())
