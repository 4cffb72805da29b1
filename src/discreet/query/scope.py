"""Resolves the names of columns: which column of which table a name means; for a name that means none, the
error proposes the column that was probably meant."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from sqlglot import exp

from .._require import did_you_mean
from .errors import Node, position, refuse
from .nodes import Expr
from .spelling import quoted

# The schemas that may be written before the name of a table: "main" in DuckDB, "public" in PostgreSQL. All
# declared tables are in this one schema.
SCHEMAS = ("main", "public")


class Scope:
    """Resolves names to columns. `tables`: by the alias of a table, its columns by name; `equal`: pairs of
    columns that the condition of an inner join makes equal."""

    def __init__(
        self, tables: Mapping[str, Mapping[str, Expr]], equal: Collection[frozenset[Expr]] = frozenset()
    ) -> None:
        # a name that two equal columns have is not ambiguous
        self.equal = equal
        self.tables = {
            alias.lower(): {n.lower(): e for n, e in columns.items()} for alias, columns in tables.items()
        }
        # as they were written, for messages
        self.aliases = list(tables)
        self.columns = sorted({name for columns in tables.values() for name in columns})

    def __call__(self, node: exp.Column) -> Expr:
        """Return the column that a name means; refuse one that means none, or several that may differ."""
        name, alias = node.name, node.table
        if node.args.get("catalog") or (node.args.get("db") and node.text("db").lower() not in SCHEMAS):
            raise refuse(node, f"{node.sql(dialect='duckdb')} has too many parts", "Write table.column.")
        if alias:
            if alias.lower() not in self.tables:
                advice = f"There is: {', '.join(self.aliases)}.{did_you_mean(alias, self.aliases)}"
                raise refuse(node, f"there is no table {alias!r} in FROM", advice)
            tables = [self.tables[alias.lower()]]
        else:
            tables = list(self.tables.values())
        matches = [columns[name.lower()] for columns in tables if name.lower() in columns]
        if len(matches) > 1 and not all(
            frozenset((matches[0], other)) in self.equal for other in matches[1:]
        ):
            raise refuse(node, f"column {name!r} is in several tables", f"Write table.{name}.")
        if not matches:
            advice = (
                "Bounds and categories are never read off the data: the steward declares them, in the schema."
            )
            proposal = did_you_mean(name, self.columns).strip() or self._longer(name) or self._value(node)
            raise refuse(
                _first_mention(node),
                f"nothing is declared of a column {name!r}",
                f"{proposal} Declared: {', '.join(self.columns)}. {advice}".strip(),
            )
        return matches[0]

    def _longer(self, name: str) -> str:
        """Return the question whether a longer name was meant, if one begins with this word; else ""."""
        start = re.compile(rf"{re.escape(name)}(?!\w)", re.IGNORECASE)
        longer = next((column for column in self.columns if start.match(column)), None)
        return "" if longer is None else f"Did you mean {quoted(longer)}?"

    def _value(self, node: exp.Column) -> str:
        """Return the advice to put a name in single quotes, if a column is compared with it, as in
        city = Paris; else ""."""
        comparison = node.parent
        if not isinstance(comparison, exp.EQ | exp.NEQ | exp.In) or comparison.this is node or node.table:
            return ""
        columns_in_scope = {name for columns in self.tables.values() for name in columns}
        column = comparison.this
        if not isinstance(column, exp.Column) or column.name.lower() not in columns_in_scope:
            return ""
        return f"If it is a text, put it in single quotes: {exp.Literal.string(node.name).sql()}."


def _first_mention(node: exp.Column) -> Node:
    """Return the node that names this column first in the text, for the position in the message: clauses are
    bound in another order than they are written."""
    same = [
        c
        for c in node.root().find_all(exp.Column)
        if c.name.lower() == node.name.lower() and c.table == node.table
    ]
    positions = [(position(c), c) for c in same if position(c)[0] is not None]
    return min(positions, key=lambda pair: pair[0])[1] if positions else node
