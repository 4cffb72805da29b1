"""Keeps a closed registry of frozen dataclasses, and converts them to complete JSON descriptions and back.

A description is `{"type": tag, field: value, ...}`. The tag is an explicit string,
`@described("package.Name")`, chosen when a class is first written and never changed: classes and modules may
be renamed, and old ledgers stay readable. Only classes of this package have a tag, and mechanisms of third
parties that the steward has allowed (`mechanisms.allow`). If the package of a tag is not imported yet, it is
imported, from the fixed list `PACKAGES`; nothing else is ever imported because of data.
Fractions are written `{"fraction": "1/3"}`, infinities `{"float": "inf"}`, so that
`from_json(json.loads(json.dumps(to_json(x)))) == x` exactly.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import importlib
import importlib.util
import inspect
import math
import operator
import sys
from collections.abc import Callable
from enum import StrEnum
from fractions import Fraction
from numbers import Integral
from types import ModuleType
from typing import Any, TypeVar, dataclass_transform

from . import _require
from ._errors import DescriptionError, DiscreetError, MissingExtra, UnknownOption

T = TypeVar("T")
_CLASSES: dict[str, type] = {}
_TAGS: dict[type, str] = {}
# For the tag of a third party's class, the package and version that it comes from.
_OTHERS: dict[str, str] = {}

# For the first part of a tag, the modules that hold its classes. A process that has not imported them yet (a
# server's worker, `discreet ledger`) imports them to read a description. A closed list: no part of a tag ever
# becomes the name of a module. Modules that need torch come last, so that others are found without it.
PACKAGES: dict[str, tuple[str, ...]] = {
    "accounting": ("accounting", "accounting.lanes"),
    "adaptive": ("adaptive", "adaptive.reference"),
    "core": ("core.question",),
    "curator": ("curator", "curator.policy"),
    "learning": (
        "mechanisms.matrix",
        "tabular",
        "tabular.boosting",
        "tabular.clusters",
        "tabular.learner",
        "tabular.naive_bayes",
        "tabular.trees",
        "tabular.trials",
        "learning.training.schedules",
        "learning.pate",
        "learning.training.data",
        "learning.clipping.norms",
        "learning.training.gradient_noise",
        "learning.training.optimizers",
        "learning.training.federated",
        "learning.features.whitening",
    ),
    "local": ("local",),
    "matrix": ("mechanisms.matrix",),
    "mechanisms": ("mechanisms", "mechanisms.votes"),
    "public": ("_public",),
    "query": ("query", "query.workload"),
    "streaming": ("streaming",),
    "synthetic": ("synthetic",),
}


# Limits on the nesting and on the digits of a number in a description: without them, a sender could make the
# process fail after a charge. Both are far above what occurs: events nest a few levels deep.
DEEPEST, MAX_DIGITS = 64, 1000
# the bits of a number of MAX_DIGITS decimal digits: 3.33 is a little more than log2(10)
_BITS = int(MAX_DIGITS * 3.33)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(dataclasses.field,))
def described(tag: str) -> Callable[[type[T]], type[T]]:
    """Make a class of this package a dataclass, frozen, with slots and keywords alone, and enter it into the
    registry under its tag. One that is a dataclass already, of another kind, is entered as it is."""
    if not isinstance(tag, str):
        raise DescriptionError(
            f'@described needs a tag, got {tag}: write @described("package.Name"). Tags are stored in '
            f"ledgers and must never change."
        )

    def enter(cls: type[T]) -> type[T]:
        if "__dataclass_fields__" not in vars(cls):
            cls = dataclasses.dataclass(frozen=True, slots=True, kw_only=True)(cls)
        _enter(cls, tag)
        _require.checked(cls)
        _compare_kinds(cls)
        return cls

    return enter


def named(tag: str) -> Callable[[type[T]], type[T]]:
    """Enter a named tuple of this package into the registry: as a released value it is stored with its tag.

    Unlike a dataclass under `described`, it has no JSON description.
    """

    def enter(cls: type[T]) -> type[T]:
        _enter(cls, tag)
        return cls

    return enter


def enter_other(cls: type, tag: str, package: str) -> None:
    """Enter a frozen dataclass of a third party's `package` under its tag; refuse tags that are ours or
    taken. Once: `mechanisms.allow` has looked whether it is there."""
    if tag.partition(".")[0] in (*PACKAGES, "discreet"):
        raise DescriptionError(f"{tag} is a tag of discreet's own, and {package} may not take it.")
    if tag in _CLASSES or cls in _TAGS:
        raise DescriptionError(f"{cls.__qualname__} of {package} cannot be {tag}: one of them is taken.")
    _require.checked(cls)
    _compare_kinds(cls)
    _CLASSES[tag], _TAGS[cls], _OTHERS[tag] = cls, tag, package


def is_other(tag: str) -> bool:
    """Return whether a tag is that of a third party's class, which the steward has allowed."""
    return tag in _OTHERS


