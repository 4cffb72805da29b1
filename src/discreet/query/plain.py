"""Checks SQL on a table that needs no protection (a synthetic copy), sent by somebody who is not trusted: it
must be one SELECT over that table, and may reach no other table, file, setting or user of the engine.

Tables and functions are allowed by list: whatever is on neither list is refused.
"""

from __future__ import annotations

import re

from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.scope import traverse_scope

from .errors import QueryError
from .parse import deep_nesting_refused, parse

# Prefixes of the names of an engine's own views and functions: a name in WITH may not begin with them.
_ENGINE = re.compile(r"(duckdb|pg|sqlite|pragma|information_schema|__)", re.IGNORECASE)
# A name in WITH is also no path of a file.
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_]*")

# sqlglot's classes of the functions that are allowed. Each depends on its arguments alone: none reads the
# server, its settings, files, clock or users. A function that does may never be added.
_FUNCTION_NAMES = """
Abs Acos Acosh And AnyValue ApproxDistinct ApproxQuantile Array ArrayAgg ArrayConcat ArrayContains ArraySize
Asin Asinh Atan Atan2 Atanh Avg BitwiseAndAgg BitwiseOrAgg BitwiseXorAgg Case Cast Cbrt Ceil Chr Coalesce
Concat ConcatWs Contains Corr Cos Cosh Cot Count CountIf CovarPop CovarSamp CumeDist DPipe Date DateAdd
DateDiff DateSub DateTrunc Day DayOfMonth DayOfWeek DayOfWeekIso DayOfYear Degrees DenseRank EndsWith Exists
Exp Extract First FirstValue Floor Greatest GroupConcat Hour If Initcap IsInf IsNan Kurtosis Lag Last
LastDay LastValue Lead Least Left Length Ln Log LogicalAnd LogicalOr Lower MD5 Max Median Min Minute Mode
Month Monthname Not Nvl2 NthValue Ntile Nullif Or ParameterizedAgg PercentRank PercentileCont PercentileDisc
Pi Pow Quantile Quarter Radians Rank RegexpExtract RegexpILike RegexpLike RegexpReplace Replace Reverse
Right Round RowNumber SafeDivide Second Sign Sin Sinh Skewness SplitPart Sqrt StartsWith Stddev StddevPop
StddevSamp StrPosition StrToDate StrToTime Substring Sum Tan Tanh TimestampTrunc ToDays Trim Trunc TryCast
TsOrDsToDate Upper Variance VariancePop Week WeekOfYear WithinGroup Xor Year
"""
_FUNCTIONS = frozenset(_FUNCTION_NAMES.split())
# Words without brackets that an engine evaluates as functions unless a column has this name.
_WORDS = ("user", "current_user", "session_user", "current_role", "current_catalog", "current_schema",
          "current_date", "current_time", "current_timestamp", "localtime", "localtimestamp")  # fmt: skip


@deep_nesting_refused()
def plain_select(text: str, table: str) -> str:
    """Return the text as one checked SELECT over `table` and the tables that it defines in WITH; refuse a
    text that names any other table, or a function that is not allowed.

    The SELECT is written anew from the syntax tree that was checked: if the engine got the text itself, it
    might parse it otherwise than the parser. A name of WITH is allowed where it is in scope, and nowhere
    else.

    >>> plain_select("select count(*) from health -- all", "health")
    'SELECT COUNT(*) FROM health'
    """
    statement = parse(text)
    _check_names(statement, table)
    for node in statement.find_all(exp.Func, exp.Column, exp.Parameter, exp.SessionParameter):
        if isinstance(node, exp.Column):
            allowed = not _is_pseudo_column(node)
        else:
            # parameters are never among the functions
            allowed = type(node).__name__ in _FUNCTIONS
        if not allowed:
            # sqlglot has no class for an Anonymous function, only its name
            has_name = isinstance(node, exp.Column | exp.Anonymous)
            function = node.name if has_name else type(node).__name__
            raise QueryError(
                f"the function {function[:40]!r} is not known here: it could tell about the server. Nothing "
                f"was read. Download the copy, and ask it with an engine of your own."
            )
    # Without comments: not every version of sqlglot changes a "*/" in a comment, which would end it early, so
    # that the engine would run the remainder unchecked.
    return statement.sql(dialect="duckdb", comments=False)


def _is_pseudo_column(column: exp.Column) -> bool:
    """Return whether an engine would evaluate a name as a function, unless a column is called so."""
    return not column.table and not column.this.args.get("quoted") and column.name.lower() in _WORDS


def _check_names(statement: exp.Select, table: str) -> None:
    """Refuse a table in FROM unless it is `table`, or a name of WITH that is in scope there."""
    for cte in statement.find_all(exp.CTE):
        if not _PLAIN.fullmatch(cte.alias) or _ENGINE.match(cte.alias):
            raise QueryError(
                f"{cte.alias[:40]!r} in WITH could be a view of the engine. Nothing was read. Name "
                f"it otherwise."
            )
    try:
        scopes = traverse_scope(statement)
    except (SqlglotError, RecursionError):
        raise QueryError("the names in FROM cannot be resolved. Nothing was read.") from None
    # the nodes of allowed tables; one that no scope lists is refused, too
    resolved = set()
    for scope in scopes:
        for node in scope.tables:
            plain = isinstance(node.this, exp.Identifier) and not node.db and not node.catalog
            if plain and (node.name in scope.cte_sources or node.name.lower() == table.lower()):
                resolved.add(id(node))
    if any(id(node) not in resolved for node in statement.find_all(exp.Table)):
        raise QueryError(
            f"this asks the copy of {table!r} only, and names something else in FROM. Nothing was read."
        )
