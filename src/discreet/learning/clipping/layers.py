"""Defines rules for known layers: how each runs, and which taps it leaves in the recorder.

Only layers whose exact class is in `routes.TAPPED_LAYERS`, or is the Conv1D of `transformers`, have rules,
and `routes` takes the rule only where it knows all of the layer's options. A rule is a forward pass that
computes the layer's output and notes two things in the `Recorder`: the gradient edge of the output
(`torch.autograd.graph`), and a function `taps`. After the backward pass this function is called with the
gradient g of the output, and returns the layer's taps (module `taps`), from which the norms and the sum of
per-example gradients are computed. B is the number of examples in the batch, x a layer's input. `single`
turns tensors of half precision into float32, in which norms are bounded.

Convolutions with taps: at every position of the output, the weight is multiplied with a patch of the
input.

In this module B is the batch, T the number of output positions, k the numbers in a patch (input channels of a
group times kernel size), p the output channels of a group, x the layer's input and g the gradient of its
output. "Positions" are those of the output; "pixels" those of the padded input.

A norm is computed in one of two ways. Either the per-example gradients are built from the patches; all
patches together are many times larger than the input, so that those of a few examples at a time are copied to
one small buffer, which stays in the processor's caches. Or the norm is bounded by inner products of all pairs
of positions (`taps.ghost_bound`), for which no patch is cut (`patch_gram`). The clipped sum is then one
ordinary weight gradient of g scaled by the clipping factors.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.nn import functional as F

from .batching import CONSTANT, Axis, Call, Layout, NotBatchFirst, ShapeSurvey
from .taps import (
    MAX_PAIRED_TOKENS,
    PAIR_COST,
    Lookup,
    Rows,
    Tap,
    Target,
    _zeroed,
    ghost_bound,
    not_zero,
    product,
    single,
    squares,
    summed_over_positions,
)

# A function from the gradients of a layer's outputs to its taps.
Taps = Callable[..., list[Tap]]


@dataclass
class Recorder:
    """Holds what one forward pass leaves for the backward pass: `edges` of the autograd graph, and `notes`,
    the functions that make taps from the gradients at these edges."""

    # The number of examples in the batch that is run now.
    batch: int = 0
    # About how many examples are run together in training: a public number, unlike `batch`.
    expected: int = 1
    # Whether layers record at all.
    active: bool = False
    # Whether a module is running example by example: its submodules leave no taps then.
    inside: bool = False
    # Which dimensions of each call's tensors are the batch; `survey` is set while that is being decided.
    layouts: dict[Call, Layout] = field(default_factory=dict)
    survey: ShapeSurvey | None = None
    # The decision for the call that is being made.
    layout: Layout | None = None
    # The batch dimension of each tensor of that call, by the tensor's id.
    axes: dict[int, Axis] = field(default_factory=dict)
    # The shape of one example in each tensor when the batch dimensions were decided, by the tensor's id. It
    # is public, unlike the tensor's own shape, which may depend on the longest example.
    shapes: dict[int, tuple[int, ...] | None] = field(default_factory=dict)
    # The model, where all of it runs example by example (`isolate=True`).
    isolated_model: nn.Module | None = None
    # Ids of modules that vmap could not run.
    looped: set[int] = field(default_factory=set)
    # The number of the last call of each module within this forward pass, by the module's name.
    calls: dict[str, int] = field(default_factory=dict)
    edges: list[Any] = field(default_factory=list)
    # For each call: shape, dtype and device of each output, and the function that makes the taps.
    notes: list[tuple[list[tuple[torch.Size, torch.dtype, torch.device]], Taps]] = field(default_factory=list)

    def __deepcopy__(self, memo: Any) -> Recorder:
        # A copy of an attached model starts with nothing recorded.
        return Recorder()

    def next_call(self, name: str) -> Call:
        """Count one more call of a module within this forward pass, and return its key."""
        self.calls[name] = self.calls.get(name, -1) + 1
        return name, self.calls[name]

    def note(self, outputs: tuple[Tensor, ...], taps: Taps) -> None:
        """Note that `taps` is to be called with the gradients of `outputs` after the backward pass."""
        if any(out._is_view() and not out.is_leaf for out in outputs):
            raise NotBatchFirst(
                "a layer returns a view, whose gradient would be lost if the model changes it in place. Let "
                "the layer return a copy: .clone()."
            )
        # Where an output needs no gradient, it depends on no trainable parameter, and there is no tap.
        if all(out.requires_grad for out in outputs):
            self.notes.append(([(out.shape, out.dtype, out.device) for out in outputs], taps))
            # The edges are taken now, as the model may change the outputs in place later.
            self.edges.extend(map(get_gradient_edge, outputs))

    def taps(self, result: Tensor, gradient: Tensor | None = None) -> list[Tap]:
        """Run one backward pass to the noted outputs, and return the taps; no gradient of a weight is
        computed.

        It starts from `result`: the losses, or the model's outputs where the `gradient` of the losses by the
        outputs is given.
        """
        edges, notes = self.edges, self.notes
        self.edges, self.notes = [], []
        if not edges or not result.requires_grad:
            return []
        start = torch.ones_like(result) if gradient is None else gradient
        gradients = iter(torch.autograd.grad(result, edges, start, allow_unused=True))
        collected: list[Tap] = []
        for shapes, taps in notes:
            of_outputs = [next(gradients) for _ in shapes]
            if any(g is not None for g in of_outputs):
                pairs = zip(of_outputs, shapes, strict=True)
                collected += taps(
                    *(
                        torch.zeros(shape, dtype=dtype, device=device) if g is None else g
                        for g, (shape, dtype, device) in pairs
                    )
                )
        return collected

    def positions(self, x: Tensor, width: int) -> int | None:
        """Return how many vectors of `width` numbers one example had in the argument x when the batch
        dimensions were decided; None where that is not known."""
        shape = self.shapes.get(id(x))
        return None if shape is None else math.prod(shape) // width

    def require_batch_dim(self, layer: nn.Module, x: Tensor, dim: int = 0) -> None:
        """Raise NotBatchFirst unless the argument x of a layer's call has the batch in dimension `dim`.

        That this dimension is as long as the batch is not enough, as this may be a coincidence: it must have
        followed the batch at two sizes (`batching`).
        """
        axis = self.axes.get(id(x), dim)
        if axis is CONSTANT:
            raise NotBatchFirst(
                f"{type(layer).__name__} was given a tensor that has no row for each example: it is "
                f"the same at every batch size."
            )
        if axis != dim or x.dim() <= dim or x.shape[dim] != self.batch:
            raise NotBatchFirst(
                f"{type(layer).__name__} was given a tensor whose dimension {dim} is not the batch. "
                f"Keep the batch first "
                f"(batch_first=True), and do not fold other dimensions into it."
            )


def targets(module: nn.Module, *names: str) -> list[Target | None]:
    """Return the module's parameters of these names as targets; None for one that is missing or frozen."""
    parameters = [module._parameters.get(name) for name in names]
    return [Target(p) if p is not None and p.requires_grad else None for p in parameters]


