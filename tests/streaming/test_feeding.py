"""What feeding may do, rule by rule: tables that grow (a file, DuckDB, PostgreSQL), rows that are late, edited,
deleted, doubled; two who feed at once; old versions and old snapshots."""

from __future__ import annotations

import gc
import shutil
import threading
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.csv import write_csv

import discreet as dp
from discreet import Halted, InvalidInput
from discreet._errors import DiscreetError
from discreet._public import Public
from discreet.streaming.losses import SquaredDistance
from discreet.tables import Database

from .. import postgres

DAYS = ("2026-01-01", "2026-01-02", "2026-01-03", "2026-01-04")
FACTS: dict[str, Any] = {"table": "visits", "schema": {"day": dp.Dates(DAYS[0], DAYS[-1])}}
TEXT = "SELECT day, COUNT(*) AS n FROM visits GROUP BY day"


def csv(path: Path, rows: list[tuple[str, Any]]) -> Path:
    path.write_text("day,who\n" + "".join(f"{day},{who}\n" for day, who in rows))
    return path


def opened(data: Any, ledger: Path, unit: Any, **options: Any) -> dp.Session:
    budget = {} if ledger.exists() else {"budget": dp.Budget(epsilon=5000)}
    return dp.open(data, ledger=ledger, unit=unit, large_epsilon=True, **FACTS, **budget, **options)


def crowd(day: int, n: int, first: int = 0) -> list[tuple[str, Any]]:
    return [(DAYS[day], who) for who in range(first, first + n)]


def close(stream: Any, truth: float) -> bool:
    """Epsilon is 4,000: noise is far below one."""
    return abs(stream.value - truth) < 0.5


def grown(tmp_path: Path, versions: list[list[tuple[str, Any]]], unit: Any, **options: Any) -> list[float]:
    """Close one tick over each version of a file, and return what was released."""
    path, stream = tmp_path / "visits.csv", None
    for t, rows in enumerate(versions):
        csv(path, rows)
        people = opened(path, tmp_path / "l", unit, version=f"v{t}")
        number = None if stream is None else stream.number
        stream = people.stream(TEXT, epsilon=4000, number=number, **options)
        stream.feed()
    assert stream is not None
    return [round(v) for v in stream.history]


BY_ROW: dict[str, Any] = {"unit": dp.rows()}
BY_ID: dict[str, Any] = {"unit": "who", "participations": 1, "rows": 1}


@pytest.mark.parametrize("how", [BY_ROW, BY_ID])
def test_late_edited_and_deleted_rows_change_nothing_that_was_counted(tmp_path: Path, how: Any) -> None:
    first = crowd(0, 20)
    late = [*first, *crowd(0, 9, 100), *crowd(1, 5, 200)]
    deleted = [*crowd(1, 5, 200), *crowd(2, 3, 300)]
    edited_back = [(DAYS[0], who) for _, who in deleted] + crowd(3, 2, 400)
    assert grown(tmp_path, [first, late, deleted, edited_back], **how) == [20, 25, 28, 30]


def test_a_row_whose_day_moves_on_counts_again_as_a_row_and_not_as_an_id(tmp_path: Path) -> None:
    versions = [crowd(0, 20), crowd(1, 20)]
    assert grown(tmp_path / "", versions, **BY_ROW) == [20, 40]
    (tmp_path / "ids").mkdir()
    assert grown(tmp_path / "ids", versions, **BY_ID) == [20, 20]


def test_doubled_rows_count_twice_as_rows_and_once_as_an_id(tmp_path: Path) -> None:
    assert grown(tmp_path, [crowd(0, 20) * 2], **BY_ROW) == [40]
    (tmp_path / "ids").mkdir()
    assert grown(tmp_path / "ids", [crowd(0, 20) * 2], **BY_ID) == [20]


@pytest.mark.parametrize("clock", [TEXT, "SELECT COUNT(*) AS n FROM visits"])
def test_an_empty_name_is_refused_and_not_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: str
) -> None:
    monkeypatch.chdir(tmp_path)
    people = opened(csv(tmp_path / "visits.csv", crowd(0, 3)), tmp_path / "l", dp.rows())
    stream = people.stream(clock, epsilon=4000, horizon=4)
    with pytest.raises(InvalidInput, match="the name of the file is empty"):
        stream.feed("")
    assert stream.steps == 0
    assert stream.feed("visits.csv").value == 3


