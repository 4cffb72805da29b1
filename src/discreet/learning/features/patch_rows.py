"""Patch features as rows for a linear model: how much each part of an image looks like procedural patches.

Single-layer networks whose filters are whitened patches and whose activation is a soft threshold come close
to what was learned for years, even if the patches are drawn at random (Coates, Ng & Lee 2011, "An analysis of
single-layer networks in unsupervised feature learning"; Coates & Ng 2011, "The importance of encoding versus
training with sparse coding and vector quantization"). Here the patches are those of procedural images, so
that no private image, nor any real one, has a part in the filters.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ... import _require
from .image_batches import as_images, image_batches
from .procedural import ProceduralClasses

# Patches from which the whitening is fitted and filters are drawn.
_PATCHES = 100_000
# Responses that are computed at once: 16 megabytes. Beyond 32 the C library gives the memory back each time,
# and writing to fresh pages takes longer than all of the arithmetic (33 ms per image with 2,048 filters).
_RESPONSES = 1 << 22


class PatchRows:
    """Computes one row of length 1 for each image: pooled responses to filters that are procedural patches.

    A patch of `size` x `size` pixels is standardized by its own mean and deviation (plus `contrast`),
    whitened (ZCA with `penalty`), and multiplied with each filter. What exceeds `threshold`, on either side
    of zero, is averaged over `grid` x `grid` parts of the image. With `mirror`, responses are added up with
    those of the mirror image: an image and its mirror image have the same row. The mean row of procedural
    images is subtracted, and rows are scaled to length 1. With `per_part`, each part of the image is scaled
    to the same length first: a part of low contrast says as much as any other.

    Guarantee: a function of each image by itself, up to the rounding of floats: computing it costs nothing,
               and neighbors stay neighbors.
    Proof:     no statistic of a batch enters; filters, whitening and mean depend on the arguments and on
               random numbers of `seed` alone.
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
        self._mean = torch.zeros(self.size)
        self._mean = self._pooled(images).mean(0)

    @property
    def size(self) -> int:
        """Return the number of features of one image."""
        return 2 * self.filters * self.grid**2

    @torch.no_grad()
    def features(self, images: Any, *, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return one row for each image (n, channels, height, width), or (n, height, width) of one channel,
        with values from 0 to 1. With bytes (uint8), 255 counts as 1."""
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
        """Set filters that whiten a standardized patch and multiply it with whitened procedural patches."""
        patches = self._patches(images).transpose(1, 2).flatten(0, 1)
        patches = patches[torch.randperm(len(patches), generator=generator)[:_PATCHES]]
        mean = patches.mean(0)
        covariance = (patches - mean).T.double() @ (patches - mean).double() / len(patches)
        variances, axes = torch.linalg.eigh(covariance)
        whitening = (axes * (variances.clamp(0) + penalty) ** -0.5 @ axes.T).float()
        white = (patches - mean) @ whitening
        # a patch without contrast is noise once it is whitened: those below half the median are left out
        lengths = white.norm(dim=1)
        white = white[lengths > lengths.median() / 2]
        if len(white) < self.filters:
            raise _require.fail("filters", self.filters, f"at most {len(white)} of so few procedural images")
        drawn = white[torch.randperm(len(white), generator=generator)[: self.filters]]
        weights = drawn / drawn.norm(dim=1, keepdim=True) @ whitening
        offsets = weights @ mean
        if self.mirror:
            square = weights.view(-1, self.shape[0], self._size, self._size)
            weights = torch.cat([weights, square.flip(-1).flatten(1)])
            offsets = torch.cat([offsets, offsets])
        self._weights, self._offsets = weights, offsets[:, None]

    def _patches(self, images: Tensor) -> Tensor:
        """Return the patches of each image, (n, pixels, positions), standardized by mean and deviation."""
        patches = F.unfold(images, self._size)
        centered = patches - patches.mean(1, keepdim=True)
        return centered / (centered.var(1, keepdim=True) + self._contrast).sqrt()

    def _pooled(self, images: Tensor) -> Tensor:
        return torch.cat([self._responses(batch) for batch in torch.split(images, self._batch)])

    def _responses(self, images: Tensor) -> Tensor:
        """Return the pooled responses of images: for each sign, filter and part of the image."""
        raw = self._weights @ self._patches(images) - self._offsets
        signs = [
            (raw.clamp(min=self._threshold) - self._threshold) @ self._pooling,
            (raw.clamp(max=-self._threshold) + self._threshold).neg_() @ self._pooling,
        ]
        pooled: Tensor = torch.stack(signs, 1).view(len(images), 2, -1, self.grid, self.grid)
        if self.mirror:
            plain, flipped = torch.split(pooled, self.filters, 2)
            pooled = plain + flipped.flip(-1)
        return pooled.flatten(1)


def _averages(length: int, parts: int) -> Tensor:
    """Return the matrix (length, parts) that averages over parts of equal length, overlapping by one if
    needed."""
    matrix = torch.zeros(length, parts)
    for part in range(parts):
        start, end = part * length // parts, -(-(part + 1) * length // parts)
        matrix[start:end, part] = 1 / (end - start)
    return matrix


__all__ = ["PatchRows"]
