"""Gradients of examples in a batch, compared with those of the same examples alone by torch itself.

Gradients are compared as sums with random weights, drawn anew each time: sums are equal if all summands are,
and with probability one only then. So no example's gradient is built by itself, which would cost a backward
pass and a model's memory each; what is compared goes parameter by parameter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from .._errors import DiscreetError, InvalidInput, NotPrivate
from . import heap, plan
from .engine import ClippingEngine, Gradients
from .taps import Tap, Target

# The second batch size: code may do one thing at one size, and another at another.
SMALL_BATCH = 3
# Of the size of the largest gradient: float32 alone and in a batch may sum in another order.
TOLERANCE = 1e-4
# The same where the model computes in half precision inside: eight bits, and a few layers of it.
HALF_TOLERANCE = 2.0**-4
# How often gradients are compared before they count as different, and by how much, relative to themselves,
# weights are perturbed in between (not tuned).
TRIES, PERTURBATION = 3, 2.0**-10
# The largest batch that is compared, so that a start stays short (a choice, not measured). Code that mixes
# only beyond it is taken on trust (docs/promise.md).
LARGEST = 512
# Entries that are compared at a time: four megabytes, where a model may have gigabytes.
PIECE = 1 << 20
# Of a squared length that is added up once more, from numbers that were rounded when they were added.
ROUNDING = 1e-5
# A larger batch, with an even number of examples, that is compared with single examples: no dimension of it
# is squeezed, and it is not cut in odd parts.
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
    """Holds the gradients of a batch, each example's by itself; weighted sums of them are built, a parameter
    at a time."""

    engine: ClippingEngine
    gradients: Gradients

    def parts(self, weights: Tensor) -> Iterator[Tensor]:
        """Yield the sum over examples of weights[i] times gradient i, one parameter after the other."""
        taps: dict[int, list[Tap]] = {}
        for tap in self.gradients.taps:
            for target in _targets_of(tap):
                taps.setdefault(id(target.parameter), []).append(tap)
        sums: dict[int, Tensor] = {}
        for p in self.engine.parameters.values():
            if id(p) not in sums:
                sums |= self._sums(p, taps, weights)
            yield sums.pop(id(p)).detach()

    def _sums(self, parameter: Tensor, taps: dict[int, list[Tap]], weights: Tensor) -> dict[int, Tensor]:
        """Return the sums of this parameter and of all that share a tap with it: a bias beside its weight, a
        bias in three parts beside three weights."""
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


def measure(engine: ClippingEngine, inputs: Any, targets: Any, *, sums_only: bool = False) -> Measured:
    """Return each example's gradient, and its loss; with `sums_only` in a step's memory, without losses."""
    gradients = engine.gradients(inputs, targets, sums_only=sums_only)
    keep = gradients.squares.sum(1).isfinite()
    if not bool(keep.all()):
        gradients.zero_out(keep)
    return Measured(engine, gradients)


def random_weights(size: int, dtype: torch.dtype) -> Tensor:
    """Return weights of either sign, none of them near zero."""
    return (0.5 + torch.rand(size, dtype=dtype)) * (1 - 2 * torch.randint(0, 2, (size,)))


def pick(data: Any, positions: Any) -> Any:
    return tree_map(lambda t: t[positions], data)


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes whether anything is computed in half precision."""

    seen: bool = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.seen |= any(
            isinstance(t, Tensor) and t.dtype in (torch.float16, torch.bfloat16) for t in tree_leaves(out)
        )
        return out


def _uses_half_precision(engine: ClippingEngine, inputs: Any) -> bool:
    """Return whether the model computes in half precision somewhere inside."""
    watch = _Watch()  # type: ignore[no-untyped-call]
    with watch, torch.no_grad():
        engine.model(*(inputs if isinstance(inputs, tuple) else (inputs,)))
    return bool(watch.seen)


