"""Live answerers through a session: paid at the start, halting for good, and neither a crash nor an old copy
of a file changes their noise."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import discreet as dp
from discreet.adaptive import changepoints
from discreet.adaptive.changepoints import ChangeWatch
from discreet.adaptive.holdout import Check, Thresholdout
from discreet.adaptive.leaderboard import ShakyLadder, Submission
from discreet.curator import Curator, Ledger, books
from discreet.mechanisms import CountNonNull, Sensitivity, SparseVector, Trusted
from discreet.query import SqlStatistic
from discreet.query.statistic import where
from discreet.tables import Memory

from ..victim import Victim

N = 400
PUBLIC = dp.Public(
    schema={"age": dp.Bounds(0, 100), "ward": dp.Categories(["a", "b", "c"]), "ill": dp.Boolean()},
    table="people",
    size=N,
)
ROWS = {
    "id": np.arange(N),
    "age": np.arange(N) % 90,
    "ward": ["a"] * 90 + ["b"] * 300 + ["c"] * 10,
    "ill": np.arange(N) % 3 == 0,
}


def table() -> Memory:
    return Memory(ROWS, PUBLIC)


KINDS: dict[str, tuple[Any, Any]] = {
    "sparse vector over SQL": (
        SparseVector(public=PUBLIC, threshold=200, epsilon=1, positives=500, monotone=True, gap=True),
        where("ward = 'a'", PUBLIC),
    ),
    "reusable holdout": (
        Thresholdout.pure(PUBLIC, epsilon=1, budget=500, threshold=0.5),
        Check(statistic=CountNonNull(column="age"), training=0.9),
    ),
    "shaky ladder": (
        ShakyLadder(public=PUBLIC, target="ward", id="id", epsilon=1, delta=1e-6, budget=500),
        Submission.of("team", dict.fromkeys(range(N), "a")),
    ),
}


def opened(path: Path) -> dp.Session:
    return dp.open(table(), ledger=path, budget=dp.Budget(epsilon=4, delta=1e-5))


@pytest.fixture
def people(tmp_path: Path) -> dp.Session:
    return opened(tmp_path / "people.ledger")


def test_a_watch_over_sql_is_paid_at_the_start_and_halts_for_good(people: dp.Session) -> None:
    watch = people.watch(200, epsilon=1, positives=1)
    assert people.spent == 1
    assert not watch.ask("ward = 'a'").above  # 110 below the threshold at scales below 4
    assert not watch.ask("SELECT COUNT(*) FROM people WHERE age > 80").above
    assert watch.ask("ward = 'b' AND age >= 0").above
    assert people.spent == 1
    again = people.watch(200, epsilon=1, positives=1, number=watch.number)
    for one in (watch, again):
        with pytest.raises(dp.Halted, match="positives were given, so this has halted for"):
            one.ask("ward = 'a'")
    assert people.curator.verify() == []


def test_a_watch_tells_numbers_and_gaps_where_these_were_bought(people: dp.Session) -> None:
    told = people.watch(100, epsilon=2, positives=2, numeric=True, gap=True).ask("ward = 'b'")
    assert told.above
    assert abs(told.value - 300) < 60
    assert abs(told.gap - 200) < 60
    redrawn = people.watch(100, epsilon=1, delta=1e-6, positives=3).ask("ward = 'b'")
    assert redrawn.above


def test_a_watch_takes_python_statistics_only_where_it_was_priced_for_them(people: dp.Session) -> None:
    trusted = Trusted(function=lambda source: 390, claimed=Sensitivity(linf=1))
    with pytest.raises(dp.Unsupported, match="monotone"):
        people.watch(200, epsilon=0.5).ask(trusted)
    assert people.watch(200, epsilon=1, monotone=False).ask(trusted).above
    with pytest.raises(dp.InvalidInput, match="priced for 1"):
        people.watch(200, epsilon=0.5).ask("SELECT SUM(age) FROM people")


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("", "the query cannot be parsed as SQL"),
        ("ward = ", "the query cannot be parsed as SQL"),
        ("age > 1; DROP TABLE people", "one statement is answered at a time, and"),
        ("1=1) UNION SELECT (1=1", "the query cannot be parsed as SQL"),
        ("nobody = 1", "nothing is declared of a column"),
        ("age > 1 LIMIT 3", "a statistic is one COUNT or SUM and"),
    ],
)
def test_what_is_no_condition_changes_nothing(people: dp.Session, text: str, fact: str) -> None:
    watch = people.watch(200, epsilon=1)
    before = people.ledger.anchor
    with pytest.raises(dp.InvalidInput, match=fact):
        watch.ask(text)
    assert people.ledger.anchor == before


def test_people_with_many_rows_count_once() -> None:
    public = dp.Public(schema={"age": dp.Bounds(0, 100)}, unit=dp.Unit("who"), table="visits")
    source = Memory({"who": [1, 1, 1, 2], "age": [70, 71, 20, 30]}, public)
    asked = where("age > 60", public)
    assert asked.sensitivity(public).linf == 1
    assert int(asked(source)) == 1
    assert asked.monotone(public)
    assert not asked.monotone(
        dp.Public(schema=public.schema, unit=public.unit, table="visits", neighbors="zero_out")
    )


def test_a_statistic_in_sql_is_described_and_refuses_everything_but_one_number() -> None:
    from discreet._registry import from_json, to_json

    one = SqlStatistic(sql="SELECT SUM(age) FROM people")
    assert from_json(json.loads(json.dumps(to_json(one)))) == one
    assert one.sensitivity(PUBLIC).linf * one.step_for(PUBLIC) == 100
    for text in (
        "SELECT AVG(age) FROM people",
        "SELECT COUNT(*), SUM(age) FROM people",
        "SELECT ward, COUNT(*) FROM people GROUP BY ward",
    ):
        with pytest.raises(dp.InvalidInput, match="a statistic is one COUNT or SUM and nothing else"):
            SqlStatistic(sql=text).sensitivity(PUBLIC)
    with pytest.raises(dp.InvalidInput, match="sql must be one SELECT"):
        SqlStatistic(sql=3)  # type: ignore[arg-type]


@pytest.mark.parametrize("neighbors", ["add_remove", "replace"])
def test_one_person_moves_a_number_in_sql_by_no_more_than_its_sensitivity(neighbors: str) -> None:
    """Random tables of people with several rows; one person is removed, or replaced.

    Counts and sums, and which way they move.
    """
    random = np.random.default_rng(5)
    public = dp.Public(
        schema={"age": dp.Bounds(-5, 100)}, unit=dp.Unit("who", rows=2), table="visits", neighbors=neighbors
    )
    texts = (
        "age > 30",
        "age IS NULL",
        "SELECT COUNT(*) FROM visits WHERE age < 50",
        "SELECT SUM(age) FROM visits",
    )
    asked = [where(text, public) for text in texts]
    largest = [0] * len(texts)
    for _ in range(8):
        who, age = random.integers(0, 4, 9), random.integers(-20, 130, 9).astype(float)
        age[random.random(9) < 0.2] = np.nan
        other = np.where(who == 0, 99.0, age)
        keep = who > 0
        first = Memory({"who": who, "age": age}, public)
        second = Memory(
            {"who": who, "age": other} if neighbors == "replace" else {"who": who[keep], "age": age[keep]},
            public,
        )
        for i, one in enumerate(asked):
            moved = int(one(first)) - int(one(second))
            assert abs(moved) <= one.sensitivity(public).linf
            assert moved >= 0 or not one.monotone(public)
            largest[i] = max(largest[i], abs(moved))
    assert [one.monotone(public) for one in asked] == [neighbors == "add_remove"] * 3 + [False]
    assert all(largest)


def test_a_holdout_takes_questions_in_sql(people: dp.Session) -> None:
    live = people.start(Thresholdout.pure(PUBLIC, epsilon=2, budget=2, threshold=0.2))
    told = live.answer(Check(statistic=where("ward = 'b'", PUBLIC), training=0.1)).value
    assert told.overfit
    assert abs(told.value - 0.75) < 0.2
    with pytest.raises(dp.InvalidInput, match="not a multiple"):
        live.answer(
            Check(statistic=SqlStatistic(sql="SELECT SUM(age) FROM people WHERE age > 0"), training=0.1)
        )


def test_answerers_at_work_at_the_same_time_are_charged_one_by_one_and_share_the_budget(
    people: dp.Session,
) -> None:
    """Concurrent composition: their prices add up in the filter however the questions interleave."""
    first, second = people.watch(200, epsilon=1, positives=2), people.watch(50, epsilon=1.5, positives=2)
    holdout = people.start(Thresholdout.pure(PUBLIC, epsilon=1, budget=2, threshold=0.5))
    assert people.spent == pytest.approx(3.5)
    for _ in range(2):
        assert not first.ask("ward = 'c'").above
        holdout.answer(Check(statistic=CountNonNull(column="age"), training=0.9))
        assert not second.ask("age > 89").above
    assert people.spent == pytest.approx(3.5)
    with pytest.raises(dp.BudgetExceeded, match="the dataset's budget: this would raise epsilon"):
        people.watch(200, epsilon=1)
    assert people.watch(200, epsilon=0.4).number > holdout.number


def answers(kind: str, path: Path, number: int) -> Iterator[str]:
    mechanism, question = KINDS[kind]
    live = Curator.open(path, table()).resume(mechanism, number)
    yield "ready"
    while True:
        yield repr(live.answer(question).value)


def states(ledger: Any, number: int) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """What the ledger shows of each answer, and the secret state after it."""
    found = [entry for entry in ledger.entries(kind="state") if entry.body["charge"] == number]
    opened = [
        json.loads(ledger.key.unseal(e.sealed, f"{number}:{e.body['version']}".encode())) for e in found
    ]
    return [(entry.body, state) for entry, state in zip(found, opened, strict=True)]


# One kind of state now, the others in `make test-all`.
@pytest.mark.parametrize(
    "kind", [*list(KINDS)[:1], *(pytest.param(kind, marks=pytest.mark.slow) for kind in list(KINDS)[1:])]
)
def test_killed_in_the_middle_nothing_is_lost_repeated_or_redrawn(kind: str, people: dp.Session) -> None:
    mechanism, _ = KINDS[kind]
    live, shown = people.start(mechanism), []
    for count in (1, 4):
        victim = Victim(answers(kind, people.ledger.path, live.number))
        assert victim.readline() == "ready\n"
        shown += [victim.readline() for _ in range(count)]
        shown += victim.kill()
    kept = states(people.ledger, live.number)
    assert [body["version"] for body, _ in kept] == list(range(len(kept)))
    from discreet.curator import values

    told = [repr(values.decode(body["value"])) + "\n" for body, _ in kept[1:]]
    rest = iter(told)
    assert all(
        line in rest for line in shown
    )  # in this order; at most the last of each run was kept and not shown
    assert len(shown) <= len(told) <= len(shown) + 2
    for (_, before), (_, after) in pairwise(kept):
        threshold = "noise" if "noise" in before else "threshold"
        assert after["asked"] == before["asked"] + 1
        if after["positives"] == before["positives"]:
            assert after[threshold] == before[threshold]
    assert people.curator.verify() == []
    # A victim that had asked, and was not answered, left its ticket: it is answered first.
    tickets = {entry.body["version"] for entry in people.ledger.entries(kind="ticket")}
    left = tickets - {body["version"] for body, _ in kept}
    assert left <= {len(kept)}
    people.curator.resume(mechanism, live.number).answer(KINDS[kind][1])
    assert len(states(people.ledger, live.number)) == len(kept) + len(left) + 1


def test_the_noisy_threshold_cannot_be_read_from_the_files(people: dp.Session) -> None:
    live = people.start(KINDS["reusable holdout"][0])
    live.answer(KINDS["reusable holdout"][1])
    raw = b"".join(
        path.read_bytes()
        for path in people.ledger.path.parent.glob("people.ledger*")
        if path.suffix != ".key"
    )
    assert b'"asked"' not in raw
    assert b"positives" not in raw


def test_an_old_copy_is_found_against_an_anchor_and_a_state_put_back_by_hand_is_found_at_once(
    tmp_path: Path,
) -> None:
    path, copy = tmp_path / "people.ledger", tmp_path / "old"
    people = opened(path)
    mechanism, question = KINDS["reusable holdout"]
    live = people.start(mechanism)
    live.answer(question)
    copy.mkdir()
    _checkpointed(path)
    for file in tmp_path.glob("people.ledger*"):
        shutil.copy(file, copy / file.name)
    live.answer(question)
    anchor = people.ledger.anchor
    assert people.curator.verify(anchor) == []
    _swap_states(path, live.number)
    with pytest.raises(dp.DiscreetError, match="something was planted there, or taken away"):
        Curator.open(path, table()).resume(mechanism, live.number).answer(question)
    assert books.verify(Ledger(path)) != []
    for file in tmp_path.glob("people.ledger*"):
        file.unlink()
    for file in copy.glob("people.ledger*"):  # all files, as they once were: consistent in themselves
        shutil.copy(file, tmp_path / file.name)
    restored = Curator.open(path, table())
    assert restored.verify() == []
    assert any("rolled back" in problem for problem in restored.verify(anchor))


def _checkpointed(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()


def _swap_states(path: Path, number: int) -> None:
    """The sealed state of the first version in the place of the last: as if the noise could be used again."""
    with sqlite3.connect(path) as db:
        name = db.execute(
            "SELECT name FROM sqlite_master WHERE sql LIKE '%sealed%' AND type = 'table'"
        ).fetchone()[0]
        rows = db.execute(f"SELECT seq, sealed FROM {name} WHERE kind = 'state' ORDER BY seq").fetchall()
        for (trigger,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            db.execute(f"DROP TRIGGER {trigger}")
        db.execute(f"UPDATE {name} SET sealed = ? WHERE seq = ?", (rows[0][1], rows[-1][0]))
    db.close()


@pytest.mark.parametrize("as_file", [False, True])
def test_a_column_that_is_not_there_costs_nothing(as_file: bool, tmp_path: Path) -> None:
    """No schema declares an id or a time: whether there is such a column is asked of the table first."""
    data: Any = table()
    if as_file:
        pq.write_table(
            pa.table({name: pa.array(values) for name, values in ROWS.items()}), tmp_path / "p.parquet"
        )
        data = tmp_path / "p.parquet"
    schema = None if not as_file else PUBLIC
    people = dp.open(data, schema=schema, budget=dp.Budget(epsilon=9, delta=1e-5), ledger=tmp_path / "ledger")
    series: dict[str, Any] = {"public": people.public, "column": "age", "times": 10, "epsilon": 1}
    change = changepoints.GaussianChange(before=10, after=30, deviation=5)
    board = ShakyLadder(public=people.public, target="ward", id="idd", epsilon=1, delta=1e-6, budget=5)
    for ask in (
        lambda: people.curator.start(board),
        lambda: people.ask(changepoints.changepoint(**series, time="day", margin=2)),
        lambda: people.curator.start(ChangeWatch(**series, time="day", change=change, window=5, threshold=1)),
    ):
        with pytest.raises(
            dp.InvalidInput, match=r"has no column 'idd'\. Did you mean 'id'|has no column 'day'"
        ):
            ask()
    assert people.spent == 0
