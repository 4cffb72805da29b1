"""Teachers of PATE: one model for each of many disjoint parts of the data, trained apart, sealed, and asked
for their votes.

What happens to one teacher (an exception, a part with one class, a model that is too large, an answer that is
no class) changes that teacher's votes and nothing else: no other teacher, no message, no progress. So one
unit moves one vote.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import io
import itertools
import os
import pickle
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ... import sampling
from ...sampling import Entropy

Ints = NDArray[np.int64]
Array = NDArray[Any]
Progress = Callable[[int, int], None]
# Bytes before each model in a blob: its length.
_LENGTH = 8


def deal(
    units: int, names: Sequence[Any] | None, teachers: int, entropy: Entropy, *, overlap: int = 1
) -> Ints:
    """Return the `overlap` teachers of each unit, a row for each: by a keyed hash of its name, or drawn for
    each where units have no names.

    Guarantee: with one unit added, removed or replaced by another, some coupling of the dealing leaves every
               other unit with its teachers, and gives a replaced unit's rows to the same on both sides.
    Proof:     under a key that nobody sees, a keyed hash is a random function of names. Adding a name leaves
               all others where they were. For a name that replaces another, exchange the two in the function:
               that has the same distribution. Independent draws for nameless units are coupled in the same
               way. Floyd's algorithm makes of draws below teachers - overlap + 1, ..., teachers a uniform
               subset.
    Assumes:   BLAKE2b with a secret key is a pseudorandom function. 128 bits modulo the number of teachers
               are uniform to 2^-100.
    """
    key = None if names is None else entropy.bytes(32)
    teachers_of = np.empty((units, overlap), np.int64)
    for position, largest in enumerate(range(teachers - overlap, teachers)):
        if names is None:
            draws = np.asarray(sampling.uniform_below(largest + 1, units, entropy), dtype=np.int64)
        else:
            draws = np.array([_keyed_hash(name, position, key) % (largest + 1) for name in names], np.int64)
        is_repeated = (teachers_of[:, :position] == draws[:, None]).any(1)
        teachers_of[:, position] = np.where(is_repeated, largest, draws)
    return teachers_of


def _keyed_hash(name: Any, position: int, key: Any) -> int:
    """Return the keyed hash of a unit's name, one for each of its positions."""
    text = f"{position}:{name!r}".encode()
    return int.from_bytes(hashlib.blake2b(text, key=key, digest_size=16).digest(), "little")


def train(
    learner: Any,
    parts: Sequence[tuple[Array, Ints]],
    classes: int,
    size: int,
    seeds: Sequence[int],
    *,
    workers: int,
    progress: Progress | None = None,
) -> list[bytes]:
    """Return one pickled model for each part, of at most `size` bytes; b"" where training failed.

    Every teacher gets a seed of its own. With more than one of `workers`, each runs in a process apart; a
    process that dies takes its own teacher with it, and nothing else. `progress` is called once for each
    teacher, with how many are done, never with which: that would say how long one took.
    """
    jobs = [(learner, x, y, classes, size, seed) for (x, y), seed in zip(parts, seeds, strict=True)]
    # More processes than teachers would have nothing to do.
    workers = min(workers, len(jobs))
    if workers <= 1:
        return [_report(_train(*job), i + 1, len(jobs), progress) for i, job in enumerate(jobs)]
    results: list[bytes | None] = [None] * len(jobs)
    counter = itertools.count(1)

    def note() -> None:
        """Count each teacher once, whether it came out or died: the calls are the same whatever happens."""
        if progress is not None:
            progress(next(counter), len(jobs))

    _train_apart(jobs, range(len(jobs)), results, workers, note)
    for i, result in enumerate(results):
        # Those that had not finished when a process died are tried once more, each in a process of its own.
        if result is None:
            _train_apart(jobs, [i], results, 1, None)
            note()
    return [result or b"" for result in results]


def can_train_apart(learner: Any) -> bool:
    """Return whether a process can be started, and be given the learner. Touches no data."""
    try:
        with (
            _one_thread(),
            quiet(),
            ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=_silence) as pool,
        ):
            return pool.submit(_can_fit, learner).result(timeout=120)
    except Exception:
        return False


