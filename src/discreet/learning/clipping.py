"""Clipping rules: by how much each example's gradient is scaled, so that one person moves the sum by at most
`clip`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .. import _require
from .._errors import InvalidInput
from .._registry import described

# Turning a float64 factor into float32 and multiplying by it each round by 2**-24 at most; this is four of
# them.
MARGIN = 1 - 2.0**-22
# The smallest normal float32: below, the rounding of a factor is no longer small beside the factor.
SMALLEST = 2.0**-126
# A factor above this could become infinite in float32, and infinity times a gradient of zeros is NaN.
LARGEST = 2.0**127
# Clips for which float32 holds clipped gradients, their sums and the noise with all digits: far below, what
# is added rounds to zero, the noise first.
SMALLEST_CLIP, LARGEST_CLIP = 2.0**-50, 2.0**50


def as_floats(settings: Any, *names: str) -> None:
    """Turn fields into floats: torch multiplies by nothing else, and would refuse a fraction, or a number
    beyond floats, in the first step."""
    for name in names:
        _require.finite(**{name: getattr(settings, name)})
        number = _require.float_or_inf(getattr(settings, name))
        _require.finite(**{name: number})
        object.__setattr__(settings, name, number)


def _check_clip(clip: float) -> None:
    """Refuse a clip at which float32 would lose gradients or noise."""
    _require.positive(clip=clip)
    if not SMALLEST_CLIP <= clip <= LARGEST_CLIP:
        raise _require.fail("clip", clip, "between 2**-50 and 2**50, for float32; scale the loss instead")


def norms(squares: Tensor) -> npt.NDArray[np.float64]:
    """Return the norm over all layers together, [B, 1]; in numpy, whose calls cost a third of torch's on so
    few numbers."""
    squared_norms = squares.numpy()
    total: npt.NDArray[np.float64] = (
        squared_norms if squared_norms.shape[1] == 1 else squared_norms.sum(1, keepdims=True)
    )
    return np.sqrt(total)


@described("learning.Flat")
@dataclass(frozen=True, slots=True, kw_only=True)
class Flat:
    """Scales by min(1, clip / norm): gradients shorter than `clip` stay as they are (Abadi et al. 2016,
    arXiv:1607.00133).
    """

    clip: float

    def __post_init__(self) -> None:
        as_floats(self, "clip")
        _check_clip(self.clip)

    def weights(self, squares: Tensor) -> Tensor:
        """Return [B, layers] factors for [B, layers] squared norms; all layers of an example have one
        factor.
        """
        return torch.from_numpy(self.clip * MARGIN / np.maximum(norms(squares), self.clip))


@described("learning.PerLayer")
@dataclass(frozen=True, slots=True, kw_only=True)
class PerLayer:
    """Scales each layer's part by itself, to clip / sqrt(layers): all layers together stay within `clip`."""

    clip: float

    def __post_init__(self) -> None:
        as_floats(self, "clip")
        _check_clip(self.clip)

    def weights(self, squares: Tensor) -> Tensor:
        share = self.clip / math.sqrt(squares.shape[1])
        return torch.from_numpy(share * MARGIN / np.maximum(np.sqrt(squares.numpy()), share))


@described("learning.Automatic")
@dataclass(frozen=True, slots=True, kw_only=True)
class Automatic:
    """Scales by clip / (norm + stability): every gradient is about as long as `clip`, and never longer.

    One parameter less to tune (Bu, Wang, Zha & Karypis 2023, arXiv:2206.07136). `stability` keeps tiny
    gradients tiny.
    """

    clip: float = 1.0
    stability: float = 0.01

    def __post_init__(self) -> None:
        as_floats(self, "clip", "stability")
        _check_clip(self.clip)
        _require.positive(stability=self.stability)

    def weights(self, squares: Tensor) -> Tensor:
        return torch.from_numpy(np.minimum(self.clip * MARGIN / (norms(squares) + self.stability), LARGEST))


