"""Decides which route to per-example gradients each module of a model takes: tapped, isolated, shared, or
constant; or refuses it.

Layers of the classes in `TAPPED_LAYERS` are tapped: their per-example gradients are computed from the layer's
inputs and the gradients of its outputs (`taps`). Of the other modules that hold parameters of their own, one
that also holds layers is shared, if possible: each example gets a copy of these parameters, and the layers
have routes of their own. The rest are isolated: each runs on one example at a time, under `torch.func.vmap`,
where examples cannot mix, or in a loop where vmap cannot run it (`batching`). A frozen batch normalization
is constant. Layers that mix examples by design are refused, with the way out.

Handles batch normalization: refused in training, a constant map where it is frozen, or replaced by
GroupNorm.

In training mode it normalizes each example by the others, so that one person moves everybody's gradient
(`refusal` refuses it). It is frozen if it is in evaluation mode, with stored statistics and without
trainable parameters; then it is the same affine map for each example.
"""

from __future__ import annotations

import copy
import itertools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from ..._errors import InvalidInput, Unsupported
from . import layers
from .attention import attention
from .layers import convolution
from .recurrent import cell, recurrent

BATCH_NORMS = (nn.modules.batchnorm._BatchNorm,)
_FREEZABLE = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def is_constant(module: nn.Module) -> bool:
    """Return whether a module is a frozen batch normalization, the same affine map for each example.

    A subclass, or an instance with a `forward` of its own, may do something else, and is not.
    """
    if type(module) not in _FREEZABLE or module.training or "forward" in vars(module):
        return False
    has_statistics = (
        module.track_running_stats and module.running_mean is not None and module.running_var is not None
    )
    return bool(has_statistics) and not any(p.requires_grad for p in module.parameters())


def frozen_batch_norm(module: Any, x: Tensor) -> Tensor:
    """Apply a frozen batch normalization to x by its stored statistics, even if the module was put into
    training mode; the statistics are not changed."""
    module._check_input_dim(x)
    return F.batch_norm(
        x, module.running_mean, module.running_var, module.weight, module.bias, training=False, eps=module.eps
    )


def without_batch_norm(model: nn.Module, groups: int = 32) -> nn.Module:
    """Return a copy of the model with a GroupNorm in place of each BatchNorm.

    The number of groups is the largest that divides the number of channels, is at most `groups`, and leaves
    at least two channels in each (unless there is only one): inputs may be vectors, or maps of one pixel, and
    a group of one number would be normalized to zero.

    >>> without_batch_norm(nn.Sequential(nn.Conv2d(3, 48, 3), nn.BatchNorm2d(48)))[1].num_groups
    24
    """
    model = copy.deepcopy(model)
    if isinstance(model, BATCH_NORMS):
        return _group_norm(model, groups)
    replacements: dict[int, nn.GroupNorm] = {}
    for parent in list(model.modules()):
        # Not `named_children`, which names a layer once where the parent has it under two names.
        for name, child in list(parent._modules.items()):
            if isinstance(child, BATCH_NORMS):
                if id(child) not in replacements:
                    replacements[id(child)] = _group_norm(child, groups)
                setattr(parent, name, replacements[id(child)])
    return model


