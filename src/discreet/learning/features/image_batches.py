"""Turns images into batches of floats: all kinds of features check shapes and scale pixels in the same
way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..._errors import InvalidInput


def as_images(images: Any, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return images as an array (n, channels, height, width), where `shape` is (channels, height, width);
    images (n, height, width) have one channel, and other shapes are refused."""
    array = np.asarray(images)
    array = array[:, None] if array.ndim == 3 else array
    if array.shape[1:] != shape:
        raise InvalidInput(
            f"images must have the shape (n, {', '.join(map(str, shape))}); got {array.shape}. "
            f"Nothing was computed."
        )
    # numpy's kinds: boolean, unsigned and signed integer, float, object
    if array.dtype.kind not in "buifO":
        raise InvalidInput("images must be real numbers, bytes or truth values. Nothing was computed.")
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
            raise InvalidInput("images of dtype object must hold numbers. Nothing was computed.") from None
        yield positions, floats / 255 if array.dtype == np.uint8 else floats
