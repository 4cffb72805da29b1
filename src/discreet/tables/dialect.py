"""The closed set of nodes that queries are built from, and the `Dialect` that writes them as one engine's SQL.

A query is a tree of plain SQL whose meaning is the same on every engine (`PLAIN`: SELECT, joins, comparisons, CASE, COUNT, arithmetic on whole
numbers) and of nodes of our own (`NODES`), one for everything on which engines differ: sums beyond 64 bits, rounding, casts, NaN, hashes, choosing
the smallest of a unit. The docstring of a node is what every engine must compute; none may fail on any row, because a failure would tell of that row.
NULL goes in and NULL comes out unless a node says otherwise. A number is an IEEE double where nothing else is said; a result too large is infinite.

Guarantee: the text that `Dialect.write` returns was put together from `PLAIN` and from writers of this dialect, and from nothing else.
Proof:     every node passes `_Closed.sql`, which refuses what is in neither (`Unwritten`); what the SQL library calls unsupported is refused as well.
Assumes:   the SQL library writes the nodes of `PLAIN` as standard SQL. tests/contracts/test_engines.py holds each engine to the docstrings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from string import Formatter
from typing import Any

from sqlglot import ErrorLevel, exp
from sqlglot.errors import SqlglotError
from sqlglot.generator import Generator

from .._errors import Unsupported

# The integer types that can be cast to, with the least and the most that each holds.
INTEGERS = {
    **{
        name: (-(1 << bits - 1), (1 << bits - 1) - 1)
        for name, bits in (("TINYINT", 8), ("SMALLINT", 16), ("INTEGER", 32), ("BIGINT", 64), ("HUGEINT", 128))
    },
    **{
        name: (0, (1 << bits) - 1)
        for name, bits in (("UTINYINT", 8), ("USMALLINT", 16), ("UINTEGER", 32), ("UBIGINT", 64))
    },
}
TYPES = ("double", "integer", "bigint", "wide", "boolean", "date", "text")


class Unwritten(Unsupported):
    """A query holds something that the dialect of its engine does not write."""


class Semantic(exp.Expression):
    """A node of the closed set."""


# Values.


class Number(Semantic):
    """A finite double; `this` is its shortest text."""


class Day(Semantic):
    """A day; `this` is its ISO text."""


class Convert(Semantic):
    """A value as one of `TYPES`, where the caller knows that every value has a place there: whole numbers that fit, a number or truth value as
    a double (the nearest), a number as a truth value (whether it is not zero), a time as its day, anything as text. `wide`: a whole number of at
    least 127 bits. Of doubles only whole ones become whole numbers here; `NearestWhole` rounds."""

    arg_types = {"this": True, "to": True}


class SafeCast(Semantic):
    """A text, or a value of another kind, as a "double", "boolean" or "date"; NULL where it is none. A text may say inf or nan."""

    arg_types = {"this": True, "to": True}


class NearestWhole(Semantic):
    """The nearest whole number of a double, as 64-bit integer, halves to the even one; the caller knows that it fits."""


class SafeNearestWhole(Semantic):
    """The same of any double; NULL for what is not finite or does not fit 64 bits."""


class AsInteger(Semantic):
    """A number, or what a text says, rounded to a whole number of the integer type `type` (see `INTEGERS`), as a double; NULL where it does not fit.
    Doubles: halves to the even one. Texts: halves away from zero."""

    arg_types = {"this": True, "type": True}


class AsDecimal(Semantic):
    """A number, or what a text says, rounded to `scale` digits, halves away from zero, as a double; NULL beyond `width` digits."""

    arg_types = {"this": True, "width": True, "scale": True}


class AsFloat(Semantic):
    """A number, or what a text says, rounded to single precision, as a double; NULL beyond its range."""


# Arithmetic on doubles. Whole numbers have plain +, - and *, and the caller knows that nothing overflows.


class Plus(Semantic):
    """The sum of two doubles."""

    arg_types = {"this": True, "expression": True}


class Minus(Semantic):
    """The difference of two doubles."""

    arg_types = {"this": True, "expression": True}


class Times(Semantic):
    """The product of two doubles."""

    arg_types = {"this": True, "expression": True}


class Divide(Semantic):
    """The quotient of two doubles; NULL where the second is zero."""

    arg_types = {"this": True, "expression": True}


class Remainder(Semantic):
    """What is left after division of two doubles, with the sign of the first; NULL where the second is zero."""

    arg_types = {"this": True, "expression": True}


class FloorDivide(Semantic):
    """The quotient of two whole numbers (the first perhaps wide, the second positive), cut off towards zero: exact."""

    arg_types = {"this": True, "expression": True}


class Floor(Semantic):
    """The largest whole number that is not above a double, as a double."""


class Ceil(Semantic):
    """The least whole number that is not below a double, as a double."""


class RoundHalfAway(Semantic):
    """A double rounded to `digits` places (0 if not given; a whole double), halves away from zero."""

    arg_types = {"this": True, "digits": False}


class Truncate(Semantic):
    """A double cut off towards zero after `digits` places (0 if not given; a whole double)."""

    arg_types = {"this": True, "digits": False}


class Sign(Semantic):
    """-1.0, 0.0 or 1.0."""


class Absolute(Semantic):
    """A double without its sign."""


class SquareRoot(Semantic):
    """The square root; NULL below zero."""


class Ln(Semantic):
    """The natural logarithm; NULL at and below zero."""


class Log2(Semantic):
    """The logarithm to base 2; NULL at and below zero."""


class Log10(Semantic):
    """The logarithm to base 10; NULL at and below zero."""


class Exponential(Semantic):
    """e to the power of a double."""


class Power(Semantic):
    """A double to the power of another; NaN, infinite or NULL where that is no number."""

    arg_types = {"this": True, "expression": True}


class IsFinite(Semantic):
    """Whether a double is neither infinite nor NaN."""


class SignBit(Semantic):
    """Whether the sign of a double is minus; -0.0 has one, and what is said of NaN is left open."""


class Clip(Semantic):
    """A double inside [`low`, `high`]; NULL where it is not finite. The caller may know that it is a number (`may_be_nan` false)."""

    arg_types = {"this": True, "low": True, "high": True, "may_be_nan": False}


class Least(Semantic):
    """The least of `expressions` that are not NULL; NULL if all are. NaN is above all numbers."""

    arg_types = {"expressions": True}


class Greatest(Semantic):
    """The greatest of `expressions` that are not NULL; NULL if all are. NaN is above all numbers."""

    arg_types = {"expressions": True}


class Same(Semantic):
    """Whether two values are equal, or both NULL; never NULL."""

    arg_types = {"this": True, "expression": True}


# Texts.


class Matches(Semantic):
    """Whether all of a text fits `pattern`, a literal in which % stands for any characters and _ for one; letter case counts, and nothing escapes.
    In time that grows with the text's length and no faster."""

    arg_types = {"this": True, "pattern": True}


