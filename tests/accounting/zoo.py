"""One instance of every event, for tables of event x accountant."""

from __future__ import annotations

from fractions import Fraction

from discreet import accounting as acc
from discreet._public import REPLACE, ZERO_OUT

_G = acc.Gaussian(noise_multiplier=2.0)

ZOO: dict[str, acc.Event] = {
    "no-op": acc.NoOp(),
    "non-private": acc.NonPrivate(),
    "gaussian": _G,
    "laplace": acc.Laplace(noise_multiplier=4.0),
    "discrete-laplace": acc.DiscreteLaplace(scale=Fraction(10, 3), sensitivity=1),
    "discrete-gaussian": acc.DiscreteGaussian(variance=Fraction(9), sensitivity=1),
    "vector-discrete-gaussian": acc.VectorDiscreteGaussian(variance=40, l2_squared=9),
    "randomized-response": acc.RandomizedResponse(epsilon=0.5),
    "k-ary-randomized-response": acc.RandomizedResponse(epsilon=0.5, categories=5),
    "exponential": acc.ExponentialMechanism(epsilon=0.5),
    "pure": acc.PureDP(epsilon=0.3),
    "approximate": acc.ApproximateDP(epsilon=0.3, delta=1e-8),
    "zcdp": acc.ZCDP(rho=0.02),
    "approximate-zcdp": acc.ZCDP(rho=0.02, delta=1e-8),
    "poisson-gaussian": _G.sampled(0.1),
    "poisson-laplace": acc.Laplace(noise_multiplier=2.0).sampled(0.1),
    "poisson-pure": acc.PureDP(epsilon=1).sampled(Fraction(1, 10)),
    "group": acc.Group(event=_G, size=2),
    "repeated": _G.repeated(4),
    "composed": acc.compose([_G, acc.Laplace(noise_multiplier=4.0)]),
    "without-replacement": acc.SampledWithoutReplacement(
        event=acc.Gaussian(noise_multiplier=2.0, neighbors=REPLACE), size=1000, sample=50
    ),
    "truncated-poisson": acc.TruncatedPoisson(
        event=acc.Gaussian(noise_multiplier=2.0, neighbors=ZERO_OUT), rate=0.05, size=1000, limit=120
    ),
    "random-allocation": acc.RandomAllocation(event=_G, steps=20),
    "shuffled": acc.Shuffled(epsilon=2.0, reports=20_000),
    "correlated": acc.CorrelatedGaussian(
        noise_multiplier=2.0, steps=100, participation=acc.MinSeparated(separation=20, times=5)
    ),
    "noisy-max": acc.NoisyMax(epsilon=0.5),
    "sparse-vector": acc.SparseVector(threshold_epsilon=0.2, query_epsilon=0.3, cutoff=3),
    "thresholded": acc.Thresholded(event=acc.Laplace(noise_multiplier=4.0), delta=1e-8),
    "rdp-point": acc.RDPPoint(order=8, epsilon=0.1),
    "repeat-and-select": acc.RepeatAndSelect(event=acc.ZCDP(rho=0.01), trials=acc.geometric(0.1)),
    "poisson-repeat-and-select": acc.RepeatAndSelect(
        event=acc.Gaussian(noise_multiplier=10.0), trials=acc.PoissonTrials(mean=10)
    ),
    "gnmax": acc.GNMax(sigma=20),
}
