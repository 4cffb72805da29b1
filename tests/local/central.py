"""Measures the error of one count in the central, the shuffle and the local model: the table of docs/local.md.

`python -m tests.local.central` prints it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

import numpy as np

from discreet import local, sampling
from discreet.accounting import amplification
from discreet.sampling import Entropy


def local_epsilon(epsilon: float, people: int, delta: float) -> float:
    """Return a local epsilon with which the shuffled reports of `people` cost at most `epsilon` at `delta`.

    It is `epsilon` or more, as shuffling never costs more than the reports themselves; the search by
    bisection goes up to 16 (chosen by hand), or to `epsilon` where that is more.
    """
    low, high = epsilon, max(16.0, epsilon)
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (
            (middle, high) if amplification.shuffling(middle, people, delta) <= epsilon else (low, middle)
        )
    return low


def measure_counts(
    *,
    epsilon: float,
    counts: Sequence[int],
    runs: int,
    entropy: Entropy,
    delta: float = 1e-6,
    share: float = 0.3,
) -> dict[str, list[float]]:
    """Return, for each model, the root mean squared error of a count of "yes" over `runs` runs, for each
    number of people in `counts`.

    A `share` of the people says yes. In each model the whole count costs `epsilon` (in the shuffle model at
    `delta`); the error is in people.
    """
    curves: dict[str, list[float]] = {"central": [], "shuffled": [], "local": []}
    for people in counts:
        values = (np.arange(people) < share * people).astype(np.int64)
        noise = sampling.discrete_laplace(1 / epsilon, runs, entropy)
        curves["central"].append(math.sqrt(float(np.mean(noise.astype(float) ** 2))))
        for name, report_epsilon in (("shuffled", local_epsilon(epsilon, people, delta)), ("local", epsilon)):
            # binary randomized response; `estimate` returns the shares of the values 0 and 1
            oracle = local.KaryResponse(epsilon=report_epsilon, domain=2)
            errors = [
                people * float(oracle.estimate(oracle.respond(values, entropy=entropy)).value[1])
                - values.sum()
                for _ in range(runs)
            ]
            curves[name].append(math.sqrt(float(np.mean(np.square(errors)))))
    return curves


if __name__ == "__main__":
    counts = (100, 1000, 10_000, 100_000)
    for name, curve in measure_counts(epsilon=1, counts=counts, runs=50, entropy=Entropy()).items():
        sys.stdout.write(f"{name:9} {' '.join(f'{error:.3g}' for error in curve)}\n")
