"""Computes a proved upper bound on the size of the characteristic function of one step's tilted loss at every
frequency u, from the spread of the losses alone.

Symbols: L is the loss of a sampled Gaussian step (`pair`), tilted by theta: its density under P is multiplied
by e^(theta L) and normalised. phi(u) = E exp(iuL) under that distribution, and L' is an independent copy of
L. Noise t is in standard deviations; r(t) is the likelihood ratio and p the power of r that tilts the noise
(`transform.log_ratio`, `transform.power`); mu = 1 / sigma. docs/pld.md, "Along a line", item 4.
"""

from __future__ import annotations

import math

import numpy as np

from ..pairs.arrays import Array
from ..pairs.sampled import SampledGaussian
from . import transform

# The ratio of the frequencies at the ends of an interval: a smaller one bounds phi more tightly, and takes
# more intervals. Chosen by hand and not tuned, as are the next two.
GROWTH = 1.3
# The cells of a group: all pairs of cells within a group contribute to the bound, and their number grows with
# the square of the cells.
_GROUP = 8
# The width of a cell, in standard deviations of the noise.
_CELL = 1 / 32
# All pairs (i, j) of cells of a group with j >= i + 2, that is, not neighbors.
_FIRST, _SECOND = np.triu_indices(_GROUP, 2)


def fading(
    pair: SampledGaussian, edges: Array, theta: float, log_total: float, u: Array, enough: float = math.inf
) -> Array:
    """Return, for each interval [u, GROWTH * u] of frequencies, a lower bound on 1 - |phi|, hence on -log
    |phi|; frequencies whose bound has reached `enough` are not improved further.

    `edges` are the ends of the noise that is not left out, in standard deviations, and log_total is log
    E exp(theta L) over it.

    Proof: the noise is cut into groups of cells, and |phi| is at most the mean of the groups' |phi|. In a
           group 1 - |phi|² = E[1 - cos u(L - L')] over two independent draws. Only draws in cells that are
           not neighbors are counted, with the least value of 1 - cos over the distances that two losses in
           these cells can have. Of each cell only a lower bound on its mass takes part; the rest of the mass
           counts as if its |phi| were 1. The bound is computed again with cells joined two by two, until one
           group is left, and the largest of these bounds is returned: joined cells have the distances that
           matter at low frequencies.
    """
    mass, loss = _cells(pair, edges, theta, log_total)
    bound = np.zeros(len(u))
    while True:
        improvable = bound < enough
        if improvable.any():
            bound[improvable] = np.maximum(bound[improvable], _decay(mass, loss, u[improvable]))
        if len(mass) <= _GROUP or not improvable.any():
            return bound * (1 - 1e-9)
        mass, loss = mass.reshape(-1, 2).sum(axis=1), loss[::2]


def _cells(pair: SampledGaussian, edges: Array, theta: float, log_total: float) -> tuple[Array, Array]:
    """Return lower bounds on the tilted masses of narrow cells of the noise, and the losses at their edges,
    ascending.

    The log of the tilted density, p log r(t) - t²/2 up to a constant, has slope at most |t| + |p| mu share(t)
    in size, where share(t) = q e^(mu t - mu²/2) / r(t) is at most 1 and rises with t. So its least value in a
    cell is at least its value in the middle minus half the width times the largest slope.
    """
    low, high = edges[0], edges[-1]
    count = _GROUP
    while count * _CELL < high - low:
        count *= 2
    t = np.linspace(low, high, count + 1)
    middle, half_width = (t[1:] + t[:-1]) / 2, (high - low) / count / 2
    p, mu = transform.power(pair, theta), 1 / pair.sigma
    log_r = transform.log_ratio(pair, t)
    share = np.exp(np.minimum(mu * t - mu * mu / 2 + math.log(pair.rate) - log_r, 0.0))
    slope = np.maximum(np.abs(t[1:]), np.abs(t[:-1])) + abs(p) * mu * share[1:]
    log = p * transform.log_ratio(pair, middle) - middle * middle / 2 - half_width * slope
    mass = (
        np.exp(np.minimum(log - 0.5 * math.log(2 * math.pi) - log_total, 0.0)) * (2 * half_width) * (1 - 1e-9)
    )
    edge_loss = log_r.astype(np.float64)
    return (mass, edge_loss) if pair.removing else (mass[::-1], -edge_loss[::-1])


def _decay(mass: Array, loss: Array, u: Array) -> Array:
    """Return a lower bound on 1 - |phi| over [u, GROWTH * u], for cells of at least these masses, cell i with
    losses from loss[i] to loss[i + 1].

    For a group of mass m, 1 - |phi| >= (1 - |phi|²) / 2. Each pair of cells is drawn in two orders, which
    cancels the 2, so the group contributes the sum over pairs of mass_i mass_j / m times the least value of
    1 - cos(angle). Angles run from u times the least distance to GROWTH u times the largest. 1 - cos rises up
    to pi and falls up to 2 pi, so that it is least at one of the ends; beyond 2 pi it is taken as 0.
    """
    i, j = _FIRST, _SECOND
    cells, low, high = (x.reshape(-1, _GROUP) for x in (mass, loss[:-1], loss[1:]))
    total = np.maximum(cells.sum(axis=1, keepdims=True), 1e-300)
    product = (cells[:, i] * cells[:, j] / total).ravel()
    # the others would change little; leaving them out only lowers the bound
    kept = product > 1e-6 * product.max()
    least_angle = np.multiply.outer(u * (1 - 1e-6), (low[:, j] - high[:, i]).ravel()[kept])
    largest_angle = np.multiply.outer(u * (GROWTH * (1 + 1e-6)), (high[:, j] - low[:, i]).ravel()[kept])
    least = np.minimum(
        1 - np.cos(np.minimum(least_angle, math.pi)),
        1 - np.cos(np.clip(largest_angle, math.pi, 2 * math.pi)),
    )
    return np.asarray(np.einsum("up,p->u", least, product[kept]))
