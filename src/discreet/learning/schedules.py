"""Sampling schedules (Poisson, balls in bins, without replacement, cyclic): who takes part in which step, by
coins that are really tossed; and what that costs.

Every schedule says in advance how many steps there are, what they cost with Gaussian noise, and by what the
sum of gradients is divided: a public number, never the size of the batch that came. Shuffling is not here:
its steps are not independent samples, and the price of sampling would be wrong for it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _require, sampling
from .. import accounting as acc
from .._errors import PublicMismatch, Unsupported
from .._public import ADD_REMOVE, REPLACE, ZERO_OUT, Neighbors, require_relation
from .._registry import described
from ..accounting import Event, Gaussian, RandomAllocation, SampledWithoutReplacement
from ..accounting.normal import overflow
from ..sampling import Entropy
from .correlated import IDENTITY, Strategy, sensitivity
from .discrete import Grid

Indices = npt.NDArray[np.int64]
# About how many members all batches have together that one call of the sampler draws: one call for many small
# batches, and little to keep. More is no faster for batches of hundreds.
_MEMBERS = 1 << 13


class Schedule:
    """Shares what schedules have in common: `steps` batches, of which `divisor` is the expected size."""

    steps: int
    divisor: float

    def event(self, noise_multiplier: float, neighbors: Neighbors, grid: Grid | None = None) -> Event:
        """Return the price of the whole run.

        `noise_multiplier` is the noise over the clip; with a grid, exact noise over the grid's sensitivity.
        """
        raise NotImplementedError

    @property
    def growth(self) -> float:
        """Return the deviation of the independent noise over noise_multiplier * clip: above 1 where one
        example takes part in several steps.
        """
        return 1.0

    def batches(self, size: int, entropy: Entropy) -> Iterator[Indices]:
        """Yield the members of each step's batch.

        `size` is the private number of examples; it goes nowhere else.
        """
        raise NotImplementedError

    def check_size(self, size: int) -> None:
        """Refuse data of another size than was declared and priced, where the schedule samples from exactly
        so many: then the size is public, and may be said."""
        declared = getattr(self, "size", None)
        if declared is not None and size != declared:
            raise PublicMismatch(
                f"the size is public and must be true: priced for {declared}, the data has {size}."
            )


def _noise(noise_multiplier: float, neighbors: Neighbors, grid: Grid | None, changes: int = 1) -> Event:
    """Return the event of one noisy sum that one unit moves by at most `changes` clips."""
    if grid is not None:
        return grid.event(noise_multiplier, neighbors, changes)
    return Gaussian(noise_multiplier=noise_multiplier / changes, neighbors=neighbors)


def _refuse_grid(grid: Grid | None, subject: str) -> None:
    """Refuse exact noise where the price is proved for the continuous Gaussian only."""
    if grid is not None:
        raise Unsupported(
            f"{subject} is proved for the continuous Gaussian only. Nothing was read or trained. Leave "
            f"out noise='discrete'."
        )


@described("learning.Poisson")
@dataclass(frozen=True, slots=True, kw_only=True)
class Poisson(Schedule):
    """Samples every example for every step with probability `rate`, independently: Poisson subsampling (the
    "lots" of Abadi et al. 2016).

    Guarantee: each step is Gaussian noise on a Poisson sample: PoissonSampled(Gaussian(noise_multiplier),
               rate), `steps` times.
    Proof:     one coin of probability exactly `rate` for each example and step (`sampling.poisson_subsets`);
               one example moves the clipped sum by at most clip, under add_remove and zero_out; the noise is
               noise_multiplier * clip.
    """

    rate: Fraction
    steps: int
    divisor: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", _require.exact(self.rate, "rate"))
        _require.probability(rate=self.rate)
        _require.integer(steps=self.steps, at_least=1)
        _require.positive(rate=self.rate, divisor=self.divisor)

    def event(self, noise_multiplier: float, neighbors: Neighbors, grid: Grid | None = None) -> Event:
        require_relation(neighbors, ADD_REMOVE, ZERO_OUT, what="Poisson sampling of examples")
        return _noise(noise_multiplier, neighbors, grid).sampled(self.rate).repeated(self.steps)

    def batches(self, size: int, entropy: Entropy) -> Iterator[Indices]:
        return _poisson_batches(size, self.rate, self.steps, entropy)


@described("learning.BallsInBins")
@dataclass(frozen=True, slots=True, kw_only=True)
class BallsInBins(Schedule):
    """Deals every example into one of `bins` steps, uniformly, in each of `epochs` passes.

    Guarantee: each pass is RandomAllocation(Gaussian(noise_multiplier), bins); passes are independent.
    Proof:     Chua et al. 2025 (arXiv:2412.16802) and Feldman & Shenfeld 2025 (arXiv:2502.08202), for
               add_remove and zero_out.
    """

    bins: int
    epochs: int
    divisor: float

    def __post_init__(self) -> None:
        _require.integer(bins=self.bins, epochs=self.epochs, at_least=1)
        _require.positive(divisor=self.divisor)

    @property
    def steps(self) -> int:  # type: ignore[override]
        return self.bins * self.epochs

    def event(self, noise_multiplier: float, neighbors: Neighbors, grid: Grid | None = None) -> Event:
        require_relation(neighbors, ADD_REMOVE, ZERO_OUT, what="balls-in-bins batching")
        _refuse_grid(grid, "balls-in-bins batching")
        noise = Gaussian(noise_multiplier=noise_multiplier, neighbors=neighbors)
        return RandomAllocation(event=noise, steps=self.bins).repeated(self.epochs)

    def batches(self, size: int, entropy: Entropy) -> Iterator[Indices]:
        for _ in range(self.epochs):
            yield from _deal_into_bins(self.bins, size, entropy)


@described("learning.WithoutReplacement")
@dataclass(frozen=True, slots=True, kw_only=True)
class WithoutReplacement(Schedule):
    """Draws `sample` of exactly `size` examples for each step, uniformly.

    For `replace`, where the size is public.

    Guarantee: each step is SampledWithoutReplacement(Gaussian(noise_multiplier / 2)): replacing one example
               moves the clipped sum by 2 clip, and the price is that of noise over this distance.
    Proof:     Balle, Barthe & Gaboardi 2018 (arXiv:1807.01647, Theorem 9).
    """

    sample: int
    size: int
    steps: int

    def __post_init__(self) -> None:
        _require.integer(sample=self.sample, size=self.size, steps=self.steps, at_least=1)
        if self.sample > self.size:
            raise _require.fail("sample", self.sample, f"at most size = {self.size}")

    @property
    def divisor(self) -> float:  # type: ignore[override]
        return float(self.sample)

    def event(self, noise_multiplier: float, neighbors: Neighbors, grid: Grid | None = None) -> Event:
        require_relation(neighbors, REPLACE, what="sampling without replacement")
        noise = _noise(noise_multiplier, neighbors, grid, changes=2)
        return SampledWithoutReplacement(event=noise, size=self.size, sample=self.sample).repeated(self.steps)

    def batches(self, size: int, entropy: Entropy) -> Iterator[Indices]:
        self.check_size(size)
        for _ in range(self.steps):
            yield np.asarray(sampling.subset(size, self.sample, entropy), dtype=np.int64)


@described("learning.TruncatedPoisson")
@dataclass(frozen=True, slots=True, kw_only=True)
class TruncatedPoisson(Schedule):
    """Draws by Poisson sampling from exactly `size` examples; where more than `limit` are drawn, a random
    `limit` of them are kept.

    For `zero_out`.

    Batches have a largest size, so that memory does; what that costs is the chance that it ever matters.

    Guarantee: accounting's TruncatedPoisson: the run is that of `Poisson` but for an event of probability
               steps P[Binomial(size, rate) > limit], which adds (1 + e^epsilon) times itself to delta.
    Proof:     Chua et al. 2024, arXiv:2411.04205: couple the coins; as long as no batch is too large the two
               runs are one and the same.
    """

    rate: Fraction
    size: int
    limit: int
    steps: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", _require.exact(self.rate, "rate"))
        _require.probability(rate=self.rate)
        _require.positive(rate=self.rate)
        _require.integer(size=self.size, limit=self.limit, steps=self.steps, at_least=1)

    @property
    def divisor(self) -> float:  # type: ignore[override]
        return float(self.rate * self.size)

    def event(self, noise_multiplier: float, neighbors: Neighbors, grid: Grid | None = None) -> Event:
        require_relation(neighbors, ZERO_OUT, what="truncated Poisson sampling")
        noise = _noise(noise_multiplier, neighbors, grid)
        step = acc.TruncatedPoisson(event=noise, rate=self.rate, size=self.size, limit=self.limit)
        return step.repeated(self.steps)

    def batches(self, size: int, entropy: Entropy) -> Iterator[Indices]:
        self.check_size(size)
        for batch in _poisson_batches(size, self.rate, self.steps, entropy):
            if len(batch) > self.limit:
                yield batch[np.asarray(sampling.subset(len(batch), self.limit, entropy), dtype=np.int64)]
            else:
                yield batch


def smallest_limit(*, size: int, rate: Any, steps: int, epsilon: float, delta: float) -> int:
    """Return the smallest batch limit at which truncation costs at most `delta` at this epsilon, over all
    steps.

    >>> smallest_limit(size=60_000, rate=Fraction(256, 60_000), steps=14_000, epsilon=3, delta=1e-7)
    379
    """
    _require.positive(epsilon=epsilon, delta=delta)
    _require.integer(size=size, steps=steps, at_least=1)

    def fits(limit: int) -> bool:
        return (1 + math.exp(min(epsilon, 700.0))) * steps * overflow(size, rate, limit) <= delta

    # No batch is above `size`.
    low, high = 0, size
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


@described("learning.Cyclic")
@dataclass(frozen=True, slots=True, kw_only=True)
class Cyclic(Schedule):
    """Gives every example one of `bins` steps, drawn once, in which it takes part in each of `epochs` passes.
    There is no amplification by sampling.

    Noise may be correlated over time (`correlated`): then a step's noise is partly taken back later. One bin
    is full-batch descent.

    Guarantee: CorrelatedGaussian(noise_multiplier): one Gaussian for the whole run, with independent noise of
               deviation noise_multiplier * clip * `growth`. Under `replace` one example becomes another, and
               the noise is over twice as far.
    Proof:     an example's step does not depend on other examples, so one more or less adds vectors of length
               at most clip in at most `epochs` steps, any two of them `bins` apart; `growth` bounds what the
               strategy makes of these (`correlated.sensitivity`). Adding C⁻¹ Z to the gradients is C⁻¹
               applied to C G + Z, also when gradients depend on what was released before (Denisov et al.
               2022, arXiv:2202.08312, Theorem 2.1).
    """

    bins: int
    epochs: int
    divisor: float
    strategy: Strategy = IDENTITY

    def __post_init__(self) -> None:
        _require.integer(bins=self.bins, epochs=self.epochs, at_least=1)
        _require.positive(divisor=self.divisor)
        if not isinstance(self.strategy, Strategy):
            raise _require.fail(
                "strategy", type(self.strategy).__name__, "Toeplitz(...), Dense(...), or square_root(steps)"
            )
        # Raises where the strategy is for fewer steps.
        self.strategy.row(self.steps - 1)

    @property
    def steps(self) -> int:  # type: ignore[override]
        return self.bins * self.epochs

    @property
    def growth(self) -> float:
        return sensitivity(self.strategy, self.steps, self.bins, self.epochs)

    @property
    def participation(self) -> acc.Participation:
        if self.epochs == 1:
            return acc.SingleEpoch()
        if self.strategy.bands <= self.bins:
            return acc.Banded(bands=self.strategy.bands, times=self.epochs)
        return acc.MinSeparated(separation=self.bins, times=self.epochs)

    def event(self, noise_multiplier: float, neighbors: Neighbors, grid: Grid | None = None) -> Event:
        _refuse_grid(grid, "noise that is correlated over time")
        changes = 2 if neighbors is REPLACE else 1
        return acc.CorrelatedGaussian(
            noise_multiplier=noise_multiplier / changes,
            steps=self.steps,
            participation=self.participation,
            neighbors=neighbors,
        )

    def batches(self, size: int, entropy: Entropy) -> Iterator[Indices]:
        groups = list(_deal_into_bins(self.bins, size, entropy))
        for _ in range(self.epochs):
            yield from groups


def _deal_into_bins(bins: int, size: int, entropy: Entropy) -> Iterator[Indices]:
    """Yield the members of each bin: everybody is in one of them, uniformly and independently.

    Draws are made by position, and positions move when somebody leaves. That is no leak: draws which are
    independent and alike have one joint distribution for the same people in any order, so the others' bins
    can be taken to be the same with and without that person.
    """
    bin_of = np.asarray(sampling.uniform_below(bins, size, entropy), dtype=np.int64)
    order = np.argsort(bin_of, kind="stable")
    edges = np.searchsorted(bin_of[order], np.arange(bins + 1))
    for start, end in itertools.pairwise(edges.tolist()):
        yield order[start:end]


def _poisson_batches(size: int, rate: Fraction, steps: int, entropy: Entropy) -> Iterator[Indices]:
    """Yield a Poisson sample for each step, those of several steps drawn together where they are small.

    Positions may move when somebody leaves: the coins are independent and alike, see `_deal_into_bins`.
    """
    steps_at_once = max(1, min(steps, int(_MEMBERS / (1 + rate * size))))
    for start in range(0, steps, steps_at_once):
        yield from sampling.poisson_subsets(size, rate, min(steps_at_once, steps - start), entropy)
