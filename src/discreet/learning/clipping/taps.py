"""Taps keep those tensors of a layer, from one forward and backward pass, that per-example norms and the
clipped sum need.

A layer's per-example gradient is a contraction of the layer's input with the gradient of its output. A tap
keeps the two, bounds the norm of each example's gradient, without building it where that is cheaper (the
"ghost norm"), and later adds the weighted sum of all gradients to a buffer in one contraction: the
book-keeping of Bu, Wang, Zha & Karypis 2023 (arXiv:2210.00038).

Every `square` is an upper bound, in float64, on the squared norm of the vector that `add` scales:
clipping rests on it; the proofs are with the bounds below. The order of calls is `square`, then `zero_out` or
`release_inputs` where needed, then `add`.

In comments and shapes, B is the number of examples, T that of positions of an example, k and p the widths of
the layer's input and output, x its input and g the gradient of its output; d is the width of an embedding.

Bounds norms of gradients from above, from sums that float32 rounded.

No bound is ever below the true norm: clipping by a norm that is too small would break the sensitivity. With
u = 2**-24, the unit roundoff of float32, a float32 sum of n products is off by at most n u / (1 - n u) times
the sum of their absolute values, in whatever order it is added up (Higham 2002, section 3.1), plus the error
of underflow; the bounds add both. Where products of both signs cancel, the sum of their absolute values is
bounded by the Cauchy-Schwarz inequality from the norms of the vectors.

Merges taps of the same weight. A tap holds what the per-example gradients of one use of a weight are
computed from. A weight that is used twice has one gradient, the sum of both, whose norm does not
follow from the norms of its summands.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
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


def on_host(tensor: Tensor) -> bool:
    """Return whether numpy can read the tensor's memory. Bounds on the CPU are computed in numpy, those on an
    accelerator in torch, by the same formulas."""
    return tensor.device.type == "cpu"


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


def _growths(counts: Any, where: Any) -> Any:
    """Return `growth` of each number of products in an array, or a tensor; `where` is that of its library."""
    nu = (counts + 8) * UNIT
    return where(nu < _LARGEST_ROUNDING, nu / (1 - nu), np.inf)


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
        in_numpy = rows.dim() == 2 and on_host(rows)
        return _squares_in_numpy(rows) if in_numpy else lengths(rows).double().square_()
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

    def __call__(self, sums: Any) -> Any:
        """Return sums * factor + offset, at least the true sums of squares (`growth`): of an array of numpy,
        or of a tensor in float64."""
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
    if bias:
        x_gram += 1
        k += 1
    x_diagonal, g_diagonal = x_gram.diagonal(dim1=1, dim2=2), g_gram.diagonal(dim1=1, dim2=2)
    arrays: Any
    where: Any
    if on_host(x_gram):
        total: Any = np.vecdot(x_gram.numpy(), g_gram.numpy()).sum(1, dtype=np.float64)
        arrays, where = (own.numpy(), x_diagonal.numpy(), g_diagonal.numpy()), np.where
    else:
        total = torch.linalg.vecdot(x_gram, g_gram).sum(1, dtype=torch.float64)
        arrays, where = (own, x_diagonal.double(), g_diagonal.double()), torch.where
    is_own, x_squares, g_squares = arrays
    own_positions = is_own.sum(1)
    x_squares = where(is_own, widening(k)(x_squares), 0)
    g_squares = where(is_own, widening(p)(g_squares), 0)
    # The sum of |x_t||g_t| over an example's positions.
    norm_products = ((x_squares * g_squares) ** 0.5).sum(1)
    underflow = p * x_squares.sum(1) + k * g_squares.sum(1) + own_positions
    error = _growths(k + p + own_positions, where)
    total += 2 * error * norm_products**2 + (2 * TINY * own_positions) * underflow
    bound = (total.clip(min=0) ** 0.5 + (4 * UNIT) * norm_products) ** 2
    return bound if isinstance(bound, Tensor) else torch.from_numpy(bound)


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


# The measured cost of an entry of a built gradient, in multiplications: it is written once and read twice.
ENTRY_COST = 16
# The cost of a pair of positions beside that of its two inner products. No measurement is on record.
PAIR_COST = 100
# The most entries of one example's gradient that is built: 64 megabytes in float32. The limit is per example,
# as the number of examples is private; large models run four examples together (`engine.FEWEST`).
MAX_ENTRIES = 1 << 24
# Entries that are still in a core's own cache when they have been built (measured).
CACHED_ENTRIES = 1 << 18
# Tokens of a text are compared in pairs up to this length, and sorted beyond, as the cost of pairs grows with
# the square of the length. A choice; no measurement is on record.
MAX_PAIRED_TOKENS = 128
# Pairs of positions that are compared at a time, unless one example has more: 64 megabytes.
PAIRS_AT_ONCE = 1 << 24

# Names what a tap's sum belongs to: a parameter's id, and the first of its rows and the row after the last.
Key = tuple[int, tuple[int, int]]


@dataclass(frozen=True)
class Target:
    """Says where a tap's sum goes: to a parameter, or to its rows from rows[0] to rows[1] - 1."""

    parameter: torch.nn.Parameter
    rows: tuple[int, int] | None = None

    @property
    def key(self) -> Key:
        return id(self.parameter), self.span

    @property
    def span(self) -> tuple[int, int]:
        """Return the first row and the row after the last; a parameter without dimensions has one row."""
        if self.rows is not None:
            return self.rows
        return 0, self.parameter.shape[0] if self.parameter.dim() else 1

    def of(self, sums: dict[int, Tensor]) -> Tensor:
        """Return this target's part of the buffers `sums`, which are stored by the parameter's id."""
        out = sums[id(self.parameter)]
        return out if self.rows is None else out[self.rows[0] : self.rows[1]]


