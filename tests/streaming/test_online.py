"""Private online learners: regret below its bound and near that of the leader without noise; convex sets project."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from discreet import Halted, InvalidInput
from discreet.mechanisms.matrix.triangular import IDENTITY
from discreet.mechanisms.protocols import Sensitivity
from discreet.sampling import SeededEntropy
from discreet.streaming import (
    Ball,
    Box,
    FollowTheApproximateLeader,
    PrivateSums,
    Simplex,
    error_factors,
    regret,
)
from discreet.streaming.encoders import encoder
from discreet.streaming.factors import NAMES
from discreet.streaming.losses import descend_mirror, experts_bound, mirror_bound, weigh_experts
from discreet.streaming.online import GRID

STEPS, D = 200, 4


def exact_sums(dimension: int, steps: int, bound: float) -> PrivateSums:
    """Sums almost without noise: a price of rho = 10^12."""
    return PrivateSums(dimension, steps, bound, rho=Fraction(10**12))


def points() -> Any:
    rng = np.random.default_rng(1)
    z = rng.normal(0, 0.3, (STEPS, D)) + np.array([0.5, 0, 0, -0.3])
    return z / np.maximum(1, np.linalg.norm(z, axis=1))[:, None]


def played(learner: Any, seed: int = 3) -> float:
    """Regret for the losses |w - z|² / 2, 1-strongly convex, with gradients of length at most 2 on the ball."""
    entropy, losses, z = SeededEntropy(seed), [], points()
    for one in z:
        losses.append(0.5 * float(np.square(learner.decision - one).sum()))
        learner.step(lambda w, one=one: w - one, entropy=entropy)
    best = 0.5 * float(np.square(z - z.mean(axis=0)).sum())
    return regret(losses, best)


def leader(sums: PrivateSums) -> FollowTheApproximateLeader:
    return FollowTheApproximateLeader(Ball(D), sums, 1.0)


def test_the_approximate_leader_is_between_the_leader_and_its_bound() -> None:
    without = played(leader(exact_sums(D, STEPS, 2.0)))
    assert 0 < without < leader(exact_sums(D, STEPS, 2.0)).regret_bound(2.0)
    for strategy, price in (("tree", {"epsilon": 4}), ("blt", {"epsilon": 4, "delta": 1e-6})):
        private = leader(PrivateSums(D, STEPS, 2.0, strategy=strategy, **price))  # type: ignore[arg-type]
        assert without < played(private) < private.regret_bound(2.0)


def test_the_exact_leader_is_the_mean_so_far() -> None:
    """Without noise, the losses above have the mean of the points as their leader."""
    learner = leader(exact_sums(D, STEPS, 2.0))
    z = points()
    for one in z[:50]:
        learner.step(lambda w, one=one: w - one, entropy=SeededEntropy(1))
    assert np.allclose(learner.decision, z[:50].mean(axis=0), atol=1e-3)


def test_a_gradient_that_is_refused_leaves_the_leader_as_it_was() -> None:
    learners = [leader(exact_sums(D, STEPS, 2.0)) for _ in range(2)]
    for one in points()[:3]:
        with pytest.raises(InvalidInput, match="entries"):
            learners[0].step(lambda w: [1.0], entropy=SeededEntropy(1))
        for learner in learners:
            learner.step(lambda w, one=one: w - one, entropy=SeededEntropy(1))
    assert np.array_equal(learners[0].decision, learners[1].decision)


def test_vectors_are_clipped_before_they_are_added_whatever_they_hold() -> None:
    for price, norm in (({"epsilon": 1}, 1), ({"rho": 1}, 2)):
        sums = PrivateSums(3, 4, 0.5, strategy="item", **price)  # type: ignore[arg-type]
        for hostile in ([1e300, -1e300, 0], [np.nan, 1, 1], [np.inf, 0, 0], [0.5, 0, 0], [1e-320, 0, 0]):
            seen: list[Any] = []
            sums.steps_taken = 0
            whole = sums._encoder.encode
            sums._encoder.encode = lambda s, x, t, w=whole, seen=seen: (seen.append(x), w(s, x, t))[1]  # type: ignore[method-assign]
            sums.add(hostile, entropy=SeededEntropy(1))
            assert np.linalg.norm(seen[0].astype(float), norm) <= GRID
            sums._encoder.encode = whole  # type: ignore[method-assign]


@pytest.mark.parametrize("neighbors", ["add_remove", "replace"])
def test_sums_have_the_noise_that_error_factors_say(neighbors: Any) -> None:
    # rho = 1/2 is noise of standard deviation 1 for a unit of length 1; replaced, it moves by twice that
    for strategy in NAMES:
        sums = PrivateSums(3, 7, 5.0, rho=0.5, strategy=strategy, neighbors=neighbors)
        factor = 5.0 * (2 if neighbors == "replace" else 1) * error_factors(strategy, steps=7).max
        assert max(sums.deviations()) == pytest.approx(factor, rel=1e-5), strategy


def test_noise_on_every_item_is_for_the_steps_that_a_unit_may_take_part_in() -> None:
    items, step = encoder(IDENTITY, 10), Sensitivity(linf=4, l0=3, l1=7, l2_squared=16)
    for times, separation in ((1, 1), (3, 1), (20, 1), (4, 3), (9, 4)):
        positions = range(0, 10, separation)[:times]
        assert items.sensitivity(times, separation, step).l2_squared == 16 * len(positions)


def test_steps_end_and_shapes_are_checked() -> None:
    sums = PrivateSums(2, 1, 1.0, epsilon=1)
    with pytest.raises(InvalidInput, match="2 entries"):
        sums.add([1.0], entropy=SeededEntropy(1))
    sums.add([1.0, 0.0], entropy=SeededEntropy(1))
    with pytest.raises(Halted, match="steps are taken"):
        sums.add([1.0, 0.0], entropy=SeededEntropy(1))


@pytest.mark.parametrize("space", [Ball(3, 2.0), Box(3, -1, 1), Simplex(3)])
def test_projections_are_the_nearest_points(space: Any) -> None:
    rng = np.random.default_rng(6)
    for w in rng.normal(0, 3, (20, 3)):
        nearest = space.project(w)
        assert np.allclose(space.project(nearest), nearest)
        for other in rng.normal(0, 3, (50, 3)):
            inside = space.project(other)
            assert np.linalg.norm(w - nearest) <= np.linalg.norm(w - inside) + 1e-9
            assert np.linalg.norm(inside - nearest) <= space.diameter + 1e-9


@pytest.mark.parametrize("slope", [1.0, -1.0])
def test_mirror_descent_keeps_its_bound_on_sets_away_from_the_origin(slope: float) -> None:
    """Steps begin at the first decision. (They began at the origin: in the box from 100 to 101 the decision stayed
    at 100 for 10,000 rounds, and 100 rounds had a regret of 100 where 10 was the bound.)"""
    box, rate = Box(1, 100.0, 101.0), 10.0
    decisions = [float(descend_mirror(box, np.array([slope * t]), rate)[0]) for t in range(100)]
    bound = mirror_bound(box, 1.0, rate, [0.0] * 100)
    assert (
        sum(slope * w for w in decisions) - 100 * min(slope * 100, slope * 101) <= bound == pytest.approx(10)
    )


def test_points_far_away_are_projected_onto_the_simplex_too() -> None:
    """Beside 1e20 the 1 of the simplex is lost in floats: no entry was found to be above zero."""
    assert Simplex(3).project(np.array([1e20, 0.0, 0.0])).tolist() == [1, 0, 0]
    assert Simplex(2).project(np.array([-1e20, -1e20])).tolist() == [0.5, 0.5]


def test_the_bound_of_experts_holds_for_the_heavier_tails_of_laplace_noise() -> None:
    """The largest of N Laplace noises is about ln N scales, which sqrt(2 ln(2 N)) deviations do not reach."""
    largest_of_1000 = sum(1 / k for k in range(1, 1001)) / math.sqrt(2)
    noise_free = 2 / (8 * 1e12) + 1e12 * math.log(1000)
    noise_cost = experts_bound(1000, 1e12, [1e9, 1e9], laplace=True) - noise_free
    assert noise_cost * 2e12 / 1e9 > largest_of_1000
    # No round costs more than a loss of 1, and the noise of the last sum is in no decision that is played.
    turns = experts_bound(2, 1.0, [100.0, 0.0] * 5 + [100.0], laplace=False) - 11 / 8 - math.log(2)
    assert turns == pytest.approx(5)


def test_noise_moves_the_weights_of_experts_by_at_most_the_share_that_is_charged() -> None:
    """The step of the proof: the weights differ by at most max|n| / (2 temperature) in total variation; a third of
    the noise over the temperature is not enough."""
    rng = np.random.default_rng(7)
    shares = []
    for temperature, size in ((0.3, 0.1), (1.0, 0.1), (5.0, 3.0), (1.0, 10.0)):
        for _ in range(100):
            sums = rng.normal(0, temperature, 4)
            noise = size * rng.choice([-1.0, 1.0], 4)
            change = weigh_experts(sums + noise, temperature) - weigh_experts(sums, temperature)
            shares.append(np.abs(change).sum() / 2 / (size / temperature))
    assert 1 / 3 < max(shares) <= 1 / 2


@pytest.mark.parametrize("step", [0, -1, 11])
def test_deviations_of_steps_that_do_not_exist_are_refused(step: int) -> None:
    with pytest.raises(InvalidInput, match="step"):
        PrivateSums(1, 10, 1.0, rho=1).deviation(step)
