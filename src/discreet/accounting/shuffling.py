"""Amplification by shuffling: each of n senders is hidden among the others, because the noise of their
reports makes them look alike.

Each sender's report is epsilon0-DP. An adversary wants to tell apart two values of one sender. With
probability e^{-epsilon0} each other report is distributed like one of this sender's two possible reports: it
is a "clone" of the first or of the second kind. The number of clones is C ~ Bin(n-1, e^{-epsilon0}), and A ~
Bin(C, 1/2) of them are of the first kind. The sender's own report counts for the kind of its value if D = 1,
with D ~ Bernoulli(e^{epsilon0} / (1 + e^{epsilon0})), else for the other kind. So the adversary sees at best
the numbers of reports of both kinds: (A + D, C - A + 1 - D) for the first value against (A + 1 - D, C - A +
D) for the second. P and Q are these two distributions, a is the first number, and m = C + 1 the sum of both.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import _require

_Array = np.ndarray[Any, np.dtype[np.float64]]


# Above this epsilon0, e^epsilon0 is near the largest float or above it, and no amplification is claimed.
_LARGEST = 700.0


def epsilon(local_epsilon: float, reports: int, delta: float) -> float:
    """Return the epsilon at delta of `reports` shuffled reports by summation over the number of clones,
    rounded up.

    Guarantee: (epsilon, delta)-DP under replace, for any adaptively chosen local_epsilon-DP local
               randomizers.
    Proof:     Feldman, McMillan & Talwar 2021, arXiv:2012.12803, Section 3 (reduction to clones, hockey-stick
               divergence of that pair). Their 2022 improvement (arXiv:2208.04591) holds, by its errata, for
               some randomizers only and is not used.
    Assumes:   the shuffler is trusted, and nothing but the multiset of reports is seen.

    >>> 0.1675 <= epsilon(4.0, 100_000, 1e-6) <= 0.1728
    True
    """
    _check_arguments(local_epsilon, reports)
    _require.open_probability(delta=delta)
    low, high = 0.0, float(local_epsilon)
    if high == 0 or delta_at(local_epsilon, reports, 0.0) <= delta:
        return 0.0
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        # No float lies between the smallest ones.
        if not low < middle < high:
            break
        low, high = (low, middle) if delta_at(local_epsilon, reports, middle) <= delta else (middle, high)
    return high


def delta_at(local_epsilon: float, reports: int, epsilon: float) -> float:
    """Return the delta of shuffled reports at an epsilon, rounded up."""
    _check_arguments(local_epsilon, reports)
    _require.non_negative(epsilon=epsilon)
    if epsilon >= local_epsilon:
        return 0.0
    if local_epsilon > _LARGEST:
        return 1.0
    clones = _edges(local_epsilon, reports, 160)
    values = _delta_given(clones, local_epsilon, epsilon)
    return min(1.0, _average(clones, values, local_epsilon, reports))


def closed_form(local_epsilon: float, reports: int, delta: float) -> float:
    """Return the epsilon of shuffled reports by a closed formula: simpler than `epsilon`, and in general
    larger.

    With eps0 the local epsilon, n the number of reports, and x = 8 sqrt(e^{eps0} ln(4/delta) / n) + 8
    e^{eps0} / n, it is ln(1 + x (1 - e^{-eps0}) / (1 + e^{-eps0} / (1 + x))).
    Proof: Feldman, McMillan & Talwar 2021, arXiv:2012.12803, Section 3, with the constants of the authors'
    own code, for eps0 <= ln(n / (16 ln(4/delta))); for larger eps0 the local epsilon itself is returned.

    >>> round(closed_form(4.0, 100_000, 1e-6), 4)
    0.5378
    """
    _check_arguments(local_epsilon, reports)
    _require.open_probability(delta=delta)
    if local_epsilon > math.log(reports / (16 * math.log(4 / delta))):
        return float(local_epsilon)
    exp_local = math.exp(local_epsilon)
    x = 8 * math.sqrt(exp_local * math.log(4 / delta) / reports) + 8 * exp_local / reports
    log1p_x = math.log1p(x)
    weight = -math.expm1(-local_epsilon) / (1 + math.exp(-local_epsilon - log1p_x))
    return min(float(local_epsilon), math.log1p(weight * x) * (1 + 1e-14))


def moment_of(event: Any) -> Callable[[float], float]:
    """Return the moments of the event `Shuffled` (`renyi.RULES`)."""
    return moment(float(event.epsilon), event.reports)


def moment(local_epsilon: float, reports: int) -> Callable[[float], float]:
    """Return (order - 1) times the Rényi divergence of shuffled reports as a function of the order: that of
    the pair P and Q (Feldman, McMillan & Talwar 2021, arXiv:2012.12803, Section 3, by the same reduction)."""
    if local_epsilon > _LARGEST:
        return lambda order: (order - 1) * local_epsilon * (1 + 1e-14)
    clones = _edges(local_epsilon, reports, 64)
    losses = [_losses(int(c), local_epsilon) for c in clones]

    def moment_at(order: float) -> float:
        if order * local_epsilon > 300:
            # `_excess` would soon overflow. The divergence never exceeds the local epsilon.
            return (order - 1) * local_epsilon
        values = np.array([_excess(order, *bucket, local_epsilon) for bucket in losses])
        # Every value is raised to the largest at this or a larger number of clones: `_average` needs values
        # that do not rise with the number of clones.
        return math.log1p(_average(clones, np.maximum.accumulate(values[::-1])[::-1], local_epsilon, reports))

    return moment_at


def _check_arguments(local_epsilon: float, reports: int) -> None:
    _require.non_negative(local_epsilon=local_epsilon)
    _require.integer(reports=reports, at_least=1)


def _edges(local_epsilon: float, reports: int, pieces: int) -> _Array:
    """Return the numbers of clones at which the buckets start, about `pieces` of them; with more of them the
    bounds are tighter and take longer.

    More clones can only lower the divergence, because a clone could always be added afterwards. So every
    bucket is priced at the number of clones at its start. Buckets cover 12 standard deviations below the mean
    and 6 above it; the first starts at 0 and the last has no end, so no number of clones is left out.
    """
    n, p = reports - 1, math.exp(-local_epsilon)
    center, deviation = n * p, math.sqrt(n * p * (1 - p)) + 1
    points = center + deviation * np.linspace(-12, 6, pieces)
    return np.unique(np.clip(np.floor(np.concatenate([[0.0], points])), 0, n))


def _average(clones: _Array, values: _Array, local_epsilon: float, reports: int) -> float:
    """Return an upper bound of the mean of a falling function of the number of clones, from its values at the
    starts of the buckets; by summation by parts, so that all terms are positive."""
    # imported here, so that `import discreet` does not load scipy
    from scipy.special import betaincc

    n, p = reports - 1, math.exp(-local_epsilon)
    total = float(values[-1])
    if len(clones) > 1:
        # P[Bin(n, p) < c] = 1 - I_p(c, n - c + 1)
        below = betaincc(clones[1:], n - clones[1:] + 1, p)
        total += float(np.sum(below * np.maximum(values[:-1] - values[1:], 0.0)))
    return total * (1 + 1e-10)


def _delta_given(clones: _Array, local_epsilon: float, epsilon: float) -> _Array:
    """Return the hockey-stick divergence for each number of clones: P(a >= k) - e^epsilon Q(a >= k), where k
    is the least a with P(a) >= e^epsilon Q(a); rounded up."""
    # imported here, so that `import discreet` does not load scipy
    from scipy.special import betainc

    r, exp_epsilon = math.exp(local_epsilon), math.exp(epsilon)
    m = clones + 1
    # With r = e^local_epsilon, P(a) > e^epsilon Q(a) is: (r a + m - a) > e^epsilon (a + r (m - a)).
    threshold = math.expm1(-local_epsilon - epsilon) / math.expm1(-local_epsilon) / (1 + math.exp(-epsilon))
    least = np.clip(np.ceil(m * threshold), 0, m + 1)

    # P[Bin(clones, 1/2) >= k] = I_{1/2}(k, clones - k + 1)
    def tail(k: _Array) -> _Array:
        interior = betainc(np.clip(k, 1, np.maximum(clones, 1)), np.maximum(clones - k + 1, 1), 0.5)
        return np.where(k <= 0, 1.0, np.where(k > clones, 0.0, interior))

    # The first number a is A + D under P and A + 1 - D under Q, with P[D = 1] = b.
    without, with_one = tail(least), tail(least - 1)
    b = r / (1 + r)
    p_tail = b * with_one + (1 - b) * without
    q_tail = b * without + (1 - b) * with_one
    return np.asarray(np.maximum(p_tail - exp_epsilon * q_tail, 0.0) + 1e-12 * p_tail)


def _losses(clones: int, local_epsilon: float) -> tuple[_Array, _Array]:
    """Return |ln(P(a) / Q(a))| and sqrt(P(a) Q(a)), rounded up, for the likely counts a.

    With r = e^local_epsilon, P(a) is the binomial probability of a in m trials of probability 1/2, times
    2 (r a + m - a) / ((1 + r) m), and Q(a) the same with a and m - a exchanged in the factor. The binomial
    probabilities are computed from their ratios and scaled to total one within 20 standard deviations, which
    can only raise them.
    """
    m = clones + 1
    r = math.exp(local_epsilon)
    reach = int(10 * math.sqrt(m)) + 2
    counts = np.arange(max(0, m // 2 - reach), min(m, m // 2 + reach + 1) + 1, dtype=np.float64)
    log_ratios = np.log(m - counts[:-1]) - np.log(counts[:-1] + 1)
    logs = np.concatenate([[0.0], np.cumsum(log_ratios)])
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    p_factor, q_factor = r * counts + m - counts, counts + r * (m - counts)
    weights = weights * 2 * np.sqrt(p_factor * q_factor) / ((1 + r) * m)
    return np.abs(np.log(p_factor) - np.log(q_factor)), weights * (1 + 1e-10)


def _excess(order: float, losses: _Array, weights: _Array, local_epsilon: float) -> float:
    """Return an upper bound of the sum of sqrt(P Q) (cosh((order - 1/2) L) - cosh(L / 2)) over counts, L the
    losses (see `rdp`). Counts beyond 20 standard deviations have a probability of at most 2 e^{-200} by
    Hoeffding's inequality, and are charged the largest loss; e^{-199} in the code leaves a margin."""
    inside = float(np.sum(weights * 2 * np.sinh(order * losses / 2) * np.sinh((order - 1) * losses / 2)))
    beyond = (
        2
        * math.exp(-199)
        * 2
        * math.sinh(order * local_epsilon / 2)
        * math.sinh((order - 1) * local_epsilon / 2)
    )
    return (inside + beyond) * (1 + 1e-9)
