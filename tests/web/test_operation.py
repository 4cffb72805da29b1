"""A day in operation: health and counts, datasets that are removed, passwords, full disks, slow headers, the command."""

from __future__ import annotations

import errno
import logging
import re
import shutil
import socket
import sqlite3
import threading
import time
from http.client import HTTPConnection
from pathlib import Path

import httpx
import pytest
import uvicorn

import discreet as dp
from discreet import InvalidInput
from discreet.app.cli import serve
from discreet.app.web import Settings, build, workers
from discreet.app.web import server as application
from discreet.app.web.auth import Rates
from discreet.app.web.server_store import ANY_STEWARD, Person, Role, ServerStore
from discreet.app.web.sessions import Desk, Folders

from .running import COUNT, Server, free_port, in_a_loop

SCHEMA = 'table = "{}"\nversion = "1"\nunit = "row"\n[columns.a]\ntype = "number"\nlower = 0\nupper = 1\n'


def test_health_is_open_and_counts_are_for_stewards_and_auditors(server: Server):
    assert httpx.get(f"{server.url}/healthz").json() == {"ready": True}
    headers = {"Authorization": f"Bearer {server.tokens['olga']}"}
    httpx.post(f"{server.url}/api/v1/datasets/none/query", json={}, headers=headers)
    text = httpx.get(f"{server.url}/metrics", headers=headers).text
    values = dict(line.rsplit(" ", 1) for line in text.splitlines())
    assert int(values['discreet_requests_total{method="POST",status="403"}']) >= 1
    assert int(values['discreet_workers_ready{lane="data"}']) == 1
    assert values["discreet_questions_waiting"] == "0"


def test_a_dataset_that_is_removed_is_gone_and_goes_on_where_it_was(server: Server):
    (server.folder / "data" / "gone.csv").write_text("a\n" + "1\n" * 50)
    body = {
        "name": "gone",
        "path": "gone.csv",
        "schema_text": SCHEMA.format("gone"),
        "budget": {"epsilon": 3},
    }
    with server.client("steward") as steward:
        assert steward.post("/datasets", json=body).status_code == 201
        asked = {"sql": "SELECT COUNT(*) AS n FROM gone", "epsilon": 1}
        assert steward.post("/datasets/gone/query", json=asked).status_code == 200
        job = steward.post("/datasets/gone/run", json={"seconds": 600, "query": asked}).json()["id"]
        assert steward.delete("/datasets/gone").json() == {"removed": True}
        assert steward.get(f"/jobs/{job}").status_code == 404
        assert steward.get("/datasets/gone").status_code == 404
        assert "gone" not in steward.get("/datasets").json()["datasets"]
        again = steward.post("/datasets", json={"name": "gone", "path": "gone.csv"})
        assert again.status_code == 201
        assert steward.get("/datasets/gone/budget").json()["used"] == pytest.approx(1)
        acts = steward.get("/actions", params={"last": 1000}).json()["actions"]
        assert any(act["what"] == "removed dataset gone" for act in acts)
        first = steward.get("/actions", params={"last": 1, "first": 0}).json()["actions"]
        assert first == acts[-1:]


def test_a_dataset_that_is_refused_leaves_the_schema_beside_its_data_alone(server: Server):
    data, schema = (server.folder / "data" / f"kept.csv{tail}" for tail in ("", ".schema.toml"))
    data.write_text("a\n" + "1\n" * 50)
    body = {"name": "kept", "path": "kept.csv", "schema_text": "nonsense = [", "budget": {"epsilon": 3}}
    with server.client("steward") as steward:
        assert steward.post("/datasets", json=body).status_code == 400
        assert not schema.exists()
        schema.write_text(SCHEMA.format("kept"))
        assert steward.post("/datasets", json=body).status_code == 400
        assert schema.read_text() == SCHEMA.format("kept")


def test_the_steward_sees_the_jobs_of_all_and_ends_them(server: Server):
    with server.client("ann") as ann, server.client("bob") as bob, server.client("steward") as steward:
        asked = {"sql": f"{COUNT} -- long", "epsilon": 0.01}
        job = ann.post("/datasets/health/run", json={"seconds": 600, "query": asked}).json()["id"]
        (line,) = [one for one in steward.get("/jobs").json()["jobs"] if one["id"] == job]
        assert line["person"] == "ann"
        assert bob.delete(f"/jobs/{job}").status_code == 404
        assert steward.delete(f"/jobs/{job}").json() == {"cancelled": True}
        assert ann.get(f"/jobs/{job}").json()["state"] == "cancelled"
        entries = steward.get("/datasets/health/ledger", params={"last": 20}).json()["entries"]
        assert any(e["body"].get("what") == "ended a job of ann" for e in entries), "it is on record"


