"""Simulates crashes of a writer, in the manner of SQLite's own crash tests (https://sqlite.org/testing.html, 3.2).

`Recording` puts itself between SQLite and its files, inside this process: every open, write, truncate, sync and
delete that the real store causes goes through it, into a log, and may fail or kill the process there. It is a VFS
(SQLite's interface to files) that is made with `ctypes` around the one in use, so that it needs no compiler, and
is the same SQLite, with the same settings, that the store uses.

`crash` builds from the first n operations of a log what a power cut could leave on disk: of all that was not
synced when it came, each write is there, missing, or torn, independently of the order of writes.
"""

from __future__ import annotations

import _sqlite3
import ctypes
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Bytes that a disk writes as a whole.
SECTOR = 512
# Error codes of SQLite.
FULL, IOERR_FSYNC = 13, 10 | 4 << 8
# The flags of SQLite's xOpen for a file that is made if it is missing.
_CREATE = 0x4

# Paths are pointers here and not texts: SQLite's VFS keeps the pointer that it gets.
_OPEN = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p
)
_DELETE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)
_WRITE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int64)
_TRUNCATE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int64)
_SYNC = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int)


class _Vfs(ctypes.Structure):
    """struct sqlite3_vfs; `rest` are the functions that are not replaced."""

    _fields_ = (
        ("version", ctypes.c_int),
        ("file_size", ctypes.c_int),
        ("longest_path", ctypes.c_int),
        ("next", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("data", ctypes.c_void_p),
        ("open", ctypes.c_void_p),
        ("delete", ctypes.c_void_p),
        ("rest", ctypes.c_void_p * 14),
    )


class _Methods(ctypes.Structure):
    """struct sqlite3_io_methods; `rest` are the functions that are not replaced."""

    _fields_ = (
        ("version", ctypes.c_int),
        ("close", ctypes.c_void_p),
        ("read", ctypes.c_void_p),
        ("write", ctypes.c_void_p),
        ("truncate", ctypes.c_void_p),
        ("sync", ctypes.c_void_p),
        ("rest", ctypes.c_void_p * 13),
    )


@dataclass(frozen=True)
class Operation:
    """One step of the log: "create", "write", "truncate", "sync" or "delete" of a file; or "mark", a fact that
    the process knew at this point. A sync of a journal that is new, and a delete that SQLite asks to be synced, also
    sync the folder, as SQLite's VFS for Unix does: `folder`."""

    kind: str
    name: str
    offset: int = 0
    data: bytes = b""
    folder: bool = False
    fact: Any = None


def library() -> ctypes.CDLL | None:
    """The SQLite that Python's module uses; None where its functions are not visible."""
    try:
        sqlite = ctypes.CDLL(_sqlite3.__file__)
        sqlite.sqlite3_vfs_find.restype = ctypes.POINTER(_Vfs)
        sqlite.sqlite3_vfs_register.argtypes = [ctypes.POINTER(_Vfs), ctypes.c_int]
        sqlite.sqlite3_vfs_unregister.argtypes = [ctypes.POINTER(_Vfs)]
    except (AttributeError, OSError):
        return None
    return sqlite


class Recording:
    """Keeps a log of what SQLite does to files while `on` is open. `before` is called with the number of each
    operation and the operation before it happens, and may return an error code, which SQLite gets instead."""

    def __init__(self, before: Callable[[int, Operation], int] | None = None) -> None:
        self.log: list[Operation] = []
        self._before = before
        self._names: dict[int, str] = {}
        self._unsynced_names: set[str] = set()
        self._methods: dict[int, _Methods] = {}
        # functions that C refers to
        self._kept: list[Any] = []

    def mark(self, fact: Any) -> None:
        self.log.append(Operation("mark", "", fact=fact))

    @contextmanager
    def on(self) -> Iterator[Recording]:
        sqlite = library()
        assert sqlite is not None
        plain = sqlite.sqlite3_vfs_find(None)
        vfs = _Vfs.from_buffer_copy(plain.contents)
        vfs.name, vfs.next = b"recording", None
        vfs.open = self._function(_OPEN, self._open(plain))
        vfs.delete = self._function(_DELETE, self._delete(plain))
        sqlite.sqlite3_vfs_register(vfs, 1)
        try:
            yield self
        finally:
            sqlite.sqlite3_vfs_unregister(vfs)
            sqlite.sqlite3_vfs_register(plain, 1)

    def _function(self, kind: Any, function: Any) -> Any:
        self._kept.append(kind(function))
        return ctypes.cast(self._kept[-1], ctypes.c_void_p)

    def _enter(self, operation: Operation) -> int:
        error = 0 if self._before is None else self._before(len(self.log), operation)
        self.log.append(operation)
        return error

    def _open(self, plain: Any) -> Any:
        real = _OPEN(plain.contents.open)

        def opened(_: int, address: int | None, file: int, flags: int, out: int) -> int:
            path = os.fsdecode(ctypes.string_at(address)) if address else ""
            name = os.path.basename(path)
            is_new = bool(flags & _CREATE and name and not os.path.exists(path))
            code = real(ctypes.addressof(plain.contents), address, file, flags, out)
            if code == 0 and name:
                self._names[file] = name
                pointer = ctypes.cast(file, ctypes.POINTER(ctypes.c_void_p))
                pointer[0] = ctypes.addressof(self._recorded(pointer[0]))
                if is_new:
                    self._unsynced_names.add(name)
                    self._enter(Operation("create", name))
            return code

        return opened

    def _delete(self, plain: Any) -> Any:
        real = _DELETE(plain.contents.delete)

        def delete(_: int, address: int, folder: int) -> int:
            name = os.path.basename(os.fsdecode(ctypes.string_at(address)))
            error = self._enter(Operation("delete", name, folder=bool(folder)))
            return error or real(ctypes.addressof(plain.contents), address, folder)

        return delete

    def _recorded(self, address: int) -> _Methods:
        """The methods at an address, with those replaced that change a file."""
        if address in self._methods:
            return self._methods[address]
        methods = _Methods.from_buffer_copy((ctypes.c_char * ctypes.sizeof(_Methods)).from_address(address))
        real_write, real_truncate = _WRITE(methods.write), _TRUNCATE(methods.truncate)
        real_sync = _SYNC(methods.sync)

        def write(file: int, data: int, size: int, offset: int) -> int:
            operation = Operation("write", self._names[file], offset, ctypes.string_at(data, size))
            return self._enter(operation) or real_write(file, data, size, offset)

        def truncate(file: int, size: int) -> int:
            return self._enter(Operation("truncate", self._names[file], size)) or real_truncate(file, size)

        def sync(file: int, flags: int) -> int:
            name = self._names[file]
            is_new = name in self._unsynced_names
            self._unsynced_names.discard(name)
            return self._enter(Operation("sync", name, folder=is_new)) or real_sync(file, flags)

        methods.write = self._function(_WRITE, write)
        methods.truncate = self._function(_TRUNCATE, truncate)
        methods.sync = self._function(_SYNC, sync)
        self._methods[address] = methods
        return methods


@dataclass
class _File:
    """A file: what of it is on disk, and what was done to it since it was synced."""

    data: bytearray = field(default_factory=bytearray)
    unsynced: list[Operation] = field(default_factory=list)

    def sync(self) -> None:
        for operation in self.unsynced:
            self.apply(operation)
        self.unsynced.clear()

    def apply(self, operation: Operation) -> None:
        if operation.kind == "truncate":
            del self.data[operation.offset :]
            return
        end = operation.offset + len(operation.data)
        if len(self.data) < end:
            self.data.extend(bytes(end - len(self.data)))
        self.data[operation.offset : end] = operation.data

    def tear(self, operation: Operation, rng: random.Random) -> None:
        """Write some sectors of a write, leave some as they were, and fill one with garbage."""
        sectors = list(range(0, len(operation.data), SECTOR))
        garbage = rng.choice(sectors)
        for start in sectors:
            piece = operation.data[start : start + SECTOR]
            if start == garbage:
                piece = rng.randbytes(len(piece))
            elif rng.random() < 0.5:
                continue
            self.apply(Operation("write", operation.name, operation.offset + start, piece))

    def lose(self, rng: random.Random, kept: float) -> None:
        """Do to the file what a power cut may: each operation that was not synced is done with the probability
        `kept`, torn, or lost. Later ones may be done where earlier ones are lost."""
        for operation in self.unsynced:
            if rng.random() < kept:
                self.apply(operation)
            elif operation.kind == "write" and operation.data and rng.random() < 0.5:
                self.tear(operation, rng)


def crash(
    before: dict[str, bytes], log: list[Operation], end: int, folder: Path, rng: random.Random
) -> list[Any]:
    """Write the files that a crash before operation `end` may leave into a folder; return the facts that were
    marked before it. `before` are the files that were on disk when the log began."""
    # the files that the folder names, now and on disk; and what was done to the folder since it was synced
    names = {name: _File(bytearray(data)) for name, data in before.items()}
    on_disk = dict(names)
    unsynced: list[tuple[str, _File | None]] = []
    facts = []

    def sync_folder(count: int) -> None:
        for name, file in unsynced[:count]:
            if file is None:
                on_disk.pop(name, None)
            else:
                on_disk[name] = file
        unsynced.clear()

    for operation in log[:end]:
        name = operation.name
        if operation.kind == "mark":
            facts.append(operation.fact)
        elif operation.kind == "delete":
            names.pop(name, None)
            unsynced.append((name, None))
        elif operation.kind == "create":
            names[name] = _File()
            unsynced.append((name, names[name]))
        elif operation.kind == "sync":
            names[name].sync()
        else:
            names[name].unsynced.append(operation)
        if operation.folder:
            sync_folder(len(unsynced))
    # nothing is lost (the process was killed), all that was not synced, or some of it
    kept = rng.choice((0.0, 0.2, 0.5, 0.8, 1.0))
    # a folder's changes come to disk in their order
    sync_folder(len(unsynced) if kept == 1 else rng.randint(0, len(unsynced)))
    for name, file in on_disk.items():
        file.lose(rng, kept)
        path = folder / name
        path.write_bytes(file.data)
        path.chmod(0o600)
    return facts
