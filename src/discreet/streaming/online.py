"""Private online learning: before each round a decision is computed from the noisy sum of all gradients (or
losses) so far.

The learner sees the data only through `PrivateSums`, a continual sum of clipped vectors, rounded to a grid of
integers, with the noise of a matrix mechanism (`encoders`): its decisions are post-processing. Regret is the
total loss less that of the best fixed decision in hindsight. The bound of the expected regret assumes that
clipping changes nothing: that no gradient is longer than `PrivateSums.bound`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from .. import _require
from .._errors import Halted
from .._public import ADD_REMOVE, Neighbors, Public
from .._require import POSITIVE, Real, at_least
from ..accounting import Event
from ..mechanisms.matrix.matrix_mechanism import Noise, noise_for, norms_for_price
from ..mechanisms.protocols import Sensitivity
from ..sampling import Entropy
from . import factors
from .encoders import Encoder, encoder
from .losses import (
    GRID,
    ConvexSet,
    follow_leader,
    leader_bound,
)

Floats = NDArray[np.float64]


@_require.checked
@dataclass(slots=True)
class PrivateSums:
    """Releases, after each added vector, the noisy sum of all vectors so far: by tree-based aggregation (the
    binary tree mechanism of Dwork, Naor, Pitassi & Rothblum 2010 and Chan, Shi & Song 2011), or another
    strategy of `factors.named`. Vectors are clipped to norm `bound`: l1 for Laplace noise (epsilon alone),
    else l2.

    Guarantee: `event`, for streams that differ in one vector (added, removed or zeroed at its step; under
               `replace` twice the bound).
    Proof:     a clipped vector in units of bound / 2^16 (`GRID`), truncated towards zero, has norm at most
               2^16; `Encoder.sensitivity` bounds how far it moves the measurements. Later vectors may depend
               on releases: see `ContinualCounter`.
    Assumes:   each unit gives one vector.
    """

    dimension: Annotated[int, at_least(1)]
    steps: Annotated[int, at_least(1)]
    bound: Annotated[float, POSITIVE]
    epsilon: Real | None = None
    delta: float = 0.0
    rho: Real | None = None
    strategy: str = "honaker"
    neighbors: Neighbors = ADD_REMOVE
    noise: Noise = field(init=False)
    steps_taken: int = field(init=False, default=0)
    _encoder: Encoder = field(init=False)
    _state: Any = field(init=False)
    _norm: str = field(init=False, default="l2")

    def __post_init__(self) -> None:
        # l2 (Gaussian noise) wherever the price buys it, else l1 (Laplace)
        norm = norms_for_price(self.epsilon, self.delta, self.rho)[-1]
        self._encoder = encoder(factors.named(self.strategy, self.steps), self.steps)
        # A vector that is replaced moves by the old one and the new one.
        change = GRID * (2 if self.neighbors == "replace" else 1)
        l1 = change if norm == "l1" else change * (math.isqrt(self.dimension) + 1)
        one_step = Sensitivity(linf=change, l0=self.dimension, l1=l1, l2_squared=change**2)
        sensitivity = self._encoder.sensitivity(1, 1, one_step)
        public = Public(neighbors=self.neighbors, size=None)
        self.noise = noise_for(
            sensitivity, norm, public, epsilon=self.epsilon, delta=self.delta, rho=self.rho
        )
        self._norm = norm
        self._state = self._encoder.begin(self.dimension)

    @property
    def event(self) -> Event:
        return self.noise.event

    def deviation(self, step: int) -> float:
        """Return the standard deviation of each entry of the sum after `step` = 1, 2, ..."""
        _require.integer(step=step, at_least=1)
        _require.must(step <= self.steps, "step", step, f"at most {self.steps:,}")
        return self.deviations()[step - 1]

    def deviations(self) -> list[float]:
        """Return the standard deviations after every step."""
        unit = self.noise.standard_deviation * self.bound / GRID
        return [math.sqrt(v) * unit for v in self._encoder.variances().tolist()]

    def add(self, vector: Any, *, entropy: Entropy) -> Floats:
        """Clip a vector, add it, and return the noisy sum so far."""
        if self.steps_taken >= self.steps:
            raise Halted(f"all {self.steps:,} steps are taken. Nothing was added or released.")
        array = np.asarray(vector, dtype=np.float64)
        _require.that(
            array.shape == (self.dimension,),
            f"a vector has {self.dimension} entries, got {array.shape}. Nothing was added.",
        )
        # A vector that is not finite has no norm to clip, and counts as zero.
        array = array if np.isfinite(array).all() else np.zeros(self.dimension)
        peak = float(np.abs(array).max(initial=0.0)) or 1.0
        direction = array / peak
        length = float(np.linalg.norm(direction, 1 if self._norm == "l1" else 2)) or 1.0
        # In units of the bound. The factor below 1 keeps the length at most 1 although floats round: 2^-30 is
        # far more than their rounding of a norm.
        clipped = direction / length * (min(self.bound, peak * length) / self.bound * (1 - 2.0**-30))
        integers = np.trunc(clipped * GRID).astype(np.int64)
        self.steps_taken += 1
        self._state, rows = self._encoder.encode(self._state, integers, self.steps_taken)
        noisy = [self.noise(row, entropy=entropy) for row in rows]
        self._state, total = self._encoder.decode(self._state, noisy, self.steps_taken)
        return total * (self.bound / GRID)


@_require.checked
@dataclass(slots=True)
class FollowTheApproximateLeader:
    """Runs private follow the approximate leader over a convex set: decision w_(t+1) minimizes <v_t, w> +
    (H / 2) sum over s <= t of |w - w_s|², where v_t is the noisy sum of the gradients at w_1, ..., w_t and H
    is `convexity`.

    Smith & Thakurta 2013 (NIPS) for H-strongly convex losses whose gradients have length at most `lipschitz`;
    Agarwal & Singh 2017 (arXiv:1701.07953) for the tree's sums in follow the regularized leader. The
    minimizer is the projection of mean(w_1..w_t) - v_t / (H t).

    Guarantee: `sums.event`. All decisions are post-processing of the noisy sums.
    """

    space: ConvexSet
    sums: PrivateSums
    convexity: Annotated[float, POSITIVE]
    decision: Floats = field(init=False)
    _total: Floats = field(init=False)

    def __post_init__(self) -> None:
        self.decision = self.space.project(np.zeros(self.space.dimension))
        self._total = np.zeros(self.space.dimension)

    def step(self, gradient: Callable[[Floats], Any], *, entropy: Entropy) -> Floats:
        """Take the gradient of this round's loss at the decision, and decide for the next round."""
        noisy = self.sums.add(gradient(self.decision), entropy=entropy)
        # Changed only after `add` has accepted the gradient: a refused gradient must change nothing.
        self._total = self._total + self.decision
        t = self.sums.steps_taken
        self.decision = follow_leader(self.space, self._total, noisy, self.convexity, t)
        return self.decision

    def regret_bound(self, lipschitz: float) -> float:
        """Return a bound of the expected regret over all steps (`losses.leader_bound`)."""
        return leader_bound(self.space, lipschitz, self.convexity, self.sums.deviations())


def regret(losses: Any, best: float) -> float:
    """Return the regret: the sum of the `losses` of all rounds less `best`, the total loss of the best fixed
    decision in hindsight."""
    return float(np.sum(losses) - best)
