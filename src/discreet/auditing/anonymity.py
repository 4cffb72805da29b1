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

Defines disclosure attacks on tables that look anonymous: homogeneous classes, background knowledge, the
intersection of two releases, differencing of exact counts.

A class is the set of rows with equal quasi-identifiers (`anonymity`). Each attack returns how many people's
secrets it finds; `differencing` returns the guesses, and can be tried on counts with differential privacy,
which resist it.

Generalizes tables to make them k-anonymous: along hierarchies of values, and by the algorithm Mondrian.

It is for comparison, not for protection.

Linkage attacks (re-identification): a few ratings that somebody has mentioned elsewhere, with roughly
known stars and dates, single this person out among thousands of "anonymous" users.

The scoreboard of Narayanan & Shmatikov 2008, who found Netflix subscribers by what they had said about films
on another site: rare films count more, near ratings and dates count, and a match is believed only if it
stands out from the runner-up.

Reconstruction: too many answers that are too accurate give away the table, nearly all of it (Dinur &
Nissim 2003).

The attacker asks how many people of random groups have a secret bit, and solves for the bits. Noise that
is small against the square root of the number of people does not help; the noise that a privacy budget
requires for so many questions does.

>>> import numpy as np
>>> secret = np.random.default_rng(1).random(40) < 0.5
>>> reconstruct(lambda group: (group & secret).sum(), 40, seed=2).accuracy(secret)
1.0
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from scipy import optimize, sparse

from .. import _require
from .._public import Public
from .._require import POSITIVE, at_least
from ..tables import Engine, Source, connect
from ..tables.engines.duckdb_reading import as_arrow
from ..tables.source import literal, quoted
from .outputs import floats

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
    columns = _require.entries(columns=columns)
    if isinstance(data, Engine):
        connected, name = data, data.public.table
    else:
        table = pa.Table.from_batches(data.batches(list(columns))) if isinstance(data, Source) else data
        connected, name = connect(table, Public(table="data")), "data"
    _require_columns(columns, connected.kinds[name])
    return connected, quoted(name)