def _silence() -> None:
    """Send all that this process writes to nowhere, what libraries in C print included."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)


def _can_fit(learner: Any) -> bool:
    return hasattr(learner, "fit")


def _train_apart(
    jobs: Sequence[Any], indices: Sequence[int], results: list[bytes | None], workers: int, progress: Any
) -> None:
    """Train teachers in other processes, a few at a time, and write their models into `results`; where a
    process dies, those that had not finished stay None."""
    with (
        _one_thread(),
        contextlib.suppress(BrokenProcessPool),
        ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_silence) as pool,
    ):
        pending: dict[Future[bytes], int] = {}
        for number, i in enumerate(indices):
            pending[pool.submit(_train, *jobs[i])] = i
            # No more than a few parts are held by the pool at once.
            if len(pending) >= 2 * workers or number + 1 == len(indices):
                _collect(pending, results, progress, all_of_them=number + 1 == len(indices))


def _collect(
    pending: dict[Future[bytes], int], results: list[bytes | None], progress: Any, *, all_of_them: bool
) -> None:
    """Collect results of finished teachers, of all of them with `all_of_them`."""
    while pending:
        finished, _ = wait(pending, return_when=FIRST_COMPLETED)
        for future in finished:
            i = pending.pop(future)
            if isinstance(future.exception(), BrokenProcessPool):
                continue
            results[i] = b"" if future.exception() is not None else future.result()
            if progress is not None:
                progress()
        if not all_of_them:
            return


def _report(result: bytes, number: int, total: int, progress: Progress | None) -> bytes:
    """Report progress, and pass the result on."""
    if progress is not None:
        progress(number, total)
    return result


def _train(learner: Any, x: Array, y: Ints, classes: int, size: int, seed: int) -> bytes:
    """Return one pickled model, or b"" where it failed, saw one class only, or is too large."""
    with quiet(), seeded(seed):
        try:
            if len(np.unique(y)) < 2:
                return b""
            model_bytes = pickle.dumps(fit_copy(learner, x, y), protocol=5)
            return model_bytes if len(model_bytes) <= size else b""
        except (Exception, SystemExit):
            return b""


def fit_copy(learner: Any, x: Array, y: Ints) -> Any:
    """Return a fresh copy of the learner, fitted."""
    teacher = copy.deepcopy(learner)
    result = teacher.fit(x, y)
    return teacher if result is None else result


def pack(models: Sequence[bytes], size: int) -> bytes:
    """Return all models as one blob whose length depends on their number and the public size alone."""
    return b"".join(len(m).to_bytes(_LENGTH, "little") + m + bytes(size - len(m)) for m in models)


def unpack(blob: bytes, teachers: int, size: int) -> list[bytes]:
    """Return the models in a blob."""
    width = _LENGTH + size
    slots = (blob[i * width : (i + 1) * width] for i in range(teachers))
    return [slot[_LENGTH : _LENGTH + int.from_bytes(slot[:_LENGTH], "little")] for slot in slots]


def votes(models: Sequence[bytes], x: Array, classes: int) -> Ints:
    """Return how many teachers vote for each class, for each row of x: [rows, classes].

    A teacher without a model, or whose answer is no class, votes for the class of its own number, modulo the
    number of classes: such votes favor no class.
    """
    counts = np.zeros((len(x), classes), np.int64)
    rows = np.arange(len(x))
    for number, model in enumerate(models):
        counts[rows, _ballot(model, x, classes, number % classes)] += 1
    return counts


def _ballot(model: bytes, x: Array, classes: int, default: int) -> Ints:
    """Return a teacher's vote for each row; the default where it has none."""
    blank = np.full(len(x), default, np.int64)
    if not model:
        return blank
    with quiet(), seeded(0):
        try:
            # Only what this process, or one with the ledger's key, has sealed: the vault has checked that.
            predictions = np.asarray(pickle.loads(model).predict(x.copy()))
            if predictions.shape != (len(x),):
                return blank
            numbers = predictions.astype(np.float64)
            valid = np.isin(numbers, np.arange(classes))
            return np.where(valid, np.where(valid, numbers, 0).astype(np.int64), blank)
        except (Exception, SystemExit):
            return blank


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress warnings and prints of a teacher: they may speak of the data."""
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the global generators for one teacher, and restore them afterwards: how much randomness one
    teacher uses must not reach the next."""
    import torch

    before = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    torch.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])  # noqa: NPY002
        torch.set_rng_state(before[2])


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Let processes that are started in this context use one thread each."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
