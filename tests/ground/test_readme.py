"""The README and the tour are true: their commands exist, their Python runs, their links lead somewhere."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from .. import warm

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PAGES = "".join(
    (ROOT / name).read_text() for name in ("README.md", "docs/tour.md", "docs/curator.md", "docs/sql.md")
)
BLOCKS = re.findall(r"```python\n(.*?)```", PAGES, re.S)


def test_the_first_screen_has_two_sentences_an_install_five_lines_and_an_answer():
    """A reader who leaves after a minute has seen an answer with its error and its price."""
    title, text, install = README.split("\n\n")[:3]
    assert title == "# discreet"
    assert len(re.findall(r"\.(\s|$)", text)) == 2
    assert install == "```sh\npip install .\n```"
    screen = "\n".join(README.splitlines()[:30])
    (code,) = re.findall(r"```python\n(.*?)```", screen, re.S)
    assert len([line for line in code.splitlines() if line]) <= 5
    assert "±" in screen
    assert "epsilon 0.5)" in screen
    assert README.index("make demo\nmake test") < README.index("![")


def test_the_answer_it_shows_is_what_its_five_lines_print(tmp_path):
    """The same words and the same errors; the noise is fresh."""
    code, shown = re.search(r"```python\n(.*?)```\n\n```text\n(.*?)```", README, re.S).groups()
    printed = warm.run(code, tmp_path).stdout
    noise = re.compile(r"^(\w+ +)[\d,]+ ±", re.M)
    assert len(noise.findall(shown)) == 4
    words = [re.sub(r"[ -]+", " ", noise.sub(r"\1 n ±", text)).strip() for text in (shown, printed)]
    assert words[0] == words[1]


def test_every_make_target_it_names_exists():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    named = set(re.findall(r"`make ([a-z-]+)`", README + (ROOT / "CONTRIBUTING.md").read_text()))
    assert {"demo", "test", "lint", "docs"} <= named <= targets


def test_it_is_short_and_its_prose_is_wrapped():
    """A stranger reads it in a few minutes: what is longer stands on the pages of docs/."""
    lines = README.splitlines()
    assert len(lines) <= 180
    assert [line for line in lines if len(line) > 110 and not line.startswith("|")] == []


@pytest.mark.parametrize("block", range(len(BLOCKS)))
def test_its_python_runs(block, tmp_path):
    done = warm.run(BLOCKS[block], tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "wrong", ["1 / 0", "import warnings; warnings.warn('x')", "dp", "import sys; sys.exit(3)"]
)
def test_a_block_that_fails_is_noticed(wrong, tmp_path):
    done = warm.run(wrong, tmp_path)
    assert done.returncode != 0
    assert done.stderr or "exit" in wrong


def walk(*, own_file: bool) -> str:
    """The commands of README for one's own CSV file, as they stand there: in this environment instead of the
    one that `make` sets up, and with a file of one's own in the place of README's."""
    (block,) = [block for block in re.findall(r"```sh\n(.*?)```", README, re.S) if "<<'END'" in block]
    block, activated = re.subn(r"^\. \.venv-demo/.*\n", "", block, flags=re.M)
    trial = re.compile(r"^python - > visits\.csv <<'PY'.*?^PY\n", re.M | re.S)
    assert activated == len(trial.findall(block)) == 1
    return trial.sub("", block) if own_file else block


def ran(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return subprocess.run(
        ["bash", "-ec", script], cwd=folder, capture_output=True, text=True, env=os.environ | {"PATH": paths}
    )


# A byte-order mark, semicolons, decimal commas, umlauts, two formats of dates and none at all, stray blanks and
# letters, nothing, an unknown ward, several rows per person, a short line.
MESSY = (
    "\ufeffPatient No;Ward;Age;Stay (days);Größe;Admitted\n"
    + "".join(
        f"{i % 70};{('A', 'B', ' Ü', 'b', '', 'Z', 'Ü')[i % 7]};{('34', '71,5', '', 'n/a', '-3', '1e9')[i % 6]};{i % 9},5;{i};"
        f"{('03.01.2025', '2025-02-19', '31.02.2025', '', 'unknown', '3/1/25')[i % 6]}\n"
        for i in range(400)
    )
    + "7;A\n"
)


@pytest.mark.slow
@pytest.mark.parametrize("own_file", [False, True])
def test_its_commands_answer_a_messy_file_from_an_empty_folder(own_file, tmp_path):
    if own_file:
        (tmp_path / "visits.csv").write_text(MESSY, encoding="utf-8")
    done = ran(walk(own_file=own_file), tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^A .*±", done.stdout, re.M)
    assert re.search(r"^Ü .*±", done.stdout, re.M)
    # Noise may leave no row to one ward's average, which is "-" then; hardly to those of all three.
    assert re.search(r"^[ABÜ] .*±.*±", done.stdout, re.M)
    assert "Privacy label" in (tmp_path / "label.html").read_text()
    again = ran("\n".join(walk(own_file=own_file).splitlines()[-5:-1]), tmp_path)
    assert "left: 2" in again.stderr, "asked again, it is free"
    months = ran(
        "discreet query visits.csv 'SELECT month(Admitted) AS m, COUNT(*) AS n FROM visits GROUP BY m' --epsilon 1",
        tmp_path,
    )
    assert re.search(r"^ *2 .*±", months.stdout, re.M), months.stderr


def test_the_figures_it_compares_stand_on_the_pages_it_names():
    table = README.split("| | discreet | beside it |")[1].split("\n\n")[0]
    rows = [line.split("|")[1:5] for line in table.splitlines()[2:]]
    assert len(rows) >= 5
    for what, ours, theirs, where in rows:
        page = (ROOT / re.search(r"\((docs/[\w/]+\.md)", where).group(1)).read_text()
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
