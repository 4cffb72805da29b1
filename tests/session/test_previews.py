"""What a preview says: that a question is answered already, and why the budget buys more than it seems to."""

from __future__ import annotations

from dataclasses import replace

import pytest
from typer.testing import CliRunner

import discreet as dp
from discreet.app import requests
from discreet.app.cli import app
from discreet.app.web.sessions import Desk, Folders
from discreet.app.web.verbs import handle

COUNT = "SELECT COUNT(*) AS n FROM t"
SCHEMA = 'table = "t"\nversion = "1"\nunit = "row"\n[columns.a]\ntype = "number"\nlower = 0\nupper = 9\n'


@pytest.fixture
def people(tmp_path):
    (tmp_path / "t.csv").write_text("a\n" + "1\n2\n3\n" * 20)
    (tmp_path / "t.csv.schema.toml").write_text(SCHEMA)
    analysts = {"ann": dp.Budget(epsilon=1, delta=1e-7), "bob": dp.Budget(epsilon=1), "eve": None}
    return dp.open(
        tmp_path / "t.csv",
        schema=tmp_path / "t.csv.schema.toml",
        budget=dp.Budget(epsilon=3, delta=1e-6),
        analysts=analysts,
    )


def test_a_preview_says_that_the_question_is_answered_already(people):
    ann, bob, eve = (people.as_analyst(name) for name in ("ann", "bob", "eve"))
    preview = ann.preview(COUNT, epsilon=0.1)
    assert (preview.free, preview.answered) == (False, None)
    assert "already answered" not in str(preview)
    ann.sql(COUNT, epsilon=0.1)
    again = ann.preview("select count(*) as n from t", epsilon=0.1)
    assert again.free
    assert "already answered: free" in str(again)
    assert "already answered: free" in again._repr_html_()
    spent = ann.spent
    ann.sql(COUNT, epsilon=0.1)
    assert ann.spent == spent, "and it is free"
    assert not ann.preview(COUNT, epsilon=0.2).free
    # Others are charged on their own account, and are not told who has asked what.
    assert not bob.preview(COUNT, epsilon=0.1).free
    assert not eve.preview(COUNT, epsilon=0.1).free
    assert people.preview(COUNT, epsilon=0.1).free, "the steward has whatever is stored"
    bob.sql(COUNT, epsilon=0.1)
    assert bob.preview(COUNT, epsilon=0.1).free
    ann.workload([COUNT, "SELECT COUNT(*) AS n FROM t WHERE a > 1"], epsilon=0.1)
    assert ann.preview([COUNT, "SELECT COUNT(*) AS n FROM t WHERE a > 1"], epsilon=0.1).free


def test_over_http_a_stored_answer_is_told_once_its_public_time_is_over(people, tmp_path):
    people.as_analyst("ann").sql(COUNT, epsilon=0.1)
    data = str(tmp_path / "t.csv")
    facts = {"name": "t", "data": data, "schema": f"{data}.schema.toml", "ledger": f"{data}.ledger"}
    desk = Desk(True, 5.0, Folders((tmp_path,), tmp_path / "state"))

    def preview(who: str, **options: float) -> dict:
        request = {"verb": "preview", "analyst": who, "by": who, "role": "analyst", "dataset": facts}
        return handle(desk, request | {"options": {"sql": COUNT, "epsilon": 0.1, **options}})["result"]

    assert preview("ann", horizon=0.0)["answered"] is None
    assert preview("ann")["answered"] is None
    shown = preview("ann", horizon=4e9)
    assert shown["answered"].endswith("Z")
    assert preview("bob", horizon=4e9)["answered"] is None
    # what the client shows of it
    asked = people.preview(COUNT, epsilon=0.1)
    assert "already answered: free" in str(replace(asked, answered=shown["answered"]))


def test_a_budget_that_buys_more_than_it_seems_to_says_why(people):
    preview = people.preview(COUNT, epsilon=0.01)
    assert preview.fits > 300
    assert f"buys {preview.fits:,} of these, more than 3 / 0.01: with the budget's delta" in str(preview)
    assert "more than" in requests.preview_json(preview)["buys"]
    few = people.preview(COUNT, epsilon=1)
    assert "buys 3 of these." in str(few)
    pure = people.as_analyst("bob").preview(COUNT, epsilon=0.01)
    assert "buys 100 of these." in str(pure)


@pytest.mark.parametrize("number", ["-1", "-1.5", "-2e3"])
def test_a_negative_epsilon_is_no_unknown_option(number):
    result = CliRunner().invoke(app, ["explain", number])
    assert isinstance(result.exception, dp.InvalidInput)
    assert "a price is zero or above, such as 1.0" in str(result.exception)
    assert CliRunner().invoke(app, ["explain", "-x"]).exit_code == 2


@pytest.mark.parametrize(
    ("name", "way_out"),
    [("v.xls", "Save it as .xlsx or as CSV"), ("v.json", "Convert it"), ("v.ods", "CSV in UTF-8")],
)
def test_a_file_of_another_kind_names_the_way_out(tmp_path, name, way_out):
    (tmp_path / name).write_text("x")
    result = CliRunner().invoke(app, ["init", str(tmp_path / name)])
    assert way_out in str(result.exception)
