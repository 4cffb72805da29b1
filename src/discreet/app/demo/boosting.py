"""Runs the boosting attack on leaderboards: hundreds of random submissions, and the majority vote of those
with a score above one half.

Blum & Hardt 2015 (arXiv:1502.04585): a random guess that scored above one half agrees with slightly more than
half of the hidden labels. The majority vote of many such guesses agrees with many of these labels, and has
learned nothing about the population that the labels come from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ... import _require
from ..._errors import Halted
from ...adaptive.reference import PlainBoard
from ...adaptive.submissions import Submission
from ...mechanisms.protocols import Interactive
from ...sampling import SeededEntropy
from ...tables import Memory

Labels = npt.NDArray[np.int64]
Submit = Callable[[Labels], float | None]


def boost(submit: Submit, *, rows: int, submissions: int, seed: int = 0) -> Labels:
    """Return the 0-1 labels that the attack ends with, on a board with `rows` hidden labels.

    `submit(labels)` submits labels and returns the score that the board shows, or None where it shows none.
    """
    _require.integer(rows=rows, submissions=submissions, at_least=1)
    _require.integer(seed=seed, at_least=0)
    return list(_votes(submit, rows, submissions, seed))[-1]


def _votes(submit: Submit, rows: int, submissions: int, seed: int) -> Iterator[Labels]:
    """Yield, after each random submission, the majority vote of the submissions so far that scored above one
    half; ties are broken by labels drawn once."""
    random: Any = np.random.default_rng(seed)
    votes, kept, ties = np.zeros(rows, np.int64), 0, random.integers(0, 2, rows)
    for _ in range(submissions):
        guess: Labels = random.integers(0, 2, rows)
        score = submit(guess)
        if score is not None and score > 0.5:
            votes, kept = votes + guess, kept + 1
        yield np.where(2 * votes == kept, ties, (2 * votes > kept).astype(np.int64))


def climb(
    board: Any, truth: Labels, *, submissions: int, at: Sequence[int] = (), seed: int = 0
) -> list[float]:
    """Attack a board with the hidden labels `truth` (0-1, by row number): return the accuracy of the vote on
    them after each number of submissions in `at` (by default after the last).

    A plain board shows every score. Any other board shows the best score so far, which is that of the
    submission only if it improved; after it has halted it shows none. The randomness is seeded: this is a
    simulation, and `truth` is no secret.
    """
    _require.integer(submissions=submissions, at_least=1)
    _require.integer(seed=seed, at_least=0)
    if not isinstance(board, Interactive):
        raise _require.fail("board", type(board).__name__, "a leaderboard")
    # `Interactive` does not declare the columns that every board has
    columns: Any = board
    source = Memory({columns.id: np.arange(len(truth)), columns.target: truth}, board.public)
    entropy = SeededEntropy(seed)
    state = board.start(source, entropy=entropy)
    shows_all = isinstance(board, PlainBoard)

    def submit(labels: Labels) -> float | None:
        nonlocal state
        try:
            state, standing = board.answer(
                state, source, Submission.of("attack", dict(enumerate(labels.tolist()))), entropy=entropy
            )
        except Halted:
            return None
        return float(standing.value.score) if shows_all or standing.value.improved else None

    measured_after, accuracies = set(at or (submissions,)), []
    for count, labels in enumerate(_votes(submit, len(truth), submissions, seed), 1):
        if count in measured_after:
            accuracies.append(float((labels == truth).mean()))
    return accuracies
