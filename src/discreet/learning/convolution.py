"""Convolutions with taps: at every position of the output, the weight is multiplied with a patch of the
input.

In this module B is the batch, T the number of output positions, k the numbers in a patch (input channels of a
group times kernel size), p the output channels of a group, x the layer's input and g the gradient of its
output. "Positions" are those of the output; "pixels" those of the padded input.

A norm is computed in one of two ways. Either the per-example gradients are built from the patches; all
patches together are many times larger than the input, so that those of a few examples at a time are copied to
one small buffer, which stays in the processor's caches. Or the norm is bounded by inner products of all pairs
of positions (`bounds.ghost_bound`), for which no patch is cut (`patch_gram`). The clipped sum is then one
ordinary weight gradient of g scaled by the clipping factors.
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

# The size of the buffer for patches, and for inner products, in float32 numbers: a megabyte. Chosen
# by hand, not tuned.
_BUFFER = 1 << 18

# The costs below are in multiplications, of which one takes 0.026 ns (a profile of resnet18 on one thread).
# They decide between the two ways to compute a norm, for speed only: both are upper bounds.

# The cost of an entry of a built gradient (as `taps.ENTRY_COST`), and its cost where more than FRESH_FROM
# entries are built: then the C library returns the memory to the system each time, and every page is new
# (measured).
ENTRY_COST, FRESH_COST = 16, 96
# 32 megabytes.
FRESH_FROM = 1 << 23
# The cost of copying one number of a patch: 0.85 ns in that profile. The cost of adding one pair of positions
# at one offset of the kernel (`patch_gram`): 0.5 ns, an estimate. With these, resnet18's layers of 64
# channels are built and those of 128 and more are not; measure again if a model is slow.
PATCH_COST, SHIFT_COST = 32, 20
# The most entries of built gradients for one weight, of all examples of the expected batch together: a
# quarter of a gigabyte. (The limit of the same name in `taps` is for one example.)
MAX_ENTRIES = 1 << 26
# Where a weight has this many entries or more, and no fewer rows than the batch has patches (512 x 512 x 3 x
# 3 over 2 x 2 positions, say), torch's weight gradient spends most time on new memory, and multiplying the
# patches right into the sum takes a quarter of the time (measured). The choice may depend on the size of the
# batch, as it changes no bound on a norm.
LARGE_WEIGHT = 1 << 20


def convolution(layer: Any, recorder: Recorder, input: Tensor) -> Tensor:
    """Run a convolution of torch, and leave the taps of its weight and bias in the recorder."""
    if input.dim() != layer.weight.dim():
        raise NotBatchFirst(f"{type(layer).__name__} was given a tensor without a batch dimension.")
    recorder.require_batch_dim(layer, input)
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
    """Taps a convolution's weight; `pieces` holds the per-example gradients, [B, groups, k, p], once they
    are built."""

    target: Target
    layer: Any
    x: Tensor  # [B, channels, ...]
    g: Tensor  # [B, channels, ...]
    # About how many examples are run together, which is public. Whether gradients are built depends on this
    # number and must not depend on B: the two bounds on a norm differ, so that one more example would change
    # the clipping factors of all others.
    examples: int = 1
    # The sizes of an example behind its channels when batch dimensions were decided (`batching`). They are
    # public, while those of x may depend on the longest example. None: use those of x.
    sizes: tuple[int, ...] | None = None
    pieces: Tensor | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        groups, weight = self.layer.groups, self.layer.weight
        self.positions = self.g[0, 0].numel()
        self.pixels = math.prod(padded_sizes(self.layer, self.x.shape[2:]))
        self.k, self.p = weight[0].numel(), weight.shape[0] // groups

    def square(self) -> Tensor:
        # With several groups gradients are always built, as `patch_gram` is for one group.
        if self.layer.groups == 1 and not self._build_is_cheaper():
            return self._ghost()
        self._build()
        assert self.pieces is not None
        return squares(self.pieces.flatten(1))

    def _build_is_cheaper(self) -> bool:
        """Return whether building gradients [B, k, p] from patches is cheaper than inner products of all
        pairs of positions; costs are in multiplications per example, beyond those of the weight's own
        gradient.

        The result must depend on public numbers only: see `examples` and `sizes`.
        """
        entries, layer = self.k * self.p, self.layer
        sizes = padded_sizes(layer, self.x.shape[2:] if self.sizes is None else self.sizes)
        dims = zip(sizes, layer.kernel_size, layer.stride, layer.dilation, strict=True)
        pixels = math.prod(sizes)
        positions = math.prod(
            (size - dilation * (kernel - 1) - 1) // stride + 1 for size, kernel, stride, dilation in dims
        )
        # Both ways take much memory. Take the one that needs less: building holds the gradients of all
        # examples, the other way the inner products of one example's pixels at a time.
        if self.examples * entries > MAX_ENTRIES:
            return bool(self.examples * entries < pixels**2)
        entry_cost = ENTRY_COST if self.examples * entries <= FRESH_FROM else FRESH_COST
        offsets, channels = math.prod(self.layer.kernel_size), self.x.shape[1]
        pairs_cost = positions**2 * (self.p + SHIFT_COST * offsets + PAIR_COST)
        build_cost = PATCH_COST * positions * self.k + entry_cost * entries
        return bool(pixels**2 * channels + pairs_cost > build_cost)

    def _build(self) -> None:
        """Build the per-example gradients, unless they are there."""
        if self.pieces is None:
            batch, groups = len(self.g), self.layer.groups
            self.pieces = self.g.new_empty(batch, groups, self.k, self.p)
            for part, x, g in self._chunks():
                torch.bmm(x, g.transpose(1, 2), out=self.pieces[part].view(-1, self.k, self.p))

    def _chunks(self) -> Any:
        """Yield, for a few examples (n) at a time: their slice of the batch, their patches [n groups, k, T],
        and their g as [n groups, p, T]."""
        batch, groups = len(self.g), self.layer.groups
        step = max(1, _BUFFER // (groups * self.k * self.positions))
        buffer: Tensor | None = None
        for start in range(0, batch, step):
            part = slice(start, min(start + step, batch))
            n = part.stop - part.start
            # Padding copies the input. That of a few examples at a time takes little memory.
            patches = cut_patches(self.layer, padded(self.layer, self.x[part]))
            if buffer is None:
                buffer = self.g.new_empty((min(step, batch), *patches.shape[1:]))
            copied = buffer[:n].copy_(patches)
            yield (
                part,
                copied.view(n * groups, self.k, self.positions),
                self.g[part].view(n * groups, self.p, self.positions),
            )

    def _ghost(self) -> Tensor:
        """Return `ghost_bound` from the inner products of all pairs of patches, and of all pairs of columns
        of g, for a few examples at a time."""
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
        # Gradients were not built, so that there is one group.
        scaled = self.g * weights.view((-1,) + (1,) * (self.g.dim() - 1))
        if self.k * self.p >= LARGE_WEIGHT and len(self.g) * self.positions <= self.p:
            out.view(self.p, self.k).addmm_(_positions_first(scaled, self.p).T, self._patches())
            return
        # n is the number of dimensions behind the channels. Torch's function pads with zeros by itself, as
        # many on both sides; any other padding is added before. Of the gradients by input, weight and bias
        # only that by the weight is computed.
        layer, n = self.layer, self.g.dim() - 2
        torch_pads = layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
        out.add_(
            torch.ops.aten.convolution_backward(
                scaled,
                self.x if torch_pads else padded(layer, self.x),
                layer.weight,
                None,
                layer.stride,
                list(layer.padding) if torch_pads else [0] * n,
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
    """Return [B T, p], from [B, p, ...]."""
    return g.flatten(2).transpose(1, 2).reshape(-1, p)


def patch_gram(layer: Any, x: Tensor) -> Tensor:
    """Return the inner products of all pairs of patches of each example, [B, T, T], without cutting a patch.

    The inner product of two patches is a sum over the kernel's offsets of the inner product of two pixels,
    the pixel of each patch at that offset. So the inner products of all pairs of pixels are computed once,
    and added up over the offsets: for a kernel of 3 x 3 a ninth of the multiplications.
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
    """Return the sizes of an input, behind its channels, with the padding that the layer adds."""
    pads = layer._reversed_padding_repeated_twice
    return [size + pads[-2 * dim - 2] + pads[-2 * dim - 1] for dim, size in enumerate(sizes)]


def padded(layer: Any, x: Tensor) -> Tensor:
    """Return the input with the layer's padding added."""
    if layer.padding_mode != "zeros" or isinstance(layer.padding, str):
        mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
        return F.pad(x, layer._reversed_padding_repeated_twice, mode=mode)
    if any(layer.padding):
        return F.pad(x, [n for pad in reversed(layer.padding) for n in (pad, pad)])
    return x


def cut_patches(layer: Any, x: Tensor) -> Tensor:
    """Return a view of the padded input x with one patch per output position: [B, channels, *kernel,
    *positions]."""
    n = len(layer.kernel_size)
    for dim, (kernel, stride, dilation) in enumerate(
        zip(layer.kernel_size, layer.stride, layer.dilation, strict=True)
    ):
        x = x.unfold(dim + 2, dilation * (kernel - 1) + 1, stride)[..., ::dilation]
    return x.permute(0, 1, *range(2 + n, 2 + 2 * n), *range(2, 2 + n))
