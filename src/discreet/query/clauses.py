"""Reads the clauses of a SELECT: the name of an item, what a position in GROUP BY means, and which clauses
have no rule."""

from __future__ import annotations

from sqlglot import exp

from .errors import Node, refuse


def only(node: Node, allowed: set[str], where: str) -> None:
    """Refuse every clause that has no rule."""
    for name, arg in node.args.items():
        if arg and name not in allowed:
            raise refuse(
                arg if hasattr(arg, "walk") else node,
                f"{name.strip('_').upper()} cannot be answered{where and ' ' + where}",
            )


def named(item: Node) -> tuple[str, Node]:
    """Return the name of a SELECT item, and what it names."""
    if isinstance(item, exp.Alias):
        return item.alias, item.this
    if isinstance(item, exp.Column):
        return item.name, item
    return item.sql(dialect="duckdb").lower()[:200], item


def by_position(node: Node, select: exp.Select) -> Node:
    """Return the SELECT item that GROUP BY 1 or GROUP BY an alias means."""
    if isinstance(node, exp.Literal) and not node.is_string and node.name.isdigit():
        if not 1 <= int(node.name) <= len(select.expressions):
            raise refuse(node, f"there is no column {node.name} in SELECT")
        return named(select.expressions[int(node.name) - 1])[1]
    if isinstance(node, exp.Column) and not node.table:
        for item in select.expressions:
            if isinstance(item, exp.Alias) and item.alias.lower() == node.name.lower():
                return item.this
    return node
