"""Defines events on random samples (of fixed size, or truncated Poisson samples), random allocation,
shuffling, and matrix mechanisms with the steps in which a unit may take part.

Every amplification theorem is proved for certain neighbor relations. Its event cannot be made for another
relation, because the same mechanism has a different price there, and no later check would notice.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from .. import _require
from .._public import ADD_REMOVE, REPLACE, ZERO_OUT, Neighbors, as_neighbors, require_relation
from .._registry import described
from .._require import Real
from .events import Event, Gaussian, inherit_neighbors


@described("accounting.SampledWithoutReplacement")
@dataclass(frozen=True, slots=True, kw_only=True)
class SampledWithoutReplacement(Event):
    """`event` on a sample of `sample` units, drawn uniformly without replacement from a population of exactly
    `size` units.

    The price is proved for `replace` only, where the size is public (Balle, Barthe & Gaboardi 2018,
    arXiv:1807.01647, Theorem 9; Wang, Balle & Kasiviswanathan 2019, arXiv:1808.00087). `event` is for
    `replace` too: the noise multiplier of a Gaussian is relative to the sensitivity to replacing one unit.
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
        inherit_neighbors(self)
        require_relation(self.neighbors, REPLACE, what="amplification by sampling without replacement")

    @property
    def rate(self) -> Fraction:
        """The probability that a given unit is in the sample."""
        return Fraction(self.sample, self.size)


@described("accounting.TruncatedPoisson")
@dataclass(frozen=True, slots=True, kw_only=True)
class TruncatedPoisson(Event):
    """`event` on a Poisson sample, with rate `rate`, of exactly `size` units; if it has more than `limit`
    units, a random `limit` of them are used.

    The price is proved for `zero_out`, where the size is public (Chua et al. 2024, arXiv:2411.04205): the run
    differs from the untruncated one only if the sample has more than `limit` units. So the price is that of
    the untruncated sample plus the cost of their distance in total variation (`accounting.normal`).
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
        inherit_neighbors(self)
        require_relation(self.neighbors, ZERO_OUT, what="the price of a truncated Poisson sample")


@described("accounting.RandomAllocation")
@dataclass(frozen=True, slots=True, kw_only=True)
class RandomAllocation(Event):
    """`event` at each of `steps` steps, every unit taking part in exactly `selected` of them, drawn
    uniformly.

    With `selected=1` this is balls-in-bins batching (Chua et al. 2024, arXiv:2412.16802), one pass over the
    data. The price is proved for `add_remove` and `zero_out` (Feldman & Shenfeld 2025, arXiv:2502.08202).
    This event is the whole pass; `event` is one step of it, which must be a Gaussian.
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
        inherit_neighbors(self)
        if not isinstance(self.event, Gaussian):
            raise _require.fail(
                "event",
                type(self.event).__name__,
                "a Gaussian: random allocation has no price for other noise",
            )
        require_relation(self.neighbors, ADD_REMOVE, ZERO_OUT, what="random allocation")


# The name of `RandomAllocation` with `selected=1` in the literature. It is the same class, so that other
# values of `selected` are accepted under this name too.
BallsInBins = RandomAllocation


@described("accounting.Shuffled")
@dataclass(frozen=True, slots=True, kw_only=True)
class Shuffled(Event):
    """`reports` local reports, each `epsilon`-DP for its sender, seen only after a uniformly random
    permutation.

    The price is proved for `replace`: one sender's value is changed, and the number of senders is public. It
    holds for any adaptively chosen local randomizers (Feldman, McMillan & Talwar 2021, arXiv:2012.12803,
    Section 3). The stronger bound of their later paper (arXiv:2208.04591) is not used, because by its errata
    it holds for a restricted class of randomizers only.
    """

    epsilon: Real
    reports: int
    neighbors: Neighbors = REPLACE

    def __post_init__(self) -> None:
        _require.non_negative(epsilon=self.epsilon)
        _require.integer(reports=self.reports, at_least=1)
        self._resolve_neighbors()
        require_relation(self.neighbors, REPLACE, what="amplification by shuffling")


class Participation:
    """Says in which steps one unit may take part: the base class of participation patterns."""

    __slots__ = ()


@described("accounting.SingleEpoch")
@dataclass(frozen=True, slots=True, kw_only=True)
class SingleEpoch(Participation):
    """Every unit takes part in at most one step."""


@described("accounting.MinSeparated")
@dataclass(frozen=True, slots=True, kw_only=True)
class MinSeparated(Participation):
    """Every unit takes part in at most `times` steps, any two of them at least `separation` steps apart
    (Choquette-Choo et al. 2023, arXiv:2211.06530)."""

    separation: int
    times: int

    def __post_init__(self) -> None:
        _require.integer(separation=self.separation, at_least=1)
        _require.integer(times=self.times, at_least=1)


@described("accounting.Banded")
@dataclass(frozen=True, slots=True, kw_only=True)
class Banded(Participation):
    """Every unit takes part in at most `times` steps, any two of them at least `bands` steps apart, and the
    strategy matrix has at most `bands` nonzero diagonals.

    The matrix's columns for the steps of one unit are then orthogonal, and their squared norms add up
    (Choquette-Choo et al. 2023, arXiv:2306.08153).
    """

    bands: int
    times: int

    def __post_init__(self) -> None:
        _require.integer(bands=self.bands, at_least=1)
        _require.integer(times=self.times, at_least=1)


@described("accounting.TreeRestarts")
@dataclass(frozen=True, slots=True, kw_only=True)
class TreeRestarts(Participation):
    """Tree aggregation: `restarts` + 1 binary trees one after the other, each over `leaves` steps; a unit
    takes part in at most one leaf of each tree (Kairouz et al. 2021, arXiv:2103.00039)."""

    leaves: int
    restarts: int = 0

    def __post_init__(self) -> None:
        _require.integer(leaves=self.leaves, at_least=1)
        _require.integer(restarts=self.restarts, at_least=0)


@described("accounting.CorrelatedGaussian")
@dataclass(frozen=True, slots=True, kw_only=True)
class CorrelatedGaussian(Event):
    """All `steps` answers of a matrix mechanism: independent Gaussian noise is added to the answers of a
    strategy matrix, so that the noise of the released answers is correlated.

    `noise_multiplier` is the standard deviation of the independent noise, divided by the largest l2 change
    that one unit can make in the strategy's answers *under `participation`*.
    Guarantee: as private as one Gaussian with that noise multiplier, also when the inputs of later steps are
               chosen adaptively.
    Proof:     Denisov et al. 2022, arXiv:2202.08312, Theorem 2.1 (Gaussian noise only).
    Assumes:   the sensitivity was computed for this participation pattern, and the data respects the pattern.
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


def one_block(event: Any) -> Event:
    """Return the event which, composed `selected` times, bounds the price of a random allocation with more
    than one selected step.

    Let k be the number of selected steps and t the number of steps. A uniform choice of k of t steps is the
    same as k disjoint random blocks of floor(t/k) steps each, and then one uniform step from each block;
    where k does not divide t, some random steps are in no block. For given blocks that is a k-fold
    composition of allocations with one selected step (Feldman & Shenfeld 2025, arXiv:2502.08202).
    """
    return RandomAllocation(event=event.event, steps=event.steps // event.selected)
