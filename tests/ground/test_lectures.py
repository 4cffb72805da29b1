"""Every topic of the lectures leads to a name, a page that says it and a test; so does every term of the course."""

from __future__ import annotations

import ast
import importlib
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from ..loops import for_each
from .test_pages import LECTURES, TERMS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGE = DOCS / "lectures.md"
ROW = re.compile(r"^\| (.+?) \| `(.+?)` \| \[.+?\]\((.+?)\) \| (.+?) \| `([^`|]+?)` \|$", re.M)


class Topic(NamedTuple):
    topic: str
    name: str
    page: str
    value: str
    test: str


TOPICS = [Topic(*row) for row in ROW.findall(PAGE.read_text())]


def slug(heading: str) -> str:
    """The anchor of a heading, as GitHub and the site make it."""
    return re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", heading.strip().lower()))


def section(page: Path, anchor: str) -> str:
    """The text under a heading, with all below it; without an anchor the whole page."""
    if not anchor:
        return page.read_text()
    lines: list[str] = []
    level, code = 0, False
    for line in page.read_text().splitlines():
        code ^= line.startswith("```")
        heading = None if code else re.match(r"(#+) (.*)", line)
        if heading and level and len(heading[1]) <= level:
            break
        if heading and not level and slug(heading[2]) == anchor:
            level = len(heading[1])
        lines += [line] * bool(level)
    assert lines, f"{page.name} has no heading #{anchor}"
    return "\n".join(lines)


def plain(text: str) -> str:
    """The words of a text: no case, markup, targets of links or line breaks."""
    return " ".join(re.sub(r"[*`_\[\]]", "", re.sub(r"\]\([^)]*\)", "", text)).casefold().split())


def said(term: str) -> str:
    """What a page must say of a term: its words up to a comma, a colon or a parenthesis."""
    return plain(re.split(r", |: | \(", term)[0])


@cache
def sources(path: Path) -> dict[str, str]:
    """The source of each test function of a module, with its decorators."""
    text = path.read_text()
    lines = text.splitlines()
    functions = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    firsts = {one.name: min([one.lineno, *(each.lineno for each in one.decorator_list)]) for one in functions}
    return {one.name: "\n".join(lines[firsts[one.name] - 1 : one.end_lineno]) for one in functions}


def test_the_page_has_every_topic_of_the_index_in_its_lecture() -> None:
    titles = ["Cummings", "notes on approximate DP", "Kamath", "Waterloo", "PSL"]
    parts = PAGE.read_text().split("\n## ")[1:]
    assert [title in part.splitlines()[0] for title, part in zip(titles, parts, strict=True)] == [True] * 5
    for terms, part in zip(LECTURES.values(), parts, strict=True):
        names = " | ".join(row[0] for row in ROW.findall(part)).casefold()
        wanted = [" ".join(term.split()).casefold() for term in terms.split(";")]
        assert [term for term in wanted if term not in names] == []
        rows = [line for line in part.splitlines() if line.startswith("| ")]
        assert len(ROW.findall(part)) == len(rows) - 1, "each row has a name, a page, a test and a value"


@for_each("row", TOPICS, ids=[f"{number}-{row.topic}" for number, row in enumerate(TOPICS)])
def test_a_topic_leads_to_a_name_a_page_that_says_it_and_a_test(row: Topic) -> None:
    thing = importlib.import_module("discreet")
    for name in row.name.split("."):
        if not hasattr(thing, name):
            importlib.import_module(f"{thing.__name__}.{name}")
        thing = getattr(thing, name)
    page, _, anchor = row.page.partition("#")
    text = section(DOCS / page, anchor)
    assert said(row.topic) in plain(text), f"{row.page} does not say {said(row.topic)!r}"
    module, _, function = row.test.partition("::")
    tests = sources(ROOT / "tests" / module)
    assert function in tests if function else any(name.startswith("test") for name in tests)
    checked = tests[function] if function else (ROOT / "tests" / module).read_text()
    missing = [value for value in re.findall(r"`(.+?)`", row.value) if value not in checked + text]
    assert missing == [], f"neither {row.test} nor {row.page} has {missing}"


@for_each(("term", "page"), [(term, page) for term, _, _, page in TERMS], ids=[term for term, *_ in TERMS])
def test_a_term_leads_to_a_page_that_says_it(term: str, page: str) -> None:
    name, _, anchor = page.partition("#")
    assert said(term) in plain(section((DOCS / "course" / name).resolve(), anchor))


def test_a_page_that_does_not_say_a_term_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One\n\n## The *first* thing\n\n```sh\n# no heading\n```\nis said\n\n## Two\n\nlater\n")
    assert "is said" in section(page, "the-first-thing")
    assert "later" not in section(page, "the-first-thing")
    assert said("First thing (one), or another") in plain(section(page, "the-first-thing"))
    with pytest.raises(AssertionError, match="no heading"):
        section(page, "three")
