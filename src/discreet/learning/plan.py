"""Which way each part of a model takes: book-keeping, example by example, or not at all.

The classes in `KNOWN` are tapped. Any other module that holds parameters of its own runs under
`torch.func.vmap`, each example by itself, where examples cannot meet. Layers that mix examples by design are
refused, with the way out.
"""

from __future__ import annotations

import itertools
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize, stateless

from .._errors import InvalidInput, Unsupported
from . import layers
from .attention import attention
from .batching import UNCLEAR, Axis, Layout, NotBatchFirst, layout_of, leaves_of
from .bounds import single
from .convolution import convolution
from .layers import Recorder
from .recurrent import cell, recurrent
from .shared import Shared, each_of, shared
from .taps import Rows, Tap, Target
from .vmappable import form_of, vmappable

KNOWN: dict[type, Callable[..., Any]] = {
    nn.Linear: layers.linear,
    nn.Embedding: layers.embedding,
    nn.EmbeddingBag: layers.embedding_bag,
    nn.Conv1d: convolution,
    nn.Conv2d: convolution,
    nn.Conv3d: convolution,
    nn.LayerNorm: layers.layer_norm,
    nn.RMSNorm: layers.rms_norm,
    nn.GroupNorm: layers.group_norm,
    nn.InstanceNorm1d: layers.instance_norm,
    nn.InstanceNorm2d: layers.instance_norm,
    nn.InstanceNorm3d: layers.instance_norm,
    nn.MultiheadAttention: attention,
    nn.RNN: recurrent,
    nn.LSTM: recurrent,
    nn.GRU: recurrent,
    nn.RNNCell: cell,
    nn.LSTMCell: cell,
    nn.GRUCell: cell,
}
_OF_LAST_DIMENSIONS = (
    layers.linear,
    layers.transposed_linear,
    layers.embedding,
    layers.layer_norm,
    layers.rms_norm,
)
_BATCH_NORMS = (nn.modules.batchnorm._BatchNorm,)
_FREEZABLE = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
CONSTANT = "constant"  # the way of a frozen batch normalization
SHARED = "shared"  # the way of a module's own parameters, where its layers go theirs
FLAT = "flat"  # stands for a list of ids that is cut into bags by offsets
_TENSOR = object()  # its place in what a module returns
_MIXING = (
    "normalizes each example by the others: one person then moves everybody's gradient, and no clipping "
    "bounds that"
)


def rule_of(module: nn.Module) -> Callable[..., Any] | None:
    """Return the rule of exactly this class, or None.

    The one of `transformers` is known only where somebody has imported that library.
    """
    others = sys.modules.get("transformers.pytorch_utils")
    if others is not None and type(module) is getattr(others, "Conv1D", None):
        return layers.transposed_linear
    return KNOWN.get(type(module))


def is_constant(module: nn.Module) -> bool:
    """Return whether a batch normalization is frozen, in evaluation mode with stored statistics and nothing
    to learn: the same affine map for each example."""
    if type(module) not in _FREEZABLE or module.training or "forward" in vars(module):
        return False
    stored = module.track_running_stats and module.running_mean is not None and module.running_var is not None
    return bool(stored) and not any(p.requires_grad for p in module.parameters())


def refusal(module: nn.Module) -> str | None:
    """Why a layer can never be trained privately, or None."""
    name = type(module).__name__
    if is_constant(module):
        return None
    if isinstance(module, nn.modules.instancenorm._InstanceNorm):
        if module.track_running_stats:
            return (
                f"{name}(track_running_stats=True) keeps averages over private examples without paying "
                f"for them. Turn it off."
            )
        return None
    if isinstance(module, _BATCH_NORMS):
        return (
            f"{name} {_MIXING}. Use GroupNorm: learning.without_batch_norm(model) swaps it. Or, "
            f"where its statistics are of public data, "
            f"freeze it: .eval() and .requires_grad_(False) on the layer, after any model.train()."
        )
    if isinstance(module, nn.Embedding | nn.EmbeddingBag):
        if module.scale_grad_by_freq:
            return (
                f"{name}(scale_grad_by_freq=True) divides by counts over the batch, which mixes "
                f"examples. Turn it off."
            )
        if module.max_norm is not None:
            return (
                f"{name}(max_norm=...) rescales the rows that private examples ask for, without noise. "
                f"Turn it off."
            )
    return None


