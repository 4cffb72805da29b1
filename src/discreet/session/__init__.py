"""The public interface: `dp.open(...)` joins a table, its public facts, its budget and its ledger into one
session.

The package is thin. A session builds a mechanism from each question and hands it to the curator, which
charges it and records it in the ledger. Everything that a session does can also be done with the packages
that it imports (`query`, `learning`, `synthetic`, `curator`); every release goes through the curator.
"""

from .opening import Session, open

__all__ = ["Session", "open"]
