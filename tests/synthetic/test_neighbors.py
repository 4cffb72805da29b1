"""One unit more, less or other: what every method counts and scores moves by no more than it is priced for.

The noise is off: each run on a neighbor is given the very values and choices that the first run released, so
that both ask the same, and the exact counts and scores behind these are compared.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from discreet import Boolean, Bounds, Categories, Public
from discreet._public import Dates, Neighbors, Unit
from discreet.mechanisms import ExponentialMechanism, IntegerGaussian
from discreet.sampling import SeededEntropy
from discreet.synthetic import Domain
from discreet.synthetic.copy import METHODS
from discreet.tables import Memory

SCHEMA = {
    "age": Bounds(0, 40),
    "city": Categories([f"c{i}" for i in range(12)]),
    "ill": Boolean(),
    "one": Categories(["only"]),
    "day": Dates("2020-01-01", "2020-01-09"),
}
HOSTILE: dict[str, list[Any]] = {
    "age": [None, math.nan, math.inf, -math.inf, 1e300, -5.0, 40.0, 0.0],
    "city": [None, "", "c1", "C1", "c1 ", "x" * 100_000, "\0", "c11"],
    "ill": [None, True, False],
    "one": [None, "only", "other"],
    "day": [None, "2020-01-01", "2020-01-09", "1500-01-01", "rubbish", "2020-13-40"],
}
BIG, MANY = 400, 3


class Replay:
    """Records what a run releases, and what the exact values behind it are; a second run is given the
    same."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.released: list[Any] = []
        self.exact: list[tuple[Any, Any]] = []
        self.place: int | None = None
        # Of its own, so that what a method itself draws (the key, a first column) is the same in both runs.
        entropy_of_replay = SeededEntropy(7)
        add, pick = IntegerGaussian.__call__, ExponentialMechanism.pick

        def noise(this: Any, values: Any, /, *, entropy: Any) -> Any:
            self.exact.append((np.array(values), this))
            return self._next(lambda: add(this, values, entropy=entropy_of_replay))

        def choose(this: Any, scores: Any, entropy: Any) -> Any:
            self.exact.append((np.array(scores), this))
            return self._next(lambda: pick(this, scores, entropy_of_replay))

        monkeypatch.setattr(IntegerGaussian, "__call__", noise)
        monkeypatch.setattr(ExponentialMechanism, "pick", choose)

    def _next(self, draw: Any) -> Any:
        if self.place is None:
            self.released.append(draw())
            return self.released[-1]
        self.place += 1
        return self.released[self.place - 1]

    def again(self) -> list[tuple[Any, Any]]:
        """Return the exact values of the run before, and begin another that is given what it released."""
        exact, self.exact, self.place = self.exact, [], 0
        return exact


def rows_of(random: np.random.Generator, units: list[int]) -> dict[str, list[Any]]:
    """Rows with hostile values, one or many for each unit."""
    data: dict[str, list[Any]] = {name: [] for name in ("who", *SCHEMA)}
    for unit in units:
        for _ in range(BIG if unit == 0 else int(random.integers(1, 5))):
            data["who"].append(unit)
            for name, values in HOSTILE.items():
                data[name].append(values[int(random.integers(len(values)))])
    return data


def equal_rows(values: list[Any]) -> dict[str, list[Any]]:
    """The unit's rows, all in one cell."""
    return {"who": [0] * BIG} | {name: [value] * BIG for name, value in zip(SCHEMA, values, strict=True)}


def joined(*parts: dict[str, list[Any]]) -> dict[str, list[Any]]:
    return {name: [value for part in parts for value in part[name]] for name in parts[0]}


@pytest.mark.parametrize("relation", ["add_remove", "replace"])
@pytest.mark.parametrize("name", METHODS)
def test_a_unit_moves_no_count_and_no_score_by_more_than_the_price_says(
    name: str, relation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(len(name))
    public = Public(schema=SCHEMA, unit=Unit("who"), neighbors=Neighbors(relation))
    domain = Domain.of(public, bins={"age": 41})
    others = rows_of(random, list(range(1, 25)))
    first, other = rows_of(random, [0]), others
    if relation == "replace":
        first = equal_rows([None, "c1", True, "other", "rubbish"])
        other = joined(others, equal_rows([1e300, "c11", False, "only", "1500-01-01"]))
    method = METHODS[name](public=public, domain=domain, rho=2, rows_per_unit=MANY)
    replay = Replay(monkeypatch)
    # Both runs count the same rows of a unit: the same key.
    method(Memory(joined(others, first), public), entropy=SeededEntropy(5))
    before = replay.again()
    method(Memory(other, public), entropy=SeededEntropy(5))
    after = replay.exact
    assert len(before) == len(after) == len(replay.released) >= len(domain.columns)
    largest = 0.0
    for (mine, priced), (theirs, same) in zip(before, after, strict=True):
        assert priced == same
        change = np.abs(mine.astype(object) - theirs.astype(object))
        if isinstance(priced, IntegerGaussian):
            assert (change**2).sum() <= priced.l2_squared
            assert change.sum() <= method.count_sensitivity.l1
            largest = max(largest, float((change**2).sum() / priced.l2_squared))
        else:
            assert change.max() <= priced.sensitivity
    # The bound is not idle: rows of a unit that fall into one cell reach a good part of it.
    assert largest > 0.3
