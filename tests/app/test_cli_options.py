"""The options of the shell, of the session and of a request are one list: help that contradicts the code cannot
be, and a type checker, an editor and `help` see what a verb takes."""

from __future__ import annotations

import dataclasses
import inspect
import re
from functools import cache
from typing import Any, get_type_hints

import pytest

from discreet.app.cli import COMMANDS, load
from discreet.app.cli.options import Opening
from discreet.app.cli.parser import flag, list_of, shell_type
from discreet.curator import STEWARD
from discreet.session import Session
from discreet.session import terms as options

# Every verb with a list, and the list.
LISTS = {
    "sql": options.QuestionTerms,
    "preview": options.Terms,
    "workload": options.WorkloadQuestionTerms,
    "cut_off": options.CutOffTerms,
    "suggest": options.SuggestTerms,
    "suggest_limits": options.SuggestTerms,
    "preview_suggest": options.SuggestTerms,
    "watch": options.WatchTerms,
    "stream": options.StreamTerms,
    "online": options.OnlineTerms,
    "synthesize": options.CopyTerms,
    "teach": options.TeachTerms,
}


@cache
def commands() -> dict[str, Any]:
    """Every command of the shell by its words, those of groups among them."""
    found: dict[str, Any] = {}
    for name in COMMANDS:
        command = load(name)
        inner = getattr(command, "commands", None)
        found |= {f"{name} {sub}": inner[sub] for sub in inner} if inner else {name: command}
    return found


@cache
def functions() -> dict[str, Any]:
    """The function of each command, as it is written."""
    from importlib import import_module

    found = {}
    for name, lazy in COMMANDS.items():
        module = import_module(f"discreet.app.cli.{lazy.module}")
        thing = getattr(module, lazy.attribute)
        if inspect.isfunction(thing):
            found[name] = thing
        else:
            for registered in thing.registered_commands:
                function = getattr(module, registered.callback.__name__)
                found[f"{name} {registered.name or function.__name__}"] = function
    return found


@pytest.mark.parametrize("verb", LISTS)
def test_a_verb_shows_each_option_with_its_type_its_default_and_its_help(verb: str) -> None:
    listed = options.options_of(LISTS[verb])
    seen = inspect.signature(getattr(Session, verb)).parameters
    assert not {"terms", "named", "values"} & seen.keys()
    assert listed.keys() <= seen.keys()
    for name, option in listed.items():
        missing = option.default is dataclasses.MISSING
        assert seen[name].default == (inspect.Parameter.empty if missing else option.default)
        assert seen[name].annotation == options.plain(option.kind)
        assert f"{name}: {option.help}" in (getattr(Session, verb).__doc__ or "")


def test_the_signature_of_sql_is_as_it_was() -> None:
    names = "epsilon rho within confidence delta noise rows groups weights other min_people fresh"
    seen = inspect.signature(Session.sql)
    assert list(seen.parameters) == ["self", "text", *names.split()]
    assert str(seen.parameters["rows"]) == "rows: int | None = None"
    assert str(seen.parameters["confidence"]) == "confidence: float = 0.95"
    assert {seen.parameters[name].kind for name in names.split()} == {inspect.Parameter.KEYWORD_ONLY}


def test_no_verb_forwards_its_options_by_locals() -> None:
    from pathlib import Path

    import discreet

    root = Path(discreet.__file__).parent
    for folder in ("session", "app"):
        for path in (root / folder).rglob("*.py"):
            assert "locals()" not in path.read_text(), path


@pytest.mark.parametrize("words", functions())
def test_an_option_of_the_shell_is_that_of_its_list(words: str) -> None:
    """Name, type, default and help of each option are those of the field of the list."""
    function, command = functions()[words], commands()[words]
    shown = {option.name: option for option in command.params}
    listed = 0
    for hint in get_type_hints(function, include_extras=True).values():
        kind, only = list_of(hint)
        if kind is None:
            continue
        for name in options.options_of(kind) if only is None else only.names.split():
            option, field = shown[name], options.options_of(kind)[name]
            if (only is not None and name in only.required.split()) or field.default is dataclasses.MISSING:
                assert option.required
            else:
                assert option.default == field.default
            assert option.help == re.sub(r"`(\w+)`", lambda m: flag(m[1]), field.help)
            assert set(getattr(field.help, "names", [flag(name)])) <= set(option.opts)
            assert (shell_type(field.kind) is bool) == bool(option.is_flag)
            listed += 1
    # `query` has all of its options but the eight of its own from lists
    assert listed >= {"query": 14, "stream start": 15, "train": 19, "synth": 14}.get(words, 0)


@pytest.mark.parametrize("words", commands())
def test_every_option_has_a_help_and_only_names_options_that_are_there(words: str) -> None:
    command = commands()[words]
    names = {name for option in command.params for name in option.opts}
    for option in command.params:
        assert option.help, (words, option.name)
        assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", option.help)) <= names, (words, option.name)


def test_who_asks_by_default_is_the_steward() -> None:
    assert Opening().analyst == STEWARD
