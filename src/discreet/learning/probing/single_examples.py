"""Compares the engine's gradients of examples in a batch with torch's own gradients of each example alone.

Gradients are compared as sums over examples with random weights, drawn anew each time: two sums are equal if
all gradients are, and with probability one only then. So no gradient of a single example is stored, each of
which would take as much memory as the model; sums are compared one parameter after the other.

Computes gradients of single examples by torch's own backward pass, with which those of the engine are
compared.

They are computed on made-up examples only, by the probe (`safety`, `single_examples`).

Decides in float64 where float32 differs: kernels take sums in another order for another batch size, and where
a ReLU's input or the two largest numbers of a pooling are equal up to rounding, the order decides. In float64
rounding is a billionth of that, and what is left is mixing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from ..._errors import DiscreetError, InvalidInput, NotPrivate
from ..clipping import routes
from ..clipping.batching import seed_generators
from ..clipping.engine import ClippingEngine, Gradients
from ..clipping.taps import Tap, Target

# Entries that are compared or added up at a time, where a model may have gigabytes: pieces that stay in a
# core's own cache are squared in float64 in a sixth of the time of those of four megabytes (measured).
PIECE = 1 << 16


class ReferenceGradients:
    """Holds what torch itself computes for examples that run alone: the weighted sum of their gradients by
    some of the parameters, and the squared norm of each gradient by layer."""

    def __init__(
        self, engine: ClippingEngine, parameters: list[Any], squared_norms: dict[int, dict[int, float]]
    ) -> None:
        self.engine, self.parameters = engine, parameters
        # The weighted sum, by parameter.
        self.sums = [torch.zeros_like(p).detach() for p in parameters]
        # For each example by its number: squared norms by number of the layer, to which those by these
        # parameters are added.
        self.squared_norms = squared_norms

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Add up the gradient of each weight as soon as torch has computed it, within this context, and free
        it."""
        parameters = self.parameters
        grads_before = [p.grad for p in parameters]
        handles = []
        try:
            for p, out in zip(parameters, self.sums, strict=True):
                p.grad = None
                handle = p.register_post_accumulate_grad_hook(self._collector(out))
                handles.append(handle)
            yield
        finally:
            for handle in handles:
                handle.remove()
            for p, before in zip(parameters, grads_before, strict=True):
                p.grad = before

    def _collector(self, out: Tensor) -> Callable[[Tensor], None]:
        """Return the hook of one parameter, whose weighted gradient is added to `out`."""

        def collect(p: Tensor) -> None:
            assert p.grad is not None
            gradient, p.grad = p.grad.to_dense(), None
            layer, by_layer = self.engine.layers[id(p)], self.by_layer
            by_layer[layer] = by_layer.get(layer, 0.0) + squared_norm(gradient)
            out.add_(gradient, alpha=self.weight)

        return collect

    def add(self, example: int, loss: Tensor, weight: float) -> None:
        """Add `weight` times the gradient of the loss of an example, which has this number; called within
        `collecting`, whose hooks do the addition."""
        self.weight, self.by_layer = weight, self.squared_norms.setdefault(example, {})
        loss.backward(inputs=self.parameters)  # type: ignore[no-untyped-call]


def squared_norm(gradient: Tensor) -> float:
    """Return the squared norm, added up piece by piece in float64."""
    return sum(float(piece.double().square().sum()) for piece in torch.split(gradient.flatten(), PIECE))


def losses_of(engine: ClippingEngine, inputs: Any, targets: Any) -> Tensor:
    """Return the loss of each example, [B]; a tuple of inputs holds the arguments of the model."""
    args = inputs if isinstance(inputs, tuple) else (inputs,)
    with torch.no_grad():
        return engine.loss(engine.model(*args), targets)


def loss_sum(engine: ClippingEngine, inputs: Any, targets: Any) -> Tensor:
    """Return the sum of the losses, with torch's graph for its gradient."""
    args = inputs if isinstance(inputs, tuple) else (inputs,)
    total: Tensor = engine.loss(engine.model(*args), targets).sum()
    return total


