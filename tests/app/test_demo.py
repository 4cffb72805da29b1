"""`discreet demo`, as a newcomer runs it."""

import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image
from rich.console import Console
from typer.testing import CliRunner

from discreet import MissingExtra
from discreet.app.cli import app
from discreet.app.demo import CHAPTERS, attacks, chapter, first_answers
from discreet.app.demo.stage import Bar, Stage

runner = CliRunner()


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo")
    result = runner.invoke(app, ["demo", "--out", str(out)], env={"COLUMNS": "100"})
    assert result.exit_code == 0, result.output
    return result.output, out


def test_it_shows_a_price_an_error_and_the_truth(shown):
    text, _ = shown
    assert "Spent in all: epsilon 0.5" in text
    assert text.count("±") >= 5
    assert "◆" in text
    assert "3,002" in text  # the true count of people in excellent health
    assert "same answer: True, spent: 1 of 2" in text


def test_the_answers_are_noisy_and_near_the_truth(shown):
    text, _ = shown
    rows = re.findall(r"^(excellent|good|fair|poor) +([\d,]+) +± ([\d,]+) +([\d,]+)", text, re.M)
    assert len(rows) == 4
    values = [[int(cell.replace(",", "")) for cell in row[1:]] for row in rows]
    assert all(
        abs(value - truth) < 250 for value, _, truth in values
    )  # 10 scales of Laplace noise, all four: 1 - 2e-10
    assert all(error == 44 for _, error, _ in values)


def test_the_picture_is_a_real_one(shown):
    _, out = shown
    with Image.open(out / "first-answers.png") as picture:
        assert picture.size[0] >= 1000
        assert len(picture.convert("RGB").getcolors(1 << 24)) > 50


def test_every_chapter_is_listed_and_wrong_names_are_refused(capsys):
    listed = runner.invoke(app, ["demo", "--list"]).output
    assert all(name in listed for name in CHAPTERS)
    result = runner.invoke(app, ["demo", "-c", "nonsense"])
    assert "nonsense" in str(result.exception)


def test_an_error_of_ours_is_one_line_and_exit_code_two(monkeypatch, capsys):
    from discreet.app import cli

    monkeypatch.setattr("sys.argv", ["discreet", "demo", "-c", "nonsense"])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2
    assert "there is no chapter 'nonsense'" in capsys.readouterr().err


def test_version():
    from discreet import __version__

    assert runner.invoke(app, ["--version"]).output.strip() == f"discreet {__version__}"


def test_bars_fit_a_narrow_terminal_and_negative_counts(tmp_path):
    console = Console(width=40, record=True, force_terminal=False)
    Stage(console=console, out=tmp_path).bars([Bar("a", -3.0, 5.0, 0.0), Bar("b", 10.0, 2.0, 9.0)])
    lines = console.export_text().splitlines()
    assert all(len(line) <= 52 for line in lines)
    assert "-3" in lines[0]


def test_without_matplotlib_it_names_the_extra_and_goes_on(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    console = Console(width=120, record=True, force_terminal=False)
    stage = Stage(console=console, out=tmp_path)
    for _ in range(2):
        assert stage.picture("bars", [], title="", caption="") is None
    assert console.export_text().count("pip install 'discreet[plots]'") == 1, "said once"


def test_extras_and_paths_in_brackets_are_printed_whole(tmp_path, monkeypatch):
    """Rich takes [learn] and [plots] for markup, and leaves them out."""
    console = Console(width=120, record=True, force_terminal=False)
    stage = Stage(console=console, out=tmp_path)
    stage.aside(str(MissingExtra.of("learn", "no model: PyTorch is missing")))
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    attacks._picture(stage, None, {})
    stage.saved(Path("[a]/b.png"))
    text = console.export_text()
    assert "pip install 'discreet[learn]'" in text
    assert "pip install 'discreet[plots]'" in text
    assert "picture saved as [a]/b.png" in text


def test_bounds_are_rounded_to_their_own_side():
    """50 per cent become up to 62.246 at epsilon 0.5: "at most 62.2" was said."""
    assert first_answers.highest_belief(0.5) == 62.3
    assert first_answers.highest_belief(0.0) == 50.0


def test_every_chapter_is_told_and_where_there_is_more(shown):
    told = " ".join(shown[0].split())
    for number, name in enumerate(CHAPTERS, start=1):
        assert f"{number}. {chapter(name).TITLE[:40]}" in told, name
    root = Path(__file__).parents[2]
    *_, scripts, _, notebooks = told.split()
    assert list((root / scripts).glob("*.py"))
    assert list((root / notebooks).glob("*.ipynb"))


def test_one_chapter_is_told_alone(tmp_path):
    told = runner.invoke(
        app, ["demo", "-c", "attacks", "--out", str(tmp_path)], env={"COLUMNS": "100"}
    ).output
    assert f"1. {chapter('attacks').TITLE[:40]}" in told
    assert "2. " not in told
    assert "notebooks" not in told


def watched(folder, *arguments):
    """Run the demo, and return what it printed, and the CPU-seconds until its first private answer and in all.

    In CPU-seconds: how long a busy machine takes is not ours to promise.
    """
    run = "from discreet.app.cli import main; main()"
    command = [sys.executable, "-u", "-c", run, "demo", *arguments]
    first, lines = None, []
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            lines.append(line)
            # an answer: a value of a group with its error, after the preview's
            if first is None and re.search(r"^\S+ +[\d,.-]+ +± ", line):
                fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
                first = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert process.returncode == 0, "".join(lines)[-3000:]
    return "".join(lines), first, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.slow
def test_the_first_answer_comes_within_ten_seconds_and_all_within_a_minute_of_cpu(tmp_path):
    text, first, total = watched(tmp_path)
    assert first is not None, text[:2000]
    assert first < 10
    assert total < 60