class Upper(Semantic):
    """A text in capital letters."""


class Lower(Semantic):
    """A text in small letters."""


class Trim(Semantic):
    """A text without blanks at its ends."""


class Substring(Semantic):
    """The characters of a text from `start` (from 1, a whole double), at most `length` of them (a whole double)."""

    arg_types = {"this": True, "start": True, "length": False}


class Concat(Semantic):
    """Two texts as one, cut off after `most` characters."""

    arg_types = {"this": True, "expression": True, "most": True}


class Replace(Semantic):
    """A text with `new` for every `old`, cut off after `most` characters before and after."""

    arg_types = {"this": True, "old": True, "new": True, "most": True}


class Length(Semantic):
    """How many characters a text has, as a double."""


# Days.


class DaysBetween(Semantic):
    """How many days the first day is after the second, as a double."""

    arg_types = {"this": True, "expression": True}


class AddDays(Semantic):
    """The day `expression` days later (a whole double; the caller knows that it is a day)."""

    arg_types = {"this": True, "expression": True}


class AddMonths(Semantic):
    """The same day `expression` months later (a whole double), or the last of that month."""

    arg_types = {"this": True, "expression": True}


class DatePart(Semantic):
    """A `part` of a day as a double: year, quarter, month, day, week (ISO), dow (Sunday is 0), isodow (Sunday is 7) or doy."""

    arg_types = {"this": True, "part": True}


