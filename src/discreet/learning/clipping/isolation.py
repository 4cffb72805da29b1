"""Runs modules for which `layers` has no rule, with one copy of their parameters for each example.

The gradient of an example's copy is the example's gradient. `run_isolated` runs a module on each example by
itself (`batching.by_example`), so that examples cannot be mixed. `run_with_copies` runs a module's code on
the whole batch, with `Shared` tensors in place of its parameters. `routes` chooses between the two: the
routes "isolated" and "shared".

Stores values that are the same for all examples (shared tensors) once for each example, so that each
example has a gradient of its own.

Such a tensor is the result of a layer on a constant, or a parameter that a module uses itself
(`run_with_copies`). The positions of a text, for example, are a constant ([T], or [1, T]); their
embedding is the same for all examples, and torch's gradient of it is a sum over the batch. So the engine
stores the embedding B times, once for each of B examples. The model's code does not know this: a `Shared`
tensor shows it the shape without the examples' dimension. The operations in `_HANDLERS` keep the examples
apart; all others are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import stateless
from torch.utils._pytree import tree_flatten, tree_unflatten

from .batching import CONSTANT, UNCLEAR, Axis, Folded, NotBatchFirst, by_example, leaves_of, vmappable
from .layers import Recorder
from .taps import Rows, Tap, Target, single

_Handler = Callable[..., Any]
_HANDLERS: dict[Any, _Handler] = {}
# How messages name a shared tensor.
_SUBJECT = "a tensor that is the same for all examples (a parameter, or the result of a layer on a constant)"
_UNUSUAL = f"the model combines {_SUBJECT} in an unusual way (out=, alpha=, rounding_mode=)."


class Shared(Tensor):
    """Holds a tensor that is the same for all examples, once for each of them: it is stored as [B, *shape],
    and the model's code sees `shape`."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        handler = _HANDLERS.get(func)
        if handler is None:
            raise NotBatchFirst(
                f"the model applies {getattr(func, '__name__', func)} to {_SUBJECT}, and it is not known how "
                f"to keep examples apart in that."
            )
        with torch._C.DisableTorchFunctionSubclass():
            return handler(*args, **(kwargs or {}))


def shared(each: Tensor) -> Tensor:
    """Return [B, *shape] as a shared tensor, which hides its first dimension, the examples."""
    return each.as_subclass(Shared)


def each_of(tensor: Tensor) -> Tensor:
    """Return a shared tensor as it is stored, [B, *shape]."""
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.as_subclass(Tensor)


def _handles(*functions: Any) -> Callable[[_Handler], _Handler]:
    """Register a handler for these functions of torch."""

    def register(handler: _Handler) -> _Handler:
        _HANDLERS.update(dict.fromkeys(functions, handler))
        return handler

    return register


def _pairwise(function: Callable[[Any, Any], Tensor]) -> _Handler:
    """Return the handler of an elementwise function of two tensors, at least one of them shared."""

    def run(one: Any, other: Any, *, alpha: Any = 1, **rest: Any) -> Tensor:
        if rest or alpha != 1:
            raise NotBatchFirst(_UNUSUAL)
        if isinstance(one, Shared) and isinstance(other, Shared):
            return _combine_shared(function, one, other)
        if isinstance(one, Shared):
            plain, each = other, one.as_subclass(Tensor)
            return _combine_with_plain(lambda a, b: function(b, a), plain, each)
        return _combine_with_plain(function, one, other.as_subclass(Tensor))

    return run


def _combine_shared(function: Callable[[Any, Any], Tensor], one: Tensor, other: Tensor) -> Tensor:
    """Return the function of two shared tensors, which is a shared tensor."""
    if one.dim() != other.dim():
        raise NotBatchFirst(
            f"the model combines two tensors of different numbers of dimensions, each of them {_SUBJECT}."
        )
    return shared(function(one.as_subclass(Tensor), other.as_subclass(Tensor)))


