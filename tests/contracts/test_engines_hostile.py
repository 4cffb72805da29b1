"""What texts say is one rule on every engine, written here once more in Python; and no text is too long."""

from __future__ import annotations

import math
import re
from datetime import date
from decimal import Decimal
from fractions import Fraction

import pyarrow as pa
import pytest

from discreet.tables import semantics as d
from discreet.tables.columns import LONGEST_TEXT

from .engines import ENGINES, column, computed, computed_together, number, text

NUMBERS = [
    "1_000", "1__0", "_1", "1_", "1.5_0", "1_0e1_0", "1e1_0", "0x10", "0X1F", "0b11", "0o7", " 12 ",
    "\t12\n", "\x0b12\x0c", "\u00a012", "12\u2003", "١٢", "１２", "½", "1e400", "-1e400", "1e-400", "inf",
    "Infinity", "-Inf", "+inf", "nan", "-nan", "+NaN", " nan ", "infin", "in f", "1d", "1f", "1e", "e1", ".",
    "5.", ".5", "+.5e-3", "+-1", "-+1", "--1", "- 1", "1 2", "1,000", "1e5", "1E+05", "1e+", "127", "128",
    "-128", "-129", "255", "256", "2.5", "-2.5", "3.5", "0.5", "-0.5", "9223372036854775807",
    "9223372036854775808", "-9223372036854775808", "-9223372036854775809", "18446744073709551615",
    str(2**127 - 1), str(2**127), str(-(2**127)), "9" * 38, "9" * 39, "0." + "9" * 38, "1e37", "1e38", "1e39",
    "9223372036854775806.5", "9223372036854775807.4", "9223372036854775807.5", "0" * 50 + "12", "1e309",
    "4.9e-324", "2e-324", "3.4028236e38", "1e-46", "1e0001", "1e00000000001", "0e99999", "-0e99999",
    "1e-99999", "1e99999", "+", "-0", "-0.0", "1.", "1e5.0", "0" * 399 + "1", "0" * 400 + "1", "9" * 400,
    "6e-4", "0.5e-3", "94.5e-3", "50e-4", "4.9e-2", "14999e-4", "1.25e1", "5e-1", ".5e1", "5.e-1", "-5E-0001",
    "0.0000000000000000000000000000000000049e35", "149e-2", "1e-9999", "0e9999", "1e9999", ".e1", "e-3",
    "$12", "12€", "1/2", "#NUM!", "NULL", "\u200b1", "−1", "7e\t", "7E-\n", "+\x0b", ".71e5.",
]  # fmt: skip
TRUTHS = ["true", "TRUE", " true ", "t", "yes", "Y", "on", "1", "0", "f", "no", "off", "false", "2", "-1"]
DAYS = [
    "2020-02-29", "2020-2-9", "2021-02-29", "2020/02/29", "2020-02-29 12:00:00", "2020-02-29T12:00:00Z",
    " 2020-02-29 ", "20200229", "0000-01-01", "0001-01-01", "9999-12-31", "10000-01-01", "infinity", "epoch",
    "-0001-01-01", "2020-02", "2020", "2020-02-29x", "2020-02-29 99", "2020-02-29 (BC)", "2020-02-29 BC",
    "99-01-01", "999-01-01", "20/1/31", "0020-01-31", "02/29/2020", "2020\\02\\29", "2020 02 29", "2020-02/29", "2020-00-01", "2020-13-01",
    "1900-02-29", "2000-02-29", "2020-04-31", "today", "now", "2020-02-29\n", "٢٠٢٠-٠٢-٢٩",
]  # fmt: skip
TEXTS = [*NUMBERS, *TRUTHS, *DAYS, "", " ", "a", None]

BLANKS = " \t\n\r\f\v"
GRAMMAR = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?([0-9]+))?")


def double_of(t):
    plain = t.strip(BLANKS)
    if len(t) > 400:
        return None
    if re.fullmatch(r"[+-]?(inf|infinity|nan)", plain, re.IGNORECASE) or GRAMMAR.fullmatch(plain):
        return abs(float(plain)) if "nan" in plain.lower() else float(plain)
    return None


def exact_of(t):
    plain = t.strip(BLANKS)
    match = GRAMMAR.fullmatch(plain)
    if match is None or len(t) > 400 or len((match[3] or "").lstrip("0")) > 4:
        return None
    return Fraction(Decimal(plain))


def rounded(x):
    return (-1 if x < 0 else 1) * math.floor(abs(x) + Fraction(1, 2))


def integer_of(name):
    low, high = d.INTEGERS[name]

    def value(t):
        x = exact_of(t)
        return None if x is None or not low <= rounded(x) <= high else float(rounded(x))

    return value


def decimal_of(width, scale):
    def value(t):
        x = exact_of(t)
        if x is None or abs(rounded(x * 10**scale)) >= 10**width:
            return None
        return float(Fraction(rounded(x * 10**scale), 10**scale))

    return value


def truth_of(t):
    return True if t.lower() in d.TRUE_WORDS else False if t.lower() in d.FALSE_WORDS else None


