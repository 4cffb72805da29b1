"""Defines a curator without the data: on a machine that does not have the table, budgets can be read, and
releases that were made elsewhere can be entered."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .._errors import LedgerError
from .._public import Public
from . import books
from .curator import Curator
from .door import key_path
from .keys import Key
from .ledger import Ledger

_NO_TABLE = "the ledger was opened without its table. Open the table with it: dp.open(...)."


@dataclass(frozen=True, slots=True)
class NoData:
    """Stands for the source of a table that this process does not have; only its public facts are known."""

    public: Public
    why: str = _NO_TABLE

    def ready(self) -> None:
        """Refuse every question: the curator calls this before each charge."""
        raise LedgerError(self.why)

    def batches(self, columns: Sequence[str]) -> Iterator[Any]:
        raise LedgerError(self.why)


class Books(Curator):
    """Reads budgets and enters releases without the table; refuses mechanisms, which would read it, before
    they are charged."""

    def _rows_of(self, per: Any, periods: tuple[str, ...]) -> Any:
        """Return the public facts of these rows: nothing is read, so no view of the rows is needed."""
        return replace(self._full_source, public=per.public_of(self._full_source.public, periods))


def without_data(path: str | Path) -> Books:
    """Return the curator of a ledger whose key lies beside it: `enter` and `preview` work, mechanisms do
    not."""
    ledger = Ledger(Path(path), Key.load(key_path(Path(path))))
    return Books(NoData(books.public_of(ledger)), ledger)


def read_only(path: str | Path) -> Books:
    """Return the curator of a ledger without its key: the ledger can be read, and nothing can be entered."""
    ledger = Ledger(Path(path))
    return Books(NoData(books.public_of(ledger)), ledger)
