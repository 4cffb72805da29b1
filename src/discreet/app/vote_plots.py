"""Plots what PATE (private aggregation of teacher ensembles) costs: epsilon against the number of questions
to the teachers, one line per aggregator."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .. import accounting
from ..accounting import pate
from ..mechanisms.stable_votes import SparseVotes
from ..mechanisms.votes import ConfidentGNMax, GNMax


class VoteCurve(NamedTuple):
    """One line of the plot: `epsilons[i]` is the epsilon after `queries[i]` questions."""

    name: str
    queries: tuple[int, ...]
    epsilons: tuple[float, ...]


def epsilon_of_queries(
    queries: Sequence[int] = (30, 100, 286, 500, 1000, 2000),
    *,
    sigma: int = 40,
    check_sigma: int = 150,
    teachers: int = 250,
    agreeing: int = 230,
    delta: float = 1e-5,
    failures: int = 5,
) -> list[VoteCurve]:
    """Return four lines of epsilon at `delta` against the number of questions, for votes in which `agreeing`
    of the `teachers` name the same class.

    Three do not depend on the votes: GNMax with noise of standard deviation `sigma`; Confident-GNMax, which
    checks with `check_sigma` first and answers half of the questions; and the sparse vector technique with
    `failures` refusals paid for. The fourth is the data-dependent price of GNMax, with the conversion to
    (epsilon, delta) of the published paper.

    The epsilon of the sparse vector technique is the least at which its threshold is at most the distance of
    these votes from another winner (how many votes can change while the winner stays). It hardly grows with
    the number of questions.
    """
    sizes = tuple(queries)
    variance = sigma * sigma
    plain = [accounting.epsilon(GNMax(variance=variance, queries=n).event(), delta=delta) for n in sizes]
    confident = [
        accounting.epsilon(
            ConfidentGNMax(
                threshold=0, check_variance=check_sigma**2, variance=variance, queries=n, answers=(n + 1) // 2
            ).event(),
            delta=delta,
        )
        for n in sizes
    ]
    # the largest number of teachers that may change their vote without changing the winner
    distance = agreeing - teachers // 2 - 1
    sparse = [_sparse_epsilon(distance, n, failures, delta) for n in sizes]
    # ten classes, and all other teachers agree on one of them
    votes = (agreeing, teachers - agreeing, *[0] * 8)
    dependent = [
        pate.vote_cost([votes] * n, float(sigma)).epsilon_for_steward(delta, classic=True) for n in sizes
    ]
    return [
        VoteCurve(f"GNMax, sigma {sigma}", sizes, tuple(plain)),
        VoteCurve(
            f"Confident-GNMax, sigma {check_sigma} and {sigma}, half answered", sizes, tuple(confident)
        ),
        VoteCurve(f"sparse vector, {failures} refusals", sizes, tuple(sparse)),
        VoteCurve("GNMax, data-dependent", sizes, tuple(dependent)),
    ]


def _sparse_epsilon(distance: int, queries: int, failures: int, delta: float) -> float:
    """Return, by bisection to one part in a thousand, the least epsilon between 0.01 and 100 at which the
    threshold of `SparseVotes` is at most `distance`."""
    low, high = 1e-2, 100.0
    while high / low > 1 + 1e-3:
        middle = (low * high) ** 0.5
        votes = SparseVotes(epsilon=middle, delta=delta, failures=failures, queries=queries)
        low, high = (low, middle) if votes.threshold <= distance else (middle, high)
    return high


def draw(path: Path, lines: Sequence[VoteCurve] | None = None) -> Path:
    """Draw the lines, by default those of `epsilon_of_queries()`, into a PNG file and return its path. The
    label of the y axis says delta 1e-5, the default of `epsilon_of_queries`."""
    from .plots import one_picture, style_axes

    curves = epsilon_of_queries() if lines is None else lines

    def draw_curves(axes: Any) -> None:
        for line in curves:
            axes.plot(line.queries, line.epsilons, marker="o", label=line.name)
        axes.legend()
        style_axes(axes, "What questions to teachers cost", "questions", "epsilon at delta 1e-5")

    return one_picture(draw_curves, path)
