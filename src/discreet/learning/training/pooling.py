"""Pools several rows into one contribution: the gradients of a person's rows, or of one example's
augmentations, are added up before they are clipped.

An owner, a person or an augmented example, has the weighted sum of its rows' gradients. This sum need not be
built: the rows of one owner become positions of one example, and taps (`taps`) know how to bound the norm of
a sum over positions, by ghost norms as well.

Restores a model's buffers, so that what its code stores in them about some examples does not reach
others.

Copies models: training and release work on a copy, never on the user's own module.
"""

from __future__ import annotations

import copy
import itertools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..._errors import Unsupported
from ..clipping.engine import ClippingEngine, Gradients
from ..clipping.taps import Lookup, Outer, ProductTap, Rows, Tap, Tied, without_bias


@dataclass(frozen=True)
class Owners:
    """Says to which owner each row of a batch belongs; rows of one owner stand together."""

    # [rows]: the number of each row's owner, from 0, in ascending order.
    of: Tensor
    # The number of owners.
    count: int
    # [rows]: the weight of each row in its owner's gradient.
    share: Tensor
    # At least `max_rows`, and the same whoever else is in the batch: it decides how norms are bounded, which
    # must not depend on other owners (`taps.ProductTap`).
    nominal_rows: int

    @property
    def max_rows(self) -> int:
        """Return the most rows that one owner has."""
        return int(torch.bincount(self.of, minlength=1).max())

    def positions(self) -> Tensor:
        """Return [rows]: the cell of each row in a table [`count`, `max_rows`], flattened."""
        # The number of the first row of each row's owner.
        first = torch.searchsorted(self.of, self.of)
        return self.of * self.max_rows + torch.arange(len(self.of), device=self.of.device) - first


def owned(counts: Tensor, *, mean: bool, copies: int = 1) -> Owners:
    """Return the owners of a batch, from the number of rows that each has (`counts`, [owners]).

    Each row stands in the batch `copies` times, once for each augmentation; these are averaged. The rows of
    an owner are averaged with `mean`, and added up without. All counts must be of one `size_class`.

    >>> owned(torch.tensor([1, 3]), mean=True).share
    tensor([1.0000, 0.3333, 0.3333, 0.3333])
    """
    # The weight of a row, by owner.
    row_share = (
        1.0 / (counts * copies) if mean else torch.full((len(counts),), 1.0 / copies, device=counts.device)
    ).to(torch.float32)
    of = torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts * copies)
    largest = int(counts.max()) if len(counts) else 1
    return Owners(of, len(counts), row_share[of], copies * ((1 << size_class(largest)) - 1))


def size_class(rows: int) -> int:
    """Return the class of an owner with so many rows: 1 for one row, 2 for two or three, 3 for four to seven.

    Only owners of one class are pooled together, so that little is padded, and `nominal_rows` is the largest
    number of rows of the class.
    """
    return rows.bit_length()


def pooled(engine: ClippingEngine, gradients: Gradients, owners: Owners) -> Gradients:
    """Return the gradients of owners, from those of rows.

    Guarantee: owner o's gradient is the sum of share times gradient over the rows of o, and `squares` bounds
               its squared norm from above.
    Proof:     every tap is linear in g, the gradient of its layer's output. Scaling g by the share and
               putting the rows of one owner side by side (as positions of a product or a lookup, or added
               up) gives the tap of the weighted sum; its `square` has the guarantee of its class.
    """
    pooling = _Pooling(owners)
    taps = [part for tap in gradients.taps for part in pooling(tap)]
    return Gradients(taps, squares_of(engine, taps, owners.count), gradients.losses)


def squares_of(engine: ClippingEngine, taps: list[Tap], batch: int) -> Tensor:
    """Return [batch, layers]: upper bounds on the squared norm of each layer's gradient, as the rules of
    `norms` take them."""
    out = torch.zeros(batch, max(engine.layers.values()) + 1, dtype=torch.float64, device=engine.device)
    for tap in taps:
        out[:, engine.layers[id(tap.target.parameter)]] += tap.square()
    return out


