"""Events that choose or stop: noisy max, sparse vector, partition selection, the best of a random number of
trials, votes.

Also the guarantees known only as a Rényi bound. What these have in common: a choice is released, not a
number with noise.
"""

from __future__ import annotations

from dataclasses import dataclass

from .. import _require
from .._errors import InvalidInput
from .._public import ADD_REMOVE, Neighbors
from .._registry import described
from .._require import Real
from .events import Event, Gaussian, inherit

NOISES = ("laplace", "exponential", "gumbel")


@described("accounting.NoisyMax")
@dataclass(frozen=True, slots=True, kw_only=True)
class NoisyMax(Event):
    """The index of the largest of some scores after noise, nothing else; `epsilon`-DP as a whole.

    `noise`: "laplace" (Dwork & Roth 2014, Claim 3.9), "exponential" (permute-and-flip: McKenna & Sheldon
    2020, Ding et al. 2021), or "gumbel", which is the exponential mechanism and has bounded range. The scale
    that earns `epsilon` is the mechanism's business: 2 sensitivity / epsilon, or half of it when one unit
    moves all scores the same way.
    """

    epsilon: Real
    noise: str = "laplace"
    neighbors: Neighbors = ADD_REMOVE

    def __post_init__(self) -> None:
        _require.non_negative(epsilon=self.epsilon)
        if self.noise not in NOISES:
            raise _require.fail("noise", self.noise, f"one of {', '.join(NOISES)}")
        self._settle()


@described("accounting.SparseVector")
@dataclass(frozen=True, slots=True, kw_only=True)
class SparseVector(Event):
    """Any number of threshold questions, up to `cutoff` of them answered "above"; paid in full at the start.

    `threshold_epsilon` pays for the noisy threshold, `query_epsilon` for all `cutoff` positive answers
    together: threshold noise Lap(sensitivity / threshold_epsilon), query noise Lap(2 cutoff sensitivity /
    query_epsilon), halved for monotonic queries.
    Guarantee: (threshold_epsilon + query_epsilon)-DP. Proof: Lyu, Su & Li 2017, arXiv:1603.01699, Section 4.
    Numbers released for the positive answers are further events.
    """

    threshold_epsilon: Real
    query_epsilon: Real
    cutoff: int = 1
    neighbors: Neighbors = ADD_REMOVE

    def __post_init__(self) -> None:
        _require.positive(threshold_epsilon=self.threshold_epsilon, query_epsilon=self.query_epsilon)
        _require.integer(cutoff=self.cutoff, at_least=1)
        self._settle()


@described("accounting.Thresholded")
@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholded(Event):
    """Noise `event` on the sizes of groups nobody declared; only groups whose noisy size passes a threshold
    are shown.

    `delta` bounds the chance that any group which exists in only one of two neighboring tables is shown: for
    Laplace or Gaussian noise (discrete or not) the tail of the noise beyond threshold minus contribution,
    over all groups a unit can touch.
    Guarantee: delta_M(x) <= delta + (1 - delta) delta_event(x) for every epsilon x, and so under
    composition: except with probability delta both tables show the same groups, and what is left is the noise
    of `event` (Korolova et al. 2009; Wilson et al. 2020). The neighbors are those of `event`.
    """

    event: Event
    delta: float
    neighbors: Neighbors = ADD_REMOVE

    def __post_init__(self) -> None:
        _require.probability(delta=self.delta)
        inherit(self)


@described("accounting.RDPPoint")
@dataclass(frozen=True, slots=True, kw_only=True)
class RDPPoint(Event):
    """Anything that is (order, epsilon)-Rényi-DP (Mironov 2017, arXiv:1702.07476, Definition 4) at this one
    order."""

    order: Real
    epsilon: Real
    neighbors: Neighbors = ADD_REMOVE

    def __post_init__(self) -> None:
        _require.positive(order=self.order)
        if not self.order > 1:
            raise _require.fail("order", self.order, "above 1")
        _require.non_negative(epsilon=self.epsilon)
        self._settle()


class Trials:
    """Marks the distributions of the number of trials: the base class of each of them."""

    __slots__ = ()


@described("accounting.PoissonTrials")
@dataclass(frozen=True, slots=True, kw_only=True)
class PoissonTrials(Trials):
    """Poisson with this mean. None at all is possible: then there is no output."""

    mean: Real

    def __post_init__(self) -> None:
        _require.positive(mean=self.mean)


@described("accounting.NegativeBinomialTrials")
@dataclass(frozen=True, slots=True, kw_only=True)
class NegativeBinomialTrials(Trials):
    """Truncated negative binomial, at least one trial: `shape` 1 is geometric with success chance `gamma`,
    `shape` 0 logarithmic.

    Papernot & Steinke 2022, arXiv:2110.03620, Definition 1.
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
    """Return a number of trials that is geometric: 1/gamma on average, each with chance gamma the last."""
    return NegativeBinomialTrials(shape=1, gamma=gamma)


@_require.check_options
def logarithmic(gamma: Real) -> NegativeBinomialTrials:
    """Return a number of trials with the logarithmic series distribution: cheaper than the geometric for the
    same mean."""
    return NegativeBinomialTrials(shape=0, gamma=gamma)


@described("accounting.RepeatAndSelect")
@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatAndSelect(Event):
    """`event` run a random number of times, and only the best run shown: private tuning.

    The score that decides must be part of each run's (private) output. Price: Papernot & Steinke 2022,
    arXiv:2110.03620.
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
        inherit(self)


@described("accounting.GNMax")
@dataclass(frozen=True, slots=True, kw_only=True)
class GNMax(Event):
    """The class with most votes after noise N(0, sigma²) on every count; one unit can move one teacher's
    vote.

    The data-independent price, known before any vote: a Gaussian with noise multiplier sigma / sqrt(2)
    (Papernot et al. 2018, arXiv:1802.08908, Proposition 8). A smaller price that the votes allow depends on
    them, and is itself private: see `discreet.accounting.pate`.
    """

    sigma: Real
    neighbors: Neighbors = ADD_REMOVE

    def __post_init__(self) -> None:
        _require.positive(sigma=self.sigma)
        self._settle()

    @property
    def equivalent(self) -> Gaussian:
        """The Gaussian release with at least this price: the multiplier is rounded down."""
        down = float(self.sigma) * 0.707106781186547
        if down == 0:
            raise InvalidInput(f"sigma = {self.sigma!r} is too small to be told from zero.")
        return Gaussian(noise_multiplier=down, neighbors=self.neighbors)
