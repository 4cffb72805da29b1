"""Says why a construct that people do write is not answered, and what to write instead."""

from __future__ import annotations

from sqlglot import exp

from .errors import Node

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
        return f"{node.sql_name()} cannot be answered here", _AGGREGATES
    if isinstance(node, _CHANGING):
        return (
            "a function that changes from run to run cannot be priced or stored",
            "Write a fixed date or number.",
        )
    if isinstance(node, exp.Query | exp.Subquery | exp.Exists):
        return (
            "a query inside an expression cannot be answered",
            "EXISTS (SELECT ...) and x IN (SELECT ...) can stand in WHERE; put other sub-queries into FROM, "
            "and join them.",
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
