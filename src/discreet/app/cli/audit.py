"""`discreet audit module:function --epsilon 1`: tests the privacy claim of a mechanism of discreet, or of any
function, by running it many times on two neighboring data sets."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from ..._errors import InvalidInput
from ..._text import visible
from . import forms
from .options import FORCE, JSON


def audit(
    target: Annotated[
        str,
        typer.Argument(
            help="module:function, a randomized function of the data, or a mechanism of discreet."
        ),
    ],
    epsilon: Annotated[
        float | None,
        typer.Option(help="The epsilon that is claimed. A mechanism of discreet brings its own claim."),
    ] = None,
    delta: Annotated[
        float | None,
        typer.Option(
            help="The delta that is claimed beside --epsilon; 0 if it is left out. Without --epsilon, the "
            "delta at which a mechanism of discreet states the epsilon of its curve."
        ),
    ] = None,
    on: Annotated[str, typer.Option(help="The data, as JSON.")] = "[1]",
    neighbor: Annotated[str, typer.Option(help="A neighbor of the data, as JSON.")] = "[]",
    runs: Annotated[int, typer.Option(help="How often to run it on each of the two data sets.")] = 20_000,
    confidence: Annotated[
        float, typer.Option(help="The least probability that a true claim is not refuted.")
    ] = 0.95,
    html: Annotated[
        Path | None, typer.Option(help="Save a page with the trade-off, claimed and observed.")
    ] = None,
    force: bool = FORCE,
    as_json: bool = JSON,
) -> None:
    # imported here: slow to load, and --help does not need them
    from ... import auditing
    from ...mechanisms import Mechanism

    function, data, neighbor_data = _function(target), _data(on, "--on"), _data(neighbor, "--neighbor")
    if isinstance(function, Mechanism):
        data, neighbor_data = _table(function, data, "--on"), _table(function, neighbor_data, "--neighbor")
    elif epsilon is None:
        raise InvalidInput("say what is claimed: --epsilon 1.")
    forms.check(html, force=force)
    with bar(runs) as progress:
        report = auditing.audit(
            function,
            data,
            neighbor_data,
            claim=None if epsilon is None else (epsilon, delta or 0.0),
            delta=delta if epsilon is None else None,
            confidence=confidence,
            runs=runs,
            progress=progress,
        )
    if html is not None:
        forms.write(html, report.html(), force=force)
    if as_json:
        typer.echo(json.dumps(report.to_json()))
    else:
        console = Console(highlight=False)
        console.print(f"[bold]{'The claim is refuted' if report.refuted else 'The claim is not refuted'}.[/]")
        console.print(visible(str(report), keep="\n"), soft_wrap=True, markup=False)
        if html is not None:
            # as Text: brackets in a path are not markup
            console.print(Text.assemble(("page saved as ", "dim"), visible(str(html))), soft_wrap=True)
    if report.refuted:
        raise typer.Exit(1)


@contextmanager
def bar(runs: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on standard error while the audit runs; nothing where that is a file or a pipe.
    Yields the function that is told how many runs are done."""
    columns = (TextColumn("running"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=runs)
        yield lambda done: bar.update(task, completed=done)


def _function(target: str) -> Callable[[Any], Any]:
    """Import the function, or the mechanism, that a target names."""
    module, _, name = target.partition(":")
    if not module or not name:
        raise InvalidInput(f"give module:function, got {target!r}.")
    if os.getcwd() not in sys.path:
        # A module in the current folder can be named, as with `python -m`.
        sys.path.insert(0, os.getcwd())
    try:
        value: Any = importlib.import_module(module)
        for attribute in name.split("."):
            value = getattr(value, attribute)
    except Exception as problem:
        # Importing runs code of another author, which may raise anything.
        raise InvalidInput(f"{target!r} cannot be loaded: {type(problem).__name__}: {problem}.") from None
    if not callable(value):
        raise InvalidInput(f"{target!r} is not a function.")
    return value  # type: ignore[no-any-return]


def _table(mechanism: Any, columns: Any, option: str) -> Any:
    """Return a table with these columns and the public facts (schema, unit) of the mechanism."""
    if not isinstance(columns, dict):
        raise InvalidInput(
            f"a mechanism runs on a table: give {option} by its columns, such as '{{\"age\": [31, 45]}}'."
        )
    from ...tables import Memory

    return Memory(columns, mechanism.public)


def _data(text: str, option: str) -> Any:
    """Return the data set that an option gives as JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise InvalidInput(f"{option} must be JSON: {problem}.") from None
