"""One module knows what systems do differently; Windows' way is tried here with its functions imitated.

The imitation shows that our calls are in order, not that Windows does what its manual says (docs/never-run.md).
"""

from __future__ import annotations

import ast
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

import discreet as dp
from discreet import _system
from discreet.curator import store, tickets
from discreet.mechanisms.matrix import strategies
from discreet.tables import files, rand_hie

fcntl = pytest.importorskip("fcntl")
SOURCE = Path(dp.__file__).parent
# What is missing on one of the systems, or does something else there, by module; modules by themselves.
MODULES = {
    "fcntl",
    "msvcrt",
    "posix",
    "nt",
    "resource",
    "pwd",
    "grp",
    "pty",
    "tty",
    "termios",
    "syslog",
    "winreg",
}
NAMES = {
    "os": {
        "O_BINARY", "O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "O_SYNC", "WNOHANG", "chown", "fchmod",
        "fchown", "fork", "forkpty", "fsync", "fdatasync", "getegid", "geteuid", "getgid", "getloadavg", "getpgid",
        "getuid", "kill", "killpg", "lchown", "mkfifo", "name", "nice", "open", "posix_fadvise", "pread", "pwrite",
        "register_at_fork", "sched_getaffinity", "sched_setaffinity", "sendfile", "setgid", "setsid", "setuid",
        "startfile", "statvfs", "sync", "sysconf", "umask", "uname", "wait", "waitpid",
    },
    "signal": {"SIGALRM", "SIGCHLD", "SIGHUP", "SIGKILL", "SIGPIPE", "SIGQUIT", "SIGUSR1", "SIGUSR2", "alarm",
               "pause", "pthread_kill", "pthread_sigmask", "setitimer"},
    "socket": {"AF_UNIX", "SO_REUSEPORT"},
    "sys": {"platform", "getwindowsversion"},
    "time": {"clock_gettime", "tzset"},
}  # fmt: skip
FOLDERS = ("/dev/", "/proc/", "/tmp", "/var/", "/etc/")
# The null device of every system, by its portable name, is opened to silence a process.
ALLOWED = {("learning/pate/teachers.py", "os.open")}


def differences(text: str) -> Iterator[str]:
    """Yield what a module names that is not the same on all systems."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names if alias.name.split(".")[0] in MODULES)
            case ast.ImportFrom(module=str(module), level=0, names=names):
                yield from (module for _ in names if module.split(".")[0] in MODULES)
                yield from (f"{module}.{a.name}" for a in names if a.name in NAMES.get(module, ()))
            case ast.Attribute(value=ast.Name(id=module), attr=name) if name in NAMES.get(module, ()):
                yield f"{module}.{name}"
            case ast.Call(func=ast.Attribute(attr="get_context") | ast.Name(id="get_context"), args=args):
                yield from (f"get_context({ast.unparse(a)})" for a in args if ast.unparse(a) != "'spawn'")
            case ast.Constant(value=str(value)) if value.startswith(FOLDERS) and " " not in value:
                yield value


def test_only_one_module_names_what_differs_between_systems() -> None:
    found = {
        (path.relative_to(SOURCE).as_posix(), name)
        for path in SOURCE.rglob("*.py")
        for name in differences(path.read_text(encoding="utf-8"))
    }
    assert {"fcntl", "os.geteuid", "os.open"} <= {name for file, name in found if file == "_system.py"}
    assert {pair for pair in found if pair[0] != "_system.py"} == ALLOWED


@pytest.mark.parametrize(
    "text",
    [
        "import fcntl", "from os import fork", "import os\nos.fork()", "import signal\nsignal.SIGKILL",
        "from multiprocessing import get_context\nget_context('fork')", "open('/dev/shm/x')", "import sys\nsys.platform",
        "def f():\n    from resource import getrusage",
    ],
)  # fmt: skip
def test_the_walk_has_teeth(text: str) -> None:
    assert list(differences(text))


class Msvcrt:
    """Imitates Windows' locks: exclusive ones of the opened file, refused with PermissionError."""

    LK_NBLCK, LK_UNLCK = 2, 0

    @staticmethod
    def locking(handle: int, mode: int, count: int) -> None:
        assert (os.lseek(handle, 0, os.SEEK_CUR), count) == (_system._LOCKED_BYTE, 1)
        try:
            fcntl.flock(handle, fcntl.LOCK_UN if mode == Msvcrt.LK_UNLCK else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise PermissionError(*error.args) from None


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows' locks and forks, and no file is removed that is open and locked."""
    unlink = os.unlink

    def unlink_closed(path: str, **options: int) -> None:
        if not options and any(held.lock and tickets._is_at(held.lock, path) for held in store._HELD):
            raise PermissionError(path)
        unlink(path, **options)

    monkeypatch.setattr(_system, "fcntl", None)
    monkeypatch.setattr(_system, "msvcrt", Msvcrt, raising=False)
    monkeypatch.setattr(_system, "MOVES_OPEN_FILES", False)
    monkeypatch.setattr(tickets.os, "unlink", unlink_closed)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.usefixtures("windows")
def test_a_lock_of_windows_excludes_and_moves_nothing(shared: bool, tmp_path: Path) -> None:
    first = _system.create_file(tmp_path / "x")
    os.write(first, b"abc")
    second = _system.open_file(tmp_path / "x")
    assert _system.try_lock(first, shared=shared)
    assert not _system.try_lock(second, shared=shared)
    assert os.lseek(first, 0, os.SEEK_CUR) == 3
    _system.unlock(first)
    _system.lock(second)
    assert not _system.try_lock(first)
    os.close(second)
    assert _system.try_lock(first), "closing releases"
    os.close(first)


@pytest.mark.usefixtures("windows")
def test_signs_of_life_are_removed_where_open_files_cannot_be(tmp_path: Path) -> None:
    ledger = tmp_path / "x.ledger"
    with tickets.Asker(ledger) as asker:
        tickets.sweep(ledger)
        sign = Path(f"{os.path.realpath(ledger)}-asker-{asker.name}")
        assert sign.exists(), "its asker is there"
    assert not sign.exists()
    sign.touch()
    tickets.wait(ledger, asker.name)
    tickets.sweep(ledger)
    assert not sign.exists(), "a killed process left it"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("windows")
def test_a_question_is_charged_and_answered_with_the_locks_of_windows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "WAIT", 1.0)
    path = tmp_path / "people.ledger"
    people = dp.open(rand_hie(year=1), budget=dp.Budget(epsilon=1), ledger=path)
    assert 5000 < float(people.sql("SELECT COUNT(*) AS n FROM rand_hie", epsilon=0.5)) < 7000
    again = dp.open(rand_hie(year=1), ledger=path)
    assert again.remaining == people.remaining
    with files.PrivateFolder("discreet-systems-") as folder:
        assert files.sweep("discreet-systems-") == []
        assert folder.exists()
    assert not folder.exists()


