"""Defines the settings of a server: where its state is, which folders hold data, limits, and when answers
leave."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

from ..._errors import InvalidInput
from ...tables.engines.postgres_tables import is_address
from ..requests import ledger_name
from .sessions import Folders


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the steward decides before the server starts.

    `seconds` is the public time limit of a question; one that is not answered by then has failed. `tick`: an
    answer that touched data leaves at the next multiple of `tick` after its request; by default only at
    `seconds`. A shorter tick shows how long the work took, in ticks (docs/promise.md). The defaults of limits
    are chosen by hand, not tuned.
    """

    # the folder of the server's own database and key
    state: Path
    # the folders whose files the steward may add as data
    roots: tuple[Path, ...] = ()
    # the PostgreSQL database that keeps the ledgers of datasets added from now on, for servers on several
    # machines; by default each ledger is a file beside its data
    ledger: str | None = field(default=None, repr=False)
    host: str = "127.0.0.1"
    port: int = 8000
    # names under which browsers may reach the server; others are refused ("testserver" is used by tests)
    hosts: tuple[str, ...] = ("127.0.0.1", "localhost", "[::1]", "testserver")
    # whether browsers send the cookie over TLS only: set it wherever a proxy or uvicorn speaks TLS
    secure: bool = False
    seconds: float = 5.0
    tick: float | None = None
    # whether a stored answer waits like a new one, so that its time does not tell that somebody has asked the
    # question before; the analyst's own ledger tells it in either case
    hide_stored: bool = False
    # how many processes read data, and how many only price questions and read ledgers
    workers: int = 2
    previewers: int = 2
    # the most questions that wait for their answers at a time: of all people, and of one person
    slots: int = 256
    slots_per_person: int = 8
    # the most jobs that run at a time, and the longest that one may take
    jobs: int = 2
    job_seconds: float = 3600.0
    # requests of one person: `rate` per second, and up to `burst` at once (`auth.Rates`)
    rate: float = 20.0
    burst: int = 60
    # log-ins from one address per minute, whether they fail or not
    logins: int = 10
    # the largest request body, and the largest file that the steward may upload
    request_bytes: int = 1 << 20
    upload_bytes: int = 100 << 20
    # the most groups of an answer
    answer_rows: int = 10_000
    # the most rows that are drawn from a synthetic copy
    copy_rows: int = 1_000_000
    session_hours: float = 12.0
    token_days: float = 90.0
    demo: bool = False
    # name, role and token of each person of the demo: shown on its log-in page, and nowhere else
    demo_tokens: tuple[tuple[str, str, str], ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        if self.ledger is not None and (not is_address(self.ledger) or "::" in self.ledger):
            raise InvalidInput(
                "a database for ledgers is given as postgresql://user@host/database, without a table; the "
                "password in PGPASSWORD, ~/.pgpass or a service file. Nothing was started."
            )
        for name in ("seconds", "job_seconds", "rate", "session_hours", "token_days"):
            if not 0 < getattr(self, name) < math.inf:
                raise InvalidInput(
                    f"{name} must be above 0 and finite, got {getattr(self, name)!r}. Nothing was started."
                )
        for name in (
            "workers",
            "previewers",
            "slots",
            "slots_per_person",
            "jobs",
            "burst",
            "logins",
            "request_bytes",
            "upload_bytes",
            "answer_rows",
            "copy_rows",
        ):
            if not _is_integer(getattr(self, name)) or getattr(self, name) < 1:
                raise InvalidInput(
                    f"{name} must be an integer of at least 1, got {getattr(self, name)!r}. Nothing was "
                    f"started."
                )
        if not _is_integer(self.port) or not 0 <= self.port <= 65535:
            raise InvalidInput(
                f"port must be an integer between 0, for any free one, and 65535, got {self.port!r}. Nothing "
                f"was started."
            )
        if self.tick is not None and not 0 < self.tick <= self.seconds:
            raise InvalidInput(
                f"tick must be above 0 and at most the time limit of {self.seconds:g} s, got {self.tick!r}. "
                f"Nothing was started."
            )

    def books(self, dataset: str) -> str | None:
        """Return the address of a new dataset's ledger in the database; None for a file beside its data."""
        return None if self.ledger is None else f"{self.ledger}::{ledger_name(dataset)}"

    @property
    def step(self) -> float:
        """The interval at which answers leave, in seconds."""
        return self.seconds if self.tick is None else self.tick

    @property
    def folders(self) -> Folders:
        """The folders from which files may be opened."""
        return Folders(self.roots, self.state)


def _is_integer(value: object) -> bool:
    """Return whether a setting is an integer; True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool)
