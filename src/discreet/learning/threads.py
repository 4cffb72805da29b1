"""Work on a few examples at a time, shared out among as many threads as torch uses.

Torch's own threads meet after every operation, and whoever is early spins. Where a batch falls into parts that have nothing to do with each other it is
cheaper to let each thread take whole parts, with torch's operations on one thread each: operations release Python's lock, and who waits for a part sleeps.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from typing import Any

import torch

MOST = 8  # beyond, Python's lock would be the bottleneck
_SOFT = 1  # `omp_pause_soft` of OpenMP 5.0


class Workers:
    """Threads for the time of a training run, started when they are first needed. Whoever calls works too."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None

    @property
    def count(self) -> int:
        """How many share work. One, where torch has so many threads that it is better off with all of them on one thing."""
        threads = torch.get_num_threads()
        return threads if threads <= MOST else 1

    def each(self, work: Callable[[int], None], count: int, hands: int | None = None) -> None:
        """work(0), ..., work(count - 1), in any order and at the same time, by so many threads at most. No gradients are recorded in it."""
        places = itertools.count()

        def some() -> None:
            with torch.no_grad():
                while (place := next(places)) < count:
                    work(place)

        helpers = min(self.count if hands is None else hands, count) - 1
        if helpers <= 0:
            return some()
        self._pool = self._pool or ThreadPoolExecutor(MOST, "discreet")
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # new threads begin with this, and keep it
        try:
            _rest()
            others = [self._pool.submit(some) for _ in range(helpers)]
            try:
                some()
            finally:
                wait(others)
            for other in others:
                other.result()
        finally:
            torch.set_num_threads(threads)
        return None

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None


def _rest() -> None:
    """Let go of the threads of torch's own that this one has called up: they would spin for milliseconds yet, where others have work to do."""
    pause = _pause()
    if pause is not None:
        pause(_SOFT)


@cache
def _pause() -> Any:
    """`omp_pause_resource_all` of the OpenMP that torch is linked with; None where there is none, or an old one."""
    try:
        return ctypes.CDLL(torch._C.__file__).omp_pause_resource_all
    except (AttributeError, OSError, TypeError):
        return None
