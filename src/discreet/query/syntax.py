"""Lists SQL syntax: which operator a node of sqlglot's syntax tree stands for, and which arguments a node may
have.

To add an operator whose arguments are all expressions, list it here and in `operators`; one with other
arguments needs a rule in `binder`.
"""

from __future__ import annotations

from sqlglot import exp

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
