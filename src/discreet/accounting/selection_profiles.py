"""The price of private selection from the whole privacy profile of a run (Koskela, Redberg & Wang 2024,
arXiv:2402.06701): often below what Rényi divergences give.

For one search alone. In compositions a `RepeatAndSelect` is charged by its Rényi bound.
"""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from .. import _require
from .._errors import Unsupported
from . import api
from .choice_events import NegativeBinomialTrials, PoissonTrials, RepeatAndSelect
from .events import Event
from .rdp_rules import _log_mean

# Covers the rounding of a delta and of its interpolation.
_UP = 1 + 1e-9
# Epsilons that the profile of a run is computed at: between them it is bounded by chords, so that more of
# them change the third digit only.
_POINTS = 48
# The delta at which the profile of a run ends: beyond its epsilon the value there holds. A run with a larger
# delta of its own has no epsilon there, and the next is tried.
_LEAST = (1e-16, 1e-13, 1e-10, 1e-7, 1e-4)


@dataclass(frozen=True, slots=True)
class _Profile:
    """delta(epsilon) of a run, from above: a convex function of e^epsilon lies below its chords."""

    epsilons: tuple[float, ...]
    deltas: tuple[float, ...]

    def __call__(self, epsilon: float) -> float:
        if epsilon < 0:
            return 1.0
        index = bisect.bisect_right(self.epsilons, epsilon)
        if index == len(self.epsilons):
            return self.deltas[-1]
        low, high = self.epsilons[index - 1], self.epsilons[index]
        share = math.expm1(epsilon - low) / math.expm1(high - low)
        return self.deltas[index - 1] * (1 - share) + self.deltas[index] * share


@lru_cache(maxsize=16)
def _profile(event: Event) -> _Profile:
    """Return an upper bound of delta at some epsilons, for interpolation."""
    prices = (float(api.epsilon(event, delta=delta)) for delta in _LEAST)
    # an infinite price at each of these deltas: what is known is known up to here
    far = max(1e-6, next((price for price in prices if math.isfinite(price)), math.inf))
    grid = np.concatenate([[0.0], np.geomspace(min(far, 600.0) / 200, min(far, 600.0), _POINTS - 1)])
    deltas = [min(1.0, float(api.delta(event, epsilon=float(x))) * _UP) for x in grid]
    return _Profile(tuple(grid.tolist()), tuple(deltas))


@_require.check_options
def selection_delta(event: RepeatAndSelect, *, epsilon: float) -> float:
    """Return a delta at which private selection is (epsilon, delta)-DP, from the profile of one run.

    Guarantee: an upper bound of the hockey-stick divergence at e^epsilon, in both directions.
    Proof:     with f the generating function of the number of trials, and z, z' the chance that a run of
               either table is worse than y (ties broken by a uniform number), the best run has the densities
               q(y) f'(z) and q'(y) f'(z') (Papernot & Steinke 2022, arXiv:2110.03620, Lemma 7). A run is
               (e1, d1)-DP, so 1 - z' <= e^e1 (1 - z) + d1. For truncated negative binomial trials f'(z) is
               proportional to (1 - (1 - gamma) z)^-(shape + 1), hence f'(z) <= C f'(z') with
               C = (e^e1 + (1 - gamma) / gamma d1)^(shape + 1); for Poisson trials f'(z) / f'(z') =
               exp(mean (z - z')), at most C = exp(mean (e^e1 - 1 + d1)). So the positive part of
               q f'(z) - e^epsilon q' f'(z') is at most f'(1) = E[K] times that of q - e^epsilon / C q', and
               delta <= E[K] delta_run(epsilon - log C), for every e1 >= 0. That there is no trial (Poisson)
               is equally likely in both tables.
    """
    if not isinstance(event, RepeatAndSelect):
        raise _require.fail("event", type(event).__name__, "a RepeatAndSelect")
    _require.non_negative(epsilon=epsilon)
    trials, profile, best = event.trials, _profile(event.event), 1.0
    for inner, failure in zip(profile.epsilons, profile.deltas, strict=True):
        if isinstance(trials, PoissonTrials):
            mean = float(trials.mean)
            log_factor, log_mean = mean * (math.expm1(min(inner, 600.0)) + failure), math.log(mean)
        else:
            assert isinstance(trials, NegativeBinomialTrials)
            shape, gamma = float(trials.shape), float(trials.gamma)
            grown_epsilon = math.log1p(math.expm1(min(inner, 600.0)) + (1 - gamma) / gamma * failure)
            log_factor, log_mean = (1 + shape) * grown_epsilon, _log_mean(shape, gamma)
        left = epsilon - log_factor * (1 + 1e-12)
        if left >= 0:
            best = min(best, math.exp(log_mean) * profile(left) * _UP)
    return best


@_require.check_options
def selection_epsilon(event: RepeatAndSelect, *, delta: float) -> float:
    """Return an epsilon at which private selection is (epsilon, delta)-DP: the smaller of what the profile of
    a run gives (`selection_delta`) and of the tightest that `epsilon` knows."""
    _require.open_probability(delta=delta)
    try:
        high = float(api.epsilon(event, delta=delta))
    except Unsupported:
        # no Rényi bound, as for a run with a delta of its own: the profile alone decides
        high = math.inf
    if selection_delta(event, epsilon=min(high, 1e6)) > delta:
        return high
    low, high = 0.0, min(high, 1e6)
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if selection_delta(event, epsilon=middle) <= delta else (middle, high)
    return high
