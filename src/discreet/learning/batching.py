"""Which dimension of a tensor is the batch: decided once, from shapes at two batch sizes, never from a size
that equals the batch's.

A constant of T rows (a causal mask, a table of positions) looks like a batch as soon as a batch has T
examples. So the model is run twice on few examples before anything is added up, with 3 and with 2 of them. A
dimension that is 3 and then 2 follows the batch; a shape that stays is the same for all examples, at every
batch size; a first dimension that is 3 n and then 2 n has n rows of each example (`Folded`); anything else
(the batch in two dimensions, the number of examples itself) is neither.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from .._errors import Unsupported

# The two batch sizes: small, different, and not 1, which broadcasting would hide.
SIZES = (3, 2)
CONSTANT, UNCLEAR = None, -1


@dataclass(frozen=True)
class Folded:
    """Says that so many rows of each example are folded into the first dimension, example after example.

    That they lie in this order is an assumption. In another one the gradients would be none of any example,
    which the probe finds. That each example has as many rows on other data, too, is checked: a model that
    picks rows by their values (`DynamicShapes`) is refused.
    """

    rows: int


# A number, CONSTANT, UNCLEAR, or folded.
Axis = int | Folded | None
# The name of a module, and which of its calls within one forward pass.
Call = tuple[str, int]


class NotBatchFirst(Exception):
    """Says that a layer got something other than one row per example: its gradient cannot be taken apart by
    example.
    """


@dataclass(frozen=True)
class Layout:
    """Says for each leaf of a call's arguments and results which dimension is the batch: a number, CONSTANT,
    UNCLEAR, or folded."""

    inputs: tuple[Axis, ...]
    outputs: tuple[Axis, ...]
    # The shapes of those arguments that are the same for all examples; None for the others.
    constants: tuple[Any, ...] = ()
    # The shape of each argument for one example; None for what is no tensor. In the batch that comes a
    # dimension may be longer or shorter, by the longest text in it, say: a way to bound norms is chosen by
    # this shape, which one example more does not change.
    shapes: tuple[Any, ...] = field(default=(), compare=False)

    def fits(self, leaves: list[Any]) -> bool:
        """Return whether a call's arguments look like those the decision was made for: as many, and constants
        of the same shapes."""
        if len(leaves) != len(self.inputs):
            return False
        pairs = zip(leaves, self.constants, strict=True)
        return all(shape is None or (isinstance(x, Tensor) and x.shape == shape) for x, shape in pairs)


Form = tuple[tuple[Any, ...], tuple[Any, ...]]


def leaves_of(arguments: Any) -> list[Any]:
    """Return all leaves of a call's arguments.

    A packed sequence is one thing: its parts go with the lengths of the examples that it is packed from.

    Tuples, lists and dicts are walked here, in 1.1 instead of 3.6 microseconds (measured): it is done twice
    for every call of a layer.
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
    """Notes what the calls of one forward pass look like."""

    forms: dict[Call, Form] = field(default_factory=dict)

    def note(self, call: Call, arguments: Any, results: Any) -> None:
        """Keep the shapes of all tensors, and the other values."""
        self.forms[call] = tuple(map(_form, leaves_of(arguments))), tuple(map(_form, leaves_of(results)))


def _form(leaf: Any) -> Any:
    """Return what is compared of a leaf: the shape of a tensor, a plain value, or else the type."""
    if isinstance(leaf, Tensor):
        if leaf.is_nested:
            raise Unsupported(
                "a layer is given a nested tensor, in which nobody can tell examples apart by a dimension. "
                "No data was read. Pad it (torch.nested.to_padded_tensor), with a mask of what is padding."
            )
        return leaf.shape
    return leaf if isinstance(leaf, int | float | str | bool) else type(leaf)


def layouts(first: ShapeSurvey, second: ShapeSurvey) -> dict[Call, Layout]:
    """Return the decision for every call that was made at both batch sizes.

    Guarantee: an axis is a number only if that dimension was as long as the batch at both sizes, and no other
               dimension changed.
    """
    pairs = [(call, form, second.forms[call]) for call, form in first.forms.items() if call in second.forms]
    return {call: _layout(a, b) for call, a, b in pairs}


def _layout(first: Form, second: Form) -> Layout:
    """Return the layout of one call, from its forms at the two batch sizes."""
    inputs = _axes(first[0], second[0])
    if len(first[0]) != len(second[0]):
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
    """Return the decision for a call; for one more than were seen (gradient checkpoints call again), that of
    all others if they agree."""
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
    """Return the one dimension that is as long as the batch at both sizes; CONSTANT or UNCLEAR where there is
    none.
    """
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
    """Return `size` of the batch's examples, repeated where there are fewer."""
    return tree_map(lambda t: t[torch.arange(size) % len(t)] if isinstance(t, Tensor) else t, inputs)


class DynamicShapes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes whether a shape goes with the values of a tensor: rows picked by a mask, say."""

    seen: bool = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.dynamic_output_shape in func.tags:
            # Picking by positions has the shape of the positions; by a mask, that of what it shows.
            picks = func.overloadpacket is torch.ops.aten.index
            masks = (torch.bool, torch.uint8)
            self.seen |= not picks or any(t.dtype in masks for t in tree_leaves(args[1]) if t is not None)
        return func(*args, **(kwargs or {}))


@contextmanager
def forked_generator() -> Iterator[None]:
    """Fork torch's random generator, so that what runs in this context leaves it as it was."""
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        yield
