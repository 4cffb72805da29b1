"""Taps: what a layer leaves behind in one backward pass, enough for per-example norms and for the clipped
sum.

A layer's per-example gradient is a contraction of what went in with the gradient of what came out. A tap
keeps the two, says how long each example's gradient is, without building it where that is cheaper (the "ghost
norm"), and later adds the weighted sum of all of them to a buffer in one contraction: the book-keeping of Bu,
Wang, Zha & Karypis 2023 (arXiv:2210.00038).

Lengths never err on the short side. Every `square` is an upper bound, in float64, on the squared norm of the
vector that `add` scales. A float32 sum of n products is off by at most n u / (1 - n u) times the sum of their
sizes, in whatever order it is taken (Higham 2002, section 3.1), plus what underflow takes; the bounds add
that. Where terms of both signs cancel, the sum of their sizes is bounded by the triangle inequality from the
lengths of the parts.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

UNIT = 2.0**-24  # relative rounding error of float32
TINY = 2.0**-126  # what underflow can take from one product, also where subnormal numbers are flushed to zero
# A built gradient is written once and read twice: as dear as this many multiplications an entry (measured).
ENTRY_COST = 16
# and each pair of positions, beside its two inner products: they are multiplied and added up in float64
PAIR_COST = 100
ENTRIES_AT_MOST = 1 << 26  # no more than a quarter of a gigabyte of built gradients for one weight
# long vectors are added up in float32 by so many, and the blocks in float64: the bound stays tight
BLOCK = 256
HOT = 1 << 18  # entries that are still in a core's own cache when they have been built (measured)
FEW = 1 << 19  # entries whose squares one thread adds up in a tenth of a millisecond
PAIRS_UP_TO = 128  # tokens of a text are compared in pairs up to this length, and sorted beyond

Numbers = TypeVar("Numbers", Tensor, npt.NDArray[np.float64])
Key = tuple[int, tuple[int, int]]


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
    """By what rounding may have hidden in the norms of n numbers; in place."""
    return padded.mul_(1 + growth(n)).add_(math.sqrt(n * TINY))


def squares(rows: Tensor) -> Tensor:
    """Return the same bound squared, in float64: squares of small lengths underflow in float32."""
    n = rows.shape[-1]
    if n < 4 * BLOCK:
        return _few(rows) if rows.dim() == 2 and rows.numel() <= FEW else lengths(rows).double().square_()
    whole = n - n % BLOCK
    sums: Tensor = squares(rows[..., :whole].reshape(*rows.shape[:-1], -1, BLOCK)).sum(-1)
    return sums.add_(squares(rows[..., whole:])) if whole < n else sums


@np.errstate(all="ignore")  # a warning would tell of the data
def _few(rows: Tensor) -> Tensor:
    """Return the same for a matrix that is soon read: by inner products in numpy, whose calls cost a third of
    torch's."""
    array = rows.detach().numpy()
    return torch.from_numpy(widening(rows.shape[1])(np.vecdot(array, array)))