def test_an_older_version_of_the_table_counts_nothing_new_for_the_next_tick(tmp_path: Path) -> None:
    old, new = crowd(0, 20), [*crowd(0, 20), *crowd(1, 7)]
    assert grown(tmp_path, [new, old, new], **BY_ROW) == [20, 20, 20]


def test_a_person_on_every_day_counts_as_often_as_was_paid_for(tmp_path: Path) -> None:
    always = [(day, "ann") for day in DAYS] * 50 + crowd(0, 3)
    options = {"unit": "who", "participations": 2, "separation": 2, "rows": 1}
    assert grown(tmp_path, [always] * 4, **options) == [4, 4, 5, 5]


def test_a_duckdb_table_that_grows_is_streamed(tmp_path: Path) -> None:
    path = str(tmp_path / "v.duckdb")
    number = None
    for t in range(3):
        with duckdb.connect(path) as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS visits (day DATE, who INTEGER)")
            connection.executemany("INSERT INTO visits VALUES (?, ?)", crowd(t, 30 + t))
        people = opened(Database(path, "visits"), tmp_path / "l", dp.rows(), version=f"v{t}")
        stream = people.stream(TEXT, epsilon=4000, number=number)
        stream.feed()
        number, history = stream.number, [round(v) for v in stream.history]
        assert people.curator.verify() == []
        # DuckDB lets nobody write while somebody in the process has the file open.
        del people, stream
        gc.collect()
    assert history == [30, 61, 93]


@postgres.needed
def test_a_postgresql_table_that_grows_is_streamed(tmp_path: Path) -> None:
    server = postgres.server()
    empty = pa.table({"day": pa.array([], pa.date32()), "who": pa.array([], pa.int64())})
    relation = server.load(empty, "visits")
    stream: Any = None
    for t in range(2):
        for day, who in crowd(t, 25 + t):
            server.run(f"INSERT INTO {relation} VALUES ('{day}', {who})")
        budget = {} if stream else {"budget": dp.Budget(epsilon=5000)}
        people = dp.open(
            server.address("reader"), unit=dp.rows(), ledger=tmp_path / "l", version=f"v{t}", large_epsilon=True,
            **budget,
            **(FACTS | {"table": relation}),
        )  # fmt: skip
        stream = people.stream(TEXT, epsilon=4000, number=None if stream is None else stream.number)
        stream.feed()
    assert close(stream, 51)


def test_two_handles_that_feed_at_once_are_two_ticks_or_one_is_refused(tmp_path: Path) -> None:
    people = opened({"day": [date(2026, 1, 1)], "who": [1]}, tmp_path / "l", dp.rows())
    text = "SELECT COUNT(*) AS n FROM visits"
    stream = people.stream(text, epsilon=4000, horizon=8)
    outcomes: list[Any] = []

    def feed(name: str, n: int) -> None:
        handle = opened({"day": [date(2026, 1, 1)], "who": [1]}, tmp_path / "l", dp.rows()).stream(
            text, epsilon=4000, horizon=8, number=stream.number
        )
        try:
            outcomes.append(handle.feed({"day": [DAYS[0]] * n, "who": [1] * n}, tick=name).value)
        except DiscreetError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=feed, args=args) for args in (("a", 10), ("a", 10), ("b", 5))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # Who came second with "a" is refused.
    shown = [round(float(o)) for o in outcomes if not isinstance(o, InvalidInput)]
    assert len(shown) == 2
    assert len(set(shown)) == 2
    assert stream.steps == 2
    assert close(stream, 15)
    assert people.curator.verify() == []


def feed_at_once(tmp_path: Path, names: list[str | None]) -> tuple[Any, list[Any]]:
    """Feed batches of 10, 11, ... rows at the same time, and return the stream and how each of them went."""
    data, text = {"day": [date(2026, 1, 1)], "who": [1]}, "SELECT COUNT(*) AS n FROM visits"
    stream = opened(data, tmp_path / "l", dp.rows()).stream(text, epsilon=4000, horizon=8)
    outcomes: list[Any] = []
    start = threading.Barrier(len(names))

    def feed(place: int, name: str | None) -> None:
        people = opened(data, tmp_path / "l", dp.rows())
        handle = people.stream(text, epsilon=4000, horizon=8, number=stream.number)
        n = 10 + place
        start.wait()
        try:
            outcomes.append(
                round(float(handle.feed({"day": [DAYS[0]] * n, "who": [1] * n}, tick=name).value))
            )
        except DiscreetError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=feed, args=place_and_name) for place_and_name in enumerate(names)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return stream, outcomes


