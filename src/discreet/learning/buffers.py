"""Restores a model's buffers, so that what its code stores in them about some examples does not reach
others."""

from __future__ import annotations

import torch
from torch import nn


class KeptBuffers:
    """Holds copies of a model's buffers as they are now. `restore` puts these values back into the same
    tensors, and removes buffers that were registered later."""

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
