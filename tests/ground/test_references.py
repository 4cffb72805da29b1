"""The list of references is complete, in order, and points at modules that exist."""

from __future__ import annotations

import re
from pathlib import Path

from ..loops import for_each

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "proofs" / "references.md"
NUMBER = re.compile(r"arXiv:\s?(\d{4}\.\d{4,5})")


def texts() -> dict[str, str]:
    """Everything that may cite: the source and the pages, without the list itself."""
    found = [*(ROOT / "src").rglob("*.py"), *(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    return {str(path.relative_to(ROOT)): path.read_text() for path in found if path != PAGE}


def missing(listed: str, cited: dict[str, str]) -> dict[str, list[str]]:
    known = set(NUMBER.findall(listed))
    wanted = {path: sorted(set(NUMBER.findall(text)) - known) for path, text in cited.items()}
    return {path: numbers for path, numbers in wanted.items() if numbers}


def entries() -> list[str]:
    return [line for line in PAGE.read_text().splitlines() if line.startswith("- **")]


def test_every_arxiv_number_that_is_cited_is_in_the_list() -> None:
    lacking = missing(PAGE.read_text(), texts())
    assert lacking == {}, (
        f"add these to docs/proofs/references.md, each with its title and what is taken from it: {lacking}"
    )


def test_a_number_that_is_not_in_the_list_is_noticed() -> None:
    assert missing("arXiv:1234.56789", {"a.py": "arXiv:1234.56789v2 and arXiv:9876.54321"}) == {
        "a.py": ["9876.54321"]
    }


def test_the_list_is_in_alphabetical_order_and_names_each_number_once() -> None:
    names = [re.sub(r"^- \*\*(?:van )?", "", line).casefold() for line in entries()]
    firsts = [re.split(r"[ ,]", name)[0] for name in names]
    assert firsts == sorted(firsts)
    numbers = NUMBER.findall(PAGE.read_text())
    assert len(numbers) == len(set(numbers)) > 40


@for_each("name", sorted(set(re.findall(r"`([a-z_.]+)`", "\n".join(entries())))))
def test_a_module_that_the_list_names_exists(name: str) -> None:
    path = ROOT / "src" / "discreet" / name.replace(".", "/")
    assert path.is_dir() or path.with_suffix(".py").is_file()
