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

_PAIRS = 1 << 15  # worked on at a time: all of it stays in the second-level cache, and no pass is split among threads
_RARE = 1 << 12  # below this many 2**-31, U gets more bits
_POSITIVE = np.int32(2**31 - 1)

Scratch = tuple[Tensor, Tensor]


def fill_gaussian(vector: Tensor, deviation: float, entropy: Entropy) -> Tensor:
    """Overwrite a vector with independent N(0, deviation²) noise.

    Guarantee: entries are the Box-Muller transform of fresh bits of `entropy`: r cos(a) and r sin(a), with r = sqrt(-2 ln U), rounded to the
               vector's type. U has 31 bits, and where the first 19 of them are zero another 53: the tail goes on to 10.8
               deviations, where generators with 24 bits end at 5.8. Of angles there are 2**32.
    Proof:     Box & Muller 1958, for the transform; the bits are those of the stream.
    Assumes:   `entropy` yields independent uniform bits. Floats are not reals: the law is that of a Gaussian up to this rounding.
    """
    _require.non_negative(deviation=deviation)
    _fill_all(vector, deviation, entropy, _scratch(vector.numel(), vector.dtype))
    return vector


def _scratch(size: int, dtype: torch.dtype) -> Scratch:
    """Room for radii and angles: fresh memory for each would cost as much as a logarithm."""
    pairs = min(_PAIRS, -(-size // 2))
    return torch.empty(pairs, dtype=dtype), torch.empty(pairs, dtype=dtype)


def _fill_all(vector: Tensor, deviation: float, entropy: Entropy, scratch: Scratch) -> None:
    for start in range(0, vector.numel(), 2 * _PAIRS):
        _fill(vector[start : start + 2 * _PAIRS], deviation, entropy, scratch)


def _fill(out: Tensor, deviation: float, entropy: Entropy, scratch: Scratch) -> None:
    """31 bits of a 32-bit word are U, exact in a float where it is small; two words make two entries."""
    pairs = -(-out.numel() // 2)
    radius, angle = scratch[0][:pairs], scratch[1][:pairs]
    bits = entropy.words(pairs).view(np.int32)
    uniform = np.bitwise_and(bits[:pairs], _POSITIVE, out=bits[:pairs])
    radius.copy_(torch.from_numpy(uniform))
    if uniform.min() < _RARE:
        _extended(radius, uniform, entropy)
    radius.mul_(2.0**-31).log_().mul_(-2.0 * deviation**2).sqrt_()
    angle.copy_(torch.from_numpy(bits[pairs:])).mul_(math.pi * 2.0**-31)
    torch.cos(angle, out=out[:pairs]).mul_(radius)
    rest = out.numel() - pairs
    torch.mul(radius[:rest], angle[:rest].sin_(), out=out[pairs:])


def _extended(radius: Tensor, uniform: npt.NDArray[np.int32], entropy: Entropy) -> None:
    """Where U is small, all that is known of it are its few leading bits: toss 53 more."""
    for place in np.flatnonzero(uniform < _RARE).tolist():
        radius[place] = int(uniform[place]) + (entropy.integer(53) + 0.5) * 2.0**-53


class Reservoir:
    """Noise vectors for a run, drawn several at a time where they are short: one call for many is much cheaper than many.

    Every vector is handed out once. They live in this process only, and are never stored.
    """

    def __init__(self, size: int, dtype: torch.dtype, deviation: float, entropy: Entropy) -> None:
        _require.non_negative(deviation=deviation)
        self._block = torch.empty(max(1, 2 * _PAIRS // max(1, size)), size, dtype=dtype)
        self._scratch = _scratch(self._block.numel(), dtype)
        self._deviation, self._entropy, self._used = deviation, entropy, len(self._block)

    def into(self, vector: Tensor) -> None:
        """Overwrite the vector with the next noise."""
        if len(self._block) == 1:
            _fill_all(vector, self._deviation, self._entropy, self._scratch)
            return
        if self._used == len(self._block):
            _fill_all(self._block.view(-1), self._deviation, self._entropy, self._scratch)
            self._used = 0
        vector.copy_(self._block[self._used])
        self._used += 1
