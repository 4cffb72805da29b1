"""Holds the sessions of a worker process: one for each dataset, with an engine of its own.

The worker processes share nothing but the ledgers, which decide about every charge. A `Desk` is the state of
one worker (`FrontDesk` is that of the front process); with `reads=False` it opens no table, but can price
questions and read ledgers.

Keeps the server inside its folders: every file that it opens for a dataset passes `Folders`.

The processes that open files ask here right before they do: a path that was checked when the dataset was
added may have become a link since. Paths come from requests (`path`), and from schema files that a steward
sends (`data =` of a related table).

Assigns the numbers under which a person sees the entries of a ledger.

A served answer is a stored release that an analyst has got again without a charge.

Guarantee: the numbers that an analyst is shown, and may send, count that analyst's own charges and served
           answers: they are the same whatever others ask.
Proof:     a number is the position of an entry among the charges and served answers whose body names the
           analyst; a ledger only grows, so that a position never changes.
Assumes:   messages that name an entry go through `renumbered`. If words of the request look like the name of
           an entry (`names_entry`), the message is `renumbered` by `Numbers([])`, which shows no number:
           otherwise whoever wrote "entry 17 of the ledger" into a question that a message repeats would learn
           whether entry 17 is theirs. Stewards and auditors see the ledger's own numbers.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ... import _registry, tables
from ..._errors import DiscreetError, InvalidInput
from ...curator import STEWARD, Key, Ledger, books
from ...curator.closed_ledger import Books, NoData
from ...curator.curator import key_path
from ...curator.entries import Entry, kind_of
from ...curator.tickets import STATE, TICKET
from ...session import Session
from ...session import open as open_session
from ...tables.schema import data_of
from .. import requests

# The tag of a synthetic copy, whose package is only imported where one is made or drawn.
COPY = "synthetic.Fitted"
# Endings of database files, which hold several tables.
DATABASES = (".duckdb", ".db", ".ddb")
# Endings of files in the folders of data that are no data.
_OTHER = (".key", ".ledger", ".toml", ".part", "-journal", "-lock", "-wal", "-shm", "-vault")


@dataclass(frozen=True, slots=True)
class Folders:
    """The folders whose files a server may open, and that of its own state, which is never data."""

    roots: tuple[Path, ...]
    state: Path

    def inside(self, path: str | Path) -> Path:
        """Return the real path of what may not exist yet; refused if it is in no root, or in the state's.

        Links and ".." are followed before the comparison, so that none leads out. A relative path is looked
        for in each root. Wildcards are refused: an engine would expand them, perhaps to a link.
        """
        text = str(path)
        if "\0" not in text and "://" not in text:
            for root in map(os.path.realpath, self.roots):
                real = os.path.realpath(os.path.join(root, text))
                is_inside = _is_below(real, root) and not _is_below(real, os.path.realpath(self.state))
                is_missing_here = not os.path.isabs(text) and not os.path.exists(real)
                if is_inside and not is_missing_here and not set(os.path.relpath(real, root)) & set("*?["):
                    return Path(real)
        raise _refusal(path)

    def file(self, path: str | Path) -> Path:
        """Return the real path of a file inside a root. One that does not exist and one outside give the same
        error."""
        real = self.inside(path)
        if not real.is_file():
            raise _refusal(path)
        return real

    def data(self, text: str) -> str:
        """Return FILE or FILE::TABLE with the real path of the file, which must be inside a root."""
        path, separator, table = text.partition("::")
        real = str(self.file(path))
        if real.endswith(_OTHER):
            raise InvalidInput(f"{text!r} is not a data file. Nothing was opened.")
        # The names of the schema and ledger files are made from the table's name.
        leads_elsewhere = bool(set(table) & set("/\\\0")) or ".." in table
        if separator and (not real.endswith(DATABASES) or not table or leads_elsewhere):
            raise InvalidInput(
                f"{text!r} names no table of a database (FILE{DATABASES[0]}::TABLE). Nothing was opened."
            )
        return real + separator + table

    def dataset(self, facts: Mapping[str, str]) -> dict[str, Any]:
        """Return what `session.open` takes for a dataset (`store.Dataset.to_json`): its data, schema and
        ledger, and the data of the related tables that its schema names, all of them inside."""
        schema = self.file(facts["schema"])
        related = {
            name: requests.data_of(self.data(str(where.path) + "::" + where.table))
            if isinstance(where, tables.Database)
            else Path(self.data(str(where)))
            for name, where in data_of(schema).items()
        }
        return {
            "data": requests.data_of(self.data(facts["data"])),
            "schema": schema,
            "ledger": self.inside(facts["ledger"]),
            "related": related,
        }


def _is_below(path: str, folder: str) -> bool:
    """Return whether a real path is a folder's, or that of something in it."""
    return os.path.commonpath([path, folder]) == folder


