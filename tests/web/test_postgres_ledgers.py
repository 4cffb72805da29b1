"""A server whose ledgers are in PostgreSQL (`discreet serve --ledgers`)."""

from __future__ import annotations

from typing import Any

import pytest

from discreet.curator import Ledger
from discreet.curator.postgres_store import PostgresStore, is_pointer

from .. import postgres
from .running import Server

pytestmark = postgres.needed

SCHEMA = (
    'table = "wards"\nversion = "1"\nunit = "row"\n[columns.ward]\ntype = "categories"\nvalues = ["A", "B"]\n'
)


@pytest.fixture
def running(tmp_path: Any) -> Any:
    database = postgres.server()
    address = database.address(database=database.database())
    server = Server(tmp_path, ledgers=address).start()
    yield server, address
    server.stop()


def test_a_dataset_that_is_added_has_its_ledger_in_the_database(running: Any) -> None:
    server, address = running
    data = server.folder / "data"
    (data / "wards.csv").write_text("ward\n" + "A\nB\n" * 500)
    body = {"name": "wards", "path": "wards.csv", "schema_text": SCHEMA, "budget": {"epsilon": 2}}
    with server.client("steward") as steward:
        made = steward.post("/datasets", json=body)
        assert made.status_code == 201, made.text
        asked = {"sql": "SELECT ward, COUNT(*) AS n FROM wards GROUP BY ward", "epsilon": 0.5}
        answer = steward.post("/datasets/wards/query", json=asked)
        assert answer.status_code == 200, answer.text
        assert steward.get("/datasets/wards/ledger/check").json()["whole"]
    pointer = data / "wards.csv.ledger"
    assert is_pointer(pointer)
    assert PostgresStore(pointer).remote == f"{address}::wards"
    assert [e.kind for e in Ledger(pointer).entries()].count("charge") == 1
