"""One dataset, one budget: the ledger, the budgets, and the curator; nothing is released but through the
curator."""

from typing import TYPE_CHECKING

from .. import _registry

if TYPE_CHECKING:
    from . import books as books
    from . import receipts as receipts
    from .curator import Curator as Curator
    from .keys import Key as Key
    from .ledger import Ledger as Ledger
    from .live_mechanisms import InteractiveHandle as InteractiveHandle
    from .periods import Period as Period
    from .policy import STEWARD as STEWARD
    from .policy import Budget as Budget
    from .policy import Policy as Policy

__all__, __getattr__, __dir__ = _registry.exports(__name__)
