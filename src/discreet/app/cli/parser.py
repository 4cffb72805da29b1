"""Reads the words of the shell: typer's commands and groups, with errors that say how a value is written, and
with the names of options as they stand in the shell.

A parameter of a command whose type is a list of options (a dataclass, such as `session.terms.Terms`)
becomes these options, each with the type, the default and the help of its field; the command is called with
the list.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from ..._errors import InvalidInput
from ..._text import visible

if TYPE_CHECKING:
    from ...session.terms import Option

# The base of the parser's errors, which typer does not export.
UsageError: Any = typer.BadParameter.__base__


@dataclasses.dataclass
class Invocation:
    """What `discreet` was called with: the command, whether it prints JSON, and the names of its options."""

    command: str | None = None
    as_json: bool = False
    options: frozenset[str] = frozenset()

    def words(self, message: str) -> str:
        """Return a message in which `name=value` is written `--name value` where the command has that option;
        a flag, or an option without a value, `--name`. Calls such as Budget(epsilon=1) stay.

        >>> Invocation(options=frozenset({"epsilon", "other"})).words("epsilon=1, other=True (n=3)")
        '--epsilon 1, --other (n=3)'
        """
        call, option = r"[\w.]+\([^()]*\)", r"(?<![\w.\"'])([a-z_]+)=(True\b|\.\.\.|'[^']*'|[\w.-]*\w|)"
        return re.sub(f"{call}|{option}", self._option, message)

    def _option(self, match: re.Match[str]) -> str:
        name, value = match.groups()
        if name is None or name not in self.options:
            return match[0]
        return flag(name) if value in ("True", "") else f"{flag(name)} {value}"


def flag(name: str) -> str:
    """Return an option of the library as the shell writes it.

    >>> flag("rows_per_unit")
    '--rows-per-unit'
    """
    return "--" + name.replace("_", "-")


class _Words:
    """Reads the words of a command or a group."""

    params: list[Any]

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options; the help of a flag shows no type, as it takes no value."""
        options: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for option in options:
            if option.param_type_name == "option" and option.is_flag:
                option.metavar = ""
        return options

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Parse the words; what is refused is told in words of ours, or as JSON where that was asked for."""
        # a copy, as the parser takes words from `args`
        words, invocation = list(args), ctx.ensure_object(Invocation)
        invocation.as_json = "--json" in words
        invocation.options = frozenset(
            name.removeprefix("--").replace("-", "_") for option in self.params for name in option.opts
        )
        try:
            return super().parse_args(ctx, args)  # type: ignore[misc]
        except UsageError as error:
            if isinstance(error, typer.BadParameter):
                _explain_number(error, words)
            elif not isinstance(self, TyperGroup):
                _explain_option(error, words)
            raise _as_json(error, invocation) from None


class Command(_Words, TyperCommand):
    """A command of the shell."""


class CommandGroup(_Words, TyperGroup):
    """A group of commands."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the first word names; an unknown name is refused with the nearest one."""
        try:
            return super().resolve_command(ctx, args)
        except UsageError as error:
            raise _as_json(error, ctx.ensure_object(Invocation)) from None


def _as_json(error: Any, invocation: Invocation) -> Exception:
    """Return the error of the parser, which prints words; as an `InvalidInput` where JSON was asked for."""
    if not invocation.as_json:
        return error  # type: ignore[no-any-return]
    message = error.format_message().rstrip(".")
    return InvalidInput(f"{message}{'' if message.endswith('?') else '.'} See --help.")


def _explain_number(error: Any, words: list[str]) -> None:
    """Show a value that is no number as it was typed; with a decimal comma, propose the point."""
    names = () if error.param is None else error.param.opts
    # what follows the option: after "=" in the same word, or the next word
    values = [word.partition("=")[2] or following for word, following in pairwise([*words, ""])
              if word.partition("=")[0] in names]  # fmt: skip
    if values and "valid number" in error.message:
        decimal = re.fullmatch(r"[-+]?\d*,\d+", values[-1])
        advice = f": write {values[-1].replace(',', '.')}" if decimal else ""
        error.message = f"{visible(values[-1])!r} is no number{advice}."


