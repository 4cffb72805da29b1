"""Keeps the memory that a training step frees for the next step, with `Performance(keep_memory=True)`.

Every step allocates the same few hundred megabytes. By default the C library returns large blocks to the
system as soon as they are freed, and each page of the next step's blocks costs a page fault and is zeroed
again. A setting of glibc prevents that; with other C libraries nothing happens. It is a setting of the whole
process, which also concerns the user's other code, so that it is off by default.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of glibc's malloc.h, parameters of `mallopt`.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
# Blocks from this size on are returned to the system when freed. The largest value that glibc accepts, half
# of the maximum size of a heap.
_LARGEST_MMAP = 1 << 25
# Free memory at the top of the heap beyond this is returned to the system: the largest int, so that none is.
_NEVER_TRIM = (1 << 31) - 1
# The trim threshold after the last context of `kept`: twice _LARGEST_MMAP, the value that glibc itself sets
# in a process that has freed a block of that size.
_USUAL_TRIM = 1 << 26

# `_inside` counts the contexts of `kept` that are open, in all threads.
_lock, _inside = threading.Lock(), 0


def _glibc(name: str) -> Any:
    """Return a function of the C library by its name; None where the library does not have it (is not
    glibc)."""
    try:
        return getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError, TypeError):
        return None


@contextmanager
def kept(enabled: bool) -> Iterator[None]:
    """Keep freed memory with the process within this context, if `enabled`.

    Contexts of several threads may overlap: when the last of them ends, memory is returned to the system
    again. The threshold for large blocks stays at its largest value, as glibc cannot be asked for the old
    one.
    """
    global _inside
    mallopt = _glibc("mallopt") if enabled else None
    if mallopt is None:
        yield
        return
    with _lock:
        _inside += 1
        if _inside == 1:
            mallopt(_MMAP_THRESHOLD, _LARGEST_MMAP)
            mallopt(_TRIM_THRESHOLD, _NEVER_TRIM)
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:
                mallopt(_TRIM_THRESHOLD, _USUAL_TRIM)


def give_back() -> None:
    """Return freed memory to the system now; no setting is changed.

    For the end of training: later work allocates blocks of other sizes, for which this memory is of little
    use.
    """
    trim = _glibc("malloc_trim")
    if trim is not None:
        trim(0)
