"""Defines procedures of online false discovery rate control that keep one alpha-wealth: LORD 3 and
generalized alpha-investing. Each test spends some of the wealth, and each discovery (rejected hypothesis)
earns some.

Not private: `discovery` says why, and exports them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .. import _require
from .._errors import InvalidInput
from .._registry import described
from ._procedures import Decisions, FDRProcedure, HypothesisStream, check_saved, pvalues_of
from .spending import Javanmard, Levels, Spending

_JAVANMARD = Javanmard()
# The largest wealth: what a discovery would earn beyond it is not paid out, so that the wealth stays a finite
# float. The theorem asks only that the payout be at most its bound. Levels are near 1 from there on.
_MAX_WEALTH = 1e6


@described("adaptive.Lord3")
@dataclass(frozen=True, kw_only=True)
class Lord3(FDRProcedure):
    """Tests by LORD 3: the level of a test is gamma(j) times the wealth right after the last discovery, where
    j counts the tests since that discovery and gamma is the `spending` sequence.

    `wealth` is the initial wealth, by default alpha / 10; `payout` is what each discovery earns, by default
    alpha - wealth; their sum must not exceed alpha. Each test costs its level.

    Guarantee: FDR <= alpha for independent p-values. Not private.
    Proof:     Javanmard & Montanari 2018, arXiv:1603.09000, Section 3 (LORD 3) and Theorem 3.1.
    """

    wealth: float = None  # type: ignore[assignment]
    payout: float = None  # type: ignore[assignment]
    spending: Spending = _JAVANMARD

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.wealth is None:
            object.__setattr__(self, "wealth", self.alpha / 10)
        _require.non_negative(wealth=self.wealth)
        if self.wealth > self.alpha:
            raise InvalidInput(f"wealth={self.wealth!r} is above alpha={self.alpha!r}. Give at most alpha.")
        if self.payout is None:
            object.__setattr__(self, "payout", self.alpha - self.wealth)
        _require.non_negative(payout=self.payout)
        # 1e-12: the default payout is alpha - wealth in floats, and may be rounded up
        if self.wealth + self.payout > self.alpha * (1 + 1e-12):
            raise InvalidInput(
                f"wealth={self.wealth!r} and payout={self.payout!r} add up to more than "
                f"alpha={self.alpha!r}. Give a smaller payout."
            )
        if not isinstance(self.spending, Spending):
            raise InvalidInput(
                f"spending must be PowerLaw, Javanmard or Listed, got {type(self.spending).__name__}."
            )

    def start(self) -> HypothesisStream:
        """Return a stream that tests one hypothesis at a time."""
        return _WealthStream(self, float(self.wealth))

    def restored(self, saved: Any) -> HypothesisStream:
        """Return a stream as it was when `saved()` was called."""
        return _WealthStream(self, **check_saved(saved, wealth=float, then=float, since=int))

    def run(self, pvalues: Any) -> Decisions:
        """Take the decisions that a stream would take, for all p-values in one call. Levels agree with those
        of a stream up to floating-point rounding."""
        values = pvalues_of(pvalues)
        gamma = self.spending(len(values))
        # spent[j]: the share of the wealth that the first j tests after a discovery cost
        spent = np.concatenate([[0.0], np.cumsum(gamma)])
        levels, rejected = np.empty(len(values)), np.zeros(len(values), dtype=np.bool_)
        # `begin`: the first test after the last discovery; `wealth`: the wealth at that discovery.
        # Levels are computed for `width` tests at a time: a width that starts at 64 (chosen by hand, not
        # tuned) and doubles until the next discovery. It changes the time, not the result.
        begin, wealth, width = 0, self.wealth, 64
        index = begin
        while index < len(values):
            end = min(len(values), index + width)
            levels[index:end] = gamma[index - begin : end - begin] * wealth
            hits = values[index:end] <= levels[index:end]
            first = int(hits.argmax())
            if not hits[first]:
                index, width = end, 2 * width
                continue
            index += first + 1
            rejected[index - 1] = True
            wealth += self.payout - wealth * spent[index - begin]
            begin, width = index, 64
        return Decisions(levels, rejected)

    def next_level(self, stream: _WealthStream) -> float:
        """Return the level of the stream's next test."""
        if stream.since >= len(stream.gamma):
            stream.gamma = self.spending(2 * max(32, stream.since + 1))
        return float(stream.gamma[stream.since] * stream.then)

    def wealth_after(self, stream: _WealthStream, level: float, rejected: bool) -> float:
        """Return the wealth after a test at this level."""
        return stream.wealth - level + self.payout * rejected


