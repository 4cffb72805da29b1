"""One dataset, one budget: the ledger, the budgets, and the curator; nothing is released but through the
curator."""

from . import books, receipts
from .curator import Curator
from .keys import Key
from .ledger import Ledger
from .live_mechanisms import InteractiveHandle
from .policy import STEWARD, Budget, Period, Policy

__all__ = [
    "STEWARD",
    "Budget",
    "Curator",
    "Key",
    "Ledger",
    "InteractiveHandle",
    "Period",
    "Policy",
    "books",
    "receipts",
]
