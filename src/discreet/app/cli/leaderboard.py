"""`discreet leaderboard init | submit | show`: runs a competition on labels that stay private."""

from __future__ import annotations

import csv
import dataclasses
import json
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ... import session as sessions
from ..._errors import Halted, InvalidInput
from ..._public import Boolean, Public
from ..._text import visible
from ...curator.policy import check_epsilon
from .forms import number
from .options import DATA, JSON, LARGE_EPSILON, TableFiles
from .parser import Shell
from .query import print_note

leaderboard = Shell(no_args_is_help=True)

NUMBER = typer.Option(
    None, "--board", help="Which board, by the number of its charge. By default the newest."
)


@leaderboard.command()
def init(
    data: str = DATA,
    target: str = typer.Option(
        ..., "--target", help="The column of the labels, declared as categories or boolean."
    ),
    id: str = typer.Option(..., "--id", help="The column that tells rows apart."),
    epsilon: str = typer.Option(..., "--epsilon", "-e", help="The price of the whole board."),
    delta: float = typer.Option(
        0.0, "--delta", help="With it a shaky ladder, for many improvements; without, a sparse vector board."
    ),
    step: str = typer.Option("0.01", "--step", help="By how much a score must beat the best."),
    improvements: int = typer.Option(
        None, "--improvements", help="After how many improvements the board halts. By default 1 / step."
    ),
    submissions: int = typer.Option(
        None, "--submissions", help="The largest number of submissions; with it, every score has its error."
    ),
    large_epsilon: bool = LARGE_EPSILON,
    *,
    files: TableFiles,
    as_json: bool = JSON,
) -> None:
    """Start a board on a table whose ledger is open (discreet init), and pay its whole price."""
    # imported here: slow to load, and --help does not need them
    from ...adaptive import ShakyLadder, SparseVectorBoard
    from ...leaderboard import Leaderboard

    check_epsilon(number(epsilon, "--epsilon"), large_epsilon=large_epsilon)
    session = files.session(data)
    if session.public.size is None:
        raise InvalidInput(
            "scores are shares of the rows, whose number is private and never counted here. Declare it in "
            "the schema file, above all sections: size = ..."
        )
    terms: dict[str, Any] = {
        "public": session.public, "target": target, "id": id, "epsilon": number(epsilon, "--epsilon"),
        "step": number(step, "--step"), "budget": improvements, "submissions": submissions,
    }  # fmt: skip
    mechanism = ShakyLadder(**terms, delta=delta) if delta else SparseVectorBoard(**terms)
    board = Leaderboard.open(session.curator, mechanism)
    if as_json:
        print(json.dumps({"board": board.number, "improvements": mechanism.improvements}))
        return
    print_note(f"board {board.number} is open: {mechanism.improvements} improvements, {_promise(mechanism)}")
    remaining = session.remaining
    # what is left of a budget by rounding is shown as 0
    print_note(f"used so far: {session.spent:.4g}; left: {remaining if remaining > 1e-9 else 0:.4g}")


@leaderboard.command()
def submit(
    data: str = DATA,
    predictions: Path = typer.Argument(..., help="A CSV file with a header: id,label", show_default=False),
    name: str = typer.Option(..., "--name", help="Who submits."),
    board: int = NUMBER,
    *,
    files: TableFiles,
    as_json: bool = JSON,
) -> None:
    """Submit predictions, and see the best score so far. Exit code 1 once the board has halted."""
    handle = _board(files.session(data), board)
    try:
        standing = handle.submit(name, read(predictions, handle.board.public, handle.board.target))
    except Halted as halted:
        if as_json:
            print(json.dumps({"error": {"kind": "Halted", "message": str(halted), "code": 1}}))
        else:
            print_note(str(halted))
        raise typer.Exit(1) from None
    if as_json:
        print(json.dumps(dataclasses.asdict(standing)))
        return
    news = "a new best score" if standing.improved else "not above the best score by a step"
    accuracy = (
        ""
        if standing.within is None or standing.within >= 1
        else f", within {standing.within:.3f} of the truth for 95 in 100 boards"
    )
    print(f"{news}: {standing.score:.4f}{accuracy} ({standing.left} improvements left)")


@leaderboard.command()
def show(
    data: str = DATA,
    board: int = NUMBER,
    *,
    files: TableFiles,
    as_json: bool = JSON,
) -> None:
    """Show all submissions so far, and the answer to each. Free: the answers are in the ledger."""
    handle = _board(files.session(data), board)
    rows = handle.standings()
    if as_json:
        print(json.dumps([{"name": name, **dataclasses.asdict(standing)} for name, standing in rows]))
        return
    table = Table("", "name", "best score", "", box=None)
    for i, (name, standing) in enumerate(rows, 1):
        table.add_row(
            str(i), Text(visible(name)), f"{standing.score:.4f}", "new best" if standing.improved else ""
        )
    Console().print(table)
    print_note(
        f"{len(rows)} submissions; {rows[-1][1].left if rows else handle.board.improvements} "
        f"improvements left. {_promise(handle.board)}"
    )


def read(path: Path, public: Public, target: str) -> dict[Any, Any]:
    """Return a mapping from id to label from a CSV file with a header.

    Ids are integers if all of them are written as integers; labels are, if the declared labels are.
    """
    try:
        with open(path, encoding="utf-8", newline="") as file:
            rows = [row for row in csv.reader(file) if row]
    except (OSError, UnicodeDecodeError, csv.Error):
        raise InvalidInput(f"{str(path)!r} cannot be read as a CSV file in UTF-8.") from None
    if len(rows) < 2 or any(len(row) != 2 for row in rows):
        raise InvalidInput(f"{str(path)!r} must have a header and two columns, id and label, in every row.")
    ids: list[Any] = [row[0].strip() for row in rows[1:]]
    if all(_is_integer(text) for text in ids):
        ids = [int(text) for text in ids]
    if len(set(ids)) < len(ids):
        raise InvalidInput(f"an id occurs twice in {str(path)!r}.")
    return dict(zip(ids, (_label(row[1].strip(), public, target) for row in rows[1:]), strict=True))


def _label(text: str, public: Public, target: str) -> Any:
    """Return a label as the target column has it: 1 or 0 for a boolean, an integer, or a text."""
    if isinstance(public.fact(target), Boolean):
        return {"true": 1, "false": 0}.get(text.lower(), int(text) if _is_integer(text) else text)
    numeric = all(isinstance(value, int) for value in public.categories(target).values)
    return int(text) if numeric and _is_integer(text) else text


def _is_integer(text: str) -> bool:
    """Return whether a text is an integer of at most 18 digits, which 64 bits always hold."""
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdigit() and len(digits) < 19


def _board(session: sessions.Session, board: int | None) -> Any:
    """Return the board by the number of its charge; by default the newest."""
    from ...leaderboard import Leaderboard

    return Leaderboard.find(session.curator, board)


def _promise(board: Any) -> str:
    """Return a sentence on how far scores are from the truth, on the test set and in general."""
    if board.submissions is None:
        return "error unknown: declare --submissions to have it shown"
    return f"scores within {board.error():.3f} on the test set, {board.generalization()}"
