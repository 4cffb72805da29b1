"""A story of the SQL that engines are sent: the same questions, written for DuckDB, PostgreSQL and Spark."""

from __future__ import annotations

from typing import Any

from discreet.core.exact import PLACEHOLDER, statements
from discreet.query import Query
from discreet.tables.engines.duckdb_dialect import DUCKDB
from discreet.tables.engines.postgres_dialect import dialect
from discreet.tables.engines.spark_dialect import SPARK

from ..query.test_written import EXPRESSIONS, IDS, KINDS, OF_PEOPLE, QUERIES, ROWS
from .stage import Stage

DIALECTS = {"duckdb": DUCKDB, "postgres": dialect(frozenset({"member"})), "spark": SPARK}
NAMES = (
    "filtered count",
    "sums by group",
    "boolean and binned keys",
    "dates",
    "unknown and known keys",
    "distinct",
    "median",
    "mode",
    "covariance",
    "public join",
)


def sql_written(stage: Stage) -> None:
    """Twelve questions, of rows or of people, and expressions on texts and days."""
    asked: dict[str, tuple[str, Any, dict[str, Any]]] = {name: (QUERIES[name], ROWS, {}) for name in NAMES}
    limits = {"rows": 3, "groups": 2}
    asked |= {name: (sql, IDS, limits) for name, sql in OF_PEOPLE.items()}
    for name in ("texts", "days"):
        condition = f"({EXPRESSIONS[name]}) > CLAMP(spend + 1, 2, 3)"
        asked[name] = (f"SELECT COUNT(*) FROM people WHERE {condition}", ROWS, {})
    texts = {}
    for name, (sql, public, terms) in asked.items():
        query = Query(sql=sql, public=public, epsilon=1, delta=1e-6, **terms)
        texts[name] = {"event": query.event.to_json(), "sql": sql}
        for engine, spelling in DIALECTS.items():
            made = statements(query.question.form, KINDS, spelling)
            parts = [made.additive, *(text for _, text in made.distinct), *made.choices]
            texts[name][engine] = [
                part.replace(str(PLACEHOLDER), "KEY") for part in parts if part is not None
            ]
    stage.exactly(texts=texts)


STORIES = (sql_written,)