def worth_building(positions: int, k: int, p: int) -> bool:
    """Return whether gradients [B, p, k] are built: if that is cheaper than the ghost norm, which needs inner
    products of all pairs of T `positions`, and they exceed neither MAX_ENTRIES nor the x and g they replace.

    Larger ones would be fresh memory at every step, which costs more than it saves (measured, a vision
    transformer). The answer must not depend on the other examples of the batch: the two bounds on the norm
    differ by up to one per cent, and one example more would change the clipping factors of all others.
    """
    is_cheaper = positions * positions * (k + p + PAIR_COST) > ENTRY_COST * k * p
    return is_cheaper and k * p <= min(positions * (k + p), MAX_ENTRIES)


class Tap(ABC):
    """Holds the gradient of one target for every example of the batch: the base class of all taps."""

    target: Target
    # The bias of the same layer, where this tap covers it too: its gradient is g summed over positions.
    bias: Target | None = None

    @abstractmethod
    def square(self) -> Tensor:
        """Return [B] in float64: an upper bound on the squared norm of each example's gradient."""

    @abstractmethod
    def built(self) -> Tensor:
        """Return the per-example gradients themselves, [B, ...], without the bias: for weights that taps of
        different classes share."""

    @abstractmethod
    def add(self, weights: Tensor, sums: dict[int, Tensor]) -> None:
        """Add the sum over i of weights[i] times gradient i to the target's buffer."""

    @abstractmethod
    def zero_out(self, keep: Tensor) -> None:
        """Set all that `add` reads of examples with a false `keep` to zero: weight zero times NaN is NaN."""

    def release_inputs(self) -> None:  # noqa: B027 - most taps hold none
        """Free tensors that `add` does not need, after `square` was called."""


def flat_rows(rows: Tensor) -> Tensor:
    """Return gradients [B, ...] as [B, entries]; a parameter without dimensions has one entry."""
    return rows.flatten(1) if rows.dim() > 1 else rows.unsqueeze(1)


def _zeroed(tensor: Tensor, keep: Tensor) -> Tensor:
    return torch.where(keep.view((-1,) + (1,) * (tensor.dim() - 1)), tensor, tensor.new_zeros(()))


