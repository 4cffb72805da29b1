"""Computes the scattering transform (ScatterNet): convolutions with fixed wavelets, moduli and averages,
without any training.

Bruna & Mallat 2013, arXiv:1203.1513. Filters, padding and order of channels are those of the library kymatio
(Andreux et al. 2020, arXiv:1812.11214), so that published settings can be used unchanged: Tramer & Boneh
2021, arXiv:2011.11660, train linear models on such coefficients privately. Convolutions are computed as
products of Fourier transforms, for a batch and all angles at once; the last average, which is separable and
subsampled, as two small matrix products.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ... import _require
from ..._errors import InvalidInput
from ..training.data import as_array

Array = NDArray[Any]
# kymatio normalizes its filters by 2 * 3.1415 * sigma^2. The same value is used here, because coefficients
# are to equal those of kymatio.
_PI_OF_KYMATIO = 3.1415
# The number of images that are transformed together. Measured at 28 x 28 on one core: 0.45 ms per image with
# 16, and 1.0 ms with 256, whose spectra do not fit into the cache.
_AT_ONCE = 16


class Scattering(nn.Module):
    """Computes the scattering coefficients of images up to `order` (1 or 2), averaged over about 2^J pixels.

    `J` is the number of scales of the wavelets and `L` the number of their angles. Images (..., H, W) become
    coefficients (..., channels, H / 2^J, W / 2^J) with 1 + J L + L^2 J (J - 1) / 2 channels for order 2: 81
    for J = 2 and L = 8. Channels are sorted as those of kymatio's `Scattering2D(J, shape, L)`: order 0;
    order 1 by scale and angle; order 2 by the first wavelet and then the second.

    Guarantee: the coefficients of an image depend on that image alone, up to the rounding of floats. So
               computing them costs no privacy, and neighboring sets of images give neighboring sets of rows.
    Proof:     no statistic of a batch is used; the filters depend on `shape`, `J` and `L` alone.
    """

    def __init__(self, shape: tuple[int, int] = (28, 28), *, J: int = 2, L: int = 8, order: int = 2) -> None:
        super().__init__()
        _require.integer(J=J, L=L, at_least=1)
        _require.must(order in (1, 2), "order", order, "1 or 2")
        self.shape = _check_shape(shape, J)
        self.J, self.L, self.order = int(J), int(L), int(order)
        # The size of padded images, as in kymatio.
        height, width = (((size + 2**J) // 2**J + 1) * 2**J for size in self.shape)
        self.padded = height, width
        # psi{j}_{level} are the wavelets of scale j for images subsampled by 2^level; rows{j} and columns{j}
        # average maps that are subsampled by 2^j.
        for j in range(J):
            bank = np.stack([_wavelet(height, width, j, angle, L) for angle in range(L)])
            for level in range(j if order == 2 else 0, -1, -1):
                self.register_buffer(f"psi{j}_{level}", _as_buffer(_cropped(bank, level)), persistent=False)
            for axis, size, length in zip(("rows", "columns"), self.padded, self.shape, strict=True):
                averages = _averages(size, J, j, length)
                self.register_buffer(f"{axis}{j}", _as_buffer(averages), persistent=False)

    @property
    def channels(self) -> int:
        """Return the number of coefficients for each position."""
        pairs = self.J * (self.J - 1) // 2 if self.order == 2 else 0
        return int(1 + self.J * self.L + pairs * self.L * self.L)

    @property
    def size(self) -> int:
        """Return the number of coefficients of one image of one color."""
        height, width = (size >> self.J for size in self.shape)
        return self.channels * height * width

    def forward(self, images: Tensor) -> Tensor:
        """Return the coefficients of images (..., height, width); the leading dimensions, such as images and
        colors, are kept."""
        leading = _require_images(images, self.shape)
        if not images.numel():
            return images.new_zeros(*leading, self.channels, *(size // 2**self.J for size in self.shape))
        parts = [
            self._coefficients(part) for part in torch.split(images.reshape(-1, 1, *self.shape), _AT_ONCE)
        ]
        out = torch.cat(parts)
        return out.reshape(*leading, *out.shape[1:])

    def _coefficients(self, images: Tensor) -> Tensor:
        """Return the coefficients of all orders, (n, channels, height / 2^J, width / 2^J)."""
        padded = self._pad(images)
        spectrum = torch.fft.fft2(padded)
        zeroth, first, second = [self._average(padded, 0)], [], []
        for j in range(self.J):
            moduli = self._moduli(spectrum, j, 0)
            first.append(self._average(moduli, j))
            if self.order == 2 and j + 1 < self.J:
                second.append(self._second_order(moduli, j))
        return torch.cat([*zeroth, *first, *second], 1)

    @torch.no_grad()
    def features(self, images: Any, *, batch: int = 256, normalize: bool = False) -> Tensor:
        """Return one row of coefficients for each image of a large array, computed in batches. Bytes (uint8)
        are divided by 255.

        With `normalize`, the coefficients of each image and channel are standardized over the image's own
        positions (group normalization with one channel in each group), which reads no other image.
        """
        _require.integer(batch=batch, at_least=1)
        array = as_array(images)
        tensor = torch.as_tensor(array, dtype=torch.float32, device="cpu")
        tensor = tensor / 255 if array.dtype == np.uint8 else tensor
        parts = [self(part) for part in torch.split(tensor, batch)] if len(tensor) else [self(tensor)]
        if normalize:
            parts = [standardized(part) for part in parts]
        return torch.cat([part.flatten(1) for part in parts])

    def _second_order(self, moduli: Tensor, j: int) -> Tensor:
        """Return the coefficients of order 2 whose first wavelet has scale j: for each of its angles, all
        wavelets of larger scales."""
        spectrum = torch.fft.fft2(moduli).unsqueeze(2)
        parts = [self._average(self._moduli(spectrum, k, j), k) for k in range(j + 1, self.J)]
        return torch.cat(parts, 2).flatten(1, 2)

    def _moduli(self, spectrum: Tensor, j: int, level: int) -> Tensor:
        """Return |x * psi| for all wavelets psi of scale j, subsampled to every 2^j-th pixel of the padded
        image.

        `spectrum` is the Fourier transform of x, which is subsampled by 2^`level` already. Subsampling a map
        means averaging its Fourier transform over blocks: the product is added up block by block, and never
        stored as a whole.
        """
        filters, k = self.get_buffer(f"psi{j}_{level}"), 2 ** (j - level)
        height, width = filters.shape[-2] // k, filters.shape[-1] // k
        total: Tensor | None = None
        for top, left in ((a * height, b * width) for a in range(k) for b in range(k)):
            block = (..., slice(top, top + height), slice(left, left + width))
            product = spectrum[block] * filters[block]
            total = product if total is None else total.add_(product)
        assert total is not None
        return _modulus(torch.fft.ifft2(total), k**2)

    def _average(self, values: Tensor, j: int) -> Tensor:
        """Return averages over about 2^J pixels, at every 2^J-th pixel, of maps that are subsampled by
        2^j."""
        rows, columns = (self.get_buffer(f"{axis}{j}").to(values.dtype) for axis in ("rows", "columns"))
        return rows @ values @ columns.T

    def _pad(self, images: Tensor) -> Tensor:
        """Pad images by reflection, as kymatio does."""
        (height, width), (tall, wide) = self.shape, self.padded
        top, left = (tall - height) // 2, (wide - width) // 2
        edges = left, wide - width - left, top, tall - height - top
        return nn.functional.pad(images, edges, mode="reflect")


def _check_shape(shape: Any, J: int) -> tuple[int, int]:
    """Return height and width, refused unless they can be halved J times."""
    sizes = tuple(_require.listed(shape=shape))
    if len(sizes) != 2 or any(isinstance(s, bool) or not isinstance(s, int) for s in sizes):
        raise _require.fail("shape", shape, "the height and width of an image, such as (28, 28)")
    if min(sizes) < 2 ** (J + 1) or any(s % 2**J for s in sizes):
        raise _require.fail(
            "shape",
            shape,
            f"multiples of 2^J = {2**J}, at least {2 ** (J + 1)}: pad the images, or take a smaller J",
        )
    return sizes


def _require_images(images: Tensor, shape: tuple[int, int]) -> tuple[int, ...]:
    """Return the leading dimensions of images; refuse images of another size, or that are no floats."""
    if images.dim() < 2 or tuple(images.shape[-2:]) != shape:
        raise InvalidInput(
            f"these are not images of {shape[0]} x {shape[1]} pixels: the last two dimensions are "
            f"{tuple(images.shape[-2:])}."
        )
    if not images.is_floating_point():
        raise InvalidInput("images must be floats: convert them first, images.float() / 255.")
    return tuple(images.shape[:-2])


def standardized(maps: Tensor) -> Tensor:
    """Return maps standardized to mean 0 and variance 1 over the positions (the last two dimensions) of
    each."""
    centered = maps - maps.mean((-2, -1), keepdim=True)
    return centered / (centered.square().mean((-2, -1), keepdim=True) + 1e-5).sqrt()


def _modulus(values: Tensor, divisor: int) -> Tensor:
    """Return |values| / divisor. Where no gradient is needed, it is computed without torch's protection from
    overflow, which takes three times as long.
    """
    if values.requires_grad:
        return values.abs() / divisor
    return (values.real.square() + values.imag.square()).sqrt_().div_(divisor)


def _wavelet(height: int, width: int, j: int, angle: int, L: int) -> Array:
    """Return the Fourier transform, which is real, of a Morlet wavelet of scale j: a Gabor function less the
    multiple of its envelope that makes the mean zero. Parameters are those of kymatio."""
    sigma, theta, xi, slant = 0.8 * 2**j, (L - 1 - L // 2 - angle) * np.pi / L, 0.75 * np.pi / 2**j, 4 / L
    wave = _gabor(height, width, sigma, theta, xi, slant)
    envelope = _gabor(height, width, sigma, theta, 0.0, slant)
    return np.asarray(np.real(np.fft.fft2(wave - wave.sum() / envelope.sum() * envelope)))


def _gabor(height: int, width: int, sigma: float, theta: float, xi: float, slant: float) -> Array:
    """Return a Gaussian of deviation sigma along the direction theta (sigma / slant across it) times a plane
    wave of frequency xi along theta, made periodic by adding up 5 x 5 periods."""
    cos, sin = np.cos(theta), np.sin(theta)
    x, y = np.meshgrid(np.arange(-2 * height, 3 * height), np.arange(-2 * width, 3 * width), indexing="ij")
    along, across = x * cos + y * sin, -x * sin + y * cos
    wave = np.exp(-(along**2 + slant**2 * across**2) / (2 * sigma**2) + 1j * xi * along)
    periodic = wave.reshape(5, height, 5, width).sum((0, 2))
    return np.asarray(periodic * slant / (2 * _PI_OF_KYMATIO * sigma**2))


def _cropped(bank: Array, level: int) -> Array:
    """Return filters for images that are subsampled to every 2^level-th pixel: only the lowest frequencies,
    which such images have, are kept."""
    for axis in (-2, -1):
        size = bank.shape[axis]
        kept = size >> level
        # Of `size` frequencies in numpy's order, the first `start` and the last `kept` - `start`.
        start = int(size * 2.0 ** (-level - 1))
        low, high = bank.take(range(start), axis), bank.take(range(size - (kept - start), size), axis)
        bank = np.concatenate([low, high], axis)
    return bank


def _averages(size: int, J: int, j: int, length: int) -> Array:
    """Return the matrix that averages one axis of a padded map of `size` pixels, subsampled to every 2^j-th
    pixel, with a Gaussian, and keeps every 2^J-th pixel of the unpadded image of `length` pixels."""
    sigma = 0.8 * 2 ** (J - 1)
    x = np.arange(-2 * size, 3 * size)
    kernel = np.exp(-(x**2) / (2 * sigma**2)).reshape(5, size).sum(0)
    spectrum = np.real(np.fft.fft(kernel / np.sqrt(2 * _PI_OF_KYMATIO * sigma**2)))
    # `_cropped` takes filters of two axes: the spectrum is repeated to a square, of which one row is used.
    subsampled = np.real(np.fft.ifft(_cropped(spectrum[None, :].repeat(size, 0), j)[0]))
    length_subsampled = len(subsampled)
    # From 1, because the padding on each side has 2^J pixels: position 0 lies in it.
    positions = np.arange(1, 1 + length // 2**J) * 2 ** (J - j)
    return np.asarray(subsampled[(positions[:, None] - np.arange(length_subsampled)) % length_subsampled])


def _as_buffer(values: Array) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))
