"""Defines convex sets of decisions, the update rules of online learning, which post-process noisy sums of
gradients, and bounds of their regret, which are known before anything is spent.

In this module v is the noisy sum of gradients (or losses) so far, n_t its noise after step t, w a decision, H
the strong convexity of the losses (`convexity`), L the longest gradient (`lipschitz`), D the diameter of the
set, d its dimension, T the number of steps and N the number of experts. `deviations` are the standard
deviations of an entry of n_1, ..., n_T. The bounds leave out that vectors are rounded to a grid before they
are added: by at most e per entry, this adds at most T e for experts, and T e sqrt(d) D for other learners.
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
    """Describes a convex set of decisions: its diameter, and the projection onto it, which returns the point
    of the set that is nearest to w."""

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
        # The same constant added to all entries does not change the projection. With the largest entry at 0,
        # rounding does not lose the 1 that is subtracted below, as it would next to large entries.
        w = w - w.max()
        descending = np.sort(w)[::-1]
        # entry k - 1: what to subtract if the k largest entries stay positive
        excess = (np.cumsum(descending) - 1) / np.arange(1, len(w) + 1)
        return np.asarray(np.maximum(w - excess[np.flatnonzero(descending > excess)[-1]], 0.0))


Space = Ball | Box | Simplex


def follow_leader(space: ConvexSet, decisions: Floats, noisy: Floats, convexity: float, step: int) -> Floats:
    """Return the w in the set that minimizes <v, w> + (H / 2) sum of |w - w_s|² over the `step` decisions w_s
    so far, whose sum is `decisions`: the projection of their mean less v / (H step)."""
    return space.project(decisions / step - noisy / (convexity * step))


def descend_mirror(space: ConvexSet, noisy: Floats, inverse_rate: float) -> Floats:
    """Return the w in the set that minimizes <v, w> + (r / 2) |w - w_1|², where w_1 is the point of the set
    nearest to the origin and r is `inverse_rate`, the inverse of a learning rate: the projection of
    w_1 - v / r."""
    return space.project(space.project(np.zeros(space.dimension)) - noisy / inverse_rate)


def weigh_experts(noisy: Floats, temperature: float) -> Floats:
    """Return weights proportional to exp(- v / temperature): Hedge."""
    weights = np.exp(-(noisy - noisy.min()) / temperature)
    return np.asarray(weights / weights.sum())


def leader_bound(space: ConvexSet, lipschitz: float, convexity: float, deviations: Sequence[float]) -> float:
    """Return a bound of the expected regret of the approximate leader.

    Proof: let g_s be the gradient at the decision w_s of round s. By strong convexity the regret is at most
           that for the surrogate losses f_s(w) = <g_s, w> + (H / 2) |w - w_s|². Let u_s be the decision from
           exact sums, which minimizes f_1 + ... + f_(s-1), and x_s = |w_s - u_s| <= D. By strong convexity of
           this sum x_(t+1) <= |n_t| / (H t), and E|n_t| <= sqrt(d) times the deviation. Playing w_s, not u_s,
           costs f_s(w_s) - f_s(u_s) <= L x_s. The gradient of f_s at u_s has length at most L + H x_s, so the
           regret of u_1, ..., u_T is at most the sum of (L + H x_s)² / (2 H s) (Kakade & Shalev-Shwartz
           2008), at most twice L² (1 + ln T) / (2 H) plus the sum of H x_s² / s. There H x_s <= H D <= 2 L:
           where an H-strongly convex loss has gradients of length at most L, the diameter D is at most
           2 L / H. Together x_s adds at most L x_s (1 + 2 / s).
    """
    root = math.sqrt(space.dimension)
    exact = lipschitz**2 * (1 + math.log(len(deviations))) / (2 * convexity)
    shifts = (
        min(space.diameter, root * deviation / (convexity * t)) * (1 + 2 / (t + 1))
        for t, deviation in enumerate(deviations, 1)
    )
    return 2 * exact + lipschitz * sum(shifts)


def mirror_bound(
    space: ConvexSet, lipschitz: float, inverse_rate: float, deviations: Sequence[float]
) -> float:
    """Return a bound of the expected regret of mirror descent: with r the `inverse_rate`, r D² / 2 +
    L² T / (2 r) for exact sums, plus L |n_t| / r for the noise of each step.

    Proof: as in Agarwal & Singh 2017, arXiv:1701.07953, the decision from noisy sums is within |n_t| / r of
           the one from exact sums, and E|n_t| <= sqrt(d) times the deviation; no two decisions are further
           than D apart.
    """
    root, steps = math.sqrt(space.dimension), len(deviations)
    exact = inverse_rate * space.diameter**2 / 2 + lipschitz**2 * steps / (2 * inverse_rate)
    shifts = (min(space.diameter, root * deviation / inverse_rate) for deviation in deviations)
    return exact + lipschitz * sum(shifts)


def experts_bound(experts: int, temperature: float, deviations: Sequence[float], *, laplace: bool) -> float:
    """Return a bound of the expected regret of Hedge for losses in [0, 1]: T / (8 temperature) + temperature
    ln N for exact sums, plus what the noise costs in rounds 2 to T, min(1, E max |n_t| / (2 temperature))
    each, where max is over the entries. `laplace` says whether the noise is Laplace, else it is Gaussian.

    Proof: let p be the weights of round t + 1 from exact sums and q those from sums with noise n_t. Playing
           p, the regret is at most T / (8 temperature) + temperature ln N for any losses in [0, 1], also if
           they depend on earlier decisions (Cesa-Bianchi & Lugosi 2006, Theorem 2.2). Playing q costs at most
           the largest q(A) - p(A) over sets A of experts more, as losses are in [0, 1]. Noise multiplies the
           odds p(A) / (1 - p(A)) by a mean of exp(-n / temperature) over experts in A, over one of experts
           outside, so that their logarithm changes by at most 2 max |n_t| / temperature; the logistic
           function, which turns it into a probability, has a slope of at most 1/4. The noise of the last sum
           is in no decision that is played.
           With s the deviation of n_t, E max |n_t| <= s sqrt(2 ln(2 N)) for Gaussian noise. A sum of Laplace
           noises has E exp(|n| / s) <= 2 E exp(n / s) <= 2e (a Laplace noise of variance u² has E exp(z) =
           1 / (1 - u² / 2) <= exp(u²) for u <= 1, and discrete noise of deviation 1 or more as well), so that
           E max |n_t| <= s ln(N 2e) = s (ln(2 N) + 1).
    """
    widest = math.log(2 * experts) + 1 if laplace else math.sqrt(2 * math.log(2 * experts))
    noise_cost = sum(min(1.0, widest * deviation / (2 * temperature)) for deviation in deviations[:-1])
    return len(deviations) / (8 * temperature) + temperature * math.log(experts) + noise_cost
