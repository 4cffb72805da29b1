"""Bounds norms of gradients from above, from sums that float32 rounded.

No bound is ever below the true norm: clipping by a norm that is too small would break the sensitivity. With
u = 2**-24, the unit roundoff of float32, a float32 sum of n products is off by at most n u / (1 - n u) times
the sum of their absolute values, in whatever order it is added up (Higham 2002, section 3.1), plus the error
of underflow; the bounds add both. Where products of both signs cancel, the sum of their absolute values is
bounded by the Cauchy-Schwarz inequality from the norms of the vectors.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

# The unit roundoff u of float32: the largest relative error of one operation.
UNIT = 2.0**-24
# The smallest normal float32: the largest error of one product by underflow, also where subnormal numbers are
# flushed to zero.
TINY = 2.0**-126
# Squares of long vectors are added up in float32 within blocks of this many entries, and the blocks in
# float64: so the bound is at most about 1e-4 above the norm, whatever the length of the vector.
BLOCK = 256
# The largest n u for which the proof of `growth` holds (it needs at most 0.38), rounded down.
_LARGEST_ROUNDING = 0.375


def growth(n: int) -> float:
    """Return a bound e on the relative error of a float32 sum of n products: Higham's gamma of n + 8.

    The 8 covers the few operations before and after the sum. The bound is infinite for more than six million
    products.

    Guarantee: where a sum of squares was computed as s, the true sum is at most s (1 + e)², and its root at
               most sqrt(s) (1 + e).
    Proof:     s is at least 1 - e times the true sum, and 1 / (1 - e) <= (1 + e)² wherever e + e² <= 1, that
               is, for e up to 0.618. With m = n + 8, e = m u / (1 - m u) is at most that for m u up to 0.38.
    """
    nu = (n + 8) * UNIT
    return nu / (1 - nu) if nu < _LARGEST_ROUNDING else float("inf")


def _growths(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return `growth` of each number of products in an array."""
    nu = (counts + 8) * UNIT
    return np.where(nu < _LARGEST_ROUNDING, nu / (1 - nu), np.inf)


def lengths(rows: Tensor) -> Tensor:
    """Return an upper bound on the l2 norm over the last dimension, in the dtype of `rows`.

    Proof: `growth` covers rounding. Underflow makes the sum of n squares smaller by at most n TINY, hence the
           norm by at most sqrt(n TINY).
    """
    return _enlarged(torch.linalg.vector_norm(rows, dim=-1), rows.shape[-1])


def _enlarged(norms: Tensor, n: int) -> Tensor:
    """Enlarge computed norms of vectors of n numbers, in place, to upper bounds on the true norms."""
    return norms.mul_(1 + growth(n)).add_(math.sqrt(n * TINY))


def squares(rows: Tensor) -> Tensor:
    """Return an upper bound on the squared l2 norm over the last dimension, in float64, as squares of small
    norms underflow in float32.

    Matrices are bounded in numpy, whose call takes a third of the time of torch's, other tensors in torch.
    The choice must depend on the number of dimensions, never on the number of rows: for tiny numbers the two
    bounds differ (by a factor of up to sqrt(2)), and with one more example the clipping factors of all others
    would change.
    """
    n = rows.shape[-1]
    if n < 4 * BLOCK:
        return _squares_in_numpy(rows) if rows.dim() == 2 else lengths(rows).double().square_()
    in_blocks = n - n % BLOCK
    sums: Tensor = squares(rows[..., :in_blocks].reshape(*rows.shape[:-1], -1, BLOCK)).sum(-1)
    return sums.add_(squares(rows[..., in_blocks:])) if in_blocks < n else sums


# Without warnings of numpy: that an overflow occurred is a fact about the data.
@np.errstate(all="ignore")
def _squares_in_numpy(rows: Tensor) -> Tensor:
    """Return the bound of `squares` for a matrix, by inner products in numpy."""
    array = rows.detach().numpy()
    return torch.from_numpy(widening(rows.shape[1])(np.vecdot(array, array)))