def _ordinary(module: nn.Module) -> bool:
    """Return whether a known layer is just that: no forward of its own, no parameters computed from others,
    nothing unusual switched on."""
    if (
        rule_of(module) is None
        or "forward" in vars(module)
        or module._forward_pre_hooks
        or module._forward_hooks
    ):
        return False
    if isinstance(module, nn.MultiheadAttention):
        whole = "weight" in module.out_proj._parameters and isinstance(module.out_proj, nn.Linear)
        return whole and module.bias_k is None and module.bias_v is None and not module.add_zero_attn
    if isinstance(module, nn.EmbeddingBag) and (module.mode == "max" or module.include_last_offset):
        return False
    if isinstance(module, nn.RNNCellBase):
        return {"weight_ih", "weight_hh"} <= module._parameters.keys()
    if isinstance(module, nn.RNNBase):
        return all(name in module._parameters for name in module._flat_weights_names)
    return "weight" in module._parameters


def routes(model: nn.Module, *, share: bool = True) -> dict[str, str]:
    """By name of the module: "tapped", "isolated" or "shared".

    Every trainable parameter is in exactly one of them. Of a "shared" module the parameters of its own (a
    class token, a table of positions) go to each example as a copy, and its layers go their own ways; where
    its code does something else with them than is known, it is "isolated" after all (`share=False`). Frozen
    batch normalization is "constant".

    >>> routes(nn.Sequential(nn.Linear(3, 2), nn.PReLU()))
    {'0': 'tapped', '1': 'isolated'}
    """
    _check_module(model)
    chosen = dict(_routes(model, "", share))
    for name, tensor in itertools.chain(model.named_parameters(), model.named_buffers()):
        if is_lazy(tensor):
            raise InvalidInput(
                f"{name} has no shape yet (a lazy layer). Nothing was read or trained. Run the model "
                f"once on made-up inputs first: model(torch.zeros(1, ...))."
            )
    return chosen


def _check_module(model: Any) -> None:
    if not isinstance(model, nn.Module):
        raise InvalidInput(
            f"model must be a torch.nn.Module, got "
            f"{model if isinstance(model, type) else type(model).__name__}. Nothing was read or "
            f"trained. Give an instance; "
            f"put a function of your own into the forward() of one."
        )
    if any(isinstance(module, torch.jit.ScriptModule) for module in model.modules()):
        raise Unsupported(
            "the model is, or contains, a scripted module, into which nobody can look. Nothing was "
            "read or trained. Give the module that it was made "
            "from, and script the trained one."
        )


def _routes(module: nn.Module, name: str, share: bool) -> Iterator[tuple[str, str]]:
    if is_constant(module):
        yield name, CONSTANT
        return
    why = refusal(module)
    if why is not None:
        raise Unsupported(f"{name or 'the model'}: {why} Nothing was read or trained.")
    learns = any(p.requires_grad for p in module.parameters())
    if learns and _ordinary(module):
        yield name, "tapped"
        return
    shares = learns and share and _is_shareable(module)
    alone = parametrize.is_parametrized(module) or any(p.requires_grad for p in _own_parameters(module))
    if learns and alone and not shares:
        yield from _isolated(module, name)
        return
    if shares:
        yield name, SHARED
    for child_name, child in module.named_children():
        yield from _routes(child, f"{name}.{child_name}".lstrip("."), share)


def _isolated(module: nn.Module, name: str) -> Iterator[tuple[str, str]]:
    """Yield the way of a module that runs example by example with all its parts."""
    for inner_name, inner in module.named_modules():
        if (why := refusal(inner)) is not None:
            raise Unsupported(f"{name}.{inner_name}: {why} Nothing was read or trained.")
        if is_constant(inner):
            yield f"{name}.{inner_name}".lstrip("."), CONSTANT
    yield name, "isolated"


def _is_shareable(module: nn.Module) -> bool:
    """Return whether a module has parameters of its own beside layers that are worth going their own ways."""
    if parametrize.is_parametrized(module) or type(module).__module__.startswith("torch.nn."):
        return False
    if any(isinstance(child, nn.ParameterList | nn.ParameterDict) for child in module.children()):
        return False
    own = any(p.requires_grad for p in module.parameters(recurse=False))
    inner = any(p.requires_grad for child in module.children() for p in child.parameters())
    return own and inner


