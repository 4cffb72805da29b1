"""Defines the command `discreet`: a thin layer over the library, one line per error, exit codes for scripts.

The exit codes are these. 0: the command has done its work. 1: a check failed, such as `ledger verify`, or the
reader of the output closed the pipe. 2: the input was refused, and nothing was released; or Python raised an
error such as a full disk, after which the ledger shows what was charged. 3: an optional package is missing.
4: the budget does not suffice (nothing was released). 5: the command failed after it was charged (nothing was
released). With --json an error is JSON too: {"error": {"kind", "message", "code"}} on standard output.

The module of a command is imported when the command is run, so that `discreet --help` does not wait for the
import of a database engine.
"""

from __future__ import annotations

import io
import json
import re
import sys
import warnings
from importlib import import_module
from typing import Any, NamedTuple

import typer

from ... import __version__
from ..._errors import BudgetExceeded, DiscreetError, InvalidInput, MissingExtra, ReleaseFailed
from ..._require import door
from ..._text import visible
from .parser import Command, CommandGroup, Invocation, Shell, flag


class Lazy(NamedTuple):
    """A command that is imported when it is run: its module in this package, the function or the group in it,
    and its help, whose first paragraph is shown where the commands are listed.

    `pays`: of its errors, the message says whether anything was charged.
    """

    module: str
    attribute: str
    help: str
    pays: bool = False


