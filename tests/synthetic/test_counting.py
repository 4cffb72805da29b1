"""Domain and counts: what the engine counts is what was declared, and one unit moves it by no more than stated."""

from __future__ import annotations

import math
from datetime import date
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

import discreet as dp
from discreet import Boolean, Bounds, Categories, InvalidInput, Public
from discreet._public import Dates, Neighbors, Text, Unit
from discreet.sampling import SeededEntropy
from discreet.synthetic import Domain, SyntheticCopy
from discreet.synthetic.copy import METHODS
from discreet.synthetic.counting import MarginalCounts, count_domain_cells, count_sensitivity
from discreet.tables import Memory, connect

from ..loops import for_each

SCHEMA = {
    "city": Categories(["bern", "rome"]),
    "age": Bounds(0, 99),
    "weight": Bounds(0.0, 100.0),
    "ill": Boolean(),
    "day": Dates("2020-01-01", "2020-12-31"),
    "kind": Categories([1, 2, 3]),
    "note": Text(),
}
ROWS: dict[str, list[Any]] = {
    "city": ["bern", "rome", None, "oslo", "bern"],
    "age": [5, 99, None, 1000, -4],
    "weight": [math.nan, math.inf, 100.0, -1.0, 50.0],
    "ill": [True, False, None, True, False],
    "day": ["2020-01-01", "2021-05-05", "rubbish", None, "2020-12-31"],
    "kind": [1, 3, 7, None, 2],
    "note": ["a", "b", "c", "d", "e"],
}


def test_every_row_has_exactly_one_code_in_every_column_whatever_it_holds() -> None:
    public = Public(schema=SCHEMA)
    domain = Domain.of(
        public, bins={"weight": [0, 50, 100], "age": 10, "day": ["2020-01-01", "2020-07-01", "2021-01-01"]}
    )
    assert domain.names == ("city", "age", "weight", "ill", "day", "kind")
    assert domain.sizes(public) == (3, 11, 3, 3, 3, 4)
    cells = count_domain_cells(Memory(ROWS, public), domain, None, SeededEntropy(1))
    tables = {name: cells.table([i]).tolist() for i, name in enumerate(domain.names)}
    assert all(sum(table) == 5 for table in tables.values())
    assert tables["city"] == [2, 1, 2]
    assert tables["age"] == [2, 0, 0, 0, 0, 0, 0, 0, 0, 2, 1]
    assert tables["weight"] == [1, 2, 2]
    assert tables["ill"] == [2, 2, 1]
    assert tables["day"] == [1, 2, 2]
    assert tables["kind"] == [1, 1, 1, 2]


def test_without_a_code_for_missing_it_counts_as_the_first() -> None:
    public = Public(schema={"age": Bounds(0, 9, nullable=False), "city": Categories(["bern", "rome"])})
    domain = Domain.of(public, missing={"city": False})
    assert domain.sizes(public) == (10, 2)
    data = {"age": [None, 3], "city": [None, "rome"]}
    cells = count_domain_cells(Memory(data, public), domain, None, SeededEntropy(1))
    assert cells.table([0])[0] == 1
    assert cells.table([1]).tolist() == [1, 1]


def test_codes_become_values_of_their_bins_again() -> None:
    public = Public(schema=SCHEMA)
    domain = Domain.of(public, bins={"age": [0, 18, 65, 100], "weight": 4})
    codes = [np.array(c) for c in ([0, 2], [1, 3], [3, 4], [1, 2], [0, 20], [2, 3])]
    table = domain.decode(public, codes, np.random.default_rng(0)).to_pylist()
    first, second = table
    assert first["city"] == "bern"
    assert 18 <= first["age"] <= 64
    assert 75 <= first["weight"] <= 100
    assert first["ill"] is True
    assert date(2020, 1, 1) <= first["day"] <= date(2020, 1, 19)
    assert first["kind"] == 3
    assert all(value is None for value in second.values())


@pytest.mark.parametrize("rows", [1, 3])
def test_a_unit_with_thousands_of_rows_moves_a_table_by_no_more_than_its_sensitivity(rows: int) -> None:
    public = Public(schema={"x": Categories(list(range(50)))}, unit=Unit("id"))
    random = np.random.default_rng(0)
    others = {"id": [*range(200), None], "x": [*random.integers(0, 50, 200).tolist(), 1]}
    statistic = MarginalCounts(domain=Domain.of(public), columns=("x",), rows=rows, key=11)
    before = statistic(Memory(others, public))
    for theirs in (np.zeros(3000, int), random.integers(0, 50, 3000)):
        more = {"id": [*others["id"], *[999] * 3000], "x": [*others["x"], *theirs.tolist()]}
        change = np.abs(statistic(Memory(more, public)) - before)
        bound = statistic.sensitivity(public)
        assert change.sum() == rows <= bound.l1
        assert (change**2).sum() <= bound.l2_squared


