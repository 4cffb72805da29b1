"""Groups rare codes, by released counts alone.

A code is a number from 0 on that stands for a category or a bin of a column (`domain`). A table by several
columns has noise in each of its cells, also in cells with hardly any row; with fewer codes it has fewer
cells. What is lost is how codes of one group differ in their dependence on other columns. In the copy, a row
of a group gets one of the group's codes, with probabilities from the released one-way counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .model import Floats

# For each code of a column the number of its group, from 0 on; empty where every code is its own group.
Groups = tuple[int, ...]


def group_codes(counts: Sequence[float] | Floats, min_rows: float, *, ordered: bool, missing: bool) -> Groups:
    """Return groups of codes that have, where possible, about `min_rows` rows or more by their noisy counts.

    Where codes are `ordered`, adjacent ones are joined, and codes that have enough rows by themselves stay
    alone; otherwise all rare codes become one group. With `missing` (used for ordered codes only), the last
    code is NULL, which is adjacent to no other: if it is rare, it joins the group with the fewest rows, even
    if that is a single frequent code.

    >>> group_codes([5, 2, 3, 90, 1, 1, 8], 9, ordered=True, missing=False)
    (0, 0, 0, 1, 2, 2, 2)
    >>> group_codes([5, 2, 3, 90], 9, ordered=False, missing=False)
    (1, 1, 1, 0)
    """
    noisy = np.asarray(counts, dtype=np.float64)
    members = _group_neighbors(noisy, min_rows, missing) if ordered else _group_rare(noisy, min_rows)
    if len(members) == len(noisy):
        return ()
    groups = np.zeros(len(noisy), np.int64)
    for number, codes in enumerate(members):
        groups[codes] = number
    return tuple(int(number) for number in groups)


def _group_rare(counts: Floats, min_rows: float) -> list[list[int]]:
    """Return one group for each frequent code, and one for all others."""
    rare = [code for code, count in enumerate(counts) if count < min_rows]
    frequent = [[code] for code, count in enumerate(counts) if count >= min_rows]
    return [*frequent, rare] if rare else frequent


@dataclass(slots=True)
class _CodeRange:
    """Holds a range of adjacent codes, and the sum of their noisy counts."""

    codes: list[int]
    rows: float = 0.0

    def is_frequent_code(self, min_rows: float) -> bool:
        return len(self.codes) == 1 and self.rows >= min_rows


def _group_neighbors(counts: Floats, min_rows: float, missing: bool) -> list[list[int]]:
    """Return ranges of adjacent codes that have, where possible, enough rows together, and the code of NULL
    in one of them or alone."""
    ranges: list[_CodeRange] = []
    # As a number, `missing` is 1 or 0: the last code is left out if it is that of NULL.
    for code, count in enumerate(counts[: len(counts) - missing]):
        # A new range begins after one with enough rows, and at a code that has enough rows by itself.
        if not ranges or ranges[-1].rows >= min_rows or count >= min_rows:
            ranges.append(_CodeRange([]))
        ranges[-1].codes.append(code)
        ranges[-1].rows += float(count)
    ranges = _join_small(ranges, min_rows)
    members = [code_range.codes for code_range in ranges]
    if missing:
        null = len(counts) - 1
        if counts[-1] >= min_rows or not ranges:
            members.append([null])
        else:
            members[int(np.argmin([code_range.rows for code_range in ranges]))].append(null)
    return members


def _join_small(ranges: Sequence[_CodeRange], min_rows: float) -> list[_CodeRange]:
    """Join two adjacent ranges if one of them has too few rows, unless one is a single frequent code: such a
    code (a capital gain of 0, 40 hours per week) is worth keeping apart."""
    joined: list[_CodeRange] = []
    for code_range in ranges:
        pair = [*joined[-1:], code_range]
        small = any(member.rows < min_rows for member in pair)
        if joined and small and not any(member.is_frequent_code(min_rows) for member in pair):
            joined[-1].codes.extend(code_range.codes)
            joined[-1].rows += code_range.rows
        else:
            joined.append(code_range)
    return joined


def grouped_sizes(groups: Sequence[Groups], sizes: Sequence[int]) -> tuple[int, ...]:
    """Return the number of codes of each column after grouping."""
    if not groups:
        return tuple(sizes)
    return tuple(max(group) + 1 if group else size for group, size in zip(groups, sizes, strict=True))


def group_arrays(groups: Sequence[Groups], columns: int) -> list[NDArray[np.int64] | None]:
    """Return the groups as arrays, None for columns whose codes all stay alone."""
    return [np.array(g, dtype=np.int64) if g else None for g in groups] or [None] * columns
