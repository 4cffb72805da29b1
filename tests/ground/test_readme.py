"""The README is true: its commands exist, its Python runs, its links lead somewhere."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PAGES = "".join((ROOT / name).read_text() for name in ("README.md", "docs/curator.md", "docs/sql.md"))
BLOCKS = re.findall(r"```python\n(.*?)```", PAGES, re.S)


def test_it_opens_with_two_sentences_and_the_two_commands():
    title, text, commands = README.split("\n\n")[:3]
    assert title == "# discreet"
    assert len(re.findall(r"\.(\s|$)", text)) == 2
    assert commands == "```sh\nmake demo\nmake test\n```"


def test_every_make_target_it_names_exists():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    assert set(re.findall(r"`make ([a-z-]+)`", README)) <= targets


@pytest.mark.parametrize("block", range(len(BLOCKS)))
def test_its_python_runs(block, tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", BLOCKS[block]], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr


def test_its_links_lead_somewhere():
    sys.path.insert(0, str(ROOT))
    try:
        from docs.build import broken_links, pages
    finally:
        sys.path.pop(0)
    assert [line for page in pages() for line in broken_links(page)] == []
    assert len(pages()) > 5
