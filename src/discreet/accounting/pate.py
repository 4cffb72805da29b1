"""PATE: what answers cost, given how the teachers voted. Strong consensus costs far less than the worst case.

The data-dependent cost is computed from private votes and is private itself. It is for the steward's eyes, or
for publication with smooth sensitivity (`mechanisms.vote_cost.SanitizedCost`; with Gaussian noise,
`release_rdp`). The ledger is charged `GNMax`, whose price is known before any vote.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import NamedTuple

from .. import _require
from .conversion import rdp_to_epsilon, rdp_to_epsilon_classic

_NORMAL = NormalDist()
# chances below this are taken as this: an underflow to 0 would make a query look free
_LEAST = 2.0**-1000
ORDERS: tuple[float, ...] = (
    tuple(1 + x / 10 for x in range(1, 100)) + tuple(range(11, 64)) + (80, 100, 128, 192, 256, 384, 512)
)


def other_answer(votes: Sequence[float], sigma: float, *, capped: bool = True) -> float:
    """Return a bound on the chance that noise N(0, sigma²) on every count makes another class win: sum over
    others of Phi(-gap / (sigma sqrt 2)).

    Papernot et al. 2018, arXiv:1802.08908, Proposition 7. Without `capped` the sum itself, which may be above
    1.
    """
    _require.positive(sigma=sigma)
    if len(votes) < 2:
        raise _require.fail("votes", f"{len(votes)} counts", "counts for at least two classes")
    top = max(range(len(votes)), key=lambda i: votes[i])
    total = math.fsum(
        0.5 * math.erfc((votes[top] - count) / (2 * sigma)) for i, count in enumerate(votes) if i != top
    )
    bound = max(total, _LEAST) * (1 + 1e-12)
    return min(1.0, bound) if capped else bound


def query_rdp(order: float, q: float, sigma: float) -> float:
    """Return the Rényi cost of one query whose answer is another than the plurality with chance at most q.

    Guarantee: an upper bound of the Rényi divergence *of* these votes' answer *from* that of any with one
               vote moved, at most order / sigma². The other direction is bounded by the moved votes' own
               cost, not by this one.
    Proof:     Papernot et al. 2018, arXiv:1802.08908, Theorem 6 with the orders of Proposition 10, under its
               conditions; otherwise the data-independent Proposition 8.
    """
    if not order > 1:
        raise _require.fail("order", order, "above 1")
    plain = order / (sigma * sigma) * (1 + 1e-14)
    if q >= 1:
        return plain
    q = max(q, _LEAST)
    mu2 = sigma * math.sqrt(-math.log(q))
    mu1 = mu2 + 1
    eps1, eps2 = mu1 / (sigma * sigma), mu2 / (sigma * sigma)
    if mu1 < order or mu2 <= 1:
        return plain
    limit = (mu2 - 1) * eps2 - mu2 * math.log(mu1 / (mu1 - 1) * mu2 / (mu2 - 1))
    if math.log(q) > limit or q > math.exp(-eps2):
        return plain
    shrink = math.exp((mu2 - 1) / mu2 * (math.log(q) + eps2))
    log_a = (order - 1) * (math.log1p(-q) - math.log1p(-shrink))
    log_b = (order - 1) * (eps1 - math.log(q) / (mu1 - 1))
    first, second = math.log1p(-q) + log_a, math.log(q) + log_b
    top = max(first, second)
    value = top + math.log(math.exp(first - top) + math.exp(second - top))
    return min(plain, max(0.0, value) / (order - 1) * (1 + 1e-12) + 1e-15)


@dataclass(frozen=True, slots=True, repr=False)
class VoteCost:
    """The data-dependent cost of answered queries, order by order. Private: it prints nothing of itself."""

    _rdp: tuple[float, ...]
    _orders: tuple[float, ...]

    def __repr__(self) -> str:
        return "<VoteCost: computed from private votes; not shown>"

    def rdp_for_steward(self) -> dict[float, float]:
        """Return the curve itself. Not differentially private: it must not leave the steward's hands."""
        return dict(zip(self._orders, self._rdp, strict=True))

    def epsilon_for_steward(self, delta: float, *, classic: bool = False) -> float:
        """Return the data-dependent epsilon. Not differentially private: it must not leave the steward's
        hands."""
        convert = rdp_to_epsilon_classic if classic else rdp_to_epsilon
        return min(convert(order, value, delta) for order, value in zip(self._orders, self._rdp, strict=True))


def vote_cost(queries: Iterable[Sequence[float]], sigma: float, orders: Sequence[float] = ORDERS) -> VoteCost:
    """Return the cost of all queries, each given by its vote counts."""
    chances = [other_answer(votes, sigma) for votes in queries]
    totals = tuple(math.fsum(query_rdp(order, q, sigma) for q in chances) * (1 + 1e-14) for order in orders)
    return VoteCost(totals, tuple(float(order) for order in orders))


# Cells of the grid for one vote, and how many of them one moved vote may cross: one more, as a value may
# lie anywhere in its cell.
_CELLS = 16
_CROSSED = _CELLS + 1


