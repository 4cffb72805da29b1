"""Between the local and the central model: a shuffler, which hides who sent which report; and estimates from
a population of which some people trust the curator and others report locally.
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np

from .. import _require, sampling
from .._public import REPLACE
from .._require import OPEN_PROBABILITY
from ..accounting import Event, NonPrivate, Shuffled
from ..inference import Estimate, combine
from ..sampling import Entropy
from ._base import Floats, LocalRandomizer, ReportBatch, require_entropy, require_randomizer


class Shuffler:
    """Collects reports of one randomizer, and returns them only all together, in uniformly random order.

    `least` is the smallest number of reports that are returned together; the price assumes this number.

    Guarantee: towards an observer who sees only what `flush` returns, each sender has (epsilon, delta)-DP at
               the price `event` (`accounting.Shuffled`). For many reports it is far smaller than that of a
               local report, and it is never above the local epsilon.
    Proof:     Feldman, McMillan & Talwar 2021, arXiv:2012.12803, for any epsilon-DP local randomizers. More
               reports than `least` only lower the price.
    Assumes:   the shuffler is trusted to forget the order and everything that came with a report (address,
               time); at least `least` senders draw their reports honestly; each sender sends one report; the
               number of reports is public. It is not trusted with values, because reports are private before
               they reach it.
    """

    def __init__(self, randomizer: LocalRandomizer, *, least: int) -> None:
        require_randomizer(randomizer)
        _require.integer(least=least, at_least=1)
        self.randomizer, self.least = randomizer, int(least)
        self._waiting: list[ReportBatch] = []

    def __len__(self) -> int:
        return sum(len(batch) for batch in self._waiting)

    @property
    def event(self) -> Event:
        """Return the price for each sender towards observers who see the shuffled reports only: that of
        exactly `least` reports.
        """
        return Shuffled(epsilon=self.randomizer.epsilon, reports=self.least)

    def add(self, reports: Any) -> None:
        """Check and collect a `ReportBatch`, or a list of plain reports."""
        data, event = self.randomizer._collect(reports)
        self._waiting.append(ReportBatch(data=data, event=event))

    def flush(self, *, entropy: Entropy) -> ReportBatch:
        """Return all collected reports in random order, and forget them; refused below `least` reports."""
        require_entropy(entropy)
        _require.that(
            len(self) >= self.least,
            f"{len(self)} reports are collected, and the price assumes at least {self.least}. Collect "
            "more, or make a new shuffler with a smaller `least`.",
        )
        data = np.concatenate([batch.data for batch in self._waiting])
        private = entropy.private and not any(isinstance(b.event, NonPrivate) for b in self._waiting)
        self._waiting = []
        order = sampling.permutation(len(data), entropy)
        event = self.event if private else NonPrivate(neighbors=REPLACE)
        return ReportBatch(data=data[order], event=event, randomizer=self.randomizer)


@_require.check_options
def blend(
    local: Any,
    local_variance: Any,
    central: Any,
    central_variance: Any,
    *,
    trusting: Annotated[float, OPEN_PROBABILITY] | None = None,
) -> Estimate:
    """Combine estimates of the same quantities from people who report locally, and from others who trust the
    curator (the hybrid model).

    `local` and `central` are shares or means, with their variances. Without `trusting`, both groups are
    random samples of one population: the estimates are averaged with weights 1 / variance, and the variances
    must include that of drawing the sample. With `trusting`, the share of people who trust the curator, the
    two groups together are the population, and the estimates are added in proportion to their sizes.

    Guarantee: the privacy of each person is that of the group they are in: each person is in one group, and
               who is in which is public.
    Proof:     parallel composition. Both combinations are unbiased; weights 1 / variance give the smallest
               variance (Gauss-Markov). (Avent et al. 2017, BLENDER, USENIX Security.)

    >>> both = blend([0.5], [0.04], [0.3], [0.01])
    >>> both.values.round(3).tolist(), both.variances.round(4).tolist()
    ([0.34], [0.008])
    """
    local, central = (np.atleast_1d(_numbers(x, "estimates")) for x in (local, central))
    _require.that(
        local.shape == central.shape,
        f"both groups must estimate the same quantities, got arrays of shape {local.shape} and "
        f"{central.shape}.",
    )
    variances = [_numbers(x, "variances") for x in (local_variance, central_variance)]
    with _require.refusing(f"variances must be single numbers or arrays of shape {local.shape}."):
        local_variance, central_variance = (np.broadcast_to(v, local.shape) for v in variances)
    none_below = (local_variance >= 0).all() and (central_variance >= 0).all()
    _require.that(none_below, "variances must be zero or above.")
    if trusting is None:
        return combine(np.stack([local, central]), np.stack([local_variance, central_variance]))
    values = (1 - trusting) * local + trusting * central
    sum_variances = (1 - trusting) ** 2 * local_variance + trusting**2 * central_variance
    flat = sum_variances.ravel()
    return Estimate(
        values=values, _covariance_product=lambda question: flat * question, _variances=sum_variances
    )


def _numbers(values: Any, what: str) -> Floats:
    """Return values as an array of floats without NaN; `what` names them in the error."""
    try:
        array = np.asarray(values, dtype=np.float64)
    except (ValueError, TypeError, OverflowError):
        array = np.array(np.nan)
    _require.that(not np.isnan(array).any(), f"{what} must be numbers or arrays of numbers.")
    return array
