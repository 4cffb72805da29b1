"""Gaussian differential privacy: an event is mu-GDP if telling two neighboring tables apart is at least as
hard as telling N(0, 1) from N(mu, 1) with one draw. This is exact for Gaussian noise; in a composition the
squares of the mus add up.

The central-limit estimate for sampled training is in this module too. It is often *below* the true epsilon,
so it is not an accountant: it returns an `ApproximateEpsilon`, which is not a number and cannot be charged.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from statistics import NormalDist
from typing import Any

from .. import _require, _round
from . import events as ev
from . import pure
from .conversion import gaussian_delta, gaussian_epsilon, least_epsilon, normal_tail
from .events import Event, covered, refuse
from .normal import normal

_NORMAL = NormalDist()


def _of_gaussian(e: ev.Gaussian) -> float:
    """Return the mu of Gaussian noise, 1 / noise_multiplier, rounded up."""
    return math.inf if e.noise_multiplier == 0 else _round.up(1 / _require.exact(e.noise_multiplier, "noise"))


def of_pure(epsilon: float) -> float:
    """Return the mu of an epsilon-DP event: 2 Phi^{-1}(e^eps / (1 + e^eps)), rounded up.

    Guarantee: every epsilon-DP mechanism is mu-GDP with this mu; some are not with a smaller one.
    Proof:     the trade-off function of epsilon-DP is two straight lines from (0, 1) to (a, a) to (1, 0),
               with a = 1/(1 + e^eps). That of N(0, 1) against N(mu, 1) is convex and passes through the same
               three points, so it lies below the lines.
    """
    if epsilon == 0:
        return 0.0
    if epsilon > 700:
        return math.inf
    # The last summand covers the rounding of the probability near 1/2, for small epsilons.
    return -2 * _NORMAL.inv_cdf(1 / (1 + math.exp(epsilon))) * (1 + 1e-9) + 1e-15


_MU: dict[type[Event], Callable[[Any], float]] = {
    ev.NonPrivate: lambda e: math.inf,
    # Dong, Roth & Su 2022, arXiv:1905.02383, Theorem 2.7
    ev.Gaussian: _of_gaussian,
}


def mu(event: Event) -> float:
    """Return the mu of a whole event: the root of the sum of the squared mus of its parts (Dong, Roth & Su
    2022, arXiv:1905.02383, Corollary 3.3), rounded up. Own deltas (see `normal`) are not included.

    >>> mu(ev.Gaussian(noise_multiplier=2.0).repeated(4))
    1.0000000000000004
    """
    total = Fraction(0)
    for part, times in normal(event).parts.items():
        rule, exact = _MU.get(type(part)), pure.epsilon_of(part)
        why = "its trade-off curve is not above that of any shifted Gaussian, or none is proved"
        covered(rule is not None or exact is not None, part, "gdp", why)
        part_mu = rule(part) if rule is not None else of_pure(exact or 0.0)
        if math.isinf(part_mu):
            return math.inf
        total += times * Fraction(part_mu) ** 2
    return math.sqrt(_round.up(total)) * (1 + 4e-16)


def epsilon(event: Event, delta: float) -> float:
    """Return the epsilon of an event at delta, by its mu; own deltas are subtracted from delta first."""
    form = normal(event)
    total = mu(event)
    exact = pure.epsilon_of(form.event)
    return least_epsilon(
        form,
        delta,
        lambda remaining_delta: gaussian_epsilon(total, remaining_delta),
        math.inf if exact is None else exact,
    )


def delta(event: Event, epsilon: float) -> float:
    """Return the delta of an event at epsilon, by its mu; own deltas are added."""
    form = normal(event)
    return form.total_delta(gaussian_delta(mu(event), epsilon), epsilon)


def tradeoff(mu: float, alpha: float) -> float:
    """Return the least type II error of any test with type I error alpha on a mu-GDP event: Phi(Phi^{-1}(1 -
    alpha) - mu), up to the rounding of a few floats.

    >>> round(tradeoff(1.0, 0.05), 4)
    0.7405
    """
    _require.non_negative(mu=mu)
    _require.probability(alpha=alpha)
    if alpha in (0, 1):
        return 1.0 - alpha
    return normal_tail(mu + _NORMAL.inv_cdf(alpha))


@dataclass(frozen=True, slots=True)
class ApproximateEpsilon:
    """An estimate of epsilon that may be too low or too high: for display, never for charging. The number is
    `.approximately`."""

    approximately: float
    method: str

    def __repr__(self) -> str:
        return f"about {self.approximately:.4g} ({self.method}; an estimate, not a bound)"


def clt_estimate(event: Event, delta: float) -> ApproximateEpsilon:
    """Return an estimate of epsilon for Poisson-sampled Gaussians by the central limit theorem: that of
    mu-GDP with mu = rate sqrt(steps (e^{1/s²} - 1)), s the noise multiplier.

    Gaussians that are not sampled add their exact mu² = steps / s². Bu, Dong, Long & Su 2020,
    arXiv:1911.11607. The estimate is typically below the true epsilon.
    """
    total = 0.0
    for part, times in normal(event).parts.items():
        rate, inner = (part.rate, part.event) if isinstance(part, ev.PoissonSampled) else (1, part)
        if not isinstance(inner, ev.Gaussian) or inner.noise_multiplier == 0:
            raise refuse(part, "central-limit", "the estimate is for (sampled) Gaussians")
        mu_squared = 1 / float(inner.noise_multiplier) / float(inner.noise_multiplier)
        growth = math.expm1(mu_squared) if mu_squared < 700 else math.inf
        total += times * (float(rate) ** 2 * growth if rate != 1 else mu_squared)
    return ApproximateEpsilon(gaussian_epsilon(math.sqrt(total), delta), "central limit theorem")