def _refusal(path: str | Path) -> InvalidInput:
    return InvalidInput(
        f"{str(path)!r} is no file in a folder that this server may read. Nothing was opened. "
        f"Folders are given at its start: discreet serve --root FOLDER."
    )


# How the library names an entry in its messages. A new way to name one must be entered here.
_NAMED = re.compile(r"\bentry (\d+) of the ledger\b|\bnumber=(\d+)\b")
# The same in the words of a request, from which `names_entry` removes all but letters, digits, _ and =,
# because a message may repeat a question with other spaces and quotes.
_SENT = re.compile(r"entry=*\d+=*of=*the=*ledger|number=+\d")


def names_entry(options: dict[str, Any]) -> bool:
    """Return whether words of a request could be taken for the name of an entry where a message repeats them.

    >>> names_entry({"sql": 'SELECT "Entry 17 of the ledger" FROM t'}), names_entry({"number": 17})
    (True, False)
    """
    words = " ".join(_flat(value) for value in options.values() if isinstance(value, str | dict | list))
    return _SENT.search(re.sub(r"[^\w=]+", "", words.lower())) is not None


def _flat(value: Any) -> str:
    """Return all keys and values of nested JSON in one text."""
    if isinstance(value, dict):
        return " ".join(f"{name}={_flat(item)}" for name, item in value.items())
    return " ".join(map(_flat, value)) if isinstance(value, list) else str(value)


class Stored(NamedTuple):
    """What the index knows of a stored release: its charge, whose it is, the tag of its value, and of a copy
    its method and columns."""

    charge: int
    analyst: str
    tag: str
    copied: dict[str, Any] | None


@dataclass(slots=True)
class Index:
    """What is whose in one ledger, by numbers of entries: lists need no values, and large ones are read once.

    A worker keeps this object, so that each `update` reads only the entries after `_seen`.
    """

    # charges and served answers by analyst; by charge its time and the tag of its mechanism, and its tickets
    # and states; stored releases; by analyst, the first entry that served each of somebody else's releases
    owned: dict[str, list[int]] = field(default_factory=dict)
    charges: dict[int, tuple[str, str]] = field(default_factory=dict)
    about: dict[int, list[int]] = field(default_factory=dict)
    releases: dict[int, Stored] = field(default_factory=dict)
    served: dict[str, dict[int, int]] = field(default_factory=dict)
    _seen: int = 0

    def update(self, ledger: Ledger) -> Index:
        """Read the entries that were written since the last time."""
        newest = ledger.anchor.seq
        # without asking for the page after the last one, which would open the ledger again
        for entry in ledger.entries(after=self._seen) if self._seen < newest else ():
            self._add(entry, ledger)
            self._seen = entry.seq
            if self._seen >= newest:
                break
        return self

    def _add(self, entry: Entry, ledger: Ledger) -> None:
        body, analyst = entry.body, str(entry.body.get("analyst"))
        if entry.kind in (books.SPENDING, books.SERVED):
            self.owned.setdefault(analyst, []).append(entry.seq)
        if entry.kind == books.SPENDING:
            self.charges[entry.seq] = entry.time, str((body.get("mechanism") or {}).get("type"))
        elif entry.kind == books.SERVED:
            self.served.setdefault(analyst, {}).setdefault(body["release"], entry.seq)
        elif entry.kind in (TICKET, STATE):
            self.about.setdefault(body["charge"], []).append(entry.seq)
        elif entry.kind == "release" and "value" in body:
            # A release whose value is not stored in its entry cannot be shown.
            tag, copied = str(kind_of(body["value"])), None
            # Of large values that of a copy alone is read, and once.
            value = ledger.value(body) if tag == COPY else None
            if value is not None and value.get("type") == COPY:
                columns = [column["column"] for column in value["domain"]["columns"]]
                copied = {"method": value["method"], "columns": columns}
            self.releases[entry.seq] = Stored(body["charge"], analyst, tag, copied)


