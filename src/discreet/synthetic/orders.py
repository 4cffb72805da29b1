"""Constraints taken together are a partial order of columns; contradictions are refused before any charge.

All of it speaks of public facts (constraints, bounds) or of made-up rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .._errors import InvalidInput
from .._public import Public
from .domain import Domain, comparable_ends, is_whole

if TYPE_CHECKING:
    from ..tables.cells import Coding
    from .constraints import Constraint

Floats = NDArray[np.float64]


class ColumnOrder:
    """The columns that constraints speak of, lower ones first, and what separates each pair at least."""

    def __init__(self, constraints: Sequence[Constraint]) -> None:
        # (low, high) -> whether strictly
        self.edges: dict[tuple[str, str], bool] = {}
        for one in constraints:
            low, high = (one.left, one.right) if one.comparison[0] == "<" else (one.right, one.left)
            strict = "=" not in one.comparison
            self.edges[low, high] = self.edges.get((low, high), False) or strict
        graph: dict[str, set[str]] = {}
        for low, high in self.edges:
            graph.setdefault(high, set()).add(low)
        try:
            self.columns = tuple(TopologicalSorter(graph).static_order())
        except CycleError as error:
            names = ", ".join(sorted(set(error.args[1])))
            strict = any(s for (a, b), s in self.edges.items() if a in error.args[1] and b in error.args[1])
            why = "contradict each other" if strict else "say that these are always equal"
            raise InvalidInput(
                f"the constraints on {names} {why}. Nothing was charged. Leave out "
                f"{'one of them' if strict else 'all but one of these columns'}."
            ) from None

    def least(self, low: Mapping[str, float], whole: Mapping[str, bool]) -> dict[str, tuple[float, bool]]:
        """Return the least value that each column can have, and whether it must lie strictly above that."""
        out: dict[str, tuple[float, bool]] = {}
        for name in self.columns:
            value, above = low[name], False
            for (below, over), strict in self.edges.items():
                if over != name:
                    continue
                floor, opened = out[below]
                opened = opened or strict
                if whole[name]:
                    floor, opened = (math.floor(floor) + 1 if opened else math.ceil(floor)), False
                value, above = max((value, above), (floor, opened))
            out[name] = (value, above)
        return out


def refuse_contradictions(public: Public, domain: Domain, constraints: Sequence[Constraint]) -> None:
    """Refuse constraints that no row without NULLs can satisfy, and those that make columns equal.

    Guarantee: where it returns, some row of the domain's values satisfies all constraints.
    Proof:     without cycles the least values in the order of columns satisfy all, if they are within bounds.
    """
    if not constraints:
        return
    order = ColumnOrder(constraints)
    codings = {c.column: c for c in domain.codings(public) if c.column in order.columns}
    ends = {name: comparable_ends(coding) for name, coding in codings.items()}
    low = {name: float(first[0]) for name, (first, _) in ends.items()}
    least = order.least(low, {name: is_whole(coding) for name, coding in codings.items()})
    for name, (value, above) in least.items():
        highest = float(ends[name][1][-1])
        if value > highest or (above and value == highest):
            text = ", ".join(f"'{one}'" for one in constraints)
            raise InvalidInput(
                f"no row can satisfy the constraints {text}: column {name!r} has no value that is large "
                f"enough. Nothing was charged. Leave one out, or widen the declared bounds."
            )


def draw_in_order(
    order: ColumnOrder,
    codings: Mapping[str, Coding],
    codes: Mapping[str, NDArray[np.int64]],
    random: np.random.Generator,
) -> tuple[dict[str, Floats], NDArray[np.bool_]]:
    """Draw numbers within bins, lower columns first, so that the order holds wherever the bins allow it.

    They are on one scale (`comparable_ends`). Codes of missing values bind nobody, and give NaN. The second
    value says in which rows the bins allow it.
    """
    absent = {n: (c == codings[n].size - 1) & codings[n].missing for n, c in codes.items()}
    whole = {name: is_whole(codings[name]) for name in codes}
    low, high = {}, {}
    for name, column in codes.items():
        first, last = comparable_ends(codings[name])
        place = np.where(absent[name], 0, column)
        low[name] = np.where(absent[name], -np.inf, first[place])
        high[name] = np.where(absent[name], np.inf, last[place])
    for name in reversed(order.columns):
        for (below, above), strict in order.edges.items():
            if below == name:
                high[name] = np.minimum(high[name], high[above] - (strict and whole[name] and whole[above]))
    numbers: dict[str, Floats] = {}
    possible = np.ones(len(low[order.columns[0]]), bool)
    for name in order.columns:
        least = low[name]
        for (below, above), strict in order.edges.items():
            if above == name:
                least = np.fmax(least, numbers[below] + (strict and whole[name] and whole[below]))
        bottom, top = np.where(absent[name], 0.0, least), np.where(absent[name], 0.0, high[name])
        if whole[name]:
            bottom, top = np.ceil(bottom), np.floor(top)
            drawn = bottom + np.floor(random.random(len(bottom)) * np.maximum(1, top - bottom + 1))
        else:
            drawn = bottom + np.maximum(0, top - bottom) * random.random(len(bottom))
        possible &= bottom <= top
        numbers[name] = np.where(absent[name], np.nan, drawn)
    return numbers, possible
