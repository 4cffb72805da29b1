"""Codes of a column put together where few rows have them, by released counts alone.

A table of many columns carries noise in each of its cells, also in those that hardly any row is in. Fewer
codes are fewer cells. What is lost is how rows of one group depend on other columns; within a group they get
their codes back by the released shares.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .model import Floats

# For each code the number of its group, from 0 on; empty where every code stays alone.
Groups = tuple[int, ...]


def grouped(values: Sequence[float] | Floats, least: float, *, ordered: bool, missing: bool) -> Groups:
    """Return groups of codes with about `least` rows or more, by their noisy counts.

    Neighbors are joined where codes are `ordered`, and codes that have enough rows by themselves stay alone;
    otherwise all rare codes become one group. With `missing`, the last code (NULL) has no neighbors.

    >>> grouped([5, 2, 3, 90, 1, 1, 8], 9, ordered=True, missing=False)
    (0, 0, 0, 1, 2, 2, 2)
    >>> grouped([5, 2, 3, 90], 9, ordered=False, missing=False)
    (1, 1, 1, 0)
    """
    counts = np.asarray(values, dtype=np.float64)
    parts = _neighbors(counts, least, missing) if ordered else _rare_together(counts, least)
    if len(parts) == len(counts):
        return ()
    out = np.zeros(len(counts), np.int64)
    for number, codes in enumerate(parts):
        out[codes] = number
    return tuple(int(g) for g in out)


def _rare_together(counts: Floats, least: float) -> list[list[int]]:
    rare = [i for i, count in enumerate(counts) if count < least]
    alone = [[i] for i, count in enumerate(counts) if count >= least]
    return [*alone, rare] if rare else alone


def _neighbors(counts: Floats, least: float, missing: bool) -> list[list[int]]:
    parts: list[list[int]] = []
    sums: list[float] = []
    open_sum = least
    for i, count in enumerate(counts[: len(counts) - missing]):
        # A new group begins after a full one, and at a code that needs no others.
        if open_sum >= least or count >= least:
            parts.append([])
            sums.append(0.0)
        parts[-1].append(i)
        sums[-1] += float(count)
        open_sum = sums[-1]
    parts, sums = _joined(parts, sums, least)
    if missing:
        last = len(counts) - 1
        if counts[-1] >= least or not parts:
            parts.append([last])
        else:
            parts[int(np.argmin(sums))].append(last)
    return parts


def _joined(parts: list[list[int]], sums: list[float], least: float) -> tuple[list[list[int]], list[float]]:
    """Join a group that stayed too small to the group beside it, unless that is a single code with enough
    rows of its own: the value of such a code (0 for a gain, 40 for hours) is worth keeping."""
    out: list[list[int]] = []
    out_sums: list[float] = []
    for part, total in zip(parts, sums, strict=True):
        few = total < least or (out_sums and out_sums[-1] < least)
        atoms = (len(part) == 1 and total >= least) or (out and len(out[-1]) == 1 and out_sums[-1] >= least)
        if out and few and not atoms:
            out[-1].extend(part)
            out_sums[-1] += total
        else:
            out.append(list(part))
            out_sums.append(total)
    return out, out_sums


def sizes_of(groups: Sequence[Groups], sizes: Sequence[int]) -> tuple[int, ...]:
    """Return the number of codes of each column after some were put together."""
    if not groups:
        return tuple(sizes)
    return tuple(max(g) + 1 if g else n for g, n in zip(groups, sizes, strict=True))


def arrays(groups: Sequence[Groups], columns: int) -> list[NDArray[np.int64] | None]:
    """Return the groups as arrays, None for columns whose codes all stay alone."""
    return [np.array(g, dtype=np.int64) if g else None for g in groups] or [None] * columns
