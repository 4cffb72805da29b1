"""Procedures of online false discovery rate control that keep one alpha-wealth: LORD 3 and generalized
alpha-investing. Each test spends some of the wealth, and each discovery earns some.

Not private: see `discovery`, from which they are imported.
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
# Wealth that no level can use up; more is let go, which the theorem allows
_MAX_WEALTH = 1e6


@described("adaptive.Lord3")
@dataclass(frozen=True, kw_only=True)
class Lord3(FDRProcedure):
    """Tests by LORD 3: levels follow the last discovery and the wealth there was then.

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
        if self.payout is None:
            object.__setattr__(self, "payout", self.alpha - self.wealth)
        _require.non_negative(wealth=self.wealth, payout=self.payout)
        if self.wealth + self.payout > self.alpha * (1 + 1e-12):
            raise InvalidInput(
                f"wealth={self.wealth!r} and payout={self.payout!r} add up to more than {self.alpha!r}."
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
        """Take the same decisions as a stream would, all at once."""
        values = pvalues_of(pvalues)
        gamma = self.spending(len(values))
        spent = np.concatenate([[0.0], np.cumsum(gamma)])
        levels, rejected = np.empty(len(values)), np.zeros(len(values), dtype=np.bool_)
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

    def bid(self, stream: _WealthStream) -> float:
        if stream.since >= len(stream.gamma):
            stream.gamma = self.spending(2 * max(32, stream.since + 1))
        return float(stream.gamma[stream.since] * stream.then)

    def after(self, stream: _WealthStream, level: float, rejected: bool) -> float:
        return stream.wealth - level + self.payout * rejected


@described("adaptive.GeneralizedAlphaInvesting")
@dataclass(frozen=True, kw_only=True)
class GeneralizedAlphaInvesting(FDRProcedure):
    """Tests by generalized alpha-investing: each test costs a `fraction` of the wealth; a discovery pays cost
    / power + alpha.

    `power` is the most power that a test can have; 1 is always right, and makes it Foster & Stine's
    alpha-investing: cost a / (1 - a) for a test at level a, and a payout of alpha when it rejects.

    Guarantee: mFDR(eta) = E[false] / (E[all] + eta) <= alpha, eta = 1 - alpha. Not private.
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
        """Take the same decisions as a stream would, all at once."""
        values = pvalues_of(pvalues)
        levels, rejected = np.empty(len(values)), np.zeros(len(values), dtype=np.bool_)
        keep, pay = 1 - self.fraction, self.fraction / self.power
        wealth, fraction, power, alpha = self.alpha * (1 - self.alpha), self.fraction, self.power, self.alpha
        # each level needs the decision before it: nothing to do at once
        for index, value in enumerate(values.tolist()):
            cost = wealth * fraction
            level = cost * power / (cost + power)
            levels[index] = level
            if value <= level:
                rejected[index] = True
                wealth = min(_MAX_WEALTH, wealth * (keep + pay) + alpha)
            else:
                wealth *= keep
        return Decisions(levels, rejected)

    def bid(self, stream: _WealthStream) -> float:
        cost = stream.wealth * self.fraction
        return cost * self.power / (cost + self.power)

    def after(self, stream: _WealthStream, level: float, rejected: bool) -> float:
        cost = stream.wealth * self.fraction
        return min(_MAX_WEALTH, stream.wealth - cost + (cost / self.power + self.alpha) * rejected)


@dataclass
class _WealthStream:
    """Holds the state of a procedure with one alpha-wealth: the wealth now, the wealth at the last discovery,
    and tests since then.
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
        return self.procedure.bid(self)

    def test(self, pvalue: float) -> bool:
        rejected = bool(pvalues_of([pvalue])[0] <= self.level)
        self.record(rejected)
        return rejected

    def record(self, rejected: bool) -> None:
        """Record a decision that was taken elsewhere."""
        self.wealth = self.procedure.after(self, self.level, rejected)
        self.since += 1
        if rejected:
            self.then, self.since = self.wealth, 0

    def saved(self) -> dict[str, Any]:
        """Return the state, as plain JSON."""
        return {"wealth": float(self.wealth), "then": float(self.then), "since": self.since}