def day_of(t):
    end = rf"([{BLANKS}]*|[ T][0-9].*)"
    match = re.fullmatch(rf"[{BLANKS}]*([0-9]{{4}})([-/])([0-9]{{1,2}})\2([0-9]{{1,2}}){end}", t, re.DOTALL)
    try:
        return None if match is None else date(int(match[1]), int(match[3]), int(match[4]))
    except ValueError:
        return None


CASES = {
    "double": (d.SafeCast(this=column("s"), to="double"), double_of),
    "boolean": (d.SafeCast(this=column("s"), to="boolean"), truth_of),
    "date": (d.SafeCast(this=column("s"), to="date"), day_of),
    **{name: (d.AsInteger(this=column("s"), type=name), integer_of(name)) for name in d.INTEGERS},
    **{
        f"decimal {w}, {s}": (d.AsDecimal(this=column("s"), width=w, scale=s), decimal_of(w, s))
        for w, s in ((18, 3), (9, 2), (38, 0), (1, 0), (38, 30))
    },
}


@pytest.fixture(scope="module", params=ENGINES, ids=lambda case: case.name)
def case(request):
    if request.param.skip is not None:
        pytest.skip(request.param.skip)
    return request.param


@pytest.fixture(scope="module")
def hostile(case):
    return case.open(pa.table({"id": range(len(TEXTS)), "s": pa.array(TEXTS)}))


def test_what_texts_say_is_the_same_on_every_engine(hostile):
    nodes = [node.copy() for node, _ in CASES.values()]
    lists = computed_together(hostile, hostile.dialect, nodes)
    for (name, (_, oracle)), results in zip(CASES.items(), lists, strict=True):
        for t, result in zip(TEXTS, results, strict=True):
            wanted = None if t is None else oracle(t)
            if name.startswith("decimal") and wanted is not None:
                assert result == pytest.approx(wanted, rel=1e-15), (name, t)
            else:
                assert repr(result) == repr(wanted), (name, t)


def test_a_value_of_a_long_expression_is_converted_as_of_a_short_one(hostile):
    """The text of a node names its argument several times: a long one is written once."""
    long = column("s")
    for _ in range(4):
        long = d.Substring(this=d.Concat(this=long, expression=text(""), max_length=10_000), start=number(1))
    names = ("double", "date", "BIGINT", "HUGEINT", "decimal 18, 3")
    deep = [CASES[name][0].copy() for name in names]
    for node in deep:
        node.set("this", long.copy())
    for name, results in zip(names, computed_together(hostile, hostile.dialect, deep), strict=True):
        assert repr(results[:40]) == repr([CASES[name][1](t) for t in TEXTS[:40]]), name


def test_single_precision_of_texts_is_the_same_on_every_engine(hostile):
    results = computed(hostile, hostile.dialect, d.AsFloat(this=column("s")))
    said = dict(zip(TEXTS, results, strict=True))
    wanted = {"1e39": None, "3.4028236e38": None, "1e400": math.inf, "-Inf": -math.inf, "1e-46": 0.0}
    wanted |= {"0.5": 0.5, "1_000": None, "+-1": None, "-0": -0.0, "nan": math.nan}
    for t, value in wanted.items():
        assert repr(said[t]) == repr(value), t


LONG = [
    "x" * LONGEST_TEXT,
    "x" * (LONGEST_TEXT + 1),
    '"' * LONGEST_TEXT,
    "ß" * LONGEST_TEXT,
    "y" * 9_000_000,
    "z",
]


def test_a_very_long_text_is_missing_and_fails_nothing(case):
    """One rule for every engine, whatever each could hold; also where rows leave in batches."""
    engine = case.open(pa.table({"id": range(len(LONG)), "s": pa.array(LONG), "t": pa.array(LONG[::-1])}))
    lengths = [LONGEST_TEXT, None, LONGEST_TEXT, None, None, 1]
    s = lambda: column("s")  # noqa: E731
    assert computed(engine, engine.dialect, d.Length(this=s())) == lengths
    nodes = [
        *(d.Length(this=cls(this=s())) for cls in (d.UpperCase, d.LowerCase, d.Trim)),
        d.Length(this=d.Concat(this=s(), expression=s(), max_length=100)),
        d.Length(this=d.Replace(this=s(), old=text("x"), new=text("yy"), max_length=100)),
        d.Matches(this=s(), pattern=text("%a_%_e%")),
        d.KeyedHash(key=7, expressions=[s(), column("t")]),
    ]
    for node, results in zip(nodes, computed_together(engine, engine.dialect, nodes), strict=True):
        assert len(results) == len(LONG)
        if not isinstance(node, d.KeyedHash):
            assert [r is None for r in results] == [n is None for n in lengths]
    assert computed(engine, engine.dialect, d.SafeCast(this=s(), to="double")) == [None] * len(LONG)
    rows = [row for batch in engine.batches(["id", "s", "t"]) for row in batch.to_pylist()]
    assert {r["id"]: None if r["s"] is None else len(r["s"]) for r in rows} == dict(enumerate(lengths))
