"""Cases of the synthetic package: every method of synthesis, and the paid comparison of a copy with its table."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from discreet import ADD_REMOVE, REPLACE, ZERO_OUT, Categories, Neighbors, Public
from discreet._public import Unit
from discreet.sampling import SeededEntropy
from discreet.synthetic import (
    AIM,
    MST,
    MWEM,
    CopyDistance,
    Domain,
    Independent,
)
from discreet.tables import Memory

from .case import Case

ROWS = [("f", "lo"), ("f", "lo"), ("m", "hi"), ("f", "lo"), ("m", None)]
SCHEMA = {"sex": Categories(["f", "m"]), "income": Categories(["hi", "lo"])}


def public_of(neighbors: Neighbors, unit: Unit | None = None) -> Public:
    size = None if neighbors is ADD_REMOVE else len(ROWS)
    return Public(schema=SCHEMA, neighbors=neighbors, size=size, unit=unit or Unit())


def memory(rows: list[Any], public: Public, ids: list[int] | None = None) -> Memory:
    columns: dict[str, Any] = {"sex": [r[0] for r in rows], "income": [r[1] for r in rows]}
    return Memory(columns | ({} if ids is None else {"id": ids}), public)


def women(release: Any) -> int:
    """The sum over all tables of the noisy counts of women, in classes: what one woman more moves most."""
    sizes = release.value.sizes
    total = 0.0
    for table in release.value.tables:
        if 0 in table.clique and len(table.clique) == 1 and len(table.values) == 3:
            total += table.values[0]
        elif table.clique == (0, 1) and sizes[0] * sizes[1] == len(table.values):
            total += sum(table.values[: sizes[1]])
    return int(total > 5)


def case(method: type, neighbors: Neighbors, other: list[Any], **options: Any) -> Case:
    public = public_of(neighbors)
    mechanism = method(public=public, domain=Domain.of(public), rho=Fraction(1, 8), **options)
    return Case(
        name=f"{method.__name__}, {neighbors}",
        mechanism=mechanism,
        source=memory(ROWS, public),
        neighbor=memory(other, public),
        outcome=women,
    )


def of_people() -> Case:
    """A unit with a hundred rows, of which two count."""
    public = public_of(ADD_REMOVE, Unit("id", rows=2))
    rows = ROWS + [("f", "lo")] * 100
    ids = [*range(len(ROWS)), *[99] * 100]
    mechanism = MST(public=public, domain=Domain.of(public), rho=Fraction(1, 8), rows_per_unit=2)
    return Case(
        name="MST, a unit with a hundred rows",
        mechanism=mechanism,
        source=memory(rows, public, ids),
        neighbor=memory(ROWS, public, list(range(len(ROWS)))),
        outcome=women,
    )


def distance() -> Case:
    public = public_of(ADD_REMOVE)
    method = Independent(public=public, domain=Domain.of(public), rho=Fraction(1))
    fitted = method(memory(ROWS, public), entropy=SeededEntropy(5)).value
    mechanism = CopyDistance(public=public, fitted=fitted, epsilon=1, rows=5, seed=1)
    return Case(
        name="distance of a copy",
        mechanism=mechanism,
        source=memory(ROWS, public),
        neighbor=memory(ROWS[1:], public),
        outcome=lambda r: r.value > 0.5,  # type: ignore[union-attr]
    )


CASES = [
    case(Independent, ADD_REMOVE, ROWS[1:]),
    case(Independent, REPLACE, [("m", "hi"), *ROWS[1:]]),
    case(Independent, ZERO_OUT, [(None, None), *ROWS[1:]]),
    case(MST, ADD_REMOVE, ROWS[1:]),
    case(MST, REPLACE, [("m", "hi"), *ROWS[1:]]),
    case(AIM, ADD_REMOVE, ROWS[1:], degree=2),
    case(MWEM, ADD_REMOVE, ROWS[1:], rounds=2),
    of_people(),
    distance(),
]
