"""Hostile values for every operator on every engine: random bit patterns, the edges of under- and overflow,
texts that are nearly numbers. Arithmetic is what IEEE 754 says, and nothing fails on any row."""

from __future__ import annotations

import math
import random
import struct
from itertools import product

import numpy as np
import pyarrow as pa
import pytest

from discreet.tables import semantics as d

from ..loops import for_each
from .engines import ENGINES, column, computed, computed_together, number, text

EXPONENTS = [
    -1074,
    -1022,
    -1021,
    -538,
    -537,
    -512,
    -500,
    -53,
    0,
    1,
    53,
    499,
    500,
    512,
    537,
    900,
    970,
    1022,
    1023,
]
SPECIAL = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    1e308,
    5e-324,
    -5e-324,
    1.7976931348623157e308,
    math.inf,
    -math.inf,
    math.nan,
]
CONSTANTS = [3.0, 1e-5, 1e300, 1e-300, -0.7, 5e-324, 1.7976931348623157e308, -(2.0**900), 0.0]
ALPHABET = "0123456789eE+-. \t\nxinfatyNA/:\\'\"%ßé🎈Z"
LONG = [
    "1e99999",
    "1e9999",
    "-1e-9999",
    "9" * 401,
    "0." + "0" * 390 + "1",
    "1" + "0" * 200_000,
    "a" * 100_000,
]
NEARLY = [
    "0000-00-00",
    "2020-13-01",
    "2020-02-31",
    "9999/02/29",
    "-inf",
    " infinity ",
    "1e400",
    "1e-400",
    "- ",
]


def _double(source: random.Random) -> float:
    kind = source.random()
    if kind < 0.5:
        return float(struct.unpack("<d", struct.pack("<Q", source.getrandbits(64)))[0])
    if kind < 0.75:
        fraction = 1 + source.choice([0, 2**-52, 1 - 2**-52, source.random()])
        return math.ldexp(source.choice([1, -1]) * fraction, source.choice(EXPONENTS))
    return source.choice(SPECIAL) if kind < 0.9 else source.uniform(-1000, 1000)


def _partner(source: random.Random, x: float) -> float:
    """Often one whose product with x is next to the largest or the least double."""
    if x and math.isfinite(x) and source.random() < 0.4:
        with np.errstate(all="ignore"):
            edge = np.float64(source.choice([1.7976931348623157e308, 5e-324, 2.5e-324]))
            return float(edge / x * (1 + source.choice([0, 2**-52, -(2**-53), 2**-51])))
    return _double(source)


SOURCE = random.Random(20261116)
XS = [_double(SOURCE) for _ in range(1500)]
YS = [_partner(SOURCE, x) for x in XS]
TEXTS = [
    *("".join(SOURCE.choices(ALPHABET, k=SOURCE.choice([0, 1, 2, 5, 12, 60]))) for _ in range(800)),
    *LONG,
    *NEARLY,
]


@pytest.fixture(scope="module", params=ENGINES, ids=lambda case: case.name)
def case(request):
    if request.param.skip is not None:
        pytest.skip(request.param.skip)
    return request.param


@pytest.fixture(scope="module")
def doubles(case):
    return case.open(pa.table({"id": range(len(XS)), "x": pa.array(XS), "y": pa.array(YS)}))


@pytest.fixture(scope="module")
def texts(case):
    return case.open(pa.table({"id": range(len(TEXTS)), "s": pa.array(TEXTS)}))


def of_zero(function):
    return lambda a, b: None if b == 0 else function(a, b)


TWO = {
    d.Plus: np.add,
    d.Minus: np.subtract,
    d.Times: np.multiply,
    d.Divide: of_zero(np.divide),
    d.Remainder: of_zero(np.fmod),
}


def compare(results, function, pairs):
    with np.errstate(all="ignore"):
        for (x, y), result in zip(pairs, results, strict=True):
            exact = function(np.float64(x), np.float64(y))
            if exact is None or result is None:
                assert result is exact is None, (x, y, result, exact)
            elif not (math.isnan(exact) and math.isnan(result)):
                assert result == float(exact), (x, y, result, exact)


@pytest.mark.parametrize("node", TWO, ids=lambda cls: cls.__name__)
def test_arithmetic_is_that_of_ieee_754(doubles, node):
    pairs = list(zip(XS, YS, strict=True))
    results = computed(doubles, doubles.dialect, node(this=column("x"), expression=column("y")))
    compare(results, TWO[node], pairs)


