"""docs/databases.md does what it shows: on files, on a PostgreSQL server and on Spark."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from .. import postgres
from .. import spark as one_spark

PAGE = (Path(__file__).parents[2] / "docs" / "databases.md").read_text()
ADDRESS = "postgresql://reader@db.example.org/clinic"


def section(heading: str) -> str:
    """The Python of one section."""
    return "\n".join(
        re.findall(r"```python\n(.*?)```", PAGE.split(f"\n### {heading}\n")[1].split("\n##")[0], flags=re.S)
    )


def run(code: str, **names: Any) -> tuple[dict[str, Any], str]:
    space = {"__name__": "page", **names}
    with contextlib.redirect_stdout(io.StringIO()) as told:
        exec(compile(code, "databases.md", "exec"), space)
    return space, told.getvalue()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_python_block_is_run_by_one_of_these_tests() -> None:
    headings = ("Parquet, CSV and DuckDB", "Several files", "A table in PostgreSQL", "A table in Spark")
    assert sum(section(heading).count("dp.open(") > 0 for heading in headings) == PAGE.count("```python") == 4


def test_files_and_several_files(folder: Path) -> None:
    space, _ = run(section("Parquet, CSV and DuckDB") + section("Several files"))
    assert space["both"].spent == pytest.approx(0.5)
    assert {path.name for path in folder.glob("*.ledger")} == {
        "visits.parquet.ledger",
        "visits.csv.ledger",
        "clinic.ledger",
        "both.ledger",
    }


@postgres.needed
def test_a_table_in_postgresql() -> None:
    table = pa.table({"person": [1, 1, 2], "ward": ["A", "B", "A"], "age": [30, 30, 50]})
    server = postgres.server()
    name = server.load(table, "visits")
    code = section("A table in PostgreSQL")
    assert ADDRESS in code
    assert '"ward7.visits"' in code
    code = code.replace(ADDRESS, server.address("reader")).replace("ward7.visits", name)
    space, told = run(code)
    assert "±" in told
    assert space["visits"].spent == pytest.approx(0.5)


@pytest.mark.skipif(one_spark.missing() is not None, reason=str(one_spark.missing()))
def test_a_table_in_spark(folder: Path) -> None:
    spark = one_spark.session()
    table = pa.table({"patient_id": [1, 1, 2], "ward": ["A", "B", "A"], "cost": [10.0, 20.0, 30.0]})
    pa.parquet.write_table(table, folder / "visits.parquet")
    spark.read.parquet(str(folder / "visits.parquet")).createOrReplaceTempView("visits")
    space, told = run(section("A table in Spark"), spark=spark)
    spark.catalog.dropTempView("visits")
    assert "±" in told
    assert space["visits"].spent == pytest.approx(0.5)
