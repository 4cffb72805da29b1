"""Translates the analyst's syntax tree (sqlglot) into expressions of a plan (`nodes`), one known construct at
a time; a construct that has no rule here is refused by name.

Reads constants of the analyst's SQL (dates written as texts, numbers, patterns), and refuses constants
that can only be typing errors, before the query is charged.

Reads the clauses of a SELECT: the name of an item, and the item that a position in GROUP BY means; refuses
clauses that are not answered, and arguments that no rule of `aggregates` reads (its table of functions, each
of which reads one kind of aggregate).

Lists SQL syntax: which operator a node of sqlglot's syntax tree stands for, and which arguments a node may
have.

To add an operator whose arguments are all expressions, list it here and in `operators`; one with other
arguments needs a rule in `binder`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import date
from fractions import Fraction
from operator import add, mul, sub
from typing import Any

from sqlglot import ErrorLevel, exp

from .._require import did_you_mean
from ..core.domain import EXACT, HUGE, Kind
from ..core.errors import Node, Refusal, position, refuse
from ..core.nodes import Column, Expr, Literal, make
from ..core.operators import OPERATORS
from ..core.sources import is_within_range
from ..tables.semantics import INTEGERS
from .parse import FUNCTIONS, why_not

# A number as an analyst would type it between quotes.
_NUMBER = re.compile(r"[+-]?\d{1,15}(\.\d{1,15})?")
# The text that may follow a day: nothing, or the time of midnight, which is the day itself.
_MIDNIGHT = re.compile(r"([T ]00:00(:00(\.0+)?)?)?")
# What is computed of two numbers of the query before any row is read.
_EXACT: dict[str, Callable[[Fraction, Fraction], Fraction]] = {"+": add, "-": sub, "*": mul}
# How many declared values an error message lists. Not tuned.
_LISTED = 12


def as_date(x: Expr, other: Expr) -> Expr:
    """Turn a text literal that is compared with a date into a date; refuse a text that is no day.

    A time of day is refused as well: without it, day < '2020-01-31 12:00', which is true on that day, would
    become day < '2020-01-31', which is not.
    """
    if other.domain.kind is not Kind.DATE or not (isinstance(x, Literal) and isinstance(x.content, str)):
        return x
    written = x.content.strip()
    try:
        if not _MIDNIGHT.fullmatch(written[10:]):
            raise ValueError
        return Literal(date.fromisoformat(written[:10]))
    except ValueError:
        raise Refusal(f"{x.content[:40]!r} is not a day such as '2020-01-31'") from None


def refuse_quoted_number(constant: Expr, x: Expr, written: Node) -> None:
    """Refuse a text literal (`constant`) that is compared with a number (`x`): it must be 40, not '40'.
    `written` is the literal's node in the SQL."""
    is_text = isinstance(constant, Literal) and isinstance(constant.content, str)
    if not is_text or x.domain.kind is not Kind.NUMBER:
        return
    assert isinstance(constant, Literal)
    what = "this"
    for operand in (written.parent.this, written.parent.args.get("expression")):
        what = operand.name if isinstance(operand, exp.Column) else what
    shown = constant.content.strip() if _NUMBER.fullmatch(constant.content.strip()) else "40"
    raise refuse(
        written.parent,
        f"{what} is a number, and {constant.content[:40]!r} is a text",
        f"Write numbers without quotes: {shown}, not '{shown}'.",
    )


def refuse_undeclared_value(x: Expr, constant: Expr, written: Node) -> None:
    """Refuse a comparison of `x` with a text or number that is not among its declared values: it can only be
    a typing error, and would be charged. `written` is the constant's node in the SQL."""
    values = x.domain.values
    if not isinstance(constant, Literal) or values is None or isinstance(x, Literal):
        return
    if (
        constant.content is None
        or isinstance(constant.content, bool | date)
        or x.domain.kind is not constant.domain.kind
    ):
        return
    if constant.content in values:
        return
    sample = ", ".join(repr(value) for value in values[:_LISTED]) + (", ..." if len(values) > _LISTED else "")
    suggestion = did_you_mean(str(constant.content), values) if x.domain.kind is Kind.TEXT else ""
    at = written if position(written)[0] is not None else written.parent
    raise refuse(at, f"{constant.content!r} is not among the declared values ({sample})", suggestion.strip())


