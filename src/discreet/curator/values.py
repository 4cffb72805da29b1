"""Writes and reads released values as JSON, so that a question that is asked again gets exactly the stored
value.

The forms that `encode` writes stand in ledgers: `decode` reads all of them for ever.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from .. import _registry
from .._errors import DescriptionError, DiscreetError, InvalidInput

# Confidences at which the error bound of a release is stored. For one in between, the bound at the next
# larger one is returned, which is too wide and never too narrow. The values are chosen by hand.
_CONFIDENCES = (0.5, 0.8, 0.9, 0.95, 0.99, 0.999, 0.999999)


def encode(value: Any) -> Any:
    """Return a released value in a form that JSON can hold; raises DescriptionError for a value that has
    none, such as a trained model."""
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
        # A named tuple is stored with its tag of the registry.
        return items if type(value) in (tuple, list) else {**items, "named": _registry.tag_of(type(value))}
    return _registry.to_json(value)


def decode(data: Any) -> Any:
    """Return the value whose stored form is `data`. Lists come back as tuples, scalars of numpy as numbers of
    Python."""
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
    """Return the class of a named tuple from its tag; its package is loaded if it is not yet."""
    cls = _registry.class_of(tag)
    if cls is None:
        raise DescriptionError(f"{tag!r} is not a known type of released values.")
    return cls


def tabulated(error: Callable[[float], Any] | None) -> list[Any]:
    """Return pairs of a confidence and a release's error bound at it, for the store; an empty list if the
    release has no error bound, or one that cannot be computed or stored at each of these confidences."""
    try:
        return (
            [] if error is None else [[confidence, encode(error(confidence))] for confidence in _CONFIDENCES]
        )
    except DiscreetError:
        return []


def recalled(table: list[Any]) -> Callable[[float], Any] | None:
    """Return the error bound that `tabulated` has stored, as a function of the confidence; None for an empty
    table.

    A bound that holds with a higher confidence holds with the one that is asked for.
    """

    def error(confidence: float) -> Any:
        for tabulated_confidence, bound in table:
            if confidence <= tabulated_confidence:
                return decode(bound)
        raise InvalidInput(
            f"of a stored release the error is known up to a confidence of {_CONFIDENCES[-1]}."
        )

    return error if table else None


def _arrow(table: pa.Table) -> bytes:
    """Return a table as a stream in Arrow's own binary format."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())
