"""Whether a question is served or charged is decided by public facts: the declared version, or the opening."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import discreet as dp
from discreet.app.web.sessions import Desk, Folders
from discreet.app.web.verbs import handle
from discreet.curator import Budget, Curator, Policy
from discreet.mechanisms import noisy_count
from discreet.tables import Database, Memory

AGES = [31, 45, 27]
SCHEMA = {"age": dp.Bounds(0, 100)}
ASK = "SELECT COUNT(*) AS n FROM people"
_NUMBERS = itertools.count()


def in_file(folder: Path, ages: list[int], ending: str) -> Path:
    """A new version of one file, as an export writes it: to another name, then renamed."""
    path, written = folder / f"people.{ending}", folder / f"{next(_NUMBERS)}.{ending}"
    table = pa.table({"age": ages})
    if ending == "parquet":
        pq.write_table(table, written)
    else:
        table.to_pandas().to_csv(written, index=False)
    return written.replace(path)


def in_folder(folder: Path, ages: list[int]) -> Path:
    (several := folder / "people").mkdir(exist_ok=True)
    for number, age in enumerate(ages):
        pq.write_table(pa.table({"age": [age]}), several / f"{number}.parquet")
    return several


def in_database(folder: Path, ages: list[int]) -> Database:
    written = folder / f"{next(_NUMBERS)}.duckdb"
    with duckdb.connect(str(written)) as database:
        database.execute("CREATE TABLE people (age BIGINT)")
        database.executemany("INSERT INTO people VALUES (?)", [[age] for age in ages])
    return Database(written.replace(folder / "people.duckdb"), "people")


# The data as `dp.open` takes them, made of ages.
KINDS: dict[str, Any] = {
    "columns": lambda folder, ages: {"age": ages},
    "pandas": lambda folder, ages: pd.DataFrame({"age": ages}),
    "arrow": lambda folder, ages: pa.table({"age": ages}),
    "csv": lambda folder, ages: in_file(folder, ages, "csv"),
    "parquet": lambda folder, ages: in_file(folder, ages, "parquet"),
    "folder": in_folder,
    "database": in_database,
}


def reopened(folder: Path, kind: str, later: list[int] | None, version: dict[str, str]) -> list[float]:
    """What is spent after the first question, asked again, and asked again after the table was opened again
    with the rows `later`; None leaves the data as they are."""
    folder.mkdir()
    options = {"schema": SCHEMA, "unit": dp.rows(), "table": "people", "ledger": folder / "l", **version}
    data, spent = KINDS[kind](folder, AGES), []
    first = dp.open(data, budget=Budget(epsilon=3), **options)
    for _ in range(2):
        first.sql(ASK, epsilon=0.5)
        spent.append(first.spent)
    again = dp.open(data if later is None else KINDS[kind](folder, later), **options)
    again.sql(ASK, epsilon=0.5)
    return [*spent, again.spent]


@pytest.mark.parametrize("kind", KINDS)
def test_served_or_charged_does_not_tell_whether_anybody_came(tmp_path, kind):
    """A question was served if nothing had changed, and charged if one person had come."""
    laters = {"same": None, "came": [*AGES, 60]}
    for name, later in laters.items():
        assert reopened(tmp_path / f"{name} 1", kind, later, {"version": "1"}) == [0.5, 0.5, 0.5], name
        assert reopened(tmp_path / f"{name} 2", kind, later, {}) == [0.5, 0.5, 1.0], name


def test_another_declared_version_is_another_question(tmp_path):
    options = {"schema": SCHEMA, "unit": dp.rows(), "table": "people", "ledger": tmp_path / "l"}
    for number in (1, 2, 2):
        people = dp.open({"age": AGES}, version=str(number), budget=Budget(epsilon=3), **options)
        people.sql(ASK, epsilon=0.5)
        assert people.spent == number * 0.5


class Unreadable:
    """A source that knows its public facts alone: anything else that is asked of it fails."""

    def __init__(self, public: dp.Public) -> None:
        self.public = public

    def batches(self, columns):
        raise AssertionError("a stored release needs no row")

    def ready(self) -> None:
        pass

    def __getattr__(self, name):
        if name in ("take", "size", "people", "shapes"):
            raise AttributeError(name)
        raise AssertionError(f"a stored release needs no {name}")


def test_a_stored_release_is_found_without_touching_the_table(tmp_path):
    public = dp.Public(schema=SCHEMA, table="people", version="1")
    policy = Policy(budget=Budget(epsilon=1))
    curator = Curator.create(tmp_path / "l", Memory({"age": AGES}, public), policy)
    value = curator.ask(noisy_count(public, epsilon=1)).value
    again = Curator.open(tmp_path / "l", Unreadable(public))
    assert again.ask(noisy_count(public, epsilon=1)).value == value
    assert again.used == 1


def test_all_workers_of_a_server_are_one_opening(tmp_path):
    """How long a worker lives may depend on how long its questions take; a new one must not charge again."""
    (data := tmp_path / "people.csv").write_text("age\n31\n45\n")
    (schema := tmp_path / "s.toml").write_text(
        'table = "people"\nunit = "row"\n[columns.age]\ntype = "number"\nlower = 0\nupper = 100\n'
    )
    ledger = tmp_path / "l"
    dp.open(data, schema=schema, ledger=ledger, budget=Budget(epsilon=3))
    dataset = {"data": str(data), "schema": str(schema), "ledger": str(ledger)}
    request = {"verb": "sql", "analyst": "steward", "by": "eve", "role": "steward", "dataset": dataset}

    def spent_after(opening: str) -> float:
        options = {"sql": ASK, "epsilon": 0.5}
        desk = Desk(reads=True, seconds=60, folders=Folders((tmp_path,), tmp_path / "state"))
        reply = handle(desk, request | {"options": options, "opening": opening})
        return float(reply["result"]["used"])

    assert [spent_after(opening) for opening in ("a", "a", "b")] == [0.5, 0.5, 1.0]
