"""The probe: does one example's data reach another example's gradient?

Clipping bounds what an example does through its own gradient. If a layer or a loss mixes examples, one person
moves everybody's gradient, and the noise hides far too little. The probe runs model and loss on made-up
examples at several batch sizes, compares the gradients with those of each example alone, and checks that no
gradient is longer than its measured bound (both in `single_examples`). Then it changes one example, to other
values and to NaN, and checks that the gradients and losses of all others stay the same. It sees no data.

It is a test, not a proof: code that mixes examples only on special inputs passes. `isolate=True` is the
proof, where `torch.func.vmap` can run the model (`batching`).

Replaces the random numbers that a model's own code draws by their medians.

The probe (`safety`) compares an example's gradient in a batch with that of the example alone, in training
mode. Random numbers would differ between the two. Dropout layers are switched off by the probe itself; this
module takes care of functions that draw (`F.dropout`, or a residual branch that is dropped by `torch.rand`).
"""

from __future__ import annotations

import copy
import ctypes
import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.checkpoint import CheckpointError

from ... import _require
from ..._errors import DiscreetError, InvalidInput, NotPrivate, Unsupported
from ..clipping.batching import forked_generator, full_precision, generators, placed, seed_generators
from ..clipping.engine import ClippingEngine
from ..clipping.taps import Tap, Target
from .single_examples import (
    MADE_UP_EXAMPLES,
    OWN_EXAMPLES,
    SMALL_BATCH,
    STATE,
    cache_hint,
    check_alone,
    finest,
    is_far,
    keeps_state,
    largest_difference,
    losses_of,
    measured,
    pick,
    plain_gradient,
    random_weights,
    run_together,
)

_DROPOUTS = (
    F.dropout,
    F.dropout1d,
    F.dropout2d,
    F.dropout3d,
    F.alpha_dropout,
    F.feature_alpha_dropout,
    torch.dropout,
)


