"""Computes the price of private selection from the privacy profile of one run: its delta as a function of
epsilon (Koskela, Redberg & Wang 2024, arXiv:2402.06701). It is often below the price by Rényi divergences.

It holds for one selection alone. In a composition a `RepeatAndSelect` is charged by its Rényi bound.
"""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from .. import _require
from .._errors import Unsupported
from . import pricing
from .events import Event, NegativeBinomialTrials, PoissonTrials, RepeatAndSelect
from .rdp import _log_mean

# Covers the rounding of a delta and of its interpolation.
_UP = 1 + 1e-9
# The number of epsilons at which the profile of a run is computed. Between them it is bounded by chords; more
# points change the third digit only.
_POINTS = 48
# The profile of a run is computed up to the epsilon at which its delta is the first of these; for larger
# epsilons the last value is used. A run with a larger own delta has no such epsilon, and the next delta is
# tried. (An own delta is a probability with which the run fails, see `normal`.)
_LEAST = (1e-16, 1e-13, 1e-10, 1e-7, 1e-4)


@dataclass(frozen=True, slots=True)
class _Profile:
    """An upper bound of delta as a function of epsilon for one run, from its values at some epsilons. Delta
    is a convex function of e^epsilon, so it lies below the chords between them."""

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
    """Return the privacy profile of one run, computed at `_POINTS` epsilons."""
    prices = (float(pricing.epsilon(event, delta=delta)) for delta in _LEAST)
    # Without a finite epsilon at any of these deltas, and for larger epsilons, the profile ends at 600: e^600
    # is still a float.
    largest = min(max(1e-6, next((price for price in prices if math.isfinite(price)), math.inf)), 600.0)
    grid = np.concatenate([[0.0], np.geomspace(largest / 200, largest, _POINTS - 1)])
    deltas = [min(1.0, float(pricing.delta(event, epsilon=float(x))) * _UP) for x in grid]
    return _Profile(tuple(grid.tolist()), tuple(deltas))


@_require.check_options
def selection_delta(event: RepeatAndSelect, *, epsilon: float) -> float:
    """Return a delta at which private selection is (epsilon, delta)-DP, from the profile of one run.

    Guarantee: an upper bound of the hockey-stick divergence at e^epsilon, in both directions.
    Proof:     let f be the generating function of the number K of trials, f' its derivative, q and q' the
               densities of a run's output y on the two tables, and z and z' the probabilities that a run is
               worse than y (ties broken by a uniform number). The best run has the densities q(y) f'(z) and
               q'(y) f'(z') (Papernot & Steinke 2022, arXiv:2110.03620, Lemma 7). A run is (e1, d1)-DP, so
               1 - z' <= e^e1 (1 - z) + d1. For truncated negative binomial trials f'(z) is
               proportional to (1 - (1 - gamma) z)^-(shape + 1), hence f'(z) <= C f'(z') with
               C = (e^e1 + (1 - gamma) / gamma d1)^(shape + 1); for Poisson trials f'(z) / f'(z') =
               exp(mean (z - z')), at most C = exp(mean (e^e1 - 1 + d1)). So the positive part of
               q f'(z) - e^epsilon q' f'(z') is at most f'(1) = E[K] times that of q - e^epsilon / C q', and
               delta <= E[K] delta_run(epsilon - ln C), for every e1 >= 0. With Poisson trials there may be no
               trial, which is equally likely on both tables. In the code e1 is `run_epsilon`, d1 `run_delta`,
               and ln C `log_factor`.
    """
    if not isinstance(event, RepeatAndSelect):
        raise _require.fail("event", type(event).__name__, "a RepeatAndSelect")
    _require.non_negative(epsilon=epsilon)
    trials, profile, best = event.trials, _profile(event.event), 1.0
    for run_epsilon, run_delta in zip(profile.epsilons, profile.deltas, strict=True):
        if isinstance(trials, PoissonTrials):
            mean = float(trials.mean)
            log_factor, log_mean = mean * (math.expm1(min(run_epsilon, 600.0)) + run_delta), math.log(mean)
        else:
            assert isinstance(trials, NegativeBinomialTrials)
            shape, gamma = float(trials.shape), float(trials.gamma)
            grown_epsilon = math.log1p(math.expm1(min(run_epsilon, 600.0)) + (1 - gamma) / gamma * run_delta)
            log_factor, log_mean = (1 + shape) * grown_epsilon, _log_mean(shape, gamma)
        remaining = epsilon - log_factor * (1 + 1e-12)
        if remaining >= 0:
            best = min(best, math.exp(log_mean) * profile(remaining) * _UP)
    return best


@_require.check_options
def selection_epsilon(event: RepeatAndSelect, *, delta: float) -> float:
    """Return an epsilon at which private selection is (epsilon, delta)-DP: the lesser of the one that
    `selection_delta` gives and the one of the tightest accountant (`pricing.epsilon`)."""
    _require.open_probability(delta=delta)
    try:
        high = float(pricing.epsilon(event, delta=delta))
    except Unsupported:
        # No Rényi bound, as for a run with an own delta: only the profile gives a bound.
        high = math.inf
    if selection_delta(event, epsilon=min(high, 1e6)) > delta:
        return high
    low, high = 0.0, min(high, 1e6)
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if selection_delta(event, epsilon=middle) <= delta else (middle, high)
    return high
