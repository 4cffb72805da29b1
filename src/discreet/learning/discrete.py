"""Exact noise for gradients: clipped gradients on an integer grid, added up without rounding, plus the exact
discrete Gaussian.

Closes what floats leave open (docs/learning.md): the sum of integers does not depend on the order, noise has
exactly the distribution that is priced, and what one example adds is held against the bound once it is on the
grid. Gradients must be built one by one for it, which is slower.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from .. import _require, sampling
from .._errors import InvalidInput
from .._public import Neighbors
from .._registry import described
from ..accounting import Event, VectorDiscreteGaussian
from ..sampling import Entropy

# Rounding lengthens a gradient by at most 1 / _INVERSE_LENGTHENING of the clip, unless a step is given: under
# 2% more noise.
_INVERSE_LENGTHENING = 64
# Squares that are added up in float32: its rounding error grows with their number.
_BLOCK = 256
# The largest squared length: every entry is exact in float32, and sums of up to 2**29 of them in float64.
_LARGEST = 1 << 48


@described("learning.Grid")
@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Rounds vectors of `size` numbers, of length at most `clip`, to whole multiples of `step`.

    Guarantee: what one example adds is an integer vector of squared length at most `l2_squared`, the integer
               part of (clip / step + sqrt(size) / 2)².
    Proof:     rounding to the nearest multiple moves each entry by at most half a step, so the vector by at
               most sqrt(size) / 2 steps; the triangle inequality. Whatever floats made of it, the length of
               the rounded vector is bounded from above (`_lengths`), and where that is above the bound the
               vector counts as zero.
    """

    clip: float
    size: int
    step: Fraction

    def __post_init__(self) -> None:
        _require.positive(clip=self.clip)
        _require.integer(size=self.size, at_least=1)
        object.__setattr__(self, "step", _require.exact(self.step, "step"))
        _require.positive(step=self.step)
        if self.l2_squared >= _LARGEST:
            raise InvalidInput(
                f"a step of {float(self.step):g} is too fine: squared lengths would not fit 48 bits. "
                f"Nothing was read or trained."
            )

    @classmethod
    def of(cls, clip: float, size: int) -> Grid:
        """Return a grid whose step is a power of two that adds at most a 64th to the sensitivity."""
        largest_step = 2 * clip / (_INVERSE_LENGTHENING * math.sqrt(size))
        return cls(clip=clip, size=size, step=Fraction(2) ** math.floor(math.log2(largest_step)))

    @property
    def l2_squared(self) -> int:
        """Return the squared l2 sensitivity in steps: with clip / step = p / q, floor((4p² + size q² +
        sqrt(16 p² q² size)) / 4q²), exactly.
        """
        reach = _require.exact(self.clip, "clip") / self.step
        p, q = reach.numerator, reach.denominator
        return (4 * p * p + self.size * q * q + math.isqrt(16 * p * p * q * q * self.size)) // (4 * q * q)

    def variance(self, noise_multiplier: float) -> int:
        """Return the variance of the noise in squared steps: (noise_multiplier times the sensitivity)²,
        rounded up."""
        return math.ceil(_require.exact(noise_multiplier, "noise_multiplier") ** 2 * self.l2_squared)

    def event(self, noise_multiplier: float, neighbors: Neighbors, changes: int = 1) -> Event:
        """Return the price of one noisy sum, which one unit moves by at most `changes` such vectors."""
        return VectorDiscreteGaussian(
            variance=self.variance(noise_multiplier),
            l2_squared=self.l2_squared * changes**2,
            neighbors=neighbors,
        )

    def rounded(self, rows: Tensor, weights: Tensor) -> Tensor:
        """Multiply rows [B, size] by weights and round them to whole steps, in place; a row above the bound
        becomes zero.

        Whole numbers below 2**24 are exact in float32; lengths are bounded from above, see `_lengths`.
        """
        rows.mul_((weights.double() / float(self.step)).to(rows.dtype)).round_()
        within_bound = _lengths(rows) <= math.sqrt(self.l2_squared) * (1 - 2.0**-40)
        if not bool(within_bound.all()):
            # Exact: squares of integers in float64, whose sum up to `_LARGEST` has no rounding; above it no
            # rounding leads back. The bounds of `_lengths` are too coarse where the step is very fine. NaN
            # is not within the bound.
            within_bound = rows.double().square_().sum(1) <= self.l2_squared
            rows.copy_(torch.where(within_bound.unsqueeze(1), rows, 0.0))
        return rows

    def total(self, rows: Tensor) -> Tensor:
        """Return the exact sum of rounded rows: in float32 while it stays below 2**24, in float64
        otherwise."""
        fits_float32 = len(rows) * (math.isqrt(self.l2_squared) + 1) < 1 << 24
        return rows.sum(0, dtype=rows.dtype if fits_float32 else torch.float64).long()


def _lengths(rows: Tensor) -> Tensor:
    """Return upper bounds on the l2 norms of rows, in float64: squares of integers are added up in float32 in
    blocks of 256, each off by at most 264 roundings (264 / 2**24 < 2**-15), then in float64."""
    in_blocks = rows.shape[1] - rows.shape[1] % _BLOCK
    blocks = torch.linalg.vector_norm(
        rows[:, :in_blocks].reshape(len(rows), in_blocks // _BLOCK, _BLOCK), dim=2
    ).double()
    remainder = torch.linalg.vector_norm(rows[:, in_blocks:], dim=1).double()
    return torch.hypot(torch.linalg.vector_norm(blocks, dim=1), remainder) * (1 + 2.0**-15)


class GridSum:
    """Adds up rounded gradients of one step in integers, with noise that is drawn in integers; only the noisy
    sum becomes a float vector."""

    def __init__(self, grid: Grid, noise_multiplier: float, entropy: Entropy) -> None:
        self.grid, self._variance, self._entropy = grid, grid.variance(noise_multiplier), entropy
        self._sum = torch.zeros(grid.size, dtype=torch.int64)

    def add(self, rows: Tensor, weights: Tensor) -> None:
        """Add weights times rows, which are overwritten."""
        self._sum += self.grid.total(self.grid.rounded(rows, weights))

    def release(self, into: Tensor) -> None:
        """Overwrite the vector with the noisy sum, and begin a new one."""
        noise = sampling.discrete_gaussian(
            sigma_squared=self._variance, n=self.grid.size, entropy=self._entropy
        )
        total = self._sum.numpy() + np.asarray(noise, dtype=np.int64)
        into.copy_(torch.from_numpy(total.astype(np.float64) * float(self.grid.step)))
        self._sum.zero_()