def refuse_out_of_bounds(op: str, x: Expr, constant: Expr, written: Node) -> None:
    """Refuse `x` `op` `constant` where `x` is a column with declared bounds, beyond which the constant lies
    such that the comparison holds for no row (with <>, for every row): values are clipped to the bounds, so
    that it can only be a slip, and would be charged. `written` is the constant's node in the SQL.

    A comparison that merely holds for every row, such as age >= 0, is no slip.
    """
    domain, fixed = x.domain, constant.domain
    if not (isinstance(x, Column) and is_within_range(x) and isinstance(constant, Literal)):
        return
    if domain.kind not in (Kind.NUMBER, Kind.DATE) or fixed.kind is not domain.kind or fixed.null:
        return
    value = fixed.low
    beyond = {
        "<": value <= domain.low,
        "<=": value < domain.low,
        ">": value >= domain.high,
        ">=": value > domain.high,
    }.get(op, not domain.low <= value <= domain.high)
    if not beyond:
        return
    low, high, shown = (_end(end, domain.kind) for end in (domain.low, domain.high, value))
    every = "every row" if op == "<>" else "no row"
    raise refuse(
        written if position(written)[0] is not None else written.parent,
        f"{op} {shown} holds for {every}: the column is declared between {low} and {high}, and what lies "
        f"beyond {'counts as the bound' if domain.values is None else 'is missing'}",
    )


def _end(value: float, kind: Kind) -> str:
    """Return a number, or the day of an ordinal, as a message shows it."""
    if kind is Kind.DATE:
        return date.fromordinal(int(value)).isoformat()
    return f"{int(value)}" if value.is_integer() and abs(value) < EXACT else f"{value!r}"


def fixed_pattern(x: Expr) -> Expr:
    """Return the pattern of LIKE, which must be a text literal."""
    if not (isinstance(x, Literal) and isinstance(x.content, str)):
        raise Refusal("LIKE needs a fixed pattern, such as 'I25%'")
    return x


def is_null_literal(x: Expr) -> bool:
    """Return whether the expression is the literal NULL."""
    return isinstance(x, Literal) and x.content is None


def fixed_number(x: Expr) -> float | int | None:
    """Return the number of a literal; None for anything else, also for TRUE and FALSE."""
    if not isinstance(x, Literal) or isinstance(x.content, bool):
        return None
    return x.content if isinstance(x.content, int | float) else None


def exact_result(op: str, a: Expr, b: Expr) -> Literal | None:
    """Return the sum, difference or product of two numbers of the query, which in SQL are decimals: 0.06 +
    0.01 is 0.07, and not the sum of the two doubles; None for anything else."""
    x, y = fixed_number(a), fixed_number(b)
    if op not in _EXACT or x is None or y is None:
        return None
    exact = _EXACT[op](Fraction(repr(x)), Fraction(repr(y)))
    whole = isinstance(x, int) and isinstance(y, int)
    return Literal(int(exact) if whole else float(exact)) if abs(exact) < EXACT else None


def interval_number(node: Node) -> int | None:
    """Return the integer of an INTERVAL, of at most six digits: 3, '3', '-3', (3); None for anything else."""
    text = node.sql(dialect="duckdb").strip("()' ") if node is not None else ""
    written = re.fullmatch(r"(-?)\s*(\d{1,6})", text)
    return None if written is None else int(written[1] + written[2])


def parse_number(text: str) -> int | float | None:
    """Return the number that a text is in SQL: an integer if it has at most 18 digits and nothing else, else
    a float; None if it is no number, or too large for interval arithmetic."""
    try:
        value = int(text) if text.isdigit() and len(text) <= 18 else float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and abs(value) < HUGE else None


def only(node: Node, allowed: set[str], where: str) -> None:
    """Refuse every clause of a syntax node that is not `allowed`; `where` ends the message ("in ORDER
    BY")."""
    for name, arg in node.args.items():
        if arg and name not in allowed:
            raise refuse(
                arg if isinstance(arg, exp.Expression) else node,
                f"{name.strip('_').upper()} cannot be answered{where and ' ' + where}",
            )


