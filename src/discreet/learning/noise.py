"""Draws Gaussian noise for gradients, as fast as an ordinary generator, from the same keyed stream of bits as
all other noise.

Model weights are floats, and so is this noise: it is the one noise in releases of discreet that is not an
exact integer (docs/learning.md says what that leaves open); `Trainer(noise="discrete")` draws integers
instead. Its bits are cryptographic, and its tails reach beyond ten standard deviations.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from .. import _require
from ..sampling import Entropy, EntropyStream

# Entries that are filled together: so many that torch is called few times, and no more than 2 MB of floats,
# which about fit a core's cache (measured; to be measured again on a machine with other caches).
_CHUNK = 1 << 19
# A uniform number U (see `fill_gaussian`) of fewer than this many units `_UNIFORM_UNIT` gets more bits.
_SMALL = 1 << 10
# The unit of U. It is a little below 2**-31, so that the largest U, of 2**31 units, is the largest float32
# below one: U = 1 would have a radius of zero, and so no noise.
_UNIFORM_UNIT = 2.0**-31 * (1 - 2.0**-24)
# The unit of angles: signed words of 32 bits make a full turn.
_ANGLE_UNIT = math.pi * 2.0**-31
_ZERO = torch.tensor(0.0)
# Added to all angles, so that none is zero, where the sine would be no noise either.
_HALF_ANGLE_UNIT = torch.tensor(_ANGLE_UNIT / 2)
# With up to this many threads of torch, numpy's logarithm, sine and cosine of float32 are faster than
# torch's, which use all threads: 0.4 to 0.5 ns per number against torch's 1.0 to 1.3 on one thread (measured,
# AVX2).
_MAX_THREADS_FOR_NUMPY = 2
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
    """Fill a chunk with Box-Muller noise: the absolute value of a signed 32-bit word, in units of
    `_UNIFORM_UNIT`, is U, and another word is the angle; U and the angle make two entries.

    The first half of the chunk becomes the cosines, the second the sines. Each operation on the whole chunk
    is one in-place call, which torch splits among its threads.
    """
    cosine_count, sine_count = -(-out.numel() // 2), out.numel() // 2
    fits = out.dtype == torch.float32 and cosine_count == sine_count
    buffer = out if fits else torch.empty(2 * cosine_count, dtype=torch.float32)
    words = buffer.view(torch.int32)
    entropy.fill(words.numpy())
    values = buffer.copy_(words) if out.dtype == torch.float32 else words.to(out.dtype)
    # `uniforms`, `squares`, `logs` and `radii` are one piece of memory, which each step overwrites; so are
    # `angles` and `sines`.
    uniforms, angles = values[:cosine_count], values[cosine_count:]
    # U², in one pass: the absolute value and the unit would take two. The logarithm of U² is 2 ln U.
    squares = torch.addcmul(_ZERO, uniforms, uniforms, value=_UNIFORM_UNIT**2, out=uniforms)
    extended_logs = (
        _extend_small_uniforms(squares, entropy) if squares.amin() < (_SMALL * _UNIFORM_UNIT) ** 2 else {}
    )
    logs = _log(squares)
    for position, log in extended_logs.items():
        logs[position] = log
    radii = logs.mul_(-(deviation**2)).sqrt_()
    torch.add(_HALF_ANGLE_UNIT, angles, alpha=_ANGLE_UNIT, out=angles)
    cosines, sines = _cosines_and_sines(angles)
    sines.mul_(radii)
    radii.mul_(cosines)
    if values is not out:
        torch.cat((radii, sines[:sine_count]), out=out)


def _is_faster_in_numpy(values: Tensor) -> bool:
    """Return whether numpy is faster than torch; the results of both are right to a few units in the last
    place."""
    return values.dtype == torch.float32 and torch.get_num_threads() <= _MAX_THREADS_FOR_NUMPY


def _log(values: Tensor) -> Tensor:
    """Replace numbers by their logarithms, in place, and return them; that of zero is minus infinity."""
    if not _is_faster_in_numpy(values):
        return values.log_()
    array = values.numpy()
    with np.errstate(divide="ignore"):
        np.log(array, out=array)
    return values


def _cosines_and_sines(angles: Tensor) -> tuple[Tensor, Tensor]:
    """Return the cosines and the sines of angles; the sines take the place of the angles."""
    if not _is_faster_in_numpy(angles):
        cosines = angles.cos()
        return cosines, angles.sin_()
    array = angles.numpy()
    cosines = torch.from_numpy(np.cos(array))
    np.sin(array, out=array)
    return cosines, angles


def _extend_small_uniforms(squares: Tensor, entropy: Entropy) -> dict[int, float]:
    """Draw 52 more bits for each U of fewer than `_SMALL` units, and return ln U² by position in `squares`,
    which holds U².

    A word of absolute value k stands for all U between k - 1/2 and k + 1/2 units, and 0 for those below 1/2,
    which are half as likely. The fraction is an odd multiple of 2**-53 between -1/2 and 1/2, exactly, so that
    U is not zero. The logarithm is returned because U² itself may be too small for a float32.
    """
    logs = {}
    for position in torch.nonzero(squares < (_SMALL * _UNIFORM_UNIT) ** 2).flatten().tolist():
        units = round(math.sqrt(squares[position]) / _UNIFORM_UNIT)
        fraction = (2 * entropy.integer(52) + 1) * 2.0**-53 - 0.5
        logs[position] = 2 * math.log(abs(units + fraction) * _UNIFORM_UNIT)
    return logs


class NoiseBuffer:
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
