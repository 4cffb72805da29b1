"""The layers that book-keeping knows: how each runs, and which taps it leaves behind.

Only the exact classes in `TAPPED_LAYERS` are handled this way, and only with the options that `refusal` lets
pass. A rule is the layer's forward pass, which notes what it needs and an `Edge` to the output; after the
backward pass the note is turned into taps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.nn import functional as F

from .batching import CONSTANT, Axis, Call, Layout, NotBatchFirst, ShapeSurvey
from .bounds import single
from .taps import MAX_PAIRED_TOKENS, Lookup, Rows, Tap, Target, product, summed_over_positions

Taps = Callable[..., list[Tap]]


@dataclass
class Recorder:
    """Keeps what one forward pass leaves for the backward pass: edges of the graph, and what to make of the
    gradients there."""

    batch: int = 0
    # How many examples are run together in training, about: a public number, unlike `batch`.
    expected: int = 1
    active: bool = False
    # Whether layers may be run by hand (`learning.fast`).
    fast: bool = True
    # Within a module that runs example by example: its parts leave no taps of their own.
    inside: bool = False
    # Which dimensions of each call's tensors are the batch; `survey` is set while that is being found out.
    layouts: dict[Call, Layout] = field(default_factory=dict)
    survey: ShapeSurvey | None = None
    # The decision for the call that is being made.
    layout: Layout | None = None
    # The batch dimension of each tensor of that call, by the tensor's id.
    axes: dict[int, Axis] = field(default_factory=dict)
    # The shape that one example had in each of them when layouts were decided: a public one.
    shapes: dict[int, tuple[int, ...] | None] = field(default_factory=dict)
    # The model, where all of it runs example by example.
    isolated_model: nn.Module | None = None
    # Ids of modules that vmap could not run.
    looped: set[int] = field(default_factory=set)
    calls: dict[str, int] = field(default_factory=dict)
    edges: list[Any] = field(default_factory=list)
    notes: list[tuple[list[tuple[torch.Size, torch.dtype]], Taps]] = field(default_factory=list)

    def __deepcopy__(self, memo: Any) -> Recorder:
        # A copy of an attached model starts with nothing recorded.
        return Recorder(fast=self.fast)

    def next_call(self, name: str) -> Call:
        """Return the name of the module's next call within this forward pass."""
        self.calls[name] = self.calls.get(name, -1) + 1
        return name, self.calls[name]

    def note(self, outputs: tuple[Tensor, ...], taps: Taps) -> None:
        """Ask for the gradients of `outputs`, and for `taps` to be called with them."""
        if any(out._is_view() and not out.is_leaf for out in outputs):
            raise NotBatchFirst(
                "a layer gives a view, whose gradient would be lost where the model changes it in place."
            )
        if all(out.requires_grad for out in outputs):
            self.notes.append(([(out.shape, out.dtype) for out in outputs], taps))
            # Now: the tensor may be changed in place later.
            self.edges.extend(map(get_gradient_edge, outputs))

    def taps(self, result: Tensor, gradient: Tensor | None = None) -> list[Tap]:
        """Run one backward pass, only as far as the noted outputs, and return the taps: no gradient of a
        weight is computed on the way.

        It starts from `result`: the losses, or the model's outputs where the `gradient` there is known.
        """
        edges, notes = self.edges, self.notes
        self.edges, self.notes = [], []
        if not edges or not result.requires_grad:
            return []
        start = torch.ones_like(result) if gradient is None else gradient
        gradients = iter(torch.autograd.grad(result, edges, start, allow_unused=True))
        collected: list[Tap] = []
        for shapes, taps in notes:
            own = [next(gradients) for _ in shapes]
            if any(g is not None for g in own):
                pairs = zip(own, shapes, strict=True)
                collected += taps(*(torch.zeros(s, dtype=d) if g is None else g for g, (s, d) in pairs))
        return collected

    def positions(self, x: Tensor, width: int) -> int | None:
        """Return how many vectors of so many numbers one example had in a call's argument when layouts were
        decided; None where that is not known."""
        shape = self.shapes.get(id(x))
        return None if shape is None else math.prod(shape) // width

    def first(self, layer: nn.Module, x: Tensor, dim: int = 0) -> None:
        """Check that a call's argument has the batch in this dimension: else one row of the sum would not be
        one example.

        That its size is the batch's is not enough, which may be a coincidence: it must have followed the
        batch at two sizes.
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


def is_bare(module: nn.Module) -> bool:
    """Return whether a module runs as its class says: no hooks, no forward pass of its own (before ours is
    attached)."""
    hooks = (
        module._forward_pre_hooks,
        module._forward_hooks,
        module._backward_pre_hooks,
        module._backward_hooks,
    )
    return "forward" not in vars(module) and not any(hooks)


def targets(module: nn.Module, *names: str) -> list[Target | None]:
    """Return the named parameters as targets; None where there is none, or where it is frozen."""
    parameters = [module._parameters.get(name) for name in names]
    return [Target(p) if p is not None and p.requires_grad else None for p in parameters]


def owned(out: Tensor) -> Tensor:
    """Return the same numbers as a tensor that autograd does not take for a view.

    Torch's linear layer gives a view of a flat product where there are positions. When a model changes that
    in place (`h += residual`), autograd rewrites its history, and the edge that was noted before leads
    nowhere: the gradient would be lost.
    """
    return torch.ops.aten._unsafe_view(out, out.shape) if out._is_view() else out


def linear(layer: nn.Linear, recorder: Recorder, input: Tensor) -> Tensor:
    recorder.first(layer, input)
    out = owned(F.linear(input, layer.weight, layer.bias))
    weight, bias = targets(layer, "weight", "bias")
    x, positions = input.detach(), recorder.positions(input, layer.in_features)
    recorder.note((out,), lambda g: affine(weight, bias, x, g, positions))
    return out


def affine(
    weight: Target | None, bias: Target | None, x: Tensor, g: Tensor, positions: int | None = None
) -> list[Tap]:
    """Return the taps of y = W x + b; for `positions` see `taps.Product`."""
    g = single(g)
    if weight is None:
        return [] if bias is None else [summed_over_positions(bias, g)]
    return [product(weight, single(x), g, bias, positions=positions)]


def transposed_linear(layer: Any, recorder: Recorder, x: Tensor) -> Tensor:
    """Run y = x W + b, the layer of GPT-2 that `transformers` calls Conv1D: its weight is transposed, so that
    in the tap inputs and gradients change places."""
    recorder.first(layer, x)
    out = owned(F.linear(x, layer.weight.t(), layer.bias))
    weight, bias = targets(layer, "weight", "bias")
    held, positions = x.detach(), recorder.positions(x, layer.weight.shape[0])

    def taps(g: Tensor) -> list[Tap]:
        g = single(g)
        products = [] if weight is None else [product(weight, g, single(held), positions=positions)]
        return products if bias is None else [*products, summed_over_positions(bias, g)]

    recorder.note((out,), taps)
    return out


def embedding(layer: nn.Embedding, recorder: Recorder, input: Tensor) -> Tensor:
    recorder.first(layer, input)
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
    """Add up or average the rows of each bag: one bag per row [B, T], or a flat list of ids cut at `offsets`.

    Row i of the result is bag i. Each id of a flat list is in one bag, so that its gradient is that of its
    bag's example.
    """
    recorder.first(layer, input if offsets is None else offsets)
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
    # How long the longest bag of a flat list is depends on all examples: tokens are sorted, however few.
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
    """Return the bags of a flat list as rows [B, T], padded with zeros, and which positions are no padding.

    What stands before the first offset is in no bag: torch demands that the first one is 0.
    """
    ends = torch.cat([offsets[1:], offsets.new_tensor([len(flat)])])
    positions = torch.arange(int((ends - offsets).max()) if len(offsets) else 0)
    kept = positions < (ends - offsets).unsqueeze(1)
    indices = torch.where(kept, offsets.unsqueeze(1) + positions, 0)
    rows = flat[indices] if len(flat) else flat.new_zeros(indices.shape)
    return torch.where(kept, rows, torch.zeros_like(rows)), kept


def layer_norm(layer: nn.LayerNorm, recorder: Recorder, input: Tensor) -> Tensor:
    shape = list(layer.normalized_shape)
    if input.dtype is not torch.float32 or torch.is_autocast_enabled("cpu"):
        out = F.layer_norm(input, shape, layer.weight, layer.bias, layer.eps)
        return _scaled_last(layer, recorder, input, out, lambda x: F.layer_norm(x, shape, eps=layer.eps))
    out, mean, scale = torch.native_layer_norm(input, shape, layer.weight, layer.bias, layer.eps)
    # Computed already: to normalize again is two cheap passes.
    mean, scale = mean.detach(), scale.detach()
    return _scaled_last(layer, recorder, input, out, lambda x: torch.sub(x, mean).mul_(scale))


def rms_norm(layer: nn.RMSNorm, recorder: Recorder, input: Tensor) -> Tensor:
    shape = list(layer.normalized_shape)
    out = F.rms_norm(input, shape, layer.weight, layer.eps)
    return _scaled_last(layer, recorder, input, out, lambda x: F.rms_norm(x, shape, eps=layer.eps))


def _scaled_last(
    layer: Any, recorder: Recorder, input: Tensor, out: Tensor, normal: Callable[[Tensor], Tensor]
) -> Tensor:
    """Note the taps of a scale and shift over the last dimensions: gradients are summed over all dimensions
    between the batch and those."""
    recorder.first(layer, input)
    weight, bias = targets(layer, "weight", "bias")
    last = len(layer.normalized_shape)
    if input.dim() <= last:
        raise NotBatchFirst(f"{type(layer).__name__} normalizes over the batch.")
    x = input.detach()

    def taps(g: Tensor) -> list[Tap]:
        g, between = single(g), tuple(range(1, g.dim() - last))
        return _shifted(weight, bias, g, single(normal(x)) if weight else g, between)

    recorder.note((out,), taps)
    return out


def _shifted(
    weight: Target | None, bias: Target | None, g: Tensor, x: Tensor, between: tuple[int, ...]
) -> list[Tap]:
    """Return the taps of y = weight * x + bias, summed over dimensions `between`; x may be overwritten."""
    taps: list[Tap] = []
    if weight is not None:
        x = g * x if x is g or x.dtype != g.dtype else x.mul_(g)
        taps.append(Rows(weight, x.sum(between) if between else x))
    if bias is not None:
        taps.append(Rows(bias, g.sum(between) if between else g))
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
    layer: Any, recorder: Recorder, input: Tensor, out: Tensor, normal: Callable[[Tensor], Tensor]
) -> Tensor:
    """Note the taps of a scale and shift over channels, the second dimension: gradients are summed over all
    dimensions that follow."""
    recorder.first(layer, input)
    weight, bias = targets(layer, "weight", "bias")
    x = input.detach()

    def taps(g: Tensor) -> list[Tap]:
        g = single(g)
        return _shifted(weight, bias, g, single(normal(x)) if weight else g, tuple(range(2, g.dim())))

    recorder.note((out,), taps)
    return out
