"""Connections to a PostgreSQL server: read-only, one snapshot for all statements of an answer, and no
password in anything that is kept or shown.

The address is a URL as libpq knows it. A password comes from where libpq looks for one: PGPASSWORD,
~/.pgpass, a service file, a certificate. One inside the address is refused, since addresses end up in shell
histories, process lists and notebooks.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from ..._errors import InvalidInput, MissingExtra
from ..engine import EngineError

SCHEMES = ("postgresql://", "postgres://")
_SECRETS = ("password", "sslpassword")
# Connections that are kept for the next question.
_IDLE = 4
# These hold whatever the role, the database or the server has set. Days, zones and doubles have one text;
# names are those of the server itself, not of a function that somebody planted; no time goes into JIT
# compilation; and a query that a row security policy would filter fails, instead of reading some rows only.
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
    """Where a database is, and as whom to connect; never a password.

    >>> Address("postgresql://ann@example.org/clinic?sslmode=require")
    Address('example.org/clinic')
    """

    def __init__(self, url: str) -> None:
        psycopg = driver()
        try:
            parts = psycopg.conninfo.conninfo_to_dict(url)
        except psycopg.Error:
            # Its text may quote the address.
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
        self._parts = {"connect_timeout": "10", "application_name": "discreet", **parts}

    @property
    def label(self) -> str:
        """The host and the database, for messages."""
        parts = self._parts
        host = parts.get("host") or parts.get("hostaddr") or parts.get("service") or "the local server"
        return f"{host}/{parts.get('dbname', '')}".rstrip("/")

    def connect(self, **options: Any) -> Any:
        """Return a connection that begins no transaction by itself. What the driver says of a failure is kept
        back."""
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
    """Connections to one database, each used by one thread at a time; a forked child makes its own."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._idle: list[tuple[int, Any]] = []
        self._running: set[Any] = set()
        self._lock = threading.Lock()

    @contextmanager
    def transaction(self, seconds: float | None) -> Iterator[Any]:
        """Open a read-only transaction on one snapshot; it is always rolled back, as there is nothing to
        keep."""
        connection = self._begin(seconds)
        self._running.add(connection)
        try:
            yield connection
        finally:
            self._running.discard(connection)
            self._give_back(connection)

    def _begin(self, seconds: float | None) -> Any:
        """Begin a read-only transaction on a connection that works; an idle one may have been closed."""
        psycopg = driver()
        timeout = {} if seconds is None else {"statement_timeout": str(max(1, round(1000 * seconds)))}
        settings = "; ".join(f"SET LOCAL {k} = '{v}'" for k, v in {**SETTINGS, **timeout}.items())
        settings = settings.replace("'pg_catalog, pg_temp'", "pg_catalog, pg_temp")
        while True:
            connection, is_reused = self._take()
            try:
                connection.execute(f"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; {settings}")
                return connection
            except psycopg.Error:
                _close(connection)
                # a kept one may have been ended by the server meanwhile
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
        """Roll back, and keep the connection for the next question if it is sound."""
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
        """Stop what runs now, from any thread."""
        for connection in list(self._running):
            with suppress(Exception):
                connection.cancel_safe(timeout=5)

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for pid, connection in idle:
            if pid == os.getpid():
                _close(connection)


def _close(connection: Any) -> None:
    with suppress(Exception):
        connection.close()
