"""`discreet audit module:function --epsilon 1`: is it as private as it says? For our mechanisms, and for
anybody's."""

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

from ..._errors import InvalidInput
from ..._text import visible
from . import outputs


def audit(
    target: Annotated[
        str,
        typer.Argument(
            help="module:function, a function of the data with randomness of its own, or a mechanism of ours."
        ),
    ],
    epsilon: Annotated[
        float | None, typer.Option(help="What is claimed. A mechanism of ours brings its own claim.")
    ] = None,
    delta: Annotated[float, typer.Option(help="What is claimed.")] = 0.0,
    on: Annotated[str, typer.Option(help="The data, as JSON.")] = "[1]",
    neighbor: Annotated[str, typer.Option(help="A neighbor of the data, as JSON.")] = "[]",
    runs: Annotated[int, typer.Option(help="How often to run it on each of the two.")] = 20_000,
    confidence: Annotated[float, typer.Option(help="With which a true claim is not refuted.")] = 0.95,
    html: Annotated[
        Path | None, typer.Option(help="Save a page with the trade-off, claimed and observed.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a page that exists.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of sentences.")] = False,
) -> None:
    """Try to refute a privacy claim: a lower bound on epsilon, with confidence. Exit code 1 if the claim is
    refuted.

    [dim]discreet audit mypackage.noise:noisy_sum --epsilon 1 --on '[1, 0]' --neighbor '[0]'[/]
    """
    from ... import auditing
    from ...mechanisms import Mechanism

    function, data, neighbor_data = _function(target), _data(on, "--on"), _data(neighbor, "--neighbor")
    if isinstance(function, Mechanism):
        data, neighbor_data = _table(function, data, "--on"), _table(function, neighbor_data, "--neighbor")
    elif epsilon is None:
        raise InvalidInput("say what is claimed: --epsilon 1. Nothing was run.")
    outputs.check(html, force=force)
    with _bar(runs) as progress:
        report = auditing.audit(
            function,
            data,
            neighbor_data,
            claim=None if epsilon is None else (epsilon, delta),
            confidence=confidence,
            runs=runs,
            progress=progress,
        )
    if html is not None:
        outputs.write(html, report.html(), force=force)
    if as_json:
        typer.echo(json.dumps(report.to_json()))
    else:
        console = Console(highlight=False)
        console.print(f"[bold]{'The claim is refuted' if report.refuted else 'The claim is not refuted'}.[/]")
        console.print(visible(str(report), keep="\n"), soft_wrap=True, markup=False)
        if html is not None:
            console.print(f"[dim]page saved as[/] {html}", soft_wrap=True)
    if report.refuted:
        raise typer.Exit(1)


@contextmanager
def _bar(runs: int) -> Iterator[Callable[[int], None]]:
    """Show a bar on the terminal with the time that is left; it is gone when it is full, and never in a file
    or a pipe."""
    columns = (TextColumn("running"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=runs)
        yield lambda turn: bar.update(task, completed=turn)


def _function(target: str) -> Callable[[Any], Any]:
    """Import the function, or the mechanism, that a target names."""
    module, _, name = target.partition(":")
    if not module or not name:
        raise InvalidInput(f"give module:function, got {target!r}. Nothing was run.")
    if os.getcwd() not in sys.path:
        # as `python -m` does
        sys.path.insert(0, os.getcwd())
    try:
        value: Any = importlib.import_module(module)
        for attribute in name.split("."):
            value = getattr(value, attribute)
    except Exception as problem:
        # whatever somebody's module does while it is loaded
        raise InvalidInput(
            f"{target!r} cannot be loaded: {type(problem).__name__}: {problem}. Nothing was run."
        ) from None
    if not callable(value):
        raise InvalidInput(f"{target!r} is not a function. Nothing was run.")
    return value  # type: ignore[no-any-return]


def _table(mechanism: Any, columns: Any, option: str) -> Any:
    """Return a table of the mechanism's own public facts, described by its columns."""
    if not isinstance(columns, dict):
        raise InvalidInput(
            f'a mechanism runs on a table: give {option} by its columns, such as \'{{"age": [31, '
            f"45]}}'. Nothing was run."
        )
    from ...tables import Memory

    return Memory(columns, mechanism.public)


def _data(text: str, option: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as problem:
        raise InvalidInput(f"{option} must be JSON: {problem}. Nothing was run.") from None
