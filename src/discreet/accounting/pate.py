"""Computes the privacy cost of noisy votes of teachers (PATE) from the votes. Where most teachers agree it is
far below the worst case.

This data-dependent cost is computed from private votes and is private itself. Only the steward, who holds the
data, may see it, or it is published with noise scaled to its smooth sensitivity
(`mechanisms.votes.SanitizedCost`; `release_rdp` is the price of that with Gaussian noise). The ledger is
charged `GNMax`, whose price does not depend on the votes.
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
# A smaller probability is replaced by this one: an underflow to 0 would give a query a cost of 0.
_LEAST = 2.0**-1000
# The Rényi orders at which costs are computed by default. Any list is valid: epsilon is the least over them.
ORDERS: tuple[float, ...] = (
    tuple(1 + x / 10 for x in range(1, 100)) + tuple(range(11, 64)) + (80, 100, 128, 192, 256, 384, 512)
)


def other_answer(votes: Sequence[float], sigma: float, *, capped: bool = True) -> float:
    """Return a bound on the probability that noise N(0, sigma²) on every count makes another class win than
    the one with most votes: the sum over the other classes of Phi(-gap / (sigma sqrt 2)).

    `gap` is the winner's votes minus those of the class, and Phi the standard normal distribution function
    (Papernot et al. 2018, arXiv:1802.08908, Proposition 7). The bound is at most 1, or with `capped=False`
    the sum itself, which may be above 1.
    """
    _require.positive(sigma=sigma)
    _require.must(len(votes) >= 2, "votes", f"{len(votes)} counts", "counts for at least two classes")
    top = max(range(len(votes)), key=lambda i: votes[i])
    total = math.fsum(
        0.5 * math.erfc((votes[top] - count) / (2 * sigma)) for i, count in enumerate(votes) if i != top
    )
    bound = max(total, _LEAST) * (1 + 1e-12)
    return min(1.0, bound) if capped else bound


def query_rdp(order: float, q: float, sigma: float) -> float:
    """Return the Rényi cost of one query; q bounds the probability that its answer is not the class with most
    votes.

    Guarantee: let M(v) be the answer for these votes and M(v') that for votes of which one was changed. The
               Rényi divergence of M(v) from M(v') is at most the result, which is at most order / sigma². The
               divergence of M(v') from M(v) is bounded by the cost of v', not by this one.
    Proof:     Papernot et al. 2018, arXiv:1802.08908, Theorem 6 with the orders of Proposition 10 (mu1, mu2)
               and the divergences of Proposition 8 at these orders (eps1, eps2), under the conditions of the
               theorem; otherwise Proposition 8, which does not depend on the votes.
    """
    _require.must(order > 1, "order", order, "above 1")
    data_independent = order / (sigma * sigma) * (1 + 1e-14)
    if q >= 1:
        return data_independent
    q = max(q, _LEAST)
    mu2 = sigma * math.sqrt(-math.log(q))
    mu1 = mu2 + 1
    eps1, eps2 = mu1 / (sigma * sigma), mu2 / (sigma * sigma)
    # The conditions of the theorem: mu1 >= order, mu2 > 1, q <= e^{-eps2}, and q <= e^{(mu2 - 1) eps2} /
    # (mu1 / (mu1 - 1) * mu2 / (mu2 - 1))^mu2, whose logarithm is `limit`.
    if mu1 < order or mu2 <= 1:
        return data_independent
    limit = (mu2 - 1) * eps2 - mu2 * math.log(mu1 / (mu1 - 1) * mu2 / (mu2 - 1))
    if math.log(q) > limit or q > math.exp(-eps2):
        return data_independent
    # The bound is ln((1 - q) A^{order - 1} + q B^{order - 1}) / (order - 1), with A = (1 - q) / (1 - power),
    # power = (q e^eps2)^{(mu2 - 1) / mu2}, and B = e^eps1 / q^{1 / (mu1 - 1)}.
    power = math.exp((mu2 - 1) / mu2 * (math.log(q) + eps2))
    log_a = (order - 1) * (math.log1p(-q) - math.log1p(-power))
    log_b = (order - 1) * (eps1 - math.log(q) / (mu1 - 1))
    first, second = math.log1p(-q) + log_a, math.log(q) + log_b
    top = max(first, second)
    value = top + math.log(math.exp(first - top) + math.exp(second - top))
    return min(data_independent, max(0.0, value) / (order - 1) * (1 + 1e-12) + 1e-15)


@dataclass(frozen=True, slots=True, repr=False)
class VoteCost:
    """The data-dependent Rényi cost of some queries, order by order. It is private, so `repr` does not show
    it."""

    _rdp: tuple[float, ...]
    _orders: tuple[float, ...]

    def __repr__(self) -> str:
        return "<VoteCost: computed from private votes; not shown>"

    def rdp_for_steward(self) -> dict[float, float]:
        """Return the map from order to Rényi cost. It is not differentially private: only the steward may see
        it."""
        return dict(zip(self._orders, self._rdp, strict=True))

    def epsilon_for_steward(self, delta: float, *, classic: bool = False) -> float:
        """Return the data-dependent epsilon. It is not differentially private: only the steward may see it.
        `classic` selects `rdp_to_epsilon_classic`."""
        convert = rdp_to_epsilon_classic if classic else rdp_to_epsilon
        return min(convert(order, value, delta) for order, value in zip(self._orders, self._rdp, strict=True))


def vote_cost(queries: Iterable[Sequence[float]], sigma: float, orders: Sequence[float] = ORDERS) -> VoteCost:
    """Return the cost of all queries together, each given by its vote counts per class."""
    qs = [other_answer(votes, sigma) for votes in queries]
    totals = tuple(math.fsum(query_rdp(order, q, sigma) for q in qs) * (1 + 1e-14) for order in orders)
    return VoteCost(totals, tuple(float(order) for order in orders))


# The number of cells of the grid of z (see `smooth_sensitivity`) per vote, and the number of cells that one
# changed vote may cross: one more, because z may lie anywhere in its cell. More cells per vote lower the
# bound and take more time.
_CELLS = 16
_CROSSED = _CELLS + 1


def smooth_sensitivity(
    queries: Iterable[Sequence[float]], sigma: float, *, order: float, beta: float, distance: int = 200
) -> float:
    """Return a beta-smooth upper bound S of the local sensitivity of the total cost at one order.

    The result is private: for the steward, or for a release with noise scaled to it. `distance` is the
    largest number of changed votes per query that is examined; a larger one takes more time and can lower the
    result.

    Guarantee: S(v) is at least the change of the total of `query_rdp` when one vote in every query changes;
               and S(v) <= e^beta S(v') for any two lists of votes v and v' that differ by one vote in every
               query.
    Proof:     let q be a query's bound on the probability of another answer (`other_answer`), and z =
               Phi^-1(q / (classes - 1)) sigma / sqrt(2), in votes. One changed vote changes each gap by at
               most 2. By concavity of p -> Phi(Phi^-1(p) + t) for t > 0, the worst case is that all other
               classes have equal votes, so z changes by at most 1 (Papernot et al. 2018, arXiv:1802.08908,
               Appendix B). If another class gets most votes, q computed for the old winner is an upper bound.
               The cost does not fall as z grows. On one grid of z with 16 cells per vote (`_CELLS`), the same
               for all votes, each cell has an upper bound of the local sensitivity of all z in it. M(d) of a
               query is the largest of these in the cells at most 17 d from the one that z lies in. One vote
               crosses at most 17 cells (`_CROSSED`), so the cells of M(d) of a query are among those of M(d +
               1) of its neighbor. S = max over d of e^{-beta d} times the sum of M(d) over the queries; for d
               above `distance`, M(d) is replaced by order / sigma², which no local sensitivity exceeds. So
               replacing v by v' shifts d by one, which gives the factor e^beta (Nissim, Raskhodnikova & Smith
               2007, Definition 2.2 and Claim 3.2).
    """
    _require.positive(beta=beta, sigma=sigma)
    _require.integer(distance=distance, at_least=0)
    _require.must(order > 1, "order", order, "above 1")
    # Queries with the same number of classes and the same cell have the same bounds.
    cells = Counter((len(votes), _cell(votes, sigma)) for votes in queries)
    # The sum of M(d) above `distance`.
    worst = order / (sigma * sigma) * (1 + 1e-12) * sum(cells.values())
    largest = math.exp(-beta * (distance + 1)) * worst
    # M(d) of each pair of classes and cell.
    peaks = dict.fromkeys(cells, 0.0)
    for d in range(distance + 1):
        # No later d can raise the maximum.
        if math.exp(-beta * d) * worst <= largest:
            break
        for classes, start in cells:
            grid = _VoteGrid(order, sigma, classes)
            peaks[classes, start] = max(
                peaks[classes, start], *(_bound(grid, cell) for cell in _new_cells(start, d, grid.lowest))
            )
        total = math.fsum(n * peaks[key] for key, n in cells.items())
        largest = max(largest, math.exp(-beta * d) * min(total, worst))
    return largest * (1 + 1e-9)


def _cell(votes: Sequence[float], sigma: float) -> int:
    """Return the cell of the grid that z of a query lies in: 0 where all classes have the same votes,
    negative where one class has more."""
    share = min(other_answer(votes, sigma, capped=False) / (len(votes) - 1), 0.5)
    return math.floor(_NORMAL.inv_cdf(share) * sigma / math.sqrt(2) * _CELLS) if share < 0.5 else 0


class _VoteGrid(NamedTuple):
    """The grid of z: the same for all queries with this number of classes."""

    order: float
    sigma: float
    classes: int

    @property
    def lowest(self) -> int:
        """The cell of the probability `_LEAST`, less the cells that one vote crosses; all cells below it have
        the same bound."""
        return (
            math.floor(_NORMAL.inv_cdf(_LEAST / (self.classes - 1)) * self.sigma / math.sqrt(2) * _CELLS)
            - _CROSSED
        )

    def cost(self, cell: float) -> float:
        """Return the cost of a query at z = cell / 16 votes; it does not fall as z grows."""
        z_over_sigma = min(cell / _CELLS / self.sigma, 0.0)
        q = min(1.0, max((self.classes - 1) * 0.5 * math.erfc(-z_over_sigma), _LEAST))
        return query_rdp(self.order, q, self.sigma)


def _new_cells(start: int, d: int, lowest: int) -> list[int]:
    """Return the cells that d changed votes can reach from the cell `start` and d - 1 cannot, within the grid
    from `lowest` to 0; if there are none, the cell nearest to `start`, which was counted already."""
    if d == 0:
        return [min(max(start, lowest), 0)]
    below = range(max(start - d * _CROSSED, lowest), max(start - (d - 1) * _CROSSED, lowest))
    above = range(min(start + (d - 1) * _CROSSED, 0) + 1, min(start + d * _CROSSED, 0) + 1)
    return [*below, *above] or [min(max(start, lowest), 0)]


@lru_cache(maxsize=1 << 16)
def _bound(grid: _VoteGrid, cell: int) -> float:
    """Return an upper bound of the local sensitivity of all z in a cell. Cell and vote are widened by 1e-3 of
    a cell, which covers the rounding of z."""
    low, high, vote = cell - 1e-3, cell + 1 + 1e-3, _CELLS + 1e-3
    rise, fall = grid.cost(high + vote) - grid.cost(low), grid.cost(high) - grid.cost(low - vote)
    return max(rise, fall, 0.0) * (1 + 1e-9) + 1e-12 * grid.order / grid.sigma**2


def release_rdp(order: float, *, beta: float, noise: float) -> float:
    """Return the Rényi price of publishing a value plus its beta-smooth sensitivity times N(0, noise²).

    Guarantee: the divergence at `order` is at most order / (2 noise² shrunk) - (ln(margin) / 2 + order beta)
               / (order - 1), with shrunk = 1 - (order - 1)(e^{2 beta} - 1) and margin = 1 - order (1 - e^{-2
               beta}). Both must be positive; margin is e^{-2 beta} shrunk.
    Proof:     two neighbors give N(f, s²) and N(f', s'²), s and s' being noise times the smooth
               sensitivities. So e^-beta <= s'/s <= e^beta, and |f - f'| <= min(s, s') / noise. With a =
               order, the divergence between the Gaussians is D_a = a (f-f')² / (2 v) + ln(s'/s) + ln(s'²/v) /
               (2(a-1)), v = a s'² - (a-1) s². As functions of r = s/s', both the first term and the sum of
               the others, whose derivative has the sign of r² - 1, are largest at r = e^beta, which gives the
               formula. (Theorem 23 of Papernot et al. 2018, arXiv:1802.08908, states a smaller bound, which
               is false for large order times beta: tests/accounting/test_amplification.py has a pair of
               Gaussians above it.)
    """
    _require.positive(beta=beta, noise=noise)
    margin = 1 + order * math.expm1(-2 * beta)
    shrunk = 1 - (order - 1) * math.expm1(2 * beta)
    wanted = f"between 1 and 1 / (1 - exp(-2 beta)) = {-1 / math.expm1(-2 * beta):g}"
    _require.must(order > 1 and margin > 0 and shrunk > 0, "order", order, wanted)
    shift = order / (2 * noise**2 * shrunk)
    scale = (-math.log(margin) / 2 - order * beta) / (order - 1)
    return (shift + max(scale, 0.0)) * (1 + 1e-12) + 1e-14