class StartOf(Semantic):
    """The first day of the `unit` a day lies in: year, quarter, month, week (Monday) or day."""

    arg_types = {"this": True, "unit": True}


class DayText(Semantic):
    """A day as `format` (a literal, in the words of strftime) writes it."""

    arg_types = {"this": True, "format": True}


class DayName(Semantic):
    """The English name of a day of the week."""


class MonthName(Semantic):
    """The English name of a month."""


# Sums and choices.


class WideSum(Semantic):
    """The sum of whole numbers, exact beyond 64 bits: it neither wraps nor fails below 2**126. NULL of nothing."""


class KeyedHash(Semantic):
    """A whole number of 64 bits that `expressions` decide under the secret `key` (a number of 63 bits): over keys the order of two different tuples
    is uniform, and independent between tuples. NULL is a value like others here; equal values have equal hashes."""

    arg_types = {"key": True, "expressions": True}


class ContentHash(Semantic):
    """The same without a key: only says which tuples are equal."""

    arg_types = {"expressions": True}


class Rank(Semantic):
    """A hash whose last `bits` bits are those of `low`, a whole number below 2**bits: ordered by the hash, and no two with different `low` are equal."""

    arg_types = {"this": True, "low": True, "bits": True}


class SmallestRanks(Semantic):
    """WITH `alias`: the rows of `source` whose rank "h" is among the `n` smallest different ranks of their unit "u"; of these "u", "j" and `columns`.

    `pairs` names a relation that has each ("u", "h") of `source` once."""

    arg_types = {"alias": True, "source": True, "pairs": True, "n": True, "columns": True}


class SmallestValues(Semantic):
    """WITH `alias`: ("j", "x0") of the rows of `source` that are the `n` smallest of their unit "u" and group "j" by `order`, ties by "x0"."""

    arg_types = {"alias": True, "source": True, "order": True, "n": True}


class SmallestRows(Semantic):
    """WITH `alias`: ("j", "x0") of `n` rows of `source` for each unit "u" and group "j": those with the smallest `order`, ties by "x0".

    Rows that agree in "u", "j", `columns` and "x0" (a whole number below 2**32) are numbered from 0, and `order` sees that number as "o"."""

    arg_types = {"alias": True, "source": True, "columns": True, "order": True, "n": True}


NODES: frozenset[type[exp.Expression]] = frozenset(
    cls for cls in globals().values() if isinstance(cls, type) and issubclass(cls, Semantic) and cls is not Semantic
)
_TWO = frozenset({"this", "expression"})
_ONE = frozenset({"this"})
# Standard SQL with one meaning everywhere, and the parts of it that may be used. `materialized` asks for a relation to be computed once;
# no answer depends on it, and an engine without it may leave it out.
PLAIN: Mapping[type[exp.Expr], frozenset[str]] = {
    exp.Select: frozenset({"with_", "with", "expressions", "from_", "from", "joins", "where", "group", "distinct"}),
    exp.With: frozenset({"expressions"}),
    exp.CTE: frozenset({"this", "alias", "materialized"}),
    exp.From: _ONE,
    exp.Join: frozenset({"this", "on", "side", "kind"}),
    exp.Where: _ONE,
    exp.Group: frozenset({"expressions"}),
    exp.Distinct: frozenset({"expressions"}),
    exp.Subquery: frozenset({"this", "alias"}),
    exp.Table: frozenset({"this", "alias"}),
    exp.TableAlias: frozenset({"this", "columns"}),
    exp.Values: frozenset({"expressions", "alias"}),
    exp.Tuple: frozenset({"expressions"}),
    exp.Identifier: frozenset({"this", "quoted"}),
    exp.Column: frozenset({"this", "table"}),
    exp.Alias: frozenset({"this", "alias"}),
    exp.Star: frozenset(),
    exp.Literal: frozenset({"this", "is_string"}),
    exp.Null: frozenset(),
    exp.Boolean: _ONE,
    exp.Paren: _ONE,
    exp.Neg: _ONE,
    exp.Not: _ONE,
    exp.And: _TWO,
    exp.Or: _TWO,
    exp.EQ: _TWO,
    exp.NEQ: _TWO,
    exp.LT: _TWO,
    exp.LTE: _TWO,
    exp.GT: _TWO,
    exp.GTE: _TWO,
    exp.Is: _TWO,
    exp.In: frozenset({"this", "expressions"}),
    exp.Between: frozenset({"this", "low", "high"}),
    exp.Case: frozenset({"ifs", "default"}),
    exp.If: frozenset({"this", "true"}),
    # of whole numbers that are known not to overflow
    exp.Add: _TWO,
    exp.Sub: _TWO,
    exp.Mul: _TWO,
    exp.Coalesce: frozenset({"this", "expressions"}),
    exp.Nullif: _TWO,
    exp.Count: _ONE,
    exp.Min: _ONE,
    exp.Max: _ONE,
    exp.RowNumber: frozenset(),
    exp.Window: frozenset({"this", "partition_by", "order", "over"}),
    exp.Order: frozenset({"expressions"}),
    exp.Ordered: _ONE,
}
Writer = Callable[[Generator, Any], str]


