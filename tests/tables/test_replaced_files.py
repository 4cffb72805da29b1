"""Parquet files that change under an open session: the one that was opened was looked through, another one
was not."""

from __future__ import annotations

import os
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import discreet as dp
from discreet._public import UNVERSIONED, Bounds, Public, Related, Unit
from discreet.tables import EngineError, connect

SQL = "SELECT COUNT(*) AS n FROM t WHERE UPPER(txt) = 'Q'"


def texts(values: list[bytes]) -> pa.Array:
    """Texts of any bytes, also such as are not UTF-8."""
    return pa.Array.from_buffers(pa.string(), len(values), pa.array(values, pa.binary()).buffers())


def opened(path, tmp_path):
    pq.write_table(pa.table({"txt": texts([b"q"] * 50)}), path)
    budget = dp.Budget(epsilon=10)
    return dp.open(
        path,
        unit=dp.rows(),
        schema={"txt": dp.Text()},
        table="t",
        budget=budget,
        ledger=tmp_path / "l.ledger",
    )


@pytest.mark.parametrize("way", ["replaced", "rewritten", "gone", "cut"])
def test_a_parquet_file_that_changed_is_refused_before_the_charge(way, tmp_path):
    """One text that is not UTF-8 in the new file would decide whether the query fails; and what fails after
    the charge is paid."""
    path, other = tmp_path / "t.parquet", tmp_path / "other.parquet"
    session = opened(path, tmp_path)
    session.sql(SQL, epsilon=1)
    before = path.stat()
    pq.write_table(pa.table({"txt": texts([b"q"] * 49 + [b"\xff"])}), other)
    if way == "replaced":
        os.replace(other, path)
    elif way == "rewritten":
        path.write_bytes(other.read_bytes())
    elif way == "gone":
        path.unlink()
    else:
        os.truncate(path, 60)
    if way != "gone":
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(EngineError, match="changed since"):
        session.sql(SQL, epsilon=2)
    assert session.spent == 1


def test_a_file_that_is_only_read_stays_open(tmp_path):
    path = tmp_path / "t.parquet"
    session = opened(path, tmp_path)
    assert path.read_bytes()
    session.sql(SQL, epsilon=1)
    assert session.spent == 1


def test_changed_files_are_told_apart_by_their_declared_version_alone(tmp_path):
    """A changed file, also that of a related table, was charged again: that told that somebody had come."""
    main, other = tmp_path / "t.parquet", tmp_path / "s.parquet"
    related = Related(name="s", schema={"y": Bounds(0, 9)}, private=True, unit="p")
    public = Public(table="t", schema={"x": Bounds(0, 9)}, unit=Unit("p", rows=1000), tables=(related,))

    def write(rows: int, value: int) -> None:
        pq.write_table(pa.table({"p": ["a"] * rows, "x": [1] * rows}), main)
        pq.write_table(pa.table({"p": ["a"] * 4, "y": [value] * 4}), other)
        for path in (main, other):
            os.utime(path, ns=(10**18, 10**18))

    def asked(version: str) -> float:
        engine = connect(main, replace(public, version=version), related={"s": other})
        opened = {} if (tmp_path / "l.ledger").exists() else {"budget": dp.Budget(epsilon=10)}
        session = dp.open(engine, ledger=tmp_path / "l.ledger", **opened)
        session.sql("SELECT SUM(s.y) AS n FROM t JOIN s ON s.p = t.p", epsilon=1)
        return session.spent

    write(5, 1)
    assert (asked("1"), asked("1")) == (1, 1)
    for rows, value in ((5, 2), (6, 2)):
        write(rows, value)
        assert asked("1") == 1
    assert (asked("2"), asked("2"), asked("1")) == (2, 2, 2)
    # without a version, every opening pays
    assert (asked(UNVERSIONED), asked(UNVERSIONED)) == (3, 4)
