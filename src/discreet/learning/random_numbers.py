"""Replaces the random numbers that a model's own code draws by their medians.

The probe (`safety`) compares an example's gradient in a batch with that of the example alone, in training
mode. Random numbers would differ between the two. Dropout layers are switched off by the probe itself; this
module takes care of functions that draw (`F.dropout`, or a residual branch that is dropped by `torch.rand`).
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

    It works inside `with Medians():`, on the functions in `_DROPOUTS` and `_MEDIANS`. All others draw as
    usual, and the caller sees it, because the state of torch's generator has changed.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _DROPOUTS:
            return args[0] if args else kwargs["input"]
        median = _MEDIANS.get(func)
        return func(*args, **kwargs) if median is None else median(*args, **kwargs)


def _attend_without_dropout(
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
    """Return a function that calls `create` (`torch.zeros` or `torch.zeros_like`) and fills the tensor with
    the median."""

    def run(*args: Any, generator: Any = None, **kwargs: Any) -> Tensor:
        return create(*args, **kwargs).fill_(median)

    return run


def _bernoulli(input: Tensor, p: float | None = None, *, generator: Any = None) -> Tensor:
    """Return the medians of coins: each has the probability in `input`, or all have the probability `p`."""
    probabilities = input if p is None else torch.full_like(input, p)
    return (probabilities >= 0.5).to(input.dtype)


def _bernoulli_(tensor: Tensor, p: Any = 0.5, *, generator: Any = None) -> Tensor:
    probabilities = torch.as_tensor(p).expand_as(tensor)
    return tensor.copy_(probabilities >= 0.5)


def _uniform_(tensor: Tensor, *ends: float, generator: Any = None, **named_ends: float) -> Tensor:
    """Fill a tensor with the middle of an interval, whose ends torch calls `from` (a keyword of Python, so
    that no parameter here can have this name) and `to`."""
    low = ends[0] if ends else named_ends.get("from", 0.0)
    high = ends[1] if len(ends) > 1 else named_ends.get("to", 1.0)
    return tensor.fill_((low + high) / 2)


def _normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0, *, generator: Any = None) -> Tensor:
    return tensor.fill_(mean)


_MEDIANS: dict[Any, Callable[..., Tensor]] = {
    F.scaled_dot_product_attention: _attend_without_dropout,
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
