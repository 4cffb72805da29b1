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

from typing import TYPE_CHECKING

from .. import _registry

if TYPE_CHECKING:
    from ..core.errors import QueryError as QueryError
    from .answer import Answer as Answer
    from .consistency import consistent as consistent
    from .mechanism import Query as Query
    from .mechanism import ask as ask
    from .statistic import SqlStatistic as SqlStatistic
    from .statistic import SqlVector as SqlVector
    from .workload import WorkloadQuery as WorkloadQuery

__all__, __getattr__, __dir__ = _registry.exports(__name__)
