"""Asks by accuracy: finds the smallest epsilon whose error is within a limit, without touching data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import _require
from .._errors import InvalidInput
from .._public import Public
from .mechanism import Query

# The largest epsilon that is tried: beyond it nothing is protected. Not tuned.
MAX_EPSILON = 1000.0
# The search does not go on below this epsilon, whatever error is asked for. Not tuned. But the epsilon that
# is found is part of the question: after a change of the search the same question is a new one, and charged.
LEAST_EPSILON = 1e-9


def ask(
    sql: str,
    public: Public,
    *,
    epsilon: Any = None,
    rho: Any = None,
    within: float | None = None,
    confidence: float = 0.95,
    delta: float | Callable[[Any], float] = 0.0,
    **options: Any,
) -> Query:
    """Return a query at the price `epsilon` or `rho`; or, with `within`, at the smallest epsilon (to one in a
    thousand) for which every number is within `within` of the truth.

    The promise is about each number by itself, with probability `confidence` over the noise; the truth is the
    answer without noise, after values are clipped and what a unit contributes is limited. Averages need a
    declared size of the table, as their error depends on it, and must be of everybody: without WHERE, FILTER
    or an inner join. `delta` may be a function of epsilon. `options` are those of `Query`.
    """
    if within is None:
        delta_value = delta(epsilon) if callable(delta) else delta
        return Query(sql=sql, public=public, epsilon=epsilon, rho=rho, delta=delta_value, **options)
    if epsilon is not None or rho is not None:
        raise InvalidInput("ask by price or by accuracy, not both. Nothing was read or charged.")
    _require.positive(within=within)
    _require.open_probability(confidence=confidence)

    def query_at(price: float) -> Query:
        delta_value = delta(price) if callable(delta) else delta
        return Query(sql=sql, public=public, epsilon=price, delta=delta_value, **options)

    def is_accurate(query: Query) -> bool:
        return all(error <= within for error in _promised_errors(query, confidence))

    high = 1.0
    # Doubling finds an accurate epsilon, halving one that is not, and bisection the border between the two.
    while not is_accurate(query_at(high)):
        if high == MAX_EPSILON:
            raise InvalidInput(
                f"no epsilon up to {MAX_EPSILON:g} promises an error within {float(within):g}. Nothing was "
                f"read or charged. "
                f"Ask for fewer numbers, tighter bounds, or less accuracy."
            )
        high = min(2 * high, MAX_EPSILON)
    low = high / 2
    while is_accurate(query_at(low)) and low > LEAST_EPSILON:
        low, high = low / 2, low
    while high > low * 1.001:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if is_accurate(query_at(middle)) else (middle, high)
    return query_at(high)


def _promised_errors(query: Query, confidence: float) -> list[float]:
    """Return the errors of the columns, which must all be known without data; refuse the query if one is
    not."""
    preview = query.preview(confidence)
    for i, error in enumerate(preview.errors):
        if error is None and query.is_number(i):
            raise InvalidInput(
                f"the error of column {preview.columns[i]!r} depends on the data, so no price "
                f"promises it. Nothing was read or "
                f"charged. Ask by epsilon=..., or declare the size of the table and ask for an "
                f"average of everybody."
            )
    return [error for error in preview.errors if error is not None]
