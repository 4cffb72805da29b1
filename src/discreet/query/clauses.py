"""Reads the clauses of a SELECT: the name of an item, and the item that a position in GROUP BY means; refuses
clauses that are not answered, and arguments that no rule of `aggregates` reads (its table of functions, each
of which reads one kind of aggregate)."""

from __future__ import annotations

from sqlglot import ErrorLevel, exp

from .constants import parse_number
from .errors import Node, refuse


def only(node: Node, allowed: set[str], where: str) -> None:
    """Refuse every clause of a syntax node that is not `allowed`; `where` ends the message ("in ORDER
    BY")."""
    for name, arg in node.args.items():
        if arg and name not in allowed:
            raise refuse(
                arg if hasattr(arg, "walk") else node,
                f"{name.strip('_').upper()} cannot be answered{where and ' ' + where}",
            )


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
