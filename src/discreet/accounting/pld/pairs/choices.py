"""Defines pairs for many exponential mechanisms, each chosen by the analyst after seeing the answers of the
others.

A mechanism has bounded range epsilon if its losses lie in some interval of that width, as those of the
exponential mechanism do. One such mechanism is worst when its loss is t or t - epsilon, for some t in [0,
epsilon]; which t is worst depends on the losses so far. The largest curve over all t is that of a pair
(`basic_pairs.bounded_range`), but of no mechanism, and composing this pair with itself costs up to a fifth
more than need be. Here t is chosen anew at every step, as the analyst would choose it: the result is exact
but for the grid.

W, T, s, y and w are those of the proof of `adaptive_pair`; in the code W is a vector `value` at the knots
log s.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from .arrays import Array
from .basic_pairs import Atoms
from .profile import mirrored

# The largest number of mechanisms in one block, which are composed as if chosen adaptively: larger blocks are
# tighter, and their time grows with the square of the number. Chosen by hand, not tuned.
_BLOCK = 128
# Mesh cells per epsilon; a coarser mesh only raises the curve.
_CELLS_PER_EPSILON = 32
# Added to the curve after each step, at all knots but the last, so that no positive value underflows to zero.
_LEAST = 1e-24
# The largest loss of a block: e^300 is far from the largest float.
_FARTHEST = 300.0
# A factor per step that covers the rounding of positive terms and of the position of the maximum (whose error
# counts squared).
_UP = 1 + 1e-10


def blocks(epsilon: float, times: int) -> list[tuple[int, int]]:
    """Return a list of (mechanisms per block, number of such blocks) for `times` mechanisms: blocks have at
    most _BLOCK mechanisms and a loss of at most _FARTHEST, and differ by at most one mechanism."""
    number = -(-times // min(_BLOCK, int(_FARTHEST / epsilon)))
    small, larger = divmod(times, number)
    return [(k, n) for k, n in ((small + 1, larger), (small, number - larger)) if n and k]


@lru_cache(maxsize=64)
def adaptive_pair(epsilon: float, times: int) -> tuple[Atoms, float]:
    """Return a pair that dominates `times` mechanisms of bounded range epsilon, each chosen after the answers
    of the earlier ones; and its mass at infinite loss.

    Guarantee: it dominates also if they alternate, in whatever order, with other mechanisms that have fixed
               pairs.
    Proof:     let W(s) be the largest delta at epsilon log s that the remaining steps can reach; it is convex
               in s, and (1 - s)+ after the last step. Before a step with losses in [t - eps, t] it is
               E_Q[y W(s / y)], where y = e^loss has mean 1 under Q. The perspective y W(s / y) of a convex
               function is convex in y, so that losses at both ends are worst, and with w = e^t

                   TW(s) = max over w in [1, e^eps] of
                           ((e^eps - w) W(s / w) + (w - 1) W(s e^eps / w)) / (e^eps - 1),

               again convex (Dong, Durfee & Rogers 2020, arXiv:1909.13830, on the cost of adaptivity, do this
               for fixed t). A mechanism with a fixed pair averages W over its loss; max of averages <=
               average of max, so it is worst before all choices, where it may be composed as usual. Lines in
               s between knots lie above W; on a pair of lines the expression is A + B w + C / w with B, C <=
               0, whose maximum is at sqrt(C / B). W at s < 1 follows from W at s > 1, since the two tables
               may be exchanged (`_below`).

    The knots end at `reach`, about 11 standard deviations above the mean; the curve's value there is the mass
    at infinite loss. All choices of `cells` and `reach` change tightness and time only.
    """
    cells = max(
        _CELLS_PER_EPSILON,
        min(8 * _CELLS_PER_EPSILON, 1024 // times),
        min(4 * _CELLS_PER_EPSILON, math.ceil(epsilon / 0.08)),
    )
    mesh = epsilon / cells
    deviation = 0.5 * epsilon * math.sqrt(times)
    reach = min(times * epsilon, 0.5 * deviation**2 * (1 + epsilon) + 11 * deviation + 2 * epsilon)
    knots = mesh * np.arange(math.ceil(reach / mesh) + 1, dtype=np.float64)
    # (1 - s)+ at s >= 1
    value = np.zeros(len(knots))
    for _ in range(times):
        value = _step(value, knots, epsilon, cells)
    value_at_reach = 0.0 if reach == times * epsilon else float(value[-1])
    curve = np.minimum(value, 1.0)
    curve[-1] = max(value_at_reach, 0.0)
    return mirrored(knots, curve)


def _step(value: Array, knots: Array, epsilon: float, cells: int) -> Array:
    """Return TW on the knots, from W there."""
    extended = np.concatenate(
        (_below(value[1 : 2 * cells + 1], knots[1 : 2 * cells + 1]), value, np.full(cells + 1, value[-1]))
    )
    # `extended` is W from -2 epsilon on, or from the mirrored last knot; this is the index of loss 0 in it
    first = min(2 * cells, len(value) - 1)
    mesh, size = epsilon / cells, len(value)
    s, exp_epsilon = np.exp(knots), math.exp(epsilon)
    best = np.zeros(size)
    # t between i and i + 1 mesh cells: W(s / w) is on the line a, W(s e^eps / w) on the line b
    for i in range(cells):
        low, high = first - i - 1, first - i - 1 + cells
        a = _Line(
            extended[low : low + size],
            extended[low + 1 : low + 1 + size],
            s * math.exp(-(i + 1) * mesh),
            math.exp(mesh),
        )
        b = _Line(
            extended[high : high + size], extended[high + 1 : high + 1 + size], a.left * exp_epsilon, a.ratio
        )
        # -C and -B of the proof
        curvature, slope = s * exp_epsilon * (b.slope - a.slope), a.start - b.start
        with np.errstate(divide="ignore", invalid="ignore"):
            w = np.sqrt(np.maximum(np.where(slope > 0, curvature / slope, 1.0), 1.0))
        w = np.clip(w, math.exp(i * mesh), math.exp((i + 1) * mesh))
        best = np.maximum(best, (exp_epsilon - w) * a(s / w) + (w - 1) * b(s * exp_epsilon / w))
    return np.asarray(best / math.expm1(epsilon) * _UP + _LEAST * (knots < knots[-1]))


def _below(value: Array, knots: Array) -> Array:
    """Return W at the negatives of `knots`, ascending, from W at the knots: 1 - e^-x + e^-x W(x)."""
    return np.asarray((-np.expm1(-knots) + np.exp(-knots) * value)[::-1])


class _Line:
    """Holds, for each s, the chord of W between `left` and `left * ratio`: `value` and `end` are W there,
    `start` is the chord's value at 0."""

    __slots__ = ("end", "left", "ratio", "slope", "start", "value")

    def __init__(self, value: Array, end: Array, left: Array, ratio: float) -> None:
        self.value, self.end, self.left, self.ratio = value, end, left, ratio
        self.slope = (end - value) / (left * (ratio - 1))
        self.start = value - self.slope * left

    def __call__(self, s: Array) -> Array:
        """Return the chord at s, limited to its ends."""
        share = np.clip((s / self.left - 1) / (self.ratio - 1), 0.0, 1.0)
        return self.value * (1 - share) + self.end * share
