"""SQL -> checked plan -> engine -> private release.

For untrusted analysts: a query is text and options, nothing else.

    sql = "SELECT health, COUNT(*) AS n FROM people GROUP BY health"
    query = Query(sql=sql, public=source.public, epsilon=0.5, delta=1e-6)
    query.preview()                 # price, error, plan in words: no data is touched
    query.event, query.public       # what the curator charges and checks
    query.key                       # stable text for the store of released answers
    query(source, entropy=Entropy()).value   # an Answer: table, deviations, intervals, price, plan in words
    ask(sql, public, within=50, confidence=0.95)   # the cheapest Query that promises this error

`Query` is described (`_registry.to_json`), and so is `Answer`. Anything wrong with the SQL is a `QueryError`
(an InvalidInput) with the line and column, raised when the Query is made: before anything is read or charged.
Sources are those of `discreet.tables`.
"""

from typing import TYPE_CHECKING, Any

from .answer import Answer
from .ask import ask
from .cut_off import cut_off_sql
from .errors import QueryError
from .groupings import several_counts
from .mechanism import Query
from .plan import Plan, plan
from .preview import Preview
from .statistic import SqlStatistic, SqlVector, where

if TYPE_CHECKING:
    from .consistency import consistent
    from .workload import WorkloadPreview, WorkloadQuery, together

__all__ = [
    "Answer",
    "Plan",
    "Preview",
    "Query",
    "QueryError",
    "SqlStatistic",
    "SqlVector",
    "WorkloadPreview",
    "WorkloadQuery",
    "ask",
    "consistent",
    "cut_off_sql",
    "plan",
    "several_counts",
    "together",
    "where",
]


def __getattr__(name: str) -> Any:
    # these need scipy, which takes longer to load than a question takes to answer
    if name == "consistent":
        from .consistency import consistent

        return consistent
    if name in ("WorkloadPreview", "WorkloadQuery", "together"):
        from . import workload

        return getattr(workload, name)
    raise AttributeError(f"module 'discreet.query' has no attribute {name!r}")
