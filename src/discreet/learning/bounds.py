"""Upper bounds on norms of gradients, from sums that float32 rounded.

Lengths never err on the short side. A float32 sum of n products is off by at most n u / (1 - n u) times the
sum of their sizes, in whatever order it is taken (Higham 2002, section 3.1), plus what underflow takes; the
bounds add that. Where terms of both signs cancel, the sum of their sizes is bounded by the triangle
inequality from the lengths of the parts.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

# The relative rounding error of float32.
UNIT = 2.0**-24
# What underflow can take from one product, also where subnormal numbers are flushed to zero.
TINY = 2.0**-126
# Long vectors are added up in float32 by so many, and the blocks in float64: the bound stays tight.
BLOCK = 256
# Entries whose squares one thread adds up in a tenth of a millisecond: up to so many it is the calls that
# count, and numpy's cost a third of torch's.
FEW = 1 << 19
Numbers = TypeVar("Numbers", Tensor, npt.NDArray[np.float64])


def growth(n: int) -> float:
    """Return a bound on the relative error of a float32 sum of n products, with room for the few operations
    around it."""
    nu = (n + 8) * UNIT
    return nu / (1 - nu) if nu < 0.5 else float("inf")


def lengths(rows: Tensor) -> Tensor:
    """Return an upper bound on the norm over the last dimension, in the rows' own type.

    sqrt(s (1 + e)) <= sqrt(s) (1 + e); what underflow takes is at most n TINY of the sum, hence its root of
    the norm.
    """
    return _lengthened(torch.linalg.vector_norm(rows, dim=-1), rows.shape[-1])


def _lengthened(padded: Tensor, n: int) -> Tensor:
    """Enlarge norms of n numbers, in place, by what rounding may have hidden in them."""
    return padded.mul_(1 + growth(n)).add_(math.sqrt(n * TINY))


def squares(rows: Tensor) -> Tensor:
    """Return the same bound squared, in float64: squares of small lengths underflow in float32."""
    n = rows.shape[-1]
    if n < 4 * BLOCK:
        return _few(rows) if rows.dim() == 2 and rows.numel() <= FEW else lengths(rows).double().square_()
    in_blocks = n - n % BLOCK
    sums: Tensor = squares(rows[..., :in_blocks].reshape(*rows.shape[:-1], -1, BLOCK)).sum(-1)
    return sums.add_(squares(rows[..., in_blocks:])) if in_blocks < n else sums


# a warning would leak a fact about the data
@np.errstate(all="ignore")
def _few(rows: Tensor) -> Tensor:
    """Return the same for a matrix with few entries: by inner products in numpy, whose calls cost a third of
    torch's."""
    array = rows.detach().numpy()
    return torch.from_numpy(widening(rows.shape[1])(np.vecdot(array, array)))


class Widening(NamedTuple):
    """Turns sums of squares that were taken in float32 into upper bounds in float64; of one length, or an
    array of lengths."""

    factor: Any
    offset: Any

    def __call__(self, sums: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Return at least the true sums of squares: s factor + offset.

        With e = growth(n) the truth is at most s / (1 - e).
        """
        bounds = sums * np.float64(self.factor)
        bounds += self.offset
        return bounds


@lru_cache(maxsize=4096)
def widening(n: int) -> Widening:
    """Return the bound for sums of n squares."""
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
def ghost_bound(x_gram: Tensor, g_gram: Tensor, k: int, p: int, *, bias: bool = False) -> Tensor:
    """Return at least the squared norm of the sum over t of g_t x_tᵀ, and what `add` may add to it: [B],
    float64; with `bias`, of g_t (x_t, 1)ᵀ, the weight's gradient beside the bias's.

    `x_gram` and `g_gram` are the inner products (x_t . x_s) and (g_t . g_s), [B, T, T], of k and of p numbers
    each, in float32; `x_gram` is overwritten.

    Guarantee: as above, also where products underflow, or are flushed to zero.
    Proof:     the squared norm is the sum over t, s of (x_t . x_s)(g_t . g_s). With a = |x_t||x_s| and b =
               |g_t||g_s|, the inner products are off by at most growth(k) a + k TINY and growth(p) b + p
               TINY, and a row of T of their products is added up in float32, so that each is off by at most
               2 growth(k + p + T) a b + 2 TINY (p a + k b + 1). Over all t, s, a b adds up to (sum of
               |x_t||g_t|)², a to (sum of |x_t|)² <= T times the sum of |x_t|², and b likewise. The lengths
               are the diagonals, widened. Rounding the scaled x_t or g_t in `add` lengthens the vector by at
               most u times the sum of |x_t||g_t|. A bias is one more number in each x_t, which is 1.
    """
    xs, gs = x_gram.numpy(), g_gram.numpy()
    if bias:
        xs += 1
        k += 1
    steps = xs.shape[1]
    x_squares = widening(k)(xs.diagonal(axis1=1, axis2=2))
    g_squares = widening(p)(gs.diagonal(axis1=1, axis2=2))
    parts = np.sqrt(x_squares * g_squares).sum(1)
    underflow = p * x_squares.sum(1) + k * g_squares.sum(1) + steps
    total = np.vecdot(xs, gs).sum(1, dtype=np.float64)
    total += (2 * growth(k + p + steps)) * np.square(parts) + (2 * TINY * steps) * underflow
    return torch.from_numpy(np.square(np.sqrt(np.maximum(total, 0)) + (4 * UNIT) * parts))


def gram(rows: Tensor) -> Tensor:
    """Return all inner products of the rows of each example: [B, T, d] to [B, T, T]."""
    return torch.bmm(rows, rows.transpose(1, 2))


def single(tensor: Tensor) -> Tensor:
    """Return the values in float32 if they are of half precision, whose squares underflow: a norm that
    underflows leaves a gradient unclipped.
    """
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()