def _own_parameters(module: nn.Module) -> Iterator[nn.Parameter]:
    """Return the parameters that the module's own code uses: its own, and those in lists and dicts, which
    have no code."""
    yield from module.parameters(recurse=False)
    for child in module.children():
        if isinstance(child, nn.ParameterList | nn.ParameterDict):
            yield from child.parameters()


@contextmanager
def attached(
    model: nn.Module, recorder: Recorder, ways: dict[str, str], *, opaque: bool = False
) -> Iterator[None]:
    """Within this context the model's forward pass leaves taps in the recorder; `opaque` layers are not
    looked into by `torch.compile`, which compiles what is between them."""
    put_all(model, recorder, ways, opaque=opaque)
    try:
        yield
    finally:
        detach(model)


def put_all(model: nn.Module, recorder: Recorder, ways: dict[str, str], *, opaque: bool = False) -> None:
    """Put our forward passes in the places of the modules' own."""
    run: Any = torch.compiler.disable(_recorded) if opaque else _recorded  # type: ignore[no-untyped-call]
    for name, way in ways.items():
        module = model.get_submodule(name)
        if isinstance(vars(module).get("forward"), _Ours):
            # One module under two names.
            continue
        if way == CONSTANT:
            _put(module, constant, module)
        elif way == SHARED:
            _put(module, with_copies, module, recorder, module.forward)
        else:
            own_rule = rule_of(module) if way == "tapped" else None
            rule = partial(own_rule or partial(isolated, form_of(module)), module)
            _put(module, run, recorder, name, rule, module.forward)


