"""Modules whose own parameters are used by code that we do not know: one copy of them for each example.

`run_isolated` runs such a module on each example by itself (`vmappable.by_example`), where examples cannot
meet. `run_with_copies` runs its code on the batch, with parameters that have one row per example.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.nn.utils import stateless
from torch.utils._pytree import tree_flatten, tree_unflatten

from .batching import CONSTANT, UNCLEAR, Axis, Folded, NotBatchFirst, leaves_of
from .bounds import single
from .layers import Recorder
from .shared import Shared, each_of, shared
from .taps import Rows, Tap, Target
from .vmappable import by_example, vmappable

# Stands for a tensor in what a module returns.
_TENSOR = object()


def _copies(parameters: dict[str, nn.Parameter], batch: int) -> dict[str, Tensor]:
    """Return one copy of each parameter per example, as an expanded view."""
    return {key: p.detach().expand(batch, *p.shape).requires_grad_() for key, p in parameters.items()}


def run_with_copies(
    module: nn.Module, recorder: Recorder, forward: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """Run the module's own code on the batch, with a copy of each parameter of its own for every example.

    The code sees the shape that it expects (`shared`): what it does beyond what is known there is refused,
    not guessed.
    """
    if recorder.inside or not recorder.active or recorder.survey is not None:
        return forward(*args, **kwargs)
    parameters = dict(module._parameters)
    trainable = {str(id(p)): p for p in parameters.values() if p is not None and p.requires_grad}
    copies = _copies(trainable, recorder.batch)
    stand_ins: Any = {
        name: shared(copies[str(id(p))])
        for name, p in parameters.items()
        if p is not None and p.requires_grad
    }
    try:
        module._parameters.update(stand_ins)
        results = forward(*args, **kwargs)
    finally:
        module._parameters.update(parameters)
    if any(isinstance(leaf, Shared) for leaf in leaves_of(results)):
        raise NotBatchFirst(f"{type(module).__name__} returns what it made of its own parameters alone.")
    _note_copies(recorder, trainable, copies)
    return results


def run_isolated(
    forward: Callable[..., Any], module: nn.Module, recorder: Recorder, *args: Any, **kwargs: Any
) -> Any:
    """Run the module on each example by itself, as a batch of one, with a copy of its parameters for each
    example.

    Guarantee: no example's output or gradient depends on another example; where vmap cannot run the module
               and a loop does, unless its code keeps something between two calls.
    Proof:     that of `by_example`. Which tensors have examples in them, and in which dimension, was decided
               from two batch sizes (`batching`): a tensor that stays as it is has none of them. What the
               module returns as the same for all examples is kept apart, one for each of them (`shared`).
    """
    parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
    copies = _copies(parameters, recorder.batch)
    flat, spec = tree_flatten((args, kwargs))
    dims, outer_dims = _dims(module, recorder, flat)
    # How the results are nested, and those among them that are not tensors.
    structure: list[Any] = []

    own_dims = [0 if isinstance(x, Shared) else d for x, d in zip(flat, dims, strict=True)]
    flat = [each_of(x) if isinstance(x, Shared) else x for x in flat]

    def run_example(params: dict[str, Tensor], *inputs: Any) -> Any:
        example = [x if d is None else x.unsqueeze(d) for x, d in zip(inputs, dims, strict=True)]
        a, k = tree_unflatten(example, spec)
        with stateless._reparametrize_module(module, params, tie_weights=True):
            leaves, outer = tree_flatten(forward(*a, **k))
        own = [outer, *(_TENSOR if isinstance(leaf, Tensor) else leaf for leaf in leaves)]
        if structure and _plain(structure) != _plain(own):
            raise NotBatchFirst(
                f"{type(module).__name__} returns a number that is not the same for all examples, and not in "
                f"a tensor: it would be one example's for all of them."
            )
        structure[:] = own
        return [
            _squeeze_batch(module, leaf, d)
            for leaf, d in zip(leaves, outer_dims or (0,) * len(leaves), strict=True)
            if isinstance(leaf, Tensor)
        ]

    recorder.inside = True
    try:
        with vmappable(module):
            run = by_example(run_example, (0, *own_dims), looped=recorder.looped, key=id(module))
            tensors = iter(run(copies, *flat))
    finally:
        recorder.inside = False
    _note_copies(recorder, parameters, copies)
    outer, *leaves = structure
    pairs = zip(leaves, outer_dims or (0,) * len(leaves), strict=True)
    return tree_unflatten(
        [_in_batch(next(tensors), d) if leaf is _TENSOR else leaf for leaf, d in pairs], outer
    )


def _plain(structure: list[Any]) -> list[Any]:
    """Return how results are nested, with the numbers and texts among them."""
    return [part if isinstance(part, int | float | str) else type(part) for part in structure]


def _squeeze_batch(module: nn.Module, result: Tensor, dim: Axis) -> Tensor:
    """Return one example's result without the batch of one that it is in; what is the same for all is in
    none."""
    if dim == UNCLEAR or isinstance(dim, Folded):
        raise NotBatchFirst(
            f"{type(module).__name__}, which has parameters of its own, returns a tensor that does "
            f"not have one row per example."
        )
    return result if dim is CONSTANT or not result.dim() else result.squeeze(dim)


def _in_batch(results: Tensor, dim: Axis) -> Tensor:
    """Return the results of all examples, which are stacked, as the module would have returned them."""
    if dim is CONSTANT:
        return shared(results)
    assert isinstance(dim, int)
    return results.movedim(0, dim) if dim else results


def _dims(
    module: nn.Module, recorder: Recorder, flat: list[Any]
) -> tuple[list[int | None], tuple[Axis, ...] | None]:
    """Return the batch dimensions of arguments and of results; None for the latter with `isolate`.

    With `isolate`, where the module is the whole model, every tensor has the batch first: that is what a
    batch is.
    """
    kind = type(module).__name__
    if recorder.isolated_model is module:
        return [0 if isinstance(x, Tensor) else None for x in flat], None
    layout = recorder.layout
    if layout is None:
        raise NotBatchFirst(f"{kind} is called in another way than at the first examples.")
    dims = [axis for axis in layout.inputs if axis != UNCLEAR and not isinstance(axis, Folded)]
    if len(dims) != len(flat):
        raise NotBatchFirst(
            f"{kind} was given a tensor with the batch folded into another dimension, or twice in it, or the "
            "number of examples itself. Give it one row per example, the batch first."
        )
    if any(d is not None and x.shape[d] != recorder.batch for x, d in zip(flat, dims, strict=True)):
        raise NotBatchFirst(f"{kind} was given other shapes than at the first examples.")
    return dims, layout.outputs


def _note_copies(recorder: Recorder, parameters: dict[str, nn.Parameter], copies: dict[str, Tensor]) -> None:
    """Note in the recorder that the gradients of the copies are the per-example gradients."""

    def taps(*rows: Tensor) -> list[Tap]:
        return [Rows(Target(p), single(r)) for p, r in zip(parameters.values(), rows, strict=True)]

    recorder.note(tuple(copies.values()), taps)
