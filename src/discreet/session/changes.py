"""The warning that a file was written again while its declared version is the same.

It is told from public facts alone: when the file was written, and when the ledger was charged last, for which
version.
"""

from __future__ import annotations

import warnings
from datetime import UTC, datetime
from pathlib import Path

from .._public import Public
from ..curator import Ledger


class TableChanged(UserWarning):
    """Warns that a file was written after its version was last asked about."""


def warn_of_changes(path: Path | None, public: Public, ledger: Ledger) -> None:
    """Warn where a file is newer than the last charge, and says that it is the same version."""
    if path is None or not path.is_file():
        return
    charge = ledger.last("charge")
    mechanism = None if charge is None else charge.body.get("mechanism")
    if charge is None or not isinstance(mechanism, dict):
        return
    charged_public = mechanism.get("public")
    if not isinstance(charged_public, dict) or charged_public.get("version") != public.version:
        return
    if str(mechanism.get("type")).startswith("streaming."):
        # a stream reads a table that grows: that is no change of what was asked about
        return
    modified = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    if modified > datetime.fromisoformat(charge.time):
        warnings.warn(
            f"{path.name!r} was written at {modified:%Y-%m-%d %H:%M:%S} UTC, after the last charge "
            f"({charge.time[:19].replace('T', ' ')}), and its version is still {public.version!r}. If its "
            f"rows changed, give it another, version = ... in the schema file: the budget goes on, and what "
            f"is hidden is one person's rows in the whole history of versions.",
            TableChanged,
            stacklevel=4,
        )
