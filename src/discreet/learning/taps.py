"""Taps keep those tensors of a layer, from one forward and backward pass, that per-example norms and the
clipped sum need.

A layer's per-example gradient is a contraction of the layer's input with the gradient of its output. A tap
keeps the two, bounds the norm of each example's gradient, without building it where that is cheaper (the
"ghost norm"), and later adds the weighted sum of all gradients to a buffer in one contraction: the
book-keeping of Bu, Wang, Zha & Karypis 2023 (arXiv:2210.00038).

Every `square` is an upper bound, in float64, on the squared norm of the vector that `add` scales:
clipping rests on it, and module `bounds` proves it. The order of calls is `square`, then `zero_out` or
`release_inputs` where needed, then `add`.

In comments and shapes, B is the number of examples, T that of positions of an example, k and p the widths of
the layer's input and output, x its input and g the gradient of its output; d is the width of an embedding.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from .bounds import BLOCK, TINY, UNIT, _enlarged, ghost_bound, gram, growth, not_zero, outer_bound, squares

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


class Tap:
    """Holds the gradient of one target for every example of the batch: the base class of all taps."""

    target: Target
    # The bias of the same layer, where this tap covers it too: its gradient is g summed over positions.
    bias: Target | None = None

    def square(self) -> Tensor:
        """Return [B] in float64: an upper bound on the squared norm of each example's gradient."""
        raise NotImplementedError

    def built(self) -> Tensor:
        """Return the per-example gradients themselves, [B, ...], without the bias: for weights that taps of
        different classes share."""
        raise NotImplementedError

    def add(self, weights: Tensor, sums: dict[int, Tensor]) -> None:
        """Add the sum over i of weights[i] times gradient i to the target's buffer."""
        raise NotImplementedError

    def zero_out(self, keep: Tensor) -> None:
        """Set all that `add` reads of examples with a false `keep` to zero: weight zero times NaN is NaN."""
        raise NotImplementedError

    def release_inputs(self) -> None:
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
        unique, group = torch.unique(self.ids + size * torch.arange(batch).unsqueeze(1), return_inverse=True)
        sums = torch.zeros(len(unique), d, dtype=torch.float64).index_add_(
            0, group.flatten(), self.g.reshape(-1, d).double()
        )
        # A row that only padding looks up counts for nothing: `squares` of zeros is slightly above 0.
        row_squares = squares(sums).mul_(not_zero(sums, 1))
        totals = torch.zeros(batch, dtype=torch.float64).index_add_(0, unique // size, row_squares)
        return self._widened(totals)

    def _widened(self, total: Tensor) -> Tensor:
        """Return an upper bound on the true squared norm from `total`, the computed one:
        (sqrt(total + 2 growth(d) N² + 2 d TINY n²) + 4 UNIT N)², where N is the sum of |g_t| over the n
        positions t with a g_t that is not zero; the number of others may depend on other examples.

        The terms allow for rounding and underflow in `_pairs`, and for the rounding of scaled g_t in `add`
        (`growth`, `TINY` and `UNIT`: see `bounds`).
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