@described("learning.Adaptive")
@dataclass(frozen=True, slots=True, kw_only=True)
class Adaptive:
    """Scales to a flat clip that follows the `quantile` of the gradients' norms, starting from `clip`.

    Each step also counts, with noise, how many gradients were not clipped, and moves the clip by exp(-rate
    (fraction - quantile)): Andrew, Thakkar, McMahan & Ramaswamy 2021, arXiv:1905.03871, with their
    recommended numbers as defaults. `count_noise` is the deviation of the noise on the count; None is a
    twentieth of the expected batch, which costs next to nothing.

    Guarantee: count and sum together are one Gaussian of the trainer's noise multiplier z.
    Proof:     an example adds 1/2 or -1/2 to the count and at most the clip to the sum, so the pair moves,
               each over its own deviation, by 1 / (2 count_noise) and 1 / z_sum; with z_sum = (z⁻² - (2
               count_noise)⁻²)^(-1/2) the squares add up to 1 / z² (their Theorem 1). The clip of the next
               step is a function of noisy counts.
    """

    clip: float = 0.1
    quantile: float = 0.5
    rate: float = 0.2
    count_noise: float | None = None

    def __post_init__(self) -> None:
        as_floats(self, "clip", "rate", "quantile", *([] if self.count_noise is None else ["count_noise"]))
        _check_clip(self.clip)
        _require.positive(rate=self.rate)
        _require.probability(quantile=self.quantile)
        if self.count_noise is not None:
            _require.positive(count_noise=self.count_noise)

    def deviation(self, divisor: float) -> float:
        """Return the standard deviation of the noise on the count."""
        return divisor / 20 if self.count_noise is None else float(self.count_noise)

    def split(self, noise_multiplier: float, divisor: float) -> float:
        """Return the noise multiplier that is left for the sum, when both together have this one."""
        count = 2 * self.deviation(divisor)
        # A little more than is asked for, so that no rounding below takes from it.
        z = noise_multiplier * (1 + 1e-12)
        if count <= z:
            raise InvalidInput(
                f"noise of deviation {count / 2:g} on the count alone is worth a noise multiplier of "
                f"{count:g}, which leaves no room for the sum at {noise_multiplier:g}. Nothing was read or "
                f"trained. Give count_noise= above {noise_multiplier / 2:g}, or larger batches."
            )
        return float(z / math.sqrt(1 - (z / count) ** 2))

    def weights(self, squares: Tensor) -> Tensor:
        return Flat(clip=self.clip).weights(squares)

    def next_clip(self, clip: float, noisy_count: float, divisor: float) -> float:
        """Return the next clip, from the noisy sum of 1/2 and -1/2; kept within 2**40 of the first, and among
        those that are allowed."""
        fraction = noisy_count / divisor + 0.5
        shift = min(max(-self.rate * (fraction - self.quantile), -20.0), 20.0)
        lowest = max(self.clip * 2.0**-40, SMALLEST_CLIP)
        return min(max(clip * math.exp(shift), lowest), self.clip * 2.0**40, LARGEST_CLIP)


Clipping = Flat | PerLayer | Automatic | Adaptive


def as_clipping(clip: float | Clipping) -> Clipping:
    """Return the clipping rule; a number means `Flat`."""
    return clip if isinstance(clip, Clipping) else Flat(clip=clip)


# a warning would leak a fact about the data
@np.errstate(all="ignore")
def factors(rule: Clipping, squares: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return the factors in float32, and which examples are kept (None for all): one whose norm is not a
    finite number counts as zero.

    Guarantee: scaling by the factors gives vectors no longer than `rule.clip`, exactly, whatever the rounding
               of the multiplication.
    Proof:     `squares` are upper bounds; MARGIN pays for the rounding of factor and product. A factor below
               the normal float32 becomes zero.
    """
    weights = rule.weights(squares)
    weights.masked_fill_(weights < SMALLEST, 0)
    if math.isfinite(squares.numpy().sum()):
        return weights.float(), None
    keep = squares.sum(1).isfinite()
    return torch.where(keep.unsqueeze(1), weights, 0.0).float(), keep
