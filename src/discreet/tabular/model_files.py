"""Writes and reads model files, in one format for the models of tables (`model_cards`) and for networks
(`learning.model_files`), and without torch.

A file is JSON: what it `holds`, and the model's public facts; the weights of a network are among them as a
safetensors file in base64. It holds no code, unlike a pickle. A server sends models in the same form.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .._errors import InvalidInput

# Written into every file as its "format"; a file with another one is refused.
FORMAT = "discreet.model/1"
# What a file holds, and the function that reads it.
TABLE_MODEL, NETWORK = "table model", "network"
_READERS = {TABLE_MODEL: "tabular.load", NETWORK: "learning.model_files.load"}


def text_of(facts: Mapping[str, Any], holds: str) -> str:
    """Return the text of the file of a model."""
    return json.dumps({"format": FORMAT, "holds": holds, **facts}, indent=1)


def facts_of(text: str, holds: str, name: str = "this text") -> dict[str, Any]:
    """Return the facts in the text of a model file, which `name` stands for in messages; raise InvalidInput
    for any other text, and for a model of another kind."""
    try:
        facts: dict[str, Any] = json.loads(text)
        found = facts["holds"] if facts["format"] == FORMAT else None
    # RecursionError: lists within lists, nested deeper than Python's stack
    except (KeyError, TypeError, ValueError, RecursionError):
        raise not_a_model(name) from None
    if found == holds:
        return facts
    if found in (TABLE_MODEL, NETWORK):
        raise InvalidInput(f"{name} holds a {found}, which {_READERS[found]} reads.")
    raise not_a_model(name)


def write(path: str | Path, facts: Mapping[str, Any], holds: str) -> None:
    """Write the file of a model."""
    try:
        Path(path).write_text(text_of(facts, holds), encoding="utf-8")
    # ValueError: a NUL in the path
    except (OSError, ValueError) as error:
        raise _path_error(path, "written to", error) from None


def read(path: str | Path, holds: str) -> dict[str, Any]:
    """Return the facts in a model file."""
    try:
        raw = Path(path).read_bytes()
    except (OSError, ValueError) as error:
        raise _path_error(path, "read from", error) from None
    return facts_of(raw.decode("utf-8", errors="replace"), holds, str(path))


def not_a_model(name: str | Path) -> InvalidInput:
    """Return the error for a file, or a text, that holds no model."""
    return InvalidInput(f"{name} is not a model file of discreet, or was changed.")


def _path_error(path: str | Path, verb: str, error: Exception) -> InvalidInput:
    reason = error.strerror if isinstance(error, OSError) else error
    return InvalidInput(f"the model cannot be {verb} {path}: {reason}.")
