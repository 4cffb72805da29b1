"""Small worlds in which an event is run for real: its exact output distributions, written down outcome by
outcome, against which prices are checked.

A world is a chain of tables, each of which has one unit more than the one before (under `replace`, one unit
more with its second value). All units but these are zero. `distributions` returns one row of probabilities
for each table. Nothing here is shared with the accountants: no pair, no loss distribution, no Rényi order.
Outcomes that are told apart by no test are merged, and where there are too many also others, which is
post-processing: what is returned is attained by some mechanism with this event, or by less than that, so that
every price must cover it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats

from discreet import accounting as acc

Array = npt.NDArray[np.float64]
# The largest number of outcomes that are kept apart.
_OUTCOMES = 300


def merged(rows: Array) -> Array:
    """Return the same rows with outcomes of (nearly) the same likelihood ratios merged into one."""
    rows = rows[:, rows.sum(axis=0) > 0]
    with np.errstate(divide="ignore"):
        ratios = np.maximum(np.log(rows) - np.log(rows.max(axis=0)), -1e4)
    # a random projection tells ratios apart that differ
    directions = np.random.default_rng(1).uniform(1, 2, len(rows))
    for step in (1e-11, *(1e-3 * 4.0**k for k in range(12))):
        _, group = np.unique(np.round(ratios / step).T @ directions, return_inverse=True)
        if group.max() < _OUTCOMES:
            break
    return np.stack([np.bincount(group, row) for row in rows])


def together(a: Array, b: Array) -> Array:
    """Return the distributions of two independent releases seen together."""
    return merged((a[:, :, None] * b[:, None, :]).reshape(len(a), -1))


def _repeated(event: acc.Repeated, units: int) -> Array:
    rows, square, times = np.ones((units + 1, 1)), distributions(event.event, units), event.times
    while times:
        rows = together(rows, square) if times & 1 else rows
        times >>= 1
        square = together(square, square) if times else square
    return rows


def _composed(event: acc.Composed, units: int) -> Array:
    rows = np.ones((units + 1, 1))
    for part in event.events:
        rows = together(rows, distributions(part, units))
    return rows


def geometric(epsilon: float, shift: int, units: int) -> Array:
    """Return discrete Laplace noise of scale 1/epsilon on `shift` times the number of units, clamped to the
    range of what is counted. With one unit and shift 1 that is randomized response."""
    last, a = shift * units, math.exp(-epsilon)
    rows = (1 - a) / (1 + a) * a ** np.abs(np.arange(last + 1) - shift * np.arange(units + 1)[:, None])
    if last == 0:
        return np.ones((units + 1, 1))
    rows[:, 0] /= 1 - a
    rows[:, -1] /= 1 - a
    return np.asarray(rows, float)


def _cells(noise: Any, units: int, reach: float) -> Array:
    """Return continuous noise on the number of units, rounded to the cells of a grid."""
    edges = np.linspace(-reach, units + reach, 200) - np.arange(units + 1)[:, None]
    low, high = noise.cdf(edges), noise.sf(edges)
    middle = np.where(edges[:, 1:] <= 0, np.diff(low), -np.diff(high))
    return np.concatenate((low[:, :1], middle, high[:, -1:]), axis=1)


def _gaussian(deviation: float, units: int) -> Array:
    return _cells(stats.norm(scale=deviation), units, 8 * deviation)


def _failing(rows: Array, delta: float) -> Array:
    """Return what shows the table itself with probability delta."""
    return np.hstack(((1 - delta) * rows, delta * np.eye(len(rows))))


def _response(event: acc.RandomizedResponse, units: int) -> Array:
    own = np.eye(event.categories)[np.arange(units + 1) % event.categories]
    rows = 1 + math.expm1(event.epsilon) * own
    return np.asarray(rows / rows.sum(axis=1, keepdims=True))


def _two_candidates(event: acc.ExponentialMechanism, units: int) -> Array:
    """Return the choice between two candidates, which each unit moves epsilon further apart."""
    odds = float(event.epsilon) * (np.arange(units + 1) - units / 2) + 1
    return np.stack((1 / (1 + np.exp(-odds)), 1 / (1 + np.exp(odds))), axis=1)


def _shuffled(event: acc.Shuffled, units: int) -> Array:
    """Return the number of ones among reports by randomized response, of which `units` mean one."""
    honest = 1 / (1 + math.exp(-float(event.epsilon)))
    rows = []
    for ones in range(units + 1):
        zeros = event.reports - ones
        true = stats.binom.pmf(np.arange(ones + 1), ones, honest)
        rows.append(np.convolve(true, stats.binom.pmf(np.arange(zeros + 1), zeros, 1 - honest)))
    return merged(np.array(rows))


def _selected(event: acc.RepeatAndSelect, units: int) -> Array:
    """Return the best of a random number of runs, where outcomes that many units make likely are the best."""
    rows = distributions(event.event, units)
    rows = rows[:, np.argsort(np.log(rows[-1] + 1e-300) - np.log(rows[0] + 1e-300))]
    rows = rows / rows.sum(axis=1, keepdims=True)
    worse = np.clip(np.cumsum(rows, axis=1) - rows, 0.0, 1.0)
    trials: Any = event.trials
    if isinstance(trials, acc.PoissonTrials):
        mean = float(trials.mean)
        best = np.exp(mean * (worse - 1)) * np.expm1(mean * rows)
        return merged(np.hstack((best, np.full((units + 1, 1), math.exp(-mean)))))
    # With f(x) = ((1 - (1-gamma) x)^-shape - 1) / (gamma^-shape - 1): f(worse + row) - f(worse).
    shape, gamma = float(trials.shape), float(trials.gamma)
    left = 1 - (1 - gamma) * worse
    drop = np.log1p(-np.minimum((1 - gamma) * rows / left, 1 - 1e-16))
    if shape == 0:
        return merged(drop / math.log(gamma))
    return merged(left**-shape * np.expm1(-shape * drop) / math.expm1(-shape * math.log(gamma)))


def _poisson(event: acc.PoissonSampled, units: int) -> Array:
    tables = np.arange(units + 1)
    drawn = stats.binom.pmf(tables, tables[:, None], float(event.rate))
    return merged(drawn @ distributions(event.event, units))


def _fixed_size(event: acc.SampledWithoutReplacement, units: int) -> Array:
    tables = np.arange(units + 1)
    drawn = stats.hypergeom.pmf(tables, event.size, tables[:, None], event.sample)
    return merged(drawn @ distributions(event.event, units))


_RULES: dict[type[acc.Event], Callable[[Any, int], Array]] = {
    acc.PureDP: lambda e, n: geometric(float(e.epsilon), 1, n),
    acc.ApproximateDP: lambda e, n: _failing(geometric(float(e.epsilon), 1, n), e.delta),
    acc.DiscreteLaplace: lambda e, n: geometric(1 / float(e.scale), e.sensitivity, n),
    acc.Laplace: lambda e, n: _cells(stats.laplace(scale=e.noise_multiplier), n, 0.0),
    acc.Gaussian: lambda e, n: _gaussian(e.noise_multiplier, n),
    acc.ZCDP: lambda e, n: _failing(_gaussian(1 / math.sqrt(2 * e.rho), n), e.delta),
    acc.RDPPoint: lambda e, n: _gaussian(math.sqrt(e.order / (2 * e.epsilon)), n),
    acc.Thresholded: lambda e, n: _failing(distributions(e.event, n), e.delta),
    acc.RandomizedResponse: _response,
    acc.ExponentialMechanism: _two_candidates,
    acc.Shuffled: _shuffled,
    acc.RepeatAndSelect: _selected,
    acc.Repeated: _repeated,
    acc.Composed: _composed,
    acc.Group: lambda e, n: merged(distributions(e.event, n * e.size)[:: e.size]),
    acc.PoissonSampled: _poisson,
    acc.SampledWithoutReplacement: _fixed_size,
}


def distributions(event: acc.Event, units: int = 1) -> Array:
    """Return the output distributions on the tables with 0 .. `units` units, one row for each."""
    return _RULES[type(event)](event, units)


def delta(rows: Array, epsilon: float) -> float:
    """Return the least delta of the first and the last row at epsilon, in the worse direction."""
    p, q, factor = rows[0], rows[-1], math.exp(epsilon)
    return float(max(np.maximum(p - factor * q, 0).sum(), np.maximum(q - factor * p, 0).sum()))
