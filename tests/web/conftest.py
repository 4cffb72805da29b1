"""One server for all tests of a worker, and a browser that cannot reach any other host."""

from __future__ import annotations

import shutil
import ssl
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from playwright.sync_api import expect, sync_playwright

from . import run_server
from .running import Server

# A page that was clicked may still be loading: what is read of it waits for it, on a busy machine too.
expect.set_options(timeout=90_000)

# The first is the same browser without its windows, and takes half the CPU time.
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser")
CHROMIUM = next(filter(None, map(shutil.which, BROWSERS)), None)
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="session", autouse=True)
def certificates_are_read_once() -> Iterator[None]:
    """Each client of httpx reads the certificates of all authorities, 17 milliseconds of CPU time, though all
    that it is used for here is HTTP on this machine: hundreds of clients share what the first has read."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ssl, "create_default_context", cache(ssl.create_default_context))
        yield


@pytest.fixture(scope="session", autouse=True)
def one_process_forks_all_servers() -> Iterator[None]:
    yield
    run_server.end()


@pytest.fixture(scope="session")
def server(tmp_path_factory: Any) -> Iterator[Server]:
    # answers leave at multiples of a short tick: most tests wait for an answer or two
    running = Server(
        tmp_path_factory.mktemp("server"),
        tick=0.05,
        rate=1000,
        burst=2000,
        logins=1000,
        epsilon=100.0,
        workers=1,
        previewers=1,
    ).start()
    yield running
    running.stop()


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("NO BROWSER: chromium is not installed, so NO PAGE WAS TESTED (apt-get install chromium)")
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield opened
        opened.close()


@pytest.fixture
def page(browser: Any, server: Server) -> Iterator[Any]:
    """A page that notes what went wrong in it: errors of scripts, refused contents, requests to other hosts."""
    context = browser.new_context()
    context.set_default_timeout(90_000)
    opened = context.new_page()
    watch(opened, server.url)
    yield opened
    problems = opened.problems
    context.close()
    assert not problems, problems


def watch(page: Any, url: str) -> None:
    page.problems = []
    page.on("pageerror", lambda error: page.problems.append(f"script: {error}"))
    page.on(
        "console",
        lambda line: page.problems.append(line.text) if "Content Security Policy" in line.text else None,
    )
    page.on(
        "request",
        lambda request: (
            page.problems.append(request.url) if not request.url.startswith((url, "data:")) else None
        ),
    )
