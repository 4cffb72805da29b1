"""Holds the sessions of a worker process: one for each dataset, with an engine of its own.

The worker processes share nothing but the ledgers, which decide about every charge. A `Desk` is the state of
one worker (`FrontDesk` is that of the front process); with `reads=False` it opens no table, but can price
questions and read ledgers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ... import _registry, tables
from ..._errors import LedgerError
from ..._public import Public
from ...curator import STEWARD, Key, Ledger
from ...curator.closed import Books
from ...curator.curator import key_path
from ...session import Session
from ...session import open as open_session
from .folders import Folders
from .numbering import Numbers, OwnNumbers

# A request has the keys "verb", "analyst" (the name in the ledger), "by" (the person), "role", "dataset"
# (`Dataset.to_json`), "options" and "opening" (`BudgetedDataset.opening`); `FrontDesk._request` makes it.
Options = dict[str, Any]
Request = dict[str, Any]
Result = dict[str, Any]


@dataclass(frozen=True, slots=True)
class PublicFacts:
    """Stands for a table in a process that may not read it: questions can be priced, and not answered.

    It is a data source like a table, but its methods that would read rows refuse.
    """

    public: Public

    def ready(self) -> None:
        raise LedgerError("this process has no table. Nothing was charged or read.")

    def batches(self, columns: Sequence[str]) -> Iterator[Any]:
        raise LedgerError("this process has no table. Nothing was charged or read.")


@dataclass(slots=True)
class Desk:
    """The sessions of one worker. `reads` says whether it may open tables, `seconds` is the time limit of a
    question."""

    reads: bool
    seconds: float
    # the folders from which files may be opened
    folders: Folders
    # the most groups that an answer may have
    rows: int = 10_000
    # the most rows that are drawn from a synthetic copy
    copy_rows: int = 1_000_000
    # synthetic copies that were drawn before, the one used last at the end (`copies._copy_of`)
    copies: dict[Any, Any] = field(default_factory=dict)
    _sessions: dict[str, Session] = field(default_factory=dict)
    _numbers: dict[str, OwnNumbers] = field(default_factory=dict)

    def session(self, dataset: dict[str, str], analyst: str, periods: Sequence[str] = ()) -> Session:
        """Return the session of a person on a dataset; `periods` are those of `Session.during`."""
        steward_session = self._sessions.get(dataset["ledger"])
        if steward_session is None:
            steward_session = self._sessions[dataset["ledger"]] = self._open(dataset)
        analyst_session = steward_session if analyst == STEWARD else steward_session.as_analyst(analyst)
        return analyst_session.during(*periods) if periods else analyst_session

    def numbers(self, dataset: dict[str, str], analyst: str) -> Numbers:
        """Return the numbers under which a person sees the entries of a dataset's ledger."""
        own_numbers = self._numbers.setdefault(dataset["ledger"], OwnNumbers())
        return own_numbers.of(self.session(dataset, analyst).ledger, analyst)

    def _open(self, dataset: dict[str, str]) -> Session:
        """Open a dataset as the steward; without its table if this worker may not read."""
        files = self.folders.dataset(dataset)
        if self.reads:
            return open_session(**files, seconds=self.seconds)
        # `Books` is a curator without a table.
        path, public = files["ledger"], tables.load(files["schema"])
        return Session(Books(PublicFacts(public), Ledger(path, Key.load(key_path(path)))))


def session_of(desk: Desk, request: Request) -> tuple[Session, Options]:
    """Return the session that a request is for, and a copy of its options without "periods"."""
    options = dict(request["options"])
    return desk.session(request["dataset"], request["analyst"], options.pop("periods", None) or ()), options


def shown_number(desk: Desk, request: Request, seq: int) -> int:
    """Return the number under which the caller sees an entry of the ledger; 0 if it is not theirs."""
    return desk.numbers(request["dataset"], request["analyst"]).shown(seq)


def entry_number(desk: Desk, request: Request, number: int) -> int:
    """Return the ledger's number of the entry that the caller sees as `number`; 0 if there is none."""
    return desk.numbers(request["dataset"], request["analyst"]).entry(number)


def numbers(options: Options) -> Options:
    """Return the options that are not None, with numbers read from JSON: 0.1, or {"fraction": "1/3"}.

    The keys of "weights" are names of the analyst's columns, and are left as they are.
    """
    weights = options.get("weights")
    values = {k: _registry.from_json(v) for k, v in options.items() if k != "weights" and v is not None}
    if "split" in values:
        values["split"] = tuple(values["split"])
    return values | ({"weights": {k: _registry.from_json(v) for k, v in weights.items()}} if weights else {})
