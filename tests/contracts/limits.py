"""The limits that fields declare: every one of every class with a description, and values outside of it.

`python -m tests.contracts.limits` writes the record of them, `limits.txt`, anew.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from enum import StrEnum
from fractions import Fraction
from functools import partial
from inspect import get_annotations
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from discreet import _require
from discreet._errors import DiscreetError
from discreet._registry import PACKAGES, registered
from discreet._require import Limit

RECORD = Path(__file__).with_name("limits.txt")
# Values of which at least one is outside of any limit. Those of `outside` come first, which are near the limit.
BAD: tuple[Any, ...] = (
    *(0, -1, 1, 2, 0.5, 1.5, -0.5, math.nan, math.inf, 1e-200, 1e200, Fraction(1, 10**400), 10**400),
    *("nonsense", "", None, (), ("nonsense",), ((),), (0, 0), (1, 0), (2.0,), 1j, object()),
)


@dataclass(frozen=True)
class Declared:
    """A limit of a field: it is tried on a value at `depth` levels of lists, which passes the limits that stand
    `before` it."""

    tag: str
    cls: type
    field: str
    depth: int
    before: tuple[_require.Check, ...]
    limit: _require.Check
    words: str

    def __str__(self) -> str:
        return f"{self.tag} {self.field}{'[0]' * self.depth} {self.words}"

    def outside(self) -> Any:
        """Return a value that passes what stands before this limit, and is refused by it."""
        settings = getattr(getattr(self.limit, "check", None), "keywords", {})
        arguments = getattr(getattr(self.limit, "check", None), "args", ())
        numbers = [n for n in (*settings.values(), *arguments) if isinstance(n, int | float | Fraction)]
        near = [value for n in numbers for value in (n - 1, n + 1, n * 2)]
        for value in (*near, *BAD):
            try:
                passed = value
                for check in self.before:
                    passed = check(self.field, passed)
            except DiscreetError:
                continue
            try:
                self.limit(self.field, passed)
            except DiscreetError:
                return value
        raise AssertionError(f"no value of BAD is outside of {self}")

    def assert_refused(self) -> None:
        """The constructor refuses it by name and value, although all other fields are missing."""
        value = self.outside()
        given: Any = value
        for _ in range(self.depth):
            given = [given]
        name = self.field + "[0]" * self.depth
        try:
            self.cls(**{self.field: given})
        except DiscreetError as error:
            told = str(error)
            assert name in told, f"{self}: {name} is not named in: {told}"
            shown = (
                _require._shown(value),
                _require._shown(_require.plain(value)),
                type(value).__name__,
                "must not be empty",
                "[0]",
            )
            assert any(text in told for text in shown), f"{self}: {value!r} is not shown in: {told}"
            assert "needs" not in told, f"{self}: a missing field was refused first: {told}"
            return
        raise AssertionError(f"{self}: {given!r} was accepted")


def described_classes() -> dict[str, type]:
    """All registered dataclasses by tag, whichever package they are in."""
    for module in sorted({module for modules in PACKAGES.values() for module in modules}):
        importlib.import_module(f"discreet.{module}")
    return {tag: cls for tag, cls in sorted(registered().items()) if is_dataclass(cls)}


def declared(tag: str, cls: type) -> Iterator[Declared]:
    """Every limit that stands on a field of the class, or on one that it inherits."""
    annotations: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        annotations |= _evaluated(base)
    for field in fields(cls):
        if field.init:
            for depth, before, limit, words in _limits(annotations[field.name], 0):
                yield Declared(tag, cls, field.name, depth, before, limit, words)


def _evaluated(base: type) -> dict[str, Any]:
    names = _require._Names(vars(importlib.import_module(base.__module__)))
    own = get_annotations(base)
    return {name: eval(text, {}, names) if isinstance(text, str) else text for name, text in own.items()}


Found = Iterator[tuple[int, tuple[_require.Check, ...], _require.Check, str]]


def _limits(annotation: Any, depth: int) -> Found:
    """Every limit in an annotation: the depth in lists, the limits before it, itself, and a name for it."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        yield from _limits(parts[0], depth)
        # one that is tried on the whole list is tried without those of its entries
        before: tuple[_require.Check, ...] = ()
        for limit in (part for part in parts[1:] if isinstance(part, Limit)):
            yield depth, before, limit, _words(limit)
            before = (*before, limit)
    elif origin is Literal:
        yield depth, (), _require.among(parts), f"one of {', '.join(map(str, parts))}"
    elif origin is tuple and parts[1:] == (...,):
        yield from _limits(parts[0], depth + 1)
    elif origin in (Union, UnionType) and NoneType in parts:
        for part in parts:
            yield from _limits(part, depth)
    elif isinstance(annotation, type) and issubclass(annotation, StrEnum):
        member = partial(_require._member, annotation)
        yield depth, (), member, f"one of {', '.join(annotation)}"
    elif annotation is bool and not depth:
        yield depth, (), _require._a_flag, "flag"


def _words(limit: Limit) -> str:
    """Return a name for a limit: that of its check, and what the check was given."""
    check: Any = limit.check
    inner = getattr(check, "func", check)
    cells = [cell.cell_contents for cell in (inner.__closure__ or ())]
    given = [*getattr(check, "args", ()), *getattr(check, "keywords", {}).values(), *cells]
    said = [str(value) for value in given if isinstance(value, int | float | Fraction | str | tuple | list)]
    return " ".join([inner.__qualname__.split(".")[0].strip("_"), *said])


def every_limit() -> list[Declared]:
    """Every declared limit of every registered class."""
    return [limit for tag, cls in described_classes().items() for limit in declared(tag, cls)]


if __name__ == "__main__":
    RECORD.write_text("".join(f"{limit}\n" for limit in every_limit()))
