"""Discreet answers questions about people without telling on anyone: differential privacy, one dataset, one budget.

Rooms load when they are first used, so that `import discreet` is quick: `accounting`, `sampling`, `inference`, `mechanisms`, `tables`.

>>> import discreet as dp
>>> dp.accounting.basic(dp.accounting.PureDP(epsilon=0.1).repeated(3)).value
0.3000000000000001
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._errors import (
    DescriptionError,
    DiscreetError,
    Halted,
    InvalidInput,
    MissingExtra,
    NotPrivate,
    PrivateFact,
    PublicMismatch,
    Unsupported,
    WrongRelation,
)
from ._public import ADD_REMOVE, REPLACE, ZERO_OUT, Bounds, Categories, Neighbors, Public, Unit, rows

if TYPE_CHECKING:
    from . import accounting, inference, mechanisms, sampling, tables

__version__ = "0.1.0"

_ROOMS = ("accounting", "inference", "mechanisms", "sampling", "tables")

__all__ = [
    "ADD_REMOVE",
    "REPLACE",
    "ZERO_OUT",
    "Bounds",
    "Categories",
    "DescriptionError",
    "DiscreetError",
    "Halted",
    "InvalidInput",
    "MissingExtra",
    "Neighbors",
    "NotPrivate",
    "PrivateFact",
    "Public",
    "PublicMismatch",
    "Unit",
    "Unsupported",
    "WrongRelation",
    "accounting",
    "inference",
    "mechanisms",
    "rows",
    "sampling",
    "tables",
]


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f".{name}", __name__)
    raise AttributeError(f"module 'discreet' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
