"""Warns that a file was written again while its declared version is the same.

Questions that were answered before are then answered from the ledger, about the rows of that time: which
answers are stored is decided by the declared version alone (`Curator._question`). The warning goes to whoever
opens the file, and decides nothing. It depends on when the file was last written, and on the time and the
table version of the ledger's last charge.
"""

from __future__ import annotations

import warnings
from datetime import UTC, datetime
from pathlib import Path

from .._public import UNVERSIONED, Public
from ..curator import Ledger


class TableChanged(UserWarning):
    """Warns that a file was written after the last charge for its version."""


def warn_of_changes(path: Path | None, public: Public, ledger: Ledger) -> None:
    """Warn if the file at `path` is newer than the last charge of the ledger, and that charge was for the
    same declared version of the table."""
    if path is None or not path.is_file() or public.version == UNVERSIONED:
        return
    charge = ledger.last("charge")
    mechanism = None if charge is None else charge.body.get("mechanism")
    if charge is None or not isinstance(mechanism, dict):
        return
    charged_public = mechanism.get("public")
    if not isinstance(charged_public, dict) or charged_public.get("version") != public.version:
        return
    if str(mechanism.get("type")).startswith("streaming."):
        # A stream reads a table that grows, so a newer file is expected.
        return
    modified = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    if modified > datetime.fromisoformat(charge.time):
        warnings.warn(
            f"{path.name!r} was written at {modified:%Y-%m-%d %H:%M:%S} UTC, after the last charge "
            f"({charge.time[:19].replace('T', ' ')}), and its version is still {public.version!r}. Questions "
            f"that were answered before get the old answers. If its rows changed, give it another version, "
            f"version = ... in the schema file. The same budget goes on, and it protects one person's rows "
            f"in all versions together.",
            TableChanged,
            # The line that called `open`: between lie `_curator`, `open` and the wrapper of `check_options`.
            stacklevel=5,
        )