def join_kind(join: exp.Join) -> str:
    """Return inner, left or right; other joins are refused."""
    side, kind, method = (str(join.args.get(name) or "").upper() for name in ("side", "kind", "method"))
    only(join, {"this", "side", "kind", "on", "using", "method"}, "in a join")
    if side == "FULL" or kind not in ("", "INNER", "OUTER", "CROSS") or method:
        advice = {"SEMI": "Write WHERE EXISTS (SELECT ...).", "ANTI": "Write WHERE NOT EXISTS (SELECT ...)."}
        raise refuse(
            join,
            f"{side or kind or method} JOIN cannot be answered",
            advice.get(kind, "Use JOIN, LEFT JOIN or RIGHT JOIN."),
        )
    return side.lower() or "inner"


# sqlglot's names of the arguments of aggregates that some rule reads; `big_int` is sqlglot's mark that a
# COUNT has a type of 64 bits, and changes no answer.
_OF_AGGREGATES = {"this", "expression", "quantile", "big_int"}


def refuse_further_arguments(node: Node) -> None:
    """Refuse an aggregate with an argument that no rule reads: MAX(x, 3) is not MAX(x)."""
    if any(arg and name not in _OF_AGGREGATES for name, arg in node.args.items()):
        raise refuse(
            node,
            f"{node.sql(dialect='duckdb')[:60]} has more arguments than can be answered",
            f"Leave out all but the first: {node.sql_name()}({node.this.sql(dialect='duckdb')[:40]}).",
        )


def named(item: Node) -> tuple[str, Node]:
    """Return the column name of a SELECT item, and the item without its AS."""
    if isinstance(item, exp.Alias):
        return item.alias, item.this
    if isinstance(item, exp.Column):
        return item.name, item
    # IGNORE: sqlglot would log a warning about APPROX_TOP_K, whose text only names the column here.
    return item.sql(dialect="duckdb", unsupported_level=ErrorLevel.IGNORE).lower()[:200], item


def by_position(node: Node, select: exp.Select) -> Node:
    """Return the SELECT item that a position (GROUP BY 1) or an alias means; any other node as it is.

    An alias comes before a column of the table with the same name, as docs/sql.md says (DuckDB: the reverse).
    """
    if isinstance(node, exp.Literal) and not node.is_string and node.name.isdigit():
        number = parse_number(node.name)
        if number is None or not 1 <= number <= len(select.expressions):
            raise refuse(node, f"there is no column {node.name[:40]} in SELECT")
        return named(select.expressions[int(number) - 1])[1]
    if isinstance(node, exp.Column) and not node.table:
        for item in select.expressions:
            if isinstance(item, exp.Alias) and item.alias.lower() == node.name.lower():
                return item.this
    return node


