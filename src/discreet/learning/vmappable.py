"""Runs functions on each example by itself: under `torch.func.vmap`, or in a loop.

The forward passes of some of torch's layers call a fused kernel for which vmap has no rule (`LSTMCell`,
`EmbeddingBag`, attention in evaluation mode), or a rule that forgets an option (`padding_idx`). While a
module runs example by example, equivalent forms replace them. Code that vmap cannot run at all (an LSTM, a
branch on the value of a tensor, a gradient checkpoint) runs in a loop over the examples, which is slower and
has the same results.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from .._errors import DiscreetError
from .batching import NotBatchFirst


def by_example(
    function: Callable[..., Any], dims: tuple[int | None, ...], *, looped: set[Any], key: Any
) -> Callable[..., Any]:
    """Return a function that runs `function` on each example by itself, and stacks the results.

    `dims` says for each argument which dimension of its tensors is the batch; None for an argument that is
    the same for all examples. Once vmap has failed, `key` is added to `looped`, and vmap is not tried again
    for functions with this key.

    Guarantee: under vmap no result depends on another example than its own; in a loop none does by way of
               its arguments.
    Proof:     under vmap the code sees tensors of one example, and cannot keep them for a later call: torch
               refuses such a tensor outside of the call. The loop hands the code one example at a time; the
               probe (`safety`) looks for values that the code keeps between two calls (in an attribute or a
               global variable), which is a test and no proof.
    """
    vmapped = torch.func.vmap(function, in_dims=dims, randomness="different")

    def run(*args: Any) -> Any:
        if key not in looped:
            try:
                # Torch's warnings about speed are of no use to the user, who did not choose vmap.
                with warnings.catch_warnings(), sdpa_kernel(SDPBackend.MATH), _no_recomputation():
                    warnings.filterwarnings("ignore", message="There is a performance drop")
                    return vmapped(*args)
            except (NotBatchFirst, DiscreetError):
                raise
            # An error that is not vmap's own is raised again by the loop.
            except Exception:
                looped.add(key)
        return _one_by_one(function, dims, args)

    return run


@contextmanager
def _no_recomputation() -> Iterator[None]:
    """Let a gradient checkpoint inside vmap fail at once: it would run its code again in the backward pass,
    when vmap has returned and its tensors are gone.

    A checkpoint around vmap runs vmap itself again, and is left alone.
    """
    with ExitStack() as stack:
        refused = torch.autograd.graph.disable_saved_tensors_hooks("a gradient checkpoint under vmap")
        # Torch raises this error within a checkpoint around vmap.
        with suppress(RuntimeError):
            stack.enter_context(refused)
        yield


def _one_by_one(function: Callable[..., Any], dims: tuple[int | None, ...], args: tuple[Any, ...]) -> Any:
    """Run the function on one example after the other."""
    split = [arg if dim is None else _examples(arg, dim) for arg, dim in zip(args, dims, strict=True)]
    batch = next(len(part) for part, dim in zip(split, dims, strict=True) if dim is not None)
    results = [
        function(*(part if dim is None else part[i] for part, dim in zip(split, dims, strict=True)))
        for i in range(batch)
    ]
    return tree_map(lambda *parts: torch.stack(parts), *results)


def _examples(batch: Any, dim: int) -> list[Any]:
    """Return a list of the examples of a batch, whose tensors may be nested in tuples, lists and dicts."""
    leaves, spec = tree_flatten(batch)
    return [
        tree_unflatten(list(own), spec) for own in zip(*(leaf.unbind(dim) for leaf in leaves), strict=True)
    ]


class _Lookups(TorchFunctionMode):
    """Replaces torch's embedding functions by forms with dense gradients, and with no gradient for the row of
    `padding_idx`, which vmap's rule forgets."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.embedding:
            return self._functional_embedding(*args, **(kwargs or {}))
        if func is torch.embedding:
            return self._torch_embedding(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _functional_embedding(
        self,
        input: Tensor,
        weight: Tensor,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
    ) -> Tensor:
        rows = F.embedding(input, weight, None, max_norm, norm_type, scale_grad_by_freq)
        return (
            rows
            if padding_idx is None
            else self._without_padding_gradient(rows, input, padding_idx % weight.shape[0])
        )

    def _torch_embedding(
        self,
        weight: Tensor,
        indices: Tensor,
        padding_idx: int = -1,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
    ) -> Tensor:
        rows = torch.embedding(weight, indices, -1, scale_grad_by_freq)
        return rows if padding_idx < 0 else self._without_padding_gradient(rows, indices, padding_idx)

    @staticmethod
    def _without_padding_gradient(rows: Tensor, ids: Tensor, padding: int) -> Tensor:
        return torch.where((ids == padding).unsqueeze(-1), rows.detach(), rows)


def embedding_bag(
    layer: nn.EmbeddingBag,
    input: Tensor,
    offsets: Tensor | None = None,
    per_sample_weights: Tensor | None = None,
) -> Tensor:
    """Return the sum, mean or maximum (`layer.mode`) of the rows of each bag of `input` [B, T]."""
    # Torch's own form, which vmap cannot run: `by_example` then falls back to its loop.
    if input.dim() != 2 or offsets is not None:
        return layer.__class__.forward(layer, input, offsets, per_sample_weights)
    rows = F.embedding(input, layer.weight)
    is_padding = (
        torch.zeros_like(input, dtype=torch.bool) if layer.padding_idx is None else input == layer.padding_idx
    )
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(-1)
    if layer.mode == "max":
        largest = rows.masked_fill(is_padding.unsqueeze(-1), -torch.inf).amax(1)
        return torch.where(is_padding.all(1, keepdim=True), torch.zeros_like(largest), largest)
    total = rows.masked_fill(is_padding.unsqueeze(-1), 0).sum(1)
    return total if layer.mode == "sum" else total / (~is_padding).sum(1, keepdim=True).clamp(min=1)


def lstm_cell(
    layer: nn.LSTMCell, input: Tensor, hx: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """Take one step of an LSTM."""
    zeros = input.new_zeros(*input.shape[:-1], layer.hidden_size)
    h, c = (zeros, zeros) if hx is None else hx
    gates = F.linear(input, layer.weight_ih, layer.bias_ih) + F.linear(h, layer.weight_hh, layer.bias_hh)
    i, f, g, o = gates.chunk(4, -1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


FORMS: dict[type[nn.Module], Callable[..., Any]] = {
    nn.EmbeddingBag: embedding_bag,
    nn.LSTMCell: lstm_cell,
}
_WITH_A_FAST_PATH = (nn.MultiheadAttention, nn.TransformerEncoderLayer)


def form_of(module: nn.Module) -> Callable[..., Any]:
    """Return a forward pass that vmap can run: the one in `FORMS`, or the module's own."""
    if type(module) in FORMS and "forward" not in vars(module):
        return partial(FORMS[type(module)], module)
    forward: Callable[..., Any] = module.forward
    return forward


@contextmanager
def vmappable(module: nn.Module) -> Iterator[None]:
    """Replace the forward passes of a module and of all modules inside it by forms that vmap can run, and
    avoid torch's fast path of attention, within this context.

    Torch takes that path in evaluation mode only, so modules that have it are set to training mode, with no
    dropout of attention.
    """
    replaced = [inner for inner in module.modules() if type(inner) in FORMS and "forward" not in vars(inner)]
    evaluating = [
        inner for inner in module.modules() if isinstance(inner, _WITH_A_FAST_PATH) and not inner.training
    ]
    dropouts = [inner.dropout for inner in evaluating]
    try:
        for inner in replaced:
            inner.forward = partial(FORMS[type(inner)], inner)
        for inner in evaluating:
            inner.training = True
            if isinstance(inner, nn.MultiheadAttention):
                inner.dropout = 0.0
        with _Lookups():
            yield
    finally:
        for inner in replaced:
            del inner.forward
        for inner, dropout in zip(evaluating, dropouts, strict=True):
            inner.training, inner.dropout = False, dropout
