"""Computes Rényi divergences of sampled events and of the best of several runs, by binomial expansions in the
log domain. At integer orders all of their terms are positive.

The *moment* of an event at an order is (order - 1) D_order, D_order its Rényi divergence. At an integer order
n, for a Poisson sample of an event whose two output distributions some relabeling swaps, it is the logarithm
of the expansion of E[(1 - q + q R)^n] in powers of q R, with q the sampling rate and R the likelihood ratio
of the unsampled event; for other samples and events a similar sum is a bound. Between integers it is bounded
by the chord: the moment is a convex function of the order and zero at order 1 (van Erven & Harremoës 2014,
arXiv:1206.2459), so a straight line between two orders lies above it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import numpy as np

from . import events as ev
from . import pure
from .conversion import minimum, rdp_to_delta
from .renyi import UP, Moment, log1p_up, moments

# The largest order that is computed: larger ones are not best where sampling helps. Infinite moments are
# claimed above it.
LARGEST = 1 << 14
# The distance from 1 to the next float: bounds on rounding errors are multiples of it.
_EPS = 2.0**-52
_Array = np.ndarray[tuple[int], np.dtype[np.float64]]


@lru_cache(maxsize=1)
def _table() -> _Array:
    """Return ln(i!) for i = 0 .. LARGEST + 1."""
    return np.array([math.lgamma(i + 1) for i in range(LARGEST + 2)])


def log_binomials(n: int) -> _Array:
    """Return ln C(n, i) for i = 0 .. n."""
    table = _table()[: n + 1]
    return np.asarray(table[n] - table - table[::-1])


def log_sum(terms: _Array, size: float) -> float:
    """Return the logarithm of the sum of e^term, rounded up; `size` bounds the magnitude of the numbers that
    each term was computed from, and so its rounding error."""
    top = float(np.max(terms))
    if math.isinf(top):
        return top
    total = float(np.sum(np.exp(terms - top)))
    return top + math.log(total) + _EPS * (8 * size + 4 * abs(top) + len(terms) + 8)


def log1p_exp(x: float) -> float:
    """Return ln(1 + e^x), rounded up."""
    return (x + math.log1p(math.exp(-x)) if x > 0 else math.log1p(math.exp(x))) * (1 + 4 * _EPS)


def chord(at_integers: Moment) -> Moment:
    """Return the moments at all orders, from those at integers from 2 on, by chords.

    Above `LARGEST` they are infinite.
    """
    moments: dict[int, float] = {1: 0.0}

    def moment_at(order: int) -> float:
        if order not in moments:
            moments[order] = at_integers(order)
        return moments[order]

    def moment(order: float) -> float:
        if order > LARGEST:
            return math.inf
        below = math.floor(order)
        if below == order:
            return moment_at(below)
        share = order - below
        return ((1 - share) * moment_at(below) + share * moment_at(below + 1)) * (1 + 4 * _EPS)

    return moment


def sampled_gaussian(rate: float, noise: float) -> Moment:
    """Return the moments of the Gaussian on a Poisson sample, at any order up to `LARGEST`; `noise` is the
    noise multiplier, and `rate` is above 0 and below 1.

    Guarantee: an upper bound of (order - 1) times the Rényi divergence in either direction, for add/remove
               and zero-out.
    Proof:     Mironov, Talwar & Zhang 2019, arXiv:1908.10530 (which direction is worse; Section 3.3: the
               series between integers). At integers the 1 in the expansion is taken out
               exactly (`_gaussian_integer`), so that tiny rates keep their digits.
    """
    if noise == 0:
        return lambda order: math.inf
    by_chords = chord(lambda order: _gaussian_integer(int(order), rate, noise))

    def moment(order: float) -> float:
        # Chords are valid at every order. The series has more terms than the order, and is tried up to order
        # 256 only; that number was chosen by hand.
        if order == math.floor(order) or order > 256:
            return by_chords(order)
        return min(by_chords(order), _gaussian_series(order, rate, noise))

    return moment


def _gaussian_integer(order: int, rate: float, noise: float) -> float:
    """Return the moment of the Gaussian on a Poisson sample at an integer order n, by its binomial expansion:
    ln(1 + sum of C(n, i) q^i (1-q)^{n-i} (e^{i(i-1) / (2 s²)} - 1) over i = 2 .. n), q the rate, s the
    noise."""
    i = np.arange(2, order + 1, dtype=np.float64)
    growth = i * (i - 1) / (2 * noise * noise)
    log_weights = log_binomials(order)[2:] + i * math.log(rate) + (order - i) * math.log1p(-rate)
    terms = log_weights + growth + np.log(-np.expm1(-growth))
    size = float(growth[-1]) + float(_table()[order]) * 3 + order * abs(math.log(rate))
    return log1p_exp(log_sum(terms, size))


def _gaussian_series(order: float, rate: float, noise: float) -> float:
    """Return the moment of the Gaussian on a Poisson sample at an order that is not an integer (Mironov,
    Talwar & Zhang 2019, Section 3.3).

    The integral is split at `split`, where (1 - rate) p0 = rate p1 for the densities p0 and p1 of the
    Gaussian without and with the unit. Each half is a binomial series: term i is C(order, i) times the
    integral of a ratio in [0, 1] to the power i. For i above the order the terms alternate in sign and
    shrink, so the sum may stop anywhere there, and the last term bounds the rest. Terms are scaled by the
    largest; positive ones are rounded up in magnitude, negative ones down.
    """
    split = noise * noise * math.log(1 / rate - 1) + 0.5
    log_rate, log_other, twice_variance = math.log(rate), math.log1p(-rate), 2 * noise * noise
    terms: list[tuple[float, float, float]] = []
    sign, log_binomial, top = 1.0, 0.0, -math.inf
    for i in range(math.ceil(order) + 60):
        j = order - i
        # The logarithms of the i-th terms below and above `split`, each without its integral of a Gaussian.
        low = log_binomial + i * log_rate + j * log_other + (i * i - i) / twice_variance
        high = log_binomial + j * log_rate + i * log_other + (j * j - j) / twice_variance
        first = low + _log_half_erfc((i - split) / (noise * math.sqrt(2)))
        second = high + _log_half_erfc((split - j) / (noise * math.sqrt(2)))
        both = max(first, second) + math.log1p(math.exp(-abs(first - second)))
        terms.append((both, sign, 16 * _EPS * (abs(low) + abs(high) + abs(log_binomial) + i + 40)))
        top = max(top, both)
        # Smaller terms than e^-38 of the largest are below its rounding.
        if i > order and both < top - 38:
            break
        ratio = j / (i + 1)
        sign = math.copysign(sign, sign * ratio)
        log_binomial += math.log(abs(ratio))
    total = math.fsum(s * math.exp(x - top) * (1 + s * error) for x, s, error in terms)
    total += math.exp(terms[-1][0] - top)
    return top + math.log(total) + 4 * _EPS * (1 + abs(top)) if total > 0 else math.inf


def _log_half_erfc(x: float) -> float:
    """Return ln(erfc(x) / 2); for large x by the asymptotic series, whose error is below the first term left
    out."""
    if x < 25:
        return math.log(math.erfc(x) / 2)
    y = 1 / (2 * x * x)
    return -x * x - math.log(2 * x * math.sqrt(math.pi)) + math.log1p(-y + 3 * y * y - 15 * y**3)


def poisson(rate: float, inner: Moment, *, mirrored: bool) -> Moment:
    """Return the moments of any mechanism on a Poisson sample, from its own moments `inner` at integer
    orders.

    Guarantee: an upper bound of (order - 1) times the Rényi divergence in either direction, for add/remove
               and zero-out.
    Proof:     if some relabeling of outputs swaps the pair of output distributions (`mirrored`: Laplace,
               randomized response), removing a unit is the worse direction and its binomial expansion is
               exact (Mironov, Talwar & Zhang 2019); otherwise Zhu & Wang 2019, Theorem 5, with the factor 3
               on every moment from the third on.
    """

    def log_term(n: int, i: int, log_binomial: float, log_moment: float) -> float:
        if mirrored or i == 2:
            log_excess = log_moment + math.log(-math.expm1(-log_moment)) if log_moment > 0 else -math.inf
        else:
            # ln(3 e^g - 1), g the moment: the sum of C(n, i) q^i (1-q)^{n-i} over all i is 1 and is the 1 in
            # ln(1 + ...), so it is subtracted from every term.
            log_excess = log_moment + math.log(3 - math.exp(-log_moment))
        return log_binomial + i * math.log(rate) + (n - i) * math.log1p(-rate) + log_excess

    return _binomial_expansion(rate, inner, log_term)


def _binomial_expansion(
    rate: float, inner: Moment, log_term: Callable[[int, int, float, float], float]
) -> Moment:
    """Return the moments ln(1 + sum of e^log_term(n, i, ln C(n, i), inner(i)) over i = 2 .. n), for orders n
    up to 1024, by chords between them, and infinite above; the mechanism's own moments `inner` are computed
    once for all orders."""
    inner_at = cache(inner)

    def moment_at(order: float) -> float:
        n = int(order)
        log_c = log_binomials(n)
        terms = np.empty(n - 1)
        size = float(_table()[n]) * 3 + n * abs(math.log(rate))
        for i in range(2, n + 1):
            log_moment = inner_at(float(i))
            if math.isinf(log_moment):
                return math.inf
            terms[i - 2] = log_term(n, i, log_c[i], log_moment)
            size = max(size, log_moment)
        return log1p_exp(log_sum(terms, size)) if np.max(terms) > -math.inf else 0.0

    return _limit_order(chord(moment_at), 1024)


def _limit_order(moment: Moment, largest: int) -> Moment:
    """Return the same moments up to the order `largest`, and infinite above it."""
    return lambda order: moment(order) if order <= largest else math.inf


def without_replacement(rate: float, inner: Moment, pure_epsilon: float | None) -> Moment:
    """Return the moments of any mechanism on a fixed-size sample without replacement, under replace, from its
    own moments `inner` at integer orders and its pure epsilon, if it has one.

    With q the rate, m_j = inner(j) and eps the pure epsilon or infinity, the moment at order n is ln(1 + sum
    of C(n, j) q^j t_j over j = 2 .. n), t_j = e^{m_j} min(2, (e^eps - 1)^j), and for j = 2 the lesser of that
    and 4 (e^{m_2} - 1).
    Proof: Wang, Balle & Kasiviswanathan 2019, arXiv:1808.00087, Theorem 9.
    """
    # ln(e^eps - 1)
    log_expm1 = (
        math.inf
        if pure_epsilon is None
        else math.log(math.expm1(min(pure_epsilon, 700.0)))
        if pure_epsilon > 0
        else -math.inf
    )

    def log_term(n: int, j: int, log_binomial: float, log_moment: float) -> float:
        log_t = log_moment + min(math.log(2), j * log_expm1)
        if j == 2 and log_moment > 0:
            log_t = min(log_t, math.log(4) + log_moment + math.log(-math.expm1(-log_moment)))
        # A moment of 0 means that there is no privacy loss, so every term is 0.
        return j * math.log(rate) + log_binomial + (log_t if log_moment > 0 else -math.inf)

    return _binomial_expansion(rate, inner, log_term)


# Above this mu the central moments of `gaussian_without_replacement` are not tried, because the memory of
# their grid grows with mu. They gain nothing there: from mu = 1.2 on they are more than half of the plain
# moments.
_NO_GAIN = 20.0


def gaussian_without_replacement(rate: float, noise: float) -> Moment:
    """Return the moments of the Gaussian on a fixed-size sample without replacement, under replace: the
    lesser of the bound below, up to order 512, and that of `without_replacement`, up to order 1024.

    Proof: Wang, Balle & Kasiviswanathan 2019, arXiv:1808.00087, Theorem 27: where one pair of distributions p
    and q is worst at every order, the j-th term may use 4 sqrt(B(2 floor(j/2)) B(2 ceil(j/2))), with the
    central moments B(i) = E_q[(p/q - 1)^i], instead of 2 e^{m_j}, m_j being the j-th moment. For Gaussians ln
    B(i) is `log_central_moment(i, mu)`.
    """
    if noise == 0:
        return lambda order: math.inf
    mu = 1 / noise
    plain = without_replacement(rate, lambda order: order * (order - 1) / 2 * mu * mu * (1 + 8 * _EPS), None)
    if mu > _NO_GAIN:
        return plain
    log_central = cache(lambda order: log_central_moment(order, mu))

    def moment_at(order: float) -> float:
        n = int(order)
        j = np.arange(2, n + 1, dtype=np.float64)
        log_moments = j * (j - 1) / 2 * mu * mu
        log_roots = np.array(
            [0.5 * (log_central(2 * (i // 2)) + log_central(2 * ((i + 1) // 2))) for i in range(2, n + 1)]
        )
        terms = (
            log_binomials(n)[2:]
            + j * math.log(rate)
            + np.minimum(math.log(4) + log_roots, math.log(2) + log_moments)
        )
        return log1p_exp(
            log_sum(terms, float(_table()[n]) * 3 + n * abs(math.log(rate)) + float(log_moments[-1]))
        )

    sharp = _limit_order(chord(moment_at), 512)
    return lambda order: min(plain(order), sharp(order))


def log_central_moment(order: int, mu: float) -> float:
    """Return ln E[(e^{mu z - mu²/2} - 1)^order] for a standard normal z and an even order, rounded up.

    It is computed by the trapezoidal rule with step 1/16, which is accurate because the integrand is
    positive, analytic, and falls off like a Gaussian. The 1e-9 that is added covers its error.
    """
    reach = 16 + 2 * math.sqrt(order)
    z = np.arange(-reach, reach + mu * order, 1 / 16)
    loss = mu * z - mu * mu / 2
    # From 40 on ln(e^loss - 1) is replaced by the loss, which is larger: with little noise e^loss overflows.
    with np.errstate(divide="ignore"):
        ratios = np.where(loss > 40, loss, np.log(np.abs(np.expm1(np.minimum(loss, 40.0)))))
    logs = order * ratios - z * z / 2
    top = float(logs.max())
    return top + math.log(float(np.exp(logs - top).sum()) / 16) - 0.5 * math.log(2 * math.pi) + 1e-9


def allocation(steps: int, noise: float) -> Moment:
    """Return the moments of `steps` Gaussian steps, one of which, drawn uniformly, holds the unit.

    Guarantee: an upper bound of (order - 1) times the Rényi divergence in either direction, for add/remove
               and zero-out.
    Proof:     the pair is the mean of N(e_i, s² I) over i against N(0, s² I), with e_i the i-th unit vector
               and s the noise multiplier (Feldman & Shenfeld 2025, arXiv:2502.08202; Chua et al. 2024,
               arXiv:2412.16802). Removing a unit: the multinomial expansion at integer orders
               (`allocation_moments`). Adding a unit: by Jensen's inequality the likelihood ratio of an output
               x is at least e^{mean of (x_i - 1/2) / s² over i}, whose logarithm is normal. So the moment at
               order a is at most (a - 1) (1 + (a - 1) / steps) / (2 s²).
    """
    if noise == 0:
        return lambda order: math.inf
    mu2 = 1 / (noise * noise)
    moments: dict[int, _Array] = {}

    def moment_at(order: float) -> float:
        # Moments are computed in blocks: up to order 16, 64 or 256.
        limit = next(size for size in (16, 64, 256) if order <= size)
        if limit not in moments:
            moments[limit] = allocation_moments(limit, steps, mu2)
        return float(moments[limit][int(order)])

    removing = _limit_order(chord(moment_at), 256)

    def moment(order: float) -> float:
        adding = (order - 1) * mu2 / 2 * (1 + (order - 1) / steps) * (1 + 8 * _EPS)
        # Revealing which step holds the unit can only raise the divergence, and gives one Gaussian. Above
        # order 256, where `removing` is infinite, this is the bound.
        revealed = order * (order - 1) / 2 * mu2 * (1 + 8 * _EPS)
        return min(revealed, max(removing(order), adding))

    return moment


def allocation_moments(limit: int, steps: int, mu2: float) -> _Array:
    """Return, for n = 0 .. limit, the moment of removing a unit at order n: ln of n! / steps^n times the
    coefficient of z^n in (sum over k of z^k e^{k(k-1) mu2 / 2} / k!)^steps, where mu2 is 1 / noise².

    The power is computed by repeated squaring; all terms are positive.
    """
    k = np.arange(limit + 1, dtype=np.float64)
    log_base = k * (k - 1) / 2 * mu2 - _table()[: limit + 1] - k * math.log(steps)
    result = np.full(limit + 1, -math.inf)
    result[0] = 0.0
    power, exponent = log_base, steps
    while exponent:
        if exponent & 1:
            result = _log_convolve(result, power)
        exponent >>= 1
        if exponent:
            power = _log_convolve(power, power)
    sizes = _table()[: limit + 1] + np.maximum.accumulate(np.abs(log_base))
    rounding_error = _EPS * (16 * sizes + 8 * k) * max(1, 2 * steps.bit_length())
    return np.maximum(0.0, result + _table()[: limit + 1] + rounding_error)


def _log_convolve(a: _Array, b: _Array) -> _Array:
    """Return the product of two power series given by the logarithms of their coefficients, up to the same
    degree."""
    n = len(a)
    shifted = np.full((n, n), -math.inf)
    for i in range(n):
        shifted[i, i:] = a[i] + b[: n - i]
    top = shifted.max(axis=0)
    return np.asarray(top + np.log(np.exp(shifted - top).sum(axis=0)))


def repeat_and_select(e: ev.RepeatAndSelect) -> Moment:
    """Return the moments of the best of a random number of trials, from the moments of one of them."""
    return of_trials(moments(e.event), e.trials)


def of_trials(inner: Moment, trials: ev.Trials) -> Moment:
    """Return the moments of the best of a random number of runs with distribution `trials`; `inner` are the
    moments of one run.

    Guarantee: an upper bound of (order - 1) times the Rényi divergence, in both directions if that holds for
               `inner`.
    Proof:     Papernot & Steinke 2022, arXiv:2110.03620, Theorem 2 (truncated negative binomial: there is
               always a trial, so the outputs are all outcomes) and Theorem 6 (Poisson, see
               `_poisson_trials`).
    """
    if isinstance(trials, ev.PoissonTrials):
        return _poisson_trials(inner, float(trials.mean))
    assert isinstance(trials, ev.NegativeBinomialTrials)
    shape, gamma = float(trials.shape), float(trials.gamma)
    log_mean = _log_mean(shape, gamma)

    # The theorem has a second order, any a >= 1, at which it charges (1 - 1/a) rdp(a) + ln(1/gamma) / a,
    # where (1 - 1/a) rdp(a) = inner(a) / a. The best a = 1 + e^t is searched.
    def second_order_price(t: float) -> float:
        second_order = 1 + math.exp(t)
        return (inner(second_order) - math.log(gamma)) / second_order

    grid = [k / 2 for k in range(-12, 28)]
    start = min(grid, key=second_order_price)
    # ln(1/gamma) is the price at a = 1.
    second_price = min(_minimum_near(second_order_price, start), -math.log(gamma))

    def moment(order: float) -> float:
        return (inner(order) + (order - 1) * (1 + shape) * second_price + log_mean) * UP

    return moment


def _minimum_near(price: Callable[[float], float], start: float) -> float:
    """Return the least price found within 1/2 of `start`."""
    return min(price(start), minimum(price, start - 0.5, start + 0.5, 24)[1])


def _log_mean(shape: float, gamma: float) -> float:
    """Return ln E[K] for K with the truncated negative binomial distribution, rounded up: E[K] = shape (1 -
    gamma) / (gamma (1 - gamma^shape)). It is never negative, because there is at least one trial."""
    log_gamma = math.log(gamma)
    log_odds = math.log1p(-gamma) - log_gamma
    # `quotient` is (1 - gamma^shape) / shape, with its limit ln(1/gamma) at shape 0.
    exponent = shape * log_gamma
    quotient = -log_gamma * (math.expm1(exponent) / exponent if abs(exponent) > 1e-18 else 1.0)
    return max(0.0, log_odds - math.log(quotient)) + 1e-13 * (1 + abs(log_odds) + abs(math.log(quotient)))


def _poisson_trials(inner: Moment, mean: float) -> Moment:
    """Return ln(e^{-mean} + mean e^{x}), x = (order - 1) (rdp + mean delta'), where one trial has Rényi
    divergence rdp at the order, and is (ln(1 + 1/(order-1)), delta')-DP.

    Guarantee: an upper bound of (order - 1) times the Rényi divergence of the best of a Poisson number of
               trials, never negative.
    Proof:     Papernot & Steinke 2022, arXiv:2110.03620, Theorem 6 and the lemma on generating functions
               before it. Let f(u) = e^{mean (u - 1)}, and let u and v be the probabilities, on the two
               tables, that a trial is no better than y. The best trial is no better than y with probability
               f(u), so all outputs y together add at most e^{(order-1) rdp} max f'(u)^order f'(v)^{1-order}
               <= mean e^x to the sum of p^order q^{1-order} (the module's docstring). "No trial" is an
               outcome too: its probability e^{-mean} is the same on both tables, and is the first summand.
               The theorem as stated leaves it out; for means below 1 its bound is too small, and can be
               negative.
    """
    # e^-m + m e^x = 1 + (e^-m - 1 + m) + m (e^x - 1), where both brackets are positive, so that tiny means
    # keep their digits. `idle` is the first bracket.
    idle = max(0.0, math.expm1(-mean) + mean) if mean > 1e-3 else mean * mean / 2

    def moment(order: float) -> float:
        epsilon = math.log1p(1 / (order - 1)) * (1 - 1e-14)
        x = (inner(order) + (order - 1) * mean * best_delta(inner, epsilon)) * UP
        if x + math.log(mean) > 30:
            # e^x may overflow. The first summand e^-m is replaced by 1.
            return log1p_exp(x + math.log(mean)) * UP
        return log1p_up((idle + mean * math.expm1(x)) * UP)

    return moment


def best_delta(moment: Moment, epsilon: float) -> float:
    """Return the least delta at an epsilon, over a grid of orders, of an event with these moments."""
    orders = [1 + math.exp(k / 3) for k in range(-12, 31)]
    return min(rdp_to_delta(order, moment(order) / (order - 1), epsilon) for order in orders)


def poisson_sample(e: ev.PoissonSampled) -> Moment:
    """Return the moments of an event on a Poisson sample."""
    # A rate that is too small for a float is taken as the smallest float.
    rate = float(e.rate) or 5e-324
    inner = e.event
    if isinstance(inner, ev.Gaussian):
        return sampled_gaussian(rate, float(inner.noise_multiplier))
    mirrored = type(inner) in _MIRRORED_ALONE or all(type(part) in _MIRRORED for part in ev.leaves(inner))
    return poisson(rate, moments(inner), mirrored=mirrored)


# Each of these events has one dominating pair, and some relabeling of outputs swaps its two distributions (x
# -> s - x for noise that is shifted by s). In a composition the outputs of all such pairs are relabeled. For
# them `poisson` leaves out the factor 3 of Zhu & Wang's bound: an event that does not belong here
# would be charged too little.
_MIRRORED = {
    ev.Gaussian,
    ev.Laplace,
    ev.DiscreteLaplace,
    ev.RandomizedResponse,
    ev.PureDP,
    ev.DiscreteGaussian,
}


# This event has no single dominating pair. For a given shift s, x -> s - x in every entry swaps its two
# distributions. In a composition s may depend on earlier answers, which the relabeling changes, so the
# argument holds for the event alone only.
_MIRRORED_ALONE = {ev.VectorDiscreteGaussian}


def sample_without_replacement(e: Any) -> Moment:
    if isinstance(e.event, ev.Gaussian):
        return gaussian_without_replacement(float(e.rate), float(e.event.noise_multiplier))
    return without_replacement(float(e.rate), moments(e.event), pure.epsilon_of(e.event))


def random_allocation(e: Any) -> Moment:
    """Return the moments of a Gaussian that is used in one of several steps."""
    return allocation(e.steps, float(e.event.noise_multiplier))
