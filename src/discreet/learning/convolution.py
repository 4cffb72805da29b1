"""Convolutions: a product at every place of the output, of the weight with the patch that the place saw.

Patches are many times larger than what they are cut from. Where gradients are built, patches are cut a few
examples at a time into one small buffer that stays in the caches, and forgotten; a ghost norm needs none of
them (`patch_gram`). The clipped sum is one ordinary weight gradient.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .batching import NotBatchFirst
from .bounds import ghost_bound, not_zero, single, squares
from .layers import Recorder, targets
from .taps import PAIR_COST, Rows, Tap, Target, _zeroed

# The size of the buffer for patches, in float32 numbers: a megabyte.
_BUFFER = 1 << 18
# As `taps.ENTRY_COST`; patches must be cut either way, so that building costs less, until the result is so
# large that the C library gives its memory back each time and every page is fresh (measured).
ENTRY_COST, FRESH_COST = 16, 96
# Of a number of a patch that is copied, and of a pair of positions that is added for a place of the kernel:
# 0.85 ns by a profile of resnet18 on one thread, and 0.5 by estimate, where a multiplication takes 0.026.
# With them its layers of 64 channels are built, those of 128 and more are not; measure anew where that errs.
PATCH_COST, SHIFT_COST = 32, 20
# Entries: 32 megabytes.
FRESH_FROM = 1 << 23
# Entries of built gradients for one weight: a quarter of a gigabyte.
MAX_ENTRIES = 1 << 26
# A weight of so many entries whose examples have fewer patches than it has rows (512 x 512 x 3 x 3 over 2 x 2
# places, say): torch's weight gradient would cost more by its fresh memory than by what is computed. Patches
# are multiplied right into the sum, in a quarter of the time (measured).
LARGE_WEIGHT = 1 << 20


def convolution(layer: Any, recorder: Recorder, input: Tensor) -> Tensor:
    if input.dim() != layer.weight.dim():
        raise NotBatchFirst(f"{type(layer).__name__} was given a tensor without a batch dimension.")
    recorder.first(layer, input)
    out: Tensor = layer._conv_forward(input, layer.weight, layer.bias)
    weight, bias = targets(layer, "weight", "bias")
    x, examples, shape = input.detach(), recorder.expected, recorder.shapes.get(id(input))
    sizes = None if shape is None else shape[1:]

    def taps(g: Tensor) -> list[Tap]:
        g = single(g)
        biases: list[Tap] = [] if bias is None else [Rows(bias, g.flatten(2).sum(2))]
        return (
            biases
            if weight is None
            else [Convolved(weight, layer, single(x), g.contiguous(), examples, sizes), *biases]
        )

    recorder.note((out,), taps)
    return out


@dataclass
class Convolved(Tap):
    """Taps a convolution's weight; `pieces` is [B, groups, k, p] where it was cheaper to build."""

    target: Target
    layer: Any
    x: Tensor  # [B, channels, ...]
    g: Tensor  # [B, channels, ...]
    # About how many examples are run together: a public number, which decides whether gradients are built. B
    # must not: the two bounds on a norm differ, and one example more would change the factors of all others.
    examples: int = 1
    # The sizes of an input behind its channels when layouts were decided: public, while those of x may go by
    # the longest example. None stands for these.
    sizes: tuple[int, ...] | None = None
    pieces: Tensor | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        groups, weight = self.layer.groups, self.layer.weight
        self.positions = self.g[0, 0].numel()
        self.pixels = math.prod(padded_sizes(self.layer, self.x.shape[2:]))
        self.k, self.p = weight[0].numel(), weight.shape[0] // groups

    def square(self) -> Tensor:
        if self.layer.groups == 1 and not self._build_is_cheaper():
            return self._ghost()
        self._build()
        assert self.pieces is not None
        return squares(self.pieces.flatten(1))

    def _build_is_cheaper(self) -> bool:
        """Return whether to cut patches and build [B, k, p] gradients, or to compare positions in pairs; by
        what each costs beyond the weight's own gradient, in multiplications per example."""
        entries, layer = self.k * self.p, self.layer
        sizes = padded_sizes(layer, self.x.shape[2:] if self.sizes is None else self.sizes)
        dims = zip(sizes, layer.kernel_size, layer.stride, layer.dilation, strict=True)
        pixels = math.prod(sizes)
        positions = math.prod(
            (n - dilation * (size - 1) - 1) // stride + 1 for n, size, stride, dilation in dims
        )
        if self.examples * entries > MAX_ENTRIES:
            return bool(self.examples * entries < pixels**2)
        cost = ENTRY_COST if self.examples * entries <= FRESH_FROM else FRESH_COST
        kernel, channels = math.prod(self.layer.kernel_size), self.x.shape[1]
        pairs = positions**2 * (self.p + SHIFT_COST * kernel + PAIR_COST)
        built = PATCH_COST * positions * self.k + cost * entries
        return bool(pixels**2 * channels + pairs > built)

    def _build(self) -> None:
        if self.pieces is None:
            batch, groups = len(self.g), self.layer.groups
            self.pieces = self.g.new_empty(batch, groups, self.k, self.p)
            for part, x, g in self._chunks():
                torch.bmm(x, g.transpose(1, 2), out=self.pieces[part].view(-1, self.k, self.p))

    def _chunks(self) -> Any:
        """Yield a few examples at a time: their slice of the batch, patches [n, k, T], and g as [n, p, T]."""
        batch, groups = len(self.g), self.layer.groups
        step = max(1, _BUFFER // (groups * self.k * self.positions))
        buffer: Tensor | None = None
        for start in range(0, batch, step):
            part = slice(start, min(start + step, batch))
            n = part.stop - part.start
            # Padded a few examples at a time: a copy of all inputs would be as large as they are.
            patches = cut_patches(self.layer, padded(self.layer, self.x[part]))
            if buffer is None:
                buffer = self.g.new_empty((min(step, batch), *patches.shape[1:]))
            held = buffer[:n].copy_(patches)
            yield (
                part,
                held.view(n * groups, self.k, self.positions),
                self.g[part].view(n * groups, self.p, self.positions),
            )

    def _ghost(self) -> Tensor:
        """Return `ghost_bound` of the patches' inner products with each other, and of the gradients'."""
        step = max(1, _BUFFER // self.pixels**2)
        bounds = []
        for x, g in zip(torch.split(self.x, step), torch.split(self.g, step), strict=True):
            columns = g.flatten(2)
            g_gram = torch.bmm(columns.transpose(1, 2), columns)
            own = not_zero(columns, 1)
            bounds.append(ghost_bound(patch_gram(self.layer, x), g_gram, own, self.k, self.p))
        return torch.cat(bounds)

    def built(self) -> Tensor:
        self._build()
        assert self.pieces is not None
        return self.pieces.transpose(2, 3).reshape(len(self.pieces), *self.layer.weight.shape)

    def add(self, weights: Tensor, sums: dict[int, Tensor]) -> None:
        out = self.target.of(sums)
        if self.pieces is not None:
            total = torch.mv(self.pieces.flatten(1).T, weights).view(self.layer.groups, self.k, self.p)
            out.view(self.layer.groups, self.p, self.k).add_(total.transpose(1, 2))
            return
        scaled = self.g * weights.view((-1,) + (1,) * (self.g.dim() - 1))
        if self.k * self.p >= LARGE_WEIGHT and len(self.g) * self.positions <= self.p:
            out.view(self.p, self.k).addmm_(_positions_first(scaled, self.p).T, self._patches())
            return
        layer, n = self.layer, self.g.dim() - 2
        by_torch = layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
        out.add_(
            torch.ops.aten.convolution_backward(
                scaled,
                self.x if by_torch else padded(layer, self.x),
                layer.weight,
                None,
                layer.stride,
                list(layer.padding) if by_torch else [0] * n,
                layer.dilation,
                False,
                [0] * n,
                layer.groups,
                [False, True, False],
            )[1]
        )

    def _patches(self) -> Tensor:
        """Return the patches of all examples, [B T, k]."""
        patches, n = cut_patches(self.layer, padded(self.layer, self.x)), self.x.dim() - 2
        return patches.permute(0, *range(2 + n, 2 + 2 * n), *range(1, 2 + n)).reshape(-1, self.k)

    def release_inputs(self) -> None:
        if self.pieces is not None:
            self.x = self.g = self.x.new_empty(0)

    def zero_out(self, keep: Tensor) -> None:
        if self.pieces is not None:
            self.pieces = _zeroed(self.pieces, keep)
            self.release_inputs()
        else:
            self.g, self.x = _zeroed(self.g, keep), _zeroed(self.x, keep)


def _positions_first(g: Tensor, p: int) -> Tensor:
    """Return [B T, p], of [B, p, ...]."""
    return g.flatten(2).transpose(1, 2).reshape(-1, p)


def patch_gram(layer: Any, x: Tensor) -> Tensor:
    """Return all inner products of the patches of each example, [B, T, T], without cutting a patch.

    The inner product of two patches is the sum over the places of the kernel of that of two pixels. So pixels
    are multiplied with each other once, and these products added up along the kernel: for a kernel of 3 x 3 a
    ninth of the multiplications.
    """
    pixels = padded(layer, x)
    sizes, columns = pixels.shape[2:], pixels.flatten(2)
    products = torch.bmm(columns.transpose(1, 2), columns).view(len(x), *sizes, *sizes)
    dims = list(zip(sizes, layer.kernel_size, layer.stride, layer.dilation, strict=True))
    total: Tensor | None = None
    for offsets in itertools.product(*(range(kernel) for _, kernel, _, _ in dims)):
        window = [
            slice(dilation * offset, size - dilation * (kernel - 1 - offset), stride)
            for offset, (size, kernel, stride, dilation) in zip(offsets, dims, strict=True)
        ]
        part = products[(slice(None), *window, *window)]
        total = part.clone() if total is None else total.add_(part)
    assert total is not None
    positions = math.isqrt(total[0].numel())
    return total.reshape(len(x), positions, positions)


def padded_sizes(layer: Any, sizes: Sequence[int]) -> list[int]:
    """Return the sizes of the input with its padding."""
    pads = layer._reversed_padding_repeated_twice
    return [size + pads[-2 * dim - 2] + pads[-2 * dim - 1] for dim, size in enumerate(sizes)]


def padded(layer: Any, x: Tensor) -> Tensor:
    """Return the input with its padding, so that none is left to do."""
    if layer.padding_mode != "zeros" or isinstance(layer.padding, str):
        mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
        return F.pad(x, layer._reversed_padding_repeated_twice, mode=mode)
    if any(layer.padding):
        return F.pad(x, [n for pad in reversed(layer.padding) for n in (pad, pad)])
    return x


def cut_patches(layer: Any, x: Tensor) -> Tensor:
    """Return a view of the patches that each place of the output saw: [B, channels, *kernel, *positions]."""
    n = len(layer.kernel_size)
    for dim, (size, stride, dilation) in enumerate(
        zip(layer.kernel_size, layer.stride, layer.dilation, strict=True)
    ):
        x = x.unfold(dim + 2, dilation * (size - 1) + 1, stride)[..., ::dilation]
    return x.permute(0, 1, *range(2 + n, 2 + 2 * n), *range(2, 2 + n))
