"""The shell command `discreet`: thin over the library, one line an error, exit codes that scripts can use.

0: done. 1: a check failed. 2: the input was refused (nothing was released). 3: an optional package is missing.
4: the budget does not hold it (nothing was released). 5: it failed after it was charged (nothing was released).
With --json an error is JSON too: {"error": {"kind", "message", "code"}} on standard output.
"""

from __future__ import annotations

import json
import sys

import typer
from rich.console import Console
from rich.text import Text

from ... import __version__
from ..._errors import BudgetExceeded, DiscreetError, MissingExtra, ReleaseFailed
from .accounting import calibrate, epsilon
from .audit import audit
from .demo import demo
from .leaderboard import leaderboard
from .ledger import budget, ledger
from .query import init, preview, query
from .train import train

app = typer.Typer(
    help="Answers questions about people without telling on anyone.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.command()(demo)
app.command()(init)
app.command()(query)
app.command()(preview)
app.command()(epsilon)
app.command()(calibrate)
app.command()(budget)
app.command()(audit)
app.command()(train)
app.add_typer(ledger, name="ledger")
app.add_typer(leaderboard, name="leaderboard")


@app.callback(invoke_without_command=True)
def _root(
    version: bool = typer.Option(False, "--version", help="Print the version and stop.", is_eager=True),
) -> None:
    if version:
        print(f"discreet {__version__}")
        raise typer.Exit


_CODES = {MissingExtra: 3, BudgetExceeded: 4, ReleaseFailed: 5}


def main() -> None:
    """Run the command; an error of ours is a message, not a traceback."""
    try:
        app()
    except DiscreetError as error:
        code = next((code for kind, code in _CODES.items() if isinstance(error, kind)), 2)
        if "--json" in sys.argv:
            print(json.dumps({"error": {"kind": type(error).__name__, "message": str(error), "code": code}}))
            sys.exit(code)
        # as plain text: a message may hold brackets, which are no markup
        Console(stderr=True).print(Text.assemble(("discreet: ", "bold red"), str(error)), soft_wrap=True)
        sys.exit(code)