COMMANDS: dict[str, Lazy] = {
    "demo": Lazy(
        "demo",
        "demo",
        "See what discreet does, on a real table that comes with it: private answers, their price and "
        "their error.",
    ),
    "init": Lazy(
        "init",
        "init",
        "Draft the schema file of a table from column names and types, never from values; then, with a "
        "budget, open its ledger.",
    ),
    "check": Lazy(
        "check",
        "check",
        "Look, as the steward, how well a file fits its schema. Not for analysts: the shares are not "
        "private.\n"
        "\n"
        "Per column the coarse share that is missing, does not convert, or lies outside the declared "
        "bounds or categories; and how many people have more rows, or are in more groups of a column, "
        "than the declared limits. Never a value of the data, and never a proposal of bounds. The "
        "ledger, if there is one, records that it was looked at.",
    ),
    "query": Lazy(
        "query",
        "query",
        "Ask a question in SQL. It is charged before it is answered; asked again, it is free.",
        pays=True,
    ),
    "preview": Lazy(
        "query",
        "preview",
        "Say what a question would cost, how good its answer would be, and how many of these the "
        "budget buys: free.",
    ),
    "suggest": Lazy(
        "query",
        "suggest",
        "Suggest bounds of a column, or the limits on rows and groups with which a question errs least: "
        "charged, recorded, and free the second time.",
        pays=True,
    ),
    "plan": Lazy(
        "plan",
        "plan",
        "Split one epsilon among questions and models so that the weighted error is least, and say "
        "what each will cost. Free without --run.",
        pays=True,
    ),
    "budget": Lazy(
        "ledger",
        "budget",
        "How much of the budget is gone, for the dataset (each of its periods) and for each analyst; "
        "and who spent it.",
    ),
    "policy": Lazy(
        "policy",
        "policy",
        "Show the budgets, add analysts, or change what may be spent.",
    ),
    "ledger": Lazy(
        "ledger",
        "ledger",
        "Show, verify, back up, export, anchor or carry over the ledger of a dataset; write receipts of "
        "its numbers.",
    ),
    "verify-number": Lazy(
        "ledger",
        "verify_number",
        "Check the receipt of a released number without the ledger: its question, value, error and price, "
        "as the ledger's key has signed them. Exit code 1 if it is not to be relied on.\n"
        "\n"
        "[dim]discreet verify-number receipt.json --key 9f0c...[/]",
    ),
    "explain": Lazy(
        "explain",
        "explain",
        "Say what an epsilon, a ledger, a planned question or a model means for one person, in plain "
        "words.\n"
        "\n"
        "[dim]discreet explain 1.0[/]\n"
        "[dim]discreet explain patients.csv --for policy --label label.pdf[/]\n"
        '[dim]discreet explain patients.csv "SELECT COUNT(*) AS n FROM patients" --epsilon 0.5[/]',
    ),
    "report": Lazy(
        "releases",
        "report",
        "Write a page of everything that was released: questions, answers with their errors, what was spent "
        "by whom, and what it means for one person.",
    ),
    "dossier": Lazy(
        "dossier",
        "dossier",
        "Draft the papers that others ask for, from the ledger: an entry for the registry of deployments, "
        "the questions of NIST SP 800-226, and an annex for a data-protection impact assessment; what the "
        "software cannot know is asked of the steward.",
    ),
    "train": Lazy(
        "train",
        "train",
        "Train a private model of one column, with DP-SGD or another --method. Charged before any data "
        "is read; every step is paid for once.",
        pays=True,
    ),
    "synth": Lazy(
        "synth",
        "synth",
        "Make a synthetic copy of a table. Charged before any data is read; rows, SQL and reports on "
        "it are free.",
        pays=True,
    ),
    "epsilon": Lazy(
        "accounting",
        "epsilon",
        "What does this cost? The epsilon of training, of noise, of many releases.\n"
        "\n"
        "[dim]discreet epsilon dpsgd --n 60000 --batch 256 --epochs 60 --noise-multiplier 1.1 --delta "
        "1e-5[/]\n"
        "[dim]discreet epsilon laplace --noise-multiplier 10 --times 100 --delta 1e-6 --compare[/]",
    ),
    "calibrate": Lazy(
        "accounting",
        "calibrate",
        "What may I do for this cost? The least noise, the most steps, the largest sampling rate.\n"
        "\n"
        "[dim]discreet calibrate dpsgd --n 60000 --batch 256 --epochs 60 --epsilon 3 --delta 1e-5[/]\n"
        "[dim]discreet calibrate gaussian --noise-multiplier 50 --find times --epsilon 1 --delta "
        "1e-6[/]",
    ),
    "audit": Lazy(
        "audit",
        "audit",
        "Try to refute a privacy claim: a lower bound on epsilon, with confidence. Exit code 1 if the "
        "claim is refuted.\n"
        "\n"
        "[dim]discreet audit mypackage.noise:noisy_sum --epsilon 1 --on '[1, 0]' --neighbor '[0]'[/]",
    ),
    "stream": Lazy(
        "stream",
        "stream",
        "Publish a count or decision at every tick, for one epsilon: start, learn, feed, show, factors.",
        pays=True,
    ),
    "leaderboard": Lazy(
        "leaderboard",
        "leaderboard",
        "A leaderboard that cannot be climbed by luck, on labels that stay private.",
        pays=True,
    ),
    "collect": Lazy(
        "collect",
        "collect",
        "Ask people who trust nobody: each report is private before it leaves them.",
    ),
    "serve": Lazy(
        "serve",
        "serve",
        "Serve datasets over HTTP and in the browser: the data stays inside, every answer is charged.",
    ),
    "version": Lazy(
        "demo",
        "version",
        "Print the version.",
    ),
}


class LazyCommand(Command):
    """Stands for a command until it is run: then its module is imported, and it reads the words itself."""

    def make_context(self, info_name: Any, args: Any, parent: Any = None, **extra: Any) -> Any:
        return load(str(self.name)).make_context(info_name, args, parent, **extra)


