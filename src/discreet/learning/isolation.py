"""Runs modules for which `layers` has no rule, with one copy of their parameters for each example.

The gradient of an example's copy is the example's gradient. `run_isolated` runs a module on each example by
itself (`vmappable.by_example`), so that examples cannot be mixed. `run_with_copies` runs a module's code on
the whole batch, with `Shared` tensors in place of its parameters. `plan` chooses between the two: the routes
"isolated" and "shared".
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

# Replaces a tensor where the structure of a module's results is compared.
_TENSOR = object()


def _copies(parameters: dict[str, nn.Parameter], batch: int) -> dict[str, Tensor]:
    """Return one copy of each parameter per example, [batch, *shape]: an expanded view, which takes no
    memory."""
    return {key: p.detach().expand(batch, *p.shape).requires_grad_() for key, p in parameters.items()}


def run_with_copies(
    module: nn.Module, recorder: Recorder, forward: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """Run the module's own code on the batch, with a copy for each example of the parameters that it holds
    directly, not in a submodule.

    Each of these parameters is a `Shared` tensor while the code runs: it has the parameter's shape, and holds
    the copies of all examples. Operations on it that `shared` does not know are refused.
    """
    # No copies are needed inside an isolated module, which has copies of all its parameters already; where
    # nothing is recorded; and while it is being decided which dimensions are the batch (`survey`).
    if recorder.inside or not recorder.active or recorder.survey is not None:
        return forward(*args, **kwargs)
    parameters = dict(module._parameters)
    # By id, because a parameter that has two names must have one copy.
    trainable = {str(id(p)): p for p in parameters.values() if p is not None and p.requires_grad}
    copies = _copies(trainable, recorder.batch)
    shared_parameters: Any = {
        name: shared(copies[str(id(p))])
        for name, p in parameters.items()
        if p is not None and p.requires_grad
    }
    try:
        module._parameters.update(shared_parameters)
        results = forward(*args, **kwargs)
    finally:
        module._parameters.update(parameters)
    if any(isinstance(leaf, Shared) for leaf in leaves_of(results)):
        raise NotBatchFirst(
            f"{type(module).__name__} returns a tensor that depends on its own parameters alone, not on the "
            "batch."
        )
    _note_copies(recorder, trainable, copies)
    return results


def run_isolated(
    forward: Callable[..., Any], module: nn.Module, recorder: Recorder, *args: Any, **kwargs: Any
) -> Any:
    """Run the module on each example by itself, as a batch of one, with a copy of its parameters for each
    example.

    `forward` is the module's forward pass, in a form that vmap can run (`vmappable.form_of`).

    Guarantee: no example's output or gradient depends on another example. Where vmap cannot run the module,
               so that it runs in a loop over the examples, this holds if its code keeps nothing between two
               calls.
    Proof:     that of `by_example`. Which tensors have a batch dimension, and which one it is, was decided
               from two batch sizes (`batching`); a tensor whose shape was the same at both has none. A result
               that is the same for all examples is returned as a `Shared` tensor, with one copy per example.
    """
    parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
    copies = _copies(parameters, recorder.batch)
    flat, spec = tree_flatten((args, kwargs))
    dims, output_dims = _dims(module, recorder, flat)
    # How the results are nested (tree_flatten's spec), then each leaf: _TENSOR, or the value of any other
    # leaf. Set by each example, and compared with the one before it.
    structure: list[Any] = []

    # A Shared tensor has its examples in dimension 0.
    mapped_dims = [0 if isinstance(x, Shared) else d for x, d in zip(flat, dims, strict=True)]
    flat = [each_of(x) if isinstance(x, Shared) else x for x in flat]

    def run_example(params: dict[str, Tensor], *inputs: Any) -> Any:
        example = [x if d is None else x.unsqueeze(d) for x, d in zip(inputs, dims, strict=True)]
        example_args, example_kwargs = tree_unflatten(example, spec)
        with stateless._reparametrize_module(module, params, tie_weights=True):
            leaves, result_spec = tree_flatten(forward(*example_args, **example_kwargs))
        example_structure = [
            result_spec,
            *(_TENSOR if isinstance(leaf, Tensor) else leaf for leaf in leaves),
        ]
        if structure and _comparable(structure) != _comparable(example_structure):
            raise NotBatchFirst(
                f"{type(module).__name__} returns a number, not in a tensor, that differs between examples: "
                f"all would get that of one example."
            )
        structure[:] = example_structure
        return [
            _squeeze_batch(module, leaf, d)
            for leaf, d in zip(leaves, output_dims or (0,) * len(leaves), strict=True)
            if isinstance(leaf, Tensor)
        ]

    recorder.inside = True
    try:
        with vmappable(module):
            run = by_example(run_example, (0, *mapped_dims), looped=recorder.looped, key=id(module))
            tensors = iter(run(copies, *flat))
    finally:
        recorder.inside = False
    _note_copies(recorder, parameters, copies)
    result_spec, *leaves = structure
    pairs = zip(leaves, output_dims or (0,) * len(leaves), strict=True)
    return tree_unflatten(
        [_in_batch(next(tensors), d) if leaf is _TENSOR else leaf for leaf, d in pairs], result_spec
    )


def _comparable(structure: list[Any]) -> list[Any]:
    """Return a structure of results with everything but numbers and texts replaced by its type."""
    return [part if isinstance(part, int | float | str) else type(part) for part in structure]


def _squeeze_batch(module: nn.Module, result: Tensor, dim: Axis) -> Tensor:
    """Return one example's result without its batch dimension `dim`, which has length 1; a result that is the
    same for all examples (CONSTANT) has none."""
    if dim == UNCLEAR or isinstance(dim, Folded):
        raise NotBatchFirst(
            f"{type(module).__name__}, which has parameters of its own, returns a tensor that does "
            f"not have one row per example."
        )
    return result if dim is CONSTANT or not result.dim() else result.squeeze(dim)


def _in_batch(results: Tensor, dim: Axis) -> Tensor:
    """Return stacked results of all examples as the module would have returned them: with the batch in
    dimension `dim`, or as a Shared tensor."""
    if dim is CONSTANT:
        return shared(results)
    assert isinstance(dim, int)
    return results.movedim(0, dim) if dim else results


def _dims(
    module: nn.Module, recorder: Recorder, flat: list[Any]
) -> tuple[list[int | None], tuple[Axis, ...] | None]:
    """Return the batch dimensions of a call's flattened arguments, None for an argument without one, and
    those of its results.

    Where the module is the whole model (`isolate=True`), every tensor has the batch first by the contract of
    the engine, and the dimensions of the results are returned as None.
    """
    kind = type(module).__name__
    if recorder.isolated_model is module:
        return [0 if isinstance(x, Tensor) else None for x in flat], None
    layout = recorder.layout
    if layout is None:
        raise NotBatchFirst(f"{kind} is called in another way than in the first forward passes.")
    dims = [axis for axis in layout.inputs if axis != UNCLEAR and not isinstance(axis, Folded)]
    if len(dims) != len(flat):
        raise NotBatchFirst(
            f"{kind} was given a tensor with the batch folded into another dimension, or in two dimensions, "
            "or was given the number of examples itself. Give it one row per example, the batch first."
        )
    if any(d is not None and x.shape[d] != recorder.batch for x, d in zip(flat, dims, strict=True)):
        raise NotBatchFirst(f"{kind} was given other shapes than in the first forward passes.")
    return dims, layout.outputs


def _note_copies(recorder: Recorder, parameters: dict[str, nn.Parameter], copies: dict[str, Tensor]) -> None:
    """Note in the recorder that the gradients of the copies are the per-example gradients."""

    def taps(*rows: Tensor) -> list[Tap]:
        return [Rows(Target(p), single(r)) for p, r in zip(parameters.values(), rows, strict=True)]

    recorder.note(tuple(copies.values()), taps)
