"""Decides which dimension of a tensor is the batch: once, from the shapes at two batch sizes.

That a dimension is as long as the batch proves nothing: a constant of T rows (a causal mask, a table of
positions) looks like a batch as soon as a batch has T examples. So the model is run twice before any gradient
is computed, on 3 and on 2 examples, and the shapes of each call's arguments and results are compared, leaf by
leaf (a leaf is a tensor or another single value in nested tuples, lists and dicts):

- one dimension is 3 and then 2, the others stay: that dimension is the batch.
- the shape stays: the tensor is the same for all examples, at every batch size (CONSTANT).
- the first dimension is 3 n and then 2 n: it holds n rows of each example (`Folded`).
- anything else (the batch in two dimensions, a number that is the batch size itself): UNCLEAR.

Runs functions on each example by itself: under `torch.func.vmap`, or in a loop.

The forward passes of some of torch's layers call a fused kernel for which vmap has no rule (`LSTMCell`,
`EmbeddingBag`, attention in evaluation mode), or a rule that forgets an option (`padding_idx`). While a
module runs example by example, equivalent forms replace them. Code that vmap cannot run at all (an LSTM, a
branch on the value of a tensor, a gradient checkpoint) runs in a loop over the examples, which is slower and
has the same results.

Full precision: settings that round the factors of float32 products are off while norms of gradients are
bounded and clipped gradients are added up.

Bounds on norms (`taps`) allow for the rounding of float32, and for no more. Autocast around training would
compute them in half precision; `torch.set_float32_matmul_precision("medium")` allows torch to round the
factors of every product to bfloat16, on processors that gain from it. A ghost norm (`taps`), which is
computed by such products, may then be too small by one per cent.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils.rnn import PackedSequence
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from ..._errors import DiscreetError, Unsupported

# The two batch sizes. Both are small. Neither is 1, as a batch dimension of 1 would broadcast and so be
# hidden.
SIZES = (3, 2)
# Stand in place of the number of a batch dimension: CONSTANT where the leaf is the same for all examples,
# UNCLEAR where it is neither that nor a batch.
CONSTANT, UNCLEAR = None, -1


@dataclass(frozen=True)
class Folded:
    """Says that the first dimension holds `rows` rows of each example, one example after the other.

    The order is an assumption. In another order, what is taken for one example's gradient would mix examples,
    which the probe finds (`safety.probe`). That each example has `rows` rows on other data, too, is checked:
    a model that picks rows by their values (`DynamicShapes`) is refused.
    """

    rows: int


# The number of the batch dimension, CONSTANT, UNCLEAR, or Folded.
Axis = int | Folded | None
# The name of a module, and the number of the call within one forward pass, from 0.
Call = tuple[str, int]


class NotBatchFirst(Exception):
    """Says that a layer got something other than one row per example, so that per-example gradients cannot be
    computed.
    """


@dataclass(frozen=True)
class Layout:
    """Says which dimension is the batch, for each leaf of a call's arguments (`inputs`) and results
    (`outputs`)."""

    inputs: tuple[Axis, ...]
    outputs: tuple[Axis, ...]
    # For each argument: its shape if it is a CONSTANT tensor, else None.
    constants: tuple[Any, ...] = ()
    # For each argument: the shape of one example when the batch dimension was decided; None where it is no
    # tensor, or UNCLEAR. In a later batch a dimension may be longer or shorter (padded to the longest text,
    # say). How a norm is bounded is chosen by this shape, which one more example does not change.
    shapes: tuple[Any, ...] = field(default=(), compare=False)

    def fits(self, leaves: list[Any]) -> bool:
        """Return whether the decision holds for a call with these leaves: there are as many of them, and the
        constants have the same shapes."""
        if len(leaves) != len(self.inputs):
            return False
        pairs = zip(leaves, self.constants, strict=True)
        return all(shape is None or (isinstance(x, Tensor) and x.shape == shape) for x, shape in pairs)


# The forms (`_form`) of all leaves of a call's arguments, and those of its results.
Form = tuple[tuple[Any, ...], tuple[Any, ...]]


def leaves_of(arguments: Any) -> list[Any]:
    """Return all leaves of a call's arguments (or of its results).

    A packed sequence is one leaf: the shapes of its parts depend on the lengths of its examples.

    Tuples, lists and dicts are walked by this function itself, in 1.1 instead of torch's 3.6 microseconds
    (measured), as it runs several times for every call of a layer.
    """
    if isinstance(arguments, Tensor) or arguments is None:
        return [arguments]
    if type(arguments) in (tuple, list):
        return [leaf for part in arguments for leaf in leaves_of(part)]
    if type(arguments) is dict:
        return [leaf for part in arguments.values() for leaf in leaves_of(part)]
    return tree_leaves(arguments, is_leaf=lambda part: isinstance(part, PackedSequence))


@dataclass
class ShapeSurvey:
    """Notes the forms of arguments and results of all calls in one forward pass."""

    forms: dict[Call, Form] = field(default_factory=dict)

    def note(self, call: Call, arguments: Any, results: Any) -> None:
        """Note the shapes of a call's tensors, and its other values."""
        self.forms[call] = tuple(map(_form, leaves_of(arguments))), tuple(map(_form, leaves_of(results)))


