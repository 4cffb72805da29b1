"""Defines clipping rules: the factor by which each example's gradient is scaled, so that its norm is at most
`clip`.

A rule's `weights` takes upper bounds on squared norms, [B, layers] in float64 for B examples ([B, 1] where
all layers are bounded together). It returns the factors: [B, layers] by `PerLayer`, [B, 1] by other rules.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from ... import _require
from ..._errors import InvalidInput
from ..._registry import described
from ..._require import FLOAT, POSITIVE, PROBABILITY, Limit
from . import taps

# Turning a factor from float64 to float32, and multiplying a number by it, each make a relative error of at
# most 2**-24. The margin is four of these errors.
MARGIN = 1 - 2.0**-22
# The smallest normal float32: below, the rounding of a factor is no longer small beside the factor.
SMALLEST = 2.0**-126
# A factor above this could become infinite in float32, and infinity times a gradient of zeros is NaN.
LARGEST = 2.0**127
# Clips for which clipped gradients, their sums and the noise are normal numbers in float32, with a wide
# margin: with a far smaller clip they would underflow to zero, noise included.
SMALLEST_CLIP, LARGEST_CLIP = 2.0**-50, 2.0**50


def _check_clip(**named: float) -> None:
    """Refuse a clip at which float32 would lose gradients or noise."""
    _require.positive(**named)
    for name, clip in named.items():
        if not SMALLEST_CLIP <= clip <= LARGEST_CLIP:
            raise _require.fail(name, clip, "between 2**-50 and 2**50, for float32; scale the loss instead")


Clip = Annotated[float, FLOAT, Limit(_check_clip)]


def norms(squares: Tensor) -> Any:
    """Return the norm over all layers together, [B, 1], from squared norms [B, layers] or [B, 1]."""
    squared_norms = _array(squares)
    return (squared_norms if squared_norms.shape[1] == 1 else squared_norms.sum(1, keepdims=True)) ** 0.5


def _array(squares: Tensor) -> Any:
    """Return the numbers in numpy, whose calls take a third of the time of torch's on so few numbers; those
    of an accelerator as they are. What the rules do with them is the same for both."""
    return squares.numpy() if taps.on_host(squares) else squares


def _tensor(array: Any) -> Tensor:
    return array if isinstance(array, Tensor) else torch.from_numpy(array)


@described("learning.Flat")
class Flat:
    """Scales by min(1, clip / norm): gradients shorter than `clip` stay as they are (Abadi et al. 2016,
    arXiv:1607.00133).
    """

    clip: Clip

    def weights(self, squares: Tensor) -> Tensor:
        """Return one factor for each example, [B, 1]: it scales all layers."""
        return _tensor(self.clip * MARGIN / norms(squares).clip(min=self.clip))


@described("learning.PerLayer")
class PerLayer:
    """Scales each layer's gradient by its own factor, to a norm of at most clip / sqrt(layers): so the norm
    over all layers is at most `clip`."""

    clip: Clip

    def weights(self, squares: Tensor) -> Tensor:
        share = self.clip / math.sqrt(squares.shape[1])
        return _tensor(share * MARGIN / (_array(squares) ** 0.5).clip(min=share))


@described("learning.Automatic")
class Automatic:
    """Scales by clip / (norm + stability): the norm of every gradient is nearly `clip`, and never above it.

    So the clip need not be tuned (Bu, Wang, Zha & Karypis 2023, arXiv:2206.07136). `stability` is their
    gamma: gradients far shorter than it stay short.
    """

    clip: Clip = 1.0
    stability: Annotated[float, FLOAT, POSITIVE] = 0.01

    def weights(self, squares: Tensor) -> Tensor:
        return _tensor((self.clip * MARGIN / (norms(squares) + self.stability)).clip(max=LARGEST))


@described("learning.Adaptive")
class Adaptive:
    """Scales like `Flat`, with a clip that follows the `quantile` of the gradients' norms, from `clip` on.

    Each step also estimates, with noise, the `fraction` of gradients that were not clipped, and multiplies
    the clip by exp(-rate (fraction - quantile)): Andrew, Thakkar, McMahan & Ramaswamy 2021, arXiv:1905.03871,
    with their recommended numbers as defaults. The fraction is 1/2 plus the noisy count divided by the
    expected batch, where a gradient adds 1/2 to the count if it was not clipped, and -1/2 if it was.
    `count_noise` is the standard deviation of the noise on the count; None is a twentieth of the expected
    batch, which takes next to nothing of the noise multiplier.

    Guarantee: count and sum together are one Gaussian mechanism of the trainer's noise multiplier z.
    Proof:     an example adds 1/2 or -1/2 to the count and a vector of norm at most the clip to the sum. In
               units of the standard deviations of their noise, these are 1 / (2 count_noise) and 1 / z_sum,
               where z_sum is the noise multiplier of the sum (`split`). With z_sum = (z⁻² - (2
               count_noise)⁻²)^(-1/2) the squares add up to 1 / z² (their Theorem 1). Under the relation
               replace, both are twice as large, as is the sensitivity that z is relative to. The clip of the
               next step is a function of noisy counts.

    In the methods, `divisor` is the expected batch, which is public.
    """

    clip: Clip = 0.1
    quantile: Annotated[float, FLOAT, PROBABILITY] = 0.5
    rate: Annotated[float, FLOAT, POSITIVE] = 0.2
    count_noise: Annotated[float, FLOAT, POSITIVE] | None = None

    def deviation(self, divisor: float) -> float:
        """Return the standard deviation of the noise on the count."""
        return divisor / 20 if self.count_noise is None else float(self.count_noise)

    def split(self, noise_multiplier: float, divisor: float) -> float:
        """Return the noise multiplier of the sum, so that sum and count together have `noise_multiplier`.

        It is rounded up: more noise is never less private.
        """
        count_multiplier = 2 * self.deviation(divisor)
        # Larger than the priced noise multiplier, by more than the rounding errors of the next lines.
        z = noise_multiplier * (1 + 1e-12)
        if count_multiplier <= z:
            raise InvalidInput(
                f"noise of deviation {count_multiplier / 2:g} on the count alone is a noise multiplier of "
                f"{count_multiplier:g}. That of count and sum together is {noise_multiplier:g}, so that "
                f"nothing is left for the sum. Give count_noise= above {noise_multiplier / 2:g}, or larger "
                "batches."
            )
        return float(z / math.sqrt(1 - (z / count_multiplier) ** 2))

    def weights(self, squares: Tensor) -> Tensor:
        return Flat(clip=self.clip).weights(squares)

    def next_clip(self, clip: float, noisy_count: float, divisor: float) -> float:
        """Return the clip after `clip`, from the noisy count, in which an example is 1/2 or -1/2.

        It stays within a factor of 2**40 of the first clip, and between SMALLEST_CLIP and LARGEST_CLIP.
        """
        fraction = noisy_count / divisor + 0.5
        # Limited so that `exp` cannot overflow.
        shift = min(max(-self.rate * (fraction - self.quantile), -20.0), 20.0)
        lowest = max(self.clip * 2.0**-40, SMALLEST_CLIP)
        return min(max(clip * math.exp(shift), lowest), self.clip * 2.0**40, LARGEST_CLIP)


Clipping = Flat | PerLayer | Automatic | Adaptive


def as_clipping(clip: float | Clipping) -> Clipping:
    """Return the clipping rule; a number means `Flat`."""
    return clip if isinstance(clip, Clipping) else Flat(clip=clip)


# Without warnings of numpy: that an overflow occurred is a fact about the data.
@np.errstate(all="ignore")
def factors(rule: Clipping, squares: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return the factors in float32, and which examples are kept, [B], or None where all are.

    An example whose norm is not finite is not kept: its factor is zero, and its gradient must be zeroed
    (`Tap.zero_out`), as zero times NaN is NaN.

    Guarantee: a gradient that is scaled by its factor has a norm of at most `rule.clip`, including the
               rounding of the multiplication.
    Proof:     `squares` are upper bounds on squared norms; MARGIN covers the rounding of factor and product.
               A factor below SMALLEST, whose rounding MARGIN would not cover, becomes zero.
    """
    weights = rule.weights(squares)
    weights.masked_fill_(weights < SMALLEST, 0)
    if math.isfinite(float(_array(squares).sum())):
        return weights.float(), None
    keep = squares.sum(1).isfinite()
    return torch.where(keep.unsqueeze(1), weights, 0.0).float(), keep
