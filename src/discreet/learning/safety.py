"""The probe: does one example's data reach another example's gradient?

Clipping bounds what an example does through its own gradient. If a layer or a loss mixes examples, one person
moves everybody's gradient, and the noise hides far too little. The probe runs model and loss on made-up
examples at several batch sizes, compares with running each example alone, holds each measured length against
that of the gradient itself, then changes one example (to other values, and to NaN) and watches all others. It
sees no data.

Gradients are compared as sums with random weights, drawn anew each time: sums are equal if all summands are,
and with probability one only then. So no example's gradient is built by itself, which would cost a backward
pass and a model's memory each; what is compared goes parameter by parameter.

It is a test, not a proof: code that mixes examples only on special inputs passes. `isolate=True` is the
proof.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from .._errors import DiscreetError, InvalidInput, NotPrivate
from . import heap
from .engine import ClippingEngine, Gradients
from .taps import Tap, Target

BATCH = 5
FEWER = 3  # the second batch size: code may do one thing at one size, and another at another
ONE, MORE = (
    1,
    12,
    # two more, one of them even, at which examples are held against themselves alone: nothing is squeezed,
    # nothing cut into parts
)
TOLERANCE = 1e-4  # of the size of the largest gradient: float32 alone and in a batch may sum in another order
# The same where the model computes in half precision inside: eight bits, and a few layers of it.
HALF_TOLERANCE = 2.0**-4
TRIES, NUDGE = 3, 2.0**-10
DRAWS = 4  # forward passes that must agree before a model is taken for one without chance in it
# The largest batch that is compared: for more a start would take as long as several steps. Code that mixes
# only beyond it is taken on trust (docs/promise.md).
LARGEST = 512
PIECE = 1 << 20  # entries that are compared at a time: four megabytes, where a model may have gigabytes
# of a squared length that is added up once more, from numbers that were rounded when they were added
ROUNDING = 1e-5


def probe(engine: ClippingEngine, inputs: Any, targets: Any, *, batch: int | None = None) -> None:
    """Raise NotPrivate if the model or the loss mixes examples, as far as made-up examples can show it.

    `inputs` and `targets` are made-up batches of five or more (see `made_up`); the model is left as it was.
    `batch` is the size that training expects: gradients are compared at the size of its parts, too.
    """
    buffers = {name: copy.deepcopy(buffer) for name, buffer in engine.model.named_buffers()}
    prints = _fingerprints(engine.model)
    modes = [(module, module.training) for module in engine.model.modules()]
    with torch.random.fork_rng(devices=[]), torch.autocast("cpu", enabled=False), engine.attached():
        try:
            with _repeatable(engine, inputs, targets):
                _alone(engine, inputs, targets, batch)
            heap.give_back()
            for mode in (False, True):
                engine.train(mode)
                for size in _few_sizes(engine, len(tree_leaves(targets)[0])):
                    _others(engine, *_pick((inputs, targets), torch.arange(size)))
            _same_state(engine, buffers, prints)
        except DiscreetError:
            raise
        except Exception as error:  # made-up data: the message speaks of no person
            hint = " A dict of inputs is ONE argument of the model: unpack it in forward()." * isinstance(
                inputs, dict
            )
            raise InvalidInput(
                f"the model or the loss failed on made-up examples: {type(error).__name__}: "
                f"{error}.{hint} If those are not valid for this model, "
                f"give your own with synthetic=(inputs, targets). No data was read."
            ) from error
        finally:
            for module, mode in modes:
                module.training = mode
            _restore(engine.model, buffers)
    heap.give_back()


def _few_sizes(engine: ClippingEngine, count: int) -> tuple[int, int]:
    """Return two batch sizes at which one example is changed; of a large model not all, as two batches are
    held side by side: four, where training runs four together."""
    return max(FEWER + 1, engine.part_size(count)), FEWER


def made_up(example: Any, batch: int = BATCH) -> Any:
    """Return a batch of made-up examples with the shapes and types of `example` (one example, or a batch of
    them: the first dimension is replaced).

    Floats are uniform in [0, 1]; whole numbers are 0 and 1, which are words and classes of every model. A
    mask hides some and not all.
    """

    def one(tensor: Tensor) -> Tensor:
        shape = (batch, *tensor.shape[1:])
        if tensor.dtype.is_floating_point:
            return torch.rand(shape, dtype=tensor.dtype)
        flips = torch.randint(0, 2, shape)
        flips[0], flips[1] = 0, 1
        if tensor.dtype is torch.bool and flips[0].numel() > 1:
            # A mask that hides everything, or nothing, is not valid for every model: a softmax over nothing
            # is not a number.
            flips.view(batch, -1)[:, 0], flips.view(batch, -1)[:, 1] = 0, 1
        return flips.to(tensor.dtype)

    return tree_map(one, example)


def rows_of(engine: ClippingEngine, inputs: Any, targets: Any) -> Tensor:
    """Return each example's gradient, [B, parameters], by the engine's own route.

    For tests: it is not clipped, and each is as long as the model.
    """
    measured = _measured(engine, inputs, targets)
    size = len(measured.gradients.losses)
    units = torch.eye(size, dtype=engine.dtype)
    return torch.stack([torch.cat([part.flatten() for part in measured.parts(unit)]) for unit in units])


@dataclass
class _Measured:
    """The gradients of a batch, each example's by itself; weighted sums of them are built, a parameter at a
    time."""

    engine: ClippingEngine
    gradients: Gradients

    def parts(self, weights: Tensor) -> Iterator[Tensor]:
        """Yield the sum over examples of weights[i] times gradient i, one parameter after the other."""
        taps: dict[int, list[Tap]] = {}
        for tap in self.gradients.taps:
            for target in _targets(tap):
                taps.setdefault(id(target.parameter), []).append(tap)
        ready: dict[int, Tensor] = {}
        for p in self.engine.parameters.values():
            if id(p) not in ready:
                ready |= self._sums(p, taps, weights)
            yield ready.pop(id(p)).detach()

    def _sums(self, parameter: Tensor, taps: dict[int, list[Tap]], weights: Tensor) -> dict[int, Tensor]:
        """Return the sums of this parameter and of those whose taps look after it, too: a bias beside its
        weight, a bias in three parts beside three weights."""
        sums = {id(parameter): torch.zeros_like(parameter)}
        todo = {id(tap): tap for tap in taps.get(id(parameter), [])}
        added: set[int] = set()
        while todo:
            key, tap = todo.popitem()
            added.add(key)
            for target in _targets(tap):
                if id(target.parameter) not in sums:
                    sums[id(target.parameter)] = torch.zeros_like(target.parameter)
                others = {id(other): other for other in taps[id(target.parameter)]}
                todo |= {other: tap for other, tap in others.items() if other not in added}
            with torch.no_grad():
                tap.add(weights, sums)
        return sums


def _targets(tap: Tap) -> list[Target]:
    return [target for target in (tap.target, tap.bias) if target is not None]


def _measured(engine: ClippingEngine, inputs: Any, targets: Any, *, sums_only: bool = False) -> _Measured:
    """Return each example's gradient, and its loss; with `sums_only` in a step's memory, without losses."""
    gradients = engine.gradients(inputs, targets, sums_only=sums_only)
    keep = gradients.squares.sum(1).isfinite()
    if not bool(keep.all()):
        gradients.zero_out(keep)
    return _Measured(engine, gradients)


def _random_weights(size: int, dtype: torch.dtype) -> Tensor:
    """Return weights of either sign, none of them near zero."""
    return (0.5 + torch.rand(size, dtype=dtype)) * (1 - 2 * torch.randint(0, 2, (size,)))


@contextmanager
def _repeatable(engine: ClippingEngine, inputs: Any, targets: Any) -> Iterator[None]:
    """The mode in which gradients are compared: training, as the model will be run, with nothing dropped out;
    evaluation if that is still random."""
    engine.train()
    drops = [m for m in engine.model.modules() if isinstance(m, nn.modules.dropout._DropoutNd)]
    within = [m for m in engine.model.modules() if isinstance(m, nn.RNNBase | nn.MultiheadAttention)]
    rates = [m.dropout for m in within]
    try:
        for drop in drops:
            drop.training = False
        for layer in within:
            layer.dropout = 0.0
        # Of all examples, and more than twice: a function's dropout hits a short example rarely.
        first, *others = (_losses(engine, inputs, targets).nan_to_num() for _ in range(DRAWS))
        if not all(torch.equal(first, other) for other in others):
            engine.train(False)
        yield
    finally:
        for layer, rate in zip(within, rates, strict=True):
            layer.dropout = rate


def _pick(data: Any, positions: Any) -> Any:
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


def _halves(engine: ClippingEngine, inputs: Any) -> bool:
    watch = _Watch()  # type: ignore[no-untyped-call]
    with watch, torch.no_grad():
        engine.model(*(inputs if isinstance(inputs, tuple) else (inputs,)))
    return bool(watch.seen)


def _alone(engine: ClippingEngine, inputs: Any, targets: Any, batch: int | None = None) -> None:
    """In a batch and alone, by the engine and by torch itself, an example must have one and the same
    gradient.

    Sums are taken in another order for a batch, and where a ReLU's input is zero up to rounding that makes
    the difference between on and off: once in a hundred times for a small transformer. With weights a little
    different that is gone, and mixing is not.
    """
    if not _differs(engine, inputs, targets, batch):
        return
    kept = [p.detach().clone() for p in engine.model.parameters()]
    try:
        for _ in range(TRIES - 1):
            with torch.no_grad():
                for p in engine.model.parameters():
                    if p.dtype.is_floating_point:
                        p.mul_(1 + NUDGE * torch.randn_like(p))
            if not _differs(engine, inputs, targets, batch):
                return
        raise _difference(engine, inputs, targets, batch)
    finally:
        with torch.no_grad():
            for p, before in zip(engine.model.parameters(), kept, strict=True):
                p.copy_(before)


def _difference(engine: ClippingEngine, inputs: Any, targets: Any, batch: int | None = None) -> DiscreetError:
    """Say why a gradient in a batch is not that of the example alone: because examples mix, or for another
    reason."""
    count = len(tree_leaves(targets)[0])
    singles = [_pick((inputs, targets), torch.tensor([i])) for i in range(count)]
    alone = torch.cat([_loss(engine, *single).detach().reshape(1) for single in singles])
    if not bool(alone.isfinite().all()):
        return InvalidInput(
            "the loss of a made-up example is not finite. No data was read. Made-up numbers lie in "
            "[0, 1], whole numbers and masks are 0 and 1: "
            "if those are not valid for this model, give your own with synthetic=(inputs, targets)."
        )
    whole = _plain(engine, inputs, targets)
    total = torch.stack([_plain(engine, *single) for single in singles]).sum(0)
    scale = total.abs().max().clamp(min=1e-12)
    mixes = _far(whole, total, scale, len(singles) * TOLERANCE)
    for size in (count, *_larger_sizes(engine, count, batch)):
        positions = torch.arange(size) % count
        together = _losses(engine, *_pick((inputs, targets), positions))
        mixes |= _far(together, alone[positions], alone.abs().max().clamp(min=1e-12))
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
    return NotPrivate(
        "the gradient of an example is not what torch computes for it, although examples do not mix: "
        "the model uses a weight outside its layer "
        "(model.layer.weight in a formula, an old weight_norm), or in a way that is not known here. "
        "No data was read. "
        + ("Please report it." if engine.isolate else "Run each example alone: isolate=True.")
    )


def _differs(engine: ClippingEngine, inputs: Any, targets: Any, batch: int | None = None) -> bool:
    """Return whether an example's gradient depends on the batch that it is in; NotPrivate where one is
    measured too short."""
    count = len(tree_leaves(targets)[0])
    weights = _random_weights(count, engine.dtype)
    total = engine.gradients(inputs, targets, by_layer=False, sums_only=True).squares
    parts = _measured(engine, inputs, targets).parts(weights)
    scale = max(float(part.abs().max()) for part in parts if part.numel())
    del parts
    truth = _Truth(engine)
    with truth.collecting():
        for i in range(count):
            one = _pick((inputs, targets), torch.tensor([i]))
            truth.add(_loss(engine, *one), float(weights[i]))
            if i == 0 and _apart(engine, _measured(engine, *one), truth, weights[:1], scale, inputs):
                return True
            if i + 1 == min(FEWER, count):
                fewer = _measured(engine, *_pick((inputs, targets), torch.arange(i + 1)))
                if _apart(engine, fewer, truth, weights[: i + 1], scale, inputs):
                    return True
                del fewer
    # Measured again, not kept: beside the truth, which is as large as the model, there is room for one batch.
    heap.give_back()
    whole = _measured(engine, inputs, targets)
    if _apart(engine, whole, truth, weights, scale, inputs):
        return True
    _check_lengths(whole, total, truth)
    del whole
    for size in _larger_sizes(engine, count, batch):
        # What a smaller batch left in pieces is no room for a larger one: together they would be the peak.
        heap.give_back()
        more = _measured(engine, *_pick((inputs, targets), torch.arange(size) % count), sums_only=True)
        if _apart(engine, more, truth, _split(weights, size), scale, inputs):
            return True
        del more
    return False


def _larger_sizes(engine: ClippingEngine, count: int, batch: int | None) -> list[int]:
    """Return the batch sizes above `count` at which gradients are compared: MORE at least, and the expected
    batch's; of a batch that would be run in parts, the size of these."""
    sizes = {engine.part_size(max(MORE, count + 1)), engine.part_size(batch or 1)}
    return sorted(size for size in sizes if count < size <= LARGEST)


