"""Upper bounds on norms of gradients, from sums that float32 rounded.

No bound here is ever below the true norm: clipping by a norm that is too small would break the sensitivity.
A float32 sum of n products is off by at most n u / (1 - n u) times the sum of their absolute values, in
whatever order it is taken (Higham 2002, section 3.1), plus what underflow takes; the bounds add that. Where
products of both signs cancel, the sum of their absolute values is bounded by the Cauchy-Schwarz inequality
from the norms of the vectors.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

# The unit roundoff u of float32: the largest relative error of one operation.
UNIT = 2.0**-24
# The smallest normal float32: what underflow can take from one product at most, also where subnormal numbers
# are flushed to zero.
TINY = 2.0**-126
# Squares of long vectors are added up in float32 within blocks of so many entries, and the blocks in float64:
# the bound stays within about 1e-4 of the norm whatever the length.
BLOCK = 256
# From here on 1 + growth would no longer cover 1 / sqrt(1 - growth), see `growth`.
_LARGEST_ROUNDING = 0.375
Numbers = TypeVar("Numbers", Tensor, npt.NDArray[np.float64])


def growth(n: int) -> float:
    """Return a bound e on the relative error of a float32 sum of n products, with slack for the few
    operations around it (Higham's gamma of n + 8); infinite for more than six million products.

    Guarantee: a sum of squares that was computed as s is truly at most s (1 + e)², and its root at most
               sqrt(s) (1 + e).
    Proof:     s is at least 1 - e times the truth, and 1 / (1 - e) <= (1 + e)² wherever e + e² <= 1, that is,
               for e up to 0.618, which n u / (1 - n u) is for n u up to 0.38.
    """
    nu = (n + 8) * UNIT
    return nu / (1 - nu) if nu < _LARGEST_ROUNDING else float("inf")


def _growths(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return `growth` of several numbers of products."""
    nu = (counts + 8) * UNIT
    return np.where(nu < _LARGEST_ROUNDING, nu / (1 - nu), np.inf)


def lengths(rows: Tensor) -> Tensor:
    """Return an upper bound on the l2 norm over the last dimension, in the rows' own type.

    Proof: `growth`, and what underflow takes is at most n TINY of the sum of squares, hence at most the root
           of that of the norm.
    """
    return _enlarged(torch.linalg.vector_norm(rows, dim=-1), rows.shape[-1])


def _enlarged(norms: Tensor, n: int) -> Tensor:
    """Enlarge computed norms of n numbers each, in place, to upper bounds on the true norms."""
    return norms.mul_(1 + growth(n)).add_(math.sqrt(n * TINY))


def squares(rows: Tensor) -> Tensor:
    """Return an upper bound on the squared l2 norm over the last dimension, in float64: squares of small
    norms underflow in float32.

    Which of two bounds is taken, in numpy (whose call costs a third of torch's) or in torch, goes by the
    number of dimensions and never by that of rows: for tiny numbers the two differ by a factor of sqrt(2),
    and one example more would change the factors of all others.
    """
    n = rows.shape[-1]
    if n < 4 * BLOCK:
        return _squares_in_numpy(rows) if rows.dim() == 2 else lengths(rows).double().square_()
    in_blocks = n - n % BLOCK
    sums: Tensor = squares(rows[..., :in_blocks].reshape(*rows.shape[:-1], -1, BLOCK)).sum(-1)
    return sums.add_(squares(rows[..., in_blocks:])) if in_blocks < n else sums


# a warning would leak a fact about the data
@np.errstate(all="ignore")
def _squares_in_numpy(rows: Tensor) -> Tensor:
    """Return the bound of `squares` for a matrix, by inner products in numpy."""
    array = rows.detach().numpy()
    return torch.from_numpy(widening(rows.shape[1])(np.vecdot(array, array)))


class Widening(NamedTuple):
    """Turns sums of squares that were computed in float32 into upper bounds in float64; `factor` and `offset`
    are for one number of summands, or arrays for several."""

    factor: Any
    offset: Any

    def __call__(self, sums: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Return at least the true sums of squares: s factor + offset (`growth`)."""
        bounds = sums * np.float64(self.factor)
        bounds += self.offset
        return bounds


@lru_cache(maxsize=4096)
def widening(n: int) -> Widening:
    """Return what turns float32 sums of n squares into upper bounds."""
    return Widening((1 + growth(n)) ** 2, 2 * n * TINY)


def outer_bound(x: Numbers, g: Numbers, bias: Any) -> Numbers:
    """Return at least |g xᵀ|², and |g|² more where there is a bias, from upper bounds in float64 on |x|² and
    |g|²; `x` is overwritten.

    Guarantee: at least the squared norm of the gradient (g xᵀ, bias g) of a linear layer at one position.
    Proof:     |g xᵀ|² = |g|² |x|²; in float64 a product of two squares of float32 vectors neither underflows
               nor loses a digit that matters.

    The one norm bound of linear layers: `Outer` and `fast.stack` both use it. `bias` is 0 or 1, or an array
    of them that broadcasts.
    """
    x += bias
    x *= g
    return x


# a warning would leak a fact about the data
@np.errstate(all="ignore")
def ghost_bound(x_gram: Tensor, g_gram: Tensor, own: Tensor, k: int, p: int, *, bias: bool = False) -> Tensor:
    """Return at least the squared norm of the sum over positions t of g_t x_tᵀ, the gradient of a linear
    layer's weight, for each example: [B], float64. With `bias` it is that of g_t (x_t, 1)ᵀ, so that the
    bias's gradient is included. What the taps' `add` rounds when it scales g_t is included as well.

    Known as ghost norms (Goodfellow 2015, arXiv:1510.01799; Li, Tramer, Liang & Hashimoto 2022,
    arXiv:2110.05679): the gradient itself is never built.

    `x_gram` and `g_gram` are the inner products (x_t . x_s) and (g_t . g_s), [B, T, T], of k and of p numbers
    each, in float32; `x_gram` is overwritten. `own` [B, T] is false only where g_t xᵀ_t is zero: T may depend
    on other examples (all are filled up to the longest), the bound must not, so that only these count.

    Guarantee: as above, also where products underflow, or are flushed to zero.
    Proof:     the squared norm is the sum over t, s of (x_t . x_s)(g_t . g_s). With a = |x_t||x_s| and b =
               |g_t||g_s|, the inner products are off by at most growth(k) a + k TINY and growth(p) b + p
               TINY, and a row of T of their products is added up in float32, so that each is off by at most
               2 growth(k + p + T) a b + 2 TINY (p a + k b + 1). Over all t, s, a b adds up to (sum of
               |x_t||g_t|)², a to (sum of |x_t|)² <= T times the sum of |x_t|², and b likewise. The lengths
               are the diagonals, enlarged (`widening`). Rounding the scaled x_t or g_t in `add` makes the
               norm larger by at most u times the sum of |x_t||g_t|. A bias is one more number in each x_t,
               which is 1. Products with an x_t or g_t of zeros are zero, and adding them rounds nothing: all
               of this is about the positions in `own`, and T is their number.
    """
    xs, gs = x_gram.numpy(), g_gram.numpy()
    if bias:
        xs += 1
        k += 1
    is_own = own.numpy()
    steps = is_own.sum(1)
    x_squares = np.where(is_own, widening(k)(xs.diagonal(axis1=1, axis2=2)), 0)
    g_squares = np.where(is_own, widening(p)(gs.diagonal(axis1=1, axis2=2)), 0)
    parts = np.sqrt(x_squares * g_squares).sum(1)
    underflow = p * x_squares.sum(1) + k * g_squares.sum(1) + steps
    total = np.vecdot(xs, gs).sum(1, dtype=np.float64)
    error = _growths(k + p + steps)
    total += 2 * error * np.square(parts) + (2 * TINY * steps) * underflow
    return torch.from_numpy(np.square(np.sqrt(np.maximum(total, 0)) + (4 * UNIT) * parts))


def gram(rows: Tensor) -> Tensor:
    """Return all inner products of the rows of each example: [B, T, d] to [B, T, T]."""
    return torch.bmm(rows, rows.transpose(1, 2))


def not_zero(g: Tensor, dim: int) -> Tensor:
    """Return at which positions of each example some number of g is not zero (NaN is not).

    The largest and the smallest number tell it in a tenth of the time of a comparison of all (measured).
    """
    if not g.shape[dim]:
        return (g != 0).any(dim)
    return (g.amax(dim) != 0) | (g.amin(dim) != 0)


def single(tensor: Tensor) -> Tensor:
    """Return the values in single precision (float32) if they are in half precision, whose squares underflow:
    a norm that underflows leaves a gradient unclipped. Single and double precision stay as they are.
    """
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()
