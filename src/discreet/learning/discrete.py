"""Adds exact noise to gradients: clipped gradients on an integer grid, added up without rounding, plus the
exact discrete Gaussian.

With floats the guarantee holds up to rounding (docs/learning.md); on the grid it is exact. A sum of integers
does not depend on the order, the noise has exactly the distribution that is priced, and the norm of each
example's summand is compared with the sensitivity after it was rounded to the grid. For this, per-example
gradients must be built, which is slower.
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

# With the step of `GradientGrid.of`, rounding adds at most clip / 64 to the norm of a gradient, so that the
# noise is less than 2% larger than without rounding.
_INVERSE_LENGTHENING = 64
# Squares are added up in float32 within blocks of this many, as the rounding error grows with their number,
# and the blocks in float64.
_BLOCK = 256
# Squared norms, in squared steps, are below this. Then every entry is below 2**24 and exact in float32, and
# sums of up to 2**29 entries are exact in float64.
_LARGEST = 1 << 48


@described("learning.Grid")
@dataclass(frozen=True, slots=True, kw_only=True)
class GradientGrid:
    """Rounds vectors of `size` numbers and of l2 norm at most `clip` to integer multiples of `step`.

    Guarantee: each example's summand, divided by the step, is an integer vector of squared l2 norm at most
               `l2_squared`, the integer part of (clip / step + sqrt(size) / 2)².
    Proof:     rounding to the nearest multiple moves each entry by at most half a step, hence the vector by
               at most sqrt(size) / 2 steps; add clip / step (triangle inequality). This does not rest on how
               floats were rounded before: the norm of the integer vector is bounded from above (`_lengths`),
               or computed exactly, and a vector above the bound counts as zero (`rounded`).
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
                f"a step of {float(self.step):g} is too fine: squared norms, in steps, would need more than "
                f"48 bits. Nothing was read or trained. GradientGrid.of(clip, size) chooses a step."
            )

    @classmethod
    def of(cls, clip: float, size: int) -> GradientGrid:
        """Return the grid whose step is the largest power of two that adds at most a 64th to the
        sensitivity."""
        largest_step = 2 * clip / (_INVERSE_LENGTHENING * math.sqrt(size))
        return cls(clip=clip, size=size, step=Fraction(2) ** math.floor(math.log2(largest_step)))

    @property
    def l2_squared(self) -> int:
        """Return the squared l2 sensitivity in squared steps, exactly.

        With clip / step = p / q, (p / q + sqrt(size) / 2)² is (4 p² + size q² + sqrt(16 p² q² size)) / 4 q²;
        taking the integer part of the root first does not change the integer part of the fraction.
        """
        clip_in_steps = _require.exact(self.clip, "clip") / self.step
        p, q = clip_in_steps.numerator, clip_in_steps.denominator
        return (4 * p * p + self.size * q * q + math.isqrt(16 * p * p * q * q * self.size)) // (4 * q * q)

    def variance(self, noise_multiplier: float) -> int:
        """Return the variance of the noise in squared steps: noise_multiplier² times `l2_squared`, rounded
        up."""
        return math.ceil(_require.exact(noise_multiplier, "noise_multiplier") ** 2 * self.l2_squared)

    def event(self, noise_multiplier: float, neighbors: Neighbors, changes: int = 1) -> Event:
        """Return the price of one noisy sum that neighbors move by at most `changes` times the clip: 1 where
        a summand is added or removed, 2 where one is replaced by another."""
        return VectorDiscreteGaussian(
            variance=self.variance(noise_multiplier),
            l2_squared=self.l2_squared * changes**2,
            neighbors=neighbors,
        )

    def rounded(self, rows: Tensor, weights: Tensor) -> Tensor:
        """Multiply rows [B, size] by weights ([B, 1] or [B, size]), the clipping factors, and round them to
        integer numbers of steps, in place; a row whose squared norm is above `l2_squared` becomes zero.

        The integers are exact in float32: those of a row that is kept are below 2**24.
        """
        rows.mul_((weights.double() / float(self.step)).to(rows.dtype)).round_()
        within_bound = _lengths(rows) <= math.sqrt(self.l2_squared) * (1 - 2.0**-40)
        if not bool(within_bound.all()):
            # The bounds of `_lengths` are too coarse where the step is very fine. This comparison is exact:
            # sums of squares of integers are exact in float64 up to `_LARGEST`, and rounding never takes a
            # larger sum below it. NaN is not within the bound.
            within_bound = rows.double().square_().sum(1) <= self.l2_squared
            rows.copy_(torch.where(within_bound.unsqueeze(1), rows, 0.0))
        return rows

    def total(self, rows: Tensor) -> Tensor:
        """Return the exact sum of rounded rows, as integers: added up in float32 where it must be below
        2**24, else in float64."""
        fits_float32 = len(rows) * (math.isqrt(self.l2_squared) + 1) < 1 << 24
        return rows.sum(0, dtype=rows.dtype if fits_float32 else torch.float64).long()


def _lengths(rows: Tensor) -> Tensor:
    """Return upper bounds, in float64, on the l2 norms of rows of integers.

    Squares are added up in float32 in blocks of 256, with a relative error of at most 264 roundings of 2**-24
    each (256 and a few for the root), which is below 2**-15; the blocks are added up in float64.
    """
    in_blocks = rows.shape[1] - rows.shape[1] % _BLOCK
    blocks = torch.linalg.vector_norm(
        rows[:, :in_blocks].reshape(len(rows), in_blocks // _BLOCK, _BLOCK), dim=2
    ).double()
    remainder = torch.linalg.vector_norm(rows[:, in_blocks:], dim=1).double()
    return torch.hypot(torch.linalg.vector_norm(blocks, dim=1), remainder) * (1 + 2.0**-15)


class GridSum:
    """Adds up the rounded gradients of one step, and noise, in integers; only the noisy sum becomes a float
    vector."""

    def __init__(self, grid: GradientGrid, noise_multiplier: float, entropy: Entropy) -> None:
        self.grid, self._variance, self._entropy = grid, grid.variance(noise_multiplier), entropy
        self._sum = torch.zeros(grid.size, dtype=torch.int64)

    def add(self, rows: Tensor, weights: Tensor) -> None:
        """Add the rows times their weights, on the grid; `rows` is overwritten."""
        self._sum += self.grid.total(self.grid.rounded(rows, weights))

    def release(self, into: Tensor) -> None:
        """Overwrite the vector `into` with the noisy sum, and begin a new sum."""
        noise = sampling.discrete_gaussian(
            sigma_squared=self._variance, n=self.grid.size, entropy=self._entropy
        )
        total = self._sum.numpy() + np.asarray(noise, dtype=np.int64)
        into.copy_(torch.from_numpy(total.astype(np.float64) * float(self.grid.step)))
        self._sum.zero_()