def check_alone(
    engine: ClippingEngine, inputs: Any, targets: Any, batch: int | None = None, *, own: bool = False
) -> None:
    """Refuse a model in which an example's gradient in a batch, by the engine, is not that of the example
    alone, by torch itself.

    Sums are taken in another order for a batch, and where a ReLU's input is zero up to rounding that makes
    the difference between on and off: once in a hundred times for a small transformer. With weights a little
    different that is gone, and mixing is not.
    """
    if not differs(engine, inputs, targets, batch):
        return
    kept = [p.detach().clone() for p in engine.model.parameters()]
    try:
        for _ in range(TRIES - 1):
            with torch.no_grad():
                for p in engine.model.parameters():
                    if p.dtype.is_floating_point:
                        p.mul_(1 + PERTURBATION * torch.randn_like(p))
            if not differs(engine, inputs, targets, batch):
                return
        raise _difference(engine, inputs, targets, batch, own)
    finally:
        with torch.no_grad():
            for p, before in zip(engine.model.parameters(), kept, strict=True):
                p.copy_(before)


def _difference(
    engine: ClippingEngine, inputs: Any, targets: Any, batch: int | None, own: bool
) -> DiscreetError:
    """Say why a gradient in a batch is not that of the example alone: because examples mix, or for another
    reason."""
    count = len(tree_leaves(targets)[0])
    singles = [pick((inputs, targets), torch.tensor([i])) for i in range(count)]
    alone = torch.cat([_loss(engine, *single).detach().reshape(1) for single in singles])
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
    tolerance = HALF_TOLERANCE if _uses_half_precision(engine, inputs) else TOLERANCE
    mixes = is_far(batch_gradient, total, scale, len(singles) * tolerance)
    for size in (count, *_larger_sizes(engine, count, batch)):
        positions = torch.arange(size) % count
        together = losses_of(engine, *pick((inputs, targets), positions))
        mixes |= is_far(together, alone[positions], alone.abs().max().clamp(min=1e-12), tolerance)
    if mixes:
        way_out = (
            ""
            if engine.isolate
            else ", or run each example alone with isolate=True, where that is impossible"
        )
        return NotPrivate(
            "the gradient of an example in a batch is not that of the same example alone: the model "
            "or the loss mixes examples "
            f"(a layer or a loss that averages over the batch?). No data was read. Remove what looks "
            f"across the batch{way_out}."
        )
    hooked = plan.weight_normed_by_hook(engine.model)
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


def keeps_state(engine: ClippingEngine, inputs: Any, targets: Any) -> bool:
    """Return whether the same examples, with the same random numbers, have other losses the second time."""
    seed, losses = int(torch.randint(0, 1 << 30, ())), []
    for _ in range(2):
        # This generator alone: `torch.manual_seed` would seed accelerators too, which nobody puts back.
        torch.default_generator.manual_seed(seed)
        losses.append(losses_of(engine, inputs, targets).nan_to_num())
    return is_far(losses[0], losses[1], losses[0].abs().max().clamp(min=1e-12))


def differs(engine: ClippingEngine, inputs: Any, targets: Any, batch: int | None = None) -> bool:
    """Return whether an example's gradient depends on the batch that it is in; NotPrivate where one is
    measured too short."""
    count = len(tree_leaves(targets)[0])
    weights = random_weights(count, engine.dtype)
    total = engine.gradients(inputs, targets, by_layer=False, sums_only=True).squares
    # Now it is known what an example holds: of a large model four are compared, where training runs four.
    count = run_together(engine, count, batch)
    inputs, targets = pick((inputs, targets), torch.arange(count))
    total, weights = total[:count], weights[:count]
    parts = measure(engine, inputs, targets).parts(weights)
    scale = max(float(part.abs().max()) for part in parts if part.numel())
    del parts
    truth = _Truth(engine)
    with truth.collecting():
        for i in range(count):
            one = pick((inputs, targets), torch.tensor([i]))
            truth.add(_loss(engine, *one), float(weights[i]))
            if i == 0 and _sums_differ(engine, measure(engine, *one), truth, weights[:1], scale, inputs):
                return True
            if i + 1 == min(SMALL_BATCH, count):
                fewer = measure(engine, *pick((inputs, targets), torch.arange(i + 1)))
                if _sums_differ(engine, fewer, truth, weights[: i + 1], scale, inputs):
                    return True
                del fewer
    # Measured again, not kept: beside the truth, which is as large as the model, there is room for one batch.
    heap.give_back()
    measured_batch = measure(engine, inputs, targets)
    if _sums_differ(engine, measured_batch, truth, weights, scale, inputs):
        return True
    _check_lengths(measured_batch, total, truth)
    del measured_batch
    for size in _larger_sizes(engine, count, batch):
        # What a smaller batch left in pieces is no room for a larger one: together they would be the peak.
        heap.give_back()
        more = measure(engine, *pick((inputs, targets), torch.arange(size) % count), sums_only=True)
        if _sums_differ(engine, more, truth, _spread_weights(weights, size), scale, inputs):
            return True
        del more
    return False


