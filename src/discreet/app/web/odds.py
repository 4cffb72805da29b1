"""What an epsilon means, in plain odds."""

from __future__ import annotations

import math


def odds(epsilon: float) -> str:
    """Say what a price means for one person.

    An onlooker who held something about a person for a coin toss (1 in 2) holds it, after the answer, for at
    most e^epsilon / (1 + e^epsilon): the posterior under pure differential privacy (Kasiviswanathan & Smith
    2014, arXiv:0803.3946, Theorem 2.2 for odds).

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
