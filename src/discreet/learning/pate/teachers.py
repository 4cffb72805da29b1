"""Trains teachers of PATE: one model for each of many disjoint parts of the data, each trained separately,
pickled into one blob for the vault, and asked for its votes.

A teacher can fail: by an exception, examples of one class only, a model that is too large, or an answer that
is no class. This changes the votes of that teacher and nothing else: no other teacher, no message, no
progress. So one unit (a row, or a person with all rows) moves the votes of the teachers that it is dealt to,
usually one.
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
import torch
from numpy.typing import NDArray

from ... import sampling
from ..._errors import INTERRUPTIONS
from ...sampling import Entropy

Ints = NDArray[np.int64]
Array = NDArray[Any]
Progress = Callable[[int, int], None]
# The number of bytes before each model in a blob, which hold the model's length. Blobs are stored: it must
# not change.
_LENGTH_BYTES = 8


def deal(
    units: int, names: Sequence[Any] | None, teachers: int, entropy: Entropy, *, overlap: int = 1
) -> Ints:
    """Return the `overlap` distinct teachers of each of `units` units, one row for each unit: by a keyed hash
    of the unit's name, or by a fresh draw where units have no names (`names` is None).

    Guarantee: for two neighbors, the two random deals can be coupled such that every unit they share has the
               same teachers in both, and a unit that replaces another has the teachers of that other.
    Proof:     under a secret key, a keyed hash is a random function of names. Adding a name leaves the values
               of all others unchanged. For a name that replaces another, exchange the two names' values: the
               function has the same distribution. Independent draws for nameless units are coupled in the
               same way. Floyd's algorithm makes a uniform subset of `overlap` teachers from one uniform draw
               below each of teachers - overlap + 1, ..., teachers.
    Assumes:   BLAKE2b with a secret key is a pseudorandom function. 128 bits modulo the number of teachers
               are uniform up to 2^-100.
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
    """Return the keyed hash of a unit's name, a fresh one for each `position`, the index of one of the unit's
    teachers."""
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
    """Return one pickled model for each of `parts`, of at most `size` bytes; b"" where training failed.

    A part is the inputs and class numbers of one teacher, and every teacher has a seed of its own. With
    several `workers`, teachers are trained in other processes; where a process dies, only its own teacher
    fails. `progress` is called once for each teacher with the number of finished ones, never with which one
    it was: that would tell how long a certain teacher took.
    """
    jobs = [(learner, x, y, classes, size, seed) for (x, y), seed in zip(parts, seeds, strict=True)]
    # More processes than teachers would have nothing to do.
    workers = min(workers, len(jobs))
    if workers <= 1:
        return [_report(_train(*job), i + 1, len(jobs), progress) for i, job in enumerate(jobs)]
    results: list[bytes | None] = [None] * len(jobs)
    counter = itertools.count(1)

    def note() -> None:
        """Report one more teacher, whether its training succeeded or failed: the calls are always the
        same."""
        if progress is not None:
            progress(next(counter), len(jobs))

    _train_apart(jobs, range(len(jobs)), results, workers, note)
    for i, result in enumerate(results):
        # When a process dies, the pool drops all unfinished teachers. Each is trained again in a process of
        # its own, so that the death of one does not change the votes of the others.
        if result is None:
            _train_apart(jobs, [i], results, 1, None)
            note()
    return [result or b"" for result in results]


