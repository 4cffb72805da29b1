"""Parses text to one SELECT statement, or refuses it with the line and column of the fault.

Nothing is decided about privacy here.

Says why a construct that people do write is not answered, and what to write instead.

Adds a hint to a refusal where a query writes a name, a text or a decimal as another language does: a name
with blanks and without double quotes, a name in single quotes or backticks, 0,5 for 0.5.

The hint follows from the text of the query and the declared names alone, never from data.

Checks SQL on a table that needs no protection (a synthetic copy), sent by somebody who is not trusted: it
must be one SELECT over that table, and may reach no other table, file, setting or user of the engine.

Tables and functions are allowed by list: whatever is on neither list is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.scope import traverse_scope

from .._public import Public
from .._require import did_you_mean
from .._text import is_text
from ..core.errors import Node, QueryError, refuse

# Functions whose result changes from run to run.
_CHANGING = (exp.Rand, exp.CurrentTimestamp, exp.CurrentDate, exp.CurrentTime, exp.CurrentDatetime, exp.Uuid)
_AGGREGATES = (
    "After SELECT, HAVING and ORDER BY: COUNT, SUM, AVG, VARIANCE, STDDEV, COVAR_POP, CORR, MEDIAN, "
    "QUANTILE_CONT, MIN, MAX, MODE, APPROX_TOP_K. Of one "
    "person's rows, in a sub-query with GROUP BY the unit: COUNT, SUM, AVG, MIN, MAX."
)
# Names that are suggested for a misspelt function.
FUNCTIONS = (
    "COUNT",
    "SUM",
    "AVG",
    "VARIANCE",
    "VAR_POP",
    "VAR_SAMP",
    "STDDEV",
    "STDDEV_POP",
    "STDDEV_SAMP",
    "MEDIAN",
    "QUANTILE_CONT",
    "MIN",
    "MAX",
    "MODE",
    "APPROX_TOP_K",
    "FLOOR",
    "CEIL",
    "ABS",
    "SQRT",
    "LN",
    "EXP",
    "POWER",
    "ROUND",
    "MOD",
    "LEAST",
    "GREATEST",
    "COALESCE",
    "NULLIF",
    "CLAMP",
    "WIDTH_BUCKET",
    "UPPER",
    "LOWER",
    "LENGTH",
    "TRIM",
    "SUBSTRING",
    "LEFT",
    "CONCAT",
    "STARTS_WITH",
    "YEAR",
    "MONTH",
    "QUARTER",
    "WEEK",
    "DAY",
    "EXTRACT",
    "DATE_TRUNC",
    "DATEDIFF",
    "CAST",
    "CASE",
    "IF",
)
_LEVELS = (
    "Ask for counts with session.sql or session.workload([...]), which answer all levels together; or "
    "ask for each level by itself: discreet.query.consistent then makes them add up, at no cost."
)
_DATES = (
    "Write DATE_TRUNC('month', d), which makes a group of every month, or EXTRACT(MONTH FROM d), "
    "EXTRACT(ISODOW FROM d)."
)
_PATTERNS = "Write LIKE 'I25%', SUBSTRING(x, 1, 3), or CASE with fixed results."
_ADVICE: dict[type, str] = {
    exp.ToChar: _DATES,
    exp.Interval: "A fixed whole number of days, weeks, months, quarters or years can be added: "
    "d + INTERVAL 30 DAY, d + INTERVAL 1 MONTH.",
    exp.RegexpLike: _PATTERNS,
    exp.SplitPart: _PATTERNS,
    exp.StrPosition: _PATTERNS,
    exp.Tuple: "To count combinations join them as texts: COUNT(DISTINCT a || '/' || b).",
    exp.IgnoreNulls: _AGGREGATES,
}


def why_not(node: Node) -> tuple[str, str]:
    """Return the reason why the construct at this node is refused, and what to write instead."""
    if isinstance(node, exp.Window):
        return (
            "window functions return one result per row",
            "Aggregate with GROUP BY instead; for shares of a total ask for the groups and for the total.",
        )
    if isinstance(node, exp.Rollup | exp.Cube | exp.GroupingSets):
        return "ROLLUP, CUBE and GROUPING SETS are several questions in one", _LEVELS
    if isinstance(node, exp.AggFunc):
        # sqlglot has one node for both
        name = "STRING_AGG" if isinstance(node, exp.GroupConcat) else node.sql_name()
        return f"{name} cannot be answered here", _AGGREGATES
    if isinstance(node, _CHANGING):
        return (
            "a function that changes from run to run cannot be priced or stored",
            "Write a fixed date or number.",
        )
    if isinstance(node, exp.Query | exp.Subquery | exp.Exists):
        return (
            "a query inside an expression cannot be answered",
            "EXISTS (SELECT ...) and x IN (SELECT ...) can stand in WHERE. For a number, such as an average, "
            "ask two questions, and write the first answer into the second.",
        )
    if isinstance(node, exp.Star):
        return "* stands for rows, which are never released", "Name an aggregate, such as COUNT(*)."
    return (
        f"{_function_name(node)} is not one of the constructs that can be answered privately",
        _ADVICE.get(type(node), "See docs/sql.md for the list."),
    )


def _function_name(node: Node) -> str:
    """Return the function's name as it is written in SQL, else the name of its kind of syntax node."""
    text: str = node.sql(dialect="duckdb")
    return (
        text.split("(")[0][:40].upper()
        if "(" in text and text.split("(")[0].isidentifier()
        else str(node.key).upper()
    )


