"""Joins rows of features of several kinds to one row of l2 norm at most 1 for each image."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from ... import _require
from .image_batches import as_images


class ImageRows(Protocol):
    """Computes, for each image by itself, one row of `size` features with an l2 norm of at most 1, as
    `PatchRows` and `ScatteringRows` do. `shape` is (channels, height, width) of an image."""

    shape: tuple[int, ...]

    @property
    def size(self) -> int: ...

    def features(self, images: Any, *, dtype: torch.dtype = ...) -> Tensor: ...


class JoinedRows:
    """Computes the rows of several `kinds` of features, multiplies each by its weight, and concatenates them.

    Features of different kinds tell classes apart better than more features of one kind: patch rows look at
    details, scattering rows at textures of all scales. `weights` (equal by default) are scaled so that their
    squares add up to 1: a joined row has norm 1 where the rows of all kinds have.

    Guarantee: the row of an image depends on that image alone, up to the rounding of floats. So computing
               rows costs no privacy, and neighboring sets of images give neighboring sets of rows.
    Proof:     the weights are public, and each of the concatenated rows depends on its image alone.
    Assumes:   each kind keeps to `ImageRows`.
    """

    def __init__(self, kinds: Sequence[ImageRows], *, weights: Sequence[float] | None = None) -> None:
        self.kinds: tuple[Any, ...] = tuple(_require.listed(kinds=kinds))
        _require.non_empty(kinds=self.kinds)
        for kind in self.kinds:
            if not (hasattr(kind, "features") and hasattr(kind, "shape") and hasattr(kind, "size")):
                raise _require.fail("kinds", type(kind).__name__, "rows of features, such as PatchRows(...)")
        if len({tuple(kind.shape) for kind in self.kinds}) > 1:
            shapes = ", ".join(str(tuple(kind.shape)) for kind in self.kinds)
            raise _require.fail("kinds", shapes, "of images of one shape")
        chosen = (1.0,) * len(self.kinds) if weights is None else tuple(_require.listed(weights=weights))
        if len(chosen) != len(self.kinds):
            raise _require.fail("weights", chosen, f"{len(self.kinds)} numbers, one for each kind")
        for weight in chosen:
            _require.a_float(weights=weight)
            _require.positive(weights=weight)
        # Divided by the largest first, because squares of very large weights would be infinite.
        relative = [float(weight) / float(max(chosen)) for weight in chosen]
        self.weights = tuple(weight / math.hypot(*relative) for weight in relative)
        self.shape = tuple(self.kinds[0].shape)

    @property
    def size(self) -> int:
        """Return the number of features of one image."""
        return sum(int(kind.size) for kind in self.kinds)

    @torch.no_grad()
    def features(self, images: Any, *, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return one row for each image. Images have the shape (n, channels, height, width), or (n, height,
        width) for one channel, and values from 0 to 1; bytes (uint8) are divided by 255."""
        array = as_images(images, self.shape)
        return self.joined([kind.features(array, dtype=dtype) for kind in self.kinds])

    def joined(self, parts: Sequence[Tensor]) -> Tensor:
        """Return the joined rows, from the rows that each of `kinds` has computed, in their order."""
        widths = [part.shape[1] for part in parts]
        if widths != [int(kind.size) for kind in self.kinds]:
            raise _require.fail(
                "parts", widths, f"rows of {[int(kind.size) for kind in self.kinds]} features"
            )
        return torch.cat([part * weight for part, weight in zip(parts, self.weights, strict=True)], 1)


__all__ = ["ImageRows", "JoinedRows"]