def with_copies(
    module: nn.Module, recorder: Recorder, plain: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """Run the module's own code on the batch, with a copy of each parameter of its own for every example.

    The code sees the shape that it expects (`shared`): what it does beyond what is known there is refused,
    not guessed.
    """
    if recorder.inside or not recorder.active or recorder.survey is not None:
        return plain(*args, **kwargs)
    kept = dict(module._parameters)
    own = {str(id(p)): p for p in kept.values() if p is not None and p.requires_grad}
    copies = {key: p.detach().expand(recorder.batch, *p.shape).requires_grad_() for key, p in own.items()}
    stand_ins: Any = {
        name: shared(copies[str(id(p))]) for name, p in kept.items() if p is not None and p.requires_grad
    }
    try:
        module._parameters.update(stand_ins)
        results = plain(*args, **kwargs)
    finally:
        module._parameters.update(kept)
    if any(isinstance(leaf, Shared) for leaf in leaves_of(results)):
        raise NotBatchFirst(f"{type(module).__name__} returns what it made of its own parameters alone.")
    _note_copies(recorder, own, copies)
    return results


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
    """Return a context, within that of `eager`, in which what was compiled is run so."""
    return torch.compiler.set_stance("default") if is_compiled(model) else nullcontext()


class _Ours(partial[Any]):
    """What stands in the place of a module's forward pass while it is attached."""

    own: Any = None  # what somebody else had put there


def _put(module: nn.Module, *what: Any) -> None:
    forward = _Ours(*what)
    forward.own = vars(module).get("forward")
    module.forward = forward


def detach(model: nn.Module) -> None:
    """Every forward pass as it was: of an attached model, or of a copy of one."""
    for module in model.modules():
        forward = vars(module).get("forward")
        if isinstance(forward, _Ours):
            del module.forward
            if forward.own is not None:
                module.forward = forward.own


def _recorded(
    recorder: Recorder,
    name: str,
    rule: Callable[..., Any],
    plain: Callable[..., Any],
    *args: Any,
    **kwargs: Any,
) -> Any:
    if recorder.inside or not recorder.active:
        return plain(*args, **kwargs)
    call = recorder.next_call(name)
    if recorder.survey is None:
        recorder.layout = layout_of(recorder.layouts, call)
        _check_form(recorder, name, args, kwargs)
        recorder.axes = _axes(recorder.layout, args, kwargs)
        if _is_constant(recorder, rule, args):
            return _of_constant(recorder, rule, *args)
        return rule(recorder, *args, **kwargs)
    recorder.inside = True
    try:
        results = plain(*args, **kwargs)
    finally:
        recorder.inside = False
    recorder.survey.note(call, _without_flat_lists(rule, args, kwargs), results)
    return results


def _without_flat_lists(rule: Any, args: Any, kwargs: Any) -> Any:
    """Return a call's arguments with the flat ids and weights of bags left out: how long they are depends on
    the examples, and says nothing of the batch."""
    if rule.func is not layers.embedding_bag or (len(args) < 2 and kwargs.get("offsets") is None):
        return args, kwargs
    flat = [FLAT if place != 1 and isinstance(x, Tensor) else x for place, x in enumerate(args)]
    return tuple(flat), {name: x if name == "offsets" or x is None else FLAT for name, x in kwargs.items()}


def _check_form(recorder: Recorder, name: str, args: Any, kwargs: Any) -> None:
    """Refuse a call that does not look like one of those by which it was decided what follows the batch.

    Without a decision a size that equals the batch's would decide, which may be a coincidence.
    """
    if recorder.whole is not None:
        return
    leaves = leaves_of((args, kwargs))
    if recorder.layout is None or not recorder.layout.fits(leaves):
        raise NotBatchFirst(
            f"{name or 'the model'} is called in another way, or with a constant of another shape, "
            f"than when it was decided what follows the batch."
        )


def _is_constant(recorder: Recorder, rule: Any, args: tuple[Any, ...]) -> bool:
    """Return whether a layer that looks at last dimensions alone is given the same for all examples."""
    if rule.func not in _OF_LAST_DIMENSIONS or len(args) != 1 or not isinstance(args[0], Tensor):
        return False
    return isinstance(args[0], Shared) or recorder.axes.get(id(args[0]), 0) is None


def _of_constant(recorder: Recorder, rule: Any, x: Tensor) -> Tensor:
    """Run a layer on one copy of a constant per example: each has a gradient of its own, and the model's code
    sees the shape it expects."""
    each = each_of(x) if isinstance(x, Shared) else x.unsqueeze(0).expand(recorder.batch, *x.shape)
    recorder.axes = {}
    return shared(rule(recorder, each))


def _axes(layout: Layout | None, args: Any, kwargs: Any) -> dict[int, Axis]:
    """Return the batch dimension of each tensor that a call is given, by its id."""
    leaves = leaves_of((args, kwargs))
    if layout is None or len(layout.inputs) != len(leaves):
        return {}
    return {id(x): axis for x, axis in zip(leaves, layout.inputs, strict=True) if isinstance(x, Tensor)}


def constant(module: Any, x: Tensor) -> Tensor:
    """Return a frozen batch normalization, whatever mode it is put into: by its stored statistics, which are
    not touched."""
    module._check_input_dim(x)
    return F.batch_norm(
        x, module.running_mean, module.running_var, module.weight, module.bias, training=False, eps=module.eps
    )


def isolated(
    forward: Callable[..., Any], module: nn.Module, recorder: Recorder, *args: Any, **kwargs: Any
) -> Any:
    """Run the module on each example by itself, as a batch of one, with a copy of its parameters for each
    example.

    Guarantee: no example's output or gradient depends on another example.
    Proof:     `torch.func.vmap` runs the code on one example; it has no way to name another. Which tensors
               have examples in them, and in which dimension, was decided from two batch sizes (`batching`): a
               tensor that stays as it is has none of them.
    """
    own = {name: p for name, p in module.named_parameters() if p.requires_grad}
    copies = {name: p.detach().expand(recorder.batch, *p.shape).requires_grad_() for name, p in own.items()}
    flat, spec = torch.utils._pytree.tree_flatten((args, kwargs))
    dims, outer_dims = _dims(module, recorder, flat)
    # What comes out, nested as it may be: not all of it tensors.
    shape: list[Any] = []

    own_dims = [0 if isinstance(x, Shared) else d for x, d in zip(flat, dims, strict=True)]
    flat = [each_of(x) if isinstance(x, Shared) else x for x in flat]

    def one(params: dict[str, Tensor], *inputs: Any) -> Any:
        lifted = [x if d is None else x.unsqueeze(d) for x, d in zip(inputs, dims, strict=True)]
        a, k = torch.utils._pytree.tree_unflatten(lifted, spec)
        with stateless._reparametrize_module(module, params, tie_weights=True):
            leaves, outer = torch.utils._pytree.tree_flatten(forward(*a, **k))
        shape[:] = [outer, *(_TENSOR if isinstance(leaf, Tensor) else leaf for leaf in leaves)]
        back = outer_dims or (0,) * len(leaves)
        return [
            _unlifted(module, leaf, d)
            for leaf, d in zip(leaves, back, strict=True)
            if isinstance(leaf, Tensor)
        ]

    recorder.inside = True
    try:
        with vmappable(module):
            tensors = iter(by_example(one, (0, *own_dims), _of_tensors(outer_dims))(copies, *flat))
    finally:
        recorder.inside = False
    _note_copies(recorder, own, copies)
    outer, *leaves = shape
    return torch.utils._pytree.tree_unflatten(
        [next(tensors) if leaf is _TENSOR else leaf for leaf in leaves], outer
    )


def _unlifted(module: nn.Module, result: Tensor, dim: int | None) -> Tensor:
    """Return one example's result without the batch of one that it is in."""
    if dim is None or dim == UNCLEAR:
        raise NotBatchFirst(
            f"{type(module).__name__}, which has parameters of its own, returns a tensor that does "
            f"not have one row per example."
        )
    return result.squeeze(dim) if result.dim() else result


def _of_tensors(dims: tuple[int | None, ...] | None) -> Any:
    """Return where the batch goes in what comes out: of tensors alone, as `vmap` wants it."""
    return 0 if dims is None else [d for d in dims if d is not None and d != UNCLEAR]


def _dims(
    module: nn.Module, recorder: Recorder, flat: list[Any]
) -> tuple[list[int | None], tuple[int | None, ...] | None]:
    """Return the batch dimensions of arguments and results; of results None, where each example's are as they
    come.

    With `isolate`, where the module is the whole model, every tensor has the batch first: that is what a
    batch is.
    """
    kind = type(module).__name__
    if recorder.whole is module:
        return [0 if isinstance(x, Tensor) else None for x in flat], None
    layout = recorder.layout
    if layout is None:
        raise NotBatchFirst(f"{kind} is called in another way than at the first examples.")
    if len(layout.inputs) != len(flat) or UNCLEAR in layout.inputs:
        raise NotBatchFirst(
            f"{kind} was given a tensor with the batch folded into another dimension, or twice in "
            f"it, or the number of examples itself. "
            f"Give it one row per example, the batch first."
        )
    if all(d is None for d in layout.inputs):
        raise NotBatchFirst(f"{kind} was given nothing that has a row for each example.")
    if any(d is not None and x.shape[d] != recorder.batch for x, d in zip(flat, layout.inputs, strict=True)):
        raise NotBatchFirst(f"{kind} was given other shapes than at the first examples.")
    return list(layout.inputs), layout.outputs


def by_example(function: Callable[..., Any], dims: Any = 0, outer_dims: Any = 0) -> Callable[..., Any]:
    """Return `torch.func.vmap` of the function, without its advice about speed."""
    mapped = torch.func.vmap(function, in_dims=dims, out_dims=outer_dims, randomness="different")

    def run(*args: Any) -> Any:
        with warnings.catch_warnings(), sdpa_kernel(SDPBackend.MATH):
            warnings.filterwarnings("ignore", message="There is a performance drop")
            return mapped(*args)

    return run


def _note_copies(recorder: Recorder, own: dict[str, nn.Parameter], copies: dict[str, Tensor]) -> None:
    def taps(*rows: Tensor) -> list[Tap]:
        return [Rows(Target(p), single(r)) for p, r in zip(own.values(), rows, strict=True)]

    recorder.note(tuple(copies.values()), taps)


def without_batch_norm(model: nn.Module, groups: int = 32) -> nn.Module:
    """Return a copy of the model with a GroupNorm in place of each BatchNorm; at most `groups` groups, as
    many as divide the channels.

    Over vectors a group must have two channels at least: in place of a BatchNorm1d it has.

    >>> without_batch_norm(nn.Sequential(nn.Conv2d(3, 48, 3), nn.BatchNorm2d(48)))[1].num_groups
    24
    """
    import copy

    model = copy.deepcopy(model)
    if isinstance(model, _BATCH_NORMS):
        return _group_norm(model, groups)
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if isinstance(child, _BATCH_NORMS) and not isinstance(
                child, nn.modules.instancenorm._InstanceNorm
            ):
                setattr(parent, name, _group_norm(child, groups))
    return model


def _group_norm(layer: Any, groups: int) -> nn.GroupNorm:
    channels = layer.num_features
    allowed = channels // 2 if isinstance(layer, nn.BatchNorm1d) else channels
    most = max(n for n in range(1, max(1, min(groups, allowed)) + 1) if channels % n == 0)
    return nn.GroupNorm(most, channels, eps=layer.eps, affine=layer.affine)
