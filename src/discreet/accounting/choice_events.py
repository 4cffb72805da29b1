"""Defines events whose release is a choice and not a number with noise: noisy max, sparse vector, partition
selection, the best of a random number of trials, and the winner of a vote.

`RDPPoint`, for a mechanism with a known Rényi bound at one order, is in this module too.
"""

from __future__ import annotations

from dataclasses import dataclass

from .. import _require
from .._errors import InvalidInput
from .._public import ADD_REMOVE, Neighbors
from .._registry import described
from .._require import Real
from .events import Event, Gaussian, inherit_neighbors

NOISES = ("laplace", "exponential", "gumbel")


@described("accounting.NoisyMax")
@dataclass(frozen=True, slots=True, kw_only=True)
class NoisyMax(Event):
    """Report noisy max: the index of the largest of some scores after noise, and nothing else; `epsilon`-DP.

    `noise`: "laplace" (Dwork & Roth 2014, Claim 3.9), "exponential" (permute-and-flip: McKenna & Sheldon
    2020, Ding et al. 2021), or "gumbel", which is the exponential mechanism and has bounded range. The
    mechanism must choose the noise scale that gives `epsilon`: 2 sensitivity / epsilon, or half of it when
    one unit moves all scores in the same direction.
    """

    epsilon: Real
    noise: str = "laplace"
    neighbors: Neighbors = ADD_REMOVE

    def __post_init__(self) -> None:
        _require.non_negative(epsilon=self.epsilon)
        if self.noise not in NOISES:
            raise _require.fail("noise", self.noise, f"one of {', '.join(NOISES)}")
        self._resolve_neighbors()


@described("accounting.SparseVector")
@dataclass(frozen=True, slots=True, kw_only=True)
class SparseVector(Event):
    """The sparse vector technique: any number of queries compared with a threshold, until `cutoff` of them
    were answered "above". The full price is charged at the start.

    `threshold_epsilon` pays for the noisy threshold, `query_epsilon` for all `cutoff` positive answers
    together: threshold noise Lap(sensitivity / threshold_epsilon), query noise Lap(2 cutoff sensitivity /
    query_epsilon), halved for monotonic queries.
    Guarantee: (threshold_epsilon + query_epsilon)-DP. Proof: Lyu, Su & Li 2017, arXiv:1603.01699, Section 4.
    Noisy values that are released for the positive answers are separate events.
    """

    threshold_epsilon: Real
    query_epsilon: Real
    cutoff: int = 1
    neighbors: Neighbors = ADD_REMOVE

    def __post_init__(self) -> None:
        _require.positive(threshold_epsilon=self.threshold_epsilon, query_epsilon=self.query_epsilon)
        _require.integer(cutoff=self.cutoff, at_least=1)
        self._resolve_neighbors()


@described("accounting.Thresholded")
@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholded(Event):
    """Partition selection: the noise of `event` on the sizes of groups that were not declared in advance;
    only groups whose noisy size passes a threshold are released.

    `delta` bounds the probability that any group that exists in only one of two neighboring tables is
    released: for Laplace or Gaussian noise (discrete or not) the probability that the noise is above the
    threshold minus a unit's contribution to the group, summed over all groups that a unit can contribute to.
    Guarantee: for every epsilon x the delta of the release at x is at most delta + (1 - delta)
    delta_event(x), also within a composition: except with probability `delta`, both tables release the same
    groups, and the two outputs then differ as those of `event` do (Korolova et al. 2009; Wilson et al. 2020).
    The neighbor relation is that of `event`.
    """

    event: Event
    delta: float
    neighbors: Neighbors = ADD_REMOVE

    def __post_init__(self) -> None:
        _require.probability(delta=self.delta)
        inherit_neighbors(self)


