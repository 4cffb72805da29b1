"""Nonsense in any public argument of the package is refused in words of ours, before anything is charged."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import discreet as dp
from discreet.sampling import SeededEntropy
from discreet.synthetic import (
    Constraint,
    CopyDistance,
    Domain,
    SyntheticCopy,
    compare,
    open_copy,
)
from discreet.synthetic.copy import METHODS, method_for
from discreet.synthetic.counting import MarginalCounts
from discreet.synthetic.quality import bound_errors
from discreet.synthetic.table_domain import DomainColumn
from discreet.tables import Memory

from ..contracts.test_bad_input import NONSENSE

PUBLIC = dp.Public(
    schema={
        "sex": dp.Categories(["f", "m"]),
        "age": dp.Bounds(0, 90, nullable=False),
        "day": dp.Dates("2020-01-01", "2020-12-31"),
        "sick": dp.Boolean(),
    }
)
SOURCE = Memory(
    {
        "sex": ["f", "m", None] * 9,
        "age": [3, 50, 90] * 9,
        "day": [None] * 27,
        "sick": [True, False, None] * 9,
    },
    PUBLIC,
)
DOMAIN = Domain.of(PUBLIC, bins={"age": 4, "day": 3})
METHOD = METHODS["independent"](public=PUBLIC, domain=DOMAIN, rho=Fraction(1))
FITTED = METHOD(SOURCE, entropy=SeededEntropy(1)).value
COPY = SyntheticCopy.of(FITTED, METHOD.event, rows=20, seed=1)
MORE: tuple[Any, ...] = (
    *({1, 2}, {"sex": None}, {"age": "x"}, {"age": [3, 1]}, {"age": []}, {"age": [None]}, {"sex": 3}),
    *({"day": ["x", "y"]}, {"age": 10**9}, {"age": 1 << 70}, {3: 4}, {"age": np.array([[1, 2], [3, 4]])}),
    *(
        {"sick": np.True_},
        {"sick": 1},
        {"sex": ["f"]},
        {"age": np.nan},
        {"day": "2020-13-01"},
        [["f"]],
        [3.5],
    ),
    *(["sex", "sex"], ["age > age"], ["age >"], [None], "age", 1 << 70, 2**53),
)


def foreign_errors(
    call: Callable[..., Any], valid: dict[str, Any], values: tuple[Any, ...] = ()
) -> list[str]:
    """What other errors than ours the call raises when one argument after the other is nonsense."""
    call(**valid)
    errors = []
    for name in valid:
        for value in (*NONSENSE, *MORE, *values):
            if name == "path" and isinstance(value, str | Path) and value in ("x", "age"):
                continue
            try:
                call(**(valid | {name: value}))
            except dp.DiscreetError:
                continue
            except Exception as error:
                errors.append(f"{name}={value!r}: {type(error).__name__}: {error}")
    return errors


@pytest.mark.parametrize("name", METHODS)
def test_options_of_methods(name: str) -> None:
    cls = METHODS[name]
    method = cls(public=PUBLIC, domain=DOMAIN, rho=Fraction(1))
    valid = {field.name: getattr(method, field.name) for field in dataclasses.fields(method)}

    def build(**options: Any) -> None:
        method = cls(**options)
        assert method.event is not None
        assert method.length >= 1

    assert not foreign_errors(build, valid)


def test_methods_by_name() -> None:
    valid = {
        "name": "mst",
        "public": PUBLIC,
        "domain": DOMAIN,
        "epsilon": 1,
        "delta": 1e-6,
        "split": (0.3, 0.3, 0.3),
    }
    assert not foreign_errors(lambda **given: method_for(**given).event, valid)


def test_domains_and_constraints() -> None:
    valid: dict[str, Any] = {"columns": ["sex", "age"], "bins": {"age": 3}, "missing": {"sex": True}}
    assert not foreign_errors(lambda **given: Domain.of(PUBLIC, **given).sizes(PUBLIC), valid)
    assert not foreign_errors(lambda public: Domain.of(public), {"public": PUBLIC})
    assert not foreign_errors(DomainColumn, {"column": "age", "edges": (0, 3, 9), "missing": True})
    assert not foreign_errors(Domain, {"columns": DOMAIN.columns})
    assert not foreign_errors(Constraint, {"left": "a", "comparison": "<", "right": "b"})
    assert not foreign_errors(lambda text: Constraint.parse(text), {"text": "a < b"})
    counts: dict[str, Any] = {"domain": DOMAIN, "columns": ("sex",), "rows": 1, "key": 3}
    assert not foreign_errors(lambda **given: MarginalCounts(**given)(SOURCE), counts)


def test_copies() -> None:
    valid: dict[str, Any] = {
        "fitted": FITTED,
        "event": METHOD.event,
        "rows": 5,
        "seed": 1,
        "asked": (1, 1e-6),
    }
    assert not foreign_errors(lambda **given: SyntheticCopy.of(**given).card(), valid)
    sample: dict[str, Any] = {"rows": 4, "seed": 3, "given": {"sex": "f"}}
    huge = 1 << 62
    assert not foreign_errors(COPY.sample, sample, ({"sex": huge}, {"age": 10**400}, {"day": 3}))
    assert not foreign_errors(COPY.sql, {"text": "SELECT COUNT(*) FROM data"})
    assert not foreign_errors(lambda confidence: COPY.report(confidence), {"confidence": 0.9})
    assert not foreign_errors(
        lambda confidence: bound_errors(FITTED, COPY.model, COPY.codes, confidence), {"confidence": 0.9}
    )


def test_files(tmp_path: Path) -> None:
    for write in (COPY.to_parquet, COPY.to_csv):
        values = (tmp_path, tmp_path / "no" / "such" / "folder" / "x.csv", "\0")
        assert not foreign_errors(write, {"path": str(tmp_path / "copy.csv"), "overwrite": True}, values)


def test_options_that_are_no_methods_own_are_refused(tmp_path: Path) -> None:
    data = {"age": list(range(20)), "sex": ["f", "m"] * 10}
    session = dp.open(
        data, table="p", schema={"age": dp.Bounds(0, 90), "sex": dp.Categories(["f", "m"])}, unit=dp.rows(),
        budget=dp.Budget(epsilon=50, delta=1e-6), ledger=":memory:", large_epsilon=True,
    )  # fmt: skip
    for method in ("aim", "mst", "independent"):
        for option in (
            "public",
            "domain",
            "name",
            "rho",
            "epsilon",
            "method",
            "error_in_scores",
            "columns",
            "child",
            "x",
        ):
            with pytest.raises(dp.InvalidInput, match=option):
                session.synthesize(epsilon=0.1, method=method, options={option: 1})
    with pytest.raises(dp.InvalidInput, match="an option must be of mst") as refused:
        session.synthesize(epsilon=0.1, method="mst", options={"x": 1})
    assert "of mst: split" in str(refused.value)
    assert session.spent == 0


def test_comparisons() -> None:
    valid: dict[str, Any] = {"copy": COPY, "source": SOURCE, "target": "sex", "rho": 0.1, "seed": 1}
    assert not foreign_errors(compare, valid)
    paid: dict[str, Any] = {
        "fitted": FITTED,
        "public": PUBLIC,
        "epsilon": 1,
        "rows": 5,
        "seed": 1,
        "rows_per_unit": 1,
    }
    assert not foreign_errors(lambda **given: CopyDistance(**given).event, paid)


def test_the_session_refuses_before_the_charge(tmp_path: Path) -> None:
    people = dp.open(
        SOURCE._table,
        schema=PUBLIC,
        budget=dp.Budget(epsilon=10**6, delta=1e-3),
        ledger=":memory:",
        unit=dp.rows(),
        large_epsilon=True,
    )
    valid: dict[str, Any] = {
        "rows": 5,
        "epsilon": 1,
        "delta": 1e-6,
        "method": "independent",
        "columns": ["sex", "age"],
        "bins": {"age": 3},
        "missing": {"sex": True},
        "rows_per_unit": 1,
        "constraints": (),
        "options": {},
        "seed": 1,
        "checkpoint": None,
        "resume": False,
        "progress": None,
        "fresh": False,
    }
    people.synthesize(**valid)
    spent, errors = people.spent, []
    for name in valid:
        for value in (*NONSENSE[::5], *MORE[::4]):
            if isinstance(value, str) and name == "checkpoint":
                continue
            try:
                people.synthesize(**(valid | {name: value}))
            except dp.DiscreetError:
                if people.spent != spent:
                    errors.append(f"{name}={value!r} was charged and refused")
            except Exception as error:
                errors.append(f"{name}={value!r}: {type(error).__name__}: {error}")
            spent = people.spent
    assert not errors
    copy = people.synthesize(**valid)
    assert not foreign_errors(people.compare_copy, {"copy": copy, "epsilon": 0.1, "rows_per_unit": 1})


def test_opened_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    COPY.to_parquet("copy.parquet")
    assert not foreign_errors(lambda path: open_copy(path), {"path": "copy.parquet"})
    assert not foreign_errors(COPY.report().plot().save, {"path": str(tmp_path / "a.svg")}, (tmp_path,))


def test_conditions_outside_what_was_declared_are_refused() -> None:
    public = dp.Public(schema={"age": dp.Bounds(17, 90), "day": dp.Dates("2020-01-01", "2020-01-09")})
    source = Memory({"age": [20, 30], "day": ["2020-01-02", None]}, public)
    method = METHODS["independent"](public=public, domain=Domain.of(public), rho=Fraction(1, 10**14))
    released = method(source, entropy=SeededEntropy(1))
    copy = SyntheticCopy.of(released.value, released.event, rows=5, seed=1)
    for given, words in (
        ({"age": 1e300}, "outside the declared bounds of column 'age'"),
        ({"age": 16}, "outside the declared bounds"),
        ({"age": float("nan")}, "age must be a number"),
        ({"day": "2020-01-10"}, "outside the declared bounds of column 'day'"),
        ({"day": "soon"}, "day must be a day such as"),
    ):
        with pytest.raises(dp.DiscreetError, match=words):
            copy.sample(3, given=given)
    assert copy.sample(2, given={"age": 90, "day": "2020-01-09"}).num_rows == 2


def test_two_columns_of_one_name_are_refused() -> None:
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["x", "x"])
    with pytest.raises(dp.InvalidInput, match="two columns"):
        Memory(table, dp.Public(schema={"x": dp.Bounds(0, 5)}))


@pytest.mark.parametrize("edges", [[5, 6], [-3, -2, 0], [2.5, 3]])
def test_bins_that_all_lie_outside_the_bounds_are_refused(edges):
    public = dp.Public(schema={"x": dp.Bounds(0, 1)}, table="t")
    with pytest.raises(dp.InvalidInput, match="overlaps the declared bounds"):
        dp.synthetic.Domain.of(public, bins={"x": edges})
    assert dp.synthetic.Domain.of(public, bins={"x": [-1, 0.5, 2]}).columns[0].edges == (-1, 0.5, 2)
