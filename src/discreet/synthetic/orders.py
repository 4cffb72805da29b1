"""Computes the partial order of columns that all constraints together define; contradictions are refused
before anything is charged.

Only public facts (constraints, bounds) and synthetic rows are read here.
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
from .domain import Domain, comparable_bin_ends, is_integral
from .model import Floats

if TYPE_CHECKING:
    from ..tables.cells import Coding
    from .constraints import Constraint


class ColumnOrder:
    """Sorts the columns of constraints such that in each constraint the lower column comes first (`columns`).

    `edges` has, for each pair (lower column, higher column), whether its comparison is strict.
    """

    def __init__(self, constraints: Sequence[Constraint]) -> None:
        self.edges: dict[tuple[str, str], bool] = {}
        for constraint in constraints:
            low, high = constraint.left, constraint.right
            if constraint.comparison[0] == ">":
                low, high = high, low
            strict = "=" not in constraint.comparison
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

    def least_values(
        self, lower: Mapping[str, float], integral: Mapping[str, bool]
    ) -> dict[str, tuple[float, bool]]:
        """Return, for each column, the infimum of the values that it can have under all constraints, and
        whether the infimum itself is excluded.

        `lower` has the lower bound of each column, and `integral` whether its values are whole numbers.
        """
        infima: dict[str, tuple[float, bool]] = {}
        for name in self.columns:
            infimum, excluded = lower[name], False
            for (low, high), strict in self.edges.items():
                if high != name:
                    continue
                bound, open_bound = infima[low]
                open_bound = open_bound or strict
                if integral[name]:
                    bound, open_bound = (math.floor(bound) + 1 if open_bound else math.ceil(bound)), False
                # Of two equal infima the excluded one is taken, because True > False.
                infimum, excluded = max((infimum, excluded), (bound, open_bound))
            infima[name] = (infimum, excluded)
        return infima


def refuse_contradictions(public: Public, domain: Domain, constraints: Sequence[Constraint]) -> None:
    """Refuse constraints that no row without NULLs can satisfy, and those that make columns equal.

    Guarantee: if nothing is raised, some row with values in the declared bounds satisfies all constraints.
    Proof:     without cycles, giving each column in order its least value (or one just above an excluded
               infimum) satisfies all constraints, and these values are within the bounds.
    """
    if not constraints:
        return
    order = ColumnOrder(constraints)
    codings = {c.column: c for c in domain.codings(public) if c.column in order.columns}
    ends = {name: comparable_bin_ends(coding) for name, coding in codings.items()}
    lower = {name: float(first[0]) for name, (first, _) in ends.items()}
    integral = {name: is_integral(coding) for name, coding in codings.items()}
    for name, (infimum, excluded) in order.least_values(lower, integral).items():
        upper = float(ends[name][1][-1])
        if infimum > upper or (excluded and infimum == upper):
            text = ", ".join(f"'{constraint}'" for constraint in constraints)
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
    """Draw numbers within bins, lower columns first, so that all constraints hold where the bins allow it.

    Return the numbers by column, on the scale of `comparable_bin_ends`, and a mask of the rows whose bins
    allow it. A row in which b of a chain a <= b <= c is missing is treated as if a <= c were required, so
    the mask may leave it out although its bins allow it.
    Missing values satisfy every constraint, and are NaN. Unless both columns are whole numbers, a strict
    comparison is drawn as one that is not strict: ties are left to the caller (`constraints.repair_rows`).
    """
    absent = {n: (c == codings[n].size - 1) & codings[n].missing for n, c in codes.items()}
    lower, upper = _ranges_of_bins(codings, codes, absent)
    # The least difference between two columns: 1 for a strict comparison of whole numbers, otherwise 0.
    gaps = {
        (low, high): int(strict and is_integral(codings[low]) and is_integral(codings[high]))
        for (low, high), strict in order.edges.items()
    }
    # No number may be so large that nothing is left for the higher columns.
    for name in reversed(order.columns):
        for (low, high), gap in gaps.items():
            if low == name:
                upper[name] = np.minimum(upper[name], upper[high] - gap)
    numbers: dict[str, Floats] = {}
    possible = np.ones(len(lower[order.columns[0]]), bool)
    for name in order.columns:
        least = lower[name]
        for (low, high), gap in gaps.items():
            if high == name:
                # fmax ignores NaN: a missing value sets no limit.
                least = np.fmax(least, numbers[low] + gap)
        least, largest = np.where(absent[name], 0.0, least), np.where(absent[name], 0.0, upper[name])
        if is_integral(codings[name]):
            least, largest = np.ceil(least), np.floor(largest)
            values = least + np.floor(random.random(len(least)) * np.maximum(1, largest - least + 1))
        else:
            values = least + np.maximum(0, largest - least) * random.random(len(least))
        possible &= least <= largest
        numbers[name] = np.where(absent[name], np.nan, values)
    return numbers, possible


def _ranges_of_bins(
    codings: Mapping[str, Coding],
    codes: Mapping[str, NDArray[np.int64]],
    absent: Mapping[str, NDArray[np.bool_]],
) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """Return, by column, the least and the largest number of the bin of each row: -inf and inf where the
    value is missing."""
    lower, upper = {}, {}
    for name, column in codes.items():
        first, last = comparable_bin_ends(codings[name])
        bins = np.where(absent[name], 0, column)
        lower[name] = np.where(absent[name], -np.inf, first[bins])
        upper[name] = np.where(absent[name], np.inf, last[bins])
    return lower, upper