def _split(weights: Tensor, size: int) -> Tensor:
    """Return weights for a batch in which examples come again and again; those of one example add up to its
    own."""
    spread = _random_weights(size, weights.dtype)
    count = len(weights)
    for i in range(min(count, size)):
        spread[i] = weights[i] - spread[i + count :: count].sum()
    return spread


class _Truth:
    """What torch itself computes for examples that are alone: the weighted sum of their gradients, and the
    squared length of each by layer."""

    def __init__(self, engine: ClippingEngine) -> None:
        self.engine = engine
        self.sums = [torch.zeros_like(p).detach() for p in engine.parameters.values()]
        self.lengths: list[dict[int, float]] = []

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Within this context gradients of weights are taken as they come, and let go of."""
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


def _apart(
    engine: ClippingEngine, measured: _Measured, truth: _Truth, weights: Tensor, scale: float, inputs: Any
) -> bool:
    """Return whether the weighted sum of measured gradients is not that of single examples; NotPrivate where
    a length was measured too short."""
    size, count = len(weights), len(truth.lengths)
    far = [
        _distance(part, true)
        for part, true in zip(measured.parts(weights), truth.sums, strict=True)
        if part.numel()
    ]
    worst = max(far) if all(math.isfinite(d) for d in far) else math.inf
    bound = scale * max(1, size / count)
    if worst > TOLERANCE * bound and (
        # Not looked into before: watching loads torch's compiler, a hundred megabytes.
        worst > HALF_TOLERANCE * bound or not _halves(engine, inputs)
    ):
        return True
    _check_lengths(measured, measured.gradients.squares, truth)
    return False


def _check_lengths(measured: _Measured, squares: Tensor, truth: _Truth) -> None:
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


def _check_own_length(measured: _Measured, place: int, squares: Tensor, true: dict[int, float]) -> None:
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
            "two ways that are not known together. No data was read. Run each example alone "
            "(isolate=True), and please report it."
        )


def _distance(one: Tensor, other: Tensor) -> float:
    """Return the largest difference of two tensors; not finite where one of them is not."""
    pieces = zip(torch.split(one.flatten(), PIECE), torch.split(other.flatten(), PIECE), strict=True)
    return max(float((a - b).abs_().max()) for a, b in pieces)


def _losses(engine: ClippingEngine, inputs: Any, targets: Any) -> Tensor:
    args = inputs if isinstance(inputs, tuple) else (inputs,)
    with torch.no_grad():
        return engine.loss(engine.model(*args), targets)


def _loss(engine: ClippingEngine, inputs: Any, targets: Any) -> Tensor:
    args = inputs if isinstance(inputs, tuple) else (inputs,)
    total: Tensor = engine.loss(engine.model(*args), targets).sum()
    return total


def _plain(engine: ClippingEngine, inputs: Any, targets: Any) -> Tensor:
    parameters = list(engine.parameters.values())
    parts = list(torch.autograd.grad(_loss(engine, inputs, targets), parameters, allow_unused=True))
    whole = engine.buffer()
    for piece in torch.split(whole, [p.numel() for p in parameters]):
        part = parts.pop(0)  # let go of as soon as it is copied
        if part is not None:
            piece.copy_(part.to_dense().flatten())
    return whole


def _others(engine: ClippingEngine, inputs: Any, targets: Any) -> None:
    """Change one example in every way; no other's gradient or loss may move.

    The same random numbers each time.
    """
    seed = int(torch.randint(0, 1 << 30, ()))
    before = _seeded(engine, seed, inputs, targets)
    losses = before.gradients.losses
    for place, change in ((2, _others_value), (0, _huge), (1, _nan)):
        rest = [i for i in range(len(losses)) if i != place]
        weights = _random_weights(len(losses), engine.dtype)
        weights[place] = 0
        changed = _changed(inputs, place, change), _changed(targets, place, _others_value)
        after = _seeded(engine, seed, *changed)
        if _far(after.gradients.losses[rest], losses[rest], losses.abs().max()) or _moved(
            before, after, weights
        ):
            raise NotPrivate(
                "changing one made-up example changed the gradient or the loss of another: the model "
                "or the loss mixes examples, and "
                "one person would move everybody's gradient. No data was read. Replace batch normalization "
                "(learning.without_batch_norm), averages over the batch, and losses normalized over "
                "the batch; or use isolate=True."
            )


def _moved(before: _Measured, after: _Measured, weights: Tensor) -> bool:
    """Return whether the weighted sum of some gradients is another one."""
    scale, worst = 1e-12, 0.0
    for one, other in zip(before.parts(weights), after.parts(weights), strict=True):
        if one.numel():
            scale = max(scale, float(one.abs().max()))
            distance = _distance(one, other)
            worst = max(worst, distance) if math.isfinite(distance) else math.inf
    return worst > TOLERANCE * scale


def _seeded(engine: ClippingEngine, seed: int, inputs: Any, targets: Any) -> _Measured:
    torch.manual_seed(seed)
    return _measured(engine, inputs, targets)


def _changed(data: Any, place: int, change: Callable[[Tensor], Tensor]) -> Any:
    """Return the same batch with another example in one place.

    Whole numbers are taken from a neighbor: they must stay valid.
    """

    def one(tensor: Tensor) -> Tensor:
        out = tensor.clone()
        if tensor.dtype.is_floating_point:
            out[place] = change(out[place])
        else:
            differing = [i for i in range(len(out)) if not torch.equal(out[i], out[place])]
            out[place] = tensor[differing[0]] if differing else tensor[place]
        return out

    return tree_map(one, data)


def _others_value(x: Tensor) -> Tensor:
    return 1 - x


def _huge(x: Tensor) -> Tensor:
    return x * 1000 + 7


def _nan(x: Tensor) -> Tensor:
    return torch.full_like(x, float("nan"))


def _far(one: Tensor, other: Tensor, scale: Tensor, tolerance: float = TOLERANCE) -> bool:
    """Return whether two vectors differ somewhere; piece by piece, as each may be as long as the model."""
    pieces = zip(torch.split(one.flatten(), PIECE), torch.split(other.flatten(), PIECE), strict=True)
    return not all(bool(((a - b).abs_() <= tolerance * scale).all()) for a, b in pieces)


def _fingerprints(model: nn.Module) -> dict[str, int]:
    """Return a sum over the bits of each parameter, which shows whether it was changed: a copy of all of them
    is as large as the model."""
    prints = {}
    for name, p in model.named_parameters():
        whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[min(8, p.element_size())]
        prints[name] = int(p.detach().reshape(-1).view(whole).sum(dtype=torch.int64))
    return prints


def _restore(model: nn.Module, buffers: dict[str, Any]) -> None:
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            if name in buffers and isinstance(buffer, Tensor) and buffer.shape == buffers[name].shape:
                buffer.copy_(buffers[name])


def _equal(one: Tensor | None, other: Tensor | None) -> bool:
    """Return whether a buffer is the same; one that was not there before is not."""
    return one is not None and other is not None and torch.equal(one, other)


def _same_state(engine: ClippingEngine, buffers: dict[str, Any], prints: dict[str, int]) -> None:
    """Running averages and the like are learned from private examples without noise."""
    after = dict(engine.model.named_buffers())
    moved = [name for name in {**buffers, **after} if not _equal(buffers.get(name), after.get(name))]
    if moved:
        raise NotPrivate(
            f"the forward pass changes the buffer {moved[0]!r}: what it keeps of private examples is "
            f"never noised. No data was read. "
            f"Turn that off."
        )
    changed = [
        name for name, sum_of_bits in _fingerprints(engine.model).items() if prints[name] != sum_of_bits
    ]
    if changed:
        raise NotPrivate(
            f"the forward pass changes the parameter {changed[0]!r} in place: what it writes there of "
            f"private examples is never noised. No data was read. Change weights between runs."
        )