def test_a_changed_password_ends_other_sessions(tmp_path):
    store = ServerStore(tmp_path)
    store.add_person("ann", Role.ANALYST)
    token = store.issue_token("ann", 1)[0]
    ann = store.by_token(token)
    cookies = [store.open_session(ann, 1) for _ in range(3)]
    store.set_password(ann, "a long enough one", "", cookies[1])
    assert [store.by_cookie(cookie) is not None for cookie in cookies] == [False, True, False]
    store.close()


def test_who_logs_in_rightly_does_not_use_up_the_guesses_of_an_address():
    rates = Rates(0.0, 3)
    for _ in range(9):
        assert rates.take("address")
        rates.give_back("address")
    assert [rates.take("address") for _ in range(4)] == [True, True, True, False]


def test_right_log_ins_from_one_address_are_not_refused(tmp_path):
    server = Server(tmp_path, logins=3, rate=1000, burst=1000, workers=1, previewers=1).start()
    try:
        tokens = [server.tokens[who] for who in ("ann", "bob", "steward", "olga")] * 2
        assert [httpx.post(f"{server.url}/login", data={"token": t}).status_code for t in tokens] == [303] * 8
        wrong = [httpx.post(f"{server.url}/login", data={"token": "x"}).status_code for _ in range(4)]
        assert wrong == [401, 401, 401, 429]
    finally:
        server.stop()


def test_an_expired_token_can_be_revoked(tmp_path):
    store = ServerStore(tmp_path)
    store.add_person("ann", Role.ANALYST)
    _, public = store.issue_token("ann", 1)
    with store._write() as db:
        db.execute("UPDATE tokens SET expires = 0")
    page = (Path(application.__file__).parent / "templates" / "people.html").read_text()
    assert page.index("expired{% else %}") < page.index("Revoke"), "its button is there"
    assert store.revoke_token(public) == "ann"
    assert store.tokens_of("ann")[0]["revoked"]
    store.close()


@pytest.mark.parametrize("error", [sqlite3.OperationalError("disk is full"), OSError(errno.ENOSPC, "full")])
def test_a_full_disk_is_a_503_and_is_said(tmp_path, monkeypatch, error):
    app = build(Settings(state=tmp_path))
    store = app.state.store
    store.add_person("root", Role.STEWARD)
    token = store.issue_token("root", 1)[0]

    def full(*_: object) -> None:
        raise error

    monkeypatch.setattr(store, "add_person", full)
    port = free_port()
    with running(app, port):
        headers = {"Authorization": f"Bearer {token}"}
        body = {"name": "x", "role": "analyst"}
        reply = httpx.post(f"http://127.0.0.1:{port}/api/v1/people", json=body, headers=headers)
    assert reply.status_code == 503
    assert "cannot write" in reply.json()["error"]["message"]
    store.close()


class running:
    """Serves an application without its workers."""

    def __init__(self, app, port: int) -> None:
        config = {"http": application.HeaderLimit, "lifespan": "off", "log_level": "warning"}
        self.server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, **config))
        self.thread = threading.Thread(target=self.server.run)

    def __enter__(self) -> None:
        self.thread.start()
        while not self.server.started:
            time.sleep(0.01)

    def __exit__(self, *_: object) -> None:
        self.server.should_exit = True
        self.thread.join()


def test_a_header_that_takes_too_long_ends_its_connection(tmp_path, monkeypatch):
    """Of the first request, and of a later one; a connection that is idle between requests stays."""
    monkeypatch.setattr(application, "HEADER_SECONDS", 0.5)
    app, port = build(Settings(state=tmp_path)), free_port()
    request = b"GET /login HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    with running(app, port):
        slow = socket.create_connection(("127.0.0.1", port), timeout=60)
        slow.sendall(request)
        assert slow.recv(100) == b"", "closed without a reply"
        slow.close()
        kept = HTTPConnection("127.0.0.1", port, timeout=60)
        for _ in range(2):
            kept.request("GET", "/login")
            opened, reply = kept.sock, kept.getresponse()
            assert (reply.status, bool(reply.read())) == (200, True)
            time.sleep(1.5)
            assert kept.sock is opened
        kept.sock.sendall(request)
        assert kept.sock.recv(100) == b""
        kept.close()
    app.state.store.close()


def test_refused_writes_and_dead_workers_are_logged(tmp_path, caplog, monkeypatch):
    app, port = build(Settings(state=tmp_path)), free_port()
    app.state.store.add_person("ann", Role.ANALYST)
    headers = {"Authorization": f"Bearer {app.state.store.issue_token('ann', 1)[0]}"}
    monkeypatch.setattr(application, "LINES", Rates(0.0, 3))
    client = httpx.Client(base_url=f"http://127.0.0.1:{port}/api/v1")
    with caplog.at_level(logging.WARNING), running(app, port), client:
        client.post("/people", json={"name": "secret"})
        client.get("/people", headers=headers)
        for _ in range(9):
            client.post("/people", json={"name": "secret"}, headers=headers)
    lines = [record.getMessage() for record in caplog.records if record.name == "discreet.access"]
    assert lines == ["POST /api/v1/people 403"] * 3, (
        "patterns of refused writes, of no stranger's, and not all"
    )
    app.state.store.close()
    caplog.clear()

    async def dead() -> workers.Lane:
        lane = workers.Lane(Desk(False, 1.0, Folders((), tmp_path)), 1, 1)
        lane._stopped, turn = True, workers.asyncio.Semaphore(1)

        class Dead:
            def call(self, *_: object) -> dict:
                return {"error": workers.DIED, "touched": True, "dead": True}

            def kill(self) -> None: ...

        await lane._run(Dead(), {}, 0.0, turn)
        return lane

    assert in_a_loop(dead).ended == 1
    assert [record.getMessage() for record in caplog.records] == ["a worker has died"]


