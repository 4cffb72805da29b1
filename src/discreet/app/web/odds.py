"""What an epsilon means, in plain odds."""

from __future__ import annotations

import math


def odds(epsilon: float) -> str:
    """Say what a price means for one person, under add_remove.

    By the definition of pure differential privacy, odds of somebody being in the data move by a factor of at
    most e^epsilon: an onlooker who held it for a coin toss (odds 1) holds it, after the answer, with at most
    e^epsilon / (1 + e^epsilon). What somebody's rows say is two steps away, one row out and another in: there
    the factor is e^(2 epsilon).

    >>> odds(0.1)[-19:]
    'say, at most 55:45.'
    """
    inside, content = _bet(epsilon), _bet(2 * epsilon)
    if inside is None or content is None:
        return (
            "At this price an answer may give a fact about one person away almost surely: it protects "
            "against little more than certainty."
        )
    return (
        f"Somebody who would have bet 50:50 on whether one person is in the data could, after this answer, "
        f"bet at most {inside}; on what that person's rows say, at most {content}."
    )


def _bet(epsilon: float) -> str | None:
    """Return the fair bet after odds have moved by e^epsilon from even; None where it is nearly certain."""
    after = 100 / (1 + math.exp(-min(epsilon, 700.0)))
    if after > 99.95:
        return None
    said = f"{after:.1f}".rstrip("0").rstrip(".")
    other = f"{100 - float(said):.1f}".rstrip("0").rstrip(".")
    return f"{said}:{other}"
