"""Smooth sensitivity of PATE's data-dependent cost: smooth over neighbors by its definition, and never below
what a vote can do."""

from __future__ import annotations

import math
import random
from itertools import permutations

import pytest

from discreet._errors import InvalidInput
from discreet.accounting import pate

Votes = list[int]


def _moved(rng: random.Random, votes: Votes) -> Votes:
    giver = rng.choice([i for i, n in enumerate(votes) if n > 0])
    taker = rng.choice([i for i in range(len(votes)) if i != giver])
    return [n - (i == giver) + (i == taker) for i, n in enumerate(votes)]


def _case(rng: random.Random) -> tuple[list[Votes], list[Votes], float, float, float]:
    sigma = math.exp(rng.uniform(math.log(0.7), math.log(40)))
    order = rng.choice([1.2, 2.0, 5.0, 20.0])
    beta = rng.choice([1e-3, 0.01, 0.1, 0.5])
    classes = rng.randint(2, 6)
    queries = [
        [rng.randint(0, rng.choice([3, 60, 250])) + (i == 0) for i in range(classes)]
        for _ in range(rng.randint(1, 3))
    ]
    return queries, [_moved(rng, votes) for votes in queries], sigma, order, beta


@pytest.mark.parametrize("seed", range(4))
def test_smooth_sensitivity_grows_by_at_most_e_to_beta_between_neighbors(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(60):
        queries, neighbors, sigma, order, beta = _case(rng)
        distance = rng.choice([0, 3, 50])
        here, there = (
            pate.smooth_sensitivity(v, sigma, order=order, beta=beta, distance=distance)
            for v in (queries, neighbors)
        )
        assert abs(math.log(here / there)) <= beta * (1 + 1e-12) + 1e-14, (
            queries,
            neighbors,
            sigma,
            order,
            beta,
        )


def test_the_pair_that_an_upper_bound_of_local_sensitivity_broke() -> None:
    here, there = (
        pate.smooth_sensitivity([votes], 6.13899, order=2, beta=0.01) for votes in ([8, 45, 60], [8, 46, 59])
    )
    assert abs(math.log(here / there)) <= 0.01 + 1e-14


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_smooth_sensitivity_is_at_least_the_change_that_any_moved_vote_makes(seed: int) -> None:
    rng = random.Random(100 + seed)
    for _ in range(40):
        queries, _, sigma, order, beta = _case(rng)
        smooth = pate.smooth_sensitivity(queries, sigma, order=order, beta=beta)
        largest = 0.0
        for votes in queries:
            cost = pate.query_rdp(order, pate.other_answer(votes, sigma), sigma)
            changes = [0.0]
            for giver, taker in permutations(range(len(votes)), 2):
                if votes[giver] > 0:
                    near = [n - (i == giver) + (i == taker) for i, n in enumerate(votes)]
                    changes.append(abs(pate.query_rdp(order, pate.other_answer(near, sigma), sigma) - cost))
            largest += max(changes)
        assert smooth >= largest, (queries, sigma, order, beta)


@pytest.mark.parametrize("votes", [[0, 0], [1, 0], [250, 0, 0], [5, 5, 5, 5], [10**6, 1]])
@pytest.mark.parametrize("sigma", [0.05, 3.0, 1000.0])
def test_smooth_sensitivity_at_the_edges_is_positive_and_at_most_the_worst_case(
    votes: Votes, sigma: float
) -> None:
    value = pate.smooth_sensitivity([votes], sigma, order=3.0, beta=0.05)
    assert 0 < value <= 3.0 / sigma**2 * (1 + 1e-6)


def test_one_moved_vote_moves_the_place_by_at_most_as_many_cells_as_are_counted() -> None:
    rng = random.Random(5)
    for _ in range(400):
        queries, neighbors, sigma, _, _ = _case(rng)
        for here, there in zip(queries, neighbors, strict=True):
            assert abs(pate._cell(here, sigma) - pate._cell(there, sigma)) <= pate._CROSSED


def test_cells_that_are_not_nested_fail_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counting too few crossed cells is the fault that was mended: the law must see it."""
    monkeypatch.setattr(pate, "_CROSSED", 2)
    with pytest.raises(AssertionError):
        test_smooth_sensitivity_grows_by_at_most_e_to_beta_between_neighbors(0)


def test_the_price_of_the_release_holds_for_every_ratio_of_scales_that_smoothness_allows() -> None:
    """Over a fine grid of ratios, both ends included, and for values as far apart as the smaller scale
    allows."""
    for order in (1.1, 3.0, 11.0, 40.0):
        for beta in (1e-4, 1e-2, 0.4 / order):
            claimed = pate.release_rdp(order, beta=beta, noise=5.0)
            for step in range(-50, 51):
                ratio = math.exp(beta * step / 50)
                v = order - (order - 1) * ratio**2
                truth = (
                    order * (min(ratio, 1.0) / 5) ** 2 / (2 * v)
                    - math.log(ratio)
                    - math.log(v) / (2 * (order - 1))
                )
                assert truth <= claimed


def test_bad_parameters_are_named() -> None:
    with pytest.raises(InvalidInput, match="order"):
        pate.smooth_sensitivity([[3, 1]], 2.0, order=1.0, beta=0.1)
    with pytest.raises(InvalidInput, match="distance"):
        pate.smooth_sensitivity([[3, 1]], 2.0, order=2.0, beta=0.1, distance=-1)