def tags_in(data: Any) -> list[str]:
    """Return the tags of all descriptions inside one, without looking up any class; deep nesting and a tag
    that is no text are refused."""
    if _depth(data) > DEEPEST:
        raise DescriptionError(f"a description is nested at most {DEEPEST} deep.")
    found, pending = [], [data]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            if "type" in item:
                found.append(str(item["type"]))
            pending += item.values()
        elif isinstance(item, list):
            pending += item
    return found


def others_in(data: Any) -> str | None:
    """Return the packages of third parties whose classes a description names; None if it names none."""
    if not _OTHERS:
        return None
    found, pending = set(), [data]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            found |= {_OTHERS[tag] for tag in (item.get("type"),) if isinstance(tag, str) and tag in _OTHERS}
        pending += item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()
    return ", ".join(sorted(found)) or None


def _enter(cls: type, tag: str) -> None:
    """Enter a class into the registry; refuse classes of other packages and tags that are taken."""
    if cls.__module__.split(".")[0] != "discreet":
        raise DescriptionError(
            f"{cls.__module__}.{cls.__qualname__} is outside discreet: the registry is closed."
        )
    # A second class of the same name is allowed: reloading a module makes one.
    if tag in _CLASSES and _CLASSES[tag].__qualname__ != cls.__qualname__:
        raise DescriptionError(f"two classes have the tag {tag}.")
    _CLASSES[tag], _TAGS[cls] = cls, tag


def _compare_kinds(cls: type) -> None:
    """Replace the equality of a class by one that tells kinds of numbers apart, as descriptions do: 1, 1.0,
    Fraction(1) and True differ, and 0.0 and -0.0.

    `Bounds(0, 9)` declares whole numbers and `Bounds(0.0, 9.0)` does not: with Python's equality, a cache
    would give one the noise that was computed for the other. Hashes stay: what is equal here is equal there.
    """
    loose_eq: Any = cls.__eq__
    names = [f.name for f in dataclasses.fields(cls) if f.compare]
    if loose_eq is object.__eq__ or not names:
        return
    values = operator.attrgetter(*names)

    def eq(self: Any, other: object) -> Any:
        if self is other:
            return True
        result = loose_eq(self, other)
        # NotImplemented, for an object of another class, is no result
        if result is not True:
            return result
        return _same_kind(values(self), values(other))

    cls.__eq__ = eq  # type: ignore[assignment]


def _same_kind(first: Any, second: Any) -> bool:
    """Return whether two equal values are of the same kind, and zeros of the same sign; an integer of numpy's
    (inside nested tuples, which `plain` leaves as they are) is one of Python's."""
    if isinstance(first, (tuple, list)):
        return all(map(_same_kind, first, second))
    if isinstance(first, float) and isinstance(second, float):
        return math.copysign(1, first) == math.copysign(1, second)
    if type(first) is type(second):
        return True
    return all(isinstance(value, Integral) and not isinstance(value, bool) for value in (first, second))


