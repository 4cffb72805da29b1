"""Individual accounting: every record is charged for its own gradient norms, and is left out of the training
once its own budget is used up.

Most records' gradients are far shorter than the clip, so these records can take part in many more steps than
the worst case allows. What each record has spent depends on the data. It is private: it is never shown, and
neither errors nor the end of a run may depend on it. The ledger is charged a price that is fixed in advance.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import _require
from . import rdp
from .events import ZCDP, Event, RDPPoint

_Array = np.ndarray[Any, Any]
# Covers the rounding of the few operations of a cost, with a wide margin; the number is a convention.
_UP = 1 + 1e-12


class _Filter:
    """Base class of both filters: what each record has spent, and which records still take part.

    `clip` is the largest norm of a contribution, `budget` what each record may spend: rho of zCDP, or Rényi
    divergence at one order, depending on the subclass.
    """

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
        """Return the cost of one step for contributions with these norms."""
        raise NotImplementedError

    def admit(self, norms: Any) -> _Array:
        """Return which records may take part in this step, given the norms of their clipped contributions.

        Those records are charged for it. A record whose budget does not allow the step is left out of this
        and all later steps. The answer is private: use it to set contributions to zero before the noisy sum,
        and for nothing else.
        """
        checked_norms = np.asarray(norms, dtype=np.float64)
        if checked_norms.shape != self._spent.shape:
            raise _require.fail(
                "norms", f"an array of shape {checked_norms.shape}", f"of shape {self._spent.shape}"
            )
        # An invalid norm must not raise an error, because the error would reveal that some record has one. It
        # counts as the clip, the largest possible norm.
        checked_norms = np.where(
            (checked_norms >= 0) & (checked_norms <= self._clip), checked_norms, self._clip
        )
        costs = self._costs(checked_norms) * _UP
        # Rounded up at every step: otherwise a cost far below what was already spent would be rounded away.
        after = np.where(costs > 0, np.nextafter(self._spent + costs, math.inf), self._spent)
        self._active = self._active & (after <= self._budget)
        self._spent = np.where(self._active, after, self._spent)
        return self._active.copy()

    def __reduce__(self) -> Any:
        raise TypeError(f"a {type(self).__name__} holds private state and is not pickled.")


class FullBatchFilter(_Filter):
    """The filter for noisy gradient descent on all records: record i spends norm_i² / (2 deviation²) in zCDP
    per step.

    Guarantee: the whole run, however long and adaptive, is `budget`-zCDP, for add/remove and zero-out: charge
               `event` once, in advance.
    Proof:     Feldman & Zrnic 2021, arXiv:2008.11193 (the individual Rényi filter and private gradient
               descent). It applies to all orders at once, because the divergence of Gaussian noise is
               proportional to the order.
    Assumes:   Gaussian noise with standard deviation `deviation` on the sum; records that are left out
               contribute exactly zero.
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
    """The filter for DP-SGD with Poisson batches: at every step record i spends the Rényi divergence, at one
    fixed order, of a Poisson-sampled Gaussian with sensitivity norm_i.

    Guarantee: the whole run is (order, budget)-RDP: charge `event` once, in advance.
    Proof:     Feldman & Zrnic 2021, arXiv:2008.11193 (the individual Rényi filter). The cost of one step is
               that of Mironov, Talwar & Zhang 2019 at noise multiplier deviation / norm, with the norm
               rounded up to one of 256 levels.
    Assumes:   norms are given for every record at every step, sampled or not, because the cost must not
               depend on which records were sampled.
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
        # Costs of the norms 0, clip / 256, 2 clip / 256, ..., clip.
        # `rdp.sampled_gaussian` returns order - 1 times the Rényi divergence.
        norms = [self._clip * k / 256 for k in range(1, 257)]
        costs = [rdp.sampled_gaussian(rate, deviation / norm)(float(order)) / (order - 1) for norm in norms]
        self._levels = np.array([0.0, *costs])

    def _costs(self, norms: _Array) -> _Array:
        level = np.minimum(np.ceil(norms / self._clip * 256 * (1 + 1e-14)), 256).astype(np.int64)
        return np.asarray(self._levels[level])

    @property
    def event(self) -> Event:
        """The fixed price: the whole budget at the order."""
        return RDPPoint(order=self._order, epsilon=self._budget)


def steps_at_full_price(clip: float, deviation: float, budget: float) -> int:
    """Return how many steps of a `FullBatchFilter` a record takes part in whose norm is always the clip: a
    public number, for planning."""
    _require.positive(clip=clip, deviation=deviation, budget=budget)
    ratio = _require.exact(clip, "clip") / _require.exact(deviation, "deviation")
    return math.floor(_require.exact(budget, "budget") / (ratio**2 / 2 * _require.exact(_UP, "margin")))
