"""Delta as one integral of the moment generating function along a vertical line, however many steps: a proved interval, no lattice.

    delta(epsilon) = (1 / 2 pi) integral of e^(-z epsilon) M(z)^n / (z (z + 1)) du,   z = theta + iu,

by the trapezoidal rule. What the rule gets wrong is a sum of shifted deltas, all positive, bounded by Chernoff; the far ends of the line
are cut off by a Gaussian kernel of width `tau`, which is one more (tiny) Gaussian release: above, it only adds; below, what it added
is bounded by another such integral. docs/pld.md has the argument.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtr

from . import _transform
from ._crossing import crossing
from ._fading import GROWTH, fading
from ._fourier import log_symbol, unit
from ._normal import Array, U
from ._plan import Cumulants
from ._sampled import SampledGaussian
from ._transform import Panels, Weights

Step = tuple[SampledGaussian, int, float]  # the pair, how often, and the offset its losses are counted from

_FIRST = 3e-3  # relative error of epsilon that the kernel may cause: on a first look where the line is long, and later
_SHARES = (2e-6, 2.5e-5)
_PASSES = 4
_ENOUGH = 6e-5  # relative width of the interval with which we are content
_WORK, _WORK_PRECISE = 3e8, 2.5e7
_LOST = 25.0  # log of how much larger than delta the terms may be
_QUADRATURE = -50.0  # log of the error of each panel, relative to the whole
_TAIL = 2e-6


class Window(NamedTuple):
    """The tilt, the period of the rule, and the exponents of Chernoff's bounds on what comes round from either side."""

    theta: float
    period: float
    up: float
    down: float


class Aim(NamedTuple):
    """Where to look: epsilon (from the offsets), log delta, a tilt to start from, and -log of the share of delta that may be misplaced."""

    epsilon: float
    log_delta: float
    theta: float
    alias: float


def window(k: Cumulants, aim: Aim) -> Window | None:
    """The tilt with the shortest period for which what comes round is e^-alias of delta, without losing too many digits."""
    t = aim.theta * np.geomspace(1 / 40, 40, 81)
    log = k.logs(t) - t * aim.epsilon  # log of Chernoff's bound on delta
    gap = t[None, :] - t[:, None]
    room = np.maximum(log[None, :] - aim.log_delta + aim.alias, 0.5)
    with np.errstate(divide="ignore"):
        above, below = (np.where(sign * gap > 0, room / np.abs(gap), np.inf) for sign in (1, -1))
    up, down = above.argmin(axis=1), below.argmin(axis=1)
    rows = np.arange(len(t))
    plain = (aim.alias - aim.log_delta) / t  # delta is at most one
    needed = np.maximum(above[rows, up], np.minimum(below[rows, down], plain))
    needed = np.where(log - aim.log_delta < _LOST + np.log1p(t), needed, np.inf)
    i = int(np.argmin(needed))
    if not math.isfinite(needed[i]):
        return None
    lower = t[i] - t[down[i]] if below[i, down[i]] < plain[i] else t[i]
    return Window(float(t[i]), float(needed[i]) * 1.02, float(t[up[i]] - t[i]), float(lower))


def _outside(pair: SampledGaussian, low: float, high: float) -> float:
    """P-mass of the noise outside [low, high], from above."""
    mu = 1 / pair.sigma
    plain = float(ndtr(low) + ndtr(-high))
    moved = float(ndtr(low - mu) + ndtr(mu - high))
    mass = (1 - pair.rate) * plain + pair.rate * moved if pair.removing else plain
    return mass * (1 + 1e-10) + 1e-300


class _Step:
    """One kind of step on the line: its noise cut to where all but `lost` of the mass is."""

    def __init__(self, step: Step, tail: float) -> None:
        self.pair, self.times, self.offset = step
        low, high = (x / self.pair.sigma for x in self.pair.span(tail / self.times))
        self.lost = self.times * _outside(self.pair, low, high)
        self.edges = np.linspace(low, high, math.ceil((high - low) / min(1.0, self.pair.sigma)) + 1)

    def weights(self, theta: float, u: float = 0.0, precise: bool = False) -> Weights | None:
        """The tilted law, accurate along the line up to frequency u; None if that takes too many nodes."""
        rough = _transform.weights(self.pair, Panels(self.edges[:-1], self.edges[1:], -math.inf), theta, self.offset)
        goal = rough.log_total + _QUADRATURE - (8.0 if precise else 0.0)
        panels = _transform.split(self.pair, self.edges, theta, u, goal)
        return panels and _transform.weights(self.pair, panels, theta, self.offset, precise)


