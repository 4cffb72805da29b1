"""Answers SQL privately: SQL -> checked plan -> engine -> private release.

Analysts need not be trusted: a query is text and options, and no code of theirs runs.

    sql = "SELECT health, COUNT(*) AS n FROM people GROUP BY health"
    query = Query(sql=sql, public=source.public, epsilon=0.5, delta=1e-6)
    query.preview()                 # price, error, plan in words: no data is touched
    query.event, query.public       # what the curator charges and checks
    query.key                       # stable text for the store of released answers
    query(source, entropy=Entropy()).value   # an Answer: table, deviations, intervals, price, plan in words
    ask(sql, public, within=50, confidence=0.95)   # the cheapest Query that promises this error

`Query` and `Answer` can be written as JSON and read back (`_registry.to_json`, `from_json`). Anything wrong
with the SQL raises a `QueryError` (an InvalidInput) with the line and column when the Query is made, before
anything is read or charged. A `source` is one of `discreet.tables`.
"""

from typing import TYPE_CHECKING, Any

from .. import _require
from ..core.errors import QueryError
from .answer import Answer
from .mechanism import Query, ask
from .statistic import SqlStatistic, SqlVector

if TYPE_CHECKING:
    from .consistency import consistent
    from .workload import WorkloadQuery

__all__ = [
    "Answer",
    "Query",
    "QueryError",
    "SqlStatistic",
    "SqlVector",
    "WorkloadQuery",
    "ask",
    "consistent",
]


def __getattr__(name: str) -> Any:
    # These names are imported at first use: they need scipy, which takes longer to load than a query to
    # answer.
    if name == "consistent":
        from .consistency import consistent

        return consistent
    if name == "WorkloadQuery":
        from .workload import WorkloadQuery

        return WorkloadQuery
    raise _require.no_attribute("module 'discreet.query'", name, __all__)


def __dir__() -> list[str]:
    return sorted(__all__)