# Nodes with two arguments, and the operator (`operators.OPERATORS`) that each stands for.
BINARY: dict[type, str] = {
    exp.Add: "+",
    exp.Sub: "-",
    exp.Mul: "*",
    exp.Div: "/",
    exp.IntDiv: "//",
    exp.Mod: "%",
    exp.Pow: "power",
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.NullSafeEQ: "same",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.And: "and",
    exp.Or: "or",
    exp.Like: "like",
    exp.ILike: "ilike",
    exp.DPipe: "||",
    exp.Nullif: "nullif",
}
# Nodes with one argument.
UNARY: dict[type, str] = {
    exp.Not: "not",
    exp.Floor: "floor",
    exp.Ceil: "ceil",
    exp.Abs: "abs",
    exp.Sqrt: "sqrt",
    exp.Ln: "ln",
    exp.Exp: "exp",
    exp.Upper: "upper",
    exp.Lower: "lower",
    exp.Length: "length",
    exp.Sign: "sign",
    exp.Dayname: "dayname",
    exp.Monthname: "monthname",
    exp.Year: "part:year",
    exp.Month: "part:month",
    exp.Quarter: "part:quarter",
    exp.Day: "part:day",
    exp.Week: "part:week",
    exp.DayOfWeek: "part:dow",
    exp.DayOfYear: "part:doy",
    exp.DayOfMonth: "part:day",
    exp.DayOfWeekIso: "part:isodow",
    exp.WeekOfYear: "part:week",
}
# Nodes with any number of arguments.
VARIADIC: dict[type, str] = {exp.Least: "least", exp.Greatest: "greatest", exp.Coalesce: "coalesce"}
# The integer types that sqlglot calls otherwise than DuckDB: sqlglot's name, and DuckDB's.
INTEGER_TYPES = {"INT": "INTEGER", "UINT": "UINTEGER", "INT128": "HUGEINT"}
# Units of INTERVAL: the operator that shifts a date by days ("later") or by months, and how many of these the
# unit has.
INTERVALS = {
    "DAY": ("later", 1),
    "WEEK": ("later", 7),
    "MONTH": ("months", 1),
    "QUARTER": ("months", 3),
    "YEAR": ("months", 12),
}
# The arguments that every node may have, and those that some nodes may have besides. Any other argument may
# change what a node means, so that `binder` refuses it. Add one here only together with a rule that reads it.
ARGUMENTS = {"this", "expression", "expressions"}
FURTHER_ARGUMENTS: dict[type, set[str]] = {
    exp.Like: {"negate"},
    exp.ILike: {"negate"},
    exp.Div: {"typed", "safe"},
    exp.DPipe: {"safe"},
    exp.Column: {"table", "db", "catalog"},
    exp.Literal: {"is_string"},
    exp.Between: {"low", "high"},
    exp.In: {"query"},
    exp.Case: {"ifs", "default"},
    exp.If: {"true", "false"},
    exp.Cast: {"to"},
    exp.TryCast: {"to", "safe"},
    exp.Round: {"decimals"},
    exp.Trunc: {"decimals"},
    exp.Trim: {"position"},
    exp.Substring: {"start", "length"},
    exp.Concat: {"safe", "coalesce"},
    exp.TimestampTrunc: {"unit"},
    exp.DateTrunc: {"unit"},
    exp.DateDiff: {"unit", "date_part_boundary"},
    exp.WidthBucket: {"min_value", "max_value", "num_buckets"},
    exp.Least: {"ignore_nulls"},
    exp.Greatest: {"ignore_nulls"},
    exp.Replace: {"replacement"},
    exp.TimeToStr: {"format"},
}


# Finds the expression that a column's name means.
Lookup = Callable[[exp.Column], Expr]


# Comparisons by order, which texts do not have.
_ORDERED = {"<", "<=", ">", ">="}
# each comparison, and what it is with its sides exchanged
_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "=", "<>": "<>"}


