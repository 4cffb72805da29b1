"""Events in which chance hides who was looked at: fixed-size samples, truncated Poisson samples, random
allocation, shuffling.

Every amplification theorem is proved for one neighbor relation. The event refuses to be built for another,
because the same mechanism has a different price there and nothing downstream could notice.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from .. import _require
from .._public import ADD_REMOVE, REPLACE, ZERO_OUT, Neighbors, as_neighbors, require_relation
from .._registry import described
from .._require import Real
from .events import Event, Gaussian, inherit


@described("accounting.SampledWithoutReplacement")
@dataclass(frozen=True, slots=True, kw_only=True)
class SampledWithoutReplacement(Event):
    """`event` on `sample` units drawn uniformly, without replacement, from exactly `size`.

    For `replace` only (Balle, Barthe & Gaboardi 2018, arXiv:1807.01647, Theorem 9; Wang, Balle &
    Kasiviswanathan 2019): the size is public there. `event` is priced for `replace` too: a Gaussian's noise
    multiplier is over the replace-one sensitivity.
    """

    event: Event
    size: int
    sample: int
    neighbors: Neighbors = REPLACE

    def __post_init__(self) -> None:
        _require.integer(size=self.size, at_least=1)
        _require.integer(sample=self.sample, at_least=0)
        if self.sample > self.size:
            raise _require.fail("sample", self.sample, f"at most size = {self.size}")
        inherit(self)
        require_relation(self.neighbors, REPLACE, what="amplification by sampling without replacement")

    @property
    def rate(self) -> Fraction:
        """The chance that a given unit is in the sample."""
        return Fraction(self.sample, self.size)


@described("accounting.TruncatedPoisson")
@dataclass(frozen=True, slots=True, kw_only=True)
class TruncatedPoisson(Event):
    """`event` on a Poisson sample with `rate` of exactly `size` units, of which a random `limit` are kept
    when there are more.

    For `zero_out`, where the size is public (Chua et al. 2024, arXiv:2411.04205): the run differs from the
    untruncated one only if some sample has more than `limit` units, so the total-variation distance of the
    two is charged.
    """

    event: Event
    rate: Real
    size: int
    limit: int
    neighbors: Neighbors = ZERO_OUT

    def __post_init__(self) -> None:
        _require.probability(rate=self.rate)
        _require.integer(size=self.size, at_least=1)
        _require.integer(limit=self.limit, at_least=1)
        inherit(self)
        require_relation(self.neighbors, ZERO_OUT, what="the price of a truncated Poisson sample")


@described("accounting.RandomAllocation")
@dataclass(frozen=True, slots=True, kw_only=True)
class RandomAllocation(Event):
    """`event` at each of `steps` steps, every unit taking part in exactly `selected` of them, drawn
    uniformly.

    With `selected=1` this is balls-in-bins batching (Chua et al. 2024, arXiv:2412.16802), one pass over the
    data. For `add_remove` and `zero_out` (Feldman & Shenfeld 2025, arXiv:2502.08202). The event is the whole
    pass, not one step. Gaussian noise only.
    """

    event: Event
    steps: int
    selected: int = 1
    neighbors: Neighbors = ADD_REMOVE

    def __post_init__(self) -> None:
        _require.integer(steps=self.steps, at_least=1)
        _require.integer(selected=self.selected, at_least=1)
        if self.selected > self.steps:
            raise _require.fail("selected", self.selected, f"at most steps = {self.steps}")
        inherit(self)
        if not isinstance(self.event, Gaussian):
            raise _require.fail(
                "event", type(self.event).__name__, "a Gaussian: no other dominating pair is used"
            )
        require_relation(self.neighbors, ADD_REMOVE, ZERO_OUT, what="random allocation")


BallsInBins = RandomAllocation


@described("accounting.Shuffled")
@dataclass(frozen=True, slots=True, kw_only=True)
class Shuffled(Event):
    """`reports` local reports, each `epsilon`-DP for its sender, seen only after a uniformly random
    permutation.

    For `replace`: one sender's value is changed, the number of senders is public. Holds for any adaptively
    chosen local randomizers (Feldman, McMillan & Talwar 2021, arXiv:2012.12803, Section 3). Their later,
    stronger bound (arXiv:2208.04591) holds, by its errata, for a restricted class of randomizers only and is
    not used.
    """

    epsilon: Real
    reports: int
    neighbors: Neighbors = REPLACE

    def __post_init__(self) -> None:
        _require.non_negative(epsilon=self.epsilon)
        _require.integer(reports=self.reports, at_least=1)
        self._settle()
        require_relation(self.neighbors, REPLACE, what="amplification by shuffling")


class Participation:
    """Base of the participation patterns: in which steps one unit may take part."""

    __slots__ = ()


@described("accounting.SingleEpoch")
@dataclass(frozen=True, slots=True, kw_only=True)
class SingleEpoch(Participation):
    """Every unit takes part in at most one step."""


@described("accounting.MinSeparated")
@dataclass(frozen=True, slots=True, kw_only=True)
class MinSeparated(Participation):
    """At most `times` steps, any two at least `separation` steps apart (Choquette-Choo et al. 2023,
    arXiv:2211.06530)."""

    separation: int
    times: int

    def __post_init__(self) -> None:
        _require.integer(separation=self.separation, at_least=1)
        _require.integer(times=self.times, at_least=1)


@described("accounting.Banded")
@dataclass(frozen=True, slots=True, kw_only=True)
class Banded(Participation):
    """At most `times` steps, under a strategy whose columns have `bands` bands and whose steps are at least
    that far apart.

    Columns of one unit are then orthogonal and their squared norms add up (Choquette-Choo et al. 2023,
    arXiv:2306.08153).
    """

    bands: int
    times: int

    def __post_init__(self) -> None:
        _require.integer(bands=self.bands, at_least=1)
        _require.integer(times=self.times, at_least=1)


@described("accounting.TreeRestarts")
@dataclass(frozen=True, slots=True, kw_only=True)
class TreeRestarts(Participation):
    """A binary tree over `leaves` steps, begun anew `restarts` times; a unit is in at most one leaf of each
    tree (Kairouz et al. 2021, arXiv:2103.00039)."""

    leaves: int
    restarts: int = 0

    def __post_init__(self) -> None:
        _require.integer(leaves=self.leaves, at_least=1)
        _require.integer(restarts=self.restarts, at_least=0)


@described("accounting.CorrelatedGaussian")
@dataclass(frozen=True, slots=True, kw_only=True)
class CorrelatedGaussian(Event):
    """All `steps` answers of a matrix mechanism: independent Gaussian noise, mixed by a strategy before it
    leaves.

    `noise_multiplier` is the deviation of the independent noise over the largest l2 change that one unit can
    make in the strategy's answers *under `participation`*. Guarantee: as private as one Gaussian with that
    noise multiplier, also when questions are chosen adaptively. Proof: Denisov et al. 2022, arXiv:2202.08312,
    Theorem 2.1 (Gaussian noise only).
    Assumes: the sensitivity was computed for this very pattern, and that the data respects it.
    """

    noise_multiplier: float
    steps: int
    participation: Participation = SingleEpoch()
    neighbors: Neighbors = ADD_REMOVE

    def __post_init__(self) -> None:
        _require.non_negative(noise_multiplier=self.noise_multiplier)
        _require.integer(steps=self.steps, at_least=1)
        if not isinstance(self.participation, Participation):
            raise _require.fail(
                "participation",
                self.participation,
                "SingleEpoch(), MinSeparated(...), Banded(...) or TreeRestarts(...)",
            )
        object.__setattr__(self, "neighbors", as_neighbors(self.neighbors))

    @property
    def equivalent(self) -> Gaussian:
        """The single Gaussian release with the same price."""
        return Gaussian(noise_multiplier=self.noise_multiplier, neighbors=self.neighbors)


def parts(event: Any) -> Event:
    """Return the event whose `selected`-fold composition dominates a random allocation with more than one
    selected step.

    A uniform choice of k of t steps is: k blocks of floor(t/k) random steps each, then one step from each
    block; given the blocks, that is a k-fold composition (Feldman & Shenfeld 2025).
    """
    return RandomAllocation(event=event.event, steps=event.steps // event.selected)