class Reading(NamedTuple):
    """Bounds on delta."""

    low: float
    high: float


class Line:
    """The integral for one composition, ready to be read at any epsilon near the one it was planned for.

    `epsilon` counts from the offsets of the steps, as `k` does; `tau` is the width of the kernel, `work` the most that it may cost.
    Without `usable` the line was too long.
    """

    def __init__(
        self, steps: Sequence[Step], k: Cumulants, aim: Aim, tau: float, tail: float, work: float, precise: bool = False
    ) -> None:
        self.usable, self.tau, self.precise, self.work = False, tau, precise, work
        self.offset = math.fsum(times * offset for _, times, offset in steps)
        shape = window(k, aim)
        if shape is None:
            return
        self.window, self.theta, self.spacing = shape, shape.theta, 2 * math.pi / shape.period
        self.steps = [_Step(step, tail) for step in steps]
        self.lost = math.fsum(step.lost for step in self.steps) * (1 + 1e-12)
        laws = self._laws(self.theta)
        if laws is None:
            return
        reach = self._reach(laws, aim)
        self.count = math.ceil(reach / self.spacing) + 2
        laws = self._laws(self.theta, reach + 2 * self.spacing) if self.count < work else None
        if laws is not None and self.count * sum(len(law.loss) for law in laws) <= work:
            self.usable = self._bounds_around()
            self._terms(laws)

    def _laws(self, theta: float, u: float = 0.0) -> list[Weights] | None:
        found = [step.weights(theta, u, self.precise) for step in self.steps]
        made = [law for law in found if law is not None]
        return made if len(made) == len(found) else None

    def _reach(self, laws: Sequence[Weights], aim: Aim) -> float:
        """The frequency beyond which everything together is e^-alias of delta; what is left out there is kept in `cut` and `cut_density`."""
        tau, theta = self.tau, self.theta
        goal = aim.log_delta - aim.alias - (_summed(self.steps, laws, theta)[0] - theta * aim.epsilon)
        spread = math.fsum(s.times * float(law.weight @ law.loss**2) for s, law in zip(self.steps, laws, strict=True))
        last = math.sqrt(2 * (aim.alias + 60)) / tau
        first = min(1 / math.sqrt(max(spread, 1e-300)), last / 4)
        u: Array = first * GROWTH ** np.arange(
            math.ceil(math.log(last / first) / math.log(GROWTH)) + 1, dtype=np.float64
        )
        log = -0.5 * (tau * u) ** 2 + 0.5 * tau * tau * (theta * theta + theta)
        for step, law in zip(self.steps, laws, strict=True):
            log = log - step.times * fading(step.pair, step.edges, theta, law.log_total, u, 120.0 / step.times)
        nodes = (u * (GROWTH - 1) + self.spacing) / math.pi
        each, density = np.exp(log) * nodes / u**2, np.exp(log) * nodes
        rest = math.exp(-0.5 * (tau * u[-1]) ** 2 + 0.5 * tau * tau * (theta * theta + theta))
        each[-1], density[-1] = rest * (1 / u[-1] + nodes[-1] / u[-1] ** 2), rest * (1 / (tau**2 * u[-1]) + nodes[-1])
        cut, cut_density = (np.cumsum(x[::-1])[::-1] * (1 + 0.5 * tau * tau) * 1.001 for x in (each, density))
        fits = (np.log(cut) < goal) & (np.log(cut_density * tau * tau) < goal)
        i = int(np.argmax(fits)) if fits.any() else len(u) - 1
        self.cut, self.cut_density = float(cut[i]), float(cut_density[i])
        return float(u[i])

    def _terms(self, laws: Sequence[Weights]) -> None:
        """M(z)^n over z (z + 1) and the transform of the density, at every node, with their errors."""
        u = self.spacing * np.arange(self.count)
        kind: Any = np.longdouble if self.precise else np.float64
        log, angle, slack = np.zeros(self.count, kind), np.zeros(self.count, kind), np.zeros(self.count)
        for step, law in zip(self.steps, laws, strict=True):
            z, error = _transform.symbol(law, self.spacing, self.count)
            size, turn, wrong = log_symbol(z, error, unit(self.precise))
            n = step.times
            log, angle = log + n * size, angle + n * turn
            slack += n * wrong + 4 * unit(self.precise) * n * (np.abs(size) + np.abs(turn)).astype(np.float64)
        self.log_scale, self.log_error = _summed(self.steps, laws, self.theta)
        self.u, z = u.astype(kind), self.theta + 1j * self.spacing * np.arange(self.count, dtype=kind)
        half, smooth = kind(self.tau) ** 2 / 2, np.exp(log) * np.exp(1j * angle)
        smooth[0] *= 0.5
        self.delta_terms = smooth * np.exp(half * z * (z + 1)) / (z * (z + 1))
        self.density_terms = smooth * np.exp(half * (z + 0.5) ** 2)
        size = np.abs(z).astype(np.float64)
        slack = np.expm1(np.minimum(slack, 600.0)) + unit(self.precise) * (200 + 8 * float(half) * size**2)
        both = [np.abs(terms).astype(np.float64) for terms in (self.delta_terms, self.density_terms)]
        self.errors = [(float(terms @ slack), float(terms @ u)) for terms in both]

    def _bounds_around(self) -> bool:
        """log E exp(tL) at the exponents of Chernoff's bounds, from above."""
        found = []
        for t in (self.theta + self.window.up, self.theta - self.window.down):
            laws = self._laws(t) if t > 0 else []
            if laws is None:
                return False
            value, error = _summed(self.steps, laws, t) if laws else (0.0, 0.0)
            found.append(value + error + 0.5 * self.tau**2 * t * (t + 1))
        self.beyond, self.below = found
        return True

    def _integral(self, which: int, epsilon: float) -> tuple[float, float]:
        """The sum over the line, in units of the tilted law, and a bound on its error."""
        terms, (error, turning) = (self.delta_terms, self.density_terms)[which], self.errors[which]
        angle = self.u * epsilon
        value = float((terms.real * np.cos(angle) + terms.imag * np.sin(angle)).sum())
        wrong = error + 4 * unit(self.precise) * (abs(epsilon) + abs(self.offset)) * turning
        return value * self.spacing / math.pi, (wrong + 4 * U * abs(value)) * self.spacing / math.pi * (1 + 1e-9)

    def read(self, epsilon: float) -> Reading:
        """Bounds on delta at epsilon, which counts from the offsets.

        Guarantee: the true delta of the composition at epsilon + sum of offsets lies between them.
        Proof:     docs/pld.md, "Along a line".
        """
        value, error = self._integral(0, epsilon)
        density, density_error = self._integral(1, epsilon)
        scale = self.log_scale - self.theta * epsilon
        wrong = self.log_error + 8 * U * (abs(self.log_scale) + self.theta * (abs(epsilon) + abs(self.offset)) + 4)
        added = self.tau**2 * (1 + self.tau) * (density + density_error + self.cut_density)
        high = math.exp(min(scale + wrong, 700.0)) * (value + error + self.cut) * (1 + 1e-12) + self.lost
        low = math.exp(min(scale - wrong, 700.0)) * max(value - error - self.cut - added, 0.0) * (1 - 1e-12)
        return Reading(max(low - self._around(epsilon), 0.0), high)

    def _around(self, epsilon: float) -> float:
        """Sum over k of e^(theta k W) delta(epsilon + kW), k = ±1, ±2, ..., by Chernoff's bound on P(S > epsilon), which exceeds delta."""
        w, t = self.window, self.theta - self.window.down
        above = self.beyond - (self.theta + w.up) * epsilon - w.up * w.period
        below = (self.below - t * epsilon if t > 0 else 0.0) - w.down * w.period
        up = math.exp(min(above, 300.0)) / -math.expm1(-w.up * w.period)
        return (up + math.exp(min(below, 300.0)) / -math.expm1(-w.down * w.period)) * (1 + 1e-6)


