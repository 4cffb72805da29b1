"""Computes delta as one integral of the moment generating function along a vertical line, however many steps:
a proved interval without a lattice.

    delta(epsilon) = (1 / 2 pi) integral of e^(-z epsilon) M(z)^n / (z (z + 1)) du,   z = theta + iu,

where M(z) = E exp(z L) is the moment generating function of one step's loss and n the number of steps (steps
of several kinds: a product of such powers). It is computed by the trapezoidal rule in u. The error of the
rule is the sum of e^(theta k W) delta(epsilon + kW) over k = ±1, ±2, ..., with W the period 2 pi / spacing:
all terms are positive, and bounded by Chernoff. The integrand is multiplied by a Gaussian kernel
e^(tau² z(z+1) / 2), so that the line can end. The kernel is the transform of one more (tiny) Gaussian release
of shift tau: it makes the upper bound larger, and what it added is bounded by another such integral and
subtracted from the lower bound.

A run is one outcome of the whole composition. Where huge losses ("jumps") are rare, runs are sorted by their
largest loss into levels (`steps.Level`), and each level is integrated by itself: with c the transform
of one step without a jump and j that of a jump, (c + j)^n - c^n takes the place of M^n, and runs without a
jump belong to another level or are bounded by Chernoff. docs/pld.md has the proof ("Along a line" and "Rare
huge losses").

All values along the line are those of the tilted distribution, divided by M(theta)^n; `log_scale` is the log
of that factor. The losses of each step are lowered by a constant, its offset; epsilon "counted from the
offsets" is lowered by the sum of all of them. U is the unit roundoff of doubles, and factors such as 1 + 1e-9
round bounds outwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..lattice.fourier import log_one_plus, unit
from ..pairs.arrays import Array, U
from . import transform
from .fading import GROWTH, fading
from .steps import ALL, Aim, Cut, Level, RunMoment, Step, TiltedStep, summed

Complex = npt.NDArray[Any]

# The log of how much larger than delta the terms of the integral may be: e^25 leaves delta five of sixteen
# digits.
_LOG_CANCELLATION = 25.0


class TiltWindow(NamedTuple):
    """Holds the tilt theta, the period W of the trapezoidal rule, and two exponents: Chernoff's bounds at
    theta + up and at theta - down bound delta at epsilon + kW for k > 0 and for k < 0."""

    theta: float
    period: float
    up: float
    down: float


def window(logs: Callable[[Array], Array], aim: Aim, tau: float) -> TiltWindow | None:
    """Return the tilt with the shortest period for which the error of the rule is e^-alias of delta, among
    those that lose no more digits than `_LOG_CANCELLATION` allows; None if there is none.

    `logs` returns log E exp(t L) of a run, rough, counted from the offsets as `aim.epsilon` is.
    """
    t = np.concatenate(([0.0], aim.theta * np.geomspace(1 / 40, 40, 81)))
    # log of Chernoff's bound on delta, kernel and all
    log = logs(t) + 0.5 * tau * tau * t * (t + 1) - t * aim.epsilon
    # With tilt theta and exponent t, |t - theta| W must exceed the log of Chernoff's bound divided by its
    # target.
    gap = t[None, :] - t[1:, None]
    log_excess = np.maximum(log[None, :] - aim.log_delta + aim.alias, 0.5)
    with np.errstate(divide="ignore"):
        above, below = (np.where(sign * gap > 0, log_excess / np.abs(gap), np.inf) for sign in (1, -1))
    up, down = above.argmin(axis=1), below.argmin(axis=1)
    # 0 may be an exponent of Chernoff's bound, but not the tilt
    each_tilt, t = np.arange(len(t) - 1), t[1:]
    period = np.maximum(above[each_tilt, up], below[each_tilt, down])
    period = np.where(log[1:] - aim.log_delta < _LOG_CANCELLATION + np.log1p(t), period, np.inf)
    i = int(np.argmin(period))
    if not math.isfinite(period[i]):
        return None
    return TiltWindow(float(t[i]), float(period[i]) * 1.02, float(gap[i, up[i]]), float(-gap[i, down[i]]))


class LineShape(NamedTuple):
    """Holds the width tau of the kernel, the P-mass of the noise that all repetitions of one kind of step
    together may leave out, the largest number of nodes times frequencies, and whether the widest
    floating-point type is used."""

    tau: float
    tail: float
    work: float
    precise: bool = False


class DeltaBounds(NamedTuple):
    """Holds a lower and an upper bound on delta."""

    low: float
    high: float


class Line:
    """Holds the integral over the runs of one level of one composition, to be read at any epsilon near the
    one it was planned for.

    Every epsilon is counted from the sum of the steps' offsets, and so is `logs`, a rough log of E exp(t L)
    over the runs of the level, for planning. If `usable` is false the line would be too long, and must not be
    read.

    `jumps`: whether the level leaves out runs without a jump. `lost`: a bound on the P-mass of the noise that
    was left out. `rest` and `rest_density`: bounds on the two integrals beyond the last frequency. `beyond`
    and `below`: logs of the moments in Chernoff's bounds on the error of the rule. `still`: the log of the
    moment in Chernoff's bound on the runs without a jump, if the level accounts for them.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        logs: Callable[[Array], Array],
        aim: Aim,
        shape: LineShape,
        level: Level = ALL,
    ) -> None:
        (_, tail, work, self.precise), self.level, self.usable = shape, level, False
        self.jumps = level.low > -math.inf
        self.offset = math.fsum(times * offset for _, times, offset in steps)
        bounds = window(logs, aim, shape.tau)
        if bounds is None:
            return
        self.window, self.theta, self.spacing = bounds, bounds.theta, 2 * math.pi / bounds.period
        self.tau = min(shape.tau, 2 / bounds.theta)
        self.steps = [Cut(step, tail, level) for step in steps]
        self.lost = math.fsum(step.lost for step in self.steps) * (1 + 1e-12)
        tilted_steps = self._tilted_steps(self.theta) if all(step.sound for step in self.steps) else None
        if tilted_steps is None or (self.jumps and not 0 < self._log_growth(tilted_steps) < 300):
            return
        reach = self._reach(tilted_steps, aim)
        self.count = math.ceil(reach / self.spacing) + 2
        tilted_steps = self._tilted_steps(self.theta, reach + 2 * self.spacing) if self.count < work else None
        if tilted_steps is not None and self.count * sum(tilted.nodes() for tilted in tilted_steps) <= work:
            self.usable = self._bounds_around()
            self._terms(tilted_steps)

    def _tilted_steps(self, theta: float, u: float = 0.0) -> list[TiltedStep] | None:
        """Return the tilted distributions of all steps, accurate up to frequency u; None if one of them takes
        too many nodes."""
        attempts = [step.tilted(theta, u, self.precise) for step in self.steps]
        tilted_steps = [tilted for tilted in attempts if tilted is not None]
        return tilted_steps if len(tilted_steps) == len(attempts) else None

    def _log_growth(self, tilted_steps: Sequence[TiltedStep]) -> float:
        """Return an upper bound on the log of the factor by which jumps increase the moment of a run."""
        odds_of_steps = zip(self.steps, summed(self.steps, tilted_steps, self.theta).odds, strict=True)
        return math.fsum(
            step.times * math.log1p(odds * (1 + error)) for step, (odds, error) in odds_of_steps
        ) * (1 + 1e-9)

    def _faded(self, tilted_steps: Sequence[TiltedStep], u: Array) -> Array:
        """Return the log of a bound on the tilted transform of a run over each interval [u, GROWTH * u].

        With jumps it is (c + j)^n - c^n, at most (|c| + J)^n - |c|^n with J >= |j| the odds of a jump, which
        grows with |c|. `core` is the log of the bound on |c|^n, `more` the log of that on
        ((|c| + J) / |c|)^n. A bound of e^-120 is small enough for every use.
        """
        core, more = np.zeros(len(u)), np.zeros(len(u))
        for step, tilted, (odds, error) in zip(
            self.steps, tilted_steps, summed(self.steps, tilted_steps, self.theta).odds, strict=True
        ):
            least = fading(step.pair, step.edges, self.theta, tilted.core.log_total, u, 120.0 / step.times)
            core = core - step.times * least
            more = more + step.times * np.log1p(odds * (1 + error) * np.exp(least))
        if not self.jumps:
            return core
        return np.asarray(core + np.where(more > 30, more, np.log(np.expm1(np.minimum(more, 30.0)))) + 1e-9)

    def _reach(self, tilted_steps: Sequence[TiltedStep], aim: Aim) -> float:
        """Return a frequency beyond which the integrals are at most e^-alias of delta, and store bounds on
        what is beyond it: `rest` for the integral of delta, `rest_density` for that of the density.

        Intervals [u, GROWTH * u] are bounded by `_faded` and the kernel; beyond the last one the kernel alone
        (`last_kernel`) is integrated.
        """
        tau, theta = self.tau, self.theta
        log_target = (
            aim.log_delta - aim.alias - (summed(self.steps, tilted_steps, theta).log - theta * aim.epsilon)
        )
        second_moment = math.fsum(
            step.times * float(part.weight @ part.loss**2)
            for step, tilted in zip(self.steps, tilted_steps, strict=True)
            for part in tilted
            if part is not None
        )
        last = math.sqrt(2 * (aim.alias + 60)) / tau
        first = min(1 / math.sqrt(max(second_moment, 1e-300)), last / 4)
        u: Array = first * GROWTH ** np.arange(
            math.ceil(math.log(last / first) / math.log(GROWTH)) + 1, dtype=np.float64
        )
        # the log of |kernel| at u = 0
        log_kernel = 0.5 * tau * tau * (theta * theta + theta)
        log = self._faded(tilted_steps, u) + log_kernel - 0.5 * (tau * u) ** 2
        # the lengths of the intervals, each with one more term of the rule, divided by pi
        length = (u * (GROWTH - 1) + self.spacing) / math.pi
        delta_parts, density_parts = np.exp(log) * length / u**2, np.exp(log) * length
        last_kernel = math.exp(log_kernel - 0.5 * (tau * u[-1]) ** 2) * (
            math.expm1(self._log_growth(tilted_steps)) if self.jumps else 1.0
        )
        delta_parts[-1], density_parts[-1] = (
            last_kernel * (1 / u[-1] + length[-1] / u[-1] ** 2),
            last_kernel * (1 / (tau**2 * u[-1]) + length[-1]),
        )
        # 1 + tau² / 2 covers the factor e^(tau² / 8) by which the kernel of the density is larger
        rest, rest_density = (
            np.cumsum(x[::-1])[::-1] * (1 + 0.5 * tau * tau) * 1.001 for x in (delta_parts, density_parts)
        )
        fits = (np.log(rest) < log_target) & (np.log(rest_density * tau * tau) < log_target)
        i = int(np.argmax(fits)) if fits.any() else len(u) - 1
        self.rest, self.rest_density = float(rest[i]), float(rest_density[i])
        return float(u[i])

    def _terms(self, tilted_steps: Sequence[TiltedStep]) -> None:
        """Compute the terms of both integrals at every frequency, with bounds on their errors: of delta, the
        transform times kernel / (z (z + 1)), and of the density, the transform times
        e^(tau² (z + 1/2)² / 2), which bounds what the kernel adds to delta.

        `errors` holds for each integral a bound on the sum of its terms' errors, and the sum of u times their
        sizes: the factor by which an error of epsilon changes the integral.
        """
        dtype: Any = np.longdouble if self.precise else np.float64
        total = summed(self.steps, tilted_steps, self.theta)
        self.log_scale, self.log_error = total.log, total.error
        values, value_error = powers(self.steps, tilted_steps, total, self.spacing, self.count)
        u = self.spacing * np.arange(self.count)
        self.u, z = u.astype(dtype), self.theta + 1j * self.spacing * np.arange(self.count, dtype=dtype)
        half_variance = dtype(self.tau) ** 2 / 2
        # The terms at u and -u are conjugate, and only u >= 0 is summed: u = 0 counts half.
        values[0] *= 0.5
        value_error[0] *= 0.5
        shapes = np.exp(half_variance * z * (z + 1)) / (z * (z + 1)), np.exp(half_variance * (z + 0.5) ** 2)
        self.delta_terms, self.density_terms = (values * shape for shape in shapes)
        rounding = unit(self.precise) * (200 + 8 * float(half_variance) * np.abs(z).astype(np.float64) ** 2)
        shape_sizes = [np.abs(shape).astype(np.float64) for shape in shapes]
        size = np.abs(values).astype(np.float64)
        self.errors = [
            (
                float(shape @ (value_error + (size + value_error) * rounding)),
                float(shape @ (u * (size + value_error))),
            )
            for shape in shape_sizes
        ]

    def _bounds_around(self) -> bool:
        """Store upper bounds on log E exp(tL), kernel included, at the exponents of Chernoff's bounds, and on
        that of the runs without a jump; return whether all of them could be computed."""
        bounds = []
        for t in (self.theta + self.window.up, self.theta - self.window.down):
            # At t = 0 the moment of all runs is 1; that of the runs with a jump is not.
            tilted_steps = self._tilted_steps(t) if t > 0 or self.jumps else []
            if tilted_steps is None:
                return False
            value = summed(self.steps, tilted_steps, t).log_above(self.steps) if tilted_steps else 0.0
            bounds.append(value + 0.5 * self.tau**2 * t * (t + 1))
        self.beyond, self.below = bounds
        if self.level.exponent is None:
            return True
        cores = [step.core(self.level.exponent) for step in self.steps]
        without_jump = [TiltedStep(core, None) for core in cores if core is not None]
        if len(without_jump) < len(cores):
            return False
        total = summed(self.steps, without_jump, self.level.exponent)
        self.still = total.log + total.error
        return True

    def _without_jump(self, epsilon: float) -> float:
        """Return Chernoff's bound on the probability that a run without a jump exceeds epsilon, if this level
        accounts for such runs; 0 otherwise."""
        if self.level.exponent is None:
            return 0.0
        return math.exp(min(self.still - self.level.exponent * epsilon + 1e-9, 300.0))

    def _integral(self, which: int, epsilon: float) -> tuple[float, float]:
        """Return the integral of delta (which = 0) or of the density (which = 1) in units of the tilted
        distribution, and a bound on its error."""
        terms, (error, by_epsilon) = ((self.delta_terms, self.density_terms)[which], self.errors[which])
        angle = self.u * epsilon
        value = float((terms.real * np.cos(angle) + terms.imag * np.sin(angle)).sum())
        error = error + 4 * unit(self.precise) * (abs(epsilon) + abs(self.offset)) * by_epsilon
        return value * self.spacing / math.pi, (error + 4 * U * abs(value)) * self.spacing / math.pi * (
            1 + 1e-9
        )

    def read(self, epsilon: float) -> DeltaBounds:
        """Return bounds on the delta of the level's runs at epsilon, which is counted from the offsets.

        Guarantee: the part of the composition's delta at epsilon + sum of offsets that comes from runs of
                   this level, and of those it accounts for, lies between them.
        Proof:     docs/pld.md, "Along a line" and "Rare huge losses".
        """
        value, error = self._integral(0, epsilon)
        density, density_error = self._integral(1, epsilon)
        scale = self.log_scale - self.theta * epsilon
        scale_error = self.log_error + 8 * U * (
            abs(self.log_scale) + self.theta * (abs(epsilon) + abs(self.offset)) + 4
        )
        # a bound on what the kernel added to delta
        added = self.tau**2 * (1 + self.tau) * (density + density_error + self.rest_density)
        high = math.exp(min(scale + scale_error, 700.0)) * (value + error + self.rest) * (1 + 1e-12)
        high += self.lost
        low = math.exp(min(scale - scale_error, 700.0)) * max(value - error - self.rest - added, 0.0)
        low *= 1 - 1e-12
        return DeltaBounds(max(low - self._around(epsilon), 0.0), high + self._without_jump(epsilon))

    def _around(self, epsilon: float) -> float:
        """Return a bound on the error of the rule, the sum over k = ±1, ±2, ... of e^(theta k W) times delta
        at epsilon + kW. Each delta is at most Chernoff's bound on the probability that a run's loss exceeds
        epsilon + kW."""
        w, t = self.window, self.theta - self.window.down
        above = self.beyond - (self.theta + w.up) * epsilon - w.up * w.period
        below = self.below - t * epsilon - w.down * w.period
        above_sum = math.exp(min(above, 300.0)) / -math.expm1(-w.up * w.period)
        return (above_sum + math.exp(min(below, 300.0)) / -math.expm1(-w.down * w.period)) * (1 + 1e-6)


