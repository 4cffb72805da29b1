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
from difflib import get_close_matches
from importlib import import_module
from itertools import pairwise
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from ... import __version__
from ..._errors import BudgetExceeded, DiscreetError, InvalidInput, MissingExtra, ReleaseFailed
from ..._require import did_you_mean, door
from ..._text import visible

# Command name: its module in this package, the function or Typer group in it, and its help line. The help
# line repeats the beginning of the function's docstring, so that no import is needed to list it; a test
# compares them.
COMMANDS: dict[str, tuple[str, str, str]] = {
    "demo": (
        "demo",
        "demo",
        "See what discreet does, on a real table that comes with it: private answers, their price and "
        "their error.",
    ),
    "init": (
        "init",
        "init",
        "Draft the schema file of a table from column names and types, never from values; then, with a "
        "budget, open its ledger.",
    ),
    "check": (
        "check",
        "check",
        "Look, as the steward, how well a file fits its schema. Not for analysts: the shares are not "
        "private.",
    ),
    "query": (
        "query",
        "query",
        "Ask a question in SQL. It is charged before it is answered; asked again, it is free.",
    ),
    "preview": (
        "query",
        "preview",
        "Say what a question would cost, how good its answer would be, and how many of these the budget "
        "buys: free.",
    ),
    "plan": (
        "plan",
        "plan",
        "Split one epsilon among questions and models so that the weighted error is least, and say what "
        "each will cost. Free without --run.",
    ),
    "budget": (
        "ledger",
        "budget",
        "How much of the budget is gone, for the dataset (each of its periods) and for each analyst; and "
        "who spent it.",
    ),
    "policy": ("policy", "policy", "Show the budgets, add analysts, or change what may be spent."),
    "ledger": (
        "ledger",
        "ledger",
        "Show, verify, back up, export, anchor or carry over the ledger of a dataset.",
    ),
    "explain": (
        "explain",
        "explain",
        "Say what an epsilon, a ledger, a planned question or a model means for one person, in plain words.",
    ),
    "train": (
        "train",
        "train",
        "Train a private model of one column, with DP-SGD or another --method. Charged before any data "
        "is read; every step is paid for once.",
    ),
    "synth": (
        "synth",
        "synth",
        "Make a synthetic copy of a table. Charged before any data is read; rows, SQL and reports on it "
        "are free.",
    ),
    "epsilon": (
        "accounting",
        "epsilon",
        "What does this cost? The epsilon of training, of noise, of many releases.",
    ),
    "calibrate": (
        "accounting",
        "calibrate",
        "What may I do for this cost? The least noise, the most steps, the largest sampling rate.",
    ),
    "audit": (
        "audit",
        "audit",
        "Try to refute a privacy claim: a lower bound on epsilon, with confidence. Exit code 1 if the "
        "claim is refuted.",
    ),
    "stream": (
        "stream",
        "stream",
        "Publish a count or decision at every tick, for one epsilon: start, learn, feed, show, factors.",
    ),
    "leaderboard": (
        "leaderboard",
        "leaderboard",
        "A leaderboard that cannot be climbed by luck, on labels that stay private.",
    ),
    "collect": (
        "collect",
        "collect",
        "Ask people who trust nobody: each report is private before it leaves them.",
    ),
    "serve": (
        "serve",
        "serve",
        "Serve datasets over HTTP and in the browser: the data stays inside, every answer is charged.",
    ),
    "version": ("demo", "version", "Print the version."),
}


class LazyGroup(TyperGroup):
    """Lists the commands from `COMMANDS`, and imports the module of a command when it is called."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options of `discreet` itself; a flag's help shows no type, as it takes no value."""
        options = super().get_params(ctx)
        for option in options:
            if getattr(option, "is_flag", False):
                option.metavar = ""
        return options

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command that has only its help line: for lists and completion, which run nothing."""
        if cmd_name not in COMMANDS:
            return None
        return TyperCommand(cmd_name, help=COMMANDS[cmd_name][2])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Import the command that the first argument names; an unknown name is refused with the nearest
        one."""
        name = args[0]
        if name not in COMMANDS:
            ctx.fail(f"No such command {name!r}.{did_you_mean(name, COMMANDS)}")
        return name, load(name), args[1:]


