"""Parquet files that change under an open session: the one that was opened was looked through, another one
was not."""

from __future__ import annotations

import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import discreet as dp
from discreet._public import Bounds, Public, Related, Unit
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


def test_changed_files_get_no_old_answer(tmp_path):
    """Neither where the file of a related table changed, nor where the time of the last write was put
    back."""
    main, other = tmp_path / "t.parquet", tmp_path / "s.parquet"
    related = Related(name="s", schema={"y": Bounds(0, 9)}, private=True, unit="p")
    public = Public(table="t", schema={"x": Bounds(0, 9)}, unit=Unit("p", rows=1000), tables=(related,))

    def write(rows: int, value: int) -> None:
        pq.write_table(pa.table({"p": ["a"] * rows, "x": [1] * rows}), main)
        pq.write_table(pa.table({"p": ["a"] * 4, "y": [value] * 4}), other)
        for path in (main, other):
            os.utime(path, ns=(10**18, 10**18))

    def asked() -> float:
        engine = connect(main, public, related={"s": other})
        opened = {} if (tmp_path / "l.ledger").exists() else {"budget": dp.Budget(epsilon=10)}
        session = dp.open(engine, ledger=tmp_path / "l.ledger", **opened)
        session.sql("SELECT SUM(s.y) AS n FROM t JOIN s ON s.p = t.p", epsilon=1)
        return session.spent

    write(5, 1)
    assert (asked(), asked()) == (1, 1)
    write(5, 2)
    assert asked() == 2
    write(6, 2)
    assert asked() == 3
    write(5, 1)
    assert asked() == 3
