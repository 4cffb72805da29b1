"""Translates the analyst's syntax tree into our own expressions, one known construct at a time; what has no
rule here is refused by name."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import date
from typing import Any

from sqlglot import exp

from .._require import did_you_mean
from ..tables.semantics import INTEGERS
from .advice import FUNCTIONS, why_not
from .domain import Kind
from .errors import Node, Refusal, position, refuse
from .nodes import Column, Expr, Literal, make
from .operators import OPERATORS

Lookup = Callable[[exp.Column], Expr]


_BINARY: dict[type, str] = {
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
_UNARY: dict[type, str] = {
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
_MANY: dict[type, str] = {exp.Least: "least", exp.Greatest: "greatest", exp.Coalesce: "coalesce"}
# sqlglot's names of integer types that are not DuckDB's.
_RENAMED = {"INT": "INTEGER", "UINT": "UINTEGER", "INT128": "HUGEINT"}
_MOVES = {
    "DAY": ("later", 1),
    "WEEK": ("later", 7),
    "MONTH": ("months", 1),
    "QUARTER": ("months", 3),
    "YEAR": ("months", 12),
}
_ORDERED = {"<", "<=", ">", ">="}
_NUMBER = re.compile(r"[+-]?\d{1,15}(\.\d{1,15})?")


class Binder:
    """Binds expressions in a scope.

    `special` sees every node first: after aggregation it recognises keys and aggregates.
    """

    def __init__(self, lookup: Lookup, special: Callable[[Node], Expr | None] = lambda node: None) -> None:
        self.lookup, self.special = lookup, special

    def __call__(self, node: Node) -> Expr:
        if node is None:
            raise Refusal("a function lacks an argument")
        try:
            expression = self.special(node)
            return self._bind(node) if expression is None else expression
        except Refusal as refusal:
            raise refuse(node, str(refusal)) from None

    def condition(self, node: Node) -> Expr:
        bound = self(node)
        if bound.domain.kind is not Kind.BOOLEAN:
            raise refuse(node, "a condition must be true or false")
        return bound

    def _bind(self, node: Node) -> Expr:
        kind = type(node)
        has_rule = kind in _BINARY or kind in _UNARY or kind in _MANY or kind in _RULES
        for name, arg in node.args.items():
            if has_rule and arg and name not in _ARGUMENTS and name not in _FURTHER.get(kind, ()):
                raise refuse(node, f"{kind.__name__.upper()} is known without {name.strip('_').upper()} only")
        if kind in _BINARY:
            return self._binary(node, _BINARY[kind])
        if kind in _UNARY:
            return make(_UNARY[kind], self(node.this))
        if kind in _MANY:
            return make(_MANY[kind], self(node.this), *(self(arg) for arg in node.expressions))
        rule = _RULES.get(kind)
        if rule is not None:
            return rule(self, node)
        raise refuse(node, *why_not(node))

    def _binary(self, node: Node, op: str) -> Expr:
        if op in ("+", "-") and isinstance(node.expression, exp.Interval):
            return self._shift_date(self(node.this), node.expression, op)
        if op == "+" and isinstance(node.this, exp.Interval):
            return self._shift_date(self(node.expression), node.this, op)
        a, b = self(node.this), self(node.expression)
        a, b = _as_date(a, b), _as_date(b, a)
        if op in ("+", "-") and a.domain.kind is Kind.DATE and b.domain.kind is Kind.NUMBER:
            return make("later", a, b if op == "+" else make("-", Literal(0), b))
        if op == "-" and a.domain.kind is b.domain.kind is Kind.DATE:
            op = "days"
        if op in _ORDERED or op in ("=", "<>"):
            _refuse_quoted_number(a, b, node.this)
            _refuse_quoted_number(b, a, node.expression)
        if op in _ORDERED and Kind.TEXT in (a.domain.kind, b.domain.kind):
            raise Refusal("texts can be compared with = and <>, not by order")
        if op in ("=", "<>") and (_is_null(a) or _is_null(b)):
            raise Refusal("a comparison with NULL is never true: write IS NULL")
        if op in ("=", "<>"):
            _refuse_undeclared_value(a, b, node.expression)
            _refuse_undeclared_value(b, a, node.this)
        if op in ("like", "ilike"):
            like = make(op, a, _pattern(b))
            return make("not", like) if node.args.get("negate") else like
        if op == "//" and not (a.domain.integer and b.domain.integer):
            # as in DuckDB, where only integers are cut off
            op = "/"
        return make(op, a, b)

    def _shift_date(self, day: Expr, interval: exp.Interval, op: str) -> Expr:
        """Return a date and INTERVAL n DAY, WEEK, MONTH, QUARTER or YEAR.

        `DAY (3)`, with a precision as the standard has it, is DAY.
        """
        unit = interval.args.get("unit")
        name = unit.key if isinstance(unit, exp.Day) else str(unit or "")
        move, times = _MOVES.get(name.upper().removesuffix("S"), ("", 0))
        n = _interval_number(interval.this)
        if not move or n is None:
            raise refuse(interval, *why_not(interval))
        return make(move, day, Literal(times * n if op == "+" else -times * n))

    def add(self, node: Node) -> Expr:
        """Bind DATE_ADD(d, INTERVAL 1 MONTH)."""
        if not isinstance(node.expression, exp.Interval):
            raise refuse(node, "DATE_ADD takes an interval", "Write d + INTERVAL 1 MONTH.")
        return self._shift_date(self(node.this), node.expression, "+")

    def distinct_from(self, node: Node) -> Expr:
        return make("not", self._binary(node, "same"))

    def logarithm(self, node: Node) -> Expr:
        """Bind LOG2, LOG10, LOG (of base 10) and LOG(base, x)."""
        if node.expression is None:
            return make("log10", self(node.this))
        base, x = _literal_content(self(node.this)), self(node.expression)
        if base in (2, 10):
            return make(f"log{base}", x)
        if base is None or base <= 0 or base == 1:
            raise Refusal("LOG needs a fixed base above 0 other than 1")
        return make("/", make("ln", x), Literal(math.log(base)))

    def truncate_number(self, node: Node) -> Expr:
        digits = node.args.get("decimals")
        return make("trunc", self(node.this), *([] if digits is None else [self(digits)]))

    def replace(self, node: Node) -> Expr:
        return make("replace", self(node.this), self(node.expression), self(node.args.get("replacement")))

    def strftime(self, node: Node) -> Expr:
        """Bind STRFTIME: the engine takes its two arguments in either order."""
        day, layout = self(node.this), self(node.args["format"])
        return make("strftime", *((layout, day) if layout.domain.kind is Kind.DATE else (day, layout)))

    def column(self, node: Node) -> Expr:
        assert isinstance(node, exp.Column)
        if isinstance(node.this, exp.Star):
            raise refuse(node, "* stands for rows, which never leave", "Name the columns.")
        return self.lookup(node)

    def literal(self, node: Node) -> Expr:
        if node.is_string:
            return Literal(node.name)
        number = _number(node.name)
        if number is None:
            raise refuse(node, f"{node.name[:40]!r} is not a usable number")
        return Literal(number)

    def negative(self, node: Node) -> Expr:
        inner = self(node.this)
        if (
            isinstance(inner, Literal)
            and isinstance(inner.content, int | float)
            and not isinstance(inner.content, bool)
        ):
            return Literal(-inner.content)
        return make("-", Literal(0), inner)

    def is_(self, node: Node) -> Expr:
        if isinstance(node.expression, exp.Null):
            return make("null?", self(node.this))
        if isinstance(node.expression, exp.Boolean):
            value = make("=", self(node.this), Literal(bool(node.expression.this)))
            return make("coalesce", value, Literal(False))
        raise refuse(node, "IS is for NULL, TRUE and FALSE")

    def between(self, node: Node) -> Expr:
        x = self(node.this)
        low, high = (_as_date(self(node.args[end]), x) for end in ("low", "high"))
        for end, written in ((low, node.args["low"]), (high, node.args["high"])):
            _refuse_quoted_number(end, x, written)
        if x.domain.kind is Kind.TEXT:
            raise Refusal("texts can be compared with = and <>, not by order")
        return make("and", make(">=", x, low), make("<=", x, high))

    def in_(self, node: Node) -> Expr:
        if node.args.get("query") is not None or not node.expressions:
            raise refuse(node, "a sub-query after IN can stand in WHERE only", "Or join it.")
        x = self(node.this)
        items = [_as_date(self(item), x) for item in node.expressions]
        for item, written in zip(items, node.expressions, strict=True):
            _refuse_quoted_number(item, x, written)
            _refuse_undeclared_value(x, item, written)
        return make("in", x, *items)

    def case(self, node: Node) -> Expr:
        subject = self(node.this) if node.this is not None else None
        args: list[Expr] = []
        for branch in node.args["ifs"]:
            when = self(branch.this)
            if subject is not None:
                _refuse_undeclared_value(subject, when, branch.this)
            args += [
                when if subject is None else make("=", subject, _as_date(when, subject)),
                self(branch.args["true"]),
            ]
        default = node.args.get("default")
        return make("case", *args, Literal(None) if default is None else self(default))

    def if_(self, node: Node) -> Expr:
        other = node.args.get("false")
        return make(
            "case", self(node.this), self(node.args["true"]), Literal(None) if other is None else self(other)
        )

    def cast(self, node: Node) -> Expr:
        target = node.args["to"].this
        name = str(getattr(target, "value", target)).upper()
        inner = self(node.this)
        name = _RENAMED.get(name, name)
        if name in INTEGERS:
            return make(f"whole:{name}", inner)
        if name == "DECIMAL":
            return self._decimal(node, inner)
        if name in ("DOUBLE", "FLOAT"):
            return make("number" if name == "DOUBLE" else "float", inner)
        if name == "DATE":
            as_date = _as_date(inner, Column("", _SOME_DATE))
            if as_date.domain.kind is Kind.DATE:
                return as_date
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
        """Bind a cast to DECIMAL, which is DECIMAL(18, 3), as in DuckDB."""
        sizes = [int(part.name) for part in node.args["to"].expressions if part.name.isdigit()]
        width, scale = sizes if len(sizes) == 2 else (sizes[0], 0) if sizes else (18, 3)
        if not (1 <= width <= 38 and 0 <= scale <= width):
            raise refuse(node, "DECIMAL has 1 to 38 digits, of which some may be decimals")
        return make("decimal", inner, Literal(width), Literal(scale))

    def round_(self, node: Node) -> Expr:
        digits = node.args.get("decimals")
        return make("round", self(node.this), *([] if digits is None else [self(digits)]))

    def trim(self, node: Node) -> Expr:
        if node.expression is not None or node.args.get("position"):
            raise refuse(node, "TRIM takes blanks off both ends, nothing else")
        return make("trim", self(node.this))

    def substring(self, node: Node) -> Expr:
        rest = [node.args[name] for name in ("start", "length") if node.args.get(name) is not None]
        return make("substring", self(node.this), *(self(arg) for arg in rest))

    def concat(self, node: Node) -> Expr:
        """Bind CONCAT, which skips what is missing, where || does not."""
        parts = [self(arg) for arg in node.expressions]
        return make("||", *(make("coalesce", p, Literal("")) if p.domain.nullable else p for p in parts))

    def extract(self, node: Node) -> Expr:
        part = str(node.this.name).lower()
        part = {"dayofweek": "dow", "dayofyear": "doy", "dayofmonth": "day"}.get(part, part)
        return self._call(f"part:{part}", f"EXTRACT({part.upper()})", node, node.expression)

    def truncate(self, node: Node) -> Expr:
        unit = str(node.args["unit"].name).lower()
        return self._call(f"start:{unit}", f"DATE_TRUNC to {unit.upper()}", node, node.this)

    def _call(self, op: str, what: str, node: Node, argument: Node) -> Expr:
        if op not in OPERATORS:
            raise refuse(
                node,
                f"{what} is not known",
                "Known: YEAR, QUARTER, MONTH, WEEK, DAY, and DOW, ISODOW, DOY to extract.",
            )
        return make(op, self(argument))

    def days(self, node: Node) -> Expr:
        unit = node.args.get("unit")
        name = "day" if unit is None else str(unit.name).lower()
        a, b = self(node.this), self(node.expression)
        a, b = _as_date(a, b), _as_date(b, a)
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
        return make("substring", self(node.this), Literal(1), self(node.expression))

    def starts(self, node: Node) -> Expr:
        text, start = self(node.this), self(node.expression)
        if not (isinstance(start, Literal) and isinstance(start.content, str)):
            raise Refusal("STARTS_WITH needs a fixed text")
        return make("=", make("substring", text, Literal(1), Literal(len(start.content))), start)

    def bucket(self, node: Node) -> Expr:
        """Bind WIDTH_BUCKET(x, low, high, n): 0 below, 1 to n inside, n + 1 from high on, as the SQL standard
        has it."""
        low, high, n = (
            _literal_content(self(node.args[a])) for a in ("min_value", "max_value", "num_buckets")
        )
        if low is None or high is None or n is None or not low < high or not 1 <= n <= 100_000 or n != int(n):
            raise refuse(node, "WIDTH_BUCKET needs fixed numbers: low below high, and at least one bucket")
        x = self(node.this)
        share = make("/", make("*", make("-", x, Literal(low)), Literal(n)), Literal(high - low))
        return make("clamp", make("+", make("floor", share), Literal(1)), Literal(0), Literal(n + 1))

    def named(self, node: Node) -> Expr:
        name, args = str(node.this).lower(), node.expressions
        if name in ("clamp", "clip") and len(args) == 3:
            return make("clamp", *(self(arg) for arg in args))
        if name == "mod" and len(args) == 2:
            return make("%", self(args[0]), self(args[1]))
        advice = f"{did_you_mean(name, FUNCTIONS).strip()} See docs/sql.md for the list.".strip()
        raise refuse(node, f"the function {str(node.this)[:60]!r} is not known", advice)


# how many values a message lists
_SHOWN = 12
# What a node of the syntax tree may hold. Anything else changes what it means: a part that no rule reads must
# be refused, not skipped.
_ARGUMENTS = {"this", "expression", "expressions"}
_FURTHER: dict[type, set[str]] = {
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
_SOME_DATE = Literal(date(2000, 1, 1)).domain
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
    exp.TimestampTrunc: Binder.truncate,
    exp.DateTrunc: Binder.truncate,
    exp.DateDiff: Binder.days,
    exp.Left: Binder.left,
    exp.StartsWith: Binder.starts,
    exp.WidthBucket: Binder.bucket,
    exp.DateAdd: Binder.add,
    exp.NullSafeNEQ: Binder.distinct_from,
    exp.Log: Binder.logarithm,
    exp.Trunc: Binder.truncate_number,
    exp.Replace: Binder.replace,
    exp.TimeToStr: Binder.strftime,
    exp.Anonymous: Binder.named,
}


def _as_date(x: Expr, other: Expr) -> Expr:
    """Turn a text literal beside a date into a date."""
    if other.domain.kind is not Kind.DATE or not (isinstance(x, Literal) and isinstance(x.content, str)):
        return x
    try:
        return Literal(date.fromisoformat(x.content.strip()[:10]))
    except ValueError:
        raise Refusal(f"{x.content[:40]!r} is not a day such as '2020-01-31'") from None


def _refuse_quoted_number(constant: Expr, x: Expr, written: Node) -> None:
    """Refuse a text where a number is compared with it: 40, not '40'."""
    text = isinstance(constant, Literal) and isinstance(constant.content, str)
    if not text or x.domain.kind is not Kind.NUMBER:
        return
    assert isinstance(constant, Literal)
    what = "this"
    for side in (written.parent.this, written.parent.args.get("expression")):
        what = side.name if isinstance(side, exp.Column) else what
    shown = constant.content.strip() if _NUMBER.fullmatch(constant.content.strip()) else "40"
    raise refuse(
        written.parent,
        f"{what} is a number, and {constant.content[:40]!r} is a text",
        f"Write numbers without quotes: {shown}, not '{shown}'.",
    )


def _refuse_undeclared_value(x: Expr, constant: Expr, written: Node) -> None:
    """Refuse a comparison with a text or number that is declared to be none of the column's values: it is a
    typing error, and would be paid for."""
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
    sample = ", ".join(repr(value) for value in values[:_SHOWN]) + (", ..." if len(values) > _SHOWN else "")
    near = did_you_mean(str(constant.content), values) if x.domain.kind is Kind.TEXT else ""
    at = written if position(written)[0] is not None else written.parent
    raise refuse(at, f"{constant.content!r} is not among the declared values ({sample})", near.strip())


def _pattern(x: Expr) -> Expr:
    if not (isinstance(x, Literal) and isinstance(x.content, str)):
        raise Refusal("LIKE needs a fixed pattern, such as 'I25%'")
    return x


def _is_null(x: Expr) -> bool:
    return isinstance(x, Literal) and x.content is None


def _literal_content(x: Expr) -> float | int | None:
    ok = isinstance(x, Literal) and isinstance(x.content, int | float) and not isinstance(x.content, bool)
    return x.content if ok and isinstance(x, Literal) else None


def _interval_number(node: Node) -> int | None:
    """Return the whole number in an interval: 3, '3', '-3', (3)."""
    text = node.sql(dialect="duckdb").strip("()' ") if node is not None else ""
    return int(text) if re.fullmatch(r"-?\s*\d{1,6}", text) else None


def _number(text: str) -> int | float | None:
    try:
        value = int(text) if text.isdigit() and len(text) <= 18 else float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and abs(value) < 1e150 else None
