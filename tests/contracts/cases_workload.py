"""Cases for workloads answered through a strategy: Laplace and Gaussian noise, dense, product and marginal
strategies, all relations."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from discreet._public import ADD_REMOVE, REPLACE, ZERO_OUT, Bounds, Categories, Neighbors, Public
from discreet.mechanisms import matrix
from discreet.mechanisms.matrix.integer import on_grid
from discreet.tables import Memory

from .case import Case

SIZE = 6
KINDS = {
    "age": Bounds(0, 8, nullable=False),
    "city": Categories(["bern", "rome"]),
    "sex": Categories(["f", "m"]),
}
AGES, CITIES, SEXES = (
    [8, 0, 3, 5, 1, 2],
    ["bern", "rome", "bern", "rome", "rome", "bern"],
    ["f", "m", "f", "m", "f", "m"],
)
BY_AGE = matrix.Cells.of(matrix.Attribute(column="age", edges=(0, 2, 4, 6, 8)))
BY_BOTH = matrix.Cells.of("city", "sex")


def pair(neighbors: Neighbors) -> tuple[Public, Memory, Memory]:
    public = Public(schema=KINDS, neighbors=neighbors, size=None if neighbors is ADD_REMOVE else SIZE)

    def table(first: tuple[Any, Any, Any] | None) -> Memory:
        rest = (AGES[1:], CITIES[1:], SEXES[1:])
        columns = rest if first is None else tuple([f, *r] for f, r in zip(first, rest, strict=True))
        return Memory(dict(zip(("age", "city", "sex"), columns, strict=True)), public)

    other = {ADD_REMOVE: None, REPLACE: (0, "rome", "m"), ZERO_OUT: (None, None, None)}[neighbors]
    return public, table((8, "bern", "f")), table(other)


def case(
    name: str, workload: matrix.Workload, cells: matrix.Cells, neighbors: Neighbors = ADD_REMOVE, **price: Any
) -> Case:
    claim, strategy = price.pop("claim", None), price.pop("strategy", None)
    public, source, neighbor = pair(neighbors)
    mechanism = matrix.answer(public, cells, workload, strategy=strategy, **price)
    # the direction in which the exact measurements differ: no function of the measurements tells the two
    # tables apart better
    grid = on_grid(mechanism.strategy, mechanism.norm)
    here, there = (np.asarray(grid.measure(cells.counts(s)), dtype=float) for s in (source, neighbor))
    direction, middle = here - there, (here + there) / 2
    if mechanism.norm == "l1":
        direction = np.sign(direction)

    def outcome(release: Any) -> bool:
        return bool((np.asarray(release.value.measured, dtype=float) - middle) @ direction >= 0)

    return Case(
        name=name,
        mechanism=mechanism,
        source=source,
        neighbor=neighbor,
        outcome=outcome,
        claim=claim,
        runs=400,
    )


FOUR = matrix.explicit([[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]], over=(2, 2))
PAIRS = matrix.marginals([2, 2], [(0,), (1,), (0, 1)])

CASES = [
    case("workload, four counts", FOUR, BY_BOTH, epsilon=1),
    *(case(f"workload, prefix, {n}", matrix.prefix(4), BY_AGE, n, epsilon=1) for n in (REPLACE, ZERO_OUT)),
    case("workload, tree", matrix.prefix(4), BY_AGE, epsilon=1, strategy=matrix.tree(4, norm="l1")),
    case("workload, ranges, gaussian", matrix.all_ranges(4), BY_AGE, epsilon=1, delta=0.05, claim=(1, 0.05)),
    case("workload, prefix, zCDP, replace", matrix.prefix(4), BY_AGE, REPLACE, rho=Fraction(1, 2)),
    case("workload, marginals", matrix.marginals([2, 2], ways=1), BY_BOTH, epsilon=1),
    case("workload, residuals", PAIRS, BY_BOTH, rho=Fraction(1, 2)),
    case(
        "workload, product", matrix.product(matrix.prefix(2), matrix.prefix(2)), BY_BOTH, rho=Fraction(1, 2)
    ),
]
