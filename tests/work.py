"""Measures the work that code does in units that do not depend on the machine or its load: calls and bytes.

Seconds belong to `benchmarks`. A bound on calls fails where somebody loops over rows in Python instead of in
numpy, a bound on bytes where a number with millions of digits is written out.
"""

from __future__ import annotations

import sys
import time
import tracemalloc
from collections.abc import Callable
from types import FrameType
from typing import Any


def calls(work: Callable[[], Any]) -> int:
    """Return how many functions, of Python and of C, `work` calls in this thread."""
    count = 0

    def note(_frame: FrameType, event: str, _arg: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


def peak_bytes(work: Callable[[], Any]) -> int:
    """Return how many bytes Python's objects take at most, while `work` runs, beyond those before it."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def growth(work: Callable[[int], Any], small: int, large: int) -> float:
    """Return how many times the CPU time of `work(small)` is that of `work(large)`: the least of three each,
    taken in turns, so that the load of the machine is the same for both."""
    seconds: dict[int, list[float]] = {small: [], large: []}
    for _ in range(3):
        for size, taken in seconds.items():
            start = time.process_time()
            work(size)
            taken.append(time.process_time() - start)
    return min(seconds[large]) / min(seconds[small])
