"""Defines the closed set of SQL nodes on which engines differ: sums beyond 64 bits, rounding, casts, NaN,
hashes, and the choice of the smallest rows. `tables.dialect` writes them, with plain SQL, for each engine.

The docstring of a node says what every engine must compute. No node may fail on any row, because a failure
would reveal that row. If an argument is NULL, so is the result, unless a node says otherwise. A number is an
IEEE double unless something else is said; a result too large for it is infinite.

Computes functions of public texts and dates in DuckDB, so that the groups listed for GROUP BY are spelled
exactly as the engine will find them in the data. Other engines' dialects follow DuckDB's functions.

Python and DuckDB do not agree on letter case (`upper('ß')`, `lower('İ')`), on what a blank is, or on names of
days. Public values are therefore put through DuckDB's own functions, in an in-memory database apart from the
data; no private value ever comes here.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Sequence
from datetime import date
from functools import cache, lru_cache
from typing import Any, ClassVar

import pyarrow as pa
from sqlglot import exp

from .._errors import InvalidInput, Unsupported
from .columns import FALSE_WORDS as FALSE_WORDS
from .columns import TRUE_WORDS as TRUE_WORDS
from .columns import codes_as_numbers

# The integer types that can be cast to, with the smallest and the largest value of each.
INTEGERS = {
    **{
        name: (-(1 << bits - 1), (1 << bits - 1) - 1)
        for name, bits in (
            ("TINYINT", 8),
            ("SMALLINT", 16),
            ("INTEGER", 32),
            ("BIGINT", 64),
            ("HUGEINT", 128),
        )
    },
    **{
        name: (0, (1 << bits) - 1)
        for name, bits in (("UTINYINT", 8), ("USMALLINT", 16), ("UINTEGER", 32), ("UBIGINT", 64))
    },
}
# Regular expressions of texts that are numbers or dates: they mean the same in RE2, Java and PostgreSQL.
BLANK = r"[ \t\n\r\f\v]*"
# The most characters of a text that is read as a number; longer texts are no numbers, on every engine.
LONGEST_NUMBER = 400
NUMBER = rf"{BLANK}[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?{BLANK}"
# Year (of four digits: 20-01-31 may be of 2020, or be another order), month and day between - or /, then
# nothing more, or a time of day, which is not looked at.
DATE = rf"{BLANK}([0-9]{{4}})([-/])([0-9]{{1,2}})\2([0-9]{{1,2}})({BLANK}$|[ T][0-9])"
# The types of `Convert`.
TYPES = ("double", "integer", "bigint", "wide", "boolean", "date", "text")


if not str(sys.modules[exp.Expression.__module__].__file__).endswith(".py"):
    raise Unsupported(
        "the nodes of discreet extend those of sqlglot, which its compiled version does not allow.",
        remedy="Remove that version, and leave sqlglot itself: pip uninstall sqlglotc",
    )


class Semantic(exp.Expression):
    """A node of the closed set."""


def name(text: str) -> exp.Column:
    """Return a column as a quoted identifier."""
    return exp.Column(this=exp.Identifier(this=text, quoted=True))


def aliased(node: Any, alias: str) -> exp.Alias:
    """Return an expression under a quoted name."""
    return exp.Alias(this=node, alias=exp.Identifier(this=alias, quoted=True))


class SelectNode(exp.Select):
    """A SELECT whose methods change it in place, and take names of relations as they are.

    Those of the SQL library copy the tree at every step, and parse every name: that took three quarters of
    the time in which a query is built.
    """

    def select(self, *columns: Any) -> SelectNode:  # type: ignore[override]
        super().select(*columns, copy=False)
        return self

    def from_(self, relation: Any) -> SelectNode:  # type: ignore[override]
        super().from_(_relation(relation), copy=False)
        return self

    def join(self, relation: Any, on: Any = None, *, side: str = "", kind: str = "") -> SelectNode:  # type: ignore[override]
        sides = {"side": side} if side else {}
        kinds = {"kind": kind} if kind else {}
        self.append("joins", exp.Join(this=_relation(relation), on=on, **sides, **kinds))
        return self

    def where(self, condition: Any) -> SelectNode:  # type: ignore[override]
        return super().where(condition, copy=False)

    def group_by(self, *columns: Any) -> SelectNode:  # type: ignore[override]
        if columns:
            super().group_by(*columns, copy=False)
        return self

    def distinct(self) -> SelectNode:  # type: ignore[override]
        super().distinct(copy=False)
        return self

    def with_(self, alias: str, as_: exp.Select, materialized: bool | None = None) -> SelectNode:  # type: ignore[override]
        named = exp.TableAlias(this=exp.Identifier(this=alias, quoted=False))
        return super().with_(named, as_=as_, materialized=materialized, copy=False)

    def subquery(self, alias: str) -> exp.Subquery:  # type: ignore[override]
        return super().subquery(alias, copy=False)


# By this name the library finds its writers and its own checks.
SelectNode.key = "select"


def select(*columns: Any) -> SelectNode:
    """Return a SELECT of some columns; "*" is all."""
    return SelectNode(expressions=[exp.Star() if column == "*" else column for column in columns])


def _relation(relation: Any) -> Any:
    """Return the node of a relation that is given by its name."""
    if isinstance(relation, str):
        return exp.Table(this=exp.Identifier(this=relation, quoted=False))
    return relation


# Values.


class Number(Semantic):
    """A finite double; `this` is its shortest text."""


class Day(Semantic):
    """A day; `this` is its ISO text."""


class Convert(Semantic):
    """A value as one of `TYPES`, where the caller knows that every value fits that type: whole numbers that
    fit, a number or truth value as a double (the nearest), a number as a truth value (whether it is not
    zero), a time as its day, anything as text. `wide`: a whole number of at least 127 bits. Of doubles only
    whole ones become whole numbers here; `NearestWhole` rounds."""

    arg_types: ClassVar[dict[str, bool]] = {"this": True, "to": True}


class Canonical(Semantic):
    """The canonical form of a column of the kind `kind` (`columns.ID_KINDS`): the only form in which ids,
    keys and texts are grouped, hashed and joined.

    Two values have the same canonical form, bit by bit, exactly if they are the same: numbers by their value
    (0.0 and -0.0 are the same, and so is every NaN; decimals whatever their scale), texts by their characters
    alone, as engines read texts without their collation. Floating-point numbers become doubles, decimals
    become texts without zeros at their end, and all other values keep their type. NULL stays NULL.
    """

    arg_types: ClassVar[dict[str, bool]] = {"this": True, "kind": True}


def canonical_text(column: exp.Expr, kind: str) -> exp.Expr:
    """Return the text of the canonical form of a column; different forms have different texts."""
    canonical = Canonical(this=column, kind=kind)
    return canonical if kind in ("text", "decimal") else Convert(this=canonical, to="text")


def without_codes(value: exp.Expr, codes: Sequence[exp.Expr]) -> exp.Expr:
    """Return a value, or NULL if it is one of these codes of missing values (`columns.without_codes` does the
    same to batches). A test that is neither true nor false leaves the value as it is: it is NULL then."""
    if not codes:
        return value
    is_code = exp.If(this=exp.In(this=value.copy(), expressions=list(codes)), true=exp.Null())
    return exp.Case(ifs=[is_code], default=value)


def without_numbers(number: exp.Expr, codes: Iterable[str | int | float]) -> exp.Expr:
    """Return a number, or NULL if it is one of the codes that are numbers."""
    return without_codes(number, [Number(this=repr(code)) for code in codes_as_numbers(codes)])


class SafeCast(Semantic):
    """A text, or a value of another kind, as a "double", "boolean" or "date"; NULL where it is none.

    What a text says is the same on every engine. A number has at most 400 characters: `NUMBER`, or inf,
    infinity or nan with or without a sign, in any letter case, between blanks. A truth value is one of
    `TRUE_WORDS` and `FALSE_WORDS`, in any letter case and without blanks. A day is `DATE`, of the years 1 to
    9999.
    """

    arg_types: ClassVar[dict[str, bool]] = {"this": True, "to": True}


class NearestWhole(Semantic):
    """The nearest whole number of a double, as 64-bit integer, halves to the even one; the caller knows that
    it fits."""


class SafeNearestWhole(Semantic):
    """The nearest whole number of any double, as `NearestWhole`; NULL where the double is not finite or does
    not fit 64 bits."""


class AsInteger(Semantic):
    """A number, or what a text says (`NUMBER`, its exponent of at most four digits), rounded to a whole
    number of the integer type `type` (see `INTEGERS`), as a double; NULL where it does not fit.
    Doubles: halves to the even one. Texts: halves away from zero."""

    arg_types: ClassVar[dict[str, bool]] = {"this": True, "type": True}


class AsDecimal(Semantic):
    """A number, or what a text says (as in `AsInteger`), rounded to `scale` digits, halves away from zero, as
    a double; NULL beyond `width` digits."""

    arg_types: ClassVar[dict[str, bool]] = {"this": True, "width": True, "scale": True}


class AsFloat(Semantic):
    """A number, or what a text says, rounded to single precision, as a double; NULL beyond its range."""


# Arithmetic on doubles. Whole numbers have plain +, - and *, and the caller knows that nothing overflows.


class Plus(Semantic):
    """The sum of two doubles."""

    arg_types: ClassVar[dict[str, bool]] = {"this": True, "expression": True}


class Minus(Semantic):
    """The difference of two doubles."""

    arg_types: ClassVar[dict[str, bool]] = {"this": True, "expression": True}


class Times(Semantic):
    """The product of two doubles."""

    arg_types: ClassVar[dict[str, bool]] = {"this": True, "expression": True}


class Divide(Semantic):
    """The quotient of two doubles; NULL where the second is zero."""

    arg_types: ClassVar[dict[str, bool]] = {"this": True, "expression": True}


class Remainder(Semantic):
    """The remainder of the division of two doubles, with the sign of the first; NULL where the second is
    zero."""

    arg_types: ClassVar[dict[str, bool]] = {"this": True, "expression": True}


class TruncatingDivide(Semantic):
    """The quotient of two whole numbers (the first perhaps wide, the second positive), cut off towards zero:
    exact."""

    arg_types: ClassVar[dict[str, bool]] = {"this": True, "expression": True}


class Floor(Semantic):
    """The largest whole number that is not above a double, as a double."""


class Ceil(Semantic):
    """The least whole number that is not below a double, as a double."""


class RoundHalfAway(Semantic):
    """A double rounded to `digits` places (0 if not given; a whole double), halves away from zero."""

    arg_types: ClassVar[dict[str, bool]] = {"this": True, "digits": False}


class TruncateNumber(Semantic):
    """A double cut off towards zero after `digits` places (0 if not given; a whole double)."""

    arg_types: ClassVar[dict[str, bool]] = {"this": True, "digits": False}


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

    arg_types: ClassVar[dict[str, bool]] = {"this": True, "expression": True}


class IsFinite(Semantic):
    """Whether a double is neither infinite nor NaN."""


class Clip(Semantic):
    """A double clipped to [`low`, `high`]; NULL where it is not finite.

    `may_be_nan` is false where the caller knows that it is not NaN.
    """

    arg_types: ClassVar[dict[str, bool]] = {"this": True, "low": True, "high": True, "may_be_nan": False}


class Least(Semantic):
    """The least of `expressions` that are not NULL; NULL if all are. NaN is above all numbers."""

    arg_types: ClassVar[dict[str, bool]] = {"expressions": True}


class Greatest(Semantic):
    """The greatest of `expressions` that are not NULL; NULL if all are. NaN is above all numbers."""

    arg_types: ClassVar[dict[str, bool]] = {"expressions": True}


class Same(Semantic):
    """Whether two values are equal, or both NULL; never NULL."""

    arg_types: ClassVar[dict[str, bool]] = {"this": True, "expression": True}


# Texts.


class Matches(Semantic):
    """Whether all of a text fits `pattern`, a literal in which % stands for any characters and _ for one;
    letter case counts, and nothing escapes. In time that grows with the text's length and no faster."""

    arg_types: ClassVar[dict[str, bool]] = {"this": True, "pattern": True}