def plain_gradient(engine: ClippingEngine, inputs: Any, targets: Any) -> Tensor:
    """Return the gradient of the sum of losses by torch's own backward pass, as one vector."""
    parameters = list(engine.parameters.values())
    parts = list(torch.autograd.grad(loss_sum(engine, inputs, targets), parameters, allow_unused=True))
    gradient = engine.buffer()
    for piece in torch.split(gradient, [p.numel() for p in parameters]):
        # Removed from the list, so that it is freed as soon as it is copied.
        part = parts.pop(0)
        if part is not None:
            piece.copy_(part.to_dense().flatten())
    return gradient


# The second batch size at which gradients are compared: code may do one thing at one size, and another thing
# at another.
SMALL_BATCH = 3
# The largest difference that counts as rounding, relative to the largest entry of what is compared: float32
# sums for an example alone and in a batch may be taken in another order.
TOLERANCE = 1e-4
# The same if the model computes in half precision inside: bfloat16 has eight bits, and some layers lose more.
HALF_TOLERANCE = 2.0**-4
# The same if the model computes in float64: a million times the rounding of an ordinary sum.
EXACT_TOLERANCE = 1e-8
# How often gradients are compared in float64 before they count as different, and by which share of themselves
# the model's parameters are perturbed in between (both chosen by hand, not tuned): at its first weights a
# model may be exactly on a kink.
TRIES, PERTURBATION = 2, 2.0**-10
# In float64 sums are compared for about this many weights at a time: 268 megabytes beside the model.
WEIGHTS_AT_ONCE = 1 << 25
# On an accelerator a larger model, of so many weights, is judged in float64 on the CPU, for memory's sake.
LARGE = 1 << 25
# The largest batch that is compared, so that training starts soon (chosen by hand, not tuned). Code that
# mixes examples only in larger batches is not found (docs/promise.md).
LARGEST = 512
# By this share a squared norm that is computed here may be above its bound, because the float32 sums that it
# is computed from were rounded.
ROUNDING = 1e-5
# A larger batch that is compared with single examples. It is even, while SMALL_BATCH and the usual number of
# made-up examples (five) are odd: so code that pairs examples only at even sizes is run. The number was
# chosen by hand, not tuned.
LARGER_BATCH = 12
MADE_UP_EXAMPLES = "If those are not valid for this model, give your own with synthetic=(inputs, targets)."
OWN_EXAMPLES = "They are those of synthetic=: give values that are valid for this model."
STATE = (
    "the model gives the same made-up examples another loss the second time, with the same random numbers: "
    "its forward pass keeps something (an attribute, a counter), by which earlier examples would reach the "
    "gradients of later ones, or draws random numbers elsewhere than from torch. No data was read. Let the "
    "result depend on inputs, weights and torch's random numbers alone."
)


@dataclass
class Measured:
    """Holds the per-example gradients of a batch as taps (`taps`: the inputs and output gradients of layers),
    from which weighted sums are built."""

    engine: ClippingEngine
    gradients: Gradients

    def parts(self, weights: Tensor, parameters: list[Any] | None = None) -> Iterator[Tensor]:
        """Yield the sum over examples i of weights[i] times gradient i, one parameter after the other, of
        these parameters or all."""
        taps: dict[int, list[Tap]] = {}
        for tap in self.gradients.taps:
            for target in _targets_of(tap):
                taps.setdefault(id(target.parameter), []).append(tap)
        sums: dict[int, Tensor] = {}
        for p in self.engine.parameters.values() if parameters is None else parameters:
            if id(p) not in sums:
                sums |= self._sums(p, taps, weights)
            yield sums.pop(id(p)).detach()

    def _sums(self, parameter: Tensor, taps: dict[int, list[Tap]], weights: Tensor) -> dict[int, Tensor]:
        """Return the sums for this parameter and for all that share a tap with it, directly or through
        others: a weight and its bias, or three weights and one bias in three parts.

        `taps` holds the taps of each parameter, by the parameter's id.
        """
        sums = {id(parameter): torch.zeros_like(parameter)}
        todo = {id(tap): tap for tap in taps.get(id(parameter), [])}
        added: set[int] = set()
        while todo:
            key, tap = todo.popitem()
            added.add(key)
            for target in _targets_of(tap):
                if id(target.parameter) not in sums:
                    sums[id(target.parameter)] = torch.zeros_like(target.parameter)
                others = {id(other): other for other in taps[id(target.parameter)]}
                todo |= {other: tap for other, tap in others.items() if other not in added}
            with torch.no_grad():
                tap.add(weights, sums)
        return sums


