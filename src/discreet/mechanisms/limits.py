"""Limits that stand on the fields and parameters of mechanisms: objects of a kind, ranges, ends of
bins.

Those of numbers are in `_require`, that of a table whose rows are units is `statistics.ROWS`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from .. import _require
from .._require import Limit, Real, _kind
from .arrow_columns import require_public
from .protocols import Mechanism, is_statistic


def instance_of(kind: Any, wanted: str) -> Limit:
    """Return the limit of an object of `kind`, a class, a union of some, or a protocol; `wanted` says how one
    is made."""
    return such_that(lambda value: isinstance(value, kind), wanted)


def such_that(holds: Callable[[Any], bool], wanted: str) -> Limit:
    """Return the limit of an object for which `holds` is true; `wanted` completes "must be". The message
    shows numbers and texts, and the type of any other object, which may hold data."""

    def check(**named: Any) -> None:
        for name, value in named.items():
            if not holds(value):
                raise _require.fail(name, _kind(value), wanted)

    return Limit(check)


def between(lowest: Real, highest: Real) -> Limit:
    """Return the limit of a number in [lowest, highest]."""
    return Limit(partial(_within, lowest, highest))


def _within(lowest: Real, highest: Real, **named: Any) -> None:
    _require.finite(**named)
    for name, value in named.items():
        if not lowest <= value <= highest:
            raise _require.fail(name, value, f"between {float(lowest):g} and {float(highest):g}")


def increasing(least: int) -> Limit:
    """Return the limit of `least` or more numbers that as floats are finite and strictly increasing; they
    become a tuple."""
    return Limit(partial(_increasing, least))


def _increasing(least: int, **named: Any) -> tuple[Real, ...]:
    values = _require.listed(**named)
    ((name, given),) = named.items()
    _require.finite(**{f"{name}[{i}]": edge for i, edge in enumerate(values)})
    as_floats = [_require.float_or_inf(edge) for edge in values]
    ascending = all(a < b for a, b in pairwise(as_floats))
    if len(values) < least or not np.isfinite(as_floats).all() or not ascending:
        raise _require.fail(
            name, given, f"at least {least} numbers in increasing order that floats can tell apart"
        )
    return values


def _float_rows(**named: Any) -> tuple[tuple[float, ...], ...]:
    """Return the rows of a matrix as tuples of finite floats; nothing is called for numbers that are finite
    floats already, of which there may be millions."""
    ((name, _),) = named.items()
    rows = []
    for i, row in enumerate(_require.entries(**named)):
        values = _require.listed(**{f"{name}[{i}]": row})
        if not all(type(value) is float for value in values) or not np.isfinite(values).all():
            values = tuple(_require.as_float(**{f"{name}[{i}][{j}]": v}) for j, v in enumerate(values))
        rows.append(values)
    return tuple(rows)


FLOAT_ROWS = Limit(_float_rows)
PUBLIC = Limit(require_public)
COLUMN = instance_of(str, "the name of a column")
MECHANISM = instance_of(Mechanism, "a mechanism: something with public, event and a call")
STATISTIC = such_that(is_statistic, "a statistic, such as Count() or Histogram(column=...)")
