"""The server's own store: what a revoked token and a removed person leave behind."""

import asyncio
import re
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import Any

import argon2
import httpx
import pytest
from pydantic import ValidationError

from discreet import InvalidInput
from discreet.app import web
from discreet.app.web import api
from discreet.app.web.bodies import DatasetBody
from discreet.app.web.front_desk import FrontDesk
from discreet.app.web.server import build
from discreet.app.web.server_store import Dataset, Person, Role, ServerStore
from discreet.app.web.settings import Settings

from .running import Server


def test_every_name_that_the_package_lists_is_loaded_from_its_module():
    """`discreet serve` takes them from the package at its first start."""
    assert [getattr(web, name).__name__ for name in web.__all__] == web.__all__
    assert (web.Role, web.ServerStore, web.Settings, web.build) == (Role, ServerStore, Settings, build)


def run_apart(coroutine: Any) -> Any:
    """Run a coroutine in a thread of its own: the browser of other tests has a loop in this one."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(asyncio.run, coroutine).result()


@pytest.fixture
def quick_hashes(monkeypatch):
    """Hashes in a fraction of a millisecond: that they take long is of no matter here."""
    quick = partial(argon2.PasswordHasher, time_cost=1, memory_cost=8, parallelism=1)
    monkeypatch.setattr(argon2, "PasswordHasher", quick)


@pytest.mark.usefixtures("quick_hashes")
def test_a_revoked_token_leaves_no_password_behind(tmp_path):
    store = ServerStore(tmp_path)
    store.add_person("ann", Role.ANALYST)
    _, public = store.issue_token("ann", 1)
    ann = Person("ann", Role.ANALYST, credential=public)
    store.set_password(ann, "a password of a thief", "")
    assert store.by_password("ann", "a password of a thief") is not None
    assert store.revoke_token(public) == "ann"
    assert store.by_password("ann", "a password of a thief") is None
    store.close()


@pytest.mark.usefixtures("quick_hashes")
def test_nobody_stays_longer_than_their_token(tmp_path, monkeypatch):
    """The holder of a token that was about to end set a password, and stayed for ever."""
    store = ServerStore(tmp_path)
    store.add_person("ann", Role.ANALYST)
    short, long = (store.by_token(store.issue_token("ann", days)[0]) for days in (1, 30))
    first, second, third = "the first password", "the second password", "the third password"
    store.set_password(short, first, "")
    with pytest.raises(InvalidInput, match="old password"):
        store.set_password(long, second, "a guess at it")
    by_name = store.by_password("ann", first)
    cookie = store.open_session(by_name, 100.0)
    # A password that is set in such a session ends with the same token.
    store.set_password(store.by_cookie(cookie), second, first, cookie)
    assert store.by_password("ann", first) is None
    cookies = [cookie, store.open_session(short, 100.0)]
    assert all(store.by_cookie(cookie) for cookie in cookies)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 2 * 86400)
    assert store.by_password("ann", second) is None
    assert not any(store.by_cookie(cookie) for cookie in cookies)
    # With another token the owner sets one again, for which the old one, which has ended, is not needed.
    store.set_password(long, third, "")
    assert store.by_password("ann", third) is not None
    store.close()


def test_a_password_in_force_is_not_replaced_without_it(server: Server):
    with httpx.Client(base_url=server.url, headers={"Origin": server.url}) as browser:
        browser.post("/login", data={"token": server.tokens["bob"]})
        csrf = re.search(r'name="csrf" value="([^"]+)"', browser.get("/account").text)[1]

        def set_password(password: str, old: str) -> int:
            form = {"csrf": csrf, "password": password, "again": password, "old": old}
            return browser.post("/account", data=form).status_code

        assert set_password("the first password", "") == 200
        assert "Old password" in browser.get("/account").text
        assert set_password("the second password", "") == 400
        assert set_password("the second password", "the first password") == 200


def test_a_log_in_takes_as_long_for_a_name_that_does_not_exist(tmp_path, monkeypatch):
    """After the first log-in by name, whoever it is costs one verification, and no hash beside it."""
    work: list[str] = []

    class Hasher:
        def hash(self, password: str) -> str:
            work.append("hash")
            return password

        def verify(self, hashed: str, password: str) -> None:
            work.append("verify")
            if hashed != password:
                raise argon2.exceptions.VerifyMismatchError

    monkeypatch.setattr(argon2, "PasswordHasher", Hasher)
    store = ServerStore(tmp_path)
    for name in ("ann", "bob"):
        store.add_person(name, Role.ANALYST)
    ann = Person("ann", Role.ANALYST, credential=store.issue_token("ann", 1)[1])
    store.set_password(ann, "a long password", "")
    store.by_password("first", "guess")
    done = {}
    for name in ("ann", "bob", "nobody"):
        work.clear()
        assert store.by_password(name, "guess") is None
        done[name] = list(work)
    assert done["ann"] == done["bob"] == done["nobody"] == ["verify"]
    store.close()


def test_a_fault_of_the_server_has_the_shape_of_all_errors_and_says_nothing(tmp_path, monkeypatch):
    app = build(Settings(state=tmp_path))

    def broken(token: str) -> None:
        raise RuntimeError(f"a secret about {token}")

    async def get(path: str) -> httpx.Response:
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://testserver") as client:
            return await client.get(path, headers={"Authorization": "Bearer dsc_x"})

    monkeypatch.setattr(app.state.store, "by_token", broken)
    replies = [run_apart(get(path)) for path in ("/api/v1/me", "/")]
    for reply in replies:
        assert reply.status_code == 500
        assert "secret" not in reply.text
        assert "stays charged" in reply.text
        assert reply.headers["cache-control"] == "no-store"
        assert "default-src 'none'" in reply.headers["content-security-policy"]
    assert replies[0].json()["error"]["kind"] == "InternalError"
    app.state.store.close()


def test_a_second_server_over_one_folder_is_refused_and_leaves_the_jobs_of_the_first(tmp_path):
    """As when it is started twice by mistake, at the same port or at another."""
    app = build(Settings(state=tmp_path))
    store = app.state.store
    store.add_job("ann", "health", "sql", 60)
    with pytest.raises(InvalidInput, match=r"another server uses the folder .* --state of its own"):
        build(Settings(state=tmp_path))
    store.add_dataset(Dataset("health", "", "", ""))
    assert [job["state"] for job in store.jobs(Person("steward", Role.STEWARD))] == ["waiting"]
    store.close()
    build(Settings(state=tmp_path)).state.store.close()


@pytest.mark.parametrize("name", [".", ".."])
def test_no_person_and_no_dataset_is_called_like_a_step_of_a_path(tmp_path, name):
    """Browsers and clients would ask for another page: nobody could be removed, nothing be opened."""
    store = ServerStore(tmp_path)
    with pytest.raises(InvalidInput, match="not dots alone"):
        store.add_person(name, Role.ANALYST)
    store.add_person(".a.", Role.ANALYST)
    with pytest.raises(ValidationError):
        DatasetBody(name=name, path="x.csv")
    assert DatasetBody(name=".x.csv", path="x.csv").name == ".x.csv"
    store.close()


def test_a_person_who_is_removed_leaves_no_job_to_be_charged(tmp_path):
    store = ServerStore(tmp_path)
    for name in ("ann", "bob"):
        store.add_person(name, Role.ANALYST)
    jobs = [store.add_job(name, "health", "fit", 60) for name in ("ann", "bob")]
    cancelled: list[str] = []
    state = SimpleNamespace(store=store, desk=SimpleNamespace(cancel=cancelled.append))
    request: Any = SimpleNamespace(app=SimpleNamespace(state=state))
    removal = api.remove_person(request, "ann", Person("steward", Role.STEWARD))
    assert run_apart(removal) == {"removed": True}
    assert cancelled == jobs[:1]
    store.close()


def test_the_name_of_somebody_who_was_removed_is_not_given_again(tmp_path):
    store = ServerStore(tmp_path)
    store.add_person("ann", Role.ANALYST)
    assert store.remove_person("ann")
    with pytest.raises(InvalidInput, match="another person's"):
        store.add_person("ann", Role.ANALYST)
    store.close()


def test_all_unfinished_jobs_are_counted(tmp_path):
    store = ServerStore(tmp_path)
    store.add_person("ann", Role.ANALYST)
    first = store.add_job("ann", "health", "fit", 60)
    for _ in range(250):
        store.set_job(store.add_job("ann", "health", "fit", 60), "cancelled")
    assert [job["id"] for job in store.unfinished_jobs("ann")] == [first]
    store.close()


def test_a_ledger_under_two_names_has_one_horizon(tmp_path):
    """A job on one name withholds what is new in the same ledger under the other."""
    store = ServerStore(tmp_path / "state")
    store.add_person("ann", Role.ANALYST)
    (tmp_path / "books").touch()
    (tmp_path / "link").symlink_to(tmp_path / "books")
    for name, place in (("a", "books"), ("b", "link"), ("c", "elsewhere")):
        store.add_dataset(Dataset(name, "data", "schema", str(tmp_path / place)))
    desk = FrontDesk(Settings(state=tmp_path, seconds=1.0), store)
    ann, steward = Person("ann", Role.ANALYST), Person("steward", Role.STEWARD)
    held = {one.name: one for one in store.datasets(steward)}
    job = store.add_job("ann", "a", "sql", 60)
    with store._write() as db:
        db.execute("UPDATE jobs SET created = created - 30 WHERE id = ?", (job,))
    now = time.time()
    first, second = (desk.times.horizon(ann, held[name])["horizon"] for name in "ab")
    assert first == second < now - 25
    assert desk.times.horizon(ann, held["c"])["horizon"] > now - 25
    store.close()


@pytest.mark.parametrize("name", ["workers", "burst", "logins", "request_bytes", "upload_bytes", "port"])
@pytest.mark.parametrize("value", [-1, 1.5, True, "8"])
def test_settings_that_would_lock_everybody_out_are_refused(tmp_path, name, value):
    """With logins=0 nobody could log in; with request_bytes=0 no question could be sent."""
    with pytest.raises(InvalidInput, match=f"^{name} must be an integer"):
        Settings(state=tmp_path, **{name: value})
    if name == "port":
        assert Settings(state=tmp_path, port=0).port == 0
    else:
        with pytest.raises(InvalidInput, match="of at least 1, got 0"):
            Settings(state=tmp_path, **{name: 0})


def test_a_database_of_a_newer_version_is_refused_and_an_older_one_is_taken_on(tmp_path):
    store = ServerStore(tmp_path)
    (version,) = store._rows("PRAGMA user_version")[0]
    assert version >= 1
    with store._write() as db:
        db.execute("DROP INDEX jobs_of")
        db.execute("ALTER TABLE jobs DROP COLUMN ended")
        db.execute("PRAGMA user_version=0")
    store.close()
    store = ServerStore(tmp_path)
    store.set_job(store.add_job("ann", "health", "sql", 60), "cancelled")
    with store._write() as db:
        db.execute(f"PRAGMA user_version={version + 1}")
    store.close()
    with pytest.raises(InvalidInput, match="the newer discreet"):
        ServerStore(tmp_path)
