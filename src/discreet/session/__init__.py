"""The front door: `dp.open(...)` joins a table, its public facts, its budget and its ledger into one session.

Thin: a question becomes a mechanism and goes to the curator, which charges it and keeps the books. Everything
a session can do can be done with the packages below it; nothing gets out but through the curator.
"""

from .opening import TRIAL, open
from .previews import Fed, QueryPreview, Watch
from .session import Session

__all__ = ["TRIAL", "Fed", "QueryPreview", "Session", "Watch", "open"]