def owned(out: Tensor) -> Tensor:
    """Return the same numbers as a tensor that is no view to autograd.

    For inputs of three dimensions or more, torch's linear layer returns a view of a matrix. If a model
    changes that view in place (`h += residual`), autograd rewrites its history, and the edge that was noted
    before is no longer part of the graph: the gradient would be lost.
    """
    return torch.ops.aten._unsafe_view(out, out.shape) if out._is_view() else out


def linear(layer: nn.Linear, recorder: Recorder, input: Tensor) -> Tensor:
    recorder.require_batch_dim(layer, input)
    out = owned(F.linear(input, layer.weight, layer.bias))
    weight, bias = targets(layer, "weight", "bias")
    x, positions = input.detach(), recorder.positions(input, layer.in_features)
    recorder.note((out,), lambda g: affine(weight, bias, x, g, positions))
    return out


def affine(
    weight: Target | None, bias: Target | None, x: Tensor, g: Tensor, positions: int | None = None
) -> list[Tap]:
    """Return the taps of y = W x + b, where g is the gradient of y; for `positions` see `taps.ProductTap`."""
    g = single(g)
    if weight is None:
        return [] if bias is None else [summed_over_positions(bias, g)]
    return [product(weight, single(x), g, bias, positions=positions)]


def transposed_linear(layer: Any, recorder: Recorder, x: Tensor) -> Tensor:
    """Run y = x W + b, the layer of GPT-2 that `transformers` calls Conv1D. Its weight is the transpose of a
    linear layer's, so that in the tap x and g are exchanged."""
    recorder.require_batch_dim(layer, x)
    out = owned(F.linear(x, layer.weight.t(), layer.bias))
    weight, bias = targets(layer, "weight", "bias")
    detached, positions = x.detach(), recorder.positions(x, layer.weight.shape[0])

    def taps(g: Tensor) -> list[Tap]:
        g = single(g)
        products = [] if weight is None else [product(weight, g, single(detached), positions=positions)]
        return products if bias is None else [*products, summed_over_positions(bias, g)]

    recorder.note((out,), taps)
    return out


