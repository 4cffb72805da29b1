"""Prices that many tests of a package ask for again: each is computed once per process.

A calibration prices some twenty events, and dozens of tests calibrate to the same epsilon and delta. An event
and a delta determine the price, so the price that is kept is the one that would be computed again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from discreet import accounting
from discreet.accounting import pricing

_PRICES: dict[Any, float] = {}
_compute: Any = pricing.epsilon


def _epsilon(*events: Any, **options: Any) -> float:
    try:
        # the type of a number too: True is equal to 1, and is no delta
        key = (events, *((name, type(value), value) for name, value in sorted(options.items())))
        hash(key)
    except TypeError:
        return float(_compute(*events, **options))
    if key not in _PRICES:
        _PRICES[key] = _compute(*events, **options)
    return _PRICES[key]


@pytest.fixture(scope="module", autouse=True)
def an_event_is_priced_once() -> Iterator[None]:
    """What `calibrate`, a mechanism or a test asks the accountant is answered from memory the second time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pricing, "epsilon", _epsilon)
        patch.setattr(accounting, "epsilon", _epsilon)
        yield
