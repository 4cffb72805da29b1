"""Defines online learners as interactive mechanisms: they are paid for at the start, then fed with one batch
per round, and release a decision after each round.

>>> from discreet import Bounds, Public
>>> from discreet.sampling import SeededEntropy
>>> from discreet.streaming import Ball, SquaredDistance, learner
>>> from discreet.tables import Memory
>>> public = Public(schema={"x": Bounds(-1, 1), "y": Bounds(-1, 1)}, table="points")
>>> mean = learner(public, SquaredDistance(columns=("x", "y")), space=Ball(2), clip=2, horizon=100, rho=1)
>>> round_one = Memory({"x": [0.5], "y": [-0.25]}, public)
>>> state = mean.start(round_one, entropy=SeededEntropy(1))
>>> state, released = mean.feed(state, round_one, entropy=SeededEntropy(2))
>>> released.value.shape, round(mean.regret_bound())
((2,), 74)
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from .. import _require
from .._errors import InvalidInput
from .._public import Bounds, Public
from .._registry import described
from .._require import FINITE, FLOAT, NON_NEGATIVE, POSITIVE, Real, among, between, instance_of
from ..accounting import Event
from ..mechanisms.protocols import Answered, Interactive, Release, check_source, release
from ..sampling import Entropy
from ..tables import Source
from .continual import ContinualCounter, advances, counter
from .losses import (
    Ball,
    Box,
    ClippedGradients,
    LinearLoss,
    Loss,
    Simplex,
    Space,
    check_columns,
    descend_mirror,
    experts_bound,
    follow_leader,
    leader_bound,
    mirror_bound,
    weigh_experts,
)

Floats = NDArray[np.float64]
State = dict[str, Any]
LEARNERS = ("leader", "mirror", "experts")
# The smallest allowed parameter, batch and clip; 1 / _SMALLEST is the largest. Within these limits the square
# of one, and the product of two, stay finite in floats, whose range is 1e-308 to 1e308. Chosen by
# hand.
_SMALLEST = 1e-50
_SUMS = "a counter of ClippedGradients: streaming.learner(...)"


# For a number beyond this, some noise makes a decision infinite.
_IN_RANGE = between(_SMALLEST, 1 / _SMALLEST)
Size = Annotated[float, FLOAT, POSITIVE, _IN_RANGE]


@described("streaming.OnlineLearner")
class OnlineLearner(Interactive):
    """Learns online and privately over a convex set: each round's gradient is taken at the newest decision w
    and added to a noisy sum, and the next decision is computed from that sum.

    `learner`: "leader" is follow the approximate leader (Smith & Thakurta 2013), and `parameter` is the
    strong convexity H of a round's loss; "mirror" is online mirror descent with lazy steps, and `parameter`
    is the inverse of its learning rate; "experts" is prediction with expert advice (Hedge), and `parameter`
    is its temperature. The latter two use private sums as in Agarwal & Singh 2017 (arXiv:1701.07953). A round
    is a batch of rows; its loss is the sum of the rows' losses divided by the declared number `batch`, plus
    (`ridge` / 2) |w|². Clocks, participations and late rows are as in `ContinualCounter`, which adds up the
    gradients.

    Guarantee: that of `sums`, a continual counter of gradients that are clipped per unit, for all decisions
               together.
    Proof:     a decision is a function of noisy sums. The gradient of a round is taken at a decision that is
               a function of earlier releases, and one unit moves it by at most the clip, whatever the
               decision is: the proof of `ContinualCounter` allows data that depends on earlier releases.
    Assumes:   as `ContinualCounter`.
    Versions:  the guarantee is for histories of the table, because the curator feeds each round once
               (`protocols.Interactive`).
    """

    public: Public
    sums: Annotated[ContinualCounter, instance_of(ContinualCounter, _SUMS)]
    space: Annotated[Space, instance_of(Space, "Ball(...), Box(...) or Simplex(...)")]
    learner: Annotated[str, among(LEARNERS)]
    parameter: Size
    batch: Size = 1.0
    ridge: Annotated[float, FLOAT, NON_NEGATIVE] = 0.0

    def __post_init__(self) -> None:
        statistic = self.sums.statistic
        adds_gradients = isinstance(statistic, ClippedGradients)
        _require.must(adds_gradients, "sums", f"one of {type(statistic).__name__}", _SUMS)
        # `protocols.as_of` sets the facts of another version of the table.
        if self.sums.public != self.public:
            object.__setattr__(self, "sums", replace(self.sums, public=self.public))
        _require.that(self.sums.horizon is not None, "a learner needs a counter with horizon=.")
        all_rounds = self.sums.window is None and self.sums.decay is None and self.sums.restart is None
        _require.that(all_rounds, "a learner adds up all rounds: no window, decay or restart.")
        d = self.loss.dimension
        _require.must(self.space.dimension == d, "space", self.space, f"of {d} entries, as the loss has")
        weighs = self.learner != "experts" or isinstance(self.space, Simplex)
        _require.must(weighs, "space", self.space, "a Simplex, where experts are weighted")
        _IN_RANGE("clip", self._gradients.clip)
        within, what = f"at most {1 / _SMALLEST:g}", "ridge, or the diameter of the space"
        _require.must(max(self.ridge, self.space.diameter) <= 1 / _SMALLEST, what, self.ridge, within)

    @property
    def loss(self) -> Loss:
        return self._gradients.loss

    @property
    def _gradients(self) -> ClippedGradients:
        statistic = self.sums.statistic
        assert isinstance(statistic, ClippedGradients)
        return statistic

    @property
    def event(self) -> Event:
        return self.sums.event

    @property
    def asked(self) -> tuple[Real, float] | None:
        return self.sums.asked

    @property
    def horizon(self) -> int:
        assert self.sums.horizon is not None
        return self.sums.horizon

    @property
    def clock(self) -> str | None:
        return self.sums.clock

    @property
    def level(self) -> str:
        """Return whom the guarantee is about: "event" (a row) or "user" (all rows of a unit)."""
        return self.sums.level

    @property
    def batches_only(self) -> bool:
        return self.sums.batches_only

    @property
    def blob_size(self) -> int | None:
        return self.sums.blob_size

    @property
    def failure_limit(self) -> int:
        return self.sums.failure_limit

    def error(self, confidence: float = 0.95, step: int | None = None) -> float:
        """Return the half-width of the confidence interval of one entry of the noisy sum of gradients, at
        `step` or at the worst step."""
        return self.sums.error(confidence, step) / self.batch

    def regret_bound(self) -> float:
        """Return a bound of the expected regret over all rounds, before anything is spent.

        Assumes: a round has at most `batch` units, whose gradients are not longer than the clip; its loss is
                 convex, and for the leader `parameter`-strongly so; losses of experts are in [0, 1].
        """
        deviations = [self.sums.deviation(t) / self.batch for t in range(1, self.horizon + 1)]
        # the gradient of the ridge at w is ridge w
        lipschitz = float(self._gradients.clip) + self.ridge * _largest_norm(self.space)
        if self.learner == "leader":
            return leader_bound(self.space, lipschitz, self.parameter, deviations)
        if self.learner == "mirror":
            return mirror_bound(self.space, lipschitz, self.parameter, deviations)
        laplace = self.sums.epsilon is not None
        return experts_bound(self.space.dimension, self.parameter, deviations, laplace=laplace)

    # -- running

    def start(self, source: Source, *, entropy: Entropy, drawer: Any = None) -> State:
        """Start the learner: return the state before the first round. Nothing of the source counts yet.

        In the state, `sums` is the counter's state, `decision` the newest decision and `total` the sum of all
        decisions that gradients were taken at.
        """
        check_source(self.public, source)
        drawer_option = {} if drawer is None else {"drawer": drawer}
        first = self.first_decision()
        zeros = [0.0] * len(first)
        sums = self.sums.start(source, entropy=entropy, **drawer_option)
        return {"sums": sums, "decision": first.tolist(), "total": zeros}

    def first_decision(self) -> Floats:
        """Return the decision before the first round, which is public: equal weights on a simplex, elsewhere
        the point of the set that is nearest to the origin."""
        d = self.space.dimension
        return np.full(d, 1 / d) if isinstance(self.space, Simplex) else self.space.project(np.zeros(d))

    def answer(
        self, state: State, source: Source, question: Any, *, entropy: Entropy, drawer: Any = None
    ) -> Answered:
        """Close the next tick of the clock (`Advance`), or give the newest decision again (`Latest`)."""
        check_source(self.public, source)
        step = state["sums"]["step"]
        if not advances(question, step, self.clock):
            return state, self._make_release(np.array(state["decision"]), step, entropy)
        return self._round(state, source, entropy, drawer)

    def feed(self, state: State, batch: Source, *, entropy: Entropy, drawer: Any = None) -> Answered:
        """Run one round: add the gradients of the batch at the newest decision, and release the next one."""
        check_source(self.public, batch)
        return self._round(state, batch, entropy, drawer)

    def _round(self, state: State, source: Source, entropy: Entropy, drawer: Any) -> Answered:
        played = np.array(state["decision"])
        statistic = replace(self._gradients, decision=tuple(state["decision"]))
        sums, noisy = self.sums.tick(
            state["sums"], source, entropy=entropy, drawer=drawer, statistic=statistic
        )
        total = np.array(state["total"]) + played
        decision = self.decide(np.asarray(noisy.value) / self.batch + self.ridge * total, total, sums["step"])
        after = {"sums": sums, "decision": decision.tolist(), "total": total.tolist()}
        return after, self._make_release(decision, sums["step"], entropy)

    def decide(self, noisy: Floats, total: Floats, step: int) -> Floats:
        """Return the decision after `step` rounds, from the noisy sum of gradients and the sum `total` of the
        decisions so far."""
        if self.learner == "leader":
            return follow_leader(self.space, total, noisy, self.parameter, step)
        if self.learner == "mirror":
            return descend_mirror(self.space, noisy, self.parameter)
        return weigh_experts(noisy, self.parameter)

    def _make_release(self, decision: Floats, step: int, entropy: Entropy) -> Release:
        return release(
            decision,
            event=self.event,
            entropy=entropy,
            error=lambda confidence: self.error(confidence, step),
            # the error is that of the noisy sum of gradients, not of the decision
            error_in_scores=True,
        )


@_require.check_options
def learner(
    public: Public,
    loss: Loss,
    *,
    horizon: int | None = None,
    clip: Real | None = None,
    learner: Annotated[str, among(("auto", *LEARNERS))] = "auto",
    space: Space | None = None,
    epsilon: Real | None = None,
    delta: float = 0.0,
    rho: Real | None = None,
    batch: Annotated[Real, FINITE] = 1,
    ridge: Annotated[Real, NON_NEGATIVE] = 0,
    parameter: Real | None = None,
    strategy: str | Any = "auto",
    clock: str | None = None,
    **options: Any,
) -> OnlineLearner:
    """Return the online learner of a loss at a price; `parameter` is by default the strong convexity for
    "leader", and otherwise the one that minimizes the regret bound without noise.

    `learner`: "leader" (strongly convex losses), "mirror" (convex ones) or "experts" (a `LinearLoss` whose
    columns are the experts' losses); "auto" is "leader" where loss or ridge are strongly
    convex, else "experts" for a `LinearLoss`, else "mirror". `space`: by default the unit ball, or the
    simplex for experts. `clip`: the length that a unit's gradient is clipped to; by default the longest
    gradient that a `LinearLoss` can have within declared bounds. `batch`: how many units a round has, a
    declared number; `ridge` makes every loss strongly convex. Price, `horizon`, `strategy`, `clock`,
    `participations` and `separation` as in `counter`.
    """
    check_columns(loss, public)
    if learner == "auto":
        strong = loss.convexity + float(ridge) > 0
        learner = "leader" if strong else "experts" if isinstance(loss, LinearLoss) else "mirror"
    if space is None:
        space = Simplex(loss.dimension) if learner == "experts" else Ball(loss.dimension)
    _require.that(
        horizon is not None or clock is not None, "say how many rounds there are at most: horizon=."
    )
    norm = "l1" if epsilon is not None and not delta else "l2"
    length = _longest_gradient(loss, public, norm) if clip is None else clip
    statistic = ClippedGradients(loss=loss, clip=float(length), norm=norm)
    sums = counter(
        public, statistic, horizon=horizon, epsilon=epsilon, delta=delta, rho=rho, strategy=strategy,
        clock=clock, **options,
    )  # fmt: skip
    chosen = (
        float(parameter)
        if parameter is not None
        else _tuned_parameter(learner, loss, space, sums, length, ridge)
    )
    return OnlineLearner(
        public=public,
        sums=sums,
        space=space,
        learner=learner,
        parameter=chosen,
        batch=float(batch),
        ridge=float(ridge),
    )


def _largest_norm(space: Space) -> float:
    """Return a bound of |w| over the set: its diameter, unless it is a box away from the origin."""
    if isinstance(space, Box):
        corner = max(abs(space.lower), abs(space.upper)) * math.sqrt(space.dimension)
        return max(space.diameter, corner)
    return space.diameter


def _longest_gradient(loss: Loss, public: Public, norm: str) -> float:
    """Return the length of the longest gradient that declared bounds allow, for a linear loss; other losses
    are refused, because they need `clip`."""
    if not isinstance(loss, LinearLoss):
        raise InvalidInput("say how long a unit's gradient may be: clip=1. Longer ones are cut.")
    bounds = [public.bounds(name) for name in loss.columns]
    sizes = [max(abs(float(b.lower)), abs(float(b.upper))) for b in bounds if isinstance(b, Bounds)]
    if max(sizes, default=0.0) > 1 / _SMALLEST:
        # Returned as it is, so that `OnlineLearner` refuses it as a clip: its square would overflow.
        return max(sizes)
    longest = sum(sizes) if norm == "l1" else math.sqrt(sum(size**2 for size in sizes))
    return longest or 1.0


def _tuned_parameter(
    learner: str, loss: Loss, space: Space, sums: ContinualCounter, clip: Real, ridge: Real
) -> float:
    """Return the parameter: the strong convexity H for "leader", and otherwise what minimizes the regret
    bound without noise (`losses`), L sqrt(T) / D for "mirror" and sqrt(T / (8 ln N)) for "experts". L is the
    longest gradient, T the number of rounds, D the diameter of the set and N the number of experts."""
    steps = sums.horizon or 1
    if learner == "experts":
        return math.sqrt(steps / (8 * math.log(max(2, space.dimension))))
    if learner == "mirror":
        return (float(clip) + float(ridge) * space.diameter) * math.sqrt(steps) / space.diameter
    _require.that(
        loss.convexity + float(ridge) > 0,
        f"follow the approximate leader is for strongly convex losses, and {type(loss).__name__} is not. "
        "Give ridge=, the convexity itself as parameter=, or learner='mirror'.",
    )
    return loss.convexity + float(ridge)
