"""`discreet migrate`: lists what to change in a training script that was written for Opacus."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import typer

from ..._errors import InvalidInput
from ..._text import visible
from ...learning.migrate import advise


def migrate(
    script: Path = typer.Argument(
        ..., help="A Python file with an Opacus training loop.", show_default=False
    ),
    as_json: bool = typer.Option(False, "--json", help="Machine-readable output."),
) -> None:
    """Say, line by line, what to change in an Opacus training script. The script is parsed, never run.

    [dim]discreet migrate train_mnist.py[/]
    """
    try:
        source = script.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InvalidInput(
            f"{str(script)!r} cannot be read as text: {type(error).__name__}. Nothing was run. Give a Python "
            f"file in UTF-8."
        ) from None
    advice = advise(source)
    if as_json:
        print(json.dumps({"script": str(script), "advice": [asdict(change) for change in advice]}))
        return
    for change in advice:
        print(f"line {change.line}: {visible(change.theirs)}")
        print(f"    {visible(change.ours)}")
        print(f"    {change.why}")
    print(f"{len(advice)} places. Everything, side by side: docs/migrate-from-opacus.md")
