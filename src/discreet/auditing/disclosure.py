"""Defines disclosure attacks on tables that look anonymous: homogeneous classes, background knowledge, the
intersection of two releases, differencing of exact counts.

A class is the set of rows with equal quasi-identifiers (`anonymity`). Each attack returns how many people's
secrets it finds; `differencing` returns the guesses, and can be tried on counts with differential privacy,
which resist it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _require
from .._public import Public
from ..tables import connect
from ..tables.engine import literal
from .anonymity import engine, names

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Disclosed:
    """Counts the people whose sensitive value is given away: `found` of `rows`."""

    rows: int
    found: int

    @property
    def share(self) -> float:
        return self.found / self.rows if self.rows else 0.0


def homogeneity(data: Any, identifiers: Sequence[str], sensitive: str) -> Disclosed:
    """Count the people in classes that have a single sensitive value: k-anonymity hides which row is theirs,
    but not the value.

    >>> homogeneity({"zip": [1, 1, 2, 2], "ill": ["flu", "flu", "flu", "gout"]}, ["zip"], "ill")
    Disclosed(rows=4, found=2)
    """
    return background_knowledge(data, identifiers, sensitive, ruled_out=())


def background_knowledge(
    data: Any, identifiers: Sequence[str], sensitive: str, *, ruled_out: Sequence[str | int]
) -> Disclosed:
    """Count the people whose sensitive value can be deduced by an attacker who knows that it is none of
    `ruled_out`; people who have one of these values are not attacked. NULL is a value like others."""
    connected, table = engine(data, [*_require.listed(identifiers=identifiers), sensitive])
    value = names([sensitive])
    excluded = ", ".join(literal(str(v)) for v in _require.listed(ruled_out=ruled_out))
    where = f"WHERE {value} IS NULL OR {value}::VARCHAR NOT IN ({excluded})" if excluded else ""
    sql = (
        "SELECT COALESCE(SUM(n), 0)::BIGINT AS rows, "
        "COALESCE(SUM(n) FILTER (different = 1), 0)::BIGINT AS found FROM (SELECT "
        f"COUNT(*) AS n, COUNT(DISTINCT {value}) + MAX(({value} IS NULL)::INT) AS different "
        f"FROM {table} {where} GROUP BY {names(identifiers)})"
    )
    row = connected.answer(sql).to_pylist()[0]
    return Disclosed(rows=int(row["rows"]), found=int(row["found"]))


def intersection(
    first: Any,
    second: Any,
    *,
    person: str,
    first_class: Sequence[str],
    second_class: Sequence[str],
    sensitive: str,
) -> Disclosed:
    """Count the people whose classes in two releases have only one sensitive value in common (Ganta,
    Kasiviswanathan & Smith 2008).

    `first_class` and `second_class` are the quasi-identifiers of each release. `person` is the column that
    joins the two tables for the attacker, who knows a target's quasi-identifiers and so its class in both.
    """
    parts = []
    for data, keys in ((first, first_class), (second, second_class)):
        connected, table = engine(data, [person, *keys, sensitive])
        parts.append(
            connected.answer(
                f"SELECT {names([person])} AS who, dense_rank() OVER (ORDER BY {names(keys)}) AS class, "
                f"{names([sensitive])}::VARCHAR AS value FROM {table}"
            )
        )
    connected_tables = connect(parts[0], Public(table="one"), related={"two": parts[1]})
    sql = (
        'WITH pairs AS (SELECT one.who, one.class AS a, two.class AS b FROM "one" JOIN "two" USING (who)), '
        'v1 AS (SELECT DISTINCT class, value FROM "one"), '
        'v2 AS (SELECT DISTINCT class, value FROM "two"), '
        "kinds AS (SELECT DISTINCT a, b FROM pairs), "
        "common AS (SELECT a, b, COUNT(*) AS n FROM kinds JOIN v1 ON v1.class = a "
        "JOIN v2 ON v2.class = b AND v1.value IS NOT DISTINCT FROM v2.value GROUP BY a, b) "
        "SELECT COUNT(*) AS rows, (COUNT(*) FILTER (n = 1))::BIGINT AS found "
        "FROM pairs JOIN common USING (a, b)"
    )
    row = connected_tables.answer(sql).to_pylist()[0]
    return Disclosed(rows=int(row["rows"]), found=int(row["found"]))


def differencing(ask: Callable[[Mask], float], people: int) -> Mask:
    """Return a guess of everyone's secret bit, from two counts for each person: of all people, and of all but
    this one.

    `ask(mask)` returns how many of the people in the mask have the bit.

    >>> secret = np.array([True, False, True])
    >>> differencing(lambda mask: (mask & secret).sum(), 3).tolist()
    [True, False, True]
    """
    _require.integer(people=people, at_least=1)
    everyone = np.ones(people, bool)
    guesses = np.zeros(people, bool)
    for i in range(people):
        without = everyone.copy()
        without[i] = False
        guesses[i] = ask(everyone) - ask(without) > 0.5
    return guesses
