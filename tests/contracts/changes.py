"""Random changes of the options of a mechanism: of its fields, and of the fields of what it is made of.

A value is changed according to its type; what no rule knows is exchanged for a value that a field of the same name
has in another case of the contract (`cases_*.py`). A field for which there is neither, and that is not in `KEPT`,
fails the test: a new option is tried, or is listed here with a reason.
"""

from __future__ import annotations

import dataclasses
import random
from collections import defaultdict
from collections.abc import Iterator
from enum import Enum
from fractions import Fraction
from typing import Any

from discreet._public import Public

from .case import Case

# Fields that stay what they are, each with the reason.
KEPT = {
    "selection": "fits the form's groups, and is made by `Query`, which is a case of its own",
    "public": "the steward's declarations; the tables are made to have them",
    "workers": "how many processes train teachers",
    "progress": "a callback",
    "asked": "a note, with which nothing is computed",
    "learner": "the steward's code, or a mechanism that is a case of its own",
    "function": "the steward's code, or a statistic that is a case of its own",
    "fitted": "a released copy",
    "decision": "a released decision",
    "scaling": "released by a scaler, which is a case of its own",
}
Path = tuple[str | int, ...]


def fields_of(thing: Any, path: Path = ()) -> Iterator[tuple[Path, dataclasses.Field[Any], Any]]:
    """Every field of a mechanism and of the dataclasses in it, with the way there."""
    if isinstance(thing, Public):
        return
    if dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        for field in dataclasses.fields(thing):
            value = getattr(thing, field.name)
            kept = field.name in KEPT and not isinstance(value, str)
            if field.init and not field.name.startswith("_") and not kept:
                yield (*path, field.name), field, value
                yield from fields_of(value, (*path, field.name))
    elif isinstance(thing, tuple):
        for index, part in enumerate(thing):
            yield from fields_of(part, (*path, index))


def replaced(thing: Any, path: Path, value: Any) -> Any:
    """The mechanism with another value at the end of a way."""
    if not path:
        return value
    step, rest = path[0], path[1:]
    if isinstance(step, int):
        return (*thing[:step], replaced(thing[step], rest, value), *thing[step + 1 :])
    return dataclasses.replace(thing, **{step: replaced(getattr(thing, step), rest, value)})


def seen_values(cases: list[Case]) -> dict[str, list[Any]]:
    """The values that fields of each name have in all cases."""
    seen: dict[str, list[Any]] = defaultdict(list)
    for case in cases:
        for _, field, value in fields_of(case.mechanism):
            if not any(value is other for other in seen[field.name]):
                seen[field.name].append(value)
    return seen


def candidates(
    field: dataclasses.Field[Any], value: Any, public: Public, seen: dict[str, list[Any]]
) -> list[Any]:
    """Other values for a field; values that a class refuses do no harm, since they are refused on all tables."""
    kinds = str(field.type)
    others = [other for other in seen[field.name] if type(other) is type(value) and other is not value]
    if "None" in kinds and value is not None:
        others.append(None)
    if isinstance(value, bool):
        others.append(not value)
    elif isinstance(value, int):
        others += [1, 2, 3, value + 1, 2 * value, value // 2, 0, 40]
    elif isinstance(value, float | Fraction):
        others += [value / 2, value * 2, value / 1000, value * 1000, value / 10**9, value * 10**9]
    elif isinstance(value, Enum):
        others += list(type(value))
    elif isinstance(value, str):
        others += [name for name, _ in public.schema]
    elif isinstance(value, tuple):
        others += [value[1:], value[::-1], value * 2]
    elif value is None:
        others += [other for other in seen[field.name] if other is not None]
        others += [1, 2, 5] if "int" in kinds else []
        others += [0.5, 0.001, 1] if "float" in kinds or "Real" in kinds else []
        others += [True, False] if "bool" in kinds else []
        others += [name for name, _ in public.schema] if "str" in kinds else []
    elif dataclasses.is_dataclass(value):
        # its own fields are changed
        others += [other for other in seen[field.name] if dataclasses.is_dataclass(other)]
    if field.name == "gamma":
        # About 1 / gamma coins are thrown for the number of trials: with a billionth no run would end.
        others = [other for other in others if other > 1e-6]
    return others


def changed(case: Case, source: random.Random, seen: dict[str, list[Any]]) -> Any:
    """The mechanism of a case with one or two options changed; at worst as it is."""
    mechanism = case.mechanism
    for _ in range(6):
        path, field, value = source.choice([*fields_of(mechanism)])
        others = candidates(field, value, case.mechanism.public, seen)
        if not others:
            continue
        try:
            other = replaced(mechanism, path, source.choice(others))
            # priced: a mechanism without a price is refused before any table is there
            _ = other.event
        except Exception:
            continue
        mechanism = other
        if source.random() < 0.5:
            break
    return mechanism
