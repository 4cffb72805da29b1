"""Who takes part in which step, by coins that are really tossed; and what that costs.

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
from .._errors import InvalidInput, PrivateFact, PublicMismatch, Unsupported
from .._public import ADD_REMOVE, REPLACE, ZERO_OUT, Neighbors, require_relation
from .._registry import described
from ..accounting import Event, Gaussian, RandomAllocation, SampledWithoutReplacement
from ..accounting.normal import overflow
from ..sampling import Entropy
from .correlated import IDENTITY, Strategy, blt, sensitivity, square_root
from .discrete import Grid

Indices = npt.NDArray[np.int64]
_MEMBERS = 1 << 13  # of batches that are drawn together, about


class Schedule:
    """Base. `steps` batches; `divisor` is the expected size of one."""

    steps: int
    divisor: float

    def event(self, noise_multiplier: float, neighbors: Neighbors, grid: Grid | None = None) -> Event:
        """The price of the whole run.

        `noise_multiplier` is the noise over the clip; with a grid, exact noise over what the grid lets one
        move.
        """
        raise NotImplementedError

    @property
    def growth(self) -> float:
        """The deviation of the independent noise over noise_multiplier * clip: above 1 where one example
        takes part in several steps."""
        return 1.0

    def batches(self, size: int, entropy: Entropy) -> Iterator[Indices]:
        """The members of each step's batch.

        `size` is the private number of examples; it goes nowhere else.
        """
        raise NotImplementedError


def _noise(noise_multiplier: float, neighbors: Neighbors, grid: Grid | None, moved: int = 1) -> Event:
    """Return one noisy sum that one unit moves by at most `moved` clips."""
    if grid is not None:
        return grid.event(noise_multiplier, neighbors, moved)
    return Gaussian(noise_multiplier=noise_multiplier / moved, neighbors=neighbors)


def _only_floats(grid: Grid | None, what: str) -> None:
    if grid is not None:
        raise Unsupported(
            f"{what} is proved for the continuous Gaussian only. Nothing was read or trained. Leave "
            f"out noise='discrete'."
        )


@described("learning.Poisson")
@dataclass(frozen=True, slots=True, kw_only=True)
class Poisson(Schedule):
    """Every example takes part in every step with probability `rate`, independently.

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
        return _tossed(size, self.rate, self.steps, entropy)


@described("learning.BallsInBins")
@dataclass(frozen=True, slots=True, kw_only=True)
class BallsInBins(Schedule):
    """In each of `epochs` passes every example takes part in one of `bins` steps, drawn uniformly.

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
        _only_floats(grid, "balls-in-bins batching")
        noise = Gaussian(noise_multiplier=noise_multiplier, neighbors=neighbors)
        return RandomAllocation(event=noise, steps=self.bins).repeated(self.epochs)

    def batches(self, size: int, entropy: Entropy) -> Iterator[Indices]:
        for _ in range(self.epochs):
            yield from _dealt(self.bins, size, entropy)


@described("learning.WithoutReplacement")
@dataclass(frozen=True, slots=True, kw_only=True)
class WithoutReplacement(Schedule):
    """Each step takes `sample` of exactly `size` examples, drawn uniformly.

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
        noise = _noise(noise_multiplier, neighbors, grid, moved=2)
        return SampledWithoutReplacement(event=noise, size=self.size, sample=self.sample).repeated(self.steps)

    def batches(self, size: int, entropy: Entropy) -> Iterator[Indices]:
        _true_size(self.size, size)
        for _ in range(self.steps):
            yield np.asarray(sampling.subset(size, self.sample, entropy), dtype=np.int64)


