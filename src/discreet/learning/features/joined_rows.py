"""Features of several kinds side by side, as one row of length 1."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from ... import _require
from .image_batches import as_images


class ImageRows(Protocol):
    """Computes one row of length at most 1 for each image, by itself (`PatchRows`, `ScatteringRows`)."""

    shape: tuple[int, ...]

    @property
    def size(self) -> int: ...

    def features(self, images: Any, *, dtype: torch.dtype = ...) -> Tensor: ...


class JoinedRows:
    """Computes the rows of several `kinds` of features and joins them, each multiplied by its weight.

    Kinds that see different things tell classes apart better than more features of one kind: patch rows
    look at details, scattering rows at textures of all scales. `weights` are scaled to have 1 as the sum of
    their squares, so that a joined row has length 1 where all of its parts have.

    Guarantee: a function of each image by itself, up to the rounding of floats: computing it costs nothing,
               and neighbors stay neighbors.
    Proof:     each part is one.
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
        # by the largest first: squares of very large weights are infinite
        relative = [float(weight) / float(max(chosen)) for weight in chosen]
        self.weights = tuple(weight / math.hypot(*relative) for weight in relative)
        self.shape = tuple(self.kinds[0].shape)

    @property
    def size(self) -> int:
        """Return the number of features of one image."""
        return sum(int(kind.size) for kind in self.kinds)

    @torch.no_grad()
    def features(self, images: Any, *, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return one row for each image (n, channels, height, width), or (n, height, width) of one channel,
        with values from 0 to 1. With bytes (uint8), 255 counts as 1."""
        array = as_images(images, self.shape)
        return self.joined([kind.features(array, dtype=dtype) for kind in self.kinds])

    def joined(self, parts: Sequence[Tensor]) -> Tensor:
        """Return the joined rows of rows that were computed by each of `kinds`."""
        widths = [part.shape[1] for part in parts]
        if widths != [int(kind.size) for kind in self.kinds]:
            raise _require.fail(
                "parts", widths, f"rows of {[int(kind.size) for kind in self.kinds]} features"
            )
        return torch.cat([part * weight for part, weight in zip(parts, self.weights, strict=True)], 1)


__all__ = ["ImageRows", "JoinedRows"]
