"""The clipped sum: per-example gradients, each scaled to the clip, added up; one forward and one backward pass.

>>> from torch import nn
>>> model = nn.Linear(4, 2)
>>> engine = Engine(model, nn.CrossEntropyLoss())
>>> with engine.attached():
...     total = engine.clipped_sum(torch.randn(8, 4), torch.zeros(8, dtype=torch.long), clip=0.1)
>>> [tuple(part.shape) for part in engine.parts(total).values()]
[(2, 4), (2,)]
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .._errors import InvalidInput, Unsupported
from . import plan
from .clipping import Clipping, PerLayer, as_clipping, factors
from .layers import NotBatchFirst, Recorder
from .losses import CrossEntropy, per_example
from .taps import Tap, merged


@dataclass
class Gradients:
    """The gradients of one batch, each example's by itself, as taps; `squares` bounds their squared norms, [B, layers or 1]."""

    taps: list[Tap]
    squares: Tensor
    losses: Tensor

    def add(self, weights: Tensor, sums: dict[int, Tensor], layers: dict[int, int]) -> None:
        """Add the weighted sum to the buffers. `weights` is [B, 1], or [B, layers]."""
        columns = weights.unbind(1)
        for tap in self.taps:
            tap.add(columns[layers[id(tap.target.parameter)] if len(columns) > 1 else 0], sums)

    def silence(self, keep: Tensor) -> None:
        for tap in self.taps:
            tap.silence(keep)


class Engine:
    """Clipped gradient sums of a model under a loss. The loss is one number for each example.

    `isolate=True` runs the whole model and the loss example by example under vmap: slower, and mixing examples is impossible.
    """

    def __init__(self, model: nn.Module, loss: Any, *, isolate: bool = False) -> None:
        self.model, self.isolate = model, isolate
        self.loss = per_example(loss, isolate=isolate)
        self.routes = plan.routes(model)
        if isolate:
            self.routes = {"": "isolated"}
        self.recorder, self.is_attached = Recorder(), False
        self.parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        if not self.parameters:
            raise InvalidInput("the model has no trainable parameters. Nothing was read or trained.")
        self.dtype = next(iter(self.parameters.values())).dtype
        kinds = {p.dtype for p in self.parameters.values()}
        if not kinds <= {torch.float32} and not kinds <= {torch.float64}:
            raise Unsupported(
                f"trainable parameters must all be float32 (or all float64), got {sorted(map(str, kinds))}. Keep them in float32 and "
                f"use torch.autocast inside the model for half precision. Nothing was read or trained."
            )
        self.layers = _layers(self.parameters)

    @property
    def size(self) -> int:
        """How many numbers the model learns."""
        return sum(p.numel() for p in self.parameters.values())

    def buffer(self) -> Tensor:
        """A zero vector with room for one number per trainable parameter."""
        return torch.zeros(self.size, dtype=self.dtype)

    def parts(self, vector: Tensor) -> dict[str, Tensor]:
        """Views of such a vector in the shapes of the parameters, by name."""
        sizes = [p.numel() for p in self.parameters.values()]
        pairs = zip(self.parameters.items(), torch.split(vector, sizes), strict=True)
        return {name: piece.view(p.shape) for (name, p), piece in pairs}

    def sums(self, vector: Tensor) -> dict[int, Tensor]:
        """The same views by id of the parameter, as taps want them."""
        return {id(p): part for p, part in zip(self.parameters.values(), self.parts(vector).values(), strict=True)}

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Within this context the model leaves what the engine needs; outside, it is as it was."""
        with plan.attached(self.model, self.recorder, self.routes):
            self.is_attached = True
            try:
                yield
            finally:
                self.is_attached = False

    def gradients(self, inputs: Any, targets: Any, *, by_layer: bool = True, losses: bool = True) -> Gradients:
        """Forward and backward of one batch; the first dimension of every tensor is the batch. The losses only where they are asked for."""
        inputs = inputs if isinstance(inputs, tuple) else (inputs,)
        recorder = self.recorder
        recorder.batch, recorder.active = len(inputs[0]), True
        try:
            with torch.enable_grad():
                outputs = self.model(*inputs)
                gradient = self._closed(outputs, targets)
                each = self.loss(outputs, targets) if losses or gradient is None else torch.empty(0)
                taps = merged(recorder.taps(each if gradient is None else outputs, gradient))
        except NotBatchFirst as error:
            raise Unsupported(f"{error} Or run everything example by example: isolate=True.") from None
        finally:
            recorder.active, recorder.edges, recorder.notes = False, [], []
        each = each.detach()
        if by_layer or not taps:
            return Gradients(taps, self._squares(taps, recorder.batch), each)
        total = taps[0].square()
        for tap in taps[1:]:
            total.add_(tap.square())
        return Gradients(taps, total.unsqueeze(1), each)

    def _closed(self, outputs: Any, targets: Any) -> Tensor | None:
        """The gradient of the losses by the outputs, where the loss knows it."""
        if (
            not isinstance(self.loss, CrossEntropy)
            or not isinstance(outputs, Tensor)
            or not isinstance(targets, Tensor)
        ):
            return None
        return self.loss.gradient(outputs, targets)

    def _squares(self, taps: list[Tap], batch: int) -> Tensor:
        by_layer: list[Any] = [0.0] * (max(self.layers.values()) + 1)
        for tap in taps:
            place = self.layers[id(tap.target.parameter)]
            by_layer[place] = by_layer[place] + tap.square()
        zero = torch.zeros(batch, dtype=torch.float64)
        return torch.stack([zero if isinstance(s, float) else s for s in by_layer], 1)

    def clipped_sum(self, inputs: Any, targets: Any, *, clip: float | Clipping, into: Tensor | None = None) -> Tensor:
        """The sum over the batch of each example's gradient, scaled by the rule; added to `into` where that is given.

        Guarantee: adding or removing one example moves the sum by at most clip in l2 norm (up to the rounding of the sum itself).
        Proof:     each term is a function of its own example (checked by `safety.probe`, or by construction with `isolate`),
                   and no longer than clip (`clipping.factors`, `taps`). An example whose gradient is not finite is zero.
        Assumes:   the model's code computes each example's output from that example alone.
        """
        out = self.buffer() if into is None else into
        self.add_clipped(inputs, targets, as_clipping(clip), self.sums(out))
        return out

    def add_clipped(self, inputs: Any, targets: Any, rule: Clipping, sums: dict[int, Tensor]) -> None:
        found = self.gradients(inputs, targets, by_layer=isinstance(rule, PerLayer), losses=False)
        weights, keep = factors(rule, found.squares)
        if keep is not None:
            found.silence(keep)
        with torch.no_grad():
            found.add(weights.to(self.dtype), sums, self.layers)


def _layers(parameters: dict[str, nn.Parameter]) -> dict[int, int]:
    """By id of the parameter: the number of the layer, that is of the module which holds it."""
    owners: dict[str, int] = {}
    return {id(p): owners.setdefault(name.rpartition(".")[0], len(owners)) for name, p in parameters.items()}
