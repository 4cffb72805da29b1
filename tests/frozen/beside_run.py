"""One side of `tests.frozen.beside`: runs questions and mechanisms on one source, and writes a line of JSON for
each.

It is started as a script, with one source folder and the tests beside it in PYTHONPATH: internals (the exact
numbers of a query) are those that the tests of that source use, so that both sides may have moved them.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import random
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

# `tests` is that of the source under test; only the stage is of this folder
from stage import normalized, quiet

from discreet.query import Query
from discreet.sampling import SeededEntropy


def plain(value: Any) -> Any:
    """A value as JSON; what has no such form by its class and its fields."""
    try:
        return normalized(value)
    except TypeError:
        pass
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"type": type(value).__name__, **fields}
    if isinstance(value, dict):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    return type(value).__name__


def attempt(*steps: Any) -> list[Any]:
    """The results of steps, each of which gets that of the one before; the class of an error ends them."""
    results: list[Any] = []
    last = None
    for step in steps:
        try:
            last, shown = step(last)
        except Exception as error:
            return [*results, {"error": type(error).__name__}]
        results.append(shown)
    return results


def questions(asked: list[dict[str, Any]]) -> Any:
    own = importlib.import_module("tests.contracts.test_engines_queries")
    engine = own.on_duckdb()

    def planned(sql: str, terms: dict[str, Any]) -> Any:
        query = Query(sql=sql, public=own.PUBLIC, **terms)
        return query, {"event": query.event.to_json()}

    for one in asked:
        yield attempt(
            lambda _, one=one: planned(one["sql"], one["terms"]),
            lambda query: (None, {"exact": plain(own.exactly(query, engine))}),
        )


def varied(value: Any, source: random.Random) -> Any:
    """The same mechanism with some of its numbers halved or doubled; public facts stay."""
    changed: dict[str, Any] = {}
    for field in sorted(dataclasses.fields(value), key=lambda field: field.name):
        part = getattr(value, field.name)
        if not field.init or field.name == "public" or isinstance(part, bool):
            continue
        if dataclasses.is_dataclass(part) and not isinstance(part, type):
            changed[field.name] = varied(part, source)
        elif isinstance(part, int | float | Fraction) and source.random() < 0.4:
            factor = source.choice([Fraction(1, 2), 2])
            changed[field.name] = int(part * factor) if isinstance(part, int) else type(part)(part * factor)
    return dataclasses.replace(value, **changed)


def mechanisms(chosen: list[list[Any]]) -> Any:
    audit = importlib.import_module("tests.contracts.audit")
    folder = Path(audit.__file__ or "").parent
    found = (importlib.import_module(f"tests.contracts.{path.stem}") for path in folder.glob("cases_*.py"))
    cases = {case.name: case for module in found for case in module.CASES}
    for name, seed in chosen:
        case, source = cases.get(name), random.Random(seed)
        if case is None:
            yield [{"error": "there is no such case"}]
            continue
        table = case.source if source.random() < 0.5 else case.neighbor

        def made(_: Any, case: Any = case, source: random.Random = source) -> Any:
            mechanism = case.mechanism if source.random() < 0.3 else varied(case.mechanism, source)
            return mechanism, {"event": mechanism.event.to_json()}

        def run(mechanism: Any, case: Any = case, table: Any = table, seed: int = seed) -> Any:
            answers = audit.answers(
                dataclasses.replace(case, mechanism=mechanism), table, SeededEntropy(seed)
            )
            released = answers if isinstance(answers, list) else [answers]
            return None, {"values": [plain(release.value) for release in released]}

        yield attempt(made, run)


def main() -> None:
    orders, out = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    # without noise, as in layer A
    with out.open("w") as file, quiet(noise=False):
        for work in (questions(orders["questions"]), mechanisms(orders["mechanisms"])):
            file.writelines(json.dumps(result, sort_keys=True) + "\n" for result in work)


if __name__ == "__main__":
    main()