def _combine_with_plain(function: Callable[[Any, Any], Tensor], plain: Any, each: Tensor) -> Tensor:
    """Return function(plain, each), where `each` [B, *shape] is a shared tensor as it is stored.

    The result is an ordinary batch if `plain` is one, and a shared tensor if `plain` is a constant: a number,
    a tensor with no dimensions, with fewer than `shape` or with a first dimension of 1, or one with as many
    dimensions where `shape` does not begin with 1. Sizes that coincide could make a batch look like a
    constant; the engine runs the model at two batch sizes to notice that (`ClippingEngine.decide`). Where
    `plain` has more dimensions than `shape`, ones are inserted behind B, as broadcasting would do it.
    """
    # The number of dimensions that the model's code sees.
    batch, dims = len(each), each.dim() - 1
    if not isinstance(plain, Tensor) or plain.dim() < max(dims, 1):
        return shared(function(plain, each))
    if plain.dim() and plain.shape[0] == 1 < batch:
        # It has one row for all examples: a constant, too.
        each = each.view(batch, *[1] * (plain.dim() - dims), *each.shape[1:])
        return shared(function(plain, each))
    if plain.dim() > dims:
        each = each.view(batch, *[1] * (plain.dim() - 1 - dims), *each.shape[1:])
    elif each.shape[1] == 1:
        each = each.squeeze(1)
    else:
        return shared(function(plain, each))
    if plain.shape[0] != batch:
        raise NotBatchFirst(f"the model combines {_SUBJECT} with a tensor that is not one row per example.")
    return function(plain, each)


for _name in ("add", "sub", "mul", "div"):
    _function = getattr(torch, _name)
    _handler = _pairwise(_function)
    _HANDLERS.update(
        dict.fromkeys((_function, getattr(Tensor, _name), getattr(Tensor, f"__{_name}__", None)), _handler)
    )
_HANDLERS[Tensor.__radd__] = _HANDLERS[torch.add]
_HANDLERS[Tensor.__rmul__] = _HANDLERS[torch.mul]
_HANDLERS[Tensor.__truediv__] = _HANDLERS[torch.div]
# Where `Tensor` has no method of a name, such as __div__, the loop above has added the key None.
_HANDLERS.pop(None, None)


@_handles(Tensor.add_, Tensor.__iadd__)
def _add_in_place(one: Tensor, other: Tensor, *, alpha: Any = 1) -> Tensor:
    """Add, where one of the two is shared; in place only if `one` is not.

    `one += other` assigns the result. A model that calls `one.add_(other)` on a shared tensor and drops the
    result loses the sum: then its gradients are not torch's, and `single_examples` refuses it.
    """
    if alpha != 1:
        raise NotBatchFirst(_UNUSUAL)
    if isinstance(one, Shared):
        added: Tensor = _HANDLERS[torch.add](one, other)
        return added
    return one.add_(_HANDLERS[torch.add](torch.zeros_like(one), other))


def _elementwise(function: Callable[..., Any]) -> _Handler:
    """Return the handler of an elementwise function of its first argument, which keeps the examples apart.

    Where only a later argument is shared, as in `batch.to(shared)`, the result is an ordinary tensor. Dropout
    draws a mask for each example, where the model's own run has one mask for all of them.
    """

    def run(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        later = (each_of(value) if isinstance(value, Shared) else value for value in args)
        result = function(tensor.as_subclass(Tensor), *later, **kwargs)
        return shared(result) if isinstance(tensor, Shared) else result

    return run


for _function in (
    torch.nn.functional.dropout,
    torch.nn.functional.gelu,
    torch.nn.functional.relu,
    torch.nn.functional.silu,
    torch.relu,
    torch.tanh,
    torch.sigmoid,
    torch.sin,
    torch.cos,
    Tensor.to,
    Tensor.float,
    Tensor.contiguous,
    Tensor.clone,
    Tensor.detach,
    Tensor.type_as,
    Tensor.tanh,
    Tensor.relu,
    Tensor.sigmoid,
    torch.clone,
    Tensor.neg,
    torch.dropout,
):
    _HANDLERS[_function] = _elementwise(_function)


def _inner_dim(dim: int) -> int:
    """Return which stored dimension the model's code means by `dim`: the examples' dimension comes first."""
    return dim if dim < 0 else dim + 1


@_handles(Tensor.unsqueeze, torch.unsqueeze)
def _unsqueeze(tensor: Tensor, dim: int) -> Tensor:
    return shared(tensor.as_subclass(Tensor).unsqueeze(_inner_dim(dim)))


@_handles(Tensor.transpose, torch.transpose)
def _transpose(tensor: Tensor, dim0: int, dim1: int) -> Tensor:
    return shared(tensor.as_subclass(Tensor).transpose(_inner_dim(dim0), _inner_dim(dim1)))


@_handles(Tensor.permute, torch.permute)
def _permute(tensor: Tensor, *dims: Any) -> Tensor:
    dims = tuple(dims[0]) if len(dims) == 1 and not isinstance(dims[0], int) else dims
    rank = tensor.as_subclass(Tensor).dim() - 1
    return shared(tensor.as_subclass(Tensor).permute(0, *(dim % rank + 1 for dim in dims)))


@_handles(torch.where)
def _where(condition: Tensor, one: Any, other: Any) -> Tensor:
    """Choose between a shared tensor and a number, by a condition that is not shared."""
    numbers = [value for value in (one, other) if not isinstance(value, Tensor) or not value.dim()]
    if isinstance(condition, Shared) or len(numbers) != 1:
        raise NotBatchFirst(f"the model chooses by, or between, {_SUBJECT}.")
    if isinstance(one, Shared):
        stored = one.as_subclass(Tensor)
        return _combine_with_plain(lambda c, each: torch.where(c, each, other), condition, stored)
    stored = other.as_subclass(Tensor)
    return _combine_with_plain(lambda c, each: torch.where(c, one, each), condition, stored)


@_handles(Tensor.masked_fill)
def _masked_fill(tensor: Tensor, mask: Tensor, value: Any) -> Tensor:
    filled: Tensor = _where(mask, value, tensor)
    return filled


@_handles(torch.nn.functional.scaled_dot_product_attention)
def _attend(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None, *args: Any, **rest: Any
) -> Tensor:
    """Run attention with a shared mask or bias of positions, as T5 has it; all else must not be shared."""
    if any(isinstance(tensor, Shared) for tensor in (query, key, value)):
        raise NotBatchFirst(f"the model attends to {_SUBJECT}.")
    # Returns the mask itself, with its dimensions lined up with those of `query`.
    mask = _combine_with_plain(lambda _, each: each, query, attn_mask.as_subclass(Tensor))
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, mask, *args, **rest)


