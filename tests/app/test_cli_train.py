"""`discreet train`: a model, its facts and its page; nothing in them but what is public; refusals before
anything is charged."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from discreet import BudgetExceeded, DiscreetError, InvalidInput, LedgerError, PrivateFact, tabular
from discreet import accounting as acc
from discreet.app.cli import app
from discreet.app.cli.train import METHODS
from discreet.learning import model_files

runner = CliRunner()
SCHEMA = """
table = "people"
size = 600
unit = "row"
[columns.age]
type = "number"
lower = 0
upper = 100
[columns.ward]
type = "categories"
values = ["a", "b"]
[columns.ill]
type = "boolean"
[columns.note]
type = "text"
"""


def table(rows: int, seed: int) -> pa.Table:
    rng = np.random.default_rng(seed)
    age = rng.uniform(0, 100, rows)
    return pa.table(
        {"age": age, "ward": rng.choice(["a", "b"], rows), "ill": age > 50, "note": ["secret"] * rows}
    )


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    pq.write_table(table(600, 0), "people.parquet")
    pq.write_table(table(100, 1), "public.parquet")
    Path("people.parquet.schema.toml").write_text(SCHEMA)
    run("init", "people.parquet", "--epsilon", "8", "--delta", "1e-5")
    return "people.parquet"


def run(*arguments: str) -> str:
    result = runner.invoke(app, list(arguments), env={"COLUMNS": "120"}, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def used(data: str) -> float:
    return float(json.loads(run("budget", f"{data}.ledger", "--json"))[0]["used"])


QUICK = ("--epochs", "2", "--batch", "60")


def test_a_model_and_its_facts(data: str) -> None:
    facts = json.loads(
        run(
            "train",
            data,
            "--target",
            "ill",
            "-e",
            "4",
            "--batch",
            "100",
            "--epochs",
            "10",
            "--public",
            "public.parquet",
            "--json",
        )
    )
    assert facts["features"] == ["age", "ward"]
    assert facts["delta"] == 1e-5, "the budget's"
    assert 3.9 < facts["epsilon"] <= 4
    assert acc.epsilon(acc.events.from_json(facts["event"]), delta=1e-5) == facts["epsilon"]
    assert facts["public_set"]["accuracy"] > 0.8  # chance is 1/2, and a line separates them
    assert facts["used"] == used(data)
    model = model_files.load(facts["model"])
    assert model.predict({"age": [5.0, 95.0], "ward": ["a", None]}).tolist() == [False, True]
    assert "secret" not in json.dumps(facts)


def test_without_a_public_set_no_fact_comes_from_the_data(data: str) -> None:
    """The same settings on quite another table: the same facts, to the last digit."""
    said = []
    for name in ("one", "two"):
        facts = json.loads(
            run(
                "train",
                data,
                "--target",
                "ill",
                *QUICK,
                "--out",
                f"{name}.model",
                "--json",
            )
        )
        assert facts["public_set"] is None
        said.append({**facts, "model": ""})
        rows = table(600, 5)
        pq.write_table(rows.set_column(2, "ill", pa.array([True] * 600)), data)
        for file in Path().glob("people.parquet.ledger*"):
            file.unlink()
        run("init", data, "--epsilon", "8", "--delta", "1e-5")
    assert said[0] == said[1]


def test_numbers_are_predicted_too(data: str) -> None:
    said = run(
        "train",
        data,
        "--target",
        "age",
        "--features",
        "ill, ward",
        *QUICK,
        "--hidden",
        "4",
        "--public",
        "public.parquet",
    )
    assert "rmse on the public set" in said
    assert "epsilon 1 at delta 1e-05" in said
    low, high = model_files.load("people.parquet.age.model").predict(
        {"ill": [False, True], "ward": ["a", "a"]}
    )
    assert 0 <= min(low, high) <= max(low, high) <= 100


def test_a_run_is_resumed_for_nothing(data: str) -> None:
    arguments = ("train", data, "--target", "ill", *QUICK, "--checkpoint", "run.ckpt", "--every", "7")
    run(*arguments)
    before = used(data)
    first = model_files.load("people.parquet.ill.model")
    run(*arguments, "--resume")
    assert used(data) == before
    again = model_files.load("people.parquet.ill.model")
    assert np.array_equal(first.module_.weight.detach(), again.module_.weight.detach())
    assert "checkpoint after 14 steps" in run("ledger", "show", f"{data}.ledger")
    with pytest.raises(InvalidInput, match="another price"):
        run(*arguments, "--clip", "2", "--epsilon", "2", "--resume")
    Path("run.ckpt").write_bytes(Path("run.ckpt").read_bytes()[:-1] + b"x")
    with pytest.raises(LedgerError, match="changed"):
        run(*arguments, "--resume")


def test_refusals_cost_nothing(data: str) -> None:
    Path("taken.model").write_text("mine")
    for error, match, more in [
        (PrivateFact, "nothing is declared", ["--target", "height"]),
        (InvalidInput, "cannot be a feature", ["--target", "ill", "--features", "note"]),
        (InvalidInput, "cannot be a feature, too", ["--target", "ill", "--features", "ill,age"]),
        (InvalidInput, "declared bounds", ["--target", "note"]),
        (InvalidInput, "exists already", ["--target", "ill", "--out", "taken.model"]),
        (InvalidInput, "no folder", ["--target", "ill", "--out", "none/one.model"]),
        (InvalidInput, "no file", ["--target", "ill", "--public", "none.parquet"]),
        (InvalidInput, "needs --checkpoint", ["--target", "ill", "--resume"]),
        (InvalidInput, "hidden", ["--target", "ill", "--hidden", "0"]),
        (BudgetExceeded, "above the limit", ["--target", "ill", "--epsilon", "50", "--large-epsilon"]),
    ]:
        with pytest.raises(error, match=match):
            run("train", data, *QUICK, *more)
    assert used(data) == 0
    assert Path("taken.model").read_text() == "mine"
    assert issubclass(InvalidInput, DiscreetError), "the shell's exit code is 2 for all of these"


def test_the_private_table_is_no_public_set_and_outputs_differ(data: str) -> None:
    """The exact loss on the private table would be printed, and a checkpoint written over a model that was paid for."""
    common = ["train", data, "--target", "ill", "--epochs", "1"]
    Path("link.parquet").symlink_to(data)
    Path("folder").mkdir()
    Path("folder/people.parquet").symlink_to(Path(data).resolve())
    for more, kind in (
        (["--public", "folder"], PrivateFact),
        (["--public", data], PrivateFact),
        (["--public", "link.parquet"], PrivateFact),
        (["--out", "m", "--checkpoint", "m", "--force"], InvalidInput),
        (["--method", "tree", "--clip", "2"], InvalidInput),
        (["--method", "tree", "--batch", "64"], InvalidInput),
    ):
        assert isinstance(runner.invoke(app, [*common, *more]).exception, kind), more
    assert used(data) == 0


def test_a_size_must_be_declared(data: str) -> None:
    schema = Path(f"{data}.schema.toml")
    schema.write_text(SCHEMA.replace("size = 600\n", ""))
    with pytest.raises(PrivateFact, match="never read off"):
        run("train", data, "--target", "ill", *QUICK)
    assert json.loads(run("train", data, "--target", "ill", *QUICK, "--n", "500", "--json"))["steps"] == 17


def test_a_run_that_diverges_has_a_model_and_json_all_the_same(data: str) -> None:
    """It was paid for. What is no number has no place in JSON."""
    told = run(
        "train",
        data,
        "--target",
        "age",
        *QUICK,
        "--learning-rate",
        "1e30",
        "--public",
        "public.parquet",
        "--json",
    )
    scores = json.loads(told, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))["public_set"]
    assert scores["loss"] in ("inf", "nan")
    assert Path("people.parquet.age.model").exists()


CLASSIFIERS = {
    "auto": "ObjectivePerturbation",
    "objective": "ObjectivePerturbation",
    "output": "OutputPerturbation",
    "gradient": "GradientPerturbation",
    "naive_bayes": "NaiveBayes",
    "tree": "PrivateTree",
    "boosting": "AdditiveBoosting",
}
REGRESSIONS = {
    "auto": "SecondMoments",
    "moments": "SecondMoments",
    "objective": "ObjectivePerturbation",
    "output": "OutputPerturbation",
    "gradient": "GradientPerturbation",
    "tree": "PrivateRegressionTree",
    "boosting": "AdditiveBoosting",
}


@pytest.mark.parametrize("target", ["ill", "age"])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains_what_it_names_or_refuses_it_before_the_charge(
    data: str, method: str, target: str
) -> None:
    kinds = CLASSIFIERS if target == "ill" else REGRESSIONS
    words = ["train", data, "--target", target, "-e", "1", "--method", method, "--json"]
    if method not in kinds:
        with pytest.raises(InvalidInput, match=f"--method {method}"):
            runner.invoke(app, words, catch_exceptions=False, standalone_mode=False)
        assert used(data) == 0
        assert not Path(f"people.parquet.{target}.model").exists()
        return
    facts = json.loads(run(*words))
    assert facts["mechanism"] == kinds[method]
    assert 0.9 <= used(data) <= 1
    rows = {"age": [5.0, 95.0], "ward": ["a", "b"], "ill": [False, True]}
    values = tabular.load(f"people.parquet.{target}.model").predict(rows).tolist()
    assert len(values) == 2
    assert all(v in (False, True) if target == "ill" else 0 <= v <= 100 for v in values)


def test_a_linear_model_by_another_method_and_its_card(data: str) -> None:
    facts = json.loads(run("train", data, "--target", "ill", "-e", "2", "--method", "auto", "--json"))
    assert facts["mechanism"] == "ObjectivePerturbation"
    assert facts["features"] == ["age", "ward"]
    assert used(data) <= 2
    assert "**epsilon**: 2" in Path("people.parquet.ill.model.md").read_text()
    assert tabular.load("people.parquet.ill.model").predict(
        {"age": [5.0, 95.0], "ward": ["a", "b"]}
    ).tolist() == [
        False,
        True,
    ]
    told = run("train", data, "--target", "age", "-e", "1", "--method", "moments", "--delta", "0")
    assert "SecondMoments" in told
    for match, more in [
        ("--checkpoint", ("--checkpoint", "c")),
        ("--method", ("--method", "magic")),
        ("classes", ("--method", "moments")),
    ]:
        method = () if "--method" in more else ("--method", "auto")
        with pytest.raises(InvalidInput, match=match):
            runner.invoke(
                app,
                ["train", data, "--target", "ill", "--out", "x", *method, *more],
                catch_exceptions=False,
                standalone_mode=False,
            )
    assert used(data) <= 3