# The longest query that is parsed, in characters. It bounds the time of planning. Not tuned.
LONGEST = 20_000
# The deepest query that is parsed, in levels of nesting as `_depth` estimates them: parser and planner call
# themselves at every level. Not tuned.
DEEPEST = 60


def several_counts(text: object) -> bool:
    """Return whether a statement may ask for several counts or groupings. It only looks for words, before
    anything is parsed, so that the answer may be True for a statement with a single count."""
    if not isinstance(text, str):
        return False
    words = text.upper()
    return words.count("COUNT") > 1 or any(word in words for word in ("CUBE", "ROLLUP", "GROUPING"))


def parse(text: str) -> exp.Select:
    """Return the one SELECT statement that the text holds; refuse everything else with a `QueryError`."""
    if not isinstance(text, str) or not text.strip():
        raise QueryError("the query is empty. Write SELECT ... FROM ...")
    if not is_text(text):
        raise QueryError("the query holds a character that is no text (a NUL, or half a surrogate pair).")
    if len(text) > LONGEST:
        raise QueryError(f"the query has {len(text)} characters, more than {LONGEST}.")
    if _depth(text) > DEEPEST:
        raise QueryError(f"the query nests deeper than {DEEPEST} levels.")
    if text.split()[0].upper() == "EXPLAIN":
        # refused here, because sqlglot would warn on the standard error
        raise QueryError("only SELECT can be answered, and this is EXPLAIN. A preview of the SELECT is free.")
    try:
        parsed = sqlglot.parse(text, dialect="duckdb")
        # a comment after the last ; comes as a statement of its own
        statements = [s for s in parsed if s is not None and not isinstance(s, exp.Semicolon)]
    except SqlglotError as error:
        raise _syntax(error, text) from None
    except (RecursionError, ValueError, TypeError, KeyError, AttributeError, IndexError):
        raise QueryError("the query cannot be parsed as SQL.") from None
    if len(statements) != 1:
        raise QueryError(f"one statement is answered at a time, and these are {len(statements)}.")
    (statement,) = statements
    if isinstance(statement, exp.SetOperation):
        raise refuse(statement, "UNION, INTERSECT and EXCEPT cannot be answered", "Ask the parts one by one.")
    if not isinstance(statement, exp.Select):
        raise refuse(statement, f"only SELECT can be answered, and this is {_name(statement)}")
    return statement


@contextmanager
def deep_nesting_refused() -> Iterator[None]:
    """Turn a RecursionError, in a block or a function that works on a syntax tree, into a refusal."""
    try:
        yield
    except RecursionError:
        raise QueryError("the query nests too deep.") from None


# What a misspelled word is compared with: at the start of a query, and elsewhere.
_STARTS = ("SELECT", "WITH")
_KEYWORDS = (
    "SELECT",
    "FROM",
    "WHERE",
    "GROUP",
    "BY",
    "HAVING",
    "ORDER",
    "LIMIT",
    "JOIN",
    "AND",
    "OR",
    "NOT",
    "AS",
    "WITH",
)


def _syntax(error: SqlglotError, text: str) -> QueryError:
    """Return the error that says where sqlglot could not go on and which word stands there; for a misspelled
    keyword it proposes the right one.

    Suspected of a misspelling are the first word of the query, unless it is SELECT or WITH, and the last two
    words up to the fault.
    """
    details: dict[str, Any] = (getattr(error, "errors", None) or [{}])[0]
    offset = _offset(details, text)
    words = [(m.start(), m.group()) for m in re.finditer(r"[^\W\d]\w*", text)]
    first = words[0] if words else (0, "")
    suspects = [first] if first[1].upper() not in _STARTS else []
    suspects += [word for word in words if word[0] <= offset][-2:]
    for position, word in suspects:
        is_keyword = word.upper() in _KEYWORDS or word.upper() in FUNCTIONS
        proposal = "" if is_keyword else did_you_mean(word, _STARTS if position == first[0] else _KEYWORDS)
        if proposal:
            return _at(text, position, f"{word[:40]!r} is not understood.{proposal}")
    if before := re.search(r"\bTOP\s*\(?\s*$", text[:offset], re.IGNORECASE):
        return _at(text, before.start(), "TOP is not understood. Write LIMIT at the end of the query.")
    # `details` has the faulty word as "highlight", and what sqlglot wanted there, such as "Expecting )".
    highlight = str(details.get("highlight") or "")[:40]
    description = str(details.get("description") or "")
    expected = f", where {description.lower()}" if description.startswith("Expecting") else ""
    return _at(
        text,
        offset,
        f"{highlight!r} is not understood here{expected}." if highlight else "the text ends too early.",
    )


