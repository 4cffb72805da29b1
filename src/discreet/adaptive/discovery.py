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

Defines spending sequences: how a procedure for an unlimited number of tests distributes its error budget
over them.

A sequence gamma(1), gamma(2), ... is non-negative, non-increasing and sums to at most one; the theorems of
online false discovery rate control below need that and nothing else.

Defines common parts of the procedures of online false discovery rate control: decisions, streams, and the
checks of p-values and of saved states.

Defines procedures of online false discovery rate control that keep one alpha-wealth: LORD 3 and
generalized alpha-investing. Each test spends some of the wealth, and each discovery (rejected hypothesis)
earns some.

Not private: `discovery` says why, and exports them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import zeta

from .. import _require
from .._errors import InvalidInput, Unsupported
from .._registry import described
from .._require import NON_EMPTY, NON_NEGATIVE, OPEN_PROBABILITY, POSITIVE, PROBABILITY, Limit, instance_of
from ..accounting import Event, NonPrivate

Levels = NDArray[np.float64]


def _check_exponent(**named: float) -> None:
    """Refuse an exponent at which a sequence has no sum, or is spent on the first test."""
    _require.positive(**named)
    for name, exponent in named.items():
        _require.must(
            1 < exponent <= 50,
            name,
            exponent,
            "in (1, 50]: at or below one the sequence has no sum, and beyond 50 it is spent on the first "
            "test",
        )


@described("adaptive.PowerLaw")
class PowerLaw:
    """Spends gamma(j) = j^-exponent / zeta(exponent), which sums to one. Ramdas et al. 2018
    (arXiv:1802.09098) use the exponent 1.6 for SAFFRON.
    """

    exponent: Annotated[float, Limit(_check_exponent)] = 1.6

    def __call__(self, count: int) -> Levels:
        """Return the first `count` summands."""
        exponent = float(self.exponent)
        return np.arange(1, count + 1, dtype=np.float64) ** -exponent / float(zeta(exponent))


@described("adaptive.Javanmard")
class Javanmard:
    """Spends gamma(j) = c log(max(j, 2)) / (j exp(sqrt(log j))), near optimal for Gaussian means (Javanmard &
    Montanari 2018, arXiv:1603.09000, equation 31).

    c = 0.07720838, as in the R package onlineFDR, whose published sequences are reproduced. The infinite sum
    without the factor c is 12.6451, so the terms sum to 0.9763, which is below one as it must be.
    """

    def __call__(self, count: int) -> Levels:
        """Return the first `count` summands."""
        j = np.arange(1, count + 1, dtype=np.float64)
        return 0.07720838 * np.log(np.maximum(j, 2)) / (j * np.exp(np.sqrt(np.log(j))))


@described("adaptive.Listed")
class Listed:
    """Spends by a finite list: these terms, then zeros. For a stream whose length is known."""

    terms: Annotated[tuple[Annotated[float, NON_NEGATIVE], ...], NON_EMPTY]

    def __post_init__(self) -> None:
        _require.that(
            all(later <= earlier for earlier, later in zip(self.terms, self.terms[1:], strict=False)),
            "terms must not increase: the theorems need that. Sort them from largest to smallest.",
        )
        total = float(np.sum(np.sort(self.terms)))
        _require.that(total <= 1, f"terms sum to {total!r}, above 1. Make them smaller.")

    def __call__(self, count: int) -> Levels:
        """Return the first `count` summands."""
        levels = np.zeros(count)
        levels[: min(count, len(self.terms))] = self.terms[:count]
        return levels


Spending = PowerLaw | Javanmard | Listed


@dataclass(frozen=True, slots=True, eq=False)
class Decisions:
    """Holds the level of each test, and which hypotheses were rejected."""

    levels: Levels
    rejected: NDArray[np.bool_]

    @property
    def discoveries(self) -> NDArray[np.intp]:
        """Return the positions of the rejected hypotheses."""
        return np.flatnonzero(self.rejected)


class HypothesisStream(Protocol):
    """Tests one hypothesis after another."""

    @property
    def level(self) -> float:
        """Return the level of the next test."""
        ...

    def test(self, pvalue: float) -> bool:
        """Test the next hypothesis; return whether it is rejected."""
        ...

    def record(self, rejected: bool) -> None:
        """Record a decision that the caller took at this stream's level."""
        ...

    def saved(self) -> dict[str, Any]:
        """Return the state as plain JSON, for `restored` of the procedure."""
        ...


def pvalues_of(values: Any) -> Levels:
    """Return the values as a vector of p-values; InvalidInput unless all are numbers in [0, 1]."""
    try:
        pvalues = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        pvalues = np.array(np.nan)
    _require.that(
        np.all(pvalues >= 0) and np.all(pvalues <= 1), "p-values must be numbers in [0, 1], without NaN."
    )
    _require.that(pvalues.ndim == 1, f"p-values must be a flat sequence; this has {pvalues.ndim} dimensions.")
    return pvalues


def check_saved(saved: Any, **kinds: type) -> dict[str, Any]:
    """Return a saved state unchanged; InvalidInput unless it has exactly these fields of these types.

    `kinds` names each field and its type.
    """
    if (
        not isinstance(saved, dict)
        or set(saved) != set(kinds)
        or any(type(saved[name]) is not kind for name, kind in kinds.items())
    ):
        raise InvalidInput("the state is not one that saved() of this procedure returned.")
    return saved