@described("learning.TruncatedPoisson")
@dataclass(frozen=True, slots=True, kw_only=True)
class TruncatedPoisson(Schedule):
    """Poisson sampling of exactly `size` examples, of which a random `limit` are kept where there are more.

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
        one = acc.TruncatedPoisson(event=noise, rate=self.rate, size=self.size, limit=self.limit)
        return one.repeated(self.steps)

    def batches(self, size: int, entropy: Entropy) -> Iterator[Indices]:
        _true_size(self.size, size)
        for batch in _tossed(size, self.rate, self.steps, entropy):
            if len(batch) > self.limit:
                yield batch[np.asarray(sampling.subset(len(batch), self.limit, entropy), dtype=np.int64)]
            else:
                yield batch


def smallest_limit(*, size: int, rate: Any, steps: int, epsilon: float, delta: float) -> int:
    """Return the smallest largest batch for which truncation costs at most `delta` at this epsilon, over all
    steps.

    >>> smallest_limit(size=60_000, rate=Fraction(256, 60_000), steps=14_000, epsilon=3, delta=1e-7)
    379
    """
    _require.positive(epsilon=epsilon, delta=delta)
    _require.integer(size=size, steps=steps, at_least=1)

    def fits(limit: int) -> bool:
        return (1 + math.exp(min(epsilon, 700.0))) * steps * overflow(size, rate, limit) <= delta

    low, high = 0, size  # nothing is above all of them
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


@described("learning.Cyclic")
@dataclass(frozen=True, slots=True, kw_only=True)
class Cyclic(Schedule):
    """Every example has one of `bins` steps, drawn once, and takes part in that step of each of `epochs`
    passes. Nobody is hidden by sampling.

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
        self.strategy.row(self.steps - 1)  # refuses where it is for fewer steps

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
        _only_floats(grid, "noise that is correlated over time")
        moved = 2 if neighbors is REPLACE else 1
        return acc.CorrelatedGaussian(
            noise_multiplier=noise_multiplier / moved,
            steps=self.steps,
            participation=self.participation,
            neighbors=neighbors,
        )

    def batches(self, size: int, entropy: Entropy) -> Iterator[Indices]:
        groups = list(_dealt(self.bins, size, entropy))
        for _ in range(self.epochs):
            yield from groups


def _dealt(bins: int, size: int, entropy: Entropy) -> Iterator[Indices]:
    """Everybody into one of the bins, uniformly and independently.

    Draws are made by position, and positions move when somebody leaves. That is no leak: draws which are
    independent and alike have one joint law for the same people in any order, so the others' bins can be
    taken to be the same with and without that person.
    """
    bin_of = np.asarray(sampling.uniform_below(bins, size, entropy), dtype=np.int64)
    order = np.argsort(bin_of, kind="stable")
    edges = np.searchsorted(bin_of[order], np.arange(bins + 1))
    for start, end in itertools.pairwise(edges.tolist()):
        yield order[start:end]


def _tossed(size: int, rate: Fraction, steps: int, entropy: Entropy) -> Iterator[Indices]:
    """Coins for each step, those of several steps tossed together where few come up: what is not used is
    never kept or stored.

    By position, which may move: the coins are independent and alike, see `_dealt`.
    """
    together = max(1, min(steps, int(_MEMBERS / (1 + rate * size))))
    for start in range(0, steps, together):
        yield from sampling.poisson_subsets(size, rate, min(together, steps - start), entropy)


def _true_size(declared: int, size: int) -> None:
    if size != declared:  # public under replace and zero_out, so that it may be said
        raise PublicMismatch(
            f"the size is public and must be true: priced for {declared}, the data has {size}."
        )