def embedding(layer: nn.Embedding, recorder: Recorder, input: Tensor) -> Tensor:
    recorder.require_batch_dim(layer, input)
    out = F.embedding(input, layer.weight, layer.padding_idx)
    target, positions = Target(cast(nn.Parameter, layer.weight)), recorder.positions(input, 1)

    def taps(g: Tensor) -> list[Tap]:
        ids, g = input.reshape(len(input), -1), single(g)
        g = g.reshape(*ids.shape, -1)
        if layer.padding_idx is not None:
            g = g.masked_fill((ids == layer.padding_idx).unsqueeze(2), 0)
        return [Lookup(target, ids, g, positions)]

    recorder.note((out,), taps)
    return out


def embedding_bag(
    layer: nn.EmbeddingBag,
    recorder: Recorder,
    input: Tensor,
    offsets: Tensor | None = None,
    per_sample_weights: Tensor | None = None,
) -> Tensor:
    """Add up or average the embeddings of each bag of ids: there is one bag per example, in the matrix [B, T]
    or in a flat list of ids that is cut at `offsets`.

    Row i of the result belongs to example i. Each id of a flat list is in one bag, so that its gradient is
    that of its bag's example.
    """
    recorder.require_batch_dim(layer, input if offsets is None else offsets)
    out = F.embedding_bag(
        input,
        layer.weight,
        offsets,
        mode=layer.mode,
        per_sample_weights=per_sample_weights,
        include_last_offset=False,
        padding_idx=layer.padding_idx,
    )
    target = Target(cast(nn.Parameter, layer.weight))
    # The length of the longest bag of a flat list depends on all examples, and must not decide how a norm is
    # computed: one more than MAX_PAIRED_TOKENS means that tokens are always sorted (`taps.Lookup`).
    positions = recorder.positions(input, 1) if offsets is None else MAX_PAIRED_TOKENS + 1
    ids, kept = (input, torch.ones_like(input)) if offsets is None else _bags(input, offsets)
    weights = kept.to(out.dtype)
    if layer.padding_idx is not None:
        weights = weights * (ids != layer.padding_idx)
    if layer.mode == "mean":
        weights = weights / weights.sum(1, keepdim=True).clamp(min=1)
    elif per_sample_weights is not None:
        scales = per_sample_weights.detach()
        weights = weights * (scales if offsets is None else _bags(scales, offsets)[0])

    def taps(g: Tensor) -> list[Tap]:
        return [Lookup(target, ids, single(g).unsqueeze(1) * weights.unsqueeze(2), positions)]

    recorder.note((out,), taps)
    return out


