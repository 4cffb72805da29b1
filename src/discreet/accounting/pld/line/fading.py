"""How fast the characteristic function of a tilted loss must fade, from the spread of the losses alone: a
proved bound at every frequency."""

from __future__ import annotations

import math

import numpy as np

from ..pairs.arrays import Array
from ..pairs.sampled import SampledGaussian
from . import transform

# The ratio of the frequencies at the ends of an interval: smaller ones bound the transform more tightly, and
# there are more of them.
GROWTH = 1.3
# Cells that are compared pair by pair: all pairs of a group contribute to the bound, and their number grows
# with its square.
_GROUP = 8
# The width of a cell, in standard deviations of the noise.
_CELL = 1 / 32
# pairs of cells that are not neighbors
_FIRST, _SECOND = np.triu_indices(_GROUP, 2)


def fading(
    pair: SampledGaussian, edges: Array, theta: float, log_total: float, u: Array, enough: float = math.inf
) -> Array:
    """Return, for each interval [u, GROWTH * u], a lower bound on 1 - |phi|, hence on -log |phi|; sought
    until it is `enough`.

    Proof: the noise is cut into groups of cells. Within a group 1 - |phi|² = E[1 - cos u(L - L')] over two
    independent draws, of which only pairs in cells that are not neighbors are counted, at the least value
    between their distances; over groups |phi| is at most the mean. Cells are joined in pairs until a few are
    left: coarse ones see low frequencies.
    """
    mass, loss = _cells(pair, edges, theta, log_total)
    best = np.zeros(len(u))
    while True:
        left = best < enough
        if left.any():
            best[left] = np.maximum(best[left], _decay(mass, loss, u[left]))
        if len(mass) <= _GROUP or not left.any():
            return best * (1 - 1e-9)
        mass, loss = mass.reshape(-1, 2).sum(axis=1), loss[::2]


def _cells(pair: SampledGaussian, edges: Array, theta: float, log_total: float) -> tuple[Array, Array]:
    """Return the tilted masses of narrow cells of the noise, from below, and the losses at their edges,
    ascending.

    The log density changes by at most |t| + |p| mu share(t) per unit of noise: from its value in the middle
    the least follows.
    """
    low, high = edges[0], edges[-1]
    count = _GROUP
    while count * _CELL < high - low:
        count *= 2
    t = np.linspace(low, high, count + 1)
    middle, half = (t[1:] + t[:-1]) / 2, (high - low) / count / 2
    p, mu = transform.power(pair, theta), 1 / pair.sigma
    ratio = transform.log_ratio(pair, t)
    share = np.exp(np.minimum(mu * t - mu * mu / 2 + math.log(pair.rate) - ratio, 0.0))
    slope = np.maximum(np.abs(t[1:]), np.abs(t[:-1])) + abs(p) * mu * share[1:]
    log = p * transform.log_ratio(pair, middle) - middle * middle / 2 - half * slope
    mass = np.exp(np.minimum(log - 0.5 * math.log(2 * math.pi) - log_total, 0.0)) * (2 * half) * (1 - 1e-9)
    edge = ratio.astype(np.float64)
    return (mass, edge) if pair.removing else (mass[::-1], -edge[::-1])


def _decay(mass: Array, loss: Array, u: Array) -> Array:
    """Return 1 - |phi| over [u, GROWTH * u], from below, for cells of these masses between these losses."""
    i, j = _FIRST, _SECOND
    cells, low, high = (x.reshape(-1, _GROUP) for x in (mass, loss[:-1], loss[1:]))
    total = np.maximum(cells.sum(axis=1, keepdims=True), 1e-300)
    both = (cells[:, i] * cells[:, j] / total).ravel()
    kept = both > 1e-6 * both.max()
    near = np.multiply.outer(u * (1 - 1e-6), (low[:, j] - high[:, i]).ravel()[kept])
    far = np.multiply.outer(u * (GROWTH * (1 + 1e-6)), (high[:, j] - low[:, i]).ravel()[kept])
    least = np.minimum(1 - np.cos(np.minimum(near, math.pi)), 1 - np.cos(np.clip(far, math.pi, 2 * math.pi)))
    return np.asarray(np.einsum("up,p->u", least, both[kept]))
