"""`discreet explain` on the shell: numbers, ledgers, questions, models; pages and labels."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import discreet as dp
from discreet import accounting as acc
from discreet.app.cli import app
from discreet.app.cli.explain import browser, to_pdf

RUN = CliRunner()


def run(*args: str) -> str:
    result = RUN.invoke(app, ["explain", *args])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    # lines are wrapped where they must be
    return " ".join(result.stdout.split())


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "visits.csv"
    path.write_text("ward,age\n" + "A,30\nB,40\n" * 20)
    (tmp_path / "visits.csv.schema.toml").write_text(
        'table = "visits"\nversion = "1"\nunit = "row"\n\n[columns.ward]\ntype = "categories"\nvalues = ["A", "B"]\n'
    )
    return path


def test_an_epsilon() -> None:
    assert "74 in 100" in run("1")
    assert json.loads(run("1", "--json"))["epsilon"] == pytest.approx(1.0)
    assert "Beside published deployments" in run("1", "--for", "policy")


def test_a_ledger_without_its_key_and_a_label(tmp_path: Path) -> None:
    path = tmp_path / "a.ledger"
    people = dp.open({"x": [1, 2]}, table="t", schema={"x": dp.Bounds(0, 9)}, unit=dp.rows(),
                     budget=dp.Budget(epsilon=2), ledger=path)  # fmt: skip
    people.sql("SELECT COUNT(*) AS n FROM t", epsilon=0.5)
    (tmp_path / "a.ledger.key").unlink()
    page, label = tmp_path / "page.html", tmp_path / "label.html"
    assert "epsilon 0.5 of 2" in run(str(path), "--html", str(page), "--label", str(label))
    assert "Privacy label" in label.read_text()
    assert "How it adds up" in page.read_text()
    with pytest.raises(dp.InvalidInput, match="exists already"):
        run(str(path), "--html", str(page))
    with pytest.raises(dp.InvalidInput, match="never overwritten"):
        run(str(path), "--html", str(path), "--force")


def test_a_model_file_and_an_event(tmp_path: Path) -> None:
    event = acc.Gaussian(noise_multiplier=2.0)
    path = tmp_path / "event.json"
    path.write_text(json.dumps(event.to_json()))
    shown = json.loads(run(str(path), "--delta", "1e-5", "--json"))
    assert shown["epsilon"] == pytest.approx(acc.epsilon(event, delta=1e-5))
    model = tmp_path / "m.model"
    model.write_text(json.dumps({"format": 1, "holds": "network", "kind": "M", "event": event.to_json()}))
    assert "m.model" in run(str(model), "--delta", "1e-5")


@pytest.mark.parametrize(
    "junk", [b"", b"{", b"{}", b'{"event": 3}', b"\xff" * 40, b"[" * 100_000, b'{"type": "os.system"}']
)
def test_junk_is_refused(tmp_path: Path, junk: bytes) -> None:
    path = tmp_path / "junk.bin"
    path.write_bytes(junk)
    with pytest.raises(dp.InvalidInput, match="is neither a ledger, nor a model file"):
        run(str(path))


@pytest.mark.parametrize(
    ("args", "fact"),
    [
        (("-1",), "an epsilon is zero or above and finite"),
        (("nan",), "an epsilon is zero or above and finite"),
        (("nothing-here",), "a ledger, a data file with its ledger"),
        (("1", "--for", "child"), "--for must be one of public, policy, engineer"),
    ],
)
def test_bad_input_is_refused(args: tuple[str, ...], fact: str) -> None:
    with pytest.raises(dp.InvalidInput, match=fact):
        run(*(("--", *args) if args[0] == "-1" else args))


def test_without_chromium_a_pdf_is_refused_with_a_way_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(dp.MissingExtra, match=r"\.html"):
        to_pdf("<p>x</p>", tmp_path / "x.pdf")
    assert not (tmp_path / "x.pdf").exists()


@pytest.mark.slow
@pytest.mark.skipif(browser() is None, reason="no Chromium on this machine")
def test_a_label_prints_on_one_page(tmp_path: Path) -> None:
    path = tmp_path / "label.pdf"
    run("2.5", "--delta", "1e-6", "--for", "policy", "--label", str(path))
    raw = path.read_bytes()
    assert raw.startswith(b"%PDF")
    assert raw.count(b"/Type /Page\n") + raw.count(b"/Type /Page ") + raw.count(b"/Type/Page/") <= 1


def test_a_planned_question_of_a_data_file_is_free(data: Path) -> None:
    assert RUN.invoke(app, ["init", str(data), "--epsilon", "2"]).exit_code == 0
    question = "SELECT ward, COUNT(*) AS n FROM visits GROUP BY ward"
    text = run(str(data), question, "--epsilon", "0.5")
    assert "How good n will be" in text
    assert "Half of that error costs" in text
    assert "of 2 epsilon" in run(str(data))
    assert "0 of 2 epsilon" in run(str(data))
    with pytest.raises(dp.InvalidInput, match="say what the answer may cost"):
        run(str(data), question)


@pytest.mark.slow
def test_a_model_that_was_trained_on_the_shell_is_explained(tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    path.write_text(
        "dose,well\n" + "".join(f"{i % 10},{'yes' if i % 10 > 5 else 'no'}\n" for i in range(300))
    )
    (tmp_path / "p.csv.schema.toml").write_text(
        'table = "p"\nversion = "1"\nunit = "row"\nsize = 300\n[columns.dose]\ntype = "number"\nlower = 0\n'
        'upper = 10\n[columns.well]\ntype = "categories"\nvalues = ["no", "yes"]\n'
    )
    for arguments in (["init", str(path), "--epsilon", "3", "--delta", "1e-6"],
                      ["train", str(path), "--target", "well", "--epsilon", "1"]):  # fmt: skip
        result = RUN.invoke(app, arguments)
        assert result.exit_code == 0, (result.output, result.exception)
    assert "Price: epsilon 1, delta 1e-06" in run(str(tmp_path / "p.csv.well.model"), "--for", "engineer")