def run_together(engine: ClippingEngine, count: int, batch: int | None = None) -> int:
    """Return how many of so many made-up examples are run together: all of them, but of a large model no more
    than training runs, and four at least."""
    return min(count, max(SMALL_BATCH + 1, engine.part_size(max(count, batch or 1))))


def _larger_sizes(engine: ClippingEngine, count: int, batch: int | None) -> list[int]:
    """Return the batch sizes above `count` at which gradients are compared: LARGER_BATCH at least, and the
    expected batch's; of a batch that would be run in parts, the size of these."""
    sizes = {engine.part_size(max(LARGER_BATCH, count + 1)), engine.part_size(batch or 1)}
    return sorted(size for size in sizes if count < size <= LARGEST)


def _spread_weights(weights: Tensor, size: int) -> Tensor:
    """Return weights for a batch in which examples come again and again; those of one example add up to its
    own."""
    spread = random_weights(size, weights.dtype)
    count = len(weights)
    for i in range(min(count, size)):
        spread[i] = weights[i] - spread[i + count :: count].sum()
    return spread


class _Truth:
    """Holds what torch itself computes for examples that are alone: the weighted sum of their gradients, and
    the squared length of each by layer."""

    def __init__(self, engine: ClippingEngine) -> None:
        self.engine = engine
        self.sums = [torch.zeros_like(p).detach() for p in engine.parameters.values()]
        self.lengths: list[dict[int, float]] = []

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Take the gradients of weights as they come, within this context, and keep none of them."""
        parameters = list(self.engine.parameters.values())
        kept = [p.grad for p in parameters]
        handles = []
        try:
            for p, out in zip(parameters, self.sums, strict=True):
                p.grad = None
                handle = p.register_post_accumulate_grad_hook(self._taker(out))  # type: ignore[no-untyped-call]
                handles.append(handle)
            yield
        finally:
            for handle in handles:
                handle.remove()
            for p, before in zip(parameters, kept, strict=True):
                p.grad = before

    def _taker(self, out: Tensor) -> Callable[[Tensor], None]:
        def take(p: Tensor) -> None:
            assert p.grad is not None
            gradient, p.grad = p.grad.to_dense(), None
            layer, own = self.engine.layers[id(p)], self.lengths[-1]
            own[layer] = own.get(layer, 0.0) + _square(gradient)
            out.add_(gradient, alpha=self.weight)

        return take

    def add(self, loss: Tensor, weight: float) -> None:
        """Add one example's gradient, by its loss."""
        self.weight = weight
        self.lengths.append({})
        loss.backward(inputs=list(self.engine.parameters.values()))  # type: ignore[no-untyped-call]


def _square(gradient: Tensor) -> float:
    """Return the squared length, piece by piece in float64."""
    return sum(float(piece.double().square().sum()) for piece in torch.split(gradient.flatten(), PIECE))


def _sums_differ(
    engine: ClippingEngine, measured: Measured, truth: _Truth, weights: Tensor, scale: float, inputs: Any
) -> bool:
    """Return whether the weighted sum of measured gradients is not that of single examples; NotPrivate where
    a length was measured too short."""
    size, count = len(weights), len(truth.lengths)
    far = [
        largest_difference(part, true)
        for part, true in zip(measured.parts(weights), truth.sums, strict=True)
        if part.numel()
    ]
    worst = max(far) if all(math.isfinite(d) for d in far) else math.inf
    bound = scale * max(1, size / count)
    if worst > TOLERANCE * bound and (
        # Not looked into before: watching loads torch's compiler, a hundred megabytes.
        worst > HALF_TOLERANCE * bound or not _uses_half_precision(engine, inputs)
    ):
        return True
    _check_lengths(measured, measured.gradients.squares, truth)
    return False