def smooth_sensitivity(
    queries: Iterable[Sequence[float]], sigma: float, *, order: float, beta: float, distance: int = 200
) -> float:
    """Return a beta-smooth upper bound of the local sensitivity of the total cost at one order.

    Private: for the steward, or for a release with smooth noise.

    Guarantee: at least how far moving one vote in every query changes the total of `query_rdp`; and S(v) <=
               e^beta S(v') for any two vectors of votes that differ by one moved vote in every query.
    Proof:     a query stands at z = Phi^-1(q / others) sigma / sqrt(2) votes, q its bound on the chance of
               another answer. One moved vote changes each gap by at most 2, so that by concavity of p ->
               Phi(Phi^-1(p) + t), t > 0, all runners-up alike are the worst, and z moves by at most 1
               (Papernot et al. 2018, arXiv:1802.08908, Appendix B); where another class takes the lead, q
               about the old leader is an upper bound. The cost grows with z. On one grid of z, the same for
               all votes, each cell holds an upper bound of the local sensitivity of all z in it. M(d) is the
               largest in the cells within d times 17 of the one where z lies: one vote crosses at most 17
               cells of 1/16, so the cells of M(d) of a query are among those of M(d + 1) of its neighbor. S =
               max over d of e^{-beta d} times the sum of M(d), with order / sigma², which no local
               sensitivity exceeds, for M(d) beyond `distance`: shifting d by one gives e^beta (Nissim,
               Raskhodnikova & Smith 2007, Definition 2.2 and Claim 3.2).
    """
    _require.positive(beta=beta, sigma=sigma)
    _require.integer(distance=distance, at_least=0)
    if not order > 1:
        raise _require.fail("order", order, "above 1")
    cells = Counter((len(votes), _place(votes, sigma)) for votes in queries)
    worst = order / (sigma * sigma) * (1 + 1e-12) * sum(cells.values())
    best = math.exp(-beta * (distance + 1)) * worst
    peaks = dict.fromkeys(cells, 0.0)
    for d in range(distance + 1):
        if math.exp(-beta * d) * worst <= best:
            break
        for classes, place in cells:
            grid = _VoteGrid(order, sigma, classes)
            peaks[classes, place] = max(
                peaks[classes, place], *(_bound(grid, cell) for cell in _ring(place, d, grid.lowest))
            )
        total = math.fsum(n * peaks[key] for key, n in cells.items())
        best = max(best, math.exp(-beta * d) * min(total, worst))
    return best * (1 + 1e-9)


def _place(votes: Sequence[float], sigma: float) -> int:
    """Return the cell in which a query stands: 0 where all classes have the same votes, negative where one
    leads."""
    share = min(other_answer(votes, sigma, capped=False) / (len(votes) - 1), 0.5)
    return math.floor(_NORMAL.inv_cdf(share) * sigma / math.sqrt(2) * _CELLS) if share < 0.5 else 0


class _VoteGrid(NamedTuple):
    """The grid of z, in cells: the same for all votes among so many classes."""

    order: float
    sigma: float
    classes: int

    @property
    def lowest(self) -> int:
        """The cell of the least chance that is told from 0, below which all cells are alike."""
        return (
            math.floor(_NORMAL.inv_cdf(_LEAST / (self.classes - 1)) * self.sigma / math.sqrt(2) * _CELLS)
            - _CROSSED
        )

    def cost(self, cell: float) -> float:
        """Return the cost at this end of a cell; it does not fall with z."""
        z = min(cell / _CELLS / self.sigma, 0.0)
        chance = min(1.0, max((self.classes - 1) * 0.5 * math.erfc(-z), _LEAST))
        return query_rdp(self.order, chance, self.sigma)


def _ring(at: int, d: int, lowest: int) -> list[int]:
    """Return the cells that d moved votes may lead to and d - 1 may not; cells beyond either end of the grid
    are those at the end."""
    if d == 0:
        return [min(max(at, lowest), 0)]
    below = range(max(at - d * _CROSSED, lowest), max(at - (d - 1) * _CROSSED, lowest))
    above = range(min(at + (d - 1) * _CROSSED, 0) + 1, min(at + d * _CROSSED, 0) + 1)
    return [*below, *above] or [min(max(at, lowest), 0)]


@lru_cache(maxsize=1 << 16)
def _bound(grid: _VoteGrid, cell: int) -> float:
    """Return a bound of the local sensitivity anywhere in a cell, which is taken a little larger than it is,
    for what floats make of z."""
    low, high, vote = cell - 1e-3, cell + 1 + 1e-3, _CELLS + 1e-3
    more, less = grid.cost(high + vote) - grid.cost(low), grid.cost(high) - grid.cost(low - vote)
    return max(more, less, 0.0) * (1 + 1e-9) + 1e-12 * grid.order / grid.sigma**2


def release_rdp(order: float, *, beta: float, noise: float) -> float:
    """Return the Rényi price of publishing a value plus smooth sensitivity times N(0, noise²).

    Guarantee: order / (2 noise² (1 - (order-1)(e^{2 beta} - 1))) - (ln(room) / 2 + order beta) / (order - 1),
               where room = 1 - order (1 - e^{-2 beta}) must be positive.
    Proof:     neighbors give N(f, s²) and N(f', s'²) with s'/s within e^{+-beta} and |f - f'| at most the
               smaller of s, s' over noise. Between Gaussians D_a = a (f-f')² / (2 v) + ln(s'/s) + ln(s'²/v) /
               (2(a-1)), v = a s'² - (a-1) s². With r = s/s' both the first term and the rest, whose
               derivative has the sign of r² - 1, are largest at r = e^beta, as given. (Theorem 23 of Papernot
               et al. 2018, arXiv:1802.08908, states a smaller bound, which is false for large order times
               beta: tests/accounting/test_amplification.py has a pair above it.)
    """
    _require.positive(beta=beta, noise=noise)
    room = 1 + order * math.expm1(-2 * beta)
    if not (order > 1 and room > 0):
        raise _require.fail(
            "order", order, f"between 1 and 1 / (1 - exp(-2 beta)) = {-1 / math.expm1(-2 * beta):g}"
        )
    shift = order / (2 * noise**2 * (1 - (order - 1) * math.expm1(2 * beta)))
    scale = (-math.log(room) / 2 - order * beta) / (order - 1)
    return (shift + max(scale, 0.0)) * (1 + 1e-12) + 1e-14