def _form(leaf: Any) -> Any:
    """Return what is compared of a leaf at the two batch sizes: the shape of a tensor, a number or text
    itself, the type of anything else."""
    if isinstance(leaf, Tensor):
        if leaf.is_nested:
            raise Unsupported(
                "a layer is given a nested tensor, in which no dimension tells examples apart. No data was "
                "read. Pad it (torch.nested.to_padded_tensor), and mask the padding."
            )
        return leaf.shape
    return leaf if isinstance(leaf, int | float | str | bool) else type(leaf)


def layouts(first: ShapeSurvey, second: ShapeSurvey) -> dict[Call, Layout]:
    """Return the decision for every call that was made at both batch sizes, SIZES, in this order.

    Guarantee: an axis is a number only if that dimension was as long as the batch at both sizes, and no other
               dimension changed.
    """
    pairs = [(call, form, second.forms[call]) for call, form in first.forms.items() if call in second.forms]
    return {call: _layout(a, b) for call, a, b in pairs}


def _layout(first: Form, second: Form) -> Layout:
    """Return the layout of one call, from its forms at the two batch sizes."""
    inputs = _axes(first[0], second[0])
    if len(first[0]) != len(second[0]):
        # All inputs are UNCLEAR.
        return Layout(inputs, _axes(first[1], second[1]), (None,) * len(inputs))
    constants = [
        a if axis is CONSTANT and isinstance(a, torch.Size) else None
        for a, axis in zip(first[0], inputs, strict=True)
    ]
    shapes = tuple(map(_example_shape, first[0], inputs))
    return Layout(inputs, _axes(first[1], second[1]), tuple(constants), shapes)


def _example_shape(form: Any, axis: Axis) -> tuple[int, ...] | None:
    """Return the shape of one example in an argument, from its form at the first batch size."""
    if not isinstance(form, torch.Size) or axis == UNCLEAR:
        return None
    if isinstance(axis, Folded):
        return axis.rows, *form[1:]
    return tuple(form) if axis is CONSTANT else (*form[:axis], *form[axis + 1 :])


def layout_of(decisions: dict[Call, Layout], call: Call) -> Layout | None:
    """Return the decision for a call, None where there is none.

    A module may be called more often than when the decisions were made (gradient checkpointing runs it again
    in the backward pass). Then the decision for its other calls holds, if it is the same for all of them.
    """
    if call in decisions:
        return decisions[call]
    candidates = {layout for (name, _), layout in decisions.items() if name == call[0]}
    return candidates.pop() if len(candidates) == 1 else None


def _axes(first: tuple[Any, ...], second: tuple[Any, ...]) -> tuple[Axis, ...]:
    """Return the batch dimension of each leaf, from its forms at the two batch sizes."""
    if len(first) != len(second):
        return (UNCLEAR,) * max(len(first), len(second))
    return tuple(map(_axis, first, second))


def _axis(first: Any, second: Any) -> Axis:
    """Return the batch dimension of one leaf, from its forms at the two batch sizes; see the module's
    docstring."""
    if first == second:
        return CONSTANT
    if not isinstance(first, torch.Size) or not isinstance(second, torch.Size) or len(first) != len(second):
        return UNCLEAR
    changed_dims = [dim for dim, sizes in enumerate(zip(first, second, strict=True)) if sizes[0] != sizes[1]]
    if len(changed_dims) != 1:
        return UNCLEAR
    (dim,) = changed_dims
    if (first[dim], second[dim]) == SIZES:
        return dim
    rows = first[dim] // SIZES[0]
    return (
        Folded(rows) if dim == 0 and (first[0], second[0]) == (rows * SIZES[0], rows * SIZES[1]) else UNCLEAR
    )


def first_examples(inputs: Any, size: int) -> Any:
    """Return the first `size` examples of a batch, repeated from the first on where the batch has fewer."""
    positions = torch.arange(size, device="cpu")
    return tree_map(lambda t: t[positions % len(t)] if isinstance(t, Tensor) else t, inputs)


