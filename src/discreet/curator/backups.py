"""Copies a ledger with all that it needs to go on: its entries, the blobs of its vault, and its key."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from .._errors import LedgerError
from .budgeted import key_path
from .ledger import Ledger, LedgerReader
from .locks import sync_folder
from .postgres_store import PostgresStore
from .vault import Vault, newest_blobs


def back_up(ledger: Ledger, target: Path) -> bool:
    """Copy a ledger to a new file `target`, its vault beside that, and its key too if it lies beside the
    ledger; return whether it does.

    All of it is one state of the ledger: no transaction is opened meanwhile, and the blobs that the newest
    entries name are removed only after a newer transaction.
    """
    if isinstance(ledger.store, PostgresStore):
        raise LedgerError(
            f"the entries and blobs of {ledger.path} are in a database. Nothing was copied. Back them up "
            f"there (pg_dump --schema={ledger.store.name}), and copy {key_path(ledger.path)}."
        )
    # SQLite would take the journal of another file for that of the copy.
    for path in (target, key_path(target), _vault(target), Path(f"{target}-journal")):
        if os.path.lexists(path):
            raise LedgerError(f"{path} exists already. A backup overwrites nothing, and nothing was copied.")
    return ledger.look(lambda reader: _copy(ledger, reader, target))


def _copy(ledger: Ledger, reader: LedgerReader, target: Path) -> bool:
    """Write the files of a backup; return whether the key was there to be copied. If one cannot be written,
    those before it are removed."""
    made: list[Path] = []
    try:
        _copy_vault(ledger, reader, _vault(target), made)
        has_key = key_path(ledger.path).is_file()
        if has_key:
            _write(key_path(target), key_path(ledger.path).read_bytes(), made)
        # The ledger comes last: what lies beside it is complete.
        _write(target, b"", made)
        with closing(sqlite3.connect(target)) as copy:
            reader.db.backup(copy)
        sync_folder(target.parent)
    except (OSError, sqlite3.Error) as error:
        for path in reversed(made):
            path.rmdir() if path.is_dir() else path.unlink()
        reason = getattr(error, "strerror", None) or error
        raise LedgerError(f"no backup can be made at {target} ({reason}). Nothing was copied.") from None
    return has_key


def _copy_vault(ledger: Ledger, reader: LedgerReader, folder: Path, made: list[Path]) -> None:
    """Copy the newest version of every blob to a new folder; make none where there are no blobs."""
    names = {entry.body.get("file") for entry in newest_blobs(reader)} - {None}
    if not names:
        return
    folder.mkdir(mode=0o700)
    made.append(folder)
    for name in names:
        data = Vault(ledger).blobs.read(str(name))
        # A blob that is lost already is reported by `books.verify`, of the ledger and of its copy.
        if data is not None:
            _write(folder / Path(str(name)).name, data, made)
    sync_folder(folder)


def _vault(target: Path) -> Path:
    return Path(os.path.realpath(target) + "-vault")


def _write(path: Path, data: bytes, made: list[Path]) -> None:
    """Write a new file that only its owner can read, and wait until it is on disk."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    made.append(path)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