@pytest.mark.parametrize("value", CONSTANTS)
def test_arithmetic_with_constants_is_that_of_ieee_754(doubles, value):
    """On either side; engines compute with constants when they plan, and must not fail there either."""
    x, one, large = (lambda: column("x")), (lambda: number(value)), (lambda: number(1e308))
    nodes = [node(this=a(), expression=b()) for node in TWO for a, b in ((x, one), (one, x), (one, large))]
    right, left, both = [(x, value) for x in XS], [(value, x) for x in XS], [(value, 1e308)] * len(XS)
    results = computed_together(doubles, doubles.dialect, nodes)
    for values, (function, pairs) in zip(results, product(TWO.values(), (right, left, both)), strict=True):
        compare(values, function, pairs)


def test_a_nested_expression_stays_small_and_right(doubles):
    """Twelve levels deep: a text that doubles with each would be far too long."""
    node, values = column("x"), [np.float64(x) for x in XS]
    with np.errstate(all="ignore"):
        for level in range(12):
            cls, function = ((d.Times, np.multiply), (d.Plus, np.add))[level % 2]
            node = cls(this=node, expression=column("y"))
            values = [function(value, np.float64(y)) for value, y in zip(values, YS, strict=True)]
    written = doubles.dialect.write(node.copy())
    assert len(written) < 100_000
    for result, value in zip(computed(doubles, doubles.dialect, node), values, strict=True):
        assert result == value or (math.isnan(result) and math.isnan(value))


ONE = [
    *(
        cls
        for cls in (d.SquareRoot, d.Ln, d.Log2, d.Log10, d.Exponential, d.Floor, d.Ceil, d.Sign, d.Absolute)
    ),
    *(d.SafeNearestWhole, d.AsFloat, d.IsFinite, d.RoundHalfAway, d.TruncateNumber),
]


@for_each("node", ONE, ids=lambda cls: cls.__name__)
def test_functions_of_one_double_fail_on_none(doubles, node):
    assert len(computed(doubles, doubles.dialect, node(this=column("x")))) == len(XS)


def test_powers_roundings_and_casts_of_doubles_fail_on_none(doubles):
    x = lambda: column("x")  # noqa: E731
    nodes = [d.Power(this=x(), expression=column("y"))]
    nodes += [d.Power(this=x(), expression=number(v)) for v in CONSTANTS]
    nodes += [d.Power(this=number(v), expression=x()) for v in CONSTANTS]
    nodes += [
        cls(this=x(), digits=number(n))
        for cls in (d.RoundHalfAway, d.TruncateNumber)
        for n in (-12, -1, 1, 12)
    ]
    nodes += [d.AsInteger(this=x(), type=name) for name in d.INTEGERS]
    nodes += [d.AsDecimal(this=x(), width=w, scale=s) for w, s in ((18, 3), (38, 0), (1, 0))]
    nodes += [d.SafeCast(this=x(), to="double"), d.Convert(this=x(), to="text")]
    nodes += [d.KeyedHash(key=7, expressions=[x(), column("y")])]
    for some in batched(nodes):
        assert {*map(len, computed_together(doubles, doubles.dialect, some))} == {len(XS)}


def batched(nodes):
    """Ten to a statement, which Spark takes as long for as for one."""
    return (nodes[start : start + 10] for start in range(0, len(nodes), 10))


def test_functions_of_texts_fail_on_none(texts):
    s = lambda: column("s")  # noqa: E731
    nodes = [d.SafeCast(this=s(), to=to) for to in ("double", "boolean", "date")]
    nodes += [d.AsInteger(this=s(), type=name) for name in ("TINYINT", "BIGINT", "HUGEINT")]
    nodes += [d.AsDecimal(this=s(), width=18, scale=3), d.AsFloat(this=s())]
    nodes += [cls(this=s()) for cls in (d.UpperCase, d.LowerCase, d.Trim, d.Length)]
    nodes += [d.Matches(this=s(), pattern=text(p)) for p in ("%a_%_e%", "%%%%%%%%a", "_" * 50, "\\")]
    nodes += [d.Replace(this=s(), old=text("a"), new=text("zz" * 50), max_length=10_000)]
    nodes += [d.Concat(this=s(), expression=s(), max_length=10_000)]
    nodes += [d.Substring(this=s(), start=number(2), length=number(10_000))]
    for some in batched(nodes):
        assert computed_texts(texts, some) == len(TEXTS)


def computed_texts(engine, nodes) -> int:
    """How many rows there are; days beyond those that Python knows are not looked at."""
    from sqlglot import exp

    aliased = [exp.alias_(node, f"r{i}", quoted=True) for i, node in enumerate(nodes)]
    query = exp.select(column("id"), *aliased).from_("t")
    return engine.answer(engine.dialect.write(query)).num_rows