class Widening(NamedTuple):
    """Turns sums of squares that were computed in float32 into upper bounds in float64.

    `factor` covers rounding and `offset` underflow. Both depend on the number of summands.
    """

    factor: float
    offset: float

    def __call__(self, sums: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Return sums * factor + offset, at least the true sums of squares (`growth`)."""
        bounds = sums * np.float64(self.factor)
        bounds += self.offset
        return bounds


@lru_cache(maxsize=4096)
def widening(n: int) -> Widening:
    """Return the widening of float32 sums of n squares. Underflow takes at most n TINY from such a sum; the
    offset is twice that, as slack for the rounding of the widening itself."""
    return Widening((1 + growth(n)) ** 2, 2 * n * TINY)


def outer_bound(x: Tensor, g: Tensor, bias: bool) -> Tensor:
    """Return |g|² (|x|² + bias), from upper bounds in float64 on |x|² and |g|².

    `x` holds the bounds on |x|² and is overwritten, `g` those on |g|²; `bias` says whether the layer has a
    bias, which counts as 1.

    Guarantee: at least the squared norm of a linear layer's gradient (g xᵀ, bias g) at one position, for its
               input x and the gradient g of its output.
    Proof:     |g xᵀ|² = |g|² |x|². In float64 a product of two squared norms of float32 vectors does not
               underflow, and its relative rounding error of 2**-53 is far below the slack of `growth`.
    """
    x += bias
    x *= g
    return x


# Without warnings of numpy: that an overflow occurred is a fact about the data.
@np.errstate(all="ignore")
def ghost_bound(x_gram: Tensor, g_gram: Tensor, own: Tensor, k: int, p: int, *, bias: bool = False) -> Tensor:
    """Return an upper bound on the squared norm of the sum over positions t of g_t x_tᵀ, the gradient of a
    linear layer's weight, for each of B examples: [B], float64.

    x_t is the layer's input at position t, g_t the gradient of its output there. With `bias` the bound is on
    the sum of g_t (x_t, 1)ᵀ, so that the bias's gradient is included. The bound also covers the rounding of
    the scaled g_t in the `add` of taps.

    This is known as ghost norms (Goodfellow 2015, arXiv:1510.01799; Li, Tramer, Liang & Hashimoto 2022,
    arXiv:2110.05679): the gradient itself is never built.

    `x_gram` and `g_gram` are the inner products (x_t . x_s) and (g_t . g_s), [B, T, T], of vectors of k and
    of p numbers, in float32; `x_gram` is overwritten. `own` [B, T] is true at an example's own positions, and
    false only where g_t x_tᵀ is zero. All examples are padded to the longest, so that T depends on the other
    examples. The bound must not: it counts an example's own positions only.

    Guarantee: as above, also where products underflow, or are flushed to zero.
    Proof:     the squared norm is the sum over t, s of (x_t . x_s)(g_t . g_s). With a = |x_t||x_s| and b =
               |g_t||g_s|, the inner products are off by at most growth(k) a + k TINY and growth(p) b + p
               TINY, and a row of T of their products is added up in float32, so that each product is off by
               at most 2 growth(k + p + T) a b + 2 TINY (p a + k b + 1). Over all t, s, a b adds up to (sum of
               |x_t||g_t|)², a to (sum of |x_t|)² <= T times the sum of |x_t|², and b likewise. |x_t|² and
               |g_t|² are the diagonals, enlarged (`widening`). Rounding the scaled x_t or g_t in `add` makes
               the norm larger by at most u times the sum of |x_t||g_t|; 4 u are added. A bias is one more
               number, 1, in each x_t. Products with an x_t or g_t of zeros are zero, and adding them rounds
               nothing: the proof is about the positions in `own`, and T is their number (`own_positions`).
    """
    xs, gs = x_gram.numpy(), g_gram.numpy()
    if bias:
        xs += 1
        k += 1
    is_own = own.numpy()
    own_positions = is_own.sum(1)
    x_squares = np.where(is_own, widening(k)(xs.diagonal(axis1=1, axis2=2)), 0)
    g_squares = np.where(is_own, widening(p)(gs.diagonal(axis1=1, axis2=2)), 0)
    # The sum of |x_t||g_t| over an example's positions.
    norm_products = np.sqrt(x_squares * g_squares).sum(1)
    underflow = p * x_squares.sum(1) + k * g_squares.sum(1) + own_positions
    total = np.vecdot(xs, gs).sum(1, dtype=np.float64)
    error = _growths(k + p + own_positions)
    total += 2 * error * np.square(norm_products) + (2 * TINY * own_positions) * underflow
    return torch.from_numpy(np.square(np.sqrt(np.maximum(total, 0)) + (4 * UNIT) * norm_products))


def gram(rows: Tensor) -> Tensor:
    """Return the inner products of all pairs of rows of each example: [B, T, T], from [B, T, d]."""
    return torch.bmm(rows, rows.transpose(1, 2))


def not_zero(g: Tensor, dim: int) -> Tensor:
    """Return whether any number along dimension `dim` of g is not zero; NaN counts as not zero.

    Comparing the largest and the smallest number takes a tenth of the time of comparing all (measured).
    """
    if not g.shape[dim]:
        return (g != 0).any(dim)
    return (g.amax(dim) != 0) | (g.amin(dim) != 0)


def single(tensor: Tensor) -> Tensor:
    """Return a tensor of half precision in single precision (float32); others stay as they are.

    In half precision squares underflow, and a gradient whose norm is computed as zero is not clipped.
    """
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()