class UpperCase(Semantic):
    """A text in capital letters."""


class LowerCase(Semantic):
    """A text in small letters."""


class Trim(Semantic):
    """A text without blanks at its ends."""


class Substring(Semantic):
    """The characters of a text from `start` (from 1, a whole double), at most `length` of them (a whole
    double)."""

    arg_types: ClassVar[dict[str, bool]] = {"this": True, "start": True, "length": False}


class Concat(Semantic):
    """Two texts as one, cut off after `max_length` characters."""

    arg_types: ClassVar[dict[str, bool]] = {"this": True, "expression": True, "max_length": True}


class Replace(Semantic):
    """A text with `new` for every `old`, cut off after `max_length` characters both before and after the
    replacement."""

    arg_types: ClassVar[dict[str, bool]] = {"this": True, "old": True, "new": True, "max_length": True}


class Length(Semantic):
    """How many characters a text has, as a double."""


# Days.


class DaysBetween(Semantic):
    """How many days the first day is after the second, as a double."""

    arg_types: ClassVar[dict[str, bool]] = {"this": True, "expression": True}


class AddDays(Semantic):
    """The day `expression` days later (a whole double; the caller knows that it is a day)."""

    arg_types: ClassVar[dict[str, bool]] = {"this": True, "expression": True}