def _bags(flat: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the bags of a flat list as a matrix [B, T], padded with zeros to the longest, and which of its
    entries are not padding. The first offset is 0, which torch demands, so that every id is in a bag.
    """
    ends = torch.cat([offsets[1:], offsets.new_tensor([len(flat)])])
    longest = int((ends - offsets).max()) if len(offsets) else 0
    positions = torch.arange(longest, device=offsets.device)
    kept = positions < (ends - offsets).unsqueeze(1)
    indices = torch.where(kept, offsets.unsqueeze(1) + positions, 0)
    padded = flat[indices] if len(flat) else flat.new_zeros(indices.shape)
    return torch.where(kept, padded, torch.zeros_like(padded)), kept


def layer_norm(layer: nn.LayerNorm, recorder: Recorder, input: Tensor) -> Tensor:
    shape = list(layer.normalized_shape)
    if input.dtype is not torch.float32 or torch.is_autocast_enabled(input.device.type):
        out = F.layer_norm(input, shape, layer.weight, layer.bias, layer.eps)
        return _scaled_last(layer, recorder, input, out, lambda x: F.layer_norm(x, shape, eps=layer.eps))
    out, mean, rstd = torch.native_layer_norm(input, shape, layer.weight, layer.bias, layer.eps)
    # With these, the taps normalize x again by a subtraction and a product; `rstd` is 1 / standard deviation.
    mean, rstd = mean.detach(), rstd.detach()
    return _scaled_last(layer, recorder, input, out, lambda x: torch.sub(x, mean).mul_(rstd))


def rms_norm(layer: nn.RMSNorm, recorder: Recorder, input: Tensor) -> Tensor:
    shape = list(layer.normalized_shape)
    out = F.rms_norm(input, shape, layer.weight, layer.eps)
    return _scaled_last(layer, recorder, input, out, lambda x: F.rms_norm(x, shape, eps=layer.eps))


def _scaled_last(
    layer: Any, recorder: Recorder, input: Tensor, out: Tensor, normalize: Callable[[Tensor], Tensor]
) -> Tensor:
    """Note the taps of y = weight * normalize(x) + bias, where weight and bias have the last dimensions of x,
    those that are normalized: gradients are summed over the dimensions between the batch and these."""
    recorder.require_batch_dim(layer, input)
    weight, bias = targets(layer, "weight", "bias")
    normalized_dims = len(layer.normalized_shape)
    if input.dim() <= normalized_dims:
        raise NotBatchFirst(f"{type(layer).__name__} normalizes over the batch.")
    x = input.detach()

    def taps(g: Tensor) -> list[Tap]:
        g, dims = single(g), tuple(range(1, g.dim() - normalized_dims))
        return _scale_taps(weight, bias, g, single(normalize(x)) if weight else g, dims)

    recorder.note((out,), taps)
    return out


def _scale_taps(
    weight: Target | None, bias: Target | None, g: Tensor, x: Tensor, dims: tuple[int, ...]
) -> list[Tap]:
    """Return the taps of y = weight * x + bias, summed over the dimensions `dims`, where g is the gradient of
    y; x may be overwritten."""
    taps: list[Tap] = []
    if weight is not None:
        x = g * x if x is g or x.dtype != g.dtype else x.mul_(g)
        taps.append(Rows(weight, x.sum(dims) if dims else x))
    if bias is not None:
        taps.append(Rows(bias, g.sum(dims) if dims else g))
    return taps


def group_norm(layer: nn.GroupNorm, recorder: Recorder, input: Tensor) -> Tensor:
    out = F.group_norm(input, layer.num_groups, layer.weight, layer.bias, layer.eps)
    return _scaled_channels(
        layer, recorder, input, out, lambda x: F.group_norm(x, layer.num_groups, eps=layer.eps)
    )


def instance_norm(layer: Any, recorder: Recorder, input: Tensor) -> Tensor:
    if input.dim() == layer._get_no_batch_dim():
        raise NotBatchFirst(f"{type(layer).__name__} was given a tensor without a batch dimension.")
    out = owned(F.instance_norm(input, weight=layer.weight, bias=layer.bias, eps=layer.eps))
    return _scaled_channels(layer, recorder, input, out, lambda x: F.instance_norm(x, eps=layer.eps))


def _scaled_channels(
    layer: Any, recorder: Recorder, input: Tensor, out: Tensor, normalize: Callable[[Tensor], Tensor]
) -> Tensor:
    """Note the taps of y = weight * normalize(x) + bias, with one weight and bias per channel, the second
    dimension: gradients are summed over all later dimensions."""
    recorder.require_batch_dim(layer, input)
    weight, bias = targets(layer, "weight", "bias")
    x = input.detach()

    def taps(g: Tensor) -> list[Tap]:
        g = single(g)
        return _scale_taps(weight, bias, g, single(normalize(x)) if weight else g, tuple(range(2, g.dim())))

    recorder.note((out,), taps)
    return out


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