def schedule(
    kind: Any,
    *,
    neighbors: Neighbors,
    size: int | None,
    rate: Any = None,
    batch: Any = None,
    steps: int | None = None,
    epochs: Any = None,
    limit: int | None = None,
    strategy: Any = None,
    target: tuple[float | None, float | None] = (None, None),
) -> Schedule:
    """Return a schedule from what people like to say: `batch` of a declared `size`, or `rate`; `epochs`, or
    `steps`."""
    if isinstance(kind, Schedule):
        if limit is not None or strategy is not None:
            raise InvalidInput(
                "limit= and strategy= belong to the schedule that is given. Nothing was read or trained."
            )
        return kind
    if not isinstance(kind, str) or kind not in _KINDS:
        raise _require.fail("sampling", kind, f"{', '.join(map(repr, _KINDS))}, or a schedule")
    if (steps is None) == (epochs is None):
        raise InvalidInput("give steps=, or epochs= (and not both). Nothing was read or trained.")
    if limit is not None and kind != "truncated_poisson":
        raise InvalidInput(
            f"limit= is for sampling='truncated_poisson'; {kind!r} has none. Nothing was read or trained."
        )
    if strategy is not None and kind != "cyclic":
        raise InvalidInput(
            f"strategy= is for sampling='cyclic': with {kind!r} noise is independent. Nothing was "
            f"read or trained."
        )
    exact, divisor = _rate(size, rate, batch)
    if kind in ("balls_in_bins", "cyclic"):
        return _passes(kind, exact, divisor, steps, epochs, strategy)
    if epochs is not None:
        _require.positive(epochs=epochs)
    wanted = steps if steps is not None else max(1, round(_require.exact(epochs, "epochs") / exact))
    if kind == "poisson":
        return Poisson(rate=exact, steps=wanted, divisor=divisor)
    if size is None or (kind == "without_replacement" and batch is None):
        raise InvalidInput(
            f"{kind} sampling needs batch=, and Public(size=...), which is public then. Nothing was "
            f"read or trained."
        )
    if kind == "without_replacement":
        return WithoutReplacement(sample=batch, size=size, steps=wanted)
    return TruncatedPoisson(
        rate=exact, size=size, limit=_limit(limit, size, exact, wanted, target), steps=wanted
    )


_KINDS = ("poisson", "truncated_poisson", "balls_in_bins", "without_replacement", "cyclic")


def _limit(
    limit: int | None, size: int, rate: Fraction, steps: int, target: tuple[float | None, float | None]
) -> int:
    if limit is not None:
        return limit
    epsilon, delta = target
    if epsilon is None or delta is None:
        raise InvalidInput(
            "truncated_poisson with a noise_multiplier needs limit=, the largest batch. Nothing was "
            "read or trained."
        )
    return smallest_limit(size=size, rate=rate, steps=steps, epsilon=epsilon, delta=delta / 100)


def _passes(
    kind: str, rate: Fraction, divisor: float, steps: int | None, epochs: Any, strategy: Any
) -> Schedule:
    bins = max(1, round(1 / rate))
    if steps is not None:
        _require.integer(steps=steps, at_least=1)
        if steps % bins:
            raise _require.fail("steps", steps, f"a multiple of {bins}, the number of steps in one pass")
        epochs = steps // bins
    _require.integer(epochs=epochs, at_least=1)
    passes = int(epochs)
    if kind == "balls_in_bins":
        return BallsInBins(bins=bins, epochs=passes, divisor=divisor)
    if strategy is None or strategy == "identity":
        return Cyclic(bins=bins, epochs=passes, divisor=divisor)
    chosen = strategy
    if strategy == "square_root":
        chosen = square_root(bins * passes)
    elif strategy == "blt":
        chosen = blt(bins * passes)
    return Cyclic(bins=bins, epochs=passes, divisor=divisor, strategy=chosen)


def _rate(size: int | None, rate: Any, batch: Any) -> tuple[Fraction, float]:
    """Return the rate, and the expected batch size; each from the other where the number of examples is
    declared."""
    if rate is None and batch is None:
        raise InvalidInput(
            "give batch= (the expected size of a batch), or rate=. Nothing was read or trained."
        )
    if rate is not None and batch is not None:
        _require.positive(batch=batch)
        return _require.exact(rate, "rate"), float(batch)
    if size is None:
        what = "batch" if rate is None else "rate"
        raise PrivateFact(
            f"{what}= alone needs the number of examples, and none is declared. It is private under "
            f"add_remove and never read off the "
            f"data: declare Public(size=...) or n=, buy a noisy count, or give both rate= and "
            f"batch=. Nothing was read or trained."
        )
    if batch is not None:
        _require.positive(batch=batch)
        exact = _require.exact(batch, "batch") / size
        if exact > 1:
            raise _require.fail(
                "batch", batch, f"at most n, the declared number of examples, which is {size}"
            )
        return exact, float(batch)
    exact = _require.exact(rate, "rate")
    return exact, float(exact * size)