class Medians(TorchFunctionMode):
    """Makes torch's random functions return the median of what they draw; dropout returns its input.

    It works inside `with Medians():`, on the functions in `_DROPOUTS` and `_MEDIANS`. All others draw as
    usual, and the caller sees it, because the state of torch's generator has changed.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _DROPOUTS:
            return args[0] if args else kwargs["input"]
        median = _MEDIANS.get(func)
        return func(*args, **kwargs) if median is None else median(*args, **kwargs)


def _attend_without_dropout(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    *args: Any,
    **rest: Any,
) -> Tensor:
    return F.scaled_dot_product_attention(query, key, value, attn_mask, 0.0, *args, **rest)


def _filled(create: Callable[..., Tensor], median: float) -> Callable[..., Tensor]:
    """Return a function that calls `create` (`torch.zeros` or `torch.zeros_like`) and fills the tensor with
    the median."""

    def run(*args: Any, generator: Any = None, **kwargs: Any) -> Tensor:
        return create(*args, **kwargs).fill_(median)

    return run


def _bernoulli(input: Tensor, p: float | None = None, *, generator: Any = None) -> Tensor:
    """Return the medians of coins: each has the probability in `input`, or all have the probability `p`."""
    probabilities = input if p is None else torch.full_like(input, p)
    return (probabilities >= 0.5).to(input.dtype)


def _bernoulli_(tensor: Tensor, p: Any = 0.5, *, generator: Any = None) -> Tensor:
    probabilities = torch.as_tensor(p, device=tensor.device).expand_as(tensor)
    return tensor.copy_(probabilities >= 0.5)


def _uniform_(tensor: Tensor, *ends: float, generator: Any = None, **named_ends: float) -> Tensor:
    """Fill a tensor with the middle of an interval, whose ends torch calls `from` (a keyword of Python, so
    that no parameter here can have this name) and `to`."""
    low = ends[0] if ends else named_ends.get("from", 0.0)
    high = ends[1] if len(ends) > 1 else named_ends.get("to", 1.0)
    return tensor.fill_((low + high) / 2)


def _normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0, *, generator: Any = None) -> Tensor:
    return tensor.fill_(mean)


_MEDIANS: dict[Any, Callable[..., Tensor]] = {
    F.scaled_dot_product_attention: _attend_without_dropout,
    torch.rand: _filled(torch.zeros, 0.5),
    torch.randn: _filled(torch.zeros, 0.0),
    torch.rand_like: _filled(torch.zeros_like, 0.5),
    torch.randn_like: _filled(torch.zeros_like, 0.0),
    torch.bernoulli: _bernoulli,
    Tensor.bernoulli: _bernoulli,
    Tensor.bernoulli_: _bernoulli_,
    Tensor.uniform_: _uniform_,
    Tensor.normal_: _normal_,
}


# The number of made-up examples of a batch: three are changed, one after the other, and the others must stay
# the same. Chosen by hand, not tuned.
BATCH = 5
# The number of forward passes that must agree before a model counts as deterministic. Chosen by hand.
DRAWS = 4
# Pieces of torch's error messages that show another reason than the values of made-up examples, with the
# error that is raised instead.
_KNOWN_ERRORS: dict[str, tuple[type[DiscreetError], str]] = {
    "use_reentrant": (
        Unsupported,
        "the model uses reentrant gradient checkpoints, which run a backward pass of their own: gradients of "
        "examples cannot be told apart in it. No data was read. Give torch.utils.checkpoint.checkpoint "
        "use_reentrant=False; a model of transformers, "
        'model.gradient_checkpointing_enable({"use_reentrant": False}).',
    ),
    "escaped from inside a function being vmapped": (NotPrivate, STATE),
    "Expected more than 1 value per channel when training": (
        NotPrivate,
        "the model normalizes examples by each other (torch's batch_norm, as a function), so that one person "
        "would move everybody's gradient. No data was read. Use F.group_norm or F.layer_norm instead.",
    ),
}


@_require.check_options
def probe(
    engine: ClippingEngine, inputs: Any, targets: Any, *, batch: int | None = None, own: bool = False
) -> None:
    """Raise NotPrivate if the model or the loss mixes examples, as far as made-up examples can show it.

    `inputs` and `targets` are batches of made-up examples (see `made_up`), of at least three, better of five
    or more; the model is left as it was.
    `batch` is the size that training expects: gradients are compared at this size, too, or at that of the
    parts in which such a batch is run. `own` says that the user gave the examples, with `synthetic=`.
    """
    _check_count(targets)
    buffers = {name: copy.deepcopy(buffer) for name, buffer in engine.model.named_buffers()}
    fingerprints = _fingerprints(engine.model)
    modes = [(module, module.training) for module in engine.model.modules()]
    inputs, targets = placed((inputs, targets), engine.device)
    with forked_generator(engine.device), full_precision(), engine.attached():
        try:
            with _repeatable(engine, inputs, targets):
                check_alone(engine, inputs, targets, batch, own=own)
            _return_freed_memory()
            _check_changes(engine, inputs, targets, batch)
            _check_state_unchanged(engine, buffers, fingerprints)
        except DiscreetError:
            raise
        # The data is made up, so the message tells nothing about a person.
        except Exception as error:
            for text, (refusal, message) in _KNOWN_ERRORS.items():
                if text in str(error):
                    raise refusal(message) from error
            is_dict = isinstance(inputs, dict)
            hint = (
                " A dict of inputs is ONE argument of the model: unpack it in forward()." if is_dict else ""
            )
            way_out = OWN_EXAMPLES if own else MADE_UP_EXAMPLES
            raise InvalidInput(
                f"the model or the loss failed on made-up examples: {type(error).__name__}: "
                f"{error}.{hint} {way_out} No data was read."
            ) from error
        finally:
            for module, mode in modes:
                module.training = mode
            _restore(engine.model, buffers)
    _return_freed_memory()


def _return_freed_memory() -> None:
    """Return freed memory to the system, where the C library is glibc; no setting is changed.

    Blocks that one part of the probe freed are of other sizes than those of the next, or of a training step.
    With them a BERT-base takes 1.39 times the memory of plain torch, without them 1.26 (measured).
    """
    # Other C libraries do not have the function, or cannot be opened so.
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def made_up(example: Any, batch: int = BATCH) -> Any:
    """Return `batch` made-up examples with the shapes and types of `example`, which is a batch of one or more
    examples: its first dimension is replaced.

    Floats are uniform in [0, 1]; whole numbers are 0 and 1, which are valid token ids and classes everywhere.
    Of two or more positions of an example some are 0 and others 1. They are always the same examples, so that
    one model has one verdict.
    """
    # A generator of its own: nobody else's draws change the examples, and theirs change nobody's.
    generator = torch.Generator("cpu").manual_seed(0)

    def one(tensor: Tensor) -> Tensor:
        shape = (batch, *tensor.shape[1:])
        if tensor.dtype.is_floating_point:
            return torch.rand(shape, dtype=tensor.dtype, generator=generator, device="cpu")
        bits = torch.randint(0, 2, shape, generator=generator, device="cpu")
        # The first two examples differ, so that `_changed` can replace one by another.
        bits[0], bits[1] = 0, 1
        if bits[0].numel() > 1:
            # A mask that is true everywhere, or nowhere, is not valid for every model, nor is a text of
            # nothing but padding: a softmax over no positions is NaN, and MPNet's gradient is 1e21.
            rows = bits.view(batch, -1)
            rows[:, 0], rows[:, 1] = 0, 1
            rows[1, 0], rows[1, 1] = 1, 0
        return bits.to(tensor.dtype)

    return tree_map(one, example)


def _check_count(targets: Any) -> None:
    """Refuse a batch in which there are not three examples to change, one after the other."""
    counts = [len(t) for t in tree_leaves(targets) if isinstance(t, Tensor) and t.dim()]
    if counts and min(counts) < SMALL_BATCH:
        raise InvalidInput(
            f"the made-up examples are too few ({min(counts)}) to see whether the model mixes examples. No "
            f"data was read. Give {BATCH} or more: synthetic=(inputs, targets)."
        )


@contextmanager
def _repeatable(engine: ClippingEngine, inputs: Any, targets: Any) -> Iterator[None]:
    """Set the mode in which gradients are compared, within this context: training mode, as the model will be
    run, with dropout off; if the model is still random, random numbers are replaced by their medians; if it
    is random even then, evaluation mode. `probe` puts back the mode of each module."""
    engine.train()
    drops = [m for m in engine.model.modules() if isinstance(m, nn.modules.dropout._DropoutNd)]
    with_dropout = [m for m in engine.model.modules() if isinstance(m, nn.RNNBase | nn.MultiheadAttention)]
    rates = [m.dropout for m in with_dropout]
    try:
        for drop in drops:
            drop.training = False
        for layer in with_dropout:
            layer.dropout = 0.0
        if not _is_random(engine, inputs, targets):
            yield
            return
        with ExitStack() as stack:
            stack.enter_context(Medians())
            if _is_random(engine, inputs, targets) or _is_random_backward(engine, inputs, targets):
                # Medians did not help: random numbers are drawn again.
                stack.close()
                engine.train(False)
            yield
    finally:
        for layer, rate in zip(with_dropout, rates, strict=True):
            layer.dropout = rate


def _is_random(engine: ClippingEngine, inputs: Any, targets: Any) -> bool:
    """Return whether the losses are random, or random numbers are drawn where they are computed.

    Random numbers may move gradients and hardly a loss: a branch that is dropped may be scaled by a
    millionth, as ConvNeXt's are. So a model also counts as random if it draws any.
    """
    states = [generator.get_state() for generator in generators(engine.device)]
    # With all examples, and more than twice: `F.dropout` rarely drops anything of a short example.
    first, *others = (losses_of(engine, inputs, targets).nan_to_num() for _ in range(DRAWS))
    pairs = zip(states, generators(engine.device), strict=True)
    is_drawn = not all(torch.equal(state, generator.get_state()) for state, generator in pairs)
    return is_drawn or not all(torch.equal(first, other) for other in others)


def _is_random_backward(engine: ClippingEngine, inputs: Any, targets: Any) -> bool:
    """Return whether the backward pass of an example is random: a gradient checkpoint runs its forward pass
    again there, where random numbers are not replaced by their medians."""
    one = pick((inputs, targets), torch.arange(1, device="cpu"))
    try:
        return not torch.equal(plain_gradient(engine, *one), plain_gradient(engine, *one))
    except CheckpointError:
        return True


def _check_changes(engine: ClippingEngine, inputs: Any, targets: Any, batch: int | None) -> None:
    """Refuse a model in which examples reach each other, in training mode, which training runs in; and in
    evaluation mode, which shows what random numbers of training may hide: so only if it is another
    computation, bit by bit."""
    # Fewer than all examples for a large model, as two batches are in memory at a time.
    count = run_together(engine, len(tree_leaves(targets)[0]), batch)
    batches = [pick((inputs, targets), torch.arange(size, device="cpu")) for size in (SMALL_BATCH, count)]
    seed, in_training = int(torch.randint(0, 1 << 30, (), device="cpu")), None
    engine.train()
    for examples in batches:
        in_training = _check_others_unmoved(engine, seed, *examples)
    engine.train(False)
    if not _is_same_elsewhere(count, in_training, _seeded(engine, seed, *batches[-1])):
        del in_training
        for examples in batches:
            _check_others_unmoved(engine, seed, *examples)


def _check_others_unmoved(
    engine: ClippingEngine, seed: int, inputs: Any, targets: Any
) -> tuple[list[Tap], Tensor]:
    """Refuse a model in which a change of one example changes the gradient or the loss of another; return
    taps and losses without any change.

    Each of three examples is changed in one or two ways, with the same random numbers each time.
    Batches of one size are added up in one order, so that no second look in float64 is needed; and a model
    that keeps what it saw would not show it again.
    """
    before = _seeded(engine, seed, inputs, targets)
    size = len(before[1])
    # Values far outside of [0, 1], where made-up examples lie, and no values.
    changes: list[tuple[int, Callable[[Tensor], Tensor]]] = [
        (2, _complement),
        (0, lambda x: x * 1000 + 7),
        (1, lambda x: torch.full_like(x, math.nan)),
    ]
    if size <= SMALL_BATCH and any(t.dtype.is_floating_point for t in tree_leaves(inputs)):
        # At the small batch size only: code that looks for such values does so at every size.
        changes += [(1, _extreme), (2, torch.zeros_like)]
    for position, change in changes:
        changed = _changed(inputs, position, change), _changed(targets, position, _complement)
        after = _seeded(engine, seed, *changed)
        if not _is_same_elsewhere(position, before, after) and _moved(engine, position, before, after):
            if keeps_state(engine, inputs, targets):
                raise NotPrivate(STATE)
            raise NotPrivate(
                "changing one made-up example changed the gradient or the loss of another: the model "
                "or the loss mixes examples, and "
                "one person would move everybody's gradient. No data was read. Replace batch normalization "
                "(learning.without_batch_norm), averages over the batch, and losses normalized over "
                "the batch" + ("." if engine.isolate else "; or use isolate=True.") + cache_hint(engine)
            )
    return before


def _is_same_elsewhere(position: int, one: Any, other: Any) -> bool:
    """Return whether the taps and losses of two batches are the same, bit by bit, for all examples but that
    at `position`: then so is all that is built from them, which is as large as the model."""
    if isinstance(one, Tensor):
        parts = slice(position), slice(position + 1, None)
        same = isinstance(other, Tensor) and one.shape == other.shape
        return same and all(torch.equal(one[rows], other[rows]) for rows in parts)
    if isinstance(one, Tap) and type(one) is type(other):
        one, other = list(vars(one).values()), list(vars(other).values())
    if isinstance(one, list | tuple):
        pairs = zip(one, other, strict=False)
        return len(one) == len(other) and all(_is_same_elsewhere(position, *pair) for pair in pairs)
    return bool(one.key == other.key if isinstance(one, Target) else one == other)


def _moved(engine: ClippingEngine, position: int, *recorded: tuple[list[Tap], Tensor]) -> bool:
    """Return whether the loss of an example, or a weighted sum of gradients, differs by more than rounding
    between two batches; the weight of the example at `position`, which was changed, is 0."""
    before, after = (measured(engine, engine.bounded(*run, len(run[1]))) for run in recorded)
    losses, others = before.gradients.losses, [i for i in range(len(recorded[0][1])) if i != position]
    if is_far(after.gradients.losses[others], losses[others], losses.abs().max(), finest(engine)):
        return True
    weights = random_weights(len(losses), engine)
    weights[position] = 0
    # Above 0, so that tiny differences between sums that should be zero count as rounding.
    scale, worst = 1e-12, 0.0
    for one, other in zip(before.parts(weights), after.parts(weights), strict=True):
        if one.numel():
            scale = max(scale, float(one.abs().max()))
            distance = largest_difference(one, other)
            worst = max(worst, distance) if math.isfinite(distance) else math.inf
    return worst > finest(engine) * scale


def _seeded(engine: ClippingEngine, seed: int, inputs: Any, targets: Any) -> tuple[list[Tap], Tensor]:
    seed_generators(engine.device, seed)
    return engine.recorded(inputs, targets)


def _changed(data: Any, position: int, change: Callable[[Tensor], Tensor]) -> Any:
    """Return the same batch with another example in one position.

    Floats are changed by `change`. Whole numbers must stay valid, so they are those of another example.
    """

    def one(tensor: Tensor) -> Tensor:
        out = tensor.clone()
        if tensor.dtype.is_floating_point:
            out[position] = change(out[position])
        else:
            differing = [i for i in range(len(out)) if not torch.equal(out[i], out[position])]
            out[position] = tensor[differing[0]] if differing else tensor[position]
        return out

    return tree_map(one, data)


def _complement(x: Tensor) -> Tensor:
    return 1 - x


def _extreme(x: Tensor) -> Tensor:
    """Return special values, which code may look for in a batch, and then treat all of it in another way."""
    values = torch.tensor([-math.inf, -1e9, -1.0, 0.0, 1e9, math.inf], dtype=x.dtype, device=x.device)
    return values[torch.arange(x.numel(), device=x.device) % len(values)].view(x.shape)


def _fingerprints(model: nn.Module) -> dict[str, int]:
    """Return a checksum of each parameter, the sum of its bits read as integers. A copy of the parameters,
    which would show changes as well, takes as much memory as the model."""
    fingerprints = {}
    for name, p in model.named_parameters():
        flat = p.detach().reshape(-1)
        # Torch reads eight bytes at a time only where they are aligned.
        aligned = all(n * flat.element_size() % 8 == 0 for n in (flat.numel(), flat.storage_offset()))
        fingerprints[name] = int(flat.view(torch.int64 if aligned else torch.uint8).sum(dtype=torch.int64))
    return fingerprints


def _restore(model: nn.Module, buffers: dict[str, Any]) -> None:
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            if name in buffers and isinstance(buffer, Tensor) and buffer.shape == buffers[name].shape:
                buffer.copy_(buffers[name])


def _equal(one: Tensor | None, other: Tensor | None) -> bool:
    """Return whether a buffer is the same before and after; None stands for a buffer that does not exist."""
    return one is not None and other is not None and torch.equal(one, other)


def _check_state_unchanged(
    engine: ClippingEngine, buffers: dict[str, Any], fingerprints: dict[str, int]
) -> None:
    """Refuse a model whose forward pass changes its buffers or parameters: running averages and the like are
    learned from private examples without noise."""
    after = dict(engine.model.named_buffers())
    moved = [name for name in {**buffers, **after} if not _equal(buffers.get(name), after.get(name))]
    if moved:
        raise NotPrivate(
            f"the forward pass changes the buffer {moved[0]!r}: what it keeps of private examples is "
            f"never noised. No data was read. Turn that off (track_running_stats=False, say), or compute it "
            f"before training from public examples."
        )
    changed = [
        name for name, checksum in _fingerprints(engine.model).items() if fingerprints[name] != checksum
    ]
    if changed:
        raise NotPrivate(
            f"the forward pass changes the parameter {changed[0]!r} in place: what it writes there of "
            f"private examples is never noised. No data was read. Let forward() leave parameters as they are."
        )