class _Pooling:
    """Turns a tap over rows into taps over their owners; x, g and T are those of `taps`."""

    def __init__(self, owners: Owners) -> None:
        self.owners, self.max_rows = owners, owners.max_rows
        # Whether all owners have equally many rows, so that nothing is padded.
        self.full = len(owners.of) == owners.count * self.max_rows
        self.positions = None if self.full else owners.positions()

    def __call__(self, tap: Tap) -> list[Tap]:
        if isinstance(tap, Outer):
            g = self._weighted(tap.g)
            products: list[Tap] = [
                ProductTap(
                    tap.target,
                    self._side_by_side(tap.x.unsqueeze(1)),
                    self._side_by_side(g.unsqueeze(1)),
                    positions=self.owners.nominal_rows,
                )
            ]
            return products if tap.bias is None else [*products, Rows(tap.bias, self._summed(g))]
        if isinstance(tap, ProductTap):
            return [self._product(tap)]
        if isinstance(tap, Lookup):
            return [self._lookup(tap)]
        if isinstance(tap, Tied):
            return [Tied(self._lookup(tap.lookup), self._product(tap.product))]
        return [Rows(tap.target, self._summed(self._weighted(tap.built())))]

    def _product(self, tap: ProductTap) -> ProductTap:
        positions = self.owners.nominal_rows * (tap.x.shape[1] if tap.positions is None else tap.positions)
        x, g = self._side_by_side(tap.x), self._side_by_side(self._weighted(tap.g))
        return ProductTap(tap.target, x, g, tap.bias, positions)

    def _lookup(self, tap: Lookup) -> Lookup:
        positions = self.owners.nominal_rows * (tap.ids.shape[1] if tap.positions is None else tap.positions)
        ids, g = self._side_by_side(tap.ids), self._side_by_side(self._weighted(tap.g))
        return Lookup(tap.target, ids, g, positions)

    def _weighted(self, g: Tensor) -> Tensor:
        """Return g with each row multiplied by its share."""
        return g * self.owners.share.to(g.dtype).view((-1,) + (1,) * (g.dim() - 1))

    def _summed(self, rows: Tensor) -> Tensor:
        """Return [owners, ...]: the sums of each owner's rows."""
        out = rows.new_zeros((self.owners.count, *rows.shape[1:]))
        return out.index_add_(0, self.owners.of, rows)

    def _side_by_side(self, rows: Tensor) -> Tensor:
        """Return [rows, T, ...] as [owners, max_rows * T, ...]; zeros fill up owners of fewer rows."""
        if not self.full:
            padded = rows.new_zeros((self.owners.count * self.max_rows, *rows.shape[1:]))
            padded[self.positions] = rows
            rows = padded
        return rows.reshape(self.owners.count, self.max_rows * rows.shape[1], *rows.shape[2:])


def built(engine: ClippingEngine, gradients: Gradients, buffer: Tensor | None = None) -> Tensor:
    """Return [B, parameters]: the gradients themselves, which exact noise rounds one by one; in `buffer`, if
    that has B rows or more.

    A weight without a tap has gradient zero.
    """
    offsets, size = {}, 0
    for p in engine.parameters.values():
        offsets[id(p)] = size
        size += p.numel()
    batch = len(gradients.squares)
    if buffer is not None and len(buffer) >= batch:
        out = buffer[:batch].zero_()
    else:
        out = torch.zeros(batch, size, dtype=engine.dtype, device=engine.device)
    parts = [part for tap in gradients.taps for part in without_bias(tap)]
    for tap in parts:
        p, rows = tap.target.parameter, tap.target.rows
        start = offsets[id(p)] + (0 if rows is None else rows[0] * p[0].numel())
        # Added, and not written: several taps may belong to one parameter, and its gradient is their sum.
        if isinstance(tap, Outer):
            block = out[:, start : start + tap.g.shape[1] * tap.x.shape[1]].unflatten(1, (tap.g.shape[1], -1))  # type: ignore[no-untyped-call]
            block.addcmul_(tap.g.unsqueeze(2), tap.x.unsqueeze(1))
        else:
            flat = tap.built().reshape(batch, -1)
            out[:, start : start + flat.shape[1]] += flat
    return out


class KeptBuffers:
    """Holds copies of a model's buffers as they are now. `restore` puts these values back into the same
    tensors, and removes buffers that were registered later."""

    def __init__(self, model: nn.Module) -> None:
        self._kept = [
            (
                module,
                dict(module._buffers),
                [(b, b.detach().clone()) for b in module._buffers.values() if b is not None],
            )
            for module in model.modules()
        ]

    @torch.no_grad()
    def restore(self) -> None:
        for module, buffers, values in self._kept:
            if not buffers and not module._buffers:
                continue
            module._buffers.clear()
            module._buffers.update(buffers)
            for buffer, value in values:
                buffer.copy_(value)


def copied(model: nn.Module) -> nn.Module:
    """Return a deep copy of a model, with weights of its own.

    `copy.deepcopy` refuses a tensor with an autograd history (a weight that the old
    `torch.nn.utils.weight_norm` computes in a hook, an output that the model's code stored). Such an
    attribute of a module is copied by its values, without the history.
    """
    return _copied(model, {})


def check_copyable(model: nn.Module) -> None:
    """Raise Unsupported for a model that cannot be copied; weights and buffers are not copied for this."""
    tensors = itertools.chain(model.parameters(), model.buffers())
    _copied(model, {id(tensor): tensor for tensor in tensors})


def _copied(model: nn.Module, memo: dict[int, Any]) -> nn.Module:
    """Return a deep copy. For an object whose id is in `memo`, the copy has the memo's object instead."""
    for module in model.modules():
        for value in vars(module).values():
            if isinstance(value, Tensor) and not value.is_leaf:
                memo[id(value)] = value.detach().clone()
    try:
        return copy.deepcopy(model, memo)
    # The error's text may be shown: the model is copied before any data is read.
    except Exception as error:
        raise Unsupported(
            f"the model cannot be copied, and a copy is what is trained: {type(error).__name__}: {error}. "
            "Leave out of it what copy.deepcopy(model) does not take (an open file, a lock, a tensor with a "
            "history inside a list)."
        ) from error
