"""Closed registry: frozen dataclasses that have a complete JSON description, and the way back.

A description is `{"type": tag, field: value, ...}`. The tag is an explicit string,
`@described("package.Name")`, chosen when a class is first written and kept for ever: classes and modules may
be renamed, ledgers read the same. Only classes of this package have one. A tag whose package is not loaded
yet loads that package, out of the fixed list `PACKAGES`: nothing else is ever imported because data says so.
Fractions are written `{"fraction": "1/3"}`, infinities `{"float": "inf"}`, so that
`from_json(json.loads(json.dumps(to_json(x)))) == x` exactly.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import math
from collections.abc import Callable
from enum import StrEnum
from fractions import Fraction
from numbers import Integral, Real
from typing import Any, TypeVar

from . import _require
from ._errors import DescriptionError, DiscreetError, MissingExtra, UnknownOption

T = TypeVar("T")
_CLASSES: dict[str, type] = {}
_TAGS: dict[type, str] = {}

# Former tags and what they are now. A class that is renamed keeps its tag; this is for the rare tag that had
# to change itself (two classes made one): the old one is read as the new one, and never written again. Stored
# answers are found by a hash of the description, so that after such a change a question asked before pays
# again.
ALIASES: dict[str, str] = {}


# The modules in which the classes of a tag's first part are: what a process that has not loaded them yet
# loads to read a description (a server's worker, `discreet ledger` elsewhere). A closed list: no part of a
# tag ever becomes the name of a module. Those that need torch come last.
PACKAGES: dict[str, tuple[str, ...]] = {
    "accounting": ("accounting",),
    "adaptive": ("adaptive", "adaptive.reference"),
    "curator": ("curator",),
    "learning": (
        "mechanisms.matrix",
        "learning.tabular",
        "learning.schedules",
        "learning.pate",
        "learning.scaler",
        "learning.augment",
        "learning.clipping",
        "learning.discrete",
        "learning.optimizers",
        "learning.federated",
        "learning.features.private_whitening",
    ),
    "local": ("local",),
    "matrix": ("mechanisms.matrix",),
    "mechanisms": ("mechanisms", "mechanisms.stable_votes"),
    "public": ("_public",),
    "query": ("query", "query.workload"),
    "streaming": ("streaming",),
    "synthetic": ("synthetic",),
}


# Public limits on what a description may hold: who sends one could otherwise stop the process after it was
# charged. Prices nest a few levels, floats have 324 digits at most as fractions.
DEEPEST, MAX_DIGITS = 64, 1000
_BITS = int(MAX_DIGITS * 3.33)


def described(tag: str) -> Callable[[type[T]], type[T]]:
    """Enter a frozen dataclass of this package into the registry under its tag."""
    if not isinstance(tag, str):
        raise DescriptionError(
            f'give its tag to {tag}: @described("package.Name"). It goes into ledgers, and stays.'
        )

    def enter(cls: type[T]) -> type[T]:
        _enter(cls, tag)
        _take_plain_numbers(cls)
        return cls

    return enter


def named(tag: str) -> Callable[[type[T]], type[T]]:
    """Enter a named tuple of this package: as a released value it is stored with its tag.

    It is no description of its own.
    """

    def enter(cls: type[T]) -> type[T]:
        _enter(cls, tag)
        return cls

    return enter


def _enter(cls: type, tag: str) -> None:
    if cls.__module__.split(".")[0] != "discreet":
        raise DescriptionError(
            f"{cls.__module__}.{cls.__qualname__} is outside discreet: the registry is closed."
        )
    if tag in ALIASES:
        raise DescriptionError(
            f"the tag {tag} was another class's, and old ledgers hold it: choose a new one."
        )
    # a dataclass with slots is a second class of the same name; a module may be loaded anew
    if tag in _CLASSES and _CLASSES[tag].__qualname__ != cls.__qualname__:
        raise DescriptionError(f"two classes have the tag {tag}.")
    _CLASSES[tag], _TAGS[cls] = cls, tag


def plain(value: Any) -> Any:
    """Return numbers of other packages as Python's own: numpy's wrap around (200 * 2 is 144 in uint8), and a
    price must not."""
    if type(value) in (int, float, bool, str, Fraction) or value is None:
        return value
    if type(value) is tuple:
        return tuple(item if type(item) is tuple else plain(item) for item in value)
    if type(value).__module__ != "numpy" or getattr(value, "ndim", 1) != 0:
        return value
    if isinstance(value, Integral):
        return int(value)
    return float(value) if isinstance(value, Real) else value.item()


def _take_plain_numbers(cls: type) -> None:
    original_init: Any = cls.__init__  # type: ignore[misc]
    names, flags = _declared_flags(cls)

    @functools.wraps(original_init)
    def init(self: Any, *args: Any, **named: Any) -> None:
        args, named = tuple(map(plain, args)), {name: plain(value) for name, value in named.items()}
        for name, value in (*zip(names, args, strict=False), *named.items()) if flags else ():
            # monotone="False" would count as true, and halve the noise
            if name in flags and not (value is None and flags[name]):
                _require.flag(**{name: value})
        try:
            original_init(self, *args, **named)
        except TypeError:
            wrong = _require.option_error(cls.__name__, inspect.signature(original_init), args, named)
            if wrong is None:
                raise
            raise wrong from None

    cls.__init__ = init  # type: ignore[misc]


def _declared_flags(cls: type) -> tuple[list[str], dict[str, bool]]:
    """Return the names of a dataclass's fields in their order, and which of them are flags, with whether they
    may be None."""
    fields = [f for f in dataclasses.fields(cls) if f.init] if dataclasses.is_dataclass(cls) else []
    flags = {f.name: str(f.type) != "bool" for f in fields if str(f.type) in ("bool", "bool | None")}
    return [f.name for f in fields if not f.kw_only], flags


def tag_of(cls: type) -> str:
    """Return the tag of a registered class; DescriptionError if it is none."""
    if cls not in _TAGS:
        raise DescriptionError(f"{cls.__name__} has no JSON description.")
    return _TAGS[cls]


def class_of(tag: Any) -> type | None:
    """Return the class that a tag stands for, now or in an old ledger; None if it is not known.

    The package of the tag is loaded if it is not yet; where that needs an extra, `MissingExtra` names it.
    """
    if not isinstance(tag, str):
        return None
    name = ALIASES.get(tag, tag)
    for module in () if name in _CLASSES else PACKAGES.get(name.partition(".")[0], ()):
        try:
            importlib.import_module(f"{__package__}.{module}")
        except ModuleNotFoundError:
            raise MissingExtra.of("learn", f"{tag} needs PyTorch, or is not known") from None
        if name in _CLASSES:
            break
    return _CLASSES.get(name)


def registered() -> dict[str, type]:
    """Return all registered classes by tag, former tags included; a copy."""
    former = {old: _CLASSES[new] for old, new in ALIASES.items() if new in _CLASSES}
    return _CLASSES | former


def to_json(value: Any) -> Any:
    """Return a JSON-able description of a registered object, or of a plain value inside one."""
    if value is None or isinstance(value, bool | str):
        return str(value) if isinstance(value, StrEnum) else value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Fraction):
        return {"fraction": f"{value.numerator}/{value.denominator}"}
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"float": repr(float(value))}
    if isinstance(value, tuple | list):
        return [to_json(item) for item in value]
    if type(value) in _TAGS and dataclasses.is_dataclass(value):
        fields = {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value) if f.init}
        return {"type": _TAGS[type(value)], **fields}
    raise DescriptionError(
        f"{type(value).__name__} has no JSON description. Python callables and objects of other "
        f"packages can be run by "
        f"the steward as trusted code, but not described, stored or sent."
    )


def from_json(data: Any) -> Any:
    """Return the object that a description names. Everything is checked by the class's own constructor."""
    if _depth(data) > DEEPEST:
        raise DescriptionError(
            f"a description is nested at most {DEEPEST} deep. Nothing was computed or charged."
        )
    return _from_json(data)