def _check_lengths(measured: Measured, squares: Tensor, truth: _Truth) -> None:
    """Hold the measured squares, by layer or as one, against the gradients of the examples, which may come
    again and again; on made-up examples only, where it tells nothing."""
    count = len(truth.lengths)
    layers = range(max(measured.engine.layers.values()) + 1)
    lengths = [[own.get(layer, 0.0) for layer in layers] for own in truth.lengths]
    true = torch.tensor(lengths, dtype=torch.float64)[torch.arange(len(squares)) % count]
    for place in _too_short(squares, true).nonzero().flatten().tolist():
        _check_own_length(measured, place, squares[place : place + 1], truth.lengths[place % count])


def _too_short(squares: Tensor, true: Tensor) -> Tensor:
    """Return for each example whether a length is above what was measured, of a layer or of all together."""
    pairs = [(squares.sum(1, keepdim=True), true.sum(1, keepdim=True))]
    if squares.shape[1] > 1:
        pairs.append((squares, true))
    short = [(own.isfinite() & (own < other * (1 - ROUNDING))).any(1) for own, other in pairs]
    return torch.stack(short).any(0)


def _check_own_length(measured: Measured, place: int, squares: Tensor, true: dict[int, float]) -> None:
    """Hold the measured squares of one example against the vector that will be scaled, which is built.

    Torch's gradient is that of the engine up to rounding, much of it in half precision: it may be longer.
    """
    weights = torch.zeros(len(measured.gradients.squares), dtype=measured.engine.dtype)
    weights[place], own = 1, dict.fromkeys(true, 0.0)
    for p, part in zip(measured.engine.parameters.values(), measured.parts(weights), strict=True):
        layer = measured.engine.layers[id(p)]
        own[layer] = own.get(layer, 0.0) + _square(part)
    layers = range(max(own) + 1)
    built = torch.tensor([[own.get(layer, 0.0) for layer in layers]], dtype=torch.float64)
    if bool(_too_short(squares, built).any()):
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


def largest_difference(one: Tensor, other: Tensor) -> float:
    """Return the largest difference of two tensors; not finite where one of them is not."""
    pieces = zip(torch.split(one.flatten(), PIECE), torch.split(other.flatten(), PIECE), strict=True)
    return max(float((a - b).abs_().max()) for a, b in pieces)


def losses_of(engine: ClippingEngine, inputs: Any, targets: Any) -> Tensor:
    args = inputs if isinstance(inputs, tuple) else (inputs,)
    with torch.no_grad():
        return engine.loss(engine.model(*args), targets)


def _loss(engine: ClippingEngine, inputs: Any, targets: Any) -> Tensor:
    args = inputs if isinstance(inputs, tuple) else (inputs,)
    total: Tensor = engine.loss(engine.model(*args), targets).sum()
    return total


def plain_gradient(engine: ClippingEngine, inputs: Any, targets: Any) -> Tensor:
    """Return the gradient of the sum of losses by torch's own backward pass, as one vector."""
    parameters = list(engine.parameters.values())
    parts = list(torch.autograd.grad(_loss(engine, inputs, targets), parameters, allow_unused=True))
    gradient = engine.buffer()
    for piece in torch.split(gradient, [p.numel() for p in parameters]):
        # Let go of as soon as it is copied.
        part = parts.pop(0)
        if part is not None:
            piece.copy_(part.to_dense().flatten())
    return gradient


def is_far(one: Tensor, other: Tensor, scale: Tensor, tolerance: float = TOLERANCE) -> bool:
    """Return whether two vectors differ somewhere; piece by piece, as each may be as long as the model."""
    pieces = zip(torch.split(one.flatten(), PIECE), torch.split(other.flatten(), PIECE), strict=True)
    return not all(bool(((a - b).abs_() <= tolerance * scale).all()) for a, b in pieces)
