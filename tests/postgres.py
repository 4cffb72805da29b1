"""A real PostgreSQL server for the tests: its own `initdb`, in a private folder, one for each test process.

PostgreSQL refuses to run as root, so that as root it runs as the user `postgres` (or `nobody`). Nothing waits
for the disk. Where no PostgreSQL is installed, `MISSING` says why, and the tests that need it are skipped with
that reason, which pytest prints at its end.
"""

from __future__ import annotations

import atexit
import itertools
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

TYPES = {
    pa.int64(): "bigint",
    pa.int32(): "integer",
    pa.float64(): "double precision",
    pa.string(): "text",
    pa.bool_(): "boolean",
    pa.date32(): "date",
}
PASSWORD = "not-a-real-secret-7f3a"  # of the role "reader" of a server that lives as long as the tests


def _binaries() -> Path | None:
    """Where PostgreSQL's programs are: the newest that Debian keeps, or those on the path."""
    listed = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
    on_path = shutil.which("initdb")
    folders = [*reversed(listed), *([Path(on_path).resolve().parent] if on_path else [])]
    return next((f for f in folders if (f / "initdb").exists() and (f / "postgres").exists()), None)


def _missing() -> str | None:
    try:
        import psycopg  # noqa: F401
    except ImportError:
        return "psycopg is not installed (pip install 'discreet[postgres]')"
    if _binaries() is None:
        return "PostgreSQL is not installed (Debian: apt-get install postgresql-15)"
    return None


MISSING = _missing()
needed = pytest.mark.skipif(MISSING is not None, reason=f"PostgreSQL: {MISSING}")


@dataclass(frozen=True)
class Server:
    folder: Path
    port: int
    process: subprocess.Popen[bytes]
    user: str | None

    def address(self, role: str = "owner", database: str = "postgres") -> str:
        """Over the socket, where no password is asked for."""
        return f"postgresql://{role}@/{database}?host={self.folder}&port={self.port}"

    def remote(self, role: str = "reader", database: str = "postgres") -> str:
        """Over the network, where a password is."""
        return f"postgresql://{role}@127.0.0.1:{self.port}/{database}"

    def run(self, *statements: str, database: str = "postgres") -> list[Any]:
        """What the owner's statements say, the last one's rows."""
        import psycopg

        with psycopg.connect(self.address(database=database), autocommit=True) as connection:
            for statement in statements[:-1]:
                connection.execute(statement)  # type: ignore[arg-type]
            cursor = connection.execute(statements[-1])  # type: ignore[arg-type]
            return cursor.fetchall() if cursor.description else []

    def database(self) -> str:
        """A new and empty database."""
        name = f"d{next(_NUMBERS)}"
        self.run(f"CREATE DATABASE {name}")
        return name

    @contextmanager
    def lent_database(self) -> Iterator[str]:
        """An empty database, which is emptied afterwards and lent again: to make one takes ten times as long.
        For tests that leave nothing but schemas in it."""
        name = _IDLE.pop() if _IDLE else self.database()
        yield name
        self.run(_EMPTY, database=name)
        _IDLE.append(name)

    def load(self, table: pa.Table, name: str = "t", *, collation: str = "") -> str:
        """The table in a schema of its own; returns `schema.name`."""
        import psycopg

        schema = f"s{next(_NUMBERS)}"
        columns = ", ".join(
            f'"{f.name}" {TYPES[f.type]}{collation if pa.types.is_string(f.type) else ""}'
            for f in table.schema
        )
        with psycopg.connect(self.address(), autocommit=True) as connection:
            connection.execute(f"CREATE SCHEMA {schema}")  # type: ignore[arg-type]
            connection.execute(f'CREATE TABLE {schema}."{name}" ({columns})')  # type: ignore[arg-type]
            connection.execute(f"GRANT USAGE ON SCHEMA {schema} TO reader")  # type: ignore[arg-type]
            connection.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO reader")  # type: ignore[arg-type]
            with connection.cursor().copy(f'COPY {schema}."{name}" FROM STDIN') as copy:  # type: ignore[arg-type]
                for row in zip(*(column.to_pylist() for column in table.columns), strict=True):
                    copy.write_row(row)
        return f"{schema}.{name}"


_NUMBERS = itertools.count(1)
# the databases that may be lent
_IDLE: list[str] = []
_EMPTY = """
DO $$ DECLARE schema text; BEGIN
  PERFORM pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid();
  FOR schema IN SELECT nspname FROM pg_namespace WHERE nspname !~ '^(pg_|information_schema$|public$)' LOOP
    EXECUTE format('DROP SCHEMA %I CASCADE', schema);
  END LOOP;
END $$
"""


@cache
def server() -> Server:
    """The server of this process, started when it is first needed and stopped when the process ends."""
    programs = _binaries()
    assert programs is not None
    user = (
        next((name for name in ("postgres", "nobody") if _exists(name)), None) if os.geteuid() == 0 else None
    )
    folder = Path(tempfile.mkdtemp(prefix="dpg-", dir=_place()))
    folder.chmod(0o755)
    if user is not None:
        os.chown(folder, pwd.getpwnam(user).pw_uid, -1)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    run = {
        "user": user,
        "cwd": folder,
        "stdout": subprocess.DEVNULL,
        "env": {"PATH": str(programs), "LC_ALL": "C"},
    }
    options = ["--auth-local=trust", "--auth-host=scram-sha-256", "-U", "owner", "-E", "UTF8", "--no-locale"]
    subprocess.run([programs / "initdb", "-D", folder / "data", "--no-sync", *options], check=True, **run)  # type: ignore[call-overload]
    settings = {
        "port": port, "listen_addresses": "127.0.0.1", "unix_socket_directories": folder, "fsync": "off",
        "full_page_writes": "off", "synchronous_commit": "off", "max_connections": 60, "shared_buffers": "64MB",
        "min_wal_size": "32MB", "max_wal_size": "64MB",
        "log_min_messages": "panic", "log_min_error_statement": "panic",
    }  # fmt: skip
    arguments = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
    process = subprocess.Popen(
        [programs / "postgres", "-D", folder / "data", *arguments],
        stderr=subprocess.DEVNULL,
        **run,  # type: ignore[call-overload]
    )
    started = Server(folder, port, process, user)
    atexit.register(_stop, started, os.getpid())
    _wait(started)
    started.run(f"CREATE ROLE reader LOGIN PASSWORD '{PASSWORD}'")
    return started


def _place() -> str:
    """In memory where the tests' other files are (conftest.py): a new database is 300 files, which takes a
    fifth of the CPU time there. Elsewhere a short path, as that of a socket has 107 bytes at most."""
    return "/dev/shm" if os.environ.get("PYTEST_DEBUG_TEMPROOT") == "/dev/shm" else "/tmp"


def _exists(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True


def _wait(started: Server) -> None:
    import time

    import psycopg

    deadline = time.monotonic() + 600
    while True:
        try:
            started.run("SELECT 1")
            return
        except psycopg.OperationalError:
            assert started.process.poll() is None, "PostgreSQL ended while it started"
            assert time.monotonic() < deadline, "PostgreSQL did not start"
            time.sleep(0.05)


def _stop(started: Server, pid: int) -> None:
    if os.getpid() != pid:
        return
    started.process.send_signal(3)  # SIGQUIT: at once
    started.process.wait(timeout=600)
    shutil.rmtree(started.folder, ignore_errors=True)
