"""Individual accounting: every record pays for its own gradient norms, and is left out once its own budget is
gone.

Most records' gradients are far shorter than the clip, so they could stay much longer than the worst case
allows. What each has paid depends on the data: it is private, is never shown, and nothing may halt visibly on
it. The ledger is charged the fixed price.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import _require
from . import rdp_sampled
from .choice_events import RDPPoint
from .events import ZCDP, Event

_Array = np.ndarray[Any, Any]
# Covers the rounding of a cost: far more than the few operations lose, and nothing that a budget would
# notice.
_UP = 1 + 1e-12


class _Filter:
    """What both filters share: spent per record, and which are still in."""

    __slots__ = ("_active", "_budget", "_clip", "_spent")

    def __init__(self, records: int, clip: float, budget: float) -> None:
        _require.integer(records=records, at_least=1)
        _require.positive(clip=clip, budget=budget)
        self._budget, self._clip = float(budget), float(clip)
        self._spent = np.zeros(records)
        self._active = np.ones(records, dtype=bool)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: what each record has spent is private and not shown>"

    def _costs(self, norms: _Array) -> _Array:
        raise NotImplementedError

    def admit(self, norms: Any) -> _Array:
        """Return which records may enter this step, given the norms of their (clipped) contributions; those
        are charged, others dropped for good.

        The answer is private: use it to zero contributions before the noisy sum, and for nothing else.
        """
        checked_norms = np.asarray(norms, dtype=np.float64)
        if checked_norms.shape != self._spent.shape:
            raise _require.fail(
                "norms", f"an array of shape {checked_norms.shape}", f"of shape {self._spent.shape}"
            )
        # A bad norm must not raise: an error would tell that a record has one. It is treated as the longest
        # possible.
        checked_norms = np.where(
            (checked_norms >= 0) & (checked_norms <= self._clip), checked_norms, self._clip
        )
        costs = self._costs(checked_norms) * _UP
        # Rounded up, however many steps are added: a cost far below what was spent would otherwise vanish.
        after = np.where(costs > 0, np.nextafter(self._spent + costs, math.inf), self._spent)
        self._active = self._active & (after <= self._budget)
        self._spent = np.where(self._active, after, self._spent)
        return self._active.copy()

    def __reduce__(self) -> Any:
        raise TypeError(f"a {type(self).__name__} holds private state and is not pickled.")


class FullBatchFilter(_Filter):
    """For noisy gradient descent on all records: record i pays norm_i² / (2 deviation²) in zCDP per step.

    Guarantee: the whole run, however long and however adaptive, is budget-zCDP: charge `event` once, in
               advance.
    Proof:     Feldman & Zrnic 2021, arXiv:2008.11193 (the individual Rényi filter and private gradient
               descent), at every order at once because a Gaussian's divergence is a multiple of the order.
               For add/remove and zero-out.
    Assumes:   Gaussian noise of this deviation on the sum; dropped records contribute exactly zero.
    """

    __slots__ = ("_deviation",)

    def __init__(self, *, records: int, clip: float, deviation: float, budget: float) -> None:
        super().__init__(records, clip, budget)
        _require.positive(deviation=deviation)
        self._deviation = float(deviation)

    def _costs(self, norms: _Array) -> _Array:
        return np.asarray((norms / self._deviation) ** 2 / 2)

    @property
    def event(self) -> Event:
        """The fixed price: zCDP with the whole budget."""
        return ZCDP(rho=self._budget)


class SampledFilter(_Filter):
    """For DP-SGD with Poisson batches: record i pays, at one fixed order, for a sampled Gaussian of its own
    sensitivity every step.

    Guarantee: the whole run is (order, budget)-RDP: charge `event` once, in advance.
    Proof:     Feldman & Zrnic 2021, arXiv:2008.11193 (the individual Rényi filter); the price of one step is
               that of Mironov, Talwar & Zhang 2019 at noise deviation / norm, with the norm rounded up to one
               of 256 levels.
    Assumes:   norms are given for every record at every step, sampled or not: which were sampled must not
               enter the price.
    """

    __slots__ = ("_levels", "_order")

    def __init__(
        self, *, records: int, clip: float, deviation: float, rate: float, order: int, budget: float
    ) -> None:
        super().__init__(records, clip, budget)
        _require.positive(deviation=deviation)
        _require.open_probability(rate=rate)
        _require.integer(order=order, at_least=2)
        self._order = int(order)
        steps = [self._clip * k / 256 for k in range(1, 257)]
        prices = [rdp_sampled.gaussian(rate, deviation / norm)(float(order)) / (order - 1) for norm in steps]
        self._levels = np.array([0.0, *prices])

    def _costs(self, norms: _Array) -> _Array:
        level = np.minimum(np.ceil(norms / self._clip * 256 * (1 + 1e-14)), 256).astype(np.int64)
        return np.asarray(self._levels[level])

    @property
    def event(self) -> Event:
        """The fixed price: the whole budget at the order."""
        return RDPPoint(order=self._order, epsilon=self._budget)


def steps_at_full_price(clip: float, deviation: float, budget: float) -> int:
    """Return how many full-batch steps a record whose norm is always the clip takes part in: a public number,
    for planning."""
    _require.positive(clip=clip, deviation=deviation, budget=budget)
    return math.floor(budget / ((clip / deviation) ** 2 / 2 * _UP))
