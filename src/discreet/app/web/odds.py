"""What a price means, in plain odds: epsilon and delta both."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...accounting import Event
    from ...explaining import Risk


def odds(event: Event, delta: float) -> str:
    """Say what a price means for one person, by `explaining.Risk`.

    Where the event has no pure epsilon, the bound has an exception, whose chance is said; at delta 0 one in a
    million is taken, and said. What somebody's rows say is two steps away under add_remove, one row out and
    another in.

    >>> from discreet.accounting import PureDP
    >>> odds(PureDP(epsilon=0.1), 0.0)[-19:]
    'say, at most 55:45.'
    """
    from ..._public import REPLACE
    from ...explaining import Risk
    from ...explaining.api import USUAL_DELTA

    risk = Risk(event, delta)
    if not risk.bounded:
        risk = Risk(event, USUAL_DELTA)
    content = risk.of_a_value
    inside, rows = _bet(risk), _bet(content)
    if inside is None or rows is None:
        return (
            "At this price an answer may give a fact about one person away almost surely: it protects "
            "against little more than certainty."
        )
    if risk.neighbors is REPLACE:
        return (
            f"Somebody who would have bet 50:50 on which of two things one person's rows say could, after "
            f"this answer, bet at most {inside}{_except(risk)}."
        )
    return (
        f"Somebody who would have bet 50:50 on whether one person is in the data could, after this answer, "
        f"bet at most {inside}{_except(risk)}; on what that person's rows say, at most {rows}"
        f"{_except(content)}."
    )


def _except(risk: Risk) -> str:
    """Return how often the bound may fail."""
    from ...explaining.words import out_of

    return f" (except with a chance of {out_of(risk.odds_fail)})" if risk.odds_fail else ""


def _bet(risk: Risk) -> str | None:
    """Return the fair bet after even odds have moved, rounded up; None where it is nearly certain."""
    # in tenths of a percent; 1000 of them would say that the fact is certain
    tenths = math.ceil(1000 * risk.after(0.5) - 1e-9)
    return f"{tenths / 10:g}:{(1000 - tenths) / 10:g}" if tenths < 1000 else None
