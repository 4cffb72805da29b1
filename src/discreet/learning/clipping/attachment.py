"""Replaces forward passes: while a model is attached, each of its layers leaves taps in a recorder.

A tap (`taps`) is what a layer keeps of one call, enough for the norm and the sum of per-example gradients.
`attach` replaces the forward passes of the model's modules and `detach` restores them. In between, each
module takes the route that `routes` chose for it:

- tapped: a known layer; its rule in `layers` (or `attention`, `layers`, `recurrent`) leaves the taps.
- isolated: an unknown module with parameters; it runs on each example by itself (`isolation.run_isolated`).
- shared: a module with parameters of its own beside its layers; it runs on the batch, with a copy of these
  parameters for each example (`isolation.run_with_copies`).
- constant: frozen batch normalization, the same affine map for each example.

Which dimension is the batch was decided for each call before (`batching`). A call whose arguments have other
shapes than those of the decision is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from . import layers
from .batching import CONSTANT as SAME_FOR_ALL
from .batching import Axis, Folded, Layout, NotBatchFirst, form_of, layout_of, leaves_of
from .isolation import Shared, each_of, run_isolated, run_with_copies, shared
from .layers import Recorder
from .routes import CONSTANT, SHARED, frozen_batch_norm, rule_of

# An axis: `routes.CONSTANT` below is a route.

# Rules of layers that work on their last dimensions alone, with a function that returns the number of these
# dimensions. Such a layer treats all dimensions before them alike, so that the batch may be any of those.
_LAST_DIMENSIONS: dict[Any, Callable[[Any], int]] = {
    layers.linear: lambda layer: 1,
    layers.transposed_linear: lambda layer: 1,
    layers.embedding: lambda layer: 0,
    layers.layer_norm: lambda layer: len(layer.normalized_shape),
    layers.rms_norm: lambda layer: len(layer.normalized_shape),
}
# In the arguments whose shapes are compared, this stands for a flat list of ids that offsets cut into bags.
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

    `routes` are those of `routes.routes`, by the module's name. With `opaque`, `torch.compile` does not trace
    the layers themselves; it compiles the model's code between them.
    """
    record_call: Any = torch.compiler.disable(_record_call) if opaque else _record_call  # type: ignore[no-untyped-call]
    for name, route in routes.items():
        module = model.get_submodule(name)
        if isinstance(vars(module).get("forward"), _AttachedForward):
            # The module has a second name in the model, and was replaced under the first.
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
    """Return a context in which a model that was given to `torch.compile` runs without compilation.

    Torch would compile the model again for each size of a batch, which changes from step to step, and for the
    replaced forward passes. The model's own code runs as it is written.
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
    """Replaces the forward pass of a module while it is attached."""

    # A `forward` that was set on this instance before (by a compiler, by a user); None where the class's ran.
    previous: Any = None


def _replace_forward(module: nn.Module, *call: Any) -> None:
    replacement = _AttachedForward(*call)
    replacement.previous = vars(module).get("forward")
    module.forward = replacement


def detach(model: nn.Module) -> None:
    """Restore every forward pass of an attached model, or of a copy of an attached model."""
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
    """Run a layer by its rule, which leaves taps in the recorder.

    While shapes are surveyed (`batching.ShapeSurvey`), run the layer's own `forward` and note its shapes.
    Inside an isolated module, and while nothing is recorded, run `forward` alone.
    """
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
    """Return a call's arguments with the flat ids and weights of an EmbeddingBag replaced by FLAT: their
    length is the number of all tokens, which depends on the examples and not on the number of examples."""
    if rule.func is not layers.embedding_bag or (len(args) < 2 and kwargs.get("offsets") is None):
        return args, kwargs
    # The second positional argument of an EmbeddingBag is `offsets`, one number per example.
    kept = [x if position == 1 or not isinstance(x, Tensor) else FLAT for position, x in enumerate(args)]
    return tuple(kept), {name: x if name == "offsets" or x is None else FLAT for name, x in kwargs.items()}


def _check_form(recorder: Recorder, name: str, args: Any, kwargs: Any) -> None:
    """Refuse a call with other arguments than those by which its batch dimensions were decided (`batching`).

    Without a decision, a dimension would be taken for the batch because it is as long, which may be a
    coincidence.
    """
    if recorder.isolated_model is not None:
        return
    leaves = leaves_of((args, kwargs))
    if recorder.layout is None or not recorder.layout.fits(leaves):
        raise NotBatchFirst(
            f"{name or 'the model'} is called with other arguments, or with a constant of another shape, "
            f"than in the first forward passes, by which the batch dimension was decided. Call it in the "
            f"same way in every forward pass."
        )


def _run_on_last(recorder: Recorder, rule: Any, x: Tensor) -> Tensor:
    """Run a layer that works on its last dimensions alone: move the batch of `x` to the front, run the rule,
    and move the batch of the result back to where the model has it."""
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
        # The batch is first already; otherwise the rule refuses the call (`Recorder.require_batch_dim`).
        result = rule(recorder, x)
    return result


def _run_on_constant(recorder: Recorder, rule: Any, x: Tensor) -> Tensor:
    """Run a layer on a tensor that is the same for all examples, once for each example.

    So each example has a gradient of its own. The result is a `Shared` tensor: to the model's code it has the
    shape of one example's result.
    """
    per_example = each_of(x) if isinstance(x, Shared) else x.unsqueeze(0).expand(recorder.batch, *x.shape)
    recorder.axes, recorder.shapes = {}, {id(per_example): recorder.shapes.get(id(x))}
    return shared(rule(recorder, per_example))


def _axes(layout: Layout | None, args: Any, kwargs: Any) -> dict[int, Axis]:
    """Return the batch dimension of each tensor among a call's arguments, by the tensor's id."""
    leaves = leaves_of((args, kwargs))
    if layout is None or len(layout.inputs) != len(leaves):
        return {}
    return {id(x): axis for x, axis in zip(leaves, layout.inputs, strict=True) if isinstance(x, Tensor)}


def _shapes(layout: Layout | None, args: Any, kwargs: Any) -> dict[int, tuple[int, ...] | None]:
    """Return the shape of one example in each tensor among a call's arguments, as it was when the batch
    dimensions were decided, by the tensor's id."""
    leaves = leaves_of((args, kwargs))
    if layout is None or len(layout.shapes) != len(leaves):
        return {}
    return {id(x): shape for x, shape in zip(leaves, layout.shapes, strict=True) if isinstance(x, Tensor)}
