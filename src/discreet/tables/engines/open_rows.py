"""Answers any SQL about rows that are not private, such as synthetic ones. Because no value is secret, the
text of an engine's error is shown."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from ... import _require
from ..._errors import InvalidInput
from ..engine import quoted


def ask_open_rows(tables: Mapping[str, pa.Table], sql: str) -> pa.Table:
    """Return the rows of one SQL query about `tables`, which maps names to rows. The query can reach neither
    files nor the network.

    >>> ask_open_rows({"t": pa.table({"a": [1, 2]})}, "SELECT MAX(a) AS s FROM t")["s"].to_pylist()
    [2]
    """
    # Imported late because it is slow to load.
    import duckdb

    if not isinstance(sql, str) or not sql.strip():
        # Users call the methods `sql` of synthetic copies, in which this argument is called `text`.
        raise _require.fail("text", sql, "a query in SQL")
    # Arrow tables are registered under names that none of the tables has: DuckDB finds a registered table
    # before a view of the same name, in any letter case, and would read another table's rows.
    prefix = "rows_"
    while any(name.lower().startswith(prefix) for name in tables):
        prefix += "_"
    with duckdb.connect(":memory:") as con:
        for number, (name, table) in enumerate(tables.items()):
            con.register(f"{prefix}{number}", table)
            con.execute(f"CREATE VIEW {quoted(name)} AS SELECT * FROM {prefix}{number}")
        con.execute("SET enable_external_access = false")
        con.execute("SET lock_configuration = true")
        try:
            answer = con.execute(sql)
            if answer.description is None:
                raise InvalidInput("the text is not a query: it returns no rows.")
            return answer.to_arrow_table()
        except duckdb.Error as error:
            raise InvalidInput(f"the query cannot be answered: {error}") from None