class AddMonths(Semantic):
    """The same day `expression` months later (a whole double), or the last of that month."""

    arg_types: ClassVar[dict[str, bool]] = {"this": True, "expression": True}


class DatePart(Semantic):
    """A `part` of a day as a double: year, quarter, month, day, week (ISO), dow (Sunday is 0), isodow (Sunday
    is 7) or doy."""

    arg_types: ClassVar[dict[str, bool]] = {"this": True, "part": True}


class StartOf(Semantic):
    """The first day of the `unit` a day lies in: year, quarter, month, week (Monday) or day."""

    arg_types: ClassVar[dict[str, bool]] = {"this": True, "unit": True}


class DayText(Semantic):
    """A day as `format` (a literal, in the words of strftime) writes it."""

    arg_types: ClassVar[dict[str, bool]] = {"this": True, "format": True}


class DayName(Semantic):
    """The English name of a day of the week."""


class MonthName(Semantic):
    """The English name of a month."""


# Sums and choices.


class WideSum(Semantic):
    """The sum of whole numbers, exact beyond 64 bits: it neither wraps nor fails below 2**126.

    NULL if there is no summand. `largest`: a public number that no summand exceeds in size, as the caller
    knows; an engine may then add up in fewer parts.
    """

    arg_types: ClassVar[dict[str, bool]] = {"this": True, "largest": False}


