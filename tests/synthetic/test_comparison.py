"""The comparison with the data is marked as not private, and tells good copies from bad ones."""

from __future__ import annotations

import math
import xml.etree.ElementTree as tree
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from discreet import Bounds, Categories, Dates, InvalidInput, Public, auditing
from discreet._public import REPLACE, Unit
from discreet.sampling import SeededEntropy
from discreet.synthetic import CopyDistance, Domain, compare
from discreet.synthetic.copy import METHODS, SyntheticCopy, method_for
from discreet.synthetic.quality import Drawing
from discreet.tables import Memory

from .test_methods import DOMAIN, PUBLIC, correlated


def copy_by(name: str, epsilon: float) -> SyntheticCopy:
    method = method_for(name, PUBLIC, DOMAIN, epsilon=epsilon, delta=1e-6)
    released = method(correlated(), entropy=SeededEntropy(1))
    return SyntheticCopy.of(released.value, released.event, rows=3000, seed=1)


def test_the_error_of_pairs_measured_directly_knows_the_sensitivity() -> None:
    released = METHODS["independent"](public=PUBLIC, domain=DOMAIN, rho=5)(
        correlated(), entropy=SeededEntropy(1)
    )
    copy = SyntheticCopy.of(released.value, released.event, rows=20, seed=1)
    direct = compare(copy, correlated(), rho=0.5).direct
    declared = replace(PUBLIC, neighbors=REPLACE)
    replaced = compare(copy, Memory(correlated()._table, declared), rho=0.5).direct
    assert direct is not None
    # Under replace a table's l2 sensitivity is sqrt(2) times as large.
    assert replaced == pytest.approx(math.sqrt(2) * direct)


def test_the_distance_of_a_copy_with_many_more_rows_than_the_data_is_right() -> None:
    public = Public(schema={name: Bounds(0, 99, nullable=False) for name in "ab"})  # type: ignore[arg-type]
    random = np.random.default_rng(0)
    source = Memory({name: random.integers(0, 100, 250).tolist() for name in "ab"}, public)
    domain = Domain.of(public, bins={"a": 100, "b": 100})
    fitted = METHODS["independent"](public=public, domain=domain, rho=100)(
        source, entropy=SeededEntropy(1)
    ).value
    # A row of the copy stands for 1/40 of a row of the data: less than half of 1/16.
    mechanism = CopyDistance(public=public, fitted=fitted, epsilon=10, rows=10_000, seed=1)
    copy = SyntheticCopy.of(fitted, mechanism.event, rows=10_000, seed=1)
    tables = [np.zeros((100, 100)), np.zeros((100, 100))]
    for table, rows in zip(tables, (source._table, copy.table), strict=True):
        np.add.at(table, (np.asarray(rows["a"]), np.asarray(rows["b"])), 1 / rows.num_rows)
    distance = mechanism(source, entropy=SeededEntropy(2))
    assert distance.error(0.95) < 0.01
    assert distance.value == pytest.approx(abs(tables[0] - tables[1]).sum() / 2, abs=0.01)


def test_a_copy_that_knows_dependence_is_told_from_one_that_does_not() -> None:
    good = compare(copy_by("mst", 5.0), correlated(), target="q", rho=0.5)
    bad = compare(copy_by("independent", 5.0), correlated(), target="q")
    assert not good.private
    assert "NOT PRIVATE" in str(good)
    assert good.pairs[0] < 0.05 < bad.pairs[0]
    assert good.triples is not None
    assert good.triples[0] < 0.1
    assert good.accuracy is not None
    assert bad.accuracy is not None
    assert good.accuracy[0] > 0.95 > 0.6 > bad.accuracy[0]
    assert good.accuracy[1] == pytest.approx(1.0)
    assert good.direct is not None
    assert 0 < good.direct < 0.1
    assert bad.direct is None
    assert good.propensity < 0.01
    assert good.nearest[1] > 0.9 > bad.nearest[1]
    assert "no evidence of privacy" in str(good)


def test_what_cannot_be_compared_is_refused() -> None:
    copy = copy_by("independent", 1.0)
    with pytest.raises(InvalidInput, match="no column"):
        compare(copy, correlated(), target="z")
    with pytest.raises(InvalidInput, match="empty"):
        compare(copy, Memory(correlated()._table.slice(0, 0), PUBLIC))