@dataclass(frozen=True, kw_only=True)
class FDRProcedure:
    """Base of the procedures of online false discovery rate control: the target rate `alpha`, and the
    price."""

    alpha: Annotated[float, OPEN_PROBABILITY]

    @property
    def event(self) -> Event:
        """Return `NonPrivate`: there is no privacy guarantee, so the curator refuses the procedure on
        protected data."""
        return NonPrivate()


def _check_wealth(**named: float | None) -> None:
    """Refuse a negative wealth; None stands for the default."""
    _require.non_negative(**{name: value for name, value in named.items() if value is not None})


def _set_wealth(procedure: Lord3 | _SpendingProcedure, share: float) -> None:
    """Set the initial wealth to this share of alpha, where none is given; refuse one above alpha."""
    if procedure.wealth is None:
        object.__setattr__(procedure, "wealth", procedure.alpha * share)
    _require.that(
        procedure.wealth <= procedure.alpha,
        f"wealth={procedure.wealth!r} is above alpha={procedure.alpha!r}. Give at most alpha.",
    )


_WEALTH, _SPENDING = Limit(_check_wealth), instance_of(Spending, "PowerLaw, Javanmard or Listed")


_JAVANMARD_MONTANARI = Javanmard()
# The largest wealth: what a discovery would earn beyond it is not paid out, so that the wealth stays a finite
# float. The theorem asks only that the payout be at most its bound. Levels are near 1 from there on.
_MAX_WEALTH = 1e6


@described("adaptive.Lord3")
class Lord3(FDRProcedure):
    """Tests by LORD 3: the level of a test is gamma(j) times the wealth right after the last discovery, where
    j counts the tests since that discovery and gamma is the `spending` sequence.

    `wealth` is the initial wealth, by default alpha / 10; `payout` is what each discovery earns, by default
    alpha - wealth; their sum must not exceed alpha. Each test costs its level.

    Guarantee: FDR <= alpha for independent p-values. Not private.
    Proof:     Javanmard & Montanari 2018, arXiv:1603.09000, Section 3 (LORD 3) and Theorem 3.1.
    """

    wealth: Annotated[float, _WEALTH] = None  # type: ignore[assignment]
    payout: Annotated[float, _WEALTH] = None  # type: ignore[assignment]
    spending: Annotated[Spending, _SPENDING] = _JAVANMARD_MONTANARI

    def __post_init__(self) -> None:
        _set_wealth(self, 0.1)
        if self.payout is None:
            object.__setattr__(self, "payout", self.alpha - self.wealth)
        # 1e-12: the default payout is alpha - wealth in floats, and may be rounded up
        _require.that(
            self.wealth + self.payout <= self.alpha * (1 + 1e-12),
            f"wealth={self.wealth!r} and payout={self.payout!r} add up to more than "
            f"alpha={self.alpha!r}. Give a smaller payout.",
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

    fraction: Annotated[float, OPEN_PROBABILITY] = 0.1
    power: Annotated[float, POSITIVE, PROBABILITY] = 1.0

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


_POWER_LAW, _JAVANMARD = PowerLaw(), Javanmard()


@_require.check_options
def benjamini_hochberg(
    pvalues: Any, *, alpha: Annotated[float, OPEN_PROBABILITY], dependent: bool = False
) -> NDArray[np.bool_]:
    """Return which of m hypotheses to reject, as a mask: those with the k smallest p-values, where k is the
    largest number for which the k-th smallest p-value is at most alpha k / m.

    With `dependent`, alpha is divided by the m-th harmonic number.

    Guarantee: FDR <= alpha m0 / m, where m0 of the m null hypotheses are true, for independent or positively
               dependent p-values; with `dependent`, for any dependence. Not private.
    Proof:     Benjamini & Hochberg 1995, Theorem 1; Benjamini & Yekutieli 2001, Theorems 1.2 and 1.3.
    """
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

    wealth: Annotated[float, _WEALTH] = None  # type: ignore[assignment]
    spending: Annotated[Spending, _SPENDING] = _POWER_LAW

    # The default initial wealth, as a share of alpha.
    _share = 0.5

    def __post_init__(self) -> None:
        _set_wealth(self, self._share)

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
        if isinstance(self._procedure, Saffron):
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
class LordPlusPlus(_SpendingProcedure):
    """Tests by LORD++: each discovery earns alpha (the first alpha minus the initial wealth), which the
    spending sequence distributes over the tests after it.

    Guarantee: FDR <= alpha for independent p-values. Not private.
    Proof:     Ramdas, Yang, Wainwright & Jordan 2017, arXiv:1710.00499, Section 3 (levels) and Theorem 1.
    """

    spending: Annotated[Spending, _SPENDING] = _JAVANMARD

    _share = 0.1


@described("adaptive.Saffron")
class Saffron(_SpendingProcedure):
    """Tests by SAFFRON: like LORD++, but tests whose p-value is at most `candidate` (lambda in the paper) use
    up no term of the spending sequence, because few of their null hypotheses are true.

    Guarantee: FDR <= alpha for independent p-values. Not private.
    Proof:     Ramdas, Zrnic, Wainwright & Jordan 2018, arXiv:1802.09098, Theorem 1 and Algorithm 1.
    """

    candidate: Annotated[float, OPEN_PROBABILITY] = 0.5

    def uses_term(self, values: Levels) -> NDArray[np.bool_]:
        return values > self.candidate

    def level_from(self, sums: Any) -> Any:
        return np.minimum(self.candidate, (1 - self.candidate) * sums)


@described("adaptive.AlphaInvesting")
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
