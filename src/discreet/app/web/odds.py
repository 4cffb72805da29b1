"""What an epsilon means, in plain odds."""

from __future__ import annotations

import math


def odds(epsilon: float) -> str:
    """Say what a price means for one person.

    By the definition of pure differential privacy, odds move by a factor of at most e^epsilon: an onlooker
    who held a fact for a coin toss (odds 1) holds it, after the answer, with at most e^epsilon / (1 +
    e^epsilon).

    >>> odds(0.1)[-10:]
    '52.5:47.5.'
    """
    after = 100 / (1 + math.exp(-min(epsilon, 700.0)))
    said = f"{after:.1f}".rstrip("0").rstrip(".")
    if after > 99.95:
        return (
            "At this price an answer may give a fact about one person away almost surely: it protects "
            "against "
            "little more than certainty."
        )
    other = f"{100 - float(said):.1f}".rstrip("0").rstrip(".")
    return (
        f"Somebody who would have bet 50:50 on a fact about one person could, after this answer, bet at most "
        f"{said}:{other}."
    )
