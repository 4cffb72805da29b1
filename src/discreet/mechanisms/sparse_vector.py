"""Defines the sparse vector technique for many positives (answers "above the threshold"): a fresh noisy
threshold after each.

A round lasts from one noisy threshold to the next, and the price of all rounds follows by composition. Pure
epsilon needs noise in proportion to the number c of positives; composition needs its square root, times
sqrt(ln(1/delta)). So the pure split is better for a few positives, composition for many: by default the
better of them is taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, ClassVar

from .. import _require, _round
from .._errors import InvalidInput
from .._public import Public
from .._registry import described
from .._require import Real
from ..accounting import Event, Filter, PureDP
from ..accounting.composition import optimal_delta
from . import certified
from .stability import check_budget
from .threshold import SparseVector, Thresholds, check_positives

# The most rounds for which optimal composition is computed: its distribution has 40 sqrt(rounds) cells.
_MANY = 10**6
# The factor by which optimal composition must raise e0, the epsilon of a round, before `round_epsilon` takes
# it instead of the simpler rules. It was chosen by hand, but it must stay, as must every number in this
# module that e0 depends on: they decide which e0 a live mechanism (one that was started, and whose state is
# kept) was charged with, and with another e0 it would be refused.
_GAIN = Fraction(1001, 1000)


@lru_cache(maxsize=256)
def round_epsilon(epsilon: Real, delta: float, rounds: int) -> Fraction:
    """Return an e0 for which `rounds` e0-DP mechanisms in sequence are (epsilon, delta)-DP, and fit a fresh
    budget of that size.

    It is the larger of the pure split epsilon / rounds (the larger up to some 20 rounds) and zCDP; or that of
    optimal composition, if this is more than `_GAIN` times as large. Optimal composition is taken only as far
    as `accounting.Filter(epsilon, delta)` admits the rounds one by one, because a mechanism with the price
    (epsilon, delta) must fit a budget of that size; it is not tried beyond 10**6 rounds or from epsilon = 300
    on. Where no filter has to admit the rounds, `optimal_epsilon` may be larger.

    Guarantee: the composition, adaptive too, is (epsilon, delta)-DP.
    Proof:     basic composition (Dwork & Roth 2014, Theorem 3.16); `zcdp_epsilon`; `optimal_epsilon`.
    """
    simple = max(pure_epsilon(epsilon, delta, rounds), zcdp_epsilon(epsilon, delta, rounds))
    budget = Filter(epsilon=epsilon, delta=delta)

    def fits(each: float) -> bool:
        return budget.admits(budget.start(), PureDP(epsilon=each).repeated(rounds))

    raised = _raise_epsilon(float(simple), epsilon, delta, rounds, fits)
    return raised if raised > simple * _GAIN else simple


@lru_cache(maxsize=256)
def pure_epsilon(epsilon: Real, delta: float, rounds: int) -> Fraction:
    """Return epsilon / rounds, rounded up to a float where delta covers that rounding: five rounds that share
    epsilon = 1 then have 0.2 each."""
    exact, _ = _epsilon_and_log(epsilon, delta)
    above = _round.up(exact / rounds)
    covered = (
        rounds <= _MANY and math.isfinite(above) and optimal_delta(above, rounds, _round.down(exact)) <= delta
    )
    return Fraction(above) if covered else exact / rounds


@lru_cache(maxsize=256)
def optimal_epsilon(epsilon: Real, delta: float, rounds: int) -> Fraction:
    """Return the largest e0, to a relative 1e-9, for which `rounds` e0-DP mechanisms in sequence are
    (epsilon, delta)-DP; but at most 1.5^4 times the e0 of the pure split and of zCDP, beyond which none is
    searched (a larger one exists where delta is large beside epsilon, such as delta 0.01 with epsilon 0.001).

    Guarantee: the composition, adaptive too, is (epsilon, delta)-DP. Beyond 10**6 rounds, and from epsilon =
               300 on, the result is the larger of `pure_epsilon` and `zcdp_epsilon`.
    Proof:     Kairouz, Oh & Viswanath 2015, arXiv:1311.0776, Theorem 3.3, by
               `accounting.composition.optimal_delta`.
    """
    simple = max(pure_epsilon(epsilon, delta, rounds), zcdp_epsilon(epsilon, delta, rounds))
    return max(simple, _raise_epsilon(float(simple), epsilon, delta, rounds, lambda each: True))


def _raise_epsilon(
    start: float, epsilon: Real, delta: float, rounds: int, fits: Callable[[float], bool]
) -> Fraction:
    """Return the largest e0, to a relative 1e-9, between `start` and 1.5^4 times that for which optimal
    composition gives (epsilon, delta) and `fits` is true; 0 if there is none, or none is searched."""
    total = _round.down(_require.exact(epsilon, "epsilon"))
    # The limit of 300 was chosen by hand; beyond it the simpler rules are enough.
    if rounds > _MANY or not 0 < total < 300:
        return Fraction(0)

    def allowed(each: float) -> bool:
        return optimal_delta(each, rounds, total) <= delta and fits(each)

    low, high = start, start
    for _ in range(4):
        low, high = high, 1.5 * high
        if not allowed(high):
            break
    if low > start or allowed(low):
        while high - low > 1e-9 * high:
            middle = (low + high) / 2
            low, high = (middle, high) if allowed(middle) else (low, middle)
        return Fraction(low)
    return Fraction(0)


@lru_cache(maxsize=256)
def zcdp_epsilon(epsilon: Real, delta: float, rounds: int) -> Fraction:
    """Return the largest e0, to a relative 1e-9, for which zCDP proves that `rounds` e0-DP mechanisms in
    sequence are (epsilon, delta)-DP.

    Guarantee: the composition, adaptive too, is (epsilon, delta)-DP.
    Proof:     e0-DP is e0^2/2-zCDP, c = `rounds` of them are rho-zCDP with rho = c e0^2/2, and with L =
               ln(1/delta) that is (rho + 2 sqrt(rho L), delta)-DP (Bun & Steinke 2016, arXiv:1605.02065,
               Propositions 1.3 and 1.4, Lemma 1.7). The inequality rho + 2 sqrt(rho L) <= epsilon is checked
               in rationals, as 4 rho L <= (epsilon - rho)^2 and rho <= epsilon, with L rounded up.
    """
    exact, log_term = _epsilon_and_log(epsilon, delta)
    root_sum, root_log = math.sqrt(float(log_term) + float(exact)), math.sqrt(float(log_term))
    # Both are sqrt(rho) = sqrt(L + epsilon) - sqrt(L), for the largest rho. The quotient is for small
    # epsilon, where the difference cancels. The difference stays for all other epsilon, because live
    # mechanisms were charged with exactly that float.
    root_rho = root_sum - root_log if exact * 10**6 > log_term else float(exact) / (root_sum + root_log)
    guess = Fraction(math.sqrt(2 / rounds) * root_rho * (1 - 1e-10))
    while not _fits_zcdp(guess, exact, log_term, rounds):
        guess *= Fraction(999_999_999, 1_000_000_000)
    return guess


@lru_cache(maxsize=256)
def dwork_roth_epsilon(epsilon: Real, delta: float, rounds: int) -> Fraction:
    """Return epsilon / sqrt(8 c ln(1/delta)), c = `rounds`: the epsilon of one round of Dwork & Roth 2014,
    Algorithm 2, whose noise has the scale sqrt(32 c ln(1/delta)) / epsilon.

    It is about half of `zcdp_epsilon`, and meant for teaching. It is checked with the same inequality, so it
    holds up to epsilon = 8 ln(1/delta), not only below 1 as their Corollary 3.21 says.
    """
    exact, log_term = _epsilon_and_log(epsilon, delta)
    guess = Fraction(float(exact) / math.sqrt(8 * rounds * float(log_term)) * (1 - 1e-15))
    if not _fits_zcdp(guess, exact, log_term, rounds):
        raise _require.fail(
            "epsilon", epsilon, f"at most 8 ln(1/delta) = {8 * float(log_term):.4g} for these constants"
        )
    return guess


def _epsilon_and_log(epsilon: Real, delta: float) -> tuple[Fraction, Fraction]:
    """Return epsilon, and ln(1/delta) rounded up, as exact numbers."""
    _require.positive(epsilon=epsilon)
    _require.open_probability(delta=delta)
    return _require.exact(epsilon, "epsilon"), Fraction(
        certified.log_above(1 / _require.exact(delta, "delta"))
    )


def _fits_zcdp(each: Fraction, epsilon: Fraction, log_term: Fraction, rounds: int) -> bool:
    """Return whether the inequality of `zcdp_epsilon` holds for e0 = `each` and L = `log_term`."""
    rho = rounds * each**2 / 2
    return rho <= epsilon and 4 * rho * log_term <= (epsilon - rho) ** 2


# The functions that compute the epsilon of a round, by name. The names are stored in ledgers.
CONSTANTS = {
    "best": round_epsilon,
    "optimal": optimal_epsilon,
    "zcdp": zcdp_epsilon,
    "pure": pure_epsilon,
    "dwork-roth": dwork_roth_epsilon,
}


def check_constants(constants: Any) -> None:
    _require.one_of(tuple(CONSTANTS), constants=constants)


@described("mechanisms.RedrawnSparseVector")
@dataclass(frozen=True, slots=True, kw_only=True)
class RedrawnSparseVector(Thresholds):
    """Runs `SparseVector` with a new noisy threshold after each positive, for (epsilon, delta).

    `constants` chooses the price of a round: "best" (the default: the pure split for few positives, then
    concentrated and optimal composition as far as a budget of (epsilon, delta) admits it), "optimal" (up to a
    third less noise, for rounds that no filter has to admit one by one), "zcdp", "pure", or "dwork-roth" (the
    textbook's: equal shares, and noise of scale sqrt(32 c ln(1/delta)) / epsilon, c = `positives`).

    Guarantee: (epsilon, delta)-DP; halts at the c-th positive. The event is more precise: c rounds, each of
               them e0-DP, with e0 the property `round_epsilon`.
    Proof:     up to its positive a round is a `SparseVector` with one positive and epsilon e0; the rounds are
               in sequence, each chosen after the one before. The total is proved at the function that
               `constants` names in `CONSTANTS`.
    Assumes:   as `SparseVector`.
    """

    public: Public
    threshold: int
    epsilon: Real
    delta: float
    positives: int = 1
    sensitivity: int = 1
    monotone: bool = False
    numeric: bool = False
    gap: bool = False
    split: tuple[Real, ...] | None = None
    constants: str = "best"
    questions: int | None = None
    redraws: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self._check_common()
        check_positives(self.positives)
        check_budget(self.epsilon, self.delta)
        check_constants(self.constants)
        if self.constants == "dwork-roth" and (self.monotone or self.numeric or self.split is not None):
            raise InvalidInput(
                "constants='dwork-roth' (the textbook's) has no monotone, numeric or split variant. Nothing "
                "was drawn. Use constants='best'."
            )
        if self.split is not None:
            object.__setattr__(self, "split", _require.listed(split=self.split))
        self.round  # noqa: B018 - SparseVector checks the other fields

    @property
    def round_epsilon(self) -> Fraction:
        """e0, the epsilon of one round; only for `constants="best"` by the function of the same name."""
        return CONSTANTS[self.constants](self.epsilon, self.delta, self.positives)

    @property
    def round(self) -> SparseVector:
        """One round: a `SparseVector` that halts at its only positive."""
        textbook = self.constants == "dwork-roth"
        return SparseVector(
            public=self.public,
            threshold=self.threshold,
            epsilon=self.round_epsilon,
            sensitivity=self.sensitivity,
            monotone=self.monotone,
            numeric=self.numeric,
            gap=self.gap,
            split=(1, 1) if textbook else self.split,
        )

    @property
    def scales(self) -> tuple[Fraction, Fraction, Fraction | None]:
        return self.round.scales

    @property
    def max_positives(self) -> int:
        return self.positives

    @property
    def event(self) -> Event:
        return PureDP(epsilon=self.round_epsilon, neighbors=self.public.neighbors).repeated(self.positives)

    def error(self, confidence: float = 0.95) -> int:
        """Return alpha as `SparseVector.error` does, but for all `positives` thresholds (Dwork & Roth 2014,
        Theorem 3.26)."""
        return self._accuracy(confidence, self._declared_questions(), self.positives)
