"""Buffers of a model, put back to what they were: what code keeps there of some examples must not reach
others."""

from __future__ import annotations

import torch
from torch import nn


class KeptBuffers:
    """Holds the buffers of a model as they are now, and puts them back; those that appear later go away."""

    def __init__(self, model: nn.Module) -> None:
        self._kept = [
            (
                module,
                dict(module._buffers),
                [(b, b.detach().clone()) for b in module._buffers.values() if b is not None],
            )
            for module in model.modules()
        ]

    @torch.no_grad()
    def restore(self) -> None:
        for module, buffers, values in self._kept:
            if not buffers and not module._buffers:
                continue
            module._buffers.clear()
            module._buffers.update(buffers)
            for buffer, value in values:
                buffer.copy_(value)
