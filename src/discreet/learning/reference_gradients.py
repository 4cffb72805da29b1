"""Computes gradients of single examples by torch's own backward pass, with which those of the engine are
compared.

They are computed on made-up examples only, by the probe (`safety`, `single_examples`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from .engine import ClippingEngine

# Entries that are compared or added up at a time: four megabytes, where a model may have gigabytes.
PIECE = 1 << 20


class ReferenceGradients:
    """Holds what torch itself computes for examples that run alone: the weighted sum of their gradients, and
    the squared norm of each gradient by layer."""

    def __init__(self, engine: ClippingEngine) -> None:
        self.engine = engine
        # The weighted sum, by parameter.
        self.sums = [torch.zeros_like(p).detach() for p in engine.parameters.values()]
        # For each example: squared norms by number of the layer.
        self.squared_norms: list[dict[int, float]] = []

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Add up the gradient of each weight as soon as torch has computed it, within this context, and free
        it."""
        parameters = list(self.engine.parameters.values())
        grads_before = [p.grad for p in parameters]
        handles = []
        try:
            for p, out in zip(parameters, self.sums, strict=True):
                p.grad = None
                handle = p.register_post_accumulate_grad_hook(self._collector(out))  # type: ignore[no-untyped-call]
                handles.append(handle)
            yield
        finally:
            for handle in handles:
                handle.remove()
            for p, before in zip(parameters, grads_before, strict=True):
                p.grad = before

    def _collector(self, out: Tensor) -> Callable[[Tensor], None]:
        """Return the hook of one parameter, whose weighted gradient is added to `out`."""

        def collect(p: Tensor) -> None:
            assert p.grad is not None
            gradient, p.grad = p.grad.to_dense(), None
            layer, by_layer = self.engine.layers[id(p)], self.squared_norms[-1]
            by_layer[layer] = by_layer.get(layer, 0.0) + squared_norm(gradient)
            out.add_(gradient, alpha=self.weight)

        return collect

    def add(self, loss: Tensor, weight: float) -> None:
        """Add `weight` times the gradient of one example's loss; called within `collecting`, whose hooks do
        the addition."""
        self.weight = weight
        self.squared_norms.append({})
        loss.backward(inputs=list(self.engine.parameters.values()))  # type: ignore[no-untyped-call]


def squared_norm(gradient: Tensor) -> float:
    """Return the squared norm, added up piece by piece in float64."""
    return sum(float(piece.double().square().sum()) for piece in torch.split(gradient.flatten(), PIECE))


def losses_of(engine: ClippingEngine, inputs: Any, targets: Any) -> Tensor:
    """Return the loss of each example, [B]; a tuple of inputs holds the arguments of the model."""
    args = inputs if isinstance(inputs, tuple) else (inputs,)
    with torch.no_grad():
        return engine.loss(engine.model(*args), targets)


def loss_sum(engine: ClippingEngine, inputs: Any, targets: Any) -> Tensor:
    """Return the sum of the losses, with torch's graph for its gradient."""
    args = inputs if isinstance(inputs, tuple) else (inputs,)
    total: Tensor = engine.loss(engine.model(*args), targets).sum()
    return total


def plain_gradient(engine: ClippingEngine, inputs: Any, targets: Any) -> Tensor:
    """Return the gradient of the sum of losses by torch's own backward pass, as one vector."""
    parameters = list(engine.parameters.values())
    parts = list(torch.autograd.grad(loss_sum(engine, inputs, targets), parameters, allow_unused=True))
    gradient = engine.buffer()
    for piece in torch.split(gradient, [p.numel() for p in parameters]):
        # Removed from the list, so that it is freed as soon as it is copied.
        part = parts.pop(0)
        if part is not None:
            piece.copy_(part.to_dense().flatten())
    return gradient