class DynamicShapes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes in `seen` whether, in this context, a shape depends on the values of a tensor (rows picked by a
    mask, say)."""

    seen: bool = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.dynamic_output_shape in func.tags:
            # Torch marks all indexing. By positions, t[[0, 2]], the result has the shape of the positions;
            # only by a mask it has as many rows as the mask has true values.
            is_indexing = func.overloadpacket is torch.ops.aten.index
            masks = (torch.bool, torch.uint8)
            self.seen |= not is_indexing or any(
                t.dtype in masks for t in tree_leaves(args[1]) if t is not None
            )
        return func(*args, **(kwargs or {}))


@contextmanager
def forked_generator(device: torch.device) -> Iterator[None]:
    """Restore torch's random generators, that of the host and that of the device, after this context; within
    it, gradients are enabled."""
    states = [(generator, generator.get_state()) for generator in generators(device)]
    try:
        with torch.enable_grad():
            yield
    finally:
        for generator, state in states:
            generator.set_state(state)


def placed(data: Any, device: torch.device) -> Any:
    """Return the tensors in `data` on a device; those of pinned memory are copied while the host goes on."""
    return tree_map(lambda t: t.to(device, non_blocking=True) if isinstance(t, Tensor) else t, data)


def generators(device: torch.device) -> list[torch.Generator]:
    """Return torch's own random generators that code on this device draws from."""
    if device.type == "cpu":
        return [torch.default_generator]
    module = torch.get_device_module(device)
    index = module.current_device() if device.index is None else device.index
    return [torch.default_generator, module.default_generators[index]]


def seed_generators(device: torch.device, seed: int) -> None:
    """Seed these generators, and no other: `torch.manual_seed` would seed every kind of accelerator, whose
    states nobody puts back, and record the call stack for each that is not in use: with it a probe of a
    linear model took 34 ms instead of 22."""
    for generator in generators(device):
        generator.manual_seed(seed)


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


# The kinds of devices on which autocast may be on.
_ACCELERATOR = torch.accelerator.current_accelerator()
_KINDS = ("cpu",) if _ACCELERATOR is None else ("cpu", _ACCELERATOR.type)


def full_precision() -> AbstractContextManager[Any]:
    """Return a context in which float32 products are those of float32.

    Autocast that the model itself turns on stays in force. The settings belong to the process: they are
    changed only where they were lower, and put back afterwards.
    """
    lowered = [setting for setting in _SETTINGS if setting.get() not in setting.names]
    if not lowered and not any(map(torch.is_autocast_enabled, _KINDS)):
        return nullcontext()
    return _with_full_precision(lowered)


@contextmanager
def _with_full_precision(lowered: list[_Setting]) -> Iterator[None]:
    """Turn autocast off and raise the settings that are below full precision, within this context."""
    with ExitStack() as stack:
        for kind in filter(torch.is_autocast_enabled, _KINDS):
            stack.enter_context(torch.autocast(kind, enabled=False))
        for setting in lowered:
            stack.callback(setting.set, setting.get())
            setting.set(setting.full)
        yield


class _Setting:
    """Reads and writes one of torch's settings of float32 products: of matrices, of convolutions, of
    recurrent layers.
    """

    full = "ieee"

    def __init__(self, backend: Any, *names: str) -> None:
        # What full precision may be called: on the CPU "none", the default, is full precision, too.
        self._backend, self.names = backend, {self.full, *names}

    def get(self) -> str:
        return str(self._backend.fp32_precision)

    def set(self, value: str) -> None:
        self._backend.fp32_precision = value


class _Legacy(_Setting):
    """Reads and writes the only setting of older versions of torch, for all kinds of products."""

    full = "highest"

    def __init__(self) -> None:
        super().__init__(torch, "none")

    def get(self) -> str:
        return torch.get_float32_matmul_precision()

    def set(self, value: str) -> None:
        torch.set_float32_matmul_precision(value)


def _settings(with_cuda: bool) -> list[_Setting]:
    """Return the settings that this version of torch has. Those of CUDA must say "ieee": by default its
    convolutions round products to eleven bits (TF32), which the bounds on norms do not allow for."""
    kinds = [getattr(torch.backends.mkldnn, name, None) for name in ("matmul", "conv", "rnn")]
    settings = [_Setting(kind, "none") for kind in kinds if hasattr(kind, "fp32_precision")]
    if with_cuda and settings:
        cudnn: Any = torch.backends.cudnn
        settings += map(_Setting, (torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn))
    return settings or [_Legacy()]


_SETTINGS = _settings(torch.version.cuda is not None or torch.version.hip is not None)
