"""Rows to predict from that are none are refused in words."""

from __future__ import annotations

from typing import Any

import pytest

import discreet as dp


@pytest.mark.parametrize("rows", [{"a": [1, 2], "w": ["u"]}, {"a": [10**400], "w": ["u"]}, {"a": 3, "w": 3}])
def test_new_rows_that_cannot_be_read_are_refused(rows: Any) -> None:
    people = dp.open(
        {"a": [0.2, 0.8] * 50, "w": ["u", "v"] * 50, "y": ["n", "p"] * 50},
        table="t",
        schema={"a": dp.Bounds(0, 1), "w": dp.Categories(["u", "v"]), "y": dp.Categories(["n", "p"])},
        unit=dp.rows(),
        budget=dp.Budget(epsilon=8),
        ledger=":memory:",
    )
    model = people.fit(dp.tabular.GaussianNB(epsilon=1), target="y")
    with pytest.raises(dp.InvalidInput, match="rows"):
        model.predict(rows)