def test_a_password_in_the_address_of_ledgers_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match="has a password in it"):
        Settings(state=tmp_path, ledger="postgresql://user:secret@host/db")


def test_the_command_refuses_what_it_cannot_use_before_it_makes_anything(tmp_path, monkeypatch):
    taken = socket.create_server(("127.0.0.1", 0))
    with pytest.raises(InvalidInput, match=r"port \d+ .*in use"):
        serve._bind("127.0.0.1", taken.getsockname()[1])
    taken.close()
    with pytest.raises(InvalidInput, match="cannot listen at 999"):
        serve._bind("999.1.1.1", 0)
    with pytest.raises(InvalidInput, match="no certificate"):
        serve.check_tls("127.0.0.1", tmp_path / "none.pem", tmp_path / "none.pem", False)
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInput, match="cannot be made"):
        ServerStore(tmp_path / "file")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]


def test_a_steward_who_has_no_token_left_gets_one_on_the_machine(tmp_path, capsys):
    with pytest.raises(InvalidInput, match="no server in the folder"):
        serve._new_steward_token(tmp_path, "root")
    store = ServerStore(tmp_path)
    store.add_person("root", Role.STEWARD)
    store.add_person("ann", Role.ANALYST)
    store.revoke_token(store.issue_token("root", 1)[1])
    serve._new_steward_token(tmp_path, "root")
    token = re.search(r"dsc_\S+", capsys.readouterr().out)[0]
    found = store.by_token(token)
    assert found == Person("root", Role.STEWARD, credential=found.credential)
    assert "on the server's machine" in store.actions(1)[0][2]
    with pytest.raises(InvalidInput, match="no steward here"):
        serve._new_steward_token(tmp_path, "ann")
    store.close()


def test_a_copy_that_was_made_while_it_serves_is_put_back(tmp_path, capsys):
    settings = serve.demo_settings(tmp_path, {}, epsilon=5.0)
    state, copy, data = tmp_path / "state", tmp_path / "copy", tmp_path / "data"
    running = ServerStore(state)
    running.claim()
    (dataset,) = running.datasets(ANY_STEWARD)
    files = {"schema": Path(dataset.schema), "ledger": Path(dataset.ledger)}
    dp.open(data / "health.parquet", **files).sql("SELECT COUNT(*) AS n FROM health", epsilon=0.5)
    serve._back_up(state, copy)
    assert re.fullmatch(r"health: \d+:[0-9a-f]{64}\n", capsys.readouterr().out)
    assert {path.stat().st_mode & 0o077 for path in copy.iterdir()} == {0}
    with pytest.raises(InvalidInput, match="new folder"):
        serve._back_up(state, copy)
    with pytest.raises(InvalidInput, match="Nothing was put back"):
        serve._restore(tmp_path / "other", copy)
    running.close()
    shutil.rmtree(state)
    for suffix in ("", ".key", "-lock"):
        Path(dataset.ledger + suffix).unlink()
    serve._restore(state, copy)
    restored = ServerStore(state)
    assert all(restored.by_token(token).name == name for name, _, token in settings.demo_tokens)
    assert dp.open(data / "health.parquet", **files).spent == pytest.approx(0.5)
    restored.close()


def test_a_download_is_sent_from_a_file_that_is_deleted(server: Server):
    with server.client("ann") as ann:
        work = {"epsilon": 1, "columns": ["sex", "health"], "method": "independent"}
        copied = ann.post("/datasets/health/run", json={"synthesize": work, "seconds": 20}).json()["id"]
        while ann.get(f"/jobs/{copied}").json()["state"] in ("waiting", "running"):
            time.sleep(0.2)
        number = ann.get("/datasets/health/copies").json()["copies"][-1]["number"]
        reply = ann.get(f"/datasets/health/copies/{number}/rows.csv", params={"rows": 50_000})
        assert reply.headers["transfer-encoding"] == "chunked"
        assert len(reply.text.splitlines()) == 50_001
        assert ann.get(f"/datasets/health/copies/{number + 99}/rows.csv").status_code == 400
    assert list((server.folder / "state" / "downloads").iterdir()) == []