class Binder:
    """Binds expressions: turns a syntax node into an expression, with the names of columns found by `lookup`.

    `special` sees every node first and returns its expression, or None to have it bound here. After
    aggregation it recognizes group keys and aggregates.
    """

    def __init__(self, lookup: Lookup, special: Callable[[Node], Expr | None] = lambda node: None) -> None:
        self.lookup, self.special = lookup, special

    def __call__(self, node: Node) -> Expr:
        # raised outside the `try`, so that the call for the function's own node reports its position
        if node is None:
            raise Refusal("an argument of a function is missing")
        try:
            expression = self.special(node)
            return self._bind(node) if expression is None else expression
        except Refusal as refusal:
            raise refuse(node, str(refusal)) from None

    def condition(self, node: Node) -> Expr:
        """Bind an expression that must be true or false."""
        bound = self(node)
        if bound.domain.kind is not Kind.BOOLEAN:
            raise refuse(node, "a condition must be true or false")
        return bound

    def _bind(self, node: Node) -> Expr:
        """Bind one construct by a table of `syntax` or a rule of `_RULES`; refuse arguments that no rule
        reads."""
        kind = type(node)
        has_rule = kind in BINARY or kind in UNARY or kind in VARIADIC or kind in _RULES
        for name, arg in node.args.items():
            if has_rule and arg and name not in ARGUMENTS and name not in FURTHER_ARGUMENTS.get(kind, ()):
                raise refuse(node, f"{kind.__name__.upper()} is known without {name.strip('_').upper()} only")
        if kind in BINARY:
            return self._binary(node, BINARY[kind])
        if kind in UNARY:
            return make(UNARY[kind], self(node.this))
        if kind in VARIADIC:
            return make(VARIADIC[kind], self(node.this), *(self(arg) for arg in node.expressions))
        rule = _RULES.get(kind)
        if rule is not None:
            return rule(self, node)
        raise refuse(node, *why_not(node))

    def _binary(self, node: Node, op: str) -> Expr:
        """Bind an operator of two arguments, with SQL's special cases for dates, texts and NULL."""
        if op in ("+", "-") and isinstance(node.expression, exp.Interval):
            return self._shift_date(self(node.this), node.expression, op)
        if op == "+" and isinstance(node.this, exp.Interval):
            return self._shift_date(self(node.expression), node.this, op)
        a, b = self(node.this), self(node.expression)
        a, b = as_date(a, b), as_date(b, a)
        if op in ("+", "-") and a.domain.kind is Kind.DATE and b.domain.kind is Kind.NUMBER:
            return make("later", a, b if op == "+" else make("-", Literal(0), b))
        if op == "-" and a.domain.kind is b.domain.kind is Kind.DATE:
            op = "days"
        if op in _MIRRORED:
            refuse_quoted_number(a, b, node.this)
            refuse_quoted_number(b, a, node.expression)
        if op in _ORDERED and Kind.TEXT in (a.domain.kind, b.domain.kind):
            raise Refusal("texts can be compared with = and <>, not by order")
        if op in ("=", "<>") and (is_null_literal(a) or is_null_literal(b)):
            raise Refusal("a comparison with NULL is never true: write IS NULL")
        if op in ("=", "<>"):
            refuse_undeclared_value(a, b, node.expression)
            refuse_undeclared_value(b, a, node.this)
        if op in _MIRRORED:
            refuse_out_of_bounds(op, a, b, node.expression)
            refuse_out_of_bounds(_MIRRORED[op], b, a, node.this)
        if op in ("like", "ilike"):
            like = make(op, a, fixed_pattern(b))
            return make("not", like) if node.args.get("negate") else like
        if op == "//" and not (a.domain.integer and b.domain.integer):
            # As in DuckDB, whose // rounds towards zero for integers only.
            op = "/"
        exact = exact_result(op, a, b)
        return make(op, a, b) if exact is None else exact

    def _shift_date(self, day: Expr, interval: exp.Interval, op: str) -> Expr:
        """Bind a date plus or minus INTERVAL n DAY, WEEK, MONTH, QUARTER or YEAR.

        `DAY (3)`, with a precision as the standard has it, is DAY.
        """
        unit = interval.args.get("unit")
        name = unit.key if isinstance(unit, exp.Day) else str(unit or "")
        operator, times = INTERVALS.get(name.upper().removesuffix("S"), ("", 0))
        n = interval_number(interval.this)
        if not operator or n is None:
            raise refuse(interval, *why_not(interval))
        return make(operator, day, Literal(times * n if op == "+" else -times * n))

    def date_add(self, node: Node) -> Expr:
        """Bind DATE_ADD(d, INTERVAL 1 MONTH)."""
        if not isinstance(node.expression, exp.Interval):
            raise refuse(node, "DATE_ADD takes an interval", "Write d + INTERVAL 1 MONTH.")
        return self._shift_date(self(node.this), node.expression, "+")

    def distinct_from(self, node: Node) -> Expr:
        """Bind IS DISTINCT FROM."""
        return make("not", self._binary(node, "same"))

    def logarithm(self, node: Node) -> Expr:
        """Bind LOG2, LOG10, LOG (of base 10) and LOG(base, x)."""
        if node.expression is None:
            return make("log10", self(node.this))
        base, x = fixed_number(self(node.this)), self(node.expression)
        if base in (2, 10):
            return make(f"log{int(base)}", x)
        if base is None or base <= 0 or base == 1:
            raise Refusal("LOG needs a fixed base above 0 other than 1")
        return make("/", make("ln", x), Literal(math.log(base)))

    def truncate_number(self, node: Node) -> Expr:
        """Bind TRUNC of a number."""
        digits = node.args.get("decimals")
        return make("trunc", self(node.this), *([] if digits is None else [self(digits)]))

    def replace(self, node: Node) -> Expr:
        """Bind REPLACE."""
        return make("replace", self(node.this), self(node.expression), self(node.args.get("replacement")))

    def strftime(self, node: Node) -> Expr:
        """Bind STRFTIME, whose two arguments DuckDB takes in either order."""
        day, layout = self(node.this), self(node.args["format"])
        return make("strftime", *((layout, day) if layout.domain.kind is Kind.DATE else (day, layout)))

    def column(self, node: Node) -> Expr:
        """Resolve the name of a column."""
        assert isinstance(node, exp.Column)
        if isinstance(node.this, exp.Star):
            raise refuse(node, "* stands for rows, which are never released", "Name the columns.")
        return self.lookup(node)

    def literal(self, node: Node) -> Expr:
        """Bind a text or a number."""
        if node.is_string:
            return Literal(node.name)
        number = parse_number(node.name)
        if number is None:
            raise refuse(node, f"{node.name[:40]!r} is not a usable number")
        return Literal(number)

    def negative(self, node: Node) -> Expr:
        """Bind a minus sign; a number with a minus sign is one literal."""
        inner = self(node.this)
        content = fixed_number(inner)
        return make("-", Literal(0), inner) if content is None else Literal(-content)

    def is_(self, node: Node) -> Expr:
        """Bind IS NULL, IS TRUE and IS FALSE."""
        if isinstance(node.expression, exp.Null):
            return make("null?", self(node.this))
        if isinstance(node.expression, exp.Boolean):
            value = make("=", self(node.this), Literal(bool(node.expression.this)))
            return make("coalesce", value, Literal(False))
        raise refuse(node, "IS is for NULL, TRUE and FALSE")

    def between(self, node: Node) -> Expr:
        """Bind BETWEEN."""
        x = self(node.this)
        low, high = (as_date(self(node.args[end]), x) for end in ("low", "high"))
        for end, written in ((low, node.args["low"]), (high, node.args["high"])):
            refuse_quoted_number(end, x, written)
        if x.domain.kind is Kind.TEXT:
            raise Refusal("texts can be compared with = and <>, not by order")
        refuse_out_of_bounds(">=", x, low, node.args["low"])
        refuse_out_of_bounds("<=", x, high, node.args["high"])
        return make("and", make(">=", x, low), make("<=", x, high))

    def in_(self, node: Node) -> Expr:
        """Bind IN with a list of values."""
        if node.args.get("query") is not None or not node.expressions:
            raise refuse(node, "a sub-query after IN can stand in WHERE only", "Or join it.")
        x = self(node.this)
        items = [as_date(self(item), x) for item in node.expressions]
        for item, written in zip(items, node.expressions, strict=True):
            refuse_quoted_number(item, x, written)
            refuse_undeclared_value(x, item, written)
            refuse_out_of_bounds("=", x, item, written)
        return make("in", x, *items)

    def case(self, node: Node) -> Expr:
        """Bind CASE WHEN condition ..., and CASE subject WHEN value ..."""
        subject = self(node.this) if node.this is not None else None
        args: list[Expr] = []
        for branch in node.args["ifs"]:
            when = self(branch.this)
            if subject is not None:
                refuse_undeclared_value(subject, when, branch.this)
                when = as_date(when, subject)
                refuse_out_of_bounds("=", subject, when, branch.this)
                when = make("=", subject, when)
            args += [when, self(branch.args["true"])]
        default = node.args.get("default")
        return make("case", *args, Literal(None) if default is None else self(default))

    def if_(self, node: Node) -> Expr:
        """Bind IF(condition, value, other)."""
        other = node.args.get("false")
        return make(
            "case", self(node.this), self(node.args["true"]), Literal(None) if other is None else self(other)
        )

    def cast(self, node: Node) -> Expr:
        """Bind CAST and TRY_CAST, which mean the same here: a value that does not fit becomes NULL."""
        target = node.args["to"].this
        name = str(getattr(target, "value", target)).upper()
        inner = self(node.this)
        name = INTEGER_TYPES.get(name, name)
        if name in INTEGERS:
            return make(f"whole:{name}", inner)
        if name == "DECIMAL":
            return self._decimal(node, inner)
        if name in ("DOUBLE", "FLOAT"):
            return make("number" if name == "DOUBLE" else "float", inner)
        if name == "DATE":
            day = as_date(inner, Column("", _SOME_DATE))
            if day.domain.kind is Kind.DATE:
                return day
        if (name, inner.domain.kind) in (
            ("BOOLEAN", Kind.BOOLEAN),
            ("TEXT", Kind.TEXT),
            ("VARCHAR", Kind.TEXT),
        ):
            return inner
        raise refuse(
            node,
            f"a {inner.domain.kind} cannot be cast to {name}",
            "Casts to INTEGER, DOUBLE, and of '2020-01-31' to DATE work.",
        )

    def _decimal(self, node: Node, inner: Expr) -> Expr:
        """Bind a cast to DECIMAL(width, scale); as in DuckDB, plain DECIMAL is DECIMAL(18, 3)."""
        sizes = [parse_number(part.name) for part in node.args["to"].expressions if part.name.isdigit()]
        width, scale = sizes if len(sizes) == 2 else (sizes[0], 0) if sizes else (18, 3)
        if width is None or scale is None or not (1 <= width <= 38 and 0 <= scale <= width):
            raise refuse(node, "DECIMAL has 1 to 38 digits, of which some may be decimals")
        return make("decimal", inner, Literal(width), Literal(scale))

    def round_(self, node: Node) -> Expr:
        """Bind ROUND."""
        digits = node.args.get("decimals")
        return make("round", self(node.this), *([] if digits is None else [self(digits)]))

    def trim(self, node: Node) -> Expr:
        """Bind TRIM of blanks."""
        if node.expression is not None or node.args.get("position"):
            raise refuse(node, "TRIM removes blanks from both ends, and nothing else")
        return make("trim", self(node.this))

    def substring(self, node: Node) -> Expr:
        """Bind SUBSTRING."""
        limits = [node.args[name] for name in ("start", "length") if node.args.get(name) is not None]
        return make("substring", self(node.this), *(self(arg) for arg in limits))

    def concat(self, node: Node) -> Expr:
        """Bind CONCAT, which skips NULL, where || would be NULL."""
        parts = [self(arg) for arg in node.expressions]
        return make("||", *(make("coalesce", p, Literal("")) if p.domain.nullable else p for p in parts))

    def extract(self, node: Node) -> Expr:
        """Bind EXTRACT of a part of a date."""
        part = str(node.this.name).lower()
        part = {"dayofweek": "dow", "dayofyear": "doy", "dayofmonth": "day"}.get(part, part)
        return self._date_function(f"part:{part}", f"EXTRACT({part.upper()})", node, node.expression)

    def truncate_date(self, node: Node) -> Expr:
        """Bind DATE_TRUNC."""
        unit = str(node.args["unit"].name).lower()
        return self._date_function(f"start:{unit}", f"DATE_TRUNC to {unit.upper()}", node, node.this)

    def _date_function(self, op: str, what: str, node: Node, argument: Node) -> Expr:
        """Bind a function of one date, or refuse it by its name (`what`)."""
        if op not in OPERATORS:
            raise refuse(
                node,
                f"{what} is not known",
                "Known: YEAR, QUARTER, MONTH, WEEK, DAY, and DOW, ISODOW, DOY to extract.",
            )
        return make(op, self(argument))

    def date_difference(self, node: Node) -> Expr:
        """Bind DATEDIFF in days, or in months or years of the calendar that begin between the two dates."""
        unit = node.args.get("unit")
        name = "day" if unit is None else str(unit.name).lower()
        # sqlglot has the end of DATEDIFF(unit, start, end) as `this`, and the start as `expression`
        a, b = self(node.this), self(node.expression)
        a, b = as_date(a, b), as_date(b, a)
        if name == "day":
            return make("days", a, b)
        if name not in ("month", "year"):
            raise refuse(
                node, "differences of dates are in days, months or years", "Write DATEDIFF('day', a, b)."
            )
        years = make("-", make("part:year", a), make("part:year", b))
        if name == "year":
            return years
        return make(
            "+", make("*", years, Literal(12)), make("-", make("part:month", a), make("part:month", b))
        )

    def left(self, node: Node) -> Expr:
        """Bind LEFT(text, n)."""
        return make("substring", self(node.this), Literal(1), self(node.expression))

    def starts_with(self, node: Node) -> Expr:
        """Bind STARTS_WITH."""
        text, start = self(node.this), self(node.expression)
        if not (isinstance(start, Literal) and isinstance(start.content, str)):
            raise Refusal("STARTS_WITH needs a fixed text")
        return make("=", make("substring", text, Literal(1), Literal(len(start.content))), start)

    def width_bucket(self, node: Node) -> Expr:
        """Bind WIDTH_BUCKET(x, low, high, n) as in the SQL standard: 0 below low, 1 to n inside, n + 1 from
        high on."""
        low, high, n = (fixed_number(self(node.args[a])) for a in ("min_value", "max_value", "num_buckets"))
        if low is None or high is None or n is None or not low < high or not 1 <= n <= 100_000 or n != int(n):
            raise refuse(node, "WIDTH_BUCKET needs fixed numbers: low below high, and 1 to 100,000 buckets")
        x = self(node.this)
        buckets = make("/", make("*", make("-", x, Literal(low)), Literal(n)), Literal(high - low))
        return make("clamp", make("+", make("floor", buckets), Literal(1)), Literal(0), Literal(n + 1))

    def anonymous(self, node: Node) -> Expr:
        """Bind a function that sqlglot has no node for, by its name."""
        name, args = str(node.this).lower(), node.expressions
        if name in ("clamp", "clip") and len(args) == 3:
            return make("clamp", *(self(arg) for arg in args))
        if name == "mod" and len(args) == 2:
            return make("%", self(args[0]), self(args[1]))
        advice = f"{did_you_mean(name, FUNCTIONS).strip()} See docs/sql.md for the list.".strip()
        raise refuse(node, f"the function {str(node.this)[:60]!r} is not known", advice)


