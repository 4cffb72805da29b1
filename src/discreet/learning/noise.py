"""Gaussian noise for gradients: from the same keyed stream as everything else, at the cost of an ordinary generator.

Model weights are floats, and so is this noise: the one place where discreet adds noise that is not an exact integer (docs/learning.md
says what that leaves open). What can be had cheaply is had: cryptographic bits, and tails to more than nine deviations.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .. import _require
from ..sampling import Entropy, Stream

# Worked on at a time: within the second-level cache, and no pass is split among threads (on one thread, twice as many).
_PAIRS = 1 << 15
_RARE = 1 << 13  # below this many 2**-32, U gets more bits
_UNIFORM = 2.0**-32 * (1 - 2.0**-24)  # so that the largest U is the float below one: a radius of zero would be no noise
_ANGLE = math.pi * 2.0**-31
_HALF_ANGLE = torch.tensor(_ANGLE / 2)  # angles lie between the multiples: at zero, again, there would be no noise
_SQUARABLE = (1e-15, 1e15)  # deviations whose square is an ordinary float


def fill_gaussian(vector: Tensor, deviation: float, entropy: Entropy) -> Tensor:
    """Overwrite a vector with independent N(0, deviation²) noise.

    Guarantee: entries are the Box-Muller transform of fresh bits of `entropy`: r cos(a) and r sin(a), with r = sqrt(-2 ln U), rounded to the
               vector's type. U has 32 bits, and where the first 19 of them are zero another 53: the tail goes on to 10.9
               deviations, where generators with 24 bits end at 5.8. Of angles there are 2**32. No entry is exactly zero.
    Proof:     Box & Muller 1958, for the transform; the bits are those of the stream.
    Assumes:   `entropy` yields independent uniform bits. Floats are not reals: the law is that of a Gaussian up to this rounding.
    """
    _require.non_negative(deviation=deviation)
    _fill_all(vector, deviation, entropy)
    return vector


def _at_once() -> int:
    """How many entries are worked on together."""
    return 2 * _PAIRS if torch.get_num_threads() > 1 else 4 * _PAIRS


def _fill_all(vector: Tensor, deviation: float, entropy: Entropy) -> None:
    size = vector.numel()
    each = -(-size // max(1, -(-size // _at_once())))  # equal parts: a short one at the end costs as many calls
    scale = deviation if _SQUARABLE[0] <= deviation <= _SQUARABLE[1] else 1.0
    for start in range(0, size, max(1, each)):
        _fill(vector[start : start + each], scale, entropy)
    if scale != deviation:
        vector.mul_(deviation)


def _fill(out: Tensor, deviation: float, entropy: Entropy) -> None:
    """A 32-bit word is U, exact in a float where it is small; another is the angle. Two words make two entries.

    Plain arithmetic is numpy's, whose calls cost a third of torch's; functions are torch's, which are faster.
    """
    pairs, target = -(-out.numel() // 2), out.numpy()
    bits = entropy.words(pairs).view(np.uint32)
    uniform = bits[:pairs]
    rare = _extended(uniform, entropy) if uniform.min() < _RARE else {}
    radius, angle = (_floats(words, target.dtype) for words in (uniform, bits[pairs:].view(np.int32)))
    for place, value in rare.items():
        radius[place] = value
    np.multiply(radius, _UNIFORM, out=radius)
    torch.from_numpy(radius).log_()
    np.multiply(radius, -2.0 * deviation**2, out=radius)
    torch.from_numpy(radius).sqrt_()
    turn, rest = torch.from_numpy(angle), out.numel() - pairs
    torch.add(_HALF_ANGLE, turn, alpha=_ANGLE, out=turn)
    torch.cos(turn, out=out[:pairs])
    np.multiply(target[:pairs], radius, out=target[:pairs])
    turn.sin_()
    np.multiply(radius[:rest], angle[:rest], out=target[pairs:])


def _floats(words: npt.NDArray[Any], dtype: Any) -> Any:
    """As floats; where these are as long as the words, in the same memory, which is in the cache."""
    if dtype != np.float32:
        return words.astype(dtype)
    found = words.view(np.float32)
    torch.from_numpy(found).copy_(torch.from_numpy(words))
    return found


def _extended(uniform: npt.NDArray[np.uint32], entropy: Entropy) -> dict[int, float]:
    """Where U is small, all that is known of it are its few leading bits: toss 53 more. By place."""
    places = np.flatnonzero(uniform < _RARE).tolist()
    return {place: int(uniform[place]) + (entropy.integer(53) + 0.5) * 2.0**-53 for place in places}


class Reservoir:
    """Noise vectors for a run, drawn several at a time where they are short: one call for many is much cheaper than many.

    Every vector is handed out once. They live in this process only, and are never stored.
    """

    def __init__(self, size: int, dtype: torch.dtype, deviation: float, entropy: Entropy) -> None:
        _require.non_negative(deviation=deviation)
        self._block = torch.empty(max(1, _at_once() // max(1, size)), size, dtype=dtype)
        self._deviation, self._entropy, self._used = deviation, Stream(entropy), len(self._block)

    def into(self, vector: Tensor) -> None:
        """Overwrite the vector with the next noise."""
        if len(self._block) == 1:
            _fill_all(vector, self._deviation, self._entropy)
            return
        if self._used == len(self._block):
            _fill_all(self._block.view(-1), self._deviation, self._entropy)
            self._used = 0
        vector.copy_(self._block[self._used])
        self._used += 1
