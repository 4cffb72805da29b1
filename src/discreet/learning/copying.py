"""Copies models: training and release work on a copy, never on the user's own module."""

from __future__ import annotations

import copy
import itertools
from typing import Any

from torch import Tensor, nn

from .._errors import Unsupported


def copied(model: nn.Module) -> nn.Module:
    """Return a deep copy of a model, with weights of its own.

    `copy.deepcopy` refuses a tensor with an autograd history (a weight that the old
    `torch.nn.utils.weight_norm` computes in a hook, an output that the model's code stored). Such an
    attribute of a module is copied by its values, without the history.
    """
    return _copied(model, {})


def check_copyable(model: nn.Module) -> None:
    """Raise Unsupported for a model that cannot be copied; weights and buffers are not copied for this."""
    tensors = itertools.chain(model.parameters(), model.buffers())
    _copied(model, {id(tensor): tensor for tensor in tensors})


def _copied(model: nn.Module, memo: dict[int, Any]) -> nn.Module:
    """Return a deep copy. For an object whose id is in `memo`, the copy has the memo's object instead."""
    for module in model.modules():
        for value in vars(module).values():
            if isinstance(value, Tensor) and not value.is_leaf:
                memo[id(value)] = value.detach().clone()
    try:
        return copy.deepcopy(model, memo)
    # The error's text may be shown: the model is copied before any data is read.
    except Exception as error:
        raise Unsupported(
            f"the model cannot be copied, and a copy is what is trained: {type(error).__name__}: {error}. "
            f"Nothing was read or trained. Leave out of it what copy.deepcopy(model) does not take (an open "
            f"file, a lock, a tensor with a history inside a list)."
        ) from error
