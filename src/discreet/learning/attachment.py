"""Our forward passes in the places of a model's own, so that what it runs leaves taps in a recorder.

`attach` puts them there and `detach` takes them away; between the two, each module goes the route that `plan`
chose for it: tapped, isolated, shared or constant. Calls whose arguments do not look like those by which the
batch dimension was decided (`batching`) are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from . import layers
from .batch_norm import frozen_batch_norm
from .batching import CONSTANT as SAME_FOR_ALL
from .batching import Axis, Folded, Layout, NotBatchFirst, layout_of, leaves_of
from .isolation import run_isolated, run_with_copies
from .layers import Recorder
from .plan import CONSTANT, SHARED, rule_of
from .shared import Shared, each_of, shared
from .vmappable import form_of

# Layers that work on the last dimensions alone, and on how many of them: the others are the same to them.
_LAST_DIMENSIONS: dict[Any, Callable[[Any], int]] = {
    layers.linear: lambda layer: 1,
    layers.transposed_linear: lambda layer: 1,
    layers.embedding: lambda layer: 0,
    layers.layer_norm: lambda layer: len(layer.normalized_shape),
    layers.rms_norm: lambda layer: len(layer.normalized_shape),
}
# Stands for a list of ids that is cut into bags by offsets.
FLAT = "flat"


@contextmanager
def attached(
    model: nn.Module, recorder: Recorder, routes: dict[str, str], *, opaque: bool = False
) -> Iterator[None]:
    """Attach the model within this context, and detach it at the end."""
    attach(model, recorder, routes, opaque=opaque)
    try:
        yield
    finally:
        detach(model)


def attach(model: nn.Module, recorder: Recorder, routes: dict[str, str], *, opaque: bool = False) -> None:
    """Replace the forward pass of each module by one that leaves taps in the recorder.

    `opaque` layers are not looked into by `torch.compile`, which compiles what is between them.
    """
    record_call: Any = torch.compiler.disable(_record_call) if opaque else _record_call  # type: ignore[no-untyped-call]
    for name, route in routes.items():
        module = model.get_submodule(name)
        if isinstance(vars(module).get("forward"), _AttachedForward):
            # One module under two names.
            continue
        if route == CONSTANT:
            _replace_forward(module, frozen_batch_norm, module)
        elif route == SHARED:
            _replace_forward(module, run_with_copies, module, recorder, module.forward)
        else:
            layer_rule = rule_of(module) if route == "tapped" else None
            rule = partial(layer_rule or partial(run_isolated, form_of(module)), module)
            _replace_forward(module, record_call, recorder, name, rule, module.forward)


def eager(model: nn.Module) -> AbstractContextManager[Any]:
    """Return a context in which nothing that was compiled by `torch.compile` is compiled anew.

    Batches change their size from step to step, and forward passes are ours while the model is attached:
    torch would compile for each of them. The model's own code runs as it is written.
    """
    return torch.compiler.set_stance("force_eager") if is_compiled(model) else nullcontext()


def is_compiled(model: nn.Module) -> bool:
    """Return whether the model, or a part of it, was given to `torch.compile`."""
    return any(
        getattr(module, "_compiled_call_impl", None) is not None
        or type(module).__name__ == "OptimizedModule"
        or hasattr(vars(module).get("forward"), "_torchdynamo_orig_callable")
        for module in model.modules()
    )


def compiled(model: nn.Module) -> AbstractContextManager[Any]:
    """Return a context within that of `eager` in which compiled modules run as they were compiled."""
    return torch.compiler.set_stance("default") if is_compiled(model) else nullcontext()


class _AttachedForward(partial[Any]):
    """Stands in the place of a module's forward pass while it is attached."""

    # What somebody else had put there.
    previous: Any = None


def _replace_forward(module: nn.Module, *call: Any) -> None:
    replacement = _AttachedForward(*call)
    replacement.previous = vars(module).get("forward")
    module.forward = replacement


def detach(model: nn.Module) -> None:
    """Restore every forward pass, of an attached model or of a copy of one."""
    for module in model.modules():
        forward = vars(module).get("forward")
        if isinstance(forward, _AttachedForward):
            del module.forward
            if forward.previous is not None:
                module.forward = forward.previous