def can_train_apart(learner: Any) -> bool:
    """Return whether another process can be started and can unpickle the learner. Reads no data."""
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
    """Discard all output of this process, also what C libraries print: it may tell of the data."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)


def _can_fit(learner: Any) -> bool:
    return hasattr(learner, "fit")


def _train_apart(
    jobs: Sequence[Any], indices: Sequence[int], results: list[bytes | None], workers: int, progress: Any
) -> None:
    """Train the teachers with these `indices` in other processes, and write their models into `results`.
    Where a process dies, the results of teachers that had not finished stay None."""
    with (
        _one_thread(),
        contextlib.suppress(BrokenProcessPool),
        ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_silence) as pool,
    ):
        pending: dict[Future[bytes], int] = {}
        for number, i in enumerate(indices):
            pending[pool.submit(_train, *jobs[i])] = i
            # The pool holds the examples of at most 2 * workers teachers at once, to save memory.
            if len(pending) >= 2 * workers or number + 1 == len(indices):
                _collect(pending, results, progress, all_of_them=number + 1 == len(indices))


def _collect(
    pending: dict[Future[bytes], int], results: list[bytes | None], progress: Any, *, all_of_them: bool
) -> None:
    """Wait until some teachers have finished and collect their results; with `all_of_them`, wait for all."""
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
    """Return one pickled model, or b"" where training failed, there are examples of fewer than two classes,
    or the model is larger than `size`."""
    with quiet(), seeded(seed):
        try:
            if len(np.unique(y)) < 2:
                return b""
            model_bytes = pickle.dumps(fit_copy(learner, x, y), protocol=5)
            return model_bytes if len(model_bytes) <= size else b""
        except INTERRUPTIONS:
            raise
        except BaseException:
            return b""


def fit_copy(learner: Any, x: Array, y: Ints) -> Any:
    """Return a fresh copy of the learner, fitted; or what its `fit` returns, if that is not None."""
    teacher = copy.deepcopy(learner)
    result = teacher.fit(x, y)
    return teacher if result is None else result


def pack(models: Sequence[bytes], size: int) -> bytes:
    """Return all models as one blob, each with its length in front and zeros behind, so that the length of
    the blob depends on the number of teachers and the public size alone."""
    return b"".join(len(m).to_bytes(_LENGTH_BYTES, "little") + m + bytes(size - len(m)) for m in models)


def unpack(blob: bytes, teachers: int, size: int) -> list[bytes]:
    """Return the models of a blob that `pack` made."""
    models = []
    for i in range(teachers):
        start = i * (_LENGTH_BYTES + size) + _LENGTH_BYTES
        length = int.from_bytes(blob[start - _LENGTH_BYTES : start], "little")
        models.append(blob[start : start + length])
    return models


def votes(models: Sequence[bytes], x: Array, classes: int) -> Ints:
    """Return how many teachers vote for each class, for each row of x: an array (rows, classes).

    A teacher without a model, or whose answer is no class, votes for the class number (its own number) modulo
    `classes`, so that the votes of all such teachers are spread evenly over the classes.
    """
    counts = np.zeros((len(x), classes), np.int64)
    rows = np.arange(len(x))
    for number, model in enumerate(models):
        counts[rows, _ballot(model, x, classes, number % classes)] += 1
    return counts


def _ballot(model: bytes, x: Array, classes: int, default: int) -> Ints:
    """Return a teacher's vote for each row: `default` where there is no model, it fails, or it names no
    class."""
    defaults = np.full(len(x), default, np.int64)
    if not model:
        return defaults
    with quiet(), seeded(0):
        try:
            # Unpickling runs code. It is safe because the vault has checked that the blob was sealed by this
            # process, or by one with the ledger's key.
            predictions = np.asarray(pickle.loads(model).predict(x.copy()))
            if predictions.shape != (len(x),):
                return defaults
            numbers = predictions.astype(np.float64)
            valid = np.isin(numbers, np.arange(classes))
            # The inner `where` keeps NaN and the like from the conversion to integers.
            return np.where(valid, np.where(valid, numbers, 0).astype(np.int64), defaults)
        except INTERRUPTIONS:
            raise
        except BaseException:
            return defaults


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress the warnings and prints of a teacher: they may tell of the data."""
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the global generators for one teacher, and restore them afterwards: the randomness of one teacher
    must not depend on how much another has used."""
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    # `torch.manual_seed` also records the call stack for every kind of accelerator, which takes longer than a
    # small teacher does. Where the machine has no accelerator, it does nothing else but this.
    (torch if torch.accelerator.is_available() else torch.default_generator).manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])  # noqa: NPY002
        torch.set_rng_state(before[2])


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Let processes that are started in this context use one thread each: the environment is changed for them
    and restored afterwards."""
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