def _targets_of(tap: Tap) -> list[Target]:
    return [target for target in (tap.target, tap.bias) if target is not None]


def measure(
    engine: ClippingEngine, inputs: Any, targets: Any, *, by_layer: bool = True, sums_only: bool = False
) -> Measured:
    """Return each example's gradient, and its loss; with `sums_only` without losses, in no more memory than a
    training step takes."""
    return measured(engine, engine.gradients(inputs, targets, by_layer=by_layer, sums_only=sums_only))


def measured(engine: ClippingEngine, gradients: Gradients) -> Measured:
    """Return these gradients; one that is not finite counts as zero."""
    keep = gradients.squares.sum(1).isfinite()
    if not bool(keep.all()):
        gradients.zero_out(keep)
    return Measured(engine, gradients)


def random_weights(size: int, engine: ClippingEngine) -> Tensor:
    """Return random weights of either sign, between 1/2 and 3/2 in absolute value, where the model is."""
    lengths = 0.5 + torch.rand(size, dtype=engine.dtype, device="cpu")
    return (lengths * (1 - 2 * torch.randint(0, 2, (size,), device="cpu"))).to(engine.device)


def pick(data: Any, positions: Any) -> Any:
    return tree_map(lambda t: t[positions], data)


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records in `coarsest` the largest tolerance of what is computed: half precision anywhere, or float32
    from float64."""

    coarsest: float = EXACT_TOLERANCE

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        dtypes, from_dtypes = _dtypes(out), _dtypes((args, kwargs))
        if dtypes & {torch.float16, torch.bfloat16}:
            self.coarsest = HALF_TOLERANCE
        elif torch.float32 in dtypes and torch.float64 in from_dtypes:
            self.coarsest = max(self.coarsest, TOLERANCE)
        return out


def _dtypes(tree: Any) -> set[torch.dtype]:
    return {t.dtype for t in tree_leaves(tree) if isinstance(t, Tensor)}


def _tolerance(engine: ClippingEngine, inputs: Any) -> float:
    """Return the tolerance of the coarsest precision that the model computes in somewhere inside."""
    watch = _Watch()  # type: ignore[no-untyped-call]
    with watch, torch.no_grad():
        engine.model(*(inputs if isinstance(inputs, tuple) else (inputs,)))
    return max(watch.coarsest, finest(engine))


def finest(engine: ClippingEngine) -> float:
    """Return the tolerance of the precision of the model's weights."""
    return EXACT_TOLERANCE if engine.dtype is torch.float64 else TOLERANCE


_WIDER = dict.fromkeys((torch.float16, torch.bfloat16, torch.float32), torch.float64) | {
    torch.complex64: torch.complex128
}
_WIDENED_CALLS = dict.fromkeys((Tensor.float, Tensor.half, Tensor.bfloat16), Tensor.double)


