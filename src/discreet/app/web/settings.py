"""Defines the settings of a server: where its state is, which folders hold data, limits, and when answers
leave."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from ... import _require
from ..._errors import InvalidInput
from ..._require import POSITIVE, at_least, at_most
from ...tables.engines.postgres_tables import is_address
from ..requests import ledger_name, refuse_password
from .sessions import Folders

# A finite number above zero, and an integer of at least 1.
Amount = Annotated[float, POSITIVE]
Count = Annotated[int, at_least(1)]


# The name of a header that says who somebody is: a name of a header, and none that browsers or servers set.
_OWN_HEADER = re.compile(r"(?:X-[A-Za-z0-9-]+|Remote-[A-Za-z0-9-]+)", re.ASCII | re.IGNORECASE)


def is_safe(address: str) -> bool:
    """Return whether what is sent to an address is kept from others: by TLS, or because it is here."""
    parts = urlsplit(address)
    is_here = parts.hostname in ("127.0.0.1", "localhost", "::1")
    return parts.scheme == "https" or (parts.scheme == "http" and is_here)


@_require.checked
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
    # 0 is any free one
    port: Annotated[int, at_least(0), at_most(65_535)] = 8000
    # names under which browsers may reach the server; others are refused ("testserver" is used by tests)
    hosts: tuple[str, ...] = ("127.0.0.1", "localhost", "[::1]", "testserver")
    # whether browsers send the cookie over TLS only: set it wherever a proxy or uvicorn speaks TLS
    secure: bool = False
    seconds: Amount = 5.0
    tick: Amount | None = None
    # whether a stored answer waits like a new one, so that its time does not tell that somebody has asked the
    # question before; the analyst's own ledger tells it in either case
    hide_stored: bool = False
    # how many processes read data, and how many only price questions and read ledgers
    workers: Count = 2
    previewers: Count = 2
    # the header by which a proxy says who sends a request, and the addresses or networks of such proxies
    trust_header: str | None = None
    trust_from: tuple[str, ...] = ()
    # an OpenID provider that identifies people: its address, the name that this server has there, that name's
    # secret if it has one, and the claim that is the name of a person here
    oidc: str | None = None
    oidc_client: str | None = None
    oidc_secret: str | None = field(default=None, repr=False)
    oidc_claim: str = "email"
    # the most questions that wait for their answers at a time: of all people, and of one person
    slots: Count = 256
    slots_per_person: Count = 8
    # the most jobs that run at a time, and the longest that one may take
    jobs: Count = 2
    job_seconds: Amount = 3600.0
    # requests of one person: `rate` per second, and up to `burst` at once (`auth.Rates`)
    rate: Amount = 20.0
    burst: Count = 60
    # the most connections at a time
    connections: Count = 1000
    # log-ins that fail from one address per minute, and those of one person
    logins: Count = 10
    # the largest request body, and the largest file that the steward may upload
    request_bytes: Count = 1 << 20
    upload_bytes: Count = 100 << 20
    # the most groups of an answer
    answer_rows: Count = 10_000
    # the most rows that are drawn from a synthetic copy
    copy_rows: Count = 1_000_000
    session_hours: Amount = 12.0
    token_days: Amount = 90.0
    demo: bool = False
    # name, role and token of each person of the demo: shown on its log-in page, and nowhere else
    demo_tokens: tuple[tuple[str, str, str], ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        refuse_password(self.ledger or "")
        if self.ledger is not None and (not is_address(self.ledger) or "::" in self.ledger):
            raise InvalidInput(
                "a database for ledgers is given as postgresql://user@host/database, without a table; the "
                "password in PGPASSWORD, ~/.pgpass or a service file. Nothing was started."
            )
        if self.tick is not None and self.tick > self.seconds:
            raise _require.fail("tick", self.tick, f"at most the time limit of {self.seconds:g} s")
        if (self.trust_header is None) != (not self.trusted):
            raise InvalidInput(
                "give --trust-header with --from, the address or network of the proxy that sets it: without "
                "it, anybody could write the header. Nothing was started."
            )
        if self.trust_header is not None and not _OWN_HEADER.fullmatch(self.trust_header):
            raise InvalidInput(
                f"{self.trust_header!r} is no header that only a proxy sets. Take one such as X-Remote-User: "
                "X-, and letters, digits and hyphens."
            )
        if self.oidc is not None and not (self.oidc_client and is_safe(self.oidc)):
            raise InvalidInput(
                "--oidc is the address of a provider, https://..., as it names itself, and needs "
                "--oidc-client, the name that this server has there. Nothing was started."
            )

    def books(self, dataset: str) -> str | None:
        """Return the address of a new dataset's ledger in the database; None for a file beside its data."""
        return None if self.ledger is None else f"{self.ledger}::{ledger_name(dataset)}"

    @property
    def trusted(self) -> tuple[IPv4Network | IPv6Network, ...]:
        """The networks whose proxies are believed."""
        try:
            return tuple(map(ip_network, self.trust_from))
        except ValueError as error:
            raise InvalidInput(f"--from is an address or a network: {error}. Nothing was started.") from None

    @property
    def step(self) -> float:
        """The interval at which answers leave, in seconds."""
        return self.seconds if self.tick is None else self.tick

    @property
    def folders(self) -> Folders:
        """The folders from which files may be opened."""
        return Folders(self.roots, self.state)