def _record_call(
    recorder: Recorder,
    name: str,
    rule: Any,
    forward: Callable[..., Any],
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Run a layer by its rule, which leaves taps; in a survey, run its own forward pass and note shapes."""
    if recorder.inside or not recorder.active:
        return forward(*args, **kwargs)
    call = recorder.next_call(name)
    if recorder.survey is None:
        recorder.layout = layout_of(recorder.layouts, call)
        _check_form(recorder, name, args, kwargs)
        recorder.axes = _axes(recorder.layout, args, kwargs)
        recorder.shapes = _shapes(recorder.layout, args, kwargs)
        if rule.func in _LAST_DIMENSIONS and len(args) == 1 and isinstance(args[0], Tensor) and not kwargs:
            return _run_on_last(recorder, rule, *args)
        return rule(recorder, *args, **kwargs)
    recorder.inside = True
    try:
        results = forward(*args, **kwargs)
    finally:
        recorder.inside = False
    recorder.survey.note(call, _without_flat_lists(rule, args, kwargs), results)
    return results


def _without_flat_lists(rule: Any, args: Any, kwargs: Any) -> Any:
    """Return a call's arguments with the flat ids and weights of bags left out: how long they are depends on
    the examples, and says nothing of the batch."""
    if rule.func is not layers.embedding_bag or (len(args) < 2 and kwargs.get("offsets") is None):
        return args, kwargs
    flat = [FLAT if position != 1 and isinstance(x, Tensor) else x for position, x in enumerate(args)]
    return tuple(flat), {name: x if name == "offsets" or x is None else FLAT for name, x in kwargs.items()}


def _check_form(recorder: Recorder, name: str, args: Any, kwargs: Any) -> None:
    """Refuse a call that does not look like one of those by which it was decided what follows the batch.

    Without a decision a size that equals the batch's would decide, which may be a coincidence.
    """
    if recorder.isolated_model is not None:
        return
    leaves = leaves_of((args, kwargs))
    if recorder.layout is None or not recorder.layout.fits(leaves):
        raise NotBatchFirst(
            f"{name or 'the model'} is called in another way, or with a constant of another shape, "
            f"than when it was decided what follows the batch."
        )


def _run_on_last(recorder: Recorder, rule: Any, x: Tensor) -> Tensor:
    """Run a layer that works on the last dimensions alone, with the batch first, wherever the model has
    it."""
    axis = SAME_FOR_ALL if isinstance(x, Shared) else recorder.axes.get(id(x), 0)
    if axis is SAME_FOR_ALL:
        return _run_on_constant(recorder, rule, x)
    layer, batch, shape = rule.args[0], recorder.batch, recorder.shapes.get(id(x))
    result: Tensor
    if isinstance(axis, Folded) and len(x) == axis.rows * batch:
        unfolded = x.reshape(batch, axis.rows, *x.shape[1:])
        recorder.axes, recorder.shapes = {}, {id(unfolded): shape}
        result = rule(recorder, unfolded).flatten(0, 1)
    elif isinstance(axis, int) and 0 < axis < x.dim() - _LAST_DIMENSIONS[rule.func](layer):
        batch_first = x.movedim(axis, 0)
        recorder.axes, recorder.shapes = {}, {id(batch_first): shape}
        result = rule(recorder, batch_first).movedim(0, axis)
    else:
        result = rule(recorder, x)
    return result


def _run_on_constant(recorder: Recorder, rule: Any, x: Tensor) -> Tensor:
    """Run a layer on one copy of a constant per example: each has a gradient of its own, and the model's code
    sees the shape it expects."""
    per_example = each_of(x) if isinstance(x, Shared) else x.unsqueeze(0).expand(recorder.batch, *x.shape)
    recorder.axes, recorder.shapes = {}, {id(per_example): recorder.shapes.get(id(x))}
    return shared(rule(recorder, per_example))


def _axes(layout: Layout | None, args: Any, kwargs: Any) -> dict[int, Axis]:
    """Return the batch dimension of each tensor that a call is given, by its id."""
    leaves = leaves_of((args, kwargs))
    if layout is None or len(layout.inputs) != len(leaves):
        return {}
    return {id(x): axis for x, axis in zip(leaves, layout.inputs, strict=True) if isinstance(x, Tensor)}


def _shapes(layout: Layout | None, args: Any, kwargs: Any) -> dict[int, tuple[int, ...] | None]:
    """Return the shape that one example had in each tensor of a call when layouts were decided, by its id."""
    leaves = leaves_of((args, kwargs))
    if layout is None or len(layout.shapes) != len(leaves):
        return {}
    return {id(x): shape for x, shape in zip(leaves, layout.shapes, strict=True) if isinstance(x, Tensor)}
