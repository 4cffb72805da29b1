"""Gaussian noise for gradients: from the same keyed stream as everything else, at the cost of an ordinary generator.

Model weights are floats, and so is this noise: the one place where discreet adds noise that is not an exact integer (docs/learning.md
says what that leaves open). What can be had cheaply is had: cryptographic bits, and tails to more than nine deviations.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .. import _require
from ..sampling import Entropy

_PAIRS = 1 << 16  # worked on at a time: fewer calls, and still in the caches
_RARE = 1 << 12  # below this many 2**-31, U gets more bits


def fill_gaussian(vector: Tensor, deviation: float, entropy: Entropy) -> Tensor:
    """Overwrite a vector with independent N(0, deviation²) noise.

    Guarantee: entries are the Box-Muller transform of fresh bits of `entropy`: r cos(a) and r sin(a), with r = sqrt(-2 ln U), rounded to the
               vector's type. U has 31 bits, and where the first 19 of them are zero another 53: the tail goes on to 10.8
               deviations, where generators with 24 bits end at 5.8. Of angles there are 2**32.
    Proof:     Box & Muller 1958, for the transform; the bits are those of the stream.
    Assumes:   `entropy` yields independent uniform bits. Floats are not reals: the law is that of a Gaussian up to this rounding.
    """
    _require.non_negative(deviation=deviation)
    for start in range(0, vector.numel(), 2 * _PAIRS):
        _fill(vector[start : start + 2 * _PAIRS], deviation, entropy)
    return vector


def _fill(out: Tensor, deviation: float, entropy: Entropy) -> None:
    """The size of a signed 32-bit word is 31 bits of U, exact in a float where it is small; two words make two entries."""
    pairs = -(-out.numel() // 2)
    bits = entropy.words(pairs).view(np.int32)
    uniform = torch.from_numpy(bits[:pairs]).to(out.dtype).abs_()
    if uniform.amin().item() < _RARE:
        _extended(uniform, bits, entropy)
    square = 2.0 * deviation**2
    radius = torch.rsub(uniform.log_(), 31.0 * math.log(2.0) * square, alpha=square).clamp_(min=0).sqrt_()
    angle = torch.from_numpy(bits[pairs:]).to(out.dtype).mul_(math.pi * 2.0**-31)
    torch.mul(radius, angle.cos(), out=out[:pairs])
    if out.numel() < 2 * pairs:
        radius, angle = radius[:-1], angle[:-1]
    torch.mul(radius, angle.sin_(), out=out[pairs:])


def _extended(uniform: Tensor, bits: npt.NDArray[np.int32], entropy: Entropy) -> None:
    """Where U is small, all that is known of it are its few leading bits: toss 53 more."""
    for place in (uniform < _RARE).nonzero().flatten().tolist():
        word = int(bits[place])
        uniform[place] = (word if word >= 0 else ~word) + (entropy.integer(53) + 0.5) * 2.0**-53


class Reservoir:
    """Noise vectors for a run, drawn several at a time where they are short: one call for many is much cheaper than many.

    Every vector is handed out once. They live in this process only, and are never stored.
    """

    def __init__(self, size: int, dtype: torch.dtype, deviation: float, entropy: Entropy) -> None:
        self._block = torch.empty(max(1, _PAIRS // max(1, size)), size, dtype=dtype)
        self._deviation, self._entropy, self._used = deviation, entropy, len(self._block)

    def into(self, vector: Tensor) -> None:
        """Overwrite the vector with the next noise."""
        if len(self._block) == 1:
            fill_gaussian(vector, self._deviation, self._entropy)
            return
        if self._used == len(self._block):
            fill_gaussian(self._block.view(-1), self._deviation, self._entropy)
            self._used = 0
        vector.copy_(self._block[self._used])
        self._used += 1
