"""Releases many quantiles in one draw: the exponential mechanism over all non-decreasing sequences of grid
points ("JointExp").

Its score looks at how many rows fall between consecutive answers, so one draw pays for all quantiles
together. The sampler sums over all sequences by dynamic programming in integers that enclose the exact
weights from below and above, and computes more bits where these do not decide. So the draw is exact. Its time
is quadratic in the number of grid points, which is limited. For fine grids use `ApproximateQuantiles`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import ClassVar

import numpy as np

from .. import _require, _round
from .._public import Public
from .._registry import described
from .._require import Real
from ..accounting import Event
from ..sampling import Entropy, decide, exp_neg
from ..tables import Source
from .arrow_columns import as_step
from .protocols import Release, check_source, release
from .quantiles import as_quantiles, grid_of, indices, number, value_can_change
from .selectors import ExponentialMechanism
from .statistics import require_rows

# The most points of a grid: the time grows with their square.
_MAX_POINTS = 512
# The largest (points squared times quantiles), chosen by hand so that a draw takes seconds and not hours.
_MAX_WORK = 64 * 10**6
# Bits by which weights and uniform numbers are lengthened each time they do not yet decide a choice. Not
# tuned.
_BITS = 96


@described("mechanisms.JointQuantiles")
@dataclass(frozen=True, slots=True, kw_only=True)
class JointQuantiles:
    """Chooses all quantiles `qs` at once, on a grid of at most 512 points.

    The misfit of answers o_1 <= ... <= o_m is the sum over j of |rows in (o_{j-1}, o_j] - (q_j - q_{j-1}) n|,
    the ends being minus and plus infinity with quantiles 0 and 1; n is the number of rows with a value, all
    of which are in one of the ranges.

    Guarantee: one exponential mechanism of bounded range epsilon, drawn exactly. With probability
               `confidence` the misfit exceeds the smallest possible one by at most `error` rows. (The
               distance of any answer's rank from its target q_j n is at most half the misfit.)
    Proof:     Gillenwater, Joseph & Kulesza 2021, arXiv:2102.08244 (JointExp), on a grid. Let w_j = q_j -
               q_{j-1}. A row in range j that appears or disappears changes term j by at most 1 - w_j and each
               other term i by at most w_i, which sum to 1 - w_j: at most 2 (1 - min_j w_j) in all. A row that
               is replaced changes two terms, each by at most 1, as does a value that is zeroed out where a
               blank counts as the lower bound (`value_can_change`). Error: `ExponentialMechanism` over
               C(points + m - 1, m) sequences. Sampler: `_Tables`.
    """

    error_in_scores: ClassVar[bool] = True
    public: Public
    column: str
    qs: tuple[Real, ...]
    epsilon: Real
    step: Real

    def __post_init__(self) -> None:
        require_rows(self.public)
        exact = as_quantiles(self.qs)
        object.__setattr__(self, "qs", exact)
        object.__setattr__(self, "step", as_step(self.step))
        grid = grid_of(self)
        points = grid.high - grid.low + 1
        if points > _MAX_POINTS:
            raise _require.fail(
                "step", self.step, f"such that the grid has at most {_MAX_POINTS} points (it has {points})"
            )
        limit = _MAX_WORK // points**2
        if len(exact) > limit:
            raise _require.fail(
                "qs", f"{len(exact)} quantiles", f"at most {limit} on a grid of {points} points"
            )
        # refuses a wrong epsilon
        self._exponential_mechanism()

    def _widths(self) -> tuple[int, list[int]]:
        """Return the common denominator of the quantiles, and their differences multiplied by it."""
        exact = [Fraction(0), *(Fraction(q) for q in self.qs), Fraction(1)]
        unit = math.lcm(*(q.denominator for q in exact))
        return unit, [int((b - a) * unit) for a, b in pairwise(exact)]

    def _exponential_mechanism(self) -> ExponentialMechanism:
        """Return the exponential mechanism, with the sensitivity of the score (the misfit times `unit`, an
        integer)."""
        unit, widths = self._widths()
        sensitivity = 2 * unit if value_can_change(self.public, self.column) else 2 * (unit - min(widths))
        return ExponentialMechanism(
            epsilon=self.epsilon, sensitivity=sensitivity, neighbors=self.public.neighbors
        )

    @property
    def event(self) -> Event:
        return self._exponential_mechanism().event

    def error(self, confidence: float = 0.95) -> float:
        """Return an upper bound, in rows, on how far the misfit of the answer exceeds the smallest possible;
        it holds with probability `confidence`."""
        grid, m = grid_of(self), len(self.qs)
        sequences = math.comb(grid.high - grid.low + m, m)
        return _round.up(
            Fraction(self._exponential_mechanism().error(sequences, confidence), self._widths()[0])
        )

    def __call__(self, source: Source, /, *, entropy: Entropy) -> Release:
        check_source(self.public, source)
        grid, (unit, widths) = grid_of(self), self._widths()
        rows = indices(source, self.column, grid)
        up_to = np.cumsum(np.bincount(rows - grid.low, minlength=grid.high - grid.low + 1)).tolist()
        positions = draw_jointly(up_to, unit, widths, self._exponential_mechanism().rate, entropy)
        value = tuple(number((grid.low + position) * grid.step) for position in positions)
        return release(value, event=self.event, entropy=entropy, error=self.error, error_in_scores=True)


def draw_jointly(
    up_to: list[int], unit: int, widths: list[int], rate: Fraction, entropy: Entropy
) -> list[int]:
    """Draw grid points o_1 <= ... <= o_m with probability proportional to exp(-rate * misfit).

    `up_to[t]` counts the rows up to point t; `widths` are the m + 1 differences q_j - q_{j-1} in units of 1 /
    `unit`; the misfit is in these units, too.

    Proof: infinitely many bits of m uniform numbers U determine the answers: answer j is the candidate at
           which the cumulated weights first exceed U times their total. With finitely many bits an answer is
           given only where the enclosed weights decide it for all U with these bits; otherwise all U get more
           bits.
    """
    bits, uniforms = 0, [0] * (len(widths) - 1)
    while True:
        bits, uniforms = bits + _BITS, [u << _BITS | entropy.integer(_BITS) for u in uniforms]
        tables = _Tables(up_to, unit, widths, rate, bits)
        positions: list[int] = []
        for j, u in enumerate(uniforms):
            start, lows, highs = tables.weights(j, positions[-1] if positions else None)
            choice = decide(u, bits, list(accumulate(lows)), list(accumulate(highs)))
            if choice is None:
                break
            positions.append(start + choice)
        else:
            return positions


class _Tables:
    """Holds, for each answer j and each point t, a sum over all continuations: the ways to choose the answers
    after j, if answer j is t. Answers are counted from 0 here.

    `best[j][t]` is the smallest remaining misfit (the terms after j) of a continuation. `low[j][t]` and
    `high[j][t]` enclose, in units of 2**-bits, the sum of exp(-rate * (remaining misfit - best[j][t])).

    Proof: by recursion from the last answer to the first: the continuations from t are grouped by the next
           answer. Subtracting the smallest misfit keeps every sum at least 1, so that 2**-bits is small
           against it; products are rounded outwards.
    """

    def __init__(self, up_to: list[int], unit: int, widths: list[int], rate: Fraction, bits: int) -> None:
        self.up_to, self.unit, self.rate, self.bits = up_to, unit, rate, bits
        self.aims = [width * up_to[-1] for width in widths]
        self._exps: dict[int, tuple[int, int]] = {}
        points = range(len(up_to))
        # after the last answer only the last term of the misfit remains
        self.best = [[self._misfit(up_to[-1] - up_to[t], -1) for t in points]]
        scale = 1 << bits
        self.low, self.high = [[scale] * len(up_to)], [[scale] * len(up_to)]
        for j in range(len(widths) - 2, 0, -1):
            rows = [self._from(t, j) for t in points]
            self.best.insert(0, [row[0] for row in rows])
            self.low.insert(0, [sum(row[1]) for row in rows])
            self.high.insert(0, [sum(row[2]) for row in rows])

    def weights(self, j: int, last: int | None) -> tuple[int, list[int], list[int]]:
        """Return the first candidate for answer j, which is the answer before it (`last`), and the enclosed
        weights of all candidates."""
        _, lows, highs = self._from(last, j, offset=j)
        return last or 0, lows, highs

    def _from(self, last: int | None, j: int, offset: int = 0) -> tuple[int, list[int], list[int]]:
        """Return the smallest remaining misfit after the answer `last`, and the enclosed summands, one for
        each candidate for answer j; `offset` is the index of answer j's tables in `best`, `low` and `high` (0
        while they are built from the back)."""
        start, rows_up_to_last = last or 0, 0 if last is None else self.up_to[last]
        best, low, high = self.best[offset], self.low[offset], self.high[offset]
        costs = [
            self._misfit(self.up_to[t] - rows_up_to_last, j) + best[t] for t in range(start, len(self.up_to))
        ]
        least = min(costs)
        lows, highs = [], []
        for t, cost in enumerate(costs, start):
            term_low, term_high = self._exp(cost - least)
            lows.append(term_low * low[t] >> self.bits)
            highs.append((term_high * high[t] >> self.bits) + 1)
        return least, lows, highs

    def _misfit(self, rows: int, j: int) -> int:
        """Return term j of the misfit for so many rows in range j, times the common denominator."""
        return abs(self.unit * rows - self.aims[j])

    def _exp(self, cost: int) -> tuple[int, int]:
        """Return integers that enclose exp(-rate * cost) * 2**bits."""
        enclosure = self._exps.get(cost)
        if enclosure is None:
            enclosure = self._exps[cost] = exp_neg(self.rate * cost, self.bits)
        return enclosure


__all__ = ["JointQuantiles"]