class WindowSum(Semantic):
    """The sum of small whole numbers over the rows that agree in `by`, up to and including this one, in
    ascending order of `order`; no two of these rows agree in all of `order`, and nothing in it is NULL."""

    arg_types: ClassVar[dict[str, bool]] = {"this": True, "by": True, "order": True}


class KeyedHash(Semantic):
    """A whole number of 64 bits that `expressions` decide under the secret `key` (a number of 63 bits). Over
    random keys, the hashes of different tuples of values behave like independent uniform numbers. NULL is a
    value like others here; equal values have equal hashes."""

    arg_types: ClassVar[dict[str, bool]] = {"key": True, "expressions": True}


class Content(Semantic):
    """One value of several, never NULL: the contents of two rows are equal exactly if all `expressions` are,
    NULL being a value like others."""

    arg_types: ClassVar[dict[str, bool]] = {"expressions": True}


class Rank(Semantic):
    """A hash whose last `bits` bits are replaced by those of `low`, a whole number below 2**bits. Ranks are
    ordered by the other bits of the hash first, and two with different `low` are never equal."""

    arg_types: ClassVar[dict[str, bool]] = {"this": True, "low": True, "bits": True}


# The following nodes are common table expressions, to stand after WITH: each defines a relation `alias`. In
# the relation `source`, the column "u" is the unit in its canonical form, "j" the group, and "x0" the value.


class SmallestRanks(Semantic):
    """WITH `alias`: the rows of `source` whose rank "h" is among the `n` smallest different ranks of their
    unit "u", with the columns "u", "j" and `columns`. Rows without a unit are left out.

    `pairs` names a relation that has each ("u", "h") of `source` once."""

    arg_types: ClassVar[dict[str, bool]] = {
        "alias": True,
        "source": True,
        "pairs": True,
        "n": True,
        "columns": True,
    }


