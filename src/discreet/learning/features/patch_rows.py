"""Computes patch features as rows for a linear model: how similar each region of an image is to patches of
procedural images (images of random processes, `procedural`).

Single-layer networks whose filters are whitened patches, and whose activation is a soft threshold, come close
to networks with learned filters, even if the patches are drawn at random (Coates, Ng & Lee 2011, "An analysis
of single-layer networks in unsupervised feature learning"; Coates & Ng 2011, "The importance of encoding
versus training with sparse coding and vector quantization"). With patches of procedural images, the filters
depend on no private image, nor on any real one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ... import _require
from .image_batches import as_images, image_batches
from .procedural import ProceduralClasses

# The number of patches to which the whitening is fitted and from which filters are drawn. Chosen by hand, not
# tuned.
_PATCHES = 100_000
# The number of responses that are computed at once: 16 megabytes. The C library returns blocks beyond 32
# megabytes to the system whenever they are freed, and then writing to fresh pages takes longer than all of
# the arithmetic (33 ms per image were measured with 2,048 filters).
_RESPONSES = 1 << 22


class PatchRows:
    """Computes one row of norm 1 for each image: pooled responses to filters that are procedural patches.

    A patch of `size` x `size` pixels is standardized by its own mean and standard deviation (`contrast` is
    added to the variance), whitened (ZCA; `penalty` is added to each eigenvalue), and multiplied with each
    of `filters` filters. Of each response, the amount by which it exceeds `threshold`, and the amount by
    which it lies below -`threshold`, are averaged over each of `grid` x `grid` regions of the image. With
    `mirror`, the responses of the mirror image are added, so that an image and its mirror image have the same
    row. The mean row of `procedural` procedural images is subtracted, and rows are scaled to norm 1. With
    `per_part`, the features of each region are scaled to norm 1 before, so that regions of low contrast have
    the same weight as others. A row that is not finite becomes zero.

    Guarantee: the row of an image depends on that image alone, up to the rounding of floats. So computing
               rows costs no privacy, and neighboring sets of images give neighboring sets of rows.
    Proof:     no statistic of a batch is used; filters, whitening and mean row depend on the arguments, with
               their `seed`, alone.
    """

    def __init__(
        self,
        shape: tuple[int, int, int] = (3, 32, 32),
        *,
        filters: int = 1024,
        size: int = 6,
        threshold: float = 0.6,
        penalty: float = 0.01,
        contrast: float = 0.01,
        grid: int = 3,
        mirror: bool = True,
        per_part: bool = False,
        procedural: int = 500,
        seed: int = 0,
    ) -> None:
        _require.integer(filters=filters, size=size, grid=grid, at_least=1)
        _require.integer(procedural=procedural, at_least=2)
        _require.positive(penalty=penalty, contrast=contrast)
        _require.non_negative(threshold=threshold)
        _require.flag(mirror=mirror, per_part=per_part)
        classes = ProceduralClasses(shape=shape, seed=seed)
        self.shape, self.filters, self.grid = classes.shape, filters, grid
        self.mirror, self.per_part = mirror, per_part
        sides = [side - size + 1 for side in self.shape[1:]]
        if min(sides) < grid:
            raise _require.fail(
                "size", size, f"at most {min(self.shape[1:]) - grid + 1} for a grid of {grid}"
            )
        self._size, self._threshold, self._contrast = size, float(threshold), float(contrast)
        self._pooling = torch.kron(_averages(sides[0], grid), _averages(sides[1], grid))
        responses = filters * (2 if mirror else 1) * len(self._pooling)
        self._batch = max(1, _RESPONSES // responses)
        generator = torch.Generator().manual_seed(seed + 3)
        images, _ = classes.images(procedural, generator)
        self._fit_filters(images, float(penalty), generator)
        self._mean = self._pooled(images).mean(0)

    @property
    def size(self) -> int:
        """Return the number of features of one image (not the argument `size`, the side of a patch)."""
        return 2 * self.filters * self.grid**2

    @torch.no_grad()
    def features(self, images: Any, *, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return one row for each image. Images have the shape (n, channels, height, width), or (n, height,
        width) for one channel, and values from 0 to 1; bytes (uint8) are divided by 255."""
        array = as_images(images, self.shape)
        rows = torch.empty(len(array), self.size, dtype=dtype)
        for positions, batch in image_batches(array, self._batch):
            centered = self._responses(batch) - self._mean
            if self.per_part:
                parts = centered.view(len(centered), -1, self.grid**2)
                centered = (parts / parts.norm(dim=1, keepdim=True).clamp(1e-12)).flatten(1)
            scaled = centered / centered.norm(dim=1, keepdim=True).clamp(1e-12)
            rows[positions] = torch.where(torch.isfinite(scaled).all(1, keepdim=True), scaled, 0.0).to(dtype)
        return rows

    def _fit_filters(self, images: Tensor, penalty: float, generator: torch.Generator) -> None:
        """Set `_weights` and `_offsets`: the product of `_weights` with a standardized patch, less
        `_offsets`, is the product of the whitened patch with the filters, which are whitened procedural
        patches scaled to norm 1. With `mirror`, the mirrored filters follow."""
        patches = self._patches(images).transpose(1, 2).flatten(0, 1)
        patches = patches[torch.randperm(len(patches), generator=generator)[:_PATCHES]]
        mean = patches.mean(0)
        covariance = (patches - mean).T.double() @ (patches - mean).double() / len(patches)
        variances, axes = torch.linalg.eigh(covariance)
        whitening = (axes * (variances.clamp(0) + penalty) ** -0.5 @ axes.T).float()
        white = (patches - mean) @ whitening
        # Whitening turns a patch without contrast into noise: patches whose norm is below half of the median
        # are no filters.
        lengths = white.norm(dim=1)
        white = white[lengths > lengths.median() / 2]
        if len(white) < self.filters:
            raise _require.fail(
                "filters", self.filters, f"at most {len(white)}, or more procedural images (procedural=)"
            )
        drawn = white[torch.randperm(len(white), generator=generator)[: self.filters]]
        weights = drawn / drawn.norm(dim=1, keepdim=True) @ whitening
        offsets = weights @ mean
        if self.mirror:
            as_patches = weights.view(-1, self.shape[0], self._size, self._size)
            weights = torch.cat([weights, as_patches.flip(-1).flatten(1)])
            # A mirrored filter responds to a patch as the filter does to the mirrored patch, offset included.
            offsets = torch.cat([offsets, offsets])
        self._weights, self._offsets = weights, offsets[:, None]

    def _patches(self, images: Tensor) -> Tensor:
        """Return all patches of each image, (n, pixels of a patch, positions), each standardized by its own
        mean and deviation."""
        patches = F.unfold(images, self._size)
        centered = patches - patches.mean(1, keepdim=True)
        return centered / (centered.var(1, keepdim=True) + self._contrast).sqrt()

    def _pooled(self, images: Tensor) -> Tensor:
        """Return the pooled responses of many images, computed in batches."""
        return torch.cat([self._responses(batch) for batch in torch.split(images, self._batch)])

    def _responses(self, images: Tensor) -> Tensor:
        """Return the pooled responses of images, flat, by sign, filter and region of the image."""
        raw = self._weights @ self._patches(images) - self._offsets
        signs = [
            (raw.clamp(min=self._threshold) - self._threshold) @ self._pooling,
            (raw.clamp(max=-self._threshold) + self._threshold).neg_() @ self._pooling,
        ]
        pooled: Tensor = torch.stack(signs, 1).view(len(images), 2, -1, self.grid, self.grid)
        if self.mirror:
            # The response of a mirrored filter to an image is that of the filter to the mirror image, at the
            # mirrored position.
            plain, flipped = torch.split(pooled, self.filters, 2)
            pooled = plain + flipped.flip(-1)
        return pooled.flatten(1)


def _averages(length: int, parts: int) -> Tensor:
    """Return the matrix (length, parts) that averages a line of `length` positions over `parts` parts, as
    torch's adaptive average pooling does: neighboring parts share a position where the boundary between them,
    a multiple of length / parts, is not a whole number."""
    matrix = torch.zeros(length, parts)
    for part in range(parts):
        start, end = part * length // parts, -(-(part + 1) * length // parts)
        matrix[start:end, part] = 1 / (end - start)
    return matrix


__all__ = ["PatchRows"]