def load(name: str) -> Any:
    """Import the module of one command, and return the command."""
    module, attribute, _ = COMMANDS[name]
    command_or_group = getattr(import_module(f".{module}", __name__), attribute)
    if not isinstance(command_or_group, typer.Typer):
        group = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")
        group.command(name)(command_or_group)
        command_or_group = group
    command = typer.main.get_command(command_or_group)
    command.name = name
    _hide_flag_types(command)
    _improve_option_errors(command)
    return command


def _improve_option_errors(command: Any) -> None:
    """Change the errors of the parser: a value that is no number is shown as typed (with a decimal comma, the
    point is proposed), a negative number is no unknown option, and for one of these only similar names are
    proposed."""
    parse = command.parse_args

    def parse_args(ctx: Any, args: list[str]) -> Any:
        # a copy, as the parser takes words from `args`
        arguments = list(args)
        try:
            return parse(ctx, args)
        except typer.BadParameter as error:
            names = set(getattr(error.param, "opts", ()))
            # what follows the option: after "=" in the same word, or the next word
            values = [word.partition("=")[2] or following for word, following in pairwise([*arguments, ""])
                      if word.partition("=")[0] in names]  # fmt: skip
            if values and "valid number" in error.message:
                decimal = re.fullmatch(r"[-+]?\d*,\d+", values[-1])
                advice = f": write {values[-1].replace(',', '.')}" if decimal else ""
                error.message = f"{visible(values[-1])!r} is no number{advice}."
            raise
        except Exception as error:
            negative = [word for word in arguments if re.fullmatch(r"-\d+\.?\d*(e[-+]?\d+)?", word)]
            if negative and str(getattr(error, "option_name", "")) == negative[0][:2]:
                # The parser took it for an option.
                raise InvalidInput(
                    f"{negative[0]!r} is below 0, and nothing here is: a price is zero or above, such as "
                    "1.0. See --help."
                ) from None
            if candidates := getattr(error, "possibilities", None):
                error.possibilities = get_close_matches(  # type: ignore[attr-defined]
                    str(getattr(error, "option_name", "")), candidates, cutoff=0.75
                )
            raise

    command.parse_args = parse_args
    for subcommand in getattr(command, "commands", {}).values():
        _improve_option_errors(subcommand)


def _hide_flag_types(command: Any) -> None:
    """Remove the type from the help of flags: `--json <bool>` looks as if it needed a value."""
    for option in command.params:
        if getattr(option, "is_flag", False):
            option.metavar = ""
    help_option = command.get_help_option

    def without_type(ctx: Any) -> Any:
        option = help_option(ctx)
        if option is not None:
            option.metavar = ""
        return option

    command.get_help_option = without_type
    for subcommand in getattr(command, "commands", {}).values():
        _hide_flag_types(subcommand)


