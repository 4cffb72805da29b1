"""PATE: what the teachers' votes made of the price. Strong consensus costs far less than the worst case.

The data-dependent cost is computed from private votes and is private itself. It is for the steward's eyes, or for publication
through the smooth-sensitivity release priced here; the ledger is charged `GNMax`, whose price is known before any vote.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from .. import _require
from .conversion import rdp_to_epsilon, rdp_to_epsilon_classic

_NORMAL = NormalDist()
ORDERS: tuple[float, ...] = (
    tuple(1 + x / 10 for x in range(1, 100)) + tuple(range(11, 64)) + (80, 100, 128, 192, 256, 384, 512)
)


def other_answer(votes: Sequence[float], sigma: float) -> float:
    """A bound on the chance that noise N(0, sigma²) on every count makes another class win: sum over others of Phi(-gap / (sigma sqrt 2)).

    Papernot et al. 2018, arXiv:1802.08908, Proposition 7.
    """
    _require.positive(sigma=sigma)
    if len(votes) < 2:
        raise _require.fail("votes", f"{len(votes)} counts", "counts for at least two classes")
    top = max(range(len(votes)), key=lambda i: votes[i])
    total = math.fsum(0.5 * math.erfc((votes[top] - count) / (2 * sigma)) for i, count in enumerate(votes) if i != top)
    return min(1.0, total * (1 + 1e-12))


def query_rdp(order: float, q: float, sigma: float) -> float:
    """The Rényi cost of one query whose answer is another than the plurality with chance at most q.

    Guarantee: an upper bound of the Rényi divergence *of* these votes' answer *from* that of any with one vote moved, at most order / sigma².
               The other direction is bounded by the moved votes' own cost, not by this one.
    Proof:     Papernot et al. 2018, arXiv:1802.08908, Theorem 6 with the orders of Proposition 10, under its conditions; otherwise
               the data-independent Proposition 8.
    """
    if not order > 1:
        raise _require.fail("order", order, "above 1")
    plain = order / (sigma * sigma) * (1 + 1e-14)
    if q <= 0:
        return 0.0
    if q >= 1:
        return plain
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
        """The curve itself. Not differentially private: it must not leave the steward's hands."""
        return dict(zip(self._orders, self._rdp, strict=True))

    def epsilon_for_steward(self, delta: float, *, classic: bool = False) -> float:
        """The data-dependent epsilon. Not differentially private: it must not leave the steward's hands."""
        convert = rdp_to_epsilon_classic if classic else rdp_to_epsilon
        return min(convert(order, value, delta) for order, value in zip(self._orders, self._rdp, strict=True))


def vote_cost(queries: Iterable[Sequence[float]], sigma: float, orders: Sequence[float] = ORDERS) -> VoteCost:
    """The cost of all queries, each given by its vote counts."""
    chances = [other_answer(votes, sigma) for votes in queries]
    totals = tuple(math.fsum(query_rdp(order, q, sigma) for q in chances) * (1 + 1e-14) for order in orders)
    return VoteCost(totals, tuple(float(order) for order in orders))


def _moved(q: float, sigma: float, classes: int, votes: float) -> float:
    """The bound q after `votes` more (negative: fewer) votes moved against the plurality, all runners-up alike.

    Papernot et al. 2018, arXiv:1802.08908, Appendix B: moving one vote changes every gap by at most 2.
    """
    others = classes - 1
    share = min(q / others, 0.5)
    if share <= 0:
        return 0.0
    shifted = _NORMAL.inv_cdf(share) + votes * math.sqrt(2) / sigma if share < 0.5 else votes * math.sqrt(2) / sigma
    return min(1.0, others * 0.5 * math.erfc(-shifted / math.sqrt(2)))


def _local_sensitivity(order: float, q: float, sigma: float, classes: int) -> float:
    here = query_rdp(order, q, sigma)
    more = query_rdp(order, _moved(q, sigma, classes, 1), sigma)
    less = query_rdp(order, _moved(q, sigma, classes, -1), sigma)
    return max(more - here, here - less, 0.0)


def smooth_sensitivity(
    queries: Iterable[Sequence[float]], sigma: float, *, order: float, beta: float, distance: int = 200
) -> float:
    """The beta-smooth sensitivity of the total cost at one order: max over d of e^{-beta d} times the local sensitivity d votes away.

    Private, for the steward or the release below. Local sensitivity is maximised over a grid of the q reachable with d moved
    votes in every query; beyond `distance` the data-independent bound order / sigma² per query is used (Papernot et al. 2018,
    arXiv:1802.08908, Appendix B; Nissim, Raskhodnikova & Smith 2007).
    """
    _require.positive(beta=beta)
    given = [list(votes) for votes in queries]
    worst_each = order / (sigma * sigma)
    peak = [0.0] * len(given)
    best = math.exp(-beta * (distance + 1)) * worst_each * len(given)
    for d in range(distance + 1):
        for i, votes in enumerate(given):
            q = other_answer(votes, sigma)
            for step in (d - 1, d - 0.75, d - 0.5, d - 0.25, d):
                for sign in (1, -1) if step > 0 else (1,):
                    moved = _moved(q, sigma, len(votes), sign * max(step, 0.0))
                    peak[i] = max(peak[i], _local_sensitivity(order, moved, sigma, len(votes)))
        best = max(best, math.exp(-beta * d) * math.fsum(peak))
        if math.exp(-beta * d) * worst_each * len(given) <= best:
            break
    return best * (1 + 1e-9)


def release_rdp(order: float, *, beta: float, noise: float) -> float:
    """The Rényi price of publishing a value plus smooth sensitivity times N(0, noise²).

    Guarantee: order e^{2 beta} / noise² + (beta order - ln(1 - 2 order beta) / 2) / (order - 1), for 1 < order < 1 / (2 beta).
    Proof:     Papernot et al. 2018, arXiv:1802.08908, Theorem 23 (GNSS).
    """
    _require.positive(beta=beta, noise=noise)
    if not 1 < order < 1 / (2 * beta):
        raise _require.fail("order", order, f"between 1 and 1 / (2 beta) = {1 / (2 * beta):g}")
    extra = (beta * order - 0.5 * math.log1p(-2 * order * beta)) / (order - 1)
    return (order * math.exp(2 * beta) / noise**2 + extra) * (1 + 1e-13)