def _group_norm(layer: Any, groups: int) -> nn.GroupNorm:
    """Return the GroupNorm that replaces a batch normalization, as `without_batch_norm` describes it."""
    channels = layer.num_features
    num_groups = max(n for n in range(1, max(1, min(groups, channels // 2)) + 1) if channels % n == 0)
    place = {} if layer.weight is None else {"dtype": layer.weight.dtype, "device": layer.weight.device}
    return nn.GroupNorm(num_groups, channels, eps=layer.eps, affine=layer.affine, **place)


# The rule for per-example gradients of each known class of layers (`layers`); `rule_of` knows one class more.
TAPPED_LAYERS: dict[type, Callable[..., Any]] = {
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
# The route of a frozen batch normalization.
CONSTANT = "constant"
# The route of a module whose own parameters are copied for each example; its layers have routes of their own.
SHARED = "shared"
_MIXING = (
    "normalizes each example by the others: one person then moves everybody's gradient, and no clipping "
    "bounds that"
)


def rule_of(module: nn.Module) -> Callable[..., Any] | None:
    """Return the rule for per-example gradients of exactly this class, or None.

    The class `Conv1D` of `transformers` is looked for only if that library has been imported already.
    """
    pytorch_utils = sys.modules.get("transformers.pytorch_utils")
    if pytorch_utils is not None and type(module) is getattr(pytorch_utils, "Conv1D", None):
        return layers.transposed_linear
    return TAPPED_LAYERS.get(type(module))


def refusal(module: nn.Module) -> str | None:
    """Return why a layer can never be trained privately, or None."""
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
    if isinstance(module, BATCH_NORMS):
        return (
            f"{name} {_MIXING}. Use GroupNorm: learning.without_batch_norm(model) swaps it. Or, where its "
            "statistics are of public data, freeze it: .eval() and .requires_grad_(False) on the layer, "
            "after any model.train()."
        )
    if _is_spectral(module):
        return (
            "spectral_norm takes a step of an iteration in every forward pass, so that an example's gradient "
            "depends on how many passes went before it. Use torch.nn.utils.parametrizations.weight_norm; or "
            "keep the weight as it is now, with torch.nn.utils.parametrize.remove_parametrizations (or "
            "torch.nn.utils.remove_spectral_norm, where the old one was used)."
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


def _is_spectral(module: nn.Module) -> bool:
    """Return whether a weight is divided by its spectral norm, by a parametrization or by the older hook."""
    parametrized = module.parametrizations.values() if parametrize.is_parametrized(module) else ()  # type: ignore[operator]
    return any(isinstance(hook, SpectralNorm) for hook in module._forward_pre_hooks.values()) or any(
        isinstance(step, _SpectralNorm) for steps in parametrized for step in steps
    )


def weight_normed_by_hook(model: nn.Module) -> str | None:
    """Return the name of a layer under the old `torch.nn.utils.weight_norm`, or None."""
    for name, module in model.named_modules():
        if any(isinstance(hook, WeightNorm) for hook in module._forward_pre_hooks.values()):
            return name or "the model"
    return None


def _is_ordinary(module: nn.Module) -> bool:
    """Return whether a module has a rule (`rule_of`) and the usual forward pass: not replaced on the
    instance, no parameters computed from others, no option that the rule does not know.

    Hooks are allowed: they run before and after the forward pass, as code between layers does.
    """
    if rule_of(module) is None or "forward" in vars(module):
        return False
    if isinstance(module, nn.MultiheadAttention):
        has_projection = "weight" in module.out_proj._parameters and isinstance(module.out_proj, nn.Linear)
        return has_projection and module.bias_k is None and module.bias_v is None and not module.add_zero_attn
    if isinstance(module, nn.EmbeddingBag) and (module.mode == "max" or module.include_last_offset):
        return False
    if isinstance(module, nn.RNNCellBase):
        return {"weight_ih", "weight_hh"} <= module._parameters.keys()
    if isinstance(module, nn.RNNBase):
        return all(name in module._parameters for name in module._flat_weights_names)
    return "weight" in module._parameters


def routes(model: nn.Module, *, share: bool = True) -> dict[str, str]:
    """Return the routes by the module's name: "tapped", "isolated", "shared" or "constant". Modules without
    trainable parameters of their own, and those inside a tapped or isolated module, are not listed.

    Every trainable parameter belongs to one listed module. A "shared" module has parameters of its own (a
    class token, a table of positions), of which each example gets a copy, and layers with routes of their
    own. With `share=False` such a module is "isolated" with all its layers: the engine asks for it where the
    module's code does something with the copies that `isolation` does not know. Frozen batch normalization is
    "constant", and is listed also inside an isolated module.

    >>> routes(nn.Sequential(nn.Linear(3, 2), nn.PReLU()))
    {'0': 'tapped', '1': 'isolated'}
    """
    _check_module(model)
    routes_by_name = dict(_routes(model, "", share))
    for name, tensor in itertools.chain(model.named_parameters(), model.named_buffers()):
        if is_lazy(tensor):
            raise InvalidInput(
                f"{name} has no shape yet (a lazy layer). Run the model once on made-up inputs first: "
                "model(torch.zeros(1, ...))."
            )
    return routes_by_name


def _check_module(model: Any) -> None:
    """Refuse a model that is no module, or has a scripted part, whose layers cannot be seen."""
    if not isinstance(model, nn.Module):
        raise InvalidInput(
            "model must be a torch.nn.Module, got "
            f"{model if isinstance(model, type) else type(model).__name__}. Give an instance; put a function "
            "of your own into the forward() of one."
        )
    if any(isinstance(module, torch.jit.ScriptModule) for module in model.modules()):
        raise Unsupported(
            "the model is, or contains, a scripted module, into which nobody can look. Give the module that "
            "it was made from, and script the trained one."
        )


def check_hooks(parameters: dict[str, nn.Parameter]) -> None:
    """Refuse a parameter with a hook on its gradient, which would never run: only gradients of examples are
    computed."""
    for name, p in parameters.items():
        if p._backward_hooks or getattr(p, "_post_accumulate_grad_hooks", None):
            raise Unsupported(
                f"{name} has a hook on its gradient (register_hook), and the gradient of a whole batch, "
                "which the hook would be given, is never computed. Remove the hook; what it does to the "
                "noisy gradient can be done by the optimizer."
            )


def _routes(module: nn.Module, name: str, share: bool) -> Iterator[tuple[str, str]]:
    """Yield the route of a module and of the modules inside it, by their full names."""
    if is_constant(module):
        yield name, CONSTANT
        return
    reason = refusal(module)
    if reason is not None:
        raise Unsupported(f"{name or 'the model'}: {reason}")
    learns = any(p.requires_grad for p in module.parameters())
    if learns and _is_ordinary(module):
        yield name, "tapped"
        return
    is_shared = learns and share and _is_shareable(module)
    has_own_parameters = parametrize.is_parametrized(module) or any(
        p.requires_grad for p in _own_parameters(module)
    )
    if learns and has_own_parameters and not is_shared:
        yield from _isolated_routes(module, name)
        return
    if is_shared:
        yield name, SHARED
    for child_name, child in module.named_children():
        yield from _routes(child, f"{name}.{child_name}".lstrip("."), share)


def _isolated_routes(module: nn.Module, name: str) -> Iterator[tuple[str, str]]:
    """Yield the route of a module that runs example by example, with all modules inside it."""
    for inner_name, inner in module.named_modules():
        if (reason := refusal(inner)) is not None:
            raise Unsupported(f"{name}.{inner_name}: {reason}")
        if is_constant(inner):
            yield f"{name}.{inner_name}".lstrip("."), CONSTANT
    yield name, "isolated"


def _is_shareable(module: nn.Module) -> bool:
    """Return whether a module has parameters of its own beside layers that can have routes of their own.

    Modules of torch's own classes, parametrized ones, and those with lists or dicts of parameters are not.
    """
    if parametrize.is_parametrized(module) or type(module).__module__.startswith("torch.nn."):
        return False
    if any(isinstance(child, nn.ParameterList | nn.ParameterDict) for child in module.children()):
        return False
    has_own = any(p.requires_grad for p in module.parameters(recurse=False))
    has_layers = any(p.requires_grad for child in module.children() for p in child.parameters())
    return has_own and has_layers


def _own_parameters(module: nn.Module) -> Iterator[nn.Parameter]:
    """Yield the parameters that the module's own code uses: its own, and those in lists and dicts, which
    have no code."""
    yield from module.parameters(recurse=False)
    for child in module.children():
        if isinstance(child, nn.ParameterList | nn.ParameterDict):
            yield from child.parameters()
