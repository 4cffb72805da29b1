"""Multi-head attention as book-keeping sees it: four projections, with the attention itself between them."""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .layers import NotBatchFirst, Recorder, affine, targets
from .taps import Tap, Target

SHORT = 128  # up to so many places the table of weights is smaller than what it is made of, and cheaper to keep than to compute again (measured)


def attend(whole: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """softmax(q kᵀ / sqrt(d)) v over few places, [B, T, heads d], and what `pull` needs: q, k and v one after the other, and the table of weights.

    Queries, keys and values come side by side in one tensor [B, T, 3 heads d]: each way they are copied once, all together.
    """
    batch, places, _ = whole.shape
    parts = whole.view(batch, places, 3, heads, -1).permute(2, 0, 3, 1, 4).reshape(3, batch * heads, places, -1)
    q, k, v = parts
    scores = q.new_empty(len(q), places, places)
    torch.baddbmm(scores, q, k.transpose(1, 2), beta=0, alpha=1 / math.sqrt(q.shape[2]), out=scores)
    shares = torch.softmax(scores, -1)
    return torch.bmm(shares, v).view(batch, heads, places, -1).transpose(1, 2).flatten(2), parts, shares


def pull(g: Tensor, parts: Tensor, shares: Tensor) -> Tensor:
    """The gradient of `whole`, by that of the result."""
    (q, k, v), heads, scale = parts, parts.shape[1] // len(g), 1 / math.sqrt(parts.shape[3])
    g = g.view(*g.shape[:2], heads, -1).transpose(1, 2).reshape(v.shape)
    for_q, for_k, for_v = found = torch.empty_like(parts)
    torch.bmm(shares.transpose(1, 2), g, out=for_v)
    pulled = torch._softmax_backward_data(torch.bmm(g, v.transpose(1, 2)), shares, -1, shares.dtype)
    torch.baddbmm(q, pulled, k, beta=0, alpha=scale, out=for_q)
    torch.baddbmm(k, pulled.transpose(1, 2), q, beta=0, alpha=scale, out=for_k)
    return found.view(3, -1, heads, *q.shape[1:]).permute(1, 3, 0, 2, 4).flatten(2)


class _Short(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, whole: Tensor, heads: int) -> Tensor:
        mixed, *held = attend(whole, heads)
        ctx.save_for_backward(*held)
        return mixed

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        return pull(g, *ctx.saved_tensors), None


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
    """The same arguments and results as `nn.MultiheadAttention`."""
    if query.dim() != 3:
        raise NotBatchFirst("MultiheadAttention was given a query without a batch dimension.")
    same = query is key and key is value
    if not layer.batch_first:
        query, key, value = (query.transpose(0, 1),) * 3 if same else (t.transpose(0, 1) for t in (query, key, value))
    for tensor in (query, key, value):
        recorder.first(layer, tensor)
    whole = _together(layer, recorder, query) if same and layer._qkv_same_embed_dim else None
    drop = layer.dropout if layer.training else 0.0
    bare = attn_mask is None and key_padding_mask is None and not is_causal and not drop and not need_weights
    if bare and whole is not None and _is_short(whole):
        mixed = cast(Tensor, _Short.apply(whole, layer.num_heads))  # type: ignore[no-untyped-call]
        return _projected(layer, recorder, mixed), None
    parts = _apart(layer, recorder, query, key, value) if whole is None else whole.chunk(3, -1)
    q, k, v = (_heads(layer, part) for part in parts)
    mask = _mask(layer, q, k, attn_mask, key_padding_mask, is_causal and attn_mask is None)
    if need_weights:
        scores = torch.matmul(q / math.sqrt(q.shape[-1]), k.transpose(-2, -1))
        shown = torch.softmax(scores if mask is None else scores + mask, -1)
        shown = F.dropout(shown, drop) if drop else shown
        mixed = torch.matmul(shown, v)
    else:
        mixed = F.scaled_dot_product_attention(q, k, v, mask, drop)
    out = _projected(layer, recorder, mixed.transpose(1, 2).flatten(2))
    if not need_weights:
        return out, None
    return out, shown.mean(1) if average_attn_weights else shown


def _is_short(whole: Tensor) -> bool:
    return whole.shape[1] <= SHORT and whole.dtype is torch.float32 and not torch.is_autocast_enabled("cpu")


def _projected(layer: nn.MultiheadAttention, recorder: Recorder, mixed: Tensor) -> Tensor:
    out = F.linear(mixed, layer.out_proj.weight, layer.out_proj.bias)
    weight, bias = targets(layer.out_proj, "weight", "bias")
    _note(recorder, out, weight, bias, mixed.detach())
    return out if layer.batch_first else out.transpose(0, 1)


def _together(layer: nn.MultiheadAttention, recorder: Recorder, x: Tensor) -> Tensor:
    """Queries, keys and values of the same, [B, T, 3 width]."""
    whole = F.linear(x, layer.in_proj_weight, layer.in_proj_bias)
    into, shift = targets(layer, "in_proj_weight", "in_proj_bias")
    _note(recorder, whole, into, shift, x.detach())
    return whole


def _apart(layer: nn.MultiheadAttention, recorder: Recorder, query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
    """Queries, keys and values, [B, T, width] each."""
    bias, width, found = layer.in_proj_bias, layer.embed_dim, []
    for place, (name, x) in enumerate((("q", query), ("k", key), ("v", value))):
        rows = (place * width, (place + 1) * width)
        part = slice(*rows)
        weight = layer.in_proj_weight[part] if layer._qkv_same_embed_dim else getattr(layer, f"{name}_proj_weight")
        out = F.linear(x, weight, None if bias is None else bias[part])
        (own,) = targets(layer, "in_proj_weight" if layer._qkv_same_embed_dim else f"{name}_proj_weight")
        into = Target(own.parameter, rows) if own is not None and layer._qkv_same_embed_dim else own
        (shift,) = targets(layer, "in_proj_bias")
        shift = None if shift is None else Target(shift.parameter, rows)
        _note(recorder, out, into, shift, x.detach())
        found.append(out)
    return found


def _note(recorder: Recorder, out: Tensor, into: Target | None, shift: Target | None, x: Tensor) -> None:
    def taps(g: Tensor) -> list[Tap]:
        return affine(into, shift, x, g)

    recorder.note((out,), taps)


def _heads(layer: nn.MultiheadAttention, x: Tensor) -> Tensor:
    return x.view(x.shape[0], x.shape[1], layer.num_heads, -1).transpose(1, 2)


def _mask(
    layer: nn.MultiheadAttention, q: Tensor, k: Tensor, given: Tensor | None, padding: Tensor | None, causal: bool
) -> Tensor | None:
    """One additive mask, or none."""
    total: Tensor | None = None
    if causal:
        total = _additive(torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).triu(1), q.dtype)
    if given is not None:
        total = _additive(given, q.dtype)
        total = total.view(len(q), -1, *total.shape[1:]) if total.dim() == 3 else total
    if padding is not None:
        hidden = _additive(padding, q.dtype)[:, None, None, :]
        total = hidden if total is None else total + hidden
    return total


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.dtype is not torch.bool:
        return mask.to(dtype)
    return torch.zeros(mask.shape, dtype=dtype).masked_fill_(mask, -math.inf)
