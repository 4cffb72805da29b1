"""Answers many stable questions for the price of the few that turn out unstable: sparse vector over distances
(M_svec of the PATE literature).

Each question is a stable function (`stability.Stable`). Where its noisy distance to instability reaches a
noisy threshold its exact value is released, for free; only failures are paid for, and after the promised
number of them the mechanism halts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from .. import _require
from .._errors import Halted, InvalidInput
from .._public import Public
from .._registry import described
from .._require import Real
from ..accounting import ApproximateDP, Event, NoOp
from ..sampling import Entropy
from ..tables import Source
from . import certified
from .arrow_columns import require_public
from .noise import draw
from .protocols import Release, check_source, release
from .sparse_vector import RedrawnSparseVector, check_constants
from .stability import check_budget, check_stable, stated
from .threshold import SparseVector, State


@described("mechanisms.StableSparseVector")
@dataclass(frozen=True, slots=True, kw_only=True)
class StableSparseVector:
    """Releases exact values of stable functions, or None; halts at the `failures`-th None, or after
    `questions` questions.

    With `constants=None` one noisy threshold is kept throughout (Lyu, Su & Li). With "optimal", "zcdp" or
    another of the `constants` of `RedrawnSparseVector` the threshold is drawn again after each failure, and
    half of delta pays for the composition: better for hundreds of failures.

    Guarantee: (epsilon, delta)-DP.
    Proof:     let T be `threshold`, rho the noise on it, and nu the noise on a distance. "None" is distance +
               nu < T + rho, that is, (-distance) - nu >= (1 - T) - rho: the answers None / not None are those
               of a sparse vector on the statistic -distance of sensitivity 1, (epsilon, d1)-DP with d1 = 0 or
               delta/2. Fix two neighbors. Where a question has the same value on both, releasing it is
               post-processing of "not None". Where it has not, both distances are 0, and "not None" needs nu
               >= T + rho. The probability that this ever happens is at most d2 = `questions` * P(nu >= T +
               rho). For until it happens every such question gets None, and with redrawn thresholds None ends
               the round: so one rho meets at most `questions` of them, a redrawn one at most one. Whether
               such a question is asked may depend on rho, but its nu does not: "asked, and nu >= T + rho" has
               probability at most P(nu >= T + rho). So for outputs S, with E the event that it happens: P(S)
               <= P(S, not E) + d2 <= e^epsilon P'(S, not E) + d1 + d2 <= e^epsilon P'(S) + d1 + d2. T is
               chosen such that d2 is at most delta - d1: P(nu >= y) <= q^y / (1+q) for every integer y, so
               P(nu >= T + rho) <= q^T E[q^rho] / (1+q), and E[q^rho] = (1-r)^2 / ((1-rq)(1-r/q)), where q =
               exp(-1/scale of nu) > r = exp(-1/scale of rho). The construction is that of Bassily, Thakkar &
               Thakurta 2018, arXiv:1803.05101.
    Assumes:   every question has the properties that `Stable` asks for; the state stays secret and is used
               once.
    """

    public: Public
    epsilon: Real
    delta: float
    failures: int
    questions: int
    constants: str | None = None

    def __post_init__(self) -> None:
        require_public(self.public)
        check_budget(self.epsilon, self.delta)
        _require.integer(failures=self.failures, questions=self.questions, at_least=1)
        if self.constants is not None:
            check_constants(self.constants)
        self.threshold  # noqa: B018 - refuses parameters for which no threshold is proved

    @property
    def scales(self) -> tuple[Fraction, Fraction]:
        """The scales of the noise on the threshold, and on each distance."""
        if self.constants is None:
            pure = SparseVector(
                public=self.public, threshold=0, epsilon=self.epsilon, positives=self.failures
            )
            return pure.scales[:2]
        redrawn = RedrawnSparseVector(
            public=self.public,
            threshold=0,
            epsilon=self.epsilon,
            delta=self.delta / 2,
            positives=self.failures,
            constants=self.constants,
        )
        return redrawn.scales[:2]

    @property
    def threshold(self) -> int:
        """T, so large that the value of any function with distance 0 is ever released with probability at
        most `delta` (half of it if thresholds are redrawn)."""
        delta = _require.exact(self.delta, "delta") / (1 if self.constants is None else 2)
        threshold_scale, query_scale = self.scales
        ratio = self.questions * _moment(threshold_scale, query_scale) / delta
        return math.ceil(query_scale * Fraction(certified.log_above(max(ratio, Fraction(1)))))

    @property
    def event(self) -> Event:
        return ApproximateDP(epsilon=self.epsilon, delta=self.delta, neighbors=self.public.neighbors)

    def error(self, confidence: float = 0.95) -> int:
        """Return a number of people: if every question has this distance from instability, all values are
        released with probability `confidence`."""
        _require.open_probability(confidence=confidence)
        # Each of the two kinds of noise may fail with half of 1 - confidence.
        failure = (1 - _require.exact(confidence, "confidence")) / 2
        threshold_scale, query_scale = self.scales
        rho_bound = certified.laplace_quantile(threshold_scale, failure) - 1
        nu_bound = certified.laplace_quantile(query_scale, failure / self.questions) - 1
        return self.threshold + rho_bound + nu_bound

    def start(self, source: Source, *, entropy: Entropy) -> State:
        """Draw the noisy threshold. No data is read."""
        check_source(self.public, source)
        return {"threshold": self.threshold + draw(self.scales[0], entropy), "failures": 0, "asked": 0}

    def answer(
        self, state: State, source: Source, question: Any, *, entropy: Entropy
    ) -> tuple[State, Release]:
        """Return the next state, and the exact value or None. The answer costs nothing: all was paid at the
        start."""
        self._check_state(state)
        check_stable(question, self.public, 0)
        check_source(self.public, source)
        value, distance = question.value(source), question.distance(source, 0)
        failed = distance + draw(self.scales[1], entropy) < state["threshold"]
        after = {**state, "failures": state["failures"] + failed, "asked": state["asked"] + 1}
        if failed and self.constants is not None:
            after["threshold"] = self.threshold + draw(self.scales[0], entropy)
        result = release(
            None if failed else stated(question, value),
            event=NoOp(neighbors=self.public.neighbors),
            entropy=entropy,
            error=None if failed else lambda confidence: 0,
        )
        return after, result

    def _check_state(self, state: Any) -> None:
        """Refuse a state that `start` or `answer` did not make, and one that has halted."""
        if (
            not isinstance(state, dict)
            or set(state) != {"threshold", "failures", "asked"}
            or any(isinstance(v, bool) or not isinstance(v, int) for v in state.values())
        ):
            raise InvalidInput(
                "the state is not one that start() or answer() gave. Nothing was drawn or released."
            )
        if state["failures"] >= self.failures or state["asked"] >= self.questions:
            raise Halted(
                f"{self.failures} failures or {self.questions} questions were paid for, so this has "
                f"halted for good. "
                f"Nothing was drawn or released. Buy a new one."
            )


def _moment(threshold_scale: Fraction, query_scale: Fraction) -> Fraction:
    """Return an upper bound of E[q^rho] / (1+q), with q and r as in the proof of `StableSparseVector`."""
    r_low, r_high = (1 / bound for bound in reversed(certified.exp_bounds(1 / threshold_scale)))
    q_low, q_high = (1 / bound for bound in reversed(certified.exp_bounds(1 / query_scale)))
    return (1 - r_low) ** 2 / ((1 - r_high * q_high) * (1 - r_high / q_low) * (1 + q_low))
