"""Controls the false discovery rate online without privacy: the procedures with which the private one,
`Paprika`, is compared.

Hypotheses arrive one after another, each with a p-value, and each is rejected or not before the next arrives.
A procedure sets the level of the next test from earlier p-values and decisions so that the false discovery
rate (FDR), the expected share of false rejections among all rejections, is at most `alpha`. A rejected
hypothesis is called a discovery.

    stream = Saffron(alpha=0.05).start()
    stream.level, stream.test(0.003)            # the level of the next test, and whether it is rejected
    Saffron(alpha=0.05).run(pvalues)            # all in one call

None of them is differentially private: one person's data can change an exact p-value, and with it a decision.
Their event is `NonPrivate`, and a curator refuses them on protected data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _require
from .._errors import InvalidInput, Unsupported
from .._registry import described
from ._alpha_wealth import GeneralizedAlphaInvesting as GeneralizedAlphaInvesting
from ._alpha_wealth import Lord3 as Lord3
from ._procedures import Decisions as Decisions
from ._procedures import FDRProcedure, check_saved, pvalues_of
from ._procedures import HypothesisStream as HypothesisStream
from .spending import Javanmard, Levels, PowerLaw, Spending

_POWER_LAW, _JAVANMARD = PowerLaw(), Javanmard()


@_require.check_options
def benjamini_hochberg(pvalues: Any, *, alpha: float, dependent: bool = False) -> NDArray[np.bool_]:
    """Return which of m hypotheses to reject, as a mask: those with the k smallest p-values, where k is the
    largest number for which the k-th smallest p-value is at most alpha k / m.

    With `dependent`, alpha is divided by the m-th harmonic number.

    Guarantee: FDR <= alpha m0 / m, where m0 of the m null hypotheses are true, for independent or positively
               dependent p-values; with `dependent`, for any dependence. Not private.
    Proof:     Benjamini & Hochberg 1995, Theorem 1; Benjamini & Yekutieli 2001, Theorems 1.2 and 1.3.
    """
    _require.open_probability(alpha=alpha)
    _require.flag(dependent=dependent)
    values = pvalues_of(pvalues)
    count = len(values)
    order = np.argsort(values, kind="stable")
    ranks = np.arange(1, count + 1)
    level = alpha / np.sum(1 / ranks) if dependent else alpha
    passed = np.flatnonzero(values[order] <= level * ranks / max(count, 1))
    rejected = np.zeros(count, dtype=np.bool_)
    rejected[order[: passed[-1] + 1 if len(passed) else 0]] = True
    return rejected


@dataclass(frozen=True, kw_only=True)
class _SpendingProcedure(FDRProcedure):
    """Base of procedures whose levels are sums: each discovery earns alpha (the first alpha - wealth), which
    the `spending` sequence distributes over later tests, as it does the initial `wealth`.
    """

    wealth: float = None  # type: ignore[assignment]
    spending: Spending = _POWER_LAW

    # The default initial wealth, as a share of alpha.
    _share = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.wealth is None:
            object.__setattr__(self, "wealth", self.alpha * self._share)
        _require.non_negative(wealth=self.wealth)
        if self.wealth > self.alpha:
            raise InvalidInput(f"wealth={self.wealth!r} is above alpha={self.alpha!r}. Give at most alpha.")
        if not isinstance(self.spending, Spending):
            raise InvalidInput(
                f"spending must be PowerLaw, Javanmard or Listed, got {type(self.spending).__name__}."
            )

    def uses_term(self, values: Levels) -> NDArray[np.bool_] | None:
        """Return which tests, by their p-values, use up a term of the spending sequence; None means
        the tests that are not rejected."""
        return np.ones(len(values), dtype=np.bool_)

    def level_from(self, sums: Any) -> Any:
        """Return the levels, from the sums of what the initial wealth and the discoveries pay to a test."""
        return sums

    def start(self) -> HypothesisStream:
        """Return a stream that tests one hypothesis at a time."""
        return _SpendingStream(self)

    def restored(self, saved: Any) -> HypothesisStream:
        """Return a stream as it was when `saved()` was called."""
        state = check_saved(saved, used=int, found=list)
        return _SpendingStream(self, state["used"], state["found"])

    def run(self, pvalues: Any) -> Decisions:
        """Take the decisions that a stream would take, for all p-values in one call. Levels agree with those
        of a stream up to floating-point rounding."""
        values = pvalues_of(pvalues)
        gamma, uses_term = self.spending(len(values) + 1), self.uses_term(values)
        levels, rejected = np.empty(len(values)), np.zeros(len(values), dtype=np.bool_)
        # sums[j]: what the initial wealth and the discoveries so far pay to a test that finds j terms used up
        sums, used, payout = self.wealth * gamma, 0, self.alpha - self.wealth
        # Not vectorized: each level depends on the decision before it.
        for index, value in enumerate(values.tolist()):
            levels[index] = level = self.level_from(sums[used])
            rejected[index] = value <= level
            used += not rejected[index] if uses_term is None else uses_term[index]
            if rejected[index]:
                sums[used:] += payout * gamma[: len(gamma) - used]
                payout = self.alpha
        return Decisions(levels, rejected)


class _SpendingStream:
    """Holds the state of a `_SpendingProcedure`: how many terms of the spending sequence are `used` up, and
    for each of the `discoveries` that number right after it.

    The names of the state in `saved()` are stored in ledgers and must not change.
    """

    def __init__(self, procedure: _SpendingProcedure, used: int = 0, discoveries: Sequence[int] = ()) -> None:
        self._procedure = procedure
        self._gamma = procedure.spending(max(64, used + 1))
        self._used = used
        self._discoveries = list(discoveries)

    @property
    def level(self) -> float:
        procedure = self._procedure
        if self._used >= len(self._gamma):
            self._gamma = procedure.spending(2 * len(self._gamma))
        gamma, discoveries = self._gamma, np.asarray(self._discoveries, dtype=np.intp)
        # gamma at the number of terms that were used up since each discovery
        earned = gamma[self._used - discoveries]
        total = procedure.wealth * gamma[self._used] + procedure.alpha * earned.sum()
        # the first discovery earns less, by the initial wealth
        if len(discoveries):
            total -= procedure.wealth * earned[0]
        return float(procedure.level_from(total))

    def test(self, pvalue: float) -> bool:
        value = pvalues_of([pvalue])
        rejected = bool(value[0] <= self.level)
        uses_term = self._procedure.uses_term(value)
        self._advance(rejected, not rejected if uses_term is None else bool(uses_term[0]))
        return rejected

    def record(self, rejected: bool) -> None:
        """Record a decision that the caller took at this stream's level (`Paprika`: with noise). Refused for
        procedures whose levels depend on p-values, not on decisions alone."""
        if isinstance(self._procedure, Saffron | Addis):
            raise Unsupported(
                f"the levels of {type(self._procedure).__name__} need p-values, not decisions alone."
            )
        self._advance(rejected, not (rejected and isinstance(self._procedure, AlphaInvesting)))

    def _advance(self, rejected: bool, uses_term: bool) -> None:
        """Move the state past one test."""
        self._used += uses_term
        if rejected:
            self._discoveries.append(self._used)

    def saved(self) -> dict[str, Any]:
        """Return the state, as plain JSON."""
        return {"used": self._used, "found": list(self._discoveries)}


@described("adaptive.LordPlusPlus")
@dataclass(frozen=True, kw_only=True)
class LordPlusPlus(_SpendingProcedure):
    """Tests by LORD++: each discovery earns alpha (the first alpha minus the initial wealth), which the
    spending sequence distributes over the tests after it.

    Guarantee: FDR <= alpha for independent p-values. Not private.
    Proof:     Ramdas, Yang, Wainwright & Jordan 2017, arXiv:1710.00499, Section 3 (levels) and Theorem 1.
    """

    spending: Spending = _JAVANMARD

    _share = 0.1


@described("adaptive.Saffron")
@dataclass(frozen=True, kw_only=True)
class Saffron(_SpendingProcedure):
    """Tests by SAFFRON: like LORD++, but tests whose p-value is at most `candidate` (lambda in the paper) use
    up no term of the spending sequence, because few of their null hypotheses are true.

    Guarantee: FDR <= alpha for independent p-values. Not private.
    Proof:     Ramdas, Zrnic, Wainwright & Jordan 2018, arXiv:1802.09098, Theorem 1 and Algorithm 1.
    """

    candidate: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        _require.open_probability(candidate=self.candidate)

    def uses_term(self, values: Levels) -> NDArray[np.bool_]:
        return values > self.candidate

    def level_from(self, sums: Any) -> Any:
        return np.minimum(self.candidate, (1 - self.candidate) * sums)


@described("adaptive.Addis")
@dataclass(frozen=True, kw_only=True)
class Addis(_SpendingProcedure):
    """Tests by ADDIS: SAFFRON (with `candidate`, lambda in the paper) that also discards p-values above
    `discard` (tau): those tests use up no term of the spending sequence, so that nulls with large p-values
    cost nothing.

    Guarantee: FDR <= alpha for independent p-values P that are uniformly conservative under the null: P(P <=
               x y | P <= y) <= x for all x, y in [0, 1]. Not private.
    Proof:     Tian & Ramdas 2019, arXiv:1905.11465, Theorem 1 and Algorithm 1.
    """

    candidate: float = 0.25
    discard: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        _require.open_probability(candidate=self.candidate)
        _require.positive(discard=self.discard)
        if not self.candidate < self.discard <= 1:
            raise InvalidInput(
                f"discard={self.discard!r} must be above candidate={self.candidate!r} and at most 1."
            )

    def uses_term(self, values: Levels) -> NDArray[np.bool_]:
        between: NDArray[np.bool_] = (values > self.candidate) & (values <= self.discard)
        return between

    def level_from(self, sums: Any) -> Any:
        return np.minimum(self.candidate, (self.discard - self.candidate) * sums)


@described("adaptive.AlphaInvesting")
@dataclass(frozen=True, kw_only=True)
class AlphaInvesting(_SpendingProcedure):
    """Tests by alpha-investing with control of the FDR: SAFFRON whose candidates are exactly the rejected
    hypotheses.

    Guarantee: FDR <= alpha for independent p-values. Not private.
    Proof:     Ramdas et al. 2018, arXiv:1802.09098, Section 2.4 (candidate level equal to the test level) and
               Theorem 1.
    """

    def uses_term(self, values: Levels) -> None:
        return None

    def level_from(self, sums: Any) -> Any:
        return sums / (1 + sums)
