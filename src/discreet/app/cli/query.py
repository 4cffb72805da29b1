"""`discreet init`, `query` and `preview`: a table, a budget and SQL on the shell."""

from __future__ import annotations

import importlib.util
import json
import shlex
from pathlib import Path

import typer

from ... import session as sessions
from ... import tables
from ..._errors import InvalidInput, MissingExtra
from ..._text import visible
from ...curator import STEWARD, Budget
from ...query import Answer
from .. import requests
from ..requests import beside
from . import outputs

DATA = typer.Argument(
    ..., help="A .parquet, .csv or .tsv file (also .csv.gz), or database.duckdb::table.", show_default=False
)
SQL = typer.Argument(..., help="One SELECT; - reads it from standard input.", show_default=False)
SCHEMA = typer.Option(None, "--schema", help="The schema file. By default DATA with .schema.toml added.")
LEDGER = typer.Option(None, "--ledger", help="The ledger. By default DATA with .ledger added.")
EPSILON = typer.Option(None, "--epsilon", "-e", help="Ask by price.")
WITHIN = typer.Option(None, "--within", help="Ask by accuracy: the least price that promises this error.")
CONFIDENCE = typer.Option(0.95, "--confidence", help="Of errors and of --within.")
DELTA = typer.Option(None, "--delta", help="By default a hundredth of the budget's.")
ROWS = typer.Option(None, "--rows", help="How many rows of one person count in a group.")
GROUPS = typer.Option(None, "--groups", help="In how many groups one person counts.")
OTHER = typer.Option(False, "--other", help="Add up the groups that are not shown in one row.")
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
JSON = typer.Option(False, "--json", help="Machine-readable output.")


def init(
    data: str = DATA,
    schema: Path = SCHEMA,
    epsilon: float = typer.Option(
        None, "--epsilon", help="With a budget, the ledger is made too (the schema must be complete)."
    ),
    rho: float = typer.Option(
        None, "--rho", help="The budget as zero-concentrated privacy, instead of epsilon."
    ),
    delta: float = typer.Option(0.0, "--delta", help="Of the budget."),
    per: str = typer.Option(
        None, "--per", help="A budget for each period: COLUMN:EVERY (day to year), or a COLUMN of labels."
    ),
    total: str = typer.Option(
        None, "--total", help="With --per: epsilon of all periods together for one person, or unlimited."
    ),
    analyst: list[str] = typer.Option(
        [], "--analyst", help="NAME, or NAME=EPSILON or NAME=EPSILON,DELTA for a budget of their own."
    ),
    related: list[str] = typer.Option(
        [],
        "--related",
        help="Another table that queries may join, drafted into the same schema file. Can be repeated.",
    ),
    delimiter: str = typer.Option(
        None, "--delimiter", help="What parts the fields of a CSV file, for the draft: ';'"
    ),
    look: bool = typer.Option(
        False,
        "--look",
        help="Draft types and formats of a CSV file from its values. Not private: it is marked, and noted "
        "in the ledger.",
    ),
    interactive: bool = typer.Option(
        False, "--interactive", "-i", help="Ask the draft's questions here, one by one."
    ),
    large_delta: bool = typer.Option(
        False, "--large-delta", help="Insist on a delta above 1e-3 where no size is declared."
    ),
    ledger: Path = LEDGER,
    engine: str = ENGINE,
    as_json: bool = JSON,
) -> None:
    """Draft the schema file of a table from column names and types, never from values; then, with a budget,
    open its ledger."""
    path = schema or beside(data, ".schema.toml")
    named = "" if schema is None else f" --schema {shlex.quote(str(schema))}"
    if not path.exists():
        _draft(data, path, related=related, delimiter=delimiter, look=look, interactive=interactive)
        first = f"wrote {path}." if interactive else f"drafted {path}: answer its questions."
        again = f"{shlex.quote(data)}{named}"
        fits = f" See how the file fits: discreet check {again}." if engine is None else ""
        _done(
            as_json,
            f"{first}{fits} Then open the ledger with: discreet init {again}"
            f"{'' if engine is None else f' --engine {engine}'} --epsilon 1 --delta 1e-6",
            schema=str(path),
        )
        return
    _refuse_draft(path, interactive=interactive, look=look, related=related)
    if epsilon is None and rho is None:
        raise InvalidInput(
            f"{path} exists already; nothing was changed. To open the ledger, give a budget: --epsilon 1"
        )
    opened = sessions.open(
        requests.data_of(data), schema=path, ledger=ledger or beside(data, ".ledger"),
        budget=Budget(epsilon=epsilon, rho=rho, delta=delta, per=requests.period_of(per, total, delta)),
        analysts=dict(map(requests.analyst_of, analyst)), large_delta=large_delta, engine=engine,
    )  # fmt: skip
    if tables.was_looked(path):
        opened.curator.note(
            "looked", {"what": "discreet init --look", "columns": [name for name, _ in opened.public.schema]}
        )
    text = f"opened {opened.ledger.path} with {opened.budget}. Its key is beside it: keep that from analysts."
    _done(as_json, text, ledger=str(opened.ledger.path), anchor=str(opened.ledger.anchor))


