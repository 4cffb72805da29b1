"""Decides which dimension of a tensor is the batch: once, from the shapes at two batch sizes.

That a dimension is as long as the batch proves nothing: a constant of T rows (a causal mask, a table of
positions) looks like a batch as soon as a batch has T examples. So the model is run twice before any gradient
is computed, on 3 and on 2 examples, and the shapes of each call's arguments and results are compared, leaf by
leaf (a leaf is a tensor or another single value in nested tuples, lists and dicts):

- one dimension is 3 and then 2, the others stay: that dimension is the batch.
- the shape stays: the tensor is the same for all examples, at every batch size (CONSTANT).
- the first dimension is 3 n and then 2 n: it holds n rows of each example (`Folded`).
- anything else (the batch in two dimensions, a number that is the batch size itself): UNCLEAR.
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
    return tree_map(lambda t: t[torch.arange(size) % len(t)] if isinstance(t, Tensor) else t, inputs)


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
def forked_generator() -> Iterator[None]:
    """Restore torch's random generator after this context; within it, gradients are enabled."""
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        yield
