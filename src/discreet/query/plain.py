"""SQL about a table that is not protected (a synthetic copy), sent by somebody who is not trusted: one SELECT
over that table, and nothing else that an engine could reach."""

from __future__ import annotations

from sqlglot import exp

from .errors import QueryError
from .parse import parse


def plain_select(text: str, table: str) -> str:
    """Return one SELECT over `table` and what the text names in WITH; refused where it names anything else.

    What is returned is written from what was parsed, so that the engine and the parser cannot differ about
    it.

    >>> plain_select("select count(*) from health -- all", "health")
    'SELECT COUNT(*) FROM health /* all */'
    """
    statement = parse(text)
    own = {cte.alias.lower() for cte in statement.find_all(exp.CTE)}
    for node in statement.find_all(exp.Table):
        plain = isinstance(node.this, exp.Identifier) and not node.db and not node.catalog
        if not plain or node.name.lower() not in own | {table.lower()}:
            raise QueryError(
                f"this asks the copy of {table!r} only, and names something else in FROM. Nothing was read."
            )
    for function in statement.find_all(exp.Anonymous):
        raise QueryError(
            f"the function {function.name[:40]!r} is not known here: it could tell about the server. Nothing "
            f"was read. Download the copy, and ask it with an engine of your own."
        )
    return statement.sql(dialect="duckdb")
