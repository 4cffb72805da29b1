"""What an audit looks at: keys, exceptions, frames, models and times are outputs too, and what cannot be
looked into is refused."""

from __future__ import annotations

import json
import sys
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from discreet import Bounds, Public, auditing, mechanisms, tables
from discreet._errors import InvalidInput, PublicMismatch
from discreet.app.cli import app
from discreet.auditing.outputs import Outputs, Raised, atoms, leaves, number

pytestmark = pytest.mark.usefixtures("runs_in_order")
SURE = 1 - 1e-9
RNG = np.random.default_rng(1)


def refuted(run, **more):
    return auditing.audit(run, [1], [], claim=1.0, runs=200, confidence=SURE, **more).refuted


def test_which_keys_there_are_is_told_apart_however_alike_their_values():
    assert refuted(lambda rows: {"rome": 0} if rows else {"bern": 0})
    assert refuted(lambda rows: pd.Series([0], index=["rome" if rows else "bern"]))
    assert refuted(lambda rows: [[1], 2] if rows else [1, [2]])
    assert refuted(lambda rows: {"rome"} if rows else {"bern"})


@pytest.mark.parametrize(
    ("one", "other"), [(0.0, -0.0), (1, True), ("1", 1), (None, "None"), (float("nan"), None)]
)
def test_values_that_python_or_print_would_call_equal_are_told_apart(one, other):
    assert refuted(lambda rows: one if rows else other)
    assert not refuted(lambda rows: one)


def test_two_nans_are_one_value():
    assert not refuted(lambda rows: float("nan"))
    assert Outputs.of([float("nan")]).labels == Outputs.of([np.float64("nan")]).labels
    for nan in ("NaN", "sNaN"):
        assert Outputs.of([Decimal(nan)]).labels == Outputs.of([Decimal(nan)]).labels
        assert not refuted(lambda rows, nan=nan: Decimal(nan))


def test_an_address_in_memory_is_no_output_at_any_depth():
    def nested(depth):
        return [nested(depth - 1)] if depth else object()

    # both are kept, so that they have different addresses
    outputs = [nested(20), nested(20)]
    one, other = Outputs.of(outputs).labels
    assert one == other


def shifted(wrap):
    return lambda rows: wrap(len(rows) + 0.1 * RNG.laplace())


class Fitted:
    def __init__(self, weight: float) -> None:
        self.weight, self.itself = weight, self


WRAPS = {
    "pandas frame": lambda x: pd.DataFrame({"a": [x]}),
    "arrow table": lambda x: pa.table({"a": [x]}),
    "complex": lambda x: complex(0, x),
    "decimal": Decimal,
    "written out": lambda x: f"{x:.6f}",
    "time": lambda x: datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=x),
    "generator": lambda x: (y for y in [x, 0]),
    "object that holds itself": Fitted,
    "nested": lambda x: {"table": {"counts": np.array([[x]])}},
}


@pytest.mark.parametrize("name", WRAPS)
def test_too_little_noise_is_found_whatever_it_is_wrapped_in(name):
    assert refuted(shifted(WRAPS[name])), name


def test_paths_are_those_one_would_type():
    assert list(leaves({"n": np.array([1, 2]), "at": date(2026, 1, 2)})) == [
        ("['at']", date(2026, 1, 2)),
        ("['n'][0]", 1),
        ("['n'][1]", 2),
    ]
    assert atoms(np.float32(2)) == [2.0]
    assert number(date(1, 1, 3)) == 3
    assert number(timedelta(minutes=2)) == 120
    report = auditing.audit(shifted(lambda x: {"n": x}), [1], [], claim=1.0, runs=400, confidence=SURE)
    assert report.attack == "output['n']"


def test_an_exception_on_one_of_the_tables_refutes():
    def fails(rows):
        if rows:
            raise KeyError("a row")
        return 0

    report = auditing.audit(fails, [1], [], claim=1.0, runs=200, confidence=SURE)
    assert report.refuted
    assert list(leaves(Raised(kind="KeyError", message="x"))) == [(".kind", "KeyError"), (".message", "x")]