@dataclass
class Rows(Tap):
    """Holds per-example gradients that are built already, [B, ...]: of biases, of scales, of modules that ran
    example by example."""

    target: Target
    rows: Tensor

    def square(self) -> Tensor:
        return squares(flat_rows(self.rows))

    def built(self) -> Tensor:
        return self.rows

    def add(self, weights: Tensor, sums: dict[int, Tensor]) -> None:
        out = self.target.of(sums)
        out.view(-1).addmv_(flat_rows(self.rows).T, weights)

    def zero_out(self, keep: Tensor) -> None:
        self.rows = _zeroed(self.rows, keep)


@dataclass
class Outer(Tap):
    """Taps y = W x at one position of each example: the gradient is the outer product of g and x, and its
    norm the product of theirs."""

    target: Target
    x: Tensor  # [B, k]
    g: Tensor  # [B, p]
    bias: Target | None = None

    def square(self) -> Tensor:
        """Return `outer_bound` of the squared norms of x and g."""
        return outer_bound(squares(self.x), squares(self.g), self.bias is not None)

    def built(self) -> Tensor:
        return torch.einsum("bp,bk->bpk", self.g, self.x)

    def add(self, weights: Tensor, sums: dict[int, Tensor]) -> None:
        out = self.target.of(sums).view(self.g.shape[1], -1)
        if self.x.shape[1] < self.g.shape[1]:
            out.addmm_(self.g.T, self.x * weights.unsqueeze(1))
        else:
            out.addmm_((self.g * weights.unsqueeze(1)).T, self.x)
        if self.bias is not None:
            self.bias.of(sums).addmv_(self.g.T, weights)

    def zero_out(self, keep: Tensor) -> None:
        self.x, self.g = _zeroed(self.x, keep), _zeroed(self.g, keep)


