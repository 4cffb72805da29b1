"""Who takes part in which step, by coins that are really tossed; and what that costs.

Every schedule says in advance how many steps there are, what they cost with Gaussian noise, and by what the sum of gradients is
divided: a public number, never the size of the batch that came. Shuffling is not here: its steps are not independent samples, and
the price of sampling would be wrong for it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _require, sampling
from .._errors import InvalidInput, PrivateFact, PublicMismatch
from .._public import ADD_REMOVE, REPLACE, ZERO_OUT, Neighbors, require_relation
from .._registry import described
from ..accounting import Event, Gaussian, RandomAllocation, SampledWithoutReplacement
from ..sampling import Entropy

Indices = npt.NDArray[np.int64]


class Schedule:
    """Base. `steps` batches; `divisor` is the expected size of one."""

    steps: int
    divisor: float

    def event(self, noise_multiplier: float, neighbors: Neighbors) -> Event:
        """The price of the whole run. `noise_multiplier` is the noise over the clip."""
        raise NotImplementedError

    def batches(self, size: int, entropy: Entropy) -> Iterator[Indices]:
        """The members of each step's batch. `size` is the private number of examples; it goes nowhere else."""
        raise NotImplementedError


@described
@dataclass(frozen=True, slots=True, kw_only=True)
class Poisson(Schedule):
    """Every example takes part in every step with probability `rate`, independently.

    Guarantee: each step is Gaussian noise on a Poisson sample: PoissonSampled(Gaussian(noise_multiplier), rate), `steps` times.
    Proof:     one coin of probability exactly `rate` for each example and step (`sampling.poisson_subset`); one example moves the clipped
               sum by at most clip, under add_remove and zero_out; the noise is noise_multiplier * clip.
    """

    rate: Fraction
    steps: int
    divisor: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", _require.exact(self.rate, "rate"))
        _require.probability(rate=self.rate)
        _require.integer(steps=self.steps, at_least=1)
        _require.positive(rate=self.rate, divisor=self.divisor)

    def event(self, noise_multiplier: float, neighbors: Neighbors) -> Event:
        require_relation(neighbors, ADD_REMOVE, ZERO_OUT, what="Poisson sampling of examples")
        return Gaussian(noise_multiplier=noise_multiplier, neighbors=neighbors).sampled(self.rate).repeated(self.steps)

    def batches(self, size: int, entropy: Entropy) -> Iterator[Indices]:
        for _ in range(self.steps):
            yield sampling.poisson_subset(size, self.rate, entropy)


@described
@dataclass(frozen=True, slots=True, kw_only=True)
class BallsInBins(Schedule):
    """In each of `epochs` passes every example takes part in one of `bins` steps, drawn uniformly.

    Guarantee: each pass is RandomAllocation(Gaussian(noise_multiplier), bins); passes are independent.
    Proof:     Chua et al. 2025 (arXiv:2412.16802) and Feldman & Shenfeld 2025 (arXiv:2502.08202), for add_remove and zero_out.
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

    def event(self, noise_multiplier: float, neighbors: Neighbors) -> Event:
        require_relation(neighbors, ADD_REMOVE, ZERO_OUT, what="balls-in-bins batching")
        noise = Gaussian(noise_multiplier=noise_multiplier, neighbors=neighbors)
        return RandomAllocation(event=noise, steps=self.bins).repeated(self.epochs)

    def batches(self, size: int, entropy: Entropy) -> Iterator[Indices]:
        for _ in range(self.epochs):
            bins = np.asarray(sampling.uniform_below(self.bins, size, entropy), dtype=np.int64)
            order = np.argsort(bins, kind="stable")
            edges = np.searchsorted(bins[order], np.arange(self.bins + 1))
            for start, end in itertools.pairwise(edges.tolist()):
                yield order[start:end]


@described
@dataclass(frozen=True, slots=True, kw_only=True)
class WithoutReplacement(Schedule):
    """Each step takes `sample` of exactly `size` examples, drawn uniformly. For `replace`, where the size is public.

    Guarantee: each step is SampledWithoutReplacement(Gaussian(noise_multiplier / 2)): replacing one example moves the clipped sum by
               2 clip, and the price is that of noise over this distance.
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

    def event(self, noise_multiplier: float, neighbors: Neighbors) -> Event:
        require_relation(neighbors, REPLACE, what="sampling without replacement")
        noise = Gaussian(noise_multiplier=noise_multiplier / 2, neighbors=neighbors)
        return SampledWithoutReplacement(event=noise, size=self.size, sample=self.sample).repeated(self.steps)

    def batches(self, size: int, entropy: Entropy) -> Iterator[Indices]:
        if size != self.size:  # public under replace, so that it may be said
            raise PublicMismatch(f"the size is public and must be true: priced for {self.size}, the data has {size}.")
        for _ in range(self.steps):
            yield np.asarray(sampling.subset(size, self.sample, entropy), dtype=np.int64)


def schedule(
    kind: Any,
    *,
    neighbors: Neighbors,
    size: int | None,
    rate: Any = None,
    batch: Any = None,
    steps: int | None = None,
    epochs: Any = None,
) -> Schedule:
    """A schedule from what people like to say: `batch` of a declared `size`, or `rate`; `epochs`, or `steps`."""
    if isinstance(kind, Schedule):
        return kind
    if kind not in ("poisson", "balls_in_bins", "without_replacement"):
        raise _require.fail("sampling", kind, "'poisson', 'balls_in_bins', 'without_replacement', or a schedule")
    if (steps is None) == (epochs is None):
        raise InvalidInput("give steps=, or epochs= (and not both). Nothing was read or trained.")
    exact, divisor = _rate(size, rate, batch)
    if kind == "poisson":
        wanted = steps if steps is not None else max(1, round(_require.exact(epochs, "epochs") / exact))
        return Poisson(rate=exact, steps=wanted, divisor=divisor)
    if kind == "without_replacement":
        if size is None or batch is None:
            raise InvalidInput("sampling without replacement needs batch=, and Public(size=...), which is public then.")
        wanted = steps if steps is not None else max(1, round(_require.exact(epochs, "epochs") * size / batch))
        return WithoutReplacement(sample=batch, size=size, steps=wanted)
    bins = max(1, round(1 / exact))
    _require.integer(epochs=epochs if epochs is not None else Fraction(steps or 0, bins), at_least=1)
    return BallsInBins(bins=bins, epochs=int(epochs), divisor=divisor)


def _rate(size: int | None, rate: Any, batch: Any) -> tuple[Fraction, float]:
    """The rate, and the expected batch size; each from the other where the number of examples is declared."""
    if rate is None and batch is None:
        raise InvalidInput("give batch= (the expected size of a batch), or rate=. Nothing was read or trained.")
    if rate is not None and batch is not None:
        _require.positive(batch=batch)
        return _require.exact(rate, "rate"), float(batch)
    if size is None:
        what = "batch" if rate is None else "rate"
        raise PrivateFact(
            f"{what}= alone needs the number of examples, and none is declared. It is private under add_remove and never read off the "
            f"data: declare Public(size=...) or n=, buy a noisy count, or give both rate= and batch=. Nothing was read or trained."
        )
    if batch is not None:
        _require.positive(batch=batch)
        exact = _require.exact(batch, "batch") / size
        _require.probability(rate=exact)
        return exact, float(batch)
    exact = _require.exact(rate, "rate")
    return exact, float(exact * size)
