"""Private selection from privacy profiles: never below the exact divergence of small searches, and below the
Rényi bound where that is loose."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from discreet import InvalidInput
from discreet import accounting as acc

LAWS = [
    acc.logarithmic(0.2),
    acc.geometric(0.3),
    acc.NegativeBinomialTrials(shape=0.5, gamma=0.1),
    acc.PoissonTrials(mean=2.0),
]


def generating(trials: Any, x: Any) -> Any:
    """E[x^K]."""
    if isinstance(trials, acc.PoissonTrials):
        return np.exp(float(trials.mean) * (x - 1))
    shape, gamma = float(trials.shape), float(trials.gamma)
    if shape == 0:
        return np.log(1 - (1 - gamma) * x) / math.log(gamma)
    return ((1 - (1 - gamma) * x) ** -shape - 1) / (gamma**-shape - 1)


def best_of(trials: Any, chances: Any) -> Any:
    """The law of the best of a random number of draws, outcomes ordered from the worst to the best."""
    sums = np.concatenate([[0.0], np.cumsum(chances)])
    sums[-1] = 1.0
    return np.diff(generating(trials, sums))


def exact(trials: Any, run: float, epsilon: float) -> float:
    """The largest hockey-stick divergence of the best of runs of a randomized response of three outcomes, over
    their orders and both directions."""
    high = math.exp(run) / (math.exp(run) + 2)
    worst = 0.0
    for first in range(3):
        for second in range(3):
            p, q = (np.where(np.arange(3) == place, high, (1 - high) / 2) for place in (first, second))
            a, b = best_of(trials, p), best_of(trials, q)
            worst = max(worst, float(np.maximum(a - math.exp(epsilon) * b, 0).sum()))
    return worst


@pytest.mark.parametrize("trials", LAWS, ids=repr)
def test_delta_is_never_below_the_exact_divergence_of_a_small_search(trials: Any) -> None:
    event = acc.RepeatAndSelect(event=acc.PureDP(epsilon=0.7), trials=trials)
    positive = 0
    for epsilon in np.linspace(0, 2.5, 26).tolist():
        true = exact(trials, 0.7, epsilon)
        claimed = acc.selection_profiles.selection_delta(event, epsilon=epsilon)
        assert true <= claimed <= 1
        positive += true > 1e-6
    assert positive > 3
    # the mutant that forgets the random number of trials claims the price of one run
    forgetful = acc.delta(acc.PureDP(epsilon=0.7), epsilon=0.7)
    assert exact(trials, 0.7, 0.7) > forgetful


@pytest.mark.parametrize("trials", LAWS[:2], ids=repr)
def test_profiles_are_tighter_than_renyi_for_gaussian_runs(trials: Any) -> None:
    run = acc.Gaussian(noise_multiplier=8.0)
    event = acc.RepeatAndSelect(event=run, trials=trials)
    tight, loose = acc.selection_epsilon(event, delta=1e-6), acc.epsilon(event, delta=1e-6)
    assert acc.epsilon(run, delta=1e-6) < tight < 0.97 * loose
    assert acc.selection_profiles.selection_delta(event, epsilon=tight) <= 1e-6


def test_pure_runs_keep_the_theorem_of_both_orders() -> None:
    """(2 + shape) epsilon, which is where the profile of a pure run ends."""
    event = acc.RepeatAndSelect(event=acc.PureDP(epsilon=0.5), trials=acc.logarithmic(0.1))
    assert acc.selection_epsilon(event, delta=1e-9) <= 1.0 + 1e-9
    assert acc.selection_profiles.selection_delta(event, epsilon=1.0 + 1e-6) == pytest.approx(0, abs=1e-12)


def test_what_is_no_search_is_refused() -> None:
    with pytest.raises(InvalidInput, match="RepeatAndSelect"):
        acc.selection_profiles.selection_delta(acc.PureDP(epsilon=1), epsilon=1.0)
    with pytest.raises(InvalidInput, match="delta"):
        acc.selection_epsilon(acc.RepeatAndSelect(event=acc.PureDP(epsilon=1), trials=LAWS[0]), delta=0.0)


def test_runs_with_a_delta_of_their_own_are_priced_by_their_profile() -> None:
    event = acc.RepeatAndSelect(event=acc.ApproximateDP(epsilon=0.1, delta=1e-9), trials=acc.geometric(0.1))
    # about three epsilons, and each of the ten trials that are expected may fail
    assert 0.2999 <= acc.selection_epsilon(event, delta=1e-5) <= 0.31
    assert acc.selection_epsilon(event, delta=1e-10) == math.inf
