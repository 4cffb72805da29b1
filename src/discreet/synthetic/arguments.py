"""Checks of arguments that the whole room shares: every refusal is a `DiscreetError`, before any charge."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .. import _require
from .._errors import InvalidInput

# Rows that are drawn at once, at most: 8 GB for each column. A noisy total can be larger, of a tiny budget.
MOST_ROWS_DRAWN = 10**9

_OF_SYNTHESIZE = {
    *("epsilon", "delta", "method", "columns", "bins", "missing"),
    *("rows_per_unit", "constraints", "child", "options"),
}
# What a session gives to a method by itself.
_OF_NOBODY = {"public", "domain", "name", "rho"}


def mapping(**named: Any) -> dict[str, Any]:
    """Return the argument as a dictionary with texts as keys; nothing given is an empty one."""
    ((name, value),) = named.items()
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise _require.fail(name, value, "a mapping from names, such as {'age': ...}")
    return dict(value)


def method_options(options: Any) -> dict[str, Any]:
    """Return the options of a method's own; what is an option of every synthesis is refused there."""
    named = mapping(options=options)
    if own := sorted(_OF_SYNTHESIZE & set(named)):
        raise InvalidInput(
            f"{own[0]} is an option of synthesize itself: synthesize({own[0]}=...). Nothing was charged."
        )
    if own := sorted(_OF_NOBODY & set(named)):
        raise InvalidInput(f"no method has the option {own[0]!r}. Nothing was charged.")
    return named


def instance(kind: type, **named: Any) -> None:
    """Refuse what is not of a class, by the class's name."""
    for name, value in named.items():
        if not isinstance(value, kind):
            raise _require.fail(name, type(value).__name__, f"a {kind.__name__}")


def priced(epsilon: Any) -> None:
    """Check an epsilon: positive, and of a size for which prices can be computed."""
    _require.positive(epsilon=epsilon)
    if not 1e-9 <= _require.float_or_inf(epsilon) <= 1e6:
        raise _require.fail("epsilon", epsilon, "between 1e-9 and 1e6")


def rows_and_seed(rows: Any, seed: Any) -> None:
    """Check how many rows to draw, and by which seed; either may be left out."""
    if rows is not None:
        _require.integer(rows=rows, at_least=1)
        if rows > MOST_ROWS_DRAWN:
            raise _require.fail("rows", rows, f"at most {MOST_ROWS_DRAWN:,}")
    if seed is not None:
        _require.integer(seed=seed, at_least=0)


def writable(path: Any, *, overwrite: bool) -> Path:
    """Return the path of a file to write; refused where its folder is missing, it is a folder itself, or it
    is there already (a copy bears the name of the table that it was made from) and nobody said
    `overwrite`."""
    _require.flag(overwrite=overwrite)
    if not isinstance(path, str | os.PathLike) or not str(path) or "\0" in str(path):
        raise _require.fail("path", path, "the name of a file")
    target = Path(path)
    if target.is_dir() or not target.parent.is_dir():
        raise InvalidInput(
            f"{str(path)!r} cannot be written: "
            + ("it is a folder." if target.is_dir() else "its folder does not exist.")
            + " Nothing was written."
        )
    if not overwrite and (target.exists() or target.is_symlink()):
        raise InvalidInput(
            f"{str(path)!r} exists already. Nothing was written. Give another name, or overwrite=True."
        )
    return target