def _require_columns(columns: Sequence[str], there: Collection[str]) -> None:
    for column in columns:
        _require.that(column in there, f"there is no column {column!r}; the table has {list(there)}.")


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
    for name in identifiers:
        free = name.lower() not in _OWN_NAMES
        _require.that(free, f"column {name!r} has a name that is used here for counts. Rename it.")
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
    _require.that(
        m * classes <= _CELLS,
        f"{classes} classes times {m} values are too many for an ordered distance. Round the values first.",
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


@_require.checked
@dataclass(frozen=True, slots=True)
class ToInterval:
    """Replaces a number by the lower end of its interval: the largest multiple of `width` not above it."""

    width: Annotated[int | float, POSITIVE]

    def sql(self, column: str) -> str:
        return f"floor({column} / {float(self.width)!r}) * {float(self.width)!r}"


@_require.checked
@dataclass(frozen=True, slots=True)
class ToPrefix:
    """Keeps the first characters of a code."""

    length: Annotated[int, at_least(0)]

    def sql(self, column: str) -> str:
        return f"left({column}::VARCHAR, {int(self.length)}) || '*'"


@dataclass(frozen=True)
class Groups:
    """Replaces a value by the group it belongs to; what belongs to none becomes `other`."""

    of: Mapping[Any, str]
    other: str = "*"

    def sql(self, column: str) -> str:
        cases = " ".join(f"WHEN {literal(str(v))} THEN {literal(group)}" for v, group in self.of.items())
        return (
            f"CASE {column}::VARCHAR {cases} ELSE {literal(self.other)} END" if cases else literal(self.other)
        )


SUPPRESSED = Groups({})
Step = ToInterval | ToPrefix | Groups


def generalize(data: Any, steps: Mapping[str, Step], *, keep: Sequence[str] = ()) -> pa.Table:
    """Return the columns in `steps`, each generalized by its step, and the columns `keep` as they are;
    computed in the engine.

    >>> people = {"age": [31, 38, 44], "zip": ["1234", "1299", "3000"]}
    >>> generalize(people, {"age": ToInterval(10), "zip": ToPrefix(2)}).to_pylist()[0]
    {'age': 30.0, 'zip': '12*'}
    """
    connected, table = engine(data, [*steps, *keep])
    selections = [f"{step.sql(quoted(name))} AS {quoted(name)}" for name, step in steps.items()] + [
        quoted(k) for k in keep
    ]
    return connected.answer(f"SELECT {', '.join(selections)} FROM {table}")


def mondrian(data: Any, identifiers: Sequence[str], k: int) -> pa.Table:
    """Return the table with each quasi-identifier replaced by the range of its class: k-anonymous (LeFevre,
    DeWitt & Ramakrishnan 2006).

    This is the strict variant: a set of rows is cut at the median of the column with the widest range (of
    ranks, as a share of the whole table's range) as long as both halves keep k rows. Every column, numeric or
    not, is used by the ranks of its values.
    """
    _require.integer(k=k, at_least=1)
    table = as_arrow(data)
    identifiers = _require.entries(identifiers=identifiers)
    _require_columns(identifiers, table.column_names)
    _require.that(table.num_rows >= k, f"fewer rows than k = {k}: no class can be that large.")
    codes, values = zip(*(_rank_codes(table[name]) for name in identifiers), strict=True)
    matrix = np.stack(codes, axis=1)
    class_of_row = np.zeros(table.num_rows, np.int64)
    for number, part in enumerate(_parts(matrix, k)):
        class_of_row[part] = number
    for j, name in enumerate(identifiers):
        column = pa.array(_ranges(matrix[:, j], class_of_row, values[j]))
        table = table.set_column(table.column_names.index(name), name, column)
    return table


def _rank_codes(column: Any) -> tuple[Any, list[Any]]:
    """Return the rank of each entry, and the value of each rank; a missing value comes first."""
    plain = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_dictionary(plain.type):
        plain = plain.dictionary_decode()
    present = pc.unique(plain.drop_null()).sort()
    ranks = pc.fill_null(pc.index_in(plain, present), -1).to_numpy(zero_copy_only=False).astype(np.int64) + 1
    return ranks, [None, *present.to_pylist()]


def _parts(matrix: Any, k: int) -> list[Any]:
    """Return the classes, as arrays of row numbers: sets of rows are cut until none can be cut further."""
    full_spans = np.maximum(np.ptp(matrix, axis=0), 1)
    todo, done = [np.arange(len(matrix))], []
    while todo:
        part = todo.pop()
        halves = _cut(matrix, part, full_spans, k) if len(part) >= 2 * k else None
        if halves is None:
            done.append(part)
        else:
            todo.extend(halves)
    return done


def _cut(matrix: Any, part: Any, full_spans: Any, k: int) -> tuple[Any, Any] | None:
    """Return the two sides of the median of the widest column that leaves k rows on both, or None."""
    spans = np.ptp(matrix[part], axis=0) / full_spans
    for j in np.argsort(-spans, kind="stable"):
        if spans[j] == 0:
            return None
        column = matrix[part, j]
        middle = int(np.partition(column, len(column) // 2)[len(column) // 2])
        # Equal ranks stay together: those of the median go to the upper side, or else to the lower.
        for low in (column < middle, column <= middle):
            if k <= int(low.sum()) <= len(part) - k:
                return part[low], part[~low]
    return None


def _ranges(ranks: Any, class_of_row: Any, values: list[Any]) -> list[str]:
    """Return, for each row, the range of values in its class, as text."""
    count = int(class_of_row.max()) + 1
    low, high = np.full(count, len(values)), np.full(count, -1)
    np.minimum.at(low, class_of_row, ranks)
    np.maximum.at(high, class_of_row, ranks)
    texts = [
        f"{values[a]}" if a == b else f"{values[a]} .. {values[b]}" for a, b in zip(low, high, strict=True)
    ]
    return [texts[i] for i in class_of_row]


@dataclass(frozen=True, eq=False)
class Ratings:
    """Holds ratings of users times items: `stars` 1 to 5 where there is a rating, and on which day it was
    given; both are sparse, with entries at the same positions.
    """

    stars: sparse.csr_matrix
    days: sparse.csr_matrix

    @property
    def users(self) -> int:
        return int(self.stars.shape[0])


@dataclass(frozen=True, slots=True)
class SideKnowledge:
    """Holds the auxiliary information of an attacker about a target: some items that the target rated, and
    approximately with how many stars and on which day."""

    items: Any
    stars: Any
    days: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """Names the best candidate, and by how many standard deviations (`eccentricity`) it beats the second;
    `user` is the best one, or None if it does not stand out.
    """

    user: int | None
    best: int
    eccentricity: float


def made_up_ratings(
    users: int = 2000, items: int = 1000, *, seed: int = 0, popularity: Any = None
) -> Ratings:
    """Draw synthetic ratings with the long tail of real ones: few items that everybody rates, many that
    hardly anybody does.

    Items are drawn in proportion to 1 / (rank + 10), or to `popularity`; how many a user rates is log-normal
    with median 40.
    """
    _require.integer(users=users, items=items, at_least=2)
    rng = np.random.default_rng(seed)
    relative_popularity = (
        1 / (np.arange(items) + 10.0)
        if popularity is None
        else np.clip(np.asarray(popularity, float), 1e-9, None)
    )
    probabilities = relative_popularity / relative_popularity.sum()
    counts = np.clip(rng.lognormal(np.log(40), 0.8, users).astype(int), 2, items // 2)
    rows = np.repeat(np.arange(users), counts)
    columns = np.concatenate([rng.choice(items, n, replace=False, p=probabilities) for n in counts])
    stars = np.clip(np.rint(rng.normal(3.6, 1.1, len(rows))), 1, 5)
    days = rng.integers(1, 2000, len(rows)).astype(float)
    shape = (users, items)
    return Ratings(
        sparse.csr_matrix((stars, (rows, columns)), shape), sparse.csr_matrix((days, (rows, columns)), shape)
    )


def side_knowledge(
    ratings: Ratings, user: int, *, items: int = 8, day_error: int = 14, seed: int = 0
) -> SideKnowledge:
    """Return auxiliary information that a friend of `user` may have: `items` of their ratings, off by up to
    one star, dated to within `day_error` days.
    """
    _require.integer(user=user, at_least=0)
    users = ratings.users
    _require.that(user < users, f"there is no user {user}: the users are 0 to {users - 1}.")
    _require.integer(items=items, at_least=1)
    _require.integer(day_error=day_error, at_least=0)
    rng = np.random.default_rng((seed, user))
    row = ratings.stars[user]
    _require.that(row.nnz != 0, f"user {user} has rated nothing: there is nothing to know.")
    chosen = rng.choice(row.indices, min(items, row.nnz), replace=False)
    stars = np.asarray(ratings.stars[user, chosen].todense()).ravel() + rng.integers(-1, 2, len(chosen))
    days = np.asarray(ratings.days[user, chosen].todense()).ravel()
    return SideKnowledge(chosen, stars, days + rng.integers(-day_error, day_error + 1, len(chosen)))


def link(
    ratings: Ratings,
    known: SideKnowledge,
    *,
    stars_scale: float = 1.5,
    days_scale: float = 30.0,
    stand_out: float = 1.5,
) -> Match:
    """Match by the scoreboard: a user's score is the sum, over the known items that the user rated, of
    (e^(-a / stars_scale) + e^(-b / days_scale)) / ln(number of users who rated the item, at least 2), where
    a and b are the absolute differences of the stars and of the days.

    The scales and `stand_out` (how many standard deviations the best must be above the second) are those of
    Narayanan & Shmatikov 2008.
    """
    _require.positive(stars_scale=stars_scale, days_scale=days_scale)
    items = np.asarray(known.items)
    stars, days = (np.asarray(m[:, items].todense()) for m in (ratings.stars, ratings.days))
    rated = stars > 0
    item_weights = 1 / np.log(np.maximum(rated.sum(axis=0), 2))
    similarity = np.exp(-np.abs(stars - known.stars) / stars_scale) + np.exp(
        -np.abs(days - known.days) / days_scale
    )
    scores = (np.where(rated, similarity, 0.0) * item_weights).sum(axis=1)
    best, second = np.argsort(-scores, kind="stable")[:2]
    spread = float(scores.std())
    eccentricity = float(scores[best] - scores[second]) / spread if spread > 0 else 0.0
    return Match(
        user=int(best) if eccentricity > stand_out else None, best=int(best), eccentricity=eccentricity
    )


def linked(ratings: Ratings, targets: Ratings, users: Any, **known: Any) -> tuple[float, float]:
    """Return the shares of these users of `targets` that are matched in the released `ratings`, rightly and
    wrongly; the options are those of `side_knowledge`."""
    _require.non_empty(users=users)
    matches = [(user, link(ratings, side_knowledge(targets, int(user), **known)).user) for user in users]
    right = sum(match == user for user, match in matches)
    wrong = sum(match is not None and match != user for user, match in matches)
    return right / len(matches), wrong / len(matches)


Bits = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reconstruction:
    """Holds the attacker's guess of every bit, and the solution it was rounded from."""

    bits: Bits
    solution: Any
    questions: int

    def accuracy(self, secret: Any) -> float:
        """Return the share of bits that are right; 0.5 is what a coin would get on fair bits."""
        return float((self.bits == np.asarray(secret, bool)).mean())


def reconstruct(
    ask: Callable[[Bits], float],
    people: int,
    *,
    questions: int | None = None,
    method: str = "least squares",
    seed: int = 0,
) -> Reconstruction:
    """Ask about random groups, about half of the people each, and solve for everyone's bit: by the method
    "least squares", or "lp", a linear program for bits in [0, 1] with the least sum of absolute residuals.

    `questions` defaults to four for each person. The linear program is that of Dwork, McSherry & Talwar 2007:
    it withstands some answers that are wildly wrong.
    """
    _require.integer(people=people, at_least=1)
    question_count = 4 * people if questions is None else questions
    _require.integer(questions=question_count, at_least=1)
    _require.one_of(tuple(_METHODS), method=method)
    groups = np.random.default_rng(seed).random((question_count, people)) < 0.5
    answers = floats(answers=[ask(group) for group in groups])
    fit = answers.shape == (question_count,) and np.isfinite(answers).all()
    _require.that(fit, "each answer must be one finite number: how many of the group have the bit.")
    solution = _METHODS[method](groups.astype(float), answers)
    return Reconstruction(bits=solution > 0.5, solution=solution, questions=question_count)


def _least_squares(groups: Any, answers: Any) -> Any:
    return np.linalg.lstsq(groups, answers, rcond=None)[0]


def _linear_program(groups: Any, answers: Any) -> Any:
    """Minimize sum r such that -r <= groups x - answers <= r, 0 <= x <= 1."""
    rows, people = groups.shape
    eye = np.eye(rows)
    solution = optimize.linprog(
        np.concatenate([np.zeros(people), np.ones(rows)]),
        A_ub=np.block([[groups, -eye], [-groups, -eye]]),
        b_ub=np.concatenate([answers, -answers]),
        bounds=[(0, 1)] * people + [(0, None)] * rows,
        method="highs",
    )
    return solution.x[:people]


_METHODS: dict[str, Callable[[Any, Any], Any]] = {"least squares": _least_squares, "lp": _linear_program}
