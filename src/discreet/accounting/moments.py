"""Computes epsilon by the moments accountant as it was published in 2016, and by the closed-form bounds that
lectures compare with it.

This module is for teaching and as a cross-check: the integrals E1 and E2 of Abadi et al., and three formulas
for the sampled Gaussian. Each formula checks the conditions under which it holds. For charging, use `rdp` or
the privacy loss distribution.

Symbols: q is the sampling rate, s the noise multiplier, l the order of a moment, and alpha(l) the logarithm
of the larger of E1 and E2 at moment l.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from .. import _require
from .gdp import ApproximateEpsilon

# The largest moment that Abadi et al. tried.
LARGEST = 32
# The step of the integration grid is a fraction of the noise. With less noise than this the grid would take
# too much memory, and every moment is above the largest float anyway.
_LEAST_NOISE = 1e-3


class MomentPair(NamedTuple):
    """The two integrals at one moment: E1 for adding a unit, E2 for removing one; the accountant takes the
    larger."""

    e1: float
    e2: float

    @property
    def log_larger(self) -> float:
        return math.log(max(self.e1, self.e2))


def integrals(moment: int, rate: float, noise_multiplier: float) -> MomentPair:
    """Return E1 = E_{z~m0}[(m0/m)^l] and E2 = E_{z~m}[(m/m0)^l], with m0 = N(0, s²), m1 = N(1, s²),
    m = (1-q) m0 + q m1.

    Abadi et al. 2016, arXiv:1607.00133, Section 3.2. They are computed by the trapezoidal rule, which for
    these analytic integrands converges faster than any power of the step.

    >>> round(integrals(1, 1.0, 1.0).e2, 6)
    2.718282
    """
    _require.integer(moment=moment, at_least=1)
    _require.probability(rate=rate)
    _require.must(rate != 0, "rate", rate, "above zero")
    _require.positive(noise_multiplier=noise_multiplier)
    s = noise_multiplier
    _require.must(s >= _LEAST_NOISE, "noise_multiplier", s, f"at least {_LEAST_NOISE:g}")
    step = s / 32
    z = np.arange(-(moment + 1) - 40 * s, moment + 2 + 40 * s, step)
    log_m0 = -z * z / (2 * s * s) - math.log(s * math.sqrt(2 * math.pi))
    with np.errstate(divide="ignore"):
        log_ratio = np.logaddexp(
            np.log1p(-rate) if rate < 1 else -np.inf, math.log(rate) + (2 * z - 1) / (2 * s * s)
        )
    # A moment that overflows is infinite, and then gives no bound.
    with np.errstate(over="ignore"):
        e1 = float(np.sum(np.exp(log_m0 - moment * log_ratio))) * step
        e2 = float(np.sum(np.exp(log_m0 + (moment + 1) * log_ratio))) * step
    return MomentPair(e1 * (1 + 1e-12), e2 * (1 + 1e-12))


def epsilon(rate: float, noise_multiplier: float, steps: int, delta: float) -> float:
    """Return the epsilon at delta: the least (steps * alpha(l) + ln(1/delta)) / l over the moments l = 1 ..
    32 (Abadi et al. 2016, arXiv:1607.00133, Theorem 2).

    >>> round(epsilon(0.01, 4.0, 10_000, 1e-5), 2)
    1.26
    """
    _require.integer(steps=steps, at_least=1)
    _require.open_probability(delta=delta)
    bounds = []
    for moment in range(1, LARGEST + 1):
        total = steps * integrals(moment, rate, noise_multiplier).log_larger
        bounds.append((total - math.log(delta)) / moment)
    return min(bounds)


def tail(rate: float, noise_multiplier: float, steps: int, epsilon: float) -> float:
    """Return the delta at an epsilon: the least exp(steps * alpha(l) - l * epsilon) over the moments l = 1 ..
    32."""
    _require.integer(steps=steps, at_least=1)
    _require.positive(epsilon=epsilon)
    exponents = [
        steps * integrals(moment, rate, noise_multiplier).log_larger - moment * epsilon
        for moment in range(1, LARGEST + 1)
    ]
    # The smallest float is added because the exponential may underflow to 0: a delta of 0 would claim pure
    # DP.
    return min(1.0, math.exp(min(0.0, *exponents)) + 5e-324)


def _demand(holds: bool, condition: str, bound: str) -> None:
    """Raise an error that names the bound and its condition, unless the condition holds."""
    _require.that(holds, f"the {bound} bound holds only for {condition}. Use accounting.rdp.curve.")


def abadi(order: float, rate: float, noise_multiplier: float) -> ApproximateEpsilon:
    """Return an estimate q² order / ((1 - q) s²) of the Rényi divergence, for q < 1/(16 s), s >= 1, order <=
    1 + s² ln(1/(q s)).

    It is the leading term of Abadi et al. 2016, arXiv:1607.00133, Lemma 3. The further term O(q³ order³ / s³)
    has no stated constant, so this is not a bound.
    """
    q, s = rate, noise_multiplier
    _demand(s >= 1 and 0 < q < 1 / (16 * s), "noise at least 1 and rate below 1/(16 noise)", "Abadi et al.")
    _demand(1 < order <= 1 + s * s * math.log(1 / (q * s)), "orders up to 1 + s² ln(1/(q s))", "Abadi et al.")
    return ApproximateEpsilon(q * q * order / ((1 - q) * s * s), "leading term of a moment bound")


def bun(order: float, rate: float, noise_multiplier: float) -> float:
    """Return the bound 6 q² order / s² of the Rényi divergence on a fixed-size sample, under replace, for q
    <= 1/10, s >= sqrt(5), order <= s² ln(1/q) / 2.

    Bun, Dwork, Rothblum & Steinke 2018 (truncated concentrated DP), as in the table of Mironov, Talwar &
    Zhang 2019, arXiv:1908.10530.

    >>> bun(4.0, 0.01, 4.0)
    0.00015000000000000004
    """
    q, s = rate, noise_multiplier
    _demand(0 < q <= 0.1 and s * s >= 5, "rates up to 1/10 and noise of at least sqrt(5)", "Bun et al.")
    _demand(1 < order <= s * s * math.log(1 / q) / 2, "orders up to s² ln(1/q) / 2", "Bun et al.")
    return 6 * q * q * order / (s * s) * (1 + 4e-16)


def mironov(order: float, rate: float, noise_multiplier: float) -> float:
    """Return the bound 2 q² order / s² of the Rényi divergence on a Poisson sample, under add/remove.

    It holds under the conditions of Mironov, Talwar & Zhang 2019, arXiv:1908.10530: q < 1/5, s >= 4, order <=
    s² L / 2 - 2 ln s, order <= (s² L² / 2 - ln 5 - 2 ln s) / (L + ln(q order) + 1/(2 s²)), where L = ln(1 +
    1/(q (order - 1))) is the variable `log_term`.
    """
    q, s = rate, noise_multiplier
    _demand(0 < q < 0.2 and s >= 4, "rates below 1/5 and noise of at least 4", "Mironov et al.")
    _demand(order > 1, "orders above 1", "Mironov et al.")
    log_term = math.log1p(1 / (q * (order - 1)))
    _demand(
        order <= s * s * log_term / 2 - 2 * math.log(s),
        "orders up to s² L / 2 - 2 ln s, L = ln(1 + 1/(q (order - 1)))",
        "Mironov et al.",
    )
    limit = s * s * log_term * log_term / 2 - math.log(5) - 2 * math.log(s)
    _demand(
        order * (log_term + math.log(q * order) + 1 / (2 * s * s)) <= limit,
        "orders with order (L + ln(q order) + 1/(2 s²)) <= s² L² / 2 - ln 5 - 2 ln s, "
        "L = ln(1 + 1/(q (order - 1)))",
        "Mironov et al.",
    )
    return 2 * q * q * order / (s * s) * (1 + 4e-16)