def test_as_many_rows_of_a_unit_are_compared_as_were_copied() -> None:
    """Half of the units have one row, the others three, all with other values."""
    unit_ids = np.repeat(np.arange(40), np.tile([1, 3], 20))
    letters = np.array(["a", "b"])[unit_ids % 2]
    schema: Any = {"p": Categories(["a", "b"]), "q": Categories(["a", "b"])}
    public = Public(schema=schema, unit=Unit("id"))
    source = Memory({"id": unit_ids, "p": letters, "q": letters}, public)
    domain = Domain.of(public, missing={"p": False, "q": False})
    method = METHODS["independent"](public=public, domain=domain, rho=1, rows_per_unit=3)
    released = method(source, entropy=SeededEntropy(1))
    copy = SyntheticCopy.of(released.value, released.event, rows=10, seed=1)
    assert compare(copy, source, rows_per_unit=3).marginals[0].other == (0.25, 0.75)
    assert compare(copy, source).marginals[0].other == (0.5, 0.5)


def proven_epsilon(method: Any, runs: int = 250) -> float:
    """The epsilon that an attack proves: was one odd row in the table? It sees all that a copy is made from, and
    adds up the noisy counts of the row's values."""
    random = np.random.default_rng(0)
    base = {n: random.choice(["a", "b"], 60).tolist() for n in ("p", "q", "r", "s")}
    guesses = []
    for k, rows in enumerate(({n: [*base[n], "c"] for n in base}, base)):
        source = Memory(rows, PUBLIC)
        tables = [method(source, entropy=SeededEntropy(1000 * k + i)).value.tables for i in range(runs)]
        guesses.append([sum(t.values[2] for t in released) >= 2 for released in tables])
    return max(auditing.epsilon_of_labels(a, b, delta=1e-6, level=1e-9) for a, b in (guesses, guesses[::-1]))


@pytest.mark.slow
def test_a_membership_attack_on_releases_shows_no_more_than_was_paid_and_less_noise_is_noticed() -> None:
    # A false alarm in a billion for each of the two directions.
    method = method_for("independent", PUBLIC, DOMAIN, epsilon=1, delta=1e-6)
    assert proven_epsilon(method) <= 1
    assert proven_epsilon(replace(method, rho=10_000 * method.rho)) > 1


def test_pictures_show_every_pair_and_column_and_say_what_is_not_private(tmp_path: Path) -> None:
    public = Public(
        schema={"a<b": Categories(["x&y", "z"]), "n": Bounds(0, 9), "d": Dates("2020-01-01", "2020-12-31")}
    )
    rows = 300
    random = np.random.default_rng(1)
    data = {
        "a<b": random.choice(["x&y", "z"], rows),
        "n": random.integers(0, 10, rows),
        "d": [f"2020-{m:02}-01" for m in random.integers(1, 13, rows)],
    }
    source = Memory(data, public)
    for name in METHODS:
        method = METHODS[name](public=public, domain=Domain.of(public), rho=1)
        released = method(source, entropy=SeededEntropy(3))
        copy = SyntheticCopy.of(released.value, released.event, rows=rows, seed=1)
        report = copy.report()
        drawing = report.plot()
        assert {m.column for m in drawing.marginals} == {"a<b", "n", "d"}
        pairs = [t.columns for t in report.tables if len(t.columns) == 2 and not t.grouped]
        assert set(drawing.pairs) == {tuple(sorted(p, key=copy.columns.index)) for p in pairs}
        for one in drawing.marginals:
            assert len(one.labels) == len(one.copy) == len(one.other)
            assert abs(sum(one.copy) - 1) < 1e-9
            assert abs(sum(one.other) - 1) < 1e-9
        assert "NOT PRIVATE" not in drawing.svg()
    truth = compare(copy, source).plot()
    assert isinstance(truth, Drawing)
    assert len(truth.pairs) == 3
    first = next(m for m in truth.marginals if m.column == "a<b")
    assert first.other[0] == np.mean(data["a<b"] == "x&y")
    path = truth.save(tmp_path / "truth.svg")
    root = tree.fromstring(path.read_text())
    assert "NOT PRIVATE" in str(root.attrib["aria-label"])
    assert len(root.findall(".//{http://www.w3.org/2000/svg}title")) == 3 + 2 * sum(
        len(m.labels) for m in truth.marginals
    )