def _draft(
    data: str, path: Path, *, related: list[str], delimiter: str | None, look: bool, interactive: bool
) -> None:
    """Write the draft of a table's schema file."""
    source = requests.data_of(data)
    file = Path(source.path if isinstance(source, tables.Database) else source)
    if not file.exists() and not tables.is_several(file):
        raise InvalidInput(f"there is no file {str(file)!r}. Nothing was drafted.")
    if gone := [name for name in related if not Path(name.partition("::")[0]).exists()]:
        raise InvalidInput(f"there is no file {gone[0]!r}. Nothing was drafted.")
    files = tables.several(file)
    if files is not None:
        text = tables.draft(
            files.paths[0],
            table=beside(data, "").name,
            related=related,
            delimiter=delimiter,
            looking=look,
        )
    elif isinstance(source, tables.Database):
        text = tables.draft(source.path, table=source.table, related=related, looking=look)
    else:
        text = tables.draft(source, related=related, delimiter=delimiter, looking=look)
    outputs.check(path, data=[data, *related])
    if interactive:
        from .questions import complete

        text = complete(text)
    outputs.write(path, text)


def _refuse_draft(path: Path, *, interactive: bool, look: bool, related: list[str]) -> None:
    """Refuse what is for the draft only, where the schema is there already."""
    if interactive:
        raise InvalidInput(
            f"{path} exists already: --interactive is for the draft. Nothing was changed. To begin again, "
            f"delete that file first."
        )
    if look:
        raise InvalidInput(
            f"{path} exists already: --look is for the draft. Nothing was looked at or changed. To begin "
            f"again, delete that file first."
        )
    if related:
        raise InvalidInput(
            f"{path} exists already: declare related tables there, [tables.NAME]. Nothing was changed."
        )


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
    fresh: bool = typer.Option(
        False, "--fresh", help="Pay for new noise even if the answer is in the ledger."
    ),
    plot: Path = typer.Option(None, "--plot", help="Also draw bars with error bars into this PNG."),
    force: bool = outputs.FORCE,
    as_json: bool = JSON,
) -> None:
    """Ask a question in SQL. It is charged before it is answered; asked again, it is free."""
    if plot is not None:
        _drawable()
    plot = outputs.picture(plot)  # type: ignore[assignment]
    outputs.check(plot, force=force, data=[data, *([] if schema is None else [schema])])
    opened = requests.open_session(
        data, schema=schema, ledger=ledger, analyst=analyst, periods=period, seconds=seconds, engine=engine
    )
    options = requests.given(epsilon=epsilon, within=within, delta=delta, rows=rows, groups=groups)
    before = [account.spent for account in opened.accounts]
    answer = opened.sql(_text(sql), fresh=fresh, confidence=confidence, other=other, **options)
    free = before == [account.spent for account in opened.accounts]
    if as_json:
        print(json.dumps(requests.answer_json(answer, confidence, opened) | {"free": free}))
        return
    print(visible(answer.text(confidence, rest="--json has all"), keep="\n"))
    served = "asked before: served from the store, free; " if free else ""
    _say(f"{served}used so far: {opened.spent:.4g}; left: {opened.remaining:.4g}")
    if plot is not None:
        _say(f"picture saved as {_picture(plot, answer, confidence)}")


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
    opened = requests.open_session(
        data, schema=schema, ledger=ledger, analyst=analyst, periods=period, engine=engine
    )
    options = requests.given(epsilon=epsilon, within=within, delta=delta, rows=rows, groups=groups)
    asked = opened.preview(_text(sql), confidence=confidence, other=other, **options)
    if as_json:
        print(json.dumps(requests.preview_json(asked)))
        return
    print(visible(str(asked), keep="\n"))


def _text(sql: str) -> str:
    return typer.get_text_stream("stdin").read() if sql == "-" else sql


def _drawable() -> None:
    """Refuse a picture that cannot be drawn before the question is charged."""
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingExtra.of("plots", "--plot needs matplotlib, and nothing was charged")


def _picture(path: Path, answer: Answer, confidence: float) -> Path:
    from ..demo.stage import Bar, draw

    drawn = answer.bars(confidence=confidence)
    trios = zip(drawn["labels"], drawn["heights"], drawn["errors"], strict=True)
    bars = [Bar(label, float(height), float(error or 0), None) for label, height, error in trios]
    return draw(path, bars, "", f"{answer.sql}\n{answer.price}; bars: {confidence:.0%} intervals")


def _done(as_json: bool, text: str, **facts: str) -> None:
    if as_json:
        print(json.dumps(facts))
    else:
        _say(text)


def _say(text: str) -> None:
    # Not through rich, which takes longer to load than a line takes to print.
    typer.secho(visible(text), err=True, dim=True)
