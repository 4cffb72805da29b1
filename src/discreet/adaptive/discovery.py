"""Online false discovery rate control without privacy: the procedures that the private ones are measured
against.

Hypotheses arrive one after another, each with a p-value, and each is decided at once. A procedure sets the
level of the next test from its earlier decisions so that among all rejections the expected share of false
ones stays below `alpha`.

    stream = Saffron(alpha=0.05).start()
    stream.level, stream.test(0.003)            # the level of the next test, and whether it is rejected
    Saffron(alpha=0.05).run(pvalues)            # all at once: about a million decisions per second

None of them is differentially private: a decision depends sharply on exact p-values, hence on single people.
Their event is `NonPrivate`, and a curator refuses them on protected data. `Paprika` is the private one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .. import _require
from .._errors import InvalidInput, Unsupported
from .._registry import described
from ..accounting import Event, NonPrivate
from ._relaxed import decide
from .spending import Javanmard, Levels, PowerLaw, Spending

_SLOW, _FAST = PowerLaw(), Javanmard()
# wealth that no level can use up; more is let go, which the theorem allows
_MOST = 1e6


@dataclass(frozen=True, slots=True, eq=False)
class Decisions:
    """Holds the level of each test, and which were rejected."""

    levels: Levels
    rejected: NDArray[np.bool_]

    @property
    def discoveries(self) -> NDArray[np.intp]:
        """Return the positions of the rejected hypotheses."""
        return np.flatnonzero(self.rejected)


class Stream(Protocol):
    """Tests one hypothesis after another."""

    @property
    def level(self) -> float: ...

    def test(self, pvalue: float) -> bool: ...

    def record(self, rejected: bool) -> None: ...

    def saved(self) -> dict[str, Any]: ...


def pvalues_of(values: Any) -> Levels:
    """Return a vector of p-values; InvalidInput for anything else."""
    try:
        pvalues = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidInput("p-values must be numbers in [0, 1].") from None
    if pvalues.ndim != 1:
        raise InvalidInput(f"p-values must be a flat sequence; this has {pvalues.ndim} dimensions.")
    if not (np.all(pvalues >= 0) and np.all(pvalues <= 1)):
        raise InvalidInput("p-values must be in [0, 1], without NaN.")
    return pvalues


def _check_saved(saved: Any, **kinds: type) -> dict[str, Any]:
    if (
        not isinstance(saved, dict)
        or set(saved) != set(kinds)
        or any(type(saved[n]) is not k for n, k in kinds.items())
    ):
        raise InvalidInput("the state is not one that was saved here. Nothing was tested.")
    return saved


@_require.check_options
def benjamini_hochberg(pvalues: Any, *, alpha: float, dependent: bool = False) -> NDArray[np.bool_]:
    """Return which of these hypotheses to reject: the k smallest p-values, k the largest with p(k) <= alpha k
    / m.

    Guarantee: FDR <= alpha m0 / m for independent or positively dependent p-values; with `dependent`, for
               any, at alpha over the m-th harmonic number. Not private.
    Proof:     Benjamini & Hochberg 1995, Theorem 1; Benjamini & Yekutieli 2001, Theorems 1.2 and 1.3.
    """
    _require.open_probability(alpha=alpha)
    _require.flag(dependent=dependent)
    values = pvalues_of(pvalues)
    count = len(values)
    order = np.argsort(values, kind="stable")
    ranks = np.arange(1, count + 1)
    shared = alpha / np.sum(1 / ranks) if dependent else alpha
    passed = np.flatnonzero(values[order] <= shared * ranks / max(count, 1))
    rejected = np.zeros(count, dtype=np.bool_)
    rejected[order[: passed[-1] + 1 if len(passed) else 0]] = True
    return rejected


@dataclass(frozen=True, kw_only=True)
class _Procedure:
    alpha: float

    def __post_init__(self) -> None:
        _require.open_probability(alpha=self.alpha)

    @property
    def event(self) -> Event:
        """Return `NonPrivate`: there is no privacy, so the curator refuses it on protected data."""
        return NonPrivate()


@dataclass(frozen=True, kw_only=True)
class _Recent(_Procedure):
    """Spends what each discovery so far has earned, spread over later tests by the spending sequence."""

    wealth: float = None  # type: ignore[assignment]
    spending: Spending = _SLOW

    # the share of alpha that is there at the start, where the user does not say
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

    def steps(self, values: Levels) -> NDArray[np.bool_] | None:
        """Return which tests use up a summand of the spending sequence; None: those that are not rejected."""
        return np.ones(len(values), dtype=np.bool_)

    def finish(self, sums: Any) -> Any:
        """Return the level, from what was earned."""
        return sums

    def start(self) -> Stream:
        """Return a stream that tests one hypothesis at a time."""
        return _RecentStream(self)

    def restored(self, saved: Any) -> Stream:
        """Return a stream as it was when `saved()` was called."""
        state = _check_saved(saved, used=int, found=list)
        return _RecentStream(self, state["used"], state["found"])

    def run(self, pvalues: Any) -> Decisions:
        """Take the same decisions as a stream would, all at once."""
        values = pvalues_of(pvalues)
        gamma = self.spending(len(values) + 1)
        levels, rejected = decide(values, self.steps(values), gamma, self.finish, (self.wealth, self.alpha))
        return Decisions(levels, rejected)


class _RecentStream:
    """Holds the state of `_Recent`: how many terms of the spending sequence are used up, and at which count
    each discovery was made.
    """

    def __init__(self, procedure: _Recent, used: int = 0, discoveries: Sequence[int] = ()) -> None:
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
        earned = gamma[self._used - discoveries]
        total = procedure.wealth * gamma[self._used] + procedure.alpha * earned.sum()
        if len(discoveries):
            total -= procedure.wealth * earned[0]
        return float(procedure.finish(total))

    def test(self, pvalue: float) -> bool:
        value = pvalues_of([pvalue])
        rejected = bool(value[0] <= self.level)
        steps = self._procedure.steps(value)
        self._take(rejected, not rejected if steps is None else bool(steps[0]))
        return rejected

    def record(self, rejected: bool) -> None:
        """Record a decision that was taken elsewhere: only where levels follow from decisions alone."""
        if isinstance(self._procedure, Saffron | Addis):
            raise Unsupported(
                f"the levels of {type(self._procedure).__name__} need p-values, not decisions alone."
            )
        self._take(rejected, not (rejected and isinstance(self._procedure, AlphaInvesting)))

    def _take(self, rejected: bool, step: bool) -> None:
        self._used += step
        if rejected:
            self._discoveries.append(self._used)

    def saved(self) -> dict[str, Any]:
        """Return the state, as plain JSON."""
        return {"used": self._used, "found": list(self._discoveries)}


@described("adaptive.LordPlusPlus")
@dataclass(frozen=True, kw_only=True)
class LordPlusPlus(_Recent):
    """Tests by LORD++: each discovery earns alpha (the first alpha minus the initial wealth), paid out over
    the tests after it.

    Guarantee: FDR <= alpha for independent p-values. Not private.
    Proof:     Ramdas, Yang, Wainwright & Jordan 2017, arXiv:1710.00499, Section 3 (levels) and Theorem 1.
    """

    spending: Spending = _FAST

    _share = 0.1


@described("adaptive.Saffron")
@dataclass(frozen=True, kw_only=True)
class Saffron(_Recent):
    """Tests by SAFFRON: like LORD++, but tests whose p-value is below `candidate` use up nothing, since few
    of them are true nulls.

    Guarantee: FDR <= alpha for independent p-values. Not private.
    Proof:     Ramdas, Zrnic, Wainwright & Jordan 2018, arXiv:1802.09098, Theorem 1 and Algorithm 1.
    """

    candidate: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        _require.open_probability(candidate=self.candidate)

    def steps(self, values: Levels) -> NDArray[np.bool_]:
        return values > self.candidate

    def finish(self, sums: Any) -> Any:
        return np.minimum(self.candidate, (1 - self.candidate) * sums)


@described("adaptive.Addis")
@dataclass(frozen=True, kw_only=True)
class Addis(_Recent):
    """Tests by ADDIS: SAFFRON that also discards p-values above `discard`, so that conservative nulls cost
    nothing.

    Guarantee: FDR <= alpha for independent p-values, uniformly conservative under the null. Not private.
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

    def steps(self, values: Levels) -> NDArray[np.bool_]:
        between: NDArray[np.bool_] = (values > self.candidate) & (values <= self.discard)
        return between

    def finish(self, sums: Any) -> Any:
        return np.minimum(self.candidate, (self.discard - self.candidate) * sums)