@dataclass(frozen=True, slots=True)
class Numbers:
    """Translates between the ledger's numbers of entries and those that one person sees.

    `own`: the ledger's numbers of the person's own entries, ascending; None for a steward or auditor, who
    sees the ledger's numbers.
    """

    own: list[int] | None

    def shown(self, seq: int) -> int:
        """Return the number under which an entry of theirs is shown; 0 for one that is not theirs."""
        if self.own is None:
            return seq
        position = bisect_left(self.own, seq)
        return position + 1 if position < len(self.own) and self.own[position] == seq else 0

    def entry(self, number: int) -> int:
        """Return the ledger's number for one that the person sees; 0, which no entry has, if unknown."""
        if self.own is None:
            return number
        return self.own[number - 1] if 1 <= number <= len(self.own) else 0

    def renumbered(self, message: str) -> str:
        """Return a message that names entries by the numbers that the person sees; those of others are named
        "..."."""
        if self.own is None:
            return message

        def replacement(match: re.Match[str]) -> str:
            digits = match[1] or match[2]
            # The analyst may have written it: no entry has such a number, and Python reads no longer ones.
            own_number = (self.shown(int(digits)) if len(digits) < 20 else 0) or "..."
            return f"number={own_number}" if match[2] else f"entry {own_number} of your ledger"

        return _NAMED.sub(replacement, message)


# A request has the keys "verb", "analyst" (the name in the ledger), "by" (the person), "role", "dataset"
# (`Dataset.to_json`), "options" and "opening" (`BudgetedDataset.opening`); `FrontDesk._request` makes it.
Options = dict[str, Any]
Request = dict[str, Any]
Result = dict[str, Any]
_NO_TABLE = "this process has no table. Nothing was charged or read."


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
    _indices: dict[str, Index] = field(default_factory=dict)
    # when each ledger's file was changed before `catch_up` read it last
    _changed: dict[str, int] = field(default_factory=dict)

    def session(self, dataset: dict[str, str], analyst: str, periods: Sequence[str] = ()) -> Session:
        """Return the session of a person on a dataset; `periods` are those of `Session.during`."""
        steward_session = self._sessions.get(dataset["ledger"])
        if steward_session is None:
            steward_session = self._sessions[dataset["ledger"]] = self._open(dataset)
        analyst_session = steward_session if analyst == STEWARD else steward_session.as_analyst(analyst)
        return analyst_session.during(*periods) if periods else analyst_session

    def index(self, dataset: dict[str, str]) -> Index:
        """Return the index of a dataset's ledger, with all entries up to now."""
        return self._indices.setdefault(dataset["ledger"], Index()).update(
            self.session(dataset, STEWARD).ledger
        )

    def catch_up(self) -> None:
        """Read the new entries of all ledgers that were listed before, while nobody waits: the first list
        after many large answers would read them all."""
        for ledger, index in self._indices.items():
            with suppress(DiscreetError, OSError):
                changed = os.stat(ledger).st_mtime_ns
                if changed != self._changed.get(ledger):
                    index.update(self._sessions[ledger].ledger)
                    self._changed[ledger] = changed

    def numbers(self, dataset: dict[str, str], analyst: str) -> Numbers:
        """Return the numbers under which a person sees the entries of a dataset's ledger."""
        return Numbers(None if analyst == STEWARD else self.index(dataset).owned.get(analyst, []))

    def _open(self, dataset: dict[str, str]) -> Session:
        """Open a dataset as the steward; without its table if this worker may not read."""
        files = self.folders.dataset(dataset)
        if self.reads:
            return open_session(**files, seconds=self.seconds)
        # `Books` is a curator without a table.
        path, public = files["ledger"], tables.load(files["schema"])
        return Session(Books(NoData(public, _NO_TABLE), Ledger(path, Key.load(key_path(path)))))


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
    values = {k: exact(v) for k, v in options.items() if k != "weights" and v is not None}
    return values | ({"weights": {k: exact(v) for k, v in weights.items()}} if weights else {})


def exact(value: Any) -> Any:
    """Return an option of a request: a plain value, or the fraction in {"fraction": "1/3"}; nothing else that
    a description could name is made of it."""
    if isinstance(value, dict) and value.keys() != {"fraction"}:
        raise InvalidInput('a number is written 0.1 or {"fraction": "1/3"}, and not as another description.')
    return _registry.from_json(value) if isinstance(value, dict) else value
