"""What questions to teachers cost: epsilon against their number, for each aggregator, in one picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .. import accounting
from ..accounting import pate
from ..mechanisms.stable_votes import SparseVotes
from ..mechanisms.votes import ConfidentGNMax, GNMax


class VoteCurve(NamedTuple):
    """One line: epsilon after so many questions."""

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
    """Return the lines: GNMax, Confident-GNMax with half of its questions answered, the sparse vector that
    answers the lead at hand, all data-independent; and GNMax data-dependent, by the published conversion.

    The sparse vector's epsilon is the least at which a lead of these votes is above its threshold on average,
    with `failures` refusals paid for: it hardly grows with the number of questions.
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
    distance = agreeing - teachers // 2 - 1
    sparse = [_sparse_epsilon(distance, n, failures, delta) for n in sizes]
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
    low, high = 1e-2, 100.0
    while high / low > 1 + 1e-3:
        middle = (low * high) ** 0.5
        votes = SparseVotes(epsilon=middle, delta=delta, failures=failures, queries=queries)
        low, high = (low, middle) if votes.threshold <= distance else (middle, high)
    return high


def draw(path: Path, lines: Sequence[VoteCurve] | None = None) -> Path:
    """Draw the lines into a file."""
    from .plots import one_picture, style_axes

    curves = epsilon_of_queries() if lines is None else lines

    def inside(axes: Any) -> None:
        for line in curves:
            axes.plot(line.queries, line.epsilons, marker="o", label=line.name)
        axes.legend()
        style_axes(axes, "What questions to teachers cost", "questions", "epsilon at delta 1e-5")

    return one_picture(inside, path)