@described("adaptive.AlphaInvesting")
@dataclass(frozen=True, kw_only=True)
class AlphaInvesting(_Recent):
    """Tests by alpha-investing with control of the FDR: SAFFRON whose candidates are just the rejected.

    Guarantee: FDR <= alpha for independent p-values. Not private.
    Proof:     Ramdas et al. 2018, arXiv:1802.09098, Section 2.4 (candidate level equal to the test level) and
               Theorem 1.
    """

    def steps(self, values: Levels) -> None:
        return None

    def finish(self, sums: Any) -> Any:
        return sums / (1 + sums)


@described("adaptive.Lord3")
@dataclass(frozen=True, kw_only=True)
class Lord3(_Procedure):
    """Tests by LORD 3: levels follow the last discovery and the wealth there was then.

    Guarantee: FDR <= alpha for independent p-values. Not private.
    Proof:     Javanmard & Montanari 2018, arXiv:1603.09000, Section 3 (LORD 3) and Theorem 3.1.
    """

    wealth: float = None  # type: ignore[assignment]
    payout: float = None  # type: ignore[assignment]
    spending: Spending = _FAST

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

    def start(self) -> Stream:
        """Return a stream that tests one hypothesis at a time."""
        return _WealthStream(self, self.wealth)

    def restored(self, saved: Any) -> Stream:
        """Return a stream as it was when `saved()` was called."""
        return _WealthStream(self, **_check_saved(saved, wealth=float, then=float, since=int))

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
class GeneralizedAlphaInvesting(_Procedure):
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

    def start(self) -> Stream:
        """Return a stream that tests one hypothesis at a time."""
        return _WealthStream(self, self.alpha * (1 - self.alpha))

    def restored(self, saved: Any) -> Stream:
        """Return a stream as it was when `saved()` was called."""
        return _WealthStream(self, **_check_saved(saved, wealth=float, then=float, since=int))

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
                wealth = min(_MOST, wealth * (keep + pay) + alpha)
            else:
                wealth *= keep
        return Decisions(levels, rejected)

    def bid(self, stream: _WealthStream) -> float:
        cost = stream.wealth * self.fraction
        return cost * self.power / (cost + self.power)

    def after(self, stream: _WealthStream, level: float, rejected: bool) -> float:
        cost = stream.wealth * self.fraction
        return min(_MOST, stream.wealth - cost + (cost / self.power + self.alpha) * rejected)


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
        return {"wealth": self.wealth, "then": self.then, "since": self.since}
