"""The sessions of a worker process: one for each dataset, with an engine of its own; all share the ledger,
which decides.

A `Desk` without an engine does what needs no data: previews, budgets, ledgers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ... import _registry, tables
from ..._errors import LedgerError
from ..._public import Public
from ...curator import STEWARD, Key, Ledger
from ...curator.closed import Books
from ...curator.curator import key_path
from ...session import Session
from ...session import open as open_session
from .. import requests
from .numbering import Numbers, OwnNumbers

Options = dict[str, Any]
Request = dict[str, Any]
Result = dict[str, Any]


@dataclass(frozen=True, slots=True)
class PublicFacts:
    """A table of which only the public facts are here: it can be priced, and not read."""

    public: Public

    def ready(self) -> None:
        raise LedgerError("this process has no table. Nothing was charged or read.")

    def batches(self, columns: Sequence[str]) -> Iterator[Any]:
        raise LedgerError("this process has no table. Nothing was charged or read.")


@dataclass(slots=True)
class Desk:
    """The sessions of one worker. `reads`: whether it may open tables."""

    reads: bool
    seconds: float
    # the largest number of groups that an answer may have
    rows: int = 10_000
    # the largest number of rows that are drawn of a synthetic copy
    copy_rows: int = 1_000_000
    # synthetic copies that were drawn before, the latest last
    copies: dict[Any, Any] = field(default_factory=dict)
    _sessions: dict[str, Session] = field(default_factory=dict)
    _numbers: dict[str, OwnNumbers] = field(default_factory=dict)

    def session(self, dataset: dict[str, str], analyst: str, periods: Sequence[str] = ()) -> Session:
        """Return a dataset as one person sees it."""
        steward_session = self._sessions.get(dataset["ledger"])
        if steward_session is None:
            steward_session = self._sessions[dataset["ledger"]] = self._open(dataset)
        analyst_session = steward_session if analyst == STEWARD else steward_session.as_analyst(analyst)
        return analyst_session.during(*periods) if periods else analyst_session

    def numbers(self, dataset: dict[str, str], analyst: str) -> Numbers:
        """Return the numbers of entries as one person sees them."""
        own_numbers = self._numbers.setdefault(dataset["ledger"], OwnNumbers())
        return own_numbers.of(self.session(dataset, analyst).ledger, analyst)

    def _open(self, dataset: dict[str, str]) -> Session:
        if self.reads:
            return open_session(
                requests.data_of(dataset["data"]),
                schema=Path(dataset["schema"]),
                ledger=Path(dataset["ledger"]),
                seconds=self.seconds,
            )
        path = Path(dataset["ledger"])
        public = tables.load(Path(dataset["schema"]))
        return Session(Books(PublicFacts(public), Ledger(path, Key.load(key_path(path)))))


def session_of(desk: Desk, request: Request) -> tuple[Session, Options]:
    options = dict(request["options"])
    return desk.session(request["dataset"], request["analyst"], options.pop("periods", None) or ()), options


def shown_number(desk: Desk, request: Request, seq: int) -> int:
    """Return the number under which an entry is shown to the caller."""
    return desk.numbers(request["dataset"], request["analyst"]).shown(seq)


def entry_number(desk: Desk, request: Request, number: int) -> int:
    """Return the entry that a number of the caller means; 0 where it means none."""
    return desk.numbers(request["dataset"], request["analyst"]).entry(number)


def numbers(options: Options) -> Options:
    """Take numbers as descriptions write them: 0.1, or {"fraction": "1/3"}."""
    weights = options.get("weights")
    values = {k: _registry.from_json(v) for k, v in options.items() if k != "weights" and v is not None}
    if "split" in values:
        values["split"] = tuple(values["split"])
    return values | ({"weights": {k: _registry.from_json(v) for k, v in weights.items()}} if weights else {})