def test_batches_without_a_name_that_are_fed_at_once_all_count(tmp_path: Path) -> None:
    stream, outcomes = feed_at_once(tmp_path, [None] * 4)
    assert sorted(outcomes) == [round(v) for v in stream.history]
    assert stream.steps == 4
    assert close(stream, 10 + 11 + 12 + 13)
    assert stream.session.curator.verify() == []


def test_other_rows_that_are_fed_at_once_under_one_name_are_refused_and_not_passed_over(
    tmp_path: Path,
) -> None:
    stream, outcomes = feed_at_once(tmp_path, ["monday"] * 4)
    refused = [o for o in outcomes if isinstance(o, InvalidInput)]
    assert len(refused) == 3
    assert all("count twice" in str(error) for error in refused)
    assert [o for o in outcomes if o not in refused] == [round(v) for v in stream.history]


def test_a_copied_back_ledger_is_seen_against_an_anchor_and_draws_no_old_noise(tmp_path: Path) -> None:
    people = opened({"day": [date(2026, 1, 1)], "who": [1]}, tmp_path / "l", dp.rows())
    stream = people.stream("SELECT COUNT(*) AS n FROM visits", epsilon=1, horizon=8)
    for path in (tmp_path / "l", tmp_path / "l.key"):
        shutil.copy(path, tmp_path / f"copy-{path.name}")
    before = stream.feed({"day": [], "who": []}).value
    anchor = people.ledger.anchor
    shutil.copy(tmp_path / "copy-l", tmp_path / "l")
    again = opened({"day": [date(2026, 1, 1)], "who": [1]}, tmp_path / "l", dp.rows())
    assert again.curator.verify(anchor) != []
    # Told nothing of the anchor, a restored ledger runs again, with noise of its own.
    values = {float(np.ravel(before)[0])}
    restored = again.stream("SELECT COUNT(*) AS n FROM visits", epsilon=1, horizon=8, number=stream.number)
    values.add(float(np.ravel(restored.feed({"day": [], "who": []}).value)[0]))
    assert restored.steps == 1


def test_sums_of_missing_and_infinite_values_are_within_their_bounds(tmp_path: Path) -> None:
    people = dp.open(
        {"x": [1.0]}, table="t", schema={"x": dp.Bounds(0, 10)}, unit=dp.rows(), budget=dp.Budget(epsilon=5000),
        ledger=tmp_path / "l", large_epsilon=True,
    )  # fmt: skip
    stream = people.stream("SELECT SUM(x) AS s FROM t", epsilon=4000, horizon=3)
    stream.feed({"x": [float("nan"), float("inf"), float("-inf"), None, 1e308, -1e308, 4.0]})
    assert 4 - 0.5 < stream.value < 34.5
    stream.feed({"x": [float("nan")] * 100})
    stream.feed({"x": []})
    with pytest.raises(Halted, match="3 steps"):
        stream.feed({"x": [1.0]})


def test_a_tick_of_the_clock_is_closed_once_whatever_the_clock_of_the_machine_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    people = opened({"day": [date(2026, 1, 1)] * 5, "who": [1] * 5}, tmp_path / "l", dp.rows())
    stream = people.stream(TEXT, epsilon=4000)
    stream.feed()
    monkeypatch.setattr("time.time", lambda: 0.0)
    stream.feed()
    assert [round(v) for v in stream.history] == [5, 5]
    for _ in range(2):
        stream.feed()
    with pytest.raises(Halted, match="4 steps"):
        stream.feed()


@pytest.mark.parametrize("kind", ["csv", "pattern", "folder of csv", "parquet"])
def test_a_clock_refuses_files_that_changed_and_closes_nothing(tmp_path: Path, kind: str) -> None:
    """A day whose rows came after the session was opened had been closed with none of them."""
    folder = tmp_path / "visits"
    folder.mkdir()

    def write(name: str, day: int, rows: int) -> None:
        table = pa.table({"day": [date(2026, 1, day)] * rows, "who": list(range(rows))})
        (write_csv if "csv" in kind else pq.write_table)(table, folder / name)

    end = "csv" if "csv" in kind else "parquet"
    data = {"pattern": f"{folder}/*.parquet", "folder of csv": folder}.get(kind, folder / f"1.{end}")
    write(f"1.{end}", 1, 5)
    people = opened(data, tmp_path / "l", dp.rows())
    stream = people.stream(TEXT, epsilon=4000)
    stream.feed()
    assert close(stream, 5)
    grown = data == folder / f"1.{end}"
    write(f"1.{end}" if grown else f"2.{end}", 2, 7)
    for _ in range(2):
        with pytest.raises(InvalidInput, match="have changed since it was opened"):
            stream.feed()
    assert stream.steps == 1
    again = opened(data, tmp_path / "l", dp.rows()).stream(TEXT, epsilon=4000, number=stream.number)
    again.feed()
    assert [round(v) for v in again.history] == [5, 12]


