"""Codes put together: what the groups are, that they cost nothing, and that rows get their codes back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discreet import Bounds, Categories, Public
from discreet.sampling import SeededEntropy
from discreet.synthetic import AIM, Domain
from discreet.synthetic.copy import SyntheticCopy, method_for
from discreet.synthetic.estimation import project_to_simplex
from discreet.synthetic.graphical_model import group_codes, grouped_sizes
from discreet.tables import Memory

COUNTS = st.lists(st.integers(-50, 500), min_size=1, max_size=40)


@given(COUNTS, st.floats(1, 300), st.booleans(), st.booleans())
@settings(max_examples=200, deadline=None)
def test_groups_are_numbered_from_0_and_neighbors_stay_together(
    counts: list[int], least: float, ordered: bool, missing: bool
) -> None:
    groups = group_codes(counts, least, ordered=ordered, missing=missing)
    if not groups:
        return
    assert len(groups) == len(counts)
    assert set(groups) == set(range(max(groups) + 1))
    assert max(groups) + 1 < len(counts)
    if ordered:
        # Codes but NULL are cut into runs, and a code with enough rows is shared with NULL at most.
        own = groups[: len(groups) - missing]
        assert list(own) == sorted(own)
    else:
        assert all(groups.count(g) == 1 for g, count in zip(groups, counts, strict=True) if count >= least)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30), st.floats(1e-6, 1e6))
@settings(max_examples=200, deadline=None)
def test_projected_counts_are_possible_and_possible_counts_stay(values: list[float], total: float) -> None:
    counts = project_to_simplex(np.array(values), total)
    assert (counts >= 0).all()
    assert counts.sum() == pytest.approx(total, rel=1e-6, abs=1e-6)
    assert project_to_simplex(counts, float(counts.sum())) == pytest.approx(counts, rel=1e-6, abs=1e-6)


def fine_table() -> tuple[Memory, Public, Domain]:
    """A number of 200 codes, most of them rare, that decides a second column."""
    random = np.random.default_rng(0)
    hours = np.where(random.random(20_000) < 0.5, 40, random.integers(0, 200, 20_000))
    data: dict[str, Any] = {"hours": hours, "many": np.where(hours > 100, "yes", "no")}
    public = Public(schema={"hours": Bounds(0, 199, nullable=False), "many": Categories(["no", "yes"])})
    return Memory(data, public), public, Domain.of(public, bins={"hours": 200}, missing={"many": False})


def test_aim_puts_many_codes_together_and_rows_get_them_back() -> None:
    source, public, domain = fine_table()
    released = method_for("aim", public, domain, epsilon=2, delta=1e-6)(source, entropy=SeededEntropy(1))
    fitted = released.value
    assert grouped_sizes(fitted.groups, (200, 2)) == fitted.sizes
    assert 3 < fitted.sizes[0] < 60
    assert fitted.groups[1] == ()
    # The heavy code stays alone.
    assert fitted.groups[0].count(fitted.groups[0][40]) == 1
    copy = SyntheticCopy.of(fitted, released.event, rows=20_000, seed=1)
    hours, many = copy.codes
    assert abs((hours == 40).mean() - 0.5) < 0.02
    assert len(np.unique(hours)) > 150
    assert ((hours > 100) == (many == 1)).mean() > 0.98
    truth = [np.bincount(source._table["hours"].to_numpy(), minlength=200)]
    truth.append(np.array([(source._table["many"].to_numpy() == v).sum() for v in ("no", "yes")]))
    report = copy.report()
    assert len({one.columns for one in report.tables}) == len(report.tables)
    (group,) = [np.array(g) for g in fitted.groups if g]
    by_column = {one.columns: one for one in report.tables}
    # the bound of one column is about each of its codes
    distance = np.abs(np.bincount(hours, minlength=200) - truth[0]).sum() / 40_000
    assert distance <= by_column["hours",].bound < 0.2
    assert by_column["hours",].grouped == ()
    assert by_column["hours",].cells == 200
    # that of a pair about groups of codes, and it says so: by codes, many within a group are wrong
    pair = by_column["hours", "many"]
    true_pairs = np.zeros((group.max() + 1, 2))
    is_many = (source._table["many"].to_numpy() == "yes").astype(int)
    np.add.at(true_pairs, (group[source._table["hours"].to_numpy()], is_many), 1)
    copied = np.zeros_like(true_pairs)
    np.add.at(copied, (group[hours], many), 1)
    assert np.abs(copied - true_pairs).sum() / 40_000 <= pair.bound
    assert pair.grouped == ("hours",)
    assert "hours (in groups), many" in str(report)
    assert ("hours", "many") not in report.plot().pairs
    # Rows under a condition have that very code, not one of its group.
    assert set(copy.sample(50, given={"hours": 150}).column("hours").to_pylist()) == {150}


def test_columns_of_constraints_keep_their_codes() -> None:
    public = Public(schema={n: Bounds(0, 99, nullable=False) for n in ("a", "b")})
    random = np.random.default_rng(0)
    low = random.integers(0, 50, 3000)
    source = Memory({"a": low, "b": low + 20}, public)
    domain = Domain.of(public, bins={"a": 50, "b": 50})
    for constraints, ungrouped in (((), False), (("a <= b",), True)):
        method = AIM(public=public, domain=domain, rho=1, constraints=constraints)
        fitted = method(source, entropy=SeededEntropy(1)).value
        assert (fitted.groups == ()) is ungrouped
