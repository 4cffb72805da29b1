"""The public interface: `dp.open(...)` joins a table, its public facts, its budget and its ledger into one
session.

The package is thin. A session builds a mechanism from each question and hands it to the curator, which
charges it and records it in the ledger. Everything that a session does can also be done with the packages
that it imports (`query`, `learning`, `synthetic`, `curator`); every release goes through the curator.

It is loaded when it is first used: the shell reads the lists of `options` without it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .. import _require

if TYPE_CHECKING:
    from .opening import Session as Session
    from .opening import open as open

__all__ = ["Session", "open"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise _require.no_attribute("module 'discreet.session'", name, __all__)
    return getattr(import_module(".opening", __name__), name)