class Commands(CommandGroup):
    """Lists all commands without importing them."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for name, lazy in COMMANDS.items():
            self.add_command(LazyCommand(name, help=lazy.help))


def load(name: str) -> Any:
    """Import the module of one command, and return the command."""
    lazy = COMMANDS[name]
    shell = getattr(import_module(f".{lazy.module}", __name__), lazy.attribute)
    if not isinstance(shell, Shell):
        function, shell = shell, Shell()
        shell.command(name)(function)
    command = typer.main.get_command(shell)
    command.name, command.help = name, lazy.help
    return command


app = Shell(
    cls=Commands, help="Answers questions about people without telling on anyone.", add_completion=True
)


@app.callback(invoke_without_command=True)
def _root(
    ctx: typer.Context,
    version: bool = typer.Option(False, "--version", help="Print the version and stop.", is_eager=True),
) -> None:
    # No docstring: the help of `discreet` is that of `app`.
    if version:
        print(f"discreet {__version__}")
        raise typer.Exit
    if ctx.invoked_subcommand is None:
        print(ctx.get_help())
    ctx.ensure_object(Invocation).command = ctx.invoked_subcommand


# What Python raises for extreme numbers, deep nesting and full disks, where no check of discreet has refused
# them before.
_UNEXPECTED = (ArithmeticError, ValueError, RecursionError, MemoryError, OSError)


def _run(invocation: Invocation) -> None:
    """Run the command; the exceptions of Python in `_UNEXPECTED` become an `InvalidInput`."""
    try:
        app(obj=invocation)
    except DiscreetError:
        raise
    except BrokenPipeError:
        # The reader of our output has closed the pipe. Closing stderr keeps Python from reporting it again.
        sys.stderr.close()
        sys.exit(1)
    except _UNEXPECTED as error:
        reason = "a number or a description is out of range"
        if isinstance(error, OSError):
            reason = str(error.strerror)
        elif isinstance(error, UnicodeError):
            reason = "a text is not in UTF-8"
        raise InvalidInput(
            f"this could not be finished ({type(error).__name__}: {reason}). An answer that the ledger has "
            "is free when it is asked for again."
        ) from None


# What the shell advises where the library's remedy is Python, by the option that the error is about.
_REMEDIES = {
    "analysts": "Give a budget beside the name: --analyst ann=1.",
    "budget": "Open it without a budget, or change the budgets with discreet policy.",
    "delta": "Ask for Laplace noise, by an epsilon alone; or the steward can give a delta: discreet policy "
    "--delta 1e-6.",
    "large_delta": "Take a delta far below one over the number of people, declare size = ... in the schema "
    "file, or insist: --large-delta.",
    "total": "Give --total EPSILON, or --total unlimited, which promises something about a person's rows "
    "within one period only.",
}


def told(error: DiscreetError, invocation: Invocation) -> str:
    """Return the message of an error in the words of the shell. Options have the names that they have in the
    shell, also in the advice; what a `BudgetExceeded` states are facts about a budget, and no options."""
    if not error.charged and not (invocation.command and COMMANDS[invocation.command].pays):
        error.charged = None
    if error.option is not None and invocation.options >= {error.option}:
        error.what = re.sub(f"^{error.option}\\b(?!=)", flag(error.option), error.what)
    if error.remedy:
        error.remedy = invocation.words(_REMEDIES.get(error.option or "", error.remedy))
    if not isinstance(error, BudgetExceeded):
        error.what = invocation.words(error.what)
    return str(error)


# The exit codes of errors; that of any other `DiscreetError` is 2.
_CODES = {MissingExtra: 3, BudgetExceeded: 4, ReleaseFailed: 5}


def main() -> None:
    """Run the command; an error of discreet is printed as a message without a traceback, a warning as one
    line.

    The docstring of the module lists the exit codes.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # On a terminal without "±", a charged answer is printed with an escape instead of an error.
            stream.reconfigure(errors="backslashreplace")
    invocation, default_format = Invocation(), warnings.formatwarning
    warnings.formatwarning = lambda message, category, *where: (
        f"discreet: warning: {invocation.words(visible(str(message)))}\n"
        if category.__module__.startswith("discreet.")
        else default_format(message, category, *where)
    )
    try:
        with door():
            _run(invocation)
    except DiscreetError as error:
        code = next((code for kind, code in _CODES.items() if isinstance(error, kind)), 2)
        message = told(error, invocation)
        if invocation.as_json:
            print(json.dumps({"error": {"kind": type(error).__name__, "message": message, "code": code}}))
            sys.exit(code)
        # imported here: slow to load, and only an error needs it
        from rich.console import Console
        from rich.text import Text

        # As plain text: brackets in a message are not markup of rich.
        text = visible(message, keep="\n")
        Console(stderr=True).print(Text.assemble(("discreet: ", "bold red"), text), soft_wrap=True)
        sys.exit(code)