@pytest.mark.parametrize("ids", [[-0.0, 0.0, 1.5], [Decimal("7"), Decimal("7.00"), Decimal("1.50")]])
def test_equal_ids_are_one_unit(ids: list[Any]) -> None:
    public = Public(schema={"x": Categories(["a", "b"])}, unit=Unit("id"))
    statistic = MarginalCounts(domain=Domain.of(public), columns=("x",), rows=1, key=1)
    assert statistic(Memory({"id": ids, "x": ["a", "b", "b"]}, public)).sum() == 2


@pytest.mark.parametrize("table", ["coded", "cells_chosen", "cells__coded", 'a"b', "u", "X y"])
def test_no_name_of_a_table_or_column_is_taken_for_one_of_ours(table: str) -> None:
    schema = {name: Bounds(0, 9) for name in ("c0", "n", "r", "o")}
    public = Public(schema=schema, unit=Unit("u"), table=table)
    rows = {"u": [1, 1, 3], "c0": [4, 5, 6], "n": [7, 8, 9], "r": [0, 0, 0], "o": [1, 2, 3]}
    cells = count_domain_cells(connect(rows, public), Domain.of(public), 2, SeededEntropy(1))
    assert sorted(zip(*(c.tolist() for c in cells.codes), strict=True)) == [
        (4, 7, 0, 1),
        (5, 8, 0, 2),
        (6, 9, 0, 3),
    ]


def test_the_choice_of_a_units_rows_depends_on_the_key_and_on_nobody_else() -> None:
    public = Public(schema={"x": Categories(list(range(50)))}, unit=Unit("id"))
    data = {"id": [7] * 50, "x": list(range(50))}
    picks = set()
    for key in range(12):
        statistic = MarginalCounts(domain=Domain.of(public), columns=("x",), rows=1, key=key)
        alone = statistic(Memory(data, public))
        crowd = Memory({"id": [*data["id"], 8], "x": [*data["x"], 3]}, public)
        assert (statistic(crowd) - alone).tolist() == [int(i == 3) for i in range(50)] + [0]
        picks.add(int(alone.argmax()))
    assert len(picks) > 5


@pytest.mark.parametrize(
    ("neighbors", "l1", "l2"), [("add_remove", 3, 9), ("replace", 6, 18), ("zero_out", 6, 18)]
)
def test_sensitivity_by_relation(neighbors: str, l1: int, l2: int) -> None:
    bound = count_sensitivity(Public(neighbors=Neighbors(neighbors)), 3)
    assert (bound.l1, bound.l2_squared) == (l1, l2)


@for_each(
    ("options", "words"),
    [
        ({"columns": ["nobody"]}, "nothing is declared"),
        ({"columns": ["note"]}, "not public"),
        ({"columns": ["city", "city"]}, "twice"),
        ({"bins": {"city": 3}}, "takes no bins"),
        ({"bins": {"age": [3, 2]}}, "ascending edges"),
        ({"bins": {"age": 0}}, "bins"),
        ({"bins": {"age": 100000, "weight": 100000}}, "fewer bins"),
        ({"bins": {"agee": 3}}, "no column of the copy"),
        ({"columns": []}, "nothing to copy"),
    ],
)
def test_bad_domains_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(dp.DiscreetError, match=words):
        Domain.of(Public(schema=SCHEMA), **options)


def test_a_unit_of_unknown_many_rows_is_refused() -> None:
    public = Public(schema={"x": Categories(["a"])}, unit=Unit("id"))
    from discreet.synthetic.counting import rows_per_unit

    with pytest.raises(InvalidInput, match="rows_per_unit=5"):
        rows_per_unit(public, None)
    with pytest.raises(InvalidInput, match="is 1"):
        rows_per_unit(Public(), 4)


@pytest.mark.parametrize(
    ("low", "high"),
    [
        (0, 2**63 - 1),
        (-(2**63), 2**63 - 1),
        (2**60 + 1, 2**60 + 10**6 + 1),
        (0, 2**70),
        (1.0, 1.0 + 2**-52),
        (0.0, 5e-324),
    ],
)
def test_values_stay_within_bounds_at_the_ends_of_what_numbers_can_hold(low: Any, high: Any) -> None:
    """A draw that overflows would fail after the charge, or leave the declared bounds."""
    public = Public(schema={n: Bounds(low, high, nullable=False) for n in ("x", "y")})
    method = METHODS["independent"](public=public, domain=Domain.of(public), rho=1, constraints=("x <= y",))
    released = method(Memory({"x": [low] * 9, "y": [low] * 9}, public), entropy=SeededEntropy(1))
    copy = SyntheticCopy.of(released.value, released.event, rows=200, seed=1)
    for row in copy.to_arrow().to_pylist():
        assert low <= row["x"] <= row["y"] <= high
    assert copy.sample(2, given={"x": low}).num_rows == 2
