"""Opens read-only transactions on a PostgreSQL server, each with one snapshot for all of its statements.

The address is a URL as libpq, PostgreSQL's client library, reads it. The password comes from where libpq
looks for it: PGPASSWORD, ~/.pgpass, a service file, a certificate. An address with a password in it is
refused, since addresses end up in shell histories, process lists and notebooks. No password is stored or
shown here.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from ..._errors import InvalidInput, MissingExtra
from ..engine import EngineError

# The largest number that a timeout of PostgreSQL's can have, in milliseconds: about 24 days.
_LONGEST_TIMEOUT = 2**31 - 1
SCHEMES = ("postgresql://", "postgres://")
_SECRETS = ("password", "sslpassword")
# How many idle connections are kept for later queries; chosen by hand, not tuned.
_IDLE = 4
# These settings override those of the role, the database and the server in every transaction. Days, time
# zones and doubles have one text. Names of functions mean the built-in ones, never a function of the same
# name that somebody else created. No time goes into JIT compilation. With row_security off, a query that a
# row security policy would filter fails, instead of reading only some rows.
SETTINGS = {
    "search_path": "pg_catalog, pg_temp",
    "timezone": "UTC",
    "datestyle": "ISO, YMD",
    "extra_float_digits": "1",
    "standard_conforming_strings": "on",
    "transform_null_equals": "off",
    "jit": "off",
    "client_min_messages": "error",
    "row_security": "off",
}


def is_address(data: Any) -> bool:
    """Return whether this is the address of a PostgreSQL database."""
    return isinstance(data, str) and data.startswith(SCHEMES)


def driver() -> Any:
    """Return psycopg, or raise an error that names the extra."""
    try:
        import psycopg
    except ImportError:
        raise MissingExtra.of("postgres", "PostgreSQL needs psycopg, and nothing was opened") from None
    return psycopg


class Address:
    """Holds the address of a database and the user's name; never a password.

    >>> Address("postgresql://ann@example.org/clinic?sslmode=require")
    Address('example.org/clinic')
    """

    def __init__(self, url: str) -> None:
        psycopg = driver()
        try:
            parts = psycopg.conninfo.conninfo_to_dict(url)
        except psycopg.Error:
            # The driver's error is not shown, as it may quote the address and a password in it.
            raise InvalidInput(
                "this is not an address of a PostgreSQL database, such as "
                "postgresql://user@host:5432/database. Nothing was opened."
            ) from None
        for name in _SECRETS:
            if parts.get(name):
                raise InvalidInput(
                    f"the address has a {name} in it, which would end up in histories and logs. Nothing was "
                    f"opened. Leave it out, and put it into PGPASSWORD, ~/.pgpass or a service file."
                )
        # The timeout is in seconds.
        self._parts = {"connect_timeout": "10", "application_name": "discreet", **parts}

    @property
    def label(self) -> str:
        """The host and the database, for messages."""
        parts = self._parts
        host = parts.get("host") or parts.get("hostaddr") or parts.get("service") or "the local server"
        return f"{host}/{parts.get('dbname', '')}".rstrip("/")

    def connect(self, **options: Any) -> Any:
        """Return a connection in autocommit mode, which begins no transaction and prepares no statement by
        itself. The text of the driver's error is not shown."""
        psycopg = driver()
        try:
            return psycopg.connect(
                **self._parts, autocommit=True, client_encoding="UTF8", prepare_threshold=None, **options
            )
        except (psycopg.Error, UnicodeError):
            raise EngineError(
                f"no connection to the PostgreSQL database at {self.label}. Nothing was opened, read or "
                f"charged. Check that it runs, the address, and the password in PGPASSWORD, ~/.pgpass or a "
                f"service file."
            ) from None

    def __repr__(self) -> str:
        return f"Address({self.label!r})"

    def __reduce__(self) -> Any:
        raise TypeError("an address is not copied to other processes: it may name credentials")


class Pool:
    """Keeps connections to one database, each used by one thread at a time.

    Idle connections are stored with the id of the process that opened them: a forked child must not use those
    of its parent, and opens its own.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        self._idle: list[tuple[int, Any]] = []
        self._running: set[Any] = set()
        self._lock = threading.Lock()

    @contextmanager
    def transaction(self, seconds: float | None) -> Iterator[Any]:
        """Yield a connection inside a read-only transaction with one snapshot. It is rolled back at the end,
        as nothing was written. `seconds` limits each statement; with None, a limit of the role or the server
        still applies."""
        connection = self._begin(seconds)
        self._running.add(connection)
        try:
            yield connection
        finally:
            self._running.discard(connection)
            self._give_back(connection)

    def _begin(self, seconds: float | None) -> Any:
        """Begin a read-only transaction, on an idle connection or a new one."""
        psycopg = driver()
        # 0 means that no limit is set; PostgreSQL refuses numbers above `_LONGEST_TIMEOUT`. The first `min`
        # is there only because `round` fails on an infinite number.
        milliseconds = 0 if seconds is None else max(1, round(1000 * min(seconds, _LONGEST_TIMEOUT)))
        timeout = {"statement_timeout": str(min(milliseconds, _LONGEST_TIMEOUT))} if milliseconds else {}
        settings = "; ".join(f"SET LOCAL {k} = '{v}'" for k, v in {**SETTINGS, **timeout}.items())
        # Between quotes the two schemas of search_path would be one name.
        settings = settings.replace("'pg_catalog, pg_temp'", "pg_catalog, pg_temp")
        while True:
            connection, is_reused = self._take()
            try:
                connection.execute(f"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; {settings}")
                return connection
            except psycopg.Error:
                _close(connection)
                # The server may have closed an idle connection; then the next one is tried.
                if not is_reused:
                    raise EngineError(
                        f"the PostgreSQL database at {self.address.label} begins no transaction. Nothing was "
                        f"read."
                    ) from None

    def _take(self) -> tuple[Any, bool]:
        """Return an idle connection of this process, or a new one, and whether it was idle."""
        with self._lock:
            while self._idle:
                pid, connection = self._idle.pop()
                if pid == os.getpid():
                    return connection, True
        return self.address.connect(), False

    def _give_back(self, connection: Any) -> None:
        """Roll back, and keep the connection as idle if it still works and there is space for it."""
        psycopg = driver()
        with suppress(psycopg.Error):
            connection.execute("ROLLBACK")
            if connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
                with self._lock:
                    if len(self._idle) < _IDLE:
                        self._idle.append((os.getpid(), connection))
                        return
        _close(connection)

    def cancel(self) -> None:
        """Cancel all statements that run now; may be called from any thread."""
        for connection in list(self._running):
            # The timeout, in seconds, is chosen by hand, not tuned.
            with suppress(Exception):
                connection.cancel_safe(timeout=5)

    def close(self) -> None:
        """Close the idle connections of this process."""
        with self._lock:
            idle, self._idle = self._idle, []
        for pid, connection in idle:
            if pid == os.getpid():
                _close(connection)


def _close(connection: Any) -> None:
    with suppress(Exception):
        connection.close()
