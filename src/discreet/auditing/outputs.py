"""Any output as numbers: what an attack can look at.

A release, a number, an array, a dictionary, a tuple of answers until a halt: each becomes a row of atoms. Numbers go into columns;
everything together is also a label, for outputs with few values.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from fractions import Fraction
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _require
from ..mechanisms.protocols import Release

Floats = NDArray[np.float64]


def atoms(output: Any) -> list[Any]:
    """The output taken apart, in a fixed order.

    >>> atoms({"b": (1, None), "a": [2.5, "x"]})
    [2.5, 'x', 1, None]
    """
    if isinstance(output, Release):
        return atoms(output.value)
    if isinstance(output, np.ndarray):
        return [atom for item in output.ravel().tolist() for atom in atoms(item)]
    if isinstance(output, Mapping):
        return [atom for key in sorted(output, key=str) for atom in atoms(output[key])]
    if isinstance(output, Sequence) and not isinstance(output, str | bytes):
        return [atom for item in output for atom in atoms(item)]
    if is_dataclass(output) and not isinstance(output, type):
        return [atom for field in fields(output) for atom in atoms(getattr(output, field.name))]
    if isinstance(output, np.generic):
        return [output.item()]
    return [output if isinstance(output, Hashable) else repr(output)]


@dataclass(frozen=True, eq=False)
class Outputs:
    """Many runs: `numbers` has a row a run, NaN where there is no number; `labels` the whole output of each."""

    numbers: Floats
    labels: list[Hashable]

    @classmethod
    def of(cls, outputs: Sequence[Any], width: int | None = None) -> Outputs:
        """`width` fixes the number of columns; the first column says how many atoms there were."""
        rows = [atoms(output) for output in outputs]
        width = max((len(row) for row in rows), default=0) if width is None else width
        numbers = np.full((len(rows), width + 1), np.nan)
        for i, row in enumerate(rows):
            numbers[i, 0] = len(row)
            for j, atom in enumerate(row[:width]):
                numbers[i, j + 1] = number(atom)
        return cls(numbers, [tuple(row) for row in rows])

    @property
    def width(self) -> int:
        return int(self.numbers.shape[1]) - 1

    def part(self, start: int, stop: int) -> Outputs:
        return Outputs(self.numbers[start:stop], self.labels[start:stop])

    def __len__(self) -> int:
        return len(self.labels)


def number(atom: Any) -> float:
    """A float where there is a number (huge ones as infinite), NaN elsewhere."""
    if isinstance(atom, Real | Fraction):
        return _require.float_or_inf(atom)
    return math.nan
