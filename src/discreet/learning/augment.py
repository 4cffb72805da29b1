"""Makes several variants of each example (augmentation multiplicity), whose gradients are averaged before
they are clipped.

The average is clipped as one example's gradient, so that the price is the same as without augmentation (De,
Berrada, Hayes, Smith & Balle 2022, arXiv:2204.13650); only training takes longer. Mixup and the like, which
blend examples, are not covered: one person would be in many gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._pytree import tree_map

from .. import _require
from .._errors import InvalidInput
from .._registry import described
from ..sampling import Entropy


@described("learning.FlipAndShift")
@dataclass(frozen=True, slots=True, kw_only=True)
class FlipAndShift:
    """Mirrors images [..., height, width] left to right with probability 1/2 (if `flip`) and moves them by up
    to `shift` pixels in each direction; pixels beyond an edge are those reflected at it.

    Where an example has several images as inputs, each is flipped and moved independently. The augmentation
    of De et al. for CIFAR-10 is `FlipAndShift(shift=4)`.
    """

    shift: int = 4
    flip: bool = True

    def __post_init__(self) -> None:
        _require.integer(shift=self.shift, at_least=0)
        _require.flag(flip=self.flip)

    def batch(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Return one variant of each image of a batch; each is computed from its own image alone."""
        height, width = images.shape[-2:]
        flat = images.reshape(len(images), -1, height, width)
        padded = F.pad(flat, [self.shift] * 4, mode="reflect") if self.shift else flat
        row_offsets, column_offsets = (
            torch.randint(0, 2 * self.shift + 1, (len(images), 1), generator=generator) for _ in range(2)
        )
        columns = column_offsets + torch.arange(width)
        if self.flip:
            is_flipped = torch.randint(0, 2, (len(images), 1), generator=generator).bool()
            columns = torch.where(is_flipped, columns.flip(1), columns)
        rows = (row_offsets + torch.arange(height))[:, None, :, None]
        image_numbers = torch.arange(len(images))[:, None, None, None]
        channels = torch.arange(flat.shape[1])[None, :, None, None]
        return padded[image_numbers, channels, rows, columns[:, None, None, :]].reshape(images.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Augment:
    """Makes `times` variants of each example, whose gradients are averaged.

    `function` takes the inputs of ONE example and returns a variant; or it is `FlipAndShift`.

    Guarantee: a variant depends on its own example and on fresh randomness only.
    Proof:     the function is called once for each variant, and is given nothing else.
    Assumes:   the function remembers nothing from one call to the next.
    """

    function: FlipAndShift | Callable[[Any], Any]
    times: int

    def __post_init__(self) -> None:
        _require.integer(times=self.times, at_least=1)
        if not isinstance(self.function, FlipAndShift) and not callable(self.function):
            raise _require.fail(
                "function", type(self.function).__name__, "FlipAndShift(...), or a function of one example"
            )

    def __call__(self, inputs: Any, entropy: Entropy) -> Any:
        """Return `times` variants of each example, those of one example one after the other.

        While `function` runs, torch's global generator is seeded with fresh randomness; then it is restored.
        """
        copies = tree_map(lambda t: t.repeat_interleave(self.times, 0), inputs)
        seed = entropy.integer(63)
        if isinstance(self.function, FlipAndShift):
            generator = torch.Generator().manual_seed(seed)
            return tree_map(lambda t: self.function.batch(t, generator), copies)  # type: ignore[union-attr]
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            return _one_by_one(self.function, copies)

    def targets(self, targets: Any) -> Any:
        """Return the targets of all variants: each example's target `times` times in a row."""
        return tree_map(lambda t: t.repeat_interleave(self.times, 0), targets)


def one_variant_each(augment: Augment, inputs: Any) -> Any:
    """Return one variant of each of these MADE-UP examples; raise InvalidInput if the function fails.

    They must be made-up, as the message has the text of the error, which may quote an example.
    """
    try:
        return replace(augment, times=1)(inputs, Entropy())
    except Exception as error:
        raise InvalidInput(
            f"augment failed on made-up examples: {type(error).__name__}: {error}. If these examples are not "
            "valid for it, give made-up ones of your own, as the model gets them, with "
            "synthetic=(inputs, targets). No data was read."
        ) from error


def _one_by_one(function: Callable[[Any], Any], inputs: Any) -> Any:
    """Return the stacked results of the function, which is called once for each example."""
    count = len(torch.utils._pytree.tree_leaves(inputs)[0])
    if not count:
        return inputs
    outputs = [function(tree_map(lambda t, i=i: t[i], inputs)) for i in range(count)]
    return tree_map(lambda *parts: torch.stack(parts), outputs[0], *outputs[1:])
