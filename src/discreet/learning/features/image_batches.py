"""Images as batches of floats: one check of shapes and one scale for all features."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..._errors import InvalidInput


def as_images(images: Any, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return images as an array (n, channels, height, width); refuse another shape than `shape`."""
    array = np.asarray(images)
    array = array[:, None] if array.ndim == 3 else array
    if array.shape[1:] != shape:
        raise InvalidInput(
            f"images must have the shape (n, {', '.join(map(str, shape))}); got {array.shape}. "
            f"Nothing was computed."
        )
    if array.dtype.kind not in "buifO":
        raise InvalidInput("images must be real numbers, bytes or truth values. Nothing was computed.")
    return array


def image_batches(array: NDArray[Any], batch: int) -> Iterator[tuple[slice, Tensor]]:
    """Yield the positions and the floats of `batch` images at a time; with bytes (uint8), 255 counts as 1."""
    for start in range(0, len(array), batch):
        positions = slice(start, start + batch)
        # What is too large for a float is infinite, without a warning that would tell of one image.
        try:
            with np.errstate(over="ignore"):
                floats = torch.from_numpy(array[positions].astype(np.float32))
        except (TypeError, ValueError, OverflowError):
            raise InvalidInput("images of objects must hold numbers. Nothing was computed.") from None
        yield positions, floats / 255 if array.dtype == np.uint8 else floats
