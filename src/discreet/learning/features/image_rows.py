"""Computes patch features as rows for a linear model: how similar each region of an image is to patches of
procedural images (images of random processes, `procedural`).

Single-layer networks whose filters are whitened patches, and whose activation is a soft threshold, come close
to networks with learned filters, even if the patches are drawn at random (Coates, Ng & Lee 2011, "An analysis
of single-layer networks in unsupervised feature learning"; Coates & Ng 2011, "The importance of encoding
versus training with sparse coding and vector quantization"). With patches of procedural images, the filters
depend on no private image, nor on any real one.

Turns images into batches of floats: all kinds of features check shapes and scale pixels in the same
way.

Joins rows of features of several kinds to one row of l2 norm at most 1 for each image.

Computes scattering coefficients as rows for a linear model: standardized for each image, of norm 1 (zero
for a blank image), and optionally the same for an image and its mirror image.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from ... import _require
from ..._errors import InvalidInput
from ..training.data import as_array
from .procedural import ProceduralClasses
from .scattering import Scattering

__all__ = ["ImageRows", "JoinedRows", "PatchRows", "ScatteringRows"]


def as_images(images: Any, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return images as an array (n, channels, height, width), where `shape` is (channels, height, width);
    images (n, height, width) have one channel, and other shapes are refused."""
    array = as_array(images)
    array = array[:, None] if array.ndim == 3 else array
    if array.shape[1:] != shape:
        raise InvalidInput(
            f"images must have the shape (n, {', '.join(map(str, shape))}); got {array.shape}."
        )
    # numpy's kinds: boolean, unsigned and signed integer, float, object
    _require.that(array.dtype.kind in "buifO", "images must be real numbers, bytes or truth values.")
    return array


def image_batches(array: NDArray[Any], batch: int) -> Iterator[tuple[slice, Tensor]]:
    """Yield, for `batch` images at a time, their positions as a slice and their pixels as floats. Bytes
    (uint8) are divided by 255."""
    for start in range(0, len(array), batch):
        positions = slice(start, start + batch)
        # A number too large for float32 becomes infinite. Numpy's warning is suppressed: it would tell that
        # some private image has such a number.
        try:
            with np.errstate(over="ignore"):
                floats = torch.from_numpy(array[positions].astype(np.float32))
        except (TypeError, ValueError, OverflowError):
            raise InvalidInput("images of dtype object must hold numbers.") from None
        yield positions, floats / 255 if array.dtype == np.uint8 else floats


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
        rows = torch.empty(len(array), self.size, dtype=dtype, device="cpu")
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
        patches = patches[torch.randperm(len(patches), generator=generator, device="cpu")[:_PATCHES]]
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
        drawn = white[torch.randperm(len(white), generator=generator, device="cpu")[: self.filters]]
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
    matrix = torch.zeros(length, parts, device="cpu")
    for part in range(parts):
        start, end = part * length // parts, -(-(part + 1) * length // parts)
        matrix[start:end, part] = 1 / (end - start)
    return matrix


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


class ScatteringRows:
    """Computes one row for each image: its scattering coefficients after group normalization, scaled to norm
    1 (zero for a blank image, or where coefficients are not finite).

    Each group of `group` consecutive channels is standardized over the image's own positions (Tramer & Boneh
    2021, arXiv:2011.11660, have groups of three for Fashion-MNIST). With `mirror`, the coefficients of the
    mirror image are added, which are the same numbers at mirrored positions and angles. The sum is symmetric,
    so only half of the positions are kept, and an image and its mirror image have the same row. (More
    exactly, the mirror image is shifted by three pixels: for J = 2 and 28 pixels, averages are taken at the
    pixels 0, 4, ..., 24, which mirror to 27, 23, ..., 3.)

    Guarantee: the row of an image depends on that image alone, up to the rounding of floats. So computing
               rows costs no privacy, and neighboring sets of images give neighboring sets of rows.
    Proof:     no statistic of a batch is used; the filters depend on the arguments alone.
    """

    def __init__(
        self, shape: tuple[int, int, int] = (1, 28, 28), *, group: int = 3, mirror: bool = False
    ) -> None:
        sizes = tuple(_require.listed(shape=shape))
        if len(sizes) != 3 or any(type(side) is not int or side < 1 for side in sizes):
            raise _require.fail("shape", shape, "(channels, height, width)")
        _require.flag(mirror=mirror)
        self.shape, self.mirror, self.scattering = sizes, mirror, Scattering(sizes[1:])
        channels = sizes[0] * self.scattering.channels
        _require.integer(group=group, at_least=1)
        if channels % group:
            raise _require.fail("group", group, f"a divisor of {channels}, the number of channels")
        self.groups = channels // group
        self._mirrored = torch.tensor(_mirrored_channels(self.scattering.J, self.scattering.L), device="cpu")

    @property
    def size(self) -> int:
        """Return the number of features of one image."""
        height, width = (side >> self.scattering.J for side in self.shape[1:])
        columns = -(-width // 2) if self.mirror else width
        return int(self.shape[0] * self.scattering.channels * height * columns)

    @torch.no_grad()
    def features(self, images: Any, *, batch: int = 512, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return one row for each image. Images have the shape (n, channels, height, width), or (n, height,
        width) for one channel, and values from 0 to 1; bytes (uint8) are divided by 255."""
        _require.integer(batch=batch, at_least=1)
        array = as_images(images, self.shape)
        out = torch.empty(len(array), self.size, dtype=dtype, device="cpu")
        for positions, part in image_batches(array, batch):
            out[positions] = self.rows(self.scattering(part))
        return out

    def rows(self, maps: Tensor) -> Tensor:
        """Return the rows of images from their coefficients by `Scattering`, (n, colors, channels, height,
        width)."""
        if self.mirror:
            maps = maps + maps[:, :, self._mirrored].flip(-1)
        standardized = F.group_norm(maps.flatten(1, 2), self.groups).view_as(maps)
        if self.mirror:
            standardized = standardized[..., : -(-maps.shape[-1] // 2)]
        flat = standardized.flatten(1)
        flat = flat / flat.norm(dim=1, keepdim=True).clamp(1e-12)
        return torch.where(torch.isfinite(flat).all(1, keepdim=True), flat, 0.0)


def _mirrored_channels(J: int, L: int) -> list[int]:
    """Return, for each channel, the number of the channel whose wavelets are its own, mirrored left to right.

    Angle number a stands for the angle (L - 1 - L // 2 - a) pi / L; mirroring negates it, which gives, modulo
    pi, the angle with number 2 (L - 1 - L // 2) - a modulo L. A channel is named by its path: () for order 0,
    (j, a) with scale j for order 1, and a pair of these for order 2.
    """

    def mirrored_angle(angle: int) -> int:
        return (2 * (L - 1 - L // 2) - angle) % L

    first = [(j, a) for j in range(J) for a in range(L)]
    second = [((j, a), (k, b)) for j, a in first for k in range(j + 1, J) for b in range(L)]
    paths: list[Any] = [(), *first, *second]
    mirrored: list[Any] = [
        (), *((j, mirrored_angle(a)) for j, a in first),
        *(((j, mirrored_angle(a)), (k, mirrored_angle(b))) for (j, a), (k, b) in second),
    ]  # fmt: skip
    return [paths.index(path) for path in mirrored]
