"""Defines privacy filters with a single sum: of rhos for zero-concentrated DP, and of squared mus for
Gaussian DP.

`filters.Filter` splits its delta over several lanes, i.e. sums. That is not needed here: for these two
definitions, the sum that bounds a plan fixed in advance is a bound also when an analyst chooses every event
after seeing earlier answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from .. import _require
from .._public import ADD_REMOVE, Neighbors
from .._registry import described
from .._require import Real
from .conversion import gaussian_delta
from .events import Event, Gaussian, NonPrivate, NoOp, leaves
from .filters import ROUNDING_ALLOWANCE, BudgetFilter
from .lanes import Item, Spent, event_of, on_grid, split
from .refusal import refuse
from .totals import zcdp


@described("accounting.ZCDPFilter")
@dataclass(frozen=True, slots=True, kw_only=True)
class ZCDPFilter(BudgetFilter):
    """The filter of a zCDP budget: an event is admitted while the rhos add up to at most `rho`, and the own
    deltas (see `normal`) to at most `delta`.

    Guarantee: all releases together are d-approximately r-zCDP with d = delta (1 + slack) and r = rho (1 +
               slack), however they were chosen; `slack` is the allowance for rounding, as in `Filter`.
    Proof:     docs/filters.md, Theorem 2: the Rényi filter (Feldman & Zrnic 2021, arXiv:2008.11193, Theorem
               3.1) at every order at once, because one sum bounds all orders; with own deltas Whitehouse et
               al. 2023, arXiv:2203.05481.

    >>> budget = ZCDPFilter(rho=0.5)
    >>> budget.preview([], Gaussian(noise_multiplier=2.0)).fits
    4
    """

    rho: Real
    delta: float = 0.0
    slack: Fraction = ROUNDING_ALLOWANCE
    neighbors: Neighbors = ADD_REMOVE

    def __post_init__(self) -> None:
        _require.non_negative(rho=self.rho, slack=self.slack)
        _require.probability(delta=self.delta)
        self._resolve_neighbors()

    @property
    def unit(self) -> str:  # type: ignore[override]
        return "rho"

    @property
    def lanes(self) -> tuple[str, ...]:
        return ("rho",)

    @property
    def total(self) -> Fraction:
        return _require.exact(self.rho, "rho") * self._allowance

    @property
    def limits(self) -> tuple[Fraction, ...]:
        return (self.total,)

    @property
    def delta_limit(self) -> Fraction:
        return Fraction(self.delta) * self._allowance

    def price(self, event: Item) -> Spent:
        self._check(event)
        # A cap is a price for the lanes of `filters.Filter`; here its event is charged.
        event = event_of(event)
        bare, own, distance = split(event)
        if distance > 0:
            raise refuse(
                event, "zcdp", "closeness in total variation says nothing about concentrated privacy"
            )
        cost = zcdp(bare)
        return Spent(sums=(on_grid(cost.value),), delta=on_grid(own + Fraction(cost.delta)), events=1)


@described("accounting.GaussianFilter")
@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianFilter(BudgetFilter):
    """The filter of a Gaussian DP budget, for unsampled Gaussian noise only: an event is admitted while the
    squares of the events' mus add up to at most mu².

    Guarantee: all releases together are m-GDP with m = mu sqrt(1 + slack): two neighbors are no easier to
               tell apart than N(0, 1) and N(m, 1); `slack` is the allowance for rounding, as in `Filter`.
    Proof:     docs/filters.md, Theorem 3; Smith & Thakurta 2022, arXiv:2210.17520; Koskela, Tobaben & Honkela
               2023, arXiv:2209.15596.
    Assumes:   continuous Gaussian noise. For the discrete Gaussian, which is not rotation-invariant, use a
               `ZCDPFilter`.

    >>> GaussianFilter(mu=1).preview([], Gaussian(noise_multiplier=20.0)).fits
    400
    """

    mu: Real
    slack: Fraction = ROUNDING_ALLOWANCE
    neighbors: Neighbors = ADD_REMOVE

    def __post_init__(self) -> None:
        _require.non_negative(mu=self.mu, slack=self.slack)
        self._resolve_neighbors()

    @property
    def unit(self) -> str:  # type: ignore[override]
        return "mu²"

    @property
    def lanes(self) -> tuple[str, ...]:
        return ("mu²",)

    @property
    def total(self) -> Fraction:
        return _require.exact(self.mu, "mu") ** 2 * self._allowance

    @property
    def limits(self) -> tuple[Fraction, ...]:
        return (self.total,)

    @property
    def delta_limit(self) -> Fraction:
        return Fraction(0)

    def price(self, event: Item) -> Spent:
        self._check(event)
        # As in `ZCDPFilter`, a cap is charged as its event.
        event = event_of(event)
        bare, own, distance = split(event)
        total: Fraction | float = Fraction(0)
        for part, times in leaves(bare).items():
            total += times * _square(part)
        if own > 0 or distance > 0:
            raise refuse(
                event, "gdp", "it can fail with some probability; a Gaussian budget has no delta for that"
            )
        return Spent(sums=(on_grid(total),), events=1)


def _square(part: Event) -> Fraction | float:
    """Return mu² of one part: 1 / noise_multiplier² of a Gaussian, 0 of a `NoOp`, infinity of a `NonPrivate`.
    Parts of other kinds are refused."""
    if isinstance(part, NoOp):
        return Fraction(0)
    if isinstance(part, NonPrivate):
        return float("inf")
    if not isinstance(part, Gaussian):
        raise refuse(
            part, "gdp", "the Gaussian filter is for unsampled Gaussian noise only; use Filter or ZCDPFilter"
        )
    noise = _require.exact(part.noise_multiplier, "noise_multiplier")
    return 1 / noise**2 if noise else float("inf")


@_require.check_options
def gaussian_filter(*, epsilon: Real, delta: float, neighbors: Neighbors = ADD_REMOVE) -> GaussianFilter:
    """Return the filter with the largest mu for which mu-GDP implies (epsilon, delta)-DP, up to a relative
    2e-12 and never above it.

    >>> round(float(gaussian_filter(epsilon=3, delta=1e-6).mu), 6)
    0.647727
    """
    _require.price(epsilon=epsilon)
    _require.open_probability(delta=_require.float_or_inf(delta))
    # The margin of 1e-12 on mu covers the filter's rounding allowance, because sqrt(1 + 2^-40) < 1 + 1e-12.
    limit = float(epsilon)
    low, high = 0.0, 1.0
    while gaussian_delta(high * (1 + 1e-12), limit) <= delta:
        low, high = high, 2 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if gaussian_delta(middle * (1 + 1e-12), limit) <= delta else (low, middle)
    return GaussianFilter(mu=low, neighbors=neighbors)