class _Widened(TorchFunctionMode):
    """Lets code that asks for float32 or less by name (`x.float()`, `dtype=torch.float32`) have float64, and
    turns what meets a float64 tensor into float64: constants that are neither parameters nor buffers."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        everything = args, kwargs or {}
        # Nothing is built anew where nothing is replaced: a model makes thousands of calls.
        leaves = tree_leaves(everything)
        dtypes = _dtypes(leaves)
        if any(isinstance(leaf, torch.dtype) for leaf in leaves):
            everything = tree_map(lambda x: _WIDER.get(x, x) if isinstance(x, torch.dtype) else x, everything)
        name = getattr(func, "__name__", "")
        # A call that writes into its argument must have the argument itself.
        writes = (name.endswith("_") and not name.endswith("__")) or name.startswith(("__i", "__set"))
        if not writes and torch.float64 in dtypes and dtypes & _WIDER.keys():
            everything = tree_map(lambda x: _wide(x) if isinstance(x, Tensor) else x, everything)
        return _WIDENED_CALLS.get(func, func)(*everything[0], **everything[1])


def _wide(tensor: Tensor, device: torch.device | None = None) -> Tensor:
    """Return a tensor of floats in float64, others as they are; on another device, if one is given."""
    return tensor.to(device=device, dtype=_WIDER.get(tensor.dtype), copy=device is not None)


@contextmanager
def in_float64(engine: ClippingEngine, data: Any) -> Iterator[Any]:
    """Let the model hold copies of its tensors in float64 within this context, on the CPU where its device
    has no float64 or the model is `LARGE`, and yield the data likewise; then put back the very tensors that
    were there.

    The model itself is changed, as no copy of its code is sure to do the same.
    """
    judged_on = torch.device("cpu") if engine.device.type == "mps" or engine.size > LARGE else engine.device
    with _holding_copies(engine, lambda t: _wide(t, judged_on)), _Widened():
        engine.dtype, engine.device = torch.float64, judged_on
        yield tree_map(lambda t: _wide(t, judged_on) if isinstance(t, Tensor) else t, data)


@contextmanager
def _holding_copies(engine: ClippingEngine, copy: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Let the model hold copies of its parameters and buffers within this context, and no gradients."""
    device, dtype = engine.device, engine.dtype
    tensors = [*engine.model.parameters(), *engine.model.buffers()]
    before = [(t, t.data, t.grad) for t in tensors]
    try:
        for tensor in tensors:
            tensor.grad, tensor.data = None, copy(tensor.data)
        yield
    finally:
        for tensor, values, gradient in before:
            tensor.grad = None
            tensor.data = values
            tensor.grad = gradient
        engine.dtype, engine.device = dtype, device


T = TypeVar("T")


def judged(engine: ClippingEngine, inputs: Any, targets: Any, verdict: Callable[[Any, Any], T]) -> T:
    """Return the verdict on these examples in float64; where model or loss do not run in float64, that in the
    model's own precision. The verdict may change the parameters: they are copies."""
    try:
        with in_float64(engine, (inputs, targets)) as examples:
            return verdict(*examples)
    except DiscreetError:
        raise
    # The code has float32 in it where nobody can replace it.
    except Exception:
        with _holding_copies(engine, Tensor.clone):
            return verdict(inputs, targets)


@torch.no_grad()
def _perturb(engine: ClippingEngine) -> None:
    for p in engine.model.parameters():
        if p.dtype.is_floating_point:
            p.mul_(1 + PERTURBATION * torch.randn_like(p))


def check_alone(
    engine: ClippingEngine, inputs: Any, targets: Any, batch: int | None = None, *, own: bool = False
) -> None:
    """Refuse a model in which an example's gradient in a batch, by the engine, is not that of the example
    alone, by torch itself.

    `batch` is the size that training expects, and `own` says that the user gave the examples (`synthetic=`).
    """
    comparison = BatchComparison(engine, inputs, targets, batch)
    inputs, targets = comparison.examples
    sizes = comparison.differing_sizes(inputs, targets, comparison.sizes)

    def verdict(inputs: Any, targets: Any) -> DiscreetError | None:
        for _ in range(TRIES):
            if not comparison.differing_sizes(inputs, targets, sizes):
                return None
            _perturb(engine)
        return _difference(engine, inputs, targets, batch, own)

    if sizes:
        error = judged(engine, inputs, targets, verdict)
        if error is not None:
            raise error