def _from_json(data: Any) -> Any:
    if isinstance(data, list):
        return tuple(_from_json(item) for item in data)
    if isinstance(data, int) and data.bit_length() > _BITS:
        raise DescriptionError(f"a number has at most {MAX_DIGITS} digits. Nothing was computed or charged.")
    if not isinstance(data, dict):
        return data
    if data.keys() == {"fraction"}:
        return _fraction(data["fraction"])
    if data.keys() == {"float"} and data["float"] in ("inf", "-inf"):
        return float(data["float"])
    return _object(data)


def _depth(data: Any) -> int:
    """Return how deep lists and maps are nested; counted no further than is allowed, and without
    recursion."""
    depth, level = 0, [data]
    while level and depth <= DEEPEST:
        inner = [
            item.values() if isinstance(item, dict) else item
            for item in level
            if isinstance(item, dict | list)
        ]
        level = [item for items in inner for item in items]
        depth += bool(inner)
    return depth


def _fraction(text: Any) -> Fraction:
    if isinstance(text, str) and max(map(len, text.split("/"))) > MAX_DIGITS:
        raise DescriptionError(f"a number has at most {MAX_DIGITS} digits. Nothing was computed or charged.")
    try:
        numerator, denominator = text.split("/")
        return Fraction(int(numerator), int(denominator))
    except (AttributeError, ValueError, ZeroDivisionError):
        raise DescriptionError(f"a fraction is written as 'numerator/denominator', got {text!r}.") from None


def _object(data: dict[str, Any]) -> Any:
    name = data.get("type")
    cls = class_of(name)
    if cls is None:
        raise DescriptionError(f"{name!r} is not a known type. Known are: {', '.join(sorted(_CLASSES))}.")
    allowed = {f.name for f in dataclasses.fields(cls) if f.init}
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
        # a constructor reads no data, so its words are about the description
        raise DescriptionError(
            f"{name} cannot be made from the fields {sorted(field_names)}: {error}."
        ) from None
