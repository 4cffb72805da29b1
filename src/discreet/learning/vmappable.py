"""Layers in a form that `torch.func.vmap` runs, and runs right.

Torch's own forms of some layers take a fused kernel, for which vmap has no rule (`LSTMCell`, `EmbeddingBag`,
attention in evaluation mode), or one that forgets an option (`padding_idx`). While a module runs example by
example, these forms stand in their places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def embedding(layer: nn.Embedding, input: Tensor) -> Tensor:
    """Look up rows; no gradient goes to the row of padding."""
    rows = F.embedding(input, layer.weight)
    if layer.padding_idx is None:
        return rows
    return torch.where((input == layer.padding_idx).unsqueeze(-1), rows.detach(), rows)


def embedding_bag(
    layer: nn.EmbeddingBag,
    input: Tensor,
    offsets: Tensor | None = None,
    per_sample_weights: Tensor | None = None,
) -> Tensor:
    """Add up, average or take the largest of the rows of each bag [B, T]."""
    if input.dim() != 2 or offsets is not None:
        return layer.__class__.forward(layer, input, offsets, per_sample_weights)
    rows = F.embedding(input, layer.weight)
    hidden = (
        torch.zeros_like(input, dtype=torch.bool) if layer.padding_idx is None else input == layer.padding_idx
    )
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(-1)
    if layer.mode == "max":
        largest = rows.masked_fill(hidden.unsqueeze(-1), -torch.inf).amax(1)
        return torch.where(hidden.all(1, keepdim=True), torch.zeros_like(largest), largest)
    total = rows.masked_fill(hidden.unsqueeze(-1), 0).sum(1)
    return total if layer.mode == "sum" else total / (~hidden).sum(1, keepdim=True).clamp(min=1)


def lstm_cell(
    layer: nn.LSTMCell, input: Tensor, hx: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """Take one step of an LSTM."""
    zeros = input.new_zeros(*input.shape[:-1], layer.hidden_size)
    h, c = (zeros, zeros) if hx is None else hx
    gates = F.linear(input, layer.weight_ih, layer.bias_ih) + F.linear(h, layer.weight_hh, layer.bias_hh)
    i, f, g, o = gates.chunk(4, -1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


FORMS: dict[type[nn.Module], Callable[..., Any]] = {
    nn.Embedding: embedding,
    nn.EmbeddingBag: embedding_bag,
    nn.LSTMCell: lstm_cell,
}
_WITH_A_FAST_PATH = (nn.MultiheadAttention, nn.TransformerEncoderLayer)


def form_of(module: nn.Module) -> Callable[..., Any]:
    """Return the forward pass that vmap can run: a form of ours, or the module's own."""
    if type(module) in FORMS and "forward" not in vars(module):
        return partial(FORMS[type(module)], module)
    forward: Callable[..., Any] = module.forward
    return forward


@contextmanager
def vmappable(module: nn.Module) -> Iterator[None]:
    """Put such forms on a module's parts, and take torch's fast path of attention away, within this context.

    That path is for evaluation only: its modules are set to training mode, with a dropout of 0.
    """
    replaced = [inner for inner in module.modules() if type(inner) in FORMS and "forward" not in vars(inner)]
    evaluating = [
        inner for inner in module.modules() if isinstance(inner, _WITH_A_FAST_PATH) and not inner.training
    ]
    dropouts = [inner.dropout for inner in evaluating]
    try:
        for inner in replaced:
            inner.forward = partial(FORMS[type(inner)], inner)
        for inner in evaluating:
            inner.training = True
            if isinstance(inner, nn.MultiheadAttention):
                inner.dropout = 0.0
        yield
    finally:
        for inner in replaced:
            del inner.forward
        for inner, dropout in zip(evaluating, dropouts, strict=True):
            inner.training, inner.dropout = False, dropout