def _offset(details: dict[str, Any], text: str) -> int:
    """Return the position in the text where the fault begins; sqlglot gives the end of the faulty word."""
    line, column = details.get("line"), details.get("col")
    if not line or column is None:
        return len(text)
    start = sum(len(part) + 1 for part in text.split("\n")[: line - 1])
    return max(0, int(start + column - max(1, len(str(details.get("highlight") or "")))))


def _at(text: str, offset: int, fact: str) -> QueryError:
    """Return the error for a text that cannot be parsed, with its line and column."""
    line = text.count("\n", 0, offset) + 1
    column = offset - (text.rfind("\n", 0, offset) + 1) + 1
    return QueryError(
        f"line {line}, column {column}: the query cannot be parsed as SQL: {fact}",
        line=line,
        column=column,
    )


def _name(statement: Node) -> str:
    """Return what a statement is called in messages, such as INSERT."""
    return "a command" if isinstance(statement, exp.Command) else statement.key.upper()


def _depth(text: str) -> int:
    """Estimate how deep the parser will have to go: open brackets, and words that nest without brackets.

    It is no bound: brackets in a string count, too, and chains such as a::INT::INT ... do not. A query that
    nests deeper than estimated ends in a RecursionError, which `parse`, `deep_nesting_refused` and the
    planner turn into a refusal. The numbers of NOT and of "- -" are divided by 4 (not tuned), because most of
    them do not nest.
    """
    deepest = depth = 0
    for character in text:
        if character in "([{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in ")]}":
            depth -= 1
    upper = text.upper()
    return max(deepest, upper.count("CASE"), upper.count(" NOT ") // 4, text.count("- -") // 4)


# a text in single quotes, a name in double quotes, or a name in backticks, as in MySQL
_QUOTED = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|`[^`]*`""")
# a number with a decimal comma
_COMMA = re.compile(r"(?<![\w.])(\d+),(\d+)(?![\w.])")
# texts that ask other databases which columns there are
_LISTING = re.compile(r"^\s*(DESC|DESCRIBE|SHOW|PRAGMA)\b|\binformation_schema\b", re.IGNORECASE)


def hinted(refusal: QueryError, text: object, public: Public) -> QueryError:
    """Return the refusal with a hint how to write a declared name or a decimal; unchanged if none applies."""
    if not isinstance(text, str) or len(text) > LONGEST:
        return refusal
    name = _find_unquoted(text, [n for n, _ in _declared_columns(public)])
    if name is not None:
        return _with_hint(
            refusal,
            f"Names of columns go in double quotes, where they are not one plain word: {quoted(name)}.",
        )
    name = _keyword(refusal, text, [n for n, _ in _declared_columns(public)])
    if name is not None:
        return _with_hint(
            refusal,
            f"If {name} is the column, put it in double quotes, as it is also a word of SQL: {quoted(name)}.",
        )
    comma = _decimal_comma(refusal, text)
    if comma is not None:
        return _with_hint(refusal, f"Decimals have a point: {comma[1]}.{comma[2]}.")
    if _LISTING.search(text):
        columns = ", ".join(plain_or_quoted(n) for n, _ in public.schema)
        return _with_hint(
            refusal,
            f"{public.table} has the columns {columns}. print(session.public) shows what is declared of "
            "them.",
        )
    return refusal


def plain_or_quoted(name: str) -> str:
    """Return a name as a question may write it: as it is if it is a plain word and no keyword of SQL, else in
    double quotes.

    >>> plain_or_quoted("ward"), plain_or_quoted("limit"), plain_or_quoted("two words")
    ('ward', '"limit"', '"two words"')
    """
    is_word = name.isidentifier() and name.isascii()
    if is_word and sqlglot.tokenize(name, read="duckdb")[0].token_type is sqlglot.TokenType.VAR:
        return name
    return quoted(name)


def quoted(name: str) -> str:
    """Return a name as SQL quotes it."""
    return '"' + name.replace('"', '""') + '"'


def _declared_columns(public: Public) -> Iterable[tuple[str, object]]:
    """Yield the columns of all declared tables, each with its declared fact."""
    yield from public.schema
    for related in public.tables:
        yield from related.schema


def _find_unquoted(text: str, names: list[str]) -> str | None:
    """Return a declared name that the text writes without the double quotes that it needs: in single quotes,
    in backticks, or without any quotes though it is no identifier; None if there is none."""
    by_lower = {name.lower(): name for name in names}
    for part in _QUOTED.findall(text):
        content = part[1:-1].lower()
        if part[0] != '"' and content in by_lower:
            return by_lower[content]
    bare = _QUOTED.sub(" '' ", text)
    # the longest first: one name may be the start of another
    for name in sorted((n for n in names if not n.isidentifier() and n.strip()), key=len, reverse=True):
        words = r"\s+".join(map(re.escape, name.split()))
        if re.search(rf"(?<!\w){words}(?!\w)", bare, re.IGNORECASE):
            return name
    return None


def _keyword(refusal: QueryError, text: str, names: list[str]) -> str | None:
    """Return the declared name at which the text could not be parsed, as it is also a word of SQL, such as
    Alter, Order or Group; None if there is none."""
    offset = _offset_in_text(refusal, text)
    if offset is None or "cannot be parsed" not in str(refusal):
        return None
    by_lower = {name.lower(): name for name in names}
    word = next((m[0] for m in re.finditer(r"[^\W\d]\w*", text) if m.start() <= offset < m.end()), "")
    return by_lower.get(word.lower())


def _offset_in_text(refusal: QueryError, text: str) -> int | None:
    """Return the position in the text that the refusal names by line and column; None if it names none."""
    if refusal.line is None or refusal.column is None:
        return None
    lines = text.split("\n")
    return sum(len(line) + 1 for line in lines[: refusal.line - 1]) + refusal.column - 1


def _decimal_comma(refusal: QueryError, text: str) -> re.Match[str] | None:
    """Return the number with a decimal comma at the position that the refusal names; None if there is
    none."""
    start = _offset_in_text(refusal, text)
    if start is None:
        return None
    return next((m for m in _COMMA.finditer(text) if m.start() <= start <= m.end()), None)


def _with_hint(refusal: QueryError, hint: str) -> QueryError:
    return QueryError(f"{refusal} {hint}", line=refusal.line, column=refusal.column)


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
                f"the function {function[:40]!r} is not known here: it could tell about the server. Download "
                "the copy, and ask it with an engine of your own."
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
            raise QueryError(f"{cte.alias[:40]!r} in WITH could be a view of the engine. Name it otherwise.")
    try:
        scopes = traverse_scope(statement)
    except (SqlglotError, RecursionError):
        raise QueryError("the names in FROM cannot be resolved.") from None
    # the nodes of allowed tables; one that no scope lists is refused, too
    resolved = set()
    for scope in scopes:
        for node in scope.tables:
            plain = isinstance(node.this, exp.Identifier) and not node.db and not node.catalog
            if plain and (node.name in scope.cte_sources or node.name.lower() == table.lower()):
                resolved.add(id(node))
    if any(id(node) not in resolved for node in statement.find_all(exp.Table)):
        raise QueryError(f"this asks the copy of {table!r} only, and names something else in FROM.")


def conjuncts(condition: Node | None) -> Iterator[Node]:
    """Yield the conditions that a parsed condition joins by AND."""
    if isinstance(condition, exp.Paren) and isinstance(condition.this, exp.And | exp.Paren):
        yield from conjuncts(condition.this)
    elif isinstance(condition, exp.And):
        yield from conjuncts(condition.this)
        yield from conjuncts(condition.expression)
    elif condition is not None:
        yield condition


def common(condition: Node) -> list[Node]:
    """Return the conditions that all branches of an OR have: they are true wherever it is."""
    branches = condition.unnest().flatten() if isinstance(condition.unnest(), exp.Or) else ()
    first, *others = [list(conjuncts(branch)) for branch in branches] or [[]]
    return [part for part in first if all(part in other for other in others)]


def holds_query(node: Node) -> bool:
    """Return whether there is a sub-query in an expression."""
    return any(True for _ in node.find_all(exp.Query, exp.Subquery))


def union_parts(node: Node) -> Iterator[Node]:
    """Yield the queries that UNION ALL puts together, in their order."""
    for side in (node.this, node.expression):
        inner = side.this if isinstance(side, exp.Subquery) and not side.alias else side
        rest = [arg for name, arg in inner.args.items() if arg and name not in ("this", "expression")]
        yield from union_parts(inner) if isinstance(inner, exp.Union) and not rest else [inner]


def alias_columns(item: Node) -> tuple[str, ...]:
    """Return the names in brackets after an alias: (SELECT ...) AS t(a, b)."""
    alias = item.args.get("alias")
    columns = (alias.args.get("columns") or []) if isinstance(alias, exp.TableAlias) else []
    return tuple(column.name for column in columns)
