"""No price is below the truth: random nested events, run for real in small worlds (`worlds.py`).

The delta that is asked for is the true one at a random epsilon, so that a price which is too low by little
is seen. Laws between prices, which hold whatever the truth is, are in `test_laws.py`.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from discreet import accounting as acc
from discreet._errors import DiscreetError
from discreet.accounting import pld
from discreet.accounting.pld.pairs import basic_pairs

from . import worlds

REPLACE = "replace"


def between(rng: random.Random, low: float, high: float) -> float:
    return math.exp(rng.uniform(math.log(low), math.log(high)))


def leaf(rng: random.Random, neighbors: str) -> acc.Event:
    """A random event without parts."""
    epsilon = rng.choice([between(rng, 1e-4, 0.1), between(rng, 0.1, 3), between(rng, 3, 40)])
    failure = rng.choice([between(rng, 1e-10, 1e-3), rng.uniform(0, 0.5)])
    noise = between(rng, 0.1, 20)
    kinds: list[Callable[[], acc.Event]] = [
        lambda: acc.PureDP(epsilon=epsilon, neighbors=neighbors),
        lambda: acc.RandomizedResponse(
            epsilon=epsilon, categories=rng.choice([2, 3, 40]), neighbors=neighbors
        ),
        lambda: acc.DiscreteLaplace(
            scale=1 / epsilon, sensitivity=rng.choice([1, 2, 5]), neighbors=neighbors
        ),
        lambda: acc.ApproximateDP(epsilon=epsilon, delta=failure, neighbors=neighbors),
        lambda: acc.Laplace(noise_multiplier=1 / epsilon, neighbors=neighbors),
        lambda: acc.Gaussian(noise_multiplier=noise, neighbors=neighbors),
        lambda: acc.ExponentialMechanism(epsilon=epsilon, neighbors=neighbors),
        lambda: acc.ZCDP(rho=0.5 / noise**2, delta=rng.choice([0.0, failure]), neighbors=neighbors),
        lambda: acc.RDPPoint(order=1 + between(rng, 0.1, 100), epsilon=1 / noise, neighbors=neighbors),
    ]
    if neighbors == REPLACE:
        kinds.append(lambda: acc.Shuffled(epsilon=min(epsilon, 8.0), reports=rng.choice([10, 60])))
    return rng.choice(kinds)()


def tree(rng: random.Random, depth: int, neighbors: str) -> acc.Event:
    """A random event, nested `depth` times at most."""
    if depth == 0:
        return leaf(rng, neighbors)
    kind = rng.choice(["sampled"] * 3 + ["repeated"] * 2 + ["composed", "group", "selected", "thresholded"])
    inner = tree(rng, depth - 1, neighbors)
    if kind == "repeated":
        return inner.repeated(rng.choice([2, 3, 10, 50]))
    if kind == "composed":
        return acc.compose([inner, tree(rng, rng.randrange(depth), neighbors)])
    if kind == "group":
        return acc.Group(event=inner, size=rng.choice([2, 3]))
    if kind == "thresholded":
        return acc.Thresholded(event=inner, delta=between(rng, 1e-8, 0.3))
    if kind == "selected":
        gamma = between(rng, 1e-3, 0.9)
        tried = rng.choice([acc.geometric(gamma), acc.logarithmic(gamma), acc.PoissonTrials(mean=1 / gamma)])
        return acc.RepeatAndSelect(event=inner, trials=tried)
    if neighbors == REPLACE:
        size = rng.choice([5, 20, 1000])
        return acc.SampledWithoutReplacement(event=inner, size=size, sample=rng.randint(1, size))
    return inner.sampled(
        rng.choice([between(rng, 1e-7, 0.1), rng.uniform(0.1, 0.9), 1 - between(rng, 1e-9, 0.1)])
    )


def targets(rng: random.Random, rows: worlds.Array) -> list[float]:
    """The true delta at two epsilons within the range of losses."""
    with np.errstate(divide="ignore", invalid="ignore"):
        losses = np.abs(np.log(rows[0]) - np.log(rows[-1]))
    largest = min(float(losses[np.isfinite(losses)].max(initial=0.0)), 300.0)
    deltas = [worlds.delta(rows, largest * x) for x in (rng.random(), between(rng, 0.02, 1))]
    return [delta for delta in deltas if 1e-11 < delta < 0.99]


def compared(seed: int, trees: int, depth: int, accountants: tuple[str, ...]) -> Counter[str]:
    """Price random trees, and count the prices of each accountant that were compared with the truth."""
    rng, seen = random.Random(seed), Counter[str]()
    for _ in range(trees):
        neighbors = rng.choice(["add_remove", "add_remove", REPLACE])
        event = tree(rng, rng.randint(1, depth), neighbors)
        rows = worlds.distributions(event)
        for delta in targets(rng, rows):
            for accountant in accountants:
                try:
                    price = acc.epsilon(event, delta=delta, accountant=accountant)
                except DiscreetError:
                    continue
                if price < 600:
                    seen[accountant] += 1
                    true = worlds.delta(rows, price)
                    assert true <= delta * (1 + 1e-6) + 1e-13, (event, delta, accountant, price, true)
    return seen


def test_no_price_is_below_the_truth() -> None:
    seen = compared(seed=5, trees=40, depth=2, accountants=("pld", "basic"))
    assert min(seen.values()) > 40, seen


@pytest.mark.slow
def test_no_price_of_deeper_trees_is_below_the_truth() -> None:
    everyone = ("pld", "rdp", "zcdp", "gdp", "optimal", "advanced", "basic")
    seen = compared(seed=6, trees=500, depth=3, accountants=everyone)
    assert min(seen.values()) > 150, seen


def test_a_sample_that_loses_mass_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison has teeth: a sampled composition whose masses do not add up to 1 is below the truth."""
    event = acc.RandomizedResponse(epsilon=2.0).repeated(20).sampled(0.01).repeated(2)
    rows = worlds.distributions(event)
    delta = worlds.delta(rows, 5.0)
    assert pld.epsilon(event, delta) > 5
    monkeypatch.setattr(basic_pairs.PoissonSampledPair, "_completed", lambda self, inner, edges: inner)
    price = pld.epsilon(event, delta)
    assert price < 0.01
    assert worlds.delta(rows, price) > 1.001 * delta
