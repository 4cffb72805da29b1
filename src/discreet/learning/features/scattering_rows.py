"""Computes scattering coefficients as rows for a linear model: standardized for each image, of norm 1 (zero
for a blank image), and optionally the same for an image and its mirror image."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ... import _require
from .image_batches import as_images, image_batches
from .scattering import Scattering


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
        self._mirrored = torch.tensor(_mirrored_channels(self.scattering.J, self.scattering.L))

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
        out = torch.empty(len(array), self.size, dtype=dtype)
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


__all__ = ["ScatteringRows"]