class ChosenTotals(Semantic):
    """WITH `alias`: "j" and `amounts` for the `n` groups "j" of each unit "u" that have the smallest `rank`,
    one row per unit and group.

    `amounts`: aggregates over the rows of `source` that agree in "u" and "j", each under an alias. `rank`: a
    number that no two groups of a unit share, made of "u", "j" and `columns`, which "u" and "j" decide. Rows
    without a unit are left out."""

    arg_types: ClassVar[dict[str, bool]] = {
        "alias": True,
        "source": True,
        "columns": True,
        "amounts": True,
        "rank": True,
        "n": True,
    }


class SmallestValues(Semantic):
    """WITH `alias`: ("j", "x0") of the rows of `source` that are the `n` smallest of their unit "u" and group
    "j" by `order`, ties by "x0"."""

    arg_types: ClassVar[dict[str, bool]] = {"alias": True, "source": True, "order": True, "n": True}


class SmallestRows(Semantic):
    """WITH `alias`: ("j", "x0") of `n` rows of `source` for each unit "u" and group "j": those with the
    smallest `order`, ties by "x0"; with "w", if it is among `columns`, which all rows of a unit share.

    Rows that agree in "u", "j", `columns` and "x0" (a whole number below 2**32) are numbered from 0, and
    `order` sees that number as "o". Of `order`, a hash, an engine may compare only the first 32 bits."""

    arg_types: ClassVar[dict[str, bool]] = {
        "alias": True,
        "source": True,
        "columns": True,
        "order": True,
        "n": True,
    }


NODES: frozenset[type[exp.Expression]] = frozenset(
    cls
    for cls in globals().values()
    if isinstance(cls, type) and issubclass(cls, Semantic) and cls is not Semantic
)


# The only functions whose name is written into SQL.
_FUNCTIONS = {"upper", "lower", "trim", "replace", "strftime", "dayname", "monthname"}
# Held while the database is used, so that one thread at a time uses it.
_LOCK = threading.Lock()


def engine_values(function: str, values: Sequence[str | date | None], *arguments: str) -> tuple[Any, ...]:
    """Return the result of the engine's `function(value, *arguments)` for each of the public `values`.

    >>> engine_values("upper", ("Straße", "ǆ"))
    ('STRAẞE', 'Ǆ')
    """
    if function not in _FUNCTIONS:
        raise InvalidInput(f"{function!r} is not a function of public texts; these are {sorted(_FUNCTIONS)}.")
    return _compute(function, tuple(values), arguments)


@lru_cache(maxsize=256)
def _compute(function: str, values: tuple[Any, ...], arguments: tuple[str, ...]) -> tuple[Any, ...]:
    """Return what `engine_values` does, for checked and hashable arguments; the latest results are cached."""
    # Imported late because it is slow to load.
    import duckdb

    has_days = any(isinstance(value, date) for value in values)
    values_table = pa.table({"v": pa.array(values, pa.date32() if has_days else pa.string())})
    placeholders = "".join(", ?" for _ in arguments)
    with _LOCK:
        cursor = _database().cursor()
        cursor.register("listed", values_table)
        try:
            sql = f"SELECT {function}(v{placeholders}) AS r FROM listed"
            result = cursor.sql(sql, params=list(arguments)).to_arrow_table()
        except duckdb.Error:
            raise InvalidInput(f"{function} cannot be computed with {list(arguments)!r}.") from None
    return tuple(result.column("r").to_pylist())


@cache
def letter_cases(*, upper: bool) -> tuple[str, str]:
    """Return two strings of equal length: every character that the engine's UPPER (or LOWER) changes, and at
    the same position the character that it becomes. Each becomes one character, whatever its neighbors
    are."""
    name = "upper" if upper else "lower"
    # all of Unicode but the surrogates, which are no characters
    all_characters = "range(1, 1114112) AS t(i) WHERE i NOT BETWEEN 55296 AND 57343"
    with _LOCK:
        rows = (
            _database()
            .cursor()
            .execute(f"SELECT chr(i::INT) AS c, {name}(c) AS o FROM {all_characters} AND c <> o ORDER BY i")
            .fetchall()
        )
    return "".join(old for old, _ in rows), "".join(new for _, new in rows)


@cache
def _database() -> Any:
    import duckdb

    return duckdb.connect(":memory:", config={"threads": 1, "enable_external_access": "false"})