@described("accounting.RDPPoint")
@dataclass(frozen=True, slots=True, kw_only=True)
class RDPPoint(Event):
    """Any mechanism that is (order, epsilon)-Rényi-DP at this one order (Mironov 2017, arXiv:1702.07476,
    Definition 4)."""

    order: Real
    epsilon: Real
    neighbors: Neighbors = ADD_REMOVE

    def __post_init__(self) -> None:
        _require.positive(order=self.order)
        if not self.order > 1:
            raise _require.fail("order", self.order, "above 1")
        _require.non_negative(epsilon=self.epsilon)
        self._resolve_neighbors()


class Trials:
    """Base class of the distributions of the number of trials in `RepeatAndSelect`."""

    __slots__ = ()


@described("accounting.PoissonTrials")
@dataclass(frozen=True, slots=True, kw_only=True)
class PoissonTrials(Trials):
    """A Poisson number of trials with this mean. It may be zero: then nothing is released."""

    mean: Real

    def __post_init__(self) -> None:
        _require.positive(mean=self.mean)


@described("accounting.NegativeBinomialTrials")
@dataclass(frozen=True, slots=True, kw_only=True)
class NegativeBinomialTrials(Trials):
    """A truncated negative binomial number of trials, at least one: `shape` 1 is the geometric distribution
    with success probability `gamma`, `shape` 0 the logarithmic one.

    Papernot & Steinke 2022, arXiv:2110.03620, Definition 1, where `shape` is eta.
    """

    shape: Real
    gamma: Real

    def __post_init__(self) -> None:
        _require.finite(shape=self.shape)
        if not self.shape > -1:
            raise _require.fail("shape", self.shape, "above -1")
        _require.open_probability(gamma=self.gamma)


@_require.check_options
def geometric(gamma: Real) -> NegativeBinomialTrials:
    """Return the geometric distribution: each trial is the last with probability gamma, 1/gamma on
    average."""
    return NegativeBinomialTrials(shape=1, gamma=gamma)


@_require.check_options
def logarithmic(gamma: Real) -> NegativeBinomialTrials:
    """Return the logarithmic distribution. A selection with it costs less than one with the geometric
    distribution of the same mean."""
    return NegativeBinomialTrials(shape=0, gamma=gamma)


@described("accounting.RepeatAndSelect")
@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatAndSelect(Event):
    """`event` run a random number of times, and only the output of the best run released: private selection,
    as for tuning hyperparameters.

    The score that decides which run is best must be part of the run's output, which `event` prices. Price:
    Papernot & Steinke 2022, arXiv:2110.03620.
    """

    event: Event
    trials: Trials
    neighbors: Neighbors = ADD_REMOVE

    def __post_init__(self) -> None:
        if not isinstance(self.trials, Trials):
            raise _require.fail(
                "trials",
                self.trials,
                "PoissonTrials(...), NegativeBinomialTrials(...), geometric(...) or logarithmic(...)",
            )
        inherit_neighbors(self)


@described("accounting.GNMax")
@dataclass(frozen=True, slots=True, kw_only=True)
class GNMax(Event):
    """The Gaussian noisy max of PATE: the class with most teachers' votes after noise N(0, sigma²) on every
    count. One unit can change one teacher's vote.

    The price does not depend on the votes: that of a Gaussian with noise multiplier sigma / sqrt(2) (Papernot
    et al. 2018, arXiv:1802.08908, Proposition 8). A smaller price can be computed from the votes. It depends
    on the data and must not be published as it is: see `discreet.accounting.pate`.
    """

    sigma: Real
    neighbors: Neighbors = ADD_REMOVE

    def __post_init__(self) -> None:
        _require.positive(sigma=self.sigma)
        self._resolve_neighbors()

    @property
    def equivalent(self) -> Gaussian:
        """The Gaussian release with this price; its noise multiplier is rounded down, its price up."""
        # sqrt(1/2), rounded down
        noise_multiplier = float(self.sigma) * 0.707106781186547
        if noise_multiplier == 0:
            raise InvalidInput(f"sigma = {self.sigma!r} is too small to be told from zero.")
        return Gaussian(noise_multiplier=noise_multiplier, neighbors=self.neighbors)
