"""Discreet answers questions about people without revealing anyone: differential privacy, one dataset, one
budget.

`open` a dataset with a budget, and ask. Packages are imported when they are first used, so that `import
discreet` is fast.

>>> import discreet as dp
>>> dp.accounting.basic(dp.accounting.PureDP(epsilon=0.5).repeated(3)).value
1.5
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import _require
from ._errors import (
    BudgetExceeded,
    DescriptionError,
    DiscreetError,
    Halted,
    InvalidInput,
    LedgerError,
    MissingExtra,
    NotPrivate,
    PrivateFact,
    PublicMismatch,
    ReleaseFailed,
    UnknownAttribute,
    UnknownOption,
    Unsupported,
    WrongRelation,
)
from ._public import (
    ADD_REMOVE,
    REPLACE,
    ZERO_OUT,
    Boolean,
    Bounds,
    Categories,
    Dates,
    Neighbors,
    Public,
    Reference,
    Related,
    Text,
    Unit,
    rows,
)

if TYPE_CHECKING:
    from . import (
        accounting,
        adaptive,
        auditing,
        curator,
        explaining,
        inference,
        learning,
        local,
        mechanisms,
        query,
        sampling,
        streaming,
        synthetic,
        tables,
        tabular,
    )
    from .app.client import connect
    from .curator import Budget, Period
    from .explaining import explain
    from .session import Session, open

__version__ = "0.1.0"

_PACKAGES = (
    "accounting",
    "adaptive",
    "auditing",
    "curator",
    "explaining",
    "inference",
    "learning",
    "local",
    "mechanisms",
    "query",
    "sampling",
    "streaming",
    "synthetic",
    "tables",
    "tabular",
)
# Names that are imported when they are first used, and the module of each.
_LATER = {
    "Budget": "curator",
    "Period": "curator",
    "Session": "session",
    "explain": "explaining",
    "connect": "app.client",
    "open": "session",
}

__all__ = [
    "ADD_REMOVE",
    "REPLACE",
    "ZERO_OUT",
    "Boolean",
    "Bounds",
    "Budget",
    "BudgetExceeded",
    "Categories",
    "Dates",
    "DescriptionError",
    "DiscreetError",
    "Halted",
    "InvalidInput",
    "LedgerError",
    "MissingExtra",
    "Neighbors",
    "NotPrivate",
    "Period",
    "PrivateFact",
    "Public",
    "PublicMismatch",
    "Reference",
    "Related",
    "ReleaseFailed",
    "Session",
    "Text",
    "Unit",
    "UnknownAttribute",
    "UnknownOption",
    "Unsupported",
    "WrongRelation",
    "accounting",
    "adaptive",
    "auditing",
    "connect",
    "curator",
    "explain",
    "explaining",
    "inference",
    "learning",
    "local",
    "mechanisms",
    "open",
    "query",
    "rows",
    "sampling",
    "streaming",
    "synthetic",
    "tables",
    "tabular",
]


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return import_module(f".{name}", __name__)
    if name in _LATER:
        return getattr(import_module(f".{_LATER[name]}", __name__), name)
    raise _require.no_attribute("module 'discreet'", name, __all__)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
