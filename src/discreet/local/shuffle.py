"""Between the local and the central model: a shuffler that hides who sent what, and people who trust the
curator beside those who do not.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import _require, sampling
from .._errors import InvalidInput
from .._public import REPLACE
from ..accounting import Event, NonPrivate, Shuffled
from ..inference import Estimate, combine
from ..sampling import Entropy
from ._base import LocalRandomizer, ReportBatch, require_entropy


class Shuffler:
    """Collects reports of one randomizer, and lets them out only all together, in uniformly random order.

    Guarantee: who sees only what comes out of `flush` learns (epsilon, delta)-DP about each sender with the
               far smaller epsilon of `event` (`accounting.Shuffled`), and never more than the local epsilon.
    Proof:     Feldman, McMillan & Talwar 2021, arXiv:2012.12803, for any epsilon-DP local randomizers.
    Assumes:   the shuffler is trusted to forget the order and everything that came with a report (address,
               time), `least` senders report honestly, and the number of reports is public. It is not trusted
               with values: reports are private before they reach it.
    """

    def __init__(self, randomizer: LocalRandomizer, *, least: int) -> None:
        if not isinstance(randomizer, LocalRandomizer):
            raise _require.fail(
                "randomizer", type(randomizer).__name__, "a client randomizer of discreet.local"
            )
        _require.integer(least=least, at_least=1)
        self.randomizer, self.least = randomizer, int(least)
        self._waiting: list[ReportBatch] = []

    def __len__(self) -> int:
        return sum(len(batch) for batch in self._waiting)

    @property
    def event(self) -> Event:
        """Return what each sender pays towards those who see the shuffled reports only: the price where no
        more than `least` reports are shuffled.
        """
        return Shuffled(epsilon=self.randomizer.epsilon, reports=self.least)

    def add(self, reports: Any) -> None:
        """Take in a `ReportBatch`, or a list of plain reports."""
        data, event = self.randomizer._collect(reports)
        self._waiting.append(ReportBatch(data=data, event=event))

    def flush(self, *, entropy: Entropy) -> ReportBatch:
        """Return all reports in random order, once there are at least `least`; the shuffler is empty
        afterwards."""
        require_entropy(entropy)
        if len(self) < self.least:
            raise InvalidInput(
                f"{len(self)} reports are waiting and {self.least} are needed to hide among. Nothing was let "
                "out. Wait for more, or price a new shuffler for fewer."
            )
        data = np.concatenate([batch.data for batch in self._waiting])
        private = entropy.private and not any(isinstance(b.event, NonPrivate) for b in self._waiting)
        self._waiting = []
        order = sampling.permutation(len(data), entropy)
        event = self.event if private else NonPrivate(neighbors=REPLACE)
        return ReportBatch(data=data[order], event=event, randomizer=self.randomizer)


def blend(
    local: Any, local_variance: Any, central: Any, central_variance: Any, *, trusting: float | None = None
) -> Estimate:
    """Combine estimates of one quantity from people who report locally, and from others who trust the curator
    (the hybrid model).

    Give shares (or means) and the variances of each, *including* that of drawing each group from all people
    if the two groups are samples. With `trusting`, the share of people who trust, the two are parts of one
    population instead, and are added in proportion.

    Guarantee: the privacy of each person is that of the one group they are in: who is in which is public, and
               each person is in one.
    Proof:     parallel composition. The estimate is unbiased; weighted by precision it has the least variance
               (Gauss-Markov). (Avent et al. 2017, BLENDER, USENIX Security.)

    >>> both = blend([0.5], [0.04], [0.3], [0.01])
    >>> both.values.round(3).tolist(), both.variances.round(4).tolist()
    ([0.34], [0.008])
    """
    y = [np.atleast_1d(np.asarray(x, dtype=np.float64)) for x in (local, central)]
    if y[0].shape != y[1].shape:
        raise InvalidInput(
            f"both groups must estimate the same things, got {y[0].shape} and {y[1].shape} numbers."
        )
    v = [
        np.broadcast_to(np.asarray(x, dtype=np.float64), y[0].shape)
        for x in (local_variance, central_variance)
    ]
    if trusting is None:
        return combine(np.stack(y), np.stack(v))
    _require.open_probability(trusting=trusting)
    mixed = (1 - trusting) * y[0] + trusting * y[1]
    spread = (1 - trusting) ** 2 * v[0] + trusting**2 * v[1]
    flat = spread.ravel()
    return Estimate(values=mixed, _covariance_product=lambda question: flat * question, _variances=spread)
