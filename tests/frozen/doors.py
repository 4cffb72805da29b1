"""Stories of the other doors: the shell, and the document that describes the HTTP interface."""

from __future__ import annotations

import json
from typing import Any

from .stage import Stage

SCHEMA = """
table = "people"
version = "1"
unit = "row"
[columns.age]
type = "number"
lower = 0
upper = 100
[columns.ward]
type = "categories"
values = ["a", "b"]
"""
# What these commands print are prices; what `calibrate` prints is noise, which must not fall.
PRICING = ("epsilon",)
COUNT = "SELECT ward, COUNT(*) AS n FROM people GROUP BY ward"


def _shell(stage: Stage, name: str, *words: str, code: int = 0) -> str:
    """Run a command, and write down what it prints: JSON as facts, words as a message."""
    from typer.testing import CliRunner

    from discreet import DiscreetError
    from discreet.app.cli import app

    result = CliRunner().invoke(
        app, list(words), env={"COLUMNS": "110", "TERM": "dumb", "NO_COLOR": "1", "FORCE_COLOR": None}
    )
    if isinstance(result.exception, DiscreetError):
        stage.facts.setdefault("refusals", {})[name] = type(result.exception).__name__
        stage.says(f"refused: {name}", result.exception)
        return ""
    assert result.exit_code == code, (words, result.output, result.exception)
    if "--json" in words:
        facts = json.loads(result.stdout)
        stage.price(**{name: facts}) if words[0] in PRICING else stage.exactly(**{name: facts})
    else:
        stage.says(name, result.stdout)
    return result.stdout


def shell_table(stage: Stage) -> None:
    """A steward's and an analyst's day: draft a schema, check, preview, ask, look at the ledger, explain."""
    table = "age,ward\n" + "30,a\n40,b\n50,a\n" * 10
    (stage.folder / "people.csv").write_text(table)
    _shell(stage, "init", "init", "people.csv")
    draft = stage.folder / "people.csv.schema.toml"
    stage.says("the draft", draft.read_text())
    draft.write_text(SCHEMA)
    _shell(stage, "open", "init", "people.csv", "--epsilon", "2", "--delta", "1e-6", "--analyst", "ann=0.5")
    _shell(stage, "check", "check", "people.csv", "--json")
    for command in ("preview", "query"):
        _shell(stage, f"{command} in words", command, "people.csv", COUNT, "-e", "0.25")
        _shell(stage, command, command, "people.csv", COUNT, "-e", "0.25", "--json")
    _shell(stage, "median", "query", "people.csv", "SELECT MEDIAN(age) FROM people", "-e", "0.5", "--json")
    _shell(stage, "too much", "query", "people.csv", COUNT, "-e", "0.75", "--as", "ann")
    _shell(stage, "no such column", "query", "people.csv", "SELECT SUM(weight) FROM people", "-e", "0.1")
    _shell(stage, "no such file", "query", "persons.csv", COUNT, "-e", "0.1")
    _shell(stage, "budget", "budget", "people.csv.ledger", "--json")
    _shell(stage, "ledger", "ledger", "show", "people.csv.ledger", "--json")
    _shell(stage, "ledger in words", "ledger", "show", "people.csv.ledger")
    _shell(stage, "verify", "ledger", "verify", "people.csv.ledger")
    _shell(stage, "explain in words", "explain", "people.csv.ledger")
    _shell(stage, "explain a question", "explain", "people.csv", COUNT, "-e", "0.25")


def shell_prices(stage: Stage) -> None:
    """What things cost, and how much noise a price asks for."""
    training = ("dpsgd", "--n", "60000", "--batch", "256", "--epochs", "2", "--delta", "1e-5")
    for name, words in {
        "training": ("epsilon", *training, "--noise-multiplier", "1.1"),
        "noise": ("calibrate", *training, "--epsilon", "2"),
        "one epsilon": ("explain", "1.0"),
    }.items():
        _shell(stage, f"{name} in words", *words)
        _shell(stage, name, *words, "--json")
    _shell(stage, "no noise", "epsilon", *training, "--noise-multiplier", "-1")


def http_document(stage: Stage) -> None:
    """The OpenAPI document, without a server or a worker."""
    from discreet.app.web import Settings, build

    app = build(Settings(state=stage.folder / "state"))
    prose: list[str] = []
    stage.exactly(openapi=_without_prose(app.openapi(), "", prose))
    stage.says("prose", "\n".join(prose))
    app.state.store.close()


def _without_prose(value: Any, path: str, prose: list[str]) -> Any:
    """A document without its prose, which is no part of the wire and is collected for itself."""
    if isinstance(value, dict):
        texts = {name for name in ("description", "summary") if isinstance(value.get(name), str)}
        prose.extend(f"{path}: {value[name]}" for name in sorted(texts))
        kept = value.keys() - texts
        return {name: _without_prose(value[name], f"{path}/{name}", prose) for name in sorted(kept)}
    if isinstance(value, list):
        return [_without_prose(part, f"{path}/{i}", prose) for i, part in enumerate(value)]
    return value


STORIES = (shell_table, shell_prices, http_document)
