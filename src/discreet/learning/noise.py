"""Gaussian noise for gradients: from the same keyed stream as everything else, at the cost of an ordinary
generator.

Model weights are floats, and so is this noise: the one place where discreet adds noise that is not an exact
integer (docs/learning.md says what that leaves open). What can be had cheaply is had: cryptographic bits, and
tails to more than nine deviations.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .. import _require
from ..sampling import Entropy, Stream

_AT_ONCE = 1 << 19  # entries worked on together: few calls, within a core's cache or nearly (measured)
_RARE = 1 << 10  # below this many 2**-31, U gets more bits
_UNIFORM = 2.0**-31 * (
    1 - 2.0**-24
)  # so that the largest U is the float below one: a radius of zero would be no noise
_ANGLE = math.pi * 2.0**-31
_ZERO = torch.tensor(0.0)
_HALF_ANGLE = torch.tensor(
    _ANGLE / 2
)  # angles lie between the multiples: at zero, again, there would be no noise
_SQUARABLE = (1e-15, 1e15)  # deviations whose square is an ordinary float


def fill_gaussian(vector: Tensor, deviation: float, entropy: Entropy) -> Tensor:
    """Overwrite a vector with independent N(0, deviation²) noise.

    Guarantee: entries are the Box-Muller transform of fresh bits of `entropy`: r cos(a) and r sin(a), with r
               = sqrt(-2 ln U), rounded to the vector's type. U has 31 bits, and where the first 21 of them
               are zero another 52: the tail goes on to 10.8 deviations, where generators with 24 bits end at
               5.8. Of angles there are 2**32. No entry is exactly zero.
    Proof:     Box & Muller 1958, for the transform; the bits are those of the stream.
    Assumes:   `entropy` yields independent uniform bits. Floats are not reals: the law is that of a Gaussian
               up to this rounding.
    """
    _require.non_negative(deviation=deviation)
    _fill_all(vector, deviation, entropy)
    return vector


def _fill_all(vector: Tensor, deviation: float, entropy: Entropy) -> None:
    size = vector.numel()
    parts = max(1, -(-size // _AT_ONCE))
    each = 2 * -(-size // (2 * parts))  # equal parts: a short one at the end costs as many calls
    scale = deviation if _SQUARABLE[0] <= deviation <= _SQUARABLE[1] else 1.0
    for start in range(0, size, max(1, each)):
        _fill(vector[start : start + each], scale, entropy)
    if scale != deviation:
        vector.mul_(deviation)


def _fill(out: Tensor, deviation: float, entropy: Entropy) -> None:
    """The size of a signed 32-bit word is U, exact in a float where it is small; another word is the angle.

    Two words make two entries.

    Every pass is torch's, which shares it among its threads: a thread that waits costs as much as one that
    works.
    """
    pairs, rest = -(-out.numel() // 2), out.numel() // 2
    room = (
        out if out.dtype == torch.float32 and pairs == rest else torch.empty(2 * pairs, dtype=torch.float32)
    )
    words = room.view(torch.int32)
    entropy.fill(words.numpy())
    values = room.copy_(words) if out.dtype == torch.float32 else words.to(out.dtype)
    radius, angle = values[:pairs], values[pairs:]
    # U²: one pass, where size and scale would be two.
    torch.addcmul(_ZERO, radius, radius, value=_UNIFORM**2, out=radius)
    rare = _extended(radius, entropy) if radius.amin() < (_RARE * _UNIFORM) ** 2 else {}
    radius.log_()
    for place, log in rare.items():
        radius[place] = log
    radius.mul_(-(deviation**2)).sqrt_()
    turned = torch.add(_HALF_ANGLE, angle, alpha=_ANGLE, out=angle).cos()
    angle.sin_().mul_(radius)
    radius.mul_(turned)
    if values is not out:
        torch.cat((radius, angle[:rest]), out=out)


def _extended(squares: Tensor, entropy: Entropy) -> dict[int, float]:
    """Of a small U only a few leading bits are known: toss 52 more.

    By place, ln U²: the square itself may be below all floats.

    A size k stands for all that rounds to it, and zero for half as much. The odd multiple of 2**-53 is exact,
    and never one half: U is not zero.
    """
    noises = {}
    for place in torch.nonzero(squares < (_RARE * _UNIFORM) ** 2).flatten().tolist():
        size = round(math.sqrt(squares[place]) / _UNIFORM)
        more = (2 * entropy.integer(52) + 1) * 2.0**-53 - 0.5
        noises[place] = 2 * math.log(abs(size + more) * _UNIFORM)
    return noises


class Reservoir:
    """Noise vectors for a run, drawn several at a time where they are short: one call for many is much
    cheaper than many.

    Every vector is handed out once. They live in this process only, and are never stored.
    """

    def __init__(self, size: int, dtype: torch.dtype, deviation: float, entropy: Entropy) -> None:
        _require.non_negative(deviation=deviation)
        self._block = torch.empty(max(1, _AT_ONCE // max(1, size)), size, dtype=dtype)
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
