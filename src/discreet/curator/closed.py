"""The books without the data: what was released elsewhere can be entered, and budgets looked at, on a machine
that has no table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._errors import LedgerError
from .._public import Public
from . import books
from .budgeted import key_path
from .curator import Curator
from .keys import Key
from .ledger import Ledger

_NO_TABLE = (
    "the ledger was opened without its table. Nothing was charged or read. Open the table with it: "
    "dp.open(...)."
)


@dataclass(frozen=True, slots=True)
class _NoData:
    """The public facts of a table that is not here."""

    public: Public

    def ready(self) -> None:
        """Refuse every question: this source holds no data, and the curator asks for it before each
        charge."""
        raise LedgerError(_NO_TABLE)

    def batches(self, columns: Sequence[str]) -> Iterator[Any]:
        raise LedgerError(_NO_TABLE)


class Books(Curator):
    """A curator that has no table: what would read it is refused before it is charged."""

    def _part(self, per: Any, periods: tuple[str, ...]) -> Any:
        """Return the source as it is: nothing is read, so no view of the rows is needed."""
        return self._full_source


def without_data(path: str | Path) -> Books:
    """Return the curator of a ledger, with its key beside it, for `enter` and `preview`."""
    ledger = Ledger(Path(path), Key.load(key_path(Path(path))))
    return Books(_NoData(books.public_of(ledger)), ledger)


def read_only(path: str | Path) -> Books:
    """Return the curator of a ledger without its key: what it says can be read, nothing can be entered."""
    ledger = Ledger(Path(path))
    return Books(_NoData(books.public_of(ledger)), ledger)
