"""Measures how anonymous a table looks: k-anonymity and its successors, computed inside the engine, on
millions of rows.

A class is the set of rows with equal quasi-identifiers (the columns `identifiers`). None of these measures is
a privacy guarantee, and none withstands knowledge that an attacker has from elsewhere: `disclosure` shows how
each breaks. They measure what a table would disclose if it were published as it is. Results are exact and not
private: for the steward only.

>>> people = {"age": [30, 30, 40, 40], "zip": [1, 1, 2, 2], "ill": ["flu", "flu", "flu", "gout"]}
>>> k_anonymity(people, ["age", "zip"]), distinct_l_diversity(people, ["age", "zip"], "ill")
(2, 1)
>>> t_closeness(people, ["age", "zip"], "ill")
0.25
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from .. import _require
from .._errors import InvalidInput
from .._public import Public
from ..tables import Engine, Source, connect
from ..tables.engine import quoted

# Column names that the queries of this module use; the table's columns must have other names.
_OWN_NAMES = ("__value", "__n", "__size", "__q", "__p", "__gap", "__rank", "__top", "__rest")
# The largest number of classes times values in an ordered distance: the engine builds a table with one row
# for each. Chosen by hand, not tuned.
_CELLS = 200_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ReidentificationRisk:
    """Counts who is re-identified by somebody who knows their quasi-identifiers and that they are in the
    table.

    `unique`: share of rows alone in their class. `average`: expected share of rows found by guessing within
    the class. `largest`: 1/k, the probability of finding a row of the smallest class, which has k rows.
    """

    rows: int
    classes: int
    k: int
    unique: float
    average: float
    largest: float


def engine(data: Any, columns: Sequence[str]) -> tuple[Engine, str]:
    """Return an engine with these columns, and the quoted name of the table in it."""
    columns = _require.listed(columns=columns)
    _require.non_empty(columns=columns)
    if isinstance(data, Engine):
        connected, name = data, data.public.table
    elif isinstance(data, Source):
        connected, name = (
            connect(pa.Table.from_batches(data.batches(list(columns))), Public(table="data")),
            "data",
        )
    else:
        connected, name = connect(data, Public(table="data")), "data"
    unknown = [c for c in columns if c not in connected.kinds[name]]
    if unknown:
        raise InvalidInput(f"there is no column {unknown[0]!r}; the table has {list(connected.kinds[name])}.")
    return connected, quoted(name)


def _row(data: Any, columns: Sequence[str], sql: str) -> dict[str, Any]:
    """Return the only row of a query's result; `sql` has FROM {table} where the table's name belongs."""
    connected, table = engine(data, columns)
    return dict(connected.answer(sql.replace("FROM {table}", f"FROM {table}")).to_pylist()[0])


def names(columns: Sequence[str]) -> str:
    """Return the columns as SQL names them."""
    return ", ".join(quoted(c) for c in _require.listed(columns=columns))


def risk(data: Any, identifiers: Sequence[str]) -> ReidentificationRisk:
    """Return the uniqueness and the re-identification risk of the rows, by their quasi-identifiers."""
    row = _row(
        data,
        identifiers,
        "SELECT SUM(n)::BIGINT AS rows, COUNT(*) AS classes, MIN(n) AS k, "
        "(COUNT(*) FILTER (n = 1))::BIGINT AS alone "
        f"FROM (SELECT COUNT(*) AS n FROM {{table}} GROUP BY {names(identifiers)})",
    )
    rows = int(row["rows"] or 0)
    if rows == 0:
        return ReidentificationRisk(rows=0, classes=0, k=0, unique=0.0, average=0.0, largest=0.0)
    return ReidentificationRisk(
        rows=rows,
        classes=int(row["classes"]),
        k=int(row["k"]),
        unique=row["alone"] / rows,
        average=row["classes"] / rows,
        largest=1 / row["k"],
    )


def k_anonymity(data: Any, identifiers: Sequence[str]) -> int:
    """Return the size of the smallest class of rows with equal quasi-identifiers (Sweeney 2002).

    NULL is a value like others.
    """
    return risk(data, identifiers).k


def _cells(identifiers: Sequence[str], sensitive: str) -> str:
    """Return the SQL of two tables, from which all measures of diversity and closeness are computed: `cells`
    with (class, value, number of rows), and `sized` with the size of the class as well."""
    keys = names(identifiers)
    if taken := [name for name in identifiers if name.lower() in _OWN_NAMES]:
        raise InvalidInput(f"column {taken[0]!r} has a name that is used here for counts. Rename it.")
    return (
        f"cells AS (SELECT {keys}, {names([sensitive])} AS __value, COUNT(*) AS __n FROM {{table}} "
        "GROUP BY ALL), "
        f"sized AS (SELECT *, (SUM(__n) OVER (PARTITION BY {keys}))::DOUBLE AS __size FROM cells)"
    )


def distinct_l_diversity(data: Any, identifiers: Sequence[str], sensitive: str) -> int:
    """Return the least number of different sensitive values in a class (Machanavajjhala et al. 2007)."""
    sql = (
        f"WITH {_cells(identifiers, sensitive)} "
        f"SELECT MIN(l) AS l FROM (SELECT COUNT(*) AS l FROM cells GROUP BY {names(identifiers)})"
    )
    return int(_row(data, [*identifiers, sensitive], sql)["l"] or 0)


def entropy_l_diversity(data: Any, identifiers: Sequence[str], sensitive: str) -> float:
    """Return e to the power of the smallest entropy of the sensitive values in a class: the largest l for
    which entropy l-diversity holds."""
    sql = (
        f"WITH {_cells(identifiers, sensitive)} SELECT MIN(h) AS h FROM "
        f"(SELECT -SUM(__n / __size * ln(__n / __size)) AS h FROM sized GROUP BY {names(identifiers)})"
    )
    entropy = _row(data, [*identifiers, sensitive], sql)["h"]
    return 0.0 if entropy is None else math.exp(max(0.0, entropy))


def recursive_l_diversity(data: Any, identifiers: Sequence[str], sensitive: str, *, l: int) -> float:  # noqa: E741
    """Return the number above which every c gives recursive (c, l)-diversity; infinite if none does.

    A class has it if r_1 < c (r_l + ... + r_m), where r_1 >= r_2 >= ... >= r_m are the counts of its
    sensitive values (Machanavajjhala et al. 2007).
    """
    _require.integer(l=l, at_least=1)
    keys = names(identifiers)
    sql = (
        f"WITH {_cells(identifiers, sensitive)}, "
        f"ranked AS (SELECT *, row_number() OVER (PARTITION BY {keys} ORDER BY __n DESC) AS __rank "
        "FROM sized) "
        "SELECT MAX(__top / __rest) AS c, bool_or(__rest IS NULL) AS never FROM (SELECT "
        f"MAX(__n)::DOUBLE AS __top, SUM(__n) FILTER (__rank >= {int(l)}) AS __rest "
        f"FROM ranked GROUP BY {keys})"
    )
    row = _row(data, [*identifiers, sensitive], sql)
    return math.inf if row["never"] else float(row["c"] or 0.0)


@_require.check_options
def t_closeness(data: Any, identifiers: Sequence[str], sensitive: str, *, ordered: bool = False) -> float:
    """Return the t of t-closeness: the largest earth mover's distance between a class and the complete table
    (Li, Li & Venkatasubramanian 2007).

    By default all values, NULL included, are equally far from each other, so that the distance is half the l1
    distance. With `ordered`, two values are as far from each other as their ranks, divided by m - 1 for m
    values; rows with NULL, which has no rank, are left out.
    """
    keys, columns = names(identifiers), [*identifiers, sensitive]
    if not ordered:
        # `sized` has only values that the class has; in the table all others have the share 1 - SUM(__q).
        sql = (
            f"WITH {_cells(identifiers, sensitive)}, "
            "overall AS (SELECT __value, SUM(__n) / (SELECT SUM(__n) FROM cells) AS __q FROM cells "
            "GROUP BY __value) "
            "SELECT MAX(t) AS t FROM (SELECT (SUM(abs(__n / __size - __q)) + 1 - SUM(__q)) / 2 AS t "
            f"FROM sized JOIN overall ON sized.__value IS NOT DISTINCT FROM overall.__value GROUP BY {keys})"
        )
        return float(_row(data, columns, sql)["t"] or 0.0)
    # The earth mover's distance on ranks is the sum of the gaps between the two cumulative distributions.
    count = f"SELECT COUNT(DISTINCT {names([sensitive])}) AS m FROM {{table}}"
    m, classes = int(_row(data, columns, count)["m"]), risk(data, identifiers).classes
    if m * classes > _CELLS:
        raise InvalidInput(
            f"{classes} classes times {m} values are too many for an ordered distance. Round the "
            f"values first."
        )
    if m < 2:
        return 0.0
    same_cell = _null_safe_equality("full_grid", "cells", [*identifiers, "__value"])
    sql = (
        f"WITH {_cells(identifiers, sensitive)}, "
        "overall AS (SELECT __value, "
        "SUM(__n) / (SELECT SUM(__n) FROM cells WHERE __value IS NOT NULL) AS __q FROM cells "
        "WHERE __value IS NOT NULL GROUP BY __value), "
        f"classes AS (SELECT {keys}, SUM(__n)::DOUBLE AS __size FROM cells WHERE __value IS NOT NULL "
        f"GROUP BY {keys}), "
        "full_grid AS (SELECT * FROM classes CROSS JOIN overall), "
        "joined AS (SELECT full_grid.*, COALESCE(cells.__n, 0) / __size AS __p FROM full_grid "
        f"LEFT JOIN cells ON {same_cell}), "
        f"sums AS (SELECT {keys}, abs(SUM(__p - __q) OVER (PARTITION BY {keys} ORDER BY __value)) AS __gap "
        "FROM joined) "
        f"SELECT MAX(t) AS t FROM (SELECT SUM(__gap) / {m - 1} AS t FROM sums GROUP BY {keys})"
    )
    return float(_row(data, columns, sql)["t"] or 0.0)


def _null_safe_equality(left: str, right: str, columns: Sequence[str]) -> str:
    """Return the SQL condition that these columns agree in two tables; NULL agrees with NULL."""
    return " AND ".join(f"{left}.{names([c])} IS NOT DISTINCT FROM {right}.{names([c])}" for c in columns)


def delta_presence(data: Any, population: Any, identifiers: Sequence[str]) -> tuple[float, float]:
    """Return the least and the largest share of a population class that is in the table (Nergiz, Atzori &
    Clifton 2007).

    (d1, d2) means: for whoever knows a person's quasi-identifiers, the probability that this person is in the
    table is between d1 and d2.
    """
    parts = []
    for each in (data, population):
        connected, table = engine(each, identifiers)
        parts.append(
            connected.answer(f"SELECT {names(identifiers)}, COUNT(*) AS __n FROM {table} GROUP BY ALL")
        )
    joined = connect(parts[0], Public(table="inside", tables=()), related={"everyone": parts[1]})
    sql = (
        "SELECT MIN(share) AS low, MAX(share) AS high, bool_or(outsider) AS outsider FROM (SELECT "
        "COALESCE(i.__n, 0) / e.__n AS share, e.__n IS NULL OR i.__n > e.__n AS outsider "
        f'FROM "everyone" e FULL JOIN "inside" i ON {_null_safe_equality("i", "e", identifiers)})'
    )
    row = joined.answer(sql).to_pylist()[0]
    if row["low"] is None:
        raise InvalidInput("the population is empty, so nobody has a chance to be in the table.")
    if row["outsider"]:
        raise InvalidInput(
            "the table has rows that the population does not have. Give the population it was drawn from."
        )
    return float(row["low"]), float(row["high"])
