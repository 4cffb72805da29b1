"""Says in one sentence what the price of a release means for one person, as odds of a bet."""

from __future__ import annotations

from .._public import REPLACE
from ..accounting import Event
from .risk import Risk
from .subjects import USUAL_DELTA
from .words import out_of


def odds(event: Event, delta: float) -> str:
    """Return what a release with this privacy event means for one person, by the bounds of `explaining.Risk`.

    If the event has no finite epsilon at `delta`, `USUAL_DELTA` is taken. A bound that holds only with a
    probability says with which it fails. Under add_remove the sentence has two bounds: on whether a person is
    in the data, and on what their rows say. The second is that of a group of two, because changing rows is
    removing them and adding others.

    >>> from discreet.accounting import PureDP
    >>> odds(PureDP(epsilon=0.1), 0.0)[-19:]
    'say, at most 55:45.'
    """
    risk = Risk(event, delta)
    if not risk.bounded:
        risk = Risk(event, USUAL_DELTA)
    risk_of_value = risk.of_a_value
    bet, bet_on_value = _bet(risk), _bet(risk_of_value)
    if bet is None or bet_on_value is None:
        return (
            "At this price an answer may give a fact about one person away almost surely: it protects "
            "against little more than certainty."
        )
    if risk.neighbors is REPLACE:
        return (
            f"Somebody who would have bet 50:50 on which of two things one person's rows say could, after "
            f"this answer, bet at most {bet}{_except(risk)}."
        )
    return (
        f"Somebody who would have bet 50:50 on whether one person is in the data could, after this answer, "
        f"bet at most {bet}{_except(risk)}; on what that person's rows say, at most {bet_on_value}"
        f"{_except(risk_of_value)}."
    )


def _except(risk: Risk) -> str:
    """Return the words for the probability that the bound fails; none if it always holds."""
    return f" (except with a chance of {out_of(risk.odds_fail)})" if risk.odds_fail else ""


def _bet(risk: Risk) -> str | None:
    """Return the highest probability that a belief of 50% can reach, rounded up as explanations round it, as
    a bet such as "55:45"; None above 99.9%."""
    count, _, per = out_of(risk.after(0.5)).replace(",", "").partition(" in ")
    if per not in ("100", "1000") or not count.isdigit() or count == per:
        return None
    share = int(count) * 100 / int(per)
    return f"{share:g}:{100 - share:.4g}"