@dataclass
class Pieces(Tap):
    """Holds the gradients of y_t = W x_t, built a few examples at a time, with their norms computed while
    they are in the cache. Small allocations also fragment memory less."""

    target: Target
    grads: list[Tensor] = field(default_factory=list)  # [a few, p k] each
    # Per piece: where BLOCK divides p k, norms of blocks of BLOCK entries as computed, [a few, p k / BLOCK],
    # which `square` enlarges; otherwise bounds on squared norms, [a few], which `square` returns.
    norms: list[Tensor] = field(default_factory=list)

    def take(self, x: Tensor, g: Tensor) -> Pieces:
        """Add the next examples, x [B, T, k] and g [B, T, p], and return itself."""
        size = x.shape[2] * g.shape[2]
        examples = max(1, CACHED_ENTRIES * torch.get_num_threads() // size)
        for some_g, some_x in zip(
            torch.split(g.transpose(1, 2), examples), torch.split(x, examples), strict=True
        ):
            built = torch.bmm(some_g, some_x).flatten(1)
            self.grads.append(built)
            blocks = built if size % BLOCK else built.view(len(built), -1, BLOCK)
            self.norms.append(squares(blocks) if size % BLOCK else torch.linalg.vector_norm(blocks, dim=-1))
        return self

    def square(self) -> Tensor:
        norms = torch.cat(self.norms)
        return norms if norms.dim() == 1 else _enlarged(norms, BLOCK).double().square_().sum(1)

    def built(self) -> Tensor:
        return torch.cat(self.grads)

    def add(self, weights: Tensor, sums: dict[int, Tensor]) -> None:
        out = self.target.of(sums).view(-1)
        for piece, some in zip(self.grads, torch.split(weights, [len(g) for g in self.grads]), strict=True):
            out.addmv_(piece.T, some)

    def zero_out(self, keep: Tensor) -> None:
        kept = torch.split(keep, [len(piece) for piece in self.grads])
        self.grads = [_zeroed(piece, some) for piece, some in zip(self.grads, kept, strict=True)]


@dataclass
class ProductTap(Tap):
    """Taps y_t = W x_t + b at T positions of each example: gradients are sums over t, of g_t x_tᵀ and of
    g_t.

    T may depend on the other examples of the batch: examples with fewer positions than the longest are
    padded, with a g of zeros. How the norm is bounded is chosen by `positions`, which must not depend on
    others; None says that T does not.
    """

    target: Target
    x: Tensor  # [B, T, k]
    g: Tensor  # [B, T, p]
    bias: Target | None = None
    positions: int | None = None
    pieces: Pieces | None = field(default=None, init=False)
    bias_gradients: Tensor | None = field(default=None, init=False)  # [B, p], where `pieces` are built

    def square(self) -> Tensor:
        bounds = self._square()
        if bool(bounds.isfinite().all()):
            return bounds
        # An x that is not finite does not count where g is zero: such a position may be padding, whose length
        # depends on the longest of the other examples.
        keep = self._has_gradient(self.x, self.g).unsqueeze(2)
        self.x, self.g = torch.where(keep, self.x, 0), torch.where(keep, self.g, 0)
        return self._square()

    def _has_gradient(self, x: Tensor, g: Tensor) -> Tensor:
        """Return [B, T]: at which positions there is a gradient. Padding is zero in g_t, or in x_t for layers
        with a transposed weight, where the two change places (such a tap has no bias)."""
        return not_zero(g, 2) if self.bias is not None else not_zero(g, 2) & not_zero(x, 2)

    def _square(self) -> Tensor:
        x, g = self.x, self.g
        positions = x.shape[1] if self.positions is None else self.positions
        if not worth_building(positions, x.shape[2], g.shape[2]):
            return self._ghost()
        self.pieces = Pieces(self.target).take(x, g)
        if self.bias is None:
            return self.pieces.square()
        self.bias_gradients = g.sum(1)
        return self.pieces.square().add_(squares(self.bias_gradients))

    def _ghost(self) -> Tensor:
        """Return `ghost_bound` of all examples, a few at a time where they have very many positions."""
        examples = max(1, PAIRS_AT_ONCE // max(1, self.x.shape[1]) ** 2)
        k, p, bias = self.x.shape[2], self.g.shape[2], self.bias is not None
        bounds = [
            ghost_bound(gram(x), gram(g), self._has_gradient(x, g), k, p, bias=bias)
            for x, g in zip(torch.split(self.x, examples), torch.split(self.g, examples), strict=True)
        ]
        return bounds[0] if len(bounds) == 1 else torch.cat(bounds)

    def built(self) -> Tensor:
        return torch.bmm(self.g.transpose(1, 2), self.x)

    def add(self, weights: Tensor, sums: dict[int, Tensor]) -> None:
        if self.pieces is not None:
            self.pieces.add(weights, sums)
            if self.bias is not None and self.bias_gradients is not None:
                self.bias.of(sums).addmv_(self.bias_gradients.T, weights)
            return
        out = self.target.of(sums).view(self.g.shape[2], -1)
        x, g, by_example = self.x, self.g, weights.view(-1, 1, 1)
        x, g = (x * by_example, g) if x.shape[2] < g.shape[2] else (x, g * by_example)
        if self.bias is not None:
            # Where g was multiplied by the weights above, each position counts once.
            scales = weights.view(-1, 1).expand(g.shape[:2]) if g is self.g else weights.new_ones(g.shape[:2])
            self._add_positions(self.bias.of(sums), g, scales)
        if g.stride(0) < g.stride(1):
            # In memory positions come first, then examples: contracted in that order, nothing is copied.
            x, g = x.transpose(0, 1), g.transpose(0, 1)
        out.addmm_(g.reshape(-1, g.shape[2]).T, x.reshape(-1, x.shape[2]))

    @staticmethod
    def _add_positions(out: Tensor, g: Tensor, weights: Tensor) -> None:
        """Add the sum over examples b and positions t of weights[b, t] g[b, t]."""
        if g.stride(0) < g.stride(1):
            g, weights = g.transpose(0, 1), weights.transpose(0, 1)
        out.addmv_(g.reshape(-1, g.shape[2]).T, weights.reshape(-1))

    def zero_out(self, keep: Tensor) -> None:
        if self.pieces is not None:
            self.pieces.zero_out(keep)
            self.bias_gradients = None if self.bias_gradients is None else _zeroed(self.bias_gradients, keep)
            self.release_inputs()
        else:
            self.x, self.g = _zeroed(self.x, keep), _zeroed(self.g, keep)

    def release_inputs(self) -> None:
        if self.pieces is not None:
            self.x = self.g = self.x.new_empty(0)


def product(
    target: Target, x: Tensor, g: Tensor, bias: Target | None = None, *, positions: int | None = None
) -> Tap:
    """Return the tap of y = W x + b, x [B, ..., k] and g [B, ..., p]; for `positions` see `ProductTap`."""
    # With more dimensions it is a `ProductTap` even if T is 1 here: in another batch T may be larger.
    if g.dim() == 2:
        return Outer(target, x, g, bias)
    return ProductTap(target, x.flatten(1, -2), g.flatten(1, -2), bias, positions)


def summed_over_positions(target: Target, g: Tensor) -> Rows:
    """Return the tap of a bias: g [B, ..., p] summed over positions."""
    return Rows(target, g if g.dim() == 2 else g.flatten(1, -2).sum(1))


@dataclass
class Lookup(Tap):
    """Taps rows of a table (an embedding): the gradient of row v is the sum of g_t over the positions t that
    look up v. For `positions` see `ProductTap`."""

    target: Target
    ids: Tensor  # [B, T]
    g: Tensor  # [B, T, d]
    positions: int | None = None

    def square(self) -> Tensor:
        positions = self.ids.shape[1] if self.positions is None else self.positions
        return self._pairs() if positions <= MAX_PAIRED_TOKENS else self._sorted()

    def _pairs(self) -> Tensor:
        """Return the sum of g_t . g_s over pairs of positions that look up the same row, enlarged for
        rounding."""
        examples = max(1, PAIRS_AT_ONCE // max(1, self.ids.shape[1]) ** 2)
        totals = []
        for ids, g in zip(torch.split(self.ids, examples), torch.split(self.g, examples), strict=True):
            products = gram(g).masked_fill_(ids.unsqueeze(2) != ids.unsqueeze(1), 0)
            totals.append(products.sum((1, 2), dtype=torch.float64))
        return self._widened(torch.cat(totals))

    def _sorted(self) -> Tensor:
        """Return such a bound as `_pairs`; the gradients of one row are added up first, in float64."""
        batch, _, d = self.g.shape
        size = self.target.parameter.shape[0]
        first_id = size * torch.arange(batch, device=self.ids.device).unsqueeze(1)
        unique, group = torch.unique(self.ids + first_id, return_inverse=True)
        sums = self.g.new_zeros(len(unique), d, dtype=torch.float64).index_add_(
            0, group.flatten(), self.g.reshape(-1, d).double()
        )
        # A row that only padding looks up counts for nothing: `squares` of zeros is slightly above 0.
        row_squares = squares(sums).mul_(not_zero(sums, 1))
        totals = row_squares.new_zeros(batch).index_add_(0, unique // size, row_squares)
        return self._widened(totals)

    def _widened(self, total: Tensor) -> Tensor:
        """Return an upper bound on the true squared norm from `total`, the computed one:
        (sqrt(total + 2 growth(d) N² + 2 d TINY n²) + 4 UNIT N)², where N is the sum of |g_t| over the n
        positions t with a g_t that is not zero; the number of others may depend on other examples.

        The terms allow for rounding and underflow in `_pairs`, and for the rounding of scaled g_t in `add`
        (`growth`, `TINY` and `UNIT`: see the bounds).
        """
        d, has_gradient = self.g.shape[2], not_zero(self.g, 2)
        norms = squares(self.g).sqrt_().mul_(has_gradient).sum(1)
        total = total.add_(norms.square(), alpha=2 * growth(d))
        total = total.add_(has_gradient.sum(1).square(), alpha=2 * d * TINY)
        return total.clamp_(min=0).sqrt_().add_(norms, alpha=4 * UNIT).square_()

    def built(self) -> Tensor:
        batch, _, d = self.g.shape
        rows = self.g.new_zeros(batch, self.target.parameter.shape[0], d)
        return rows.scatter_add_(1, self.ids.unsqueeze(2).expand_as(self.g), self.g)

    def add(self, weights: Tensor, sums: dict[int, Tensor]) -> None:
        scaled = (self.g * weights.view(-1, 1, 1)).reshape(-1, self.g.shape[2])
        self.target.of(sums).index_add_(0, self.ids.reshape(-1), scaled)

    def zero_out(self, keep: Tensor) -> None:
        self.g = _zeroed(self.g, keep)


@dataclass
class Tied(Tap):
    """Taps a table that is also a matrix: the embedding of a language model that is its output layer too."""

    lookup: Lookup
    product: ProductTap

    def __post_init__(self) -> None:
        self.target = self.lookup.target

    def square(self) -> Tensor:
        """Return |a + b|² = |a|² + |b|² + 2 a.b, enlarged for rounding; a is the gradient of the lookup and
        b of the product. a.b sums (g_t . x_s) h_s[id_t] over t < T and s < S, where h is the product's g."""
        lookup_square, product_square = self.lookup.square(), self.product.square()
        ids, g, x, h = self.lookup.ids, self.lookup.g, self.product.x, self.product.g
        chosen = h.gather(2, ids.unsqueeze(1).expand(-1, h.shape[1], -1))  # [B, S, T]
        inner_products = torch.bmm(x, g.transpose(1, 2)).mul_(chosen).sum((1, 2), dtype=torch.float64)
        g_nonzero, h_nonzero = not_zero(g, 2), not_zero(h, 2)
        h_norms = squares(h).sqrt_().mul_(h_nonzero)
        norms = squares(g).sqrt_().mul_(g_nonzero).sum(1) * squares(x).sqrt_().mul_(h_norms).sum(1)
        # An inner product of d numbers may lose d TINY by underflow, times |h_s|; its product with h_s[id_t]
        # one TINY more. Where one of the two gradients is zero nothing is lost.
        lost = 4 * TINY * g_nonzero.sum(1) * (g.shape[2] * h_norms.sum(1) + h_nonzero.sum(1))
        return (
            lookup_square + product_square + 2 * inner_products + 4 * growth(g.shape[2]) * norms + lost
        ).clamp_(min=0)

    def built(self) -> Tensor:
        return self.lookup.built() + self.product.built()

    def add(self, weights: Tensor, sums: dict[int, Tensor]) -> None:
        self.lookup.add(weights, sums)
        self.product.add(weights, sums)

    def zero_out(self, keep: Tensor) -> None:
        self.lookup.zero_out(keep)
        self.product.zero_out(keep)


def entries(tap: Tap) -> int:
    """Return about how many numbers a tap keeps in memory: the engine limits its batches by it.

    An expanded view counts as the storage behind it. Built gradients (`Pieces`) count half, since the x and g
    that are counted beside them are freed by `release_inputs`.
    """
    if isinstance(tap, Pieces):
        return sum(piece.numel() for piece in tap.grads) // 2
    tensors = [v for v in vars(tap).values() if isinstance(v, Tensor)]
    own_entries = sum(min(t.numel(), t.untyped_storage().nbytes() // t.element_size()) for t in tensors)
    return own_entries + sum(entries(v) for v in vars(tap).values() if isinstance(v, Tap))


def without_bias(tap: Tap) -> list[Tap]:
    """Return the tap of a layer's weight and that of its bias, or the tap itself where it covers no bias."""
    if not isinstance(tap, Outer | ProductTap) or tap.bias is None:
        return [tap]
    weight = (
        Outer(tap.target, tap.x, tap.g)
        if isinstance(tap, Outer)
        else ProductTap(tap.target, tap.x, tap.g, positions=tap.positions)
    )
    return [weight, summed_over_positions(tap.bias, tap.g)]


def merged(taps: list[Tap]) -> list[Tap]:
    """Return taps with the same sums of gradients, such that no two of them share an entry of a parameter.

    A tap's target is a parameter, or a range of its rows.

    Guarantee: for each example, the squared norms of the taps' gradients add up to the squared norm of the
               whole gradient.
    Proof:     taps of equal targets are merged into one. Targets of one parameter that overlap without being
               equal (attention projects queries, keys and values together in one call, each by itself in
               another) are split at every row where one of them begins or ends, before taps are merged. Then
               any two targets are equal or have no entry in common, so that the gradients of different taps
               are orthogonal.
    """
    targets = [target for tap in taps for target in (tap.target, tap.bias) if target is not None]
    if not _overlap(targets):
        return taps
    # The rows where a target begins or ends, by the parameter's id.
    boundaries: dict[int, set[int]] = {}
    for target in targets:
        boundaries.setdefault(id(target.parameter), set()).update(target.span)
    taps = [
        piece
        for tap in taps
        for part in without_bias(tap)
        for piece in _split_rows(part, boundaries[id(part.target.parameter)])
    ]
    by_target: dict[Key, list[Tap]] = {}
    for tap in taps:
        by_target.setdefault(tap.target.key, []).append(tap)
    return [group[0] if len(group) == 1 else _merge_group(group) for group in by_target.values()]


def _overlap(targets: list[Target]) -> bool:
    """Return whether two of the targets have an entry in common."""
    spans: dict[int, list[tuple[int, int]]] = {}
    for target in targets:
        spans.setdefault(id(target.parameter), []).append(target.span)
    shared = (sorted(ranges) for ranges in spans.values() if len(ranges) > 1)
    return any(a[1] > b[0] for ranges in shared for a, b in itertools.pairwise(ranges))


def _split_rows(tap: Tap, boundaries: set[int]) -> list[Tap]:
    """Return a tap as several, split at those rows in `boundaries` that are inside its target."""
    begin, end = tap.target.span
    edges = [begin, *sorted(row for row in boundaries if begin < row < end), end]
    if len(edges) == 2:
        return [tap]
    # `rows` counts within the tap, from 0; `targets` have rows of the parameter.
    rows = [slice(a - begin, b - begin) for a, b in itertools.pairwise(edges)]
    targets = [Target(tap.target.parameter, pair) for pair in itertools.pairwise(edges)]
    if isinstance(tap, Outer):
        return [Outer(target, tap.x, tap.g[:, part]) for target, part in zip(targets, rows, strict=True)]
    if isinstance(tap, ProductTap):
        return [
            ProductTap(target, tap.x, tap.g[:, :, part], positions=tap.positions)
            for target, part in zip(targets, rows, strict=True)
        ]
    built = tap.built()
    built = built.reshape(len(built), *tap.target.parameter[begin:end].shape)
    return [Rows(target, built[:, part]) for target, part in zip(targets, rows, strict=True)]


def _merge_group(group: list[Tap]) -> Tap:
    """Return one tap for several taps of the same target.

    Products and lookups are merged by concatenating their positions; a product and a lookup (an embedding
    that is also the output layer) become a `Tied`. With any other kind of tap, gradients are built and added.
    """
    target = group[0].target
    products = [_as_product(tap) for tap in group if isinstance(tap, Outer | ProductTap)]
    lookups = [tap for tap in group if isinstance(tap, Lookup)]
    if len(products) + len(lookups) < len(group):
        return Rows(target, torch.stack([flat_rows(tap.built()) for tap in group]).sum(0))
    matrix = _concatenated(target, products) if products else None
    table = (
        Lookup(
            target,
            torch.cat([tap.ids for tap in lookups], 1),
            torch.cat([tap.g for tap in lookups], 1),
            sum(tap.ids.shape[1] if tap.positions is None else tap.positions for tap in lookups),
        )
        if lookups
        else None
    )
    if matrix is not None and table is not None:
        return Tied(table, matrix)
    return matrix if matrix is not None else table  # type: ignore[return-value]


def _concatenated(target: Target, products: list[ProductTap]) -> ProductTap:
    """Return one product over the positions of all these products."""
    positions = sum(tap.x.shape[1] if tap.positions is None else tap.positions for tap in products)
    x, g = torch.cat([tap.x for tap in products], 1), torch.cat([tap.g for tap in products], 1)
    return ProductTap(target, x, g, positions=positions)


def _as_product(tap: Outer | ProductTap) -> ProductTap:
    """Return an `Outer`, which has no dimension for positions, as a product with one position."""
    return (
        tap if isinstance(tap, ProductTap) else ProductTap(tap.target, tap.x.unsqueeze(1), tap.g.unsqueeze(1))
    )
