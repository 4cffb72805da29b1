"""Writes hashes and contribution bounding in Spark's SQL: the choices of which groups, values and rows of a
unit (the privacy unit) count. The nodes are those of `tables.semantics`, imported as `d`.

Every choice is a pure function of the values and the secret key of the hash, with ties broken by value, so
that a task gives the same result when Spark runs it again on another worker. Each choice reads rows in sorted
order, so that the rows of a unit are never all in memory at once. For totals this rests on two settings in
`spark`: the rule EliminateSorts, which would remove sorts below an aggregate, is excluded; and with
replaceHashWithSortAgg, rows that are sorted by their groups are aggregated in that order.

Columns have the names of `tables.semantics`: "u" is the unit, "j" the group, "h" the rank (a 64-bit sort key
made of a hash, and no position), "x0" the value, "o" the number of a row among equal rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlglot import exp
from sqlglot.generator import Generator

from .. import semantics as d
from ..dialect import Writer, argument, word


def _tagged_values(g: Generator, node: Any) -> str:
    """Write the values to hash, each preceded by a flag that says whether it is NULL: XXHASH64 skips NULL, so
    that (NULL, 1) and (1, NULL) would otherwise have the same hash."""
    values = [g.sql(value) for value in node.args["expressions"]]
    return ", ".join(f"{value} IS NULL, {value}" for value in values)


def _keyed_hash(g: Generator, node: Any) -> str:
    """Write a keyed hash. The key is written as a text, because Spark would put a number into the Java code
    that it generates, and compile that code anew for every query (0.4 of 2.8 CPU-seconds at a million rows).

    The hash is hashed once more as a margin, because xxHash64 is not a cryptographic hash. No measurement has
    shown that hashing once is not enough.
    """
    return f"XXHASH64(XXHASH64('{word(node.args['key'])}', {_tagged_values(g, node)}))"


def _content_hash(g: Generator, node: Any) -> str:
    return f"XXHASH64(XXHASH64({_tagged_values(g, node)}))"


def _rank(g: Generator, node: Any) -> str:
    """Write the hash with its last `bits` bits replaced by those of `low`."""
    keyed_hash, low, bits = argument(g, node, "this"), argument(g, node, "low"), int(node.args["bits"])
    return f"(({keyed_hash} & {-(1 << bits)}L) | CAST({low} AS BIGINT))"


def _smallest_ranks(g: Generator, node: Any) -> str:
    """Keep the rows of the n smallest different ranks "h" of each unit. Spark drops later ranks while it
    reads (WindowGroupLimit)."""
    source, n, alias = (word(node.args[name]) for name in ("source", "n", "alias"))
    columns = "".join(f", `{word(name)}`" for name in node.args["columns"])
    numbered = (
        f"SELECT *, DENSE_RANK() OVER (PARTITION BY `u` ORDER BY `h`) AS `__n` FROM {source} "
        f"WHERE NOT `u` IS NULL"
    )
    return f"{alias} AS (SELECT `u`, `j`{columns} FROM ({numbered}) WHERE `__n` <= {n})"


def _chosen_totals(g: Generator, node: Any) -> str:
    """Shuffle rows by unit once, sort them by unit and rank, and add up and choose as they go by.

    Without these steps in the text, Spark would group by (unit, group) in a hash table on either side of a
    shuffle, then shuffle and sort the totals by unit. That takes three times the CPU time at ten million
    rows, most of which are the only one of their unit and group (docs/scale.md).

    "p" is a hash of the unit, so that it changes nothing to group and partition by it too. Sorting first by
    32 bits of "p" and 32 bits of "h" in one number is a hint that decides nothing: Spark has a radix sort
    for a single number, while comparing "p", "u" and "h" of rows that lie apart in memory takes most of the
    time. The sort that decides then finds its rows in order.
    """
    source, n, alias = (word(node.args[name]) for name in ("source", "n", "alias"))
    amounts = argument(g, node, "amounts")
    names = ", ".join(f"`{word(amount.alias)}`" for amount in node.args["amounts"])
    for column in node.args["columns"]:
        # Not used in the text; called because `word` refuses a name that could end a quoted identifier.
        word(column)
    distributed = f"SELECT * FROM {source} WHERE NOT `u` IS NULL DISTRIBUTE BY `u`"
    with_sort_keys = (
        f"SELECT *, SHIFTRIGHT(XXHASH64(`u`), 32) AS `p`, {argument(g, node, 'rank')} AS `h` "
        f"FROM ({distributed})"
    )
    # Adding 2**31 to the upper half of "h" makes it a number without a sign, in the same order.
    hint = "SHIFTLEFT(`p`, 32) | (SHIFTRIGHT(`h`, 32) + 2147483648L)"
    ordered = f"SELECT * FROM (SELECT * FROM ({with_sort_keys}) SORT BY {hint}) SORT BY `p`, `u`, `h`, `j`"
    pairs = f"SELECT `p`, `u`, `h`, `j`, {amounts} FROM ({ordered}) GROUP BY `p`, `u`, `h`, `j`"
    numbered = f"SELECT *, ROW_NUMBER() OVER (PARTITION BY `p`, `u` ORDER BY `h`) AS `__n` FROM ({pairs})"
    return f"{alias} AS (SELECT `j`, {names} FROM ({numbered}) WHERE `__n` <= {n})"


def _smallest_values(g: Generator, node: Any) -> str:
    """Keep the n values of each unit and group with the smallest `order`, ties by value."""
    source, n, alias = (word(node.args[name]) for name in ("source", "n", "alias"))
    order = argument(g, node, "order")
    numbered = (
        f"SELECT `j`, `x0`, ROW_NUMBER() OVER (PARTITION BY `u`, `j` ORDER BY {order}, `x0`) AS `__n` "
        f"FROM {source}"
    )
    return f"{alias} AS (SELECT `j`, `x0` FROM ({numbered}) WHERE `__n` <= {n})"


def _smallest_rows(g: Generator, node: Any) -> str:
    """Keep the n rows of each unit and group with the smallest first 32 bits of `order`, ties by value, as
    `Rank` with 32 bits orders them on DuckDB. Equal rows are numbered by "o" from 0."""
    source, n, alias = (word(node.args[name]) for name in ("source", "n", "alias"))
    by = ", ".join(f"`{word(name)}`" for name in ("u", "j", *node.args["columns"], "x0"))
    order = argument(g, node, "order")
    occurrence = f"ROW_NUMBER() OVER (PARTITION BY {by} ORDER BY `x0`) - 1"
    occurrences = f"SELECT {by}, CAST({occurrence} AS BIGINT) AS `o` FROM {source}"
    numbered = (
        f"SELECT `j`, `x0`, ROW_NUMBER() OVER (PARTITION BY `u`, `j` ORDER BY SHIFTRIGHT({order}, 32), `x0`) "
        f"AS `__n` FROM ({occurrences})"
    )
    return f"{alias} AS (SELECT `j`, CAST(`x0` AS BIGINT) AS `x0` FROM ({numbered}) WHERE `__n` <= {n})"


CHOICES: Mapping[type[exp.Expression], Writer] = {
    d.KeyedHash: _keyed_hash,
    d.ContentHash: _content_hash,
    d.Rank: _rank,
    d.SmallestRanks: _smallest_ranks,
    d.ChosenTotals: _chosen_totals,
    d.SmallestValues: _smallest_values,
    d.SmallestRows: _smallest_rows,
}
