"""Warns that a file was written again while its declared version is the same.

The warning depends on public facts alone: when the file was last written, and the time and the table version
of the ledger's last charge. A changed file gets no old answer even under the same version
(`Curator._question`), but the ledger does not tell then which contents an answer was about.
"""

from __future__ import annotations

import warnings
from datetime import UTC, datetime
from pathlib import Path

from .._public import Public
from ..curator import Ledger


class TableChanged(UserWarning):
    """Warns that a file was written after the last charge for its version."""


def warn_of_changes(path: Path | None, public: Public, ledger: Ledger) -> None:
    """Warn if the file at `path` is newer than the last charge of the ledger, and that charge was for the
    same version of the table."""
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
        # A stream reads a table that grows, so a newer file is expected.
        return
    modified = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    if modified > datetime.fromisoformat(charge.time):
        warnings.warn(
            f"{path.name!r} was written at {modified:%Y-%m-%d %H:%M:%S} UTC, after the last charge "
            f"({charge.time[:19].replace('T', ' ')}), and its version is still {public.version!r}. If its "
            f"rows changed, give it another version, version = ... in the schema file. The same budget goes "
            f"on, and it protects one person's rows in all versions together.",
            TableChanged,
            # The line that called `open`: between lie `_curator`, `open` and the wrapper of `check_options`.
            stacklevel=5,
        )