def _difference(
    engine: ClippingEngine, inputs: Any, targets: Any, batch: int | None, own: bool
) -> DiscreetError:
    """Return the error that says why a gradient in a batch is not that of the example alone: because examples
    mix, or for another reason."""
    count = len(tree_leaves(targets)[0])
    singles = [pick((inputs, targets), torch.tensor([i], device="cpu")) for i in range(count)]
    alone = torch.cat([loss_sum(engine, *single).detach().reshape(1) for single in singles])
    if not bool(alone.isfinite().all()):
        return InvalidInput(
            "the loss of a made-up example is not finite. No data was read. "
            + (
                OWN_EXAMPLES
                if own
                else f"Made-up numbers lie in [0, 1], whole numbers and masks are 0 and 1. {MADE_UP_EXAMPLES}"
            )
        )
    if keeps_state(engine, inputs, targets):
        return NotPrivate(STATE)
    batch_gradient = plain_gradient(engine, inputs, targets)
    total = torch.stack([plain_gradient(engine, *single) for single in singles]).sum(0)
    scale = total.abs().max().clamp(min=1e-12)
    tolerance = _tolerance(engine, inputs)
    mixes = is_far(batch_gradient, total, scale, len(singles) * tolerance)
    for size in (count, *_larger_sizes(engine, count, batch)):
        positions = torch.arange(size, device="cpu") % count
        together = losses_of(engine, *pick((inputs, targets), positions))
        mixes |= is_far(together, alone[positions], alone.abs().max().clamp(min=1e-12), tolerance)
    if mixes:
        way_out = "" if engine.isolate else ", or give isolate=True, which runs each example alone"
        return NotPrivate(
            "the gradient of an example in a batch is not that of the same example alone: the model "
            "or the loss mixes examples "
            f"(a layer or a loss that averages over the batch?). No data was read. Remove what looks "
            f"across the batch{way_out}.{cache_hint(engine)}"
        )
    hooked = routes.weight_normed_by_hook(engine.model)
    if hooked is not None and not engine.isolate:
        return NotPrivate(
            f"{hooked}: the old torch.nn.utils.weight_norm computes a weight in a hook, outside its layer, "
            f"where gradients of examples cannot be told apart. No data was read. Use "
            f"torch.nn.utils.parametrizations.weight_norm, which computes the same; or run each example "
            f"alone: isolate=True."
        )
    return NotPrivate(
        "the gradient of an example is not what torch computes for it, although examples do not mix: "
        "the model uses a weight outside its layer (model.layer.weight in a formula), folds positions and "
        "examples into one dimension with positions first, or does something that is not known here. "
        "No data was read. "
        + ("Please report it." if engine.isolate else "Run each example alone: isolate=True.")
    )


def cache_hint(engine: ClippingEngine) -> str:
    """Return what to do about a model of transformers that keeps a cache, as Mamba does, in which the states
    of all examples are one."""
    configs = (getattr(module, "config", None) for module in engine.model.modules())
    if not any(getattr(config, "use_cache", False) is True for config in configs):
        return ""
    return " The model keeps a cache between calls: set use_cache=False in its config first."


def keeps_state(engine: ClippingEngine, inputs: Any, targets: Any) -> bool:
    """Return whether the same examples, with the same random numbers, have other losses when run again."""
    seed, losses = int(torch.randint(0, 1 << 30, (), device="cpu")), []
    for _ in range(2):
        seed_generators(engine.device, seed)
        losses.append(losses_of(engine, inputs, targets).nan_to_num())
    return is_far(losses[0], losses[1], losses[0].abs().max().clamp(min=1e-12), finest(engine))


