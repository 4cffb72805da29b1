"""Shows adaptive data analysis: a reusable holdout, and leaderboards that random submissions cannot climb."""

from __future__ import annotations

import numpy as np

from ... import accounting as acc
from ..._errors import MissingExtra
from ..._public import REPLACE, Categories, Public
from ...adaptive import (
    Ladder,
    ParameterFreeLadder,
    PlainBoard,
    ShakyLadder,
    SparseVectorBoard,
    Thresholdout,
)
from .boosting import climb
from .holdout_experiment import Outcome, holdout_of, science
from .stage import Stage

TITLE = "Many looks at one dataset, without being fooled by it"

# The holdout experiment: people (and as many attributes), the defaults of `science`, and how often it is run.
N, RUNS = 10_000, 5
# The leaderboards: hidden labels, and the numbers of submissions after which the attack is measured.
ROWS, COUNTS = 1000, (10, 25, 50, 100, 150, 200, 250, 300)


def run(stage: Stage) -> None:
    """Show the experiment of Dwork et al. (Science 2015), what is proved about it, and the boosting attack of
    Blum and Hardt."""
    stage.say(
        f"{N:,} people, {N:,} attributes, and a class to predict that has [bold]nothing to do with "
        f"any of them[/]. An analyst keeps the "
        f"attributes that correlate with the class on the training part and on the holdout alike, lets the "
        f"best of them vote, and asks the holdout how "
        f"accurate the vote is. The true accuracy is 50%. (Dwork et al., Science 2015; {RUNS} runs.)\n"
    )
    outcomes = {
        (signal, reusable): science(signal=signal, reusable=reusable, runs=RUNS, seed=3)
        for signal in (False, True)
        for reusable in (False, True)
    }
    _holdouts(stage, outcomes[False, False], outcomes[False, True])
    _say_what_is_proved(stage, outcomes[False, True])
    curves = _boards(stage)
    _pictures(stage, outcomes, curves)


def _holdouts(stage: Stage, plain: Outcome, reusable: Outcome) -> None:
    """Print the accuracies that a plain and a reusable holdout report, and the true ones."""
    indices = [plain.sizes.index(k) for k in (10, 100, 500)]
    rows = [
        [
            f"{plain.sizes[i]}",
            *(
                f"{accuracies.mean(axis=0)[i]:.1%}"
                for accuracies in (plain.holdout, plain.fresh, reusable.holdout, reusable.fresh)
            ),
        ]
        for i in indices
    ]
    stage.table(["attributes", "plain holdout says", "truth", "reusable holdout says", "truth"], rows)
    stage.say("")


def _say_what_is_proved(stage: Stage, reusable: Outcome) -> None:
    """Say what the settings of the experiment cost, and what is proved of more careful ones, which
    generalize."""
    shown = holdout_of(N, N)
    epsilon_per_finding = acc.basic(acc.compose([shown.event])).value / shown.budget
    size = 1_000_000
    public = Public(neighbors=REPLACE, size=size)
    proved = Thresholdout.pure(public, epsilon=0.05, budget=20, threshold=0.01, questions=1000)
    stage.say(
        f"The reusable holdout (Thresholdout) returns the training value where the two values agree, and "
        f"a noisy holdout value where they do "
        f"not (a finding): {reusable.findings.mean():.0f} times in {N + len(reusable.sizes):,} questions "
        f"here. Differences of up to {float(shown.threshold):.1%} are not corrected: with few voting "
        f"attributes the reported accuracy may still be off by as much. Like the paper's, these settings "
        f"keep the analyst from overfitting and protect "
        f"nobody's privacy: each finding costs epsilon {epsilon_per_finding:.2g}. What is "
        f"[bold]proved[/] needs more people: with {size:,}, and epsilon 0.05 for 20 findings in "
        f"1,000 questions, every answer is {proved.generalization()}.\n"
    )


def _boards(stage: Stage) -> dict[str, list[float]]:
    """Attack five leaderboards, print the results, and return by leaderboard the attack's accuracies after
    each of COUNTS submissions.

    `step` is by how much a score must improve to be shown, `budget` how often a private board shows one.
    """
    public = Public(schema=(("y", Categories([0, 1])),), neighbors=REPLACE, size=ROWS)
    truth = np.random.default_rng().integers(0, 2, ROWS)
    boards = {
        "plain": PlainBoard(public=public, target="y", id="id"),
        "ladder": Ladder(public=public, target="y", id="id", step=0.05),
        "parameter-free ladder": ParameterFreeLadder(public=public, target="y", id="id"),
        "shaky ladder, epsilon 1": ShakyLadder(
            public=public, target="y", id="id", epsilon=1, delta=1e-6, step=0.1, budget=4
        ),
        "sparse vector, epsilon 1": SparseVectorBoard(
            public=public, target="y", id="id", epsilon=1, step=0.1, budget=4
        ),
    }
    curves = {name: climb(board, truth, submissions=max(COUNTS), at=COUNTS) for name, board in boards.items()}
    stage.say(
        f"A leaderboard is a holdout for everybody. The attack: submit {max(COUNTS)} random guesses "
        f"of {ROWS:,} labels, and let those that scored above "
        f"one half vote. The share of the hidden labels that the vote gets right (50% would be guessing):\n"
    )
    guarantees = {
        "shaky ladder, epsilon 1": "epsilon 1, delta 1e-06",
        "sparse vector, epsilon 1": "epsilon 1",
    }
    stage.table(
        ["leaderboard", "attack ends at", "privacy"],
        [[name, f"{curve[-1]:.1%}", guarantees.get(name, "no guarantee")] for name, curve in curves.items()],
    )
    stage.say(
        "\nThe two ladders of Blum and Hardt withstand the attack, but no privacy guarantee is proved for "
        "them: on protected labels the "
        "curator refuses them. The last two are private, and that is why they withstand it.\n"
    )
    return curves


def _pictures(
    stage: Stage, outcomes: dict[tuple[bool, bool], Outcome], curves: dict[str, list[float]]
) -> None:
    from .. import adaptive_plots

    try:
        paths = [
            adaptive_plots.science(stage.out / "holdout.png", outcomes),
            adaptive_plots.boards(stage.out / "leaderboards.png", COUNTS, curves),
        ]
    except MissingExtra as missing:
        stage.aside(str(missing))
        return
    stage.saved(*paths)
