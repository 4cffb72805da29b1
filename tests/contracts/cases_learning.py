"""Cases of the learning package: normalization that is paid for. (Training itself is audited by canaries.)"""

from __future__ import annotations

from typing import Any

import numpy as np

from discreet import ADD_REMOVE, REPLACE, ZERO_OUT, Bounds, Neighbors, Public
from discreet.learning import Examples
from discreet.learning.features import PrivateWhitening
from discreet.tables import Memory
from discreet.tabular import PrivateScaler

from .case import Case

ROWS = [(10.0, 1.0), (0.0, 0.0), (5.0, 0.5), (2.0, None), *[(6.0, 0.6), (3.0, 0.3)] * 4]


def memory(rows: list[Any], public: Public) -> Memory:
    return Memory({"x": [r[0] for r in rows], "y": [r[1] for r in rows]}, public)


def case(neighbors: Neighbors, other: list[Any], columns: tuple[str, ...], *, nullable: bool = True) -> Case:
    schema = {"x": Bounds(0, 10, nullable=nullable), "y": Bounds(0, 1, nullable=nullable)}
    public = Public(schema=schema, neighbors=neighbors, size=None if neighbors is ADD_REMOVE else len(ROWS))
    return Case(
        name=f"scaler, {neighbors}, {'' if nullable else 'not '}nullable",
        mechanism=PrivateScaler(public=public, columns=columns, rho=0.5, cells=16),
        source=memory(ROWS, public),
        neighbor=memory(other, public),
        outcome=lambda r: (r.value.means[0] > 4, r.value.deviations[0] > 3),  # type: ignore[union-attr]
    )


def whitening(neighbors: Neighbors, other: list[float]) -> Case:
    """One feature, of which the released map is a falling function of the noisy second moment."""
    public = Public(neighbors=neighbors, size=2)

    def rows(values: list[float]) -> Any:
        return Examples(np.array(values, np.float32)[:, None], np.zeros(len(values), np.int64), public)

    return Case(
        name=f"whitening, {neighbors}",
        mechanism=PrivateWhitening(public=public, width=1, rho=0.1),
        source=rows([1.0, 0.5]),
        neighbor=rows(other),
        outcome=lambda r: float(r.value.matrix[0, 0]) < 1.6,  # type: ignore[union-attr]
        runs=400,
    )


CASES = [
    whitening(ADD_REMOVE, [0.5]),
    whitening(REPLACE, [0.0, 0.5]),
    whitening(ZERO_OUT, [0.0, 0.5]),
    case(ADD_REMOVE, ROWS[1:], ("x", "y")),
    case(REPLACE, [(0.0, 0.0), *ROWS[1:]], ("x",), nullable=False),
    case(ZERO_OUT, [(None, None), *ROWS[1:]], ("x",)),
]
