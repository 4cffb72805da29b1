"""Clipping rules: by how much each example's gradient is scaled, so that one person moves the sum by at most `clip`."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .. import _require
from .._registry import described

# Turning a float64 factor into float32 and multiplying by it each round by 2**-24 at most; this is four of them.
MARGIN = 1 - 2.0**-22


def norms(squares: Tensor) -> Tensor:
    """[B, 1]: of all layers together."""
    return (squares if squares.shape[1] == 1 else squares.sum(1, keepdim=True)).sqrt()


@described
@dataclass(frozen=True, slots=True, kw_only=True)
class Flat:
    """Scale by min(1, clip / norm): gradients shorter than `clip` stay as they are (Abadi et al. 2016, arXiv:1607.00133)."""

    clip: float

    def __post_init__(self) -> None:
        _require.positive(clip=self.clip)

    def weights(self, squares: Tensor) -> Tensor:
        """[B, layers] squared norms to [B, layers] factors; all layers of an example by one factor."""
        return (self.clip * MARGIN / norms(squares)).clamp_(max=MARGIN)


@described
@dataclass(frozen=True, slots=True, kw_only=True)
class PerLayer:
    """Each layer's part by itself, to clip / sqrt(layers): the whole stays within `clip`."""

    clip: float

    def __post_init__(self) -> None:
        _require.positive(clip=self.clip)

    def weights(self, squares: Tensor) -> Tensor:
        share = self.clip * MARGIN / math.sqrt(squares.shape[1])
        return (share / squares.sqrt()).clamp_(max=MARGIN)


@described
@dataclass(frozen=True, slots=True, kw_only=True)
class Automatic:
    """Scale by clip / (norm + stability): every gradient is about as long as `clip`, and never longer.

    One parameter less to tune (Bu, Wang, Zha & Karypis 2023, arXiv:2206.07136). `stability` keeps tiny gradients tiny.
    """

    clip: float = 1.0
    stability: float = 0.01

    def __post_init__(self) -> None:
        _require.positive(clip=self.clip, stability=self.stability)

    def weights(self, squares: Tensor) -> Tensor:
        return self.clip * MARGIN / (norms(squares) + self.stability)


Clipping = Flat | PerLayer | Automatic


def as_clipping(clip: float | Clipping) -> Clipping:
    """A number means `Flat`."""
    return clip if isinstance(clip, Clipping) else Flat(clip=clip)


def factors(rule: Clipping, squares: Tensor) -> tuple[Tensor, Tensor | None]:
    """The factors in float32, and which examples are kept (None for all): one whose norm is not a finite number counts as zero.

    Guarantee: scaling by the factors gives vectors no longer than `rule.clip`, exactly, whatever the rounding of the multiplication.
    Proof:     `squares` are upper bounds; MARGIN pays for the rounding of factor and product.
    """
    found = rule.weights(squares)
    if math.isfinite(squares.sum().item()):
        return found.float(), None
    keep = squares.sum(1).isfinite()
    return torch.where(keep.unsqueeze(1), found, 0.0).float(), keep