app = typer.Typer(
    cls=LazyGroup,
    help="Answers questions about people without telling on anyone.",
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
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
    _invoked.append(ctx.invoked_subcommand)


# The command that was invoked, and those of which an error says whether anything was charged.
_invoked: list[str | None] = []
_PAYING = ("query", "plan", "train", "synth", "stream", "leaderboard")


# What Python raises for extreme numbers, deep nesting and full disks, where no check of discreet has refused
# them before.
_UNEXPECTED = (ArithmeticError, ValueError, RecursionError, MemoryError, OSError)


def _run() -> None:
    """Run the command; the exceptions of Python in `_UNEXPECTED` become an `InvalidInput`."""
    try:
        if _wants_json():
            _run_without_words()
        else:
            app()
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


def _wants_json() -> bool:
    return "--json" in sys.argv


def _run_without_words() -> None:
    """Run the command; what the parser refuses becomes an `InvalidInput`, where it would print words."""
    try:
        code = app(standalone_mode=False)
    except typer.Abort:
        sys.exit(1)
    except Exception as error:
        # The base class of the parser's errors, by its method: typer does not export the class.
        if (message := getattr(error, "format_message", None)) is None:
            raise
        raise InvalidInput(f"{message().rstrip('.')}. See --help.") from None
    # the code of typer.Exit; None where the command returned
    sys.exit(code or 0)


# keyword arguments that are options of the command line too
_OPTIONS = (
    "epsilon|rho|within|delta|confidence|rows|groups|noise|seconds|fresh|other|large_delta|large_epsilon|checkpoint|every|"
    "features|total|by|where|target|batch|epochs|clip|n|"
    "horizon|clock|participations|separation|window|decay|restart|strategy|tick"
)
# (regular expression, replacement), applied in this order before `_OPTIONS`
_RULES: tuple[tuple[str, str], ...] = (
    # the same is said for the shell right behind it
    (r"analysts=\{[^}]*\}, in the shell ", ""),
    (r"unit=dp\.rows\(\)", 'unit = "row" in the schema file'),
    (r"unit='(\w+)'", r"[unit] column = '\1' in the schema file"),
    (r"(?:Public\()?size=\.\.\.\)?", "size = ... in the schema file"),
    (r"session\.curator\.change_policy\(\.\.\.\)", "discreet policy"),
    (r"Period\(.*?, total=(?:Budget\([^)]*\)|'\w+')\)", "--per COLUMN:EVERY --total"),
    (r"(?:dp\.)?Budget\(epsilon=([^,)]+), delta=([^,)]+)\)", r"--epsilon \1 --delta \2"),
    (r"(?:dp\.)?Budget\(epsilon=([^,)]+)\)", r"--epsilon \1"),
    # states the delta of a budget; it is not an option that the reader should give
    (r"\(delta=([\d.e-]+)\)", r"(delta \1)"),
    (r"total=(?:dp\.)?Budget\([^)]*\)", "--total EPSILON"),
)


def in_shell_words(message: str) -> str:
    """Return a message with its keyword arguments written as options of the command line.

    >>> in_shell_words("say what the answer may cost (epsilon=0.1) or how good it must be (within=50).")
    'say what the answer may cost (--epsilon 0.1) or how good it must be (--within 50).'
    >>> in_shell_words("above the limit 1 (delta=1e-06). Ask with less epsilon.")
    'above the limit 1 (delta 1e-06). Ask with less epsilon.'
    """
    for pattern, words in _RULES:
        message = re.sub(pattern, words, message)
    return re.sub(rf"(?<![\w.\"'])({_OPTIONS})=(True\b|\.\.\.|'[^']*'|[\w.-]*\w|)", _option, message)


def _option(match: re.Match[str]) -> str:
    """Return `name=value` as `--name value`; a flag, or an option without a value, as `--name`."""
    name, value = "--" + match[1].replace("_", "-"), match[2]
    return name if value in ("True", "") else f"{name} {value}"


# The exit codes of errors; that of any other `DiscreetError` is 2.
_CODES = {MissingExtra: 3, BudgetExceeded: 4, ReleaseFailed: 5}


def main() -> None:
    """Run the command; an error of discreet is printed as a message without a traceback, a warning as one
    line.

    `in_shell_words` writes a keyword of the library, such as epsilon=0.1, as an option of the command line,
    --epsilon 0.1. The docstring of the module lists the exit codes.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # On a terminal without "±", a charged answer is printed with an escape instead of an error.
            stream.reconfigure(errors="backslashreplace")
    default_format = warnings.formatwarning
    warnings.formatwarning = lambda message, category, *where: (
        f"discreet: warning: {in_shell_words(visible(str(message)))}\n"
        if category.__module__.startswith("discreet.")
        else default_format(message, category, *where)
    )
    try:
        with door():
            _run()
    except DiscreetError as error:
        if not error.charged and not {*_PAYING}.intersection(_invoked):
            error.charged = None
        code = next((code for kind, code in _CODES.items() if isinstance(error, kind)), 2)
        message = in_shell_words(str(error))
        if _wants_json():
            print(json.dumps({"error": {"kind": type(error).__name__, "message": message, "code": code}}))
            sys.exit(code)
        # imported here: slow to load, and only an error needs it
        from rich.console import Console
        from rich.text import Text

        # As plain text: brackets in a message are not markup of rich.
        text = visible(message, keep="\n")
        Console(stderr=True).print(Text.assemble(("discreet: ", "bold red"), text), soft_wrap=True)
        sys.exit(code)
