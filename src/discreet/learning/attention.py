"""Multi-head attention as book-keeping sees it: four projections, with the attention itself between them."""

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
    """Run the layer, with the arguments and results of `nn.MultiheadAttention`."""
    if query.dim() != 3:
        raise NotBatchFirst("MultiheadAttention was given a query without a batch dimension.")
    same = query is key and key is value
    for tensor in (query, key, value):
        recorder.first(layer, tensor, 0 if layer.batch_first else 1)
    positions = [recorder.positions(tensor, tensor.shape[-1]) for tensor in (query, key, value)]
    if not layer.batch_first:
        query, key, value = (
            (query.transpose(0, 1),) * 3 if same else tuple(t.transpose(0, 1) for t in (query, key, value))
        )
    if same and layer._qkv_same_embed_dim:
        parts = _project_jointly(layer, recorder, query, positions[0]).chunk(3, -1)
    else:
        parts = tuple(_project_separately(layer, recorder, (query, key, value), positions))
    drop = layer.dropout if layer.training else 0.0
    q, k, v = (_heads(layer, part) for part in parts)
    mask = _mask(layer, q, k, attn_mask, key_padding_mask, is_causal and attn_mask is None)
    if need_weights:
        scores = torch.matmul(q / math.sqrt(q.shape[-1]), k.transpose(-2, -1))
        probabilities = torch.softmax(scores if mask is None else scores + mask, -1)
        probabilities = F.dropout(probabilities, drop) if drop else probabilities
        attended = torch.matmul(probabilities, v)
    else:
        attended = F.scaled_dot_product_attention(q, k, v, mask, drop)
    out = _projected(layer, recorder, attended.transpose(1, 2).flatten(2), positions[0])
    if not need_weights:
        return out, None
    return out, probabilities.mean(1) if average_attn_weights else probabilities


def _projected(
    layer: nn.MultiheadAttention, recorder: Recorder, attended: Tensor, positions: int | None
) -> Tensor:
    out = owned(F.linear(attended, layer.out_proj.weight, layer.out_proj.bias))
    weight, bias = targets(layer.out_proj, "weight", "bias")
    _record_affine(recorder, out, weight, bias, attended.detach(), positions)
    return out if layer.batch_first else out.transpose(0, 1)


def _project_jointly(
    layer: nn.MultiheadAttention, recorder: Recorder, x: Tensor, positions: int | None
) -> Tensor:
    """Return queries, keys and values of one tensor, side by side: [B, T, 3 width]."""
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
    """Return queries, keys and values, [B, T, width] each."""
    bias, width, parts = layer.in_proj_bias, layer.embed_dim, []
    for index, (name, x) in enumerate(zip("qkv", inputs, strict=True)):
        rows = (index * width, (index + 1) * width)
        part = slice(*rows)
        weight = (
            layer.in_proj_weight[part] if layer._qkv_same_embed_dim else getattr(layer, f"{name}_proj_weight")
        )
        out = owned(F.linear(x, weight, None if bias is None else bias[part]))
        (own,) = targets(layer, "in_proj_weight" if layer._qkv_same_embed_dim else f"{name}_proj_weight")
        weight_target = Target(own.parameter, rows) if own is not None and layer._qkv_same_embed_dim else own
        (bias_target,) = targets(layer, "in_proj_bias")
        bias_target = None if bias_target is None else Target(bias_target.parameter, rows)
        _record_affine(recorder, out, weight_target, bias_target, x.detach(), positions[index])
        parts.append(out)
    return parts


def _record_affine(
    recorder: Recorder,
    out: Tensor,
    weight_target: Target | None,
    bias_target: Target | None,
    x: Tensor,
    positions: int | None,
) -> None:
    def taps(g: Tensor) -> list[Tap]:
        return affine(weight_target, bias_target, x, g, positions)

    recorder.note((out,), taps)


def _heads(layer: nn.MultiheadAttention, x: Tensor) -> Tensor:
    return x.view(x.shape[0], x.shape[1], layer.num_heads, -1).transpose(1, 2)


def _mask(
    layer: nn.MultiheadAttention,
    q: Tensor,
    k: Tensor,
    own_mask: Tensor | None,
    padding: Tensor | None,
    causal: bool,
) -> Tensor | None:
    """Return one additive mask, or none."""
    total: Tensor | None = None
    if causal:
        total = _additive(torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).triu(1), q.dtype)
    if own_mask is not None:
        total = _additive(own_mask, q.dtype)
        total = total.view(len(q), -1, *total.shape[1:]) if total.dim() == 3 else total
    if padding is not None:
        hidden = _additive(padding, q.dtype)[:, None, None, :]
        total = hidden if total is None else total + hidden
    return total


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.dtype is not torch.bool:
        return mask.to(dtype)
    return torch.zeros(mask.shape, dtype=dtype).masked_fill_(mask, -math.inf)
