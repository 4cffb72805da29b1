"""The public interface: `dp.open(...)` joins a table, its public facts, its budget and its ledger into one
session.

The package is thin. A session builds a mechanism from each question and hands it to the curator, which
charges it and records it in the ledger. Everything that a session does can also be done with the packages
that it imports (`query`, `learning`, `synthetic`, `curator`); every release goes through the curator.

It is loaded when it is first used: the shell reads the lists of `options` without it.
"""

from typing import TYPE_CHECKING

from .. import _registry

if TYPE_CHECKING:
    from .opening import Session as Session
    from .opening import open as open

__all__, __getattr__, __dir__ = _registry.exports(__name__)
