"""Attacks from outside: strangers' bodies, two stewards, names in paths, slow previews, odd uploads, clocks."""

from __future__ import annotations

import re
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from discreet.app.web import Settings, verbs
from discreet.app.web.api import job_json
from discreet.app.web.auth import cookie_name
from discreet.app.web.front_desk import FrontDesk, takes_long
from discreet.app.web.server_store import ServerStore
from discreet.app.web.sessions import Desk, Folders
from discreet.app.web.workers import Lane, Worker, serve_requests

from .running import COUNT, Server


@contextmanager
def browser_of(server: Server, who: str) -> Iterator[tuple[httpx.Client, str]]:
    """Yield a client that is logged in with a cookie, and the token of its forms."""
    with httpx.Client(base_url=server.url, timeout=600) as client:
        assert client.post("/login", data={"token": server.tokens[who]}).status_code == 303
        yield client, re.search(r'data-csrf="([^"]+)"', client.get("/").text)[1]


@pytest.mark.parametrize("path", ["/steward/upload", "/steward/add", "/data/health/run", "/logout"])
def test_the_body_of_a_stranger_is_not_read(server: Server, path):
    """The answer is there before any of the 50 MB that were announced."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=600) as line:
        size = 50_000_000 if path == "/steward/upload" else 1_000_000
        kind = "multipart/form-data; boundary=x"
        line.sendall(
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nContent-Type: {kind}\r\n"
            f"Content-Length: {size}\r\n\r\n".encode()
        )
        assert line.recv(100).split()[1] == b"303", "to the log-in"


def test_a_role_that_may_not_send_is_refused_before_its_body_is_read(server: Server):
    with (
        browser_of(server, "ann") as (client, _),
        socket.create_connection(("127.0.0.1", server.port), timeout=600) as line,
    ):
        cookie = "; ".join(f"{name}={value}" for name, value in client.cookies.items())
        line.sendall(
            f"POST /steward/upload HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nCookie: {cookie}\r\n"
            f"Content-Type: multipart/form-data; boundary=x\r\nContent-Length: 50000000\r\n\r\n".encode()
        )
        assert line.recv(100).split()[1] == b"403"


def _policy(page: str) -> dict[str, str]:
    fields = dict(
        re.findall(r'name="(was|unit|epsilon|delta)" (?:inputmode="decimal" )?value="([^"]+)"', page)
    )
    text = re.search(r'<textarea id="analysts"[^>]*>([^<]*)</textarea>', page)[1]
    return fields | {"analysts": text.strip()}


def test_of_two_stewards_at_once_the_second_does_not_undo_the_first(server: Server):
    (server.folder / "data" / "shared.csv").write_text("a\n" + "1\n" * 50)
    schema = (
        'table = "shared"\nversion = "1"\nunit = "row"\n[columns.a]\ntype = "number"\nlower = 0\nupper = 1\n'
    )
    with server.client("steward") as steward:
        body = {"name": "shared", "path": "shared.csv", "schema_text": schema, "budget": {"epsilon": 3}}
        assert steward.post("/datasets", json=body).status_code == 201
    with browser_of(server, "steward") as (client, csrf):
        first = _policy(client.get("/steward/data/shared").text)
        second = dict(first)
        assert {"was", "unit", "epsilon", "delta"} <= first.keys()
        path, token = "/steward/data/shared/policy", {"csrf": csrf}
        assert client.post(path, data=first | token | {"analysts": "ann 1 0\nlater"}).status_code == 303
        lost = client.post(path, data=second | token | {"analysts": "bob 1 0"})
        assert lost.status_code == 400
        assert "changed by somebody else" in lost.text
        page = client.get("/steward/data/shared").text
        assert _policy(page)["analysts"].split("\n") == ["ann 1 0", "later"]
        assert "Not among the" in page, "a name of nobody is pointed out"
        made = client.post("/steward/people", data=token | {"name": "later", "role": "analyst"}).text
        given = re.search(r"dsc_[0-9a-f]{16}_[\w-]{43}", made)[0]
        names = httpx.get(f"{server.url}/api/v1/datasets", headers={"Authorization": f"Bearer {given}"})
        assert names.json() == {"datasets": ["shared"]}, "whom a policy named before sees it"
        removed = client.post("/steward/people/later/remove", data=token)
        assert removed.status_code == 303
        gone = httpx.get(f"{server.url}/api/v1/me", headers={"Authorization": f"Bearer {given}"})
        assert gone.status_code == 401


@pytest.mark.parametrize(
    "path", ["health.parquet::../../x", "health.parquet::t", "health.parquet.ledger-lock", "health.parquet::"]
)
def test_paths_that_name_no_table_of_a_database_open_nothing(server: Server, path):
    with server.client("steward") as steward:
        draft = steward.post("/drafts", json={"path": path})
        added = steward.post(
            "/datasets", json={"name": "odd", "path": path, "schema_text": "x = 1", "budget": {"epsilon": 1}}
        )
    assert (draft.status_code, added.status_code) == (400, 400)
    assert "Nothing was opened" in added.json()["error"]["message"]


@pytest.mark.parametrize(
    ("name", "content"),
    [("odd.parquet", b"hello"), ("nul.csv", b"a,b\x00c\n1,2\n\x00\x00,3\n"), ("none.csv", b"")],
)
def test_an_upload_that_cannot_be_read_is_not_kept(server: Server, name, content):
    with browser_of(server, "steward") as (client, csrf):
        sent = client.post("/steward/upload", data={"csrf": csrf}, files={"file": (name, content)})
        assert sent.status_code == 400
        assert not (server.folder / "data" / "uploads" / name).exists()
        again = client.post("/steward/upload", data={"csrf": csrf}, files={"file": ("../../x.sh", b"x")})
        assert again.status_code == 400


@pytest.mark.parametrize(
    ("verb", "options", "slow"),
    [
        ("preview", {"sql": COUNT, "epsilon": 0.1}, False),
        ("preview", {"sql": COUNT, "epsilon": 0.1, "noise": "gaussian"}, True),
        ("preview", {"sql": COUNT, "rho": 0.1}, True),
        ("preview", {"sql": "SELECT " + "SUM(age), " * 500, "within": 1}, True),
        ("preview", {"queries": [COUNT]}, True),
        ("price", {"mechanism": {"type": "query.Query", "sql": COUNT, "rho": None, "noise": "auto"}}, False),
        ("price", {"mechanism": {"type": "query.Query", "sql": COUNT, "rho": 0.1, "noise": "auto"}}, True),
        ("price", {"mechanism": {"type": "query.Query", "sql": 5, "noise": "auto"}}, True),
        ("price", {"mechanism": {"type": "query.WorkloadQuery"}}, True),
        ("price", {"mechanism": {}}, True),
        ("copies", {"last": 1}, True),
        ("odds", {"event": {}, "delta": 1e-6}, True),
        ("odds", {"event": {}, "delta": 0.0}, False),
        ("budget", {}, False),
        ("plan", {}, True),
    ],
)
def test_what_takes_long_is_done_where_it_holds_up_nobodys_preview(verb, options, slow):
    assert takes_long(verb, options) is slow


def test_one_person_never_has_all_previewers(tmp_path):
    store = ServerStore(tmp_path)
    lane = FrontDesk(Settings(state=tmp_path), store).previews
    assert lane.per_person < lane.count
    store.close()


def test_a_cookie_over_tls_is_one_that_no_other_host_can_set(tmp_path):
    assert cookie_name(Settings(state=tmp_path, secure=True)).startswith("__Host-")
    assert not cookie_name(Settings(state=tmp_path)).startswith("__")


def test_a_clock_that_was_set_back_shows_no_negative_time():
    job = {"id": "", "dataset": "", "verb": "fit", "state": "running", "seconds": 60.0}
    assert job_json(job | {"created": time.time() + 3600})["elapsed"] == 0
    assert job_json(job | {"created": time.time() - 3600})["elapsed"] == 60


def test_a_worker_whose_front_process_was_killed_ends_without_a_trace(monkeypatch, tmp_path):
    class Pipe:
        """Takes the first message and hands over a request; then the other end is gone."""

        sent = 0

        def poll(self, seconds: float) -> bool:
            return True

        def send_bytes(self, message: bytes) -> None:
            self.sent += 1
            if self.sent > 1:
                raise BrokenPipeError

        def recv_bytes(self) -> bytes:
            return b'{"verb": "none", "analyst": "ann", "dataset": {}, "options": {}}'

    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(verbs, "handle", lambda desk, request: {})
    pipe = Pipe()
    serve_requests(pipe, Desk(False, 1.0, Folders((), tmp_path)), "[]", None)
    assert pipe.sent == 2


def test_a_lane_that_was_ended_starts_no_process_in_place_of_a_dead_one(tmp_path):
    desk = Desk(False, 1.0, Folders((), tmp_path))
    lane = Lane(desk, 1, 1)
    worker = Worker(desk, [])
    lane.workers.add(worker)
    lane.end()
    lane._add()
    worker.process.join(600)
    assert not worker.process.is_alive()
    assert lane.workers == {worker}
    worker.kill()
