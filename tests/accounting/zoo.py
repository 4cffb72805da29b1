"""One instance of every event, each of which every accountant prices quickly, and the table of event x accountant
that docs/accounting.md shows."""

from __future__ import annotations

import math
import re
from fractions import Fraction

from discreet import REPLACE, ZERO_OUT, Unsupported
from discreet.accounting import events as ce
from discreet.accounting import events as ev
from discreet.accounting import events as se
from discreet.accounting.events import Event
from discreet.accounting.pricing import ACCOUNTANTS, epsilon

_G = ev.Gaussian(noise_multiplier=2.0)

ZOO: dict[str, Event] = {
    "no-op": ev.NoOp(),
    "non-private": ev.NonPrivate(),
    "gaussian": _G,
    "laplace": ev.Laplace(noise_multiplier=4.0),
    "discrete-laplace": ev.DiscreteLaplace(scale=Fraction(10, 3), sensitivity=1),
    "discrete-gaussian": ev.DiscreteGaussian(variance=Fraction(9), sensitivity=1),
    "vector-discrete-gaussian": ev.VectorDiscreteGaussian(variance=40, l2_squared=9),
    "randomized-response": ev.RandomizedResponse(epsilon=0.5),
    "k-ary-randomized-response": ev.RandomizedResponse(epsilon=0.5, categories=5),
    "exponential": ev.ExponentialMechanism(epsilon=0.5),
    "pure": ev.PureDP(epsilon=0.3),
    "approximate": ev.ApproximateDP(epsilon=0.3, delta=1e-8),
    "zcdp": ev.ZCDP(rho=0.02),
    "approximate-zcdp": ev.ZCDP(rho=0.02, delta=1e-8),
    "poisson-gaussian": _G.sampled(0.1),
    "poisson-laplace": ev.Laplace(noise_multiplier=2.0).sampled(0.1),
    "poisson-pure": ev.PureDP(epsilon=1).sampled(Fraction(1, 10)),
    "group": ev.Group(event=_G, size=2),
    "repeated": _G.repeated(4),
    "composed": ev.compose([_G, ev.Laplace(noise_multiplier=4.0)]),
    "without-replacement": se.SampledWithoutReplacement(
        event=ev.Gaussian(noise_multiplier=2.0, neighbors=REPLACE), size=1000, sample=50
    ),
    "truncated-poisson": se.TruncatedPoisson(
        event=ev.Gaussian(noise_multiplier=2.0, neighbors=ZERO_OUT), rate=0.05, size=1000, limit=120
    ),
    "random-allocation": se.RandomAllocation(event=_G, steps=20),
    "shuffled": se.Shuffled(epsilon=1.0, reports=2000),
    "correlated": se.CorrelatedGaussian(
        noise_multiplier=2.0, steps=100, participation=se.MinSeparated(separation=20, times=5)
    ),
    "noisy-max": ce.NoisyMax(epsilon=0.5),
    "sparse-vector": ce.SparseVector(threshold_epsilon=0.2, query_epsilon=0.3, cutoff=3),
    "thresholded": ce.Thresholded(event=ev.Laplace(noise_multiplier=4.0), delta=1e-8),
    "rdp-point": ce.RDPPoint(order=8, epsilon=0.1),
    "repeat-and-select": ce.RepeatAndSelect(event=ev.ZCDP(rho=0.01), trials=ce.geometric(0.1)),
    "poisson-repeat-and-select": ce.RepeatAndSelect(
        event=ev.Gaussian(noise_multiplier=10.0), trials=ce.PoissonTrials(mean=10)
    ),
    "gnmax": ce.GNMax(sigma=20),
}


def table() -> str:
    """A table in Markdown of the epsilon at delta 1e-6 by every accountant (columns), of one instance of every
    event (rows)."""
    head = ["event", *ACCOUNTANTS]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for name, event in ZOO.items():
        cells = [_cell(accountant, event) for accountant in ACCOUNTANTS]
        lines.append("| " + " | ".join([f"`{name}`", *cells]) + " |")
    return "\n".join(lines)


def instances() -> str:
    """A table in Markdown of the instances, each as it is written in Python."""
    rows = [f"| `{name}` | `{_written(event)}` |" for name, event in ZOO.items()]
    return "\n".join(["| event | as written |", "|---|---|", *rows])


def _written(event: Event) -> str:
    text = re.sub(r"(, )?neighbors=<Neighbors\.ADD_REMOVE: 'add_remove'>", "", repr(event))
    return re.sub(r"<Neighbors\.(\w+): '\w+'>", r"\1", text).replace(", delta=0.0", "")


def _cell(accountant: str, event: Event) -> str:
    try:
        value = epsilon(event, delta=1e-6, accountant=accountant)
    except Unsupported:
        return "refused"
    return "infinite" if math.isinf(value) else f"{value:.3g}"