def tag_of(cls: type) -> str:
    """Return the tag of a registered class; DescriptionError if the class is not registered."""
    if cls not in _TAGS:
        raise DescriptionError(f"{cls.__name__} has no JSON description.")
    return _TAGS[cls]


def class_of(tag: Any) -> type | None:
    """Return the class of a tag; None if the tag is not known.

    The package of the tag is imported if needed; where that needs an extra, `MissingExtra` names it.
    """
    if not isinstance(tag, str):
        return None
    package, _, name = tag.partition(".")
    for module in () if tag in _CLASSES else PACKAGES.get(package, ()):
        try:
            _load(importlib.import_module(f"{__package__}.{module}"), name)
        except ModuleNotFoundError:
            raise MissingExtra.of("learn", f"{tag} needs PyTorch, or is not known") from None
        if tag in _CLASSES:
            break
    return _CLASSES.get(tag)


def _load(package: ModuleType, name: str) -> None:
    """Import the module of one name that a package offers, as a class has mostly the name in its tag; of all
    names if it offers no such one."""
    offered = getattr(package, "__all__", ())
    for each in (name,) if name in offered else offered:
        getattr(package, each)


def registered() -> dict[str, type]:
    """Return all registered classes by tag, of modules that nobody has imported yet, too; a copy."""
    for module in (module for modules in PACKAGES.values() for module in modules):
        with contextlib.suppress(MissingExtra, ModuleNotFoundError):
            _load(importlib.import_module(f"{__package__}.{module}"), "")
    return dict(_CLASSES)


