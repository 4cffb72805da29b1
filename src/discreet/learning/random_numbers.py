"""Random numbers of a model's own code, replaced by their medians: a model that is random in training can be
compared with itself, then, in training mode.

Layers of dropout are switched off one by one. What is left are functions (`F.dropout`, a branch that is
dropped by `torch.rand`), whose numbers would be others for an example alone than in a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

_DROPOUTS = (
    F.dropout,
    F.dropout1d,
    F.dropout2d,
    F.dropout3d,
    F.alpha_dropout,
    F.feature_alpha_dropout,
    torch.dropout,
)


class Medians(TorchFunctionMode):
    """Makes torch's random functions return the median of what they draw; dropout returns its input.

    Functions that are not in its list draw as ever: whether any did shows in the state of the generator.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _DROPOUTS:
            return args[0] if args else kwargs["input"]
        median = _MEDIANS.get(func)
        return func(*args, **kwargs) if median is None else median(*args, **kwargs)


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    *args: Any,
    **rest: Any,
) -> Tensor:
    return F.scaled_dot_product_attention(query, key, value, attn_mask, 0.0, *args, **rest)


def _filled(create: Callable[..., Tensor], median: float) -> Callable[..., Tensor]:
    """Return a function that creates a tensor, as `torch.zeros` or `torch.zeros_like` does, full of a
    number."""

    def run(*args: Any, generator: Any = None, **kwargs: Any) -> Tensor:
        return create(*args, **kwargs).fill_(median)

    return run


def _bernoulli(input: Tensor, *args: Any, generator: Any = None) -> Tensor:
    chances = torch.full_like(input, args[0]) if args else input
    return (chances >= 0.5).to(input.dtype)


def _bernoulli_(tensor: Tensor, p: Any = 0.5, *, generator: Any = None) -> Tensor:
    chances = torch.as_tensor(p).expand_as(tensor)
    return tensor.copy_(chances >= 0.5)


def _uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0, *, generator: Any = None) -> Tensor:
    """Take `from` and `to`, whatever they are called."""
    return tensor.fill_((a + b) / 2)


def _normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0, *, generator: Any = None) -> Tensor:
    return tensor.fill_(mean)


_MEDIANS: dict[Any, Callable[..., Tensor]] = {
    F.scaled_dot_product_attention: _attend,
    torch.rand: _filled(torch.zeros, 0.5),
    torch.randn: _filled(torch.zeros, 0.0),
    torch.rand_like: _filled(torch.zeros_like, 0.5),
    torch.randn_like: _filled(torch.zeros_like, 0.0),
    torch.bernoulli: _bernoulli,
    Tensor.bernoulli: _bernoulli,
    Tensor.bernoulli_: _bernoulli_,
    Tensor.uniform_: _uniform_,
    Tensor.normal_: _normal_,
}
