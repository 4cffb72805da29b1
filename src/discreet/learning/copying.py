"""Copies of models: what is trained, and what is released, is never the module that was handed in."""

from __future__ import annotations

import copy
import itertools
from typing import Any

from torch import Tensor, nn

from .._errors import Unsupported


def copied(model: nn.Module) -> nn.Module:
    """Return a copy of a model, with weights of its own.

    A tensor with a history (the weight that the old `torch.nn.utils.weight_norm` computes in a hook, an
    output that the code keeps), which torch does not copy, is copied by its values.
    """
    return _copied(model, {})


def check_copyable(model: nn.Module) -> None:
    """Refuse a model of which there can be no copy; none of its weights is copied for that."""
    tensors = itertools.chain(model.parameters(), model.buffers())
    _copied(model, {id(tensor): tensor for tensor in tensors})


def _copied(model: nn.Module, memo: dict[int, Any]) -> nn.Module:
    """Return a deep copy, in which what the memo has by its id stands for what it was."""
    for module in model.modules():
        for value in vars(module).values():
            if isinstance(value, Tensor) and not value.is_leaf:
                memo[id(value)] = value.detach().clone()
    try:
        return copy.deepcopy(model, memo)
    # Of the model alone, before any data: the message speaks of no person.
    except Exception as error:
        raise Unsupported(
            f"the model cannot be copied, and a copy is what is trained: {type(error).__name__}: {error}. "
            f"Nothing was read or trained. Leave out of it what copy.deepcopy(model) does not take (an open "
            f"file, a lock, a tensor with a history inside a list)."
        ) from error