def exports(package: str) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__all__`, `__getattr__` and `__dir__` of a package that imports its public names `if
    TYPE_CHECKING` only, where tools that check types read them: each is imported when it is first used. So a
    process loads no module that it does not need.

    A name that is a module's, too, such as `auditing.audit`, is imported at once: Python would set it to the
    module as soon as that is imported.
    """
    module = sys.modules[package]
    origins = {
        alias.asname: "." * node.level + (node.module or alias.name)
        for node in ast.walk(ast.parse(inspect.getsource(module)))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname is not None
    }

    def find(name: str) -> Any:
        origin = origins.get(name, f".{name}")
        if name.startswith("_") or importlib.util.find_spec(origin, package) is None:
            raise _require.no_attribute(f"module {package!r}", name, origins)
        thing = importlib.import_module(origin, package)
        if name in origins and origin != f".{name}":
            thing = getattr(thing, name)
        setattr(module, name, thing)
        return thing

    return list(origins), find, lambda: sorted(origins)


# The types whose values are their own descriptions.
_PLAIN = frozenset({type(None), bool, int, str})


# The metadata of a field that is left out of descriptions while it is None, so that what is described without
# it, as in the keys of stored answers, stays the same text.
OPTIONAL = {"optional": True}


@functools.cache
def _field_names(cls: Any) -> tuple[tuple[str, bool], ...]:
    """Return the names of the fields that the constructor of a dataclass takes, each with whether it is one
    that is left out while it is None."""
    return tuple((f.name, f.metadata.get("optional", False)) for f in dataclasses.fields(cls) if f.init)


def to_json(value: Any) -> Any:
    """Return a JSON-able description of a registered object, or of a plain value inside one."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind in _TAGS and dataclasses.is_dataclass(kind):
        pairs = ((name, getattr(value, name), optional) for name, optional in _field_names(kind))
        fields = {name: to_json(part) for name, part, optional in pairs if part is not None or not optional}
        return {"type": _TAGS[kind], **fields}
    if isinstance(value, tuple | list):
        return [to_json(item) for item in value]
    if isinstance(value, StrEnum):
        return str(value)
    if isinstance(value, str):
        return value
    if isinstance(value, Fraction):
        return {"fraction": f"{value.numerator}/{value.denominator}"}
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"float": repr(float(value))}
    if isinstance(value, Integral):
        return int(value)
    raise DescriptionError(
        f"{type(value).__name__} has no JSON description. Python callables and objects of other "
        f"packages can be run by "
        f"the steward as trusted code, but not described, stored or sent."
    )


def from_json(data: Any) -> Any:
    """Return the object that a description names. Everything is checked by the class's own constructor."""
    if _depth(data) > DEEPEST:
        raise DescriptionError(f"a description is nested at most {DEEPEST} deep.")
    return _from_json(data)


def check_readable(data: Any) -> None:
    """Refuse the description of an object, as `to_json` returned it, that `from_json` could not read back:
    one that is nested too deep, or has a number with too many digits. No object is made."""
    if _depth(data) > DEEPEST:
        raise DescriptionError(f"a description is nested at most {DEEPEST} deep.")
    pending = [data]
    while pending:
        item = pending.pop()
        if type(item) is str or item is None:
            continue
        if isinstance(item, list):
            pending += item
        elif isinstance(item, dict):
            pending += [_fraction(item["fraction"])] if item.keys() == {"fraction"} else item.values()
        else:
            _check_digits(item)


def _check_digits(data: Any) -> None:
    if isinstance(data, int) and data.bit_length() > _BITS:
        raise DescriptionError(f"a number has at most {MAX_DIGITS} digits.")


def _from_json(data: Any) -> Any:
    if isinstance(data, list):
        return tuple(_from_json(item) for item in data)
    _check_digits(data)
    if not isinstance(data, dict):
        return data
    if data.keys() == {"fraction"}:
        return _fraction(data["fraction"])
    if data.keys() == {"float"} and data["float"] in ("inf", "-inf"):
        return float(data["float"])
    return _object(data)


def _depth(data: Any) -> int:
    """Return how deep lists and mappings are nested, at most DEEPEST + 1; without recursion, which deep data
    could make fail."""
    depth, level = 0, [data]
    while level and depth <= DEEPEST:
        inner: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                inner.append(item.values())
            elif isinstance(item, list):
                inner.append(item)
        level = [item for items in inner for item in items if type(item) is not str]
        depth += bool(inner)
    return depth


def _fraction(text: Any) -> Fraction:
    if isinstance(text, str) and max(map(len, text.split("/"))) > MAX_DIGITS:
        raise DescriptionError(f"a number has at most {MAX_DIGITS} digits.")
    try:
        numerator, denominator = text.split("/")
        return Fraction(int(numerator), int(denominator))
    except (AttributeError, ValueError, ZeroDivisionError):
        raise DescriptionError(f"a fraction is written as 'numerator/denominator', got {text!r}.") from None


def _object(data: dict[str, Any]) -> Any:
    """Return the object that a description with a type names, built from exactly its fields."""
    name = data.get("type")
    cls = class_of(name)
    if cls is not None and not dataclasses.is_dataclass(cls):
        raise DescriptionError(f"{name} is a released value and has no JSON description.")
    if cls is None:
        raise DescriptionError(f"{name!r} is not a known type. Known are: {', '.join(sorted(_CLASSES))}.")
    allowed = {name for name, _ in _field_names(cls)}
    field_names = data.keys() - {"type"}
    if unknown := sorted(field_names - allowed):
        raise DescriptionError(f"{name} has no field {unknown[0]!r}. It has: {', '.join(sorted(allowed))}.")
    fields = {key: _from_json(data[key]) for key in field_names}
    try:
        return cls(**fields)
    except UnknownOption as error:
        raise DescriptionError(
            f"{name} cannot be made from the fields {sorted(field_names)}: {error}"
        ) from None
    except DiscreetError:
        raise
    except Exception as error:
        # a constructor reads no data, so its message can only be about the description
        raise DescriptionError(
            f"{name} cannot be made from the fields {sorted(field_names)}: {error}."
        ) from None
