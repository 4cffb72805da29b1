"""`discreet query` and `discreet preview`: ask questions in SQL on the command line, and preview their price.

Other commands share the arguments and options that are defined here.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from ..._errors import MissingExtra
from ..._text import visible
from ...curator import STEWARD
from ...curator.policy import check_epsilon
from ...query import Answer
from ...query.preview import Preview
from .. import requests
from . import forms

DATA = typer.Argument(
    ...,
    help="A .parquet, .csv or .tsv file (also .csv.gz, .csv.zst), or database.duckdb::table.",
    show_default=False,
)
SQL = typer.Argument(..., help="One SELECT; - reads it from standard input.", show_default=False)
SCHEMA = typer.Option(None, "--schema", help="The schema file. By default DATA with .schema.toml added.")
LEDGER = typer.Option(None, "--ledger", help="The ledger. By default DATA with .ledger added.")
EPSILON = typer.Option(None, "--epsilon", "-e", help="Ask by price.")
WITHIN = typer.Option(None, "--within", help="Ask by accuracy: the least price that promises this error.")
CONFIDENCE = typer.Option(0.95, "--confidence", help="The probability with which errors and --within hold.")
DELTA = typer.Option(
    None, "--delta", help="The delta of the question. By default a hundredth of the budget's."
)
ROWS = typer.Option(None, "--rows", help="How many rows of one person count in each group.")
GROUPS = typer.Option(None, "--groups", help="In how many groups one person counts.")
OTHER = typer.Option(False, "--other", help="Add one row with the sum of all groups that are not shown.")
ANALYST = typer.Option(STEWARD, "--as", "--analyst", help="Who asks.")
PERIOD = typer.Option(
    [], "--period", help="Only rows of this period, where budgets are per period. Can be repeated."
)
SECONDS = typer.Option(
    None, "--seconds", help="Stop the engine after this long. What was charged stays charged."
)
ENGINE = typer.Option(
    None, "--engine", help="spark: have Spark read a Parquet file, a folder or a pattern of these."
)
LARGE_EPSILON = typer.Option(
    False, "--large-epsilon", help="Insist on an epsilon or rho above 20, which protects next to nothing."
)
JSON = typer.Option(False, "--json", help="Machine-readable output.")


def query(
    data: str = DATA,
    sql: str = SQL,
    epsilon: float = EPSILON,
    within: float = WITHIN,
    confidence: float = CONFIDENCE,
    delta: float = DELTA,
    rows: int = ROWS,
    groups: int = GROUPS,
    other: bool = OTHER,
    schema: Path = SCHEMA,
    ledger: Path = LEDGER,
    analyst: str = ANALYST,
    period: list[str] = PERIOD,
    seconds: float = SECONDS,
    engine: str = ENGINE,
    large_epsilon: bool = LARGE_EPSILON,
    fresh: bool = typer.Option(
        False, "--fresh", help="Pay for new noise even if the answer is in the ledger."
    ),
    plot: Path = typer.Option(None, "--plot", help="Also draw bars with error bars into this PNG."),
    force: bool = forms.FORCE,
    as_json: bool = JSON,
) -> None:
    """Ask a question in SQL. It is charged before it is answered; asked again, it is free."""
    check_epsilon(epsilon, large_epsilon=large_epsilon)
    if plot is not None:
        _require_matplotlib()
    plot = forms.picture(plot)  # type: ignore[assignment]
    forms.check(plot, force=force, data=[data, *([] if schema is None else [schema])])
    session = requests.open_session(
        data, schema=schema, ledger=ledger, analyst=analyst, periods=period, seconds=seconds, engine=engine
    )
    options = requests.without_none(epsilon=epsilon, within=within, delta=delta, rows=rows, groups=groups)
    text = sql_text(sql)
    if within is not None:
        price = session.preview(text, confidence=confidence, other=other, **options).query
        # Workloads have no accuracy to ask for: they are refused.
        assert isinstance(price, Preview)
        check_epsilon(price.epsilon, price.rho, large_epsilon=large_epsilon)
    # No account changes where the answer is served from the ledger.
    spent_before = [account.spent for account in session.accounts]
    answer = session.sql(text, fresh=fresh, confidence=confidence, other=other, **options)
    is_free = spent_before == [account.spent for account in session.accounts]
    if as_json:
        print(json.dumps(requests.answer_json(answer, confidence, session) | {"free": is_free}))
        if plot is not None:
            _picture(plot, answer, confidence)
        return
    print(visible(answer.text(confidence, rest="--json has all"), keep="\n"))
    note = "asked before: served from the store, free; " if is_free else ""
    print_note(f"{note}used so far: {session.spent:.4g}; left: {session.remaining:.4g}")
    if plot is not None:
        print_note(f"picture saved as {_picture(plot, answer, confidence)}")


def preview(
    data: str = DATA,
    sql: str = SQL,
    epsilon: float = EPSILON,
    within: float = WITHIN,
    confidence: float = CONFIDENCE,
    delta: float = DELTA,
    rows: int = ROWS,
    groups: int = GROUPS,
    other: bool = OTHER,
    schema: Path = SCHEMA,
    ledger: Path = LEDGER,
    analyst: str = ANALYST,
    period: list[str] = PERIOD,
    engine: str = ENGINE,
    as_json: bool = JSON,
) -> None:
    """Say what a question would cost, how good its answer would be, and how many of these the budget buys:
    free."""
    session = requests.open_session(
        data, schema=schema, ledger=ledger, analyst=analyst, periods=period, engine=engine
    )
    options = requests.without_none(epsilon=epsilon, within=within, delta=delta, rows=rows, groups=groups)
    query_preview = session.preview(sql_text(sql), confidence=confidence, other=other, **options)
    if as_json:
        print(json.dumps(requests.preview_json(query_preview)))
        return
    print(visible(str(query_preview), keep="\n"))


def sql_text(sql: str) -> str:
    """Return the SQL of the argument, or that on standard input for "-"."""
    return typer.get_text_stream("stdin").read() if sql == "-" else sql


def _require_matplotlib() -> None:
    """Refuse --plot without matplotlib, before the question is charged."""
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingExtra.of("plots", "--plot needs matplotlib")


def _picture(path: Path, answer: Answer, confidence: float) -> Path:
    """Draw the answer as bars with error bars, and return the path."""
    # imported here: only --plot needs it
    from ..demo.stage import Bar, draw

    columns = answer.bars(confidence=confidence)
    triples = zip(columns["labels"], columns["heights"], columns["errors"], strict=True)
    bars = [Bar(_literal(label), float(height), float(error or 0), None) for label, height, error in triples]
    return draw(path, bars, "", f"{_literal(answer.sql)}\n{answer.price}; bars: {confidence:.0%} intervals")


def _literal(text: str) -> str:
    """Return a text in which matplotlib sees no formula: between two dollar signs it would parse one."""
    return text.replace("$", r"\$")


def print_note(text: str) -> None:
    """Print one dim line on standard error."""
    # Not with rich: its import takes longer than printing a line.
    typer.secho(visible(text), err=True, dim=True)


@contextmanager
def explaining_interruption(checkpoint: Path | None) -> Iterator[None]:
    """Say, when Ctrl-C stops a run that may have been charged, how it goes on."""
    try:
        yield
    except KeyboardInterrupt:
        print_note(
            "stopped. What the ledger shows as charged stays charged. Without --checkpoint the run is over."
            if checkpoint is None
            else f"stopped. What was charged stays paid for: the same command with --resume goes on from "
            f"{checkpoint}, free."
        )
        raise
