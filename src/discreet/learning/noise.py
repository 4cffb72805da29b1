"""Gaussian noise for gradients: from the same keyed stream as everything else, at the cost of an ordinary
generator.

Model weights are floats, and so is this noise: the one place where discreet adds noise that is not an exact
integer (docs/learning.md says what that leaves open). What can be had cheaply is had: cryptographic bits, and
tails to more than nine deviations.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from .. import _require
from ..sampling import Entropy, Stream

# Entries that are filled together: few calls of torch, and 2 MB of floats, which a core's cache holds or
# nearly (measured; to be measured again on a machine with other caches).
_CHUNK = 1 << 19
# A U below this many multiples of 2**-31 gets more bits.
_SMALL = 1 << 10
# The unit of U, so that the largest U is the float below one: a radius of zero would be no noise.
_UNIFORM = 2.0**-31 * (1 - 2.0**-24)
_ANGLE = math.pi * 2.0**-31
_ZERO = torch.tensor(0.0)
# Angles lie between the multiples: at zero, again, there would be no noise.
_HALF_ANGLE = torch.tensor(_ANGLE / 2)
# Up to so many threads numpy's logarithm, sine and cosine of float32 are ahead of torch's, which shares them
# among its threads: 0.4 to 0.5 ns per number against 1.0 to 1.3 on one (measured, AVX2).
_THREADS_OF_NUMPY = 2
# Deviations whose square is an ordinary float.
_SQUARABLE = (1e-15, 1e15)


def fill_gaussian(vector: Tensor, deviation: float, entropy: Entropy) -> Tensor:
    """Overwrite a vector with independent N(0, deviation²) noise.

    Guarantee: entries are the Box-Muller transform of fresh bits of `entropy`: r cos(a) and r sin(a), with r
               = sqrt(-2 ln U), rounded to the vector's type. U has 31 bits, and where the first 21 of them
               are zero another 52: the tail goes on to 10.8 deviations, where generators with 24 bits end at
               5.8. Of angles there are 2**32. No entry is exactly zero.
    Proof:     Box & Muller 1958, for the transform; the bits are those of the stream.
    Assumes:   `entropy` yields independent uniform bits. Floats are not reals: the distribution is that of a
               Gaussian up to this rounding.
    """
    _require.non_negative(deviation=deviation)
    _fill_all(vector, deviation, entropy)
    return vector


def _fill_all(vector: Tensor, deviation: float, entropy: Entropy) -> None:
    """Fill a vector with noise in chunks of equal size."""
    size = vector.numel()
    chunks = max(1, -(-size // _CHUNK))
    # Equal parts: a short one at the end costs as many calls.
    chunk_size = 2 * -(-size // (2 * chunks))
    scale = deviation if _SQUARABLE[0] <= deviation <= _SQUARABLE[1] else 1.0
    for start in range(0, size, max(1, chunk_size)):
        _fill(vector[start : start + chunk_size], scale, entropy)
    if scale != deviation:
        vector.mul_(deviation)


def _fill(out: Tensor, deviation: float, entropy: Entropy) -> None:
    """Fill a chunk with Box-Muller noise: the size of a signed 32-bit word is U, another word is the angle.

    Two words make two entries.

    Every pass over many threads is torch's, which shares it among them: a thread that waits costs as much as
    one that works.
    """
    cosines, sines = -(-out.numel() // 2), out.numel() // 2
    fits = out.dtype == torch.float32 and cosines == sines
    buffer = out if fits else torch.empty(2 * cosines, dtype=torch.float32)
    words = buffer.view(torch.int32)
    entropy.fill(words.numpy())
    values = buffer.copy_(words) if out.dtype == torch.float32 else words.to(out.dtype)
    radius, angle = values[:cosines], values[cosines:]
    # U²: one pass, where size and scale would be two.
    torch.addcmul(_ZERO, radius, radius, value=_UNIFORM**2, out=radius)
    extended_logs = (
        _extend_small_uniforms(radius, entropy) if radius.amin() < (_SMALL * _UNIFORM) ** 2 else {}
    )
    _log(radius)
    for position, log in extended_logs.items():
        radius[position] = log
    radius.mul_(-(deviation**2)).sqrt_()
    cosine = _cosine(torch.add(_HALF_ANGLE, angle, alpha=_ANGLE, out=angle))
    angle.mul_(radius)
    radius.mul_(cosine)
    if values is not out:
        torch.cat((radius, angle[:sines]), out=out)


def _is_numpys(values: Tensor) -> bool:
    """Return whether numpy is quicker: both are right to a few units in the last place of a float32."""
    return values.dtype == torch.float32 and torch.get_num_threads() <= _THREADS_OF_NUMPY


def _log(values: Tensor) -> None:
    """Replace numbers by their logarithms; that of zero is minus infinity."""
    if not _is_numpys(values):
        values.log_()
        return
    array = values.numpy()
    with np.errstate(divide="ignore"):
        np.log(array, out=array)


def _cosine(angles: Tensor) -> Tensor:
    """Return the cosines of angles, which are replaced by their sines."""
    if not _is_numpys(angles):
        cosine = angles.cos()
        angles.sin_()
        return cosine
    array = angles.numpy()
    cosine = torch.from_numpy(np.cos(array))
    np.sin(array, out=array)
    return cosine


def _extend_small_uniforms(squares: Tensor, entropy: Entropy) -> dict[int, float]:
    """Draw 52 more bits for each small U, of which only a few leading bits are known, and return ln U² by
    position.

    The logarithm, as the square itself may be below all floats. A size k stands for all that rounds to it,
    and zero for half as much. The odd multiple of 2**-53 is exact, and never one half: U is not zero.
    """
    logs = {}
    for position in torch.nonzero(squares < (_SMALL * _UNIFORM) ** 2).flatten().tolist():
        size = round(math.sqrt(squares[position]) / _UNIFORM)
        fraction = (2 * entropy.integer(52) + 1) * 2.0**-53 - 0.5
        logs[position] = 2 * math.log(abs(size + fraction) * _UNIFORM)
    return logs


class Reservoir:
    """Supplies the noise vectors of a run, drawn several at a time where they are short: one call for many is
    much cheaper than many.

    Every vector is handed out once. They live in this process only, and are never stored.
    """

    def __init__(self, size: int, dtype: torch.dtype, deviation: float, entropy: Entropy) -> None:
        _require.non_negative(deviation=deviation)
        self._block = torch.empty(max(1, _CHUNK // max(1, size)), size, dtype=dtype)
        self._deviation, self._entropy, self._used = deviation, Stream(entropy), len(self._block)

    def into(self, vector: Tensor) -> None:
        """Overwrite the vector with the next noise vector."""
        if len(self._block) == 1:
            _fill_all(vector, self._deviation, self._entropy)
            return
        if self._used == len(self._block):
            _fill_all(self._block.view(-1), self._deviation, self._entropy)
            self._used = 0
        vector.copy_(self._block[self._used])
        self._used += 1
