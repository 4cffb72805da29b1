"""The README is true: its commands exist, its Python runs, its links lead somewhere."""

import os
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


def walk() -> str:
    """The commands of README for one's own CSV file, as they stand there."""
    (block,) = [block for block in re.findall(r"```sh\n(.*?)```", README, re.S) if "<<'END'" in block]
    return block


# A byte-order mark, semicolons, decimal commas, stray blanks and letters, nothing, an unknown ward, a short line.
MESSY = (
    "\ufeffPatient No;Ward;Age;Stay (days);Größe\n"
    + "".join(
        f"{i % 70};{('A', 'B', ' C', 'b', '', 'Z')[i % 6]};{('34', '71,5', '', 'n/a', '-3', '1e9')[i % 6]};{i % 9},5;{i}\n"
        for i in range(400)
    )
    + "7;A\n"
)


@pytest.mark.slow
def test_its_commands_answer_a_messy_file_from_an_empty_folder(tmp_path):
    (tmp_path / "visits.csv").write_text(MESSY, encoding="utf-8")
    paths = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-ec", walk()],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=os.environ | {"PATH": paths},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^A .*±.*±", done.stdout, re.M)
    assert "Privacy label" in (tmp_path / "label.html").read_text()
    again = subprocess.run(
        ["bash", "-ec", walk().splitlines()[-2]],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=os.environ | {"PATH": paths},
    )
    assert "left: 2" in again.stderr, "asked again, it is free"


def test_the_figures_it_compares_stand_on_the_pages_it_names():
    table = README.split("| | discreet | beside it |")[1].split("\n\n")[0]
    rows = [line.split("|")[1:5] for line in table.splitlines()[2:]]
    assert len(rows) >= 5
    for what, ours, theirs, where in rows:
        page = (ROOT / re.search(r"\((docs/\w+\.md)", where).group(1)).read_text()
        for number in re.findall(r"\d[\d.,]*\d", ours + theirs):
            assert number in page, (what, number)


def test_its_links_lead_somewhere():
    sys.path.insert(0, str(ROOT))
    try:
        from docs.build import broken_links, pages
    finally:
        sys.path.pop(0)
    assert [line for page in pages() for line in broken_links(page)] == []
    assert len(pages()) > 5
