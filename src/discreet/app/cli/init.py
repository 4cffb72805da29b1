"""`discreet init`: drafts the schema file of a table; once it is complete, opens the ledger."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import typer

from ... import session as sessions
from ... import tables
from ..._errors import InvalidInput
from ...curator import Budget
from ...tables.engines.spark_files import is_several
from ...tables.files import several
from ...tables.schema import was_looked
from .. import requests
from ..requests import beside
from . import outputs
from .query import DATA, ENGINE, JSON, LARGE_EPSILON, LEDGER, SCHEMA, print_note

RHO = typer.Option(None, "--rho", help="The budget as zero-concentrated privacy, instead of epsilon.")
EPSILON = typer.Option(
    None, "--epsilon", help="With a budget, the ledger is made too (the schema must be complete)."
)
DELTA = typer.Option(0.0, "--delta", help="The delta of the budget.")
PER = typer.Option(
    None, "--per", help="A budget for each period: COLUMN:EVERY (day to year), or a COLUMN of labels."
)
TOTAL = typer.Option(
    None, "--total", help="With --per: epsilon of all periods together for one person, or unlimited."
)
ANALYSTS = typer.Option(
    [], "--analyst", help="NAME, or NAME=EPSILON or NAME=EPSILON,DELTA for a budget of their own."
)
RELATED = typer.Option(
    [],
    "--related",
    help="Another table that queries may join, drafted into the same schema file. Can be repeated.",
)
DELIMITER = typer.Option(
    None, "--delimiter", help="The character between the fields of a CSV file, for the draft: ';'"
)
LOOK = typer.Option(
    False,
    "--look",
    help="Draft types and formats of a CSV file from its values. Not private: it is marked, and noted "
    "in the ledger.",
)
INTERACTIVE = typer.Option(False, "--interactive", "-i", help="Ask the draft's questions here, one by one.")
LARGE_DELTA = typer.Option(
    False, "--large-delta", help="Insist on a delta above 1e-3 where no size is declared."
)


def init(
    data: str = DATA,
    schema: Path = SCHEMA,
    epsilon: float = EPSILON,
    rho: float = RHO,
    delta: float = DELTA,
    per: str = PER,
    total: str = TOTAL,
    analyst: list[str] = ANALYSTS,
    related: list[str] = RELATED,
    delimiter: str = DELIMITER,
    look: bool = LOOK,
    interactive: bool = INTERACTIVE,
    large_delta: bool = LARGE_DELTA,
    large_epsilon: bool = LARGE_EPSILON,
    ledger: Path = LEDGER,
    engine: str = ENGINE,
    as_json: bool = JSON,
) -> None:
    """Draft the schema file of a table from column names and types, never from values; then, with a budget,
    open its ledger."""
    requests.refuse_password(data)
    path = schema or beside(data, ".schema.toml")
    schema_option = "" if schema is None else f" --schema {shlex.quote(str(schema))}"
    if not path.exists():
        _draft(data, path, related=related, delimiter=delimiter, look=look, interactive=interactive)
        message = f"wrote {path}." if interactive else f"drafted {path}: answer its questions."
        arguments = f"{shlex.quote(data)}{schema_option}"
        check_hint = f" See how the file fits: discreet check {arguments}." if engine is None else ""
        _print_result(
            as_json,
            f"{message}{check_hint} Then open the ledger with: discreet init {arguments}"
            f"{'' if engine is None else f' --engine {engine}'} --epsilon 1 --delta 1e-6",
            schema=str(path),
        )
        return
    _refuse_draft(path, interactive=interactive, look=look, related=related)
    if epsilon is None and rho is None:
        raise InvalidInput(
            f"{path} exists already; nothing was changed. To open the ledger, give a budget: --epsilon 1"
        )
    session = sessions.open(
        requests.data_of(data), schema=path, ledger=ledger or beside(data, ".ledger"),
        budget=Budget(epsilon=epsilon, rho=rho, delta=delta, per=requests.period_of(per, total, delta)),
        analysts=requests.analysts_of(analyst), large_delta=large_delta,
        large_epsilon=large_epsilon, engine=engine,
    )  # fmt: skip
    if was_looked(path):
        session.curator.note(
            "looked", {"what": "discreet init --look", "columns": [name for name, _ in session.public.schema]}
        )
    text = (
        f"opened {session.ledger.path} with {session.budget}. Its key is beside it: keep that from analysts."
    )
    _print_result(as_json, text, ledger=str(session.ledger.path), anchor=str(session.ledger.anchor))


def _draft(
    data: str, path: Path, *, related: list[str], delimiter: str | None, look: bool, interactive: bool
) -> None:
    """Write the draft of a table's schema file to `path`; of several files, from the first.

    Only names and types of columns are read, and with `look` values as well.
    """
    source = requests.data_of(data)
    file = Path(source.path if isinstance(source, tables.Database) else source)
    if not file.exists() and not is_several(file):
        raise InvalidInput(f"there is no file {str(file)!r}. Nothing was drafted.")
    if missing := [name for name in related if not Path(name.partition("::")[0]).exists()]:
        raise InvalidInput(f"there is no file {missing[0]!r}. Nothing was drafted.")
    files = several(file)
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
    """Refuse the options that are for a draft only, where the schema file exists already."""
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


def _print_result(as_json: bool, text: str, **facts: str) -> None:
    """Print the facts as JSON, or the text."""
    if as_json:
        print(json.dumps(facts))
    else:
        print_note(text)
