"""What the shell writes: never over a ledger, a key or data, over nothing that exists without --force, and
nothing that commands a terminal."""

from __future__ import annotations

import io
import json
import shutil
import sys

import pytest
from typer.testing import CliRunner

import discreet as dp
from discreet import DiscreetError, InvalidInput
from discreet._text import visible
from discreet.app import cli
from discreet.app.cli import app, forms
from discreet.app.cli.forms import exact

runner = CliRunner()


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "people.csv").write_text("age,ward\n" + "31,a\n45,b\n" * 50)
    (tmp_path / "people.csv.schema.toml").write_text(
        'table = "people"\n[unit]\nrows = true\n[columns.age]\nkind = "bounds"\nlower = 0\nupper = 100\n'
    )
    schema = {"age": dp.Bounds(0, 100), "ward": dp.Categories(["a", "b"])}
    dp.open(tmp_path / "people.csv", schema=schema, unit=dp.rows(), budget=dp.Budget(epsilon=1))
    return tmp_path


PRECIOUS = [
    "people.csv.ledger",
    "people.csv.ledger.key",
    "people.csv.ledger-journal",
    "people.csv.ledger-wal",
    "people.csv.ledger-lock",
    "link",
]


@pytest.mark.parametrize("force", [[], ["--force"]])
@pytest.mark.parametrize("name", PRECIOUS)
def test_no_output_replaces_a_ledger_or_what_belongs_to_it(folder, name, force):
    (folder / "link").symlink_to(folder / "people.csv.ledger")
    ledger, out = folder / "people.csv.ledger", str(folder / name)
    before = ledger.read_bytes()
    commands = (
        ["ledger", "export", str(ledger), "--out", out],
        ["audit", "builtins:len", "--epsilon", "1", "--html", out],
        ["epsilon", "pure", "--each", "1", "--delta", "0", "--plot", out if "." in name else out + ".ledger"],
    )
    for command in commands[: 2 if name == "link" else 3]:
        result = runner.invoke(app, [*command, *force])
        assert isinstance(result.exception, InvalidInput), (command, result.output, result.exception)
        assert "never overwritten" in str(result.exception)
    assert ledger.read_bytes() == before


@pytest.mark.parametrize("name", ["people.csv", "people.csv.schema.toml", "link"])
def test_no_output_replaces_data_that_a_ledger_lies_beside(folder, name):
    (folder / "link").symlink_to(folder / "people.csv")
    out, before = str(folder / name), (folder / name).read_bytes()
    for command in (
        ["explain", "1", "--html", out],
        ["ledger", "export", str(folder / "people.csv"), "--out", out],
    ):
        result = runner.invoke(app, [*command, "--force"])
        assert isinstance(result.exception, InvalidInput), (command, result.output, result.exception)
        assert "never overwritten" in str(result.exception)
    assert (folder / name).read_bytes() == before


def test_inputs_and_files_that_exist_stay(folder):
    data = folder / "people.csv"
    with pytest.raises(InvalidInput, match="never overwritten"):
        forms.check(data, force=True, data=[str(data)])
    with pytest.raises(InvalidInput, match="never overwritten"):
        forms.check(
            folder / "sub" / ".." / "people.csv" if (folder / "sub").mkdir() is None else data,
            force=True,
            data=[data],
        )
    (folder / "notes").write_text("mine")
    with pytest.raises(InvalidInput, match="--force"):
        forms.write(folder / "notes", "x")
    forms.write(folder / "notes", "yours", force=True)
    assert (folder / "notes").read_text() == "yours"
    (folder / "nowhere").symlink_to(folder / "elsewhere")
    with pytest.raises(InvalidInput, match="leads nowhere"):
        forms.write(folder / "nowhere", "x", force=True)
    for path in (folder / "none" / "x", folder / "sub"):
        with pytest.raises(InvalidInput, match="folder"):
            forms.check(path, force=True)


def test_an_export_is_written_once(folder):
    ledger, out = str(folder / "people.csv.ledger"), str(folder / "out.jsonl")
    assert runner.invoke(app, ["ledger", "export", ledger, "--out", out]).exit_code == 0
    again = runner.invoke(app, ["ledger", "export", ledger, "--out", out])
    assert isinstance(again.exception, InvalidInput)
    assert runner.invoke(app, ["ledger", "export", ledger, "--out", out, "--force"]).exit_code == 0
    copy = folder / "copy.ledger"
    shutil.copy(ledger, copy)
    assert json.loads((folder / "out.jsonl").read_text().splitlines()[0])["kind"] == "open"


HOSTILE = "a\x1b[2J\x9b31m\u202eb\u200bc\x07\r\nd"


def test_what_commands_a_terminal_is_written_out(folder):
    shown = visible(HOSTILE)
    assert shown.isprintable()
    assert "\x1b" not in shown
    assert "\\x1b[2J" in shown
    assert visible("Zürich 東京 ½") == "Zürich 東京 ½"
    data = {"ward": [HOSTILE, "b"] * 20}
    people = dp.open(
        data,
        schema={"ward": dp.Categories([HOSTILE, "b"])},
        unit=dp.rows(),
        budget=dp.Budget(epsilon=1),
        ledger=":memory:",
    )
    text = people.sql("SELECT ward, COUNT(*) AS n FROM data GROUP BY ward", epsilon=0.5).text()
    assert all(line.isprintable() for line in text.split("\n"))
    # Two lines of head, two groups, two notes: the line break in the name is none.
    assert len(text.split("\n")) == 6


