"""No operator raises, whatever a row holds: an error would tell that such a row is there.

Each operator gets all kinds of arguments in all positions; what its own rule accepts is computed by the engine on
numbers, texts, truth values and days at the ends of what there is. A second round nests what was accepted.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from typing import Any

import pyarrow as pa
import pytest
from sqlglot import exp

from discreet import Categories, Dates, Unsupported
from discreet.core.domain import Kind, boolean, declared, number
from discreet.core.domain import text as any_text
from discreet.core.errors import Refusal
from discreet.core.nodes import Call, Column, Expr, Literal, make, sql
from discreet.core.operators import OPERATORS
from discreet.tables import Engine, EngineError

from ..contracts.engines import ENGINES

_DOUBLES = (
    *(None, float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 5e-324, -5e-324, 2.2250738585072014e-308),
    *(
        1.7976931348623157e308,
        -1.7976931348623157e308,
        1e300,
        -1e155,
        0.5,
        -0.5,
        1.5,
        2.5,
        0.49999999999999994,
    ),
    *(
        2.0**53,
        -(2.0**53),
        2.0**62,
        2.0**63,
        -(2.0**63),
        2.0**64,
        2.0**127,
        -(2.0**127),
        1e38,
        1e39,
        127.5,
        255.5,
    ),
    *(
        32767.5,
        2147483647.5,
        -2147483648.5,
        3.4028235677973366e38,
        1e-45,
        745.2,
        -745.2,
        709.8,
        9.999e17,
        1e18,
    ),
)
_TEXTS = (
    *(
        None,
        "",
        " ",
        "a",
        "A",
        "ß",
        "İ",
        "\U0001f600",
        "e\u0301",
        "%",
        "_",
        "\\",
        "'",
        '"',
        "\n",
        "\t\r",
        "x" * 70_000,
    ),
    *(
        "nan",
        "-nan",
        "inf",
        "-Infinity",
        "1e400",
        "-1e400",
        "1e-400",
        "1_000",
        "+-1",
        "0x10",
        "1e99999999999",
        "9" * 500,
    ),
    *(
        " 12 ",
        "1.5",
        ".5",
        "5.",
        "-0",
        "1e5",
        "6e-4",
        "99999999999999999999999999999999999999.5",
        "170141183460469231731687303715884105728",
    ),
    *(
        "true",
        "no",
        "2020-02-30",
        "2020-01-31",
        "0000-01-01",
        "294247-01-01",
        "infinity",
        "epoch",
        "2020-01-31 99:00",
        "12/31/2020",
    ),
    *("\u00a0", "\u200b", "\ufeff", "a\u0000b".replace("\u0000", "\u0001"), "1\u066b5", "\u0661"),
)
_DAYS = (
    None,
    date(1, 1, 1),
    date(9999, 12, 31),
    date(1970, 1, 1),
    date(2000, 2, 29),
    date(1900, 3, 1),
    date(1582, 10, 10),
)
_NEAR = (None, date(2000, 2, 29), date(2020, 12, 31), date(2004, 1, 31))
_ANY = replace(number(float("-inf"), float("inf")), finite=False)
# by the name of a column its type, its values and what is declared of it
COLUMNS: dict[str, tuple[pa.DataType, tuple[Any, ...], Any]] = {
    "x": (pa.float64(), _DOUBLES, _ANY),
    "y": (pa.float64(), _DOUBLES[::-1], _ANY),
    "n": (pa.float64(), (None, -3.0, 0.0, -0.0, 2.5, 7.0), number(-3, 7)),
    "w": (
        pa.float64(),
        (0.0, 1.0, 12.0, -12.0),
        replace(number(-12, 12, integral=True, nullable=False), integer=True),
    ),
    "big": (pa.float64(), (-1e149, 1e149, 0.0, None), number(-1e149, 1e149)),
    "s": (pa.string(), _TEXTS, any_text()),
    "t": (pa.string(), _TEXTS[::-1], any_text()),
    "c": (pa.string(), ("a", "ß", None, ""), declared(Categories(["a", "ß", ""]))),
    "p": (pa.bool_(), (True, False, None), boolean(True)),
    "q": (pa.bool_(), (None, True, True, False), boolean(True)),
    "d": (pa.date32(), _DAYS, declared(Dates("0001-01-01", "9999-12-31"))),
    "e": (pa.date32(), _NEAR, declared(Dates("2000-01-01", "2020-12-31"))),
}
_LITERALS = (
    *(None, True, 0, 1, -1, 2, 3.5, 8, 12, -12, 38, 100, 10_000, 1e308, -1e308, 2**62, 10**30, 10**40),
    *("", "a", "%", "_%_", "\\", "x" * 100, "%Y-%m", "%%", "%j %U", "true", "1e400"),
    *(date(1, 1, 1), date(2020, 2, 29), date(9999, 12, 31)),
)
LEAVES: tuple[Expr, ...] = (
    *(Column(name, domain) for name, (_, _, domain) in COLUMNS.items()),
    *(Literal(content) for content in _LITERALS),
)
ROWS = 700


def table(seed: int = 5) -> pa.Table:
    """Every value of each column at least once, beside random others."""
    chance = random.Random(seed)
    columns = {}
    for name, (type_, values, _) in COLUMNS.items():
        filled = [*values, *chance.choices(values, k=ROWS - len(values))]
        chance.shuffle(filled)
        columns[name] = pa.array(filled, type_)
    return pa.table({"id": pa.array(range(ROWS), pa.int64()), **columns})


def built(op: str, args: tuple[Expr, ...]) -> Call | None:
    """The call of an operator, or None where it refuses these arguments before anything is charged."""
    try:
        call = make(op, *args)
        # some operators read their literals when they are written
        sql(call)
    except Refusal:
        return None
    except (TypeError, ValueError, IndexError, AttributeError, OverflowError, ArithmeticError):
        # too few or too many arguments, or no literal where one must be: `plan` says "not understood"
        return None
    return call if any(isinstance(arg, Column | Call) for arg in args) else None


def calls(op: str, leaves: tuple[Expr, ...], most: int, chance: random.Random) -> Iterator[Call]:
    """Calls of an operator that its rule accepts: with one argument all, with more some, each kind of arguments
    at least once where it is met."""
    for arity in (1, 2, 3, 4):
        tuples = (
            list(itertools.product(leaves, repeat=arity))
            if len(leaves) ** arity <= 2000
            else [tuple(chance.choices(leaves, k=arity)) for _ in range(2000)]
        )
        accepted = [call for args in tuples if (call := built(op, args)) is not None]
        by_kinds: dict[Any, Call] = {}
        for call in accepted:
            by_kinds.setdefault(
                tuple((type(a).__name__, a.domain.kind, a.domain.null) for a in call.args), call
            )
        yield from by_kinds.values()
        yield from chance.sample(accepted, min(most, len(accepted)))


def failing(engine: Engine, expressions: list[Expr]) -> list[Expr]:
    """The expressions on which the engine fails, found by halves."""
    nodes = [exp.alias_(exp.Count(this=sql(e)), f"r{i}") for i, e in enumerate(expressions)]
    try:
        text = engine.dialect.write(exp.select(*nodes).from_("t"))
        engine.plan([text])
        engine.answer(text)
    except (EngineError, Unsupported) as error:
        if len(expressions) == 1:
            # what cannot be written or planned for the engine is refused before the charge
            return [] if isinstance(error, Unsupported) else expressions
        half = len(expressions) // 2
        return [*failing(engine, expressions[:half]), *failing(engine, expressions[half:])]
    return []


def in_parts(expressions: list[Expr], size: int = 40) -> Iterator[list[Expr]]:
    for start in range(0, len(expressions), size):
        yield expressions[start : start + size]


# Other engines take minutes: each call that they cannot plan is found by halves.
@pytest.fixture(
    scope="module",
    params=[
        pytest.param(c, id=c.name, marks=[] if c.name == "duckdb" else [pytest.mark.slow]) for c in ENGINES
    ],
)
def engine(request: pytest.FixtureRequest) -> Engine:
    if request.param.skip is not None:
        pytest.skip(request.param.skip)
    return request.param.open(table())


def raises(engine: Engine, most: int, nested: int, seed: int) -> tuple[list[str], int]:
    """All calls on which the engine fails, as texts; and how many were computed."""
    chance = random.Random(seed)
    by_operator = {op: list(dict.fromkeys(calls(op, LEAVES, most, chance))) for op in OPERATORS}
    missing = [op for op, found in by_operator.items() if not found]
    assert not missing, missing
    first = [call for found in by_operator.values() for call in found]
    leaves = (*chance.sample(first, min(60, len(first))), *LEAVES)
    second = [
        call for op in OPERATORS for call in itertools.islice(calls(op, leaves, nested, chance), 10 * nested)
    ]
    every: list[Expr] = list(dict.fromkeys([*first, *second]))
    return [str(e) for part in in_parts(every) for e in failing(engine, part)], len(every)


def test_no_operator_raises(engine: Engine) -> None:
    failed, computed = raises(engine, most=6, nested=2, seed=1)
    assert computed > 1000
    assert not failed


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 12))
def test_no_operator_raises_thousands_of_times(engine: Engine, seed: int) -> None:
    failed, _ = raises(engine, most=40, nested=10, seed=seed)
    assert not failed


def test_every_kind_is_tried() -> None:
    assert {leaf.domain.kind for leaf in LEAVES} == set(Kind)
