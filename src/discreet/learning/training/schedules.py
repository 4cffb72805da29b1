"""Defines sampling schedules (Poisson, balls in bins, without replacement, cyclic): which examples take part
in which step, drawn exactly as the privacy proof assumes, and the price: the accounting event of the whole
run.

Every schedule says in advance how many steps there are, what they cost with Gaussian noise, and by which
number the sum of gradients is divided: a public one, never the size of the batch that was drawn. There is no
shuffling here: its batches are not independent samples, and the price of sampling would be wrong for it.

Builds the sampling schedule of a run (`schedules`) from a trainer's options: `sampling`, `batch` or
`rate`, `epochs` or `steps`.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from fractions import Fraction
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from ... import _require, sampling
from ... import accounting as acc
from ..._errors import InvalidInput, PrivateFact, PublicMismatch, Unsupported
from ..._public import ADD_REMOVE, REPLACE, ZERO_OUT, Neighbors, require_relation
from ..._registry import described
from ..._require import EXACT, POSITIVE, PROBABILITY, at_least
from ...accounting import Event, Gaussian, RandomAllocation, SampledWithoutReplacement
from ...accounting.events import Participation
from ...accounting.normal import overflow
from ...sampling import Entropy
from .gradient_noise import IDENTITY, GradientGrid, Strategy, blt, sensitivity, square_root

Indices = npt.NDArray[np.int64]
# About how many indices one call of the sampler draws, for several steps at once where batches are small, so
# that there are few calls. More would take memory, and is no faster for batches of hundreds.
_MEMBERS = 1 << 13


class Schedule(ABC):
    """Describes what all schedules have: the number of `steps`, each with a batch, and the public `divisor`,
    the expected size of a batch."""

    steps: int
    divisor: float

    @abstractmethod
    def event(self, noise_multiplier: float, neighbors: Neighbors, grid: GradientGrid | None = None) -> Event:
        """Return the price of the whole run.

        `noise_multiplier` is the standard deviation of the independent noise divided by the clip and by
        `growth`. With a `grid` (each summand is rounded to it, and the noise is exact:
        `gradient_noise.GradientGrid`), it is the noise's deviation divided by the grid's sensitivity.
        """

    @property
    def growth(self) -> float:
        """Return the deviation of the independent noise divided by noise_multiplier * clip.

        It is 1 but for `Cyclic`, which prices all steps of an example as one Gaussian.
        """
        return 1.0

    @abstractmethod
    def batches(self, size: int, entropy: Entropy) -> Iterator[Indices]:
        """Yield the indices of the examples in each step's batch.

        `size` is the number of examples in the data, which is private unless the schedule declares its own
        `size`; it is used for nothing else.
        """

    @property
    def exact_size(self) -> int | None:
        """Return the number of examples that the schedule is priced for, exactly; None for any number."""
        return getattr(self, "size", None)

    def check_size(self, size: int) -> None:
        """Refuse data of another size than was declared, if the schedule is priced for an exact number of
        examples. The size is public then, so the message may contain it."""
        if self.exact_size is not None and size != self.exact_size:
            raise PublicMismatch(
                f"the size is public and must be true: priced for {self.exact_size}, the data has {size}."
            )


def _noise(
    noise_multiplier: float, neighbors: Neighbors, grid: GradientGrid | None, changes: int = 1
) -> Event:
    """Return the event of one noisy sum that one unit moves by at most `changes` times the clip."""
    if grid is not None:
        return grid.event(noise_multiplier, neighbors, changes)
    return Gaussian(noise_multiplier=noise_multiplier / changes, neighbors=neighbors)


def _refuse_grid(grid: GradientGrid | None, subject: str) -> None:
    """Refuse exact noise where the price is proved for the continuous Gaussian only."""
    if grid is not None:
        raise Unsupported(
            f"{subject} is proved for the continuous Gaussian only. Leave out noise='discrete'."
        )


@described("learning.Poisson")
class Poisson(Schedule):
    """Samples every example for every step with probability `rate`, independently: Poisson subsampling (the
    "lots" of Abadi et al. 2016).

    Guarantee: each step is Gaussian noise on a Poisson sample: PoissonSampled(Gaussian(noise_multiplier),
               rate), `steps` times.
    Proof:     one coin of probability exactly `rate` for each example and step (`sampling.poisson_subsets`);
               one example moves the clipped sum by at most clip, under add_remove and zero_out; the noise has
               the deviation noise_multiplier * clip.
    """

    rate: Annotated[Fraction, EXACT, PROBABILITY, POSITIVE]
    steps: Annotated[int, at_least(1)]
    divisor: Annotated[float, POSITIVE]

    def event(self, noise_multiplier: float, neighbors: Neighbors, grid: GradientGrid | None = None) -> Event:
        require_relation(neighbors, ADD_REMOVE, ZERO_OUT, what="Poisson sampling of examples")
        return _noise(noise_multiplier, neighbors, grid).sampled(self.rate).repeated(self.steps)

    def batches(self, size: int, entropy: Entropy) -> Iterator[Indices]:
        return _poisson_batches(size, self.rate, self.steps, entropy)


@described("learning.BallsInBins")
class BallsInBins(Schedule):
    """Deals every example into one of `bins` steps, uniformly, in each of `epochs` passes.

    Guarantee: each pass is RandomAllocation(Gaussian(noise_multiplier), bins); passes are independent.
    Proof:     Chua et al. 2025 (arXiv:2412.16802) and Feldman & Shenfeld 2025 (arXiv:2502.08202), for
               add_remove and zero_out.
    """

    bins: Annotated[int, at_least(1)]
    epochs: Annotated[int, at_least(1)]
    divisor: Annotated[float, POSITIVE]

    @property
    def steps(self) -> int:  # type: ignore[override]
        return self.bins * self.epochs

    def event(self, noise_multiplier: float, neighbors: Neighbors, grid: GradientGrid | None = None) -> Event:
        require_relation(neighbors, ADD_REMOVE, ZERO_OUT, what="balls-in-bins batching")
        _refuse_grid(grid, "balls-in-bins batching")
        noise = Gaussian(noise_multiplier=noise_multiplier, neighbors=neighbors)
        return RandomAllocation(event=noise, steps=self.bins).repeated(self.epochs)

    def batches(self, size: int, entropy: Entropy) -> Iterator[Indices]:
        for _ in range(self.epochs):
            yield from _deal_into_bins(self.bins, size, entropy)


@described("learning.WithoutReplacement")
class WithoutReplacement(Schedule):
    """Draws `sample` of exactly `size` examples for each step, uniformly.

    For the relation `replace`, under which the size is public.

    Guarantee: each step is SampledWithoutReplacement(Gaussian(noise_multiplier / 2)): replacing one example
               moves the clipped sum by up to 2 clip, and the noise has the deviation noise_multiplier * clip.
    Proof:     Balle, Barthe & Gaboardi 2018 (arXiv:1807.01647, Theorem 9).
    """

    sample: Annotated[int, at_least(1)]
    size: Annotated[int, at_least(1)]
    steps: Annotated[int, at_least(1)]

    def __post_init__(self) -> None:
        _require.must(self.sample <= self.size, "sample", self.sample, f"at most size = {self.size}")

    @property
    def divisor(self) -> float:  # type: ignore[override]
        return float(self.sample)

    def event(self, noise_multiplier: float, neighbors: Neighbors, grid: GradientGrid | None = None) -> Event:
        require_relation(neighbors, REPLACE, what="sampling without replacement")
        noise = _noise(noise_multiplier, neighbors, grid, changes=2)
        return SampledWithoutReplacement(event=noise, size=self.size, sample=self.sample).repeated(self.steps)

    def batches(self, size: int, entropy: Entropy) -> Iterator[Indices]:
        self.check_size(size)
        for _ in range(self.steps):
            yield np.asarray(sampling.subset(size, self.sample, entropy), dtype=np.int64)


@described("learning.TruncatedPoisson")
class TruncatedPoisson(Schedule):
    """Draws by Poisson sampling from exactly `size` examples; where more than `limit` are drawn, a random
    `limit` of them are kept.

    For the relation `zero_out`. The limit bounds the memory that a batch takes; the price of the limit is
    an addition to delta, in proportion to the probability that any batch is above it.

    Guarantee: accounting's TruncatedPoisson: the run is that of `Poisson` except with probability at most
               p = steps * P[Binomial(size, rate) > limit], which adds (1 + e^epsilon) p to delta.
    Proof:     Chua et al. 2024, arXiv:2411.04205: both runs use the same coins, and are the same as long as
               no batch is above the limit.
    """

    rate: Annotated[Fraction, EXACT, PROBABILITY, POSITIVE]
    size: Annotated[int, at_least(1)]
    limit: Annotated[int, at_least(1)]
    steps: Annotated[int, at_least(1)]

    @property
    def divisor(self) -> float:  # type: ignore[override]
        return float(self.rate * self.size)

    def event(self, noise_multiplier: float, neighbors: Neighbors, grid: GradientGrid | None = None) -> Event:
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
    _require.probability(rate=_require.exact(rate, "rate"))
    _require.integer(size=size, steps=steps, at_least=1)

    def fits(limit: int) -> bool:
        # e^700 is near the largest float. For a larger epsilon the limit that is found may cost more than
        # `delta`; the schedule's event counts what it costs.
        return (1 + math.exp(min(epsilon, 700.0))) * steps * overflow(size, rate, limit) <= delta

    # Binary search: `high` always fits, as no batch is above `size`; `low` does not, or is 0 (no limit is 0).
    low, high = 0, size
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


@described("learning.Cyclic")
class Cyclic(Schedule):
    """Assigns every example once, at random, to one of the `bins` steps of a pass; in each of `epochs` passes
    it takes part in that step. There is no amplification by sampling.

    Noise may be correlated over time by a `strategy` (`noise`): then later steps subtract a part of a
    step's noise. One bin is full-batch descent.

    Guarantee: CorrelatedGaussian(noise_multiplier): one Gaussian for the whole run, with independent noise of
               deviation noise_multiplier * clip * `growth`. Under `replace` the vectors of one example become
               those of another, which moves sums twice as far: the price is that of noise_multiplier / 2.
    Proof:     write C for the strategy's matrix, G for the clipped sums and Z for the independent noise, with
               one row for each step. An example's step does not depend on other examples, so one example more
               or less adds vectors of length at most clip to at most `epochs` rows of G, any two of them at
               least `bins` apart; `growth` bounds the length of C times these (`correlated.sensitivity`).
               Adding C⁻¹ Z to G is C⁻¹ applied to C G + Z, also when gradients depend on what was released
               before (Denisov et al. 2022, arXiv:2202.08312, Theorem 2.1).
    """

    bins: Annotated[int, at_least(1)]
    epochs: Annotated[int, at_least(1)]
    divisor: Annotated[float, POSITIVE]
    strategy: Strategy = IDENTITY

    def __post_init__(self) -> None:
        if not isinstance(self.strategy, Strategy):
            raise _require.fail(
                "strategy", type(self.strategy).__name__, "Toeplitz(...), Dense(...), or square_root(steps)"
            )
        # Raises if the strategy is for fewer steps.
        self.strategy.row(self.steps - 1)

    @property
    def steps(self) -> int:  # type: ignore[override]
        return self.bins * self.epochs

    @property
    def growth(self) -> float:
        return sensitivity(self.strategy, self.steps, self.bins, self.epochs)

    @property
    def participation(self) -> Participation:
        """Return in which steps one example may take part, as the accounting event describes it."""
        if self.epochs == 1:
            return acc.SingleEpoch()
        if self.strategy.bands <= self.bins:
            return acc.Banded(bands=self.strategy.bands, times=self.epochs)
        return acc.MinSeparated(separation=self.bins, times=self.epochs)

    def event(self, noise_multiplier: float, neighbors: Neighbors, grid: GradientGrid | None = None) -> Event:
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
    """Yield the members of each bin: every example is in one of them, uniformly and independently.

    The i-th draw belongs to the i-th example, and positions move when a person leaves. That is no leak: the
    draws are independent and identically distributed, so the bins of the other examples have the same joint
    distribution with and without that person, and can be taken to be the same in a proof.
    """
    bin_of = np.asarray(sampling.uniform_below(bins, size, entropy), dtype=np.int64)
    order = np.argsort(bin_of, kind="stable")
    edges = np.searchsorted(bin_of[order], np.arange(bins + 1))
    for start, end in itertools.pairwise(edges.tolist()):
        yield order[start:end]


def _poisson_batches(size: int, rate: Fraction, steps: int, entropy: Entropy) -> Iterator[Indices]:
    """Yield a Poisson sample for each step; small ones are drawn for several steps at a time.

    Positions move when a person leaves, which is no leak: see `_deal_into_bins`.
    """
    steps_at_once = max(1, min(steps, int(_MEMBERS / (1 + rate * size))))
    for start in range(0, steps, steps_at_once):
        yield from sampling.poisson_subsets(size, rate, min(steps_at_once, steps - start), entropy)


_KINDS = ("poisson", "truncated_poisson", "balls_in_bins", "without_replacement", "cyclic")


def build_schedule(
    kind: Any,
    *,
    size: int | None,
    rate: Any = None,
    batch: Any = None,
    steps: int | None = None,
    epochs: Any = None,
    limit: int | None = None,
    strategy: Any = None,
    target: tuple[float | None, float | None] = (None, None),
) -> Schedule:
    """Return a schedule from a trainer's options; a `kind` that is a schedule already is returned as it is.

    `size` is the declared number of examples, None if there is none. The sampling rate is `rate`, or `batch`
    (the expected size of a batch) divided by `size`; the length is `steps`, or `epochs` passes. `limit` is
    the largest batch of truncated Poisson sampling; by default `_limit` computes it from `target`, the
    (epsilon, delta) that the trainer is calibrated to. `strategy` correlates the noise of a cyclic schedule.
    """
    if isinstance(kind, Schedule):
        options = {"rate": rate, "batch": batch, "steps": steps, "epochs": epochs, "limit": limit}
        ignored = [name for name, value in (options | {"strategy": strategy}).items() if value is not None]
        if ignored:
            raise InvalidInput(
                f"{ignored[0]}= belongs to the schedule, sampling={type(kind).__name__}(...), and would be "
                "ignored. Leave it out."
            )
        return kind
    _check_options(kind, steps, epochs, limit, strategy)
    exact_rate, divisor = _rate(size, rate, batch)
    if kind in ("balls_in_bins", "cyclic"):
        return _pass_schedule(kind, exact_rate, divisor, steps, epochs, strategy)
    if epochs is not None:
        _require.positive(epochs=epochs)
    total_steps = steps if steps is not None else max(1, round(_require.exact(epochs, "epochs") / exact_rate))
    if kind == "poisson":
        return Poisson(rate=exact_rate, steps=total_steps, divisor=divisor)
    if size is None or (kind == "without_replacement" and batch is None):
        raise InvalidInput(
            f"{kind} sampling needs batch=, and the exact number of examples, Public(size=...), which is "
            "public then."
        )
    if rate is not None and batch is not None and exact_rate * size != _require.exact(batch, "batch"):
        # The sample has one size, which would follow from only one of them.
        raise InvalidInput(
            f"rate={rate!r} of {size} examples is {float(exact_rate * size):g}, and batch={batch!r} says "
            f"otherwise. For {kind} sampling, leave one of them out."
        )
    if kind == "without_replacement":
        return WithoutReplacement(sample=batch, size=size, steps=total_steps)
    return TruncatedPoisson(
        rate=exact_rate,
        size=size,
        limit=_limit(limit, size, exact_rate, total_steps, target),
        steps=total_steps,
    )


def _check_options(kind: Any, steps: Any, epochs: Any, limit: Any, strategy: Any) -> None:
    """Refuse an unknown kind of sampling, and options that do not go with it or with each other."""
    if not isinstance(kind, str) or kind not in _KINDS:
        raise _require.fail("sampling", kind, f"{', '.join(map(repr, _KINDS))}, or a schedule")
    _require.that((steps is None) != (epochs is None), "give steps=, or epochs= (and not both).")
    if limit is not None and kind != "truncated_poisson":
        raise InvalidInput(f"limit= is for sampling='truncated_poisson'; {kind!r} has none.")
    if strategy is not None and kind != "cyclic":
        raise InvalidInput(f"strategy= is for sampling='cyclic': with {kind!r} noise is independent.")


def _limit(
    limit: int | None, size: int, rate: Fraction, steps: int, target: tuple[float | None, float | None]
) -> int:
    """Return the batch limit, by default the smallest that costs at most a hundredth of delta (chosen by
    hand, not tuned)."""
    if limit is not None:
        return limit
    epsilon, delta = target
    if epsilon is None or delta is None:
        raise InvalidInput("truncated_poisson with a noise_multiplier needs limit=, the largest batch.")
    return smallest_limit(size=size, rate=rate, steps=steps, epsilon=epsilon, delta=delta / 100)


def _pass_schedule(
    kind: str, rate: Fraction, divisor: float, steps: int | None, epochs: Any, strategy: Any
) -> Schedule:
    """Return a schedule of whole passes, each of 1 / `rate` steps (rounded): balls in bins, or cyclic.

    `divisor` is the expected batch size.
    """
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
    matrix = _strategy(strategy, bins, bins * passes)
    return Cyclic(bins=bins, epochs=passes, divisor=divisor, strategy=matrix)


def _strategy(strategy: Any, bins: int, steps: int) -> Any:
    """Return the strategy of this name for `steps` steps, `bins` in a pass; any other object is returned as
    it is, for `Cyclic` to check.

    "banded" has as many coefficients as in `streaming.named`, but at most one per step of a pass, so that
    what an example adds in two passes is orthogonal.
    """
    if strategy is None or strategy == "identity":
        return IDENTITY
    if strategy == "square_root":
        return square_root(steps)
    if strategy == "banded":
        return square_root(steps, min(bins, max(1, math.isqrt(steps))))
    if strategy == "blt":
        return blt(steps)
    _require.that(
        strategy not in ("tree", "honaker"),
        f"strategy={strategy!r} measures the nodes of a tree over time, and a trainer needs the noise of "
        "each step. Take 'blt', 'banded' or 'square_root', which have less error.",
    )
    if isinstance(strategy, str):
        _require.one_of(("identity", "square_root", "banded", "blt"), strategy=strategy)
    return strategy


def _rate(size: int | None, rate: Any, batch: Any) -> tuple[Fraction, float]:
    """Return the sampling rate and the expected batch size; where only one is given, the other follows from
    the declared number of examples."""
    if rate is None and batch is None:
        raise InvalidInput("give batch= (the expected size of a batch), or rate=.")
    if rate is not None:
        _require.positive(rate=_require.exact(rate, "rate"))
        _require.probability(rate=_require.exact(rate, "rate"))
    if rate is not None and batch is not None:
        _require.positive(batch=batch)
        return _require.exact(rate, "rate"), float(batch)
    if size is None:
        option = "batch" if rate is None else "rate"
        raise PrivateFact(
            f"{option}= alone needs the number of examples, and none is declared. It is private under "
            "add_remove and never read off the data: declare Public(size=...) or n=, buy a noisy count, or "
            "give both rate= and batch=."
        )
    if batch is not None:
        _require.positive(batch=batch)
        exact_rate = _require.exact(batch, "batch") / size
        _require.must(
            exact_rate <= 1, "batch", batch, f"at most n, the declared number of examples, which is {size}"
        )
        return exact_rate, float(batch)
    exact_rate = _require.exact(rate, "rate")
    return exact_rate, float(exact_rate * size)