@_handles(Tensor.expand)
def _expand(tensor: Tensor, *sizes: Any) -> Tensor:
    return _one_for_each_example(tensor, sizes, lambda size, inner: size in (-1, inner))


@_handles(Tensor.repeat)
def _repeat(tensor: Tensor, *times: Any) -> Tensor:
    return _one_for_each_example(tensor, times, lambda count, inner: count == 1)


def _one_for_each_example(tensor: Tensor, sizes: Any, is_kept: Callable[[int, int], bool]) -> Tensor:
    """Return the batch [B, *shape] itself where the model expands or repeats a shared tensor to B copies.

    `sizes` are the arguments of the model's call, the first for the dimension of the copies. `is_kept` says
    of any other argument, and of the size of its dimension, whether the call leaves that dimension as it is.
    """
    each = tensor.as_subclass(Tensor)
    sizes = tuple(sizes[0]) if len(sizes) == 1 and isinstance(sizes[0], tuple | list | torch.Size) else sizes
    inner = each.squeeze(1) if each.dim() == len(sizes) + 1 and each.shape[1] == 1 else each
    rest_is_kept = all(map(is_kept, sizes[1:], inner.shape[1:]))
    if inner.dim() != len(sizes) or sizes[0] != len(each) or not rest_is_kept:
        raise NotBatchFirst(f"the model expands {_SUBJECT} to something else than one for each example.")
    return inner


@_handles(Tensor.__getitem__)
def _item(tensor: Tensor, index: Any) -> Tensor:
    """Index the dimensions that the model's code sees, by integers and slices."""
    index = index if isinstance(index, tuple) else (index,)
    if not all(part is None or part is Ellipsis or isinstance(part, int | slice) for part in index):
        raise NotBatchFirst(f"the model picks from {_SUBJECT} by a tensor of positions.")
    return shared(tensor.as_subclass(Tensor)[(slice(None), *index)])


@_handles(Tensor.shape.__get__)  # type: ignore[attr-defined]
def _shape(tensor: Tensor) -> torch.Size:
    return tensor.as_subclass(Tensor).shape[1:]


@_handles(Tensor.size)
def _size(tensor: Tensor, dim: int | None = None) -> Any:
    shape = tensor.as_subclass(Tensor).shape[1:]
    return shape if dim is None else shape[dim]


@_handles(Tensor.dim, Tensor.ndim.__get__)  # type: ignore[attr-defined]
def _dim(tensor: Tensor) -> int:
    return tensor.as_subclass(Tensor).dim() - 1


def _property_handler(name: str) -> _Handler:
    """Return the handler of a property that does not depend on the shape."""
    return lambda tensor: getattr(tensor.as_subclass(Tensor), name)


for _property in ("dtype", "device", "requires_grad"):
    _HANDLERS[getattr(Tensor, _property).__get__] = _property_handler(_property)


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
    the copies of all examples. Operations on it that are not in `_HANDLERS` are refused.
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

    `forward` is the module's forward pass, in a form that vmap can run (`batching.form_of`).

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
