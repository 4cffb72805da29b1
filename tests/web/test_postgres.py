"""Two servers with one PostgreSQL database for their ledgers: one budget, whichever machine is asked."""

from __future__ import annotations

import shutil
import sqlite3
import threading

import pytest

import discreet as dp
from discreet.app.web import Settings
from discreet.curator import Ledger, books

from .. import postgres
from .running import Server

pytestmark = postgres.needed
ONE = "SELECT COUNT(*) AS n FROM health WHERE age > {}"


@pytest.fixture(scope="module")
def address() -> str:
    running = postgres.server()
    return running.address(database=running.database())


@pytest.fixture(scope="module")
def machines(tmp_path_factory, address):
    """The first makes the dataset; the second has a copy of its files, and so the same ledger and key."""
    first = Server(
        tmp_path_factory.mktemp("one"),
        ledger=address,
        rate=1000,
        burst=2000,
        workers=1,
        previewers=1,
        epsilon=2.0,
    ).start()
    folder = tmp_path_factory.mktemp("two") / "copy"
    shutil.copytree(first.folder, folder)
    db = sqlite3.connect(folder / "state" / "server.db")
    with db:
        for column in ("data", "schema", "ledger"):
            db.execute(
                f"UPDATE datasets SET {column} = replace({column}, ?, ?)", (str(first.folder), str(folder))
            )
    db.close()
    second = Server(
        folder, ledger=address, rate=1000, burst=2000, workers=1, previewers=1, epsilon=2.0
    ).start()
    yield first, second
    first.stop()
    second.stop()


def test_what_one_machine_charges_the_other_knows(machines):
    first, second = (dp.connect(one.url, one.tokens["ann"]) for one in machines)
    before = second.spent
    first.sql(ONE.format(1), epsilon=0.25)
    assert second.spent == pytest.approx(before + 0.25, abs=0.01)
    spent = second.spent
    assert second.sql(ONE.format(1), epsilon=0.25) == first.sql(ONE.format(1), epsilon=0.25), (
        "and what it stored"
    )
    assert second.spent == spent


def test_two_machines_at_once_never_spend_more_than_there_is(machines, address):
    codes: list[int] = []

    def ask(server: Server, start: int) -> None:
        with server.client("bob") as client:
            for i in range(start, start + 6):
                body = {"sql": ONE.format(i), "epsilon": 0.125}
                codes.append(client.post("/datasets/health/query", json=body).status_code)

    threads = [threading.Thread(target=ask, args=(one, 10 + 20 * i)) for i, one in enumerate(machines)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # bob has 0.8: six of these, and no seventh
    assert codes.count(200) == 6
    assert set(codes) == {200, 402}
    ledger = Ledger(machines[0].folder / "data" / "health.parquet.ledger")
    assert ledger.path.read_bytes().startswith(b"discreet ledger on PostgreSQL")
    assert books.verify(ledger) == []


def test_a_dataset_that_is_added_keeps_its_ledger_in_the_database(machines):
    first, _ = machines
    (first.folder / "data" / "Wards-2.csv").write_text("ward\n" + "A\nB\n" * 50)
    schema = 'table = "wards"\nversion = "1"\nunit = "row"\n[columns.ward]\ntype = "categories"\nvalues = ["A", "B"]\n'
    with first.client("steward") as steward:
        body = {"name": "Wards-2", "path": "Wards-2.csv", "schema_text": schema, "budget": {"epsilon": 2}}
        made = steward.post("/datasets", json=body)
        assert made.status_code == 201, made.text
        asked = {"sql": "SELECT ward, COUNT(*) AS n FROM wards GROUP BY ward", "epsilon": 1}
        assert steward.post("/datasets/Wards-2/query", json=asked).status_code == 200
        assert steward.get("/datasets/Wards-2/ledger/check").json()["whole"]
    pointer = (first.folder / "data" / "Wards-2.csv.ledger").read_text()
    assert pointer.strip().endswith("::d_wards_2")


def test_an_address_that_is_none_is_refused_before_a_start(tmp_path):
    for text in ("books.ledger", "mysql://x/y", "postgresql://a@b/c::d"):
        with pytest.raises(dp.InvalidInput, match="Nothing was started"):
            Settings(state=tmp_path, ledger=text)
