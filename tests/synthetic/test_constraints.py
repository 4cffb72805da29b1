"""Constraints: contradictions are refused before the charge, and what is accepted holds in every row."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import discreet as dp
from discreet.synthetic import Domain, Independent, SyntheticCopy
from discreet.synthetic.copy import METHODS
from discreet.synthetic.synthesizer import MeasuredTable
from discreet.synthetic.table_domain import comparable_bin_ends
from discreet.tables import Memory

SCHEMA = {
    "a": dp.Bounds(0, 9, nullable=False),
    "b": dp.Bounds(0, 9, nullable=False),
    "c": dp.Bounds(0, 9),
    "x": dp.Bounds(0.0, 1.0),
    "high": dp.Bounds(20, 30),
    "begin": dp.Dates("2020-01-01", "2020-12-31"),
    "end": dp.Dates("2020-06-01", "2021-06-30"),
}
PUBLIC = dp.Public(schema=SCHEMA)


@pytest.mark.parametrize(
    ("constraints", "words"),
    [
        (["a >= b", "a < b"], "contradict each other"),
        (["a < b", "b < a"], "contradict each other"),
        (["a < b", "b < c", "c <= a"], "contradict each other"),
        (["a <= b", "b <= a"], "always equal"),
        (["a > high"], "no row can satisfy"),
        (["x >= high"], "no row can satisfy"),
        (["a > x", "x > high"], "no row can satisfy"),
        (["begin > end", "end >= begin"], "contradict each other"),
    ],
)
def test_contradictions_are_refused_before_the_charge(constraints: list[str], words: str) -> None:
    data: dict[str, Any] = {n: [None] for n in SCHEMA} | {"a": [1], "b": [1]}
    people = dp.open(
        data, schema=SCHEMA, unit=dp.rows(), budget=dp.Budget(epsilon=3, delta=1e-6), ledger=":memory:"
    )
    for method in METHODS:
        with pytest.raises(dp.InvalidInput, match=words):
            people.synthesize(epsilon=1, constraints=constraints, method=method)
    assert people.spent == 0


def test_strict_whole_numbers_need_room_for_each_step() -> None:
    public = dp.Public(schema={n: dp.Bounds(0, 1, nullable=False) for n in "pqr"})
    domain = Domain.of(public)
    Independent(public=public, domain=domain, rho=1, constraints=("p < q", "p < r"))
    with pytest.raises(dp.InvalidInput, match="no row can satisfy"):
        Independent(public=public, domain=domain, rho=1, constraints=("p < q", "q < r"))


def released(constraints: tuple[str, ...], names: list[str], bins: dict[str, Any]) -> SyntheticCopy:
    """A copy of independent columns whose codes are all equally frequent."""
    domain = Domain.of(PUBLIC, names, bins=bins)
    method = Independent(public=PUBLIC, domain=domain, rho=10**6, constraints=constraints)
    tables = tuple(
        MeasuredTable(clique=(i,), values=(100,) * n, variance=method.noise(method.exact_rho).variance)
        for i, n in enumerate(domain.sizes(PUBLIC))
    )
    data = {n: [None] for n in SCHEMA} | {"a": [1], "b": [1]}
    fitted = method(Memory(data, PUBLIC), entropy=dp.sampling.SeededEntropy(1)).value
    return SyntheticCopy.of(dataclasses.replace(fitted, tables=tables), method.event, rows=3000, seed=2)


@pytest.mark.parametrize("bins", [10, 5, 2, 1])
def test_chains_hold_in_every_row_even_where_no_bins_allow_all_of_them(bins: int) -> None:
    chain = ("a < b", "c > b", "x <= a")
    copy = released(chain, ["a", "b", "c", "x"], {"a": bins, "b": bins, "c": bins, "x": bins})
    frame = copy.to_pandas()
    assert (frame.a < frame.b).all()
    assert ((frame.c > frame.b) | frame.c.isna()).all()
    assert ((frame.x <= frame.a) | frame.x.isna()).all()
    assert frame.c.isna().any()
    assert frame.b.max() > frame.b.min()
    # Reports and children are computed from codes: those of the rows that are handed out.
    for coding, codes in zip(copy.fitted.domain.codings(PUBLIC), copy.codes, strict=True):
        present = frame[coding.column].notna().to_numpy()
        bins_of_rows = np.searchsorted(coding.edges, frame[coding.column].to_numpy(float), side="right") - 1
        last = len(coding.edges) - 2
        assert np.array_equal(np.minimum(bins_of_rows, last)[present], codes[present])


def test_dates_are_compared_as_dates_whatever_their_lower_bounds() -> None:
    copy = released(("begin > end",), ["begin", "end"], {"begin": 6, "end": 6})
    table = copy.to_arrow().to_pylist()
    both = [row for row in table if row["begin"] is not None and row["end"] is not None]
    assert len(both) > 100
    assert all(row["begin"] > row["end"] for row in both)
    codings = {c.column: c for c in copy.fitted.domain.codings(PUBLIC)}
    first, last = comparable_bin_ends(codings["end"])
    assert np.array_equal([first[0], last[-1]], [18414, 18808])


def test_conditions_that_no_row_satisfies_are_said() -> None:
    copy = released(("a < b",), ["a", "b"], {})
    with pytest.raises(dp.InvalidInput, match="no row under these conditions"):
        copy.sample(5, given={"a": 5, "b": 4})


@pytest.mark.parametrize("name", METHODS)
def test_data_that_break_a_constraint_have_a_copy_that_satisfies_it(name: str) -> None:
    """However precisely they were measured: it was paid for, and must not fail."""
    public = dp.Public(schema={n: dp.Bounds(0, 9, nullable=False) for n in "ab"})
    method = METHODS[name](public=public, domain=Domain.of(public), rho=10**6, constraints=("a > b",))
    source = Memory({"a": [0] * 40, "b": [9] * 40}, public)
    fitted = method(source, entropy=dp.sampling.SeededEntropy(1)).value
    frame = SyntheticCopy.of(fitted, method.event, rows=300, seed=1).to_pandas()
    assert (frame.a > frame.b).all()