# The domain of any date: `as_date` reads a text literal as a date if it is compared with one.
_SOME_DATE = Literal(date(2000, 1, 1)).domain
# The rules: how to bind constructs that are not just one operator applied to the bound arguments.
_RULES: dict[type, Callable[[Binder, Any], Expr]] = {
    exp.Column: Binder.column,
    exp.Literal: Binder.literal,
    exp.Boolean: lambda self, node: Literal(bool(node.this)),
    exp.Null: lambda self, node: Literal(None),
    exp.Paren: lambda self, node: self(node.this),
    exp.Neg: Binder.negative,
    exp.Is: Binder.is_,
    exp.Between: Binder.between,
    exp.In: Binder.in_,
    exp.Case: Binder.case,
    exp.If: Binder.if_,
    exp.Cast: Binder.cast,
    exp.TryCast: Binder.cast,
    exp.Round: Binder.round_,
    exp.Trim: Binder.trim,
    exp.Substring: Binder.substring,
    exp.Concat: Binder.concat,
    exp.Extract: Binder.extract,
    exp.TimestampTrunc: Binder.truncate_date,
    exp.DateTrunc: Binder.truncate_date,
    exp.DateDiff: Binder.date_difference,
    exp.Left: Binder.left,
    exp.StartsWith: Binder.starts_with,
    exp.WidthBucket: Binder.width_bucket,
    exp.DateAdd: Binder.date_add,
    exp.NullSafeNEQ: Binder.distinct_from,
    exp.Log: Binder.logarithm,
    exp.Trunc: Binder.truncate_number,
    exp.Replace: Binder.replace,
    exp.TimeToStr: Binder.strftime,
    exp.Anonymous: Binder.anonymous,
}
