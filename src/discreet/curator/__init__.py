"""One dataset, one budget: the ledger, the budgets, and the one way in which anything gets out."""

from . import books
from .curator import Curator
from .keys import Key
from .ledger import Anchor, Entry, Ledger
from .live import Live
from .policy import STEWARD, Budget, Policy

__all__ = ["STEWARD", "Anchor", "Budget", "Curator", "Entry", "Key", "Ledger", "Live", "Policy", "books"]