def _summed(steps: Sequence[_Step], laws: Sequence[Weights], theta: float) -> tuple[float, float]:
    """log E exp(theta L) of the whole, counted from the offsets, and a bound on its error."""
    terms = [
        (step.times * law.log_total, step.times * theta * step.offset, step.times * law.log_error)
        for step, law in zip(steps, laws, strict=True)
    ]
    value = math.fsum(a for a, _, _ in terms) - math.fsum(b for _, b, _ in terms)
    error = math.fsum(c + 4 * U * (abs(a) + abs(b)) for a, b, c in terms)
    return value, error * (1 + 1e-9)


class Interval(NamedTuple):
    """A proved interval of epsilon, and how fast log delta falls there (not proved)."""

    low: float
    high: float
    slope: float


def solve(steps: Sequence[Step], k: Cumulants, theta: float, delta: float) -> Interval | None:
    """The interval of epsilon at delta; None where the line would be too long.

    Looks with a wide kernel first, then with one as narrow as can be afforded around what was found; once more in the widest
    floating-point type if rounding is what limits the result.
    """
    spread = math.sqrt(max(k(0.0)[2], 1e-300))
    theta = theta if theta * spread > 1e-6 else 0.3 / spread  # near the mean hardly any tilt is left to start from
    found, precise = Interval(0.0, k(theta)[1] + k.offset, theta), False
    result: Interval | None = None
    for _ in range(_PASSES):
        seen = _look(steps, k, theta, delta, found, precise, result is None)
        if seen is None:
            return result
        found, line, share = seen
        better = result is None or found.high - found.low < result.high - result.low
        result = found if better else result
        if found.high - found.low <= _ENOUGH * found.high:
            return result
        precise = precise or (share != _FIRST and _limited_by_rounding(line, found, delta, k.offset))
    return result


