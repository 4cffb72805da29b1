"""A story of prices: events of every class, alone and composed, by every accountant."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from discreet import REPLACE, ZERO_OUT, Unsupported, accounting
from discreet.accounting import (
    ZCDP,
    ApproximateDP,
    Banded,
    CorrelatedGaussian,
    DiscreteGaussian,
    DiscreteLaplace,
    Event,
    ExponentialMechanism,
    Gaussian,
    GNMax,
    Group,
    Laplace,
    MinSeparated,
    NoisyMax,
    NonPrivate,
    NoOp,
    PoissonTrials,
    PureDP,
    RandomAllocation,
    RandomizedResponse,
    RDPPoint,
    RepeatAndSelect,
    SampledWithoutReplacement,
    Shuffled,
    SingleEpoch,
    SparseVector,
    Thresholded,
    TreeRestarts,
    TruncatedPoisson,
    VectorDiscreteGaussian,
    compose,
    geometric,
    logarithmic,
)

from .stage import Stage

ACCOUNTANTS = ("pld", "rdp", "zcdp", "gdp", "optimal", "advanced", "basic", "tightest")
G = Gaussian(noise_multiplier=2.0)
REPLACED = Gaussian(noise_multiplier=2.0, neighbors=REPLACE)
ZEROED = Gaussian(noise_multiplier=2.0, neighbors=ZERO_OUT)
L = Laplace(noise_multiplier=4.0)
COUNT, SUM = DiscreteLaplace(scale=Fraction(10, 3), sensitivity=1), DiscreteLaplace(scale=64, sensitivity=20)
INTEGERS = DiscreteGaussian(variance=Fraction(9), sensitivity=1)
EVENTS: dict[str, Event] = {
    "no-op": NoOp(),
    "non-private": NonPrivate(),
    "gaussian": G,
    "gaussian, much noise": Gaussian(noise_multiplier=20.0),
    "gaussian, replaced": REPLACED,
    "laplace": L,
    "discrete laplace": COUNT,
    "discrete laplace of a sum": SUM,
    "discrete gaussian": INTEGERS,
    "discrete gaussian of a vector": VectorDiscreteGaussian(variance=40, l2_squared=9),
    "randomized response": RandomizedResponse(epsilon=0.5),
    "k-ary randomized response": RandomizedResponse(epsilon=0.5, categories=5),
    "exponential mechanism": ExponentialMechanism(epsilon=0.5),
    "pure": PureDP(epsilon=0.3),
    "approximate": ApproximateDP(epsilon=0.3, delta=1e-8),
    "zcdp": ZCDP(rho=0.02),
    "approximate zcdp": ZCDP(rho=0.02, delta=1e-8),
    "sampled gaussian": G.sampled(0.1),
    "sampled gaussian, rarely": Gaussian(noise_multiplier=1.1).sampled(0.004),
    "sampled laplace": Laplace(noise_multiplier=2.0).sampled(0.1),
    "sampled pure": PureDP(epsilon=1).sampled(Fraction(1, 10)),
    "sampled discrete gaussian": INTEGERS.sampled(0.1),
    "group of two": Group(event=G, size=2),
    "group of three counts": Group(event=COUNT, size=3),
    "without replacement": SampledWithoutReplacement(event=REPLACED, size=1000, sample=50),
    "truncated": TruncatedPoisson(event=ZEROED, rate=0.05, size=1000, limit=120),
    "random allocation": RandomAllocation(event=G, steps=20),
    "shuffled": Shuffled(epsilon=1.0, reports=2000),
    "correlated": CorrelatedGaussian(
        noise_multiplier=2.0, steps=100, participation=MinSeparated(separation=20, times=5)
    ),
    "correlated, one epoch": CorrelatedGaussian(noise_multiplier=4.0, steps=10, participation=SingleEpoch()),
    "correlated, in bands": CorrelatedGaussian(
        noise_multiplier=4.0, steps=40, participation=Banded(bands=4, times=2)
    ),
    "tree with restarts": CorrelatedGaussian(
        noise_multiplier=4.0, steps=32, participation=TreeRestarts(leaves=8, restarts=3)
    ),
    "noisy max": NoisyMax(epsilon=0.5),
    "sparse vector": SparseVector(threshold_epsilon=0.2, query_epsilon=0.3, cutoff=3),
    "thresholded": Thresholded(event=L, delta=1e-8),
    "one order": RDPPoint(order=8, epsilon=0.1),
    "repeat and select": RepeatAndSelect(event=ZCDP(rho=0.01), trials=geometric(0.1)),
    "repeat and select, logarithmic": RepeatAndSelect(event=ZCDP(rho=0.01), trials=logarithmic(0.1)),
    "repeat and select, poisson": RepeatAndSelect(
        event=Gaussian(noise_multiplier=10.0), trials=PoissonTrials(mean=10)
    ),
    "votes": GNMax(sigma=20),
    "four gaussians": G.repeated(4),
    "ten counts": COUNT.repeated(10),
    "a hundred counts": DiscreteLaplace(scale=50, sensitivity=1).repeated(100),
    "fifty integers": DiscreteGaussian(variance=400, sensitivity=1).repeated(50),
    "a hundred pure": PureDP(epsilon=0.01).repeated(100),
    "ten responses": RandomizedResponse(epsilon=0.1).repeated(10),
    "training": Gaussian(noise_multiplier=1.1).sampled(0.01).repeated(200),
    "long training": Gaussian(noise_multiplier=0.8).sampled(0.004).repeated(3000),
    "training with integers": DiscreteGaussian(variance=4, sensitivity=1).sampled(0.02).repeated(50),
    "training, truncated": TruncatedPoisson(event=ZEROED, rate=0.02, size=1000, limit=60).repeated(20),
    "training, without replacement": SampledWithoutReplacement(event=REPLACED, size=1000, sample=20).repeated(
        20
    ),
    "a count and a gaussian": compose([COUNT, G]),
    "a laplace and a gaussian": compose([G, L]),
    "a day of questions": compose([COUNT.repeated(5), SUM, ExponentialMechanism(epsilon=0.1).repeated(3)]),
    "pure and approximate": compose(
        [PureDP(epsilon=0.2), ApproximateDP(epsilon=0.1, delta=1e-8).repeated(3)]
    ),
    "concentrated and pure": compose([ZCDP(rho=0.01).repeated(3), PureDP(epsilon=0.1)]),
    "everything": compose([COUNT, INTEGERS, L, G.sampled(0.1).repeated(10), PureDP(epsilon=0.05)]),
    "private groups": compose([COUNT, ApproximateDP(epsilon=0.1, delta=5e-8).repeated(2)]),
    "two sparse vectors": SparseVector(threshold_epsilon=0.1, query_epsilon=0.1, cutoff=1).repeated(2),
    "a group of training": Group(event=Gaussian(noise_multiplier=2).sampled(0.01).repeated(20), size=2),
    "votes, many": GNMax(sigma=100).repeated(50),
    "orders, composed": RDPPoint(order=8, epsilon=0.01).repeated(5),
}


def _price(event: Event, delta: float, accountant: str) -> Any:
    try:
        return accounting.epsilon(event, delta=delta, accountant=accountant)
    except Unsupported:
        return "unsupported"


def prices(stage: Stage) -> None:
    """Epsilon at a delta of 1e-6 and of 0, and the interval in which the exact one lies."""
    table = {}
    for name, event in EVENTS.items():
        by_name = {accountant: _price(event, 1e-6, accountant) for accountant in ACCOUNTANTS}
        table[name] = {
            **by_name,
            "pure": _price(event, 0.0, "tightest"),
            "interval": accounting.bounds(event, delta=1e-6),
        }
        # a price may fall, but not below what the event costs at least
        least = table[name]["interval"][0]
        assert all(price >= least * (1 - 1e-9) for price in by_name.values() if price != "unsupported"), name
    stage.price(**table)
    stage.exactly(events={name: event.to_json() for name, event in EVENTS.items()})


STORIES = (prices,)