def powers(
    steps: Sequence[Cut], tilted_steps: Sequence[TiltedStep], total: RunMoment, spacing: float, count: int
) -> tuple[Complex, Array]:
    """Return the tilted transform of a run at the frequencies 0, spacing, 2 spacing, ..., which is c^n, or
    with jumps (c + j)^n - c^n, and a bound on the error of each.

    Proof: a polynomial in c and j with positive coefficients changes by an error of c and j at most as much
           as it does at (|c|, |j|) when both grow by their errors. Let |c|^n = e^A and
           (1 + |j| / |c|)^n = e^B, and let A, B grow by a, b: then (|c| + |j|)^n - |c|^n changes by
           e^A expm1(a) expm1(B + b) + e^(A+B) expm1(b).

    In the code: `log` and `angle` are those of c^n, `log_ratio` and `angle_ratio` those of (1 + j/c)^n;
    `log` is also A (`log64` in doubles), `largest` is B, and a, b are their errors.
    """
    dtype = tilted_steps[0].core.weight.dtype
    roundoff = unit(dtype != np.float64)
    log, angle, a = np.zeros(count, dtype), np.zeros(count, dtype), np.zeros(count)
    log_ratio, angle_ratio, largest, b = (
        np.zeros(count, dtype),
        np.zeros(count, dtype),
        np.zeros(count),
        np.zeros(count),
    )
    for step, tilted, odds in zip(steps, tilted_steps, total.odds, strict=True):
        n = step.times
        z, error = transform.phi_minus_one(tilted.core, spacing, count)
        log_size, turn, log_error = log_one_plus(z, error, roundoff)
        log, angle = log + n * log_size, angle + n * turn
        a += n * log_error + 4 * roundoff * n * (np.abs(log_size) + np.abs(turn)).astype(np.float64)
        if tilted.far is not None:
            log_size, turn, log_larger, log_error = _jumping(
                1 + z, *transform.phi_minus_one(tilted.far, spacing, count), odds, roundoff
            )
            log_ratio, angle_ratio, largest, b = (
                log_ratio + n * log_size,
                angle_ratio + n * turn,
                largest + n * log_larger,
                b + n * log_error,
            )
    log64 = log.astype(np.float64)
    if not any(tilted.far for tilted in tilted_steps):
        return np.exp(log) * np.exp(1j * angle), np.asarray(-np.exp(log64 + a) * np.expm1(-a))
    # c^n (e^w - 1) with w = log_ratio + i angle_ratio: e^w - 1 is divided by e^positive, and split so that
    # nothing cancels
    positive, negative, sin_half = (
        np.maximum(log_ratio, 0),
        np.minimum(log_ratio, 0),
        np.sin(angle_ratio / 2),
    )
    real = (
        np.where(log_ratio > 0, -np.expm1(-positive), np.expm1(negative)) * np.cos(angle_ratio),
        -2 * np.exp(-positive) * sin_half * sin_half,
    )
    imag = np.exp(negative) * np.sin(angle_ratio)
    value = np.exp(log + positive) * (real[0] + real[1] + 1j * imag) * np.exp(1j * angle)
    rounding = 16 * roundoff * np.exp(log + positive) * (np.abs(real[0]) + np.abs(real[1]) + np.abs(imag))
    # the change of the proof, with expm1 of negative numbers only, which do not overflow
    error = np.exp(log64 + a + largest + b) * np.expm1(-a) * np.expm1(-largest - b) - np.exp(
        log64 + largest + b
    ) * np.expm1(-b)
    return value, np.asarray((error + rounding.astype(np.float64)) * (1 + 1e-9))


def _jumping(
    core: Complex, far: Complex, far_error: Array, odds: tuple[float, float], roundoff: float
) -> tuple[Complex, Complex, Array, Array]:
    """Return the log and the angle of 1 + j/c, the log of 1 + |j| / |c|, and a bound on how much that log
    grows by errors.

    `core` is c, and j is odds[0] times 1 + `far`, where odds[1] bounds the relative error of the odds and
    `far_error` the error of `far`.
    """
    j, size = odds[0] * (1 + far), np.abs(core).astype(np.float64)
    j_size = np.abs(j).astype(np.float64)
    error = (
        (odds[0] * far_error + j_size * odds[1]) * (1 + odds[1]) + 64 * roundoff * (odds[0] + j_size) + 1e-300
    )
    log_ratio, angle_ratio, _ = log_one_plus(j / core, 0.0, roundoff)
    log_error = np.log1p(error / (size + j_size)) + 16 * roundoff * (
        np.abs(log_ratio) + np.abs(angle_ratio)
    ).astype(np.float64)
    return log_ratio, angle_ratio, np.log1p(j_size / size) * (1 + 1e-12), log_error * (1 + 1e-9)
