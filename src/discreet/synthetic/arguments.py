"""Checks arguments for the modules of this package. Each refusal is a `DiscreetError`, raised before anything
is charged."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .. import _require
from .._errors import InvalidInput

# The most rows that can be asked for: 8 GB for each column.
MAX_DRAWN_ROWS = 10**9
# The most rows of a copy where the caller gives no number. The default is the noisy number of rows, which is
# mostly noise where epsilon is small, and must not fill the memory.
MAX_DEFAULT_ROWS = 10**7

# Arguments of `Session.synthesize` that determine the mechanism; its other arguments, such as `seed`, are
# refused as unknown options of the method.
_SYNTHESIZE_ARGUMENTS = {
    *("epsilon", "delta", "method", "columns", "bins", "missing"),
    *("rows_per_unit", "constraints", "options"),
}
# Arguments that the session itself passes to the class of a method, so that they are no options.
_RESERVED_ARGUMENTS = {"public", "domain", "name", "rho"}


def check_mapping(**named: Any) -> dict[str, Any]:
    """Return the one named argument as a dictionary whose keys are strings; None becomes an empty one."""
    ((name, value),) = named.items()
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise _require.fail(name, value, "a mapping from names, such as {'age': ...}")
    return dict(value)


def check_method_options(options: Any) -> dict[str, Any]:
    """Return the options of the chosen method, checked: arguments of `Session.synthesize` or of the session
    are refused."""
    checked = check_mapping(options=options)
    if misplaced := sorted(_SYNTHESIZE_ARGUMENTS & set(checked)):
        raise InvalidInput(
            f"{misplaced[0]} is an option of synthesize itself: synthesize({misplaced[0]}=...). Nothing was "
            f"charged."
        )
    if reserved := sorted(_RESERVED_ARGUMENTS & set(checked)):
        raise InvalidInput(f"no method has the option {reserved[0]!r}. Nothing was charged.")
    return checked


def check_instance(kind: type, **named: Any) -> None:
    """Refuse values that are not instances of a class."""
    for name, value in named.items():
        if not isinstance(value, kind):
            raise _require.fail(name, type(value).__name__, f"a {kind.__name__}")


def check_epsilon(epsilon: Any) -> None:
    """Refuse an epsilon that is not positive, or so small or large that no price can be computed for it."""
    _require.positive(epsilon=epsilon)
    if not 1e-9 <= _require.float_or_inf(epsilon) <= 1e6:
        raise _require.fail("epsilon", epsilon, "between 1e-9 and 1e6")


def check_rows_and_seed(rows: Any, seed: Any) -> None:
    """Refuse a number of rows that cannot be drawn, and a seed that is no whole number from 0 on; either may
    be None."""
    if rows is not None:
        _require.integer(rows=rows, at_least=1)
        if rows > MAX_DRAWN_ROWS:
            raise _require.fail("rows", rows, f"at most {MAX_DRAWN_ROWS:,}")
    if seed is not None:
        _require.integer(seed=seed, at_least=0)


def check_writable(path: Any, *, overwrite: bool) -> Path:
    """Return the path of a file to write.

    It is refused where its folder is missing, where it is a folder itself, and, without `overwrite`, where
    the file exists: a copy is often saved under the name of the table that it was made from, and must not
    replace the file of that table by accident.
    """
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
