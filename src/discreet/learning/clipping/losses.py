"""Computes losses as vectors, with one number for each example.

Those of torch's losses that are listed here are computed without a reduction over the batch; *within* an
example they average or add up as their `reduction` says. Any other loss, and a user's function, must return
one loss per example. A loss that divides by a property of the whole batch (a sum of class weights) lets one
person move everybody's gradient, and is refused: torch's losses are refused here, and a user's loss by the
probe, which tries model and loss on made-up examples (`safety`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..._errors import InvalidInput, Unsupported
from .batching import by_example

# A function of (outputs, targets).
Loss = Callable[[Any, Any], Tensor]

_ELEMENTWISE = (
    nn.MSELoss,
    nn.L1Loss,
    nn.SmoothL1Loss,
    nn.HuberLoss,
    nn.BCELoss,
    nn.BCEWithLogitsLoss,
    nn.PoissonNLLLoss,
    nn.SoftMarginLoss,
)
_CLASSIFICATION = (nn.CrossEntropyLoss, nn.NLLLoss)
# Losses that may be given by name.
NAMES: dict[str, Callable[[], nn.Module]] = {
    "cross_entropy": nn.CrossEntropyLoss,
    "mse": nn.MSELoss,
    "bce": nn.BCEWithLogitsLoss,
}
# Torch's functional forms, each taken for the class with its default options.
_FUNCTIONS = {
    F.cross_entropy: nn.CrossEntropyLoss,
    F.nll_loss: nn.NLLLoss,
    F.mse_loss: nn.MSELoss,
    F.l1_loss: nn.L1Loss,
    F.smooth_l1_loss: nn.SmoothL1Loss,
    F.huber_loss: nn.HuberLoss,
    F.binary_cross_entropy: nn.BCELoss,
    F.binary_cross_entropy_with_logits: nn.BCEWithLogitsLoss,
}


def per_example(loss: Any, *, isolate: bool = False) -> Loss:
    """Return the loss as a function of (outputs, targets) that returns a vector, one entry for each example.

    `isolate` runs a user's loss on each example by itself.
    """
    if isinstance(loss, str):
        if loss not in NAMES:
            raise InvalidInput(
                f"loss must be one of {', '.join(NAMES)}, a torch loss, or a function; got {loss!r}."
            )
        loss = NAMES[loss]()
    if isinstance(loss, type):
        raise InvalidInput(f"loss must be an instance, got the class: write {loss.__name__}().")
    if not callable(loss):
        raise InvalidInput(f"loss must be callable, got {type(loss).__name__}.")
    loss = next((kind() for function, kind in _FUNCTIONS.items() if loss is function), loss)
    if isinstance(loss, nn.Module) and any(p.requires_grad for p in loss.parameters()):
        raise Unsupported("a loss with trainable parameters is not supported: make it a part of the model.")
    if type(loss) in _CLASSIFICATION:
        return _classification(loss)
    if type(loss) in _ELEMENTWISE:
        return _elementwise(loss)
    if getattr(loss, "reduction", "none") != "none":
        raise InvalidInput(
            f"{type(loss).__name__} reduces over the batch (reduction={loss.reduction!r}). Give a function "
            "that uses it with reduction='none' and returns one loss for each example."
        )
    return _isolate_loss(loss) if isolate else _check_lengths(loss)


class CrossEntropy:
    """Computes cross-entropy without class weights or smoothing, and its gradient in closed form: softmax
    minus the label's indicator. The closed form is faster than torch's forward and backward pass of the loss.

    `general` computes the losses, also of targets that the closed form does not cover; `ignored` is the label
    (`ignore_index`) whose loss is zero.
    """

    def __init__(self, general: Loss, ignored: int) -> None:
        self._general, self._ignored = general, ignored

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self._general(outputs, targets)

    def gradient(self, outputs: Tensor, targets: Tensor) -> Tensor | None:
        """Return the gradient of each example's loss by its outputs, [B, classes] for B examples; None where
        the closed form does not apply, which depends on shapes and dtypes alone, or where a label is no
        class.

        The closed form must cover ignored labels, too: on None the engine runs autograd, which rounds
        differently, so that one example with an ignored label would change the gradients of all others.
        """
        is_plain = outputs.dim() == 2 and targets.dim() == 1 and len(outputs) == len(targets) > 0
        if (
            not is_plain
            or targets.dtype is not torch.int64
            or outputs.dtype not in (torch.float32, torch.float64)
        ):
            return None
        is_ignored = targets == self._ignored
        result = _softmax(outputs.detach())
        positions = targets.masked_fill(is_ignored, 0).unsqueeze(0)
        try:
            result.scatter_add_(0, positions, _minus_one(result.dtype, result.device).expand(positions.shape))
        except RuntimeError:
            # A label is no class. The general loss raises an error for it.
            return None
        return result.masked_fill_(is_ignored, 0).T


# Up to this number of classes the softmax is computed on the transposed outputs (`_softmax`). Chosen by hand,
# not tuned.
_COLUMNWISE_CLASSES = 64


@lru_cache(maxsize=16)
def _minus_one(dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor(-1.0, dtype=dtype, device=device)


def _softmax(outputs: Tensor) -> Tensor:
    """Return the softmax of outputs [B, classes], transposed to [classes, B].

    Torch's kernel over the first dimension is several times as fast as that over the last one where the last
    one is short.
    """
    if outputs.shape[1] <= _COLUMNWISE_CLASSES:
        return torch.softmax(outputs.T.contiguous(), 0)
    return torch.softmax(outputs, 1).T


def _classification(loss: Any) -> Loss:
    """Return cross-entropy or negative log-likelihood per example, reduced within each example only."""
    if loss.weight is not None and loss.reduction == "mean":
        raise Unsupported(
            f"{type(loss).__name__}(weight=..., reduction='mean') divides by the summed weights of the "
            "batch, so that one person moves everybody's gradient. Use reduction='sum', and scale the "
            "weights yourself."
        )
    smoothing = getattr(loss, "label_smoothing", 0.0)
    is_cross_entropy = isinstance(loss, nn.CrossEntropyLoss)

    def compute(outputs: Tensor, targets: Tensor) -> Tensor:
        options = {"weight": loss.weight, "ignore_index": loss.ignore_index, "reduction": "none"}
        if is_cross_entropy:
            losses = F.cross_entropy(outputs, targets, label_smoothing=smoothing, **options)
        else:
            losses = F.nll_loss(outputs, targets, **options)
        if losses.dim() == 1:
            return losses
        losses = losses.flatten(1)
        if loss.reduction != "mean":
            return _sum_losses(loss, losses)
        if targets.dtype.is_floating_point:
            return losses.mean(1)
        # The divisor is the number of labels of this example, never one of the whole batch.
        labels_per_example = (targets.flatten(1) != loss.ignore_index).sum(1)
        mean: Tensor = losses.sum(1) / labels_per_example.clamp(min=1)
        return mean

    return (
        CrossEntropy(compute, loss.ignore_index)
        if is_cross_entropy and loss.weight is None and not smoothing
        else compute
    )


def _elementwise(loss: Any) -> Loss:
    """Return an elementwise loss (squared, absolute, binary cross-entropy) per example, reduced within each
    example only."""
    unreduced = copy.copy(loss)
    unreduced.reduction = "none"
    weight_names = [name for name in ("weight", "pos_weight") if getattr(loss, name, None) is not None]

    def compute(outputs: Tensor, targets: Tensor) -> Tensor:
        if outputs.shape != targets.shape:
            raise InvalidInput(
                f"{type(loss).__name__} needs targets of the outputs' shape {tuple(outputs.shape[1:])} per "
                f"example, got {tuple(targets.shape[1:])}: broadcasting would pair each example with all "
                "others."
            )
        if any(
            getattr(loss, n).dim() >= outputs.dim() and getattr(loss, n).shape[0] > 1 for n in weight_names
        ):
            raise Unsupported(
                f"{type(loss).__name__} has a weight for each position in the batch, and examples have no "
                "fixed position; give one weight per output."
            )
        losses: Tensor = unreduced(outputs, targets)
        if losses.dim() == 1:
            return losses
        per_output = losses.flatten(1)
        return per_output.mean(1) if loss.reduction == "mean" else _sum_losses(loss, per_output)

    return compute


def _sum_losses(loss: Any, losses: Tensor) -> Tensor:
    """Return the sum of the losses within each example, from [B, losses]; with reduction "none" refuse more
    than one loss per example."""
    if loss.reduction == "sum" or losses.shape[1] == 1:
        return losses.sum(1)
    raise InvalidInput(
        f"{type(loss).__name__}(reduction='none') leaves {losses.shape[1]} losses for each example: say "
        "reduction='sum' or 'mean' for what to do within an example."
    )


def _check_lengths(loss: Loss) -> Loss:
    """Return the user's loss, with an error if it does not return one number per example."""

    def compute(outputs: Any, targets: Any) -> Tensor:
        losses = loss(outputs, targets)
        batch = len(torch.utils._pytree.tree_leaves(targets)[0])
        if not isinstance(losses, Tensor) or tuple(losses.shape) != (batch,):
            shape = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
            raise InvalidInput(
                "the loss must return one number for each example, a vector as long as the batch; got shape "
                f"{shape}. Do not average over the batch: the trainer divides by the expected batch size."
            )
        return losses

    return compute


def _isolate_loss(loss: Loss) -> Loss:
    """Return the user's loss, run on each example by itself as a batch of one."""

    def example_loss(outputs: Any, targets: Any) -> Tensor:
        map_tensors = torch.utils._pytree.tree_map
        losses = loss(
            map_tensors(lambda t: t.unsqueeze(0), outputs), map_tensors(lambda t: t.unsqueeze(0), targets)
        )
        return losses.sum()

    return by_example(example_loss, (0, 0), looped=set(), key="loss")
