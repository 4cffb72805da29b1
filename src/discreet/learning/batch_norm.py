"""Handles batch normalization: refused in training, a constant map where it is frozen, or replaced by
GroupNorm.

In training mode it normalizes each example by the others, so that one person moves everybody's gradient
(`plan.refusal` refuses it). It is frozen if it is in evaluation mode, with stored statistics and without
trainable parameters; then it is the same affine map for each example.
"""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

BATCH_NORMS = (nn.modules.batchnorm._BatchNorm,)
_FREEZABLE = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def is_constant(module: nn.Module) -> bool:
    """Return whether a module is a frozen batch normalization, the same affine map for each example.

    A subclass, or an instance with a `forward` of its own, may do something else, and is not.
    """
    if type(module) not in _FREEZABLE or module.training or "forward" in vars(module):
        return False
    has_statistics = (
        module.track_running_stats and module.running_mean is not None and module.running_var is not None
    )
    return bool(has_statistics) and not any(p.requires_grad for p in module.parameters())


def frozen_batch_norm(module: Any, x: Tensor) -> Tensor:
    """Apply a frozen batch normalization to x by its stored statistics, even if the module was put into
    training mode; the statistics are not changed."""
    module._check_input_dim(x)
    return F.batch_norm(
        x, module.running_mean, module.running_var, module.weight, module.bias, training=False, eps=module.eps
    )


def without_batch_norm(model: nn.Module, groups: int = 32) -> nn.Module:
    """Return a copy of the model with a GroupNorm in place of each BatchNorm.

    The number of groups is the largest that divides the number of channels and is at most `groups`. Where a
    BatchNorm1d is replaced, a group has at least two channels (unless there is only one): inputs may be
    vectors, and a group of one number would be normalized to zero.

    >>> without_batch_norm(nn.Sequential(nn.Conv2d(3, 48, 3), nn.BatchNorm2d(48)))[1].num_groups
    24
    """
    model = copy.deepcopy(model)
    if isinstance(model, BATCH_NORMS):
        return _group_norm(model, groups)
    replacements: dict[int, nn.GroupNorm] = {}
    for parent in list(model.modules()):
        # Not `named_children`, which names a layer once where the parent has it under two names.
        for name, child in list(parent._modules.items()):
            if isinstance(child, BATCH_NORMS):
                if id(child) not in replacements:
                    replacements[id(child)] = _group_norm(child, groups)
                setattr(parent, name, replacements[id(child)])
    return model


def _group_norm(layer: Any, groups: int) -> nn.GroupNorm:
    """Return the GroupNorm that replaces a batch normalization, as `without_batch_norm` describes it."""
    channels = layer.num_features
    limit = channels // 2 if isinstance(layer, nn.BatchNorm1d) else channels
    num_groups = max(n for n in range(1, max(1, min(groups, limit)) + 1) if channels % n == 0)
    dtype = None if layer.weight is None else layer.weight.dtype
    return nn.GroupNorm(num_groups, channels, eps=layer.eps, affine=layer.affine, dtype=dtype)