_Seen = tuple[Interval, Line, float]


def _look(
    steps: Sequence[Step], k: Cumulants, theta: float, delta: float, near: Interval, precise: bool, first: bool
) -> _Seen | None:
    """With the narrowest kernel that is affordable."""
    product = near.slope * near.high
    extra = min(max(0.0, -math.log(product)), 15.0) if product > 0 else 15.0
    aim = Aim(near.high - k.offset, math.log(delta), theta, 14.0 + extra)
    for share in _SHARES if not first else (_SHARES[0], _FIRST):
        tau = min(0.5, math.sqrt(2 * share * max(near.high, 0.02 / near.slope) / (near.slope + 1)))
        work = _WORK_PRECISE if precise else _WORK if share == _SHARES[-1] else _WORK / 48
        line = Line(steps, k, aim, tau, delta * _TAIL * math.exp(-extra), work, precise)
        found = _invert(line, aim.epsilon, near.slope, delta, k.offset) if line.usable else None
        if found is not None:
            return found, line, share
    return None


def _limited_by_rounding(line: Line, found: Interval, delta: float, offset: float) -> bool:
    error = line._integral(0, found.high - offset)[1] * math.exp(line.log_scale - line.theta * (found.high - offset))
    return error > 1e-5 * delta * found.slope * found.high


def _invert(line: Line, epsilon: float, slope: float, delta: float, offset: float) -> Interval | None:
    """Where the upper bound on delta, and where the lower, cross delta."""
    log_delta, least = math.log(delta), -offset - 1e-15 * abs(offset)
    high = crossing(lambda x: math.log(max(line.read(x).high, 1e-320)) - log_delta, epsilon, slope, least)
    if high is None:
        return None
    good, _, fall = high
    if good <= least:
        return Interval(0.0, 0.0, fall)
    low = crossing(lambda x: math.log(max(line.read(x).low, 1e-320)) - log_delta, good, fall, least)
    size = 4e-16 * (abs(offset) + abs(good))
    return Interval(max(0.0, (low[1] if low else least) + offset - size), max(0.0, good + offset + size), fall)