class Widening(NamedTuple):
    """Turns sums of squares that were taken in float32 into upper bounds in float64; of one length, or an
    array of lengths."""

    factor: Any
    more: Any

    def __call__(self, sums: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Return at least the true sums of squares: s factor + more.

        With e = growth(n) the truth is at most s / (1 - e).
        """
        bounds = sums * np.float64(self.factor)
        bounds += self.more
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


@np.errstate(all="ignore")  # a warning would tell of the data
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
    lost = p * x_squares.sum(1) + k * g_squares.sum(1) + steps
    total = np.vecdot(xs, gs).sum(1, dtype=np.float64)
    total += (2 * growth(k + p + steps)) * np.square(parts) + (2 * TINY * steps) * lost
    return torch.from_numpy(np.square(np.sqrt(np.maximum(total, 0)) + (4 * UNIT) * parts))


def gram(rows: Tensor) -> Tensor:
    """Return all inner products of the rows of each example: [B, T, d] to [B, T, T]."""
    return torch.bmm(rows, rows.transpose(1, 2))


def single(tensor: Tensor) -> Tensor:
    """Half precision is lifted: its squares underflow, and a norm that underflows leaves a gradient
    unclipped."""
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()


@dataclass(frozen=True)
class Target:
    """Where a tap's sum goes: a parameter, or some rows of one."""

    parameter: torch.nn.Parameter
    rows: tuple[int, int] | None = None

    @property
    def key(self) -> Key:
        return id(self.parameter), self.span

    @property
    def span(self) -> tuple[int, int]:
        """The rows, also where they are all of them; a parameter without dimensions has one."""
        if self.rows is not None:
            return self.rows
        return 0, self.parameter.shape[0] if self.parameter.dim() else 1

    def of(self, sums: dict[int, Tensor]) -> Tensor:
        out = sums[id(self.parameter)]
        return out if self.rows is None else out[self.rows[0] : self.rows[1]]


def build_is_cheaper(batch: int, positions: int, k: int, p: int, cost: int = ENTRY_COST) -> bool:
    """Return whether to build [B, p, k] gradients, which need no further contraction, or to compare T
    positions with each other."""
    return batch * k * p <= ENTRIES_AT_MOST and positions * positions * (k + p + PAIR_COST) > cost * k * p


def worth_building(batch: int, positions: int, k: int, p: int) -> bool:
    """Return the same, and what is built is no larger than what it is built from, and can take its place.

    More would be fresh memory at every step, which costs more than it saves (measured, a vision transformer).
    """
    return k * p <= positions * (k + p) and build_is_cheaper(batch, positions, k, p)


class Tap:
    """Base: the gradient of one target, for every example of the batch."""

    target: Target
    # of a layer whose bias has the gradient that comes in, and is looked after by the same tap
    bias: Target | None = None

    def square(self) -> Tensor:
        """[B], float64: at least the squared norm of each example's gradient."""
        raise NotImplementedError

    def built(self) -> Tensor:
        """The per-example gradients themselves, [B, ...]: for weights that several unlike taps share."""
        raise NotImplementedError

    def add(self, weights: Tensor, sums: dict[int, Tensor]) -> None:
        """Add the sum over i of weights[i] times gradient i to the target's buffer."""
        raise NotImplementedError

    def zero_out(self, keep: Tensor) -> None:
        """Zero all that belongs to examples that are not kept: zero times NaN would be NaN."""
        raise NotImplementedError

    def release_inputs(self) -> None:
        """Let go of what `add` does not need, once `square` is known."""


def _flat(rows: Tensor) -> Tensor:
    """Return [B, numbers]; a parameter without dimensions has one."""
    return rows.flatten(1) if rows.dim() > 1 else rows.unsqueeze(1)


def _zeroed(tensor: Tensor, keep: Tensor) -> Tensor:
    return torch.where(keep.view((-1,) + (1,) * (tensor.dim() - 1)), tensor, tensor.new_zeros(()))


@dataclass
class Rows(Tap):
    """Per-example gradients that are there already, [B, ...]: of biases, of scales, of modules that ran
    example by example."""

    target: Target
    rows: Tensor

    def square(self) -> Tensor:
        return squares(_flat(self.rows))

    def built(self) -> Tensor:
        return self.rows

    def add(self, weights: Tensor, sums: dict[int, Tensor]) -> None:
        out = self.target.of(sums)
        out.view(-1).addmv_(_flat(self.rows).T, weights)

    def zero_out(self, keep: Tensor) -> None:
        self.rows = _zeroed(self.rows, keep)


@dataclass
class Outer(Tap):
    """y = W x at one place of each example: the gradient is an outer product, as long as its two sides
    multiplied."""

    target: Target
    x: Tensor  # [B, k]
    g: Tensor  # [B, p]
    bias: Target | None = None
    known: npt.NDArray[np.float64] | None = None  # what `square` returns, where it was computed already

    def square(self) -> Tensor:
        """Return `outer_bound` of the two sides."""
        if self.known is not None:
            return torch.from_numpy(self.known)
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
    """The gradients of y_t = W x_t, built a few examples at a time and measured while they are in the cache.

    Small pieces of memory also leave no gaps.
    """

    target: Target
    rows: list[Tensor] = field(default_factory=list)  # [a few, p k] each
    norms: list[Tensor] = field(default_factory=list)  # of their blocks

    def take(self, x: Tensor, g: Tensor) -> Pieces:
        """Return the next examples: x [B, T, k] and g [B, T, p]."""
        size = x.shape[2] * g.shape[2]
        every = max(1, HOT * torch.get_num_threads() // size)
        for some_g, some_x in zip(torch.split(g.transpose(1, 2), every), torch.split(x, every), strict=True):
            rows = torch.bmm(some_g, some_x).flatten(1)
            self.rows.append(rows)
            whole = rows if size % BLOCK else rows.view(len(rows), -1, BLOCK)
            self.norms.append(squares(whole) if size % BLOCK else torch.linalg.vector_norm(whole, dim=-1))
        return self

    def square(self) -> Tensor:
        squared_norms = torch.cat(self.norms)
        return (
            squared_norms
            if squared_norms.dim() == 1
            else _lengthened(squared_norms, BLOCK).double().square_().sum(1)
        )

    def built(self) -> Tensor:
        return torch.cat(self.rows)

    def add(self, weights: Tensor, sums: dict[int, Tensor]) -> None:
        out = self.target.of(sums).view(-1)
        for rows, some in zip(self.rows, torch.split(weights, [len(r) for r in self.rows]), strict=True):
            out.addmv_(rows.T, some)

    def zero_out(self, keep: Tensor) -> None:
        kept = torch.split(keep, [len(r) for r in self.rows])
        self.rows = [_zeroed(rows, some) for rows, some in zip(self.rows, kept, strict=True)]


@dataclass
class Product(Tap):
    """y_t = W x_t + b at T positions of each example: gradients are sums over t, of g_t x_tᵀ and of g_t."""

    target: Target
    x: Tensor  # [B, T, k]
    g: Tensor  # [B, T, p]
    bias: Target | None = None
    pieces: Pieces | None = field(default=None, init=False)
    bias_rows: Tensor | None = field(default=None, init=False)  # [B, p], where `pieces` are built

    def square(self) -> Tensor:
        x, g = self.x, self.g
        if not worth_building(len(x), x.shape[1], x.shape[2], g.shape[2]):
            return ghost_bound(gram(x), gram(g), x.shape[2], g.shape[2], bias=self.bias is not None)
        self.pieces = Pieces(self.target).take(x, g)
        if self.bias is None:
            return self.pieces.square()
        self.bias_rows = g.sum(1)
        return self.pieces.square().add_(squares(self.bias_rows))

    def built(self) -> Tensor:
        return torch.bmm(self.g.transpose(1, 2), self.x)

    def add(self, weights: Tensor, sums: dict[int, Tensor]) -> None:
        if self.pieces is not None:
            self.pieces.add(weights, sums)
            if self.bias is not None and self.bias_rows is not None:
                self.bias.of(sums).addmv_(self.bias_rows.T, weights)
            return
        out = self.target.of(sums).view(self.g.shape[2], -1)
        x, g, by = self.x, self.g, weights.view(-1, 1, 1)
        x, g = (x * by, g) if x.shape[2] < g.shape[2] else (x, g * by)
        if self.bias is not None:
            each = weights.view(-1, 1).expand(g.shape[:2]) if g is self.g else weights.new_ones(g.shape[:2])
            self._add_rows(self.bias.of(sums), g, each)
        if g.stride(0) < g.stride(1):
            # In memory it lies step by step: added up in that order, it need not be copied.
            x, g = x.transpose(0, 1), g.transpose(0, 1)
        out.addmm_(g.reshape(-1, g.shape[2]).T, x.reshape(-1, x.shape[2]))

    @staticmethod
    def _add_rows(out: Tensor, g: Tensor, each: Tensor) -> None:
        """Add the sum over examples and positions of each[b, t] g[b, t]."""
        if g.stride(0) < g.stride(1):
            g, each = g.transpose(0, 1), each.transpose(0, 1)
        out.addmv_(g.reshape(-1, g.shape[2]).T, each.reshape(-1))

    def zero_out(self, keep: Tensor) -> None:
        if self.pieces is not None:
            self.pieces.zero_out(keep)
            self.bias_rows = None if self.bias_rows is None else _zeroed(self.bias_rows, keep)
            self.release_inputs()
        else:
            self.x, self.g = _zeroed(self.x, keep), _zeroed(self.g, keep)

    def release_inputs(self) -> None:
        if self.pieces is not None:
            self.x = self.g = self.x.new_empty(0)


def product(target: Target, x: Tensor, g: Tensor, bias: Target | None = None) -> Tap:
    """Return the tap of y = W x + b, with x [B, ..., k] and g [B, ..., p]."""
    if g.dim() == 2 or g[0, ..., 0].numel() == 1:
        return Outer(target, x.reshape(x.shape[0], -1), g.reshape(g.shape[0], -1), bias)
    return Product(target, x.flatten(1, -2), g.flatten(1, -2), bias)


def over_places(target: Target, g: Tensor) -> Rows:
    """Return the tap of a bias: g [B, ..., p] summed over positions."""
    return Rows(target, g if g.dim() == 2 else g.flatten(1, -2).sum(1))


@dataclass
class Lookup(Tap):
    """Rows of a table: the gradient of row v is the sum of g_t over the positions t that asked for v."""

    target: Target
    ids: Tensor  # [B, T]
    g: Tensor  # [B, T, d]

    def square(self) -> Tensor:
        if self.ids.shape[1] == 1:
            return squares(self.g[:, 0])
        return self._pairs() if self.ids.shape[1] <= PAIRS_UP_TO else self._sorted()

    def _pairs(self) -> Tensor:
        """Return the sum of g_t . g_s over positions that asked for the same row, and what rounding may have
        hidden."""
        gram = torch.bmm(self.g, self.g.transpose(1, 2))
        gram.masked_fill_(self.ids.unsqueeze(2) != self.ids.unsqueeze(1), 0)
        return self._widened(gram.sum((1, 2), dtype=torch.float64))

    def _sorted(self) -> Tensor:
        """Sums of equal rows first, in float64, then their squares."""
        batch, _, d = self.g.shape
        size = self.target.parameter.shape[0]
        unique, place = torch.unique(self.ids + size * torch.arange(batch).unsqueeze(1), return_inverse=True)
        sums = torch.zeros(len(unique), d, dtype=torch.float64).index_add_(
            0, place.flatten(), self.g.reshape(-1, d).double()
        )
        return self._widened(
            torch.zeros(batch, dtype=torch.float64).index_add_(0, unique // size, squares(sums))
        )

    def _widened(self, total: Tensor) -> Tensor:
        _, places, d = self.g.shape
        parts = squares(self.g).sqrt_().sum(1)
        total = total.add_(parts.square(), alpha=2 * growth(d)).add_(2 * d * places**2 * TINY)
        return total.clamp_(min=0).sqrt_().add_(parts, alpha=4 * UNIT).square_()

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
    """A table that is also a matrix: the embedding of a language model that is its output layer too."""

    lookup: Lookup
    product: Product

    def __post_init__(self) -> None:
        self.target = self.lookup.target

    def square(self) -> Tensor:
        """|a + b|² = |a|² + |b|² + 2 a.b, with a.b the sum over t, s of (g_t . x_s) h_s[id_t]; rounding
        widens it."""
        ids, g, x, h = self.lookup.ids, self.lookup.g, self.product.x, self.product.g
        one, two = self.lookup.square(), self.product.square()
        chosen = h.gather(2, ids.unsqueeze(1).expand(-1, h.shape[1], -1))  # [B, S, T]
        meet = torch.bmm(x, g.transpose(1, 2)).mul_(chosen).sum((1, 2), dtype=torch.float64)
        across = squares(h).sqrt_()
        lengths = squares(g).sqrt_().sum(1) * squares(x).sqrt_().mul_(across).sum(1)
        # An inner product of d numbers may lose d TINY, times |h_s|; its product with h_s[id_t] one more.
        lost = 4 * TINY * ids.shape[1] * (g.shape[2] * across.sum(1) + h.shape[1])
        return (one + two + 2 * meet + 4 * growth(g.shape[2]) * lengths + lost).clamp_(min=0)

    def built(self) -> Tensor:
        return self.lookup.built() + self.product.built()

    def add(self, weights: Tensor, sums: dict[int, Tensor]) -> None:
        self.lookup.add(weights, sums)
        self.product.add(weights, sums)

    def zero_out(self, keep: Tensor) -> None:
        self.lookup.zero_out(keep)
        self.product.zero_out(keep)


def entries(tap: Tap) -> int:
    """Return how many numbers a tap holds; of views, no more than what they view.

    What was built is counted as what it was built from, at half.
    """
    if isinstance(tap, Pieces):
        return sum(rows.numel() for rows in tap.rows) // 2
    tensors = [v for v in vars(tap).values() if isinstance(v, Tensor)]
    own = sum(min(t.numel(), t.untyped_storage().nbytes() // t.element_size()) for t in tensors)
    return own + sum(entries(v) for v in vars(tap).values() if isinstance(v, Tap))


def merged(taps: list[Tap]) -> list[Tap]:
    """Return taps of which no two are of the same number of a parameter, with the same sums.

    Guarantee: squares of the taps add up to the square of all of them together.
    Proof:     a weight used twice has one gradient, the sum of both: its length is not that of the parts, so
               taps of one target become one. Targets of one parameter that overlap without being equal
               (attention projects queries, keys and values together, or each by itself) are cut where any of
               them begins or ends; then targets are equal or have no number in common, and are orthogonal.
    """
    targets = [target for tap in taps for target in (tap.target, tap.bias) if target is not None]
    if not _overlap(targets):
        return taps
    bounds: dict[int, set[int]] = {}
    for target in targets:
        bounds.setdefault(id(target.parameter), set()).update(target.span)
    taps = [
        piece
        for tap in taps
        for part in without_bias(tap)
        for piece in _cut(part, bounds[id(part.target.parameter)])
    ]
    by_target: dict[Key, list[Tap]] = {}
    for tap in taps:
        by_target.setdefault(tap.target.key, []).append(tap)
    return [group[0] if len(group) == 1 else _one(group) for group in by_target.values()]


def _overlap(targets: list[Target]) -> bool:
    """Return whether two of the targets have a number in common."""
    spans: dict[int, list[tuple[int, int]]] = {}
    for target in targets:
        spans.setdefault(id(target.parameter), []).append(target.span)
    shared = (sorted(ranges) for ranges in spans.values() if len(ranges) > 1)
    return any(a[1] > b[0] for ranges in shared for a, b in itertools.pairwise(ranges))


def _cut(tap: Tap, bounds: set[int]) -> list[Tap]:
    """Return the same tap in pieces, cut at those rows of its parameter that are within it."""
    begin, end = tap.target.span
    edges = [begin, *sorted(row for row in bounds if begin < row < end), end]
    if len(edges) == 2:
        return [tap]
    rows = [slice(a - begin, b - begin) for a, b in itertools.pairwise(edges)]
    targets = [Target(tap.target.parameter, pair) for pair in itertools.pairwise(edges)]
    if isinstance(tap, Outer):
        return [Outer(place, tap.x, tap.g[:, some]) for place, some in zip(targets, rows, strict=True)]
    if isinstance(tap, Product):
        return [Product(place, tap.x, tap.g[:, :, some]) for place, some in zip(targets, rows, strict=True)]
    built = tap.built()
    built = built.reshape(len(built), *tap.target.parameter[begin:end].shape)
    return [Rows(place, built[:, some]) for place, some in zip(targets, rows, strict=True)]


def without_bias(tap: Tap) -> list[Tap]:
    """Return a layer's weight and its bias as taps of their own."""
    if not isinstance(tap, Outer | Product) or tap.bias is None:
        return [tap]
    return [type(tap)(tap.target, tap.x, tap.g), over_places(tap.bias, tap.g)]


def _one(group: list[Tap]) -> Tap:
    target = group[0].target
    products = [_as_product(tap) for tap in group if isinstance(tap, Outer | Product)]
    lookups = [tap for tap in group if isinstance(tap, Lookup)]
    if len(products) + len(lookups) < len(group):
        return Rows(target, torch.stack([_flat(tap.built()) for tap in group]).sum(0))
    matrix = (
        Product(target, torch.cat([t.x for t in products], 1), torch.cat([t.g for t in products], 1))
        if products
        else None
    )
    table = (
        Lookup(target, torch.cat([t.ids for t in lookups], 1), torch.cat([t.g for t in lookups], 1))
        if lookups
        else None
    )
    if matrix is not None and table is not None:
        return Tied(table, matrix)
    return matrix if matrix is not None else table  # type: ignore[return-value]


def _as_product(tap: Outer | Product) -> Product:
    return tap if isinstance(tap, Product) else Product(tap.target, tap.x.unsqueeze(1), tap.g.unsqueeze(1))
