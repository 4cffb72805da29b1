"""Closed registry: frozen dataclasses that have a complete JSON description, and the way back.

A description is `{"type": "room.Name", field: value, ...}`. Only classes decorated with `@described` inside this package can be
named; nothing is ever imported because data says so. Fractions are written `{"fraction": "1/3"}`, infinities `{"float": "inf"}`,
so that `from_json(json.loads(json.dumps(to_json(x)))) == x` exactly.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
from enum import StrEnum
from fractions import Fraction
from numbers import Integral, Real
from typing import Any, TypeVar

from . import _require
from ._errors import DescriptionError, DiscreetError, UnknownOption

T = TypeVar("T")
_CLASSES: dict[str, type] = {}


def described(cls: type[T]) -> type[T]:
    """Enter a frozen dataclass of this package into the registry, under `room.Name`."""
    _enter(cls)
    _take_plain_numbers(cls)
    return cls


def named(cls: type[T]) -> type[T]:
    """Enter a named tuple of this package: as a released value it is stored with its name. It is no description of its own."""
    _enter(cls)
    return cls


def _enter(cls: type) -> None:
    package = cls.__module__.split(".")[0]
    if package != "discreet":
        raise DescriptionError(f"{cls.__module__}.{cls.__qualname__} is outside discreet: the registry is closed.")
    name = tag(cls)
    if name in _CLASSES and _CLASSES[name].__qualname__ != cls.__qualname__:
        raise DescriptionError(f"two classes are called {name}.")
    _CLASSES[name] = cls


def plain(value: Any) -> Any:
    """Numbers of other packages as Python's own: numpy's wrap around (200 * 2 is 144 in uint8), and a price must not."""
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
    given: Any = cls.__init__  # type: ignore[misc]

    @functools.wraps(given)
    def init(self: Any, *args: Any, **named: Any) -> None:
        try:
            given(self, *map(plain, args), **{name: plain(value) for name, value in named.items()})
        except TypeError:
            wrong = _require.misuse(cls.__name__, inspect.signature(given), args, named)
            if wrong is None:
                raise
            raise wrong from None

    cls.__init__ = init  # type: ignore[misc]


def tag(cls: type) -> str:
    """The name a class has in descriptions: its room and its own name."""
    room = cls.__module__.partition(".")[2].split(".")[0].lstrip("_")
    return f"{room}.{cls.__name__}"


def name_of(cls: type) -> str:
    """The name of a registered class; DescriptionError if it is none."""
    if _CLASSES.get(tag(cls)) is not cls:
        raise DescriptionError(f"{cls.__name__} has no JSON description.")
    return tag(cls)


def known() -> dict[str, type]:
    """All registered classes by name; a copy."""
    return dict(_CLASSES)


def to_json(value: Any) -> Any:
    """A JSON-able description of a registered object, or of a plain value inside one."""
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
    if dataclasses.is_dataclass(value) and _CLASSES.get(tag(type(value))) is type(value):
        fields = {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value) if f.init}
        return {"type": tag(type(value)), **fields}
    raise DescriptionError(
        f"{type(value).__name__} has no JSON description. Python callables and objects of other packages can be run by "
        f"the steward as trusted code, but not described, stored or sent."
    )


def from_json(data: Any) -> Any:
    """The object that a description names. Everything is checked by the class's own constructor."""
    if isinstance(data, list):
        return tuple(from_json(item) for item in data)
    if not isinstance(data, dict):
        return data
    if data.keys() == {"fraction"}:
        return _fraction(data["fraction"])
    if data.keys() == {"float"} and data["float"] in ("inf", "-inf"):
        return float(data["float"])
    return _object(data)


def _fraction(text: Any) -> Fraction:
    try:
        numerator, denominator = text.split("/")
        return Fraction(int(numerator), int(denominator))
    except (AttributeError, ValueError, ZeroDivisionError):
        raise DescriptionError(f"a fraction is written as 'numerator/denominator', got {text!r}.") from None


def _object(data: dict[str, Any]) -> Any:
    name = data.get("type")
    cls = _CLASSES.get(name) if isinstance(name, str) else None
    if cls is None:
        raise DescriptionError(f"{name!r} is not a known type. Known are: {', '.join(sorted(_CLASSES))}.")
    allowed = {f.name for f in dataclasses.fields(cls) if f.init}
    given = data.keys() - {"type"}
    if unknown := sorted(given - allowed):
        raise DescriptionError(f"{name} has no field {unknown[0]!r}. It has: {', '.join(sorted(allowed))}.")
    fields = {key: from_json(data[key]) for key in given}
    try:
        return cls(**fields)
    except UnknownOption as error:
        raise DescriptionError(f"{name} cannot be made from the fields {sorted(given)}: {error}") from None
    except DiscreetError:
        raise
    except Exception as error:  # a constructor reads no data, so its words are about the description
        raise DescriptionError(f"{name} cannot be made from the fields {sorted(given)}: {error}.") from None
