"""The one walker over all packages: every class of the package that runs on a source for a price, whichever
protocol it follows."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator

import discreet


def public_classes() -> Iterator[type]:
    """Every public class of the package, once, from the module that it is written in; the app on top is left
    out."""
    for info in pkgutil.walk_packages(discreet.__path__, "discreet."):
        if info.name.startswith("discreet.app"):
            continue
        module = importlib.import_module(info.name)
        for name, cls in inspect.getmembers(module, inspect.isclass):
            if cls.__module__ == module.__name__ and not name.startswith("_"):
                yield cls


def classes() -> list[type]:
    """Every class that is a Mechanism, an Interactive or a Stepped, wherever its module is; protocols and
    abstract classes are none."""
    concrete = [
        c for c in public_classes() if not getattr(c, "_is_protocol", False) and not inspect.isabstract(c)
    ]
    return [cls for cls in concrete if runs_for_a_price(cls)]


def runs_for_a_price(cls: type) -> bool:
    """Whether a class has public facts, a price, and one of the ways to run."""
    names = set(dir(cls)) | set(getattr(cls, "__dataclass_fields__", {}))
    called = any("__call__" in vars(base) for base in cls.__mro__[:-1])
    return {"public", "event"} <= names and (
        {"start", "answer"} <= names or {"start", "restore"} <= names or called
    )
