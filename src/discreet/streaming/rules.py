"""Convex sets of decisions, and the update rules of online learning on noisy sums of gradients:
post-processing, with bounds of the regret that are known before anything is spent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .. import _require
from .._registry import described

Floats = NDArray[np.float64]


class ConvexSet(Protocol):
    """Describes where decisions live: the nearest point to any other, and its diameter."""

    @property
    def dimension(self) -> int: ...

    @property
    def diameter(self) -> float: ...

    def project(self, w: Floats, /) -> Floats: ...


@described("streaming.Ball")
@dataclass(frozen=True, slots=True)
class Ball:
    """Holds all points within `radius` of the origin."""

    dimension: int
    radius: float = 1.0

    def __post_init__(self) -> None:
        _require.integer(dimension=self.dimension, at_least=1)
        _require.positive(radius=self.radius)

    @property
    def diameter(self) -> float:
        return 2 * self.radius

    def project(self, w: Floats) -> Floats:
        length = float(np.linalg.norm(w))
        return w if length <= self.radius else w * (self.radius / length)


@described("streaming.Box")
@dataclass(frozen=True, slots=True)
class Box:
    """Holds all points with every entry between `lower` and `upper`."""

    dimension: int
    lower: float = 0.0
    upper: float = 1.0

    def __post_init__(self) -> None:
        _require.integer(dimension=self.dimension, at_least=1)
        _require.ordered(lower=self.lower, upper=self.upper)

    @property
    def diameter(self) -> float:
        return (self.upper - self.lower) * math.sqrt(self.dimension)

    def project(self, w: Floats) -> Floats:
        return np.clip(w, self.lower, self.upper)


@described("streaming.Simplex")
@dataclass(frozen=True, slots=True)
class Simplex:
    """Holds all weights that are not negative and add up to 1."""

    dimension: int

    def __post_init__(self) -> None:
        _require.integer(dimension=self.dimension, at_least=1)

    @property
    def diameter(self) -> float:
        return math.sqrt(2)

    def project(self, w: Floats) -> Floats:
        """Project onto the simplex by sorting (Duchi, Shalev-Shwartz, Singer & Chandra 2008)."""
        # The projection is the same for w plus a constant; with large entries the 1 below would be lost.
        w = w - w.max()
        falling = np.sort(w)[::-1]
        excess = (np.cumsum(falling) - 1) / np.arange(1, len(w) + 1)
        return np.asarray(np.maximum(w - excess[np.flatnonzero(falling > excess)[-1]], 0.0))


Space = Ball | Box | Simplex


def follow_leader(space: ConvexSet, decisions: Floats, noisy: Floats, convexity: float, step: int) -> Floats:
    """Return the minimizer over the set of <v, w> + (H / 2) sum of |w - w_s|² over `step` decisions, whose
    sum is `decisions`: the projection of their mean less v / (H step)."""
    return space.project(decisions / step - noisy / (convexity * step))


def descend_mirror(space: ConvexSet, noisy: Floats, rate: float) -> Floats:
    """Return the minimizer over the set of <v, w> + (rate / 2) |w - w_1|², w_1 the point nearest to the
    origin: the projection of w_1 - v / rate."""
    return space.project(space.project(np.zeros(space.dimension)) - noisy / rate)


def weigh_experts(noisy: Floats, temperature: float) -> Floats:
    """Return weights proportional to exp(- v / temperature): Hedge."""
    weights = np.exp(-(noisy - noisy.min()) / temperature)
    return np.asarray(weights / weights.sum())


def leader_bound(space: ConvexSet, lipschitz: float, convexity: float, deviations: Sequence[float]) -> float:
    """Return a bound of the expected regret of the approximate leader, for sums with these deviations.

    Proof: the leader of sums with noise n_t, which plays in round t + 1, is within x = |n_t| / (H t) of the
           exact one, by strong convexity of the objective, and E|n_t| <= sqrt(d) times its deviation. To play
           it costs L x in that round, where the surrogate <g, w> + (H / 2) |w - w_s|² has the gradient g.
           The exact leader meets gradients of length at most L + H x there, and its regret is at most the sum
           of (L + H x)² / (2 H t) over rounds t (Kakade & Shalev-Shwartz 2008), so at most twice
           L² (1 + ln T) / (2 H) and the sum of H x² / t, in which H x <= H D <= 2 L: losses whose gradients
           are at most L long and that are H-strongly convex have a diameter D of at most 2 L / H.
    """
    root = math.sqrt(space.dimension)
    exact = lipschitz**2 * (1 + math.log(len(deviations))) / (2 * convexity)
    shifts = (
        min(space.diameter, root * deviation / (convexity * t)) * (1 + 2 / (t + 1))
        for t, deviation in enumerate(deviations, 1)
    )
    return 2 * exact + lipschitz * sum(shifts)


def mirror_bound(space: ConvexSet, lipschitz: float, rate: float, deviations: Sequence[float]) -> float:
    """Return rate D² / 2 + L² T / (2 rate) for exact sums, and L |n_t| / rate for the noise of each step.

    Proof: as Agarwal & Singh 2017 argue, the noisy leader is within |n_t| / rate of the exact one; no
           decision is further than D from w_1.
    """
    root, steps = math.sqrt(space.dimension), len(deviations)
    exact = rate * space.diameter**2 / 2 + lipschitz**2 * steps / (2 * rate)
    return exact + lipschitz * sum(min(space.diameter, root * deviation / rate) for deviation in deviations)


def experts_bound(experts: int, temperature: float, deviations: Sequence[float]) -> float:
    """Return T / (8 temperature) + temperature ln N for exact sums of losses in [0, 1]; of the noise, twice
    the expected largest entry at the end and the difference that it makes in each step.

    Proof: Hedge's bound for the noisy losses l_t + n_t - n_(t-1), whose sums are v_t: the expected regret
           with oblivious losses changes by at most E max |n_T| for the comparator and, with weights that move
           by at most a share min(1, |n_t - n_(t-1)| / temperature) in a step, by that share of a loss of 1.
    """
    widest = math.sqrt(2 * math.log(2 * experts))
    noise = [deviation * widest for deviation in deviations]
    noise_cost = sum(min(1.0, 2 * x / temperature) for x in noise)
    return len(noise) / (8 * temperature) + temperature * math.log(experts) + 2 * noise[-1] + noise_cost
