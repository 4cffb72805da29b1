"""The boosting attack on leaderboards (Blum & Hardt 2015, arXiv:1502.04585): overfitting by looking often.

Hundreds of random guesses are submitted, and those that the board scored above one half vote. Each of them
agrees with slightly more than half of the hidden labels; their majority agrees with many, and has learned
nothing about the population that the labels come from.

Run: python examples/boosted_leaderboard.py [picture.png]
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

import discreet as dp
from discreet.adaptive import (
    Ladder,
    ParameterFreeLadder,
    PlainBoard,
    ShakyLadder,
    SparseVectorBoard,
    Submission,
)
from discreet.sampling import SeededEntropy
from discreet.tables import Memory


def boost(submit: Callable[[Any], float | None], *, rows: int, submissions: int, seed: int = 0) -> Iterator:
    """After each submission, yield the majority vote of those so far that scored above one half.

    `submit` returns the score that the board shows, or None where it shows none; ties are broken by coins.
    """
    random = np.random.default_rng(seed)
    votes, kept, ties = np.zeros(rows, np.int64), 0, random.integers(0, 2, rows)
    for _ in range(submissions):
        guess = random.integers(0, 2, rows)
        score = submit(guess)
        if score is not None and score > 0.5:
            votes, kept = votes + guess, kept + 1
        yield np.where(2 * votes == kept, ties, (2 * votes > kept).astype(np.int64))


def climb(board: Any, truth: Any, *, submissions: int, at: Sequence[int] = (), seed: int = 0) -> list[float]:
    """Attack a board with these hidden labels, and return the vote's accuracy on them after each number of
    submissions in `at` (by default after the last).

    A plain board shows every score, any other only one that improved on the best, and none once it has
    halted. The randomness is seeded: this is a simulation, and `truth` is no secret.
    """
    source = Memory({board.id: np.arange(len(truth)), board.target: truth}, board.public)
    entropy = SeededEntropy(seed)
    state = board.start(source, entropy=entropy)

    def submit(labels: Any) -> float | None:
        nonlocal state
        submission = Submission.of("attack", dict(enumerate(labels.tolist())))
        try:
            state, standing = board.answer(state, source, submission, entropy=entropy)
        except dp.Halted:
            return None
        shown = isinstance(board, PlainBoard) or standing.value.improved
        return float(standing.value.score) if shown else None

    votes = boost(submit, rows=len(truth), submissions=submissions, seed=seed)
    at = at or (submissions,)
    return [float((labels == truth).mean()) for count, labels in enumerate(votes, 1) if count in at]


if __name__ == "__main__":
    ROWS, COUNTS = 1000, (10, 25, 50, 100, 150, 200, 250, 300)
    public = dp.Public(schema={"y": dp.Categories([0, 1])}, neighbors=dp.REPLACE, size=ROWS)
    hidden = np.random.default_rng().integers(0, 2, ROWS)
    common = {"public": public, "target": "y", "id": "id"}
    private = {"epsilon": 1, "step": 0.1, "budget": 4}
    boards = {
        "plain": PlainBoard(**common),
        "ladder": Ladder(**common, step=0.05),
        "parameter-free ladder": ParameterFreeLadder(**common),
        "shaky ladder, epsilon 1": ShakyLadder(**common, **private, delta=1e-6),
        "sparse vector, epsilon 1": SparseVectorBoard(**common, **private),
    }
    curves = {name: climb(board, hidden, submissions=COUNTS[-1], at=COUNTS) for name, board in boards.items()}
    print(f"{COUNTS[-1]} random guesses of {ROWS:,} labels: how many the vote gets right (50% is guessing)")
    for name, curve in curves.items():
        print(f"{name:26} {curve[-1]:.1%}")
    print("No privacy is proved for the two ladders of Blum and Hardt; the last two are private.")
    if sys.argv[-1].endswith(".png"):
        from matplotlib import pyplot

        figure, axes = pyplot.subplots(figsize=(8.5, 4.6), layout="constrained")
        for name, curve in curves.items():
            axes.plot(COUNTS, curve, lw=2, label=name)
        axes.axhline(0.5, color="#52606d", lw=1, ls=":")
        axes.set(xlabel="random submissions", ylabel="accuracy on the hidden labels")
        axes.legend(frameon=False)
        figure.savefig(sys.argv[-1], dpi=150)
