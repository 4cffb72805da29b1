"""Multi-head attention with taps: its parameters are those of four projections, each an affine layer that
leaves a tap.

The attention between the projections has no parameters, so that torch's autograd is enough for it. Queries,
keys and values are [B, T, width], B examples of T positions; width is `embed_dim`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .batching import NotBatchFirst
from .layers import Recorder, affine, owned, targets
from .taps import Tap, Target


def attention(
    layer: nn.MultiheadAttention,
    recorder: Recorder,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Run the layer with the arguments and results of `nn.MultiheadAttention`; leave taps in the recorder."""
    if query.dim() != 3:
        raise NotBatchFirst("MultiheadAttention was given a query without a batch dimension.")
    is_self_attention = query is key and key is value
    for tensor in (query, key, value):
        recorder.require_batch_dim(layer, tensor, 0 if layer.batch_first else 1)
    positions = [recorder.positions(tensor, tensor.shape[-1]) for tensor in (query, key, value)]
    if not layer.batch_first:
        query, key, value = (
            (query.transpose(0, 1),) * 3
            if is_self_attention
            else tuple(t.transpose(0, 1) for t in (query, key, value))
        )
    if is_self_attention and layer._qkv_same_embed_dim:
        projections = _project_jointly(layer, recorder, query, positions[0]).chunk(3, -1)
    else:
        projections = tuple(_project_separately(layer, recorder, (query, key, value), positions))
    drop = layer.dropout if layer.training else 0.0
    q, k, v = (_heads(layer, projection) for projection in projections)
    mask = _mask(layer, q, k, attn_mask, key_padding_mask, is_causal and attn_mask is None)
    if need_weights:
        scores = torch.matmul(q / math.sqrt(q.shape[-1]), k.transpose(-2, -1))
        probabilities = torch.softmax(scores if mask is None else scores + mask, -1)
        probabilities = F.dropout(probabilities, drop) if drop else probabilities
        attended = torch.matmul(probabilities, v)
    else:
        attended = F.scaled_dot_product_attention(q, k, v, mask, drop)
    out = _project_output(layer, recorder, attended.transpose(1, 2).flatten(2), positions[0])
    if not need_weights:
        return out, None
    return out, probabilities.mean(1) if average_attn_weights else probabilities


def _project_output(
    layer: nn.MultiheadAttention, recorder: Recorder, attended: Tensor, positions: int | None
) -> Tensor:
    """Return the output projection of what all heads attended to, with the batch where the layer wants it.

    `positions`, here and below, is the public number of positions per example (`Recorder.positions`).
    """
    out = owned(F.linear(attended, layer.out_proj.weight, layer.out_proj.bias))
    weight, bias = targets(layer.out_proj, "weight", "bias")
    _record_affine(recorder, out, weight, bias, attended.detach(), positions)
    return out if layer.batch_first else out.transpose(0, 1)


def _project_jointly(
    layer: nn.MultiheadAttention, recorder: Recorder, x: Tensor, positions: int | None
) -> Tensor:
    """Return queries, keys and values of one tensor, concatenated in this order: [B, T, 3 width]."""
    joint = owned(F.linear(x, layer.in_proj_weight, layer.in_proj_bias))
    weight_target, bias_target = targets(layer, "in_proj_weight", "in_proj_bias")
    _record_affine(recorder, joint, weight_target, bias_target, x.detach(), positions)
    return joint


def _project_separately(
    layer: nn.MultiheadAttention,
    recorder: Recorder,
    inputs: tuple[Tensor, ...],
    positions: list[int | None],
) -> list[Tensor]:
    """Return queries, keys and values, [B, T, width] each.

    In the layer's joint parameters `in_proj_weight` and `in_proj_bias`, the first width rows belong to the
    queries, the next width rows to the keys and the last to the values. A layer whose keys or values have
    another width has three weights instead (`q_proj_weight` and so on), and the joint bias.
    """
    bias, width, projections = layer.in_proj_bias, layer.embed_dim, []
    for index, (name, x) in enumerate(zip("qkv", inputs, strict=True)):
        rows = (index * width, (index + 1) * width)
        is_joint, own_rows = layer._qkv_same_embed_dim, slice(*rows)
        weight = layer.in_proj_weight[own_rows] if is_joint else getattr(layer, f"{name}_proj_weight")
        out = owned(F.linear(x, weight, None if bias is None else bias[own_rows]))
        (weight_target,) = targets(layer, "in_proj_weight" if is_joint else f"{name}_proj_weight")
        if weight_target is not None and is_joint:
            weight_target = Target(weight_target.parameter, rows)
        (bias_target,) = targets(layer, "in_proj_bias")
        bias_target = None if bias_target is None else Target(bias_target.parameter, rows)
        _record_affine(recorder, out, weight_target, bias_target, x.detach(), positions[index])
        projections.append(out)
    return projections


def _record_affine(
    recorder: Recorder,
    out: Tensor,
    weight_target: Target | None,
    bias_target: Target | None,
    x: Tensor,
    positions: int | None,
) -> None:
    """Note that `out` is an affine function of `x`; the taps are made from the gradient `g` of `out`."""

    def taps(g: Tensor) -> list[Tap]:
        return affine(weight_target, bias_target, x, g, positions)

    recorder.note((out,), taps)


def _heads(layer: nn.MultiheadAttention, x: Tensor) -> Tensor:
    """Return [B, heads, T, width / heads], from [B, T, width]."""
    return x.view(x.shape[0], x.shape[1], layer.num_heads, -1).transpose(1, 2)


def _mask(
    layer: nn.MultiheadAttention,
    q: Tensor,
    k: Tensor,
    attn_mask: Tensor | None,
    padding: Tensor | None,
    causal: bool,
) -> Tensor | None:
    """Return one mask to be added to the scores, which broadcasts to [B, heads, T, T]; None without any.

    `padding` is the caller's `key_padding_mask`, [B, T]; with `causal` (and without `attn_mask`) no position
    attends to a later one.
    """
    total: Tensor | None = None
    if causal:
        total = _additive(
            torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).triu(1), q.dtype
        )
    if attn_mask is not None:
        total = _additive(attn_mask, q.dtype)
        # Torch's form with three dimensions is [B heads, T, T].
        total = total.view(len(q), -1, *total.shape[1:]) if total.dim() == 3 else total
    if padding is not None:
        padding_mask = _additive(padding, q.dtype)[:, None, None, :]
        total = padding_mask if total is None else total + padding_mask
    return total


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the mask as numbers that are added to scores: minus infinity where a boolean mask is true."""
    if mask.dtype is not torch.bool:
        return mask.to(dtype)
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(mask, -math.inf)
