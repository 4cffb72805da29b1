"""Gaussian noise for gradients, as fast as that of an ordinary generator, from the same keyed stream of bits
as all other noise.

Model weights are floats, and so is this noise: it is the one noise of discreet that is not an exact integer
(docs/learning.md says what that leaves open). Its bits are cryptographic, and its tails reach beyond ten
standard deviations.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from .. import _require
from ..sampling import Entropy, EntropyStream

# Entries that are filled together: enough for few calls of torch, and no more than 2 MB of floats, which
# about fit a core's cache (measured; to be measured again on a machine with other caches).
_CHUNK = 1 << 19
# A uniform number U (see `fill_gaussian`) of fewer units of `_UNIFORM` than this gets more bits.
_SMALL = 1 << 10
# The unit of U. It is a little below 2**-31, so that the largest U, of 2**31 units, is the largest float32
# below one: U = 1 would have a radius of zero, and so no noise.
_UNIFORM = 2.0**-31 * (1 - 2.0**-24)
# The unit of angles: signed words of 32 bits make a full turn.
_ANGLE = math.pi * 2.0**-31
_ZERO = torch.tensor(0.0)
# Added to all angles, so that none is zero, where the sine would be no noise either.
_HALF_ANGLE = torch.tensor(_ANGLE / 2)
# With up to this many threads numpy's logarithm, sine and cosine of float32 are faster than torch's, which
# use all threads: 0.4 to 0.5 ns per number against torch's 1.0 to 1.3 on one thread (measured, AVX2).
_THREADS_OF_NUMPY = 2
# Deviations whose square float32 holds in full precision; for others, noise of deviation 1 is multiplied.
_SQUARABLE = (1e-15, 1e15)


def fill_gaussian(vector: Tensor, deviation: float, entropy: Entropy) -> Tensor:
    """Overwrite a vector with independent N(0, deviation²) noise.

    Guarantee: entries are the Box-Muller transform of fresh bits of `entropy`: r cos(a) and r sin(a), with r
               = deviation sqrt(-2 ln U), rounded to the vector's type. U is uniform in (0, 1), with 31 bits,
               and another 52 where the first 21 of them are zero: the tail goes on to 10.8 deviations, where
               generators with 24 bits end at 5.8. The angle a is one of 2**32. No entry is exactly zero, for
               a deviation of at least 2**-100.
    Proof:     Box & Muller 1958, for the transform; the bits are those of the stream.
    Assumes:   `entropy` yields independent uniform bits. The vector is of float32 or float64. Floats are not
               reals: the distribution is that of a Gaussian up to this rounding.
    """
    _require.non_negative(deviation=deviation)
    _fill_all(vector, deviation, entropy)
    return vector


def _fill_all(vector: Tensor, deviation: float, entropy: Entropy) -> None:
    """Fill a vector with noise in chunks of equal size."""
    size = vector.numel()
    chunks = max(1, -(-size // _CHUNK))
    # Chunks of equal size, and an even one: a short chunk at the end would cost as many calls as a full one.
    chunk_size = 2 * -(-size // (2 * chunks))
    scale = deviation if _SQUARABLE[0] <= deviation <= _SQUARABLE[1] else 1.0
    for start in range(0, size, max(1, chunk_size)):
        _fill(vector[start : start + chunk_size], scale, entropy)
    if scale != deviation:
        vector.mul_(deviation)


def _fill(out: Tensor, deviation: float, entropy: Entropy) -> None:
    """Fill a chunk with Box-Muller noise: the absolute value of a signed 32-bit word, in units of `_UNIFORM`,
    is U, and another word is the angle; U and the angle make two entries.

    The first half of the chunk becomes the cosines, the second the sines. Every line over all numbers is one
    call, in place: torch shares it among its threads, where there are many.
    """
    cosines, sines = -(-out.numel() // 2), out.numel() // 2
    fits = out.dtype == torch.float32 and cosines == sines
    buffer = out if fits else torch.empty(2 * cosines, dtype=torch.float32)
    words = buffer.view(torch.int32)
    entropy.fill(words.numpy())
    values = buffer.copy_(words) if out.dtype == torch.float32 else words.to(out.dtype)
    radius, angle = values[:cosines], values[cosines:]
    # U², in one pass: the absolute value and the unit would take two. The logarithm of U² is 2 ln U.
    torch.addcmul(_ZERO, radius, radius, value=_UNIFORM**2, out=radius)
    extended_logs = (
        _extend_small_uniforms(radius, entropy) if radius.amin() < (_SMALL * _UNIFORM) ** 2 else {}
    )
    _log(radius)
    for position, log in extended_logs.items():
        radius[position] = log
    radius.mul_(-(deviation**2)).sqrt_()
    cosine = _cosine(torch.add(_HALF_ANGLE, angle, alpha=_ANGLE, out=angle))
    # `angle` holds the sines from here on.
    angle.mul_(radius)
    radius.mul_(cosine)
    if values is not out:
        torch.cat((radius, angle[:sines]), out=out)


def _is_faster_in_numpy(values: Tensor) -> bool:
    """Return whether numpy is faster than torch; the results of both are right to a few units in the last
    place."""
    return values.dtype == torch.float32 and torch.get_num_threads() <= _THREADS_OF_NUMPY


def _log(values: Tensor) -> None:
    """Replace numbers by their logarithms, in place; that of zero is minus infinity."""
    if not _is_faster_in_numpy(values):
        values.log_()
        return
    array = values.numpy()
    with np.errstate(divide="ignore"):
        np.log(array, out=array)


def _cosine(angles: Tensor) -> Tensor:
    """Return the cosines of angles, and replace the angles by their sines, in place."""
    if not _is_faster_in_numpy(angles):
        cosine = angles.cos()
        angles.sin_()
        return cosine
    array = angles.numpy()
    cosine = torch.from_numpy(np.cos(array))
    np.sin(array, out=array)
    return cosine


def _extend_small_uniforms(squares: Tensor, entropy: Entropy) -> dict[int, float]:
    """Draw 52 more bits for each U of fewer than `_SMALL` units, and return ln U² by position in `squares`,
    which holds U².

    A word of absolute value k stands for all U between k - 1/2 and k + 1/2 units, and 0 for those below 1/2,
    which are half as likely. The fraction is an odd multiple of 2**-53 between -1/2 and 1/2, exactly, so that
    U is not zero. The logarithm is returned because U² itself may be too small for a float32.
    """
    logs = {}
    for position in torch.nonzero(squares < (_SMALL * _UNIFORM) ** 2).flatten().tolist():
        units = round(math.sqrt(squares[position]) / _UNIFORM)
        fraction = (2 * entropy.integer(52) + 1) * 2.0**-53 - 0.5
        logs[position] = 2 * math.log(abs(units + fraction) * _UNIFORM)
    return logs


class Reservoir:
    """Supplies the noise vectors of a run. Short vectors are drawn several at a time, because one call for
    many is much cheaper than one call for each.

    Every vector is used once: noise that is used twice could be subtracted. Vectors stay in the memory of
    this process, and are never stored.
    """

    def __init__(self, size: int, dtype: torch.dtype, deviation: float, entropy: Entropy) -> None:
        _require.non_negative(deviation=deviation)
        # Noise vectors of `size` entries, one in each row; the first `_used` of them are spent.
        self._block = torch.empty(max(1, _CHUNK // max(1, size)), size, dtype=dtype)
        self._deviation, self._entropy, self._used = deviation, EntropyStream(entropy), len(self._block)

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
