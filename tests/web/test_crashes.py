"""kill -9 under load: the ledger stays whole, and nothing is released without a charge."""

from __future__ import annotations

import random
import threading
import time

import httpx
import pytest

from discreet.curator import Ledger, books

from .running import Server

# for each kill: how many clients ask at once
CLIENTS = 4


def _load(server: Server, who: str, number: int, stop: threading.Event, answers: list[str]) -> None:
    """Ask ever new questions until told to stop; a server that is gone is waited for."""
    count = 0
    with server.client(who) as client:
        while not stop.is_set():
            count += 1
            low = random.Random(f"{number} {count}").randrange(60)
            sql = f"SELECT COUNT(*) AS n FROM health WHERE age > {low} AND visits >= {number}"
            body = {"sql": sql, "epsilon": 0.001 + count * 1e-6}
            try:
                reply = client.post("/datasets/health/query", json=body)
            except httpx.HTTPError:
                time.sleep(0.05)
                continue
            if reply.status_code == 200:
                answers.append(sql)


def kill_under_load(folder, kills: int) -> None:
    server = Server(folder, tick=0.25, workers=1, previewers=1, rate=1000, burst=2000, epsilon=50.0).start()
    stop, answers = threading.Event(), []
    threads = [
        threading.Thread(target=_load, args=(server, who, i, stop, answers))
        for i, who in enumerate(["ann", "bob"] * (CLIENTS // 2))
    ]
    for thread in threads:
        thread.start()
    chance = random.Random(28)
    try:
        for _ in range(kills):
            reached = len(answers)
            deadline = time.monotonic() + 600
            while len(answers) <= reached and time.monotonic() < deadline:
                time.sleep(0.02)
            time.sleep(chance.random() * 0.5)
            server.kill()
            _check(folder, answers)
            server.start()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        server.stop()
    assert len(answers) >= kills, "there was load"
    _check(folder, answers)


def _check(folder, answers: list[str]) -> None:
    ledger = Ledger(folder / "data" / "health.parquet.ledger")
    assert books.verify(ledger) == []
    charges, releases = {}, {}
    for entry in ledger.entries():
        if entry.kind == books.SPENDING:
            charges[entry.seq] = entry.body["text"]
        elif entry.kind == "release":
            assert entry.body["charge"] in charges, "a release without a charge"
            releases[entry.body["charge"]] = entry.seq
    paid = {charges[number] for number in releases}
    assert set(answers) <= paid, "an answer that was shown was charged and is stored"


def test_two_power_cuts_under_load_lose_no_charge(tmp_path):
    """What is wrong after every cut is seen after one; what is wrong after few needs the hundred."""
    kill_under_load(tmp_path / "server", 2)


@pytest.mark.slow
def test_a_hundred_power_cuts_under_load_lose_no_charge(tmp_path):
    kill_under_load(tmp_path / "server", 100)
