"""`discreet version`: prints the version of the package."""

from __future__ import annotations

from ... import __version__


def version() -> None:
    """Print the version."""
    print(f"discreet {__version__}")