def template(text: str) -> Writer:
    """A writer from a text with the node's arguments in braces.

    >>> template("SQRT({this})")(Generator(), SquareRoot(this=exp.column("x")))
    'SQRT(x)'
    """
    names = {name for _, name, _, _ in Formatter().parse(text) if name}

    def write(generator: Generator, node: exp.Expression) -> str:
        return text.format(**{name: argument(generator, node, name) for name in names})

    return write


def argument(generator: Generator, node: exp.Expression, name: str) -> str:
    """The text of one argument; of several, parted by commas."""
    value = node.args.get(name)
    if isinstance(value, list):
        return ", ".join(generator.sql(item) for item in value)
    return generator.sql(value) if isinstance(value, exp.Expr | None) else str(value)


class _Closed:
    """What a generator of SQL is given on top: it writes the closed set, and refuses all else."""

    writers: Mapping[type[exp.Expression], Writer] = {}
    called = ""

    def sql(self, expression: Any, key: str | None = None, comment: bool = True) -> str:
        if key is None and isinstance(expression, exp.Expr):
            cls = type(expression)
            writer = self.writers.get(cls)
            if writer is not None:
                return writer(self, expression)  # type: ignore[arg-type]
            known = PLAIN.get(cls)
            if known is None:
                raise _unwritten(self.called, cls.__name__)
            for name, value in expression.args.items():
                if name not in known and value:
                    raise _unwritten(self.called, f"{cls.__name__} with {name}")
        text: str = super().sql(expression, key, comment)  # type: ignore[misc]
        return text


def _unwritten(dialect: str, what: str) -> Unwritten:
    return Unwritten(f"{what} cannot be written for {dialect}: it is not in the closed set. Nothing was read or charged.")


@dataclass(frozen=True)
class Dialect:
    """How one engine writes the closed set: `base` generates its standard SQL, `writers` has an entry for every node.

    A node without an entry is an error when it is written, never passed through; `missing` says which these are.
    """

    name: str
    base: type[Generator]
    writers: Mapping[type[exp.Expression], Writer] = field(repr=False, compare=False)

    @property
    def missing(self) -> frozenset[type[exp.Expression]]:
        return NODES - self.writers.keys()

    @cached_property
    def _generator(self) -> type[Generator]:
        return type("Closed", (_Closed, self.base), {"writers": dict(self.writers), "called": self.name})

    def write(self, tree: exp.Expr) -> str:
        """The tree as this engine's SQL. The tree is used up: nobody else may hold parts of it."""
        generator = self._generator(dialect=self.name, unsupported_level=ErrorLevel.RAISE)
        try:
            return generator.generate(tree, copy=False)
        except (SqlglotError, ValueError):
            raise _unwritten(self.name, type(tree).__name__) from None