class BatchComparison:
    """Compares gradients of made-up examples in batches, by the engine, with those of each alone, by torch.

    The examples run alone, one after the other. After the first, after SMALL_BATCH and after all of them, the
    sum of their gradients is compared with that of a batch of the same examples, which then takes its place.
    A larger batch, in which they are repeated, is compared with that of all. So each size is compared with
    what is known by the sizes before it: rounding decides most kinks alike in all batches, and otherwise for
    an example alone, so that float64 has to look again at the smallest batch with this example only.
    """

    def __init__(self, engine: ClippingEngine, inputs: Any, targets: Any, batch: int | None = None) -> None:
        # The engine then knows how much memory an example takes: of a large model fewer are compared.
        engine.gradients(*pick((inputs, targets), torch.arange(1, device="cpu")), sums_only=True)
        count = run_together(engine, len(tree_leaves(targets)[0]), batch)
        self.engine, self.weights = engine, random_weights(count, engine)
        self.examples = pick((inputs, targets), torch.arange(count, device="cpu"))
        self.sizes = {1, SMALL_BATCH, count, *_larger_sizes(engine, count, batch)}

    def differing_sizes(self, inputs: Any, targets: Any, sizes: Collection[int]) -> set[int]:
        """Return those of the batch sizes at which gradients differ; raise NotPrivate if a gradient is longer
        than its measured bound."""
        # The largest entry of a sum of at most all examples, and by size the largest difference of two sums.
        self._scale, self._worst = 0.0, dict.fromkeys(sorted(sizes), 0.0)
        squared_norms: dict[int, dict[int, float]] = {}
        for group in _groups(self.engine):
            self._compare(ReferenceGradients(self.engine, group, squared_norms), inputs, targets)
        return {
            size for size, worst in self._worst.items() if self._is_more_than_rounding(worst, size, inputs)
        }

    def _compare(self, reference: ReferenceGradients, inputs: Any, targets: Any) -> None:
        """Compare sums over the parameters of `reference`."""
        engine, count = self.engine, len(self.weights)
        weights = self.weights.to(engine.device, engine.dtype)
        larger = [size for size in self._worst if size > count]
        with reference.collecting():
            for size in range(1, max(self._worst.keys() - larger, default=0) + 1):
                one = pick((inputs, targets), torch.tensor([size - 1], device="cpu"))
                reference.add(size - 1, loss_sum(engine, *one), float(weights[size - 1]))
                if size in self._worst:
                    self._compare_batch(inputs, targets, reference, weights[:size])
        if larger and count not in self._worst:
            self._compare_batch(inputs, targets, reference, weights)
        for size in larger:
            self._compare_batch(inputs, targets, reference, _spread_weights(engine, weights, size))

    def _compare_batch(
        self, inputs: Any, targets: Any, reference: ReferenceGradients, weights: Tensor
    ) -> None:
        """Compare the weighted sum of a batch, in which examples may be repeated, with that in `reference`,
        whose place it takes; raise NotPrivate if a gradient is longer than its measured bound."""
        size, count = len(weights), len(self.weights)
        batch = pick((inputs, targets), torch.arange(size, device="cpu") % count)
        # Training bounds norms with and without layers: so all examples are measured without.
        measured = measure(self.engine, *batch, by_layer=size != count, sums_only=size > count)
        for part, true in zip(measured.parts(weights, reference.parameters), reference.sums, strict=True):
            if not part.numel():
                continue
            if size in self._worst:
                difference = largest_difference(part, true)
                self._worst[size] = (
                    max(self._worst[size], difference) if difference == difference else math.inf
                )
            if size <= count:
                self._scale = max(self._scale, float(torch.linalg.vector_norm(part, math.inf)))
                true.copy_(part)
        if reference.squared_norms:
            _check_lengths(measured, measured.gradients.squares, reference)

    def _is_more_than_rounding(self, difference: float, size: int, inputs: Any) -> bool:
        """Return whether sums differ; a batch in which examples are repeated may have larger ones. `inputs`
        show whether half precision is used."""
        bound = self._scale * max(1, size / len(self.weights))
        return difference > finest(self.engine) * bound and (
            # Asked last, and only if it matters: `_Watch` loads torch's compiler, a hundred megabytes.
            difference > HALF_TOLERANCE * bound or difference > _tolerance(self.engine, inputs) * bound
        )


