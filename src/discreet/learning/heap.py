"""Memory that a training step gives back is kept for the next one, while a model is being trained: only where
that is asked for.

It is a setting of the host's process, `Performance(keep_memory=True)`, and off otherwise. Every step
asks for the same few hundred megabytes. By default the C library returns large blocks to the system as soon
as they are free, and the next step faults each page in again, zeroed. Where the library is glibc it can be
told not to; elsewhere nothing happens.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# Parameters of `mallopt`, as glibc's malloc.h numbers them.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
# The largest threshold that glibc accepts: half of a heap.
_LARGEST_MMAP = 1 << 25
# Free memory at the top of the heap that is never given back: the largest that an int holds.
_NEVER_TRIM = (1 << 31) - 1
# The threshold afterwards: where glibc's own adjustment ends up in any process that once freed a large block.
_USUAL_TRIM = 1 << 26

_lock, _inside = threading.Lock(), 0


def _glibc(name: str) -> Any:
    """Return a function of glibc; None where the C library is another."""
    try:
        return getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError, TypeError):
        return None


@contextmanager
def kept(asked: bool) -> Iterator[None]:
    """Keep freed memory with the process within this context, where that was asked for.

    It is the allocator of the process: contexts may overlap, and the last one out resets it.
    """
    global _inside
    mallopt = _glibc("mallopt") if asked else None
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
    """Return freed memory to the system now; no setting is changed: after work that asks for other sizes than
    what comes next, it would lie about in pieces."""
    trim = _glibc("malloc_trim")
    if trim is not None:
        trim(0)