def test_a_tick_that_bears_a_later_number_blocks_no_feed_without_a_name(tmp_path: Path) -> None:
    people = opened({"day": [date(2026, 1, 1)], "who": [1]}, tmp_path / "l", dp.rows())
    stream = people.stream("SELECT COUNT(*) AS n FROM visits", epsilon=4000, horizon=8)
    rows = {"day": [date(2026, 1, 1)], "who": [1]}
    stream.feed(rows, tick="tick 2")
    for _ in range(3):
        stream.feed(rows)
    assert [round(v) for v in stream.history] == [1, 2, 3, 4]


def test_a_stream_of_one_period_takes_no_rows_of_its_own() -> None:
    schema = {"ward": dp.Categories(["a", "b"]), "day": dp.Dates("2026-01-01", "2026-01-31")}
    session = dp.open(
        {"ward": ["a", "b"], "day": ["2026-01-01", "2026-01-01"]},
        table="visits",
        unit=dp.rows(),
        schema=schema,
        budget=dp.Budget(epsilon=1, per=dp.Period(column="ward")),
        ledger=":memory:",
    )
    stream = session.during("a").stream("SELECT COUNT(*) AS n FROM visits", epsilon=1, clock="day")
    with pytest.raises(dp.InvalidInput, match="about a only"):
        stream.feed({"ward": ["a"], "day": ["2026-01-01"]})
    stream.feed()
    assert stream.steps == 1


def test_a_stream_with_a_clock_takes_no_name_of_a_tick(tmp_path: Path) -> None:
    people = opened(csv(tmp_path / "v.csv", crowd(0, 5)), tmp_path / "l", dp.rows(), version="1")
    stream = people.stream(TEXT, epsilon=4, horizon=4)
    with pytest.raises(InvalidInput, match="Leave it out"):
        stream.feed(tick="monday")
    assert stream.steps == 0


def test_a_version_of_the_table_is_no_batch_of_a_stream_of_rows(tmp_path: Path) -> None:
    """Without a clock or units every row of the table would count once per version, for one price."""
    facts = Public(schema={"x": dp.Bounds(0, 10)}, table="t")

    def version(name: str) -> dp.Session:
        rows = {"x": [1.0] * 1000}
        ledger = tmp_path / "l"
        budget = {} if ledger.exists() else {"budget": dp.Budget(epsilon=9, delta=1e-6)}
        return dp.open(rows, schema=replace(facts, version=name), ledger=ledger, **budget)

    first = version("1")
    stream = first.stream("SELECT COUNT(*) AS n FROM t", epsilon=2, horizon=5)
    learner = first.online(SquaredDistance(columns=("x",)), clip=2, horizon=5, epsilon=4)
    before = first.ledger.anchor
    for session in (first, version("2")):
        for live in (stream, learner):
            with pytest.raises(InvalidInput, match="is no batch"):
                session.feed(live.counter, number=live.number)
            with pytest.raises(InvalidInput, match="is no batch"):
                session.curator.resume(live.counter, live.number).feed()
    assert first.ledger.anchor == before
    assert abs(stream.feed({"x": [1.0] * 50}).value - 50) < 40


@pytest.mark.parametrize("name", ["absent.csv", "absent.parquet", "absent", "a\x00.csv"])
def test_a_file_that_is_not_there_is_called_so_and_closes_no_tick(tmp_path: Path, name: str) -> None:
    people = opened({"day": [date(2026, 1, 1)], "who": [1]}, tmp_path / "l", dp.rows())
    stream = people.stream("SELECT COUNT(*) AS n FROM visits", epsilon=4, horizon=8)
    with pytest.raises(InvalidInput, match="there is no file"):
        stream.feed(str(tmp_path / name))
    assert stream.steps == 0
