"""An epsilon above 20 is more often a slip than meant: it is refused with its odds, unless insisted on."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from typer.testing import CliRunner

import discreet as dp
from discreet.app.cli import app, told
from discreet.app.cli.parser import Invocation
from discreet.curator import Policy
from discreet.curator.policy import check_epsilon

FACTS = {"schema": {"a": dp.Bounds(0, 9)}, "unit": dp.rows(), "table": "t", "ledger": ":memory:"}
SCHEMA = 'table = "t"\nversion = "1"\nunit = "row"\n[columns.a]\ntype = "number"\nlower = 0\nupper = 9\n'
COUNT = "SELECT COUNT(*) AS n FROM t"


@pytest.mark.parametrize("amount", [20.0001, Fraction(10**400), math.inf, 701, 50])
def test_a_large_price_is_refused_with_its_odds(amount):
    for prices in ({"epsilon": amount}, {"rho": amount}):
        with pytest.raises(dp.InvalidInput, match="50:50") as refusal:
            check_epsilon(**prices)
        assert "large_epsilon=True" in str(refusal.value)
        check_epsilon(**prices, large_epsilon=True)
    check_epsilon(20)
    check_epsilon(None)


def test_the_odds_are_those_of_the_epsilon():
    with pytest.raises(dp.InvalidInput, match="all but one of 1,318,815,736 bets"):
        check_epsilon(21)


@pytest.mark.parametrize(
    "budget", [dp.Budget(epsilon=21), dp.Budget(rho=21), dp.Budget(epsilon=30, delta=1e-6)]
)
def test_a_large_budget_is_declared_as_one(budget):
    with pytest.raises(dp.InvalidInput, match="large_epsilon=True"):
        dp.open({"a": [1]}, budget=budget, **FACTS)
    with pytest.raises(dp.InvalidInput, match="large_epsilon=True"):
        dp.open({"a": [1]}, budget=dp.Budget(epsilon=1), analysts={"ann": budget}, **FACTS)
    people = dp.open({"a": [1]}, budget=budget, large_epsilon=True, **FACTS)
    # A budget that is in force has been insisted on.
    people.curator.change_policy(Policy(budget=budget, analysts={"ann": None}))
    with pytest.raises(dp.InvalidInput, match="large_epsilon=True"):
        people.curator.change_policy(Policy(budget=dp.Budget(epsilon=40)))


def test_the_shell_asks_whether_a_large_epsilon_is_meant(tmp_path):
    data = tmp_path / "t.csv"
    data.write_text("a\n" + "1\n2\n" * 20)
    (tmp_path / "t.csv.schema.toml").write_text(SCHEMA)

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        return str(result.exception) if result.exception else "done"

    ledger = f"{data}.ledger"
    for command in (
        ["init", data, "--epsilon", "55"],
        ["query", data, COUNT, "--epsilon", "30"],
        ["query", data, COUNT, "--within", "0.5", "--confidence", "0.9999999999"],
        ["policy", ledger, "--epsilon", "60"],
        ["policy", ledger, "--epsilon", "60", "--analyst", "ann=55"],
    ):
        assert "above 20" in run(*command), command
        assert run(*command, "--large-epsilon") == "done", command


def test_the_shell_asks_about_plans_and_accuracies_too(tmp_path):
    """They were charged 30 and 27 without a word."""
    data, plan = tmp_path / "t.csv", tmp_path / "plan.toml"
    data.write_text("a\n" + "1\n2\n" * 20)
    (tmp_path / "t.csv.schema.toml").write_text(SCHEMA)
    plan.write_text(f'data = "t.csv"\nepsilon = 30\n[[work]]\nsql = "{COUNT}"\n')
    total = "SELECT SUM(a) AS n FROM t"

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        return str(result.exception) if result.exception else "done"

    assert run("init", data, "--epsilon", "100", "--large-epsilon") == "done"
    for command in (["plan", plan, "--run"], ["query", data, total, "--within", "1"]):
        assert "above 20" in run(*command), command
        assert run(*command, "--large-epsilon") == "done", command
    assert run("plan", plan) == "done"
    assert run("query", data, total, "--within", "20") == "done"


@pytest.mark.parametrize("name", ["ann:3", "ann,bob", "ann=3", " ann", "ann "])
def test_names_of_analysts_have_no_marks_in_them(tmp_path, name):
    """`policy --analyst NAME:3` made a person called NAME:3."""
    with pytest.raises(dp.InvalidInput, match=r"analysts=\{'ann': dp.Budget\(epsilon=1\)\}") as refusal:
        Policy(budget=dp.Budget(epsilon=1), analysts={name: None})
    message = told(refusal.value, Invocation())
    assert message.endswith("Give a budget beside the name: --analyst ann=1.")