def test_macos_is_asked_to_empty_the_cache_of_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    macos = SimpleNamespace(F_FULLFSYNC=51, fcntl=lambda handle, call: calls.append((handle, call)))
    monkeypatch.setattr(_system, "fcntl", macos)
    monkeypatch.setattr(_system, "sys", SimpleNamespace(platform="darwin"))
    with (tmp_path / "x").open("wb") as file:
        file.write(b"abc")
        _system.sync(file)
        assert calls == [(file.fileno(), 51)]
        assert (tmp_path / "x").read_bytes() == b"abc"


def test_a_mode_that_says_nothing_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _system.is_open_to_others(0o100644)
    assert not _system.is_open_to_others(0o100600)
    monkeypatch.setattr(_system.os, "name", "nt")
    # what Windows reports for every file that may be written
    assert not _system.is_open_to_others(0o100666)


def blas_threads() -> set[int]:
    return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}


def test_small_matrices_are_factored_on_one_thread_and_the_number_is_put_back() -> None:
    seen = _system.on_one_thread(lambda matrix: blas_threads())
    # the test itself is the outer of two limits, as a program's own would be
    with threadpool_limits(3, "blas"):
        assert seen(np.eye(3)) == {1}
        assert blas_threads() == {3}
        assert seen(np.empty((1025, 1024))) == {3}


def test_threads_that_factor_at_the_same_time_put_the_number_back() -> None:
    seen: list[set[int]] = []
    meet = threading.Barrier(2)

    def wait_and_look(matrix: Any) -> None:
        time.sleep(0.05)
        seen.append(blas_threads())

    def work() -> None:
        meet.wait(30)
        _system.on_one_thread(wait_and_look)(np.eye(3))

    before = blas_threads()
    workers = [threading.Thread(target=work) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(30)
    assert seen == [{1}, {1}]
    assert blas_threads() == before


def test_the_optimizer_of_strategies_stays_on_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    eigh = strategies.linalg.eigh
    monkeypatch.setattr(
        strategies.linalg, "eigh", lambda *a, **k: (seen.append(blas_threads()), eigh(*a, **k))[1]
    )
    with threadpool_limits(3, "blas"):
        strategies.gaussian(np.tril(np.ones((60, 60))))
    assert seen
    assert set.union(*seen) == {1}