def _explain_option(error: Any, words: list[str]) -> None:
    """Propose only similar options for one that is unknown; a negative number is none."""
    unknown = str(vars(error).get("option_name", ""))
    negative = [word for word in words if re.fullmatch(r"-\d+\.?\d*(e[-+]?\d+)?", word)]
    if negative and unknown == negative[0][:2]:
        raise InvalidInput(
            f"{negative[0]!r} is below 0, and nothing here is: a price is zero or above, such as 1.0. See "
            "--help."
        ) from None
    if candidates := vars(error).get("possibilities"):
        error.possibilities = get_close_matches(unknown, candidates, cutoff=0.75)


class Shell(typer.Typer):
    """A group of commands whose parameters may be lists of options."""

    def __init__(self, **options: Any) -> None:
        settings = {"cls": CommandGroup, "add_completion": False, "pretty_exceptions_enable": False}
        super().__init__(**{**settings, "rich_markup_mode": "rich", **options})

    def command(self, name: str | None = None, **options: Any) -> Callable[..., Any]:
        """Decorate a function as a command."""
        register = super().command(name, **{"cls": Command, **options})

        def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
            register(spread(function))
            return function

        return decorated


class Only(NamedTuple):
    """Stands on the type of a parameter: the names of those options of the list that the command has, and of
    those that must be given although the list has a default."""

    names: str
    required: str = ""


class Named(str):
    """The help of an option of the shell whose names are not made from the field's."""

    __slots__ = ("names",)
    names: tuple[str, ...]

    def __new__(cls, help: str, *names: str) -> Named:
        self = super().__new__(cls, help)
        self.names = names
        return self


def spread(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a command whose parameters that are lists of options are taken apart."""
    # loaded here, with the module of the command: a list of commands needs no session
    from ...session.terms import options_of

    hints = get_type_hints(function, include_extras=True)
    lists: dict[str, tuple[Any, list[str]]] = {}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(function).parameters.items():
        kind, only = list_of(hints[name])
        if kind is None:
            parameters.append(parameter.replace(kind=parameter.KEYWORD_ONLY, annotation=hints[name]))
            continue
        options = options_of(kind)
        names = list(options) if only is None else only.names.split()
        lists[name] = kind, names
        required = () if only is None else only.required.split()
        parameters += [_parameter(options[name], name in required) for name in names]

    def called(**values: Any) -> Any:
        for name, (kind, options) in lists.items():
            values[name] = kind(**{option: values.pop(option) for option in options})
        return function(**values)

    called.__name__, called.__doc__ = function.__name__, function.__doc__
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return called


def list_of(hint: Any) -> tuple[Any, Only | None]:
    """Return the list of options that a parameter stands for, None if it is an option itself; and those of
    its options that the command has, None for all of them."""
    only = None
    if get_origin(hint) is Annotated:
        hint, *extras = get_args(hint)
        only = next((extra for extra in extras if isinstance(extra, Only)), None)
    return (hint, only) if dataclasses.is_dataclass(hint) else (None, None)


def _parameter(option: Option, required: bool) -> inspect.Parameter:
    """Return an option of a list as a parameter that typer reads."""
    required = required or option.default is dataclasses.MISSING
    names = (flag(option.name), *(["-e"] if option.name == "epsilon" else []))
    info: Any = typer.Option(
        ... if required else option.default,
        *(option.help.names if isinstance(option.help, Named) else names),
        help=re.sub(r"`(\w+)`", lambda match: flag(match[1]), option.help),
        show_default=not required,
    )
    by_name = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(option.name, by_name, default=info, annotation=shell_type(option.kind))


def shell_type(kind: Any) -> Any:
    """Return the type of an option in the shell: of any number a float, of a path or a text a path.

    >>> shell_type(int | float | None)
    float | None
    """
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return shell_type(parts[0])
    if type(None) in parts:
        return shell_type(_union(part for part in parts if part is not type(None))) | None
    if float in parts:
        return float
    return Path if Path in parts else kind


def _union(kinds: Any) -> Any:
    first, *rest = kinds
    for kind in rest:
        first = first | kind
    return first