def _groups(engine: ClippingEngine) -> Iterator[list[Any]]:
    """Yield the parameters whose sums are compared together: all of them; in float64, of which a model's sums
    take twice as much memory as its weights, about WEIGHTS_AT_ONCE at a time."""
    parameters = list(engine.parameters.values())
    if engine.dtype is not torch.float64:
        yield parameters
        return
    ends = itertools.accumulate(p.numel() for p in parameters)
    numbered = zip(ends, parameters, strict=True)
    for _, group in itertools.groupby(numbered, lambda pair: (pair[0] - 1) // WEIGHTS_AT_ONCE):
        yield [p for _, p in group]


def run_together(engine: ClippingEngine, count: int, batch: int | None = None) -> int:
    """Return how many of `count` made-up examples are run together: all of them; for a large model as many as
    training runs together, and at least four."""
    return min(count, max(SMALL_BATCH + 1, engine.part_size(max(count, batch or 1))))


def _larger_sizes(engine: ClippingEngine, count: int, batch: int | None) -> list[int]:
    """Return the batch sizes above `count`, up to LARGEST, at which gradients are compared: LARGER_BATCH (or
    count + 1 if that is more) and the expected `batch`. For a batch that training would run in parts, the
    size is that of the parts."""
    sizes = {engine.part_size(max(LARGER_BATCH, count + 1)), engine.part_size(batch or 1)}
    return sorted(size for size in sizes if count < size <= LARGEST)


def _spread_weights(engine: ClippingEngine, weights: Tensor, size: int) -> Tensor:
    """Return weights for a batch of `size` in which the examples are repeated; the weights of one example's
    copies add up to its entry in `weights`."""
    spread = random_weights(size, engine)
    count = len(weights)
    for i in range(min(count, size)):
        spread[i] = weights[i] - spread[i + count :: count].sum()
    return spread


def _check_lengths(measured: Measured, squares: Tensor, reference: ReferenceGradients) -> None:
    """Raise NotPrivate if a gradient's squared norm is above its bound in `squares`: [B, layers] or [B, 1].

    The examples of `reference` may be repeated in the batch. They are made up, so the error tells nothing
    about a person.
    """
    count = len(reference.squared_norms)
    layers = range(max(measured.engine.layers.values()) + 1)
    by_example = [[reference.squared_norms[i].get(layer, 0.0) for layer in layers] for i in range(count)]
    true = torch.tensor(by_example, dtype=torch.float64, device=squares.device)
    true = true[torch.arange(len(squares), device="cpu") % count]
    for i in _above_bound(squares, true).nonzero().flatten().tolist():
        _check_own_length(measured, i, squares[i : i + 1], reference.squared_norms[i % count])


def _above_bound(squares: Tensor, true: Tensor) -> Tensor:
    """Return for each example whether a squared norm in `true` is above its bound in `squares`, of a layer or
    of all layers together."""
    pairs = [(squares.sum(1, keepdim=True), true.sum(1, keepdim=True))]
    if squares.shape[1] > 1:
        pairs.append((squares, true))
    above = [(bound.isfinite() & (bound < norm * (1 - ROUNDING))).any(1) for bound, norm in pairs]
    return torch.stack(above).any(0)


def _check_own_length(measured: Measured, i: int, squares: Tensor, true: dict[int, float]) -> None:
    """Raise NotPrivate if the engine's own gradient of example i, which clipping scales, is longer than its
    bound in `squares`.

    Torch's gradient, with squared norms `true` by layer, is the same up to rounding, and may be longer than
    the bound in half precision, or where a kink falls to the other side, although nothing is wrong: so the
    engine's own is built, and decides; its norms take the place of those in `true`.
    """
    weights = measured.gradients.squares.new_zeros(
        len(measured.gradients.squares), dtype=measured.engine.dtype
    )
    weights[i], by_layer = 1, dict.fromkeys(true, 0.0)
    for p, part in zip(measured.engine.parameters.values(), measured.parts(weights), strict=True):
        layer = measured.engine.layers[id(p)]
        by_layer[layer] = by_layer.get(layer, 0.0) + squared_norm(part)
    layers = range(max(by_layer) + 1)
    built = squares.new_tensor([[by_layer.get(layer, 0.0) for layer in layers]])
    if bool(_above_bound(squares, built).any()):
        raise NotPrivate(
            "the gradient of a made-up example is longer than what was measured, so that it would "
            "not be clipped enough: a weight is used in "
            "two ways that are not known together. No data was read. "
            + (
                "Please report it."
                if measured.engine.isolate
                else "Run each example alone (isolate=True), and please report it."
            )
        )
    true.update(by_layer)


def largest_difference(one: Tensor, other: Tensor) -> float:
    """Return the largest absolute difference of two tensors; it is not finite if one of them is not."""
    pieces = zip(torch.split(one.flatten(), PIECE), torch.split(other.flatten(), PIECE), strict=True)
    return max(float((a - b).abs_().max()) for a, b in pieces)


def is_far(one: Tensor, other: Tensor, scale: Tensor, tolerance: float = TOLERANCE) -> bool:
    """Return whether two vectors differ somewhere by more than `tolerance` times `scale`, or are NaN there.

    Pieces are compared one by one, as each vector may be as large as the model.
    """
    pieces = zip(torch.split(one.flatten(), PIECE), torch.split(other.flatten(), PIECE), strict=True)
    return not all(bool(((a - b).abs_() <= tolerance * scale).all()) for a, b in pieces)
