"""The site is complete and keeps to itself: every public name and command has its place, every page is in the
menu, formulas are typeset when it is built, and nothing is loaded from another host."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from inspect import ismodule
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import markdown as python_markdown
import pytest
import yaml
from docs import hooks, rendering
from docs.build import COMMAND, broken_links, headings
from docs.docstrings import markdown
from mkdocs.exceptions import PluginError

import discreet as dp
from discreet.app.cli import COMMANDS, load
from discreet.app.cli.explain import browser

PACKAGES = {name for name in dp.__all__ if ismodule(getattr(dp, name))}

ROOT = Path(__file__).parents[2]
CONFIG = yaml.safe_load((ROOT / "mkdocs.yml").read_text())


def test_the_settings_load_nothing_from_elsewhere() -> None:
    assert CONFIG["theme"]["font"] is False
    assert "extra_javascript" not in CONFIG
    assert [sheet for sheet in CONFIG["extra_css"] if not (ROOT / "docs" / sheet).is_file()] == []
    assert all(level == "warn" for level in CONFIG["validation"]["links"].values())


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return hooks.generated()


def test_every_public_name_is_in_the_reference(pages: dict[str, str]) -> None:
    top = pages["reference/discreet.md"]
    for name in set(dp.__all__) - set(PACKAGES):
        assert re.search(rf"^(:::.*\.|### ){name}$", top, re.M), name
    packages = hooks.packages()
    assert set(PACKAGES) <= set(packages)
    assert {"mechanisms.matrix", "accounting.pld", "learning.pate", "learning.features"} <= set(
        hooks.nested()
    )
    for package in (*packages, *hooks.nested()):
        page = pages[f"reference/{package}.md"]
        for name in import_module(f"discreet.{package}").__all__:
            assert re.search(rf"^(:::.*\.|### ){name}$", page, re.M) or _under_its_own_name(
                package, name, page
            ), name


def _under_its_own_name(package: str, name: str, page: str) -> bool:
    """A module or function that the room offers under another name than it has at home."""
    thing = getattr(import_module(f"discreet.{package}"), name)
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
    reader = "Steward" if path.stem == "publisher" else path.stem.title()
    assert hooks.part_of(f"notebooks/{path.stem}.md") == reader


def test_readme_becomes_the_first_page_with_its_links(pages: dict[str, str]) -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", pages["index.md"])
    assert links
    for link in links:
        assert (ROOT / "docs" / link).exists() or link in pages, link


def shown(text: str) -> str:
    """A page as the site has it, without the theme."""
    chosen = [each if isinstance(each, dict) else {each: {}} for each in CONFIG["markdown_extensions"]]
    options = {name: given for each in chosen for name, given in each.items()}
    html = python_markdown.markdown(
        rendering.on_page_markdown(text), extensions=list(options), extension_configs=options
    )
    return rendering.on_page_content(html, page=SimpleNamespace(file=SimpleNamespace(src_uri="a.md")))


def test_formulas_become_mathml_within_lines_and_on_lines_of_their_own() -> None:
    html = shown(
        "If $D \\sim D'$ then\n\n$$\n\\Pr[S] \\le e^{\\varepsilon} x_i < \\ln\\frac{1}{2}\n$$\n\n- a $\\rho$\n"
    )
    assert html.count("<math ") == 3
    assert html.count('display="block"') == 1
    assert "<msub><mi>x</mi><mi>i</mi></msub>" in html
    assert "<msup><mi>e</mi><mrow><mi>&#x003B5;</mi></mrow></msup>" in html
    assert "<mfrac>" in html
    assert "&#x0003C;" in html, "the sign is not a tag"
    assert not re.search(r"[$\\]|arithmatex", html)


def test_only_long_formulas_within_lines_scroll_on_a_phone() -> None:
    assert 'class="long"' in shown("so $x_1 + x_2 + x_3 + x_4 + x_5 + x_6 + x_7 + x_8 + x_9$")
    assert 'class="long"' not in shown("so $x_1 + x_2$\n\n$$\n" + "x + " * 30 + "x\n$$\n")


def test_names_and_relations_of_formulas_have_the_spaces_of_tex() -> None:
    assert '<mo lspace="0.167em" rspace="0">Pr</mo>' in rendering.mathml(r"\Pr(x)")
    assert '<mo lspace="0.167em" rspace="0.167em">ln</mo>' in rendering.mathml(r"\ln x")
    assert "<mo>&#x0223C;</mo>" in rendering.mathml(r"X \sim Y")
    assert '<mo lspace="0" rspace="0">/</mo>' in rendering.mathml("1/n")
    assert rendering.mathml("|x|").count('lspace="0" rspace="0">&#x0007C;') == 2
    assert '<mo stretchy="false">&#x02308;</mo>' in rendering.mathml(r"\lceil x \rceil")


@pytest.mark.parametrize(
    "text",
    [
        "It costs $5 or $6.",
        "`$x$` and ``$$y$$``",
        "```sh\necho $HOME $PATH\n```",
        '```python\nquery("$x$")\n```',
        r"a \$b\$ c",
    ],
)
def test_dollars_of_prices_and_code_are_no_formulas(text: str) -> None:
    html = shown(text)
    assert "<math" not in html
    assert html.count("$") == text.count("$")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (r"$\nosuch x$", r"\\nosuch"),
        (r"$\frac{1}{$", "no partner"),
        ("$x^$", "not complete"),
        (r"$$\begin{tikzcd} a \end{tikzcd}$$", "tikzcd"),
        (r"a $$x$$ within a line", "touches"),
        ("$5/$6", "touches"),
        (r"the $n$th", "touches"),
        (r"outside: \frac{1}{2}", "outside of a formula"),
        ("text\n$$\nx\n", "outside of a formula"),
        ("# The $x$ of it", "heading"),
    ],
)
def test_what_is_no_formula_stops_the_build_and_names_the_page(text: str, said: str) -> None:
    with pytest.raises(PluginError, match=r"^a\.md: .*" + re.escape(said)):
        shown(text)


def test_sessions_are_copied_without_prompts_and_output() -> None:
    html = shown('```sh\n$ cat a \\\n    b\nwhat they hold\n$ echo "<x>" && ls\na\n```\n')
    assert 'data-copy="cat a \\\n    b\necho &quot;&lt;x&gt;&quot; &amp;&amp; ls"' in html
    html = shown(
        "```python\n# before\n>>> with a:\n...     b()\nTraceback (most recent call last):\n...\nE\n>>> 1\n1\n```\n"
    )
    assert 'data-copy="with a:\n    b()\n1\n"' in html
    assert "data-copy" not in shown("```sh\nmake demo\n```\n\n```python\nx = 1\n```\n")


def test_what_a_command_reads_up_to_a_word_is_copied_with_it() -> None:
    text = "$ cat > a <<'END'\n$ 1;2\n\nrow\nEND\nsaid\n$ ls\n"
    assert rendering.typed(text) == "cat > a <<'END'\n$ 1;2\n\nrow\nEND\nls"
    html = shown(
        f"```sh\n{text}```\n\n```sh\n$ ls\nout\n```\n\n\n```sh\n$ a\n\n$ cat <<X\nX\n```\n\nthis << that\n"
    )
    assert re.findall(r'class="language-(\w+) highlight" data-copy', html) == ["sh", "console", "sh"]


def test_a_hit_in_a_guide_counts_more_than_one_in_the_reference() -> None:
    def boost(name: str) -> float:
        page: Any = SimpleNamespace(meta={}, file=SimpleNamespace(src_uri=name))
        hooks.on_page_markdown("", page=page)
        return page.meta["search"]["boost"]

    guides = min(
        boost(name) for name in ("curator.md", "tutorials/analyst.md", "index.md", "course/index.md")
    )
    assert (
        guides
        > boost("reference/query.md")
        > boost("examples/pate_labels.md")
        > boost("decisions/0007-no-ibis.md")
    )


@pytest.mark.parametrize(
    ("text", "said"), [("[x](nothing.md)", "nothing.md"), (r"$\nosuch$", "nosuch"), ("$x$", "")]
)
def test_a_warning_and_a_wrong_formula_fail_the_build(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text(text)
    formulas = [each for each in CONFIG["markdown_extensions"] if "pymdownx.arithmatex" in each]
    config = {"site_name": "x", "hooks": [str(ROOT / "docs" / "rendering.py")], "plugins": []}
    (tmp_path / "mkdocs.yml").write_text(yaml.safe_dump(config | {"markdown_extensions": formulas}))
    command = [*COMMAND[:-1], str(tmp_path / "mkdocs.yml")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode == 0) == (said == ""), done.stderr
    assert said in done.stderr


LOADS = re.compile(r"<(?:script|img|iframe|source|video|audio|embed)\b[^>]*\bsrc=[\"']?(?:https?:)?//", re.I)
STYLES = re.compile(
    r"<link\b[^>]*\brel=[\"']?(?:stylesheet|preconnect|icon|preload)[^>]*href=[\"']?(?:https?:)?//", re.I
)


@pytest.mark.slow
def test_the_site_is_built_strictly_and_loads_nothing_from_another_host(tmp_path: Path) -> None:
    site = tmp_path / "site"
    env = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run([*COMMAND, "-d", str(site)], cwd=ROOT, env=env, capture_output=True, text=True)
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
        with tab(site) as page:
            assert len(results(page, "noisy max")) > 3
            for words in ("budget", "stream", "epsilon"):
                first = results(page, words)[0]
                assert hooks.part_of(first.replace(".html", ".md")) in GUIDES, (words, first)
            assert_wide_parts_scroll_by_themselves(page)
            assert_the_colors_follow_the_system_until_the_button_is_pressed(page)
            assert_the_copy_button_copies_what_is_typed(page)
        assert outside(site / "index.html") == outside(site / "course" / "index.html") == []


GUIDES = ("Start", "Steward", "Analyst", "Engineer")


@contextmanager
def tab(site: Path) -> Iterator[Any]:
    """A tab of a browser that shows the site's first page, served by Python."""
    from playwright.sync_api import sync_playwright

    handler = partial(SimpleHTTPRequestHandler, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, sync_playwright() as driver:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        chromium = driver.chromium.launch(executable_path=browser(), args=["--no-sandbox"])
        base = f"http://127.0.0.1:{server.server_port}/"
        context = chromium.new_context(base_url=base, permissions=["clipboard-read", "clipboard-write"])
        yield context.new_page()
        chromium.close()
        server.shutdown()


def results(page: Any, words: str) -> list[str]:
    """The addresses that the site's search finds, best first."""
    page.set_viewport_size({"width": 1300, "height": 900})
    page.goto("index.html")
    page.keyboard.press("/")
    page.keyboard.type(words)
    page.locator(".md-search-result__meta", has_text="matching").wait_for(timeout=60_000)
    links = page.locator(".md-search-result__item > a")
    return [re.split("[?#]", each.get_attribute("href"))[0].split("/", 3)[3] for each in links.all()]


def assert_wide_parts_scroll_by_themselves(page: Any) -> None:
    """On a phone the page is as wide as the screen, though lines of code and tables are wider."""
    page.set_viewport_size({"width": 390, "height": 844})
    for name in (
        "index.html",
        "sql.html",
        "benchmarks.html",
        "course/definitions.html",
        "reference/query.html",
    ):
        page.goto(name)
        assert page.evaluate("document.documentElement.scrollWidth") == 390, name
        wide = "[...document.querySelectorAll('pre > code, .md-typeset__scrollwrap')].some(e => e.scrollWidth > e.clientWidth)"
        assert page.evaluate(wide) or name == "index.html", name


def assert_the_colors_follow_the_system_until_the_button_is_pressed(page: Any) -> None:
    page.set_viewport_size({"width": 1300, "height": 900})
    scheme = "document.body.getAttribute('data-md-color-scheme')"
    for system, expected in (("dark", "slate"), ("light", "default")):
        page.emulate_media(color_scheme=system)
        page.goto("index.html")
        page.wait_for_function(f"{scheme} == '{expected}'")
    for expected in ("default", "slate"):
        page.locator("label.md-header__button:visible[for^=__palette]").click()
        page.wait_for_function(f"{scheme} == '{expected}'")


def assert_the_copy_button_copies_what_is_typed(page: Any) -> None:
    page.goto("local.html")
    block = page.locator(".language-pycon").first
    block.hover()
    block.locator(".md-code__button, .md-clipboard").first.click()
    page.wait_for_function("navigator.clipboard.readText().then(text => text.startsWith('import numpy'))")
    text = page.evaluate("navigator.clipboard.readText()")
    assert ">>>" in block.inner_text()
    assert ">>>" not in text
    assert text.count("\n") < block.inner_text().count("\n")


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
