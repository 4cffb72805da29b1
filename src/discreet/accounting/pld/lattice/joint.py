"""Makes one pair of point masses of a composition, so that amplification by sampling applies to it:
`compose([...]).sampled(rate)`.

One sample is drawn, and several mechanisms run on it. Together they are one mechanism; its dominating pair is
the product of theirs (Zhu, Dong & Wang 2022, arXiv:2106.08567, Theorem 10), to which amplification applies as
to any other pair. Masses are convolved directly, by sums of positive terms only, so that every mass keeps its
relative accuracy however small it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ..pairs import cells
from ..pairs.arrays import Array, U
from ..pairs.basic_pairs import Atoms
from ..pairs.cells import DominatingPair
from . import planning
from .planning import Cumulants

# Lattice points for the likely losses of a composition that is sampled: more make its pair tighter, and the
# composition of its samples slower. The number was chosen by hand, not tuned.
_POINTS = 4096


class _LatticePair(NamedTuple):
    """Holds P-masses at the lattice points start, start + 1, ..., with relative error at most `error`, and
    the P-mass at infinite loss. Q-masses are held for lower bounds only; for upper bounds they are p *
    e^-loss."""

    start: int
    p: Array
    q: Array | None
    infinite: float
    error: float


class Joint(NamedTuple):
    """Holds atoms that dominate the composition, the P-mass at infinite loss that they do not list, and atoms
    that are dominated by the composition (None if there are none)."""

    upper: Atoms
    infinite: float
    lower: Atoms | None


def joint(
    above: Sequence[tuple[DominatingPair, int]],
    below: Sequence[tuple[DominatingPair, int]] | None,
    tail: float,
) -> Joint:
    """Return the pair of a composition, from pairs with their counts: `above` dominate its parts, `below` are
    dominated by them. `tail` is the P-mass that may be cut off.

    Guarantee: `upper` with `infinite` dominates every mechanism that is composed of mechanisms dominated by
               `above`; `lower` is what post-processing leaves of the composition of `below`.
    Proof:     docs/pld.md, "Two discretisations"; products of dominating pairs dominate.
    """
    mesh = _mesh(above, tail)
    high = _composed([(_upper(pair, mesh, tail / n), n) for pair, n in above], tail)
    upper = Atoms(
        mesh * np.arange(high.start, high.start + len(high.p), dtype=np.float64),
        high.p,
        None,
        high.error + 8 * U,
    )
    if below is None:
        return Joint(upper, high.infinite, None)
    low = _composed([(_lower(pair, mesh, tail / n), n) for pair, n in below], tail)
    assert low.q is not None
    kept = (low.p > 0) & (low.q > 0)
    if not kept.any():
        # the losses are so large that no float holds a Q-mass: there is nothing to build a test from
        return Joint(upper, high.infinite, None)
    loss = np.log(low.p[kept]) - np.log(low.q[kept])
    order = np.argsort(loss, kind="stable")
    loss_error = 2 * low.error + 8 * U * (1 + float(np.abs(loss).max(initial=0.0)))
    return Joint(
        upper, high.infinite, Atoms(loss[order], low.p[kept][order], None, low.error + 8 * U, loss_error)
    )


def _mesh(parts: Sequence[tuple[DominatingPair, int]], tail: float) -> float:
    """Return a mesh with which the likely losses of the composition span about `_POINTS` lattice points: all
    losses, or 30 standard deviations and four times the widest range of a part, if that is less."""
    nodes = [(pair.nodes(tail / n), n) for pair, n in parts]
    _, _, variance = Cumulants(nodes)(0.0)
    full_range = math.fsum(n * float(node.loss[-1] - node.loss[0]) for node, n in nodes)
    widest = max(float(node.loss[-1] - node.loss[0]) for node, _ in nodes)
    likely_range = min(full_range, 30 * math.sqrt(variance) + 4 * widest)
    return planning.short_mantissa(max(likely_range, 1e-9) / _POINTS)


def _knots(pair: DominatingPair, mesh: float, tail: float) -> Array:
    """Return the indices of all lattice points around the losses of a pair, as floats."""
    loss = pair.nodes(tail).loss
    return np.arange(math.floor(loss[0] / mesh) - 1, math.ceil(loss[-1] / mesh) + 2, dtype=np.float64)


def _upper(pair: DominatingPair, mesh: float, tail: float) -> _LatticePair:
    """Return masses on the lattice that dominate the pair."""
    knots = _knots(pair, mesh, tail)
    dominating = cells.upper(pair, mesh * knots)
    return _LatticePair(int(knots[0]), dominating.mass, None, dominating.infinite, 0.0)


def _lower(pair: DominatingPair, mesh: float, tail: float) -> _LatticePair:
    """Return masses on the lattice that the pair dominates; the Q-masses are rounded up."""
    knots = _knots(pair, mesh, tail)
    merged = cells.lower(pair, mesh * knots)
    q = np.maximum(merged.p - merged.gain, 0.0) * np.exp(-mesh * knots) * (1 + 8 * U)
    return _LatticePair(int(knots[0]), merged.p, q, 0.0, 0.0)


def _times(a: _LatticePair, b: _LatticePair, cut: float) -> _LatticePair:
    """Return the convolution of two pairs, without tails of P-mass `cut`.

    For an upper bound (no Q-masses) the losses of the upper tail become infinite, and those of the lower tail
    are raised to the first that is kept; the atoms then lack the Q-mass that the raised losses had, which
    `basic_pairs.missing_q_mass` restores before they are sampled. For a lower bound both tails are left out.
    """
    p = np.convolve(a.p, b.p)
    q = None if a.q is None or b.q is None else np.convolve(a.q, b.q)
    error = a.error + b.error + 4 * U * (min(len(a.p), len(b.p)) + 8)
    first = min(int(np.searchsorted(np.cumsum(p), cut)), len(p) - 1)
    last = max(len(p) - int(np.searchsorted(np.cumsum(p[::-1]), cut)), first + 1)
    infinite = a.infinite + b.infinite
    kept = p[first:last].copy()
    if q is None:
        infinite += float(p[last:].sum()) * (1 + 1e-9)
        kept[0] += p[:first].sum()
    return _LatticePair(a.start + b.start + first, kept, q if q is None else q[first:last], infinite, error)


def _composed(parts: Sequence[tuple[_LatticePair, int]], tail: float) -> _LatticePair:
    """Return the pair of a composition of pairs with their counts; its tails are cut off as in `_times`, less
    than `tail` in all."""
    cut = tail / (4 * sum(n for _, n in parts))
    powers = [_power(pair, n, lambda a, b: _times(a, b, cut)) for pair, n in parts]
    total = powers[0]
    for other in powers[1:]:
        total = _times(total, other, cut)
    return total


def _power(
    pair: _LatticePair, n: int, convolve: Callable[[_LatticePair, _LatticePair], _LatticePair]
) -> _LatticePair:
    """Return the n-th convolution power of a pair by repeated squaring, where `convolve` convolves two."""
    result: _LatticePair | None = None
    while True:
        if n & 1:
            result = pair if result is None else convolve(result, pair)
        n >>= 1
        if n == 0:
            assert result is not None
            return result
        pair = convolve(pair, pair)
