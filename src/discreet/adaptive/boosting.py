"""The attack that breaks plain leaderboards: hundreds of random submissions, and the majority vote of the lucky ones.

Blum & Hardt 2015 (arXiv:1502.04585), Section 4.1: each random guess that scored above one half knows a little about the hidden labels; their
majority knows a lot about these labels, and nothing about the population they came from.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _require

Labels = npt.NDArray[np.int64]


def boost(submit: Callable[[Labels], float | None], *, rows: int, submissions: int, seed: int = 0) -> Labels:
    """The 0-1 labels that the attack ends with, for a board with `rows` rows.

    `submit` hands in labels and returns the score that the board tells for them, or None where it tells none.
    """
    _require.integer(rows=rows, submissions=submissions, at_least=1)
    _require.integer(seed=seed, at_least=0)
    random: Any = np.random.default_rng(seed)
    votes, kept = np.zeros(rows, np.int64), 0
    for _ in range(submissions):
        guess: Labels = random.integers(0, 2, rows)
        score = submit(guess)
        if score is not None and score > 0.5:
            votes, kept = votes + guess, kept + 1
    ties = random.integers(0, 2, rows)
    return np.where(2 * votes == kept, ties, (2 * votes > kept).astype(np.int64))