def test_an_error_message_commands_no_terminal(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("sys.argv", ["discreet", "budget", str(tmp_path / "x\x1b[2Jy")])
    with pytest.raises(SystemExit):
        cli.main()
    assert "\x1b[2J" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "text", ["1e5000", "1e-5000", "1e999999999999", "9" * 500, "1e-320", "1e400", "-1e5000"]
)
def test_numbers_beyond_all_measure_are_a_clear_error(text):
    with pytest.raises(InvalidInput, match=r"longer or larger|must be a number|out of range"):
        exact(text, "--epsilon")


@pytest.mark.parametrize(
    "command",
    [
        ["epsilon", "pure", "--each", "1e5000", "--delta", "0"],
        ["epsilon", "laplace", "--noise-multiplier", "1e-300", "--delta", "1e-6"],
        ["epsilon", "gaussian", "--noise-multiplier", "1e-300", "--delta", "1e-6"],
        ["epsilon", "discrete-laplace", "--scale", "1e300", "--delta", "0"],
        ["epsilon", "--event", "deep.json", "--delta", "0"],
        ["epsilon", "--event", "long.json", "--delta", "0"],
    ],
)
def test_no_raw_exception_reaches_the_shell(command, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deep.json").write_text(
        '{"type":"accounting.Repeated","times":1,"event":' * 50_000 + "1" + "}" * 50_000
    )
    (tmp_path / "long.json").write_text('{"type":"accounting.PureDP","epsilon":' + "9" * 6000 + "}")
    monkeypatch.setattr("sys.argv", ["discreet", *command])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code in (0, None, 2)
    assert "Traceback" not in capsys.readouterr().err
    assert issubclass(InvalidInput, DiscreetError)


def test_collecting_writes_over_no_ledger_and_nothing_that_exists(folder, monkeypatch):
    monkeypatch.chdir(folder)
    (folder / "values.txt").write_text("a\nb\n")
    (folder / "description.json").write_text("mine")
    before = (folder / "people.csv.ledger").read_bytes()
    asked = ["--categories", "a,b", "--epsilon", "1"]
    for command in (
        ["randomize", "values.txt", *asked, "--out", "people.csv.ledger", "--force"],
        ["randomize", "values.txt", *asked, "--out", "values.txt", "--force"],
        ["browser", ".", *asked],
    ):
        result = runner.invoke(app, ["collect", *command])
        assert isinstance(result.exception, InvalidInput), (command, result.output, result.exception)
    assert (folder / "people.csv.ledger").read_bytes() == before
    assert (folder / "values.txt").read_text() == "a\nb\n"


def test_two_outputs_are_not_one_file_and_files_of_a_folder_are_data(folder):
    with pytest.raises(InvalidInput, match="two outputs"):
        forms.check_distinct(folder / "a", None, folder / "sub" / ".." / "a")
    (folder / "parts").mkdir()
    shutil.copy(folder / "people.csv", folder / "parts" / "1.csv")
    for data in (folder / "parts", folder / "parts" / "*.csv"):
        with pytest.raises(InvalidInput, match="never overwritten"):
            forms.check(folder / "parts" / "1.csv", force=True, data=[str(data)])
        assert not forms.belongs_to(folder / "people.csv", data)
    assert "31,a" in (folder / "parts" / "1.csv").read_text()


@pytest.mark.parametrize(
    "command",
    [["query", "{}", "SELECT"], ["budget", "{}"], ["init", "{}"], ["check", "{}"], ["explain", "{}"]],
)
@pytest.mark.parametrize("address", ["postgresql://u:sekret@h/db::t", "postgres://h/db?password=sekret"])
def test_no_message_repeats_the_password_of_an_address(command, address):
    result = runner.invoke(app, [word.format(address) for word in command])
    assert isinstance(result.exception, InvalidInput)
    assert "has a password in it" in str(result.exception)
    assert "sekret" not in str(result.exception) + result.output


def test_brackets_in_a_path_are_no_markup(folder, monkeypatch):
    monkeypatch.chdir(folder)
    done = runner.invoke(
        app, ["audit", "builtins:len", "--epsilon", "1", "--runs", "100", "--html", "[dim].html"]
    )
    assert done.exit_code in (0, 1)
    assert "[dim].html" in done.output


def test_an_answer_is_printed_where_the_terminal_lacks_a_character(monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, encoding="ascii"))
    monkeypatch.setattr(cli, "_run", lambda invocation: sys.stdout.write("1 ± 2"))
    cli.main()
    sys.stdout.flush()
    assert written.getvalue() == b"1 \\xb1 2"


def test_help_keeps_the_brackets_of_a_plan():
    shown = runner.invoke(app, ["plan", "--help"], env={"COLUMNS": "160"}).output
    assert "[[work]]" in shown


def test_a_plan_that_is_a_folder_is_refused(tmp_path):
    result = runner.invoke(app, ["plan", str(tmp_path)])
    assert isinstance(result.exception, InvalidInput), result.exception
    assert "cannot be read" in str(result.exception)


def test_an_output_without_permission_is_refused_before_anything_is_charged(folder, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, mode: False)
    for name in ("new.html", "people.csv.notes"):
        (folder / "people.csv.notes").touch()
        with pytest.raises(InvalidInput, match=r"no permission"):
            forms.check(folder / name, force=True)