@described("adaptive.GeneralizedAlphaInvesting")
@dataclass(frozen=True, kw_only=True)
class GeneralizedAlphaInvesting(FDRProcedure):
    """Tests by generalized alpha-investing: each test costs a `fraction` of the wealth; a discovery earns
    cost / power + alpha. The initial wealth is alpha (1 - alpha).

    `power` is an upper bound on the power of a test. 1 is always valid, and makes it Foster & Stine's
    alpha-investing: a test at level a costs a / (1 - a), and a rejection gives this cost back and earns
    alpha.

    Guarantee: mFDR(eta) = E[false rejections] / (E[rejections] + eta) <= alpha, eta = 1 - alpha. Not private.
    Proof:     Aharoni & Rosset 2014, Theorem 2, with level a = cost power / (cost + power), where both bounds
               on the payout meet; Foster & Stine 2008, Theorem 2, for power 1.
    """

    fraction: float = 0.1
    power: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _require.open_probability(fraction=self.fraction)
        _require.positive(power=self.power)
        _require.probability(power=self.power)

    def start(self) -> HypothesisStream:
        """Return a stream that tests one hypothesis at a time."""
        return _WealthStream(self, float(self.alpha * (1 - self.alpha)))

    def restored(self, saved: Any) -> HypothesisStream:
        """Return a stream as it was when `saved()` was called."""
        return _WealthStream(self, **check_saved(saved, wealth=float, then=float, since=int))

    def run(self, pvalues: Any) -> Decisions:
        """Take the decisions that a stream would take, for all p-values in one call. Levels agree with those
        of a stream up to floating-point rounding."""
        values = pvalues_of(pvalues)
        levels, rejected = np.empty(len(values)), np.zeros(len(values), dtype=np.bool_)
        # factors of the wealth: what is left after a test's cost, and what a discovery earns besides alpha
        keep, earn = 1 - self.fraction, self.fraction / self.power
        wealth, fraction, power, alpha = self.alpha * (1 - self.alpha), self.fraction, self.power, self.alpha
        # Not vectorized: each level depends on the decision before it.
        for index, value in enumerate(values.tolist()):
            cost = wealth * fraction
            level = cost * power / (cost + power)
            levels[index] = level
            if value <= level:
                rejected[index] = True
                wealth = min(_MAX_WEALTH, wealth * (keep + earn) + alpha)
            else:
                wealth *= keep
        return Decisions(levels, rejected)

    def next_level(self, stream: _WealthStream) -> float:
        """Return the level of the stream's next test."""
        cost = stream.wealth * self.fraction
        return cost * self.power / (cost + self.power)

    def wealth_after(self, stream: _WealthStream, level: float, rejected: bool) -> float:
        """Return the wealth after a test, whose cost follows from the wealth before it."""
        cost = stream.wealth * self.fraction
        return min(_MAX_WEALTH, stream.wealth - cost + (cost / self.power + self.alpha) * rejected)


@dataclass
class _WealthStream:
    """Holds the state of a procedure with one alpha-wealth: the current `wealth`, the wealth right after the
    last discovery (`then`; at first the initial wealth), and the number of tests `since` that discovery.

    `gamma` holds the first terms of the spending sequence, more when they are needed. The names of the state
    in `saved()` are stored in ledgers and must not change.
    """

    procedure: Lord3 | GeneralizedAlphaInvesting
    wealth: float
    then: float = None  # type: ignore[assignment]
    since: int = 0
    gamma: Levels = field(default_factory=lambda: np.empty(0))

    def __post_init__(self) -> None:
        if self.then is None:
            self.then = self.wealth

    @property
    def level(self) -> float:
        return self.procedure.next_level(self)

    def test(self, pvalue: float) -> bool:
        rejected = bool(pvalues_of([pvalue])[0] <= self.level)
        self.record(rejected)
        return rejected

    def record(self, rejected: bool) -> None:
        """Record a decision that the caller took at this stream's level (`Paprika`: with noise)."""
        self.wealth = self.procedure.wealth_after(self, self.level, rejected)
        self.since += 1
        if rejected:
            self.then, self.since = self.wealth, 0

    def saved(self) -> dict[str, Any]:
        """Return the state, as plain JSON."""
        return {"wealth": float(self.wealth), "then": float(self.then), "since": self.since}