def test_a_function_that_always_fails_or_takes_something_else_is_refused_soon():
    calls = []

    def always(rows):
        calls.append(1)
        raise RuntimeError("no such file")

    with pytest.raises(InvalidInput, match="failed on both tables, at last with RuntimeError: no such file"):
        auditing.audit(always, [1], [], claim=1.0)
    assert len(calls) == 20
    for wrong in (lambda: 0, lambda rows, epsilon: 0):
        with pytest.raises(InvalidInput, match="called with the data alone"):
            auditing.audit(wrong, [1], [], claim=1.0)
    assert auditing.audit(len, [1], [], claim=1.0, runs=200, confidence=SURE).refuted  # written in C


def test_what_cannot_be_looked_into_is_refused_and_not_passed():
    with pytest.raises(InvalidInput, match="object that cannot be looked into"):
        refuted(lambda rows: object())


def test_a_table_of_other_public_facts_is_a_mistake_and_not_an_output():
    public = Public(schema={"age": Bounds(0, 8)})
    other = Public(schema={"age": Bounds(0, 9)})
    here, there = tables.Memory({"age": [8]}, public), tables.Memory({"age": [8]}, other)
    with pytest.raises(PublicMismatch, match="the mechanism was priced for other public facts"):
        auditing.audit(mechanisms.noisy_sum(public, "age", epsilon=1), here, there, runs=100)


def test_what_drifts_drifts_for_both_tables():
    """A counter of its own calls is no leak: the tables take turns."""
    calls = []

    def drifting(rows):
        calls.append(1)
        return len(calls) // 2000

    assert not auditing.audit(drifting, [1], [], claim=0.1, runs=2000, confidence=SURE).refuted


def test_a_claim_of_nothing_is_refused():
    with pytest.raises(InvalidInput, match="a delta of 1 claims nothing"):
        auditing.audit(len, [1], [], claim=(1.0, 1.0))
    report = auditing.audit(lambda rows: 0, [1], [], claim=0.0, runs=100)
    assert "could not be told apart" in report.html()


def test_the_attack_that_is_chosen_was_not_only_lucky():
    """Two coordinates, one of them with all there is to see: 12 audits of 1000 runs show 0.6 of 1 on average.

    Crediting each attack with what it
    happened to show, as if that were its rate, shows 0.45."""
    shown = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        first, second = rng.laplace(size=(1000, 2)) + np.array([1, 0]), rng.laplace(size=(1000, 2))
        shown.append(auditing.from_outputs(first.tolist(), second.tolist(), claim=1.0).epsilon)
    assert np.mean(shown) > 0.55
    assert max(shown) <= 1


def test_progress_tells_how_many_turns_were_taken():
    turns = []
    auditing.audit(lambda rows: 0, [1], [], claim=1.0, runs=50, progress=turns.append)
    assert turns == list(range(1, 51))


def test_on_the_shell_a_mechanism_of_ours_brings_its_claim_and_takes_tables(tmp_path, monkeypatch):
    (tmp_path / "ourown.py").write_text(
        "from discreet import Public, mechanisms\ncount = mechanisms.noisy_count(Public(), epsilon=1)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    runner = CliRunner()
    tables = ["--on", '{"x": [1]}', "--neighbor", '{"x": []}', "--runs", "2000", "--confidence", "0.999999"]
    kept = runner.invoke(app, ["audit", "ourown:count", *tables, "--json"])
    assert kept.exit_code == 0, kept.output
    assert json.loads(kept.output)["claim"]["epsilon"] == 1
    assert runner.invoke(app, ["audit", "ourown:count", *tables, "--epsilon", "0.1"]).exit_code == 1
    for arguments, word in ((["ourown:count"], "by its columns"), (["builtins:len"], "say what is claimed")):
        found = runner.invoke(app, ["audit", *arguments])
        assert isinstance(found.exception, InvalidInput)
        assert word in str(found.exception)


def test_on_the_shell_a_module_that_cannot_be_loaded_and_a_folder_that_is_not_there_are_refused(
    tmp_path, monkeypatch
):
    (tmp_path / "halfwritten.py").write_text("def f(rows:\n")
    (tmp_path / "wellwritten.py").write_text("def f(rows):\n    raise AssertionError('it was run')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    runner = CliRunner()
    for arguments, word in (
        (["halfwritten:f"], "SyntaxError"),
        (["wellwritten:f", "--html", "nowhere/page.html"], "there is no folder 'nowhere'"),
        (["wellwritten:f"], "it was run"),
    ):
        found = runner.invoke(app, ["audit", *arguments, "--epsilon", "1"])
        assert isinstance(found.exception, InvalidInput)
        assert word in str(found.exception)
