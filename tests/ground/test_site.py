"""The site is complete and keeps to itself: every public name and command has its place, every page is in the
menu, and nothing is loaded from another host."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import threading
from collections import Counter
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path

import pytest
import yaml
from docs import hooks
from docs.build import broken_links, headings
from docs.docstrings import markdown

import discreet as dp
from discreet.app.cli import COMMANDS, load
from discreet.app.cli.explain import browser

ROOT = Path(__file__).parents[2]
CONFIG = yaml.safe_load((ROOT / "mkdocs.yml").read_text())


def test_the_settings_load_nothing_from_elsewhere() -> None:
    assert CONFIG["theme"]["font"] is False
    assert "extra_javascript" not in CONFIG
    assert "extra_css" not in CONFIG
    assert all(level == "warn" for level in CONFIG["validation"]["links"].values())


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return hooks.generated()


def test_every_public_name_is_in_the_reference(pages: dict[str, str]) -> None:
    top = pages["reference/discreet.md"]
    for name in set(dp.__all__) - set(dp._PACKAGES):
        assert re.search(rf"^(:::.*\.|### ){name}$", top, re.M), name
    rooms = hooks.rooms()
    assert set(dp._PACKAGES) <= set(rooms)
    for room in rooms:
        page = pages[f"reference/{room}.md"]
        for name in import_module(f"discreet.{room}").__all__:
            assert re.search(rf"^(:::.*\.|### ){name}$", page, re.M) or _under_its_own_name(
                room, name, page
            ), name


def _under_its_own_name(room: str, name: str, page: str) -> bool:
    """A module or function that the room offers under another name than it has at home."""
    thing = getattr(import_module(f"discreet.{room}"), name)
    own = getattr(thing, "__qualname__", None) or thing.__name__.rsplit(".", 1)[-1]
    return bool(re.search(rf"^(:::.*\.|### ){re.escape(own)}$", page, re.M))


def test_every_command_and_option_is_in_the_reference(pages: dict[str, str]) -> None:
    text = pages["reference/commands.md"]
    for name in COMMANDS:
        assert f"## discreet {name}\n" in text
        part = text.split(f"## discreet {name}\n")[1].split("\n## ")[0]
        for option in load(name).params:
            assert all(f"`{spelled}`" in part for spelled in option.opts) or str(option.name).upper() in part


def test_every_page_is_in_the_menu_once() -> None:
    names = [str(p.relative_to(ROOT / "docs")) for p in (ROOT / "docs").rglob("*.md")]
    names += ["index.md", "reference/new_room.md", "a-page-that-will-come.md"]
    placed = [page for part in hooks.menu(names) for pages in part.values() for page in pages]
    assert sorted(placed) == sorted(names)
    assert hooks.part_of("streams.md") == hooks.IN_DEPTH


def test_docstrings_become_markdown() -> None:
    text = markdown("Does it.\n\nGuarantee: x <= 1\n    for all.\nProof: y.\n\n>>> 1 + 1\n2\n")
    assert (
        text
        == "Does it.\n\n**Guarantee.** x &lt;= 1\nfor all.\n\n**Proof.** y.\n\n```python\n>>> 1 + 1\n2\n```"
    )


def test_a_link_to_nothing_and_to_no_heading_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("docs.build.ROOT", tmp_path)
    page = tmp_path / "a.md"
    page.write_text("# One thing\n[x](b.md) [y](#one-thing) [z](#two) [w](a.md#one-thing)\n")
    assert headings(page) == {"one-thing"}
    assert broken_links(page) == ["a.md: b.md", "a.md: #two"]


def test_every_example_has_a_page_with_its_code_and_its_script(pages: dict[str, str]) -> None:
    attached = hooks.attached()
    for path in (ROOT / "examples").glob("*.py"):
        page = pages[f"examples/{path.stem}.md"]
        (code,) = re.findall(r"```python\n(.*?)```", page, re.S)
        assert ast.dump(ast.parse(code)) == ast.dump(ast.Module(ast.parse(path.read_text()).body[1:], []))
        assert page.startswith(f"# {path.stem}\n\n")
        assert len(page.split("\n\n")[1]) > 40, "what it shows, in words"
        assert f"({path.name})" in page
        assert attached[f"examples/{path.name}"] == path.read_bytes()
        assert f"({path.stem}.md)" in pages["examples/index.md"]


@pytest.mark.parametrize(
    "path", sorted((ROOT / "docs/notebooks").glob("*.ipynb")), ids=lambda path: path.stem
)
def test_every_notebook_has_a_page_with_all_that_it_shows(pages: dict[str, str], path: Path) -> None:
    page, attached = pages[f"notebooks/{path.stem}.md"], hooks.attached()
    cells = json.loads(path.read_text())["cells"]
    outputs = [output for cell in cells for output in cell.get("outputs", ())]
    kinds = Counter(kind for output in outputs for kind in output.get("data", ["stream"]))
    codes = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert re.findall(r"```python\n(.*?)\n```", page, re.S) == codes
    assert page.count("```text\n") == kinds["stream"]
    assert page.count("<div style=") >= kinds["text/html"] > 0
    pictures = re.findall(r"^!\[.{5,}\]\((pictures/.+)\)$", page, re.M)
    assert len(set(pictures)) == kinds["image/png"] + kinds["image/svg+xml"] >= 2
    for name in pictures:
        start = b"\x89PNG" if name.endswith(".png") else b"<svg "
        assert attached[f"notebooks/{name}"].startswith(start)
    assert f"({path.name})" in page, "the notebook itself can be had"
    assert f"(../notebooks/{path.stem}.md)" in pages["examples/index.md"]
    assert hooks.part_of(f"notebooks/{path.stem}.md") == "Tutorials"


def test_readme_becomes_the_first_page_with_its_links(pages: dict[str, str]) -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", pages["index.md"])
    assert links
    for link in links:
        assert (ROOT / "docs" / link).exists() or link in pages, link


LOADS = re.compile(r"<(?:script|img|iframe|source|video|audio|embed)\b[^>]*\bsrc=[\"']?(?:https?:)?//", re.I)
STYLES = re.compile(
    r"<link\b[^>]*\brel=[\"']?(?:stylesheet|preconnect|icon|preload)[^>]*href=[\"']?(?:https?:)?//", re.I
)


@pytest.mark.slow
def test_the_site_is_built_strictly_and_loads_nothing_from_another_host(tmp_path: Path) -> None:
    site = tmp_path / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(site)]
    env = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    built = list(site.rglob("*.html"))
    assert len(built) > 70
    for page in built:
        text = page.read_text()
        assert not LOADS.search(text), page
        assert not STYLES.search(text), page
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import)\s*[\"']?(https?:)?//", sheet.read_text()), sheet
    assert (site / "search" / "search_index.json").stat().st_size > 100_000
    if browser() is not None:
        assert results(site, "noisy max") > 3
        assert outside(site / "index.html") == outside(site / "course" / "index.html") == []


def results(site: Path, words: str) -> int:
    """How many pages the site's search finds, served by Python."""
    from playwright.sync_api import sync_playwright

    handler = partial(SimpleHTTPRequestHandler, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, sync_playwright() as driver:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        chromium = driver.chromium.launch(executable_path=browser(), args=["--no-sandbox"])
        tab = chromium.new_page(viewport={"width": 1300, "height": 900})
        tab.goto(f"http://127.0.0.1:{server.server_port}/index.html")
        tab.keyboard.press("/")
        tab.keyboard.type(words)
        found = tab.locator(".md-search-result__meta", has_text="matching")
        found.wait_for(timeout=60_000)
        text = found.inner_text()
        chromium.close()
        server.shutdown()
    return int(text.split()[0])


def outside(page: Path) -> list[str]:
    """What a browser asks other hosts for when it shows a page."""
    from playwright.sync_api import sync_playwright

    asked: list[str] = []
    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=browser(), args=["--no-sandbox"])
        tab = chromium.new_page()
        tab.on("request", lambda request: asked.append(request.url))
        tab.goto(page.as_uri())
        tab.wait_for_timeout(1000)
        chromium.close()
    return [url for url in asked if not url.startswith(("file:", "data:", "blob:"))]


def test_the_search_for_loads_would_notice_one() -> None:
    assert LOADS.search('<script src="https://unpkg.com/x"></script>')
    assert LOADS.search("<img alt=x src='//cdn.example/x.png'>")
    assert STYLES.search('<link rel="stylesheet" href="https://fonts.googleapis.com/css">')
    assert not LOADS.search('<a href="https://arxiv.org">x</a>')
